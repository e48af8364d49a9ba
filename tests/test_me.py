"""Who asks: `GET /api/v1/me`."""

from __future__ import annotations

from collections.abc import Callable

import flask
import pytest

import findings_service
from tests.support import API, SECRET, client_of, client_with, database_of, users_of


@pytest.mark.parametrize("level", ["read", "agent", "full"])
def test_who_asks_is_told_what_its_key_may_do(app: flask.Flask, level: str) -> None:
    asked = client_of(app, level, "other", "ci").get(f"{API}/me")
    told = {"client": "other", "key": "ci", "level": level, "user": None, "expiresAt": None}
    assert (asked.status_code, asked.json) == (200, told | {"version": findings_service.__version__})


def test_users_are_told_who_they_are(app: flask.Flask) -> None:
    told = [each.read("me") for each in users_of(app, "anna", "Jürgen", level="read")]
    assert [(each["key"], each["user"]) for each in told] == [("proxy", "anna"), ("proxy", "Jürgen")]


def test_who_asks_is_told_when_its_key_expires(app: flask.Flask) -> None:
    until, client = findings_service.timestamp(-3600), client_of(app)
    with database_of(app).transaction("default") as connection:
        client.key = findings_service.insert_key(connection, "short", "default", "read", until)
    told = client.read("me")
    assert (told["key"], told["expiresAt"]) == ("short", until)


def test_who_asks_with_the_key_of_the_environment_is_told_its_name(make_app: Callable[..., flask.Flask]) -> None:
    told = client_with(make_app(api_key=SECRET), SECRET).read("me")
    assert told["key"] == "FINDINGS_API_KEY"
    assert [told[name] for name in ("client", "level", "user", "expiresAt")] == ["default", "full", None, None]
