"""Generate docs/recovery.md from the results of ``make recovery``.

Usage: python -m tests.recovery.page [--folder build/recovery] [--docs docs]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.recovery.__main__ import PUBLISHED, RESULTS, Part, kept, parts
from tests.recovery.reporting import Report

_HEAD = """# Recovery

Kills, damaged files, dead brokers and full disks, with every table compared afterwards with an \
oracle that has none of the pipeline's code. `make recovery` runs all of it, and all other tests \
that are too long for each change. It keeps the result of each file of tests, so that it can be \
stopped and continued; `make recovery-page` generates this page from the results. The sizes are \
variables, described in the repository's `CONTRIBUTING.md`.
"""
_FAULTS = """## Faults

*tried* is how often the fault was to happen, *of* how often in a run at full size, *reached* how \
often it did happen (a run can end before its kill). *refused* counts runs that stopped with an \
error that names the command to continue with. *lost* are records in no table and no count, \
*doubled* those that are there twice. A seed repeats a run: `TIDELAKE_SEED=n make recovery`.
"""
_FILES = """## Files of tests

Those of `tests/recovery` and the ones with a size run whole, of the others the long tests: \
`make test` runs the rest in each change.
"""
_REPORT_COLUMNS = ("tried", "of", "reached", "refused", "lost", "doubled", "seed")


def written(found: Sequence[Part], missing: Sequence[Part], docs: Path) -> Path:
    """Write the page and a copy of the results; return the page's path."""
    pieces = [_HEAD, _summary(found, missing), "", _FAULTS, *_faults(found), "", _FILES]
    pieces += [*_files(found), "", *_lists(found, missing)]
    pieces += ["[All results](recovery.json)"]
    content = json.dumps([asdict(part) for part in found], indent=1) + "\n"
    (docs / PUBLISHED.name).write_text(content, encoding="utf-8")
    page = docs / "recovery.md"
    page.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return page


def _summary(found: Sequence[Part], missing: Sequence[Part]) -> str:
    """Sum up what ran."""
    reports = [report for part in found for report in part.reports]
    hours = sum(part.seconds for part in found) / 3600
    commits = ", ".join(f"`{one}`" for one in dict.fromkeys(part.commit for part in found))
    days = sorted({part.ended[:10] for part in found})
    rows = [
        ("files of tests", f"{len(found)} of {len(found) + len(missing)}"),
        ("tests passed", f"{sum(part.passed for part in found):,}"),
        ("tests failed", f"{sum(len(part.failed) for part in found):,}"),
        ("hours, summed over the files", f"{hours:.1f}"),
        ("faults that happened", f"{sum(report.reached for report in reports):,}"),
        ("lost", f"**{sum(report.lost for report in reports):,}**"),
        ("doubled", f"**{sum(report.doubled for report in reports):,}**"),
        ("run", " to ".join(dict.fromkeys((days[0], days[-1]))) + f"; commits {commits}"),
    ]
    return "\n".join(_table(("", ""), rows))


def _faults(found: Sequence[Part]) -> list[str]:
    """Draw the reports of all parts."""
    reports = [report for part in found for report in part.reports]
    return _table(("fault", *_REPORT_COLUMNS), map(_row, reports))


def _row(report: Report) -> tuple[str, ...]:
    """Give a report's cells."""
    counts = (report.tried, report.full, report.reached, report.refused, report.lost)
    cells = ["" if value is None else f"{value:,}" for value in (*counts, report.doubled)]
    return report.what, *cells, str(report.seed or "")


def _files(found: Sequence[Part]) -> list[str]:
    rows = [
        (
            f"`{part.file}`",
            str(part.passed),
            ", ".join(
                f"{name.removeprefix('TIDELAKE_')}={size}" for name, size in part.sizes.items()
            ),
            f"{part.seconds / 60:.1f}",
            f"`{part.commit}`",
        )
        for part in found
    ]
    return _table(("file", "passed", "size", "minutes", "commit"), rows)


def _lists(found: Sequence[Part], missing: Sequence[Part]) -> Iterator[str]:
    """List what did not pass or did not run; nothing where there is none."""
    lists = {
        "Failed": [f"`{part.file}`: {name}" for part in found for name in part.failed],
        "Left out on this machine": [
            f"`{part.file}`: {name}" for part in found for name in part.left_out
        ],
        "Not run yet": [f"`{part.file}`" for part in missing],
    }
    for title, items in lists.items():
        if items:
            yield from [f"## {title}", "", *[f"- {item}" for item in items], ""]


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Draw a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(map(str, row))} |" for row in lines]


if __name__ == "__main__":
    asked = argparse.ArgumentParser(prog="python -m tests.recovery.page")
    asked.add_argument("--folder", type=Path, default=RESULTS, help="where results are kept")
    asked.add_argument(
        "--docs", type=Path, default=PUBLISHED.parent, help="the folder of the site's pages"
    )
    given = asked.parse_args()
    results = kept(given.folder)
    ran = {part.file for part in results}
    print(written(results, [one for one in parts() if one.file not in ran], given.docs))
