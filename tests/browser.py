"""The browsers of the page's tests, the users who sit in front of them, and the findings that they see.

Playwright for Python drives Debian's Chromium (`apt-get install chromium`). Tests marked `in_every_browser` run in
Debian's Firefox, too (`apt-get install firefox-esr`). axe-core, which `npm install axe-core` puts into the folder
`node_modules`, checks accessibility. Tests whose browser or package is not installed are skipped.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

try:
    from playwright import sync_api as playwright
except ImportError:
    playwright = None

from tests.clients import API, KEY, task
from tests.documents import npm_file
from tests.servers import PATIENCE, PROGRAM, Server, command, start_process

PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
TARGET = "https://example.com/shop"
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
        self.page.get_by_label("Keep me signed in").set_checked(remember)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.locator("header.top").wait_for()

    def open_list(self, findings: Findings, *tasks: dict[str, Any], more: str = "") -> None:
        """Report findings, and open the list of the test's findings; `more` are further query parameters."""
        if tasks:
            findings.report(*tasks)
        total = findings.send("GET", f"tasks?limit=1&projectType={findings.type}{more}")["total"]
        self.open(f"#/findings?projectType={findings.type}{more}")
        self.expect_text(re.compile(rf"^{total:,} .*finding"), ".total")

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


def expect(locator: Any) -> Any:
    """Return Playwright's assertions about an element, which wait until they hold."""
    return playwright.expect(locator)


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


def check_link_counts(user: PageUser, findings: Findings, selector: str) -> int:
    """Check that each link shows the total of the list that it opens, and return the number of links."""
    read = "all => all.map((each) => [(each.querySelector('strong') ?? each).innerText, each.hash])"
    links = user.page.locator(selector).evaluate_all(read)
    for text, fragment in links:
        total = findings.send("GET", f"tasks?limit=1&{fragment.partition('?')[2]}")["total"]
        assert re.findall(r"\d+", text) == [str(total)], fragment
    return len(links)


def open_view(user: PageUser, view: str) -> None:
    """Open a view, and wait until it has loaded."""
    user.page.goto(f"{user.url}{view}")
    user.page.locator("h1").first.wait_for()
    user.expect_none(".loading, [aria-busy=true]")


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
