"""Follow records from the source to gold: where each one is, why, and in which rows it counts."""

from __future__ import annotations

from tidelake.replay.fate.counted import Counted
from tidelake.replay.fate.records import Fate, fates_of_event, fates_of_record

__all__ = ["Counted", "Fate", "fates_of_event", "fates_of_record"]
