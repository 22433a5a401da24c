"""What the name of a field tells about it."""

from __future__ import annotations

import re

_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MONEY = _words(
    """
    amount balance cost discount fare fee income paid payment price refund revenue salary subtotal
    tax tip total turnover
    """
)
# Such a name counts or rates: of `total_items` and `tax_rate` none is money.
_NOT_MONEY = _words(
    """
    cents cnt code count days duration hours id items minor minutes ms number pct percent
    percentage qty quantity rate ratio seconds type users
    """
)
_CURRENCY = _words("chf cny czk dkk eur gbp inr jpy nok pln sek usd")
_KINDS = _words(
    """
    action category channel class country currency event kind level method operation platform
    region severity source state status type
    """
)
_OWNERS = _words(
    """
    account client customer device host machine member node owner parent player product sensor
    session shop sku station store subject tenant user vehicle visitor
    """
)
# Such a thing says one thing at a time; a person or an address may say two in a second.
_DEVICES = _words("device machine meter node plant probe sensor station turbine vehicle")
_COORDINATES = _words("lat latitude lng lon long longitude")
_IDS = _words("guid id key uid uuid")
_TIMES = _words("at created date datetime logged occurred time timestamp ts when")


def words_of(name: str) -> tuple[str, ...]:
    """Split a name into its words, in lower case: ``orderId`` and ``order_id`` are alike."""
    return tuple(word.lower() for word in _PARTS.findall(name))


def is_money(name: str) -> bool:
    """Tell whether a field of this name holds an amount of money."""
    words = set(words_of(name))
    return bool(words & (_MONEY | _CURRENCY)) and not words & _NOT_MONEY


def is_kind(name: str) -> bool:
    """Tell whether a field of this name sorts events into kinds."""
    return bool(set(words_of(name)[-1:]) & _KINDS)


def is_owner(name: str) -> bool:
    """Tell whether a field of this name says whose event it is, rather than which."""
    words = set(words_of(name))
    return bool(words & (_OWNERS | _DEVICES)) and "agent" not in words


def is_device(name: str) -> bool:
    """Tell whether a field of this name says which device speaks."""
    return bool(set(words_of(name)) & _DEVICES)


def is_coordinate(name: str) -> bool:
    """Tell whether a field of this name is a place on Earth, of which a mean says little."""
    return bool(set(words_of(name)) & _COORDINATES)


def is_id(name: str) -> bool:
    """Tell whether a field of this name identifies something."""
    return bool(set(words_of(name)) & _IDS)


def is_time(name: str) -> bool:
    """Tell whether a field of this name says when."""
    return bool(set(words_of(name)) & _TIMES)


def id_rank(name: str) -> int:
    """Tell how much a name speaks for an event's own id; more is better."""
    words = words_of(name)
    if not is_id(name):
        return 0
    if "event" in words or words in (("uuid",), ("guid",)):
        return 4
    if is_owner(name):
        return 1
    return 3


def time_rank(name: str) -> int:
    """Tell how much a name speaks for the time of the event; more is better."""
    words = set(words_of(name))
    if not is_time(name):
        return 0
    if words & {"updated", "modified", "expires", "expiry", "due", "birth", "ingested", "received"}:
        return 1
    if words & {"event", "occurred", "timestamp", "ts"}:
        return 4
    return 3
