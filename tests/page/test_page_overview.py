"""Tests of the overview and its chart."""

from __future__ import annotations

from functools import partial

import pytest

from tests.browser import Findings, MakeUser, PageUser, check_link_counts, expect, hold, make_key, numbered
from tests.clients import API, task
from tests.servers import Server


def test_overview_counts_equal_the_totals_of_the_linked_lists(user: PageUser, findings: Findings) -> None:
    findings.report(*numbered(3, severity="critical"), {"title": "Old", "severity": "low", "status": "resolved"})
    findings.triage(0, status="in_progress", assignee="page")
    branch_only = task(title="Only there", severity="critical", externalId="there")
    findings.report(*numbered(1, severity="critical"), branch_only, branch="a/b, c")
    user.open(f"#/overview?projectType={findings.type}")
    user.expect_text("3 unresolved, up 3 since", "figcaption")
    for branch, criticals in (("Main branch", "3"), ("a/b, c", "2"), ("Main branch", "3")):
        user.page.locator("select", has_text="Main branch").select_option(branch)
        user.expect("table.bars tr:has-text('Critical') .number").to_have_text(criticals)
        user.expect_none("[aria-busy=true]")
        user.expect_text(criticals, ".figures strong")
        assert check_link_counts(user, findings, ".figures a, .bars .number a") == 4 + 5 + 1 + 1
    assert user.fragment == f"#/overview?projectType={findings.type}"
    findings.triage(1, assignee=findings.send("GET", "me")["key"])
    findings.triage(2, status="dismissed", reason="wont_fix")
    user.page.reload()
    user.expect(".figures strong").to_have_text(["2", "4", "1", "0", "1"])
    user.expect_text("up 2 since", ".figures li")
    oldest = user.page.locator(".card", has_text="Oldest critical findings")
    expect(oldest.locator("li a")).to_have_text(["Finding 0", "Finding 1"])
    expect(oldest.locator("li").first).to_contain_text("page · now")
    oldest.get_by_role("link", name="View all 2").click()
    user.expect_titles("Finding 0", "Finding 1")


@pytest.mark.parametrize("name", ["targetUrl", "projectType", "branch"])
def test_overview_of_an_unknown_place_says_that_there_is_no_data(user: PageUser, findings: Findings, name: str) -> None:
    findings.report(*numbered(1))
    user.open(f"#/overview?{name}=https://unknown.example/")
    user.expect_text("No data for this", ".notice h2")
    user.expect_none(".figures, .bars")
    user.click("Show all data", "link")
    user.page.locator(".figures strong").first.wait_for()


def test_findings_of_branches_only_are_no_empty_database(make_user: MakeUser, service: Server) -> None:
    user = make_user(key=make_key(service, "branch", "full", "branch only"))
    post = partial(service.request, "POST", key=user.key)
    post(f"{API}/project-types", {"name": "type"})
    run = post(f"{API}/runs", {"projectType": "type", "branch": "topic"}).json["id"]
    post(f"{API}/runs/{run}/tasks", {"tasks": numbered(1)})
    service.request("PATCH", f"{API}/runs/{run}", {"status": "completed"}, user.key)
    user.open("#/overview")
    user.expect_text("No findings match these filters", ".notice h2")
    user.page.locator("select", has_text="Main branch").select_option("topic")
    user.expect_text("1 Unresolved", ".figures li")


def test_targets_with_and_without_completed_runs_can_be_selected(user: PageUser, findings: Findings) -> None:
    targets = [f"https://{findings.type}.example/{n}" for n in range(3)]
    findings.report(*numbered(1), targetUrl=targets[0])
    findings.report(targetUrl=targets[1])
    findings.report(targetUrl=targets[2], finish=False)
    user.open("#/overview")
    for target, text in zip(targets, ("1 Unresolved", "0 Unresolved", "No data for this target."), strict=True):
        user.page.locator("search select").nth(1).select_option(target)
        user.expect_text(text, ".figures li, .notice h2")
    user.expect_text("Running", "table.runs")


def test_overview_shows_stored_verdicts_and_requests_no_gate(user: PageUser, findings: Findings) -> None:
    paths = list[str]()
    user.page.on("request", lambda request: paths.append(request.url))
    findings.report(*numbered(2))
    findings.report(*numbered(2))
    findings.report(*numbered(1), finish=False)
    user.open(f"#/overview?projectType={findings.type}")
    user.expect("table.runs .outcome").to_have_text(["Status", "Running", "Pass", "Fail"])
    assert not any("/gate" in path for path in paths)


@pytest.mark.parametrize("width", [390, 1280])
def test_overview_keeps_its_layout_while_it_loads(make_user: MakeUser, findings: Findings, width: int) -> None:
    findings.report(*numbered(9, severity="critical"), *[task(title="T" * 99, location="a" * 200)] * 3)
    findings.report(*numbered(3), branch="b")
    user = make_user(width)
    positions = "all => all.map((each) => [each.offsetLeft, each.offsetTop, each.offsetWidth])"
    hold(user, "**/api/v1/{overview,tasks,groups,runs}*")
    user.open(f"#/overview?projectType={findings.type}")
    user.page.locator(".card.trend").wait_for()
    cards = user.page.locator(".figures > li, .cards > .card")
    before = cards.evaluate_all(positions)
    user.page.unroute_all(behavior="ignoreErrors")
    user.page.locator(".chart svg").wait_for()
    user.expect_none("[aria-busy=true], .loading")
    assert cards.evaluate_all(positions)[:10] == before[:10]  # texts on a phone size the last two


def test_chart_starts_at_the_first_day_with_data_and_equals_the_table(make_user: MakeUser, findings: Findings) -> None:
    findings.report(*numbered(7))
    findings.triage(0, status="dismissed", reason="wont_fix")
    user = make_user(390)
    user.open(f"#/overview?projectType={findings.type}")
    expected = findings.send("GET", f"overview?projectType={findings.type}&days=1")["days"]
    names = ("date", "unfinished", "created", "reopened", "resolved", "dismissed")
    for days in (14, 90, 30):
        user.page.locator("select", has_text="30 days").select_option(f"{days} days")
        table = user.page.locator("figure table tbody tr")
        expect(table).to_have_count(1)
        cells = table.evaluate_all("all => all.map((row) => [...row.cells].map((cell) => cell.textContent))")
        assert cells == [[str(day[name]) for name in names] for day in expected]
        assert user.fragment.endswith(f"&days={days}") or days == 30
    drawing = user.page.locator(".chart svg")
    assert "6 unresolved, up 6 since" in drawing.get_attribute("aria-label")
    assert [text for text in drawing.locator(".tick").all_text_contents() if int(text) > 5][:1] == ["6"]
    sizes = drawing.locator("text").evaluate_all("all => all.map((each) => each.getBoundingClientRect())")
    box = drawing.bounding_box()
    assert all(each["height"] >= 12 and each["right"] <= box["x"] + box["width"] for each in sizes)
