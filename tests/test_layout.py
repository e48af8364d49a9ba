"""The layout: the core is complete, optional modules add to it, and a missing module is reported by its name."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import findings_service as core
from tests import servers
from tests.clients import API, assert_problem, task
from tests.documents import HERE
from tests.files import database_of_version
from tests.hostile import half_open, status_of
from tests.servers import IMPORT_CORE, Server, command, environment, start_process, wait_until

FOLDERS = ("findings_features", "findings_adapters")
MODULE_FILES = sorted(file for folder in FOLDERS for file in (HERE / folder).rglob("*.py"))
# The imports that a module may have beside those of its own package.
ARROWS = {
    "brief": {"overview"},  # which tasks a line knows
    "audit": {"migrations"},  # how words are folded
    "exports": {"gate"},  # the baseline
    "groups": {"cells"},
    "metrics": {"cells"},
    "planner": {"cells"},
    "search": {"cells"},
    "sarif": {"exports", "former_ids", "git", "labels"},
    "markdown": {"brief", "labels"},
    "webhooks": {"events", "gate"},
    "ci": {
        "connecting",
        "exports",
        "formats",
        "gate",
        "git",
        "labels",
        "openapi",
        "platforms",
        "scan_config",
        "terminal",
    },
    "platforms": {"git", "scan_config"},
    "formats": {"labels", "sarif"},
    "scan_config": {"sarif"},
    "mcp": {"connecting", "markdown", "me", "serving", "streams"},
    "backup": {"audit", "streams"},
    "deletion": {"streams"},
    "terminal": {"streams"},
    "migrations": {"labels"},
    "restore": {"backup"},
    "postgres": {"audit", "backup", "migrations", "streams"},
    "serving": {"deletion", "events", "streams"},  # pruning by the clock; standard error
    "access_log": {"streams"},
}

# Which modules write to which tables, beside the core. A copy fills all of them.
WRITERS = {
    "deletion": {"branches", "branch_sightings", "history", "project_types", "runs", "sightings", "tasks"},
    "backup": {"backups"},
    "demo": {"api_keys"},  # those of the sample data
    "former_ids": {"former_ids"},
    "migrations": {"folding", "new_history", "new_idempotent_answers", "runs", "tasks", "task_words"},
    "webhooks": {"delivery_lease", "webhooks"},
    "serving": {"api_keys"},  # a first key that could not be shown
    # `history` is in an advice, and `sqlite_sequence` in a step to a newer schema.
    "postgres": {"epochs", "history", "schema_version", "sqlite_sequence", "every table"},
}
# The tables that f-strings name.
NAMED_IN_CODE = {
    "{kind.table}": {core.RunKey.table, core.BranchKey.table},
    "{dialect.VERSION_TABLE}": {"schema_version"},
    "{self.names}": {"every table"},
    "{table.name}": {"every table"},
}


def module_of(file: Path) -> str:
    """Return the name of the module that a file is."""
    return ".".join(file.relative_to(HERE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(file): file for file in MODULE_FILES}


def imports_of(file: Path) -> Iterator[str]:
    """Yield the names of the modules that a file imports, at its top or in a function."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            whole = [f"{node.module}.{each.name}" for each in node.names]
            yield from (name if name in MODULES else node.module or "" for name in whole)


def short_name(module: str) -> str:
    """Return the name of the file, or the package, that a module is of, in one of the two folders."""
    return "".join(module.split(".")[1:2])


IMPORTS = {name: {each for each in imports_of(file) if each in MODULES} for name, file in MODULES.items()}
NEEDED = {".".join(name.split(".")[:2]) for names in IMPORTS.values() for name in names}


def test_imports_go_one_way() -> None:
    assert len({*map(short_name, NEEDED)}) == len(NEEDED)  # so that a short name is unique
    arrows = defaultdict[str, set[str]](set)
    for name, needed in IMPORTS.items():
        arrows[short_name(name)] |= {*map(short_name, needed)} - {short_name(name)}
    assert {own: others for own, others in arrows.items() if others} == ARROWS
    TopologicalSorter(IMPORTS).prepare()  # raises `CycleError`, for a circle inside a package too
    core_imports = {*imports_of(HERE / "findings_service.py")} | {*imports_of(HERE / "findings_client.py")}
    assert not [name for name in core_imports if name.startswith(FOLDERS)]
    of_features = {each for name, needed in IMPORTS.items() if name.startswith("findings_features") for each in needed}
    assert not [name for name in of_features if name.startswith("findings_adapters")]


def test_few_modules_write_to_tables() -> None:
    writing = re.compile(
        r"\b(?:INSERT(?: OR \w+)? INTO|REPLACE INTO|UPDATE|DELETE FROM|TRUNCATE|COPY) ([a-z_]+|\{[^}]*\})"
    )
    written = defaultdict[str, set[str]](set)
    for name, file in MODULES.items():
        for table in writing.findall(file.read_text("utf-8")):
            written[short_name(name)] |= NAMED_IN_CODE[table] if table.startswith("{") else {table}
    assert {own: tables for own, tables in written.items() if tables} == WRITERS


def printed(program: str, *arguments: str) -> str:
    """Run lines of Python in a process that has imported the core alone, and return their output."""
    done = command(*arguments, program=(sys.executable, "-c", f"{IMPORT_CORE} as core\n{program}"))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_a_module_changes_nothing_in_the_core() -> None:
    printed(
        "import importlib\n"
        "plain = (dict, list, set, tuple, str, int, float, bytes, type(core.REGISTRY))\n"
        "def state():\n"
        "    commands = {name: [each.name for each in one.params] for name, one in core.main.commands.items()}\n"
        "    values = {name: repr(value) for name, value in vars(core).items() if isinstance(value, plain)}\n"
        "    return {**values, 'commands': repr(commands)}\n"
        "before = state()\n"
        f"for name in {[*MODULES]}: importlib.import_module(name)\n"
        "after = state()\n"
        "changed = [name for name in {*before, *after} if before.get(name) != after.get(name)]\n"
        "assert changed == [], changed"
    )


LOADED = {*core.API_MODULES, *core.COMMAND_MODULES.values(), *core.ENGINE_MODULES.values()}
LOADED |= {*core.OBSERVER_MODULES.values()}


def test_every_module_that_the_core_names_is_installed() -> None:
    assert [name for name in LOADED if core.load_module(name)] == []


@pytest.mark.parametrize("absent", sorted({*FOLDERS, *NEEDED}))
def test_a_module_that_others_need_may_be_missing_and_is_named(tmp_path: Path, absent: str) -> None:
    program = """if True:
        import sys

        class Absent:  # finds a module no more than the system does where its file is gone
            def find_spec(self, name, path=None, target=None):
                if name == sys.argv[2]:
                    raise ModuleNotFoundError(name, name=name)

        for name in [*sys.modules]:  # what a driver has brought already
            if name.startswith(("findings_adapters", "findings_features")):
                del sys.modules[name]
        sys.meta_path.insert(0, Absent())
        core.create_app(db=sys.argv[1])
        print({core.load_module(name) for name in sys.argv[3:]})
    """
    told = ast.literal_eval(printed(program, str(tmp_path / "x.db"), absent, *LOADED))
    message = f"{absent}, which is not installed"
    assert told <= {"", message}
    assert message in told or absent.endswith((".formats", ".serving"))  # which are loaded where they are used


def test_each_endpoint_of_a_module_is_found_by_the_pattern_of_that_module_alone() -> None:
    core.load_modules()
    for each in core.REGISTRY.operations.values():
        line = f"{each.method} {each.path}"
        module = each.handler.__module__
        named = [name for name, pattern in core.API_MODULES.items() if re.fullmatch(pattern, line)]
        found = [] if module == core.__name__ else [".".join(module.split(".")[:2])]
        assert named[:1] == found, line


def copy_of_project(folder: Path) -> Path:
    """Copy the core and its modules into a folder, and return it."""
    for name in ("findings_service.py", "schema.sql"):
        shutil.copy(HERE / name, folder)
    for name in FOLDERS:
        shutil.copytree(HERE / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def missing_in(folder: Path, *names: str) -> list[str]:
    """Return what `load_module` returns for modules, by the core of a folder that is the working directory."""
    program = "import sys, findings_service as core; core.create_app(db=sys.argv[1]); "
    program += "print([*map(core.load_module, sys.argv[2:])])"
    line = [sys.executable, "-c", program, str(folder / "x.db"), *names]
    done = subprocess.run(line, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(ast.literal_eval(done.stdout))


def test_a_module_whose_folder_is_left_is_not_installed(tmp_path: Path) -> None:
    folder = copy_of_project(tmp_path)
    for name in ("page.py", "sarif/__init__.py", "mcp/__init__.py"):
        (folder / "findings_adapters" / name).unlink()
    names = ["findings_adapters.page", "findings_adapters.sarif", "findings_adapters.mcp"]
    assert missing_in(folder, *names) == [f"{name}, which is not installed" for name in names]


def test_modules_may_be_reached_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    folder = copy_of_project(tmp_path / "project")
    (folder / "findings_features").rename(tmp_path / "elsewhere")
    (folder / "findings_features").symlink_to(tmp_path / "elsewhere")
    assert missing_in(folder, "findings_features.gate", "findings_features.audit") == ["", ""]


# The module alone, against which the core's own tests run too

ENDPOINTS = [
    ("findings_adapters.page", "GET", "/"),
    ("findings_adapters.webhooks", "POST", f"{API}/webhooks"),
    ("findings_adapters.webhooks", "DELETE", f"{API}/webhooks/x"),
    ("findings_features.brief", "GET", f"{API}/brief"),
    ("findings_features.deletion", "DELETE", f"{API}/tasks/x"),
    ("findings_features.deletion", "DELETE", f"{API}/project-types/x"),
    ("findings_features.events", "GET", f"{API}/events"),
    ("findings_features.gate", "GET", f"{API}/runs/x/gate"),
    ("findings_features.groups", "GET", f"{API}/groups"),
    ("findings_features.me", "GET", f"{API}/me"),
    ("findings_features.openapi", "GET", f"{API}/openapi.json"),
    ("findings_features.overview", "GET", f"{API}/overview"),
    ("findings_features.triage", "PATCH", f"{API}/tasks"),
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module, in a folder with nothing else but its schema."""
    folder = tmp_path_factory.mktemp("alone")
    shutil.copy(HERE / "schema.sql", folder)
    return Path(shutil.copy(HERE / "findings_service.py", folder))


@pytest.fixture
def served(alone: Path, tmp_path: Path) -> Iterator[Server]:
    """A service of the module alone, which ends well."""
    line = [sys.executable, str(alone), "serve", "--db", str(tmp_path / "alone.db"), "--port", "0"]
    server = start_process(line, tmp_path / "alone.db", FINDINGS_BODY_TIMEOUT="2s")
    yield server
    assert server.stop() == 0


@pytest.mark.sqlite
def test_the_module_alone_answers_a_life_of_a_task(served: Server) -> None:
    """It stops also beside who sends nothing."""
    ask, run = served.request, served.start_run()
    submitted = ask("POST", f"{API}/runs/{run}/tasks", {"tasks": [task(externalId="1"), task()]})
    found = submitted.json["tasks"][0]["id"]
    assert ask("PATCH", f"{API}/tasks/{found}", {"status": "dismissed"}).json["status"] == "dismissed"
    assert ask("PATCH", f"{API}/runs/{run}", {"status": "completed"}).json["summary"]["total"] == 2
    paths = ("runs", f"runs/{run}", "tasks", f"tasks/{found}", f"tasks/{found}/history", "project-types/web")
    assert {ask("GET", f"{API}/{path}").status_code for path in paths} == {200}
    with half_open(served, 1, served.post_head(f"{API}/runs", 50) + b"{}") as (idle,):
        assert status_of(idle.recv(4096)) == 400
        with half_open(served, 1, b""):
            assert served.stop() == 0


def is_healthy(port: int) -> bool:
    """Return whether a service answers on a port."""
    with suppress(OSError), servers.connection_to(port) as connection:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    return False


@pytest.mark.sqlite
@pytest.mark.parametrize("errors", ["2>&-", "2>/dev/full"])
def test_the_core_alone_makes_no_key_that_it_cannot_show(alone: Path, tmp_path: Path, errors: str) -> None:
    db, port = str(tmp_path / "x.db"), str(servers.free_port())
    line = [
        "bash",
        "-c",
        f'exec "$@" {errors}',
        "bash",
        sys.executable,
        str(alone),
        "serve",
        "--port",
        port,
        "--db",
        db,
    ]
    with subprocess.Popen(line, cwd=tmp_path, env=environment()) as process:
        wait_until(lambda: is_healthy(int(port)))
        process.terminate()
    assert process.returncode == 0
    listed = command("list", "--db", db, program=(sys.executable, str(alone), "keys"))
    assert listed.returncode == 0
    assert "first" not in listed.stdout


@pytest.mark.sqlite
def test_a_missing_module_is_named_where_the_api_would_need_it(served: Server) -> None:
    ask = served.request
    for name, method, path in ENDPOINTS:
        refused = ask(method, path)
        assert refused.status_code in (404, 405)
        assert refused.json["detail"] == f"This endpoint is provided by {name}, which is not installed."
    for method, path in (("DELETE", "tasks"), ("DELETE", "runs/x/tasks"), ("GET", "webhooksfoo"), ("GET", "x")):
        assert "provided by" not in ask(method, f"{API}/{path}").json["detail"]
    refused = assert_problem(ask("GET", f"{API}/tasks?q=image"), 400, "invalid_parameter", "q")
    assert "needs findings_features.search, which is not installed" in refused["detail"]
    for path, said in (
        ("runs/x/tasks", "SARIF needs findings_adapters.sarif, which is not installed."),
        ("runs", "Send the body as Content-Type: application/json."),
    ):
        sent = ask("POST", f"{API}/{path}", b"{}", **{"Content-Type": "application/sarif+json"})
        assert said in assert_problem(sent, 415, "unsupported_media_type")["detail"]
    for accept in ("application/sarif+json", "text/csv", "text/markdown"):
        assert ask("GET", f"{API}/tasks", Accept=accept).content_type == "application/json"


COMMANDS_ALONE = """
import json, sys
import click.testing, findings_service as core

for line, env in json.loads(sys.argv[1]):
    done = click.testing.CliRunner().invoke(core.main, line, env=env)
    print(json.dumps([done.exit_code, done.output]))
"""


def told_alone(alone: Path, *lines: tuple[str, dict[str, str]]) -> list[tuple[int, str]]:
    """Return the exit codes and outputs of commands of the core alone, each with variables of its own."""
    program = [sys.executable, "-c", COMMANDS_ALONE, json.dumps(lines)]
    done = subprocess.run(program, cwd=alone.parent, env=environment(), capture_output=True, check=True)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_a_command_of_an_absent_part_is_refused_by_its_name(alone: Path) -> None:
    (_, shown), *told = told_alone(alone, *((line, {}) for line in ("--help", *core.COMMAND_MODULES)))
    for (name, module), (code, said) in zip(core.COMMAND_MODULES.items(), told, strict=True):
        assert (code, f"`{name}` needs {module}, which is not installed" in said) == (2, True)
        assert f"\n  {name} " not in shown
    assert "\n  serve " in shown


SETTINGS = {
    "FINDINGS_WORKERS": ("2", "--workers needs findings_adapters.serving"),
    "FINDINGS_KEEP": ("90d", "FINDINGS_KEEP needs findings_adapters.serving"),
    "FINDINGS_DB": ("postgresql://h/d", "postgresql:// needs findings_adapters.postgres"),
    "FINDINGS_LOG": ("text", "FINDINGS_LOG needs findings_features.access_log"),
    "FINDINGS_METRICS": ("1", "FINDINGS_METRICS needs findings_adapters.metrics"),
}


def test_a_setting_or_database_that_needs_an_absent_part_is_refused_by_its_name(alone: Path, tmp_path: Path) -> None:
    db = {"FINDINGS_DB": str(tmp_path / "x.db")}
    told = told_alone(alone, *(("serve --port 0", db | {name: value}) for name, (value, _) in SETTINGS.items()))
    for (_, said), (code, line) in zip(SETTINGS.values(), told, strict=True):
        assert (code, line.count("\n"), said in line) == (1, 1, True), line
    database_of_version(core.SCHEMA_VERSION - 1, tmp_path / "old.db")
    env = {"FINDINGS_DB": str(tmp_path / "old.db")}
    absent = f"to bring it to {core.SCHEMA_VERSION} needs findings_features.migrations, which is not installed"
    for code, said in told_alone(alone, ("keys list", env), ("serve --port 0", env)):
        assert (code, absent in said) == (1, True), said
