"""The pages of the reference, written from the code that they speak of."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
from models import keys_of, title
from pydantic import BaseModel

from tidelake import errors
from tidelake.cli import app
from tidelake.config import Environment
from tidelake.config.expectations import ROW_EXPECTATIONS, TABLE_EXPECTATIONS, Suite
from tidelake.config.json_schema import about
from tidelake.config.pipeline import PipelineFile
from tidelake.errors import TidelakeError
from tidelake.names import (
    BRONZE_COLUMNS,
    DETECTION_RESERVED,
    DIMENSION_RESERVED,
    GOLD_RESERVED,
    SILVER_RESERVED,
)

_CODES = {
    0: "done",
    1: "unexpected: a failure with or without a name",
    2: "wrong use: the call, the configuration or the source",
    3: "a check failed or refused to continue; the refused step changed no table",
    4: "the machine lacks something; `tidelake doctor` says what",
    130: "stopped by Ctrl-C or SIGTERM (`ui` and `serve`: 0); committed batches are kept",
}

_BRONZE = {
    "record_id": "`topic:partition:offset`; of a file its path and the line in it, from 0",
    "key": "the record's key; null for files",
    "payload": "the very bytes",
    "headers": "the record's headers; null for files",
    "source": "the topic or the file",
    "source_timestamp": "the record's timestamp in the topic, or the file's last change",
    "ingested_at": "when its batch was taken; never goes back",
    "ingest_date": "its date in UTC",
}
_SILVER = {
    "event_id": "tells events apart, by `event.id`",
    "event_time": "when it happened, by `event.time`, in UTC",
    "is_late": "whether its event time is before the watermark",
    "record_id": "its record in bronze",
    "ingested_at": "as in bronze",
    "event_date": "the date of `event_time` in UTC",
}
_GOLD = {
    "window_start": "of tumbling and hopping windows: where the window begins, itself included",
    "window_end": "where it ends, itself excluded",
    "session_id": "of sessions: a hash of the keys and the start",
    "session_start": "the time of the first event",
    "session_end": "the time of the last event",
}
_ALERTS = {
    "rule": "the rule that was broken",
    "event_id": "the event that broke it",
    "event_time": "when that was",
    "evidence": "the numbers that the rule saw",
    "sent_at": "of the fast lane's alerts: when the source received the event",
}
_DIMENSION = {
    "valid_from": "of the history: from when the version holds",
    "valid_to": "until when; null for the last",
    "is_current": "whether it is the last, and not deleted",
}
_SIDES = (
    ("bronze.PIPELINE__requeue", "bronze's columns, `reason`, `requeued_at`: rows sent once more"),
    ("bronze.PIPELINE__schemas", "the schemas that writers of Avro used, and what was found"),
    (
        "silver.PIPELINE__quarantine",
        "`record_id`, `payload`, `event_id`, `reasons`, `stage`, `ingested_at`",
    ),
    ("silver.PIPELINE__late", "silver's columns, `payload`, `watermark`, `lateness_seconds`"),
    (
        "silver.PIPELINE__discarded",
        "`record_id`, `stage`, `reasons`, `why`, `discarded_at`: quarantined rows given up",
    ),
    ("gold.TABLE__final", "a view: the rows that no event on time or allowed can change any more"),
    (
        "gold.TABLE__masked",
        "a view in a catalog: the current rows through the table's masks and row filter",
    ),
    (
        "gold.TABLE__consistent",
        "a view in a catalog with `consistent_views`: the rows at the last epoch, and `_epoch`",
    ),
    ("ops.books", "the ledger, beyond the retention of Delta's log"),
    ("ops.epochs", "which versions of a pipeline's tables belong together"),
    ("ops.progress", "how each batch of each hop went"),
)


def tables_page() -> str:
    """Describe the tables, and the columns that each has whatever the pipeline file says."""
    lines = [
        "# Tables and columns",
        "",
        "A table has a logical name, `layer.table`; under a root it is a folder, dots become "
        "slashes. Columns that begin with `_` are the system's own.",
        "",
    ]
    for heading, about_it, names, said in (
        ("bronze.PIPELINE", "Every record, byte for byte; append-only.", BRONZE_COLUMNS, _BRONZE),
        (
            "silver.PIPELINE",
            "One row for each accepted event; only inserts. After these come the columns of "
            "`event.select` and of dimensions.",
            SILVER_RESERVED,
            _SILVER,
        ),
        (
            "gold.TABLE",
            "Bounds of the window, then the keys, the measures and the derived columns of the "
            "table's definition.",
            GOLD_RESERVED,
            _GOLD,
        ),
        (
            "gold.TABLE of detections",
            "One row per event and rule that it broke, with the table's own columns.",
            DETECTION_RESERVED,
            _ALERTS,
        ),
        (
            "dim.NAME, dim.NAME__history",
            "The latest state of a dimension, and all versions; beside its columns:",
            DIMENSION_RESERVED,
            _DIMENSION,
        ),
    ):
        lines += [f"## {heading}", "", about_it, "", "| column | what it holds |", "|---|---|"]
        lines += [f"| `{name}` | {said[name]} |" for name in names]
        lines.append("")
    lines += ["## Beside them", "", "| table | what it holds |", "|---|---|"]
    lines += [f"| `{name}` | {what} |" for name, what in _SIDES]
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """Describe each command with its options."""
    lines = [
        "# Commands",
        "",
        "`PIPELINE` is a name in `conf/pipelines`, or a path to a YAML file. Results go to stdout, "
        "messages to stderr; `--json` prints for machines.",
        "",
        *_command(app, "tidelake", 2),
    ]
    return "\n".join(lines) + "\n"


def _command(command: click.Command, path: str, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    if isinstance(command, click.Group):
        if path != "tidelake":
            yield from (f"{'#' * level} {path}", "", _help(command), "")
            level += 1
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _command(inner, f"{path} {name}", level)
        return
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield from (f"{'#' * level} {path}", "", _help(command), "", "```text", usage, "```", "")
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if options:
        yield from ("| option | meaning | default |", "|---|---|---|")
        yield from (_option(one, context) for one in options)
        yield ""


def _option(option: click.Option, context: click.Context) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    takes = "" if option.is_flag else f" {option.make_metavar(context)}"
    needed = "required" if option.required else _default(option, context)
    # In code a pipe ends no cell.
    return f"| `{names + takes}` | {_cell(option.help or '')} | {_cell(needed)} |"


def _default(option: click.Option, context: click.Context) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    default = option.get_default(context)
    # Of an option without a default, some versions of click return an object that stands for that.
    is_shown = (
        option.show_default and isinstance(default, str | int | float) and default is not False
    )
    return f"`{default}`" if is_shown else ""


def _help(command: click.Command) -> str:
    return " ".join((command.help or "").split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def pipeline_page() -> str:
    """Describe each key of a pipeline file."""
    return _models_page(
        "Keys of the pipeline file",
        "Every key, with its type and default. [The pipeline file](../pipeline-file.md) shows them "
        "together. A duration is `<number> <unit>`, such as `10 minutes`. Unknown keys are errors.",
        PipelineFile,
    )


def environment_page() -> str:
    """Describe each key of an environment file."""
    return _models_page(
        "Keys of the environment file",
        "What differs by place: `conf/environments/NAME.yml`, chosen by `--env NAME` or "
        "`TIDELAKE_ENV`, `local` by default. `name` is the file's name and is not written.",
        Environment,
    )


def suite_page() -> str:
    """Describe a suite, and the expectations that it may hold."""
    page = _models_page(
        "Keys of the expectations",
        "A [suite of expectations](../expectations.md), in the `conf` folder.",
        Suite,
    )
    lines = [page.rstrip(), ""]
    for heading, signatures in (
        ("Row by row", ROW_EXPECTATIONS),
        ("Of a table as a whole", TABLE_EXPECTATIONS),
    ):
        lines += [f"## {heading}", "", "| expectation | needs | takes |", "|---|---|---|"]
        for name, one in signatures.items():
            needs = ", ".join(f"`{each}`" for each in one.required)
            takes = ", ".join(f"`{each}`" for each in one.optional)
            lines.append(f"| `{name}` | {needs} | {takes} |")
        lines.append("")
    return "\n".join(lines) + "\n"


def _models_page(heading: str, intro: str, top: type[BaseModel]) -> str:
    lines = [f"# {heading}", "", intro, ""]
    seen: list[type[BaseModel]] = [top]
    for model in seen:
        lines += [f"## {title(model)}", "", about(model), ""]
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        for key in keys_of(model):
            cells = (f"`{key.name}`", key.type, key.default, key.meaning)
            lines.append("| " + " | ".join(map(_cell, cells)) + " |")
            seen += [one for one in key.models if one not in seen]
        lines.append("")
    return "\n".join(lines) + "\n"


def errors_page() -> str:
    """Describe the exit codes, and each error by what it means."""
    lines = ["# Errors and exit codes", "", "| exit code | means |", "|---|---|"]
    lines += [f"| {code} | {means} |" for code, means in _CODES.items()]
    lines += ["", "In Python each is an exception of `tidelake.errors`:", ""]
    lines += ["| error | is a | exit code | means |", "|---|---|---|---|"]
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, TidelakeError):
            parent = "" if kind is TidelakeError else f"`{kind.__mro__[1].__name__}`"
            said = (kind.__doc__ or "").split("\n")[0].replace("``", "`")
            lines.append(f"| `{name}` | {parent} | {kind.exit_code} | {said} |")
    return "\n".join(lines) + "\n"
