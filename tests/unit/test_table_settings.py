"""Settings of gold tables: what a file may say, and the SQL that a catalog is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.unit.handmade import write_commit
from tests.unit.test_config_loading import (
    CLOUD,
    GOOD,
    JOIN,
    LAPTOP,
    changed,
    violations,
    write,
)
from tidelake.config import Environment, Pipeline, load_pipeline
from tidelake.config.canonical import canonical
from tidelake.config.json_schema import schema_of
from tidelake.config.sections import settings_of
from tidelake.config.table_settings import FILE_RETENTION, TableSettings, interval_of
from tidelake.delta.commit_metadata import hash_of
from tidelake.delta.log import Commit
from tidelake.delta.properties import (
    apply_settings,
    may_differ,
    others_retentions,
    recorded_properties,
    stored_interval,
)
from tidelake.delta.store import Catalog, CatalogTable
from tidelake.delta.tables import Lake
from tidelake.errors import ConfigError, RefusedError
from tidelake.folders import folder
from tidelake.ops.maintenance import plan_upkeep
from tidelake.runtime import gold_settings
from tidelake.runtime.gold_settings import ensure_views, query_of, report_unmasked
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress

_FILTER = {"function": "main.sec.mine", "columns": ["user_id"]}
_HIDING = {"masks": {"user_id": "sec.hide"}, "row_filter": _FILTER}
_STORE = Environment(name="s3", root=folder("s3://lake/here"))
_RETENTION = "delta.logRetentionDuration"


def loaded(where: Path, environment: Environment = LAPTOP, **settings: Any) -> Pipeline:
    raw = changed(**{f"gold__0__{key}": value for key, value in settings.items()})
    return load_pipeline(write(where, raw), environment, source="/landing")


def refusal(where: Path, environment: Environment = LAPTOP, **settings: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(where, environment, **settings)
    return [f"{one.path}: {one.message}" for one in caught.value.violations]


def test_values_of_properties_and_tags_become_text(tmp_path: Path) -> None:
    properties = {_RETENTION: "interval 60 days", "team": "growth", "tier": 1, "pii": True}
    table = loaded(tmp_path, properties=properties, tags={"cost center": 42}).gold[0]
    assert table.properties == {**properties, "tier": "1", "pii": "true"}
    assert table.tags == {"cost center": "42"}
    assert not table.hides


def test_settings_do_not_redefine_a_table(tmp_path: Path) -> None:
    plain, set_ = (
        loaded(tmp_path),
        loaded(tmp_path, properties={"a": "b"}, tags={"c": "d"}, **_HIDING),
    )
    assert hash_of(plain.gold[0]) == hash_of(set_.gold[0])
    assert hash_of(plain) == hash_of(set_)


@pytest.mark.parametrize(
    "key",
    [
        *("delta.enableChangeDataFeed", "DELTA.AppendOnly", "delta.columnMapping.mode"),
        *("delta.feature.clustering", "delta.minReaderVersion", "delta.enableIcebergCompatV2"),
        *("delta.enableInCommitTimestamps", "delta.inCommitTimestampEnablementVersion"),
        *("delta.dataSkippingStatsColumns", "tidelake.settings", "owner", "option.path"),
    ],
)
def test_a_property_that_tidelake_depends_on_is_refused_by_name(tmp_path: Path, key: str) -> None:
    (found,) = refusal(tmp_path, properties={key: "x"})
    assert found.startswith(f"gold[0].properties.{key}: '{key}' cannot be set: ")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"properties": {"a b": "x"}}, "'a b' is not a valid property"),
        ({"properties": {"a": "x\ny"}}, "a must be one line of at most 1,000 characters"),
        ({"properties": {"a": "x" * 1001}}, "a must be one line of at most 1,000 characters"),
        ({"properties": {"a": "x", "A": "x"}}, "A and a differ only in case"),
        ({"properties": {_RETENTION: "60 days"}}, "must look like 'interval 30 days'"),
        ({"properties": {_RETENTION.lower(): "interval 29 days"}}, "at least 'interval 30 days'"),
        (
            {"properties": {"delta.deletedFileRetentionDuration": "interval 6 days"}},
            "at least 'interval 7 days'",
        ),
        ({"tags": {"a.b": "x"}}, "'a.b' is not a valid tag"),
        ({"tags": {"a": "\t"}}, "a must be one line"),
        ({"tags": {f"t{n}": "x" for n in range(51)}}, "are 51; a table can have 50"),
        ({"masks": {"nobody": "a.b.c"}}, "unknown column nobody"),
        ({"masks": {"user_id": "hide"}}, "'hide' is not a function's name"),
        ({"masks": {"user_id": "a.b.c); DROP TABLE x"}}, "is not a function's name"),
        ({"row_filter": {"function": "a.b.c", "columns": ["n"]}}, "unknown column n"),
        ({"row_filter": {"function": "a.b.c", "columns": []}}, "row_filter.columns: "),
        ({"cluster_by": ["user_id"]}, "cluster_by: unknown key"),
    ],
)
def test_what_is_no_setting_is_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    (found,) = refusal(tmp_path, **settings)
    assert message in found


def test_a_derived_column_of_a_masked_one_is_masked_too_however_it_is_written(
    tmp_path: Path,
) -> None:
    hidden: dict[str, Any] = {
        "keys": ["UserId"], "masks": {"UserId": "a.b.c"}, "derive": {"who": "upper(userid)"}
    }  # fmt: skip
    raw = changed(event__select={"UserId": "user_id"}, gold__0=GOOD["gold"][0] | hidden)
    (violation,) = violations(tmp_path, raw)
    assert violation.path == "gold[0].derive.who"
    assert violation.message.startswith("shows what UserId masks")


def test_all_problems_of_settings_come_at_once(tmp_path: Path) -> None:
    found = refusal(tmp_path, properties={_RETENTION: "x", "a": "\n"}, masks={"user_id": "x"})
    assert len(found) == 3


def test_a_mask_is_refused_on_an_object_store_and_accepted_on_a_disk(tmp_path: Path) -> None:
    loaded(tmp_path, LAPTOP, **_HIDING)
    loaded(tmp_path, CLOUD, **_HIDING)
    found = refusal(tmp_path, _STORE, **_HIDING)
    assert [one.partition(":")[0] for one in found] == ["gold[0].masks", "gold[0].row_filter"]
    assert "cannot be enforced under s3://lake/here" in found[0]


def test_a_derived_column_of_a_masked_one_is_masked_too(tmp_path: Path) -> None:
    derive, mask = {"double": "2 * events", "odd": "events % 2"}, "sec.hide"
    (found,) = refusal(tmp_path, derive=derive, masks={"events": mask, "odd": mask})
    assert found == "gold[0].derive.double: shows what events masks; mask this column too"
    loaded(tmp_path, derive=derive, masks={"events": mask, "odd": mask, "double": mask})


def test_tags_need_unity_catalog(tmp_path: Path) -> None:
    own = Environment(name="prod", catalog="spark_catalog", volume=tmp_path)
    loaded(tmp_path, LAPTOP, tags={"a": "b"})
    loaded(tmp_path, CLOUD, tags={"a": "b"})
    assert "need Unity Catalog" in refusal(tmp_path, own, tags={"a": "b"})[0]


def test_joins_and_dimensions_have_settings_too(tmp_path: Path) -> None:
    masks = {"masks": {"at": "sec.hide"}}
    joined = load_pipeline(
        write(tmp_path, changed(joins=[{**JOIN, **masks}])), LAPTOP, source="/landing"
    )
    assert {name: one.masks for name, _, one in settings_of(joined)} == {
        "gold.per_minute": {},
        "gold.pairs": {"at": "sec.hide"},
    }
    raw = {key: value for key, value in GOOD.items() if key != "gold"} | {
        "kind": "dimension",
        "event": {**GOOD["event"], "sequence": "n"},
        "dimension": {"key": ["user_id"], "tags": {"pii": "yes"}, "masks": {"user_id": "a.b.c"}},
    }
    dimension = load_pipeline(write(tmp_path, raw), LAPTOP, source="/landing")
    assert {name: one.tags for name, _, one in settings_of(dimension)} == {
        "dim.shop": {"pii": "yes"},
        "dim.shop__history": {"pii": "yes"},
    }
    raw["dimension"]["masks"] = {"nobody": "a.b.c"}
    with pytest.raises(ConfigError, match=r"dimension\.masks\.nobody"):
        load_pipeline(write(tmp_path, raw), LAPTOP, source="/landing")


def test_fmt_keeps_settings_and_orders_them() -> None:
    text = "name: a\ngold:\n  - tags: {b: c}\n    name: t\n    properties: {x.y: 1}\n"
    assert canonical(text, schema_of("pipeline")) == (
        "name: a\ngold:\n  - name: t\n    properties: {x.y: 1}\n    tags: {b: c}\n"
    )


@pytest.mark.parametrize(("text", "days"), [("interval 2 weeks", 14), ("interval 48 hours", 2)])
def test_an_interval_is_a_length(text: str, days: int) -> None:
    length = interval_of(text)
    assert length is not None
    assert length.days == days
    assert interval_of(text.removeprefix("interval ")) is None


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("interval 30 days", 720),
        ("365 days", 8760),
        ("  INTERVAL  1 Week\t2 DAYS ", 216),
        ("interval 2 days -1 hour 30 minutes", 47.5),
        ("1 seconds 500 milliseconds 1500000 microsecond", 3 / 3600),
        ("interval 0 seconds", 0),
        ("99999999999 weeks", 2_400_000),
    ],
)
def test_a_stored_interval_is_read_as_delta_reads_it(text: str, hours: float) -> None:
    assert stored_interval(text) == timedelta(hours=hours)


@pytest.mark.parametrize(
    "text",
    ["", "interval", "7", "7days", "1.5 days", "1 month", "for ever", "interval 1 day,"],
)
def test_a_stored_text_that_is_no_interval_counts_as_for_ever(text: str) -> None:
    assert stored_interval(text) > timedelta(days=90_000)


@dataclass
class Recorder:
    """A session that answers what is stored, and records every other statement."""

    stored: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    rows: list[dict[str, str]] = field(default_factory=list)

    def sql(self, statement: str) -> Recorder:
        if statement.startswith("SHOW TBLPROPERTIES"):
            self.rows = [{"key": key, "value": value} for key, value in self.stored.items()]
        elif statement.startswith("SELECT"):
            self.asked.append(statement)
            self.rows = [{"tag_name": key, "tag_value": one} for key, one in self.tags.items()]
        else:
            self.said.append(statement)
        return self

    def collect(self) -> list[dict[str, str]]:
        return self.rows


def catalog_of(session: object) -> Catalog:
    return Catalog("main", lambda: cast(SparkSession, session))


def sent(settings: TableSettings, **stored: Mapping[str, str]) -> Recorder:
    """Return what a table of a catalog is sent."""
    session = Recorder(**stored)
    table = CatalogTable("gold.t", catalog_of(session), "gold", "t__green_shop")
    apply_settings(cast(SparkSession, session), table, settings)
    return session


_T = "`main`.`gold`.`t__green_shop`"
_SET = TableSettings(properties={"team": "it's"}, tags={"pii": "o'clock"})


def test_a_first_setting_is_sent_quoted_and_recorded() -> None:
    session = sent(_SET)
    assert session.asked == [
        "SELECT tag_name, tag_value FROM `main`.information_schema.table_tags "
        "WHERE schema_name = 'gold' AND table_name = 't__green_shop'"
    ]
    assert session.said == [
        rf"ALTER TABLE {_T} SET TAGS ('pii' = 'o\'clock')",
        rf"ALTER TABLE {_T} SET TBLPROPERTIES ('team' = 'it\'s', 'tidelake.settings' = "
        r"""'{"properties": {"team": "it\'s"}, "tags": ["pii"]}')""",
    ]


def recorded(settings: TableSettings) -> dict[str, str]:
    """Return a table's properties once the settings are applied."""
    text = sent(settings).said[-1].rpartition("'tidelake.settings' = '")[2]
    return {**settings.properties, "tidelake.settings": text[:-2].replace("\\'", "'")}


def test_settings_that_are_stored_are_not_sent() -> None:
    assert sent(_SET, stored=recorded(_SET), tags=_SET.tags).said == []


def test_keys_that_left_the_file_are_unset_and_those_of_others_are_kept() -> None:
    session = sent(
        TableSettings(),
        stored={**recorded(_SET), "other": "x", "delta.checkpointInterval": "100"},
        tags={**_SET.tags, "theirs": "y"},
    )
    assert session.said == [
        f"ALTER TABLE {_T} UNSET TAGS ('pii')",
        f"ALTER TABLE {_T} UNSET TBLPROPERTIES IF EXISTS ('team', 'tidelake.settings')",
    ]


def test_only_what_differs_is_sent() -> None:
    session = sent(_SET, stored={**recorded(_SET), "team": "other"}, tags={"pii": "other"})
    assert session.said == [
        rf"ALTER TABLE {_T} SET TAGS ('pii' = 'o\'clock')",
        rf"ALTER TABLE {_T} SET TBLPROPERTIES ('team' = 'it\'s')",
    ]


def test_a_table_without_settings_is_sent_nothing() -> None:
    assert (sent(TableSettings()).asked, sent(TableSettings()).said) == ([], [])
    assert recorded_properties(TableSettings()) == {}


def test_only_tables_with_settings_are_looked_at(tmp_path: Path) -> None:
    plain, tagged = loaded(tmp_path).gold[0], loaded(tmp_path, tags={"a": "b"}).gold[0]
    described = {"Table Properties": "[a=b,tidelake.settings={},c=d]"}
    assert not may_differ(plain, {"Table Properties": "[delta.checkpointInterval=100]"})
    assert may_differ(plain, described)
    assert may_differ(tagged, {})


def test_deltas_own_keys_are_compared_without_their_case() -> None:
    settings = TableSettings(properties={_RETENTION.lower(): "interval 60 days"})
    stored = recorded(settings)
    stored[_RETENTION] = stored.pop(_RETENTION.lower())
    assert sent(settings, stored=stored).said == []
    assert (
        f"UNSET TBLPROPERTIES IF EXISTS ('{_RETENTION}',"
        in sent(TableSettings(), stored=stored).said[0]
    )


@pytest.mark.parametrize(
    ("stored", "wanted", "is_kept"),
    [
        # Maintain has lengthened it.
        ("interval 90 days", "interval 40 days", True),
        ("interval 35 days", "interval 40 days", False),
        # Somebody else has.
        ("INTERVAL 1 WEEK 40 DAYS", "interval 40 days", True),
        # The file's own value, which was lowered.
        ("interval 60 days", "interval 40 days", False),
    ],
)
def test_a_retention_that_maintain_lengthened_is_kept(
    stored: str, wanted: str, is_kept: bool
) -> None:
    before = recorded(TableSettings(properties={_RETENTION: "interval 60 days"}))
    now = TableSettings(properties={_RETENTION: wanted})
    (said,) = sent(now, stored={**before, _RETENTION: stored}).said
    assert (f"'{_RETENTION}' = '{wanted}'" not in said) is is_kept


@pytest.mark.parametrize(("stored", "is_unset"), [("60", True), ("120", False)])
def test_a_retention_that_left_the_file_is_unset_unless_it_was_lengthened(
    stored: str, is_unset: bool
) -> None:
    before = recorded(TableSettings(properties={_RETENTION: "interval 60 days"}))
    session = sent(TableSettings(), stored={**before, _RETENTION: f"interval {stored} days"})
    key = f"'{_RETENTION}', " if is_unset else ""
    assert session.said == [
        f"ALTER TABLE {_T} UNSET TBLPROPERTIES IF EXISTS ({key}'tidelake.settings')"
    ]


def test_removed_files_are_kept_as_long_as_the_file_says(tmp_path: Path) -> None:
    week, properties = timedelta(days=7), {FILE_RETENTION.lower(): "interval 60 days"}
    pipeline, lake = loaded(tmp_path, properties=properties), Lake(tmp_path / "lake")
    for table in (lake.silver("shop"), lake.gold("per_minute")):
        write_commit(table, 0)
    plans = plan_upkeep(lake, pipeline, horizon=week)
    kept = {plan.table.name: plan.keep.days for plan in plans}
    assert kept == {"silver.shop": 7, "gold.per_minute": 60}
    plans = plan_upkeep(lake, pipeline, horizon=timedelta(days=90))
    assert {plan.keep.days for plan in plans} == {90}
    named = rf"gold\.per_minute .*{FILE_RETENTION} of 60\.0 days.*shop\.yml"
    with pytest.raises(RefusedError, match=named):
        plan_upkeep(lake, pipeline, horizon=week, keep=timedelta(days=59))
    plans = plan_upkeep(lake, pipeline, horizon=week, keep=timedelta(days=60))
    assert {plan.keep.days for plan in plans} == {60}


def test_what_the_file_set_is_no_retention_of_others() -> None:
    settings = TableSettings(properties={_RETENTION.lower(): "interval 60 days"})
    stored = recorded(settings)
    assert others_retentions({**stored, _RETENTION: "interval 60 days"}) == {}
    changed = {_RETENTION: "interval 90 days"}
    assert others_retentions({**stored, **changed}) == changed


def told(pipeline: Pipeline, lake: Lake, rights: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return what a run says of masks, where these rights are granted."""
    lines: list[str] = []
    answered = SimpleNamespace(sql=lambda _: SimpleNamespace(collect=lambda: list(rights)))
    spark, nowhere = cast(SparkSession, answered), Environment(name="x")
    run = Run(spark, pipeline, lake, nowhere, Progress(lines.append))
    report_unmasked(run)
    # A backfill runs each hop by itself, and a run has an observer of its own.
    report_unmasked(replace(run, progress=replace(run.progress)))
    return lines


def test_a_run_tells_who_can_read_a_table_without_its_masks(tmp_path: Path) -> None:
    hiding, plain = loaded(tmp_path, **_HIDING), loaded(tmp_path)
    rooted, unity = Lake(tmp_path), Lake(tmp_path, catalog=catalog_of(None))
    rights = [("gold", "per_minute", "analysts"), ("gold", "other", "x")]
    assert (
        told(plain, rooted, rights) == told(plain, unity, rights) == told(hiding, unity, []) == []
    )
    assert told(hiding, rooted, []) == [
        "masks and row_filter of gold.per_minute have no effect under a root: only a catalog has "
        "the views that apply them."
    ]
    assert told(hiding, unity, rights) == [
        "masks and row_filter of gold.per_minute apply in its views; the table itself can be read "
        "by analysts."
    ]


def test_a_catalog_without_a_list_of_rights_is_no_error(tmp_path: Path) -> None:
    def fail(_: str) -> None:
        raise AnalysisException("TABLE_OR_VIEW_NOT_FOUND")

    lines: list[str] = []
    session = cast(SparkSession, SimpleNamespace(sql=fail))
    lake = Lake(tmp_path, catalog=catalog_of(session))
    hiding, nowhere = loaded(tmp_path, **_HIDING), Environment(name="x")
    report_unmasked(Run(session, hiding, lake, nowhere, Progress(lines.append)))
    (line,) = lines
    assert line.startswith("masks and row_filter of gold.per_minute apply in their views; ")
    assert line.endswith("`main`.information_schema.table_privileges cannot be read.")


@dataclass
class Viewed:
    """A session of a catalog with views; it records what it is told, and which tables are read."""

    views: Sequence[str] = ()
    newest: int = 99
    refuses: str = "nothing"
    # Of the table, as of the last epoch.
    definition: str | None = None
    # A column that only earlier versions have.
    earlier: Sequence[str] = ()
    said: list[str] = field(default_factory=list)
    read: list[int | None] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    catalog = SimpleNamespace(tableExists=lambda _: True)

    def sql(self, statement: str) -> Viewed:
        self.rows = []
        if self.refuses in statement:
            raise AnalysisException("UNRESOLVED_COLUMN")
        if statement.startswith("SHOW VIEWS"):
            self.rows = [{"viewName": name, "isTemporary": False} for name in self.views]
        elif not statement.startswith("DESCRIBE"):
            self.said.append(statement)
        return self

    def collect(self) -> list[dict[str, Any]]:
        return self.rows

    def last_commit(self, _: object, *, up_to: int) -> Commit:
        return Commit(up_to, datetime.now(UTC), None, {"definition": self.definition})

    def load(self, *_: object, version: int | None = None) -> object:
        self.read.append(version)
        if version is not None and version > self.newest:
            raise AnalysisException("DELTA_VERSION_NOT_FOUND")
        more = () if version is None else self.earlier
        return SimpleNamespace(columns=["window_end", "user_id", "events", *more, "_batch"])


def viewed(
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    session: Viewed,
    *,
    wants: bool = True,
    consistent: bool = True,
) -> Viewed:
    """Update views where the last epoch, the third, is at version 57 of the table."""
    noted = SimpleNamespace(note={"last": {"shop": {"epoch": 3, "versions": {_NAME: 57}}}})
    monkeypatch.setattr(gold_settings, "load", session.load)
    monkeypatch.setattr(gold_settings, "last_commit", session.last_commit)
    monkeypatch.setattr(gold_settings, "recent_epochs", lambda _: [noted])
    lake = Lake(Path("/volume"), catalog=catalog_of(session))
    environment = Environment(name="x", consistent_views=wants)
    run = Run(cast(SparkSession, session), pipeline, lake, environment, Progress(lambda _: None))
    ensure_views(run, consistent=consistent)
    return session


_NAME = "gold.per_minute"


def test_a_view_of_an_epoch_whose_version_is_gone_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ever, view = loaded(tmp_path, window={"kind": "global"}), "per_minute__consistent"
    name = f"`main`.`gold`.`{view}`"
    there = viewed(ever, monkeypatch, Viewed([view]))
    assert there.said == [
        f"ALTER VIEW {name} AS SELECT `window_end`, `user_id`, `events`, 3 AS _epoch "
        "FROM `main`.`gold`.`per_minute` VERSION AS OF 57"
    ]
    # The table was dropped and made anew.
    assert viewed(ever, monkeypatch, Viewed([view], newest=1)).said == []
    # Before a batch no version of an epoch is read.
    before = viewed(ever, monkeypatch, Viewed([view]), consistent=False)
    assert (before.said, before.read) == ([], [None])
    for consistent in (True, False):
        off = viewed(ever, monkeypatch, Viewed([view]), wants=False, consistent=consistent)
        assert off.said == [f"DROP VIEW IF EXISTS {name}"]


def test_a_view_of_an_epoch_is_masked_before_a_batch_or_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hiding = loaded(tmp_path, window={"kind": "global"}, **_HIDING)
    views = ["per_minute__masked", "per_minute__consistent"]
    _, masked = viewed(hiding, monkeypatch, Viewed(views), consistent=False).said
    assert masked.startswith("ALTER VIEW `main`.`gold`.`per_minute__consistent` AS SELECT")
    assert "`main`.`sec`.`hide`(`user_id`)" in masked
    # A column that was renamed since has no mask any more.
    _, dropped = viewed(
        hiding, monkeypatch, Viewed(views, earlier=["email"]), consistent=False
    ).said
    assert dropped == "DROP VIEW IF EXISTS `main`.`gold`.`per_minute__consistent`"
    # The epoch's version may have columns that the mask does not take.
    fails = Viewed(views, refuses="VERSION AS OF 57")
    _, dropped = viewed(hiding, monkeypatch, fails, consistent=False).said
    assert dropped == "DROP VIEW IF EXISTS `main`.`gold`.`per_minute__consistent`"
    for refuses, consistent in (("VERSION AS OF 57", True), ("__masked` AS", False)):
        with pytest.raises(ConfigError, match="UNRESOLVED_COLUMN"):
            viewed(hiding, monkeypatch, Viewed(views, refuses=refuses), consistent=consistent)


def test_the_view_of_final_rows_waits_for_an_epoch_under_the_definition_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bound of another definition may be of another column, or of a shorter gap."""
    ends = loaded(tmp_path)
    bound = (
        "SELECT max_by(final['gold.per_minute'], epoch) FROM `main`.`ops`.`epochs` "
        "WHERE pipeline = 'shop'"
    )
    for definition, more in (
        (None, ""),
        (hash_of(ends.gold[0]), ""),
        ("of before", " AND versions['gold.per_minute'] > 57"),
    ):
        (said,) = viewed(ends, monkeypatch, Viewed(definition=definition), wants=False).said
        assert said.endswith(f" WHERE `window_end` <= ({bound}{more})"), said


def test_a_table_that_needs_no_view_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ever, ends = loaded(tmp_path, window={"kind": "global"}), loaded(tmp_path)
    assert viewed(ever, monkeypatch, Viewed(["other__masked"]), wants=False).read == []
    assert viewed(ends, monkeypatch, Viewed(), wants=False).read == [None]


_COLUMNS = ("user_id", "events", "_batch")
_TABLE = CatalogTable("gold.t", catalog_of(None), "gold", "t")


def query(settings: TableSettings, columns: tuple[str, ...] = _COLUMNS, **more: Any) -> str | None:
    return query_of(catalog_of(None), _TABLE, columns, settings, **more)


def test_a_view_masks_filters_and_leaves_out_internal_columns() -> None:
    hiding = TableSettings.model_validate(_HIDING)
    assert query(hiding, where="`end` <= 1") == (
        "SELECT `main`.`sec`.`hide`(`user_id`) AS `user_id`, `events` FROM `main`.`gold`.`t` "
        "WHERE `end` <= 1 AND `main`.`sec`.`mine`(`user_id`)"
    )


def test_a_view_of_an_epoch_reads_its_version() -> None:
    assert query(TableSettings(), version=7, more="3 AS _epoch") == (
        "SELECT `user_id`, `events`, `_batch`, 3 AS _epoch FROM `main`.`gold`.`t` VERSION AS OF 7"
    )


def test_rows_that_cannot_be_filtered_are_not_shown() -> None:
    hiding = TableSettings.model_validate(_HIDING)
    assert query(hiding, ("events",)) is None
