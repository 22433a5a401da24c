"""What is wrong with a server of Spark Connect is named at once."""

from __future__ import annotations

import socket
import sys

import pytest

from tidelake.errors import MachineError
from tidelake.remote import connect


def test_a_server_that_is_not_there_is_named_without_waiting() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        remote = f"sc://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(MachineError, match=f"no Spark Connect server answers at {remote}"):
        connect(remote)


def test_a_missing_client_is_named_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.connect.session", None)
    with pytest.raises(MachineError, match=r"pip install 'tidelake\[connect\]'"):
        connect("sc://127.0.0.1:1")
