"""What a backfill keeps between two commands, and what another definition makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.shops import Shop
from tidelake.config import load_environment
from tidelake.delta.commit_metadata import hash_of, pipeline_hash
from tidelake.errors import UsageError
from tidelake.replay import backfill
from tidelake.replay.backfill import build
from tidelake.replay.backfill_promotion import need_promotable
from tidelake.replay.backfill_state import State, folder_of, read_state, write_state
from tidelake.runtime.hop import Run
from tidelake.runtime.progress import Progress


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Give two batches in all tables, and a suite."""
    made = Shop(tmp_path)
    made.definition = made.definition | {"quality": {"suite": "expectations/shop.yml"}}
    made.write_definition()
    _expect(made, most=64)
    return made.run(2)


def _expect(shop: Shop, *, most: int) -> None:
    """Write the suite, whose one rule limits the length of a user's id."""
    bounds = {"column": "user_id", "max_value": most}
    rule = {"type": "expect_column_value_lengths_to_be_between", "kwargs": bounds}
    file = shop.root / "expectations" / "shop.yml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump({"name": "shop", "expectations": [rule]}), encoding="utf-8")


def _run(shop: Shop) -> Run:
    environment = load_environment("local", root=str(shop.root))
    said = Progress(lambda _: None)
    return Run(cast(Any, None), shop.pipeline, shop.lake, environment, said)


def test_after_a_rule_of_the_suite_has_changed_nothing_is_promoted_and_all_is_filled_anew(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "fill", lambda *_: None)
    build(_run(shop), "bronze")
    green = folder_of(shop.lake, shop.pipeline) / "silver" / "shop"
    green.mkdir(parents=True)
    assert build(_run(shop), "bronze") == need_promotable(shop.lake, shop.pipeline)
    assert green.exists()

    _expect(shop, most=3)
    with pytest.raises(UsageError, match=r"changed after its backfill was filled\. Fill it again"):
        need_promotable(shop.lake, shop.pipeline)
    build(_run(shop), "bronze")
    assert not green.exists()
    promoting = replace(need_promotable(shop.lake, shop.pipeline), stage="promoting")
    write_state(shop.lake, shop.pipeline, promoting)
    _expect(shop, most=64)
    with pytest.raises(UsageError, match=r"Restore the definition, then promote; or .* rollback"):
        need_promotable(shop.lake, shop.pipeline)


def test_a_backfill_that_an_earlier_release_filled_is_promoted(shop: Shop) -> None:
    """Its hash is that of the pipeline's file alone."""
    filled = State("bronze", hash_of(shop.pipeline), stage="built")
    write_state(shop.lake, shop.pipeline, filled)
    assert need_promotable(shop.lake, shop.pipeline) == read_state(shop.lake, shop.pipeline)


def test_all_files_to_which_a_pipeline_refers_are_in_its_hash(shop: Shop) -> None:
    one = shop.pipeline
    of_users = one.model_copy(update={"dimensions": {"users": one}})
    stricter = one.model_copy(update={"suite": None})
    others = [
        stricter,
        one.model_copy(update={"avro_schema": "{}"}),
        of_users,
        of_users.model_copy(update={"dimensions": {"users": stricter}}),
    ]
    assert len({pipeline_hash(other) for other in [one, *others]}) == 5
    assert {hash_of(other) for other in others} == {hash_of(one)}
