"""Tests of the views of runs, project types and webhooks, and of errors and empty lists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any

import pytest

from tests.browser import (
    Findings,
    MakeUser,
    PageUser,
    check_link_counts,
    expect,
    make_key,
    numbered,
    open_view,
    violations,
)
from tests.clients import API, task
from tests.servers import Server, StubHandler, running_stub, wait_until


def test_run_is_compared_with_its_baseline(user: PageUser, findings: Findings) -> None:
    both, gone, new = (task(title=each, externalId=each, rule="R1", location="a/b.py:1") for each in "BGN")
    findings.report(both, gone)
    run = findings.report(both, new, metadata={"commit": "abc1234567"})
    user.open(f"#/runs?projectType={findings.type}")
    user.expect_text("2 runs", ".total")
    row = user.page.locator("table.runs tbody tr").first
    expect(row.locator("td")).to_have_text(["Fail", "example.com/shop", "Main branch", "abc1234", "2 results", "1 new"])
    row.get_by_role("link").click()
    user.expect_text(re.compile(rf"{findings.type} run · \d+ \w+, \d\d:\d\d"), "h1")
    assert run in user.fragment
    user.expect_text("No longer reported, unresolved 1", "main")  # comes from a request of its own
    user.page.locator("summary").evaluate_all("all => all.forEach((each) => (each.parentElement.open = true))")
    user.expect_text("1 of 2 already known", "p.part")
    user.expect_text("Fail 1 new finding of severity high or higher; 1 new since the baseline.", ".card")
    user.expect_text("abc1234567", ".facts")
    parts = user.page.locator("details.part")
    for index, name, title in ((0, "New in run", "N"), (1, "Missing from run", "G")):
        user.open(f"#/runs/{run}")
        user.expect_text("No longer reported", "main")
        parts.nth(index).evaluate("part => (part.open = true)")
        expect(parts.nth(index).locator("li a")).to_have_text([title])
        parts.nth(index).get_by_role("link", name="Open as a list").click()
        user.expect_titles(title)
        user.click(name)
        user.expect_none(f".chip:has-text('{name}')")


def test_running_run_shows_its_progress_until_its_verdict(user: PageUser, findings: Findings) -> None:
    run = findings.report(task(severity="critical"), finish=False)
    user.page.clock.install()
    user.open(f"#/runs/{run}")
    user.expect_text("Running", ".badges")
    user.expect_text("Pending Waiting for the run to finish", ".card")
    user.page.clock.run_for(65_000)
    user.expect_text(re.compile(r"1 min \d+ s"), "[role=timer]")
    findings.send("POST", f"runs/{run}/tasks", {"tasks": numbered(2)}, 201)
    user.page.clock.run_for(5000)
    user.expect_text("3 findings", "main")
    with user.page.expect_response(lambda response: response.url.endswith("runs?limit=1") and response.status == 304):
        user.page.clock.run_for(5000)
    findings.send("PATCH", f"runs/{run}", {"status": "completed", "gate": {"failOn": "none"}})
    user.page.clock.run_for(5000)
    user.expect_text("Pass No severity fails this run; no baseline, so everything is new.", ".card")
    user.expect_none("[role=timer]")


def test_stored_verdict_stays_while_the_comparison_is_current(user: PageUser, findings: Findings) -> None:
    run = findings.report(*numbered(1))
    findings.triage(0, status="dismissed", reason="wont_fix")
    user.open(f"#/runs/{run}")
    user.expect_text("Fail 1 new finding of severity high or higher; no baseline, so everything is new.", ".card")
    user.expect_text("1 created, 0 new.", "section:has(h2:text('Comparison now'))")
    user.expect_text("Ignored by the gate: 1 dismissed", "main")


def test_run_that_is_deleted_while_it_runs_is_not_shown_any_more(user: PageUser, findings: Findings) -> None:
    run = findings.report(*numbered(1), finish=False)
    user.open(f"#/runs/{run}")
    user.expect_text("Running", ".badges")
    findings.server.request("DELETE", f"{API}/runs/{run}")
    user.expect_text("Run not found", "[role=alert]")
    user.expect_none(".badges, [role=timer]")


def test_failed_run_shows_its_reason_and_no_verdict(user: PageUser, findings: Findings) -> None:
    run = findings.report(*numbered(1), finish=False)
    findings.send("PATCH", f"runs/{run}", {"status": "failed", "statusReason": "Out of memory"})
    user.open(f"#/runs/{run}")
    user.expect_text("Failed", ".badges")
    user.expect_text("Out of memory", ".card")
    user.expect_none("h2:text('Gate'), .badge:text-is('Fail')")


def test_counts_of_a_branch_run_equal_the_totals_of_the_linked_lists(user: PageUser, findings: Findings) -> None:
    def some(kind: str, count: int) -> list[dict[str, Any]]:
        return [task(title=f"{kind} {n}", externalId=f"{kind} {n}") for n in range(count)]

    old, known = some("old", 23), some("known", 60)
    findings.report(*old)
    findings.report(*known, *some("gone", 3))
    findings.triage(23, status="dismissed", reason="false_positive")  # the first of "known"
    for index in range(23):
        findings.triage(index, status="resolved")
    run = findings.report(*known, *old, *some("new", 5), branch="a")
    user.open(f"#/runs/{run}")
    user.expect_text("5 created, 28 new since the baseline, 23 of them resolved on the main branch", "main")
    assert check_link_counts(user, findings, "main section:not(.card) > p > a[href^='#/findings']") == 8
    user.expect(".part .count").to_have_text(["28", "3"])
    user.expect_text("59 of 88 already known", "p.part")
    lists = user.page.locator("details.part p a").evaluate_all("all => all.map((each) => each.getAttribute('href'))")
    assert [findings.send("GET", f"tasks?{href.partition('?')[2]}")["total"] for href in lists] == [28, 3]


def test_keys_navigate_and_open_runs_and_escape_goes_back(user: PageUser, findings: Findings) -> None:
    runs = [findings.report(*[task(title="One")] * (number == 2)) for number in range(52)][::-1]
    user.open(f"#/runs?projectType={findings.type}")
    user.expect_text("52 runs", ".total")
    for keys, run in (("jj", 1), ("j" * 49, 50), ("k", 49)):
        user.press(*keys)
        user.expect(f"#row-{runs[run]}").to_be_focused()
    assert user.page.evaluate("document.activeElement.getBoundingClientRect().bottom <= innerHeight")
    user.press("Enter")
    user.expect_text(f"{findings.type} run", "h1")
    assert user.fragment == f"#/runs/{runs[49]}"
    user.click("One", "link", exact=True)
    user.expect_text("One", "h1")
    user.page.evaluate("document.activeElement.blur()")
    user.press("Escape")
    user.expect_text("run · ", "h1")
    user.press("Escape")
    user.expect(f"#row-{runs[49]}").to_be_focused()


def test_project_types_are_listed_and_shown_with_their_schema(user: PageUser, findings: Findings) -> None:
    schema = {"properties": {"page": {"type": "integer"}}}
    body = {"label": "Shop pages", "description": "What a shop needs", "extensionSchema": schema}
    findings.send("PUT", f"project-types/{findings.type}", body)
    user.open("#/project-types")
    user.page.get_by_role("link", name="Shop pages").first.click()
    user.expect_text("Shop pages", "h1")
    user.expect_text("What a shop needs", "main")
    assert user.page.locator(".code pre").inner_text() == json.dumps(schema, indent=2)
    expect(user.page.get_by_role("button", name="Delete")).to_be_enabled()
    findings.send("PUT", f"project-types/{findings.type}", {})
    findings.report()
    user.page.reload()
    user.expect_text("No schema: anything is accepted.", "main")
    user.expect_text("1 run", ".facts")
    expect(user.page.get_by_role("button", name="Delete")).to_be_disabled()
    user.expect_text("Delete its runs first.", "aside")


class Receiver(StubHandler):
    """Handler of webhook deliveries, which responds with the status of its server."""

    def do_POST(self) -> None:
        self.server.received.append(json.loads(self.body())["type"])
        self.reply(self.server.status)


@pytest.fixture
def receiver() -> Iterator[Any]:
    """A webhook receiver: `received` lists the types of the events, `status` is the status of the responses."""
    with running_stub(ThreadingHTTPServer(("127.0.0.1", 0), Receiver)) as server:
        vars(server).update(received=[], status=204, url=f"http://127.0.0.1:{server.server_port}/secret")
        yield server


def test_webhook_is_registered_tested_deleted_and_its_secret_shown_once(
    make_user: MakeUser, service: Server, receiver: Any
) -> None:
    user = make_user(key=make_key(service, "hooks", "full", "registering"))
    user.open("#/webhooks")
    user.expect_text("0 webhooks", ".total")
    url = user.page.get_by_label("URL")
    url.fill("http://ada:secret@example.com")
    user.press("Enter")
    user.expect_text("url", "form [role=alert]")
    url.fill(receiver.url)
    user.page.get_by_label("Minimum severity").select_option("High")
    user.page.get_by_label("finding.created").check()
    user.press("Enter")
    user.expect_text(re.compile("whsec_[A-Za-z0-9+/=]{20,}"), ".secret code")
    user.click("Copy")
    user.expect_text("Copied.", ".toast")
    user.page.locator("table.webhooks").wait_for()
    for text in (f"127.0.0.1:{receiver.server_port}", "run.finished, finding.created", "high or worse", "On"):
        user.expect_text(text, "table.webhooks tbody tr")
    expect(url).to_have_value("")
    user.page.reload()
    user.expect_text("1 webhook", ".total")
    assert "whsec_" not in user.page.content()
    for receiver.status, text in ((204, "Test delivered."), (500, "Test not delivered: 500.")):
        user.click("Test")
        user.expect_text(text, ".toast")
    assert receiver.received == ["webhook.test"] * 2
    user.click("Delete")
    user.expect_text("Deliveries stop", "dialog")
    user.expect_text("Delete this webhook?", "dialog h2")
    user.type("delete")
    user.press("Enter")
    user.expect_text("0 webhooks", ".total")


def test_webhook_that_is_off_can_be_switched_on_again(user: PageUser, findings: Findings, receiver: Any) -> None:
    receiver.status = 410
    hook = findings.send("POST", "webhooks", {"url": receiver.url, "projectType": findings.type}, 201)
    findings.report(*numbered(1))
    wait_until(
        lambda: findings.send("GET", f"webhooks/{hook['id']}")["state"] == "off"
    )  # the service delivers in the background
    user.open("#/webhooks")
    row = user.page.locator("tbody tr", has_text=findings.type)
    for text in ("Off", "410"):
        expect(row).to_contain_text(text)
    assert violations(user, "light") == []
    receiver.status = 204
    row.get_by_role("button", name="Retry failed delivery").press("Enter")
    expect(row).to_contain_text("On")
    wait_until(lambda: len(receiver.received) > 1)
    assert receiver.received == ["run.finished"] * 2


def test_empty_views_explain_how_to_report_findings(make_user: MakeUser, service: Server) -> None:
    user = make_user(key=make_key(service, "new", "full", "nobody"))
    for fragment in ("", "#/findings", "#/findings?status=open", "#/runs", "#/runs?status=failed", "#/project-types"):
        user.open(fragment)
        user.expect_text(re.compile("No .* yet"), ".notice h2")
        user.expect_text(f"scan --url {user.url}", ".sample")
        assert user.page.locator(".notice a").get_attribute("href").endswith("/api/v1/openapi.json")


def test_filters_without_a_match_can_be_cleared(user: PageUser, findings: Findings) -> None:
    findings.report(*numbered(1))
    for view in ("runs", "findings"):
        user.open(f"#/{view}?projectType=unknown")
        user.expect_text("match these filters", ".notice h2")
        user.click("Clear filters", "link")
        user.page.locator(f"table.{view}").wait_for()


def test_missing_resources_and_failed_requests_show_an_error(user: PageUser) -> None:
    user.open("#/nowhere")
    user.expect_text("Page not found", "h1")
    for view, name in (("findings", "Finding"), ("runs", "Run"), ("project-types", "Project type")):
        user.open(f"#/{view}/unknown")
        user.expect_text(f"{name} not found", "[role=alert]")
        user.expect_text("It may have been deleted.", "[role=alert]")
    user.open("#/findings?status=odd")
    user.expect_text("must be one of", "[role=alert]")
    user.route("**/api/v1/runs*", lambda route: route.abort())
    user.open("#/runs")
    user.expect_text("Couldn't load runs", "[role=alert]")
    user.expect_text("can't be reached", "[role=alert]")
    user.page.unroute("**/api/v1/runs*")
    user.click("Try again")
    user.expect_text("Runs", "caption")


def test_print_hides_controls_and_fits_the_chart_to_the_paper(user: PageUser, findings: Findings) -> None:
    run = findings.report(*numbered(2))
    user.open()
    user.page.emulate_media(media="print")
    controls = ".top, search, button, form, .toast, .outbox, .actions"
    for view in (f"overview?projectType={findings.type}", "findings", "runs", f"runs/{run}", "webhooks"):
        open_view(user, f"#/{view}")
        shown = "(all) => all.filter((each) => each.checkVisibility()).map((each) => each.outerHTML)"
        assert user.page.locator(controls).evaluate_all(shown) == []
    open_view(user, f"#/overview?projectType={findings.type}")
    drawing = user.page.locator(".chart svg")
    drawing.evaluate("one => one.setAttribute('width', 3000)")  # as drawn for a wider screen
    assert drawing.bounding_box()["width"] <= user.page.locator(".chart").bounding_box()["width"]
