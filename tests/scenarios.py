"""Runs, tasks and decisions that several test files use."""

from __future__ import annotations

import itertools
import json
import re
import secrets
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import flask
import flask.json.provider

import findings_service
from tests.clients import API, TIME, Client, database_of, task
from tests.servers import invoke

WCAG_SCHEMA = {
    "type": "object",
    "properties": {"wcag": {"type": "string", "pattern": r"^\d\.\d\.\d$"}, "pages": {"items": {"type": "integer"}}},
    "required": ["wcag"],
    "additionalProperties": False,
}
DEFINITION = {"name": "web-a11y", "label": "Web", "description": "Sites.", "extensionSchema": WCAG_SCHEMA}


def without_accents(text: str) -> str:
    """Return a text without case and accents."""
    decomposed = unicodedata.normalize("NFD", text.casefold())
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def resolved_ids(client: Client) -> set[str]:
    """Return the external ids of the resolved tasks."""
    return {each["externalId"] for each in client.read("tasks", status="resolved")["tasks"]}


def assert_timed_out(run: dict[str, Any]) -> None:
    """Check that a run failed by its timeout."""
    assert (run["status"], run["statusReason"]) == ("failed", "timeout")
    assert TIME.fullmatch(run["finishedAt"])


class Panic(BaseException):
    """An exception like the panics of libraries written in Rust: not an `Exception`."""


def raise_panic(*_: Any, **__: Any) -> NoReturn:
    raise Panic("assertion failed")


WHOLE_TASK = {
    "externalId": "img-alt-1",
    "title": "Image without alt text",
    "severity": "high",
    "status": "in_progress",
    "description": "The logo has none.",
    "evidence": [
        {"type": "screenshot", "label": "Home page", "url": "https://example.com/home.png"},
        {"type": "code", "label": "Line 3", "content": "<img>"},
    ],
    "remediation": [{"step": 1, "instruction": "Write one."}, {"step": 2, "instruction": "Look again."}],
    "successCriteria": [{"description": "It has one.", "automatable": True}],
    "extensions": {"wcag": "1.1.1"},
}


def start_on(client: Client, branch: str | None, *names: str) -> str:
    """Start a run of a branch, or of the main line for None, and report tasks with these external ids."""
    run = client.start(targetUrl="https://example.com/", branch=branch)
    client.submit(run, *(task(externalId=name) for name in names))
    return run


def gate(client: Client, run: str, **query: str) -> Any:
    return client.read(f"runs/{run}/gate", **query)


def completed_run(client: Client, branch: str | None, **severities: str) -> str:
    """Start and complete a run that reports these tasks, given as externalId=severity."""
    run = client.start(targetUrl="https://example.com/", branch=branch)
    client.submit(run, *(task(externalId=name, severity=severity) for name, severity in severities.items()))
    client.finish(run)
    return run


def field_values(objects: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the values of some objects, without the names of the fields."""
    return [tuple(each.values()) for each in objects]


def in_a(rule: Any) -> dict[str, Any]:
    """Return a schema with a rule for the member `a`."""
    return {"properties": {"a": rule}}


BACKTRACKING = {"a": "a" * 60 + "!"}


def post(client: Client, path: str, body: Any, key: str = "k") -> Any:
    """Send a POST with an Idempotency-Key."""
    text = body if isinstance(body, str) else json.dumps(body)
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    return client.post(f"{API}/{path}", data=text, headers=headers)


def count_all(client: Client) -> list[int]:
    """Return the numbers of runs, tasks and project types."""
    counts = [client.read(path, limit=1)["total"] for path in ("runs", "tasks")]
    return [*counts, len(client.read("project-types")["projectTypes"])]


def finish_ago(app: flask.Flask, days: int, *runs: str) -> None:
    """Set the end of some runs to so many days ago."""
    with database_of(app).transaction() as connection:
        at = findings_service.timestamp(ago=days * 86_400)
        connection.executemany("UPDATE runs SET finished_at = ? WHERE id = ?", [(at, run) for run in runs])


def expire(app: flask.Flask, table: str = "claims") -> None:
    """Move the ends of all claims or dismissals into the past."""
    with database_of(app).transaction("default") as connection:
        connection.execute(f"UPDATE {table} SET until = '2026-01-01T00:00:00.000Z' WHERE until IS NOT NULL")


def run_clock(app: flask.Flask) -> None:
    """Do what maintenance does with claims and dismissals that have ended."""
    assert [*findings_service.due_slices(database_of(app), 0)]


def prune(path: str | Path, *options: str) -> list[int]:
    """Prune runs that finished over 90 days ago, and return the numbers of runs and tasks printed."""
    done = invoke("prune", "--finished-before", "90d", *options, "--db", str(path))
    assert done.exit_code == 0
    return [int(number) for number in re.findall(r"(\d+) (?:runs|tasks)", done.stdout)]


def secret() -> str:
    """Return a unique word."""
    return f"SECRET{secrets.token_hex(12)}"


def sqlite_steps(connection: Any, action: Callable[[], object]) -> int:
    """Return the number of SQLite VM steps of an action."""
    steps = itertools.count()
    connection.set_progress_handler(lambda: next(steps) < 0, 1)
    try:
        action()
    finally:
        connection.set_progress_handler(None, 0)
    return next(steps)
