"""What the words of a field's name say about its values."""

from __future__ import annotations

import re

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_MONEY = (
    "amount balance cost discount fare fee income paid payment price refund revenue salary "
    "subtotal tax tip total turnover chf cny czk dkk eur gbp inr jpy nok pln sek usd"
)
# A name with one of these words is a count or a rate, not money: `total_items`, `tax_rate`.
_NOT_MONEY = (
    "cents cnt code count days duration hours id items minor minutes ms number pct percent "
    "percentage qty quantity rate ratio seconds type users"
)
# A text of digits in a field with one of these words may be an identifier: `tax_ref`.
_IDENTIFIERS = (
    "account card code iban id key no nr number phone postal postcode ref reference serial zip"
)
# A text in a field whose last word is none of these may be a code: `cost_center`, `tax_class`.
_QUANTITIES = "qty quantity"
_HEADS = {*f"{_MONEY} {_QUANTITIES} after before due excl gross incl net".split()}
TIMES = "at created date datetime epoch logged occurred time timestamp ts when"
# A name of these words alone is that of a time too; `bytes_sent` and `received_items` are counts.
_TIMES_ALONE = {"micros", "millis", "ms", "received", "sent", "updated", *TIMES.split()}
# The last word of a name; no other number so named is as large as epoch milliseconds.
_MILLIS = {"millis", "ms"}


def words_of(name: str) -> tuple[str, ...]:
    """Split a field's name into lower-case words: ``orderId`` and ``order_id`` are equal."""
    return tuple(word.lower() for word in _WORD.findall(name))


def has_word(name: str, words: str) -> bool:
    """Return whether a field's name contains one of several words, separated by blanks."""
    return not set(words.split()).isdisjoint(words_of(name))


def is_epoch(name: str, unit: str) -> bool:
    """Return whether a number that may be epoch milliseconds, say, is a time by its name."""
    words = words_of(name)
    if has_word(name, TIMES) or (words and _TIMES_ALONE.issuperset(words)):
        return True
    return unit == "epoch milliseconds" and not _MILLIS.isdisjoint(words[-1:])


def is_nameable(name: str) -> bool:
    """Return whether the schema in a pipeline file can hold a field of this name.

    ``${`` would begin a variable there, which has no escape.
    """
    return bool(name.strip()) and name.isprintable() and "${" not in name


def is_money(name: str) -> bool:
    """Return whether a field of this name holds an amount of money."""
    return has_word(name, _MONEY) and not has_word(name, _NOT_MONEY)


def is_quantity(name: str) -> bool:
    """Return whether a field of this name holds a quantity, which may be a weight."""
    return has_word(name, _QUANTITIES)


def is_amount(name: str) -> bool:
    """Return whether decimal numbers in text are amounts or quantities in a field of this name."""
    is_either = (is_money(name) or is_quantity(name)) and not _HEADS.isdisjoint(words_of(name)[-1:])
    return is_either and not has_word(name, f"{_IDENTIFIERS} {TIMES}")
