"""Standard streams of commands: terminal escapes, progress bars and messages without a lock."""

from __future__ import annotations

import contextlib
import os
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import click
import regex

from findings_service import CONTROLS, REGISTRY, STDERR

# Control characters other than tab and newline, and characters that change the direction of writing.
TERMINAL_CONTROLS = regex.compile(rf"(?!\t|\n)[{CONTROLS}\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def for_terminal(text: str) -> str:
    """Escape control characters of a text for a terminal: a stored text could otherwise write to the clipboard."""
    return TERMINAL_CONTROLS.sub(lambda match: match[0].encode("unicode-escape").decode(), text.replace("\r\n", "\n"))


class TerminalStream:
    """Standard output or error, escaped by `for_terminal` if it is a terminal.

    :param stream: the stream itself; None if the parent process closed it.
    :param ignored: exceptions of writing to ignore, because the text may have no reader.
    """

    def __init__(self, stream: typing.TextIO | None, *ignored: type[OSError]) -> None:
        self.stream, self._ignored = stream, ignored
        self._out = stream or open(os.devnull, "w")  # noqa: PTH123, SIM115 (for as long as the command runs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)

    def write(self, text: str) -> int:
        """Write a text, escaped if the stream is a terminal, and return its length."""
        with suppress(*self._ignored):
            self._out.write(for_terminal(text) if self._out.isatty() else text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with suppress(*self._ignored):
            self._out.flush()


def is_closed(stream: typing.TextIO | None) -> bool:
    """Return whether the parent process closed a standard stream."""
    return getattr(stream, "stream", stream) is None


@contextlib.contextmanager
def escaped_streams() -> Iterator[None]:
    """Replace standard output and error by streams that escape control characters for terminals."""
    out: Any = TerminalStream(sys.stdout)
    err: Any = TerminalStream(sys.stderr, OSError)
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        yield


def progress_bar(label: str, length: int = 0) -> Any:
    """Return a progress bar of click, which is hidden unless standard error is a terminal."""
    shown_on = getattr(sys.stderr, "stream", sys.stderr)
    return click.progressbar(length=length, label=label, file=shown_on, hidden=not sys.stderr.isatty())


log_form: Callable[[str], str] = str  # formats each message; the server sets it for FINDINGS_LOG=json


def write_unlocked(text: str) -> bool:
    """Write a message to standard error in the log's format. Return whether all of it was written.

    It bypasses `sys.stderr`, because a process cannot end while a thread holds its lock and waits for a reader.
    """
    text = log_form(text)
    remaining = f"{for_terminal(text) if os.isatty(STDERR) else text}\n".encode(errors="backslashreplace")
    try:
        while remaining:
            remaining = remaining[os.write(STDERR, remaining) :]
    except OSError:
        return False
    return True


def register() -> None:
    """Register the escaping of what commands write to a terminal."""
    REGISTRY.streams = escaped_streams
