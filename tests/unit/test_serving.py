"""What a connection to the Thrift server may bring along."""

from __future__ import annotations

import pytest

from tests.attacks import SETTINGS
from tidelake.ops.serving import allowed_settings

_HARMLESS = {
    "use:database": "gold",
    "set:hiveconf:hive.server2.thrift.resultset.default.fetch.size": "1000",
    "set:hiveconf:spark.sql.session.timeZone": "Asia/Tokyo",
    "set:hivevar:spark.sql.ansi.enabled": "false",
}


def test_a_session_begins_with_what_drivers_send_and_allowed_settings() -> None:
    assert allowed_settings(_HARMLESS) == _HARMLESS


@pytest.mark.parametrize(
    "prefix",
    [
        *("", "set:", "set:hiveconf:", "set:hivevar:", "set:system:", "set:metaconf:", "set:env:"),
        *(" set:hiveconf:", "set: hiveconf:", "set:hiveconf: ", "SET:hiveconf:", "set:set:"),
        *("set:hiveconf:hiveconf:", "set:hiveconf:hivevar:", "set:hiveconf:system:", "use:"),
    ],
)
def test_every_other_setting_is_left_out_whatever_stands_before_it(prefix: str) -> None:
    bad = {f"{prefix}{key}": value for settings, _ in SETTINGS for key, value in settings.items()}
    more = ("hive.server2.proxy.user", "hive.exec.scratchdir", "javax.jdo.option.ConnectionURL")

    brought = bad | {f"{prefix}{key}": "x" for key in more} | _HARMLESS
    assert allowed_settings(brought) == _HARMLESS


def test_no_value_refers_to_the_servers_environment() -> None:
    assert allowed_settings({"set:hiveconf:spark.sql.session.timeZone": "${env:PATH}"}) == {}
