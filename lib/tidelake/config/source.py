"""Sources of a pipeline: models, and checks across keys."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from tidelake.config.arguments import regex_problem
from tidelake.config.document import Finding, KeyPath
from tidelake.config.model import (
    ByteSize,
    Model,
    PositiveInt,
    Problems,
    Text,
    free_of,
    matching,
    url_of,
)
from tidelake.external import MOUNTED, is_external
from tidelake.folders import absolute, archive_problem, namespace_of, problem_of
from tidelake.names import quoted

Format = Literal["json", "avro"]
FileFormat = Literal["json", "csv", "parquet", "avro"]
Envelope = Literal["debezium"]
# Columns of a change event beside those of its row, for the expressions of `event`.
CHANGE_COLUMNS = {"op": "STRING", "source_time": "TIMESTAMP", "source_position": "STRING"}
# A name of a scope or a key on Databricks.
_SECRET_NAME = "[A-Za-z0-9_.@-]{1,128}"
REFERENCE = re.compile(f"(env:[A-Za-z_][A-Za-z0-9_]*|secret:{_SECRET_NAME}/{_SECRET_NAME})")
_TOPIC = re.compile("[A-Za-z0-9._-]{1,249}")
TopicName = Annotated[
    str,
    matching(
        _TOPIC.pattern,
        "'{0}' is not a valid topic name: use letters, digits, dots, dashes and underscores",
    ),
]
# A credential of Unity Catalog by its name, which is no secret: Databricks' Kafka source and sink
# authenticate with it, over an encrypted connection. Kafka's own clients do not know it.
SERVICE_CREDENTIAL = "databricks.serviceCredential"
_OF_DATABRICKS = (SERVICE_CREDENTIAL, f"{SERVICE_CREDENTIAL}.scope")
_NOT_SENSITIVE = (*_OF_DATABRICKS, "kafka.sasl.oauthbearer.token.endpoint.url")
# Options that Tidelake sets itself, and what to write instead.
_SET_BY_TIDELAKE = {
    "kafka.bootstrap.servers": ": write bootstrap",
    **dict.fromkeys(("kafka.isolation.level", "assign", "includeHeaders"), ""),
    **dict.fromkeys(("kafka.key.deserializer", "kafka.value.deserializer"), ""),
    "kafka.enable.auto.commit": "",
    "kafka.interceptor.classes": ": Spark takes none",
    "kafka.auto.offset.reset": ": write starting",
    "subscribe": ": write topic",
    "subscribePattern": ": write pattern",
    "startingOffsets": ": write starting",
    "startingTimestamp": ": write starting",
    "startingOffsetsByTimestamp": "",
    "maxOffsetsPerTrigger": ": write max_offsets_per_trigger",
    "minPartitions": ": write min_partitions",
    "failOnDataLoss": ": missing records always stop a run",
}
_SENSITIVE = re.compile(
    r"password|passphrase|secret|jaas|token|credential|api\.?key|keystore\.key", re.IGNORECASE
)


def _as_text(value: object) -> object:
    """Convert YAML's ``true`` and ``8`` to text, the form of Spark's settings."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


Setting = Annotated[str, BeforeValidator(_as_text)]
Compatibility = Literal["backward", "forward", "full", "none"]
# The message omits the text, which may be the secret.
_NO_REFERENCE = "must be a reference such as env:NAME or secret:SCOPE/KEY, never the value"
SecretReference = Annotated[str, matching(REFERENCE.pattern, _NO_REFERENCE)]


class Registry(Model):
    """A schema registry, for Avro.

    Attributes:
        url: Base URL of the registry.
        subject: The subject whose versions are the writers' schemas.
        compatibility: Required compatibility of each version with the previous one.
        credentials: A reference to ``user:password``.
    """

    url: Text
    subject: Text
    compatibility: Compatibility = "backward"
    credentials: SecretReference | None = None


# Encodings of Python's codecs that are not of texts, or that no file is in.
_NO_ENCODINGS = ("idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "utf-7")


def _encoding(name: str) -> str:
    try:
        known = codecs.lookup(name).name
        "".encode(name)
    except (LookupError, ValueError, TypeError):
        known = "undefined"
    if known.replace("_", "-") in _NO_ENCODINGS:
        raise ValueError(f"'{name}' is no known encoding; write one such as utf-8 or latin-1")
    return name


_LETTER = matching(
    r"[\t\x20-\x7e]", "must be one ASCII character, not '{0}'; a tab is written \"\\t\""
)
CsvLetter = Annotated[str, _LETTER]


class CsvFormat(Model):
    """How CSV files are written.

    Attributes:
        header: The first record of each file names its columns.
        columns: The names of the columns, for files without a header.
        delimiter: The ASCII character between two fields.
        quote: The ASCII character around fields that may contain any other; null for none.
        escape: The ASCII character that takes the meaning from the next; null for none.
        encoding: The encoding of the files, by its Python name.
        nulls: Unquoted texts that mean null; an empty unquoted field always does.
    """

    header: Annotated[bool, Field(strict=True)] = True
    columns: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    delimiter: CsvLetter = ","
    quote: CsvLetter | None = '"'
    escape: CsvLetter | None = None
    encoding: Annotated[str, AfterValidator(_encoding)] = "utf-8"
    nulls: tuple[str, ...] = ()


# What Spark would read as a pattern or as the end of a path in a list of alternatives.
_PATTERN = re.compile(r"[{}\[\],*?\\]")


def _usable(path: str, *, in_catalog: bool = False) -> str:
    if problem := problem_of(path, in_catalog=in_catalog):
        raise ValueError(f"{path} {problem}")
    return path


_StoredFolder = Annotated[Text, AfterValidator(_usable)]
_InCatalog = Annotated[
    str,
    matching(
        r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*){2}",
        "must be catalog.schema.table; each name of letters, digits, _ and -",
    ),
]


def _as_paths(value: object) -> object:
    """Check the path of a source, or the paths of a list; a list of one is that path."""
    written = value if isinstance(value, list | tuple) else [value]
    paths = [path for path in written if isinstance(path, str)]
    if not paths or len(paths) < len(written):
        raise ValueError("must be a path in quotes, or a list of paths")
    if not all(path.strip() for path in paths):
        raise ValueError("must not be empty")
    if len(paths) == 1:
        return _usable(paths[0], in_catalog=True)
    problems = []
    places = [f"{absolute(path).rstrip('/')}/" for path in paths]
    for at, (path, place) in enumerate(zip(paths, places, strict=True)):
        if problem := problem_of(path, in_catalog=True):
            problems.append(f"{path} {problem}")
        elif found := _PATTERN.search(place):
            problems.append(f"{path} contains {found[0]}, which cannot be in a list of paths")
        for other, above in zip(paths[:at], places, strict=False):
            if place.startswith(above) or above.startswith(place):
                problems.append(f"{path} and {other} overlap: a file would be in both; keep one")
    # Spark lists them in one file system, and a bucket is one.
    if len({namespace_of(place)[0] for place in places}) > 1:
        problems.append(
            "must all be on this machine's file system or in one bucket; write a pipeline for each"
        )
    if problems:
        raise Problems(problems)
    return tuple(paths)


Paths = Annotated[str | tuple[str, ...], BeforeValidator(_as_paths)]


class FilesSource(Model):
    """Folders of files of one format, read recursively; JSON files have one record per line.

    Spark accepts only one of the limits; without either, a batch reads at most 1000 files.

    Attributes:
        kind: ``files``.
        format: ``json``: one object per line; ``csv``: see ``csv``; ``parquet`` or ``avro``
            (container files): each row becomes a JSON payload.
        csv: How CSV files are written.
        envelope: ``debezium``: each record is a change event of a database.
        path: The folder, or one file, or a list of them, relative to the project's root;
            ``${root}`` is the environment's root.
        max_files_per_trigger: Maximum number of files per batch.
        max_bytes_per_trigger: Maximum number of bytes per batch; a file is never split.
        clean_source: ``delete`` or ``archive`` the files of a batch once it is closed.
        archive_dir: For ``archive``: the folder to which files are moved, each under its path
            below ``path``.
    """

    kind: Literal["files"]
    format: FileFormat = "json"
    csv: CsvFormat = CsvFormat()
    envelope: Envelope | None = None
    path: Paths
    max_files_per_trigger: PositiveInt | None = None
    max_bytes_per_trigger: ByteSize | None = None
    clean_source: Literal["archive", "delete"] | None = None
    archive_dir: Text | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The path, or those of the list."""
        return (self.path,) if isinstance(self.path, str) else self.path

    @property
    def is_cleaned(self) -> bool:
        """Whether files leave the folders once they are read."""
        return self.clean_source is not None


def _is_sensitive(name: str) -> bool:
    return name not in _NOT_SENSITIVE and _SENSITIVE.search(name) is not None


def option_problems(options: dict[str, str]) -> Iterator[str]:
    """List what a Kafka client's options cannot be."""
    for name, value in options.items():
        is_secret = _is_sensitive(name) or value.startswith("secret:")
        if is_secret and not REFERENCE.fullmatch(value):
            # The message omits the value, which may be the secret.
            remedy = "write a reference such as env:NAME or secret:SCOPE/KEY, never the value"
            yield f"option {name} contains a secret: {remedy}"
        elif name in _SET_BY_TIDELAKE:
            yield f"option {name} is set by Tidelake{_SET_BY_TIDELAKE[name]}"
        elif not (name.startswith("kafka.") or name in _OF_DATABRICKS):
            yield f"option {name} is not a setting of a Kafka client: those begin with kafka."


def _starting(text: str) -> str:
    if text in ("earliest", "latest"):
        return text
    with suppress(ValueError):
        if datetime.fromisoformat(text).tzinfo:
            return text
    raise ValueError("write earliest, latest or an instant such as 2026-01-05T00:00:00Z")


def _topics(value: object) -> object:
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        return value
    if not names or not all(isinstance(name, str) and _TOPIC.fullmatch(name) for name in names):
        raise ValueError("must be a topic's name, or a list of names (letters, digits and . _ -)")
    if len(set(names)) < len(names):
        raise ValueError("names a topic twice")
    # Text, so that a definition is stored and compared as Spark gets it.
    return value if isinstance(value, str) else ",".join(names)


def _pattern_problems(pattern: str) -> Iterator[str]:
    if problem := regex_problem(pattern):
        yield problem


Topics = Annotated[Text | None, BeforeValidator(_topics)]


class KafkaSource(Model):
    """Kafka topics: some by name, or all that match a pattern, including new ones.

    Attributes:
        kind: ``kafka``.
        bootstrap: ``host:port``, several separated by commas, or a reference such as ``env:NAME``.
        topic: The name of a topic, or a list of names; alternative to ``pattern``.
        pattern: A regular expression for the names of topics.
        starting: Where the first run begins: ``earliest``, ``latest`` or an instant.
        options: Settings of the client, prefixed with ``kafka.``; secrets by reference. On
            Databricks also ``databricks.serviceCredential``, the name of a credential.
        format: ``json`` or ``avro``.
        envelope: ``debezium``: each record is a change event of a database.
        registry: The registry with the writers' Avro schemas.
        schema_file: A file with the writers' Avro schema, for use without a registry.
        max_offsets_per_trigger: Maximum number of records per batch.
        min_partitions: Minimum number of tasks; Spark splits Kafka's partitions if needed.
    """

    kind: Literal["kafka"]
    bootstrap: Text
    topic: Topics = None
    pattern: Annotated[Text, free_of(_pattern_problems)] | None = None
    starting: Annotated[str, AfterValidator(_starting)] = "earliest"
    options: Annotated[dict[str, Setting], free_of(option_problems)] = Field(default_factory=dict)
    format: Format = "json"
    envelope: Envelope | None = None
    registry: Registry | None = None
    schema_file: Text | None = Field(default=None, alias="schema")
    max_offsets_per_trigger: Annotated[int, Field(strict=True, gt=0, le=2**63 - 1)] | None = None
    min_partitions: PositiveInt | None = None

    @property
    def only_spark_connects(self) -> bool:
        """Whether other clients than Databricks' Spark lack the credential."""
        return SERVICE_CREDENTIAL in self.options


class DeltaSource(Model):
    """An append-only Delta table; of two limits, the one reached first ends a batch.

    Attributes:
        kind: ``delta``.
        path: The table's folder.
        table: Instead of ``path``: the table's name in a catalog, ``catalog.schema.table``; for
            environments with a catalog.
        max_files_per_trigger: Maximum number of files per batch.
        max_bytes_per_trigger: Maximum number of bytes per batch.
    """

    kind: Literal["delta"]
    path: _StoredFolder | None = None
    table: _InCatalog | None = None
    max_files_per_trigger: PositiveInt | None = None
    max_bytes_per_trigger: ByteSize | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The path, unless the table is named."""
        return () if self.path is None else (self.path,)

    @property
    def sql(self) -> str:
        """The named table in SQL."""
        return ".".join(map(quoted, (self.table or "").split(".")))


class RateSource(Model):
    """Spark's generator of rows, for trials.

    Attributes:
        kind: ``rate``.
        rows_per_second: Number of rows generated per second.
    """

    kind: Literal["rate"]
    rows_per_second: PositiveInt = 10


Source = Annotated[
    FilesSource | KafkaSource | DeltaSource | RateSource, Field(discriminator="kind")
]


def described(source: Source) -> str:
    """Name what a source reads: its paths or its topics, or else its kind."""
    if isinstance(source, KafkaSource):
        topics = (source.topic or "").replace(",", ", ")
        return f"topic {topics}" if topics else f"topics matching {source.pattern}"
    if isinstance(source, DeltaSource) and source.table is not None:
        return source.table
    return source.kind if isinstance(source, RateSource) else ", ".join(source.paths)


_PROTOCOL = "kafka.security.protocol"
_ENCRYPTED = ("SSL", "SASL_SSL")
_FILES, _BYTES = "max_files_per_trigger", "max_bytes_per_trigger"
_CLEAN, _ARCHIVE = "clean_source", "archive_dir"


def source_findings(source: Any, *, in_prod: bool) -> Iterator[Finding]:
    """Check the keys of a source against each other; ``in_prod`` requires encryption."""
    if not isinstance(source, dict):
        return
    # As in the model: null, which also removes a default of the folder, is no value.
    source = {key: value for key, value in source.items() if value is not None}
    for key in ("registry", "schema"):
        # A container file has its schema in it: for kind: files these keys are unknown.
        if key in source and source.get("format") != "avro" and source.get("kind") != "files":
            yield Finding(("source", key), "is allowed with format: avro only")
    if "envelope" in source and source.get("format", "json") not in ("json", "avro"):
        yield Finding(("source", "envelope"), "is allowed with format: json or avro only")
    yield from _registry_findings(source.get("registry"), in_prod)
    yield from _csv_findings(source)
    if source.get("kind") == "files":
        if {_FILES, _BYTES} <= source.keys():
            message = f"cannot be combined with {_FILES}; a folder takes one of them"
            yield Finding(("source", _BYTES), message)
        yield from _cleaning_findings(source)
    if source.get("kind") == "delta" and ("path" in source) == ("table" in source):
        message = "write either path, the table's folder, or table, its name in a catalog"
        yield Finding(("source", "path"), message)
    if source.get("kind") != "kafka":
        return
    if ("topic" in source) == ("pattern" in source):
        yield Finding(("source", "topic"), "write either topic or pattern")
    if source.get("format") == "avro" and ("registry" in source) == ("schema" in source):
        message = "avro: write either registry, where records name their schema, or schema: FILE"
        yield Finding(("source", "format"), message)
    if in_prod:
        yield from encryption_finding(("source", "options"), source.get("options"))


def encryption_finding(path: KeyPath, options: object) -> Iterator[Finding]:
    """Find client options that do not encrypt the connection."""
    options = options if isinstance(options, dict) else {}
    default = "SASL_SSL" if SERVICE_CREDENTIAL in options else "PLAINTEXT"
    protocol = str(options.get(_PROTOCOL, default))
    if protocol.upper() not in _ENCRYPTED:
        # A reference has no value yet, and must not get one that sends in plain text.
        is_reference = REFERENCE.fullmatch(protocol)
        found = "a reference; write the protocol itself" if is_reference else protocol.upper()
        message = f"{_PROTOCOL} must be {' or '.join(_ENCRYPTED)} in prod, and is {found}"
        yield Finding(path, message)


def _csv_findings(source: Mapping[str, Any]) -> Iterator[Finding]:
    csv = source.get("csv")
    if "csv" in source and source.get("format") != "csv":
        yield Finding(("source", "csv"), "is allowed with format: csv only")
    if not isinstance(csv, Mapping):
        return
    place, columns = ("source", "csv", "columns"), csv.get("columns")
    if columns is None and csv.get("header") is False:
        yield Finding(place, "is needed for files without a header")
    elif columns is not None and csv.get("header") is True:
        yield Finding(place, "cannot be combined with header: true, which names the columns")
    names = columns if isinstance(columns, list) else []
    for at, name in enumerate(names):
        if name in names[:at]:
            yield Finding((*place, at), f"{name} appears twice")
    # The defaults count too: a quote as delimiter needs another quote, or none.
    defaults = CsvFormat()
    letters: dict[str, str] = {}
    for key in ("delimiter", "quote", "escape"):
        letter = csv.get(key, getattr(defaults, key))
        if isinstance(letter, str) and letter in letters:
            also = f"is the {letters[letter]} too; "
            doubled = key == "escape" and letters[letter] == "quote"
            remedy = "leave it out, quotes are doubled anyway" if doubled else "write another"
            yield Finding(("source", "csv", key), also + remedy)
        elif isinstance(letter, str):
            letters[letter] = key


def _cleaning_findings(source: Mapping[str, Any]) -> Iterator[Finding]:
    path, archive = source.get("path"), source.get(_ARCHIVE)
    path = path[0] if isinstance(path, list) and len(path) == 1 else path
    external = [one for one in (path if isinstance(path, list) else [path]) if is_external(one)]
    if _CLEAN in source and external:
        yield Finding(("source", _CLEAN), f"is not possible on {external[0]}. {MOUNTED}")
        return
    archives = source.get(_CLEAN) == "archive"
    if archive is None and archives:
        yield Finding(("source", _ARCHIVE), f"required key is missing ({_CLEAN}: archive)")
    if archive is not None and not archives:
        yield Finding(("source", _ARCHIVE), f"is allowed with {_CLEAN}: archive only")
    if archives and isinstance(path, list) and len(path) > 1:
        yield Finding(("source", _ARCHIVE), "needs one path: files of several may share a name")
    elif archives and isinstance(path, str) and isinstance(archive, str):
        problem = archive_problem(path, archive)
        if problem:
            yield Finding(("source", _ARCHIVE), problem)


def _registry_findings(registry: Any, in_prod: bool) -> Iterator[Finding]:
    url = registry.get("url") if isinstance(registry, Mapping) else None
    if not isinstance(url, str):
        return
    place = ("source", "registry", "url")
    address = url_of(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        # The message omits the address, which may contain a password.
        yield Finding(place, "is not a URL: write https://HOST:PORT")
    elif "@" in address.netloc:
        yield Finding(place, "contains a user: write credentials: env:NAME instead")
    elif in_prod and address.scheme != "https":
        yield Finding(place, "must begin with https:// in prod")
