"""Former external ids of findings. With them, decisions survive renamed files and new identity algorithms."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from findings_service import (
    LISTED_SEQS,
    REGISTRY,
    Connection,
    NewTask,
    StoredFinding,
    SubmissionContext,
    TaskContent,
    select_findings,
    to_json_text,
)

MOST = 5  # former ids that are stored per finding


def find(
    connection: Connection, by: SubmissionContext, reports: Sequence[NewTask], taken: set[str]
) -> dict[str, StoredFinding]:
    """Return the stored findings that reports match by former ids of either, by the reports' unknown external ids.

    :param taken: external ids of this request's reports and of findings matched so far; new matches are added.
    """
    looked_up = {name for report in reports for name in (report.external_id or "", *report.former_ids)}
    kept_rows = connection.execute(
        """SELECT former_ids.external_id, tasks.external_id FROM former_ids
           JOIN tasks ON tasks.client_id = former_ids.client_id AND tasks.seq = former_ids.task_seq
           WHERE former_ids.client_id = ? AND former_ids.project_type = ? AND former_ids.target_url = ?
               AND former_ids.external_id IN (SELECT value FROM json_each(?)) ORDER BY former_ids.seq""",
        (by.who.client_id, *by.run.type_and_target, to_json_text(sorted(looked_up))),
    )
    kept = dict[str, str | None]()
    for name, current in kept_rows:
        kept[name] = current if kept.get(name, current) == current else None  # an id of several findings is ambiguous
    former = {name for report in reports for name in (*report.former_ids, report.old_id, report.former_match) if name}
    if not kept and not former:
        return {}
    findings = select_findings(connection, by, sorted(former.union(filter(None, kept.values()))))
    found: dict[str, StoredFinding] = {}
    for report in reports:
        own = report.external_id or ""
        names = [kept.get(own), *(name for each in report.former_ids for name in (each, kept.get(each)))]
        if old := findings.get(report.old_id):
            title = without_numbers(report.old_title)
            names += [report.old_id] if title in ("", without_numbers(TaskContent(*old.content).title)) else []
        if report.former_match is not None:
            names = [report.former_match]
        for each in (findings[name] for name in names if name in findings):
            if not each.seen_by_run and each.external_id not in taken:
                taken.add(each.external_id)
                found[own] = each
                break
    return found


def without_numbers(text: str) -> str:
    """Return a text with every number replaced by 0."""
    return re.sub("[0-9]+", "0", text)


def keep(connection: Connection, by: SubmissionContext, kept: Mapping[int, Sequence[str]]) -> None:
    """Add former external ids to the stored ones of tasks, and keep the latest `MOST` of each task.

    :param kept: by seq of the task, its present external id followed by the former ids to add.
    """
    of_these = f"FROM former_ids WHERE client_id = ? AND task_seq {LISTED_SEQS}"
    values = (by.who.client_id, to_json_text([*kept]))
    stored = defaultdict[int, list[str]](list)
    for seq, name in connection.execute(f"SELECT task_seq, external_id {of_these} ORDER BY seq", values):
        if name not in kept[seq]:
            stored[seq].append(name)
    connection.execute(f"DELETE {of_these}", values)
    connection.executemany(
        "INSERT INTO former_ids (client_id, project_type, target_url, task_seq, external_id) VALUES (?, ?, ?, ?, ?)",
        [
            (by.who.client_id, *by.run.type_and_target, seq, name)
            for seq, (own, *former) in kept.items()
            for name in [*stored[seq], *(each for each in dict.fromkeys(former) if each != own)][-MOST:]
        ],
    )


def register() -> None:
    """Register the lookup and the storage of former ids."""
    REGISTRY.find_by_former_ids = find
    REGISTRY.keep_former_ids = keep
