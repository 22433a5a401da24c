"""The sound parts of a file that as a whole is not, so that checks can go on with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tidelake.config.detections import Detection
from tidelake.config.event import Event
from tidelake.config.gold import GoldTable
from tidelake.config.joins import Enrich, Join
from tidelake.config.names import SILVER_RESERVED
from tidelake.config.pipeline import DimensionSpec
from tidelake.config.result_types import STANDARD, event_types

_M = TypeVar("_M", bound=BaseModel)
# What takes the place of a broken key without causing a finding of its own.
_STAND_INS: dict[type[BaseModel], dict[str, Any]] = {
    Event: {"id": "NULL", "time": "NULL"},
    GoldTable: {"name": "stand_in", "window": {"kind": "tumbling", "size": "1 day"}},
}
_COLUMNS = {"schema", "select"}


@dataclass(frozen=True)
class Parts:
    """The sound parts of a pipeline file, each with its place in it."""

    name: str | None
    event: Event | None
    enrich: dict[int, Enrich]
    enrich_is_whole: bool
    gold: dict[int, GoldTable]
    joins: dict[int, Join]
    detections: dict[int, Detection]
    dimension: DimensionSpec | None

    def columns(self) -> dict[str, str | None] | None:
        """Silver's columns with their types, those of enrichment too; None: they are not known."""
        if self.event is None or not self.enrich_is_whole:
            return None
        added = [column for enrich in self.enrich.values() for column in enrich.columns]
        own = {name: STANDARD[name] for name in SILVER_RESERVED}
        return {**own, **event_types(self.event), **dict.fromkeys(added)}


def sound_parts(raw: Mapping[str, Any]) -> Parts:
    """Take what is sound from a file's content; the rest has been reported already."""
    enrich = _sound_items(Enrich, raw.get("enrich"))
    written = raw.get("enrich", [])
    return Parts(
        name=raw["name"] if isinstance(raw.get("name"), str) else None,
        event=_sound(Event, raw.get("event")),
        enrich=enrich,
        enrich_is_whole=isinstance(written, list) and len(enrich) == len(written),
        gold=_sound_items(GoldTable, raw.get("gold")),
        joins=_sound_items(Join, raw.get("joins")),
        detections=_sound_items(Detection, raw.get("detections")),
        dimension=_sound(DimensionSpec, raw.get("dimension")),
    )


def _sound_items(model: type[_M], raw: object) -> dict[int, _M]:
    items = raw if isinstance(raw, list) else []
    sound = ((index, _sound(model, item)) for index, item in enumerate(items))
    return {index: item for index, item in sound if item is not None}


def _sound(model: type[_M], raw: object) -> _M | None:
    """Validate; or mend what is broken by stand-ins and validate again."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        if not isinstance(raw, dict):
            return None
        mended = _mended(raw, error, _STAND_INS.get(model, {}))
    try:
        return model.model_validate(mended)
    except ValidationError:
        return None


def _mended(
    raw: dict[str, Any], error: ValidationError, stand_ins: dict[str, Any]
) -> dict[str, Any] | None:
    broken = {str(details["loc"][0]) for details in error.errors() if details["loc"]}
    if broken & _COLUMNS or not stand_ins:
        return None
    mended = {key: value for key, value in raw.items() if key not in broken}
    mended |= {key: value for key, value in stand_ins.items() if key in broken}
    if "keys" in broken:
        # No keys are a finding for some windows; here they are only unreadable.
        mended["window"] = stand_ins["window"]
    if "measures" in broken:
        measures = raw.get("measures")
        measures = measures if isinstance(measures, dict) else {}
        bad = {d["loc"][1] for d in error.errors() if d["loc"][0] == "measures" and d["loc"][1:]}
        sound = {name: body for at, (name, body) in enumerate(measures.items()) if at not in bad}
        mended["measures"] = sound or {"stand_in": {"count": "*"}}
    return mended
