"""Tests of the layout: the core works alone, optional modules add to it, and errors name a missing module."""

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
# Module -> the modules of other packages that it imports.
MODULE_IMPORTS = {
    "brief": {"overview"},  # conditions that select the tasks of a branch
    "audit": {"migrations"},  # the words of other Unicode versions
    "exports": {"gate"},  # the baseline
    "groups": {"cells"},
    "metrics": {"cells"},
    "planner": {"cells"},
    "search": {"cells"},
    "similar": {"groups"},  # the file of a location
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
    "mcp": {"connecting", "groups", "markdown", "me", "serving", "streams"},
    "backup": {"audit", "streams"},
    "deletion": {"streams"},
    "terminal": {"streams"},
    "migrations": {"labels"},
    "restore": {"backup"},
    "postgres": {"audit", "backup", "migrations", "streams"},
    "serving": {"deletion", "events", "streams"},  # scheduled pruning; standard error
    "access_log": {"streams"},
}

# Module -> the tables that it writes to. A copy writes to every table.
WRITERS = {
    "deletion": {"branches", "branch_sightings", "history", "project_types", "runs", "sightings", "tasks"},
    "backup": {"backups"},
    "demo": {"api_keys"},  # keys of the sample data
    "fixing": {"claims"},
    "former_ids": {"former_ids"},
    "migrations": {
        *("folding", "new_api_keys", "new_history", "new_idempotent_answers", "runs", "sqlite_sequence", "tasks"),
        "task_words",
    },
    "webhooks": {"delivery_lease", "webhooks"},
    "serving": {"api_keys"},  # deletes a first key that could not be printed
    # `history` occurs in a hint, and `sqlite_sequence` in a schema migration.
    "postgres": {"epochs", "history", "schema_version", "sqlite_sequence", "every table"},
}
# Placeholder in an f-string -> the tables that it stands for.
FSTRING_TABLES = {
    "{kind.table}": {core.RunKey.table, core.BranchKey.table},
    "{dialect.VERSION_TABLE}": {"schema_version"},
    "{self.names}": {"every table"},
    "{table.name}": {"every table"},
}


def module_of(file: Path) -> str:
    """Return the dotted module name of a file."""
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
    """Return the name of a module's file or package, without the folder."""
    return "".join(module.split(".")[1:2])


IMPORTS = {name: {each for each in imports_of(file) if each in MODULES} for name, file in MODULES.items()}
NEEDED = {".".join(name.split(".")[:2]) for names in IMPORTS.values() for name in names}


def test_modules_import_only_the_listed_modules() -> None:
    assert len({*map(short_name, NEEDED)}) == len(NEEDED)  # short names are unique
    imported = defaultdict[str, set[str]](set)
    for name, needed in IMPORTS.items():
        imported[short_name(name)] |= {*map(short_name, needed)} - {short_name(name)}
    assert {own: others for own, others in imported.items() if others} == MODULE_IMPORTS
    TopologicalSorter(IMPORTS).prepare()  # raises `CycleError`, also for a cycle within a package
    core_imports = {*imports_of(HERE / "findings_service.py")} | {*imports_of(HERE / "findings_client.py")}
    assert not [name for name in core_imports if name.startswith(FOLDERS)]
    by_features = {each for name, needed in IMPORTS.items() if name.startswith("findings_features") for each in needed}
    assert not [name for name in by_features if name.startswith("findings_adapters")]


def test_modules_write_only_to_the_listed_tables() -> None:
    writing = re.compile(
        r"\b(?:INSERT(?: OR \w+)? INTO|REPLACE INTO|UPDATE|DELETE FROM|TRUNCATE|COPY) ([a-z_]+|\{[^}]*\})"
    )
    written = defaultdict[str, set[str]](set)
    for name, file in MODULES.items():
        for table in writing.findall(file.read_text("utf-8")):
            written[short_name(name)] |= FSTRING_TABLES[table] if table.startswith("{") else {table}
    assert {own: tables for own, tables in written.items() if tables} == WRITERS


def output_of(program: str, *arguments: str) -> str:
    """Run Python code in a process that has imported only the core, and return its output."""
    done = command(*arguments, program=(sys.executable, "-c", f"{IMPORT_CORE} as core\n{program}"))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_a_module_does_not_change_the_core() -> None:
    output_of(
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


def test_every_module_that_the_core_loads_is_installed() -> None:
    assert [name for name in LOADED if core.load_module(name)] == []


@pytest.mark.parametrize("missing", sorted({*FOLDERS, *NEEDED}))
def test_missing_module_that_others_import_is_named(tmp_path: Path, missing: str) -> None:
    program = """if True:
        import sys

        class Absent:  # a finder that fails for one module, as if its file were missing
            def find_spec(self, name, path=None, target=None):
                if name == sys.argv[2]:
                    raise ModuleNotFoundError(name, name=name)

        for name in [*sys.modules]:  # modules that the database driver has already imported
            if name.startswith(("findings_adapters", "findings_features")):
                del sys.modules[name]
        sys.meta_path.insert(0, Absent())
        core.create_app(db=sys.argv[1])
        print({core.load_module(name) for name in sys.argv[3:]})
    """
    results = ast.literal_eval(output_of(program, str(tmp_path / "x.db"), missing, *LOADED))
    message = f"{missing}, which is not installed"
    assert results <= {"", message}
    assert message in results or missing.endswith((".formats", ".serving"))  # these are loaded on first use


def test_each_endpoint_matches_the_pattern_of_its_module_first() -> None:
    core.load_modules()
    for each in core.REGISTRY.operations.values():
        line = f"{each.method} {each.path}"
        module = each.handler.__module__
        matching = [name for name, pattern in core.API_MODULES.items() if re.fullmatch(pattern, line)]
        expected = [] if module == core.__name__ else [".".join(module.split(".")[:2])]
        assert matching[:1] == expected, line


def copy_of_project(folder: Path) -> Path:
    """Copy the core and all modules into a folder, and return the folder."""
    for name in ("findings_service.py", "schema.sql"):
        shutil.copy(HERE / name, folder)
    for name in FOLDERS:
        shutil.copytree(HERE / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def missing_in(folder: Path, *names: str) -> list[str]:
    """Return the results of `load_module` for modules, in a process whose working directory is the folder."""
    program = "import sys, findings_service as core; core.create_app(db=sys.argv[1]); "
    program += "print([*map(core.load_module, sys.argv[2:])])"
    line = [sys.executable, "-c", program, str(folder / "x.db"), *names]
    done = subprocess.run(line, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(ast.literal_eval(done.stdout))


def test_module_with_a_folder_but_no_file_is_not_installed(tmp_path: Path) -> None:
    folder = copy_of_project(tmp_path)
    for name in ("page.py", "sarif/__init__.py", "mcp/__init__.py"):
        (folder / "findings_adapters" / name).unlink()
    names = ["findings_adapters.page", "findings_adapters.sarif", "findings_adapters.mcp"]
    assert missing_in(folder, *names) == [f"{name}, which is not installed" for name in names]


def test_modules_folder_may_be_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    folder = copy_of_project(tmp_path / "project")
    (folder / "findings_features").rename(tmp_path / "elsewhere")
    (folder / "findings_features").symlink_to(tmp_path / "elsewhere")
    assert missing_in(folder, "findings_features.gate", "findings_features.audit") == ["", ""]


# The core alone, as in the core's own tests with FINDINGS_TEST_CORE=alone

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
def core_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The core's file, in a folder that contains only it and the schema."""
    folder = tmp_path_factory.mktemp("alone")
    shutil.copy(HERE / "schema.sql", folder)
    return Path(shutil.copy(HERE / "findings_service.py", folder))


@pytest.fixture
def core_server(core_file: Path, tmp_path: Path) -> Iterator[Server]:
    """A server of the core alone; at the end it must exit with 0."""
    line = [sys.executable, str(core_file), "serve", "--db", str(tmp_path / "alone.db"), "--port", "0"]
    server = start_process(line, tmp_path / "alone.db", FINDINGS_BODY_TIMEOUT="2s")
    yield server
    assert server.stop() == 0


@pytest.mark.sqlite
def test_core_alone_serves_the_lifecycle_of_a_task(core_server: Server) -> None:
    """The server also stops while an idle connection is open."""
    request, run = core_server.request, core_server.start_run()
    submitted = request("POST", f"{API}/runs/{run}/tasks", {"tasks": [task(externalId="1"), task()]})
    found = submitted.json["tasks"][0]["id"]
    assert request("PATCH", f"{API}/tasks/{found}", {"status": "dismissed"}).json["status"] == "dismissed"
    assert request("PATCH", f"{API}/runs/{run}", {"status": "completed"}).json["summary"]["total"] == 2
    paths = ("runs", f"runs/{run}", "tasks", f"tasks/{found}", f"tasks/{found}/history", "project-types/web")
    assert {request("GET", f"{API}/{path}").status_code for path in paths} == {200}
    with half_open(core_server, 1, core_server.post_head(f"{API}/runs", 50) + b"{}") as (idle,):
        assert status_of(idle.recv(4096)) == 400
        with half_open(core_server, 1, b""):
            assert core_server.stop() == 0


def is_healthy(port: int) -> bool:
    """Check if the health endpoint on a port returns 200."""
    with suppress(OSError), servers.connection_to(port) as connection:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    return False


@pytest.mark.sqlite
@pytest.mark.parametrize("errors", ["2>&-", "2>/dev/full"])
def test_core_alone_creates_no_key_if_stderr_is_unusable(core_file: Path, tmp_path: Path, errors: str) -> None:
    db, port = str(tmp_path / "x.db"), str(servers.free_port())
    line = [
        "bash",
        "-c",
        f'exec "$@" {errors}',
        "bash",
        sys.executable,
        str(core_file),
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
    listed = command("list", "--db", db, program=(sys.executable, str(core_file), "keys"))
    assert listed.returncode == 0
    assert "first" not in listed.stdout


@pytest.mark.sqlite
def test_error_responses_name_the_missing_module(core_server: Server) -> None:
    request = core_server.request
    for name, method, path in ENDPOINTS:
        response = request(method, path)
        assert response.status_code in (404, 405)
        assert response.json["detail"] == f"This endpoint is provided by {name}, which is not installed."
    for method, path in (("DELETE", "tasks"), ("DELETE", "runs/x/tasks"), ("GET", "webhooksfoo"), ("GET", "x")):
        assert "provided by" not in request(method, f"{API}/{path}").json["detail"]
    problem = assert_problem(request("GET", f"{API}/tasks?q=image"), 400, "invalid_parameter", "q")
    assert "needs findings_features.search, which is not installed" in problem["detail"]
    for path, expected in (
        ("runs/x/tasks", "SARIF needs findings_adapters.sarif, which is not installed."),
        ("runs", "Send the body as Content-Type: application/json."),
    ):
        response = request("POST", f"{API}/{path}", b"{}", **{"Content-Type": "application/sarif+json"})
        assert expected in assert_problem(response, 415, "unsupported_media_type")["detail"]
    for accept in ("application/sarif+json", "text/csv", "text/markdown"):
        assert request("GET", f"{API}/tasks", Accept=accept).content_type == "application/json"


COMMANDS_ALONE = """
import json, sys
import click.testing, findings_service as core

for line, env in json.loads(sys.argv[1]):
    done = click.testing.CliRunner().invoke(core.main, line, env=env)
    print(json.dumps([done.exit_code, done.output]))
"""


def run_core(core_file: Path, *lines: tuple[str, dict[str, str]]) -> list[tuple[int, str]]:
    """Return the exit codes and outputs of commands of the core alone, each with its environment variables."""
    program = [sys.executable, "-c", COMMANDS_ALONE, json.dumps(lines)]
    done = subprocess.run(program, cwd=core_file.parent, env=environment(), capture_output=True, check=True)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_command_of_a_missing_module_exits_2_and_names_the_module(core_file: Path) -> None:
    (_, help_text), *results = run_core(core_file, *((line, {}) for line in ("--help", *core.COMMAND_MODULES)))
    for (name, module), (code, output) in zip(core.COMMAND_MODULES.items(), results, strict=True):
        assert (code, f"`{name}` needs {module}, which is not installed" in output) == (2, True)
        assert f"\n  {name} " not in help_text
    assert "\n  serve " in help_text


SETTINGS = {
    "FINDINGS_WORKERS": ("2", "--workers needs findings_adapters.serving"),
    "FINDINGS_KEEP": ("90d", "FINDINGS_KEEP needs findings_adapters.serving"),
    "FINDINGS_DB": ("postgresql://h/d", "postgresql:// database needs findings_adapters.postgres"),
    "FINDINGS_LOG": ("text", "FINDINGS_LOG needs findings_features.access_log"),
    "FINDINGS_METRICS": ("1", "FINDINGS_METRICS needs findings_adapters.metrics"),
}


def test_settings_and_databases_that_need_a_missing_module_are_rejected(core_file: Path, tmp_path: Path) -> None:
    db = {"FINDINGS_DB": str(tmp_path / "x.db")}
    results = run_core(core_file, *(("serve --port 0", db | {name: value}) for name, (value, _) in SETTINGS.items()))
    for (_, expected), (code, output) in zip(SETTINGS.values(), results, strict=True):
        assert (code, output.count("\n"), expected in output) == (1, 1, True), output
    database_of_version(core.SCHEMA_VERSION - 1, tmp_path / "old.db")
    env = {"FINDINGS_DB": str(tmp_path / "old.db")}
    message = f"migrating it to {core.SCHEMA_VERSION} needs findings_features.migrations, which is not installed"
    for code, output in run_core(core_file, ("keys list", env), ("serve --port 0", env)):
        assert (code, message in output) == (1, True), output
