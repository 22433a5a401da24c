"""Records of a topic, and what every table must hold once they were taken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.comparing import assert_gold_equals_oracle
from tests.fates import assert_books, assert_fates
from tests.oracles.silver import SILVER
from tests.recovery.chains import closed_twice, losses
from tests.recovery.reporting import Report
from tidelake.config import Pipeline
from tidelake.delta.tables import Lake
from tidelake.examples import generate


def lines_of(folder: Path, events: int, seed: int) -> list[bytes]:
    """Draw a clickstream with every kind of trouble: its lines in the order of arrival."""
    generate("clickstream", folder, events=events, seed=seed)
    return [
        line for file in sorted(folder.iterdir()) for line in file.read_bytes().split(b"\n")[:-1]
    ]


def assert_follows(lake: Lake, pipeline: Pipeline, produced: Sequence[bytes], told: Report) -> None:
    """Hold every table against the oracles, and the ledger; report what is lost or doubled."""
    told.lost, told.doubled = losses(lake, produced, pipeline.name)
    assert (told.lost, told.doubled) == (0, 0)
    assert closed_twice(lake) == []
    judge = assert_fates(lake, name=pipeline.name)
    assert_books(lake, pipeline, judge)
    accepted = [fate.event for fate in judge.fates.values() if fate.verdict == SILVER]
    assert_gold_equals_oracle(lake, [event for event in accepted if event is not None])
