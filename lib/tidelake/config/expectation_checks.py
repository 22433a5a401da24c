"""Checks of a suite's expectations: their types, their arguments and the columns they name."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tidelake.config.arguments import argument_findings
from tidelake.config.bounds import as_bound, is_parameter
from tidelake.config.document import Finding, KeyPath
from tidelake.config.model import suggestion
from tidelake.config.signatures import ROW_EXPECTATIONS, SIGNATURES, Signature


def suite_findings(
    raw: Mapping[str, Any],
    columns: Collection[str] | None,
    gold: Mapping[str, Collection[str]] | None,
) -> Iterator[Finding]:
    """Find everything wrong with the expectations of a suite.

    Args:
        raw: The file's content.
        columns: Silver's columns; None when they cannot be known.
        gold: The columns of each gold table by its name; None when they cannot be known.
    """
    yield from _list_findings(raw.get("expectations"), ("expectations",), columns, of_rows=True)
    tables = raw.get("gold")
    for name, items in (tables if isinstance(tables, dict) else {}).items():
        if gold is not None and name not in gold:
            hint = suggestion(name, gold) or f" (known: {', '.join(gold)})"
            yield Finding(("gold", name), f"unknown gold table {name}{hint}")
        of_table = gold.get(name) if gold is not None else None
        yield from _list_findings(items, ("gold", name), of_table, of_rows=False)


def _list_findings(
    items: Any, path: KeyPath, columns: Collection[str] | None, *, of_rows: bool
) -> Iterator[Finding]:
    first: dict[str, int] = {}
    for index, item in enumerate(items if isinstance(items, list) else []):
        if not isinstance(item, dict):
            continue
        place = (*path, index)
        yield from _expectation_findings(item, place, columns, of_rows=of_rows)
        # Great Expectations keeps one of two equal ones without a word.
        same = json.dumps([item.get("type"), item.get("kwargs")], sort_keys=True, default=repr)
        if same in first:
            yield Finding(place, f"expects the same as number {first[same] + 1} of this list")
        first.setdefault(same, index)


def _expectation_findings(
    raw: Mapping[str, Any], path: KeyPath, columns: Collection[str] | None, *, of_rows: bool
) -> Iterator[Finding]:
    """Find what is wrong with the type and the arguments of an expectation.

    Args:
        raw: The expectation as written.
        path: Where it stands.
        columns: The table's columns; None when they cannot be known.
        of_rows: Whether row-level expectations decide over single rows here, as in silver.
    """
    kind = raw.get("type")
    if not isinstance(kind, str):
        return
    signature = SIGNATURES.get(kind)
    if signature is None:
        yield Finding((*path, "type"), _unknown_type(kind))
        return
    kwargs = raw.get("kwargs", {})
    if not isinstance(kwargs, dict):
        return
    place = (*path, "kwargs")
    for name in signature.required:
        if name not in kwargs:
            yield Finding((*place, name), "required argument is missing")
    for name, value in kwargs.items():
        if name not in signature.arguments:
            yield Finding((*place, name), _unknown_argument(name, signature))
        else:
            argument = signature.arguments[name]
            yield from argument_findings(argument, value, (*place, name), columns)
    yield from _combined(kwargs, signature, place)
    if of_rows and kind in ROW_EXPECTATIONS and raw.get("severity", "critical") == "critical":
        yield from _mostly(kwargs.get("mostly", 1), place)


def _unknown_type(kind: str) -> str:
    hint = suggestion(kind, SIGNATURES)
    return f"'{kind}' is not supported{hint} (supported: {', '.join(SIGNATURES)})"


def _unknown_argument(name: str, signature: Signature) -> str:
    known = signature.arguments
    return f"unknown argument{suggestion(name, known)} (known: {', '.join(known)})"


def _combined(kwargs: Mapping[str, Any], signature: Signature, place: KeyPath) -> Iterator[Finding]:
    """Find arguments that are each right but do not go together."""
    if signature.needs_bound and "min_value" not in kwargs and "max_value" not in kwargs:
        yield Finding(place, "needs min_value or max_value")
    yield from _range(kwargs, place)
    if "row_condition" in kwargs and "condition_parser" not in kwargs:
        message = "required with row_condition: write spark, for SQL"
        yield Finding((*place, "condition_parser"), message)
    elif "condition_parser" in kwargs and "row_condition" not in kwargs:
        yield Finding((*place, "condition_parser"), "goes with row_condition only")


def _range(kwargs: Mapping[str, Any], place: KeyPath) -> Iterator[Finding]:
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    if low is None or high is None or is_parameter(low) or is_parameter(high):
        return
    try:
        least, most = as_bound(low), as_bound(high)
    except ValueError:
        return
    if type(least) is not type(most):
        yield Finding((*place, "min_value"), "is of another kind than max_value")
    elif least > most:  # type: ignore[operator]
        yield Finding((*place, "min_value"), f"{low} is more than max_value, {high}")


def _mostly(share: Any, place: KeyPath) -> Iterator[Finding]:
    if isinstance(share, int | float) and share < 1:
        message = (
            "below 1 cannot decide over a single row, which passes or does not; "
            "write severity: warning"
        )
        yield Finding((*place, "mostly"), message)
