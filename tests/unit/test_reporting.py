"""What the recovery tests tried: their table, the results that are kept, the page."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.recovery import __main__ as runner
from tests.recovery.page import written
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


KILLS = "tests/recovery/test_kill.py"
RESULT = """<testsuites><testsuite>
<testcase name="test_one"/><testcase name="test_two[1]"><failure/></testcase>
<testcase name="test_three"><skipped/></testcase></testsuite></testsuites>"""


def a_result(folder: Path, **values: object) -> runner.Part:
    """Keep the result of a part, as a run does."""
    part = runner.Part(**{"file": KILLS, "sizes": {"TIDELAKE_KILLS": "3"}, "passed": 2} | values)
    (folder / f"{part.stem}.json").write_text(json.dumps(asdict(part)))
    return part


def listed(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """List the files that a run would run."""
    assert runner.main(["--folder", str(folder), "--list", *words]) == 0
    return capsys.readouterr().out.split()


def test_every_file_with_a_long_test_runs_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = listed(tmp_path, capsys)
    assert len(files) == len(set(files))
    assert {KILLS, "tests/streaming/test_maintain.py", "tests/streaming/test_edges.py"} < set(files)


def test_the_makefile_sets_each_size_that_a_result_is_known_by() -> None:
    file = Path(__file__).parents[2] / "Makefile"
    makefile = file.read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = [one for one in makefile.splitlines() if one.startswith("SIZES := ")]
    assert tuple(line.split()[2:]) == runner.SIZES


def test_what_passed_at_this_size_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELAKE_KILLS", "3")
    monkeypatch.delenv("TIDELAKE_RACES", raising=False)
    part = a_result(tmp_path)
    assert runner.kept(tmp_path) == [part]
    assert KILLS not in listed(tmp_path, capsys)
    a_result(tmp_path, failed=["test_one"])
    assert listed(tmp_path, capsys, "--only", "test_kill") == [KILLS]
    a_result(tmp_path, sizes={"TIDELAKE_KILLS": "2"})
    assert listed(tmp_path, capsys, "--only", "test_kill") == [KILLS]


def test_a_run_can_go_on_from_the_page_of_the_docs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELAKE_KILLS", "3")
    monkeypatch.delenv("TIDELAKE_RACES", raising=False)
    monkeypatch.setattr(runner, "PUBLISHED", tmp_path / "docs" / "recovery.json")
    (tmp_path / "docs").mkdir()
    part = a_result(tmp_path / "docs")
    written([part], [], tmp_path / "docs")
    fresh = tmp_path / "fresh"
    assert KILLS in listed(fresh, capsys)
    assert KILLS not in listed(fresh, capsys, "--published")
    assert runner.kept(fresh) == [part]


def test_a_part_is_judged_by_its_tests(tmp_path: Path) -> None:
    result = tmp_path / "result.xml"
    result.write_text(RESULT)
    part = runner.Part(KILLS, {})
    runner.judge(part, result, 1)
    assert (part.passed, part.failed, part.left_out) == (1, ["test_two[1]"], ["test_three"])
    # A process that ended without a result, or with one that does not say why.
    died = runner.Part(KILLS, {})
    runner.judge(died, tmp_path / "none.xml", 137)
    assert (died.passed, died.failed) == (0, ["exit code 137"])


def test_the_page_says_what_was_tried_and_what_did_not_run(tmp_path: Path) -> None:
    told = Report("SIGKILL", tried=3, reached=2, seed=70_707, full=1000)
    part = a_result(tmp_path, reports=[told], commit="0a1b2c3d", ended="2026-01-02 03:04")
    missing = runner.Part("tests/recovery/test_erase.py", {})
    page = written([part], [missing], tmp_path).read_text()
    assert "| SIGKILL | 3 | 1,000 | 2 | 0 | 0 | 0 | 70707 |" in page
    assert "| `tests/recovery/test_kill.py` | 2 | KILLS=3 | 0.0 | `0a1b2c3d` |" in page
    assert "## Not run yet\n\n- `tests/recovery/test_erase.py`" in page
    assert "## Failed" not in page
    assert "| lost | **0** |" in page
