"""The benchmarks' runner finds its rows, and their page says what the reports say."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks import capacity, p13_out_of_the_box, runner
from benchmarks.capacity import Coefficients, Load, needed, needs_table
from benchmarks.event_times import Steps
from benchmarks.measuring import Finding, Goal, Report, hand_in, lines, quantiles, ratios, spread
from benchmarks.peers import template_pipeline, tidelake_pipeline
from benchmarks.plots import bars, drawn
from benchmarks.report_page import score, verdict, written
from benchmarks.svg import short, ticks

_AT_LEAST, _AT_MOST = Goal("rows/s against a copy", 0.6, True), Goal("p95", 5, False, "s")


def report(row: str = "P1", **more: object) -> Report:
    findings = [Finding.of(_AT_LEAST, [0.5, 0.3, 0.9]), Finding.of(_AT_MOST, [4, 4, 4])]
    whole = {
        "row": row,
        "title": "silver against a copy",
        "findings": findings,
        "seconds": {"silver": [2.0, 4.0, 3.0], "a <copy>": [1.0, 2.0, 1.5]},
        "checked": "the rows of both",
        "setting": {"rows": 500_000},
    }
    return Report(**whole | more)  # type: ignore[arg-type]


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    folder = tmp_path / "scripts"
    folder.mkdir()
    for name in ("p01_silver", "p10_flink", "page", "p1_short", "measuring"):
        (folder / f"{name}.py").write_text('"""One ``thing``.\n\nUsage: run it\n"""\n')
    return folder


def test_rows_are_found_by_their_names_in_the_order_of_their_numbers(scripts: Path) -> None:
    assert runner.rows(scripts) == {"P1": "p01_silver", "P10": "p10_flink"}


def test_rows_and_modules_are_chosen_by_name_and_others_refused(scripts: Path) -> None:
    known = runner.rows(scripts)
    assert runner.chosen([], known, scripts) == known
    assert runner.chosen(["p10", "page"], known, scripts) == {"P10": "p10_flink", "page": "page"}
    with pytest.raises(SystemExit, match="no benchmark P2: name one of P1, P10"):
        runner.chosen(["P2"], known, scripts)


def test_every_row_of_this_project_is_one_of_fourteen() -> None:
    assert set(runner.rows()) <= {f"P{number}" for number in range(1, 15)}


@pytest.mark.parametrize(
    ("code", "failure"),
    [(0, "wrote no report"), (3, "ended with 3")],
)
def test_a_row_that_fails_says_how_and_leaves_no_report_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, failure: str
) -> None:
    monkeypatch.setattr(runner, "_ended", lambda _: f"ended with {code}" if code else "")
    (tmp_path / "P1.json").write_text("{}")
    assert runner.run("P1", "p01_silver", tmp_path, []).failure == failure
    assert not (tmp_path / "P1.json").exists()


def test_one_row_that_fails_does_not_keep_the_others_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, module: str, *_: object) -> runner.Ended:
        return runner.Ended(name, 1.0, "ended with 1" if name == "P1" else "", (module,))

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(runner, "rows", lambda: {"P1": "p01_silver", "P10": "p10_flink"})
    monkeypatch.setattr("sys.argv", ["runner", "--reports", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"failed: P1$"):
        runner.main()
    assert "p10_flink" in capsys.readouterr().err


def test_the_page_tells_goals_sides_and_what_is_missing(tmp_path: Path, scripts: Path) -> None:
    reports, docs = tmp_path / "reports", tmp_path / "docs"
    plots = [lines("over batches", {"seconds": [(0, 1.0), (1, 2.0)]}, x="batch", y="s")]
    hand_in(report(details={"plots": plots}), reports / "P1.json")
    (scripts / "notes").mkdir()
    (scripts / "notes" / "P1.md").write_text("By hand.\n")
    page = written(reports, docs, scripts).read_text()
    told = "rows/s against a copy | ≥ 0.6 x | **0.5** x (0.3 to 0.9) | **not met**, 17% under |"
    assert f"| [P1](#p1) | {told}" in page
    assert "| [P1](#p1) | p95 | ≤ 5 s | **4** s | met, 20% under |" in page
    assert "| P10 | not measured in this run |" in page
    assert "One `thing`." in page and "Usage" not in page
    assert "By hand." in page
    pictures = {"goals.svg", "P1.svg", "P1-1.svg"}
    assert {path.name for path in (docs / "benchmarks").iterdir()} == pictures | {"P1.json"}
    for name in pictures:
        assert f"(benchmarks/{name})" in page
        ElementTree.parse(docs / "benchmarks" / name)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        ({"a": [1.0, 2.0], "b": [3.0, 4.0], "none": []}, "Rounds: 2. Compared: "),
        ({"a": [1.0, 2.0], "b": [3.0, 4.0], "a, whole": [5.0]}, "Rounds: 2 (a; b), 1 (a, whole). "),
        ({}, "rows 500,000. Compared: "),
    ],
)
def test_the_page_tells_the_rounds_of_each_side(
    tmp_path: Path, scripts: Path, seconds: dict[str, list[float]], told: str
) -> None:
    hand_in(report(seconds=seconds), tmp_path / "P1.json")
    assert told in written(tmp_path, tmp_path / "docs", scripts).read_text()


def test_a_page_is_not_written_over_where_no_report_is(tmp_path: Path, scripts: Path) -> None:
    docs, old = tmp_path / "docs", report()
    hand_in(old, docs / "benchmarks" / "P1.json")
    with pytest.raises(SystemExit, match="holds no report"):
        written(tmp_path / "build", docs, scripts)
    # From the copies that the page came with it can be made again.
    page = written(docs / "benchmarks", docs, scripts).read_text()
    assert old.title in page


def test_a_page_made_again_keeps_no_picture_of_before(tmp_path: Path, scripts: Path) -> None:
    hand_in(report(), tmp_path / "P1.json")
    old = tmp_path / "docs" / "benchmarks" / "P1-7.svg"
    old.parent.mkdir(parents=True)
    old.write_text("<svg/>")
    written(tmp_path, tmp_path / "docs", scripts)
    assert not old.exists()


@pytest.mark.parametrize(
    ("goal", "value", "told"),
    [
        (_AT_LEAST, 0.72, "met, 20% over"),
        (_AT_LEAST, 0.3, "**not met**, 50% under"),
        (_AT_MOST, 10.0, "**not met**, 100% over"),
        (Goal("missing", 0, False), 0.0, "met"),
        (Goal("missing", 0, False), 2.0, "**not met**"),
    ],
)
def test_a_verdict_says_by_how_much(goal: Goal, value: float, told: str) -> None:
    found = report(findings=[Finding.of(goal, [value])]).to_json()["findings"]
    assert verdict(found[0]) == told


def test_a_difference_the_other_way_is_better_than_any() -> None:
    found = report(findings=[Finding.of(_AT_MOST, [10.0, -2.0, 8.0])]).to_json()["findings"]
    drawn = score("P12", found[0])
    assert drawn.low == 0.5
    assert drawn.high > 1_000


def test_bars_are_as_long_as_their_medians() -> None:
    drawing = ElementTree.fromstring(bars("t", {"a": [1.0, 2.0, 9.0], "b": [4.0]}))
    boxes = drawing.findall("{http://www.w3.org/2000/svg}rect")[1:]
    first, second = (float(box.attrib["width"]) for box in boxes)
    assert second == pytest.approx(2 * first, rel=0.01)


def test_a_spread_counts_each_value_once_and_is_drawn() -> None:
    plot = spread("times", [1, 1.01, 20, 300], x="ms")
    assert sum(count for *_, count in plot["buckets"]) == 4
    assert plot["buckets"][0][0] <= 1 and plot["buckets"][-1][1] >= 300
    ElementTree.fromstring(drawn(plot))


def test_quantiles_are_values_that_were_seen() -> None:
    found = quantiles([float(number) for number in range(100, 0, -1)])
    assert (found["p50"], found["p95"], found["p99"], found["max"]) == (50, 95, 99, 100)
    assert set(quantiles([7.0]).values()) == {7.0}


def test_ratios_are_of_one_round() -> None:
    assert ratios([2.0, 6.0], [1.0, 2.0]) == [2.0, 3.0]


def test_figures_have_three_digits_and_axes_round_steps() -> None:
    assert [short(value) for value in (0.0, 0.5273, 12.0, 1234567.8, 0.00123)] == [
        "0",
        "0.527",
        "12",
        "1,234,568",
        "0.00123",
    ]
    assert ticks(0.9) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])


def test_a_report_names_machine_and_commit(tmp_path: Path) -> None:
    hand_in(report(), tmp_path / "P1.json")
    found = json.loads((tmp_path / "P1.json").read_text())
    assert found["met"] is False
    assert found["machine"]["commit"] and found["machine"]["cores"]


_FOUND = Coefficients(
    fixed={"bronze": 0.4, "silver": 1.0, "gold": 1.2},
    fixed_cores={"bronze": 0.5, "silver": 1.5, "gold": 2.0},
    us={"bronze": 5.0, "silver": 15.0, "gold": 10.0},
    stored={"bronze": 100.0, "silver": 50.0, "gold": 20.0},
    rows={"bronze": 1.0, "silver": 0.8, "gold": 0.1},
    payload=200.0,
)


def test_a_cluster_for_ten_times_the_rate_has_ten_times_the_rows_and_the_same_plans() -> None:
    few, many = (needed(Load(rate, 10, 1), _FOUND) for rate in (10_000, 100_000))
    assert (few.row_cores, many.row_cores) == pytest.approx((0.3, 3.0))
    assert few.plan_cores == many.plan_cores == pytest.approx(0.4)
    assert few.ids == 10_000 * 0.8 * 3600
    assert few.id_cores == pytest.approx(few.ids * 0.03e-6 / 10)
    assert few.slots == 2 and many.slots == 8
    assert few.bronze_gb == pytest.approx(10_000 * 100 * 86_400 / 1e9)
    assert few.commits == 8_640
    assert few.core_hours == 48


def test_a_longer_interval_compares_ids_less_often() -> None:
    often, seldom = (needed(Load(100_000, one, 24), _FOUND) for one in (10, 60))
    assert often.id_cores == pytest.approx(6 * seldom.id_cores)
    assert often.slots > seldom.slots


def test_each_load_is_a_column_of_the_page() -> None:
    table = needs_table([Load(10_000, 10, 1), Load(100_000, 60, 24)], _FOUND).splitlines()
    assert table[0].endswith("| 10,000/s, 10 s, 1 h | 100,000/s, 60 s, 24 h |")
    assert {line.count("|") for line in table} == {4}


def test_what_a_cluster_needs_is_made_again_from_its_own_coefficients(tmp_path: Path) -> None:
    copy = tmp_path / "benchmarks" / "coefficients.json"
    with pytest.raises(SystemExit, match=f"--reports {copy.parent}$"):
        capacity.written(tmp_path / "build", tmp_path)
    assert not (tmp_path / "capacity.md").exists()
    docs = runner.HERE.parent / "docs"
    measured = (docs / "benchmarks" / copy.name).read_text()
    copy.parent.mkdir()
    copy.write_text(measured)
    page = capacity.written(copy.parent, tmp_path).read_text()
    assert page == (docs / "capacity.md").read_text()
    assert "{{" not in page and json.loads(measured)["machine"]["commit"] in page
    assert copy.read_text() == measured


class _Started(Exception):
    """A session would be started."""


def test_programs_compared_in_a_run_that_ends_start_java_as_the_command_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses = []

    def build(*_: object, use: str = "lasting") -> None:
        uses.append(use)
        raise _Started

    for module, start in (
        (tidelake_pipeline, tidelake_pipeline.start),
        (template_pipeline, template_pipeline.start),
        (p13_out_of_the_box, lambda: p13_out_of_the_box._job(tmp_path, tmp_path)),
    ):
        monkeypatch.setattr(module, "build_session", build)
        with pytest.raises(_Started):
            start()
    assert uses == ["bulk"] * 3


def test_an_event_is_there_with_the_first_step_that_ends_beyond_it() -> None:
    steps = Steps([(20, 7.0), (0, 1.0), (10, 3.0), (10, 5.0)])
    assert [steps.when(value) for value in (0, 9, 10, 19, 20)] == [3.0, 3.0, 7.0, 7.0, None]
