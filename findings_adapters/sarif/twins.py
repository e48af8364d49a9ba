"""Twins: results that differ only by place, such as a line of code that occurs three times.

Their external ids are the same hash with different numbers. Each report gets the number of the nearest stored twin, so
that a decision stays with its line when a twin is added, removed or listed in another order.
"""

from __future__ import annotations

import itertools
import json
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

import findings_features.former_ids as former_ids
from findings_service import Connection, NewTask, SubmissionContext

Place = tuple[str, int]  # path, line
NUMBERED = re.compile("[0-9a-f]{40}-[0-9]+")  # the external id of a twin
LOCATION = re.compile(r"(?s)(.*?)(?::([0-9]{1,9}))?")
ELSEWHERE = 1_000_000  # distance in lines between two files
MOST_CELLS = 200_000  # limit of the table of distances (0.1 s); above it, each place gets the nearest free one


def nearest(few: Sequence[Place], many: Sequence[Place]) -> list[int]:
    """Return an index in `many` for each of `few`, in increasing order, with the least sum of distances in lines.

    Both must be sorted, and `many` must be at least as long. Above `MOST_CELLS`, each place gets the nearest free one.
    """
    spare = len(many) - len(few)
    if len(few) * (spare + 1) > MOST_CELLS:
        return nearest_each(few, many)
    # Dynamic programming: best[k] is the least sum so far if k of `many` are skipped. steps[n][k] is how many of them
    # are skipped before place n; they are used to trace the matches backwards.
    best, steps = [0] * (spare + 1), list[list[int]]()
    for number, place in enumerate(few):
        reached, came = list[int](), list[int]()
        least, at = best[0], 0
        for skipped in range(spare + 1):
            if best[skipped] < least:
                least, at = best[skipped], skipped
            reached.append(least + distance(place, many[number + skipped]))
            came.append(at)
        best = reached
        steps.append(came)
    skipped = min(range(spare + 1), key=best.__getitem__)
    chosen = list[int]()
    for number in reversed(range(len(few))):
        chosen.append(number + skipped)
        skipped = steps[number][skipped]
    return chosen[::-1]


def nearest_each(few: Sequence[Place], many: Sequence[Place]) -> list[int]:
    """Return an index in `many` for each of `few`: in order, each gets the nearest place that is free."""
    chosen, start = list[int](), 0
    for number, place in enumerate(few):
        last = len(many) - len(few) + number  # leaves one for each of the others
        at = bisect_left(many, place, start, last)
        if at > start and distance(place, many[at - 1]) <= distance(place, many[at]):
            at -= 1
        chosen.append(at)
        start = at + 1
    return chosen


def distance(one: Place, other: Place) -> int:
    """Return the distance between two places in lines; different files add `ELSEWHERE`."""
    return abs(one[1] - other[1]) + (ELSEWHERE if one[0] != other[0] else 0)


def matched(places: Sequence[Place], stored: Sequence[Place]) -> dict[int, int]:
    """Match sorted places one to one to sorted stored ones; return the index in `stored` by the place's index."""
    if len(places) > len(stored):
        return {place: twin for twin, place in matched(stored, places).items()}
    return dict(enumerate(nearest(places, stored)))


class Twin(Struct):
    """A stored finding that differs from others only in its location; `is_reported` is true if the run reported it.

    `branch` is the finding's: "" for the main line, the name of the run's own branch, or None for any other branch.
    """

    external_id: str
    title: str
    place: Place
    is_reported: bool
    branch: str | None
    last_run_id: str


Stored = defaultdict[str, list[Twin]]
Spot = tuple[str, int, int]  # path, line, column
Group = dict[Spot, list[NewTask]]  # reports of one identity, by place
Claim = tuple[Spot, str]  # place and identity of a report
OWN, NUMBER_OF, KEPT = "tasks.external_id", "tasks.twin_of", "former_ids.external_id"


def add_twins(
    connection: Connection, by: SubmissionContext, stored: Stored, identities: Iterable[str], column: str
) -> None:
    """Select the twins that have one of `identities` in a column, and add them to `stored`."""
    if not (wanted := sorted(identities)):
        return
    tables = "tasks"
    if column == KEPT:
        tables += " JOIN former_ids ON former_ids.client_id = tasks.client_id AND former_ids.task_seq = tasks.seq"
    rows = connection.execute(
        f"""SELECT {column}, tasks.external_id, tasks.title, COALESCE(tasks.location, ''),
                CASE WHEN tasks.branch IN ('', ?) THEN tasks.branch END, tasks.last_run_id, (
                SELECT sightings.run_seq FROM sightings WHERE sightings.client_id = tasks.client_id
                AND sightings.run_seq = ? AND sightings.task_seq = tasks.seq) IS NOT NULL
            FROM {tables} WHERE tasks.client_id = ? AND tasks.project_type = ? AND tasks.target_url = ?
                AND {column} IN (SELECT value FROM json_each(?))""",
        (by.run.branch, by.run.seq, by.who.client_id, *by.run.type_and_target, json.dumps(wanted)),
    )
    for identity, external_id, title, location, branch, last_run_id, is_reported in rows:
        path, line = LOCATION.fullmatch(location).groups()  # type: ignore[union-attr]
        base = identity[:40] if NUMBERED.fullmatch(identity) else identity
        place = path, int(line or 0)
        stored[base].append(Twin(external_id, title, place, bool(is_reported), branch, last_run_id))


def numbering(reports: Sequence[NewTask]) -> Callable[[Connection, SubmissionContext, Any], None]:
    """Return a function that sets the external ids of reports in the submission's transaction.

    The function can run again after a rollback, because it starts from the identities.
    """
    former = {report.identity: report.former_ids for report in reports if report.identity}
    return lambda connection, by, _: number_reports(connection, by, reports, former)


def number_reports(
    connection: Connection, by: SubmissionContext, reports: Iterable[NewTask], former: Mapping[str, Sequence[str]]
) -> None:
    """Set the external ids of reports by identity and place; reports at one place are one finding.

    :param former: the former external ids of each identity.
    """
    groups, names = defaultdict[str, Group](lambda: defaultdict(list)), dict[str, set[str]]()
    for report in reports:
        if report.identity:
            report.external_id, report.twin_of, report.former_match = report.identity, None, None
            groups[report.identity][report.place].append(report)
            names[report.identity] = {report.identity, *former[report.identity], report.old_id} - {""}
        elif NUMBERED.fullmatch(report.external_id or ""):
            report.twin_of = (report.external_id or "").partition("-")[0]
    claimed = Counter(itertools.chain.from_iterable(names.values()))
    stored, kept = Stored(list), Stored(list)

    def with_twins() -> list[str]:
        return [
            each
            for each in groups
            if len(groups[each]) > 1 or any(claimed[name] > 1 or stored.get(name) for name in names[each])
        ]

    add_twins(connection, by, stored, claimed, NUMBER_OF)
    # The first twin's id has no number, so `twin_of` does not find it. It is also selected if an earlier request of
    # this run may have reported it: this request may add its second twin.
    selected = groups if by.run.reported else with_twins()
    add_twins(connection, by, stored, {*selected}.union(*(names[each] for each in with_twins())), OWN)
    identities = with_twins()
    ids = itertools.chain.from_iterable(names[each] for each in identities)
    numbered = (f"{each}-{n}" for each in identities for n in range(2, len(groups[each]) + len(stored[each]) + 1))
    add_twins(connection, by, kept, {*ids, *numbered}, KEPT)
    for same in itertools.chain.from_iterable(group.values() for group in groups.values()):
        if any(report.status is None for report in same):  # one of them is not suppressed
            for report in same:
                report.status = None
    own = dict[Claim, str]()
    for identity in identities:
        own |= nearest_twins([(spot, identity) for spot in groups[identity]], stored[identity])
    earlier = earlier_ids({each: groups[each] for each in identities}, former, own, stored, kept)
    for identity in identities:
        number_group(identity, groups[identity], {each.external_id for each in stored[identity]}, own, earlier)


def earlier_ids(
    groups: Mapping[str, Group],
    former: Mapping[str, Sequence[str]],
    own: Mapping[Claim, str],
    stored: Stored,
    kept: Stored,
) -> dict[Claim, str]:
    """Return, for each report, the external id of the nearest stored finding that a former id of the report names.

    Reports with an id in `own` get none. An id from before schema version 12 does not include the message, so
    the finding that it names must also have the same title.
    """
    claims = defaultdict[tuple[str, str], list[Claim]](list)
    for identity, group in groups.items():
        for spot, (report, *_) in group.items():
            names = [(identity, ""), *((name, "") for name in former[identity])]
            for key in (*names, (report.old_id, former_ids.without_numbers(report.old_title))):
                claims[key].append((spot, identity))
    earlier, used = dict[Claim, str](), {*own.values()}
    for (name, title), claimed in claims.items():
        twins = [
            each
            for each in itertools.chain(kept[name], stored[name] if name not in groups else ())
            if each.external_id not in used and title in ("", former_ids.without_numbers(each.title))
        ]
        found = nearest_twins([each for each in claimed if each not in own and each not in earlier], twins)
        earlier |= found
        used.update(found.values())
    return earlier


def number_group(
    identity: str, group: Group, taken: Container[str], own: Mapping[Claim, str], earlier: Mapping[Claim, str]
) -> None:
    """Set the external ids of one identity's reports: the nearest twin's id (in `own`), else an unused id."""
    numbers = (f"{identity}-{count}" if count > 1 else identity for count in itertools.count(1))
    unused = (each for each in numbers if each not in taken)
    # An unused id may be a finding's former id. Reports in `earlier` choose first, so that no other report gets it.
    for spot in sorted(group, key=lambda spot: ((spot, identity) not in earlier, spot)):
        claim = spot, identity
        external_id = own.get(claim) or next(unused)
        for report in group[spot]:
            report.external_id, report.twin_of = external_id, identity if external_id != identity else None
            report.former_match = earlier.get(claim, "")


def nearest_twins(claims: Iterable[Claim], twins: Iterable[Twin]) -> dict[Claim, str]:
    """Match reports to stored twins; return the external ids of the twins by report.

    A twin that this run has already reported matches only its own place. Of the other twins, those in the main line's
    and in the branch's latest run that reported any of them are matched first. So a twin keeps its decision even if a
    twin that is gone, or that only another branch has, is nearer to a report.
    """
    found, reported, others = dict[Claim, str](), defaultdict[Place, list[str]](list), list[Twin]()
    for twin in sorted(twins, key=lambda each: (len(each.external_id), each.external_id)):
        if twin.is_reported:
            reported[twin.place].append(twin.external_id)
        else:
            others.append(twin)
    others.sort(key=lambda each: each.place)
    latest = dict[str | None, str]()
    for twin in others:
        latest[twin.branch] = max(twin.last_run_id, latest.get(twin.branch, ""))
    free = list[Claim]()
    for claim in sorted(claims):
        (path, line, _), _ = claim
        if ids := reported.get((path, line)):
            found[claim] = ids.pop(0)
        else:
            free.append(claim)
    groups: tuple[list[Twin], list[Twin]] = [], []
    for twin in others:
        groups[twin.branch is None or twin.last_run_id != latest[twin.branch]].append(twin)
    for twins in groups:
        pairs = matched([(path, line) for (path, line, _), _ in free], [each.place for each in twins])
        found |= {free[claim]: twins[twin].external_id for claim, twin in pairs.items()}
        free = [each for each in free if each not in found]
    return found
