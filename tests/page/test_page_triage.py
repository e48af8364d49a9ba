"""Tests of triage on the page: decisions, selection, groups, conflicts and unsent changes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Findings, MakeUser, PageUser, Proxy, expect, hold, in_every_browser, numbered
from tests.clients import task

# Triage


@in_every_browser
def test_dismissing_asks_for_a_reason_and_presets_the_last(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(3))
    user.press("j", "4")
    user.expect_text("Dismiss “Finding 2”?", "dialog h2")
    user.press("Enter")
    assert user.page.locator("dialog :invalid").count() > 0
    user.press("Space", "ArrowDown")
    user.write("Tab", "Nobody can get there")
    user.expect_text("Dismissed “Finding 2”", ".toast")
    user.press("4", "Enter")  # the cursor is at the next finding
    user.expect_text("Dismissed “Finding 1”", ".toast")
    user.press("3")
    user.expect_text("Resolved “Finding 0”", ".toast")
    last = [findings.history(index)[-1] for index in (2, 1, 0)]
    assert [(each["to"], each["reason"], each["comment"]) for each in last] == [
        ("dismissed", "accepted_risk", "Nobody can get there"),
        ("dismissed", "accepted_risk", None),
        ("resolved", "fixed", None),
    ]


def test_keys_set_the_status_assignee_and_comment_of_the_focused_finding(user: PageUser, findings: Findings) -> None:
    reported = (task(title="Below", status="resolved"), task(title="Above", status="dismissed", externalId="above"))
    user.open_list(findings, *reported)
    findings.report(reported[1])  # a repeated report is not a conflict
    user.press("j")
    for key, status, label in (("1", "open", "Reopened"), ("2", "in_progress", "Started")):
        user.press(key)
        user.expect_text(f"{label} “Above”.", ".toast")
        assert findings.statuses() == ["resolved", status]
        user.press("k")
    user.write("a", "Ada", "Enter")
    user.expect_text("Ada", "td.assignee")
    user.write("c", "Looking at it")
    user.expect_text("Commented", ".toast")
    user.press("a")
    user.click("Unassign")
    user.expect_text("Unassigned “Above”", ".toast")
    assert [(each["event"], each["assignee"], each["comment"]) for each in findings.history(1)[-3:]] == [
        ("assigned", "Ada", None),
        ("comment", None, "Looking at it"),
        ("assigned", None, None),
    ]


@in_every_browser
def test_six_quick_decisions_on_a_slow_line_reach_six_findings(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(7), more="&status=open")
    held: list[Any] = []
    user.route("**/api/v1/tasks", lambda route: held.append(route))
    user.press("j", *"333222")
    user.expect(f"#row-{findings.ids[0]}").to_be_focused()
    user.expect("tr.pending").to_have_count(6)
    assert findings.statuses() == ["open"] * 7
    user.page.unroute("**/api/v1/tasks")
    held[0].continue_()
    user.expect_text("Started “Finding 1”", ".toast")
    assert findings.statuses() == ["open", *["in_progress"] * 3, *["resolved"] * 3]


def test_decision_without_effect_says_so_and_leaves_nothing_to_undo(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(2))
    user.press("j", "2")
    user.expect_text("Started “Finding 1”", ".toast")
    user.press("1")
    user.expect_text("Nothing changed.", ".toast")
    user.press("u")
    user.expect_text("Undone.", ".toast")
    assert findings.statuses() == ["open", "open"]


def test_buttons_are_verbs_and_leave_out_the_present_status(user: PageUser, findings: Findings) -> None:
    user.open_finding(findings, task(title="One"))
    buttons = user.page.locator(".decide > button:visible")
    expect(buttons).to_have_text(["Resolve", "Dismiss…", "Start", "Assign…", "Comment…", "Severity…"])
    user.click("Resolve")
    expect(buttons).to_have_text(["Dismiss…", "Reopen", "Start", "Assign…", "Comment…", "Severity…"])
    assert findings.history(0)[-1]["reason"] == "fixed"


def test_assigning_requires_a_name_and_suggests_all_assignees(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(60), more="&sort=createdAt")
    findings.triage(59, assignee="Zoë")  # on another page
    findings.triage(0, assignee="Ada")
    user.press("r")
    user.expect_text("Ada", "td.assignee")
    user.press("j", "a", "Enter", "Control+Enter")
    user.expect_text("Assigned to Ada", "dialog")
    assert findings.read(0)["assignee"] == "Ada"
    user.expect("datalist#people option[value=Zoë]").to_have_count(1)
    user.click("Assign to me")
    user.expect_text("Assigned to first: “Finding 0”.", ".toast")


def test_refused_decision_opens_its_dialog_again_with_the_typed_text(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(2))
    refusal = {"status": 422, "body": json.dumps({"detail": "The comment is not good enough."})}
    user.route("**/api/v1/tasks", lambda route: route.fulfill(**refusal), times=1)
    user.press("j")
    user.write("c", "Half an hour of thought")
    user.expect_text("not good enough", "dialog [role=alert]")
    expect(user.page.locator("dialog textarea")).to_have_value("Half an hour of thought")
    user.press("Control+Enter")
    user.expect_text("Commented on “Finding 1”", ".toast")


@in_every_browser
def test_escape_keeps_a_typed_comment_and_cancel_discards_it(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(2))
    user.press("j")
    user.write("c", "Half an hour of thought", "Escape")
    user.expect_text("Draft kept.", ".toast")
    for reload in (False, True):
        if reload:
            user.page.reload()
            user.expect_text("2 findings", ".total")
            user.expect_none("dialog")
            user.press("j")
        user.press("c")
        expect(user.page.locator("dialog textarea")).to_have_value("Half an hour of thought")
        user.press("Escape")
    user.press("c")
    user.click("Cancel", exact=True)
    user.press("c")
    expect(user.page.locator("dialog textarea")).to_have_value("")


@pytest.mark.parametrize("button", [True, False])
def test_cancelling_while_findings_are_read_decides_nothing(user: PageUser, findings: Findings, button: bool) -> None:
    user.open_list(findings, *numbered(60, rule="S101"))
    user.press("g")
    user.expect_text("1 group", ".total")
    hold(user, "**/api/v1/tasks?*")
    user.press("j", "4", "Space", "Enter")
    user.click("Cancel", exact=True) if button else user.press("Escape")
    user.page.unroute_all()
    user.press("j", "4")
    user.expect_text("Dismiss 60 findings", "dialog h2")
    user.page.wait_for_load_state("networkidle")
    assert set(findings.statuses()) == {"open"}


def test_cancelling_while_findings_are_sent_leaves_the_rest(user: PageUser, findings: Findings) -> None:
    for start in (0, 700):
        findings.report(*(task(title=f"{start + n}", externalId=f"{start + n}") for n in range(700)))
    user.open_list(findings, more="&status=open&sort=createdAt")
    user.press("X")
    user.expect_text("1,400 findings selected", ".actions")
    held: list[Any] = []
    user.route("**/api/v1/tasks", lambda route: held.append(route))
    user.press("4", "Space", "Enter")
    user.expect_text("Dismissed 0 of 1,400 findings…", ".toast")
    user.click("Cancel", exact=True)
    user.page.unroute("**/api/v1/tasks")
    held[0].continue_()
    user.expect_text("Dismissed 1,000 of 1,400 findings. Cancelled.", ".toast")
    user.expect_text("400 findings selected", ".actions")
    assert [findings.read(index)["status"] for index in (0, 999, 1000, 1399)] == ["dismissed"] * 2 + ["open"] * 2
    user.click("Undo")
    user.expect_text("1,400 open findings", ".total")


@pytest.mark.parametrize("view", ["list", "finding"])
def test_triage_buttons_of_a_phone_are_one_row(make_user: MakeUser, findings: Findings, view: str) -> None:
    user = make_user(390, 844)
    (user.open_list if view == "list" else user.open_finding)(findings, *numbered(60))
    bar = user.page.locator(".actions" if view == "list" else ".triage")
    if view == "list":
        user.press("j", "x")
    assert bar.bounding_box()["height"] < 60
    user.click("More")
    user.click("Start")
    user.expect_text("Started “Finding", ".toast")


@in_every_browser
def test_shift_click_selects_a_range(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(9))
    boxes = user.page.locator("tbody input[type=checkbox]")
    boxes.nth(1).click()
    boxes.nth(5).click(modifiers=["Shift"])
    user.expect_text("5 findings selected", ".actions")
    all_of_them = user.page.get_by_label("Select all on this page")
    expect(all_of_them).to_have_js_property("indeterminate", True)
    boxes.nth(4).click()
    with user.page.expect_response("**/tasks?*"):
        user.press("r")
    boxes.nth(3).click(modifiers=["Shift"])
    user.expect_text("3 findings selected", ".actions")
    all_of_them.check()
    user.expect_text("9 findings selected", ".actions")
    expect(all_of_them).to_have_js_property("indeterminate", False)


def test_shift_j_and_k_extend_a_range_and_shrink_it_towards_its_start(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(6))
    user.page.locator("tbody input[type=checkbox]").nth(3).click()
    user.page.locator(f"#row-{findings.ids[5]}").focus()
    for keys, total in (("JJ", 4), ("J", 4), ("J", 5), ("K", 4), ("KK", 2)):
        user.press(*keys)
        user.expect_text(f"{total} finding", ".actions")


def test_all_matching_findings_are_dismissed_in_batches_and_undone(user: PageUser, findings: Findings) -> None:
    for start in (0, 700):
        findings.report(*(task(title=f"{start + n}", externalId=f"{start + n}") for n in range(700)))
    findings.triage(3, status="in_progress")
    user.open_list(findings, more="&status=open,in_progress")
    requests: list[str] = []
    user.page.on("request", lambda request: requests.append(f"{request.method} {request.url.split('?')[0]}"))
    user.press("X")
    user.expect_text("1,400 findings selected", ".actions")
    user.press("4", "Space", "Enter")
    user.expect_text("Dismissed 1,400 findings.", ".toast")
    user.expect_text("0 unresolved findings", ".total")
    assert [line for line in requests if line.startswith("PATCH")] == [f"PATCH {user.url}api/v1/tasks"] * 2
    assert not [line for line in requests if "/tasks/" in line]
    assert {findings.read(index)["reason"] for index in (0, 3, 700, 1399)} == {"false_positive"}
    user.press("u")
    user.expect_text("1,400 unresolved findings", ".total")
    assert [findings.read(index)["status"] for index in (0, 3, 700, 1399)] == ["open", "in_progress", "open", "open"]


GROUPS = (  # the grouping, keys that focus or select a group, further filters, and the findings to be dismissed
    ("Rule", "j", "", "AB"),
    ("File", "j", "", "AC"),
    ("Rule", "jjj", "", "D"),  # the findings without a rule
    ("Assignee", "jj", "", "B"),
    ("Tag", "jj", "&tag=x", "A"),
    ("Rule", "jjxjx", "", "CD"),
    ("Rule", "X", "", "ABCD"),
)


def test_group_of_findings_is_dismissed_and_undone_at_once(user: PageUser, findings: Findings) -> None:
    findings.report(
        task(title="A", rule="S101", location="src/a.py:1", tags=["x", "y"]),
        task(title="B", rule="S101", location="src/a.py/b.py:1:2", tags=["y"]),
        task(title="C", rule="S102", location="src/a.py:7"),
        task(title="D", location="src/d.py"),
    )
    findings.triage(1, assignee="Ada")
    for by, keys, more, gone in GROUPS:
        user.page.goto("about:blank")
        user.open_list(findings, more=f"&status=open{more}")
        user.page.get_by_label("Group by").select_option(label=by)
        user.expect_text(re.compile(r"\d groups"), ".total")
        user.page.evaluate("document.activeElement.blur()")
        user.press(*keys, "4")
        user.expect_text(re.compile("Dismiss"), "dialog h2")
        user.press("Space", "Enter")
        user.expect_text("Dismissed", ".toast")
        assert ["ABCD"[index] for index, each in enumerate(findings.statuses()) if each == "dismissed"] == [*gone]
        user.page.get_by_label("Group by").select_option(label="None")
        user.expect(".findings tbody tr").to_have_count(4 - len(gone) if not more else 0)
        user.press("u")
        user.expect_text("Undone", ".toast")
        assert findings.statuses() == ["open"] * 4


def test_keys_navigate_from_a_group_to_its_findings_and_back(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(3, rule="S101"), task(title="Other", rule="S102"))
    user.press("g")
    user.expect_text("2 groups", ".total")
    user.press("j", "Enter")
    user.expect_titles("Finding 2", "Finding 1", "Finding 0")
    user.press("j", "Enter")
    user.expect_text("Finding 2", "h1")
    user.press("j")
    user.expect_text("Finding 1", "h1")
    user.press("2", "k")
    user.expect_text("Finding 2", "h1")
    user.press("Escape")
    user.expect_text("In progress", f"tr:has(#row-{findings.ids[1]}) .status")
    user.press("Escape")
    user.expect_text("2 groups", ".total")
    expect(user.page.get_by_role("link", name="S101")).to_be_focused()


def test_key_that_is_held_down_acts_only_once(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(3), more="&status=open")
    user.press("j")
    for left in (2, 2):
        user.page.keyboard.down("2")
        user.expect_text(f"{left} open findings", ".total")
        user.page.wait_for_timeout(50)
    user.page.keyboard.up("2")
    assert findings.statuses() == ["open", "open", "in_progress"]
    user.expect(f"#row-{findings.ids[1]}").to_be_focused()


def test_new_findings_are_announced_and_loaded_on_request_or_reconnect(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(2))
    refocus = "dispatchEvent(new Event('focus'))"
    with user.page.expect_response("**/tasks?*") as response:
        user.page.evaluate(refocus)
    assert response.value.status == 304
    findings.report(task(title="Third", externalId="third"))
    findings.triage(0, status="in_progress")
    user.page.evaluate(refocus)
    user.expect_text("1 new, 1 changed", ".news")
    user.expect_titles("Finding 1", "Finding 0")
    user.press("r")
    user.expect_titles("Third", "Finding 1", "Finding 0")
    expect(user.page.get_by_role("button", name="In progress 1")).to_be_visible()
    user.expect_none(".news > *")
    user.page.context.set_offline(True)
    user.click("High")
    user.expect_text("can't be reached", "[role=alert]")
    findings.report(task(title="Fourth", externalId="fourth"))
    user.page.context.set_offline(False)
    user.expect_titles("Fourth", "Third", "Finding 1", "Finding 0")
    user.expect_none("[role=alert]")


def test_deletion_requires_typing_a_confirmation(user: PageUser, findings: Findings) -> None:
    run = findings.report(*numbered(1))
    for path, view in (
        (f"tasks/{findings.ids[0]}", "Findings"),
        (f"runs/{run}", "Runs"),
        (f"project-types/{findings.type}", "Project types"),
    ):
        user.open(f"#/{path.replace('tasks', 'findings')}")
        user.click("Delete…")
        user.press("Control+Enter")
        user.type("delet")
        user.press("Enter", "Control+Enter")
        user.page.wait_for_timeout(200)
        findings.send("GET", path)
        user.type("e")
        user.press("Enter")
        user.expect_text("Deleted", ".toast")
        user.expect_text(re.compile(f"^{view}$"), "h1")
        findings.send("GET", path, status=404)


def test_filtered_list_is_downloaded_as_csv_or_sarif(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(60), task(title="Other", severity="low"), more="&severity=high")
    saved = {}
    for name in ("CSV", "SARIF"):
        with user.page.expect_download() as download:
            user.click("Export")
            user.click(name, exact=True)
        saved[download.value.suggested_filename] = Path(download.value.path()).read_text("utf-8")
    assert len(saved["findings.csv"].splitlines()) == 61
    assert len(json.loads(saved["findings.sarif"])["runs"][0]["results"]) == 60


def test_keyboard_shortcuts_are_listed_and_can_be_switched_off(user: PageUser, findings: Findings) -> None:
    user.open_finding(findings, task(title="One"))
    user.press("?")
    user.expect_text("Select", "dialog")
    user.page.get_by_label("Enable shortcuts").uncheck()
    user.press("Escape", "2")
    user.page.wait_for_timeout(200)
    assert findings.read(0)["status"] == "open"
    user.page.locator(".triage").get_by_role("button", name="Resolve").click()
    user.expect_text("Resolved", ".badges")
    user.page.locator(".toast").get_by_role("button", name="Undo").click()
    user.expect_text("Open", ".badges")
    user.click("Account")
    user.click("Keyboard shortcuts")
    user.page.get_by_label("Enable shortcuts").check()
    user.press("Escape", "u")
    user.expect_text("Nothing to undo", ".toast")
    user.press("2")
    user.expect_text("In progress", ".badges")


# Conflicts and unsent changes


@in_every_browser
@pytest.mark.parametrize("in_list", [False, True])
def test_concurrent_triage_is_shown_and_not_overwritten(
    user: PageUser, findings: Findings, proxy: Proxy, in_list: bool
) -> None:
    (user.open_list if in_list else user.open_finding)(findings, task(title="One"))
    by, headers = "first", {}
    if in_list:
        by, headers = f"{proxy.user} (proxy-", {"Authorization": f"Bearer {proxy.key}", "Findings-User": proxy.user}
    update = {"status": "dismissed", "reason": "accepted_risk", "comment": "We know"}
    findings.send("PATCH", f"tasks/{findings.ids[0]}", update, **headers)
    user.press(*("j" if in_list else ""), "3")
    user.expect_text("Someone else changed this finding", "dialog h2")
    for text in ("Open", "Dismissed", "Accepted risk", "We know", by, "Your change: resolve as fixed."):
        user.expect_text(text, "dialog")
    assert findings.statuses() == ["dismissed"]
    user.click("Resolve “One” anyway")
    user.expect_text("Resolved “One”.", ".toast")
    assert findings.statuses() == ["resolved"]


def test_conflicts_of_queued_changes_are_confirmed_one_by_one(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(3))
    user.page.context.set_offline(True)
    user.press("j", "2", "2", "2")
    user.expect_text("3 changes not saved yet", ".outbox")
    for index in (1, 2):
        findings.triage(index, assignee="Ada")
    user.page.context.set_offline(False)
    user.expect_text("Someone else changed", "dialog h2")
    user.expect_none(".outbox")
    user.click("Discard my change")
    user.click("Start “Finding 1” anyway")
    user.expect_none("dialog")
    user.expect_text("Started “Finding 1”", ".toast")
    assert findings.statuses() == ["in_progress", "in_progress", "open"]


def test_bulk_triage_is_confirmed_and_overwrites_no_concurrent_change(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(3))
    user.page.get_by_label("Select all on this page").check()
    for key, question in (("2", "Start 3 findings?"), ("4", "Dismiss 3 findings?")):
        user.press(key)
        user.expect_text(question, "dialog h2")
        user.press("Escape")
        user.expect_none("dialog")
    assert findings.statuses() == ["open"] * 3
    findings.triage(1, status="resolved", reason="fixed")
    user.press("4", "Space")
    user.write("Tab", "All of these")
    user.expect_text("Someone else changed 1 of these 3 findings", "dialog h2")
    for text in ("Finding 1", "Resolved", "Fixed", "All of these", "Dismiss 3 findings anyway"):
        user.expect_text(text, "dialog")
    assert findings.statuses() == ["open", "resolved", "open"]
    user.press("Escape", "Escape")  # would discard the comment
    user.click("Skip 1 and dismiss 2")
    user.expect_text("Dismissed 2 findings.", ".toast")
    assert findings.statuses() == ["dismissed", "resolved", "dismissed"]
    assert findings.history(0)[-1]["comment"] == "All of these"
    user.press("u")
    user.expect_text("Undone", ".toast")
    assert findings.statuses() == ["open", "resolved", "open"]


def test_typed_text_survives_another_response_and_a_reload(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(2))
    hold(user, "**/tasks", "PATCH")
    user.press("j", "c")
    user.expect("dialog h2").to_have_text("Comment on “Finding 1”")
    user.type("First")
    user.press("Control+Enter", "x", "j", "x", "c")
    user.type("Half an hour of thought")
    user.page.unroute_all()
    user.expect_text("Commented on “Finding 1”", ".toast")
    assert user.page.locator("dialog textarea").input_value() == "Half an hour of thought"
    user.page.reload()
    user.expect_text("Comment on 2 findings", "dialog h2")
    assert user.page.locator("dialog textarea").input_value() == "Half an hour of thought"
    user.press("Control+Enter")
    user.expect_text("Commented on 2 findings.", ".toast")
    assert findings.history(0)[-1]["comment"] == "Half an hour of thought"
    user.page.reload()
    user.expect_text("2 findings", ".total")
    user.expect_none("dialog")


def test_unsent_changes_survive_a_reload_and_are_applied_once(user: PageUser, findings: Findings) -> None:
    user.open_finding(findings, task(title="One", evidence=[{"type": "log", "content": "bulky"}]))
    user.route("**/api/v1/tasks", lambda route: (route.fetch(), route.fulfill(status=503, body="{}")))
    user.write("c", "Said once")
    user.expect_text("1 change not saved yet: Commented on “One”", ".outbox")
    user.press("2")
    user.expect_text("2 changes not saved yet", ".outbox")
    assert "bulky" not in user.page.evaluate("JSON.stringify(sessionStorage)")
    dialogs: list[str] = []
    user.page.remove_listener("dialog", user.record_dialog)
    user.page.once("dialog", lambda dialog: (dialogs.append(dialog.type), dialog.accept()))
    user.page.reload()
    assert dialogs == ["beforeunload"]
    user.expect_text("2 changes not saved yet", ".outbox")
    retry = user.page.get_by_role("button", name="Retry")
    expect(retry).to_be_enabled()  # otherwise the reloaded page's own retry may succeed
    user.page.unroute("**/api/v1/tasks")
    retry.click()
    user.expect_none(".outbox")
    user.expect_text("In progress", ".badges")
    assert [(each["to"], each["comment"]) for each in findings.history(0)[1:]] == [
        (None, "Said once"),
        ("in_progress", None),
    ]
