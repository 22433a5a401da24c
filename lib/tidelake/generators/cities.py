"""Cities in which cards are used."""

from __future__ import annotations

from typing import NamedTuple


class City(NamedTuple):
    """A city and where it lies, in degrees (WGS 84, rounded to a hundredth)."""

    name: str
    latitude: float
    longitude: float


CITIES = (
    City("Amsterdam", 52.37, 4.90),
    City("Athens", 37.98, 23.73),
    City("Bangkok", 13.76, 100.50),
    City("Berlin", 52.52, 13.41),
    City("Bogota", 4.71, -74.07),
    City("Buenos Aires", -34.60, -58.38),
    City("Cairo", 30.04, 31.24),
    City("Chicago", 41.88, -87.63),
    City("Delhi", 28.61, 77.21),
    City("Istanbul", 41.01, 28.98),
    City("Jakarta", -6.21, 106.85),
    City("Johannesburg", -26.20, 28.05),
    City("Lagos", 6.52, 3.38),
    City("Lima", -12.05, -77.04),
    City("London", 51.51, -0.13),
    City("Los Angeles", 34.05, -118.24),
    City("Madrid", 40.42, -3.70),
    City("Mexico City", 19.43, -99.13),
    City("Mumbai", 19.08, 72.88),
    City("Nairobi", -1.29, 36.82),
    City("New York", 40.71, -74.01),
    City("Sao Paulo", -23.55, -46.63),
    City("Seoul", 37.57, 126.98),
    City("Singapore", 1.35, 103.82),
    City("Sydney", -33.87, 151.21),
    City("Tokyo", 35.68, 139.69),
    City("Toronto", 43.65, -79.38),
    City("Vienna", 48.21, 16.37),
    City("Warsaw", 52.23, 21.01),
    City("Zurich", 47.37, 8.54),
)


def far_from(home: City, *, draw: float) -> City:
    """Choose a city on another continent, or nearly: over 40 degrees of longitude away.

    Args:
        home: Where the card is at home.
        draw: Chooses, 0 up to 1.
    """
    around = [city for city in CITIES if abs(city.longitude - home.longitude) > 40]
    return around[int(draw * len(around))]
