"""Reports of recovery tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.recovery.reporting import PROPERTY, Report


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """Begin a test's report; what is written into it until the test ends is printed."""

    def begin(what: str, **values: Any) -> Report:
        made = Report(what, **values)
        request.node.user_properties.append((PROPERTY, vars(made)))
        return made

    return begin
