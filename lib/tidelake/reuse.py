"""Build columns and schemas once per definition: each Column is many calls into the JVM."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tidelake.spark.internals import application_id
from tidelake.spark.tuning import REUSED_OBJECTS

P = ParamSpec("P")
R = TypeVar("R")


def reused(build: Callable[P, R]) -> Callable[P, R]:
    """Cache a function's result by the identity of its first argument, per Spark application.

    The other arguments must be determined by the first; without arguments there is one result. A
    batch of a few rows spends more time on building its columns than on its rows.
    """
    kept: OrderedDict[tuple[str, int], tuple[object, R]] = OrderedDict()

    def cached(*args: P.args, **kwargs: P.kwargs) -> R:
        application = application_id()
        if application is None:
            return build(*args, **kwargs)
        key = args[0] if args else None
        entry = (application, id(key))
        # Several threads call at once, and one may evict what another has just added.
        found = kept.get(entry)
        if found is None:
            # The key is kept alive, or another object could get its id.
            found = kept[entry] = (key, build(*args, **kwargs))
            if len(kept) > REUSED_OBJECTS:
                kept.popitem(last=False)
        return found[1]

    return cached
