"""Read the tables in a notebook, without Spark; every result is a pandas frame.

Operations that change or recompute tables need Spark and are in :mod:`tidelake.workbench`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from tidelake.config import Environment, Pipeline, load_environment, load_pipeline
from tidelake.delta.tables import Lake, lake_of
from tidelake.errors import UsageError
from tidelake.ledger.query import Answer, ask_at_epoch, ask_for_user
from tidelake.ledger.side_tables import LateDay, ReasonGroup, list_late, list_quarantine
from tidelake.ledger.terms import read_ledger
from tidelake.replay.fate import fates_of

if TYPE_CHECKING:
    from tidelake.workbench import Workbench


@dataclass(frozen=True)
class Lakehouse:
    """The tables of one environment."""

    environment: Environment
    lake: Lake

    def ask(self, sql: str, *, consistent: bool = False) -> pd.DataFrame:
        """Run one SELECT.

        Args:
            sql: The statement, with tables by their logical names.
            consistent: Whether to read all tables at the versions of the last epoch.

        Returns:
            The rows, with decimals as floats, for plots; for exact decimals use
            :func:`tidelake.ledger.query.ask_for_user`. Integers with nulls are pandas' ``Int64``.
            A column without values has the type of one with values.

        Raises:
            UsageError: The statement is not a query, or cannot be parsed, or two of its columns
                have the same name.
        """
        answer = ask_at_epoch(self.lake, sql)[0] if consistent else ask_for_user(self.lake, sql)
        return _frame(answer)

    def tables(self) -> pd.DataFrame:
        """List the tables."""
        return pd.DataFrame({"table": [table.name for table in self.lake.existing()]})

    def books(self, pipeline: str) -> pd.DataFrame:
        """Return a pipeline's ledger, one row per term."""
        ledger = read_ledger(self.lake, self._pipeline(pipeline)).to_json()
        terms = [(name, value) for name, value in ledger.items() if type(value) is int]
        return pd.DataFrame(terms, columns=["term", "rows"])

    def quarantine(self, pipeline: str) -> pd.DataFrame:
        """List quarantined rows by stage and reason, with an example of each."""
        return _listed(ReasonGroup, list_quarantine(self.lake, self._pipeline(pipeline)))

    def late(self, pipeline: str) -> pd.DataFrame:
        """List late rows by event date."""
        return _listed(LateDay, list_late(self.lake, self._pipeline(pipeline)))

    def fate(
        self, pipeline: str, *, event_id: str | None = None, record_id: str | None = None
    ) -> pd.DataFrame:
        """Return the fates of an event's records, or of one record; one row per record."""
        ids = {"event_id": event_id, "record_id": record_id}
        fates = fates_of(self.lake, self._pipeline(pipeline), **ids)
        return pd.DataFrame(map(asdict, fates)).drop(columns="counted")

    def counted(
        self, pipeline: str, *, event_id: str | None = None, record_id: str | None = None
    ) -> pd.DataFrame:
        """Return the gold rows to which an event or a record contributes."""
        ids = {"event_id": event_id, "record_id": record_id}
        rows = [
            {"table": effect.table, "verdict": effect.verdict, "row": row}
            for fate in fates_of(self.lake, self._pipeline(pipeline), **ids)
            for effect in fate.counted
            for row in effect.rows or (None,)
        ]
        return pd.DataFrame(rows, columns=["table", "verdict", "row"])

    def workbench(self, pipeline: str) -> Workbench:
        """Return a workbench to run, verify or rebuild a pipeline; may start Spark."""
        from tidelake.workbench import Workbench  # noqa: PLC0415

        return Workbench.of(self.environment, self.lake, self._pipeline(pipeline))

    def _pipeline(self, name: str) -> Pipeline:
        return load_pipeline(name, self.environment)


def open_lakehouse(root: str | Path | None = None, *, env: str | None = None) -> Lakehouse:
    """Open the tables of an environment for SQL and pandas; nothing is read, no Spark starts.

    Args:
        root: A folder or ``s3://`` prefix; None for ``TIDELAKE_ROOT``, else the environment's.
        env: The environment's name; None for ``TIDELAKE_ENV``, or ``local``.

    Raises:
        UsageError: There is no such environment, it has neither a root nor a catalog, or the root
            is a ``Path`` of an ``s3://`` prefix.
    """
    if isinstance(root, Path) and root.parts[:1] == ("s3:",):
        # A Path has one slash after the colon, and would be a folder here.
        raise UsageError(f"{root} is a Path; write the prefix as a text, s3://bucket/prefix.")
    environment = load_environment(env, root=None if root is None else str(root))
    return Lakehouse(environment, lake_of(environment))


def _listed(
    kind: type[LateDay | ReasonGroup], rows: Sequence[LateDay | ReasonGroup]
) -> pd.DataFrame:
    """Return rows of a kind as a frame, which has its columns also if there are none."""
    return pd.DataFrame([asdict(row) for row in rows], columns=[one.name for one in fields(kind)])


# A value of each type, for columns without any: pandas holds them as it would hold this one.
# DuckDB's types are in capitals, Spark's are not.
_EXAMPLES: dict[str, Any] = {
    **dict.fromkeys(("TIMESTAMP WITH TIME ZONE", "timestamp"), datetime(1970, 1, 1, tzinfo=UTC)),
    **dict.fromkeys(("TIMESTAMP", "timestamp_ntz"), datetime(1970, 1, 1)),
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"), 0),
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), 0),
    **dict.fromkeys(("FLOAT", "DOUBLE", "DECIMAL", "float", "double", "decimal"), 0.0),
    **dict.fromkeys(("BOOLEAN", "boolean"), False),
    **dict.fromkeys(("VARCHAR", "string"), ""),
}


def _frame(answer: Answer) -> pd.DataFrame:
    answer.refuse_same_names()
    columns = zip(*answer.rows, strict=True) if answer.rows else ((),) * len(answer.columns)
    described = zip(answer.columns, answer.types, columns, strict=True)
    return pd.DataFrame({name: _column(kind, values) for name, kind, values in described})


def _column(kind: str, values: Sequence[Any]) -> pd.Series[Any]:
    """Return values as pandas holds them, apart from decimals, and integers beside nulls."""
    known = [value for value in values if value is not None]
    # A decimal has its digits in brackets.
    example = _EXAMPLES.get(kind.partition("(")[0])
    present = pd.Series(known or [example])
    dtype: Any = present.dtype
    if pd.api.types.infer_dtype(present) == "decimal":
        dtype = float
    elif len(known) < len(values):
        # Floats would round large integers, and no boolean is null.
        dtype = {"int64": "Int64", "uint64": "UInt64", "bool": object}.get(str(dtype), dtype)
    return pd.Series(values, dtype=dtype)
