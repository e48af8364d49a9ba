"""Checkout of the scanned code: supplies relative paths and the snippets that results lack."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Raw

from findings_adapters.git import files_of, top_of
from findings_adapters.sarif.models import ArtifactLocation, PhysicalLocation, Region, whole
from findings_adapters.sarif.reading import Reading, RunReading, path_of_uri, text_of
from findings_features.labels import cut_bytes
from findings_service import KIB

SOURCE_FILE = 5 * KIB * KIB
SOURCE_TEXT = 10 * KIB  # bytes of a line
SOURCES = 16  # cached files: some scanners return to a file for each rule
LINE_END = re.compile(r"\r\n|\r|\n")  # line ends of SARIF (3.30.5); str.splitlines splits at more
EACH = "*"
NOTICES = ("toolConfigurationNotifications", "toolExecutionNotifications")


def objects_at(part: Any, *path: str) -> Iterator[dict[str, Any]]:
    """Yield the objects at a path of member names, also in arrays; skip other values, which `parse` refuses."""
    if isinstance(part, list):
        for each in part:
            yield from objects_at(each, *path)
    elif isinstance(part, dict) and path:
        for each in part.values() if path[0] == EACH else [part.get(path[0])]:
            yield from objects_at(each, *path[1:])
    elif isinstance(part, dict):
        yield part


class Checkout:
    """Folder with the code that a document is about.

    It never reads a file outside of the folder, in `.git` (which may hold a key), or ignored by the file's nearest
    repository. Symbolic links are resolved before this check.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.roots = {f"{root.as_posix().rstrip('/')}/" for root in (folder.absolute(), self.folder)}
        self.lines_of = lru_cache(SOURCES)(self._read)
        self.files_of = cache(files_of)

    def _may_show(self, file: Path) -> bool:
        """Return whether lines of the file at a resolved path may be stored with findings."""
        if not file.is_relative_to(self.folder) or ".git" in map(str.casefold, file.relative_to(self.folder).parts):
            return False
        if not file.is_file() or file.stat().st_size > SOURCE_FILE:
            return False
        repository = top_of(file.parent)
        return repository is None or file in self.files_of(repository)

    def relative(self, uri: Any) -> str:
        """Return the URI of an absolute path below the folder as a relative URI, or "" for anything else."""
        path = path_of_uri(uri) if isinstance(uri, str) else ""
        root = next(filter(path.startswith, self.roots), None)
        return quote(path.removeprefix(root)) + ("/" if uri.endswith("/") else "") if root else ""

    def add_snippet(self, place: dict[str, Any], path_of: Callable[[ArtifactLocation], str]) -> None:
        """Add the first line of a location as its snippet, if it has a line number and no snippet.

        With more lines, the identity of the finding would change whenever one of them changes.
        """
        try:
            location = msgspec.convert(place, PhysicalLocation)
        except msgspec.ValidationError:
            return
        region, context = location.region or Region(), location.context_region or Region()
        start = whole(region.start_line, 1)
        if not start or not location.artifact_location or text_of(region.snippet, context.snippet):
            return
        if text := self.line(path_of(location.artifact_location), start):
            place["region"]["snippet"] = {"text": text}

    def line(self, path: str, number: int) -> str:
        """Return a line of a file, or "" if it does not exist or the file must not be shown."""
        lines = self.lines_of(path)
        return cut_bytes(lines[number - 1], SOURCE_TEXT) if number <= len(lines) else ""

    def _read(self, path: str) -> Sequence[str]:
        try:
            file = (self.folder / path).resolve()
            if not self._may_show(file):
                return ()
            text = file.read_bytes().decode("utf-8-sig", errors="replace")
        except (OSError, ValueError, RuntimeError):  # file is gone, invalid name, or a loop of links
            return ()
        return LINE_END.split(text.replace("\0", "\N{REPLACEMENT CHARACTER}"))


def reading_of(run: dict[str, Any]) -> RunReading:
    """Return a `RunReading` of a run, for its paths and faults, without its results."""
    text = json.dumps(run | ({"results": [{}]} if run.get("results") else {})).encode()
    return RunReading(Reading(len(text)), Raw(text), "")


def with_source(document: bytes, folder: Path) -> bytes:
    """Return a document with relative paths, and with missing snippets from a checkout.

    Absolute paths below the folder become relative, so that they are the same in every checkout. A place without code
    gets its line as the snippet, which identifies the finding after its line has moved.
    """
    try:
        log = json.loads(document)
    except (ValueError, RecursionError):
        return document
    checkout = Checkout(folder)
    below = ("locations", "physicalLocation")
    files = ("results", *below)
    named = [(*files, "artifactLocation"), *(("invocations", kind, *below, "artifactLocation") for kind in NOTICES)]
    for run in objects_at(log, "runs"):
        for path in (("originalUriBaseIds", EACH), ("artifacts", "location"), *named):
            for location in objects_at(run, *path):
                if uri := checkout.relative(location.get("uri")):
                    location["uri"] = uri
                    location.pop("uriBaseId", None)  # the absolute path did not need it
        path_of = reading_of(run).path_of
        # Sorted by file, so that each file is read once.
        for place in sorted(objects_at(run, *files), key=lambda place: str(place.get("artifactLocation"))):
            checkout.add_snippet(place, path_of)
    return json.dumps(log, ensure_ascii=False).encode(errors="surrogatepass")
