"""What a CI job may count on: the commands scan, gate and export, as a shell calls them."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import pty
import re
import shutil
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
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from test_client import Fake, Tune, away, fake, tune
from test_sarif import log_of, log_with, run_of

import findings_service
from findings_adapters import ci as ci_module
from findings_adapters import scan_config
from findings_adapters.platforms import ScanContext, place_of
from findings_client import Client, Local
from findings_features.exports import ExportQuery
from tests.clients import API, cases, patch_core
from tests.documents import HERE
from tests.engines import ABSENT, ON_POSTGRES, db_at, locked, with_databases
from tests.files import foreign_database
from tests.servers import PATIENCE, PROGRAM, Server, environment, reset_signals

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
        options = {"cwd": self.folder, "env": surroundings, "encoding": "utf-8", "preexec_fn": reset_signals}
        return [*PROGRAM, *with_databases(words, self.folder)], options

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
                findings_service.main(with_databases(words, self.folder), prog_name="findings-service")
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

    def service(self, *, new: bool = False) -> Client:
        """Return the service over the job's database."""
        return Client(Local(db_at(self.db), new=new))

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
    github_target=(on_github("pull_request_target", told=pull()), "fix"),
    github_head_ref_alone=(on_github("push", told={}, GITHUB_HEAD_REF="fix"), "fix"),
    github_fork=(on_github("pull_request", "5/merge", pull(repo=EVES, label="eve:fix")), "eve:fix"),
    github_fork_that_is_gone=(on_github("pull_request", "5/merge", pull(repo=None, label="eve:fix")), "eve:fix"),
    github_comment_on_pull=(on_github("issue_comment", told={"issue": {"number": 5, "pull_request": {}}}), "pull/5"),
    github_comment_on_issue=(on_github("issue_comment", told={"issue": {"number": 5}}), None),
    github_after_push=(on_github("workflow_run", told=finished("trunk", "push")), None),
    github_after_pull=(on_github("workflow_run", told=finished("fix", "pull_request")), "fix"),
    github_after_fork=(on_github("workflow_run", told=finished("trunk", "pull_request", "eve")), "eve:trunk"),
    github_queue=(on_github("merge_group", "gh-readonly-queue/trunk/pr-5-abc"), "gh-readonly-queue/trunk"),
    github_queue_of_a_path=(on_github("merge_group", "gh-readonly-queue/a/b/pr-5-abc"), "gh-readonly-queue/a/b"),
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


COMMITS = cases(
    workflow_run=(on_github("workflow_run", told={"workflow_run": {"head_sha": "def456"}}), "def456"),
    target=(on_github("pull_request_target", told={"pull_request": {"head": {"sha": "def456"}}}), "def456"),
    comment_on_an_issue=(on_github("issue_comment", told={"issue": {"number": 5}}), "abc123"),
)


def place_told(folder: Path, given: tuple[dict[str, str], Any]) -> ScanContext:
    """Return where a scan takes place, by the variables and the event of a workflow."""
    env, told = given
    event = folder / "event.json"
    event.write_text(json.dumps({"repository": SHOP} | (told or {})))
    return place_of(env | {"GITHUB_EVENT_PATH": str(event)})


@pytest.mark.parametrize(("given", "commit"), COMMITS)
def test_the_commit_is_the_pull_requests(tmp_path: Path, given: tuple[dict[str, str], Any], commit: str | None) -> None:
    assert place_told(tmp_path, given).metadata.get("commit") == commit


def test_a_comment_on_a_pull_request_is_about_the_commit_that_is_checked_out(
    checkout: Checkout, tmp_path: Path
) -> None:
    commented = {"issue": {"number": 5, "pull_request": {}}}
    commit = checkout.commit(one=CODE)
    with chdir(checkout.folder):
        for sha, told in ((commit, None), ("abc123", commit)):  # the default branch's own says nothing
            env, event = on_github("issue_comment", told=commented, GITHUB_SHA=sha)
            assert place_told(tmp_path, (env, event)).metadata.get("commit") == told


@pytest.mark.parametrize(("given", "branch"), BRANCHES)
def test_the_branch_is_read_from_the_platforms_variables(tmp_path: Path, given: Any, branch: str | None) -> None:
    place = place_told(tmp_path, given)
    assert (place.branch, place.unknown) == (branch, "")


def test_code_from_outside_of_the_main_line_is_proposed(tmp_path: Path) -> None:
    kinds = "pull pull_from_default target head_ref_alone fork fork_that_is_gone comment_on_pull after_pull after_fork"
    kinds += " queue queue_of_a_path"
    proposed = [each.id for each in BRANCHES if place_told(tmp_path, each.values[0]).proposed]
    assert proposed == [f"github_{kind}" for kind in kinds.split()]


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
    name = f"-{'X' * 99} {'Y' * 200}-"
    job.scan(job.write("a.sarif", name=name), code=0)
    assert job.read(f"project-types/{'x' * 99}")["label"] == name[:200]


@pytest.mark.parametrize("names", [("§§",), ("Tool 1", "tool-1"), ("-" * 3, "b")])
def test_a_tool_whose_name_makes_no_type_of_its_own_asks_for_one(job: Job, names: tuple[str, ...]) -> None:
    assert_one_line(job.scan(job.write_log("a.sarif", log_of(*(run_of(name=name) for name in names)))), 2, "--type")
    assert not (job.folder / "findings.db").exists()
    job.scan("a.sarif", "--type", "all", code=0)


def test_all_runs_are_failed_where_one_is_refused(job: Job) -> None:
    with job.service(new=True) as service:
        schema = {"properties": {"owner": {}}, "required": ["owner"]}
        service.request("POST", "project-types", {"name": "b", "extensionSchema": schema})
    job.write("a.sarif", result(), name="A")
    assert_one_line(job.scan("a.sarif", job.write("b.sarif", result(), name="B")), 2, "b.sarif: ", "owner")
    assert [run["status"] for run in job.read("runs")["runs"]] == ["failed", "failed"]
    job.write_log("both.sarif", log_of(run_of(result(), name="A"), run_of(result(), name="B")))
    assert_one_line(job.scan("both.sarif"), 2, "both.sarif, B: ", "/runs/0/results/0")


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


def test_the_other_runs_of_a_tool_resolve_nothing_if_one_cannot_be_used(job: Job) -> None:
    one, first, second = (run_of(result(text), name=name) for text, name in (("x", "A"), ("y", "B"), ("z", "B")))
    job.scan(job.write_log("a.sarif", log_of(one, first, second)), "--fail-on", "none", code=0)
    job.write_log("a.sarif", log_of(one, first, run_of(name="B") | {"results": None}))
    told = job.scan("a.sarif", "--resolve-missing", code=1)
    assert "b did not check everything" in told.stderr
    assert "a did not" not in told.stderr
    assert job.tasks()["z"]["status"] == "open"


def test_what_a_scanner_did_not_check_is_sent_once_to_the_run_of_its_tool(job: Job) -> None:
    notices = {"toolExecutionNotifications": [{"level": "error", "message": {"text": "Timeout"}}]}
    runs = [
        run_of(result("one"), result("other"), name="A", invocations=[notices]),
        run_of(result("three"), name="B"),
        run_of(name="C") | {"results": None},
    ]
    told = job.scan(job.write_log("a.sarif", log_of(*runs)), "--resolve-missing", code=1).stderr
    assert told.count("did not check everything") == told.count("a did not check everything") == 1
    tasks = job.read("tasks?sort=createdAt")["tasks"]
    kinds = [(task["projectType"], task["rule"]) for task in tasks]
    assert kinds == [("a", "R1"), ("a", "R1"), *[("a", "not-checked")] * 2, ("b", "R1")]
    job.scan("a.sarif", code=1)
    assert job.read("tasks")["total"] == 5
    job.scan("a.sarif", "--type", "all", code=1)
    assert job.last_run()["submitted"]["created"] == 5


def test_a_pattern_is_all_files_that_match_it_and_one_at_least(job: Job) -> None:
    for name in ("a.sarif", "b/c.sarif", "b/d/e.sarif", ".git/f.sarif", "b/[g].sarif"):
        (job.folder / name).parent.mkdir(parents=True, exist_ok=True)
        job.write(name, result(name))
    (job.folder / "b" / "loop").symlink_to("..")
    job.scan("**/*.sarif", "a.sarif", str(job.folder / "b" / "*.sarif"), code=1)
    assert {*job.tasks()} == {"a.sarif", "b/c.sarif", "b/d/e.sarif", "b/[g].sarif"}
    job.scan("b/[g].sarif", ".git/*.sarif", code=1)
    assert ".git/f.sarif" in job.tasks()
    for pattern, said in (("*.json", "*.json matches no file"), ("a**.sarif", "a**.sarif: ")):
        assert_one_line(job.scan("a.sarif", pattern), 2, said)


BAD_FILES = cases(
    absent=(None, "No such file"),
    empty=(b" \n", "is empty"),
    cut=(b'{"version": "2.1.0", "runs": [', "JSON"),
    utf16=('{"version": "2.1.0"}'.encode("utf-16"), "/runs: must hold a run"),
    cut_utf16=(b"\xff\xfe{", "begins as UTF-16 and is broken"),
    deep=(b'{"runs":' + b"[" * 100_000, "levels"),
    array=(b"[]", "[] does not name the tool that found nothing"),
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
    url=(("--url", "findings", "a.sarif"), "is not a URL"),
    no_key=(("--url", "http://127.0.0.1:1", "a.sarif"), "FINDINGS_KEY"),
    source=(("--source", "nowhere", "a.sarif"), "'nowhere' does not exist"),
    type=(("--type", "no name", "a.sarif"), "/name"),
    target=(("--target", "git@host:repo", "a.sarif"), "/targetUrl"),
    branch=(("--branch", "a\tb", "a.sarif"), "/branch"),
)


@pytest.mark.parametrize(("words", "said"), BAD_USAGE)
def test_wrong_usage_ends_with_2(job: Job, words: Sequence[str], said: str) -> None:
    job.write("a.sarif", result())
    done = job.scan(*words, code=2, **({"FINDINGS_KEY": "x" * 20} if said == "is not a URL" else {}))
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


def test_utf_16_is_read_with_a_mark_of_its_order_and_leaves_an_xml_declaration_in_a_snippet(job: Job) -> None:
    for order in ("utf-16-le", "utf-16-be"):
        xml = '<?xml version="1.0" encoding="utf-16"?><testsuite><testcase name="é"><failure/></testcase></testsuite>'
        for name, text in (("a.sarif", json.dumps(log_with(result("é"), name="demo"))), ("b.xml", xml)):
            (job.folder / name).write_bytes(f"\ufeff{text}".encode(order))
            job.scan(name, "--only", "all", code=1)
    assert {*job.tasks()} == {"é", "é: failure"}
    code = '<?xml version="1.0" encoding="utf-8"?><x y="z"/>'
    text = json.dumps(log_with(result(code, file="web.config"), name="demo"))
    for name, encoding in (("a.sarif", "utf-8"), ("b.sarif", "utf-16")):
        (job.folder / name).write_bytes(text.encode(encoding))
    job.scan("a.sarif", code=1)
    assert "0 new, 1 known" in job.scan("b.sarif", code=0).stdout
    assert job.tasks()[code]["evidence"][0]["content"] == code


@dataclass
class Checkout(Job):
    """A job's folder that is a checkout of git, whose database is beside what is checked out."""

    def git(self, *words: str) -> str:
        """Run git, and return what it says."""
        who = ("-c", "user.name=u", "-c", "user.email=u@example.com", "-c", "init.defaultBranch=main")
        done = subprocess.run(["git", *who, *words], cwd=self.folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, **files: str) -> str:
        """Commit files, each by the name of a module, and return the commit."""
        for name, text in files.items():
            (self.folder / f"{name}.py").write_text(text, "utf-8")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "change")
        return self.git("rev-parse", "HEAD")

    def scan_at(self, commit: str, *words: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """Scan the checkout as what a commit of the main line is."""
        env = GITLAB | {"CI_COMMIT_BRANCH": "trunk", "CI_COMMIT_SHA": commit}
        return self.scan("--source", ".", *words, "a.sarif", **how, **env)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = Checkout(tmp_path)
    made.git("init", "--quiet")
    (tmp_path / ".git" / "info" / "exclude").write_text("*.sarif\nfindings.*\n")
    return made


PROPOSALS = cases(
    github=GITHUB | {"GITHUB_EVENT_NAME": "pull_request", "GITHUB_HEAD_REF": "fix"},
    gitlab=GITLAB | MERGE_REQUEST | {"CI_MERGE_REQUEST_IID": "5"},
)


BARE = {"HEAD": "ref: refs/heads/main", "config": "[core]\nbare = true\n", "refs/x": "", "objects/x": ""}


def look_like_a_repository(folder: Path) -> None:
    """Write the files of a bare repository, in which git takes a folder for one."""
    for name, text in BARE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.sqlite
@pytest.mark.parametrize("env", PROPOSALS)
def test_a_proposal_cannot_bring_a_database(checkout: Checkout, env: dict[str, str]) -> None:
    look_like_a_repository(checkout.folder / "backend")
    words = ("--source", "backend", checkout.write("a.sarif"))
    for place in ("findings.db", "backend/findings.db", str(checkout.folder / "other.db")):
        assert_one_line(
            checkout.scan(*words, "--db", place, **env), 2, f"{place} is where a pull request can put", "--db"
        )
    for place in (".git/findings.db", "../findings.db"):
        assert checkout.scan(*words, "--db", place, code=0, **env)
    checkout.git("init", "--quiet", "lib")  # a checkout within this one
    assert checkout.scan("--source", "lib", "a.sarif", "--db", "findings.db", **env).returncode == 2
    (checkout.folder / "linked.db").symlink_to("findings.db")
    assert checkout.scan(*words, "--db", "linked.db", **env).returncode == 2
    shutil.rmtree(checkout.folder / ".git")  # fetched in another way
    assert checkout.scan("a.sarif", "--db", "findings.db", **env).returncode == 2
    assert not (checkout.folder / "findings.db").exists()


@pytest.mark.parametrize("env", PROPOSALS)
def test_a_proposal_cannot_bring_a_report(checkout: Checkout, env: dict[str, str]) -> None:
    (checkout.folder / "reports").mkdir()
    names = [checkout.write(name) for name in ("reports/a[1].sarif", "reports/a1.sarif", "b.sarif")]
    checkout.git("add", "--force", "reports/a1.sarif")
    db = () if ON_POSTGRES else ("--db", ".git/findings.db")
    assert_one_line(checkout.scan(*names, *db, **env), 2, "reports/a1.sarif is tracked by git")
    assert_one_line(checkout.scan("reports/*.sarif", *db, **env), 2, "reports/a1.sarif is tracked by git")
    checkout.scan("reports/a[1].sarif", "b.sarif", *db, code=0, **env)
    checkout.scan(*names, *db, "--branch", "", code=0)
    for name in ("reports", "."):
        look_like_a_repository(checkout.folder / name)
        assert_one_line(checkout.scan(*names, *db, **env), 2, "reports/a1.sarif is tracked by git")
    for name, place in (("link", "reports"), ("linked.sarif", "reports/a1.sarif"), ("own.sarif", "b.sarif")):
        (checkout.folder / name).symlink_to(place)
    checkout.git("add", "--force", "own.sarif")
    for name in ("link/a1.sarif", "linked.sarif", "own.sarif", "reports/../reports/a1.sarif"):
        assert_one_line(checkout.scan(name, *db, **env), 2, f"{name} is tracked by git")
    checkout.scan("link/a[1].sarif", *db, code=0, **env)


@pytest.mark.parametrize("env", PROPOSALS)
def test_git_must_say_whether_a_proposal_brings_a_report(
    checkout: Checkout, tmp_path: Path, env: dict[str, str]
) -> None:
    db = () if ON_POSTGRES else ("--db", str(tmp_path.parent / f"{tmp_path.name}.db"))
    checkout.git("init", "--quiet", "--separate-git-dir", ".git/of-a-submodule", "submodule")
    name = checkout.write("submodule/a.sarif")
    checkout.scan(name, *db, code=0, **env)
    checkout.git("-C", "submodule", "add", "--force", "a.sarif")
    assert_one_line(checkout.scan(name, *db, **env), 2, f"{name} is tracked by git")
    shutil.rmtree(checkout.folder / ".git" / "of-a-submodule")
    for how in ({}, {"PATH": ""}):
        assert_one_line(
            checkout.scan(name, *db, **env, **how), 2, f"{name} is in a checkout where git is not installed"
        )
    shutil.rmtree(checkout.folder / ".git")
    (checkout.folder / "submodule" / ".git").unlink()
    checkout.scan(name, *db, code=0, **env, PATH="")


def in_module(name: str, *numbers: int) -> list[dict[str, Any]]:
    """Return results at lines of a module, which the checkout has the code of."""
    return [result() | {"locations": [at_line(name, number)]} for number in numbers]


def at_line(name: str, number: int) -> dict[str, Any]:
    """Return a place in a module, without code."""
    return {"physicalLocation": {"artifactLocation": {"uri": f"{name}.py"}, "region": {"startLine": number}}}


CODE = "".join(f"line({number})\n" for number in range(1, 30))


def test_a_renamed_file_fails_no_gate_and_loses_no_decision(checkout: Checkout) -> None:
    first = checkout.commit(one=CODE, other="x = 1\n")
    checkout.write("a.sarif", *in_module("one", 3, 5))
    checkout.scan_at(first, code=1)
    [known] = [each for each in checkout.read("tasks")["tasks"] if each["location"] == "one.py:5"]
    with checkout.service() as service:
        service.request("PATCH", f"tasks/{known['id']}", {"status": "dismissed"})
    checkout.git("mv", "one.py", "two.py")
    second = checkout.commit(two=f"# moved\n{CODE}")
    checkout.write("a.sarif", *in_module("two", 4, 6))
    pull = checkout.scan_at(second, "--branch", "fix", code=0)
    assert "0 new, 1 known, 1 dismissed" in pull.stdout
    assert "0 new, 1 known, 1 dismissed" in checkout.scan_at(second, code=0).stdout  # after the merge
    checkout.git("checkout", "--quiet", first)  # another branch, which has the old name
    checkout.write("a.sarif", *in_module("one", 3, 5))
    assert "0 new, 1 known, 1 dismissed" in checkout.scan_at(first, "--branch", "other", code=0).stdout
    tasks = checkout.read("tasks?mainLine=true")["tasks"]
    assert {(each["location"], each["status"]) for each in tasks} == {("two.py:4", "open"), ("two.py:6", "dismissed")}


def test_renames_are_those_since_the_baseline_which_is_not_partial(checkout: Checkout) -> None:
    first = checkout.commit(one=CODE)
    checkout.write("a.sarif", *in_module("one", 3))
    checkout.scan_at(first, code=1)
    checkout.git("mv", "one.py", "two.py")
    second = checkout.commit()
    failed = [
        {"executionSuccessful": True, "toolExecutionNotifications": [{"level": "error", "message": {"text": "x"}}]}
    ]
    checkout.write("a.sarif", invocations=failed)
    checkout.scan_at(second, code=1)
    checkout.write("a.sarif", *in_module("two", 3))
    assert "0 new, 1 known" in checkout.scan_at(second, "--branch", "fix", code=0).stdout
    told = checkout.scan_at(second, "--branch", "fix", "--only", "all", "--format", "github", code=1).stdout
    assert told.startswith("::error file=two.py,line=3,")  # where the document has it


def test_annotations_and_sarif_follow_the_chosen_baseline(checkout: Checkout) -> None:
    first = checkout.commit(one=CODE)
    checkout.write("a.sarif", *in_module("one", 3))
    checkout.scan_at(first, code=1)
    later = checkout.commit(two=CODE)
    checkout.write("a.sarif", *in_module("two", 4))
    checkout.scan_at(later, "--resolve-missing", code=1)  # one finding is fixed, another one came
    checkout.write("a.sarif", *in_module("one", 3), *in_module("two", 4))
    scan = partial(checkout.scan_at, first, "--branch", "fix", "--base", "main~1", code=1)
    lines = scan("--format", "github").stdout.splitlines()
    assert [line.partition(",")[0] for line in lines if line.startswith("::")] == ["::error file=two.py"]
    [run] = json.loads(scan("--format", "sarif").stdout)["runs"]
    places = (each["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for each in run["results"])
    states = dict(zip(places, (each["baselineState"] for each in run["results"]), strict=True))
    assert states == {"one.py": "unchanged", "two.py": "new"}


def test_a_branch_is_compared_with_the_commit_where_it_began(checkout: Checkout) -> None:
    first = checkout.commit(one=CODE)
    checkout.write("a.sarif", *in_module("one", 3))
    checkout.scan_at(first, code=1)
    later = checkout.commit(other="x = 1\n")
    checkout.write("a.sarif")
    checkout.scan_at(later, "--resolve-missing", code=0)  # the main line has fixed it since
    checkout.write("a.sarif", *in_module("one", 3))
    assert "1 new" in checkout.scan_at(first, "--branch", "fix", code=1).stdout
    based = checkout.scan_at(first, "--branch", "fix", "--base", first, code=0)
    assert "0 new, 1 known" in based.stdout
    run = checkout.last_run()
    assert (run["verdict"]["pass"], run["verdict"]["new"]) == (True, 0)
    assert run["verdict"]["baseline"] == checkout.read("runs?limit=10")["runs"][-1]["id"]
    newer = checkout.commit(third="y = 1\n")  # no run is of it: the last one before it counts
    assert "1 new" in checkout.scan_at(newer, "--branch", "fix", "--base", newer, code=1).stdout
    unknown = checkout.scan_at(first, "--branch", "fix", "--base", "f" * 40, code=1)
    assert f"no run of demo is of commit {'f' * 40} or one before it" in unknown.stderr


def test_a_category_has_a_run_of_its_own(job: Job) -> None:
    for language in ("java", "javascript"):
        job.write(f"{language}.sarif", result(language), name="CodeQL", automationDetails={"id": f"/lang:{language}/7"})
    job.scan("java.sarif", "javascript.sarif", "--resolve-missing", code=1)
    assert {run["projectType"] for run in job.read("runs")["runs"]} == {"codeql-lang-java", "codeql-lang-javascript"}
    job.write("tool.sarif", result(), name="CodeQL /lang:java")
    both = job.scan("java.sarif", "tool.sarif")
    assert_one_line(both, 2, "come to the same project type, codeql-lang-java; say --type")
    job.write("java.sarif", name="CodeQL", automationDetails={"id": "/lang:java/8"})
    assert "1 resolved" in job.scan("java.sarif", "--resolve-missing", code=0).stdout
    assert {name: each["status"] for name, each in job.tasks().items()} == {"java": "resolved", "javascript": "open"}


def test_documents_of_one_tool_are_one_submission(job: Job) -> None:
    names = [job.write(f"{name}.sarif", result("same"), result(name, line=9)) for name in "ab"]
    done = job.scan(*names, code=1)
    assert "the same as others at the same place, and are stored once: 1." in done.stderr
    assert len(job.tasks()) == 3
    assert job.last_run()["submitted"]["created"] == 3


def test_paths_keep_the_folder_in_which_bases_differ(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_config, "RESULTS_AT_ONCE", 1)  # so that each is sent in a part of its own
    notices = [
        {"toolExecutionNotifications": [{"level": "error", "message": {"text": "x"}, "locations": [at_line("b", 1)]}]}
    ]
    for folder in ("backend", "frontend"):
        bases = {"ROOT": {"uri": f"file:///builds/7/{folder}/"}}
        job.write(f"{folder}.sarif", result(folder, file="a.py"), originalUriBaseIds=bases, invocations=notices)
    job.write("other.sarif", result("of b", file="a.py"), name="B", originalUriBaseIds={"R": {"uri": "file:///b/"}})
    names = ("backend.sarif", "frontend.sarif", "other.sarif")
    told = job.scan(*names, "--explain", "--exclude", "/frontend/a.py", "--format", "github").stdout
    assert "file=backend/a.py,line=3" in told
    places = {(task["projectType"], task["location"]) for task in job.read("tasks")["tasks"]}
    assert places == {("demo", "backend/a.py:3"), ("demo", "backend/b.py"), ("demo", "frontend/b.py"), ("b", "a.py:3")}
    forged = {"findingsTaskService/folder": "evil"}
    for words in ((), ("--ours",)):
        job.scan(job.write("a.sarif", result("forged", file="a.py"), name="C", properties=forged), *words)
        assert job.tasks()["forged"]["location"] == "a.py:3"


def test_an_external_id_in_a_report_counts_if_it_is_ours(job: Job) -> None:
    job.scan(job.write("a.sarif", result("known")), code=1)
    known = job.tasks()["known"]
    forged = result("new", line=80, file="evil.py") | {"fingerprints": {"findingsTaskService/v1": known["externalId"]}}
    whole = {"title": "whole", "severity": "low", "externalId": known["externalId"], "status": "dismissed"}
    carried = result("carried", line=81) | {"properties": {"findingsTaskService/v1": whole}}
    job.write("a.sarif", forged, carried)
    assert "2 new" in job.scan("a.sarif", "--branch", "fix", code=1).stdout
    assert "0 new" in job.scan("a.sarif", "--branch", "fix", "--ours", code=0).stdout
    job.write("a.sarif", result("known") | {"properties": {"findingsTaskService/v1": {"title": "broken"}}})
    assert "0 new" in job.scan("a.sarif", code=0).stdout
    assert_one_line(job.scan("a.sarif", "--ours"), 2, "required property")


def test_a_table_of_renames_in_a_report_never_counts(job: Job) -> None:
    job.scan(job.write("a.sarif", result(file="old.py")), code=1)
    for words, file in ((), "new.py"), (("--ours",), "newer.py"):
        job.write("a.sarif", result(file=file), properties={"findingsTaskService/renames": {file: "old.py"}})
        assert "1 new" in job.scan("a.sarif", "--branch", "fix", *words, code=1).stdout


def test_what_json_has_no_word_for_is_replaced_or_wrong_input(job: Job) -> None:
    path = job.folder / job.write("a.sarif", result("TEXT"), properties={"n": 0.25})
    text = path.read_text("utf-8")
    path.write_text(text.replace("TEXT", "cut \\ud83d"), "utf-8")
    job.scan("a.sarif", code=1)
    assert [*job.tasks()] == ["cut \N{REPLACEMENT CHARACTER}"]
    path.write_text(text.replace("0.25", "1" * 5000), "utf-8")
    assert_one_line(job.scan("a.sarif"), 2, "a.sarif has a number such as 1e999, or one of thousands of digits")
    log = log_of(run_of(result("one"), name="a"), run_of(result("two"), name="b"))  # which is divided
    path.write_text(json.dumps({**log, "properties": {"n": 0.25}}).replace("0.25", "1e999"), "utf-8")
    assert "a.sarif, a cannot be told in JSON: Out of range" in job.scan("a.sarif", code=2).stderr


def test_results_that_are_identified_by_their_messages_are_counted(job: Job) -> None:
    bare = (result(text) | {"locations": [at_line("a", 1)]} for text in ("one", "two"))
    job.write("a.sarif", *bare, result("with code"))
    told = "Note: Results without fingerprint and code, which their messages identify: 2"
    assert f"{told}; give --source with" in job.scan("a.sarif", code=1).stderr
    assert f"{told}.\n" in job.scan("a.sarif", "--source", ".", code=0).stderr
    job.write("a.sarif", result("with code"))
    assert "identify" not in job.scan("a.sarif", code=0).stderr
    mypy = {"file": "a.py", "line": 1, "column": 0, "message": "Bad", "hint": None, "code": "misc", "severity": "error"}
    (job.folder / "mypy.json").write_text(json.dumps(mypy), "utf-8")
    assert f"{told.removesuffix('2')}1; give --source with" in job.scan("mypy.json").stderr


def test_a_score_that_means_nothing_is_told(job: Job) -> None:
    given = [result(str(score), line=n, properties={"security-severity": score}) for n, score in enumerate(SCORES, 1)]
    assert "mean nothing: 2, such as severe." in job.scan(job.write("a.sarif", *given), code=1).stderr
    told = {name: each["severity"] for name, each in job.tasks().items()}
    severities = ("critical", "critical", "high", "low", "high", "high", "high", "high")
    assert told == dict(zip((*SCORES[:-1], "R1"), severities, strict=True))


SCORES = ("9,8", "9.8/10", "HIGH", "Low", "severe", "11", "0.0", "")  # the last one is no title, which is the rule's


def test_what_is_no_file_is_not_read(job: Job) -> None:
    os.mkfifo(job.folder / "fifo")
    for name in ("/dev/null", "/dev/zero", "fifo"):  # the last one would be waited for
        assert_one_line(job.scan(name), 2, "no regular file", "have the scanner write to one")


def test_neither_a_locked_database_nor_a_bug_is_a_verdict(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.scan(job.write("a.sarif"), code=0)
    with locked(job.db):
        assert_one_line(job.scan("a.sarif", FINDINGS_BUSY_TIMEOUT="0.2"), 3, "too long" if ON_POSTGRES else "locked")
    monkeypatch.setattr(ci_module, "report_of", 1)
    assert job.scan("a.sarif", code=3).stderr.splitlines()[-1].startswith("Error: TypeError")


@pytest.mark.sqlite
def test_a_database_that_cannot_be_used_is_told_in_a_line(job: Job) -> None:
    foreign_database(job.folder / "findings.db")
    assert_one_line(job.scan(job.write("a.sarif")), 3, "findings.db")
    assert_one_line(job.scan("a.sarif", "--db", "no/folder/findings.db"), 3, "no/folder")


# scan, with a service at a URL


def test_a_service_at_a_url_gets_the_same(job: Job, server: Server) -> None:
    env = server.variables | {"FINDINGS_KEY": f"{server.key}\n"}
    job.write("a.sarif", result())
    job.scan("a.sarif", "--target", TARGET, code=1, **env)
    job.scan("a.sarif", "--target", TARGET, code=0, **env)
    assert server.request("GET", f"{API}/tasks").json["tasks"][0]["timesSeen"] == 2
    assert not (job.folder / "findings.db").exists()
    job.scan("a.sarif", "--db", "findings.db", code=1, **env)  # what the command line says goes before the environment
    assert job.last_run()["status"] == "completed"


def test_a_large_document_is_sent_in_several_requests(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, submit = list[list[str]](), ci_module.submit
    monkeypatch.setattr(scan_config, "RESULTS_AT_ONCE", 3)
    watched = lambda *given: sent.extend(uris_in(each.text) for each in given[-1]) or submit(*given)  # noqa: E731
    monkeypatch.setattr(ci_module, "submit", watched)
    alike = [result(f"eval {n // 2}", file=f"{'abc'[n % 3]}.py", line=n + 1) for n in range(12)]
    moved = [result("moved", file=f"{file}.py", fingerprints={"v1": "same"}) for file in "adad"]
    job.write_log("a.sarif", log_of(run_of(*alike, name="demo"), run_of(*moved, name="demo")))
    job.scan("a.sarif", code=1)
    assert sum(map(len, sent)) == 16
    assert [{*uris} for uris in sent] == [{"a.py"}, {"b.py"}, {"c.py"}, {"d.py"}]
    assert job.last_run()["submitted"]["created"] == 14  # results at one place are one
    monkeypatch.undo()
    job.scan("a.sarif", code=0)
    assert job.last_run()["submitted"]["unchanged"] == 14


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


@pytest.mark.signals
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

HOSTILE = "Say \x1b[2J\u202eevil\u2066 \r\n::set-env name=X::y ##[error]z | `a` <b> [c](d) @bob #1 GH-12"


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


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("table", "one two four three five six seven"),  # at one place what is new is first
        ("markdown", "four seven one two three five six"),  # what is known is below, and folded
    ],
)
def test_what_is_as_severe_is_in_the_order_of_its_place(job: Job, form: str, wanted: str) -> None:
    places = {"three": ("b.py", 9), "five": ("b.py", 10), "two": ("a.py", 100), "six": (None, 1), "one": ("a.py", 20)}
    known = [result(title, file=file, line=line) for title, (file, line) in places.items()]
    job.scan(job.write("a.sarif", *known), code=1)
    job.write("a.sarif", result("seven", level="note", file="a.py"), *known, result("four", file="b.py", line=9))
    out = job.scan("a.sarif", "--format", form, code=1).stdout
    shown = re.findall(r"\b(?:one|two|three|four|five|six|seven)\b", out)
    assert shown == wanted.split()


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
    assert "| high | Use of eval | src/app.py\\:3 |" in summary.read_text()
    done = job.scan("a.sarif", "--format", "github", code=0, GITHUB_STEP_SUMMARY=str(job.folder / "no" / "summary"))
    assert "the summary could not be written" in done.stderr


def test_markdown_is_a_comment_that_folds_what_is_known_and_calls_nobody(job: Job) -> None:
    job.scan(job.write("a.sarif", result("known")), code=1)
    job.write("a.sarif", result("known"), result("new", line=9))
    out = job.scan("a.sarif", "--format", "markdown", code=1).stdout
    first, folded = out.split("<details><summary>Known: 1</summary>")
    assert ("new" in first, "known |" in first, "| known |" in folded) == (True, False, True)
    out = job.scan(job.write("a.sarif", result(HOSTILE)), "--format", "markdown", code=1).stdout
    row = next(line for line in out.splitlines() if "evil" in line)
    assert re.search(r"(?<!\\)[`<\[]", row) is None
    assert "@bob" not in row
    assert "#1" not in row
    assert "GH-12" not in row
    assert ci_module.in_markdown("see www.evil.example") == r"see www\.evil.example"
    assert len(re.findall(r"(?<!\\)\|", row)) == 4


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
    assert_one_line(job.run("export", "--severity", "hgh"), 2, "severity", "critical, high")
    assert_one_line(job.run("export", "--missing-from", "x"), 2)
    assert_one_line(job.run("export", "--db", "other.db"), 2, ABSENT, "" if ON_POSTGRES else "other.db")
    assert not (job.folder / "other.db").exists()


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that are documents of their own have seven tasks."""
    monkeypatch.setattr(ci_module, "EXPORTED", 7)
    monkeypatch.setattr("findings_client.LISTED", 7)


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
    job.scan(job.write("a.sarif", *findings), code=1, **server.variables)
    for form in ("json", "csv", "sarif"):
        there = job.run("export", "--format", form, **server.variables)
        here = job.run("export", "--format", form, "--db", str(server.db))
        assert (there.returncode, there.stdout) == (0, here.stdout)


def test_a_part_that_is_absent_is_said_so(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.scan(job.write("a.sarif"), code=0)
    monkeypatch.delitem(findings_service.REGISTRY.submission_formats, "application/sarif+json")
    for form in list(findings_service.REGISTRY.list_exports):
        monkeypatch.delitem(findings_service.REGISTRY.list_exports, form)
    load = findings_service.load_module
    missing = {"findings_adapters.sarif": "findings_adapters.sarif, which is not installed"}
    patch_core(monkeypatch, "load_module", lambda name: missing.get(name) or load(name))
    assert_one_line(job.scan("a.sarif"), 2, "findings_adapters.sarif, which is not installed")
    for form in ("sarif", "csv"):
        assert_one_line(job.run("export", "--format", form), 2, "its module for that is not installed")
    assert job.run("export", "--format", "json").stdout == "[\n]\n"
