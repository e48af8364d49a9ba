"""Former external ids: a finding whose external id changes keeps its decision."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients import Client, assert_problem, cases, rows_of, task
from tests.scenarios import gate


def report(client: Client, *tasks: dict[str, Any], branch: str | None = None) -> list[tuple[str, str]]:
    """Report tasks in a new run and return the id and the result of each."""
    run = client.start(branch=branch)
    submitted = client.submit(run, *tasks)["tasks"]
    client.finish(run)
    return [(each["id"], each["result"]) for each in submitted]


def renamed(name: str, *former: str, **fields: Any) -> dict[str, Any]:
    return task(externalId=name, formerExternalIds=list(former), **fields)


def external_ids(client: Client) -> set[str]:
    return {each["externalId"] for each in client.read("tasks")["tasks"]}


def test_renamed_finding_keeps_its_decision_and_history(client: Client, run: str) -> None:
    [(known, _)] = report(client, task(externalId="old"))
    client.triage(known, "dismissed", reason="accepted_risk")
    assert report(client, renamed("new", "older", "old")) == [(known, "updated")]
    stored = client.read(f"tasks/{known}")
    assert (stored["externalId"], stored["status"], stored["timesSeen"]) == ("new", "dismissed", 2)
    assert client.history(known)[-1]["changed"] == ["externalId"]
    assert report(client, renamed("new", "old")) == [(known, "unchanged")]
    elsewhere = client.start(targetUrl="https://other.example/")
    assert client.submit(elsewhere, renamed("newest", "new"))["tasks"][0]["result"] == "created"


def test_former_id_on_a_branch_matches_the_renamed_finding(client: Client, run: str) -> None:
    [(known, _)] = report(client, task(externalId="old", severity="critical"))
    report(client, renamed("new", "old", severity="critical"))
    assert report(client, task(externalId="old", severity="critical"), branch="fix") == [(known, "unchanged")]
    assert external_ids(client) == {"new"}
    assert gate(client, client.read("runs")["runs"][0]["id"])["ignored"]["known"] == 1
    # The rename is reverted.
    assert report(client, task(externalId="old", severity="critical")) == [(known, "updated")]
    assert external_ids(client) == {"old"}
    assert report(client, task(externalId="new", severity="critical")) == [(known, "updated")]


def test_branch_cannot_rename_a_finding_of_the_main_line(client: Client, run: str) -> None:
    [(known, _)] = report(client, task(externalId="old", severity="critical"))
    before = client.read(f"tasks/{known}")
    assert report(client, renamed("new", "old", severity="critical"), branch="fix") == [(known, "unchanged")]
    assert client.read(f"tasks/{known}") == before
    assert gate(client, client.read("runs")["runs"][0]["id"])["pass"]
    assert report(client, task(externalId="new"), branch="other")[0][1] == "created"  # without its former id


def test_branch_renames_findings_of_branches_and_matches_former_ids(client: Client, run: str) -> None:
    [(known, _)] = report(client, task(externalId="old"), branch="fix")
    assert report(client, renamed("new", "old"), branch="fix") == [(known, "updated")]
    [(other, result)] = report(client, renamed("other", "another"))
    assert (result, external_ids(client)) == ("created", {"new", "other"})
    assert report(client, task(externalId="another"), branch="fix") == [(other, "unchanged")]


def test_former_ids_without_an_external_id_are_not_stored(client: Client, run: str) -> None:
    report(client, task(formerExternalIds=["old"]))
    assert report(client, renamed("old", "older"))[0][1] == "created"


TAKEN_IDS = cases(
    own_id_comes_first=([renamed("new", "old")], {"old", "new"}, "unchanged"),
    another_report_has_the_id=([renamed("other", "old"), task(externalId="old")], {"old", "new", "other"}, "created"),
)


@pytest.mark.parametrize(("batch", "stored", "result"), TAKEN_IDS)
def test_former_id_matches_only_if_no_other_report_has_the_finding(
    client: Client, run: str, batch: list[dict[str, Any]], stored: set[str], result: str
) -> None:
    report(client, task(externalId="old"), task(externalId="new"))
    assert report(client, *batch)[0][1] == result
    assert external_ids(client) == stored


def test_only_one_report_renames_a_finding(client: Client, run: str) -> None:
    [(known, _)] = report(client, task(externalId="old"))
    first, second = report(client, renamed("one", "old"), renamed("two", "old"))
    assert (first, second[1]) == ((known, "updated"), "created")
    run_id = client.start()
    client.submit(run_id, task(externalId="one"))
    # The run already reported the finding.
    assert client.submit(run_id, renamed("three", "one"))["tasks"][0]["result"] == "created"


def test_latest_five_former_ids_are_kept_until_the_finding_is_deleted(client: Client, run: str) -> None:
    [(known, _)] = report(client, task(externalId="a0"))
    for number in range(1, 8):
        assert report(client, renamed(f"a{number}", f"a{number - 1}")) == [(known, "updated")]
    query = "SELECT external_id FROM former_ids ORDER BY seq"
    assert [name for (name,) in rows_of(client.application, query)] == ["a2", "a3", "a4", "a5", "a6"]
    client.remove(f"tasks/{known}")
    assert rows_of(client.application, query) == []


@pytest.mark.parametrize("former", [["x"] * 6, [""], ["x" * 257], "x", [5]])
def test_former_ids_are_validated_like_external_ids(client: Client, run: str, former: Any) -> None:
    response = client.post(f"/api/v1/runs/{run}/tasks", json=task(externalId="new", formerExternalIds=former))
    assert assert_problem(response, 422, "validation_failed")["errors"][0]["pointer"].startswith("/formerExternalIds")
