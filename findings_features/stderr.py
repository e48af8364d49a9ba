"""Messages on standard error, written without the lock of `sys.stderr`."""

from __future__ import annotations

import os
from collections.abc import Callable

from findings_service import STDERR, for_terminal

log_form: Callable[[str], str] = str  # formats each message; the server sets it for FINDINGS_LOG=json


def write_unlocked(text: str) -> bool:
    """Write a message to standard error in the form of the log, and return whether all of it was written.

    `sys.stderr` has a lock, and a process cannot end while a thread that waits for a reader holds it.
    """
    text = log_form(text)
    rest = f"{for_terminal(text) if os.isatty(STDERR) else text}\n".encode(errors="backslashreplace")
    try:
        while rest:
            rest = rest[os.write(STDERR, rest) :]
    except OSError:
        return False
    return True
