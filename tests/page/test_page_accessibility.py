"""Tests of accessibility: axe, forced colors, narrow screens and the keyboard."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser import (
    FULL_TASK,
    Findings,
    MakeUser,
    PageUser,
    expect,
    in_every_browser,
    numbered,
    open_view,
    violations,
)
from tests.clients import task

# Accessibility


@pytest.fixture
def views(findings: Findings) -> list[str]:
    """The fragments of all views, each with content."""
    findings.report(FULL_TASK, *numbered(5, evidence=[{"type": "log", "content": "x"}]))
    run = findings.report(*numbered(6), metadata={"commit": "abc"})
    findings.send("POST", "webhooks", {"url": "http://127.0.0.1:9/", "format": "slack", "projectType": "none"}, 201)
    findings.triage(0, status="dismissed", reason="duplicate", duplicateOf=findings.ids[1], comment="Hm")
    fixing, proposal = f"tasks/{findings.ids[2]}", {"status": "dismissed", "reason": "wont_fix", "comment": "Hm"}
    findings.send("PUT", f"{fixing}/proposal", proposal)
    findings.send("POST", "tasks/claim", {"ids": [findings.ids[2]]})
    findings.send("POST", f"{fixing}/verifications", {"outcome": "fixed", "comment": "Hm"}, 201)
    findings.triage(2, severity="low")
    findings.send("PUT", f"project-types/{findings.type}", {"description": "x", "extensionSchema": {"title": "x"}})
    listed, shown = f"findings?projectType={findings.type}", f"findings/{findings.ids[0]}"
    names = (
        *(
            "overview",
            listed,
            f"{listed}&group=rule",
            "findings?runId=none&without=tag",
            shown,
            f"findings/{findings.ids[2]}",
            "proposals",
            "runs",
            f"runs/{run}",
        ),
        *("project-types", f"project-types/{findings.type}", "webhooks", "nowhere", "runs/unknown"),
    )
    return [f"#/{name}" for name in names]


THEMES: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "forced": {"forced_colors": "active"},
}


@pytest.mark.parametrize("theme", list(THEMES))
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_axe_finds_no_violation_in_any_view(make_user: MakeUser, views: list[str], theme: str, width: int) -> None:
    user = make_user(width, reduced_motion="reduce", **THEMES[theme])
    user.page.goto(user.url)
    user.page.locator("form.signin").wait_for()
    assert violations(user, theme) == []
    user.sign_in(user.key)
    for view in views:
        open_view(user, view)
        assert (violations(user, theme), user.overflow(width)) == ([], 0), view


@pytest.mark.parametrize("theme", list(THEMES))
def test_axe_finds_no_violation_in_any_dialog(make_user: MakeUser, findings: Findings, theme: str) -> None:
    user = make_user(reduced_motion="reduce", **THEMES[theme])
    user.open_list(findings, *numbered(3))
    user.press("j", "x")
    for key, shown in (("2", "tbody .status:has-text('In progress')"), *((key, "dialog") for key in "4acs?")):
        user.press(key)
        user.page.locator(shown).wait_for()
        assert violations(user, theme) == [], key
        user.press("Escape")
        user.expect_none("dialog")
    findings.triage(2, assignee="Ada")
    user.press("3")
    user.expect_text("Someone else changed this finding", "dialog h2")
    user.page.locator("dialog .history li").wait_for()
    assert violations(user, theme) == []


def test_forced_colors_distinguish_current_pressed_and_focused_elements(
    make_user: MakeUser, findings: Findings
) -> None:
    user = make_user(forced_colors="active")
    user.open_list(findings, *numbered(2), more="&status=open")
    user.press("j", "x")

    def style(selector: str, name: str) -> str:
        return str(user.page.locator(selector).first.evaluate("(one, name) => getComputedStyle(one)[name]", name))

    pressed, other = (style(f"button[aria-pressed={value}]", "backgroundColor") for value in ("true", "false"))
    current, link = (
        style(f".top nav a{each}", "borderBottomColor") for each in ("[aria-current]", ":not([aria-current])")
    )
    assert pressed != other
    assert current != link
    assert [style("tr.here", name) for name in ("outlineStyle", "outlineWidth")] == ["solid", "2px"]


@in_every_browser
def test_no_view_scrolls_sideways_on_a_phone_or_at_400_percent(user: PageUser, views: list[str]) -> None:
    user.open()
    for view in views:
        open_view(user, view)
        assert [user.overflow(width) for width in (1280, 360, 320)] == [0, 0, 0], view


@in_every_browser
def test_main_workflow_needs_only_the_keyboard(make_user: MakeUser, findings: Findings) -> None:
    """A new user signs in, searches, dismisses, assigns, undoes and shares the URL."""
    findings.report(*numbered(3), task(title="Use of assert detected", severity="low"))
    user = make_user()
    user.page.goto(user.url)
    expect(user.page.get_by_label("API key")).to_be_focused()
    user.type(user.key)
    user.press("Enter")
    user.expect_text("Overview", "h1")
    user.page.evaluate("document.activeElement.blur()")
    user.press("Tab")
    expect(user.page.get_by_text("Skip to the content")).to_be_focused()
    user.press("Enter")
    user.expect("h1").to_be_focused()
    user.press("/")
    user.expect_text("Findings", "h1")
    user.type("use of ASSERT")
    user.expect_titles("Use of assert detected")
    user.press("Escape", "j", "Enter")
    user.expect_text("Use of assert detected", "h1")
    user.press("4", "Space", "Enter")
    user.expect_text("Dismissed “Use of assert detected”", ".toast")
    user.write("a", "Ada", "Enter")
    user.expect_text("Assigned to Ada", ".toast")
    user.press("u")
    user.expect_text("Undone", ".toast")
    stored = findings.read(3)
    assert (stored["status"], stored["reason"], stored["assignee"]) == ("dismissed", "false_positive", None)
    colleague = make_user(locale="en")
    colleague.page.goto(user.page.url)
    colleague.sign_in(colleague.key)
    colleague.expect_text("Use of assert detected", "h1")
