"""The description of the API, for people and for generators of clients: `GET /api/v1/openapi.json`.

It is OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.0), made from the same operations and models that serve the
requests: those of the module, and of each part that is there. Nothing is read from the database for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import regex

import findings_service
from findings_service import (
    API,
    JSON_TYPE,
    NO_NUL,
    NOT_BLANK,
    PATTERNS,
    PROBLEM_TYPE,
    REGISTRY,
    ApiRequest,
    BodyTooLarge,
    Busy,
    Forbidden,
    IdempotencyConflict,
    InternalError,
    InvalidParameter,
    MalformedJSON,
    Missing,
    Operation,
    ProblemDetails,
    Response,
    Service,
    ServiceError,
    StorageFull,
    Submission,
    TaskFilters,
    TaskQuery,
    Unauthorized,
    UnsupportedMediaType,
    ValidationFailed,
    json_response,
    operation,
    prefix_of,
    schemas_of,
)

Json = dict[str, Any]
References = Mapping[Any, Any]  # to the schemas of models
ERRORS_OF_ALL = (InternalError, StorageFull, Busy)
TAGS = ("runs", "tasks", "project-types")  # and "service"; generators of clients make a module of each
TAG = "The `etag` of the task: another one as soon as anything of it is."
WEAK_TAG = "Another one once anything of the client has changed."
TEXT, OBJECT = {"type": "string"}, {"type": "object"}
SENT = {"schema": TEXT, "required": True}  # a header that each such answer has
ENTITY_TAG = r'(?:W/)?"[!#-~\u0080-\u00ff]*"'  # RFC 9110, 8.8.3
HEADERS_OF_REFUSALS = {401: "WWW-Authenticate", 503: "Retry-After"}
# What the HTTP server refuses before the request comes here.
BARE_REFUSALS = {
    "414": {"description": "The path and query are longer than 64 KiB. There is no body."},
    "431": {"description": "There are a hundred headers or more, or they are too large. There is no body."},
}


def refusals_of(each: Operation) -> list[type[ServiceError]]:
    """Return all errors that an operation can be answered with."""
    errors = [*ERRORS_OF_ALL, *each.refusals, InvalidParameter]
    if each.level is not None:
        errors += [Unauthorized, Forbidden]
    if each.keyed:
        errors.append(IdempotencyConflict)
    if each.body is not None:
        errors += [BodyTooLarge, UnsupportedMediaType, MalformedJSON, ValidationFailed]
    if "{" in each.path or issubclass(each.query, TaskFilters):  # which may name a run
        errors.append(Missing)
    return errors


def described_answers(each: Operation, references: References) -> Json:
    """Return the `responses` of an operation."""
    described: Json = {}
    for status, model in each.answers.items():
        if model is None:
            described[str(status)] = {"description": "Done. There is no body."}
            continue
        form = "text/plain" if model is str else JSON_TYPE
        described[str(status)] = {
            "description": "Created." if status == 201 else "Done.",
            "content": {form: {"schema": references[model]}},
        }
        if status == 201 and model is not Submission:
            described["201"]["headers"] = {"Location": SENT}
    for other in each.exports:
        described["200"]["content"][other] = {"schema": OBJECT if "json" in other else TEXT}
    headers: Json = {}
    if each.tagged:
        headers["ETag"] = {"description": TAG} | SENT
    if each.has_weak_etag:
        described["304"] = {"description": "Nothing has changed since the answer with the ETag. There is no body."}
        headers["ETag"] = {"description": WEAK_TAG, "schema": TEXT}
        headers["Allow"] = {"description": "The methods that the key has here.", "schema": TEXT}
    if each.query is TaskQuery:
        headers["Link"] = {"description": "Where a list in another form goes on.", "schema": TEXT}
    if headers:
        described["200"]["headers"] = headers
    refusals = sorted(refusals_of(each), key=attrgetter("status", "code"))
    for status, errors in itertools.groupby(refusals, attrgetter("status")):
        described[str(status)] = refusal = {
            "description": " ".join(f"`{error.code}`: {(error.__doc__ or '').splitlines()[0]}" for error in errors),
            "content": {PROBLEM_TYPE: {"schema": references[ProblemDetails]}},
        }
        if status in HEADERS_OF_REFUSALS:
            refusal["headers"] = {HEADERS_OF_REFUSALS[status]: SENT}
    return described | BARE_REFUSALS


EXPECTED_TAG = "ETags, or `*`: the change is made only where the task still has one of them."
HAD_TAG = "The ETags of answers that the caller has: where one still holds, the answer is 304 without a body."
REQUEST_KEY = "The same request under the same key within 24 hours gets its answer again; another body is refused."
ENTITY_TAGS = rf"^(\*|{ENTITY_TAG}( *, *{ENTITY_TAG})*)$"
PARAMETERS_IN_PATHS = {
    "run_id": "A run's id.",
    "task_id": "A task's id.",
    "name": "A project type's name.",
    "webhook_id": "A webhook's id.",
}


AFTER = "The place behind which the page begins; follow `next` rather than making one up."
SEVERAL = "One value, or several, separated by commas or by repeating the parameter."
EXACTLY = "One name, exactly as it is, or several by repeating the parameter."
DAY_OR_TIME = "A day or a time (ISO 8601), in UTC where it names no zone."
PAGE_NUMBER = "The page, counted from 1. `next` in an answer is quicker."
# Of the models of query strings; other modules describe their own.
PARAMETERS_IN_QUERIES: dict[str, dict[str, str]] = {
    "HistoryQuery": {"limit": "Entries on a page.", "after": AFTER},
    "RunQuery": {
        "page": PAGE_NUMBER,
        "limit": "Items on a page.",
        "after": AFTER,
        "projectType": f"Runs of these project types. {SEVERAL}",
        "status": f"Runs with these statuses. {SEVERAL}",
        "targetUrl": "Runs of this target, exactly as stored.",
        "mainLine": "`true` for runs of the main line, `false` for those of branches.",
        "branch": f"Runs of these branches. {EXACTLY}",
    },
    "TaskFilters": {
        "status": f"Tasks with these statuses. {SEVERAL}",
        "severity": f"Tasks of these severities. {SEVERAL}",
        "runId": f"Tasks that these runs reported. {SEVERAL}",
        "projectType": f"Tasks of these project types. {SEVERAL}",
        "targetUrl": "Tasks of this target, exactly as stored.",
        "mainLine": "`true` for what the main line knows, `false` for what only branches know.",
        "branch": f"Tasks that runs of these branches reported. {EXACTLY}",
        "externalId": "Tasks with this id of the agent's, exactly as stored.",
        "rule": f"Tasks that break these rules. {SEVERAL}",
        "location": (
            "Tasks there, exactly as stored, and what goes on behind it with `/` or `:`: `src`,"
            " `src/app.py` and `src/app.py:42` find `src/app.py:42`. Where it ends in one of these, what begins so."
        ),
        "tag": f"Tasks with any of these tags. {SEVERAL}",
        "without": "Tasks that have none.",
        "newIn": "A run: what it reported, and the completed run of the main line before it did not.",
        "missingFrom": (
            "A run: the open and in-progress tasks with an externalId, of its project type and target,"
            " that its line knows and it did not report."
        ),
        "assignee": "Tasks that are assigned to this one, exactly as stored; with a key for users, `me` is the user.",
        "assigned": "`true` for tasks that are assigned to somebody, `false` for all others.",
        "createdSince": f"Tasks created then or later. {DAY_OR_TIME}",
        "createdBefore": f"Tasks created before then. {DAY_OR_TIME}",
        "q": (
            "Words, each of which must stand somewhere in the title, the externalId, the rule, the"
            " location, a tag or a label of the evidence, whatever its case and accents. No sign has a meaning of"
            " its own."
        ),
    },
    "TaskOrder": {
        "after": AFTER,
        "sort": "The order: newest first, oldest first, or critical ones first and the newest first within.",
    },
    "TaskQuery": {
        "page": PAGE_NUMBER,
        "limit": "Items on a page; of a list in another form than JSON up to 100,000 tasks.",
        "view": "`full` adds description, evidence, remediation, successCriteria and extensions to each task.",
    },
    "EventQuery": {
        "after": f"{AFTER} `latest` begins with what comes.",
        "type": f"Events of these types. {SEVERAL}",
        "projectType": f"What is of these project types. {SEVERAL}",
        "branch": f"What happened in runs of these branches. {EXACTLY}",
    },
}


def description_of(model: type, name: str) -> str:
    """Return the description of a parameter that the model of a query string, or one of its bases, has."""
    described = (PARAMETERS_IN_QUERIES.get(base.__name__, {}) for base in model.__mro__)
    return next(each[name] for each in described if name in each)


def described_parameters(each: Operation) -> list[Json]:
    """Return the `parameters` of an operation."""
    parameters: list[Json] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": PARAMETERS_IN_PATHS[name],
            "schema": TEXT | {"minLength": 1} | NO_NUL,
        }
        for name in regex.findall(r"\{(\w+)\}", each.path)
    ]
    headers = (
        ("Idempotency-Key", each.keyed, REQUEST_KEY, TEXT | {"minLength": 1, "maxLength": 255}),
        ("If-None-Match", each.has_weak_etag, HAD_TAG, TEXT),
        ("If-Match", each.tagged and each.body, EXPECTED_TAG, TEXT | {"pattern": ENTITY_TAGS}),
    )
    parameters += [
        {"name": name, "in": "header", "description": description, "schema": schema}
        for name, is_there, description, schema in headers
        if is_there
    ]
    schema = schemas_of([each.query])[1][each.query.__name__]
    for name, told in in_ecma(schema["properties"]).items():
        given = next(part for part in told.get("anyOf", [told]) if part.get("type") != "null")
        if given.get("type") == "array":  # is repeated, as is the default; commas do too
            given["minItems"] = 1
        parameters.append(
            {
                "name": name,
                "in": "query",
                "required": name in schema.get("required", ()),
                "description": given.pop("description", None) or description_of(each.query, name),
                "schema": given,
            }
        )
    return parameters


def in_ecma(schema: Any) -> Any:
    """Return a schema with its patterns as ECMA 262, and so OpenAPI, writes them.

    That what is left out is null, as its type says, is not said again: generators take such a default for a value.
    """
    if isinstance(schema, list):
        return [in_ecma(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {name: in_ecma(value) for name, value in schema.items() if (name, value) != ("default", None)}
    if (pattern := schema.get("pattern")) == NOT_BLANK:
        schema["pattern"] = "^[^\\u0000]*[^\\s\\u0000][^\\u0000]*$"
    elif pattern in PATTERNS:
        schema["pattern"] = pattern.replace(r"\Z", "$").replace(r"\x", r"\u00")
    return schema


def described_operation(each: Operation, references: References) -> Json:
    """Return one operation of the document."""
    described: Json = {
        "operationId": each.handler.__name__,
        "tags": [next((tag for tag in TAGS if f"{API}/{tag}" in each.path), "service")],
        "summary": (each.handler.__doc__ or "").strip().splitlines()[0],
        "parameters": described_parameters(each),
        "responses": described_answers(each, references),
    }
    if each.level is None:
        described["security"] = []
    else:
        described["description"] = f"Needs a key of level `{each.level}` or higher."
    if each.body is not None:
        content = {JSON_TYPE: {"schema": references[each.body]}}
        content |= {other: {"schema": OBJECT} for other in each.formats if other != JSON_TYPE}
        described["requestBody"] = {"required": True, "content": content}
    return described


# The header is told of here alone: only proxies send it, and as a parameter it would be in every generated client.
KEYS = "An API key: fts_… With one for users, a proxy says in `Findings-User` who each request is from."


def document_of(*operations: Operation) -> Json:
    """Return the description of a service, by its operations."""
    bodies = [body for each in operations for body in (*each.answers.values(), each.body)]
    models = {model for body in bodies for model in (body if isinstance(body, tuple) else (body,))}
    named = sorted((models | {ProblemDetails}) - {None, dict, str}, key=attrgetter("__name__"))
    references, components = schemas_of(named)
    references |= {str: TEXT, dict: OBJECT}
    references |= {each: {"anyOf": [references[model] for model in each]} for each in bodies if isinstance(each, tuple)}
    paths: dict[str, Json] = {}
    for each in sorted(operations, key=attrgetter("path")):
        paths.setdefault(each.path, {})[each.method.lower()] = described_operation(each, references)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Findings Task Service",
            "version": findings_service.__version__,
            "description": (findings_service.__doc__ or "").splitlines()[0],
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": in_ecma(components),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": KEYS}},
        },
    }


# Making one takes eight milliseconds, and anybody may ask for it.
DOCUMENTS: WeakKeyDictionary[Service, Json] = WeakKeyDictionary()


@operation("GET", "/api/v1/openapi.json", None, {200: dict})
def get_openapi(request: ApiRequest) -> Response:
    """Get this description."""
    service = request.service
    if service not in DOCUMENTS:
        DOCUMENTS[service] = document_of(*service.router.operations)
    server = {"url": service.settings.base_url or prefix_of(request.environ) or "/"}
    return json_response(200, DOCUMENTS[service] | {"servers": [server]})


def register() -> None:
    """Have the description answered."""
    REGISTRY.add_operations(get_openapi)
