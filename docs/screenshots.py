"""Take the README's screenshots of the page, with the sample data of `findings-service serve --demo`.

Run it in a virtual environment with the `test` extra, on a machine with Chromium: `python docs/screenshots.py`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).resolve().parent
SERVE = [sys.executable, "-m", "findings_service", "serve", "--demo", "--port", "0"]
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FINDING = "The search field has no label"


def show_list(page: Page, url: str) -> None:
    """Open the list of unresolved findings of the main branch, with one row selected by the keyboard."""
    page.goto(f"{url}#/findings")
    page.locator(".findings").wait_for()
    page.keyboard.press("j")


def show_finding(page: Page, url: str) -> None:
    """Open one finding that has a screenshot as evidence."""
    show_list(page, url)
    page.get_by_text(FINDING).click()
    page.locator(".history").wait_for()


def take_screenshots(address: str) -> None:
    """Save the list in the light theme, and a finding in the dark theme.

    :param address: the page's address with the key in its fragment.
    """
    url = address.partition("#")[0]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name, theme, show in (("findings", "light", show_list), ("finding", "dark", show_finding)):
            page = browser.new_page(viewport={"width": 1200, "height": 720}, color_scheme=theme)  # type: ignore[arg-type]
            page.goto(address)
            page.get_by_role("button", name="Account").wait_for()
            show(page, url)
            page.wait_for_timeout(500)  # milliseconds, for pictures to be decoded
            page.screenshot(path=HERE / f"{name}.png")
        browser.close()


def main() -> None:
    """Serve the sample data, and take the screenshots."""
    server = subprocess.Popen(SERVE, cwd=HERE.parent, stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr or ():
            if address := re.search(r"http\S+#key=\S+", line):
                take_screenshots(address[0])
                break
    finally:
        server.terminate()
        server.communicate()


if __name__ == "__main__":
    main()
