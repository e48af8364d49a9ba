"""Identities of SARIF results: hashes that stay the same from scan to scan when lines move."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from findings_adapters.sarif.models import OUR_PREFIX
from findings_features.labels import cut_bytes, end_of
from findings_service import KIB, Evidence

if TYPE_CHECKING:
    from findings_adapters.sarif.models import Result

# Semgrep writes this value instead of a fingerprint for every result if the user is not logged in.
NO_FINGERPRINTS = ("requires login",)
LABEL_LENGTH = 500
SNIPPET = 256 * KIB


class ResultPlace(Struct, gc=False):
    """Place of a result: a file (`path`), or a name in the program; `code` has pairs of first line and text."""

    path: str = ""
    line: int | None = None
    end_line: int | None = None
    name: str = ""
    code: Sequence[tuple[int | None, str]] = ()
    column: int | None = None

    @property
    def evidence(self) -> Iterator[Evidence]:
        """Evidence for each piece of code, labelled `path:line` (where it begins); without code, only a label."""
        where = self.path or self.name
        for line, text in self.code or [(self.line, "")]:
            label = end_of(f"{where}:{line}" if where and line else where, LABEL_LENGTH)
            content = cut_bytes(text, SNIPPET) or None
            if label or content:
                yield Evidence(type="code", label=label or None, content=content)


def by_value(name: str) -> list[tuple[int, str]]:
    """Return a sort key for a name, by which numbers in names are compared by value."""
    return [(int(part[:18]), "") if part.isdecimal() else (-1, part) for part in re.split("([0-9]+)", name)]


# A partial fingerprint with such a word in its name depends on a commit, author, date or column. It is ignored.
VOLATILE = {"author", "column", "commit", "date", "email", "revision", "sha", "time", "timestamp"}
WORD = re.compile("[A-Z]?[a-z]+[0-9]*|[A-Z]+[0-9]*")  # a word of a name such as primaryLocationLineHash
LINE_HASH = "primaryLocationLineHash"  # GitHub's fingerprint, preferred to others


def usable_fingerprints(fingerprints: Mapping[str, str | None] | None) -> list[tuple[str, str]]:
    """Return pairs of fingerprint name and value, sorted by name, without empty ones and those of this service."""
    given = [(name, value) for name, value in (fingerprints or {}).items() if value and value not in NO_FINGERPRINTS]
    return sorted((mark for mark in given if not mark[0].startswith(OUR_PREFIX)), key=lambda mark: by_value(mark[0]))


NUMBER = re.compile("[0-9]+")
# Counters in element ids that frameworks generate anew for each page: React's and, after prefixes, others'.
GENERATED = re.compile(
    r"(?<=[\"'#=\s\\-]:r)[0-9a-z]+(?=\\?:)|(?<=«r)[0-9a-z]+(?=»)|(?<=_r_)[0-9a-z]+(?=_)"
    r"|\b((?:cdk|mat|headlessui|react-aria|react-select|select2)-(?:[a-z]{1,30}-){0,5}|"  # bounded: quadratic otherwise
    "(?:downshift|ext-gen|gwt-uid|mui|radix|ui-id)-?|dijit_[A-Za-z_]+_|ember|j_idt|yui_)[0-9]+"
)
MARKUP = re.compile("[#>]")  # occurs in selectors, hardly ever in paths
# A container image with its tag or digest, and in parentheses the operating system that was found in it.
IMAGE = re.compile(
    r"([a-z0-9][a-z0-9._-]*(?::[0-9]+(?=/))?(?:/[a-z0-9._-]+)*)(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?:@sha256:[0-9a-f]{64})?(?: \(.*\))?"
)
MOST_FORMER = 5  # former external ids of a report


class Identities(Struct):
    """External id of a result, and the ids that it may have had before.

    `old` is its id before schema version 12. `by_message` is whether the message identifies the result.
    """

    id: str
    former: Sequence[str] = ()
    old: str = ""
    by_message: bool = False


Facts = tuple[Any, ...]


def facts_of(result: Result, place: ResultPlace, message: str) -> tuple[list[Facts], Facts]:
    """Return the keys that identify a result in its rule, best first, and its key before schema version 12."""
    _, first = place.code[0] if place.code else (None, "")
    where, code = place.path or place.name, " ".join(first[:SNIPPET].split())
    if marks := usable_fingerprints(result.fingerprints):
        return [("fingerprints", [mark]) for mark in marks], ("fingerprints", sorted(marks))
    if result.correlation_guid:
        known = ("correlationGuid", result.correlation_guid.lower())
        return [known], known
    marks, (file, *part) = usable_fingerprints(result.partial_fingerprints), where.split(": ", 1)
    image = IMAGE.fullmatch(file)
    selectors = [GENERATED.sub(r"\1", each) for each in part]
    file = GENERATED.sub(r"\1", file) if MARKUP.search(file) else file
    location = ": ".join([image[1] if image else file, *selectors])
    old = ("partialFingerprints", where, sorted(marks)) if marks else ("snippet", where, code)
    if stable := [mark for mark in marks if VOLATILE.isdisjoint(map(str.lower, WORD.findall(mark[0])))]:
        stable.sort(key=lambda mark: mark[0] != LINE_HASH)
        return [("partialFingerprints", location, [mark]) for mark in stable], old
    if message and not code:
        return [("message", location, NUMBER.sub("0", message))], old
    return [("snippet", location, GENERATED.sub(r"\1", code) if code.startswith("<") else code)], old


def identities_of(
    result: Result, tool: str, rule_id: str, places: Sequence[ResultPlace], message: str = ""
) -> Identities:
    """Return the identities of a result: hashes that do not change when its lines move.

    No hash contains the guid (new in every run) or the line. A hash contains the message only if there is neither
    fingerprint nor code. Each of several fingerprints makes an id, so that a tool can add or drop one.

    :param places: the result's place, followed by its earlier places.
    :param message: identifies the result if it has neither fingerprint nor code; "" prevents this.
    """

    def hash_of(facts: Facts) -> str:
        return hashlib.sha256(msgspec.json.encode((tool, rule_id or None, *facts))).hexdigest()[:40]

    keys = [facts_of(result, place, message) for place in places]
    ids = list[str]()
    for known, _ in keys:
        ids[1:1] = map(hash_of, known)
    own, *former = dict.fromkeys(ids)
    (first, *_), _ = keys[0]
    return Identities(own, former[:MOST_FORMER], hash_of(keys[-1][1]), by_message=first[0] == "message")
