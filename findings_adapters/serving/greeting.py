"""Messages of a server at its start: its URL, and the first API key of a new database."""

from __future__ import annotations

import select
import socket
import sys

import click

from findings_features.streams import is_closed, write_unlocked
from findings_service import REGISTRY, STDERR, Service, __version__, hashed, insert_first_key

HOST_OPTION = "'--host' (env var: 'FINDINGS_HOST')"


def listening_address(host: str, option: str = HOST_OPTION) -> str:
    """Return an IP address of the host that `option` names, IPv4 if possible: granian takes no names."""
    try:
        found = socket.getaddrinfo(host or "127.0.0.1", None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter for an empty label, or one that is too long
        cause = error.strerror if isinstance(error, OSError) else "it is not a valid host name"
        raise click.BadParameter(
            f"{host!r} is not a known host name or IP address: {cause}", param_hint=option
        ) from None
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])


def free_port(host: str, port: int) -> int:
    """Return the port to listen on: `port`, or a free one for 0. :raises OSError: if the port cannot be used.

    granian's sockets allow other sockets on their port. Without this check, it would share a port unnoticed.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from None
        return int(probe.getsockname()[1])


def reachable(host: str) -> str:
    """Return an address that this machine can connect to if it listens on `host`: loopback for 0.0.0.0 and ::."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound


def url_of(host: str, port: int) -> str:
    """Return the URL at which this machine reaches a server that listens on a host and port."""
    name = reachable(host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


PAGE = """
Open the page, signed in with the first API key:

    {url}/#key={key}
"""
FIRST_KEY = """
This is the first API key, of client "default" and level "full". It is shown only this once:

    export FINDINGS_KEY={key}
    curl -H "Authorization: Bearer $FINDINGS_KEY" {url}/api/v1/tasks
"""


def greet(service: Service, warning: str, url: str) -> None:
    """Print `warning`, the service's URL and, if there is no API key yet, a new first key with a request to try.

    The key is inserted only when standard error is writable (poll(2); a pipe then takes the whole short text), so that
    a failed start leaves no key that no one has seen. A key that cannot be printed is deleted again.
    """
    select.select([], [STDERR], [])
    with service.database.transaction("default") as connection:
        key = None if is_closed(sys.stderr) else insert_first_key(connection, service.settings)
    write_unlocked(f"{warning}Findings Task Service {__version__} on {url}, data in {service.database.location}")
    text = (PAGE if "/" in REGISTRY.page_files else "") + FIRST_KEY
    if key and not write_unlocked(text.format(key=key, url=url)):
        with service.database.transaction("default") as connection:
            connection.execute("DELETE FROM api_keys WHERE hash = ?", (hashed(key),))
