"""References become values at the moment of use; a workspace's own, on Databricks only."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from tidelake.config.environment import resolved
from tidelake.config.source import REFERENCE
from tidelake.errors import UsageError

SCOPE = {("shop", "kafka"): "hunter2"}


class Missing(Exception):
    """What the stand-in raises; the real one's kind depends on the compute."""


def _get(scope: str, key: str) -> str:
    if (scope, key) not in SCOPE:
        raise Missing(f"no secret; others are {SCOPE}")
    return SCOPE[scope, key]


@pytest.fixture
def workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = ModuleType("databricks.sdk.runtime")
    runtime.dbutils = SimpleNamespace(  # type: ignore[attr-defined]
        secrets=SimpleNamespace(get=_get)
    )
    for name in ("databricks", "databricks.sdk"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", runtime)
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")


@pytest.mark.usefixtures("workspace")
def test_on_databricks_a_secret_is_had_from_its_scope() -> None:
    told = resolved({"kafka.sasl.jaas.config": "secret:shop/kafka", "kafka.x": "plain"})
    assert told == {"kafka.sasl.jaas.config": "hunter2", "kafka.x": "plain"}


@pytest.mark.usefixtures("workspace")
def test_a_secret_that_is_not_there_is_named_and_no_value_is() -> None:
    with pytest.raises(UsageError) as caught:
        resolved({"webhook": "secret:shop/gone"})
    told = str(caught.value)
    assert "option webhook: secret:shop/gone does not exist" in told
    assert "databricks secrets list-secrets shop" in told and "hunter2" not in told


@pytest.mark.usefixtures("workspace")
def test_a_runtime_without_the_sdk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", None)
    with pytest.raises(UsageError, match=r"webhook: secret:shop/kafka: .* no databricks-sdk"):
        resolved({"webhook": "secret:shop/kafka"})


def test_elsewhere_the_remedy_is_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    with pytest.raises(UsageError, match=r"on Databricks only\. Write env:NAME"):
        resolved({"webhook": "secret:shop/kafka"})


@pytest.mark.parametrize("text", ["secret:shop", "secret:shop/", "secret:a/b/c", "secret:a b/c"])
def test_a_reference_names_a_scope_and_a_key(text: str) -> None:
    assert REFERENCE.fullmatch("secret:shop/kafka")
    assert not REFERENCE.fullmatch(text)
