"""Claims, verifications, proposals and comments: how agents that fix findings work beside each other and people.

A claim keeps a task from other agents for some time. A verification is evidence, not a decision. A proposal is a
decision that waits for a person, who accepts it with a `PATCH`, or rejects it with a `DELETE`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import asdict, replace

from findings_service import (
    BY_ID,
    BY_SEQ,
    HEAD_COLUMNS,
    KIB,
    LEVELS,
    LISTED_SEQS,
    NOT_BLANK,
    OF_CLAIMS,
    REGISTRY,
    RULE_MESSAGES,
    RULES,
    UNFINISHED,
    ApiRequest,
    BranchName,
    Connection,
    Decision,
    Evidence,
    Forbidden,
    Link,
    Links,
    Location,
    Missing,
    Model,
    NonEmpty,
    Outcome,
    PendingWrite,
    Problem,
    Reason,
    RequestModel,
    Response,
    Rule,
    Severity,
    Tag,
    TargetUrl,
    Task,
    TaskFilters,
    TaskHead,
    TaskRow,
    ThreadJob,
    ValidationFailed,
    at_most,
    decision_problems,
    duplicate_problems,
    evidence_problems,
    exceeds_bytes,
    in_list_time,
    joined_links,
    json_response,
    move_tasks,
    new_ids,
    open_tasks,
    operation,
    plan_tasks,
    read_task_filter,
    select_task,
    select_task_row,
    select_task_rows,
    state_problems,
    task_head,
    timestamp,
    to_json_text,
    truncate,
)

Explanation = Annotated[str, at_most(4000, pattern=NOT_BLANK)]
Seconds = Annotated[float, Meta(ge=30, le=86_400, multiple_of=1)]
DEFAULT_SECONDS = 1800
MOST_CLAIMED = 50  # tasks of a claim


class ClaimRequest(RequestModel):
    """Which open tasks to claim, and for how long. Without `branch`, those that the main line knows.

    `ids` names tasks, which may be assigned. The default of `limit` is 1, or the number of `ids`.
    """

    project_type: NonEmpty | None = None
    target_url: TargetUrl | None = None
    branch: BranchName | None = None
    severity: Annotated[list[Severity], Meta(min_length=1)] | None = None
    rule: Rule | None = None
    tag: Tag | None = None
    location: Location | None = None
    ids: Annotated[list[NonEmpty], Meta(min_length=1, max_length=MOST_CLAIMED)] | None = None
    limit: Annotated[float, Meta(ge=1, le=MOST_CLAIMED, multiple_of=1)] | None = None
    seconds: Seconds | None = None


class ClaimExtension(RequestModel):
    """The seconds from now until a claim ends."""

    seconds: Seconds | None = None


class Claimed(Model):
    """The tasks that a request claimed. `id` and `until` are null if there was nothing left to claim."""

    id: str | None
    until: str | None
    tasks: list[TaskHead]


class ExtendedClaim(Model):
    """A claim, with the ids of the tasks that it still holds."""

    id: str
    until: str
    tasks: list[str]


class ReleaseQuery(RequestModel):
    """Query parameters of a release: one task of the claim; all of them by default."""

    task: Annotated[NonEmpty, Meta(description="The id of the only task to release; default all.")] | None = None


class CommentRequest(RequestModel):
    """A comment on a task, and links to add to the task's."""

    comment: Explanation
    links: Links | None = None


class VerificationRequest(RequestModel):
    """The outcome of checking a task, with a comment or evidence as proof.

    `criterion` is the description of one of its success criteria; without it, the whole finding was checked. `claim` is
    the id of a claim of one's own. `links` are added to the task's.
    """

    outcome: Outcome
    claim: NonEmpty | None = None
    criterion: NonEmpty | None = None
    comment: Explanation | None = None
    evidence: Annotated[list[Evidence], Meta(max_length=10)] | None = None
    links: Links | None = None
    commit: Annotated[str, at_most(256, min_length=1)] | None = None


class ProposalRequest(RequestModel):
    """A decision for people to accept or reject, with the reason and an explanation."""

    status: Literal["dismissed", "resolved"]
    reason: Reason
    comment: Explanation
    duplicate_of: NonEmpty | None = None
    until: Annotated[str, at_most(64)] | None = None


# Shared by the handlers


def select_heads(connection: Connection, client_id: str, task_ids: Sequence[str]) -> list[TaskHead]:
    """Return tasks as list items, in the order of their ids, all of which must exist."""
    rows = connection.execute(f"SELECT {HEAD_COLUMNS} FROM tasks WHERE {BY_ID}", (client_id, json.dumps(task_ids)))
    heads = {head.id: head for head in map(task_head, rows)}
    return [heads[task_id] for task_id in task_ids]


def names_in(heads: Iterable[TaskHead]) -> list[str]:
    """Return the ids that list items contain: a stored response is dropped when one of them is deleted."""
    return [name for head in heads for name in (head.id, head.run_id, head.last_run_id) if name]


def head_response(connection: Connection, status: int, client_id: str, task_id: str) -> Response:
    """Return a response with a task as list item."""
    (head,) = heads = select_heads(connection, client_id, [task_id])
    return json_response(status, head, names=names_in(heads))


def holder_of(request: ApiRequest) -> dict[str, str | None]:
    """Return the key and the user of a request, as claims, verifications and proposals show them."""
    return {"by": request.principal.name, "user": request.principal.user}


def entry(
    state: TaskRow,
    event: str,
    *,
    to: str | None = None,
    reason: str | None = None,
    comment: str | None = None,
    changed: str | None = None,
    details: str | None = None,
) -> tuple[Any, ...]:
    """Return a history entry of a task, as `insert_history` takes it. :param to: the new status, if it moves."""
    return (state.seq, event, to and state.status, to, reason, None, comment, changed, details)


def linked(state: TaskRow, links: Sequence[Link] | None) -> tuple[TaskRow, list[Any]]:
    """Return a task's state with links added, and the history entry for that, if there is one.

    :raises ValidationFailed: if it would have too many links.
    """
    joined = joined_links(state.links, links or ())
    if joined == state.links:
        return state, []
    if len(json.loads(joined or "[]")) > 20:
        raise ValidationFailed([Problem("would give the task more than 20 links", "/links")])
    return replace(state, links=joined), [entry(state, "linked", changed='["links"]')]


# Claims


SPARE_TASKS = 200  # further tasks that are selected, in case other callers claim the first ones meanwhile


def select_free(connection: Connection, client_id: str, wanted: ClaimRequest, most: int) -> list[int]:
    """Return the seqs of up to `most` tasks that a request may claim, most severe first."""
    filters = TaskFilters(
        status=["open"],
        severity=wanted.severity,
        project_type=[wanted.project_type] if wanted.project_type else None,
        target_url=wanted.target_url,
        main_line=None if wanted.branch or wanted.ids else True,
        branch=(wanted.branch,) if wanted.branch else None,
        rule={wanted.rule} if wanted.rule else None,
        tag={wanted.tag} if wanted.tag else None,
        location=wanted.location,
        assigned=None if wanted.ids else False,
    )
    plan = plan_tasks(connection, client_id, read_task_filter(connection, client_id, filters), "severity")
    if wanted.ids:
        states = select_task_rows(connection, client_id, BY_ID, to_json_text(wanted.ids))
        seqs = to_json_text([state.seq for state in states])
        plan = plan.narrowed(lambda each: each.where(f"{each.seq} {LISTED_SEQS}", seqs))
    with in_list_time(connection):
        return [seq for *_, seq in plan.select_sort_keys(connection, most, 0)]


def still_free(connection: Connection, client_id: str, wanted: ClaimRequest, seqs: Sequence[int]) -> list[TaskRow]:
    """Return the tasks with these seqs, in this order, without those that have been claimed, assigned or decided."""
    states = {state.seq: state for state in select_task_rows(connection, client_id, BY_SEQ, to_json_text(seqs))}
    found = [states[seq] for seq in seqs if seq in states]
    return [state for state in found if state.status == "open" and (wanted.ids or state.assignee is None)]


def end_of(seconds: float | None) -> str:
    """Return when a claim ends that lasts for a number of seconds from now."""
    return timestamp(ago=-(seconds or DEFAULT_SECONDS))


@operation("POST", "/api/v1/tasks/claim", "agent", {200: Claimed}, body=ClaimRequest, keyed=True, unconditional=True)
def post_claim(request: ApiRequest) -> ThreadJob:
    """Claim open tasks, so that no other agent works on them."""
    wanted: ClaimRequest = request.checked_body()
    client_id, who = request.client_id, request.principal
    limit = int(wanted.limit or len(wanted.ids or "1"))

    def select(connection: Connection) -> PendingWrite:
        return PendingWrite(request, partial(claim, select_free(connection, client_id, wanted, limit + SPARE_TASKS)))

    def claim(free: Sequence[int], connection: Connection) -> Response:
        released = request.service.run_due(connection, client_id)
        states = still_free(connection, client_id, wanted, free)[:limit]
        if released or len(states) < min(limit, len(free)):
            states = still_free(connection, client_id, wanted, select_free(connection, client_id, wanted, limit))
        if not states:
            return json_response(200, Claimed(None, None, []))
        (claim_id,), until = new_ids(), end_of(wanted.seconds)
        connection.execute(  # the caller's claims whose tasks are done
            """DELETE FROM claims WHERE client_id = ? AND sender = ? AND NOT EXISTS (
                   SELECT 1 FROM tasks WHERE tasks.client_id = claims.client_id AND tasks.claim_id = claims.id)""",
            (client_id, who.sender),
        )
        connection.execute(
            "INSERT INTO claims (client_id, id, sender, holder, until) VALUES (?, ?, ?, ?, ?)",
            (client_id, claim_id, who.sender, to_json_text(holder_of(request))[1:-1], until),
        )
        changes = [(state, replace(state, status="in_progress", claim_id=claim_id)) for state in states]
        move_tasks(connection, who, changes, [entry(state, "claimed", to="in_progress") for state in states])
        heads = select_heads(connection, client_id, [state.id for state in states])
        return json_response(200, Claimed(claim_id, until, heads), names=names_in(heads))

    return request.read_slowly(select)  # a filter without an index must not delay other writes


def select_claimed(
    connection: Connection, request: ApiRequest, claim_id: str, *, may_be_others: bool = False
) -> list[TaskRow]:
    """Return the tasks of a claim. :raises Missing: if it has ended, or is another's.

    :param may_be_others: whether people may use the claims of others.
    """
    row = connection.execute(
        "SELECT sender FROM claims WHERE client_id = ? AND id = ? AND until > ?",
        (request.client_id, claim_id, timestamp()),
    ).fetchone()
    states = select_task_rows(connection, request.client_id, OF_CLAIMS, to_json_text([claim_id]))
    if row and states and ((may_be_others and may_decide(request)) or row[0] == request.principal.sender):
        return states
    raise Missing(f"This key and user have no active claim {truncate(claim_id)!r}.")


@operation("PUT", "/api/v1/claims/{claim_id}", "agent", {200: ExtendedClaim}, body=ClaimExtension, unconditional=True)
def put_claim(request: ApiRequest, claim_id: str) -> PendingWrite:
    """Extend a claim: it then ends a number of seconds from now."""
    find = partial(select_claimed, request=request, claim_id=claim_id)
    body: ClaimExtension = request.checked_body(find)

    def extend(connection: Connection) -> Response:
        states, until = find(connection), end_of(body.seconds)
        connection.execute(
            "UPDATE claims SET until = ? WHERE client_id = ? AND id = ?", (until, request.client_id, claim_id)
        )
        return json_response(200, ExtendedClaim(claim_id, until, [state.id for state in states]))

    return PendingWrite(request, extend, changes=False)


@operation("DELETE", "/api/v1/claims/{claim_id}", "agent", {204: None}, query=ReleaseQuery)
def delete_claim(request: ApiRequest, claim_id: str) -> PendingWrite:
    """Release the tasks of a claim, or one of them: they are open again."""

    def release(connection: Connection) -> None:
        states = select_claimed(connection, request, claim_id, may_be_others=True)
        if request.query.task is not None:
            states = [state for state in states if state.id == request.query.task]
            if not states:
                raise Missing(f"The claim does not hold a task {truncate(request.query.task)!r}.")
        open_tasks(connection, request.principal, states, "released")

    return PendingWrite(request, release)


# Comments and verifications


@operation(
    "POST",
    "/api/v1/tasks/{task_id}/comments",
    "agent",
    {201: Task},
    body=CommentRequest,
    keyed=True,
    unconditional=True,
)
def post_comment(request: ApiRequest, task_id: str) -> PendingWrite:
    """Comment on a task without a decision, and add links to it."""
    find = partial(select_task_row, client_id=request.client_id, task_id=task_id)
    body: CommentRequest = request.checked_body(find)

    def comment(connection: Connection) -> Response:
        state = find(connection)
        new, entries = linked(state, body.links)
        changes = [(state, new)] if entries else []
        entries.append(entry(state, "comment", comment=body.comment))
        move_tasks(connection, request.principal, changes, entries, timestamp())
        task = select_task(connection, request.client_id, task_id)
        return json_response(201, task, names=names_in([task]))

    return PendingWrite(request, comment)


def verification_problems(body: VerificationRequest) -> list[Problem]:
    """Return the problems of a verification with rules that its model cannot express."""
    items = body.evidence or []
    problems = [
        each.below(f"/evidence/{index}") for index, item in enumerate(items) for each in evidence_problems(item)
    ]
    given = [{name: text for name, text in asdict(item).items() if text is not None} for item in items]
    if exceeds_bytes(to_json_text(given), 64 * KIB):
        problems.append(Problem("must be at most 64 KiB together", "/evidence"))
    if not (items or body.comment):
        problems.append(Problem(MISSING_PROOF, ""))
    return problems


MISSING_PROOF = "must have a comment or evidence"
WITHOUT_PROOF = {"type": "object", "properties": {"comment": {"const": None}, "evidence": {"enum": [None, []]}}}


@operation(
    "POST",
    "/api/v1/tasks/{task_id}/verifications",
    "agent",
    {201: TaskHead},
    body=VerificationRequest,
    keyed=True,
    unconditional=True,
)
def post_verification(request: ApiRequest, task_id: str) -> PendingWrite:
    """Report the outcome of checking a task, with evidence."""
    find = partial(select_task_row, client_id=request.client_id, task_id=task_id)
    body: VerificationRequest = request.checked_body(find, verification_problems)

    def verify(connection: Connection) -> Response:
        state = find(connection)
        if body.claim is not None:
            held = select_claimed(connection, request, body.claim)
            if task_id not in {each.id for each in held}:
                raise Missing(f"The claim does not hold the task {task_id!r}.")
        if body.criterion is not None:
            criteria: Any = select_task(connection, request.client_id, task_id).success_criteria
            if body.criterion not in {each["description"] for each in json.loads(bytes(criteria))}:
                detail = "must be the description of a success criterion of the task"
                raise ValidationFailed([Problem(detail, "/criterion")])
        now = timestamp()
        members = {"criterion": body.criterion, "commit": body.commit}
        shown = {"outcome": body.outcome, "at": now, **holder_of(request), **members}
        added, entries = linked(state, body.links)
        new, to = replace(added, verification=to_json_text(shown)), None
        if body.outcome == "fixed" and body.claim is not None:
            new = replace(new, claim_id=None)
        elif body.outcome == "still_present" and is_fixed_unclaimed(state):
            new, to = new.after(Decision(status="open")), "open"
        details = to_json_text({"outcome": body.outcome, **members, "evidence": body.evidence or []})
        entries.append(entry(state, "verified", to=to, comment=body.comment, details=details))
        move_tasks(connection, request.principal, [(state, new)], entries, now if new.links != state.links else None)
        return head_response(connection, 201, request.client_id, task_id)

    return PendingWrite(request, verify)


def is_fixed_unclaimed(state: TaskRow) -> bool:
    """Return whether a task is in progress without a claim, and its latest verification says that it is fixed."""
    is_fixed = (state.verification or "").startswith('{"outcome":"fixed"')
    return state.status == "in_progress" and state.claim_id is None and is_fixed


# Proposals


def proposal_decision(body: ProposalRequest) -> Decision:
    """Return the decision that a proposal proposes, without its comment."""
    return Decision(status=body.status, reason=body.reason, duplicate_of=body.duplicate_of, until=body.until)


def proposal_problems(body: ProposalRequest) -> list[Problem]:
    """Return the problems of a proposal: those of its decision. Convert `until`."""
    decision = proposal_decision(body)
    problems = decision_problems(decision)
    body.until = decision.until or None
    return problems


@operation(
    "PUT", "/api/v1/tasks/{task_id}/proposal", "agent", {200: TaskHead}, body=ProposalRequest, unconditional=True
)
def put_proposal(request: ApiRequest, task_id: str) -> PendingWrite:
    """Propose a decision about an unfinished task, in place of an earlier proposal."""
    find = partial(select_task_row, client_id=request.client_id, task_id=task_id)
    body: ProposalRequest = request.checked_body(find, proposal_problems)
    decision = proposal_decision(body)

    def propose(connection: Connection) -> Response:
        state = find(connection)
        if state.status not in UNFINISHED:
            raise ValidationFailed([Problem(f"requires an unfinished task, but the task is {state.status}", "/status")])
        duplicate = duplicate_problems(connection, request.client_id, body.duplicate_of, [task_id])
        if problems := [*state_problems(decision, state), *duplicate]:
            raise ValidationFailed(problems)
        made = {**msgspec.to_builtins(body), **holder_of(request)}
        if made != without_time(state.proposal):
            new = replace(state, proposal=to_json_text({**made, "at": timestamp()}))
            proposed = entry(state, "proposed", reason=body.reason, comment=body.comment)
            move_tasks(connection, request.principal, [(state, new)], [proposed])
        return head_response(connection, 200, request.client_id, task_id)

    return PendingWrite(request, propose)


def without_time(proposal: str | None) -> dict[str, Any]:
    """Return the members of a stored proposal except its time; {} if there is none."""
    members: dict[str, Any] = json.loads(proposal or "{}")
    members.pop("at", None)
    return members


@operation("DELETE", "/api/v1/tasks/{task_id}/proposal", "agent", {204: None})
def delete_proposal(request: ApiRequest, task_id: str) -> PendingWrite:
    """Withdraw one's own proposal, or reject another's with a key of level triage."""

    def withdraw(connection: Connection) -> None:
        state = select_task_row(connection, request.client_id, task_id)
        if state.proposal is None:
            raise Missing(f"The task {task_id!r} has no proposal.")
        is_own = holder_of(request).items() <= json.loads(state.proposal).items()
        if not (is_own or may_decide(request)):
            raise Forbidden("Another key made this proposal; rejecting it requires a key of level triage.")
        withdrawn = entry(state, "withdrawn")
        move_tasks(connection, request.principal, [(state, replace(state, proposal=None))], [withdrawn])

    return PendingWrite(request, withdraw)


def may_decide(request: ApiRequest) -> bool:
    """Return whether the key of a request may decide about tasks."""
    return LEVELS.index(request.principal.level) >= LEVELS.index("triage")


def register() -> None:
    """Register the endpoints."""
    RULES["VerificationRequest"] = {"not": WITHOUT_PROOF}
    RULE_MESSAGES.append((WITHOUT_PROOF, MISSING_PROOF, ""))
    REGISTRY.add_operations(
        post_claim, put_claim, delete_claim, post_comment, post_verification, put_proposal, delete_proposal
    )
