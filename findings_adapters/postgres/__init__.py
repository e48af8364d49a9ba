"""The service's data in PostgreSQL 15 or newer, for any number of processes on any number of machines.

`FINDINGS_DB=postgresql://user@host/name` has it so. The driver is psycopg 3 (https://www.psycopg.org/psycopg3/docs/),
which is imported with the first database, not with this folder. `dialect.py` is what PostgreSQL says otherwise than
SQLite, and `store.py` what the service asks of an engine.
`copying.py` is the command `copy`, and `bulk.py` what it does with a server.
"""

from __future__ import annotations

import select

from findings_service import (
    ENGINE_MODULES,
    REGISTRY,
    ConfigurationError,
    Database,
    Settings,
    installing,
    main,
)


def open_postgres(settings: Settings) -> Database:
    """Return the database that a URL names. Nothing is opened yet.

    :raises ConfigurationError: on Windows, when psycopg is not there, or when the URL makes no sense.
    """
    if not hasattr(select, "poll"):
        raise ConfigurationError("a database of postgresql:// is for Linux and macOS; on Windows, use a file")
    try:
        from findings_adapters.postgres import store
    except ImportError as missing:
        if (missing.name or "").startswith("findings_adapters"):
            raise
        needed = f"a database of postgresql:// needs what is not there ({missing})"
        raise ConfigurationError(f"{needed}{installing('postgres')}") from None
    return store.PostgresDatabase(settings)


def register() -> None:
    """Add the engine, and the command."""
    from findings_adapters.postgres.command import copy

    REGISTRY.engines |= dict.fromkeys(ENGINE_MODULES, open_postgres)
    main.add_command(copy)
