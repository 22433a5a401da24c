"""The runbook: what it tells people to type exists, and what it says they see is said."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tidelake.cli.unbuilt import unbuilt_commands

from tidelake.cli import app

PROJECT = Path(__file__).parents[2]
RUNBOOK = (PROJECT / "docs" / "runbook.md").read_text(encoding="utf-8")
PACKAGE = PROJECT / "lib" / "tidelake"
UNBUILT = sorted(str(command.name) for command in unbuilt_commands())
# Stands for a placeholder, in a quote and in the source.
GAP = "…"
_FENCE = "```"
_INLINE = re.compile(r"`([^`]+)`")
_FIELD = re.compile(r"\{\w*\}")


def blocks_and_prose() -> tuple[list[str], list[str]]:
    """Give the lines inside code blocks, and the others."""
    blocks: list[str] = []
    prose: list[str] = []
    inside = False
    for line in RUNBOOK.splitlines():
        if line.startswith(_FENCE):
            inside = not inside
        else:
            (blocks if inside else prose).append(line)
    return blocks, prose


def commands() -> list[str]:
    """List what is to be typed, each command once."""
    blocks, prose = blocks_and_prose()
    typed = [line.removeprefix("$ ").split("  #")[0].rstrip() for line in blocks]
    typed += [span for line in prose for span in _INLINE.findall(line)]
    return list(dict.fromkeys(line for line in typed if line.startswith("tidelake ")))


def sights() -> list[str]:
    """List what people see: quoted lines, and first cells under `What you see`."""
    seen: list[str] = []
    under = False
    for line in blocks_and_prose()[1]:
        if not line.startswith("|"):
            under = False
        if line.startswith("> "):
            # After the colon comes what to do.
            seen.append(line.split("`: ")[0] + "`")
        elif line.startswith("| What you see |"):
            under = True
        elif under and not line.startswith("|---"):
            seen.append(line.split("|")[1])
    return [line for line in seen if "`" in line]


def spans_said(line: str) -> list[str]:
    """Give the quotes of a line that are long enough to be told from others."""
    return [span for span in _INLINE.findall(line) if len(words_of(span)) > 2]


def words_of(text: str) -> list[str]:
    """Give the words of a quote, placeholders left out."""
    return [word for word in text.split() if word.strip(".,:") != GAP]


def said() -> str:
    """Give every text of the package's source, a line each, placeholders as gaps."""
    texts = [
        text
        for file in sorted(PACKAGE.rglob("*.py"))
        for text in texts_of(ast.parse(file.read_text(encoding="utf-8")))
    ]
    return "\n".join(" ".join(_FIELD.sub(GAP, text).split()) for text in texts)


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Give the texts of a module; those that stand side by side are one to the parser."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def problem_of(typed: str) -> str:
    """Say what is wrong with a command; empty when it could be called as it stands."""
    command: click.Command = app
    given: list[click.Parameter] = []
    arguments = 0
    words = iter(shlex.split(typed, comments=True)[1:])
    for word in words:
        if isinstance(command, click.Group):
            if word not in command.commands:
                return f"there is no command {word}"
            command = command.commands[word]
        elif word.startswith("-"):
            option = next((one for one in command.params if word in one.opts), None)
            if option is None:
                return f"{command.name} has no option {word}"
            given.append(option)
            if not getattr(option, "is_flag", False):
                refused = value_problem(option, next(words, ""))
                if refused:
                    return refused
        else:
            arguments += 1
    if isinstance(command, click.Group):
        return f"{command.name} is no command by itself"
    takes = [one for one in command.params if isinstance(one, click.Argument)]
    if arguments > len(takes):
        return f"{command.name} takes {len(takes)} arguments"
    given += takes[:arguments]
    missing = [one.name for one in command.params if one.required and one not in given]
    return f"{command.name} lacks {missing}" if missing else ""


def value_problem(option: click.Parameter, value: str) -> str:
    """Say what is wrong with an option's value; a word in capitals stands for any."""
    if not value:
        return f"{option.name} has no value"
    if value.isupper():
        return ""
    try:
        option.type.convert(value, option, None)
    except click.BadParameter as error:
        return error.message
    return ""


COMMANDS = commands()
SIGHTS = sights()
SAID = said()


@pytest.mark.parametrize("typed", COMMANDS)
def test_each_command_of_the_runbook_can_be_called(typed: str) -> None:
    assert problem_of(typed) == ""


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("tidelake mend PIPELINE", "there is no command mend"),
        ("tidelake run PIPELINE --hops gold", "run has no option --hops"),
        ("tidelake repair PIPELINE", "repair lacks ['hop']"),
        ("tidelake repair PIPELINE --hop copper", "'copper' is not one of"),
        ("tidelake run", "run lacks ['pipeline']"),
        ("tidelake status one two", "status takes 1 arguments"),
        ("tidelake backfill", "backfill is no command by itself"),
        ("tidelake verify PIPELINE --since yesterday", "'yesterday' does not match"),
        ("tidelake verify PIPELINE --since", "since has no value"),
    ],
)
def test_a_command_that_could_not_be_called_is_found(typed: str, problem: str) -> None:
    assert problem_of(typed).startswith(problem)


def test_what_is_not_built_is_not_recommended() -> None:
    assert UNBUILT
    assert [name for name in UNBUILT if f"tidelake {name}" in RUNBOOK] == []


@pytest.mark.parametrize("sight", SIGHTS)
def test_what_the_runbook_quotes_is_said_somewhere(sight: str) -> None:
    spans = spans_said(sight)
    assert spans, "nothing in it can be told from others"
    assert [span for span in spans if " ".join(span.split()) not in SAID] == []


def test_commands_and_quotes_were_found_at_all() -> None:
    assert len(COMMANDS) > 20
    assert len(SIGHTS) > 40


def test_each_link_within_the_runbook_leads_to_a_heading() -> None:
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in blocks_and_prose()[1]
        if line.startswith("#")
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", RUNBOOK)) <= headings
