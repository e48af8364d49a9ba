"""Engine for PostgreSQL 15 or newer, for any number of processes on any number of machines.

`FINDINGS_DB=postgresql://user@host/name` selects it. The driver is psycopg 3
(https://www.psycopg.org/psycopg3/docs/). It is imported when the first database is opened, not with this package.
`dialect.py` translates SQL and the schema from SQLite. `store.py` implements the core's `Database` and `Connection`.
`command.py` is the command `copy`, `copying.py` copies the rows, and `bulk.py` is a server as its source or target.
"""

from __future__ import annotations

import select

from findings_service import ENGINE_MODULES, REGISTRY, ConfigurationError, Database, Settings, install_hint, main


def open_postgres(settings: Settings) -> Database:
    """Return the database at the URL of the settings, without connecting to it.

    :raises ConfigurationError: on Windows, if psycopg is not installed, or if the URL is not valid.
    """
    if not hasattr(select, "poll"):
        raise ConfigurationError("postgresql:// databases require Linux or macOS; on Windows, use a file")
    try:
        from findings_adapters.postgres import store
    except ImportError as missing:
        if (missing.name or "").startswith("findings_adapters"):
            raise
        problem = f"postgresql:// needs a package that is not installed ({missing})"
        raise ConfigurationError(f"{problem}{install_hint('postgres')}") from None
    return store.PostgresDatabase(settings)


def register() -> None:
    """Register the engine and the command `copy`."""
    from findings_adapters.postgres.command import copy

    REGISTRY.engines |= dict.fromkeys(ENGINE_MODULES, open_postgres)
    main.add_command(copy)
