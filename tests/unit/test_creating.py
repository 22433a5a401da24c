"""`tidelake new`: a project that is found from any folder below it; its paths count from it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.bundle.calls import parse
from tests.samples import land, order
from tidelake import __version__
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.cli.init.sample import read_source
from tidelake.config import load_environment, load_pipeline
from tidelake.config.locations import conf_dir, given_conf, own_conf, pipeline_names
from tidelake.errors import ConfigError, UsageError
from tidelake.kafka.client import TopicRecord
from tidelake.typed import Typed

PROJECT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(empty_folder: Path) -> Path:
    return empty_folder


@pytest.fixture
def shop(folder: Path) -> Path:
    assert run_command(app, ["new", "shop"]) == 0
    return folder / "shop"


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_new_project_is_valid_and_says_what_to_type(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(app, ["new", "my shop"]) == 0
    assert capsys.readouterr().err.endswith(
        "Next:\n  cd 'my shop'\n  tidelake run orders\n  pytest -q\n"
    )
    monkeypatch.chdir("my shop")
    assert run_command(app, ["validate", "--all", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["files"]
    assert [one["name"] for one in found] == ["orders", "dev", "local", "prod"]
    assert load_environment("dev").catalog == "my_shop_dev"
    written = [file for file in Path().rglob("*") if file.is_file()]
    # Of a placeholder, nothing is left.
    placeholder = re.compile("__(project|pipeline|version|example|extra)__")
    assert not [file for file in written if placeholder.search(file.read_text())]
    wheel = f"./wheels/tidelake-{__version__}-py3-none-any.whl[local,quality]"
    assert wheel in Path("requirements.txt").read_text().splitlines()


@pytest.mark.parametrize("options", [[], ["--bundle-template"]], ids=["project", "template"])
def test_a_dry_run_lists_the_files_of_a_project_and_writes_none(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    arguments = ["new", "shop", *options]
    before = sorted(folder.rglob("*"))
    assert run_command(app, [*arguments, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert run_command(app, [*arguments, "--dry-run"]) == 0
    shown = capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before

    assert run_command(app, [*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == told | {"dry_run": False}
    made = sorted(str(one) for one in Path("shop").rglob("*") if one.is_file())
    assert sorted(told["files"]) == made
    assert shown.endswith("Nothing was written.\n")
    assert [line for line in shown.splitlines() if line.startswith("Would write")] == [
        f"Would write {path}" for path in told["files"]
    ]


def test_a_project_without_a_sample_needs_none_of_the_packages_of_local(folder: Path) -> None:
    program = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('numpy', 'pandas', 'pyarrow', 'pyspark')))\n"
        "from tidelake.cli import main\n"
        "main()"
    )
    for words in (("new", "shop"), ("validate", "orders", "--conf", "shop")):
        subprocess.run([sys.executable, "-c", program, *words], cwd=folder, check=True)


def test_editors_find_a_schema_that_accepts_each_file(shop: Path) -> None:
    written = [
        *shop.glob("pipelines/*"),
        *shop.glob("expectations/*"),
        *shop.glob("environments/*"),
    ]
    assert len(written) == 5
    for file in written:
        text = file.read_text()
        named = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
        schema = json.loads((file.parent / named).read_text())
        assert list(Draft202012Validator(schema).iter_errors(yaml.safe_load(text))) == []


def test_the_readme_shows_commands_that_there_are(shop: Path) -> None:
    commands = re.findall(r"^\$ tidelake (.*)$", (shop / "README.md").read_text(), re.MULTILINE)
    assert len(commands) >= 6
    with given_conf(str(shop)):
        for command in commands:
            parse(command.split())


def test_the_ci_file_uses_the_actions_that_the_repository_uses(shop: Path) -> None:
    def actions(file: Path) -> set[str]:
        return set(re.findall(r"uses: (\S+)", file.read_text()))

    own = actions(shop / ".github" / "workflows" / "ci.yml")
    assert own
    assert own <= actions(PROJECT / ".github" / "workflows" / "ci.yml")
    yaml.safe_load((shop / ".github" / "workflows" / "ci.yml").read_text())


def test_a_project_begins_with_a_sample_and_the_options_of_init(folder: Path) -> None:
    land(folder / "events" / "a.jsonl", [order(n) for n in range(60)])
    arguments = ["--from", "events", "--name", "sales", "--key", "status", "--yes"]
    assert run_command(app, ["new", "shop", *arguments]) == 0
    with given_conf("shop"):
        sales = load_pipeline("sales", load_environment())
    assert sales.gold[0].keys == ("status",)
    assert sales.source.path == str(folder / "events")
    assert not (folder / "shop" / "lakehouse").exists()
    # Nor does the text speak of the example's input.
    assert "lakehouse/landing dbfs:" not in (folder / "shop" / "README.md").read_text()


@pytest.mark.parametrize(
    ("sample", "extra"), [("kafka://127.0.0.1:1/orders", "kafka"), ("s3://bucket/orders", "s3")]
)
def test_a_project_installs_what_its_source_needs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, sample: str, extra: str
) -> None:
    land(folder / "events" / "a.jsonl", [order(n) for n in range(60)])
    lines = (folder / "events" / "a.jsonl").read_bytes().splitlines()
    found = [TopicRecord(0, at, line, None) for at, line in enumerate(lines)]
    monkeypatch.setattr("tidelake.cli.init.first_records", lambda *_, **__: found)
    read, local = read_source, str(folder / "events")
    monkeypatch.setattr(
        "tidelake.cli.init.sample.read_source", lambda _, **options: read(local, **options)
    )
    assert run_command(app, ["new", "shop", "--from", sample, "--name", "orders", "--yes"]) == 0
    (line,) = re.findall(r"^\./wheels/.*", Path("shop/requirements.txt").read_text(), re.MULTILINE)
    assert line.endswith(f".whl[local,quality,{extra}]")


def test_a_clone_of_a_project_has_the_input_that_its_readme_runs(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Another pipeline's input is not kept, nor are tables; init adds no line that ignores it all.
    land(shop / "lakehouse" / "landing" / "sales" / "a.jsonl", [order(n) for n in range(60)])
    write(shop / "lakehouse" / "bronze" / "orders" / "a.parquet", "")
    arguments = ["--source", "shop/lakehouse/landing/sales", "--yes", "--conf", "shop"]
    assert run_command(app, ["init", "sales", *arguments]) == 0
    clone = shop.parent / "clone"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(shop)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "A project"], check=True)
    subprocess.run(["git", "clone", "--quiet", str(shop), str(clone)], check=True)

    kept = [str(file.relative_to(clone)) for file in (clone / "lakehouse").rglob("*.*")]
    assert kept == ["lakehouse/landing/orders/orders.jsonl"]
    assert "$ databricks fs cp -r lakehouse/landing dbfs:" in (clone / "README.md").read_text()
    monkeypatch.chdir(clone)
    assert run_command(app, ["run", "orders", "--dry-run", "--json"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["used"], "used is not empty"),
        (["file"], "file is no folder"),
        (["file/below"], "file is no folder"),
        (["日本"], "does not begin with a Latin letter"),
        (["shop", "--from", "missing"], "name another with --from"),
        (["shop", "--key", "status"], "tidelake new DIR --from SAMPLE"),
        (["shop", "--from", "missing"], "missing"),
        (["shop", "--from", "used", "--id", "nope", "--yes"], "nope"),
    ],
)
def test_what_cannot_be_made_is_refused_and_nothing_written(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    land(folder / "used" / "a.jsonl", [order(n) for n in range(3)])
    (folder / "file").touch()
    assert run_command(app, ["new", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "shop").exists()
    assert [file.name for file in (folder / "used").iterdir()] == ["a.jsonl"]


def test_a_project_is_found_from_a_folder_below_and_its_paths_count_from_the_root(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (shop / "pipelines" / "orders.yml").read_text()
    write(shop / "pipelines" / "orders.yml", text.replace("${landing}", "landing"))
    for place in (shop, shop / "tests", shop.parent):
        monkeypatch.chdir(place)
        with given_conf("shop" if place == shop.parent else None):
            environment = load_environment()
            assert environment.root == shop / "lakehouse"
            orders = load_pipeline("orders", environment)
        assert orders.source.path == str(shop / "landing" / "orders")
        # By its path it is the same.
        by_path = load_pipeline(str(shop / "pipelines" / "orders.yml"), environment)
        assert by_path.source.path == str(shop / "landing" / "orders")
    # What is typed counts from where it is typed.
    typed = load_environment(root="here"), load_pipeline(orders.file, environment, source="here")
    assert (typed[0].root, typed[1].source.path) == (shop.parent / "here", "here")


def test_without_a_project_paths_count_from_the_current_folder_as_before(
    folder: Path, shop: Path
) -> None:
    text = (shop / "pipelines" / "orders.yml").read_text().replace("${landing}", "landing")
    write(folder / "conf" / "pipelines" / "orders.yml", text)
    suite = (shop / "expectations" / "orders.yml").read_text()
    write(folder / "conf" / "expectations" / "orders.yml", suite)
    orders = load_pipeline("orders", load_environment())
    assert orders.source.path == "landing/orders"
    assert load_environment().root == folder / "lakehouse"
    # With --conf, from the folder that one would have changed to.
    with given_conf(str(folder / "conf")):
        assert load_pipeline("orders", load_environment()).source.path == str(
            folder / "landing" / "orders"
        )


def test_the_nearest_definitions_win(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = shop / "try" / "conf"
    write(inner / "pipelines" / "clicks.yml", "name: clicks\n")
    monkeypatch.chdir(inner.parent)
    assert conf_dir() == inner
    monkeypatch.chdir(inner)
    assert conf_dir() == shop
    with given_conf(str(inner)):
        assert pipeline_names() == ["clicks"]
        # Not the project above, whose definitions these are not.
        assert own_conf() == (inner, inner.parent)
    with given_conf(str(shop)):
        assert own_conf() == (shop, shop)
    assert pipeline_names() == ["orders"]


def test_a_project_without_pipelines_does_not_get_those_of_tidelake(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "empty" / "tidelake.yml", "conf: .\n")
    monkeypatch.chdir("empty")
    assert pipeline_names() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conf: .\nname: shop\n", "its only key is conf"),
        ("conf: 3\n", "write conf: . for this folder"),
        ("conf: nodir\n", "there is no folder"),
        ("# nothing\n", "tidelake.yml"),
    ],
)
def test_a_broken_marker_is_named(folder: Path, text: str, message: str) -> None:
    write(folder / "tidelake.yml", text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        conf_dir()


def test_a_conf_that_has_no_pipelines_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "nothing").mkdir()
    assert run_command(app, ["list", "--conf", "nothing"]) == 2
    assert "--conf nothing has no folder pipelines" in capsys.readouterr().err
    with pytest.raises(UsageError), given_conf("missing"):
        pass
    # The next command is not affected.
    assert "clickstream" in pipeline_names()


def test_a_command_takes_the_pipeline_of_conf_and_repeats_the_option(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shop.parent)
    assert run_command(app, ["validate", "--conf", "shop"]) == 0
    assert capsys.readouterr().out.startswith("orders: ok")
    assert run_command(app, ["ledger", "--conf", "shop"]) == 2
    assert "orders" in capsys.readouterr().err
    write(shop / "pipelines" / "broken.yml", "name: broken\n")
    assert run_command(app, ["list", "--conf", "shop"]) == 0
    assert "tidelake validate broken --conf shop" in capsys.readouterr().err
    assert Typed(conf="my shop", root="r")("tidelake run x") == (
        "tidelake run x --conf 'my shop' --root r"
    )


def test_init_adds_a_pipeline_to_the_project_that_it_is_called_in(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    land(shop / "events" / "a.jsonl", [order(n) for n in range(60)])
    monkeypatch.chdir(shop / "tests")
    assert run_command(app, ["init", "sales", "--source", "../events", "--yes"]) == 0
    assert pipeline_names() == ["orders", "sales"]
    assert yaml.safe_load((shop / "pipelines" / "sales.yml").read_text())["source"]["path"] == (
        "events"
    )
    assert load_pipeline("sales", load_environment()).source.path == str(shop / "events")
    assert 'HERE.parent / "pipelines" / "sales.yml"' in (shop / "tests/test_sales.py").read_text()
    monkeypatch.chdir(shop.parent)
    arguments = ["--source", "shop/events", "--yes", "--conf", "shop"]
    assert run_command(app, ["init", "more", *arguments]) == 0
    assert (shop / "pipelines" / "more.yml").exists()
    capsys.readouterr()


def test_init_marks_the_folder_that_it_makes_a_project_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, shop: Path
) -> None:
    land(folder / "events" / "a.jsonl", [order(n) for n in range(60)])
    assert run_command(app, ["init", "sales", "--source", "events", "--yes"]) == 0
    own, of_new = (folder / "tidelake.yml").read_text(), (shop / "tidelake.yml").read_text()
    assert own == of_new.replace("conf: .\n", "conf: conf\n")
    monkeypatch.chdir(folder / "conf")
    assert pipeline_names() == ["sales"]
    assert load_pipeline("sales", load_environment()).source.path == str(folder / "events")


def test_init_leaves_the_tables_of_a_conf_folder_where_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the marker, another folder's commands would read and write elsewhere."""
    land(folder / "events" / "a.jsonl", [order(n) for n in range(60)])
    inferred = ["--source", "events", "--yes"]
    assert run_command(app, ["init", "sales", *inferred]) == 0
    (folder / "tidelake.yml").unlink()
    (folder / "other").mkdir()

    def source_from_another() -> object:
        with monkeypatch.context() as patch:
            patch.chdir(folder / "other")
            return load_pipeline("../conf/pipelines/sales.yml", load_environment()).source.path

    before = source_from_another()
    capsys.readouterr()
    note = "write the line conf: conf to tidelake.yml, from whose folder relative paths then count"
    assert run_command(app, ["init", "more", *inferred, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one for one in told["notes"] if one.endswith(note)]
    assert "tidelake.yml" not in told["files"]
    assert run_command(app, ["init", "more", *inferred]) == 0
    assert note in " ".join(capsys.readouterr().err.split())
    assert source_from_another() == before
    # What the note says to write is read.
    write(folder / "tidelake.yml", "conf: conf\n")
    monkeypatch.chdir(folder / "other")
    assert pipeline_names() == ["more", "sales"]
    assert source_from_another() == str(folder / "events")


def test_init_marks_neither_a_conf_folder_that_is_given_nor_tidelakes_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    land(folder / "events" / "a.jsonl", [order(n) for n in range(60)])
    source = ["--source", str(folder / "events"), "--yes"]
    write(folder / "mine" / "conf" / "pipelines" / "a.yml", "name: a\n")
    assert run_command(app, ["init", "sales", *source, "--conf", "mine/conf"]) == 0
    assert (folder / "mine" / "conf" / "pipelines" / "sales.yml").exists()
    checkout = folder / "checkout"
    monkeypatch.setattr("tidelake.config.locations._PACKAGE", checkout / "lib" / "tidelake")
    write(checkout / "conf" / "environments" / "local.yml", "root: lake\n")
    write(checkout / "conf" / "pipelines" / "a.yml", "name: a\n")
    monkeypatch.chdir(checkout)
    assert run_command(app, ["init", "sales", *source]) == 0
    assert (checkout / "conf" / "pipelines" / "sales.yml").exists()
    assert not [*folder.rglob("tidelake.yml")]
    assert "tidelake.yml" not in capsys.readouterr().err


@pytest.mark.long
def test_a_new_project_runs_and_its_test_passes(shop: Path) -> None:
    def typed(*words: str) -> str:
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=shop, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    typed("tidelake.cli", "run", "orders")
    assert "Ledger of orders: balanced" in typed("tidelake.cli", "ledger", "orders")
    counted = typed("tidelake.cli", "sql", "SELECT sum(events) FROM gold.orders_by_status_1m")
    assert counted.split()[-1] == "8"
    typed("pytest", "-q", "-p", "no:cacheprovider")
