"""A dimension's tables: what holds for each key now, and what held when."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidelake.config import DimensionSpec
from tidelake.delta.merge import merge_rows
from tidelake.delta.notes import Ends
from tidelake.gold import GONE
from tidelake.gold.dimensions import CHANGE, VALID_FROM, VALID_TO, latest, versions
from tidelake.runtime.held import Held
from tidelake.runtime.targets.target import OWN, Inputs, Target, stamped


@dataclass(frozen=True)
class _Dimension(Target):
    """Follows from all changes of a key; a batch computes its keys anew.

    Attributes:
        spec: The definition.
        columns: The columns beside the key.
    """

    spec: DimensionSpec
    columns: tuple[str, ...]

    @property
    def definition(self) -> BaseModel:
        """The dimension."""
        return self.spec

    @property
    def ends(self) -> Ends | None:
        """A late change may come for any row."""
        return None

    def expressions(self) -> dict[str, tuple[str, Column]]:
        """Give the key."""
        return {f"key.{name}": (OWN, F.col(name)) for name in self.spec.key}

    def of_all(self, inputs: Inputs) -> DataFrame:
        """Replay all changes."""
        return self._rows(inputs.whole(OWN)).where(~F.col(GONE)).drop(GONE)

    def merge(self, inputs: Inputs, note: dict[str, Any], hold: Held) -> None:
        """Replay all changes of the batch's keys."""
        if not note["eligible"]:
            self.close_unchanged(inputs, note)
            return
        keys = inputs.taken[OWN].select(*self.spec.key).distinct()
        changes = inputs.whole(OWN).join(keys, on=list(self.spec.key), how="left_semi")
        rows = stamped(self._rows(changes), generation=note["generation"], batch=note["batch"])
        merge_rows(hold(rows), self.table, on=self._same, changed=self._changed, note=note)

    @abstractmethod
    def _rows(self, changes: DataFrame) -> DataFrame:
        """Compute rows with ``_gone`` from changes."""

    @property
    @abstractmethod
    def _same(self) -> str:
        """SQL over ``t`` and ``s`` that finds a row's earlier state."""

    @property
    @abstractmethod
    def _changed(self) -> str:
        """SQL over ``t`` and ``s`` that tells whether it changed."""


@dataclass(frozen=True)
class Latest(_Dimension):
    """One row a key that is not deleted."""

    @property
    def identity(self) -> tuple[str, ...]:
        """The key."""
        return tuple(self.spec.key)

    @property
    def moment(self) -> None:
        """A key holds at no one instant."""
        return None

    def _rows(self, changes: DataFrame) -> DataFrame:
        return latest(changes, self.spec.key, self.columns)

    @property
    def _same(self) -> str:
        return " AND ".join(f"t.{name} = s.{name}" for name in self.spec.key)

    @property
    def _changed(self) -> str:
        return f"t.{CHANGE} <> s.{CHANGE}"


@dataclass(frozen=True)
class Versions(_Dimension):
    """One row a change that held for some time."""

    @property
    def identity(self) -> tuple[str, ...]:
        """The change."""
        return (CHANGE,)

    @property
    def moment(self) -> str:
        """When it began to hold."""
        return VALID_FROM

    def _rows(self, changes: DataFrame) -> DataFrame:
        return versions(changes, self.spec.key, self.columns)

    @property
    def _same(self) -> str:
        return f"t.{CHANGE} = s.{CHANGE}"

    @property
    def _changed(self) -> str:
        return f"NOT t.{VALID_TO} <=> s.{VALID_TO}"
