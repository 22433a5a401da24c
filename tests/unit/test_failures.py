"""What stops a step is told by its place, its reason and its remedy."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from pyspark.errors import PySparkException

from tests.unit.handmade import write_commit
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.delta.store import Catalog
from tidelake.delta.tables import Lake
from tidelake.errors import (
    LostError,
    MachineError,
    RefusedError,
    SourceChangedError,
    SourceError,
    TidelakeError,
)
from tidelake.runtime.failures import NO_INPUT, TOO_OLD, damage, named, naming
from tidelake.runtime.hop import Run
from tidelake.spark.engine import started

_PLACE = "shop, hop silver"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "An error occurred while calling o7.save.\n: org.apache.spark.SparkException: Aborted\n"
            "\tat org.x.Y(Y.scala:1)\nCaused by: java.io.IOException: No space left on device\n",
            "shop, hop silver stopped: No space left on device\nFree some space",
        ),
        (
            "java.io.FileNotFoundException: /lake/x.parquet (Permission denied)",
            "shop, hop silver stopped: /lake/x.parquet (Permission denied)\nGive this user",
        ),
        (
            "java.io.FileNotFoundException: /lake/x.parquet (Read-only file system)",
            "shop, hop silver stopped: /lake/x.parquet (Read-only file system)\nMake the file",
        ),
        ("Disk quota exceeded", "shop, hop silver stopped: Disk quota exceeded\nFree some"),
    ],
)
def test_what_the_machine_refuses_is_told_with_its_remedy(said: str, told: str) -> None:
    error = named(RuntimeError(said), _PLACE)
    assert str(error).startswith(told)
    assert (error.exit_code, type(error)) == (1, TidelakeError)


def test_the_reason_may_lie_in_a_cause() -> None:
    try:
        raise ValueError("failed") from OSError(28, "No space left on device")
    except ValueError as error:
        assert "No space left on device" in str(named(error, _PLACE))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "An error occurred while calling o37.save.\n: org.apache.spark.SparkException: failed\n"
            "\tat org.x.Y(Y.scala:1)\nCaused by: org.apache.kafka.common.errors.TimeoutException: "
            "Timeout of 60000ms expired before the position for t-1 could be determined\n",
            "Timeout of 60000ms expired before the position for t-1 could be determined",
        ),
        (
            "[STREAM_FAILED] Query terminated with exception: "
            "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node "
            "assignment. Call: listNodes SQLSTATE: XXKST",
            "Timed out waiting for a node assignment. Call: listNodes",
        ),
        (
            "java.util.concurrent.TimeoutException: Cannot fetch record for offset 7 in 120000 ms",
            "Cannot fetch record for offset 7 in 120000 ms",
        ),
        (
            "org.apache.kafka.common.errors.BrokerNotAvailableException: gone",
            "gone",
        ),
    ],
    ids=["while a batch is written", "between batches", "while it is polled", "on its way down"],
)
def test_a_broker_that_does_not_answer_is_told_as_the_source(said: str, told: str) -> None:
    error = named(RuntimeError(said), "shop, hop bronze")
    assert isinstance(error, SourceError)
    assert str(error).startswith(
        f"shop, hop bronze stopped: the Kafka broker does not answer: {told}"
    )
    assert "Check it, then run again." in str(error)


@pytest.mark.parametrize(
    "between",
    [
        "\n  ",
        # Of Spark 4.
        ";\neither the data was aged out by Kafka or the topic may have been deleted before all "
        "the data in the\ntopic was processed.\nIf you don't want your streaming query to fail on "
        "such cases, set the source option failOnDataLoss to false.\n",
    ],
    ids=["one line", "four lines"],
)
def test_records_that_are_gone_while_they_are_read_are_told_by_spark_s_reason(between: str) -> None:
    said = (
        "org.apache.kafka.common.errors.TimeoutException: first\n"
        f"Some data may have been lost because they are not available in Kafka any more{between}"
        "Reason: the offset 7 of t-1 is out of range\n"
        "=== Streaming Query ===\nIdentifier: clicks-bronze\n"
    )
    error = named(RuntimeError(said), "shop, hop bronze")
    assert isinstance(error, LostError)
    assert "gone. the offset 7 of t-1 is out of range. Nothing was written" in str(error)
    assert "records of a topic are gone. the offset 7 of t-1 is out of range" in str(error)


def test_a_file_that_is_gone_is_a_changed_source() -> None:
    said = "java.io.FileNotFoundException: File file:/landing/10:15.jsonl does not exist"
    error = named(RuntimeError(said), _PLACE)
    assert isinstance(error, SourceChangedError)
    assert "RuntimeError: file:/landing/10:15.jsonl\n" in str(error)


def test_a_path_that_is_not_found_is_a_file_of_a_table_where_no_source_is_read() -> None:
    file = "file:/lake/bronze/shop__requeue/part-0.parquet"
    said = f"[PATH_NOT_FOUND] Path does not exist: {file}. SQLSTATE: 42K03\n\tat org.x.Y(Y.scala:1)"
    error = named(PySparkException(said), "shop, rollback", gone=NO_INPUT)
    assert isinstance(error, RefusedError)
    assert str(error).startswith(f"shop, rollback: {NO_INPUT}\n")
    assert str(error).endswith(f": {file}")
    # A folder of the source.
    assert type(named(PySparkException(said), "shop, hop bronze")) is TidelakeError


def test_a_version_that_delta_refuses_by_its_age_is_told_with_its_remedy() -> None:
    error = named(RuntimeError(f"[{TOO_OLD}] Cannot time travel"), "shop, hop gold")
    assert isinstance(error, RefusedError)
    assert "Let the table keep them with: tidelake maintain shop, then run again" in str(error)


def test_anything_else_is_told_by_its_kind_and_the_log_that_has_its_words() -> None:
    told = str(named(ValueError("\n  what?\nmore"), _PLACE))
    assert told.startswith("shop, hop silver stopped: ValueError\n")
    assert "what?" not in told
    assert "what?\nmore" in Path(told.rsplit(" ", 1)[-1]).read_text()


def _run(
    *,
    stops: bool = False,
    lake: Lake | None = None,
    gold: tuple[str, ...] = (),
    replays: bool = False,
) -> Run:
    """Give what naming looks at."""
    stop = threading.Event()
    if stops:
        stop.set()
    pipeline = SimpleNamespace(name="shop", gold_names=gold)
    return cast(Run, SimpleNamespace(stop=stop, pipeline=pipeline, lake=lake, replays=replays))


def _said_of(file: Path | str) -> str:
    """Give what Spark says of a missing file, whose path it encodes."""
    return (
        "An error occurred while calling o9.save.\n: org.apache.spark.SparkException: "
        f"[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:{file}. File "
        "does not exist. It is possible the underlying files have been updated.\n"
        "\tat org.x.Y(Y.scala:1)\nCaused by: java.io.FileNotFoundException: File "
        f"file:{file} does not exist\n"
    )


_TWO = ("gold.totals", "gold.visits")
_ANEW = "tidelake backfill run {0}, then: tidelake backfill promote {1}"


@pytest.mark.parametrize(
    ("name", "gold", "instead"),
    [
        ("bronze.shop", (), ", or ingest the source again under another --root"),
        ("bronze.shop__requeue", (), ", or ingest the source again under another --root"),
        (
            "silver.shop",
            _TWO,
            ", or recompute it from bronze with: " + _ANEW.format("shop", "shop"),
        ),
        (
            "silver.shop__late",
            (),
            ", or recompute it from bronze with: " + _ANEW.format("shop", "shop"),
        ),
        ("silver.bank", (), ", or recompute it from bronze with: " + _ANEW.format("bank", "bank")),
        ("silver.shop__discarded", (), ""),
        (
            "dim.goods__history",
            (),
            ", or recompute it from silver with: " + _ANEW.format("goods --from silver", "goods"),
        ),
        ("gold.totals", _TWO, ", or delete {0} and fill it from silver with: tidelake run shop"),
        (
            "gold.totals",
            _TWO[:1],
            ", or delete {0} and fill it from silver with: tidelake repair shop --hop gold",
        ),
        # Of another pipeline.
        ("gold.totals", (), ""),
        ("ops.books", (), ""),
    ],
)
def test_a_table_of_whose_newest_version_a_file_is_gone_is_told_with_what_brings_it_back(
    tmp_path: Path, name: str, gold: tuple[str, ...], instead: str
) -> None:
    lake = Lake(tmp_path)
    write_commit(lake.table(name), 0, adds=[(9, True)])
    said = _said_of(lake.table(name).path / "part-0-0.parquet")
    with pytest.raises(RefusedError) as refused, naming(_run(lake=lake, gold=gold), "hop gold"):
        raise OSError(said)
    told, what = str(refused.value).split("\n")
    assert told == (
        f"shop, hop gold: {name} is damaged: a file of its newest version is gone. Restore its "
        "folder, or that file, from a backup" + instead.format(lake.table(name).path)
    )
    assert what.endswith(f": file:{lake.table(name).path}/part-0-0.parquet")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("silver.shop", ""),
        ("gold.totals", ""),
        ("silver.bank", ", or recompute it from bronze with: " + _ANEW.format("bank", "bank")),
    ],
)
def test_beside_an_unfinished_swap_a_damaged_table_is_restored_from_a_backup_alone(
    tmp_path: Path, name: str, instead: str
) -> None:
    lake = Lake(tmp_path)
    write_commit(lake.table(name), 0, adds=[(9, True)])
    lake.swap("shop").parent.mkdir(parents=True)
    lake.swap("shop").write_text("promoting")
    said = _said_of(lake.table(name).path / "part-0-0.parquet")
    told = damage(_run(lake=lake, gold=_TWO), said)
    assert told.endswith(f"or that file, from a backup{instead}")


def test_a_file_that_is_gone_is_found_in_the_log_by_its_encoded_path(tmp_path: Path) -> None:
    table = Lake(tmp_path / "my lake").silver("shop")
    write_commit(table, 0, adds=[(9, True)])
    log = table.path / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace("part-0-0", "day=a%20b/part-0"))
    said = _said_of(f"{tmp_path}/my%20lake/silver/shop/day=a%20b/part-0.parquet")
    assert damage(_run(lake=Lake(tmp_path / "my lake")), said).startswith("silver.shop is damaged")


def test_what_a_missing_file_means_is_left_open_where_its_table_s_files_are_not_known(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path)
    silver, green = lake.silver("shop"), Lake(tmp_path / "backfill" / "shop")
    for table in (silver, green.silver("shop")):
        write_commit(table, 0, adds=[(9, True)])
    said = _said_of(silver.path / "part-0-0.parquet")
    assert damage(_run(lake=lake), said)
    # Of an older version, of no version, of no table.
    log = silver.path / "_delta_log"
    (log / f"{1:020}.json").write_text('{"remove": {"path": "part-0-0.parquet"}}')
    assert damage(_run(lake=lake), said) == ""
    assert damage(_run(lake=lake), _said_of(silver.path / "_delta_log" / "x.json")) == ""
    assert damage(_run(lake=lake), _said_of(tmp_path / "landing" / "part-0-0.parquet")) == ""
    assert damage(_run(lake=lake), "java.io.FileNotFoundException: s3a://lake/x") == ""
    # The log cannot be read.
    (log / f"{1:020}.json").write_text("damaged")
    assert damage(_run(lake=lake), said) == ""
    (log / f"{1:020}.json").unlink()
    # A table that only a backfill knows, and the live one beside it.
    said_of_green = _said_of(green.silver("shop").path / "part-0-0.parquet")
    assert damage(_run(lake=lake), said_of_green) == ""
    assert damage(_run(lake=green, replays=True), said_of_green) == ""
    assert damage(_run(lake=green, replays=True), said) == ""
    # A catalog.
    held = Lake(tmp_path, catalog=Catalog("main", cast(Any, None)))
    assert damage(_run(lake=held), said) == ""


def test_a_step_beside_the_batches_is_named_unless_the_run_was_asked_to_stop() -> None:
    with (
        pytest.raises(TidelakeError, match=r"^shop, closing an epoch, stopped: .*No space left"),
        naming(_run(stops=False), "closing an epoch,"),
    ):
        raise OSError(28, "No space left on device")
    with pytest.raises(OSError, match="No space"), naming(_run(stops=True), "closing an epoch,"):
        raise OSError(28, "No space left on device")


def test_what_the_system_refuses_a_command_is_told_without_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    def full(**_: Any) -> None:
        raise OSError(28, "No space left on device", "lake/.lock")

    assert run_command(full, []) == 1
    assert capsys.readouterr().err == "tidelake: lake/.lock: No space left on device\n"


def test_a_name_that_is_too_long_is_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(app, ["validate", str(tmp_path / (300 * "x"))]) == 2
    assert capsys.readouterr().err.endswith("xxx: File name too long\n")


@pytest.mark.parametrize(
    "said",
    [
        'Could not connect to the endpoint URL: "http://store:9000/lake"',
        "o7.save.\n: org.apache.spark.SparkException: Aborted\nCaused by: software.amazon.awssdk."
        "core.exception.SdkClientException: Unable to execute HTTP request: Connection refused\n",
        "org.apache.hadoop.fs.s3a.AWSStatus500Exception: commit: 500\n",
        # From the function of a batch, as Spark passes it on.
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call):\n"
        "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject "
        "operation: Please reduce your request rate.\n\nThe above exception was the direct cause",
        "Caused by: botocore.errorfactory.AccessDenied: An error occurred (AccessDenied) when "
        "calling the ListObjectsV2 operation: Access Denied",
    ],
)
def test_a_store_that_went_away_is_told_with_its_remedy(said: str) -> None:
    error = named(RuntimeError(said), _PLACE)

    assert isinstance(error, MachineError)
    assert "shop, hop silver stopped: the object store: " in str(error)
    assert "retried by the next run" in str(error)


@pytest.mark.parametrize("code", ["NoSuchKey", "404"])
def test_a_missing_object_is_a_missing_file(code: str) -> None:
    from botocore.exceptions import ClientError  # noqa: PLC0415

    missing = FileNotFoundError("a/_delta_log/0.json")
    missing.__cause__ = ClientError({"Error": {"Code": code}}, "GetObject")
    error = named(missing, _PLACE, gone="its log was cleaned up. Rebuild it")
    assert isinstance(error, RefusedError)
    assert "Rebuild it" in str(error)


@pytest.mark.parametrize(
    ("code", "wrapped", "said"),
    [
        ("AccessDenied", PermissionError("Access Denied"), "the object store denied access"),
        ("SlowDown", OSError(5, "Please reduce your request rate"), "answered SlowDown"),
    ],
)
def test_what_a_store_answers_python_in_a_batch_is_told_as_elsewhere(
    code: str, wrapped: OSError, said: str
) -> None:
    from botocore.exceptions import ClientError  # noqa: PLC0415

    wrapped.__cause__ = ClientError({"Error": {"Code": code}}, "PutObject")
    error = named(wrapped, _PLACE)

    assert isinstance(error, MachineError)
    assert str(error).startswith("shop, hop silver stopped: the object store ")
    assert said in str(error)
    assert "retried by the next run" in str(error)


def test_what_a_store_says_outside_of_a_batch_is_no_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from botocore.exceptions import EndpointConnectionError  # noqa: PLC0415

    @click.command()
    def fails() -> None:
        raise EndpointConnectionError(endpoint_url="http://store:9000")

    assert run_command(fails, []) == 4
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "late", "tries"),
    [
        # As a server of Spark Connect says it.
        ("(org.apache.spark.SparkException) Python worker failed to connect back.", 2, 3),
        ("(org.apache.spark.SparkException) Python worker failed to connect back.", 99, 12),
        ("[CONCURRENT_QUERY] another instance of this query runs", 99, 1),
    ],
)
def test_a_query_is_started_again_while_its_python_worker_is_late(
    said: str, late: int, tries: int
) -> None:
    starts: list[int] = []
    told: list[str] = []

    def start() -> str:
        starts.append(len(starts))
        if len(starts) <= late:
            raise PySparkException(said)
        return "the query"

    writer = cast(Any, SimpleNamespace(start=start))
    if late < tries:
        assert started(writer, told.append) == "the query"
    else:
        with pytest.raises(PySparkException, match=r"Python worker|another instance"):
            started(writer, told.append)
    assert (len(starts), len(told)) == (tries, min(tries - 1, 1))
