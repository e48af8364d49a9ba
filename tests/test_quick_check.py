"""The fast validator of extensions accepts nothing that jsonschema rejects."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import random
import time
from collections import Counter
from typing import Any

import jsonschema
import pytest

import findings_service
from tests.clients import cases


def any_schema(random_source: random.Random, draft: int, depth: int = 0) -> Any:
    """Return a random schema of a draft; half of the schemas can use the fast validator."""
    choose = random_source.choice
    parts: list[dict[str, Any]] = [
        {"type": choose(["string", "number", "integer", "object", "array", ["null", "boolean"]])},
        {"enum": random_source.sample([None, True, False, "a", "ab", "é"], 3)},
        {"pattern": choose(["^a", "b$", r"^\d\.\d$", "^[A-Za-z0-9._-]{1,3}$", "^(a|b)+$", "^.{2,4}$", "[^a-c]"])},
        {choose(["minLength", "maxItems", "minItems", "minimum", "maximum"]): choose([0, 1, 3])},
        *([{"required": [choose(["a", "b"])]}, {"maxProperties": 1}] if draft >= 4 else []),
    ]
    below = depth < 3
    one, two = (any_schema(random_source, draft, depth + 1) if below else {} for _ in range(2))
    parts += [{"properties": {"a": one}}, {"items": one}, {"properties": {"a": two}, "additionalProperties": False}]
    parts += [{choose(["allOf", "anyOf"]): [one, two]}] if draft >= 4 else []
    if choose([True, False]):
        parts += [{"enum": [1, 0, [1], {"a": 1}, 1.5]}, {"uniqueItems": True}, {"pattern": r"^\w+$"}]
        parts += [{"patternProperties": {"^b": one}, "additionalProperties": two}]
        parts += [{"dependentRequired": {"a": ["b"]}} if draft >= 2019 else {"dependencies": {"a": ["b"]}}]
        parts += [{"type": ["string", one]}, {"disallow": [one]}, {"extends": [one, two]}] if draft == 3 else []
        parts += [{"oneOf": [one, two]}, {"not": one}] if draft >= 4 else []
        parts += [{"contains": one}, {"propertyNames": one}, {"const": choose([1, True, [True]])}] if draft >= 6 else []
        parts += [{"if": one, "then": two}, {"if": one, "else": two}] if draft >= 7 else []
        if draft == 2020:
            parts += [{choose(["anyOf", "oneOf"]): [one, two], "unevaluatedProperties": False}]
            parts += [{"allOf": [one], "unevaluatedItems": False}, {"prefixItems": [one], "unevaluatedItems": two}]
            parts += [{"dependentSchemas": {"a": one}, "unevaluatedProperties": two}]
    return {name: value for part in random_source.sample(parts, 2) for name, value in part.items()}


ANY_NUMBERS = [0, 1, -1, 1.0, 1.5, -0.0, 2**53, 2**64, 10**30, 1e300]
ANY_TEXTS = ["", "a", "ab", "abc\n", "1.2", "٣", "é", "😀" * 3, "a b"]
ANY_LISTS = [[], [1], [1, 1.0, True], ["a"] * 5, ["a", True, 1]]
ANY_OBJECTS = [{}, {"a": 1}, {"a": "x", "b": [1]}, {"a": "b", "b": 1}, {"b": "ab", "c": [1]}, {"é": {}}]
ANY_VALUES = [None, True, False, *ANY_NUMBERS, *ANY_TEXTS, *ANY_LISTS, *ANY_OBJECTS]


@pytest.mark.parametrize("draft", [2020, 2019, 7, 6, 4, 3])
def test_validators_agree_with_jsonschema_on_random_schemas(draft: int) -> None:
    random_source, verdicts = random.Random(draft), Counter[tuple[bool, bool]]()
    number = {2020: "202012", 2019: "201909"}.get(draft, draft)
    reference = getattr(jsonschema, f"Draft{number}Validator")
    named = {"$schema": reference.ID_OF(reference.META_SCHEMA)}
    for _ in range(500):
        schema = named | any_schema(random_source, draft)
        ours, quick = findings_service.make_validators(json.dumps(schema))
        for value in ANY_VALUES:
            verdict = ours.is_valid(value)
            assert verdict == reference(schema).is_valid(value), (schema, value)
            verdicts[verdict, quick(value, 1)] += 1
            assert verdict or not quick(value, 1), (schema, value)
    assert min(verdicts[True, False], verdicts[False, False]) > 1000
    assert verdicts[True, True] > 1000 or draft <= 4 or importlib.util.find_spec("jsonschema_rs") is None


def quick_size(schema: Any, value: Any) -> int:
    """Return the largest size in characters that the fast validator accepts, or 0."""
    pytest.importorskip("jsonschema_rs")
    _, accepts = findings_service.make_validators(json.dumps(schema, separators=(",", ":")))
    return next((size for size in range(20_000, 0, -1) if accepts(value, size)), 0)


@pytest.mark.parametrize(
    "schema",
    cases(
        reference={"$ref": "#/$defs/a", "$defs": {"a": True}},
        negation={"not": {"pattern": r"^\d$"}},
        one_of={"oneOf": [{}, {"type": "array"}]},
        unicode_class={"pattern": r"^\w+$"},
        look_behind={"pattern": "(?<=a)b"},
        possessive={"pattern": "a++"},
        unique={"uniqueItems": True},
        unknown={"x-unit": 1},
        old_draft={"$schema": "http://json-schema.org/draft-04/schema#"},
        below={"properties": {"a": {"items": {"not": {}}}}},
        numbers={"items": {"enum": [None, [1]]}},
        repetition={"pattern": "^.{0,2000}$"},
        many_patterns={"items": {"anyOf": [{"pattern": f"^[a-z]{{{n}}}$"} for n in range(1, 60)]}},
        large={"enum": [None, "x" * 9000]},
    ),
)
def test_ambiguous_schemas_do_not_use_the_fast_validator(schema: Any) -> None:
    assert quick_size(schema, None) == 0 < quick_size({"enum": [None]}, None)


def any_of(rule: Any, times: int) -> dict[str, Any]:
    """Return a schema that accepts every item after checking a rule `times` times."""
    return {"items": {"anyOf": [*[rule] * times, True]}}


QUICK_WORK = cases(
    enumerations=(any_of({"enum": [None, *map(str, range(100))]}, 3), "-"),
    floats=(any_of({"maximum": -0.5}, 300), 0.5),
    large_floats=(any_of({"maximum": -9}, 100), 1e300),
    required=(any_of({"required": ["a"]}, 100), {"b": 1}),
    patterns=(any_of({"pattern": "^a.?$"}, 50), "x"),
    wide_pattern=(any_of({"pattern": "^(.?){450}x$"}, 1), "😀" * 20),
)


@pytest.mark.parametrize(("schema", "item"), QUICK_WORK)
def test_fast_validator_takes_at_most_100_ms(schema: Any, item: Any) -> None:
    _, accepts = findings_service.make_validators(json.dumps(schema, separators=(",", ":")))
    size = len(json.dumps(item, ensure_ascii=False, separators=(",", ":"))) + 1
    value, durations = [item] * (quick_size(schema, [item]) // size), []
    for _ in range(3):
        start = time.thread_time()
        assert accepts(value, size * len(value))
        durations.append(time.thread_time() - start)
    assert min(durations) < 0.1  # s; a request may block the event loop for 0.3 s
