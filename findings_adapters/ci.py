"""The service in a CI job: `scan` reports what scanners found, `gate` judges a run, `export` writes findings.

The commands speak the service's API alone, to a database file or to a service at a URL. Annotations are GitHub's
workflow commands (https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands).

Exit codes: 0 passed, 1 the gate did not let it pass, 2 wrong usage or input, 3 anything else that went wrong.
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
    OUR_MARKS,
    RENAMES,
    TEXTS,
    Config,
    Decider,
    Prepared,
    Scanned,
    Spot,
    ToolCategory,
    Upload,
    add_marks,
    count_missing,
    prepare,
    read_config,
    remove_marks,
    text_in,
)
from findings_adapters.terminal import BadInput, exit_codes, note, visible, write
from findings_client import (
    Client,
    Refused,
    Reply,
    RunSession,
    in_json,
    query_of,
    quoted,
)
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
# Where a scan takes place: what its options say, else the platform's variables
# ---------------------------------------------------------------------------

SAY_BRANCH = "; say --branch NAME, or --branch '' for the main line"


def place_given(branch: str | None, target: str | None, source_url: str | None) -> ScanContext:
    """Return where a scan takes place, by its options first; "" there says the main line, or no target.

    :raises BadInput: if the platform does not name the branch, or a pattern is not a URL.
    """
    place = place_of(os.environ)
    if source_url:
        _, pattern, meant = TEXTS["source-url"]
        if not regex.match(pattern, source_url):
            raise BadInput(f"--source-url {source_url}: say {meant}")
        place.metadata["sourceUrl"] = source_url
    if branch is not None:
        place.branch, place.unknown = branch or None, ""
    elif place.branch == "":
        raise BadInput(f"the platform's variables do not name the branch{SAY_BRANCH}")
    if place.unknown:
        taken = "the main line" if place.branch is None else f"branch {place.branch}"
        note(f"Note: {place.unknown}: this is taken for {taken}{SAY_BRANCH}.")
    if target is not None:
        place.target = target or None
    elif place.target and not (regex.match(HTTP_URL, place.target) and len(place.target) <= 2048):
        note(f"Note: {place.target} is no http or https URL, and so no target; say --target URL.")
        place.target = None
    return place


# ---------------------------------------------------------------------------
# What a report tells: the run, the verdict, and the findings
# ---------------------------------------------------------------------------


Spots = Mapping[str, Spot]  # by the id of the task
Filters = Mapping[str, Any]


class ShownFinding(Struct):
    """A finding to show, and where it is, as far as that is known."""

    task: TaskHead
    is_new: bool
    spot: Spot

    @property
    def shown_place(self) -> str:
        """Where it is, as one text."""
        return str(self.spot) or self.task.location or ""

    def order(self) -> tuple[int, bool, str, int]:
        """Return where it stands among others: the worst first, then by its place, without one at the end."""
        place = self.spot.path or self.task.location or ""
        return SEVERITIES.index(self.task.severity), not place, place, self.spot.line or 0


def finding_at(spots: Spots, task: TaskHead, *, is_new: bool = False) -> ShownFinding:
    """Return a task as a finding where the document that was scanned has it: the main line's place may be another."""
    spot = spots.get(task.id, Spot())
    if not spot.path and (line := regex.fullmatch(r"(.+):([0-9]{1,9})", task.location or "")):
        spot = Spot(line[1], int(line[2]))
    return ShownFinding(task, is_new, spot)


class Bar(Struct):
    """By what runs are judged: `gate_options`."""

    fail_on: str
    only: str
    without_baseline: str


class Judged(Struct):
    """A run to judge, the run to compare it with, where one is chosen, and where its findings are.

    `left_out` is how many findings its end resolved because their paths are left out.
    """

    run_id: str
    baseline: str | None = None
    spots: Spots = {}
    left_out: int = 0


class Report(Struct):
    """A run, the chosen baseline, the gate's verdict, what there is in figures, and the worst findings first."""

    run: Run
    baseline: str | None
    gate: Gate
    counts: str
    spots: Spots
    findings: list[ShownFinding]
    total: int

    @property
    def more(self) -> str:
        """How many findings are not shown, "" where all are."""
        rest = self.total - len(self.findings)
        return f"… and {rest} more" if rest > 0 else ""


def figures_of(run: Run, unbarred: Gate) -> str:
    """Count the findings of a run, by the gate's verdict without a lowest severity."""
    ignored, missing, resolved = unbarred.ignored, unbarred.missing, run.submitted.resolved
    told = f"{unbarred.offenders_total} new, {ignored.known} known, {ignored.dismissed} dismissed"
    told += f", {missing} not reported any more" if missing else ""
    return told + (f", {resolved} resolved, because not reported any more" if resolved else "")


SHOWN = 50  # findings in a report


def report_of(service: Client, judged: Judged, bar: Bar) -> Report:
    """Build the report of a run. New findings come first if the gate is about these alone."""
    path = f"runs/{quoted(judged.run_id)}"
    ask = partial(service.get, f"{path}/gate", baseline=judged.baseline or None)
    verdict = ask(fail_on=bar.fail_on, only=bar.only).read(Gate)
    unbarred = ask(fail_on="info", only="new").read(Gate)
    run = service.get(path).read(Run)
    is_first = verdict.baseline is None and run.status == "completed"
    if is_first and bar.without_baseline == "pass" and not verdict.pass_:
        verdict.pass_ = True
        passes = "passed all the same without a baseline, by --without-baseline pass"
        verdict.reason = f"{verdict.reason.removesuffix('.')}; {passes}."
    listed, new = worst_of(service, run), {each.id: each for each in unbarred.offenders}
    shown = (new if bar.only == "new" else {}) | {each.id: each for each in listed.tasks}
    found = [finding_at(judged.spots, each, is_new=each.id in new) for each in shown.values()]
    found = sorted(found[:SHOWN], key=ShownFinding.order)
    counts = figures_of(run, unbarred)
    return Report(run, judged.baseline, verdict, counts, judged.spots, found, listed.total)


def standing_in(run: Run) -> Filters:
    """Return the filters for the findings of a run that are not dismissed."""
    return {"run_id": run.id, "status": blocking_statuses(run.branch)}


def worst_of(service: Client, run: Run, **filters: Any) -> TaskPage:
    """Return the worst findings of a run that nobody has set aside, of those that filters leave."""
    return service.get("tasks", **standing_in(run), sort="severity", limit=SHOWN, **filters).read(TaskPage)


# ---------------------------------------------------------------------------
# How it is told: stored text is anybody's, and may be made to look like something else
# ---------------------------------------------------------------------------

COLOURS = {"critical": "magenta", "high": "red", "medium": "yellow", "low": "cyan", "info": "blue"}
WIDEST_PLACE = 0.4  # of a line
CELL = 200  # characters of a cell in markdown: a comment may have 65,536
IN_MARKDOWN = regex.compile(r"[\\`*_{}\[\]<>()|~!#&:]|(?<=\bwww)\.", regex.IGNORECASE)  # that makes a link by itself
MENTION = regex.compile(r"[@#!$%~&](?=\w)|\bGH-(?=[0-9])", regex.IGNORECASE)


def wants_colour(env: Mapping[str, str]) -> bool:
    """Return whether standard output may be coloured (https://no-color.org)."""
    return sys.stdout.isatty() and not env.get("NO_COLOR") and env.get("TERM") != "dumb"


WIDTH = 160  # of a line that goes to a file or a log


def table(report: Report) -> Iterator[str]:
    """Give the lines of a report for people, in colour: the findings, how many there are, and the gate's sentence."""
    width = shutil.get_terminal_size((WIDTH, 0)).columns if sys.stdout.isatty() else WIDTH
    most = int(width * WIDEST_PLACE)
    places = [end_of(visible(each.shown_place), most) for each in report.findings]
    severities, widest = max(map(len, SEVERITIES)), max(map(len, places), default=0)
    for finding, place in zip(report.findings, places, strict=True):
        told = click.style(finding.task.severity.ljust(severities), fg=COLOURS[finding.task.severity])
        new = click.style("new", bold=True) if finding.is_new else "   "
        title = truncate(visible(finding.task.title), width - severities - widest - 9)
        yield f"{told}  {new}  {place.ljust(widest)}  {title}".rstrip()
    if report.more:
        yield report.more
    yield report.counts
    yield click.style(visible(report.gate.reason), fg="green" if report.gate.pass_ else "red", bold=True)


def in_markdown(text: str) -> str:
    """Return text of anybody's as text in markdown: no markup, no cell of its own, and nobody is called by it."""
    line = truncate(visible(text), CELL)
    return IN_MARKDOWN.sub(r"\\\g<0>", MENTION.sub("\\g<0>\u200b", line))


def markdown(report: Report) -> Iterator[str]:
    """Yield the lines of a pull request's comment: new findings, and known ones folded."""
    yield f"**{'Passed' if report.gate.pass_ else 'Not passed'}**: {in_markdown(report.gate.reason)}"
    yield from markdown_table([each for each in report.findings if each.is_new])
    yield from ("", "; ".join(filter(None, (report.more, f"{report.counts}."))))
    if known := [each for each in report.findings if not each.is_new]:
        yield from ("", f"<details><summary>Known: {len(known)}</summary>", *markdown_table(known), "", "</details>")


def markdown_table(findings: Sequence[ShownFinding]) -> Iterator[str]:
    """Yield the lines of a table, or nothing for no rows."""
    if findings:
        yield from ("", "| Severity | Finding | Place |", "|---|---|---|")
    for each in findings:
        yield f"| {each.task.severity} | {in_markdown(each.task.title)} | {in_markdown(each.shown_place)} |"


def command_text(text: str) -> str:
    """Return a text as the message of a workflow command: one line, which cannot begin another one."""
    return visible(text).replace("%", "%25")


ANNOTATIONS = {"error": ("critical", "high"), "warning": ("medium",), "notice": ("low", "info")}
MOST_ANNOTATIONS = 10  # that GitHub shows of each level of a step


def annotation(kind: str, finding: ShownFinding) -> str:
    """Return the workflow command that shows a finding at its place."""
    task, spot = finding.task, finding.spot
    in_line = spot.end_line in (None, spot.line)  # GitHub shows columns of one line only
    column, behind = (spot.column, spot.end_column) if in_line else (None, None)
    fields = {
        "file": spot.path,
        "line": spot.line,
        "endLine": spot.end_line if spot.line else None,
        "col": column,
        "endColumn": behind - 1 if column and behind and behind > column else None,  # SARIF has the one behind it
        "title": f"{task.severity}: {task.rule or 'finding'}",
    }
    listed = (
        f"{name}={command_text(str(value)).replace(':', '%3A').replace(',', '%2C')}"
        for name, value in fields.items()
        if value
    )
    elsewhere = f" ({task.location})" if task.location and not spot.path else ""  # on a page, say
    return f"::{kind} {','.join(listed)}::{command_text(f'{task.title}{elsewhere}')}"


def worst_judged(service: Client, report: Report, severities: Sequence[str], only: str) -> TaskPage:
    """Return the worst findings of some severities that the gate may judge."""
    if only != "new" or not report.baseline:
        return worst_of(service, report.run, severity=severities, new_in=report.run.id if only == "new" else None)
    # The filter of new findings compares with the default baseline, not with the chosen one.
    ask = partial(service.walk, "tasks", severity=severities, sort="severity")
    before, now = ask(run_id=report.baseline), ask(**standing_in(report.run))
    known = {each.id for page in before for each in page.read(TaskPage).tasks if each.rule != UNCHECKED}
    new = [each for page in now for each in page.read(TaskPage).tasks if each.id not in known]
    return TaskPage(None, SHOWN, len(new), None, new[:SHOWN])


def workflow_commands(service: Client, reports: Sequence[Report], only: str) -> Iterator[str]:
    """Give the workflow commands for the worst findings of all reports, and a line for those that GitHub would drop."""
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
        yield f"… and {more} more without an annotation: GitHub shows {MOST_ANNOTATIONS} of a level"


def workflow_lines(report: Report) -> Iterator[str]:
    """Give the lines of a report for a log of GitHub Actions, besides annotations."""
    yield report.counts
    yield visible(report.gate.reason)


def add_summary(lines: Iterable[str], path: str) -> None:
    """Add a report to the summary that GitHub shows of a job."""
    try:
        with Path(path).open("a", encoding="utf-8") as summary:
            summary.writelines(f"{line}\n" for line in (*lines, ""))
    except OSError as error:
        note(f"Note: the summary could not be written: {error}")


CODE_QUALITY = "gl-code-quality-report.json"
GRADES = dict(zip(SEVERITIES, ("blocker", "critical", "major", "minor", "info"), strict=True))


def write_code_quality(service: Client, reports: Sequence[Report]) -> None:
    """Write what runs reported in files, as GitLab reads it (https://docs.gitlab.com/ci/testing/code_quality/)."""
    found = [
        {
            "description": task.title,
            "check_name": task.rule or report.run.project_type,
            "fingerprint": task.external_id or task.id,
            "severity": GRADES[task.severity],
            "location": {"path": spot.path, "lines": {"begin": spot.line or 1}},
        }
        for report in reports
        for page in service.walk("tasks", **standing_in(report.run))
        for task in page.read(TaskPage).tasks
        if (spot := finding_at(report.spots, task).spot).path
    ]
    place = Path(f"{CODE_QUALITY}.new")  # renamed over what may be a link of the checkout
    place.unlink(missing_ok=True)
    place.write_bytes(msgspec.json.encode(found))
    place.replace(CODE_QUALITY)


def passed(reports: Iterable[Report]) -> bool:
    """Tell whether all runs pass."""
    return all(report.gate.pass_ for report in reports)


def together(reports: Sequence[Report], lines: Callable[[Report], Iterable[str]]) -> Iterator[str]:
    """Give the lines of all reports, where there are several each under its project type, and the verdict last."""
    if len(reports) == 1:
        yield from lines(reports[0])
        return
    title = "### {}\n" if lines is markdown else "{}:"
    for report in reports:
        yield from (title.format(report.run.project_type), *lines(report), "")
    failed = [report.run.project_type for report in reports if not report.gate.pass_]
    yield f"Not passed: {', '.join(failed)}." if failed else "Passed."


LINES = {"table": table, "markdown": markdown, "github": workflow_lines, "gitlab": table}


def tell(service: Client, reports: Sequence[Report], form: str, only: str) -> None:
    """Write reports in a form. With those for machines, the gate's sentences go to standard error."""
    if form == "github":
        write(f"{line}\n" for line in workflow_commands(service, reports, only))
        if path := os.environ.get("GITHUB_STEP_SUMMARY"):
            add_summary(together(reports, markdown), path)
    if form == "gitlab":
        write_code_quality(service, reports)
    if form in LINES:
        lines = (f"{line}\n" for line in together(reports, LINES[form]))
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
# Lists as documents: page by page, whatever their length
# ---------------------------------------------------------------------------

EXPORTED = 10_000  # tasks in a page that is a document of its own
NEXT = regex.compile(r'<([^<>]*)>;\s*rel="next"')


class Listed(Struct):
    """What is read of a page in JSON."""

    tasks: list[Raw]
    next: str | None


def pages(service: Client, filters: Filters, kind: str, limit: int | None) -> Iterator[Reply]:
    """Give the pages of a list in a form besides JSON, with so many tasks in all.

    :raises BadInput: when the service does not have the form.
    """
    sample = service.request("GET", f"tasks?{query_of(**filters, limit=1)}", accept=kind)  # a limit of all forms
    if not sample.headers.get("content-type", "").startswith(kind):
        raise BadInput(f"the service does not write {kind}: its module for that is not installed")
    link = f"tasks?{query_of(**filters, limit=EXPORTED)}"
    for left in range(limit or sys.maxsize, 0, -EXPORTED):
        link = regex.sub(r"(?<=[?&]limit=)[0-9]+", str(min(left, EXPORTED)), link)
        answer = service.request("GET", link, accept=kind)
        yield answer
        following = NEXT.search(answer.headers.get("link", ""))
        if not following:
            return
        link = following[1]


def sarif_pages(service: Client, filters: Filters, limit: int | None) -> Iterator[bytes]:
    """Give one SARIF document, with a run for each page."""
    for number, page in enumerate(pages(service, filters, SARIF, limit)):
        head = page.read(dict[str, Raw])
        runs = bytes(head.pop("runs"))
        yield b"," if number else msgspec.json.encode(head)[:-1] + b',"runs":['
        yield runs[1:-1]
    yield b"]}\n"


CSV = "text/csv"


def csv_pages(service: Client, filters: Filters, limit: int | None) -> Iterator[bytes]:
    """Give one table, with its titles once."""
    for number, page in enumerate(pages(service, filters, CSV, limit)):
        yield page.body.partition(b"\r\n")[2] if number else page.body


def json_pages(service: Client, filters: Filters, limit: int | None) -> Iterator[bytes]:
    """Give one array of whole tasks."""
    yield b"["
    listed = service.walk("tasks", **filters, view="full")
    tasks = (task for page in listed for task in page.read(Listed).tasks)
    for number, task in enumerate(itertools.islice(tasks, limit)):
        yield (b",\n" if number else b"\n") + bytes(task)
    yield b"\n]\n"


# ---------------------------------------------------------------------------
# What goes in
# ---------------------------------------------------------------------------


PATTERN = regex.compile(r"[*?\[]")


def files_of(names: Iterable[str]) -> list[str]:
    """Return the files that names and patterns such as `**/*.sarif` mean, each once; a folder of a dot is left out.

    :raises BadInput: for a pattern that matches no file.
    """
    files = dict[str, None]()
    for name in names:
        if not name:
            raise BadInput("the name of a file is empty: say where the scanner wrote")
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
            raise BadInput(f"{name} matches no file: did the scanner fail?")
        files |= dict.fromkeys(sorted(found))
    return [*files]


XML_DECLARATION = regex.compile(r"\A\s*<\?xml[^>]*\?>")  # it names an encoding


def read_document(name: str, most: int) -> bytes:
    """Return what a file of at most so many bytes holds. :raises BadInput: for what is no file, or is not like that."""
    try:
        path = Path(name)
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise BadInput(f"{name} is no regular file: have the scanner write to one, and name that")
        with path.open("rb") as file:
            text = file.read(most + 1)
    except OSError as error:
        raise BadInput(f"{name}: {error.strerror}") from None
    require_size(name, text, most)
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # as PowerShell's > writes it
        try:
            text = XML_DECLARATION.sub("", text.decode("utf-16")).encode()
        except UnicodeDecodeError:
            raise BadInput(f"{name} begins as UTF-16 and is broken: have the scanner write UTF-8") from None
    text = text.removeprefix(codecs.BOM_UTF8)
    if not text.strip():
        raise BadInput(f"{name} is empty: did the scanner fail?")
    return text


def require_size(name: str, text: bytes, most: int) -> None:
    """Check that a document is not too large for a service. :raises BadInput: when it is."""
    if len(text) > most:
        advice = "split it, or raise FINDINGS_MAX_SARIF, here and where the service runs"
        raise BadInput(f"{name} is over {most:,} bytes: {advice}")


LISTED_PROBLEMS = 3  # of a document


@contextmanager
def usable(name: str) -> Iterator[None]:
    """Turn the errors of reading a file into `BadInput` with the first reasons."""
    try:
        yield
    except ServiceError as error:
        problems = error.problems if isinstance(error, ValidationFailed) else ()
        reasons = "; ".join(f"{each.pointer}: {each.detail}".lstrip(": ") for each in problems[:LISTED_PROBLEMS])
        message = f"{name}: {reasons}".lstrip(": ") if reasons else f"{name} is not a SARIF document: {error}"
        raise BadInput(message) from None
    except RecursionError:
        raise BadInput(f"{name} is nested too deeply: have the scanner write less at once") from None
    except ValueError:  # msgspec and Python read all other JSON
        fault = "has a number such as 1e999, or one of thousands of digits"
        raise BadInput(f"{name} {fault}: leave it out, or write it as a text") from None


def read_documents(
    names: Sequence[str], source: str | None, *, ours: bool = False, renames: Mapping[str, str] = {}
) -> Iterator[Scanned]:
    """Yield files as SARIF, with paths below the checkout relative to it and its lines of code.

    :param source: the checkout; without it all is left as it is.
    :param ours: whether what this service writes alone counts in a file.
    :param renames: paths with those that the files had before.
    :raises BadInput: when one cannot be used.
    """
    load_modules()
    if missing := load_module("findings_adapters.sarif"):
        raise BadInput(f"SARIF cannot be read without {missing}")
    from findings_adapters import formats  # which needs what reads SARIF

    settings, tests, documents = Settings.read(), formats.Tests(), list[Scanned]()
    most = settings.max_sarif

    def read_again(document: Scanned) -> None:
        text = in_json(document.log, document.name)
        document.parsed, document.is_changed = formats.parse_any_weight(text, settings), True
        if document.parsed.problems:
            raise ValidationFailed(document.parsed.problems)

    for name in names:
        with usable(name):
            text, by_message = formats.as_sarif(name, read_document(name, most), source, most, tests, renames)
            parsed = formats.parse_any_weight(text, settings)
            document = Scanned(name, text, json.loads(text), parsed, by_message=by_message or 0)
            if by_message is None and remove_marks(document.log, *((RENAMES, FOLDER) if ours else (OUR_MARKS,))):
                read_again(document)
            elif parsed.problems:
                raise ValidationFailed(parsed.problems)
        documents.append(document)
    with usable(""):
        tests.require_some()
    changed = {*add_marks(documents, renames)}
    for document in documents:
        with usable(document.name):
            if document in changed:
                read_again(document)
            if formats.add_unchecked(document.log, document.parsed):
                read_again(document)
        yield document


LONGEST_TYPE = 100  # characters of a project type's name, and of its label


def types_of(origins: Iterable[ToolCategory]) -> dict[str, ToolCategory]:
    """Return the origins by their project types. :raises BadInput: if one has no type, or two have the same."""
    types = dict[str, ToolCategory]()
    for origin in origins:
        tool = " ".join(origin).strip()
        name = regex.sub(r"[^a-z0-9]+", "-", tool.lower()).strip("-")[:LONGEST_TYPE].rstrip("-")
        if not name:
            raise BadInput(f"the tool's name, {tool}, leaves no name for a project type; say --type NAME")
        if name in types:
            other = " ".join(types[name]).strip()
            raise BadInput(f"{other} and {tool} come to the same project type, {name}; say --type NAME")
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
    """Return the parts of a scan, each of which is sent in a run of its own.

    :param project_type: of all results together; without it, each tool and category has a run.
    :param explain: whether to print each decision; None prints nothing, because the caller has printed all before.
    :param has_source: whether `--source` is given already.
    :raises BadInput: if a document is too large, or has a number that cannot be written again.
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
    """Print what was decided about findings."""
    for line in decider.explained if explain else ():
        note(line)
    if decider.ready:
        tools = ", ".join(sorted(decider.ready))
        note(f"Note: a ready map says how severe the findings of {tools} are; --explain shows each.")
    if decider.misread:
        example = truncate(decider.misread[0], 40)
        note(f"Note: values of security-severity that mean nothing: {len(decider.misread):,}, such as {example}.")
    if decider.by_message:
        advice = "" if has_source else "; give --source with the checkout, so that their code counts instead"
        lack = "Results without fingerprint and code, which their messages identify"
        note(f"Note: {lack}: {decider.by_message:,}{advice}.")


ABSOLUTE_PATH = regex.compile(r"/|[A-Za-z]:/")


def note_absolute_paths(spots: Iterable[Spot]) -> None:
    """Note that findings are at absolute paths, if any are."""
    paths = [spot.path for spot in spots if ABSOLUTE_PATH.match(spot.path)]
    if paths:
        note(
            f"Note: absolute paths, such as {paths[0]} ({len(paths):,} in all), make other findings in another"
            " folder; say --source DIR for the one above them, or have the scanner write relative paths."
        )


def require_out_of_reach(files: Iterable[str], db: str, source: Path) -> None:
    """Check that the author of a pull request has written neither a report nor the database.

    :raises BadInput: when it may be so.
    """
    for name in files:
        if (tracked := is_tracked(Path(name))) is None:
            advice = "on a pull request git must say whether it tracks a report; install git, or repair the checkout"
            raise BadInput(f"{name} is in a checkout where git is not installed or fails: {advice}")
        if tracked:
            advice = "on a pull request its author wrote it, not a scanner; have scanners write to files outside of git"
            raise BadInput(f"{name} is tracked by git: {advice}")
    if not db or scheme_of(db):
        return
    place, folder = Path(db).resolve(), source.resolve()
    checkouts = (top_of(folder) or folder, top_of(place.parent))  # the source may be fetched without git
    if any(each in place.parents and ".git" not in place.relative_to(each).parts for each in checkouts if each):
        advice = "say --db with a path outside of the checkout, or below .git"
        raise BadInput(f"{db} is where a pull request can put a database of its author's: {advice}")


def register_type(service: Client, part: Prepared) -> None:
    """Register the project type of a part, unless it is there."""
    try:
        service.request("GET", f"project-types/{quoted(part.project_type)}")
    except Refused as error:
        if error.status != 404:
            raise
        service.request("POST", "project-types", {"name": part.project_type, "label": part.label})


def main_line_runs(service: Client, project_type: str, target: str | None) -> list[Run]:
    """Return the latest completed runs of the main line, newest first."""
    compared = {"main_line": True, "status": "completed", "limit": COMPARED}
    listed = service.get("runs", project_type=project_type, target_url=target, **compared).read(RunPage)
    return [run for run in listed.runs if run.target_url == target]


COMPARED = 50  # runs of the main line, among which that of a commit is looked for


def commit_of(run: Run) -> str:
    """Return the commit that a run says it is of, "" for none."""
    return text_in(msgspec.json.decode(run.metadata), "commit")


def chosen_runs(known: Mapping[str, Sequence[Run]], base: str, folder: Path) -> dict[str, Run]:
    """Return of each project type's runs the newest one of a commit, or of one before it."""
    chosen, commit = dict[str, Run](), find_commit(folder, base) or base
    for name, runs in known.items():
        if run := next((run for run in runs if is_before(folder, commit_of(run), commit)), None):
            chosen[name] = run
        elif runs:
            note(f"Note: no run of {name} is of commit {base} or one before it; the latest one is the baseline.")
    return chosen


def whole_run(service: Client, runs: Sequence[Run]) -> Run:
    """Return the newest run that is not partial, which is the gate's baseline, else the newest one."""
    for run in runs[:BASELINES]:
        listed = service.get("tasks", run_id=[run.id], rule=[UNCHECKED], limit=1).read(TaskPage)
        if not listed.total:
            return run
    return runs[0]


def renames_since_runs(runs: Iterable[Run], folder: Path) -> dict[str, str]:
    """Return the files that were renamed since the commits of some runs, with their earlier paths."""
    renames = dict[str, str]()
    for commit in dict.fromkeys(filter(None, map(commit_of, runs))):
        found = renames_since(folder, commit)
        if found is None:
            note(f"Note: git does not have the baseline's commit {commit}, so that renamed files are not followed.")
        renames |= found or {}
    return renames


def report_in_runs(
    service: Client,
    parts: Sequence[Prepared],
    place: ScanContext,
    bar: Bar,
    baselines: Mapping[str, Run],
    *,
    resolve_missing: bool,
) -> list[Judged]:
    """Report the parts of a scan in runs and return these.

    Whatever goes wrong leaves failed, with the reason, what is not completed by then; they are completed at the end.

    :param baselines: those that are chosen, by the project types.
    """
    with ExitStack() as open_runs:
        runs = list[Judged]()
        for part in parts:
            baseline = baselines[part.project_type].id if part.project_type in baselines else None
            metadata = place.metadata | ({} if "repository" in place.metadata else part.source)
            start = {"projectType": part.project_type, "targetUrl": place.target, "branch": place.branch}
            judged = {"failOn": bar.fail_on, "only": bar.only, "baseline": baseline}
            session = RunSession(service, start | {"metadata": metadata}, resolve_missing=resolve_missing, gate=judged)
            runs.append(Judged(open_runs.enter_context(session).id, baseline))
        reported = [*zip(parts, runs, strict=True)]
        for part, run in reported:
            run.spots = submit(service, run.run_id, part.documents)
            if resolve_missing:
                run.left_out = count_missing(service, run.run_id, place.branch, part.left_out)
    for part, run in reported:
        if run.left_out:
            note(f"Findings of {part.project_type} resolved because their paths are left out: {run.left_out:,}.")
        if part.is_partial:
            where = "findings of rule not-checked name the places, where nothing is resolved"
            note(f"{part.project_type} did not check everything: {where}; nothing at all if one names none.")
        where = f"{place.target or 'no target'}, {place.branch or 'main line'}"
        note(f"Run {run.run_id} of {part.project_type}, {where}.")
    return runs


def submit(service: Client, run_id: str, documents: Iterable[Upload]) -> Spots:
    """Submit documents, and return where they have their findings."""
    spots, count = dict[str, Spot](), 0
    for each in documents:
        try:
            answer = service.request("POST", f"runs/{quoted(run_id)}/tasks", each.text, kind=SARIF)
        except Refused as error:
            raise Refused(error.status, error.code, f"{each.name}: {error}") from None
        tasks = answer.read(Submission).tasks
        count += len(tasks)
        for finding, task in zip(each.findings, tasks, strict=True):
            spots.setdefault(task.id, finding.spot)
    if count > len(spots):
        same = "Note: results that are the same as others at the same place, and are stored once"
        note(f"{same}: {count - len(spots):,}.")
    return spots


# ---------------------------------------------------------------------------
# Commands
# ---------------------------------------------------------------------------


gate_options = combined(
    click.option("--fail-on", type=click.Choice(BARS), default="high", help="The least severity that fails."),
    click.option(
        "--only",
        type=click.Choice(["new", "all"]),
        default="new",
        help="Judge what the main line's last completed run did not report, or everything.",
    ),
    click.option(
        "--without-baseline",
        type=click.Choice(["pass", "fail"]),
        default="fail",
        help="Let a run pass that has no baseline, or judge all that it reported as new.",
    ),
)


def read_options(context: click.Context, _: click.Parameter, name: str | None) -> Config:
    """Return what a configuration file says, and have it stand for the options that are not given."""
    with exit_codes():
        config = read_config(name)
        if config.lines and name is None:  # only a file has lines
            note("Note: findings.toml is used.")
    context.default_map = config.defaults
    return config


config_options = combined(
    click.option(
        "--config",
        is_eager=True,  # other options have their defaults from it
        callback=read_options,
        metavar="FILE",
        help="What holds for each scan, in TOML; options go before it. [default: findings.toml, if it is here]",
    ),
    click.option(
        "--severity",
        "severities",
        multiple=True,
        metavar="PREFIX=LEVEL",
        help="The severity of the rules whose ids begin so; the longest beginning decides.",
    ),
    click.option(
        "--exclude",
        "patterns",
        multiple=True,
        metavar="PATTERN",
        help="Leave out findings in such paths, as a .gitignore would.",
    ),
    click.option("--explain", is_flag=True, help="Say of each finding what decided how severe it is."),
)


def format_option(*forms: str) -> Callable[[Any], Any]:
    """Return the option for the form of what is written, the first one unless another is given."""
    return click.option("--format", "form", type=click.Choice(forms), default=forms[0], help="What to write.")


def filter_option(name: str, schema: Mapping[str, Any], components: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return the option for one of a list's query parameters; what is wrong with its value the service says."""
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
    """Put the filters of the list of tasks, as the service has them, on a command."""
    _, components = schemas_of([ExportQuery])
    fields = components[ExportQuery.__name__]["properties"]
    names = [name for name in fields if name not in ("after", "limit")]
    return combined(*(filter_option(name, fields[name], components) for name in names))(command)


def report_gates(service: Client, runs: Iterable[Judged], bar: Bar, form: str) -> NoReturn:
    """Print the runs and exit with the code of the gate's verdicts."""
    reports = [report_of(service, each, bar) for each in runs]
    tell(service, reports, form, bar.only)
    sys.exit(0 if passed(reports) else 1)


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--type",
    "project_type",
    help="The project type of all results; registered if new. [default: one for each tool, by its name]",
)
@click.option("--target", help="The repository or site, part of a finding's identity. [default: the CI platform's]")
@click.option("--branch", help="The branch; '' is the main line. [default: the CI platform's, else the main line]")
@gate_options
@format_option("table", "json", "markdown", "github", "gitlab", "sarif")
@click.option("--resolve-missing", is_flag=True, help="Resolve what is not reported any more.")
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="The checkout, for relative paths and the lines that a result lacks.",
)
@click.option(
    "--base",
    metavar="COMMIT",
    help="Judge by the main line's run of this commit, or the last one before it, as git in --source knows it.",
)
@click.option("--ours", is_flag=True, help="Believe the external ids and tasks that `export` wrote into SARIF.")
@click.option(
    "--source-url",
    metavar="PATTERN",
    help="Where the page finds a line: a URL with {path}, {line}, {commit} and {repository}. [default: by the host]",
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
    """Report what scanners found, and judge it.

    The files are SARIF, or in a known format of a scanner's own; "**/*.sarif" is all below this folder. Exit code 0:
    passed, 1: not, 2: bad input, 3: other.
    """
    with exit_codes():
        config = config.with_options(severities, patterns)
        place = place_given(branch, target, source_url)
        files, folder = files_of(files), Path(source or ".")
        if place.proposed:
            require_out_of_reach(files, "" if url else db, folder)
        read = partial(read_documents, files, source, ours=ours)
        parts = read_parts(config, read(), project_type, explain=explain, has_source=bool(source))
        spots = [each.spot for part in parts for document in part.documents for each in document.findings]
        note_absolute_paths(spots)
        with service_at(url, db, new=True) as service:
            known = {part.project_type: main_line_runs(service, part.project_type, place.target) for part in parts}
            chosen = chosen_runs(known, base, folder) if base else {}
            unnamed = [runs for name, runs in known.items() if runs and name not in chosen]
            compared = [*chosen.values(), *(whole_run(service, runs) for runs in unnamed)] if source else []
            renames = renames_since_runs(compared, folder)
            if any(spot.path in renames for spot in spots):
                parts = read_parts(config, read(renames=renames), project_type)
            for part in parts:
                register_type(service, part)
            runs = report_in_runs(service, parts, place, Bar(**by), chosen, resolve_missing=resolve_missing)
            report_gates(service, runs, Bar(**by), form)


@click.command()
@click.argument("run")
@gate_options
@click.option("--baseline", metavar="RUN", help="Another run to judge by than the main line's last completed one.")
@format_option("table", "json", "markdown")
@service_options
def gate(run: str, baseline: str | None, form: str, url: str, db: str, **by: str) -> None:
    """Judge a run again, or by another bar. Exit code 0: passed, 1: not, 2: bad input, 3: anything else."""
    with exit_codes(), service_at(url, db) as service:
        report_gates(service, [Judged(run, baseline)], Bar(**by), form)


EXPORTS = {"sarif": sarif_pages, "csv": csv_pages, "json": json_pages}


@click.command()
@format_option(*EXPORTS)
@filter_options
@click.option("--limit", type=click.IntRange(min=1), help="Tasks in all. [default: no limit]")
@service_options
def export(form: str, limit: int | None, url: str, db: str, **filters: Any) -> None:
    """Write findings to standard output, all that the filters leave."""
    with exit_codes(), service_at(url, db) as service:
        write(EXPORTS[form](service, filters, limit))


def register() -> None:
    """Add the commands."""
    for command in (scan, gate, export):
        main.add_command(command)
