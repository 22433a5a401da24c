"""The template for `databricks bundle init` gives the project that `tidelake new` makes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.cli.init import plain_name

_ACTION = re.compile(r"\{\{(.*?)\}\}")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "our template"
    assert run_command(app, ["new", str(folder), "--bundle-template"]) == 0
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a project called shop."""
    above = tmp_path_factory.mktemp("new")
    assert run_command(app, ["new", str(above / "shop")]) == 0
    return files_in(above)


def files_in(folder: Path) -> dict[str, bytes]:
    """Give the content of each file by its path."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def rendered(text: str, project_name: str) -> str:
    """Render the only two actions that the template has; any other is an error."""
    values = {".project_name": project_name, '"{{"': "{{"}
    return _ACTION.sub(lambda action: values[action[1]], text)


def test_a_rendered_template_is_a_new_project_byte_for_byte(
    template: Path, project: dict[str, bytes]
) -> None:
    found = {}
    for name, content in files_in(template / "template").items():
        place, text = rendered(name, "shop"), content.decode()
        if name.endswith(".tmpl"):
            place, text = place.removesuffix(".tmpl"), rendered(text, "shop")
        found[place] = text.encode()
    assert found == project


@pytest.mark.long
@pytest.mark.skipif(shutil.which("go") is None, reason="renders with Go's own templates")
def test_gos_templates_render_it_alike(
    template: Path, project: dict[str, bytes], tmp_path: Path
) -> None:
    program = Path(__file__).with_name("render_template.go")
    subprocess.run(["go", "run", program, template / "template", tmp_path, "shop"], check=True)
    assert files_in(tmp_path) == project


def test_the_schema_asks_for_the_name_alone_and_takes_what_new_takes(template: Path) -> None:
    schema = json.loads((template / "databricks_template_schema.json").read_text())
    (name,) = schema["properties"].values()
    assert list(schema["properties"]) == ["project_name"]
    assert name["type"] == "string"
    # The CLI refuses a property without one, and a default that does not fit.
    assert name["description"]
    for text in ("shop", "my_shop2", name["default"]):
        assert re.search(name["pattern"], text)
    for text in ("Shop", "2shop", "my-shop", "my__shop", "shop_", "_shop", "", "shöp", "a/b"):
        assert not re.search(name["pattern"], text)
        assert plain_name(text) != text or not text[:1].isalpha()
    assert rendered(schema["success_message"], "shop").count("shop") == 2
    minimum = schema["min_databricks_cli_version"].removeprefix("v")
    bundle = (template / "template" / "{{.project_name}}" / "databricks.yml.tmpl").read_text()
    assert f'databricks_cli_version: ">= {minimum}"' in bundle


def test_git_keeps_all_of_a_template(template: Path, tmp_path: Path) -> None:
    shutil.copytree(template, tmp_path / "kept")
    git = ["git", "-C", str(tmp_path / "kept")]
    subprocess.run([*git, "init", "--quiet"], check=True)
    listed = subprocess.run(
        [*git, "ls-files", "--others", "--exclude-standard", "-z"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert set(listed.split("\0")) - {""} == files_in(template).keys()


@pytest.mark.parametrize("options", [["--from", "x"], ["--key", "status"], ["--name", "sales"]])
def test_a_template_takes_no_sample(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["new", str(tmp_path / "t"), "--bundle-template", *options]
    assert run_command(app, arguments) == 2
    assert "a template has no sample" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()


def test_a_template_is_put_into_an_empty_folder_and_the_next_command_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "2 templates"
    assert run_command(app, ["new", str(folder), "--bundle-template"]) == 0
    assert capsys.readouterr().err.endswith(f"Next:\n  databricks bundle init '{folder}'\n")
    assert run_command(app, ["new", str(folder), "--bundle-template"]) == 2
    assert "is not empty" in capsys.readouterr().err
