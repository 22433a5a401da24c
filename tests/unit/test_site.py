"""The site's reference says what the code says, and its pages load nothing from elsewhere."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

from tidelake.cli import app
from tidelake.config import Environment
from tidelake.config.pipeline import PipelineFile
from tidelake.config.standard_tables import TABLES
from tidelake.names import BRONZE_COLUMNS, SILVER_RESERVED

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(PROJECT / "docs" / "_site"))
    yield


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


def options() -> Iterator[tuple[str, str]]:
    def walk(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
        if isinstance(command, click.Group):
            for name, inner in command.commands.items():
                yield from walk(inner, f"{path} {name}")
            return
        for one in command.params:
            for name in one.opts if isinstance(one, click.Option) else ():
                yield path, name

    yield from walk(app, "tidelake")


@pytest.mark.usefixtures("site")
def test_each_command_is_in_the_reference_with_all_of_its_options() -> None:
    page = module("reference").commands_page()
    parts = re.split(r"^#+ ", page, flags=re.MULTILINE)
    sections = {part.splitlines()[0]: part for part in parts if part}
    lost = [
        (path, one) for path, one in options() if not re.search(f"[` ]{one}\\b", sections[path])
    ]
    assert lost == []


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("model", [PipelineFile, Environment], ids=lambda model: model.__name__)
def test_each_key_of_each_model_says_what_it_means(model: type) -> None:
    models = module("models")
    seen = [model]
    for one in seen:
        keys = models.keys_of(one)
        assert all(key.meaning and key.type for key in keys)
        seen += [inner for key in keys for inner in key.models if inner not in seen]


@pytest.mark.usefixtures("site")
def test_types_and_defaults_are_said_in_words() -> None:
    keys = {key.name: key for key in module("models").keys_of(PipelineFile)}
    assert (keys["name"].type, keys["name"].default) == ("name", "required")
    assert keys["kind"].type == "`events` or `dimension`"
    watermark = PipelineFile.model_fields["watermark"].annotation
    delay = {key.name: key for key in module("models").keys_of(watermark)}["delay"]
    assert (delay.type, delay.default) == ("duration", "`10 minutes`")


@pytest.mark.usefixtures("site")
def test_each_column_that_every_table_has_is_described() -> None:
    page = module("reference").tables_page()
    assert all(f"| `{name}` |" in page for name in (*BRONZE_COLUMNS, *SILVER_RESERVED))


@pytest.mark.usefixtures("site")
def test_each_table_that_stands_beside_those_of_a_pipeline_is_described() -> None:
    page = module("reference").tables_page()
    beside = {name.replace("__", ".PIPELINE__") for name in TABLES if re.search(r"__|\.", name)}
    told = set(re.findall(r"^\| `((?:\w+\.PIPELINE__|ops\.)\w+)` \|", page, re.MULTILINE))
    assert told == beside


@pytest.mark.usefixtures("site")
def test_the_other_pages_name_what_they_speak_of() -> None:
    reference = module("reference")
    assert "| `ConfigError` | `UsageError` | 2 |" in reference.errors_page()
    assert "`expect_column_values_to_not_be_null`" in reference.suite_page()
    assert "| `recovery_horizon` | duration | `7 days` |" in reference.environment_page()


@pytest.mark.usefixtures("site")
def test_a_link_out_of_the_documents_leads_to_a_page_that_shows_the_file() -> None:
    repository = module("repository")
    text = "[a](../README.md) [b](kafka.md#avro) [c](https://x.org) [d](../jobs)"
    assert repository.relinked(text, "index.md") == (
        "[a](files/README.md.md) [b](kafka.md#avro) [c](https://x.org) [d](files/jobs.md)"
    )
    assert (
        repository.relinked("[a](../../README.md)", "adr/0001.md") == "[a](../files/README.md.md)"
    )
    assert "- `ingest.py`" in repository.show(PROJECT / "jobs")
    assert "```python" in repository.show(PROJECT / "jobs" / "ingest.py")


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('<script src="https://x.org/a.js"></script>', 1),
        ("<img src=//x.org/a.png>", 1),
        ('<link rel="stylesheet" href="https://x.org/a.css">', 1),
        ("@font-face{src:url(https://x.org/a.woff)}", 1),
        ('<a href="https://x.org">x</a> <script src="a.js"></script>', 0),
        ('<link rel="canonical" href="https://x.org/">', 0),
    ],
)
def test_what_a_page_would_load_from_elsewhere_is_found(text: str, count: int) -> None:
    assert len(module("elsewhere").fetched_from_elsewhere(text)) == count


def test_each_picture_of_the_documents_is_there_and_says_what_it_shows() -> None:
    for picture in (PROJECT / "docs" / "pictures").glob("*.svg"):
        text = picture.read_text(encoding="utf-8")
        assert picture.stem == "favicon" or ("<title" in text and "<desc" in text)
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
