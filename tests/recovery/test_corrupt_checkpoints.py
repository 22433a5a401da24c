"""Each file of a checkpoint cut, altered or deleted: refused by name, or the right tables."""

from __future__ import annotations

import os
import random
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.comparing import assert_gold_equals_oracle, distinct_events
from tests.recovery.reporting import Report
from tests.running import click, versions
from tests.worlds import World, reference_gold, world
from tidelake.delta.tables import HOPS, Hop
from tidelake.errors import TidelakeError
from tidelake.ledger.terms import read_ledger
from tidelake.replay.repairing import repair

pytestmark = pytest.mark.usefixtures("interpreted")

_COMMAND = re.compile(r"tidelake repair clickstream --hop (\w+)")
Damage = Callable[[Path], None]
# Which hop, which file, how it is damaged, and whether its checksum stays beside it.
Case = tuple[Hop, str, Damage, bool]
_SEED = int(os.environ.get("TIDELAKE_SEED", str(time.time_ns() % 1_000_000)))
_CASES = int(os.environ.get("TIDELAKE_CORRUPTIONS", "2"))


def _lines(part: int) -> list[bytes]:
    first = 12 * part
    return [*[click(n, minute=n) for n in range(first, first + 12)], b"{broken %d" % part]


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run two files; a third waits. A checkpoint is a hop's: one table of gold stands for all."""
    gold = reference_gold("product_totals")
    made = world(spark, tmp_path_factory.mktemp("corrupt"), gold=gold, quality=None)
    for part in range(2):
        made.land(f"{part}.jsonl", _lines(part))
        made.run()
    made.land("2.jsonl", _lines(2))
    return made


def cut(file: Path) -> None:
    """Lose the second half, as when the power went before the disk had it."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def emptied(file: Path) -> None:
    """Lose all of it."""
    file.write_bytes(b"")


def altered(file: Path) -> None:
    """Read another digit where the last one stood: still what Spark could have written."""
    content = file.read_bytes()
    at = max(i for i, byte in enumerate(content) if chr(byte).isdigit())
    digit = b"7" if content[at : at + 1] != b"7" else b"3"
    file.write_bytes(content[:at] + digit + content[at + 1 :])


def deleted(file: Path) -> None:
    """Lose the file."""
    file.unlink()


def files_of(filled: World, hop: Hop) -> list[str]:
    """List what Spark wrote, checksums aside."""
    folder = filled.lake.checkpoints("clickstream", hop) / "g1"
    return sorted(
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and not file.name.startswith(".")
    )


def survive(filled: World, folder: Path, case: Case) -> str:
    """Damage a file, run, mend where that is asked for, and want the right tables.

    Returns:
        ``refused`` or ``went on``.
    """
    hop, name, damage, has_checksum = case
    broken = filled.copied(folder)
    file = broken.lake.checkpoints("clickstream", hop) / "g1" / name
    if not has_checksum:
        # Other stores keep none beside a file.
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    damage(file)
    outcome = "went on"
    # A hop that has all its rows does not open its checkpoint; the next rows find the damage.
    for hops in ([hop], HOPS, HOPS):
        before = _versions_of(broken, hop)
        try:
            broken.run(hops=hops)
        except TidelakeError as error:
            assert outcome == "went on", (case, str(error))
            outcome = "refused"
            assert _COMMAND.search(str(error)), (case, str(error))
            assert _versions_of(broken, hop) == before
            repair(broken.context, hop)
    delivered = [line for part in range(3) for line in _lines(part)]
    assert read_ledger(broken.lake, broken.pipeline).problems == (), case
    assert_gold_equals_oracle(broken.lake, distinct_events(delivered))
    return outcome


def _versions_of(broken: World, hop: Hop) -> dict[str, int]:
    return {
        name: version
        for name, version in versions(broken.lake).items()
        if name.startswith(f"{hop}.")
    }


def cases_of(filled: World) -> list[Case]:
    """List every file of every hop, damaged in every way, with and without its checksum."""
    damages = (cut, emptied, altered, deleted)
    files = [(hop, name) for hop in HOPS for name in files_of(filled, hop)]
    return [(*file, damage, kept) for file in files for damage in damages for kept in (True, False)]


def test_a_damaged_file_is_refused_by_name_or_harms_nobody(
    filled: World, tmp_path: Path, report: Callable[..., Report]
) -> None:
    cases = cases_of(filled)
    told = report("a damaged file of a checkpoint", seed=_SEED)
    print(f"{len(cases)} cases, seed {_SEED}; repeat with TIDELAKE_SEED={_SEED}")
    drawn = random.Random(_SEED).sample(cases, min(_CASES, len(cases)))
    for number, case in enumerate(drawn):
        folder = tmp_path / str(number)
        outcome = survive(filled, folder, case)
        told.tried += 1
        told.reached += 1
        told.refused += outcome == "refused"
        shutil.rmtree(folder)
        hop, name, damage, has_checksum = case
        print(f"{hop} {name} {damage.__name__}{' beside its checksum' * has_checksum}: {outcome}")
