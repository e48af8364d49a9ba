"""OpenAPI description, for people and client generators: `GET /api/v1/openapi.json`.

It is OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.0), generated from the operations and models that serve the
requests: those of the core and of each installed module. The database is not read.
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
    Json,
    MalformedJSON,
    Missing,
    Operation,
    ProblemDetails,
    Response,
    Service,
    ServiceError,
    StorageFull,
    Submission,
    Task,
    TaskFilters,
    TaskHead,
    TaskQuery,
    Unauthorized,
    UnsupportedMediaType,
    ValidationFailed,
    json_response,
    operation,
    prefix_of,
    schemas_of,
)

References = Mapping[Any, Any]  # models to references to their schemas
ERRORS_OF_ALL = (InternalError, StorageFull, Busy)
TAGS = ("runs", "tasks", "project-types")  # and "service"; client generators make a module of each
TAG = "The `etag` of the task. It changes whenever anything of the task changes."
WEAK_TAG = "It changes whenever anything of the client changes, and at the start of each UTC day."
TEXT, OBJECT = {"type": "string"}, {"type": "object"}
SENT = {"schema": TEXT, "required": True}  # a header that every such response has
ENTITY_TAG = r'(?:W/)?"[!#-~\u0080-\u00ff]*"'  # RFC 9110, 8.8.3
HEADERS_OF_REFUSALS = {401: "WWW-Authenticate", 503: "Retry-After"}
# Errors of the HTTP server itself, before the application gets the request.
BARE_REFUSALS = {
    "414": {"description": "The path and query are longer than 64 KiB. The response has no body."},
    "431": {"description": "There are 100 headers or more, or they are too large. The response has no body."},
}


def refusals_of(each: Operation) -> list[type[ServiceError]]:
    """Return the classes of all errors that an operation can respond with."""
    errors = [*ERRORS_OF_ALL, *each.refusals, InvalidParameter]
    if each.level is not None:
        errors += [Unauthorized, Forbidden]
    if each.keyed:
        errors.append(IdempotencyConflict)
    if each.body is not None:
        errors += [BodyTooLarge, UnsupportedMediaType, MalformedJSON, ValidationFailed]
    if "{" in each.path or issubclass(each.query, TaskFilters):  # its filters may name a run
        errors.append(Missing)
    return errors


def described_responses(each: Operation, references: References) -> Json:
    """Return the `responses` object of an operation."""
    described: Json = {}
    for status, model in each.answers.items():
        if model is None:
            described[str(status)] = {"description": "Done. The response has no body."}
            continue
        media_type = "text/plain" if model is str else JSON_TYPE
        described[str(status)] = {
            "description": "Created." if status == 201 else "Done.",
            "content": {media_type: {"schema": references[model]}},
        }
        if status == 201 and model not in (Submission, Task, TaskHead):
            described["201"]["headers"] = {"Location": SENT}
    for other in each.exports:
        described["200"]["content"][other] = {"schema": OBJECT if "json" in other else TEXT}
    headers: Json = {}
    if each.tagged:
        headers["ETag"] = {"description": TAG} | SENT
    if each.has_weak_etag:
        described["304"] = {"description": "Nothing has changed since the response with that ETag. There is no body."}
        headers["ETag"] = {"description": WEAK_TAG, "schema": TEXT}
        headers["Allow"] = {"description": "The methods that the key may use on this path.", "schema": TEXT}
    if each.query is TaskQuery:
        headers["Link"] = {"description": "The next part of a list in a format other than JSON.", "schema": TEXT}
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


EXPECTED_TAG = "ETags, or `*`. The task is changed only if it still has one of these ETags."
HAD_TAG = "ETags of responses that the caller has. If one still matches, the response is 304 without a body."
REQUEST_KEY = "For 24 hours, a repeated request with the same key gets the stored response, or 409 if its body differs."
ENTITY_TAGS = rf"^(\*|{ENTITY_TAG}( *, *{ENTITY_TAG})*)$"
PARAMETERS_IN_PATHS = {
    "run_id": "A run's id.",
    "task_id": "A task's id.",
    "claim_id": "A claim's id.",
    "name": "A project type's name.",
    "webhook_id": "A webhook's id.",
}

AFTER = "The cursor after which the page begins. Follow `next` instead of building a cursor."
SEVERAL = "One value, or several, separated by commas or by repeating the parameter."
EXACTLY = "One name, exactly as stored, or several by repeating the parameter."
DAY_OR_TIME = "A date or time (ISO 8601), in UTC unless it has a time zone."
PAGE_NUMBER = "The number of the page, from 1. Following `next` is faster."
# Descriptions of query parameters, by model; other modules have theirs in the model itself.
PARAMETERS_IN_QUERIES: dict[str, dict[str, str]] = {
    "HistoryQuery": {"limit": "Maximum number of entries on a page.", "after": AFTER},
    "RunQuery": {
        "page": PAGE_NUMBER,
        "limit": "Maximum number of items on a page.",
        "after": AFTER,
        "projectType": f"Runs of these project types. {SEVERAL}",
        "status": f"Runs with these statuses. {SEVERAL}",
        "targetUrl": "Runs of this target, exactly as stored.",
        "mainLine": "`true`: runs of the main line. `false`: runs of branches.",
        "branch": f"Runs of these branches. {EXACTLY}",
    },
    "TaskFilters": {
        "status": f"Tasks with these statuses. {SEVERAL}",
        "severity": f"Tasks of these severities. {SEVERAL}",
        "runId": f"Tasks that these runs reported. {SEVERAL}",
        "projectType": f"Tasks of these project types. {SEVERAL}",
        "targetUrl": "Tasks of this target, exactly as stored.",
        "mainLine": "`true`: tasks that the main line knows. `false`: tasks that only branches know.",
        "branch": f"Tasks that runs of these branches reported. {EXACTLY}",
        "externalId": "Tasks with this `externalId`, exactly as stored.",
        "rule": f"Tasks that break these rules. {SEVERAL}",
        "location": (
            "Tasks at this location, exactly as stored, or at one that continues it with `/` or `:`."
            " `src`, `src/app.py` and `src/app.py:42` match `src/app.py:42`. A value that ends in `/` or `:` matches"
            " every location that begins with it."
        ),
        "tag": f"Tasks with any of these tags. {SEVERAL}",
        "without": "Tasks that do not have this field.",
        "newIn": "The id of a run: tasks that it reported and its baseline (a main-line run before it) did not.",
        "missingFrom": (
            "The id of a run: open and in-progress tasks with an `externalId`, of its project type and target, that"
            " its branch or the main line knows and that it did not report."
        ),
        "assignee": "Tasks with this assignee, exactly as stored. With a key for users, `me` is the user.",
        "assigned": "`true`: tasks with an assignee. `false`: tasks without one.",
        "claimed": "`true`: tasks that an agent has claimed. `false`: other tasks.",
        "proposed": "`true`: tasks with a proposal that is neither accepted nor rejected. `false`: other tasks.",
        "verified": f"Tasks whose latest verification has these outcomes; `none`: no verification. {SEVERAL}",
        "createdSince": f"Tasks created at this time or later. {DAY_OR_TIME}",
        "createdBefore": f"Tasks created before this time. {DAY_OR_TIME}",
        "q": (
            "Words, each of which must occur somewhere in the title, the `externalId`, the rule, the"
            " location, a tag or an evidence label. Case and accents do not count. No character has a"
            " special meaning."
        ),
    },
    "TaskOrder": {
        "after": AFTER,
        "sort": "The order: newest first, oldest first, or most severe first (of one severity, newest first).",
    },
    "TaskQuery": {
        "page": PAGE_NUMBER,
        "limit": "Maximum number of items on a page; up to 100,000 in a format other than JSON.",
        "view": "`full` adds description, evidence, remediation, successCriteria and extensions to each task.",
    },
    "EventQuery": {
        "after": f"{AFTER} `latest` begins with the next event.",
        "type": f"Events of these types. {SEVERAL}",
        "projectType": f"Events of these project types. {SEVERAL}",
        "branch": f"Events that runs of these branches caused. {EXACTLY}",
    },
}


def description_of(model: type, name: str) -> str:
    """Return a query parameter's description from `PARAMETERS_IN_QUERIES`, by its model or a base class of that."""
    described = (PARAMETERS_IN_QUERIES.get(base.__name__, {}) for base in model.__mro__)
    return next(each[name] for each in described if name in each)


def described_parameters(each: Operation) -> list[Json]:
    """Return the `parameters` array of an operation."""
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
    for name, member in in_ecma(schema["properties"]).items():
        given = next(part for part in member.get("anyOf", [member]) if part.get("type") != "null")
        if given.get("type") == "array":  # the default style repeats it; commas are accepted, too
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
    """Return a schema with its patterns in the syntax of ECMA 262, which OpenAPI requires.

    Defaults of null are removed, because generators take them for values; the type already allows null.
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
    """Return the Operation Object of OpenAPI for an operation."""
    described: Json = {
        "operationId": each.handler.__name__,
        "tags": [next((tag for tag in TAGS if f"{API}/{tag}" in each.path), "service")],
        "summary": (each.handler.__doc__ or "").strip().splitlines()[0],
        "parameters": described_parameters(each),
        "responses": described_responses(each, references),
    }
    if each.level is None:
        described["security"] = []
    else:
        described["description"] = f"Requires an API key of level `{each.level}` or higher."
    if each.body is not None:
        content = {JSON_TYPE: {"schema": references[each.body]}}
        content |= {other: {"schema": OBJECT} for other in each.formats if other != JSON_TYPE}
        described["requestBody"] = {"required": True, "content": content}
    return described


# `Findings-User` is described only here: generated clients would have a parameter, although only proxies send it.
KEYS = "An API key (fts_…). With a key for users, a proxy names each request's user in `Findings-User`."


def document_of(*operations: Operation) -> Json:
    """Return the OpenAPI document of a service from its operations."""
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


# Cached, because generating a document takes 8 ms and the endpoint needs no key.
DOCUMENTS: WeakKeyDictionary[Service, Json] = WeakKeyDictionary()


@operation("GET", "/api/v1/openapi.json", None, {200: dict})
def get_openapi(request: ApiRequest) -> Response:
    """Get this OpenAPI description."""
    service = request.service
    if service not in DOCUMENTS:
        DOCUMENTS[service] = document_of(*service.router.operations)
    server = {"url": service.settings.base_url or prefix_of(request.environ) or "/"}
    return json_response(200, DOCUMENTS[service] | {"servers": [server]})


def register() -> None:
    """Register the endpoint."""
    REGISTRY.add_operations(get_openapi)
