"""Build once what only depends on the definition: each Column is many calls into the JVM."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tidelake.spark.internals import application_id
from tidelake.spark.tuning import REUSED_OBJECTS

P = ParamSpec("P")
R = TypeVar("R")


def reused(build: Callable[P, R]) -> Callable[P, R]:
    """Keep what a function gives for its first positional argument while the Spark session lives.

    The other arguments must follow from it; without any there is one thing to keep. A batch of a
    few rows spends more time on building its columns than on its rows.
    """
    kept: OrderedDict[tuple[str, int], tuple[object, R]] = OrderedDict()

    def give(*args: P.args, **kwargs: P.kwargs) -> R:
        application = application_id()
        if application is None:
            return build(*args, **kwargs)
        key = args[0] if args else None
        place = (application, id(key))
        # Threads ask at the same time, and one may push out what another has just put in.
        found = kept.get(place)
        if found is None:
            # The key is kept too, or another object could take its identity.
            found = kept[place] = (key, build(*args, **kwargs))
            if len(kept) > REUSED_OBJECTS:
                kept.popitem(last=False)
        return found[1]

    return give
