"""The generators write what they say, the same every time, and the oracles agree with them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest

from tests.oracles import clickstream as clickstream_oracle
from tests.oracles import flights as flights_oracle
from tests.oracles.clickstream import Event, Fate
from tidelake.errors import MachineError, UsageError
from tidelake.examples import Generated, generate, generate_flights
from tidelake.examples import flights as flights_generator
from tidelake.examples.clickstream import RATES

EVENTS = 40_000


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _lines(folder: Path) -> list[bytes]:
    return [line for content in _content(folder).values() for line in content.split(b"\n")[:-1]]


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Generated]:
    folder = tmp_path_factory.mktemp("clickstream")
    return folder, generate("clickstream", folder, events=EVENTS, seed=7)


@pytest.fixture(scope="module")
def january(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Generated]:
    folder = tmp_path_factory.mktemp("january")
    return folder, generate("flights", folder, events=0, seed=1)


@pytest.fixture(scope="module")
def fates(stream: tuple[Path, Generated]) -> list[Fate]:
    """Give what the oracle says of each line of the stream."""
    return clickstream_oracle.fates(_lines(stream[0]))


@pytest.fixture(scope="module")
def accepted(fates: list[Fate]) -> list[Event]:
    """Give the events of the stream that are accepted, in order of arrival."""
    return [fate.event for fate in fates if fate.verdict == "accepted" and fate.event is not None]


class Months(NamedTuple):
    """Months of 2013, and what the package has of them."""

    months: tuple[int, ...]
    flights: int
    cancelled: int
    without_arrival: int
    without_delay: int


# In two of them the clocks change.
_MONTHS = [
    Months((3, 11), 56_102, 1_094, 50, 1_229),
    pytest.param(Months(tuple(range(1, 13)), 336_776, 8_255, 458, 9_430), marks=pytest.mark.long),
]


@pytest.fixture(scope="module", params=_MONTHS, ids=lambda wanted: f"{len(wanted.months)} months")
def wanted(request: pytest.FixtureRequest) -> Months:
    found: Months = request.param
    return found


@pytest.fixture(scope="module")
def reported(wanted: Months) -> pd.DataFrame:
    reports = flights_generator.read_events(wanted.months)
    frame = pd.DataFrame(json.loads(b"[" + b",".join(report.line for report in reports) + b"]"))
    frame["known_at"] = pd.Series([report.known_at for report in reports])
    for column in ("event_time", "scheduled_time"):
        frame[column] = pd.to_datetime(frame[column], utc=True)
    frame["delay_minutes"] = frame["delay_minutes"].astype("Int64")
    return frame


def test_an_unknown_pipeline_is_refused_with_the_names_that_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="clickstream, flights, products"):
        generate("invoices", tmp_path, events=10, seed=1)


def test_the_same_seed_gives_the_same_bytes(stream: tuple[Path, Generated], tmp_path: Path) -> None:
    generate("clickstream", tmp_path, events=EVENTS, seed=7)
    assert _content(tmp_path) == _content(stream[0])


def test_another_seed_or_size_adds_files_and_ids(tmp_path: Path) -> None:
    generate("clickstream", tmp_path, events=500, seed=1)
    generate("clickstream", tmp_path, events=500, seed=2)
    generate("clickstream", tmp_path, events=600, seed=1)
    assert len(list(tmp_path.iterdir())) == 60
    verdicts = Counter(fate.verdict for fate in clickstream_oracle.fates(_lines(tmp_path)))
    assert verdicts["duplicate"] == 25 + 25 + 30
    assert verdicts["conflicting"] <= 2


def test_a_second_run_touches_nothing(tmp_path: Path) -> None:
    first = generate("clickstream", tmp_path, events=2000, seed=1)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    second = generate("clickstream", tmp_path, events=2000, seed=1)
    assert (first.written, second.written) == (20, 0)
    assert asdict(second) == {**asdict(first), "written": 0}
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times


def test_a_missing_file_is_restored_alone(tmp_path: Path) -> None:
    generate("clickstream", tmp_path, events=2000, seed=1)
    before = _content(tmp_path)
    (tmp_path / "clickstream-s1-2000-0003.jsonl").unlink()
    assert generate("clickstream", tmp_path, events=2000, seed=1).written == 1
    assert _content(tmp_path) == before


def test_a_changed_file_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    generate("clickstream", tmp_path, events=2000, seed=1)
    (tmp_path / "clickstream-s1-2000-0001.jsonl").unlink()
    changed = tmp_path / "clickstream-s1-2000-0005.jsonl"
    changed.write_bytes(b"{}\n")
    with pytest.raises(UsageError, match=changed.name):
        generate("clickstream", tmp_path, events=2000, seed=1)
    assert changed.read_bytes() == b"{}\n"
    assert len(list(tmp_path.iterdir())) == 19


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "landing").write_text("")
    for folder in (tmp_path / "landing", tmp_path / "landing" / "below"):
        with pytest.raises(UsageError, match="landing is a file"):
            generate("clickstream", folder, events=10, seed=1)


def test_modification_times_follow_the_delivery_order(tmp_path: Path) -> None:
    generate("clickstream", tmp_path, events=20, seed=1)
    times = [path.stat().st_mtime_ns // 1_000_000 for path in sorted(tmp_path.iterdir())]
    assert times == sorted(set(times))


@pytest.mark.parametrize("events", [1, 2, 10, 21, 99, 1000])
def test_small_streams_have_exactly_their_number_of_lines(tmp_path: Path, events: int) -> None:
    said: list[str] = []
    summary = generate("clickstream", tmp_path, events=events, seed=3, progress=said.append)
    lines = _lines(tmp_path)
    assert len(lines) == summary.records == sum(summary.kinds.values()) == events
    assert summary.files == summary.written == len(list(tmp_path.iterdir())) <= 20
    assert all(lines)
    assert said


@pytest.mark.parametrize("events", [0, -1])
def test_a_stream_without_events_is_refused(tmp_path: Path, events: int) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        generate("clickstream", tmp_path, events=events, seed=1)


def test_each_kind_has_its_share(stream: tuple[Path, Generated]) -> None:
    kinds = stream[1].kinds
    for kind, rate in asdict(RATES).items():
        assert kinds[kind] == pytest.approx(rate * EVENTS, abs=1)
    assert sum(kinds.values()) == EVENTS


def test_the_oracle_finds_the_kinds_that_the_generator_made(
    stream: tuple[Path, Generated], fates: list[Fate]
) -> None:
    verdicts, kinds = Counter(fate.verdict for fate in fates), stream[1].kinds
    assert verdicts["malformed"] > 0
    assert verdicts["contract"] > 0
    assert verdicts == {
        "malformed": verdicts["malformed"],
        "contract": kinds["malformed"] - verdicts["malformed"],
        "expectation": kinds["implausible"],
        "filtered": kinds["filtered"],
        "future": kinds["future"],
        "duplicate": kinds["duplicate"],
        "conflicting": kinds["conflicting"],
        "accepted": kinds["valid"] + kinds["late"] + kinds["too_late"],
    }


def test_events_arrive_as_late_as_announced_and_the_stream_ends_like_any_other(
    stream: tuple[Path, Generated], accepted: list[Event]
) -> None:
    """Stand on the largest time seen so far, as a watermark does."""
    behind = []
    newest = datetime(2026, 1, 5, tzinfo=UTC)
    for event in accepted:
        newest = max(newest, event["event_time"])
        behind.append(newest - event["event_time"])
    far, near = timedelta(hours=25, minutes=50), timedelta(minutes=9)
    assert sum(lag > far for lag in behind) == stream[1].kinds["too_late"]
    late = sum(near < lag <= far for lag in behind)
    assert late == pytest.approx(stream[1].kinds["late"], rel=0.05)
    assert newest > datetime(2026, 1, 6, 11, 50, tzinfo=UTC)
    last = behind[-500:]
    assert sum(lag > near for lag in last) < 25
    assert sum(lag < timedelta(minutes=1) for lag in last) > 450


def test_values_have_two_decimals_and_belong_to_the_product(accepted: list[Event]) -> None:
    prices: dict[str, set[Decimal]] = {}
    for event in accepted:
        value = event["value"]
        assert (value is not None) == (event["action"] in ("purchase", "add_to_cart"))
        if value is not None:
            prices.setdefault(event["product_id"], set()).add(value)
    assert len(prices) > 100
    assert {len(values) for values in prices.values()} == {1}


def test_the_funnel_narrows_and_a_few_users_are_bots(
    stream: tuple[Path, Generated], accepted: list[Event]
) -> None:
    actions = Counter(event["action"] for event in accepted)
    assert actions["view"] > actions["click"] > actions["add_to_cart"] > actions["purchase"] > 0
    bots = {event["user_id"] for event in accepted if event["action"] == "bot"}
    users = {event["user_id"] for event in accepted}
    assert 0 < len(bots) < len(users) / 50
    assert any(b'"Click"' in line for line in _lines(stream[0]))


def test_flights_has_the_facts_of_the_package(wanted: Months, reported: pd.DataFrame) -> None:
    kinds = reported["kind"].value_counts()
    assert len(flights_oracle.flights(wanted.months)) == wanted.flights
    assert kinds["departed"] == wanted.flights - wanted.cancelled
    assert kinds["departed"] - kinds["arrived"] == wanted.without_arrival
    assert reported["event_id"].is_unique


def test_flights_are_where_and_when_the_oracle_says(wanted: Months, reported: pd.DataFrame) -> None:
    expected = flights_oracle.events(wanted.months)
    columns = list(reported.columns)
    pd.testing.assert_frame_equal(reported, expected[columns], check_dtype=False)


def test_an_arrival_lies_within_a_day_of_its_departure(reported: pd.DataFrame) -> None:
    times = reported.pivot(index="flight_id", columns="kind", values="event_time").dropna()
    flown = times["arrived"] - times["departed"]
    assert flown.min() > pd.Timedelta(minutes=15)
    assert flown.max() < pd.Timedelta(hours=24)


def test_each_known_delay_is_the_distance_from_schedule_to_event(
    wanted: Months, reported: pd.DataFrame
) -> None:
    """The airline's own arithmetic confirms the zones, the days and the clock changes."""
    known = reported[reported["delay_minutes"].notna()]
    minutes = (known["event_time"] - known["scheduled_time"]) / pd.Timedelta(minutes=1)
    assert (minutes == known["delay_minutes"].astype("float")).all()
    unknown = wanted.cancelled + wanted.without_delay
    assert len(known) == 2 * wanted.flights - unknown


def test_january_is_one_file_a_day_in_order_of_filing(january: tuple[Path, Generated]) -> None:
    folder, summary = january
    names = sorted(path.name for path in folder.iterdir())
    assert names[0] == "flights-2013-01-01.jsonl"
    assert names[-1] == "flights-2013-02-01-of-01.jsonl"
    assert summary.files == len(names) == 32
    ids = [json.loads(line)["event_id"] for line in _lines(folder)]
    assert ids == list(flights_oracle.events((1,))["event_id"])
    assert summary.kinds == {"departed": 26_483, "arrived": len(ids) - 26_483}
    assert generate("flights", folder, events=0, seed=2).written == 0


def test_a_cap_keeps_the_first_events_and_marks_the_last_file(
    january: tuple[Path, Generated], tmp_path: Path
) -> None:
    summary = generate("flights", tmp_path, events=3000, seed=1)
    assert summary.records == 3000
    assert _lines(tmp_path) == _lines(january[0])[:3000]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[:-1] == sorted(_content(january[0]))[: len(names) - 1]
    assert names[-1].endswith("-first3000.jsonl")


@pytest.mark.long
def test_a_month_can_be_added_to_another(january: tuple[Path, Generated], tmp_path: Path) -> None:
    generate_flights(tmp_path, months=(1, 2))
    together = _content(tmp_path)
    assert _content(january[0]).items() < together.items()
    assert "flights-2013-02-01.jsonl" in together


@pytest.mark.long
def test_a_cap_beyond_january_takes_flights_of_the_year(
    january: tuple[Path, Generated], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A year of two months: to read twelve takes six times as long.
    monkeypatch.setattr(flights_generator, "_MONTHS", range(1, 3))
    wanted = january[1].records + 20_000
    summary = generate("flights", tmp_path, events=wanted, seed=1)
    assert summary.records == wanted
    content = _content(tmp_path)
    of_january = {name: lines for name, lines in _content(january[0]).items() if "-of-" not in name}
    assert of_january.items() <= content.items()
    assert max(content).startswith("flights-2013-02")


def test_impossible_months_and_caps_are_refused(tmp_path: Path) -> None:
    for months in ((), (0,), (1, 13)):
        with pytest.raises(UsageError, match="from 1 to 12"):
            generate_flights(tmp_path, months=months)
    with pytest.raises(UsageError, match="negative"):
        generate("flights", tmp_path, events=-5, seed=1)


def test_without_the_package_the_machine_lacks_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MachineError, match=r"pip install 'tidelake\[local\]'"):
        generate("flights", tmp_path, events=10, seed=1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12.50", "12.50"),
        ('"12.5"', "12.50"),
        ("1.25e1", "12.50"),
        ("12.5000", "12.50"),
        ("-0.01", "-0.01"),
        ("-0", "0.00"),
        ("12e-1", "1.20"),
        ("9999999999999999.99", "9999999999999999.99"),
        ("null", None),
        *((broken, "broken") for broken in ("12.999", '"12,50"', '""', "true", "1e16", '" 1"')),
        *((bad, "malformed") for bad in ("NaN", "01", "1.", '"\\ud800"', "1} {")),
    ],
)
def test_the_oracle_takes_money_only_where_it_survives(text: str, value: str | None) -> None:
    line = f'{{"event_id":"e","event_time":"2026-01-05","action":"View","value":{text}}}\r'
    (fate,) = clickstream_oracle.fates([line.encode()])
    if value in ("broken", "malformed"):
        assert fate.verdict == ("contract" if value == "broken" else value)
    else:
        assert fate.event is not None
        assert fate.event["action"] == "view"
        assert fate.event["value"] == (None if value is None else Decimal(value))


def test_the_oracle_counts_copies_against_the_first_line_of_an_id() -> None:
    first = b'{"event_id":"e","event_time":"2026-01-05T10:15:00+01:00","action":"view"}'
    other = first.replace(b"view", b"click")
    fates = clickstream_oracle.fates([first, first, other, other, first], too_late=[0, 1])
    verdicts = [fate.verdict for fate in fates]
    assert verdicts == ["late", "duplicate", "conflicting", "conflicting", "duplicate"]
    assert fates[0].event is not None
    assert fates[0].event["event_time"] == datetime(2026, 1, 5, 9, 15, tzinfo=UTC)


def test_an_oracle_session_takes_in_an_event_exactly_one_gap_later() -> None:
    start = datetime(2026, 1, 5, tzinfo=UTC)
    minutes = {"a": 0, "b": 30, "c": 61}
    events = [
        {"event_id": name, "user_id": "u", "product_id": "p", "value": Decimal("1.00")}
        | {"action": name, "event_time": start + timedelta(minutes=after)}
        for name, after in minutes.items()
    ]
    sessions = clickstream_oracle.gold(reversed(events))["user_sessions"]
    assert [(key[1:], row["events"], row["last_action"]) for key, row in sessions.items()] == [
        ((start, start + timedelta(minutes=30)), 2, "b"),
        ((start + timedelta(minutes=61), start + timedelta(minutes=61)), 1, "c"),
    ]


def test_payments_are_the_same_for_a_seed_and_tell_which_are_frauds(tmp_path: Path) -> None:
    first = generate("payments", tmp_path / "a", events=2_000, seed=4)
    generate("payments", tmp_path / "b", events=2_000, seed=4)
    generate("payments", tmp_path / "c", events=2_000, seed=5)
    a, b, c = (
        b"".join(file.read_bytes() for file in sorted((tmp_path / one).iterdir())) for one in "abc"
    )
    assert a == b != c
    lines = a.decode(errors="replace").splitlines()
    assert len(lines) == first.records == sum(first.kinds.values()) == 2_000
    labelled = [line for line in lines if '"fraud_case":"' in line]
    assert len(labelled) == sum(
        first.kinds[rule] for rule in ("unusual_amount", "burst", "impossible_travel")
    )
