"""The model of an environment file, and references to secrets, resolved where they are used."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, PlainValidator, field_validator, model_validator

from tidelake.config.document import Finding, read_document
from tidelake.config.locations import find_file, own_conf
from tidelake.config.model import (
    ByteSize,
    Model,
    PositiveDuration,
    Text,
    matching,
    parse_duration,
)
from tidelake.config.source import (
    REFERENCE,
    SERVICE_CREDENTIAL,
    FilesSource,
    SecretReference,
    Setting,
    Source,
)
from tidelake.errors import NotBuiltError, UsageError
from tidelake.external import is_external
from tidelake.folders import Folder, counted_from, expanded, folder, is_stored, problem_of

# Keys that apply only to tables under a root, and what a catalog has instead.
_OF_A_ROOT = {
    "limits": (
        ", and limit bronze's batches in the pipeline file, by max_files_per_trigger or "
        "max_offsets_per_trigger under source: a batch of silver or gold takes all commits that it "
        "finds. In a run that ends those are few only if the input lands in portions, with a run "
        "after each"
    ),
    "locks": ": the tables themselves keep two writers apart",
}
REMOTE_VARIABLE = "SPARK_REMOTE"
# Settings that change what an expression returns, and the value that every session has. Without
# ANSI mode a cast that fails is null, and rows that should be quarantined get into silver.
RESULT_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
}
# Settings that bring back what earlier versions of Spark computed. Only those above are set in a
# session: a cluster may start with others, on which few expressions depend.
_LEGACY = "spark.sql.legacy."
_UTC = ("utc", "etc/utc")
# Settings that hold a secret, not those that say where one is, or how it is used.
_SECRET = re.compile(
    r"(password|passphrase|\bsecret|(secret|private)\.key|session\.token|bindpw)$"
    r"|\.(client\.secret|account\.key|sas)\.",
    re.IGNORECASE,
)


def _bounded(trigger: str) -> str:
    if trigger[0].isdigit():
        parse_duration(trigger)
    return trigger


INTERVAL = r"[0-9]+ (milliseconds?|seconds?|minutes?|hours?)"
Trigger = Annotated[
    str,
    matching(
        rf"available-now|continuous|{INTERVAL}",
        "must be available-now, continuous or an interval like '10 seconds'",
    ),
    AfterValidator(_bounded),
]
# Without options of the client, such as a token: a file must not contain secrets.
_Remote = Annotated[
    str,
    matching(
        r"sc://[^/;\s]+/?", "must look like sc://host:port; options and tokens go into SPARK_REMOTE"
    ),
]
_Catalog = Annotated[
    str, matching("[A-Za-z_][A-Za-z0-9_-]*", "must be a catalog's name: letters, digits, _ and -")
]
_ADDRESS = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_MAX_PORT = 65_535


def _as_root(value: object) -> object:
    # The loader converts text to a folder beforehand, to report an error by its key.
    if value is None or hasattr(value, "joinpath"):
        return value
    raise ValueError("must be the path of a folder")


Root = Annotated[Folder | None, PlainValidator(_as_root)]


def _as_address(text: str) -> str:
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > _MAX_PORT:
        raise ValueError("must be HOST:PORT such as 127.0.0.1:9108")
    return text


_Address = Annotated[str, AfterValidator(_as_address)]
_FilePath = Annotated[Path, AfterValidator(lambda path: expanded(str(path)).absolute())]


class Limits(Model):
    """The maximum input of a micro-batch, in compressed bytes such as ``256m``.

    Attributes:
        silver_bytes: Maximum input of a silver batch.
        gold_bytes: Maximum input of a gold batch.
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


class Metrics(Model):
    """Where a run reports metrics of its batches; nowhere by default.

    Attributes:
        prometheus: HOST:PORT that serves ``/metrics`` during a run.
        table: Whether a run writes to ``ops.progress``.
        keep: How long ``ops.progress`` keeps a batch.
    """

    # Keys of earlier versions.
    keys_elsewhere: ClassVar[dict[str, str]] = {
        "jsonl": "is a sink that was removed; leave it out, set table: true and read ops.progress",
        "textfile": (
            "is a sink that was removed; leave it out, and set prometheus: HOST:PORT or table: true"
        ),
    }

    prometheus: _Address | None = None
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
    file: _FilePath | None = None
    namespace: Text = "tidelake"

    @field_validator("file", mode="before")
    @classmethod
    def _names_a_file(cls, value: object) -> object:
        # Path("") would be the working directory.
        if isinstance(value, str) and value.strip() and not value.endswith("/"):
            return value
        if value is None or isinstance(value, Path):
            return value
        raise ValueError("must be the path of a file")

    @model_validator(mode="after")
    def _one_target(self) -> Lineage:
        if (self.url is None) == (self.file is None):
            raise ValueError("needs either url or file")
        return self


class Environment(Model):
    """An environment to run in; tables are under ``root`` or in ``catalog``, never both.

    Attributes:
        name: The file's name.
        root: Folder of the tables: absolute, relative to the project, or on an object store.
        catalog: Unity Catalog's name.
        volume: Absolute folder of the files that belong to a catalog's tables: checkpoints, locks,
            marks.
        landing: Folder of input files, ``${landing}`` in pipeline files; by default ``landing``
            under the root, and with ``catalog`` the volume ``bronze.landing``. Those who put files
            there need no right on the checkpoints.
        master: Spark's master; None where the cluster decides.
        remote: A server of Spark Connect, instead of a master.
        limits: Maximum input of a micro-batch, where tables are under ``root``; refused with
            ``catalog``.
        locks: ``required``: a hop is refused if the file system has no locks; ``none``: it runs
            without, each append of a batch carries a transaction id, and you must ensure that
            only one process at a time writes a pipeline. Refused with ``catalog``; no effect on
            an object store.
        recovery_horizon: How long files that tables no longer reference are kept at least.
        spark: Settings of the session, except secrets and those that results depend on, such as
            the time zone and ANSI mode; a Spark Connect server keeps its own.
        triggers: Default triggers of a run, for when ``--trigger`` is not given.
        secrets: Not built yet: an environment with secrets is refused. Write a reference such as
            ``env:NAME`` where the secret is used.
        metrics: Where a run reports metrics of its batches.
        alerts: Where alerts are sent, in addition to the messages of a run.
        lineage: Where OpenLineage events are sent; None to send none.
        publish: Whether runs publish gold tables to the topics of the pipeline file. Turn it off
            where trial data is processed.
        consistent_views: Whether each epoch replaces the views ``gold.<name>__consistent``, which
            any SQL tool can read; only with a catalog.
    """

    name: Text
    root: Root = None
    catalog: _Catalog | None = None
    volume: Path | None = None
    landing: Text | None = None
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
    publish: Annotated[bool, Field(strict=True)] = True
    consistent_views: Annotated[bool, Field(strict=True)] = False

    @property
    def files(self) -> Folder | None:
        """The folder for files such as checkpoints: the root, or the volume of a catalog."""
        return self.root or self.volume

    @property
    def landing_folder(self) -> str:
        """The folder of input files, on a disk, a volume or an object store."""
        if self.landing is not None:
            return self.landing
        if self.root is not None:
            return str(self.root / "landing")
        return f"/Volumes/{self.catalog}/bronze/landing"

    @property
    def is_on_object_store(self) -> bool:
        """Whether the tables' files are under a root on an object store."""
        return self.root is not None and is_stored(self.root)


def load_environment(name: str | None = None, *, root: str | None = None) -> Environment:
    """Load an environment of the conf folder, with an absolute root or a catalog and a volume.

    The variables ``TIDELAKE_CATALOG`` and ``TIDELAKE_VOLUME`` override the keys of a file with a
    catalog; ``SPARK_REMOTE``, a server of Spark Connect, overrides the master.

    Args:
        name: By default the variable ``TIDELAKE_ENV``, then ``local``.
        root: A folder or ``s3://bucket/prefix``, instead of the file's root or catalog; by default
            the variable ``TIDELAKE_ROOT``.

    Raises:
        UsageError: No environment has this name.
        ConfigError: The file is invalid; lists all violations.
        NotBuiltError: It has ``secrets``.
    """
    name = _name_or_default(name)
    root = root or os.environ.get("TIDELAKE_ROOT")
    document = read_document(find_file(name, "environment"))
    raw: dict[str, Any] = dict(document.content)
    document.findings += [*_place_findings(raw, name, bool(root)), *_setting_findings(raw)]
    raw["name"] = name
    if root:
        of_file = ("catalog", "volume", "landing")
        raw = {key: one for key, one in raw.items() if key not in of_file} | {"root": folder(root)}
    remote = os.environ.get(REMOTE_VARIABLE, "")
    # On a managed runtime the variable has another form, and no connection is needed.
    if remote.startswith("sc://"):
        # The client reads the variable itself, with the token after a semicolon.
        raw["remote"] = re.split("/?;", remote, maxsplit=1)[0]
        raw.pop("master", None)
    if raw.get("catalog") is not None:
        raw["catalog"] = os.environ.get("TIDELAKE_CATALOG") or raw["catalog"]
        volume = os.environ.get("TIDELAKE_VOLUME") or raw.get("volume")
        raw["volume"] = volume or f"/Volumes/{raw['catalog']}/ops/files"
    for key in ("root", "volume", "landing"):
        if isinstance(raw.get(key), str):
            raw[key] = counted_from(own_conf()[1], raw[key])
    if isinstance(raw.get("volume"), str):
        raw["volume"] = Path(os.path.abspath(expanded(raw["volume"])))
    if isinstance(raw.get("root"), str) and not problem_of(raw["root"]):
        raw["root"] = folder(raw["root"])
    environment = document.validated(Environment, raw)
    if document.findings or environment is None:
        raise document.error(document.findings)
    if environment.secrets:
        raise NotBuiltError(
            f"{document.file}: secrets",
            "Write the reference, such as env:NAME, where the secret is used.",
        )
    return environment


def stand_in(name: str | None, root: str | None) -> Environment:
    """Return an environment of that name to validate other files in, if its own is invalid."""
    place = root or os.environ.get("TIDELAKE_ROOT") or "lakehouse"
    return Environment(name=_name_or_default(name), root=folder(place))


def _name_or_default(name: str | None) -> str:
    return name or os.environ.get("TIDELAKE_ENV") or "local"


def _place_findings(raw: dict[str, Any], name: str, has_root: bool) -> Iterator[Finding]:
    root, catalog, volume = raw.get("root"), raw.get("catalog"), raw.get("volume")
    if raw.get("name", name) != name:
        yield Finding(("name",), f"is not the file's name, {name}; leave it out")
    if raw.get("master") is not None and raw.get("remote") is not None:
        yield Finding(("remote",), "cannot be combined with master; a session has one of them")
    if root == "":
        yield Finding(("root",), "must not be empty")
    if isinstance(root, str) and problem_of(root) and not has_root:
        yield Finding(("root",), f"{root} {problem_of(root)}")
    if root is not None and catalog is not None:
        yield Finding(("catalog",), "cannot be combined with root; tables are in one of them")
    if volume == "":
        yield Finding(("volume",), "must not be empty")
    if volume is not None and catalog is None:
        yield Finding(
            ("volume",), "is allowed with catalog only; with a root, files are under the root too"
        )
    if raw.get("consistent_views") is True and catalog is None and not has_root:
        yield Finding(
            ("consistent_views",),
            "is allowed with catalog only; under a root use tidelake sql --consistent",
        )
    if raw.get("master") is not None and catalog is not None:
        yield Finding(
            ("master",), "is allowed with root only; with a catalog the runtime already exists"
        )
    for key in _OF_A_ROOT if catalog is not None and not has_root else ():
        if key in raw:
            yield Finding((key,), f"has no effect with catalog; leave it out{_OF_A_ROOT[key]}")
    if root is None and catalog is None and not has_root:
        yield Finding(("root",), "root or catalog is required: the location of the tables")


def _setting_findings(raw: Mapping[str, Any]) -> Iterator[Finding]:
    settings = raw.get("spark")
    for key, value in settings.items() if isinstance(settings, dict) else ():
        if key in RESULT_SETTINGS and not has_result_setting(key, str(value)):
            wanted = RESULT_SETTINGS[key]
            yield Finding(("spark", key), f"must be {wanted}: results depend on it; leave it out")
        elif key not in RESULT_SETTINGS and key.startswith(_LEGACY):
            yield Finding(
                ("spark", key),
                "is refused, as a setting that changes results, which no table records; leave it "
                "out, and write what you need into the expressions",
            )
        elif _SECRET.search(key) or REFERENCE.fullmatch(str(value)):
            # The message omits the value, which may be the secret.
            yield Finding(
                ("spark", key),
                "must not hold a secret, nor a reference to one: settings are arguments of Spark's "
                "process, which every user of the machine sees. Give credentials by the variables "
                "of docs/object-store.md, by a credential provider, or in spark-defaults.conf in "
                "the folder SPARK_CONF_DIR",
            )


def has_result_setting(key: str, value: str) -> bool:
    """Return whether ``value`` is what ``RESULT_SETTINGS`` requires of ``key``, ignoring case.

    ``key`` must be one of them. ``Etc/UTC`` counts as ``UTC``.
    """
    wanted, found = RESULT_SETTINGS[key].lower(), value.lower()
    return found == wanted or (wanted in _UTC and found in _UTC)


def on_databricks() -> bool:
    """Return whether this process runs in a Databricks runtime, including serverless."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def resolved(options: Mapping[str, str]) -> dict[str, str]:
    """Return settings with references replaced by their values.

    Args:
        options: Settings; a value may be ``env:NAME``, or ``secret:SCOPE/KEY`` of a Databricks
            workspace.

    Raises:
        UsageError: A variable is not set, or a secret cannot be read; names it and the option.
    """
    return {
        name: _value(name, text) if REFERENCE.fullmatch(text) else text
        for name, text in options.items()
    }


def refuse_service_credential(
    key: str, options: Mapping[str, str], environment: Environment
) -> None:
    """Raise a UsageError if Kafka options name a service credential and there is no catalog.

    Spark would ignore the option elsewhere, and connect without a credential.
    """
    if SERVICE_CREDENTIAL in options and environment.catalog is None:
        raise UsageError(
            f"{key} has {SERVICE_CREDENTIAL}, a credential of Unity Catalog, and environment "
            f"{environment.name} has no catalog. Choose one that has with --env NAME, or write the "
            "settings of Kafka's client, with secrets such as env:NAME."
        )


def refuse_external(source: Source, environment: Environment) -> None:
    """Raise a UsageError if only the compute of a catalog can read a source, and there is none."""
    paths = source.paths if isinstance(source, FilesSource) else ()
    outside = next(filter(is_external, paths), None)
    if outside is not None and environment.catalog is None:
        raise UsageError(
            f"source.path: {outside} {problem_of(outside)}. Environment {environment.name} has no "
            "catalog; with one, the path itself can be read"
        )


def _value(option: str, reference: str) -> str:
    kind, _, secret = reference.partition(":")
    if kind == "env":
        value = os.environ.get(secret)
        if value is None:
            raise UsageError(f"option {option} refers to the variable {secret}, which is not set.")
        return value
    name = f"option {option}: {reference}"
    if not on_databricks():
        raise UsageError(f"{name} is available on Databricks only. Write env:NAME here.")
    try:
        from databricks.sdk.runtime import dbutils  # noqa: PLC0415  the runtime has it
    except ImportError as error:
        raise UsageError(f"{name}: this runtime has no databricks-sdk. Write env:NAME.") from error
    scope, _, key = secret.partition("/")
    try:
        return str(dbutils.secrets.get(scope, key))
    except Exception as error:  # The exception differs by compute and has no common base.
        raise UsageError(
            f"{name} does not exist, or the job's user may not read it "
            f"({type(error).__name__}). See: databricks secrets list-secrets {scope}"
        ) from error
