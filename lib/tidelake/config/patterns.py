r"""Hold a regular expression against what Java takes: Spark would find out row by row.

Python's parser does most of the work. What the two dialects read differently is refused or, where
Java has more (``\p{L}``, ``\h``), put into Python's words first.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

_CLASSES = frozenset(
    [
        *("L", "Lu", "Ll", "M", "N", "Nd", "P", "S", "Z", "Zs", "C"),
        *("Alpha", "Digit", "Alnum", "Upper", "Lower", "Punct", "Space", "XDigit", "ASCII"),
        *("IsAlphabetic", "IsLetter", "IsDigit", "IsPunctuation", "IsWhite_Space"),
        *("IsLatin", "IsGreek", "IsCyrillic"),
    ]
)
_ONLY_JAVA = {"h": " ", "H": "x", "R": r"\n", "z": r"\Z", "e": r"\x1b"}
_ONLY_PYTHON = "QEUNLG"
_TOKEN = re.compile(
    r"\\[pP]\{(?P<class>\w+)\}"
    r"|\\(?P<escape>.)"
    r"|(?P<python>\(\?[P#(])"
    r"|\(\?(?P<flags>[a-zA-Z-]+)[:)]"
    r"|(?P<named>\(\?<(?![=!]))"
    r"|(?P<opening>\[\^?)(?P<first>\]?)"
    r"|(?P<repeat>\{\d{1,6}(?:,\d{0,6})?\})"
    r"|(?P<both>&&)"
    r"|(?P<char>.)",
    re.DOTALL,
)


# A repeated group takes several frames of Java's stack for each letter: with a thread's usual
# 1 MB, nested alternatives overflow it from about 1,800 letters on (Java 17).
MOST_LETTERS = 500
_REPEATED_GROUP = re.compile(r"\)(?:[*+]|\{\d*,\}|\{\d*,?\d{3,}\})(?!\+)")
_FIRST_IS_TEXT = ("regexp", "rlike")


def may_overflow(pattern: str) -> bool:
    """Tell whether matching a long text may exhaust the stack: some group is repeated.

    Possessive groups (``(a|b)*+``) are matched in a loop, and so are repeated classes.
    """
    bare = re.sub(r"\\.|\[(?:[^\]\\]|\\.)*\]", "x", pattern, flags=re.DOTALL)
    return _REPEATED_GROUP.search(bare) is not None


@lru_cache(maxsize=1024)
def texts_to_bound(sql: str) -> tuple[str, ...]:
    """List the parts of an expression whose length must be bounded before it is evaluated.

    They are the texts that are matched with a pattern that :func:`may_overflow`, or with one that
    a row brings, and such patterns themselves.

    Args:
        sql: A sound expression of Spark SQL.
    """
    try:
        root = sqlglot.parse_one(f"SELECT ({sql})", dialect="databricks")
    except SqlglotError:
        return ()
    found: list[str] = []
    for node in root.find_all(exp.Func):
        name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
        operands = node.expressions if isinstance(node, exp.Anonymous) else _operands(node)
        if not name.lower().startswith(_FIRST_IS_TEXT) or len(operands) < 2:
            continue
        pattern = operands[1]
        if not isinstance(pattern, exp.Literal):
            found += [one.sql(dialect="databricks") for one in operands[:2]]
        elif may_overflow(pattern.name):
            found.append(operands[0].sql(dialect="databricks"))
    return tuple(dict.fromkeys(found))


def _operands(node: exp.Func) -> list[exp.Expr]:
    return [one for one in (node.this, node.args.get("expression")) if one is not None]


def pattern_problem(pattern: str) -> str | None:
    """Say what is wrong with a regular expression, or nothing.

    Args:
        pattern: In Java's dialect.
    """
    if not pattern:
        return "is empty, and so matches everything"
    try:
        rewritten = _in_python(pattern)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            re.compile(rewritten)
    except _UnknownError as error:
        return str(error)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is no regular expression: {error}"
    return None


class _UnknownError(ValueError):
    """Something that Java and Python do not both know, or read differently."""


def _in_python(pattern: str) -> str:
    """Rewrite what only Java knows."""
    out: list[str] = []
    in_class = False
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if token["class"]:
            if token["class"] not in _CLASSES:
                raise _UnknownError(f"holds {text}, an unknown class of characters")
            text = r"\w"
        elif token["escape"]:
            text = _escape(token["escape"], in_class=in_class)
        elif in_class:
            if token["opening"] or token["both"]:
                raise _UnknownError(f"holds {text[:2]} inside a class; put \\ before it")
            in_class = not text.endswith("]")
        elif token["python"]:
            raise _UnknownError(f"holds {text}, which Java's regular expressions do not know")
        elif token["flags"] and set(token["flags"]) - set("ims-"):
            raise _UnknownError(f"holds {text}; the flags are i, m and s")
        elif token["named"]:
            text = "(?P<"
        elif token["opening"]:
            if token["first"]:
                raise _UnknownError("holds ] as the first in a class; write \\]")
            in_class = True
        elif text == "{":
            raise _UnknownError("holds { that repeats nothing; write \\{")
        out.append(text)
    return "".join(out)


def _escape(char: str, *, in_class: bool) -> str:
    if char in _ONLY_PYTHON or char == "0" or (in_class and char == "b"):
        raise _UnknownError(f"holds \\{char}, which Java reads differently")
    return _ONLY_JAVA.get(char, f"\\{char}")
