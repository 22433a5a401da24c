"""Kill -9 with a root on an object store: run again, the same tables, each row once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.recovery.processes import started
from tests.running import click, read
from tests.stores import Store
from tests.worlds import write_clickstream
from tidelake.config import load_environment, load_pipeline
from tidelake.delta.log import newest_version
from tidelake.delta.tables import Lake
from tidelake.folders import folder
from tidelake.ledger.terms import read_ledger

# At these heads of silver and gold the process is killed.
_POINTS = ("bronze.clickstream", "silver.clickstream", "gold.user_sessions")


@pytest.mark.long
def test_a_run_that_is_killed_on_a_store_goes_on_with_the_same_tables(
    s3: Store, tmp_path: Path
) -> None:
    root = s3.prefix()
    landing = f"{root}/landing"
    file = write_clickstream(
        tmp_path, kind="files", path=landing, format="json", max_files_per_trigger=1
    )
    lines = [click(number, minute=number) for number in range(60)]
    for part in range(6):
        data = b"".join(line + b"\n" for line in (*lines[part * 10 : part * 10 + 10], lines[0]))
        s3.put(f"{landing}/{part}.jsonl", data)
    lake = Lake(folder(root))
    command = ["run", str(file), "--root", root]

    for number, name in enumerate(_POINTS):
        with started(tmp_path, command, name=f"killed-{number}") as running:
            head = newest_version(lake.table(name))
            deadline = time.monotonic() + 300
            while newest_version(lake.table(name)) < max(head, 0) + 2:
                if running.ends_within(0.05) or time.monotonic() > deadline:
                    break
            running.kill()
    # The lock of the killed one is no hindrance: this machine knows that it is gone.
    for name, arguments in (("last", command), ("verify", ["verify", str(file), "--root", root])):
        with started(tmp_path, arguments, name=name) as running:
            assert running.ends_within(300), running.words
        assert running.process.returncode == 0, running.words

    environment = load_environment("local", root=root)
    books = read_ledger(lake, load_pipeline(str(file), environment))
    assert books.balanced, books.problems
    events = read(lake, "silver.clickstream", "event_id")
    assert len(events) == len(set(events)) == 60
