"""The gate: whether a run may pass."""

from __future__ import annotations

from typing import Any

import flask
import pytest

from tests.clients import API, SEVERITIES, UNKNOWN_ID, Client, assert_problem, client_of, task
from tests.scenarios import completed_run, gate
from tests.surveys import Survey, same_surface


def numbers(verdict: dict[str, Any]) -> tuple[int, ...]:
    """Return what a verdict counts: reported, offenders, the four that are ignored, missing."""
    assert verdict["reported"] == verdict["offendersTotal"] + sum(verdict["ignored"].values())
    return (verdict["reported"], verdict["offendersTotal"], *verdict["ignored"].values(), verdict["missing"])


def test_a_pull_request_fails_for_what_is_new_and_severe_alone(client: Client, run: str) -> None:
    night = completed_run(client, None, known="critical", fixed="low")
    for _ in range(2):  # the same again gets the same verdict
        pull = completed_run(client, "a", known="critical", bad="high", worse="critical", minor="medium")
        verdict = gate(client, pull)
        assert [each["externalId"] for each in verdict.pop("offenders")] == ["worse", "bad"]
        assert verdict == {
            "pass": False,
            "reason": "2 new findings of severity high or higher.",
            "runId": pull,
            "baseline": night,
            "failOn": "high",
            "only": "new",
            "reported": 4,
            "offendersTotal": 2,
            "ignored": {"dismissed": 0, "resolved": 0, "belowBar": 1, "known": 1},
            "missing": 1,
        }


@pytest.mark.parametrize("branch", [None, "a"])
def test_each_finding_is_counted_once_at_the_first_that_fits(client: Client, run: str, branch: str | None) -> None:
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
        if branch:  # where nothing counts as resolved, but by its severity
            reported, offenders, dismissed, resolved, below, *rest = expected
            info = query.get("failOn") == "info"
            expected = (reported, offenders + info, dismissed, 0, below + resolved - info, *rest)
        assert numbers(verdict) == expected
        assert verdict["pass"] is (verdict["offendersTotal"] == 0)
        assert len(verdict["offenders"]) == verdict["offendersTotal"]


def test_without_a_baseline_everything_is_new(client: Client, run: str) -> None:
    other = client.start()
    client.add(other, externalId="x")
    client.finish(other)
    client.finish(client.start(targetUrl="https://example.com/"), "failed")
    verdict = gate(client, completed_run(client, "a", x="high"))
    assert (verdict["baseline"], numbers(verdict)) == (None, (1, 1, 0, 0, 0, 0, 0))
    assert verdict["reason"] == (
        "1 new finding of severity high or higher; all count as new, as there is no baseline: "
        "the main line's first completed run makes one."
    )


def test_the_baseline_is_the_main_lines_last_completed_run_before(client: Client, run: str) -> None:
    first, _, second = completed_run(client, None), completed_run(client, "b"), completed_run(client, None)
    client.finish(client.start(targetUrl="https://example.com/"), "failed")
    client.start(targetUrl="https://example.com/")
    pull = completed_run(client, "a")
    third = completed_run(client, None)
    assert [gate(client, each)["baseline"] for each in (first, second, pull, third)] == [None, first, second, second]
    assert gate(client, pull, baseline=third)["baseline"] == third


def test_a_baseline_that_cannot_be_compared_with_is_refused(app: flask.Flask, client: Client, run: str) -> None:
    pull, failed = completed_run(client, "a"), client.start(targetUrl="https://example.com/")
    client.finish(failed, "failed")
    client.register("cli")
    others = [client.start(), client.start("cli", targetUrl="https://example.com/")]
    for each in others:
        client.finish(each)
    for unfit in (pull, run, failed, *others):
        refused = client.get(f"{API}/runs/{pull}/gate?baseline={unfit}")
        assert_problem(refused, 400, "invalid_parameter", "baseline")
    stranger = client_of(app, client="other")
    stranger.register("web")
    theirs = completed_run(stranger, None)
    for unknown in (theirs, UNKNOWN_ID):
        assert_problem(client.get(f"{API}/runs/{pull}/gate?baseline={unknown}"), 404, "not_found")
    assert_problem(stranger.get(f"{API}/runs/{pull}/gate"), 404, "not_found")


def test_the_worst_fifty_offenders_are_listed_newest_first_within(client: Client, run: str) -> None:
    old, new = ([f"{age}-{number}" for number in range(count)] for age, count in (("old", 30), ("new", 40)))
    completed_run(client, None, **dict.fromkeys(old, "high"))
    severities = {name: "critical" if name[-1] in "13579" else "high" for name in (*old, *new)}
    verdict = gate(client, completed_run(client, "a", **severities), only="all")
    listed = [each["externalId"] for each in verdict["offenders"]]
    # What the main line has is as the main line has it.
    worst = [name for name in reversed(new) if severities[name] == "critical"]
    rest = [name for name in reversed((*old, *new)) if name not in worst]
    assert (listed, verdict["offendersTotal"]) == ([*worst, *rest][:50], 70)
    assert len(gate(client, verdict["runId"])["offenders"]) == 40


def test_a_verdict_is_a_recount_whatever_was_reported(survey: Survey) -> None:
    for number, run in enumerate(survey.runs):
        before = [
            each["id"]
            for each in survey.runs[:number]
            if same_surface(each, run) and (each["branch"], each["status"]) == (None, "completed")
        ]
        standing = ("open", "in_progress", "resolved") if run["branch"] else ("open", "in_progress")
        left = [item for item in survey.tasks if survey.is_new_in(item, run["id"]) and item["status"] in standing]
        for bar, severity in enumerate(SEVERITIES):
            verdict = gate(survey.client, run["id"], failOn=severity)
            offenders = [item["id"] for item in left if SEVERITIES.index(item["severity"]) <= bar]
            assert verdict["baseline"] == (before[-1] if before else None)
            assert sorted(each["id"] for each in verdict["offenders"]) == offenders
            assert numbers(verdict)[:2] == (len(survey.reported[run["id"]]), len(offenders))


def test_a_verdict_is_kept_as_it_was_when_the_run_was_completed(client: Client, run: str) -> None:
    night = completed_run(client, None, known="high")
    pull = client.start(targetUrl="https://example.com/", branch="a")
    client.submit(pull, *(task(externalId=name, severity="low") for name in ("known", "new")))
    assert client.read(f"runs/{pull}")["verdict"] is None
    bar = {"failOn": "low", "only": "all", "baseline": night}
    told = client.finish(pull, gate=bar)["verdict"]
    assert told == {"pass": False, **bar, "new": 1, "offenders": 2}
    client.triage(client.read("tasks", externalId="new")["tasks"][0]["id"], "dismissed")
    client.finish(pull, gate={"failOn": "none"})  # which changes nothing of it
    assert [client.read(f"runs/{pull}")["verdict"], client.read("runs")["runs"][0]["verdict"]] == [told, told]
    default = {"pass": True, "failOn": "high", "only": "new", "baseline": None, "new": 0, "offenders": 0}
    for bar in (None, {}, dict.fromkeys(("failOn", "only", "baseline"))):
        last = client.finish(client.start(), gate=bar)
        assert last["verdict"] == default
        default |= {"baseline": last["id"]}
    assert client.finish(client.start(), "failed")["verdict"] is None


def test_a_verdict_with_a_baseline_that_is_unfit_is_refused_and_the_run_goes_on(client: Client, run: str) -> None:
    for unfit in (run, client.start(), UNKNOWN_ID):
        body = {"status": "completed", "resolveMissing": True, "gate": {"baseline": unfit}}
        refused = client.patch(f"{API}/runs/{run}", json=body)
        assert_problem(refused, 422, "validation_failed", "/gate/baseline")
    assert client.read(f"runs/{run}")["status"] == "running"


def test_a_partial_run_is_a_baseline_only_where_all_of_the_last_twenty_are(client: Client, run: str) -> None:
    whole = completed_run(client, None, known="high")
    failed = task(externalId="x", rule="not-checked", severity="high", location="a.py")
    for number in range(21):
        part = client.start(targetUrl="https://example.com/")
        client.submit(part, failed)
        client.finish(part)
        if number in (0, 18, 19):
            assert gate(client, completed_run(client, "a", known="high"))["baseline"] == (
                whole if number < 19 else part
            )


def test_what_was_not_checked_is_never_known(client: Client, run: str) -> None:
    failed = task(externalId="x", rule="not-checked", severity="high", location="a.py")
    for _ in range(2):
        part = client.start(targetUrl="https://example.com/")
        client.submit(part, failed)
        client.finish(part)
    verdict = gate(client, part)
    assert (verdict["pass"], [each["externalId"] for each in verdict["offenders"]]) == (False, ["x"])
    assert client.read("tasks", newIn=part)["total"] == 1
    client.triage(client.read("tasks")["tasks"][0]["id"], "dismissed")
    assert gate(client, part)["pass"]
