"""Proxies that sign people in, as docs/operations.md sets Caddy up: who its users are, and who they cannot be."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.clients import API, task
from tests.documents import HERE, blocks_of, installed_program
from tests.servers import Server, StubHandler, command, connection_to, environment, free_port, running_stub, wait_until

BY_PASSWORD = {"Authorization": f"Basic {b64encode(b'anna:correct horse battery').decode()}"}
BY_COOKIE = {"Cookie": "user=anna@shop.example"}


class SignIn(StubHandler):
    """Stands in for oauth2-proxy, and takes a cookie's word for who somebody is."""

    def do_GET(self) -> None:
        """Say who it is, as far as that is known."""
        kind, _, user = self.headers.get("Cookie", "").partition("=")
        self.reply(202 if kind == "user" else 401, **({"X-Auth-Request-Email": user} if user else {}))


@dataclass
class Proxied:
    """A service, and Caddy before it."""

    service: Server
    port: int

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Send a request through Caddy, and return the status and what is told, or the place that it leads to."""
        sent = {"Content-Type": "application/json", **headers}
        with connection_to(self.port) as connection:
            connection.request(method, path, json.dumps(body) if body else None, sent)
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text else response.headers["Location"]

    def users(self, task_id: str) -> list[str | None]:
        """Return who did what happened to a task."""
        told = self.service.request("GET", f"{API}/tasks/{task_id}/history").json["history"]
        return [entry["user"] for entry in told]


def written(name: str, port: int, **ports: int) -> str:
    """Return a file of the page, for a port and with the ports of others that hold here."""
    (text,) = (text for _, kind, text in blocks_of(HERE / "docs" / "operations.md") if f"/{name}.caddy" in text)
    text = re.sub(r"127\.0\.0\.1:(\d+)", lambda found: f"127.0.0.1:{ports[f'of_{found[1]}']}", text)
    return "{\n    admin off\n}\n" + text.replace("findings.example {", f"http://127.0.0.1:{port} {{")


@pytest.fixture
def proxied(serve: Callable[..., Server], tmp_path: Path) -> Iterator[Callable[[str], Proxied]]:
    """Start a service, and Caddy before it by a file of the page."""
    caddy = installed_program("caddy")
    with ExitStack() as stack:

        def start(name: str) -> Proxied:
            service, port = serve(), free_port()
            sign_in = stack.enter_context(running_stub(ThreadingHTTPServer(("127.0.0.1", 0), SignIn)))
            config = tmp_path / "Caddyfile"
            config.write_text(written(name, port, of_8000=service.port, of_4180=sign_in.server_port), "utf-8")
            made = command("keys", "create", "proxy", "--level", "full", "--for-users", "--db", str(service.db))
            own = {"HOME": str(tmp_path), "FINDINGS_PROXY_KEY": made.stdout.strip()}
            line = [caddy, "run", "--adapter", "caddyfile", "--config", str(config)]
            running = subprocess.Popen(line, env=environment(**own), stderr=subprocess.DEVNULL)
            stack.callback(running.wait)
            stack.callback(running.terminate)
            wait_until(lambda: listens(port))
            return Proxied(service, port)

        yield start


def listens(port: int) -> bool:
    """Tell whether a program listens."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


Proxying = Callable[[str], Proxied]
WAYS_IN = {"by-password": (BY_PASSWORD, "anna"), "by-oauth2": (BY_COOKIE, "anna@shop.example")}


@pytest.mark.parametrize("way", WAYS_IN)
def test_who_is_signed_in_is_in_the_history_by_name_and_can_be_nobody_else(proxied: Proxying, way: str) -> None:
    through, (signed_in, user) = proxied(way), WAYS_IN[way]
    run = through.service.start_run()
    stored = through.service.request("POST", f"{API}/runs/{run}/tasks", task()).json["tasks"][0]["id"]
    path = f"{API}/tasks/{stored}"
    both = {"FINDINGS_USER": "boss", "findings-user": ""}
    for played in ({}, {"Findings-User": "boss"}, {"Findings_User": "boss"}, both):
        assert through.ask("PATCH", path, {"comment": "seen"}, **signed_in, **played)[0] == 200
        assert through.ask("PATCH", path, {"comment": "seen"}, **played)[0] == 401
    for site, status in {"same-origin": 200, "cross-site": 403}.items():
        sent = signed_in | {"Sec-Fetch-Site": site}
        assert through.ask("PATCH", path, {"comment": "seen"}, **sent)[0] == status
    assert through.users(stored) == [None, *[user] * 5]


def test_who_is_not_signed_in_is_led_to_where_that_is_done(proxied: Proxying) -> None:
    through = proxied("by-oauth2")
    assert through.ask("GET", "/") == (302, "/oauth2/start?rd=/")
    assert through.ask("GET", f"{API}/me") == (401, None)
    assert through.ask("GET", "/oauth2/auth", **BY_COOKIE) == (202, None)
    for played in ({}, {"Findings-User": "boss@shop.example"}):  # signed in without an address
        assert through.ask("GET", f"{API}/me", Cookie="user=", **played) == (401, None)


@pytest.mark.parametrize("way", WAYS_IN)
def test_an_api_key_gets_through_to_the_service_and_names_no_user(proxied: Proxying, way: str) -> None:
    through = proxied(way)
    own = {"Authorization": f"Bearer {through.service.key}"}
    status, told = through.ask("GET", f"{API}/me", **own)
    assert (status, told["key"], told["user"]) == (200, "first", None)
    assert through.ask("GET", f"{API}/me", **own, **{"Findings-User": "boss"})[0] == 400
