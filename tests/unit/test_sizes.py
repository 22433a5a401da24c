"""Numbers of bytes as people write them."""

from __future__ import annotations

import pytest

from tidelake.config.model import bytes_of


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("10b", 10), ("512k", 524_288), ("256M", 268_435_456), ("1g", 1 << 30)],
)
def test_a_unit_is_a_power_of_1024(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "0", "0k", "1.5m", "-1", "m", "1 m", "1mb", "lots"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="a number of bytes such as 256m"):
        bytes_of(text)
