"""The gate: pass or fail a run by its new and severe findings."""

from __future__ import annotations

from typing import Any

import flask
import pytest

from tests.clients import API, SEVERITIES, UNKNOWN_ID, Client, assert_problem, client_of, task
from tests.scenarios import completed_run, gate
from tests.surveys import Survey, same_target


def counts_of(verdict: dict[str, Any]) -> tuple[int, ...]:
    """Return the counts of a verdict: reported, offenders, the four ignored kinds, missing."""
    assert verdict["reported"] == verdict["offendersTotal"] + sum(verdict["ignored"].values())
    return (verdict["reported"], verdict["offendersTotal"], *verdict["ignored"].values(), verdict["missing"])


def test_gate_fails_only_for_new_findings_at_or_above_fail_on(client: Client, run: str) -> None:
    baseline = completed_run(client, None, known="critical", fixed="low")
    for _ in range(2):  # an identical run gets the same verdict
        pull_request = completed_run(client, "a", known="critical", bad="high", worse="critical", minor="medium")
        verdict = gate(client, pull_request)
        assert [each["externalId"] for each in verdict.pop("offenders")] == ["worse", "bad"]
        assert verdict == {
            "pass": False,
            "reason": "2 new findings of severity high or higher.",
            "runId": pull_request,
            "baseline": baseline,
            "failOn": "high",
            "only": "new",
            "reported": 4,
            "offendersTotal": 2,
            "ignored": {"dismissed": 0, "resolved": 0, "belowBar": 1, "known": 1},
            "missing": 1,
        }


@pytest.mark.parametrize("branch", [None, "a"])
def test_each_reported_finding_is_counted_in_exactly_one_category(client: Client, run: str, branch: str | None) -> None:
    completed_run(client, branch, dismissed="critical", resolved="low")
    baseline = completed_run(client, branch, known="critical", fixed="low")
    last = completed_run(
        client, branch, known="critical", new="high", small="low", dismissed="critical", resolved="low"
    )
    for name in ("dismissed", "resolved"):
        client.triage(client.read("tasks", externalId=name)["tasks"][0]["id"], name)
    for query, expected in (
        ({}, (5, 1, 1, 1, 1, 1, 1)),
        ({"failOn": "critical"}, (5, 0, 1, 1, 2, 1, 1)),
        ({"failOn": "info"}, (5, 2, 1, 1, 0, 1, 1)),
        ({"only": "all"}, (5, 2, 1, 1, 1, 0, 1)),
        ({"failOn": "none"}, (5, 0, 1, 1, 3, 0, 1)),
    ):
        verdict = gate(client, last, baseline=baseline, **query)
        if branch:  # resolved findings count by their severity
            reported, offenders, dismissed, resolved, below_bar, *others = expected
            info = query.get("failOn") == "info"
            expected = (reported, offenders + info, dismissed, 0, below_bar + resolved - info, *others)
        assert counts_of(verdict) == expected
        assert verdict["pass"] is (verdict["offendersTotal"] == 0)
        assert len(verdict["offenders"]) == verdict["offendersTotal"]


def test_all_findings_are_new_without_a_baseline(client: Client, run: str) -> None:
    other_target = client.start()
    client.add(other_target, externalId="x")
    client.finish(other_target)
    client.finish(client.start(targetUrl="https://example.com/"), "failed")
    verdict = gate(client, completed_run(client, "a", x="high"))
    assert (verdict["baseline"], counts_of(verdict)) == (None, (1, 1, 0, 0, 0, 0, 0))
    assert verdict["reason"] == (
        "1 new finding of severity high or higher; all are new, because there is no baseline: "
        "the first completed run of the main line becomes it."
    )


def test_baseline_is_the_previous_completed_run_of_the_main_line(client: Client, run: str) -> None:
    first, _, second = completed_run(client, None), completed_run(client, "b"), completed_run(client, None)
    client.finish(client.start(targetUrl="https://example.com/"), "failed")
    client.start(targetUrl="https://example.com/")
    pull = completed_run(client, "a")
    third = completed_run(client, None)
    assert [gate(client, each)["baseline"] for each in (first, second, pull, third)] == [None, first, second, second]
    assert gate(client, pull, baseline=third)["baseline"] == third


def test_incomparable_baseline_is_rejected(app: flask.Flask, client: Client, run: str) -> None:
    pull_request, failed = completed_run(client, "a"), client.start(targetUrl="https://example.com/")
    client.finish(failed, "failed")
    client.register("cli")
    others = [client.start(), client.start("cli", targetUrl="https://example.com/")]
    for each in others:
        client.finish(each)
    for baseline in (pull_request, run, failed, *others):
        response = client.get(f"{API}/runs/{pull_request}/gate?baseline={baseline}")
        assert_problem(response, 400, "invalid_parameter", "baseline")
    other_client = client_of(app, client="other")
    other_client.register("web")
    their_run = completed_run(other_client, None)
    for baseline in (their_run, UNKNOWN_ID):
        assert_problem(client.get(f"{API}/runs/{pull_request}/gate?baseline={baseline}"), 404, "not_found")
    assert_problem(other_client.get(f"{API}/runs/{pull_request}/gate"), 404, "not_found")


def test_gate_lists_the_50_most_severe_offenders_newest_first(client: Client, run: str) -> None:
    old, new = ([f"{age}-{number}" for number in range(count)] for age, count in (("old", 30), ("new", 40)))
    completed_run(client, None, **dict.fromkeys(old, "high"))
    severities = {name: "critical" if name[-1] in "13579" else "high" for name in (*old, *new)}
    verdict = gate(client, completed_run(client, "a", **severities), only="all")
    listed = [each["externalId"] for each in verdict["offenders"]]
    # The branch reports some known findings as critical; they keep the severity of the main line.
    worst = [name for name in reversed(new) if severities[name] == "critical"]
    rest = [name for name in reversed((*old, *new)) if name not in worst]
    assert (listed, verdict["offendersTotal"]) == ([*worst, *rest][:50], 70)
    assert len(gate(client, verdict["runId"])["offenders"]) == 40


def test_verdicts_equal_a_recount_of_random_runs(survey: Survey) -> None:
    for number, run in enumerate(survey.runs):
        baselines = [
            each["id"]
            for each in survey.runs[:number]
            if same_target(each, run) and (each["branch"], each["status"]) == (None, "completed")
        ]
        statuses = ("open", "in_progress", "resolved") if run["branch"] else ("open", "in_progress")
        new_tasks = [item for item in survey.tasks if survey.is_new_in(item, run["id"]) and item["status"] in statuses]
        for rank, severity in enumerate(SEVERITIES):
            verdict = gate(survey.client, run["id"], failOn=severity)
            offenders = [item["id"] for item in new_tasks if SEVERITIES.index(item["severity"]) <= rank]
            assert verdict["baseline"] == (baselines[-1] if baselines else None)
            assert sorted(each["id"] for each in verdict["offenders"]) == offenders
            assert counts_of(verdict)[:2] == (len(survey.reported[run["id"]]), len(offenders))


def test_verdict_is_stored_when_the_run_completes_and_never_changes(client: Client, run: str) -> None:
    baseline = completed_run(client, None, known="high")
    run_id = client.start(targetUrl="https://example.com/", branch="a")
    client.submit(run_id, *(task(externalId=name, severity="low") for name in ("known", "new")))
    assert client.read(f"runs/{run_id}")["verdict"] is None
    options = {"failOn": "low", "only": "all", "baseline": baseline}
    verdict = client.finish(run_id, gate=options)["verdict"]
    assert verdict == {"pass": False, **options, "new": 1, "offenders": 2}
    client.triage(client.read("tasks", externalId="new")["tasks"][0]["id"], "dismissed")
    client.finish(run_id, gate={"failOn": "none"})  # the verdict does not change
    assert [client.read(f"runs/{run_id}")["verdict"], client.read("runs")["runs"][0]["verdict"]] == [verdict, verdict]
    default = {"pass": True, "failOn": "high", "only": "new", "baseline": None, "new": 0, "offenders": 0}
    for options in (None, {}, dict.fromkeys(("failOn", "only", "baseline"))):
        finished = client.finish(client.start(), gate=options)
        assert finished["verdict"] == default
        default |= {"baseline": finished["id"]}
    assert client.finish(client.start(), "failed")["verdict"] is None


def test_unusable_gate_baseline_is_rejected_and_the_run_keeps_running(client: Client, run: str) -> None:
    for baseline in (run, client.start(), UNKNOWN_ID):
        body = {"status": "completed", "resolveMissing": True, "gate": {"baseline": baseline}}
        response = client.patch(f"{API}/runs/{run}", json=body)
        assert_problem(response, 422, "validation_failed", "/gate/baseline")
    assert client.read(f"runs/{run}")["status"] == "running"


def test_partial_run_is_baseline_only_if_the_last_twenty_are_partial(client: Client, run: str) -> None:
    complete_run = completed_run(client, None, known="high")
    not_checked = task(externalId="x", rule="not-checked", severity="high", location="a.py")
    for number in range(21):
        partial_run = client.start(targetUrl="https://example.com/")
        client.submit(partial_run, not_checked)
        client.finish(partial_run)
        if number in (0, 18, 19):
            assert gate(client, completed_run(client, "a", known="high"))["baseline"] == (
                complete_run if number < 19 else partial_run
            )


def test_not_checked_findings_are_never_known(client: Client, run: str) -> None:
    not_checked = task(externalId="x", rule="not-checked", severity="high", location="a.py")
    for _ in range(2):
        partial_run = client.start(targetUrl="https://example.com/")
        client.submit(partial_run, not_checked)
        client.finish(partial_run)
    verdict = gate(client, partial_run)
    assert (verdict["pass"], [each["externalId"] for each in verdict["offenders"]]) == (False, ["x"])
    assert client.read("tasks", newIn=partial_run)["total"] == 1
    client.triage(client.read("tasks")["tasks"][0]["id"], "dismissed")
    assert gate(client, partial_run)["pass"]
