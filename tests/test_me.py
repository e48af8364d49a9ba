"""Who asks: `GET /api/v1/me`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flask
import pytest

import findings_service
from findings_service import create_app
from tests.engines import db_at
from tests.support import API, client_of, users_of


@pytest.mark.parametrize("level", ["read", "agent", "full"])
def test_who_asks_is_told_what_its_key_may_do(app: flask.Flask, level: str) -> None:
    asked = client_of(app, level, "other", "ci").get(f"{API}/me")
    told = {"client": "other", "key": "ci", "level": level, "user": None, "expiresAt": None}
    assert (asked.status_code, asked.json) == (200, told | {"version": findings_service.__version__})


def test_users_are_told_who_they_are(app: flask.Flask) -> None:
    users = users_of(app, "anna", "Jürgen", level="read")
    assert [(told["key"], told["user"]) for told in (each.read("me") for each in users)] == [
        ("proxy", "anna"),
        ("proxy", "Jürgen"),
    ]


def test_who_asks_is_told_when_its_key_expires(app: flask.Flask) -> None:
    until, client = findings_service.timestamp(-3600), client_of(app)
    with app.extensions["findings"].database.transaction("default") as connection:
        client.key = findings_service.insert_key(connection, "short", "default", "read", until)
    assert (client.read("me")["key"], client.read("me")["expiresAt"]) == ("short", until)


def test_who_asks_with_the_key_of_the_environment_is_told_its_name(tmp_path: Path) -> None:
    secret = "k" * 16
    app = create_app(db=db_at(tmp_path / "findings.db"), api_key=secret)
    headers = {"Authorization": f"Bearer {secret}"}
    told: Any = app.test_client().get(f"{API}/me", headers=headers).json
    app.extensions["findings"].database.close()
    assert (told["client"], told["key"], told["level"]) == ("default", "FINDINGS_API_KEY", "full")
    assert (told["user"], told["expiresAt"]) == (None, None)
