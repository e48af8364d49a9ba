"""The identity of the caller: `GET /api/v1/me`."""

from __future__ import annotations

from collections.abc import Callable

import flask

import findings_service
from tests.clients import client_of, client_with, database_of, users_of
from tests.servers import SECRET


def test_me_returns_the_key_and_its_level(make_app: Callable[..., flask.Flask]) -> None:
    app = make_app(api_key=SECRET)
    expected = {"user": None, "expiresAt": None, "version": findings_service.__version__}
    for level in findings_service.LEVELS:
        response = client_of(app, level, "other", "ci").read("me")
        assert response == expected | {"client": "other", "key": "ci", "level": level}
    environment_key = {"client": "default", "key": "FINDINGS_API_KEY", "level": "full"}
    assert client_with(app, SECRET).read("me") == expected | environment_key


def test_me_returns_the_user_and_the_expiry_of_the_key(app: flask.Flask) -> None:
    responses = [each.read("me") for each in users_of(app, "anna", "Jürgen", level="read")]
    assert [(each["key"], each["user"]) for each in responses] == [("proxy", "anna"), ("proxy", "Jürgen")]
    expires_at = findings_service.timestamp(-3600)
    with database_of(app).transaction("default") as connection:
        key = findings_service.insert_key(connection, "short", "default", "read", expires_at)
    response = client_with(app, key).read("me")
    assert (response["key"], response["expiresAt"]) == ("short", expires_at)
