"""The service in a CI job: `scan` reports what scanners found, `gate` judges a run, `export` writes findings.

The commands speak the service's API alone, to a database file or to a service at a URL. Which branch a scan is of, and
the main line, they read from the variables of GitHub Actions
(https://docs.github.com/en/actions/reference/workflows-and-actions/variables) and GitLab CI
(https://docs.gitlab.com/ci/variables/predefined_variables/). Annotations are GitHub's workflow commands
(https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands).

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
from functools import partial, reduce
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec
import regex
from msgspec import Raw, Struct

import findings_service as heart
from findings_adapters.client import (
    Answer,
    Refused,
    RunSession,
    Service,
    Stopped,
    Unavailable,
    combined,
    query_of,
    quoted,
    service_at,
    service_options,
    stoppable,
)
from findings_adapters.marks import end_of
from findings_adapters.scan_config import (
    BARS,
    TEXTS,
    Config,
    Decider,
    Prepared,
    Scanned,
    Spot,
    count_missing,
    member,
    prepare,
    read_config,
)
from findings_features.exports import ExportQuery
from findings_features.gate import Gate, blocking_statuses

SARIF = "application/sarif+json"
SEVERITIES = heart.SEVERITIES

# ---------------------------------------------------------------------------
# How a command ends
# ---------------------------------------------------------------------------

BAD_INPUT = (400, 404, 413, 415, 422)  # what the caller can mend


def visible(text: str) -> str:
    """Return text as one line in which nothing is obeyed: control characters, also those that turn the direction of
    writing, are shown as escapes, and GitHub's older form of workflow commands, which counts anywhere, is broken up.
    """
    line = " ".join(text.split())
    shown = "".join(sign if sign.isprintable() else sign.encode("unicode-escape").decode() for sign in line)
    return shown.replace("##[", "##\\[")


class Failed(click.ClickException):
    """Failure of a command whose input was valid."""

    exit_code = 3

    def __init__(self, message: str) -> None:
        super().__init__(visible(message))


class BadInput(Failed):
    """Wrong usage or input."""

    exit_code = 2


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn all that can go wrong into one line, and into an exit code that no gate gives."""
    try:
        with stoppable():
            yield
    except click.ClickException:
        raise
    except heart.ConfigurationError as error:
        raise BadInput(str(error)) from None
    except Refused as error:
        raise (BadInput if error.status in BAD_INPUT else Failed)(str(error)) from None
    except (Unavailable, heart.DatabaseUnusable, Stopped, OSError, *heart.ENGINE_ERRORS) as error:
        raise Failed(str(error)) from None
    except Exception as error:  # a bug, which must not look as if the gate had spoken
        raise Failed(f"{type(error).__name__}: {error}") from error


def write(pieces: Iterable[str | bytes]) -> None:
    """Write to standard output: text as it is, for it is `visible`, and bytes, on a terminal, so that it obeys nothing.

    Who stops reading it there, or never did, does not change how a command ends.
    """
    escaped = sys.stdout.isatty()
    try:
        for piece in pieces:
            if escaped and isinstance(piece, bytes):
                piece = heart.for_terminal(piece.decode())
            sys.stdout.buffer.write(piece if isinstance(piece, bytes) else piece.encode())
        sys.stdout.flush()
    except BrokenPipeError:
        return
    except OSError as error:
        raise Failed(f"standard output: {error.strerror}") from None


def note(text: str) -> None:
    """Tell people something that is no result."""
    click.echo(visible(text), err=True)


# ---------------------------------------------------------------------------
# Where a scan takes place: what the platform's variables say
# ---------------------------------------------------------------------------

LONGEST_BRANCH = 255


class Place(Struct):
    """The branch that is scanned (None: the main line), its repository, and other metadata of a run.

    `unknown` is the reason why a branch is a guess.
    """

    branch: str | None = None
    target: str | None = None
    unknown: str = ""
    metadata: dict[str, Any] = {}


Event = Mapping[str, Any]  # what GitHub tells of what started a workflow


def read_event(path: str) -> Event:
    """Return the event of a file; one that cannot be read tells nothing."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=dict[str, Any])
    except (OSError, ValueError, RecursionError):
        return {}


def text_in(event: Event, *path: str) -> str:
    """Return the text that stands at a path, "" where none does."""
    *above, name = path
    value = reduce(member, above, event).get(name)
    return value if isinstance(value, str) else ""


def github_branch(env: Mapping[str, str], event: Event) -> tuple[str | None, str]:
    """Return the branch of a workflow (None: the main line), and why that is a guess, if it is one.

    Only what is known to run on the default branch's own code is of the main line: a comment on a pull request, or
    the end of another workflow, starts one there for code that comes from anywhere.
    """
    name, kind = env.get("GITHUB_REF_NAME", ""), env.get("GITHUB_EVENT_NAME", "")
    if kind == "schedule":
        return None, ""  # one runs on the default branch alone
    if kind.startswith("pull_request") or env.get("GITHUB_HEAD_REF"):
        return pull_request_branch(env, event) or name, ""
    if kind == "workflow_run":
        return workflow_run_branch(event)
    issue = member(event, "issue")
    if issue.get("pull_request") is not None:
        return f"pull/{issue.get('number')}", ""
    if env.get("GITHUB_REF_TYPE") == "tag":
        return name, ""
    default = text_in(event, "repository", "default_branch")
    if not default:
        return name, "GitHub's event does not tell which branch is the default one"
    return (None if name == default else name), ""


def pull_request_branch(env: Mapping[str, str], event: Event) -> str:
    """Return the name of a pull request's branch, with its owner's where that is a fork's."""
    head = text_in(event, "pull_request", "head", "ref") or env.get("GITHUB_HEAD_REF", "")
    home = text_in(event, "repository", "full_name") or env.get("GITHUB_REPOSITORY", "")
    if (
        member(event, "pull_request").get("head")
        and text_in(event, "pull_request", "head", "repo", "full_name") != home
    ):
        return text_in(event, "pull_request", "head", "label") or f"fork:{head}"
    return head


def workflow_run_branch(event: Event) -> tuple[str | None, str]:
    """Return the branch of the workflow whose end started this one: the code that it was about."""
    started = partial(text_in, event, "workflow_run")
    branch, owner = started("head_branch"), started("head_repository", "owner", "login")
    if started("head_repository", "full_name") != text_in(event, "repository", "full_name"):
        return f"{owner or 'fork'}:{branch}", ""
    own = started("event") in ("push", "schedule", "workflow_dispatch")
    default = text_in(event, "repository", "default_branch")
    return (None if own and branch and branch == default else branch), ""


def github_place(env: Mapping[str, str]) -> Place:
    """Return where a workflow of GitHub Actions runs."""
    event = read_event(env.get("GITHUB_EVENT_PATH", ""))
    branch, unknown = github_branch(env, event)
    repository, run = env.get("GITHUB_REPOSITORY"), env.get("GITHUB_RUN_ID")
    target = f"{env.get('GITHUB_SERVER_URL', 'https://github.com')}/{repository}" if repository else None
    pipeline = f"{target}/actions/runs/{run}" if target and run else None
    told = {"commit": env.get("GITHUB_SHA"), "pipeline": pipeline, "actor": env.get("GITHUB_ACTOR")}
    return Place(branch, target, unknown, {"repository": target, **told})


def gitlab_branch(env: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the branch of a pipeline (None: the main line), and why that is a guess, if it is one."""
    source = env.get("CI_MERGE_REQUEST_SOURCE_BRANCH_NAME")
    if source:
        project = env.get("CI_MERGE_REQUEST_SOURCE_PROJECT_ID")
        if project and project != env.get("CI_PROJECT_ID"):
            return f"{env.get('CI_MERGE_REQUEST_SOURCE_PROJECT_PATH') or project}:{source}", ""
        return source, ""
    aside = env.get("CI_EXTERNAL_PULL_REQUEST_SOURCE_BRANCH_NAME") or env.get("CI_COMMIT_TAG")
    branch, default = env.get("CI_COMMIT_BRANCH"), env.get("CI_DEFAULT_BRANCH")
    if aside or not branch:
        return aside or env.get("CI_COMMIT_REF_NAME", ""), ""
    if not default:
        return branch, "CI_DEFAULT_BRANCH is not set"
    return (None if branch == default else branch), ""


def gitlab_place(env: Mapping[str, str]) -> Place:
    """Return where a job of GitLab CI runs."""
    branch, unknown = gitlab_branch(env)
    target, commit, actor = env.get("CI_PROJECT_URL"), env.get("CI_COMMIT_SHA"), env.get("GITLAB_USER_LOGIN")
    told = {"commit": commit, "pipeline": env.get("CI_PIPELINE_URL"), "actor": actor}
    return Place(branch, target, unknown, {"repository": target, **told})


def place_of(env: Mapping[str, str]) -> Place:
    """Return where a scan takes place; without a platform that is known, it is of the main line and of no target."""
    place = Place()
    if env.get("GITHUB_ACTIONS") or env.get("GITHUB_EVENT_NAME"):
        place = github_place(env)
    elif env.get("GITLAB_CI") or env.get("CI_PROJECT_ID") or env.get("CI_PROJECT_URL"):
        place = gitlab_place(env)
    elif env.get("CI"):
        place.unknown = "this CI platform is not known"
    if place.branch is not None:  # as the service takes it
        place.branch = regex.sub(f"[{heart.CONTROLS}]", "", place.branch)[:LONGEST_BRANCH]
    place.metadata = {name: told for name, told in place.metadata.items() if told}
    return place


SAY_BRANCH = "; say --branch NAME, or --branch '' for the main line"


def place_given(branch: str | None, target: str | None) -> Place:
    """Return where a scan takes place, by its options first; "" there says the main line, or no target.

    :raises BadInput: where the platform has a branch, and does not tell its name.
    """
    place = place_of(os.environ)
    if branch is not None:
        place.branch, place.unknown = branch or None, ""
    elif place.branch == "":
        raise BadInput(f"the platform's variables do not name the branch{SAY_BRANCH}")
    if place.unknown:
        taken = "the main line" if place.branch is None else f"branch {place.branch}"
        note(f"Note: {place.unknown}: this is taken for {taken}{SAY_BRANCH}.")
    if target is not None:
        place.target = target or None
    elif place.target and not (regex.match(heart.HTTP_URL, place.target) and len(place.target) <= 2048):
        note(f"Note: {place.target} is no http or https URL, and so no target; say --target URL.")
        place.target = None
    return place


# ---------------------------------------------------------------------------
# What a report tells: the run, the verdict, and the findings
# ---------------------------------------------------------------------------


Spots = Mapping[str, Spot]  # by external id


class Finding(Struct):
    """A finding to show, and where it is, as far as that is known."""

    task: heart.TaskHead
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


def finding_at(spots: Spots, task: heart.TaskHead, *, is_new: bool = False) -> Finding:
    """Return a task as a finding where the document that was scanned has it: the main line's place may be another."""
    spot = spots.get(task.external_id or "", Spot())
    if not spot.path and (line := regex.fullmatch(r"(.+):([0-9]{1,9})", task.location or "")):
        spot = Spot(line[1], int(line[2]))
    return Finding(task, is_new, spot)


class Bar(Struct):
    """By what a run is judged."""

    fail_on: str
    only: str
    without_baseline: str
    baseline: str | None = None


class Report(Struct):
    """A run, the gate's verdict on it, the same without any bar, and the findings to show, the worst ones first."""

    run: heart.Run
    gate: Gate
    unbarred: Gate
    spots: Spots
    findings: list[Finding]
    total: int

    @property
    def counts(self) -> str:
        """What there is, in figures."""
        ignored, missing, resolved = self.unbarred.ignored, self.unbarred.missing, self.run.submitted.resolved
        told = f"{self.unbarred.offenders_total} new, {ignored.known} known, {ignored.dismissed} dismissed"
        told += f", {missing} not reported any more" if missing else ""
        return told + (f", {resolved} resolved, because not reported any more" if resolved else "")

    @property
    def more(self) -> str:
        """How many findings are not shown, "" where all are."""
        rest = self.total - len(self.findings)
        return f"… and {rest} more" if rest > 0 else ""


SHOWN = 50  # findings in a report


def report_of(service: Service, run_id: str, bar: Bar, spots: Spots) -> Report:
    """Build the report of a run. New findings come first if the gate is about these alone."""
    path = f"runs/{quoted(run_id)}"
    ask = partial(service.get, f"{path}/gate", Gate, baseline=bar.baseline or None)
    verdict, unbarred = ask(fail_on=bar.fail_on, only=bar.only), ask(fail_on="info", only="new")
    run = service.get(path, heart.Run)
    waived = bar.without_baseline == "pass" and verdict.baseline is None and run.status == "completed"
    if waived and not verdict.pass_:
        verdict.pass_ = True
        verdict.reason = (
            f"{verdict.reason.removesuffix('.')}; passed all the same without a baseline, by --without-baseline pass."
        )
    listed, new = worst_of(service, run), {each.id: each for each in unbarred.offenders}
    shown = (new if bar.only == "new" else {}) | {each.id: each for each in listed.tasks}
    found = [finding_at(spots, each, is_new=each.id in new) for each in shown.values()]
    return Report(run, verdict, unbarred, spots, sorted(found[:SHOWN], key=Finding.order), listed.total)


def worst_of(service: Service, run: heart.Run, **filters: Any) -> heart.TaskPage:
    """Return the worst findings of a run that nobody has set aside, of those that filters leave."""
    statuses = blocking_statuses(run.branch)
    return service.get("tasks", heart.TaskPage, run_id=run.id, status=statuses, sort="severity", limit=SHOWN, **filters)


# ---------------------------------------------------------------------------
# How it is told: stored text is anybody's, and may be made to look like something else
# ---------------------------------------------------------------------------

COLOURS = {"critical": "magenta", "high": "red", "medium": "yellow", "low": "cyan", "info": "blue"}
WIDEST_PLACE = 0.4  # of a line
CELL = 200  # characters of a cell in markdown: a comment may have 65,536
IN_MARKDOWN = regex.compile(r"[\\`*_{}\[\]<>()|~!#&:]|(?<=\bwww)\.", regex.IGNORECASE)  # that makes a link by itself
MENTION = regex.compile(r"[@#!$%~&](?=\w)")


def wants_colour(env: Mapping[str, str]) -> bool:
    """Return whether standard output may be coloured (https://no-color.org)."""
    return sys.stdout.isatty() and not env.get("NO_COLOR") and env.get("TERM") != "dumb"


def table(report: Report, width: int) -> Iterator[str]:
    """Give the lines of a report for people, in colour: the findings, how many there are, and the gate's sentence."""
    most = int(width * WIDEST_PLACE)
    places = [end_of(visible(each.shown_place), most) for each in report.findings]
    severities, widest = max(map(len, SEVERITIES)), max(map(len, places), default=0)
    for finding, place in zip(report.findings, places, strict=True):
        told = click.style(finding.task.severity.ljust(severities), fg=COLOURS[finding.task.severity])
        new = click.style("new", bold=True) if finding.is_new else "   "
        title = heart.truncate(visible(finding.task.title), width - severities - widest - 9)
        yield f"{told}  {new}  {place.ljust(widest)}  {title}".rstrip()
    if report.more:
        yield report.more
    yield report.counts
    yield click.style(visible(report.gate.reason), fg="green" if report.gate.pass_ else "red", bold=True)


def in_markdown(text: str) -> str:
    """Return text of anybody's as text in markdown: no markup, no cell of its own, and nobody is called by it."""
    line = heart.truncate(visible(text), CELL)
    return IN_MARKDOWN.sub(r"\\\g<0>", MENTION.sub("\\g<0>\u200b", line))


def markdown(report: Report) -> Iterator[str]:
    """Give the lines of a report as a comment on a pull request."""
    yield f"**{'Passed' if report.gate.pass_ else 'Not passed'}**: {in_markdown(report.gate.reason)}"
    if report.findings:
        yield from ("", "| Severity | New | Finding | Place |", "|---|---|---|---|")
    for each in report.findings:
        title, place = in_markdown(each.task.title), in_markdown(each.shown_place)
        cells = (each.task.severity, "new" if each.is_new else "", title, place)
        yield f"| {' | '.join(cells)} |"
    yield from ("", f"{report.more}; {report.counts}." if report.more else f"{report.counts}.")


def command_text(text: str) -> str:
    """Return a text as the message of a workflow command: one line, which cannot begin another one."""
    return visible(text).replace("%", "%25")


ANNOTATIONS = {"error": ("critical", "high"), "warning": ("medium",), "notice": ("low", "info")}
MOST_ANNOTATIONS = 10  # that GitHub shows of each level of a step


def annotation(kind: str, finding: Finding) -> str:
    """Return the workflow command that shows a finding at its place."""
    task, spot = finding.task, finding.spot
    in_line = spot.end_line in (None, spot.line)  # GitHub shows columns of one line only
    column, behind = (spot.column, spot.end_column) if in_line else (None, None)
    fields = {
        "file": spot.path or None,
        "line": spot.line,
        "endLine": spot.end_line if spot.line else None,
        "col": column,
        "endColumn": behind - 1 if column and behind and behind > column else None,  # SARIF has the one behind it
        "title": f"{task.severity}: {task.rule or 'finding'}",
    }
    listed = (
        f"{name}={command_text(str(value)).replace(':', '%3A').replace(',', '%2C')}"
        for name, value in fields.items()
        if value is not None
    )
    elsewhere = f" ({task.location})" if task.location and not spot.path else ""  # on a page, say
    return f"::{kind} {','.join(listed)}::{command_text(f'{task.title}{elsewhere}')}"


def workflow_commands(service: Service, reports: Sequence[Report], only: str) -> Iterator[str]:
    """Give the workflow commands for the worst findings of all reports, and a line for those that GitHub would drop."""
    more = 0
    for kind, severities in ANNOTATIONS.items():
        found = list[Finding]()
        for report in reports:
            new_in = report.run.id if only == "new" else None
            listed = worst_of(service, report.run, severity=severities, new_in=new_in)
            found += (finding_at(report.spots, each) for each in listed.tasks)
            more += listed.total
        shown = sorted(found, key=Finding.order)[:MOST_ANNOTATIONS]
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


def passed(reports: Iterable[Report]) -> bool:
    """Tell whether all runs pass."""
    return all(report.gate.pass_ for report in reports)


def together(reports: Sequence[Report], lines: Callable[[Report], Iterable[str]], title: str) -> Iterator[str]:
    """Give the lines of all reports, where there are several each under its project type, and the verdict last."""
    if len(reports) == 1:
        yield from lines(reports[0])
        return
    for report in reports:
        yield from (title.format(report.run.project_type), *lines(report), "")
    failed = [report.run.project_type for report in reports if not report.gate.pass_]
    yield f"Not passed: {', '.join(failed)}." if failed else "Passed."


WIDTH = 160  # of a line that goes to a file or a log


def tell(service: Service, reports: Sequence[Report], form: str, only: str) -> None:
    """Write reports in a form. With those for machines, the gate's sentences go to standard error."""
    width = shutil.get_terminal_size((WIDTH, 0)).columns if sys.stdout.isatty() else WIDTH
    for_people: dict[str, Any] = {
        "table": (partial(table, width=width), "{}:"),
        "markdown": (markdown, "### {}\n"),
        "github": (workflow_lines, "{}:"),
    }
    if form == "github":
        write(f"{line}\n" for line in workflow_commands(service, reports, only))
        if path := os.environ.get("GITHUB_STEP_SUMMARY"):
            add_summary(together(reports, *for_people["markdown"]), path)
    if form in for_people:
        lines = (f"{line}\n" for line in together(reports, *for_people[form]))
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


class Document(Struct):
    """What is read of a page in SARIF."""

    version: str
    runs: list[Raw]
    schema: Raw = msgspec.field(name="$schema")


Filters = Mapping[str, Any]


def pages(service: Service, filters: Filters, kind: str, limit: int | None) -> Iterator[Answer]:
    """Give the pages of a list in a form besides JSON, with so many tasks in all.

    :raises BadInput: when the service does not have the form.
    """
    sample = service.request("GET", f"tasks?{query_of(**filters, limit=1)}", accept=kind)  # a limit of all forms
    if not sample.headers.get("content-type", "").startswith(kind):
        raise BadInput(f"the service does not write {kind}: the part of it that does is not there")
    left, link = limit or sys.maxsize, f"tasks?{query_of(**filters, limit=EXPORTED)}"
    while link and left > 0:
        link = regex.sub(r"(?<=[?&]limit=)[0-9]+", str(min(left, EXPORTED)), link)
        answer = service.request("GET", link, accept=kind)
        yield answer
        left -= EXPORTED
        following = NEXT.search(answer.headers.get("link", ""))
        link = following[1] if following else ""


def sarif_pages(service: Service, filters: Filters, limit: int | None) -> Iterator[bytes]:
    """Give one SARIF document, with a run for each page."""
    for number, page in enumerate(pages(service, filters, SARIF, limit)):
        document = page.read(Document)
        head = msgspec.json.encode({"$schema": document.schema, "version": document.version})
        yield b"," if number else head[:-1] + b',"runs":['
        yield b",".join(map(bytes, document.runs))
    yield b"]}\n"


CSV = "text/csv"


def csv_pages(service: Service, filters: Filters, limit: int | None) -> Iterator[bytes]:
    """Give one table, with its titles once."""
    for number, page in enumerate(pages(service, filters, CSV, limit)):
        yield page.body.partition(b"\r\n")[2] if number else page.body


def json_pages(service: Service, filters: Filters, limit: int | None) -> Iterator[bytes]:
    """Give one array of whole tasks."""
    yield b"["
    listed = service.walk("tasks", Listed, **filters, view="full")
    tasks = (task for page in listed for task in page.tasks)
    for number, task in enumerate(itertools.islice(tasks, limit)):
        yield (b",\n" if number else b"\n") + bytes(task)
    yield b"\n]\n"


# ---------------------------------------------------------------------------
# What goes in
# ---------------------------------------------------------------------------


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
    text = text.removeprefix(codecs.BOM_UTF8)
    if not text.strip():
        raise BadInput(f"{name} is empty: did the scanner fail?")
    return text


def require_size(name: str, text: bytes, most: int) -> None:
    """Check that a document is not too large for a service. :raises BadInput: when it is."""
    if len(text) > most:
        advice = "split it, or raise FINDINGS_MAX_SARIF, here and where the service runs"
        raise BadInput(f"{name} is over {most:,} bytes: {advice}")


TOLD_PROBLEMS = 3  # of a document


def read_documents(names: Sequence[str], source: str | None) -> Iterator[Scanned]:
    """Yield files as SARIF, with paths below the checkout relative to it and its lines of code.

    :param source: the checkout; without it all is left as it is.
    :raises BadInput: when one cannot be used.
    """
    heart.load_parts()
    if SARIF not in heart.REGISTRY.submission_formats:
        raise BadInput("SARIF cannot be read: findings_adapters/sarif is not there")
    from findings_adapters import formats  # which needs what reads SARIF

    settings = heart.Settings.read()
    for name in names:
        try:
            text = formats.as_sarif(name, read_document(name, settings.max_sarif), source, settings.max_sarif)
            parsed = formats.parse_any_weight(text, settings)
            if parsed.problems:
                raise heart.ValidationFailed(parsed.problems)
            log = json.loads(text)
        except heart.ServiceError as error:
            problems = error.problems if isinstance(error, heart.ValidationFailed) else ()
            told = "; ".join(f"{each.pointer}: {each.detail}".lstrip(": ") for each in problems[:TOLD_PROBLEMS])
            raise BadInput(f"{name}: {told}" if told else f"{name} is no SARIF document: {error}") from None
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, say, in what is not read
            raise BadInput(f"{name} cannot be read whole: {error}") from None
        yield Scanned(name, text, log, parsed)


LONGEST_TYPE = 100  # characters of a project type's name, and of its label


def types_of(tools: Iterable[str]) -> dict[str, str]:
    """Return the tools by their project types. :raises BadInput: where one is missing, or of two."""
    types: dict[str, str] = {}
    for tool in tools:
        name = regex.sub(r"[^a-z0-9]+", "-", tool.lower()).strip("-")[:LONGEST_TYPE].rstrip("-")
        if not name:
            raise BadInput(f"the tool's name, {tool}, leaves no name for a project type; say --type NAME")
        if name in types:
            raise BadInput(f"{types[name]} and {tool} come to the same project type, {name}; say --type NAME")
        types[name] = tool
    return types


LONGEST_LABEL = 200

Part = tuple[str, str | None, Prepared]  # the project type of a run, the label of a new one, and what goes into it


def read_parts(config: Config, documents: Iterable[Scanned], project_type: str | None, *, explain: bool) -> list[Part]:
    """Return the parts of a scan, each of which is sent in a run of its own. Log decisions with `explain`.

    :param project_type: of all results together; without it, each tool has a run.
    :raises BadInput: if a document is too large, or has a number that cannot be written again.
    """
    decider, most = Decider(config), heart.Settings.read().max_sarif
    try:
        prepared = prepare(decider, documents, by_tool=not project_type)
    except ValueError as error:  # a number such as 1e999
        raise BadInput(str(error)) from None
    for line in decider.explained if explain else ():
        note(line)
    for name, document in itertools.chain.from_iterable(each.documents for each in prepared.values()):
        require_size(name, document, most)
    if project_type:
        return [(project_type, None, prepared[""])]
    return [(name, tool[:LONGEST_LABEL], prepared[tool]) for name, tool in types_of(prepared).items()]


ABSOLUTE_PATH = regex.compile(r"/|[A-Za-z]:/")


def note_absolute_paths(spots: Iterable[Spot]) -> None:
    """Note that findings are at absolute paths, if any are."""
    paths = [spot.path for spot in spots if ABSOLUTE_PATH.match(spot.path)]
    if paths:
        note(
            f"Note: absolute paths, such as {paths[0]} ({len(paths):,} in all), make other findings in another"
            " folder; say --source DIR for the one above them, or have the scanner write relative paths."
        )


def register_type(service: Service, name: str, label: str | None) -> None:
    """Register a project type, unless it is there."""
    try:
        service.request("GET", f"project-types/{quoted(name)}")
    except Refused as error:
        if error.status != 404:
            raise
        service.request("POST", "project-types", {"name": name, "label": label})


def report_in_runs(service: Service, parts: Iterable[Prepared], *, resolve_missing: bool) -> dict[str, Spots]:
    """Report documents in runs and return where they have their findings, by the runs' ids.

    Whatever goes wrong leaves failed, with the reason, what is not completed by then; they are completed at the end.
    """
    with ExitStack() as open_runs:
        begun = dict[str, Prepared]()
        for part in parts:
            run = RunSession(service, part.start, resolve_missing=resolve_missing and not part.is_partial)
            begun[open_runs.enter_context(run).id] = part
        for run_id, part in begun.items():
            for name, document in part.documents:
                submit(service, run_id, name, document)
        resolved = {
            run_id: count_missing(service, run_id, part.start["branch"], part.left_out)
            for run_id, part in begun.items()
            if resolve_missing and not part.is_partial
        }
    for run_id, part in begun.items():
        kind, target, branch = (part.start[name] for name in ("projectType", "targetUrl", "branch"))
        if number := resolved.get(run_id):
            note(f"Findings of {kind} resolved because their paths are left out: {number:,}.")
        if resolve_missing and part.is_partial:
            note(f"Nothing of {kind} is resolved: it says that it could not check everything.")
        note(f"Run {run_id} of {kind}, {target or 'no target'}, {branch or 'main line'}.")
    return {run_id: part.spots for run_id, part in begun.items()}


def submit(service: Service, run_id: str, name: str, document: bytes) -> None:
    """Submit one document."""
    try:
        service.request("POST", f"runs/{quoted(run_id)}/tasks", document, kind=SARIF)
    except Refused as error:
        raise Refused(error.status, error.code, f"{name}: {error}") from None


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
        if config.found:
            note("Note: findings.toml is used.")
    context.default_map = {**(context.default_map or {}), **config.defaults}
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


OPPOSITES = {"main-line": "branches-only"}


def filter_option(name: str, schema: Mapping[str, Any], components: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return the option for one of a list's query parameters; what is wrong with its value the service says."""
    kind = next(part for part in schema.get("anyOf", [schema]) if part.get("type") != "null")
    option, meaning = regex.sub(r"(?=[A-Z])", "-", name).lower(), kind["description"]
    if kind.get("type") == "boolean":
        return click.option(f"--{option}/--{OPPOSITES.get(option, f'no-{option}')}", name, default=None, help=meaning)
    value = kind.get("items", kind)
    values = components.get(value.get("$ref", "").rpartition("/")[2], value).get("enum")
    shown = f"[{'|'.join(values)}]" if values else "TEXT"
    return click.option(f"--{option}", name, multiple="items" in kind, metavar=shown, help=meaning)


def filter_options(command: Any) -> Any:
    """Put the filters of the list of tasks, as the service has them, on a command."""
    _, components = heart.schemas_of([ExportQuery])
    fields = components[ExportQuery.__name__]["properties"]
    names = [name for name in fields if name not in ("after", "limit")]
    return combined(*(filter_option(name, fields[name], components) for name in names))(command)


def report_gates(service: Service, runs: Mapping[str, Spots], bar: Bar, form: str) -> NoReturn:
    """Tell of runs, by their ids, and end with the exit code that the gate's verdicts come to."""
    reports = [report_of(service, run_id, bar, spots) for run_id, spots in runs.items()]
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
@format_option("table", "json", "markdown", "github", "sarif")
@click.option("--resolve-missing", is_flag=True, help="Resolve what is not reported any more.")
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="The checkout, for relative paths and the lines that a result lacks.",
)
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
    fail_on: str,
    only: str,
    without_baseline: str,
    form: str,
    resolve_missing: bool,
    source: str | None,
    source_url: str | None,
    config: Config,
    severities: Sequence[str],
    patterns: Sequence[str],
    explain: bool,
    url: str,
    db: str,
) -> None:
    """Report what scanners found, and judge it.

    The files are SARIF, or in a known format of a scanner's own. Exit code 0: passed, 1: not, 2: bad input, 3: other.
    """
    with exit_codes():
        config = config.with_options(severities, patterns)
        _, pattern, meant = TEXTS["source-url"]
        if source_url and not regex.match(pattern, source_url):
            raise BadInput(f"--source-url {source_url}: say {meant}")
        place = place_given(branch, target)
        parts = read_parts(config, read_documents(files, source), project_type, explain=explain)
        note_absolute_paths(spot for *_, part in parts for spot in part.spots.values())
        with service_at(url, db, new=True) as service:
            told = place.metadata | ({"sourceUrl": source_url} if source_url else {})
            for name, label, part in parts:
                register_type(service, name, label)
                metadata = told if "commit" in told else told | part.source
                part.start = {
                    "projectType": name,
                    "targetUrl": place.target,
                    "branch": place.branch,
                    "metadata": metadata,
                }
            spots = report_in_runs(service, (part for *_, part in parts), resolve_missing=resolve_missing)
            report_gates(service, spots, Bar(fail_on, only, without_baseline), form)


@click.command()
@click.argument("run")
@gate_options
@click.option("--baseline", metavar="RUN", help="Another run to judge by than the main line's last completed one.")
@format_option("table", "json", "markdown")
@service_options
def gate(
    run: str, fail_on: str, only: str, without_baseline: str, baseline: str | None, form: str, url: str, db: str
) -> None:
    """Judge a run again, or by another bar. Exit code 0: passed, 1: not, 2: bad input, 3: anything else."""
    with exit_codes(), service_at(url, db) as service:
        report_gates(service, {run: {}}, Bar(fail_on, only, without_baseline, baseline), form)


EXPORTS: Mapping[str, Callable[[Service, Filters, int | None], Iterator[bytes]]] = {
    "sarif": sarif_pages,
    "csv": csv_pages,
    "json": json_pages,
}


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
        heart.main.add_command(command)
