"""The command `mcp`, which offers the service as tools for agents over the Model Context Protocol.

On standard input and output it serves the agent that started it, from a database file or a service at a URL. With
`--http` it is a separate process in front of a service, for many agents: it has no API key and forwards each caller's
key. The official SDK implements the protocol (https://modelcontextprotocol.io/specification/2026-07-28, and older
versions). The SDK's import is slow, so only the command imports it, through `server.py` in this folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import click
import regex

from findings_adapters.connecting import core_errors, service_at, service_options, typed_options
from findings_adapters.serving.greeting import listening_address
from findings_client import Remote
from findings_service import ConfigurationError, install_hint, load_modules, main, readable_errors, scheme_of


class WrongUsage(click.ClickException):
    """Error for invalid options, or for a package that is not installed; exit code 2."""

    exit_code = 2


def http_address(_: click.Context, __: click.Parameter, text: str) -> tuple[str, int] | None:
    """Parse the value of `--http`, HOST:PORT, into an IP address and a port; return None if it is empty."""
    if not text:
        return None
    match = regex.fullmatch(r"\[?(.*?)\]?:([0-9]{1,5})", text)
    if not match or int(match[2]) > 65535:
        raise click.BadParameter(f"{text!r} is not HOST:PORT; use 127.0.0.1:8001 or [::1]:8001")
    return listening_address(match[1], "'--http'"), int(match[2])


@click.command()
@click.option(
    "--http",
    "address",
    metavar="HOST:PORT",
    default="",
    callback=http_address,
    help="Serve many agents over HTTP, each with its own API key; forward their requests to the service at --url.",
)
@service_options
def mcp(address: tuple[str, int] | None, url: str, db: str) -> None:
    """Serve agents over the Model Context Protocol."""
    try:
        import findings_adapters.mcp.server as server
    except ModuleNotFoundError as missing:
        refuse_without(missing)
    load_modules()
    with readable_errors(db):
        try:
            if address is not None:
                check_http(url)
                server.serve_http(*address, url)
            else:
                place = db if scheme_of(db) else str(Path(db).resolve())
                server.serve_stdio(service_at(url, place, new=True, by="mcp"))
        except ConfigurationError as error:
            raise WrongUsage(str(error)) from None


def refuse_without(missing: ModuleNotFoundError) -> NoReturn:
    """Raise UsageError that names a missing module of this project, or WrongUsage that names a package to install."""
    if (name := missing.name or "").startswith(("findings_adapters", "findings_features")):
        raise click.UsageError(f"`mcp` needs {name}, which is not installed") from None
    needed = "`mcp` requires the package mcp and its dependencies"  # the missing module may be a dependency
    raise WrongUsage(f"{needed}{install_hint('mcp')}") from None


def check_http(url: str) -> None:
    """Check the options for `--http`.

    :raises ConfigurationError: if --db is given, --url is missing or not valid, or the system is Windows.
    """
    if typed_options("db"):
        raise ConfigurationError("--http requires --url, not --db, because the service checks each caller's API key")
    if not url:
        raise ConfigurationError("--http requires --url URL, the service that checks the callers' API keys")
    with core_errors():
        Remote(url, "")
    if os.name == "nt":
        raise ConfigurationError("`mcp --http` runs only on Linux and macOS")
    if os.environ.get("FINDINGS_KEY"):
        click.echo("Note: FINDINGS_KEY is not used, because every caller sends its own API key.", err=True)


def register() -> None:
    """Register the command `mcp`."""
    main.add_command(mcp)
