"""The server of `findings-service serve`: granian (https://github.com/emmett-framework/granian) before the service.

An event loop reads requests, and answers those that are soon answered; one thread writes, for which the writes that
wait share a transaction; some threads are for what takes long. Where a database has many connections, each request has
a thread. `rsgi.py` is about requests, `commits.py` about writes, `processes.py` about processes and their signals.
"""

from __future__ import annotations

from findings_service import REGISTRY


def register() -> None:
    """Serve instead of the module itself."""
    from findings_adapters.serving import processes

    REGISTRY.serve = processes.serve
