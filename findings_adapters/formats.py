"""Reports of scanners that are no SARIF: each known tool has a reader, and what it reads goes on as a SARIF document.

A file is known by what it holds. A reader gives findings, and `as_sarif` writes them as results that carry their tasks
whole, so that the rest of `scan` has one format to deal with. A report that says that its tool failed is refused, and
what a tool could not look at is a finding of its own: neither must look like a clean scan.
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
from findings_service import (
    NOT_JSON,
    SEVERITIES,
    UNCHECKED,
    Parsed,
    Problem,
    ValidationFailed,
    truncate,
)

MESSAGE = 500  # characters, like the next
TEXT = 4096  # what is looked at of a text that is cut to less
parse_any_weight = partial(parse, weight=math.inf)  # the service checks the parts that it is sent


def refusal(detail: str) -> ValidationFailed:
    """Return the error that tells why a report cannot be used."""
    return ValidationFailed([Problem(truncate(" ".join(detail.split()), MESSAGE), "")])


# ---------------------------------------------------------------------------
# What readers give
# ---------------------------------------------------------------------------


class ReadFinding(Struct):
    """What a tool found, in its own words and of any length.

    It is in a file (`path`) or on a `page`, or in a `part` of it: an element by its selector, a package by its name.
    `mark` replaces code that must not be stored. With `has_message`, the title distinguishes it from others of its rule
    if there is no code.
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
        """Where it is, without the line."""
        return ": ".join(filter(None, (self.path or self.page, self.part)))

    @property
    def uri(self) -> str:
        """The file or page as a URI."""
        return self.page or quote(self.path, errors="replace")

    def identities(self, tool: str, renames: Mapping[str, str]) -> Identities:
        """Return the identities of the finding, as of a SARIF result, also under its earlier path."""
        before = [replace(self, path=renames[self.path])] if self.path in renames else []
        places = [ResultPlace(each.place, code=[(None, self.code or self.mark)]) for each in (self, *before)]
        return identities_of(Result(), tool, self.rule, places, self.title if self.has_message else "")

    def report(self) -> dict[str, Any]:
        """Return it as a task is submitted, each text cut to what a task may have."""
        fitting = [tag for tag in self.tags if len(tag) < TEXT]
        rule, location, tags = foreign_labels(self.rule[:TEXT], self.place[-TEXT:], self.line, fitting)
        code = ResultPlace(location or "", code=[(None, self.code)]).evidence if self.code or self.line else ()
        told = {
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
        return {name: value for name, value in told.items() if value}

    def result(self, known: Identities) -> dict[str, Any]:
        """Return it as a SARIF result."""
        region = {"startLine": self.line} if self.line else {}
        place = {"physicalLocation": {"artifactLocation": {"uri": self.uri}, "region": region}}
        report = self.report()
        if known.former:
            report["formerExternalIds"] = known.former
        return {
            "ruleId": self.rule,
            "message": {"text": report["title"]},
            "locations": [place] if self.path else [],  # a page is no path, by which it could be left out
            "fingerprints": {IDENTITY: known.id, OLD_IDENTITY: known.old},
            "properties": {OURS: report},
        }


def unchecked(reason: str, **where: Any) -> ReadFinding:
    """Return the finding that something was not looked at; `where` has the fields of its place."""
    return ReadFinding(f"Not checked: {reason}", "high", UNCHECKED, **where)


def on_page(url: str) -> str:
    """Say on which page something is, without what signs in there."""
    return url and f"On {re.sub(r'//[^/?#@]*@', '//', url)}"


def severity_of(word: str, otherwise: str = "medium") -> str:
    """Return the severity that a word means; npm's moderate and trivy's UNKNOWN, say, are none."""
    return word.lower() if word.lower() in SEVERITIES else otherwise


class Row:
    """An object of a report. What is not there, or null, is empty; what is of another kind than asked is refused."""

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
        """Return a text, "" where there is none."""
        return self._get(name, str) or ""

    def number(self, name: str) -> float | None:
        """Return a number."""
        given: float | None = self._get(name, int | float)
        return given

    def line(self, name: str) -> int | None:
        """Return the number of a line, None where it is none."""
        return whole(self.number(name), 1)

    def items(self, name: str) -> list[Any]:
        """Return an array."""
        return self._get(name, list) or []

    def texts(self, name: str) -> list[str]:
        """Return the texts of an array."""
        return [each for each in self.items(name) if isinstance(each, str)]

    def row(self, name: str) -> Row:
        """Return an object, an empty one where there is none."""
        return Row(self._get(name, dict) or {})

    def rows(self, name: str) -> list[Row]:
        """Return the objects of an array."""
        return [Row(each) for each in self.items(name)]


# ---------------------------------------------------------------------------
# Accessibility: axe, pa11y, Lighthouse
# ---------------------------------------------------------------------------

IMPACT = {"critical": "critical", "serious": "high", "moderate": "medium", "minor": "low"}


def selector_of(node: Row) -> str:
    """Return an element's selector: axe has one for each frame on the way, or a list, for each shadow tree."""
    way = node.members.get("target") or ()
    steps = (each if isinstance(each, list) else [each] for each in ([way] if isinstance(way, str) else way))
    return " ".join(" >>> ".join(map(str, step)) for step in steps)


def axe(page: Row) -> Iterator[ReadFinding]:
    """Read what axe-core found (https://github.com/dequelabs/axe-core/blob/develop/doc/API.md#results-object).

    What it leaves to people to look at, its `incomplete`, is told as information.
    """
    if not any(page.rows(kind) for kind in ("violations", "passes", "incomplete", "inapplicable")):
        raise refusal(f"axe applied no rule to {page['url'] or 'the page'}")
    for kind in ("violations", "incomplete"):
        is_sure = kind == "violations"
        for rule in page.rows(kind):
            error = rule.members.get("error")  # which ended it early
            if error:
                said = error.get("message") if isinstance(error, dict) else error
                yield unchecked(f"{rule['help'] or rule['id']}: {said}", page=page["url"])
            for node in () if error else rule.rows("nodes"):
                yield ReadFinding(
                    rule["help"] or rule["description"],
                    IMPACT.get(node["impact"] or rule["impact"], "medium") if is_sure else "info",
                    rule["id"],
                    page=page["url"],
                    part=selector_of(node),
                    code=node["html"],
                    description=(rule["description"], on_page(page["url"])),
                    fixes=(node["failureSummary"], rule["helpUrl"]),
                    tags=[*(() if is_sure else ["needs-review"]), *rule.texts("tags")],
                )


PA11Y_TYPES = {"error": "high", "warning": "medium", "notice": "info"}
HTMLCS = re.compile(r"(WCAG2A{1,3})\.Principle\d\.Guideline\d_\d\.(\d+)_(\d+)_(\d+)\..*")


def pa11y(issue: Row, url: str = "") -> Iterator[ReadFinding]:
    """Read what pa11y found (https://github.com/pa11y/pa11y), its criteria named as axe does: wcag143."""
    if not issue["code"]:  # so pa11y-ci tells why it could not test a page
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


def pa11y_ci(report: Row) -> Iterator[ReadFinding]:
    """Read what pa11y-ci writes, by the pages' addresses (https://github.com/pa11y/pa11y-ci)."""
    pages = report.row("results")
    failed = [each["message"] for url in pages.members for each in pages.rows(url)[:1] if not each["code"]]
    if len(failed) == len(pages.members):
        raise refusal("pa11y-ci tested no page" + "".join(f": {message}" for message in failed[:1]))
    for url in pages.members:
        for issue in pages.rows(url):
            yield from pa11y(issue, url)


LEARN_MORE = re.compile(r"\[([^\[\]]*)\]\((https?://[^()\s]+)\)")
PASSED = 0.9  # the score from which on Lighthouse shows an audit as passed


CUT_SHORT = re.compile("Results may be incomplete")  # where a page took too long


DEFAULT_PORTS = (80, 443)


def final_url(report: Row) -> str:
    """Return the address of the page that was looked at."""
    return report["finalDisplayedUrl"] or report["finalUrl"]


def route_of(there: SplitResult) -> str:
    """Return the fragment of an address if a page's program chooses by it what to show."""
    return there.fragment if there.fragment.startswith(("/", "!")) else ""


def page_key(there: SplitResult) -> tuple[str, int | None, str, str]:
    """Return the parts of an address that all addresses of its page share. :raises ValueError: for a broken port."""
    port = None if there.port in DEFAULT_PORTS else there.port
    return (there.hostname or "").removeprefix("www."), port, there.path.rstrip("/"), route_of(there).strip("!/")


def is_same_page(wanted: str, final: str) -> bool:
    """Return whether an address may be of the page that was asked for, which may get a scheme, www. and a query."""
    try:
        asked, there = urlsplit(wanted), urlsplit(final)
        is_same = page_key(asked) == page_key(there)
    except ValueError:
        return wanted == final
    return is_same and {*asked.query.split("&")} - {""} <= {*there.query.split("&")}


def lighthouse(report: Row) -> Iterator[ReadFinding]:
    """Read the audits that a page did not pass, each once, though it may count in several categories.

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


def lighthouse_audit(report: Row, audit: Row, groups: list[str], severity: str) -> Iterator[ReadFinding]:
    """Give a finding for each element that an audit says has failed, for the page where it names none."""
    url, details = final_url(report), audit.row("details")
    how, score = audit["scoreDisplayMode"], audit.number("score")
    if how == "error":
        yield unchecked(f"{audit['title']}: {audit['errorMessage']}", page=url)
    if how in ("error", "informative") or score is None or score >= PASSED:
        return
    items = details.members.get("items")
    items = items if isinstance(items, list) else []
    nodes = [each.get("node") for each in items if isinstance(each, dict)]
    elements = [Row(each) for each in nodes if isinstance(each, dict) and each.get("selector")]
    words = audit["description"][:TEXT]
    told = cut_bytes(msgspec.json.encode(items).decode(), RULE_TEXT) if any(items) and not elements else ""
    for number, node in enumerate(elements or [Row({})]):
        log = [{"type": "log", "label": "What Lighthouse tells of it", "content": told}] if told else ()
        yield ReadFinding(
            ": ".join(filter(None, (audit["title"], audit["displayValue"]))),
            IMPACT.get(details.row("debugData")["impact"], severity),
            audit["id"],
            page=url,
            part=node["selector"],
            code=node["snippet"],
            description=(LEARN_MORE.sub(r"\1", words), on_page(url)),
            fixes=(node["explanation"], *(link[2] for link in LEARN_MORE.finditer(words))),
            tags=[*groups, *details.row("debugData").texts("tags")],
            evidence=[*(lighthouse_picture(report, node.row("boundingRect")) if number == 0 else ()), *log],
        )


PICTURE = re.compile(r"data:image/(?:png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]+")


def lighthouse_picture(report: Row, element: Row) -> Sequence[dict[str, str]]:
    """Return the page's screenshot as evidence, the whole one if it fits, and where on it an element is."""
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


def bandit(report: Row) -> Iterator[ReadFinding]:
    """Read what bandit found; it writes lines with their numbers, of which the finding's own is taken."""
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


def eslint(file: Row) -> Iterator[ReadFinding]:
    """Read what ESLint found (https://eslint.org/docs/latest/use/formatters/#json)."""
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


def mypy(each: Row) -> Iterator[ReadFinding]:
    """Read what mypy found (`mypy --output json`); at a file that it cannot parse it stops, whatever else there is."""
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


def pylint(each: Row) -> Iterator[ReadFinding]:
    """Read what pylint found (`--output-format=json`)."""
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


def pylint_2(report: Row) -> Iterator[ReadFinding]:
    """Read pylint's newer form (`--output-format=json2`)."""
    for each in report.rows("messages"):
        yield from pylint(each)


FAILURES = ("failure", "error")  # of a case
SUITES = ("testsuites", "testsuite")


class Tests(Struct):
    """The test cases of all JUnit files of a command, which are judged together: one class may have none."""

    files: list[str] = []
    run: int = 0
    error: str = ""

    def add(self, name: str, document: ElementTree.Element) -> None:
        """Count the cases of a file."""
        self.files.append(name)
        for case in document.iter("testcase"):
            if (error := case.find("error")) is not None:
                self.error = self.error or error.get("message", "") or "an error without a message"
            elif case.find("skipped") is None:
                self.run += 1

    def require_some(self) -> None:
        """Check that a test was run. :raises ValidationFailed: if all were skipped, or ended with an error."""
        if self.files and not self.run:
            reason = f"nothing but errors: {self.error}" if self.error else "no test was run"
            raise refusal(f"{', '.join(self.files)}: {reason}")


def junit(tests: ElementTree.Element) -> Iterator[ReadFinding]:
    """Read the tests that failed (https://github.com/testmoapp/junitxml), and suites that count more than they show."""
    yield from uncounted(tests)
    for case in tests.iter("testcase"):
        failure = next((each for each in case if each.tag in FAILURES), None)
        if failure is None and case.get("status") != "failed":
            continue
        name, group, file = (case.get(key, "") for key in ("name", "classname", "file"))
        told = case if failure is None else failure
        log = cut_bytes("".join(told.itertext()).strip(), SNIPPET)
        said = told.get("message", "").strip() or log or "failure"
        yield ReadFinding(
            f"{name}: {said.splitlines()[0]}",
            "high",
            ".".join(filter(None, (group, name))),
            path=file,
            part="" if file else group,
            description=(told.get("message"),),
            tags=["failure" if failure is None else failure.tag],
            evidence=[{"type": "log", "label": "What the test says", "content": log}] if log else (),
        )


def uncounted(tests: ElementTree.Element) -> Iterator[ReadFinding]:
    """Yield a finding for each error outside of a case, and for failures that no case of a suite shows.

    It names no place: the findings of a suite's cases have other locations than the suite.
    """
    shown = dict[ElementTree.Element, int]()
    for each in reversed([*tests.iter()]):  # inner ones come first
        name, count, reasons = each.get("name", ""), sum(shown[inner] for inner in each), list[str]()
        if each.tag == "testcase":
            count = sum(inner.tag in FAILURES for inner in each) or int(each.get("status") == "failed")
        elif each.tag in SUITES:
            for error in each.findall("error"):
                said = error.get("message") or "".join(error.itertext()).strip() or "an error without a message"
                reasons.append(said)
                count += 1
            total = sum(int(number) for key in ("errors", "failures") if (number := each.get(key, "")).isdecimal())
            if total > count:
                reasons.append(f"failures that the report counts and does not show: {total - count:,}")
                count = total
        for reason in reasons:
            yield unchecked(": ".join(filter(None, (name, reason))), mark=name)
        shown[each] = count


# ---------------------------------------------------------------------------
# Packages and secrets: npm audit, pip-audit, trivy, gitleaks, detect-secrets
# ---------------------------------------------------------------------------


def npm_audit(report: Row) -> Iterator[ReadFinding]:
    """Read the advisories, each of the package that it is about: for one that only depends on it, `via` is a name."""
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


def pip_audit(report: Row) -> Iterator[ReadFinding]:
    """Read the vulnerabilities. There is no severity in them: they count as high, as pip-audit fails by any."""
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


def trivy(report: Row) -> Iterator[ReadFinding]:
    """Read what trivy found (https://trivy.dev/latest/docs/configuration/reporting/#json); clean, it has no results.

    Of a secret, only the line in which trivy itself has masked it stands for it.
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


def gitleaks(leak: Row) -> Iterator[ReadFinding]:
    """Read where gitleaks found secrets, without these (https://github.com/gitleaks/gitleaks#reports)."""
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


def detect_secrets(report: Row) -> Iterator[ReadFinding]:
    """Read a baseline (https://github.com/Yelp/detect-secrets); what its audit calls no secret comes in dismissed."""
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
# Which tool wrote a file
# ---------------------------------------------------------------------------


class Known(Struct):
    """A form of a known tool, by the members that its object has; a list of such objects is of the same form."""

    tool: str
    members: str
    read: Callable[[Any], Iterable[ReadFinding]]
    may_be_empty: bool = False  # whether the tool writes [] when it finds nothing

    def fits(self, objects: Any) -> bool:
        """Tell whether objects are of this form."""
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

# What writes SARIF where it is asked to: the members of its own format, and how it is asked.
ADVICE = (
    ("results errors paths version", "have semgrep write SARIF: semgrep scan --sarif"),
    ("code filename location noqa_row", "have ruff write SARIF: ruff check --output-format sarif"),
    ("check_type results summary", "have checkov write SARIF: checkov --output sarif"),
    ("Issues Report", "have golangci-lint write SARIF: golangci-lint run --output.sarif.path FILE"),
    ("Issues Stats GosecVersion", "have gosec write SARIF: gosec -fmt sarif"),
    ("file line endLine column level code message", "have shellcheck-sarif make SARIF of what shellcheck writes"),
    ("file line column level code message", "have hadolint write SARIF: hadolint --format sarif"),
    ("matches source descriptor", "have grype write SARIF: grype --output sarif"),
    ("vulnerabilities packageManager", "have snyk write SARIF: snyk test --sarif"),
    ("scan_info warnings ignored_warnings", "have brakeman write SARIF: brakeman --format sarif"),
    ("advisories metadata", "have npm 7 or newer write it: npm audit --json"),
    ("id impact nodes helpUrl", "write all that axe.run() returns, not its violations alone"),
    ("violations toolOptions", "have axe write passes too, by its reporter v1 or v2: they say that it looked"),
    ("lighthouseResult", "write the member lighthouseResult of what the API returns"),
    ("steps name", "of a user flow of Lighthouse, write the lhr of each step"),
    ("isRepresentativeRun jsonPath", "name the files of its jsonPath"),
    ("auditId assertion", "name Lighthouse CI's lhr-*.json, not what it asserted"),
)
ACCEPTED = f"known are SARIF, and the JSON of {', '.join(dict.fromkeys(each.tool for each in KNOWN))}, and JUnit's XML"


XML_CONTROLS = bytes({*range(32)} - {9, 10, 13})


def xml_of(text: bytes) -> ElementTree.Element:
    """Read XML whose document type defines no entities, which may grow without end or name files.

    Control characters, which XML must not have and tests print, are left out.
    """

    def refuse(_: str, *more: Any) -> None:
        if any(more):
            raise refusal("XML with a document type that is more than a name is not read")

    builder, parser = ElementTree.TreeBuilder(), expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = builder.data, refuse
    try:
        parser.Parse(text if b"\0" in text else text.translate(None, XML_CONTROLS), True)
    except (expat.ExpatError, LookupError, ValueError) as error:  # the latter for encodings
        raise refusal(f"is broken XML: {error}") from None
    return builder.close()


# One half of a sign, where a tool has cut a text in the middle of it (RFC 8259, 8.2).
HIGH, LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
LONE_SURROGATE = re.compile(rb"%b(?!%b)|(?<!%b)%b" % (HIGH, LOW, HIGH, LOW))


def document_of(text: bytes) -> tuple[Any, bytes]:
    """Parse a file as JSON, JSON lines or XML; return UNSET for anything else.

    The text is returned too, mended where a tool has written half a sign.
    """
    if text.lstrip().startswith(b"<"):
        return xml_of(text), text
    text = without_nul(text)  # which is refused in a task
    for told in (text, LONE_SURROGATE.sub(rb"\\ufffd", text)):
        for decode in (msgspec.json.decode, msgspec.json.Decoder().decode_lines):
            with contextlib.suppress(*NOT_JSON):
                return decode(told), told
    return msgspec.UNSET, text


def objects_of(document: Any) -> list[Any]:
    """Return the items of a document; null is an empty list, as some tools write it."""
    return document if isinstance(document, list) else [] if document is None else [document]


def form_of(name: str, document: Any) -> Known | None:
    """Return the form of a document, None where that is left to the reader of SARIF.

    :raises ValidationFailed: for what is not known.
    """
    if isinstance(document, ElementTree.Element):
        if document.tag in SUITES:
            return JUNIT
        raise refusal(f"is XML of no known format; {ACCEPTED}")
    objects = objects_of(document)
    if not objects:
        empty = {each.tool: each for each in KNOWN if each.may_be_empty}
        named = [each for tool, each in empty.items() if tool in Path(name).name.lower()]
        if len(named) == 1:
            return named[0]
        text = msgspec.json.encode(document).decode()
        raise refusal(f"{text} does not name the tool that found nothing; name the file after it: {' or '.join(empty)}")
    if form := next((each for each in KNOWN if each.fits(objects)), None):
        return form
    first = objects[0] if isinstance(objects[0], dict) else {}
    if advice := next((told for marks, told in ADVICE if {*marks.split()} <= first.keys()), None):
        raise refusal(f"is of a format that is not read; {advice}")
    if isinstance(document, list) and "runs" in first:
        raise refusal("is an array of SARIF documents; write each into a file of its own")
    is_sarif = "runs" in first or "sarif" in str(first.get("$schema")).lower() or first.get("version") == VERSION
    if is_sarif or document is msgspec.UNSET:
        return None
    error = first.get("error")
    details = (error.get("code"), error.get("summary")) if isinstance(error, dict) else (error,)
    reasons = [each for each in (first.get("message"), *details) if isinstance(each, str) and each]
    if reasons and "error" in first:
        raise refusal(f"reports an error: {': '.join(reasons)}")
    raise refusal(f"is of no known format; {ACCEPTED}")


def findings_of(form: Known, document: Any) -> Iterator[ReadFinding]:
    """Read a document of a known form. :raises ValidationFailed: where it is broken, or its tool failed."""
    try:
        for each in objects_of(document):
            yield from form.read(each if form is JUNIT else Row(each))
    except (TypeError, ValueError) as error:
        raise refusal(f"is no report of {form.tool} as it is known: {error}") from None


def page_of(url: str) -> str:
    """Return a page as a location begins with it: without the host, which is another one for each preview."""
    try:
        there = urlsplit(url)
    except ValueError:
        return url
    route = f"#{route_of(there)}" if route_of(there) else ""
    return f"{there.path or '/'}{f'?{there.query}' if there.query else ''}{route}" if there.netloc else url


NO_RENAMES: Mapping[str, str] = {}


def as_sarif(
    name: str, text: bytes, source: str | None, most: int, tests: Tests, renames: Mapping[str, str] = NO_RENAMES
) -> tuple[bytes, int | None]:
    """Return a file as a SARIF document, and how many results their messages identify: None if it was one already.

    :param source: the checkout, for relative paths and code that is not in the file.
    :param tests: what counts the tests of all files.
    :param renames: paths with those that the files had before.
    :param most: bytes that the document may have.
    :raises ValidationFailed: where the file is of no known format, of a tool that failed, or comes to more.
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
            finding.code = checkout.line(finding.path, finding.line)  # where it may be shown
        known = finding.identities(form.tool, renames)
        by_message += known.by_message
        results.append(Raw(msgspec.json.encode(finding.result(known))))
        most -= memoryview(results[-1]).nbytes
        if most < 0:
            raise refusal("comes to more SARIF than FINDINGS_MAX_SARIF lets through: split it, or raise that")
    log = {"version": VERSION, "runs": [{"tool": {"driver": {"name": form.tool}}, "results": results}]}
    return msgspec.json.encode(log), by_message


def add_unchecked(log: dict[str, Any], parsed: Parsed) -> bool:
    """Add the `not-checked` findings of a SARIF document to its results, so that it can be sent in parts.

    Return whether there are any. The document says nothing more of what failed then.
    """
    is_partial = False
    for report, (_, pointer) in zip(parsed.reports, parsed.extensions, strict=True):
        _, _, run, _, number, *_ = pointer.split("/")
        results = log["runs"][int(run)]["results"]
        if int(number) == len(results):  # which only what was not checked has
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
