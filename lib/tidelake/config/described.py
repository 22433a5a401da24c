"""What a pipeline file may say about its tables, for the people who read them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from tidelake.config.model import Model
from tidelake.config.names import ColumnName

# Delta takes any length; beyond this no tool shows it.
_LONGEST = 1000


def _sentence(text: str) -> str:
    joined = " ".join(text.split())
    if not joined:
        raise ValueError("is empty; leave the key out, or say what it means")
    if len(joined) > _LONGEST:
        raise ValueError(f"is {len(joined):,} characters long; at most {_LONGEST:,} are shown")
    return joined


Words = Annotated[str, AfterValidator(_sentence)]


class Described(Model):
    """A part of a pipeline file that becomes a table.

    Neither key is part of the table's definition: no stored table is redefined by a better text,
    so both are left out when a model is dumped.

    Attributes:
        description: What a row of the table is.
        comments: What a column means, by its name.
    """

    description: Words | None = Field(default=None, exclude=True)
    comments: dict[ColumnName, Words] = Field(default_factory=dict, exclude=True)
