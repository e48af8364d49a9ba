"""The project's documents, commands, settings and installed programs."""

from __future__ import annotations

import re
import shutil
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import click.testing
import pytest

import findings_service
from findings_service import Settings

HERE = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["project"]
CODES = (
    *("malformed_json", "invalid_parameter", "unauthorized", "forbidden", "not_found", "run_finished"),
    *("project_type_exists", "changed_meanwhile", "body_too_large", "unsupported_media_type", "validation_failed"),
    *("unknown_project_type", "extension_check_timeout", "busy", "storage_full", "internal_error"),
)
FENCED = re.compile(r"^(```+)(\w+)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)


def blocks_of(page: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the fenced blocks of a page: line, language and text."""
    text = page.read_text("utf-8")
    for block in FENCED.finditer(text):
        yield text.count("\n", 0, block.start()) + 1, block[2], block[3]


def installed_program(name: str) -> str:
    """Return the path of a program; skip the test if it is not installed."""
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    return found or pytest.skip(f"{name} is not installed")


def npm_file(path: str) -> Path:
    """Return a file of an npm package; skip the test if it is not installed."""
    found = HERE / "node_modules" / path
    return found if found.exists() else pytest.skip(f"node_modules/{path} is not installed")


def page_text(name: str) -> str:
    return (HERE / name).read_text("utf-8")


def table_rows(name: str) -> list[str]:
    return [line for line in page_text(name).splitlines() if line.startswith("|")]


def command_lines(group: click.Command, prefix: str = "findings-service") -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its full name."""
    if not isinstance(group, click.Group):
        yield prefix, group
        return
    for name in group.list_commands(click.Context(group)):
        yield from command_lines(group.commands[name], f"{prefix} {name}")


COMMANDS = list(command_lines(findings_service.main))


def settings_variables() -> list[str]:
    """Return the names of all environment variables that the service reads."""
    options = [option for _, each in COMMANDS for option in each.params]
    named = {str(option.envvar) for option in options if getattr(option, "envvar", None)}
    return sorted(named | {f"FINDINGS_{name.upper()}" for name in Settings.__struct_fields__})
