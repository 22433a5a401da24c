"""The prompt: keys in, answers out, and nothing that was typed by mistake ends it."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import write_deltalake
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from tests.unit.handmade import write_rows
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.cli.prompt import Catalogue, Conversation, answer_all, run_prompt
from tidelake.cli.render import format_answer
from tidelake.delta.tables import Lake
from tidelake.ledger.query import Answer

_TOTALS = "SELECT * FROM (VALUES ('u1', 1.50::DECIMAL(18,2)), ('u2', NULL)) AS t(user_id, total)"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("prompt") / "lake")
    with duckdb.connect() as connection:
        write_deltalake(str(lake.gold("totals").path), connection.sql(_TOTALS))
    return lake


class Heard:
    """A conversation, and all that it showed and said."""

    def __init__(self, lake: Lake, *, width: int = 80) -> None:
        self.shown: list[str] = []
        self.said: list[str] = []
        self.conversation = Conversation(
            Catalogue(lake), self.shown.append, self.said.append, lambda: width
        )

    def take(self, text: str) -> int:
        return answer_all(self.conversation, text)


def test_statements_are_answered_one_after_the_other(lake: Lake) -> None:
    heard = Heard(lake)

    assert heard.take("SELECT user_id FROM gold.totals ORDER BY 1; SELECT 7 AS n") == 0
    assert "u1" in heard.shown[0] and "u2" in heard.shown[0]
    assert "7" in heard.shown[1]
    assert heard.said == ["2 rows", "1 row"]


def test_a_mistake_is_told_and_the_next_statement_answered(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    heard = Heard(lake)

    assert heard.take("SELECT nope FROM gold.totals; SELECT 7; DROP TABLE gold.totals;") == 2
    assert "nope" in capsys.readouterr().err
    assert len(heard.shown) == 1


def test_an_interrupted_statement_leaves_the_prompt(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tidelake.ledger.query.ask_for_user", interrupt)

    assert Heard(lake).take("SELECT 1;") == 130
    assert "Interrupted." in capsys.readouterr().err


_ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b"


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Press Ctrl-C a moment after the first statement has begun."""
    pressed = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
    monkeypatch.setattr(
        "tidelake.ledger.query._create_views", lambda *_: pressed.ident or pressed.start()
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("options", [[], ["--to", "answer.csv"]])
def test_ctrl_c_cancels_a_statement(
    lake: Lake, empty_folder: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert run_command(app, ["sql", _ENDLESS, *options, "--root", str(lake.root)]) == 130
    assert capsys.readouterr().err.startswith("\nStopped.")
    assert list(empty_folder.iterdir()) == []


@pytest.mark.usefixtures("interrupted")
def test_ctrl_c_cancels_the_running_statement_and_the_next_is_answered(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    heard = Heard(lake)
    assert heard.take(f"{_ENDLESS}; SELECT 7 AS n;") == 130
    assert capsys.readouterr().err == "Interrupted.\n"
    assert "7" in heard.shown[0]


def test_commands_list_describe_and_help(lake: Lake) -> None:
    heard = Heard(lake)
    heard.take(".tables\n.describe gold.totals\n.help")

    assert "gold.totals" in heard.shown[0]
    assert "DECIMAL(18,2)" in heard.shown[1]
    assert ".output FILE [--overwrite]" in heard.shown[2]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (".nope", ".help lists them"),
        (".format xml", "is not a command"),
        (".describe gold.nope", "there is no table gold.nope"),
        (".output answers.txt", ".csv, .parquet, .json"),
        (".output a.csv --replace", "is not a command"),
        (".output it's.csv", "a quote is not closed"),
        (".output a.csv \\", "a backslash is last"),
    ],
)
def test_a_command_that_is_none_is_told(
    lake: Lake, command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Heard(lake).take(command) == 2
    assert words in capsys.readouterr().err


def test_formats_change_what_is_shown(lake: Lake) -> None:
    heard = Heard(lake)
    statement = "SELECT * FROM gold.totals ORDER BY user_id;\n"
    heard.take("".join(f".format {how}\n{statement}" for how in ("csv", "json", "vertical")))

    assert heard.shown == [
        "user_id,total\nu1,1.50\nu2,\n",
        '{"user_id": "u1", "total": "1.50"}\n{"user_id": "u2", "total": null}\n',
        "row 1\n  user_id  u1\n  total    1.50\nrow 2\n  user_id  u2\n  total    -\n",
    ]


def test_lists_structs_maps_and_booleans_are_json_in_every_format(lake: Lake) -> None:
    heard = Heard(lake)
    statement = (
        "SELECT true AS b, ['x,', NULL] AS l, {'a': false} AS s, MAP {1: 0.5::DOUBLE} AS m;\n"
    )
    heard.take("".join(f".format {how}\n{statement}" for how in ("csv", "vertical")))

    assert heard.shown == [
        'b,l,s,m\ntrue,"[""x,"", null]","{""a"": false}","{""1"": 0.5}"\n',
        'row 1\n  b  yes\n  l  ["x,", null]\n  s  {"a": false}\n  m  {"1": 0.5}\n',
    ]


def test_the_next_answer_goes_to_a_file_and_the_one_after_does_not(
    lake: Lake, tmp_path: Path
) -> None:
    heard = Heard(lake)
    file = tmp_path / "answer.csv"
    heard.take(f".output {file}\nSELECT user_id FROM gold.totals ORDER BY 1; SELECT 7 AS n;")

    assert file.read_text() == "user_id\nu1\nu2\n"
    assert len(heard.shown) == 1
    assert heard.said[1] == f"2 rows in {file}"


def test_a_file_with_blanks_in_its_name_is_replaced_if_it_is_told(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heard = Heard(lake)
    file = tmp_path / "it's my answer.csv"
    file.write_text("mine")

    assert heard.take(f'.output "{file}"') == 2
    assert "already exists. Replace it with --overwrite." in capsys.readouterr().err
    assert heard.take(f'.output "{file}" --overwrite\nSELECT 7 AS n;') == 0
    assert file.read_text() == "n\n7\n"


def test_consistent_reading_is_switched_on_and_off(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    stamp = {"generation": "g1", "batch": 0, "hop": "gold", "pipeline": "shop"}
    for _ in range(2):
        write_rows(lake.gold("totals"), "SELECT 1 AS events", note=stamp)
    epoch = (
        "SELECT 'shop' AS pipeline, 1::BIGINT AS epoch, TIMESTAMPTZ '2024-01-01 12:00:00Z' AS "
        "closed_at, MAP {'gold.totals': 0::BIGINT} AS versions"
    )
    write_rows(lake.epochs(), epoch, note=stamp)
    heard = Heard(lake)
    count = "SELECT sum(events) AS n FROM gold.totals;\n"
    heard.take(f".format csv\n.consistent on\n{count}.consistent off\n{count}")

    assert heard.shown == ["n\n1\n", "n\n2\n"]
    assert any(said.startswith("Read in epoch 1 of shop") for said in heard.said)


def test_a_wide_answer_is_cut_to_the_width_and_says_so(lake: Lake) -> None:
    wide = Answer(tuple(f"column_{n}" for n in range(30)), (tuple(range(30)),))
    text, was_cut = format_answer(wide, "table", 80)
    assert was_cut
    assert max(len(line) for line in text.splitlines()) <= 80
    narrow, was_cut = format_answer(Answer(("a",), (("x" * 200,),)), "table", 80)
    assert was_cut and "…" in narrow
    assert not format_answer(Answer(("a", "b"), ((1, "x"),)), "table", 80)[1]

    heard = Heard(lake, width=40)
    heard.take(f"SELECT '{'x' * 100}' AS a, 2 AS b;")
    assert heard.said[-1].endswith(".format vertical")


@pytest.fixture
def typed(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Give a terminal at which keys are pressed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def press(keys: str) -> None:
        output = DummyOutput()
        with create_pipe_input() as pipe, create_app_session(input=pipe, output=output):
            pipe.send_text(keys)
            run_prompt(lake, consistent=False, input=pipe, output=output)

    return press


def test_keys_make_a_statement_of_several_lines_and_ctrl_d_ends(
    typed: Callable[[str], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    typed("SELECT user_id\rFROM gold.totals\rORDER BY 1 LIMIT 1;\r\x04")

    captured = capsys.readouterr()
    assert "u1" in captured.out
    assert "1 row" in captured.err
    history = tmp_path / "state" / "tidelake" / "sql_history"
    assert "FROM gold.totals" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_ctrl_c_clears_the_line_and_an_error_stays_in_the_prompt(
    typed: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("SELECT 1111\x03SELECT nope;\rSELECT 42 AS n;\r.exit\r")

    captured = capsys.readouterr()
    assert "1111" not in captured.out
    assert "nope" in captured.err
    assert "42" in captured.out


def test_what_is_piped_is_answered_and_gives_the_code_of_its_first_mistake(
    lake: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = "\ufeffSELECT 1 AS n; SELECT nope; SELECT 2 AS n"
    monkeypatch.setattr("sys.stdin", io.StringIO(piped))
    assert run_command(app, ["sql", "--json", "--root", str(lake.root)]) == 2

    captured = capsys.readouterr()
    assert captured.out == '{"n": 1}\n{"n": 2}\n'
    assert "nope" in captured.err


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_byte_that_is_not_utf_8_fails_its_own_statement(
    lake: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, errors: str
) -> None:
    piped = io.BytesIO(b"SELECT 1 AS n; SELECT 'caf\xe9'; .output ~nobody-here/a\n SELECT 2 AS n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(piped, "utf-8", errors))
    assert run_command(app, ["sql", "--json", "--root", str(lake.root)]) == 2

    captured = capsys.readouterr()
    assert captured.out == '{"n": 1}\n{"n": 2}\n'
    assert "character 12 is a byte that is not UTF-8" in captured.err
    assert "~nobody-here/a begins with ~" in captured.err
