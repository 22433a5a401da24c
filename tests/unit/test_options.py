"""Options that commands share: which pipeline, what a dry run is, when a command asks."""

from __future__ import annotations

import io
import json
import logging
import shlex
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import click
import pytest

from tests.shops import Shop
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.cli.flow import stop_on_signal
from tidelake.cli.options import confirm
from tidelake.delta.commit_metadata import pipeline_hash
from tidelake.errors import RefusedError, UsageError
from tidelake.replay import backfill, repairing
from tidelake.replay.backfill_state import State, read_state, write_state
from tidelake.runtime.hop import Run

# Commands that change more than new batches, with the options that they need.
CHANGING = {
    "backfill promote": [],
    "backfill rollback": [],
    "backfill run": [],
    "erase": ["--subject", "user_id=u1"],
    "late apply": [],
    "maintain": [],
    "quarantine discard": ["--reason", "broken"],
    "quarantine replay": [],
    "repair": ["--hop", "silver"],
    "reset": ["--hop", "silver"],
}
ASKING = ("erase", "quarantine discard", "reset")
# Commands that read, start a service, or write new batches, files of their own or a definition.
OTHERS = {
    *("alerts", "backfill compare", "backfill plan", "check", "demo", "dictionary", "doctor"),
    *("fast reconcile", "fast run", "fate", "generate", "init", "new", "kafka down", "kafka up"),
    *("late list", "ledger", "list", "quarantine list", "run", "serve", "sql", "status", "ui"),
    *("fmt", "schema", "validate", "verify"),
}


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _commands(group: click.Group, words: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, f"{name} ")
        else:
            yield words + name, command


def _options_of(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def test_each_command_that_changes_tables_has_a_dry_run_and_json() -> None:
    known = dict(_commands(app))
    assert known.keys() == CHANGING.keys() | OTHERS

    for name in CHANGING:
        assert {"pipeline", "--dry-run", "--json"} <= _options_of(known[name]), name
    asking = {name for name, command in known.items() if "--yes" in _options_of(command)}
    # These two ask in some cases only. The questions of init and new are about their guesses.
    assert asking == {*ASKING, "backfill run", "repair", "init", "new"}
    dry = {name for name, command in known.items() if "--dry-run" in _options_of(command)}
    assert dry == {*CHANGING, "generate", "init", "new", "run"}
    # Services print nothing on stdout, and a schema is JSON.
    without = {name for name, command in known.items() if "--json" not in _options_of(command)}
    assert without == {"fast run", "schema", "serve", "ui"}


@pytest.mark.parametrize("command", CHANGING)
def test_no_pipeline_is_changed_without_its_name(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "conf" / "pipelines"
    folder.mkdir(parents=True)
    (folder / "shop.yml").touch()
    monkeypatch.chdir(tmp_path)

    assert run_command(app, [*command.split(), *CHANGING[command], "--root", str(tmp_path)]) == 2

    told = capsys.readouterr().err
    assert "name the pipeline that this command changes" in told
    assert told.strip().endswith("conf/pipelines: shop)")


def test_what_cannot_be_undone_is_asked_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", _Terminal("n\n"))
    with pytest.raises(RefusedError, match=r"^Nothing was changed\.$"):
        confirm("Erasing a subject", yes=False)
    captured = capsys.readouterr()
    # A question is a message: a result may be piped.
    assert (captured.out, "Erasing a subject cannot be undone. Continue?" in captured.err) == (
        "",
        True,
    )

    monkeypatch.setattr("sys.stdin", _Terminal("y\n"))
    confirm("Erasing a subject", yes=False)


def test_without_a_terminal_the_answer_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError, match=r"no terminal to ask at.*--dry-run, then add --yes"):
        confirm("Erasing a subject", yes=False)
    confirm("Erasing a subject", yes=True)


@pytest.mark.parametrize(
    "words",
    [
        ("erase", "--subject", "user_id=Zo\udceb"),
        ("quarantine discard", "--reason", "Zo\udceb"),
        ("quarantine replay", "--rule", "Zo\udceb"),
    ],
)
def test_a_text_for_rows_that_is_not_utf_8_is_refused_before_spark_starts(
    words: tuple[str, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop, (command, *option) = Shop(tmp_path).run(2), words

    assert run_command(app, [*command.split(), str(shop.file), *option, "--root", str(shop.root)])

    told = capsys.readouterr().err
    assert f"'{option[0]}': character {option[1].index(chr(0xDCEB)) + 1} is a byte" in told


def test_a_certificate_that_cannot_be_written_is_told_before_tables_are_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path).run(2)
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "proof.json"

    words = ["verify", str(shop.file), "--certificate", str(below), "--root", str(shop.root)]
    assert run_command(app, words) == 2

    assert f"{below} cannot be written: File exists" in capsys.readouterr().err


@pytest.mark.parametrize("command", ASKING)
def test_a_command_asks_before_spark_starts(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shop = Shop(tmp_path).run(2)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    words = [*command.split(), str(shop.file), *CHANGING[command], "--root", str(shop.root)]

    assert run_command(app, words) == 2

    assert "cannot be undone" in capsys.readouterr().err


def test_nothing_is_asked_where_there_is_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ASKING:
        words = [*command.split(), "clickstream", *CHANGING[command]]
        assert run_command(app, [*words, "--root", str(tmp_path)]) == 2
        told = capsys.readouterr().err
        assert "tidelake run clickstream" in told
        assert "undone" not in told


def test_a_repair_asks_before_it_rebuilds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop, rebuilt = Shop(tmp_path).run(2), list[Run]()
    run = Run(cast(Any, None), shop.pipeline, shop.lake, cast(Any, None), cast(Any, None))
    monkeypatch.setattr("tidelake.cli.rebuilding.started", lambda where: nullcontext(run))
    monkeypatch.setattr(repairing, "why_rebuilt", lambda *_: "silver.shop was rewritten")
    monkeypatch.setattr(repairing, "rebuild_gold", lambda run: rebuilt.append(run) or "g2")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    words = ["repair", str(shop.file), "--hop", "gold", "--root", str(shop.root)]

    assert run_command(app, words) == 2
    told = capsys.readouterr().err
    assert "Rebuilding gold of shop (silver.shop was rewritten) cannot be undone" in told
    assert rebuilt == []

    assert run_command(app, [*words, "--yes"]) == 0
    assert "Rebuilt gold of shop as generation g2" in capsys.readouterr().err
    assert len(rebuilt) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_question_of_a_repair_and_nothing_is_rebuilt(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    shop, stop, noting = Shop(tmp_path).run(2), threading.Event(), list[object]()
    run = Run(cast(Any, None), shop.pipeline, shop.lake, cast(Any, None), cast(Any, None))

    @contextmanager
    def started(_: object) -> Iterator[Run]:
        stop_on_signal(stop)
        noting.append(signal.getsignal(number))
        yield run

    def answer(_: str) -> str:
        signal.raise_signal(number)
        return "y"

    def ended(*_: object) -> NoReturn:
        pytest.fail("gold is rebuilt")

    monkeypatch.setattr("tidelake.cli.rebuilding.started", started)
    monkeypatch.setattr(repairing, "why_rebuilt", lambda *_: "silver.shop was rewritten")
    monkeypatch.setattr(repairing, "rebuild_gold", ended)
    monkeypatch.setattr("sys.stdin", _Terminal())
    monkeypatch.setattr("click.termui.visible_prompt_func", answer)
    words = ["repair", str(shop.file), "--hop", "gold", "--root", str(shop.root)]
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert run_command(app, words) == 3
        # Afterwards a signal is noted again.
        assert signal.getsignal(number) == noting[0]
    finally:
        logging.disable(logging.NOTSET)
        for one, handler in before.items():
            signal.signal(one, handler)

    assert capsys.readouterr().err.endswith("Stopping …\ntidelake: Nothing was changed.\n")
    assert stop.is_set()


def test_a_command_in_a_thread_leaves_signals_to_its_host() -> None:
    """Python takes handlers from the main thread only."""
    before = signal.getsignal(signal.SIGTERM)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(stop_on_signal, threading.Event()).result()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_backfill_asks_before_it_gives_up_a_rollback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path).run(2)
    monkeypatch.setattr("tidelake.cli.rebuilding.started", lambda where: nullcontext())
    monkeypatch.setattr(backfill, "build", lambda *_, **__: State("silver", "", stage="built"))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    words = ["backfill", "run", str(shop.file), "--from", "silver", "--root", str(shop.root)]

    for stage, code in (("built", 0), ("promoted", 2), ("rolled back", 0)):
        write_state(shop.lake, shop.pipeline, State("silver", "", stage=stage))
        assert run_command(app, words) == code
        told = capsys.readouterr().err
        question = "Giving up the rollback of shop's promoted backfill cannot be undone"
        assert (question in told) == (code == 2)

    write_state(shop.lake, shop.pipeline, State("silver", "", stage="promoted"))
    assert run_command(app, [*words, "--dry-run"]) == 0
    assert "is promoted; a new one gives up its rollback." in capsys.readouterr().err
    assert run_command(app, [*words, "--yes"]) == 0


def test_a_dry_run_of_a_reset_is_that_of_a_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tidelake.cli.rebuilding.started", None)
    shop = Shop(tmp_path).run(2)
    words = ["reset", str(shop.file), "--hop", "gold", "--root", str(shop.root), "--dry-run"]
    assert run_command(app, words) == 0
    captured = capsys.readouterr()
    assert "Reset of shop from gold on" in captured.out
    assert "would be replaced at once. Nothing was changed." in captured.err

    assert run_command(app, [*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["dry_run"], [step["hop"] for step in found["steps"]]) == (True, ["gold"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["clickstream", "--trigger", "bogus"], "'bogus' is not a trigger"),
        (["clickstream", "payments", "--source", "x"], "take one pipeline, not several"),
        (["--all", "--trigger", "continuous"], "omit --trigger"),
        (["clickstream", "--hop", "dimensions", "--source", "x"], "Leave it out"),
    ],
)
def test_a_dry_run_refuses_what_the_run_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert run_command(app, ["run", *words, "--dry-run", "--root", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err


def test_a_topic_that_was_not_read_waits_in_unknown_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path).run(2)
    words = ["run", str(shop.file), "--root", str(shop.root), "--dry-run", "--json"]
    assert run_command(app, [*words, "--source", "kafka://127.0.0.1:1/other"]) == 0
    waiting = {one["hop"]: one["waiting"] for one in json.loads(capsys.readouterr().out)["waiting"]}
    assert waiting == {"bronze": None, "silver": 0, "gold": 0}


def test_a_dry_run_of_a_run_counts_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tidelake.cli.flow.started", None)
    shop = Shop(tmp_path).run(2)
    words = ["run", str(shop.file), "--root", str(shop.root), "--dry-run"]
    shop.land("new.jsonl")
    assert run_command(app, [*words, "--json"]) == 0
    waiting = json.loads(capsys.readouterr().out)["waiting"]
    assert [(one["hop"], one["waiting"]) for one in waiting] == [
        ("bronze", 1),
        ("silver", 0),
        ("gold", 0),
    ]

    assert run_command(app, [*words, "--hop", "silver"]) == 0
    captured = capsys.readouterr()
    assert ("silver" in captured.out, "bronze" in captured.out) == (True, False)
    assert "Nothing was run." in captured.err


def test_a_dry_run_of_a_first_run_counts_the_files_of_the_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path)
    shop.land("a.jsonl")
    files = len([*shop.root.glob("landing/*")])
    words = ["run", str(shop.file), "--root", str(shop.root), "--dry-run", "--json"]
    assert run_command(app, words) == 0
    waiting = {one["hop"]: one["waiting"] for one in json.loads(capsys.readouterr().out)["waiting"]}
    assert waiting == {"bronze": files, "silver": 0, "gold": 0}
    assert not shop.lake.existing()


def test_a_status_is_shown_anew_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path).run(1)
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    # Not `time.sleep` itself: a thread that another test left would take part, and this never end.
    monkeypatch.setattr("tidelake.cli.reports.time", SimpleNamespace(sleep=sleep))
    words = ["status", str(shop.file), "--root", str(shop.root), "--watch"]
    assert run_command(app, words) == 0
    assert capsys.readouterr().out.count("shop: watermark") == 3

    assert run_command(app, [*words, "--json"]) == 2


def test_a_dry_run_of_a_swap_names_the_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tidelake.cli.rebuilding.started", None)
    shop = Shop(tmp_path).run(2)

    def dry_run(step: str) -> dict[str, object]:
        words = ["backfill", step, str(shop.file), "--root", str(shop.root), "--dry-run", "--json"]
        assert run_command(app, words) == 0
        found: dict[str, object] = json.loads(capsys.readouterr().out)
        return found

    built = State("silver", pipeline_hash(shop.pipeline), stage="built")
    write_state(shop.lake, shop.pipeline, built)
    replaced = dry_run("promote")["tables"]
    assert replaced == {f"gold.{name}": 1 for name in ("takings_1m", "totals", "visits")}
    assert read_state(shop.lake, shop.pipeline) == built

    promoted = replace(built, stage="promoted", before={"gold.totals": 0})
    write_state(shop.lake, shop.pipeline, promoted)
    found = dry_run("rollback")
    assert found["tables"] == {"gold.totals": 0}
    # They were added by the promotion, or since.
    assert found["emptied"] == ["gold.takings_1m", "gold.visits"]
    # Gold had not consumed all of silver, whose tables the promotion made.
    whole = replace(promoted, start="bronze", gold_followed=False)
    write_state(shop.lake, shop.pipeline, whole)
    found = dry_run("rollback")
    assert found["tables"] == dict.fromkeys(shop.pipeline.gold_names)
    assert found["emptied"] == ["silver.shop", "silver.shop__quarantine", "silver.shop__late"]
    assert read_state(shop.lake, shop.pipeline) == whole


def test_a_gold_table_that_waits_to_be_filled_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tidelake.cli.flow.started", None)
    shop = Shop(tmp_path).run(2)
    place = [str(shop.file), "--root", str(shop.root)]
    assert run_command(app, ["run", *place, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["to_fill"] == []
    shutil.rmtree(shop.root / "gold" / "visits")

    assert run_command(app, ["run", *place, "--dry-run"]) == 0
    assert (
        "gold.visits is not filled yet: it is filled from silver first." in capsys.readouterr().err
    )
    assert run_command(app, ["run", *place, "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # What waits for a batch is what the others have not read.
    assert (found["to_fill"], found["waiting"][-1]["waiting"]) == (["gold.visits"], 0)
    assert run_command(app, ["run", *place, "--hop", "silver", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["to_fill"] == []

    assert run_command(app, ["status", *place]) == 0
    told = capsys.readouterr().out
    assert "gold.visits is not filled yet: the next run of hop gold fills it from silver" in told
    assert run_command(app, ["status", *place, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["to_fill"] == ["gold.visits"]
    assert document["hops"][-1]["batch"] >= 0


def test_a_list_names_tables_that_wait_to_be_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path).run(2)
    shutil.rmtree(shop.root / "gold" / "visits")
    (tmp_path / "conf" / "pipelines").mkdir(parents=True)
    shop.file.rename(tmp_path / "conf" / "pipelines" / "shop.yml")
    monkeypatch.chdir(tmp_path)
    words = ["list", "--root", str(shop.root)]
    assert run_command(app, words) == 0
    assert "gold.visits is not filled yet: the next run of shop fills it" in capsys.readouterr().err
    assert run_command(app, [*words, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["pipelines"]
    assert one["to_fill"] == ["gold.visits"]
    assert one["runs"]["gold"] is not None


def test_a_backfill_of_one_table_is_judged_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tidelake.cli.rebuilding.started", None)
    shop = Shop(tmp_path).run(2)
    place = [str(shop.file), "--root", str(shop.root)]

    def told(*words: str) -> str:
        assert run_command(app, ["backfill", "run", *place, *words]) == 2
        return capsys.readouterr().err

    assert "has no gold table sales. Its tables are: gold.takings_1m" in told("--table", "sales")
    assert "leave out --from bronze" in told("--table", "visits", "--from", "bronze")
    span = ["--start", "2026-01-05", "--end", "2026-01-06"]
    assert "leave out --start" in told("--table", "visits", *span)
    for name in ("visits", "gold.visits"):
        assert run_command(app, ["backfill", "plan", *place, "--table", name, "--json"]) == 0
        (step,) = json.loads(capsys.readouterr().out)
        assert (step["hop"], step["fills"]) == ("gold", ["gold.visits"])
    # What it suggests is what was asked for.
    since = ["--start", "2026-01-05T00:00:00+00:00"]
    for words in (
        ["--table", "gold.visits"],
        ["--from", "silver"],
        ["--from", "silver", *since, "--end", "2026-01-06T00:00:00+00:00"],
        since,
    ):
        assert run_command(app, ["backfill", "run", *place, *words, "--dry-run"]) == 0
        command = capsys.readouterr().err.partition("Start with: ")[2]
        assert shlex.split(command)[3:] == [str(shop.file), *words, "--root", str(shop.root)]
    built = State("silver", pipeline_hash(shop.pipeline), stage="built", table="gold.visits")
    write_state(shop.lake, shop.pipeline, built)
    assert run_command(app, ["backfill", "promote", *place, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"] == {"gold.visits": 1}

    shutil.rmtree(shop.root / "gold" / "visits")
    assert "gold.visits is not filled yet. Fill it with: tidelake run" in told("--table", "visits")
