"""Silver with ``dedup.prefilter: operator`` against none, on streams with more and more duplicates.

Both sides run in one warm session, in alternating rounds, on the same bronze rows; their silver
tables are asserted to hold the same events. Prints a table, or JSON with ``--json``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import yaml
from pyspark.sql import SparkSession

from tidelake.config import Limits, Pipeline, load_environment, load_pipeline
from tidelake.config.locations import find_file
from tidelake.delta.tables import Hop, Lake
from tidelake.examples import generate
from tidelake.ledger.query import ask
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.runner import run_hops
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.spark.session import build_session

_HELD = "SELECT count(*), bit_xor(hash(event_id)) FROM silver.clickstream"


def defined(folder: Path, landing: Path, prefilter: str) -> Pipeline:
    """Load the clickstream pipeline with a prefilter setting."""
    content = yaml.safe_load(find_file("clickstream", "pipeline").read_text(encoding="utf-8"))
    content["dedup"]["prefilter"] = prefilter
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "clickstream.yml"
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return load_pipeline(
        str(file), load_environment("local", root=str(folder)), source=str(landing)
    )


def run(spark: SparkSession, folder: Path, pipeline: Pipeline, hop: Hop) -> float:
    """Time one hop."""
    environment = load_environment("local", root=str(folder)).model_copy(
        update={"limits": Limits(silver_bytes="1m", gold_bytes="1g")}
    )
    quiet = Progress(lambda line: None)
    began = time.monotonic()
    run_hops(
        Run(spark, pipeline, Lake(folder), environment, quiet), [hop], parse_trigger(AVAILABLE_NOW)
    )
    return time.monotonic() - began


def land(base: Path, landing: Path, times: int) -> None:
    """Copy each file ``times`` times into the landing folder."""
    landing.mkdir()
    for file in sorted(base.glob("*.jsonl")):
        for copy in range(times):
            shutil.copy2(file, landing / f"{file.stem}-{copy}.jsonl")


def main() -> None:
    """Measure both sides at each share of duplicates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        generate("clickstream", base / "events", events=options.events, seed=1)
        spark = build_session(load_environment("local", root=str(base / "spark")))
        try:
            for times in (1, 2, 5):
                landing = base / f"landing{times}"
                land(base / "events", landing, times)
                results.append(measured(spark, base / str(times), landing, options.repeats))
                print(results[-1], file=sys.stderr)
        finally:
            spark.stop()
    if options.json:
        print(json.dumps(results))
        return
    for result in results:
        print(
            f"copies {result['copies']:.0%}  none {result['none']:.1f} s  "
            f"operator {result['operator']:.1f} s  ratio {result['operator'] / result['none']:.2f}"
        )


def measured(spark: SparkSession, folder: Path, landing: Path, repeats: int) -> dict[str, float]:
    """Time both sides on the same bronze; the first round warms the JVM and does not count."""
    bronze = folder / "bronze"
    run(spark, bronze, defined(bronze, landing, "none"), "bronze")
    times: dict[str, list[float]] = {"none": [], "operator": []}
    for repeat in range(repeats + 1):
        held = {}
        for side, found in times.items():
            root = folder / f"{side}{repeat}"
            shutil.copytree(bronze, root)
            found.append(run(spark, root, defined(root, landing, side), "silver"))
            held[side] = ask(Lake(root), _HELD).rows[0]
            rows = ask(Lake(root), "SELECT count(*) FROM bronze.clickstream").rows[0][0]
        assert held["none"] == held["operator"], held
    medians = {side: statistics.median(found[1:]) for side, found in times.items()}
    return {"rows": rows, "copies": 1 - held["none"][0] / rows, **medians}


if __name__ == "__main__":
    main()
