"""Configuration of a scan: severities by rule, and paths whose findings are left out.

It comes from `findings.toml` (https://toml.io) for a project, from options for one command, and from ready maps for
tools that mark everything `error`. It is applied to SARIF documents before they are sent, so that the service stores
its severities. Path patterns are gitignore's (https://git-scm.com/docs/gitignore#_pattern_format), matched by pathspec.
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

from findings_client import Client, Json, encode_json
from findings_service import HTTP_URL, KIB, NAME_PATTERN, SEVERITIES, UNCHECKED, ConfigurationError, Parsed

if TYPE_CHECKING:  # other commands do not load SARIF
    from findings_adapters.sarif.reading import ParsedDocument

OUR_PREFIX = "findingsTaskService/"  # prefix of the names of this service's fingerprints and properties
# Run properties: a map from the paths of files to their earlier paths, and the folder that relative paths are in.
RENAMES = "findingsTaskService/renames"
FOLDER = "findingsTaskService/folder"
OURS = "findingsTaskService/v1"  # property with a whole task, and fingerprint with its external id
FILE = "findings.toml"
BARS = (*SEVERITIES, "none")
NAMES = ", ".join(SEVERITIES)

# ---------------------------------------------------------------------------
# Configuration
# ---------------------------------------------------------------------------

SOURCE_URL = r"(?:https?://|\{repository\})\S{0,1000}\{path\}\S{0,1000}\Z"
TEXTS = {  # keys of the file: option, pattern of the value, and its description in error messages
    "type": ("project_type", NAME_PATTERN, "the name of a project type, such as ruff"),
    "target": ("target", rf"\Z|{HTTP_URL}", 'an http or https URL, or "" for none'),
    "source-url": ("source_url", SOURCE_URL, "an http or https URL with {path} in it; it may begin with {repository}"),
    "fail-on": ("fail_on", rf"(?:{'|'.join(BARS)})\Z", f"one of: {', '.join(BARS)}"),
}
KEYS = sorted((*TEXTS, "exclude", "severity"))


class SeverityRules(Struct, frozen=True):
    """Severities by prefix of the rule id, and where they are configured."""

    where: str
    severities: Mapping[str, str]

    def decide(self, rule: str) -> tuple[str, str] | None:
        """Return the severity for the longest matching prefix of a rule id, and its source; None without a match.

        The rule `not-checked` is matched only by its full name.
        """
        begins = rule.__eq__ if rule == UNCHECKED else rule.startswith
        prefix = max(filter(begins, self.severities), key=len, default=None)
        return None if prefix is None else (self.severities[prefix], f'{self.where} "{prefix}"')


class Config(Struct):
    """Severity rules in order of precedence, excluded path patterns with their sources, and option defaults."""

    lines: list[SeverityRules] = []
    patterns: list[tuple[str, str]] = []
    defaults: dict[str, str] = {}

    def with_options(self, severities: Iterable[str], patterns: Iterable[str]) -> Config:
        """Return a configuration with `--severity` and `--exclude` options, which take precedence, and no defaults.

        Severities of options come first. Patterns of options come last: the last match decides, as in a .gitignore.

        :raises ConfigurationError: if an option is invalid.
        """
        given = dict(severity_option(text) for text in severities)
        more = [(each, "--exclude") for each in patterns]
        require_no_faults(pattern_faults("--exclude", patterns))
        return Config([SeverityRules("--severity", given), *self.lines], [*self.patterns, *more])


def severity_option(option: str) -> tuple[str, str]:
    """Parse a `--severity` option into the prefix of a rule id and its severity."""
    prefix, sign, severity = option.rpartition("=")
    if not sign or severity not in SEVERITIES:
        raise ConfigurationError(f"--severity {option}: must be PREFIX=LEVEL; LEVEL must be one of: {NAMES}")
    return prefix, severity


class Budget(Struct):
    """Remaining time for matching patterns, in seconds.

    A pattern with many `*` can run endlessly on a long path, or for a second on each of many paths.
    """

    left: float = 10.0

    def within(self, method: Callable[..., Any], path: str) -> Any:
        """Call `method` of a compiled regex on a path. :raises TimeoutError: if the remaining time is used up."""
        began = time.perf_counter()
        try:
            return method(path, timeout=max(self.left, 0.001))
        finally:
            self.left -= time.perf_counter() - began


def patterns_of(lines: Iterable[str]) -> Any:
    """Return a matcher for lines of a .gitignore; all its matches share one `Budget` of time."""
    from pathspec import GitIgnoreSpec  # imported here, because no other command needs it

    spec: Any = GitIgnoreSpec.from_lines(lines)
    budget = Budget()
    for each in spec.patterns:
        if each.include is not None:
            found = regex.compile(each.regex.pattern)
            methods = {name: partial(budget.within, getattr(found, name)) for name in ("match", "search")}
            each.regex = SimpleNamespace(**methods)  # the methods that pathspec calls
    return spec


def pattern_faults(where: str, patterns: Iterable[Any]) -> Iterator[str]:
    """Yield an error message for each pattern that is invalid in a .gitignore, or a blank or comment line."""
    for pattern in patterns:
        with suppress(TypeError, ValueError, re.error):
            [made] = patterns_of([pattern]).patterns
            if made.include is not None:
                continue
        yield f'{where}: {pattern!r} is not a valid .gitignore pattern; use one such as "tests/**"'


def read_config(name: str | None) -> Config:
    """Read a configuration file, by default `findings.toml` of the current folder if it exists.

    :raises ConfigurationError: if it cannot be read or is invalid; the message lists all faults.
    """
    if name is None and not Path(FILE).is_file():
        return Config()
    path = name or FILE
    values = read_toml(path)
    require_no_faults(faults_in(values, path))
    return Config(
        [SeverityRules(f"{path}: [severity]", values.get("severity", {}))],
        [(each, f"{path}: exclude") for each in values.get("exclude", [])],
        {option: values[key] for key, (option, *_) in TEXTS.items() if key in values},
    )


def require_no_faults(faults: Iterable[str]) -> None:
    """Check that there are no error messages. :raises ConfigurationError: if there are any, with all of them."""
    if message := "; ".join(faults):
        raise ConfigurationError(message)


def faults_in(values: Json, path: str) -> Iterator[str]:
    """Yield an error message for each fault of the configuration that was read from the file at `path`."""
    for key in values:
        if key not in KEYS:
            yield f"{path}: unknown key {key!r}; must be one of: {', '.join(KEYS)}"
    severities, patterns = values.get("severity", {}), values.get("exclude", [])
    if not isinstance(severities, dict):
        yield f'{path}: severity must be a table; write [severity], followed by lines such as "S101" = "low"'
        severities = {}
    for prefix, severity in severities.items():
        if severity not in SEVERITIES:
            advice = f"must be one of: {NAMES}; quote prefixes with characters other than A-Z, a-z, 0-9, - and _"
            yield f'{path}: [severity] "{prefix}" = {severity!r}: {advice}'
    if not isinstance(patterns, list):
        yield f'{path}: exclude must be a list, such as exclude = ["tests/**"]'
        patterns = []
    yield from pattern_faults(f"{path}: exclude", patterns)
    for key, (_, pattern, advice) in TEXTS.items():
        if key in values and not (isinstance(values[key], str) and regex.match(pattern, values[key])):
            yield f"{path}: {key} = {values[key]!r}: must be {advice}"


def read_toml(path: str) -> Json:
    """Read a TOML file. :raises ConfigurationError: if it cannot be read or is not valid TOML."""
    try:
        return tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not UTF-8; save it in that encoding") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
        raise ConfigurationError(f"{path} is not valid TOML: {error}; strings and special keys need quotes") from None


# ---------------------------------------------------------------------------
# Ready maps, for tools that mark everything `error`
# ---------------------------------------------------------------------------


def each_of(**severities: str) -> dict[str, str]:
    """Return a map from rule id prefixes to severities; each argument lists the prefixes of one severity."""
    return {prefix: severity for severity, prefixes in severities.items() for prefix in prefixes.split()}


# Bandit's own severities by test number, the highest if a test has several. All other tests are medium.
BANDIT = each_of(
    high="103 201 202 304 312 321 324 401 402 411 412 413 415 501 502 505 507 602 605 609 613 701",
    low="101 105 106 107 110 112 311 403 404 405 406 407 408 409 504 603 606 607",
)
READY = {
    "bandit": {"": "medium"} | {f"B{number}": severity for number, severity in BANDIT.items()},
    # Ruff's S rules are bandit's tests. Code that fails when it runs is high, likely bugs are medium; layout, names and
    # annotations are info, and the rest low.
    "ruff": {"": "low"}
    | each_of(
        high="E9 F7 F82 PLE invalid-syntax",
        medium="ASYNC B0 F5 F6 F9 S1 S2 S3 S4 S5 S6 S7",
        info="ANN COM CPY D1 D2 D3 D4 DOC E1 E2 E3 E5 ERA FIX I0 ISC N8 Q0 TC TD UP W1 W2 W3 W5 W6",
    )
    | {f"S{number}": severity for number, severity in BANDIT.items()},
    # Rules about running text as code, and security plug-ins, are high. Most of the rules that ESLint lists as possible
    # problems are medium. The rest are suggestions.
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
    # Semgrep's own levels distinguish findings, except for rules about bugs and habits.
    "semgrep": {
        f"{language}.lang.{category}": severity
        for language in ("bash", "c", "go", "java", "javascript", "ocaml", "python", "ruby", "typescript")
        for category, severity in {"best-practice": "low", "correctness": "medium", "maintainability": "low"}.items()
    },
    # Checkov numbers its checks in order of creation, and its free edition has no severities: only two kinds are high.
    "checkov": {"": "medium"} | each_of(high="CKV_SECRET_ CVE-"),
}


def ready_map(run: Json) -> list[SeverityRules]:
    """Return a list with the ready map for a run's tool, or an empty list if the tool has none."""
    tool = next(iter(re.findall("[a-z]+", run["tool"]["driver"]["name"].lower())), "")
    return [SeverityRules(f"ready map for {tool}:", READY[tool])] if tool in READY else []


def rank_of(properties: Json) -> int | None:
    """Return the rank of the `security-severity` in a property bag, or None if it is missing, 0 or invalid."""
    from findings_adapters.sarif.reading import rank_of_score  # here, because the other commands do not load SARIF

    return rank_of_score(properties.get(SCORE))


def is_misread(properties: Json) -> bool:
    """Return whether a property bag has an invalid `security-severity`; 0 is valid."""
    score = properties.get(SCORE)
    return score is not None and not rank_of(properties) and bool(str(score).strip("0., "))


def rules_of(run: Json) -> Iterator[Json]:
    """Yield the rules of a run's tool and of its plug-ins."""
    for part in (run["tool"]["driver"], *(run["tool"].get("extensions") or ())):
        yield from part.get("rules") or ()


def member(part: Json, name: str) -> Json:
    """Return a member, or {} if it is missing or not an object: members that `parse` ignores are not validated."""
    value = part.get(name)
    return value if isinstance(value, dict) else {}


def text_in(part: Json, path: str) -> str:
    """Return the text at a path such as `repository.full_name`, or "" if it is missing or not a text."""
    *above, name = path.split(".")
    value = reduce(member, above, part).get(name)
    return value if isinstance(value, str) else ""


def remove_own_members(log: Any, *beginnings: str) -> bool:
    """Remove fingerprints and properties of runs and results by prefixes of names; return whether any existed.

    With this service's fingerprints and properties, a report in a pull request could take over the identity of any
    finding, and the decision about it.
    """
    from findings_adapters.sarif.source import objects_at  # here, because the other commands do not load SARIF

    parts = (*objects_at(log, "runs"), *objects_at(log, "runs", "results"))
    bags = [member(part, name) for part in parts for name in ("fingerprints", "properties")]
    found = [(bag, name) for bag in bags for name in bag if name.startswith(beginnings)]
    for bag, name in found:
        del bag[name]
    return bool(found)


# ---------------------------------------------------------------------------
# Applying the configuration to documents
# ---------------------------------------------------------------------------

SCORE = "security-severity"


class Spot(Struct, frozen=True):
    """Position of a finding in the scanned code; without a path, it is not known."""

    path: str = ""
    line: int | None = None
    end_line: int | None = None
    column: int | None = None
    end_column: int | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


class Reported(Struct):
    """Finding of a document: its SARIF result, and the values that the service derives from that result."""

    result: Json
    external_id: str | None
    severity: str
    rule: str
    spot: Spot
    is_left_out: bool = False

    @property
    def properties(self) -> Json:
        """Property bag of the result."""
        return member(self.result, "properties")


def tool_of(run: Any) -> str:
    """Return the name of a run's tool."""
    name: str = run["tool"]["driver"]["name"]
    return name.replace("\0", "\N{REPLACEMENT CHARACTER}").strip()


class Scanned(Struct, eq=False):
    """SARIF document of a scanner: file name, text, decoded text (`log`), and the findings in it (`parsed`).

    `is_changed` is whether `log` differs from `text`. `by_message` counts converted results identified by messages.
    """

    name: str
    text: bytes
    log: Json
    parsed: ParsedDocument
    is_changed: bool = False
    by_message: int = 0


class Upload(Struct):
    """One of the requests of a scan: the names of its files, its body (`text`), and its findings in order."""

    name: str
    text: bytes
    findings: list[Reported]


class Prepared(Struct):
    """Contents of a run: the documents to send, and the external ids of findings in excluded paths (`left_out`).

    `is_partial` is whether a tool reported that it did not check everything. `source` is the repository and the commit
    that the documents name, if any. `label` is used if the project type is registered.
    """

    project_type: str = ""
    label: str | None = None
    documents: list[Upload] = []
    source: dict[str, str] = {}
    left_out: set[str] = set()
    is_partial: bool = False


COMMIT = r"[0-9A-Za-z]{1,64}\Z"


def source_of(run: Json) -> dict[str, str]:
    """Return the first repository and commit that a run names (SARIF 2.1.0, 3.14.28), or {}."""
    provenance = run.get("versionControlProvenance")
    for each in filter(lambda each: isinstance(each, dict), provenance if isinstance(provenance, list) else ()):
        repository, commit = str(each.get("repositoryUri")), str(each.get("revisionId") or "")
        repository = regex.sub(r"(?<=://)[^/]*@|[?#].*", "", repository[:2048])  # without password
        if regex.match(HTTP_URL, repository) and regex.match(COMMIT, commit):
            return {"repository": repository, "commit": commit}
    return {}


def add_run_properties(documents: Sequence[Scanned], renames: Mapping[str, str]) -> Iterator[Scanned]:
    """Add renamed paths, and the folder in which a run's base path differs (`folders_of`), to properties of runs.

    Yield the document of each changed run, so that a document can occur twice.
    """
    from findings_adapters.sarif.reading import folders_of  # here, because the other commands do not load SARIF

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
    """Return the contents of a run for each tool and category; without `by_tool`, of one run for ("", "").

    Configured severities are applied to the findings, and excluded findings are removed.

    :param most: limit of a document in bytes.
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
    """Combine pieces into the contents of one run: one document, or several if it would be too large."""
    contents = Prepared()
    for _, run, found in pieces:
        contents.source = contents.source or source_of(run)
        contents.is_partial |= any(each.rule == UNCHECKED and OURS in each.properties for each in found)
        contents.left_out |= {each.external_id for each in found if each.external_id and each.is_left_out}
    files = [*dict.fromkeys(scanned for scanned, *_ in pieces)]
    names = ", ".join(dict.fromkeys(each.name for each in files))
    if is_share := len(pieces) < sum(len(each.log["runs"]) for each in files):
        names += f", {tool_of(pieces[0][1])}"
    reports = [report for each in files for report in each.parsed.reports]
    text_size = sum(len(f"{report.description}{report.remediation}") for report in reports)
    size = sum(len(each.text) for each in files)
    shares = (TEXT_AT_ONCE / max(text_size, 1), most / size if len(files) > 1 else 1)
    at_once = min(RESULTS_AT_ONCE, *(int(len(reports) * share) or 1 for share in shares))
    findings = [each for *_, found in pieces for each in found if not each.is_left_out]
    if is_share or len(files) > 1 or files[0].is_changed or len(findings) > at_once:
        contents.documents = [*parts_of(names, pieces, findings, at_once)]
    else:
        contents.documents = [Upload(names, files[0].text, findings)]
    return contents


RESULTS_AT_ONCE = 20_000  # results in one request, so that other writes do not wait long
TEXT_AT_ONCE = 32 * KIB * KIB  # characters of rule texts in one request, on average: half of a document's limit


def parts_of(name: str, pieces: Sequence[Piece], findings: Sequence[Reported], at_once: int) -> Iterator[Upload]:
    """Yield documents of at most `at_once` findings, or more if these are in one source file, which is not split."""
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
        yield Upload(name, encode_json(log, name), [each for each in findings if id(each.result) in part])


def reported_in(log: Json, parsed: Parsed) -> list[list[Reported]]:
    """Return the findings of a document, in one list for each of its runs."""
    reported = [list[Reported]() for _ in log["runs"]]
    for report, (text, pointer) in zip(parsed.reports, parsed.extensions, strict=True):
        _, _, run, _, number, *_ = pointer.split("/")
        result = log["runs"][int(run)]["results"][int(number)]
        extensions = msgspec.json.decode(text or "{}")
        severity = SEVERITIES[-report.severity]
        rule = str(result.get("ruleId") or report.rule or "").strip()
        reported[int(run)].append(Reported(result, report.external_id, severity, rule, spot_of(result, extensions)))
    return reported


def spot_of(result: Json, known: Json) -> Spot:
    """Return the position of a result; the path is the `file` of its extensions (`known`), which is normalized."""
    first: Json = next(filter(None, result.get("locations") or ()), {})
    place = member(first, "physicalLocation")
    path = known.get("file") or unquote(text_in(place, "artifactLocation.uri"))
    names = ("startLine", "endLine", "startColumn", "endColumn")
    return Spot(str(path), *(counted(member(place, "region").get(each)) for each in names))


def counted(value: Any) -> int | None:
    """Return a line or column number of a region, or None if it is invalid; some tools write 1.0."""
    return int(value) if type(value) in (int, float) and 1 <= value < 2**31 else None


class Decider:
    """Decisions on severity and exclusion of findings by a configuration, with reasons for `--explain`."""

    def __init__(self, config: Config) -> None:
        self.config, self.explained = config, list[str]()
        self.ready = set[str]()  # tools to which a ready map was applied
        self.misread = list[str]()  # invalid values of security-severity
        self.by_message = 0  # results that are identified by their messages
        self.check = lru_cache(4096)(patterns_of(pattern for pattern, _ in config.patterns).check_file)

    def apply(self, run: Json, reported: Sequence[Reported]) -> bool:
        """Apply the configuration to a run and its findings; return whether the run was changed."""
        ready, decided = ready_map(run), False
        rules = [(rule.get("id"), member(rule, "properties")) for rule in rules_of(run)]
        scored = {str(name) for name, properties in rules if rank_of(properties)}
        bags = (*(properties for _, properties in rules), *(each.properties for each in reported))
        self.misread += (str(bag[SCORE]) for bag in bags if is_misread(bag))

        @lru_cache(4096)
        def decide(rule: str, has_own: bool) -> tuple[str, str] | None:  # the first that knows the rule decides
            lines = [*self.config.lines, *(() if has_own else ready)]
            return next(filter(None, (each.decide(rule) for each in lines)), None)

        for each in reported:
            if pattern := self.pattern_of(each.spot.path):
                each.is_left_out = True
                self._explain("excluded", each, pattern)
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
        """Return the pattern that excludes a path, with its source, or "" if none does."""
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
    """Write severities of findings into results; remove rules' scores, which would override the level `none`."""
    from findings_adapters.sarif.writing import LEVELS, score_of  # here, because the other commands do not load SARIF

    for rule in rules_of(run):
        member(rule, "properties").pop(SCORE, None)
    for each in kept:
        properties = {name: value for name, value in each.properties.items() if name != SCORE}
        each.result |= {"level": LEVELS[each.severity], "properties": properties | score_of(each.severity)}
        if task := properties.get(OURS):
            task["severity"] = each.severity


def count_missing(service: Client, run_id: str, branch: str | None, external_ids: set[str]) -> int:
    """Count the findings in `external_ids` that completing the run will resolve: unreported ones of the branch."""
    if not external_ids:
        return 0
    missing = (each for each in service.tasks(missing_from=run_id) if each.branch == branch)
    return sum(regex.sub(r"-[0-9]+\Z", "", each.external_id or "") in external_ids for each in missing)
