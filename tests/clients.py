"""Clients of applications in this process, and checks of their responses."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import flask
import flask.json.provider
import jsonschema_rs
import msgspec
import pytest
from flask.testing import FlaskClient
from werkzeug.datastructures import Headers

import findings_service
from findings_features import brief, openapi
from findings_service import Settings, create_app, create_blueprint
from tests.engines import ON_POSTGRES, db_at

API = "/api/v1"
findings_service.load_modules()
OPERATIONS = [*findings_service.REGISTRY.operations.values()]
ROUTER = findings_service.Router(OPERATIONS)
UNKNOWN_ID = "01900000-0000-7000-8000-000000000000"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
KEY = re.compile(r"fts_[A-Za-z0-9_-]{43}")
LONG_TIMEOUTS = {"schema_timeout": "60s", "busy_timeout": "60s"}  # settings of services, unless a test sets them
SEVERITIES = ("critical", "high", "medium", "low", "info")
STATUSES = ("open", "in_progress", "resolved", "dismissed")
KIB = 1024
TITLES = http.client.responses | {413: "Content Too Large", 422: "Unprocessable Content"}  # as named in RFC 9110


def cases(**named: Any) -> list[Any]:
    """Return the rows of a parametrized table, each with its name as the id."""
    return [pytest.param(*(row if isinstance(row, tuple) else (row,)), id=name) for name, row in named.items()]


def task(**fields: Any) -> dict[str, Any]:
    """Return a task to submit, without the fields whose value is `...`."""
    whole = {"title": "Image without alt text", "severity": "high"} | fields
    return {name: value for name, value in whole.items() if value is not ...}


def nested(levels: int) -> Any:
    """Return an object nested to this many levels."""
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def assert_problem(response: Any, status: int, code: str, pointer: str | None = None) -> dict[str, Any]:
    """Check an error response (RFC 9457), and that one of its errors has this `pointer` or parameter."""
    problem = response.json
    assert (response.status_code, problem.get("code")) == (status, code), problem
    assert response.content_type == "application/problem+json"
    assert (problem["type"], problem["title"], problem["status"]) == ("about:blank", TITLES[status], status)
    assert problem["detail"]
    for error in problem.get("errors", ()):
        assert error["detail"]
        assert ("pointer" in error) != ("parameter" in error)
    if pointer is not None:
        locations = [error.get("pointer", error.get("parameter")) for error in problem.get("errors", ())]
        assert pointer in locations, problem
    return dict(problem)


@cache
def validator_of(method: str, path: str, status: int, content_type: str) -> Any:
    """Return a validator of one response's body, made from the OpenAPI document."""
    document = openapi.document_of(*OPERATIONS)
    responses = document["paths"][path][method.lower()]["responses"]
    assert str(status) in responses, f"{method} {path} does not document {status}"
    if not content_type:
        assert "content" not in responses[str(status)], f"{method} {path} documents a body of {status}"
        return jsonschema_rs.Draft202012Validator({"const": None})
    schema = responses[str(status)]["content"][content_type]["schema"]
    return jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})


def assert_documented(response: Any) -> None:
    """Check a response against the OpenAPI document: its status and, unless it is long, its body."""
    method, route = response.request.method, ROUTER.find(response.request.path.split("/"))
    if route and method in route[1]:
        media_type = (response.content_type or "").partition(";")[0]
        validator = validator_of(method, route[0], response.status_code, media_type)
        exports = {**findings_service.REGISTRY.list_exports, **brief.EXPORTS}
        if media_type not in exports and len(response.data) < 10_000:
            validator.validate(response.json if response.data else None)


class Client(FlaskClient):
    """A test client that sends a key with every request."""

    key = ""

    def open(self, *args: Any, **kwargs: Any) -> Any:
        headers = Headers(kwargs.pop("headers", None))
        if self.key:
            headers.setdefault("Authorization", f"Bearer {self.key}")
        response = super().open(*args, headers=headers, **kwargs)
        assert_documented(response)
        return response

    def send(self, method: str, path: str, body: bytes | str) -> Any:
        """Send a body unchanged, as application/json."""
        return self.open(path, method=method, data=body, content_type="application/json")

    def request_json(self, method: str, path: str, *statuses: int, **how: Any) -> Any:
        """Send a request, check that its status is one of these, and return the JSON."""
        response = self.open(path if path.startswith("/") else f"{API}/{path}", method=method, **how)
        assert response.status_code in statuses, response.json
        return response.json

    def register(self, name: str, schema: Any = None) -> dict[str, Any]:
        return self.request_json("POST", "project-types", 200, 201, json={"name": name, "extensionSchema": schema})

    def start(self, project_type: str = "web", **fields: Any) -> str:
        return self.request_json("POST", "runs", 201, json={"projectType": project_type, **fields})["id"]

    def finish(self, run_id: str, status: str = "completed", **fields: Any) -> dict[str, Any]:
        return self.request_json("PATCH", f"runs/{run_id}", 200, json={"status": status, **fields})

    def submit(self, run_id: str, *tasks: dict[str, Any]) -> dict[str, Any]:
        return self.request_json("POST", f"runs/{run_id}/tasks", 200, 201, json={"tasks": tasks})

    def add(self, run_id: str, **fields: Any) -> str:
        return self.submit(run_id, task(**fields))["tasks"][0]["id"]

    def triage(self, task_id: str, status: str | None = None, **fields: Any) -> dict[str, Any]:
        """Set a task's status, or make another decision about it."""
        return self.request_json("PATCH", f"tasks/{task_id}", 200, json={"status": status, **fields})

    def read(self, path: str, **query: Any) -> Any:
        """Get a path below /api/v1, or a link, and return the JSON."""
        return self.request_json("GET", path, 200, query_string=query or None)

    def remove(self, path: str) -> None:
        """Delete the resource at a path below /api/v1."""
        response = self.delete(f"{API}/{path}")
        assert (response.status_code, response.data) == (204, b""), response.json

    def history(self, task_id: str) -> list[dict[str, Any]]:
        return self.read(f"tasks/{task_id}/history")["history"]

    def walk(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield every page of a list, following its `next` links."""
        page = self.read(path, **query)
        yield page
        while page["next"]:
            page = self.read(page["next"])
            yield page


def database_of(app: flask.Flask) -> Any:
    return app.extensions["findings"].database


def reader_of(app: flask.Flask) -> Any:
    """Return an application's read connection to a file."""
    with database_of(app).reading() as connection:
        return connection


def rows_of(app: flask.Flask, sql: str) -> list[Any]:
    """Return the rows of a query, read by an application."""
    with database_of(app).reading() as connection:
        return connection.execute(sql).fetchall()


def writer_of(app: flask.Flask) -> Any:
    """Return an application's write connection to a file."""
    with database_of(app).maintaining() as connection:
        return connection


def make_key(
    app: flask.Flask, name: str = "tests", client: str = "default", level: str = "full", *, for_users: bool = False
) -> str:
    """Create a key, as the command line does, and return it."""
    with database_of(app).transaction() as connection:
        return findings_service.insert_key(connection, name, client, level, for_users=for_users)


def client_with(app: flask.Flask, key: str) -> Client:
    app.test_client_class = Client
    client = app.test_client()
    assert isinstance(client, Client)
    client.key = key
    return client


def client_of(app: flask.Flask, level: str = "full", client: str = "default", name: str = "tests") -> Client:
    """Return a client with a new key."""
    return client_with(app, make_key(app, name, client, level))


def users_of(app: flask.Flask, *users: str, level: str = "full") -> list[Client]:
    """Return a client for each user; all send one key created with --for-users."""
    key = make_key(app, "proxy", level=level, for_users=True)
    clients = [client_with(app, key) for _ in users]
    for client, user in zip(clients, users, strict=True):
        client.environ_base["HTTP_FINDINGS_USER"] = user.encode().decode("latin-1")
    return clients


def patch_core(patch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    """Replace a name of the core, also in the modules that have imported it."""
    old = getattr(findings_service, name)
    for module_name, module in [*sys.modules.items()]:
        if module_name.startswith("findings_") and getattr(module, name, None) is old:
            patch.setattr(module, name, value)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FINDINGS_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def new_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database file with the schema; copying it is faster than creating one for each test."""
    db = tmp_path_factory.mktemp("new") / "findings.db"
    database_of(create_app(db=str(db))).close()
    return db


@pytest.fixture
def make_app(tmp_path: Path, new_database: Path) -> Iterator[Callable[..., flask.Flask]]:
    """A factory of applications, all on one file and without fsync unless the settings say otherwise."""
    made = []

    def make(**settings: Any) -> flask.Flask:
        db = tmp_path / "findings.db"
        if not ON_POSTGRES and not db.exists():
            shutil.copyfile(new_database, db)
        read = Settings.read(**{**LONG_TIMEOUTS, **settings, "db": db_at(settings.get("db", db), ready=True)})
        unsynced = {} if "synchronous" in settings else {"synchronous": "OFF"}  # matters only after a power cut
        made.append(create_app(msgspec.structs.replace(read, **unsynced)))
        return made[-1]

    yield make
    for app in made:
        database_of(app).close()


@pytest.fixture
def app(make_app: Callable[..., flask.Flask]) -> flask.Flask:
    return make_app()


@pytest.fixture
def client(app: flask.Flask) -> Client:
    return client_of(app)


@pytest.fixture
def run(client: Client) -> str:
    """The id of a running run whose project type has no schema."""
    client.register("web")
    return client.start("web", targetUrl="https://example.com/")


PRINCIPAL = findings_service.Principal("", "default", "tests", "full")


@pytest.fixture
def zero_list_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the time limit of lists to zero."""
    monkeypatch.setattr("findings_service.LIST_TIME", -1)
    monkeypatch.setattr("findings_service.CLOCK_STEPS", 1)


@pytest.fixture
def document(app: flask.Flask) -> dict[str, Any]:
    """The OpenAPI document, requested without a key."""
    response = app.test_client().get(f"{API}/openapi.json")
    assert (response.status_code, response.content_type) == (200, "application/json")
    return response.json


class HostJSON(flask.json.provider.DefaultJSONProvider):
    """A JSON provider of a host application."""

    mimetype = "application/vnd.host+json"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[flask.Flask]:
    """A host application with pages of its own and the service mounted at /findings."""
    app = flask.Flask("host")
    app.json = HostJSON(app)
    app.config.update(MAX_CONTENT_LENGTH=123_456_789, HOST_SETTING="host")
    for status in (404, 405, 500):
        app.register_error_handler(status, lambda _, status=status: (f"host's {status}", status))
    app.add_url_rule("/page", "page", lambda: {"host": True}, methods=["GET"])
    app.add_url_rule("/broken", "broken", lambda: 1 // 0)
    blueprint = create_blueprint(Settings(db=db_at(tmp_path / "embedded.db")))
    app.register_blueprint(blueprint, url_prefix="/findings")
    app.extensions["findings"] = blueprint.service
    yield app
    blueprint.service.database.close()


@pytest.fixture
def guest(host: flask.Flask) -> FlaskClient:
    """A client of the host application, with a full key of the service."""
    client = host.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {make_key(host)}"
    return client


def assert_storage_problem(response: Any, code: str) -> None:
    """Check a 503 response that has a code and a Retry-After header."""
    assert_problem(response, 503, code)
    assert int(response.headers["Retry-After"]) > 0
