"""Processes that do not import pandas as long as nobody uses it.

pyarrow and DuckDB look for pandas when they convert a value of Python, and import it where it is
installed: a second of CPU and 60 MB in each command that reads tables and in each Python worker.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Finder:
    """Finds no pandas while it is hidden; tells pyarrow, if that looked in vain, of its import."""

    is_hidden = True
    is_missed = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module for ``import``; None leaves it to the other finders."""
        if name != "pandas":
            return None
        if self.is_hidden:
            raise ModuleNotFoundError(f"pandas is not used by {__package__}", name=name)
        others = (one.find_spec(name, path, target) for one in sys.meta_path if one is not self)
        spec = next(filter(None, others), None)
        if self.is_missed and spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_tell(module: ModuleType) -> None:
                load(module)
                # Of a version that pyarrow does not take it warns where it is used.
                with contextlib.suppress(ImportError):
                    _ = sys.modules["pyarrow.lib"]._pandas_api.compat

            spec.loader.exec_module = load_and_tell  # type: ignore[method-assign]
        return spec


_FINDER = _Finder()
# Spark sets it in the environment of Python workers, wherever they run.
_IN_WORKERS = "TIDELAKE_WORKERS_WITHOUT_PANDAS"


def hide_pandas() -> None:
    """Let no library import pandas until :func:`show_pandas`, unless this process has it."""
    if "pandas" in sys.modules:
        return
    _FINDER.is_hidden = True
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def show_pandas() -> None:
    """Let pandas be imported again.

    pyarrow looks for it once, under a lock that it also needs to be told. So it looks here, while
    there is none, or after this and for itself.
    """
    if _FINDER.is_hidden and _FINDER in sys.meta_path:
        api = getattr(sys.modules.get("pyarrow.lib"), "_pandas_api", None)
        _FINDER.is_missed = api is not None and not api.have_pandas
    _FINDER.is_hidden = False


def leave_out_of_workers(*, of_users: bool) -> None:
    """Let the Python workers of sessions that this process starts do without pandas.

    Not where functions of users run in them (``of_users``): such a process knows no null of pandas
    inside of a list or a struct. Workers of sessions that others start have it.
    """
    os.environ[_IN_WORKERS] = "" if of_users else "1"


def worker_settings() -> dict[str, str]:
    """Return the setting of a Spark session that tells its Python workers."""
    return {f"spark.executorEnv.{_IN_WORKERS}": os.environ.get(_IN_WORKERS, "")}


def is_left_out_of_workers() -> bool:
    """Return whether this process, a worker, does without pandas."""
    return bool(os.environ.get(_IN_WORKERS))
