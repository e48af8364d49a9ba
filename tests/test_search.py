"""Full-text search: the parameter `q` of task lists."""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import Any

import flask
import pytest

from tests.clients import API, SEVERITIES, Client, assert_problem, cases, client_of, rows_of, task
from tests.engines import integrity_errors_of
from tests.scenarios import without_accents


def titles_matching(client: Client, q: str, **query: Any) -> list[str]:
    """Return the titles of the tasks that match `q`, newest first, and check the total."""
    page = client.read("tasks", q=q, limit=200, **query)
    assert page["total"] == len(page["tasks"])
    return [item["title"] for item in page["tasks"]]


CHARACTERS = [
    *"aAbß1%_*\\'\"-^[.\u0301\u05d0\u0130\u0131\ufb01\u03a3\u03c2\u03c3\u1e9e\u00e9\u00c5\u0915\u0941\u200f\U0001f469",
    *"  \n\x1f\u3000",
    "AB",
]


def random_text(dice: random.Random, length: int) -> str:
    return "x" + "".join(dice.choices(CHARACTERS, k=dice.randrange(length)))


def matches(item: dict[str, Any], q: str) -> bool:
    """Return whether each word of `q` occurs in one of the texts of a task."""
    texts = [item["title"], item["externalId"] or "", *(each["label"] for each in item["evidence"])]
    return all(any(without_accents(word) in without_accents(text) for text in texts) for word in q.split())


def random_task(dice: random.Random) -> dict[str, Any]:
    """Return a random task with hostile texts; external ids repeat."""
    labels = [{"label": random_text(dice, 6)} for _ in range(dice.randrange(3))]
    external_id = f"{random_text(dice, 2)}{dice.randrange(90)}" if dice.random() < 0.5 else ...
    return task(title=random_text(dice, 12), externalId=external_id, evidence=labels, severity=dice.choice(SEVERITIES))


@pytest.mark.parametrize("seed", range(3))
def test_search_equals_a_scan_of_all_tasks(app: flask.Flask, client: Client, tmp_path: Path, seed: int) -> None:
    dice, other_client = random.Random(seed), client_of(app, client="other")
    for owner in (client, other_client):
        owner.register("web")
    for branch in (None, "topic", None):
        runs = [(owner, owner.start("web", branch=branch)) for owner in (client, client, other_client)]
        for _ in range(12):
            owner, run = dice.choice(runs)
            owner.submit(run, *(random_task(dice) for _ in range(dice.choice((1, 2, 40)))))
    tasks = [item for page in client.walk("tasks", view="full", limit=200) for item in page["tasks"]]
    for _ in range(150):
        words = dice.choice(list(filter(None, random_text(dice, 5).split())))
        text = dice.choice((words[1:] or words, words, dice.choice(tasks)["title"], f"x {dice.randrange(9)}"))
        if not without_accents("".join(text.split())):
            continue
        ids = [item["id"] for page in client.walk("tasks", q=text, limit=30) for item in page["tasks"]]
        assert ids == [item["id"] for item in tasks if matches(item, text)], text
    assert integrity_errors_of(tmp_path / "findings.db") == []


@pytest.mark.parametrize(
    ("title", "q", "found"),
    cases(
        part_of_a_word=("Unlabelled field", "LABEL", True),
        words_in_any_order=("Unlabelled field", "field unlab", True),
        one_word_is_missing=("Unlabelled field", "field form", False),
        across_words=("Form field", "mfi", False),
        dotted_capital_i=("\u0130stanbul", "istanbul", True),
        sharp_s=("Straße", "STRASSE", True),
        ligature=("\ufb01le", "file", True),
        final_sigma=("\u03bf\u03b4\u03cc\u03c2", "\u039f\u0394\u039f\u03a3", True),
        accent_asked_for=("resume", "résumé", True),
        accent_stored_apart=("re\u0301sume\u0301", "resume", True),
        kelvin_sign=("3 \u212a", "k", True),
        another_letter=("Łódź", "lodz", False),
        whole_syllable=("\uac01", "\u1100\u1161\u11a8", True),
        part_of_a_syllable=("\uac01", "\uac00", False),
        percent=("100 % wrong", "%", True),
        percent_is_itself=("100 wrong", "100%", False),
        underscore_is_itself=("a-b", "a_b", False),
        star_is_itself=("ab", "a*", False),
        quotes=('say "hi"', '"hi"', True),
        pattern_is_itself=("abc", "[a-c]", False),
        white_space_is_all_alike=("one\ntwo\x1fthree", "two\u2003one three", True),
    ),
)
def test_search_matches_words_regardless_of_case_and_accents(
    client: Client, run: str, title: str, q: str, found: bool
) -> None:
    client.submit(run, task(title=title), task(title=title), task(title="Something else"))
    assert titles_matching(client, q) == ([title] * 2 if found else [])


def test_search_covers_only_titles_external_ids_and_labels(client: Client, run: str) -> None:
    evidence = [{"label": "src/app.py:12", "content": "secret"}, {"type": "log", "url": "https://cdn.example/x"}]
    client.add(run, title="One", externalId="CWE-79/a", evidence=evidence, description="described")
    assert titles_matching(client, "cwe-79 one APP.PY:1") == ["One"]
    for word in ("secret", "cdn.example", "described", "log", "high", "web", "src/app.py:12cwe", "onecwe"):
        assert titles_matching(client, word) == []


def test_search_index_follows_new_reports_and_deletions(client: Client) -> None:
    client.register("web")
    branch, main = client.start(branch="topic"), client.start()
    client.add(branch, externalId="1", title="Found here")
    client.add(main, externalId="1", title="Taken over", rule="S101", location="src/é.py:7", tags=["wcag2a"])
    assert titles_matching(client, "here") == []
    for words in ("s101", "E.PY", "wcag2a"):
        assert titles_matching(client, words) == ["Taken over"]
    client.add(main, externalId="1", title="Taken over")
    assert (titles_matching(client, "s101"), titles_matching(client, "wcag2a")) == ([], [])
    client.add(branch, externalId="1", title="Not heard")
    assert (titles_matching(client, "heard"), titles_matching(client, "taken")) == ([], ["Taken over"])
    client.remove(f"tasks/{client.read('tasks')['tasks'][0]['id']}")
    assert (titles_matching(client, "taken"), rows_of(client.application, "SELECT words FROM task_words")) == ([], [])


def test_task_without_words_matches_no_search(client: Client, run: str, tmp_path: Path) -> None:
    client.submit(run, task(title="\u0301", externalId="\u0308"), task(title="Old"))
    assert (titles_matching(client, "old"), titles_matching(client, "old", externalId="\u0308")) == (["Old"], [])
    assert integrity_errors_of(tmp_path / "findings.db") == []


def test_search_is_limited_to_500_characters(client: Client, run: str) -> None:
    labels = [{"label": " ".join(string.ascii_lowercase)}]
    client.submit(run, task(title="Few"), task(title="Many", evidence=labels))
    assert titles_matching(client, " ".join(string.ascii_lowercase * 20)[:500]) == ["Many"]
    for q in ("w" * 501, "a" + "\u0301" * 16_000 + "\u0316" * 16_000):
        assert_problem(client.get(f"{API}/tasks", query_string={"q": q}), 400, "invalid_parameter", "q")
