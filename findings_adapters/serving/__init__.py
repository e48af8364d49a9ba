"""The server of `findings-service serve`, on granian.

With SQLite, an event loop handles short requests, one thread commits all writes in groups, and thread pools run slow
work. With an engine of many connections, each request has a thread. `rsgi.py` handles requests, `commits.py` commits
writes, `processes.py` manages processes and signals. granian: https://github.com/emmett-framework/granian
"""

from __future__ import annotations

from findings_service import REGISTRY


def register() -> None:
    """Register this server in place of the core's."""
    from findings_adapters.serving import processes

    REGISTRY.serve = processes.serve
