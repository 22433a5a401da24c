"""Libraries do not load pandas where nobody uses it, and know it where somebody does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidelake.cli import flow
from tidelake.config import load_environment, load_pipeline
from tidelake.delta.tables import Lake
from tidelake.folders import folder
from tidelake.spark import session
from tidelake.without_pandas import is_left_out_of_workers

_CONVERTS = "import duckdb, pyarrow; pyarrow.array([0]); duckdb.execute('SELECT $1', ['a'])"
# pyarrow turns this into an integer column only if it knows pandas.
_KNOWN = (
    "import pandas, pyarrow; numbers = pandas.Series([1, None], dtype='Int64'); "
    "assert str(pyarrow.Array.from_pandas(numbers).type) == 'int64'"
)


def _run(code: str, folder: Path | None = None) -> None:
    prepared = "from tidelake.without_pandas import leave_out_of_workers\n"
    # A test before this one may have started a run in this process.
    prepared += "leave_out_of_workers(of_users=True)\n"
    done = subprocess.run(
        [sys.executable, "-c", prepared + code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_a_command_loads_pandas_only_if_it_uses_it() -> None:
    _run(f"""
import sys
from tidelake import cli
def command(*_):
    {_CONVERTS}
    assert "pandas" not in sys.modules
    return 0
cli.run_command = command
cli.main("sql")
{_KNOWN}
""")


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(
            "from tidelake.spark.session import active_session; active_session()",
            marks=pytest.mark.long,
        ),
        "from tidelake.spark.session import build_session\n"
        "try: build_session('mars')\n"
        "except Exception: pass",
        pytest.param(
            "from tidelake.cli.flow import _load_ahead; _load_ahead()", marks=pytest.mark.long
        ),
    ],
)
def test_where_spark_is_used_pandas_is_there(use: str) -> None:
    _run(f"""
from tidelake.without_pandas import hide_pandas
hide_pandas()
{_CONVERTS}
{use}
{_KNOWN}
""")


def test_a_function_of_the_user_may_import_it(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import pandas\n\ndef change(rows):\n    return rows\n")
    _run(
        """
from pathlib import Path
from tidelake.silver.transform import _imported
from tidelake.without_pandas import hide_pandas
hide_pandas()
assert _imported("own:change", Path.cwd(), "transform").__name__ == "change"
""",
        tmp_path,
    )


def test_a_python_worker_decodes_without_it_and_may_import_it() -> None:
    _run(f"""
import sys
from tidelake.bronze.whole_files import to_chunks
from tidelake.silver.csv_decode import CsvDecoder
from tidelake.spark.workers import prepare_worker
from tidelake.without_pandas import leave_out_of_workers
leave_out_of_workers(of_users=False)
prepare_worker()
{_CONVERTS.partition("; duckdb")[0]}
assert "pandas" not in sys.modules
{_KNOWN}
""")


def test_a_python_worker_of_users_functions_knows_its_nulls_in_lists() -> None:
    _run("""
import pyarrow
from tidelake.spark.workers import prepare_worker
prepare_worker()
pyarrow.array([0])
import pandas
lists, numbers = pandas.Series([[1, pandas.NA]]), pyarrow.list_(pyarrow.int64())
assert pyarrow.Array.from_pandas(lists, type=numbers).to_pylist() == [[1, None]]
""")


@pytest.mark.parametrize("has_transform", [False, True])
def test_workers_do_without_it_where_no_function_of_the_user_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_transform: bool
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ})
    monkeypatch.setattr(session, "build_session", lambda *_, **__: pytest.fail("built"))
    environment = load_environment("local", root=str(tmp_path))
    pipeline = load_pipeline("clickstream", environment)
    if has_transform:
        pipeline = pipeline.model_copy(update={"transform": object()})
    place: Any = SimpleNamespace(environment=environment, lake=Lake(folder(str(tmp_path))))
    with pytest.raises(pytest.fail.Exception, match="built"):
        flow.started(place, pipelines=[pipeline]).__enter__()
    assert is_left_out_of_workers() is not has_transform


def test_a_process_that_has_it_keeps_it() -> None:
    _run(f"""
import pandas
from tidelake.without_pandas import hide_pandas
hide_pandas()
{_KNOWN}
""")


@pytest.mark.parametrize(
    "use",
    [
        # pyarrow looks for it only then.
        "hide_pandas(); import pyarrow; show_pandas(); pyarrow.array([0])",
        "hide_pandas(); show_pandas(); import pyarrow; pyarrow.array([0])",
        "hide_pandas(); import pyarrow; pyarrow.array([0]); show_pandas()",
        # Others ask where it is, without an import.
        "hide_pandas(); import pyarrow; show_pandas(); find_spec('pandas'); find_spec('pandas')",
        "hide_pandas(); show_pandas(); hide_pandas(); import pyarrow; show_pandas()",
    ],
)
def test_whoever_looks_first_pyarrow_knows_it_later(use: str) -> None:
    _run(f"""
from importlib.util import find_spec
from tidelake.without_pandas import hide_pandas, show_pandas
{use}
{_KNOWN}
""")


def test_a_thread_that_imports_it_and_one_that_converts_do_not_wait_for_each_other() -> None:
    _run(f"""
import threading
import pyarrow
from tidelake.without_pandas import hide_pandas, show_pandas
hide_pandas()
show_pandas()
loading = threading.Thread(target=lambda: __import__("pandas"))
loading.start()
pyarrow.array([0])
loading.join()
{_KNOWN}
""")


def test_a_version_that_pyarrow_does_not_take_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text("__version__ = '1.0.0'\n")
    _run(
        """
import sys; sys.path.insert(0, "")
import pyarrow
from tidelake.without_pandas import hide_pandas, show_pandas
hide_pandas()
pyarrow.array([0])
show_pandas()
import pandas
assert pandas.__version__ == "1.0.0"
""",
        tmp_path,
    )
