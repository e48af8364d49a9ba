"""What a CI job may count on: the commands scan, gate and export, as a shell calls them."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import pty
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Sequence
from contextlib import chdir, closing, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from test_client import Fake, Tune, away, fake, tune
from test_sarif import log_of, log_with, run_of

import findings_service
from findings_adapters import ci as ci_module
from findings_adapters import scan_config
from findings_adapters.ci import place_of
from findings_adapters.client import Local, Service
from findings_features.exports import ExportQuery
from tests.engines import ABSENT, ON_POSTGRES, db_at, locked, placed
from tests.support import API, HERE, PATIENCE, PROGRAM, Server, cases, environment, heed_signals, others_database

__all__ = ["away", "fake", "tune"]

TARGET = "https://git.example/shop"


def result(text: str = "Use of eval", *, file: str | None = "src/app.py", line: int = 3, **more: Any) -> dict[str, Any]:
    """Return a result of a scanner."""
    place = {"artifactLocation": {"uri": file}, "region": {"startLine": line, "snippet": {"text": text}}}
    there = {"locations": [{"physicalLocation": place}]} if file else {}
    return {"ruleId": "R1", "level": "error", "message": {"text": text}} | there | more


@dataclass
class Job:
    """A folder in which commands run, without any variables of the machine's platform or settings."""

    folder: Path

    def write(self, file: str, *results: Any, **run: Any) -> str:
        """Write a document of a scanner and return the file's name."""
        return self.write_log(file, log_with(*results, **{"name": "demo"} | run))

    def write_log(self, file: str, log: Any) -> str:
        """Write any document and return the file's name."""
        (self.folder / file).write_text(json.dumps(log), "utf-8")
        return file

    def line(self, *words: str, **env: str) -> tuple[list[str], dict[str, Any]]:
        """Return how to start a command in a process of its own."""
        surroundings = environment(PYTHONPATH=str(HERE), **self.settings(env))
        options = {"cwd": self.folder, "env": surroundings, "encoding": "utf-8", "preexec_fn": heed_signals}
        return [*PROGRAM, *placed(words, self.folder)], options

    @property
    def db(self) -> Path:
        """What stands for the database that a command takes where none is named."""
        return self.folder / "findings.db"

    def settings(self, env: dict[str, str]) -> dict[str, str]:
        """Return the variables of a command: with its database, where that is no file of its folder."""
        return {"FINDINGS_DB": db_at(self.db), **env} if ON_POSTGRES else env

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, in this process, which is quick."""
        out, err, code = (*(io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2)), 0)
        surroundings = mock.patch.dict(os.environ, environment(**self.settings(env)), clear=True)
        with chdir(self.folder), surroundings, redirect_stdout(out), redirect_stderr(err):
            try:
                findings_service.main(placed(words, self.folder), prog_name="findings-service")
            except SystemExit as end:
                code = end.code
        told = [each.flush() or each.buffer.getvalue().decode().replace("\r\n", "\n") for each in (out, err)]
        return subprocess.CompletedProcess(words, code, *told)

    def scan(self, *words: str, code: int | None = None, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run a scan, which must end with a code if one is given."""
        done = self.run("scan", *words, **how)
        assert code is None or done.returncode == code, done.stderr + done.stdout
        return done

    def judge(self, *words: str, **how: Any) -> dict[str, Any]:
        """Run a scan and return what it says as JSON."""
        return json.loads(self.scan(*words, "--format", "json", **how).stdout)

    def service(self, *, new: bool = False) -> Service:
        """Return the service over the job's database."""
        return Service(Local(db_at(self.db), new=new))

    def read(self, path: str) -> Any:
        """Return what the service answers."""
        with self.service() as service:
            return service.request("GET", path).read(dict)

    def tasks(self) -> dict[str, dict[str, Any]]:
        """Return all tasks by their titles."""
        return {task["title"]: task for task in self.read("tasks?view=full&limit=200")["tasks"]}

    def last_run(self) -> dict[str, Any]:
        """Return the run that was started last."""
        return self.read("runs?limit=1")["runs"][0]

    def triage(self, title: str, status: str) -> None:
        """Give a task a status."""
        with self.service() as service:
            service.request("PATCH", f"tasks/{self.tasks()[title]['id']}", {"status": status})


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, *said: str) -> None:
    """Check that a command ended with a code and one line that says why."""
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert all(text in done.stderr for text in said), done.stderr


# Where a scan takes place

GITHUB = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "acme/shop",
    "GITHUB_SHA": "abc123",
    "GITHUB_RUN_ID": "77",
    "GITHUB_ACTOR": "ada",
    "GITHUB_REF_TYPE": "branch",
}
SHOP = {"full_name": "acme/shop", "default_branch": "trunk"}
EVES = {"full_name": "eve/shop"}


def pull(ref: str = "fix", repo: Any = ..., label: str = "acme:fix") -> dict[str, Any]:
    """Return what GitHub tells of a pull request."""
    head = {"ref": ref, "label": label, "repo": {"full_name": "acme/shop"} if repo is ... else repo}
    return {"pull_request": {"head": head, "base": {"repo": SHOP}}}


def on_github(event: str, name: str = "trunk", told: Any = None, **env: str) -> tuple[dict[str, str], Any]:
    """Return the variables and the event of a workflow."""
    return GITHUB | {"GITHUB_EVENT_NAME": event, "GITHUB_REF_NAME": name} | env, told


def finished(branch: str, event: str, owner: str = "acme") -> dict[str, Any]:
    """Return what GitHub tells when a workflow has ended."""
    home = {"full_name": f"{owner}/shop", "owner": {"login": owner}}
    return {"workflow_run": {"head_branch": branch, "event": event, "head_repository": home}}


GITLAB = {
    "GITLAB_CI": "true",
    "CI_PROJECT_ID": "7",
    "CI_PROJECT_URL": "https://gitlab.com/acme/shop",
    "CI_DEFAULT_BRANCH": "trunk",
    "CI_COMMIT_SHA": "abc123",
    "CI_PIPELINE_URL": "https://gitlab.com/acme/shop/-/pipelines/77",
    "GITLAB_USER_LOGIN": "ada",
}
MERGE_REQUEST = {"CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": "fix", "CI_COMMIT_REF_NAME": "fix"}
FORK = MERGE_REQUEST | {"CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "9"}

BRANCHES = cases(
    nowhere=(({}, None), None),
    github_push_to_default=(on_github("push"), None),
    github_push=(on_github("push", "fix"), "fix"),
    github_by_hand=(on_github("workflow_dispatch"), None),
    github_schedule=(on_github("schedule", told={}), None),
    github_tag_named_like_the_default=(on_github("push", GITHUB_REF_TYPE="tag"), "trunk"),
    github_pull=(on_github("pull_request", "5/merge", pull(), GITHUB_HEAD_REF="fix"), "fix"),
    github_pull_from_default=(on_github("pull_request", "5/merge", pull("trunk")), "trunk"),
    github_head_ref_alone=(on_github("push", told={}, GITHUB_HEAD_REF="fix"), "fix"),
    github_fork=(on_github("pull_request", "5/merge", pull(repo=EVES, label="eve:fix")), "eve:fix"),
    github_fork_that_is_gone=(on_github("pull_request", "5/merge", pull(repo=None, label="eve:fix")), "eve:fix"),
    github_comment_on_pull=(on_github("issue_comment", told={"issue": {"number": 5, "pull_request": {}}}), "pull/5"),
    github_comment_on_issue=(on_github("issue_comment", told={"issue": {"number": 5}}), None),
    github_after_push=(on_github("workflow_run", told=finished("trunk", "push")), None),
    github_after_pull=(on_github("workflow_run", told=finished("fix", "pull_request")), "fix"),
    github_after_fork=(on_github("workflow_run", told=finished("trunk", "pull_request", "eve")), "eve:trunk"),
    github_queue=(on_github("merge_group", "gh-readonly-queue/trunk/pr-5"), "gh-readonly-queue/trunk/pr-5"),
    github_long=(on_github("push", "x" * 300), "x" * 255),
    github_strange=(on_github("push", "a\x1b[31mb\x7f"), "a[31mb"),
    gitlab_default=((GITLAB | {"CI_COMMIT_BRANCH": "trunk"}, None), None),
    gitlab_branch=((GITLAB | {"CI_COMMIT_BRANCH": "fix"}, None), "fix"),
    gitlab_tag=((GITLAB | {"CI_COMMIT_TAG": "v1.0"}, None), "v1.0"),
    gitlab_request=((GITLAB | MERGE_REQUEST | {"CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "7"}, None), "fix"),
    gitlab_fork=((GITLAB | FORK | {"CI_MERGE_REQUEST_SOURCE_PROJECT_PATH": "eve/shop"}, None), "eve/shop:fix"),
    gitlab_fork_without_path=((GITLAB | FORK, None), "9:fix"),
    gitlab_child=((GITLAB | {"CI_COMMIT_REF_NAME": "trunk"}, None), "trunk"),
)


@pytest.mark.parametrize(("given", "branch"), BRANCHES)
def test_the_branch_is_read_from_the_platforms_variables(
    tmp_path: Path, given: tuple[dict[str, str], Any], branch: str | None
) -> None:
    env, told = given
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"repository": SHOP} | (told or {})))
    place = place_of(env | ({"GITHUB_EVENT_PATH": str(event)} if "GITHUB_ACTIONS" in env else {}))
    assert (place.branch, place.unknown) == (branch, "")


def test_a_guess_never_touches_the_main_line(tmp_path: Path) -> None:
    env = on_github("push", "main")[0] | {"GITHUB_EVENT_PATH": str(tmp_path / "event.json")}
    for event in (None, "", "{", "[]", '"x"', "{}", '{"repository": {"default_branch": 5}}'):
        if event is not None:
            (tmp_path / "event.json").write_text(event)
        assert (place_of(env).branch, bool(place_of(env).unknown)) == ("main", True), event


def test_a_branch_without_a_name_is_asked_for(job: Job) -> None:
    for event in ("push", "pull_request", "workflow_run"):
        done = job.scan(job.write("a.sarif"), GITHUB_ACTIONS="true", GITHUB_EVENT_NAME=event)
        assert_one_line(done, 2, "do not name the branch", "--branch")
    assert list(job.folder.iterdir()) == [job.folder / "a.sarif"]


def test_target_and_metadata_are_read_from_the_platforms_variables() -> None:
    home = "https://github.com/acme/shop"
    told = {"repository": home, "commit": "abc123", "pipeline": f"{home}/actions/runs/77", "actor": "ada"}
    assert (place_of(GITHUB).target, place_of(GITHUB).metadata) == (home, told)
    for bare in ({"GITHUB_EVENT_NAME": "push"}, {"CI_PROJECT_ID": "7"}, {}):
        assert (place_of(bare).target, place_of(bare).metadata) == (None, {})


PROVENANCE = {"repositoryUri": "https://ada:sec@ret@code.example.com/shop?token=secret", "revisionId": "abc123"}
OF_THE_DOCUMENT = {"repository": "https://code.example.com/shop", "commit": "abc123"}
SOURCES = cases(
    whole=([PROVENANCE], OF_THE_DOCUMENT),
    second=([None, {"revisionId": "abc"}, PROVENANCE], OF_THE_DOCUMENT),
    ssh=([PROVENANCE | {"repositoryUri": "ssh://code.example.com/shop"}], {}),
    no_commit=([PROVENANCE | {"revisionId": "\0 x"}, {"repositoryUri": PROVENANCE["repositoryUri"]}], {}),
    no_list=("x", {}),
    none=([], {}),
)


@pytest.mark.parametrize(("provenance", "told"), SOURCES)
def test_a_document_tells_the_commit_that_no_platform_does(job: Job, provenance: Any, told: dict[str, str]) -> None:
    job.scan(job.write("a.sarif", versionControlProvenance=provenance), code=0)
    assert job.last_run()["metadata"] == told


def test_a_pattern_tells_where_the_source_is(job: Job) -> None:
    pattern = "https://code.example.com/{path}?at={commit}#{line}"
    job.scan(job.write("a.sarif"), "--source-url", pattern, code=0)
    assert job.last_run()["metadata"] == {"sourceUrl": pattern}
    assert_one_line(job.scan("a.sarif", "--source-url", "javascript:{path}"), 2, "--source-url", "{path}")


def test_a_run_has_what_the_platform_tells_of_it_unless_it_is_said(job: Job) -> None:
    env = GITLAB | {"CI_COMMIT_BRANCH": "fix"}
    job.scan(job.write("a.sarif", versionControlProvenance=[PROVENANCE]), code=0, **env)
    run = job.last_run()
    assert (run["branch"], run["targetUrl"], run["projectType"]) == ("fix", GITLAB["CI_PROJECT_URL"], "demo")
    told = {"commit": "abc123", "pipeline": GITLAB["CI_PIPELINE_URL"], "actor": "ada"}
    assert run["metadata"] == told | {"repository": GITLAB["CI_PROJECT_URL"]}
    job.scan("a.sarif", "--branch", "", "--target", TARGET, "--type", "web", code=0, **env)
    run = job.last_run()
    assert (run["branch"], run["targetUrl"], run["projectType"]) == (None, TARGET, "web")
    job.scan("a.sarif", "--branch", "other", "--target", "", code=0, **env)
    run = job.last_run()
    assert (run["branch"], run["targetUrl"], run["metadata"]["actor"]) == ("other", None, "ada")


def test_what_the_platform_leaves_open_is_noted(job: Job) -> None:
    for env, said in (
        (GITHUB | {"GITHUB_REF_NAME": "main"}, "this is taken for branch main; say --branch NAME"),
        ({"CI": "true"}, "this is taken for the main line; say --branch NAME"),
        (GITLAB | {"CI_COMMIT_BRANCH": "trunk", "CI_PROJECT_URL": "git@x:y"}, "git@x:y is no http or https URL"),
    ):
        done = job.scan(job.write("a.sarif"), code=0, **env)
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 2


# scan


def test_a_scan_needs_nothing_and_remembers(job: Job) -> None:
    job.write("a.sarif", result("Use of eval"), result("Unused name", level="note"))
    first = job.scan("a.sarif", code=1)
    second = job.scan("a.sarif", code=0)
    assert "new" in first.stdout
    assert "new" not in second.stdout.splitlines()[0]
    assert job.last_run()["status"] == "completed"
    assert job.read("project-types")["projectTypes"][0]["name"] == "demo"
    assert {task["timesSeen"] for task in job.tasks().values()} == {2}


def test_each_tool_has_a_run_of_a_type_by_its_name(job: Job) -> None:
    job.write_log("both.sarif", log_of(run_of(result("one"), name="Semgrep OSS"), run_of(result("two"), name="bandit")))
    job.write("more.sarif", result("three", file="src/b.py"), name="bandit")
    told = job.judge("both.sarif", "more.sarif")
    assert (told["pass"], [gate["reported"] for gate in told["runs"]]) == (False, [1, 2])
    kinds = {each["name"]: each["label"] for each in job.read("project-types")["projectTypes"]}
    assert kinds == {"semgrep-oss": "Semgrep OSS", "bandit": "bandit"}
    types = {title: each["projectType"] for title, each in job.tasks().items()}
    assert types == {"one": "semgrep-oss", "two": "bandit", "three": "bandit"}
    job.scan("both.sarif", "more.sarif", "--type", "all", code=1)
    assert job.read("runs?projectType=all")["total"] == 1


@pytest.mark.parametrize("names", [("§§",), ("Tool 1", "tool-1"), ("-" * 3, "b")])
def test_a_tool_whose_name_makes_no_type_of_its_own_asks_for_one(job: Job, names: tuple[str, ...]) -> None:
    assert_one_line(job.scan(job.write_log("a.sarif", log_of(*(run_of(name=name) for name in names)))), 2, "--type")
    assert not (job.folder / "findings.db").exists()
    job.scan("a.sarif", "--type", "all", code=0)


def test_a_name_is_cut_for_a_type_and_its_label(job: Job) -> None:
    name = f"-{'X' * 99} {'Y' * 200}-"
    job.scan(job.write("a.sarif", name=name), code=0)
    (told,) = job.read("project-types")["projectTypes"]
    assert (told["name"], told["label"]) == ("x" * 99, name[:200])


def test_all_runs_are_failed_where_one_is_refused(job: Job) -> None:
    with job.service(new=True) as service:
        schema = {"properties": {"owner": {}}, "required": ["owner"]}
        service.request("POST", "project-types", {"name": "b", "extensionSchema": schema})
    job.write("a.sarif", result(), name="A")
    assert_one_line(job.scan("a.sarif", job.write("b.sarif", result(), name="B")), 2, "b.sarif: ", "owner")
    assert [run["status"] for run in job.read("runs")["runs"]] == ["failed", "failed"]
    job.write_log("both.sarif", log_of(run_of(result(), name="A"), run_of(result(), name="B")))
    assert_one_line(job.scan("both.sarif"), 2, "both.sarif, B: ", "/runs/1/results/0")


@pytest.mark.parametrize("form", ["table", "markdown", "github"])
def test_several_runs_are_told_one_after_the_other_and_the_verdict_last_or_are_one_document(
    job: Job, form: str
) -> None:
    job.write("a.sarif", result("of a"), name="A")
    job.write("b.sarif", name="B")
    lines = job.scan("a.sarif", "b.sarif", "--format", form, code=1).stdout.splitlines()
    titles = [line for line in lines if line in ("a:", "b:", "### a", "### b")]
    assert [title.strip("#: ") for title in titles] == ["a", "b"]
    assert lines[-1] == "Not passed: a."
    assert job.scan("a.sarif", "b.sarif", "--format", form, code=0).stdout.splitlines()[-1] == "Passed."
    job.write("b.sarif", result("of b"), name="B")
    told = json.loads(job.scan("a.sarif", "b.sarif", "--format", "sarif", code=1).stdout)
    (run,) = told["runs"]  # code scanning takes one of a tool
    assert {each["message"]["text"] for each in run["results"]} == {"of a", "of b"}


def test_without_a_baseline_a_run_fails_with_the_way_on_unless_told_to_pass(job: Job) -> None:
    job.write("a.sarif", result())
    asked = ("a.sarif", "--branch", "b")
    assert "there is no baseline: the main line's first completed run makes one" in job.scan(*asked, code=1).stdout
    assert "there is no baseline" in job.scan(*asked, "--fail-on", "none", code=0).stdout
    assert "passed all the same" in job.scan(*asked, "--without-baseline", "pass", code=0).stdout
    told = job.scan(*asked, "--only", "all", "--without-baseline", "pass", code=0).stdout
    assert "passed all the same without a baseline, by --without-baseline pass." in told
    assert job.judge(*asked, "--without-baseline", "pass")["runs"][0]["pass"]
    run = job.last_run()["id"]
    assert job.run("gate", run).returncode == 1
    assert job.run("gate", run, "--without-baseline", "pass").returncode == 0
    job.scan(job.write("none.sarif"), code=0)
    job.scan(*asked, "--without-baseline", "pass", code=1)


def test_absolute_paths_that_stay_are_told_with_what_to_do(job: Job) -> None:
    (job.folder / "src").mkdir()
    job.write("a.sarif", result(file=(job.folder / "src" / "a.js").as_uri()), result(file="file:///other/b.js"))
    done = job.scan("a.sarif", "--source", ".")
    assert "absolute paths, such as /other/b.js (1 in all), make other findings" in done.stderr
    assert "--source DIR" in done.stderr
    assert {each["extensions"]["file"] for each in job.tasks().values()} <= {"src/a.js", "/other/b.js"}
    assert "(2 in all)" in job.scan("a.sarif").stderr
    (job.folder / "link").symlink_to(job.folder, target_is_directory=True)
    job.write("a.sarif", result(file=(job.folder / "link" / "src" / "a.js").as_uri()))
    assert "absolute" not in job.scan("a.sarif", "--source", "link").stderr
    job.write("a.sarif", result(file="file:///other/b.js"), originalUriBaseIds={"ROOT": {"uri": "file:///other/"}})
    assert "absolute" not in job.scan("a.sarif").stderr
    job.write("a.sarif", result(file="file:///other/b.js"), originalUriBaseIds={"ROOT": {"uri": "file:///"}})
    assert "(1 in all)" in job.scan("a.sarif").stderr


def test_what_is_missing_is_resolved_if_asked_to_and_never_by_another_scanner(job: Job) -> None:
    job.scan(job.write("a.sarif", result("one"), result("two")), code=1)
    job.write("a.sarif", result("one"))
    assert "1 not reported any more" in job.scan("a.sarif", code=0).stdout
    assert job.tasks()["two"]["status"] == "open"
    assert "1 resolved, because not reported any more" in job.scan("a.sarif", "--resolve-missing", code=0).stdout
    job.scan(job.write("b.sarif", result("of b"), name="B"), "--resolve-missing", code=1)
    statuses = {title: task["status"] for title, task in job.tasks().items()}
    assert statuses == {"one": "open", "two": "resolved", "of b": "open"}


BAD_FILES = cases(
    absent=(None, "No such file"),
    empty=(b" \n", "is empty"),
    cut=(b'{"version": "2.1.0", "runs": [', "JSON"),
    utf16=('{"version": "2.1.0"}'.encode("utf-16"), "JSON"),
    deep=(b'{"runs":' + b"[" * 100_000, "levels"),
    array=(b"[]", "[] does not tell which tool found nothing"),
    version=(b'{"version": "2.0.0", "runs": [{}]}', "/version: must be 2.1.0"),
    no_runs=(b'{"version": "2.1.0"}', "/runs: must hold a run"),
    failed=(json.dumps(log_with(invocations=[{"executionSuccessful": False}])).encode(), "says that it failed"),
)


@pytest.mark.parametrize(("content", "said"), BAD_FILES)
def test_a_bad_file_is_told_before_a_run_starts(job: Job, content: bytes | None, said: str) -> None:
    good = job.write("good.sarif", result())
    if content is not None:
        (job.folder / "bad.sarif").write_bytes(content)
    assert_one_line(job.scan(good, "bad.sarif"), 2, "bad.sarif", said)
    assert not (job.folder / "findings.db").exists()


BAD_USAGE = cases(
    no_file=((), "FILE"),
    bar=(("--fail-on", "bad", "a.sarif"), "--fail-on"),
    form=(("--format", "xml", "a.sarif"), "--format"),
    two_places=(("--url", "http://127.0.0.1:1", "--db", "x.db", "a.sarif"), "not both"),
    url=(("--url", "findings", "a.sarif"), "no URL"),
    no_key=(("--url", "http://127.0.0.1:1", "a.sarif"), "FINDINGS_KEY"),
    source=(("--source", "nowhere", "a.sarif"), "'nowhere' does not exist"),
    type=(("--type", "no name", "a.sarif"), "/name"),
    target=(("--target", "git@host:repo", "a.sarif"), "/targetUrl"),
    branch=(("--branch", "a\tb", "a.sarif"), "/branch"),
)


@pytest.mark.parametrize(("words", "said"), BAD_USAGE)
def test_wrong_usage_ends_with_2(job: Job, words: Sequence[str], said: str) -> None:
    job.write("a.sarif", result())
    done = job.scan(*words, code=2, **({"FINDINGS_KEY": "x" * 20} if said == "no URL" else {}))
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    if (job.folder / "findings.db").exists():
        assert job.read("runs")["total"] == 0


TOO_LARGE = cases(read=((), -1000), with_source=(("--source", "."), -1), graded=(("--severity", "R=low"), 1))


@pytest.mark.parametrize(("words", "spare"), TOO_LARGE)
def test_a_document_that_is_too_large_is_told_before_a_run_starts(job: Job, words: tuple[str, ...], spare: int) -> None:
    most = (job.folder / job.write("a.sarif", result("x" * 2000))).stat().st_size + spare
    told = job.scan("a.sarif", *words, FINDINGS_MAX_SARIF=str(most))
    assert_one_line(told, 2, f"over {most:,} bytes", "split it")
    assert not (job.folder / "findings.db").exists()


def test_what_is_no_file_is_not_read(job: Job) -> None:
    os.mkfifo(job.folder / "fifo")
    for name in ("/dev/null", "/dev/zero", "fifo"):  # the last one would be waited for
        assert_one_line(job.scan(name), 2, "no regular file", "have the scanner write to one")


def test_a_locked_database_is_told_in_a_line(job: Job) -> None:
    job.scan(job.write("a.sarif"), code=0)
    with locked(job.db):
        assert_one_line(job.scan("a.sarif", FINDINGS_BUSY_TIMEOUT="0.2"), 3, "too long" if ON_POSTGRES else "locked")


@pytest.mark.sqlite
def test_a_database_that_cannot_be_used_is_told_in_a_line(job: Job) -> None:
    others_database(job.folder / "findings.db")
    assert_one_line(job.scan(job.write("a.sarif")), 3, "findings.db")
    assert_one_line(job.scan("a.sarif", "--db", "no/folder/findings.db"), 3, "no/folder")


def test_a_bug_is_no_verdict(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ci_module, "report_of", 1)
    done = job.scan(job.write("a.sarif"), code=3)
    assert done.stderr.splitlines()[-1].startswith("Error: TypeError")


# scan, with a service at a URL


def test_a_service_at_a_url_gets_the_same(job: Job, server: Server) -> None:
    env = server.access | {"FINDINGS_KEY": f"{server.key}\n"}
    job.write("a.sarif", result())
    job.scan("a.sarif", "--target", TARGET, code=1, **env)
    job.scan("a.sarif", "--target", TARGET, code=0, **env)
    assert server.request("GET", f"{API}/tasks").json["tasks"][0]["timesSeen"] == 2
    assert not (job.folder / "findings.db").exists()
    job.scan("a.sarif", "--db", "findings.db", code=1, **env)  # what the command line says goes before the environment
    assert job.last_run()["status"] == "completed"


@pytest.mark.parametrize("path", ["/api/v1", "/api/v1/", "/"])
def test_the_path_of_the_api_may_end_the_url(job: Job, server: Server, path: str) -> None:
    env = server.access | {"FINDINGS_KEY": server.key, "FINDINGS_URL": f"{server.url}{path}"}
    job.scan(job.write("a.sarif", result()), code=1, **env)
    assert server.request("GET", f"{API}/tasks").json["total"] == 1


def test_a_large_document_is_sent_in_several_requests(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, submit = list[list[str]](), ci_module.submit
    monkeypatch.setattr(scan_config, "RESULTS_AT_ONCE", 3)
    monkeypatch.setattr(ci_module, "submit", lambda *given: sent.append(uris_in(given[-1])) or submit(*given))
    alike = [result(f"eval {n // 2}", file=f"{'abc'[n % 3]}.py", line=n + 1) for n in range(12)]
    moved = [result("moved", file=f"{file}.py", fingerprints={"v1": "same"}) for file in "adad"]
    job.write_log("a.sarif", log_of(run_of(*alike, name="demo"), run_of(*moved, name="demo")))
    job.scan("a.sarif", code=1)
    assert sum(map(len, sent)) == 16
    assert [{*uris} for uris in sent] == [{"a.py"}, {"b.py"}, {"c.py"}, {"d.py"}]
    assert job.last_run()["submitted"]["created"] == 16
    monkeypatch.undo()
    job.scan("a.sarif", code=0)
    assert job.last_run()["submitted"]["unchanged"] == 16


def test_a_number_that_json_cannot_hold_is_wrong_input_where_a_document_is_divided(job: Job) -> None:
    log = log_of(run_of(result("one"), name="a"), run_of(result("two"), name="b"))
    path = job.folder / job.write_log("a.sarif", {**log, "properties": {"n": 0.25}})
    path.write_text(path.read_text().replace("0.25", "1e999"))
    assert "a.sarif cannot be told in JSON: Out of range" in job.scan("a.sarif", code=2).stderr


def uris_in(document: bytes) -> list[str]:
    """Return the files of a document's results."""
    results = [each for run in json.loads(document)["runs"] for each in run["results"]]
    return [each["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for each in results]


def test_a_weak_key_or_a_service_that_is_away_ends_with_3(job: Job, server: Server, away: Fake, tune: Tune) -> None:
    reading = job.run("keys", "create", "ci", "--level", "read", "--db", str(server.db)).stdout.strip()
    job.write("a.sarif", result())
    for key, said in ((reading, "level agent"), ("fts_" + "x" * 43, "unknown, expired or revoked")):
        done = job.scan("a.sarif", "--url", server.url, FINDINGS_KEY=key)
        assert_one_line(done, 3, said)
        assert key not in done.stderr
    assert server.request("GET", f"{API}/runs").json["total"] == 0
    tune(PATIENCE=0.1)
    away.stop()
    done = job.scan("a.sarif", "--url", away.url, FINDINGS_KEY="x" * 20)
    assert_one_line(done, 3, f"no answer from {away.url}", "Connection refused")


def test_a_scan_that_is_stopped_leaves_its_run_failed(job: Job, fake: Callable[..., Fake], server: Server) -> None:
    for how in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        between, submitting, go_on = fake(server), threading.Event(), threading.Event()
        between.before["/tasks"] = lambda begun=submitting, end=go_on: begun.set() or end.wait(PATIENCE)
        line, options = job.line("scan", job.write("a.sarif", result()), "--url", between.url, FINDINGS_KEY=server.key)
        with subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, **options) as process:
            assert submitting.wait(PATIENCE)
            process.send_signal(how)
            out, err = process.communicate(timeout=PATIENCE)
            go_on.set()
        assert (process.returncode, out, err) == (3, "", f"Error: stopped by {how.name}\n")
        run = server.request("GET", f"{API}/runs").json["runs"][0]
        assert (run["status"], run["statusReason"]) == ("failed", f"stopped by {how.name}")


# What people read

HOSTILE = "Say \x1b[2J\u202eevil\u2066 \r\n::set-env name=X::y ##[error]z | `a` <b> [c](d) @bob #1"


def test_the_table_has_the_worst_first_and_the_sentence_last(job: Job) -> None:
    job.scan(job.write("a.sarif", result("known", level="warning")), code=0)
    job.write("a.sarif", result("minor", level="note"), result("known", level="warning"), result("grave", line=9))
    lines = job.scan("a.sarif", code=1).stdout.splitlines()
    words = [line.split() for line in lines]
    assert words[0] == ["high", "new", "src/app.py:9", "grave"]
    assert words[1] == ["medium", "src/app.py:3", "known"]
    assert words[2] == ["low", "new", "src/app.py:3", "minor"]
    assert (lines[3], len(lines)) == ("2 new, 1 known, 0 dismissed", 5)
    assert lines[4] == job.read(f"runs/{job.last_run()['id']}/gate")["reason"]


@pytest.mark.parametrize("form", ["table", "markdown", "github"])
def test_stored_text_commands_nothing(job: Job, form: str) -> None:
    job.write("a.sarif", result(HOSTILE, file=f"src/{HOSTILE}.py", ruleId=HOSTILE))
    done = job.scan("a.sarif", "--format", form, "--explain", code=1)
    for told in (done.stdout, done.stderr):
        assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", told)
        assert "\\u202e" in told
        assert len([line for line in told.splitlines() if "evil" in line]) == 1
        assert not any(line.startswith("::set-env") for line in told.splitlines())
        assert "##[" not in told


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_what_is_as_severe_is_in_the_order_of_its_place(job: Job, form: str) -> None:
    places = {"three": ("b.py", 9), "five": ("b.py", 10), "two": ("a.py", 100), "six": (None, 1), "one": ("a.py", 20)}
    known = [result(title, file=file, line=line) for title, (file, line) in places.items()]
    job.scan(job.write("a.sarif", *known), code=1)
    job.write("a.sarif", result("seven", level="note", file="a.py"), *known, result("four", file="b.py", line=9))
    out = job.scan("a.sarif", "--format", form, code=1).stdout
    shown = re.findall(r"\b(?:one|two|three|four|five|six|seven)\b", out)
    assert shown == ["one", "two", "four", "three", "five", "six", "seven"]  # at one place what is new is first


def test_a_table_shows_fifty_and_what_is_new_before_what_is_known_and_worse(job: Job) -> None:
    known = [result(f"known {number}") for number in range(60)]
    job.scan(job.write("a.sarif", *known), code=1)
    job.write("a.sarif", *known, result("grave and new", level="warning"))
    lines = job.scan("a.sarif", "--fail-on", "medium", code=1).stdout.splitlines()
    assert lines[49].split()[:2] == ["medium", "new"]
    assert (lines[50:52], len(lines)) == (["… and 11 more", "1 new, 60 known, 0 dismissed"], 53)


def test_what_a_branch_brings_back_is_shown(job: Job) -> None:
    job.scan(job.write("a.sarif", result("fixed")), code=1)
    job.triage("fixed", "resolved")
    lines = job.scan("a.sarif", "--branch", "fix", "--only", "all", code=1).stdout.splitlines()
    assert lines[0].split() == ["high", "src/app.py:3", "fixed"]


def on_terminal(job: Job, *words: str, columns: int = 100, **env: str) -> str:
    """Run a command on a terminal and return what it shows there."""
    ours, theirs = pty.openpty()
    line, options = job.line(*words, **{"TERM": "xterm", **env})
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(line, stdout=theirs, stderr=theirs, **options)
    os.close(theirs)
    said = b""
    with suppress(OSError):  # the terminal is closed
        while piece := os.read(ours, 65536):
            said += piece
    process.wait(PATIENCE)
    os.close(ours)
    return said.decode().replace("\r\n", "\n")


OBEYED = "\x1b]52;c;eA==\x07\x9b2J\x7f\u202e\u2066\x08\rA"
ON_TERMINALS = cases(
    csv=(("export", "--format", "csv"),),
    json=(("export", "--format", "json"),),
    sarif=(("export", "--format", "sarif"),),
    scan=(("scan", "a.sarif"),),
    scan_in_sarif=(("scan", "a.sarif", "--format", "sarif", "--explain"),),
    keys=(("keys", "list"),),
    absent=(("check", "--db", f"{OBEYED}.db"),),
    usage=(("check", OBEYED),),
)


@pytest.mark.sqlite
@pytest.mark.parametrize("words", ON_TERMINALS)
def test_commands_escape_control_characters_on_a_terminal(job: Job, words: tuple[str, ...]) -> None:
    job.write("a.sarif", result(f"title {OBEYED}", file=f"{OBEYED}.py", ruleId=OBEYED))
    job.scan("a.sarif", code=1)
    job.run("keys", "create", "ci")
    with closing(sqlite3.connect(job.db)) as database:
        database.execute("UPDATE api_keys SET name = ?", (OBEYED,))
        database.commit()
    shown = on_terminal(job, *words, NO_COLOR="1")
    assert not re.search("(?![\t\n])[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)
    assert "x1b]52" in shown or "u001b]52" in shown
    if words[0] == "export":
        assert "\u202e" in job.run(*words).stdout


def test_colour_is_for_terminals_that_want_it(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.write("a.sarif", result())
    assert "\x1b[" in on_terminal(job, "scan", "a.sarif")
    assert "\x1b[" not in job.scan("a.sarif").stdout
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    wanted = [ci_module.wants_colour(env) for env in ({}, {"NO_COLOR": ""}, {"NO_COLOR": "1"}, {"TERM": "dumb"})]
    assert wanted == [True, True, False, False]


@pytest.mark.parametrize("columns", [40, 200])
def test_a_table_is_as_wide_as_the_terminal(job: Job, columns: int) -> None:
    job.write("a.sarif", result("y" * 200, file="src/a/rather/long/path/to/a/module.py"), result("x" * 300))
    shown = on_terminal(job, "scan", "a.sarif", columns=columns, NO_COLOR="1")
    rows = [line for line in shown.splitlines() if line.startswith("high")]
    assert [columns - 2 <= len(row) <= columns for row in rows] == [True, True]
    assert "\x1b" not in shown


def test_github_gets_annotations_at_file_and_line(job: Job) -> None:
    job.scan(job.write("a.sarif", result("known")), code=1)
    region = {"startLine": 3, "endLine": 5, "snippet": {"text": "x"}}
    place = {"physicalLocation": {"artifactLocation": {"uri": "src/a,b%3A50%25.py"}, "region": region}}
    others = (result("medium", level="warning"), result("low", level="note", file=None))
    job.write("a.sarif", result("known"), result("100% sure: a, b", locations=[place]), *others)
    lines = job.scan("a.sarif", "--format", "github", code=1).stdout.splitlines()
    assert lines[0] == "::error file=src/a%2Cb%3A50%25.py,line=3,endLine=5,title=high%3A R1::100%25 sure: a, b"
    assert lines[1].startswith("::warning file=src/app.py,line=3,")
    assert lines[2] == "::notice title=low%3A R1::low"
    assert (lines[3], len(lines)) == ("3 new, 1 known, 0 dismissed", 5)
    assert "::known" in job.scan("a.sarif", "--format", "github", "--only", "all").stdout


def at(line: int, end: int | None = None, **columns: int) -> dict[str, Any]:
    """Return where a result is, with columns."""
    region = {"startLine": line, "snippet": {"text": "x"}, **({"endLine": end} if end else {}), **columns}
    return {"locations": [{"physicalLocation": {"artifactLocation": {"uri": "a.py"}, "region": region}}]}


COLUMNS = cases(
    none=(at(3), "line=3,"),
    first=(at(3, startColumn=5), "line=3,col=5,"),
    both=(at(3, 3, startColumn=5, endColumn=9), "line=3,endLine=3,col=5,endColumn=8,"),
    empty=(at(3, startColumn=5, endColumn=5), "line=3,col=5,"),
    lines=(at(3, 4, startColumn=5, endColumn=9), "line=3,endLine=4,"),
)


@pytest.mark.parametrize(("place", "said"), COLUMNS)
def test_github_gets_columns_within_a_line(job: Job, place: dict[str, Any], said: str) -> None:
    job.write("a.sarif", result(**place))
    assert job.scan("a.sarif", "--format", "github", code=1).stdout.startswith(f"::error file=a.py,{said}title=")


def test_a_branchs_findings_are_shown_where_its_own_document_has_them(job: Job) -> None:
    job.scan(job.write("a.sarif", result("known", **at(3, 4))), code=1)
    job.write("a.sarif", result("known", **at(30, startColumn=2)))
    asked = ("a.sarif", "--branch", "fix", "--only", "all")
    out = job.scan(*asked, "--format", "github", code=1).stdout
    assert out.startswith("::error file=a.py,line=30,col=2,title=")
    assert "a.py:30" in job.scan(*asked, code=1).stdout
    assert "a.py\\:30" in job.scan(*asked, "--format", "markdown", code=1).stdout
    assert job.tasks()["known"]["extensions"]["line"] == 3


def test_github_gets_the_worst_ten_of_each_level_of_all_runs(job: Job) -> None:
    def several(level: str, number: int, file: str = "b.py") -> list[dict[str, Any]]:
        return [result(f"{level} {line}", file=file, line=line, level=level) for line in range(number, 0, -1)]

    worst = result("worst", file="z.py", properties={"security-severity": "9.5"})
    job.write("a.sarif", *several("error", 60), *several("warning", 12), *several("note", 3), name="A")
    job.write("b.sarif", worst, *several("none", 2), *several("note", 6), result("x", file="a.py"), name="B")
    lines = job.scan("a.sarif", "b.sarif", "--format", "github", code=1).stdout.splitlines()
    kinds = [line.split()[0] for line in lines if line.startswith("::")]
    assert kinds == ["::error"] * 10 + ["::warning"] * 10 + ["::notice"] * 10
    assert [line.rpartition("::")[2] for line in lines[:2]] == ["worst", "x"]
    assert lines[30] == "… and 55 more without an annotation: GitHub shows 10 of a level"
    assert lines[-1] == "Not passed: a, b."
    lines = job.scan("a.sarif", "b.sarif", "--format", "github", code=0).stdout.splitlines()
    assert not any(line.startswith(("::", "…")) for line in lines)


def test_github_gets_a_summary_of_the_job(job: Job) -> None:
    summary = job.folder / "summary.md"
    summary.write_text("before\n")
    job.write("a.sarif", result())
    job.scan("a.sarif", "--format", "github", code=1, GITHUB_STEP_SUMMARY=str(summary))
    assert summary.read_text().startswith("before\n**Not passed**: ")
    assert "| high | new | Use of eval | src/app.py\\:3 |" in summary.read_text()
    done = job.scan("a.sarif", "--format", "github", code=0, GITHUB_STEP_SUMMARY=str(job.folder / "no" / "summary"))
    assert "the summary could not be written" in done.stderr


def test_markdown_is_a_comment_that_calls_nobody(job: Job) -> None:
    out = job.scan(job.write("a.sarif", result(HOSTILE)), "--format", "markdown", code=1).stdout
    row = next(line for line in out.splitlines() if "evil" in line)
    assert re.search(r"(?<!\\)[`<\[]", row) is None
    assert "@bob" not in row
    assert "#1" not in row
    assert ci_module.in_markdown("see www.evil.example") == r"see www\.evil.example"
    assert len(re.findall(r"(?<!\\)\|", row)) == 5


UNHEARD = cases(
    output_to_nobody=("a.sarif --format sarif >&3", 1),
    no_output=("a.sarif --fail-on none >&-", 0),
    no_errors=("a.sarif --fail-on none 2>&-", 0),
    errors_to_nobody=("a.sarif --fail-on none 2>&3", 0),
    reason_to_nobody=("missing.sarif 2>&3", 2),
    a_full_disk=("a.sarif --fail-on none >/dev/full", 3),
)


@pytest.mark.parametrize(("words", "code"), UNHEARD)
def test_where_nobody_listens_the_exit_code_is_the_same(job: Job, words: str, code: int) -> None:
    job.write("a.sarif", *(result(f"finding {number}" * 20) for number in range(60)))
    line, options = job.line("scan", PYTHONUNBUFFERED="")  # what is left is written last
    reader, writer = os.pipe()
    os.close(reader)
    shell = ["bash", "-c", f'exec 3>&{writer}; exec "$@" {words}', "bash", *line]
    done = subprocess.run(shell, capture_output=True, timeout=PATIENCE, check=False, pass_fds=[writer], **options)
    os.close(writer)
    assert done.returncode == code, done.stderr
    assert not re.search("Errno|Attribute|Traceback|Broken", done.stderr)


# gate and export


def test_a_run_is_judged_again_by_another_bar(job: Job) -> None:
    job.scan(job.write("a.sarif", result()), code=1)
    run = job.last_run()["id"]
    assert job.run("gate", run).returncode == 1
    assert job.run("gate", run, "--fail-on", "critical").returncode == 0
    told = json.loads(job.run("gate", run, "--format", "json").stdout)
    assert told == {"pass": False, "runs": [job.read(f"runs/{run}/gate")]}
    assert job.run("gate", run, "--format", "markdown").stdout.startswith("**Not passed**")
    job.scan("a.sarif", code=0)
    again = job.last_run()["id"]
    assert job.run("gate", again).returncode == 0
    assert job.run("gate", again, "--only", "all").returncode == 1
    told = json.loads(job.run("gate", again, "--baseline", run, "--format", "json").stdout)
    assert told["runs"][0]["baseline"] == run


def test_a_run_that_is_not_completed_never_passes_and_one_that_is_not_there_is_no_verdict(job: Job) -> None:
    assert_one_line(job.run("gate", "x"), 2, ABSENT, "" if ON_POSTGRES else "findings.db")
    job.scan(job.write("a.sarif"), code=0)
    with job.service() as service:
        run = service.request("POST", "runs", {"projectType": "demo", "targetUrl": TARGET}).read(dict)["id"]
        for status in ("running", "failed"):
            done = job.run("gate", run, "--fail-on", "none", "--without-baseline", "pass")
            assert (done.returncode, status in done.stdout.splitlines()[-1]) == (1, True)
            service.request("PATCH", f"runs/{run}", {"status": "failed"})
    for name in ("x", "../tasks", "a b", f"{run}/gate"):
        assert_one_line(job.run("gate", name), 2, "There is no run")
    assert_one_line(job.run("gate", ""), 2)
    assert_one_line(job.run("gate", run, "--baseline", "x"), 2)


def test_an_export_has_the_filters_of_the_list(job: Job) -> None:
    job.write("b.sarif", result("two", level="note"))
    job.scan(job.write("a.sarif", result("one")), "b.sarif", code=1)
    job.scan(job.write("c.sarif", result("one"), result("three", level="none")), "--branch", "a,b", code=0)
    for line, titles in (
        ("--severity low --severity high", {"one", "two"}),
        ("--severity low,high", {"one", "two"}),
        ("--target-url https://other.example/", set()),
        ("--main-line", {"one", "two"}),
        ("--branches-only", {"three"}),
        ("--branch a,b", {"one", "three"}),
        ("--sort createdAt --limit 1", {"one"}),
    ):
        words = line.split()
        whole = json.loads(job.run("export", "--format", "json", *words).stdout)
        rows = csv.DictReader(io.StringIO(job.run("export", "--format", "csv", *words).stdout))
        document = json.loads(job.run("export", *words).stdout)
        assert {task["title"] for task in whole} == {row["title"] for row in rows} == titles, words
        assert {each["message"]["text"] for run in document["runs"] for each in run["results"]} == titles, words
    assert {*ExportQuery.__struct_encode_fields__} - {"after"} <= {each.name for each in ci_module.export.params}


def test_a_filter_that_the_service_refuses_ends_with_2(job: Job) -> None:
    job.scan(job.write("a.sarif"), code=0)
    assert_one_line(job.run("export", "--severity", "hgh"), 2, "severity", "critical, high")
    assert_one_line(job.run("export", "--missing-from", "x"), 2)
    assert_one_line(job.run("export", "--db", "other.db"), 2, ABSENT, "" if ON_POSTGRES else "other.db")
    assert not (job.folder / "other.db").exists()


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that are documents of their own have seven tasks."""
    monkeypatch.setattr(ci_module, "EXPORTED", 7)
    monkeypatch.setattr("findings_adapters.client.LISTED", 7)


@pytest.mark.usefixtures("short_pages")
@pytest.mark.parametrize("limit", [None, 7, 10, 100])
def test_pages_are_one_document(job: Job, limit: int | None) -> None:
    job.scan(job.write("a.sarif", *(result(f"line\r\n{number}, x") for number in range(20))), code=1)
    words = ("--limit", str(limit)) if limit else ()
    wanted = min(limit or 20, 20)
    exports = {form: job.run("export", "--format", form, *words).stdout for form in ("json", "csv", "sarif")}
    assert len(json.loads(exports["json"])) == wanted
    rows = list(csv.DictReader(io.StringIO(exports["csv"], newline="")))
    assert len({row["id"] for row in rows}) == len(rows) == wanted
    told = json.loads(exports["sarif"])
    assert len(told["runs"]) == -(-wanted // 7)
    assert sum(len(run["results"]) for run in told["runs"]) == wanted


@pytest.mark.usefixtures("short_pages")
def test_an_export_from_a_url_is_the_same(job: Job, server: Server) -> None:
    findings = (result(f"finding {number}") for number in range(20))
    job.scan(job.write("a.sarif", *findings), code=1, **server.access)
    for form in ("json", "csv", "sarif"):
        there = job.run("export", "--format", form, **server.access)
        here = job.run("export", "--format", form, "--db", str(server.db))
        assert (there.returncode, there.stdout) == (0, here.stdout)


def test_a_part_that_is_absent_is_said_so(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.scan(job.write("a.sarif"), code=0)
    monkeypatch.delitem(findings_service.REGISTRY.submission_formats, "application/sarif+json")
    for form in list(findings_service.REGISTRY.list_exports):
        monkeypatch.delitem(findings_service.REGISTRY.list_exports, form)
    assert_one_line(job.scan("a.sarif"), 2, "findings_adapters/sarif is not there")
    for form in ("sarif", "csv"):
        assert_one_line(job.run("export", "--format", form), 2, "the part of it that does is not there")
    assert job.run("export", "--format", "json").stdout == "[\n]\n"
