"""What people are told to type next can be typed where they are, by the words that they used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.shops import Shop
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config.locations import only_pipeline
from tidelake.errors import UsageError
from tidelake.typed import Typed, completing, first_command, runnable

LIBRARY = Path(__file__).parents[2] / "lib" / "tidelake"
# Their commands are completed where they are printed: in the page's templates.
OTHERS = {"facts.py", "typed.py"}


@pytest.fixture
def own_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a conf of its own, empty yet."""
    folder = tmp_path / "conf" / "pipelines"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_command_carries_the_options_quoted_for_a_shell() -> None:
    assert Typed()("tidelake run shop") == "tidelake run shop"
    typed = Typed(root="/data/my lake; rm -rf x", env="dev")
    assert typed("tidelake run shop") == (
        "tidelake run shop --root '/data/my lake; rm -rf x' --env dev"
    )
    assert Typed(root="", env="")("tidelake demo") == "tidelake demo"


def test_a_pipeline_goes_by_what_it_was_called_by() -> None:
    assert Typed()("tidelake repair", "shop", "--hop gold") == "tidelake repair shop --hop gold"
    typed = Typed(env="dev", called="my pipes/store.yml")
    assert typed("tidelake repair", "shop", "--hop gold") == (
        "tidelake repair 'my pipes/store.yml' --hop gold --env dev"
    )


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["late", "list"], ["late apply {}"]),
        (["quarantine", "list"], ["quarantine replay {} --dry-run"]),
        (["ledger"], ["late list {}"]),
        (["backfill", "plan"], ["backfill run {}"]),
    ],
    ids=" ".join,
)
def test_a_command_names_others_with_its_own_options_and_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], named: list[str]
) -> None:
    shop = Shop(tmp_path).run(2)
    assert run_command(app, [*command, str(shop.file), "--root", str(tmp_path)]) == 0

    captured = capsys.readouterr()
    # A cell of a table is broken where it ends.
    told = re.sub(r"\s+", "", captured.out + captured.err)
    for one in named:
        expected = f"tidelake {one.format(shop.file)} --root {tmp_path}"
        assert expected.replace(" ", "") in told


def test_no_message_names_a_command_without_the_options() -> None:
    bare = re.compile(r"(?<!runnable\(f.)tidelake [a-z]+ ?[a-z]* \{")
    found = [
        file.name
        for file in LIBRARY.rglob("*.py")
        if file.name not in OTHERS and bare.search(file.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["ledger"], "Fill them with: tidelake run {}"),
        (["backfill", "rollback", "--dry-run"], "Begin one with: tidelake backfill run {}"),
        (["sql", "SELECT * FROM gold.x"], "fill them with: tidelake "),
        (["fate", "--event-id", "x"], "Fill them with: tidelake run {}"),
    ],
    ids=lambda one: one if isinstance(one, str) else " ".join(one),
)
def test_messages_of_all_rooms_carry_the_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], named: str
) -> None:
    file = Shop(tmp_path / "other").file
    root = tmp_path / "lake"
    words = command if command[0] == "sql" else [*command, str(file)]
    assert run_command(app, [*words, "--root", str(root), "--env", "local"]) == 2
    told = capsys.readouterr().err
    suggested = next(line for line in told.splitlines() if named.format(file) in line)
    assert suggested.endswith(f" --root {root} --env local")
    # The next command of the process has other options.
    assert runnable("tidelake run", "shop") == "tidelake run shop"


def test_a_pipeline_and_its_dimensions_go_by_the_paths_of_their_files(tmp_path: Path) -> None:
    with completing(Typed(root="/lake", paths={"shop": "my pipes/shop.yml"})):
        assert runnable("tidelake run", "shop", "--hop gold") == (
            "tidelake run 'my pipes/shop.yml' --hop gold --root /lake"
        )
        assert runnable("tidelake run", "other") == "tidelake run other --root /lake"


def test_a_pipeline_is_taken_without_a_name_only_if_it_is_the_only_one(own_conf: Path) -> None:
    with pytest.raises(UsageError, match=r"name a pipeline \(known in .*: none\)"):
        only_pipeline()
    (own_conf / "store.yml").touch()
    assert (only_pipeline(), first_command()) == ("store", "tidelake run store")
    (own_conf / "clickstream.yml").touch()
    with pytest.raises(UsageError, match=r"name a pipeline \(known in .*: clickstream, store\)"):
        only_pipeline()
    assert first_command() == "tidelake demo"


def test_a_command_without_a_pipeline_takes_the_only_one(
    own_conf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path / "lake").run(2)
    (own_conf / "shop.yml").write_bytes(shop.file.read_bytes())
    assert run_command(app, ["status", "--root", str(shop.root)]) == 0
    assert "shop: watermark" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["serve"], ["sql", "SELECT * FROM gold.x"]], ids=" ".join)
def test_an_empty_root_is_filled_by_what_can_be_run_there(
    own_conf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    (own_conf / "store.yml").touch()
    assert run_command(app, [*command, "--root", str(tmp_path / "lake")]) == 2
    told = capsys.readouterr().err
    assert "tidelake run store" in told
    assert "demo" not in told
