"""Similar tasks: what else was found in the file of a task that may be the same finding."""

from __future__ import annotations

from typing import Any

import flask
import pytest

from findings_features import similar
from tests.clients import Client, assert_problem, cases, client_of, task

HASH = {"title": "Weak hash MD5 in the password store", "rule": "S324", "location": "src/login.py:14:3"}
OTHERS: dict[str, tuple[dict[str, Any], str]] = {  # a change of HASH, and what both then have in common
    "same": ({}, "rule location words"),
    "other_line": ({"title": "A call of hashlib", "location": "src/login.py:90"}, "rule location"),
    "whole_file": ({"rule": None, "location": "src/login.py"}, "location words"),
    "reworded": ({"title": "MD5 is a WEAK hásh", "rule": "B303"}, "location words"),
    "few_shared_words": ({"title": "Slow hash of the session cookie", "rule": "B303"}, ""),
    "short_words": ({"title": "is a in of", "rule": "B303"}, ""),
    "another_file": ({"location": "src/login.pyx:14"}, ""),
    "below": ({"location": "src/login.py/x:14"}, ""),
    "no_location": ({"location": None}, ""),
    "in_progress": ({"status": "in_progress"}, "rule location words"),
    "dismissed": ({"status": "dismissed"}, "rule location words"),
    "resolved": ({"status": "resolved"}, ""),
}


def found(client: Client, task_id: str, **query: Any) -> list[tuple[str, str]]:
    """Return (external id, what both have in common) of the tasks that are similar to a task."""
    tasks = client.read(f"tasks/{task_id}/similar", **query)["tasks"]
    return [(each["externalId"], " ".join(each["because"])) for each in tasks]


@pytest.mark.parametrize(("change", "because"), cases(**OTHERS))
def test_similar_task_names_what_both_have_in_common(
    client: Client, run: str, change: dict[str, Any], because: str
) -> None:
    first = client.add(run, externalId="first", **HASH)
    other = client.add(run, externalId="other", **(HASH | change))
    assert found(client, first) == ([("other", because)] if because else [])
    if change.get("status") is None:  # the relation has no direction
        assert found(client, other) == ([("first", because)] if because else [])


def test_similar_tasks_are_of_any_type_but_of_one_target_and_client(app: flask.Flask, client: Client, run: str) -> None:
    first = client.add(run, externalId="first", **HASH)
    client.register("bandit")
    target = client.read(f"tasks/{first}")["targetUrl"]
    client.add(client.start("bandit", branch="topic", targetUrl=target), externalId="of another type", **HASH)
    client.add(client.start(targetUrl=f"{target}shop"), externalId="of another target", **HASH)
    other = client_of(app, client="other")
    other.register("web")
    other.add(other.start(targetUrl=target), externalId="of another client", **HASH)
    assert found(client, first) == [("of another type", "rule location words")]
    assert_problem(other.get(f"/api/v1/tasks/{first}/similar"), 404, "not_found")


def test_similar_tasks_are_best_first_and_limited(client: Client, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = client.add(run, externalId="first", **HASH)
    changes = ("reworded", {}), ("other_line", {}), ("same", {}), ("same", {"externalId": "newer"})
    for name, more in changes:
        client.add(run, **{"externalId": name, **HASH, **OTHERS[name][0], **more})
    names = ["newer", "same", "other_line", "reworded"]
    assert [name for name, _ in found(client, first)] == names
    assert [name for name, _ in found(client, first, limit=2)] == names[:2]
    for limit in ("0", "51", "x"):
        assert_problem(client.get(f"/api/v1/tasks/{first}/similar?limit={limit}"), 400, "invalid_parameter", "limit")
    monkeypatch.setattr(similar, "MOST_COMPARED", 2)
    assert [name for name, _ in found(client, first)] == names[:2]  # the newest ones of the file
    assert client.history(first)[1:] == []


def test_similar_task_is_a_list_item(client: Client, run: str) -> None:
    first, second = (client.add(run, externalId=name, **HASH) for name in "ab")
    (item,) = client.read(f"tasks/{first}/similar")["tasks"]
    item.pop("because")
    assert [item] == [each for each in client.read("tasks")["tasks"] if each["id"] == second]
    assert task(**HASH)["title"] == item["title"]
