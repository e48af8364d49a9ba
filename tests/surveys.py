"""Random runs and tasks, and a second implementation of the list filters to compare with."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import flask
import flask.json.provider
import pytest

from findings_service import Settings, create_app
from tests.clients import SEVERITIES, STATUSES, Client, client_of, database_of
from tests.engines import db_at

TYPES = ("web", "cli", "docs")
TARGETS = (None, "https://example.com/", "https://example.com/shop?q=a,b")
BRANCHES = (None, None, "a", "b,c")
RULES = ("S101", "a,b", "E9 branches")
PLACES = (
    *("src", "src/app.py", "src/app.py:42", "src/app.py:42:7", "srcs/a", "https://h:80", "https://h:80/a:1"),
    "L" * 300,
)
TAGS = ("wcag2a", "a,b", 'quo"te', "x branches")


@dataclass(frozen=True)
class Survey:
    """A service with random findings, and the expected content of its lists."""

    app: flask.Flask
    client: Client
    runs: list[dict[str, Any]]
    tasks: list[dict[str, Any]]
    reported: dict[str, set[str]]

    def run(self, run_id: str) -> dict[str, Any] | None:
        """Return a run, or None for an unknown id."""
        return next((run for run in self.runs if run["id"] == run_id), None)

    def expected_runs(self, query: dict[str, Any]) -> list[str]:
        """Return the expected ids of a list of runs, in order."""
        runs = [run for run in self.runs if all(matches(run, name, value) for name, value in query.items())]
        return [run["id"] for run in reversed(runs)]

    def is_missing_from(self, item: dict[str, Any], run_id: str) -> bool:
        """Return whether a task is missing from a run: `missingFrom` of the API."""
        run = self.run(run_id)
        later_runs = (each for each in self.runs if run and each["id"] >= run_id and each["branch"] == run["branch"])
        return bool(
            run
            and item["externalId"]
            and item["status"] in ("open", "in_progress")
            and same_target(item, run)
            and not any(item["id"] in self.reported[each["id"]] for each in later_runs)
            and (not item["branch"] or (run["branch"] and self.is_known_to(item, run["branch"])))
        )

    def is_new_in(self, item: dict[str, Any], run_id: str) -> bool:
        """Return whether a task is new in a run: `newIn` of the API."""
        runs = [run["id"] for run in self.runs]
        run, known = self.runs[runs.index(run_id)], set[str]()
        for other in self.runs[: runs.index(run_id)]:
            if other["status"] == "completed" and other["branch"] is None:
                known = self.reported[other["id"]] if same_target(run, other) else known
        return item["id"] in self.reported[run_id] - known

    def is_known_to(self, item: dict[str, Any], branch: str) -> bool:
        """Return whether a run of a branch has reported a task."""
        return any(run["branch"] == branch and item["id"] in self.reported[run["id"]] for run in self.runs)

    def accepts(self, item: dict[str, Any], name: str, value: Any) -> bool:
        if name == "branch":
            return any(self.is_known_to(item, branch) for branch in value)
        if name == "runId":
            return any(item["id"] in self.reported.get(run_id, ()) for run_id in value.split(","))
        if name == "missingFrom":
            return self.is_missing_from(item, value)
        if name == "newIn":
            return self.is_new_in(item, value)
        if name in ("createdSince", "createdBefore"):
            return (item["createdAt"] >= value) is (name == "createdSince")
        if name == "q":
            texts = (item["title"], item["externalId"], item["rule"], item["location"], *item["tags"])
            return all(word in "\n".join(filter(None, texts)).lower() for word in value.lower().split())
        return name == "sort" or matches(item, name, value)

    def expected_tasks(self, query: dict[str, Any]) -> list[str]:
        """Return the expected ids of a list of tasks, in order."""
        tasks = [item for item in self.tasks if all(self.accepts(item, *pair) for pair in query.items())]
        tasks.sort(key=lambda item: item["id"], reverse=query.get("sort") != "createdAt")
        if query.get("sort") == "severity":
            tasks.sort(key=lambda item: SEVERITIES.index(item["severity"]))
        return [item["id"] for item in tasks]


def same_target(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two runs, or a run and a task, have the same project type and target URL."""
    return all(one[name] == other[name] for name in ("projectType", "targetUrl"))


def matches(item: dict[str, Any], name: str, value: Any) -> bool:
    """Return whether a run or task has one of a filter's values."""
    if name == "without":
        return not item["tags" if value == "tag" else value]
    if name == "location":
        prefixes = (value,) if value[-1] in "/:" else (f"{value}/", f"{value}:")
        return bool(item["location"]) and (item["location"] == value or item["location"].startswith(prefixes))
    if name in ("rule", "tag"):
        labels = item["tags"] if name == "tag" else [item["rule"]]
        return not {value, *value.split(",")}.isdisjoint(labels)
    if name == "mainLine":
        return (item["branch"] is None) is (value == "true")
    if name == "branch":
        return item["branch"] in value
    if name == "assigned":
        return (item["assignee"] is not None) is (value == "true")
    exact = name in ("targetUrl", "externalId", "assignee")
    return item[name] == value if exact else item[name] in value.split(",")


def random_task(dice: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {"title": f"Finding {dice.random()}", "severity": dice.choice(SEVERITIES)}
    if dice.random() < 0.6:
        fields["externalId"] = f"f-{dice.randrange(12)}"
    if dice.random() < 0.4:
        fields["status"] = dice.choice(STATUSES)
    fields["rule"] = dice.choice((None, *RULES))
    fields["location"] = dice.choice((None, *PLACES))
    fields["tags"] = dice.sample(TAGS, dice.randrange(3))
    return fields


def random_survey(app: flask.Flask, seed: int) -> Survey:
    """Fill a service with random runs and tasks, then read each by its id."""
    dice, client, reported = random.Random(seed), client_of(app), {}
    other_client = client_of(app, client="other")
    for owner, rounds in ((client, 24), (other_client, 2)):
        for name in TYPES:
            owner.register(name)
        for number in range(rounds):
            fields = {"targetUrl": TARGETS[number // 3 % 3], "branch": dice.choice(BRANCHES)}
            run = owner.start(TYPES[number % 3] if number < 9 else dice.choice(TYPES), **fields)
            responses = [owner.submit(run, *[random_task(dice) for _ in range(7)]) for _ in range(2)]
            ids = {item["id"] for batch in responses for item in batch["tasks"]}
            if owner is client:
                reported[run] = ids
            for task_id in dice.sample(sorted(ids), 3):
                owner.triage(task_id, dice.choice(STATUSES), assignee=dice.choice((None, "", "Ada", "a,b")))
            if dice.random() < 0.6:
                owner.finish(run, dice.choice(("completed", "failed")))
    ids = sorted({task_id for run_ids in reported.values() for task_id in run_ids})
    tasks = [client.read(f"tasks/{task_id}") for task_id in ids]
    return Survey(app, client, [client.read(f"runs/{run}") for run in reported], tasks, reported)


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    app = create_app(Settings(db=db_at(tmp_path_factory.mktemp("survey") / "findings.db", ready=True)))
    yield random_survey(app, seed=1)
    database_of(app).close()
