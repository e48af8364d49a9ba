"""Configuration of a scan: severities by rule, excluded paths, and the file `findings.toml`."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from test_ci import Job, assert_one_line, job, result
from test_sarif import log_with

import findings_service
from findings_adapters import scan_config
from findings_adapters.scan_config import READY, Config, Decider, Scanned, SeverityRules, prepare
from tests.clients import cases

__all__ = ["job"]


def found(rule_id: str, file: str = "src/app.py", line: int = 3, level: str | None = "error", **more: Any) -> Any:
    """Return a result with rule and file as its title."""
    level_field = {"level": level} if level else {}
    rule_field = {"ruleId": rule_id} if rule_id else {}
    base = result(f"{rule_id} {file}", file=file, line=line) | {"ruleId": None, "level": None}
    return {key: value for key, value in base.items() if value} | rule_field | level_field | more


def configure(job: Job, text: str | bytes, name: str = "findings.toml") -> None:
    (job.folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def severities(job: Job) -> dict[str, str]:
    """Return the severity of each stored finding by the first word of its title."""
    return {title.split()[0]: task["severity"] for title, task in job.tasks().items()}


# The configuration file

BAD_CONFIGS = cases(  # the text of a file, or a tuple of options
    key=('excludes = ["tests/**"]', ("unknown key 'excludes'", "exclude, fail-on, severity, source-url, target, type")),
    empty_key=('"" = 1', ("unknown key ''",)),
    severity=('[severity]\n"S1" = "hgh"', ("[severity] \"S1\" = 'hgh'", "critical, high, medium, low, info")),
    number=('[severity]\n"S1" = 5', ('"S1" = 5', "must be one of: critical")),
    dotted=('[severity]\npython.lang = "low"', ('"python"', "quote prefixes")),
    not_a_table=('severity = "low"', ("severity must be a table", "[severity]")),
    pattern=('exclude = ["tests/**", "!"]', ("exclude: '!'", "tests/**")),
    comment=('exclude = ["# tests"]', ("exclude: '# tests'",)),
    blank=('exclude = [""]', ("exclude: ''",)),
    range=('exclude = ["[z-a]"]', ("exclude: '[z-a]'",)),
    not_a_list=('exclude = "tests/**"', ("exclude must be a list", 'exclude = ["tests/**"]')),
    bar=('fail-on = "hgh"', ("fail-on = 'hgh'", "critical, high, medium, low, info, none")),
    type=('type = "no name"', ("type = 'no name'", "such as ruff")),
    target=('target = "git@host:repo"', ("target = 'git@host:repo'", "http or https")),
    source_url=('source-url = "https://example.com/"', ("source-url = 'https://example.com/'", "{path}")),
    not_toml=("severity: low", ("is not valid TOML", "line 1")),
    deep=("type = " + "[" * 5000, ("is not valid TOML",)),
    latin=('type = "caf\xe9"'.encode("latin-1"), ("is not UTF-8",)),
    utf16=('type = "a"'.encode("utf-16"), ("is not UTF-8",)),
    hostile=('"##[error]x\\n::error::y" = 1', ("##\\[error]x",)),
    level_of_an_option=(("--severity", "S1=hgh"), ("--severity S1=hgh", "PREFIX=LEVEL", "critical, high")),
    option_without_level=(("--severity", "S1"), ("PREFIX=LEVEL",)),
    all_errors_in_one_message=(
        'a = 1\nb = 2\ntype = 5\nexclude = ["!", 5]\nfail-on = "x"\n[severity]\nS1 = "hgh"\nS2 = 1',
        ("'a'", "'b'", "type = 5", "'!'", "exclude: 5", "fail-on = 'x'", '"S1"', '"S2"'),
    ),
    options_at_once=(("--exclude", "!", "--exclude", "#"), ("--exclude: '!'", "--exclude: '#'")),
    absent=(("--config", "no.toml"), ("no.toml: No such file",)),
    folder=(("--config", "."), (".: Is a directory",)),
)


@pytest.mark.parametrize(("config", "messages"), BAD_CONFIGS)
def test_invalid_configuration_is_rejected_before_a_run(job: Job, config: Any, messages: tuple[str, ...]) -> None:
    options, file = (config, ()) if isinstance(config, tuple) else ((), ("findings.toml",))
    if file:
        configure(job, config)
    assert_one_line(job.scan(job.write("a.sarif", result()), *options), 2, *file, *messages)
    assert not (job.folder / "findings.db").exists()


def test_configuration_is_read_from_the_working_directory_by_default(job: Job) -> None:
    (job.folder / "sub").mkdir()
    configure(job, '\ufefftype = "here"')
    configure(job, 'type = "other"', "other.toml")
    job.write("a.sarif", result())
    assert "Note: findings.toml is used." in job.scan("a.sarif", code=1).stderr
    assert job.last_run()["projectType"] == "here"
    done = job.scan("a.sarif", "--config", "other.toml", code=1)
    assert (job.last_run()["projectType"], "Note" in done.stderr) == ("other", False)
    job_in_subfolder = Job(job.folder / "sub")
    job_in_subfolder.scan("../a.sarif", code=1)
    assert job_in_subfolder.last_run()["projectType"] == "demo"


def test_options_override_the_configuration_file(job: Job) -> None:
    configure(job, 'type = "here"\ntarget = "https://git.example/a"\nfail-on = "critical"')
    job.scan(job.write("a.sarif", result()), code=0)
    run = job.last_run()
    assert (run["projectType"], run["targetUrl"]) == ("here", "https://git.example/a")
    response = job.scan_json("a.sarif", "--type", "there", "--target", "", "--fail-on", "high")
    run = job.last_run()
    assert (response["pass"], run["projectType"], run["targetUrl"]) == (False, "there", None)


# Severities


def test_longest_rule_prefix_decides_with_options_before_the_file(job: Job) -> None:
    configure(job, '[severity]\n"S" = "low"\n"S10" = "info"\n"S101" = "critical"\n"" = "medium"')
    job.write("a.sarif", *map(found, ("S101", "S102", "S2", "X1", "not-checked")))
    job.scan("a.sarif", "--severity", "no=low", "--fail-on", "none", code=0)
    expected = {"S101": "critical", "S102": "info", "S2": "low", "X1": "medium", "not-checked": "high"}
    assert severities(job) == expected
    options = ("--severity", "S=high", "--severity", "S2=medium", "--severity", "not-checked=low")
    job.scan("a.sarif", *options, "--fail-on", "none", code=0)
    assert severities(job) == expected | {"S101": "high", "S102": "high", "S2": "medium", "not-checked": "low"}


@pytest.mark.parametrize("severity", findings_service.SEVERITIES)
@pytest.mark.parametrize("score", [None, "9.8"])
def test_configured_severity_is_the_stored_severity(job: Job, severity: str, score: str | None) -> None:
    scored = {"properties": {"security-severity": score, "tags": ["t"]}} if score else {}
    rules = [{"id": "R1", "defaultConfiguration": {"level": "note"}, **scored}]
    extension = {"name": "more", "rules": [{"id": "R2", "guid": "g", **scored}]}
    tool = {"driver": {"name": "demo", "rules": rules}, "extensions": [extension]}
    by_index = found("", line=2, level=None, ruleIndex=0)
    by_reference = found("", "b.py", level=None, rule={"index": 0, "toolComponent": {"index": 0}})
    ours = {"findingsTaskService/v1": {"title": "ours", "severity": "high"}}
    imported = found("R3", "c.py", level="warning", properties=ours, fingerprints={"findingsTaskService/v1": "1"})
    job.write("a.sarif", by_index, by_reference, imported, found("Y", "d.py", level="note", **scored), tool=tool)
    job.scan("a.sarif", "--ours", "--severity", f"R={severity}", "--fail-on", "none", code=0)
    stored = {title: task["severity"] for title, task in job.tasks().items()}
    other = "critical" if score else "low"
    assert stored == {"src/app.py": severity, "b.py": severity, "ours": severity, "Y d.py": other}
    assert score is None or job.tasks()["src/app.py"]["extensions"]["tags"] == ["t"]


def test_security_score_of_a_rule_overrides_a_ready_map(job: Job) -> None:
    rules = [{"id": "S101", "properties": {"security-severity": "9.5"}}]
    job.write("a.sarif", found("S101/x"), tool={"driver": {"name": "ruff", "rules": rules}})
    job.scan("a.sarif", "--fail-on", "none", code=0)
    assert severities(job) == {"S101/x": "critical"}


ESLINT = {"no-eval": "high", "no-dupe-keys": "medium", "no-unused-vars": "low", "@stylistic/semi": "info"}
READY_MAPS = cases(
    ruff=("ruff", {"S101": "low", "S602": "high", "S704": "medium", "F821": "high", "E501": "info", "SIM102": "low"}),
    bandit=("Bandit", {"B101": "low", "B602": "high", "B704": "medium"}),
    eslint=("ESLint", ESLINT),
    semgrep=("Semgrep OSS", {"python.lang.security.audit.eval": "high", "python.lang.correctness.pdb": "medium"}),
    checkov=("Checkov", {"CKV_AWS_20": "medium", "CKV_SECRET_6": "high"}),
    other=("demo", {"S101": "high"}),
)


@pytest.mark.parametrize(("tool", "expected"), READY_MAPS)
def test_ready_maps_set_severities_for_known_tools(job: Job, tool: str, expected: dict[str, str]) -> None:
    job.scan(job.write("a.sarif", *map(found, expected), name=tool), "--fail-on", "none", code=0)
    assert severities(job) == expected


DIFFERING_LEVELS = cases(
    level=([found("S101"), found("S102", level="warning")], {}),
    default=([found("S101"), found("S102", level=None)], {}),
    rule=([found("S101"), found("S102")], {"rules": [{"id": "S9", "defaultConfiguration": {"level": "note"}}]}),
    score=([found("S101"), found("S102", properties={"security-severity": "9.8"})], {}),
)


@pytest.mark.parametrize(("results", "driver"), DIFFERING_LEVELS)
def test_ready_map_applies_to_documents_with_differing_levels(
    job: Job, results: list[Any], driver: dict[str, Any]
) -> None:
    job.write("a.sarif", *results, tool={"driver": {"name": "ruff"} | driver})
    output = job.scan("a.sarif", "--fail-on", "none", code=0).stderr
    score = results[1].get("properties")
    assert severities(job) == {"S101": "low", "S102": "critical" if score else "medium"}
    assert output.count("a ready map sets the severities of ruff;") == 1


def test_ready_maps_agree_with_the_blacklists_of_bandit() -> None:
    blacklists = [pytest.importorskip(f"bandit.blacklists.{name}") for name in ("calls", "imports")]
    checks = [each for module in blacklists for group in module.gen_blacklist().values() for each in group]
    levels = {each["id"]: each["level"].lower() for each in checks}
    for tool, letter in (("bandit", "B"), ("ruff", "S")):
        decided = {name: SeverityRules("", READY[tool]).decide(letter + name[1:]) for name in levels}
        assert {name: decision[0] for name, decision in decided.items() if decision} == levels


# Paths


def test_excluded_findings_are_resolved_as_missing_and_counted(job: Job) -> None:
    job.write("a.sarif", found("S1"), found("S2", "tests/a.py"), found("S3", "tests/b.py"), found("S4", "old.py"))
    job.scan("a.sarif", code=1)
    job.triage("S3 tests/b.py", "dismissed")
    configure(job, 'exclude = ["tests/**"]')
    job.write("a.sarif", found("S1"), found("S2", "tests/a.py"), found("S3", "tests/b.py"), found("S5", "tests/c.py"))
    done = job.scan("a.sarif", "--resolve-missing", code=0)
    assert "Findings of demo resolved because their paths are excluded: 1." in done.stderr
    assert "2 resolved because no longer reported" in done.stdout
    statuses = {title.split()[0]: task["status"] for title, task in job.tasks().items()}
    assert statuses == {"S1": "open", "S2": "resolved", "S3": "dismissed", "S4": "resolved"}
    assert "are excluded" not in job.scan("a.sarif", "--resolve-missing", code=0).stderr
    job.scan("a.sarif", "--exclude", "!tests/a.py", "--resolve-missing", "--fail-on", "none", code=0)
    assert job.tasks()["S2 tests/a.py"]["status"] == "open"


def test_excluded_findings_are_resolved_only_on_their_branch(job: Job) -> None:
    job.scan(job.write("a.sarif", found("S1"), found("S2", "tests/a.py")), code=1)
    job.write("a.sarif", found("S1"), found("S2", "tests/a.py"), found("S3", "tests/b.py"))
    job.scan("a.sarif", "--branch", "fix", code=1)
    done = job.scan("a.sarif", "--branch", "fix", "--resolve-missing", "--exclude", "tests/", code=0)
    assert "resolved because their paths are excluded: 1." in done.stderr
    assert {task["status"] for title, task in job.tasks().items() if "S2" in title} == {"open"}


def test_excluding_a_twin_does_not_change_the_other_twin(job: Job) -> None:
    same = {"fingerprints": {"x/v1": "same"}}
    job.scan(job.write("a.sarif", found("S1", "tests/a.py", **same), found("S1", "b.py", **same)), code=1)
    before = {task["id"]: task["location"] for task in job.tasks().values()}
    statuses = {"tests/a.py:3": "resolved", "b.py:3": "open"}
    done = job.scan("a.sarif", "--exclude", "tests/**", "--resolve-missing", code=0)
    assert "resolved because their paths are excluded: 1." in done.stderr
    after = {task["id"]: (task["location"], task["status"]) for task in job.tasks().values()}
    assert after == {each: (location, statuses[location]) for each, location in before.items()}


def test_malformed_rules_without_results_are_ignored(job: Job) -> None:
    rules = [{"id": "S1"}, {"id": "S2", "defaultConfiguration": "x"}, {"id": "S3", "properties": [1]}]
    tool = {"driver": {"name": "demo", "rules": rules}}
    job.scan(job.write("a.sarif", found("S1", "a.py", ruleIndex=0), tool=tool), "--severity", "S=low", code=0)
    assert {task["severity"] for task in job.tasks().values()} == {"low"}


def test_last_matching_exclude_pattern_decides(job: Job) -> None:
    configure(job, 'exclude = ["tests/**", "*.js", "!tests/keep.py"]')
    files = ("tests/a.py", "tests/keep.py", "src/tests/a.py", "a/b.js")
    job.scan(job.write("a.sarif", *(found("S1", file) for file in files), found("S1", "")), code=1)
    stored = {task["extensions"].get("file") for task in job.tasks().values()}
    assert stored == {"tests/keep.py", "src/tests/a.py", None}
    job.scan("a.sarif", "--exclude", "*", "--resolve-missing", code=0)
    assert job.last_run()["submitted"]["resolved"] == 2


def prepared(config: Config, document: dict[str, Any]) -> Any:
    """Return the prepared document that a scan sends."""
    findings_service.load_modules()
    form, settings = findings_service.REGISTRY.submission_formats["application/sarif+json"], findings_service.Settings()
    text = json.dumps(document).encode()
    scanned = Scanned("a", text, document, form.parse(text, settings))
    [sent] = prepare(Decider(config), [scanned], by_tool=False, most=settings.max_sarif)["", ""].documents
    return sent.text


def test_converted_findings_are_excluded_by_location() -> None:
    task = {"title": "ours", "severity": "high", "location": "tests/a b.py:4"}
    document = log_with(found("S1", "tests/a%20b.py", properties={"findingsTaskService/v1": task}))
    assert json.loads(prepared(Config().with_options([], ["tests/a b.py"]), document))["runs"][0]["results"] == []
    # A document that no rule applies to is sent unchanged.
    assert prepared(Config(), log_with(result())) == json.dumps(log_with(result())).encode()


def test_explain_names_the_rule_behind_each_severity_and_exclusion(job: Job) -> None:
    configure(job, 'exclude = ["tests/**"]\n[severity]\n"S1" = "critical"')
    excluded = (found("S5", "tests/a.py"), found("S6", "gen/a.py"))
    job.write("a.sarif", found("S101"), found("S602", line=9), *excluded, found("E501", ""), name="ruff")
    job.write("b.sarif", found("X1", level="warning"))
    options = ("--severity", "E=medium", "--exclude", "gen/", "--explain", "--fail-on", "none", "--format", "json")
    done = job.scan("a.sarif", "b.sarif", *options, code=0)
    assert done.stderr.splitlines()[:7] == [
        "Note: findings.toml is used.",
        'critical S101 src/app.py:3 findings.toml: [severity] "S1"',
        'high S602 src/app.py:9 ready map for ruff: "S602"',
        'excluded S5 tests/a.py:3 findings.toml: exclude "tests/**"',
        'excluded S6 gen/a.py:3 --exclude "gen/"',
        'medium E501 --severity "E"',
        "medium X1 src/app.py:3 the document",
    ]
    assert json.loads(done.stdout)["pass"]


def test_slow_exclude_patterns_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_config, "Budget", partial(scan_config.Budget, 0.5))
    files = [f"{'a/' * (100 + number)}c" for number in range(200)]
    config = Config().with_options([], [f"/{'**/a/' * 100}b"])
    assert prepared(config, log_with(found("S1", files[0])))
    with pytest.raises(findings_service.ConfigurationError, match=r'--exclude ".*": took too long on a/a.*fewer \*'):
        prepared(config, log_with(*(found("S1", file) for file in files)))
