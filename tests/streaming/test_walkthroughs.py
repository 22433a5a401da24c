"""The documents, typed: every command that a page shows is run in order, as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.samples import land, order
from tests.typed import PROMPT, blocks_of

PROJECT = Path(__file__).parents[2]
_DEMO = "tidelake demo --events 2000"
# What a page takes as given, done before its first command.
PAGES = {
    "docs/how-to/own-data.md": [],
    "docs/index.md": [],
    "docs/how-to/late.md": [],
    "docs/how-to/quality.md": [],
    "docs/how-to/backfill.md": [],
    "docs/how-to/erase.md": [],
    "docs/how-to/schema-change.md": [],
    "docs/concepts/exactly-once.md": [_DEMO],
    "README.md": [_DEMO],
}
# The only commands of those pages that are not run, each with its reason.
NOT_RUN = {
    r"pip install ": "the packages are those under test",
    r"make ": "runs the demo, or these tests, whole",
    r".*kafka://": "needs a broker on that port; tests/streaming/test_kafka.py has one",
    r"tidelake ui": "goes on until it is stopped; tests/unit/test_page_browser.py",
    r"tidelake run clicks\b": "follows the topic of the line before",
    r"tidelake demo flights": "a month of flights; tests/streaming/test_flights.py",
}
# Fewer events say the same, a subject is one of the reader's data, and who types answers with yes.
TYPED_AS = (
    (r"--events \d+", "--events 2000"),
    # In another folder than that of the reader's own pipelines.
    (r"tidelake demo payments", "cd $(mktemp -d) && tidelake demo payments --events 2000"),
    (r"erase shop --subject user_id=u123", "erase shop --subject event_id=o-7"),
    (r"^(tidelake (erase|quarantine discard) (?!.*--(yes|dry-run)).*)$", r"\1 --yes"),
)
# Its reader changes folders, and files between commands: a test of its own walks it.
GROWING = "docs/how-to/growing.md"
# Pages whose commands need what a test has not: held against the command line alone.
NOT_WALKED = {
    "docs/install.md": "makes environments; tests/bundle/test_installing.py types its lines",
    "docs/how-to/many-pipelines.md": "topics; tests/streaming/test_many_pipelines_run.py has files",
    "docs/how-to/project.md": "needs a workspace; tests/unit/test_creating.py runs a project",
    "docs/how-to/editor.md": "files alone; tests/unit/test_defining.py, test_json_schema.py",
    "docs/fates.md": "lands lines by hand between two runs; tests/fates.py does the same",
    "docs/how-to/change-events.md": "a database's; tests/streaming/test_change_events.py runs it",
    "docs/how-to/publish.md": "a broker of the reader's; tests/streaming/test_publish.py has one",
    "docs/kafka.md": "brokers and registries of the reader's; tests/streaming/test_kafka.py",
    "docs/fast-lane.md": "streams that go on until they are stopped",
    "docs/tables-are-the-state.md": "a measurement of many minutes; make bench",
    "docs/runbook.md": "each command belongs to a damage; tests/recovery makes them",
    "docs/alerts.md": "each command belongs to an alert; tests/unit/test_alerts.py opens them",
    "docs/analysts.md": "prompts, files of statements and servers; tests/streaming/test_serve.py",
    "docs/databricks.md": "needs a workspace; tests/bundle",
    "docs/databricks-tables.md": "needs a workspace; tests/streaming/test_catalog.py",
    "docs/engines.md": "needs a cluster or a server; tests/streaming/test_engines.py has both",
    "docs/live-page.md": "goes on until it is stopped; tests/unit/test_page_browser.py",
    "docs/metrics.md": "goes on until it is stopped; tests/streaming/test_observing.py",
    "docs/object-store.md": "needs a store; tests/streaming/test_object_store.py",
    "docs/releasing.md": "builds and checks what is published; tests/bundle",
}


def typed_on(page: str) -> list[tuple[str, list[str]]]:
    """Give what is typed after a prompt, in order, and the lines shown below it."""
    blocks = blocks_of((PROJECT / page).read_text(encoding="utf-8"))
    return [one for block in blocks for one in prompts_in(block.lines)]


def prompts_in(lines: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Give the same of one block; nothing of a block without a prompt."""
    typed: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith(PROMPT):
            typed.append((line.removeprefix(PROMPT).split("  #")[0].rstrip(), []))
        elif line and typed:
            typed[-1][1].append(line)
    return typed


def commands_of(page: str) -> list[str]:
    """Give the commands alone."""
    return [command for command, _ in typed_on(page)]


def is_run(command: str) -> bool:
    return not any(re.match(pattern, command) for pattern in NOT_RUN)


def type_in(folder: Path, command: str) -> str:
    """Run a command as typed, in a shell, and give what it prints."""
    for pattern, replacement in TYPED_AS:
        command = re.sub(pattern, replacement, command)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDELAKE_")}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=kept | {"PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def unlike(shown: list[str], printed: str) -> list[str]:
    """List the shown lines that were not printed, in this order.

    A page may leave out lines, and replace the end of one by ``…``; blanks do not count.
    """
    left = iter([" ".join(line.split()) for line in printed.splitlines()])
    return [line for line in shown if not any(_is_shown(line, one) for one in left)]


def _is_shown(line: str, printed: str) -> bool:
    whole = " ".join(line.split())
    if whole.endswith("…"):
        return printed.startswith(whole.removesuffix("…").rstrip())
    return printed == whole


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run_in_order(page: str, tmp_path: Path) -> None:
    # The reader's own data, where a page has none of its own.
    if page != "docs/how-to/own-data.md":
        land(tmp_path / "events" / "a.jsonl", [order(n) for n in range(60)])
    for command in PAGES[page]:
        type_in(tmp_path, command)
    commands = [(command, shown) for command, shown in typed_on(page) if is_run(command)]
    assert commands
    for command, shown in commands:
        printed = type_in(tmp_path, command)
        assert unlike(shown, printed) == [], f"$ {command}\n{printed}"


@pytest.mark.long
def test_a_project_grows_as_its_page_says(tmp_path: Path) -> None:
    folder, changes = tmp_path, 0
    page = (PROJECT / GROWING).read_text(encoding="utf-8")
    for language, text in re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL):
        lines = [line.strip() for line in text.splitlines()]
        if language == "yaml":
            lay_over(folder / lines[0].removeprefix("# "), text)
            changes += 1
        for command, shown in prompts_in(lines):
            if command.startswith("cd "):
                folder = folder / command.removeprefix("cd ")
                continue
            printed = type_in(folder, command)
            assert unlike(shown, printed) == [], f"$ {command}\n{printed}"
    assert changes == 3


def lay_over(file: Path, text: str) -> None:
    """Change a file as a page says: tables of the same name are replaced, the rest is added."""
    content, change = yaml.safe_load(file.read_text()), yaml.safe_load(text)
    for table in change.get("gold", ()):
        others = [one for one in content["gold"] if one["name"] != table["name"]]
        content["gold"] = [*others, table]
    content["quality"] |= change.get("quality", {})
    file.write_text(yaml.safe_dump(content, sort_keys=False))


def test_what_a_page_shows_is_held_against_what_is_printed() -> None:
    printed = "  a   b \n ─── \n  1  2\n"
    assert unlike(["a b", "1 2"], printed) == []
    assert unlike(["a …", "1 2"], printed) == []
    assert unlike(["1 2", "a  b"], printed) == ["a  b"]
    assert unlike(["b …", "1"], printed) == ["b …", "1"]
    with_results = [shown for _, shown in typed_on("docs/how-to/own-data.md") if shown]
    assert len(with_results) > 5


def test_each_page_with_commands_is_walked_or_has_a_reason() -> None:
    pages = ["README.md", *(f"docs/{p.relative_to(PROJECT / 'docs')}" for p in _documents())]
    with_commands = {page for page in pages if commands_of(page)}
    assert with_commands - PAGES.keys() - NOT_WALKED.keys() == {GROWING}


@pytest.mark.parametrize("pattern", NOT_RUN)
def test_each_reason_not_to_run_is_needed(pattern: str) -> None:
    assert any(re.match(pattern, command) for page in PAGES for command in commands_of(page))


def _documents() -> list[Path]:
    return sorted((PROJECT / "docs").rglob("*.md"))
