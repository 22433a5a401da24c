"""Each file of a checkpoint cut, altered or deleted: refused by name, or the right tables."""

from __future__ import annotations

import os
import random
import re
import shutil
import time
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.comparing import assert_gold_equals_oracle, distinct_events
from tests.crashes import forgotten_batch
from tests.recovery.reporting import Report
from tests.running import click, read, versions
from tests.worlds import World, reference_gold, world
from tidelake.delta.tables import HOPS, Hop
from tidelake.errors import TidelakeError
from tidelake.ledger.terms import read_ledger
from tidelake.replay.repairing import repair
from tidelake.spark.internals import local_files

pytestmark = pytest.mark.usefixtures("interpreted")

_COMMAND = re.compile(r"tidelake repair clickstream --hop (\w+)")
Damage = Callable[[Path], None]
# Which hop, which file, how it is damaged, and whether its checksum stays beside it.
Case = tuple[Hop, str, Damage, bool]
_SEED = int(os.environ.get("TIDELAKE_SEED", str(time.time_ns() % 1_000_000)))
# By default an older bronze, and a damaged file of each other hop.
_CASES = int(os.environ.get("TIDELAKE_CORRUPTIONS", "3"))


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
    # As earlier code wrote them.
    files = local_files(spark)
    files.setWriteChecksum(True)
    try:
        made.run()
    finally:
        files.setWriteChecksum(False)
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


# Bronze would read its files again; a command must mend that, whatever is drawn.
_ALWAYS: Case = ("bronze", ".", forgotten_batch, True)


def files_of(filled: World, hop: Hop) -> list[str]:
    """List what Spark wrote, checksums aside."""
    folder = filled.lake.checkpoints("clickstream", hop) / "g1"
    return sorted(
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and not file.name.startswith(".")
    )


def survive(filled: World, folder: Path, cases: Sequence[Case]) -> dict[Hop, str]:
    """Damage a file of each of some hops, run, mend what asks for it, and want the right tables.

    Hops are mended alone, so that one damaged checkpoint hides nothing of another.

    Returns:
        By hop ``refused`` or ``went on``.
    """
    broken = filled.copied(folder)
    outcomes: dict[Hop, str] = {}
    for hop, name, damage, has_checksum in cases:
        file = broken.lake.checkpoints("clickstream", hop) / "g1" / name
        if not has_checksum:
            # Other stores keep none beside a file.
            (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
        damage(file)
        outcomes[hop] = "went on"
    # A hop that has all its rows does not open its checkpoint; the next rows find the damage.
    for hop in reversed(HOPS):
        if hop in outcomes:
            _went_on(broken, [hop], outcomes)
    # Each hop is refused once at most.
    while not _went_on(broken, HOPS, outcomes):
        pass
    assert broken.run() == [], cases
    delivered = [line for part in range(3) for line in _lines(part)]
    books = read_ledger(broken.lake, broken.pipeline)
    assert books.problems == (), cases
    assert books.bronze == books.records == len(delivered), cases
    expected = distinct_events(delivered)
    silver = [row[0] for row in read(broken.lake, "silver.clickstream", "event_id")]
    assert silver == sorted(event["event_id"] for event in expected), cases
    assert_gold_equals_oracle(broken.lake, expected)
    return outcomes


def _went_on(broken: World, hops: Sequence[Hop], outcomes: dict[Hop, str]) -> bool:
    """Run hops; mend the one that is refused, of which nothing may have changed."""
    before = versions(broken.lake)
    try:
        broken.run(hops=hops)
    except TidelakeError as error:
        found = _COMMAND.search(str(error))
        assert found, (outcomes, str(error))
        (hop,) = (one for one in HOPS if one == found[1])
        assert outcomes.get(hop) == "went on", (outcomes, str(error))
        outcomes[hop] = "refused"
        assert _of_hop(versions(broken.lake), hop) == _of_hop(before, hop)
        repair(broken.context, hop)
        return False
    return True


def _of_hop(found: dict[str, int], hop: Hop) -> dict[str, int]:
    return {name: version for name, version in found.items() if name.startswith(f"{hop}.")}


def cases_of(filled: World, hop: Hop) -> list[Case]:
    """List every file of a hop, damaged in every way, with and without its checksum."""
    return [
        (hop, name, damage, kept)
        for name in files_of(filled, hop)
        for damage in (cut, emptied, altered, deleted)
        for kept in (True, False)
    ]


def drawn(filled: World, chance: random.Random, count: int) -> list[list[Case]]:
    """Draw cases beside :data:`_ALWAYS`, those in one list of different hops."""
    shuffled = {hop: chance.sample(cases := cases_of(filled, hop), len(cases)) for hop in HOPS}
    shuffled["bronze"].insert(0, _ALWAYS)
    lists: list[list[Case]] = []
    for of_each in zip_longest(*shuffled.values()):
        left = count - sum(map(len, lists))
        lists.append([case for case in of_each if case][:left])
    return [cases for cases in lists if cases]


@pytest.mark.long
def test_a_damaged_file_is_refused_by_name_or_harms_nobody(
    filled: World, tmp_path: Path, report: Callable[..., Report]
) -> None:
    told = report("a damaged file of a checkpoint", seed=_SEED)
    total = 1 + sum(len(cases_of(filled, hop)) for hop in HOPS)
    print(f"{total} cases, seed {_SEED}; repeat with TIDELAKE_SEED={_SEED}")
    for number, cases in enumerate(drawn(filled, random.Random(_SEED), _CASES)):
        folder = tmp_path / str(number)
        outcomes = survive(filled, folder, cases)
        shutil.rmtree(folder)
        told.tried += len(cases)
        told.reached += len(cases)
        for hop, name, damage, has_checksum in cases:
            told.refused += outcomes[hop] == "refused"
            assert outcomes[hop] == "refused" or damage is not forgotten_batch
            how = f"{damage.__name__}{' beside its checksum' * has_checksum}"
            print(f"{hop} {name} {how}: {outcomes[hop]}")
