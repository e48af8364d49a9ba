"""What scanners call rule, file, line and tags, as a task has them."""

from __future__ import annotations

import re
from typing import Any

from findings_service import (
    CONTROLS,
    exceeds_bytes,
    to_json_text,
    truncate,
)

CONTROL_RUN = re.compile(f"[{CONTROLS}]+")  # looking it up for each text would take longer than its work


def plain_text(text: Any) -> str:
    """Return a text without control characters and white space around it, "" for anything else."""
    return CONTROL_RUN.sub(" ", text).strip() if isinstance(text, str) else ""


def end_of(text: str, length: int) -> str:
    """Return the last characters of a text, with an ellipsis in front if it is longer than `length`."""
    return text if len(text) <= length else f"…{text[len(text) - length + 1 :]}"


def cut_bytes(text: str, size: int) -> str:
    """Shorten a text to so many bytes of UTF-8."""
    if not exceeds_bytes(text, size):
        return text
    return text[:size].encode()[: size - 3].decode(errors="ignore") + "…"


def foreign_labels(rule: Any, file: Any, line: Any, tags: Any) -> tuple[str | None, str | None, str | None]:
    """Return what another program calls rule, file, line and tags as a task has them: nothing of it is refused.

    A longer rule is cut, a location at its front, and of tags the first that fit are taken.
    """
    rule, place = plain_text(rule), plain_text(file)
    if place and type(line) is int:
        place = f"{place}:{line}"
    plain = map(plain_text, tags if isinstance(tags, (list, tuple)) else ())
    fit = dict.fromkeys(tag for tag in plain if 0 < len(tag) <= 64)
    return (
        truncate(rule, 256) or None,
        end_of(place, 1024) or None,
        to_json_text([*fit][:20]) if fit else None,
    )
