"""Exit codes and terminal output of the commands for CI."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click

from findings_client import Refused, Stopped, Unavailable, stoppable
from findings_features.streams import for_terminal
from findings_service import ENGINE_ERRORS, ConfigurationError, DatabaseUnusable

BAD_INPUT = (400, 404, 413, 415, 422)  # statuses of requests that the user can correct


def visible(text: str) -> str:
    """Return a text as one line that terminals and CI logs display but do not interpret. Characters that are not
    printable are escaped. `##[`, GitHub's older workflow command, works anywhere in a line, so it is broken up.
    """
    line = " ".join(text.split())
    shown = "".join(sign if sign.isprintable() else sign.encode("unicode-escape").decode() for sign in line)
    return shown.replace("##[", "##\\[")


class Failed(click.ClickException):
    """Error for a command that failed with valid input; exit code 3."""

    exit_code = 3

    def __init__(self, message: str) -> None:
        super().__init__(visible(message))


class BadInput(Failed):
    """Error for wrong usage or input; exit code 2."""

    exit_code = 2


@contextmanager
def exit_codes() -> Iterator[None]:
    """Convert exceptions, except click's own, to a one-line error with exit code 2 or 3: 1 means a failed gate."""
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
    except Exception as error:  # a bug must not look like a failed gate
        raise Failed(f"{type(error).__name__}: {error}") from error


def write(pieces: Iterable[str | bytes]) -> None:
    """Write pieces to standard output: str unchanged (it must be `visible` already), bytes escaped on a terminal.

    A reader that closes the pipe early does not change the exit code. :raises Failed: if writing fails otherwise.
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
    """Print a message for people to standard error, so that standard output has only the result."""
    click.echo(visible(text), err=True)
