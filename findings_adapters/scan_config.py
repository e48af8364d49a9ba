"""What a scan is told beside the findings: how bad each rule is, and which paths are left out.

`findings.toml` (https://toml.io) says it for a project, options for one command, and ready maps for tools that mark
everything `error`. All of it is applied to SARIF documents before they are sent, so that the service stores what was
decided. Patterns of paths are gitignore's (https://git-scm.com/docs/gitignore#_pattern_format), by pathspec.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import regex
from msgspec import Struct

import findings_service as heart
from findings_adapters.client import Service, in_json

OURS = "findingsTaskService/v1"  # a whole task in a result's properties, and what it is known by in its fingerprints
UNCHECKED = "not-checked"  # the rule of what a tool passed over, as readers of other formats have it
FILE = "findings.toml"
BARS = (*heart.SEVERITIES, "none")
NAMES = ", ".join(heart.SEVERITIES)

# ---------------------------------------------------------------------------
# What is configured
# ---------------------------------------------------------------------------

SOURCE_URL = r"(?:https?://|\{repository\})\S{0,1000}\{path\}\S{0,1000}\Z"
TEXTS = {  # of the file, which stand for options: what they must match, and how that is said
    "type": ("project_type", heart.NAME_PATTERN, "the name of a project type, such as ruff"),
    "target": ("target", rf"\Z|{heart.HTTP_URL}", 'an http or https URL, or "" for none'),
    "source-url": ("source_url", SOURCE_URL, "an http or https URL, or {repository} and more, with {path} in it"),
    "fail-on": ("fail_on", rf"(?:{'|'.join(BARS)})\Z", f"one of {', '.join(BARS)}"),
}
KEYS = sorted((*TEXTS, "exclude", "severity"))


class SeverityRules(Struct, frozen=True):
    """Severities by the beginning of a rule's id, and where they stand."""

    where: str
    severities: Mapping[str, str]

    def decide(self, rule: str) -> tuple[str, str] | None:
        """Return the severity of a rule, and the line that says so: the longest beginning that it has."""
        prefix = max(filter(rule.startswith, self.severities), key=len, default=None)
        return None if prefix is None else (self.severities[prefix], f'{self.where} "{prefix}"')


class Config(Struct):
    """What is configured: lines, the first that decide first; patterns with where they stand; and other options."""

    lines: list[SeverityRules] = []
    patterns: list[tuple[str, str]] = []
    defaults: dict[str, str] = {}
    found: bool = False

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
    if not sign or severity not in heart.SEVERITIES:
        raise heart.ConfigurationError(f"--severity {option}: say PREFIX=LEVEL, the level one of {NAMES}")
    return prefix, severity


def patterns_of(lines: Iterable[str]) -> Any:
    """Return what lines of a .gitignore match."""
    from pathspec import GitIgnoreSpec  # here, because no other command needs it

    return GitIgnoreSpec.from_lines(lines)


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
        {TEXTS[key][0]: told[key] for key in TEXTS if key in told},
        found=name is None,
    )


def require_no_faults(faults: Iterable[str]) -> None:
    """Check that there are no faults. :raises ConfigurationError: with all of them."""
    if told := "; ".join(faults):
        raise heart.ConfigurationError(told)


def faults_in(told: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield all faults of a configuration."""
    for key in told:
        if key not in KEYS:
            yield f"{path}: unknown key {key!r}: there are {', '.join(KEYS)}"
    severities, patterns = told.get("severity", {}), told.get("exclude", [])
    if not isinstance(severities, dict):
        yield f'{path}: severity must be a table: say [severity], then lines "S101" = "low"'
        severities = {}
    for prefix, severity in severities.items():
        if severity not in heart.SEVERITIES:
            advice = f"say one of {NAMES}, and put a prefix with other signs than A-Z, a-z, 0-9, - and _ into quotes"
            yield f'{path}: [severity] "{prefix}" = {severity!r}: {advice}'
    if not isinstance(patterns, list):
        yield f'{path}: exclude must be a list: say exclude = ["tests/**"]'
        patterns = []
    yield from pattern_faults(f"{path}: exclude", patterns)
    for key, (_, pattern, advice) in TEXTS.items():
        if key in told and not (isinstance(told[key], str) and regex.match(pattern, told[key])):
            yield f"{path}: {key} = {told[key]!r}: say {advice}"


def read_toml(path: str) -> dict[str, Any]:
    """Return what a file of TOML holds. :raises ConfigurationError: for what is none."""
    try:
        return tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise heart.ConfigurationError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise heart.ConfigurationError(f"{path} is not UTF-8: save it as that") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError among them
        raise heart.ConfigurationError(f"{path} is no TOML: {error}; texts, and such keys, stand in quotes") from None


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
    # ERROR is its own word for high; outside of security it is about bugs and habits.
    "semgrep": {"": "high"}
    | {
        f"{language}.lang.{category}": severity
        for language in ("bash", "c", "go", "java", "javascript", "ocaml", "python", "ruby", "typescript")
        for category, severity in {"best-practice": "low", "correctness": "medium", "maintainability": "low"}.items()
    },
    # Its checks are numbered as they came, and their severities are not in what is free: only kinds are told apart.
    "checkov": {"": "medium"} | each_of(high="CKV_SECRET_ CVE-"),
}


def ready_lines(run: Mapping[str, Any], severities: Iterable[str]) -> list[SeverityRules]:
    """Return the ready map for a run, given what its document comes to for each finding.

    One is for a run of level error alone, without GitHub's finer figure or whole tasks. A tool whose rules have other
    levels, as Semgrep lists them, tells findings apart, also where it found only errors.
    """
    tool = next(iter(re.findall("[a-z]+", run["tool"]["driver"]["name"].lower())), "")
    rules = list(rules_of(run))
    levels = {member(each, "defaultConfiguration").get("level") or "error" for each in rules}
    scored = any({SCORE, OURS} & member(each, "properties").keys() for each in (*rules, *run["results"]))
    if tool not in READY or scored or levels - {"error"} or {*severities} != {"high"}:
        return []
    return [SeverityRules(f"ready map for {tool}:", READY[tool])]


def rules_of(run: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Give the rules of a run's tool and of its plug-ins."""
    for part in (run["tool"]["driver"], *(run["tool"].get("extensions") or ())):
        yield from part.get("rules") or ()


def member(part: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a member that is an object, an empty one for anything else: what nothing refers to may be anything."""
    value = part.get(name)
    return value if isinstance(value, dict) else {}


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

    result: dict[str, Any]
    external_id: str | None
    severity: str
    rule: str
    spot: Spot
    is_left_out: bool = False

    def keep_identity(self) -> None:
        """Write the identity into the result, so that it does not depend on similar results in the document."""
        self.result["fingerprints"] = {**(self.result.get("fingerprints") or {}), OURS: self.external_id}


def tool_of(run: Any) -> str:
    """Return the name of a run's tool."""
    name: str = run["tool"]["driver"]["name"]
    return name.replace("\0", "\N{REPLACEMENT CHARACTER}").strip()


class Scanned(Struct):
    """A document of a scanner: its name, its text, what that holds, and the findings that the service reads in it."""

    name: str
    text: bytes
    log: dict[str, Any]
    parsed: heart.Parsed


class Prepared(Struct):
    """What goes into a run: its documents, where these have each finding, and the findings that were left out.

    It is partial where a tool said that it could not look at everything. `source` is the repository and the commit that
    they are about, where they say so, and `start` what the run is started with.
    """

    start: dict[str, Any] = {}
    documents: list[tuple[str, bytes]] = []
    source: dict[str, str] = {}
    spots: dict[str, Spot] = {}
    left_out: set[str] = set()
    is_partial: bool = False

    def add(self, findings: Iterable[Reported]) -> None:
        """Note where findings are, or that they were left out."""
        for each in findings:
            self.is_partial |= each.rule == UNCHECKED and OURS in (each.result.get("properties") or {})
            if each.external_id and each.is_left_out:
                self.left_out.add(each.external_id)
            elif each.external_id:
                self.spots[each.external_id] = each.spot
        self.left_out -= self.spots.keys()


COMMIT = r"[0-9A-Za-z]{1,64}\Z"


def source_of(log: Mapping[str, Any]) -> dict[str, str]:
    """Return the repository and the commit that a document says first it is about (SARIF 2.1.0, 3.14.28)."""
    for run in log["runs"]:
        told = run.get("versionControlProvenance")
        for each in filter(lambda each: isinstance(each, dict), told if isinstance(told, list) else ()):
            repository, commit = str(each.get("repositoryUri")), str(each.get("revisionId") or "")
            repository = regex.sub(r"(?<=://)[^/]*@|[?#].*", "", repository[:2048])  # nobody's password is kept
            if regex.match(heart.HTTP_URL, repository) and regex.match(COMMIT, commit):
                return {"repository": repository, "commit": commit}
    return {}


def prepare(decider: Decider, documents: Iterable[Scanned], *, by_tool: bool) -> dict[str, Prepared]:
    """Return the documents of each run by the name of the tool, or under "" if all tools share a run.

    Configured severities are applied to their findings, and excluded findings are removed.
    """
    parts = defaultdict[str, Prepared](Prepared)
    for each in documents:
        is_changed, tools = False, defaultdict[str, list[Reported]](list)
        for run, found in zip(each.log["runs"], reported_in(each.log, each.parsed), strict=True):
            is_changed |= decider.apply(run, found)
            tools[tool_of(run) if by_tool else ""] += found
        size = sum(len(f"{report.description}{report.remediation}") for report in each.parsed.reports)
        most = min(RESULTS_AT_ONCE, TEXT_AT_ONCE * len(each.parsed.reports) // max(size, 1))
        for tool, findings in tools.items():
            name = f"{each.name}, {tool}" if len(tools) > 1 else each.name
            if len(tools) > 1 or len(findings) > most:
                texts = [*parts_of_log(each, findings, most)]
            else:
                texts = [in_json(each.log, each.name) if is_changed else each.text]
            parts[tool].documents += ((name, text) for text in texts)
            parts[tool].source = parts[tool].source or source_of(each.log)
            parts[tool].add(findings)
    return parts


RESULTS_AT_ONCE = 20_000  # that are sent in one request, so that other writes need not wait for long
TEXT_AT_ONCE = 32 * heart.KIB * heart.KIB  # characters that rules say to those, on average: half of a document's limit


def parts_of_log(scanned: Scanned, findings: Iterable[Reported], most: int) -> Iterator[bytes]:
    """Yield the documents that some findings of one are sent as, with all results of a file in one of them."""
    files, parts = defaultdict[str, set[int]](set), [set[int]()]
    for each in findings:
        each.keep_identity()
        files[each.spot.path].add(id(each.result))
    for results in files.values():
        if parts[-1] and len(parts[-1]) + len(results) > most:
            parts.append(set())
        parts[-1] |= results
    for part in parts:
        runs = [run | {"results": [each for each in run["results"] if id(each) in part]} for run in scanned.log["runs"]]
        yield in_json({**scanned.log, "runs": runs}, scanned.name)


def reported_in(log: Mapping[str, Any], parsed: heart.Parsed) -> list[list[Reported]]:
    """Return the findings of each run of a document."""
    reported: list[list[Reported]] = [[] for _ in log["runs"]]
    for report, (text, pointer) in zip(parsed.reports, parsed.extensions, strict=True):
        _, _, run, _, number, *_ = pointer.split("/")
        result = log["runs"][int(run)]["results"][int(number)]
        known = msgspec.json.decode(text or "{}")
        severity = heart.SEVERITIES[-report.severity]
        rule = str(result.get("ruleId") or report.rule or "").strip()
        reported[int(run)].append(Reported(result, report.external_id, severity, rule, spot_of(result, known)))
    return reported


def spot_of(result: Mapping[str, Any], known: Mapping[str, Any]) -> Spot:
    """Return where a result is: its path as it was read, or else as it stands there."""
    first: dict[str, Any] = next(filter(None, result.get("locations") or ()), {})
    place = first.get("physicalLocation") or {}
    path = known.get("file") or unquote((place.get("artifactLocation") or {}).get("uri") or "")
    names = ("startLine", "endLine", "startColumn", "endColumn")
    region = place.get("region") or {}
    return Spot(str(path), *(counted(region.get(each)) for each in names))


def counted(value: Any) -> int | None:
    """Return a number of a region, which begin with 1; some tools write 1.0."""
    return int(value) if type(value) in (int, float) and 1 <= value < 2**31 else None


class Decider:
    """Decides about findings, and remembers why."""

    def __init__(self, config: Config) -> None:
        self.config, self.explained = config, list[str]()
        self.check = lru_cache(4096)(patterns_of(pattern for pattern, _ in config.patterns).check_file)

    def apply(self, run: dict[str, Any], reported: Sequence[Reported]) -> bool:
        """Decide about the findings of a run, and write that into it. Return whether anything is not as it was."""
        lines = [*self.config.lines, *ready_lines(run, (each.severity for each in reported))]
        decided = False

        @lru_cache(4096)
        def decide(rule: str) -> tuple[str, str] | None:  # by the first lines that know the rule
            return next(filter(None, (each.decide(rule) for each in lines)), None)

        for each in reported:
            if pattern := self.pattern_of(each.spot.path):
                each.is_left_out = True
                self._explain("left out", each, pattern)
                continue
            severity, why = decide(each.rule) or (each.severity, "the document")
            decided |= severity != each.severity
            each.severity = severity
            self._explain(severity, each, why)
        kept = [each for each in reported if not each.is_left_out]
        if left_out := {id(each.result) for each in reported if each.is_left_out}:
            run["results"] = [each for each in run["results"] if id(each) not in left_out]
            for each in kept:
                each.keep_identity()
        if decided:
            write_severities(run, kept)
        return bool(left_out) or decided

    def pattern_of(self, path: str) -> str:
        """Return the pattern by which a path is left out, with where it stands; "" where it is not."""
        checked = self.check(path) if path else None
        if not checked or not checked.include or checked.index is None:
            return ""
        pattern, where = self.config.patterns[checked.index]
        return f'{where} "{pattern}"'

    def _explain(self, decision: str, reported: Reported, why: str) -> None:
        place = f" {reported.spot}" if reported.spot.path else ""
        self.explained.append(f"{decision} {reported.rule or '(no rule)'}{place} {why}")


def write_severities(run: Mapping[str, Any], kept: Iterable[Reported]) -> None:
    """Write into all findings of a run how severe they are; its rules' own figures would go before the level `none`."""
    from findings_adapters.sarif.writing import LEVELS, score_of  # here, as the other commands do without SARIF

    for rule in rules_of(run):
        member(rule, "properties").pop(SCORE, None)
    for each in kept:
        properties = {name: value for name, value in (each.result.get("properties") or {}).items() if name != SCORE}
        each.result |= {"level": LEVELS[each.severity], "properties": properties | score_of(each.severity)}
        if task := properties.get(OURS):
            task["severity"] = each.severity


def count_missing(service: Service, run_id: str, branch: str | None, external_ids: set[str]) -> int:
    """Return how many of some findings the end of a run will resolve: those of its branch that it did not report."""
    if not external_ids:
        return 0
    pages = service.walk("tasks", heart.TaskPage, missing_from=run_id)
    missing = (each for page in pages for each in page.tasks)
    return sum(each.branch == branch and each.external_id in external_ids for each in missing)
