"""Make the README's pictures of the page: of what bandit and ruff find in Werkzeug, which is installed with Flask.

Run it in a virtual environment with the `test` extra, where Chromium is installed: `python docs/screenshots.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import werkzeug
from playwright.sync_api import sync_playwright

HERE = Path(__file__).resolve().parent
SERVICE = [sys.executable, "-m", "findings_service"]
SOURCE = Path(werkzeug.__file__).parent
TARGET = "https://github.com/pallets/werkzeug"
KEY = "a-key-for-pictures"
RULES = "ARG,B,C90,PERF,S,SIM,TRY"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def scan(folder: Path, url: str) -> None:
    """Report what both scanners find."""
    programs = Path(sysconfig.get_path("scripts"))
    lines: dict[str, Sequence[str | Path]] = {
        "bandit": ("bandit", "-q", "-r", "werkzeug", "-f", "sarif", "-o", folder / "bandit.sarif"),
        "ruff": (
            *("ruff", "check", "--isolated", "--select", RULES, "--output-format", "sarif"),
            *("--output-file", folder / "ruff.sarif", "werkzeug"),
        ),
    }
    for name, (program, *arguments) in lines.items():
        subprocess.run([programs / program, *arguments], cwd=SOURCE.parent, check=False)
        options = ["--url", url, "--type", name, "--target", TARGET, "--branch", "", "--source", SOURCE.parent]
        line = [*SERVICE, "scan", *options, folder / f"{name}.sarif"]
        environment = {**os.environ, "FINDINGS_KEY": KEY}
        subprocess.run(line, cwd=HERE.parent, env=environment, stdout=subprocess.DEVNULL, check=False)


def ask(url: str, method: str = "GET", body: Any = None) -> Any:
    """Send a request to the API, and return its answer."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method)) as response:
        return json.load(response)


def triage(url: str) -> str:
    """Decide about some of the findings, and return the id of one."""
    tasks = ask(f"{url}/api/v1/tasks?projectType=bandit&sort=severity&limit=12")["tasks"]
    decisions = (
        {"status": "in_progress"},
        {"assignee": "Ada"},
        {
            "status": "in_progress",
            "assignee": "Grace",
            "comment": "I look at who calls this.",
        },
    )
    for number, task in enumerate(tasks[1:8]):
        ask(f"{url}/api/v1/tasks/{task['id']}", "PATCH", decisions[number % 3])
    dismissed = {"status": "dismissed", "reason": "used_in_tests", "ids": [task["id"] for task in tasks[8:]]}
    ask(f"{url}/api/v1/tasks", "PATCH", dismissed)
    return str(tasks[3]["id"])


def take(url: str, task_id: str) -> None:
    """Take the pictures: the list in the light theme, and a finding in the dark one."""
    places = {
        ("findings", "light"): "#/findings?status=open,in_progress&projectType=bandit&sort=severity",
        ("finding", "dark"): f"#/findings/{task_id}",
    }
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for (name, theme), place in places.items():
            page = browser.new_page(viewport={"width": 1200, "height": 720}, color_scheme=theme)  # type: ignore[arg-type]
            page.goto(f"{url}/{place}")
            page.get_by_label("API key").fill(KEY)
            page.get_by_role("button", name="Sign in").click()
            page.locator(".findings, .history").wait_for()
            page.keyboard.press("j")
            page.wait_for_timeout(500)
            page.screenshot(path=HERE / f"{name}.png")
        browser.close()


def main() -> None:
    """Serve a database in a folder that goes again, and fill it for the pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        line = [*SERVICE, "serve", "--port", "8397", "--db", str(folder / "pictures.db")]
        environment = {**os.environ, "FINDINGS_API_KEY": KEY}
        server = subprocess.Popen(line, cwd=HERE.parent, env=environment, stderr=subprocess.DEVNULL)
        try:
            time.sleep(3)
            url = "http://127.0.0.1:8397"
            scan(folder, url)
            take(url, triage(url))
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
