"""The service as tools for agents, over the Model Context Protocol: the command `mcp`.

Over standard input and output it serves the agent that started it, with a database file or a service at a URL behind
it. With `--http` it is a process of its own before a service, for many agents: it holds no key, and passes each
caller's on. The protocol is spoken by the official SDK (https://modelcontextprotocol.io/specification/2026-07-28, and
older versions), which takes so long to import that only the command does, in `server.py` beside this file.
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
from findings_service import (
    ConfigurationError,
    installing,
    load_modules,
    main,
    readable_errors,
    scheme_of,
)


class WrongUsage(click.ClickException):
    """What the command cannot be told, or lacks."""

    exit_code = 2


def http_address(_: click.Context, __: click.Parameter, text: str) -> tuple[str, int] | None:
    """Return the address of `HOST:PORT`, None where none is given."""
    if not text:
        return None
    match = regex.fullmatch(r"\[?(.*?)\]?:([0-9]{1,5})", text)
    if not match or int(match[2]) > 65535:
        raise click.BadParameter(f"{text!r} is no HOST:PORT, such as 127.0.0.1:8001 or [::1]:8001")
    return listening_address(match[1], "'--http'"), int(match[2])


@click.command()
@click.option(
    "--http",
    "address",
    metavar="HOST:PORT",
    default="",
    callback=http_address,
    help="Serve many agents over HTTP instead, each with its own key, before the service at --url.",
)
@service_options
def mcp(address: tuple[str, int] | None, url: str, db: str) -> None:
    """Give agents the service as tools of the Model Context Protocol."""
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
    """Report the package to install. :raises ModuleNotFoundError: if one of our own modules is missing."""
    if (name := missing.name or "").startswith(("findings_adapters", "findings_features")):
        raise click.UsageError(f"`mcp` needs {name}, which is not installed") from None
    needed = "`mcp` needs the package mcp, with all that it needs itself"  # what is missing first may be of those
    raise WrongUsage(f"{needed}{installing('mcp')}") from None


def check_http(url: str) -> None:
    """Check what is served over HTTP.

    :raises ConfigurationError: for a file, which has no keys for its callers, and without a URL.
    """
    if typed_options("db"):
        raise ConfigurationError("--http goes with --url, not with --db: each caller is known by its key")
    if not url:
        raise ConfigurationError("--http needs --url URL, the service that callers' keys are of")
    with core_errors():
        Remote(url, "")
    if os.name == "nt":
        raise ConfigurationError("`mcp --http` runs on Linux and macOS")
    if os.environ.get("FINDINGS_KEY"):
        click.echo("Note: FINDINGS_KEY is not used: every caller brings a key of its own.", err=True)


def register() -> None:
    """Add the command."""
    main.add_command(mcp)
