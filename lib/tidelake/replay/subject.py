"""The subject of an erasure, and how to find it in a payload that cannot be decoded."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from tidelake.config import Pipeline
from tidelake.config.pipeline import selected_columns
from tidelake.errors import UsageError
from tidelake.names import logical_name

EVENT_ID = "event_id"
# Characters that may not adjoin a value: u1 does not match in u10, u1-b or my_u1.
_WORD = "[A-Za-z0-9_-]"


@dataclass(frozen=True)
class Subject:
    """A column of silver and its value as text. Never write the value to a message or file."""

    column: str
    value: str

    @property
    def hashed(self) -> str:
        """A hash that identifies the subject without revealing it."""
        return hashlib.sha256(f"{self.column}={self.value}".encode()).hexdigest()

    @property
    def pattern(self) -> str:
        """The regular expression, for Java and Python, that finds the value in a text.

        It also matches the value with any of its letters escaped as in JSON, and with quotes
        doubled as in CSV.
        """
        ways = "".join(map(_spellings, self.value))
        return f"(?<!{_WORD}){ways}(?!{_WORD})"

    @property
    def avro(self) -> bytes:
        """The value in Avro's string encoding: its length in bytes, then its bytes."""
        written = self.value.encode()
        # The length is a zigzag varint, seven bits per byte.
        length, left = bytearray(), 2 * len(written)
        while left > 0x7F:
            length.append(left & 0x7F | 0x80)
            left >>= 7
        return bytes([*length, left]) + written


def _spellings(letter: str) -> str:
    """Return the pattern of the ways in which JSON and CSV may write a letter inside quotes."""
    units = letter.encode("utf-16-be", "surrogatepass").hex()
    escaped = "".join(rf"\\u(?i:{units[at : at + 4]})" for at in range(0, len(units), 4))
    ways = [re.escape(letter), re.escape(json.dumps(letter)[1:-1]), escaped]
    if letter == "/":
        ways.append(re.escape(r"\/"))
    if letter in "\"'":
        ways.append(2 * letter)
    return f"(?:{'|'.join(dict.fromkeys(ways))})"


def refuse_partial(subject: Subject, pipeline: Pipeline) -> None:
    """Raise a UsageError for a subject that does not have all changes of a dimension's key.

    Without a key's newest change, the one before it would be current again.
    """
    spec = pipeline.dimension
    if spec is None or subject.column in (EVENT_ID, *spec.key):
        return
    key = spec.key[0]
    raise UsageError(
        f"{subject.column} is not in the key of the dimension {pipeline.name}: only the changes "
        "with this value would be erased, and an earlier change of the same key would become its "
        f"current row again. Name the subject by the key: --subject {key}=VALUE. "
        f"{logical_name('silver', pipeline.name)} has the key of each accepted change; one that is "
        "malformed is found by any value in it: --subject event_id=VALUE."
    )


def parse_subject(text: str, pipeline: Pipeline) -> Subject:
    """Parse ``COLUMN=VALUE``.

    Raises:
        UsageError: The text has another form, or the pipeline's silver has no such column.
    """
    column, equals, value = text.partition("=")
    if not equals or not column or not value:
        raise UsageError("write the subject as COLUMN=VALUE, for example user_id=u1.")
    known = (EVENT_ID, *selected_columns(pipeline.event))
    if column not in known:
        raise UsageError(
            f"{logical_name('silver', pipeline.name)} has no event column {column!r}. "
            f"Its event columns: {', '.join(known)}."
        )
    return Subject(column, value)
