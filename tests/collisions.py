"""Texts whose 64-bit hash by Spark's ``xxhash64`` is the same, made and not found.

XXH64 takes what is left after blocks of 32 bytes in words of 8, each of which changes the state by
an invertible step: whatever the first word is, there is a second that leads to the same state. Of
a few thousand first words one has a second that is printable.
"""

from __future__ import annotations

import random
import string

_MASK = (1 << 64) - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_P2_INVERSE, _P1_INVERSE = pow(_P2, -1, 1 << 64), pow(_P1, -1, 1 << 64)
_SEED = 42
_LETTERS = frozenset(
    (string.ascii_letters + string.digits + " !#$%&()*+,-./:;<=>?@[]^_{|}~").encode()
)


def _left(value: int, by: int) -> int:
    return ((value << by) | (value >> (64 - by))) & _MASK


def _round(state: int, word: int) -> int:
    return _left((state + word * _P2) & _MASK, 31) * _P1 & _MASK


def _word_behind(rounded: int) -> int:
    """Give the word that a round from state 0 makes another of."""
    return _left(rounded * _P1_INVERSE & _MASK, 33) * _P2_INVERSE & _MASK


def _state(data: bytes, whole: int) -> int:
    """Give the state before the words behind ``data``; ``whole`` is the length in the end."""
    seed = _SEED
    if whole < 32:
        state = (seed + _P5) & _MASK
    else:
        lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        for at in range(0, len(data) - 31, 32):
            for lane in range(4):
                begin = at + 8 * lane
                lanes[lane] = _round(lanes[lane], int.from_bytes(data[begin : begin + 8], "little"))
        state = sum(_left(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            state = ((state ^ _round(0, lane)) * _P1 + _P4) & _MASK
    return (state + whole) & _MASK


def _stepped(state: int, word: int) -> int:
    return (_left(state ^ _round(0, word), 27) * _P1 + _P4) & _MASK


def colliding(before: str, after: str, *, seed: int = 1) -> tuple[str, str]:
    """Make two texts ``before + 16 letters + after`` of one hash.

    Args:
        before: Of a multiple of 32 bytes.
        after: Shorter than 16 bytes.
        seed: Of the letters.
    """
    head, tail = before.encode(), after.encode()
    assert len(head) % 32 == 0 and len(tail) < 16
    state = _state(head, len(head) + 16 + len(tail))
    chance = random.Random(seed)

    def word() -> int:
        return int.from_bytes(bytes(chance.choices(sorted(_LETTERS), k=8)), "little")

    first, second = word(), word()
    wanted = _stepped(state, first) ^ _round(0, second)
    while True:
        other = word()
        partner = _word_behind(_stepped(state, other) ^ wanted).to_bytes(8, "little")
        if other != first and _LETTERS.issuperset(partner):
            one, two = first.to_bytes(8, "little") + second.to_bytes(8, "little"), other
            return (
                (head + one + tail).decode(),
                (head + two.to_bytes(8, "little") + partner + tail).decode(),
            )
