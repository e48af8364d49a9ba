"""Sample data for `serve --demo`: two weeks of runs and decisions, from `demo.json`, in a temporary database."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import msgspec
from flask.testing import FlaskClient

import findings_service
from findings_service import REGISTRY, Settings, create_app, insert_key

HOUR = 3_600_000_000_000  # nanoseconds
STORY = Path(__file__).with_suffix(".json")


class Player:
    """A client of the API that sends the requests of the story with its keys."""

    def __init__(self, client: FlaskClient, story: Mapping[str, Any], keys: Mapping[str, str]) -> None:
        self.client, self.story, self.keys = client, story, keys
        self.tasks: dict[str, str] = {}  # ids by external id

    def send(self, key: str, method: str, path: str, body: Any, user: str = "") -> Any:
        """Send a request and return its parsed response. :raises RuntimeError: if it is rejected."""
        headers = {"Authorization": f"Bearer {self.keys[key]}", **({"Findings-User": user} if user else {})}
        response = self.client.open(f"/api/v1/{path}", method=method, json=body, headers=headers)
        if response.status_code >= 400:
            raise RuntimeError(f"{method} {path}: {response.text}")
        return response.json

    def report(self, name: str) -> dict[str, Any]:
        """Return the report of a finding, its pictures as data: URLs."""
        finding = {"externalId": name, **self.story["findings"][name]}
        for item in finding.get("evidence", ()):
            if item.get("url", "").startswith("picture:"):
                item["url"] = f"data:image/svg+xml,{quote(self.story['pictures'][item['url'][8:]])}"
        return finding

    def play(self, event: Mapping[str, Any]) -> None:
        """Store a run with its findings, or a person's decision."""
        if "task" in event:
            self.send("proxy", "PATCH", f"tasks/{self.tasks[event['task']]}", event["change"], event["user"])
            return
        key, target = event["key"], self.story["targets"][event["target"]]
        metadata = {"repository": target, "commit": event["commit"]} if "commit" in event else {}
        body = {"projectType": event["run"], "targetUrl": target, "branch": event.get("branch"), "metadata": metadata}
        run = f"runs/{self.send(key, 'POST', 'runs', body)['id']}"
        batch = {"tasks": [self.report(name) for name in event["finds"]]}
        stored = self.send(key, "POST", f"{run}/tasks", batch)["tasks"]
        self.tasks |= {task["externalId"]: task["id"] for task in stored}
        self.send(key, "PATCH", run, {"status": "completed", "resolveMissing": True, "gate": {}})


def make_demo() -> str:
    """Return the path of a new database with the sample data, which is deleted when the process exits."""
    folder = tempfile.mkdtemp(prefix="findings-demo-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    db = f"{folder}/demo.db"
    story = msgspec.json.decode(STORY.read_bytes())
    app = create_app(Settings(db=db, run_timeout=0))
    database = app.extensions["findings"].database
    with closing(database):
        with database.transaction("default") as connection:
            keys = {
                name: insert_key(connection, name, "default", level, for_users=name == "proxy")
                for name, level in story["keys"].items()
            }
        player = Player(app.test_client(), story, keys)
        for project_type in story["projectTypes"]:
            player.send("nightly", "POST", "project-types", project_type)
        try:
            for event in story["events"]:
                at = time.time_ns() - event["hoursAgo"] * HOUR
                findings_service.now_ns = partial(int, at)
                player.play(event)
        finally:
            findings_service.now_ns = time.time_ns
        with database.transaction("default") as connection:
            connection.execute("DELETE FROM api_keys")  # so that the server prints a first key
    click.echo("Sample data, deleted when the service stops.", err=True)
    return db


def register() -> None:
    """Register the sample data with the core."""
    REGISTRY.make_demo = make_demo
