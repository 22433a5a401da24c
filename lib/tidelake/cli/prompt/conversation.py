"""Answer statements and commands that begin with a dot, and keep what those have set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidelake.cli.prompt.catalogue import Catalogue
from tidelake.cli.prompt.layout import FORMATS, Format, laid_out
from tidelake.errors import UsageError
from tidelake.ops.query import (
    Answer,
    AnswerFile,
    ask_at_epoch,
    ask_for_user,
    write_at_epoch,
    write_for_user,
)

HELP = (
    (".tables", "list the tables"),
    (".describe TABLE", "list a table's columns and types"),
    (".consistent on|off", "see all tables as the last epoch had them"),
    (".format table|vertical|csv|json", "how answers are shown"),
    (".output FILE", "write the next answer to a .csv, .parquet or .json file"),
    (".help", "this list"),
    (".exit", "end (Ctrl-D too)"),
)


@dataclass
class Conversation:
    """What has been set, and where answers go.

    Attributes:
        catalogue: The tables.
        show: Takes an answer's text.
        say: Takes messages.
        width: Tells the terminal's width.
        consistent: Whether tables are read as the last epoch had them.
        format: How answers are shown.
        target: Where the next answer goes; None: to ``show``.
        ended: Whether somebody asked to end.
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
        """Answer a statement, or do what a command says.

        Raises:
            TidelakeError: What is wrong with it; nothing that was set is lost.
        """
        if statement.startswith("."):
            self._obey(statement.split())
        elif self.target is not None:
            self._write(statement, self.target)
        else:
            self._show(self._ask(statement))

    def _ask(self, statement: str) -> Answer:
        lake = self.catalogue.lake
        if not self.consistent:
            return ask_for_user(lake, statement)
        answer, epoch = ask_at_epoch(lake, statement)
        if epoch:
            self.say(f"Read in {epoch}")
        return answer

    def _write(self, statement: str, target: AnswerFile) -> None:
        lake = self.catalogue.lake
        if self.consistent:
            rows, epoch = write_at_epoch(lake, statement, target)
            if epoch:
                self.say(f"Read in {epoch}")
        else:
            rows = write_for_user(lake, statement, target)
        self.target = None
        self.say(f"{_counted(rows)} in {target.file}")

    def _show(self, answer: Answer) -> None:
        text, was_cut = laid_out(answer, self.format, self.width())
        self.show(text)
        self.say(_counted(len(answer.rows)))
        if was_cut:
            self.say("Cut to the width of the terminal; all of it with: .format vertical")

    def _obey(self, words: Sequence[str]) -> None:
        match [words[0].lower(), *words[1:]]:
            case [".tables"]:
                self._list(("table",), [(name,) for name in self.catalogue.tables()])
            case [".describe", table]:
                self._describe(table)
            case [".consistent", ("on" | "off") as switch]:
                self.consistent = switch == "on"
                self.say(f"consistent reading is {switch}")
            case [".format", how] if how in FORMATS:
                self.format = how
            case [".output", file]:
                self.target = AnswerFile(Path(file).expanduser())
                self.say(f"The next answer goes to {file}")
            case [".help"]:
                self._list(("command", "does"), HELP)
            case [".exit" | ".quit"]:
                self.ended = True
            case _:
                raise UsageError(f"{' '.join(words)!r} is no command; .help lists them.")

    def _describe(self, table: str) -> None:
        columns = self.catalogue.columns(table)
        if not columns:
            raise UsageError(f"there is no table {table}; .tables lists them.")
        self._list(("column", "type"), [(column.name, column.type) for column in columns])

    def _list(self, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
        self.show(laid_out(Answer(columns, tuple(rows)), self.format, self.width())[0])


def _counted(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows:,} rows"
