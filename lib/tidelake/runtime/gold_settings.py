"""Apply the settings of gold tables, and keep the views of a catalog that analysts read.

Masks and row filters are applied in views: Unity Catalog refuses to read the history and earlier
versions of a table that has them itself, and a hop reads both. The views are

- ``gold.<name>__masked``, if the table has masks or a row filter: the current rows,
- ``gold.<name>__final``: the final rows as of the last epoch,
- ``gold.<name>__consistent``, if the environment asks for it: the rows at the last epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession

from tidelake.config.sections import NOT_UNITY, settings_of
from tidelake.config.table_settings import TableSettings
from tidelake.delta.access import load
from tidelake.delta.commit_metadata import changed_definition, last_epochs, recent_epochs
from tidelake.delta.log import last_commit
from tidelake.delta.properties import apply_settings
from tidelake.delta.store import Catalog, details, sql_text
from tidelake.delta.tables import Table
from tidelake.errors import ConfigError, Violation
from tidelake.names import quoted, split_name
from tidelake.runtime.gold_tables import Target, targets_of
from tidelake.runtime.hop import Run

# Column of a consistent view: the number of the epoch.
_EPOCH = "_epoch"
_MASKED, _FINAL, _CONSISTENT = "__masked", "__final", "__consistent"


def settings_for(run: Run, target: Target) -> TableSettings:
    """Return the settings of a gold table; those of a table of features are empty."""
    found = {name: settings for name, _, settings in settings_of(run.pipeline)}
    return found.get(target.table.name, TableSettings())


def report_unmasked(run: Run) -> None:
    """Report where the tables of masks and row filters can be read without them; once a command."""
    hiding = sorted({name for name, _, one in settings_of(run.pipeline) if one.hides})
    catalog = run.lake.catalog
    if hiding and catalog is None:
        run.progress.say_once(
            f"masks and row_filter of {', '.join(hiding)} have no effect under a root: only a "
            "catalog has the views that apply them."
        )
    elif hiding and catalog is not None and catalog.name not in NOT_UNITY:
        names = ", ".join(sql_text(split_name(name)[1]) for name in hiding)
        rights = f"{quoted(catalog.name)}.information_schema.table_privileges"
        try:
            found = run.spark.sql(
                f"SELECT DISTINCT table_schema, table_name, grantee FROM {rights} "
                f"WHERE table_schema IN ('gold', 'dim') AND table_name IN ({names}) "
                "AND privilege_type IN ('SELECT', 'ALL PRIVILEGES', 'ALL_PRIVILEGES')"
            ).collect()
        except AnalysisException:
            # A catalog of another kind may have functions and views, and no such list.
            run.progress.say_once(
                f"masks and row_filter of {', '.join(hiding)} apply in their views; who can read "
                f"the tables themselves is unknown: {rights} cannot be read."
            )
            return
        readers: dict[str, set[str]] = {name: set() for name in hiding}
        for schema, name, grantee in found:
            readers.get(f"{schema}.{name}", set()).add(str(grantee))
        for name, grantees in readers.items():
            if grantees:
                run.progress.say_once(
                    f"masks and row_filter of {name} apply in its views; the table itself can be "
                    f"read by {', '.join(sorted(grantees))}."
                )


@contextmanager
def naming_settings(run: Run, target: Target) -> Iterator[None]:
    """Convert what Spark refuses in the block to a ConfigError that names the table's place."""
    try:
        yield
    except (AnalysisException, ParseException) as error:
        message = f"{target.table.name}: {str(error).strip().splitlines()[0]}"
        raise ConfigError(run.pipeline.file, [Violation(target.kind.place, message)]) from error


def apply_gold_settings(run: Run) -> None:
    """Apply properties and tags to a pipeline's gold tables, and update their views.

    Views that read an epoch are updated when the next epoch closes: the versions of the current
    one may have the earlier columns.

    Raises:
        ConfigError: Delta or the catalog refuses a setting, or a function does not exist.
    """
    for target in targets_of(run.lake, run.pipeline):
        if target.table.exists:
            with naming_settings(run, target):
                apply_settings(run.spark, target.table, settings_for(run, target))
    ensure_views(run, consistent=False)


def ensure_views(run: Run, *, consistent: bool) -> None:
    """Create, replace and drop the views of a pipeline's gold tables; only in a catalog.

    With ``consistent`` false, those of an epoch are left as they are, unless they hide something or
    the environment wants none: only the next epoch is sure to have a version that can be read and
    has today's columns. One that cannot be made is then dropped.

    Raises:
        ConfigError: A function does not exist, or does not fit its column.
    """
    lake, catalog = run.lake, run.lake.catalog
    # Tables of a backfill get no view: it would have the name of the live one.
    if catalog is None or lake.suffix:
        return
    targets = targets_of(lake, run.pipeline)
    if not any(one.table.exists for one in targets):
        return
    layers = sorted({split_name(one.table.name)[0] for one in targets})
    existing = {f"{layer}.{name}" for layer in layers for name in _views_in(catalog, layer)}
    epochs = lake.epochs()
    recent = recent_epochs(lake) if epochs.exists else []
    epoch = last_epochs(recent).get(run.pipeline.name, {"epoch": 0, "versions": {}})
    for target in targets:
        table, settings = target.table, settings_for(run, target)
        names = {f"{table.name}{suffix}" for suffix in (_MASKED, _FINAL, _CONSISTENT)}
        wanted = settings.hides or target.kind.ends or run.environment.consistent_views
        if not (wanted or names & existing) or not table.exists:
            continue
        columns = load(run.spark, table).columns
        queries: dict[str, str | None] = {_MASKED: None, _FINAL: None}
        if settings.hides:
            queries[_MASKED] = query_of(catalog, table, columns, settings)
        if target.kind.ends and recent:
            bound = _final_bound(run, target, epoch)
            where = f"{quoted(target.kind.ends.column)} <= ({bound})"
            queries[_FINAL] = query_of(catalog, table, columns, settings, where=where)
        if consistent or settings.hides or not run.environment.consistent_views:
            queries |= _at_epoch(run, target, settings, epoch, columns)
        with naming_settings(run, target):
            for suffix, query in queries.items():
                name = f"{table.name}{suffix}"
                view, exists = lake.table(name), name in existing
                try:
                    if query is not None:
                        _ensure_view(run.spark, view, query, exists=exists)
                        continue
                except AnalysisException:
                    if consistent or suffix != _CONSISTENT:
                        raise
                if exists:
                    run.spark.sql(f"DROP VIEW IF EXISTS {view.sql}")


def _final_bound(run: Run, target: Target, epoch: Mapping[str, Any]) -> str:
    """Return the query of the time up to which the newest epoch has final rows of a table."""
    table, pipeline = target.table, run.pipeline.name
    # The name of the pipeline and of the table were validated.
    name = sql_text(table.name)
    bound = (
        f"SELECT max_by(final[{name}], epoch) FROM {run.lake.epochs().sql} "
        f"WHERE pipeline = {sql_text(pipeline)}"
    )
    version = epoch["versions"].get(table.name)
    if version is not None:
        then = last_commit(table, up_to=int(version))
        if changed_definition(then, target.kind.definition):
            # The bounds of epochs so far may be of another column or gap.
            bound += f" AND versions[{name}] > {int(version)}"
    return bound


def _at_epoch(
    run: Run,
    target: Target,
    settings: TableSettings,
    epoch: Mapping[str, Any],
    current: Sequence[str],
) -> dict[str, str | None]:
    """Return the query of a table's rows at an epoch, by the view's ending; None for no view.

    ``current`` are the columns that the table has now.

    Empty if the version cannot be read: the view fails too, and keeps the rights granted on it.
    """
    version = epoch["versions"].get(target.table.name)
    if not run.environment.consistent_views or version is None or run.lake.catalog is None:
        return {_CONSISTENT: None}
    try:
        columns = load(run.spark, target.table, version=version).columns
    except AnalysisException:
        # The table was dropped since, and the next epoch is of the new one.
        return {}
    shown = [name for name in columns if not name.startswith("_")]
    if settings.hides and not set(shown) <= set(current):
        # A column that was renamed or removed since has lost its mask.
        return {_CONSISTENT: None}
    more = f"{int(epoch['epoch'])} AS {_EPOCH}"
    catalog, pin = run.lake.catalog, int(version)
    query = query_of(catalog, target.table, shown, settings, version=pin, more=more)
    return {_CONSISTENT: query}


def query_of(
    catalog: Catalog,
    table: Table,
    columns: Sequence[str],
    settings: TableSettings,
    *,
    version: int | None = None,
    where: str = "",
    more: str = "",
) -> str | None:
    """Return the query of a view on a table's columns, through its masks and its row filter.

    If values are hidden, so are the internal columns, whose state holds them too. ``more`` is a
    further column. None if the row filter reads a column that this version does not have.
    """
    if settings.hides:
        columns = [name for name in columns if not name.startswith("_")]
    conditions = [where] if where else []
    if settings.row_filter is not None:
        used = settings.row_filter.columns
        if not set(used) <= set(columns):
            return None
        arguments = ", ".join(map(quoted, used))
        conditions.append(f"{_function(catalog, settings.row_filter.function)}({arguments})")
    shown = [
        f"{_function(catalog, mask)}({quoted(name)}) AS {quoted(name)}"
        if (mask := settings.masks.get(name))
        else quoted(name)
        for name in columns
    ]
    pin = "" if version is None else f" VERSION AS OF {version}"
    kept = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {', '.join([*shown, more] if more else shown)} FROM {table.sql}{pin}{kept}"


def _function(catalog: Catalog, name: str) -> str:
    parts = name.split(".")
    return ".".join(map(quoted, parts if len(parts) > 2 else [catalog.name, *parts]))


def _views_in(catalog: Catalog, layer: str) -> list[str]:
    views = catalog.session().sql(f"SHOW VIEWS IN {catalog.schema(layer)}").collect()
    return [row["viewName"] for row in views if not row["isTemporary"]]


def _ensure_view(spark: SparkSession, view: Table, query: str, *, exists: bool) -> None:
    """Create a view, or change its query if it differs."""
    if not exists:
        spark.sql(f"CREATE OR REPLACE VIEW {view.sql} AS {query}")
        return
    if details(spark, view).get("View Text") != query:
        # Replacing a view would take back the rights that were granted on it.
        spark.sql(f"ALTER VIEW {view.sql} AS {query}")
