"""What `findings_adapters.page` promises: the page on which people work through findings.

What it does is tried in Debian's Chromium (`apt-get install chromium`), driven by Playwright for Python, and judged by
axe-core, which `npm install axe-core` puts into the folder `node_modules`. What is marked `in_every_browser` is tried
in Debian's Firefox too (`apt-get install firefox-esr`). Without them those tests are skipped.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import flask
import pytest

try:
    from playwright import sync_api as playwright
except ImportError:
    playwright = None

import findings_service as core
from findings_adapters import page as room
from tests.clients import API, KEY, assert_problem, cases, task
from tests.documents import npm_file
from tests.servers import PATIENCE, PROGRAM, Server, StubHandler, command, running_stub, start_process, wait_until

FILES = {path: served.args[0] for path, served in core.REGISTRY.page_files.items()}
OWN = [file for file in sorted(room.FOLDER.rglob("*")) if file.is_file() and file.parent.name != "vendor"]
MOST_BYTES = 150_000
PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
TARGET = "https://example.com/shop"


# The files


def test_every_file_is_served_without_a_key_under_a_strict_policy_unless_the_browser_has_it(app: flask.Flask) -> None:
    client = app.test_client()
    none = {f"{name} 'none'" for name in ("default-src", "base-uri", "form-action", "frame-ancestors")}
    own = {f"{name} 'self'" for name in ("script-src", "style-src", "connect-src")}
    for path, content in FILES.items():
        response = client.get(path)
        assert (response.status_code, response.data) == (200, content)
        assert response.content_type.endswith("; charset=utf-8")
        headers = dict(response.headers)
        policy = set(headers["Content-Security-Policy"].split("; "))
        assert policy == none | own | {"img-src 'self' data: http: https:"}
        names = ("X-Content-Type-Options", "Referrer-Policy", "Cache-Control")
        assert [headers[name] for name in names] == ["nosniff", "no-referrer", "no-cache"]
        again, head = client.get(path, headers={"If-None-Match": headers["ETag"]}), client.head(path)
        assert [each.status_code for each in (again, head)] == [304, 200]
        assert [(each.data, each.headers["ETag"]) for each in (again, head)] == [(b"", headers["ETag"])] * 2


def test_the_page_is_only_read_and_nothing_else_is_there(app: flask.Flask) -> None:
    client = app.test_client()
    for path, method in itertools.product(("/", "/page/app.js"), ("POST", "PUT", "DELETE", "OPTIONS")):
        response = client.open(path, method=method)
        assert_problem(response, 405, "method_not_allowed")
        assert response.headers["Allow"] == "GET, HEAD"
    for path in ("/page", "/page/", "/page/x.js", "/index.html", "/page/index.html", "/page/../page.py"):
        assert_problem(client.get(path), 404, "not_found")


@pytest.mark.parametrize("asks", [False, True])
def test_an_application_that_embeds_the_service_has_the_page_if_it_asks(app: flask.Flask, asks: bool) -> None:
    host = flask.Flask("host")
    service = core.create_blueprint(app.extensions["findings"].settings, **({"page": True} if asks else {}))
    host.register_blueprint(service, url_prefix="/findings")
    client = host.test_client()
    statuses = [client.get(path).status_code for path in ("/findings/", "/findings/page/app.js", "/")]
    assert statuses == ([200, 200, 404] if asks else [404] * 3)
    if asks:
        assert client.get("/findings/").data == FILES["/"]
        assert client.get("/findings").headers["Location"] == "findings/"


def test_a_prefix_without_its_slash_leads_to_the_page(app: flask.Flask) -> None:
    mounted = app.test_client().get("", environ_overrides={"SCRIPT_NAME": "/a/b", "PATH_INFO": ""})
    escaped = app.test_client().get(
        "", environ_overrides={"SCRIPT_NAME": "/a/é b".encode().decode("latin-1"), "PATH_INFO": ""}
    )
    assert escaped.headers["Location"] == "%C3%A9%20b/"
    assert (mounted.status_code, mounted.headers["Location"]) == (308, "b/")


def test_the_page_is_small_and_loads_only_its_own_files() -> None:
    assert sum(file.stat().st_size for file in room.FOLDER.rglob("*") if file.is_file()) < MOST_BYTES
    for file in OWN:
        for name in re.findall(r'from "([^"]+)"', file.read_text("utf-8")):
            assert name.startswith("./")
            assert (file.parent / name).is_file(), name
    for name in re.findall(r'(?:href|src)="([^"]+)"', FILES["/"].decode()):
        assert f"/{name}" in FILES or name == "api/v1/openapi.json"
    for path, content in FILES.items():
        named = set(re.findall(r"(?:https?:)?//[a-z0-9-]+\.[a-z]+[^\s\"'`]*", content.decode()))
        assert {name for name in named if not name.startswith("http://www.w3.org/")} == set(), path


def test_nothing_that_is_stored_can_become_markup_or_code() -> None:
    ways = r"(?i)(inner|outer)HTML|insertAdjacent|document\.write|\beval\b|new Function|dangerously|srcdoc|\sstyle="
    assert {file.name: found for file in OWN if (found := re.findall(ways, file.read_text("utf-8")))} == {}


# In a browser: helpers and fixtures

BROWSERS = {
    "chromium": shutil.which("chromium") or shutil.which("chromium-browser"),
    "firefox": shutil.which("firefox-esr") or shutil.which("firefox"),
}
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


# What browsers themselves do differently: storage, focus, keys, dialogs, the clipboard, layout, the policy.
in_every_browser = pytest.mark.parametrize("browser", list(BROWSERS), indirect=True)


@pytest.fixture(scope="module", params=["chromium"])
def browser(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A browser, for all tests: Chromium, unless a test asks for every browser."""
    if playwright is None:
        pytest.skip("playwright is not installed")
    program = BROWSERS[request.param] or pytest.skip(f"{request.param} is not installed")
    playwright.expect.set_options(timeout=1000 * PATIENCE)
    # Firefox by this channel, over WebDriver BiDi: one that Playwright has not patched.
    options: dict[str, Any] = {"channel": "moz-firefox"} if request.param == "firefox" else {"args": list(FLAGS)}
    with playwright.sync_playwright() as driver:
        browser = getattr(driver, request.param).launch(executable_path=program, **options)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server, for all tests: each has findings of a project type of its own."""
    db = tmp_path_factory.mktemp("page") / "page.db"
    line = [*PROGRAM, "serve", "--port", "0", "--db", str(db)]
    server = start_process(line, db, r"curl .*\n", FINDINGS_WEBHOOK_PRIVATE="1")
    yield server
    server.stop()


@dataclass
class Findings:
    """The findings that a test is about: of one project type."""

    server: Server
    type: str
    ids: list[str] = field(default_factory=list)

    def send(self, method: str, path: str, body: Any = None, status: int = 200, **headers: str) -> Any:
        response = self.server.request(method, f"{API}/{path}", body, **headers)
        assert response.status_code == status, response.data
        return response.json

    def report(self, *tasks: dict[str, Any], finish: bool = True, **fields: Any) -> str:
        """Report findings in a run of their own, whose id is returned."""
        run = self.send("POST", "runs", {"projectType": self.type, "targetUrl": TARGET, **fields}, 201)["id"]
        if tasks:
            done = self.server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": list(tasks)})
            assert done.status_code in (200, 201), done.data
            self.ids += [each["id"] for each in done.json["tasks"] if each["id"] not in self.ids]
        if finish:
            self.send("PATCH", f"runs/{run}", {"status": "completed"})
        return run

    def read(self, index: int) -> Any:
        """Return a finding as it is now."""
        return self.send("GET", f"tasks/{self.ids[index]}")

    def triage(self, index: int, **fields: str) -> None:
        """Decide about a finding, as somebody else does."""
        self.send("PATCH", f"tasks/{self.ids[index]}", fields)

    def statuses(self) -> list[str]:
        """Return what became of the findings."""
        return [self.read(index)["status"] for index, _ in enumerate(self.ids)]

    def history(self, index: int) -> Any:
        """Return what happened to a finding."""
        return self.send("GET", f"tasks/{self.ids[index]}/history")["history"]


@pytest.fixture
def findings(service: Server, request: pytest.FixtureRequest) -> Findings:
    name = re.sub(r"[^a-zA-Z0-9]", "-", request.node.name)[:90]
    service.request("POST", f"{API}/project-types", {"name": name})
    return Findings(service, name)


def numbered(count: int, **fields: Any) -> list[dict[str, Any]]:
    """Return findings to report, the last of which is the newest."""
    return [task(title=f"Finding {n}", externalId=f"f{n}", **fields) for n in range(count)]


@dataclass
class Person:
    """Somebody in front of the page."""

    page: Any
    address: str
    key: str
    entry: str  # a script that signs in
    wrong: list[str] = field(default_factory=list)  # what no page should do

    def __post_init__(self) -> None:
        self.page.on("console", self.heed_message)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error.stack)))
        self.page.on("dialog", self.heed_dialog)

    def open(self, place: str = "") -> None:
        """Open the page as somebody who has signed in, with a key that may do everything."""
        if self.entry:
            self.page.add_init_script(self.entry)
            self.entry = ""
        self.page.goto(f"{self.address}{place}")
        self.page.locator("header.top").wait_for()

    def route(self, requests: str, answer: Callable[[Any], Any], times: int | None = None) -> None:
        """Answer requests in the service's place, from now on: Chromium may let the next ones through."""
        self.page.route(requests, answer, times=times)
        if self.page.url.startswith(self.address):
            self.page.route("**/?routed", lambda route: route.fulfill(body="routed"))
            self.page.evaluate("async () => { while ((await (await fetch('?routed')).text()) !== 'routed'); }")

    def heed_message(self, message: Any) -> None:
        """Note what the browser tells of, but that the service refuses a request."""
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.wrong.append(message.text)

    def heed_dialog(self, dialog: Any) -> None:
        """Note a box of the browser's own: nothing here opens one."""
        self.wrong.append(f"{dialog.type}: {dialog.message}")
        dialog.dismiss()

    def sign_in(self, key: str, remember: bool = False) -> None:
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_label("Remember").set_checked(remember)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.locator("header.top").wait_for()

    def open_list(self, findings: Findings, *tasks: dict[str, Any], more: str = "") -> None:
        """Report findings, and open the list of all of the test's, narrowed by `more`."""
        if tasks:
            findings.report(*tasks)
        total = findings.send("GET", f"tasks?limit=1&projectType={findings.type}{more}")["total"]
        self.open(f"#/findings?projectType={findings.type}{more}")
        self.sees(f"{total:,} finding", ".total")

    def open_finding(self, findings: Findings, *tasks: dict[str, Any]) -> None:
        """Report findings, and open the first of the test's."""
        if tasks:
            findings.report(*tasks)
        self.open(f"#/findings/{findings.ids[0]}")
        self.sees(findings.read(0)["title"], "h1")

    def click(self, name: str, role: str = "button", **options: Any) -> None:
        """Click on what is called so."""
        self.page.get_by_role(role, name=name, **options).click()

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    def type(self, text: str) -> None:
        self.page.keyboard.type(text)

    def write(self, key: str, text: str, send: str = "Control+Enter") -> None:
        """Press a key that asks for a text, type that, and send it."""
        self.press(key)
        self.type(text)
        self.press(send)

    def expect(self, selector: str) -> Any:
        """Return what waits until something holds of what is on the page."""
        return playwright.expect(self.page.locator(selector))

    def sees(self, text: str | re.Pattern[str], within: str = "body") -> None:
        """Wait until something is there to read."""
        playwright.expect(self.page.locator(within).first).to_contain_text(text)

    def misses(self, selector: str) -> None:
        """Wait until something is not there."""
        playwright.expect(self.page.locator(selector)).to_have_count(0)

    def sees_titles(self, *titles: str) -> None:
        """Wait until the list has these findings."""
        playwright.expect(self.page.locator("table.findings tbody .title a:first-child")).to_have_text(list(titles))

    @property
    def place(self) -> str:
        """Where in the page the address leads."""
        return str(self.page.evaluate("location.hash"))

    def overflow(self, width: int) -> int:
        """Return how many pixels the page is too wide for a screen."""
        self.page.set_viewport_size({"width": width, "height": 800})
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


MakePerson = Callable[..., Person]


def hold(person: Person, requests: str, method: str = "GET") -> None:
    """Let requests wait until all routes are taken away."""
    person.route(requests, lambda route: None if route.request.method == method else route.continue_())


def signed_in(service: Server, key: str) -> str:
    """Return a script that keeps a key as the page does, which saves each test to type one."""
    kept = json.dumps({"key": key, "me": service.request("GET", f"{API}/me", key=key).json})
    name = f"findings:key:{API}/"
    store = f"if (!sessionStorage.getItem('{name}')) sessionStorage.setItem('{name}', '{kept}')"
    return f"if (location.host) {store}"  # Firefox's empty page has no storage


@pytest.fixture(scope="module")
def window(browser: Any) -> Iterator[Any]:
    """A browser's context for all whose screens are alike: most files of the page are fetched once."""
    context = browser.new_context()
    yield context
    context.close()


@pytest.fixture
def make_person(browser: Any, service: Server, window: Any) -> Iterator[Callable[..., Person]]:
    """Bring people to the page, each with a tab as if new; in the end nothing may have gone wrong in any."""
    people = []

    def make(width: int = 1280, height: int = 800, key: str = service.key, **options: Any) -> Person:
        context = browser.new_context(**options) if options else window
        context.set_default_timeout(1000 * PATIENCE)
        page = context.new_page()
        page.set_viewport_size({"width": width, "height": height})
        person = Person(page, f"http://127.0.0.1:{service.port}/", key, signed_in(service, key))
        people.append(person)
        return person

    yield make
    for person in people:
        if person.page.context is window:
            person.page.unroute_all(behavior="ignoreErrors")
            person.page.close()
        else:
            person.page.context.close()
    window.set_offline(False)
    assert [wrong for person in people for wrong in person.wrong] == []


@pytest.fixture
def person(make_person: MakePerson) -> Person:
    return make_person()


def make_key(server: Server, name: str, level: str, client: str = "default", *options: str) -> str:
    done = command("keys", "create", name, "--level", level, "--client", client, *options, "--db", str(server.db))
    assert done.returncode == 0, done.stderr
    return KEY.findall(done.stdout)[0]


# Signing in


def kept(page: Any, key: str) -> tuple[int, int]:
    """Return how often a key is kept for the tab, and in the browser."""
    storages = page.evaluate("[JSON.stringify(sessionStorage), JSON.stringify(localStorage)]")
    return storages[0].count(key), storages[1].count(key)


@in_every_browser
@pytest.mark.parametrize("remember", [False, True])
def test_a_key_is_kept_where_that_is_asked_and_is_another_tabs_too(make_person: MakePerson, remember: bool) -> None:
    person, addresses = make_person(locale="en"), list[str]()
    person.page.on("request", lambda request: addresses.append(request.url))
    for wrong in ("fts_wrong", "fts_…"):
        person.page.goto(person.address)
        person.page.get_by_label("API key").fill(wrong)
        person.press("Enter")
        person.sees("unknown, expired or revoked", "[role=alert]")
        assert kept(person.page, wrong) == (0, 0)
    person.sign_in(person.key, remember)
    person.sees("Overview", "h1")
    assert kept(person.page, person.key) == (not remember, remember)
    assert person.page.context.cookies() == []
    assert not any(person.key in address for address in [*addresses, person.page.url])
    assert {address.split("/")[2] for address in addresses} == {person.address.split("/")[2]}
    other = person.page.context.new_page()
    other.goto(person.address)
    other.locator("header.top").wait_for()
    assert kept(other, person.key) == (0, remember)
    other.get_by_role("button", name="Sign out").click()
    for page in (person.page, other):
        page.locator("form.signin").wait_for()
        assert kept(page, person.key) == (0, 0)
    other.reload()
    other.locator("form.signin").wait_for()


@in_every_browser
def test_a_key_in_the_address_signs_in_its_tab_and_leaves_the_address(
    make_person: MakePerson, findings: Findings
) -> None:
    person, other = make_person(locale="en"), make_key(findings.server, findings.type, "read")
    person.page.goto(f"{person.address}#key={person.key}")
    person.sees("first · default · full", ".me")
    assert (person.page.url, kept(person.page, person.key)) == (person.address, (True, False))
    person.page.evaluate(f"location.hash = 'key={other}'")
    person.sees("default · read", ".me")
    assert person.page.url == person.address
    person.page.evaluate("location.hash = 'key=fts_wrong'")
    person.page.locator("form.signin").wait_for()
    assert person.page.url == person.address


def test_a_key_that_holds_no_more_loses_nothing_that_was_typed_and_is_replaced_by_no_other_tabs(
    make_person: MakePerson, findings: Findings
) -> None:
    server = findings.server
    keys = [make_key(server, f"tab{n}", "full", client) for n, client in enumerate(("default", "other"))]
    person = make_person(key=keys[0], locale="en")
    person.open_finding(findings, task())
    other = person.page.context.new_page()
    other.add_init_script(signed_in(server, keys[1]))
    other.goto(person.address)
    other.locator(".me", has_text="tab1 · other").wait_for()
    person.press("c")
    person.type("Half an hour of thought")
    assert command("keys", "revoke", "tab0", "--db", str(server.db)).returncode == 0
    person.press("Control+Enter")
    person.sees("Sign in again", "dialog:last-of-type h2 >> nth=-1")
    theirs = json.dumps({"key": keys[1], "me": server.request("GET", f"{API}/me", key=keys[1]).json})
    other.evaluate(f"new BroadcastChannel('findings:key:{API}/').postMessage({theirs})")  # as who signs in there does
    person.page.wait_for_timeout(200)
    person.sees("Sign in again", "dialog:last-of-type h2 >> nth=-1")
    person.sees("tab0 · default", ".me")
    assert person.page.locator("textarea").input_value() == "Half an hour of thought"
    person.sign_in(server.key)
    person.sees("Half an hour of thought", ".history")
    assert findings.history(0)[-1]["by"] == "first"


@pytest.mark.parametrize("level", ["read", "agent"])
def test_a_key_that_may_not_triage_sees_nothing_that_it_may_not_use(
    make_person: MakePerson, findings: Findings, level: str
) -> None:
    person = make_person(key=make_key(findings.server, f"only {level}", level))
    person.open_list(findings, *numbered(2))
    person.sees(f"only {level} · default · {level}", ".me")
    person.press("j", "x", "4", "a", "c", "1")
    person.sees(f"The key “only {level}” is of level {level}: to triage takes one of level full.", ".toast")
    person.misses("dialog, .actions, input[type=checkbox], .top nav a:text-is('Webhooks')")
    person.press("Enter")
    person.sees("Finding 1", "h1")
    person.press("3")
    person.misses("main button:not(.quiet), dialog")
    assert findings.read(1)["status"] == "open"
    person.open("#/webhooks")
    person.sees("Not found", "h1")
    person.misses("main form")


@dataclass
class Proxy:
    """A proxy before the service, which signs people in: it has a key, and says who they are."""

    key: str
    user: str = "Ada Lovelace"
    refusal: dict[str, Any] | None = None  # what it answers instead

    def pass_on(self, route: Any) -> None:
        """Answer a request of the page's."""
        if self.refusal:
            return route.fulfill(**self.refusal)
        assert "authorization" not in route.request.headers
        return route.continue_(
            headers={**route.request.headers, "Authorization": f"Bearer {self.key}", "Findings-User": self.user}
        )


@pytest.fixture
def proxy(findings: Findings) -> Proxy:
    return Proxy(make_key(findings.server, f"proxy-{findings.type}", "full", "default", "--for-users"))


@in_every_browser
def test_behind_a_proxy_nobody_signs_in_and_the_end_of_a_session_loses_nothing(
    make_person: MakePerson, findings: Findings, proxy: Proxy
) -> None:
    person = make_person(locale="en")
    findings.report(task(title="One"))
    person.page.context.route("**/api/v1/**", proxy.pass_on)
    person.page.goto(f"{person.address}#/findings/{findings.ids[0]}")
    person.sees("One", "h1")
    person.sees("Ada Lovelace · default · full", ".me")
    person.misses("form.signin, button:text-is('Sign out')")
    for refusal in (
        {"status": 302, "headers": {"Location": "https://signin.example/"}},
        {"status": 200, "content_type": "text/html; charset=utf-8", "body": "<h1>Who are you?</h1>"},
        {"status": 401, "body": ""},
    ):
        thought = f"Half an hour of thought, until {refusal['status']}"
        person.press("c")
        person.type(thought)
        proxy.refusal = refusal
        person.press("Control+Enter")
        person.sees("You are not signed in any more", "dialog:last-of-type >> nth=-1")
        proxy.refusal = None  # as the proxy's own page does
        with person.page.context.expect_page() as opened:
            person.click("sign in in another tab", "link")
        opened.value.locator("h1", has_text="One").wait_for()
        person.sees(thought, ".history")
        opened.value.close()
    person.sees("Ada Lovelace (proxy-", ".history")
    assert [entry["user"] for entry in findings.history(0)] == [None, *["Ada Lovelace"] * 3]
    person.press("a")
    person.expect("#people option[value='Ada Lovelace']").to_have_count(1)
    person.type("Ada Lovelace")
    person.press("Enter")
    person.sees("Ada Lovelace", ".facts")
    person.page.goto(f"{person.address}#/overview?projectType={findings.type}")
    person.sees("1 Mine", ".figures li:last-child")


# The views


def heed_links(person: Person, findings: Findings, links: str) -> int:
    """Check that each link to a list tells how many findings that has, and return how many links there are."""
    told = person.page.locator(links).evaluate_all("all => all.map((each) => [each.innerText, each.hash])")
    for text, place in told:
        total = findings.send("GET", f"tasks?limit=1&{place.partition('?')[2]}")["total"]
        assert re.findall(r"\d+", text) == [str(total)], place
    return len(told)


def test_the_overview_counts_and_leads_to_what_it_counts(person: Person, findings: Findings) -> None:
    findings.report(*numbered(3, severity="critical"), {"title": "Old", "severity": "low", "status": "resolved"})
    findings.triage(0, status="in_progress", assignee="page")
    there = task(title="Only there", severity="critical", externalId="there")
    findings.report(*numbered(1, severity="critical"), there, branch="a/b, c")
    person.open(f"#/overview?projectType={findings.type}")
    person.sees("3 unfinished now", "figcaption")
    person.sees("Fail", ".card:last-child table")
    for branch, criticals in (("Main line", ["3", "1"]), ("a/b, c", ["2", "1"]), ("Main line", ["3", "1"])):
        person.page.locator("select", has_text="Main line").select_option(branch)
        person.expect("table.bars tr:has-text('Critical') .number").to_have_text(criticals)
        person.misses(".card[aria-busy=true]")
        person.sees(criticals[0], ".figures strong")
        assert heed_links(person, findings, ".figures a, .bars .number a") == 3 + 2 * 5 + 2 + 2
    assert person.place == f"#/overview?projectType={findings.type}"
    findings.triage(1, assignee=findings.send("GET", "me")["key"])
    person.page.reload()
    person.expect(".figures strong").to_have_text(["3", "1", "1"])
    oldest = person.page.locator(".card", has_text="Oldest criticals")
    playwright.expect(oldest.locator(".what a")).to_have_text(["Finding 0", "Finding 1", "Finding 2"])
    playwright.expect(oldest.locator("li").first).to_contain_text("page · now")
    oldest.get_by_role("link", name="All 3").click()
    person.sees_titles("Finding 0", "Finding 1", "Finding 2")


def test_the_trend_of_so_many_days_is_drawn_and_a_table(make_person: MakePerson, findings: Findings) -> None:
    findings.report(*numbered(7))
    findings.triage(0, status="dismissed", reason="wont_fix")
    person = make_person(390)
    person.open(f"#/overview?projectType={findings.type}")
    for days in (7, 90, 30):
        person.page.locator("select", has_text="30 days").select_option(f"{days} days")
        table = person.page.locator("figure table tbody tr")
        playwright.expect(table).to_have_count(days)
        told = findings.send("GET", f"overview?projectType={findings.type}&days={days}")["days"]
        names = ("date", "unfinished", "created", "reopened", "resolved", "dismissed")
        cells = table.evaluate_all("all => all.map((row) => [...row.cells].map((cell) => cell.textContent))")
        assert cells == [[str(day[name]) for name in names] for day in reversed(told)]
        assert cells[0][1:] == ["6", "7", "0", "0", "1"]
        assert person.place.endswith(f"&days={days}") or days == 30
        drawing = person.page.locator(".chart svg")
        assert "6 unfinished now" in drawing.get_attribute("aria-label")
        assert [text for text in drawing.locator(".tick").all_text_contents() if int(text) > 5][:1] == ["6"]
        sizes = drawing.locator("text").evaluate_all("all => all.map((each) => each.getBoundingClientRect())")
        box = drawing.bounding_box()
        assert all(each["height"] >= 12 and each["right"] <= box["x"] + box["width"] for each in sizes)


def test_the_view_is_in_the_address(make_person: MakePerson, findings: Findings) -> None:
    person, colleague = make_person(), make_person()
    person.open_list(findings, *numbered(2), task(title="Third", severity="low", externalId="third"))
    person.click("High")
    person.sees_titles("Finding 1", "Finding 0")
    person.page.get_by_label("Sort").select_option("createdAt")
    person.sees_titles("Finding 0", "Finding 1")
    person.page.reload()
    colleague.open(person.place)
    for each in (person, colleague):
        each.sees_titles("Finding 0", "Finding 1")
    for move, *titles in (
        ("back", "Finding 1", "Finding 0"),
        ("back", "Third", "Finding 1", "Finding 0"),
        ("forward", "Finding 1", "Finding 0"),
    ):
        person.page.evaluate(f"history.{move}()")
        person.sees_titles(*titles)


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


def test_every_filter_narrows_the_list(person: Person, findings: Findings) -> None:
    findings.report(task(title="Of a branch"), branch="topic")
    findings.triage(0, assignee="Ada")
    findings.report(task(rule="S101", location="src/app.py:42"), task(rule="S102", tags=["forms"]))
    for label, value, left in FILTERS:
        person.open("#/runs")
        person.open_list(findings)
        more = person.page.get_by_text("More filters")
        control = person.page.locator(f".field:has(> span:text-is('{label}'))").locator("input, select")
        if not control.is_visible():
            more.click()
        if control.evaluate("control => control.localName") == "select":
            control.select_option(value.replace("TYPE", findings.type))
        else:
            control.fill(value)
            person.press("Enter")
        person.sees(re.compile(rf"^{left} finding"), ".total")


def test_search_answers_as_one_types_drops_older_answers_and_leaves_one_step_back(
    person: Person, findings: Findings
) -> None:
    person.open("#/runs")
    person.open_list(findings, *numbered(12))
    hold(person, "**/tasks?*q=slow*")
    person.press("/")
    with person.page.expect_request("**/tasks?*q=slow*"):
        person.type("slow")
    person.press("Control+a")
    person.type("finding 7")
    person.sees_titles("Finding 7")
    person.page.unroute_all()
    person.page.wait_for_timeout(200)
    person.sees_titles("Finding 7")
    person.misses("[role=alert]")
    assert "q=finding+7" in person.place
    person.page.go_back()
    person.sees("Runs", "h1")


def test_rows_that_arrive_do_not_take_the_focus_from_the_search(person: Person, findings: Findings) -> None:
    person.open_list(findings, *numbered(3))
    person.press("j")
    person.page.evaluate("location.hash = '#/overview'")
    person.sees("Overview", "h1")
    hold(person, "**/api/v1/tasks?*")
    person.page.evaluate(f"location.hash = '#/findings?projectType={findings.type}&sort=severity'")
    person.sees("Findings", "h1")
    person.press("/")
    person.type("find")
    person.page.wait_for_timeout(400)
    person.page.unroute_all()
    person.sees("3 findings", ".total")
    person.type("ing 3")
    assert person.page.locator(".search").input_value() == "finding 3"
    assert findings.statuses() == ["open"] * 3


def test_pages_follow_each_other_and_rows_stay_until_the_next_are_there(person: Person, findings: Findings) -> None:
    person.open_list(findings, *numbered(101), more="&status=open")
    person.sees("1–50 of 101", ".pager")
    person.press("j")
    person.page.locator(f"#row-{findings.ids[51]}").focus()
    person.press("j")  # over the end of the page
    person.sees("51–100 of 101", ".pager")
    person.expect(f"#row-{findings.ids[50]}").to_be_focused()
    person.press("k")
    person.expect(f"#row-{findings.ids[51]}").to_be_focused()
    person.press("n")
    person.sees("51–100 of 101", ".pager")
    hold(person, "**/api/v1/tasks?*")
    with person.page.expect_request("**/api/v1/tasks?*"):
        person.click("Next", exact=True)
    assert person.page.locator("table.findings tbody tr").count() == 50
    person.page.unroute_all()
    person.sees("101–101 of 101", ".pager")
    person.page.reload()
    person.sees("101–101 of 101", ".pager")
    person.press("p")
    person.sees("51–100 of 101", ".pager")
    person.page.go_back()
    person.sees_titles("Finding 0")
    person.press("j", "3", "Enter")  # after which there is no such page any more
    person.sees("51–100 of 100", ".pager")
    assert "page=2" in person.place


def test_twenty_findings_fit_on_a_small_screen_and_the_way_back_from_one_leads_to_its_row(
    person: Person, findings: Findings
) -> None:
    alike = {"rule": "S101", "tags": ["a", "b"]}
    deep = task(title="Deep", location=f"/{'folder/' * 140}app.py:42", **alike)
    person.open_list(findings, *numbered(49, location="app.py:42", **alike), deep)
    rows = person.page.locator("table.findings tbody tr")
    measure = """rows => rows.map((row) => {
        const [range, last] = [new Range(), row.querySelector(".location bdi").lastChild];
        range.setStart(last, last.data.length - "app.py:42".length);
        range.setEnd(last, last.data.length);
        const [end, cell] = [range.getBoundingClientRect(), row.querySelector(".location").getBoundingClientRect()];
        return [row.offsetHeight, cell.left <= end.left && end.right <= cell.right && end.width > 30];
    })"""
    for width in (390, 1280):  # of a long location the end is seen, in a row that is no taller
        assert person.overflow(width) == 0
        measured = rows.evaluate_all(measure)
        assert measured == [[measured[-1][0], True]] * 50
    bottoms = rows.evaluate_all("rows => rows.map((row) => row.getBoundingClientRect().bottom)")
    assert sum(bottom <= 800 for bottom in bottoms) >= 20
    person.press(*"j" * 40)
    scrolled = person.page.evaluate("scrollY")
    person.press("Enter")
    person.sees("Finding 10", "h1")
    person.expect("h1").to_be_focused()
    person.press("Escape")
    person.expect(f"#row-{findings.ids[10]}").to_be_focused()
    assert abs(person.page.evaluate("scrollY") - scrolled) < 5 < scrolled


PICTURE = "http://127.0.0.1:9/picture.png"
WHOLE = task(
    title="The search field has no label",
    description="First line\n    second line",
    evidence=[
        {"type": "code", "label": "src/app.py:41", "content": "def search():\n    return form()\n"},
        {"type": "screenshot", "label": "As it looks", "url": PIXEL},
        {"type": "screenshot", "label": "Elsewhere", "url": PICTURE},
        {"type": "log", "label": "Server", "url": "https://example.com/log"},
    ],
    remediation=[{"step": 2, "instruction": "Then test"}, {"step": 1, "instruction": "Label it"}],
    successCriteria=[{"description": "A screen reader says it", "automatable": True}],
    extensions={"rule": {"id": "R1", "tags": ["a11y", "forms"]}, "score": 0.5, "sure": True},
    rule="label",
    location="src/app.py:41",
    tags=["wcag 1.3.1", "search, forms"],
)


def test_one_finding_shows_all_that_is_known_and_pictures_of_other_hosts_on_a_click(
    make_person: MakePerson, findings: Findings
) -> None:
    run = findings.report(WHOLE, metadata={"commit": "0" * 40})
    findings.triage(0, status="dismissed", reason="wont_fix", comment="Hm")
    person, fetched = make_person(permissions=["clipboard-read", "clipboard-write"]), list[str]()
    person.page.on("request", lambda request: fetched.append(request.url))
    person.route("http://127.0.0.1:9/*", lambda route: route.fulfill(status=404))
    person.open_finding(findings)
    assert person.page.locator("section .prose").first.inner_text() == WHOLE["description"]
    numbers = person.page.locator(".code .no").evaluate_all("all => all.map((each) => each.dataset.no)")
    assert numbers == ["41", "42"]
    assert person.page.locator(".steps").first.inner_text().split("\n") == ["Label it", "Then test"]
    for within, *told in (
        ("main", "A screen reader says it", "can be automated", "R1", "forms", "0.5", "yes", "As it looks"),
        (".history", "first", "from Open to Dismissed", "Won't fix", "Hm"),
        (".facts", "Won't fix", "Nobody", "Main line", findings.type, TARGET, "1 time", "0000000000"),
    ):
        for text in told:
            person.sees(text, within)
    assert person.page.locator(f".facts a[href='#/runs/{run}']").count() == 2
    person.misses(".facts a:has(code), .facts a:text-is('In the repository')")
    assert person.page.title() == "The search field has no label · Findings"
    playwright.expect(person.page.get_by_alt_text("As it looks")).to_have_js_property("naturalWidth", 1)
    assert PICTURE not in fetched
    person.click("Show picture from 127.0.0.1:9")
    person.sees("can't be shown", ".evidence")
    assert PICTURE in fetched
    person.page.locator(".code").get_by_role("button", name="Copy").click()
    person.sees("Copied", ".toast")
    assert person.page.evaluate("navigator.clipboard.readText()") == WHOLE["evidence"][0]["content"]
    person.route(f"**/runs/{run}", lambda route: route.abort())
    person.page.reload()
    person.sees("src/app.py:41", ".facts")
    person.misses("[role=alert]")


def test_what_people_wrote_is_shown_as_they_wrote_it_with_links_to_the_web(person: Person, findings: Findings) -> None:
    text = f"""See (https://example.com/a?b=1).\n- **Read** [this](https://example.com/a)\n`code`\n```sh\nls\n```
        <img src=x onerror=alert(1)> &lt;b>\nLook: ![x]({PICTURE})"""
    shown = """See (https://example.com/a?b=1).\n- Read this (example.com)\ncode\nls
        <img src=x onerror=alert(1)> &lt;b>\nLook: !x (127.0.0.1:9)"""
    findings.report(
        task(description=text, remediation=[{"instruction": text}], successCriteria=[{"description": text}])
    )
    findings.triage(0, comment=text)
    fetched: list[str] = []
    person.page.on("request", lambda request: fetched.append(request.url))
    person.open_finding(findings)
    person.expect(".prose").to_have_count(4)
    assert set(person.page.locator(".prose").all_text_contents()) == {shown}
    links = person.page.locator(".prose a[target='_blank'][rel='noopener noreferrer nofollow']")
    expected = ["https://example.com/a?b=1", "https://example.com/a", PICTURE] * 4
    assert links.evaluate_all("all => all.map((each) => each.href)") == expected
    person.expect(".prose a").to_have_count(len(expected))
    person.misses(".prose img, .prose script")
    assert PICTURE not in fetched


def test_lines_from_right_to_left_begin_at_the_right_and_turn_no_sentence_around(
    person: Person, findings: Findings
) -> None:
    title = f"\u202eתמונה\u200f {'x' * 60}"
    findings.report(task(title=title, description="زر بدون اسم\nA button\nצריך שם"))
    person.open(f"#/findings/{findings.ids[0]}")
    person.page.locator(".prose").wait_for()
    sides = person.page.locator(".prose").evaluate(
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
    assert person.page.locator("h1 bdi").evaluate("each => getComputedStyle(each).direction") == "rtl"
    told = f"“\u2068תמונה {'x' * 53}…\u2069”"
    person.press("2")
    person.sees(f"In progress: {told}.", ".toast")
    person.press("c")
    person.sees(f"Comment on {told}", "dialog h2")


CODES = {  # the lines that are marked where code has a label; a finding is at line 309
    "./src/a.py:309": ["309"],
    "./src/a.py:9": ["309"],
    "src/b.py:9": [],
    "src/a.py:310": [],
    "src/a.py:1": [],  # which has fewer lines
    "src/a.py": [],
}


def test_the_line_of_a_finding_is_marked_in_its_code_of_which_the_rest_is_shown_when_asked(
    person: Person, findings: Findings
) -> None:
    code = [{"label": label, "content": "line\n" * 308} for label in CODES]
    findings.report(*(task(location=where, evidence=code) for where in ("src/a.py:309:4", "src/a.py")))
    for index, marks in enumerate((CODES, {label: [] for label in CODES})):
        person.open(f"#/findings/{findings.ids[index]}")
        person.sees(findings.read(index)["location"], ".facts")
        for label, marked in marks.items():
            shown = person.page.get_by_role("group", name=label, exact=True)
            found = shown.locator(".marked")
            assert found.locator(".no").evaluate_all("all => all.map((each) => each.dataset.no)") == marked
            assert found.all_inner_texts() == ["Here:\nline"] * len(marked)
        playwright.expect(shown.locator(".line")).to_have_count(200)
        shown.get_by_role("button", name="Show all 308 lines").click()
        playwright.expect(shown.locator(".line")).to_have_count(308)


def test_a_location_leads_to_its_line_at_the_commit_or_to_the_web(person: Person, findings: Findings) -> None:
    repository = "https://code.example.com/shop"
    links = {
        "src/a b.py:41": [f"{repository}/blob/0123456789abcdef/src/a%20b.py#L41"],
        "https://example.com/a?b": ["https://example.com/a?b"],
        "//example.com/x:1": [],
    }
    told = {"commit": "0123456789abcdef", "repository": f"{repository}.git"}
    findings.report(*(task(location=location) for location in links), metadata=told)
    for index, (location, expected) in enumerate(links.items()):
        person.open(f"#/findings/{findings.ids[index]}")
        person.sees(location, ".facts")
        person.expect(".facts a:has(code)").to_have_attribute("href", f"{repository}/commit/0123456789abcdef")
        found = person.page.locator(".fact:has(dt:text-is('Location')) a[rel='noopener noreferrer']")
        assert found.evaluate_all("all => all.map((each) => each.getAttribute('href'))") == expected
        assert found.filter(has_text="In the repository").count() == sum(repository in link for link in expected)


def test_a_finding_leads_to_those_that_share_what_it_breaks_where_it_is_or_a_tag(
    person: Person, findings: Findings
) -> None:
    text = f" {findings.type[-40:]}, src/a.py:41"
    findings.report(task(title="One", rule=text, location=text, tags=[text]), task(title="Another"))
    for name in ("Rule", "Location", "Tag"):
        person.open_finding(findings)
        person.page.locator(f".fact:has(dt:text('{name}')) a").last.click()
        person.sees_titles("One")
        person.click(f"{name}: {text}")
        person.sees("Another", "tbody")


def test_a_run_is_compared_with_its_baseline(person: Person, findings: Findings) -> None:
    both, gone, new = (task(title=each, externalId=each, rule="R1", location="a/b.py:1") for each in "BGN")
    findings.report(both, gone)
    run = findings.report(both, new, metadata={"commit": "abc123"})
    person.open(f"#/runs?projectType={findings.type}")
    person.sees("2 runs", ".total")
    person.page.get_by_role("link", name=findings.type).first.click()
    person.sees(f"Run of {findings.type}", "h1")
    assert run in person.place
    person.sees("Fixed", "main")  # which is asked for by itself
    person.page.locator("summary").evaluate_all("all => all.forEach((each) => (each.parentElement.open = true))")
    parts = person.page.locator(".part")
    assert [list(filter(None, part.split("\n"))) for part in parts.all_inner_texts()] == [
        ["New 1", "High", "N", "R1", "a/b.py:1", "Open", "Open the list"],
        ["Fixed, or not reported 1", "High", "G", "R1", "a/b.py:1", "Open", "Open the list"],
        ["Still there 1 among the 2 results"],
    ]
    person.sees(re.compile("Fail.*1 new finding"), ".card")
    person.sees("abc123", "main")
    for place, name, title in ((0, "New in run", "N"), (1, "Missing from run", "G")):
        person.open(f"#/runs/{run}")
        person.sees("Fixed", "main")
        parts.nth(place).evaluate("part => (part.open = true)")
        parts.nth(place).get_by_role("link", name="Open the list").click()
        person.sees_titles(title)
        person.click(name)
        person.misses(f".chip:has-text('{name}')")


def test_what_a_branchs_run_counts_is_what_its_lists_have(person: Person, findings: Findings) -> None:
    def some(kind: str, count: int) -> list[dict[str, Any]]:
        return [task(title=f"{kind} {n}", externalId=f"{kind} {n}") for n in range(count)]

    old, known = some("old", 23), some("known", 60)
    findings.report(*old)
    findings.report(*known, *some("gone", 3))
    findings.triage(23, status="dismissed", reason="false_positive")  # the first that is known
    for index in range(23):
        findings.triage(index, status="resolved")
    run = findings.report(*known, *old, *some("new", 5), branch="a")
    person.open(f"#/runs/{run}")
    person.sees("5 created, 28 new beside the baseline, 23 of them resolved on the main line", "main")
    assert heed_links(person, findings, "main section:not(.card) > p > a[href^='#/findings']") == 8
    assert person.page.locator(".part .count").all_inner_texts() == ["28", "3", "59"]
    lists = person.page.locator("details.part p a").evaluate_all("all => all.map((each) => each.getAttribute('href'))")
    assert [findings.send("GET", f"tasks?{href.partition('?')[2]}")["total"] for href in lists] == [28, 3]


def test_keys_go_from_run_to_run_and_open_one_and_escape_leads_back(person: Person, findings: Findings) -> None:
    runs = [findings.report(*[task(title="One")] * (number == 2)) for number in range(52)][::-1]
    person.open(f"#/runs?projectType={findings.type}")
    person.sees("52 runs", ".total")
    for keys, run in (("jj", 1), ("j" * 49, 50), ("k", 49)):
        person.press(*keys)
        person.expect(f"#row-{runs[run]}").to_be_focused()
    assert person.page.evaluate("document.activeElement.getBoundingClientRect().bottom <= innerHeight")
    person.press("Enter")
    person.sees(f"Run of {findings.type}", "h1")
    assert person.place == f"#/runs/{runs[49]}"
    person.click("One", "link", exact=True)
    person.sees("One", "h1")
    person.page.evaluate("document.activeElement.blur()")
    person.press("Escape")
    person.sees("Run of", "h1")
    person.press("Escape")
    person.expect(f"#row-{runs[49]}").to_be_focused()


def test_project_types_are_listed_and_shown_with_their_schema(person: Person, findings: Findings) -> None:
    schema = {"properties": {"page": {"type": "integer"}}}
    body = {"label": "Shop pages", "description": "What a shop needs", "extensionSchema": schema}
    findings.send("PUT", f"project-types/{findings.type}", body)
    person.open("#/project-types")
    person.page.get_by_role("link", name="Shop pages").first.click()
    person.sees("Shop pages", "h1")
    person.sees("What a shop needs", "main")
    assert person.page.locator(".code pre").inner_text() == json.dumps(schema, indent=2)


class Receiver(StubHandler):
    """Receives webhooks, and answers as its server is told."""

    def do_POST(self) -> None:
        self.server.told.append(json.loads(self.body())["type"])
        self.reply(self.server.status)


@pytest.fixture
def receiver() -> Iterator[Any]:
    """Somebody who wants to be told: `told` are the types of events that came, `status` what is answered."""
    with running_stub(ThreadingHTTPServer(("127.0.0.1", 0), Receiver)) as server:
        vars(server).update(told=[], status=204, url=f"http://127.0.0.1:{server.server_port}/secret")
        yield server


def test_a_webhook_is_registered_tested_and_deleted_and_its_secret_shown_once(
    make_person: MakePerson, service: Server, receiver: Any
) -> None:
    person = make_person(key=make_key(service, "hooks", "full", "registering"))
    person.open("#/webhooks")
    person.sees("0 webhooks", ".total")
    url = person.page.get_by_label("URL")
    url.fill("http://ada:secret@example.com")
    person.press("Enter")
    person.sees("url", "form [role=alert]")
    url.fill(receiver.url)
    person.page.get_by_label("Least severity").select_option("High")
    person.page.get_by_label("finding.created").check()
    person.press("Enter")
    person.sees(re.compile("whsec_[A-Za-z0-9+/=]{20,}"), "main > [role=alert]")
    for told in (f"127.0.0.1:{receiver.server_port}", "run.finished, finding.created", "high or worse", "On"):
        person.sees(told, "table.webhooks tbody tr")
    playwright.expect(url).to_have_value("")
    person.page.reload()
    person.sees("1 webhook", ".total")
    assert "whsec_" not in person.page.content()
    for receiver.status, told in ((204, "The test was delivered."), (500, "The test was not delivered: 500.")):
        person.click("Test")
        person.sees(told, ".toast")
    assert receiver.told == ["webhook.test"] * 2
    person.click("Delete")
    person.sees("Delete this webhook?", "dialog h2")
    person.type("delete")
    person.press("Enter")
    person.sees("0 webhooks", ".total")


def test_a_webhook_that_was_refused_is_switched_on_again(person: Person, findings: Findings, receiver: Any) -> None:
    receiver.status = 410
    hook = findings.send("POST", "webhooks", {"url": receiver.url, "projectType": findings.type}, 201)
    findings.report(*numbered(1))
    wait_until(
        lambda: findings.send("GET", f"webhooks/{hook['id']}")["state"] == "off"
    )  # the service delivers by itself
    person.open("#/webhooks")
    row = person.page.locator("tbody tr", has_text=findings.type)
    for told in ("Off", "410"):
        playwright.expect(row).to_contain_text(told)
    assert violations(person, "light") == []
    receiver.status = 204
    row.get_by_role("button", name="Send what was refused again").press("Enter")
    playwright.expect(row).to_contain_text("On")
    wait_until(lambda: len(receiver.told) > 1)
    assert receiver.told == ["run.finished"] * 2


def test_who_has_nothing_yet_is_told_how_findings_come(make_person: MakePerson, service: Server) -> None:
    person = make_person(key=make_key(service, "new", "full", "nobody"))
    for place in ("", "#/findings", "#/runs", "#/project-types"):
        person.open(place)
        person.sees(re.compile("No .* yet"), ".notice h2")
        person.sees(f"scan --url {person.address}", ".sample")
        assert person.page.locator(".notice a").get_attribute("href").endswith("/api/v1/openapi.json")


def test_what_is_not_there_and_what_fails_is_said(person: Person) -> None:
    person.open("#/nowhere")
    person.sees("Not found", "h1")
    person.open("#/findings/unknown")
    person.sees("There is nothing here", "[role=alert]")
    person.open("#/findings?status=odd")
    person.sees("must be one of", "[role=alert]")
    person.route("**/api/v1/runs*", lambda route: route.abort())
    person.open("#/runs")
    person.sees("can't be reached", "[role=alert]")
    person.page.unroute("**/api/v1/runs*")
    person.click("Try again")
    person.sees("Runs", "caption")


# Triage


@in_every_browser
def test_dismissing_and_resolving_ask_for_a_reason_and_remember_the_last(person: Person, findings: Findings) -> None:
    person.open_list(findings, *numbered(4))
    person.press("j", "4")
    person.sees("Dismiss “Finding 3”?", "dialog h2")
    person.press("Enter")
    assert person.page.locator("dialog :invalid").count() > 0
    person.press("Space", "ArrowDown")
    person.write("Tab", "Nobody can get there")
    person.sees("Dismissed: “Finding 3”", ".toast")
    person.press("j", "4", "Enter")
    person.sees("Dismissed: “Finding 2”", ".toast")
    person.press("j", "3")
    reasons = person.page.locator("dialog .choices label")
    assert reasons.all_inner_texts() == ["Fixed", "Duplicate", "No reason given"]
    person.press("Enter")
    person.sees("Resolved: “Finding 1”", ".toast")
    person.press("j", "3", "ArrowDown", "ArrowDown", "Enter")
    person.sees("Resolved: “Finding 0”", ".toast")
    last = [findings.history(index)[-1] for index in (3, 2, 1, 0)]
    assert [(each["to"], each["reason"], each["comment"]) for each in last] == [
        ("dismissed", "accepted_risk", "Nobody can get there"),
        ("dismissed", "accepted_risk", None),
        ("resolved", "fixed", None),
        ("resolved", None, None),
    ]


def test_keys_move_assign_and_comment_on_the_finding_under_the_cursor(person: Person, findings: Findings) -> None:
    reported = (task(title="Below", status="resolved"), task(title="Above", status="dismissed", externalId="above"))
    person.open_list(findings, *reported)
    findings.report(reported[1])  # that a run saw it again is no conflict
    person.press("j")
    for key, status, told in (("1", "open", "Open"), ("2", "in_progress", "In progress")):
        person.press(key)
        person.sees(f"{told}: “Above”.", ".toast")
        assert findings.statuses() == ["resolved", status]
    person.write("a", "Ada", "Enter")
    person.sees("Ada", "td.assignee")
    person.write("c", "Looking at it")
    person.sees("Commented", ".toast")
    person.press("a", "Control+a", "Delete", "Enter")
    person.sees("Assigned to nobody", ".toast")
    assert [(each["event"], each["assignee"], each["comment"]) for each in findings.history(1)[-3:]] == [
        ("assigned", "Ada", None),
        ("comment", None, "Looking at it"),
        ("assigned", None, None),
    ]


@in_every_browser
def test_shift_and_a_click_choose_a_range(person: Person, findings: Findings) -> None:
    person.open_list(findings, *numbered(9))
    boxes = person.page.locator("tbody input[type=checkbox]")
    boxes.nth(1).click()
    boxes.nth(5).click(modifiers=["Shift"])
    person.sees("5 findings selected", ".actions")
    all_of_them = person.page.get_by_label("Select all on this page")
    playwright.expect(all_of_them).to_have_js_property("indeterminate", True)
    boxes.nth(4).click()
    boxes.nth(3).click(modifiers=["Shift"])
    person.sees("3 findings selected", ".actions")
    all_of_them.check()
    person.sees("9 findings selected", ".actions")
    playwright.expect(all_of_them).to_have_js_property("indeterminate", False)


def test_all_that_match_are_decided_in_thousands_and_undone_at_once(person: Person, findings: Findings) -> None:
    for start in (0, 700):
        findings.report(*(task(title=f"{start + n}", externalId=f"{start + n}") for n in range(700)))
    findings.triage(3, status="in_progress")
    person.open_list(findings, more="&status=open,in_progress")
    asked: list[str] = []
    person.page.on("request", lambda request: asked.append(f"{request.method} {request.url.split('?')[0]}"))
    person.press("j", "x")
    person.click("Select all 1,400 that match")
    person.sees("1,400 findings selected", ".actions")
    person.press("4", "Space", "Enter")
    person.sees("Dismissed: 1,400 findings.", ".toast")
    person.sees("0 findings", ".total")
    assert [line for line in asked if line.startswith("PATCH")] == [f"PATCH {person.address}api/v1/tasks"] * 2
    assert not [line for line in asked if "/tasks/" in line]
    assert {findings.read(index)["reason"] for index in (0, 3, 700, 1399)} == {"false_positive"}
    person.press("u")
    person.sees("1,400 findings", ".total")
    assert [findings.read(index)["status"] for index in (0, 3, 700, 1399)] == ["open", "in_progress", "open", "open"]


GROUPS = (  # what is grouped by, the keys that choose, what is filtered besides, and which findings are decided about
    ("Rule", "j", "", "AB"),
    ("File", "j", "", "AC"),
    ("Rule", "jjj", "", "D"),  # without one
    ("Assignee", "jj", "", "B"),
    ("Tag", "jj", "&tag=x", "A"),
    ("Rule", "jjxjx", "", "CD"),
    ("Rule", "X", "", "ABCD"),
)


def test_groups_are_decided_about_at_once_and_undone(person: Person, findings: Findings) -> None:
    findings.report(
        task(title="A", rule="S101", location="src/a.py:1", tags=["x", "y"]),
        task(title="B", rule="S101", location="src/a.py/b.py:1:2", tags=["y"]),
        task(title="C", rule="S102", location="src/a.py:7"),
        task(title="D", location="src/d.py"),
    )
    findings.triage(1, assignee="Ada")
    for by, keys, more, gone in GROUPS:
        person.page.goto("about:blank")
        person.open_list(findings, more=f"&status=open{more}")
        person.page.get_by_label("Group by").select_option(label=by)
        person.sees(re.compile(r"\d groups"), ".total")
        person.page.evaluate("document.activeElement.blur()")
        person.press(*keys, "4")
        person.sees(re.compile("Dismiss"), "dialog h2")
        person.press("Space", "Enter")
        person.sees("Dismissed", ".toast")
        assert ["ABCD"[index] for index, each in enumerate(findings.statuses()) if each == "dismissed"] == [*gone]
        person.page.get_by_label("Group by").select_option(label="Nothing")
        person.expect(".findings tbody tr").to_have_count(4 - len(gone) if not more else 0)
        person.press("u")
        person.sees("Undone", ".toast")
        assert findings.statuses() == ["open"] * 4


def test_a_group_leads_to_its_list_and_that_from_finding_to_finding_and_escape_back(
    person: Person, findings: Findings
) -> None:
    person.open_list(findings, *numbered(3, rule="S101"), task(title="Other", rule="S102"))
    person.press("g")
    person.sees("2 groups", ".total")
    person.press("j", "Enter")
    person.sees_titles("Finding 2", "Finding 1", "Finding 0")
    person.press("j", "Enter")
    person.sees("Finding 2", "h1")
    person.press("j")
    person.sees("Finding 1", "h1")
    person.press("2", "k")
    person.sees("Finding 2", "h1")
    person.press("Escape")
    person.sees("In progress", f"tr:has(#row-{findings.ids[1]}) .status")
    person.press("Escape")
    person.sees("2 groups", ".total")
    playwright.expect(person.page.get_by_role("link", name="S101")).to_be_focused()


def test_a_key_that_is_held_down_decides_once(person: Person, findings: Findings) -> None:
    person.open_list(findings, *numbered(3), more="&status=open")
    person.press("j")
    for left in (2, 2):
        person.page.keyboard.down("2")
        person.sees(f"{left} findings", ".total")
        person.page.wait_for_timeout(50)
    person.page.keyboard.up("2")
    assert findings.statuses() == ["open", "open", "in_progress"]
    person.expect(f"#row-{findings.ids[1]}").to_be_focused()


def test_what_is_new_is_told_and_loaded_when_asked_or_back_online(person: Person, findings: Findings) -> None:
    person.open_list(findings, *numbered(2))
    look = "dispatchEvent(new Event('focus'))"
    with person.page.expect_response("**/tasks?*") as looked:
        person.page.evaluate(look)
    assert looked.value.status == 304
    findings.report(task(title="Third", externalId="third"))
    findings.triage(0, status="in_progress")
    person.page.evaluate(look)
    person.sees("1 new, 1 changed", ".news")
    person.sees_titles("Finding 1", "Finding 0")
    person.press("r")
    person.sees_titles("Third", "Finding 1", "Finding 0")
    person.misses(".news > *")
    person.page.context.set_offline(True)
    person.click("High")
    person.sees("can't be reached", "[role=alert]")
    findings.report(task(title="Fourth", externalId="fourth"))
    person.page.context.set_offline(False)
    person.sees_titles("Fourth", "Third", "Finding 1", "Finding 0")
    person.misses("[role=alert]")


def test_what_is_deleted_is_confirmed_by_typing(person: Person, findings: Findings) -> None:
    run = findings.report(*numbered(1))
    for path, view in (
        (f"tasks/{findings.ids[0]}", "Findings"),
        (f"runs/{run}", "Runs"),
        (f"project-types/{findings.type}", "Project types"),
    ):
        person.open(f"#/{path.replace('tasks', 'findings')}")
        person.click("Delete …")
        person.press("Control+Enter")
        person.type("delet")
        person.press("Enter", "Control+Enter")
        person.page.wait_for_timeout(200)
        findings.send("GET", path)
        person.type("e")
        person.press("Enter")
        person.sees("Deleted", ".toast")
        person.sees(re.compile(f"^{view}$"), "h1")
        findings.send("GET", path, status=404)


def test_what_is_listed_is_saved_as_csv_or_sarif(person: Person, findings: Findings) -> None:
    person.open_list(findings, *numbered(60), task(title="Other", severity="low"), more="&severity=high")
    saved = {}
    for name in ("CSV", "SARIF"):
        with person.page.expect_download() as download:
            person.click(name, exact=True)
        saved[download.value.suggested_filename] = Path(download.value.path()).read_text("utf-8")
    assert len(saved["findings.csv"].splitlines()) == 61
    assert len(json.loads(saved["findings.sarif"])["runs"][0]["results"]) == 60


def test_keys_are_told_and_can_be_switched_off_and_the_mouse_does_the_same(person: Person, findings: Findings) -> None:
    person.open_finding(findings, task(title="One"))
    person.press("?")
    person.sees("Select", "dialog")
    person.page.get_by_label("Single keys do this").uncheck()
    person.press("Escape", "2")
    person.page.wait_for_timeout(200)
    assert findings.read(0)["status"] == "open"
    person.page.locator(".triage").get_by_role("button", name="Resolved").click()
    person.page.locator("dialog").get_by_role("button", name="Resolve").click()
    person.sees("Resolved", ".badges")
    person.page.locator(".toast").get_by_role("button", name="Undo").click()
    person.sees("Open", ".badges")
    person.click("Keys")
    person.page.get_by_label("Single keys do this").check()
    person.press("Escape", "u")
    person.sees("nothing to undo", ".toast")
    person.press("2")
    person.sees("In progress", ".badges")


# Conflicts, and what cannot be sent


@in_every_browser
@pytest.mark.parametrize("in_list", [False, True])
def test_somebody_elses_triage_meanwhile_is_shown_and_not_overwritten(
    person: Person, findings: Findings, proxy: Proxy, in_list: bool
) -> None:
    (person.open_list if in_list else person.open_finding)(findings, task(title="One"))
    by, headers = "first", {}
    if in_list:
        by, headers = f"{proxy.user} (proxy-", {"Authorization": f"Bearer {proxy.key}", "Findings-User": proxy.user}
    theirs = {"status": "dismissed", "reason": "accepted_risk", "comment": "We know"}
    findings.send("PATCH", f"tasks/{findings.ids[0]}", theirs, **headers)
    person.press(*("j" if in_list else ""), "3", "Enter")
    person.sees("Somebody changed this finding meanwhile", "dialog h2")
    for told in ("Open", "Dismissed", "Accepted risk", "We know", by, "You wanted: resolve as fixed."):
        person.sees(told, "dialog")
    assert findings.statuses() == ["dismissed"]
    person.click("Resolve “One” anyway")
    person.sees("Resolved: “One”.", ".toast")
    assert findings.statuses() == ["resolved"]


def test_conflicts_of_what_was_kept_are_asked_about_one_by_one(person: Person, findings: Findings) -> None:
    person.open_list(findings, *numbered(3))
    person.page.context.set_offline(True)
    person.press("j", "2", "j", "2", "j", "2")
    person.sees("3 changes not sent yet", ".outbox")
    for index in (1, 2):
        findings.triage(index, assignee="Ada")
    person.page.context.set_offline(False)
    person.sees("Somebody changed", "dialog h2")
    person.misses(".outbox")
    person.click("Change nothing")
    person.click("Start “Finding 1” anyway")
    person.misses("dialog")
    person.sees("In progress: “Finding 1”", ".toast")
    assert findings.statuses() == ["in_progress", "in_progress", "open"]


def test_many_are_counted_before_and_do_not_overwrite_what_somebody_else_decided(
    person: Person, findings: Findings
) -> None:
    person.open_list(findings, *numbered(3))
    person.page.get_by_label("Select all on this page").check()
    for key, asked in (("2", "Start 3 findings?"), ("4", "Dismiss 3 findings?")):
        person.press(key)
        person.sees(asked, "dialog h2")
        person.press("Escape")
        person.misses("dialog")
    assert findings.statuses() == ["open"] * 3
    findings.triage(1, status="resolved", reason="fixed")
    person.press("4", "Space")
    person.write("Tab", "All of these")
    person.sees("Somebody changed 1 of 3 findings meanwhile", "dialog h2")
    for told in ("Finding 1", "Resolved", "Fixed", "All of these", "Dismiss 3 findings anyway"):
        person.sees(told, "dialog")
    assert findings.statuses() == ["open", "resolved", "open"]
    person.click("Skip 1 and dismiss 2")
    person.sees("Dismissed: 2 findings.", ".toast")
    assert findings.statuses() == ["dismissed", "resolved", "dismissed"]
    assert findings.history(0)[-1]["comment"] == "All of these"
    person.press("u")
    person.sees("Undone", ".toast")
    assert findings.statuses() == ["open", "resolved", "open"]


def test_what_is_typed_is_there_after_the_answer_to_something_else_and_a_reload(
    person: Person, findings: Findings
) -> None:
    person.open_list(findings, *numbered(2))
    hold(person, "**/tasks", "PATCH")
    person.press("j", "c")
    person.expect("dialog h2").to_have_text("Comment on “Finding 1”")
    person.type("First")
    person.press("Control+Enter", "Escape", "x", "j", "x", "c")
    person.type("Half an hour of thought")
    person.page.unroute_all()
    person.sees("Commented on “Finding 1”", ".toast")
    assert person.page.locator("dialog textarea").input_value() == "Half an hour of thought"
    person.page.reload()
    person.sees("Comment on 2 findings", "dialog h2")
    assert person.page.locator("dialog textarea").input_value() == "Half an hour of thought"
    person.press("Control+Enter")
    person.sees("Commented on 2 findings.", ".toast")
    assert findings.history(0)[-1]["comment"] == "Half an hour of thought"
    person.page.reload()
    person.sees("2 findings", ".total")
    person.misses("dialog")


def test_what_was_not_answered_is_kept_over_a_reload_and_made_once(person: Person, findings: Findings) -> None:
    person.open_finding(findings, task(title="One", evidence=[{"type": "log", "content": "bulky"}]))
    person.route("**/api/v1/tasks", lambda route: (route.fetch(), route.fulfill(status=503, body="{}")))
    person.write("c", "Said once")
    person.sees("1 change not sent yet: Commented on “One”", ".outbox")
    person.press("2")
    person.sees("2 changes not sent yet", ".outbox")
    assert "bulky" not in person.page.evaluate("JSON.stringify(sessionStorage)")
    asked: list[str] = []
    person.page.remove_listener("dialog", person.heed_dialog)
    person.page.once("dialog", lambda dialog: (asked.append(dialog.type), dialog.accept()))
    person.page.reload()
    assert asked == ["beforeunload"]
    person.sees("2 changes not sent yet", ".outbox")
    retry = person.page.get_by_role("button", name="Retry")
    playwright.expect(retry).to_be_enabled()  # else the attempt of the page that was just loaded may get through
    person.page.unroute("**/api/v1/tasks")
    retry.click()
    person.misses(".outbox")
    person.sees("In progress", ".badges")
    assert [(each["to"], each["comment"]) for each in findings.history(0)[1:]] == [
        (None, "Said once"),
        ("in_progress", None),
    ]


# Hostile text

HOSTILE = cases(
    script="<script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg onload=alert(3)>",
    link="javascript:alert(4)//https://example.com/",
    template="${alert(5)} {{alert(6)}} <%= alert(7) %> \\u003cscript>",
    bidi="\u202egnirts lla\u2066 \u2067 user\u2069\u200f\u202d",
    word="W" * 10_000,
    controls="\x01\x08\x1b[31m\x7f\u2028\u2029\ufeff\ufffe\U000e0041",
    vnode='{"type": "script", "props": {"children": "alert(8)"}, "constructor": null, "__v": 1}',
    markdown=(
        "[x](javascript:alert(13)) ![x](http://127.0.0.1:9/picture.png) <javascript:alert(14)> https://[ https://\u202e\n"
        f"[a]: javascript:alert(15)\n[y][a] https://example.com/{'x' * 3000} {'**[`_' * 900}"
    ),
)


SVG = "<svg xmlns='http://www.w3.org/2000/svg' onload='alert(11)'><script>alert(12)</script></svg>"


def hostile_task(text: str) -> dict[str, Any]:
    """Return a task with a text in every field."""
    links = [
        f"https://example.com/?{quote(text[:600])}",
        "https://example.com/#javascript:alert(9)",
        "ftp://example.com",
    ]
    line = re.sub(r"[\x00-\x1f\x7f-\x9f]", "", text)
    vnode = {"type": "script", "props": {"children": "alert(10)"}, "constructor": None, "__v": 1, "key": text}
    return task(
        title=text[:500],
        externalId=text[:256],
        description=text,
        evidence=[
            {"type": text[:64], "label": text[:500], "content": text},
            *({"type": "screenshot", "label": text[:500], "url": link} for link in links),
            {"type": "screenshot", "url": f"data:image/svg+xml,{quote(SVG)}"},
        ],
        remediation=[{"instruction": text}, {"instruction": "javascript:alert(12)"}],
        successCriteria=[{"description": text}],
        extensions={text[:200]: {text[:200]: [text, {text[:100]: [[[[text]]]]}]}, "vnode": vnode, "list": [vnode]},
        rule=line[:256],
        location=line[:1024],
        tags=[f"{line[:60]}{n}" for n in range(20)],
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_neither_runs_nor_breaks_the_layout(
    make_person: MakePerson, findings: Findings, text: str
) -> None:
    body = {"label": text[:200], "description": text, "extensionSchema": {"description": text}}
    findings.send("PUT", f"project-types/{findings.type}", body)
    metadata = {"text": text, text[:100]: [text], "repository": text, "commit": text, "sourceUrl": text}
    run = findings.report(hostile_task(text), metadata=metadata, targetUrl=f"https://example.com/{quote(text[:600])}")
    findings.triage(0, status="dismissed", comment=text[:4000], assignee=text[:200])
    shared = "&".join(f"{name}={quote(str(findings.read(0)[name]))}" for name in ("rule", "location"))
    lists = [f"{name}?projectType={findings.type}" for name in ("findings", "runs")]
    person = make_person(360)
    person.open()
    for place in (
        *(*lists, f"{lists[0]}&{shared}", f"findings/{findings.ids[0]}", f"runs/{run}"),
        f"project-types/{findings.type}",
    ):
        settle(person, f"#/{place}")
        person.misses("[role=alert], main script, main [onerror], main [onload], [href^='javascript:' i], main iframe")
        assert (person.overflow(1280), person.overflow(360)) == (0, 0), place


@in_every_browser
def test_the_policy_stops_what_the_page_would_run(person: Person) -> None:
    person.open()
    inject = "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
    person.page.evaluate(inject)
    person.page.evaluate("fetch('http://127.0.0.1:9/').catch(() => {})")
    assert person.page.evaluate("window.ran") is None

    def blocked() -> set[str]:
        person.page.wait_for_timeout(20)  # in which messages of the browser arrive
        return {*re.findall("(script|connect)-src 'self'", "\n".join(person.wrong))}

    wait_until(lambda: blocked() == {"script", "connect"})
    person.wrong.clear()


# For everybody


@pytest.fixture
def places(findings: Findings) -> list[str]:
    """Every view, with something in it."""
    findings.report(WHOLE, *numbered(5, evidence=[{"type": "log", "content": "x"}]))
    run = findings.report(*numbered(6), metadata={"commit": "abc"})
    findings.send("POST", "webhooks", {"url": "http://127.0.0.1:9/", "format": "slack", "projectType": "none"}, 201)
    findings.triage(0, status="dismissed", reason="wont_fix", comment="Hm")
    findings.send("PUT", f"project-types/{findings.type}", {"description": "x", "extensionSchema": {"title": "x"}})
    listed, shown = f"findings?projectType={findings.type}", f"findings/{findings.ids[0]}"
    views = (
        *("overview", listed, f"{listed}&group=rule", "findings?runId=none&without=tag", shown, "runs", f"runs/{run}"),
        *("project-types", f"project-types/{findings.type}", "webhooks", "nowhere", "runs/unknown"),
    )
    return [f"#/{view}" for view in views]


def settle(person: Person, place: str) -> None:
    """Open a view, and wait until all of it is there."""
    person.page.goto(f"{person.address}{place}")
    person.page.locator("h1").first.wait_for()
    person.misses(".loading, [aria-busy=true]")


def violations(person: Person, theme: str) -> list[str]:
    """Return what axe-core finds once everything is there."""
    person.misses(".loading, [aria-busy=true]")
    if not person.page.evaluate("'axe' in window"):
        person.page.evaluate(npm_file("axe-core/axe.min.js").read_text("utf-8"))
    options: dict[str, Any] = {"iframes": False, "resultTypes": ["violations"]}
    if theme != "light":
        options["runOnly"] = ["color-contrast", "link-in-text-block"]  # the themes differ in colours alone
    found = person.page.evaluate("options => axe.run(options)", options)["violations"]
    return [f"{each['id']}: {node['html'][:200]} {node['failureSummary']}" for each in found for node in each["nodes"]]


THEMES: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "forced": {"forced_colors": "active"},
}


@pytest.mark.parametrize("theme", list(THEMES))
@pytest.mark.parametrize("width", [390, 1920])
def test_no_view_has_a_fault_that_axe_finds(make_person: MakePerson, places: list[str], theme: str, width: int) -> None:
    person = make_person(width, reduced_motion="reduce", **THEMES[theme])
    person.page.goto(person.address)
    person.page.locator("form.signin").wait_for()
    assert violations(person, theme) == []
    person.sign_in(person.key)
    for place in places:
        settle(person, place)
        assert (violations(person, theme), person.overflow(width)) == ([], 0), place


@pytest.mark.parametrize("theme", list(THEMES))
def test_no_dialog_has_a_fault_that_axe_finds(make_person: MakePerson, findings: Findings, theme: str) -> None:
    person = make_person(reduced_motion="reduce", **THEMES[theme])
    person.open_list(findings, *numbered(3))
    person.press("j", "x")
    for key, shown in (("2", "tbody .status:has-text('In progress')"), *((key, "dialog") for key in "4ac?")):
        person.press(key)
        person.page.locator(shown).wait_for()
        assert violations(person, theme) == [], key
        person.press("Escape")
        person.misses("dialog")


def test_forced_colours_show_what_is_current_pressed_and_under_the_cursor(
    make_person: MakePerson, findings: Findings
) -> None:
    person = make_person(forced_colors="active")
    person.open_list(findings, *numbered(2), more="&status=open")
    person.press("j", "x")

    def style(selector: str, name: str) -> str:
        return str(person.page.locator(selector).first.evaluate("(one, name) => getComputedStyle(one)[name]", name))

    pressed, other = (style(f"button[aria-pressed={value}]", "backgroundColor") for value in ("true", "false"))
    current, link = (
        style(f".top nav a{each}", "borderBottomColor") for each in ("[aria-current]", ":not([aria-current])")
    )
    assert pressed != other
    assert current != link
    assert [style("tr.here", name) for name in ("outlineStyle", "outlineWidth")] == ["solid", "2px"]


@in_every_browser
def test_no_view_scrolls_sideways_on_a_phone_or_at_400_percent(person: Person, places: list[str]) -> None:
    person.open()
    for place in places:
        settle(person, place)
        assert [person.overflow(width) for width in (1280, 360, 320)] == [0, 0, 0], place


@in_every_browser
def test_the_keyboard_alone_does_it_all(make_person: MakePerson, findings: Findings) -> None:
    """Somebody who has never seen the page signs in, finds, dismisses, assigns, undoes, and sends the address."""
    findings.report(*numbered(3), task(title="Use of assert detected", severity="low"))
    person = make_person()
    person.page.goto(person.address)
    playwright.expect(person.page.get_by_label("API key")).to_be_focused()
    person.type(person.key)
    person.press("Enter")
    person.sees("Overview", "h1")
    person.page.evaluate("document.activeElement.blur()")
    person.press("Tab")
    playwright.expect(person.page.get_by_text("Skip to the content")).to_be_focused()
    person.press("Enter")
    person.expect("h1").to_be_focused()
    person.press("/")
    person.sees("Findings", "h1")
    person.type("use of ASSERT")
    person.sees("Use of assert detected", "tbody")
    person.press("Escape", "j", "4", "Space", "Enter")
    person.sees("Dismissed: “Use of assert detected”", ".toast")
    person.write("a", "Ada", "Enter")
    person.sees("Assigned to Ada", ".toast")
    person.press("u")
    person.sees("Undone", ".toast")
    person.press("Enter")
    person.sees("Use of assert detected", "h1")
    now = findings.read(3)
    assert (now["status"], now["reason"], now["assignee"]) == ("dismissed", "false_positive", None)
    colleague = make_person(locale="en")
    colleague.page.goto(person.page.url)
    colleague.sign_in(colleague.key)
    colleague.sees("Use of assert detected", "h1")
