"""Request log: one line for each request on standard error, as JSON or as text.

The service calls it before it sends each response. A line never contains a key or a body.
"""

from __future__ import annotations

import json
from typing import Any

import regex

from findings_features.streams import write_unlocked
from findings_service import ITEM_CURSOR, REGISTRY, ApiRequest, Service, timestamp


def start(service: Service) -> None:
    """Start the request log of a service, in the format of its setting `log`."""
    style = service.settings.log

    def log_request(request: ApiRequest, status: int, size: int, seconds: float) -> None:
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
            "runId": request.run_id if regex.fullmatch(ITEM_CURSOR, request.run_id or "") else None,  # may be any text
        }
        line = json.dumps(fields, separators=(",", ":")) if style == "json" else " ".join(map(as_word, fields.values()))
        (service.listeners.write_line or write_unlocked)(line)

    service.listeners.answered.append(log_request)


def as_word(value: Any) -> str:
    """Return a value as one word of a text log: None as -, text with spaces, quotes or non-ASCII as a JSON string."""
    text = "-" if value is None else str(value)
    return text if regex.fullmatch(r"[\x21\x23-\x7e]+", text) else json.dumps(text)


def register() -> None:
    """Register the request log, which starts with each service whose setting `log` is set."""
    REGISTRY.observers["log"] = start
