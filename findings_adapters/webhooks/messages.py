"""Bodies of webhook deliveries: an event in the format of Standard Webhooks, or a text for Slack."""

from __future__ import annotations

import html
from typing import Any

import msgspec
import regex
from msgspec import UNSET, UnsetType

import findings_features.gate as gate
from findings_features.events import Event
from findings_features.gate import GateQuery
from findings_service import RANKS, Connection, Severity, TaskHead, new_ids, select_run_key, timestamp

WORST = 5  # maximum number of new findings in the event of a finished run


class LinkedFinding(TaskHead):
    """A finding, with a link to it on the web page if FINDINGS_BASE_URL is set."""

    link: str | UnsetType = UNSET


class WebhookEvent(Event):
    """An event for a webhook, with a link to its task or run; for a finished run, with gate and worst new findings."""

    link: str | UnsetType = UNSET
    gate: gate.Gate | UnsetType = UNSET
    new_findings: list[LinkedFinding] | UnsetType = UNSET


def page_link(base_url: str, view: str, item_id: str) -> str | UnsetType:
    """Return the link to a finding or run on the web page, or UNSET without a base URL."""
    return f"{base_url}/#/{view}/{item_id}" if base_url else UNSET


def webhook_event(event: Event, base_url: str) -> WebhookEvent:
    """Convert an event and add its link. The gate and new findings of a finished run are not added."""
    about: Any = event.run or event.task
    link = page_link(base_url, "runs" if event.run else "findings", about.id)
    return WebhookEvent(**msgspec.structs.asdict(event), link=link)


def select_verdict(
    connection: Connection, client_id: str, run_id: str, base_url: str
) -> tuple[gate.Gate, list[LinkedFinding]]:
    """Select the gate's verdict on a finished run, and its most severe new findings, at most `WORST`.

    :raises Missing: if the run was deleted meanwhile.
    """
    run = select_run_key(connection, client_id, run_id)
    baseline = gate.find_judged_baseline(connection, client_id, run)
    new = gate.select_offenders(connection, client_id, run, baseline.seq if baseline else 0, "info")[:WORST]
    query = GateQuery(baseline=baseline.id if baseline else None)
    return gate.select_gate(connection, client_id, run, query), [
        LinkedFinding(**msgspec.structs.asdict(each), link=page_link(base_url, "findings", each.id)) for each in new
    ]


def reaches(event: WebhookEvent, severity: Severity | None) -> bool:
    """Return whether a finished run has a new finding of at least `severity`; true for other events, or for None."""
    if severity is None or event.new_findings is UNSET:
        return True
    return any(RANKS[each.severity] >= RANKS[severity] for each in event.new_findings)


# Slack


def escaped(text: str | None) -> str:
    """Return a text escaped for Slack, on one line, so that it cannot contain a mention or a link.

    https://docs.slack.dev/messaging/formatting-message-text#escaping
    """
    return html.escape(regex.sub(r"\s+", " ", text or ""), quote=False)


def linked(text: str, link: str | UnsetType) -> str:
    """Return a text, escaped for Slack, as a link to `link` if there is one."""
    return f"<{escaped(link).replace('|', '%7C')}|{escaped(text)}>" if link else escaped(text)


def where(of: Any) -> str:
    """Return the project type, target and branch of a finding or run, for Slack."""
    target = f" of {of.target_url}" if of.target_url else ""
    return escaped(f"{of.project_type}{target}{f' on {of.branch}' if of.branch else ''}")


HAPPENED = {
    "finding.created": "New",
    "finding.changed": "Changed",
    "finding.reopened": "Reopened",
    "finding.commented": "Comment on",
}


def slack_text(event: WebhookEvent) -> str:
    """Return an event as a short text for Slack."""
    if event.task:
        label = HAPPENED.get(event.type, f"{event.type.partition('.')[2].capitalize()}:")
        if event.type == "finding.status":
            label = f"{event.to}:"
        elif event.type == "finding.assigned":
            label = f"Assigned to {event.assignee or 'nobody'}:"
        finding = f"{event.task.severity} {linked(event.task.title, event.link)} ({where(event.task)})"
        return f"{escaped(label)} {finding}" + (f"\n{escaped(event.comment)}" if event.comment else "")
    run: Any = event.run
    if not event.gate:
        return f"{linked('A run', event.link)} has started: {where(run)}"
    verdict = "passed" if event.gate.pass_ else "failed" if run.status == "failed" else "did not pass"
    lines = [f"{linked(f'A run {verdict}', event.link)}: {where(run)}. {escaped(event.gate.reason)}"]
    lines += [f"• {each.severity} {linked(each.title, each.link)}" for each in event.new_findings or ()]
    return "\n".join(lines)


def body_of(event: WebhookEvent, form: str) -> bytes:
    """Encode the body of a delivery in the hook's format."""
    if form == "slack":
        return msgspec.json.encode({"text": slack_text(event)})
    return msgspec.json.encode({"type": event.type, "timestamp": event.at, "data": event})


def test_message(hook_id: str, form: str) -> tuple[str, bytes]:
    """Return the id and the body of a test message."""
    if form == "slack":
        body: Any = {"text": "The Findings Task Service can post here."}
    else:
        body = {"type": "webhook.test", "timestamp": timestamp(), "data": {"id": hook_id}}
    return new_ids()[0], msgspec.json.encode(body)
