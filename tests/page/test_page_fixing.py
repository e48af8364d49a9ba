"""Tests of what agents that fix leave on the page: claims, verifications, proposals, duplicates; and of severities."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.browser import FULL_TASK, Findings, MakeUser, PageUser, expect, hold, make_key, numbered
from tests.servers import wait_until

IN_TESTS = {"status": "dismissed", "reason": "used_in_tests"}
ACCEPTED = {"status": "dismissed", "reason": "accepted_risk", "until": "2100-12-01T12:00:00.000Z"}
FIXED = {"status": "resolved", "reason": "fixed"}


@pytest.fixture
def team(findings: Findings) -> Findings:
    """Findings of a client of their own, so that the view of proposals shows no others."""
    server = findings.server
    key = make_key(server, "admin", "full", findings.type)
    team = replace(findings, server=replace(server, startup_output=server.startup_output.replace(server.key, key)))
    team.send("POST", "project-types", {"name": team.type}, 201)
    return team


@pytest.fixture
def lead(make_user: MakeUser, team: Findings) -> PageUser:
    """A user whose key may triage, but neither delete nor manage webhooks."""
    return make_user(key=make_key(team.server, "lead", "triage", team.type))


@pytest.fixture
def agent(team: Findings) -> dict[str, str]:
    """The headers of an agent that fixes."""
    return {"Authorization": f"Bearer {make_key(team.server, 'fixer', 'agent', team.type)}"}


def propose(findings: Findings, agent: dict[str, str], indices: Iterable[int], **values: Any) -> None:
    for index in indices:
        proposal = {"comment": f"Comment {index}", **values}
        findings.send("PUT", f"tasks/{findings.ids[index]}/proposal", proposal, **agent)


def decisions(findings: Findings) -> list[tuple[str, str | None, bool]]:
    """Return the status and reason of each finding, and whether it has a proposal."""
    return [
        (each["status"], each["reason"], each["proposal"] is not None)
        for each in map(findings.read, range(len(findings.ids)))
    ]


# Claims and verifications


def test_claim_is_listed_filtered_and_released(lead: PageUser, team: Findings, agent: dict[str, str]) -> None:
    team.report(*numbered(3))
    claim = team.send("POST", "tasks/claim", {"ids": team.ids[:2]}, **agent)["id"]
    lead.open_list(team, more="&claimed=true")
    said = re.compile(r"Claimed by fixer until (\d+ \w+, )?\d\d:\d\d")
    lead.expect_text(said, "tbody")
    lead.expect(".chip:has-text('Claimed')").to_have_count(1)
    lead.page.locator("summary").click()
    lead.page.get_by_role("combobox", name="Claim").select_option("Not claimed")
    lead.expect_titles("Finding 2")
    lead.open(f"#/findings/{team.ids[0]}")
    lead.expect_text(said, ".lead")
    lead.expect_none("button:text-is('Delete…'), .top nav a:text-is('Webhooks')")
    lead.click("Release")
    lead.expect_text("Released.", ".toast")
    lead.expect_text("Open", ".badges")
    lead.expect_text("lead released it", ".history")
    lead.expect_none("button:text-is('Release')")
    assert team.send("PUT", f"claims/{claim}", {}, **agent)["tasks"] == team.ids[1:2]


def test_verifications_are_shown_beside_their_criteria_and_in_the_history(
    lead: PageUser, team: Findings, agent: dict[str, str]
) -> None:
    criteria = [{"description": "Scanner is silent"}, {"description": "Login works"}]
    team.report({**FULL_TASK, "successCriteria": criteria})
    claim = team.send("POST", "tasks/claim", {}, **agent)["id"]
    diff = {"type": "diff", "content": "@@ -1 +1 @@\n-old\n+new\n"}
    pull = {"rel": "pull_request", "url": "https://git.example/pull/7"}
    for fields in (
        {"outcome": "still_present", "criterion": "Scanner is silent", "comment": "Not yet"},
        {"outcome": "fixed", "criterion": "Scanner is silent", "evidence": [diff], "commit": "abc1234567890"},
        {"outcome": "inconclusive", "criterion": "Login works", "comment": "No browser here"},
        {"outcome": "fixed", "comment": "All done", "links": [pull], "claim": claim},
    ):
        team.send("POST", f"tasks/{team.ids[0]}/verifications", fields, 201, **agent)
    lead.open_finding(team)
    steps = lead.page.locator("h2:text('Success criteria') + ul li")
    for step, outcome in zip(steps.all(), ("Verified as fixed by fixer", "Inconclusive by fixer"), strict=True):
        expect(step).to_contain_text(outcome)
    expect(steps.first).not_to_contain_text("Still present")
    lead.expect_text("Verified as fixed by fixer", ".lead")
    lead.expect(".lead a:has-text('Pull request')").to_have_attribute("href", pull["url"])
    entries = lead.page.locator(".history > li")
    for index, texts in enumerate(
        (
            ("admin reported this",),
            ("fixer claimed it",),
            ("checked it: still present (Scanner is silent)", "Not yet"),
            ("checked it: verified as fixed (Scanner is silent)", "commit abc1234567", "+new"),
            ("checked it: inconclusive (Login works)", "No browser here"),
            ("changed the links",),
            ("checked it: verified as fixed ·", "All done"),
        )
    ):
        for text in texts:
            expect(entries.nth(index)).to_contain_text(text)
    lead.open_list(team, more="&verified=fixed")
    lead.expect(".chip:has-text('Verified as fixed')").to_have_count(1)


# Proposals


def test_forty_proposals_in_three_groups_are_accepted_with_nine_keys(
    lead: PageUser, team: Findings, agent: dict[str, str]
) -> None:
    team.report(*numbered(41))
    for indices, values in ((range(20), IN_TESTS), (range(20, 33), ACCEPTED), (range(33, 40), FIXED)):
        propose(team, agent, indices, **values)
    lead.page.clock.install()
    lead.open()
    lead.expect_text("41 Unresolved", ".figures")
    requests: list[str] = []
    lead.page.on("request", lambda request: request.method in ("PATCH", "DELETE") and requests.append(request.url))
    keys = ["Tab", "Tab", "Tab", "Tab", "Enter"]  # to the link "Proposals"
    lead.press(*keys)
    lead.expect_text("40 proposals", ".total")
    headings = lead.page.locator("tbody strong[tabindex]")
    names = ["Dismiss as accepted risk until 1 Dec 2100", "Dismiss as used in tests", "Resolve as fixed"]
    expect(headings).to_have_text(names)
    groups = ["j", "a", "a", "a"]
    lead.press(*groups)
    lead.expect_text("No proposals", "main")
    lead.expect_text("Accepted 7 proposals.", ".toast")
    assert len(keys) + len(groups) == 9
    assert requests == []  # undo would still restore the proposals
    lead.page.clock.run_for(11_000)
    wait_until(lambda: not any(proposed for *_, proposed in decisions(team)))
    expected = [("dismissed", "used_in_tests", False)] * 20 + [("dismissed", "accepted_risk", False)] * 13
    assert decisions(team) == [*expected, *[("resolved", "fixed", False)] * 7, ("open", None, False)]
    assert [(each["by"], each["comment"]) for each in team.history(25)[-2:]] == [
        ("fixer", "Comment 25"),
        ("lead", "Comment 25"),
    ]
    assert team.read(25)["until"] == ACCEPTED["until"]


def test_proposals_are_decided_one_by_one_by_selection_or_all_and_undone(
    lead: PageUser, team: Findings, agent: dict[str, str]
) -> None:
    team.report(*numbered(6))
    propose(team, agent, range(4), **IN_TESTS)
    propose(team, agent, (4,), **FIXED)
    lead.page.clock.install()
    lead.open("#/proposals")
    lead.expect_text("5 proposals", ".total")
    lead.press("j", "J")  # the heading is no finding
    lead.expect_text("1 proposal selected", ".actions")
    lead.press("Escape", "r", "a")  # Finding 3, Finding 2
    lead.expect_titles("Finding 1", "Finding 0", "Finding 4")
    lead.press("u")
    lead.expect_titles("Finding 2", "Finding 1", "Finding 0", "Finding 4")
    lead.page.get_by_label("Select: Dismiss as used in tests").check()
    lead.expect_text("3 proposals selected", ".actions")
    lead.page.get_by_label("Select: Finding 0").uncheck()
    lead.page.locator(".actions").get_by_role("button", name="Accept").click()
    lead.expect_titles("Finding 0", "Finding 4")
    lead.press("p", "p", "n")
    lead.expect("tbody strong:focus").to_have_text("Resolve as fixed")
    lead.press("r")
    lead.expect_titles("Finding 0")
    lead.page.locator(".toast").get_by_role("button", name="Undo").click()
    lead.expect_titles("Finding 0", "Finding 4")
    assert decisions(team) == [("open", None, True)] * 5 + [("open", None, False)]
    lead.page.clock.run_for(11_000)
    wait_until(lambda: [proposed for *_, proposed in decisions(team)] == [True, False, False, False, True, False])
    assert [status for status, *_ in decisions(team)] == ["open", "dismissed", "dismissed", "open", "open", "open"]
    assert [each["event"] for each in team.history(3)] == ["created", "proposed", "withdrawn"]
    lead.press("u")  # this late, the proposals are gone
    wait_until(lambda: [status for status, *_ in decisions(team)] == ["open"] * 6)
    hold(lead, "**/tasks?*")
    lead.press("X", "a", "a")  # the second one comes before the list has loaded again
    lead.expect_text("Select a proposal first", ".toast")
    lead.page.unroute_all()
    lead.press("u")
    lead.expect_text("2 proposals", ".total")


def test_proposal_is_shown_and_decided_in_its_finding(lead: PageUser, team: Findings, agent: dict[str, str]) -> None:
    team.report(*numbered(3))
    propose(team, agent, (0,), status="dismissed", reason="duplicate", duplicateOf=team.ids[2])
    propose(team, agent, (1,), **IN_TESTS)
    lead.open("#/proposals")
    lead.expect_text("2 proposals", ".total")
    lead.press("j", "j", "Enter")
    lead.expect_text("fixer proposes: Dismiss as duplicate of Finding 2", "[aria-label=Proposal]")
    lead.press("j")
    lead.expect_text("Finding 1", "h1")
    lead.expect_text("Dismiss as used in tests", "[aria-label=Proposal]")
    lead.press("Escape")
    lead.expect(f"#row-{team.ids[1]}").to_be_focused()
    lead.press("p", "p", "j", "Enter")
    lead.expect_text("Finding 0", "h1")
    lead.click("Accept")
    lead.expect_none("[aria-label=Proposal]")
    lead.press("s", "ArrowUp", "Enter")  # another change sends the decision
    lead.expect_text("Dismissed Duplicate", ".badges")
    lead.expect("dt:text-is('Duplicate of') + dd").to_have_text("Finding 2")
    lead.expect_text("Info (reported: high)", ".badges")
    lead.press("Escape")
    lead.expect_text("1 proposal", ".total")
    lead.expect_titles("Finding 1")


def test_key_of_level_agent_sees_claims_and_proposals_without_controls(
    make_user: MakeUser, team: Findings, agent: dict[str, str]
) -> None:
    team.report(*numbered(1))
    propose(team, agent, (0,), **IN_TESTS)
    team.send("POST", "tasks/claim", {}, **agent)
    user = make_user(key=agent["Authorization"].removeprefix("Bearer "))
    user.open("#/proposals")
    user.expect_titles("Finding 0")
    user.press("j", "a")
    user.expect_text("Your key is of level agent. Triage needs a key of level triage.", ".toast")
    user.expect_none("main button")
    user.press("j", "Enter")
    for text, within in (("Claimed by fixer", ".lead"), ("fixer proposes", "[aria-label=Proposal]")):
        user.expect_text(text, within)
    user.expect_none("button:text-is('Release'), button:text-is('Accept')")
    assert decisions(team) == [("in_progress", None, True)]


# Duplicates, severities and dates


def test_finding_is_dismissed_as_duplicate_of_a_similar_one(user: PageUser, findings: Findings) -> None:
    findings.report(*numbered(3))
    similar: list[Any] = []
    listed = findings.send("GET", f"tasks?projectType={findings.type}")["tasks"]
    user.route(
        "**/similar", lambda route: route.fulfill(json={"tasks": similar}) if similar else route.fulfill(status=404)
    )
    user.open_finding(findings)
    user.expect_text("reported this", ".history")
    user.expect_none("h2:text('Similar'), [role=alert]")
    similar += [
        {**listed[0], "because": ["rule", "words"]},
        {**listed[1], "duplicateOf": findings.ids[0], "because": []},
    ]
    user.page.reload()
    items = user.page.locator(".similar li")
    expect(items).to_contain_text(["same rule, similar title", "Duplicate of this finding"])
    user.click("Dismiss as duplicate of: Finding 2")
    user.expect_text("Dismissed “Finding 0”", ".toast")
    user.expect("dt:text-is('Duplicate of') + dd").to_have_text("Finding 2")
    assert findings.read(0)["duplicateOf"] == findings.ids[2]
    user.expect("section .similar button").to_have_count(0)
    user.press("u")
    user.expect_text("Open", ".badges")
    user.expect_none("dt:text('Duplicate of')")


def test_severity_is_overridden_and_dismissal_ends_at_a_date(user: PageUser, findings: Findings) -> None:
    findings.report(*numbered(2))
    user.open_finding(findings)
    user.press("s", "ArrowUp")
    user.write("Tab", "Public")
    user.expect_text("Set severity of “Finding 0”.", ".toast")
    user.expect_text("Info (reported: high)", ".badges")
    assert [(each["event"], each["comment"]) for each in findings.history(0)[1:]] == [
        ("severity", None),
        ("comment", "Public"),
    ]
    user.expect_text("set the severity to Info", ".history")
    user.press("u")
    user.expect_text("High Open", ".badges")
    user.press("4", "Space")
    user.page.get_by_label("Until (optional)").fill("2100-12-01")
    user.press("Control+Enter")
    shown = "1 Dec 2100"
    user.expect_text(f"Dismissed until {shown} · False positive", ".badges")
    user.open_list(findings, more="&status=dismissed")
    user.expect_text(f"until {shown}", "td.status")
    user.press("j", "4")
    until = user.page.get_by_label("Until (optional)")
    expect(until).to_have_value("2100-12-01")
    until.fill("")
    user.press("Control+Enter")
    user.expect("td.status").to_have_text("False positive")
    assert findings.read(0)["until"] is None
    user.press("u")
    user.expect_text(f"until {shown}", "td.status")
