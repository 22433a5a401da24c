"""How a field tells time: the SQL that makes an instant of it, and the instant itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from tidelake.cli.init.guesses import lateness_of, step_above
from tidelake.cli.init.payload import clock_of, payload_of
from tidelake.config.model import written

TEN = datetime(2026, 1, 5, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "sql"),
    [
        (["2026-01-05T10:00:00Z", "2026-01-05T11:00:00+01:00"], "{0}"),
        (["2026-01-05 10:00"], "{0}"),
        ([1_767_607_200], "timestamp_seconds({0})"),
        ([1_767_607_200_000], "timestamp_millis({0})"),
        ([1_767_607_200_000_000], "timestamp_micros({0})"),
        ([1_767_607_200_000_000_000], "timestamp_micros({0} div 1000)"),
        ([Decimal("1767607200.000"), 1_767_607_200], "timestamp_seconds({0})"),
        (["1767607200000"], "timestamp_millis(try_cast({0} AS BIGINT))"),
        (["05/Jan/2026:10:00:00 +0000"], "try_to_timestamp({0}, 'dd/MMM/yyyy:HH:mm:ss Z')"),
        (["2026/01/05 10:00:00"], "try_to_timestamp({0}, 'yyyy/MM/dd HH:mm:ss')"),
        (["05.01.2026 10:00:00"], "try_to_timestamp({0}, 'dd.MM.yyyy HH:mm:ss')"),
        (["05/01/2026 10:00:00"], "try_to_timestamp({0}, 'dd/MM/yyyy HH:mm:ss')"),
        (["2026-01-05 10:00:00 UTC"], "try_to_timestamp({0}, 'yyyy-MM-dd HH:mm:ss ''UTC''')"),
        (
            ["2026-01-05T10:00:00.000000001Z", "2026-01-05T11:00:00+01:00"],
            "try_to_timestamp({0}, 'yyyy-MM-dd''T''HH:mm:ss[.SSSSSSSSS]XXX')",
        ),
        (
            ["2026-01-05T10:00:00.000000001"],
            "try_to_timestamp({0}, 'yyyy-MM-dd''T''HH:mm:ss[.SSSSSSSSS]')",
        ),
        (["20260105T100000Z"], "try_to_timestamp({0}, 'yyyyMMdd''T''HHmmss''Z''')"),
        (["2026-01-05 10:00:00,000"], "try_to_timestamp({0}, 'yyyy-MM-dd HH:mm:ss,SSS')"),
    ],
)
def test_a_clock_gives_the_sql_and_reads_the_same_instant(values: list[object], sql: str) -> None:
    clock = clock_of([None, *values])
    assert clock is not None
    assert clock.sql == sql
    assert {clock.read(value) for value in values} == {TEN}


@pytest.mark.parametrize(
    "values",
    [
        [],
        [None],
        [True],
        ["x"],
        [5],
        ["10:15"],
        ["2026-13-01T00:00:00Z"],
        ["5/1/2026 1:00:00"],
        ["05/01/2026 10:0"],
        ["2026-01-05 10:00:00,123456"],
        [1_767_607_200, "2026-01-05T10:00:00Z"],
        [1_767_607_200, 1_767_607_200_000],
        [{"a": 1}],
    ],
)
def test_what_tells_no_time_in_one_way_has_no_clock(values: list[object]) -> None:
    assert clock_of(values) is None


@pytest.mark.parametrize(
    ("name", "number", "is_time"),
    [
        *((name, 1_767_607_200_000, True) for name in ("sentMs", "received", "expiry_millis")),
        *((name, 1_767_607_200, True) for name in ("epoch", "start_epoch", "updated")),
        # Counts, of which some are as large as epoch seconds.
        *((name, 1_767_607_200, False) for name in ("bytes_sent", "uptime_ms", "received_items")),
    ],
)
def test_a_number_is_a_time_only_if_its_name_says_so(name: str, number: int, is_time: bool) -> None:
    (column,) = payload_of([{name: number}]).columns
    assert (column.clock is not None) is is_time


def test_month_first_is_told_by_a_day_past_the_twelfth() -> None:
    clock = clock_of(["01/05/2026 10:00:00", "01/13/2026 10:00:00"])
    assert clock is not None
    assert "MM/dd/yyyy" in clock.sql
    assert "ambiguous order of day and month" not in clock.note


def test_day_or_month_first_is_noted_where_the_sample_leaves_it_open() -> None:
    clock = clock_of(["01/05/2026 10:00:00"])
    assert clock is not None
    assert clock.note.endswith("ambiguous order of day and month, read as day first")


def minutes(*numbers: int) -> list[datetime | None]:
    return [TEN + timedelta(minutes=number) for number in numbers]


def test_the_delay_covers_what_usually_comes_late_and_the_rest_is_allowed() -> None:
    times = [*minutes(*range(300)), *minutes(297, 300, 301), TEN - timedelta(days=3)]
    lateness = lateness_of(times, ["files"] * len(times))
    assert (lateness.delay, lateness.allowed) == (timedelta(minutes=1), timedelta(days=7))


def test_order_means_something_within_a_partition_only() -> None:
    times = [*minutes(*range(500, 530)), *minutes(*range(30))]
    apart = lateness_of(times, ["0"] * 30 + ["1"] * 30)
    assert (apart.delay, apart.why) == (timedelta(minutes=1), "the sample is in order")
    assert lateness_of(times, ["0"] * 60).delay == timedelta(hours=12)


@pytest.mark.parametrize("unset", [datetime(1, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)])
def test_records_of_a_clock_that_is_not_set_do_not_count_as_late(unset: datetime) -> None:
    times = [*minutes(*range(300), 297), unset, *minutes(300), unset]
    lateness = lateness_of(times, ["files"] * len(times))
    assert (lateness.delay, lateness.allowed) == (timedelta(minutes=1), timedelta(days=1))
    left_out = "records are more than 10 years behind and left out"
    assert lateness.why.endswith(f"all at most 2 minutes; 2 of 304 {left_out}")

    ordered = lateness_of([*minutes(*range(30)), unset], ["0"] * 31)
    assert ordered.why == f"the sample is in order; 1 of 31 {left_out}"
    few = lateness_of([*minutes(*range(10)), *[unset] * 20], ["0"] * 30)
    assert few.delay == timedelta(minutes=10)
    assert few.why == f"too few event times in the sample; 20 of 30 {left_out}; the default"


def test_too_few_times_leave_the_default() -> None:
    assert lateness_of([*minutes(5, 1), None], ["0"] * 3).delay == timedelta(minutes=10)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "1 minute"), (61, "2 minutes"), (3600, "1 hour"), (90_000, "2 days")],
)
def test_lengths_are_rounded_up_to_what_people_write(seconds: int, text: str) -> None:
    assert written(step_above(timedelta(seconds=seconds))) == text
