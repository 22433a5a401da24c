"""Numbers of bytes as people write them."""

from __future__ import annotations

import pytest

from tidelake.config.model import bytes_of


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("1", 1), ("10b", 10), ("512k", 524_288), ("256M", 268_435_456), ("1g", 1 << 30)),
        ("8388607t", (1 << 63) - (1 << 40)),
    ],
)
def test_a_unit_is_a_power_of_1024(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "0", "0k", "1.5m", "-1", "m", "1 m", "1mb", "lots", "1" * 20])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="a number of bytes such as 256m"):
        bytes_of(text)


@pytest.mark.parametrize("text", ["8388608t", "99999999T", "9223372036854775808"])
def test_a_size_that_spark_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"less than 2\^63 bytes"):
        bytes_of(text)
