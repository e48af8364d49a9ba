"""Fast acceptance of most valid extensions by jsonschema-rs (https://docs.rs/jsonschema).

It takes microseconds and never refuses: jsonschema validates all other extensions, and supplies the error messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import regex

from findings_service import EXIT_EXCEPTIONS, KIB, REGISTRY, draft_of, log, pattern_cost

# Keywords of schemas with which jsonschema-rs may accept extensions without jsonschema. Excluded are references, those
# that refuse more if a subschema accepts more (not, if, oneOf), and slow ones: comparing two numbers takes a
# microsecond, so `const` and numbers in an `enum` are excluded.
SAFE_KEYWORD = regex.compile(
    r"\$(?:comment|id|schema)|title|description|default|deprecated|examples|type|enum|pattern|required|properties"
    r"|(?:max|min)(?:imum|Items|Length|Properties)|exclusiveM(?:ax|in)imum|additionalProperties|a(?:ll|ny)Of"
    r"|items|prefixItems"
)
SAFE_HOLDERS = ("additionalProperties", "allOf", "anyOf", "items", "prefixItems")
SAFE_WEIGHT = 8 * KIB  # limit for a schema: its characters, plus PART_WEIGHT for each part of its patterns
PART_WEIGHT = 8  # characters that cost as much as a part: Rust compiles a dot to ten states
# Limit of a schema's weight times the characters of extensions in one call of jsonschema-rs, which nothing can
# interrupt. Worst cases: 10 ns per unit for `maximum` with floats, 6 ns for `(.?){1000}` of four-byte characters.
FAST_WORK = 400_000
# Patterns that match the same in Rust as in Python, or less. Rust reads a++ as (a+)+, so that is excluded.
SAFE_PATTERN = regex.compile(
    r"(?!.*[*+?}]\+)(?:[\w /:,@#%&=~;'\"<>!-]|\\[-.+*?()\[\]{}^$|\\/]|\\d|[.|^$?*+)]|\((?:\?:|(?!\?))|\{\d+(?:,\d*)?\}"
    r"|\[\^?(?:[\w /:,@#%&=~;'\"<>!+*?().-]|\\[-.\\\[\]^/])+\])*",
    regex.ASCII,
)


def safe_weight(schema: Any) -> float:
    """Return the weight of a schema's patterns, or infinity if jsonschema-rs must not be used."""
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
    """Return a function that accepts most valid extensions of a schema of `length` characters.

    Its arguments are the extensions and their number of characters; False means that jsonschema must validate them.
    Schemas and extensions that could exhaust the stack, memory or time of jsonschema-rs are not passed to it.
    """
    weight = length + safe_weight(schema)
    if weight <= SAFE_WEIGHT and "const" in draft_of(schema).VALIDATORS:  # drafts 3 and 4 do not have `const`
        try:
            import jsonschema_rs

            validator = jsonschema_rs.validator_for(schema, validate_formats=False)
            return lambda value, size: size * weight <= FAST_WORK and validator.is_valid(value)
        except EXIT_EXCEPTIONS:
            raise
        except BaseException as error:  # mostly a pattern that is valid only in Python; at worst a panic
            log.debug("no fast validator: %r", error)
    return lambda *_: False


def register() -> None:
    """Register the fast validator."""
    REGISTRY.fast_validator = fast_validator
