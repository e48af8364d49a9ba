"""Report what bandit finds in a folder: `python bandit_agent.py FOLDER --target REPOSITORY_URL`.

Needs bandit from PyPI, FINDINGS_KEY and, unless the service is at http://127.0.0.1:8000, FINDINGS_URL. A finding is
known again by its test, its file and its line of code, wherever in the file that line has moved.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

TEXT, LINE = {"type": "string"}, {"type": "integer", "minimum": 1}
SCHEMA = {
    "properties": {"testId": TEXT, "cwe": LINE, "confidence": TEXT, "file": TEXT, "line": LINE},
    "required": ["testId", "confidence", "file", "line"],  # some tests have no CWE
    "additionalProperties": False,
}


def call(method: str, path: str, body: dict[str, Any]) -> Any:
    """Return the service's answer; one that is an error ends the agent with the problem details."""
    url = f"{os.environ.get('FINDINGS_URL', 'http://127.0.0.1:8000')}/api/v1/{path}"
    headers = {"Authorization": f"Bearer {os.environ['FINDINGS_KEY']}", "Content-Type": "application/json"}
    try:
        with urlopen(Request(url, json.dumps(body).encode(), headers, method=method), timeout=60) as response:
            return json.load(response)
    except HTTPError as error:
        sys.exit(f"{method} {url}: {error.read().decode()}")


def scan(folder: str) -> list[dict[str, Any]]:
    """Return bandit's results. It runs inside the folder, so that paths are relative, and -P imports nothing there."""
    command = [sys.executable, "-P", "-m", "bandit", "-r", ".", "-f", "json", "-q"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    results: list[dict[str, Any]] = json.loads(done.stdout or sys.exit(done.stderr))["results"]
    return sorted(results, key=lambda result: (result["filename"], result["line_number"]))


def task(result: dict[str, Any], seen: Counter[str]) -> dict[str, Any]:
    """Turn one result of bandit's into a task."""
    test, file, number = result["test_id"], result["filename"].removeprefix("./"), result["line_number"]
    code = dict(line.partition(" ")[::2] for line in result["code"].splitlines())[str(number)]
    identity = hashlib.sha256(f"{test} {file} {' '.join(code.split())}".encode()).hexdigest()[:24]
    seen[identity] += 1  # the same line twice is two findings
    extensions = {"testId": test, "confidence": result["issue_confidence"].lower(), "file": file, "line": number}
    return {
        "externalId": f"{test}-{identity}-{seen[identity]}",
        "title": f"{result['issue_text']} ({file})"[:500],
        "severity": {"HIGH": "high", "MEDIUM": "medium", "LOW": "low"}.get(result["issue_severity"], "info"),
        "evidence": [{"type": "code", "label": f"{file}:{number}", "content": result["code"]}],
        "remediation": [{"instruction": f"Read {result['more_info']}"}, {"instruction": f"Change the code in {file}."}],
        "successCriteria": [{"description": f"bandit -t {test} {file} reports nothing", "automatable": True}],
        "extensions": extensions | ({"cwe": result["issue_cwe"]["id"]} if result["issue_cwe"] else {}),
    }


def main() -> None:
    """Examine a folder in one run, which is failed when anything goes wrong."""
    parser = argparse.ArgumentParser(description="Report what bandit finds in a folder.")
    parser.add_argument("folder")
    parser.add_argument("--target", required=True, metavar="URL", help="the repository; part of a finding's identity")
    options = parser.parse_args()
    call("POST", "project-types", {"name": "bandit", "label": "Bandit", "extensionSchema": SCHEMA})
    run = f"runs/{call('POST', 'runs', {'projectType': 'bandit', 'targetUrl': options.target})['id']}"
    try:
        seen: Counter[str] = Counter()
        tasks = [task(result, seen) for result in scan(options.folder)]
        for start in range(0, len(tasks), 1000):
            call("POST", f"{run}/tasks", {"tasks": tasks[start : start + 1000]})
    except BaseException as error:
        call("PATCH", run, {"status": "failed", "statusReason": str(error)[:1000]})
        raise
    done = call("PATCH", run, {"status": "completed"})
    for title, counts in (("submitted", done["submitted"]), *done["summary"].items()):
        print(f"{title:10}", counts if isinstance(counts, int) else ", ".join(f"{n} {k}" for k, n in counts.items()))


if __name__ == "__main__":
    main()
