"""The server of `findings-service serve`: granian (https://github.com/emmett-framework/granian) before the service.

An event loop reads requests, and answers those that are soon answered; one thread writes, for which the writes that
wait share a transaction; some threads are for what takes long. Where a database has many connections, each request has
a thread. `rsgi.py` is about requests, `commits.py` about writes, `processes.py` about processes and their signals.
"""

from __future__ import annotations

import findings_service as heart


def serve(settings: heart.Settings, host: str, port: int, workers: int) -> None:
    """Serve until one of the signals that end a service.

    :raises ConfigurationError: for a setting of a part that is absent.
    :raises ChildProcessError: when one of several workers died by itself.
    """
    if settings.keep and (absent := heart.load_part("findings_features/deletion.py")):
        raise heart.ConfigurationError(f"FINDINGS_KEEP needs {absent}, which is not there")
    from findings_adapters.serving import processes

    processes.serve(settings, host, port, workers)


def register() -> None:
    """Serve instead of the module itself."""
    heart.REGISTRY.serve = serve
