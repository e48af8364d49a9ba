"""The command-line options `--url` and `--db`, and the client of the service that they select."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

import findings_client
from findings_client import Client, Local, Remote, key_from_environment
from findings_service import ConfigurationError, environment_option


def combined(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds several options to a command, in this order."""

    def decorate(command: Any) -> Any:
        for each in reversed(decorators):
            command = each(command)
        return command

    return decorate


service_options = combined(
    environment_option(
        "--url",
        envvar="FINDINGS_URL",
        default="",
        show_default=False,
        help="The URL of a running service to use instead of --db. FINDINGS_KEY must be set to an API key.",
    ),
    environment_option(
        "--db", envvar="FINDINGS_DB", default="findings.db", help="The database file to use without a server."
    ),
)


def typed_options(*names: str) -> set[str]:
    """Return the names of those options that were set on the command line, not by the environment or a default."""
    source = click.get_current_context().get_parameter_source
    return {name for name in names if source(name) is click.core.ParameterSource.COMMANDLINE}


@contextmanager
def core_errors() -> Iterator[None]:
    """Convert the client's `ConfigurationError` to the core's, because the client must not import the core."""
    try:
        yield
    except findings_client.ConfigurationError as error:
        raise ConfigurationError(str(error)) from None


def service_at(url: str, db: str, *, new: bool = False, by: str = "scan") -> Client:
    """Return a client for the service at a URL or on a database file.

    An option on the command line takes precedence over the environment.
    :param new: create a missing file or migrate an old one. :param by: the key name that a file's history gets.
    :raises ConfigurationError: if the key or the file is missing, or the command line has both options.
    """
    typed = typed_options("url", "db")
    if typed == {"url", "db"}:
        raise ConfigurationError("use either --url or --db, not both")
    with core_errors():
        if url and typed != {"db"}:
            return Client(Remote(url, key_from_environment()))
        return Client(Local(db, new=new, by=by))
