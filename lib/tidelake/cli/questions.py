"""The questions of ``init``: each with what the sample suggests, asked until it makes sense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import click

from tidelake.cli.failures import say
from tidelake.config.model import parse_duration, written
from tidelake.errors import UsageError
from tidelake.scaffold.draft import NO_KEY, Draft, Wishes, draft_of
from tidelake.scaffold.guesses import event_ids, event_times
from tidelake.scaffold.payload import Payload
from tidelake.scaffold.sample import Sample

_SHOWN = 3


def ask(sample: Sample, payload: Payload, wishes: Wishes, *, from_topic: bool) -> Wishes:
    """Ask for what no option says.

    Args:
        sample: What answers are tried on.
        payload: What it holds.
        wishes: What the options say.
        from_topic: Whether records have a timestamp of the topic's.
    """

    def draft(asked: Wishes) -> Draft:
        return draft_of("new", "", sample, payload, asked)

    def sound(question: str, default: str, told: Callable[[str], Wishes]) -> Wishes:
        def read(text: str) -> Wishes:
            try:
                draft(told(text))
            except UsageError as error:
                raise click.BadParameter(str(error)) from error
            return told(text)

        answer: Wishes = click.prompt(question, default=default, value_proc=read, err=True)
        return answer

    ids, times = event_ids(sample, payload), event_times(payload, from_topic=from_topic)
    say(f"{len(sample.records):,} records, {len(payload.fields)} fields.")
    for what, choices in (("id", ids), ("time", times)):
        for one in choices[:_SHOWN]:
            say(f"  {what:<5} {one.sql}: {one.why}")
    asked = wishes
    if wishes.id is None:
        asked = sound("What tells events apart", ids[0].sql, lambda text: replace(asked, id=text))
    if wishes.time is None:
        asked = sound("When was an event", times[0].sql, lambda text: replace(asked, time=text))
    if wishes.key is None:
        key = draft(asked).table.key or NO_KEY
        question = "What does the first gold table group by"
        asked = sound(question, key, lambda text: replace(asked, key=text))
    suggested = draft(asked)
    late = f"How far do events come out of order ({suggested.lateness.why})"
    return replace(
        asked,
        window=wishes.window or _length("How long are its windows", suggested.table.size),
        delay=wishes.delay or _length(late, suggested.lateness.delay),
    )


def _length(question: str, default: timedelta) -> timedelta:
    def read(text: str) -> timedelta:
        try:
            return parse_duration(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    answer: timedelta = click.prompt(question, default=written(default), value_proc=read, err=True)
    return answer
