"""Tests of the list of findings: filters, search, pages and the way back."""

from __future__ import annotations

import re

from tests.browser import TARGET, Findings, MakeUser, PageUser, hold, numbered
from tests.clients import task


def test_url_holds_the_filters_and_the_list_order(make_user: MakeUser, findings: Findings) -> None:
    user, colleague = make_user(), make_user()
    user.open_list(findings, *numbered(2), task(title="Third", severity="low", externalId="third"))
    user.click("High")
    user.expect_titles("Finding 1", "Finding 0")
    user.page.get_by_label("Sort").select_option("createdAt")
    user.expect_titles("Finding 0", "Finding 1")
    user.page.reload()
    colleague.open(user.fragment)
    for each in (user, colleague):
        each.expect_titles("Finding 0", "Finding 1")
    for direction, *titles in (
        ("back", "Finding 1", "Finding 0"),
        ("back", "Third", "Finding 1", "Finding 0"),
        ("forward", "Finding 1", "Finding 0"),
    ):
        user.page.evaluate(f"history.{direction}()")
        user.expect_titles(*titles)


FILTERS = (
    ("Type", "TYPE", 3),
    ("Target", f"{TARGET}/2", 0),
    ("Branch", "=topic", 1),
    ("Branch", "main", 2),
    ("Assignee", "Ada", 1),
    ("Assigned", "false", 2),
    ("Rule", "S101,S102", 2),
    ("Location", "src/app.py", 1),
    ("Tag", "forms", 1),
    ("Created since", "2020-01-01", 3),
    ("Created before", "2020-01-01", 0),
)


def test_every_filter_narrows_the_list(user: PageUser, findings: Findings) -> None:
    findings.report(task(title="Of a branch"), branch="topic")
    findings.triage(0, assignee="Ada")
    findings.report(task(rule="S101", location="src/app.py:42"), task(rule="S102", tags=["forms"]))
    for label, value, total in FILTERS:
        user.open("#/runs")
        user.open_list(findings)
        more = user.page.get_by_text("More filters")
        control = user.page.locator(f".field:has(> span:text-is('{label}'))").locator("input, select")
        if not control.is_visible():
            more.click()
        if control.evaluate("control => control.localName") == "select":
            control.select_option(value.replace("TYPE", findings.type))
        else:
            control.fill(value)
            user.press("Enter")
        user.expect_text(re.compile(rf"^{total} finding"), ".total")


def test_search_drops_stale_responses_and_adds_one_history_entry(user: PageUser, findings: Findings) -> None:
    user.open("#/runs")
    user.open_list(findings, *numbered(12))
    hold(user, "**/tasks?*q=slow*")
    user.press("/")
    with user.page.expect_request("**/tasks?*q=slow*"):
        user.type("slow")
    user.press("Control+a")
    user.type("finding 7")
    user.expect_titles("Finding 7")
    user.page.unroute_all()
    user.page.wait_for_timeout(200)
    user.expect_titles("Finding 7")
    user.expect_none("[role=alert]")
    assert "q=finding+7" in user.fragment
    user.page.go_back()
    user.expect_text("Runs", "h1")


def test_loading_rows_do_not_take_the_focus_from_the_search_field(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(3))
    user.press("j")
    user.page.evaluate("location.hash = '#/overview'")
    user.expect_text("Overview", "h1")
    hold(user, "**/api/v1/tasks?*")
    user.page.evaluate(f"location.hash = '#/findings?projectType={findings.type}&sort=severity'")
    user.expect_text("Findings", "h1")
    user.press("/")
    user.type("find")
    user.page.wait_for_timeout(400)
    user.page.unroute_all()
    user.expect_text("3 findings", ".total")
    user.type("ing 3")
    assert user.page.locator(".search").input_value() == "finding 3"
    assert findings.statuses() == ["open"] * 3


def test_keys_and_buttons_change_pages_and_rows_stay_while_loading(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(101), more="&status=open")
    user.expect_text("1–50 of 101", ".pager")
    user.press("j")
    user.page.locator(f"#row-{findings.ids[51]}").focus()
    user.press("j")  # past the last row of the page
    user.expect_text("51–100 of 101", ".pager")
    user.expect(f"#row-{findings.ids[50]}").to_be_focused()
    user.press("k")
    user.expect(f"#row-{findings.ids[51]}").to_be_focused()
    user.press("n")
    user.expect_text("51–100 of 101", ".pager")
    hold(user, "**/api/v1/tasks?*")
    with user.page.expect_request("**/api/v1/tasks?*"):
        user.click("Next", exact=True)
    assert user.page.locator("table.findings tbody tr").count() == 50
    user.page.unroute_all()
    user.expect_text("101–101 of 101", ".pager")
    user.page.reload()
    user.expect_text("101–101 of 101", ".pager")
    user.press("p")
    user.expect_text("51–100 of 101", ".pager")
    user.page.go_back()
    user.expect_titles("Finding 0")
    user.press("j", "3", "Enter")  # leaves 100 findings, so that page 3 no longer exists
    user.expect_text("51–100 of 100", ".pager")
    assert "page=2" in user.fragment


def test_twenty_rows_fit_and_going_back_restores_focus_and_scroll(user: PageUser, findings: Findings) -> None:
    alike = {"rule": "S101", "tags": ["a", "b"]}
    deep = task(title="Deep", location=f"/{'folder/' * 140}app.py:42", **alike)
    user.open_list(findings, *numbered(49, location="app.py:42", **alike), deep)
    rows = user.page.locator("table.findings tbody tr")
    measure = """rows => rows.map((row) => {
        const [range, last] = [new Range(), row.querySelector(".location bdi").lastChild];
        range.setStart(last, last.data.length - "app.py:42".length);
        range.setEnd(last, last.data.length);
        const [end, cell] = [range.getBoundingClientRect(), row.querySelector(".location").getBoundingClientRect()];
        return [row.offsetHeight, cell.left <= end.left && end.right <= cell.right && end.width > 30];
    })"""
    for width in (390, 1280):  # the end of a long location is visible, and its row is not taller
        assert user.overflow(width) == 0
        measured = rows.evaluate_all(measure)
        assert measured == [[measured[-1][0], True]] * 50
    bottoms = rows.evaluate_all("rows => rows.map((row) => row.getBoundingClientRect().bottom)")
    assert sum(bottom <= 800 for bottom in bottoms) >= 20
    user.press(*"j" * 40)
    scrolled = user.page.evaluate("scrollY")
    user.press("Enter")
    user.expect_text("Finding 10", "h1")
    user.expect("h1").to_be_focused()
    user.press("Escape")
    user.expect(f"#row-{findings.ids[10]}").to_be_focused()
    assert abs(user.page.evaluate("scrollY") - scrolled) < 5 < scrolled
