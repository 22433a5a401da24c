"""What the plots of gold show, read from tables that were written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.shops import ACCEPTED, DEFINITION, Shop
from tests.unit.handmade import write_rows
from tidelake.ops.page.facts import POINTS, Plot, read_plots

BATCHES = 30


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Give a lake of five minutes."""
    yield Shop(tmp_path_factory.mktemp("lake")).run(BATCHES)


def plots(shop: Shop) -> dict[str, Plot]:
    return {plot.table: plot for plot in read_plots(shop.lake, shop.pipeline)}


def test_windows_are_a_line_over_time_of_a_count(shop: Shop) -> None:
    plot = plots(shop)["gold.takings_1m"]

    assert (plot.title, plot.step) == ("events", timedelta(minutes=1))
    assert [bar.at for bar in plot.bars] == [
        shop.began + timedelta(minutes=minute) for minute in range(5)
    ]
    assert [bar.value for bar in plot.bars] == [6 * ACCEPTED] * 5
    assert plot.rows == BATCHES * 5


def test_sessions_are_a_line_of_those_that_began(shop: Shop) -> None:
    plot = plots(shop)["gold.visits"]

    assert plot.title == "sessions started"
    assert sum(bar.value or 0 for bar in plot.bars) == BATCHES * 5
    assert len(plot.bars) <= POINTS


def test_totals_are_bars_the_largest_first(shop: Shop) -> None:
    plot = plots(shop)["gold.totals"]

    assert plot.step is None
    assert [bar.label for bar in plot.bars] == ["u0", "u1", "u2", "u3", "u4"]
    assert [bar.value for bar in plot.bars] == [2, 2, 2, 1, 1]


def test_a_step_without_a_window_counts_as_none(tmp_path: Path) -> None:
    shop = Shop(tmp_path).run(2)
    shop.began += timedelta(minutes=3)
    shop.run(1)

    values = [bar.value for bar in plots(shop)["gold.takings_1m"].bars]

    assert values == [2 * ACCEPTED, 0, 0, ACCEPTED]


def test_windows_before_1970_keep_their_places_and_values(tmp_path: Path) -> None:
    shop = Shop(tmp_path, began=datetime(1969, 12, 31, 23, 50, tzinfo=UTC)).run(2)
    shop.began += timedelta(minutes=3)
    shop.run(1)

    plot = plots(shop)["gold.takings_1m"]
    assert [bar.value for bar in plot.bars] == [2 * ACCEPTED, 0, 0, ACCEPTED]

    # The steps of sessions are shorter than the time since the epoch, and do not begin with one.
    visits = plots(shop)["gold.visits"]
    assert sum(bar.value or 0 for bar in visits.bars) == 3 * 5
    assert visits.bars[0].value and visits.bars[-1].value


def test_a_far_past_does_not_press_the_rest_into_one_point(tmp_path: Path) -> None:
    shop = Shop(tmp_path).run(1)
    shop.began += timedelta(days=4000)
    shop.run(2)

    plot = plots(shop)["gold.takings_1m"]

    assert len(plot.bars) <= POINTS
    assert plot.bars[0].at is not None
    assert shop.began - plot.bars[0].at <= timedelta(days=15)


def test_windows_that_overlap_count_each_event_once(tmp_path: Path) -> None:
    window = {"kind": "hopping", "size": "20 seconds", "slide": "10 seconds"}
    hopping = {**DEFINITION["gold"][0], "window": window}
    shop = Shop(tmp_path, definition={**DEFINITION, "gold": [hopping, *DEFINITION["gold"][1:]]})
    shop.run(6)

    plot = plots(shop)["gold.takings_1m"]

    # Windows that begin at 10, 30 and 50 seconds lie over those at 0, 20 and 40.
    assert [bar.value for bar in plot.bars] == [3 * ACCEPTED]


def made(tmp_path: Path, window: dict[str, Any], measures: dict[str, Any], rows: str) -> Plot:
    """Give the plot of one gold table that holds what a query gives."""
    gold = {"name": "made", "window": window, "keys": ["user_id", "event_id"], "measures": measures}
    shop = Shop(tmp_path, definition={**DEFINITION, "gold": [gold]})
    write_rows(shop.lake.gold("made"), rows, note={"generation": "g1", "batch": 0})
    return plots(shop)["gold.made"]


_EVERY_4_MINUTES = (
    "SELECT began AS window_start, 'u' || n AS user_id, 'e' AS event_id, 5::BIGINT AS events, "
    "n::DOUBLE AS most FROM range(TIMESTAMPTZ '2026-03-01 00:02:00Z', "
    "TIMESTAMPTZ '2026-03-01 00:02:00Z' + INTERVAL {span}, INTERVAL 4 MINUTE) AS t(began), "
    "range(2) AS u(n)"
)
_10_OF_4 = {"kind": "hopping", "size": "10 minutes", "slide": "4 minutes", "offset": "2 minutes"}


@pytest.mark.parametrize(
    ("span", "step", "points"), [("1 HOUR", 4, 15), ("10 HOUR", 60, 10), ("65 HOUR", 120, 33)]
)
def test_windows_of_which_none_are_adjacent_are_all_drawn(
    tmp_path: Path, span: str, step: int, points: int
) -> None:
    plot = made(tmp_path, _10_OF_4, {"events": {"count": "*"}}, _EVERY_4_MINUTES.format(span=span))

    # A step of several windows, be it full or not, shows what one of them counts.
    assert (plot.title, plot.step) == ("events per window", timedelta(minutes=step))
    assert [bar.value for bar in plot.bars] == [10] * points


def test_of_windows_of_which_none_are_adjacent_a_missing_one_counts_as_none(
    tmp_path: Path,
) -> None:
    rows = f"{_EVERY_4_MINUTES.format(span='24 MINUTE')} WHERE minute(began) NOT IN (6, 10)"
    plot = made(tmp_path, _10_OF_4, {"events": {"count": "*"}}, rows)
    assert [bar.value for bar in plot.bars] == [10, 0, 0, 10, 10, 10]

    plot = made(tmp_path / "most", _10_OF_4, {"most": {"max": "value"}}, rows)
    assert plot.title == "most"
    assert [bar.value for bar in plot.bars] == [1, None, None, 1, 1, 1]


def test_totals_of_keys_with_nulls_are_bars_of_their_own(tmp_path: Path) -> None:
    rows = (
        "SELECT * FROM (VALUES ('a', NULL, 5), (NULL, 'a', 7), (NULL, NULL, 2), ('a', 'null', 1)) "
        "AS t(user_id, event_id, events)"
    )
    plot = made(tmp_path, {"kind": "global"}, {"events": {"count": "*"}}, rows)

    assert [(bar.label, bar.value) for bar in plot.bars] == [
        ("null · a", 7),
        ("a · null", 5),
        ("null · null", 2),
        ("a · null", 1),
    ]


@pytest.mark.parametrize(
    ("measures", "title", "values"),
    [
        ({"action": {"last": "user_id"}, "first_at": {"min": "event_time"}}, "rows", (3, 1)),
        ({"first_at": {"min": "event_time"}}, "rows", (3, 1)),
        ({"action": {"last": "user_id"}, "most": {"max": "value"}}, "most", (7.5, 2.5)),
    ],
)
def test_of_measures_that_are_no_numbers_the_rows_are_counted(
    tmp_path: Path, measures: dict[str, Any], title: str, values: tuple[float, float]
) -> None:
    windows: dict[str, Any] = {
        "by_minute": {"kind": "tumbling", "size": "1 minute"},
        "by_step": {"kind": "hopping", "size": "1 minute", "slide": "30 seconds"},
        "in_all": {"kind": "global"},
    }
    golds = [
        {"name": name, "window": window, "keys": ["user_id"], "measures": measures}
        for name, window in windows.items()
    ]
    shop = Shop(tmp_path, definition={**DEFINITION, "gold": golds})
    rows = (
        "SELECT 'u' || n AS user_id, TIMESTAMPTZ '2026-03-01 00:00:00+00' + "
        "to_minutes(CASE WHEN n < 3 THEN 0 ELSE 1 END) AS window_start, 'buy' AS action, "
        "now() AS first_at, (7.5 - 5 * (n // 3))::DECIMAL(18,2) AS most FROM range(4) AS t(n)"
    )
    for name in windows:
        write_rows(shop.lake.gold(name), rows, note={"generation": "g1", "batch": 0})

    found = plots(shop)

    assert {plot.missing for plot in found.values()} == {""}
    assert {plot.title.partition(",")[0] for plot in found.values()} == {title}
    for name in ("by_minute", "by_step"):
        assert [bar.value for bar in found[f"gold.{name}"].bars] == list(values)
    of_keys = [bar.value for bar in found["gold.in_all"].bars]
    assert of_keys == ([1, 1, 1, 1] if title == "rows" else [7.5, 7.5, 7.5, 2.5])


def test_a_table_that_is_not_there_or_cannot_be_read_says_so_alone(tmp_path: Path) -> None:
    shop = Shop(tmp_path).run(2)
    (shop.lake.gold("visits").path / "part-1.parquet").unlink()
    log = shop.lake.gold("totals").path / "_delta_log"
    for file in log.iterdir():
        file.unlink()

    found = plots(shop)

    assert found["gold.takings_1m"].missing == ""
    assert found["gold.totals"].missing == "does not exist yet"
    assert "part-1.parquet" in found["gold.visits"].missing
    assert [name for name, plot in found.items() if plot.is_damaged] == ["gold.visits"]
