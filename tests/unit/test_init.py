"""`tidelake init`: from a sample to files that every command takes, or one clear message."""

from __future__ import annotations

import ast
import gzip
import json
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.samples import START, hit, land, order, reading
from tests.unit.handmade import write_rows
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config import Pipeline, load_environment, load_pipeline
from tidelake.delta.tables import Lake


@pytest.fixture(autouse=True)
def folder(empty_folder: Path) -> Path:
    return empty_folder


def events(values: Sequence[dict[str, Any]], file: str = "events/a.jsonl") -> Path:
    return land(Path(file), list(values))


def init(*arguments: str) -> Pipeline:
    """Run init without questions; load what it wrote as every command does."""
    assert run_command(app, ["init", *arguments, "--yes"]) == 0
    return load_pipeline(next(Path("conf/pipelines").iterdir()).stem, load_environment())


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """Run init where it must fail and write nothing; give its message."""
    before = sorted(Path().rglob("*"))
    assert run_command(app, ["init", *arguments, "--yes"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert sorted(Path().rglob("*")) == before
    return captured.err


def test_orders_become_typed_columns_with_their_money_exact() -> None:
    events([order(n) for n in range(60)])

    shop = init("shop", "--source", "events")

    assert {f.name: f.type.sql for f in shop.event.fields} == {
        "order_id": "STRING",
        "createdAt": "TIMESTAMP",
        "status": "STRING",
        "customer": "STRUCT<id: BIGINT, country: STRING>",
        "items": "ARRAY<STRUCT<sku: STRING, qty: BIGINT, price: DECIMAL(18,2)>>",
        "total": "DECIMAL(18,2)",
        "order": "BIGINT",
        "gift-note": "STRING",
    }
    assert shop.event.select is not None
    assert shop.event.select["customer_country"] == "customer.country"
    assert shop.event.select["gift_note"] == "`gift-note`"
    assert (shop.event.id, shop.event.time) == ("order_id", "createdAt")
    (table,) = shop.gold
    assert (table.name, table.keys) == ("shop_by_status_1m", ("status",))
    assert [(m.name, m.aggregate) for m in table.measures] == [
        ("events", "count"),
        ("total", "sum"),
    ]


def test_readings_are_told_apart_by_device_and_time_in_milliseconds() -> None:
    events([reading(n) for n in range(60)])

    iot = init("--source", "events/a.jsonl")

    assert iot.name == "a"
    assert iot.event.id == "concat(sensor, '|', ts)"
    assert iot.event.time == "timestamp_millis(ts)"
    assert iot.gold[0].keys == ("sensor",)
    assert [m.name for m in iot.gold[0].measures] == ["events", "mean_temperature"]


def test_a_device_within_an_object_identifies_a_reading_by_its_id() -> None:
    """By `record_id`, a file that is sent again would double each reading."""
    about = [
        {"site": {"id": n % 4}, "model": f"m{n}", "level": n, "id": f"d{n % 4}"} for n in range(60)
    ]
    events([{"device": about[n], "ts": reading(n // 4 * 4)["ts"], "value": 1} for n in range(60)])
    assert init("iot", "--source", "events").event.id == "concat(device.id, '|', ts)"


@pytest.mark.parametrize("inner", [{"type_id": 1}, {"site": {"id": 1}}, {"driver_id": 1}])
def test_another_id_within_a_devices_object_does_not_identify_a_reading(
    inner: dict[str, Any],
) -> None:
    """Readings of two devices at one time would be dropped as duplicates."""
    times = [reading(n)["ts"] for n in range(60)]
    events([{"vehicle": {**inner, "label": "v"}, "ts": at, "value": 1} for at in times])
    assert init("iot", "--source", "events").event.id == "record_id"


def test_the_id_of_an_owners_object_that_is_unique_by_chance_is_none() -> None:
    events([{"customer": {"id": f"c{n}"}, "at": START.isoformat()} for n in range(10)])
    assert init("shop", "--source", "events").event.id == "record_id"


def test_the_id_of_an_event_within_an_owners_object_is_that_of_the_event() -> None:
    events([{"customer": {"order_id": f"o{n}"}, "at": START.isoformat()} for n in range(10)])
    assert init("shop", "--source", "events").event.id == "customer.order_id"


def test_hits_have_no_id_so_their_place_serves_and_the_reason_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    events([hit(n) for n in range(60)])

    web = init("web", "--source", "events")

    assert web.event.id == "record_id"
    assert web.event.time == "try_to_timestamp(`@timestamp`, 'dd/MMM/yyyy:HH:mm:ss Z')"
    assert web.event.select is not None
    assert set(web.event.select) == {"timestamp", "remote_addr", "method", "bytes"}
    assert "no field is unique per event" in " ".join(capsys.readouterr().out.split())


def test_copies_do_not_count_against_an_id() -> None:
    events([*[order(n) for n in range(30)], *[order(n) for n in range(10)]])
    assert init("shop", "--source", "events").event.id == "order_id"


def test_an_id_that_two_different_records_share_is_none() -> None:
    events([order(n // 2, total=n) for n in range(60)])
    assert init("shop", "--source", "events").event.id == "record_id"


def test_an_owners_id_that_is_unique_by_chance_is_none() -> None:
    events([{"user_id": f"u{n}", "at": START.isoformat()} for n in range(10)])
    assert init("shop", "--source", "events").event.id == "record_id"


def test_without_a_time_the_files_own_serves() -> None:
    events([{"id": f"e{n}"} for n in range(10)])
    assert init("shop", "--source", "events").event.time == "source_timestamp"


@pytest.mark.parametrize(
    ("name", "text", "is_time"),
    [
        ("logged", "1/20/26 10:05", True),
        ("day_of", "Tue, 20 Jan 2026 10:00:00 GMT", True),
        ("seen", "1/20/2026 10:05 AM", True),
        ("seen", "2026.01.20 10h", True),
        ("address", "10.0.2026.1", False),
        ("at", "unknown", False),
        ("what", "model 2026 of 1999", False),
    ],
)
def test_a_time_of_an_unknown_format_is_named(
    capsys: pytest.CaptureFixture[str], name: str, text: str, is_time: bool
) -> None:
    events([{"id": f"e{n}", name: text} for n in range(10)])
    assert init("shop", "--source", "events", "--json").event.time == "source_timestamp"
    why = json.loads(capsys.readouterr().out)["time"]["why"]
    hint = f"if {name} does ('{text}'), give --time with SQL, such as to_timestamp({name}, "
    assert (hint in why) is is_time


def test_the_time_of_the_event_comes_before_that_of_its_update() -> None:
    at = START.isoformat()
    events([{"id": f"e{n}", "updated_at": at, "created_at": at} for n in range(10)])
    assert init("shop", "--source", "events").event.time == "created_at"


def test_silvers_own_names_and_names_of_two_are_given_others() -> None:
    values = [
        {"id": f"e{n}", "event_time": START.isoformat(), "event_id": 1, "is_late": 1, "a.b": 1,
         "a": {"b": 2}, "_x": 1, "ID": 3}
        for n in range(10)
    ]  # fmt: skip
    events(values)

    select = init("shop", "--source", "events").event.select

    assert select == {
        "id": "id",
        "payload_event_id": "event_id",
        "payload_is_late": "is_late",
        "a_b": "`a.b`",
        "a_b_2": "a.b",
        "x": "`_x`",
    }


def test_a_field_that_begins_with_an_underscore_is_a_column_and_may_be_the_id() -> None:
    """As in exports of MongoDB; a field without the underscore keeps its name."""
    events([{"_id": f"{n:024x}", "id": n % 3, "_broken": n} for n in range(20)] * 2)
    event = init("shop", "--source", "events").event
    assert event.id == "`_id`"
    assert event.select == {"id_2": "`_id`", "id": "id"}
    assert [field.name for field in event.fields] == ["_id", "id"]
    init("asked", "--source", "events", "--id", "_id")
    assert load_pipeline("asked", load_environment()).event.id == "`_id`"


def test_an_object_id_of_mongodb_may_be_the_id() -> None:
    events([{"_id": {"$oid": 24 * "abcdef"[n]}, "n": n % 2} for n in range(6)])
    assert init("shop", "--source", "events").event.id == "`_id`.`$oid`"


def test_what_is_asked_for_is_taken() -> None:
    events([reading(n) for n in range(60)])

    wishes = ["--id", "concat(sensor, ts)", "--time", "ts", "--key", "ok", "--window", "2 hours"]
    iot = init("iot", "--source", "events", *wishes, "--delay", "90 seconds")

    assert (iot.event.id, iot.event.time) == ("concat(sensor, ts)", "timestamp_millis(ts)")
    assert (iot.gold[0].name, iot.gold[0].keys) == ("iot_by_ok_2h", ("ok",))
    assert iot.watermark.delay.total_seconds() == 90


def test_a_delay_of_zero_is_a_choice_too() -> None:
    events([reading(n) for n in range(60)])
    iot = init("iot", "--source", "events", "--delay", "0 seconds")
    assert iot.watermark.delay.total_seconds() == 0
    assert "out of order; as given." in Path("conf/pipelines/iot.yml").read_text()


def test_a_time_that_was_never_set_is_no_obstacle() -> None:
    events([*[order(n) for n in range(30)], order(30, createdAt="0001-01-01T00:00:00Z")])
    shop = init("shop", "--source", "events")
    assert shop.watermark.allowed_lateness.days == 1
    note = "1 of 31 records are more than 10 years behind and left out"
    assert note in Path("conf/pipelines/shop.yml").read_text().replace("\n  # ", " ")


def test_no_key_is_a_choice_too() -> None:
    events([reading(n) for n in range(60)])
    table = init("iot", "--source", "events", "--key", "none").gold[0]
    assert (table.name, table.keys) == ("iot_1m", ())


def test_expectations_hold_in_the_sample_and_only_warn() -> None:
    events([order(n) for n in range(60)])

    shop = init("shop", "--source", "events")

    by_column = {(rule.columns[0], rule.type.split("_", 3)[3]): rule for rule in shop.rules}
    assert by_column["status", "to_be_in_set"].kwargs["value_set"] == ["paid", "placed", "shipped"]
    assert by_column["total", "to_be_between"].kwargs["min_value"] == 0
    assert ("gift_note", "to_not_be_null") not in by_column
    severe = {rule.columns[0] for rule in shop.rules if rule.severity == "critical"}
    assert severe == {"event_id", "event_time"}


def test_a_broken_line_is_told_and_no_obstacle(capsys: pytest.CaptureFixture[str]) -> None:
    file = events([order(n) for n in range(20)])
    file.write_bytes(file.read_bytes() + b'{"order_id": "o-99", "tot\n\n')

    init("shop", "--source", "events")

    told = capsys.readouterr().err
    assert "1 of 21 records will be quarantined: not one JSON object" in told
    assert "events/a.jsonl line 21: not JSON: Unterminated string" in told


def test_records_in_the_future_are_told_and_no_examples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    events([order(n) for n in range(5)] + [order(9, createdAt="2099-01-01T00:00:00Z")])
    init("shop", "--source", "events")
    assert "1 of 6 records are in the future by createdAt" in capsys.readouterr().err
    assert len(Path("tests/shop.sample.jsonl").read_bytes().splitlines()) == 5


def test_the_sample_of_the_test_is_the_first_of_each_id_byte_for_byte() -> None:
    file = events([order(n // 2, total=n) for n in range(8)])
    init("shop", "--source", "events", "--id", "order_id")
    lines = file.read_bytes().splitlines()
    assert Path("tests/shop.sample.jsonl").read_bytes().splitlines() == lines[::2]
    ast.parse(Path("tests/test_shop.py").read_text())


def test_a_source_below_the_folder_is_relative_and_another_absolute(tmp_path: Path) -> None:
    events([order(n) for n in range(5)])
    # First, because then the folder is a project, and another folder within it too.
    assert run_command(app, ["init", "two", "--source", "events", "--to", "other", "--yes"]) == 0
    one = init("one", "--source", str(tmp_path / "events"))
    assert "\n  path: events\n" in Path(one.file).read_text()
    assert one.source.path == str(tmp_path / "events")  # type: ignore[union-attr]
    two = load_pipeline("other/conf/pipelines/two.yml", load_environment())
    assert two.source.path == str(tmp_path / "events")  # type: ignore[union-attr]


def test_a_sample_stands_in_for_a_topic_that_is_out_of_reach() -> None:
    events([order(n) for n in range(5)])
    shop = init("--source", "kafka://127.0.0.1:1/shop.orders", "--sample", "events")
    assert shop.name == "shop_orders"
    assert shop.source.model_dump(include={"kind", "bootstrap", "topic"}) == {
        "kind": "kafka",
        "bootstrap": "127.0.0.1:1",
        "topic": "shop.orders",
    }


def test_compressed_files_are_read_and_lines_come_from_all_files() -> None:
    events([order(n) for n in range(50)])
    Path("events/b.jsonl.gz").write_bytes(gzip.compress(b'{"order_id": "z", "extra": 1}\n'))
    shop = init("shop", "--source", "events", "--lines", "20")
    assert "extra" in [field.name for field in shop.event.fields]


def test_the_lakehouse_is_kept_out_of_git_and_other_lines_stay() -> None:
    events([order(n) for n in range(5)])
    Path(".gitignore").write_text("*.log")
    init("shop", "--source", "events")
    assert Path(".gitignore").read_text() == "*.log\n/lakehouse/*\n/spark-warehouse/\n"
    assert run_command(app, ["init", "two", "--source", "events", "--yes"]) == 0
    assert Path(".gitignore").read_text() == "*.log\n/lakehouse/*\n/spark-warehouse/\n"


def test_a_gitignore_of_another_encoding_is_kept_byte_for_byte() -> None:
    events([order(n) for n in range(5)])
    Path(".gitignore").write_bytes(b"caf\xe9/\r\n/lakehouse/*\r\n")
    init("shop", "--source", "events")
    assert Path(".gitignore").read_bytes() == (b"caf\xe9/\r\n/lakehouse/*\r\n/spark-warehouse/\n")


def test_nothing_is_written_if_gitignore_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    events([order(n) for n in range(5)])
    Path(".gitignore").mkdir()
    assert ".gitignore: Is a directory" in refused(capsys, "shop", "--source", "events", code=1)


def test_json_says_what_was_chosen_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    events([order(n) for n in range(60)])
    assert run_command(app, ["init", "shop", "--source", "events", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["id"] == {"sql": "order_id", "why": "60 values in 60 different records"}
    assert told["files"] == [
        "conf/pipelines/shop.yml",
        "conf/expectations/shop.yml",
        "tests/test_shop.py",
        "tests/shop.sample.jsonl",
        ".gitignore",
        "tidelake.yml",
    ]


def test_a_dry_run_lists_the_files_and_writes_none(capsys: pytest.CaptureFixture[str]) -> None:
    events([order(n) for n in range(60)])
    Path(".gitignore").write_text("*.log\n")
    arguments = ["init", "shop", "--source", "events", "--yes"]
    assert run_command(app, [*arguments, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["dry_run"]
    assert run_command(app, [*arguments, "--dry-run"]) == 0
    shown = capsys.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == [".gitignore", "events"]
    assert Path(".gitignore").read_text() == "*.log\n"

    assert run_command(app, [*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == told | {"dry_run": False}
    named = [line for line in shown.splitlines() if line.startswith("Would write ")]
    assert named == [f"Would write {path}" for path in told["files"]]
    assert shown.endswith("Nothing was written.\n")


@pytest.mark.parametrize("there", [True, False])
def test_what_comes_next_can_be_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], there: bool
) -> None:
    monkeypatch.setattr("tidelake.cli.init.find_spec", lambda _: object() if there else None)
    events([order(n) for n in range(60)])
    arguments = ["init", "shop", "--source", "events", "--to", "my shop", "--yes"]
    assert run_command(app, [*arguments, "--root", "my lake"]) == 0
    told = capsys.readouterr().err.partition("Next:\n")[2].split("\n")
    commands = [line.strip() for line in told]
    # What was given counts from the folder that is left.
    assert commands[:2] == ["cd 'my shop'", f"tidelake run shop --root '{Path.cwd()}/my lake'"]
    tests = ["pytest tests/test_shop.py", ""]
    assert commands[5:] == (tests if there else ["pip install pytest", *tests])


def test_the_suggested_query_quotes_keywords_and_no_other_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    keywords = ("from", "to", "Order", "desc", "between", "true")
    for name in keywords:
        events([reading(n, **{name: ("a", "b")[n % 2]}) for n in range(60)], f"{name}/a.jsonl")
        arguments = ["--source", name, "--key", name, "--yes", "--root", f"lake {name}"]
        assert run_command(app, ["init", "iot", "--to", name, *arguments]) == 0
        told = capsys.readouterr().err.partition("Next:\n")[2]
        query = next(line for line in told.splitlines() if " sql " in line)
        assert f'"SELECT window_start, "{name}", events, ' in query.replace("'", '"')
        words = shlex.split(query)
        table = words[2].split()[-3]
        rows = f"SELECT 1 AS window_start, 'a' AS \"{name}\", 60 AS events, *"
        rows += " FROM (SELECT 1 AS mean_temperature, 1 AS different_sensor)"
        write_rows(Lake(Path(words[-1])).table(table), rows, note={})
        assert run_command(app, [*words[1:], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0][name] == "a"

    events([reading(n) for n in range(60)])
    assert run_command(app, ["init", "iot", "--source", "events", "--key", "ok", "--yes"]) == 0
    assert 'sql "SELECT window_start, ok, events, ' in capsys.readouterr().err


def test_questions_are_answered_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events([order(n) for n in range(60)])
    said = ["events", "shop", "oder_id", "", "", "customer_country", "1 day", "soon", "1 hour"]
    answers = iter(said)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: next(answers))

    assert run_command(app, ["init"]) == 0

    shop = load_pipeline("shop", load_environment())
    assert shop.event.id == "order_id"
    assert shop.gold[0].name == "shop_by_customer_country_1d"
    assert shop.watermark.delay.total_seconds() == 3600
    told = capsys.readouterr().err
    assert "did you mean order_id?" in told
    assert "'soon' is not a duration" in told


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "holds no record"),
        ("a,b,c\n1,2,3\n", "events/a.jsonl line 1: not JSON"),
        ("a,b,c\n1,2,3\n", "This looks like CSV; give its files names that end in .csv."),
        ('[{"a": 1},{"a": 2}]\n', "events/a.jsonl is one JSON array"),
        ('[{"a": 1},{"a": 2}]\n', "jq -c '.[]' FILE"),
        ('{\n  "a": 1\n}\n', "jq -c . FILE"),
        ('{"a": NaN}\n', "NaN is not a JSON number"),
        ("5\n", "JSON, but not an object: 5"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_source_that_is_no_json_lines_is_named_with_its_line(
    capsys: pytest.CaptureFixture[str], content: str, words: str
) -> None:
    Path("events").mkdir()
    Path("events/a.jsonl").write_text(content)
    assert words in refused(capsys, "shop", "--source", "events")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "No source was given"),
        (["--source", "nowhere"], "nowhere does not exist"),
        (["--source", "empty"], "empty holds no file"),
        (["--source", "kafka://127.0.0.1:1/t"], "no Kafka broker can be reached"),
        (["--source", "kafka://127.0.0.1:1/t"], "Or pass a file of its records: --sample FILE."),
        (["--source", "kafka://h:1"], "write kafka://HOST:PORT/TOPIC"),
        (["Shop!", "--source", "events"], "'Shop!' is not a valid table name"),
        (["--source", "events", "--id", "orderid"], "did you mean order_id?"),
        (["--source", "events", "--id", "uuid()"], "calls uuid"),
        (["--source", "events", "--time", "when"], "--time 'when'"),
        (["--source", "events", "--key", "stat"], "did you mean status?"),
        (["--source", "events", "--window", "1 hou"], "'--window': '1 hou' is not a duration"),
        (["--source", "events", "--window", "0 hours"], "--window must be longer than 0"),
        (["--source", "events", "--delay", "x"], "'--delay': 'x' is not a duration"),
        (["--source", "events", "--to", "events/a.jsonl"], "is a file, not a folder"),
        (["--source", "events", "--key", "items"], "is not a scalar column of silver"),
    ],
)
def test_wrong_use_is_told_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    events([order(n) for n in range(20)])
    Path("empty").mkdir()
    assert words in refused(capsys, *arguments)


def test_what_would_be_no_sound_definition_is_not_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    events([order(n, window_start="a") for n in range(20)])
    told = refused(capsys, "shop", "--source", "events", "--key", "window_start")
    assert "--key: window_start is a reserved column of gold" in told


NAMES = [
    "id", "event_id", "event_time", "ts", "@timestamp", "a.b", "a b", "ID", "_x", "", "größe",
    "select", "on", "order", "timestamp", "window_start", "is_late", "record_id", "payload",
    "price", "x" * 80, "1st", "a`b", "a'b", 'a"b', "a: b", "#c", "- d", "null", "yes", "events",
    "items", "total", "user_id", "status", "new\nline", "{}", "*", "\U0001f600",
]  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 2**63, 10**38, 1_767_607_200, 1_767_607_200_000, 0.5, 1e300, 1e-9]),
    st.sampled_from(["", "a", "2026-01-05T10:00:00Z", "05/Jan/2026:10:00:00 +0000", "# no"]),
    st.sampled_from(["u1", "u2", "u3"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=15, derandomize=True)
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6), min_size=2))
def test_whatever_objects_hold_makes_a_definition_that_loads(values: list[dict[str, Any]]) -> None:
    values = [{"id": f"e{n}", **value} for n, value in enumerate(values)]
    with tempfile.TemporaryDirectory() as folder:
        file = land(Path(folder) / "events" / "a.jsonl", values)
        told = ["init", "shop", "--source", str(file), "--to", folder, "--yes", "--json"]
        assert run_command(app, told) == 0
        load_pipeline(f"{folder}/conf/pipelines/shop.yml", load_environment())


def test_a_name_that_a_pipeline_file_would_read_as_a_variable_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As ``${root}`` it would be another name, and any other would stop each command."""
    inner = {"${b}": 1}
    events([{"order_id": f"o-{n}", "${root}": 1, "a ${x": 2, "s": inner} for n in range(9)])
    fields = init("shop", "--source", "events").event.fields
    assert {field.name: field.type.sql for field in fields} == {
        "order_id": "STRING",
        "s": "MAP<STRING, BIGINT>",
    }
    told = capsys.readouterr().err
    for name in ("${root}", "a ${x"):
        assert f"'{name}' is left out: ${{ would begin a variable of the pipeline file" in told


def test_objects_without_a_field_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    events([{"_in_x": 1}])
    assert "has no field that can be a column" in refused(capsys, "shop", "--source", "events")
    events([{}])
    told = refused(capsys, "shop", "--source", "events")
    assert told.endswith("write records with fields, or pass another --sample\n")


def test_no_file_is_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    events([order(n) for n in range(20)])
    Path("tests").mkdir()
    Path("tests/test_shop.py").write_text("mine")
    told = refused(capsys, "shop", "--source", "events")
    assert "nothing was written: tests/test_shop.py already exists" in told
