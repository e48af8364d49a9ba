"""Who asks: `GET /api/v1/me`, what a key is called and what it may do."""

from __future__ import annotations

from typing import Any

from findings_service import (
    REGISTRY,
    ApiRequest,
    Level,
    Model,
    Response,
    __version__,
    json_response,
    operation,
)


class Me(Model):
    """Who a request is from; `key` is the name of its key, `user` who uses that, and `version` the service's."""

    client: str
    key: str
    level: Level
    user: str | None
    expires_at: str | None
    version: str


@operation("GET", "/api/v1/me", "read", {200: Me})
def get_me(request: ApiRequest) -> Response:
    """Get what the key is called, whose it is, and what it may do."""
    who = request.principal
    statement = "SELECT expires_at FROM api_keys WHERE client_id = ? AND id = ?"
    with request.database.reading() as connection:
        row = connection.execute(statement, (who.client_id, who.key_id)).fetchone()
    expires_at = row[0] if row else None  # FINDINGS_API_KEY has none
    level: Any = who.level
    return json_response(200, Me(who.client_id, who.name, level, who.user, expires_at, __version__))


def register() -> None:
    """Have it answered."""
    REGISTRY.add_operations(get_me)
