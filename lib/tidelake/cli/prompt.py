"""The prompt of ``tidelake sql``: statements, dot commands, completion."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.output import Output
from pygments.lexers.sql import SqlLexer

from tidelake.cli.exits import say
from tidelake.cli.reading import answer_to, write_answer
from tidelake.cli.render import FORMATS, Format, counted, format_answer
from tidelake.delta.log import newest_version
from tidelake.delta.tables import Lake
from tidelake.errors import TidelakeError, UsageError
from tidelake.folders import expanded
from tidelake.ledger.query import Answer, AnswerFile, ask
from tidelake.visible import visible

_FIRST, _NEXT = "tidelake> ", "     ...> "
# Command name -> argument, help text, completions of the argument (None: table names).
COMMANDS: dict[str, tuple[str, str, tuple[str, ...] | None]] = {
    ".tables": ("", "list the tables", ()),
    ".describe": ("TABLE", "list a table's columns and types", None),
    ".consistent": ("on|off", "read all tables as of the last epoch", ("on", "off")),
    ".format": ("|".join(FORMATS), "set the output format of results", FORMATS),
    ".output": ("FILE [--overwrite]", "write the next result: .csv, .parquet, .json", ()),
    ".help": ("", "list the dot commands", ()),
    ".exit": ("", "exit (or Ctrl-D)", ()),
    ".quit": ("", "exit", ()),
}
KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "GROUP BY ALL", "HAVING", "ORDER BY", "LIMIT"),
    *("JOIN", "LEFT JOIN", "ON", "USING", "AS", "AND", "OR", "NOT", "IN", "IS NULL"),
    *("IS NOT NULL", "BETWEEN", "LIKE", "CASE", "WHEN", "THEN", "ELSE", "END", "DISTINCT"),
    *("UNION ALL", "WITH", "OVER", "PARTITION BY", "QUALIFY", "ASC", "DESC", "INTERVAL"),
    *("DESCRIBE", "count(*)", "count(", "sum(", "avg(", "min(", "max(", "coalesce("),
    *("date_trunc(", "round(", "median(", "count(DISTINCT "),
)
_WORD = re.compile(r"[A-Za-z_.][\w.]*$")
_TABLE = re.compile(r"\b(?:FROM|JOIN|DESCRIBE)\s+$", re.IGNORECASE)
_NAMED = re.compile(
    r"\b(?:FROM|JOIN|,)\s*(?P<table>[a-z]+\.\w+)(?:\s+(?:AS\s+)?(?P<alias>\w+))?", re.IGNORECASE
)
# Keywords that follow a table name and are not an alias.
_NO_ALIAS = re.compile(
    "where|group|order|limit|join|left|inner|on|using|having|union|qualify", re.IGNORECASE
)
# A semicolon ends a statement, except inside strings, quoted identifiers and comments. As in DuckDB
# a dollar and an E may be part of a name before them: a$b$, date'2024-01-01'.
_PART = re.compile(
    r"""
    (?<![\w$])\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z)
    | (?<![\w$])[eE]'(?:\\.|''|[^'\\])*'?
    | '(?:[^']|'')*'?
    | "(?:[^"]|"")*"?
    | (?P<blank>\s+|--[^\r\n]*)
    | (?P<comment>/\*)
    | (?P<end>;)
    | .
    """,
    re.DOTALL | re.VERBOSE,
)
_COMMENT_MARK = re.compile(r"/\*|\*/")


def run_prompt(
    lake: Lake, *, consistent: bool, input: Input | None = None, output: Output | None = None
) -> None:
    """Run statements until Ctrl-D; Ctrl-C clears the line or cancels the running statement.

    ``input`` and ``output`` replace the terminal in tests.
    """
    catalogue, keys = Catalogue(lake), KeyBindings()
    conversation = Conversation(catalogue, _page, say, _width, consistent=consistent)

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    session: PromptSession[str] = PromptSession(
        message=_FIRST,
        multiline=True,
        prompt_continuation=_NEXT,
        lexer=PygmentsLexer(SqlLexer),
        completer=catalogue,
        complete_in_thread=True,
        complete_while_typing=True,
        history=_history(),
        key_bindings=keys,
        input=input,
        output=output,
    )
    count = len(catalogue.tables())
    say(f"{count} tables {lake.place}. End a statement with ;  .help lists commands.")
    while not conversation.ended:
        try:
            text = session.prompt()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        answer_all(conversation, text)


def answer_piped(lake: Lake, *, consistent: bool, json_: bool) -> int:
    """Run the statements on stdin; return the exit code of the first error, or 0."""
    conversation = Conversation(Catalogue(lake), _show_plainly, say, _width, consistent)
    conversation.format = "json" if json_ else "table"
    if isinstance(sys.stdin, io.TextIOWrapper):
        # A byte that is not UTF-8 fails its own statement, not all of them.
        sys.stdin.reconfigure(errors="surrogateescape")
    # Editors on Windows begin a file with a BOM.
    return answer_all(conversation, sys.stdin.read().removeprefix("\ufeff"))


def answer_all(conversation: Conversation, text: str) -> int:
    """Run every statement, also those after an error; return the first error's exit code."""
    code = 0
    for statement in statements_of(text):
        try:
            conversation.answer(statement)
        except TidelakeError as error:
            say(f"tidelake: {error}")
            code = code or error.exit_code
        except KeyboardInterrupt:
            say("Interrupted.")
            code = code or 130
        if conversation.ended:
            break
    return code


def _page(text: str) -> None:
    """Print a result, through a pager if it is longer than the screen."""
    if sys.stdout.isatty():
        # CSV output contains raw values, control characters included.
        text = visible(text, lines=True)
    if text.count("\n") > shutil.get_terminal_size().lines - 3:
        click.echo_via_pager(text)
    else:
        _show_plainly(text)


def _show_plainly(text: str) -> None:
    click.echo(text, nl=False)


def _width() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def _history() -> History:
    """Open the history file, readable only by its owner: statements may contain personal data."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = Path(state) / "tidelake"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = folder / "sql_history"
        file.touch(mode=0o600)
        return FileHistory(str(file))
    except OSError:
        return InMemoryHistory()


@dataclass
class Conversation:
    """The settings and output functions of a prompt session.

    ``show`` prints a result, ``say`` a message; ``target`` is the file for the next result.
    """

    catalogue: Catalogue
    show: Callable[[str], None]
    say: Callable[[str], None]
    width: Callable[[], int]
    consistent: bool = False
    format: Format = "table"
    target: AnswerFile | None = None
    ended: bool = field(default=False, init=False)

    def answer(self, statement: str) -> None:
        """Run a statement or a dot command."""
        lake = self.catalogue.lake
        if statement.startswith("."):
            self._run_dot_command(_words_of(statement))
        elif self.target is not None:
            write_answer(lake, statement, self.target, consistent=self.consistent, say=self.say)
            self.target = None
        else:
            answer = answer_to(lake, statement, consistent=self.consistent, say=self.say)
            text, was_cut = format_answer(answer, self.format, self.width())
            self.show(text)
            self.say(counted(len(answer.rows)))
            if was_cut:
                self.say("Truncated to the terminal width; show everything with: .format vertical")

    def _run_dot_command(self, words: Sequence[str]) -> None:
        match [words[0].lower(), *words[1:]]:
            case [".tables"]:
                self._list(("table",), [(name,) for name in self.catalogue.tables()])
            case [".describe", table]:
                columns = self.catalogue.columns(table)
                if not columns:
                    raise UsageError(f"there is no table {table}; .tables lists them.")
                self._list(("column", "type"), columns)
            case [".consistent", ("on" | "off") as switch]:
                self.consistent = switch == "on"
                self.say(f"consistent reads are {switch}")
            case [".format", name] if name in FORMATS:
                self.format = name
            case [".output", file, *options] if options in ([], ["--overwrite"]):
                self.target = AnswerFile(expanded(file), overwrite=bool(options))
                self.say(f"The next result is written to {file}")
            case [".help"]:
                usages = [(f"{name} {c[0]}".rstrip(), c[1]) for name, c in COMMANDS.items()]
                self._list(("command", "description"), usages)
            case [".exit" | ".quit"]:
                self.ended = True
            case _:
                raise UsageError(f"{' '.join(words)!r} is not a command; .help lists them.")

    def _list(self, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
        self.show(format_answer(Answer(columns, tuple(rows)), self.format, self.width())[0])


def _words_of(command: str) -> list[str]:
    """Split a dot command into words, as a shell does."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UsageError(
            f"{command!r} cannot be split into words: a quote is not closed, or a backslash is "
            'last. Put a path with blanks or quotes in double quotes, such as "my file.csv".'
        ) from error


# Columns of a table: name and DuckDB type.
Columns = Sequence[tuple[str, str]]


@dataclass(eq=False)
class Catalogue(Completer):
    """The tables of a lake and their columns, cached by table version; completes their names."""

    lake: Lake
    _columns: dict[tuple[str, int], Columns] = field(default_factory=dict)

    def tables(self) -> list[str]:
        """List the tables by layer."""
        return [table.name for table in self.lake.existing()]

    def get_completions(self, document: Document, _: CompleteEvent) -> Iterable[Completion]:
        """Complete the text at the cursor."""
        before, after = document.text_before_cursor, document.text_after_cursor
        return suggestions(before, after, self.tables(), self.columns)

    def columns(self, table: str) -> Columns:
        """List a table's columns; empty if it does not exist or cannot be read."""
        name = table.lower().removesuffix("__final")
        if name not in self.tables():
            return ()
        key = name, newest_version(self.lake.table(name))
        with contextlib.suppress(TidelakeError):
            if key not in self._columns:
                described = ask(self.lake, f"DESCRIBE {name}").rows
                self._columns[key] = [(row[0], row[1]) for row in described]
        return self._columns.get(key, ())


def statements_of(text: str) -> list[str]:
    """Split a text into statements, ended by semicolons, and dot commands, ended by newlines.

    The last statement needs no semicolon.
    """
    return [statement for statement, _ in _parts(text)]


def is_complete(text: str) -> bool:
    """Return whether Enter submits the text rather than inserting a line break."""
    return all(ended for _, ended in _parts(text))


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each statement and dot command, with whether it is ended."""
    first = place = 0
    # Blanks and comments begin no statement, except for an open comment.
    is_begun = False
    while part := _PART.match(text, place):
        end = _comment_end(text, place) if part["comment"] else part.end()
        if part["end"]:
            if is_begun:
                yield text[first:place].strip(), True
            first, is_begun = part.end(), False
        elif text[place] == "." and not is_begun:
            command = text[place:].partition("\n")[0]
            yield command.rstrip("; \t"), True
            first = end = place + len(command)
        elif end is None or not (part["blank"] or part["comment"]):
            is_begun = True
        place = len(text) if end is None else end
    if is_begun:
        yield text[first:].strip(), False


def _comment_end(text: str, begin: int) -> int | None:
    """Return where the comment that begins at a position ends; None if it is open.

    As in DuckDB it may contain others.
    """
    depth = 0
    for mark in _COMMENT_MARK.finditer(text, begin):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return None


def suggestions(
    before: str, after: str, tables: Sequence[str], columns: Callable[[str], Columns]
) -> list[Completion]:
    """Return completions at a cursor between two texts, columns of the FROM tables first."""
    if before.lstrip().startswith("."):
        command, blank, begun = before.lstrip().partition(" ")
        if not blank:
            return _matching(((name, "command") for name in COMMANDS), command)
        values = COMMANDS[command.lower()][2] if command.lower() in COMMANDS else ()
        return _matching(((name, "") for name in (tables if values is None else values)), begun)
    word = _WORD.search(before)
    begun = word[0] if word else ""
    preceding = before[: len(before) - len(begun)]
    named = _named(before + after)
    owner, dot, part = begun.rpartition(".")
    if dot and owner.lower() in named:
        return _matching(columns(named[owner.lower()]), part)
    all_tables = [(table, "table") for table in tables]
    if dot or _TABLE.search(preceding):
        return _matching(all_tables, begun)
    own = [
        (name, f"{kind}, {table}")
        for table in dict.fromkeys(named.values())
        for name, kind in columns(table)
    ]
    return _matching([*own, *((word, "") for word in KEYWORDS), *all_tables], begun)


def _named(statement: str) -> dict[str, str]:
    """Map table names and aliases in a statement to tables."""
    found = {}
    for match in _NAMED.finditer(statement):
        table, alias = match["table"].lower(), match["alias"]
        found[table] = table
        if alias and not _NO_ALIAS.fullmatch(alias):
            found[alias.lower()] = table
    return found


def _matching(candidates: Iterable[tuple[str, str]], begun: str) -> list[Completion]:
    """Return candidates with prefix ``begun``; "_" columns only if it starts with "_"."""
    kept: dict[str, Completion] = {}
    for text, about in candidates:
        hidden = text.startswith("_") and not begun.startswith("_")
        if text.lower().startswith(begun.lower()) and text != begun and not hidden:
            kept.setdefault(text, Completion(text, -len(begun), display_meta=about))
    return list(kept.values())
