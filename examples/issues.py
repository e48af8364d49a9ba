"""Keep GitHub issues of critical findings: `python issues.py OWNER/REPOSITORY PLACE`.

It follows the feed of events. A critical finding that is open gets an issue, what people write about it a comment, and
the issue is closed and opened again with the finding. Issues are known by a mark in their text, and where it stands in
the feed is in the file PLACE: whenever it ends, start it again, and it goes on there. Without that file it begins with
the oldest event, as it must after a restore of the service's database, and says nothing twice all the same.

Needs findings-service, FINDINGS_KEY, GITHUB_TOKEN, and for services elsewhere FINDINGS_URL and GITHUB_API_URL.
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

parser = argparse.ArgumentParser(description="Keep GitHub issues of critical findings.")
parser.add_argument("repository", metavar="OWNER/REPOSITORY")
parser.add_argument("place", type=Path, metavar="PLACE", help="a file that keeps where it stands in the feed")
given = parser.parse_args()
ISSUES = f"{os.environ.get('GITHUB_API_URL', 'https://api.github.com')}/repos/{given.repository}/issues"
headers = {"Authorization": f"Bearer {os.environ.get('GITHUB_TOKEN')}", "User-Agent": "findings-service"}
github = PoolManager(
    headers=headers, retries=Retry(5, read=0, status_forcelist=(429, 503), allowed_methods=None, backoff_factor=1)
)


def ask(method: str, path: str, **body: Any) -> Any:
    """Return what GitHub answers to a request about issues."""
    answer = github.request(method, f"{ISSUES}{path}", json=body or None, timeout=30)
    if answer.status >= 300:
        sys.exit(f"GitHub answered {answer.status} to {method} {ISSUES}{path}: {answer.data[:300]!r}")
    return answer.json()


def pages(path: str) -> Iterator[Any]:
    """Give what is on all pages of a list."""
    number = 1
    while found := ask("GET", f"{path}per_page=100&page={number}"):  # behind the last page is an empty one
        yield from found
        number += 1


def plain(text: str) -> str:
    """Return a text that mentions nobody, and has no mark of ours."""
    return text.replace("@", "@\u200b").replace("<!--", "<!- -")


def keep(issues: dict[str, Any], event: Event, finding: Any) -> None:
    """Bring the issue of a finding up to date with an event."""
    unfinished = finding.status in ("open", "in_progress")
    if finding.id not in issues and finding.severity == "critical" and unfinished:
        text = plain(f"{finding.project_type}: {finding.rule} in {finding.location}, {finding.target_url}")
        body = f"{text}\n<!-- finding {finding.id} -->"
        issues[finding.id] = ask("POST", "", title=plain(finding.title)[:256], body=body, labels=["finding"])
    if not (issue := issues.get(finding.id)):
        return
    mark, comments = f"<!-- {event.at} -->", f"/{issue['number']}/comments"
    if event.comment and not any(each["body"].endswith(mark) for each in pages(f"{comments}?")):
        ask("POST", comments, body=plain(f"{event.user or event.by}: {event.comment}") + f"\n{mark}")
    if unfinished != (issue["state"] == "open"):
        issues[finding.id] = ask("PATCH", f"/{issue['number']}", state="open" if unfinished else "closed")


try:
    with stoppable(), Findings() as findings:
        marked = ((re.search(r"<!-- finding (\S+) -->\Z", each["body"] or ""), each) for each in pages("?state=all&"))
        issues = {mark[1]: issue for mark, issue in marked if mark}
        link = given.place.read_text() if given.place.exists() else "events?wait=30"
        while True:
            page = findings.request("GET", link).read(Events)
            for event in page.events:
                if event.task:
                    keep(issues, event, event.task)
            if page.next != link:
                link = page.next
                given.place.with_suffix(".new").write_text(link)
                given.place.with_suffix(".new").replace(given.place)
            if not page.events:  # it may have come at once
                time.sleep(1)
except (ConfigurationError, Refused, Unavailable, HTTPError) as error:
    sys.exit(str(error))
