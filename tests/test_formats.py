"""Reports in the own formats of scanners. The samples in tests/formats were written by the tools."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from test_ci import Job, assert_one_line, job
from test_sarif import STRANGE_VALUES, at, ids_of, log_with, result, slots_in

import findings_service as core
from findings_adapters import formats
from findings_adapters.ci import read_documents
from findings_adapters.sarif.models import IDENTITY, OURS
from findings_adapters.sarif.reading import parse
from tests.clients import cases

__all__ = ["job"]

SAMPLES = Path(__file__).parent / "formats"
FOUND = {  # per sample: the project type, then severity, rule and location of each finding
    "axe.json": (
        "axe-core",
        "high color-contrast /: p",
        'critical image-alt /: img[src$="bread.png"]',
        "critical image-alt /: iframe img",
        "critical image-alt /: price-tag >>> .tag",
        "high link-name /: a",
        "critical image-alt /about.html: img",
        "info color-contrast /about.html: p",
    ),
    "pa11y.json": (
        "pa11y",
        "high WCAG2AA.Principle3.Guideline3_1.3_1_1.H57.2 html",
        "high WCAG2AA.Principle1.Guideline1_4.1_4_3.G18.Fail html > body > p",
        "high WCAG2AA.Principle1.Guideline1_1.1_1_1.H37 html > body > img",
        "critical image-alt html > body > main > img",
    ),
    "pa11y-ci.json": ("pa11y", "high WCAG2AA.Principle1.Guideline1_1.1_1_1.H37 /about.html: html > body > main > img"),
    "lighthouse.json": (
        "lighthouse",
        "high color-contrast /: body > p.pale",
        "critical image-alt /: body > img",
        "critical image-alt /: img.tag",
        "medium errors-in-console /",
        "medium meta-description /",
    ),
    "bandit.json": (
        "bandit",
        "high not-checked shop/broken.py",
        "high B324 shop/login.py:10",
        "high B602 shop/login.py:14",
    ),
    "eslint.json": (
        "eslint",
        "high not-checked /home/ci/shop/web/broken.js:1",
        "low no-unused-vars /home/ci/shop/web/cart.js:1",
        "low eqeqeq /home/ci/shop/web/cart.js:3",
        "high no-eval /home/ci/shop/web/cart.js:3",
    ),
    "mypy.json": ("mypy", "high return-value shop/login.py:14", "high operator shop/login.py:18"),
    "pylint.json": (
        "pylint",
        "low missing-module-docstring shop/login.py:1",
        "medium subprocess-run-check shop/login.py:14",
    ),
    "pylint-json2.json": ("pylint", "medium unused-import shop/login.py:2"),
    "npm-audit.json": ("npm-audit", "high GHSA-35jh-r3h4-6jhm lodash"),
    "pip-audit.json": ("pip-audit", "high PYSEC-2019-217 jinja2", "high not-checked shop"),
    "trivy.json": (
        "trivy",
        "high CVE-2019-14806 requirements.txt: Werkzeug",
        "high DS002 Dockerfile",
        "critical aws-access-key-id deploy.sh:3",
    ),
    "gitleaks.json": ("gitleaks", "high generic-api-key settings.cfg:1"),
    "detect-secrets.json": (
        "detect-secrets",
        "high AWS Access Key shop/login.py:5",
        "high Secret Keyword shop/login.py:6",
    ),
    "junit.xml": ("junit", "high test_cart.test_total test_cart", "high test_cart.test_order test_cart"),
}


def read(text: str | bytes, name: str = "report.json", source: Path | None = None) -> list[dict[str, Any]]:
    """Return the tasks of a report, after checking that the service accepts them."""
    content = text if isinstance(text, bytes) else text.encode()
    tests = formats.Tests()
    document, _ = formats.as_sarif(name, content, str(source) if source else None, core.Settings().max_sarif, tests)
    tests.require_some()
    parsed = parse(document, core.Settings())
    assert not parsed.problems
    results = json.loads(document)["runs"][0]["results"]
    assert len(parsed.reports) == len(results)
    return [each["properties"][OURS] | {"externalId": each["fingerprints"][IDENTITY]} for each in results]


def rejection_of(text: str | bytes, name: str = "report.json") -> str:
    """Return the error message of a rejected report."""
    with pytest.raises(core.ValidationFailed) as error:
        read(text, name)
    return error.value.problems[0].detail


def text_of(name: str) -> str:
    return (SAMPLES / name).read_text("utf-8")


@pytest.fixture
def samples(job: Job) -> Job:
    """A job with all samples in its folder."""
    shutil.copytree(SAMPLES, job.folder, dirs_exist_ok=True)
    return job


# Reports of each tool


def test_each_sample_is_tested() -> None:
    assert {file.name for file in SAMPLES.iterdir()} == FOUND.keys()


@pytest.mark.parametrize("name", FOUND)
def test_repeated_report_changes_no_finding(samples: Job, name: str) -> None:
    project_type, *expected = FOUND[name]
    samples.scan(name)
    tasks = samples.read("tasks?sort=createdAt&limit=200")["tasks"]
    assert {task["projectType"] for task in tasks} == {project_type}
    assert [f"{task['severity']} {task['rule']} {task['location']}" for task in tasks] == expected
    unchecked = sum(" not-checked " in each for each in expected)  # which always counts as new
    verdict = samples.scan_json(name, "--fail-on", "info", code=1 if unchecked else 0)
    assert verdict["runs"][0]["offendersTotal"] == unchecked
    assert samples.last_run()["submitted"]["unchanged"] == len(expected)


def test_accessibility_findings_have_description_fix_and_evidence(samples: Job) -> None:
    table = samples.scan("axe.json", "lighthouse.json", "--target", "https://shop.example").stdout
    assert re.search(r"\ncritical  new  /: iframe img +Images must have alternative text\n", table)
    lines = samples.scan("axe.json", "--target", "https://shop.example", "--format", "github", "--only", "all").stdout
    assert "::error title=critical%3A image-alt::Images must have alternative text (/: iframe img)\n" in lines
    by_axe, by_lighthouse = (
        samples.read(f"tasks?view=full&tag=wcag111&projectType={name}&sort=createdAt")["tasks"][0]
        for name in ("axe-core", "lighthouse")
    )
    assert by_axe["title"] == "Images must have alternative text"
    assert by_axe["description"].endswith("\n\nOn https://shop.example/")
    assert by_axe["remediation"][0]["instruction"].startswith("Fix any of the following:\n")
    assert "dequeuniversity.com/rules/axe" in by_axe["remediation"][1]["instruction"]
    assert by_axe["evidence"][0]["content"] == '<img src="bread.png" width="120" height="80">'
    code, screenshot = by_lighthouse["evidence"]
    assert (code["type"], code["content"]) == ("code", '<img src="bread.png" width="120" height="80">')
    assert screenshot["label"] == "The page; the element is 120 × 80 pixels at 8, 116"
    assert screenshot["url"].startswith("data:image/webp;base64,")
    assert by_lighthouse["description"].endswith("Learn more about the `alt` attribute.\n\nOn https://shop.example/")
    assert by_lighthouse["remediation"][1]["instruction"] == "https://dequeuniversity.com/rules/axe/4.10/image-alt"
    assert by_lighthouse["tags"][:3] == ["accessibility", "seo", "cat.text-alternatives"]


REWORDED = {
    "axe.json": {"https://shop.example": "http://127.0.0.1:8080", "Images must": "All images have to"},
    "bandit.json": {'"line_number": 10': '"line_number": 11', "10     r": "11     r", r"\n11 \n": r"\n12 \n"},
}


@pytest.mark.parametrize(("name", "replacements"), REWORDED.items())
def test_identity_ignores_host_line_and_message(name: str, replacements: dict[str, str]) -> None:
    text = text_of(name)
    ids = [task["externalId"] for task in read(text)]
    for old, new in replacements.items():
        assert old in text
        text = text.replace(old, new)
    assert [task["externalId"] for task in read(text)] == ids
    assert len(set(ids)) == len(ids)


def test_finding_has_the_same_identity_as_in_sarif() -> None:
    place = at("shop/login.py", 9, "return hashlib.md5(text.encode()).hexdigest()\n")
    document = log_with(result(ruleId="B324", locations=[place]), name="Bandit")
    assert ids_of(document) == [read(text_of("bandit.json"))[1]["externalId"]]


def test_source_folder_adds_relative_paths_and_code(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "login.py").write_text("\n" * 17 + "    return 'x' + 1\n")
    assert read(text_of("mypy.json"), source=tmp_path)[1]["evidence"][0]["content"] == "    return 'x' + 1"
    moved = read(text_of("eslint.json").replace("/home/ci/shop", str(tmp_path)), source=tmp_path)
    assert [task["location"] for task in moved] == ["web/broken.js:1", *(f"web/cart.js:{line}" for line in (1, 3, 3))]


def test_findings_in_unchecked_files_are_not_resolved(job: Job) -> None:
    report = json.loads(text_of("bandit.json"))
    other = report["results"][1] | {"filename": "other.py"}
    error = {"filename": report["results"][0]["filename"], "reason": "syntax error while parsing AST from file"}
    for part in ({"results": [report["results"][0], other], "errors": []}, {"results": [], "errors": [error]}):
        (job.folder / "bandit.json").write_text(json.dumps(report | part), "utf-8")
        output = job.scan("bandit.json", "--resolve-missing", code=1).stderr
    assert "bandit did not check everything: nothing is resolved in the files that its not-checked findings" in output
    statuses = {task["location"].partition(":")[0]: task["status"] for task in job.tasks().values()}
    assert statuses == {error["filename"]: "open", "other.py": "resolved"}


def test_exclude_patterns_do_not_match_pages(samples: Job) -> None:
    samples.scan("axe.json", "--exclude", "*")
    assert samples.read("tasks")["total"] == len(FOUND["axe.json"]) - 1


def test_lone_surrogate_in_a_report_is_accepted() -> None:
    text = text_of("pa11y.json").replace('"context": "', '"context": "\\ud83d', 1)
    assert len(read(text)) == len(read(text_of("pa11y.json")))


@pytest.mark.parametrize("name", ["gitleaks.json", "detect-secrets.json"])
def test_scan_never_sends_a_secret(samples: Job, name: str) -> None:
    for file in re.findall(r'"(?:File|filename)": "([^"]+)"', text_of(name)):
        (samples.folder / file).parent.mkdir(parents=True, exist_ok=True)
        (samples.folder / file).write_text('vendor_api_key = "not-to-be-stored"\n' * 99, "utf-8")
    [document] = read_documents([str(samples.folder / name)], str(samples.folder))
    assert b"not-to-be-stored" not in document.text


def test_secret_marked_as_false_is_dismissed() -> None:
    assert [task.get("status") for task in read(text_of("detect-secrets.json"))] == [None, "dismissed"]


# Clean scans, and scans that failed

CLEAN = cases(
    pylint=("pylint.json", "[]"),
    gitleaks=("out/gitleaks-report.json", "[]"),
    gitleaks_null=("gitleaks.json", "null\n"),
    eslint=("r.json", '[{"filePath": "a.js", "messages": []}]'),
    bandit=("r.json", '{"results": [], "errors": [], "metrics": {}}'),
    npm=("r.json", '{"auditReportVersion": 2, "vulnerabilities": {}}'),
    pip=("r.json", '{"dependencies": [{"name": "click", "version": "8.1.7", "vulns": []}], "fixes": []}'),
    trivy=("r.json", '{"SchemaVersion": 2, "ArtifactName": "."}'),
    axe=("r.json", '{"violations": [], "passes": [{"id": "bypass", "nodes": []}]}'),
    pa11y=("r.json", '{"total": 1, "passes": 1, "errors": 0, "results": {"https://shop.example/": []}}'),
    junit=("r.xml", '<testsuite><testcase name="a"/><testcase name="b"><skipped/></testcase></testsuite>'),
)


@pytest.mark.parametrize(("name", "text"), CLEAN)
def test_empty_report_is_a_clean_scan(name: str, text: str) -> None:
    assert read(text, name) == []


CASE = '<testcase name="a"><error message="no such module"/></testcase>'
FAILED = cases(
    unknown_tool=("[]", "[] does not identify the tool; put its name into the file name"),
    unknown_tool_null=("null", "null does not identify the tool"),
    axe=('{"url": "https://x/", "violations": [], "passes": []}', "axe applied no rule to https://x/"),
    pa11y=(
        '{"total": 1, "passes": 0, "errors": 1, "results": {"https://x/": [{"message": "net::ERR"}]}}',
        "pa11y-ci tested no page: net::ERR",
    ),
    pa11y_nothing=('{"total": 0, "passes": 0, "errors": 0, "results": {}}', "pa11y-ci tested no page"),
    lighthouse=(
        '{"lighthouseVersion": "12", "audits": {}, "categories": {"seo": {}},'
        ' "runtimeError": {"code": "NO_FCP", "message": "The page did not paint"}}',
        "Lighthouse failed: The page did not paint",
    ),
    lighthouse_nothing=('{"lighthouseVersion": "12", "audits": {}, "categories": {}}', "it ran no category"),
    pip=('{"dependencies": [{"name": "a", "skip_reason": "offline"}], "fixes": []}', "audited nothing: offline"),
    pip_nothing=('{"dependencies": [], "fixes": []}', "pip-audit audited nothing"),
    npm=('{"message": "405 Method Not Allowed", "error": {"summary": ""}}', "reports an error: 405 Method Not"),
    npm_code=('{"error": {"code": "ENOLOCK", "summary": "no lock"}}', "reports an error: ENOLOCK: no lock"),
    junit=(f"<testsuites><testsuite>{CASE}</testsuite></testsuites>", "all tests ended with an error: no such module"),
    junit_nothing=('<testsuite tests="0"/>', "no test was run"),
    junit_broken=("<testsuite><testcase>", "is not well-formed XML: "),
    laughs=('<!DOCTYPE t [<!ENTITY a "ha">]><testsuite>&a;</testsuite>', "contains a document type definition"),
    file=('<!DOCTYPE t [<!ENTITY a SYSTEM "file:///etc/passwd">]><testsuite/>', "contains a document type definition"),
    deep_xml=("<testsuite>" * 200_000, "is not well-formed XML"),
    deep_and_closed_xml=("<testsuite>" * 200_000 + "</testsuite>" * 200_000, "no test was run"),
    unknown_encoding=('<?xml version="1.0" encoding="x"?><testsuite/>', "is not well-formed XML"),
    other_xml=("<checkstyle/>", "is XML of an unknown format"),
    broken=('{"results": {}, "errors": [], "metrics": {}}', "is not a valid report of Bandit: results: Expected"),
)


@pytest.mark.parametrize(("text", "message"), FAILED)
def test_reports_of_failed_scans_and_dangerous_xml_are_rejected(text: str, message: str) -> None:
    assert message in rejection_of(text)


HIDDEN = [
    f"{suite}failures that the report counts but does not list: {n}" for suite, n in (("b: ", 2), ("", 1), ("b: ", 1))
]
SUITES = cases(
    counted=('<testsuite name="b" errors="1"/>', HIDDEN[2:]),
    counted_above=('<testsuites errors="2" failures="1"><testsuite name="b" errors="2"/></testsuites>', HIDDEN[:2]),
    counted_once=('<testsuites errors="1"><testsuite name="b" errors="1"/></testsuites>', HIDDEN[2:]),
    outside=('<testsuite name="b" errors="1"><error message="no such module"/></testsuite>', ["b: no such module"]),
    shown=('<testsuite name="b" failures="1"><testcase name="x"><error/></testcase></testsuite>', ()),
    no_number=('<testsuite name="b" errors="none"/>', ()),
)


@pytest.mark.parametrize(("text", "reasons"), SUITES)
def test_suite_that_could_not_run_creates_a_not_checked_finding(text: str, reasons: Sequence[str]) -> None:
    tasks = read(f'<testsuites>{text}<testsuite><testcase name="good"/></testsuite></testsuites>')
    unchecked = [(task["title"], task.get("location")) for task in tasks if task["rule"] == "not-checked"]
    assert unchecked == [(f"Not checked: {reason}", None) for reason in reasons]


def test_status_attribute_marks_a_failed_test_and_escapes_are_removed() -> None:
    case = '<testcase classname="a" name="b" status="failed"><system-out>\x1b[31mred</system-out></testcase>'
    (task,) = read(f"<!DOCTYPE testsuites><testsuite failures='1'>{case}</testsuite>")
    assert (task["rule"], task["title"], task["evidence"][0]["content"]) == ("a.b", "b: [31mred", "[31mred")


def test_junit_files_of_a_scan_are_evaluated_together(job: Job) -> None:
    files = {
        "good.xml": '<testsuite><testcase name="a"/></testsuite>',
        "empty.xml": '<testsuite tests="0"/>',
        "skipped.xml": '<testsuite tests="1"><testcase name="s"><skipped/></testcase></testsuite>',
        "thrown.xml": '<testsuite errors="1"><testcase name="t"><error message="x"/></testcase></testsuite>',
    }
    for name, text in files.items():
        (job.folder / name).write_text(text, "utf-8")
    job.scan("good.xml", "empty.xml", "skipped.xml", code=0)
    job.scan(*files, code=1)
    assert job.last_run()["submitted"]["created"] == 1
    assert_one_line(job.scan("empty.xml", "skipped.xml"), 2, "Error: empty.xml, skipped.xml: no test was run")
    assert_one_line(job.scan("empty.xml", "thrown.xml"), 2, "empty.xml, thrown.xml: all tests ended with an error: x")


REDIRECTS = cases(
    login=("https://shop.example/account", "https://login.example/?next=account", True),
    another=("https://shop.example/account", "https://shop.example/", True),
    scheme=("http://shop.example", "https://www.shop.example/", False),
    query=("https://shop.example/a", "https://shop.example/a/?lang=en#top", False),
    route=("https://shop.example/#/shop", "https://shop.example/#/login", True),
    same_route=("https://shop.example", "https://shop.example/#/", False),
    page_in_query=("https://shop.example/?p=shop", "https://shop.example/?p=login", True),
    more_in_query=("https://shop.example/?p=shop", "https://shop.example/?lang=en&p=shop", False),
    default_port=("http://Shop.example:80/a", "https://shop.example:443/a", False),
    another_port=("https://shop.example/a", "https://shop.example:8443/a", True),
    nowhere=("https://shop.example/a", "", True),
)


@pytest.mark.parametrize(("url", "final", "is_another"), REDIRECTS)
def test_page_that_redirects_to_another_is_not_checked(job: Job, url: str, final: str, is_another: bool) -> None:
    report = json.loads(text_of("lighthouse.json"))
    location = url.removeprefix("https://shop.example")
    for urls in (dict.fromkeys(("requestedUrl", "finalUrl", "finalDisplayedUrl"), url), {"finalDisplayedUrl": final}):
        (job.folder / "page.json").write_text(json.dumps(report | urls | {"requestedUrl": url}), "utf-8")
        job.scan("page.json", "--resolve-missing")
    unchecked = job.read("tasks?rule=not-checked")["tasks"]
    assert [task["location"] for task in unchecked] == ([location] if is_another else [])
    if is_another:
        assert "led to " + (final or "a page that the report does not name") in unchecked[0]["title"]
        tasks = job.read(f"tasks?limit=200&location={quote(location)}")["tasks"]
        assert {task["status"] for task in tasks} == {"open"}


def test_unchecked_parts_create_not_checked_findings() -> None:
    audits = {"lcp": {"title": "LCP", "scoreDisplayMode": "error", "score": None, "errorMessage": "NO_LCP"}}
    categories = {"performance": {"auditRefs": [{"id": "lcp", "weight": 25}]}}
    report = {"lighthouseVersion": "12", "finalUrl": "https://x/a", "audits": audits, "categories": categories}
    fatal = {"message-id": "F0010", "type": "fatal", "symbol": "parse-error", "path": "a.py", "message": "no"}
    slow = "The page loaded too slowly to finish within the time limit. Results may be incomplete."
    with_warnings = report | {"audits": {"lcp": {}}, "runWarnings": ["Not English", slow]}
    broken = fatal | {"message-id": "E0001", "type": "error", "symbol": "syntax-error"}
    stopped = {"file": "a.py", "line": 3, "code": "syntax", "severity": "error", "message": "no", "hint": None}
    failed_rule = {"id": "r", "help": "Rule", "nodes": [{"html": "<p>"}], "error": {"message": "no"}}
    page = {"url": "https://x/a", "violations": [], "passes": [], "incomplete": [failed_rule]}
    pages = {"results": {"https://x/a": [{"message": "net::ERR"}], "https://x/b": []}}
    for document, location, title in (
        (report, "/a", "Not checked: LCP: NO_LCP"),
        (with_warnings, "/a", f"Not checked: {slow}"),
        ([fatal], "a.py", "Not checked: no"),
        ([broken], "a.py", "Not checked: no"),
        ([stopped], None, "Not checked: mypy stopped at a.py:3: no"),
        (page, "/a", "Not checked: Rule: no"),
        ({"total": 2, "passes": 1, "errors": 1} | pages, "/a", "Not checked: https://x/a could not be tested"),
    ):
        (task,) = read(json.dumps(document))
        assert (task["rule"], task.get("location"), task["title"][: len(title)]) == ("not-checked", location, title)
        assert task["severity"] == "high"


UNSUPPORTED = cases(
    semgrep=({"results": [], "errors": [], "paths": {}, "version": "1"}, "semgrep scan --sarif"),
    ruff=([{"code": "F401", "filename": "a", "location": {}, "noqa_row": 1}], "ruff check --output-format sarif"),
    hadolint=([dict.fromkeys(("file", "line", "column", "level", "code", "message"), 1)], "hadolint --format sarif"),
    npm_6=({"advisories": {}, "metadata": {}}, "npm 7 or newer"),
    axe_violations=([{"id": "x", "impact": None, "nodes": [], "helpUrl": ""}], "the whole result of axe.run()"),
    unknown=({"a": 1}, "is in an unknown format; known formats: SARIF, JSON of axe-core, pa11y,"),
    numbers=([1], "is in an unknown format"),
)


@pytest.mark.parametrize(("document", "message"), UNSUPPORTED)
def test_unsupported_format_error_names_a_supported_one(job: Job, document: Any, message: str) -> None:
    (job.folder / "other.json").write_text(json.dumps(document))
    assert_one_line(job.scan("other.json"), 2, "other.json: ", message)


# Hostile reports


@pytest.mark.parametrize("name", [name for name in FOUND if name not in ("junit.xml", "mypy.json")])
def test_values_of_wrong_types_are_accepted_or_rejected(name: str) -> None:
    document = json.loads(text_of(name))
    for number, (container, key) in enumerate(list(slots_in(document))):
        original = container[key]
        for container[key] in STRANGE_VALUES[number % 9 :: 9]:
            with suppress(core.ValidationFailed):
                read(json.dumps(document))
        container[key] = original


def lengthened(part: Any) -> Any:
    """Return a document with every text made long."""
    if isinstance(part, dict):
        return {name: lengthened(each) for name, each in part.items()}
    if isinstance(part, list):
        return [lengthened(each) for each in part]
    return part + " \0\u202e\n" * 9 + "€" * 90_000 if isinstance(part, str) else part


@pytest.mark.parametrize("name", ["axe.json", "pa11y.json", "bandit.json", "trivy.json", "gitleaks.json"])
def test_long_texts_are_truncated(name: str) -> None:
    document = json.loads(text_of(name))
    tasks = read(json.dumps(lengthened(document[-1:] if isinstance(document, list) else document)))
    assert tasks
    assert max(len(task["title"]) for task in tasks) == 500


def test_report_that_expands_beyond_the_size_limit_is_rejected() -> None:
    rule = {"id": "x", "help": "x", "description": "y" * 60_000, "nodes": [{"target": ["a"]}] * 20_000}
    assert "FINDINGS_MAX_SARIF" in rejection_of(json.dumps({"violations": [rule], "passes": []}))


def test_unsupported_screenshot_is_omitted() -> None:
    report = json.loads(text_of("lighthouse.json"))
    for url in (f"data:image/webp;base64,{'A' * 300_000}", "https://x/a.png", "data:text/html;base64,AAAA"):
        report["fullPageScreenshot"]["screenshot"]["data"] = url
        labels = {each["label"] for task in read(json.dumps(report)) for each in task["evidence"][1:2]}
        assert labels <= {"The page", "Details from Lighthouse"}
