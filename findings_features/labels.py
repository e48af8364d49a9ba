"""Conversion of a scanner's rule, file, line and tags into the labels of a task."""

from __future__ import annotations

import re
from typing import Any

from findings_service import CONTROLS, exceeds_bytes, to_json_text, truncate

CONTROL_RUN = re.compile(f"[{CONTROLS}]+")  # compiled here, because re's cache is slower than the search


def plain_text(text: Any) -> str:
    """Replace control characters of a text by spaces, and strip it. Return "" for a value of another type."""
    return CONTROL_RUN.sub(" ", text).strip() if isinstance(text, str) else ""


def end_of(text: str, length: int) -> str:
    """Cut the front of a text longer than `length` characters: return its end, after an ellipsis."""
    return text if len(text) <= length else f"…{text[len(text) - length + 1 :]}"


def cut_bytes(text: str, size: int) -> str:
    """Cut a text longer than `size` bytes of UTF-8 to that size, including an ellipsis."""
    if not exceeds_bytes(text, size):
        return text
    return text[:size].encode()[: size - 3].decode(errors="ignore") + "…"


def foreign_labels(rule: Any, file: Any, line: Any, tags: Any) -> tuple[str | None, str | None, str | None]:
    """Return the rule, location and tags (as JSON) of a task from the values of another program.

    No value is refused: long rules and (in front) locations are cut; the first 20 tags of 1 to 64 characters are kept.
    """
    rule, location = plain_text(rule), plain_text(file)
    if location and type(line) is int:
        location = f"{location}:{line}"
    plain = map(plain_text, tags if isinstance(tags, (list, tuple)) else ())
    fit = dict.fromkeys(tag for tag in plain if 0 < len(tag) <= 64)
    return (truncate(rule, 256) or None, end_of(location, 1024) or None, to_json_text([*fit][:20]) if fit else None)
