"""The command `ui`, as it is typed."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.shops import Shop
from tidelake.cli import app
from tidelake.cli.exits import run_command

FAILED = 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_page_answers_at_the_address_that_it_names_and_ends_when_it_is_stopped(
    tmp_path: Path, number: signal.Signals
) -> None:
    shop = Shop(tmp_path).run(2)
    command = [sys.executable, "-m", "tidelake.cli", "ui", str(shop.file)]
    with subprocess.Popen(
        [*command, "--port", "0", "--root", str(tmp_path)], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            told = process.stderr.readline()
            found = re.fullmatch(r"The page is at http://127\.0\.0\.1:(\d+)/ .*\n", told)
            assert found, told
            connection = HTTPConnection("127.0.0.1", int(found[1]), timeout=20)
            connection.request("GET", "/")
            answer = connection.getresponse()
            page = answer.read().decode()
            connection.close()
        finally:
            process.send_signal(number)
        _, rest = process.communicate(timeout=30)

    assert answer.status == 200
    assert "<h1" in page and "shop" in page
    assert (process.returncode, rest) == (0, "Stopped.\n")


def test_a_pipeline_that_is_asked_for_must_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app, ["ui", "clickstrem"]) == FAILED

    assert "there is no pipeline 'clickstrem'; did you mean clickstream?" in capsys.readouterr().err


def test_a_port_that_is_taken_is_named_with_the_remedy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

        assert run_command(app, ["ui", "--port", port, "--root", str(tmp_path)]) == FAILED

    assert f"cannot be served at 127.0.0.1:{port}: Address already in use" in (
        capsys.readouterr().err
    )


def test_an_address_that_is_not_this_machines_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["ui", "--host", "192.0.2.1", "--port", "0", "--root", str(tmp_path)]

    assert run_command(app, arguments) == FAILED

    assert "cannot be served at 192.0.2.1:0" in capsys.readouterr().err


def test_a_catalog_is_refused_with_what_to_ask_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app, ["ui", "--env", "prod"]) == FAILED

    told = capsys.readouterr().err
    assert "The live page on a catalog is not built yet. Use tidelake status" in told
