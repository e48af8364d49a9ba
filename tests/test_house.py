"""The rule of the house: the module stands alone, parts add to it, and what is absent is refused by its name."""

from __future__ import annotations

import ast
import re
import shutil
import socket
import sqlite3
import subprocess
import symtable
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

import findings_service as heart
from tests.support import API, HERE, Answer, assert_problem, cases, environment, start_process, task

FOLDERS = ("findings_features", "findings_adapters")
PARTS = sorted(file for folder in FOLDERS for file in (HERE / folder).rglob("*.py"))
# What a part may import of others, besides what stands in its own folder.
ARROWS = {
    "findings_features.brief": {"findings_features.overview"},  # which tasks a line knows
    "findings_features.deletion": {"findings_features.triage"},  # what answers told of it
    "findings_features.exports": {"findings_features.gate"},  # the baseline
    "findings_adapters.sarif": {"findings_adapters.marks", "findings_features.exports"},
    "findings_adapters.markdown": {"findings_features.brief"},
    "findings_adapters.webhooks": {"findings_features.events", "findings_features.gate"},
    "findings_adapters.client": {"findings_features.brief", "findings_features.gate"},
    "findings_adapters.ci": {
        "findings_adapters.client",
        "findings_adapters.formats",
        "findings_adapters.scan_config",
        "findings_features.exports",
        "findings_features.gate",
    },
    "findings_adapters.formats": {"findings_adapters.marks", "findings_adapters.sarif"},
    "findings_adapters.scan_config": {"findings_adapters.client"},
    "findings_adapters.mcp": {
        *("findings_adapters.client", "findings_adapters.markdown", "findings_adapters.serving"),
        "findings_features.me",
    },
    "findings_features.backup": {"findings_features.audit"},
    "findings_features.migrations": {"findings_adapters.marks"},
    "findings_features.restore": {"findings_features.backup"},
    "findings_adapters.postgres": {"findings_features.audit", "findings_features.backup"},
    "findings_adapters.serving": {"findings_features.deletion"},  # by the clock
}

# Which parts write to which tables, beside the module; "{" is any of them.
WRITERS = {
    "findings_features.deletion": {
        *("branches", "branch_sightings", "history", "idempotent_answers", "project_types", "runs", "sightings"),
        *("tasks", "{"),
    },
    "findings_features.backup": {"backups"},
    "findings_features.migrations": {"new_history", "tasks", "task_words"},
    "findings_adapters.webhooks": {"delivery_lease", "webhooks"},
    "findings_adapters.postgres": {"epochs", "{", "history"},  # an advice, and a step to a newer schema
}


def imports_of(file: Path) -> Iterator[str]:
    """Give the names of the modules that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module or "", *(f"{node.module}.{each.name}" for each in node.names))


def module_of(file: Path) -> str:
    """Return the name of the module that a file is."""
    return ".".join(file.relative_to(HERE).with_suffix("").parts)


def part_of(module: str) -> str:
    """Return the part that a module is of: a file, or a folder in one of the two."""
    return ".".join(module.split(".")[:2])


def test_arrows_go_one_way() -> None:
    arrows: dict[str, set[str]] = {}
    for file in PARTS:
        own = part_of(module_of(file))
        others = {part_of(name) for name in imports_of(file) if name.startswith(FOLDERS) and "." in name}
        arrows[own] = arrows.get(own, set()) | others - {own}
    assert {own: others for own, others in arrows.items() if others} == ARROWS
    TopologicalSorter(ARROWS).prepare()  # which makes no circle
    assert not [name for name in imports_of(HERE / "findings_service.py") if name.startswith(FOLDERS)]


def test_few_parts_write_to_tables() -> None:
    writing = re.compile(r"\b(?:INSERT(?: OR \w+)? INTO|REPLACE INTO|UPDATE|DELETE FROM|TRUNCATE|COPY) ([a-z_]+|\{)")
    written: dict[str, set[str]] = {}
    for file in PARTS:
        if tables := set(writing.findall(file.read_text("utf-8"))):
            written[part_of(module_of(file))] = written.get(part_of(module_of(file)), set()) | tables
    assert written == WRITERS


def names_within(table: symtable.SymbolTable) -> Iterator[str]:
    """Give the names that functions have of their own: parameters, and what they assign or define."""
    for child in table.get_children():
        if child.get_type() == "function":
            yield from (each.get_name() for each in child.get_symbols() if each.is_local() and not each.is_imported())
        yield from names_within(child)


@pytest.mark.parametrize("file", [HERE / "findings_service.py", *PARTS], ids=lambda file: str(file.relative_to(HERE)))
def test_no_name_of_a_module_is_shadowed_by_a_local_one(file: Path) -> None:
    table = symtable.symtable(file.read_text("utf-8"), str(file), "exec")
    assert {each.get_name() for each in table.get_symbols() if each.is_local()}.isdisjoint(names_within(table))


def printed(program: str, *arguments: str) -> str:
    """Run lines of Python in a process of its own, and return what they print."""
    line = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(line, cwd=HERE, env=environment(), check=True, timeout=60, capture_output=True, text=True)
    return done.stdout


def test_importing_a_part_changes_nothing() -> None:
    printed(
        "import importlib, msgspec, findings_service as heart\n"
        "told = lambda: (repr(heart.REGISTRY), [*heart.main.commands])\n"
        "before = told()\n"
        f"for name in {[*map(module_of, PARTS)]}: importlib.import_module(name)\n"
        "assert told() == before, told()"
    )


ASKED_FOR = {*heart.API_PARTS, *heart.COMMAND_PARTS.values(), *heart.ENGINE_PARTS.values()}
ASKED_FOR |= {*heart.OBSERVER_PARTS.values()}


def test_every_part_that_is_asked_for_is_there() -> None:
    assert [file for file in ASKED_FOR if heart.load_part(file)] == []


@pytest.mark.parametrize("absent", sorted({each for others in ARROWS.values() for each in others}))
def test_a_part_that_others_need_may_be_absent_and_is_named(tmp_path: Path, absent: str) -> None:
    program = """if True:
        import sys

        class Absent:  # finds a part no more than the system does where its file is gone
            def find_spec(self, name, path=None, target=None):
                if name == sys.argv[2]:
                    raise ModuleNotFoundError(name, name=name)

        sys.meta_path.insert(0, Absent())
        import findings_service as heart
        heart.create_app(db=sys.argv[1])
        print({heart.load_part(file) for file in sys.argv[3:]})
    """
    told = ast.literal_eval(printed(program, str(tmp_path / "x.db"), absent, *ASKED_FOR))
    assert told <= {"", f"{absent.replace('.', '/')}.py"}


def test_a_part_that_needs_a_folder_which_is_absent_keeps_nothing_from_starting(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['findings_features'] = None; import findings_service as heart\n"
        "heart.create_app(db=sys.argv[1])\n"
        "print(heart.load_part('findings_adapters/sarif/__init__.py'))"
    )
    assert printed(program, str(tmp_path / "x.db")) == "findings_features/exports.py\n"


# ---------------------------------------------------------------------------
# The module alone
# ---------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Path) -> tuple[str, ...]:
    """The program, of a folder with nothing but the module and its schema."""
    folder = tmp_path / "alone"
    folder.mkdir()
    for name in ("findings_service.py", "schema.sql"):
        shutil.copy(HERE / name, folder)
    return (sys.executable, str(folder / "findings_service.py"))


def run_alone(alone: tuple[str, ...], *line: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the module alone."""
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 30, "check": False}
    return subprocess.run([*alone, *line], env=environment(**env), **options)


@pytest.fixture
def ask(tmp_path: Path, alone: tuple[str, ...]) -> Iterator[Callable[..., Answer]]:
    """What asks a service of the module alone, with a key of level full."""
    db = tmp_path / "alone.db"
    key = run_alone(alone, "keys", "create", "ci", "--new", "--level", "full", "--db", str(db)).stdout.strip()
    server = start_process([*alone, "serve", "--db", str(db), "--port", "0"], db, "Findings Task Service")
    yield partial(server.request, key=key)
    assert server.stop() == 0


@pytest.mark.sqlite
def test_the_module_alone_answers_a_life_of_a_task(ask: Callable[..., Answer]) -> None:
    assert ask("POST", f"{API}/project-types", {"name": "web"}).status_code == 201
    run = ask("POST", f"{API}/runs", {"projectType": "web"}).json["id"]
    submitted = ask("POST", f"{API}/runs/{run}/tasks", {"tasks": [task(externalId="1"), task()]})
    found = submitted.json["tasks"][0]["id"]
    assert ask("PATCH", f"{API}/tasks/{found}", {"status": "dismissed"}).json["status"] == "dismissed"
    assert ask("PATCH", f"{API}/runs/{run}", {"status": "completed"}).json["summary"]["total"] == 2
    paths = ("runs", f"runs/{run}", "tasks", f"tasks/{found}", f"tasks/{found}/history", "project-types/web")
    for path in (*(f"{API}/{path}" for path in paths), "/healthz"):
        assert ask("GET", path).status_code == 200


@pytest.mark.sqlite
def test_the_module_alone_stops_also_beside_who_sends_nothing(tmp_path: Path, alone: tuple[str, ...]) -> None:
    db = tmp_path / "alone.db"
    line = [*alone, "serve", "--db", str(db), "--port", "0"]
    server = start_process(line, db, "curl .*\n", FINDINGS_BODY_TIMEOUT="1")
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=10)) as idle:
        idle.sendall(server.head_of(f"{API}/runs", 50) + b"{}")
        answered = idle.recv(4096)
        assert b" 400 " in answered.partition(b"\r\n")[0]
        with closing(socket.create_connection(("127.0.0.1", server.port))):
            assert server.stop() == 0


@pytest.mark.sqlite
def test_an_absent_part_is_named_where_the_api_would_need_it(ask: Callable[..., Answer]) -> None:
    for file, asked in heart.API_PARTS.items():
        for method, path in map(str.split, asked):
            refused = ask(method, path)
            assert refused.status_code in (404, 405)
            absent = file.removesuffix("/__init__.py")
            assert f"{absent}, which answers this, is not there." in refused.json["detail"]
    refused = assert_problem(ask("GET", f"{API}/tasks?q=image"), 400, "invalid_parameter", "q")
    assert "needs findings_features/search.py, which is not there" in refused["detail"]
    for path, said in (
        ("runs/x/tasks", "SARIF needs findings_adapters/sarif, which is not there."),
        ("runs", "Send the body as Content-Type: application/json."),
    ):
        sent = ask("POST", f"{API}/{path}", b"{}", **{"Content-Type": "application/sarif+json"})
        assert said in assert_problem(sent, 415, "unsupported_media_type")["detail"]
    for accept in ("application/sarif+json", "text/csv", "text/markdown"):
        assert ask("GET", f"{API}/tasks", Accept=accept).content_type == "application/json"


def test_what_parts_answer_is_told_by_their_names() -> None:
    heart.load_parts()
    own = {f"{each.method} {each.path}": each.handler.__module__ for each in heart.REGISTRY.operations.values()}
    told = {line: part_of(module_of(HERE / file)) for file, lines in heart.API_PARTS.items() for line in lines}
    del told["GET /"]  # the page's, which is no operation
    assert told == {line: part_of(name) for line, name in own.items() if name != heart.__name__}


@pytest.mark.parametrize("command", sorted(heart.COMMAND_PARTS))
def test_a_command_of_an_absent_part_is_refused_by_its_name(alone: tuple[str, ...], command: str) -> None:
    refused = run_alone(alone, command)
    absent = heart.COMMAND_PARTS[command].removesuffix("/__init__.py")
    assert refused.returncode == 2
    assert f"`{command}` needs {absent}, which is not there" in refused.stderr


@pytest.mark.parametrize(
    ("options", "env", "absent"),
    cases(
        workers=(("--workers", "2"), {}, "--workers needs findings_adapters/serving"),
        keep=((), {"FINDINGS_KEEP": "90d"}, "FINDINGS_KEEP needs findings_adapters/serving"),
        engine=(("--db", "postgresql://h/d"), {}, "postgresql:// needs findings_adapters/postgres"),
        log=((), {"FINDINGS_LOG": "text"}, "FINDINGS_LOG needs findings_features/access_log.py"),
        metrics=((), {"FINDINGS_METRICS": "1"}, "FINDINGS_METRICS needs findings_adapters/metrics.py"),
    ),
)
def test_a_setting_of_an_absent_part_is_refused_by_its_name(
    alone: tuple[str, ...], tmp_path: Path, options: tuple[str, ...], env: dict[str, str], absent: str
) -> None:
    refused = run_alone(alone, "serve", "--port", "0", "--db", str(tmp_path / "x.db"), *options, **env)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
    assert absent in refused.stderr


def test_a_database_that_an_absent_part_would_bring_up_to_date_names_that(
    alone: tuple[str, ...], tmp_path: Path
) -> None:
    db = tmp_path / "old.db"
    run_alone(alone, "keys", "create", "x", "--new", "--db", str(db))
    with closing(sqlite3.connect(db)) as connection:
        connection.execute(f"PRAGMA user_version = {heart.SCHEMA_VERSION - 1}")
    for line in ("keys list", "serve --port 0"):
        refused = run_alone(alone, *line.split(), "--db", str(db))
        assert refused.returncode == 1
        assert (
            f"findings_features/migrations.py, which would bring it to {heart.SCHEMA_VERSION}, is not there"
            in refused.stderr
        )


def test_a_command_whose_part_needs_an_absent_one_names_that(alone: tuple[str, ...]) -> None:
    folder = Path(alone[-1]).parent / "findings_adapters"
    folder.mkdir()
    for name in ("__init__", "ci"):
        shutil.copy(HERE / "findings_adapters" / f"{name}.py", folder)
    refused = run_alone(alone, "scan", "results.sarif")
    assert refused.returncode == 2
    assert "`scan` needs findings_adapters/client.py, which is not there" in refused.stderr


def test_help_of_the_module_alone_lists_what_is_there(alone: tuple[str, ...]) -> None:
    shown = run_alone(alone, "--help")
    assert shown.returncode == 0
    assert "\n  serve " in shown.stdout
    assert "\n  scan " not in shown.stdout
