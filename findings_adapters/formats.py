"""Readers of scanners' own report formats, and their conversion to SARIF documents.

The format of a file is recognized by its content, that of an empty list by the file's name. A reader yields findings,
and `as_sarif` writes them as results with complete tasks, so that the rest of `scan` only processes SARIF. A report of
a failed tool is refused, and what a tool could not check becomes a finding: neither must look like a clean scan.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.parsers import expat

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from findings_adapters.sarif.identities import LABEL_LENGTH, SNIPPET, Identities, ResultPlace, identities_of
from findings_adapters.sarif.models import IDENTITY, OLD_IDENTITY, OURS, Result, whole
from findings_adapters.sarif.reading import DESCRIPTION, RULE_TEXT, VERSION, parse, without_nul
from findings_adapters.sarif.source import NOTICES, Checkout, objects_at, reading_of, with_source
from findings_features.labels import cut_bytes, foreign_labels, plain_text
from findings_service import NOT_JSON, SEVERITIES, UNCHECKED, Json, Parsed, Problem, ValidationFailed, truncate

MESSAGE = 500  # characters of an error message
TEXT = 4096  # characters of a text that are read before it is cut
parse_any_weight = partial(parse, weight=math.inf)  # the service checks the weight of each part that is sent


def refusal(detail: str) -> ValidationFailed:
    """Return the error for a report that cannot be used; its message is `detail`, as one line of limited length."""
    return ValidationFailed([Problem(truncate(" ".join(detail.split()), MESSAGE), "")])


# ---------------------------------------------------------------------------
# Findings and report objects
# ---------------------------------------------------------------------------


class ReadFinding(Struct):
    """Finding in a tool's report, with texts as the tool wrote them, of any length.

    It is in a file (`path`) or on a `page`, or in a `part` of it: an element (by selector) or a package (by name).
    `mark` identifies the finding in place of code that must not be stored. If `has_message` is set and `code` and
    `mark` are empty, the title is part of the finding's identity.
    """

    title: str
    severity: str
    rule: str = ""
    path: str = ""
    page: str = ""
    line: int | None = None
    part: str = ""
    code: str = ""
    mark: str = ""
    has_message: bool = False
    description: Iterable[str | None] = ()
    fixes: Iterable[str | None] = ()
    tags: Iterable[str] = ()
    evidence: Sequence[dict[str, str]] = ()
    is_dismissed: bool = False

    @property
    def place(self) -> str:
        """File or page of the finding, followed by the part in it, if any: `path: part`."""
        return ": ".join(filter(None, (self.path or self.page, self.part)))

    @property
    def uri(self) -> str:
        """URL of the page, else the path of the file as a URI."""
        return self.page or quote(self.path, errors="replace")

    def identities(self, tool: str, renames: Mapping[str, str]) -> Identities:
        """Return the identities of the finding, as for a SARIF result, also for its earlier path in `renames`."""
        before = [replace(self, path=renames[self.path])] if self.path in renames else []
        places = [ResultPlace(each.place, code=[(None, self.code or self.mark)]) for each in (self, *before)]
        return identities_of(Result(), tool, self.rule, places, self.title if self.has_message else "")

    def report(self) -> Json:
        """Return the finding as the JSON object of a submitted task; cut each text to the task's limits."""
        tags_read = [tag for tag in self.tags if len(tag) < TEXT]
        rule, location, tags = foreign_labels(self.rule[:TEXT], self.place[-TEXT:], self.line, tags_read)
        code = ResultPlace(location or "", code=[(None, self.code)]).evidence if self.code or self.line else ()
        members = {
            "title": truncate(plain_text(self.title[:TEXT]) or rule or "Untitled", 500),
            "severity": self.severity,
            "status": "dismissed" if self.is_dismissed else None,
            "description": cut_bytes("\n\n".join(filter(None, self.description)), DESCRIPTION),
            "evidence": [*code, *self.evidence],
            "remediation": [{"instruction": cut_bytes(fix, RULE_TEXT)} for fix in self.fixes if fix and fix.strip()],
            "rule": rule,
            "location": location,
            "tags": tags and Raw(tags),
        }
        return {name: value for name, value in members.items() if value}

    def result(self, known: Identities) -> Json:
        """Return a SARIF result with the complete task, which gets `known.former`; the other ids are fingerprints."""
        region = {"startLine": self.line} if self.line else {}
        place = {"physicalLocation": {"artifactLocation": {"uri": self.uri}, "region": region}}
        report = self.report()
        if known.former:
            report["formerExternalIds"] = known.former
        return {
            "ruleId": self.rule,
            "message": {"text": report["title"]},
            "locations": [place] if self.path else [],  # a page is not a path, which `--exclude` would match
            "fingerprints": {IDENTITY: known.id, OLD_IDENTITY: known.old},
            "properties": {OURS: report},
        }


def unchecked(reason: str, **where: Any) -> ReadFinding:
    """Return a `not-checked` finding with a reason; `where` has further fields, such as its path."""
    return ReadFinding(f"Not checked: {reason}", "high", UNCHECKED, **where)


def on_page(url: str) -> str:
    """Return "On URL", without the credentials in the URL, or "" if the URL is empty."""
    return url and f"On {re.sub(r'//[^/?#@]*@', '//', url)}"


def severity_of(word: str, otherwise: str = "medium") -> str:
    """Return the severity that a word names; if it names none, as npm's "moderate", return `otherwise`."""
    return word.lower() if word.lower() in SEVERITIES else otherwise


Findings = Iterator[ReadFinding]


class Row:
    """JSON object of a report. A missing or null member reads as empty; a wrong type raises `ValueError`."""

    def __init__(self, members: Any) -> None:
        if not isinstance(members, dict):
            raise TypeError(f"expected an object, got {type(members).__name__}")
        self.members = members

    def _get(self, name: str, kind: Any) -> Any:
        value = self.members.get(name)
        try:
            return None if value is None else msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise ValueError(f"{name}: {error}") from None

    def __getitem__(self, name: str) -> str:
        """Return the text of a member, or "" if it is missing."""
        return self._get(name, str) or ""

    def number(self, name: str) -> float | None:
        """Return the number in a member, or None if it is missing."""
        given: float | None = self._get(name, int | float)
        return given

    def line(self, name: str) -> int | None:
        """Return the number in a member as a line number, or None if it is missing or below 1."""
        return whole(self.number(name), 1)

    def items(self, name: str) -> list[Any]:
        """Return the array in a member, or [] if it is missing."""
        return self._get(name, list) or []

    def texts(self, name: str) -> list[str]:
        """Return the texts of the array in a member; skip items of other types."""
        return [each for each in self.items(name) if isinstance(each, str)]

    def row(self, name: str) -> Row:
        """Return the object in a member as a row, or an empty row if it is missing."""
        return Row(self._get(name, dict) or {})

    def rows(self, name: str) -> list[Row]:
        """Return the items of the array in a member as rows. :raises TypeError: if an item is not an object."""
        return [Row(each) for each in self.items(name)]


# ---------------------------------------------------------------------------
# Accessibility: axe, pa11y, Lighthouse
# ---------------------------------------------------------------------------

IMPACT = {"critical": "critical", "serious": "high", "moderate": "medium", "minor": "low"}


def selector_of(node: Row) -> str:
    """Return an element's selectors as one text: axe lists one per frame, or in a frame one per shadow tree."""
    way = node.members.get("target") or ()
    steps = (each if isinstance(each, list) else [each] for each in ([way] if isinstance(way, str) else way))
    return " ".join(" >>> ".join(map(str, step)) for step in steps)


def axe(page: Row) -> Findings:
    """Read a report of axe-core; results that people must review (`incomplete`) get the severity info.

    https://github.com/dequelabs/axe-core/blob/develop/doc/API.md#results-object
    """
    if not any(page.rows(kind) for kind in ("violations", "passes", "incomplete", "inapplicable")):
        raise refusal(f"axe applied no rule to {page['url'] or 'the page'}")
    for kind in ("violations", "incomplete"):
        is_violation = kind == "violations"
        for rule in page.rows(kind):
            error = rule.members.get("error")  # the rule ended early
            if error:
                message = error.get("message") if isinstance(error, dict) else error
                yield unchecked(f"{rule['help'] or rule['id']}: {message}", page=page["url"])
            for node in () if error else rule.rows("nodes"):
                yield ReadFinding(
                    rule["help"] or rule["description"],
                    IMPACT.get(node["impact"] or rule["impact"], "medium") if is_violation else "info",
                    rule["id"],
                    page=page["url"],
                    part=selector_of(node),
                    code=node["html"],
                    description=(rule["description"], on_page(page["url"])),
                    fixes=(node["failureSummary"], rule["helpUrl"]),
                    tags=[*(() if is_violation else ["needs-review"]), *rule.texts("tags")],
                )


PA11Y_TYPES = {"error": "high", "warning": "medium", "notice": "info"}
HTMLCS = re.compile(r"(WCAG2A{1,3})\.Principle\d\.Guideline\d_\d\.(\d+)_(\d+)_(\d+)\..*")


def pa11y(issue: Row, url: str = "") -> Findings:
    """Read an issue of pa11y (https://github.com/pa11y/pa11y); tag it with its criterion as axe does: wcag143."""
    if not issue["code"]:  # pa11y-ci: the page could not be tested
        yield unchecked(f"{url or 'the page'} could not be tested: {issue['message']}", page=url)
        return
    criterion, extras = HTMLCS.fullmatch(issue["code"]), issue.row("runnerExtras")
    yield ReadFinding(
        extras["help"] or issue["message"],
        IMPACT.get(extras["impact"], PA11Y_TYPES.get(issue["type"], "medium")),
        issue["code"],
        page=url,
        part=issue["selector"],
        code=issue["context"],
        description=(issue["message"], extras["description"], on_page(url)),
        fixes=(extras["helpUrl"],),
        tags=[criterion[1], "wcag" + "".join(criterion.groups()[1:])] if criterion else (),
    )


def pa11y_ci(report: Row) -> Findings:
    """Read a report of pa11y-ci, which lists issues by page URL (https://github.com/pa11y/pa11y-ci)."""
    pages = report.row("results")
    failed = [each["message"] for url in pages.members for each in pages.rows(url)[:1] if not each["code"]]
    if len(failed) == len(pages.members):
        raise refusal("pa11y-ci tested no page" + "".join(f": {message}" for message in failed[:1]))
    for url in pages.members:
        for issue in pages.rows(url):
            yield from pa11y(issue, url)


LEARN_MORE = re.compile(r"\[([^\[\]]*)\]\((https?://[^()\s]+)\)")
PASSED = 0.9  # lowest score at which Lighthouse shows an audit as passed
CUT_SHORT = re.compile("Results may be incomplete")  # in the warning for a page that took too long
DEFAULT_PORTS = (80, 443)


def final_url(report: Row) -> str:
    """Return the URL of the page that Lighthouse audited, or "" if the report has none."""
    return report["finalDisplayedUrl"] or report["finalUrl"]


def route_of(url: SplitResult) -> str:
    """Return the fragment of a URL if it is the route of a single-page application, else ""."""
    return url.fragment if url.fragment.startswith(("/", "!")) else ""


def page_key(url: SplitResult) -> tuple[str, int | None, str, str]:
    """Return host, port, path and route, which identify a page. :raises ValueError: if the port is invalid."""
    port = None if url.port in DEFAULT_PORTS else url.port
    return (url.hostname or "").removeprefix("www."), port, url.path.rstrip("/"), route_of(url).strip("!/")


def is_same_page(wanted: str, final: str) -> bool:
    """Return whether two URLs are of one page; `final` may have another scheme, `www.` and added parameters."""
    try:
        first, second = urlsplit(wanted), urlsplit(final)
        is_same = page_key(first) == page_key(second)
    except ValueError:
        return wanted == final
    return is_same and {*first.query.split("&")} - {""} <= {*second.query.split("&")}


def lighthouse(report: Row) -> Findings:
    """Read a Lighthouse report: each audit that the page failed, once even if it is in several categories.

    https://github.com/GoogleChrome/lighthouse/blob/main/docs/understanding-results.md
    """
    error, categories = report.row("runtimeError"), report.row("categories")
    if error["code"] not in ("", "NO_ERROR") or not categories.members:
        raise refusal(f"Lighthouse failed: {error['message'] or error['code'] or 'it ran no category'}")
    wanted, final = report["requestedUrl"], final_url(report)
    if wanted and not is_same_page(wanted, final):
        shown = f"{final}, which is another page" if final else "a page that the report does not name"
        yield unchecked(f"{wanted} led to {shown}", page=wanted)
    for warning in filter(CUT_SHORT.search, report.texts("runWarnings")):
        yield unchecked(warning, page=final)
    groups, counted = defaultdict[str, list[str]](list), set[str]()
    for category in categories.members:
        for reference in categories.row(category).rows("auditRefs"):
            groups[reference["id"]].append(category)
            if reference.number("weight"):
                counted.add(reference["id"])
    for name, named in groups.items():
        audit, severity = report.row("audits").row(name), "medium" if name in counted else "low"
        yield from lighthouse_audit(report, audit, named, severity)


def lighthouse_audit(report: Row, audit: Row, groups: list[str], severity: str) -> Findings:
    """Yield a finding for each element that failed an audit, or one for the page if the audit names no element."""
    url, details = final_url(report), audit.row("details")
    mode, score = audit["scoreDisplayMode"], audit.number("score")
    if mode == "error":
        yield unchecked(f"{audit['title']}: {audit['errorMessage']}", page=url)
    if mode in ("error", "informative") or score is None or score >= PASSED:
        return
    items = details.members.get("items")
    items = items if isinstance(items, list) else []
    nodes = [each.get("node") for each in items if isinstance(each, dict)]
    elements = [Row(each) for each in nodes if isinstance(each, dict) and each.get("selector")]
    description = audit["description"][:TEXT]
    details_text = cut_bytes(msgspec.json.encode(items).decode(), RULE_TEXT) if any(items) and not elements else ""
    for number, node in enumerate(elements or [Row({})]):
        log = [{"type": "log", "label": "Details from Lighthouse", "content": details_text}] if details_text else ()
        yield ReadFinding(
            ": ".join(filter(None, (audit["title"], audit["displayValue"]))),
            IMPACT.get(details.row("debugData")["impact"], severity),
            audit["id"],
            page=url,
            part=node["selector"],
            code=node["snippet"],
            description=(LEARN_MORE.sub(r"\1", description), on_page(url)),
            fixes=(node["explanation"], *(link[2] for link in LEARN_MORE.finditer(description))),
            tags=[*groups, *details.row("debugData").texts("tags")],
            evidence=[*(lighthouse_picture(report, node.row("boundingRect")) if number == 0 else ()), *log],
        )


PICTURE = re.compile(r"data:image/(?:png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]+")


def lighthouse_picture(report: Row, element: Row) -> Sequence[dict[str, str]]:
    """Return evidence with the full page's screenshot, else the final view's, or () if neither is small enough."""
    page = report.row("fullPageScreenshot").row("screenshot")["data"]
    pictures = (page, report.row("audits").row("final-screenshot").row("details")["data"])
    fitting = next((each for each in pictures if len(each) <= SNIPPET and PICTURE.fullmatch(each)), None)
    size = [element.members.get(side) for side in ("width", "height", "left", "top")]
    where = "; the element is {} × {} pixels at {}, {}".format(*size) if fitting == page and None not in size else ""
    label = truncate(f"The page{where}", LABEL_LENGTH)
    return [{"type": "screenshot", "label": label, "url": fitting}] if fitting else ()


# ---------------------------------------------------------------------------
# Code: bandit, ESLint, mypy, pylint, and tests
# ---------------------------------------------------------------------------


def bandit(report: Row) -> Findings:
    """Read a report of bandit; of the numbered code lines of a result, use only the line of the finding."""
    for error in report.rows("errors"):
        yield unchecked(error["reason"], path=error["filename"].removeprefix("./"))
    for each in report.rows("results"):
        line, cwe = each.line("line_number"), each.row("issue_cwe").line("id")
        lines = dict(text.partition(" ")[::2] for text in each["code"].splitlines())
        yield ReadFinding(
            each["issue_text"],
            severity_of(each["issue_severity"], "info"),
            each["test_id"],
            path=each["filename"].removeprefix("./"),
            line=line,
            code=lines.get(str(line), ""),
            description=(f"Confidence: {each['issue_confidence'].lower()}",),
            fixes=(each["more_info"],),
            tags=[each["test_name"], *([f"CWE-{cwe}"] if cwe else ())],
        )


def eslint(file: Row) -> Findings:
    """Read ESLint's messages for a file (https://eslint.org/docs/latest/use/formatters/#json)."""
    path, lines = file["filePath"], file["source"].splitlines()
    for each in file.rows("messages"):
        line = each.line("line")
        if each.members.get("fatal"):
            yield unchecked(each["message"], path=path, line=line)
            continue
        yield ReadFinding(
            each["message"],
            "high" if each.number("severity") == 2 else "medium",
            each["ruleId"],
            has_message=True,
            path=path,
            line=line,
            code=lines[line - 1] if line and line <= len(lines) else "",
        )


def mypy(each: Row) -> Findings:
    """Read a message of mypy (`mypy --output json`); mypy stops at a syntax error, which becomes `not-checked`."""
    if each["code"] == "syntax":
        yield unchecked(f"mypy stopped at {each['file']}:{each.line('line') or 1}: {each['message']}")
        return
    yield ReadFinding(
        each["message"],
        "high" if each["severity"] == "error" else "low",
        each["code"],
        has_message=True,
        path=each["file"],
        line=each.line("line"),
        fixes=(each["hint"],),
    )


PYLINT_TYPES = {"error": "high", "warning": "medium", "refactor": "low", "convention": "low"}


def pylint(each: Row) -> Findings:
    """Read a message of pylint (`--output-format=json`)."""
    if each["type"] == "fatal" or each["symbol"] == "syntax-error":
        yield unchecked(each["message"], path=each["path"], line=each.line("line"))
        return
    yield ReadFinding(
        each["message"],
        PYLINT_TYPES.get(each["type"], "info"),
        each["symbol"],
        has_message=True,
        path=each["path"],
        line=each.line("line"),
        description=(each["obj"] and f"In {each['obj']}",),
        tags=[each["type"]],
    )


def pylint_2(report: Row) -> Findings:
    """Read a report of pylint in the newer format (`--output-format=json2`)."""
    for each in report.rows("messages"):
        yield from pylint(each)


FAILURES = ("failure", "error")  # elements in a test case
SUITES = ("testsuites", "testsuite")


class Tests(Struct):
    """Counter of the tests that ran, over all JUnit files of a command; a single file may have none."""

    files: list[str] = []
    run: int = 0
    error: str = ""

    def add(self, name: str, document: ElementTree.Element) -> None:
        """Count the tests of a file that ran, without those with an error; keep the first error's message."""
        self.files.append(name)
        for case in document.iter("testcase"):
            if (error := case.find("error")) is not None:
                self.error = self.error or error.get("message", "") or "an error without a message"
            elif case.find("skipped") is None:
                self.run += 1

    def require_some(self) -> None:
        """Check that, if files were added, a test ran. :raises ValidationFailed: if none ran without an error."""
        if self.files and not self.run:
            reason = f"all tests ended with an error: {self.error}" if self.error else "no test was run"
            raise refusal(f"{', '.join(self.files)}: {reason}")


def junit(tests: ElementTree.Element) -> Findings:
    """Read failed tests, errors outside of them, and unlisted failures (https://github.com/testmoapp/junitxml)."""
    yield from unlisted_failures(tests)
    for case in tests.iter("testcase"):
        failure = next((each for each in case if each.tag in FAILURES), None)
        if failure is None and case.get("status") != "failed":
            continue
        name, group, file = (case.get(key, "") for key in ("name", "classname", "file"))
        element = case if failure is None else failure
        log = cut_bytes("".join(element.itertext()).strip(), SNIPPET)
        message = element.get("message", "").strip() or log or "failure"
        yield ReadFinding(
            f"{name}: {message.splitlines()[0]}",
            "high",
            ".".join(filter(None, (group, name))),
            path=file,
            part="" if file else group,
            description=(element.get("message"),),
            tags=["failure" if failure is None else failure.tag],
            evidence=[{"type": "log", "label": "Output of the test", "content": log}] if log else (),
        )


def unlisted_failures(tests: ElementTree.Element) -> Findings:
    """Yield findings for errors outside of test cases, and for failures that a suite counts but does not list.

    The findings have no place, because a suite's location differs from those of its cases.
    """
    shown = dict[ElementTree.Element, int]()
    for each in reversed([*tests.iter()]):  # inner ones come first
        name, count, reasons = each.get("name", ""), sum(shown[inner] for inner in each), list[str]()
        if each.tag == "testcase":
            count = sum(inner.tag in FAILURES for inner in each) or int(each.get("status") == "failed")
        elif each.tag in SUITES:
            for error in each.findall("error"):
                message = error.get("message") or "".join(error.itertext()).strip() or "an error without a message"
                reasons.append(message)
                count += 1
            total = sum(int(number) for key in ("errors", "failures") if (number := each.get(key, "")).isdecimal())
            if total > count:
                reasons.append(f"failures that the report counts but does not list: {total - count:,}")
                count = total
        for reason in reasons:
            yield unchecked(": ".join(filter(None, (name, reason))), mark=name)
        shown[each] = count


# ---------------------------------------------------------------------------
# Packages and secrets: npm audit, pip-audit, trivy, gitleaks, detect-secrets
# ---------------------------------------------------------------------------


def npm_audit(report: Row) -> Findings:
    """Read the advisories of packages; skip each `via` that only names another vulnerable package."""
    packages = report.row("vulnerabilities")
    for name in packages.members:
        package = packages.row(name)
        fix = package.members.get("fixAvailable")
        upgrade = f"Upgrade to {fix.get('name')} {fix.get('version')}" if isinstance(fix, dict) else "Run npm audit fix"
        for advisory in (Row(each) for each in package.items("via") if not isinstance(each, str)):
            yield ReadFinding(
                f"{name}: {advisory['title'] or 'vulnerable version'}",
                severity_of(advisory["severity"] or package["severity"]),
                advisory["url"].rpartition("/")[2],
                part=name,
                description=(f"Versions {advisory['range']}, in {', '.join(package.texts('nodes'))}",),
                fixes=(upgrade if fix else None, advisory["url"]),
                tags=advisory.texts("cwe"),
            )


def pip_audit(report: Row) -> Findings:
    """Read vulnerabilities. They have no severities; all get high, because pip-audit fails if there is any."""
    packages = report.rows("dependencies")
    skipped = [each for each in packages if each["skip_reason"]]
    if len(skipped) == len(packages):
        raise refusal("pip-audit audited nothing" + "".join(f": {each['skip_reason']}" for each in skipped[:1]))
    for package in packages:
        name = package["name"]
        if package["skip_reason"]:
            yield unchecked(package["skip_reason"], part=name)
        for each in package.rows("vulns"):
            fixed = " or ".join(each.texts("fix_versions"))
            yield ReadFinding(
                f"{name} {package['version']} has the vulnerability {each['id']}",
                "high",
                each["id"],
                part=name,
                description=(each["description"],),
                fixes=(fixed and f"Upgrade {name} to {fixed}",),
                tags=each.texts("aliases"),
            )


def trivy(report: Row) -> Findings:
    """Read a report of trivy (https://trivy.dev/latest/docs/configuration/reporting/#json).

    A clean report has no `Results`. A secret is identified by its line of code, in which trivy has masked the secret.
    """
    kinds = ("Vulnerabilities", "Misconfigurations", "Secrets", "Licenses")
    found = [(part["Target"], each) for part in report.rows("Results") for kind in kinds for each in part.rows(kind)]
    for target, each in found:
        if each["Status"] in ("PASS", "EXCEPTION"):
            continue
        package, version, fixed = each["PkgName"], each["InstalledVersion"], each["FixedVersion"]
        cause = each.row("CauseMetadata")
        title = each["Title"] or each["Message"] or each["VulnerabilityID"] or f"{each['Name']} licence"
        yield ReadFinding(
            f"{package}: {title}" if package else title,
            severity_of(each["Severity"]),
            each["VulnerabilityID"] or each["ID"] or each["RuleID"] or each["Name"],
            path=target,
            line=cause.line("StartLine") or each.line("StartLine"),
            part=package,
            mark=each["Match"] or cause["Resource"] or ("" if package else "finding"),
            description=(each["Message"], each["Description"], version and f"Installed: {package} {version}"),
            fixes=(each["Resolution"] or (fixed and f"Upgrade {package} to {fixed}"), each["PrimaryURL"]),
            tags=each.texts("CweIDs"),
        )


REVOKE = "Revoke the secret, then remove it from the code"


def gitleaks(leak: Row) -> Findings:
    """Read the place of a secret; do not store the secret (https://github.com/gitleaks/gitleaks#reports)."""
    yield ReadFinding(
        leak["Description"] or leak["RuleID"],
        "high",
        leak["RuleID"],
        path=leak["File"],
        line=leak.line("StartLine"),
        mark=leak["Match"] or "secret",
        description=(leak["Commit"] and f"In commit {leak['Commit']}",),
        fixes=(REVOKE,),
        tags=leak.texts("Tags"),
    )


def detect_secrets(report: Row) -> Findings:
    """Read a baseline (https://github.com/Yelp/detect-secrets); dismiss secrets audited as false positives."""
    results = report.row("results")
    for path, secret in [(file, each) for file in results.members for each in results.rows(file)]:
        yield ReadFinding(
            f"{secret['type']} in the code",
            "critical" if secret.members.get("is_verified") is True else "high",
            secret["type"],
            path=path,
            line=secret.line("line_number"),
            mark=secret["hashed_secret"] or "secret",
            fixes=(REVOKE,),
            is_dismissed=secret.members.get("is_secret") is False,
        )


# ---------------------------------------------------------------------------
# Recognizing formats
# ---------------------------------------------------------------------------


class Known(Struct):
    """Report format of a tool, recognized by `members`: the names, with spaces between, that each object has."""

    tool: str
    members: str
    read: Callable[[Any], Iterable[ReadFinding]]
    may_be_empty: bool = False  # whether the tool writes [] when it finds nothing

    def fits(self, objects: Any) -> bool:
        """Return whether each item is an object with the members of this format; true if there are no items."""
        wanted = {*self.members.split()}
        return all(isinstance(each, dict) and wanted <= each.keys() for each in objects)


KNOWN = (
    Known("axe-core", "violations passes", axe),
    Known("pa11y", "code message selector context", pa11y, may_be_empty=True),
    Known("pa11y", "total passes errors results", pa11y_ci),
    Known("Lighthouse", "lighthouseVersion audits", lighthouse),
    Known("Bandit", "results errors metrics", bandit),
    Known("ESLint", "filePath messages", eslint),
    Known("mypy", "file line message severity hint", mypy, may_be_empty=True),
    Known("pylint", "message-id symbol path", pylint, may_be_empty=True),
    Known("pylint", "messages statistics", pylint_2),
    Known("npm audit", "auditReportVersion vulnerabilities", npm_audit),
    Known("pip-audit", "dependencies fixes", pip_audit),
    Known("Trivy", "SchemaVersion ArtifactName", trivy),
    Known("gitleaks", "RuleID File StartLine", gitleaks, may_be_empty=True),
    Known("detect-secrets", "plugins_used results", detect_secrets),
)
JUNIT = Known("JUnit", "", junit)

# Formats that are not supported: the members that identify each, and the advice in the error message.
ADVICE = (
    ("results errors paths version", "use semgrep's SARIF output: semgrep scan --sarif"),
    ("code filename location noqa_row", "use ruff's SARIF output: ruff check --output-format sarif"),
    ("check_type results summary", "use checkov's SARIF output: checkov --output sarif"),
    ("Issues Report", "use golangci-lint's SARIF output: golangci-lint run --output.sarif.path FILE"),
    ("Issues Stats GosecVersion", "use gosec's SARIF output: gosec -fmt sarif"),
    ("file line endLine column level code message", "convert shellcheck's output with shellcheck-sarif"),
    ("file line column level code message", "use hadolint's SARIF output: hadolint --format sarif"),
    ("matches source descriptor", "use grype's SARIF output: grype --output sarif"),
    ("vulnerabilities packageManager", "use snyk's SARIF output: snyk test --sarif"),
    ("scan_info warnings ignored_warnings", "use brakeman's SARIF output: brakeman --format sarif"),
    ("advisories metadata", "use npm 7 or newer: npm audit --json"),
    ("id impact nodes helpUrl", "write the whole result of axe.run(), not only its violations"),
    ("violations toolOptions", "use axe's reporter v1 or v2, which writes passes too: they show that axe ran"),
    ("lighthouseResult", "write only the member lighthouseResult of the API's response"),
    ("steps name", "for a Lighthouse user flow, write the lhr of each step"),
    ("isRepresentativeRun jsonPath", "pass the files that its jsonPath names"),
    ("auditId assertion", "pass Lighthouse CI's lhr-*.json, not its assertion results"),
)
ACCEPTED = f"known formats: SARIF, JSON of {', '.join(dict.fromkeys(each.tool for each in KNOWN))}, and JUnit XML"


XML_CONTROLS = bytes({*range(32)} - {9, 10, 13})


def xml_of(text: bytes) -> ElementTree.Element:
    """Parse XML; refuse a document type definition, because entities may expand without limit or read files.

    Control characters are removed: XML does not allow them, but the output of tests may contain them.
    """

    def refuse(_: str, *more: Any) -> None:
        if any(more):
            raise refusal("contains a document type definition, which is not accepted; remove the definition")

    builder, parser = ElementTree.TreeBuilder(), expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = builder.data, refuse
    try:
        parser.Parse(text if b"\0" in text else text.translate(None, XML_CONTROLS), True)
    except (expat.ExpatError, LookupError, ValueError) as error:  # ValueError: an unknown encoding
        raise refusal(f"is not well-formed XML: {error}") from None
    return builder.close()


# Half of a surrogate pair, from a tool that cut a text in the middle of a character (RFC 8259, 8.2).
HIGH, LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
LONE_SURROGATE = re.compile(rb"%b(?!%b)|(?<!%b)%b" % (HIGH, LOW, HIGH, LOW))


def document_of(text: bytes) -> tuple[Any, bytes]:
    """Parse a file as JSON, JSON lines or XML; return the document, or UNSET for anything else, and the text.

    In JSON, U+FFFD replaces each escaped NUL, and each unpaired surrogate if it cannot be parsed otherwise.

    :raises ValidationFailed: if it starts with < but is not well-formed XML, or has a document type definition.
    """
    if text.lstrip().startswith(b"<"):
        return xml_of(text), text
    text = without_nul(text)  # a task must not contain NUL
    for candidate in (text, LONE_SURROGATE.sub(rb"\\ufffd", text)):
        for decode in (msgspec.json.decode, msgspec.json.Decoder().decode_lines):
            with contextlib.suppress(*NOT_JSON):
                return decode(candidate), candidate
    return msgspec.UNSET, text


def objects_of(document: Any) -> list[Any]:
    """Return the document if it is a list, [] for null (which some tools write), else a list with the document."""
    return document if isinstance(document, list) else [] if document is None else [document]


def form_of(name: str, document: Any) -> Known | None:
    """Return the format of a document, or None if the SARIF parser must read or refuse it.

    :raises ValidationFailed: if the format is unknown or not supported, or the tool wrote an error message instead.
    """
    if isinstance(document, ElementTree.Element):
        if document.tag in SUITES:
            return JUNIT
        raise refusal(f"is XML of an unknown format; {ACCEPTED}")
    objects = objects_of(document)
    if not objects:
        empty = {each.tool: each for each in KNOWN if each.may_be_empty}
        named = [each for tool, each in empty.items() if tool in Path(name).name.lower()]
        if len(named) == 1:
            return named[0]
        text = msgspec.json.encode(document).decode()
        raise refusal(f"{text} does not identify the tool; put its name into the file name: {' or '.join(empty)}")
    if form := next((each for each in KNOWN if each.fits(objects)), None):
        return form
    first = objects[0] if isinstance(objects[0], dict) else {}
    if advice := next((each for marks, each in ADVICE if {*marks.split()} <= first.keys()), None):
        raise refusal(f"is in a format that is not supported; {advice}")
    if isinstance(document, list) and "runs" in first:
        raise refusal("is an array of SARIF documents; write each to its own file")
    is_sarif = "runs" in first or "sarif" in str(first.get("$schema")).lower() or first.get("version") == VERSION
    if is_sarif or document is msgspec.UNSET:
        return None
    error = first.get("error")
    details = (error.get("code"), error.get("summary")) if isinstance(error, dict) else (error,)
    reasons = [each for each in (first.get("message"), *details) if isinstance(each, str) and each]
    if reasons and "error" in first:
        raise refusal(f"reports an error: {': '.join(reasons)}")
    raise refusal(f"is in an unknown format; {ACCEPTED}")


def findings_of(form: Known, document: Any) -> Findings:
    """Yield the findings in a document. :raises ValidationFailed: if it is invalid, or its tool failed."""
    try:
        for each in objects_of(document):
            yield from form.read(each if form is JUNIT else Row(each))
    except (TypeError, ValueError) as error:
        raise refusal(f"is not a valid report of {form.tool}: {error}") from None


def page_of(url: str) -> str:
    """Return path, query and route of a page's URL, without the host, which differs between previews of a site."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    route = f"#{route_of(parts)}" if route_of(parts) else ""
    return f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}{route}" if parts.netloc else url


NO_RENAMES: Mapping[str, str] = {}


def as_sarif(
    name: str, text: bytes, source: str | None, most: int, tests: Tests, renames: Mapping[str, str] = NO_RENAMES
) -> tuple[bytes, int | None]:
    """Convert a file to SARIF; return it with the number of results that are identified by their messages.

    The number is None for a file that is SARIF, or that is left for `parse` to refuse.

    :param source: the checkout, for relative paths and code that is not in the file.
    :param tests: the counter to which the tests of a JUnit file are added.
    :param renames: maps the paths of files to their earlier paths.
    :param most: limit in bytes of the results of the conversion.
    :raises ValidationFailed: if the format is unknown, the tool failed, or the results are over `most`.
    """
    document, text = document_of(text)
    form = form_of(name, document)
    if form is None:
        return (text if source is None else with_source(text, Path(source))), None
    if form is JUNIT:
        tests.add(name, document)
    checkout = Checkout(Path(source)) if source is not None else None
    results, by_message = list[Raw](), 0
    for finding in findings_of(form, document):
        finding.page = page_of(finding.page)
        if checkout and (uri := checkout.relative(finding.uri)):
            finding.path, finding.page = unquote(uri), ""
        if checkout and finding.path and finding.line and not (finding.code or finding.mark):
            finding.code = checkout.line(finding.path, finding.line)  # "" if the file must not be shown
        known = finding.identities(form.tool, renames)
        by_message += known.by_message
        results.append(Raw(msgspec.json.encode(finding.result(known))))
        most -= memoryview(results[-1]).nbytes
        if most < 0:
            raise refusal("converts to more SARIF than FINDINGS_MAX_SARIF allows; split it, or raise that limit")
    log = {"version": VERSION, "runs": [{"tool": {"driver": {"name": form.tool}}, "results": results}]}
    return msgspec.json.encode(log), by_message


def add_unchecked(log: Json, parsed: Parsed) -> bool:
    """Add the `not-checked` findings that `parse` derived to a document's results; return whether there are any.

    Then the document can be sent in parts. The failed runs and notifications that caused the findings are removed.
    """
    is_partial = False
    for report, (_, pointer) in zip(parsed.reports, parsed.extensions, strict=True):
        _, _, run, _, number, *_ = pointer.split("/")
        results = log["runs"][int(run)]["results"]
        if int(number) == len(results):  # only `not-checked` findings have this index
            finding = ReadFinding(report.title, "high", UNCHECKED, path=report.place[0])
            name = report.external_id or ""
            results.append(finding.result(Identities(name, old=name)))
            is_partial = True
    if is_partial:
        log["runs"] = [run for run in log["runs"] if not reading_of(run).faults]
        for invocation in objects_at(log, "runs", "invocations"):
            for name in ("executionSuccessful", *NOTICES):
                invocation.pop(name, None)
    return is_partial
