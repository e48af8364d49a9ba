"""What a webhook is told: an event after Standard Webhooks, or a text for Slack."""

from __future__ import annotations

import html
from typing import Any

import msgspec
import regex
from msgspec import UNSET, UnsetType

import findings_features.gate as gate
from findings_features.events import Event
from findings_features.gate import GateQuery
from findings_service import (
    RANKS,
    Connection,
    Severity,
    TaskHead,
    new_ids,
    select_run_key,
    timestamp,
)

WORST = 5  # new findings of a run that are told of


class LinkedFinding(TaskHead):
    """A finding, with the link to it on the page where it is known how others reach that."""

    link: str | UnsetType = UNSET


class ToldEvent(Event):
    """An event as it goes to a webhook, with a link to what it is about, and what a finished run means."""

    link: str | UnsetType = UNSET
    gate: gate.Gate | UnsetType = UNSET
    new_findings: list[LinkedFinding] | UnsetType = UNSET


def page_link(base_url: str, view: str, item_id: str) -> str | UnsetType:
    """Return the link to a finding or run on the page, if it is known how others reach that."""
    return f"{base_url}/#/{view}/{item_id}" if base_url else UNSET


def told_event(event: Event, base_url: str) -> ToldEvent:
    """Return an event as it goes out, but for what a finished run means."""
    about: Any = event.run or event.task
    link = page_link(base_url, "runs" if event.run else "findings", about.id)
    return ToldEvent(**msgspec.structs.asdict(event), link=link)


def select_verdict(
    connection: Connection, client_id: str, run_id: str, base_url: str
) -> tuple[gate.Gate, list[LinkedFinding]]:
    """Return the gate of a finished run, and the worst of its new findings.

    :raises Missing: if the run was deleted meanwhile.
    """
    run = select_run_key(connection, client_id, run_id)
    baseline = gate.find_judged_baseline(connection, client_id, run)
    new = gate.select_offenders(connection, client_id, run, baseline.seq if baseline else 0, "info")[:WORST]
    query = GateQuery(baseline=baseline.id if baseline else None)
    return gate.select_gate(connection, client_id, run, query), [
        LinkedFinding(**msgspec.structs.asdict(each), link=page_link(base_url, "findings", each.id)) for each in new
    ]


def reaches(told: ToldEvent, severity: Severity | None) -> bool:
    """Tell whether what is new in a run that has finished is as severe as a hook wants it; other events are."""
    if severity is None or told.new_findings is UNSET:
        return True
    return any(RANKS[each.severity] >= RANKS[severity] for each in told.new_findings)


# Slack


def escaped(text: str | None) -> str:
    """Return a text as Slack shows it, on one line: without a `<` nothing is a mention or a link of the text's own.

    https://docs.slack.dev/messaging/formatting-message-text#escaping
    """
    return html.escape(regex.sub(r"\s+", " ", text or ""), quote=False)


def linked(text: str, link: str | UnsetType) -> str:
    """Return a text with a link under it, where there is one."""
    return f"<{escaped(link).replace('|', '%7C')}|{escaped(text)}>" if link else escaped(text)


def where(of: Any) -> str:
    """Return the type and target of a finding or run, for Slack."""
    target = f" of {of.target_url}" if of.target_url else ""
    return escaped(f"{of.project_type}{target}{f' on {of.branch}' if of.branch else ''}")


HAPPENED = {
    "finding.created": "New",
    "finding.changed": "Changed",
    "finding.reopened": "Reopened",
    "finding.commented": "Comment on",
}


def slack_text(told: ToldEvent) -> str:
    """Return an event in a few lines."""
    if told.task:
        what = HAPPENED.get(told.type)
        if told.type == "finding.status":
            what = f"{told.to}:"
        elif told.type == "finding.assigned":
            what = f"Assigned to {told.assignee or 'nobody'}:"
        finding = f"{told.task.severity} {linked(told.task.title, told.link)} ({where(told.task)})"
        return f"{escaped(what)} {finding}" + (f"\n{escaped(told.comment)}" if told.comment else "")
    run: Any = told.run
    if not told.gate:
        return f"{linked('A run', told.link)} has started: {where(run)}"
    verdict = "passed" if told.gate.pass_ else "failed" if run.status == "failed" else "did not pass"
    lines = [f"{linked(f'A run {verdict}', told.link)}: {where(run)}. {escaped(told.gate.reason)}"]
    lines += [f"• {each.severity} {linked(each.title, each.link)}" for each in told.new_findings or ()]
    return "\n".join(lines)


def body_of(told: ToldEvent, form: str) -> bytes:
    """Return what is posted of an event."""
    if form == "slack":
        return msgspec.json.encode({"text": slack_text(told)})
    return msgspec.json.encode({"type": told.type, "timestamp": told.at, "data": told})


def test_message(hook_id: str, form: str) -> tuple[str, bytes]:
    """Return the id and the body of a test."""
    if form == "slack":
        body: Any = {"text": "The Findings Task Service can post here."}
    else:
        body = {"type": "webhook.test", "timestamp": timestamp(), "data": {"id": hook_id}}
    return new_ids()[0], msgspec.json.encode(body)
