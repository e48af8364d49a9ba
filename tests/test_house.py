"""The rule of the house: the module stands alone, parts add to it, and what is absent is refused by its name."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import findings_service as heart
from test_findings_service import HERE, environment

FOLDERS = ("findings_features", "findings_adapters")
PARTS = sorted(file for folder in FOLDERS for file in (HERE / folder).rglob("*.py"))
# What a part may import of others, besides what stands in its own folder.
ARROWS = {
    "findings_features.brief": {"findings_features.overview"},  # which tasks a line knows
    "findings_features.exports": {"findings_features.gate"},  # the baseline
    "findings_adapters.sarif": {"findings_features.exports"},
    "findings_adapters.markdown": {"findings_features.brief"},
    "findings_adapters.client": {"findings_features.brief", "findings_features.gate"},
    "findings_adapters.ci": {"findings_adapters.client", "findings_features.exports", "findings_features.gate"},
    "findings_adapters.mcp": {"findings_adapters.client", "findings_adapters.markdown"},
}


def imports_of(file: Path) -> Iterator[str]:
    """Give the names of the modules that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module or "", *(f"{node.module}.{each.name}" for each in node.names))


def part_of(module: str) -> str:
    """Return the part that a module is of: a file, or a folder in one of the two."""
    return ".".join(module.split(".")[:2])


@pytest.mark.parametrize("file", PARTS, ids=lambda file: str(file.relative_to(HERE)))
def test_arrows_go_one_way(file: Path) -> None:
    own = part_of(str(file.relative_to(HERE).with_suffix("")).replace("/", "."))
    others = {part_of(name) for name in imports_of(file) if name.startswith(FOLDERS) and "." in name}
    assert others - {own} <= ARROWS.get(own, set())


def test_no_arrows_make_a_circle() -> None:
    TopologicalSorter(ARROWS).prepare()


def test_the_module_imports_no_part() -> None:
    assert not [name for name in imports_of(HERE / "findings_service.py") if name.startswith(FOLDERS)]


def test_importing_a_part_changes_nothing() -> None:
    names = [str(file.relative_to(HERE).with_suffix("")).replace("/", ".") for file in PARTS]
    program = (
        "import importlib, msgspec, findings_service as heart\n"
        "told = lambda: (repr(heart.REGISTRY), [*heart.main.commands])\n"
        "before = told()\n"
        f"for name in {names}: importlib.import_module(name)\n"
        "assert told() == before, told()"
    )
    subprocess.run([sys.executable, "-c", program], cwd=HERE, env=environment(), check=True, timeout=60)


def test_every_part_that_is_asked_for_is_there() -> None:
    asked = {*heart.API_PARTS, *heart.COMMAND_PARTS.values(), *heart.ENGINE_PARTS.values()}
    assert [file for file in asked if heart.load_part(file)] == []


def test_a_part_that_needs_a_folder_which_is_absent_keeps_nothing_from_starting(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['findings_features'] = None; import findings_service as heart\n"
        "heart.create_app(db=sys.argv[1])\n"
        "print(heart.load_part('findings_adapters/sarif/__init__.py'))"
    )
    line = [sys.executable, "-c", program, str(tmp_path / "x.db")]
    told = subprocess.run(line, cwd=HERE, env=environment(), check=True, timeout=60, capture_output=True, text=True)
    assert told.stdout == "findings_features\n"
