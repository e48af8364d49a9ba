"""Tests of `findings_adapters.page`, the web page for triaging findings.

Playwright for Python drives Debian's Chromium (`apt-get install chromium`). Tests marked `in_every_browser` run in
Debian's Firefox, too (`apt-get install firefox-esr`). axe-core, which `npm install axe-core` puts into the folder
`node_modules`, checks accessibility. Tests whose browser or package is not installed are skipped.
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
from findings_adapters import page as page_module
from tests.clients import API, KEY, assert_problem, cases, task
from tests.documents import npm_file
from tests.servers import PATIENCE, PROGRAM, Server, StubHandler, command, running_stub, start_process, wait_until

FILES = {path: served.args[0] for path, served in core.REGISTRY.page_files.items()}
OWN_FILES = [file for file in sorted(page_module.FOLDER.rglob("*")) if file.is_file() and file.parent.name != "vendor"]
MOST_BYTES = 150_000
PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
TARGET = "https://example.com/shop"


# The files


def test_page_files_are_public_cacheable_and_have_a_strict_csp(app: flask.Flask) -> None:
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


def test_other_methods_return_405_and_other_paths_404(app: flask.Flask) -> None:
    client = app.test_client()
    for path, method in itertools.product(("/", "/page/app.js"), ("POST", "PUT", "DELETE", "OPTIONS")):
        response = client.open(path, method=method)
        assert_problem(response, 405, "method_not_allowed")
        assert response.headers["Allow"] == "GET, HEAD"
    for path in ("/page", "/page/", "/page/x.js", "/index.html", "/page/index.html", "/page/../page.py"):
        assert_problem(client.get(path), 404, "not_found")


@pytest.mark.parametrize("enabled", [False, True])
def test_embedding_application_serves_the_page_only_if_enabled(app: flask.Flask, enabled: bool) -> None:
    host = flask.Flask("host")
    service = core.create_blueprint(app.extensions["findings"].settings, **({"page": True} if enabled else {}))
    host.register_blueprint(service, url_prefix="/findings")
    client = host.test_client()
    statuses = [client.get(path).status_code for path in ("/findings/", "/findings/page/app.js", "/")]
    assert statuses == ([200, 200, 404] if enabled else [404] * 3)
    if enabled:
        assert client.get("/findings/").data == FILES["/"]
        assert client.get("/findings").headers["Location"] == "findings/"


def test_prefix_without_trailing_slash_redirects_to_the_page(app: flask.Flask) -> None:
    mounted = app.test_client().get("", environ_overrides={"SCRIPT_NAME": "/a/b", "PATH_INFO": ""})
    escaped = app.test_client().get(
        "", environ_overrides={"SCRIPT_NAME": "/a/é b".encode().decode("latin-1"), "PATH_INFO": ""}
    )
    assert escaped.headers["Location"] == "%C3%A9%20b/"
    assert (mounted.status_code, mounted.headers["Location"]) == (308, "b/")


def test_page_is_small_and_loads_only_its_own_files() -> None:
    assert sum(file.stat().st_size for file in page_module.FOLDER.rglob("*") if file.is_file()) < MOST_BYTES
    for file in OWN_FILES:
        for name in re.findall(r'from "([^"]+)"', file.read_text("utf-8")):
            assert name.startswith("./")
            assert (file.parent / name).is_file(), name
    for name in re.findall(r'(?:href|src)="([^"]+)"', FILES["/"].decode()):
        assert f"/{name}" in FILES or name == "api/v1/openapi.json"
    for path, content in FILES.items():
        named = set(re.findall(r"(?:https?:)?//[a-z0-9-]+\.[a-z]+[^\s\"'`]*", content.decode()))
        assert {name for name in named if not name.startswith("http://www.w3.org/")} == set(), path


def test_page_code_never_parses_text_as_html_or_code() -> None:
    pattern = r"(?i)(inner|outer)HTML|insertAdjacent|document\.write|\beval\b|new Function|dangerously|srcdoc|\sstyle="
    assert {file.name: found for file in OWN_FILES if (found := re.findall(pattern, file.read_text("utf-8")))} == {}


# In a browser: helpers and fixtures

BROWSERS = {
    "chromium": shutil.which("chromium") or shutil.which("chromium-browser"),
    "firefox": shutil.which("firefox-esr") or shutil.which("firefox"),
}
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


# For features that differ between browsers: storage, focus, keys, dialogs, the clipboard, layout, the CSP.
in_every_browser = pytest.mark.parametrize("browser", list(BROWSERS), indirect=True)


@pytest.fixture(scope="module", params=["chromium"])
def browser(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The browser of all tests of this module: Chromium, unless a test is marked `in_every_browser`."""
    if playwright is None:
        pytest.skip("playwright is not installed")
    program = BROWSERS[request.param] or pytest.skip(f"{request.param} is not installed")
    playwright.expect.set_options(timeout=1000 * PATIENCE)
    # This channel drives an unpatched Firefox, over WebDriver BiDi.
    options: dict[str, Any] = {"channel": "moz-firefox"} if request.param == "firefox" else {"args": list(FLAGS)}
    with playwright.sync_playwright() as driver:
        browser = getattr(driver, request.param).launch(executable_path=program, **options)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of all tests of this module; each test has a project type of its own."""
    db = tmp_path_factory.mktemp("page") / "page.db"
    line = [*PROGRAM, "serve", "--port", "0", "--db", str(db)]
    server = start_process(line, db, r"curl .*\n", FINDINGS_WEBHOOK_PRIVATE="1")
    yield server
    server.stop()


@dataclass
class Findings:
    """The findings of one test, all of one project type."""

    server: Server
    type: str
    ids: list[str] = field(default_factory=list)

    def send(self, method: str, path: str, body: Any = None, status: int = 200, **headers: str) -> Any:
        response = self.server.request(method, f"{API}/{path}", body, **headers)
        assert response.status_code == status, response.data
        return response.json

    def report(self, *tasks: dict[str, Any], finish: bool = True, **fields: Any) -> str:
        """Report findings in a new run, and return the run's id."""
        run = self.send("POST", "runs", {"projectType": self.type, "targetUrl": TARGET, **fields}, 201)["id"]
        if tasks:
            response = self.server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": list(tasks)})
            assert response.status_code in (200, 201), response.data
            self.ids += [each["id"] for each in response.json["tasks"] if each["id"] not in self.ids]
        if finish:
            self.send("PATCH", f"runs/{run}", {"status": "completed"})
        return run

    def read(self, index: int) -> Any:
        """Return the stored finding at an index of `ids`."""
        return self.send("GET", f"tasks/{self.ids[index]}")

    def triage(self, index: int, **fields: str) -> None:
        """Change a finding through the API, as another user does."""
        self.send("PATCH", f"tasks/{self.ids[index]}", fields)

    def statuses(self) -> list[str]:
        return [self.read(index)["status"] for index, _ in enumerate(self.ids)]

    def history(self, index: int) -> Any:
        """Return the history of a finding, oldest entry first."""
        return self.send("GET", f"tasks/{self.ids[index]}/history")["history"]


@pytest.fixture
def findings(service: Server, request: pytest.FixtureRequest) -> Findings:
    name = re.sub(r"[^a-zA-Z0-9]", "-", request.node.name)[:90]
    service.request("POST", f"{API}/project-types", {"name": name})
    return Findings(service, name)


def numbered(count: int, **fields: Any) -> list[dict[str, Any]]:
    """Return tasks to report, titled "Finding 0", "Finding 1" and so on."""
    return [task(title=f"Finding {n}", externalId=f"f{n}", **fields) for n in range(count)]


@dataclass
class PageUser:
    """A user of the page, in a browser tab of their own."""

    page: Any
    url: str
    key: str
    init_script: str  # a script that signs the user in
    errors: list[str] = field(default_factory=list)  # errors, warnings and dialogs of the browser

    def __post_init__(self) -> None:
        self.page.on("console", self.record_message)
        self.page.on("pageerror", lambda error: self.errors.append(str(error.stack)))
        self.page.on("dialog", self.record_dialog)

    def open(self, fragment: str = "") -> None:
        """Open the page at a URL fragment, signed in."""
        if self.init_script:
            self.page.add_init_script(self.init_script)
            self.init_script = ""
        self.page.goto(f"{self.url}{fragment}")
        self.page.locator("header.top").wait_for()

    def route(self, pattern: str, handler: Callable[[Any], Any], times: int | None = None) -> None:
        """Handle requests in place of the service, and wait until Chromium really intercepts them."""
        self.page.route(pattern, handler, times=times)
        if self.page.url.startswith(self.url):
            self.page.route("**/?routed", lambda route: route.fulfill(body="routed"))
            self.page.evaluate("async () => { while ((await (await fetch('?routed')).text()) !== 'routed'); }")

    def record_message(self, message: Any) -> None:
        """Record an error or warning of the console, except one about an error response of the service."""
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.errors.append(message.text)

    def record_dialog(self, dialog: Any) -> None:
        """Record and close a dialog of the browser; the page must not open one."""
        self.errors.append(f"{dialog.type}: {dialog.message}")
        dialog.dismiss()

    def sign_in(self, key: str, remember: bool = False) -> None:
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_label("Remember").set_checked(remember)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.locator("header.top").wait_for()

    def open_list(self, findings: Findings, *tasks: dict[str, Any], more: str = "") -> None:
        """Report findings, and open the list of the test's findings; `more` are further query parameters."""
        if tasks:
            findings.report(*tasks)
        total = findings.send("GET", f"tasks?limit=1&projectType={findings.type}{more}")["total"]
        self.open(f"#/findings?projectType={findings.type}{more}")
        self.expect_text(f"{total:,} finding", ".total")

    def open_finding(self, findings: Findings, *tasks: dict[str, Any]) -> None:
        """Report findings, and open the test's first finding."""
        if tasks:
            findings.report(*tasks)
        self.open(f"#/findings/{findings.ids[0]}")
        self.expect_text(findings.read(0)["title"], "h1")

    def click(self, name: str, role: str = "button", **options: Any) -> None:
        """Click the element that has this role and accessible name."""
        self.page.get_by_role(role, name=name, **options).click()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def type(self, text: str) -> None:
        self.page.keyboard.type(text)

    def write(self, key: str, text: str, send: str = "Control+Enter") -> None:
        """Press a key that opens a text field, type the text, and press `send`."""
        self.press(key)
        self.type(text)
        self.press(send)

    def expect(self, selector: str) -> Any:
        """Return Playwright's assertions about a selector, which wait until they hold."""
        return playwright.expect(self.page.locator(selector))

    def expect_text(self, text: str | re.Pattern[str], within: str = "body") -> None:
        """Wait until the first match of `within` contains a text."""
        playwright.expect(self.page.locator(within).first).to_contain_text(text)

    def expect_none(self, selector: str) -> None:
        playwright.expect(self.page.locator(selector)).to_have_count(0)

    def expect_titles(self, *titles: str) -> None:
        """Wait until the list shows exactly these titles, in this order."""
        playwright.expect(self.page.locator("table.findings tbody .title a:first-child")).to_have_text(list(titles))

    @property
    def fragment(self) -> str:
        return str(self.page.evaluate("location.hash"))

    def overflow(self, width: int) -> int:
        """Return by how many pixels the page is wider than a screen of this width."""
        self.page.set_viewport_size({"width": width, "height": 800})
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


MakeUser = Callable[..., PageUser]


def hold(user: PageUser, pattern: str, method: str = "GET") -> None:
    """Leave matching requests without a response until all routes are removed."""
    user.route(pattern, lambda route: None if route.request.method == method else route.continue_())


def sign_in_script(service: Server, key: str) -> str:
    """Return a script that stores a key as the page does, so that tests need not type it."""
    session = json.dumps({"key": key, "me": service.request("GET", f"{API}/me", key=key).json})
    name = f"findings:key:{API}/"
    store = f"if (!sessionStorage.getItem('{name}')) sessionStorage.setItem('{name}', '{session}')"
    return f"if (location.host) {store}"  # Firefox's blank page has no storage


@pytest.fixture(scope="module")
def window(browser: Any) -> Iterator[Any]:
    """A browser context shared by users without options, so that it caches the page's files."""
    context = browser.new_context()
    yield context
    context.close()


@pytest.fixture
def make_user(browser: Any, service: Server, window: Any) -> Iterator[Callable[..., PageUser]]:
    """A factory of users, each with a new tab. At the end it checks that no tab has recorded an error."""
    users = []

    def make(width: int = 1280, height: int = 800, key: str = service.key, **options: Any) -> PageUser:
        context = browser.new_context(**options) if options else window
        context.set_default_timeout(1000 * PATIENCE)
        page = context.new_page()
        page.set_viewport_size({"width": width, "height": height})
        user = PageUser(page, f"http://127.0.0.1:{service.port}/", key, sign_in_script(service, key))
        users.append(user)
        return user

    yield make
    for user in users:
        if user.page.context is window:
            user.page.unroute_all(behavior="ignoreErrors")
            user.page.close()
        else:
            user.page.context.close()
    window.set_offline(False)
    assert [wrong for user in users for wrong in user.errors] == []


@pytest.fixture
def user(make_user: MakeUser) -> PageUser:
    return make_user()


def make_key(server: Server, name: str, level: str, client: str = "default", *options: str) -> str:
    done = command("keys", "create", name, "--level", level, "--client", client, *options, "--db", str(server.db))
    assert done.returncode == 0, done.stderr
    return KEY.findall(done.stdout)[0]


# Signing in


def stored_copies(page: Any, key: str) -> tuple[int, int]:
    """Return how often a key occurs in the tab's session storage, and in the browser's local storage."""
    storages = page.evaluate("[JSON.stringify(sessionStorage), JSON.stringify(localStorage)]")
    return storages[0].count(key), storages[1].count(key)


@in_every_browser
@pytest.mark.parametrize("remember", [False, True])
def test_key_is_stored_for_the_tab_or_for_all_tabs_as_chosen(make_user: MakeUser, remember: bool) -> None:
    user, addresses = make_user(locale="en"), list[str]()
    user.page.on("request", lambda request: addresses.append(request.url))
    for wrong in ("fts_wrong", "fts_…"):
        user.page.goto(user.url)
        user.page.get_by_label("API key").fill(wrong)
        user.press("Enter")
        user.expect_text("unknown, expired or revoked", "[role=alert]")
        assert stored_copies(user.page, wrong) == (0, 0)
    user.sign_in(user.key, remember)
    user.expect_text("Overview", "h1")
    assert stored_copies(user.page, user.key) == (not remember, remember)
    assert user.page.context.cookies() == []
    assert not any(user.key in address for address in [*addresses, user.page.url])
    assert {address.split("/")[2] for address in addresses} == {user.url.split("/")[2]}
    other = user.page.context.new_page()
    other.goto(user.url)
    other.locator("header.top").wait_for()
    assert stored_copies(other, user.key) == (0, remember)
    other.get_by_role("button", name="Sign out").click()
    for page in (user.page, other):
        page.locator("form.signin").wait_for()
        assert stored_copies(page, user.key) == (0, 0)
    other.reload()
    other.locator("form.signin").wait_for()


@in_every_browser
def test_key_in_the_url_fragment_signs_in_and_is_removed_from_the_url(make_user: MakeUser, findings: Findings) -> None:
    user, other = make_user(locale="en"), make_key(findings.server, findings.type, "read")
    user.page.goto(f"{user.url}#key={user.key}")
    user.expect_text("first · default · full", ".me")
    assert (user.page.url, stored_copies(user.page, user.key)) == (user.url, (True, False))
    user.page.evaluate(f"location.hash = 'key={other}'")  # a link does not replace a valid session
    user.page.wait_for_url(user.url)
    user.expect_text("first · default · full", ".me")
    user.page.evaluate("sessionStorage.clear()")
    user.page.goto("about:blank")
    user.page.goto(f"{user.url}#key=fts_wrong")
    user.expect_text("unknown, expired or revoked", "[role=alert]")
    assert user.page.url == user.url


def test_revoked_key_keeps_typed_text_and_ignores_another_tabs_key(make_user: MakeUser, findings: Findings) -> None:
    server = findings.server
    keys = [make_key(server, f"tab{n}", "full", client) for n, client in enumerate(("default", "other"))]
    user = make_user(key=keys[0], locale="en")
    user.open_finding(findings, task())
    other = user.page.context.new_page()
    other.add_init_script(sign_in_script(server, keys[1]))
    other.goto(user.url)
    other.locator(".me", has_text="tab1 · other").wait_for()
    user.press("c")
    user.type("Half an hour of thought")
    assert command("keys", "revoke", "tab0", "--db", str(server.db)).returncode == 0
    user.press("Control+Enter")
    user.expect_text("Sign in again", "dialog:last-of-type h2 >> nth=-1")
    message = json.dumps({"key": keys[1], "me": server.request("GET", f"{API}/me", key=keys[1]).json})
    other.evaluate(f"new BroadcastChannel('findings:key:{API}/').postMessage({message})")  # as signing in there does
    user.page.wait_for_timeout(200)
    user.expect_text("Sign in again", "dialog:last-of-type h2 >> nth=-1")
    user.expect_text("tab0 · default", ".me")
    assert user.page.locator("textarea").input_value() == "Half an hour of thought"
    user.sign_in(server.key)
    user.expect_text("Half an hour of thought", ".history")
    assert findings.history(0)[-1]["by"] == "first"


@pytest.mark.parametrize("level", ["read", "agent"])
def test_controls_that_the_key_level_does_not_allow_are_hidden(
    make_user: MakeUser, findings: Findings, level: str
) -> None:
    user = make_user(key=make_key(findings.server, f"only {level}", level))
    user.open_list(findings, *numbered(2))
    user.expect_text(f"only {level} · default · {level}", ".me")
    user.press("j", "x", "4", "a", "c", "1")
    user.expect_text(f"The key “only {level}” is of level {level}: to triage takes one of level full.", ".toast")
    user.expect_none("dialog, .actions, input[type=checkbox], .top nav a:text-is('Webhooks')")
    user.press("Enter")
    user.expect_text("Finding 1", "h1")
    user.press("3")
    user.expect_none("main button:not(.quiet), dialog")
    assert findings.read(1)["status"] == "open"
    user.open("#/webhooks")
    user.expect_text("Not found", "h1")
    user.expect_none("main form")


@dataclass
class Proxy:
    """An authenticating proxy in front of the service: it adds its API key and the name of the user."""

    key: str
    user: str = "Ada Lovelace"
    override: dict[str, Any] | None = None  # a response to send instead of forwarding

    def forward(self, route: Any) -> None:
        """Forward a request of the page to the service."""
        if self.override:
            return route.fulfill(**self.override)
        assert "authorization" not in route.request.headers
        return route.continue_(
            headers={**route.request.headers, "Authorization": f"Bearer {self.key}", "Findings-User": self.user}
        )


@pytest.fixture
def proxy(findings: Findings) -> Proxy:
    return Proxy(make_key(findings.server, f"proxy-{findings.type}", "full", "default", "--for-users"))


@in_every_browser
def test_proxy_replaces_sign_in_and_an_expired_session_keeps_typed_text(
    make_user: MakeUser, findings: Findings, proxy: Proxy
) -> None:
    user = make_user(locale="en")
    findings.report(task(title="One"))
    user.page.context.route("**/api/v1/**", proxy.forward)
    user.page.goto(f"{user.url}#/findings/{findings.ids[0]}")
    user.expect_text("One", "h1")
    user.expect_text("Ada Lovelace · default · full", ".me")
    user.expect_none("form.signin, button:text-is('Sign out')")
    for override in (
        {"status": 302, "headers": {"Location": "https://signin.example/"}},
        {"status": 200, "content_type": "text/html; charset=utf-8", "body": "<h1>Who are you?</h1>"},
        {"status": 401, "body": ""},
    ):
        draft = f"Half an hour of thought, until {override['status']}"
        user.press("c")
        user.type(draft)
        proxy.override = override
        user.press("Control+Enter")
        user.expect_text("You are not signed in any more", "dialog:last-of-type >> nth=-1")
        proxy.override = None  # as the proxy does after a sign-in
        with user.page.context.expect_page() as opened:
            user.click("sign in in another tab", "link")
        opened.value.locator("h1", has_text="One").wait_for()
        user.expect_text(draft, ".history")
        opened.value.close()
    user.expect_text("Ada Lovelace (proxy-", ".history")
    assert [entry["user"] for entry in findings.history(0)] == [None, *["Ada Lovelace"] * 3]
    user.press("a")
    user.expect("#people option[value='Ada Lovelace']").to_have_count(1)
    user.type("Ada Lovelace")
    user.press("Enter")
    user.expect_text("Ada Lovelace", ".facts")
    user.page.goto(f"{user.url}#/overview?projectType={findings.type}")
    user.expect_text("1 Mine", ".figures li:last-child")


# The views


def check_link_counts(user: PageUser, findings: Findings, selector: str) -> int:
    """Check that each link shows the total of the list that it opens, and return the number of links."""
    links = user.page.locator(selector).evaluate_all("all => all.map((each) => [each.innerText, each.hash])")
    for text, fragment in links:
        total = findings.send("GET", f"tasks?limit=1&{fragment.partition('?')[2]}")["total"]
        assert re.findall(r"\d+", text) == [str(total)], fragment
    return len(links)


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
    playwright.expect(oldest.locator(".what a")).to_have_text(["Finding 0", "Finding 1", "Finding 2"])
    playwright.expect(oldest.locator("li").first).to_contain_text("page · now")
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
        playwright.expect(table).to_have_count(days)
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


PICTURE = "http://127.0.0.1:9/picture.png"
FULL_TASK = task(
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
    playwright.expect(user.page.get_by_alt_text("As it looks")).to_have_js_property("naturalWidth", 1)
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
        playwright.expect(shown.locator(".line")).to_have_count(200)
        shown.get_by_role("button", name="Show all 308 lines").click()
        playwright.expect(shown.locator(".line")).to_have_count(308)


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


def test_run_is_compared_with_its_baseline(user: PageUser, findings: Findings) -> None:
    both, gone, new = (task(title=each, externalId=each, rule="R1", location="a/b.py:1") for each in "BGN")
    findings.report(both, gone)
    run = findings.report(both, new, metadata={"commit": "abc123"})
    user.open(f"#/runs?projectType={findings.type}")
    user.expect_text("2 runs", ".total")
    user.page.get_by_role("link", name=findings.type).first.click()
    user.expect_text(f"Run of {findings.type}", "h1")
    assert run in user.fragment
    user.expect_text("Fixed", "main")  # comes from a request of its own
    user.page.locator("summary").evaluate_all("all => all.forEach((each) => (each.parentElement.open = true))")
    parts = user.page.locator(".part")
    assert [list(filter(None, part.split("\n"))) for part in parts.all_inner_texts()] == [
        ["New 1", "High", "N", "R1", "a/b.py:1", "Open", "Open the list"],
        ["Fixed, or not reported 1", "High", "G", "R1", "a/b.py:1", "Open", "Open the list"],
        ["Still there 1 among the 2 results"],
    ]
    user.expect_text(re.compile("Fail.*1 new finding"), ".card")
    user.expect_text("abc123", "main")
    for index, name, title in ((0, "New in run", "N"), (1, "Missing from run", "G")):
        user.open(f"#/runs/{run}")
        user.expect_text("Fixed", "main")
        parts.nth(index).evaluate("part => (part.open = true)")
        parts.nth(index).get_by_role("link", name="Open the list").click()
        user.expect_titles(title)
        user.click(name)
        user.expect_none(f".chip:has-text('{name}')")


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
    user.expect_text("5 created, 28 new beside the baseline, 23 of them resolved on the main line", "main")
    assert check_link_counts(user, findings, "main section:not(.card) > p > a[href^='#/findings']") == 8
    user.expect(".part .count").to_have_text(["28", "3", "59"])
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
    user.expect_text(f"Run of {findings.type}", "h1")
    assert user.fragment == f"#/runs/{runs[49]}"
    user.click("One", "link", exact=True)
    user.expect_text("One", "h1")
    user.page.evaluate("document.activeElement.blur()")
    user.press("Escape")
    user.expect_text("Run of", "h1")
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
    user.page.get_by_label("Least severity").select_option("High")
    user.page.get_by_label("finding.created").check()
    user.press("Enter")
    user.expect_text(re.compile("whsec_[A-Za-z0-9+/=]{20,}"), "main > [role=alert]")
    for text in (f"127.0.0.1:{receiver.server_port}", "run.finished, finding.created", "high or worse", "On"):
        user.expect_text(text, "table.webhooks tbody tr")
    playwright.expect(url).to_have_value("")
    user.page.reload()
    user.expect_text("1 webhook", ".total")
    assert "whsec_" not in user.page.content()
    for receiver.status, text in ((204, "The test was delivered."), (500, "The test was not delivered: 500.")):
        user.click("Test")
        user.expect_text(text, ".toast")
    assert receiver.received == ["webhook.test"] * 2
    user.click("Delete")
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
        playwright.expect(row).to_contain_text(text)
    assert violations(user, "light") == []
    receiver.status = 204
    row.get_by_role("button", name="Send what was refused again").press("Enter")
    playwright.expect(row).to_contain_text("On")
    wait_until(lambda: len(receiver.received) > 1)
    assert receiver.received == ["run.finished"] * 2


def test_empty_views_explain_how_to_report_findings(make_user: MakeUser, service: Server) -> None:
    user = make_user(key=make_key(service, "new", "full", "nobody"))
    for fragment in ("", "#/findings", "#/runs", "#/project-types"):
        user.open(fragment)
        user.expect_text(re.compile("No .* yet"), ".notice h2")
        user.expect_text(f"scan --url {user.url}", ".sample")
        assert user.page.locator(".notice a").get_attribute("href").endswith("/api/v1/openapi.json")


def test_missing_resources_and_failed_requests_show_an_error(user: PageUser) -> None:
    user.open("#/nowhere")
    user.expect_text("Not found", "h1")
    user.open("#/findings/unknown")
    user.expect_text("There is nothing here", "[role=alert]")
    user.open("#/findings?status=odd")
    user.expect_text("must be one of", "[role=alert]")
    user.route("**/api/v1/runs*", lambda route: route.abort())
    user.open("#/runs")
    user.expect_text("can't be reached", "[role=alert]")
    user.page.unroute("**/api/v1/runs*")
    user.click("Try again")
    user.expect_text("Runs", "caption")


# Triage


@in_every_browser
def test_dismissing_and_resolving_ask_for_a_reason_and_remember_the_last(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(4))
    user.press("j", "4")
    user.expect_text("Dismiss “Finding 3”?", "dialog h2")
    user.press("Enter")
    assert user.page.locator("dialog :invalid").count() > 0
    user.press("Space", "ArrowDown")
    user.write("Tab", "Nobody can get there")
    user.expect_text("Dismissed: “Finding 3”", ".toast")
    user.press("j", "4", "Enter")
    user.expect_text("Dismissed: “Finding 2”", ".toast")
    user.press("j", "3")
    reasons = user.page.locator("dialog .choices label")
    assert reasons.all_inner_texts() == ["Fixed", "Duplicate", "No reason given"]
    user.press("Enter")
    user.expect_text("Resolved: “Finding 1”", ".toast")
    user.press("j", "3", "ArrowDown", "ArrowDown", "Enter")
    user.expect_text("Resolved: “Finding 0”", ".toast")
    last = [findings.history(index)[-1] for index in (3, 2, 1, 0)]
    assert [(each["to"], each["reason"], each["comment"]) for each in last] == [
        ("dismissed", "accepted_risk", "Nobody can get there"),
        ("dismissed", "accepted_risk", None),
        ("resolved", "fixed", None),
        ("resolved", None, None),
    ]


def test_keys_set_the_status_assignee_and_comment_of_the_focused_finding(user: PageUser, findings: Findings) -> None:
    reported = (task(title="Below", status="resolved"), task(title="Above", status="dismissed", externalId="above"))
    user.open_list(findings, *reported)
    findings.report(reported[1])  # a repeated report is not a conflict
    user.press("j")
    for key, status, label in (("1", "open", "Open"), ("2", "in_progress", "In progress")):
        user.press(key)
        user.expect_text(f"{label}: “Above”.", ".toast")
        assert findings.statuses() == ["resolved", status]
    user.write("a", "Ada", "Enter")
    user.expect_text("Ada", "td.assignee")
    user.write("c", "Looking at it")
    user.expect_text("Commented", ".toast")
    user.press("a", "Control+a", "Delete", "Enter")
    user.expect_text("Assigned to nobody", ".toast")
    assert [(each["event"], each["assignee"], each["comment"]) for each in findings.history(1)[-3:]] == [
        ("assigned", "Ada", None),
        ("comment", None, "Looking at it"),
        ("assigned", None, None),
    ]


@in_every_browser
def test_shift_click_selects_a_range(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(9))
    boxes = user.page.locator("tbody input[type=checkbox]")
    boxes.nth(1).click()
    boxes.nth(5).click(modifiers=["Shift"])
    user.expect_text("5 findings selected", ".actions")
    all_of_them = user.page.get_by_label("Select all on this page")
    playwright.expect(all_of_them).to_have_js_property("indeterminate", True)
    boxes.nth(4).click()
    boxes.nth(3).click(modifiers=["Shift"])
    user.expect_text("3 findings selected", ".actions")
    all_of_them.check()
    user.expect_text("9 findings selected", ".actions")
    playwright.expect(all_of_them).to_have_js_property("indeterminate", False)


def test_all_matching_findings_are_dismissed_in_batches_and_undone(user: PageUser, findings: Findings) -> None:
    for start in (0, 700):
        findings.report(*(task(title=f"{start + n}", externalId=f"{start + n}") for n in range(700)))
    findings.triage(3, status="in_progress")
    user.open_list(findings, more="&status=open,in_progress")
    requests: list[str] = []
    user.page.on("request", lambda request: requests.append(f"{request.method} {request.url.split('?')[0]}"))
    user.press("j", "x")
    user.click("Select all 1,400 that match")
    user.expect_text("1,400 findings selected", ".actions")
    user.press("4", "Space", "Enter")
    user.expect_text("Dismissed: 1,400 findings.", ".toast")
    user.expect_text("0 findings", ".total")
    assert [line for line in requests if line.startswith("PATCH")] == [f"PATCH {user.url}api/v1/tasks"] * 2
    assert not [line for line in requests if "/tasks/" in line]
    assert {findings.read(index)["reason"] for index in (0, 3, 700, 1399)} == {"false_positive"}
    user.press("u")
    user.expect_text("1,400 findings", ".total")
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
        user.page.get_by_label("Group by").select_option(label="Nothing")
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
    playwright.expect(user.page.get_by_role("link", name="S101")).to_be_focused()


def test_key_that_is_held_down_acts_only_once(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(3), more="&status=open")
    user.press("j")
    for left in (2, 2):
        user.page.keyboard.down("2")
        user.expect_text(f"{left} findings", ".total")
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
        user.click("Delete …")
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
            user.click(name, exact=True)
        saved[download.value.suggested_filename] = Path(download.value.path()).read_text("utf-8")
    assert len(saved["findings.csv"].splitlines()) == 61
    assert len(json.loads(saved["findings.sarif"])["runs"][0]["results"]) == 60


def test_keyboard_shortcuts_are_listed_and_can_be_switched_off(user: PageUser, findings: Findings) -> None:
    user.open_finding(findings, task(title="One"))
    user.press("?")
    user.expect_text("Select", "dialog")
    user.page.get_by_label("Single keys do this").uncheck()
    user.press("Escape", "2")
    user.page.wait_for_timeout(200)
    assert findings.read(0)["status"] == "open"
    user.page.locator(".triage").get_by_role("button", name="Resolved").click()
    user.page.locator("dialog").get_by_role("button", name="Resolve").click()
    user.expect_text("Resolved", ".badges")
    user.page.locator(".toast").get_by_role("button", name="Undo").click()
    user.expect_text("Open", ".badges")
    user.click("Keys")
    user.page.get_by_label("Single keys do this").check()
    user.press("Escape", "u")
    user.expect_text("nothing to undo", ".toast")
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
    user.press(*("j" if in_list else ""), "3", "Enter")
    user.expect_text("Somebody changed this finding meanwhile", "dialog h2")
    for text in ("Open", "Dismissed", "Accepted risk", "We know", by, "You wanted: resolve as fixed."):
        user.expect_text(text, "dialog")
    assert findings.statuses() == ["dismissed"]
    user.click("Resolve “One” anyway")
    user.expect_text("Resolved: “One”.", ".toast")
    assert findings.statuses() == ["resolved"]


def test_conflicts_of_queued_changes_are_confirmed_one_by_one(user: PageUser, findings: Findings) -> None:
    user.open_list(findings, *numbered(3))
    user.page.context.set_offline(True)
    user.press("j", "2", "j", "2", "j", "2")
    user.expect_text("3 changes not sent yet", ".outbox")
    for index in (1, 2):
        findings.triage(index, assignee="Ada")
    user.page.context.set_offline(False)
    user.expect_text("Somebody changed", "dialog h2")
    user.expect_none(".outbox")
    user.click("Change nothing")
    user.click("Start “Finding 1” anyway")
    user.expect_none("dialog")
    user.expect_text("In progress: “Finding 1”", ".toast")
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
    user.expect_text("Somebody changed 1 of 3 findings meanwhile", "dialog h2")
    for text in ("Finding 1", "Resolved", "Fixed", "All of these", "Dismiss 3 findings anyway"):
        user.expect_text(text, "dialog")
    assert findings.statuses() == ["open", "resolved", "open"]
    user.click("Skip 1 and dismiss 2")
    user.expect_text("Dismissed: 2 findings.", ".toast")
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
    user.press("Control+Enter", "Escape", "x", "j", "x", "c")
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
    user.expect_text("1 change not sent yet: Commented on “One”", ".outbox")
    user.press("2")
    user.expect_text("2 changes not sent yet", ".outbox")
    assert "bulky" not in user.page.evaluate("JSON.stringify(sessionStorage)")
    dialogs: list[str] = []
    user.page.remove_listener("dialog", user.record_dialog)
    user.page.once("dialog", lambda dialog: (dialogs.append(dialog.type), dialog.accept()))
    user.page.reload()
    assert dialogs == ["beforeunload"]
    user.expect_text("2 changes not sent yet", ".outbox")
    retry = user.page.get_by_role("button", name="Retry")
    playwright.expect(retry).to_be_enabled()  # otherwise the reloaded page's own retry may succeed
    user.page.unroute("**/api/v1/tasks")
    retry.click()
    user.expect_none(".outbox")
    user.expect_text("In progress", ".badges")
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
    """Return a task that contains a text in every field."""
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
def test_hostile_text_neither_runs_nor_breaks_the_layout(make_user: MakeUser, findings: Findings, text: str) -> None:
    body = {"label": text[:200], "description": text, "extensionSchema": {"description": text}}
    findings.send("PUT", f"project-types/{findings.type}", body)
    metadata = {"text": text, text[:100]: [text], "repository": text, "commit": text, "sourceUrl": text}
    run = findings.report(hostile_task(text), metadata=metadata, targetUrl=f"https://example.com/{quote(text[:600])}")
    findings.triage(0, status="dismissed", comment=text[:4000], assignee=text[:200])
    shared = "&".join(f"{name}={quote(str(findings.read(0)[name]))}" for name in ("rule", "location"))
    lists = [f"{name}?projectType={findings.type}" for name in ("findings", "runs")]
    user = make_user(360)
    user.open()
    for view in (
        *(*lists, f"{lists[0]}&{shared}", f"findings/{findings.ids[0]}", f"runs/{run}"),
        f"project-types/{findings.type}",
    ):
        open_view(user, f"#/{view}")
        user.expect_none(
            "[role=alert], main script, main [onerror], main [onload], [href^='javascript:' i], main iframe"
        )
        assert (user.overflow(1280), user.overflow(360)) == (0, 0), view


@in_every_browser
def test_csp_blocks_injected_scripts_and_foreign_requests(user: PageUser) -> None:
    user.open()
    inject = "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
    user.page.evaluate(inject)
    user.page.evaluate("fetch('http://127.0.0.1:9/').catch(() => {})")
    assert user.page.evaluate("window.ran") is None

    def blocked() -> set[str]:
        user.page.wait_for_timeout(20)  # for messages of the browser to arrive
        return {*re.findall("(script|connect)-src 'self'", "\n".join(user.errors))}

    wait_until(lambda: blocked() == {"script", "connect"})
    user.errors.clear()


# Accessibility


@pytest.fixture
def views(findings: Findings) -> list[str]:
    """The fragments of all views, each with content."""
    findings.report(FULL_TASK, *numbered(5, evidence=[{"type": "log", "content": "x"}]))
    run = findings.report(*numbered(6), metadata={"commit": "abc"})
    findings.send("POST", "webhooks", {"url": "http://127.0.0.1:9/", "format": "slack", "projectType": "none"}, 201)
    findings.triage(0, status="dismissed", reason="wont_fix", comment="Hm")
    findings.send("PUT", f"project-types/{findings.type}", {"description": "x", "extensionSchema": {"title": "x"}})
    listed, shown = f"findings?projectType={findings.type}", f"findings/{findings.ids[0]}"
    names = (
        *("overview", listed, f"{listed}&group=rule", "findings?runId=none&without=tag", shown, "runs", f"runs/{run}"),
        *("project-types", f"project-types/{findings.type}", "webhooks", "nowhere", "runs/unknown"),
    )
    return [f"#/{name}" for name in names]


def open_view(user: PageUser, view: str) -> None:
    """Open a view, and wait until it has loaded."""
    user.page.goto(f"{user.url}{view}")
    user.page.locator("h1").first.wait_for()
    user.expect_none(".loading, [aria-busy=true]")


def violations(user: PageUser, theme: str) -> list[str]:
    """Return the violations that axe-core finds after loading."""
    user.expect_none(".loading, [aria-busy=true]")
    if not user.page.evaluate("'axe' in window"):
        user.page.evaluate(npm_file("axe-core/axe.min.js").read_text("utf-8"))
    options: dict[str, Any] = {"iframes": False, "resultTypes": ["violations"]}
    if theme != "light":
        options["runOnly"] = ["color-contrast", "link-in-text-block"]  # the themes differ only in colors
    found = user.page.evaluate("options => axe.run(options)", options)["violations"]
    return [f"{each['id']}: {node['html'][:200]} {node['failureSummary']}" for each in found for node in each["nodes"]]


THEMES: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "forced": {"forced_colors": "active"},
}


@pytest.mark.parametrize("theme", list(THEMES))
@pytest.mark.parametrize("width", [390, 1920])
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
    for key, shown in (("2", "tbody .status:has-text('In progress')"), *((key, "dialog") for key in "4ac?")):
        user.press(key)
        user.page.locator(shown).wait_for()
        assert violations(user, theme) == [], key
        user.press("Escape")
        user.expect_none("dialog")


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
    playwright.expect(user.page.get_by_label("API key")).to_be_focused()
    user.type(user.key)
    user.press("Enter")
    user.expect_text("Overview", "h1")
    user.page.evaluate("document.activeElement.blur()")
    user.press("Tab")
    playwright.expect(user.page.get_by_text("Skip to the content")).to_be_focused()
    user.press("Enter")
    user.expect("h1").to_be_focused()
    user.press("/")
    user.expect_text("Findings", "h1")
    user.type("use of ASSERT")
    user.expect_text("Use of assert detected", "tbody")
    user.press("Escape", "j", "4", "Space", "Enter")
    user.expect_text("Dismissed: “Use of assert detected”", ".toast")
    user.write("a", "Ada", "Enter")
    user.expect_text("Assigned to Ada", ".toast")
    user.press("u")
    user.expect_text("Undone", ".toast")
    user.press("Enter")
    user.expect_text("Use of assert detected", "h1")
    stored = findings.read(3)
    assert (stored["status"], stored["reason"], stored["assignee"]) == ("dismissed", "false_positive", None)
    colleague = make_user(locale="en")
    colleague.page.goto(user.page.url)
    colleague.sign_in(colleague.key)
    colleague.expect_text("Use of assert detected", "h1")
