"""Tests of the overview and its chart."""

from __future__ import annotations

from tests.browser import Findings, MakeUser, PageUser, check_link_counts, expect, numbered
from tests.clients import task


def test_overview_counts_equal_the_totals_of_the_linked_lists(user: PageUser, findings: Findings) -> None:
    findings.report(*numbered(3, severity="critical"), {"title": "Old", "severity": "low", "status": "resolved"})
    findings.triage(0, status="in_progress", assignee="page")
    branch_only = task(title="Only there", severity="critical", externalId="there")
    findings.report(*numbered(1, severity="critical"), branch_only, branch="a/b, c")
    user.open(f"#/overview?projectType={findings.type}")
    user.expect_text("3 unfinished now", "figcaption")
    user.expect_text("Fail", ".card:last-child table")
    for branch, criticals in (("Main line", ["3", "1"]), ("a/b, c", ["2", "1"]), ("Main line", ["3", "1"])):
        user.page.locator("select", has_text="Main line").select_option(branch)
        user.expect("table.bars tr:has-text('Critical') .number").to_have_text(criticals)
        user.expect_none(".card[aria-busy=true]")
        user.expect_text(criticals[0], ".figures strong")
        assert check_link_counts(user, findings, ".figures a, .bars .number a") == 3 + 2 * 5 + 2 + 2
    assert user.fragment == f"#/overview?projectType={findings.type}"
    findings.triage(1, assignee=findings.send("GET", "me")["key"])
    user.page.reload()
    user.expect(".figures strong").to_have_text(["3", "1", "1"])
    oldest = user.page.locator(".card", has_text="Oldest criticals")
    expect(oldest.locator(".what a")).to_have_text(["Finding 0", "Finding 1", "Finding 2"])
    expect(oldest.locator("li").first).to_contain_text("page · now")
    oldest.get_by_role("link", name="All 3").click()
    user.expect_titles("Finding 0", "Finding 1", "Finding 2")


def test_trend_is_shown_as_a_chart_and_a_table_for_each_period(make_user: MakeUser, findings: Findings) -> None:
    findings.report(*numbered(7))
    findings.triage(0, status="dismissed", reason="wont_fix")
    user = make_user(390)
    user.open(f"#/overview?projectType={findings.type}")
    for days in (7, 90, 30):
        user.page.locator("select", has_text="30 days").select_option(f"{days} days")
        table = user.page.locator("figure table tbody tr")
        expect(table).to_have_count(days)
        expected = findings.send("GET", f"overview?projectType={findings.type}&days={days}")["days"]
        names = ("date", "unfinished", "created", "reopened", "resolved", "dismissed")
        cells = table.evaluate_all("all => all.map((row) => [...row.cells].map((cell) => cell.textContent))")
        assert cells == [[str(day[name]) for name in names] for day in reversed(expected)]
        assert cells[0][1:] == ["6", "7", "0", "0", "1"]
        assert user.fragment.endswith(f"&days={days}") or days == 30
        drawing = user.page.locator(".chart svg")
        assert "6 unfinished now" in drawing.get_attribute("aria-label")
        assert [text for text in drawing.locator(".tick").all_text_contents() if int(text) > 5][:1] == ["6"]
        sizes = drawing.locator("text").evaluate_all("all => all.map((each) => each.getBoundingClientRect())")
        box = drawing.bounding_box()
        assert all(each["height"] >= 12 and each["right"] <= box["x"] + box["width"] for each in sizes)
