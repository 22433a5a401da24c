"""The shop behind the clickstream: its products, its visitors and what they do.

Only ``random.Random.random`` and what is built on it is used: Python promises the same sequence
for the same seed in every version, which numpy does not.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

# What a visitor does with a product, and how likely the step is after the one before.
_FUNNEL = (("view", 1.0), ("click", 0.5), ("add_to_cart", 0.3), ("purchase", 0.5))
_LEAVES = 0.22
PRODUCTS = 400
_CLICKS_PER_USER = 40
_LONG_PAUSE = 0.12
_CAPITALISED = 0.03
_BOT_EVERY = 120
_BOT_FIRST = 7
PRICED = frozenset({"purchase", "add_to_cart"})


class Click(NamedTuple):
    """One thing that one visitor did.

    Attributes:
        at: Milliseconds since the stream began.
        user: Number of the visitor.
        action: As the client spells it: mostly lower case.
        product: Number of the product.
    """

    at: int
    user: int
    action: str
    product: int


def _popularity(count: int, *, exponent: float, shift: float) -> list[float]:
    """Accumulate Zipf-Mandelbrot weights: a few are popular, none takes over."""
    return list(accumulate((rank + shift) ** -exponent for rank in range(1, count + 1)))


def _catalogue() -> list[int]:
    """Draw each product's price in cents; the same ones whatever the stream's seed is."""
    rng = random.Random("tidelake/clickstream/products")
    return [99 + round(2000 * rng.lognormvariate(0.0, 0.9)) for _ in range(PRODUCTS)]


_PRICES = _catalogue()
_PRODUCT_POPULARITY = _popularity(PRODUCTS, exponent=0.9, shift=2)


def price(product: int) -> str:
    """Give a product's price with exactly two decimals."""
    euros, cents = divmod(_PRICES[product], 100)
    return f"{euros}.{cents:02d}"


def other_product(product: int) -> int:
    """Give a product that is not this one."""
    return (product + 1) % PRODUCTS


@dataclass(frozen=True)
class Visitors:
    """The people and bots of one stream, most frequent first."""

    popularity: list[float]

    @classmethod
    def for_clicks(cls, count: int) -> Visitors:
        """Make as many visitors as a stream of so many clicks needs, at least five."""
        users = max(5, count // _CLICKS_PER_USER)
        return cls(_popularity(users, exponent=0.8, shift=20))

    def draw(self, rng: random.Random) -> int:
        """Choose who comes next."""
        return _weighted(rng, self.popularity)


def _weighted(rng: random.Random, cumulated: list[float]) -> int:
    return bisect(cumulated, rng.random() * cumulated[-1], hi=len(cumulated) - 1)


def _is_bot(user: int) -> bool:
    return user % _BOT_EVERY == _BOT_FIRST


def _spelled(rng: random.Random, action: str) -> str:
    return action.capitalize() if rng.random() < _CAPITALISED else action


def _visit(rng: random.Random, start: int, user: int) -> Iterator[Click]:
    """Follow one visitor from the first click until they leave."""
    at = start
    if _is_bot(user):
        for _ in range(10 + int(30 * rng.random())):
            yield Click(at, user, "bot", _weighted(rng, _PRODUCT_POPULARITY))
            at += 200 + int(rng.expovariate(1 / (2 * SECOND)))
        return
    while True:
        product = _weighted(rng, _PRODUCT_POPULARITY)
        for action, chance in _FUNNEL:
            if rng.random() >= chance:
                break
            yield Click(at, user, _spelled(rng, action), product)
            pause = 4 * MINUTE if rng.random() < _LONG_PAUSE else 25 * SECOND
            at += 300 + int(rng.expovariate(1 / pause))
        if rng.random() < _LEAVES:
            return


def draw_clicks(rng: random.Random, *, count: int, span: int) -> list[Click]:
    """Draw clicks, in order of their time.

    Visits begin evenly over the whole span and are cut at its end, so the stream neither swells
    nor thins out.

    Args:
        rng: The source of chance, advanced by this call.
        count: How many.
        span: Length of the stream in milliseconds.

    Returns:
        Exactly ``count`` clicks with ``0 <= at < span``.
    """
    visitors = Visitors.for_clicks(count)
    clicks: list[Click] = []
    while len(clicks) < count:
        for click in _visit(rng, int(rng.random() * span), visitors.draw(rng)):
            if click.at >= span:
                break
            clicks.append(click)
    del clicks[count:]
    clicks.sort()
    return clicks
