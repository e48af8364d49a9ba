"""Commands for CI jobs: `scan` reports findings, `gate` judges a run, `export` writes findings.

The commands use only the service's API, on a database file or at a URL. Annotations are GitHub's workflow commands
(https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands).

Exit codes: 0 passed, 1 the gate failed the run, 2 invalid usage or input, 3 any other error.
"""

from __future__ import annotations

import codecs
import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec
import regex
from msgspec import Raw, Struct

from findings_adapters.connecting import combined, service_at, service_options
from findings_adapters.git import find_commit, is_before, is_tracked, renames_since, top_of
from findings_adapters.platforms import ScanContext, place_of
from findings_adapters.scan_config import (
    BARS,
    FOLDER,
    OUR_PREFIX,
    RENAMES,
    TEXTS,
    Config,
    Decider,
    Prepared,
    Scanned,
    Spot,
    ToolCategory,
    Upload,
    add_run_properties,
    count_missing,
    prepare,
    read_config,
    remove_own_members,
    text_in,
)
from findings_adapters.terminal import BadInput, exit_codes, note, visible, write
from findings_client import Client, Refused, Reply, RunSession, encode_json, query_of, quoted
from findings_features.exports import ExportQuery
from findings_features.gate import BASELINES, Gate, blocking_statuses
from findings_features.labels import end_of
from findings_features.openapi import description_of
from findings_service import (
    HTTP_URL,
    SEVERITIES,
    UNCHECKED,
    Run,
    RunPage,
    ServiceError,
    Settings,
    Submission,
    TaskHead,
    TaskPage,
    ValidationFailed,
    load_module,
    load_modules,
    main,
    schemas_of,
    scheme_of,
    truncate,
)

SARIF = "application/sarif+json"

# ---------------------------------------------------------------------------
# Context of a scan: by its options, else by the platform's variables
# ---------------------------------------------------------------------------

SAY_BRANCH = "; use --branch NAME, or --branch '' for the main line"


def scan_context(branch: str | None, target: str | None, source_url: str | None) -> ScanContext:
    """Return the context of a scan from options, else from the platform. "" is the main line or no target.

    :raises BadInput: if the platform does not name the branch, or `source_url` is invalid.
    """
    context = place_of(os.environ)
    if source_url:
        _, pattern, description = TEXTS["source-url"]
        if not regex.match(pattern, source_url):
            raise BadInput(f"--source-url {source_url}: must be {description}")
        context.metadata["sourceUrl"] = source_url
    if branch is not None:
        context.branch, context.unknown = branch or None, ""
    elif context.branch == "":
        raise BadInput(f"the platform's variables do not name the branch{SAY_BRANCH}")
    if context.unknown:
        assumed = "the main line" if context.branch is None else f"branch {context.branch}"
        note(f"Note: {context.unknown}; assuming {assumed}{SAY_BRANCH}.")
    if target is not None:
        context.target = target or None
    elif context.target and not (regex.match(HTTP_URL, context.target) and len(context.target) <= 2048):
        note(f"Note: {context.target} is not a valid http or https URL, so the run has no target; use --target URL.")
        context.target = None
    return context


# ---------------------------------------------------------------------------
# Contents of a report: the run, the verdict, and the findings
# ---------------------------------------------------------------------------

Spots = Mapping[str, Spot]  # by task id
Filters = Mapping[str, Any]


class ShownFinding(Struct):
    """Finding to show, with its position if known."""

    task: TaskHead
    is_new: bool
    spot: Spot

    @property
    def shown_place(self) -> str:
        """Position as `path:line`, else the task's location, or "" if there is none."""
        return str(self.spot) or self.task.location or ""

    def order(self) -> tuple[int, bool, str, int]:
        """Return the sort key: most severe first, then by place; findings without a place last."""
        place = self.spot.path or self.task.location or ""
        return SEVERITIES.index(self.task.severity), not place, place, self.spot.line or 0


def finding_at(spots: Spots, task: TaskHead, *, is_new: bool = False) -> ShownFinding:
    """Return a task with its position in the scanned documents, else with the path and line in its location."""
    spot = spots.get(task.id, Spot())
    if not spot.path and (line := regex.fullmatch(r"(.+):([0-9]{1,9})", task.location or "")):
        spot = Spot(line[1], int(line[2]))
    return ShownFinding(task, is_new, spot)


class Bar(Struct):
    """Criteria for judging runs: the values of `gate_options`."""

    fail_on: str
    only: str
    without_baseline: str


class Judged(Struct):
    """Run to judge, the chosen baseline if any, and the positions of its findings.

    `left_out` is how many findings were resolved on completion because their paths are excluded.
    """

    run_id: str
    baseline: str | None = None
    spots: Spots = {}
    left_out: int = 0


class Report(Struct):
    """Report of a run: chosen baseline, verdict, counts, and findings with the worst first."""

    run: Run
    baseline: str | None
    gate: Gate
    counts: str
    spots: Spots
    findings: list[ShownFinding]
    total: int

    @property
    def more(self) -> str:
        """Line with the number of findings that are not shown, or ""."""
        hidden = self.total - len(self.findings)
        return f"… and {hidden} more" if hidden > 0 else ""


def counts_of(run: Run, unbarred: Gate) -> str:
    """Return the counts of a run's findings as text, from a verdict on findings of any severity."""
    ignored, missing, resolved = unbarred.ignored, unbarred.missing, run.submitted.resolved
    text = f"{unbarred.offenders_total} new, {ignored.known} known, {ignored.dismissed} dismissed"
    text += f", {missing} no longer reported" if missing else ""
    return text + (f", {resolved} resolved because no longer reported" if resolved else "")


SHOWN = 50  # findings in a report


def report_of(service: Client, judged: Judged, bar: Bar) -> Report:
    """Return the report of a run with up to `SHOWN` findings, preferably new ones if only these are judged."""
    path = f"runs/{quoted(judged.run_id)}"
    request_gate = partial(service.get, f"{path}/gate", baseline=judged.baseline or None)
    verdict = request_gate(fail_on=bar.fail_on, only=bar.only).read(Gate)
    unbarred = request_gate(fail_on="info", only="new").read(Gate)
    run = service.get(path).read(Run)
    is_first = verdict.baseline is None and run.status == "completed"
    if is_first and bar.without_baseline == "pass" and not verdict.pass_:
        verdict.pass_ = True
        passes = "passed without a baseline because of --without-baseline pass"
        verdict.reason = f"{verdict.reason.removesuffix('.')}; {passes}."
    listed, new = worst_of(service, run), {each.id: each for each in unbarred.offenders}
    shown = (new if bar.only == "new" else {}) | {each.id: each for each in listed.tasks}
    found = [finding_at(judged.spots, each, is_new=each.id in new) for each in shown.values()]
    found = sorted(found[:SHOWN], key=ShownFinding.order)
    counts = counts_of(run, unbarred)
    return Report(run, judged.baseline, verdict, counts, judged.spots, found, listed.total)


def undismissed_in(run: Run) -> Filters:
    """Return the filters for the findings of a run that are not dismissed."""
    return {"run_id": run.id, "status": blocking_statuses(run.branch)}


def worst_of(service: Client, run: Run, **filters: Any) -> TaskPage:
    """Return a page of the `SHOWN` worst findings of a run that match filters and are not dismissed."""
    return service.get("tasks", **undismissed_in(run), sort="severity", limit=SHOWN, **filters).read(TaskPage)


# ---------------------------------------------------------------------------
# Output of reports: stored text is untrusted, and may imitate other output
# ---------------------------------------------------------------------------

COLOURS = {"critical": "magenta", "high": "red", "medium": "yellow", "low": "cyan", "info": "blue"}
WIDEST_PLACE = 0.4  # as a part of the width of a line
CELL = 200  # characters of a cell in markdown: a comment may have 65,536
IN_MARKDOWN = regex.compile(r"[\\`*_{}\[\]<>()|~!#&:]|(?<=\bwww)\.", regex.IGNORECASE)  # a bare www. is a link
MENTION = regex.compile(r"[@#!$%~&](?=\w)|\bGH-(?=[0-9])", regex.IGNORECASE)


def wants_colour(env: Mapping[str, str]) -> bool:
    """Return whether standard output may be coloured (https://no-color.org)."""
    return sys.stdout.isatty() and not env.get("NO_COLOR") and env.get("TERM") != "dumb"


WIDTH = 160  # of a line in a file or log


def table(report: Report) -> Iterator[str]:
    """Yield the lines of a coloured report: the findings, their counts, and the gate's reason."""
    width = shutil.get_terminal_size((WIDTH, 0)).columns if sys.stdout.isatty() else WIDTH
    most = int(width * WIDEST_PLACE)
    places = [end_of(visible(each.shown_place), most) for each in report.findings]
    severities, widest = max(map(len, SEVERITIES)), max(map(len, places), default=0)
    for finding, place in zip(report.findings, places, strict=True):
        severity = click.style(finding.task.severity.ljust(severities), fg=COLOURS[finding.task.severity])
        new = click.style("new", bold=True) if finding.is_new else "   "
        title = truncate(visible(finding.task.title), width - severities - widest - 9)
        yield f"{severity}  {new}  {place.ljust(widest)}  {title}".rstrip()
    if report.more:
        yield report.more
    yield report.counts
    yield click.style(visible(report.gate.reason), fg="green" if report.gate.pass_ else "red", bold=True)


def in_markdown(text: str) -> str:
    """Return untrusted text as one line of Markdown without markup, cells, links or mentions."""
    line = truncate(visible(text), CELL)
    return IN_MARKDOWN.sub(r"\\\g<0>", MENTION.sub("\\g<0>\u200b", line))


def markdown(report: Report) -> Iterator[str]:
    """Yield the lines of a pull request comment: new findings, then known ones in <details>."""
    yield f"**{'Passed' if report.gate.pass_ else 'Not passed'}**: {in_markdown(report.gate.reason)}"
    yield from markdown_table([each for each in report.findings if each.is_new])
    yield from ("", "; ".join(filter(None, (report.more, f"{report.counts}."))))
    if known := [each for each in report.findings if not each.is_new]:
        yield from ("", f"<details><summary>Known: {len(known)}</summary>", *markdown_table(known), "", "</details>")


def markdown_table(findings: Sequence[ShownFinding]) -> Iterator[str]:
    """Yield the lines of a table; yield nothing without findings."""
    if findings:
        yield from ("", "| Severity | Finding | Place |", "|---|---|---|")
    for each in findings:
        yield f"| {each.task.severity} | {in_markdown(each.task.title)} | {in_markdown(each.shown_place)} |"


def command_text(text: str) -> str:
    """Return a text as the message of a workflow command: one line that cannot begin another."""
    return visible(text).replace("%", "%25")


ANNOTATIONS = {"error": ("critical", "high"), "warning": ("medium",), "notice": ("low", "info")}
MOST_ANNOTATIONS = 10  # GitHub shows so many per level and step


def annotation(kind: str, finding: ShownFinding) -> str:
    """Return the workflow command for an annotation at the position of a finding."""
    task, spot = finding.task, finding.spot
    in_line = spot.end_line in (None, spot.line)  # GitHub shows columns of one line only
    column, end_column = (spot.column, spot.end_column) if in_line else (None, None)
    fields = {
        "file": spot.path,
        "line": spot.line,
        "endLine": spot.end_line if spot.line else None,
        "col": column,
        "endColumn": end_column - 1 if column and end_column and end_column > column else None,  # SARIF's is exclusive
        "title": f"{task.severity}: {task.rule or 'finding'}",
    }
    listed = (
        f"{name}={command_text(str(value)).replace(':', '%3A').replace(',', '%2C')}"
        for name, value in fields.items()
        if value
    )
    elsewhere = f" ({task.location})" if task.location and not spot.path else ""  # such as on a web page
    return f"::{kind} {','.join(listed)}::{command_text(f'{task.title}{elsewhere}')}"


def worst_judged(service: Client, report: Report, severities: Sequence[str], only: str) -> TaskPage:
    """Return a page of the worst findings with these severities among the findings that the gate judges."""
    if only != "new" or not report.baseline:
        return worst_of(service, report.run, severity=severities, new_in=report.run.id if only == "new" else None)
    # The filter of new findings compares with the default baseline, not with the chosen one.
    list_tasks = partial(service.walk, "tasks", severity=severities, sort="severity")
    before, now = list_tasks(run_id=report.baseline), list_tasks(**undismissed_in(report.run))
    known = {each.id for page in before for each in page.read(TaskPage).tasks if each.rule != UNCHECKED}
    new = [each for page in now for each in page.read(TaskPage).tasks if each.id not in known]
    return TaskPage(None, SHOWN, len(new), None, new[:SHOWN])


def workflow_commands(service: Client, reports: Sequence[Report], only: str) -> Iterator[str]:
    """Yield annotations for the worst findings of all reports, and a line that counts the others."""
    more = 0
    for kind, severities in ANNOTATIONS.items():
        found = list[ShownFinding]()
        for report in reports:
            listed = worst_judged(service, report, severities, only)
            found += (finding_at(report.spots, each) for each in listed.tasks)
            more += listed.total
        shown = sorted(found, key=ShownFinding.order)[:MOST_ANNOTATIONS]
        more -= len(shown)
        yield from (annotation(kind, each) for each in shown)
    if more:
        yield f"… and {more} more without an annotation: GitHub shows {MOST_ANNOTATIONS} per level"


def workflow_lines(report: Report) -> Iterator[str]:
    """Yield the lines of a report for the log of GitHub Actions, besides annotations."""
    yield report.counts
    yield visible(report.gate.reason)


def add_summary(lines: Iterable[str], path: str) -> None:
    """Append lines to the file of the job summary that GitHub shows; if that fails, only print a note."""
    try:
        with Path(path).open("a", encoding="utf-8") as summary:
            summary.writelines(f"{line}\n" for line in (*lines, ""))
    except OSError as error:
        note(f"Note: cannot write the job summary: {error}")


CODE_QUALITY = "gl-code-quality-report.json"
GRADES = dict(zip(SEVERITIES, ("blocker", "critical", "major", "minor", "info"), strict=True))


def write_code_quality(service: Client, reports: Sequence[Report]) -> None:
    """Write undismissed findings with a path to `CODE_QUALITY` (https://docs.gitlab.com/ci/testing/code_quality/)."""
    found = [
        {
            "description": task.title,
            "check_name": task.rule or report.run.project_type,
            "fingerprint": task.external_id or task.id,
            "severity": GRADES[task.severity],
            "location": {"path": spot.path, "lines": {"begin": spot.line or 1}},
        }
        for report in reports
        for page in service.walk("tasks", **undismissed_in(report.run))
        for task in page.read(TaskPage).tasks
        if (spot := finding_at(report.spots, task).spot).path
    ]
    place = Path(f"{CODE_QUALITY}.new")  # renamed at the end, which replaces a link and does not follow it
    place.unlink(missing_ok=True)
    place.write_bytes(msgspec.json.encode(found))
    place.replace(CODE_QUALITY)


def passed(reports: Iterable[Report]) -> bool:
    """Return whether all runs passed the gate."""
    return all(report.gate.pass_ for report in reports)


def combined_lines(reports: Sequence[Report], lines: Callable[[Report], Iterable[str]]) -> Iterator[str]:
    """Yield the lines of all reports. Each of several has its project type as title; a verdict on all follows."""
    if len(reports) == 1:
        yield from lines(reports[0])
        return
    title = "### {}\n" if lines is markdown else "{}:"
    for report in reports:
        yield from (title.format(report.run.project_type), *lines(report), "")
    failed = [report.run.project_type for report in reports if not report.gate.pass_]
    yield f"Not passed: {', '.join(failed)}." if failed else "Passed."


LINES = {"table": table, "markdown": markdown, "github": workflow_lines, "gitlab": table}


def write_reports(service: Client, reports: Sequence[Report], form: str, only: str) -> None:
    """Write reports to standard output in a format. For JSON and SARIF, the gate's reasons go to standard error."""
    if form == "github":
        write(f"{line}\n" for line in workflow_commands(service, reports, only))
        if path := os.environ.get("GITHUB_STEP_SUMMARY"):
            add_summary(combined_lines(reports, markdown), path)
    if form == "gitlab":
        write_code_quality(service, reports)
    if form in LINES:
        lines = (f"{line}\n" for line in combined_lines(reports, LINES[form]))
        write(lines if wants_colour(os.environ) else map(click.unstyle, lines))
        return
    if form == "json":
        gates = {"pass": passed(reports), "runs": [report.gate for report in reports]}
        write([msgspec.json.encode(gates), b"\n"])
    else:
        write(sarif_pages(service, {"runId": [report.run.id for report in reports]}, None))
    for report in reports:
        note(f"{report.run.project_type}: {report.gate.reason}" if len(reports) > 1 else report.gate.reason)


# ---------------------------------------------------------------------------
# Export of lists, page by page, of any length
# ---------------------------------------------------------------------------

EXPORTED = 10_000  # tasks per page, each a complete document
NEXT = regex.compile(r'<([^<>]*)>;\s*rel="next"')


class Listed(Struct):
    """Page of a JSON list: the fields that an export reads."""

    tasks: list[Raw]
    next: str | None


def pages(service: Client, filters: Filters, kind: str, limit: int | None) -> Iterator[Reply]:
    """Yield responses with the pages of the task list in a format other than JSON, with up to `limit` tasks in all.

    :raises BadInput: if the service does not support the format.
    """
    sample = service.request("GET", f"tasks?{query_of(**filters, limit=1)}", accept=kind)  # allowed in all formats
    if not sample.headers.get("content-type", "").startswith(kind):
        raise BadInput(f"the service does not support {kind}: its module for this format is not installed")
    link = f"tasks?{query_of(**filters, limit=EXPORTED)}"
    for left in range(limit or sys.maxsize, 0, -EXPORTED):
        link = regex.sub(r"(?<=[?&]limit=)[0-9]+", str(min(left, EXPORTED)), link)
        response = service.request("GET", link, accept=kind)
        yield response
        next_link = NEXT.search(response.headers.get("link", ""))
        if not next_link:
            return
        link = next_link[1]


def sarif_pages(service: Client, filters: Filters, limit: int | None) -> Iterator[bytes]:
    """Yield the pieces of one SARIF document, which has a run for each page of tasks."""
    for number, page in enumerate(pages(service, filters, SARIF, limit)):
        head = page.read(dict[str, Raw])
        runs = bytes(head.pop("runs"))
        yield b"," if number else msgspec.json.encode(head)[:-1] + b',"runs":['
        yield runs[1:-1]
    yield b"]}\n"


CSV = "text/csv"


def csv_pages(service: Client, filters: Filters, limit: int | None) -> Iterator[bytes]:
    """Yield the pieces of one CSV table, which has a single header."""
    for number, page in enumerate(pages(service, filters, CSV, limit)):
        yield page.body.partition(b"\r\n")[2] if number else page.body


def json_pages(service: Client, filters: Filters, limit: int | None) -> Iterator[bytes]:
    """Yield the pieces of one JSON array of complete tasks."""
    yield b"["
    listed = service.walk("tasks", **filters, view="full")
    tasks = (task for page in listed for task in page.read(Listed).tasks)
    for number, task in enumerate(itertools.islice(tasks, limit)):
        yield (b",\n" if number else b"\n") + bytes(task)
    yield b"\n]\n"


# ---------------------------------------------------------------------------
# Reading of input files
# ---------------------------------------------------------------------------

PATTERN = regex.compile(r"[*?\[]")


def files_of(names: Iterable[str]) -> list[str]:
    """Return the files for names and patterns such as `**/*.sarif`; `*` does not match hidden names.

    :raises BadInput: if a name is empty or a pattern matches no file.
    """
    files = dict[str, None]()
    for name in names:
        if not name:
            raise BadInput("a file name is empty; use the path that the scanner wrote to")
        path = Path(name)
        if not PATTERN.search(name) or path.exists():
            files[name] = None
            continue
        folder = Path(path.anchor)
        try:
            pattern = f"{path.relative_to(folder)}{'/*' if path.name == '**' else ''}"  # ** is folders before 3.13
            found = [str(each) for each in folder.glob(pattern) if each.is_file()]
        except ValueError as error:
            raise BadInput(f"{name}: {error}") from None
        if "/." not in f"/{name}":
            found = [each for each in found if "/." not in f"/{each}"]
        if not found:
            raise BadInput(f"{name} matches no file; check whether the scanner failed")
        files |= dict.fromkeys(sorted(found))
    return [*files]


XML_DECLARATION = regex.compile(r"\A\s*<\?xml[^>]*\?>")  # it names an encoding


def read_document(name: str, most: int) -> bytes:
    """Read a file; convert UTF-16 to UTF-8. :raises BadInput: if it is unreadable, empty, or over `most` bytes."""
    try:
        path = Path(name)
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise BadInput(f"{name} is not a regular file; configure the scanner to write to one")
        with path.open("rb") as file:
            text = file.read(most + 1)
    except OSError as error:
        raise BadInput(f"{name}: {error.strerror}") from None
    require_size(name, text, most)
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # written by PowerShell's >
        try:
            text = XML_DECLARATION.sub("", text.decode("utf-16")).encode()
        except UnicodeDecodeError:
            raise BadInput(f"{name} is not valid UTF-16; configure the scanner to write UTF-8") from None
    text = text.removeprefix(codecs.BOM_UTF8)
    if not text.strip():
        raise BadInput(f"{name} is empty; check whether the scanner failed")
    return text


def require_size(name: str, text: bytes, most: int) -> None:
    """Check that a document is within the size limit. :raises BadInput: if it is too large."""
    if len(text) > most:
        advice = "split it, or raise FINDINGS_MAX_SARIF for this command and for the service"
        raise BadInput(f"{name} is larger than {most:,} bytes; {advice}")


LISTED_PROBLEMS = 3  # of a document, in an error message


@contextmanager
def usable(name: str) -> Iterator[None]:
    """Convert the errors of reading the file `name` to `BadInput` with the first reasons."""
    try:
        yield
    except ServiceError as error:
        problems = error.problems if isinstance(error, ValidationFailed) else ()
        reasons = "; ".join(f"{each.pointer}: {each.detail}".lstrip(": ") for each in problems[:LISTED_PROBLEMS])
        message = f"{name}: {reasons}".lstrip(": ") if reasons else f"{name} is not a SARIF document: {error}"
        raise BadInput(message) from None
    except RecursionError:
        raise BadInput(f"{name} is nested too deeply; configure the scanner to write smaller reports") from None
    except ValueError:  # raised only for such numbers
        fault = "has a number that is too large, such as 1e999, or has thousands of digits"
        raise BadInput(f"{name} {fault}; remove it, or write it as a string") from None


def read_documents(
    names: Sequence[str], source: str | None, *, ours: bool = False, renames: Mapping[str, str] = {}
) -> Iterator[Scanned]:
    """Yield files as SARIF, with relative paths and lines of code from the checkout.

    :param source: the checkout; without it, paths and snippets are not changed.
    :param ours: whether to trust fingerprints and properties of this service in a file; else they are removed.
    :param renames: maps paths of files to their earlier paths.
    :raises BadInput: if a file cannot be used.
    """
    load_modules()
    if missing := load_module("findings_adapters.sarif"):
        raise BadInput(f"reading SARIF requires {missing}")
    from findings_adapters import formats  # which imports the SARIF module

    settings, tests, documents = Settings.read(), formats.Tests(), list[Scanned]()
    most = settings.max_sarif

    def read_again(document: Scanned) -> None:
        text = encode_json(document.log, document.name)
        document.parsed, document.is_changed = formats.parse_any_weight(text, settings), True
        if document.parsed.problems:
            raise ValidationFailed(document.parsed.problems)

    for name in names:
        with usable(name):
            text, by_message = formats.as_sarif(name, read_document(name, most), source, most, tests, renames)
            parsed = formats.parse_any_weight(text, settings)
            document = Scanned(name, text, json.loads(text), parsed, by_message=by_message or 0)
            if by_message is None and remove_own_members(document.log, *((RENAMES, FOLDER) if ours else (OUR_PREFIX,))):
                read_again(document)
            elif parsed.problems:
                raise ValidationFailed(parsed.problems)
        documents.append(document)
    with usable(""):
        tests.require_some()
    changed = {*add_run_properties(documents, renames)}
    for document in documents:
        with usable(document.name):
            if document in changed:
                read_again(document)
            if formats.add_unchecked(document.log, document.parsed):
                read_again(document)
        yield document


LONGEST_TYPE = 100  # characters of a project type's name, and of its label


def types_of(origins: Iterable[ToolCategory]) -> dict[str, ToolCategory]:
    """Return origins by the type name derived from each. :raises BadInput: if a name is empty, or two are equal."""
    types = dict[str, ToolCategory]()
    for origin in origins:
        tool = " ".join(origin).strip()
        name = regex.sub(r"[^a-z0-9]+", "-", tool.lower()).strip("-")[:LONGEST_TYPE].rstrip("-")
        if not name:
            raise BadInput(f"no project type name can be derived from the tool name {tool}; use --type NAME")
        if name in types:
            other = " ".join(types[name]).strip()
            raise BadInput(f"{other} and {tool} have the same project type name, {name}; use --type NAME")
        types[name] = origin
    return types


LONGEST_LABEL = 200


def read_parts(
    config: Config,
    documents: Iterable[Scanned],
    project_type: str | None,
    *,
    explain: bool | None = None,
    has_source: bool = False,
) -> list[Prepared]:
    """Return the parts of a scan, each of which is sent as a separate run.

    :param project_type: the type of one run with all results; without it, each tool and category has a run.
    :param explain: whether to print each decision; None prints nothing, because an earlier call has printed all.
    :param has_source: whether `--source` is given.
    :raises BadInput: if a document is too large, or contains a number that cannot be encoded.
    """
    decider, most = Decider(config), Settings.read().max_sarif
    try:
        parts = prepare(decider, documents, by_tool=not project_type, most=most)
    except ValueError as error:  # a number such as 1e999
        raise BadInput(str(error)) from None
    if explain is not None:
        print_decisions(decider, explain=explain, has_source=has_source)
    for document in itertools.chain.from_iterable(each.documents for each in parts.values()):
        require_size(document.name, document.text, most)
    for name, origin in ({project_type: ("", "")} if project_type else types_of(parts)).items():
        parts[origin].project_type, parts[origin].label = name, " ".join(origin).strip()[:LONGEST_LABEL] or None
    return [*parts.values()]


def print_decisions(decider: Decider, *, explain: bool, has_source: bool) -> None:
    """Print each decision if `explain`, then notes on ready maps, invalid severities and weak identities."""
    for line in decider.explained if explain else ():
        note(line)
    if decider.ready:
        tools = ", ".join(sorted(decider.ready))
        note(f"Note: a ready map sets the severities of {tools}; --explain shows each decision.")
    if decider.misread:
        example = truncate(decider.misread[0], 40)
        note(f"Note: invalid values of security-severity are ignored: {len(decider.misread):,}, such as {example}.")
    if decider.by_message:
        advice = "" if has_source else "; use --source with the checkout to identify them by their code"
        lack = "results without fingerprint and code, identified by their messages"
        note(f"Note: {lack}: {decider.by_message:,}{advice}.")


ABSOLUTE_PATH = regex.compile(r"/|[A-Za-z]:/")


def note_absolute_paths(spots: Iterable[Spot]) -> None:
    """Print a note if findings have absolute paths."""
    paths = [spot.path for spot in spots if ABSOLUTE_PATH.match(spot.path)]
    if paths:
        note(
            f"Note: findings have absolute paths, such as {paths[0]} ({len(paths):,} in all), so they are new in a"
            " different folder; use --source DIR with a folder above them, or let the scanner write relative paths."
        )


def require_out_of_reach(files: Iterable[str], db: str, source: Path) -> None:
    """Check that the author of a pull request cannot have written a report or the database.

    :raises BadInput: if the author may have written one.
    """
    for name in files:
        if (tracked := is_tracked(Path(name))) is None:
            advice = (
                "on a pull request, git must show that a report is not tracked; install git, or repair the checkout"
            )
            raise BadInput(f"{name} is in a checkout and git is not installed or fails; {advice}")
        if tracked:
            advice = "on a pull request, its author may have written it; configure scanners to write to untracked files"
            raise BadInput(f"{name} is tracked by git; {advice}")
    if not db or scheme_of(db):
        return
    place, folder = Path(db).resolve(), source.resolve()
    checkouts = (top_of(folder) or folder, top_of(place.parent))  # the source may be a folder without git
    if any(each in place.parents and ".git" not in place.relative_to(each).parts for each in checkouts if each):
        advice = "use --db with a path outside of the checkout, or below .git"
        raise BadInput(f"{db} is in the checkout, where a pull request can add its own database; {advice}")


def register_type(service: Client, part: Prepared) -> None:
    """Register the project type of a part if it does not exist."""
    try:
        service.request("GET", f"project-types/{quoted(part.project_type)}")
    except Refused as error:
        if error.status != 404:
            raise
        service.request("POST", "project-types", {"name": part.project_type, "label": part.label})


def main_line_runs(service: Client, project_type: str, target: str | None) -> list[Run]:
    """Return the `COMPARED` latest completed main-line runs of a project type and target, newest first.

    If `target` is None, only the `COMPARED` latest runs of all targets are searched for runs without one.
    """
    compared = {"main_line": True, "status": "completed", "limit": COMPARED}
    listed = service.get("runs", project_type=project_type, target_url=target, **compared).read(RunPage)
    return [run for run in listed.runs if run.target_url == target]


COMPARED = 50  # runs of the main line that are searched for a commit


def commit_of(run: Run) -> str:
    """Return the commit in a run's metadata, or ""."""
    return text_in(msgspec.json.decode(run.metadata), "commit")


def chosen_runs(known: Mapping[str, Sequence[Run]], base: str, folder: Path) -> dict[str, Run]:
    """Return the newest known run of commit `base` or an ancestor, by project type; omit types without one."""
    chosen, commit = dict[str, Run](), find_commit(folder, base) or base
    for name, runs in known.items():
        if run := next((run for run in runs if is_before(folder, commit_of(run), commit)), None):
            chosen[name] = run
        elif runs:
            note(f"Note: no run of {name} is of commit {base} or an ancestor; the default baseline is used.")
    return chosen


def whole_run(service: Client, runs: Sequence[Run]) -> Run:
    """Return the newest run without `not-checked` findings (the gate's default baseline), else the newest run."""
    for run in runs[:BASELINES]:
        listed = service.get("tasks", run_id=[run.id], rule=[UNCHECKED], limit=1).read(TaskPage)
        if not listed.total:
            return run
    return runs[0]


def renames_since_runs(runs: Iterable[Run], folder: Path) -> dict[str, str]:
    """Return a map from new to old paths of the files that were renamed since the commits of the runs."""
    renames = dict[str, str]()
    for commit in dict.fromkeys(filter(None, map(commit_of, runs))):
        found = renames_since(folder, commit)
        if found is None:
            note(f"Note: git does not have the baseline's commit {commit}; renamed files are not followed.")
        renames |= found or {}
    return renames


def report_in_runs(
    service: Client,
    parts: Sequence[Prepared],
    context: ScanContext,
    bar: Bar,
    baselines: Mapping[str, Run],
    *,
    resolve_missing: bool,
) -> list[Judged]:
    """Report each part of a scan in a run, and return the runs.

    All runs are completed at the end. An error sets those that are not completed to `failed`, with the reason.

    :param bar: the criteria of the gate. :param baselines: the chosen baselines, by project type.
    """
    with ExitStack() as open_runs:
        runs = list[Judged]()
        for part in parts:
            baseline = baselines[part.project_type].id if part.project_type in baselines else None
            metadata = context.metadata | ({} if "repository" in context.metadata else part.source)
            start = {"projectType": part.project_type, "targetUrl": context.target, "branch": context.branch}
            params = {"failOn": bar.fail_on, "only": bar.only, "baseline": baseline}
            session = RunSession(service, start | {"metadata": metadata}, resolve_missing=resolve_missing, gate=params)
            runs.append(Judged(open_runs.enter_context(session).id, baseline))
        reported = [*zip(parts, runs, strict=True)]
        for part, run in reported:
            run.spots = submit(service, run.run_id, part.documents)
            if resolve_missing:
                run.left_out = count_missing(service, run.run_id, context.branch, part.left_out)
    for part, run in reported:
        if run.left_out:
            note(f"Findings of {part.project_type} resolved because their paths are excluded: {run.left_out:,}.")
        if part.is_partial:
            where = "nothing is resolved in the files that its not-checked findings name"
            note(f"{part.project_type} did not check everything: {where}, and nothing at all if one names no file.")
        where = f"{context.target or 'no target'}, {context.branch or 'main line'}"
        note(f"Run {run.run_id} of {part.project_type}, {where}.")
    return runs


def submit(service: Client, run_id: str, documents: Iterable[Upload]) -> Spots:
    """Submit documents to a run, and return the positions of their findings by task id."""
    spots, count = dict[str, Spot](), 0
    for each in documents:
        try:
            response = service.request("POST", f"runs/{quoted(run_id)}/tasks", each.text, kind=SARIF)
        except Refused as error:
            raise Refused(error.status, error.code, f"{each.name}: {error}") from None
        tasks = response.read(Submission).tasks
        count += len(tasks)
        for finding, task in zip(each.findings, tasks, strict=True):
            spots.setdefault(task.id, finding.spot)
    if count > len(spots):
        same = "Note: results that duplicate others at the same place, and are stored once"
        note(f"{same}: {count - len(spots):,}.")
    return spots


# ---------------------------------------------------------------------------
# Commands
# ---------------------------------------------------------------------------

gate_options = combined(
    click.option("--fail-on", type=click.Choice(BARS), default="high", help="Lowest severity that fails the run."),
    click.option(
        "--only",
        type=click.Choice(["new", "all"]),
        default="new",
        help="Judge only the findings that the baseline did not report, or all.",
    ),
    click.option(
        "--without-baseline",
        type=click.Choice(["pass", "fail"]),
        default="fail",
        help="If there is no baseline: let the run pass, or judge all its findings as new.",
    ),
)


def read_options(context: click.Context, _: click.Parameter, name: str | None) -> Config:
    """Read the configuration file, and use it for the defaults of other options."""
    with exit_codes():
        config = read_config(name)
        if config.lines and name is None:  # not empty if a file was read
            note("Note: findings.toml is used.")
    context.default_map = config.defaults
    return config


config_options = combined(
    click.option(
        "--config",
        is_eager=True,  # it sets the defaults of other options
        callback=read_options,
        metavar="FILE",
        help="Configuration file (TOML); options take precedence. [default: findings.toml, if it exists]",
    ),
    click.option(
        "--severity",
        "severities",
        multiple=True,
        metavar="PREFIX=LEVEL",
        help="Severity of the rules whose ids begin with PREFIX; the longest prefix decides.",
    ),
    click.option(
        "--exclude",
        "patterns",
        multiple=True,
        metavar="PATTERN",
        help="Leave out findings in paths that match this .gitignore pattern.",
    ),
    click.option("--explain", is_flag=True, help="Print what decided the severity or exclusion of each finding."),
)


def format_option(*forms: str) -> Callable[[Any], Any]:
    """Return the option `--format`, whose default is the first of the formats."""
    return click.option("--format", "form", type=click.Choice(forms), default=forms[0], help="Output format.")


def filter_option(name: str, schema: Mapping[str, Any], components: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return the option for a query parameter of a list; the service validates its value."""
    kind = next(part for part in schema.get("anyOf", [schema]) if part.get("type") != "null")
    meaning = kind.get("description") or description_of(ExportQuery, name)
    option = regex.sub(r"(?=[A-Z])", "-", name).lower()
    if kind.get("type") == "boolean":
        opposite = "branches-only" if option == "main-line" else f"no-{option}"
        return click.option(f"--{option}/--{opposite}", name, default=None, help=meaning)
    value = kind.get("items", kind)
    values = components.get(value.get("$ref", "").rpartition("/")[2], value).get("enum")
    shown = f"[{'|'.join(values)}]" if values else "TEXT"
    return click.option(f"--{option}", name, multiple="items" in kind, metavar=shown, help=meaning)


def filter_options(command: Any) -> Any:
    """Add the filters of the service's list of tasks to a command, as options."""
    _, components = schemas_of([ExportQuery])
    fields = components[ExportQuery.__name__]["properties"]
    names = [name for name in fields if name not in ("after", "limit")]
    return combined(*(filter_option(name, fields[name], components) for name in names))(command)


def report_gates(service: Client, runs: Iterable[Judged], bar: Bar, form: str) -> NoReturn:
    """Print the reports of runs, and exit with 0 if all pass, else 1."""
    reports = [report_of(service, each, bar) for each in runs]
    write_reports(service, reports, form, bar.only)
    sys.exit(0 if passed(reports) else 1)


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--type",
    "project_type",
    help="Project type of all results; registered if new. [default: one for each tool, by its name]",
)
@click.option("--target", help="Repository or site; part of a finding's identity. [default: from the CI platform]")
@click.option("--branch", help="Branch; '' is the main line. [default: from the CI platform, else the main line]")
@gate_options
@format_option("table", "json", "markdown", "github", "gitlab", "sarif")
@click.option("--resolve-missing", is_flag=True, help="Resolve findings that are no longer reported.")
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="Checkout, for relative paths and for code that is missing in results.",
)
@click.option(
    "--base",
    metavar="COMMIT",
    help="Use the main line's newest run of this commit or an ancestor (in git in --source) as the baseline.",
)
@click.option("--ours", is_flag=True, help="Trust the external ids and tasks that `export` wrote into SARIF.")
@click.option(
    "--source-url",
    metavar="PATTERN",
    help="URL of a source line, with {path}, {line}, {commit} and {repository}. [default: by the host]",
)
@config_options
@service_options
def scan(
    files: Sequence[str],
    project_type: str | None,
    target: str | None,
    branch: str | None,
    form: str,
    resolve_missing: bool,
    source: str | None,
    source_url: str | None,
    base: str | None,
    ours: bool,
    config: Config,
    severities: Sequence[str],
    patterns: Sequence[str],
    explain: bool,
    url: str,
    db: str,
    **by: str,
) -> None:
    """Report scanners' findings, and judge them.

    The files are SARIF or in a known format of a scanner; "**/*.sarif" is all such files below the current folder.
    Exit codes: 0 passed, 1 not passed, 2 invalid input, 3 any other error.
    """
    with exit_codes():
        config = config.with_options(severities, patterns)
        context = scan_context(branch, target, source_url)
        files, folder = files_of(files), Path(source or ".")
        if context.proposed:
            require_out_of_reach(files, "" if url else db, folder)
        read = partial(read_documents, files, source, ours=ours)
        parts = read_parts(config, read(), project_type, explain=explain, has_source=bool(source))
        spots = [each.spot for part in parts for document in part.documents for each in document.findings]
        note_absolute_paths(spots)
        with service_at(url, db, new=True) as service:
            known = {part.project_type: main_line_runs(service, part.project_type, context.target) for part in parts}
            chosen = chosen_runs(known, base, folder) if base else {}
            unnamed = [runs for name, runs in known.items() if runs and name not in chosen]
            compared = [*chosen.values(), *(whole_run(service, runs) for runs in unnamed)] if source else []
            renames = renames_since_runs(compared, folder)
            if any(spot.path in renames for spot in spots):
                parts = read_parts(config, read(renames=renames), project_type)
            for part in parts:
                register_type(service, part)
            runs = report_in_runs(service, parts, context, Bar(**by), chosen, resolve_missing=resolve_missing)
            report_gates(service, runs, Bar(**by), form)


@click.command()
@click.argument("run")
@gate_options
@click.option("--baseline", metavar="RUN", help="Run to compare with. [default: the main line's last completed run]")
@format_option("table", "json", "markdown")
@service_options
def gate(run: str, baseline: str | None, form: str, url: str, db: str, **by: str) -> None:
    """Judge a run again. Exit codes: 0 passed, 1 not passed, 2 invalid input, 3 any other error."""
    with exit_codes(), service_at(url, db) as service:
        report_gates(service, [Judged(run, baseline)], Bar(**by), form)


EXPORTS = {"sarif": sarif_pages, "csv": csv_pages, "json": json_pages}


@click.command()
@format_option(*EXPORTS)
@filter_options
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of tasks. [default: no limit]")
@service_options
def export(form: str, limit: int | None, url: str, db: str, **filters: Any) -> None:
    """Write all findings that match the filters to standard output."""
    with exit_codes(), service_at(url, db) as service:
        write(EXPORTS[form](service, filters, limit))


def register() -> None:
    """Register the commands."""
    for command in (scan, gate, export):
        main.add_command(command)
