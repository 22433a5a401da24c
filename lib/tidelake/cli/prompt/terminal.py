"""Talk with a person at a terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import click
import duckdb
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.output import Output
from pygments.lexers.sql import SqlLexer

from tidelake.cli.failures import say
from tidelake.cli.prompt.catalogue import Catalogue
from tidelake.cli.prompt.completing import Scope, suggestions
from tidelake.cli.prompt.conversation import Conversation
from tidelake.cli.prompt.statements import is_complete, statements_of
from tidelake.delta.tables import Lake
from tidelake.errors import TidelakeError
from tidelake.visible import visible

_FIRST, _NEXT = "tidelake> ", "     ...> "


def talk(
    lake: Lake, *, consistent: bool, input: Input | None = None, output: Output | None = None
) -> None:
    """Answer statements until Ctrl-D; Ctrl-C clears the line, or ends the statement under way.

    Args:
        lake: Where the tables are.
        consistent: Whether to read as the last epoch had it, from the beginning.
        input: What to read keys from; None for the terminal.
        output: Where the prompt is drawn; None for the terminal.
    """
    catalogue = Catalogue(lake)
    conversation = Conversation(catalogue, _page, say, width_of_terminal, consistent=consistent)
    session: PromptSession[str] = PromptSession(
        message=_FIRST,
        multiline=True,
        prompt_continuation=_NEXT,
        lexer=PygmentsLexer(SqlLexer),
        completer=_Completer(catalogue),
        complete_in_thread=True,
        complete_while_typing=True,
        history=_history(),
        key_bindings=_keys(),
        input=input,
        output=output,
    )
    say(f"{len(catalogue.tables())} tables {lake.place}. End a statement with ;  .help helps.")
    while not conversation.ended:
        try:
            text = session.prompt()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        answer_all(conversation, text)


def answer_all(conversation: Conversation, text: str) -> int:
    """Answer every statement of a text; a mistake in one does not stop those after it.

    Returns:
        The exit code that the first mistake means; 0 for none.
    """
    code = 0
    for statement in statements_of(text):
        try:
            conversation.answer(statement)
        except TidelakeError as error:
            say(f"tidelake: {error}")
            code = code or error.exit_code
        except (KeyboardInterrupt, duckdb.InterruptException):
            say("Interrupted.")
            code = code or 130
        if conversation.ended:
            break
    return code


def show_plainly(text: str) -> None:
    """Print an answer as it is."""
    click.echo(text, nl=False)


def _page(text: str) -> None:
    """Print an answer; through a pager where it is longer than the screen.

    CSV holds each value as it is, which is for a program and not for a terminal.
    """
    if sys.stdout.isatty():
        text = visible(text, lines=True)
    if text.count("\n") > shutil.get_terminal_size().lines - 3:
        click.echo_via_pager(text)
    else:
        show_plainly(text)


def width_of_terminal() -> int:
    """Tell how wide an answer may be; 100 where nobody looks."""
    return shutil.get_terminal_size((100, 24)).columns


def _history() -> History:
    """Keep what was typed for the next time, for its author alone: values may be in it."""
    kept = os.environ.get("XDG_STATE_HOME")
    folder = (Path(kept) if kept else Path.home() / ".local" / "state") / "tidelake"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = folder / "sql_history"
        file.touch(mode=0o600)
        return FileHistory(str(file))
    except OSError:
        return InMemoryHistory()


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return keys


class _Completer(Completer):
    """Completes statements and commands from what the lake holds."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def get_completions(self, document: Document, _: CompleteEvent) -> Iterable[Completion]:
        before, after = document.text_before_cursor, document.text_after_cursor
        scope = Scope(self._catalogue.tables(), self._catalogue.columns)
        for one in suggestions(before, after, scope):
            yield Completion(one.text, -one.replaces, display_meta=one.about)
