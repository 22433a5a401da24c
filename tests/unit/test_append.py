"""Which commits carry a transaction id."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from tidelake.sinks.append import append
from tidelake.store.folders import Folder, folder
from tidelake.tables import Lake

_BATCH = {"hop": "silver", "generation": "g2", "batch": 7}


@pytest.mark.parametrize(
    ("root", "note", "filled", "has_id"),
    [
        (Path("/lake"), _BATCH, True, False),
        (Path("/lake"), _BATCH, False, True),
        ("s3://bucket/lake", _BATCH, True, True),
        ("s3://bucket/lake", {"requeued": 3}, True, False),
    ],
)
def test_what_may_be_empty_has_a_transaction_id_and_on_a_store_each_batch(
    root: Path | str, note: dict[str, object], filled: bool, has_id: bool
) -> None:
    place: Folder = folder(root) if isinstance(root, str) else root
    rows = MagicMock()
    options = rows.write.format.return_value.mode.return_value.options

    append(rows, Lake(place).silver("shop"), note, surely_filled=filled)

    told = {key: value for key, value in options.call_args.kwargs.items() if key[:3] == "txn"}
    assert told == ({"txnAppId": "silver.shop/g2", "txnVersion": "7"} if has_id else {})
    options.return_value.save.assert_called_once_with(f"{root}/silver/shop")
