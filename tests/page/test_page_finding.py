"""Tests of the view of one finding, and of its untrusted texts."""

from __future__ import annotations

from tests.browser import FULL_TASK, PICTURE, TARGET, Findings, MakeUser, PageUser, expect
from tests.clients import task


def test_finding_shows_all_fields_and_loads_remote_images_on_click(make_user: MakeUser, findings: Findings) -> None:
    run = findings.report(FULL_TASK, metadata={"commit": "0" * 40})
    findings.triage(0, status="dismissed", reason="wont_fix", comment="Hm")
    user, fetched = make_user(permissions=["clipboard-read", "clipboard-write"]), list[str]()
    user.page.on("request", lambda request: fetched.append(request.url))
    user.route("http://127.0.0.1:9/*", lambda route: route.fulfill(status=404))
    user.open_finding(findings)
    assert user.page.locator("section .prose").first.inner_text() == FULL_TASK["description"]
    numbers = user.page.locator(".code .no").evaluate_all("all => all.map((each) => each.dataset.no)")
    assert numbers == ["41", "42"]
    assert user.page.locator(".steps").first.inner_text().split("\n") == ["Label it", "Then test"]
    for within, *texts in (
        ("main", "A screen reader says it", "can be automated", "R1", "forms", "0.5", "yes", "As it looks"),
        (".history", "first", "from Open to Dismissed", "Won't fix", "Hm"),
        (".facts", "Won't fix", "Nobody", "Main line", findings.type, TARGET, "1 time", "0000000000"),
    ):
        for text in texts:
            user.expect_text(text, within)
    assert user.page.locator(f".facts a[href='#/runs/{run}']").count() == 2
    user.expect_none(".facts a:has(code), .facts a:text-is('In the repository')")
    assert user.page.title() == "The search field has no label · Findings"
    expect(user.page.get_by_alt_text("As it looks")).to_have_js_property("naturalWidth", 1)
    assert PICTURE not in fetched
    user.click("Show picture from 127.0.0.1:9")
    user.expect_text("can't be shown", ".evidence")
    assert PICTURE in fetched
    user.page.locator(".code").get_by_role("button", name="Copy").click()
    user.expect_text("Copied", ".toast")
    assert user.page.evaluate("navigator.clipboard.readText()") == FULL_TASK["evidence"][0]["content"]
    user.route(f"**/runs/{run}", lambda route: route.abort())
    user.page.reload()
    user.expect_text("src/app.py:41", ".facts")
    user.expect_none("[role=alert]")


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
    user.expect_text(f"In progress: {quoted}.", ".toast")
    user.press("c")
    user.expect_text(f"Comment on {quoted}", "dialog h2")


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
        user.expect_text(findings.read(index)["location"], ".facts")
        for label, marked in marks.items():
            shown = user.page.get_by_role("group", name=label, exact=True)
            found = shown.locator(".marked")
            assert found.locator(".no").evaluate_all("all => all.map((each) => each.dataset.no)") == marked
            assert found.all_inner_texts() == ["Here:\nline"] * len(marked)
        expect(shown.locator(".line")).to_have_count(200)
        shown.get_by_role("button", name="Show all 308 lines").click()
        expect(shown.locator(".line")).to_have_count(308)


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
        user.expect_text(location, ".facts")
        user.expect(".facts a:has(code)").to_have_attribute("href", f"{repository}/commit/0123456789abcdef")
        found = user.page.locator(".fact:has(dt:text-is('Location')) a[rel='noopener noreferrer']")
        assert found.evaluate_all("all => all.map((each) => each.getAttribute('href'))") == expected
        assert found.filter(has_text="In the repository").count() == sum(repository in link for link in expected)


def test_finding_links_to_findings_with_the_same_rule_location_or_tag(user: PageUser, findings: Findings) -> None:
    text = f" {findings.type[-40:]}, src/a.py:41"
    findings.report(task(title="One", rule=text, location=text, tags=[text]), task(title="Another"))
    for name in ("Rule", "Location", "Tag"):
        user.open_finding(findings)
        user.page.locator(f".fact:has(dt:text('{name}')) a").last.click()
        user.expect_titles("One")
        user.click(f"{name}: {text}")
        user.expect_text("Another", "tbody")
