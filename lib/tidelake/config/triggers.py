"""When the batches of an environment's runs begin."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tidelake.config.model import Model

INTERVAL = r"[0-9]+ (milliseconds?|seconds?|minutes?|hours?)"
Trigger = Annotated[str, Field(pattern=rf"^(available-now|continuous|{INTERVAL})$")]


class Triggers(Model):
    """What ``tidelake run`` takes for ``--trigger`` where it is not given.

    Each is ``available-now``, ``continuous`` or an interval such as ``10 seconds``.

    Attributes:
        all: Of a run of all hops.
        bronze: Of a run of this hop alone.
        silver: Of a run of this hop alone.
        gold: Of a run of this hop alone.
    """

    all: Trigger = "available-now"
    bronze: Trigger = "available-now"
    silver: Trigger = "available-now"
    gold: Trigger = "available-now"
