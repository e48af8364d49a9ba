"""The API key of a request: `GET /api/v1/me` returns its client, name, level and user."""

from __future__ import annotations

from typing import Any

from findings_service import REGISTRY, ApiRequest, Level, Model, Response, __version__, json_response, operation


class Me(Model):
    """The API key of a request, the user that a proxy named, and the version of the service."""

    client: str
    key: str
    level: Level
    user: str | None
    expires_at: str | None
    version: str


@operation("GET", "/api/v1/me", "read", {200: Me})
def get_me(request: ApiRequest) -> Response:
    """Get the client, name, level, user and expiry of the API key."""
    principal = request.principal
    statement = "SELECT expires_at FROM api_keys WHERE client_id = ? AND id = ?"
    with request.database.reading() as connection:
        row = connection.execute(statement, (principal.client_id, principal.key_id)).fetchone()
    expires_at = row[0] if row else None  # FINDINGS_API_KEY has no row
    level: Any = principal.level
    return json_response(200, Me(principal.client_id, principal.name, level, principal.user, expires_at, __version__))


def register() -> None:
    """Register the endpoint."""
    REGISTRY.add_operations(get_me)
