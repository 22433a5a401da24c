"""What documents tell people to type: found in them, and held against the command line."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import click

from tidelake.cli import app

_FENCE = re.compile(r"^\s*```(\w*)")
_INLINE = re.compile(r"`([^`]+)`")
PROMPT = "$ "
_SHELL = frozenset({"<", ">", "|"})


@dataclass(frozen=True)
class Block:
    """A code block: its language, its lines and the line at which it begins, from 1."""

    language: str
    lines: tuple[str, ...]
    at: int


def blocks_of(text: str) -> Iterator[Block]:
    """Give the code blocks of a document."""
    language, lines, at = "", [], 0
    for number, line in enumerate(text.splitlines(), start=1):
        fence = _FENCE.match(line)
        if fence is None:
            lines.append(line.strip())
        elif at:
            yield Block(language, tuple(lines), at)
            at = 0
        else:
            language, lines, at = fence[1], [], number


def prose_of(text: str) -> list[str]:
    """Give the lines of a document that stand in no code block."""
    prose: list[str] = []
    inside = False
    for line in text.splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            prose.append(line)
    return prose


def typed_in(text: str) -> list[str]:
    """List the calls of Tidelake in a document's code blocks, each once."""
    lines = [line.removeprefix(PROMPT) for block in blocks_of(text) for line in block.lines]
    return _each_once(lines)


def named_in(text: str) -> list[str]:
    """List those in its sentences, which may leave out what they need."""
    return _each_once([span for line in prose_of(text) for span in _INLINE.findall(line)])


def _each_once(lines: list[str]) -> list[str]:
    return list(
        dict.fromkeys(
            line.split("  #")[0].rstrip() for line in lines if line.startswith("tidelake ")
        )
    )


def problem_of(typed: str, *, whole: bool = True) -> str:
    """Say what is wrong with a command; empty when it could be called as it stands.

    Args:
        typed: As somebody would type it; a word in capitals stands for any.
        whole: Whether it is to be typed as it is, rather than named in a sentence.
    """
    command: click.Command = app
    given: list[click.Parameter] = []
    arguments = 0
    shown = shlex.split(typed, comments=True)[1:]
    # What goes in or out by a file or a pipe is the shell's.
    words = itertools.takewhile(lambda word: word not in _SHELL, shown)
    for word in words:
        if isinstance(command, click.Group) and not word.startswith("-"):
            if word not in command.commands:
                return f"there is no command {word}"
            command = command.commands[word]
        elif word.startswith("-"):
            option, refused = _option(command, word, words)
            if refused:
                return refused
            given += option
        else:
            arguments += 1
    return _lack(command, given, arguments) if whole else ""


def _option(
    command: click.Command, word: str, words: Iterator[str]
) -> tuple[list[click.Parameter], str]:
    """Find an option and take its value; say what is wrong with either."""
    if word in ("--help", "-h"):
        return [], ""
    option = next((one for one in command.params if word in one.opts), None)
    if option is None:
        return [], f"{command.name} has no option {word}"
    refused = "" if getattr(option, "is_flag", False) else value_problem(option, next(words, ""))
    return [option], refused


def _lack(command: click.Command, given: list[click.Parameter], arguments: int) -> str:
    if isinstance(command, click.Group):
        return f"{command.name} is no command by itself"
    takes = [one for one in command.params if isinstance(one, click.Argument)]
    if arguments > len(takes) and not any(one.nargs == -1 for one in takes):
        return f"{command.name} takes {len(takes)} arguments"
    known = [*given, *takes[:arguments]]
    missing = [one.name for one in command.params if one.required and one not in known]
    return f"{command.name} lacks {missing}" if missing else ""


def value_problem(option: click.Parameter, value: str) -> str:
    """Say what is wrong with an option's value; a word in capitals stands for any."""
    if not value:
        return f"{option.name} has no value"
    if value.isupper():
        return ""
    try:
        converted = option.type.convert(value, option, None)
        if option.callback is not None:
            option.callback(click.Context(app), option, converted)
    except click.BadParameter as error:
        return error.message
    return ""
