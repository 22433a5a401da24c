"""The fate of every row of the clickstream, batch by batch, decided one row at a time.

What a line is worth by itself is judged by the clickstream's oracle; here is what depends on the
others: copies, conflicts, the watermark, and who comes too late for it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from tests.oracles import clickstream

Event = clickstream.Event

SILVER, LATE, DUPLICATE, FILTERED = "silver", "late", "duplicate", "filtered"
_STAGES = {"malformed": "parse", "contract": "contract", "expectation": "expectation"}
_FUTURE, _CONFLICT = "future_event_time", "conflicting_duplicate"
_BY_ITSELF = frozenset({"future", "accepted"})
_POSITION = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class Rules:
    """What the definition says of time and copies."""

    delay: timedelta = timedelta(minutes=10)
    allowed: timedelta = timedelta(days=1)
    skew: timedelta = timedelta(minutes=5)
    ttl: timedelta = timedelta(hours=1)
    merges: bool = True
    idle: timedelta = timedelta(minutes=5)


@dataclass(frozen=True)
class Row:
    """One row as it arrived.

    Attributes:
        key: Tells it from every other row.
        line: Its bytes.
        ingested_at: When it came (UTC).
        source: Its file.
        position: Its line in the file.
        sent_again: It comes through the requeue after it was ``late`` or in ``quarantine``.
        partition: Of the source, where that has several.
    """

    key: str
    line: bytes
    ingested_at: datetime
    source: str = ""
    position: int = 0
    sent_again: str | None = None
    partition: str = ""

    @property
    def arrival(self) -> tuple[datetime, str, str, int]:
        """What comes first, wins."""
        return self.ingested_at, self.source, self.partition, self.position


@dataclass(frozen=True)
class Fate:
    """What becomes of a row.

    Attributes:
        verdict: ``silver``, ``late``, ``duplicate``, ``filtered``, or the stage of quarantine.
        event: Its values, where it has a sound event.
        is_late: It came after the watermark.
        watermark: Before its batch.
    """

    verdict: str
    event: Event | None = None
    is_late: bool = False
    watermark: datetime | None = None

    @property
    def quarantined(self) -> bool:
        """Tell whether it lies in quarantine."""
        return self.verdict in {*_STAGES.values(), _FUTURE, _CONFLICT}


@dataclass(frozen=True)
class _Accepted:
    key: str
    line: bytes
    arrival: tuple[datetime, str, str, int]
    day: date
    in_late: bool


@dataclass
class Silver:
    """Takes batches in their order and remembers what it accepted.

    Attributes:
        rules: Of the definition.
        watermark: After the batches so far (UTC).
        fates: Of each row by its key; of its last time where it was sent again.
        batches: Of each batch, rows by verdict.
    """

    rules: Rules = field(default_factory=Rules)
    watermark: datetime | None = None
    fates: dict[str, Fate] = field(default_factory=dict)
    batches: list[Counter[str]] = field(default_factory=list)
    _known: dict[str, list[_Accepted]] = field(default_factory=lambda: defaultdict(list))
    _reached: dict[str, datetime] = field(default_factory=dict)
    _arrived: dict[str, datetime] = field(default_factory=dict)

    def take(self, rows: Sequence[Row]) -> dict[str, Fate]:
        """Decide a batch."""
        found: dict[str, Fate] = {}
        new: dict[str, list[_Accepted]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: row.arrival):
            fate = self._decide(row, new)
            found[row.key] = fate
            if fate.verdict in (SILVER, LATE) and fate.event is not None:
                entry = _Accepted(
                    row.key,
                    row.line,
                    row.arrival,
                    fate.event["event_time"].date(),
                    fate.verdict == LATE,
                )
                new[fate.event["event_id"]].append(entry)
        for event_id, entries in new.items():
            self._known[event_id] += entries
        self._advance(rows, found)
        self.fates |= found
        self.batches.append(Counter(fate.verdict for fate in found.values()))
        return found

    def accepted(self) -> list[Event]:
        """Give the events of silver and late together."""
        return [
            fate.event
            for fate in self.fates.values()
            if fate.verdict in (SILVER, LATE) and fate.event is not None
        ]

    def _decide(self, row: Row, new: dict[str, list[_Accepted]]) -> Fate:
        judged = clickstream.fates([row.line])[0]
        mark = self.watermark
        if judged.verdict not in _BY_ITSELF or judged.event is None:
            return Fate(_STAGES.get(judged.verdict, judged.verdict), judged.event, False, mark)
        event = judged.event
        when = event["event_time"]
        if when > row.ingested_at + self.rules.skew:
            return Fate(_FUTURE, event, False, mark)
        earlier = self._earlier(row, event, new)
        if earlier is not None:
            same = earlier.line == row.line
            return Fate(DUPLICATE if same else _CONFLICT, event, False, mark)
        late = mark is not None and when < mark
        too_late = mark is not None and when < mark - self.rules.allowed
        if too_late and row.sent_again != LATE:
            return Fate(LATE, event, late, mark)
        return Fate(SILVER, event, late, mark)

    def _earlier(self, row: Row, event: Event, new: dict[str, list[_Accepted]]) -> _Accepted | None:
        """Find the earliest accepted row in reach: of earlier batches, else of this one."""
        for entries in (self._known, new):
            met = [
                entry
                for entry in entries.get(event["event_id"], ())
                if self._in_reach(entry, row, event)
                and not (row.sent_again and entry.in_late and entry.key == row.key)
            ]
            if met:
                return min(met, key=lambda entry: entry.arrival)
        return None

    def _in_reach(self, entry: _Accepted, row: Row, event: Event) -> bool:
        # A row that was sent again comes out of its turn: what arrived after it may be there.
        if abs(row.ingested_at - entry.arrival[0]) <= self.rules.ttl:
            return True
        return self.rules.merges and entry.day == event["event_time"].date()

    def _advance(self, rows: Sequence[Row], found: dict[str, Fate]) -> None:
        """Move to where the slowest partition has come in silver; idle ones are not waited for.

        What came again does not count.
        """
        for row in rows:
            if row.sent_again is not None:
                continue
            self._arrived[row.partition] = max(
                row.ingested_at, self._arrived.get(row.partition, row.ingested_at)
            )
            fate = found[row.key]
            if fate.verdict == SILVER and fate.event is not None:
                when = fate.event["event_time"]
                self._reached[row.partition] = max(when, self._reached.get(row.partition, when))
        newest = max(self._arrived.values(), default=None)
        active = [
            name
            for name, arrived in self._arrived.items()
            if newest is not None and newest - arrived <= self.rules.idle
        ]
        if active and all(name in self._reached for name in active):
            reached = min(self._reached[name] for name in active) - self.rules.delay
            self.watermark = reached if self.watermark is None else max(self.watermark, reached)


def decide(batches: Sequence[Sequence[Row]], rules: Rules | None = None) -> Silver:
    """Decide batches in their order, from nothing."""
    silver = Silver(rules or Rules())
    for rows in batches:
        silver.take(rows)
    return silver


def place(record_id: str) -> int:
    """Read a record's position in its file; 0 where it has none."""
    tail = record_id.rpartition(":")[2]
    return int(tail) if _POSITION.fullmatch(tail) else 0
