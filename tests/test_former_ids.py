"""Earlier external ids: a finding whose name has changed keeps what was decided about it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients import Client, assert_problem, cases, rows_of, task
from tests.scenarios import gate


def report(client: Client, *tasks: dict[str, Any], branch: str | None = None) -> list[tuple[str, str]]:
    """Report tasks in a run, and return their ids with what became of them."""
    run = client.start(branch=branch)
    submitted = client.submit(run, *tasks)["tasks"]
    client.finish(run)
    return [(each["id"], each["result"]) for each in submitted]


def renamed(name: str, *former: str, **fields: Any) -> dict[str, Any]:
    """Return a task with names that it had before."""
    return task(externalId=name, formerExternalIds=list(former), **fields)


def names(client: Client) -> set[str]:
    """Return the external ids that are stored."""
    return {each["externalId"] for each in client.read("tasks")["tasks"]}


def test_a_renamed_finding_keeps_its_decision_and_its_history(client: Client, run: str) -> None:
    [(known, _)] = report(client, task(externalId="old"))
    client.triage(known, "dismissed", reason="accepted_risk")
    assert report(client, renamed("new", "older", "old")) == [(known, "updated")]
    stored = client.read(f"tasks/{known}")
    assert (stored["externalId"], stored["status"], stored["timesSeen"]) == ("new", "dismissed", 2)
    assert client.history(known)[-1]["changed"] == ["externalId"]
    assert report(client, renamed("new", "old")) == [(known, "unchanged")]
    elsewhere = client.start(targetUrl="https://other.example/")
    assert client.submit(elsewhere, renamed("newest", "new"))["tasks"][0]["result"] == "created"


def test_a_branch_that_still_has_the_old_name_is_known(client: Client, run: str) -> None:
    [(known, _)] = report(client, task(externalId="old", severity="critical"))
    report(client, renamed("new", "old", severity="critical"))
    assert report(client, task(externalId="old", severity="critical"), branch="fix") == [(known, "unchanged")]
    assert names(client) == {"new"}
    assert gate(client, client.read("runs")["runs"][0]["id"])["ignored"]["known"] == 1
    # The rename is reverted.
    assert report(client, task(externalId="old", severity="critical")) == [(known, "updated")]
    assert names(client) == {"old"}
    assert report(client, task(externalId="new", severity="critical")) == [(known, "updated")]


def test_a_branch_that_renames_what_the_main_line_knows_stores_nothing_and_passes(client: Client, run: str) -> None:
    [(known, _)] = report(client, task(externalId="old", severity="critical"))
    before = client.read(f"tasks/{known}")
    assert report(client, renamed("new", "old", severity="critical"), branch="fix") == [(known, "unchanged")]
    assert client.read(f"tasks/{known}") == before
    assert gate(client, client.read("runs")["runs"][0]["id"])["pass"]
    assert report(client, task(externalId="new"), branch="other")[0][1] == "created"  # it says no former one


def test_a_branch_renames_what_only_branches_know_and_knows_what_new_findings_were_called(
    client: Client, run: str
) -> None:
    [(known, _)] = report(client, task(externalId="old"), branch="fix")
    assert report(client, renamed("new", "old"), branch="fix") == [(known, "updated")]
    [(other, result)] = report(client, renamed("other", "another"))
    assert (result, names(client)) == ("created", {"new", "other"})
    assert report(client, task(externalId="another"), branch="fix") == [(other, "unchanged")]


def test_what_has_no_name_keeps_no_former_ones(client: Client, run: str) -> None:
    report(client, task(formerExternalIds=["old"]))
    assert report(client, renamed("old", "older"))[0][1] == "created"


UNCLAIMED = cases(
    own_name_comes_first=([renamed("new", "old")], {"old", "new"}, "unchanged"),
    another_report_has_the_name=([renamed("other", "old"), task(externalId="old")], {"old", "new", "other"}, "created"),
)


@pytest.mark.parametrize(("batch", "stored", "result"), UNCLAIMED)
def test_a_former_name_counts_where_nothing_else_is_about_the_finding(
    client: Client, run: str, batch: list[dict[str, Any]], stored: set[str], result: str
) -> None:
    report(client, task(externalId="old"), task(externalId="new"))
    assert report(client, *batch)[0][1] == result
    assert names(client) == stored


def test_one_finding_is_renamed_by_one_report(client: Client, run: str) -> None:
    [(known, _)] = report(client, task(externalId="old"))
    first, second = report(client, renamed("one", "old"), renamed("two", "old"))
    assert (first, second[1]) == ((known, "updated"), "created")
    again = client.start()
    client.submit(again, task(externalId="one"))
    assert client.submit(again, renamed("three", "one"))["tasks"][0]["result"] == "created"  # the run has reported it


def test_the_latest_five_names_are_kept_and_go_with_the_finding(client: Client, run: str) -> None:
    [(known, _)] = report(client, task(externalId="a0"))
    for number in range(1, 8):
        assert report(client, renamed(f"a{number}", f"a{number - 1}")) == [(known, "updated")]
    kept = "SELECT external_id FROM former_ids ORDER BY seq"
    assert [name for (name,) in rows_of(client.application, kept)] == ["a2", "a3", "a4", "a5", "a6"]
    client.remove(f"tasks/{known}")
    assert rows_of(client.application, kept) == []


@pytest.mark.parametrize("former", [["x"] * 6, [""], ["x" * 257], "x", [5]])
def test_former_names_have_the_rules_of_names(client: Client, run: str, former: Any) -> None:
    answer = client.post(f"/api/v1/runs/{run}/tasks", json=task(externalId="new", formerExternalIds=former))
    assert assert_problem(answer, 422, "validation_failed")["errors"][0]["pointer"].startswith("/formerExternalIds")
