"""Tests of the list of findings: filters, search, pages and the way back."""

from __future__ import annotations

import re
from typing import Any

from tests.browser import TARGET, Findings, MakeUser, PageUser, expect, hold, in_every_browser, make_key, numbered
from tests.clients import task
from tests.servers import Server


def test_url_holds_the_filters_and_the_list_order(make_user: MakeUser, findings: Findings) -> None:
    user, colleague = make_user(), make_user()
    user.open_list(findings, *numbered(2), task(title="Third", severity="low", externalId="third"))
    user.click("High")
    user.expect_titles("Finding 1", "Finding 0")
    user.page.get_by_label("Sort").select_option(label="Oldest first")
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
    ("Target", f"{TARGET}/2", 0),
    ("Branch", "topic", 1),
    ("Branch", " ", 2),
    ("Assignee", "Ada", 1),
    ("Assigned", "false", 2),
    ("Rule", "S101,S102", 2),
    ("File", "src/app.py", 1),
    ("Tag", "forms", 1),
    ("Created since", "2999-01-01", 0),
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
            control.select_option(value)
        else:
            control.fill(value)
            user.press("Enter")
        user.expect_text(re.compile(rf"^{total} finding"), ".total")


def test_date_is_a_filter_once_it_is_typed_completely(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(1))
    user.page.get_by_text("More filters").click()
    user.page.get_by_label("Created since").focus()
    user.type("01022026")
    assert "createdSince" not in user.fragment
    user.press("Enter")
    user.page.wait_for_url("**createdSince=2026-01-02*")


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
    user.press("j", "3")  # leaves 100 findings, so that page 3 no longer exists
    user.expect_text("51–100 of 100", ".pager")
    assert "page=2" in user.fragment


@in_every_browser
def test_fourteen_rows_fit_and_going_back_restores_focus_and_scroll(user: PageUser, findings: Findings) -> None:
    alike = {"rule": "S101", "tags": ["a", "b"]}
    deep = task(title="Deep", location=f"/{'folder/' * 140}app.py:42", **alike)
    user.open_list(findings, *numbered(49, location="app.py:42", **alike), deep)
    rows = user.page.locator("table.findings tbody tr")
    measure = """rows => rows.map((row) => {
        const [name, cell] = [".file bdi", ".title"].map((each) => row.querySelector(each).getBoundingClientRect());
        return [row.offsetHeight, cell.left <= name.left && name.right < cell.right + 1 && name.width > 30];
    })"""
    for width in (390, 1280):  # the name of a file in a deep folder is visible, and its row is not taller
        assert user.overflow(width) == 0
        measured = rows.evaluate_all(measure)
        heights, visible = zip(*measured, strict=True)
        assert max(heights) - min(heights) <= 1 == min(visible)
    bottoms = rows.evaluate_all("rows => rows.map((row) => row.getBoundingClientRect().bottom)")
    assert sum(bottom <= 800 for bottom in bottoms) >= 14
    user.press(*"j" * 40)
    scrolled = user.page.evaluate("scrollY")
    user.press("Enter")
    user.expect_text("Finding 10", "h1")
    user.expect("h1").to_be_focused()
    user.press("Escape")
    user.expect(f"#row-{findings.ids[10]}").to_be_focused()
    assert abs(user.page.evaluate("scrollY") - scrolled) < 5 < scrolled


def test_rows_show_reasons_and_only_parts_that_differ(user: PageUser, findings: Findings) -> None:
    findings.report(*numbered(1, rule="S101", location="src/app.py:1"))
    findings.report(task(title="Elsewhere", rule="S102"), branch="topic")
    findings.triage(0, status="dismissed", reason="false_positive")
    user.open_list(findings)
    user.expect_text("False positive", f"tr:has(#row-{findings.ids[0]}) .status")
    first, second = "S102example.com/shop (topic)", "S101src/app.py:1example.com/shop"
    expect(user.page.locator(".meta")).to_have_text([first, second])
    user.open_list(findings, more="&status=dismissed")
    user.expect_text("False positive", "tbody .status")
    expect(user.page.locator(".meta")).to_have_text(["S101src/app.py:1"])


def test_selection_survives_opening_a_finding_but_not_its_decision(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(5))
    user.press("j", "J", "J", "K")
    user.expect_text("2 findings selected", ".actions")
    user.press("J", "Enter")
    user.expect_text("Finding 2", "h1")
    user.press("2")
    user.expect_text("In progress", ".badges")
    user.press("Escape")
    user.expect_text("2 findings selected", ".actions")
    assert [row for row in range(5) if user.page.locator("tbody input").nth(row).is_checked()] == [0, 1]


def test_selecting_all_says_what_exceeds_the_limit(user: PageUser, findings: Findings) -> None:
    def enlarge(route: Any) -> None:
        body = route.fetch().json()
        route.fulfill(json={**body, "total": 12_345})

    user.route("**/api/v1/tasks?*", enlarge)
    findings.report(*numbered(2))
    user.open(f"#/findings?projectType={findings.type}")
    user.expect_text("12,345 findings", ".total")
    user.press("X")
    user.expect_text("Selected the first 2 of 12,345 findings. The others are not selected.", ".toast")


@in_every_browser
def test_next_and_previous_go_through_the_whole_list(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(52))
    user.page.locator(f"#row-{findings.ids[2]}").click()
    user.expect_text("50 of 52", ".trail")
    user.press("j")
    user.expect_text("51 of 52", ".trail")
    user.click("Next")
    user.expect_text("Finding 0", "h1")
    expect(user.page.get_by_role("button", name="Next")).to_be_disabled()
    user.page.go_back()
    user.expect_text("51–52 of 52", ".pager")
    user.expect(f"#row-{findings.ids[0]}").to_be_focused()
    user.press("Enter")
    user.expect_text("Finding 0", "h1")
    user.press("k", "k")
    user.expect_text("50 of 52", ".trail")


def test_finding_opened_by_its_address_is_in_the_default_list(user: PageUser, findings: Findings) -> None:
    findings.report(*numbered(3, severity="critical"))
    user.open(f"#/findings/{findings.ids[1]}")
    user.expect_text(re.compile(r"2 of \d+"), ".trail")
    user.press("j")
    user.expect_text("Finding 0", "h1")
    user.press("Escape")
    user.expect_text("unresolved findings on the main branch", ".total")
    user.expect(f"#row-{findings.ids[0]}").to_be_focused()
    findings.triage(2, status="resolved")
    user.page.reload()
    user.open(f"#/findings/{findings.ids[2]}")  # is not in that list
    user.expect_text("Finding 2", "h1")
    expect(user.page.locator(".trail").get_by_role("button", name="Next")).to_be_disabled()


def test_empty_service_explains_how_to_send_and_bare_list_is_the_default(make_user: MakeUser, service: Server) -> None:
    user = make_user(key=make_key(service, "empty", "full", "empty"))
    user.open("#/findings")
    user.expect_text("No findings yet", ".notice h2")
    assert user.fragment == "#/findings?status=open,in_progress&mainLine=true&sort=severity"


def test_group_beyond_the_limit_says_what_is_decided(user: PageUser, findings: Findings) -> None:
    def enlarge(route: Any) -> None:
        groups = route.fetch().json()["groups"]
        route.fulfill(json={"by": "rule", "groups": [{**each, "total": 12_345} for each in groups], "others": 0})

    findings.report(*numbered(2, rule="S101"))
    user.route("**/api/v1/groups?*", enlarge)
    user.open(f"#/findings?projectType={findings.type}&group=rule")
    user.expect_text("12,345", "tbody")
    user.press("j", "4")
    user.expect_text("Dismiss the first 10,000 of 12,345 findings of rule S101?", "dialog h2")


def test_saved_views_clear_and_counts(user: PageUser, findings: Findings) -> None:
    findings.report(*numbered(2), task(title="Old", severity="low", status="resolved"))
    user.open_list(findings, more="&status=open&severity=high")
    for name in ("Open 2", "Resolved 0", "High 2", "Low 0"):
        expect(user.page.get_by_role("button", name=name)).to_be_visible()
    user.click("High 2")
    expect(user.page.get_by_role("button", name="Resolved 1")).to_be_visible()
    user.click("Clear", "link")
    for name, expected in (
        ("New this week", "createdSince=7d"),
        ("Mine", f"assignee={findings.send('GET', 'me')['key']}"),
        ("Unassigned critical", "assigned=false&severity=critical"),
        ("Unresolved", "#/findings?status=open,in_progress&mainLine=true&sort=severity"),
    ):
        user.click(name, "link")
        expect(user.page.get_by_role("link", name=name)).to_have_attribute("aria-current", "true")
        assert expected in user.fragment


def test_filters_suggest_values_that_the_other_filters_leave(user: PageUser, findings: Findings) -> None:
    findings.report(task(title="A", rule="S101", severity="low"), task(title="B", rule="S102"))
    user.open_list(findings, more="&severity=low")
    user.page.get_by_text("More filters").click()
    user.page.get_by_label("Rule", exact=True).focus()
    options = user.page.locator("datalist[id='known-Rule'] option")
    expect(options).to_have_count(1)
    assert options.first.get_attribute("value") == "S101"


def test_filters_are_behind_one_button_on_a_phone(make_user: MakeUser, findings: Findings) -> None:
    user = make_user(390)
    user.open_list(findings, *numbered(1), more="&severity=high")
    expect(user.page.get_by_role("button", name="Critical")).to_be_hidden()
    user.click("Filters (2)")
    user.click("Critical")
    assert "severity=critical,high" in user.fragment
    assert user.overflow(390) == 0


def test_refused_groups_show_the_error_once(user: PageUser, findings: Findings) -> None:
    findings.report(*numbered(1))
    user.open("#/findings?group=rule&status=odd")
    user.expect_text("must be one of", "[role=alert]")
    assert user.page.locator("main").inner_text().count("must be one of") == 1


def test_dialogs_name_the_group_that_they_change(user: PageUser, findings: Findings) -> None:
    findings.report(*numbered(2, rule="S101"))
    user.open(f"#/findings?projectType={findings.type}&group=rule")
    user.expect_text("2 findings on all branches in 1 group", ".total")
    user.expect_text("2 high", "tbody")
    user.press("j", "4")
    user.expect_text("Dismiss 2 findings of rule S101?", "dialog h2")
