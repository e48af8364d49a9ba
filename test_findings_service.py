"""Tests of the core, in the order of its sections: requests first, the command line last.

They run twice: with all modules, and with the core and its schema alone (`FINDINGS_TEST_CORE=alone`). Most use the
application in this process; the others start a server on a free port. The in-process client checks every response
against the OpenAPI document.
"""

from __future__ import annotations

import hashlib
import http.client
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial, reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flask
import flask.json.provider
import msgspec
import pytest
import regex
from flask.testing import FlaskClient
from werkzeug.datastructures import Headers

import findings_service
from findings_features import brief, deletion, groups
from findings_service import LARGE_WAL, Settings, TryAgain, create_app, create_blueprint
from tests import clients, engines, files, scenarios, servers
from tests.clients import API, KIB, STATUSES, UNKNOWN_ID, Client, assert_problem, cases, client_of, database_of, task
from tests.documents import COMMANDS, HERE, settings_variables
from tests.engines import ON_POSTGRES, commit_method, connect_directly, db_at, full_error, integrity_errors_of, locked
from tests.files import UNUSABLE, assert_storage_unusable, database_files, files_in, move_database_away, stored_rows
from tests.hostile import assert_rejected, concurrent_reads, raw_request, send_raw, status_of
from tests.scenarios import BACKTRACKING, DEFINITION, WCAG_SCHEMA, WHOLE_TASK, Panic, count_all, in_a, post, start_on
from tests.servers import CORE_FOLDER, IMPORT_CORE, PATIENCE, SECRET, Server, command, environment, invoke, wait_until
from tests.surveys import PLACES, RULES, TAGS, TARGETS, Survey

DIGITS = "7" * 5000


@contextmanager
def read_only(app: flask.Flask) -> Iterator[None]:
    """Make the database of an application read-only."""
    database = database_of(app)
    if not ON_POSTGRES:
        clients.writer_of(app).execute("PRAGMA query_only = ON")
        yield
        clients.writer_of(app).execute("PRAGMA query_only = OFF")
        return
    change = f"ALTER DATABASE {database.settings.db.rpartition('/')[2]}"
    with connect_directly(database.settings.db) as connection:
        for clause in ("SET default_transaction_read_only = on", "RESET default_transaction_read_only"):
            connection.execute(f"BEGIN; SET TRANSACTION READ WRITE; {change} {clause}; COMMIT")
            database.disconnect()
            if clause.startswith("SET"):
                yield


READ_ONLY = "busy" if ON_POSTGRES else "storage_full"  # the code of a write to a read-only database
TYPE_FIELDS = {"id", "name", "label", "description", "createdAt"}
BULK_FIELDS = {"description", "evidence", "remediation", "successCriteria", "extensions"}
MARKS = ("rule", "location", "tags")
HEAD_FIELDS = {
    *("id", "runId", "lastRunId", "projectType", "targetUrl", "branch", "externalId", "title", "severity", "status"),
    *("reason", "assignee", "createdAt", "updatedAt", "lastSeenAt", "timesSeen", *MARKS, "etag"),
    *("reportedSeverity", "until", "duplicateOf", "links", "verification", "proposal", "claim"),
}
RUN_FIELDS = {
    *("id", "projectType", "targetUrl", "branch", "metadata", "status", "statusReason"),
    *("createdAt", "updatedAt", "finishedAt", "submitted", "verdict"),
}
IMAGE = "data:image/png;base64,"
# --- Conventions -----------------------------------------------------------

STRINGS = (
    *("plain", "  spaces stay  ", "e\u0301 is not \u00e9", "\U0001f600 \U0010ffff", "\ufffe \uffff \ufdd0"),
    *("\ufeffmark \u2028 \u2029 \u200f", "\x01\x1f\x7f\t\n\r", '\\u0000 " / \\', "<script>&amp;</script>"),
    '[{"\\' * 64,  # brackets in a string are not nesting levels
)


@pytest.mark.parametrize("escaped", [True, False], ids=["escaped", "plain"])
def test_strings_round_trip_exactly_as_utf8(client: Client, run: str, escaped: bool) -> None:
    for text in STRINGS:
        texts = dict.fromkeys(("title", "description", "externalId"), text)
        sent = task(**texts, evidence=[{"label": text}], extensions={text: [text]})
        body = json.dumps(sent, ensure_ascii=escaped).encode()
        task_id = client.send("POST", f"{API}/runs/{run}/tasks", body).json["tasks"][0]["id"]
        stored = client.read(f"tasks/{task_id}")
        assert {name: stored[name] for name in texts} == texts
        assert (stored["evidence"][0]["label"], stored["extensions"]) == (text, {text: [text]})
        assert client.read("tasks", externalId=text)["total"] == 1
    response = client.get(f"{API}/tasks")
    assert (response.content_type, "\U0001f600 \U0010ffff".encode() in response.data) == ("application/json", True)


def test_times_are_utc_with_milliseconds(client: Client, run: str) -> None:
    stored = client.read(f"tasks/{client.add(run)}")
    finished = client.finish(run)
    times = [stored[name] for name in ("createdAt", "updatedAt", "lastSeenAt")]
    times += [finished[name] for name in ("createdAt", "updatedAt", "finishedAt")]
    times += [client.history(stored["id"])[0]["at"], client.read("project-types/web")["createdAt"]]
    assert all(clients.TIME.fullmatch(text) for text in times), times


def test_ids_are_uuid7_in_creation_order_even_within_a_batch(client: Client, run: str) -> None:
    done = client.submit(run, *[task(externalId=f"f-{n}" if n % 2 else None) for n in range(1000)])
    ids = [*(item["id"] for item in done["tasks"]), client.add(run), client.add(run)]
    assert (done["created"], ids) == (1000, sorted(set(ids)))
    assert all(clients.UUID7.fullmatch(text) for text in (*ids, run, client.read("project-types/web")["id"]))
    assert len({text[-12:] for text in ids}) == len(ids)


EACH_OPERATION = [pytest.param(each, id=f"{each.method} {each.path}") for each in clients.OPERATIONS]


def path_to(each: Any, client: Client, run: str, **task_fields: str) -> str:
    """Return the path of an operation with the ids of existing resources."""
    webhook = client.post(f"{API}/webhooks", json={"url": "https://hooks.invalid/"}) if "webhook" in each.path else None
    ids = {"run_id": run, "task_id": client.add(run, **task_fields), "webhook_id": webhook and webhook.json["id"]}
    if "{claim_id}" in each.path:
        ids["claim_id"] = client.post(f"{API}/tasks/claim", json={"ids": [ids["task_id"]]}).json["id"]
    return each.path.format(name="web", **ids)


@pytest.mark.parametrize("each", EACH_OPERATION)
def test_unknown_query_parameter_is_rejected_by_name(client: Client, run: str, each: Any) -> None:
    body = {} if each.method != "GET" else None
    path = path_to(each, client, run)
    response = client.open(path, method=each.method, json=body, query_string={"stauts": "open"})
    assert_problem(response, 400, "invalid_parameter", "stauts")


def values_of(field: str, *values: Any) -> list[dict[str, Any]]:
    """Return a change of a field for each value; `...` removes the field."""
    return [{field: value} for value in values]


def bad_bodies(good: dict[str, Any], *changes: Any) -> list[tuple[Any, str]]:
    """Return a body for each change, with the pointer of its error (default: the last changed field)."""
    rows = [row if isinstance(row, tuple) else (row, f"/{[*row][-1]}") for row in changes]
    return [({name: value for name, value in (good | row).items() if value is not ...}, at) for row, at in rows]


BAD_TYPE_FIELDS = (
    *({"schema": {}}, {"id": "x"}, {"createdAt": "x"}),
    *values_of("name", "", "x" * 101, ".web", "a/b", "web\n", "a٣", 1),
    *values_of("label", "x" * 201, 1, "\0"),
    *values_of("description", "x" * 10_001, [], "\0"),
)
LINK = {"rel": "pull_request", "url": "https://code.example/1"}
BAD_LINKS = values_of("rel", "", "x" * 33, "a b", 1, None) + values_of(
    "url", "x", "javascript:x", f"https://{'x' * 2041}"
)
BAD_BODIES = {
    "POST project-types": bad_bodies({"name": "new"}, *BAD_TYPE_FIELDS, *values_of("name", ..., None)),
    "PUT project-types/web": bad_bodies({}, *BAD_TYPE_FIELDS),
    "POST runs": bad_bodies(
        {"projectType": "web"},
        *({"sevrity": 1}, {"createdAt": "x"}, {"status": "running"}),
        *values_of("projectType", ..., None, 1, "w\0"),
        *values_of("targetUrl", 1, "", "/shop", "https:///shop", "https:/a.example", "ftp://a.example/"),
        *values_of("targetUrl", f"https://a/{'x' * 2039}"),
        *values_of("metadata", [], "x", 1, {"a": "x" * (64 * KIB - 7)}, {"a": "é" * (32 * KIB)}),
        ({"metadata": {"a": ["\0"]}}, "/metadata/a/0"),
        *values_of("branch", "", "x" * 256, 1, "a\tb", "main\n", "\x7f", "a\x85"),
    ),
    "PATCH runs/RUN": bad_bodies(
        {"status": "completed"},
        *(({"status": ...}, ""), ({"status": None, "metadata": None}, ""), *values_of("status", "running", "done", 1)),
        *values_of("statusReason", "x" * 1001, 1, "a\0b"),
        *values_of("resolveMissing", "yes", 1),
        *values_of("gate", [], 1),
        *(({"gate": {"failOn": "hgh"}}, "/gate/failOn"), ({"gate": {"x": 1}}, "/gate/x")),
        *({"status": "failed", "resolveMissing": True}, {"status": "failed", "gate": {}}),
        *({"status": ..., "metadata": {}, each: value} for each, value in (("statusReason", "x"), ("gate", {}))),
        *values_of("metadata", [], "x", {"a": "x" * (64 * KIB - 7)}),
    ),
    "PATCH tasks/TASK": bad_bodies(
        {},
        *(({}, ""), (dict.fromkeys(("status", "comment", "reason", "assignee")), ""), ({"assigne": "Ada"}, "")),
        *({"title": "x"}, {"status": "open", "severity": "worst"}, {"status": "open", "extensions": {}}),
        *values_of("status", "closed", 1),
        *values_of("comment", "x" * 4001, 1, "\0"),
        *({"reason": "fixed"}, {"status": "open", "reason": "fixed"}, {"status": "resolved", "reason": "bored"}),
        {"status": "in_progress", "comment": "x", "reason": "fixed"},
        {"status": "open", "comment": "x" * 4001, "reason": "fixed"},
        *values_of("assignee", "x" * 201, " \t", 1, "a\0b"),
        *values_of("until", "2020-01-01", "2120-01-01", "tomorrow", "2120-01-01T10.5", 1, "2" * 65),
        *({"status": "resolved", "until": "2120-01-01"}, {"duplicateOf": UNKNOWN_ID}, {"duplicateOf": ""}),
        {"status": "dismissed", "reason": "wont_fix", "duplicateOf": UNKNOWN_ID},
        {"status": "dismissed", "reason": "duplicate", "duplicateOf": UNKNOWN_ID},
        *values_of("links", {}, "x", [LINK] * 21),
        *(({"links": [LINK | bad]}, f"/links/0/{next(iter(bad))}") for bad in BAD_LINKS),
    ),
    "POST runs/RUN/tasks": bad_bodies(
        {},
        *({"tasks": [task()], "dryRun": True}, ({}, "/title")),
        *values_of("tasks", [{"title": "x", "severity": "low"}] * 1001, {}, "x"),
        *(({"tasks": [None]}, "/tasks/0"), ({"tasks": ["x"]}, "/tasks/0")),
    ),
}


@pytest.mark.parametrize("operation", BAD_BODIES)
def test_invalid_body_is_rejected_with_a_pointer_and_changes_nothing(client: Client, run: str, operation: str) -> None:
    task_id = client.add(run)
    method, path = operation.replace("RUN", run).replace("TASK", task_id).split()
    paths = (f"tasks/{task_id}", f"runs/{run}", "project-types/web")
    before = [count_all(client), *map(client.read, paths)]
    for body, pointer in BAD_BODIES[operation]:
        response = client.send(method, f"{API}/{path}", json.dumps(body, ensure_ascii=False).encode())
        assert_problem(response, 422, "validation_failed", pointer)
    assert [count_all(client), *map(client.read, paths)] == before


BAD_TASK_FIELDS = [
    *({"sevrity": "high"}, {"it's 'title'": 2}, {"id": "x"}, {"runId": "x"}),
    *values_of("title", ..., None, "", " \t\n\u2003", "x" * 501, "a\0b"),
    *values_of("severity", ..., "hgh", "High"),
    *values_of("status", "closed", ""),
    *values_of("externalId", "", "x" * 257, 7, "\0"),
    *values_of("description", "x" * (64 * KIB + 1), "é" * (32 * KIB) + "x", "\0"),
    *values_of("evidence", {"label": "x"}, [{"label": "x"}] * 101),
    *values_of("remediation", [{"instruction": "x"}] * 101),
    *values_of("successCriteria", [{"description": "x"}] * 101),
    *values_of("rule", " \u3000", "", "x" * 257, "S101\t", "\0"),
    *values_of("location", "x" * 1025, "a\x85b"),
    *values_of("tags", "a", [f"t{n}" for n in range(21)]),
    *values_of("extensions", [], {"a": "x" * (256 * KIB - 7)}, {"a": "é" * (128 * KIB)}),
]
BAD_URLS = (
    *("/a.png", "//a/a.png", "", "https:", f"https://a/{'x' * 2039}", IMAGE.ljust(256 * KIB + 1, "A")),
    *("javascript:alert(1)", "JavaScript:alert(1)", " javascript:alert(1)", "\x01javascript:alert(1)"),
    *("java\tscript:alert(1)", "javascript\n:alert(1)", "VBScript:x"),
    *("data:text/html,<b>", "data:,x", "DATA:text/html,<b>"),
)
BAD_ELEMENTS = [
    *(("/evidence/0", each) for each in ("x", None, {"type": "code"}, {"label": None, "url": None, "content": None})),
    ("/evidence/0/lable", {"label": "x", "lable": "y"}),
    *(("/evidence/0/type", {"label": "x", "type": each}) for each in ("x" * 65, "\0")),
    *(("/evidence/0/label", {"label": each}) for each in ("x" * 501, "\0")),
    *(("/evidence/0/content", {"content": each}) for each in ("x" * (256 * KIB + 1), "é" * (128 * KIB) + "x", "\0")),
    *(("/evidence/0/url", {"url": url}) for url in BAD_URLS),
    *(("/remediation/0/instruction", each) for each in ({"step": 1}, {"instruction": "\0"})),
    ("/remediation/0/n", {"instruction": "x", "n": 1}),
    *(("/remediation/0/step", {"instruction": "x", "step": each}) for each in (0, -1, 10_001, 1.5, "1", True, 10**400)),
    *(("/successCriteria/0/description", each) for each in ({"automatable": True}, {"description": "\0"})),
    ("/successCriteria/0/a~1b~0", {"description": "x", "a/b~": 1}),
    *(("/successCriteria/0/automatable", {"description": "x", "automatable": each}) for each in ("yes", 1)),
    *(("/tags/0", each) for each in ("x" * 65, None, "\n", "a\0")),
]
BAD_TASKS = [
    *((change, f"/{name}") for change in BAD_TASK_FIELDS for name in change),
    *(({pointer.split("/")[1]: [element]}, pointer) for pointer, element in BAD_ELEMENTS),
    ({"evidence": [{"label": "x"}, {}]}, "/evidence/1"),
    ({"remediation": [{"step": 3, "instruction": "x"}] * 2}, "/remediation/1/step"),
    ({"remediation": [{"step": 2, "instruction": "x"}, {"instruction": "y"}]}, "/remediation/1/step"),
    ({"tags": ["a", "b", "a"]}, "/tags/2"),
    ({"extensions": {"a": {"b": "\0"}}}, "/extensions/a/b"),
    ({"extensions": {"a\0b": 1}}, "/extensions/a\0b"),
]


@pytest.mark.parametrize("field", dict.fromkeys(pointer.split("/")[1] for _, pointer in BAD_TASKS))
def test_invalid_task_is_rejected_with_a_pointer(client: Client, run: str, field: str) -> None:
    for change, pointer in (row for row in BAD_TASKS if row[1].split("/")[1] == field):
        bad = task(**change)
        for body, prefix in ((bad, ""), ({"tasks": [task(), bad]}, "/tasks/1")):
            response = client.send("POST", f"{API}/runs/{run}/tasks", json.dumps(body, ensure_ascii=False).encode())
            assert_problem(response, 422, "validation_failed", prefix + pointer)
    assert client.read("tasks")["total"] == 0


def test_null_equals_a_missing_field_in_tasks(client: Client, run: str) -> None:
    names = ("status", "externalId", "description", "evidence", "remediation", "successCriteria", "extensions")
    for left_out in ({}, dict.fromkeys(names)):
        stored = client.read(f"tasks/{client.add(run, **left_out)}")
        assert [stored[name] for name in names] == ["open", None, None, [], [], [], {}]
    evidence = [{"type": None, "label": "x", "url": None, "content": None}]
    steps, criteria = [{"step": None, "instruction": "x"}], [{"description": "x", "automatable": None}]
    task_id = client.add(run, evidence=evidence, remediation=steps, successCriteria=criteria)
    stored = client.read(f"tasks/{task_id}")
    assert stored["evidence"][0]["label"] == "x"
    assert stored["remediation"] == [{"step": 1, "instruction": "x"}]
    assert stored["successCriteria"] == [{"description": "x", "automatable": False}]


def test_null_equals_a_missing_field_in_runs_types_and_updates(client: Client, run: str) -> None:
    for nulls in ({}, {"targetUrl": None, "metadata": None}):
        started = client.post(f"{API}/runs", json={"projectType": "web", **nulls}).json
        assert (started["targetUrl"], started["metadata"]) == (None, {})
    assert client.finish(run, statusReason=None, resolveMissing=None)["statusReason"] is None
    body = {"name": "nulls", "label": None, "description": None, "extensionSchema": None}
    for each in ({"name": "nulls"}, body):
        made = client.post(f"{API}/project-types", json=each).json
        assert (made["label"], made["description"], made["extensionSchema"]) == ("nulls", "", None)
    assert client.put(f"{API}/project-types/nulls", json=body | {"name": None}).status_code == 200
    assert client.triage(client.add(started["id"]), "open", comment=None)["status"] == "open"


def test_last_of_duplicate_json_keys_wins(client: Client) -> None:
    client.register("wcag", WCAG_SCHEMA)
    path = f"{API}/runs/{client.start('wcag')}/tasks"
    body = '{"title": "first", "severity": "low", "title": "last", "extensions": {"wcag": "%s", "wcag": "%s"}}'
    task_id = client.send("POST", path, body % ("bad", "1.1.1")).json["tasks"][0]["id"]
    stored = client.read(f"tasks/{task_id}")
    assert (stored["title"], stored["extensions"]) == ("last", {"wcag": "1.1.1"})
    assert_problem(client.send("POST", path, body % ("1.1.1", "bad")), 422, "validation_failed", "/extensions/wcag")


REQUESTS_BY_ID = cases(
    get_run=("GET", "runs/RUN", None),
    patch_run=("PATCH", "runs/RUN", {"status": "completed"}),
    post_tasks=("POST", "runs/RUN/tasks", task()),
    get_task=("GET", "tasks/TASK", None),
    patch_task=("PATCH", "tasks/TASK", {"status": "open"}),
    get_history=("GET", "tasks/TASK/history", None),
    get_project_type=("GET", "project-types/web", None),
    put_project_type=("PUT", "project-types/web", {}),
    missing_from=("GET", "tasks?missingFrom=RUN", None),
)
REQUESTS_BY_ID.append(pytest.param("GET", "tasks?newIn=RUN", None, id="new_in", marks=pytest.mark.modules))


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS_BY_ID)
def test_id_of_another_client_gets_the_same_404_as_an_unknown_id(
    app: flask.Flask, client: Client, run: str, method: str, path: str, body: Any
) -> None:
    ids = {"RUN": run, "TASK": client.add(run), "web": "web"}
    name = next(name for name in ids if name in path)
    stranger = client_of(app, client="other")
    foreign, unknown = (
        stranger.open(f"{API}/{path.replace(name, value)}", method=method, json=body)
        for value in (ids[name], "no-such-thing")
    )
    assert_problem(foreign, 404, "not_found")
    assert foreign.text.replace(ids[name], "no-such-thing") == unknown.text
    assert list(foreign.headers.keys()) == list(unknown.headers.keys())


def test_lists_exclude_data_of_other_clients(app: flask.Flask, client: Client, run: str) -> None:
    client.add(run, externalId="x")
    stranger = client_of(app, client="other")
    assert stranger.read("project-types") == {"projectTypes": []}
    for path, query in [("runs", {}), ("tasks", {}), ("tasks", {"runId": run}), ("tasks", {"externalId": "x"})]:
        assert stranger.read(path, **query)["total"] == 0


def test_order_of_checks_for_a_submission(make_app: Callable[..., flask.Flask]) -> None:
    app = make_app(max_body="1000")
    agent, reader = client_of(app, "agent"), client_of(app, "read")
    agent.register("web")
    run = agent.start()
    agent.finish(run)
    unknown_run, finished_run = f"{API}/runs/{UNKNOWN_ID}/tasks", f"{API}/runs/{run}/tasks"
    json_type, bad = "application/json", '{"sevrity": 1}'
    anon = app.test_client()
    steps = [
        (anon.post(f"{API}/rums?x=1", data="x" * 2000), 404, "not_found"),
        (anon.delete(f"{unknown_run}?x=1", data="x" * 2000), 405, "method_not_allowed"),
        (anon.post(f"{unknown_run}?x=1", data="x" * 2000, headers={"Authorization": "Bearer no"}), 401, "unauthorized"),
        (reader.post(f"{unknown_run}?x=1", data="x" * 2000), 403, "forbidden"),
        (agent.post(f"{unknown_run}?x=1", data="x" * 2000), 413, "body_too_large"),
        (agent.post(f"{unknown_run}?x=1", data="x"), 415, "unsupported_media_type"),
        (agent.post(f"{unknown_run}?x=1", data="x", content_type=json_type), 400, "malformed_json"),
        (agent.post(f"{unknown_run}?x=1", data=bad, content_type=json_type), 400, "invalid_parameter"),
        (agent.post(unknown_run, data=bad, content_type=json_type), 404, "not_found"),
        (agent.post(finished_run, data=bad, content_type=json_type), 422, "validation_failed"),
        (agent.post(finished_run, json=task()), 409, "run_finished"),
    ]
    for response, status, code in steps:
        assert_problem(response, status, code)


def test_order_of_checks_for_an_update(app: flask.Flask, client: Client, run: str) -> None:
    agent, reader = client_of(app, "agent"), client_of(app, "read")
    for method, path, lower_level in (
        ("PATCH", f"{API}/runs/{UNKNOWN_ID}", reader),
        ("PATCH", f"{API}/tasks/{UNKNOWN_ID}", agent),
        ("PUT", f"{API}/project-types/unknown", agent),
    ):
        bad = '{"comment": "\\u0000", "extensionSchema": {"type": "strnig"}}'
        assert_problem(lower_level.open(f"{path}?x=1", method=method, data="x"), 403, "forbidden")
        assert_problem(client.open(f"{path}?x=1", method=method, data="x"), 415, "unsupported_media_type")
        assert_problem(client.send(method, f"{path}?x=1", "x"), 400, "malformed_json")
        assert_problem(client.send(method, f"{path}?x=1", '{"sevrity": 1}'), 400, "invalid_parameter")
        for body in ('{"sevrity": 1}', bad):
            assert_problem(client.send(method, path, body), 404, "not_found")
    for task_id, decision, status, code in (
        (UNKNOWN_ID, {"status": "open"}, 404, "not_found"),
        (client.add(run), {"status": "open", "reason": "fixed"}, 422, "validation_failed"),
        (client.add(run), {"status": "open"}, 412, "changed_meanwhile"),
    ):
        stale = client.patch(f"{API}/tasks/{task_id}", json=decision, headers={"If-Match": '"a"'})
        assert_problem(stale, status, code)


# --- Errors ----------------------------------------------------------------


NESTED_VALUES = cases(
    metadata=("runs", '{"projectType": "web", "metadata": %s}', 99, 201),
    extensions=("runs/RUN/tasks", '{"title": "x", "severity": "low", "extensions": %s}', 99, 201),
    batch=("runs/RUN/tasks", '{"tasks": [{"title": "x", "severity": "low", "extensions": %s}]}', 97, 201),
    bad_batch=("runs/RUN/tasks", '{"tasks": [{"severity": 1}, {"title": "x", "extensions": %s}]}', 97, 422),
    schema=("project-types", '{"name": "a", "extensionSchema": %s}', 99, 201),
    unknown_field=("runs", '{"projectType": "web", "unknown": %s}', 99, 422),
)
BROKEN_VALUES = (b"NaN", b"1e999", b'"\\ud83d"', b'"\xff"', b"-01", b'"\\x"')


@pytest.mark.parametrize(("path", "body", "levels", "status"), NESTED_VALUES)
def test_free_form_values_must_be_json_of_at_most_100_levels(
    client: Client, run: str, path: str, body: str, levels: int, status: int
) -> None:
    path, deepest, too_deep = (
        f"{API}/{path.replace('RUN', run)}",
        *(json.dumps(clients.nested(levels + more)) for more in (0, 1)),
    )
    assert client.send("POST", path, body % deepest).status_code == status
    for value in (too_deep.encode(), *(b'{"a": %s}' % broken for broken in BROKEN_VALUES)):
        assert_problem(client.send("POST", path, body.encode() % value), 400, "malformed_json")


def test_body_shorter_than_its_content_length_is_malformed(client: Client, run: str) -> None:
    body = json.dumps(task()).encode()
    longer = {"CONTENT_LENGTH": str(len(body) + 1), "CONTENT_TYPE": "application/json"}
    response = client.post(f"{API}/runs/{run}/tasks", data=body, environ_overrides=longer)
    assert_problem(response, 400, "malformed_json")


MEDIA = [
    *(({"Content-Type": kind}, 415) for kind in ("text/plain", "application/x-www-form-urlencoded")),
    *(({"Content-Type": "application/problem+json"}, 415), ({}, 415)),
    *(({"Content-Type": "application/json", "Content-Encoding": coding}, 415) for coding in ("gzip", "aws-chunked")),
    *(({"Content-Type": kind}, 201) for kind in ("application/json; charset=utf-8", "Application/JSON")),
]


@pytest.mark.parametrize(("headers", "status"), MEDIA, ids=str)
def test_body_must_be_unencoded_json(client: Client, run: str, headers: dict[str, str], status: int) -> None:
    response = client.post(f"{API}/runs/{run}/tasks", data=json.dumps(task()), headers=headers)
    assert response.status_code == status
    if status == 415:
        assert_problem(response, 415, "unsupported_media_type")


@pytest.mark.parametrize("path", ["/api", API, f"{API}/", f"{API}/task", f"{API}/tasks/", "/api/v2/tasks", "/é"])
def test_unknown_path_returns_a_404_problem(app: flask.Flask, client: Client, path: str) -> None:
    for method in ("GET", "POST", "DELETE", "OPTIONS"):
        assert_problem(client.open(path, method=method), 404, "not_found")
        assert_problem(app.test_client().open(path, method=method), 404, "not_found")


def test_unknown_id_returns_404(client: Client, run: str) -> None:
    client.add(run)
    for kind, unknown in itertools.product(("tasks", "runs", "project-types"), ("x", "%00", "%FF", "é", "a" * 5000)):
        assert_problem(client.get(f"{API}/{kind}/{unknown}"), 404, "not_found")
        if kind == "tasks":
            assert_problem(client.patch(f"{API}/{kind}/{unknown}", json={"comment": "so"}), 404, "not_found")


@pytest.mark.parametrize("path", sorted({each.path for each in clients.OPERATIONS}))
def test_unsupported_method_returns_405_with_an_allow_header(client: Client, path: str) -> None:
    known = {each.method for each in clients.OPERATIONS if each.path == path}
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"} - known:
        response = client.open(path, method=method)
        assert_problem(response, 405, "method_not_allowed")
        allowed = {name.strip() for name in response.headers["Allow"].split(",")}
        assert allowed - {"HEAD"} == known
        assert ("HEAD" in allowed) == ("GET" in known)


ALLOWED = [("read", ("", "")), ("agent", ("", ", POST"))]
ALLOWED += [pytest.param(level, (", PATCH", ", POST"), marks=pytest.mark.modules) for level in ("triage", "full")]


@pytest.mark.parametrize(("level", "methods"), ALLOWED)
def test_allow_header_of_lists_depends_on_the_key_level(app: flask.Flask, level: str, methods: tuple[str, str]) -> None:
    client = client_of(app, level=level)
    allowed = [client.get(f"{API}/{path}").headers["Allow"] for path in ("tasks", "runs")]
    assert allowed == [f"GET, HEAD{each}" for each in methods]


def test_response_lists_100_errors_with_at_least_one_per_invalid_task(client: Client) -> None:
    client.register("strict", {"properties": {f"p{n}": {"type": "integer"} for n in range(10)}})
    invalid = task(severity="hgh", extensions={f"p{n}": "text" for n in range(10)})
    response = client.post(f"{API}/runs/{client.start('strict')}/tasks", json={"tasks": [task(), *[invalid] * 40]})
    problem = assert_problem(response, 422, "validation_failed", "/tasks/1/severity")
    assert (len(problem["errors"]), problem["errors"][0]["value"]) == (100, "hgh")
    assert {int(error["pointer"].split("/")[2]) for error in problem["errors"]} == {*range(1, 41)}
    assert re.search(r"\b440 problems\b", problem["detail"])


def problems_of(response: Any) -> dict[str, str]:
    """Return the details of a 422 response by pointer, and check that none occurs twice."""
    errors = assert_problem(response, 422, "validation_failed")["errors"]
    assert max(Counter((error["pointer"], error["detail"]) for error in errors).values()) == 1, errors
    return {error["pointer"]: error["detail"] for error in errors}


FAULTY_TASK = {
    "title": "x" * 501,
    "severity": "hgh",
    "sevrity": "high",
    "description": "é" * 40_000,
    "externalId": 7,
    "evidence": [{"label": "x", "url": "javascript:alert(1)"}, {"labl": "x"}, {}, "x"],
    "remediation": [{"instruction": "a", "step": 2}, {"step": 1.5}, {"instruction": "b", "step": 2}],
    "successCriteria": [{"automatable": "yes"}],
    "extensions": {"wcag": "1.1", "pages": ["one"]},
    "rule": "\x7f",
    "location": ["src"],
    "tags": ["a", " ", 1, "a"],
}
FAULTS = {
    "/title": "'xxx",
    "/severity": "must be one of: critical, high, medium, low, info",
    "/sevrity": "Additional properties are not allowed ('sevrity' was unexpected); known: title, severity,",
    "/description": "must be at most 64 KiB of UTF-8",
    "/externalId": "7 is not of type 'string'",
    "/evidence/0/url": "must not be a javascript: URL",
    "/evidence/1": "must have at least one of: label, url, content",
    "/evidence/1/labl": "Additional properties are not allowed ('labl' was unexpected)",
    "/evidence/2": "must have at least one of: label, url, content",
    "/evidence/3": "'x' is not of type 'object'",
    "/remediation/1/instruction": "'instruction' is a required property",
    "/remediation/1/step": "1.5 is not a multiple of 1",
    "/remediation/2/step": "step 2 is used already; steps must differ",
    "/successCriteria/0/description": "'description' is a required property",
    "/successCriteria/0/automatable": "'yes' is not of type 'boolean'",
    "/extensions/wcag": "'1.1' does not match",
    "/extensions/pages/0": "'one' is not of type 'integer'",
    "/rule": "must not be blank or contain control characters",
    "/location": "['src'] is not of type 'string'",
    "/tags/1": "must not be blank or contain control characters",
    "/tags/2": "1 is not of type 'string'",
    "/tags/3": "is a duplicate; tags must differ",
}


@pytest.mark.parametrize("form", ["single", "batch"])
def test_all_errors_of_all_tasks_are_reported(client: Client, form: str) -> None:
    client.register("wcag", WCAG_SCHEMA)
    path, prefix = f"{API}/runs/{client.start('wcag')}/tasks", "/tasks/1" if form == "batch" else ""
    good = task(extensions={"wcag": "1.1.1"})
    body = {"tasks": [good, FAULTY_TASK, good, task()]} if form == "batch" else FAULTY_TASK
    details = problems_of(client.post(path, json=body))
    assert details.pop("/tasks/3/extensions/wcag", None) == (
        "'wcag' is a required property" if form == "batch" else None
    )
    assert set(details) == {prefix + pointer for pointer in FAULTS}
    assert all(details[prefix + pointer].startswith(detail) for pointer, detail in FAULTS.items()), details
    assert client.read("tasks")["total"] == 0


def test_messages_name_the_limit_even_for_long_values(client: Client, run: str) -> None:
    fields = {"title": "y" * 501, "externalId": "z" * 5000, "remediation": [{"instruction": "x"}] * 101}
    details = problems_of(client.post(f"{API}/runs/{run}/tasks", json=task(**fields)))
    assert details["/title"].endswith("y… is too long (maxLength is 500)")
    assert details["/externalId"].endswith("is too long (maxLength is 256)")
    assert details["/remediation"].endswith("is too long (maxItems is 100)")
    assert all(len(detail) <= 200 for detail in details.values())
    body = json.dumps(task(description="x" * 70_000, remediation=[{"instruction": "x", "step": 1}, {"instruction": 1}]))
    details = problems_of(
        client.send("POST", f"{API}/runs/{run}/tasks", body.replace('step": 1', 'step": ' + "9" * 4301))
    )
    assert (len(details), details["/remediation/0/step"]) == (3, "has a number with too many digits")


FAULTY_RULES = {"a": {"pattern": "("}, "b": {"type": "no"}, "c": {"$ref": "#/no"}, "d": {"maxLength": -1}}
POINTERS = " ".join(f"/extensionSchema/properties/{name}/{rule}" for name, [rule] in FAULTY_RULES.items())
FAULTY_BODIES = cases(
    run=("runs", {"targetUrl": "a.example\0", "metadata": [], "x": "\0"}, "/projectType /targetUrl /metadata /x"),
    large_metadata=("runs", {"metadata": {"a": "x" * 64 * KIB}}, "/projectType /metadata"),
    nul_alone=("runs", {"projectType": "web", "targetUrl": "http://a\0b"}, "/targetUrl"),
    project_type=("project-types", {"name": "-", "label": 1, "description": "x" * 10_001}, "/name /label /description"),
    schema=("project-types", {"name": "-", "extensionSchema": {"properties": FAULTY_RULES}}, f"/name {POINTERS}"),
    around_tasks=("runs/RUN/tasks", {"tasks": [task(), {}], "task": 1}, "/task /tasks/1/title /tasks/1/severity"),
    no_tasks=("runs/RUN/tasks", {"tasks": {"a": 1}, "run": 1}, "/tasks /run"),
    end=("runs/RUN", {"status": "failed", "resolveMissing": True, "x": 1}, "/resolveMissing /x"),
)


@pytest.mark.parametrize(("path", "body", "pointers"), FAULTY_BODIES)
def test_all_errors_of_a_body_are_reported(client: Client, run: str, path: str, body: Any, pointers: str) -> None:
    send = client.patch if path == "runs/RUN" else client.post
    details = problems_of(send(f"{API}/{path.replace('RUN', run)}", json=body))
    assert set(details) == set(pointers.split())
    assert details.get("/resolveMissing") in (None, "requires status 'completed'")


GOOD, BAD = task(), task(evidence=[{"label": 1, "url": "x"}])


@pytest.mark.parametrize("ticks", [0, 1, 2, 3, 10, 30])
@pytest.mark.parametrize("body", cases(single=BAD, last={"tasks": [GOOD] * 3 + [BAD]}, first={"tasks": [BAD, GOOD]}))
def test_invalid_body_is_rejected_even_if_its_checks_run_out_of_time(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch, body: Any, ticks: int
) -> None:
    left = itertools.count(ticks, -1)

    def tick() -> None:
        if next(left) <= 0:
            raise findings_service.OutOfTime

    monkeypatch.setattr(findings_service, "tick", tick)
    response = client.post(f"{API}/runs/{run}/tasks", json=body)
    monkeypatch.undo()
    problem = assert_problem(response, 422, "validation_failed")
    assert problem["detail"].startswith("At least ") == any(not error["pointer"] for error in problem["errors"])
    assert client.read("tasks")["total"] == 0


MANY_ERRORS = cases(
    evidence=("runs/RUN/tasks", task(evidence=[{"url": "j"}] * 70_000)),
    urls=("runs/RUN/tasks", task(evidence=[{"url": "javascript:"}] * 70_000)),
    steps=("runs/RUN/tasks", task(remediation=[{"step": 1}] * 70_000)),
    members=("runs/RUN/tasks", task(**{f"m{n}": 1 for n in range(200_000)})),
    around=("runs/RUN/tasks", {"tasks": [task()], **{f"m{n}": 1 for n in range(200_000)}}),
    run=("runs", {f"m{n}": 1 for n in range(200_000)}),
    nul=("runs/RUN/tasks", task(extensions={f"\0{n}": 1 for n in range(10_000)})),
    nul_strings=("runs/RUN/tasks", task(extensions={"a": ["\0"] * 20_000})),
    unwanted=("runs/STRICT/tasks", {"tasks": [task(extensions={f"n{n}": 1 for n in range(22_000)})] * 6}),
)


@pytest.mark.parametrize(("path", "body"), MANY_ERRORS)
def test_first_100_of_many_errors_are_returned_fast(client: Client, run: str, path: str, body: Any) -> None:
    client.register("strict", {"additionalProperties": False})
    path = path.replace("RUN", run).replace("STRICT", client.start("strict"))
    with servers.at_most(1.5, time.thread_time):
        problem = assert_problem(client.post(f"{API}/{path}", json=body), 422, "validation_failed")
    assert len(problem["errors"]) == 100
    assert re.match("[16]00 problems in", problem["detail"])  # the check of each task stops after 100


@pytest.mark.parametrize("number", ["1e308", "1e-308", "1E+0000001", "1" * 41, "1." + "0" * 40])
def test_over_1000_long_numbers_in_a_body_are_rejected(client: Client, run: str, number: str) -> None:
    def send_numbers(path: str, body: str, count: int) -> Any:
        numbers = ",".join([number.replace("e308", "e108")] * count)
        return client.send("POST", f"{API}/{path}", body.replace("X", numbers))

    bodies = {
        "runs": '{"projectType": "web", "metadata": {"a": [X]}}',
        f"runs/{run}/tasks": '{"tasks": [{"title": "t", "severity": "low", "extensions": {"a": [X]}}]}',
        "project-types": '{"name": "web", "extensionSchema": {"enum": [X]}, "label": [X]}',
    }
    for path, body in bodies.items():
        response = send_numbers(path, body, 1001)
        assert "1,000 numbers" in assert_problem(response, 422, "validation_failed")["errors"][0]["detail"]
        assert "1,000 numbers" not in send_numbers(path, body, 500).text
    text = f'{{"projectType": "web", "metadata": {{"a": ["{number}, " , "{"X" * 1}"]}}}}'
    assert client.send("POST", f"{API}/runs", text.replace("X", number * 1500)).status_code == 201


def test_invalid_body_is_checked_in_a_thread(app: flask.Flask, client: Client, run: str) -> None:
    environ = {
        "REQUEST_METHOD": "POST",
        "CONTENT_TYPE": "application/json",
        "HTTP_AUTHORIZATION": f"Bearer {client.key}",
    }
    for path, good, bad in (
        (f"{API}/runs", {"projectType": "web"}, {"projectType": 1}),
        (f"{API}/runs/{run}/tasks", task(), task(severity="x")),
        (f"{API}/runs/{run}/tasks", {"tasks": [task()]}, {"tasks": [task(severity="x")]}),
    ):
        results = []
        for body in (good, bad):
            request = findings_service.ApiRequest(app.extensions["findings"], {**environ, "PATH_INFO": path}, path)
            results.append(request.begin(findings_service.Body(json.dumps(body).encode())))
        assert isinstance(results[0], findings_service.PendingWrite)
        assert isinstance(results[1], findings_service.BodyCheck)
        assert request.finish(results[1]).status == 422


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("path", "query", "slow"),
    cases(
        plain=("tasks", "status=open&projectType=web,shop", False),
        types=("tasks", f"projectType={','.join(f't{number}' for number in range(20))}", True),
        runs=("runs", "status=running&branch=a&branch=b", False),
        runs_of_types=("runs", f"projectType={','.join(f't{number}' for number in range(20))}", True),
        runs_of_branches=("runs", "&".join(f"branch=b{number}" for number in range(20)), True),
        runs_far_down=("runs", "page=1000", True),
    ),
)
def test_list_of_many_index_ranges_is_read_outside_the_event_loop(
    client: Client, monkeypatch: pytest.MonkeyPatch, path: str, query: str, slow: bool
) -> None:
    client.register("web")
    assert isinstance(
        begin_get(client, path, query)[1], findings_service.ThreadJob if slow else findings_service.Response
    )
    monkeypatch.setattr("findings_service.LIST_TIME", -1)
    monkeypatch.setattr("findings_service.CLOCK_STEPS", 1)
    assert isinstance(begin_get(client, path, f"{query}&limit=7")[1], findings_service.ThreadJob)  # it is not cached


def begin_get(client: Client, path: str, query: str = "") -> tuple[findings_service.ApiRequest, Any]:
    """Return a GET request and the result of its steps on the event loop."""
    environ = {"REQUEST_METHOD": "GET", "QUERY_STRING": query, "HTTP_AUTHORIZATION": f"Bearer {client.key}"}
    request = findings_service.ApiRequest(client.application.extensions["findings"], environ, f"{API}/{path}")
    return request, request.begin(findings_service.Body())


@pytest.mark.sqlite
@pytest.mark.modules
def test_cached_page_is_sent_without_a_thread_until_data_changes(client: Client, run: str) -> None:
    twenty = f"projectType={','.join(f't{number}' for number in range(20))}"
    for path, query in (("tasks", twenty), ("runs", twenty), ("overview", "")):
        client.add(run)
        request, job = begin_get(client, path, query)
        assert isinstance(job, findings_service.ThreadJob)
        whole = request.finish(job)
        cached = begin_get(client, path, query)[1]
        assert (cached.status, cached.headers, cached.body) == (200, whole.headers, whole.body)
        client.add(run)
        assert isinstance(begin_get(client, path, query)[1], findings_service.ThreadJob)


MILLIONS = b"[" + b"[]," * 2_000_000 + b"[]]"
MANY_VALUES = cases(
    metadata=("runs", b'{"projectType":"web","metadata":{"a":%s}}', 422),
    strings=("runs", b'{"x":[' + b'"",' * 3_000_000 + b'""]}', 422),
    escaped_strings=("runs", b'{"x":[' + rb'"\\",' * 3_000_000 + b'""]}', 422),
    evidence=("runs/RUN/tasks", b'{"title":"x","severity":"low","evidence":[' + b"{}," * 3_000_000 + b"{}]}", 422),
    nuls=("runs", b'{"projectType": "web", "metadata": {"a": [' + b'"\\u0000",' * 400_000 + b'""]}}', 422),
    labels=("runs/RUN/tasks", b'{"evidence": [' + b'{"label": ""},' * 160_000 + b"{}]}", 422),
    endless_string=("runs", b"[" * 101 + b'"' + b'\\"' * 100_000, 400),
    unclosed=("runs", b'{"projectType":"web","metadata":{"a":[' + b"0," * 400_000, 400),
    deep=("runs", b'{"projectType":"web","metadata":{"a":' + b"[" * 400_000, 400),
)


@pytest.mark.parametrize(("path", "body", "status"), MANY_VALUES)
def test_millions_of_values_are_rejected_fast_in_little_memory(
    make_app: Callable[..., flask.Flask], path: str, body: bytes, status: int
) -> None:
    client, run = with_a_run(make_app(schema_timeout="2s"))
    path, body = f"{API}/{path.replace('RUN', run)}", body.replace(b"%s", MILLIONS)
    response, peak = peak_of(lambda: client.send("POST", path, body))
    assert_problem(response, status, "validation_failed" if status == 422 else "malformed_json")
    assert peak < 60 * KIB * KIB


def peak_of(action: Callable[[], Any]) -> tuple[Any, int]:
    """Return the result of an action, and the peak of allocated bytes."""
    tracemalloc.start()
    try:
        return action(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


LONG = "y" * 5000
LONG_TEXTS = cases(
    value=("POST", "runs/RUN/tasks", task(severity=LONG), 422),
    field_name=("POST", "runs/RUN/tasks", task(**{LONG: 1}), 422),
    url=("POST", "runs/RUN/tasks", task(evidence=[{"url": LONG}]), 422),
    project_type=("POST", "runs", {"projectType": LONG[:100]}, 422),
    target_url=("POST", "runs", {"projectType": "web", "targetUrl": LONG}, 422),
    run_id=("GET", f"runs/{LONG}", None, 404),
    parameter=("GET", f"tasks?{LONG}=1", None, 400),
    parameter_value=("GET", f"tasks?status={LONG}", None, 400),
    schema_type=("POST", "project-types", {"name": "a", "extensionSchema": {"type": LONG}}, 422),
    schema_ref=("POST", "project-types", {"name": "a", "extensionSchema": {"$ref": f"#/{LONG}"}}, 422),
    schema_draft=("POST", "project-types", {"name": "a", "extensionSchema": {"$schema": LONG}}, 422),
    schema_pattern=("POST", "project-types", {"name": "a", "extensionSchema": {"pattern": f"({LONG[:1000]}"}}, 422),
    extension_name=("POST", "runs/STRICT/tasks", task(extensions={"wcag": "1.1.1", LONG: 1}), 422),
    nul_name=("POST", "runs/RUN/tasks", task(extensions={LONG + "\0": 1}), 422),
)


@pytest.mark.parametrize(("method", "path", "body", "status"), LONG_TEXTS)
def test_quoted_input_is_cut_at_200_characters(
    client: Client, run: str, method: str, path: str, body: Any, status: int
) -> None:
    client.register("wcag", WCAG_SCHEMA)
    path = path.replace("RUN", run).replace("STRICT", client.start("wcag"))
    response = client.open(f"{API}/{path}", method=method, json=body)
    assert response.status_code == status
    assert "y" * 201 not in response.text


def test_bug_is_logged_on_one_line_and_not_shown_in_the_response(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(findings_service, "select_task", lambda *_: {}["secret detail"])
    response = client.get(f"{API}/tasks/x%0Aforged%0Dline")
    assert_problem(response, 500, "internal_error")
    assert "secret" not in response.text
    assert [record.getMessage() for record in caplog.records] == [rf"bug in 'GET' '{API}/tasks/x\nforged\rline'"]
    assert "Traceback" in caplog.text
    assert "secret detail" in caplog.text


def with_a_run(app: flask.Flask) -> tuple[Client, str]:
    """Return a client of an application, and the id of a running run."""
    client = client_of(app)
    client.register("web")
    return client, client.start()


# --- Lists -----------------------------------------------------------------


def random_queries(options: dict[str, list[Any]], seed: int, count: int) -> list[dict[str, Any]]:
    """Return random queries with up to five parameters each."""
    dice, maximum = random.Random(seed), min(5, len(options))
    samples = [dice.sample(sorted(options), dice.randint(0, maximum)) for _ in range(count)]
    return [{name: dice.choice(options[name]) for name in names} for names in samples]


def task_options(survey: Survey) -> dict[str, list[Any]]:
    """Return values for each parameter of the list of tasks."""
    first, second, third = (survey.runs[place]["id"] for place in (3, 4, 12))
    branch = next(run["id"] for run in reversed(survey.runs) if run["branch"] == "a")
    all_runs = ",".join(run["id"] for run in survey.runs)
    times = [survey.tasks[len(survey.tasks) * eighths // 8]["createdAt"] for eighths in (2, 5, 4, 7)]
    return {
        "status": ["open", "in_progress,open", "dismissed,resolved,dismissed"],
        "severity": ["high", "info,critical"],
        "runId": [first, UNKNOWN_ID, f"{UNKNOWN_ID},{third}", f"{first},{second}", all_runs],
        "projectType": ["web", "unknown", "cli,web"],
        "targetUrl": [TARGETS[1]],
        "externalId": ["f-3"],
        "missingFrom": [third, branch],
        "mainLine": ["true", "false"],
        "branch": [["a"], ["unknown"], ["b,c", "a"]],
        "assignee": ["Ada"],
        "assigned": ["true", "false"],
        "createdSince": times[:2],
        "createdBefore": times[2:],
        "rule": [RULES[0], ",".join(RULES[:2]), "a,b"],
        "location": ["src", "src/app.py:", "L" * 300],
        "tag": [TAGS[0], "a,b", f"{TAGS[2]},{TAGS[3]},{TAGS[0]}"],
        "without": ["rule", "tag", "location"],
        **({"newIn": [third, branch]} if findings_service.REGISTRY.baseline else {}),
        **({"q": ["FIND 3", "f-3", "src/app S101"]} if findings_service.REGISTRY.search else {}),
        "sort": ["createdAt", "severity"],
    }


RUN_OPTIONS: dict[str, list[Any]] = {
    "projectType": ["web", "cli,web", "unknown", "web,web"],
    "status": ["running", "completed,failed"],
    "targetUrl": [TARGETS[1], TARGETS[2], "https://example.com"],
    "mainLine": ["true", "false"],
    "branch": [["a"], ["b,c", "a"], ["unknown"], ["b"]],
}


@pytest.mark.parametrize("ranges", [2, findings_service.MAX_RANGES], ids=["several_statements", "one_statement"])
def test_combined_task_filters_return_and_count_the_matching_tasks(
    survey: Survey, monkeypatch: pytest.MonkeyPatch, ranges: int
) -> None:
    monkeypatch.setattr("findings_service.MAX_RANGES", ranges)
    nonempty = 0
    for number, query in enumerate(random_queries(task_options(survey), ranges, 400)):
        page = survey.client.read("tasks", limit=200, **query)
        expected = survey.expected_tasks(query)
        assert ([item["id"] for item in page["tasks"]], page["total"]) == (expected[:200], len(expected)), query
        nonempty += bool(expected)
        if number % 20 == 0:
            walked = [item["id"] for page in survey.client.walk("tasks", limit=20, **query) for item in page["tasks"]]
            assert walked == expected, query
            jumped = survey.client.read("tasks", limit=20, page=2, **query)
            assert [item["id"] for item in jumped["tasks"]] == expected[20:40], query
            assert bool(jumped["next"]) == (len(expected) > 40)
    assert nonempty > 100


def test_single_task_filters_return_and_count_the_matching_tasks(survey: Survey) -> None:
    times = (*(item["createdAt"] for item in survey.tasks[::20]), "2099-01-01")
    runs = [run["id"] for run in survey.runs]
    fields = ("status", "severity", "projectType", "targetUrl", "externalId", "assignee", "rule")
    values = {
        **{field: sorted({str(item[field]) for item in survey.tasks if item[field]}) for field in fields},
        **dict.fromkeys(("runId", "missingFrom"), runs),
        **dict.fromkeys(("mainLine", "assigned"), ("true", "false")),
        **dict.fromkeys(("createdSince", "createdBefore"), times),
        "location": [*PLACES, "src/", "src/app.py:", "https://h:80/", "SRC", "L" * 299, "L" * 301, f"{'L' * 300}:"],
        "tag": [*TAGS, ",".join(TAGS[::2]), "unknown"],
        "without": ["rule", "location", "tag"],
        "branch": [["a"], ["b,c"], ["a", "b,c"]],
    }
    if findings_service.REGISTRY.baseline:
        values["newIn"] = runs
    if findings_service.REGISTRY.search:
        values["q"] = ["finding 77", "1", "77", "F-1 f-11", "none", "0. finding 5"]
    queries = [{name: value} for name, some in values.items() for value in some]
    for query, sort in itertools.product(queries, ("-createdAt", "createdAt", "severity")):
        page = survey.client.read("tasks", limit=200, sort=sort, **query)
        expected = survey.expected_tasks(query | {"sort": sort})
        assert ([item["id"] for item in page["tasks"]], page["total"]) == (expected[:200], len(expected)), query


def test_combined_run_filters_return_and_count_the_matching_runs(survey: Survey) -> None:
    for query in random_queries(RUN_OPTIONS, 3, 300):
        page = survey.client.read("runs", limit=200, **query)
        expected = survey.expected_runs(query)
        assert ([item["id"] for item in page["runs"]], page["total"]) == (expected, len(expected)), query


def traced_selects(survey: Survey, path: str, queries: list[dict[str, Any]]) -> dict[str, str]:
    """Return the SELECT statements of some lists, by their text without values."""
    traced: list[str] = []
    connection = clients.reader_of(survey.app)
    connection.set_trace_callback(traced.append)
    try:
        for query in queries:
            page = survey.client.get(f"{API}/{path}", query_string={"limit": 1, **query}).json
            if page.get("next"):
                survey.client.get(page["next"])
    finally:
        connection.set_trace_callback(None)
    selects = [statement for statement in traced if statement.lstrip().startswith(("SELECT", "WITH"))]
    return {re.sub(r"'[^']*'|\b\d+\b", "?", statement): statement for statement in selects}


def scanned_tables(connection: sqlite3.Connection, statement: str) -> list[str]:
    """Return the steps of a query plan that scan a table, read all rows of a client despite a filter, or sort."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    named = re.findall(r"(?:FROM|JOIN)\s+(\w+)(?:\s+AS\s+(\w+))?", statement)
    searched = tables | {alias for table, alias in named if table in tables}
    steps = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
    found = [step for step in steps if step.startswith("SCAN") and step.split()[1] in searched]
    if re.search(r" AND (?!(\w+\.)?seq\b)", statement.replace(findings_service.HEAD_COLUMNS, "")):
        found += [step for step in steps if re.search(r"\(client_id=\?( AND (seq|rowid)[<>]\?)*\)$", step)]
    return found + [step for step in steps if "TEMP B-TREE" in step and "count(DISTINCT)" not in step]


@pytest.mark.modules
@pytest.mark.sqlite
def test_fast_list_queries_neither_scan_a_table_nor_sort(survey: Survey) -> None:
    options = task_options(survey)
    fields = ("status", "severity", "projectType", "targetUrl", "mainLine", "branch")
    plain = {name: options[name] for name in (*fields, "sort")}
    queries = random_queries(plain, 5, 300)
    counted = {name: options[name] for name in ("status", "severity", "mainLine", "sort")}
    for label in ({"rule": RULES[0]}, {"tag": TAGS[0]}):
        queries += [label | query for query in random_queries(counted, 5, 50)]
    queries.append({"runId": options["runId"][1]})
    runs = [each for each in random_queries(RUN_OPTIONS, 5, 200) if not {"projectType", "targetUrl"} <= each.keys()]
    connection = clients.reader_of(survey.app)
    # No index has the tasks of a branch by severity, or those of several project types at one target.
    plain_queries = [
        query
        for query in queries
        if len({"branch", "sort"} & query.keys()) < 2 and len({"branch", "projectType", "targetUrl"} & query.keys()) < 2
    ]
    for path, path_queries in (("tasks", plain_queries), ("runs", runs)):
        for statement in traced_selects(survey, path, path_queries).values():
            assert not scanned_tables(connection, statement), statement


def completed_run(connection: Any, project_type: str, target: str, *tasks: dict[str, Any]) -> Any:
    """Return the key of a new completed run that reported these tasks."""
    run = findings_service.insert_run(connection, clients.PRINCIPAL, project_type, target, "{}")
    reports = findings_service.parse_submission(json.dumps({"tasks": tasks}).encode(), Settings()).reports
    findings_service.submit_reports(connection, clients.PRINCIPAL, run.id, reports)
    findings_service.finish_run(connection, clients.PRINCIPAL, run, findings_service.RunUpdate(status="completed"))
    return findings_service.select_run_key(connection, "default", run.id)


def test_filters_accept_1000_runs_and_1000_project_types(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings_service, "LIST_TIME", 60)
    runs = [f"run-{number}" for number in range(300)]
    with database_of(client.application).transaction() as connection:
        findings_service.insert_client(connection, "default")
        for number in range(700):
            name, target = f"type-{number}", f"https://example.com/{number % 7}"
            findings_service.insert_project_type(connection, "default", name, name, "", None)
            runs.append(completed_run(connection, name, target, task(externalId="same"), task()).id)
    many_types = ",".join(f"type-{number}" for number in range(1000))
    for sort, target in itertools.product(("-createdAt", "severity"), (None, "https://example.com/1")):
        query = {"sort": sort, "limit": 200, "status": ",".join(STATUSES), "projectType": many_types}
        query |= {"targetUrl": target} if target else {}
        for more in ({}, {"runId": ",".join(runs)}):
            page = client.read("tasks", **query, **more)
            assert (page["total"], len(page["tasks"])) == (200 if target else 1400, 200)


SEEN_OFTEN = (task(externalId="seen", severity="low"), task(externalId="often", severity="low"))


def start_run(connection: Any) -> Any:
    return findings_service.insert_run(connection, clients.PRINCIPAL, "web", "", "{}")


@pytest.mark.sqlite
@pytest.mark.parametrize(
    "write",
    cases(
        another_severity=lambda connection: completed_run(connection, "web", "", *SEEN_OFTEN),
        resolve_missing=lambda connection: findings_service.finish_run(
            connection,
            clients.PRINCIPAL,
            start_run(connection),
            findings_service.RunUpdate(status="completed", resolve_missing=True),
        ),
        starting=start_run,
        failing_idle_runs=lambda connection: findings_service.fail_idle_runs(connection, "default", 60),
    ),
)
def test_cost_of_writes_does_not_grow_with_runs_and_project_types(
    make_app: Callable[..., flask.Flask], tmp_path: Path, write: Callable[..., object]
) -> None:
    steps = []
    for count in (5, 300):
        database = database_of(make_app(db=db_at(tmp_path / f"{count}.db")))
        with database.transaction() as connection:
            findings_service.insert_client(connection, "default")
            for name in ("web", *(f"{count}-{number}" for number in range(count))):
                findings_service.insert_project_type(connection, "default", name, "", "", None)
            tasks = (task(externalId="seen"), task(externalId="often"), task(externalId="low", severity="low"))
            for _ in range(count):
                completed_run(connection, "web", "", *tasks)
                start_run(connection)
        with database.transaction() as connection:
            steps.append(
                scenarios.sqlite_steps(
                    connection, lambda: [write(connection), connection.transaction.counters.write(connection)]
                )
            )
    assert steps[1] <= 1.05 * steps[0]


@pytest.mark.usefixtures("zero_list_time")
def test_list_over_its_time_limit_is_rejected_with_advice(client: Client, run: str) -> None:
    task_id = client.add(run, externalId="x")
    for path in ("tasks", "tasks?page=3", "tasks?externalId=x", "tasks?q=image", "runs", f"tasks/{task_id}/history"):
        problem = assert_problem(client.get(f"{API}/{path}"), 400, "invalid_parameter", "query string")
        assert "fewer values" in problem["detail"]
    client.finish(run)
    assert client.read(f"tasks/{task_id}")["status"] == "open"


def test_waiting_counts_a_tenth_towards_a_list_time_limit(app: flask.Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    connection, now = clients.reader_of(app), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with connection.limited(60):
        now += 590
        assert not connection.is_late()
        now += 20
        assert connection.is_late()
    assert not connection.is_late()


def test_list_and_its_total_come_from_one_snapshot(
    app: flask.Flask, client: Client, run: str, make_app: Callable[..., flask.Flask], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.add(run)
    other, plan_rows = client_of(make_app(), name="other"), findings_service.plan_rows

    def plan_during_a_write(*arguments: Any) -> Any:
        plan = plan_rows(*arguments)
        other.add(run)
        return plan

    monkeypatch.setattr("findings_service.plan_rows", plan_during_a_write)
    page = client.read("tasks")
    assert (page["total"], len(page["tasks"])) == (1, 1)
    monkeypatch.undo()
    assert client.read("tasks")["total"] == 2


@pytest.mark.parametrize("sort", ["-createdAt", "createdAt", "severity"])
@pytest.mark.parametrize("filters", [{}, {"status": "open,resolved"}], ids=["all", "merged"])
def test_page_ends_early_at_the_size_limit(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch, sort: str, filters: dict[str, str]
) -> None:
    sizes = (10, 3000, 10, 10, 9000, 10, 10, 2000, 2000, 10)
    tasks = [task(severity=clients.SEVERITIES[n % 3], description="x" * size) for n, size in enumerate(sizes)]
    client.submit(run, *tasks)
    whole = client.read("tasks", view="full", sort=sort, limit=200, **filters)["tasks"]
    monkeypatch.setattr("findings_service.PAGE_SIZE", 7500)
    pages = list(client.walk("tasks", view="full", sort=sort, **filters))
    assert [item for page in pages for item in page["tasks"]] == whole
    assert 3 < len(pages) < 9
    assert all(len(json.dumps(page["tasks"])) < 8100 or len(page["tasks"]) == 1 for page in pages)
    assert {page["total"] for page in pages} == {10}
    assert len(client.read("tasks", sort=sort)["tasks"]) == 10


WRITES = cases(
    submit=lambda client, run, _: client.submit(run, task()),
    triage=lambda client, _, task_id: client.triage(task_id, "dismissed"),
    delete_run=lambda client, run, _: client.remove(f"runs/{run}"),
    replace_type=lambda client, *_: client.put(f"{API}/project-types/web", json={"label": "new"}),
    prune=lambda client, *_: scenarios.prune(database_of(client.application).settings.db),
    idle=lambda client, *_: list(findings_service.due_slices(database_of(client.application), -1)),
)


@pytest.mark.modules
@pytest.mark.parametrize("write", WRITES)
def test_list_etag_stays_valid_until_the_client_writes(
    app: flask.Flask, client: Client, run: str, write: Callable[[Client, str, str], object]
) -> None:
    task_id, stranger, finished = client.add(run, externalId="x"), client_of(app, client="other"), client.start()
    client.finish(finished, status="failed")
    scenarios.finish_ago(app, 91, finished)
    paths = [f"{API}/{path}" for path in ("tasks", "tasks?view=full", "runs", "overview")]
    before = [client.get(path) for path in paths]
    conditions = [{"If-None-Match": response.headers["ETag"]} for response in before]
    stranger.register("web")
    assert client.post(f"{API}/runs", json={"projectType": "none"}).status_code == 422
    for path, condition, first in zip(paths, conditions, before, strict=True):
        again = client.get(path, headers=condition)
        assert (again.status_code, again.data, again.headers["ETag"]) == (304, b"", condition["If-None-Match"])
        assert client.get(path).data == first.data
    write(client, run, task_id)
    for path, condition in zip(paths, conditions, strict=True):
        again = client.get(path, headers=condition)
        assert again.status_code == 200
        assert again.headers["ETag"] != condition["If-None-Match"]


IF_NONE_MATCH = cases(
    none=('"x"', 200),
    weak=("W/{}", 304),
    strong=("{}", 304),
    one_of_several=('"x", W/{}', 304),
    any=(" * ", 304),
    broken=("{", 200),
    long=(f"a{' ' * 9000}b", 200),
)


@pytest.mark.parametrize(("header", "status"), IF_NONE_MATCH)
def test_if_none_match_with_the_current_etag_returns_304(client: Client, run: str, header: str, status: int) -> None:
    tag = client.get(f"{API}/runs").headers["ETag"].removeprefix("W/")
    for send in (client.get, client.head):
        response = send(f"{API}/runs", headers={"If-None-Match": header.replace("{}", tag)})
        assert (response.status_code, response.headers["ETag"]) == (status, f"W/{tag}")


def test_restored_backup_does_not_reuse_earlier_revisions(app: flask.Flask) -> None:
    revisions = set()
    for _ in range(2):
        with suppress(ZeroDivisionError), database_of(app).transaction("default") as connection:
            findings_service.raise_revision(connection, "default")
            revisions.add(findings_service.select_revision(connection, "default"))
            1 / 0  # noqa: B018
    assert len(revisions) == 2


@pytest.mark.modules
def test_cached_lists_are_separate_per_client_key_level_and_prefix(app: flask.Flask, client: Client, run: str) -> None:
    client.add(run)
    stranger, reader = client_of(app, client="other"), client_of(app, "read", name="reader")
    for _ in range(2):
        assert client.read("tasks")["total"] == 1
        assert stranger.read("tasks")["total"] == 0
        allowed = [each.get(f"{API}/tasks").headers["Allow"] for each in (client, reader)]
        assert allowed == ["GET, HEAD, PATCH", "GET, HEAD"]
    client.add(run)
    for prefix in ("", "/a", "/b"):
        link = client.get(f"{API}/tasks?limit=1", environ_overrides={"SCRIPT_NAME": prefix}).json["next"]
        assert link.startswith(f"{prefix}{API}/tasks?")


def test_page_of_screenshots_takes_little_memory(client: Client, run: str) -> None:
    evidence = [{"content": "x" * 250_000}] * 16
    for _ in range(8):
        client.submit(run, *[task(evidence=evidence)] * 3)
    response, peak = peak_of(lambda: client.get(f"{API}/tasks?view=full&limit=200"))
    assert 12 * 2**20 < len(response.data) <= 16 * 2**20
    assert len(response.json["tasks"]) == 4
    assert peak < 5 * 16 * 2**20


@pytest.mark.parametrize(
    ("query", "count", "has_next"),
    cases(
        default=({}, 50, True),
        maximum=({"limit": 200}, 200, True),
        last=({"limit": 1, "page": 201}, 1, False),
        just_full=({"limit": 67, "page": 3}, 67, False),
        beyond_the_end=({"page": 999_999}, 0, False),
    ),
)
def test_list_has_page_limit_total_and_next(
    client: Client, run: str, query: dict[str, int], count: int, has_next: bool
) -> None:
    client.submit(run, *[task()] * 201)
    page = client.read("tasks", **query)
    assert page == {"page": 1, "limit": 50, "total": 201, "tasks": page["tasks"], "next": page["next"], **query}
    assert (len(page["tasks"]), page["next"] is not None) == (count, has_next)
    if has_next:
        assert page["next"].startswith(f"{API}/tasks?")
        following = client.read(page["next"])
        assert (following["page"], following["limit"], following["total"]) == (None, page["limit"], 201)


def test_list_of_runs_has_page_fields_and_ends_early_at_the_size_limit(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [run, *[client.start(metadata={"a": "x" * 3000}) for _ in range(5)]][::-1]
    first, *_, last = client.walk("runs", limit=3)
    assert set(first) == {"runs", "page", "limit", "total", "next"}
    assert [item["id"] for item in first["runs"] + last["runs"]] == runs
    assert (first["page"], last["page"], last["total"], last["next"]) == (1, None, 6, None)
    assert all(set(item) == RUN_FIELDS for item in first["runs"])
    monkeypatch.setattr("findings_service.PAGE_SIZE", 8000)
    pages = [[item["id"] for item in page["runs"]] for page in client.walk("runs")]
    assert pages == [runs[:2], runs[2:4], runs[4:]]


def test_next_link_keeps_filters_limit_sort_and_view(client: Client, run: str) -> None:
    bulk = {"description": "d", "evidence": [{"label": "x"}], "extensions": {"a": 1}}
    client.submit(run, *[task(status=each, **bulk) for each in ("open", "in_progress", "resolved")] * 3)
    query = {"status": "open,in_progress", "sort": "severity", "view": "full", "targetUrl": "https://example.com/"}
    pages = list(client.walk("tasks", limit=4, **query))
    assert [len(page["tasks"]) for page in pages] == [4, 2]
    items = [item for page in pages for item in page["tasks"]]
    assert {item["status"] for item in items} == {"open", "in_progress"}
    assert all(item == client.read(f"tasks/{item['id']}") for item in items)
    assert all(set(item) == HEAD_FIELDS for item in client.read("tasks")["tasks"])


@pytest.mark.parametrize("sort", ["-createdAt", "createdAt", "severity"])
def test_following_next_links_returns_each_row_once_during_writes(client: Client, run: str, sort: str) -> None:
    before = {item["id"] for item in client.submit(run, *[task(severity=s) for s in clients.SEVERITIES * 5])["tasks"]}
    seen: list[str] = []
    for number, page in enumerate(client.walk("tasks", limit=4, sort=sort, status="open")):
        seen += [item["id"] for item in page["tasks"]]
        for item in page["tasks"]:
            client.triage(item["id"], "resolved")  # which removes it from the list
        if number < 5:
            client.submit(run, *[task(severity=s) for s in clients.SEVERITIES])
    assert len(seen) == len(set(seen))
    assert before <= set(seen)


# The last parameter of each query is invalid.
BAD_PARAMETERS = {
    "tasks": (
        *("page=0", "page=1.0", "page=%2B1", "page=%D9%A3", "page=", f"page={10**30}", "limit=0", "limit=201"),
        *("limit=1&limit=1", "status=", "status", "status=open,,resolved", "status=Open", "Status=open"),
        *("status=open&status=", "&".join(["status=open"] * 1001), "targetUrl=a&targetUrl=a", "targetUrl="),
        *("externalId=a&externalId=b", "missingFrom=a&missingFrom=a", "missingFrom=", "runId=", "severity=x"),
        *("sort=severity&sort=severity", "sort=title", "view=all", "mainLine=yes", "mainLine=True"),
        *("mainLine=true&mainLine=true", "assignee=", "assignee=a&assignee=a", "assigned=no", "assigned=true,false"),
        *("createdSince=", "createdSince=2026-11-21&createdSince=2026-11-21", "createdSince=yesterday"),
        *("createdSince=1700000000", "createdSince=2026-02-30", "createdSince=2026-11-21T24:00Z"),
        *("createdSince=2026-11-21T00:00+01:00", "createdBefore=2026-11-21T10:00.5Z", "createdBefore=2026-11-2%D9%A1"),
        *("createdBefore=0001-01-01T00:00%2B01:00", "createdBefore=9999-12-31T23:59:59.9999Z"),
        *("q=", "q=%20%1F%E2%80%83", "q=%CC%81%20%CC%88", "q=a&q=b", "q=a%00", f"missingFrom={UNKNOWN_ID}&q=%20"),
        *("branch=", "&".join(["branch=a"] * 101), "after=", "after=garbage", f"after={UNKNOWN_ID[:-1]}"),
        *(f"after={UNKNOWN_ID}&after={UNKNOWN_ID}", f"sort=severity&after={UNKNOWN_ID}"),
    ),
    "runs": (
        *("page=1&page=2", "limit=201", "status=open", "targetUrl=a&targetUrl=b", "projectType=", "sort=createdAt"),
        *("mainLine=", "createdSince=2026-11-21", "q=a", "branch=a&branch=", "branch=%00", "after=%00"),
    ),
    "tasks/TASK/history": ("limit=0", "limit=1001", "page=1", "after=", "after=-1"),
    "runs/RUN/gate": ("failOn=hgh", "only=old", "baseline=", "page=1"),
    "overview": ("days=0", "days=366", "branch=", "branch=a&branch=b", "status=open"),
    "brief": (
        *("projectType=", "projectType=web&projectType=app", "projectType=web&targetUrl=", "projectType=web&branch="),
        *("projectType=web&limit=201", "projectType=web&status=open"),
    ),
}
MODULE_PATHS = ("runs/RUN/gate", "overview", "brief")


SEVERAL_VALUES = (
    *("status=open,resolved", "status=open&status=resolved", "status=open,resolved&status=open"),
    *("status=open&limit=50&status=resolved", f"{'status=open&' * 999}status=resolved"),
)


@pytest.mark.parametrize("query", SEVERAL_VALUES, ids=range(5))
def test_filter_accepts_comma_separated_and_repeated_values(client: Client, run: str, query: str) -> None:
    for status in STATUSES:
        client.submit(run, task(status=status), task(status=status))
    page = client.get(f"{API}/tasks?{query}").json
    assert (page["total"], {each["status"] for each in page["tasks"]}) == (4, {"open", "resolved"})
    shorter = client.get(f"{API}/tasks?{query.replace('limit=50', 'limit=3')}{'' if 'limit' in query else '&limit=3'}")
    assert len(client.get(shorter.json["next"]).json["tasks"]) == 1


@pytest.mark.parametrize("text", ["a,", "a,,b", ",", ", x ,", "a"])
def test_rule_or_tag_with_commas_also_matches_as_a_whole(client: Client, run: str, text: str) -> None:
    task_id = client.add(run, rule=text, tags=[text])
    client.add(run, rule="other", tags=["other"])
    for query in ({"rule": text}, {"tag": text}, {"tag": [text, "unknown"]}):
        assert [each["id"] for each in client.read("tasks", **query)["tasks"]] == [task_id]


@pytest.mark.parametrize("name", ["a", "a,b", ",", " a b", "type:x target:y", "ü/#?&=%", "branches"])
def test_branch_filter_matches_the_exact_name(client: Client, run: str, name: str) -> None:
    for each in (name, "other"):
        client.add(client.start(branch=each))
        client.add(client.start(branch=f"{each} "))
    for path in ("runs", "tasks"):
        page = client.read(path, branch=name)
        assert ([each["branch"] for each in page[path]], page["total"]) == ([name], 1)
        first = client.read(path, branch=["other", name], limit=1)
        assert [each["branch"] for each in first[path]] == ["other"]
        assert [each["branch"] for each in client.read(first["next"])[path]] == [name]


def test_branch_with_too_many_targets_requires_another_filter(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        client.add(client.start("web", targetUrl=f"https://example.com/{number}", branch="dev"), title=str(number))
    monkeypatch.setattr(findings_service, "MAX_REPORTERS", 3)
    problem = assert_problem(client.get(f"{API}/tasks?branch=dev"), 400, "invalid_parameter", "branch")
    assert "add projectType or targetUrl" in problem["detail"]
    assert client.read("tasks", branch="dev", targetUrl="https://example.com/2")["total"] == 1
    assert client.read("runs", branch="dev")["total"] == 4


@pytest.mark.parametrize(
    "path", [pytest.param(each, marks=[pytest.mark.modules] * (each in MODULE_PATHS)) for each in BAD_PARAMETERS]
)
def test_invalid_parameter_is_rejected_by_name(client: Client, run: str, path: str) -> None:
    url_path = path.replace("RUN", run).replace("TASK", client.add(run))
    for query in BAD_PARAMETERS[path]:
        name = re.findall(r"(?:^|&)(\w+)", query)[-1]
        assert_problem(client.get(f"{API}/{url_path}?{query}"), 400, "invalid_parameter", name)


@pytest.mark.parametrize("query", cases(thousands="&".join(["status=open"] * 5001), invalid_utf8="externalId=%FF"))
def test_unreadable_query_string_is_rejected(client: Client, query: str) -> None:
    assert_problem(client.get(f"{API}/tasks?{query}"), 400, "invalid_parameter", "query string")


@pytest.fixture
def dated(app: flask.Flask, client: Client, run: str) -> list[str]:
    """Ids of tasks that were created at four times of three days."""
    moments = ("19T23:59:59.999", "20T00:00:00.000", "20T12:30:15.123", "21T00:00:00.000")
    days = [f"2026-11-{moment}Z" for moment in moments]
    ids = [client.add(run, title=day) for day in days]
    with database_of(app).transaction() as connection:
        for day in days:
            connection.execute("UPDATE tasks SET created_at = ? WHERE title = ?", (day, day))
    return ids


DATES = cases(
    day=("createdSince=2026-11-20", [1, 2, 3]),
    day_before=("createdBefore=2026-11-20", [0]),
    one_day=("createdSince=2026-11-20&createdBefore=2026-11-21", [1, 2]),
    small_letters=("createdSince=2026-11-20t00:00:00z", [1, 2, 3]),
    zone=("createdSince=2026-11-20T13:30:15.123%2B01:00", [2, 3]),
    millisecond=("createdSince=2026-11-20T12:30:15.123Z", [2, 3]),
    finer=("createdSince=2026-11-20T12:30:15.123001Z", [3]),
    before_a_finer_one=("createdBefore=2026-11-20T12:30:15.123001Z", [0, 1, 2]),
    finer_than_a_second=("createdBefore=2026-11-19T23:59:59.9999", [0]),
    nothing_between=("createdSince=2026-11-21&createdBefore=2026-11-20", []),
    all_of_it=("createdSince=0001-01-01&createdBefore=9999-12-31", [0, 1, 2, 3]),
)


@pytest.mark.parametrize(("query", "indexes"), DATES)
def test_created_since_and_before_filter_tasks(client: Client, dated: list[str], query: str, indexes: Any) -> None:
    for more in ("", "status=open&", "severity=high&limit=2&"):
        page = client.get(f"{API}/tasks?sort=createdAt&{more}{query}").json
        assert page["total"] == len(indexes)
        assert [each["id"] for each in page["tasks"]] == [dated[index] for index in indexes][: page["limit"]]


def test_creation_times_of_clients_are_independent(app: flask.Flask, client: Client, run: str) -> None:
    client.add(run)
    with database_of(app).transaction() as connection:
        connection.execute("UPDATE tasks SET created_at = '2999-01-01T00:00:00.000Z'")
    other = client_of(app, client="other")
    other.register("web")
    task_id = other.add(other.start())
    assert other.read(f"tasks/{task_id}")["createdAt"] < "2999" < client.read("tasks")["tasks"][0]["createdAt"]
    assert client.read("tasks", createdSince="2998-01-01")["total"] == 1
    assert other.read("tasks", createdSince="2998-01-01")["total"] == 0
    assert client.read(f"tasks/{client.add(run)}")["createdAt"] == "2999-01-01T00:00:00.000Z"
    assert integrity_errors_of(Path(database_of(app).settings.db)) == []


def test_clock_set_back_keeps_tasks_in_creation_order(
    app: flask.Flask, client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = client.read(f"tasks/{client.add(run)}")["createdAt"]
    now = time.time_ns()
    monkeypatch.setattr(findings_service, "now_ns", lambda: now - 3600 * 10**9)
    ids = [client.add(run) for _ in range(3)]
    assert [client.read(f"tasks/{task_id}")["createdAt"] for task_id in ids] == [first] * 3
    assert client.read("tasks", createdSince=first)["total"] == 4
    assert integrity_errors_of(database_of(app).settings.db) == []


def test_next_links_work_for_queries_in_raw_utf8(client: Client) -> None:
    client.register("web")
    run = client.start(targetUrl="https://example.com/ü?a=b+c%20d")
    client.submit(run, task(), task())
    for start in ("https://example.com/ü", "https%3A//example.com/%C3%BC"):
        query = f"targetUrl={start}?a=b%2Bc%2520d&limit=1"
        environ = {"QUERY_STRING": query.encode().decode("latin-1")}
        page = client.get(f"{API}/tasks", environ_overrides=environ).json
        assert page["next"].isascii()
        assert [len(client.read(page["next"])["tasks"]), page["total"]] == [1, 2]


# --- Keys and clients ------------------------------------------------------

BAD_AUTHORIZATIONS = (
    *(None, "", "Bearer", "Bearer  ", "Basic Zm9vOmJhcg==", "KEY", "Bearer fts_" + "x" * 43, "Bearer abc"),
    *("Bearer fts_\xe9", "Bearer KEY-1", "Bearer KEYx", 'Bearer "KEY"', "Bearer KEY KEY"),
)


@pytest.mark.parametrize("header", BAD_AUTHORIZATIONS)
def test_missing_or_invalid_key_returns_401(app: flask.Flask, header: str | None) -> None:
    key = clients.make_key(app)
    value = None if header is None else header.replace("KEY-1", key[:-1]).replace("KEY", key)
    headers = {} if value is None else {"Authorization": value}
    response = app.test_client().get(f"{API}/tasks", headers=headers)
    assert_problem(response, 401, "unauthorized")
    assert response.headers["WWW-Authenticate"].startswith("Bearer")


def test_only_the_hash_of_a_key_is_stored(app: flask.Flask, tmp_path: Path) -> None:
    key = clients.make_key(app)
    assert clients.KEY.fullmatch(key)
    database_of(app).close()
    stored = engines.stored_bytes(tmp_path / "findings.db")
    assert key.encode() not in stored
    assert hashlib.sha256(key.encode()).hexdigest().encode() in stored


def test_environment_key_has_level_full_for_the_default_client(
    make_app: Callable[..., flask.Flask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINDINGS_API_KEY", "from-the-environment")
    app = make_app()
    client = client_of(app)
    client.register("web")
    task_id = client.add(client.start())
    client.key = "from-the-environment"
    assert client.triage(task_id, "dismissed")["status"] == "dismissed"
    client.key = "from-the-environment2"
    assert_problem(client.get(f"{API}/tasks"), 401, "unauthorized")


def test_last_use_of_a_key_is_stored(app: flask.Flask, client: Client) -> None:
    reader = client_of(app, "read", name="reader")
    reader.read("tasks")
    client.register("web")
    rows = clients.rows_of(app, "SELECT name, last_used_at FROM api_keys")
    assert all(clients.TIME.fullmatch(last_used_at) for _, last_used_at in rows), rows


# --- Users -----------------------------------------------------------------


def test_history_records_both_user_and_key(app: flask.Flask, client: Client) -> None:
    client.register("web")
    anna, other = clients.users_of(app, "anna@shop.example", "Jürgen Müller")
    run = anna.start()
    task_id = anna.add(run)
    anna.triage(task_id, "in_progress", comment="mine")
    other.triage(task_id, "dismissed")
    other.finish(run)
    users = [*["anna@shop.example"] * 3, *["Jürgen Müller"] * 2]
    rows = clients.rows_of(app, "SELECT event, key_name, user_name FROM history ORDER BY seq")
    assert rows == [*zip(("started", "created", "status", "status", "finished"), ["proxy"] * 5, users, strict=True)]
    authors = [(entry["by"], entry["user"]) for entry in client.history(task_id)]
    assert authors == [("proxy", user) for user in users[1:4]]


WSGI_UMLAUT = "ü".encode().decode("latin-1")
USERS = [
    *((user, 200) for user in ("a", WSGI_UMLAUT * 200)),
    *((user, 400) for user in ("a" * 201, "", "  ", "a\tb", "a\xe2\x80\xaeb", "anna,otto", "J\xfcrgen")),
]


@pytest.mark.parametrize(("user", "status"), [(None, 401), *USERS], ids=lambda value: ascii(value)[:20])
def test_key_for_users_requires_one_printable_user(app: flask.Flask, user: str | None, status: int) -> None:
    (client,) = clients.users_of(app, "", level="read")
    del client.environ_base["HTTP_FINDINGS_USER"]
    client.environ_base.update({} if user is None else {"HTTP_FINDINGS_USER": user})
    assert client.get(f"{API}/runs").status_code == status
    if status == 401:
        assert_problem(client.get(f"{API}/tasks/{UNKNOWN_ID}?unknown=1"), 401, "unauthorized")
    if status == 400:
        problem = assert_problem(client.get(f"{API}/tasks?unknown=1"), 400, "invalid_parameter", "Findings-User")
        assert "ASCII" in problem["detail"]


def test_user_is_checked_before_key_level_and_fetch_site(app: flask.Flask) -> None:
    (client,) = clients.users_of(app, "anna", level="read")
    site = {"Sec-Fetch-Site": "cross-site"}
    assert "level" in assert_problem(client.post(f"{API}/runs", headers=site), 403, "forbidden")["detail"]
    del client.environ_base["HTTP_FINDINGS_USER"]
    assert_problem(client.post(f"{API}/runs", headers=site), 401, "unauthorized")


def test_findings_user_header_requires_a_key_for_users(make_app: Callable[..., flask.Flask]) -> None:
    app = make_app(api_key=SECRET)
    for key, user in itertools.product((SECRET, clients.make_key(app)), ("anna", "")):
        client = clients.client_with(app, key)
        response = client.get(f"{API}/tasks", headers={"Findings-User": user})
        assert "--for-users" in assert_problem(response, 400, "invalid_parameter", "Findings-User")["detail"]
        assert client.get(f"{API}/tasks").status_code == 200


def test_assignee_me_matches_the_requesting_user(app: flask.Flask, client: Client, run: str) -> None:
    *users, unassigned = clients.users_of(app, "anna", "otto", "nobody")
    for name in ("anna", "otto", "me"):  # triage takes "me" as a name
        assert users[0].triage(client.add(run, title=f"of {name}"), assignee=name)["assignee"] == name

    def titles(caller: Client) -> list[str]:
        return [each["title"] for page in caller.walk("tasks", assignee="me", limit=1) for each in page["tasks"]]

    assert [titles(each) for each in (*users, client, unassigned)] == [["of anna"], ["of otto"], ["of me"], []]
    condition = {"If-None-Match": users[0].get(f"{API}/tasks?assignee=me").headers["ETag"]}
    assert [each.get(f"{API}/tasks?assignee=me", headers=condition).status_code for each in users] == [304, 200]


@pytest.mark.modules
def test_assignee_me_works_in_groups_search_and_csv(app: flask.Flask, client: Client, run: str) -> None:
    for name in ("anna", "me"):
        client.triage(client.add(run, title=f"of {name}", rule=name), assignee=name)
    (anna,) = clients.users_of(app, "anna")
    assert [each["value"] for each in anna.read("groups", by="rule", assignee="me")["groups"]] == ["anna"]
    assert [each["title"] for each in anna.read("tasks", q="of", assignee="me")["tasks"]] == ["of anna"]
    csv_text = anna.get(f"{API}/tasks?assignee=me", headers={"Accept": "text/csv"}).text
    assert ("of anna" in csv_text, "of me" in csv_text) == (True, False)


SITES = cases(
    same_origin=("same-origin", 201), same_site=("same-site", 403), cross=("cross-site", 403), none=("none", 403)
)


@pytest.mark.parametrize(("site", "status"), SITES)
def test_writes_of_users_must_be_same_origin(app: flask.Flask, client: Client, site: str, status: int) -> None:
    client.register("web")
    (anna,) = clients.users_of(app, "anna")
    headers = {"Sec-Fetch-Site": site}
    responses = [each.post(f"{API}/runs", json={"projectType": "web"}, headers=headers) for each in (anna, client)]
    assert [each.status_code for each in responses] == [status, 201]
    assert status == 201 or "Sec-Fetch-Site" in assert_problem(responses[0], 403, "forbidden")["detail"]
    assert [send(f"{API}/runs", headers=headers).status_code for send in (anna.get, anna.head)] == [200, 200]


# --- Runs ------------------------------------------------------------------

NOTHING_SUBMITTED = {"created": 0, "updated": 0, "reopened": 0, "unchanged": 0, "resolved": 0}


def test_starting_a_run_returns_the_whole_run(client: Client) -> None:
    client.register("web")
    body = {"projectType": "web", "targetUrl": "https://example.com/", "metadata": {"commit": "abc"}}
    response = client.post(f"{API}/runs", json=body)
    run = response.json
    assert response.status_code == 201
    assert response.headers["Location"] == f"{API}/runs/{run['id']}"
    assert set(run) >= RUN_FIELDS
    assert {name: run[name] for name in body} == body
    assert (run["status"], run["statusReason"], run["finishedAt"]) == ("running", None, None)
    assert (run["submitted"], run["createdAt"]) == (NOTHING_SUBMITTED, run["updatedAt"])
    found = client.get(response.headers["Location"]).json
    assert found == {**run, "summary": found["summary"]}


def test_unknown_project_type_is_rejected_with_the_known_names(app: flask.Flask, client: Client) -> None:
    client_of(app, client="other").register("theirs")
    client.register("web")
    client.register("cli")
    for name in ("wbe", "theirs", "WEB", ""):
        problem = assert_problem(
            client.post(f"{API}/runs", json={"projectType": name}), 422, "unknown_project_type", "/projectType"
        )
        assert "web" in problem["detail"]
        assert "cli" in problem["detail"]
        assert f"POST {API}/project-types" in problem["detail"]
        assert "theirs" not in problem["detail"].replace("'theirs'", "")


METADATA = (
    '{"z": 1, "a": {"10": 1.0, "9": 1e2}}',
    '{"big": 123456789012345678901234567890, "small": 0.1000, "minus": -0.0}',
    '{ "spaces" :  [ 1 ,2 ] }',
    '{"escaped": "\\u00e9\\/\\ud83d\\ude00", "plain": "é/😀"}',
    '{"": {}, "a~/b": null}',
    '{"n": %s, "f": 0.12345678901234567890123456789}' % ("9" * 400),
    '{"a": 1%s}' % (" " * 70_000),  # white space does not count towards the size
)


@pytest.mark.parametrize("text", METADATA, ids=range(len(METADATA)))
def test_metadata_extensions_and_schemas_round_trip_exactly(client: Client, run: str, text: str) -> None:
    raw = text.encode()
    started = client.send("POST", f"{API}/runs", b'{"projectType": "web", "metadata": %s}' % raw)
    body = b'{"title": "x", "severity": "low", "extensions": %s}' % raw
    submitted = client.send("POST", f"{API}/runs/{run}/tasks", body)
    task_id = submitted.json["tasks"][0]["id"]
    registered = client.send("POST", f"{API}/project-types", b'{"name": "a", "extensionSchema": %s}' % raw)
    for response in (started, client.get(f"{API}/runs"), client.get(f"{API}/tasks/{task_id}"), registered):
        assert raw in response.data
    assert raw in client.get(f"{API}/tasks?view=full").data


RUN_LIMITS = [
    *values_of("targetUrl", f"https://a/{'x' * 2038}", "http://localhost:8080", "HTTPS://Example.com/A?b=c#d"),
    *values_of("targetUrl", "http://[::1]:80/", "https://git.example.com/a/b.git"),
    *values_of("metadata", {"a": "x" * (64 * KIB - 8)}, {"a": "é" * (32 * KIB - 4)}),
    *values_of("branch", "é" * 255, " refs/pull/1,2 type:x\u00a0\u2028\U0001f600 branches"),
]


def test_run_at_the_limits_is_accepted(client: Client, run: str) -> None:
    for change in RUN_LIMITS:
        body = json.dumps({"projectType": "web"} | change, ensure_ascii=False).encode()
        response = client.send("POST", f"{API}/runs", body)
        assert response.status_code == 201
        assert {name: response.json[name] for name in change} == change


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_finished_run_keeps_its_first_result(client: Client, run: str, status: str) -> None:
    task_id = client.add(client.start(targetUrl="https://example.com/"), externalId="old")
    time.sleep(0.002)
    finished = client.finish(run, status, statusReason="é" * 1000)
    assert (finished["status"], finished["statusReason"]) == (status, "é" * 1000)
    assert finished["createdAt"] < finished["finishedAt"] == finished["updatedAt"]
    assert client.read(f"runs/{run}") == finished
    time.sleep(0.002)
    assert client.finish(run, status, statusReason="again", resolveMissing=status == "completed") == finished
    assert client.read(f"tasks/{task_id}")["status"] == "open"
    (other,) = {"completed", "failed"} - {status}
    assert_problem(client.patch(f"{API}/runs/{run}", json={"status": other}), 409, "run_finished")
    bad = {"status": "failed", "resolveMissing": True}
    assert_problem(client.patch(f"{API}/runs/{run}", json=bad), 422, "validation_failed", "/resolveMissing")
    assert_problem(client.post(f"{API}/runs/{run}/tasks", json=task()), 409, "run_finished")
    assert (client.read(f"runs/{run}"), client.read("tasks")["total"]) == (finished, 1)


def test_resolve_missing_resolves_tasks_that_the_run_did_not_report(client: Client, run: str) -> None:
    before = {"reported": "open", "missing": "open", "begun": "in_progress", "no": "dismissed", "done": "resolved"}
    ids = {name: client.add(run, externalId=name) for name in before} | {"no-external-id": client.add(run)}
    for name, status in before.items():
        client.triage(ids[name], status)
    second = start_on(client, None, "reported")
    assert client.finish(second, resolveMissing=True)["submitted"]["resolved"] == 2
    assert {name: client.read(f"tasks/{task_id}")["status"] for name, task_id in ids.items()} == {
        **(before | {"missing": "resolved", "begun": "resolved"}),
        "no-external-id": "open",
    }
    entry = client.history(ids["begun"])[-1]
    assert (entry["event"], entry["from"], entry["to"], entry["runId"]) == ("status", "in_progress", "resolved", second)
    assert len(client.history(ids["done"])) == 2


@pytest.mark.parametrize("branch", [None, "a"])
def test_older_run_that_ends_late_resolves_no_tasks_of_a_newer_run(client: Client, branch: str | None) -> None:
    client.register("web")
    start_on(client, branch, "old", "seen by both")
    older = start_on(client, branch, "seen by both")
    newer = start_on(client, branch, "seen by both", "new")
    start_on(client, "other", "old")  # on another branch
    client.finish(newer)
    client.finish(older, resolveMissing=True)
    assert scenarios.resolved_ids(client) == {"old"}


def test_resolve_missing_skips_tasks_in_unchecked_files(client: Client, run: str) -> None:
    places = {"in": "src/a.py:3", "below": "src/a.py/x", "similar": "src/a.pyc:1", "other": "b.py:1", "none": None}
    client.submit(run, *(task(externalId=name, location=place) for name, place in places.items()))
    partial = start_on(client, None)
    client.submit(partial, task(externalId="failed", rule="not-checked", location="src/a.py:7"))
    client.finish(partial, resolveMissing=True)
    assert scenarios.resolved_ids(client) == {"similar", "other", "none"}
    client.triage(client.read("tasks", externalId="failed")["tasks"][0]["id"], "dismissed")
    whole = start_on(client, None)
    client.submit(whole, task(externalId="failed", rule="not-checked"))  # without a location, all is unchecked
    assert client.finish(whole, resolveMissing=True)["submitted"]["resolved"] == 0


def test_metadata_is_merged_by_member_in_running_and_finished_runs(client: Client, run: str) -> None:
    metadata = '{"kept": 1.0, "big": 12345678901234567890123, "gone": 1, "old": {"a": 1}, "null": null}'
    run = client.send("POST", f"{API}/runs", f'{{"projectType": "web", "metadata": {metadata}}}').json["id"]
    merged = client.send("PATCH", f"{API}/runs/{run}", '{"metadata": {"gone": null, "old": {"b": 2}, "new": 1e2}}')
    assert b'"metadata":{"kept":1.0,"big":12345678901234567890123,"old":{"b": 2},"null":null,"new":1e2}' in merged.data
    assert merged.json["updatedAt"] >= merged.json["createdAt"]
    client.finish(run, metadata={"cost": 1})
    assert client.request_json("PATCH", f"runs/{run}", 200, json={"metadata": {"late": None}})["metadata"]["cost"] == 1
    refused = client.patch(f"{API}/runs/{run}", json={"status": "failed", "metadata": {"cost": 2}})
    assert_problem(refused, 409, "run_finished")
    large = client.patch(f"{API}/runs/{run}", json={"metadata": {"large": "x" * (64 * KIB - 40)}})
    assert_problem(large, 422, "validation_failed", "/metadata")
    assert client.read(f"runs/{run}")["metadata"]["cost"] == 1


def test_starting_a_run_fails_idle_runs_of_the_same_client(make_app: Callable[..., flask.Flask]) -> None:
    app = make_app(run_timeout="0.1")
    (client, idle), other = with_a_run(app), client_of(app, client="other")
    other.register("web")
    other.start()
    time.sleep(1.1)  # the core searches for idle runs at most once a second
    fresh = client.start()
    assert [item["id"] for item in client.read("runs", status="running")["runs"]] == [fresh]
    scenarios.assert_timed_out(client.read(f"runs/{idle}"))
    assert_problem(client.post(f"{API}/runs/{idle}/tasks", json=task()), 409, "run_finished")
    assert other.read("runs", status="failed")["total"] == 0
    other.start()
    assert other.read("runs", status="failed")["total"] == 1


def test_use_of_a_run_resets_its_timeout(app: flask.Flask, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("findings_service.DUE_SEARCH", 0)
    client.register("web")
    again = task(externalId="x")
    actions = (client.add, client.submit, lambda run: client.submit(run, again), lambda run: client.read(f"runs/{run}"))
    actions = (*actions, lambda run: client.request_json("PATCH", f"runs/{run}", 200, json={"metadata": {"done": 0.5}}))
    runs, unused = [client.start() for _ in actions], client.start()
    with database_of(app).transaction() as connection:
        connection.execute("UPDATE runs SET last_used_at = ?", (findings_service.timestamp(ago=7 * 86_400),))
    for action, run in zip(actions, runs, strict=True):
        action(run)
    client.start()
    assert [client.read(f"runs/{run}")["status"] for run in (*runs, unused)] == ["running"] * 5 + ["failed"]


TIMESTAMP = findings_service.timestamp


def set_clock(monkeypatch: pytest.MonkeyPatch, **ahead: float) -> None:
    """Set the clock of the core ahead by a time span."""
    seconds = timedelta(**ahead).total_seconds()
    clients.patch_core(monkeypatch, "timestamp", lambda ago=0.0: TIMESTAMP(ago - seconds))


def test_run_used_while_the_clock_was_ahead_times_out(
    make_app: Callable[..., flask.Flask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("findings_service.DUE_SEARCH", 0)
    client, run = with_a_run(make_app(run_timeout="1h"))
    with database_of(client.application).transaction() as connection:
        connection.execute("UPDATE runs SET last_used_at = '2099-01-01T00:00:00.000Z'")
    for minutes, status in ((0, "running"), (59, "running"), (61, "failed")):
        set_clock(monkeypatch, minutes=minutes)
        client.start()
        assert client.read("runs")["runs"][-1]["status"] == status
    scenarios.assert_timed_out(client.read(f"runs/{run}"))


def test_idle_run_fails_at_startup_if_a_timeout_is_set(
    make_app: Callable[..., flask.Flask], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, run = with_a_run(make_app(run_timeout="0"))
    set_clock(monkeypatch, hours=23)
    client.start()
    app = make_app(run_timeout="0")
    assert client_of(app).read(f"runs/{run}")["status"] == "running"
    assert [*findings_service.due_slices(database_of(app), 0)] == []
    scenarios.assert_timed_out(client_of(make_app(run_timeout="22h")).read(f"runs/{run}"))


def test_no_run_times_out_for_an_hour_after_the_clock_jumped_ahead(
    make_app: Callable[..., flask.Flask], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("findings_service.DUE_SEARCH", 0)
    (client, run), monotonic = with_a_run(make_app()), time.monotonic
    for minutes, status in ((0, "running"), (59, "running"), (61, "failed")):
        set_clock(monkeypatch, days=2, minutes=minutes)
        monkeypatch.setattr(findings_service.time, "monotonic", lambda by=60 * minutes: monotonic() + by)
        client.start()
        assert client.read("runs")["runs"][-1]["status"] == status
    scenarios.assert_timed_out(client.read(f"runs/{run}"))
    assert len([message for message in caplog.messages if "jumped ahead by 2.0 days" in message]) == 1


def test_only_created_at_stays_ahead_after_the_clock_was_ahead(client: Client, run: str) -> None:
    client.add(run)
    ahead = "2099-01-01T00:00:00.000Z"
    with database_of(client.application).transaction() as connection:
        connection.execute("UPDATE tasks SET created_at = ?", (ahead,))
    found = client.read(f"tasks/{client.add(run, externalId='x')}")
    times = [found["updatedAt"], found["lastSeenAt"], client.history(found["id"])[0]["at"]]
    times += [client.read(f"runs/{run}")["updatedAt"]]
    assert found["createdAt"] == ahead
    assert max(times) < ahead
    with connect_directly(database_of(client.application).settings.db) as connection:
        assert connection.execute("SELECT MAX(last_used_at) FROM runs").fetchone() < (ahead,)


# --- Tasks -----------------------------------------------------------------


def test_task_is_stored_whole_until_a_newer_report_replaces_it(client: Client, run: str) -> None:
    task_id = client.submit(run, WHOLE_TASK)["tasks"][0]["id"]
    stored = client.read(f"tasks/{task_id}")
    assert set(stored) == HEAD_FIELDS | BULK_FIELDS
    evidence = [{k: v for k, v in item.items() if v is not None} for item in stored["evidence"]]
    assert {name: stored[name] for name in WHOLE_TASK} | {"evidence": evidence} == WHOLE_TASK
    assert (stored["runId"], stored["lastRunId"], stored["timesSeen"]) == (run, run, 1)
    assert (stored["projectType"], stored["targetUrl"]) == ("web", "https://example.com/")
    assert stored["createdAt"] == stored["updatedAt"] == stored["lastSeenAt"]
    client.add(run, externalId="img-alt-1", title="Reworded", severity="low")
    stored = client.read(f"tasks/{task_id}")
    assert (stored["title"], stored["severity"], stored["status"]) == ("Reworded", "low", "in_progress")
    assert [stored[name] for name in sorted(BULK_FIELDS)] == [None, [], {}, [], []]


def test_single_task_and_batch_get_the_same_form_of_response(client: Client, run: str) -> None:
    counts = dict.fromkeys(("created", "updated", "reopened", "unchanged"), 0)
    single, batch = task(externalId="a"), {"tasks": [task(externalId="b")]}
    for body, result, status in ((single, "created", 201), (batch, "created", 201), (single, "unchanged", 200)):
        response = client.post(f"{API}/runs/{run}/tasks", json=body)
        name = "b" if body is batch else "a"
        item = {"id": response.json["tasks"][0]["id"], "status": "open", "externalId": name, "result": result}
        assert (response.status_code, response.json) == (status, {**counts, result: 1, "tasks": [item]})


def test_submission_returns_the_result_of_each_task_in_order(client: Client, run: str) -> None:
    same, changed, fixed = (client.add(run, externalId=name) for name in ("same", "changed", "fixed"))
    client.triage(fixed, "resolved")
    tasks = [task(externalId="fixed"), task(), task(externalId="changed", title="x"), task(externalId="same"), task()]
    response = client.post(f"{API}/runs/{run}/tasks", json={"tasks": tasks})
    done = response.json
    assert response.status_code == 201
    assert [item["result"] for item in done["tasks"]] == ["reopened", "created", "updated", "unchanged", "created"]
    assert [item["externalId"] for item in done["tasks"]] == ["fixed", None, "changed", "same", None]
    assert [done["tasks"][index]["id"] for index in (0, 2, 3)] == [fixed, changed, same]
    assert [done[name] for name in ("created", "updated", "reopened", "unchanged")] == [2, 1, 1, 1]
    assert {item["status"] for item in done["tasks"]} == {"open"}
    counts = {"created": 5, "updated": 1, "reopened": 1, "unchanged": 1}
    assert client.read(f"runs/{run}")["submitted"] == NOTHING_SUBMITTED | counts


def replace_run(client: Client, run: str) -> str:
    """Prune a run, and return the id of a new run with the same seq."""
    database = database_of(client.application)
    with database.transaction() as connection:
        key = findings_service.select_run_key(connection, "default", run)
        deletion.prune_slice(connection, "default", key)
        new = findings_service.insert_run(connection, clients.PRINCIPAL, "web", "", "{}")
    assert new.seq == key.seq or ON_POSTGRES  # PostgreSQL never reuses a number
    return new.id


@pytest.mark.parametrize(
    ("meanwhile", "status", "code"),
    cases(pruned=(replace_run, 404, "not_found"), finished=(Client.finish, 409, "run_finished")),
)
def test_submission_stores_nothing_if_its_run_ends_during_the_checks(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[..., object], status: int, code: str
) -> None:
    select_schema_of_run, other = findings_service.select_schema_of_run, client_of(client.application, name="other")

    def interrupted(*arguments: Any) -> Any:
        found = select_schema_of_run(*arguments)
        meanwhile(other, run)
        return found

    monkeypatch.setattr("findings_service.select_schema_of_run", interrupted)
    assert_problem(client.post(f"{API}/runs/{run}/tasks", json=task()), status, code)
    assert client.read("tasks")["total"] == 0
    assert integrity_errors_of(database_of(client.application).settings.db) == []


def test_one_invalid_task_rejects_the_whole_batch(client: Client, run: str) -> None:
    task_id = client.add(run, externalId="known")
    batch = {"tasks": [task(), task(externalId="known", title="changed"), task(title=...)]}
    assert_problem(client.post(f"{API}/runs/{run}/tasks", json=batch), 422, "validation_failed", "/tasks/2/title")
    assert client.read("tasks")["total"] == 1
    assert client.read(f"tasks/{task_id}")["title"] == task()["title"]
    assert client.read(f"runs/{run}")["submitted"] == NOTHING_SUBMITTED | {"created": 1}


TASK_LIMITS = [
    *values_of("title", "x", "😀" * 500),
    *values_of("externalId", "😀" * 256),
    *values_of("description", "", "x" * (64 * KIB), "é" * (32 * KIB)),
    *values_of("evidence", [{"label": "x"}] * 100, [{"label": "x" * 500}], [{"type": "x" * 64, "label": "x"}]),
    *values_of("evidence", [{"content": "x" * (256 * KIB)}], [{"content": "é" * (128 * KIB)}]),
    *values_of("evidence", [{"url": url} for url in ("file:///a.log", "ftp://h/x", "s3://b/k", "mailto:a@b")]),
    *values_of("evidence", [{"url": f"https://a/{'x' * 2038}"}], [{"url": IMAGE.ljust(256 * KIB, "A")}]),
    *values_of("evidence", [{"url": "data:image/svg+xml,%3Csvg/%3E"}]),
    *values_of("remediation", [{"step": n + 1, "instruction": "x"} for n in range(100)]),
    *values_of("remediation", [{"step": 1, "instruction": "x"}, {"step": 10_000, "instruction": "y"}]),
    *values_of("successCriteria", [{"description": "x", "automatable": False}] * 100),
    *values_of("rule", "😀" * 256),
    *values_of("location", f" {'😀' * 1022} "),
    *values_of("tags", [f"{'😀' * 62}{n}" for n in range(20, 0, -1)], ["a", "A", " a", 'a"', "a,a"]),
    *values_of("extensions", {"a": "x" * (256 * KIB - 8)}, {"a": "é" * (128 * KIB - 4)}),
]


def test_task_at_the_limits_is_accepted(client: Client, run: str) -> None:
    for change in TASK_LIMITS:
        body = json.dumps(task(**change), ensure_ascii=False).encode()
        response = client.send("POST", f"{API}/runs/{run}/tasks", body)
        assert response.status_code == 201, response.json
        stored = client.read(f"tasks/{response.json['tasks'][0]['id']}")
        stored["evidence"] = [{k: v for k, v in item.items() if v is not None} for item in stored["evidence"]]
        assert {name: stored[name] for name in change} == change


@pytest.mark.parametrize("schema", [None, WCAG_SCHEMA])
def test_empty_batch_is_accepted(client: Client, schema: Any) -> None:
    run = client.start(client.register("web", schema)["name"], targetUrl="https://example.com/")
    response = client.post(f"{API}/runs/{run}/tasks", json={"tasks": []}, headers={"Idempotency-Key": "clean"})
    zeros = dict.fromkeys(("created", "updated", "reopened", "unchanged"), 0)
    assert (response.status_code, response.json) == (200, {**zeros, "tasks": []})
    assert client.read(f"runs/{run}")["submitted"] == {**zeros, "resolved": 0}
    assert client.finish(run, resolveMissing=True)["summary"]["total"] == 0
    assert_problem(client.post(f"{API}/runs/{run}/tasks", json={"tasks": []}), 409, "run_finished")


def test_remediation_steps_are_numbered_by_position_or_sorted_by_step(client: Client, run: str) -> None:
    texts = ["first", "second", "third"]
    unnumbered = client.add(run, remediation=[{"instruction": text} for text in texts])
    numbered = client.add(run, remediation=[{"step": 9.0 - n, "instruction": text} for n, text in enumerate(texts)])
    assert client.read(f"tasks/{unnumbered}")["remediation"] == [
        {"step": n, "instruction": text} for n, text in enumerate(texts, 1)
    ]
    response = client.get(f"{API}/tasks/{numbered}")
    assert [step["instruction"] for step in response.json["remediation"]] == texts[::-1]
    assert b'"step":9,' in response.data


def test_external_id_identifies_a_task_per_project_type_and_target(app: flask.Flask, client: Client) -> None:
    stranger = client_of(app, client="other")
    for owner, name in itertools.product((client, stranger), ("web", "cli")):
        owner.register(name)
    scopes = [("web", None), ("web", "https://example.com/"), ("web", "https://example.com"), ("cli", None)]
    found = []
    for owner, name, target in [*((client, *each) for each in scopes), (stranger, "web", None)]:
        ids = {owner.add(owner.start(name, targetUrl=target), externalId="x") for _ in range(2)}
        assert len(ids) == 1
        found += [(owner, *ids)]
    assert len({task_id for _, task_id in found}) == 5
    client.finish(client.start("web"), resolveMissing=True)
    assert [owner.read(f"tasks/{task_id}")["status"] for owner, task_id in found] == ["resolved", *["open"] * 4]


def test_identity_is_the_external_id_compared_exactly(client: Client, run: str) -> None:
    assert client.add(run, externalId="x", title="One") == client.add(run, externalId="x", title="Other")
    assert client.add(run, title="Same") != client.add(run, title="Same")
    spellings = ["a", "A", "a ", "a,b", "\u00e9", "e\u0301"]
    assert len({client.add(run, externalId=text) for text in spellings}) == len(spellings)
    assert [client.read("tasks", externalId=text)["total"] for text in spellings] == [1] * len(spellings)
    assert [client.read("tasks", targetUrl=f"https://example.com{end}")["total"] for end in ("/", "")] == [9, 0]


def test_report_keeps_triage_and_reopens_resolved_tasks(client: Client, run: str) -> None:
    for stored, reported in itertools.product(STATUSES, (..., *STATUSES)):
        name, reopens = f"{stored} {reported}", stored == "resolved" and reported not in ("resolved", "dismissed")
        status, result = ("open", "reopened") if reopens else (stored, "unchanged")
        task_id = client.add(run, externalId=name)
        client.triage(task_id, "resolved")
        client.triage(task_id, stored)
        done = client.submit(run, task(externalId=name, status=reported))
        assert done["tasks"] == [{"id": task_id, "status": status, "externalId": name, "result": result}]
        assert client.read(f"tasks/{task_id}")["status"] == status, name
        last = client.history(task_id)[-1]
        assert reopens == ((last["event"], last["from"], last["to"]) == ("reported", "resolved", "open"))


CHANGED_FIELDS = (
    *({"title": "Other"}, {"severity": "low"}, {"description": "other"}, {"description": None}, {"location": None}),
    *({"evidence": [{"label": "x"}]}, {"remediation": [{"instruction": "x"}]}, {"successCriteria": []}, {"rule": "S2"}),
    *({"extensions": {"a": 1.0, "b": [1, 2]}}, {"extensions": {"a": 1, "b": [2, 1]}}, {"tags": ["b", "a"]}),
    {"severity": "low", "rule": None, "tags": []},  # all fields that counters depend on
)
FULL_REPORT = {
    "externalId": "x",
    "description": "text",
    "evidence": [{"label": "y", "type": "log"}],
    "remediation": [{"step": 1, "instruction": "do"}],
    "successCriteria": [{"description": "z"}],
    "extensions": {"a": 1, "b": [1, 2]},
    "rule": "S101",
    "location": "src/a.py:1",
    "tags": ["a", "b"],
}


@pytest.mark.parametrize("change", CHANGED_FIELDS, ids=str)
def test_history_lists_the_fields_that_a_report_changed(client: Client, run: str, change: dict[str, Any]) -> None:
    task_id = client.add(run, **FULL_REPORT)
    time.sleep(0.002)
    assert client.submit(run, task(**FULL_REPORT | change))["updated"] == 1
    entry = client.history(task_id)[-1]
    assert (entry["event"], entry["changed"], entry["from"], entry["to"]) == ("reported", list(change), None, None)
    stored = client.read(f"tasks/{task_id}")
    assert stored["createdAt"] < stored["updatedAt"] == entry["at"]


def test_key_order_and_white_space_do_not_count_as_changes(client: Client, run: str) -> None:
    task_id = client.add(run, **FULL_REPORT)
    before = client.read(f"tasks/{task_id}")
    body = {"severity": "high", "title": task()["title"], **FULL_REPORT, "extensions": {"b": [1, 2], "a": 1}}
    body["evidence"] = [{"type": "log", "url": None, "label": "y"}]
    body["successCriteria"] = [{"automatable": False, "description": "z"}]
    body["remediation"] = [{"instruction": "do"}]
    response = client.send("POST", f"{API}/runs/{run}/tasks", json.dumps(body, indent=3))
    assert response.json["unchanged"] == 1
    assert client.read(f"tasks/{task_id}") == before
    assert len(client.history(task_id)) == 1


@pytest.mark.parametrize(("before", "after"), [*itertools.permutations([..., None, {}], 2)])
def test_empty_and_missing_extensions_are_equal(client: Client, run: str, before: Any, after: Any) -> None:
    client.add(run, externalId="x", extensions=before, evidence=... if before is ... else [])
    again = task(externalId="x", extensions=after, evidence=... if after is ... else [])
    assert client.submit(run, again)["unchanged"] == 1
    assert client.submit(run, again | {"extensions": {"a": 1}})["updated"] == 1


def test_each_run_changes_last_seen_of_a_task_once(client: Client, run: str) -> None:
    task_id = client.add(run, externalId="x")
    first = client.read(f"tasks/{task_id}")
    second = client.start(targetUrl="https://example.com/")
    seen = []
    for run_id in (run, second, second, run):
        time.sleep(0.002)
        client.add(run_id, externalId="x")
        seen.append(client.read(f"tasks/{task_id}"))
    assert seen[0] == first
    assert seen[1] == seen[2] == seen[3]
    assert (seen[1]["runId"], seen[1]["lastRunId"], seen[1]["timesSeen"]) == (run, second, 2)
    assert seen[1]["lastSeenAt"] > first["lastSeenAt"]
    assert seen[1]["updatedAt"] == first["updatedAt"]


@pytest.mark.parametrize("batch_size", [2, findings_service.REPORTS_AT_ONCE])
def test_last_of_duplicate_external_ids_in_a_batch_wins(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    monkeypatch.setattr(findings_service, "REPORTS_AT_ONCE", batch_size)
    tasks = [task(externalId="x", title="first"), task(), task(), task(externalId="x", title="last")]
    done = client.submit(run, *tasks)
    assert (done["created"], len(done["tasks"]), done["tasks"][0]) == (3, 4, done["tasks"][3])
    assert len({item["id"] for item in done["tasks"]}) == client.read("tasks", runId=run)["total"] == 3
    stored = client.read(f"tasks/{done['tasks'][0]['id']}")
    assert (stored["title"], stored["timesSeen"]) == ("last", 1)
    again = client.submit(run, task(externalId="x", title="new"), task(externalId="x", title="last"))
    assert (again["unchanged"], again["updated"]) == (1, 0)
    assert [item["result"] for item in again["tasks"]] == ["unchanged"] * 2


@pytest.mark.parametrize("status", STATUSES)
def test_branch_report_leaves_a_main_line_task_unchanged(client: Client, run: str, status: str) -> None:
    task_id = client.add(run, externalId="x")
    client.triage(task_id, status)
    before, entries = client.read(f"tasks/{task_id}"), client.history(task_id)
    branch = client.start(targetUrl="https://example.com/", branch="a")
    time.sleep(0.002)
    for _ in range(2):
        done = client.submit(branch, task(externalId="x", title="Reworded", severity="low", status="dismissed"))
        assert (done["unchanged"], done["tasks"][0]["result"], done["tasks"][0]["status"]) == (1, "unchanged", status)
    assert (client.read(f"tasks/{task_id}"), client.history(task_id)) == (before, entries)
    whole = client.read(f"runs/{branch}")
    assert (whole["submitted"]["unchanged"], whole["summary"]["total"]) == (2, 1)
    assert [each["id"] for each in client.read("tasks", runId=branch)["tasks"]] == [task_id]


def test_main_line_report_takes_over_a_branch_task(client: Client, run: str) -> None:
    start_on(client, "a", "x")
    task_id = client.read("tasks")["tasks"][0]["id"]
    before = client.triage(task_id, "resolved")
    time.sleep(0.002)
    report = task(externalId="x", title="Reworded", status="resolved")
    assert client.submit(run, report)["tasks"][0]["result"] == "updated"
    found, entry = client.read(f"tasks/{task_id}"), client.history(task_id)[-1]
    assert (found["branch"], found["status"], found["lastRunId"], found["timesSeen"]) == (None, "resolved", run, 2)
    assert (found["runId"], found["updatedAt"] > before["updatedAt"]) == (before["runId"], True)
    assert (entry["event"], entry["runId"], entry["changed"]) == ("reported", run, ["title", "branch"])
    assert client.submit(run, report)["unchanged"] == 1


def test_every_status_transition_is_allowed(client: Client, run: str) -> None:
    for before, after in itertools.product(STATUSES, STATUSES):
        task_id = client.add(run, status=before)
        updated = client.triage(task_id, after)
        assert updated["status"] == after
        assert updated == client.read(f"tasks/{task_id}")
        assert len(client.history(task_id)) == (1 if before == after else 2)


def entries_of(client: Client, task_id: str) -> list[dict[str, Any]]:
    """Return the history of a task after its creation, without null values and the fields in `left_out`."""
    left_out = ("at", "by", "runId", "changed")
    return [
        {name: value for name, value in entry.items() if value is not None and name not in left_out}
        for entry in client.history(task_id)[1:]
    ]


def test_history_records_author_reason_and_comment_of_triage(app: flask.Flask, client: Client, run: str) -> None:
    task_id = client.add(run, externalId="x")
    triager = client_of(app, name="Ada")
    time.sleep(0.002)
    updated = triager.triage(task_id, "dismissed", comment="é" * 4000, reason="false_positive")
    assert (updated["status"], updated["reason"]) == ("dismissed", "false_positive")
    entry = client.history(task_id)[-1]
    assert clients.TIME.fullmatch(entry.pop("at"))
    expected = {"event": "status", "by": "Ada", "from": "open", "to": "dismissed", "reason": "false_positive"}
    assert entry == {**expected, "comment": "é" * 4000, "user": None, "runId": None, "assignee": None, "changed": []}
    assert updated["createdAt"] == updated["lastSeenAt"] < updated["updatedAt"]


INITIAL = ("dismissed", "duplicate")
DECISIONS = cases(
    move=({"status": "open"}, ("open", None), ["status"]),
    move_to_a_reason=({"status": "resolved", "reason": "fixed", "comment": "c"}, ("resolved", "fixed"), ["status"]),
    move_without_a_reason=({"status": "resolved"}, ("resolved", None), ["status"]),
    reason_alone=({"reason": "wont_fix", "comment": "c"}, ("dismissed", "wont_fix"), ["status"]),
    another_reason=({"status": "dismissed", "reason": "wont_fix"}, ("dismissed", "wont_fix"), ["status"]),
    same_status=({"status": "dismissed"}, INITIAL, []),
    same_reason=({"reason": "duplicate"}, INITIAL, []),
    same_with_a_comment=({"status": "dismissed", "reason": "duplicate", "comment": "c"}, INITIAL, ["comment"]),
    comment_alone=({"comment": "c"}, INITIAL, ["comment"]),
    move_and_assigned=({"status": "open", "assignee": "Ada", "comment": "c"}, ("open", None), ["status", "assigned"]),
    assigned_with_a_comment=({"assignee": "Ada", "comment": "c"}, INITIAL, ["assigned", "comment"]),
)


@pytest.mark.parametrize(("decision", "state", "events"), DECISIONS)
def test_triage_adds_a_history_entry_for_each_change(
    client: Client, run: str, decision: Any, state: Any, events: list[str]
) -> None:
    task_id = client.add(run)
    before = client.triage(task_id, "dismissed", reason="duplicate")
    time.sleep(0.002)
    after = client.triage(task_id, **decision)
    assert ((after["status"], after["reason"]), after["assignee"]) == (state, decision.get("assignee"))
    values = {"from": "dismissed", "to": state[0], **decision}
    fields = {"status": ("from", "to", "reason", "comment"), "assigned": ("assignee",), "comment": ("comment",)}
    expected = [{"event": event} | {name: values[name] for name in fields[event] if name in values} for event in events]
    assert entries_of(client, task_id)[1:] == expected
    assert (after["updatedAt"] > before["updatedAt"]) == bool({*events} - {"comment"})


def test_task_has_at_most_one_assignee(client: Client, run: str) -> None:
    task_id = client.add(run)
    assert client.triage(task_id, assignee="")["assignee"] is None
    for name in ("Ada", "Ada", "é" * 200, " a, b "):
        assert client.triage(task_id, assignee=name)["assignee"] == name
        assert client.read("tasks")["tasks"][0]["assignee"] == name
    assert client.triage(task_id, "resolved", assignee=None)["assignee"] == " a, b "
    assert client.triage(task_id, assignee="")["assignee"] is None
    assert [entry["assignee"] for entry in client.history(task_id) if entry["event"] == "assigned"][-1] is None
    assert [entry["event"] for entry in client.history(task_id)][1:] == [*["assigned"] * 3, "status", "assigned"]


def test_report_keeps_the_assignee_and_reopening_clears_the_reason(client: Client, run: str) -> None:
    ids = [client.add(run, externalId=name) for name in "ab"]
    client.triage(ids[0], "dismissed", reason="accepted_risk", assignee="Ada")
    client.triage(ids[1], "resolved", reason="fixed", assignee="Bob")
    client.submit(client.start(targetUrl="https://example.com/"), *(task(externalId=n, title="New") for n in "ab"))
    fields = ("status", "reason", "assignee")
    states = [tuple(client.read(f"tasks/{task_id}")[name] for name in fields) for task_id in ids]
    assert states == [("dismissed", "accepted_risk", "Ada"), ("open", None, "Bob")]
    client.finish(client.start(targetUrl="https://example.com/"), resolveMissing=True)
    assert client.read(f"tasks/{ids[1]}")["reason"] is None
    assert entries_of(client, ids[1])[-1] == {"event": "status", "from": "open", "to": "resolved"}


def test_task_etag_changes_with_the_task(client: Client, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = findings_service.timestamp()
    clients.patch_core(monkeypatch, "timestamp", lambda ago=0.0: now)  # all changes in the same millisecond
    path, tags = f"{API}/tasks/{client.add(run, externalId='x')}", list[str]()

    def check_etags(response: Any = None) -> None:
        for each in (response or client.get(path), client.get(path), client.head(path)):
            tags.append(each.headers["ETag"])
        listed = [*client.read("tasks")["tasks"], *client.read("tasks", view="full")["tasks"]]
        tags.extend(each["etag"] for each in (client.get(path).json, *listed))
        assert len(set(tags[-6:])) == 1
        assert tags[-1] not in tags[:-6]

    check_etags()
    assert re.fullmatch('"[0-9a-f]{32}"', tags[0])
    assert client.patch(path, json={"assignee": ""}).headers["ETag"] == tags[0]
    for decision in ({"assignee": "Ada"}, {"status": "dismissed"}, {"status": "open"}, {"comment": "Well."}):
        check_etags(client.patch(path, json=decision))
    for more in ({"description": "a"}, {"description": "b"}, {"description": "a"}, {"evidence": [{"url": "a:b"}]}):
        client.add(run, externalId="x", **more)
        check_etags()
    second = client.start(targetUrl="https://example.com/")
    client.add(second, externalId="x", evidence=[{"url": "a:b"}])  # reported again, unchanged
    check_etags()


IF_MATCH = [
    *((header, 200) for header in ("{}", " * ", '"a", {} ,W/"b"', ', ,{},"",', ("{}", '"a"'))),
    *((header, 412) for header in ('"a"', '"a", "b,*"', "W/{}", "a", '*, "a"')),
    *((header, 400) for header in ("", ", ,", '"a', '"a" "b"')),
]


@pytest.mark.parametrize(("header", "status"), IF_MATCH)
def test_if_match_prevents_lost_updates(client: Client, run: str, header: Any, status: int) -> None:
    path = f"{API}/tasks/{client.add(run)}"
    before = client.get(path)
    values = [header] if isinstance(header, str) else header
    headers = Headers([("If-Match", value.replace("{}", before.headers["ETag"])) for value in values])
    response = client.patch(path, json={"status": "resolved"}, headers=headers)
    assert response.status_code == status
    if status != 200:
        code, parameter = ("changed_meanwhile", None) if status == 412 else ("invalid_parameter", "If-Match")
        assert_problem(response, status, code, parameter)
    assert (client.get(path).json == before.json) == (status != 200)


def test_history_is_paged_by_limit_and_size(client: Client, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task_id = client.add(run)
    for number in range(7):
        client.triage(task_id, "open", comment=f"{number}" * 1000)
    whole = client.read(f"tasks/{task_id}/history")
    assert (len(whole["history"]), whole["next"]) == (8, None)
    pages = list(client.walk(f"tasks/{task_id}/history", limit=3))
    assert [len(page["history"]) for page in pages] == [3, 3, 2]
    assert [entry for page in pages for entry in page["history"]] == whole["history"]
    assert client.read(f"tasks/{task_id}/history?limit=1000&after=999999") == {"history": [], "next": None}
    monkeypatch.setattr("findings_service.PAGE_SIZE", 2600)
    pages = list(client.walk(f"tasks/{task_id}/history"))
    assert [len(page["history"]) for page in pages] == [3, 2, 2, 1]
    assert [entry for page in pages for entry in page["history"]] == whole["history"]


@dataclass
class ExpectedFinding:
    """Expected state of a finding, and the runs that reported it."""

    external_id: str | None
    branch: str | None
    severity: str
    status: str = "open"
    runs: set[str] = field(default_factory=set)
    branches: set[str] = field(default_factory=set)
    seen: int = 0
    first_run: str = ""
    last_run: str = ""


@dataclass
class BranchModel:
    """Model of the branch rules: the expected findings of a target after each report."""

    findings: dict[str, ExpectedFinding] = field(default_factory=dict)
    branches: dict[str, str | None] = field(default_factory=dict)  # by run id

    def find(self, external_id: str | None) -> ExpectedFinding | None:
        return next((each for each in self.findings.values() if external_id and each.external_id == external_id), None)

    def report(self, run: str, external_id: str | None, severity: str) -> tuple[ExpectedFinding, str]:
        """Add a report of a run; return its finding and the expected result."""
        finding, branch = self.find(external_id), self.branches[run]
        before = finding and (finding.severity, finding.branch)
        result = "created" if finding is None else "unchanged"
        finding = finding or ExpectedFinding(external_id, branch, severity, first_run=run)
        if branch is None or finding.branch is not None:
            if run not in finding.runs:
                finding.seen, finding.last_run = finding.seen + 1, run
            finding.branch, finding.severity = finding.branch and branch and finding.branch, severity
            if before and before != (finding.severity, finding.branch):
                result = "updated"
            if finding.status == "resolved":
                finding.status, result = "open", "reopened"
        finding.runs.add(run)
        finding.branches |= {branch} if branch else set()
        return finding, result

    def missing(self, run: str) -> dict[str, ExpectedFinding]:
        """Return the active findings of a run's branch that neither it nor a later run of the branch reported."""
        branch = self.branches[run]
        return {
            task_id: each
            for task_id, each in self.findings.items()
            if each.external_id and each.status in ("open", "in_progress")
            if each.branch is None or branch in each.branches
            if not any(other >= run and self.branches[other] == branch for other in each.runs)
        }


def assert_matches_model(model: BranchModel, client: Client, run: str, rng: random.Random) -> None:
    """Compare tasks, filtered lists and the summary of a run with the model, and run the integrity check."""
    stored = client.read("tasks", limit=200)["tasks"]
    fields = ("externalId", "branch", "severity", "status", "timesSeen", "runId", "lastRunId")
    assert {each["id"]: tuple(each[name] for name in fields) for each in stored} == {
        task_id: (each.external_id, each.branch, each.severity, each.status, each.seen, each.first_run, each.last_run)
        for task_id, each in model.findings.items()
    }
    status, branch = rng.choice(STATUSES), rng.choice(("a", "b"))
    for query, expected in (
        ({"missingFrom": run}, set(model.missing(run))),
        ({"mainLine": "true"}, {key for key, each in model.findings.items() if each.branch is None}),
        ({"mainLine": "false"}, {key for key, each in model.findings.items() if each.branch}),
        ({"branch": branch}, {key for key, each in model.findings.items() if branch in each.branches}),
        ({"runId": run}, {key for key, each in model.findings.items() if run in each.runs}),
    ):
        for extra in ({}, {"status": status}):
            page = client.read("tasks", limit=200, **query, **extra)
            matching = {key for key in expected if not extra or model.findings[key].status == status}
            assert ({each["id"] for each in page["tasks"]}, page["total"]) == (matching, len(matching)), query
    reported = [each for each in model.findings.values() if run in each.runs]
    severities, statuses = (Counter(getattr(each, name) for each in reported) for name in ("severity", "status"))
    assert client.read(f"runs/{run}")["summary"] == {
        "total": len(reported),
        "bySeverity": {name: severities[name] for name in clients.SEVERITIES},
        "byStatus": {name: statuses[name] for name in STATUSES},
    }
    assert integrity_errors_of(database_of(client.application).settings.db) == []


@pytest.mark.parametrize("seed", range(6))
def test_branch_rules_hold_for_random_sequences_of_requests(client: Client, seed: int) -> None:
    rng, model, running = random.Random(seed), BranchModel(), list[str]()
    client.register("web")
    for _ in range(60):
        action = rng.choice(("start", "submit", "submit", "submit", "triage", "finish", "finish"))
        if action == "start" or not running:
            branch = rng.choice((None, None, "a", "b"))
            running.append(client.start(branch=branch))
            model.branches[running[-1]] = branch
        elif action == "submit":
            run = rng.choice(running)
            external_ids = [rng.choice((None, *"uvwxyz")) for _ in range(rng.randrange(4))]
            reports = [(name, rng.choice(clients.SEVERITIES)) for name in dict.fromkeys(external_ids)]
            response = client.submit(run, *(task(externalId=name, severity=severity) for name, severity in reports))
            for item, report in zip(response["tasks"], reports, strict=True):
                finding, result = model.report(run, *report)
                model.findings[item["id"]] = finding
                assert (item["result"], item["status"]) == (result, finding.status)
        elif action == "triage" and model.findings:
            task_id, status = rng.choice(list(model.findings)), rng.choice(STATUSES)
            model.findings[task_id].status = status
            assert client.triage(task_id, status)["status"] == status
        elif action == "finish":
            run = running.pop(rng.randrange(len(running)))
            missing = model.missing(run).values() if (resolve := rng.random() < 0.7) else ()
            resolved = [each for each in missing if each.branch == model.branches[run]]
            assert client.finish(run, resolveMissing=resolve)["submitted"]["resolved"] == len(resolved)
            for each in resolved:
                each.status = "resolved"
        assert_matches_model(model, client, rng.choice(list(model.branches)), rng)


# --- Extensions ------------------------------------------------------------


def submit_extensions(client: Client, schema: Any, extensions: Any = ...) -> Any:
    """Register a project type with a schema and submit one task with extensions to it."""
    name = f"type-{time.monotonic_ns()}"
    client.register(name, schema)
    return client.post(f"{API}/runs/{client.start(name)}/tasks", json=task(extensions=extensions))


@pytest.mark.parametrize(
    ("schema", "extensions"),
    cases(
        matching=(WCAG_SCHEMA, {"wcag": "1.1.1", "pages": [1, 2.0]}),
        no_schema=(None, {"anything": [None, {"goes": True}]}),
        empty_schema=({}, {"anything": [None, {"goes": True}]}),
        nothing_required=(WCAG_SCHEMA | {"required": []}, {}),
        format_is_an_annotation=(in_a({"format": "email"}), {"a": "no address"}),
    ),
)
def test_valid_extensions_are_accepted(client: Client, schema: Any, extensions: Any) -> None:
    response = submit_extensions(client, schema, extensions or ...)
    assert response.status_code == 201
    assert client.read(f"tasks/{response.json['tasks'][0]['id']}")["extensions"] == extensions


NEWEST, DRAFT_2019 = (f"https://json-schema.org/draft/{each}/schema" for each in ("2020-12", "2019-09"))
DRAFT_7, DRAFT_6, DRAFT_4, DRAFT_3 = (f"http://json-schema.org/draft-0{each}/schema#" for each in (7, 6, 4, 3))
STRING_ITEMS = {"items": [{"type": "string"}]}
VALIDATION_CASES = cases(
    by_default=(in_a({"prefixItems": [{"type": "string"}]}), ["x"], [1]),
    draft_2020_12=({"$schema": NEWEST} | in_a({"prefixItems": [{"type": "string"}]}), ["x"], [1]),
    draft_2019_09=({"$schema": DRAFT_2019} | in_a(STRING_ITEMS), ["x"], [1]),
    draft_7=({"$schema": DRAFT_7} | in_a({"if": {"type": "string"}, "then": {"minLength": 2}}), "xy", "x"),
    draft_7_without_fragment=({"$schema": DRAFT_7.rstrip("#")} | in_a(STRING_ITEMS), ["x"], [1]),
    draft_6=({"$schema": DRAFT_6} | in_a({"const": 1}), 1, 2),
    draft_4=({"$schema": DRAFT_4} | in_a({"minimum": 1, "exclusiveMinimum": True}), 2, 1),
    draft_3=({"$schema": DRAFT_3} | in_a({"divisibleBy": 3}), 9, 10),
    reference=({"$defs": {"n": {"type": "integer"}}} | in_a({"$ref": "#/$defs/n"}), 1, "x"),
    anchor=({"$defs": {"n": {"$anchor": "n", "type": "integer"}}} | in_a({"$ref": "#n"}), 1, "x"),
    id=({"$defs": {"n": {"$id": "urn:x:n", "type": "integer"}}} | in_a({"$ref": "urn:x:n"}), 1, "x"),
    relative_id=({"$id": "http://a/b", "$defs": {"n": {"$id": "n", "type": "integer"}}} | in_a({"$ref": "n"}), 1, "x"),
    dynamic=({"$defs": {"n": {"$dynamicAnchor": "n", "type": "integer"}}} | in_a({"$dynamicRef": "#n"}), 1, "x"),
    escaped=({"$defs": {"a/b~c d": {"type": "integer"}}} | in_a({"$ref": "#/$defs/a~1b~0c%20d"}), 1, "x"),
    recursive=({"type": ["object", "integer"]} | in_a({"$ref": "#"}), {"a": 1}, {"a": "x"}),
    null_in_a_property=(in_a({"anyOf": [in_a({"type": "null"}), {"type": "null"}]}), {"a": None}, {"a": 5}),
    null_twice=(in_a({"anyOf": [{"type": "null"}, {"type": "null"}]}), None, 5),
    null_or_a_number=(in_a({"anyOf": [{"type": "integer"}, {"type": "null"}]}), 5, "x"),
    null_or_a_string=(in_a({"anyOf": [{"type": "null"}, {"minLength": 2}]}), None, "x"),
    null_of_three=(in_a({"anyOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "null"}]}), None, "x"),
    unicode_property=(in_a({"pattern": r"^\p{Lu}\p{Ll}+$"}), "Élan", "élan"),
    script=(in_a({"pattern": r"^\p{Script=Greek}+$"}), "αβγ", "abc"),
    unanchored=(in_a({"pattern": "b"}), "abc", "ac"),
    look_around=(in_a({"pattern": r"^(?!.*--)[a-z-]+$"}), "a-b", "a--b"),
    look_behind=(in_a({"pattern": "(?<=a)(b)(?!c)"}), "ab", "abc"),
    named_groups=(in_a({"pattern": "^(?P<n>a)(?<m>b)$"}), "ab", "aa"),
    brackets_in_a_class=(in_a({"pattern": r"^[(](a)[]()]$"}), "(a]", "aa]"),
    escaped_brackets=(in_a({"pattern": r"^\((a)\)$"}), "(a)", "a"),
    group=(in_a({"pattern": r"^([ab])\1$"}), "aa", "ab"),
    group_by_name=(in_a({"pattern": "^(?P<n>[ab])(?P=n)$"}), "bb", "ab"),
    condition=(in_a({"pattern": "^(a)?(?(1)b|c)$"}), "ab", "ac"),
)


@pytest.mark.parametrize(("schema", "valid", "invalid"), VALIDATION_CASES)
def test_drafts_references_choices_and_patterns_are_validated(
    client: Client, schema: Any, valid: Any, invalid: Any
) -> None:
    assert submit_extensions(client, schema, {"a": valid}).status_code == 201
    errors = problems_of(submit_extensions(client, schema, {"a": invalid}))
    assert all(pointer.startswith("/extensions/a") and "cannot be used" not in errors[pointer] for pointer in errors)


SCHEMA_FAULTS = cases(
    list=([], ""),
    boolean=(True, ""),
    large=({"description": "x" * KIB * KIB}, ""),
    type=({"type": "strnig"}, "/type"),
    nested=(in_a({"minLength": -1}), "/properties/a/minLength"),
    in_a_list=({"allOf": [{}, {"required": "a"}]}, "/allOf/1/required"),
    in_definitions=({"$defs": {"a/b": {"type": 1}}}, "/$defs/a~1b/type"),
    pattern=(in_a({"pattern": "("}), "/properties/a/pattern"),
    pattern_in_definitions=({"$defs": {"x": {"pattern": "[z-a]"}}}, "/$defs/x/pattern"),
    pattern_of_property_names=({"patternProperties": {"(": {}}}, "/patternProperties/("),
    pattern_in_referenced_schema=({"custom": {"x": {"pattern": "*"}}, "$ref": "#/custom/x"}, "/$ref/pattern"),
    draft=({"$schema": "https://example.com/schema"}, "/$schema"),
    draft_number=({"$schema": 7}, "/$schema"),
    nested_draft=(in_a({"$schema": DRAFT_7}), "/properties/a/$schema"),
    id=({"$id": 1}, "/$id"),
    draft_4_id=({"$schema": DRAFT_4, "id": 1}, "/id"),
    nested_id=(in_a({"$id": 1}), "/properties/a/$id"),
    id_in_referenced_schema=({"$ref": "#/custom", "custom": in_a({"$id": 1})}, "/$ref/properties/a"),
    id_not_a_url=({"$id": "http://a.example/"} | in_a({"$id": "http://["}), "/properties/a"),
    missing_reference=(in_a({"$ref": "#/$defs/nope"}), "/properties/a/$ref"),
    reference_anchor=(in_a({"$ref": "#nope"}), "/properties/a/$ref"),
    reference_under_an_id=({"$id": "http://127.0.0.1:9/", "not": {"$ref": "x.json"}}, "/not/$ref"),
    reference_in_then=({"if": {}, "then": {"items": {"$ref": "x.json"}}}, "/then/items/$ref"),
    reference_dynamic=(in_a({"$dynamicRef": "http://127.0.0.1:9/#x"}), "/properties/a/$dynamicRef"),
    reference_draft_7=({"$schema": DRAFT_7, "items": [{}, {"$ref": "#/definitions/no"}]}, "/items/1/$ref"),
)


@pytest.mark.parametrize(("schema", "pointer"), SCHEMA_FAULTS)
def test_invalid_schema_is_rejected_with_a_pointer_to_the_fault(client: Client, schema: Any, pointer: str) -> None:
    client.register("web")
    for method, path, body in (("POST", "project-types", {"name": "a"}), ("PUT", "project-types/web", {})):
        response = client.open(f"{API}/{path}", method=method, json=body | {"extensionSchema": schema})
        assert_problem(response, 422, "validation_failed", f"/extensionSchema{pointer}")
    assert client.get(f"{API}/project-types/a").status_code == 404


@pytest.mark.parametrize("choice", ["anyOf", "oneOf"])
def test_failed_choices_do_not_keep_their_errors_in_memory(choice: str) -> None:
    schema = json.dumps(in_a({choice: [{"maxLength": number} for number in range(300)]}))
    text = json.dumps({"a": "x" * 200_000})
    (problem,), peak = peak_of(lambda: findings_service.check_extensions(schema, [(text, "")], 20.0))
    assert "not valid under any" in problem.detail
    assert peak < 5_000_000  # each message contains 200 kB


def doubling(levels: int, **more: Any) -> dict[str, Any]:
    """Return a schema in which each of `levels` definitions refers to the next one twice."""
    definitions: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2, **more} for n in range(levels)
    }
    return {"$defs": definitions | {f"d{levels}": {"type": "object"}}, "$ref": "#/$defs/d0"}


SLOW_CHECKS = cases(
    pattern=(in_a({"pattern": "^(a|a)*$"}), BACKTRACKING),
    pattern_of_property_names=({"patternProperties": {"^(a|aa)+$": {}}}, {"a" * 60 + "!": 1}),
    doubling=(doubling(30), {}),
    doubling_with_nested_draft=(doubling(30, **{"$schema": NEWEST}), {}),
    negation=({"not": {"$ref": "#/$defs/d0"}, "$defs": doubling(30)["$defs"]}, {}),
    unevaluated=(doubling(30) | {"unevaluatedProperties": False}, {"a": 1}),
)


@pytest.mark.parametrize(("schema", "extensions"), SLOW_CHECKS)
def test_slow_extension_check_times_out(
    client: Client, monkeypatch: pytest.MonkeyPatch, schema: Any, extensions: Any
) -> None:
    monkeypatch.setattr("findings_service.TASK_SHARE", 0.1 / 60)
    response = submit_extensions(client, schema, extensions)
    assert_problem(response, 422, "extension_check_timeout", "/extensions")
    assert client.read("tasks")["total"] == 0


SELF_REFERENCE = {"$ref": "#"}
ENDLESS_SCHEMAS = cases(
    negation={"not": SELF_REFERENCE},
    condition={"if": SELF_REFERENCE, "then": False},
    all_of={"allOf": [SELF_REFERENCE]},
    any_of={"anyOf": [SELF_REFERENCE, SELF_REFERENCE]},
    nullable={"anyOf": [SELF_REFERENCE, {"type": "null"}]},
    one_of={"oneOf": [SELF_REFERENCE]},
    one_of_twelve={"allOf": [reduce(lambda schema, _: {"oneOf": [schema]}, range(12), SELF_REFERENCE)]},
    dynamic={"$dynamicAnchor": "x", "$dynamicRef": "#x"},
    recursive={"$schema": DRAFT_2019, "$recursiveAnchor": True, "$recursiveRef": "#"},
    dependent={"dependentSchemas": {"a": SELF_REFERENCE}},
    names={"propertyNames": {"not": {"$ref": "#/propertyNames"}}},
    mutual={"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    unevaluated={"unevaluatedProperties": False, "if": SELF_REFERENCE},
    unevaluated_items=in_a({"unevaluatedItems": False, "contains": True, "oneOf": [{"$ref": "#/properties/a"}]}),
    bases={"$id": "http://a.example/x", "$defs": {"b": {"$id": "y", "$ref": "x"}}, "$ref": "y"},
    extends={"$schema": DRAFT_3, "extends": SELF_REFERENCE},
    disallow={"$schema": DRAFT_3, "disallow": [SELF_REFERENCE]},
    type={"$schema": DRAFT_3, "type": [SELF_REFERENCE]},
)


def at_depth(frames: int, function: Callable[[], Any]) -> Any:
    """Call a function with `frames` more frames on the stack."""
    return at_depth(frames - 1, function) if frames else function()


@pytest.mark.parametrize("schema", ENDLESS_SCHEMAS)
def test_endless_schema_is_reported_at_any_stack_depth(schema: Any, capfd: Any) -> None:
    message = "the project type's schema is nested too deeply, or refers to itself endlessly"
    text = json.dumps(schema)
    for extensions in ({"a": [1]}, {"a": [], **clients.nested(98)}):
        tasks = [(json.dumps(extensions), "/extensions")]
        for frames in (0, 100, 400, 700, 800):
            (problem,) = at_depth(frames, partial(findings_service.check_extensions, text, tasks, 10.0))
            assert (problem.detail, problem.pointer) == (message, "/extensions")
    assert capfd.readouterr().err == ""  # a panic would be printed here


def test_deeply_nested_value_is_validated_at_every_level(client: Client) -> None:
    schema = in_a({"anyOf": [SELF_REFERENCE, {"type": "string"}]}) | {"additionalProperties": False}
    assert submit_extensions(client, schema, clients.nested(95)).status_code == 201
    pointer = "/extensions" + "/a" * 60 + "/b"
    schema = in_a({"anyOf": [SELF_REFERENCE, {"type": "null"}]}) | {"additionalProperties": False}
    deep = reduce(lambda inner, _: {"a": inner}, range(60), {"b": 1})
    assert_problem(submit_extensions(client, schema, deep), 422, "validation_failed", pointer)


@pytest.mark.parametrize("error", [Panic, MemoryError, ZeroDivisionError])
def test_exception_during_validation_is_reported_in_the_response(
    client: Client, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.register("web", in_a({"not": {"pattern": "b"}}))
    run = client.start()
    monkeypatch.setattr(findings_service, "matches", lambda *_: (_ for _ in ()).throw(error("panicked")))
    errors = problems_of(client.post(f"{API}/runs/{run}/tasks", json=task(extensions={"a": "x"})))
    assert errors == {"/extensions": "the project type's schema cannot be used for validation: panicked"}
    monkeypatch.setattr(findings_service, "draft_of", lambda *_: (_ for _ in ()).throw(error("panicked")))
    errors = problems_of(client.post(f"{API}/project-types", json={"name": "b", "extensionSchema": {}}))
    assert errors == {"/extensionSchema": "the schema cannot be used for validation: panicked"}


POINTER_CASES = cases(
    false=(in_a(False), {"a": "x" * 300}, [""]),
    omitted=(WCAG_SCHEMA, ..., ["/wcag"]),
    null=(WCAG_SCHEMA, None, ["/wcag"]),
    escaped=(WCAG_SCHEMA, {"wcag": "1.1.1", "a/b~": 1}, ["/a~1b~0"]),
    required=({"required": ["a'b"]}, {}, ["/a'b"]),
    empty_name=({"required": [""]}, {}, ["/"]),
    dependent=({"dependentRequired": {"a": ["b", "c"]}}, {"a": 1}, ["/b", "/c"]),
    dependencies=({"$schema": DRAFT_7, "dependencies": {"a": ["b"]}}, {"a": 1}, ["/b"]),
    dependency_of_draft_3=({"$schema": DRAFT_3, "dependencies": {"a": "b"}}, {"a": 1}, ["/b"]),
    required_of_draft_3=({"$schema": DRAFT_3, **in_a({"required": True})}, {}, ["/a"]),
    additional_property=({"additionalProperties": False}, {"'\"": 1, "b, c": 2}, ["/'\"", "/b, c"]),
    additional_beside_patterns=(
        {"additionalProperties": False, "patternProperties": {"^a": {}}},
        {"a1": 1, "b": 1, "c": 1},
        ["/b", "/c"],
    ),
    unevaluated=({"anyOf": [in_a({})], "unevaluatedProperties": False}, {"a": 1, "b'": 1}, ["/b'"]),
    unevaluated_of_wrong_type=({"unevaluatedProperties": {"type": "string"}}, {"a": 1, "b": "x"}, ["/a"]),
    unevaluated_items=(
        in_a({"prefixItems": [{}], "unevaluatedItems": {"type": "string"}}),
        {"a": [1, "x", 2]},
        ["/a/2"],
    ),
)


@pytest.mark.parametrize(("schema", "extensions", "pointers"), POINTER_CASES)
def test_error_pointers_name_the_invalid_members(
    client: Client, schema: Any, extensions: Any, pointers: list[str]
) -> None:
    problem = assert_problem(submit_extensions(client, schema, extensions), 422, "validation_failed")
    assert [error["pointer"] for error in problem["errors"]] == [f"/extensions{pointer}" for pointer in pointers]


COSTLY_PATTERNS = (
    *("(?R)?a", "(a)(?1)", "(?P<a>b)(?&a)", "((a{1000}){1000}){1000}", "(?x)( a{1000} # (\n ){1000}"),
    *("(?:a{500}){500}", "(a{400}(b{300}){300}){2}", "a" * 2001),
)
HOSTILE_SCHEMAS = cases(
    **{ascii(each)[:30]: (in_a({"pattern": each}), "/properties/a/pattern") for each in COSTLY_PATTERNS},
    repetitions=({"patternProperties": {f"(a{{1000}}){{{500 + n}}}": {} for n in range(8)}}, None),
    doubling=(doubling(40), None),
    references=(
        {"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{m}"} for m in range(100)]} for n in range(100)}},
        None,
    ),
    wide=({"properties": {f"p{n}": {"pattern": f"^{n}$"} for n in range(20_000)}}, None),
    required=({"required": [f"p{n}" for n in range(20_000)]}, None),
    deep_pattern=(in_a({"pattern": "(" * 900 + ")" * 900}), None),
)


@pytest.mark.parametrize(("schema", "pointer"), HOSTILE_SCHEMAS)
def test_registering_a_hostile_schema_takes_bounded_time(
    make_app: Callable[..., flask.Flask], schema: Any, pointer: str | None
) -> None:
    client = client_of(make_app(schema_timeout="2s"))
    with servers.at_most(30):
        response = client.post(f"{API}/project-types", json={"name": "a", "extensionSchema": schema})
    assert response.status_code in (201, 422)
    if pointer:
        assert_problem(response, 422, "validation_failed", f"/extensionSchema{pointer}")


def test_tasks_of_a_request_share_its_schema_timeout(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def match_in_five_seconds(*_: Any) -> bool:
        nonlocal now
        now += 5
        findings_service.tick()
        return True

    client.register("slow", in_a({"not": {"pattern": "b"}}))
    run, now = client.start("slow"), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(findings_service, "matches", match_in_five_seconds)
    response = client.post(f"{API}/runs/{run}/tasks", json={"tasks": [task(extensions={"a": "x"})] * 20})
    assert_problem(response, 422, "extension_check_timeout", "/tasks/12/extensions")


@pytest.mark.parametrize("error", [ImportError, Panic])
def test_extensions_are_validated_alike_without_jsonschema_rs(
    client: Client, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    failing = SimpleNamespace(validator_for=lambda *_, **__: (_ for _ in ()).throw(error("panicked")))
    monkeypatch.setitem(sys.modules, "jsonschema_rs", failing)
    schema = {**WCAG_SCHEMA, "title": f"validated by jsonschema alone: {error}"}
    client.register("web", schema)
    run = client.start()
    response = client.post(f"{API}/runs/{run}/tasks", json=task(extensions={"wcag": "one"}))
    assert problems_of(response).keys() == {"/extensions/wcag"}
    assert client.post(f"{API}/runs/{run}/tasks", json=task(extensions={"wcag": "1.1.1"})).status_code == 201


def test_long_pattern_on_long_text_is_reported_as_a_timeout(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + 1900)))  # one step over 250,000 characters takes 14 s
    client.register("slow", in_a({"pattern": f"[{letters}a]+\\p{{Greek}}"}))
    path = f"{API}/runs/{client.start('slow')}/tasks"
    assert_problem(client.post(path, json=task(extensions={"a": "aa"})), 422, "validation_failed")
    monkeypatch.setattr("findings_service.cached_pattern", scenarios.raise_panic)
    long = client.post(path, json=task(extensions={"a": "a" * 250_000}))
    assert_problem(long, 422, "extension_check_timeout", "/extensions")


def test_api_patterns_are_applied_to_the_longest_texts(client: Client, run: str) -> None:
    image = f"data:image/png;base64,{'a' * 260_000}"
    response = client.post(f"{API}/runs/{run}/tasks", json=task(severity="x", evidence=[{"url": image}]))
    assert problems_of(response).keys() == {"/severity"}
    for query in ("externalId", "location", "rule"):
        assert client.read("tasks", **{query: "a" * 400_000, "limit": 1})["total"] == 0


@pytest.mark.parametrize("query", ["status=" + "open," * 6000 + "x", "&".join(f"rule={n},{n}a" for n in range(3000))])
def test_too_many_filter_values_are_rejected(client: Client, query: str) -> None:
    name = query.partition("=")[0]
    detail = assert_problem(client.get(f"{API}/tasks?{query}"), 400, "invalid_parameter", name)["detail"]
    assert "1,000 values" in detail


@pytest.mark.modules
def test_only_first_2000_characters_of_accept_are_read(client: Client, run: str) -> None:
    for padding, content_type in ((10, "text/csv"), (100_000, "application/json")):
        response = client.get(f"{API}/tasks", headers={"Accept": "a/b," * padding + "text/csv"})
        assert (response.status_code, response.mimetype) == (200, content_type)


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return command(*arguments, program=(sys.executable, "-c", code))


def test_cached_patterns_use_little_memory_after_long_searches() -> None:
    code = """
import findings_service as core
def memory(): return int(open("/proc/self/status").read().split("VmRSS:")[1].split()[0]) // 1024
before = memory()
for number in range(10):
    for pattern in ("^((((((((((a))))))))))*$", "^(?:a{1,3}){2,}?$", "^(a)(((((a)))))*\\\\1$"):
        try:
            with core.TimeLimit(0.25):
                core.matches(f"{pattern}|x{{{number + 1}}}", "a" * 100_000)
        except core.OutOfTime:
            pass
print(memory() - before)
"""
    groups = [findings_service.compile_pattern(each).groups for each in ("(?P<n>a)(b)", r"([ab])\1", "(a)?(?(1)b|c)")]
    assert groups == [0, 1, 1]  # without references, groups are not captured
    assert 0 < int(run_python(code).stdout) < 180  # MiB; more than 260 if all groups were captured


# --- Project types ---------------------------------------------------------


def test_registering_the_same_project_type_again_changes_nothing(client: Client) -> None:
    response = client.post(f"{API}/project-types", json=DEFINITION)
    created = response.json
    assert (response.status_code, set(created)) == (201, TYPE_FIELDS | {"extensionSchema"})
    assert {name: created[name] for name in DEFINITION} == DEFINITION
    assert response.headers["Location"] == f"{API}/project-types/web-a11y"
    shuffled = json.dumps(dict(reversed(DEFINITION.items())), sort_keys=True, indent=2)
    again = client.send("POST", f"{API}/project-types", shuffled)
    assert (again.status_code, again.json) == (200, created)
    assert client.read("project-types/web-a11y") == created
    client.register("bare")
    bare = {"name": "bare", "label": "bare", "description": "", "extensionSchema": None}
    assert client.post(f"{API}/project-types", json=bare).status_code == 200


def test_different_definition_of_a_type_conflicts_within_its_client(app: flask.Flask, client: Client) -> None:
    first = client.post(f"{API}/project-types", json=DEFINITION).json
    for change in ({"label": "x"}, {"description": ""}, {"extensionSchema": {}}):
        assert_problem(client.post(f"{API}/project-types", json=DEFINITION | change), 409, "project_type_exists")
    other_client = client_of(app, client="other")
    assert other_client.register("web-a11y", {"required": ["other"]})["id"] != first["id"]
    assert client.read("project-types/web-a11y") == first
    for owner, status in ((client, 201), (other_client, 422)):  # each client has its own schema
        path = f"{API}/runs/{owner.start('web-a11y')}/tasks"
        assert owner.post(path, json=task(extensions={"wcag": "1.1.1"})).status_code == status


def test_project_types_are_listed_by_name_without_schemas(client: Client) -> None:
    names = [f"t{n:03}" for n in range(120)]
    for name in random.Random(5).sample(names, len(names)):
        client.register(name, WCAG_SCHEMA)
    listed = client.read("project-types")
    assert set(listed) == {"projectTypes"}
    assert [item["name"] for item in listed["projectTypes"]] == names
    assert all(set(item) == TYPE_FIELDS for item in listed["projectTypes"])
    assert_problem(client.get(f"{API}/project-types?page=1"), 400, "invalid_parameter", "page")


@pytest.mark.parametrize("name", ["a", "9", "A.b_c-d", "x" * 100])
def test_project_type_at_the_length_limits_is_accepted(client: Client, name: str) -> None:
    body = {"name": name, "label": "é" * 200, "description": "é" * 10_000}
    response = client.post(f"{API}/project-types", json=body)
    assert response.status_code == 201
    assert {field: client.read(f"project-types/{name}")[field] for field in body} == body
    assert client.read("runs", projectType=name)["total"] == 0


def test_number_of_project_types_per_client_is_limited(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("findings_service.MAX_PROJECT_TYPES", 2)
    for name in ("a", "b", "a"):
        client.register(name)
    problem = assert_problem(client.post(f"{API}/project-types", json={"name": "c"}), 422, "validation_failed", "/name")
    assert "2" in problem["errors"][0]["detail"]
    assert client.put(f"{API}/project-types/b", json={"label": "B"}).status_code == 200
    client_of(client.application, client="other").register("c")


def test_total_size_of_a_clients_labels_and_descriptions_is_limited(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("findings_service.PROJECT_TYPES_TEXT", 100)
    path = f"{API}/project-types"
    assert client.post(path, json={"name": "a", "label": "é", "description": "é" * 19}).status_code == 201
    for method, body in (
        (client.post, {"name": "b", "description": "x" * 60}),
        (client.post, {"name": "b", "description": '"' * 30}),
        (client.put, {"description": "x" * 100}),
    ):
        target = path if method == client.post else f"{path}/a"
        assert_problem(method(target, json=body), 422, "validation_failed", "/description")
    assert client.post(path, json={"name": "b", "description": "x" * 59}).status_code == 201
    assert client.put(f"{path}/b", json={"description": "x" * 59}).status_code == 200


def test_put_project_type_resets_omitted_fields_to_defaults(client: Client) -> None:
    first = client.post(f"{API}/project-types", json=DEFINITION).json
    replaced = client.put(f"{API}/project-types/web-a11y", json={"description": "New.", "name": "web-a11y"}).json
    assert replaced == first | {"label": "web-a11y", "description": "New.", "extensionSchema": None}
    assert client.read("project-types/web-a11y") == replaced
    whole = client.put(f"{API}/project-types/web-a11y", json={k: v for k, v in DEFINITION.items() if k != "name"}).json
    assert whole == first
    other = client.put(f"{API}/project-types/web-a11y", json={"name": "cli"})
    assert_problem(other, 422, "validation_failed", "/name")
    assert_problem(client.put(f"{API}/project-types/cli", json={"name": "cli"}), 404, "not_found")


def test_new_schema_even_with_nul_applies_only_to_new_tasks(client: Client, run: str) -> None:
    task_id, schema = client.add(run, extensions={"wcag": 1}), WCAG_SCHEMA | {"not": {"const": "\0"}}
    assert client.register("nul", schema)["extensionSchema"] == schema
    assert client.put(f"{API}/project-types/web", json={"extensionSchema": schema}).status_code == 200
    assert client.read(f"tasks/{task_id}")["extensions"] == {"wcag": 1}
    assert client.triage(task_id, "dismissed")["extensions"] == {"wcag": 1}
    response = client.post(f"{API}/runs/{run}/tasks", json=task(extensions={"wcag": 1}))
    assert_problem(response, 422, "validation_failed", "/extensions/wcag")


# --- Limits and settings ---------------------------------------------------


def test_default_limits_are_as_documented() -> None:
    settings = Settings.read()
    assert (settings.max_body, settings.max_batch) == (16 * 1024 * KIB, 1000)
    assert (settings.busy_timeout, settings.run_timeout, settings.schema_timeout) == (10, 24 * 3600, 2)
    assert settings.schema_timeout * findings_service.TASK_SHARE == 0.25  # for one task


SETTINGS = (
    *(("max_body", "1000", 1000), ("max_batch", "3", 3), ("busy_timeout", "2.5", 2.5), ("db", "/x/y.db", "/x/y.db")),
    *(("run_timeout", text, seconds) for text, seconds in (("5m", 300), ("2h", 7200), ("7d", 7 * 86400))),
    *(("cache", "1048576", KIB * KIB), ("cache", "2048k", 2048 * KIB), ("cache", "256M", 256 * KIB * KIB)),
    *(("cache", "1g", KIB * KIB * KIB), ("schema_timeout", "4s", 4)),
)


@pytest.mark.parametrize(("name", "text", "value"), SETTINGS)
def test_settings_are_read_from_environment(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: Any) -> None:
    monkeypatch.setenv(f"FINDINGS_{name.upper()}", text)
    assert getattr(Settings.read(), name) == value


def assert_one_line(result: subprocess.CompletedProcess[str], *expected: str) -> None:
    """Check that a command failed with one line on stderr that contains all expected texts."""
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1), result.stderr
    assert all(each in result.stderr for each in expected), result.stderr


BAD_SETTINGS = [
    (f"FINDINGS_{name}", text)
    for name, *texts in (
        *(("DB", ":memory:"), ("API_KEY", "guessable"), ("KEEP", "59m"), ("LOG", "yes"), ("METRICS", "2")),
        *(("MAX_BODY", "big", "0"), ("MAX_BATCH", "1.5"), ("SYNCHRONOUS", "OFF"), ("RUN_TIMEOUT", "3w")),
        *(("BUSY_TIMEOUT", "-1"), ("SCHEMA_TIMEOUT", "inf"), ("CACHE", "big", "1023k", "1t", "99999999g")),
        ("BASE_URL", "tools.example/findings", "https://tools.example/?a=b"),
    )
    for text in texts
]


@pytest.mark.parametrize(("variable", "text"), BAD_SETTINGS)
def test_invalid_setting_stops_the_start_with_one_line(tmp_path: Path, variable: str, text: str) -> None:
    env = {"FINDINGS_DB": str(tmp_path / "x.db"), variable: text}
    result = command("serve", "--port", "0", **env)
    assert_one_line(result, variable)


def test_body_or_batch_over_the_limit_is_rejected(make_app: Callable[..., flask.Flask]) -> None:
    client, run = with_a_run(make_app(max_body="1000", max_batch="2"))
    path, body = f"{API}/runs/{run}/tasks", json.dumps(task(description=""))
    largest = json.dumps(task(description="x" * (1000 - len(body))))
    assert client.send("POST", path, largest).status_code == 201
    assert_problem(client.send("POST", path, largest + " "), 413, "body_too_large")
    assert client.submit(run, task(), task())["created"] == 2
    assert_problem(client.post(path, json={"tasks": [task()] * 3}), 422, "validation_failed", "/tasks")
    assert client.read("tasks")["total"] == 3


@pytest.mark.sqlite
def test_commits_are_durable_by_default(tmp_path: Path) -> None:
    app = create_app(db=db_at(tmp_path / "default.db"))
    for connection in (clients.writer_of(app), clients.reader_of(app)):
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA fullfsync").fetchone() == (1,)
        assert connection.execute("PRAGMA checkpoint_fullfsync").fetchone() == (1,)
    database_of(app).close()


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/nowhere", 404), ("PUT", f"{API}/runs", 405)])
def test_rejected_request_does_not_wait_for_a_lock(server: Server, method: str, path: str, status: int) -> None:
    with locked(server.db):
        assert server.request(method, path, "{}").status_code == status
        assert server.request("POST", f"{API}/runs", "{}", key="x").status_code == 401


# --- Health and OpenAPI ----------------------------------------------------


def test_health_needs_no_key_and_returns_the_versions(app: flask.Flask) -> None:
    response = app.test_client().get("/healthz")
    assert (response.status_code, response.json["status"]) == (200, "ok")
    name, version = database_of(app).engine
    assert response.json[name.lower()] == version
    assert response.json["version"] == findings_service.__version__


def test_result_of_the_health_probe_is_cached(app: flask.Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    probed = list[int]()
    monkeypatch.setattr(type(database_of(app)), "probe", lambda _: probed.append(1))
    for seconds, probes in ((-1, 3), (60, 4)):
        with monkeypatch.context() as patched:
            patched.setattr(findings_service, "HEALTH_KEPT", seconds)
            assert [app.test_client().get("/healthz").status_code for _ in range(3)] == [200] * 3
        assert len(probed) == probes


@pytest.mark.sqlite
def test_health_check_does_not_change_the_database_files(serve: Callable[..., Server]) -> None:
    server = serve(program=servers.program_with(HEALTH_KEPT=0, MAINTENANCE_PAUSE=600))
    server.start_run()
    before = database_files(server.db.parent)
    for _ in range(3):
        assert server.request("GET", "/healthz", key="fts_none").status_code == 200
    assert database_files(server.db.parent) == before


# --- Embedding -------------------------------------------------------------


def test_host_application_keeps_its_pages_and_configuration(host: flask.Flask, guest: FlaskClient) -> None:
    host_config = {"MAX_CONTENT_LENGTH": 123_456_789, "HOST_SETTING": "host"}
    assert dict(host.config) == {**flask.Flask("host").config, **host_config}
    host.config["PROPAGATE_EXCEPTIONS"] = False
    responses = [guest.get("/nothing"), guest.post("/page"), guest.get("/broken")]
    assert [(each.status_code, each.text) for each in responses] == [(n, f"host's {n}") for n in (404, 405, 500)]
    assert guest.get("/page").content_type == "application/vnd.host+json"


def test_embedded_service_returns_its_own_error_responses(guest: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_problem(guest.get("/findings/api/v1/nothing"), 404, "not_found")
    assert_problem(guest.delete("/findings/api/v1/tasks"), 405, "method_not_allowed")
    assert_problem(guest.get("/findings/api/v1/tasks/x"), 404, "not_found")
    assert_problem(
        guest.post("/findings/api/v1/runs", data="x", content_type="application/json"), 400, "malformed_json"
    )
    assert_problem(guest.get("/findings/api/v1/tasks", headers={"Authorization": ""}), 401, "unauthorized")
    monkeypatch.setattr(findings_service, "select_project_types", lambda *_: 1 // 0)
    assert_problem(guest.get("/findings/api/v1/project-types"), 500, "internal_error")


def test_body_limit_of_the_host_is_checked_before_the_content_type(host: flask.Flask, guest: FlaskClient) -> None:
    host.config["MAX_CONTENT_LENGTH"] = 1000
    for content_type in ("application/json", "text/plain"):
        body = {"data": b"x" * 1001, "content_type": content_type}
        assert_problem(guest.post("/findings/api/v1/runs", **body), 413, "body_too_large")
    assert_problem(
        guest.post("/findings/api/v1/runs", data=b"x", content_type=content_type), 415, "unsupported_media_type"
    )


def start_run_with_tasks(client: FlaskClient, prefix: str) -> Any:
    """Start a run with three tasks; return the responses that created its project type and the run."""
    registered = client.post(f"{prefix}/project-types", json={"name": "web"})
    started = client.post(f"{prefix}/runs", json={"projectType": "web"})
    client.post(f"{prefix}/runs/{started.json['id']}/tasks", json={"tasks": [task()] * 3})
    return registered, started


LINKS = cases(
    alone=("", "", "", ""),
    blueprint=("", "/inner", "", "/inner"),
    mounted=("", "", "/tools", "/tools"),
    both=("", "/inner", "/tools", "/tools/inner"),
    base_url=("https://tools.example/x", "", "", "/x"),
    base_url_with_slash=("http://tools.example:8080/x/", "", "", "/x"),
    base_url_with_blueprint=("https://tools.example", "/inner", "/tools", ""),
    blueprint_with_non_ascii_path=("", "/测试 a", "", "/%E6%B5%8B%E8%AF%95%20a"),
    mounted_at_non_ascii_path=("", "", '/é 5%"', "/%C3%A9%205%25%22"),
    non_ascii_base_url=("https://bücher.example/ü%20测", "", "", "/%C3%BC%20%E6%B5%8B"),
)


@pytest.mark.modules
@pytest.mark.parametrize(("base_url", "prefix", "mount", "start"), LINKS)
def test_links_begin_with_the_base_url_or_the_mount_path(
    tmp_path: Path, base_url: str, prefix: str, mount: str, start: str
) -> None:
    app = flask.Flask("host")
    blueprint = create_blueprint(Settings.read(db=db_at(tmp_path / "x.db"), base_url=base_url or None))
    app.register_blueprint(blueprint, url_prefix=prefix or None)
    app.extensions["findings"] = blueprint.service
    inner_app = app.wsgi_app
    app.wsgi_app = lambda environ, start: inner_app(environ | {"SCRIPT_NAME": mount.encode().decode("latin-1")}, start)
    guest = app.test_client()
    guest.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {clients.make_key(app)}"
    registered, started = start_run_with_tasks(guest, f"{prefix}{API}")
    assert registered.headers["Location"] == f"{start}{API}/project-types/web"
    assert started.headers["Location"] == f"{start}{API}/runs/{started.json['id']}"
    link = guest.get(f"{prefix}{API}/tasks?limit=2").json["next"]
    assert link.startswith(f"{start}{API}/tasks?")
    assert len(guest.get(f"{prefix}{link.removeprefix(start)}").json["tasks"]) == 1
    exported = guest.get(f"{prefix}{API}/tasks?limit=1", headers={"Accept": "text/csv"})
    assert exported.headers["Link"].startswith(f"<{start}{API}/tasks?limit=1&")
    server = guest.get(f"{prefix}{API}/openapi.json").json["servers"][0]["url"]
    assert server.endswith(start) if base_url else server.isascii()
    blueprint.service.database.close()


def test_two_services_in_one_application_are_independent(tmp_path: Path) -> None:
    app = flask.Flask("host")
    blueprints = {name: create_blueprint(Settings(db=db_at(tmp_path / f"{name}.db")), name) for name in ("one", "two")}
    for name, blueprint in blueprints.items():
        app.register_blueprint(blueprint, url_prefix=f"/{name}")
    guests = {}
    for name, blueprint in blueprints.items():
        app.extensions["findings"] = blueprint.service
        guests[name] = app.test_client()
        guests[name].environ_base["HTTP_AUTHORIZATION"] = f"Bearer {clients.make_key(app)}"
    start_run_with_tasks(guests["one"], "/one/api/v1")
    assert guests["one"].get("/one/api/v1/tasks").json["total"] == 3
    assert guests["two"].get("/two/api/v1/tasks").json["total"] == 0
    assert_problem(guests["one"].get("/two/api/v1/tasks"), 401, "unauthorized")
    for blueprint in blueprints.values():
        blueprint.service.database.close()


def test_warning_for_a_misspelled_variable_suggests_the_nearest(tmp_path: Path) -> None:
    variables = ("METRIC", "KYE", "PROXY_KEY", "UNRELATED", "URL", "BUSY_TIMEOUT")
    env = {f"FINDINGS_{name}": "1" for name in variables}
    result = command("keys", "list", "--db", str(tmp_path / "x.db"), **env)
    warning = "FINDINGS_{} is not a setting; did you mean FINDINGS_{}?"
    assert result.stderr.splitlines()[:-1] == [warning.format("KYE", "KEY"), warning.format("METRIC", "METRICS")]


def test_settings_object_and_keyword_settings_cannot_be_combined(tmp_path: Path) -> None:
    with pytest.raises(findings_service.ConfigurationError, match="not both: max_body"):
        create_app(Settings(db=db_at(tmp_path / "x.db")), max_body="1")


def test_unclosed_application_exits_without_error_output(tmp_path: Path) -> None:
    program = (
        "import sys; from findings_service import create_app; app = create_app(db=sys.argv[1]);"
        "assert [app.test_client().get(path).status_code for path in ('/healthz', '/api/v1/tasks')] == [200, 401];"
        "app.extensions['findings'].database.reading().__enter__()"
    )
    result = run_python(program, db_at(tmp_path / "x.db"))
    assert (result.returncode, result.stderr) == (0, "")
    assert not (tmp_path / "x.db-wal").exists()


def test_api_key_none_does_not_accept_the_text_none(tmp_path: Path) -> None:
    app = create_app(db=db_at(tmp_path / "x.db"), api_key=None)
    assert app.test_client().get(f"{API}/tasks", headers={"Authorization": "Bearer None"}).status_code == 401
    database_of(app).close()


BEFORE_FORKING = """
import os, signal, subprocess, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from findings_service import create_app

def register(name):
    headers = {"Authorization": "Bearer a-key-of-the-environment"}
    responses = [app.test_client().get("/api/v1/project-types", headers=headers),
        app.test_client().post("/api/v1/project-types", json={"name": name}, headers=headers)]
    return [response.status_code for response in responses]

app = create_app(db=sys.argv[1], api_key="a-key-of-the-environment")
"""
FORKING = """
if os.fork() == 0:
    first = register("web")
    subprocess.run([sys.executable, "findings_service.py", "keys", "list", "--db", sys.argv[1]], check=True)
    os._exit(0 if first == register("later") == [200, 201] else 1)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_writes_acknowledged_by_a_forked_worker_are_stored(tmp_path: Path) -> None:
    result = run_python(BEFORE_FORKING + FORKING, db_at(tmp_path / "x.db"))
    assert result.returncode == 0, result.stderr
    with connect_directly(tmp_path / "x.db") as connection:
        names = connection.execute("SELECT name FROM project_types ORDER BY name").fetchall()
    assert names == [("later",), ("web",)]


FORKING_DURING_A_TRANSACTION = """
def write():
    with database.transaction():
        writing.set()
        done.wait()

assert register("before") == [200, 201]
database, writing, done = app.extensions["findings"].database, threading.Event(), threading.Event()
threading.Thread(target=write).start()
writing.wait()
if os.fork() == 0:
    signal.alarm(5)
    refused = register("child")
    database.close()
    os._exit(0 if refused == [503] * 2 else 1)
assert os.wait()[1] == 0
done.set()
assert register("parent") == [200, 201]
"""


@pytest.mark.sqlite
def test_fork_with_an_open_database_blocks_no_process(tmp_path: Path) -> None:
    result = run_python(BEFORE_FORKING + FORKING_DURING_A_TRANSACTION, db_at(tmp_path / "x.db"))
    assert (result.returncode, result.stderr) == (0, "")
    assert integrity_errors_of(tmp_path / "x.db") == []


@pytest.mark.parametrize("reading", ["get_data", "get_json"])
def test_host_may_read_the_body_before_the_service(host: flask.Flask, guest: FlaskClient, reading: str) -> None:
    host.before_request(lambda: getattr(flask.request, reading)() and None)
    assert guest.post("/findings/api/v1/project-types", json={"name": "web"}).status_code == 201


class HostError(Exception):
    """Exception raised by a host application."""


@pytest.mark.parametrize(
    ("raised", "status"), cases(error=(HostError(), 418), abort=(403, 403), not_found=(404, 404), too_large=(413, 413))
)
def test_errors_raised_by_the_host_go_to_its_error_handlers(
    host: flask.Flask, guest: FlaskClient, raised: Any, status: int
) -> None:
    def fail() -> None:
        if isinstance(raised, Exception):
            raise raised
        flask.abort(raised)

    host.before_request(fail)
    for error in (403, 413, HostError):
        host.register_error_handler(error, lambda _: ("host's error", status))
    response = guest.get("/findings/api/v1/tasks")
    assert response.status_code == status
    assert response.text.startswith("host's ")


# --- Command line and server -----------------------------------------------


@pytest.mark.modules
def test_first_start_prints_a_key_once_with_an_example_request(serve: Callable[..., Server]) -> None:
    first = serve()
    assert {*clients.KEY.findall(first.startup_output)} == {first.key}
    assert f"http://127.0.0.1:{first.port}/#key={first.key}\n" in first.startup_output
    assert re.search(rf"curl .*http://127\.0\.0\.1:{first.port}{API}/", first.startup_output)
    assert first.request("PUT", f"{API}/project-types/x", {}).status_code == 404
    assert first.stop() == 0
    second = serve(until=r"http://127\.0\.0\.1:\d+")
    assert not clients.KEY.search(second.startup_output)
    assert second.request("GET", f"{API}/tasks", key=first.key).status_code == 200


@pytest.mark.modules
@pytest.mark.parametrize("workers", ["1", "2"])
def test_failed_start_creates_no_key(serve: Callable[..., Server], tmp_path: Path, workers: str) -> None:
    race = "from findings_adapters.serving import processes; processes.free_port = lambda host, port: port"
    # The port is taken, but the check before the start does not notice it.
    program = (sys.executable, "-c", f"{IMPORT_CORE}; {race}; findings_service.main()")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        line = ("serve", "--port", str(listener.getsockname()[1]), "--workers", workers)
        result = command(*line, "--db", str(tmp_path / "served.db"), program=program)
    assert (result.returncode, clients.KEY.search(result.stderr)) == (1, None)
    assert serve().request("GET", f"{API}/tasks").status_code == 200


@pytest.mark.parametrize("absent", ["click", "flask", "jsonschema", "msgspec", "werkzeug"])
def test_missing_package_is_reported_in_one_line(absent: str) -> None:
    program = (
        "import runpy, sys; name, sys.argv = sys.argv[1], sys.argv[2:]; sys.modules[name] = None;"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    result = run_python(program, absent, str(HERE / "findings_service.py"), "--help")
    assert_one_line(result, f"The package {absent} is not installed. ", "pip install .")
    assert result.stdout == ""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="requires /proc/self/fd")
def test_closed_standard_streams_are_replaced_by_dev_null() -> None:
    code = "print(*(os.readlink(f'/proc/self/fd/{number}') for number in (0, 2)))"
    program = f"{IMPORT_CORE}, click, os; look = click.Command('look', callback=lambda: {code})"
    program += "; findings_service.main.add_command(look); findings_service.main(['look'])"
    line = ["bash", "-c", 'exec "$@" <&- 2>&-', "bash", sys.executable, "-c", program]
    result = subprocess.run(
        line, cwd=CORE_FOLDER, env=environment(), stdout=subprocess.PIPE, text=True, check=False, timeout=PATIENCE
    )
    assert result.stdout == "/dev/null /dev/null\n"


@pytest.mark.modules
@pytest.mark.parametrize("errors", ["2>&-", "2>/dev/full"])
def test_start_with_unwritable_stderr_creates_no_key(serve: Callable[..., Server], tmp_path: Path, errors: str) -> None:
    db, port = str(tmp_path / "served.db"), servers.free_port()
    line = ["bash", "-c", f'exec "$@" {errors}', "bash", *servers.PROGRAM, "serve", "--port", str(port), "--db", db]
    with subprocess.Popen(line, cwd=CORE_FOLDER, env=environment()) as process:
        try:
            with socket.socket() as probe:
                wait_until(lambda: not probe.connect_ex(("127.0.0.1", port)))
            time.sleep(0.5)  # meanwhile, the process prints its startup message
            assert "first" not in invoke("keys", "list", "--db", db).stdout
        finally:
            process.terminate()
    assert process.returncode == 0
    assert clients.KEY.search(serve().startup_output)


def test_keys_create_prints_only_the_key_to_stdout(tmp_path: Path) -> None:
    result = command("keys", "create", "ci", "--new", "--expires", "90d", FINDINGS_DB=str(tmp_path / "x.db"))
    assert result.returncode == 0
    assert re.fullmatch(clients.KEY.pattern + "\n", result.stdout)
    for expected in ("Client 'default' was created", "level agent", db_at(tmp_path / "x.db")):
        assert expected in result.stderr
    assert not clients.KEY.search(result.stderr)


UNWRITABLE_OUTPUTS = cases(
    list_to_full_disk=("keys list >/dev/full", 1),
    list_to_broken_pipe=("keys list >&3", 0),
    errors_to_broken_pipe=("keys revoke unknown 2>&3", 1),
    usage_to_full_disk=("keys none 2>/dev/full", 2),
    help_to_full_disk=("--help >/dev/full", 1),
    new_key_to_full_disk=("keys create lost >/dev/full", 1),
    new_key_to_closed_stdout=("keys create lost >&-", 1),
    backup_with_closed_stderr=("backup $FINDINGS_DB.copy 2>&-", 1 if ON_POSTGRES else 0),
)


@pytest.mark.modules
@pytest.mark.parametrize(("words", "code"), UNWRITABLE_OUTPUTS)
def test_exit_code_of_a_command_with_unwritable_output(app: flask.Flask, tmp_path: Path, words: str, code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    env = environment(PYTHONUNBUFFERED="", FINDINGS_DB=db_at(tmp_path / "findings.db"))  # stdout is flushed at exit
    line = ["bash", "-c", f'exec 3>&{writer}; exec "$@" {words}', "bash", *servers.PROGRAM]
    result = subprocess.run(
        line, cwd=CORE_FOLDER, capture_output=True, text=True, env=env, pass_fds=[writer], check=False
    )
    os.close(writer)
    assert (result.returncode, "Traceback" in result.stderr) == (code, False), result.stderr
    assert "lost" not in invoke("keys", "list", "--db", str(tmp_path / "findings.db")).stdout


def test_names_of_live_keys_are_unique_per_client(app: flask.Flask, tmp_path: Path) -> None:
    def create(*options: str) -> int:
        return invoke("keys", "create", "ci", *options, "--db", str(tmp_path / "findings.db")).exit_code

    assert [create(), create(), create("--client", "other")] == [0, 1, 0]
    assert invoke("keys", "revoke", "ci", "--db", str(tmp_path / "findings.db")).exit_code == 0
    assert [create("--expires", "0.01s"), time.sleep(0.02), create()] == [0, None, 0]


def test_key_is_revoked_by_name_or_id(app: flask.Flask, tmp_path: Path) -> None:
    db = ("--db", str(tmp_path / "findings.db"))
    for client in ("default", "other"):
        invoke("keys", "create", "ci", "--client", client, *db)
    assert invoke("keys", "revoke", "ci", "--client", "other", *db).exit_code == 0
    listed = invoke("keys", "list", *db).stdout.splitlines()
    assert [line.split()[1] for line in listed if line.endswith("-")] == ["default"]
    key_id = next(line.split()[0] for line in listed if line.endswith("-"))
    assert invoke("keys", "revoke", key_id, "--client", "other", *db).exit_code == 0
    for _ in range(2):
        clients.make_key(app, "twin")  # old databases may contain duplicates
    for name, message in (("ci", "no live key"), (key_id, "no live key"), ("twin", "2 live keys")):
        result = invoke("keys", "revoke", name, *db)
        assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
        assert f"{message} {name!r}" in result.stderr


def test_keys_for_users_are_listed_as_such_without_the_key(app: flask.Flask, tmp_path: Path) -> None:
    db = ("--db", str(tmp_path / "findings.db"))
    result = invoke("keys", "create", "proxy", "--level", "full", "--for-users", *db)
    assert "level full, for users, in" in result.stderr
    assert clients.client_with(app, result.stdout.strip()).get(f"{API}/runs").status_code == 401
    invoke("keys", "create", "ci", *db)
    printed = invoke("keys", "list", *db).stdout
    assert not clients.KEY.search(printed)
    titles, *listed = (re.split("  +", line) for line in printed.splitlines())
    rows = [dict(zip(titles, line, strict=True)) for line in listed]
    assert [(each["NAME"], each["FOR USERS"]) for each in rows] == [("proxy", "yes"), ("ci", "-")]


BAD_COMMANDS = [
    *((f"keys create {words}", 2) for words in ("\udcff --new", "x --client \udcff --new", "a\u202eb --new")),
    *((f"keys create x {words}", 2) for words in ("--level root", "--expires soon", "--expires 0", "--expires -90d")),
    *(("keys revoke \udcff", 2), ("keys revoke nope", 1), ("serve --port 99999", 2), ("sing", 2)),
]


@pytest.mark.parametrize(("line", "code"), BAD_COMMANDS)
def test_invalid_command_reports_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, code: int
) -> None:
    monkeypatch.setenv("FINDINGS_DB", db_at(tmp_path / "x.db"))
    result = invoke(*line.split(" "))
    assert (result.exit_code, result.stdout, "Error" in result.stderr) == (code, "", True)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        *cases(port=("PORT", "web"), high_port=("PORT", "99999"), workers=("WORKERS", "0")),
        pytest.param("HOST", "no such host", id="host", marks=pytest.mark.modules),
    ],
)
def test_error_names_the_variable_with_the_invalid_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    monkeypatch.setenv(f"FINDINGS_{variable}", text)
    result = invoke("serve", "--db", str(tmp_path / "x.db"))
    assert (result.exit_code, f"FINDINGS_{variable}" in result.stderr.splitlines()[-1]) == (2, True)


def test_help_names_every_variable_and_is_not_truncated() -> None:
    help_text = " ".join(invoke("serve", "--help").stdout.split())
    for variable, meaning in Settings.descriptions().items():
        assert variable in help_text
        assert meaning in help_text
    help_text += invoke("scan", "--help").stdout
    for variable in settings_variables():
        assert variable in help_text
    for name, each in COMMANDS:
        words = name.split()[1:]
        assert ("--from" if name.endswith(" copy") else "FINDINGS_DB") in invoke(*words, "--help").stdout
        summaries = " ".join(invoke(*words[:-1], "--help").stdout.split())
        assert " ".join(each.help.split()).partition(".")[0] in summaries


@pytest.mark.sqlite
def test_only_the_owner_can_access_the_database_files(server: Server) -> None:
    server.start_run()
    paths = [server.db.with_name(f"served.db{suffix}") for suffix in ("", "-wal", "-shm")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o600] * 3


@pytest.mark.modules
def test_port_in_use_fails_with_one_line_and_exit_code_1(tmp_path: Path) -> None:
    for shared in (False, True):  # True: the other service uses SO_REUSEPORT
        with socket.create_server(("127.0.0.1", 0), reuse_port=shared) as listener:
            port = str(listener.getsockname()[1])
            assert_one_line(command("serve", "--port", port, "--db", str(tmp_path / "x.db")), port)


NOT_UNIX = """
import os, signal, sys
sys.modules.update(dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios", "uvloop")))
for module, names in (
    (os, ("chown", "fchown", "fork", "forkpty", "geteuid", "getuid", "register_at_fork", "wait")),
    (signal, ("SIGHUP", "SIGKILL", "pthread_kill", "set_wakeup_fd", "setitimer", "siginterrupt")),
):
    for name in names:
        delattr(module, name)
import findings_service
headers = {"Authorization": "Bearer a-key-of-the-environment"}
app = findings_service.create_app(db=sys.argv.pop(), api_key="a-key-of-the-environment")
client = app.test_client()
assert client.post("/api/v1/project-types", json={"name": "web"}, headers=headers).status_code == 201
assert client.get("/api/v1/project-types/web", headers=headers).status_code == 200
app.extensions["findings"].database.close()
findings_service.main(["serve"])
"""


def test_on_windows_the_application_works_and_serve_fails(tmp_path: Path) -> None:
    result = run_python(NOT_UNIX, db_at(tmp_path / "x.db"))
    assert_one_line(result, "`serve` requires Linux or macOS; on Windows")
    assert result.stdout == ""


# --- Durability of acknowledged writes -------------------------------------


def submit_until_killed(server: Server, run: str, batches: Iterator[tuple[str, int]], acks: dict[str, bool]) -> None:
    """Submit batches until the server is killed, and record which of them it acknowledged."""
    headers = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
    with suppress(OSError, http.client.HTTPException), servers.connection_to(server.port) as connection:
        for name, size in batches:
            acks[name] = False
            tasks = [task(externalId=f"{name}.{size}.{number}") for number in range(size)]
            connection.request("POST", f"{API}/runs/{run}/tasks", json.dumps({"tasks": tasks}), headers)
            acks[name] = connection.getresponse().read().startswith(b'{"created":')


def assert_batches_are_complete(db: Path, acks: dict[str, bool]) -> None:
    """Check that a database contains every acknowledged batch, and no partial batch."""
    with connect_directly(db) as connection:
        found: dict[str, list[int]] = {}
        for (external_id,) in connection.execute("SELECT external_id FROM tasks"):
            name, size, _ = external_id.split(".")
            found.setdefault(name, []).append(int(size))
    assert integrity_errors_of(db) == []
    assert all(len(sizes) == sizes[0] for sizes in found.values())
    assert {name for name, acknowledged in acks.items() if acknowledged} <= set(found)


def test_acknowledged_batches_survive_kills_completely(serve: Callable[..., Server]) -> None:
    rng, acks = random.Random(7), dict[str, bool]()
    server = serve(until=servers.LISTENING, FINDINGS_API_KEY=SECRET)
    server.request("POST", f"{API}/project-types", {"name": "web"}, key=SECRET)
    run = server.request("POST", f"{API}/runs", {"projectType": "web"}, key=SECRET).json["id"]
    for kill in range(8):
        load = [((f"{kill}-{one}-{n}", 1 + n * 7 % 20) for n in range(10_000)) for one in range(4)]
        with ThreadPoolExecutor(4) as pool:
            for batches in load:
                pool.submit(submit_until_killed, server, run, batches, acks)
            enough = sum(acks.values()) + rng.randint(0, 25)
            wait_until(lambda enough=enough: sum([*acks.values()]) >= enough)
            time.sleep(rng.uniform(0, 0.25))
            assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        server = serve(until=servers.LISTENING, FINDINGS_API_KEY=SECRET)
        assert_batches_are_complete(server.db, acks)
    assert sum(acks.values()) > 60


# --- Repeated requests -----------------------------------------------------

POSTS = cases(
    run=("runs", {"projectType": "web"}),
    one_task=("runs/RUN/tasks", task()),
    batch=("runs/RUN/tasks", {"tasks": [task(externalId="a"), task()]}),
    project_type=("project-types", {"name": "new"}),
    known_project_type=("project-types", {"name": "web"}),
)


def count_stored_responses(app: flask.Flask) -> int:
    return clients.rows_of(app, "SELECT COUNT(*) FROM idempotent_answers")[0][0]


@pytest.mark.parametrize(("path", "body"), POSTS)
def test_repeated_post_gets_the_same_response_and_stores_nothing(
    client: Client, run: str, path: str, body: Any
) -> None:
    path = path.replace("RUN", run)
    first = post(client, path, body)
    stored = count_all(client)
    again = post(client, path, body)
    assert first.status_code in (200, 201)
    assert (again.status_code, again.data, again.content_type) == (first.status_code, first.data, first.content_type)
    assert again.headers.get("Location") == first.headers.get("Location")
    for other in (json.dumps(body) + " ", json.dumps(body, indent=1)):
        assert_problem(post(client, path, other), 409, "idempotency_conflict")
    assert count_all(client) == stored
    assert post(client, path, body, "another").status_code in (200, 201)


def test_rejected_request_can_be_corrected_with_the_same_idempotency_key(client: Client, run: str) -> None:
    path = f"runs/{run}/tasks"
    assert_problem(post(client, path, task(severity="hgh")), 422, "validation_failed")
    assert_problem(post(client, "runs", {"projectType": "new"}), 422, "unknown_project_type")
    client.register("new")
    assert post(client, path, task()).status_code == 201
    assert post(client, "runs", {"projectType": "new"}).status_code == 201


@pytest.mark.parametrize(("length", "status"), [(0, 400), (1, 201), (255, 201), (256, 400), (5000, 400)])
def test_idempotency_key_has_1_to_255_characters(client: Client, run: str, length: int, status: int) -> None:
    for _ in range(2):
        assert post(client, "runs", {"projectType": "web"}, "k" * length).status_code == status
    assert count_all(client) == [1 + (status == 201), 0, 1]


def test_idempotency_key_applies_to_one_api_key_user_and_path(app: flask.Flask, client: Client, run: str) -> None:
    senders, runs = (client, client_of(app), *clients.users_of(app, "anna", "otto")), (run, client.start("web"))
    for _ in range(2):
        responses = [post(each, f"runs/{run_id}/tasks", task()) for each in senders for run_id in runs]
        assert [response.status_code for response in responses] == [201] * 8
        assert len({response.json["tasks"][0]["id"] for response in responses}) == 8
        assert count_stored_responses(app) == client.read("tasks")["total"] == 8


def test_idempotency_key_applies_to_the_path_with_its_url_prefix(tmp_path: Path) -> None:
    host, settings = flask.Flask("host"), Settings.read(db=db_at(tmp_path / "one.db"), api_key=SECRET)
    headers, responses = {"Authorization": f"Bearer {SECRET}", "Idempotency-Key": "k"}, []
    blueprints = [create_blueprint(settings, name) for name in ("one", "two")]
    for blueprint in blueprints:
        host.register_blueprint(blueprint, url_prefix=f"/{blueprint.name}")
    for name, body in (("one", {"name": "web"}), ("two", {"name": "web", "label": "web"})):
        responses.append(host.test_client().post(f"/{name}{API}/project-types", json=body, headers=headers))
    assert [response.status_code for response in responses] == [201, 200]
    for blueprint in blueprints:
        blueprint.service.database.close()


@pytest.mark.modules
def test_repeated_patch_with_an_idempotency_key_is_applied_once(client: Client, run: str) -> None:
    one, two = client.add(run), client.add(run)
    if_match = {"If-Match": client.get(f"{API}/tasks/{one}").headers["ETag"]}
    body_of_one = {"status": "dismissed", "reason": "false_positive", "comment": "Seen."}
    body_of_both = {"ids": [one, two], "comment": "Both."}
    for path, body, extra in ((f"{API}/tasks/{one}", body_of_one, if_match), (f"{API}/tasks", body_of_both, {})):
        headers = {"Idempotency-Key": "k", **extra}
        first, again = (client.patch(path, json=body, headers=headers) for _ in range(2))
        assert first.status_code == 200
        assert (again.status_code, again.data) == (200, first.data)
        assert again.headers.get("ETag") == first.headers.get("ETag") == first.json.get("etag")
        other = client.patch(path, json=body | {"comment": "Other."}, headers=headers)
        assert_problem(other, 409, "idempotency_conflict")
    comments = [entry["comment"] for entry in client.read(f"tasks/{one}/history")["history"] if entry["comment"]]
    assert comments == ["Seen.", "Both."]


def test_patch_of_a_run_ignores_the_idempotency_key(app: flask.Flask, client: Client, run: str) -> None:
    for status in ("completed", "failed"):
        response = client.patch(f"{API}/runs/{run}", json={"status": status}, headers={"Idempotency-Key": "k"})
    assert_problem(response, 409, "run_finished")
    assert count_stored_responses(app) == 0


def age_stored_responses(app: flask.Flask, seconds: float) -> None:
    with database_of(app).transaction() as connection:
        connection.execute("UPDATE idempotent_answers SET created_at = ?", (findings_service.timestamp(ago=seconds),))


def test_stored_response_expires_after_a_day_and_is_deleted_later(app: flask.Flask, client: Client, run: str) -> None:
    first = post(client, "runs", {"projectType": "web"}).json["id"]
    age_stored_responses(app, 24 * 3600 - 60)
    assert post(client, "runs", {"projectType": "web"}).json["id"] == first
    age_stored_responses(app, 24 * 3600 + 1)
    assert post(client, "runs", {"projectType": "web", "metadata": {}}).json["id"] != first
    post(client, "project-types", {"name": "new"}, "other")
    age_stored_responses(app, 24 * 3600 + 1)
    post(client, "runs", {"projectType": "web"}, "third")
    assert count_stored_responses(app) == 1
    for number in range(10):
        post(client, "runs", {"projectType": "web"}, f"more {number}")
    age_stored_responses(app, 24 * 3600 + 1)
    for _ in range(2):  # each request deletes only a few
        post(client, "runs", {"projectType": "web"}, "more 9")
    assert count_stored_responses(app) == 7


def test_response_stored_by_a_fast_clock_expires_a_day_from_now(
    app: flask.Flask, client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = post(client, "runs", {"projectType": "web"}).json["id"]
    age_stored_responses(app, -24 * 3600 * 700)
    post(client, "project-types", {"name": "new"}, "other")
    set_clock(monkeypatch, hours=23)
    assert post(client, "runs", {"projectType": "web"}).json["id"] == first
    set_clock(monkeypatch, hours=25)
    assert post(client, "runs", {"projectType": "web"}).json["id"] != first


def sqlite_error(code: int) -> sqlite3.OperationalError:
    """Return an SQLite error with an error code."""
    error = sqlite3.OperationalError("it failed")
    error.sqlite_errorcode = code
    return error


def test_response_and_its_data_are_stored_together_or_not_at_all(
    app: flask.Flask, client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise full_error()

    with monkeypatch.context() as patched:
        patched.setattr(*commit_method(), failing)
        assert_problem(post(client, f"runs/{run}/tasks", task()), 503, "storage_full")
    assert (count_all(client), count_stored_responses(app)) == ([1, 0, 1], 0)
    with engines.rejecting_inserts(database_of(app).settings.db, "idempotent_answers"):
        assert_problem(post(client, f"runs/{run}/tasks", task()), 500, "internal_error")
        assert (count_all(client), count_stored_responses(app)) == ([1, 0, 1], 0)
    assert post(client, f"runs/{run}/tasks", task()).status_code == 201
    assert integrity_errors_of(database_of(app).settings.db) == []


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("failure", "code"),
    cases(
        locking=(sqlite_error(sqlite3.SQLITE_PROTOCOL), "busy"),
        memory=(sqlite_error(sqlite3.SQLITE_NOMEM), "storage_full"),
        python=(MemoryError(), "storage_full"),
    ),
)
def test_lack_of_memory_or_locks_returns_503(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch, failure: Exception, code: str
) -> None:
    def failing(*_: Any) -> None:
        raise failure

    monkeypatch.setattr(*commit_method(), failing)
    assert_problem(client.post(f"{API}/runs/{run}/tasks", json=task()), 503, code)


def test_repeated_submission_ignores_changes_of_its_run_and_schema(client: Client, run: str) -> None:
    path = f"runs/{run}/tasks"
    first = post(client, path, task())
    client.finish(run)
    assert post(client, path, task()).data == first.data
    assert_problem(post(client, path, task(), "new"), 409, "run_finished")
    client.put(f"{API}/project-types/web", json={"extensionSchema": {"required": ["rule"]}})
    assert post(client, path, task()).data == first.data
    assert_problem(post(client, path, task(), "new"), 422, "validation_failed")


def test_same_request_in_two_threads_creates_one_run(
    app: flask.Flask, client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_object, barrier = findings_service.read_object, threading.Barrier(2)

    def read_together(*arguments: Any) -> Any:
        barrier.wait(PATIENCE)  # both have looked for a stored response, and neither has stored one
        return read_object(*arguments)

    monkeypatch.setattr(findings_service, "read_object", read_together)
    with ThreadPoolExecutor(2) as pool:
        responses = list(pool.map(lambda _: post(client, "runs", {"projectType": "web"}), range(2)))
    assert [response.status_code for response in responses] == [201, 201]
    assert responses[0].data == responses[1].data
    assert count_all(client) == [2, 0, 1]


def test_decoders_are_created_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    active, counts = [], []
    decoder_class = msgspec.json.Decoder

    def create_slowly(model: Any) -> Any:
        active.append(model)
        counts.append(len(active))
        time.sleep(0.01)
        active.pop()
        return decoder_class(model)

    monkeypatch.setattr(msgspec.json, "Decoder", create_slowly)
    models = [list[int], dict[str, float], tuple[int, str, int]]  # not requested before
    with ThreadPoolExecutor(6) as pool:
        assert {type(each) for each in pool.map(findings_service.decoder, models * 2)} == {decoder_class}
    assert set(counts) == {1}


# --- Storage failures ------------------------------------------------------

BULKY = {"tasks": [task(description="x" * 5000)] * 10}


def assert_fails_until_there_is_space(server: Server, free_space: Callable[[], object]) -> None:
    """Fill the storage; check that writes fail, reads work, and writes work again after `free_space`."""
    path = f"{API}/runs/{server.start_run()}"
    responses = [server.request("POST", f"{path}/tasks", BULKY)]
    while responses[-1].status_code == 201 and len(responses) < 100:
        responses.append(server.request("POST", f"{path}/tasks", BULKY))
    stored = 10 * (len(responses) - 1)
    for response in (responses[-1], server.request("POST", f"{path}/tasks", BULKY)):
        clients.assert_storage_problem(response, "storage_full")
    assert server.request("GET", f"{API}/tasks?view=full").json["total"] == stored > 0
    assert server.request("GET", path).json["submitted"]["created"] == stored
    free_space()
    assert server.request("POST", f"{path}/tasks", BULKY).status_code == 201
    assert server.request("GET", f"{API}/tasks").json["total"] == stored + 10
    assert integrity_errors_of(server.db) == []


@pytest.mark.sqlite
def test_writes_return_503_while_the_file_may_not_grow(server: Server) -> None:
    process = server.process.pid
    before = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (400_000, before[1]))
    assert_fails_until_there_is_space(server, lambda: resource.prlimit(process, resource.RLIMIT_FSIZE, before))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB."""
    (tmp_path / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path / "disk")]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a file system")
    yield tmp_path / "disk"
    subprocess.run(["umount", "--lazy", str(tmp_path / "disk")], check=True)


@pytest.mark.sqlite
def test_writes_return_503_while_the_disk_is_full(serve: Callable[..., Server], small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    server = serve(FINDINGS_DB=str(small_disk / "full.db"))
    assert_fails_until_there_is_space(server, ballast.unlink)
    assert server.stop() == 0


@pytest.mark.sqlite
def test_start_on_a_full_disk_fails_with_one_line(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(1024 * 1024))
    result = command("serve", "--port", "0", "--db", str(small_disk / "new.db"))
    assert_one_line(result, "full")


def test_lock_of_another_process_blocks_writes_but_not_reads(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_BUSY_TIMEOUT="0.1", program=servers.program_with(HEALTH_KEPT=0))
    run = server.start_run()
    with locked(server.db):
        for path, body in (
            ("runs", {"projectType": "web"}),
            (f"runs/{run}/tasks", task()),
            ("project-types", {"name": "b"}),
        ):
            clients.assert_storage_problem(server.request("POST", f"{API}/{path}", body), "busy")
        if not ON_POSTGRES:  # PostgreSQL has no lock that blocks all writers
            clients.assert_storage_problem(server.request("GET", "/healthz"), "busy")
        assert server.request("GET", f"{API}/runs/{run}").json["summary"]["total"] == 0
        assert server.request("GET", f"{API}/tasks").json["total"] == 0
    assert server.request("POST", f"{API}/runs/{run}/tasks", task()).status_code == 201
    assert server.request("GET", f"{API}/tasks").json["total"] == 1


def test_writes_return_503_while_the_database_is_read_only(app: flask.Flask, client: Client, run: str) -> None:
    with read_only(app):
        clients.assert_storage_problem(client.post(f"{API}/runs/{run}/tasks", json=task()), READ_ONLY)
        clients.assert_storage_problem(client.get("/healthz"), READ_ONLY)
        assert client.read("tasks")["total"] == 0
    assert client.post(f"{API}/runs/{run}/tasks", json=task()).status_code == 201


@pytest.mark.sqlite
def test_embedded_service_rejects_a_moved_database_until_recreated(
    client: Client, run: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client.add(run)
    move_database_away(tmp_path / "findings.db")
    for _ in range(2):
        assert_storage_unusable(lambda method, path, body: client.open(path, method=method, json=body))
        database_of(client.application).close()
        files.move_database_back(tmp_path / "findings.db")
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    again = create_app(db=str(tmp_path / "findings.db")).test_client()
    listed = again.get(f"{API}/tasks", headers={"Authorization": f"Bearer {client.key}"})
    assert listed.json["total"] == 1


@pytest.mark.sqlite
def test_transaction_in_progress_is_stored_in_the_moved_file(client: Client, run: str, tmp_path: Path) -> None:
    database = database_of(client.application)
    with database.transaction() as connection:
        connection.execute("INSERT INTO clients (id, created_at) VALUES ('last', '')")
        move_database_away(tmp_path / "findings.db")
    clients.assert_storage_problem(client.get(f"{API}/tasks"), "storage_full")
    with closing(sqlite3.connect(tmp_path / "moved.db")) as moved:
        assert moved.execute("SELECT COUNT(*) FROM clients WHERE id = 'last'").fetchone() == (1,)


@pytest.mark.sqlite
def test_relative_database_path_survives_a_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = create_app(db="here.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert app.test_client().get("/healthz").status_code == 200
    database_of(app).close()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.sqlite
def test_files_of_a_linked_database_are_beside_the_link_target(tmp_path: Path, new_database: Path) -> None:
    (target := tmp_path / "target").mkdir()
    shutil.copyfile(new_database, target / "x.db")
    (tmp_path / "link.db").symlink_to(target / "x.db")
    app = create_app(db=db_at(tmp_path / "link.db"))
    clients.make_key(app)
    assert sorted(each.name for each in target.iterdir()) == [
        f"x.db{end}" for end in ("", "-checkpointer", "-shm", "-wal")
    ]
    assert database_of(app).wal_size() > 0
    database_of(app).close()
    assert {each.name for each in tmp_path.iterdir()} == {"target", "link.db"}


@pytest.mark.sqlite
def test_damaged_page_returns_503_and_not_500(filled: Path, make_app: Callable[..., flask.Flask]) -> None:
    app = make_app()
    client = client_of(app)
    connection = clients.writer_of(app)
    page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'tasks'").fetchone()[0]
    database_of(app).close()
    with filled.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    clients.assert_storage_problem(client.get(f"{API}/tasks"), "storage_full")


@pytest.mark.sqlite
@pytest.mark.parametrize(("make", "message"), UNUSABLE)
def test_unusable_file_is_reported_in_one_line_and_left_unchanged(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    make(tmp_path / "bad.db")
    before = files_in(tmp_path)
    result = command("serve", "--port", "0", "--db", str(tmp_path / "bad.db"))
    assert_one_line(result, db_at(tmp_path / "bad.db"), message)
    assert files_in(tmp_path) == before


def test_start_on_a_locked_database_fails_with_one_line(tmp_path: Path, filled: Path) -> None:
    with locked(filled):
        result = command("serve", "--port", "0", "--db", str(filled), FINDINGS_BUSY_TIMEOUT="0.3")
    assert_one_line(result, "too long" if ON_POSTGRES else "locked")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can open, unlike `tmp_path`."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def run_unprivileged(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command without root's rights; root imports everything first, as it alone may be able to read the files."""
    program = (
        f"{IMPORT_CORE}, encodings.idna, importlib.metadata, jsonschema, os\n"
        "findings_service.load_modules(); findings_service.main.list_commands(None)\n"
        "if not findings_service.load_module('findings_adapters.serving'):\n"
        "    import findings_adapters.serving.processes\n"
        "os.geteuid() or os.setuid(65534); findings_service.main()"
    )
    return command(*arguments, program=(sys.executable, "-c", program))


@pytest.mark.sqlite
def test_read_only_file_is_reported_in_one_line_and_left_unchanged(filled: Path, open_folder: Path) -> None:
    path = Path(shutil.copy(filled, open_folder / "read-only.db"))
    before = path.read_bytes()
    path.chmod(0o444)
    open_folder.chmod(0o555)
    assert_one_line(run_unprivileged("serve", "--port", "0", "--db", str(path)), str(path))
    assert path.read_bytes() == before


@pytest.mark.sqlite
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create files of another user")
@pytest.mark.parametrize(
    "line", ["serve --port 0", "keys create x --new", pytest.param("compact", marks=pytest.mark.modules)]
)
@pytest.mark.parametrize(
    ("file_mode", "folder_mode", "message"),
    cases(
        file=(0o400, 0o777, "may not read {0}/x.db"),
        read_only_file=(0o444, 0o777, "may not write {0}/x.db"),
        folder=(0o666, 0o555, "may not write in {0}"),
    ),
)
def test_missing_file_permission_is_reported(
    filled: Path, open_folder: Path, line: str, file_mode: int, folder_mode: int, message: str
) -> None:
    path = Path(shutil.copy(filled, open_folder / "x.db"))
    path.chmod(file_mode)
    open_folder.chmod(folder_mode)
    result = run_unprivileged(*line.format(open_folder).split(), "--db", str(path))
    assert_one_line(result, f"this user {message.format(open_folder)}")


@pytest.mark.modules
@pytest.mark.sqlite
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create files of another user")
def test_unwritable_folder_for_a_database_or_backup_is_reported(filled: Path, open_folder: Path) -> None:
    (open_folder / "private").mkdir(mode=0o755)
    result = run_unprivileged("serve", "--port", "0", "--db", str(open_folder / "private" / "x.db"))
    assert_one_line(result, f"this user may not write in {open_folder / 'private'}")
    open_folder.chmod(0o777)
    path = Path(shutil.copy(filled, open_folder / "x.db"))
    path.chmod(0o666)
    result = run_unprivileged("backup", str(open_folder / "private" / "copy.db"), "--db", str(path))
    assert_one_line(result, f"this user may not write in {open_folder / 'private'}")


# --- Reads during writes ---------------------------------------------------


def in_another_thread(function: Callable[[], Any]) -> Any:
    """Call a function in another thread and return its result."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(function).result(PATIENCE)
    finally:
        pool.shutdown(wait=False)  # the thread may wait for a lock that the caller holds


@pytest.mark.sqlite
def test_read_waits_for_no_transaction_and_sees_the_last_commit(app: flask.Flask, client: Client, run: str) -> None:
    task_id = client.add(run, title="before")
    app.extensions["findings"]._maintained_until = float("inf")  # maintenance would wait for the writer

    def title() -> str:
        return client.read(f"tasks/{task_id}")["title"]

    with database_of(app).transaction() as connection:
        connection.execute("UPDATE tasks SET title = 'after' WHERE client_id = 'default'")
        assert in_another_thread(title) == title() == "before"
    assert in_another_thread(title) == title() == "after"
    database_of(app).close()
    with database_of(app).transaction():
        assert in_another_thread(title) == "after"  # also the first read, which opens a connection


def test_rolled_back_write_is_retried_with_any_wsgi_server(
    app: flask.Flask, client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_first_commit(*arguments: Any) -> None:
        commits.append(arguments)
        if len(commits) == 1:
            raise TryAgain
        commit(*arguments)

    headers, commits = {"Idempotency-Key": "one"}, list[Any]()
    database_class, name = commit_method()
    commit = getattr(database_class, name)
    monkeypatch.setattr(database_class, name, fail_first_commit)
    response = client.post(f"{API}/runs/{run}/tasks", json=task(title="Émile"), headers=headers)
    assert response.status_code == 201
    assert len(commits) == 2
    assert [task["title"] for task in client.read("tasks")["tasks"]] == ["Émile"]
    assert client.post(f"{API}/runs/{run}/tasks", json=task(title="Émile"), headers=headers).json == response.json
    assert client.read("tasks")["total"] == 1


# --- Hostile schemas -------------------------------------------------------


def submit_to_server(server: Server, key: str, schema: Any, extensions: Any) -> servers.HttpResponse:
    """Register a project type with a schema, submit extensions to it, and return the last response."""
    name, send = f"hostile-{time.monotonic_ns()}", partial(server.request, "POST", key=key)
    response = send(f"{API}/project-types", {"name": name, "extensionSchema": schema})
    if response.status_code != 201:
        return response
    run = send(f"{API}/runs", {"projectType": name}).json["id"]
    return send(f"{API}/runs/{run}/tasks", task(extensions=extensions))


REGEX = {"pattern": "^(a|aa)+$"}
PATTERN_OF_NAMES = {"patternProperties": {"^(a|aa)+$": {}}}
LONG_NAME = {"a" * 60 + "!": 1}
MERSENNE = 2**61 - 1  # all multiples of it have the same hash
HOSTILE = cases(
    regex_with_lookbehind=(in_a({"pattern": "(?<=(a|aa)+)(a|aa)+$"}), BACKTRACKING),
    regex_of_unevaluated_names=(PATTERN_OF_NAMES | {"unevaluatedProperties": False}, LONG_NAME),
    regex_under_the_same_draft=(in_a({"$schema": NEWEST} | REGEX), BACKTRACKING),
    regex_in_referenced_schema=({"$ref": "#/x/y", "x": {"y": {"$schema": NEWEST} | in_a(REGEX)}}, BACKTRACKING),
    unique_lists=(in_a({"uniqueItems": True}), {"a": [[n, {}] for n in [*range(20_000), 0]]}),
    unique_hashes=(in_a({"uniqueItems": True}), {"a": [n * MERSENNE for n in range(10_000)]}),
    doubling_with_items=(doubling(30) | in_a({"$ref": "#/$defs/d0", "unevaluatedItems": False}), {"a": [1]}),
    chain_of_references=(
        {"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(9_999)}, "$ref": "#/$defs/d0"},
        {},
    ),
    enumeration=({"properties": {"a": {"items": {"enum": list(range(100_000))}}}}, {"a": [-1] * 10_000}),
    unevaluated_contains=(
        in_a({"contains": {"multipleOf": 2}, "unevaluatedItems": {"multipleOf": 3}}),
        {"a": list(range(30_000))},
    ),
    required_properties=({"required": [f"property-{n}" for n in range(100_000)]}, {}),
    huge_multiple=(in_a({"multipleOf": 0.1}), {"a": 10**400}),
    huge_divisor=(in_a({"multipleOf": 10**400}), {"a": 1.5}),
    any_of=({"anyOf": [{"required": [f"p{n}"]} for n in range(50_000)]}, {}),
    one_of=({"oneOf": [{"minProperties": 1}] * 50_000}, {"a": 1}),
    joined_patterns=(
        {"additionalProperties": False, "patternProperties": {f"^p{n}(a{{90}}){{90}}$": {} for n in range(100)}},
        {f"p{n}": n for n in range(20_000)},
    ),
    evaluated=(
        {"patternProperties": {f"^p{n}$": {} for n in range(200)}, "unevaluatedProperties": False},
        {f"p{n}": n for n in range(4000)},
    ),
)


@pytest.mark.parametrize(("schema", "extensions"), HOSTILE)
def test_hostile_schema_delays_no_other_client(
    hostile_server: Server, hostile_key: str, schema: Any, extensions: Any
) -> None:
    with concurrent_reads(hostile_server):
        response = submit_to_server(hostile_server, hostile_key, schema, extensions)
    assert response.status_code == 422, response.data


def test_hostile_checks_do_not_time_out_checks_of_other_clients(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_SCHEMA_TIMEOUT="16s")  # 2 s for one task; a slow check takes about 0.04 s
    key = command("keys", "create", "hostile", "--db", str(server.db)).stdout.strip()
    path = f"{API}/runs/{server.start_run(in_a(REGEX))}/tasks"
    length, duration = 16, 0.0
    while duration < 0.04:
        length, began = length + 1, time.monotonic()
        regex.search(REGEX["pattern"], "a" * length + "!")
        duration = time.monotonic() - began
    slow, codes = task(extensions={"a": "a" * length + "!"}), set()
    with ThreadPoolExecutor(1) as pool:
        hostile = pool.submit(
            lambda: [server.request("POST", path, task(extensions=BACKTRACKING), key) for _ in range(2)]
        )
        while not hostile.done():
            codes.add(server.request("POST", path, slow).json["code"])
    assert {response.json["code"] for response in hostile.result()} == {"extension_check_timeout"}
    assert codes == {"validation_failed"}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="requires /proc/self/statm")
def test_memory_of_expensive_patterns_is_bounded(serve: Callable[..., Server]) -> None:
    server = serve()

    def register(number: int) -> None:
        response = submit_to_server(server, server.key, in_a({"pattern": f"[a-z0-9]{{4000}}{number}"}), {"a": "x"})
        assert_problem(response, 422, "validation_failed", "/extensions/a")

    for number in range(20):
        register(number)
    before = servers.resident_memory(server)
    for number in range(20, 140):
        register(number)
    assert servers.resident_memory(server) - before < 30


def references_to(base: str) -> list[dict[str, Any]]:
    """Return schemas that refer to documents below a base URL."""
    draft_7 = {"$schema": DRAFT_7}
    return [
        {"$ref": f"{base}/schema"},
        {"$ref": f"{base}/schema#/$defs/a"},
        {"$dynamicRef": f"{base}/schema#a"},
        {"$schema": f"{base}/draft"},
        {"$id": f"{base}/", "$ref": "other"},
        {"$id": f"{base}/", "properties": {"a": {"items": {"$ref": "other#/x"}}}},
        in_a({"$schema": f"{base}/draft"}),
        {"$ref": "#/x", "x": {"$ref": f"{base}/schema"}},
        draft_7 | {"$ref": f"{base}/schema"},
        draft_7 | {"definitions": {"a": {"$id": f"{base}/a", "$ref": "b"}}, "$ref": "#/definitions/a"},
        {"$schema": DRAFT_4, "id": f"{base}/", "$ref": "other"},
        {"$schema": DRAFT_3, "extends": {"$ref": f"{base}/schema"}},
        {"$schema": DRAFT_2019, "$recursiveRef": f"{base}/schema"},
    ]


def test_urls_in_schemas_and_tasks_are_never_fetched(client: Client, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it for reading would block forever
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        remote = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for schema in references_to(remote) + references_to(f"file://{tmp_path}/pipe"):
            body = {"name": "remote", "extensionSchema": schema}
            assert_problem(client.post(f"{API}/project-types", json=body), 422, "validation_failed")
        client.register("web", {"$id": f"{remote}/root", "$ref": "#/$defs/a", "$defs": {"a": {"$comment": remote}}})
        urls = {"url": f"{remote}/image.png"}
        client.add(
            client.start("web", targetUrl=remote), evidence=[urls, {"type": "screenshot"} | urls], extensions=urls
        )
        client.read("tasks", view="full")
        with pytest.raises(TimeoutError):
            listener.accept()


# --- Hostile HTTP ----------------------------------------------------------

NINES = b"9" * 5000
MALFORMED = [
    *(b"", b"  ", b'{"a": ', b'{"x": "', b"{'a': 1}", b'{"a": 1} x', b"{} {}", b'{"a": 1,}', b'{"a": 01}'),
    *(b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1e999}', b'{"a": 1 /* one */}', b'\xef\xbb\xbf{"a": 1}'),
    *(b'{"a": "\\ud800"}', b'{"\\udc00": 1}', b'{"a": "\xff"}', b'{"a": "\xed\xa0\x80"}', b'{"a": "\xc0\x80"}'),
    *('{"a": 1}'.encode("utf-16"), b'{"a": "\n"}', b'{"a": "\0"}', b'{"title": ' + NINES + b', "x": NaN}'),
    *(b'{"title": ' + NINES + b', "x": "\\ud800"}', b'{"title": ' + NINES + b', "x": 1e' + NINES + b"}"),
    *(b"[" * 101 + b"]" * 101, b"[" * 100_000 + b"]" * 100_000, b'{"x":' * 100_000 + b"1" + b"}" * 100_000),
    *(b'{"x":[' * 100_000, b"]" * 100_000),
]
NON_OBJECTS = (b"[]", b"null", b"true", b"1", b'"x"', b'"\\u0000"', b"[" + b"0," * 99_999 + b"0]")


@pytest.mark.parametrize("each", [each for each in EACH_OPERATION if each.values[0].body is not None])
def test_malformed_json_is_rejected_by_every_endpoint(client: Client, run: str, each: Any) -> None:
    path = path_to(each, client, run)
    for body in MALFORMED:
        with servers.at_most(2, time.thread_time):
            assert_problem(client.send(each.method, path, body), 400, "malformed_json")
    for body in NON_OBJECTS:
        assert_problem(client.send(each.method, path, body), 422, "validation_failed", "")


def test_malformed_json_is_rejected_by_a_running_server(hostile_server: Server) -> None:
    for body in MALFORMED:
        assert_problem(hostile_server.request("POST", f"{API}/runs", body), 400, "malformed_json")


BODIES_WITH_NUMBER = cases(
    title=("POST", "runs/RUN/tasks", '{"title": NUMBER, "severity": "low"}'),
    severity=("POST", "runs/RUN/tasks", '{"title": "x", "severity": NUMBER}'),
    step=("POST", "runs/RUN/tasks", '{TASK, "remediation": [{"instruction": "x", "step": NUMBER}]}'),
    automatable=("POST", "runs/RUN/tasks", '{TASK, "successCriteria": [{"automatable": NUMBER}]}'),
    extensions=("POST", "runs/RUN/tasks", '{TASK, "extensions": {"a": [NUMBER]}}'),
    unknown=("POST", "runs/RUN/tasks", '{TASK, "a": NUMBER}'),
    tasks=("POST", "runs/RUN/tasks", '{"tasks": NUMBER}'),
    in_a_batch=("POST", "runs/RUN/tasks", '{"tasks": [{TASK, "extensions": {"a": NUMBER}}]}'),
    metadata=("POST", "runs", '{"projectType": "web", "metadata": {"a": NUMBER}}'),
    target=("POST", "runs", '{"projectType": "web", "targetUrl": NUMBER}'),
    status=("PATCH", "runs/RUN", '{"status": NUMBER}'),
    schema=("POST", "project-types", '{"name": "n", "extensionSchema": {"properties": {"a": {"maximum": NUMBER}}}}'),
    length=("POST", "project-types", '{"name": "n", "extensionSchema": {"maxItems": NUMBER}}'),
)


@pytest.mark.parametrize(("method", "path", "body"), BODIES_WITH_NUMBER)
def test_numbers_of_5000_digits_cause_no_server_error(
    client: Client, run: str, method: str, path: str, body: str
) -> None:
    path, body = path.replace("RUN", run), body.replace("TASK", '"title": "x", "severity": "low"')
    for number in (DIGITS, f"-{DIGITS}", f"{DIGITS}.5", f"0.{DIGITS}", f"1e-{DIGITS}", f"1e{DIGITS}"):
        response = client.send(method, f"{API}/{path}", body.replace("NUMBER", number))
        assert response.status_code in (200, 201, 400, 409, 422), response.data
        assert client.get(f"{API}/tasks?view=full&runId={run}").status_code == 200
        assert client.get(f"{API}/runs/{run}").status_code == 200


UNUSUAL_VALUES = (
    *("%00", "%ff", "%ed%a0%80", "%", "%zz", "%2F", "%2e%2e", "..", "../..", ".", ";", "%3F", "%23", "%25"),
    *("x" * 5000, "%0d%0aX:%201", "%F0%9F%98%80", "{run_id}", "'%20OR%20''='", "-1", "NaN", DIGITS, "\xff"),
    *("a,b", ",", "a=b", "a&b=c", "%26", "[]", "*", "|", "\\", '"', "<", "~", "%u0000", "+", "null"),
    "٣".encode().decode("latin-1"),
)


def test_unusual_ids_cause_no_server_error(hostile_server: Server) -> None:
    for name in ("run_id", "task_id", "name", "webhook_id"):
        operations = [each for each in clients.OPERATIONS if f"{{{name}}}" in each.path]
        for value, each in zip(UNUSUAL_VALUES, itertools.cycle(operations), strict=False):
            path = each.path.replace(f"{{{name}}}", value).encode("latin-1")
            request = raw_request(hostile_server, each.method, path, b"" if each.body is None else b"{}")
            response = send_raw(hostile_server, request)
            assert_rejected(response)
            assert status_of(response) in (400, 404), (path[:200], response[:300])


def test_unusual_query_parameters_cause_no_server_error(hostile_server: Server) -> None:
    names = ("page", "after", "status", "runId", "targetUrl", "mainLine", "branch", "createdSince", "missingFrom", "x")
    paths = itertools.cycle(("runs", "project-types", f"tasks/{UNKNOWN_ID}", "openapi.json"))
    for value in UNUSUAL_VALUES:
        for url in (*(f"tasks?{name}={value}" for name in names), f"{next(paths)}?{value}"):
            request = raw_request(hostile_server, "GET", f"{API}/{url}".encode("latin-1"))
            assert status_of(send_raw(hostile_server, request)) in (200, 400, 404), url[:200]


# --- Access ----------------------------------------------------------------

BODIES = {
    ("POST", "/api/v1/runs"): {"projectType": "web"},
    ("PATCH", "/api/v1/runs/{run_id}"): {"status": "completed"},
    ("POST", "/api/v1/runs/{run_id}/tasks"): task(),
    ("PATCH", "/api/v1/tasks/{task_id}"): {"status": "open"},
    ("PATCH", "/api/v1/tasks"): {"status": "open"},
    ("POST", "/api/v1/project-types"): {"name": "another"},
    ("PUT", "/api/v1/project-types/{name}"): {},
    ("POST", "/api/v1/webhooks"): {"url": "https://hooks.invalid/"},
    ("PATCH", "/api/v1/webhooks/{webhook_id}"): {"state": "on"},
    ("POST", "/api/v1/tasks/claim"): {},
    ("PUT", "/api/v1/claims/{claim_id}"): {},
    ("POST", "/api/v1/tasks/{task_id}/comments"): {"comment": "x"},
    ("POST", "/api/v1/tasks/{task_id}/verifications"): {"outcome": "inconclusive", "comment": "x"},
    ("PUT", "/api/v1/tasks/{task_id}/proposal"): {"status": "dismissed", "reason": "wont_fix", "comment": "x"},
}
OWN_ONLY = ("/api/v1/claims/{claim_id}", "/api/v1/tasks/{task_id}/proposal")  # 404 for a key without one of its own
REJECTED_HOLDERS = ("no_key", "malformed", "unknown", "expired", "revoked")


def key_of(app: flask.Flask, holder: str) -> str:
    """Return the API key that a kind of holder sends."""
    level = holder if holder in findings_service.LEVELS else "full"
    key = clients.make_key(app, holder, "other" if holder == "other_client" else "default", level)
    column = {"expired": "expires_at", "revoked": "revoked_at"}.get(holder)
    if column:
        assert clients.client_with(app, key).get(f"{API}/tasks").status_code == 200  # valid until here
        with database_of(app).transaction() as connection:
            connection.execute(f"UPDATE api_keys SET {column} = created_at WHERE name = ?", (holder,))
    return {"no_key": "", "malformed": key[:-1], "unknown": f"fts_{'x' * 43}"}.get(holder, key)


@pytest.mark.parametrize("each", EACH_OPERATION)
def test_every_endpoint_requires_its_key_level(app: flask.Flask, client: Client, run: str, each: Any) -> None:
    client.register("unused")
    path = path_to(each, client, run, title="A secret")
    path = path.replace("types/web", "types/unused") if each.method == "DELETE" else path
    body = BODIES[each.method, each.path] if each.body is not None else None
    body = {"ids": [client.read("tasks")["tasks"][0]["id"]], **body} if body and path == f"{API}/tasks" else body
    query = {brief.BriefQuery: {"projectType": "web"}, groups.GroupQuery: {"by": "rule"}}.get(each.query)
    for holder in (*REJECTED_HOLDERS, "other_client", *findings_service.LEVELS):
        caller = clients.client_with(app, key_of(app, holder))
        response = caller.open(path, method=each.method, json=body, query_string=query)
        if each.level is None:
            assert response.status_code == 200, holder
        elif holder in REJECTED_HOLDERS:
            assert_problem(response, 401, "unauthorized")
        elif holder == "other_client":
            assert response.status_code in (404, 422) or "{" not in each.path
            assert "A secret" not in response.text
            assert run in path or run not in response.text
        elif findings_service.LEVELS.index(holder) < findings_service.LEVELS.index(each.level):
            assert_problem(response, 403, "forbidden")
        else:
            assert response.status_code in ((200, 201, 204, 404) if each.path in OWN_ONLY else (200, 201, 204)), holder


def test_keys_do_not_appear_in_logs_errors_or_links(server: Server) -> None:
    server.start_run()
    second = command("keys", "create", "second", "--db", str(server.db)).stdout.strip()
    for number in range(2):
        server.request("POST", f"{API}/runs", {"projectType": "web"}, key=second, **{"Idempotency-Key": f"{number}"})
    requests = (("GET", f"{API}/runs?limit=1", None), ("POST", f"{API}/runs", "{"), ("GET", "/healthz", None))
    shapes = ("Bearer {}", "Bearer {}x", "Basic {}", "{}")
    headers = [{"Authorization": shape.format(key)} for shape in shapes for key in (server.key, second)]
    headers += [{name: key} for name in ("X-Api-Key", "Content-Type") for key in (server.key, second)]
    responses = [server.request(*request, **header) for request in requests for header in headers]
    with connect_directly(server.db) as connection:
        for table in ("answer_references", "idempotent_answers"):
            connection.execute(f"DROP TABLE {table}")
    headers = {"Idempotency-Key": "3"}
    responses.append(server.request("POST", f"{API}/runs", {"projectType": "web"}, key=second, **headers))
    assert responses[-1].status_code == 500
    assert server.stop() == 0
    log = "".join(path.read_text("utf-8") for path in server.db.parent.glob("*.log"))
    assert "Traceback" in log
    assert server.key not in log.removeprefix(server.startup_output)
    assert second not in log
    output = b"".join(response.data + str(response.headers).encode() for response in responses)
    assert not clients.KEY.search(output.decode())


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_listening_on_all_interfaces_prints_a_warning(serve: Callable[..., Server], host: str, warns: bool) -> None:
    server = serve("--host", host)
    assert ("Warning" in server.startup_output) == warns
    assert ("TLS" in server.startup_output) == warns


# --- Migrations and the size of the WAL ------------------------------------


@pytest.mark.modules
@pytest.mark.sqlite
def test_migration_runs_once_and_completely_or_not_at_all(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, last, newer = stored_rows(filled), findings_service.SCHEMA_VERSION, tmp_path / "schema.sql"
    script = findings_service.schema_path().read_text("utf-8")
    newer.write_text(script.replace(f"user_version = {last}", f"user_version = {last + 1}"), "utf-8")
    monkeypatch.setattr("findings_service.schema_path", lambda: newer)
    monkeypatch.setattr("findings_service.SCHEMA_VERSION", last + 1)
    step = "ALTER TABLE runs ADD COLUMN colour TEXT NOT NULL DEFAULT 'red';\n"
    monkeypatch.setitem(
        findings_service.REGISTRY.migrations, last + 1, findings_service.Migration(f"{step}SELECT nonsense;")
    )
    message = f"has schema version {last}; run `findings-service serve` to migrate it to {last + 1}"
    for line in ("check", "keys list", "prune --finished-before 1d"):
        assert message in invoke(*line.split(), "--db", str(filled)).stderr
    with pytest.raises(findings_service.DatabaseUnusable):
        create_app(db=str(filled))
    assert stored_rows(filled) == before
    monkeypatch.setitem(findings_service.REGISTRY.migrations, last + 1, findings_service.Migration(step))
    with ThreadPoolExecutor(4) as pool:
        for opened in [pool.submit(findings_service.open_database, Settings(db=str(filled))) for _ in range(4)]:
            opened.result().close()
    assert {run[-1] for run in stored_rows(filled)[2]} == {"red"}
    assert integrity_errors_of(filled) == []


OLD_EVENTS = "event IN ('created', 'reported', 'status', 'assigned', 'comment')"
NEW_EVENTS = ", 'severity', 'linked', 'claimed', 'released',\n            'verified', 'proposed', 'withdrawn'"
NEW_INDEXES = ("tasks_by_end_of_dismissal", "tasks_by_original", "tasks_by_claim", "verified_tasks", "proposed_tasks")
NEW_COLUMNS = ("reported_severity", "until", "duplicate_of", "links", "verification", "proposal", "claim_id")
OLD_CONSTRAINTS = (
    (
        f"""ALTER TABLE history DROP CONSTRAINT history_check, ADD CONSTRAINT history_check CHECK (
            {OLD_EVENTS} AND run_seq IS NULL OR event IN ('started', 'finished') AND task_seq IS NULL)""",
        """ALTER TABLE api_keys DROP CONSTRAINT api_keys_level_check,
            ADD CONSTRAINT api_keys_level_check CHECK (level IN ('read', 'agent', 'full'))""",
        "UPDATE schema_version SET version = 12",
    )
    if ON_POSTGRES
    else (
        "PRAGMA writable_schema = ON",
        *(
            f"""UPDATE sqlite_schema SET sql = replace(sql, '{new.replace("'", "''")}', '') WHERE name = '{table}'"""
            for table, new in (("history", NEW_EVENTS), ("api_keys", "'triage', "))
        ),
        "PRAGMA writable_schema = OFF",
        "PRAGMA user_version = 12",
    )
)
TO_VERSION_12 = (
    "DROP TABLE claims",
    *(f"DROP INDEX {name}" for name in NEW_INDEXES),
    *(f"ALTER TABLE tasks DROP COLUMN {name}" for name in NEW_COLUMNS),
    "ALTER TABLE history DROP COLUMN details",
    *OLD_CONSTRAINTS,
)
TO_VERSION_11 = (
    *TO_VERSION_12,
    "DROP TABLE former_ids",
    "DROP INDEX twins",
    *(f"ALTER TABLE tasks DROP COLUMN {name}" for name in ("is_decided", "twin_of")),
    *(f"ALTER TABLE runs DROP COLUMN {name}" for name in ("is_partial", "verdict")),
    "UPDATE schema_version SET version = 11" if ON_POSTGRES else "PRAGMA user_version = 11",
)
OLD_HISTORY = f"""client_id, task_seq, at, event, key_name, run_id, from_status, to_status, comment, changed, reason,
    assignee FROM history WHERE {OLD_EVENTS}"""
TO_VERSION_9 = (
    *TO_VERSION_11,
    *(f"DROP TABLE {name}" for name in ("webhooks", "delivery_lease", "epochs")),
    "ALTER TABLE api_keys DROP COLUMN for_users",
    *(
        (
            f"DELETE FROM history WHERE NOT {OLD_EVENTS}",
            *(f"ALTER TABLE history DROP COLUMN {name}" for name in ("run_seq", "user_name", "branch")),
            "ALTER TABLE history ALTER COLUMN task_seq SET NOT NULL",
            f"ALTER TABLE history ADD CONSTRAINT history_event_check CHECK ({OLD_EVENTS})",
        )
        if ON_POSTGRES
        else (
            f"""CREATE TABLE old_history (seq INTEGER PRIMARY KEY, client_id TEXT NOT NULL, task_seq INTEGER NOT NULL,
                at TEXT NOT NULL, event TEXT NOT NULL CHECK ({OLD_EVENTS}), key_name TEXT NOT NULL, run_id TEXT,
                from_status TEXT, to_status TEXT, comment TEXT, changed TEXT, reason TEXT, assignee TEXT,
                FOREIGN KEY (client_id, task_seq) REFERENCES tasks (client_id, seq) ON DELETE CASCADE) STRICT""",
            f"INSERT INTO old_history SELECT seq, {OLD_HISTORY}",
            "DROP TABLE history",
            "ALTER TABLE old_history RENAME TO history",
        )
    ),
    "UPDATE schema_version SET version = 9" if ON_POSTGRES else "PRAGMA user_version = 9",
)
TO_VERSION_8 = (
    *TO_VERSION_9,
    *(f"DROP INDEX {name}" for name in ("tasks_by_rule", "branch_tasks_by_rule", "tasks_by_location")),
    "DROP TABLE task_tags",
    *(f"ALTER TABLE tasks DROP COLUMN {name}" for name in ("rule", "location", "tags")),
    "UPDATE schema_version SET version = 8" if ON_POSTGRES else "PRAGMA user_version = 8",
)


@pytest.fixture
def migrated(app: flask.Flask, tmp_path: Path) -> Iterator[Callable[..., flask.Flask]]:
    """A function that downgrades the database with SQL and returns an application that migrated it again."""
    applications = list[flask.Flask]()

    def migrate(*statements: str) -> flask.Flask:
        with database_of(app).transaction() as connection:
            for statement in statements:
                connection.execute(statement)
        database_of(app).close()
        applications.append(create_app(db=db_at(tmp_path / "findings.db")))
        return applications[0]

    yield migrate
    database_of(applications[0]).close()
    assert integrity_errors_of(tmp_path / "findings.db") == []


@pytest.mark.modules
def test_migrated_history_becomes_events_with_branches(
    client: Client, run: str, migrated: Callable[..., flask.Flask]
) -> None:
    topic = client.start(branch="topic")
    tasks = [client.add(run, externalId="a"), client.add(topic, externalId="b")]
    client.triage(tasks[0], "dismissed", comment="seen")
    before = [client.history(each) for each in tasks]
    client = client_of(migrated(*TO_VERSION_9))
    assert [client.history(each) for each in tasks] == before
    client.finish(topic)
    events = client.read("events")["events"]
    assert [(each["type"], each["branch"]) for each in events] == [
        ("finding.created", None),
        ("finding.created", "topic"),
        ("finding.status", None),
        ("run.finished", "topic"),
    ]


TO_VERSION_10 = (
    *TO_VERSION_11,
    "DROP TABLE folding",
    "DROP TABLE answer_references",
    "DROP INDEX runs_by_end",
    "UPDATE schema_version SET version = 10" if ON_POSTGRES else "PRAGMA user_version = 10",
    *(
        (
            "DROP INDEX idempotent_answers_by_key",
            "ALTER TABLE idempotent_answers DROP COLUMN seq",
            "ALTER TABLE idempotent_answers ADD PRIMARY KEY (client_id, key_id, method, path, idempotency_key)",
        )
        if ON_POSTGRES
        else (
            """CREATE TABLE old_answers (client_id TEXT NOT NULL, key_id TEXT NOT NULL, method TEXT NOT NULL,
                path TEXT NOT NULL, idempotency_key TEXT NOT NULL, body_hash TEXT NOT NULL, status INTEGER NOT NULL,
                location TEXT, body TEXT NOT NULL, created_at TEXT NOT NULL,
                PRIMARY KEY (client_id, key_id, method, path, idempotency_key)) STRICT""",
            """INSERT INTO old_answers SELECT client_id, key_id, method, path, idempotency_key, body_hash, status,
                location, body, created_at FROM idempotent_answers""",
            "DROP TABLE idempotent_answers",
            "ALTER TABLE old_answers RENAME TO idempotent_answers",
        )
    ),
)


@pytest.mark.modules
def test_stored_responses_and_their_references_survive_a_migration(
    client: Client, run: str, migrated: Callable[..., flask.Flask]
) -> None:
    second_run = post(client, "runs", {"projectType": "web"}).json["id"]
    sent = {"runs": {"projectType": "web"}, f"runs/{run}/tasks": task(), "project-types": {"name": "new"}}
    responses = {path: post(client, path, body) for path, body in sent.items()}
    task_id = responses[f"runs/{run}/tasks"].json["tasks"][0]["id"]
    patches = {f"tasks/{task_id}": {"comment": "x"}, "tasks": {"comment": "x", "ids": [task_id, client.add(run)]}}
    patch = partial(client.patch, headers={"Idempotency-Key": "k"})
    for path, body in patches.items():
        assert patch(f"{API}/{path}", json=body).status_code == 200
    tag = client.get(f"{API}/tasks").headers["ETag"]
    client = clients.client_with(migrated(*TO_VERSION_10), client.key)
    assert client.get(f"{API}/tasks", headers={"If-None-Match": tag}).status_code == 200
    assert {path: post(client, path, body).data for path, body in sent.items()} == {
        path: response.data for path, response in responses.items()
    }
    for path in (f"tasks/{task_id}", f"runs/{second_run}", "project-types/new"):
        client.remove(path)
    assert [post(client, path, body).status_code for path, body in sent.items()] == [409, 409, 409]
    patch = partial(client.patch, headers={"Idempotency-Key": "k"})
    assert [patch(f"{API}/{path}", json=body).status_code for path, body in patches.items()] == [404, 409]


@pytest.mark.modules
def test_decisions_and_partial_runs_are_known_after_a_migration(
    client: Client, run: str, migrated: Callable[..., flask.Flask]
) -> None:
    for name in ("decided", "moved on", "suppressed", "commented"):
        client.add(run, externalId=name, status="dismissed" if name == "suppressed" else "open")
    ids = {each["externalId"]: each["id"] for each in client.read("tasks")["tasks"]}
    client.triage(ids["decided"], "dismissed")
    client.triage(ids["moved on"], "in_progress")
    client.triage(ids["commented"], comment="x")
    partial_run = start_on(client, None)
    client.add(partial_run, rule="not-checked", externalId="n", status="dismissed")
    client.finish(partial_run)
    twins = [f"{'a' * 40}{end}" for end in ("", "-2", "-x", "-3y")]
    client.submit(run, *(task(externalId=name) for name in twins))
    client = client_of(migrated(*TO_VERSION_11))
    with database_of(client.application).transaction() as connection:
        numbered = connection.execute("SELECT external_id, twin_of FROM tasks WHERE twin_of IS NOT NULL").fetchall()
    assert numbered == [(twins[1], twins[0])]
    again = start_on(client, None)
    reported = {"decided": "open", "moved on": "dismissed", "suppressed": "open", "commented": "dismissed"}
    for name, status in reported.items():
        client.add(again, externalId=name, status=status)
    statuses = {name: client.read(f"tasks/{each}")["status"] for name, each in ids.items()}
    assert statuses == reported | {"decided": "dismissed", "moved on": "in_progress"}
    later = start_on(client, None)
    client.finish(later)
    assert client.read(f"runs/{later}/gate")["baseline"] == partial_run  # no complete run has ended yet
    client.finish(again)
    assert client.read(f"runs/{later}/gate")["baseline"] == again
    assert client.read(f"runs/{partial_run}")["verdict"] is None


@pytest.mark.modules
def test_keys_history_and_event_ids_survive_the_migration_that_adds_claims(
    app: flask.Flask, client: Client, run: str, migrated: Callable[..., flask.Flask]
) -> None:
    reader, (ada,) = client_of(app, "read", name="reader"), clients.users_of(app, "Ada", level="agent")
    task_id = client.add(run)
    client.triage(task_id, "dismissed", reason="duplicate", comment="seen", assignee="Ada")
    deleted = client.start()
    events, history = client.read("events")["events"], client.history(task_id)
    client.remove(f"runs/{deleted}")  # whose event had the last id
    app = migrated(*TO_VERSION_12)
    ada, reader, client = (clients.client_with(app, each.key) for each in (ada, reader, client))
    ada.environ_base["HTTP_FINDINGS_USER"] = "Ada"
    assert [each.read("me")["level"] for each in (reader, ada, client)] == ["read", "agent", "full"]
    assert (client.history(task_id), client.read("events")["events"]) == (history, events[:-1])
    person = client_of(app, "triage", name="person")
    person.triage(task_id, "open", severity="low", links=[LINK])
    held = ada.request_json("POST", "tasks/claim", 200, json={"ids": [task_id]})["tasks"][0]["claim"]
    assert (held["by"], held["user"]) == ("proxy", "Ada")
    later = client.read("events", after=events[-2]["id"])["events"]
    assert [each["type"].partition(".")[2] for each in later] == ["status", "severity", "linked", "claimed"]
    assert {each["id"] for each in later}.isdisjoint(each["id"] for each in events)


@pytest.mark.modules
def test_migration_sets_rule_location_and_tags_of_sarif_tasks(
    client: Client, run: str, migrated: Callable[..., flask.Flask]
) -> None:
    known = {"tool": "bandit", "ruleId": "B101", "file": "src/é.py", "line": 3, "tags": ["a", "x" * 65, "a", "b\n"]}
    long = {"tool": "t", "ruleId": "r" * 500, "file": "d/" * 1000 + "end.py", "tags": [f"t{n}" for n in range(40)]}
    tasks = {name: client.add(run, extensions=each) for name, each in (("known", known), ("long", long))}
    tasks |= {"odd": client.add(run, extensions={"tool": "t", "ruleId": 1, "file": "", "line": True, "tags": {"a": 1}})}
    tasks |= {"agents": client.add(run, extensions=known | {"tool": ["bandit"]}), "bare": client.add(run)}
    tasks |= {"branch": client.add(client.start(branch="topic"), extensions=known)}
    tasks |= {"unruled": client.add(run, extensions={"tool": "T", "ruleId": " ", "file": "src/unruled.py"})}
    client = client_of(migrated(*TO_VERSION_8))
    labels = {name: [client.read(f"tasks/{each}")[field] for field in MARKS] for name, each in tasks.items()}
    assert labels.pop("long") == ["r" * 255 + "…", f"…{('d/' * 1000 + 'end.py')[-1023:]}", [f"t{n}" for n in range(20)]]
    assert labels.pop("unruled") == [None, "src/unruled.py", []]
    empty, filled = [None, None, []], ["B101", "src/é.py:3", ["a", "b"]]
    assert labels == {"known": filled, "branch": filled, "odd": empty, "agents": empty, "bare": empty}
    for query in ({"rule": "B101"}, {"tag": "b"}, {"location": "src/é.py"}, {"q": "B101 E.PY"}, {"q": "unruled"}):
        assert client.read("tasks", mainLine="true", **query)["total"] == 1


@pytest.mark.sqlite
def test_wal_shrinks_after_a_long_read(server: Server) -> None:
    path, wal = f"{API}/runs/{server.start_run()}/tasks", server.db.with_name("served.db-wal")
    batch = {"tasks": [task(evidence=[{"content": "x" * 200_000}])] * 10}
    with closing(sqlite3.connect(server.db, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT COUNT(*) FROM tasks").fetchone() == (0,)
        for _ in range(40):
            assert server.request("POST", path, batch).status_code == 201
        assert wal.stat().st_size > LARGE_WAL
        assert reader.execute("SELECT COUNT(*) FROM tasks").fetchone() == (0,)
        reader.execute("COMMIT")

    def shrinks() -> bool:
        assert server.request("POST", path, task()).status_code == 201
        return wal.stat().st_size <= LARGE_WAL

    wait_until(shrinks)


@pytest.mark.sqlite
def test_wal_shrinks_although_slow_reads_always_overlap(
    app: flask.Flask, client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 128 * KIB
    for name in ("LARGE_WAL", "MOST_WAL"):
        monkeypatch.setattr(findings_service, name, limit)
    database, ended, began = database_of(app), threading.Event(), Counter[str]()

    def read(lane: str, other: str) -> None:
        while not ended.is_set():
            with database.separate_reader(lane) as connection:
                connection.execute("SELECT COUNT(*) FROM tasks").fetchone()
                began[lane] += 1
                before, until = began[other], time.monotonic() + 1
                while began[other] == before and time.monotonic() < until and not ended.is_set():
                    time.sleep(0.1)
            time.sleep(0.01)

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read, *lanes) for lanes in (("read", "export"), ("export", "read"))]
        try:
            wait_until(lambda: client.add(run) and database.wal_size() > limit)
            wait_until(lambda: client.add(run) and database.wal_size() < limit)
        finally:
            ended.set()
    assert [reader.result() for reader in readers] == [None, None]


@pytest.mark.sqlite
def test_wal_stays_small_under_steady_writes(server: Server) -> None:
    path, wal = f"{API}/runs/{server.start_run()}/tasks", server.db.with_name("served.db-wal")
    batch = {"tasks": [task(evidence=[{"content": "x" * 100_000}])] * 10}
    sizes = []
    for _ in range(80):
        assert server.request("POST", path, batch).status_code == 201
        sizes.append(wal.stat().st_size)
    assert max(sizes) < LARGE_WAL
