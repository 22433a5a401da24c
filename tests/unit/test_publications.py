"""How far a table is published, and which of its versions are not, from its log alone."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.unit.handmade import write_commit
from tidelake.delta.log import commits, last_commit, newest_version
from tidelake.delta.positions import (
    TopicPosition,
    published_to,
    topics_of,
    unpublished,
    waiting_since,
)
from tidelake.delta.tables import Lake, Table
from tidelake.errors import RefusedError
from tidelake.ledger.history import needs_of

_REACHED = TopicPosition("clicks", "id-1", ("user_id",), 3)
_APPEND = {"operation": "WRITE", "parameters": {"mode": "Append"}}


def note(batch: int, generation: str = "g1") -> dict[str, Any]:
    return {"pipeline": "shop", "hop": "gold", "generation": generation, "batch": batch}


def position(table: Table, version: int, reached: TopicPosition) -> None:
    metadata = reached.options(table)["userMetadata"]
    write_commit(table, version, metadata=metadata, **_APPEND)


@pytest.fixture
def table(lake: Lake) -> Table:
    """Give a table with a batch appended, one merged, a compaction, and one that changed no row."""
    made = lake.gold("clicks")
    write_commit(made, 0, note=note(-1))
    write_commit(made, 1, note=note(0), adds=[(3, True)], **_APPEND)
    write_commit(made, 2, note=note(1), adds=[(4, True), (1, True)], operation="MERGE")
    write_commit(made, 3, note=note(1), adds=[(8, False)], operation="OPTIMIZE")
    write_commit(made, 4, note=note(2), **_APPEND)
    return made


def test_a_table_that_was_never_published_has_no_position(table: Table) -> None:
    assert published_to(table) is None


def test_the_newest_position_counts_and_is_no_batch(table: Table) -> None:
    position(table, 5, TopicPosition("clicks", "id-1", ("user_id",), 1, begun=True))
    position(table, 6, _REACHED)
    assert published_to(table) == _REACHED
    assert [commit.version for commit in commits(table)] == [4, 2, 1, 0]


def test_a_position_of_an_earlier_version_names_no_brokers(table: Table) -> None:
    written = json.loads(_REACHED.options(table)["userMetadata"])
    del written["tidelake_published"]["bootstrap"]
    write_commit(table, 5, metadata=json.dumps(written), **_APPEND)
    assert published_to(table) == _REACHED
    assert _REACHED.bootstrap == ""


def test_all_topics_that_the_log_knows_are_listed(table: Table) -> None:
    assert topics_of(table) == []
    for version, topic in enumerate(("old", "clicks", "clicks"), start=5):
        position(table, version, TopicPosition(topic, "id-1", ("user_id",), 1))
    assert topics_of(table) == ["clicks", "old"]


def test_the_oldest_version_that_waits_says_since_when(table: Table) -> None:
    assert waiting_since(table) == (0, None)
    position(table, 5, TopicPosition("clicks", "id-1", ("user_id",), 0))
    assert waiting_since(table) == (2, datetime(2024, 1, 1, second=1, tzinfo=UTC))
    position(table, 6, TopicPosition("clicks", "id-1", ("user_id",), 2))
    assert waiting_since(table) == (0, None)
    # Its rows may be old; the topic began with the commit.
    position(table, 7, TopicPosition("clicks", "id-1", ("user_id",), 1, begun=True))
    assert waiting_since(table) == (2, datetime(2024, 1, 1, second=7, tzinfo=UTC))


def test_each_position_is_a_transaction_of_its_own(table: Table) -> None:
    steps = [
        TopicPosition("clicks", "id-1", ("user_id",), version, begun).options(table)
        for version, begun in ((3, True), (3, False), (4, False))
    ]
    assert [int(step["txnVersion"]) for step in steps] == [6, 7, 9]
    assert {step["txnAppId"] for step in steps} == {"gold.clicks/published/clicks/id-1"}
    assert json.loads(steps[0]["userMetadata"])["tidelake_published"]["begun"]


def test_versions_with_changed_rows_are_listed_with_the_batch_that_closed_them(
    table: Table,
) -> None:
    found = unpublished(table, 0)
    assert [tuple(change) for change in found] == [(1, "g1", 0, 3, True), (2, "g1", 1, 5, True)]
    assert [change.version for change in unpublished(table, 1)] == [2]
    assert unpublished(table, 2) == []


def test_a_merge_without_metadata_waits_for_the_commit_that_closes_it(table: Table) -> None:
    write_commit(table, 5, adds=[(2, True)], operation="MERGE")
    assert unpublished(table, 4) == []
    write_commit(table, 6, note=note(3), **_APPEND)
    assert [tuple(change) for change in unpublished(table, 4)] == [(5, "g1", 3, 2, True)]


def test_a_replaced_or_restored_table_is_compared_as_a_whole(table: Table) -> None:
    rewritten = {"operation": "WRITE", "parameters": {"mode": "Overwrite"}}
    write_commit(table, 5, note=note(1, "g2"), adds=[(9, True)], **rewritten)
    write_commit(table, 6, adds=[(5, True)], operation="RESTORE", parameters={"version": "4"})
    write_commit(table, 7, note=note(2, "g3"))
    found = unpublished(table, 4)
    assert [(one.version, one.generation, one.is_fed) for one in found] == [
        (5, "g2", False),
        (6, "g3", False),
    ]


def test_a_restore_that_no_batch_follows_is_closed_by_the_batch_that_it_restored(
    table: Table,
) -> None:
    write_commit(table, 5, note=note(2) | {"rebuilt": True}, adds=[(9, True)])
    position(table, 6, TopicPosition("clicks", "id-1", ("user_id",), 5))
    # As the rollback of a single table, whose source is idle.
    write_commit(table, 7, adds=[(5, True)], operation="RESTORE", parameters={"version": "2"})
    assert [tuple(change) for change in unpublished(table, 5)] == [(7, "g1", 1, 5, False)]
    # Nor does the position that follows it.
    position(table, 8, TopicPosition("clicks", "id-1", ("user_id",), 7))
    assert unpublished(table, 7) == []
    # To a version before any batch: unclosed, as a user's commit.
    write_commit(table, 9, adds=[(5, True)], operation="RESTORE", parameters={"version": "-1"})
    assert unpublished(table, 8) == []


@pytest.mark.parametrize(
    ("operation", "is_fed"), [("ADD COLUMNS", False), ("SET TBLPROPERTIES", True)]
)
def test_a_version_before_a_change_of_the_schema_is_compared(
    table: Table, operation: str, is_fed: bool
) -> None:
    write_commit(table, 5, operation=operation)
    write_commit(table, 6, note=note(3), adds=[(1, True)], operation="MERGE")
    assert [one.is_fed for one in unpublished(table, 0)] == [is_fed, is_fed, True]


def test_versions_that_the_log_lost_are_told_and_not_skipped(table: Table) -> None:
    for version in (0, 1, 2):
        (table.path / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(RefusedError, match="published up to version 1, and its log begins at"):
        unpublished(table, 1)
    assert unpublished(table, 2) == []


@pytest.mark.parametrize(("reached", "needed"), [(0, 0), (1, 1), (2, None)])
def test_files_of_versions_that_wait_for_their_topic_are_needed(
    lake: Lake, table: Table, reached: int, needed: int | None
) -> None:
    position(table, 5, TopicPosition("clicks", "id-1", ("user_id",), reached))
    now = datetime.now(UTC)
    found = needs_of(lake, [table], rollbacks_since=now, published=["gold.clicks"])
    of_topic = [need for need in found if need.by.startswith("topic")]
    if needed is None:
        assert of_topic == []
    else:
        [need] = of_topic
        assert (need.since.second, need.remedy) == (needed, "tidelake run shop --hop gold")
    # Nobody publishes it any more.
    assert not [one for one in needs_of(lake, [table], rollbacks_since=now) if "topic" in one.by]


def test_what_a_topic_begins_with_is_needed(lake: Lake, table: Table) -> None:
    position(table, 5, TopicPosition("clicks", "id-1", ("user_id",), 2, begun=True))
    found = needs_of(lake, [table], rollbacks_since=datetime.now(UTC), published=["gold.clicks"])
    assert [need.since.second for need in found if need.by.startswith("topic")] == [2]


def test_the_newest_batch_is_not_that_of_a_position(table: Table) -> None:
    position(table, 5, _REACHED)
    last = last_commit(table)
    assert last is not None
    assert (last.batch, newest_version(table)) == (2, 5)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ("h:1", "env:BROKERS", True),
        ("env:BROKERS", "h:1, h:2", True),
        ("secret:kafka/brokers", "h:1", True),
        ("env:BROKERS", "env:BROKERS", True),
        ("env:BROKERS", "env:OTHERS", False),
        ("h:1", "h:2", False),
        ("h:1,h:2", "h:2, h:3", True),
    ],
)
def test_a_reference_may_name_the_brokers_of_a_list(before: str, now: str, expected: bool) -> None:
    reached = TopicPosition("clicks", "", ("user_id",), 0, bootstrap=before)
    assert reached.is_in("clicks", "", now) is expected
    # What the ids say counts more.
    assert not replace(reached, topic_id="id-1").is_in("clicks", "id-2", now)
