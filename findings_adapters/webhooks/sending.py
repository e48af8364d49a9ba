"""One POST to a webhook: the check of its addresses, its signature, and the evaluation of the response.

A client chooses the URL, but the service may have access to networks that the client does not (SSRF). Therefore every
address of the host name must be public, and the connection goes to the address that was checked.

Functions import urllib3, because its import takes a twentieth of the start of the service.
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
import typing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from http.client import HTTPException
from urllib.parse import SplitResult, quote, urlsplit

from msgspec import Struct

from findings_service import JSON_TYPE, PRINTABLE_IN_URL, __version__

if typing.TYPE_CHECKING:
    import urllib3.connection

ATTEMPT_TIME = 15.0  # seconds for an attempt, from the name lookup to the response's header
LOOKUP_TIME = 5.0  # seconds of `ATTEMPT_TIME` that the name lookup may take
MAX_RETRY_AFTER = 24 * 3600  # seconds; a longer Retry-After is reduced to this
SECRET_PREFIX = "whsec_"  # noqa: S105 - only the prefix of a secret
SECRET_BYTES = 32
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052
ISATAP = (0x00005EFE, 0x02005EFE)  # the third of the address's four 32-bit parts (RFC 5214)
# Networks that some or all Python versions consider global, but are not: IETF protocols, 6to4 relays, documentation
# (https://www.iana.org/assignments/iana-ipv4-special-registry, iana-ipv6-special-registry), and Azure's own service.
SPECIAL = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20", "168.63.129.16/32")))

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class DeliveryResult(Struct, frozen=True):
    """The result of an attempt: the response's status, None without a response, and the kind of failure, else None.

    `retry_after` is the number of seconds from a Retry-After header. No field contains text from the receiver.
    """

    status: int | None = None
    error: str | None = None
    retry_after: float = 0.0


class NotAllowed(Exception):
    """Error for a host name with an address that is not allowed for webhooks."""


# Addresses


def is_public(address: Address) -> bool:
    """Return whether an address is global unicast. An IPv4 address inside an IPv6 address must be global, too.

    Packets may reach it. Mapped, 6to4, NAT64 and ISATAP addresses contain one. Teredo and IPv4-compatible addresses do
    not count as global.
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
    """Return the addresses of a host name. :raises OSError: if it has none. :raises TimeoutError: after `LOOKUP_TIME`.

    `getaddrinfo` has no timeout, so it runs in a thread, which is abandoned if it takes too long.
    """
    found = Future[list[str]]()

    def ask() -> None:
        try:
            found_addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            found.set_result(list(dict.fromkeys(str(address[0]) for *_, address in found_addresses)))
        except OSError as error:
            found.set_exception(error)

    threading.Thread(target=ask, name="findings-lookup", daemon=True).start()
    return found.result(LOOKUP_TIME)


def allowed_addresses(url: str, *, private: bool) -> list[str]:
    """Return the addresses of a URL's host name.

    :param private: whether to allow any address.
    :raises NotAllowed: if an address is not global unicast. :raises OSError: if there is none, or the lookup times out.
    """
    addresses = look_up(host_of(urlsplit(url)))
    if not private and not all(is_public(ipaddress.ip_address(each)) for each in addresses):
        raise NotAllowed
    return addresses


def host_of(parts: SplitResult) -> str:
    """Return the host name of a URL in IDNA encoding. :raises ValueError: if it is not valid."""
    return (parts.hostname or "").encode("idna").decode()


# The request


def signature_headers(secret: str, event_id: str, body: bytes, at: int) -> dict[str, str]:
    """Return the headers of Standard Webhooks for a body: event id, time and signature.

    :param at: the time, in seconds since 1970.
    """
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signature = hmac.digest(key, b".".join((event_id.encode(), str(at).encode(), body)), hashlib.sha256)
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }


@contextmanager
def shut_down_at(connection: urllib3.connection.HTTPConnection, until: float) -> Iterator[None]:
    """Shut a connection down if the block has not ended at `until`, a time of `time.monotonic`.

    A socket's own timeout is not enough, because it starts again with each byte.
    """

    def end() -> None:
        with suppress(OSError, AttributeError):  # the connection is already closed
            connection.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, until - time.monotonic()), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def open_connection(parts: SplitResult, addresses: Sequence[str], until: float) -> urllib3.connection.HTTPConnection:
    """Connect to the first address that accepts a connection; TLS checks the host name of the URL.

    :raises Exception: if no address accepts, the last one's error; any other error, such as one of TLS, at once.
    """
    from urllib3.connection import HTTPConnection, HTTPSConnection, port_by_scheme
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    port, errors = parts.port or port_by_scheme[parts.scheme], list[Exception]()
    for address in addresses:
        half = max(0.01, until - time.monotonic()) / 2  # for the connection, and again for the TLS handshake
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


def post(url: str, addresses: Sequence[str], body: bytes, headers: Mapping[str, str], until: float) -> DeliveryResult:
    """Post a body and return the result. The body of the response is not read."""
    parts = urlsplit(url)
    target = quote(f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}", safe=PRINTABLE_IN_URL)
    host = f"[{parts.hostname}]" if ":" in host_of(parts) else host_of(parts)
    given = host if parts.port is None else f"{host}:{parts.port}"
    with closing(open_connection(parts, addresses, until)) as connection, shut_down_at(connection, until):
        connection.timeout = max(0.01, until - time.monotonic())
        connection.request("POST", target, body, {"Host": given, **headers}, preload_content=False)
        with closing(connection.getresponse()) as response:
            if time.monotonic() >= until:  # a header that was cut off looks like a complete one
                raise TimeoutError
            return result_of(response.status, response.headers.get("Retry-After", ""))


def result_of(status: int, retry_after: str) -> DeliveryResult:
    """Return the result for a response's status; any status other than 2xx is a failure."""
    if 200 <= status < 300:
        return DeliveryResult(status)
    kind = "redirect " if status in (301, 302, 303, 307, 308) else "gone " if status == 410 else ""
    return DeliveryResult(status, f"{kind}{status}", seconds_asked(retry_after))


def seconds_asked(retry_after: str) -> float:
    """Parse a Retry-After header into seconds (RFC 9110, 10.2.3); 0 if it is empty or not valid."""
    from urllib3 import Retry
    from urllib3.exceptions import InvalidHeader

    try:
        return Retry(retry_after_max=MAX_RETRY_AFTER).parse_retry_after(retry_after)
    except (InvalidHeader, ValueError, OverflowError):
        return 0.0


def error_kind(error: Exception) -> str:
    """Return the kind of failure for an error, as `lastError` of the webhook shows it."""
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    if isinstance(error, NotAllowed):
        return "address not allowed"
    if isinstance(error, NewConnectionError):  # before its base class ConnectTimeoutError
        return "connection refused" if isinstance(error.__cause__, ConnectionRefusedError) else "not reachable"
    if isinstance(error, TimeoutError | ConnectTimeoutError):
        return "timeout"
    if isinstance(error, socket.gaierror):
        return "name not resolved"
    return "TLS" if isinstance(error, ssl.SSLError) else "no answer"


def send(url: str, secret: str, event_id: str, body: bytes, *, private: bool) -> DeliveryResult:
    """Post a body to a webhook once and return the result. It uses no proxy and follows no redirect.

    :param private: whether to allow any address.
    """
    from urllib3.exceptions import HTTPError

    until = time.monotonic() + ATTEMPT_TIME
    headers = {
        "Content-Type": JSON_TYPE,
        "User-Agent": f"findings-service/{__version__}",
        **signature_headers(secret, event_id, body, int(time.time())),
    }
    try:
        return post(url, allowed_addresses(url, private=private), body, headers, until)
    except (NotAllowed, OSError, HTTPException, HTTPError, ValueError) as error:
        is_over = time.monotonic() >= until
        return DeliveryResult(error="timeout" if is_over else error_kind(error))
