"""What `verify` prints beside the comparison of tables."""

from __future__ import annotations

import pytest

from tidelake.cli.checking import _show_verdict
from tidelake.replay.verify import RepeatedIds, Verification


def test_repeated_ids_are_listed_and_are_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    first = tuple(f"e{number}" for number in range(20))
    verdict = Verification("shop", None, (), RepeatedIds(1021, first))
    _show_verdict(verdict)
    told = capsys.readouterr().out
    assert verdict.equal
    assert "1,021 event ids were accepted more than once" in told
    assert told.rstrip().endswith("e18, e19, …")
    _show_verdict(Verification("shop", None, (), RepeatedIds(0, ())))
    assert "more than once" not in capsys.readouterr().out
