"""The subject of an erasure, and how to find it in a payload that cannot be decoded."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from tidelake.config import Pipeline
from tidelake.config.pipeline import selected_columns
from tidelake.errors import UsageError

EVENT_ID = "event_id"
# A value may not touch these: u1 is not in u10, u1-b or my_u1.
_WORD = "[A-Za-z0-9_-]"


@dataclass(frozen=True)
class Subject:
    """A column of silver and its value as text, which no message and no file may hold."""

    column: str
    value: str

    @property
    def hashed(self) -> str:
        """A hash that identifies the subject without revealing it."""
        return hashlib.sha256(f"{self.column}={self.value}".encode()).hexdigest()

    @property
    def pattern(self) -> str:
        """The regular expression, for Java and Python, that finds the value in a text.

        JSON may escape characters that are not ASCII.
        """
        spelled = [json.dumps(self.value, ensure_ascii=ascii)[1:-1] for ascii in (True, False)]
        ways = "|".join(re.escape(one) for one in dict.fromkeys([self.value, *spelled]))
        return f"(?<!{_WORD})(?:{ways})(?!{_WORD})"

    @property
    def avro(self) -> bytes:
        """The value as Avro encodes a text: its length in bytes, then its bytes."""
        written = self.value.encode()
        # Zigzag, seven bits a byte.
        length, left = bytearray(), 2 * len(written)
        while left > 0x7F:
            length.append(left & 0x7F | 0x80)
            left >>= 7
        return bytes([*length, left]) + written


def parse_subject(text: str, pipeline: Pipeline) -> Subject:
    """Read ``COLUMN=VALUE``.

    Raises:
        UsageError: It is none, or the pipeline's silver has no such column.
    """
    column, equals, value = text.partition("=")
    if not equals or not column or not value:
        raise UsageError("write the subject as COLUMN=VALUE, for example user_id=u1.")
    known = (EVENT_ID, *selected_columns(pipeline.event))
    if column not in known:
        raise UsageError(
            f"silver.{pipeline.name} has no column {column!r} that an event gives. "
            f"These it has: {', '.join(known)}."
        )
    return Subject(column, value)
