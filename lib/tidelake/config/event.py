"""What a payload holds, and what silver makes of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator
from pydantic import Field as Key

from tidelake.config import types
from tidelake.config.ddl import parse_schema
from tidelake.config.durations import Duration, PositiveDuration
from tidelake.config.model import Model
from tidelake.config.names import ColumnName


def _readable(ddl: str) -> str:
    parse_schema(ddl)
    return ddl


class Event(Model):
    """The contract of one event.

    Attributes:
        schema_ddl: The payload's fields; ``schema`` in YAML.
        where: SQL; rows outside it are filtered.
        select: Silver's columns, name to SQL; None for every payload field.
        id: SQL giving the event's id.
        time: SQL giving the event time.
        evolution: What happens to fields that the schema does not know.
        sequence: Of a dimension: SQL that orders the versions of a key.
        delete_when: Of a dimension: SQL that tells a deletion.
    """

    schema_ddl: Annotated[str, AfterValidator(_readable)] = Key(alias="schema")
    where: str | None = None
    select: Annotated[dict[ColumnName, str], Key(min_length=1)] | None = None
    id: str
    time: str
    evolution: Literal["strict", "additive", "rescue"] = "additive"
    sequence: str | None = None
    delete_when: str | None = None

    @property
    def fields(self) -> tuple[types.Field, ...]:
        """The payload's fields, in order."""
        return parse_schema(self.schema_ddl)


class Watermark(Model):
    """How event time advances, and how late an event may come.

    Attributes:
        delay: How far the watermark trails the largest event time.
        allowed_lateness: How far behind the watermark an event still changes gold.
        max_future_skew: How far ahead of its arrival an event may lie.
        idle_after: A source partition silent for so long is not waited for.
    """

    delay: Duration = timedelta(minutes=10)
    allowed_lateness: Duration = timedelta(days=1)
    max_future_skew: Duration = timedelta(minutes=5)
    idle_after: PositiveDuration = timedelta(minutes=5)


class Dedup(Model):
    """How far back a copy of an event is looked for.

    Attributes:
        ttl: How long after its arrival an id is remembered.
        beyond_ttl: With ``merge``, ids of the same event date are remembered for good.
        prefilter: ``operator`` puts Spark's own deduplication in front; it changes no result.
    """

    ttl: PositiveDuration = timedelta(hours=1)
    beyond_ttl: Literal["merge", "ignore"] = "merge"
    prefilter: Literal["none", "operator"] = "none"

    @property
    def widened(self) -> bool:
        """Whether rows of one event date meet beyond the TTL."""
        return self.beyond_ttl == "merge"
