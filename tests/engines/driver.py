"""Run pipelines in a process of its own, once or several times: on a master, or by Spark Connect.

The words of each run come as JSON, and so goes what came of it.

What a worker of Spark Connect gets is pickled by value for classes of a main module, so that those
that fail below need not be on the server.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from tidelake.config import Limits, load_environment, load_pipeline
from tidelake.delta.log import last_commit
from tidelake.delta.tables import HOPS, Hop, Lake
from tidelake.errors import TidelakeError
from tidelake.ledger.terms import read_ledger
from tidelake.replay.verify import verify
from tidelake.runtime import runner
from tidelake.runtime.bronze_hop import BronzeHop
from tidelake.runtime.gold import GoldHop
from tidelake.runtime.hop import Heads, HopQuery, Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.triggers import parse_trigger
from tidelake.spark.session import build_session


class Overtaken(BronzeHop):
    """Somebody writes on in a file while it is read."""

    def write(self, rows: DataFrame, batch: int, heads: Heads) -> None:
        source: Any = self.run.pipeline.source
        with max(Path(source.path).glob("*.jsonl")).open("ab") as file:
            file.write(b"{}\n" * 100)
        super().write(rows, batch, heads)


class Dying(GoldHop):
    """Dies when one of the events' tables has the batch and the others have not."""

    def _merge(self, target: Any, *rest: Any) -> None:
        if self.run.pipeline.gold and target is not self._targets[0]:
            raise RuntimeError("the lights went out")
        super()._merge(target, *rest)


_FAILING: dict[str, dict[Hop, type[HopQuery]]] = {
    "overtaken": {"bronze": Overtaken},
    "dying": {"gold": Dying},
}


def _run(words: Sequence[str], say: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    parser.add_argument("lake", type=Path)
    parser.add_argument("pipelines", nargs="+", help="FILE=LANDING")
    parser.add_argument("--master")
    parser.add_argument("--fails", choices=_FAILING)
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--catalog", help="of which the environment has a name, but no tables")
    parser.add_argument("--trigger", default="available-now")
    told = parser.parse_args(words)
    changes: dict[str, Any] = {"limits": Limits(silver_bytes="1k", gold_bytes="1k")}
    if told.master:
        changes["master"] = told.master
    if told.catalog:
        changes["catalog"] = told.catalog
    environment = load_environment("local", root=str(told.lake)).model_copy(update=changes)
    usual, failing = dict(runner._HOPS), _FAILING.get(told.fails, {})
    runner._HOPS.update(failing)
    # None after the one that fails, which would only create its tables.
    hops = HOPS[: HOPS.index(next(iter(failing), HOPS[-1])) + 1]
    spark = build_session(environment)
    answer: dict[str, Any] = {}
    try:
        for pair in told.pipelines:
            file, _, landing = pair.partition("=")
            pipeline = load_pipeline(file, environment, source=landing)
            run = Run(spark, pipeline, Lake(told.lake), environment, Progress(say.append))
            runner.run_hops(run, hops, parse_trigger(told.trigger), publishes=True)
            found = last_commit(run.lake.bronze(pipeline.name))
            answer[pipeline.name] = {
                "balanced": read_ledger(run.lake, pipeline).balanced,
                "slots": found.note["slots"] if found else None,
                "verified": verify(run).to_json() if told.verify else None,
            }
    finally:
        spark.stop()
        runner._HOPS.update(usual)
    return answer


def _play(words: Sequence[str]) -> dict[str, Any]:
    """Run; once more where Spark's ten seconds for the start of a worker were too few."""
    played = _play_once(words)
    if "caused by SocketTimeoutException" in played["words"]:
        return _play_once(words)
    return played


def _play_once(words: Sequence[str]) -> dict[str, Any]:
    """Run once; give the exit code, what came of it, and what was said."""
    said: list[str] = []
    code, answer = 0, None
    try:
        answer = _run(words, said)
    except TidelakeError as error:
        code = error.exit_code
        said.append(f"{type(error).__name__}: {error}")
    except Exception:
        code = 1
        said.append(traceback.format_exc())
    return {"code": code, "answer": answer, "words": "\n".join(said)}


if __name__ == "__main__":
    print(json.dumps([_play(words) for words in json.load(sys.stdin)]))
