"""Report bandit's findings in a folder: `python bandit_agent.py FOLDER --target REPOSITORY_URL`.

Requires bandit, findings-service, FINDINGS_KEY and, unless the service is at http://127.0.0.1:8000, FINDINGS_URL.
"""

import argparse
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from msgspec import to_builtins

from findings_client import ConfigurationError, Findings, Refused, Unavailable, stoppable

TEXT, NUMBER = {"type": "string"}, {"type": "integer", "minimum": 1}
FIELDS = {"testId": TEXT, "confidence": TEXT, "file": TEXT, "line": NUMBER}
SCHEMA = {"properties": FIELDS | {"cwe": NUMBER}, "required": [*FIELDS], "additionalProperties": False}
BANDIT = [sys.executable, "-P", "-m", "bandit", "-r", ".", "-f", "json", "-q"]  # -P: import nothing from the folder

parser = argparse.ArgumentParser(description="Report bandit's findings in a folder.")
parser.add_argument("folder", type=Path)
parser.add_argument("--target", required=True, metavar="URL", help="the repository's URL, part of a finding's identity")
given = parser.parse_args()
if not given.folder.is_dir() or find_spec("bandit") is None:
    sys.exit(f"{given.folder} is not a folder, or bandit is not installed; run: {sys.executable} -m pip install bandit")
try:
    with stoppable(), Findings() as findings:
        findings.register("bandit", label="Bandit", extension_schema=SCHEMA)
        with findings.run("bandit", target_url=given.target, resolve_missing=True) as run:
            done = subprocess.run(BANDIT, cwd=given.folder, capture_output=True, text=True, check=False)
            report = json.loads(done.stdout or sys.exit(f"bandit failed: {done.stderr}"))
            if unread := ", ".join(each["filename"] for each in report["errors"]):  # do not resolve their findings
                sys.exit(f"bandit could not read {unread}")
            for found in report["results"]:
                test, file, line = found["test_id"], found["filename"].removeprefix("./"), found["line_number"]
                location = f"{file}:{line}"
                lines = dict(numbered.partition(" ")[::2] for numbered in found["code"].splitlines())
                fields = {"testId": test, "confidence": found["issue_confidence"].lower(), "file": file, "line": line}
                run.submit(
                    f"{found['issue_text']} ({file})"[:500],
                    found["issue_severity"].lower().replace("undefined", "info"),
                    external_id=run.fingerprint(test, file, lines[str(line)]),
                    rule=test,
                    location=location,
                    tags=[f"CWE-{found['issue_cwe']['id']}"] if found["issue_cwe"] else (),
                    evidence=[{"type": "code", "label": location, "content": found["code"]}],
                    remediation=[f"Read {found['more_info']}", f"Change the code in {file}."],
                    success_criteria=[{"description": f"bandit -t {test} {file} reports nothing", "automatable": True}],
                    extensions=fields | ({"cwe": found["issue_cwe"]["id"]} if found["issue_cwe"] else {}),
                )
except (ConfigurationError, Refused, Unavailable) as error:
    sys.exit(str(error))
for title, counts in {"submitted": to_builtins(run.submitted), **to_builtins(run.summary)}.items():
    print(f"{title:10}", counts if isinstance(counts, int) else ", ".join(f"{n} {name}" for name, n in counts.items()))
