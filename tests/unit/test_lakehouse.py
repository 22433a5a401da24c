"""What a notebook gets without Spark."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.unit.handmade import SHOP, write_commit
from tests.unit.test_config_loading import write
from tidelake.errors import UsageError
from tidelake.lakehouse import open_lakehouse
from tidelake.ledger.side_tables import LateDay, ReasonGroup


def test_a_frame_without_rows_has_its_columns(tmp_path: Path) -> None:
    house = open_lakehouse(str(tmp_path / "lake"))
    write_commit(house.lake.bronze("shop"), 0, note={"generation": "g1", "batch": 0})
    shop = write(tmp_path, SHOP)
    for frame, kind in ((house.quarantine(shop), ReasonGroup), (house.late(shop), LateDay)):
        assert list(frame.columns) == [one.name for one in fields(kind)]
        assert frame["rows"].sum() == 0


def test_a_large_integer_beside_a_null_keeps_its_digits(tmp_path: Path) -> None:
    frame = open_lakehouse(str(tmp_path)).ask(
        """
        SELECT * FROM (
            VALUES (1234567890123456789, 18446744073709551615::UBIGINT, 1, 2.5, true, 'a'),
                   (NULL, NULL, 2, NULL, NULL, NULL)
        ) t(order_id, hash, plain, amount, paid, name)
        """
    )

    assert list(frame["order_id"]) == [1234567890123456789, pd.NA]
    assert frame.dtypes.astype(str).to_dict() == {
        "order_id": "Int64",
        "hash": "UInt64",
        "plain": "int64",
        "amount": "float64",
        "paid": "object",
        "name": "object",
    }
    assert frame["paid"][1] is None
    assert np.isnan(frame["amount"][1])


def test_a_lakehouse_opens_at_a_path(tmp_path: Path) -> None:
    assert open_lakehouse(tmp_path).lake == open_lakehouse(str(tmp_path)).lake
    with pytest.raises(UsageError, match=r"write the prefix as a text, s3://bucket/prefix"):
        open_lakehouse(Path("s3://bucket/prefix"))


def test_a_column_without_values_has_the_type_of_one_with_values(tmp_path: Path) -> None:
    house = open_lakehouse(tmp_path)
    row = """
        SELECT now() AS "at", now()::TIMESTAMP AS naive, 1::TINYINT AS small, 1::BIGINT AS id,
            sum(1) AS total, 1.5::DOUBLE AS value, 1.50::DECIMAL(18, 2) AS price, true AS paid,
            'a' AS name, current_date AS day, [1] AS numbers
    """

    empty = house.ask(f"SELECT * FROM ({row}) WHERE false")

    assert empty.dtypes.to_dict() == house.ask(row).dtypes.to_dict()
    assert (empty["at"] - empty["at"]).dt.total_seconds().sum() == 0
    nulls = house.ask('SELECT NULL::TIMESTAMPTZ AS "at", NULL::BIGINT AS id, NULL::BOOLEAN AS paid')
    assert nulls["at"].dtype == empty["at"].dtype
    assert nulls.dtypes.astype(str)[["id", "paid"]].to_list() == ["Int64", "object"]
