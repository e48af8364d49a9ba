"""A line for each request, on standard error: as JSON, or as text.

It listens to what an application answers. Nothing in a line is a key or a body.
"""

from __future__ import annotations

import json
from typing import Any

import regex

import findings_service as heart


def start(service: heart.Service) -> None:
    """Have a service write its log, in the form that its settings name."""
    form = service.settings.log

    def note(call: heart.Call, status: int, size: int, seconds: float) -> None:
        fields = {
            "time": heart.timestamp(),
            "method": call.method,
            "route": call.route,
            "status": status,
            "ms": round(seconds * 1000, 2),
            "bytes": size,
            "client": call.principal.client_id or None,
            "key": call.principal.name or None,
            "user": call.principal.user,
            "runId": call.run_id if regex.fullmatch(heart.ITEM_CURSOR, call.run_id or "") else None,  # or anything
        }
        line = json.dumps(fields, separators=(",", ":")) if form == "json" else " ".join(map(as_word, fields.values()))
        (service.listeners.write_line or heart.write_unlocked)(line)

    service.listeners.answered.append(note)


def as_word(value: Any) -> str:
    """Return a value as one word of a text log: "-" for none, in quotes what has spaces or strange signs in it."""
    text = "-" if value is None else str(value)
    return text if regex.fullmatch(r"[\x21\x23-\x7e]+", text) else json.dumps(text)


def register() -> None:
    """Let services have a log."""
    heart.REGISTRY.observers["log"] = start
