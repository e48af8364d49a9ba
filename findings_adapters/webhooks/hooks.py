"""Storage of a client's webhooks, and the operations under `/api/v1/webhooks`."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from findings_adapters.webhooks import messages, sending
from findings_features.events import EventQuery, EventType, select_latest, wanted_events
from findings_service import (
    HTTP_URL,
    RANKS,
    SEVERITIES,
    ApiRequest,
    Condition,
    Connection,
    HandlerResult,
    Missing,
    Model,
    Name,
    PendingWrite,
    Problem,
    RequestModel,
    Response,
    Severity,
    TargetUrl,
    ThreadJob,
    ValidationFailed,
    drop_responses,
    json_response,
    new_ids,
    operation,
    timestamp,
    truncate,
)

HOOKS_OF_CLIENT = 20
HOOK_URL = HTTP_URL.replace(r"([^\x00-\x20\x7f/?#@]*@)?", "")

Format = Literal["json", "slack"]


class WebhookDefinition(RequestModel):
    """Request to create a webhook: its URL, its format, and filters, all of which an event must match.

    Except for `run.started`, which `minSeverity` never filters. Without `types`, only `run.finished` is sent.
    """

    url: Annotated[str, Meta(max_length=2048, pattern=HOOK_URL)]
    types: Annotated[list[EventType], Meta(min_length=1, max_length=20)] | None = None
    min_severity: Severity | None = None
    project_type: Name | None = None
    target_url: TargetUrl | None = None
    format: Format | None = None


class WebhookUpdate(RequestModel):
    """Request to turn a webhook on, from the failed event (`held`, default), the `next` one or new ones (`latest`)."""

    state: Literal["on"]
    from_: Literal["held", "next", "latest"] | None = msgspec.field(name="from", default=None)


class Webhook(Model):
    """A webhook; `lastError` is the status or kind of the last failure, null after a success."""

    id: str
    url: str
    types: list[EventType]
    min_severity: Severity | None
    project_type: str | None
    target_url: str | None
    format: Format
    state: Literal["on", "off"]
    last_error: str | None
    last_delivery_at: str | None
    created_at: str


class CreatedWebhook(Webhook):
    """A new webhook, with the secret that signs its deliveries; no later response has the secret."""

    secret: str | UnsetType = UNSET


class Webhooks(Model):
    """All webhooks of a client, oldest first."""

    webhooks: list[Webhook]


class Attempt(Model):
    """The result of a test message. `status` is null if there was no response, `error` if there was no failure."""

    delivered: bool
    status: int | None
    error: str | None


HookKey = tuple[str, str]  # client id and hook id


class Hook(Struct, frozen=True):
    """A webhook as stored: the API's view of it (`shown`), and the fields for delivery.

    `history_seq` is its position, the seq of the last processed history entry; `newest` is the client's newest seq.
    """

    key: HookKey
    secret: str
    history_seq: int
    newest: int
    attempts: int
    shown: Webhook

    @classmethod
    def of(cls, row: Sequence[Any]) -> Hook:
        """Return a hook from a row of `HOOK_COLUMNS`."""
        client_id, secret, history_seq, newest, attempts, hook_id, url, types, severity, *rest = row
        shown = Webhook(hook_id, url, json.loads(types), severity and SEVERITIES[-severity], *rest)
        return cls((client_id, hook_id), secret, history_seq, newest, attempts, shown)

    @property
    def wanted(self) -> list[Condition]:
        """The conditions that select its events. For finished runs, `min_severity` is checked only at delivery."""
        shown = self.shown
        types = [shown.project_type] if shown.project_type else None
        query = EventQuery(type=shown.types, project_type=types, target_url=shown.target_url)
        return wanted_events(query, shown.min_severity)


HOOK_COLUMNS = """client_id, secret, history_seq, (
    SELECT COALESCE(MAX(seq), 0) FROM history WHERE history.client_id = webhooks.client_id),
    attempts, id, url, types, min_severity, project_type, target_url, format, state, last_error, last_delivery_at,
    created_at"""


def select_hooks(connection: Connection, condition: str, *values: str) -> list[Hook]:
    """Select the hooks that match an SQL condition, oldest first."""
    statement = f"SELECT {HOOK_COLUMNS} FROM webhooks WHERE {condition} ORDER BY id"
    return list(map(Hook.of, connection.execute(statement, values)))


def select_hook(connection: Connection, client_id: str, hook_id: str) -> Hook:
    """Select a hook of a client. :raises Missing: if the client does not have it."""
    for hook in select_hooks(connection, "client_id = ? AND id = ?", client_id, hook_id):
        return hook
    raise Missing(f"There is no webhook {truncate(hook_id)!r}.")


def insert_webhook(connection: Connection, request: ApiRequest, body: WebhookDefinition) -> Response:
    """Insert a hook that starts after the newest event. Return the response, the only one that has the secret.

    :raises ValidationFailed: if the client already has `HOOKS_OF_CLIENT` hooks.
    """
    client_id, hook_id = request.client_id, new_ids()[0]
    secret = f"{sending.SECRET_PREFIX}{base64.b64encode(secrets.token_bytes(sending.SECRET_BYTES)).decode()}"
    if len(select_hooks(connection, "client_id = ?", client_id)) >= HOOKS_OF_CLIENT:
        detail = f"exceeds the limit of {HOOKS_OF_CLIENT} webhooks per client; delete one that is not needed"
        raise ValidationFailed([Problem(detail, "/url")])
    connection.execute(
        """INSERT INTO webhooks (client_id, id, url, types, min_severity, project_type, target_url, format, secret,
               state, created_at, history_seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'on', ?, ?)""",
        (
            client_id,
            hook_id,
            body.url,
            json.dumps(list(dict.fromkeys(body.types or ["run.finished"]))),
            RANKS[body.min_severity] if body.min_severity else None,
            body.project_type,
            body.target_url,
            body.format or "json",
            secret,
            timestamp(),
            select_latest(connection, client_id),
        ),
    )
    shown = select_hook(connection, client_id, hook_id).shown
    created = CreatedWebhook(**msgspec.structs.asdict(shown), secret=secret)
    response = json_response(201, created, f"{request.address}/{hook_id}", [hook_id])
    response.kept = msgspec.json.encode(shown)
    return response


def url_problems(body: WebhookDefinition) -> list[Problem]:
    """Return the problems of a webhook's URL that its pattern cannot detect."""
    try:
        sending.host_of(parts := urlsplit(body.url))
        if parts.port != 0:
            return []
    except ValueError:
        pass
    return [Problem("must have a valid host name; a port must be from 1 to 65535", "/url", value=body.url)]


NOT_PUBLIC = (
    "must not resolve to a private address, such as one of this machine or its network; the operator of the service can"
    " allow these with FINDINGS_WEBHOOK_PRIVATE=1"
)


class OutboundJob(ThreadJob, eq=False, frozen=True):
    """A job that resolves the host name of a client's URL, or sends a request to it."""

    threads = 2
    patience = 5.0  # seconds that a job waits while others wait for hosts that do not respond


@operation("POST", "/api/v1/webhooks", "full", {201: CreatedWebhook}, body=WebhookDefinition)
def post_webhooks(request: ApiRequest) -> ThreadJob:
    """Create a webhook for events from now on. Only this response has the webhook's secret."""
    body: WebhookDefinition = request.checked_body(rules=url_problems)

    def check() -> PendingWrite:
        try:
            with suppress(OSError):  # a name that has no address now may get one
                sending.allowed_addresses(body.url, private=request.service.settings.webhook_private)
        except sending.NotAllowed:
            raise ValidationFailed([Problem(NOT_PUBLIC, "/url", value=truncate(body.url))]) from None
        return PendingWrite(request, partial(insert_webhook, request=request, body=body))

    return OutboundJob(check)


@operation("GET", "/api/v1/webhooks", "full", {200: Webhooks})
def get_webhooks(request: ApiRequest) -> Response:
    """List all webhooks, oldest first."""
    with request.database.reading() as connection:
        hooks = select_hooks(connection, "client_id = ?", request.client_id)
    return json_response(200, Webhooks([each.shown for each in hooks]))


@operation("GET", "/api/v1/webhooks/{webhook_id}", "full", {200: Webhook})
def get_webhook(request: ApiRequest, webhook_id: str) -> Response:
    """Get a webhook, without its secret."""
    with request.database.reading() as connection:
        return json_response(200, select_hook(connection, request.client_id, webhook_id).shown)


@operation("PATCH", "/api/v1/webhooks/{webhook_id}", "full", {200: Webhook}, body=WebhookUpdate)
def patch_webhook(request: ApiRequest, webhook_id: str) -> PendingWrite:
    """Turn a webhook on. Deliveries go on with the event that failed, the one after it, or only new events."""
    find = partial(select_hook, client_id=request.client_id, hook_id=webhook_id)
    body: WebhookUpdate = request.checked_body(find)

    def switch(connection: Connection) -> Response:
        hook = find(connection)
        history_seq = hook.history_seq  # just before the failed event, if the last attempt failed
        if body.from_ == "latest":
            history_seq = hook.newest
        elif body.from_ == "next" and hook.attempts:
            history_seq += 1
        connection.execute(
            """UPDATE webhooks SET state = 'on', history_seq = ?, attempts = 0, next_attempt_at = NULL,
                   last_error = NULL WHERE client_id = ? AND id = ?""",
            (history_seq, *hook.key),
        )
        return json_response(200, find(connection).shown)

    return PendingWrite(request, switch)


@operation("DELETE", "/api/v1/webhooks/{webhook_id}", "full", {204: None})
def delete_webhook(request: ApiRequest, webhook_id: str) -> PendingWrite:
    """Delete a webhook."""

    def remove(connection: Connection) -> None:
        hook = select_hook(connection, request.client_id, webhook_id)
        connection.execute("DELETE FROM webhooks WHERE client_id = ? AND id = ?", hook.key)
        connection.transaction.erases = True
        drop_responses(connection, request.client_id, webhook_id)  # a URL may be a secret

    return PendingWrite(request, remove)


@operation("POST", "/api/v1/webhooks/{webhook_id}/test", "full", {200: Attempt})
def post_webhook_test(request: ApiRequest, webhook_id: str) -> ThreadJob:
    """Send a test message to a webhook once and return the result. The webhook's position does not change."""
    with request.database.reading() as connection:
        hook = select_hook(connection, request.client_id, webhook_id)

    def attempt() -> HandlerResult:
        test = messages.test_message(webhook_id, hook.shown.format)
        result = sending.send(hook.shown.url, hook.secret, *test, private=request.service.settings.webhook_private)
        response = json_response(200, Attempt(result.error is None, result.status, result.error))
        return response if request.request_key is None else PendingWrite(request, lambda _: response)

    return OutboundJob(attempt)


OPERATIONS = (post_webhooks, get_webhooks, get_webhook, patch_webhook, delete_webhook, post_webhook_test)
