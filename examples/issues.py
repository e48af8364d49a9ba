"""Maintain a GitHub issue for each critical finding: `python issues.py OWNER/REPOSITORY CURSOR_FILE`.

The program follows the event feed. It creates an issue for an open critical finding, copies comments to it, and closes
and reopens it with the finding. It recognizes its issues by a marker in their text. CURSOR_FILE holds its cursor in the
feed: after a stop, start the program again, and it continues there. Without the file it begins with the oldest event,
which is necessary after a restore of the service's database, and still posts nothing twice.

Requires findings-service, FINDINGS_KEY, GITHUB_TOKEN, and for other servers FINDINGS_URL and GITHUB_API_URL.
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from urllib3 import PoolManager, Retry
from urllib3.exceptions import HTTPError

from findings_client import ConfigurationError, Findings, Refused, Unavailable, stoppable
from findings_features.events import Event, Events

parser = argparse.ArgumentParser(description="Maintain a GitHub issue for each critical finding.")
parser.add_argument("repository", metavar="OWNER/REPOSITORY")
parser.add_argument("file", type=Path, metavar="CURSOR_FILE", help="a file for the program's cursor in the event feed")
given = parser.parse_args()
ISSUES = f"{os.environ.get('GITHUB_API_URL', 'https://api.github.com')}/repos/{given.repository}/issues"
headers = {"Authorization": f"Bearer {os.environ.get('GITHUB_TOKEN')}", "User-Agent": "findings-service"}
github = PoolManager(
    headers=headers, retries=Retry(5, read=0, status_forcelist=(429, 503), allowed_methods=None, backoff_factor=1)
)


def ask(method: str, path: str, **body: Any) -> Any:
    """Send a request about issues to GitHub, and return the response's parsed body. Exit if it fails."""
    response = github.request(method, f"{ISSUES}{path}", json=body or None, timeout=30)
    if response.status >= 300:
        sys.exit(f"GitHub returned {response.status} for {method} {ISSUES}{path}: {response.data[:300]!r}")
    return response.json()


def pages(path: str) -> Iterator[Any]:
    """Yield the items of all pages of a GitHub list; `path` must end with `?` or `&`."""
    number = 1
    while items := ask("GET", f"{path}per_page=100&page={number}"):  # the page after the last one is empty
        yield from items
        number += 1


def plain(text: str) -> str:
    """Return a text without mentions of users and without HTML comments, which could be taken for markers."""
    return text.replace("@", "@\u200b").replace("<!--", "<!- -")


def keep(issues: dict[str, Any], event: Event, finding: Any) -> None:
    """Create or update the GitHub issue of a finding after an event of the finding."""
    unfinished = finding.status in ("open", "in_progress")
    if finding.id not in issues and finding.severity == "critical" and unfinished:
        text = plain(f"{finding.project_type}: {finding.rule} in {finding.location}, {finding.target_url}")
        body = f"{text}\n<!-- finding {finding.id} -->"
        issues[finding.id] = ask("POST", "", title=plain(finding.title)[:256], body=body, labels=["finding"])
    if not (issue := issues.get(finding.id)):
        return
    marker, comments = f"<!-- {event.at} -->", f"/{issue['number']}/comments"
    if event.comment and not any(each["body"].endswith(marker) for each in pages(f"{comments}?")):
        ask("POST", comments, body=plain(f"{event.user or event.by}: {event.comment}") + f"\n{marker}")
    if unfinished != (issue["state"] == "open"):
        issues[finding.id] = ask("PATCH", f"/{issue['number']}", state="open" if unfinished else "closed")


try:
    with stoppable(), Findings() as findings:
        matches = ((re.search(r"<!-- finding (\S+) -->\Z", each["body"] or ""), each) for each in pages("?state=all&"))
        issues = {match[1]: issue for match, issue in matches if match}
        link = given.file.read_text() if given.file.exists() else "events?wait=30"
        while True:
            page = findings.request("GET", link).read(Events)
            for event in page.events:
                if event.task:
                    keep(issues, event, event.task)
            if page.next != link:
                link = page.next
                given.file.with_suffix(".new").write_text(link)
                given.file.with_suffix(".new").replace(given.file)
            if not page.events:  # an empty response may come at once
                time.sleep(1)
except (ConfigurationError, Refused, Unavailable, HTTPError) as error:
    sys.exit(str(error))
