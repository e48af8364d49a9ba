"""What scanners call rule, file, line and tags, as a task has them."""

from __future__ import annotations

import re
import sys
from typing import Any

import findings_service as heart

CONTROL_RUN = re.compile(f"[{heart.CONTROLS}]+")  # looking it up for each text would take longer than its work


def fit_text(text: Any, length: int) -> str | None:
    """Return a text without control characters and white space around it, None where it is blank or longer."""
    plain = CONTROL_RUN.sub(" ", text).strip() if isinstance(text, str) else ""
    return plain if 0 < len(plain) <= length else None


def end_of(text: str, length: int) -> str:
    """Return the last characters of a text, with an ellipsis in front if it is longer than `length`."""
    return text if len(text) <= length else f"…{text[len(text) - length + 1 :]}"


def foreign_marks(rule: Any, file: Any, line: Any, tags: Any) -> tuple[str | None, str | None, str | None]:
    """Return what another program calls rule, file, line and tags as a task has them: nothing of it is refused.

    A longer rule is cut, a location at its front, and of tags the first that fit are taken.
    """
    rule, place = fit_text(rule, sys.maxsize), fit_text(file, sys.maxsize)
    if place and type(line) is int:
        place = f"{place}:{line}"
    fit = dict.fromkeys(filter(None, (fit_text(tag, 64) for tag in tags))) if isinstance(tags, (list, tuple)) else ()
    return (
        rule and heart.truncate(rule, 256),
        place and end_of(place, 1024),
        heart.to_json_text([*fit][:20]) if fit else None,
    )
