"""Tests of the example agents, with a server: one that reports (with a stub of bandit), and one that fixes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from findings_client import Findings, Item
from tests.clients import API
from tests.documents import HERE, installed_program
from tests.servers import PATIENCE, Server, command, environment, reset_signals

# Files in the scanned folder control what it does.
BANDIT = """
import json, pathlib
if pathlib.Path("broken").exists():
    raise SystemExit("bandit broke")
code = "3 exec(user_input) " + "x" * 300_000 * pathlib.Path("refused").exists()
errors = [{"filename": "./b.py", "reason": "syntax error"}] * pathlib.Path("unread").exists()
print(json.dumps({"errors": errors, "results": 2 * (not pathlib.Path("mended").exists()) * [{
    "test_id": "B102", "filename": "./a.py", "line_number": 3, "code": code, "issue_text": "Use of exec.",
    "issue_severity": "HIGH", "issue_confidence": "HIGH", "issue_cwe": {"id": 78}, "more_info": "https://example.com/",
}]}))
raise SystemExit(1)
"""
FILES = {
    "lib/bandit/__init__.py": "",  # a regular package, so that it takes precedence over an installed bandit
    "lib/bandit/__main__.py": BANDIT,
    "without/sitecustomize.py": "import sys; sys.modules['bandit'] = None\n",
}
Agent = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def agent(tmp_path: Path, server: Server) -> Agent:
    """A function that starts the agent on a folder with the given files, with or without the stub of bandit."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "code").mkdir()

    def start(*files: str, folder: str = "code", lib: str = "lib", **env: str) -> subprocess.Popen[str]:
        for name in files:
            (tmp_path / "code" / name).touch()
        line = [sys.executable, str(HERE / "examples" / "bandit_agent.py"), str(tmp_path / folder)]
        given = server.variables | {"PYTHONPATH": f"{tmp_path / lib}{os.pathsep}{HERE}"} | env
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "preexec_fn": reset_signals}
        return subprocess.Popen([*line, "--target", "https://example.com/"], env=environment(**given), **options)

    return start


def result_of(process: subprocess.Popen[str]) -> tuple[int, str, list[str]]:
    """Wait for an agent, and return its exit code, its output and the lines of its standard error."""
    out, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, out, errors.strip().splitlines()


def runs_of(server: Server) -> list[tuple[str, str | None]]:
    """Return the status of each run of a server, with its reason, newest first."""
    runs = server.request("GET", f"{API}/runs").json["runs"]
    return [(run["status"], run["statusReason"]) for run in runs]


def test_example_agent_recognizes_findings_and_resolves_missing_ones(agent: Agent, server: Server) -> None:
    unchanged = "0 created, 0 updated, 0 reopened, 2 unchanged"
    for files, expected in (
        ((), "2 created, 0 updated, 0 reopened, 0 unchanged"),
        ((), unchanged),
        (("mended",), "2 resolved"),
    ):
        code, out, errors = result_of(agent(*files))
        assert (code, errors, expected in out) == (0, [], True), out
    assert runs_of(server) == [("completed", None)] * 3


MISSING = (
    ({"FINDINGS_KEY": ""}, "FINDINGS_KEY is not set"),
    ({"FINDINGS_KEY": "fts_x"}, "API key"),
    ({"FINDINGS_URL": "http://127.0.0.1:9"}, "no response from http://127.0.0.1:9: Connection refused"),
    ({"FINDINGS_URL": "nowhere"}, "the service's URL: 'nowhere' is not a URL"),
    ({"lib": "without"}, "bandit is not installed"),
    ({"folder": "none"}, "is not a folder"),
)


def test_example_agent_reports_missing_requirements_in_one_line(agent: Agent, server: Server) -> None:
    for options, expected in MISSING:
        code, out, errors = result_of(agent(**options))
        assert (code, out, len(errors)) == (1, "", 1), errors
        assert expected in errors[0]
    assert runs_of(server) == []


FAILING = {"broken": "bandit failed: bandit broke", "unread": "bandit could not read ./b.py", "refused": "2 findings "}


@pytest.mark.parametrize("file", FAILING)
def test_run_fails_if_the_example_agent_fails(agent: Agent, server: Server, file: str) -> None:
    code, _, errors = result_of(agent(file))
    assert (code, len(errors)) == (1, 1), errors
    [(status, reason)] = runs_of(server)
    assert (status, reason.startswith(FAILING[file])) == ("failed", True)


# The agent that fixes findings, with git and ruff

TARGET = "https://git.example/shop"
WEAK = "import hashlib\n\n\ndef tag(text):\n    return hashlib.{}(text).hexdigest()\n"
SHOP = {
    "ruff.toml": "line-length = 45\nlint.select = ['E', 'S324']\n",
    "ruff.py": "raise SystemExit('code of the checkout')\n",
    "sign.py": WEAK.format("md5").replace("\n", "\r\n"),
    "cache.py": WEAK.format("sha1"),
    "named.py": WEAK.format("new").replace("(text).hexdigest()", "('md5', text)"),
    "long.py": WEAK.format("md5").replace("hexdigest()", "hexdigest()[:4]"),  # the fixed line would be too long
    "tests/test_sign.py": WEAK.format("md5"),
}


class Shop:
    """A git repository whose findings ruff reports to a server, and the agent that fixes them."""

    def __init__(self, folder: Path, server: Server) -> None:
        pytest.importorskip("ruff", reason="ruff is not installed")
        self.folder, self.server, self.git_program = folder, server, installed_program("git")
        made = command("keys", "create", "fixer", "--level", "agent", "--db", str(server.db))
        self.variables = server.variables | {"FINDINGS_KEY": made.stdout.strip(), "PYTHONPATH": str(HERE)}
        self.findings = Findings(server.url, server.key)
        for name, text in SHOP.items():
            self.write(name, text)
        self.git("init", "--quiet", "--initial-branch", "main")
        self.git("config", "user.name", "Fixer")
        self.git("config", "user.email", "fixer@shop.example")
        self.commit()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_bytes(text.encode())

    def git(self, *arguments: str) -> str:
        line = [self.git_program, *arguments]
        return subprocess.run(line, cwd=self.folder, capture_output=True, text=True, check=True).stdout

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "A change")

    def scan(self) -> None:
        """Report what ruff finds, as a job of the main line does."""
        line = [sys.executable, "-P", "-m", "ruff", "check", "--no-cache", "--output-format", "sarif", "."]
        report = self.folder.with_name("ruff.sarif")
        report.write_bytes(subprocess.run(line, cwd=self.folder, capture_output=True, check=False).stdout)
        options = ("--target", TARGET, "--fail-on", "none", "--resolve-missing", "--source", str(self.folder))
        done = command("scan", *options, str(report), **self.server.variables)
        assert done.returncode == 0, done.stderr

    def fix(self, *options: str, **env: str) -> tuple[int, str, list[str]]:
        """Run the agent, and return its exit code, its output and the lines of its standard error."""
        line = [sys.executable, str(HERE / "examples" / "fixing_agent.py"), str(self.folder), "--target", TARGET]
        done = subprocess.run(
            [*line, "--branch", "fixes", *options],
            env=environment(**self.variables | env),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr.splitlines()

    def tasks(self, **filters: Any) -> dict[str, Item]:
        """Return the tasks that match filters, by file."""
        return {task.location.partition(":")[0]: task for task in self.findings.tasks(**filters)}

    def entry(self, task: Item) -> Item:
        """Return the latest verification in the history of a task."""
        return [entry for entry in self.findings.history(task.id) if entry.event == "verified"][-1]


@pytest.fixture
def shop(tmp_path: Path, server: Server) -> Shop:
    return Shop(tmp_path / "shop", server)


def test_fixing_agent_fixes_findings_and_leaves_the_others_to_people(shop: Shop) -> None:
    shop.scan()
    code, out, errors = shop.fix()
    assert (code, errors) == (0, [])
    counts = out.removesuffix(" (fixes)\n").split(", ")
    assert sorted(counts) == ["1 proposed to dismiss", "2 fixed", "2 left to people"]
    fixed = shop.tasks(verified="fixed", status="in_progress", claimed=False)
    assert {*fixed} == {"sign.py", "cache.py"}
    for file, weak in (("sign.py", "md5"), ("cache.py", "sha1")):
        task, entry = fixed[file], shop.entry(fixed[file])
        assert (shop.folder / file).read_bytes() == SHOP[file].replace(weak, "sha256").encode()
        assert task.links == [{"rel": "commit", "url": f"{TARGET}/commit/{task.verification.commit}"}]
        assert shop.git("show", "--format=%b", "--name-only", task.verification.commit).split()[-2:] == [task.id, file]
        added = [line.strip() for line in entry.evidence[0].content.splitlines() if line.startswith("+ ")]
        assert (added, entry.by) == (["+    return hashlib.sha256(text).hexdigest()"], "fixer")
    left = shop.tasks(status="open")
    assert {file: shop.entry(task).comment for file, task in left.items() if not task.proposal} == {
        "named.py": "The agent does not know a safe replacement for this line.",
        "long.py": "With 'return hashlib.sha256(text).hexdigest()[:4]', ruff reports E501 in line 5.",
    }
    assert left["tests/test_sign.py"].proposal.reason == "used_in_tests"
    assert (shop.git("status", "--porcelain"), shop.git("log", "--format=%s", "main..fixes").count("Fix S324")) == (
        "",
        2,
    )


def test_scan_after_the_merge_resolves_what_is_fixed(shop: Shop) -> None:
    shop.scan()
    assert shop.fix()[0] == 0
    shop.git("switch", "--quiet", "main")
    shop.git("merge", "--quiet", "fixes")
    shop.write("cache.py", SHOP["cache.py"])  # the fix is lost
    shop.commit()
    shop.scan()
    assert [*shop.tasks(status="resolved")] == ["sign.py"]
    assert [*shop.tasks(verified="fixed", status="in_progress")] == ["cache.py"]
    before = {task.id: task.etag for task in shop.findings.tasks()}
    assert shop.fix("--branch", "second")[:2] == (0, "nothing to do (second)\n")
    assert {task.id: task.etag for task in shop.findings.tasks()} == before
    assert (shop.git("branch", "--show-current"), shop.git("branch", "--list", "second")) == ("main\n", "")
    shop.findings.verify(
        shop.tasks(verified="fixed", status="in_progress")["cache.py"].id, "still_present", comment="!"
    )
    assert shop.fix("--branch", "third")[:2] == (0, "1 fixed (third)\n")


def test_fixing_agent_changes_nothing_outside_of_the_repository(shop: Shop) -> None:
    outside = shop.folder.with_name("outside.py")
    outside.write_text(WEAK.format("md5"))
    (shop.folder / "link.py").symlink_to(outside)
    shop.commit()
    with shop.findings as findings:
        findings.register("ruff")
        with findings.run("ruff", target_url=TARGET) as run:
            for location in ("../outside.py:5", f"{outside}:5", "link.py:5", "sign.py", "sign.py:4", "sign.py:99"):
                run.submit("Weak hash: `md5`", "high", rule="S324", location=location)
    assert shop.fix()[:2] == (0, "6 left to people (fixes)\n")
    assert (outside.read_text(), shop.git("status", "--porcelain")) == (WEAK.format("md5"), "")


def test_fixing_agent_reports_missing_requirements_in_one_line(shop: Shop) -> None:
    shop.write("sitecustomize.py", "import sys; sys.modules['ruff'] = None\n")
    for options, variables, expected in (
        ((), {"FINDINGS_KEY": ""}, "FINDINGS_KEY is not set"),
        ((), {"FINDINGS_KEY": "fts_x"}, "API key"),
        ((), {"PYTHONPATH": f"{shop.folder}{os.pathsep}{HERE}"}, "ruff is not installed"),
        (("--branch", "main"), {}, "git switch failed: fatal: a branch named 'main' already exists"),
    ):
        code, out, errors = shop.fix(*options, **variables)
        assert (code, out, len(errors)) == (1, "", 1), errors
        assert expected in errors[0]
    shop.write("sign.py", "")
    assert shop.fix() == (1, "", [f"{shop.folder} has uncommitted changes"])
