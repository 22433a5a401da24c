"""A run's own alerts name the commands that people would type beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.shops import Shop
from tidelake.config import load_environment
from tidelake.ops.alerts import AlertContext
from tidelake.ops.observers import observing
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress
from tidelake.runtime.triggers import AVAILABLE_NOW, parse_trigger
from tidelake.typed import Typed


def test_a_run_hands_on_what_it_was_called_by_and_whether_it_publishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path).run(2)
    taken, publishes = list[Typed](), list[bool]()

    def judge(context: AlertContext, _: object) -> tuple[()]:
        taken.append(context.typed)
        publishes.append(context.publishes)
        return ()

    monkeypatch.setattr("tidelake.ops.alert_delivery.judge", judge)
    nothing = SimpleNamespace(addListener=lambda _: None, removeListener=lambda _: None)
    spark: Any = SimpleNamespace(streams=nothing)
    environment = load_environment("local", root=str(tmp_path))
    run = Run(spark, shop.pipeline, shop.lake, environment, Progress(lambda _: None))
    typed = Typed(str(tmp_path), called=str(shop.file))
    with observing(run, parse_trigger(AVAILABLE_NOW), typed):
        pass
    assert taken == [typed]
    assert publishes == [True]
    silent = replace(run, environment=environment.model_copy(update={"publish": False}))
    with observing(silent, parse_trigger(AVAILABLE_NOW), typed):
        pass
    assert publishes == [True, False]
