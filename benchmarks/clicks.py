"""Clickstream input for the benchmarks: the reference pipeline with some of its gold tables."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from tidelake.config.locations import find_file

_BEGINS = datetime(2026, 1, 5, tzinfo=UTC)
_ACTIONS = ("view", "view", "click", "add_to_cart", "purchase", "bot")
# One table by minute and visitor, one over all time: the usual inputs of dashboards.
TWO = ("user_activity_1m", "product_totals")


def definition(
    folder: Path, golds: Sequence[str] = TWO, source: Mapping[str, Any] | None = None
) -> Path:
    """Write the pipeline with some gold tables, without dimensions and joins; return its file.

    Args:
        folder: Gets a ``conf`` folder.
        golds: The gold tables to keep.
        source: Replaces the source of the pipeline file; None if the command line names one.
    """
    conf = folder / "conf"
    shutil.copytree(find_file("clickstream", "pipeline").parents[1], conf)
    file = conf / "pipelines" / "clickstream.yml"
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    kept = {key: value for key, value in content.items() if key not in ("enrich", "joins")}
    kept["gold"] = [table for table in content["gold"] if table["name"] in golds]
    if source is not None:
        kept["source"] = dict(source)
    suite = conf / "expectations" / "clickstream.yml"
    expected = yaml.safe_load(suite.read_text(encoding="utf-8"))
    expected["gold"] = {name: rules for name, rules in expected["gold"].items() if name in golds}
    suite.write_text(yaml.safe_dump(expected, sort_keys=False), encoding="utf-8")
    file.write_text(yaml.safe_dump(kept, sort_keys=False), encoding="utf-8")
    return file


def land(folder: Path, sizes: Sequence[int], *, users: int = 200, rate: float = 1.0) -> None:
    """Write files of clicks in order of event time, a fifth of them duplicates.

    Args:
        folder: Gets the files, one for each batch.
        sizes: Events in each file.
        users: Number of visitors.
        rate: Events a second of event time.
    """
    chance, number = random.Random(12), 0
    recent: list[str] = []
    folder.mkdir(parents=True)
    for file, size in enumerate(sizes):
        lines: list[str] = []
        for _ in range(size):
            if recent and number % 5 == 4:
                lines.append(chance.choice(recent))
            else:
                lines.append(_event(chance, number, users, rate))
                recent = [*recent[-49:], lines[-1]]
            number += 1
        text = "\n".join(lines) + "\n"
        (folder / f"clicks-{file:04d}.jsonl").write_text(text, encoding="utf-8")


def _event(chance: random.Random, number: int, users: int, rate: float) -> str:
    action = chance.choice(_ACTIONS)
    paid = action in ("add_to_cart", "purchase")
    at = _BEGINS + timedelta(seconds=number / rate)
    return json.dumps(
        {
            "event_id": f"e{number}",
            "user_id": f"u{chance.randrange(users)}",
            "event_time": f"{at:%Y-%m-%dT%H:%M:%S.%fZ}",
            "action": action,
            "product_id": f"p{chance.randrange(50)}",
            "value": round(chance.uniform(1, 200), 2) if paid else None,
        }
    )
