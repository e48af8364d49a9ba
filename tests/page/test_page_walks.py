"""Walks through the page as its users take them. Each asserts the number of keys or taps that it takes."""

from __future__ import annotations

from dataclasses import dataclass

from tests.browser import Findings, MakeUser, PageUser
from tests.clients import task


@dataclass
class CountingUser:
    """A user whose keys and taps are counted."""

    user: PageUser
    count: int = 0

    def press(self, *keys: str) -> None:
        self.count += len(keys)
        self.user.press(*keys)

    def type(self, text: str) -> None:
        self.count += len(text)
        self.user.type(text)

    def tap(self, name: str, role: str = "button", within: str = "body") -> None:
        self.count += 1
        self.user.page.locator(within).get_by_role(role, name=name).first.tap()

    def expect(self, text: str, within: str = ".toast") -> None:
        self.user.expect_text(text, within)


def test_triage_of_500_findings_takes_24_keys(make_user: MakeUser, findings: Findings) -> None:
    """Two rules are decided as groups, and the ten findings of the third one by one."""
    rules = {"noise": 300, "theirs": 190, "real": 10}
    tasks = [
        task(title=f"{rule} {n}", rule=rule, externalId=f"{rule}{n}")
        for rule, total in rules.items()
        for n in range(total)
    ]
    findings.report(*tasks)
    walk = CountingUser(make_user())
    walk.user.open(f"#/findings?status=open,in_progress&mainLine=true&sort=severity&projectType={findings.type}")
    walk.expect("500 unresolved findings", ".total")
    walk.press("g")
    walk.expect("noise", "tbody tr:first-child")
    walk.press("j", "4")
    walk.expect("Dismiss 300 findings of rule noise", "dialog h2")
    walk.press("Space", "Enter")
    walk.expect("Dismissed 300 findings")
    walk.expect("theirs", "tbody tr:first-child")
    walk.press("a")
    walk.type("Ada")
    walk.press("Enter")
    walk.expect("Assigned to Ada: 190 findings")
    walk.press("j", "Enter")
    walk.expect("10 unresolved findings", ".total")
    walk.press("j", *"333333", "4", "Enter", *"222")
    walk.expect("In progress", "tbody")
    walk.user.expect_none("tr.pending")
    found = [findings.read(index) for index in range(500)]
    assert walk.count == 24
    assert [each["status"] for each in found].count("dismissed") == 301
    assert [each["assignee"] for each in found].count("Ada") == 190
    assert sorted(each["status"] for each in found[490:]) == ["dismissed", *["in_progress"] * 3, *["resolved"] * 6]


def test_triage_on_a_phone_takes_11_taps(make_user: MakeUser, findings: Findings) -> None:
    findings.report(*(task(title=f"Finding {n}", externalId=f"f{n}", location=f"src/{n}.py:1") for n in range(30)))
    walk = CountingUser(make_user(390, 844, has_touch=True, is_mobile=True, locale="en"))
    walk.user.open(f"#/overview?projectType={findings.type}")
    walk.tap("Unresolved", "link", ".figures")
    walk.expect("30 unresolved findings on the main branch", ".total")
    walk.tap("Filters")
    walk.tap("High", within=".filters")
    walk.tap("Filters")
    walk.tap("Finding 29", "link")
    walk.expect("Finding 29", "h1")
    walk.tap("Resolve")
    walk.expect("Resolved “Finding 29”")
    walk.tap("Undo")
    walk.expect("Undone")
    walk.expect("Open", ".badges")
    walk.tap("Dismiss")
    walk.tap("False positive", "radio")
    walk.tap("Dismiss", within="dialog .buttons")
    walk.expect("Dismissed “Finding 29”")
    walk.tap("Next", within="nav.trail")
    walk.expect("Finding 28", "h1")
    assert (walk.count, walk.user.overflow(390)) == (11, 0)
    assert findings.read(29)["reason"] == "false_positive"
