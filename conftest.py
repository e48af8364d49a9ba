"""Hooks of all tests: the plugins with fixtures, tests of the core alone, and the PostgreSQL server of a test run."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ALONE = os.environ.get("FINDINGS_TEST_CORE") == "alone"
if ALONE:  # copy the core and its schema to a folder without modules
    core_folder = tempfile.TemporaryDirectory(prefix="findings-alone-")
    for name in ("findings_service.py", "schema.sql"):
        shutil.copy(Path(__file__).parent / name, core_folder.name)
    sys.path.insert(0, core_folder.name)

pytest_plugins = [
    "tests.engines",
    "tests.postgres_server",
    "tests.clients",
    "tests.files",
    "tests.hostile",
    "tests.servers",
    "tests.surveys",
    "tests.browser",
]
pytest.register_assert_rewrite(*pytest_plugins, "tests.scenarios", "tests.documents", "tests.statements")

from tests import engines  # noqa: E402
from tests.statements import Collector  # noqa: E402

STOP = pytest.StashKey[Callable[[], object]]()
COLLECTOR = pytest.StashKey[Collector]()
CHECKED = pytest.StashKey[list[tuple[set[str], set[str]]]]()  # statements of requests, and those that name no client


def pytest_configure(config: pytest.Config) -> None:
    """Start one PostgreSQL server for all test processes, and record the statements of each process."""
    if not engines.ON_POSTGRES or config.option.collectonly:
        return
    is_first = not hasattr(config, "workerinput")
    if is_first and not engines.SERVER_URL["server"]:
        config.stash[STOP] = engines.start_server()
    config.stash[CHECKED] = []
    config.stash[COLLECTOR] = Collector()
    config.stash[COLLECTOR].listen()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests of SQLite itself on PostgreSQL, and tests that require modules if only the core is tested."""
    for item in items:
        if engines.ON_POSTGRES and item.get_closest_marker("sqlite"):
            item.add_marker(pytest.mark.skip(reason="tests SQLite itself"))
        if ALONE and item.get_closest_marker("modules"):
            item.add_marker(pytest.mark.skip(reason="requires modules"))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Check the statements of this process and drop its databases. The session fails if any process finds a fault."""
    collector = session.config.stash.get(COLLECTOR, None)
    if collector is None:
        return
    if collector.statements:
        found = {*collector.statements}, {*collector.complaints(engines.database_pool().acquire(ready=True))}
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["statements"] = [[*each] for each in found]
        session.config.stash[CHECKED].append(found)
    if engines.database_pool.cache_info().currsize:
        engines.database_pool().close()
    if any(complaints for _, complaints in session.config.stash[CHECKED]):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the statements and faults of a test process."""
    if found := getattr(node, "workeroutput", {}).get("statements"):
        node.config.stash[CHECKED].append((set(found[0]), set(found[1])))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Report the statements that do not name the client."""
    checked = config.stash.get(CHECKED, [])
    if not checked:
        return
    statements, complaints = (set[str]().union(*each) for each in zip(*checked, strict=True))
    if complaints:
        terminalreporter.section("statements of requests that do not name the client of a table")
    for complaint in sorted(complaints):
        terminalreporter.line(complaint)
    counts = f"{len(statements)} statements of requests were explained, {len(complaints)} do not name a client"
    terminalreporter.line(counts)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the PostgreSQL server."""
    if stop := config.stash.get(STOP, None):
        stop()
