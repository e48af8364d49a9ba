"""Sample data for `serve --demo`: two weeks of runs and decisions, from `demo.json`, in a temporary database."""

from __future__ import annotations

import atexit
import shutil
import signal
import sys
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import findings_service
from findings_service import REGISTRY, STOPPING, Settings, create_app, insert_key

HOUR = 3_600_000_000_000  # nanoseconds
STORY = Path(__file__).with_suffix(".json")


def make_demo() -> str:
    """Create a database with the sample data and return its path. It is deleted when the process exits."""
    folder = tempfile.mkdtemp(prefix="findings-demo-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for each in STOPPING:  # until the server starts; then the folder is deleted in this case, too
        signal.signal(each, lambda *_: sys.exit(1))
    settings, story = Settings(db=f"{folder}/demo.db", run_timeout=0), msgspec.json.decode(STORY.read_bytes())
    app = create_app(settings)
    client, database = app.test_client(), app.extensions["findings"].database
    keys, tasks = dict[str, str](), dict[str, str]()  # keys by name, ids of tasks by external id

    def send(method: str, path: str, body: Any, key: str = "proxy", user: str = "Ada") -> Any:
        headers = {"Authorization": f"Bearer {keys[key]}"} | ({"Findings-User": user} if key == "proxy" else {})
        response = client.open(f"/api/v1/{path}", method=method, json=body, headers=headers)
        if response.status_code >= 400:
            raise RuntimeError(response.text)
        return response.json

    def play(decision: Any = None, run: Any = None, finds: Any = (), task: str = "", **sender: str) -> None:
        if decision:
            send("PATCH", f"tasks/{tasks[task]}", decision, **sender)
            return
        path = f"runs/{send('POST', 'runs', run, **sender)['id']}"
        batch = {"tasks": [story["findings"][name] | {"externalId": name} for name in finds]}
        tasks.update(
            {each["externalId"]: each["id"] for each in send("POST", f"{path}/tasks", batch, **sender)["tasks"]}
        )
        send("PATCH", path, {"status": "completed", "resolveMissing": True, "gate": {}}, **sender)

    with closing(database):
        with database.transaction("default") as connection:
            for name, level in story["keys"].items():
                keys[name] = insert_key(connection, name, "default", level, for_users=name == "proxy")
        for project_type in story["projectTypes"]:
            send("POST", "project-types", project_type)
        try:
            for event in story["events"]:
                findings_service.now_ns = partial(int, time.time_ns() - event.pop("hoursAgo") * HOUR)
                play(**event)
        finally:
            findings_service.now_ns = time.time_ns
        with database.transaction("default") as connection:
            connection.execute("DELETE FROM api_keys")  # so that the server creates a key and prints it
    return settings.db


def register() -> None:
    """Register the function that creates the sample data."""
    REGISTRY.make_demo = make_demo
