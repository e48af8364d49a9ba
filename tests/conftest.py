"""What the tests of all rooms share: the helpers and fixtures of the module's own tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("test_findings_service")

from test_findings_service import (  # noqa: E402
    _no_settings,
    _url_builders,
    app,
    client,
    make_app,
    new_database,
    run,
    serve,
    server,
)
from tests.postgres_server import own_server, postgres  # noqa: E402

__all__ = [
    "_no_settings",
    "_url_builders",
    "app",
    "client",
    "make_app",
    "new_database",
    "own_server",
    "postgres",
    "run",
    "serve",
    "server",
]
