"""Sign-in at the proxies of docs/operations.md, Caddy and nginx, and attempts to spoof a user."""

from __future__ import annotations

import json
import os
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

PASSWORD = "correct horse battery"
BY_PASSWORD = {"Authorization": f"Basic {b64encode(f'anna:{PASSWORD}'.encode()).decode()}"}
BY_COOKIE = {"Cookie": "user=anna@shop.example"}


class SignIn(StubHandler):
    """A stub of oauth2-proxy, which trusts the user named in a cookie."""

    def do_GET(self) -> None:
        """Return 202 with the user's address if the cookie has one, or 401 without a cookie."""
        kind, _, user = self.headers.get("Cookie", "").partition("=")
        self.reply(202 if kind == "user" else 401, **({"X-Auth-Request-Email": user} if user else {}))


@dataclass
class Proxied:
    """A service and a proxy in front of it."""

    service: Server
    port: int

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Send a request through the proxy, and return the status and the JSON, or the Location header."""
        sent = {"Content-Type": "application/json", **headers}
        with connection_to(self.port) as connection:
            connection.request(method, path, json.dumps(body) if body else None, sent)
            response = connection.getresponse()
            text = response.read()
            is_json = "json" in response.headers.get("Content-Type", "")
            return response.status, json.loads(text) if is_json else response.headers["Location"]

    def users(self, task_id: str) -> list[str | None]:
        history = self.service.request("GET", f"{API}/tasks/{task_id}/history").json["history"]
        return [entry["user"] for entry in history]


NGINX = """
pid nginx.pid;
daemon off;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {{
        listen 127.0.0.1:{port};
        include {name};
    }}
}}
"""


def documented_file(name: str, **ports: int) -> str:
    """Return a configuration file of docs/operations.md, with the ports of this test."""
    (text,) = (text for *_, text in blocks_of(HERE / "docs" / "operations.md") if f"/{name}\n" in text)
    return re.sub(r"127\.0\.0\.1:(\d+)", lambda found: f"127.0.0.1:{ports[f'of_{found[1]}']}", text)


def prepare_caddy(folder: Path, port: int, name: str, text: str) -> list[str]:
    """Write the files of Caddy and return its command line."""
    site = text.replace("findings.example {", f"http://127.0.0.1:{port} {{")
    (folder / name).write_text(f"{{\n    admin off\n}}\n{site}", "utf-8")
    return [installed_program("caddy"), "run", "--adapter", "caddyfile", "--config", str(folder / name)]


def prepare_nginx(folder: Path, port: int, name: str, text: str, key: str) -> list[str]:
    """Write the files of nginx and return its command line."""
    hashed = subprocess.run(
        [installed_program("openssl"), "passwd", "-6", PASSWORD], capture_output=True, text=True, check=True
    )
    user = "user root;" if os.geteuid() == 0 else ""  # other users cannot read pytest's folders
    files = {
        name: text,
        "findings.key": f"set $findings_key {key};",
        "findings.htpasswd": f"anna:{hashed.stdout}",
        "nginx.conf": user + NGINX.format(port=port, name=name),
    }
    for each, content in files.items():
        (folder / each).write_text(content, "utf-8")
    return [installed_program("nginx"), "-p", f"{folder}/", "-c", str(folder / "nginx.conf")]


@pytest.fixture
def proxied(serve: Callable[..., Server], tmp_path: Path) -> Iterator[Callable[[str], Proxied]]:
    """A factory of services with a proxy in front, configured by a file of docs/operations.md."""
    with ExitStack() as stack:

        def start(name: str) -> Proxied:
            installed_program("caddy" if name.endswith(".caddy") else "nginx")
            service, port = serve(), free_port()
            sign_in = stack.enter_context(running_stub(ThreadingHTTPServer(("127.0.0.1", 0), SignIn)))
            text = documented_file(name, of_8000=service.port, of_4180=sign_in.server_port)
            created = command("keys", "create", "proxy", "--level", "full", "--for-users", "--db", str(service.db))
            key = created.stdout.strip()
            if name.endswith(".caddy"):
                line = prepare_caddy(tmp_path, port, name, text)
            else:
                line = prepare_nginx(tmp_path, port, name, text, key)
            own = {"HOME": str(tmp_path), "FINDINGS_PROXY_KEY": key}
            running = subprocess.Popen(line, env=environment(**own), stderr=subprocess.DEVNULL)
            stack.callback(running.wait)
            stack.callback(running.terminate)
            wait_until(lambda: listens(port))
            return Proxied(service, port)

        yield start


def listens(port: int) -> bool:
    """Return whether a program listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


StartProxy = Callable[[str], Proxied]
SIGN_INS = {
    "by-password.caddy": (BY_PASSWORD, "anna"),
    "by-oauth2.caddy": (BY_COOKIE, "anna@shop.example"),
    "by-password.conf": (BY_PASSWORD, "anna"),
}


@pytest.mark.parametrize("name", SIGN_INS)
def test_signed_in_user_is_recorded_and_cannot_be_spoofed(proxied: StartProxy, name: str) -> None:
    proxy, (signed_in, user) = proxied(name), SIGN_INS[name]
    run = proxy.service.start_run()
    stored = proxy.service.request("POST", f"{API}/runs/{run}/tasks", task()).json["tasks"][0]["id"]
    path = f"{API}/tasks/{stored}"
    both = {"FINDINGS_USER": "boss", "findings-user": ""}
    for spoofed in ({}, {"Findings-User": "boss"}, {"Findings_User": "boss"}, both):
        assert proxy.request("PATCH", path, {"comment": "seen"}, **signed_in, **spoofed)[0] == 200
        assert proxy.request("PATCH", path, {"comment": "seen"}, **spoofed)[0] == 401
    for site, status in {"same-origin": 200, "cross-site": 403}.items():
        sent = signed_in | {"Sec-Fetch-Site": site}
        assert proxy.request("PATCH", path, {"comment": "seen"}, **sent)[0] == status
    assert proxy.users(stored) == [None, *[user] * 5]


def test_unauthenticated_page_request_is_redirected_to_sign_in(proxied: StartProxy) -> None:
    proxy = proxied("by-oauth2.caddy")
    assert proxy.request("GET", "/") == (302, "/oauth2/start?rd=/")
    assert proxy.request("GET", f"{API}/me") == (401, None)
    assert proxy.request("GET", "/oauth2/auth", **BY_COOKIE) == (202, None)
    for spoofed in ({}, {"Findings-User": "boss@shop.example"}):  # a user without an address
        assert proxy.request("GET", f"{API}/me", Cookie="user=", **spoofed) == (401, None)


@pytest.mark.parametrize("name", SIGN_INS)
def test_api_key_passes_the_proxy_without_a_user(proxied: StartProxy, name: str) -> None:
    proxy = proxied(name)
    headers = {"Authorization": f"Bearer {proxy.service.key}"}
    status, body = proxy.request("GET", f"{API}/me", **headers)
    assert (status, body["key"], body["user"]) == (200, "first", None)
    status, body = proxy.request("GET", f"{API}/me", **headers, **{"Findings-User": "boss"})
    assert status == 400 or body["user"] is None


@pytest.mark.parametrize("name", ["by-password.caddy", "by-password.conf"])
def test_request_with_a_key_and_a_password_is_rejected(proxied: StartProxy, name: str) -> None:
    proxy = proxied(name)
    both = [f"Bearer {proxy.service.key}", BY_PASSWORD["Authorization"]]
    for values in (both, both[::-1]):
        with connection_to(proxy.port) as connection:
            connection.putrequest("GET", f"{API}/me")
            for value in values:
                connection.putheader("Authorization", value)
            connection.endheaders()
            assert connection.getresponse().status == (401 if name.endswith(".caddy") else 400)
