"""What makes a result of SARIF the same finding as before, and what a scanner's suppression does to it."""

from __future__ import annotations

import timeit
from functools import partial as bound
from typing import Any

import pytest
import test_sarif
from test_sarif import RENAMES, TARGET, at, bring, done, ids_of, log_of, log_with, named, parse, result, send, tasks_of

from findings_adapters.sarif import twins
from findings_adapters.sarif.models import FOLDER, IDENTITY, OURS
from findings_adapters.sarif.twins import distance, matched, nearest
from tests.clients import Client, cases

# Which results are one finding


def marks(**prints: str) -> dict[str, Any]:
    """Return members of a result with fingerprints."""
    return {"fingerprints": prints}


def partial(**prints: str) -> dict[str, Any]:
    """Return members of a result with partial fingerprints."""
    return {"partialFingerprints": prints}


def bare(text: str, uri: str = "a.py") -> dict[str, Any]:
    """Return members of a result that has neither a fingerprint nor code."""
    return {"message": {"text": text}, "locations": [at(uri, 3)]}


def in_html(text: str) -> dict[str, Any]:
    """Return members of a result on a page."""
    return {"locations": [at("https://shop.example/", 1, text)]}


ONE = {"fingerprints": {"a": "1"}, "correlationGuid": "11111111-1111-1111-1111-111111111111"}
PLACED = partial(p="1") | {"locations": [at("b.py", 3, "eval(x)")]}
SAME = cases(
    indented=({}, {"locations": [at("src/a.py", 3, "\teval(x)\n")]}),
    reworded=({}, {"message": {"text": "Another word"}}),
    new_guid=({"guid": "1"}, {"guid": "2"}),
    fingerprints_before_the_path=(ONE, ONE | PLACED),
    correlation=({"correlationGuid": "a"}, {"correlationGuid": "A"} | PLACED),
    partial_ones_before_the_snippet=(partial(p="1"), partial(p="1") | {"locations": [at("src/a.py", 1, "other")]}),
    a_word_in_place_of_a_fingerprint=({}, marks(matchBasedId="requires login")),
    a_fingerprint_is_added=(marks(v1="1"), marks(v1="1", v2="2")),
    a_fingerprint_is_dropped=(marks(v1="1", v2="2"), marks(v2="2")),
    versions_count_by_their_value=(marks(v2="2"), marks(v2="2", v10="3")),
    a_partial_one_is_added=(partial(a="1"), partial(a="1", b="2")),
    githubs_line_hash_comes_first=(partial(primaryLocationLineHash="1"), partial(a="2", primaryLocationLineHash="1")),
    another_commit=(partial(a="1", commitSha="c1"), partial(a="1", commitSha="c2")),
    another_author=(partial(a="1", author="x", email="x@y"), partial(a="1", author="z", email="z@y")),
    another_column=(
        partial(primaryLocationLineHash="1", primaryLocationStartColumnFingerprint="4"),
        partial(primaryLocationLineHash="1", primaryLocationStartColumnFingerprint="8"),
    ),
    a_mark_of_ours=({}, marks(**{"findingsTaskService/identity/v1": "1", "findingsTaskService/v2": "1"})),
    volatile_ones_alone=(partial(commitSha="c1"), partial(commitSha="c2")),
    numbers_in_a_message=(bare("line 3 of 9"), bare("line 4 of 10")),
    decomposed_letters=({"locations": [at("é.py", 1, "x")]}, {"locations": [at("e\u0301.py", 1, "x")]}),
    another_drive_letter=(
        {"locations": [at("file:///C:/a.py", 1, "x")]},
        {"locations": [at("file:///c:/a.py", 1, "x")]},
    ),
    an_images_tag=({"locations": [at("library/app:1.0", 1)]}, {"locations": [at("library/app:1.1", 1)]}),
    an_images_digest=(
        {"locations": [at("app@sha256:" + "0" * 64, 1)]},
        {"locations": [at("app@sha256:" + "1" * 64, 1)]},
    ),
    radix=(in_html('<a id="radix-:r7:">'), in_html('<a id="radix-:r12:">')),
    ember=(in_html('<div id="ember123">'), in_html('<div id="ember9">')),
    an_images_tag_of_digits=({"locations": [at("postgres:15 (debian)")]}, {"locations": [at("postgres:16 (debian)")]}),
    react=(in_html('<p id="«r1»">'), in_html('<p id="«rb»">')),
)
OTHERS = cases(
    another_rule=({}, {"ruleId": "R2"}),
    another_fingerprint=(marks(a="1"), marks(a="2")),
    another_correlation=({"correlationGuid": "1"}, {"correlationGuid": "2"}),
    another_path_of_a_partial_fingerprint=(partial(p="1"), PLACED),
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


def brought(client: Client, one: Any, other: Any) -> tuple[int, int, int, int]:
    """Report a result and then another one, and return what became of the second."""
    bring(client, log_with(result(**one)))
    return done(bring(client, log_with(result(**other))))


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_does_not_count_changes_no_finding(client: Client, one: Any, other: Any) -> None:
    assert brought(client, one, other)[0] == 0
    assert len(tasks_of(client)) == 1
    assert done(bring(client, log_with(result(**one))))[0] == 0  # and back


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_what_counts_makes_another_finding(client: Client, one: Any, other: Any) -> None:
    assert brought(client, one, other)[0] == 1


def test_runs_whose_bases_differ_keep_the_folder_in_which_they_do(client: Client) -> None:
    def based(folder: str, **members: Any) -> dict[str, Any]:
        return test_sarif.run_of(
            result(), originalUriBaseIds={"ROOT": {"uri": f"file:///builds/7/{folder}/"}}, **members
        )

    two, one = log_of(based("backend"), based("frontend")), log_of(based("backend"))
    assert len({*ids_of(two)}) == 2
    assert ids_of(one) == ids_of(log_of(based("frontend")))
    assert ids_of(log_of(based("backend"), based("frontend", automationDetails={"id": "x/"}))) == ids_of(one) * 2
    assert ids_of(log_of(based("backend"), based("frontend", name="Other")))[0] == ids_of(one)[0]
    assert ids_of(log_of(based("7", properties={FOLDER: "backend"}))) == ids_of(two)[:1]
    bring(client, two)
    assert {each["location"] for each in tasks_of(client)} == {"backend/src/a.py:3", "frontend/src/a.py:3"}


BEFORE = cases(  # the external ids that results had before version 12 of the schema
    code=({}, "46702692cc90fc1a3717573ea0c227a8d25ae38e"),
    fingerprints=(marks(v1="1", v2="2"), "56f3a06770d8477af70927de2fd5d24e06e29a96"),
    partial_fingerprints=(partial(a="1", commitSha="c1"), "6063f204011186ce37cd50cdcdda8b5cb97bb92b"),
    correlation=({"correlationGuid": "A1"}, "7dc91a8f8739864f9bacec3d6da7b26ada4c07c9"),
    neither_fingerprint_nor_code=({"locations": [at("src/a.py", 3)]}, "ca430f5796991d400512577bb216bd7ab28352f9"),
    no_place=({"locations": ...}, "65be90e26bf8728c1acef572f43c6e161fcfb7f9"),
)


@pytest.mark.parametrize(("members", "old"), BEFORE)
def test_what_was_known_by_an_older_service_keeps_its_decision(client: Client, members: Any, old: str) -> None:
    client.register("web")
    run = client.start(targetUrl=TARGET)
    known = client.add(run, externalId=old, title="Bad call")
    client.finish(run)
    client.triage(known, "dismissed", reason="accepted_risk")
    told = bring(client, log_with(result(**members)))["tasks"][0]
    assert (told["id"], told["status"]) == (known, "dismissed")
    assert bring(client, log_with(result(**members)))["tasks"][0]["result"] == "unchanged"


@pytest.mark.parametrize("length", [64, 65])
def test_a_mark_leaves_room_for_the_numbers_of_twins(client: Client, length: int) -> None:
    whole = {"title": "x", "severity": "low"}
    bring(client, log_with(result(properties={OURS: whole}, fingerprints={IDENTITY: "x" * length})))
    assert [each["externalId"] for each in tasks_of(client)] == ["x" * 64 if length == 64 else None]


# Twins


def lines(*numbers: int, uri: str = "a.py") -> dict[str, Any]:
    """Return a document in which one line of code stands several times."""
    return log_with(*(result(locations=[at(uri, number, "f()")]) for number in numbers))


def stored(client: Client) -> dict[int, str]:
    """Return the findings by their lines."""
    return {int(each["location"].rpartition(":")[2]): each["id"] for each in tasks_of(client)}


MOVES = cases(  # lines before, and now with the line before that each was
    one_is_added_in_front=((30, 60), {10: None, 31: 30, 61: 60}),
    one_is_removed_in_front=((10, 30, 60), {29: 30, 59: 60}),
    one_is_removed_in_the_middle=((10, 30, 60), {10: 10, 60: 60}),
    all_move=((10, 20), {110: 10, 120: 20}),
    one_becomes_two=((10,), {10: 10, 11: None}),
    two_become_one=((10, 50), {48: 50}),
    one_is_far_from_both=((10, 12), {12: 10, 500: 12}),  # of equal sums, that in their order
    a_line_is_inserted_above=((5, 6, 7), {6: 5, 7: 6, 8: 7}),
)


@pytest.mark.parametrize(("before", "now"), MOVES)
@pytest.mark.parametrize("order", [1, -1])
def test_a_twin_is_the_stored_one_that_is_nearest(
    client: Client, before: tuple[int, ...], now: dict[int, int | None], order: int
) -> None:
    bring(client, lines(*before))
    known = stored(client)
    submission = bring(client, lines(*[*now][::order]))
    told = dict(zip([*now][::order], submission["tasks"], strict=True))
    assert {line: told[line]["id"] for line, was in now.items() if was} == {
        line: known[was] for line, was in now.items() if was
    }
    assert {told[line]["result"] for line, was in now.items() if not was} <= {"created"}


def test_results_at_one_place_are_one_and_suppressed_only_if_all_are(client: Client) -> None:
    suppressed = result(suppressions=[{"kind": "inSource"}])
    assert done(bring(client, log_with(result(), suppressed, result()))) == (1, 0, 0, 0)
    assert tasks_of(client)[0]["status"] == "open"
    assert done(bring(client, log_with(suppressed, suppressed))) == (0, 1, 0, 0)
    assert tasks_of(client)[0]["status"] == "dismissed"


def test_a_second_document_of_a_run_takes_no_twin_that_is_reported(client: Client) -> None:
    bring(client, lines(10, 50))
    known = stored(client)
    run = client.start(targetUrl=TARGET)
    first = send(client, run, lines(11)).json["tasks"][0]
    second = send(client, run, lines(12)).json["tasks"][0]
    assert (first["id"], second["id"]) == (known[10], known[50])
    assert send(client, run, lines(13)).json["tasks"][0]["result"] == "created"
    assert send(client, run, lines(13)).json["tasks"][0]["result"] == "unchanged"


def test_twins_in_one_line_are_known_when_a_run_reports_them_again(client: Client) -> None:
    both = log_with(*(result(locations=[at("a.py", 3, "f(f())")]) for _ in range(2)))
    for column, each in enumerate(both["runs"][0]["results"], 1):
        each["locations"][0]["physicalLocation"]["region"]["startColumn"] = column
    client.register("web")
    run = client.start(targetUrl=TARGET)
    assert [send(client, run, both).json["created"] for _ in range(3)] == [2, 0, 0]


def test_twins_of_a_renamed_file_are_matched_by_their_lines(client: Client) -> None:
    bring(client, lines(10, 50))
    known = stored(client)
    moved = lines(52, uri="b.py")
    moved["runs"][0]["properties"] = {RENAMES: {"b.py": "a.py"}}
    assert done(bring(client, moved)) == (0, 1, 0, 0)
    assert stored(client) == {10: known[10], 52: known[50]}
    assert done(bring(client, lines(10, 50)))[0] == 0  # and back


def test_a_twin_that_is_gone_takes_no_place_of_one_that_was_there_last(client: Client) -> None:
    bring(client, lines(10, 50))
    known = stored(client)
    client.triage(known[50], "dismissed")
    bring(client, lines(50))
    told = bring(client, lines(50, 99))["tasks"]
    assert [(each["id"], each["status"]) for each in told] == [(known[50], "dismissed"), (known[10], "open")]


def test_a_twin_of_another_branch_takes_no_place_of_the_main_lines(client: Client) -> None:
    bring(client, lines(50))
    known = stored(client)
    client.triage(known[50], "dismissed")
    assert done(bring(client, lines(5, 50), branch="one")) == (1, 0, 0, 1)
    for branch in ("two", None):
        told = bring(client, lines(50, 99), branch=branch)["tasks"]
        assert (told[0]["id"], told[0]["status"]) == (known[50], "dismissed")


def test_generated_ids_are_replaced_in_linear_time() -> None:
    def took(length: int) -> float:
        page = log_with(result(**in_html("<" + "mat-" * length)))
        return min(timeit.repeat(bound(parse, test_sarif.bytes_of(page)), number=1, repeat=3))

    assert took(32_000) < 30 * took(4_000)  # of a quadratic one, 64 times


def test_the_nearest_are_those_with_the_least_sum_of_distances() -> None:
    few, many = [("a", 10), ("a", 20), ("a", 30)], [("a", n) for n in (1, 12, 19, 21, 40)]
    assert nearest(few, many) == [1, 2, 3]
    assert matched([("a", 5), ("b", 5)], [("a", 100), ("b", 6)]) == {0: 0, 1: 1}
    assert matched([("a", 2)] * 2, [("a", 1)] * 2) == {0: 0, 1: 1}  # two in one line keep their order


def test_more_twins_than_a_table_has_room_for_are_matched_to_the_nearest_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = list[Any]()
    monkeypatch.setattr(twins, "distance", lambda *places: compared.append(places) or distance(*places))
    half = [("a", 10 * number + 1) for number in range(1500, 3000)]
    assert nearest(half, [("a", 10 * number) for number in range(3000)]) == [*range(1500, 3000)]
    assert len(compared) <= 2 * len(half)


@pytest.mark.parametrize("text", ["SQL injection", "A weak hash"])
def test_a_title_decides_which_finding_an_old_id_without_message_names(client: Client, text: str) -> None:
    client.register("web")
    old, place = "ca430f5796991d400512577bb216bd7ab28352f9", [at("src/a.py", 3)]
    known = client.add(client.start(targetUrl=TARGET), externalId=old, title="Line 7 is too long")
    client.triage(known, "dismissed")
    other, same = (result(locations=place, message={"text": each}) for each in (text, "Line 8 is too long"))
    for results in ([other, same], [same, other]):
        told = bring(client, log_with(*results))["tasks"]
        assert {each["id"]: each["status"] for each in told}[known] == "dismissed"
        assert {each["status"] for each in told} == {"open", "dismissed"}
        assert client.read(f"tasks/{known}")["title"] == "Line 8 is too long"


@pytest.mark.parametrize("added", ["ab", "ba", "xy", "yx"])
def test_of_two_with_a_shared_former_fingerprint_the_nearest_is_the_known_one(client: Client, added: str) -> None:
    bring(client, log_with(result(locations=[at("a.py", 10, "f()")], **marks(v2="same"))))
    known = stored(client)[10]
    client.triage(known, "dismissed")
    places = [[at("a.py", line, "f()")] for line in (10, 300)]
    marked = (result(locations=place, **marks(v1=v1, v2="same")) for place, v1 in zip(places, added, strict=True))
    bring(client, log_with(*marked))
    assert stored(client)[10] == known


@pytest.mark.parametrize("drops", [True, False])
def test_a_fingerprint_that_several_share_moves_no_decision(client: Client, drops: bool) -> None:
    def found(line: int, **prints: str) -> dict[str, Any]:
        return result(locations=[at("a.py", line, "f()")], fingerprints=prints)

    with_both = [found(10, v1="b", v2="same"), found(50, v1="a", v2="same")]
    with_one = [found(10, v2="same"), found(50, v2="same")]
    before, after = (with_both, with_one) if drops else (with_one, with_both)
    bring(client, log_with(*before))
    known = stored(client)
    client.triage(known[50], "dismissed")
    bring(client, log_with(*after))
    assert stored(client) == known
    bring(client, log_with(after[1]))
    assert client.read(f"tasks/{known[50]}")["timesSeen"] == 3


# Suppressions


def suppressed(*, is_suppressed: bool) -> dict[str, Any]:
    """Return a document of one result that a scanner has set aside or not."""
    return log_with(result(suppressions=[{"kind": "inSource"}] if is_suppressed else []))


def test_a_suppression_comes_and_goes_with_the_reports(client: Client) -> None:
    bring(client, suppressed(is_suppressed=False))
    for is_suppressed, status, became in (
        (True, "dismissed", "updated"),
        (True, "dismissed", "unchanged"),
        (False, "open", "reopened"),
        (False, "open", "unchanged"),
    ):
        told = bring(client, suppressed(is_suppressed=is_suppressed))["tasks"][0]
        assert (told["status"], told["result"]) == (status, became)
    told = client.history(told["id"])
    assert [(each["from"], each["to"]) for each in told[-2:]] == [("open", "dismissed"), ("dismissed", "open")]


@pytest.mark.parametrize("status", ["in_progress", "dismissed"])
def test_a_decision_outlives_a_suppression(client: Client, status: str) -> None:
    bring(client, suppressed(is_suppressed=False))
    [task] = tasks_of(client)
    client.triage(task["id"], status)
    for is_suppressed in (True, False):
        assert bring(client, suppressed(is_suppressed=is_suppressed))["tasks"][0]["status"] == status


def test_a_reason_is_a_decision_and_a_comment_is_none(client: Client) -> None:
    bring(client, suppressed(is_suppressed=True))
    [task] = tasks_of(client)
    client.triage(task["id"], comment="Looked at.")
    assert bring(client, suppressed(is_suppressed=False))["tasks"][0]["status"] == "open"
    bring(client, suppressed(is_suppressed=True))
    client.triage(task["id"], reason="false_positive")
    assert bring(client, suppressed(is_suppressed=False))["tasks"][0]["status"] == "dismissed"


def test_a_suppression_on_a_branch_leaves_the_main_line_alone(client: Client) -> None:
    bring(client, suppressed(is_suppressed=False))
    run = client.start(targetUrl=TARGET, branch="fix")
    assert send(client, run, suppressed(is_suppressed=True)).json["tasks"][0]["result"] == "unchanged"
    assert tasks_of(client)[0]["status"] == "open"
    own = log_with(result(ruleId="R2", suppressions=[{"kind": "inSource"}]))
    assert send(client, run, own).json["tasks"][0]["status"] == "dismissed"
    client.finish(run)
    assert bring(client, log_with(result(ruleId="R2")))["tasks"][0]["status"] == "open"  # after the merge, without it
