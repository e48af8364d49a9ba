"""Tests of the documents and of the project metadata: they match the code."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

import findings_service
from findings_service import Settings
from tests import postgres_server
from tests.clients import KEY, OPERATIONS, TIME, UUID7
from tests.documents import CODES, COMMANDS, FENCED, HERE, PROJECT, blocks_of, page_text, settings_variables, table_rows
from tests.servers import CORE_FILE, PATIENCE, environment, free_port

PAGES = (HERE / "README.md", *sorted((HERE / "docs").glob("*.md")))


NAMED_FILE = re.compile(r"(?:#!.*\n)?(?:#|//) ([\w./-]*(?:\.\w+|/Caddyfile))\n")
PRINTED = re.compile(r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", re.MULTILINE)
STARTS_SERVER = re.compile(r"(?:findings-service serve(?: --demo)?|^(?:gunicorn|waitress-serve|uwsgi) .*)\n\Z")
VARIABLE_PARTS = (
    (UUID7.pattern, "ID"),
    (TIME.pattern, "TIME"),
    (KEY.pattern, "KEY"),
    (r"\d{4}-\d\d-\d\d(?:T\d{6}Z)?(?=\.db|\.dump)|(?<=\.replaced-)[\dTZ.-]+Z", "DATE"),
    (r'\\"[0-9a-f]{32}\\"', "ETAG"),
    (r"\b[0-9a-f]{16}-(?=\d)", "EPOCH-"),
    (r"whsec_[\w+/=]+", "SECRET"),
    (r"findings-demo-\w+", "findings-demo-FOLDER"),
    (r"[\d,]+ bytes(?: before, [\d,]+ now)?", "0 bytes"),
    (r"(Service|SQLite|version) \d+\.\d+\.\d+", r"\1 0.0.0"),
    (r"PostgreSQL \d+\.\d+", "PostgreSQL 0.0"),
    (r'"(ms|bytes|sqlite|version)": ?("?)[\d.]+', r'"\1":\g<2>0'),
)
# .ci/run runs the first two; the third takes minutes; the tests create the databases; other tests run the packages of
# npm and pip, and the container's build; another project's code is not fetched, and another's scanner not installed.
NOT_RUN = (
    *("pytest", "bench.py", "failover.py", "CREATE DATABASE"),
    *("npm install", "openapi-generator", "docker", "flask-", "codex-security"),
)
SERVERS = ("gunicorn", "waitress-serve", "uwsgi")  # run if they are installed
EXAMPLE_DATABASE = re.compile(r"postgresql://findings@db\.example\.com/\w+")
USES_POSTGRES = re.compile(rf"{EXAMPLE_DATABASE.pattern}|\$FINDINGS_DB|^psql|^pg_", re.MULTILINE)
WRITE_FILE = "mkdir -p $(dirname "  # begins the command that writes a block to the file that it names
PROGRAMS = {  # the programs in the virtual environment that a reader creates
    "pip": "",  # does nothing: the packages are installed here; another test installs the service
    "python": 'exec "$PYTHON" "$@"',
    "findings-service": 'exec "$PYTHON" -m findings_service "$@"',
}
# Shell functions in place of programs that a test cannot or must not run.
SHELL_FUNCTIONS = r"""
python3() {  # creating the virtual environment is slow; another test does it
    [ "$2" = venv ] || "$PYTHON" "$@"
}
sudo() {  # not needed: system folders are in the page's folder
    "$@"
}
halt() {
    local tries=0
    while [ -n "$server" ] && kill -0 -- -$server 2>/dev/null; do
        [ $((tries++ % 100)) -ne 0 ] || kill -- -$server 2>/dev/null  # again: uWSGI loses signals while it starts
        sleep 0.05
    done
    server=
}
in_background() {  # starts a server, for which a reader opens another terminal
    halt
    : >"$server_log"
    eval "$1" </dev/null >"$server_log" 2>&1 &
    server=$!
    until { [ -s "$server_log" ] && (: <>/dev/tcp/127.0.0.1/$FINDINGS_PORT); } 2>/dev/null; do
        kill -0 $server 2>/dev/null || break
        sleep 0.05
    done
    sleep 0.1
    eval "$(grep 'export FINDINGS_KEY=' "$server_log")"  # as a reader pastes it
    kill -0 $server || { cat "$server_log"; false; }
}
systemctl() {  # tests run without systemd: this runs the commands of the unit
    local unit=/etc/systemd/system/${!#}
    case " $* " in *" stop "* | *" restart "*) halt ;; esac
    case " $* " in *" start "* | *" restart "* | *" --now "*) start_unit "${unit%.service}.service" ;; esac
}
start_unit() {
    [ -f "$1" ] || return 0
    local settings=$(cat "$1" "$1".d/*.conf 2>/dev/null | sed -n 's/^Environment=/export /p')
    local line="$settings"$'\n'"exec $(cat "$1" "$1".d/*.conf 2>/dev/null | sed -n 's/^ExecStart=//p' | tail -n 1)"
    if grep -q ^Type=oneshot "$1"; then bash -c "$line" >>"$server_log" 2>&1; else in_background "$line"; fi
}
journalctl() {  # the server's output; a request is logged after its response, so wait for the line of a later one
    if grep -qs FINDINGS_LOG /etc/systemd/system/findings-service.service.d/*.conf; then
        curl -s -o /dev/null http://127.0.0.1:8000/
        until grep -q '"route":"/"' "$server_log"; do sleep 0.05; done
    fi
    grep -v '"route":"/"' "$server_log"
}
server_log=$PWD/server.log
set -m  # a process group for each server
trap 'halt; kill $(jobs -p) 2>/dev/null' EXIT
"""
BANDIT_STUB = """
import json

levels = ["HIGH"] + ["MEDIUM"] * 3 + ["LOW"] * 9
print(json.dumps({"errors": [], "results": [
    {"test_id": f"B{100 + n}", "filename": "./app.py", "line_number": n, "code": f"{n} call({n})",
     "issue_text": "Unsafe", "issue_severity": level, "issue_confidence": "HIGH", "issue_cwe": {}, "more_info": ""}
    for n, level in enumerate(levels, start=1)
]}))
"""


@dataclass(frozen=True)
class Step:
    """A command on a page; `printed` is its output, or None if the page does not show it."""

    page: Path
    line: int
    command: str
    head: str = ""  # the text before `printed`
    printed: str | None = None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def is_json(self) -> bool:
        return self.head == "```json\n"

    @property
    def needs(self) -> str:
        """The server that the command needs and that is not installed, or ""."""
        if USES_POSTGRES.search(self.command) and not self.command.startswith(WRITE_FILE):
            return "" if has_postgres() else "PostgreSQL"
        program = self.command.split()[0]
        return program if program in SERVERS and not shutil.which(program, path=search_path()) else ""

    @property
    def is_run(self) -> bool:
        return not self.needs and not any(words in self.command for words in NOT_RUN)


def search_path() -> str:
    """Return the PATH of a page's shell, with the folder of this Python first."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def steps_of(page: Path) -> list[Step]:
    """Return the commands of a page, in order."""
    steps: list[Step] = []
    for line, kind, text in blocks_of(page):
        if kind in ("mermaid", "sql"):  # a diagram, and SQL that `test_list_sql.py` compares
            continue
        if kind in ("json", "text"):
            assert steps, f"{page.name}:{line} shows output without a command"
            assert steps[-1].printed is None, f"{page.name}:{line} shows output without a command"
            steps[-1] = replace(steps[-1], line=line, head=f"```{kind}\n", printed=text)
        elif kind == "console":
            matches = ((line + 1 + text.count("\n", 0, found.start()), found) for found in PRINTED.finditer(text))
            steps += [Step(page, number, found[1], f"$ {found[1]}", found[2]) for number, found in matches]
        elif named := NAMED_FILE.match(text):
            steps.append(Step(page, line, f"{WRITE_FILE}{named[1]})\ncat >{named[1]} <<'END'\n{text}END\n"))
        else:
            assert kind in ("bash", "python"), f"{page.name}:{line} is {kind} without the name of a file"
            steps.append(Step(page, line, text if kind == "bash" else f"\"$PYTHON\" - <<'END'\n{text}END\n"))
    return steps


STEPS = [step for page in PAGES for step in steps_of(page)]


def steps_before(page: Path) -> list[Step]:
    """Return the commands of the README that a page requires."""
    if page == PAGES[0] or "$url" not in page.read_text("utf-8"):
        return []
    return [step for step in steps_of(PAGES[0]) if re.search(r"service serve\n|api\(\) \{", step.command)]


def prepare_home(home: Path) -> None:
    """Create what a reader of a page has: the checkout, and a virtual environment there and in /opt."""
    (home / ".venv" / "bin").mkdir(parents=True)
    for name, line in PROGRAMS.items():
        program = home / ".venv" / "bin" / name
        env = f'export PYTHON={shlex.quote(sys.executable)} PYTHONPATH="${{PYTHONPATH:-{HERE}}}"'  # for an empty env
        program.write_text(f"#!/bin/bash\n{env}\n{line}\n", "utf-8")
        program.chmod(0o755)
    (home / ".venv" / "lib" / "python3.11" / "site-packages" / "flask").mkdir(parents=True)
    for folder in ("opt/findings-service", "var/lib/private/findings-service", "stand-ins"):
        (home / folder).mkdir(parents=True)
    (home / "var" / "lib" / "findings-service").symlink_to("private/findings-service")  # as systemd's DynamicUser does
    (home / "opt" / "findings-service" / ".venv").symlink_to(home / ".venv")
    (home / "examples").symlink_to(HERE / "examples")
    (home / "stand-ins" / "bandit.py").write_text(BANDIT_STUB, "utf-8")


def script_of(steps: Sequence[Step], mark: str) -> str:
    """Return the shell script of a page: its commands, each followed by printing its exit code and a mark."""
    script = SHELL_FUNCTIONS
    for step in steps:
        command = step.command if step.is_run else ":\n"
        if STARTS_SERVER.search(command):
            command = f'in_background {shlex.quote(command)} && cat "$server_log"\n'
        script += f"{{\n{command}}} 2>&1\nprintf '\\n%s {mark}\\n' $?\n"
    return script


def has_postgres() -> bool:
    """Check if a PostgreSQL server is given or can be started."""
    server = os.environ.get(postgres_server.SERVER_VARIABLE) or postgres_server.find_programs()
    return bool(server) and importlib.util.find_spec("psycopg") is not None


def run_page(page: Path, home: Path, databases: Mapping[str, str]) -> dict[Step, tuple[int, str]]:
    """Run the commands of a page, and return the exit code and output of each."""
    prepare_home(home)
    before, steps = steps_before(page), steps_of(page)
    port, second = str(free_port()), str(free_port())
    addresses = dict(databases) | {"127.0.0.1:8000": f"127.0.0.1:{port}", "127.0.0.1:8001": f"127.0.0.1:{second}"}
    script = re.sub(r"(?<![\w./}])/(?=(?:etc|opt|var)/)", f"{home}/", script_of([*before, *steps], "-- done --"))
    for example, actual in addresses.items():
        script = script.replace(example, actual)
    (home / "script").write_text(script, "utf-8")
    env = {"FINDINGS_PORT": port, "PATH": search_path(), "PYTHON": sys.executable, "HOME": str(home)}
    if before or page == PAGES[0]:  # agents read the URL of the service from it
        env["FINDINGS_URL"] = f"http://127.0.0.1:{port}"
    env = environment(PYTHONPATH=f"{home}/stand-ins:{HERE}", **env)
    how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 10 * PATIENCE}
    done = subprocess.run(["bash", "script"], cwd=home, env=env, check=False, **how)
    output = done.stdout
    for example, actual in addresses.items():
        output = output.replace(actual, example)
    output = re.sub(rf"{re.escape(str(home))}/(?=(?:etc|opt|var)/)", "/", output)
    output = output.replace(str(home), "/home/you/findings-service")
    parts = re.findall(r"(.*?)\n(\d+) -- done --\n", output, re.DOTALL)[len(before) :]
    assert len(parts) == len(steps), f"{output}{done.stderr}"
    return {step: (int(code), printed) for step, (printed, code) in zip(steps, parts, strict=True)}


@pytest.fixture(scope="module")
def run_steps(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[[Path], dict[Step, tuple[int, str]]]]:
    """A function that runs a page at its first step, and the next page at the same time."""
    with ThreadPoolExecutor(2) as pool:

        @cache
        def start(page: Path) -> Future[dict[Step, tuple[int, str]]]:
            examples = {*EXAMPLE_DATABASE.findall(page.read_text("utf-8"))} if has_postgres() else set()
            databases = {example: request.getfixturevalue("postgres").new() for example in examples}
            return pool.submit(run_page, page, tmp_path_factory.mktemp(page.stem).resolve(), databases)

        def result(page: Path) -> dict[Step, tuple[int, str]]:
            futures = [start(each) for each in PAGES[PAGES.index(page) :][:2]]
            return futures[0].result()

        yield result


def normalized(step: Step, text: str) -> Any:
    """Return the output of a step with placeholders for the parts that differ in each run."""
    for pattern, replacement in VARIABLE_PARTS:
        text = re.sub(pattern, replacement, text)
    if step.is_json:
        return json.loads(text, object_pairs_hook=list)
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def format_json(value: Any) -> str:
    """Return JSON in lines of at most about 115 characters, as a page shows it."""
    lines = [""]
    for piece in json.dumps(value, ensure_ascii=False, separators=(",\t", ": ")).split("\t"):
        if len(lines[-1]) + len(piece) > 115:
            lines.append("")
        lines[-1] += f" {piece}"
    return "\n".join(lines)[1:] + "\n"


def reprint(step: Step, printed: str) -> None:
    """Replace the output of a step in its page by the present output."""
    text = format_json(json.loads(printed)) if step.is_json else printed and f"{printed.strip(chr(10))}\n"
    page = step.page.read_text("utf-8")
    assert step.head + str(step.printed) in page
    step.page.write_text(page.replace(step.head + str(step.printed), step.head + text, 1), "utf-8")


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
@pytest.mark.parametrize("step", [step for step in STEPS if step.is_run or step.needs], ids=str)
def test_commands_print_documented_output(step: Step, run_steps: Callable[[Path], dict[Step, tuple[int, str]]]) -> None:
    if step.needs:
        pytest.skip(f"{step.needs} is not installed here")
    code, printed = run_steps(step.page)[step]
    if step.printed is None:
        assert (code, "about:blank" in printed) == (0, False), printed
        return
    last = printed.strip("\n").rpartition("\n")[2] if step.is_json else printed
    if os.environ.get("REPRINT") and normalized(step, last) != normalized(step, step.printed):
        reprint(step, last)
        return
    assert normalized(step, last) == normalized(step, step.printed)


CHECKERS = {  # language -> the command that checks the configuration files, which are in the folder ROOT
    "ini": "systemd-analyze verify --man=no ROOT/etc/systemd/system/*.service ROOT/etc/systemd/system/*.timer",
    "nginx": "nginx -t -p ROOT -c ROOT/whole.conf",
    "caddy": "caddy adapt --adapter caddyfile --config ROOT/etc/caddy/Caddyfile",
    "haproxy": "haproxy -c -f ROOT/etc/haproxy/haproxy.cfg",
}


@pytest.mark.parametrize("kind", CHECKERS)
def test_documented_configurations_are_valid_for_their_programs(kind: str, tmp_path: Path) -> None:
    program, *arguments = CHECKERS[kind].replace("ROOT", str(tmp_path)).split()
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed here")
    for page in PAGES:
        for _, language, text in blocks_of(page):
            if language == kind and (named := NAMED_FILE.match(text)):
                path = tmp_path / named[1].lstrip("/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(re.sub(r"(?<==)/opt/\S+", "/bin/true", text), "utf-8")
    config = "pid nginx.pid; error_log stderr; events {} http { access_log off; server { include etc/nginx/*/*; } }"
    (tmp_path / "whole.conf").write_text(config, "utf-8")
    line = f"{program} {' '.join(arguments)}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert kind != "ini" or not done.stderr


def fields_of_the_api() -> list[str]:
    """Return the names of all fields and parameters of the API's requests and responses."""
    models = [model for model in vars(findings_service).values() if isinstance(model, type)]
    bases = tuple(getattr(findings_service, name) for name in ("Model", "RequestModel", "Problem", "ProblemDetails"))
    fields = [each for model in models if issubclass(model, bases) for each in msgspec.structs.fields(model)]
    return sorted({each.encode_name for each in fields})


TABLE_ENTRIES = (  # a page, and the text that a row of its tables must contain
    *(
        ("api", f"| `{method} {path}` |")
        for method, path in [*((each.method, each.path) for each in OPERATIONS), ("GET", "/metrics")]
    ),
    *(("operations", f"| `{name.removeprefix('findings-service ')}") for name, _ in COMMANDS),
    *(("operations", f"`{name}`") for name in settings_variables()),
    *(("api", f"`{name}`") for name in sorted({*CODES, *fields_of_the_api()})),
)


@pytest.mark.parametrize(("page", "text"), TABLE_ENTRIES)
def test_every_route_command_setting_code_and_field_is_in_a_table(page: str, text: str) -> None:
    assert any(text in row for row in table_rows(f"docs/{page}.md"))


def test_every_name_on_the_architecture_page_is_in_the_code() -> None:
    files = (CORE_FILE, *HERE.glob("findings_*/**/*.py"), HERE / "tests" / "test_layout.py")
    code = "".join(file.read_text("utf-8") for file in files)
    text = page_text("docs/architecture.md")
    names = set(re.findall(r"`(?:[a-z]\w+\.)?(\w+(?:\.\w+)?)`", text)) - {"py", "sql"}
    assert len(names) > 40
    defined = r"(?m)(?:\b(?:def|class) {0}\b|^ *{0}(?: =|:))"
    assert [name for name in names if not re.search(defined.format(name.rpartition(".")[2]), code)] == []
    folders = ("", "findings_features", "findings_adapters")
    for name in re.findall(r"`((?:\w+/)*\w+\.(?:py|sql))`", text):
        assert any((HERE / folder / name).exists() for folder in folders), name


def test_root_installs_with_umask_022() -> None:
    text = page_text("docs/operations.md")
    lines = re.findall(r"(?m)^(?:\$ )?(.*sudo \S*(?:pip install|python3 -m venv) .*)", text)
    assert len(lines) == 5
    assert [line for line in lines if not line.startswith("(umask 022 && ")] == []


def test_every_test_in_the_table_of_promises_exists() -> None:
    named = {name for row in table_rows("docs/operations.md") for name in re.findall(r"`(test_\w+)`", row)}
    assert len(named) > 20
    files = (HERE / "test_findings_service.py", *HERE.glob("tests/**/test_*.py"))
    assert named <= {name for file in files for name in re.findall(r"(?m)^def (test_\w+)", file.read_text("utf-8"))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_has_a_target(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", FENCED.sub("", page.read_text("utf-8"))):
        path, _, anchor = link.partition("#")
        target = page if not path else (page.parent / path).resolve()
        assert target.exists(), link
        titles = re.findall(r"(?m)^#+ (.+)$", target.read_text("utf-8")) if anchor else []
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]


def test_every_setting_has_a_description() -> None:
    assert all(meaning.endswith(".") for meaning in Settings.descriptions().values())


def test_script_metadata_equals_the_project_metadata() -> None:
    block = re.search(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$", CORE_FILE.read_text("utf-8"))
    assert block
    script = tomllib.loads("".join(line[2:] for line in block["content"].splitlines(keepends=True)))
    assert script["requires-python"] == PROJECT["requires-python"]
    assert sorted(script["dependencies"]) == sorted(PROJECT["dependencies"])
