"""The table of what the recovery tests tried."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from tests.recovery.reporting import Report, add_to, read, reports_of, table


def test_a_table_has_a_line_a_report_in_at_most_a_hundred_columns(tmp_path: Path) -> None:
    made = Report("1 a fault whose name is " + "very " * 20, 10**5, 10**6, 7, 0, 1, 999_999)
    lines = table([made])
    assert all(len(line) <= 100 for line in lines)
    assert [line.split()[-6:] for line in lines] == [
        ["tried", "reached", "refused", "lost", "doubled", "seed"],
        ["100000", "1000000", "7", "0", "1", "999999"],
    ]


def test_reports_travel_with_the_result_of_the_call_and_are_kept(tmp_path: Path) -> None:
    kept = [("recovery", vars(Report("a fault", tried=3)))]
    results = [
        SimpleNamespace(when="setup", user_properties=kept),
        SimpleNamespace(when="call", user_properties=kept),
        SimpleNamespace(when="call", user_properties=[("other", 1)]),
    ]
    reports = reports_of(results)
    assert reports == [Report("a fault", tried=3)]
    file = tmp_path / "build" / "recovery.json"
    add_to(file, reports)
    add_to(file, reports)
    assert read(file) == reports * 2
