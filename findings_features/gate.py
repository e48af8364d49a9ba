"""Gate: `GET /api/v1/runs/{run_id}/gate` judges a run by its new and severe findings.

A run is compared with a baseline: the last completed run of the main line before it, unless the request names another.
The endpoint stores nothing; the core stores the verdict that it gets from `make_verdict` when a run is completed.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Literal

import msgspec
from msgspec.structs import asdict

from findings_service import (
    HEAD_COLUMNS,
    LISTED,
    RANKS,
    REGISTRY,
    REPORTED_TASKS,
    UNCHECKED,
    UNFINISHED,
    ApiRequest,
    BaselineRun,
    Connection,
    FailOn,
    GateOptions,
    InvalidParameter,
    JudgedFindings,
    LowestSeverity,
    Missing,
    Model,
    Problem,
    RequestModel,
    Response,
    RunKey,
    TaskHead,
    ThreadJob,
    ValidationFailed,
    Verdict,
    json_response,
    operation,
    select_run_key,
    select_used_run,
    task_head,
    to_json_text,
)


class GateQuery(RequestModel):
    """Query parameters of the gate: lowest severity that fails a run, which tasks are judged, and baseline."""

    fail_on: LowestSeverity = "high"
    only: JudgedFindings = "new"
    baseline: BaselineRun | None = None


class Ignored(Model):
    """Numbers of reported tasks that do not fail the run. Each is counted in the first field that applies."""

    dismissed: int = 0
    resolved: int = 0
    below_bar: int = 0
    known: int = 0


class Gate(Model):
    """The gate's verdict on a run. `offenders` are the worst tasks that fail it, most severe first.

    `missing` counts unfinished findings with an `externalId` that the baseline reported and this run did not.
    """

    pass_: bool = msgspec.field(name="pass")
    reason: str
    run_id: str
    baseline: str | None
    fail_on: FailOn
    only: Literal["new", "all"]
    reported: int
    offenders_total: int
    offenders: list[TaskHead]
    ignored: Ignored
    missing: int


BASELINES = 20  # latest runs among which to look for one that is not partial


def find_latest_on_main_line(connection: Connection, client_id: str, run: RunKey) -> RunKey | None:
    """Return the latest completed main-line run before a run, of its type and target; None if there is none.

    A partial run is returned only if the latest `BASELINES` of these runs are all partial.
    """
    before = """project_type = ? AND target_url = ? AND status = 'completed' AND branch = '' AND seq < ?
        ORDER BY seq DESC LIMIT ?"""
    find = partial(RunKey.find, connection, client_id, before, *run.type_and_target, run.seq)
    latest = find(1)
    if latest and latest[0].is_partial:
        latest = find(BASELINES)
    return min(latest, key=lambda each: each.is_partial, default=None)


def find_judged_baseline(connection: Connection, client_id: str, run: RunKey) -> RunKey | None:
    """Return the baseline that a run's stored verdict names. If there is none or it is deleted, return the default."""
    (verdict,) = connection.execute(
        "SELECT verdict FROM runs WHERE client_id = ? AND seq = ?", (client_id, run.seq)
    ).fetchone()
    named = json.loads(verdict)["baseline"] if verdict else None
    for baseline in RunKey.find(connection, client_id, "id = ?", named):
        return baseline
    return find_latest_on_main_line(connection, client_id, run)


UNFIT = "must be another completed run of the same project type and target"


def select_baseline(connection: Connection, client_id: str, run: RunKey, named: str | None) -> RunKey | None:
    """Return a run's baseline: the run with the id `named`; if that is None, the default one, or None if there is none.

    :raises Missing: if the client has no run with the id `named`. :raises InvalidParameter: if that does not qualify.
    """
    if named is None:
        return find_latest_on_main_line(connection, client_id, run)
    baseline = select_run_key(connection, client_id, named)
    if baseline.seq == run.seq or baseline.type_and_target != run.type_and_target or baseline.status != "completed":
        raise InvalidParameter("baseline", UNFIT)
    return baseline


ALSO_REPORTED = """EXISTS (SELECT 1 FROM sightings AS others WHERE others.client_id = ?
    AND others.run_seq = ? AND others.task_seq = sightings.task_seq)"""
KNOWN = f"({ALSO_REPORTED} AND COALESCE(tasks.rule, '') <> '{UNCHECKED}')"


Counted = list[tuple[str, int, bool, int]]  # status, severity rank, whether the baseline knows them, count


def count_compared(connection: Connection, client_id: str, run: RunKey, baseline_seq: int) -> Counted:
    """Count the tasks of a run by status, severity and whether the baseline knows them (`not-checked`: never)."""
    return connection.execute(
        f"""SELECT tasks.status, tasks.severity, {KNOWN} AS known, COUNT(*) FROM {REPORTED_TASKS}
            WHERE sightings.client_id = ? AND sightings.run_seq = ? GROUP BY 1, 2, 3""",
        (client_id, baseline_seq, client_id, run.seq),
    ).fetchall()


def count_missing(connection: Connection, client_id: str, run: RunKey, baseline: RunKey) -> int:
    """Count the unfinished findings with an external id that only the baseline reported."""
    (missing,) = connection.execute(
        f"""SELECT COUNT(*) FROM {REPORTED_TASKS} WHERE sightings.client_id = ? AND sightings.run_seq = ?
            AND tasks.status IN ('open', 'in_progress') AND tasks.external_id IS NOT NULL AND NOT {ALSO_REPORTED}""",
        (client_id, baseline.seq, client_id, run.seq),
    ).fetchone()
    return int(missing)


def blocking_statuses(branch: str | None) -> frozenset[str]:
    """Return the statuses of tasks that can fail a run of a branch, or of the main line.

    A branch may bring back a finding that the main line has resolved, but it cannot reopen it.
    """
    return frozenset((*UNFINISHED, "resolved") if branch else UNFINISHED)


def sort_out(run: RunKey, counted: Counted, query: GateQuery) -> tuple[int, Ignored]:
    """Return the number of tasks that fail a run, and the numbers of the other tasks by reason."""
    offenders, ignored = 0, Ignored()
    for status, rank, known, n in counted:
        if status == "dismissed":
            ignored.dismissed += n
        elif status not in blocking_statuses(run.branch):
            ignored.resolved += n
        elif query.fail_on == "none" or rank < RANKS[query.fail_on]:
            ignored.below_bar += n
        elif known and query.only == "new":
            ignored.known += n
        else:
            offenders += n
    return offenders, ignored


OFFENDERS_LISTED = 50


def select_offenders(
    connection: Connection, client_id: str, run: RunKey, baseline_seq: int, fail_on: str
) -> list[TaskHead]:
    """Return the worst tasks that fail a run, at most `OFFENDERS_LISTED`, except those that the baseline reported."""
    rows = connection.execute(
        f"""SELECT {HEAD_COLUMNS} FROM {REPORTED_TASKS}
            WHERE sightings.client_id = ? AND sightings.run_seq = ?
            AND tasks.status {LISTED} AND tasks.severity >= ? AND NOT {KNOWN}
            ORDER BY tasks.severity DESC, tasks.seq DESC LIMIT ?""",
        (
            client_id,
            run.seq,
            to_json_text([*blocking_statuses(run.branch)]),
            RANKS[fail_on],
            client_id,
            baseline_seq,
            OFFENDERS_LISTED,
        ),
    )
    return list(map(task_head, rows))


def gate_reason(run: RunKey, baseline: RunKey | None, query: GateQuery, offenders: int) -> str:
    """Return a sentence for people that says why a run passes or fails."""
    if run.status != "completed":
        return f"The run is {run.status}, and only a completed run passes."
    new = "new " if query.only == "new" else ""
    no_baseline = "; all are new, because there is no baseline: the first completed run of the main line becomes it"
    all_new = no_baseline if new and baseline is None else ""
    if query.fail_on == "none":
        return f"No finding fails a run with failOn=none{all_new}."
    found = f"{offenders:,} {new}findings" if offenders > 1 else f"{'1' if offenders else 'No'} {new}finding"
    higher = "" if query.fail_on == "critical" else " or higher"
    return f"{found} of severity {query.fail_on}{higher}{all_new}."


def select_gate(connection: Connection, client_id: str, run: RunKey, query: GateQuery) -> Gate:
    """Return the gate's verdict on a run.

    :raises Missing: if the query's baseline does not exist. :raises InvalidParameter: if it does not qualify.
    """
    baseline = select_baseline(connection, client_id, run, query.baseline)
    compared = baseline.seq if baseline and query.only == "new" else 0  # 0 is the seq of no run
    counted = count_compared(connection, client_id, run, compared)
    offenders, ignored = sort_out(run, counted, query)
    return Gate(
        pass_=run.status == "completed" and not offenders,
        reason=gate_reason(run, baseline, query, offenders),
        run_id=run.id,
        baseline=baseline.id if baseline else None,
        fail_on=query.fail_on,
        only=query.only,
        reported=sum(n for *_, n in counted),
        offenders_total=offenders,
        offenders=select_offenders(connection, client_id, run, compared, query.fail_on) if offenders else [],
        ignored=ignored,
        missing=count_missing(connection, client_id, run, baseline) if baseline else 0,
    )


def make_verdict(connection: Connection, client_id: str, run: RunKey, options: GateOptions | None) -> Verdict:
    """Return the verdict on a run at its completion. :raises ValidationFailed: if its baseline is unfit."""
    given = asdict(options) if options else {}
    query = GateQuery(**{name: value for name, value in given.items() if value is not None})
    try:
        baseline = select_baseline(connection, client_id, run, query.baseline)
    except (Missing, InvalidParameter):
        raise ValidationFailed([Problem(UNFIT, "/gate/baseline")]) from None
    counted = count_compared(connection, client_id, run, baseline.seq if baseline else 0)
    new = sum(n for status, _, known, n in counted if not known and status != "dismissed")
    offenders, _ = sort_out(run, counted, query)
    return Verdict(not offenders, query.fail_on, query.only, baseline.id if baseline else None, new, offenders)


@operation("GET", "/api/v1/runs/{run_id}/gate", "read", {200: Gate}, query=GateQuery)
def get_run_gate(request: ApiRequest, run_id: str) -> ThreadJob:
    """Get the gate's verdict on a run: whether its new and severe findings fail it."""

    def judge(connection: Connection) -> Response:
        run = select_used_run(request, connection, run_id)
        return json_response(200, select_gate(connection, request.client_id, run, request.query))

    return request.read_slowly(judge)


def register() -> None:
    """Register the endpoint, and the functions that find default baselines and make verdicts at completion."""
    REGISTRY.add_operations(get_run_gate)
    REGISTRY.baseline = find_latest_on_main_line
    REGISTRY.judge = make_verdict
