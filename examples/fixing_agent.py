"""Fix findings of one of ruff's rules: `python fixing_agent.py CHECKOUT --target REPOSITORY_URL`.

For each finding it changes a line, runs ruff again, commits to a new branch, and verifies the finding as fixed with the
diff as evidence. The scan after the merge resolves it. For a finding in a test it proposes a dismissal. A finding that
it could not fix is verified as inconclusive, with the reason as comment, and left to people.

The findings are those of ruff's SARIF output, stored by `findings-service scan`. Requires git, ruff, findings-service,
FINDINGS_KEY (level agent) and, unless the service is at http://127.0.0.1:8000, FINDINGS_URL.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from findings_client import ClaimedTask, ConfigurationError, Findings, Item, Refused, Unavailable, stoppable

parser = argparse.ArgumentParser(description="Fix findings of one of ruff's rules.")
parser.add_argument("folder", type=Path, metavar="CHECKOUT", help="a git checkout without changes")
parser.add_argument("--target", required=True, metavar="URL", help="the repository's URL, as in the scans")
parser.add_argument("--rule", default="S324", help="default: %(default)s")
parser.add_argument("--branch", default=f"fix-{time.strftime('%Y-%m-%d')}", help="to create; default: %(default)s")
given = parser.parse_args()
if not given.folder.is_dir() or find_spec("ruff") is None:
    sys.exit(f"{given.folder} is not a folder, or ruff is not installed; run: {sys.executable} -m pip install ruff")
RUFF = [sys.executable, "-P", "-m", "ruff", "check", "--no-cache", "--output-format=json"]  # -P: no code of the folder
RUFF += ["--extend-select", given.rule, "--"]


def mend(finding: Item, line: str) -> str:
    """Return the line of a finding without the problem, "" if unsure. This function stands for a request to a model."""
    weak = re.search(r"`(md5|sha1)`$", finding.title)
    call = f"hashlib.{weak[1]}(" if weak else ""
    return line.replace(call, "hashlib.sha256(", 1) if call and call in line else ""


def git(*arguments: str) -> str:
    """Run git in the checkout and return its output. Exit if it fails."""
    done = subprocess.run(["git", *arguments], cwd=given.folder, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else sys.exit(f"git {arguments[0]} failed: {done.stderr.strip()}")


def scan(file: str) -> list[tuple[str, int]]:
    """Run ruff on a file and return the rule and the line of each result. Exit if it fails."""
    done = subprocess.run([*RUFF, file], cwd=given.folder, capture_output=True, text=True, check=False)
    results = json.loads(done.stdout or sys.exit(f"ruff failed: {done.stderr.strip()}"))
    return sorted((each["code"] or "", each["location"]["row"]) for each in results)


def change(finding: Item, file: str, number: int) -> str:
    """Change the line of a finding. If that does not fix it, change the file back and return the reason, else ""."""
    expected, path = scan(file), given.folder / file
    if (given.rule, number) not in expected:
        return f"ruff does not report {given.rule} at this line; scan again."
    lines = path.read_bytes().decode().split("\n")  # keeps the line ends
    if not (line := mend(finding, lines[number - 1])):
        return "The agent does not know a safe replacement for this line."
    lines[number - 1] = line
    path.write_bytes("\n".join(lines).encode())
    expected.remove((given.rule, number))
    if (results := scan(file)) == expected:
        return ""
    git("restore", "--", file)
    return f"With {line.strip()!r}, ruff reports {', '.join(f'{rule} in line {row}' for rule, row in results)}."[:4000]


def fix(findings: Findings, task: ClaimedTask) -> str:
    """Fix a claimed finding or leave it to people, and return which of these was done."""
    file, _, number = (task.location or "").partition(":")
    if "tests" in Path(file).parts or Path(file).name.startswith("test_"):
        findings.propose(task.id, "dismissed", "used_in_tests", f"{file} is a test; the hash protects nothing there.")
        return "proposed to dismiss"
    is_known = file in git("ls-files", "-z").split("\0") and not (given.folder / file).is_symlink()
    problem = f"{task.location} is not a line in the repository."
    if is_known and number.isdecimal():
        problem = change(task, file, int(number))
    if problem:
        task.verify("inconclusive", comment=problem)
        return "left to people"
    git("commit", "--quiet", "--message", f"Fix {given.rule} in {task.location}\n\nFinding: {task.id}", "--", file)
    commit, diff = git("rev-parse", "HEAD").strip(), git("diff", "HEAD~1", "HEAD")[:16_000]
    link = {"rel": "commit", "url": f"{given.target}/commit/{commit}"}
    proof = f"ruff does not report {given.rule} at this line any more, and nothing new in {file}."
    task.verify("fixed", comment=proof, evidence={"type": "diff", "content": diff}, commit=commit, links=[link])
    return "fixed"


try:
    with stoppable(), Findings() as findings:
        if git("status", "--porcelain", "--untracked-files=no"):
            sys.exit(f"{given.folder} has uncommitted changes")
        known = findings.tasks(
            project_type="ruff",
            target_url=given.target,
            main_line=True,
            rule=given.rule,
            status="open",
            assigned=False,
            proposed=False,
            verified=["none", "fixed", "still_present"],  # what was inconclusive is left to people
        )
        ids = [each.id for each in known]
        git("switch", "--quiet", "--create", given.branch)
        done = Counter[str]()
        for task_id in ids:
            with findings.claim(ids=[task_id]) as task:
                done[fix(findings, task) if task else "claimed by others"] += 1
        if not done["fixed"]:
            git("switch", "--quiet", "-")
            git("branch", "--quiet", "--delete", given.branch)
except (ConfigurationError, Refused, Unavailable) as error:
    sys.exit(str(error))
print(", ".join(f"{count} {what}" for what, count in done.items()) or "nothing to do", end=f" ({given.branch})\n")
