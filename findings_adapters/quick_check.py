"""What accepts most good extensions in microseconds: jsonschema-rs (https://docs.rs/jsonschema), where it is installed.

It only ever accepts. What it does not accept jsonschema judges, which finds the words for it, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import regex

from findings_service import (
    ENDS_THE_PROCESS,
    KIB,
    REGISTRY,
    draft_of,
    log,
    pattern_cost,
)

# What a schema may hold for jsonschema-rs to accept extensions before jsonschema sees them: no references, nothing
# that a larger set of accepted strings could make refuse (not, if, oneOf), nothing that takes long over a little:
# it takes a microsecond to tell two numbers apart, so that none stands in an enum or const.
SAFE_KEYWORD = regex.compile(
    r"\$(?:comment|id|schema)|title|description|default|deprecated|examples|type|enum|pattern|required|properties"
    r"|(?:max|min)(?:imum|Items|Length|Properties)|exclusiveM(?:ax|in)imum|additionalProperties|a(?:ll|ny)Of"
    r"|items|prefixItems"
)
SAFE_HOLDERS = ("additionalProperties", "allOf", "anyOf", "items", "prefixItems")
SAFE_WEIGHT = 8 * KIB  # of a schema: its characters, and PART_WEIGHT for each part of its patterns
PART_WEIGHT = 8  # characters that cost what a part does: a dot is ten states for Rust
# The weight of a schema times the characters of extensions that jsonschema-rs may judge in one call, which nothing can
# interrupt. The worst found: 10 ns each for `maximum` over floats, 6 ns for `(.?){1000}` over characters of four bytes.
FAST_WORK = 400_000
# Patterns that Rust reads as Python does, or more narrowly; a++ it reads as (a+)+.
SAFE_PATTERN = regex.compile(
    r"(?!.*[*+?}]\+)(?:[\w /:,@#%&=~;'\"<>!-]|\\[-.+*?()\[\]{}^$|\\/]|\\d|[.|^$?*+)]|\((?:\?:|(?!\?))|\{\d+(?:,\d*)?\}"
    r"|\[\^?(?:[\w /:,@#%&=~;'\"<>!+*?().-]|\\[-.\\\[\]^/])+\])*",
    regex.ASCII,
)


def safe_weight(schema: Any) -> float:
    """Return what the patterns of a schema weigh for Rust, or infinity where two validators might disagree on it."""
    if isinstance(schema, list):
        return sum(map(safe_weight, schema))
    if isinstance(schema, bool):
        return 0
    pattern = schema.get("pattern", "")
    values = all(isinstance(value, str | bool | None) for value in schema.get("enum", ()))
    if not values or not all(map(SAFE_KEYWORD.fullmatch, schema)) or not SAFE_PATTERN.fullmatch(pattern):
        return math.inf
    below = [*schema.get("properties", {}).values(), *(schema[each] for each in SAFE_HOLDERS if each in schema)]
    return PART_WEIGHT * pattern_cost(pattern, "most") + sum(map(safe_weight, below))


def fast_validator(schema: Any, length: int) -> Callable[[Any, int], bool]:
    """Return what accepts most good extensions of so many characters at once: jsonschema-rs, if it is here.

    It only ever accepts: jsonschema stays the judge of what is refused, and finds the words for it. It is given nothing
    that could take its stack, memory or time: neither a schema that is large or out of that, nor large extensions.
    """
    weight = length + safe_weight(schema)
    if weight <= SAFE_WEIGHT and "const" in draft_of(schema).VALIDATORS:  # which drafts 3 and 4 do not have
        try:
            import jsonschema_rs

            validator = jsonschema_rs.validator_for(schema, validate_formats=False)
            return lambda value, size: size * weight <= FAST_WORK and validator.is_valid(value)
        except ENDS_THE_PROCESS:
            raise
        except BaseException as error:  # mostly a pattern that is good in Python alone; a panic at worst
            log.debug("no fast validator: %r", error)
    return lambda *_: False


def register() -> None:
    """Have extensions accepted quickly."""
    REGISTRY.fast_validator = fast_validator
