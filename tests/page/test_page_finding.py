"""Tests of the view of one finding, and of its untrusted texts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser import (
    FULL_TASK,
    PICTURE,
    TARGET,
    Findings,
    MakeUser,
    PageUser,
    expect,
    in_every_browser,
    make_key,
    violations,
)
from tests.clients import task


def test_finding_shows_all_fields_and_loads_remote_images_on_click(make_user: MakeUser, findings: Findings) -> None:
    run = findings.report(FULL_TASK, metadata={"commit": "0" * 40})
    findings.triage(0, status="dismissed", reason="wont_fix", comment="Hm")
    user, fetched = make_user(permissions=["clipboard-read", "clipboard-write"]), list[str]()
    user.page.on("request", lambda request: fetched.append(request.url))
    user.route("http://127.0.0.1:9/*", lambda route: route.fulfill(status=404))
    user.open_finding(findings)
    headings = ["Evidence", "Remediation", "Success criteria", "Description", "History"]
    user.expect("main h2").to_have_text(headings)
    assert user.page.locator("h2:text('Description') + .prose").inner_text() == FULL_TASK["description"]
    numbers = user.page.locator(".code .no").evaluate_all("all => all.map((each) => each.dataset.no)")
    assert numbers == ["41", "42"]
    assert user.page.locator(".steps").first.inner_text().split("\n") == ["Label it", "Then test"]
    for within, *texts in (
        ("main", "A screen reader says it", "machine-checkable", "As it looks"),
        (".badges", "High", "Dismissed", "Won't fix"),
        (".lead", "src/app.py:41", "Rule label", "Unassigned"),
        (".history", "first reported this · run", "changed status Open → Dismissed", "Won't fix", "Hm"),
        (".facts", "Main branch", findings.type, TARGET, "1 time", "0000000000"),
        (".technical", findings.ids[0], "R1", "forms", "0.5", "yes"),
    ):
        for text in texts:
            user.expect_text(text, within)
    assert user.page.locator(f".facts a[href='#/runs/{run}']").count() == 2
    user.expect_none(".facts a:has(code), a:text-is('View source')")
    assert user.page.title() == "The search field has no label · Findings"
    expect(user.page.get_by_alt_text("As it looks")).to_have_js_property("naturalWidth", 1)
    assert PICTURE not in fetched
    user.click("Load image from 127.0.0.1:9")
    user.expect_text("Image couldn't be loaded.", ".evidence")
    assert PICTURE in fetched
    user.page.locator(".code").get_by_role("button", name="Copy").click()
    user.expect_text("Copied", ".toast")
    assert user.page.evaluate("navigator.clipboard.readText()") == FULL_TASK["evidence"][0]["content"]


def test_finding_whose_run_does_not_load_has_no_empty_commit(user: PageUser, findings: Findings) -> None:
    run = findings.report(FULL_TASK, metadata={"commit": "0" * 40})
    user.open()
    user.route(f"**/runs/{run}", lambda route: route.abort())
    user.open_finding(findings)
    user.expect_text("Last reported", ".facts")
    user.expect_none("[role=alert], dt:text('Commit')")
    user.page.unroute_all()
    user.page.reload()
    user.expect("dt:text('Commit')").to_have_count(1)


def test_user_text_is_shown_with_web_links_but_without_html_or_images(user: PageUser, findings: Findings) -> None:
    text = f"""See (https://example.com/a?b=1).\n- **Read** [this](https://example.com/a)\n`code`\n```sh\nls\n```
        <img src=x onerror=alert(1)> &lt;b>\nLook: ![x]({PICTURE})"""
    shown = """See (https://example.com/a?b=1).\n- Read this (example.com)\ncode\nls
        <img src=x onerror=alert(1)> &lt;b>\nLook: !x (127.0.0.1:9)"""
    findings.report(
        task(description=text, remediation=[{"instruction": text}], successCriteria=[{"description": text}])
    )
    findings.triage(0, comment=text)
    fetched: list[str] = []
    user.page.on("request", lambda request: fetched.append(request.url))
    user.open_finding(findings)
    user.expect(".prose").to_have_count(4)
    assert set(user.page.locator(".prose").all_text_contents()) == {shown}
    links = user.page.locator(".prose a[target='_blank'][rel='noopener noreferrer nofollow']")
    expected = ["https://example.com/a?b=1", "https://example.com/a", PICTURE] * 4
    assert links.evaluate_all("all => all.map((each) => each.href)") == expected
    user.expect(".prose a").to_have_count(len(expected))
    user.expect_none(".prose img, .prose script")
    assert PICTURE not in fetched


def test_right_to_left_text_is_aligned_right_and_isolated_in_messages(user: PageUser, findings: Findings) -> None:
    title = f"\u202eתמונה\u200f {'x' * 60}"
    findings.report(task(title=title, description="زر بدون اسم\nA button\nצריך שם"))
    user.open(f"#/findings/{findings.ids[0]}")
    user.page.locator(".prose").wait_for()
    sides = user.page.locator(".prose").evaluate(
        """box => {
            const [range, { left, right }, text] = [new Range(), box.getBoundingClientRect(), box.firstChild];
            return [[0, 11], [12, 20], [21, 28]].map(([start, end]) => {
                range.setStart(text, start);
                range.setEnd(text, end);
                const line = range.getBoundingClientRect();
                return line.left - left < right - line.right ? "left" : "right";
            });
        }"""
    )
    assert sides == ["right", "left", "right"]
    assert user.page.locator("h1 bdi").evaluate("each => getComputedStyle(each).direction") == "rtl"
    quoted = f"“\u2068תמונה {'x' * 53}…\u2069”"
    user.press("2")
    user.expect_text(f"Started {quoted}.", ".toast")
    user.press("4")
    user.expect_text(f"Dismiss {quoted}", "dialog h2")


CODES = {  # the label of the code -> its highlighted lines, for a finding at line 309
    "./src/a.py:309": ["309"],
    "./src/a.py:9": ["309"],
    "src/b.py:9": [],
    "src/a.py:310": [],
    "src/a.py:1": [],  # ends before line 309
    "src/a.py": [],
}


def test_findings_line_is_highlighted_and_long_code_is_collapsed(user: PageUser, findings: Findings) -> None:
    code = [{"label": label, "content": "line\n" * 308} for label in CODES]
    findings.report(*(task(location=where, evidence=code) for where in ("src/a.py:309:4", "src/a.py")))
    for index, marks in enumerate((CODES, {label: [] for label in CODES})):
        user.open(f"#/findings/{findings.ids[index]}")
        user.expect_text(findings.read(index)["location"], ".lead")
        for label, marked in marks.items():
            shown = user.page.get_by_role("group", name=label, exact=True)
            found = shown.locator(".marked")
            assert found.locator(".no").evaluate_all("all => all.map((each) => each.dataset.no)") == marked
            assert found.all_inner_texts() == ["Here:\nline"] * len(marked)
        expect(shown.locator(".line")).to_have_count(24)
        shown.get_by_role("button", name="Show all 308 lines").click()
        expect(shown.locator(".line")).to_have_count(308)


def test_code_of_one_very_long_line_is_collapsed_but_printed_whole(user: PageUser, findings: Findings) -> None:
    user.open_finding(findings, task(evidence=[{"content": "x" * 5000 + " y" * 5000}, {"content": "line\n" * 308}]))
    height = "all => all[0].clientHeight"
    code = user.page.locator(".code pre")
    expect(code).to_have_count(2)
    assert code.evaluate_all(height) < 600
    user.page.emulate_media(media="print")
    assert code.evaluate_all(height) > 1000
    said = "all => all.map((each) => getComputedStyle(each, '::after').content)"
    assert user.page.locator(".code").evaluate_all(said) == ['""', '"24 of 308 lines"']
    user.page.emulate_media(media="screen")
    user.click("Show all", exact=True)
    user.expect_none("button:text-is('Show all')")
    assert code.evaluate_all(height) > 1000


def test_location_links_to_its_line_at_the_commit_or_to_its_url(user: PageUser, findings: Findings) -> None:
    repository = "https://code.example.com/shop"
    links = {
        "src/a b.py:41": [f"{repository}/blob/0123456789abcdef/src/a%20b.py#L41"],
        "https://example.com/a?b": ["https://example.com/a?b"],
        "//example.com/x:1": [],
    }
    metadata = {"commit": "0123456789abcdef", "repository": f"{repository}.git"}
    findings.report(*(task(location=location) for location in links), metadata=metadata)
    for index, (location, expected) in enumerate(links.items()):
        user.open(f"#/findings/{findings.ids[index]}")
        user.expect_text(location, ".lead")
        user.expect(".facts a:has(code)").to_have_attribute("href", f"{repository}/commit/0123456789abcdef")
        found = user.page.locator(".lead a[rel='noopener noreferrer']")
        assert found.evaluate_all("all => all.map((each) => each.getAttribute('href'))") == expected
        assert found.filter(has_text="View source").count() == sum(repository in link for link in expected)


def test_rule_location_and_tag_link_to_unresolved_findings_that_share_them(user: PageUser, findings: Findings) -> None:
    same = {"rule": " R 1, x", "location": "src/a.py:41", "tags": ["wcag143"]}
    findings.report(task(title="One", **same), task(title="Done", status="resolved", **same), task(title="Another"))
    findings.report(task(title="Of a branch", externalId="b", **same), branch="topic")
    names = {"1.4.3 Contrast (Minimum) · AA": "tag=wcag143", same["rule"]: "rule=", "Other findings here": "location="}
    for index, title in ((0, "One"), (3, "Of a branch")):
        for name, filtered in names.items():
            user.open(f"#/findings/{findings.ids[index]}")
            user.click(name.strip(), "link", exact=True)
            user.expect_titles(title)
            assert filtered in user.fragment


@in_every_browser
def test_comment_box_sends_with_ctrl_enter_and_keeps_its_text(user: PageUser, findings: Findings) -> None:
    user.open_finding(findings, FULL_TASK)
    box = user.page.get_by_label("Comment")
    user.press("c")
    expect(box).to_be_focused()
    user.type("Looks right")
    user.page.reload()
    expect(box).to_have_value("Looks right")
    user.route("**/tasks", lambda route: route.fulfill(status=400, json={"detail": "Too late"}), times=1)
    box.press("Control+Enter")
    user.expect_text("Too late", "form [role=alert]")
    expect(box).to_have_value("Looks right")
    box.press("Control+Enter")
    user.expect_text("Looks right", ".history")
    expect(box).to_have_value("")
    assert [entry["comment"] for entry in findings.history(0)] == [None, "Looks right"]


def test_read_only_key_sees_no_comment_box(make_user: MakeUser, findings: Findings) -> None:
    user = make_user(key=make_key(findings.server, f"r-{findings.type}", "read"))
    user.open_finding(findings, FULL_TASK)
    user.expect_text("reported this", ".history")
    user.expect_none("textarea, .triage")
    user.open(f"#/project-types/{findings.type}")
    user.expect_text("1 run", "aside")
    user.expect_none("aside button")


@in_every_browser
def test_screenshot_opens_large_and_escape_closes_only_it(user: PageUser, findings: Findings) -> None:
    user.open_finding(findings, FULL_TASK)
    user.click("As it looks")
    expect(user.page.get_by_role("dialog", name="As it looks")).to_be_visible()
    user.press("Escape")
    user.expect_none("dialog")
    expect(user.page.get_by_role("button", name="As it looks")).to_be_focused()
    assert user.fragment == f"#/findings/{findings.ids[0]}"


def test_diff_marks_added_and_removed_lines_and_keeps_their_signs(user: PageUser, findings: Findings) -> None:
    diff = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-old\n+new\n kept\n"
    user.open_finding(findings, task(evidence=[{"label": "Fix", "type": "log", "content": diff}]))
    for kind, text in (("added", "+new"), ("removed", "-old"), ("hunk", "@@ -1,2 +1,2 @@")):
        user.expect(f".diff .{kind}").to_have_text([text])


def test_remediation_that_is_a_url_is_documentation_of_the_rule(user: PageUser, findings: Findings) -> None:
    url = "https://example.com/rules/label"
    user.open_finding(findings, task(rule="label", remediation=[{"instruction": url}]))
    user.expect(".lead a:has-text('Documentation')").to_have_attribute("href", url)
    user.expect_none("h2:text('Remediation')")


def test_history_says_what_a_later_report_changed(user: PageUser, findings: Findings) -> None:
    findings.report(task(externalId="a"))
    findings.triage(0, status="resolved", reason="fixed")
    findings.report(task(externalId="a", title="Now worse", severity="critical"))
    findings.triage(0, assignee="Ada")
    findings.triage(0, assignee="")
    user.open_finding(findings)
    expected = ["reported this", "Open → Resolved", "reopened it (", "assigned it to Ada", "unassigned it"]
    for entry, text in zip(user.page.locator(".history > li").all(), expected, strict=True):
        expect(entry).to_contain_text(text)
    user.expect_text("reported it again and reopened it (title, severity changed)", ".history")


def test_copy_buttons_copy_the_link_and_the_finding_as_markdown(make_user: MakeUser, findings: Findings) -> None:
    user = make_user(permissions=["clipboard-read", "clipboard-write"])
    user.open_finding(findings, FULL_TASK)
    for name, begin in (("Copy link", user.page.url), ("Copy as Markdown", "# The search field has no label\n")):
        user.click(name)
        user.expect_text("Copied", ".toast")
        assert user.page.evaluate("navigator.clipboard.readText()").startswith(begin)


def test_web_addresses_in_scanner_data_are_links(user: PageUser, findings: Findings) -> None:
    data = {"help": "https://example.com/help", "no": "javascript:alert(1)", "list": ["http://example.com/"]}
    user.open_finding(findings, task(extensions=data))
    links = user.page.locator(".technical a").evaluate_all("all => all.map((each) => each.href)")
    assert links == ["https://example.com/help", "http://example.com/"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation_in_a_diff_details_or_large_image(
    make_user: MakeUser, findings: Findings, theme: Any
) -> None:
    user = make_user(reduced_motion="reduce", color_scheme=theme)
    diff = {"type": "diff", "content": "@@ -1 +1 @@\n-old\n+new"}
    user.open_finding(findings, {**FULL_TASK, "evidence": [diff, *FULL_TASK["evidence"]]})
    user.page.get_by_text("Technical details").click()
    assert violations(user, theme) == []
    user.click("As it looks")
    assert violations(user, theme) == []


def test_comment_is_saved_although_somebody_else_changed_the_finding(user: PageUser, findings: Findings) -> None:
    user.open_finding(findings, task(title="One"))
    findings.triage(0, assignee="Ada")
    user.write("c", "Seen before that")
    user.expect_text("Seen before that", ".history")
    user.expect_none("dialog")
