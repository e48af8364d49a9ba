"""What a scan is told beside the findings: how bad each rule is, and which paths are left out.

`findings.toml` (https://toml.io) says it for a project, options for one command, and ready maps for tools that mark
everything `error`. All of it is applied to SARIF documents before they are sent, so that the service stores what was
decided. Patterns of paths are gitignore's (https://git-scm.com/docs/gitignore#_pattern_format), by pathspec.
"""

from __future__ import annotations

import itertools
import re
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial, reduce
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
import regex
from msgspec import Struct

from findings_client import Client, Json, in_json
from findings_service import (
    HTTP_URL,
    KIB,
    NAME_PATTERN,
    SEVERITIES,
    UNCHECKED,
    ConfigurationError,
    Parsed,
)

if TYPE_CHECKING:  # other commands do without SARIF
    from findings_adapters.sarif.reading import ParsedDocument

OUR_MARKS = "findingsTaskService/"  # with which the names of our fingerprints and members begin
# In a run's property bag: paths with those that the files had before, and the folder that relative paths lie in.
RENAMES = "findingsTaskService/renames"
FOLDER = "findingsTaskService/folder"
OURS = "findingsTaskService/v1"  # a whole task in a result's properties, and what it is known by in its fingerprints
FILE = "findings.toml"
BARS = (*SEVERITIES, "none")
NAMES = ", ".join(SEVERITIES)

# ---------------------------------------------------------------------------
# What is configured
# ---------------------------------------------------------------------------

SOURCE_URL = r"(?:https?://|\{repository\})\S{0,1000}\{path\}\S{0,1000}\Z"
TEXTS = {  # of the file, which stand for options: what they must match, and how that is said
    "type": ("project_type", NAME_PATTERN, "the name of a project type, such as ruff"),
    "target": ("target", rf"\Z|{HTTP_URL}", 'an http or https URL, or "" for none'),
    "source-url": ("source_url", SOURCE_URL, "an http or https URL, or {repository} and more, with {path} in it"),
    "fail-on": ("fail_on", rf"(?:{'|'.join(BARS)})\Z", f"one of {', '.join(BARS)}"),
}
KEYS = sorted((*TEXTS, "exclude", "severity"))


class SeverityRules(Struct, frozen=True):
    """Severities by the beginning of a rule's id, and where they stand."""

    where: str
    severities: Mapping[str, str]

    def decide(self, rule: str) -> tuple[str, str] | None:
        """Return the severity of a rule, and the line that says so: the longest beginning that it has.

        The rule `not-checked` is decided by its whole name only.
        """
        begins = rule.__eq__ if rule == UNCHECKED else rule.startswith
        prefix = max(filter(begins, self.severities), key=len, default=None)
        return None if prefix is None else (self.severities[prefix], f'{self.where} "{prefix}"')


class Config(Struct):
    """What is configured: lines, the first that decide first; patterns with where they stand; and other options."""

    lines: list[SeverityRules] = []
    patterns: list[tuple[str, str]] = []
    defaults: dict[str, str] = {}

    def with_options(self, severities: Iterable[str], patterns: Iterable[str]) -> Config:
        """Return this with options, which win: their lines decide first, their patterns, as in a .gitignore, last.

        :raises ConfigurationError: for one that cannot be used.
        """
        given = dict(line_of(text) for text in severities)
        more = [(each, "--exclude") for each in patterns]
        require_no_faults(pattern_faults("--exclude", patterns))
        return Config([SeverityRules("--severity", given), *self.lines], [*self.patterns, *more])


def line_of(option: str) -> tuple[str, str]:
    """Return the beginning of a rule's id and the severity that an option gives it."""
    prefix, sign, severity = option.rpartition("=")
    if not sign or severity not in SEVERITIES:
        raise ConfigurationError(f"--severity {option}: say PREFIX=LEVEL, the level one of {NAMES}")
    return prefix, severity


class Budget(Struct):
    """The seconds that patterns may still take.

    A pattern with many `*` takes for ever on a long path, or a second on each of many.
    """

    left: float = 10.0

    def within(self, method: Callable[..., Any], path: str) -> Any:
        """Match a regular expression against a path. :raises TimeoutError: if no time is left."""
        began = time.perf_counter()
        try:
            return method(path, timeout=max(self.left, 0.001))
        finally:
            self.left -= time.perf_counter() - began


def patterns_of(lines: Iterable[str]) -> Any:
    """Return what lines of a .gitignore match."""
    from pathspec import GitIgnoreSpec  # here, because no other command needs it

    spec: Any = GitIgnoreSpec.from_lines(lines)
    budget = Budget()
    for each in spec.patterns:
        if each.include is not None:
            found = regex.compile(each.regex.pattern)
            methods = {name: partial(budget.within, getattr(found, name)) for name in ("match", "search")}
            each.regex = SimpleNamespace(**methods)  # which is all that pathspec uses
    return spec


def pattern_faults(where: str, patterns: Iterable[Any]) -> Iterator[str]:
    """Yield an error for each pattern that is not valid in a .gitignore, or cannot match."""
    for pattern in patterns:
        with suppress(TypeError, ValueError, re.error):
            [made] = patterns_of([pattern]).patterns
            if made.include is not None:
                continue
        yield f'{where}: {pattern!r} is not a valid .gitignore pattern; use one such as "tests/**"'


def read_config(name: str | None) -> Config:
    """Return what a file says; without its name, `findings.toml` of the current folder, if there is one.

    :raises ConfigurationError: for a file that cannot be read or used, with all keys at fault and what would do.
    """
    if name is None and not Path(FILE).is_file():
        return Config()
    path = name or FILE
    told = read_toml(path)
    require_no_faults(faults_in(told, path))
    return Config(
        [SeverityRules(f"{path}: [severity]", told.get("severity", {}))],
        [(each, f"{path}: exclude") for each in told.get("exclude", [])],
        {option: told[key] for key, (option, *_) in TEXTS.items() if key in told},
    )


def require_no_faults(faults: Iterable[str]) -> None:
    """Check that there are no faults. :raises ConfigurationError: with all of them."""
    if told := "; ".join(faults):
        raise ConfigurationError(told)


def faults_in(told: Json, path: str) -> Iterator[str]:
    """Yield all faults of a configuration."""
    for key in told:
        if key not in KEYS:
            yield f"{path}: unknown key {key!r}: there are {', '.join(KEYS)}"
    severities, patterns = told.get("severity", {}), told.get("exclude", [])
    if not isinstance(severities, dict):
        yield f'{path}: severity must be a table: say [severity], then lines "S101" = "low"'
        severities = {}
    for prefix, severity in severities.items():
        if severity not in SEVERITIES:
            advice = f"say one of {NAMES}, and put a prefix with other signs than A-Z, a-z, 0-9, - and _ into quotes"
            yield f'{path}: [severity] "{prefix}" = {severity!r}: {advice}'
    if not isinstance(patterns, list):
        yield f'{path}: exclude must be a list: say exclude = ["tests/**"]'
        patterns = []
    yield from pattern_faults(f"{path}: exclude", patterns)
    for key, (_, pattern, advice) in TEXTS.items():
        if key in told and not (isinstance(told[key], str) and regex.match(pattern, told[key])):
            yield f"{path}: {key} = {told[key]!r}: say {advice}"


def read_toml(path: str) -> Json:
    """Return what a file of TOML holds. :raises ConfigurationError: for what is none."""
    try:
        return tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not UTF-8: save it as that") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError among them
        raise ConfigurationError(f"{path} is no TOML: {error}; texts, and such keys, stand in quotes") from None


# ---------------------------------------------------------------------------
# Ready maps, for tools that mark everything `error`
# ---------------------------------------------------------------------------


def each_of(**severities: str) -> dict[str, str]:
    """Return a map of the beginnings that each severity names."""
    return {prefix: severity for severity, prefixes in severities.items() for prefix in prefixes.split()}


# Bandit's own severities by the number of the test, the highest where it has several. What is not here is medium.
BANDIT = each_of(
    high="103 201 202 304 312 321 324 401 402 411 412 413 415 501 502 505 507 602 605 609 613 701",
    low="101 105 106 107 110 112 311 403 404 405 406 407 408 409 504 603 606 607",
)
READY = {
    "bandit": {"": "medium"} | {f"B{number}": severity for number, severity in BANDIT.items()},
    # Its S rules are bandit's tests. What fails when it runs is high, what is likely a bug medium, how it is laid out,
    # named and annotated info, and the rest low.
    "ruff": {"": "low"}
    | each_of(
        high="E9 F7 F82 PLE invalid-syntax",
        medium="ASYNC B0 F5 F6 F9 S1 S2 S3 S4 S5 S6 S7",
        info="ANN COM CPY D1 D2 D3 D4 DOC E1 E2 E3 E5 ERA FIX I0 ISC N8 Q0 TC TD UP W1 W2 W3 W5 W6",
    )
    | {f"S{number}": severity for number, severity in BANDIT.items()},
    # What runs text as code, and plug-ins for security, are high; of the rules that ESLint lists as possible problems
    # most are medium; the rest are suggestions.
    "eslint": {"": "low"}
    | each_of(
        high="@microsoft/sdl/ no-eval no-implied-eval no-new-func no-script-url no-secrets/ no-unsanitized/ security/",
        medium="array-callback-return constructor-super for-direction getter-return no-async-promise no-class-assign"
        " no-compare-neg-zero no-cond-assign no-const no-dupe no-duplicate-case no-ex-assign no-fallthrough"
        " no-func-assign no-import-assign no-invalid-regexp no-loss-of-precision no-obj-calls no-self no-setter-return"
        " no-sparse-arrays no-this-before-super no-undef no-unreachable no-unsafe react-hooks/rules require-atomic"
        " use-isnan valid-typeof",
        info="@stylistic/ prettier/ sort-",
    ),
    # Its levels tell findings apart, but for rules that are about bugs and habits.
    "semgrep": {
        f"{language}.lang.{category}": severity
        for language in ("bash", "c", "go", "java", "javascript", "ocaml", "python", "ruby", "typescript")
        for category, severity in {"best-practice": "low", "correctness": "medium", "maintainability": "low"}.items()
    },
    # Its checks are numbered as they came, and their severities are not in what is free: only kinds are told apart.
    "checkov": {"": "medium"} | each_of(high="CKV_SECRET_ CVE-"),
}


def ready_map(run: Json) -> list[SeverityRules]:
    """Return the ready map for a run's tool, or an empty list."""
    tool = next(iter(re.findall("[a-z]+", run["tool"]["driver"]["name"].lower())), "")
    return [SeverityRules(f"ready map for {tool}:", READY[tool])] if tool in READY else []


def rank_of(properties: Json) -> int | None:
    """Return the rank of the severity that the score in a property bag means, None for none."""
    from findings_adapters.sarif.reading import rank_of_score  # here, as the other commands do without SARIF

    return rank_of_score(properties.get(SCORE))


def is_misread(properties: Json) -> bool:
    """Return whether `security-severity` has a value that means neither a severity nor 0."""
    score = properties.get(SCORE)
    return score is not None and not rank_of(properties) and bool(str(score).strip("0., "))


def rules_of(run: Json) -> Iterator[Json]:
    """Give the rules of a run's tool and of its plug-ins."""
    for part in (run["tool"]["driver"], *(run["tool"].get("extensions") or ())):
        yield from part.get("rules") or ()


def member(part: Json, name: str) -> Json:
    """Return a member that is an object, an empty one for anything else: what nothing refers to may be anything."""
    value = part.get(name)
    return value if isinstance(value, dict) else {}


def text_in(part: Json, path: str) -> str:
    """Return the text at a path such as `repository.full_name`, "" if it is missing."""
    *above, name = path.split(".")
    value = reduce(member, above, part).get(name)
    return value if isinstance(value, str) else ""


def remove_marks(log: Any, *beginnings: str) -> bool:
    """Remove the marks whose names begin with a text from a document, and return whether it had any.

    By a mark that only this service writes, a report in a pull request could take over the identity of any finding,
    and the decision about it.
    """
    from findings_adapters.sarif.source import objects_at  # here, as the other commands do without SARIF

    parts = (*objects_at(log, "runs"), *objects_at(log, "runs", "results"))
    bags = [member(part, name) for part in parts for name in ("fingerprints", "properties")]
    found = [(bag, name) for bag in bags for name in bag if name.startswith(beginnings)]
    for bag, name in found:
        del bag[name]
    return bool(found)


# ---------------------------------------------------------------------------
# Applying it to documents
# ---------------------------------------------------------------------------

SCORE = "security-severity"


class Spot(Struct, frozen=True):
    """Where a document has a finding."""

    path: str = ""
    line: int | None = None
    end_line: int | None = None
    column: int | None = None
    end_column: int | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


class Reported(Struct):
    """A finding of a document: the result itself, and what the service would make of it."""

    result: Json
    external_id: str | None
    severity: str
    rule: str
    spot: Spot
    is_left_out: bool = False

    @property
    def properties(self) -> Json:
        """The property bag of the result."""
        return member(self.result, "properties")


def tool_of(run: Any) -> str:
    """Return the name of a run's tool."""
    name: str = run["tool"]["driver"]["name"]
    return name.replace("\0", "\N{REPLACEMENT CHARACTER}").strip()


class Scanned(Struct, eq=False):
    """A document of a scanner: its name, its text, what that holds, and the findings that the service reads in it.

    `by_message` counts results of a tool's own format that are identified by their messages.
    """

    name: str
    text: bytes
    log: Json
    parsed: ParsedDocument
    is_changed: bool = False
    by_message: int = 0


class Upload(Struct):
    """One request of a scan: the names of its files, its text, and its findings in their order."""

    name: str
    text: bytes
    findings: list[Reported]


class Prepared(Struct):
    """Contents of a run: its documents, and the identities of the findings that were left out.

    It is partial where a tool said that it could not look at everything. `source` is the repository and the commit that
    they are about, where they say so, `label` that of a new project type.
    """

    project_type: str = ""
    label: str | None = None
    documents: list[Upload] = []
    source: dict[str, str] = {}
    left_out: set[str] = set()
    is_partial: bool = False


COMMIT = r"[0-9A-Za-z]{1,64}\Z"


def source_of(run: Json) -> dict[str, str]:
    """Return the repository and the commit that a run says first it is about (SARIF 2.1.0, 3.14.28)."""
    told = run.get("versionControlProvenance")
    for each in filter(lambda each: isinstance(each, dict), told if isinstance(told, list) else ()):
        repository, commit = str(each.get("repositoryUri")), str(each.get("revisionId") or "")
        repository = regex.sub(r"(?<=://)[^/]*@|[?#].*", "", repository[:2048])  # no password is kept
        if regex.match(HTTP_URL, repository) and regex.match(COMMIT, commit):
            return {"repository": repository, "commit": commit}
    return {}


def add_marks(documents: Sequence[Scanned], renames: Mapping[str, str]) -> Iterator[Scanned]:
    """Write into runs the earlier paths of files, and the folder in which the bases of a tool differ.

    Yield the documents that this changes.
    """
    from findings_adapters.sarif.reading import folders_of  # here, as the other commands do without SARIF

    pairs = ((each, zip(each.log["runs"], each.parsed.origins, strict=True)) for each in documents)
    runs = [((each, run), origin) for each, some in pairs for run, origin in some]
    marks: list[tuple[tuple[Scanned, Json], str, Any]] = [(place, FOLDER, folder) for place, folder in folders_of(runs)]
    marks += ((place, RENAMES, renames) for place, _ in runs if renames)
    for (document, run), name, value in marks:
        run["properties"] = {**member(run, "properties"), name: value}
        yield document


Piece = tuple[Scanned, Json, list[Reported]]  # a run of a document, with its findings


ToolCategory = tuple[str, str]  # the name of a tool, and its category


def prepare(
    decider: Decider, documents: Iterable[Scanned], *, by_tool: bool, most: int
) -> dict[ToolCategory, Prepared]:
    """Return the contents of each run by its origin, which is empty if all share a run.

    Configured severities are applied to their findings, and excluded findings are removed.

    :param most: bytes that a document may have.
    """
    pieces = defaultdict[ToolCategory, list[Piece]](list)
    for each in documents:
        decider.by_message += each.parsed.by_message + each.by_message
        reported = reported_in(each.log, each.parsed)
        for run, found, (_, category, _) in zip(each.log["runs"], reported, each.parsed.origins, strict=True):
            each.is_changed |= decider.apply(run, found)
            pieces[(tool_of(run), category) if by_tool else ("", "")].append((each, run, found))
    return {origin: prepared(some, most) for origin, some in pieces.items()}


def prepared(pieces: Sequence[Piece], most: int) -> Prepared:
    """Return the contents of a run that some pieces share: one document, or several if that would be too large."""
    whole = Prepared()
    for _, run, found in pieces:
        whole.source = whole.source or source_of(run)
        whole.is_partial |= any(each.rule == UNCHECKED and OURS in each.properties for each in found)
        whole.left_out |= {each.external_id for each in found if each.external_id and each.is_left_out}
    files = [*dict.fromkeys(scanned for scanned, *_ in pieces)]
    names = ", ".join(dict.fromkeys(each.name for each in files))
    if is_share := len(pieces) < sum(len(each.log["runs"]) for each in files):
        names += f", {tool_of(pieces[0][1])}"
    reports = [report for each in files for report in each.parsed.reports]
    told = sum(len(f"{report.description}{report.remediation}") for report in reports)
    size = sum(len(each.text) for each in files)
    shares = (TEXT_AT_ONCE / max(told, 1), most / size if len(files) > 1 else 1)
    at_once = min(RESULTS_AT_ONCE, *(int(len(reports) * share) or 1 for share in shares))
    findings = [each for *_, found in pieces for each in found if not each.is_left_out]
    if is_share or len(files) > 1 or files[0].is_changed or len(findings) > at_once:
        whole.documents = [*parts_of(names, pieces, findings, at_once)]
    else:
        whole.documents = [Upload(names, files[0].text, findings)]
    return whole


RESULTS_AT_ONCE = 20_000  # that are sent in one request, so that other writes need not wait for long
TEXT_AT_ONCE = 32 * KIB * KIB  # characters that rules say to those, on average: half of a document's limit


def parts_of(name: str, pieces: Sequence[Piece], findings: Sequence[Reported], at_once: int) -> Iterator[Upload]:
    """Yield the documents that pieces are sent as, with all findings of a file in one of them."""
    files, parts = defaultdict[str, set[int]](set), [set[int]()]
    for each in findings:
        files[each.spot.path].add(id(each.result))
    for results in files.values():
        if parts[-1] and len(parts[-1]) + len(results) > at_once:
            parts.append(set())
        parts[-1] |= results
    for part in parts:
        runs = [run | {"results": [each for each in run["results"] if id(each) in part]} for _, run, _ in pieces]
        log = {**pieces[0][0].log, "runs": [run for run in runs if run["results"] or part is parts[0]]}
        yield Upload(name, in_json(log, name), [each for each in findings if id(each.result) in part])


def reported_in(log: Json, parsed: Parsed) -> list[list[Reported]]:
    """Return the findings of each run of a document."""
    reported = [list[Reported]() for _ in log["runs"]]
    for report, (text, pointer) in zip(parsed.reports, parsed.extensions, strict=True):
        _, _, run, _, number, *_ = pointer.split("/")
        result = log["runs"][int(run)]["results"][int(number)]
        known = msgspec.json.decode(text or "{}")
        severity = SEVERITIES[-report.severity]
        rule = str(result.get("ruleId") or report.rule or "").strip()
        reported[int(run)].append(Reported(result, report.external_id, severity, rule, spot_of(result, known)))
    return reported


def spot_of(result: Json, known: Json) -> Spot:
    """Return where a result is: its path as it was read, or else as it stands there."""
    first: Json = next(filter(None, result.get("locations") or ()), {})
    place = member(first, "physicalLocation")
    path = known.get("file") or unquote(text_in(place, "artifactLocation.uri"))
    names = ("startLine", "endLine", "startColumn", "endColumn")
    return Spot(str(path), *(counted(member(place, "region").get(each)) for each in names))


def counted(value: Any) -> int | None:
    """Return a number of a region, which begin with 1; some tools write 1.0."""
    return int(value) if type(value) in (int, float) and 1 <= value < 2**31 else None


class Decider:
    """Decides about findings, and remembers why."""

    def __init__(self, config: Config) -> None:
        self.config, self.explained = config, list[str]()
        self.ready = set[str]()  # tools of which a ready map has decided something
        self.misread = list[str]()  # scores that say nothing
        self.by_message = 0  # results that are identified by their messages
        self.check = lru_cache(4096)(patterns_of(pattern for pattern, _ in config.patterns).check_file)

    def apply(self, run: Json, reported: Sequence[Reported]) -> bool:
        """Decide about the findings of a run, and write that into it. Return whether anything is not as it was."""
        ready, decided = ready_map(run), False
        rules = [(rule.get("id"), member(rule, "properties")) for rule in rules_of(run)]
        scored = {str(name) for name, properties in rules if rank_of(properties)}
        bags = (*(properties for _, properties in rules), *(each.properties for each in reported))
        self.misread += (str(bag[SCORE]) for bag in bags if is_misread(bag))

        @lru_cache(4096)
        def decide(rule: str, has_own: bool) -> tuple[str, str] | None:  # by the first lines that know the rule
            lines = [*self.config.lines, *(() if has_own else ready)]
            return next(filter(None, (each.decide(rule) for each in lines)), None)

        for each in reported:
            if pattern := self.pattern_of(each.spot.path):
                each.is_left_out = True
                self._explain("left out", each, pattern)
                continue
            names = itertools.accumulate(each.rule.split("/"), "{}/{}".format)  # of a hierarchical rule (3.27.5)
            is_scored = rank_of(each.properties) is not None or not scored.isdisjoint(names)
            has_own = is_scored or each.rule == UNCHECKED
            severity, why = decide(each.rule, has_own) or (each.severity, "the document")
            if why.startswith("ready map"):
                self.ready.add(tool_of(run))
            decided |= severity != each.severity
            each.severity = severity
            self._explain(severity, each, why)
        if left_out := {id(each.result) for each in reported if each.is_left_out}:
            run["results"] = [each for each in run["results"] if id(each) not in left_out]
        if decided:
            write_severities(run, [each for each in reported if not each.is_left_out])
        return bool(left_out) or decided

    def pattern_of(self, path: str) -> str:
        """Return the pattern by which a path is left out, with where it stands; "" where it is not."""
        try:
            checked = self.check(path) if path else None
        except TimeoutError:
            patterns = "; ".join(f'{where} "{pattern}"' for pattern, where in self.config.patterns)
            raise ConfigurationError(f"{patterns}: took too long on {path}; use patterns with fewer *") from None
        if not checked or not checked.include or checked.index is None:
            return ""
        pattern, where = self.config.patterns[checked.index]
        return f'{where} "{pattern}"'

    def _explain(self, decision: str, reported: Reported, why: str) -> None:
        place = f" {reported.spot}" if reported.spot.path else ""
        self.explained.append(f"{decision} {reported.rule or '(no rule)'}{place} {why}")


def write_severities(run: Json, kept: Iterable[Reported]) -> None:
    """Write into all findings of a run how severe they are; its rules' own figures would go before the level `none`."""
    from findings_adapters.sarif.writing import LEVELS, score_of  # here, as the other commands do without SARIF

    for rule in rules_of(run):
        member(rule, "properties").pop(SCORE, None)
    for each in kept:
        properties = {name: value for name, value in each.properties.items() if name != SCORE}
        each.result |= {"level": LEVELS[each.severity], "properties": properties | score_of(each.severity)}
        if task := properties.get(OURS):
            task["severity"] = each.severity


def count_missing(service: Client, run_id: str, branch: str | None, external_ids: set[str]) -> int:
    """Return how many of some findings the end of a run will resolve: those of its branch that it did not report."""
    if not external_ids:
        return 0
    missing = (each for each in service.tasks(missing_from=run_id) if each.branch == branch)
    return sum(regex.sub(r"-[0-9]+\Z", "", each.external_id or "") in external_ids for each in missing)
