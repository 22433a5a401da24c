"""Every claim has a command: in the README's table of guarantees, or on the page of proofs.

In each run the commands are compared with the command line, the test files and the Makefile. The
long tests type those of the README, and damage a demo's tables to see that its commands notice.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from tests.shops import Shop
from tests.streaming.test_walkthroughs import unlike
from tests.typed import blocks_of, problem_of, prose_of
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.delta.tables import Lake

PROJECT = Path(__file__).parents[2]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
PROOFS = (PROJECT / "docs" / "proofs.md").read_text(encoding="utf-8")
INDEX = (PROJECT / "docs" / "index.md").read_text(encoding="utf-8")
MAKEFILE = (PROJECT / "Makefile").read_text(encoding="utf-8")
_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")
_LONG = "pytest.mark.long"
_SECONDS = 600


@dataclass(frozen=True)
class Claim:
    """A row of a table whose last column is the proof.

    Attributes:
        text: What is claimed, as Markdown.
        commands: What proves it.
    """

    text: str
    commands: tuple[str, ...]


def claims_in(text: str) -> list[Claim]:
    """List the rows of a document's tables that have a column of proofs."""
    found: list[Claim] = []
    inside = False
    for line in prose_of(text):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[-1] == "proof":
            inside = True
        elif inside and set(line) - set("|-"):
            found.append(Claim(cells[0], tuple(_CODE.findall(cells[-1]))))
    return found


GUARANTEES, OTHERS = claims_in(README), claims_in(PROOFS)
WALKED = [command for claim in GUARANTEES for command in claim.commands]
# The only commands of the README's table that are not typed, each with its reason.
NOT_TYPED = {"make recovery": "hours; the long tests are what it runs"}

_PYTEST = ArgumentParser(prog="pytest", add_help=False, exit_on_error=False)
_PYTEST.add_argument("files", nargs="+")
_PYTEST.add_argument("-k", dest="words", default="")
_PYTEST.add_argument("-m", dest="marks", choices=[""])


def problem_with(command: str) -> str:
    """Say why a command could not be typed, or would prove nothing; empty if it would do."""
    tool, *words = shlex.split(command)
    if tool == "tidelake":
        return problem_of(command)
    if tool == "make":
        return _problem_with_make(*words)
    if tool == "pytest":
        return _problem_with_tests(words)
    return f"{tool} is none of tidelake, pytest and make"


def _problem_with_make(target: str, *variables: str) -> str:
    if not re.search(rf"^\.PHONY:.*\b{target}\b", MAKEFILE, re.MULTILINE):
        return f"the Makefile has no target {target}"
    names = [variable.partition("=")[0] for variable in variables]
    lost = [name for name in names if not re.search(rf"^{name} \?=", MAKEFILE, re.MULTILINE)]
    return f"the Makefile has no variable {', '.join(lost)}" if lost else ""


def _problem_with_tests(words: list[str]) -> str:
    options, rest = _PYTEST.parse_known_args(words)
    if rest:
        return f"pytest is given {' '.join(rest)}"
    lost = [name for name in options.files if not (PROJECT / name).is_file()]
    if lost:
        return f"there is no file {', '.join(lost)}"
    for part in filter(None, options.words.split(" or ")):
        if any(part in Path(name).name for name in options.files):
            # pytest compares the file's name, too, and would run all of it.
            return f"{part} is part of a file's name"
        if not chosen_by(options.files, [part]):
            return f"no test has {part} in its name"
    chosen = chosen_by(options.files, options.words.split(" or "))
    # Who names tests wants each of them; of a file without names, the long ones are variants.
    is_left_out = any(chosen.values()) if options.words else all(chosen.values())
    return 'left out as long: add -m ""' if is_left_out and options.marks is None else ""


def chosen_by(files: Sequence[str], parts: Sequence[str]) -> dict[str, bool]:
    """Name the tests of some files that have one of some parts in their names; tell which are long.

    An empty part is in each name.
    """
    found = {
        name: is_long for file in files for name, is_long in functions_of(PROJECT / file).items()
    }
    return {name: found[name] for name in found if any(part in name for part in parts)}


def functions_of(file: Path) -> dict[str, bool]:
    """Name the tests of a file, and tell of each whether it is long."""
    nodes = ast.parse(file.read_text(encoding="utf-8")).body
    marks = [
        ast.unparse(node.value)
        for node in nodes
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    return {
        node.name: _LONG in " ".join(marks) or _LONG in map(ast.unparse, node.decorator_list)
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


@pytest.mark.parametrize("claim", [*GUARANTEES, *OTHERS], ids=lambda claim: claim.text[:60])
def test_each_claim_has_a_command_that_can_be_typed(claim: Claim) -> None:
    assert claim.commands
    assert [problem for one in claim.commands if (problem := problem_with(one))] == []


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("tidelake ledger clickstream --days", "ledger has no option --days"),
        ("tidelake proof", "there is no command proof"),
        ("tox -e py", "tox is none of tidelake, pytest and make"),
        ("make recover KILLS=1", "the Makefile has no target recover"),
        ("make recovery DEATHS=1", "the Makefile has no variable DEATHS"),
        ("pytest tests/unit/test_gone.py", "there is no file tests/unit/test_gone.py"),
        ("pytest tests/unit/test_values.py -k nothing_like_it", "no test has nothing_like_it"),
        ("pytest tests/unit/test_values.py -k values", "values is part of a file's name"),
        ("pytest tests/unit/test_values.py --slow", "pytest is given --slow"),
        ("pytest tests/streaming/test_maintain.py", "left out as long"),
        ('pytest tests/recovery/test_erase.py -k "her_rows or cut_off"', "left out as long"),
    ],
)
def test_a_command_that_proves_nothing_is_found(command: str, problem: str) -> None:
    assert problem_with(command).startswith(problem)


def test_each_claim_of_the_page_of_proofs_stands_in_the_readme_or_on_the_first_page() -> None:
    # Links are not part of what is claimed.
    pages = [_LINK.sub(lambda link: link[1], page) for page in (README, INDEX)]
    assert [one.text for one in OTHERS if not any(one.text in page for page in pages)] == []


@pytest.mark.parametrize("claim", GUARANTEES, ids=lambda claim: claim.text[:60])
def test_each_guarantee_has_a_test_that_each_change_runs(claim: Claim) -> None:
    calls = [shlex.split(one)[1:] for one in claim.commands if one.startswith("pytest ")]
    options = [_PYTEST.parse_args(words) for words in calls]
    chosen = [chosen_by(one.files, one.words.split(" or ")) for one in options]
    assert not all(is_long for found in chosen for is_long in found.values())


def test_the_tables_were_found() -> None:
    assert len(GUARANTEES) >= 18
    assert len(OTHERS) >= 21
    assert all(any(one.startswith(pattern) for one in WALKED) for pattern in NOT_TYPED)


def shown_after(words: str) -> list[str]:
    """Give the lines of the README's first block of text that holds some words."""
    blocks = (block.lines for block in blocks_of(README) if block.language == "text")
    return next([*lines] for lines in blocks if words in "\n".join(lines))


@pytest.mark.usefixtures("empty_folder")
def test_the_errors_that_are_shown_are_those_of_a_run_and_spark_is_not_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tidelake.spark.session.build_session", None)
    Path("my_pipeline.yml").write_text(
        "name: my_pipeline\n"
        "source: {kind: files, path: landing}\n"
        "event:\n"
        '  schema: "event_id STRING, user_id STRING, event_time TIMESTAMP"\n'
        "  id: event_id\n"
        "  time: event_time\n"
        "gold:\n"
        "  - name: by_minute\n"
        "    window:\n"
        "      kind: tumbling\n"
        "      size: 1 minuet\n"
        "    keys: [user]\n"
        '    measures: {events: {count: "*"}}\n'
    )
    assert run_command(app, ["run", "my_pipeline.yml"]) == 2
    printed = capsys.readouterr().err
    assert " ".join(shown_after("minuet")).split() == printed.split()


def test_oracles_import_nothing_of_the_package() -> None:
    """Not through another helper of the tests, either."""
    files = sorted((PROJECT / "tests" / "oracles").glob("*.py"))
    imported = {name for file in files for name in _imported_by(file)}
    assert len(files) > 5
    assert {name for name in imported if name.split(".")[0] == "tidelake"} == set()
    of_tests = {name for name in imported if name.split(".")[0] == "tests"}
    assert {name for name in of_tests if not name.startswith("tests.oracles")} == set()


def _imported_by(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_reading_commands_run_without_java(tmp_path: Path) -> None:
    shop = Shop(tmp_path).run(2)
    place = [str(shop.file), "--root", str(tmp_path)]
    commands = [
        ["sql", "SELECT sum(events) AS n FROM gold.totals", "--json", "--root", str(tmp_path)],
        *[[name, *place] for name in ("ledger", "status")],
        ["validate", str(shop.file)],
    ]
    program = (
        "import json, sys\n"
        "from tidelake.cli import app\n"
        "from tidelake.cli.exits import run_command\n"
        "sys.exit(max(run_command(app, words) for words in json.loads(sys.argv[1])))"
    )
    nothing = tmp_path / "bin"
    nothing.mkdir()
    kept = {name: value for name, value in environment().items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(commands)],
        env=kept | {"PATH": str(nothing)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '[{"n": 16}]' in done.stdout
    assert "balanced" in done.stdout


def environment() -> dict[str, str]:
    """Give what a reader's shell has: our commands first, and nothing of this run of the tests."""
    own = ("TIDELAKE_", "PYTEST_", "JAVA_TOOL_OPTIONS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def typed(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command as it is typed, in a folder."""
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder in which a small demo has run."""
    folder = tmp_path_factory.mktemp("demo")
    done = typed(folder, "tidelake demo --events 2000")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def copied(demo: Path, tmp_path: Path) -> Path:
    """Give a copy of that folder."""
    shutil.copytree(demo, tmp_path / "demo")
    return tmp_path / "demo"


@pytest.mark.long
@pytest.mark.parametrize("command", [one for one in WALKED if not one.startswith(tuple(NOT_TYPED))])
def test_the_guarantees_hold(command: str, demo: Path) -> None:
    done = typed(demo if command.startswith("tidelake ") else PROJECT, command)
    # Also where pytest finds no test to run, its code is not 0.
    assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"


def _delete_one(table: DeltaTable, record_id: str) -> None:
    table.delete(f"record_id = '{record_id}'")


def _double_one(table: DeltaTable, record_id: str) -> None:
    rows = table.to_pyarrow_table(filters=[("record_id", "=", record_id)])
    write_deltalake(table, rows, mode="append")


@pytest.mark.long
@pytest.mark.parametrize("damage", [_delete_one, _double_one])
def test_a_row_that_is_lost_or_doubled_is_found_and_its_batch_named(
    copied: Path, damage: Callable[[DeltaTable, str], None]
) -> None:
    asked = "SELECT record_id, _batch FROM silver.clickstream ORDER BY hash(event_id) LIMIT 1"
    (row,) = json.loads(typed(copied, f'tidelake sql "{asked}" --json').stdout)
    damage(DeltaTable(str(Lake(copied / "lakehouse").silver("clickstream").path)), row["record_id"])

    ledger = typed(copied, "tidelake ledger clickstream")
    assert ledger.returncode == 3, ledger.stderr
    # The first batch that differs is the row's.
    assert re.findall(r"silver, batch (\d+)", ledger.stderr) == [str(row["_batch"])]
    assert "does not balance. silver, batch" in ledger.stderr
    verified = typed(copied, "tidelake verify clickstream")
    assert verified.returncode == 3, verified.stderr
    assert "silver.clickstream: not equal to the recomputation from bronze" in verified.stderr


@pytest.mark.long
def test_a_run_on_a_source_file_that_changed_exits_3_and_names_it(demo: Path) -> None:
    file = next((demo / "lakehouse" / "landing" / "clickstream").iterdir())
    before, found = file.read_bytes(), file.stat()
    try:
        file.write_bytes(before + b"{}\n")
        done = typed(demo, "tidelake run clickstream")
    finally:
        file.write_bytes(before)
        os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert done.returncode == 3, done.stderr
    assert file.name in done.stderr


@contextmanager
def started(folder: Path, command: str, said: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command; what it says goes to a file. At the end its process group is killed."""
    with said.open("wb") as out:
        process = subprocess.Popen(
            shlex.split(command),
            cwd=folder,
            env=environment(),
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.long
def test_ctrl_c_stops_a_run_that_goes_on_and_the_next_one_continues(
    copied: Path, tmp_path: Path
) -> None:
    said, fresh = tmp_path / "said", tmp_path / "fresh"
    generated = typed(copied, f"tidelake generate clickstream --to {fresh} --events 400 --seed 2")
    assert generated.returncode == 0, generated.stderr
    run = f'tidelake run clickstream --root other --source {fresh} --trigger "1 second"'
    with started(copied, run, said) as running:
        ends = time.monotonic() + _SECONDS
        while "gold    batch" not in said.read_text():
            assert running.poll() is None and time.monotonic() < ends, said.read_text()
            time.sleep(0.2)
        # As a terminal does: to the whole group, JVM and Python's workers included.
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(_SECONDS) == 130, said.read_text()
    assert "Traceback" not in said.read_text()
    assert said.read_text().rstrip().endswith("the next run continues from there.")
    place = f"clickstream --root other --source {fresh}"
    assert typed(copied, f"tidelake run {place}").returncode == 0
    ledger = typed(copied, "tidelake ledger clickstream --root other --json")
    assert ledger.returncode == 0, ledger.stderr
    assert json.loads(ledger.stdout)["bronze"] == 400


@pytest.mark.long
def test_the_demo_prints_the_ledger_that_is_shown(tmp_path: Path) -> None:
    done = typed(tmp_path, "tidelake demo")
    assert done.returncode == 0, done.stderr
    assert unlike(shown_after("Ledger of clickstream"), done.stdout) == []
