"""An error that stops a batch in another process is the same error here."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession

import tidelake
from tidelake.errors import (
    GenerationError,
    LostError,
    MachineError,
    SourceChangedError,
    TidelakeError,
)
from tidelake.runtime.hop import CarriedError, carried, run_in_worker
from tidelake.runtime.progress import InputGrewError


class _Rows:
    sparkSession = "a session"


class _Worker:
    """Raises what it is given."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def take(self, rows: DataFrame, batch: int) -> None:
        raise self._error

    def named(self, error: Exception) -> TidelakeError:
        return error if isinstance(error, TidelakeError) else TidelakeError(f"named: {error}")


_ERRORS: dict[str, Exception] = {
    "changed": SourceChangedError(["/landing/é.jsonl: 5 bytes listed"], taken=False),
    "generation": GenerationError("silver.x is of generation g2"),
    "lost": LostError("offsets are gone"),
    "grew": InputGrewError("new columns"),
    "another": ValueError("too deep"),
}


def _build(name: str, spark: SparkSession) -> _Worker:
    assert cast(Any, spark) == "a session"
    return _Worker(_ERRORS[name])


def _text_of(name: str, version: str = tidelake.__version__) -> str:
    sent = pickle.loads(pickle.dumps(partial(run_in_worker, partial(_build, name), version)))
    with pytest.raises(CarriedError) as caught:
        sent(cast(DataFrame, _Rows()), 3)
    return f"[FOREACH_BATCH_USER_FUNCTION_ERROR] …\nCarriedError: {caught.value}\n  at x.y(Z.java)"


@pytest.mark.parametrize("name", ["changed", "generation", "lost", "grew"])
def test_an_error_comes_back_as_itself(name: str) -> None:
    found, error = carried(_text_of(name)), _ERRORS[name]
    assert isinstance(error, TidelakeError)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert found is not None
    assert found.exit_code == error.exit_code


def test_an_error_of_another_kind_comes_back_by_the_name_that_the_hop_gave_it() -> None:
    found = carried(_text_of("another"))
    assert type(found) is TidelakeError
    assert str(found) == "named: too deep"


def test_another_version_on_the_server_is_named_before_anything_is_done() -> None:
    found = carried(_text_of("another", version="0.0.0"))
    assert isinstance(found, MachineError)
    assert "this is 0.0.0. Install the same on both" in str(found)


def test_a_text_without_an_error_of_ours_holds_none() -> None:
    assert carried("java.lang.OutOfMemoryError: Java heap space") is None
