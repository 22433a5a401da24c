"""Numbers of bytes as people write them: ``512k``, ``256m``."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

_SIZE = re.compile(r"([1-9][0-9]*)([bkmgt]?)", re.IGNORECASE)
_SHIFTS = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def bytes_of(text: str) -> int:
    """Read a number of bytes, with or without a unit of 1024, its square and so on.

    Raises:
        ValueError: The text is none.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("must be a number of bytes such as 256m")
    return int(match[1]) << _SHIFTS[match[2].lower()]


def _checked(text: str) -> str:
    bytes_of(text)
    return text


ByteSize = Annotated[str, AfterValidator(_checked)]
