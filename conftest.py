"""The fixtures of all tests, which engine these run on, and what that needs before them and behind them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ALONE = os.environ.get("FINDINGS_TEST_HOUSE") == "alone"
if ALONE:  # the module and its schema, with nothing beside them
    house = tempfile.TemporaryDirectory(prefix="findings-alone-")
    for name in ("findings_service.py", "schema.sql"):
        shutil.copy(Path(__file__).parent / name, house.name)
    sys.path.insert(0, house.name)

pytest_plugins = [
    "tests.engines",
    "tests.postgres_server",
    "tests.clients",
    "tests.files",
    "tests.hostile",
    "tests.servers",
    "tests.surveys",
]  # where the fixtures are
pytest.register_assert_rewrite(*pytest_plugins, "tests.scenarios", "tests.documents", "tests.statements")

from tests import engines  # noqa: E402
from tests.statements import Collector  # noqa: E402

STOP = pytest.StashKey[Callable[[], object]]()
COLLECTOR = pytest.StashKey[Collector]()
CHECKED = pytest.StashKey[list[tuple[set[str], set[str]]]]()  # statements of requests, and those without a client


def pytest_configure(config: pytest.Config) -> None:
    """Have a server for all test processes, and note what each of them sends there."""
    if not engines.ON_POSTGRES or config.option.collectonly:
        return
    is_first = not hasattr(config, "workerinput")
    if is_first and not engines.TOLD["server"]:
        config.stash[STOP] = engines.start_server()
    config.stash[CHECKED] = []
    config.stash[COLLECTOR] = Collector()
    config.stash[COLLECTOR].listen()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is about SQLite itself where another engine keeps the data, and what needs absent parts."""
    for item in items:
        if engines.ON_POSTGRES and item.get_closest_marker("sqlite"):
            item.add_marker(pytest.mark.skip(reason="about SQLite itself"))
        if ALONE and item.get_closest_marker("parts"):
            item.add_marker(pytest.mark.skip(reason="needs parts beside the module"))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Check the statements of this process, and drop its databases. The session fails by what any process finds."""
    collector = session.config.stash.get(COLLECTOR, None)
    if collector is None:
        return
    if collector.statements:
        found = {*collector.statements}, {*collector.complaints(engines.shelf().take(ready=True))}
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["statements"] = [[*each] for each in found]
        session.config.stash[CHECKED].append(found)
    if engines.shelf.cache_info().currsize:
        engines.shelf().close()
    if any(complaints for _, complaints in session.config.stash[CHECKED]):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take in what a test process has found."""
    if told := getattr(node, "workeroutput", {}).get("statements"):
        node.config.stash[CHECKED].append((set(told[0]), set(told[1])))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Tell of the statements that name no client."""
    checked = config.stash.get(CHECKED, [])
    if not checked:
        return
    statements, complaints = (set[str]().union(*each) for each in zip(*checked, strict=True))
    if complaints:
        terminalreporter.section("statements of requests that do not name the client of a table")
    for complaint in sorted(complaints):
        terminalreporter.line(complaint)
    told = f"{len(statements)} statements of requests were explained, {len(complaints)} do not name a client"
    terminalreporter.line(told)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the server."""
    if stop := config.stash.get(STOP, None):
        stop()
