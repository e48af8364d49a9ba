"""Report what bandit finds in a folder: `python bandit_agent.py FOLDER --target REPOSITORY_URL`.

Needs bandit from PyPI, FINDINGS_KEY and, unless the service is at http://127.0.0.1:8000, FINDINGS_URL. A finding is
known again by its test, its file and its line of code, wherever in the file that line has moved.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, NoReturn
from urllib.error import HTTPError
from urllib.request import Request, urlopen

URL = os.environ.get("FINDINGS_URL") or "http://127.0.0.1:8000"
KEY = os.environ.get("FINDINGS_KEY", "")
AGAIN = (1, 2, 4, 8)  # seconds to wait before each new try of what must not get lost
HANG_UP = getattr(signal, "SIGHUP", signal.SIGTERM)  # Windows has none
STOPS = [signal.SIGINT, signal.SIGTERM, *([HANG_UP] if signal.getsignal(HANG_UP) is signal.SIG_DFL else [])]  # no nohup
TEXT, LINE = {"type": "string"}, {"type": "integer", "minimum": 1}
SCHEMA = {
    "properties": {"testId": TEXT, "cwe": LINE, "confidence": TEXT, "file": TEXT, "line": LINE},
    "required": ["testId", "confidence", "file", "line"],  # some tests have no CWE
    "additionalProperties": False,
}


def call(method: str, path: str, body: dict[str, Any], same: str = "", waits: Sequence[float] = ()) -> Any:
    """Return the service's answer; what it refuses ends the agent with the problem details.

    The service does a POST once, however often it comes with the same Idempotency-Key.
    """
    same = same or str(uuid.uuid4())
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    headers |= {"Idempotency-Key": same} if method == "POST" else {}
    try:
        request = Request(f"{URL}/api/v1/{path}", json.dumps(body).encode(), headers, method=method)
        with urlopen(request, timeout=30) as response:
            return json.load(response)
    except HTTPError as error:
        passing, said = error.code == 503, f"{method} {URL}/api/v1/{path}: {error.read().decode()}"
    except (OSError, HTTPException, ValueError) as error:
        passing, said = True, f"There is no service at {URL} ({error}): start it, or say where it is with FINDINGS_URL."
    if not passing or not waits:
        sys.exit(said)
    time.sleep(waits[0])
    return call(method, path, body, same, waits[1:])


def scan(folder: str) -> list[dict[str, Any]]:
    """Return bandit's results. It runs inside the folder, so that paths are relative, and -P imports nothing there."""
    command = [sys.executable, "-P", "-m", "bandit", "-r", ".", "-f", "json", "-q"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    results: list[dict[str, Any]] = json.loads(done.stdout or sys.exit(f"bandit failed: {done.stderr}"))["results"]
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


def stop(number: int, _: object) -> NoReturn:
    """End the agent as an error does, so that its run ends too."""
    sys.exit(f"stopped by {signal.Signals(number).name}")


def report(folder: str, target: str) -> Any:
    """Examine a folder in one run, and return the run as it ended: failed, when anything goes wrong."""
    start, same = {"projectType": "bandit", "targetUrl": target}, str(uuid.uuid4())
    run = ""
    try:
        run = call("POST", "runs", start, same)["id"]
        seen: Counter[str] = Counter()
        tasks = [task(result, seen) for result in scan(folder)]
        for first in range(0, len(tasks), 1000):
            call("POST", f"runs/{run}/tasks", {"tasks": tasks[first : first + 1000]}, waits=AGAIN)
        return call("PATCH", f"runs/{run}", {"status": "completed"}, waits=AGAIN)
    except BaseException as error:
        for name in STOPS:
            signal.signal(name, signal.SIG_IGN)
        run = run or call("POST", "runs", start, same)["id"]  # it may have been started all the same
        call("PATCH", f"runs/{run}", {"status": "failed", "statusReason": str(error)[:1000]}, waits=AGAIN)
        raise


def main() -> None:
    """Report what bandit finds, or say in one line what is missing for that."""
    parser = argparse.ArgumentParser(description="Report what bandit finds in a folder.")
    parser.add_argument("folder")
    parser.add_argument("--target", required=True, metavar="URL", help="the repository; part of a finding's identity")
    options = parser.parse_args()
    if not KEY:
        sys.exit("FINDINGS_KEY is not set: export the service's first key, or one of `findings-service keys create`.")
    if not Path(options.folder).is_dir():
        sys.exit(f"There is no folder {options.folder}.")
    if importlib.util.find_spec("bandit") is None:
        sys.exit(f"bandit is not installed: {sys.executable} -m pip install bandit")
    for name in STOPS:
        signal.signal(name, stop)
    call("POST", "project-types", {"name": "bandit", "label": "Bandit", "extensionSchema": SCHEMA})
    done = report(options.folder, options.target)
    for title, counts in (("submitted", done["submitted"]), *done["summary"].items()):
        print(f"{title:10}", counts if isinstance(counts, int) else ", ".join(f"{n} {k}" for k, n in counts.items()))


if __name__ == "__main__":
    main()
