"""Triage: overridden severities, dismissals until a date, duplicates and links; PATCH of several tasks at once."""

from __future__ import annotations

import json
from typing import Any

import flask
import pytest

from tests.clients import API, UNKNOWN_ID, Client, assert_problem, cases, client_of, task
from tests.scenarios import completed_run, expire, gate, run_clock, start_on

LATER = "2120-01-01T00:00:00.000Z"
LINKS = [{"rel": "issue", "url": f"https://code.example/{n}"} for n in range(20)]


def triage_all(client: Client, *ids: str, **decision: Any) -> Any:
    """Send one decision about several tasks and return the response."""
    return client.patch(f"{API}/tasks", json={"ids": ids, **decision})


def listed(client: Client, *ids: str) -> list[dict[str, Any]]:
    """Return the tasks as the response to a batch decision lists them."""
    tasks = (client.read(f"tasks/{task_id}") for task_id in ids)
    return [{name: each[name] for name in ("id", "status", "etag")} for each in tasks]


def test_batch_decision_updates_tasks_in_the_order_sent(client: Client, run: str) -> None:
    ids = [client.add(run, status=status) for status in ("open", "dismissed", "resolved")][::-1]
    before = client.read(f"tasks/{ids[1]}")
    response = triage_all(client, *ids, status="dismissed").json
    assert response == {"updated": 2, "unchanged": 1, "tasks": listed(client, *ids)}
    assert {each["status"] for each in response["tasks"]} == {"dismissed"}
    assert client.read(f"tasks/{ids[1]}") == before
    assert [len(client.history(task_id)) for task_id in ids] == [2, 1, 2]
    response = triage_all(client, *ids, reason="wont_fix", assignee="Ada", comment="Old.").json
    assert response == {"updated": 3, "unchanged": 0, "tasks": listed(client, *ids)}
    assert {client.read(f"tasks/{task_id}")["reason"] for task_id in ids} == {"wont_fix"}
    assert triage_all(client, *ids, comment="Very old.").json == response | {"tasks": listed(client, *ids)}
    entry = client.history(ids[0])[-1]
    assert (entry["event"], entry["comment"]) == ("comment", "Very old.")


REJECTED_BATCHES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown_field": ({"ids": ["OPEN"], "title": "x"}, ["/title"]),
    "ids_missing": ({"ids": ...}, ["/ids"]),
    "ids_null": ({"ids": None}, ["/ids"]),
    "nul": ({"ids": ["OPEN", "\0"]}, ["/ids/1"]),
    "none": ({"ids": []}, ["/ids"]),
    "too_many": ({"ids": ["x"] * 1001}, ["/ids"]),
    "not_a_list": ({"ids": "OPEN"}, ["/ids"]),
    "number": ({"ids": ["OPEN", 1]}, ["/ids/1"]),
    "unknown": ({"ids": ["x", "OPEN", UNKNOWN_ID, "y" * 300]}, ["/ids/0", "/ids/2", "/ids/3"]),
    "duplicate": ({"ids": ["OPEN", "DONE", "OPEN", "OPEN"]}, ["/ids/2", "/ids/3"]),
    "of_another_client": ({"ids": ["OPEN", "THEIRS"]}, ["/ids/1"]),
    "no_decision": ({"ids": ["OPEN", "x"], "status": None}, ["", "/ids/1"]),
    "reason_of_an_open_status": ({"ids": ["DONE"], "reason": "fixed"}, ["/reason"]),
    "etag_of_another_task": ({"ids": ["OPEN"], "ifMatch": {"OPEN": '"a"', "a/~": '"a"'}}, ["/ifMatch/a~1~0"]),
    "etag_not_a_string": ({"ids": ["OPEN"], "ifMatch": {"OPEN": 1}}, ["/ifMatch/OPEN"]),
    "etags_not_an_object": ({"ids": ["OPEN"], "ifMatch": ['"a"']}, ["/ifMatch"]),
    "unknown_id_before_etag": ({"ids": ["OPEN", "x"], "ifMatch": {"OPEN": '"a"', "x": '"a"'}}, ["/ids/1"]),
    "links": ({"ids": ["OPEN"], "links": LINKS[:1]}, ["/links"]),
    "severity": ({"ids": ["OPEN"], "severity": "worst"}, ["/severity"]),
    "until_in_the_past": ({"ids": ["OPEN"], "status": "dismissed", "until": "2020-01-01"}, ["/until"]),
    "until_of_undismissed": ({"ids": ["DONE", "OPEN"], "status": None, "until": LATER}, ["/ids/0", "/ids/1"]),
    "until_of_a_resolved_status": ({"ids": ["OPEN"], "status": "resolved", "until": LATER}, ["/ids/0"]),
    "reason_valid_for_some": ({"ids": ["DONE", "OPEN", "x"], "status": None, "reason": "fixed"}, ["/ids/1", "/ids/2"]),
}


def test_rejected_batch_decision_changes_no_task(app: flask.Flask, client: Client, run: str) -> None:
    other_client = client_of(app, client="other")
    other_client.register("web")
    ids = {"OPEN": client.add(run), "DONE": client.add(run, status="resolved")}
    before = [client.read(f"tasks/{each}") for each in ids.values()]
    ids["THEIRS"] = other_client.add(other_client.start())
    for name, (body, pointers) in REJECTED_BATCHES.items():
        sent = {"status": "in_progress", **body}
        text = json.dumps({field: value for field, value in sent.items() if value is not ...})
        for each, task_id in ids.items():
            text = text.replace(f'"{each}"', f'"{task_id}"')
        problem = assert_problem(client.send("PATCH", f"{API}/tasks", text), 422, "validation_failed")
        assert [each["pointer"] for each in problem["errors"]] == [
            each.replace("OPEN", ids["OPEN"]) for each in pointers
        ], name
        assert [client.read(f"tasks/{ids[each]}") for each in ("OPEN", "DONE")] == before, name


def test_every_problem_of_a_decision_with_the_state_is_reported(client: Client, run: str) -> None:
    body = {"reason": "fixed", "until": LATER, "duplicateOf": UNKNOWN_ID}
    response = client.patch(f"{API}/tasks/{client.add(run)}", json=body)
    problems = assert_problem(response, 422, "validation_failed")["errors"]
    assert [each["pointer"] for each in problems] == ["/reason", "/until", "/duplicateOf", "/duplicateOf"]


# Severity, until, duplicates and links, of one task or several


def decide(client: Client, task_id: str, several: bool, **decision: Any) -> Any:
    """Send a decision about one task, alone or as one of several, and return the response."""
    if several:
        return triage_all(client, task_id, **decision)
    return client.patch(f"{API}/tasks/{task_id}", json=decision)


each_way = pytest.mark.parametrize("several", [False, True], ids=["one", "several"])


@each_way
def test_overridden_severity_counts_everywhere_until_it_is_taken_back(client: Client, run: str, several: bool) -> None:
    client.finish(run)
    completed, later = completed_run(client, None, low="low", medium="medium"), start_on(client, None)
    found = {each["externalId"]: each["id"] for each in client.read("tasks")["tasks"]}

    def counts() -> tuple[Any, ...]:
        return (
            [each["externalId"] for each in client.read("tasks", sort="severity")["tasks"]],
            [each["externalId"] for each in client.read("tasks", severity="critical")["tasks"]],
            client.read("overview")["bySeverity"]["critical"]["open"],
            client.read("groups", by="rule")["groups"][0]["bySeverity"]["critical"],
            client.read(f"runs/{completed}")["summary"]["bySeverity"]["critical"],
            gate(client, completed)["pass"],
        )

    def severities() -> list[str | None]:
        return [client.read(f"tasks/{found['low']}")[name] for name in ("severity", "reportedSeverity")]

    for reported in ("medium", "low"):  # an override is kept also if the reporter has the same severity
        assert decide(client, found["medium"], several, severity="medium").status_code == 200
        client.submit(later, task(externalId="medium", severity=reported))
        whole = client.read(f"tasks/{found['medium']}")
        assert (whole["severity"], whole["reportedSeverity"]) == ("medium", reported)
    assert [each["event"] for each in client.history(found["medium"])[1:]] == ["severity", "reported"]
    before, overridden = counts(), (["low", "medium"], ["low"], 1, 1, 1, False)
    for severity, updated in (("critical", 1), ("critical", 0)):
        updated_at = client.read(f"tasks/{found['low']}")["updatedAt"]
        assert decide(client, found["low"], several, severity=severity).status_code == 200
        assert (counts(), severities()) == (overridden, ["critical", "low"])
        assert (client.read(f"tasks/{found['low']}")["updatedAt"] > updated_at) == updated
    for severity, changed in (("low", []), ("info", ["reportedSeverity"]), ("critical", ["reportedSeverity"])):
        result = client.submit(later, task(externalId="low", severity=severity))["tasks"][0]["result"]
        assert (result, client.history(found["low"])[-1]["changed"]) == ("updated" if changed else "unchanged", changed)
        assert (counts(), severities()) == (overridden, ["critical", severity])
    client.submit(later, task(externalId="low", severity="low", status="dismissed"))  # it is not decided
    assert (client.read(f"tasks/{found['low']}")["status"], severities()) == ("dismissed", ["critical", "low"])
    client.submit(later, task(externalId="low", severity="low"))
    assert client.finish(later, gate={"only": "all"})["verdict"]["offenders"] == 1
    for _ in range(2):
        assert decide(client, found["low"], several, severity="reported").status_code == 200
        assert (counts(), severities()) == (before, ["low", None])
    entries = [each for each in client.history(found["low"]) if each["event"] == "severity"]
    assert [(each["severity"], each["from"], each["to"]) for each in entries] == [
        *(("critical", None, None), ("low", None, None))
    ]


def test_clock_opens_a_task_at_the_end_of_its_dismissal_without_deciding(
    app: flask.Flask, client: Client, run: str
) -> None:
    found = {name: client.add(run, externalId=name, status="dismissed") for name in ("suppressed", "reported")}
    found["decided"] = client.add(run, externalId="decided")
    client.triage(found["decided"], "dismissed", reason="accepted_risk")
    assert triage_all(client, *found.values(), until=LATER).json["updated"] == 3
    client.add(run, externalId="reported")  # a report that opens it clears the time
    assert client.read(f"tasks/{found['reported']}")["until"] is None
    expire(app, "tasks")
    run_clock(app)
    for name in ("suppressed", "decided"):
        whole, entry = client.read(f"tasks/{found[name]}"), client.history(found[name])[-1]
        assert [whole[each] for each in ("status", "reason", "until")] == ["open", None, None]
        assert [entry[each] for each in ("event", "by", "from", "to")] == ["status", None, "dismissed", "open"]
    last = [(each["by"], each["to"]) for each in client.read("events", type="finding.status")["events"]][-2:]
    assert (last, client.read("overview")["days"][-1]["reopened"]) == ([(None, "open")] * 2, 3)
    for name, status in (("suppressed", "dismissed"), ("decided", "open")):
        client.add(run, externalId=name, status="dismissed")
        assert client.read(f"tasks/{found[name]}")["status"] == status


DUPLICATE = {"status": "dismissed", "reason": "duplicate"}


@each_way
@pytest.mark.parametrize(
    ("name", "change", "original", "until"),
    cases(  # a task, a decision, and what the task then has
        later=("COPY", {"until": "2121-06-01T02:00:00+02:00"}, "ORIGINAL", "2121-06-01T00:00:00.000Z"),
        not_until=("COPY", {"until": ""}, "ORIGINAL", None),
        of_another=("COPY", {"duplicateOf": "OTHER"}, "OTHER", LATER),
        same_status=("COPY", {"status": "dismissed", "reason": "duplicate"}, "ORIGINAL", LATER),
        other_fields=("COPY", {"comment": "x", "assignee": "Ada", "severity": "low"}, "ORIGINAL", LATER),
        other_reason=("COPY", {"reason": "wont_fix"}, None, LATER),
        opened=("COPY", {"status": "open"}, None, None),
        moved=("COPY", {"status": "resolved", "reason": "duplicate"}, None, None),
        dismissed=("OTHER", {**DUPLICATE, "duplicateOf": "ORIGINAL", "until": "2120-01-01"}, "ORIGINAL", LATER),
        resolved=("OTHER", {**DUPLICATE, "status": "resolved", "duplicateOf": "ORIGINAL"}, "ORIGINAL", None),
    ),
)
def test_until_and_duplicate_of_go_when_the_status_or_the_reason_changes(
    client: Client, run: str, several: bool, name: str, change: dict[str, Any], original: str | None, until: str | None
) -> None:
    ids = duplicates(client, run)
    assert decide(client, ids[name], several, **with_ids(change, ids)).status_code == 200
    whole = client.read(f"tasks/{ids[name]}")
    assert (whole["duplicateOf"], whole["until"]) == (original and ids[original], until)


def duplicates(client: Client, run: str) -> dict[str, str]:
    """Return the ids of three tasks: an original, its duplicate that is dismissed for some time, and another one."""
    ids = {each: client.add(run) for each in ("ORIGINAL", "COPY", "OTHER")}
    client.triage(ids["COPY"], until=LATER, duplicateOf=ids["ORIGINAL"], **DUPLICATE)
    return ids


def with_ids(change: dict[str, Any], ids: dict[str, str]) -> dict[str, Any]:
    return {field: ids.get(value, value) for field, value in change.items()}


@each_way
def test_only_an_original_may_have_duplicates(app: flask.Flask, client: Client, run: str, several: bool) -> None:
    other_client = client_of(app, client="other")
    other_client.register("web")
    ids = duplicates(client, run) | {"THEIRS": other_client.add(other_client.start())}
    before = client.read("tasks")
    for name, original, decision in (
        *(("OTHER", each, DUPLICATE) for each in ("OTHER", "COPY", "THEIRS", UNKNOWN_ID)),
        *(("ORIGINAL", "OTHER", DUPLICATE), ("OTHER", "ORIGINAL", {}), ("OTHER", "ORIGINAL", {"status": "dismissed"})),
        ("OTHER", "ORIGINAL", {"status": "dismissed", "reason": "wont_fix"}),
    ):
        response = decide(client, ids[name], several, **with_ids({**decision, "duplicateOf": original}, ids))
        at_member = not several or decision == DUPLICATE
        assert_problem(response, 422, "validation_failed", "/duplicateOf" if at_member else "/ids/0")
        assert client.read("tasks") == before


def test_links_are_replaced_as_a_whole(client: Client, run: str) -> None:
    task_id = client.add(run)
    two, many, one = LINKS[1::-1], LINKS, LINKS[:1]
    for links, stored, events in ((two, two, 1), (many, many, 2), (many, many, 2), (one * 2, one, 3), ([], [], 4)):
        whole = client.triage(task_id, links=links)
        history = client.history(task_id)[1:]
        assert (whole["links"], client.read("tasks")["tasks"][0]["links"]) == (stored, stored)
        assert [(each["event"], each["changed"]) for each in history] == [("linked", ["links"])] * events
        assert whole["updatedAt"] == history[-1]["at"]


# Batches


def test_batch_decision_checks_if_match_for_each_task(client: Client, run: str) -> None:
    ids = [each["id"] for each in client.submit(run, *[task()] * 4)["tasks"]]
    old_etags = {each["id"]: each["etag"] for each in client.read("tasks")["tasks"]}
    response = triage_all(client, *ids, status="in_progress", ifMatch=old_etags)
    new_etags = {each["id"]: each["etag"] for each in response.json["tasks"]}
    assert (response.status_code, response.json["updated"]) == (200, 4)
    etags = new_etags | {ids[0]: old_etags[ids[0]], ids[2]: "W/" + new_etags[ids[2]]}
    conflict = triage_all(client, *ids, reason="fixed", ifMatch=etags)
    problem = assert_problem(conflict, 412, "changed_meanwhile", f"/ifMatch/{ids[0]}")
    assert [each["pointer"] for each in problem["errors"]] == [f"/ifMatch/{ids[0]}", f"/ifMatch/{ids[2]}"]
    assert listed(client, *ids) == response.json["tasks"]
    rejected = triage_all(client, *ids, reason="fixed", ifMatch=new_etags)
    assert_problem(rejected, 422, "validation_failed", "/ids/0")
    assert triage_all(client, *ids, status="resolved", ifMatch={ids[1]: new_etags[ids[1]]}).json["updated"] == 4


def test_batch_of_1000_tasks_lists_at_most_100_errors(client: Client, run: str) -> None:
    ids = [each["id"] for each in client.submit(run, *[task()] * 1000)["tasks"]]
    before = client.read("tasks", limit=200)
    conflict = triage_all(client, *ids, status="dismissed", ifMatch=dict.fromkeys(ids, '"a"'))
    problem = assert_problem(conflict, 412, "changed_meanwhile")
    assert (len(problem["errors"]), problem["detail"].split()[0]) == (100, "1,000")
    assert client.read("tasks", limit=200) == before
    response = triage_all(client, *ids, status="dismissed", reason="duplicate", assignee="Ada", comment="x").json
    assert (response["updated"], response["unchanged"], [each["id"] for each in response["tasks"]]) == (1000, 0, ids)
    assert client.read("tasks", status="dismissed")["total"] == 1000
    assert client.read(f"runs/{run}")["summary"]["byStatus"]["dismissed"] == 1000
