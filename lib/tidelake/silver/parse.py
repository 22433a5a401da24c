r"""Parse JSON payloads strictly: one object a record, every value exactly as it was written.

``from_json`` is fast and lenient: it reads a first value and ignores what follows, and it passes
numbers through a double. So each payload is wrapped in an array, where anything after the object
is an error, and the payloads in which a double could lose digits, ``\u`` escapes could lose a
surrogate, or a bracket could close our array, are read a second time as a variant, which keeps
decimals of up to 38 digits. So are payloads that hold a nested field. A number given for a string
field is taken by its value: 1.10 becomes "1.1". One that neither a double nor 38 digits hold breaks
the contract: its text would be that of another number. One that a double makes zero or infinity, as
1e-400, is read as the text that it is: a text field keeps it, any other is broken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.config import Event, Field
from tidelake.config.types import quoted
from tidelake.reuse import reused
from tidelake.silver.fields import refusals, unknown_names, unknown_values
from tidelake.silver.values import (
    DOUBTFUL,
    INEXACT,
    is_double,
    json_objects,
    json_variant,
    loses_digits,
    read_exactly,
    variant_text,
    with_extremes_as_texts,
)

PARSED = "_parsed"
BROKEN = "_broken"
VALUES = "_values"
UNKNOWN = "_unknown"
# Why a payload was not read.
REFUSAL = "_refusal"
# Of a payload that is not JSON itself: what it says, as JSON.
TEXT = "_text"

_NO_JSON = "payload: not one JSON object"

# What fast parsing could get wrong: a number with 17 characters of a fraction or 16 digits before
# an exponent (a double holds 15 for certain), an exponent below -290 (a double holds fewer
# digits there), an escaped surrogate, an escape that is cut off (its parser swallows the quote
# and goes on), a bracket that closes our own array. To look for digits only where a number can
# begin takes half the time.
_LONG_RUN = r"[:,\[]\s*-?(?:[0-9.]{16}|[0-9.]+[eE]-0*[23][0-9]{2})"
_LONG_NUMBER = (
    r"[:,\[]\s*-?"
    r"(?:(?=[0-9]*\.[0-9])[0-9.]{17}|[0-9.]{16,}[eE]|[0-9.]+[eE]-0*(?:29[0-9]|3[0-9]{2}))"
)
_SURROGATE = r"\\u(?:[dD][89a-fA-F]|(?![0-9a-fA-F]{4}))"
_CLOSING = r"\}\s*\]"
# An object of known fields alone, each a text or a short word or number, which has no exponent:
# without a backslash, the texts are where their quotes are. Of the grammar's rest it says nothing.
_PLAIN = r"""^\{(?: ?"(?:%s)" ?: ?(?:"[^"]*"|true|false|[^\[\]"{},eE]{1,16})[,}])*+ ?$"""
_MEANWHILE = (
    *("_objects", "_fast", "_plain", "_care", "_others", "_twice", "_variant"),
    *("_json", "_lost", "_texts"),
)
NESTED = frozenset({"array", "map", "struct"})


def parse(rows: DataFrame, event: Event, *, decoded: bool = False) -> DataFrame:
    """Read each payload's fields.

    Args:
        rows: Rows with a binary ``payload``.
        event: Its declared fields, and what to do about others.
        decoded: Whether ``_text`` holds what the payload says, and ``_refusal`` why it may not.

    Returns:
        ``rows`` plus ``_parsed`` (boolean), ``_values`` (struct of typed fields, a broken value
        null), ``_broken`` (array of texts, one for each field whose value would change or that
        is refused), ``_unknown`` (the other fields, ``map<string, variant>``; null for none) and
        ``_refusal`` (why the payload was not read; null where it was).
    """
    read = rows
    for name, column in _steps(event, decoded):
        read = read.withColumn(name, column)
    return read.drop(*_MEANWHILE, TEXT)


@reused
def _steps(event: Event, decoded: bool) -> list[tuple[str, Column]]:
    """Name the columns of the parse, each over those before it."""
    fields = event.fields
    told = F.col(TEXT) if decoded else F.col("payload").cast("string")
    text = F.col("_json")
    texts = ", ".join(f"{quoted(field.name)}: string" for field in fields)
    twice = F.col("_care")
    for field in fields:
        if field.type.kind in NESTED:
            twice = twice | F.col("_fast").getField(field.name).isNotNull()
    if event.evolution != "strict":
        twice = twice | F.col("_others").isNotNull()
    chosen = [_chosen_text(field).alias(field.name) for field in fields]
    outcomes = {
        field.name: read_exactly(F.col("_texts").getField(field.name), field.type)
        for field in fields
    }
    reasons = texts_where(
        [
            (outcomes[field.name].broken, f"{field.name}: not exactly {field.type.sql}")
            for field in fields
        ]
    )
    if any(field.type.kind == "string" for field in fields):
        reasons = F.concat(reasons, _texts_lost(fields))
    if event.evolution == "strict":
        refused = F.when(F.col(PARSED), refusals(F.col("_others")))
        reasons = F.concat(reasons, F.coalesce(refused, F.array().cast("array<string>")))
    doubted = F.col("_fast").isNotNull() & ~F.col("_plain")
    unread = ~F.col("_twice") | F.col("_variant").isNotNull()
    typed = [outcomes[field.name].typed.alias(field.name) for field in fields]
    unreadable = F.col(REFUSAL) if decoded else F.lit(_NO_JSON)
    return [
        # Most payloads are plain, which one look shows: no other question need be asked of them.
        ("_plain", F.coalesce(_is_plain(told, fields), F.lit(False))),
        ("_json", F.when(F.col("_plain"), told).otherwise(with_extremes_as_texts(told))),
        # In a step of its own, or Spark would parse once for the size and once for the element.
        ("_objects", F.when(F.is_valid_utf8(text), json_objects(text, f"struct<{texts}>"))),
        ("_fast", F.when(F.size("_objects") == 1, F.get("_objects", F.lit(0)))),
        ("_care", F.coalesce(doubted & _needs_care(text), F.lit(False))),
        ("_others", F.when(doubted, unknown_names(text, fields))),
        ("_twice", F.coalesce(twice, F.lit(False))),
        ("_variant", F.when(F.col("_twice"), json_variant(text))),
        ("_lost", F.when(F.col("_twice") & text.rlike(DOUBTFUL), _lost(fields))),
        (PARSED, F.col("_fast").isNotNull() & unread),
        (REFUSAL, F.when(~F.col(PARSED), unreadable)),
        ("_texts", F.when(F.col(PARSED), F.struct(*chosen))),
        (VALUES, F.struct(*typed)),
        (BROKEN, reasons),
        (UNKNOWN, unknown_values(F.col("_variant"), F.col("_others"))),
    ]


def texts_where(tests: Sequence[tuple[Column, str]]) -> Column:
    """List the texts whose condition holds; an empty array, at no cost, where none does."""
    nothing = F.array().cast("array<string>")
    found = F.array_compact(F.array(*[F.when(test, F.lit(text)) for test, text in tests]))
    return F.when(reduce(or_, [test for test, _ in tests]), found).otherwise(nothing)


def _is_plain(text: Column, fields: Sequence[Field]) -> Column:
    """Tell where an object is read right the fast way, and has no field that is unknown."""
    names = "|".join(_literally(field.name) for field in fields)
    return ~F.contains(text, F.lit("\\")) & text.rlike(_PLAIN % names)


def _literally(name: str) -> str:
    """Write a name as a pattern."""
    return re.sub(r"[^A-Za-z0-9_]", lambda found: f"\\x{{{ord(found[0]):x}}}", name)


def _needs_care(text: Column) -> Column:
    """Tell where the fast reading could go wrong, cheap tests first."""
    long_number = text.rlike(_LONG_RUN) & text.rlike(_LONG_NUMBER)
    surrogate = F.contains(text, F.lit("\\u")) & text.rlike(_SURROGATE)
    closing = F.contains(text, F.lit("]")) & text.rlike(_CLOSING)
    return long_number | surrogate | closing


def _chosen_text(field: Field) -> Column:
    """Take a field's text from the variant where the fast reading could have changed it."""
    exact = variant_text(_of_variant(field), field.type)
    kept = ~F.coalesce(F.array_contains("_lost", F.lit(field.name)), F.lit(False))
    if field.type.kind in NESTED:
        return F.when(kept, exact).otherwise(F.lit(INEXACT))
    if field.type.kind == "string":
        exact = F.when(kept, exact)
    return F.when(F.col("_care"), exact).otherwise(F.col("_fast").getField(field.name))


def _of_variant(field: Field) -> Column:
    name = field.name.replace("\\", "\\\\").replace('"', '\\"')
    return F.try_variant_get(F.col("_variant"), f'$["{name}"]', "variant")


def _lost(fields: Sequence[Field]) -> Column:
    """Name the fields whose number the variant does not keep as it was written.

    Of other scalars than texts the mark of :func:`variant_text` tells.
    """
    entries = F.try_variant_get("_variant", "$", "map<string,variant>")
    found = F.map_filter(
        entries, lambda name, value: F.array_contains(_texts_of(fields), name) & is_double(value)
    )
    # Without care, the fast reading's texts are taken, which have all digits of whole numbers.
    names = F.when(F.col("_care"), F.map_keys(found)).otherwise(F.array().cast("array<string>"))
    tests = {
        field.name: loses_digits(_of_variant(field), field.type)
        for field in fields
        if field.type.kind in NESTED
    }
    nested = [F.when(test, F.lit(name)) for name, test in tests.items() if test is not None]
    return F.concat(names, F.array_compact(F.array(*nested))) if nested else names


def _texts_of(fields: Sequence[Field]) -> Column:
    names = [F.lit(field.name) for field in fields if field.type.kind == "string"]
    return F.array(*names).cast("array<string>")


def _texts_lost(fields: Sequence[Field]) -> Column:
    """Write a reason for each text field whose number was lost."""
    reasons = F.transform(
        F.array_intersect("_lost", _texts_of(fields)),
        lambda name: F.concat(name, F.lit(": not exactly STRING")),
    )
    return F.coalesce(reasons, F.array().cast("array<string>"))
