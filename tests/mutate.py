"""Remove each guard in a copy of the project, and run the tests that should fail without it.

    python -m tests.mutate [--only TEXT] [--list] [--json]

``tests/mutations.yml`` lists the guards: the promise that a line of code keeps, what is written in
place of that line, and the tests that fail then. The working tree is never edited.

Results are kept in ``build/mutations.json`` until the mutated file, the mutation or its test files
change: a check that was stopped goes on where it was. Changes of other files do not count; to try
everything again, delete that file.

Exit 0: every mutation was killed. 1: one survived, or could not be tried.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import cache_from_source
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import yaml

PROJECT = Path(__file__).resolve().parent.parent
LIST, RESULTS = Path("tests", "mutations.yml"), Path("build", "mutations.json")
# What the tests of the list need beside pyproject.toml.
# Of the benchmarks tests take what reads Spark's executions.
_COPIED = ("lib", "tests", "conf", "benchmarks")
_IGNORED = shutil.ignore_patterns("__pycache__")
_KEYS = {"name", "file", "was", "becomes", "killed_by"}
# Long tests are chosen like any other.
_PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-q", "--rootdir=.", "--tb=line", "-rfE")
_FAILED = re.compile(r"^(?:FAILED|ERROR) ([^\s:]+::\w+).*", re.MULTILINE)
# A mutation may let a test wait for what never comes.
_SECONDS = 1200
_WIDTH, _INDENT = 100, " " * 10


@dataclass(frozen=True)
class Mutation:
    """A guard, and what is left of it.

    Attributes:
        name: The promise that the guard keeps, in one sentence.
        file: The file with the guard, from the project's folder.
        was: A part of the file's text that occurs once in it.
        becomes: The text in its place.
        killed_by: Node ids of tests, without parameters; at least one of them must fail.
    """

    name: str
    file: str
    was: str
    becomes: str
    killed_by: tuple[str, ...]

    def mutated(self, project: Path) -> str:
        """Return the file's text after the mutation.

        Raises:
            ValueError: The part is not there or there more than once, the rest is no Python, or a
                test does not exist.
        """
        text = (project / self.file).read_text(encoding="utf-8")
        if (found := text.count(self.was)) != 1:
            raise ValueError(f"its text occurs {found} times in {self.file}, not once")
        mutated = text.replace(self.was, self.becomes)
        try:
            if self.file.endswith(".py"):
                ast.parse(self._around(text))
        except SyntaxError as error:
            raise ValueError(f"{self.file} is no Python after it: {error}") from error
        for test in self.killed_by:
            file, _, function = test.partition("::")
            if function not in _functions_of((project / file).read_text(encoding="utf-8")):
                raise ValueError(f"there is no test {test}")
        return mutated

    def _around(self, text: str) -> str:
        """Return the statements of the module that the mutation is in, after it."""
        at = text.index(self.was)
        until = at + len(self.was)
        met = [(first, end) for first, end in _statements(text) if first < until and end > at]
        first, end = (met[0][0], met[-1][1]) if met else (0, len(text))
        return text[min(first, at) : at] + self.becomes + text[until : max(end, until)]

    def key(self, project: Path) -> str:
        """Return a hash of the mutated file, the tests and their files."""
        files = sorted({one.partition("::")[0] for one in self.killed_by})
        tests = [(project / name).read_text(encoding="utf-8") for name in files]
        parts = [self.mutated(project), *self.killed_by, *tests]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Result:
    """What became of a mutation: which test killed it, after how many seconds, or why none did."""

    name: str
    outcome: Literal["killed", "survived", "error"]
    by: str = ""
    seconds: float = 0.0
    why: str = ""

    def __str__(self) -> str:
        return f"{self.outcome:<8} {self.seconds:>8.1f} s  {self.name}"


@cache
def _functions_of(text: str) -> frozenset[str]:
    """Name the functions of a file of tests, which many mutations name."""
    return frozenset(one.name for one in ast.parse(text).body if isinstance(one, ast.FunctionDef))


@cache
def _statements(text: str) -> list[tuple[int, int]]:
    """Return where the statements of a module begin and end, decorators included."""
    starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    found = []
    for one in ast.parse(text).body:
        lines = [one.lineno, *(each.lineno for each in getattr(one, "decorator_list", ()))]
        found.append((starts[min(lines) - 1], starts[one.end_lineno or one.lineno]))
    return found


def read_list(project: Path, text: str = "") -> list[Mutation]:
    """Read the mutations whose name, file or tests contain a text, in any case.

    Raises:
        ValueError: An entry lacks a key or has another one, or two have one name.
    """
    entries = yaml.safe_load((project / LIST).read_text(encoding="utf-8"))
    for entry in entries:
        if entry.keys() != _KEYS or not entry["killed_by"]:
            raise ValueError(f"an entry has the keys {', '.join(sorted(_KEYS))}, not: {entry}")
    names = Counter(entry["name"] for entry in entries)
    if len(names) < len(entries):
        raise ValueError(f"two entries are named: {names.most_common(1)[0][0]}")
    mutations = [Mutation(**entry | {"killed_by": tuple(entry["killed_by"])}) for entry in entries]
    parts = {one: (one.name, one.file, *one.killed_by) for one in mutations}
    return [one for one, words in parts.items() if text.lower() in "\n".join(words).lower()]


def check(
    project: Path, mutations: Sequence[Mutation], say: Callable[[str], None]
) -> Iterator[Result]:
    """Try mutations, and yield what became of each; those with a result are not tried again."""
    file = project / RESULTS
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    pending: list[tuple[str, Mutation]] = []
    for mutation in mutations:
        try:
            key = mutation.key(project)
        except (OSError, ValueError) as error:
            yield Result(mutation.name, "error", why=str(error))
            continue
        if key in known:
            yield Result(**known[key] | {"name": mutation.name})
        else:
            pending.append((key, mutation))
    if not pending:
        return
    with tempfile.TemporaryDirectory(prefix="tidelake-mutations-") as scratch:
        copy = Path(scratch)
        shutil.copy2(project / "pyproject.toml", copy)
        for name in _COPIED:
            shutil.copytree(project / name, copy / name, ignore=_IGNORED)
        tests = sorted({test for _, mutation in pending for test in mutation.killed_by})
        say(f"{len(tests)} tests without a mutation, then {len(pending)} mutations")
        code, output = _run(copy, tests)
        broken = {one[1]: one[0] for one in _FAILED.finditer(output)}
        if code not in (0, 1):
            broken = dict.fromkeys(tests, output[-500:])
        for key, mutation in pending:
            result = _try(copy, mutation, broken)
            say(str(result))
            if result.outcome != "error":
                known[key] = asdict(result)
                file.parent.mkdir(exist_ok=True)
                file.write_text(json.dumps(known, indent=1), encoding="utf-8")
            yield result


def _try(copy: Path, mutation: Mutation, broken: Mapping[str, str]) -> Result:
    for test in mutation.killed_by:
        if test in broken:
            return Result(mutation.name, "error", why=f"fails without it: {broken[test]}")
    file, mutated, began = copy / mutation.file, mutation.mutated(copy), time.monotonic()
    original = file.read_text(encoding="utf-8")
    _write(file, mutated)
    try:
        code, output = _run(copy, ["-x", *mutation.killed_by], _SECONDS)
    except subprocess.TimeoutExpired:
        why = f"no end within {_SECONDS} seconds"
        return Result(mutation.name, "killed", mutation.killed_by[0], _SECONDS, why)
    finally:
        _write(file, original)
    seconds = round(time.monotonic() - began, 1)
    if code == 0:
        return Result(mutation.name, "survived", seconds=seconds)
    found = _FAILED.search(output)
    # With another code than that of failed tests, none was run.
    if code != 1 or found is None:
        return Result(mutation.name, "error", "", seconds, output[-500:])
    return Result(mutation.name, "killed", found[1], seconds)


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    # Python takes a file of the same second and size for the one that it compiled.
    Path(cache_from_source(file)).unlink(missing_ok=True)


def _run(copy: Path, tests: Sequence[str], timeout: float | None = None) -> tuple[int, str]:
    """Run pytest in the copy, whose code comes before any installed one."""
    path = os.pathsep.join((str(copy / "lib"), str(copy)))
    ended = subprocess.run(
        [sys.executable, *_PYTEST, "-m", "", *tests],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        timeout=timeout,
        check=False,
    )
    return ended.returncode, ended.stdout


def table(results: Sequence[Result]) -> str:
    """Draw results within a hundred columns, below each the test that killed it."""
    lines: list[str] = []
    for one in results:
        lines += textwrap.wrap(str(one), _WIDTH, subsequent_indent=_INDENT * 2 + " ")
        # A long name of a test has a line of its own.
        for more in (one.by if len(one.by) < 90 else one.by.replace("::", ":: "), one.why):
            lines += textwrap.wrap(more, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
    counts = Counter(one.outcome for one in results)
    told = ", ".join(f"{counts[word]} {word}" for word in ("killed", "survived", "error"))
    return "\n".join([*lines, f"{len(results)} mutations: {told}"])


def main(arguments: Sequence[str] | None = None, *, project: Path = PROJECT) -> int:
    """Try the mutations that the arguments choose, print what came of it, and return the code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate")
    parser.add_argument("--only", metavar="TEXT", default="", help="in the name, file or a test")
    parser.add_argument("--list", action="store_true", help="print names and tests, try nothing")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args(arguments)
    mutations = read_list(project, options.only)
    if options.list:
        print("\n".join("\n    ".join((one.name, *one.killed_by)) for one in mutations))
        return 0
    results = list(check(project, mutations, lambda text: print(text, file=sys.stderr, flush=True)))
    as_json = json.dumps([asdict(one) for one in results], indent=1)
    print(as_json if options.json else table(results))
    return int(any(one.outcome != "killed" for one in results))


if __name__ == "__main__":
    sys.exit(main())
