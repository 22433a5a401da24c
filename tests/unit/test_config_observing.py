"""Where a run tells what it measured: which addresses and references an environment may have."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.pipelines import shop
from tidelake.cli.flow import refuse_unready
from tidelake.config import Alerts, load_environment
from tidelake.errors import ConfigError, MachineError, UsageError


@pytest.fixture(autouse=True)
def own_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a conf folder in the working directory, and no variables."""
    for folder in ("environments", "pipelines"):
        (tmp_path / "conf" / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for name in ("TIDELAKE_ENV", "TIDELAKE_ROOT", "HOOK", "LINEAGE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def write(text: str) -> None:
    Path("conf/environments/local.yml").write_text(f"root: lake\n{text}")


def test_nothing_is_told_anywhere_by_default() -> None:
    write("")
    found = load_environment()
    assert (found.metrics.table, found.metrics.prometheus) == (False, None)
    assert (found.alerts.webhook, found.lineage) == (None, None)
    assert found.metrics.keep == timedelta(days=30)


def test_files_lie_under_the_working_directory(own_conf: Path) -> None:
    write("lineage: {file: logs/l.jsonl}\n")
    found = load_environment()
    assert found.lineage is not None
    assert found.lineage.file == own_conf / "logs" / "l.jsonl"
    write("lineage: {file: /var/l.jsonl}\n")
    found = load_environment()
    assert found.lineage is not None and found.lineage.file == Path("/var/l.jsonl")


def test_a_sink_that_was_removed_is_refused_with_its_line_and_what_to_write() -> None:
    write("metrics:\n  table: true\n  jsonl: logs/b.jsonl\n  textfile: /var/t\n")
    with pytest.raises(ConfigError) as caught:
        load_environment()
    found = {violation.path: violation for violation in caught.value.violations}
    assert {path: violation.line for path, violation in found.items()} == {
        "metrics.jsonl": 4,
        "metrics.textfile": 5,
    }
    assert "removed; leave it out, set table: true" in found["metrics.jsonl"].message
    assert "set prometheus: HOST:PORT or table: true" in found["metrics.textfile"].message


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("metrics: {prometheus: 9108}", "metrics.prometheus", "text"),
        ("metrics: {prometheus: 'localhost'}", "metrics.prometheus", "HOST:PORT"),
        ("metrics: {prometheus: '127.0.0.1:99999'}", "metrics.prometheus", "HOST:PORT"),
        ("metrics: {keep: forever}", "metrics.keep", "not a duration"),
        ("metrics: {tabel: true}", "metrics.tabel", "table"),
        ("alerts: {webhook: 'https://hooks.example/s3cret'}", "alerts.webhook", "env:NAME"),
        ("lineage: {url: 'http://s3cret'}", "lineage.url", "env:NAME"),
        ("lineage: {namespace: shop}", "lineage", "either url or file"),
        ("lineage: {url: 'env:L', file: a}", "lineage", "either url or file"),
        ("lineage: {file: ''}", "lineage.file", "must be the path of a file"),
        ("lineage: {file: 5}", "lineage.file", "must be the path of a file"),
        ("lineage: {file: logs/}", "lineage.file", "must be the path of a file"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_no_secret(text: str, place: str, words: str) -> None:
    write(text)
    with pytest.raises(ConfigError) as caught:
        load_environment()
    told = {violation.path: violation.message for violation in caught.value.violations}
    assert words in told[place]
    assert "s3cret" not in str(caught.value)


def test_what_cannot_be_had_stops_a_run_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write("alerts: {webhook: 'env:HOOK'}")
    with pytest.raises(UsageError, match=r"alerts\.webhook refers to the variable HOOK"):
        refuse_unready(load_environment())
    write("lineage: {url: 'env:LINEAGE'}")
    with pytest.raises(UsageError, match=r"lineage\.url refers to the variable LINEAGE"):
        refuse_unready(load_environment())
    write("metrics: {prometheus: '127.0.0.1:9108'}")
    refuse_unready(load_environment())
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(MachineError, match=r"pip install 'tidelake\[metrics\]'"):
        refuse_unready(load_environment())
    write("lineage: {file: l.jsonl}")
    monkeypatch.setitem(__import__("sys").modules, "openlineage.client.client", None)
    monkeypatch.setitem(__import__("sys").modules, "openlineage.client", None)
    with pytest.raises(MachineError, match=r"pip install 'tidelake\[lineage\]'"):
        refuse_unready(load_environment())


def test_limits_that_are_left_out_have_defaults_and_null_turns_a_rule_off(tmp_path: Path) -> None:
    assert shop(tmp_path).alerts == Alerts()
    found = shop(tmp_path, alerts={"lag_seconds": 60, "stale": None}).alerts
    assert (found.lag_seconds, found.stale, found.quarantine_rate) == (60, None, 0.02)
    with pytest.raises(ConfigError, match=r"alerts\.late_rate"):
        shop(tmp_path, alerts={"late_rate": 2})
    with pytest.raises(ConfigError, match=r"alerts\.lag_seconds"):
        shop(tmp_path, alerts={"lag_seconds": 0})


@pytest.mark.parametrize("key", ["lag_seconds", "latency_seconds"])
@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e12])
def test_a_limit_in_seconds_is_at_most_a_century(tmp_path: Path, key: str, seconds: float) -> None:
    with pytest.raises(ConfigError, match=rf"alerts\.{key}"):
        shop(tmp_path, alerts={key: seconds})
