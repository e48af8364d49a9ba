"""Tests of the files of the page: headers, sizes and references."""

from __future__ import annotations

import gzip
import itertools
import re
from typing import Any

import flask
import pytest

import findings_service as core
from findings_adapters import page as page_module
from tests.browser import Findings, MakeUser, PageUser, numbered
from tests.clients import assert_problem

FILES = {path: served.args[0] for path, served in core.REGISTRY.page_files.items()}
OWN_FILES = [file for file in sorted(page_module.FOLDER.rglob("*")) if file.is_file() and file.parent.name != "vendor"]
APP = next(path for path in FILES if path.endswith("/app.js"))
MOST_BYTES, MOST_COMPRESSED = 189_000, 61_500  # of all files in one archive


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
        caching = "no-cache" if path == "/" else "public, max-age=31536000, immutable"
        names = ("X-Content-Type-Options", "Referrer-Policy", "Cache-Control")
        assert [headers[name] for name in names] == ["nosniff", "no-referrer", caching]


def test_page_files_are_compressed_for_clients_that_accept_gzip(app: flask.Flask) -> None:
    client = app.test_client()
    packed, plain = ("gzip", "br, gzip;q=0.5", "*"), ("", "br", "gzip;q=0, *", "identity")
    for path, accepted in itertools.product(("/", APP), (*packed, *plain)):
        sent = {"Accept-Encoding": accepted}
        response = client.get(path, headers=sent)
        encoding, etag = response.headers.get("Content-Encoding"), response.headers["ETag"]
        assert (encoding, response.headers["Vary"]) == ("gzip" if accepted in packed else None, "Accept-Encoding")
        assert (gzip.decompress(response.data) if encoding else response.data) == FILES[path]
        same, head = client.get(path, headers={**sent, "If-None-Match": etag}), client.head(path, headers=sent)
        assert [each.status_code for each in (same, head)] == [304, 200]
        assert [(each.data, each.headers["ETag"]) for each in (same, head)] == [(b"", etag)] * 2
        other = client.get(path, headers={"Accept-Encoding": "" if encoding else "gzip", "If-None-Match": etag})
        assert other.status_code == 200


def test_other_methods_return_405_and_other_paths_404(app: flask.Flask) -> None:
    client = app.test_client()
    for path, method in itertools.product(("/", APP), ("POST", "PUT", "DELETE", "OPTIONS")):
        response = client.open(path, method=method)
        assert_problem(response, 405, "method_not_allowed")
        assert response.headers["Allow"] == "GET, HEAD"
    folder = APP.removesuffix("app.js")
    unknown = ("/page", "/page/app.js", "/page/0123456789ab/app.js", "/index.html")
    for path in (*unknown, folder, f"{folder}x.js", f"{folder}index.html", f"{folder}../../page.py"):
        assert_problem(client.get(path), 404, "not_found")


@pytest.mark.parametrize("enabled", [False, True])
def test_embedding_application_serves_the_page_only_if_enabled(app: flask.Flask, enabled: bool) -> None:
    host = flask.Flask("host")
    service = core.create_blueprint(app.extensions["findings"].settings, **({"page": True} if enabled else {}))
    host.register_blueprint(service, url_prefix="/findings")
    client = host.test_client()
    statuses = [client.get(path).status_code for path in ("/findings/", f"/findings{APP}", "/")]
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
    archive = b"".join(FILES[path] for path in sorted(FILES, key=lambda path: path.rpartition(".")[2]))
    assert len(archive) < MOST_BYTES
    assert len(gzip.compress(archive, mtime=0)) < MOST_COMPRESSED
    assert not re.search(rb"(?m)^\s*(//|/\*)", archive)
    for file in OWN_FILES:
        for name in re.findall(r'from "([^"]+)"', file.read_text("utf-8")):
            assert name.startswith("./")
            assert (file.parent / name).is_file(), name
    named = re.findall(r'(?:href|src)="([^"]+)"', FILES["/"].decode())
    assert {f"/{name}" for name in named} == {*FILES, "/api/v1/openapi.json"} - {"/"}
    for path, content in FILES.items():
        named = set(re.findall(r"(?:https?:)?//[a-z0-9-]+\.[a-z]+[^\s\"'`]*", content.decode()))
        assert {name for name in named if not name.startswith("http://www.w3.org/")} == set(), path


def test_page_code_never_parses_text_as_html_or_code() -> None:
    pattern = r"(?i)(inner|outer)HTML|insertAdjacent|document\.write|\beval\b|new Function|dangerously|srcdoc|\sstyle="
    assert {file.name: found for file in OWN_FILES if (found := re.findall(pattern, file.read_text("utf-8")))} == {}


# Loading over a slow line

SLOW_LINE = {"offline": False, "latency": 150, "downloadThroughput": 200_000, "uploadThroughput": 93_750}
ENTRIES = "performance.getEntriesByType('resource').map((each) => each.toJSON())"


def load_entries(user: PageUser, fragment: str, kind: str) -> list[dict[str, Any]]:
    """Open a view anew, and return the browser's timing of the requests whose URL contains `kind`."""
    user.page.goto("about:blank")
    user.open(fragment)
    user.expect_none(".loading, [aria-busy=true]")
    return [each for each in user.page.evaluate(ENTRIES) if kind in each["name"]]


def is_one_round_trip(entries: list[dict[str, Any]]) -> bool:
    """Return whether no request waited for the response to another."""
    return max(each["startTime"] for each in entries) < min(each["responseEnd"] for each in entries)


def test_files_are_requested_at_once_and_only_by_the_first_visit(make_user: MakeUser, findings: Findings) -> None:
    findings.report(*numbered(3))
    user = make_user(locale="en-US")  # a new context, whose cache is empty
    line = user.page.context.new_cdp_session(user.page)
    line.send("Network.emulateNetworkConditions", SLOW_LINE)
    files = load_entries(user, "", "/page/")
    assert len(files) > 30
    assert is_one_round_trip([each for each in files if each["name"].endswith("js")])
    assert sum(each["encodedBodySize"] for each in files) < MOST_BYTES * 0.45
    assert [each["name"] for each in load_entries(user, "", "/page/") if each["transferSize"]] == []
    assert is_one_round_trip(load_entries(user, f"#/findings?projectType={findings.type}", "/api/"))
