"""How facts are written: what a healthy lake of files never shows."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.shops import Shop
from tidelake.delta.commit_metadata import DimensionUse, FateCount
from tidelake.ledger.terms import read_ledger
from tidelake.ops.alerts import Alert
from tidelake.ops.metrics import Measured
from tidelake.ops.page.facts import Bar, Facts, Flow, HopFacts, Plot, read_flow
from tidelake.ops.page.server import Renderer
from tidelake.ops.status import Advice, PartitionLag, SourceLag, TopicStatus
from tidelake.typed import Typed

NOW = datetime(2026, 3, 1, 1, tzinfo=UTC)
LAG = SourceLag(
    checked_at=NOW,
    not_asked="no Kafka broker can be reached at <b>",
    partitions=(PartitionLag("clicks", 0, 10, 1510, 1500, "growing"),),
    lag=1500,
    rows_per_second=12.5,
    arriving_per_second=20.0,
    catch_up_seconds=None,
    advice=Advice("slots", 4, "more slots would help: 4 instead of 2"),
)
FAILED = Measured(
    pipeline="shop",
    hop="gold",
    generation="g1",
    batch=3,
    run="r1",
    started_at=NOW,
    ended_at=NOW,
    processed_rows_per_second=1234.0,
    error_class="DiskError",
    error="No space left on device",
)


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    """Give a pipeline whose flow alone was read."""
    shop = Shop(tmp_path).run(3)
    flow = read_flow(shop.lake, shop.pipeline, now=NOW)
    return Facts("shop", shop.pipeline, looked_at=NOW, has_run=True, flow=flow)


def written(facts: Facts) -> str:
    """Write the page, spaces made one."""
    renderer = Renderer(("shop",), Path("/lake"), Typed())
    return " ".join(renderer.pipeline(facts).body.decode().split())


def test_where_nothing_ran_the_page_begins_with_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf" / "pipelines").mkdir(parents=True)
    (tmp_path / "conf" / "pipelines" / "store.yml").touch()
    monkeypatch.chdir(tmp_path)
    renderer = Renderer(("store",), Path("/lake"), Typed())
    page = renderer.overview([Facts("store", looked_at=NOW)]).body.decode()
    assert "Create them with" in page
    assert "tidelake run store" in page
    assert "tidelake demo" not in page


def flow_of(facts: Facts) -> Flow:
    assert facts.flow is not None
    return facts.flow


def test_what_is_not_read_yet_says_so(facts: Facts) -> None:
    page = written(facts)

    assert "No problem found so far; some tables are not read yet".lower() in page.lower()
    assert "The ledger is being read …" in page
    assert "being counted …" in page


def test_what_cannot_be_read_is_not_said_to_be_read_for_ever(facts: Facts) -> None:
    broken = tuple((part, "gone") for part in ("sides", "plots", "books"))
    page = written(replace(facts, broken=broken))
    assert page.count("It cannot be read: see the top of this page.") == 3
    assert "being read …" not in page
    assert "being counted …" not in page

    page = written(replace(facts, flow=None, broken=(("flow", "gone"),)))
    assert "The hops are being" not in page


def test_alerts_name_their_rule_apart_from_their_pipeline_and_hop(facts: Facts) -> None:
    alert = Alert("hop_failed", "shop", "gold", "critical", "stopped", None, "tidelake run shop")
    renderer = Renderer(("shop", "other"), Path("/lake"), Typed())
    page = renderer.overview([replace(facts, alerts=(alert,))]).body.decode()
    shown = re.findall(r'<p class="alert-what">.*?</p>', page, re.DOTALL)[0]
    words = re.sub("<[^>]*>", "", shown).split()
    assert words == ["critical", "shop", "gold", "hop_failed", "stopped"]


def test_a_pipeline_without_gold_has_no_empty_part_for_it(facts: Facts) -> None:
    assert facts.pipeline is not None
    assert 'id="gold"' in written(facts)
    pipeline = facts.pipeline.model_copy(update={"gold": ()})
    assert 'id="gold"' not in written(replace(facts, pipeline=pipeline, plots=()))


def test_the_overview_has_no_heading_without_a_pipeline_and_no_batch_that_was_not_closed(
    facts: Facts,
) -> None:
    def shown(*all_facts: Facts) -> str:
        renderer = Renderer(("shop", "other"), Path("/lake"), Typed())
        return " ".join(renderer.overview(all_facts).body.decode().split())

    idle = Facts("other", facts.pipeline, looked_at=NOW)
    headings = re.compile("<h2[^>]*>([^<]*)")
    assert headings.findall(shown(idle)) == ["Not run here"]
    assert headings.findall(shown(facts)) == ["Pipelines"]
    assert headings.findall(shown(facts, idle)) == ["Pipelines", "Not run here"]

    assert "<dt>last batch</dt><dd><time" in shown(facts)
    flow = flow_of(facts)
    hops = tuple(replace(hop, status=replace(hop.status, batch=-1)) for hop in flow.hops)
    assert "<dt>last batch</dt><dd>none</dd>" in shown(
        replace(facts, flow=replace(flow, hops=hops))
    )


def test_plots_show_values_below_zero_and_blank_keys(facts: Facts) -> None:
    keys = (Bar("u1", 5.0), Bar("", -5.0))
    bars = Plot("gold.totals", "totals", 2, "total, all", keys)
    times = tuple(Bar("", value, NOW) for value in (4.0, -1234.0))
    line = Plot("gold.takings_1m", "tumbling windows", 2, "total", times, timedelta(minutes=1))
    page = written(replace(facts, plots=(bars, line)))

    assert '<rect width="1000.0"' in page
    assert '<rect class="negative" width="1000.0"' in page
    assert '<span class="quiet">blank text</span>' in page
    assert '<p class="scale"><span>-1,234</span></p>' in page
    above = replace(line, bars=times[:1])
    assert written(replace(facts, plots=(above,))).count('<p class="scale">') == 1


def test_a_topic_shows_what_waits_what_would_help_and_why_nobody_was_asked(facts: Facts) -> None:
    flow = flow_of(facts)
    status = replace(flow.status, source=LAG, held_back_by="clicks:0", idle=("clicks:1",))
    page = written(replace(facts, flow=replace(flow, status=status)))

    assert "<dt>records wait</dt><dd>1,500</dd>" in page
    assert "more slots would help: 4 instead of 2" in page
    assert "The broker was not asked: no Kafka broker can be reached at &lt;b&gt;" in page
    assert "partition clicks:0" in page
    assert "<dd>clicks:1</dd>" in page


def test_topics_of_gold_say_what_they_lack(facts: Facts) -> None:
    flow = flow_of(facts)
    topics = [
        TopicStatus("gold.visits", f"topic-{n}", version, waiting)
        for n, (version, waiting) in enumerate([(None, None), (3, None), (3, 1), (3, 0)])
    ]
    status = replace(flow.status, topics=tuple(topics))
    page = written(replace(facts, flow=replace(flow, status=status))).replace("<wbr>", "")

    assert "<h4>Topic topic-0</h4><p>gold.visits: begins with the next run</p>" in page
    assert 'gold.visits: <span class="bad">changes are gone</span></p>' in page
    assert "<h4>Topic topic-2</h4><p>gold.visits: 1 version not sent</p>" in page
    assert "<h4>Topic topic-3</h4><p>gold.visits: all versions sent</p>" in page


def test_batches_that_read_only_requeued_rows_are_drawn(facts: Facts, tmp_path: Path) -> None:
    shop = Shop(tmp_path / "books").run(2)
    ledger = read_ledger(shop.lake, shop.pipeline)
    counts = [
        FateCount("quarantined", "parse", "requeue", 4),
        FateCount("silver", None, "requeue", 4),
    ]
    requeued = [replace(one, taken=0, returned=8, counts=tuple(counts)) for one in ledger.batches]
    page = written(replace(facts, books=replace(ledger, batches=tuple(requeued))))
    [aside] = re.findall(r'aria-label="Quarantined and late rows per batch".*?</svg>', page)
    assert re.findall(r' height="([\d.]+)"', aside) == ["50.0", "50.0"]
    idle = [replace(one, returned=0, counts=()) for one in requeued]
    page = written(replace(facts, books=replace(ledger, batches=tuple(idle))))
    [aside] = re.findall(r'aria-label="Quarantined and late rows per batch".*?</svg>', page)
    assert "<rect" not in aside


def test_dimensions_and_rules_that_only_warn_stand_beside_silver(facts: Facts) -> None:
    flow = flow_of(facts)
    dimensions = (DimensionUse("dim.a", 7, 17), DimensionUse("dim.b", -1, 1))
    status = replace(flow.status, dimensions=dimensions, warnings={"value: is <odd>": 5})
    page = written(replace(facts, flow=replace(flow, status=status)))

    assert "read at version 7; 17 rows without a match" in page
    assert "does not exist yet</span>; 1 row without a match" in page
    assert "5 rows of silver fail value: is &lt;odd&gt;" in page


def test_what_runs_measured_shows_at_its_hop(facts: Facts) -> None:
    flow = flow_of(facts)
    told = "DiskError: No space left on device"
    *others, gold = flow.hops
    hops = [*others, replace(gold, measured=FAILED, lag_seconds=600.0)]
    page = written(replace(facts, flow=replace(flow, hops=tuple(hops))))

    assert "<dt>lag</dt><dd>10 minutes</dd>" in page
    assert "1,234 rows/s" in page
    assert told in page


def test_a_hop_that_runs_is_told_and_nothing_else_is_to_be_started(facts: Facts) -> None:
    def waiting(process: int | None, files: int = 3) -> Facts:
        flow = flow_of(facts)
        first: HopFacts = flow.hops[0]
        held = replace(first, status=replace(first.status, waiting=files), process=process)
        return replace(facts, flow=replace(flow, hops=(held, *flow.hops[1:])))

    assert "Read the waiting input with" in written(waiting(None))
    running = written(waiting(4711))
    assert "is alive: process 4711" in running
    assert "Read the waiting input with" not in running
    assert "3 files wait<" in running
    assert "1 file waits<" in written(waiting(None, 1))
