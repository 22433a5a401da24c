"""Hostile payloads: whatever bytes come, each row is accounted for and the next batch flows."""

from __future__ import annotations

import json
import os
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.batches import closed
from tests.fates import assert_books, assert_fates
from tests.pipelines import bronze
from tests.running import START, click, read
from tests.worlds import TO_SILVER, World, world
from tidelake.ledger.terms import read_ledger
from tidelake.silver.stages import Judging, classify

_FULL = os.environ.get("TIDELAKE_FULL") == "1"
_FUZZED = 1_000_000 if _FULL else 10_000
_DAY = 24 * 60
_NOON = START + timedelta(days=10, hours=12)


def _wild(chance: random.Random, depth: int = 0) -> Any:
    """Draw a JSON value of any shape."""
    kind = chance.randrange(12 if depth < 4 else 8)
    if kind == 0:
        return None
    if kind == 1:
        return chance.random() < 0.5
    if kind in (2, 3):
        return chance.choice([0, -1, 2**63, 10**40, 1e308, 5e-324, 0.1 + 0.2, -(10**17)])
    if kind < 8:
        return "".join(chr(chance.choice([0x20, 0x41, 0xE9, 0x4E00, 0x1F600])) for _ in range(5))
    if kind < 10:
        return [_wild(chance, depth + 1) for _ in range(chance.randrange(4))]
    names = ["event_id", "event_time", "action", "value", "user_id", "a b", "", "Ünï", "$", "x.y"]
    return {chance.choice(names): _wild(chance, depth + 1) for _ in range(chance.randrange(5))}


def _valid(number: int, **more: Any) -> bytes:
    return click(number, minute=10 * _DAY + number % 600, **more)


def _shapes(chance: random.Random, number: int) -> bytes:
    """Draw one hostile payload; most of them small."""
    kind = number % 10
    if kind < 3:
        size = chance.randrange(80)
        return bytes(byte for byte in chance.randbytes(size) if byte != 0x0A)
    if kind < 5:
        return json.dumps(_wild(chance), ensure_ascii=chance.random() < 0.5).encode()
    return _damaged(chance, number, kind)


def _damaged(chance: random.Random, number: int, kind: int) -> bytes:
    """Draw a payload that is close to a sound one."""
    line = _valid(number)
    if kind == 5:
        at = chance.randrange(len(line))
        return line[:at] + chance.choice([b"\x00", b"\xff", b'"', b"{", b"\\u", b"]"]) + line[at:]
    if kind == 6:
        return line[: chance.randrange(len(line))]
    if kind == 7:
        return _valid(number, **{f"extra_{chance.randrange(300)}": _wild(chance)})
    if kind == 8:
        field = chance.choice(["event_id", "event_time", "action", "value"])
        return _valid(number, **{field: _wild(chance)})
    return chance.choice(
        [
            b"\xef\xbb\xbf" + line,
            line + b"\r",
            line + b" ",
            line + b"]",
            line + line,
            b'{"event_id":"a",' + line[1:],
            b'{"s": "\\ud83d", ' + line[1:],
            b'{"s": "\\ud83d\\ude00", ' + line[1:],
            b"[" + line + b"]",
            line.replace(b'"value"', b'"VALUE"'),
            b'{"value": 1' + b"0" * chance.randrange(400) + b"," + line[1:],
            b'{"value": 1e' + str(chance.randrange(10**6)).encode() + b"," + line[1:],
        ]
    )


def _giants(number: int) -> list[bytes]:
    """Write the payloads that are hostile by their size."""
    deep = b"[" * 5_000 + b"]" * 5_000
    objects = b'{"a":' * 5_000 + b"1" + b"}" * 5_000
    long = "x" * 1_000_000
    return [
        deep,
        objects,
        b'{"deep":' + deep + b"," + _valid(number)[1:],
        b"[" * 100_000,
        _valid(number + 1, product_id=long),
        _valid(number + 2, event_id=long),
        _valid(number + 3, **{long: 1}),
        _valid(number + 4, **{f"k{n}": n for n in range(10_000)}),
        b'{"value":' + b"9" * 1_000_000 + b"," + _valid(number + 5)[1:],
        long.encode(),
    ]


@pytest.fixture(scope="module")
def fuzzed(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[World, list[bytes]]:
    """Let hostile payloads arrive in two files, and then ordinary ones."""
    played = world(spark, tmp_path_factory.mktemp("fuzzed"), small=False)
    chance = random.Random(15)
    lines = [_shapes(chance, number) for number in range(_FUZZED)] + _giants(_FUZZED)
    chance.shuffle(lines)
    half = len(lines) // 2
    played.land("a.jsonl", lines[:half])
    played.land("b.jsonl", lines[half:])
    played.run(_NOON, hops=TO_SILVER)
    ordinary = [_valid(2 * _FUZZED + number) for number in range(20)]
    played.land("c.jsonl", ordinary)
    played.run(_NOON, hops=TO_SILVER)
    return played, lines + ordinary


def test_whatever_bytes_arrive_bronze_has_them_all_verbatim(
    fuzzed: tuple[World, list[bytes]],
) -> None:
    played, lines = fuzzed
    payloads = [bytes(row[0]) for row in read(played.lake, "bronze.clickstream", "payload")]
    assert sorted(payloads) == sorted(lines)


def test_whatever_bytes_arrive_each_row_is_accounted_for(
    fuzzed: tuple[World, list[bytes]],
) -> None:
    played, lines = fuzzed
    told = read_ledger(played.lake, played.pipeline).to_json()
    assert told["problems"] == []
    assert told["source"] == told["bronze"] == len(lines)
    kept = [
        row[0]
        for table in ("silver.clickstream", "silver.clickstream__late")
        for row in read(played.lake, table, "record_id")
    ]
    refused = read(played.lake, "silver.clickstream__quarantine", "record_id, payload, reasons")
    assert all(reasons for *_, reasons in refused)
    ids = [*kept, *[row[0] for row in refused]]
    assert len(ids) == len(set(ids))
    assert len(ids) == len(lines) - told["duplicates"] - told["filtered"]


def test_whatever_bytes_arrive_the_fate_of_each_row_is_the_oracle_s(
    fuzzed: tuple[World, list[bytes]],
) -> None:
    played, _ = fuzzed
    assert_books(played.lake, played.pipeline, assert_fates(played.lake))


def test_after_hostile_bytes_the_next_batch_flows(fuzzed: tuple[World, list[bytes]]) -> None:
    played, _ = fuzzed
    newest = closed(played.lake.silver("clickstream"))[-1]
    silver = [count for count in newest.note["counts"] if count[0] == "silver"]
    assert [count[3] for count in silver] == [20]


def test_hostile_fields_make_a_hundred_columns_at_most(
    spark: SparkSession, fuzzed: tuple[World, list[bytes]]
) -> None:
    played, _ = fuzzed
    path = str(played.lake.silver("clickstream").path)
    names = spark.read.format("delta").load(path).columns
    defined = {*played.pipeline.silver_columns, "event_id", "event_time", "is_late", "record_id"}
    defined |= {"ingested_at", "event_date"}
    extra = [name for name in names if name not in defined and not name.startswith("_")]
    assert 0 < len(extra) <= 100
    assert len({name.lower() for name in names}) == len(names)


def test_a_string_that_is_cut_or_raw_makes_no_json(spark: SparkSession, tmp_path: Path) -> None:
    fields = ("event_id", "user_id", "event_time", "action", "value")
    lines = {
        f"{field} {cut!r}": click(1, minute=0, **{field: "abcHERE"}).replace(b"HERE", cut.encode())
        for field in fields
        for cut in ("\\u", "\\u0", "\\u00e", "\\x", "\x00")
    }
    pipeline = world(spark, tmp_path).pipeline
    rows = bronze(spark, [{"record_id": name, "payload": line} for name, line in lines.items()])
    judged = classify(rows, Judging(pipeline)).select("record_id", "_stage").collect()
    assert {row["record_id"]: row["_stage"] for row in judged} == dict.fromkeys(lines, "parse")
