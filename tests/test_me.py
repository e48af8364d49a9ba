"""Who asks: `GET /api/v1/me`."""

from __future__ import annotations

from collections.abc import Callable

import flask

import findings_service
from tests.clients import client_of, client_with, database_of, users_of
from tests.servers import SECRET


def test_who_asks_is_told_what_its_key_may_do(make_app: Callable[..., flask.Flask]) -> None:
    app = make_app(api_key=SECRET)
    told = {"user": None, "expiresAt": None, "version": findings_service.__version__}
    for level in ("read", "agent", "full"):
        asked = client_of(app, level, "other", "ci").read("me")
        assert asked == told | {"client": "other", "key": "ci", "level": level}
    of_the_environment = {"client": "default", "key": "FINDINGS_API_KEY", "level": "full"}
    assert client_with(app, SECRET).read("me") == told | of_the_environment


def test_users_are_told_who_they_are_and_anybody_when_a_key_expires(app: flask.Flask) -> None:
    told = [each.read("me") for each in users_of(app, "anna", "Jürgen", level="read")]
    assert [(each["key"], each["user"]) for each in told] == [("proxy", "anna"), ("proxy", "Jürgen")]
    until = findings_service.timestamp(-3600)
    with database_of(app).transaction("default") as connection:
        key = findings_service.insert_key(connection, "short", "default", "read", until)
    told = client_with(app, key).read("me")
    assert (told["key"], told["expiresAt"]) == ("short", until)
