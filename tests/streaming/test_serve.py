"""The Thrift server: a JDBC client reads every table, writes none, and Ctrl-C ends all of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyspark
import pytest

from tests.attacks import JDBC, SECRET, SETTINGS, Scene
from tests.jdbc import Clients, Refused, clients
from tests.unit.handmade import write_rows
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config import Environment
from tidelake.delta.log import newest_version
from tidelake.delta.tables import Lake
from tidelake.ops.serving import _AUTHENTICATION, Registered, _settings

_JARS = Path(pyspark.__file__).parent / "jars" / "*"
_ROWS = "SELECT * FROM (VALUES ('u1', TIMESTAMPTZ '{}')) AS t(user_id, window_end)"
_STARTS_WITHIN, _ENDS_WITHIN = 180, 30
# A few of them by Hive's own client; the whole list is tests/attacks.py's.
_REFUSED = [
    "INSERT INTO gold.totals SELECT * FROM gold.totals",
    "SET spark.sql.runSQLOnFiles=true",
    "ADD JAR '{out}/x.jar'",
    "SELECT TRANSFORM(user_id) USING 'cat' FROM gold.totals",
    "SELECT * FROM text.`/etc/hostname`",
]
_ANSWERED = [
    "SELECT t.user_id FROM totals t JOIN gold.totals__final f USING (user_id)",
    "SELECT a.user_id FROM gold.totals__final a, gold.totals__final b",
    "WITH t AS (SELECT user_id FROM totals) SELECT * FROM t UNION SELECT * FROM t",
    "SELECT user_id FROM totals WHERE user_id IN (SELECT user_id FROM gold.totals)",
    "SELECT user_id FROM totals QUALIFY row_number() OVER (ORDER BY window_end) = 1",
    "SELECT user_id FROM gold.totals VERSION AS OF 0 GROUP BY ROLLUP (user_id) LIMIT 1",
    "SELECT 'InsertIntoStatement; DROP TABLE x' AS ScriptTransformation -- ADD JAR x",
    "SELECT * FROM range(2) LATERAL VIEW explode(array(1)) e AS x",
    "SHOW SCHEMAS",
    "SHOW TABLES IN gold",
    "SHOW COLUMNS IN gold.totals",
    "DESCRIBE TABLE EXTENDED gold.totals",
    "DESCRIBE HISTORY gold.totals",
    "DESCRIBE DETAIL gold.totals",
    "EXPLAIN FORMATTED SELECT * FROM gold.totals__final",
    "SET spark.sql.hive.version",
    "SET spark.sql.ansi.enabled=false",
]
# What comes before the name of a setting where a client speaks the protocol itself.
_PREFIXES = ("set:", "set:system:")


@dataclass(frozen=True)
class Served:
    lake: Lake
    process: subprocess.Popen[bytes]
    port: int
    said: Path


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def _fill(lake: Lake, name: str, until: str) -> None:
    note = {"generation": "g1", "batch": 0, "hop": "gold"}
    final = {"column": "window_end", "until": until}
    write_rows(lake.gold(name), _ROWS.format("2024-01-01 12:00:00Z"), note={**note, "final": final})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start the server on a table with a final row, as a process of its own."""
    with _serving(tmp_path_factory.mktemp("it's served")) as found:
        yield found


@contextmanager
def _serving(folder: Path, *options: str, java: str = "") -> Iterator[Served]:
    lake = Lake(folder / "lake")
    _fill(lake, "totals", "2024-01-01T13:00:00+00:00")
    port, said = _free_port(), folder / "said"
    command = [sys.executable, "-m", "tidelake.cli", "serve", "--port", str(port), *options]
    with said.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--root", str(lake.root)],
            stdout=out,
            stderr=out,
            cwd=folder,
            start_new_session=True,
            env=os.environ | ({"JAVA_TOOL_OPTIONS": java} if java else {}),
        )
    try:
        _wait(process, said, "jdbc:hive2://")
        yield Served(lake, process, port, said)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(process: subprocess.Popen[bytes], said: Path, words: str) -> None:
    ends = time.monotonic() + _STARTS_WITHIN
    while words not in said.read_text():
        assert process.poll() is None and time.monotonic() < ends, said.read_text()
        time.sleep(0.2)


def _asked(served: Served, statements: list[str]) -> tuple[str, str]:
    """Ask with Hive's own JDBC client."""
    flags = ["--force=true", "--silent=true", "--outputformat=csv2", "--showHeader=false"]
    said = [part for statement in statements for part in ("-e", statement)]
    # A client may bring settings along; this one would let it read files.
    url = f"jdbc:hive2://127.0.0.1:{served.port}/gold?spark.sql.runSQLOnFiles=true"
    done = subprocess.run(
        ["java", "-cp", str(_JARS), "org.apache.hive.beeline.BeeLine", *flags, "-u", url, *said],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_STARTS_WITHIN,
        check=False,
    )
    return done.stdout, done.stderr


@pytest.mark.long
def test_a_jdbc_client_reads_and_cannot_write(served: Served, tmp_path: Path) -> None:
    table = served.lake.gold("totals")
    before = newest_version(table)
    values = {"out": str(tmp_path / "out"), "root": str(served.lake.root)}
    refused = [statement.format(**values) for statement in _REFUSED]
    out, told = _asked(
        served,
        [
            "SELECT concat('read ', count(*), ' ', max(user_id)) FROM totals",
            "SELECT concat('final ', count(*)) FROM gold.totals__final",
            "SHOW TABLES IN gold",
            *refused,
            "SELECT concat('still ', count(*)) FROM gold.totals",
        ],
    )

    assert "read 1 u1" in out
    assert "final 1" in out
    assert "gold,totals__final,false" in out
    assert "still 1" in out
    errors = [line for line in told.splitlines() if line.startswith("Error: ")]
    assert len(errors) == len(refused), "\n".join(line[:200] for line in errors)
    assert sum("this server only reads" in error for error in errors) >= len(refused) - 1
    assert newest_version(table) == before
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def jdbc(served: Served) -> Iterator[Clients]:
    """Give a JVM that connects to the server."""
    with clients(served.port) as found:
        yield found


@pytest.fixture
def scene(served: Served, tmp_path: Path) -> Iterator[Scene]:
    """Put what attacks are after beside the lake; nothing there and in the lake may change."""
    found = Scene.at(tmp_path, served.lake)
    before = found.files()
    yield found
    assert found.files() == before


@pytest.mark.long
def test_every_attack_is_refused_also_from_two_sessions_at_once(
    jdbc: Clients, scene: Scene
) -> None:
    ran: list[str] = []
    told: list[str] = []

    def attack(attacks: Sequence[tuple[str, ...]]) -> None:
        with jdbc.session() as session:
            for statement in (scene.fill(one) for steps in attacks for one in steps):
                try:
                    ran.append(f"{statement}: {session.rows(statement)}")
                except Refused as refused:
                    told.append(str(refused))

    with ThreadPoolExecutor(2) as both:
        list(both.map(attack, (JDBC[::2], JDBC[1::2])))

    assert ran == []
    # A class that is not found was looked for.
    signs = (SECRET, "UndeclaredThrowable", "ClassNotFound")
    assert not [text for text in told if any(sign in text for sign in signs)]
    assert sum("this server only reads" in text for text in told) > len(told) / 2


@pytest.mark.long
@pytest.mark.parametrize(("settings", "statement"), SETTINGS)
def test_settings_that_a_connection_brings_along_have_no_effect(
    jdbc: Clients, scene: Scene, settings: dict[str, str], statement: str
) -> None:
    filled = {key: scene.fill(value) for key, value in settings.items()}
    # A semicolon would end a setting of an address.
    address = ";".join(f"{key}={value}" for key, value in filled.items() if ";" not in value)
    for mark in "?#":
        with pytest.raises(Refused), jdbc.session(f"{mark}{address}") as session:
            session.rows(scene.fill(statement))
    for prefix in _PREFIXES:
        brought = {f"{prefix}{key}": value for key, value in filled.items()}
        assert "ERROR_STATUS" in jdbc.open_raw(brought, scene.fill(statement))


@pytest.mark.long
def test_sessions_share_no_settings_and_show_nothing_of_the_server(jdbc: Clients) -> None:
    jdbc.open_raw({"set:system:planted": "by a client"}, "SELECT 1")
    here = "SELECT current_timezone(), current_schema()"
    with jdbc.session("?spark.sql.session.timeZone=Asia/Tokyo") as one, jdbc.session() as other:
        assert one.rows(here) == [["Asia/Tokyo", "gold"]]
        one.rows("SET TIME ZONE 'America/New_York'")
        one.rows("USE silver")
        assert one.rows(here) == [["America/New_York", "silver"]]
        assert other.rows(here) == [["UTC", "gold"]]
        hidden = "${env:PATH} ${system:planted} ${spark.driver.extraClassPath}"
        assert other.rows(f"SELECT '{hidden}'") == [[hidden]]


@pytest.mark.long
def test_what_tools_ask_is_answered(jdbc: Clients) -> None:
    with jdbc.session() as session:
        for statement in _ANSWERED:
            assert session.rows(statement), statement
        assert {"gold.totals", "gold.totals__final"} <= set(jdbc.tables(session))
        columns = [("user_id", "STRING"), ("window_end", "TIMESTAMP")]
        for name in ("totals", "totals__final"):
            assert jdbc.columns(session, name) == columns
        with pytest.raises(Refused, match=r"\[TABLE_OR_VIEW_NOT_FOUND\].*`nothing`"):
            session.rows("SELECT * FROM nothing")


@pytest.mark.long
def test_a_table_that_comes_later_is_served_and_ctrl_c_ends_it_all(served: Served) -> None:
    _fill(served.lake, "later", "2024-01-01T11:00:00+00:00")
    _wait(served.process, served.said, "new table: gold.later")
    out, _ = _asked(served, ["SELECT concat(count(*), ' final') FROM later__final"])
    assert "0 final" in out

    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(_ENDS_WITHIN) == 0
    assert served.said.read_text().endswith("Stopped.\n")
    ends = time.monotonic() + _ENDS_WITHIN
    while _alive(served.process.pid):
        assert time.monotonic() < ends, "the JVM is still there"
        time.sleep(0.2)
    assert {file.name for file in served.said.parent.iterdir()} == {"lake", "said"}
    with socket.create_server(("127.0.0.1", served.port)):
        pass


class _Directory(socketserver.BaseRequestHandler):
    """Answers each bind of LDAP: success if the password is right, else invalid credentials."""

    def handle(self) -> None:
        while asked := self.request.recv(4096):
            code = 0 if b"right" in asked else 49
            # A message with the id of the request; in it the response, with two empty texts.
            answer = [0x30, 12, 2, 1, asked[4], 0x61, 7, 10, 1, code, 4, 0, 4, 0]
            self.request.sendall(bytes(answer))


@pytest.mark.long
def test_with_the_environments_authentication_only_a_login_reads_and_statements_are_still_judged(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "conf" / "environments"
    folder.mkdir(parents=True)
    (tmp_path / "conf" / "pipelines").mkdir()
    (folder / "guarded.yml").write_text(f"spark: {{{_AUTHENTICATION}: LDAP}}\n")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Directory) as directory:
        threading.Thread(target=directory.serve_forever, daemon=True).start()
        place = f"ldap://127.0.0.1:{directory.server_address[1]}"
        java = f"-Dhive.server2.authentication.ldap.url={place}"
        with (
            _serving(tmp_path, "--env", "guarded", java=java) as found,
            clients(found.port) as jdbc,
        ):
            assert "(read-only, login by LDAP)" in found.said.read_text()
            for login in ("", ";user=ann;password=wrong"):
                with pytest.raises(Refused), jdbc.session(login):
                    pass
            with jdbc.session(";user=ann;password=right") as session:
                assert session.rows("SELECT count(*) FROM totals") == [["1"]]
                with pytest.raises(Refused, match="this server only reads"):
                    session.rows("SET spark.sql.runSQLOnFiles=true")
        directory.shutdown()


@pytest.mark.parametrize(
    ("method", "at_first", "told"),
    [
        ("", "CUSTOM", "no password"),
        ("none", "CUSTOM", "no password"),
        ("LDAP", "CUSTOM", "login by LDAP"),
        # The environment has a class that knows passwords.
        ("Custom", "PAM", "login by CUSTOM"),
    ],
)
def test_nobody_can_log_in_before_requests_are_filtered_and_then_as_the_environment_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    method: str,
    at_first: str,
    told: str,
) -> None:
    folder = tmp_path / "conf" / "environments"
    folder.mkdir(parents=True)
    (tmp_path / "conf" / "pipelines").mkdir()
    spark = {_AUTHENTICATION: method} if method else {}
    (folder / "guarded.yml").write_text(json.dumps({"spark": spark}))
    _fill(Lake(tmp_path / "lake"), "totals", "2024-01-01T13:00:00+00:00")
    begun: list[str] = []

    @contextmanager
    def serving(environment: Environment, lake: Lake, *, host: str, port: int) -> Iterator[Any]:
        begun.append(_settings(environment, host, port)[_AUTHENTICATION])
        yield Registered(cast(Any, None), lake, {"gold.totals"})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tidelake.ops.serving.serving", serving)
    monkeypatch.setattr("tidelake.cli.operating.stop_on_signal", lambda stop: stop.set())
    assert run_command(app, ["serve", "--env", "guarded", "--root", "lake"]) == 0
    assert begun == [at_first]
    assert f"(read-only, {told})" in capsys.readouterr().err


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_port_that_is_taken_is_told_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = Lake(tmp_path / "lake")
    _fill(lake, "totals", "2024-01-01T13:00:00+00:00")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run_command(app, ["serve", "--port", port, "--root", str(lake.root)]) == 2
    assert f"cannot listen at 127.0.0.1:{port}" in capsys.readouterr().err
    # An IPv6 address that no machine has.
    assert run_command(app, ["serve", "--host", "100::1", "--root", str(lake.root)]) == 2
    told = capsys.readouterr().err
    assert "cannot listen at 100::1:10000: Cannot assign" in told
    assert "with --host and --port" in told


def test_nothing_to_serve_says_how_to_fill_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(app, ["serve", "--root", str(tmp_path / "lake")]) == 2
    assert "tidelake demo" in capsys.readouterr().err
