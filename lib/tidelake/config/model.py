"""What every configuration model shares: frozen, and closed to unknown keys."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(strict=True, gt=0)]


class Model(BaseModel):
    """A frozen piece of configuration that knows all of its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Problems(ValueError):
    """Several things wrong with one value, each of which becomes its own violation."""

    def __init__(self, problems: Iterable[str]) -> None:
        """Keep the problems, and join them for the message."""
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


def suggestion(word: str, known: Iterable[str]) -> str:
    """Give ``; did you mean X?`` for the known word nearest to one, or nothing.

    Args:
        word: What was written.
        known: What could have been written; compared without regard to case.
    """
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""
