"""Which service a command speaks to: the options `--url` and `--db`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

import findings_client
from findings_client import Client, Local, Remote, key_of_environment
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
        help="A running service, instead of a file. Its key comes from FINDINGS_KEY.",
    ),
    environment_option(
        "--db", envvar="FINDINGS_DB", default="findings.db", help="The database file, without a server."
    ),
)


def typed_options(*names: str) -> set[str]:
    """Return the names of the options that the command line sets, rather than the environment."""
    source = click.get_current_context().get_parameter_source
    return {name for name in names if source(name) is click.core.ParameterSource.COMMANDLINE}


@contextmanager
def core_errors() -> Iterator[None]:
    """Raise the core's `ConfigurationError` in place of the client's, which does not know the core."""
    try:
        yield
    except findings_client.ConfigurationError as error:
        raise ConfigurationError(str(error)) from None


def service_at(url: str, db: str, *, new: bool = False, by: str = "scan") -> Client:
    """Return a client of the service at a URL, or of a database file. The command line overrides the environment.

    :param new: whether to create a missing file, and to migrate an older one.
    :param by: the name that histories have for changes made in a file.
    :raises ConfigurationError: if the key or the file is missing, or if both a URL and a file are given.
    """
    typed = typed_options("url", "db")
    if typed == {"url", "db"}:
        raise ConfigurationError("say --url or --db, not both")
    with core_errors():
        if url and typed != {"db"}:
            return Client(Remote(url, key_of_environment()))
        return Client(Local(db, new=new, by=by))
