"""Identity of SARIF results across scans (fingerprints, twins), and suppressions by scanners."""

from __future__ import annotations

import timeit
from functools import partial as bound
from typing import Any

import pytest
import test_sarif
from test_sarif import RENAMES, TARGET, at, counts, ids_of, log_of, log_with, named, parse, result, scan, send, tasks_of

from findings_adapters.sarif import twins
from findings_adapters.sarif.models import FOLDER, IDENTITY, OURS
from findings_adapters.sarif.twins import distance, matched, nearest
from tests.clients import Client, cases

# Fingerprints, code and paths


def marks(**prints: str) -> dict[str, Any]:
    """Return members of a result with fingerprints."""
    return {"fingerprints": prints}


def partial(**prints: str) -> dict[str, Any]:
    """Return members of a result with partial fingerprints."""
    return {"partialFingerprints": prints}


def bare(text: str, uri: str = "a.py") -> dict[str, Any]:
    """Return members of a result without fingerprint and without code."""
    return {"message": {"text": text}, "locations": [at(uri, 3)]}


def in_html(text: str) -> dict[str, Any]:
    """Return members of a result on a web page with this HTML."""
    return {"locations": [at("https://shop.example/", 1, text)]}


WITH_FINGERPRINT = {"fingerprints": {"a": "1"}, "correlationGuid": "11111111-1111-1111-1111-111111111111"}
AT_OTHER_PATH = partial(p="1") | {"locations": [at("b.py", 3, "eval(x)")]}
SAME_FINDING = cases(
    indented=({}, {"locations": [at("src/a.py", 3, "\teval(x)\n")]}),
    reworded=({}, {"message": {"text": "Another word"}}),
    new_guid=({"guid": "1"}, {"guid": "2"}),
    fingerprints_before_the_path=(WITH_FINGERPRINT, WITH_FINGERPRINT | AT_OTHER_PATH),
    correlation=({"correlationGuid": "a"}, {"correlationGuid": "A"} | AT_OTHER_PATH),
    partial_before_the_snippet=(partial(p="1"), partial(p="1") | {"locations": [at("src/a.py", 1, "other")]}),
    a_placeholder_fingerprint=({}, marks(matchBasedId="requires login")),
    a_fingerprint_is_added=(marks(v1="1"), marks(v1="1", v2="2")),
    a_fingerprint_is_dropped=(marks(v1="1", v2="2"), marks(v2="2")),
    versions_count_by_their_value=(marks(v2="2"), marks(v2="2", v10="3")),
    a_partial_fingerprint_is_added=(partial(a="1"), partial(a="1", b="2")),
    githubs_line_hash_comes_first=(partial(primaryLocationLineHash="1"), partial(a="2", primaryLocationLineHash="1")),
    another_commit=(partial(a="1", commitSha="c1"), partial(a="1", commitSha="c2")),
    another_author=(partial(a="1", author="x", email="x@y"), partial(a="1", author="z", email="z@y")),
    another_column=(
        partial(primaryLocationLineHash="1", primaryLocationStartColumnFingerprint="4"),
        partial(primaryLocationLineHash="1", primaryLocationStartColumnFingerprint="8"),
    ),
    fingerprints_of_the_service=({}, marks(**{"findingsTaskService/identity/v1": "1", "findingsTaskService/v2": "1"})),
    only_volatile_fingerprints=(partial(commitSha="c1"), partial(commitSha="c2")),
    numbers_in_a_message=(bare("line 3 of 9"), bare("line 4 of 10")),
    decomposed_letters=({"locations": [at("é.py", 1, "x")]}, {"locations": [at("e\u0301.py", 1, "x")]}),
    another_drive_letter=(
        {"locations": [at("file:///C:/a.py", 1, "x")]},
        {"locations": [at("file:///c:/a.py", 1, "x")]},
    ),
    another_image_tag=({"locations": [at("library/app:1.0", 1)]}, {"locations": [at("library/app:1.1", 1)]}),
    another_image_digest=(
        {"locations": [at("app@sha256:" + "0" * 64, 1)]},
        {"locations": [at("app@sha256:" + "1" * 64, 1)]},
    ),
    radix=(in_html('<a id="radix-:r7:">'), in_html('<a id="radix-:r12:">')),
    ember=(in_html('<div id="ember123">'), in_html('<div id="ember9">')),
    numeric_image_tag=({"locations": [at("postgres:15 (debian)")]}, {"locations": [at("postgres:16 (debian)")]}),
    react=(in_html('<p id="«r1»">'), in_html('<p id="«rb»">')),
)
OTHER_FINDING = cases(
    another_rule=({}, {"ruleId": "R2"}),
    another_fingerprint=(marks(a="1"), marks(a="2")),
    another_correlation=({"correlationGuid": "1"}, {"correlationGuid": "2"}),
    another_path_of_a_partial_fingerprint=(partial(p="1"), AT_OTHER_PATH),
    another_logical_place=(named("f"), named("g")),
    another_message_without_code=(bare("SQL injection"), bare("Hard-coded password")),
    another_message_of_another_file=(bare("x"), bare("x", "b.py")),
    another_line_of_code=({"locations": [at("a.py", 3, "f(1)")]}, {"locations": [at("a.py", 3, "f(2)")]}),
    another_class=(in_html('<p class="a1">'), in_html('<p class="a2">')),
    another_framework=(in_html('<p id="ember1">'), in_html('<p id="mui-1">')),
    another_member=({"locations": [at("a.c", 1, "std::regex::x")]}, {"locations": [at("a.c", 1, "std::ranges::x")]}),
    another_number_in_code=({"locations": [at("a.c", 1, "radix2(x)")]}, {"locations": [at("a.c", 1, "radix16(x)")]}),
    another_number_in_a_path=({"locations": [at("ember1.js", 1, "x")]}, {"locations": [at("ember2.js", 1, "x")]}),
    another_hash_whose_name_has_a_date_in_it=(partial(candidateHash="1"), partial(candidateHash="2")),
    another_port=({"locations": [at("host:5000/app:1")]}, {"locations": [at("host:5001/app:1")]}),
    another_image=({"locations": [at("app:1.0", 1)]}, {"locations": [at("web:1.0", 1)]}),
)


def counts_of_second(client: Client, one: Any, other: Any) -> tuple[int, int, int, int]:
    """Submit two results one after the other and return the counts of the second submission."""
    scan(client, log_with(result(**one)))
    return counts(scan(client, log_with(result(**other))))


@pytest.mark.parametrize(("one", "other"), SAME_FINDING)
def test_irrelevant_changes_keep_the_identity_of_a_finding(client: Client, one: Any, other: Any) -> None:
    assert counts_of_second(client, one, other)[0] == 0
    assert len(tasks_of(client)) == 1
    assert counts(scan(client, log_with(result(**one))))[0] == 0  # and back again


@pytest.mark.parametrize(("one", "other"), OTHER_FINDING)
def test_relevant_changes_create_another_finding(client: Client, one: Any, other: Any) -> None:
    assert counts_of_second(client, one, other)[0] == 1


def test_paths_keep_the_folder_if_base_uris_of_runs_differ(client: Client) -> None:
    def run_in(folder: str, **members: Any) -> dict[str, Any]:
        return test_sarif.run_of(
            result(), originalUriBaseIds={"ROOT": {"uri": f"file:///builds/7/{folder}/"}}, **members
        )

    two, one = log_of(run_in("backend"), run_in("frontend")), log_of(run_in("backend"))
    assert len({*ids_of(two)}) == 2
    assert ids_of(one) == ids_of(log_of(run_in("frontend")))
    assert ids_of(log_of(run_in("backend"), run_in("frontend", automationDetails={"id": "x/"}))) == ids_of(one) * 2
    assert ids_of(log_of(run_in("backend"), run_in("frontend", name="Other")))[0] == ids_of(one)[0]
    assert ids_of(log_of(run_in("7", properties={FOLDER: "backend"}))) == ids_of(two)[:1]
    scan(client, two)
    assert {each["location"] for each in tasks_of(client)} == {"backend/src/a.py:3", "frontend/src/a.py:3"}


OLD_IDS = cases(  # external ids of results before schema version 12
    code=({}, "46702692cc90fc1a3717573ea0c227a8d25ae38e"),
    fingerprints=(marks(v1="1", v2="2"), "56f3a06770d8477af70927de2fd5d24e06e29a96"),
    partial_fingerprints=(partial(a="1", commitSha="c1"), "6063f204011186ce37cd50cdcdda8b5cb97bb92b"),
    correlation=({"correlationGuid": "A1"}, "7dc91a8f8739864f9bacec3d6da7b26ada4c07c9"),
    neither_fingerprint_nor_code=({"locations": [at("src/a.py", 3)]}, "ca430f5796991d400512577bb216bd7ab28352f9"),
    no_place=({"locations": ...}, "65be90e26bf8728c1acef572f43c6e161fcfb7f9"),
)


@pytest.mark.parametrize(("members", "old"), OLD_IDS)
def test_findings_with_ids_of_older_schemas_keep_their_decision(client: Client, members: Any, old: str) -> None:
    client.register("web")
    run = client.start(targetUrl=TARGET)
    known = client.add(run, externalId=old, title="Bad call")
    client.finish(run)
    client.triage(known, "dismissed", reason="accepted_risk")
    submitted = scan(client, log_with(result(**members)))["tasks"][0]
    assert (submitted["id"], submitted["status"]) == (known, "dismissed")
    assert scan(client, log_with(result(**members)))["tasks"][0]["result"] == "unchanged"


@pytest.mark.parametrize("length", [64, 65])
def test_imported_identity_may_have_at_most_64_characters(client: Client, length: int) -> None:
    fields = {"title": "x", "severity": "low"}
    scan(client, log_with(result(properties={OURS: fields}, fingerprints={IDENTITY: "x" * length})))
    assert [each["externalId"] for each in tasks_of(client)] == ["x" * 64 if length == 64 else None]


# Twins


def lines(*numbers: int, uri: str = "a.py") -> dict[str, Any]:
    """Return a document with one result per line number, all with the same code."""
    return log_with(*(result(locations=[at(uri, number, "f()")]) for number in numbers))


def stored(client: Client) -> dict[int, str]:
    """Return the ids of the stored findings by line."""
    return {int(each["location"].rpartition(":")[2]): each["id"] for each in tasks_of(client)}


MOVES = cases(  # the lines before; the lines now, each with its previous line
    one_is_added_in_front=((30, 60), {10: None, 31: 30, 61: 60}),
    one_is_removed_in_front=((10, 30, 60), {29: 30, 59: 60}),
    one_is_removed_in_the_middle=((10, 30, 60), {10: 10, 60: 60}),
    all_move=((10, 20), {110: 10, 120: 20}),
    one_becomes_two=((10,), {10: 10, 11: None}),
    two_become_one=((10, 50), {48: 50}),
    one_is_far_from_both=((10, 12), {12: 10, 500: 12}),  # the sums are equal: the order decides
    a_line_is_inserted_above=((5, 6, 7), {6: 5, 7: 6, 8: 7}),
)


@pytest.mark.parametrize(("before", "now"), MOVES)
@pytest.mark.parametrize("order", [1, -1])
def test_identical_results_match_the_nearest_stored_line(
    client: Client, before: tuple[int, ...], now: dict[int, int | None], order: int
) -> None:
    scan(client, lines(*before))
    known = stored(client)
    submission = scan(client, lines(*[*now][::order]))
    by_line = dict(zip([*now][::order], submission["tasks"], strict=True))
    assert {line: by_line[line]["id"] for line, previous in now.items() if previous} == {
        line: known[previous] for line, previous in now.items() if previous
    }
    assert {by_line[line]["result"] for line, previous in now.items() if not previous} <= {"created"}


def test_results_at_one_place_are_one_finding_suppressed_only_if_all_are(client: Client) -> None:
    suppressed = result(suppressions=[{"kind": "inSource"}])
    assert counts(scan(client, log_with(result(), suppressed, result()))) == (1, 0, 0, 0)
    assert tasks_of(client)[0]["status"] == "open"
    assert counts(scan(client, log_with(suppressed, suppressed))) == (0, 1, 0, 0)
    assert tasks_of(client)[0]["status"] == "dismissed"


def test_second_document_of_a_run_matches_only_unreported_twins(client: Client) -> None:
    scan(client, lines(10, 50))
    known = stored(client)
    run = client.start(targetUrl=TARGET)
    first = send(client, run, lines(11)).json["tasks"][0]
    second = send(client, run, lines(12)).json["tasks"][0]
    assert (first["id"], second["id"]) == (known[10], known[50])
    assert send(client, run, lines(13)).json["tasks"][0]["result"] == "created"
    assert send(client, run, lines(13)).json["tasks"][0]["result"] == "unchanged"


def test_twins_in_one_line_are_matched_when_the_run_repeats_them(client: Client) -> None:
    both = log_with(*(result(locations=[at("a.py", 3, "f(f())")]) for _ in range(2)))
    for column, each in enumerate(both["runs"][0]["results"], 1):
        each["locations"][0]["physicalLocation"]["region"]["startColumn"] = column
    client.register("web")
    run = client.start(targetUrl=TARGET)
    assert [send(client, run, both).json["created"] for _ in range(3)] == [2, 0, 0]


def test_twins_in_a_renamed_file_are_matched_by_line(client: Client) -> None:
    scan(client, lines(10, 50))
    known = stored(client)
    moved = lines(52, uri="b.py")
    moved["runs"][0]["properties"] = {RENAMES: {"b.py": "a.py"}}
    assert counts(scan(client, moved)) == (0, 1, 0, 0)
    assert stored(client) == {10: known[10], 52: known[50]}
    assert counts(scan(client, lines(10, 50)))[0] == 0  # and back again


def test_twin_of_the_last_scan_is_matched_before_a_missing_one(client: Client) -> None:
    scan(client, lines(10, 50))
    known = stored(client)
    client.triage(known[50], "dismissed")
    scan(client, lines(50))
    submitted = scan(client, lines(50, 99))["tasks"]
    assert [(each["id"], each["status"]) for each in submitted] == [(known[50], "dismissed"), (known[10], "open")]


def test_twin_of_the_main_line_is_matched_before_one_of_a_branch(client: Client) -> None:
    scan(client, lines(50))
    known = stored(client)
    client.triage(known[50], "dismissed")
    assert counts(scan(client, lines(5, 50), branch="one")) == (1, 0, 0, 1)
    for branch in ("two", None):
        submitted = scan(client, lines(50, 99), branch=branch)["tasks"]
        assert (submitted[0]["id"], submitted[0]["status"]) == (known[50], "dismissed")


def test_generated_html_ids_are_replaced_in_linear_time() -> None:
    def seconds(length: int) -> float:
        page = log_with(result(**in_html("<" + "mat-" * length)))
        return min(timeit.repeat(bound(parse, test_sarif.bytes_of(page)), number=1, repeat=3))

    assert seconds(32_000) < 30 * seconds(4_000)  # a quadratic one takes 64 times as long


def test_nearest_match_minimizes_the_sum_of_distances() -> None:
    few, many = [("a", 10), ("a", 20), ("a", 30)], [("a", n) for n in (1, 12, 19, 21, 40)]
    assert nearest(few, many) == [1, 2, 3]
    assert matched([("a", 5), ("b", 5)], [("a", 100), ("b", 6)]) == {0: 0, 1: 1}
    assert matched([("a", 2)] * 2, [("a", 1)] * 2) == {0: 0, 1: 1}  # two in one line keep their order


def test_many_twins_are_matched_in_order_with_linear_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = list[Any]()
    monkeypatch.setattr(twins, "distance", lambda *places: compared.append(places) or distance(*places))
    half = [("a", 10 * number + 1) for number in range(1500, 3000)]
    assert nearest(half, [("a", 10 * number) for number in range(3000)]) == [*range(1500, 3000)]
    assert len(compared) <= 2 * len(half)


@pytest.mark.parametrize("text", ["SQL injection", "A weak hash"])
def test_title_decides_which_result_an_old_id_without_message_matches(client: Client, text: str) -> None:
    client.register("web")
    old_id, locations = "ca430f5796991d400512577bb216bd7ab28352f9", [at("src/a.py", 3)]
    known = client.add(client.start(targetUrl=TARGET), externalId=old_id, title="Line 7 is too long")
    client.triage(known, "dismissed")
    other, same = (result(locations=locations, message={"text": each}) for each in (text, "Line 8 is too long"))
    for results in ([other, same], [same, other]):
        submitted = scan(client, log_with(*results))["tasks"]
        assert {each["id"]: each["status"] for each in submitted}[known] == "dismissed"
        assert {each["status"] for each in submitted} == {"open", "dismissed"}
        assert client.read(f"tasks/{known}")["title"] == "Line 8 is too long"


@pytest.mark.parametrize("new_values", ["ab", "ba", "xy", "yx"])
def test_shared_former_fingerprint_matches_the_nearest_result(client: Client, new_values: str) -> None:
    scan(client, log_with(result(locations=[at("a.py", 10, "f()")], **marks(v2="same"))))
    known = stored(client)[10]
    client.triage(known, "dismissed")
    places = [[at("a.py", line, "f()")] for line in (10, 300)]
    results = (result(locations=place, **marks(v1=v1, v2="same")) for place, v1 in zip(places, new_values, strict=True))
    scan(client, log_with(*results))
    assert stored(client)[10] == known


@pytest.mark.parametrize("drops", [True, False])
def test_shared_fingerprint_does_not_move_a_decision(client: Client, drops: bool) -> None:
    def found(line: int, **prints: str) -> dict[str, Any]:
        return result(locations=[at("a.py", line, "f()")], fingerprints=prints)

    with_both = [found(10, v1="b", v2="same"), found(50, v1="a", v2="same")]
    with_one = [found(10, v2="same"), found(50, v2="same")]
    before, after = (with_both, with_one) if drops else (with_one, with_both)
    scan(client, log_with(*before))
    known = stored(client)
    client.triage(known[50], "dismissed")
    scan(client, log_with(*after))
    assert stored(client) == known
    scan(client, log_with(after[1]))
    assert client.read(f"tasks/{known[50]}")["timesSeen"] == 3


# Suppressions


def suppressed(*, is_suppressed: bool) -> dict[str, Any]:
    """Return a document of one result that the scanner has suppressed or not."""
    return log_with(result(suppressions=[{"kind": "inSource"}] if is_suppressed else []))


def test_suppression_dismisses_and_its_removal_reopens(client: Client) -> None:
    scan(client, suppressed(is_suppressed=False))
    for is_suppressed, status, change in (
        (True, "dismissed", "updated"),
        (True, "dismissed", "unchanged"),
        (False, "open", "reopened"),
        (False, "open", "unchanged"),
    ):
        submitted = scan(client, suppressed(is_suppressed=is_suppressed))["tasks"][0]
        assert (submitted["status"], submitted["result"]) == (status, change)
    history = client.history(submitted["id"])
    assert [(each["from"], each["to"]) for each in history[-2:]] == [("open", "dismissed"), ("dismissed", "open")]


@pytest.mark.parametrize("status", ["in_progress", "dismissed"])
def test_suppression_does_not_override_a_decision(client: Client, status: str) -> None:
    scan(client, suppressed(is_suppressed=False))
    [task] = tasks_of(client)
    client.triage(task["id"], status)
    for is_suppressed in (True, False):
        assert scan(client, suppressed(is_suppressed=is_suppressed))["tasks"][0]["status"] == status


def test_reason_counts_as_a_decision_and_a_comment_does_not(client: Client) -> None:
    scan(client, suppressed(is_suppressed=True))
    [task] = tasks_of(client)
    client.triage(task["id"], comment="Looked at.")
    assert scan(client, suppressed(is_suppressed=False))["tasks"][0]["status"] == "open"
    scan(client, suppressed(is_suppressed=True))
    client.triage(task["id"], reason="false_positive")
    assert scan(client, suppressed(is_suppressed=False))["tasks"][0]["status"] == "dismissed"


def test_suppression_on_a_branch_does_not_change_the_main_line(client: Client) -> None:
    scan(client, suppressed(is_suppressed=False))
    run = client.start(targetUrl=TARGET, branch="fix")
    assert send(client, run, suppressed(is_suppressed=True)).json["tasks"][0]["result"] == "unchanged"
    assert tasks_of(client)[0]["status"] == "open"
    branch_only = log_with(result(ruleId="R2", suppressions=[{"kind": "inSource"}]))
    assert send(client, run, branch_only).json["tasks"][0]["status"] == "dismissed"
    client.finish(run)
    assert scan(client, log_with(result(ruleId="R2")))["tasks"][0]["status"] == "open"  # after the merge
