"""One POST to a webhook: where it may go, how it is signed, and what is made of the answer.

A URL is one that somebody with a key has written, and the service may stand where that somebody does not: so each
address of its name must be one that all the world can reach, and it is that very address which is connected to.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from http.client import HTTPException
from urllib.parse import SplitResult, quote, urlsplit

from msgspec import Struct
from urllib3 import Retry
from urllib3.connection import HTTPConnection, HTTPSConnection, port_by_scheme
from urllib3.exceptions import ConnectTimeoutError, HTTPError, InvalidHeader, NewConnectionError

from findings_service import (
    JSON_TYPE,
    PRINTABLE_IN_URL,
    __version__,
)

ATTEMPT_TIME = 15.0  # seconds that an attempt has, from looking up the name to the head of the answer
LOOKUP_TIME = 5.0  # seconds of these for the name
LONGEST_ASKED = 24 * 3600  # seconds by a Retry-After
SECRET_PREFIX = "whsec_"  # noqa: S105 - what a secret begins with
SECRET_BYTES = 32
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052
ISATAP = (0x00005EFE, 0x02005EFE)  # in the third of four parts of an address (RFC 5214)
# What Python takes for global, some or all versions of it, and is not: IETF protocols, 6to4's relays and documentation
# (https://www.iana.org/assignments/iana-ipv4-special-registry, iana-ipv6-special-registry), and a cloud's own service.
SPECIAL = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20", "168.63.129.16/32")))

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class DeliveryResult(Struct, frozen=True):
    """What became of an attempt: the status of the answer, if there was one, and a kind of failure.

    `asked` are the seconds in which the receiver does not want another. Nothing in this is text of the receiver's.
    """

    status: int | None = None
    error: str | None = None
    asked: float = 0.0


class NotAllowed(Exception):
    """A name has an address that no webhook may be at."""


# Addresses


def is_public(address: Address) -> bool:
    """Tell whether an address is global unicast, and so is an IPv4 address inside it, where packets may end up.

    Of IPv4 inside IPv6, what is mapped, 6to4, NAT64 and ISATAP are judged so; Teredo and what is compatible are not
    global.
    """
    if any(address in each for each in SPECIAL):
        return False
    if isinstance(address, ipaddress.IPv6Address):
        ends_with_one = address in NAT64 or (int(address) >> 32) & 0xFFFFFFFF in ISATAP
        last = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if ends_with_one else None
        if inner := address.ipv4_mapped or last:
            return is_public(inner)
        if address.is_site_local or (address.sixtofour and not is_public(address.sixtofour)):
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def look_up(host: str) -> list[str]:
    """Return the addresses of a name. :raises OSError: when it has none. :raises TimeoutError: when that takes long.

    The system bounds the time for that with nothing, and so it is done in a thread that may be left behind.
    """
    found = Future[list[str]]()

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            found.set_result(list(dict.fromkeys(str(address[0]) for *_, address in answers)))
        except OSError as error:
            found.set_exception(error)

    threading.Thread(target=ask, name="findings-lookup", daemon=True).start()
    return found.result(LOOKUP_TIME)


def allowed_addresses(url: str, *, private: bool) -> list[str]:
    """Return the addresses of a URL's name.

    :param private: whether they may be any.
    :raises NotAllowed: when one of them is not global unicast. :raises OSError: when there is none, or not in time.
    """
    addresses = look_up(host_of(urlsplit(url)))
    if not private and not all(is_public(ipaddress.ip_address(each)) for each in addresses):
        raise NotAllowed
    return addresses


def host_of(parts: SplitResult) -> str:
    """Return the name of a URL as DNS has it. :raises ValueError: for what can be none."""
    return (parts.hostname or "").encode("idna").decode()


# The request


def signed(secret: str, event_id: str, body: bytes, at: int) -> dict[str, str]:
    """Return the headers that say by Standard Webhooks what a body is, and that it is ours.

    :param at: the time, in seconds.
    """
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signature = hmac.digest(key, b".".join((event_id.encode(), str(at).encode(), body)), hashlib.sha256)
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }


@contextmanager
def cut_off(connection: HTTPConnection, until: float) -> Iterator[None]:
    """End what is read from a connection at a time of the monotonic clock, however slowly it comes.

    A socket's own time-out begins anew with each byte.
    """

    def end() -> None:
        with suppress(OSError, AttributeError):  # it has ended meanwhile
            connection.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, until - time.monotonic()), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def connected(parts: SplitResult, addresses: Sequence[str], until: float) -> HTTPConnection:
    """Return a connection to the first of some addresses that takes one, as the host that a URL names.

    :raises Exception: what the last of them has failed with.
    """
    port, errors = parts.port or port_by_scheme[parts.scheme], list[Exception]()
    for address in addresses:
        half = max(0.01, until - time.monotonic()) / 2  # connecting has this, and so has TLS behind it
        if parts.scheme == "https":
            connection: HTTPConnection = HTTPSConnection(address, port, timeout=half, server_hostname=host_of(parts))
        else:
            connection = HTTPConnection(address, port, timeout=half)
        try:
            connection.connect()
            return connection
        except BaseException as error:
            connection.close()
            if not isinstance(error, NewConnectionError | ConnectTimeoutError):
                raise
            errors.append(error)
    raise errors[-1]


def answer_to(
    url: str, addresses: Sequence[str], body: bytes, headers: Mapping[str, str], until: float
) -> DeliveryResult:
    """Post a body, and return what its answer says. Nothing behind the head of that is read."""
    parts = urlsplit(url)
    target = quote(f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}", safe=PRINTABLE_IN_URL)
    host = f"[{parts.hostname}]" if ":" in host_of(parts) else host_of(parts)
    given = host if parts.port is None else f"{host}:{parts.port}"
    with closing(connected(parts, addresses, until)) as connection, cut_off(connection, until):
        connection.timeout = max(0.01, until - time.monotonic())
        connection.request("POST", target, body, {"Host": given, **headers}, preload_content=False)
        with closing(connection.getresponse()) as answer:
            if time.monotonic() >= until:  # a head that was cut off looks like one that has ended
                raise TimeoutError
            return judged(answer.status, answer.headers.get("Retry-After", ""))


def judged(status: int, retry_after: str) -> DeliveryResult:
    """Return what an answer is: anything but 2xx is a failure."""
    if 200 <= status < 300:
        return DeliveryResult(status)
    kind = "redirect " if status in (301, 302, 303, 307, 308) else "gone " if status == 410 else ""
    return DeliveryResult(status, f"{kind}{status}", seconds_asked(retry_after))


def seconds_asked(retry_after: str) -> float:
    """Return the seconds that a Retry-After asks for (RFC 9110, 10.2.3), 0 for what says nothing."""
    try:
        return Retry(retry_after_max=LONGEST_ASKED).parse_retry_after(retry_after)
    except (InvalidHeader, ValueError, OverflowError):
        return 0.0


def kind_of(error: Exception) -> str:
    """Return what kind of failure an error is."""
    if isinstance(error, NotAllowed):
        return "address not allowed"
    if isinstance(error, NewConnectionError):  # which is a ConnectTimeoutError, too
        return "connection refused" if isinstance(error.__cause__, ConnectionRefusedError) else "not reachable"
    if isinstance(error, TimeoutError | ConnectTimeoutError):
        return "timeout"
    if isinstance(error, socket.gaierror):
        return "name not resolved"
    return "TLS" if isinstance(error, ssl.SSLError) else "no answer"


def send(url: str, secret: str, event_id: str, body: bytes, *, private: bool) -> DeliveryResult:
    """Post a body to a webhook once, and return what became of it. No proxy is asked, and no redirect followed.

    :param private: whether it may be at any address.
    """
    until = time.monotonic() + ATTEMPT_TIME
    headers = {
        "Content-Type": JSON_TYPE,
        "User-Agent": f"findings-service/{__version__}",
        **signed(secret, event_id, body, int(time.time())),
    }
    try:
        return answer_to(url, allowed_addresses(url, private=private), body, headers, until)
    except (NotAllowed, OSError, HTTPException, HTTPError, ValueError) as error:
        is_over = time.monotonic() >= until
        return DeliveryResult(error="timeout" if is_over else kind_of(error))
