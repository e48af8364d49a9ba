"""Tests of the files of the page: headers, sizes and references."""

from __future__ import annotations

import itertools
import re

import flask
import pytest

import findings_service as core
from findings_adapters import page as page_module
from tests.clients import assert_problem

FILES = {path: served.args[0] for path, served in core.REGISTRY.page_files.items()}
OWN_FILES = [file for file in sorted(page_module.FOLDER.rglob("*")) if file.is_file() and file.parent.name != "vendor"]
MOST_BYTES = 150_000


# The files


def test_page_files_are_public_cacheable_and_have_a_strict_csp(app: flask.Flask) -> None:
    client = app.test_client()
    none = {f"{name} 'none'" for name in ("default-src", "base-uri", "form-action", "frame-ancestors")}
    own = {f"{name} 'self'" for name in ("script-src", "style-src", "connect-src")}
    for path, content in FILES.items():
        response = client.get(path)
        assert (response.status_code, response.data) == (200, content)
        assert response.content_type.endswith("; charset=utf-8")
        headers = dict(response.headers)
        policy = set(headers["Content-Security-Policy"].split("; "))
        assert policy == none | own | {"img-src 'self' data: http: https:"}
        names = ("X-Content-Type-Options", "Referrer-Policy", "Cache-Control")
        assert [headers[name] for name in names] == ["nosniff", "no-referrer", "no-cache"]
        again, head = client.get(path, headers={"If-None-Match": headers["ETag"]}), client.head(path)
        assert [each.status_code for each in (again, head)] == [304, 200]
        assert [(each.data, each.headers["ETag"]) for each in (again, head)] == [(b"", headers["ETag"])] * 2


def test_other_methods_return_405_and_other_paths_404(app: flask.Flask) -> None:
    client = app.test_client()
    for path, method in itertools.product(("/", "/page/app.js"), ("POST", "PUT", "DELETE", "OPTIONS")):
        response = client.open(path, method=method)
        assert_problem(response, 405, "method_not_allowed")
        assert response.headers["Allow"] == "GET, HEAD"
    for path in ("/page", "/page/", "/page/x.js", "/index.html", "/page/index.html", "/page/../page.py"):
        assert_problem(client.get(path), 404, "not_found")


@pytest.mark.parametrize("enabled", [False, True])
def test_embedding_application_serves_the_page_only_if_enabled(app: flask.Flask, enabled: bool) -> None:
    host = flask.Flask("host")
    service = core.create_blueprint(app.extensions["findings"].settings, **({"page": True} if enabled else {}))
    host.register_blueprint(service, url_prefix="/findings")
    client = host.test_client()
    statuses = [client.get(path).status_code for path in ("/findings/", "/findings/page/app.js", "/")]
    assert statuses == ([200, 200, 404] if enabled else [404] * 3)
    if enabled:
        assert client.get("/findings/").data == FILES["/"]
        assert client.get("/findings").headers["Location"] == "findings/"


def test_prefix_without_trailing_slash_redirects_to_the_page(app: flask.Flask) -> None:
    mounted = app.test_client().get("", environ_overrides={"SCRIPT_NAME": "/a/b", "PATH_INFO": ""})
    escaped = app.test_client().get(
        "", environ_overrides={"SCRIPT_NAME": "/a/é b".encode().decode("latin-1"), "PATH_INFO": ""}
    )
    assert escaped.headers["Location"] == "%C3%A9%20b/"
    assert (mounted.status_code, mounted.headers["Location"]) == (308, "b/")


def test_page_is_small_and_loads_only_its_own_files() -> None:
    assert sum(file.stat().st_size for file in page_module.FOLDER.rglob("*") if file.is_file()) < MOST_BYTES
    for file in OWN_FILES:
        for name in re.findall(r'from "([^"]+)"', file.read_text("utf-8")):
            assert name.startswith("./")
            assert (file.parent / name).is_file(), name
    for name in re.findall(r'(?:href|src)="([^"]+)"', FILES["/"].decode()):
        assert f"/{name}" in FILES or name == "api/v1/openapi.json"
    for path, content in FILES.items():
        named = set(re.findall(r"(?:https?:)?//[a-z0-9-]+\.[a-z]+[^\s\"'`]*", content.decode()))
        assert {name for name in named if not name.startswith("http://www.w3.org/")} == set(), path


def test_page_code_never_parses_text_as_html_or_code() -> None:
    pattern = r"(?i)(inner|outer)HTML|insertAdjacent|document\.write|\beval\b|new Function|dangerously|srcdoc|\sstyle="
    assert {file.name: found for file in OWN_FILES if (found := re.findall(pattern, file.read_text("utf-8")))} == {}
