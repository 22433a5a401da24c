"""The documents: what they tell people to type can be called, and where they point is something."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from tests.typed import named_in, problem_of, typed_in
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config.source import DeltaSource, FilesSource, KafkaSource, RateSource

PROJECT = Path(__file__).parents[2]
DOCUMENTS = {
    str(path.relative_to(PROJECT)): path.read_text(encoding="utf-8")
    for path in sorted(
        [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *(PROJECT / "docs").rglob("*.md")]
    )
}
# In the runbook a command in a sentence is to be typed as it stands.
TO_BE_TYPED = ("docs/runbook.md",)
TYPED = [
    (name, line)
    for name, text in DOCUMENTS.items()
    for line in dict.fromkeys([*typed_in(text), *(named_in(text) if name in TO_BE_TYPED else ())])
]
NAMED = [(name, line) for name, text in DOCUMENTS.items() for line in named_in(text)]
SOURCES = (FilesSource, KafkaSource, DeltaSource, RateSource)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize(("document", "typed"), TYPED)
def test_each_command_that_is_shown_can_be_called(document: str, typed: str) -> None:
    assert problem_of(typed) == ""


@pytest.mark.parametrize(("document", "named"), NAMED)
def test_each_command_that_is_named_exists_with_its_options(document: str, named: str) -> None:
    assert problem_of(named, whole=False) == ""


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("tidelake mend PIPELINE", "there is no command mend"),
        ("tidelake run PIPELINE --hops gold", "run has no option --hops"),
        ("tidelake repair PIPELINE", "repair lacks ['hop']"),
        ("tidelake repair PIPELINE --hop copper", "'copper' is not one of"),
        ("tidelake generate --to x", "generate lacks ['pipeline']"),
        ("tidelake status one two", "status takes 1 arguments"),
        ("tidelake backfill", "backfill is no command by itself"),
        ("tidelake verify PIPELINE --start yesterday", "'yesterday' is not a timestamp"),
        ("tidelake verify PIPELINE --start", "since has no value"),
    ],
)
def test_a_command_that_could_not_be_called_is_found(typed: str, problem: str) -> None:
    assert problem_of(typed).startswith(problem)


def _pipeline_files(text: str) -> Iterator[str]:
    """Give the YAML blocks of a page that are whole pipeline files."""
    for block in re.findall(r"^ *```yaml[^\n]*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        if all(re.search(rf"^{key}:", block, re.MULTILINE) for key in ("name", "source", "event")):
            yield block


_SUITE = """
name: shop
expectations:
  - type: expect_column_values_to_not_be_null
    kwargs: {column: user_id}
"""
_SHOWN = {name: list(_pipeline_files(text)) for name, text in DOCUMENTS.items()}


@pytest.mark.parametrize("document", [name for name, shown in _SHOWN.items() if shown])
def test_each_pipeline_file_that_is_shown_is_valid(
    document: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (tmp_path / "expectations").mkdir()
    (tmp_path / "expectations" / "shop.yml").write_text(_SUITE, encoding="utf-8")
    for number, text in enumerate(_SHOWN[document]):
        named = re.search(r"^name: (\w+)$", text, re.MULTILINE)
        (folder / f"{named[1] if named else number}.yml").write_text(text, encoding="utf-8")
    code = run_command(app, ["validate", "--all", "--conf", str(tmp_path)])
    assert code == 0, capsys.readouterr().out


def test_where_sources_are_listed_all_are() -> None:
    kinds = [get_args(one.model_fields["kind"].annotation)[0] for one in SOURCES]
    assert f"source<br>{', '.join(kinds)}]" in DOCUMENTS["README.md"]
    assert f"# {' | '.join(kinds)}\n" in DOCUMENTS["docs/pipeline-file.md"]


def _features() -> Iterator[str]:
    """Give what the code says is not built, the parts that it fills in left out."""
    for file in sorted((PROJECT / "lib").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "NotBuiltError":
                yield from (
                    part.value.strip(": ,")
                    for part in ast.walk(node.args[0])
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                )


def test_all_that_is_not_built_is_on_one_page() -> None:
    page = DOCUMENTS["docs/not-built.md"]
    features = {feature for feature in _features() if feature}
    assert len(features) > 10
    assert {feature for feature in features if feature not in page} == set()


def test_commands_were_found_at_all() -> None:
    assert len(TYPED) > 80
    assert len([line for name, line in TYPED if name in TO_BE_TYPED]) > 20


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_link_leads_to_a_file_and_a_heading(document: str) -> None:
    here = (PROJECT / document).parent
    lost = []
    for link in _LINK.findall(DOCUMENTS[document]):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        path = (here / target).resolve() if target else PROJECT / document
        is_there = path.exists() and (not anchor or anchor in headings_of(path))
        lost += [] if is_there else [link]
    assert lost == []


def headings_of(path: Path) -> set[str]:
    """Give the anchors of a document's headings, as GitHub and the site make them."""
    return {
        re.sub(r"[^a-z0-9_ -]", "", line.lstrip("# ").lower()).strip().replace(" ", "-")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("#")
    }
