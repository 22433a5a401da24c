"""The commands that the contract knows and this version does not have: each says so."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tidelake.errors import NotBuiltError

_UNBUILT = {
    "ui": "Show a live page.",
}


def unbuilt_commands() -> Iterator[click.Command]:
    """Give a command for each, so that help lists it and a call is answered by name."""
    for name, about in _UNBUILT.items():
        yield _unbuilt(name, about)


def _unbuilt(name: str, about: str) -> click.Command:
    @click.command(
        name,
        help=f"{about} Not built yet.",
        short_help=f"Not built yet: {about}",
        context_settings={"ignore_unknown_options": True},
    )
    @click.argument("anything", nargs=-1, type=click.UNPROCESSED)
    def refuse(anything: tuple[str, ...]) -> None:
        raise NotBuiltError(f"`tidelake {name}`")

    return refuse
