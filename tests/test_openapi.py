"""Tests of the OpenAPI document: it is valid and complete, and the service's responses match it."""

from __future__ import annotations

import gzip
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flask
import jsonschema
import openapi_spec_validator
import pytest
from flask.testing import FlaskClient

import findings_service
from findings_features import brief
from tests.clients import API, OPERATIONS, UNKNOWN_ID, cases, task
from tests.documents import CODES
from tests.scenarios import DEFINITION, WCAG_SCHEMA, WHOLE_TASK
from tests.servers import PATIENCE, Server, environment


def test_routes_and_their_key_levels_are_as_documented() -> None:
    routes = {(each.level, f"{each.method} {each.path.removeprefix(API)}") for each in OPERATIONS}
    assert {level: {route for needed, route in routes if needed == level} for level, _ in routes} == {
        None: {"GET /openapi.json", "GET /healthz"},
        "read": {
            *("GET /runs", "GET /runs/{run_id}", "GET /runs/{run_id}/gate", "GET /overview", "GET /brief"),
            *("GET /events", "GET /groups", "GET /me"),
            *("GET /tasks", "GET /tasks/{task_id}", "GET /tasks/{task_id}/history", "GET /tasks/{task_id}/similar"),
            *("GET /project-types", "GET /project-types/{name}"),
        },
        "agent": {
            *("POST /runs", "PATCH /runs/{run_id}", "POST /runs/{run_id}/tasks", "POST /project-types"),
            *("POST /tasks/claim", "PUT /claims/{claim_id}", "DELETE /claims/{claim_id}"),
            *(f"POST /tasks/{{task_id}}/{name}" for name in ("comments", "verifications")),
            *(f"{method} /tasks/{{task_id}}/proposal" for method in ("PUT", "DELETE")),
        },
        "triage": {"PATCH /tasks", "PATCH /tasks/{task_id}"},
        "full": {
            *(
                "PUT /project-types/{name}",
                "DELETE /runs/{run_id}",
                "DELETE /tasks/{task_id}",
                "DELETE /project-types/{name}",
            ),
            *("GET /webhooks", "POST /webhooks", "POST /webhooks/{webhook_id}/test"),
            *(f"{method} /webhooks/{{webhook_id}}" for method in ("GET", "PATCH", "DELETE")),
        },
    }


def test_openapi_document_is_valid_and_has_every_route_and_error_code(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    assert document["info"]["version"] == findings_service.__version__
    openapi_spec_validator.validate(document)
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(each.method, each.path) for each in OPERATIONS}
    assert [code for code in CODES if f"`{code}`" not in json.dumps(document["paths"])] == []


OWN_STATUSES = {
    "PATCH /api/v1/runs/{run_id}": 409,
    "POST /api/v1/runs/{run_id}/tasks": 409,
    "GET /api/v1/tasks": 404,
    "PATCH /api/v1/tasks/{task_id}": 412,
    "POST /api/v1/project-types": 409,
    "DELETE /api/v1/project-types/{name}": 409,
    "GET /api/v1/brief": 422,
}


def test_every_status_of_a_route_is_in_openapi(document: dict[str, Any]) -> None:
    forms = {f"GET {API}/tasks": findings_service.REGISTRY.list_exports, f"GET {API}/brief": brief.EXPORTS}
    for each in OPERATIONS:
        name, responses = f"{each.method} {each.path}", document["paths"][each.path][each.method.lower()]["responses"]
        statuses = {400, 500, OWN_STATUSES.get(name, 500)}
        statuses |= ({401, 503} if each.level else set()) | ({403} if each.level not in (None, "read") else set())
        statuses |= ({404} if "{" in each.path else set()) | ({413, 415, 422} if each.body is not None else set())
        assert {str(status) for status in statuses} <= set(responses), name
        assert {"200", "201", "204"} & set(responses), name
        for status in {"204", "304", "414", "431"} & {*responses}:  # 414 and 431 are sent by the HTTP server
            assert "content" not in responses.pop(status), name
        for status, response in responses.items():
            kind = "application/json" if int(status) < 300 else "application/problem+json"
            assert set(response["content"]) == {kind, *(forms.get(name, ()) if status == "200" else ())}, name


def test_key_and_every_parameter_are_described(document: dict[str, Any]) -> None:
    key = document["components"]["securitySchemes"]["key"]
    assert (key["scheme"], "`Findings-User`" in key["description"]) == ("bearer", True)
    operations = [(path, each) for path, methods in document["paths"].items() for each in methods.values()]
    open_to_all = {path for path, each in operations if each.get("security", document["security"]) == []}
    assert open_to_all == {"/healthz", f"{API}/openapi.json"}
    parameters = [parameter for _, each in operations for parameter in each["parameters"]]
    assert {each["in"] for each in parameters} == {"path", "query", "header"}
    assert [each["name"] for each in parameters if not each.get("description")] == []


def test_error_responses_of_the_http_server_are_documented(server: Server, document: dict[str, Any]) -> None:
    for path, headers, status in (
        (f"/{'a' * 66_000}", {}, 414),
        (f"{API}/tasks?q={'a' * 66_000}", {}, 414),
        (f"{API}/tasks", {f"X-{number}": "a" for number in range(100)}, 431),
        (f"{API}/tasks", {"X-Long": "a" * 600_000}, 431),
    ):
        response = server.request("GET", path, **headers)
        assert (response.status_code, response.data) == (status, b"")
        described = [each for methods in document["paths"].values() for each in methods.values()]
        assert all(str(status) in each["responses"] for each in described)


BODIES = cases(
    run=("RunStart", {"projectType": "web", "metadata": {"a": [1]}}, {"projectType": "web", "sevrity": 1}),
    task=("TaskReport", WHOLE_TASK, task(severity="hgh")),
    step=("RemediationStep", {"instruction": "x", "step": 1.0}, {"instruction": "x", "step": 1.5}),
    batch=("TaskBatch", {"tasks": [task()]}, {"tasks": [{}]}),
    empty_batch=("TaskBatch", {"tasks": []}, {"tasks": None}),
    evidence=("Evidence", {"label": "x", "url": None}, {"type": "code", "content": None}),
    triage=("TaskUpdate", {"status": "open"}, {"status": "closed"}),
    triage_of_nothing=("TaskUpdate", {"assignee": ""}, {"assignee": None, "comment": None}),
    triage_with_a_reason=("TaskUpdate", {"reason": "fixed"}, {"reason": "fixed", "status": "open"}),
    triage_of_several=("TasksUpdate", {"ids": ["x"], "comment": "x"}, {"ids": ["x"]}),
    triage_of_none=("TasksUpdate", {"ids": ["x"], "reason": None, "status": "open"}, {"ids": [], "status": "open"}),
    type=("ProjectTypeDefinition", DEFINITION, {"name": "-"}),
)


@pytest.mark.parametrize(("model", "good", "bad"), BODIES)
def test_openapi_schemas_accept_and_reject_the_same_bodies_as_the_service(
    document: dict[str, Any], model: str, good: Any, bad: Any
) -> None:
    schema = {"$ref": f"#/components/schemas/{model}", "components": document["components"]}
    validator = jsonschema.Draft202012Validator(schema)
    assert (validator.is_valid(good), validator.is_valid(bad)) == (True, False)


@pytest.fixture
def generated_client(document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The Python package that a generator makes from the document without a warning."""
    (tmp_path / "openapi.json").write_text(json.dumps(document), "utf-8")
    (tmp_path / "config.json").write_text('{"post_hooks": []}', "utf-8")
    options = ("--path", "openapi.json", "--meta", "none", "--output-path", "night_client", "--config", "config.json")
    line = [sys.executable, "-W", "error", "-m", "openapi_python_client", "generate", *options]
    done = subprocess.run(line, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert (done.returncode, re.search("(?i)warning|unable|fail", output)) == (0, None), output
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module("night_client")


def test_generated_python_client_completes_a_run(server: Server, generated_client: Any) -> None:
    models = importlib.import_module("night_client.models")

    def call(operation: str, *arguments: Any, **named: Any) -> Any:
        with generated_client.AuthenticatedClient(base_url=server.url, token=server.key) as api:
            return importlib.import_module(f"night_client.api.{operation}").sync(*arguments, client=api, **named)

    schema = models.ProjectTypeDefinitionExtensionSchemaType0.from_dict(WCAG_SCHEMA)
    definition = models.ProjectTypeDefinition(name="web", label=None, extension_schema=schema)
    assert call("project_types.post_project_types", body=definition).extension_schema.to_dict() == WCAG_SCHEMA
    metadata = models.RunStartMetadataType0.from_dict({"commit": {"parents": ["a", None, 1.5]}})
    start = models.RunStart(project_type="web", target_url="https://example.com/", metadata=metadata)
    run = call("runs.post_runs", body=start, idempotency_key="night")
    assert (run.status, run.metadata.to_dict()) == (models.RunStatus.RUNNING, metadata.to_dict())
    reports = [
        models.TaskReport(
            title=f"Finding {severity}",
            severity=severity,
            external_id=f"finding-{severity}",
            evidence=[models.Evidence(type_="code", content="<img>")],
            remediation=[models.RemediationStep(instruction="Say what it shows")],
            success_criteria=[models.SuccessCriterion(description="It has a text", automatable=True)],
            extensions=models.TaskReportExtensionsType0.from_dict({"wcag": "1.1.1"}),
        )
        for severity in models.Severity
    ]
    submission = call("runs.post_tasks", run.id, body=models.TaskBatch(tasks=reports))
    assert (submission.created, submission.tasks[0].result) == (5, models.TaskResultResult.CREATED)
    severe = [models.Severity.CRITICAL, models.Severity.HIGH]
    wanted = {"status": list(models.TaskStatus), "severity": severe, "run_id": [run.id, UNKNOWN_ID]}
    heads = call("tasks.get_tasks", **wanted, sort=models.GetTasksSort.SEVERITY)
    assert [each.severity for each in heads.tasks] == severe
    whole = call("tasks.get_tasks", **wanted, view=models.GetTasksView.FULL)
    assert (type(whole), whole.tasks[0].extensions.to_dict()) == (models.FullTaskPage, {"wcag": "1.1.1"})
    triage = models.TaskUpdate(status=models.TaskStatus.DISMISSED, comment="Meant so")
    assert call("tasks.patch_task", heads.tasks[0].id, body=triage).status == models.TaskStatus.DISMISSED
    history = call("tasks.get_task_history", heads.tasks[0].id).history
    assert [(each.from_, each.to) for each in history][-1] == (models.TaskStatus.OPEN, models.TaskStatus.DISMISSED)
    end = models.RunUpdate(status=models.RunUpdateStatusType0.COMPLETED, resolve_missing=True)
    assert call("runs.patch_run", run.id, body=end).status == models.RunStatus.COMPLETED
    assert call("runs.get_run", run.id).summary.by_status.dismissed == 1
    listed = call("runs.get_runs", status=[models.RunStatus.COMPLETED, models.RunStatus.FAILED], project_type=["web"])
    assert [each.id for each in listed.runs] == [run.id]
    refused = call("runs.post_tasks", run.id, body=models.TaskBatch(tasks=[]))
    assert (refused.status, refused.code) == (409, "run_finished")


def test_host_application_may_compress_responses_of_the_service(host: flask.Flask, guest: FlaskClient) -> None:
    def compress(response: flask.Response) -> flask.Response:
        response.set_data(gzip.compress(response.get_data()))
        response.headers["Content-Encoding"] = "gzip"
        return response

    host.after_request(compress)
    for path, name, value in (("healthz", "status", "ok"), ("api/v1/openapi.json", "openapi", "3.1.0")):
        response = guest.get(f"/findings/{path}")
        assert int(response.headers["Content-Length"]) == len(response.data)
        assert json.loads(gzip.decompress(response.data))[name] == value


# Requests that are generated from the document


def without_large_bounds(description: Any) -> Any:
    """Return a schema without the bounds of the longest texts and lists: generating values at them takes a minute.

    A list of more than a thousand values in a query may also exceed the maximum length of a URL.
    """
    if isinstance(description, list):
        return [without_large_bounds(item) for item in description]
    if not isinstance(description, dict):
        return description
    kept = {name: without_large_bounds(value) for name, value in description.items()}
    for name, bound in (("maxLength", 5000), ("maxItems", 1000)):
        if isinstance(kept.get(name), int) and kept[name] >= bound:
            del kept[name]
    return kept


def without_nul(value: Any) -> Any:
    """Return free-form JSON without U+0000, which the schema excludes only in its description."""
    return json.loads(re.sub(r"(?<!\\)((?:\\\\)*)\\u0000", r"\1", json.dumps(value)))


NOWHERE = "http://nowhere.invalid/"  # RFC 6761, 6.4
PROPOSAL = {"status": "dismissed", "reason": "wont_fix", "comment": "x"}


class RequestFitter:
    """Adjusts valid requests to existing ids and rules between fields, which a schema cannot express."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.run, self.ended = server.start_run(), server.start_run()
        self.task, self.hook = self.add(self.run), self.add_hook()

    def add(self, run: str) -> str:
        return self.server.request("POST", f"{API}/runs/{run}/tasks", task()).json["tasks"][0]["id"]

    def add_hook(self) -> str:
        """Delete the webhooks of earlier requests, create one, and return its id."""
        for each in self.server.request("GET", f"{API}/webhooks").json["webhooks"][1:]:
            self.server.request("DELETE", f"{API}/webhooks/{each['id']}")
        return self.server.request("POST", f"{API}/webhooks", {"url": NOWHERE}).json["id"]

    def ids_for(self, method: str) -> dict[str, str]:
        """Return ids for a method. PATCH ends another run than the one that POST needs; DELETE gets new resources."""
        if method in ("GET", "POST", "PATCH"):
            run = self.ended if method == "PATCH" else self.run
            return {"run_id": run, "task_id": self.task, "name": "web", "webhook_id": self.hook}
        new = self.add(self.run)
        claim = self.server.request("POST", f"{API}/tasks/claim", {"ids": [new]}).json["id"]
        if method == "PUT":
            return {"task_id": new, "name": "web", "claim_id": claim}
        self.server.request("PUT", f"{API}/tasks/{new}/proposal", PROPOSAL)
        self.server.request("POST", f"{API}/project-types", {"name": "unused"})
        ids = {"task_id": new, "name": "unused", "claim_id": claim}
        return {**ids, "run_id": self.server.start_run(), "webhook_id": self.add_hook()}

    def fit_path_and_query(self, case: Any) -> None:
        """Replace ids in the path and the query by existing ones."""
        ids = self.ids_for(case.method)
        case.query |= {"projectType": "web"} if case.path.endswith("brief") else {}
        case.path_parameters = {name: ids[name] for name in case.path_parameters or {}}
        if "task" in (case.query or {}):
            case.query["task"] = ids["task_id"]
        if "after" in (case.query or {}):
            place = self.run if case.path.endswith("runs") else self.task
            case.query["after"] = f"high.{place}" if case.query.get("sort") == "severity" else place
            case.query.pop("page", None)

    def fit_body(self, method: str, body: dict[str, Any]) -> None:
        """Replace ids in the body by existing ones, and correct combinations of fields.

        Tasks are created anew, because other generated requests may delete those of earlier responses.
        """
        body |= {"ids": [self.add(self.server.start_run())]} if "ids" in body else {}
        body.pop("ifMatch", None)
        body |= {"status": "resolved"} if body.get("reason") else {}
        for name in ("until", "duplicateOf", "claim", "criterion"):
            body.pop(name, None)
        body |= {"projectType": "web"} if "projectType" in body else {}
        body |= {"url": NOWHERE} if "url" in body and self.add_hook() else {}
        body |= {"extensionSchema": {"properties": {"a": {}}}} if body.get("extensionSchema") else {}
        body |= {"metadata": without_nul(body["metadata"])} if body.get("metadata") else {}
        if method == "PUT" or body.get("status") == "failed":
            body.pop("name", None)
            body.pop("resolveMissing", None)
        for each in (body, *body.get("tasks", ())):
            each |= {"extensions": without_nul(each["extensions"])} if each.get("extensions") else {}
            for number, step in enumerate(each.get("remediation") or (), start=1):
                step["step"] = number


@pytest.fixture
def _fitted_requests(server: Server) -> Iterator[None]:
    import schemathesis  # importing it at the top would take each test process a second

    fitter = RequestFitter(server)

    @schemathesis.hook
    def before_call(context: Any, case: Any, kwargs: Any) -> None:
        if "If-Match" in (case.headers or {}):
            case.headers.pop("Idempotency-Key", None)  # the stored response of another request ignores If-Match
        if case.meta.generation.mode.is_positive:
            fitter.fit_path_and_query(case)
            (case.headers or {}).pop("If-Match", None)
            (case.query or {}).pop("wait", None)
            if case.media_type == "application/sarif+json":  # the schema of SARIF is not in the document
                case.body = {"version": "2.1.0", "runs": [{"tool": {"driver": {"name": "x"}}, "results": []}]}
            elif isinstance(case.body, dict):
                fitter.fit_body(case.method, case.body)

    yield
    schemathesis.hooks.unregister(before_call)


@pytest.mark.usefixtures("_fitted_requests")
def test_responses_to_generated_requests_match_the_openapi_document(server: Server) -> None:
    import schemathesis.engine.events

    document = without_large_bounds(server.request("GET", f"{API}/openapi.json").json)
    settings = {
        "base-url": f"http://127.0.0.1:{server.port}",
        "headers": {"Authorization": f"Bearer {server.key}"},
        "seed": 1,
        "request-timeout": PATIENCE,
        "suppress-health-check": ["too_slow"],
        "generation": {"max-examples": 10, "deterministic": True, "database": "none"},
        "phases": {"stateful": {"enabled": False}},
        "checks": {
            "ignored_auth": {"enabled": False},  # other tests check that each route requires a key
            # An ETag without quotes matches nothing, which is 412.
            "negative_data_rejection": {"expected-statuses": [*range(400, 418), 422, 428, 429, "5xx"]},
        },
    }
    config = schemathesis.Config.from_dict(settings)
    failures, checked = [], 0
    for event in schemathesis.engine.from_schema(schemathesis.openapi.from_dict(document, config=config)).execute():
        assert not isinstance(event, (schemathesis.engine.events.FatalError, schemathesis.engine.events.NonFatalError))
        for checks in event.recorder.checks.values() if hasattr(event, "recorder") else ():
            checked += 1
            failures += [each.failure_info for each in checks if each.failure_info]
    assert not failures, "\n\n".join(f"{each.failure}\n{each.code_sample}" for each in failures)
    assert checked > 500
