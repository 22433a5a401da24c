"""Settings of Spark for tests of whole runs."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _interpreted(interpreted: None) -> None:
    """Interpret also what tests ask beside the batches."""
