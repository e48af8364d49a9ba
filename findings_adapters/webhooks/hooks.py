"""The hooks of a client: how they are stored, and the operations under `/api/v1/webhooks`."""

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
    """Where events are to go, and which: those of `types` that all of the others leave."""

    url: Annotated[str, Meta(max_length=2048, pattern=HOOK_URL)]
    types: Annotated[list[EventType], Meta(min_length=1, max_length=20)] | None = None
    min_severity: Severity | None = None
    project_type: Name | None = None
    target_url: TargetUrl | None = None
    format: Format | None = None


class WebhookUpdate(RequestModel):
    """How a hook goes on: with the event that was refused (`held`), the one behind it, or with what comes."""

    state: Literal["on"]
    from_: Literal["held", "next", "latest"] | None = msgspec.field(name="from", default=None)


class Webhook(Model):
    """Where events go; `lastError` is the status or the kind of the last failure, null behind a success."""

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
    """A hook that is new, with the secret that its deliveries are signed with. It is shown this once."""

    secret: str | UnsetType = UNSET


class Webhooks(Model):
    """All hooks of a client, oldest first."""

    webhooks: list[Webhook]


class Attempt(Model):
    """What became of one attempt: the status of the answer, null where there was none, and what is wrong with it."""

    delivered: bool
    status: int | None
    error: str | None


HookKey = tuple[str, str]  # a client's id and a hook's


class Hook(Struct, frozen=True):
    """A hook as the API shows it, and what else it takes to deliver to it.

    `history_seq` is the seq of the last history entry that it is done with, `newest` that of the client's last entry.
    """

    key: HookKey
    secret: str
    history_seq: int
    newest: int
    attempts: int
    shown: Webhook

    @classmethod
    def of(cls, row: Sequence[Any]) -> Hook:
        """Return a hook of a row of HOOK_COLUMNS."""
        client_id, secret, history_seq, newest, attempts, hook_id, url, types, severity, *rest = row
        shown = Webhook(hook_id, url, json.loads(types), severity and SEVERITIES[-severity], *rest)
        return cls((client_id, hook_id), secret, history_seq, newest, attempts, shown)

    @property
    def wanted(self) -> list[Condition]:
        """Which events it wants, but for what a run has found."""
        shown = self.shown
        types = [shown.project_type] if shown.project_type else None
        query = EventQuery(type=shown.types, project_type=types, target_url=shown.target_url)
        return wanted_events(query, shown.min_severity)


HOOK_COLUMNS = """client_id, secret, history_seq, (
    SELECT COALESCE(MAX(seq), 0) FROM history WHERE history.client_id = webhooks.client_id),
    attempts, id, url, types, min_severity, project_type, target_url, format, state, last_error, last_delivery_at,
    created_at"""


def select_hooks(connection: Connection, condition: str, *values: str) -> list[Hook]:
    """Return the hooks that are as a condition says, oldest first."""
    statement = f"SELECT {HOOK_COLUMNS} FROM webhooks WHERE {condition} ORDER BY id"
    return list(map(Hook.of, connection.execute(statement, values)))


def select_hook(connection: Connection, client_id: str, hook_id: str) -> Hook:
    """Return a hook. :raises Missing: when the client has no such hook."""
    for hook in select_hooks(connection, "client_id = ? AND id = ?", client_id, hook_id):
        return hook
    raise Missing(f"There is no webhook {truncate(hook_id)!r}.")


def insert_webhook(connection: Connection, request: ApiRequest, body: WebhookDefinition) -> Response:
    """Make a hook, for what comes from now on, and return the answer, which has its secret this once.

    :raises ValidationFailed: when there are as many as there may be.
    """
    client_id, hook_id = request.client_id, new_ids()[0]
    secret = f"{sending.SECRET_PREFIX}{base64.b64encode(secrets.token_bytes(sending.SECRET_BYTES)).decode()}"
    if len(select_hooks(connection, "client_id = ?", client_id)) >= HOOKS_OF_CLIENT:
        detail = f"is one webhook too many: a client may have {HOOKS_OF_CLIENT}; delete one that is not needed"
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
    told = CreatedWebhook(**msgspec.structs.asdict(shown), secret=secret)
    answer = json_response(201, told, f"{request.address}/{hook_id}", [hook_id])
    answer.kept = msgspec.json.encode(shown)
    return answer


def url_problems(body: WebhookDefinition) -> list[Problem]:
    """Tell what is wrong with a URL that its pattern cannot express."""
    try:
        sending.host_of(parts := urlsplit(body.url))
        if parts.port != 0:
            return []
    except ValueError:
        pass
    return [Problem("must have a host name that can be, and a port from 1 to 65535", "/url", value=body.url)]


NOT_PUBLIC = (
    "leads to an address that is not public, as those of this machine and its network are not; who runs the service can"
    " allow them with FINDINGS_WEBHOOK_PRIVATE=1"
)


class OutboundJob(ThreadJob, eq=False, frozen=True):
    """A request to a host that somebody named, and its name's resolution."""

    threads = 2
    patience = 5.0  # others do not wait longer for strangers


@operation("POST", "/api/v1/webhooks", "full", {201: CreatedWebhook}, body=WebhookDefinition)
def post_webhooks(request: ApiRequest) -> ThreadJob:
    """Make a webhook, for what comes from now on. The answer has its secret, this once."""
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
    """Get a webhook."""
    with request.database.reading() as connection:
        return json_response(200, select_hook(connection, request.client_id, webhook_id).shown)


@operation("PATCH", "/api/v1/webhooks/{webhook_id}", "full", {200: Webhook}, body=WebhookUpdate)
def patch_webhook(request: ApiRequest, webhook_id: str) -> PendingWrite:
    """Switch a webhook on, to go on with the event that was held, the next one, or what comes."""
    find = partial(select_hook, client_id=request.client_id, hook_id=webhook_id)
    body: WebhookUpdate = request.checked_body(find)

    def switch(connection: Connection) -> Response:
        hook = find(connection)
        history_seq = hook.history_seq  # right before the event that was refused, where the last attempt failed
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
    """Send a webhook a test, once, and tell what became of that. It moves nothing."""
    with request.database.reading() as connection:
        hook = select_hook(connection, request.client_id, webhook_id)

    def attempt() -> HandlerResult:
        test = messages.test_message(webhook_id, hook.shown.format)
        outcome = sending.send(hook.shown.url, hook.secret, *test, private=request.service.settings.webhook_private)
        answer = json_response(200, Attempt(outcome.error is None, outcome.status, outcome.error))
        return answer if request.request_key is None else PendingWrite(request, lambda _: answer)

    return OutboundJob(attempt)


OPERATIONS = (post_webhooks, get_webhooks, get_webhook, patch_webhook, delete_webhook, post_webhook_test)
