"""Identities of SARIF results, which stay the same from scan to scan wherever lines move."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from findings_adapters.sarif.models import OUR_MARKS
from findings_features.labels import cut_bytes, end_of
from findings_service import KIB, Evidence

if TYPE_CHECKING:
    from findings_adapters.sarif.models import Result

# Semgrep writes this in place of a fingerprint, the same for every result, if the user is not logged in.
NO_FINGERPRINTS = ("requires login",)


LABEL_LENGTH = 500
SNIPPET = 256 * KIB


class ResultPlace(Struct, gc=False):
    """Where a result is: a file, or else what a program calls the place; and code there, with its first lines."""

    path: str = ""
    line: int | None = None
    end_line: int | None = None
    name: str = ""
    code: Sequence[tuple[int | None, str]] = ()
    column: int | None = None

    @property
    def evidence(self) -> Iterator[Evidence]:
        """The code there, labelled as people write a place with the line it begins at: none where nothing is known."""
        where = self.path or self.name
        for line, text in self.code or [(self.line, "")]:
            label = end_of(f"{where}:{line}" if where and line else where, LABEL_LENGTH)
            content = cut_bytes(text, SNIPPET) or None
            if label or content:
                yield Evidence(type="code", label=label or None, content=content)


def by_value(name: str) -> list[tuple[int, str]]:
    """Return a sort key for names that compares the numbers in them by value."""
    return [(int(part[:18]), "") if part.isdecimal() else (-1, part) for part in re.split("([0-9]+)", name)]


# Words in the names of partial fingerprints that depend on a commit, an author, a date or a column; these are ignored.
VOLATILE = {"author", "column", "commit", "date", "email", "revision", "sha", "time", "timestamp"}
WORD = re.compile("[A-Z]?[a-z]+[0-9]*|[A-Z]+[0-9]*")  # of a name such as primaryLocationLineHash
LINE_HASH = "primaryLocationLineHash"  # GitHub's, which comes before others


def marks_of(fingerprints: Mapping[str, str | None] | None) -> list[tuple[str, str]]:
    """Return fingerprints in the order of their names, without empty ones and without ours."""
    given = [(name, value) for name, value in (fingerprints or {}).items() if value and value not in NO_FINGERPRINTS]
    return sorted((mark for mark in given if not mark[0].startswith(OUR_MARKS)), key=lambda mark: by_value(mark[0]))


NUMBER = re.compile("[0-9]+")
# Counters that a page's framework generates anew each time: those of React, and of others after their names.
GENERATED = re.compile(
    r"(?<=[\"'#=\s\\-]:r)[0-9a-z]+(?=\\?:)|(?<=«r)[0-9a-z]+(?=»)|(?<=_r_)[0-9a-z]+(?=_)"
    r"|\b((?:cdk|mat|headlessui|react-aria|react-select|select2)-(?:[a-z]{1,30}-){0,5}|"  # bounded, or quadratic
    "(?:downshift|ext-gen|gwt-uid|mui|radix|ui-id)-?|dijit_[A-Za-z_]+_|ember|j_idt|yui_)[0-9]+"
)
MARKUP = re.compile("[#>]")  # in a selector, and hardly in a path
# A container image with its tag or digest, and the system that was found in it.
IMAGE = re.compile(
    r"([a-z0-9][a-z0-9._-]*(?::[0-9]+(?=/))?(?:/[a-z0-9._-]+)*)(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?:@sha256:[0-9a-f]{64})?(?: \(.*\))?"
)


MOST_FORMER = 5  # external ids that a report may have had


class Identities(Struct):
    """Identities of a result: its id, and the ids that it may have had before.

    Until version 12 of the schema the service used the `old` one.
    """

    id: str
    former: Sequence[str] = ()
    old: str = ""
    by_message: bool = False


Facts = tuple[Any, ...]


def facts_of(result: Result, place: ResultPlace, message: str) -> tuple[list[Facts], Facts]:
    """Return the candidate keys of a result within its rule, most stable first, and that before schema version 12."""
    _, first = place.code[0] if place.code else (None, "")
    where, code = place.path or place.name, " ".join(first[:SNIPPET].split())
    if marks := marks_of(result.fingerprints):
        return [("fingerprints", [mark]) for mark in marks], ("fingerprints", sorted(marks))
    if result.correlation_guid:
        known = ("correlationGuid", result.correlation_guid.lower())
        return [known], known
    marks, (file, *part) = marks_of(result.partial_fingerprints), where.split(": ", 1)
    image = IMAGE.fullmatch(file)
    selectors = [GENERATED.sub(r"\1", each) for each in part]
    file = GENERATED.sub(r"\1", file) if MARKUP.search(file) else file
    there = ": ".join([image[1] if image else file, *selectors])
    old = ("partialFingerprints", where, sorted(marks)) if marks else ("snippet", where, code)
    if lasting := [mark for mark in marks if VOLATILE.isdisjoint(map(str.lower, WORD.findall(mark[0])))]:
        lasting.sort(key=lambda mark: mark[0] != LINE_HASH)
        return [("partialFingerprints", there, [mark]) for mark in lasting], old
    if message and not code:
        return [("message", there, NUMBER.sub("0", message))], old
    return [("snippet", there, GENERATED.sub(r"\1", code) if code.startswith("<") else code)], old


def identities_of(
    result: Result, tool: str, rule_id: str, places: Sequence[ResultPlace], message: str = ""
) -> Identities:
    """Return the identities of a result, each a hash of values that do not move.

    Neither the guid, which is new in every run, nor the line is in it, and the message only where there is nothing
    else. Of several fingerprints each makes one, so that a tool may add one or leave one out.

    :param places: where it is, and then where it may have been.
    :param message: identifies the result if it has neither fingerprint nor code; "" if it must not.
    """

    def hashed(facts: Facts) -> str:
        return hashlib.sha256(msgspec.json.encode((tool, rule_id or None, *facts))).hexdigest()[:40]

    told = [facts_of(result, place, message) for place in places]
    ids = list[str]()
    for known, _ in told:
        ids[1:1] = map(hashed, known)
    own, *former = dict.fromkeys(ids)
    (first, *_), _ = told[0]
    return Identities(own, former[:MOST_FORMER], hashed(told[-1][1]), by_message=first[0] == "message")
