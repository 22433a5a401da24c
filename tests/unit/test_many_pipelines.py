"""Defaults of a folder, files that stand for many pipelines, and runs of several."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelake.cli.flow import chosen_names, in_order, run_each
from tidelake.config import Environment, FilesSource, Pipeline, load_pipeline, sharing
from tidelake.config.document import Document, Finding
from tidelake.config.locations import find_file, pipeline_names
from tidelake.config.sharing import merge_defaults, replaced
from tidelake.delta.tables import Lake
from tidelake.errors import ConfigError, LockedError, UsageError

LAPTOP = Environment(name="local", root=Path("/lake"))
ORDERS: dict[str, Any] = {
    "name": "orders_${country}",
    "for_each": [{"country": "de", "topic": "orders-de"}, {"country": "at", "topic": "o-at"}],
    "source": {"kind": "files", "path": "${root}/landing/${topic}"},
    "event": {
        "schema": "event_id STRING, event_time TIMESTAMP, user_id STRING",
        "where": "user_id <> '${country}'",
        "id": "event_id",
        "time": "event_time",
    },
    "gold": [
        {
            "name": "orders_${country}_total",
            "window": {"kind": "global"},
            "keys": ["user_id"],
            "measures": {"events": {"count": "*"}},
        }
    ],
}
ITEMS: dict[str, Any] = {
    "name": "items",
    "kind": "dimension",
    "source": {"kind": "files", "path": "${root}/items"},
    "event": {
        "schema": "item STRING, n BIGINT, at TIMESTAMP, category STRING",
        "select": {"item": "item", "category": "category"},
        "id": "item",
        "time": "at",
        "sequence": "n",
    },
    "dimension": {"key": ["item"], "history": False},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pipelines = tmp_path / "conf" / "pipelines"
    pipelines.mkdir(parents=True)
    return pipelines


def write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(yaml.safe_dump(content, sort_keys=False))


def single(name: str, **keys: Any) -> dict[str, Any]:
    text = yaml.safe_dump({key: ORDERS[key] for key in ORDERS if key != "for_each"})
    content: dict[str, Any] = yaml.safe_load(text.replace("${country}", name))
    return {**content, "name": name, "source": {"kind": "files", "path": f"/l/{name}"}, **keys}


def errors(name: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load_pipeline(name, LAPTOP)
    return {one.path: str(one) for one in caught.value.violations}


_TREES = st.dictionaries(
    st.sampled_from("abc"),
    st.recursive(
        st.integers() | st.lists(st.integers(), max_size=2),
        lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        max_leaves=6,
    ),
)


@settings(max_examples=100)
@given(_TREES, _TREES)
def test_mappings_merge_deep_and_all_else_is_replaced(
    own: dict[str, Any], below: dict[str, Any]
) -> None:
    def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
        found: dict[tuple[str, ...], Any] = {}
        for key, value in tree.items():
            inner = isinstance(value, dict) and value
            found |= leaves(value, (*path, key)) if inner else {(*path, key): value}
        return found

    document = Document("own.yml", copy.deepcopy(own))
    merge_defaults(document, Document("_defaults.yml", copy.deepcopy(below)))
    merged = leaves(document.content)
    mine, theirs = leaves(own), leaves(below)
    for path, value in mine.items():
        if value != {}:
            assert merged[path] == value
    for path, value in theirs.items():
        hidden = any(
            one[: len(path)] == path or (path[: len(one)] == one and mine[one] != {})
            for one in mine
        )
        if not hidden:
            assert merged[path] == value


def test_a_file_with_defaults_equals_the_file_written_out(folder: Path) -> None:
    whole = single("shop", watermark={"delay": "1 minute", "idle_after": "2 minutes"})
    write(folder / "shop.yml", whole)
    expected = load_pipeline("shop", LAPTOP).model_dump()
    for key in ("event", "watermark"):
        part = dict(whole[key])
        below = {name: part.pop(name) for name in list(part)[:2]}
        write(folder / "shop.yml", {**whole, key: part})
        write(folder / "_defaults.yml", {key: below})
        assert load_pipeline("shop", LAPTOP).model_dump() == expected
    assert pipeline_names() == ["shop"]


def test_a_finding_names_the_file_where_the_value_stands(folder: Path) -> None:
    write(folder / "shop.yml", single("shop", dedup={"ttl": "soon"}))
    defaults = "watermark:\n  delay: later\n  delya: 1 day\ndedup: {ttl: never}\n"
    (folder / "_defaults.yml").write_text(defaults)
    found = errors("shop")
    assert set(found) == {"watermark.delay", "watermark.delya", "dedup.ttl"}
    assert (
        f"watermark.delay ({Path.cwd()}/conf/pipelines/_defaults.yml, line 2)"
        in found["watermark.delay"]
    )
    assert "_defaults.yml, line 3" in found["watermark.delya"]
    assert "_defaults" not in found["dedup.ttl"]


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n# nothing yet\n", "---\n...\n"])
def test_defaults_without_content_are_none(folder: Path, text: str) -> None:
    write(folder / "shop.yml", single("shop"))
    (folder / "_defaults.yml").write_text(text)
    assert load_pipeline("shop", LAPTOP).name == "shop"
    (folder / "_defaults.yml").write_text("[1]\n")
    assert "is not a mapping of keys to values" in errors("shop")["(whole file)"]


def test_a_pipeline_in_the_folder_has_the_name_of_its_file(folder: Path) -> None:
    write(folder / "shop.yml", single("other"))
    for called in ("shop", str(folder / "shop.yml")):
        assert errors(called) == {
            "name": "name (line 15): other is not the file's name, shop; rename the file to "
            "other.yml, since the pipeline's tables have the name other"
        }
    (folder / "shop.yml").rename(folder / "other.yml")
    assert load_pipeline("other", LAPTOP).name == "other"
    # Files that are named by their paths may be versions of one definition.
    write(folder.parent / "other.strict.yml", single("other"))
    assert load_pipeline(str(folder.parent / "other.strict.yml"), LAPTOP).name == "other"


@pytest.mark.parametrize(
    "key",
    [
        "&n orders",
        "  # c\n      orders",
        "!!str orders",
        ">-\n      orders",
        '"ord\\x65rs"',
        "'orders'",
        '"ord\\\n      ers"',
        "# !!! a ! b\n      !!str  # c\n      orders",
    ],
)
def test_a_second_definition_is_found_however_its_name_is_written(folder: Path, key: str) -> None:
    write(folder / "shop.yml", single("shop"))
    orders = yaml.safe_dump({**single("orders"), "name": "NAME"})
    (folder / "second.yml").write_text(orders.replace("name: NAME", f"name: {key}"))
    write(folder / "orders.yml", single("orders", gold=[]))
    with pytest.raises(UsageError, match="pipeline 'orders' is defined by both"):
        load_pipeline("orders", LAPTOP)
    # A table likewise.
    write(
        folder / "orders.yml", single("orders", gold=[{**single("x")["gold"][0], "name": "sales"}])
    )
    table = yaml.safe_dump(single("second", gold=[{**single("x")["gold"][0], "name": "NAME"}]))
    written = key.replace("orders", "sales").replace("ord\\x65rs", "s\\x61les")
    written = written.replace("ord\\\n      ers", "sa\\\n      les")
    (folder / "second.yml").write_text(table.replace("name: NAME", f"name: {written}"))
    with pytest.raises(UsageError, match=r"sales: .* would both fill this table"):
        load_pipeline("orders", LAPTOP)


@pytest.mark.parametrize(
    "first",
    [
        "!!str name : orders\n",
        "? name # of the pipeline\n# now\n: orders\n",
        "? >-\n  name\n: orders\n",
        '"name" : orders\n',
        '"n\\x61me": orders\n',
        "description: &n orders\nname: *n\n",
        "comments: {&n orders: bought}\nname: *n\n",
        "description: &k name\n*k : orders\n",
    ],
)
def test_a_second_definition_is_found_however_its_key_is_written(folder: Path, first: str) -> None:
    write(folder / "orders.yml", single("orders", gold=[]))
    rest = {key: value for key, value in single("second").items() if key != "name"}
    (folder / "second.yml").write_text(first + yaml.safe_dump(rest))
    with pytest.raises(UsageError, match="pipeline 'orders' is defined by both"):
        load_pipeline("orders", LAPTOP)


def test_files_without_the_name_of_a_pipeline_are_not_parsed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "items.yml", ITEMS)
    for name in ("shop0", "shop1"):
        write(folder / f"{name}.yml", single(name))
    parsed: list[str] = []

    def nothing(file: Path, _content: bytes) -> tuple[frozenset[str], frozenset[str]]:
        parsed.append(file.stem)
        return frozenset(), frozenset()

    monkeypatch.setattr(sharing, "_defined_by", nothing)
    load_pipeline("items", LAPTOP)
    assert parsed == []
    # One that may define it is.
    write(folder / "shop1.yml", single("items"))
    load_pipeline("items", LAPTOP)
    assert parsed == ["shop1"]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "- ? " * 50_000,
        "a0: &a0 {x: 1}\n"
        + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40)),
        "n: " + "1:" * 400_000 + "1",
        "n: &n [*n]",
    ],
    ids=["flow", "block", "merges", "number", "itself"],
)
def test_a_file_without_end_beside_it_does_not_stop_a_pipeline(folder: Path, text: str) -> None:
    write(folder / "shop.yml", single("shop"))
    (folder / "deep.yml").write_text(f"{text} # shop")
    assert load_pipeline("shop", LAPTOP).name == "shop"


def test_a_second_definition_is_found_that_one_reader_of_yaml_refuses(folder: Path) -> None:
    write(folder / "orders.yml", single("orders", gold=[]))
    # libyaml accepts the first, PyYAML the second.
    for text in ("description: a\ttab", "comments: {a:, b}"):
        rest = {key: value for key, value in single("orders").items() if key != "gold"}
        (folder / "second.yml").write_text(f"{text}\n{yaml.safe_dump(rest)}")
        with pytest.raises(UsageError, match="pipeline 'orders' is defined by both"):
            load_pipeline("orders", LAPTOP)


def test_a_comment_of_many_marks_is_read_once(folder: Path) -> None:
    write(folder / "shop.yml", single("shop"))
    (folder / "long.yml").write_text(f"name: # shop {'! # ' * 2000}\n  long\n")
    assert load_pipeline("shop", LAPTOP).name == "shop"


@pytest.mark.parametrize("key", ["name", "for_each", "gold", "joins", "detections", "queries"])
def test_defaults_hold_nothing_that_belongs_to_one_pipeline(folder: Path, key: str) -> None:
    write(folder / "shop.yml", single("shop"))
    write(folder / "_defaults.yml", {key: ORDERS.get(key, [])})
    assert "belongs to one pipeline" in errors("shop")[key]


def test_a_file_stands_for_many_that_are_found_by_name_and_path(folder: Path) -> None:
    write(folder / "orders.yml", ORDERS)
    write(folder / "shop.yml", single("shop"))
    assert pipeline_names() == ["orders_at", "orders_de", "shop"]
    assert find_file("orders_de", "pipeline") == folder / "orders.yml"
    for name in ("orders_de", str(folder / "orders_de.yml")):
        pipeline = load_pipeline(name, LAPTOP)
        assert isinstance(pipeline.source, FilesSource)
        assert (pipeline.name, pipeline.source.path) == ("orders_de", "/lake/landing/orders-de")
        assert pipeline.event.where == "user_id <> 'de'"
        assert pipeline.gold_names == ("gold.orders_de_total",)
        assert pipeline.file == str(folder / "orders.yml")
    with pytest.raises(UsageError, match=r"stands for several pipelines.*orders_de, orders_at"):
        load_pipeline("orders", LAPTOP)
    with pytest.raises(UsageError, match="there is no pipeline 'orders_fr'"):
        load_pipeline("orders_fr", LAPTOP)
    write(folder / "orders_de.yml", single("orders_de"))
    with pytest.raises(UsageError, match="defined by both"):
        load_pipeline("orders_de", LAPTOP)


@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        ({"name": "orders"}, "name", "must contain a parameter"),
        ({"for_each": []}, "for_each", "must be a list"),
        ({"for_each": [{"country": False}]}, "for_each[0].country", "in quotes"),
        ({"for_each": [{"root": "x"}]}, "for_each[0].root", "reserved"),
        ({"for_each": [{"landing": "x"}]}, "for_each[0].landing", "root and landing are reserved"),
        ({"for_each": [{"country": "${root}"}]}, "for_each[0].country", "without ${"),
        ({"for_each": [{"country": "../x"}]}, "for_each[0].country", "without .."),
        ({"for_each": [{"country": "d'e"}]}, "name", "not a valid table name"),
        ({"for_each": [{"country": "a__late"}]}, "name", "reserved for side tables"),
        ({"for_each": [{"country": "de"}] * 2}, "for_each[1]", "second pipeline"),
        ({"for_each": [{"country": "de"}, {"land": "at"}]}, "for_each[1]", "first item"),
        ({"gold": [{**ORDERS["gold"][0], "name": "total"}]}, "gold[0].name", "same table"),
    ],
)
def test_a_broken_for_each_is_named(
    folder: Path, changes: dict[str, Any], place: str, message: str
) -> None:
    write(folder / "orders.yml", {**ORDERS, **changes})
    assert message in errors("orders_de")[place]
    assert message in errors("orders")[place]


def test_a_parameter_does_not_end_a_text_of_sql_and_must_be_known(folder: Path) -> None:
    event = {**ORDERS["event"], "where": "user_id = '${topic}' OR user_id = '${land}'"}
    items = [{"country": "de", "topic": "x' OR 'a' = 'a"}]
    write(folder / "orders.yml", {**ORDERS, "event": event, "for_each": items})
    with pytest.raises(ConfigError) as caught:
        load_pipeline("orders_de", LAPTOP)
    found = [one.message for one in caught.value.violations if one.path == "event.where"]
    assert any("letters, digits and underscores only" in one for one in found)
    assert any("only ${root}, ${landing}, ${country}, ${topic} are" in one for one in found)


def test_a_parameter_is_any_text_among_words_and_topics(folder: Path) -> None:
    to = {"topic": "${topic}.totals", "bootstrap": "${broker}"}
    words = {"description": "Of ${broker}", "comments": {"events": "In ${broker}"}}
    gold = {**ORDERS["gold"][0], **words, "tags": {"of": "${broker}"}, "publish": to}
    items = [{"country": "de", "topic": "o-de", "broker": "h:1, Köln"}]
    write(folder / "orders.yml", {**ORDERS, "gold": [gold], "for_each": items})
    (table,) = load_pipeline("orders_de", LAPTOP).gold
    assert (table.description, table.tags) == ("Of h:1, Köln", {"of": "h:1, Köln"})
    assert table.comments == {"events": "In h:1, Köln"}
    assert table.publish is not None
    assert (table.publish.topic, table.publish.bootstrap) == ("o-de.totals", "h:1, Köln")
    found: list[Finding] = []
    for path in (("detections", 0, "fast", "topic"), ("dimension", "tags", "of")):
        assert replaced("${topic}", path, {"topic": "o-de"}, found) == "o-de"
    assert found == []


def test_a_column_named_like_a_key_of_words_is_still_an_expression(folder: Path) -> None:
    event = {**ORDERS["event"], "select": {"tags": "'${topic}'"}}
    write(folder / "orders.yml", {**ORDERS, "event": event, "gold": []})
    assert "letters, digits and underscores only" in errors("orders_de")["event.select.tags"]


PAIRS: dict[str, Any] = {
    "name": "pairs",
    "left": {"columns": {"at": "event_time"}},
    "right": {"pipeline": "shop", "columns": {"then_at": "event_time"}},
    "on": ["user_id"],
    "within": "1 day",
}


def some(folder: Path) -> list[Pipeline]:
    """Two readers of a dimension, one of which another pipeline joins."""
    enrich = [{"dimension": "items", "on": {"user_id": "item"}, "columns": ["category"]}]
    write(folder / "items.yml", ITEMS)
    write(folder / "shop.yml", single("shop", enrich=enrich))
    write(folder / "clicks.yml", single("clicks", joins=[PAIRS]))
    write(folder / "alone.yml", single("alone"))
    return [load_pipeline(name, LAPTOP) for name in ("clicks", "alone", "shop")]


def test_dimensions_come_first_and_a_joined_pipeline_before_its_reader(folder: Path) -> None:
    names = [one.name for one in in_order(some(folder), Lake(folder))]
    assert names[0] == "items"
    assert sorted(names) == ["alone", "clicks", "items", "shop"]
    assert names.index("shop") < names.index("clicks")


def test_a_pipeline_whose_table_is_a_source_comes_before_its_reader(folder: Path) -> None:
    """Also before the pipelines that look the reader up, a dimension of changes."""
    some(folder)
    for path in ("${root}/silver/zoo/", "${root}/gold/zoo_1d"):
        write(folder / "items.yml", {**ITEMS, "source": {"kind": "delta", "path": path}})
        write(folder / "zoo.yml", single("zoo"))
        chosen = [load_pipeline(name, LAPTOP) for name in ("shop", "items", "zoo")]
        totals = chosen[2].gold[0].model_copy(update={"name": "zoo_1d"})
        chosen[2] = chosen[2].model_copy(update={"gold": (totals,)})
        names = [one.name for one in in_order(chosen, Lake(LAPTOP.root))]
        assert names == ["zoo", "items", "shop"], path
    # A dimension of its readers' events is a run behind them.
    enriching = chosen[0].model_copy(update={"name": "zoo"})
    items = chosen[1].model_copy(update={"dimensions": {}})
    names = [one.name for one in in_order([enriching, items], Lake(LAPTOP.root))]
    assert names == ["items", "zoo"]
    # A table of another lake may have the same name.
    names = [one.name for one in in_order(chosen, Lake(folder / "other"))]
    assert names == ["items", "zoo", "shop"]


def test_a_circle_of_joins_is_refused(folder: Path) -> None:
    clicks, alone, _ = some(folder)
    turned = clicks.joins[0].model_copy(
        update={"right": clicks.joins[0].right.model_copy(update={"pipeline": "clicks"})}
    )
    back = alone.model_copy(update={"joins": (turned,)})
    to = turned.model_copy(update={"right": turned.right.model_copy(update={"pipeline": "alone"})})
    with pytest.raises(UsageError, match=r"form a cycle: .*; run each with tidelake run NAME"):
        in_order([clicks.model_copy(update={"joins": (to,)}), back], Lake(folder))


def test_a_failure_skips_its_readers_and_no_other(folder: Path) -> None:
    ran, lake = list[str](), Lake(folder)

    def run(pipeline: Pipeline) -> None:
        ran.append(pipeline.name)
        if pipeline.name == "items":
            raise LockedError("held")

    results = run_each(in_order(some(folder), lake), run, threading.Event(), lake)
    found = {one.pipeline: (one.outcome, one.reason) for one in results}
    assert ran == ["items", "alone"]
    assert found["shop"] == ("skipped", "items failed")
    assert found["clicks"] == ("skipped", "shop was skipped")
    assert found["alone"] == ("done", "")
    assert next(one.exit_code for one in results if one.outcome == "failed") == 3


def test_patterns_choose_among_all_pipelines(folder: Path) -> None:
    some(folder)
    write(folder / "orders.yml", ORDERS)
    assert chosen_names((), "orders_*, shop,shop", False) == ["orders_at", "orders_de", "shop"]
    assert chosen_names((), None, True) == pipeline_names()
    with pytest.raises(UsageError, match="matches no pipeline"):
        chosen_names((), "x*", False)
    with pytest.raises(UsageError, match="either names"):
        chosen_names(("shop",), None, True)


def test_a_suite_is_shared_by_the_pipelines_of_a_folder(folder: Path) -> None:
    rule = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "user_id"}}
    counted = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "events"}}
    counted["kwargs"] |= {"min_value": 1}
    tables = ["orders_de_total", "orders_at_total", "orders_shop_total"]
    suite = {"name": "orders", "expectations": [rule], "gold": {one: [counted] for one in tables}}
    write(folder.parent / "shared.yml", suite)
    write(folder / "_defaults.yml", {"quality": {"suite": "shared.yml"}})
    write(folder / "orders.yml", ORDERS)
    write(folder / "shop.yml", single("shop"))
    write(folder / "items.yml", {**ITEMS, "quality": None})
    for name, table in zip(("orders_de", "orders_at", "shop"), tables, strict=True):
        found = load_pipeline(name, LAPTOP)
        assert [one.text for one in found.rules] == [f"user_id: {rule['type']}()"]
        assert found.suite is not None
        # The gate judges the tables of this pipeline alone.
        assert list(found.suite.gold) == [table]
    assert load_pipeline("items", LAPTOP).suite is None

    # What fits not every pipeline is refused where it does not, by the suite's file and line.
    counted["kwargs"]["column"] = "evnts"
    write(folder.parent / "shared.yml", {**suite, "gold": {tables[0]: [counted], "ordrs": []}})
    found_errors = errors("orders_de")
    assert set(found_errors) == {f"gold.{tables[0]}[0].kwargs.column", "gold.ordrs"}
    assert f"{folder.parent}/shared.yml, line" in found_errors["gold.ordrs"]
    assert set(errors("shop")) == {"gold.ordrs"}
    # A table of the pipeline itself is none of others, here of a join.
    write(folder / "clicks.yml", single("clicks", joins=[PAIRS]))
    write(folder.parent / "shared.yml", {**suite, "gold": {"pairs": [counted]}})
    assert set(errors("clicks")) == {"gold.pairs[0].kwargs.column"}
    # Nor is one that takes no expectations, of a dimension.
    write(folder / "items.yml", {**ITEMS, "quality": {"suite": "dim.yml"}})
    known = {**rule, "kwargs": {"column": "category"}}
    write(folder.parent / "dim.yml", {**suite, "expectations": [known], "gold": {"items": [known]}})
    assert set(errors("items")) == {"gold.items"}

    counted["kwargs"]["column"] = "events"
    write(folder.parent / "de.yml", {**suite, "name": "of_de"})
    write(folder.parent / "at.yml", {**suite, "name": "of_at"})
    write(folder / "orders.yml", {**ORDERS, "quality": {"suite": "${country}.yml"}})
    for name in ("de", "at"):
        own = load_pipeline(f"orders_{name}", LAPTOP).suite
        assert own is not None
        assert own.name == f"of_{name}"
