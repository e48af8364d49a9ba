"""Tests of Flask's routes: one for each operation of the API, named after its handler."""

from __future__ import annotations

import re
import sys

import flask
import pytest
from flask.testing import FlaskClient
from werkzeug.routing import RequestRedirect

import findings_service
from tests.clients import API, OPERATIONS, ROUTER, UNKNOWN_ID, assert_problem
from tests.engines import db_at
from tests.servers import command

UNROUTED = {"unknown", "unknown_healthz", "unknown_claim", "page", "page_file"}  # problem responses, and the page


def test_flask_routes_lists_every_operation(tmp_path) -> None:
    program = (sys.executable, "-m", "flask", "--app", "findings_service")
    done = command("routes", program=program, FINDINGS_DB=db_at(tmp_path / "x.db"))
    assert done.returncode == 0, done.stderr
    listed = {tuple(re.split(r"  +", line.strip(), maxsplit=2)) for line in done.stdout.splitlines()[2:]}
    rules = {(each.handler.__name__, each.method, re.sub(r"\{(\w+)\}", r"<\1>", each.path)) for each in OPERATIONS}
    api = {row for row in listed if row[0].removeprefix("findings.") not in UNROUTED}
    assert api == {(f"findings.{name}", method, path) for name, method, path in rules}


def test_url_for_builds_urls_in_an_embedding_application(host: flask.Flask, guest: FlaskClient) -> None:
    with host.test_request_context("/"):
        url = flask.url_for("findings.get_task", task_id=UNKNOWN_ID)
    assert url == f"/findings{API}/tasks/{UNKNOWN_ID}"
    assert guest.get(url).json["detail"] == f"There is no task {UNKNOWN_ID!r}."


@pytest.mark.parametrize(
    ("method", "path", "endpoint", "view_args"),
    [
        ("GET", "tasks", "get_tasks", {}),
        ("PATCH", "tasks/x", "patch_task", {"task_id": "x"}),
        ("POST", "runs/y/tasks", "post_tasks", {"run_id": "y"}),
        ("DELETE", "tasks", "unknown", {"rest": "tasks"}),
        ("GET", "tasks/x/y/z", "unknown", {"rest": "tasks/x/y/z"}),
    ],
)
def test_hooks_of_an_embedding_application_see_the_endpoint(
    host: flask.Flask, guest: FlaskClient, method: str, path: str, endpoint: str, view_args: dict[str, str]
) -> None:
    seen = []
    host.before_request(lambda: seen.append((flask.request.endpoint, flask.request.view_args)))
    guest.open(f"/findings{API}/{path}", method=method)
    assert seen == [(f"findings.{endpoint}", view_args)]


def similar_paths(path: str) -> list[str]:
    """Return paths that match a pattern, or nearly."""
    filled = re.sub(r"\{\w+\}", "a.b-c%20ü", path)
    return [
        filled,
        filled + "/",
        re.sub(r"\{\w+\}", "", path),
        f"{filled}/x",
        filled.replace("/v1/", "/v1//"),
        path.upper(),
    ]


def test_flask_and_the_servers_router_match_the_same_operations(app: flask.Flask) -> None:
    adapter = app.url_map.bind("localhost")
    for path in sorted({each for one in OPERATIONS for each in similar_paths(one.path)}):
        found = ROUTER.find(path.split("/"))
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
            try:
                endpoint, view_args = adapter.match(path, method)
            except (findings_service.NotFound, findings_service.MethodNotAllowed):
                endpoint, view_args = "findings.unknown", {}
            except RequestRedirect as error:
                pytest.fail(f"{path} is redirected to {error.new_url}")
            operation = found[1].get(method.replace("HEAD", "GET")) if found else None
            name = endpoint.removeprefix("findings.")
            if operation is None:
                assert name in UNROUTED, (method, path)
            else:
                assert (name, view_args) == (operation.handler.__name__, found[2]), (method, path)


@pytest.mark.parametrize("method", ["get", "post", "delete"])
def test_lower_case_method_returns_405(guest: FlaskClient, method: str) -> None:
    response = guest.post(
        f"/findings{API}/runs", environ_overrides={"REQUEST_METHOD": method}, json={"projectType": "web"}
    )
    assert_problem(response, 405, "method_not_allowed")
