"""Exit codes and output of the commands for CI."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click

from findings_client import Refused, Stopped, Unavailable, stoppable
from findings_features.streams import for_terminal
from findings_service import ENGINE_ERRORS, ConfigurationError, DatabaseUnusable

BAD_INPUT = (400, 404, 413, 415, 422)  # what the caller can mend


def visible(text: str) -> str:
    """Return text as one line in which nothing is obeyed: control characters, also those that turn the direction of
    writing, are shown as escapes, and GitHub's older form of workflow commands, which counts anywhere, is broken up.
    """
    line = " ".join(text.split())
    shown = "".join(sign if sign.isprintable() else sign.encode("unicode-escape").decode() for sign in line)
    return shown.replace("##[", "##\\[")


class Failed(click.ClickException):
    """Failure of a command whose input was valid."""

    exit_code = 3

    def __init__(self, message: str) -> None:
        super().__init__(visible(message))


class BadInput(Failed):
    """Wrong usage or input."""

    exit_code = 2


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn all that can go wrong into one line, and into an exit code that no gate gives."""
    try:
        with stoppable():
            yield
    except click.ClickException:
        raise
    except ConfigurationError as error:
        raise BadInput(str(error)) from None
    except Refused as error:
        raise (BadInput if error.status in BAD_INPUT else Failed)(str(error)) from None
    except (Unavailable, DatabaseUnusable, Stopped, OSError, *ENGINE_ERRORS) as error:
        raise Failed(str(error)) from None
    except Exception as error:  # a bug, which must not look as if the gate had spoken
        raise Failed(f"{type(error).__name__}: {error}") from error


def write(pieces: Iterable[str | bytes]) -> None:
    """Write to standard output: text unchanged, because it is `visible`, and bytes escaped if it is a terminal.

    A reader that closes the pipe early does not change the exit code.
    """
    escaped = sys.stdout.isatty()
    try:
        for piece in pieces:
            if isinstance(piece, str):
                piece = piece.encode()
            elif escaped:
                piece = for_terminal(piece.decode()).encode()
            sys.stdout.buffer.write(piece)
        sys.stdout.flush()
    except BrokenPipeError:
        return
    except OSError as error:
        raise Failed(f"standard output: {error.strerror}") from None


def note(text: str) -> None:
    """Print a note for people on standard error, beside the result."""
    click.echo(visible(text), err=True)
