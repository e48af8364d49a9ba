"""The commands scan, gate and export, run as CI jobs run them."""

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
from tests.engines import NO_DATABASE, ON_POSTGRES, db_at, locked, with_databases
from tests.files import foreign_database
from tests.servers import PATIENCE, PROGRAM, Server, environment, reset_signals

__all__ = ["away", "fake", "tune"]

TARGET = "https://git.example/shop"


def result(text: str = "Use of eval", *, file: str | None = "src/app.py", line: int = 3, **more: Any) -> dict[str, Any]:
    """Return a SARIF result of a scanner."""
    physical = {"artifactLocation": {"uri": file}, "region": {"startLine": line, "snippet": {"text": text}}}
    location = {"locations": [{"physicalLocation": physical}]} if file else {}
    return {"ruleId": "R1", "level": "error", "message": {"text": text}} | location | more


@dataclass
class Job:
    """A folder in which commands run, without the platform variables and settings of this machine."""

    folder: Path

    def write(self, file: str, *results: Any, **run: Any) -> str:
        """Write a SARIF document with one run and return the file name."""
        return self.write_log(file, log_with(*results, **{"name": "demo"} | run))

    def write_log(self, file: str, log: Any) -> str:
        """Write a document as JSON and return the file name."""
        (self.folder / file).write_text(json.dumps(log), "utf-8")
        return file

    def command(self, *words: str, **env: str) -> tuple[list[str], dict[str, Any]]:
        """Return the arguments of `Popen` that start a command in a new process."""
        variables = environment(PYTHONPATH=str(HERE), **self.settings(env))
        options = {"cwd": self.folder, "env": variables, "encoding": "utf-8", "preexec_fn": reset_signals}
        return [*PROGRAM, *with_databases(words, self.folder)], options

    @property
    def db(self) -> Path:
        """The path of the database that commands use by default."""
        return self.folder / "findings.db"

    def settings(self, env: dict[str, str]) -> dict[str, str]:
        """Return the variables of a command, with the database if it is not a file in the folder."""
        return {"FINDINGS_DB": db_at(self.db), **env} if ON_POSTGRES else env

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command in this process, which is faster than a new process."""
        out, err, code = (*(io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2)), 0)
        variables = mock.patch.dict(os.environ, environment(**self.settings(env)), clear=True)
        with chdir(self.folder), variables, redirect_stdout(out), redirect_stderr(err):
            try:
                findings_service.main(with_databases(words, self.folder), prog_name="findings-service")
            except SystemExit as error:
                code = error.code
        outputs = [each.flush() or each.buffer.getvalue().decode().replace("\r\n", "\n") for each in (out, err)]
        return subprocess.CompletedProcess(words, code, *outputs)

    def scan(self, *words: str, code: int | None = None, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run a scan and check its exit code if `code` is given."""
        done = self.run("scan", *words, **how)
        assert code is None or done.returncode == code, done.stderr + done.stdout
        return done

    def scan_json(self, *words: str, **how: Any) -> dict[str, Any]:
        """Run a scan with `--format json` and return the parsed output."""
        return json.loads(self.scan(*words, "--format", "json", **how).stdout)

    def service(self, *, new: bool = False) -> Client:
        """Return a client of a service over the database of the job."""
        return Client(Local(db_at(self.db), new=new))

    def read(self, path: str) -> Any:
        """Send a GET request and return the parsed response."""
        with self.service() as service:
            return service.request("GET", path).read(dict)

    def tasks(self) -> dict[str, dict[str, Any]]:
        return {task["title"]: task for task in self.read("tasks?view=full&limit=200")["tasks"]}

    def last_run(self) -> dict[str, Any]:
        return self.read("runs?limit=1")["runs"][0]

    def triage(self, title: str, status: str) -> None:
        """Set the status of the task with a title."""
        with self.service() as service:
            service.request("PATCH", f"tasks/{self.tasks()[title]['id']}", {"status": status})


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, *texts: str) -> None:
    """Check the exit code, and that stderr is one error line with these texts."""
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert all(text in done.stderr for text in texts), done.stderr


# The context of a scan: platform, branch, commit

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
FORK_REPOSITORY = {"full_name": "eve/shop"}


def pull(ref: str = "fix", repo: Any = ..., label: str = "acme:fix") -> dict[str, Any]:
    head = {"ref": ref, "label": label, "repo": {"full_name": "acme/shop"} if repo is ... else repo}
    return {"pull_request": {"head": head, "base": {"repo": SHOP}}}


def on_github(event: str, name: str = "trunk", data: Any = None, **env: str) -> tuple[dict[str, str], Any]:
    """Return the variables and the event of a workflow."""
    return GITHUB | {"GITHUB_EVENT_NAME": event, "GITHUB_REF_NAME": name} | env, data


def workflow_finished(branch: str, event: str, owner: str = "acme") -> dict[str, Any]:
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
    no_platform=(({}, None), None),
    github_push_to_default=(on_github("push"), None),
    github_push=(on_github("push", "fix"), "fix"),
    github_manual=(on_github("workflow_dispatch"), None),
    github_schedule=(on_github("schedule", data={}), None),
    github_tag_named_like_the_default=(on_github("push", GITHUB_REF_TYPE="tag"), "trunk"),
    github_pull=(on_github("pull_request", "5/merge", pull(), GITHUB_HEAD_REF="fix"), "fix"),
    github_pull_from_default=(on_github("pull_request", "5/merge", pull("trunk")), "trunk"),
    github_target=(on_github("pull_request_target", data=pull()), "fix"),
    github_head_ref_alone=(on_github("push", data={}, GITHUB_HEAD_REF="fix"), "fix"),
    github_fork=(on_github("pull_request", "5/merge", pull(repo=FORK_REPOSITORY, label="eve:fix")), "eve:fix"),
    github_deleted_fork=(on_github("pull_request", "5/merge", pull(repo=None, label="eve:fix")), "eve:fix"),
    github_comment_on_pull=(on_github("issue_comment", data={"issue": {"number": 5, "pull_request": {}}}), "pull/5"),
    github_comment_on_issue=(on_github("issue_comment", data={"issue": {"number": 5}}), None),
    github_after_push=(on_github("workflow_run", data=workflow_finished("trunk", "push")), None),
    github_after_pull=(on_github("workflow_run", data=workflow_finished("fix", "pull_request")), "fix"),
    github_after_fork=(on_github("workflow_run", data=workflow_finished("trunk", "pull_request", "eve")), "eve:trunk"),
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
    workflow_run=(on_github("workflow_run", data={"workflow_run": {"head_sha": "def456"}}), "def456"),
    target=(on_github("pull_request_target", data={"pull_request": {"head": {"sha": "def456"}}}), "def456"),
    comment_on_an_issue=(on_github("issue_comment", data={"issue": {"number": 5}}), "abc123"),
)


def context_of(folder: Path, given: tuple[dict[str, str], Any]) -> ScanContext:
    """Return the scan context for the variables and the event of a workflow."""
    env, data = given
    event = folder / "event.json"
    event.write_text(json.dumps({"repository": SHOP} | (data or {})))
    return place_of(env | {"GITHUB_EVENT_PATH": str(event)})


@pytest.mark.parametrize(("given", "commit"), COMMITS)
def test_commit_is_the_pull_request_head(tmp_path: Path, given: tuple[dict[str, str], Any], commit: str | None) -> None:
    assert context_of(tmp_path, given).metadata.get("commit") == commit


def test_commit_of_a_comment_event_is_the_checked_out_commit(checkout: Checkout, tmp_path: Path) -> None:
    comment_event = {"issue": {"number": 5, "pull_request": {}}}
    commit = checkout.commit(one=CODE)
    with chdir(checkout.folder):
        for sha, expected in ((commit, None), ("abc123", commit)):  # HEAD at GITHUB_SHA is the default branch
            env, event = on_github("issue_comment", data=comment_event, GITHUB_SHA=sha)
            assert context_of(tmp_path, (env, event)).metadata.get("commit") == expected


@pytest.mark.parametrize(("given", "branch"), BRANCHES)
def test_branch_is_read_from_platform_variables(tmp_path: Path, given: Any, branch: str | None) -> None:
    context = context_of(tmp_path, given)
    assert (context.branch, context.unknown) == (branch, "")


def test_pull_requests_forks_and_merge_queues_are_proposals(tmp_path: Path) -> None:
    kinds = "pull pull_from_default target head_ref_alone fork deleted_fork comment_on_pull after_pull after_fork"
    kinds += " queue queue_of_a_path"
    proposed = [each.id for each in BRANCHES if context_of(tmp_path, each.values[0]).proposed]
    assert proposed == [f"github_{kind}" for kind in kinds.split()]


def test_unknown_default_branch_never_selects_the_main_line(tmp_path: Path) -> None:
    env = on_github("push", "main")[0] | {"GITHUB_EVENT_PATH": str(tmp_path / "event.json")}
    for event in (None, "", "{", "[]", '"x"', "{}", '{"repository": {"default_branch": 5}}'):
        if event is not None:
            (tmp_path / "event.json").write_text(event)
        assert (place_of(env).branch, bool(place_of(env).unknown)) == ("main", True), event


def test_scan_requires_a_branch_if_the_platform_names_none(job: Job) -> None:
    for event in ("push", "pull_request", "workflow_run"):
        done = job.scan(job.write("a.sarif"), GITHUB_ACTIONS="true", GITHUB_EVENT_NAME=event)
        assert_one_line(done, 2, "do not name the branch", "--branch")
    assert list(job.folder.iterdir()) == [job.folder / "a.sarif"]


def test_target_and_metadata_are_read_from_platform_variables() -> None:
    url = "https://github.com/acme/shop"
    metadata = {"repository": url, "commit": "abc123", "pipeline": f"{url}/actions/runs/77", "actor": "ada"}
    assert (place_of(GITHUB).target, place_of(GITHUB).metadata) == (url, metadata)
    for env in ({"GITHUB_EVENT_NAME": "push"}, {"CI_PROJECT_ID": "7"}, {}):
        assert (place_of(env).target, place_of(env).metadata) == (None, {})


PROVENANCE = {"repositoryUri": "https://ada:sec@ret@code.example.com/shop?token=secret", "revisionId": "abc123"}
DOCUMENT_METADATA = {"repository": "https://code.example.com/shop", "commit": "abc123"}
SOURCES = cases(
    whole=([PROVENANCE], DOCUMENT_METADATA),
    second=([None, {"revisionId": "abc"}, PROVENANCE], DOCUMENT_METADATA),
    ssh=([PROVENANCE | {"repositoryUri": "ssh://code.example.com/shop"}], {}),
    no_commit=([PROVENANCE | {"revisionId": "\0 x"}, {"repositoryUri": PROVENANCE["repositoryUri"]}], {}),
    not_a_list=("x", {}),
    none=([], {}),
)


@pytest.mark.parametrize(("provenance", "metadata"), SOURCES)
def test_commit_is_read_from_the_document(job: Job, provenance: Any, metadata: dict[str, str]) -> None:
    job.scan(job.write("a.sarif", versionControlProvenance=provenance), code=0)
    assert job.last_run()["metadata"] == metadata


def test_source_url_pattern_is_stored_as_metadata(job: Job) -> None:
    pattern = "https://code.example.com/{path}?at={commit}#{line}"
    job.scan(job.write("a.sarif"), "--source-url", pattern, code=0)
    assert job.last_run()["metadata"] == {"sourceUrl": pattern}
    assert_one_line(job.scan("a.sarif", "--source-url", "javascript:{path}"), 2, "--source-url", "{path}")


def test_options_override_branch_target_and_type_of_the_platform(job: Job) -> None:
    env = GITLAB | {"CI_COMMIT_BRANCH": "fix"}
    job.scan(job.write("a.sarif", versionControlProvenance=[PROVENANCE]), code=0, **env)
    run = job.last_run()
    assert (run["branch"], run["targetUrl"], run["projectType"]) == ("fix", GITLAB["CI_PROJECT_URL"], "demo")
    metadata = {"commit": "abc123", "pipeline": GITLAB["CI_PIPELINE_URL"], "actor": "ada"}
    assert run["metadata"] == metadata | {"repository": GITLAB["CI_PROJECT_URL"]}
    job.scan("a.sarif", "--branch", "", "--target", TARGET, "--type", "web", code=0, **env)
    run = job.last_run()
    assert (run["branch"], run["targetUrl"], run["projectType"]) == (None, TARGET, "web")
    job.scan("a.sarif", "--branch", "other", "--target", "", code=0, **env)
    run = job.last_run()
    assert (run["branch"], run["targetUrl"], run["metadata"]["actor"]) == ("other", None, "ada")


def test_scan_prints_a_note_for_each_assumption(job: Job) -> None:
    for env, note in (
        (GITHUB | {"GITHUB_REF_NAME": "main"}, "assuming branch main; use --branch NAME"),
        ({"CI": "true"}, "assuming the main line; use --branch NAME"),
        (GITLAB | {"CI_COMMIT_BRANCH": "trunk", "CI_PROJECT_URL": "git@x:y"}, "git@x:y is not a valid http"),
    ):
        done = job.scan(job.write("a.sarif"), code=0, **env)
        assert note in done.stderr
        assert len(done.stderr.splitlines()) == 2


# scan


def test_each_tool_has_a_run_with_a_project_type_of_its_name(job: Job) -> None:
    job.write_log("both.sarif", log_of(run_of(result("one"), name="Semgrep OSS"), run_of(result("two"), name="bandit")))
    job.write("more.sarif", result("three", file="src/b.py"), name="bandit")
    verdict = job.scan_json("both.sarif", "more.sarif")
    assert (verdict["pass"], [gate["reported"] for gate in verdict["runs"]]) == (False, [1, 2])
    labels = {each["name"]: each["label"] for each in job.read("project-types")["projectTypes"]}
    assert labels == {"semgrep-oss": "Semgrep OSS", "bandit": "bandit"}
    types = {title: each["projectType"] for title, each in job.tasks().items()}
    assert types == {"one": "semgrep-oss", "two": "bandit", "three": "bandit"}
    job.scan("both.sarif", "more.sarif", "--type", "all", code=1)
    assert job.read("runs?projectType=all")["total"] == 1
    name = f"-{'X' * 99} {'Y' * 200}-"
    job.scan(job.write("a.sarif", name=name), code=0)
    assert job.read(f"project-types/{'x' * 99}")["label"] == name[:200]


@pytest.mark.parametrize("names", [("§§",), ("Tool 1", "tool-1"), ("-" * 3, "b")])
def test_tool_name_without_unique_project_type_requires_type(job: Job, names: tuple[str, ...]) -> None:
    assert_one_line(job.scan(job.write_log("a.sarif", log_of(*(run_of(name=name) for name in names)))), 2, "--type")
    assert not (job.folder / "findings.db").exists()
    job.scan("a.sarif", "--type", "all", code=0)


def test_all_runs_fail_if_one_submission_is_rejected(job: Job) -> None:
    with job.service(new=True) as service:
        schema = {"properties": {"owner": {}}, "required": ["owner"]}
        service.request("POST", "project-types", {"name": "b", "extensionSchema": schema})
    job.write("a.sarif", result(), name="A")
    assert_one_line(job.scan("a.sarif", job.write("b.sarif", result(), name="B")), 2, "b.sarif: ", "owner")
    assert [run["status"] for run in job.read("runs")["runs"]] == ["failed", "failed"]
    job.write_log("both.sarif", log_of(run_of(result(), name="A"), run_of(result(), name="B")))
    assert_one_line(job.scan("both.sarif"), 2, "both.sarif, B: ", "/runs/0/results/0")


@pytest.mark.parametrize("output_format", ["table", "markdown", "github"])
def test_output_lists_each_run_and_ends_with_the_verdict(job: Job, output_format: str) -> None:
    job.write("a.sarif", result("of a"), name="A")
    job.write("b.sarif", name="B")
    lines = job.scan("a.sarif", "b.sarif", "--format", output_format, code=1).stdout.splitlines()
    titles = [line for line in lines if line in ("a:", "b:", "### a", "### b")]
    assert [title.strip("#: ") for title in titles] == ["a", "b"]
    assert lines[-1] == "Not passed: a."
    assert job.scan("a.sarif", "b.sarif", "--format", output_format, code=0).stdout.splitlines()[-1] == "Passed."
    job.write("b.sarif", result("of b"), name="B")
    document = json.loads(job.scan("a.sarif", "b.sarif", "--format", "sarif", code=1).stdout)
    (run,) = document["runs"]  # code scanning accepts one run per tool
    assert {each["message"]["text"] for each in run["results"]} == {"of a", "of b"}


def test_without_baseline_option_decides_if_a_first_run_passes(job: Job) -> None:
    job.write("a.sarif", result())
    options = ("a.sarif", "--branch", "b")
    assert "there is no baseline: the first completed run of the main line" in job.scan(*options, code=1).stdout
    assert "there is no baseline" in job.scan(*options, "--fail-on", "none", code=0).stdout
    assert "passed without a baseline" in job.scan(*options, "--without-baseline", "pass", code=0).stdout
    output = job.scan(*options, "--only", "all", "--without-baseline", "pass", code=0).stdout
    assert "passed without a baseline because of --without-baseline pass." in output
    assert job.scan_json(*options, "--without-baseline", "pass")["runs"][0]["pass"]
    run = job.last_run()["id"]
    assert job.run("gate", run).returncode == 1
    assert job.run("gate", run, "--without-baseline", "pass").returncode == 0
    job.scan(job.write("none.sarif"), code=0)
    job.scan(*options, "--without-baseline", "pass", code=1)


def test_remaining_absolute_paths_print_a_note_with_the_fix(job: Job) -> None:
    (job.folder / "src").mkdir()
    job.write("a.sarif", result(file=(job.folder / "src" / "a.js").as_uri()), result(file="file:///other/b.js"))
    done = job.scan("a.sarif", "--source", ".")
    assert "absolute paths, such as /other/b.js (1 in all), so they are new" in done.stderr
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


def test_resolve_missing_affects_only_findings_of_the_same_tool(job: Job) -> None:
    job.scan(job.write("a.sarif", result("one"), result("two")), code=1)
    job.write("a.sarif", result("one"))
    assert "1 no longer reported" in job.scan("a.sarif", code=0).stdout
    assert job.tasks()["two"]["status"] == "open"
    assert "1 resolved because no longer reported" in job.scan("a.sarif", "--resolve-missing", code=0).stdout
    job.scan(job.write("b.sarif", result("of b"), name="B"), "--resolve-missing", code=1)
    statuses = {title: task["status"] for title, task in job.tasks().items()}
    assert statuses == {"one": "open", "two": "resolved", "of b": "open"}


def test_unusable_run_disables_resolve_missing_for_its_tool(job: Job) -> None:
    one, first, second = (run_of(result(text), name=name) for text, name in (("x", "A"), ("y", "B"), ("z", "B")))
    job.scan(job.write_log("a.sarif", log_of(one, first, second)), "--fail-on", "none", code=0)
    job.write_log("a.sarif", log_of(one, first, run_of(name="B") | {"results": None}))
    done = job.scan("a.sarif", "--resolve-missing", code=1)
    assert "b did not check everything" in done.stderr
    assert "a did not" not in done.stderr
    assert job.tasks()["z"]["status"] == "open"


def test_not_checked_findings_are_sent_once_to_the_run_of_their_tool(job: Job) -> None:
    invocation = {"toolExecutionNotifications": [{"level": "error", "message": {"text": "Timeout"}}]}
    runs = [
        run_of(result("one"), result("other"), name="A", invocations=[invocation]),
        run_of(result("three"), name="B"),
        run_of(name="C") | {"results": None},
    ]
    output = job.scan(job.write_log("a.sarif", log_of(*runs)), "--resolve-missing", code=1).stderr
    assert output.count("did not check everything") == output.count("a did not check everything") == 1
    tasks = job.read("tasks?sort=createdAt")["tasks"]
    rules = [(task["projectType"], task["rule"]) for task in tasks]
    assert rules == [("a", "R1"), ("a", "R1"), *[("a", "not-checked")] * 2, ("b", "R1")]
    job.scan("a.sarif", code=1)
    assert job.read("tasks")["total"] == 5
    job.scan("a.sarif", "--type", "all", code=1)
    assert job.last_run()["submitted"]["created"] == 5


def test_file_pattern_must_match_at_least_one_file(job: Job) -> None:
    for name in ("a.sarif", "b/c.sarif", "b/d/e.sarif", ".git/f.sarif", "b/[g].sarif"):
        (job.folder / name).parent.mkdir(parents=True, exist_ok=True)
        job.write(name, result(name))
    (job.folder / "b" / "loop").symlink_to("..")
    job.scan("**/*.sarif", "a.sarif", str(job.folder / "b" / "*.sarif"), code=1)
    assert {*job.tasks()} == {"a.sarif", "b/c.sarif", "b/d/e.sarif", "b/[g].sarif"}
    job.scan("b/[g].sarif", ".git/*.sarif", code=1)
    assert ".git/f.sarif" in job.tasks()
    for pattern, message in (("*.json", "*.json matches no file"), ("a**.sarif", "a**.sarif: ")):
        assert_one_line(job.scan("a.sarif", pattern), 2, message)


BAD_FILES = cases(
    absent=(None, "No such file"),
    empty=(b" \n", "is empty"),
    cut=(b'{"version": "2.1.0", "runs": [', "JSON"),
    utf16=('{"version": "2.1.0"}'.encode("utf-16"), "/runs: must contain at least one run"),
    cut_utf16=(b"\xff\xfe{", "is not valid UTF-16"),
    deep=(b'{"runs":' + b"[" * 100_000, "levels"),
    array=(b"[]", "[] does not identify the tool"),
    version=(b'{"version": "2.0.0", "runs": [{}]}', "/version: must be 2.1.0"),
    no_runs=(b'{"version": "2.1.0"}', "/runs: must contain at least one run"),
    failed=(json.dumps(log_with(invocations=[{"executionSuccessful": False}])).encode(), "reports that it failed"),
)


@pytest.mark.parametrize(("content", "message"), BAD_FILES)
def test_invalid_file_is_rejected_before_a_run_starts(job: Job, content: bytes | None, message: str) -> None:
    good = job.write("good.sarif", result())
    if content is not None:
        (job.folder / "bad.sarif").write_bytes(content)
    assert_one_line(job.scan(good, "bad.sarif"), 2, "bad.sarif", message)
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


@pytest.mark.parametrize(("options", "message"), BAD_USAGE)
def test_usage_errors_exit_with_code_2(job: Job, options: Sequence[str], message: str) -> None:
    job.write("a.sarif", result())
    done = job.scan(*options, code=2, **({"FINDINGS_KEY": "x" * 20} if message == "is not a URL" else {}))
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    if (job.folder / "findings.db").exists():
        assert job.read("runs")["total"] == 0


TOO_LARGE = cases(read=((), -1000), with_source=(("--source", "."), -1), graded=(("--severity", "R=low"), 1))


@pytest.mark.parametrize(("options", "margin"), TOO_LARGE)
def test_too_large_document_is_rejected_before_a_run_starts(job: Job, options: tuple[str, ...], margin: int) -> None:
    limit = (job.folder / job.write("a.sarif", result("x" * 2000))).stat().st_size + margin
    done = job.scan("a.sarif", *options, FINDINGS_MAX_SARIF=str(limit))
    assert_one_line(done, 2, f"larger than {limit:,} bytes", "split it")
    assert not (job.folder / "findings.db").exists()


def test_utf_16_with_byte_order_mark_is_read(job: Job) -> None:
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
    """A job folder that is a git checkout; git ignores the database and the reports."""

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=u", "-c", "user.email=u@example.com", "-c", "init.defaultBranch=main")
        done = subprocess.run(["git", *identity, *words], cwd=self.folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, **files: str) -> str:
        """Commit files, each named by its module, and return the commit id."""
        for name, text in files.items():
            (self.folder / f"{name}.py").write_text(text, "utf-8")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "change")
        return self.git("rev-parse", "HEAD")

    def scan_at(self, commit: str, *words: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """Scan the checkout as a commit of the main line."""
        env = GITLAB | {"CI_COMMIT_BRANCH": "trunk", "CI_COMMIT_SHA": commit}
        return self.scan("--source", ".", *words, "a.sarif", **how, **env)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    checkout_job = Checkout(tmp_path)
    checkout_job.git("init", "--quiet")
    (tmp_path / ".git" / "info" / "exclude").write_text("*.sarif\nfindings.*\n")
    return checkout_job


PROPOSALS = cases(
    github=GITHUB | {"GITHUB_EVENT_NAME": "pull_request", "GITHUB_HEAD_REF": "fix"},
    gitlab=GITLAB | MERGE_REQUEST | {"CI_MERGE_REQUEST_IID": "5"},
)


BARE_REPOSITORY = {"HEAD": "ref: refs/heads/main", "config": "[core]\nbare = true\n", "refs/x": "", "objects/x": ""}


def look_like_a_repository(folder: Path) -> None:
    """Write files that make git take the folder for a bare repository."""
    for name, text in BARE_REPOSITORY.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.sqlite
@pytest.mark.parametrize("env", PROPOSALS)
def test_proposal_cannot_use_a_database_in_the_checkout(checkout: Checkout, env: dict[str, str]) -> None:
    look_like_a_repository(checkout.folder / "backend")
    options = ("--source", "backend", checkout.write("a.sarif"))
    for path in ("findings.db", "backend/findings.db", str(checkout.folder / "other.db")):
        assert_one_line(
            checkout.scan(*options, "--db", path, **env), 2, f"{path} is in the checkout, where a pull", "--db"
        )
    for path in (".git/findings.db", "../findings.db"):
        assert checkout.scan(*options, "--db", path, code=0, **env)
    checkout.git("init", "--quiet", "lib")  # a checkout within this one
    assert checkout.scan("--source", "lib", "a.sarif", "--db", "findings.db", **env).returncode == 2
    (checkout.folder / "linked.db").symlink_to("findings.db")
    assert checkout.scan(*options, "--db", "linked.db", **env).returncode == 2
    shutil.rmtree(checkout.folder / ".git")  # the code was not fetched with git
    assert checkout.scan("a.sarif", "--db", "findings.db", **env).returncode == 2
    assert not (checkout.folder / "findings.db").exists()


@pytest.mark.parametrize("env", PROPOSALS)
def test_proposal_cannot_use_a_report_tracked_by_git(checkout: Checkout, env: dict[str, str]) -> None:
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
    for name, target in (("link", "reports"), ("linked.sarif", "reports/a1.sarif"), ("own.sarif", "b.sarif")):
        (checkout.folder / name).symlink_to(target)
    checkout.git("add", "--force", "own.sarif")
    for name in ("link/a1.sarif", "linked.sarif", "own.sarif", "reports/../reports/a1.sarif"):
        assert_one_line(checkout.scan(name, *db, **env), 2, f"{name} is tracked by git")
    checkout.scan("link/a[1].sarif", *db, code=0, **env)


@pytest.mark.parametrize("env", PROPOSALS)
def test_report_of_a_proposal_is_rejected_if_git_is_unusable(
    checkout: Checkout, tmp_path: Path, env: dict[str, str]
) -> None:
    db = () if ON_POSTGRES else ("--db", str(tmp_path.parent / f"{tmp_path.name}.db"))
    checkout.git("init", "--quiet", "--separate-git-dir", ".git/of-a-submodule", "submodule")
    name = checkout.write("submodule/a.sarif")
    checkout.scan(name, *db, code=0, **env)
    checkout.git("-C", "submodule", "add", "--force", "a.sarif")
    assert_one_line(checkout.scan(name, *db, **env), 2, f"{name} is tracked by git")
    shutil.rmtree(checkout.folder / ".git" / "of-a-submodule")
    for path in ({}, {"PATH": ""}):
        assert_one_line(checkout.scan(name, *db, **env, **path), 2, f"{name} is in a checkout and git is not installed")
    shutil.rmtree(checkout.folder / ".git")
    (checkout.folder / "submodule" / ".git").unlink()
    checkout.scan(name, *db, code=0, **env, PATH="")


def in_module(name: str, *numbers: int) -> list[dict[str, Any]]:
    """Return results at lines of a module, without code; the checkout has the code."""
    return [result() | {"locations": [at_line(name, number)]} for number in numbers]


def at_line(name: str, number: int) -> dict[str, Any]:
    """Return a location in a module, without code."""
    return {"physicalLocation": {"artifactLocation": {"uri": f"{name}.py"}, "region": {"startLine": number}}}


CODE = "".join(f"line({number})\n" for number in range(1, 30))


def test_renamed_file_passes_the_gate_and_keeps_decisions(checkout: Checkout) -> None:
    first = checkout.commit(one=CODE, other="x = 1\n")
    checkout.write("a.sarif", *in_module("one", 3, 5))
    checkout.scan_at(first, code=1)
    [known] = [each for each in checkout.read("tasks")["tasks"] if each["location"] == "one.py:5"]
    with checkout.service() as service:
        service.request("PATCH", f"tasks/{known['id']}", {"status": "dismissed"})
    checkout.git("mv", "one.py", "two.py")
    second = checkout.commit(two=f"# moved\n{CODE}")
    checkout.write("a.sarif", *in_module("two", 4, 6))
    on_branch = checkout.scan_at(second, "--branch", "fix", code=0)
    assert "0 new, 1 known, 1 dismissed" in on_branch.stdout
    assert "0 new, 1 known, 1 dismissed" in checkout.scan_at(second, code=0).stdout  # after the merge
    checkout.git("checkout", "--quiet", first)  # another branch that has the old name
    checkout.write("a.sarif", *in_module("one", 3, 5))
    assert "0 new, 1 known, 1 dismissed" in checkout.scan_at(first, "--branch", "other", code=0).stdout
    tasks = checkout.read("tasks?mainLine=true")["tasks"]
    assert {(each["location"], each["status"]) for each in tasks} == {("two.py:4", "open"), ("two.py:6", "dismissed")}


def test_renames_are_computed_since_the_last_complete_baseline(checkout: Checkout) -> None:
    first = checkout.commit(one=CODE)
    checkout.write("a.sarif", *in_module("one", 3))
    checkout.scan_at(first, code=1)
    checkout.git("mv", "one.py", "two.py")
    second = checkout.commit()
    invocations = [
        {"executionSuccessful": True, "toolExecutionNotifications": [{"level": "error", "message": {"text": "x"}}]}
    ]
    checkout.write("a.sarif", invocations=invocations)
    checkout.scan_at(second, code=1)
    checkout.write("a.sarif", *in_module("two", 3))
    assert "0 new, 1 known" in checkout.scan_at(second, "--branch", "fix", code=0).stdout
    output = checkout.scan_at(second, "--branch", "fix", "--only", "all", "--format", "github", code=1).stdout
    assert output.startswith("::error file=two.py,line=3,")  # at the location in the document


def test_annotations_and_sarif_use_the_selected_baseline(checkout: Checkout) -> None:
    first = checkout.commit(one=CODE)
    checkout.write("a.sarif", *in_module("one", 3))
    checkout.scan_at(first, code=1)
    later = checkout.commit(two=CODE)
    checkout.write("a.sarif", *in_module("two", 4))
    checkout.scan_at(later, "--resolve-missing", code=1)  # one finding is fixed, another one is new
    checkout.write("a.sarif", *in_module("one", 3), *in_module("two", 4))
    scan = partial(checkout.scan_at, first, "--branch", "fix", "--base", "main~1", code=1)
    lines = scan("--format", "github").stdout.splitlines()
    assert [line.partition(",")[0] for line in lines if line.startswith("::")] == ["::error file=two.py"]
    [run] = json.loads(scan("--format", "sarif").stdout)["runs"]
    uris = (each["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for each in run["results"])
    states = dict(zip(uris, (each["baselineState"] for each in run["results"]), strict=True))
    assert states == {"one.py": "unchanged", "two.py": "new"}


def test_base_option_compares_a_branch_with_its_starting_commit(checkout: Checkout) -> None:
    first = checkout.commit(one=CODE)
    checkout.write("a.sarif", *in_module("one", 3))
    checkout.scan_at(first, code=1)
    later = checkout.commit(other="x = 1\n")
    checkout.write("a.sarif")
    checkout.scan_at(later, "--resolve-missing", code=0)  # the main line has fixed it in the meantime
    checkout.write("a.sarif", *in_module("one", 3))
    assert "1 new" in checkout.scan_at(first, "--branch", "fix", code=1).stdout
    based = checkout.scan_at(first, "--branch", "fix", "--base", first, code=0)
    assert "0 new, 1 known" in based.stdout
    run = checkout.last_run()
    assert (run["verdict"]["pass"], run["verdict"]["new"]) == (True, 0)
    assert run["verdict"]["baseline"] == checkout.read("runs?limit=10")["runs"][-1]["id"]
    newer = checkout.commit(third="y = 1\n")  # it has no run: the last run before it is the baseline
    assert "1 new" in checkout.scan_at(newer, "--branch", "fix", "--base", newer, code=1).stdout
    unknown = checkout.scan_at(first, "--branch", "fix", "--base", "f" * 40, code=1)
    assert f"no run of demo is of commit {'f' * 40} or an ancestor" in unknown.stderr


def test_each_sarif_category_has_its_own_run(job: Job) -> None:
    for language in ("java", "javascript"):
        job.write(f"{language}.sarif", result(language), name="CodeQL", automationDetails={"id": f"/lang:{language}/7"})
    job.scan("java.sarif", "javascript.sarif", "--resolve-missing", code=1)
    assert {run["projectType"] for run in job.read("runs")["runs"]} == {"codeql-lang-java", "codeql-lang-javascript"}
    job.write("tool.sarif", result(), name="CodeQL /lang:java")
    both = job.scan("java.sarif", "tool.sarif")
    assert_one_line(both, 2, "have the same project type name, codeql-lang-java; use --type")
    job.write("java.sarif", name="CodeQL", automationDetails={"id": "/lang:java/8"})
    assert "1 resolved" in job.scan("java.sarif", "--resolve-missing", code=0).stdout
    assert {name: each["status"] for name, each in job.tasks().items()} == {"java": "resolved", "javascript": "open"}


def test_documents_of_one_tool_are_submitted_together(job: Job) -> None:
    names = [job.write(f"{name}.sarif", result("same"), result(name, line=9)) for name in "ab"]
    done = job.scan(*names, code=1)
    assert "duplicate others at the same place, and are stored once: 1." in done.stderr
    assert len(job.tasks()) == 3
    assert job.last_run()["submitted"]["created"] == 3


def test_paths_keep_the_folder_if_base_uris_differ(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_config, "RESULTS_AT_ONCE", 1)  # sends each result in its own part
    invocations = [
        {"toolExecutionNotifications": [{"level": "error", "message": {"text": "x"}, "locations": [at_line("b", 1)]}]}
    ]
    for folder in ("backend", "frontend"):
        bases = {"ROOT": {"uri": f"file:///builds/7/{folder}/"}}
        job.write(f"{folder}.sarif", result(folder, file="a.py"), originalUriBaseIds=bases, invocations=invocations)
    job.write("other.sarif", result("of b", file="a.py"), name="B", originalUriBaseIds={"R": {"uri": "file:///b/"}})
    names = ("backend.sarif", "frontend.sarif", "other.sarif")
    output = job.scan(*names, "--explain", "--exclude", "/frontend/a.py", "--format", "github").stdout
    assert "file=backend/a.py,line=3" in output
    found = {(task["projectType"], task["location"]) for task in job.read("tasks")["tasks"]}
    assert found == {("demo", "backend/a.py:3"), ("demo", "backend/b.py"), ("demo", "frontend/b.py"), ("b", "a.py:3")}
    forged = {"findingsTaskService/folder": "evil"}
    for options in ((), ("--ours",)):
        job.scan(job.write("a.sarif", result("forged", file="a.py"), name="C", properties=forged), *options)
        assert job.tasks()["forged"]["location"] == "a.py:3"


def test_external_ids_in_a_report_are_used_only_with_option_ours(job: Job) -> None:
    job.scan(job.write("a.sarif", result("known")), code=1)
    known = job.tasks()["known"]
    forged = result("new", line=80, file="evil.py") | {"fingerprints": {"findingsTaskService/v1": known["externalId"]}}
    fields = {"title": "whole", "severity": "low", "externalId": known["externalId"], "status": "dismissed"}
    imported = result("carried", line=81) | {"properties": {"findingsTaskService/v1": fields}}
    job.write("a.sarif", forged, imported)
    assert "2 new" in job.scan("a.sarif", "--branch", "fix", code=1).stdout
    assert "0 new" in job.scan("a.sarif", "--branch", "fix", "--ours", code=0).stdout
    job.write("a.sarif", result("known") | {"properties": {"findingsTaskService/v1": {"title": "broken"}}})
    assert "0 new" in job.scan("a.sarif", code=0).stdout
    assert_one_line(job.scan("a.sarif", "--ours"), 2, "required property")


def test_renames_in_a_report_are_ignored(job: Job) -> None:
    job.scan(job.write("a.sarif", result(file="old.py")), code=1)
    for options, file in ((), "new.py"), (("--ours",), "newer.py"):
        job.write("a.sarif", result(file=file), properties={"findingsTaskService/renames": {file: "old.py"}})
        assert "1 new" in job.scan("a.sarif", "--branch", "fix", *options, code=1).stdout


def test_lone_surrogates_are_replaced_and_huge_numbers_rejected(job: Job) -> None:
    path = job.folder / job.write("a.sarif", result("TEXT"), properties={"n": 0.25})
    text = path.read_text("utf-8")
    path.write_text(text.replace("TEXT", "cut \\ud83d"), "utf-8")
    job.scan("a.sarif", code=1)
    assert [*job.tasks()] == ["cut \N{REPLACEMENT CHARACTER}"]
    path.write_text(text.replace("0.25", "1" * 5000), "utf-8")
    assert_one_line(job.scan("a.sarif"), 2, "a.sarif has a number that is too large, such as 1e999")
    log = log_of(run_of(result("one"), name="a"), run_of(result("two"), name="b"))  # two tools: the document is split
    path.write_text(json.dumps({**log, "properties": {"n": 0.25}}).replace("0.25", "1e999"), "utf-8")
    assert "a.sarif, a cannot be encoded as JSON: Out of range" in job.scan("a.sarif", code=2).stderr


def test_note_counts_results_identified_by_message(job: Job) -> None:
    without_code = (result(text) | {"locations": [at_line("a", 1)]} for text in ("one", "two"))
    job.write("a.sarif", *without_code, result("with code"))
    note = "Note: results without fingerprint and code, identified by their messages: 2"
    assert f"{note}; use --source with" in job.scan("a.sarif", code=1).stderr
    assert f"{note}.\n" in job.scan("a.sarif", "--source", ".", code=0).stderr
    job.write("a.sarif", result("with code"))
    assert "identify" not in job.scan("a.sarif", code=0).stderr
    mypy = {"file": "a.py", "line": 1, "column": 0, "message": "Bad", "hint": None, "code": "misc", "severity": "error"}
    (job.folder / "mypy.json").write_text(json.dumps(mypy), "utf-8")
    assert f"{note.removesuffix('2')}1; use --source with" in job.scan("mypy.json").stderr


def test_note_counts_invalid_security_scores(job: Job) -> None:
    results = [result(str(score), line=n, properties={"security-severity": score}) for n, score in enumerate(SCORES, 1)]
    assert "are ignored: 2, such as severe." in job.scan(job.write("a.sarif", *results), code=1).stderr
    stored = {name: each["severity"] for name, each in job.tasks().items()}
    severities = ("critical", "critical", "high", "low", "high", "high", "high", "high")
    assert stored == dict(zip((*SCORES[:-1], "R1"), severities, strict=True))


SCORES = ("9,8", "9.8/10", "HIGH", "Low", "severe", "11", "0.0", "")  # the last one is empty: the title is the rule


def test_devices_and_pipes_are_rejected(job: Job) -> None:
    os.mkfifo(job.folder / "fifo")
    for name in ("/dev/null", "/dev/zero", "fifo"):  # reading the last one would block
        assert_one_line(job.scan(name), 2, "not a regular file", "configure the scanner to write to one")


def test_locked_database_and_internal_errors_exit_with_code_3(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.scan(job.write("a.sarif"), code=0)
    with locked(job.db):
        assert_one_line(job.scan("a.sarif", FINDINGS_BUSY_TIMEOUT="0.2"), 3, "too long" if ON_POSTGRES else "locked")
    monkeypatch.setattr(ci_module, "report_of", 1)
    assert job.scan("a.sarif", code=3).stderr.splitlines()[-1].startswith("Error: TypeError")


@pytest.mark.sqlite
def test_unusable_database_prints_one_error_line(job: Job) -> None:
    foreign_database(job.folder / "findings.db")
    assert_one_line(job.scan(job.write("a.sarif")), 3, "findings.db")
    assert_one_line(job.scan("a.sarif", "--db", "no/folder/findings.db"), 3, "no/folder")


# scan, with a service at a URL


def test_scan_submits_to_a_service_url(job: Job, server: Server) -> None:
    env = server.variables | {"FINDINGS_KEY": f"{server.key}\n"}
    job.write("a.sarif", result())
    job.scan("a.sarif", "--target", TARGET, code=1, **env)
    job.scan("a.sarif", "--target", TARGET, code=0, **env)
    assert server.request("GET", f"{API}/tasks").json["tasks"][0]["timesSeen"] == 2
    assert not (job.folder / "findings.db").exists()
    job.scan("a.sarif", "--db", "findings.db", code=1, **env)  # options override the environment
    assert job.last_run()["status"] == "completed"


def test_large_document_is_sent_in_several_requests(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, submit = list[list[str]](), ci_module.submit
    monkeypatch.setattr(scan_config, "RESULTS_AT_ONCE", 3)
    recorded = lambda *args: sent.extend(uris_in(each.text) for each in args[-1]) or submit(*args)  # noqa: E731
    monkeypatch.setattr(ci_module, "submit", recorded)
    results = [result(f"eval {n // 2}", file=f"{'abc'[n % 3]}.py", line=n + 1) for n in range(12)]
    moved = [result("moved", file=f"{file}.py", fingerprints={"v1": "same"}) for file in "adad"]
    job.write_log("a.sarif", log_of(run_of(*results, name="demo"), run_of(*moved, name="demo")))
    job.scan("a.sarif", code=1)
    assert sum(map(len, sent)) == 16
    assert [{*uris} for uris in sent] == [{"a.py"}, {"b.py"}, {"c.py"}, {"d.py"}]
    assert job.last_run()["submitted"]["created"] == 14  # results at one place are one finding
    monkeypatch.undo()
    job.scan("a.sarif", code=0)
    assert job.last_run()["submitted"]["unchanged"] == 14


def uris_in(document: bytes) -> list[str]:
    """Return the file of each result in a document."""
    results = [each for run in json.loads(document)["runs"] for each in run["results"]]
    return [each["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for each in results]


def test_wrong_key_or_unreachable_service_exits_with_code_3(job: Job, server: Server, away: Fake, tune: Tune) -> None:
    read_key = job.run("keys", "create", "ci", "--level", "read", "--db", str(server.db)).stdout.strip()
    job.write("a.sarif", result())
    for key, message in ((read_key, "level agent"), ("fts_" + "x" * 43, "unknown, expired or revoked")):
        done = job.scan("a.sarif", "--url", server.url, FINDINGS_KEY=key)
        assert_one_line(done, 3, message)
        assert key not in done.stderr
    assert server.request("GET", f"{API}/runs").json["total"] == 0
    tune(PATIENCE=0.1)
    away.stop()
    done = job.scan("a.sarif", "--url", away.url, FINDINGS_KEY="x" * 20)
    assert_one_line(done, 3, f"no response from {away.url}", "Connection refused")


@pytest.mark.signals
def test_stopped_scan_marks_its_run_as_failed(job: Job, fake: Callable[..., Fake], server: Server) -> None:
    for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        proxy, submitting, go_on = fake(server), threading.Event(), threading.Event()
        proxy.before["/tasks"] = lambda begun=submitting, end=go_on: begun.set() or end.wait(PATIENCE)
        line, options = job.command("scan", job.write("a.sarif", result()), "--url", proxy.url, FINDINGS_KEY=server.key)
        with subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, **options) as process:
            assert submitting.wait(PATIENCE)
            process.send_signal(signal_number)
            out, err = process.communicate(timeout=PATIENCE)
            go_on.set()
        assert (process.returncode, out, err) == (3, "", f"Error: stopped by {signal_number.name}\n")
        run = server.request("GET", f"{API}/runs").json["runs"][0]
        assert (run["status"], run["statusReason"]) == ("failed", f"stopped by {signal_number.name}")


# Output for people: table, annotations, Markdown

HOSTILE = "Say \x1b[2J\u202eevil\u2066 \r\n::set-env name=X::y ##[error]z | `a` <b> [c](d) @bob #1 GH-12"


def test_table_is_sorted_by_severity_and_ends_with_the_reason(job: Job) -> None:
    job.scan(job.write("a.sarif", result("known", level="warning")), code=0)
    job.write("a.sarif", result("minor", level="note"), result("known", level="warning"), result("grave", line=9))
    lines = job.scan("a.sarif", code=1).stdout.splitlines()
    words = [line.split() for line in lines]
    assert words[0] == ["high", "new", "src/app.py:9", "grave"]
    assert words[1] == ["medium", "src/app.py:3", "known"]
    assert words[2] == ["low", "new", "src/app.py:3", "minor"]
    assert (lines[3], len(lines)) == ("2 new, 1 known, 0 dismissed", 5)
    assert lines[4] == job.read(f"runs/{job.last_run()['id']}/gate")["reason"]


@pytest.mark.parametrize("output_format", ["table", "markdown", "github"])
def test_output_escapes_control_characters_and_workflow_commands(job: Job, output_format: str) -> None:
    job.write("a.sarif", result(HOSTILE, file=f"src/{HOSTILE}.py", ruleId=HOSTILE))
    done = job.scan("a.sarif", "--format", output_format, "--explain", code=1)
    for output in (done.stdout, done.stderr):
        assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", output)
        assert "\\u202e" in output
        assert len([line for line in output.splitlines() if "evil" in line]) == 1
        assert not any(line.startswith("::set-env") for line in output.splitlines())
        assert "##[" not in output


@pytest.mark.parametrize(
    ("output_format", "expected"),
    [
        ("table", "one two four three five six seven"),  # at one location new findings are first
        ("markdown", "four seven one two three five six"),  # known findings are last, in a folded section
    ],
)
def test_findings_of_equal_severity_are_sorted_by_location(job: Job, output_format: str, expected: str) -> None:
    places = {"three": ("b.py", 9), "five": ("b.py", 10), "two": ("a.py", 100), "six": (None, 1), "one": ("a.py", 20)}
    known = [result(title, file=file, line=line) for title, (file, line) in places.items()]
    job.scan(job.write("a.sarif", *known), code=1)
    job.write("a.sarif", result("seven", level="note", file="a.py"), *known, result("four", file="b.py", line=9))
    out = job.scan("a.sarif", "--format", output_format, code=1).stdout
    shown = re.findall(r"\b(?:one|two|three|four|five|six|seven)\b", out)
    assert shown == expected.split()


def test_table_shows_50_rows_with_new_findings_first(job: Job) -> None:
    known = [result(f"known {number}") for number in range(60)]
    job.scan(job.write("a.sarif", *known), code=1)
    job.write("a.sarif", *known, result("grave and new", level="warning"))
    lines = job.scan("a.sarif", "--fail-on", "medium", code=1).stdout.splitlines()
    assert lines[49].split()[:2] == ["medium", "new"]
    assert (lines[50:52], len(lines)) == (["… and 11 more", "1 new, 60 known, 0 dismissed"], 53)


def test_resolved_finding_that_a_branch_reports_is_shown(job: Job) -> None:
    job.scan(job.write("a.sarif", result("fixed")), code=1)
    job.triage("fixed", "resolved")
    lines = job.scan("a.sarif", "--branch", "fix", "--only", "all", code=1).stdout.splitlines()
    assert lines[0].split() == ["high", "src/app.py:3", "fixed"]


def on_terminal(job: Job, *words: str, columns: int = 100, **env: str) -> str:
    """Run a command on a pseudo-terminal and return its output."""
    controller, terminal = pty.openpty()
    line, options = job.command(*words, **{"TERM": "xterm", **env})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(line, stdout=terminal, stderr=terminal, **options)
    os.close(terminal)
    output = b""
    with suppress(OSError):  # the terminal is closed
        while data := os.read(controller, 65536):
            output += data
    process.wait(PATIENCE)
    os.close(controller)
    return output.decode().replace("\r\n", "\n")


CONTROLS = "\x1b]52;c;eA==\x07\x9b2J\x7f\u202e\u2066\x08\rA"
ON_TERMINALS = cases(
    csv=(("export", "--format", "csv"),),
    json=(("export", "--format", "json"),),
    sarif=(("export", "--format", "sarif"),),
    scan=(("scan", "a.sarif"),),
    scan_in_sarif=(("scan", "a.sarif", "--format", "sarif", "--explain"),),
    keys=(("keys", "list"),),
    absent=(("check", "--db", f"{CONTROLS}.db"),),
    usage=(("check", CONTROLS),),
)


@pytest.mark.sqlite
@pytest.mark.parametrize("words", ON_TERMINALS)
def test_commands_escape_control_characters_on_a_terminal(job: Job, words: tuple[str, ...]) -> None:
    job.write("a.sarif", result(f"title {CONTROLS}", file=f"{CONTROLS}.py", ruleId=CONTROLS))
    job.scan("a.sarif", code=1)
    job.run("keys", "create", "ci")
    with closing(sqlite3.connect(job.db)) as database:
        database.execute("UPDATE api_keys SET name = ?", (CONTROLS,))
        database.commit()
    shown = on_terminal(job, *words, NO_COLOR="1")
    assert not re.search("(?![\t\n])[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)
    assert "x1b]52" in shown or "u001b]52" in shown
    if words[0] == "export":
        assert "\u202e" in job.run(*words).stdout


def test_colour_is_used_only_on_terminals_without_no_color(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.write("a.sarif", result())
    assert "\x1b[" in on_terminal(job, "scan", "a.sarif")
    assert "\x1b[" not in job.scan("a.sarif").stdout
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    colours = [ci_module.wants_colour(env) for env in ({}, {"NO_COLOR": ""}, {"NO_COLOR": "1"}, {"TERM": "dumb"})]
    assert colours == [True, True, False, False]


@pytest.mark.parametrize("columns", [40, 200])
def test_table_fits_the_width_of_the_terminal(job: Job, columns: int) -> None:
    job.write("a.sarif", result("y" * 200, file="src/a/rather/long/path/to/a/module.py"), result("x" * 300))
    shown = on_terminal(job, "scan", "a.sarif", columns=columns, NO_COLOR="1")
    rows = [line for line in shown.splitlines() if line.startswith("high")]
    assert [columns - 2 <= len(row) <= columns for row in rows] == [True, True]
    assert "\x1b" not in shown


def test_github_annotations_have_file_and_line(job: Job) -> None:
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
    """Return the location of a result, with columns."""
    region = {"startLine": line, "snippet": {"text": "x"}, **({"endLine": end} if end else {}), **columns}
    return {"locations": [{"physicalLocation": {"artifactLocation": {"uri": "a.py"}, "region": region}}]}


COLUMNS = cases(
    none=(at(3), "line=3,"),
    first=(at(3, startColumn=5), "line=3,col=5,"),
    both=(at(3, 3, startColumn=5, endColumn=9), "line=3,endLine=3,col=5,endColumn=8,"),
    empty=(at(3, startColumn=5, endColumn=5), "line=3,col=5,"),
    lines=(at(3, 4, startColumn=5, endColumn=9), "line=3,endLine=4,"),
)


@pytest.mark.parametrize(("location", "fields"), COLUMNS)
def test_github_annotations_have_columns_within_one_line(job: Job, location: dict[str, Any], fields: str) -> None:
    job.write("a.sarif", result(**location))
    assert job.scan("a.sarif", "--format", "github", code=1).stdout.startswith(f"::error file=a.py,{fields}title=")


def test_branch_findings_are_shown_at_their_location_on_the_branch(job: Job) -> None:
    job.scan(job.write("a.sarif", result("known", **at(3, 4))), code=1)
    job.write("a.sarif", result("known", **at(30, startColumn=2)))
    options = ("a.sarif", "--branch", "fix", "--only", "all")
    out = job.scan(*options, "--format", "github", code=1).stdout
    assert out.startswith("::error file=a.py,line=30,col=2,title=")
    assert "a.py:30" in job.scan(*options, code=1).stdout
    assert "a.py\\:30" in job.scan(*options, "--format", "markdown", code=1).stdout
    assert job.tasks()["known"]["extensions"]["line"] == 3


def test_github_annotations_are_limited_to_ten_per_level(job: Job) -> None:
    def several(level: str, number: int, file: str = "b.py") -> list[dict[str, Any]]:
        return [result(f"{level} {line}", file=file, line=line, level=level) for line in range(number, 0, -1)]

    worst = result("worst", file="z.py", properties={"security-severity": "9.5"})
    job.write("a.sarif", *several("error", 60), *several("warning", 12), *several("note", 3), name="A")
    job.write("b.sarif", worst, *several("none", 2), *several("note", 6), result("x", file="a.py"), name="B")
    lines = job.scan("a.sarif", "b.sarif", "--format", "github", code=1).stdout.splitlines()
    kinds = [line.split()[0] for line in lines if line.startswith("::")]
    assert kinds == ["::error"] * 10 + ["::warning"] * 10 + ["::notice"] * 10
    assert [line.rpartition("::")[2] for line in lines[:2]] == ["worst", "x"]
    assert lines[30] == "… and 55 more without an annotation: GitHub shows 10 per level"
    assert lines[-1] == "Not passed: a, b."
    lines = job.scan("a.sarif", "b.sarif", "--format", "github", code=0).stdout.splitlines()
    assert not any(line.startswith(("::", "…")) for line in lines)


def test_github_job_summary_is_appended(job: Job) -> None:
    summary = job.folder / "summary.md"
    summary.write_text("before\n")
    job.write("a.sarif", result())
    job.scan("a.sarif", "--format", "github", code=1, GITHUB_STEP_SUMMARY=str(summary))
    assert summary.read_text().startswith("before\n**Not passed**: ")
    assert "| high | Use of eval | src/app.py\\:3 |" in summary.read_text()
    done = job.scan("a.sarif", "--format", "github", code=0, GITHUB_STEP_SUMMARY=str(job.folder / "no" / "summary"))
    assert "cannot write the job summary" in done.stderr


def test_markdown_folds_known_findings_and_escapes_mentions(job: Job) -> None:
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


UNWRITABLE_OUTPUTS = cases(
    output_to_closed_pipe=("a.sarif --format sarif >&3", 1),
    stdout_closed=("a.sarif --fail-on none >&-", 0),
    stderr_closed=("a.sarif --fail-on none 2>&-", 0),
    errors_to_closed_pipe=("a.sarif --fail-on none 2>&3", 0),
    usage_error_to_closed_pipe=("missing.sarif 2>&3", 2),
    a_full_disk=("a.sarif --fail-on none >/dev/full", 3),
)


@pytest.mark.parametrize(("words", "code"), UNWRITABLE_OUTPUTS)
def test_exit_code_with_closed_or_full_output(job: Job, words: str, code: int) -> None:
    job.write("a.sarif", *(result(f"finding {number}" * 20) for number in range(60)))
    line, options = job.command("scan", PYTHONUNBUFFERED="")  # output is buffered
    reader, writer = os.pipe()
    os.close(reader)
    shell = ["bash", "-c", f'exec 3>&{writer}; exec "$@" {words}', "bash", *line]
    done = subprocess.run(shell, capture_output=True, timeout=PATIENCE, check=False, pass_fds=[writer], **options)
    os.close(writer)
    assert done.returncode == code, done.stderr
    assert not re.search("Errno|Attribute|Traceback|Broken", done.stderr)


# gate and export


def test_gate_command_applies_other_thresholds_to_a_run(job: Job) -> None:
    job.scan(job.write("a.sarif", result()), code=1)
    run = job.last_run()["id"]
    assert job.run("gate", run).returncode == 1
    assert job.run("gate", run, "--fail-on", "critical").returncode == 0
    output = json.loads(job.run("gate", run, "--format", "json").stdout)
    assert output == {"pass": False, "runs": [job.read(f"runs/{run}/gate")]}
    assert job.run("gate", run, "--format", "markdown").stdout.startswith("**Not passed**")
    job.scan("a.sarif", code=0)
    second_run = job.last_run()["id"]
    assert job.run("gate", second_run).returncode == 0
    assert job.run("gate", second_run, "--only", "all").returncode == 1
    output = json.loads(job.run("gate", second_run, "--baseline", run, "--format", "json").stdout)
    assert output["runs"][0]["baseline"] == run


def test_gate_command_never_passes_unfinished_or_unknown_runs(job: Job) -> None:
    assert_one_line(job.run("gate", "x"), 2, NO_DATABASE, "" if ON_POSTGRES else "findings.db")
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


def test_export_command_has_the_filters_of_the_task_list(job: Job) -> None:
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
        options = line.split()
        tasks = json.loads(job.run("export", "--format", "json", *options).stdout)
        rows = csv.DictReader(io.StringIO(job.run("export", "--format", "csv", *options).stdout))
        document = json.loads(job.run("export", *options).stdout)
        assert {task["title"] for task in tasks} == {row["title"] for row in rows} == titles, options
        assert {each["message"]["text"] for run in document["runs"] for each in run["results"]} == titles, options
    assert {*ExportQuery.__struct_encode_fields__} - {"after"} <= {each.name for each in ci_module.export.params}
    assert_one_line(job.run("export", "--severity", "hgh"), 2, "severity", "critical, high")
    assert_one_line(job.run("export", "--missing-from", "x"), 2)
    assert_one_line(job.run("export", "--db", "other.db"), 2, NO_DATABASE, "" if ON_POSTGRES else "other.db")
    assert not (job.folder / "other.db").exists()


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the pages of an export to seven tasks."""
    monkeypatch.setattr(ci_module, "EXPORTED", 7)
    monkeypatch.setattr("findings_client.LISTED", 7)


@pytest.mark.usefixtures("short_pages")
@pytest.mark.parametrize("limit", [None, 7, 10, 100])
def test_export_command_joins_pages_into_one_document(job: Job, limit: int | None) -> None:
    job.scan(job.write("a.sarif", *(result(f"line\r\n{number}, x") for number in range(20))), code=1)
    options = ("--limit", str(limit)) if limit else ()
    expected = min(limit or 20, 20)
    exports = {form: job.run("export", "--format", form, *options).stdout for form in ("json", "csv", "sarif")}
    assert len(json.loads(exports["json"])) == expected
    rows = list(csv.DictReader(io.StringIO(exports["csv"], newline="")))
    assert len({row["id"] for row in rows}) == len(rows) == expected
    sarif = json.loads(exports["sarif"])
    assert len(sarif["runs"]) == -(-expected // 7)
    assert sum(len(run["results"]) for run in sarif["runs"]) == expected


@pytest.mark.usefixtures("short_pages")
def test_export_from_a_url_equals_the_local_export(job: Job, server: Server) -> None:
    findings = (result(f"finding {number}") for number in range(20))
    job.scan(job.write("a.sarif", *findings), code=1, **server.variables)
    for output_format in ("json", "csv", "sarif"):
        remote = job.run("export", "--format", output_format, **server.variables)
        local = job.run("export", "--format", output_format, "--db", str(server.db))
        assert (remote.returncode, remote.stdout) == (0, local.stdout)


def test_error_names_the_module_that_is_not_installed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.scan(job.write("a.sarif"), code=0)
    monkeypatch.delitem(findings_service.REGISTRY.submission_formats, "application/sarif+json")
    for output_format in list(findings_service.REGISTRY.list_exports):
        monkeypatch.delitem(findings_service.REGISTRY.list_exports, output_format)
    load = findings_service.load_module
    missing = {"findings_adapters.sarif": "findings_adapters.sarif, which is not installed"}
    patch_core(monkeypatch, "load_module", lambda name: missing.get(name) or load(name))
    assert_one_line(job.scan("a.sarif"), 2, "findings_adapters.sarif, which is not installed")
    for output_format in ("sarif", "csv"):
        assert_one_line(job.run("export", "--format", output_format), 2, "its module for this format is not installed")
    assert job.run("export", "--format", "json").stdout == "[\n]\n"
