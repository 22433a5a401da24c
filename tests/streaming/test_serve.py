"""The Thrift server: a JDBC client reads every table, writes none, and Ctrl-C ends all of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

from tests.unit.handmade import write_rows
from tidelake.cli import app
from tidelake.cli.failures import run_command
from tidelake.sinks.commits import newest_version
from tidelake.tables import Lake

_JARS = Path(pyspark.__file__).parent / "jars" / "*"
_ROWS = "SELECT * FROM (VALUES ('u1', TIMESTAMPTZ '{}')) AS t(user_id, window_end)"
_STARTS_WITHIN, _ENDS_WITHIN = 180, 30
_REFUSED = [
    "INSERT INTO gold.totals SELECT * FROM gold.totals",
    "WITH t AS (SELECT * FROM gold.totals) INSERT INTO gold.totals SELECT * FROM t",
    "FROM gold.totals INSERT INTO gold.totals SELECT *",
    "INSERT OVERWRITE DIRECTORY '{out}' USING csv SELECT 1",
    "DELETE FROM gold.totals",
    "UPDATE gold.totals SET user_id = 'x'",
    "MERGE INTO gold.totals t USING gold.totals s ON false WHEN NOT MATCHED THEN INSERT *",
    "DELETE FROM delta.`{root}/gold/totals`",
    "DROP TABLE gold.totals",
    "TRUNCATE TABLE gold.totals",
    "ALTER TABLE gold.totals SET TBLPROPERTIES ('a' = 'b')",
    "OPTIMIZE gold.totals",
    "VACUUM gold.totals RETAIN 0 HOURS",
    "RESTORE TABLE gold.totals TO VERSION AS OF 0",
    "CREATE TABLE default.c SHALLOW CLONE gold.totals LOCATION '{out}'",
    "REORG TABLE gold.totals APPLY (PURGE)",
    "CREATE TABLE default.t USING delta LOCATION '{out}' AS SELECT 1 AS a",
    "CREATE VIEW default.v AS SELECT 1 AS a",
    "EXECUTE IMMEDIATE 'DROP TABLE gold.totals'",
    "ADD JAR '{out}/x.jar'",
    "SELECT TRANSFORM(user_id) USING 'cat' FROM gold.totals",
    "SELECT reflect('java.lang.System', 'getProperty', 'user.dir')",
    "SELECT * FROM text.`/etc/hostname`",
    "SELECT * FROM delta.`{root}/gold/totals`",
]


@dataclass(frozen=True)
class Served:
    lake: Lake
    process: subprocess.Popen[bytes]
    port: int
    said: Path


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def _fill(lake: Lake, name: str, until: str) -> None:
    note = {"generation": "g1", "batch": 0, "hop": "gold"}
    final = {"column": "window_end", "until": until}
    write_rows(lake.gold(name), _ROWS.format("2024-01-01 12:00:00Z"), note={**note, "final": final})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start the server on a table with a final row, as a process of its own."""
    folder = tmp_path_factory.mktemp("it's served")
    lake = Lake(folder / "lake")
    _fill(lake, "totals", "2024-01-01T13:00:00+00:00")
    port, said = _free_port(), folder / "said"
    command = [sys.executable, "-m", "tidelake.cli", "serve", "--port", str(port)]
    with said.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--root", str(lake.root)],
            stdout=out,
            stderr=out,
            cwd=folder,
            start_new_session=True,
        )
    try:
        _wait(process, said, "jdbc:hive2://")
        yield Served(lake, process, port, said)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(process: subprocess.Popen[bytes], said: Path, words: str) -> None:
    ends = time.monotonic() + _STARTS_WITHIN
    while words not in said.read_text():
        assert process.poll() is None and time.monotonic() < ends, said.read_text()
        time.sleep(0.2)


def _asked(served: Served, statements: list[str]) -> tuple[str, str]:
    """Ask with Hive's own JDBC client."""
    flags = ["--force=true", "--silent=true", "--outputformat=csv2", "--showHeader=false"]
    said = [part for statement in statements for part in ("-e", statement)]
    # A client may bring settings along; this one would let it read files.
    url = f"jdbc:hive2://127.0.0.1:{served.port}/gold?spark.sql.runSQLOnFiles=true"
    done = subprocess.run(
        ["java", "-cp", str(_JARS), "org.apache.hive.beeline.BeeLine", *flags, "-u", url, *said],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_STARTS_WITHIN,
        check=False,
    )
    return done.stdout, done.stderr


@pytest.mark.long
def test_a_jdbc_client_reads_and_cannot_write(served: Served, tmp_path: Path) -> None:
    table = served.lake.gold("totals")
    before = newest_version(table)
    values = {"out": str(tmp_path / "out"), "root": str(served.lake.root)}
    refused = [statement.format(**values) for statement in _REFUSED]
    out, told = _asked(
        served,
        [
            "SELECT concat('read ', count(*), ' ', max(user_id)) FROM totals",
            "SELECT concat('final ', count(*)) FROM gold.totals__final",
            "SHOW TABLES IN gold",
            *refused,
            "SELECT concat('still ', count(*)) FROM gold.totals",
        ],
    )

    assert "read 1 u1" in out
    assert "final 1" in out
    assert "gold,totals__final,false" in out
    assert "still 1" in out
    errors = [line for line in told.splitlines() if line.startswith("Error: ")]
    assert len(errors) == len(refused), "\n".join(line[:200] for line in errors)
    assert sum("this server only reads" in error for error in errors) >= len(refused) - 3
    assert newest_version(table) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_a_table_that_comes_later_is_served_and_ctrl_c_ends_it_all(served: Served) -> None:
    _fill(served.lake, "later", "2024-01-01T11:00:00+00:00")
    _wait(served.process, served.said, "gold.later is new")
    out, _ = _asked(served, ["SELECT concat(count(*), ' final') FROM later__final"])
    assert "0 final" in out

    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(_ENDS_WITHIN) == 0
    assert served.said.read_text().endswith("Stopped.\n")
    ends = time.monotonic() + _ENDS_WITHIN
    while _alive(served.process.pid):
        assert time.monotonic() < ends, "the JVM is still there"
        time.sleep(0.2)
    assert {file.name for file in served.said.parent.iterdir()} == {"lake", "said"}
    with socket.create_server(("127.0.0.1", served.port)):
        pass


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_port_that_is_taken_is_told_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = Lake(tmp_path / "lake")
    _fill(lake, "totals", "2024-01-01T13:00:00+00:00")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run_command(app, ["serve", "--port", port, "--root", str(lake.root)]) == 2
    assert f"cannot listen at 127.0.0.1:{port}" in capsys.readouterr().err


def test_nothing_to_serve_says_how_to_fill_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(app, ["serve", "--root", str(tmp_path / "lake")]) == 2
    assert "tidelake demo" in capsys.readouterr().err
