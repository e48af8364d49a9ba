"""A line for each request, on standard error: as JSON, or as text.

It listens to what an application answers. Nothing in a line is a key or a body.
"""

from __future__ import annotations

import json
from typing import Any

import regex

from findings_features.streams import write_unlocked
from findings_service import (
    ITEM_CURSOR,
    REGISTRY,
    ApiRequest,
    Service,
    timestamp,
)


def start(service: Service) -> None:
    """Have a service write its log, in the form that its settings name."""
    form = service.settings.log

    def note(request: ApiRequest, status: int, size: int, seconds: float) -> None:
        fields = {
            "time": timestamp(),
            "method": request.method,
            "route": request.route,
            "status": status,
            "ms": round(seconds * 1000, 2),
            "bytes": size,
            "client": request.principal.client_id or None,
            "key": request.principal.name or None,
            "user": request.principal.user,
            "runId": request.run_id if regex.fullmatch(ITEM_CURSOR, request.run_id or "") else None,  # or anything
        }
        line = json.dumps(fields, separators=(",", ":")) if form == "json" else " ".join(map(as_word, fields.values()))
        (service.listeners.write_line or write_unlocked)(line)

    service.listeners.answered.append(note)


def as_word(value: Any) -> str:
    """Return a value as one word of a text log: "-" for none, in quotes what has spaces or strange signs in it."""
    text = "-" if value is None else str(value)
    return text if regex.fullmatch(r"[\x21\x23-\x7e]+", text) else json.dumps(text)


def register() -> None:
    """Let services have a log."""
    REGISTRY.observers["log"] = start
