"""Why a query ends while its run goes on, with another one in its place."""

from __future__ import annotations

from tidelake.errors import TidelakeError

# The second where the columns came between the query's plan and its first batch.
_GREW = ("DELTA_SCHEMA_CHANGED", "assertion failed: Invalid batch")


class InputGrewError(TidelakeError):
    """The table that a query follows got columns while it ran; a new query goes on with them."""


class LimitChangedError(TidelakeError):
    """A closed batch taught that the next ones should be of another size; a new query has it."""


def has_grown(told: str) -> bool:
    """Tell from what ended a query whether its input got columns."""
    return any(words in told for words in _GREW)
