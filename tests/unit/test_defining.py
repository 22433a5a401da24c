"""What the files define: ``validate``, ``list`` and ``fmt``, without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.handmade import NEW_YEAR, write_commit
from tests.unit.test_config_loading import GOOD, JOIN, LAPTOP, changed
from tests.unit.test_many_pipelines import ITEMS, ORDERS, single, write
from tidelake.cli import app, defining
from tidelake.cli.exits import run_command
from tidelake.config import load_pipeline
from tidelake.config.locations import pipeline_names
from tidelake.config.pipeline import written_out
from tidelake.delta.tables import Lake

_KAFKA = {"kind": "kafka", "bootstrap": "h:1", "topic": ["a", "b"]}
_SECRETS = {"kafka.sasl.jaas.config": "env:JAAS", "kafka.security.protocol": "SASL_SSL"}
_REGISTRY = {"url": "https://r", "subject": "s", "credentials": "secret:scope/key"}
_SHARE = {"name": "shares", "window": {"kind": "hopping", "size": "90 minutes", "slide": "1 hour"}}
_ALERTS = {"quarantine_rate": None, "latency_seconds": 5, "stale": "36 hours"}


def _csv(**csv: Any) -> dict[str, Any]:
    return {"kind": "files", "path": "landing", "format": "csv", "csv": csv}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("TIDELAKE_ENV", "TIDELAKE_ROOT"):
        monkeypatch.delenv(name, raising=False)
    pipelines = tmp_path / "conf" / "pipelines"
    pipelines.mkdir(parents=True)
    return pipelines


def _assert_round_trip(name: str, folder: Path) -> dict[str, Any]:
    """Load a definition from its resolved form, in a folder without defaults."""
    original = load_pipeline(name, LAPTOP)
    file = folder.parent / "resolved" / f"{original.name}.yml"
    file.parent.mkdir(exist_ok=True)
    found = written_out(original)
    write(file, found)
    again = load_pipeline(str(file), LAPTOP)
    assert again.model_copy(update={"file": original.file}) == original
    assert written_out(again) == found
    return found


@pytest.mark.parametrize("name", pipeline_names())
def test_a_pipeline_of_the_repository_loads_from_its_resolved_form(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "conf").mkdir()
    _assert_round_trip(name, tmp_path / "conf" / "pipelines")


@pytest.mark.parametrize(
    "changes",
    [
        {"source": {"kind": "files", "path": ["/l/a", "/l/b"], "max_bytes_per_trigger": "1m"}},
        {"source": _csv(delimiter=";", quote=None, nulls=["NA"])},
        {"source": _csv(columns=["event_id", "event_time"])},
        {"source": _csv(columns=["event_id", "event_time"], header=False)},
        {"source": {"kind": "files", "path": "landing", "envelope": "debezium"}},
        {"source": {**_KAFKA, "options": _SECRETS, "starting": "latest"}},
        {"source": {**_KAFKA, "format": "avro", "registry": _REGISTRY}},
        {"source": {"kind": "delta", "path": "/t"}},
        {"source": {"kind": "rate"}},
        {"transform": {"function": "a.b:c", "columns": "more INT"}},
        {"alerts": _ALERTS, "comments": {"n": "No.: 1"}, "description": "Der Laden\u2028"},
        {"joins": [JOIN], "event__where": "n > 1"},
        {
            "gold": [
                {
                    **_SHARE,
                    "measures": {
                        "p95": {"approx_percentile": "n", "p": 0.95},
                        "yes": {"count_if": "action = 'on'"},
                    },
                }
            ]
        },
    ],
)
def test_a_resolved_definition_has_the_same_meaning(folder: Path, changes: dict[str, Any]) -> None:
    write(folder / "shop.yml", changed(**changes))
    _assert_round_trip("shop", folder)


def test_defaults_and_parameters_are_resolved_and_secrets_stay_references(folder: Path) -> None:
    write(folder / "_defaults.yml", {"watermark": {"delay": "90 seconds"}})
    source = {**_KAFKA, "topic": "${topic}", "options": _SECRETS}
    write(folder / "orders.yml", {**ORDERS, "source": source})
    write(folder / "items.yml", ITEMS)
    found = _assert_round_trip("orders_de", folder)
    assert next(iter(found)) == "name"
    assert found["source"]["topic"] == "orders-de"
    assert found["source"]["options"] == _SECRETS
    assert found["watermark"] == {
        "delay": "90 seconds",
        "allowed_lateness": "1 day",
        "max_future_skew": "5 minutes",
        "idle_after": "5 minutes",
    }
    assert "for_each" not in found
    _assert_round_trip("items", folder)


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run_command(app, arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_every_error_of_every_file_is_printed_with_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "orders.yml", ORDERS)
    write(folder / "shop.yml", single("shop"))
    assert _run(capsys, "validate", "--all") == (
        0,
        "".join(f"{n}: ok ({folder}/{f})\n" for n, f in zip(pipeline_names(), _FILES, strict=True)),
        "",
    )
    suite = {"name": "x", "expectations": [{"type": "expect_column_to_exit", "kwargs": {}}]}
    write(folder.parent / "suite.yml", suite)
    broken = single("shop", dedup={"ttl": "soon"}, quality={"suite": "suite.yml"}, foreach=[])
    write(folder / "shop.yml", broken)
    (folder.parent / "environments").mkdir()
    write(folder.parent / "environments" / "local.yml", {"root": "/lake"})
    write(folder.parent / "environments" / "prod.yml", {"root": "/lake", "trigers": {}})
    code, out, err = _run(capsys, "validate", "--all")
    assert (code, err) == (2, "")
    lines = out.splitlines()
    assert [line for line in lines if not line.startswith("  - ")] == [
        f"orders_at: ok ({folder}/orders.yml)",
        f"orders_de: ok ({folder}/orders.yml)",
        "shop: 3 errors",
        f"environment local: ok ({folder.parent}/environments/local.yml)",
        "environment prod: 1 error",
    ]
    assert f"dedup.ttl ({folder}/shop.yml, line" in out
    assert f"foreach ({folder}/shop.yml, line" in out
    assert "did you mean for_each?" in out
    assert f"expectations[0].type ({folder.parent}/suite.yml, line 3)" in out
    code, out, _ = _run(capsys, "validate", "shop", "orders_de", "nope", "--json")
    told = json.loads(out)
    assert (code, told["valid"]) == (2, False)
    shop, orders, nope = told["files"]
    assert [error["path"] for error in shop["errors"] if error["file"] == shop["file"]] == [
        "dedup.ttl",
        "foreach",
    ]
    assert orders == {
        "kind": "pipeline",
        "name": "orders_de",
        "file": f"{folder}/orders.yml",
        "errors": [],
    }
    assert "there is no pipeline 'nope'" in nope["errors"][0]["message"]


@pytest.mark.parametrize("text", ["root: [\n", "rot: /lake\n", "root: l\nsecrets: {a: env:A}\n"])
def test_a_broken_environment_is_a_finding_of_its_own_file(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    write(folder / "orders.yml", single("orders"))
    write(folder / "shop.yml", single("shop", dedup={"ttl": "soon"}))
    (folder.parent / "environments").mkdir()
    (folder.parent / "environments" / "local.yml").write_text(text)
    for names in (["orders", "shop"], ["--all"]):
        code, out, _ = _run(capsys, "validate", *names)
        assert code == 2
        lines = [line for line in out.splitlines() if not line.startswith("  - ")]
        assert lines[:2] == [f"orders: ok ({folder}/orders.yml)", "shop: 1 error"]
        assert [line.partition(":")[0] for line in lines[2:]] == ["environment local"]
    code, out, err = _run(capsys, "validate", "orders", "--resolved")
    assert (code, out, "environment local: " in err) == (2, "", True)
    assert _run(capsys, "fmt", "orders")[0] == 0
    code, out, _ = _run(capsys, "fmt", "--check")
    assert (code, f"environment {folder.parent}/environments/local.yml: " in out) == (2, True)
    # Any other command needs it, and a name that is none is a slip.
    assert _run(capsys, "list")[0] == 2
    assert _run(capsys, "validate", "orders", "--env", "nope")[0] == 2


_FILES = ("orders.yml", "orders.yml", "shop.yml")


def test_resolved_definitions_are_printed_alone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "orders.yml", ORDERS)
    write(folder / "shop.yml", single("shop", description="Größe \u202e"))
    root = ("--root", "/lake")
    code, out, err = _run(capsys, "validate", "shop", "--resolved", *root)
    assert (code, err) == (0, f"shop: ok ({folder}/shop.yml)\n")
    definition = written_out(load_pipeline("shop", LAPTOP))
    assert yaml.safe_load(out) == definition
    assert "\u202e" not in out
    _, out, _ = _run(capsys, "validate", "--all", "--resolved", *root)
    assert [one["name"] for one in yaml.safe_load_all(out)] == pipeline_names()
    _, out, _ = _run(capsys, "validate", "shop", "--resolved", "--json", *root)
    assert json.loads(out)["files"][0]["definition"] == definition


def test_two_files_that_fill_one_table_are_refused_by_both_paths(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = f"{folder}/other.yml and {folder}/shop.yml would both fill this table"
    write(folder / "shop.yml", single("shop"))
    gold = [dict(single("shop")["gold"][0])]
    write(folder / "other.yml", {**single("other"), "gold": gold})
    code, out, _ = _run(capsys, "validate", "other")
    assert code == 2
    assert f"{gold[0]['name']}: {both}" in " ".join(out.split())
    _, out, _ = _run(capsys, "validate", "--all")
    assert out.count("would both fill this table") == 2
    shared = {**ORDERS, "gold": [{**gold[0], "name": "${country}"}]}
    shared["for_each"] = [{"country": gold[0]["name"]}, {"country": "elsewhere"}]
    write(folder / "other.yml", shared)
    assert "would both fill this table" in _run(capsys, "validate", "shop")[1]


def test_two_files_with_one_name_are_refused_by_both_paths(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "shop.yml", single("shop"))
    write(folder / "other.yml", single("shop"))
    write(folder / "free.yml", single("free", description="not the shop, though name: shop"))
    for name in ("shop", "other", str(folder / "other.yml")):
        code, out, _ = _run(capsys, "validate", name)
        assert code == 2
        assert "pipeline 'shop' is defined by both" in out
        assert f"{folder}/shop.yml" in out
        assert f"{folder}/other.yml" in out
        code, _, err = _run(capsys, "run", name)
        assert code == 2
        assert "pipeline 'shop' is defined by both" in err
    assert _run(capsys, "validate", "free")[0] == 0
    write(folder / "other.yml", {**ORDERS, "name": "${country}", "for_each": [{"country": "shop"}]})
    assert "is defined by both" in _run(capsys, "validate", str(folder / "shop.yml"))[1]
    (folder / "other.yml").unlink()
    write(folder / "shop.yaml", single("shop"))
    assert "is defined by both" in _run(capsys, "validate", "shop")[1]
    (folder / "shop.yaml").unlink()
    elsewhere = folder.parent / "shop.yml"
    write(elsewhere, single("shop"))
    assert "define pipeline shop; rename one" in _run(capsys, "validate", "shop", str(elsewhere))[1]
    # Files that are named by their paths may be versions of one definition.
    write(folder.parent / "shop.strict.yml", single("shop"))
    assert _run(capsys, "validate", str(elsewhere))[0] == 0


def test_pipelines_are_listed_with_their_last_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(2):
        write(folder / f"orders_{at}.yml", {**ORDERS, "name": f"orders_of_{at}_${{country}}"})
    (folder / "orders_1.yml").unlink()
    write(folder / "shop.yml", single("shop", dedup={"ttl": "soon"}))
    write(folder / "items.yml", ITEMS)
    root = folder.parent.parent / "lake"
    lake, at = Lake(root), datetime.fromtimestamp(NEW_YEAR / 1000, UTC)
    write_commit(lake.bronze("items"), 0, note={"generation": "g1", "batch": 0})
    code, out, err = _run(capsys, "list", "--root", str(root), "--json")
    assert (code, err) == (0, "")
    items, of_at, _, shop = json.loads(out)["pipelines"]
    assert items == {
        "pipeline": "items",
        "file": f"{folder}/items.yml",
        "kind": "dimension",
        "source": f"{root}/items",
        "tables": ["bronze.items", "silver.items", "dim.items"],
        "to_fill": [],
        "runs": {"bronze": at.isoformat(), "silver": None, "gold": None},
        "error": None,
    }
    assert (of_at["pipeline"], of_at["file"]) == ("orders_of_0_at", f"{folder}/orders_0.yml")
    assert "dedup.ttl" in shop.pop("error")
    assert shop["pipeline"] == "shop"
    monkeypatch.setattr(defining, "now", lambda: at + timedelta(hours=25))
    code, out, err = _run(capsys, "list", "--root", str(root))
    assert code == 0
    assert err == f"shop is invalid; see tidelake validate shop --root {root}\n"
    assert max(map(len, out.splitlines())) <= 100
    rows = {line.split()[0]: line.split() for line in out.splitlines()[4:] if line.strip()}
    assert rows["items"] == ["items", "dimension", "items", "3", "1", "d", "-", "-"]
    assert rows["orders_of_0_at"][:3] == ["orders_of_0_at", "in", "orders_0.yml"]
    assert rows["orders_of_0_at"][4] == "landing/o-at"


def test_neither_command_loads_spark(folder: Path) -> None:
    write(folder / "shop.yml", GOOD)
    code = (
        "import sys; sys.modules['pyspark'] = None; from tidelake.cli import app\n"
        "for words in (['validate', 'shop'], ['list']): app(words, standalone_mode=False)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("shop: ok")
    assert "landing" in done.stdout


_REST = yaml.safe_dump({key: value for key, value in GOOD.items() if key != "name"})
_SHOP = f"# The shop.\nkind: events\nname: shop\n{_REST}"
_WRONG = "name: suite\nexpectations:\n- type: expect_column_to_exit\n"


@pytest.fixture
def unformed(folder: Path) -> Path:
    """Write files of each kind that are valid, and not in canonical form."""
    (folder / "shop.yml").write_text(_SHOP)
    write(folder / "orders.yml", ORDERS)
    (folder / "_defaults.yml").write_text("dedup: {ttl: '2 hours'}\n")
    for name, text in (
        ("environments/local.yml", "master: 'local[*]'\nroot: lake\n"),
        ("expectations/suite.yml", _WRONG.replace("exit", "exist\n  kwargs: {'column': n}")),
    ):
        (folder.parent / name).parent.mkdir()
        (folder.parent / name).write_text(text)
    return folder


def test_fmt_checks_and_formats_all_files_of_the_conf_folder_with_the_same_meaning(
    unformed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(unformed.parent.glob("*/*.yml"))
    before = {file: file.read_text() for file in files}
    meant = {name: load_pipeline(name, LAPTOP) for name in pipeline_names()}
    code, out, err = _run(capsys, "fmt", "--check")
    assert (code, err) == (3, "5 files, 5 to change\n")
    assert sorted(out.splitlines()) == [f"would change {file}" for file in files]
    assert {file: file.read_text() for file in files} == before

    code, out, err = _run(capsys, "fmt")
    assert (code, err) == (0, "5 files, 5 changed\n")
    assert (unformed / "shop.yml").read_text().startswith("# The shop.\nname: shop\nkind: events\n")
    assert {name: load_pipeline(name, LAPTOP) for name in pipeline_names()} == meant
    assert _run(capsys, "fmt", "--check") == (0, "", "5 files, 0 to change\n")
    assert _run(capsys, "fmt", "shop", "--check") == (0, "", "1 file, 0 to change\n")


def test_fmt_takes_names_and_paths_and_prints_json(
    unformed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = unformed.parent / "expectations" / "suite.yml"
    code, out, _ = _run(capsys, "fmt", "shop", str(suite), "--check", "--json")
    found = json.loads(out)
    assert (code, found["check"]) == (3, True)
    assert [(one["kind"], one["file"], one["changed"]) for one in found["files"]] == [
        ("pipeline", str(unformed / "shop.yml"), True),
        ("suite", str(suite), True),
    ]
    code, _, err = _run(capsys, "fmt", "none.yml")
    remedy = "name an existing one, or a pipeline"
    assert (code, err) == (2, f"tidelake: there is no file none.yml; {remedy}\n")


def test_fmt_leaves_a_file_that_does_not_load_as_it_is(
    unformed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = unformed.parent / "expectations" / "suite.yml"
    suite.write_text(_WRONG)
    (unformed / "shop.yml").write_text(_SHOP.replace("event_id STRING", "event_id STRNG"))
    (unformed / "bad.yml").write_text("name: [\n")
    code, out, _ = _run(capsys, "fmt")
    assert code == 2
    assert "did you mean STRING?" in out
    assert "did you mean expect_column_to_exist?" in out
    assert suite.read_text() == _WRONG
    assert (unformed / "shop.yml").read_text().startswith("# The shop.\nkind")
    assert "'" not in (unformed / "_defaults.yml").read_text()


def test_a_write_that_fails_leaves_the_file_and_nothing_beside_it(
    unformed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "x")

    monkeypatch.setattr(Path, "replace", full)
    files = sorted(unformed.iterdir())
    code, out, _ = _run(capsys, "fmt", "shop")
    assert (code, "shop.yml cannot be written: No space left on device" in out) == (2, True)
    assert (unformed / "shop.yml").read_text() == _SHOP
    assert sorted(unformed.iterdir()) == files


def test_a_link_stays_a_link_and_the_files_mode_stays(
    unformed: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    behind = tmp_path / "elsewhere.yml"
    (unformed / "shop.yml").rename(behind)
    behind.chmod(0o640)
    (unformed / "shop.yml").symlink_to(behind)
    assert _run(capsys, "fmt", "shop")[0] == 0
    assert (unformed / "shop.yml").is_symlink()
    assert behind.read_text() != _SHOP
    assert behind.stat().st_mode & 0o777 == 0o640


def test_without_a_conf_folder_fmt_does_not_take_the_demos(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = _run(capsys, "fmt")
    assert (code, err) == (2, "tidelake: there is no conf folder here; name the files to format\n")


def test_outside_a_project_messages_name_tidelakes_own_pipelines_as_that(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    note = (
        "these are Tidelake's own, because there is no project here: this folder has no "
        "conf/pipelines, and neither it nor one above has a tidelake.yml. Pass --conf DIR"
    )
    write(folder / "shop.yml", single("shop"))
    for command in (["validate", "sensors"], ["ledger"], ["list"]):
        monkeypatch.chdir(folder.parents[1])
        code, out, err = _run(capsys, *command)
        assert "Tidelake's own" not in out + err
        monkeypatch.chdir(folder.parent)
        code, out, err = _run(capsys, *command)
        assert code == (0 if command == ["list"] else 2)
        assert " ".join((out + err).split()).count(note) == 1
        assert note not in " ".join(out.split()) or command == ["validate", "sensors"]


def test_a_broken_suite_is_called_one(unformed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = unformed.parent / "expectations" / "shop.yml"
    suite.parent.mkdir(exist_ok=True)
    suite.write_text("name: shop\nexpectations: []\n")
    code, out, _ = _run(capsys, "fmt", str(suite))
    assert (code, out.startswith(f"suite {suite}: 1 error")) == (2, True)
