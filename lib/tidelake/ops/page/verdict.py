"""Say in one line whether all is well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tidelake.ops.alerts import Alert
from tidelake.ops.page import words
from tidelake.ops.page.facts import Facts

State = Literal["well", "warning", "critical", "unknown", "new"]


@dataclass(frozen=True)
class Verdict:
    """What the first line says.

    Attributes:
        state: In a word; it colours the page.
        text: In a sentence.
        alerts: What is open, the worst first.
    """

    state: State
    text: str
    alerts: tuple[Alert, ...]


def verdict_of(all_facts: Sequence[Facts]) -> Verdict:
    """Judge some pipelines together."""
    found = [alert for facts in all_facts for alert in facts.open]
    alerts = tuple(sorted(found, key=lambda alert: alert.severity != "critical"))
    critical = sum(alert.severity == "critical" for alert in alerts)
    warnings = len(alerts) - critical
    if critical:
        more = f", and {warnings} to look at today" if warnings else ""
        return Verdict("critical", f"{_things(critical)} wrong{more}", alerts)
    if warnings:
        return Verdict("warning", f"{words.some(warnings, 'thing')} to look at today", alerts)
    if any(facts.looked_at is None for facts in all_facts):
        return Verdict("unknown", "The tables are being read", alerts)
    if not any(facts.has_run for facts in all_facts):
        return Verdict("new", "Nothing has run here yet", alerts)
    if not all(facts.whole for facts in all_facts):
        return Verdict("unknown", "Nothing wrong so far; not all is read yet", alerts)
    return Verdict("well", "All is well", alerts)


def _things(count: int) -> str:
    return f"{words.some(count, 'thing')} {'is' if count == 1 else 'are'}"
