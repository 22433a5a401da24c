"""What Kafka Connect's types are in a writer's Avro schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidelake.silver.avro_schema import logical_types

_AT = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}
_A = {"type": "record", "name": "A", "fields": [{"name": "t", "type": _AT}]}
_FOUND = {"type": "struct", "fields": [{"field": "t", "name": _AT["connect.name"]}]}


@pytest.mark.parametrize(
    ("first", "found"),
    [
        (["null", _A], _FOUND),
        # An object with a field for each branch, of which none is converted.
        (["null", _A, "string"], {}),
        (["string", {"type": "array", "items": _A}], {}),
        (["string", ["null", _A]], {}),
        (["int", {"type": "record", "name": "B", "fields": [{"name": "a", "type": _A}]}], {}),
        (["null"], {}),
    ],
)
def test_a_record_defined_in_a_union_has_its_types_where_it_is_named(
    first: list[Any], found: dict[str, Any]
) -> None:
    second = ["null", "A" if "A" in json.dumps(first) else _A]
    fields = [{"name": "x", "type": first}, {"name": "y", "type": second}]
    schema = {"type": "record", "name": "R", "namespace": "shop", "fields": fields}
    assert json.loads(logical_types(json.dumps(schema))) == {
        "type": "struct",
        "fields": [{"field": "x", **found}, {"field": "y", **_FOUND}],
    }
