"""The runbook: what it says that people see is said; what they type is in test_documents."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.typed import prose_of

PROJECT = Path(__file__).parents[2]
RUNBOOK = (PROJECT / "docs" / "runbook.md").read_text(encoding="utf-8")
PACKAGE = PROJECT / "lib" / "tidelake"
PROSE = prose_of(RUNBOOK)
# Stands for a placeholder, in a quote and in the source.
GAP = "…"
_INLINE = re.compile(r"`([^`]+)`")
_FIELD = re.compile(r"\{\w*\}")


def sights() -> list[str]:
    """List what people see: quoted lines, and first cells under `What you see`."""
    seen: list[str] = []
    under = False
    for line in PROSE:
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


SIGHTS = sights()
SAID = said()


@pytest.mark.parametrize("sight", SIGHTS)
def test_what_the_runbook_quotes_is_said_somewhere(sight: str) -> None:
    spans = spans_said(sight)
    assert spans, "nothing in it can be told from others"
    assert [span for span in spans if " ".join(span.split()) not in SAID] == []


def test_quotes_were_found_at_all() -> None:
    assert len(SIGHTS) > 40
