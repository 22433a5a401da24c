"""The model of an environment file: the place of tables, Spark's settings, triggers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, ValidationError

from tidelake.config.document import Finding, KeyPath, findings_of, read_document
from tidelake.config.model import ByteSize, Model, PositiveDuration, Text, matching
from tidelake.config.observing import AlertTargets, Lineage, Metrics
from tidelake.config.places import find_file
from tidelake.config.source import SecretReference, Setting
from tidelake.errors import NotBuiltError
from tidelake.folders import Folder, folder, problem_of

# Keys that earlier versions had, and what to write in place of them.
_REMOVED: dict[KeyPath, str] = {
    ("metrics", "jsonl"): (
        "is a sink that was removed; leave it out, set table: true and read ops.progress"
    ),
    ("metrics", "textfile"): (
        "is a sink that was removed; leave it out, and set prometheus: HOST:PORT or table: true"
    ),
}
REMOTE_VARIABLE = "SPARK_REMOTE"
INTERVAL = r"[0-9]+ (milliseconds?|seconds?|minutes?|hours?)"
Trigger = Annotated[
    str,
    matching(
        rf"available-now|continuous|{INTERVAL}",
        "must be available-now, continuous or an interval like '10 seconds'",
    ),
]
# Without a client's other options, such as a token: a file must not hold secrets.
_Remote = Annotated[
    str,
    matching(
        r"sc://[^/;\s]+/?", "must look like sc://host:port; options and tokens go into SPARK_REMOTE"
    ),
]
_Catalog = Annotated[
    str, matching("[A-Za-z_][A-Za-z0-9_-]*", "must be a catalog's name: letters, digits, _ and -")
]


def _as_root(value: object) -> object:
    # The loader makes a folder of the text, with an error that names the key.
    if value is None or hasattr(value, "joinpath"):
        return value
    raise ValueError("must be the path of a folder")


class Limits(Model):
    """The input of a micro-batch, in compressed bytes such as ``256m``.

    Attributes:
        silver_bytes: Input of a batch of silver.
        gold_bytes: Input of a batch of gold.
    """

    silver_bytes: ByteSize = "256m"
    gold_bytes: ByteSize = "256m"


class Triggers(Model):
    """Defaults of ``tidelake run --trigger``.

    Each is ``available-now``, ``continuous`` or an interval such as ``10 seconds``.

    Attributes:
        all: For a run of all hops.
        bronze: For a run of this hop alone.
        silver: For a run of this hop alone.
        gold: For a run of this hop alone.
    """

    all: Trigger = "available-now"
    bronze: Trigger = "available-now"
    silver: Trigger = "available-now"
    gold: Trigger = "available-now"


class Environment(Model):
    """A place to run in; tables lie under ``root`` or in ``catalog``, never both.

    Attributes:
        name: The file's name.
        root: Folder of the tables: absolute, or on an object store.
        catalog: Unity Catalog's name.
        volume: Absolute folder of the files that go with a catalog's tables: checkpoints, locks,
            marks.
        master: Spark's master; None where the cluster decides.
        remote: A server of Spark Connect, in place of a master.
        limits: Bounds of a micro-batch.
        locks: ``required``: a hop is refused where the file system has no locks; ``none``: it goes
            on without, each append of a batch carries a transaction id, and it is up to you that
            one process at a time writes a pipeline. In a catalog and on an object store it
            changes nothing.
        recovery_horizon: How long files that tables no longer hold stay at least.
        spark: Settings of the session.
        triggers: When the batches of a run begin where ``--trigger`` does not say it.
        secrets: Not built yet: an environment with any is refused. References such as ``env:NAME``
            stand where the secret is used.
        metrics: Where a run tells what its batches cost.
        alerts: Where alerts go beside the messages of a run.
        lineage: Where OpenLineage events go; None for nowhere.
    """

    name: Text
    root: Annotated[Folder | None, PlainValidator(_as_root)] = None
    catalog: _Catalog | None = None
    volume: Path | None = None
    master: Text | None = None
    remote: _Remote | None = None
    limits: Limits = Limits()
    locks: Literal["required", "none"] = "required"
    recovery_horizon: PositiveDuration = timedelta(days=7)
    spark: dict[str, Setting] = Field(default_factory=dict)
    triggers: Triggers = Triggers()
    secrets: dict[str, SecretReference] = Field(default_factory=dict)
    metrics: Metrics = Metrics()
    alerts: AlertTargets = AlertTargets()
    lineage: Lineage | None = None

    @property
    def files(self) -> Folder | None:
        """The folder of files: the root, or the volume of a catalog."""
        return self.root or self.volume


def load_environment(name: str | None = None, *, root: str | None = None) -> Environment:
    """Read an environment of the conf folder; it has an absolute root, or a catalog and a volume.

    The variables ``TIDELAKE_CATALOG`` and ``TIDELAKE_VOLUME`` override those of a file with a
    catalog; ``SPARK_REMOTE``, a server of Spark Connect, overrides the master.

    Args:
        name: By default the variable ``TIDELAKE_ENV``, then ``local``.
        root: A folder or ``s3://bucket/prefix``, in place of the file's root or catalog; by default
            the variable ``TIDELAKE_ROOT``.

    Raises:
        UsageError: No environment has this name.
        ConfigError: The file is invalid; lists all violations.
        NotBuiltError: It has ``secrets``.
    """
    name = name or os.environ.get("TIDELAKE_ENV") or "local"
    root = root or os.environ.get("TIDELAKE_ROOT")
    document = read_document(find_file(name, "environment"))
    raw: dict[str, Any] = dict(document.content)
    findings = [*document.findings, *_place_findings(raw, name, bool(root))]
    raw["name"] = name
    if root:
        raw["root"] = folder(root)
        raw.pop("catalog", None)
        raw.pop("volume", None)
    remote = os.environ.get(REMOTE_VARIABLE, "")
    # A runtime's own session has another form, and needs no connection.
    if remote.startswith("sc://"):
        # The client reads the variable itself, with the token after a semicolon.
        raw["remote"] = re.split("/?;", remote, maxsplit=1)[0]
        raw.pop("master", None)
    if raw.get("catalog") is not None:
        raw["catalog"] = os.environ.get("TIDELAKE_CATALOG") or raw["catalog"]
        told = os.environ.get("TIDELAKE_VOLUME") or raw.get("volume")
        raw["volume"] = told or f"/Volumes/{raw['catalog']}/ops/files"
    if isinstance(raw.get("volume"), str):
        raw["volume"] = Path(os.path.abspath(Path(raw["volume"]).expanduser()))
    if isinstance(raw.get("root"), str) and not problem_of(raw["root"]):
        raw["root"] = folder(raw["root"])
    try:
        environment = Environment.model_validate(raw)
    except ValidationError as error:
        findings += [
            Finding(one.path, _REMOVED.get(one.path, one.message))
            for one in findings_of(error, Environment, raw)
        ]
        raise document.error(findings) from error
    if findings:
        raise document.error(findings)
    if environment.secrets:
        raise NotBuiltError(
            f"{document.file}: secrets",
            "Write the reference, such as env:NAME, where the secret is used.",
        )
    return environment


def _place_findings(raw: dict[str, Any], name: str, has_root: bool) -> Iterator[Finding]:
    root, catalog, volume = raw.get("root"), raw.get("catalog"), raw.get("volume")
    if raw.get("name", name) != name:
        yield Finding(("name",), f"is not the file's name, {name}; leave it out")
    if raw.get("master") is not None and raw.get("remote") is not None:
        yield Finding(("remote",), "stands beside master; a session has one of them")
    if root == "":
        yield Finding(("root",), "must not be empty")
    if isinstance(root, str) and problem_of(root) and not has_root:
        yield Finding(("root",), f"{root} {problem_of(root)}")
    if root is not None and catalog is not None:
        yield Finding(("catalog",), "stands beside root; tables lie in one of them")
    if volume == "":
        yield Finding(("volume",), "must not be empty")
    if volume is not None and catalog is None:
        yield Finding(("volume",), "goes with catalog only; under a root lie files too")
    if raw.get("master") is not None and catalog is not None:
        yield Finding(("master",), "goes with root only; the runtime of a catalog is there")
    if root is None and catalog is None and not has_root:
        yield Finding(("root",), "root or catalog is required: where tables lie")
