"""Where a run sends metrics, alerts and lineage."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from tidelake.config.model import Model, PositiveDuration, Text
from tidelake.config.source import SecretReference

_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_MAX_PORT = 65_535


def _address(text: str) -> str:
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > _MAX_PORT:
        raise ValueError("must be HOST:PORT such as 127.0.0.1:9108")
    return text


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


Address = Annotated[str, AfterValidator(_address)]
FilePath = Annotated[Path, AfterValidator(_absolute)]


class Metrics(Model):
    """Where a run reports metrics of its batches; nowhere by default.

    Attributes:
        prometheus: HOST:PORT that serves ``/metrics`` during a run.
        table: Whether a run writes to ``ops.progress``.
        keep: How long ``ops.progress`` keeps a batch.
    """

    prometheus: Address | None = None
    table: Annotated[bool, Field(strict=True)] = False
    keep: PositiveDuration = timedelta(days=30)


class AlertTargets(Model):
    """Where alerts are sent, in addition to the messages of a run.

    Attributes:
        webhook: Reference to the URL that receives a POST on each change of an alert.
    """

    # The URL of a webhook is itself a secret.
    webhook: SecretReference | None = None


class Lineage(Model):
    """Where OpenLineage events are sent: to a server or into a file.

    Attributes:
        url: Reference to the server's URL.
        api_key: Reference to the server's API key, if it requires one.
        file: File to which events are appended, one per line.
        namespace: Namespace of the jobs.
    """

    url: SecretReference | None = None
    api_key: SecretReference | None = None
    file: FilePath | None = None
    namespace: Text = "tidelake"

    @model_validator(mode="after")
    def _one_target(self) -> Lineage:
        if (self.url is None) == (self.file is None):
            raise ValueError("needs either url or file")
        return self
