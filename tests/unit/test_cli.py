"""The command line: a mistake is one clear message and its exit code, and leaves nothing behind."""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.running import land
from tests.shops import Shop
from tidelake import __version__
from tidelake.cli import app
from tidelake.cli.exits import message_of, run_command
from tidelake.cli.flow import Result, exit_code_of, run_pipelines, started
from tidelake.cli.options import Place
from tidelake.config import Pipeline, load_environment, load_pipeline
from tidelake.config.locations import find_file
from tidelake.delta.locks import hold
from tidelake.delta.tables import HOPS, Lake
from tidelake.errors import UsageError
from tidelake.examples import Generated
from tidelake.ledger.query import Answer
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.triggers import Trigger, parse_trigger
from tidelake.spark.session import build_session
from tidelake.typed import Typed

# By its name: the package hides the module behind its command.
COMMANDS = importlib.import_module("tidelake.cli.flow")
PROJECT = Path(__file__).parents[2]
_FROM_SILVER = ["backfill", "run", "clickstream", "--from", "silver"]
JOBS = sorted((PROJECT / "jobs").glob("*.py"))
RUN_JOBS = [job for job in JOBS if job.stem in {"ingest", "refine", "publish"}]
BUILT = [
    "alerts",
    "check",
    "demo",
    "dictionary",
    "doctor",
    "erase",
    "fate",
    "fmt",
    "generate",
    "init",
    "ledger",
    "list",
    "maintain",
    "new",
    "repair",
    "reset",
    "run",
    "schema",
    "serve",
    "sql",
    "status",
    "ui",
    "validate",
    "verify",
]
GROUPS = {
    "backfill": ["compare", "plan", "promote", "rollback", "run"],
    "fast": ["reconcile", "run"],
    "kafka": ["down", "up"],
    "late": ["apply", "list"],
    "quarantine": ["discard", "list", "replay"],
}


@pytest.fixture(autouse=True)
def _no_spark_and_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forbid what a mistake must not reach, and forget the developer's own environment."""
    for name in ("TIDELAKE_ENV", "TIDELAKE_ROOT"):
        monkeypatch.delenv(name, raising=False)

    def refuse(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("tidelake.spark.session.build_session", refuse)


def mistake(
    capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str, code: int = 2
) -> str:
    """Run a command that must fail and leave the folder as it was; give its message."""
    before = sorted(folder.rglob("*"))
    assert run_command(app, arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert sorted(folder.rglob("*")) == before
    return captured.err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app, ["--help"]) == 0

    out = capsys.readouterr().out
    sections = out.split("Show this message and exit.")[1]
    listed = re.findall(r"^  ([a-z]+) ", sections, re.MULTILINE)
    assert sorted(listed) == sorted([*BUILT, *GROUPS])
    # By task, not by name: what a newcomer tries first stands first.
    assert (listed[0], listed[-1]) == ("demo", "erase")


@pytest.mark.parametrize("command", [*BUILT, *GROUPS])
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run_command(app, [command, "--help"]) == 0

    captured = capsys.readouterr()
    assert captured.out.startswith("Usage: ")
    assert f" {command} [OPTIONS]" in captured.out.splitlines()[0]
    assert captured.err == ""


@pytest.mark.parametrize("group", GROUPS)
def test_a_side_table_has_its_own_commands(capsys: pytest.CaptureFixture[str], group: str) -> None:
    assert run_command(app, [group, "--help"]) == 0

    lines = capsys.readouterr().out.split("Commands:")[1].splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == GROUPS[group]


@pytest.mark.parametrize(
    "command",
    # A new project has no place yet, and a schema is the same everywhere.
    [[name] for name in BUILT if name not in ("new", "schema")]
    + [[group, name] for group, names in GROUPS.items() for name in names],
    ids=" ".join,
)
def test_root_and_env_go_with_each_command(
    capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    run_command(app, [*command, "--help"])

    out = capsys.readouterr().out
    assert "--root DIR" in out
    assert "--env NAME" in out
    assert "--conf DIR" in out


def test_the_command_line_loads_without_spark() -> None:
    code = "import sys; sys.modules['pyspark'] = None; import tidelake.cli"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_version_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app, ["--version"]) == 0
    assert capsys.readouterr().out == f"tidelake, version {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Define:"),
        (["nope"], "No such command 'nope'"),
        (["generate", "--to", "x"], "Missing argument 'PIPELINE'"),
        (["run"], "name a pipeline (known in"),
        (["status"], "name a pipeline (known in"),
        (["repair", "--hop", "silver"], "name the pipeline that this command changes (known in"),
        (["run", "clickstream", "--wat"], "No such option '--wat'"),
        (["run", "clickstream", "--hop", "platinum"], "'platinum' is not one of 'bronze'"),
        (["run", "clickstream", "--env", "mars"], "there is no environment 'mars'"),
        (["demo", "--events", "0"], "0 is not in the range x>=1"),
        (["demo", "--seed", "x"], "'x' is not a valid integer"),
        (["generate", "clickstream"], "Missing option '--to'"),
        (["generate", "clickstream", "--to", "kafka://h:1"], "write kafka://HOST:PORT/TOPIC"),
        (["generate", "clickstream", "--to", "kafka://[h/t"], "write kafka://HOST:PORT/TOPIC"),
        (["generate", "clickstream", "--to", "kafka://127.0.0.1:1/t"], "tidelake kafka up"),
        (["run", "clickstream", "--source", "kafka:///t"], "write kafka://HOST:PORT/TOPIC"),
        (["run", "clickstream", "--trigger", "99999999999 hours"], "is too long for a duration"),
        (["run", 300 * "x"], "there is no pipeline"),
        (["late", "nope"], "No such command 'nope'"),
        (["late", "apply", "clickstream", "--start", "5.1.2026"], "'5.1.2026' is not a timestamp"),
        (
            ["late", "apply", "clickstream", "--start", "2026-01-05", "--end", "2026-01-05"],
            "--end must be later than --start",
        ),
        (
            ["late", "list", "clickstream", "--start", "0001-01-01T00:00+05:00"],
            "is not a timestamp of the years 1 to 9999 (UTC)",
        ),
        (
            [*_FROM_SILVER, "--start", "9999-12-01", "--for", "40 days"],
            "--start and --for end after the year 9999: shorten --for",
        ),
        (["status", "clickstream", "--root", "~nobody-here/x"], "~nobody-here/x begins with ~"),
        (["init", "x", "--source", "~nobody-here/x"], "~nobody-here/x begins with ~"),
        (["sql", "SELECT 'caf\udce9'"], "character 12 is a byte that is not UTF-8"),
        (["quarantine", "discard", "clickstream"], "Missing option '--reason'"),
        (
            ["quarantine", "discard", "clickstream", "--reason", " "],
            "Invalid value for --reason: must not be blank",
        ),
        (["quarantine", "list", "--stage", "late"], "'late' is not one of 'parse', 'contract'"),
        (["ledger", "--by", "hour"], "'hour' is not one of 'batch', 'day'"),
        (["fate", "clickstream"], "give exactly one of --event-id and --record-id"),
        (["serve", "--port", "0"], "0 is not in the range"),
        (["sql", "--to", "answer.csv"], "--to needs a statement"),
        (["sql", "SELECT 1", "--to", "answer.txt"], "must end in one of .csv, .parquet, .json"),
        (["erase", "clickstream"], "Missing option '--subject'"),
        (["erase", "clickstream", "--subject", "u1"], "write the subject as COLUMN=VALUE"),
        (["erase", "clickstream", "--subject", "user_id="], "write the subject as COLUMN=VALUE"),
        (
            ["erase", "clickstream", "--subject", "user=u1"],
            "Its event columns: event_id, user_id, action,",
        ),
    ],
)
def test_wrong_use_exits_2_with_a_message(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert words in mistake(capsys, tmp_path, *arguments)


@pytest.mark.parametrize(
    "command",
    [
        ["run", "nope"],
        ["status", "nope"],
        ["ledger", "nope"],
        ["demo", "nope"],
        ["check", "nope"],
        ["late", "list", "nope"],
        ["late", "apply", "nope"],
        ["quarantine", "list", "nope"],
        ["quarantine", "replay", "nope"],
        ["quarantine", "discard", "nope", "--reason", "broken"],
        ["erase", "nope", "--subject", "user_id=u1"],
        ["fate", "nope", "--event-id", "e1"],
        ["dictionary", "nope"],
    ],
    ids=" ".join,
)
def test_an_unknown_pipeline_lists_the_known_ones(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    told = mistake(capsys, tmp_path, *command, "--root", str(tmp_path / "lake"))

    assert "there is no pipeline 'nope'" in told
    assert "clickstream, flights" in told


def test_a_pipeline_file_that_is_no_yaml_is_named_with_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "bad.yml"
    file.write_text("name: shop\nsource: {kind: files\n")

    told = mistake(capsys, tmp_path, "run", str(file), "--root", str(tmp_path / "lake"))

    assert str(file) in told
    assert "line" in told


def test_every_violation_of_a_pipeline_file_is_listed_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "bad.yml"
    file.write_text("name: shop\nsource: {kind: files, path: /x, wat: 1}\nsauce: 1\n")

    told = mistake(capsys, tmp_path, "run", str(file), "--root", str(tmp_path / "lake"))

    assert all(word in told for word in ("source.wat", "sauce", "event", "gold"))


def valid_but_refused_here(
    capsys: pytest.CaptureFixture[str], file: Path, source: str, gold: str, options: list[str]
) -> str:
    file.write_text(
        f"name: shop\nsource: {source}\n"
        f"event: {{schema: 'id STRING, at TIMESTAMP', id: id, time: at}}\ngold: {gold}\n"
    )
    # The definition itself is valid, here as in an environment with a catalog.
    assert run_command(app, ["validate", str(file)]) == 0
    capsys.readouterr()
    root = str(file.parent / "lake")
    return mistake(capsys, file.parent, "run", str(file), "--root", root, *options)


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_source_that_a_catalog_has_is_not_read_without_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str]
) -> None:
    file = tmp_path / "shop.yml"
    source = "{kind: delta, table: main.raw.shop}"
    gold = "[{name: t, window: {kind: tumbling, size: 1 day}, measures: {n: {count: '*'}}}]"

    told = valid_but_refused_here(capsys, file, source, gold, options)

    assert f"{file}: source.table is main.raw.shop, a name in a catalog" in told
    assert "--env NAME, or a folder with --source" in told


@pytest.mark.parametrize("options", [[], ["--dry-run"], ["--source", "abfss://c@a.host/x"]])
def test_a_location_that_only_a_catalogs_compute_reads_is_refused_without_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str]
) -> None:
    source = "{kind: files, path: 'gs://bucket/shop'}"

    told = valid_but_refused_here(capsys, tmp_path / "shop.yml", source, "[]", options)

    path, scheme = (options[1], "abfss") if len(options) > 1 else ("gs://bucket/shop", "gs")
    assert f"source.path: {path} cannot be used: {scheme} is not supported" in told
    assert "make an external volume" in told
    assert "Environment local has no catalog" in told


@pytest.mark.parametrize("command", [["run"], ["run", "--dry-run"], ["fast", "run"]])
def test_a_credential_of_a_catalog_is_not_used_without_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    content = yaml.safe_load(find_file("payments", "pipeline").read_text())
    del content["quality"]
    options = {"databricks.serviceCredential": "msk"}
    content["source"] = {"kind": "kafka", "bootstrap": "h:1", "topic": "t", "options": options}
    file = tmp_path / "payments.yml"
    file.write_text(yaml.safe_dump(content))
    assert run_command(app, ["validate", str(file)]) == 0
    capsys.readouterr()

    told = mistake(capsys, tmp_path, *command, str(file), "--root", str(tmp_path / "lake"))

    assert "source.options has databricks.serviceCredential" in told
    assert "environment local has no catalog. Choose one that has with --env NAME" in told


def test_a_missing_source_folder_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root = tmp_path / "lake"

    told = mistake(capsys, tmp_path, "run", "clickstream", "--root", str(root))

    assert f"the source {root}/landing/clickstream does not exist" in told


def test_an_empty_source_folder_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()

    told = mistake(
        capsys,
        tmp_path,
        *["run", "clickstream", "--source", str(tmp_path / "in"), "--root", str(tmp_path / "lake")],
    )

    assert f"the source {tmp_path}/in holds no file" in told


@pytest.mark.parametrize("below", ["", "/deeper/still"])
@pytest.mark.parametrize(
    "command",
    [
        ["run", "clickstream"],
        ["demo"],
        ["sql", "SELECT 1"],
        ["status", "clickstream"],
        ["ledger", "clickstream"],
        ["doctor"],
        ["check", "clickstream"],
        ["late", "apply", "clickstream"],
        ["quarantine", "list", "clickstream"],
    ],
)
def test_a_root_that_is_a_file_or_lies_below_one_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str], below: str
) -> None:
    file = tmp_path / "file"
    file.write_text("")

    told = mistake(capsys, tmp_path, *command, "--root", f"{file}{below}")

    assert f"cannot be used: {file} is a file, not a folder" in told


def test_a_catalog_away_from_its_runtime_says_how_to_run_on_paths(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr("tidelake.spark.session.build_session", build_session)

    assert run_command(app, ["ledger", "clickstream", "--env", "prod"]) == 4

    told = capsys.readouterr().err
    assert "catalog tidelake, which only a Databricks runtime can access" in told
    assert "give --root DIR" in told


def test_a_catalog_is_not_served(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told = mistake(capsys, tmp_path, "serve", "--env", "prod")

    assert "Connect to the SQL warehouse" in told


def test_the_fast_lane_on_a_catalog_says_that_it_is_not_built(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told = mistake(capsys, tmp_path, "fast", "run", "payments", "--env", "prod")

    assert "The fast lane on a catalog is not built yet. Give --root DIR" in told


def test_a_run_beside_another_is_refused_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    land(tmp_path / "landing", "a.jsonl", [b"{}"])
    arguments = ["run", "clickstream", "--root", str(tmp_path / "lake")]
    with hold(Lake(tmp_path / "lake").checkpoints("clickstream", "bronze"), "another run"):
        assert run_command(app, [*arguments, "--source", str(tmp_path / "landing")]) == 3
    told = f"tidelake: clickstream, hop bronze, is being written by process {os.getpid()}. "
    assert capsys.readouterr().err.startswith(told)


@pytest.mark.parametrize(
    ("options", "trigger"),
    [
        (["--hop", "silver"], "10 seconds"),
        (["--hop", "gold"], "available-now"),
        ([], "continuous"),
        (["--hop", "silver", "--trigger", "available-now"], "available-now"),
        (["--hop", "dimensions"], "available-now"),
    ],
)
def test_a_run_takes_its_trigger_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], trigger: str
) -> None:
    taken: list[Trigger] = []
    monkeypatch.setattr(COMMANDS, "run_pipelines", lambda *given: taken.append(given[-1]) or [])
    here = tmp_path / "conf"
    (here / "environments").mkdir(parents=True)
    (here / "pipelines").symlink_to(PROJECT / "conf" / "pipelines")
    (here / "expectations").symlink_to(PROJECT / "conf" / "expectations")
    (here / "environments" / "local.yml").write_text(
        "root: lake\ntriggers: {silver: 10 seconds, all: continuous}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run_command(app, ["run", "clickstream", *options]) == 0
    assert taken == [parse_trigger(trigger)]


def test_what_was_generated_is_told_to_machines(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = str(tmp_path / "my landing")
    arguments = ["generate", "clickstream", "--to", target, "--events", "50", "--json"]
    assert run_command(app, [*arguments, "--root", str(tmp_path / "lake")]) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert (told["pipeline"], told["to"]) == ("clickstream", target)
    assert told["records"] == sum(told["kinds"].values()) > 0
    assert told["files"] == told["written"] == len(list(Path(target).iterdir()))
    assert f"--source '{target}' --root {tmp_path / 'lake'}" in captured.err


def test_a_dry_run_lists_what_would_be_generated_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "landing"
    arguments = ["generate", "products", "--to", str(target), "--root", str(tmp_path / "lake")]
    assert run_command(app, [*arguments, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["dry_run"] and told["paths"]
    assert list(tmp_path.iterdir()) == []

    assert run_command(app, arguments) == 0
    assert told["paths"] == sorted(map(str, target.iterdir()))
    # Another call writes none of them again.
    Path(told["paths"][0]).unlink()
    capsys.readouterr()
    assert run_command(app, [*arguments, "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == told["paths"][:1]
    assert "Nothing was written." in captured.err
    # What a call would refuse, its dry run refuses.
    Path(told["paths"][1]).write_text("other\n")
    assert run_command(app, [*arguments, "--dry-run"]) == 2
    capsys.readouterr()
    to = "kafka://127.0.0.1:1/t"
    assert run_command(app, ["generate", "products", "--to", to, "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, f"would be written to {to}" in captured.err) == ("", True)


def test_what_went_into_a_topic_is_told_without_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = Generated(files=3, written=3, records=5, kinds={"click": 5})
    monkeypatch.setattr("tidelake.cli.trying._produce_stream", lambda *_, **__: summary)
    to = "kafka://127.0.0.1:9092/clicks"
    assert run_command(app, ["generate", "clickstream", "--to", to, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"pipeline": "clickstream", "to": to, "records": 5, "kinds": {"click": 5}}


@pytest.fixture
def observed_runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Typed, tuple[str, ...]]]:
    """Start no Spark; give each pipeline that runs while it is observed, with its hops."""
    found: list[tuple[str, Typed, tuple[str, ...]]] = []
    watched: list[tuple[str, Typed]] = []

    @contextmanager
    def starting(place: Place, _: object, pipelines: Sequence[Pipeline]) -> Iterator[Run]:
        yield Run(cast(Any, None), pipelines[0], place.lake, place.environment, Progress(print))

    @contextmanager
    def observing(run: Run, _: object, typed: Typed) -> Iterator[Run]:
        watched.append((run.pipeline.name, typed))
        yield run
        watched.clear()

    def run_hops(run: Run, hops: Sequence[str], *_: object, **__: object) -> None:
        ((name, typed),) = watched
        assert name == run.pipeline.name
        found.append((name, typed, tuple(hops)))

    monkeypatch.setattr("tidelake.cli.flow.started", starting)
    monkeypatch.setattr("tidelake.ops.observers.observing", observing)
    monkeypatch.setattr("tidelake.runtime.runner.run_hops", run_hops)
    return found


def test_a_run_lets_its_alerts_name_commands_as_it_was_called(
    tmp_path: Path, observed_runs: list[tuple[str, Typed, tuple[str, ...]]]
) -> None:
    shop = Shop(tmp_path)
    root = str(tmp_path)
    assert run_command(app, ["run", str(shop.file), "--root", root, "--env", "local"]) == 0
    observed = [typed for _, typed, _ in observed_runs]
    assert observed == [Typed(root, "local", called=str(shop.file))]


def test_dimensions_are_observed_like_every_run(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    observed_runs: list[tuple[str, Typed, tuple[str, ...]]],
) -> None:
    root = str(tmp_path)
    land(tmp_path / "landing" / "products", "a.jsonl", [b"{}"])
    assert run_command(app, ["run", "clickstream", "--hop", "dimensions", "--root", root]) == 0
    # Commands of its alerts name the dimension.
    products = ("products", Typed(root), ("bronze", "silver", "gold"))
    assert observed_runs == [products]

    land(tmp_path / "landing" / "clickstream", "a.jsonl", [b"{}"])
    place = Place(load_environment("local", root=root), Typed(root))
    chosen = [load_pipeline(name, place.environment) for name in ("products", "clickstream")]
    run_pipelines(place, chosen, HOPS, parse_trigger("available-now"))
    assert observed_runs[1:] == [products, ("clickstream", place.typed, HOPS)]

    def refuse(_: object) -> None:
        raise UsageError("nothing serves metrics here")

    monkeypatch.setattr("tidelake.cli.flow.refuse_unready", refuse)
    assert run_command(app, ["run", "clickstream", "--hop", "dimensions", "--root", root]) == 2
    assert capsys.readouterr().err.endswith("tidelake: nothing serves metrics here\n")
    assert len(observed_runs) == 3


def test_several_pipelines_ask_their_source_only_for_bronze(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    observed_runs: list[tuple[str, Typed, tuple[str, ...]]],
) -> None:
    shop = Shop(tmp_path)
    (tmp_path / "landing" / "taken.json").unlink()
    (tmp_path / "landing").rmdir()
    place = Place(load_environment("local", root=str(tmp_path)), Typed())
    when = parse_trigger("available-now")
    both = [shop.pipeline, shop.pipeline.model_copy(update={"name": "other"})]
    assert exit_code_of(run_pipelines(place, both, ("silver",), when)) == 0
    ran = [("shop", ("silver",)), ("other", ("silver",))]
    assert [(name, hops) for name, _, hops in observed_runs] == ran
    assert exit_code_of(run_pipelines(place, both, HOPS, when)) == 2
    assert f"{tmp_path}/landing does not exist" in capsys.readouterr().err
    assert len(observed_runs) == 2


def test_what_is_loaded_before_a_run_is_left_out_of_its_garbage_collections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise each batch would end with a look at all of it."""
    spark = SimpleNamespace(stop=lambda: None)
    monkeypatch.setattr("tidelake.spark.session.build_session", lambda *_, **__: spark)
    monkeypatch.setattr("tidelake.cli.flow.stop_on_signal", lambda _: None)
    shop = Shop(tmp_path)
    environment = load_environment("local", root=str(shop.root))
    place = Place(environment, Typed(str(shop.root), "local", called=str(shop.file)))
    gc.unfreeze()
    with started(place):
        assert gc.get_freeze_count() > 10_000


def test_what_the_demo_made_is_told_to_machines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    books = SimpleNamespace(problems=(), to_json=lambda: {"balanced": True})
    answer = Answer(("user_id", "value"), (("u1", Decimal("2.50")),))
    ran: list[Place] = []
    monkeypatch.setattr(
        "tidelake.cli.trying.run_pipelines", lambda where, *_: ran.append(where) or []
    )
    monkeypatch.setattr("tidelake.cli.trying.tops_of", lambda *_: {"gold.x": answer})
    monkeypatch.setattr("tidelake.ledger.terms.read_ledger", lambda *_: books)
    root = str(tmp_path / "my lake")
    assert run_command(app, ["demo", "--events", "50", "--root", root, "--json"]) == 0
    # Silver reads each of bronze's four batches alone: nothing is late in a first batch.
    assert ran[0].environment.limits.silver_bytes == "16k"
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "ledger": {"balanced": True},
        "gold": {"gold.x": [{"user_id": "u1", "value": "2.50"}]},
    }
    assert f"tidelake ledger clickstream --root '{root}'\n" in captured.err


def test_a_demo_that_fails_ends_as_its_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = [Result("products", "failed", exit_code=3), Result("clickstream", "skipped")]
    monkeypatch.setattr("tidelake.cli.trying.run_pipelines", lambda *_: failed)
    assert run_command(app, ["demo", "--events", "50", "--root", str(tmp_path / "lake")]) == 3


def test_a_bad_trigger_says_which_are_good(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told = mistake(
        capsys,
        tmp_path,
        *["run", "clickstream", "--root", str(tmp_path / "lake"), "--trigger", "soon"],
    )

    assert "'soon' is not a trigger: write available-now, continuous or" in told


def test_a_scheduled_backfill_passes_its_range(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = PROJECT / "jobs" / "backfill.py"
    span = ["--start", "2026-01-06", "--end", "2026-01-05"]
    monkeypatch.setattr(sys, "argv", [str(job), "run", "clickstream", "--from", "silver", *span])

    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(job), run_name="__main__")

    assert ended.value.code == 2
    assert "--start and a later --end" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given", [["--start", "2026-01-05"], ["--start", "2026-01-05", "--end", "2026-01-05"]]
)
def test_a_range_of_a_backfill_has_two_ends_in_order(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, given: list[str]
) -> None:
    told = mistake(capsys, tmp_path, "backfill", "run", "clickstream", "--from", "silver", *given)
    assert "a range needs --start and a later --end" in told


def test_a_backfill_from_bronze_has_no_end(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told = mistake(capsys, tmp_path, "backfill", "run", "clickstream", "--end", "2026-01-05")
    assert "a backfill from bronze has no --end" in told


def test_sql_on_an_empty_root_says_how_to_fill_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told = mistake(
        capsys, tmp_path, "sql", "SELECT * FROM gold.x", "--root", str(tmp_path / "lake")
    )

    assert "there is no table gold.x" in told
    assert "tidelake demo" in told


@pytest.mark.parametrize(
    "command",
    [
        ["status", "clickstream"],
        ["ledger", "clickstream"],
        ["late", "list", "clickstream"],
        ["quarantine", "list", "clickstream"],
        ["erase", "clickstream", "--subject", "user_id=u1"],
        ["fate", "clickstream", "--event-id", "e1"],
    ],
    ids=" ".join,
)
def test_a_pipeline_that_never_ran_says_how_to_run_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    told = mistake(capsys, tmp_path, *command, "--root", str(tmp_path / "lake"))

    assert "tidelake run clickstream" in told


def test_a_result_goes_to_stdout_and_its_count_to_stderr(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run_command(app, ["sql", "SELECT 1 AS n, 2.50 AS v", "--root", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "n      v" in captured.out
    assert captured.err.startswith("1 row")

    arguments = ["sql", "SELECT 1 AS n, 2.50 AS v", "--json", "--root", str(tmp_path)]
    assert run_command(app, arguments) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ('[{"n": 1, "v": "2.50"}]\n', "")


def test_doctor_exits_4_when_something_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert run_command(app, ["doctor", "--root", str(tmp_path)]) == 4

    out = capsys.readouterr().out
    assert "!!" in out
    assert "install a JDK" in out


def test_an_interrupt_says_what_stays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tidelake.ledger.query.ask_for_user", interrupt)

    assert run_command(app, ["sql", "SELECT 1"]) == 130
    assert "the next run continues from there" in capsys.readouterr().err


def test_every_script_of_the_package_points_at_a_function() -> None:
    scripts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["scripts"]

    for target in scripts.values():
        module, name = target.split(":")
        assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_a_job_is_an_entry_point_without_logic(job: Path) -> None:
    tree = ast.parse(job.read_text(encoding="utf-8"))

    kinds = [type(node) for node in tree.body]
    assert kinds == [ast.Expr, ast.ImportFrom, ast.If]


@pytest.mark.parametrize("job", RUN_JOBS, ids=lambda job: job.stem)
def test_a_job_takes_the_arguments_of_run(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = ["clickstream", "--root", str(tmp_path), "--trigger", "soon"]
    monkeypatch.setattr(sys, "argv", [str(job), *arguments])

    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(job), run_name="__main__")

    assert ended.value.code == 2
    assert "'soon' is not a trigger" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["pyspark.sql", "numpy", "pyarrow"])
def test_a_command_without_the_packages_of_local_names_the_extra(missing: str) -> None:
    message, code = message_of(ModuleNotFoundError(name=missing))
    assert code == 4
    assert message.startswith(f"tidelake: {missing.partition('.')[0]} is not installed")
    assert message.endswith("pip install 'tidelake[local]'")


@pytest.mark.parametrize("error", [ModuleNotFoundError(name="shop"), ImportError(name="numpy")])
def test_another_failed_import_keeps_its_traceback(error: ImportError) -> None:
    with pytest.raises(ImportError):
        message_of(error)


def test_the_status_says_how_fast_each_hop_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A batch of the shop takes ten seconds and ten rows, of which eight reach gold."""
    shop = Shop(tmp_path).run(4)
    words = ["status", str(shop.file), "--root", str(shop.root)]
    assert run_command(app, [*words, "--json"]) == 0
    hops = {
        one["hop"]: one["rows_per_second"] for one in json.loads(capsys.readouterr().out)["hops"]
    }
    assert hops == {"bronze": 1.0, "silver": 1.0, "gold": 0.8}
    assert run_command(app, words) == 0
    shown = capsys.readouterr().out.splitlines()
    assert any(line.split()[:5] == ["gold", "g1", "3", "32", "0.8"] for line in shown)
