"""The clickstream as rows use it: the reference pipeline with some of its gold tables."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tidelake.config.places import find_file

# One by minute and visitor, one over all time: what dashboards ask for most.
TWO = ("user_activity_1m", "product_totals")


def definition(
    folder: Path, golds: Sequence[str] = TWO, source: Mapping[str, Any] | None = None
) -> Path:
    """Write the pipeline with some gold tables, without dimensions and joins; give its file.

    Args:
        folder: Takes a ``conf`` folder.
        golds: Which gold tables stay.
        source: Instead of the file's; None where the command names one.
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
