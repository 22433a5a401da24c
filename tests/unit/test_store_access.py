"""What is said when a store cannot be used, and that no secret is."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from tests.stores import Store, a_free_port
from tidelake import object_store
from tidelake.cli.options import Place
from tidelake.config import load_environment
from tidelake.delta.tables import Lake
from tidelake.errors import MachineError, TidelakeError, UsageError
from tidelake.object_store import (
    duckdb_error,
    duckdb_secret,
    endpoint,
    filesystem_options,
    refuse_unreachable_bucket,
    spark_settings,
    translating_errors,
)
from tidelake.spark.session import _settings, _store_settings
from tidelake.typed import Typed


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Change what the environment says, for readers that look at it anew."""

    def change(**variables: str | None) -> None:
        for name, value in variables.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        object_store._session.cache_clear()

    return change


@pytest.fixture(autouse=True)
def _as_before() -> object:
    yield
    object_store._session.cache_clear()


def lake_at(root: str) -> Lake:
    """Open the lake that a command's --root names."""
    return Place(load_environment("local", root=root), Typed(root, "local")).lake


def test_a_bucket_that_is_not_there_is_named(s3: Store) -> None:
    with pytest.raises(UsageError, match="s3://nowhere-at-all/x: there is no such bucket") as told:
        lake_at("s3://nowhere-at-all/x")

    assert told.value.exit_code == 2


def test_a_root_that_nothing_was_written_to_yet_is_good(s3: Store) -> None:
    root = s3.prefix()

    assert str(lake_at(root).root) == root
    assert s3.keys(root) == []


def test_a_store_that_does_not_answer_is_named_at_once(anew: Callable[..., None]) -> None:
    at = f"http://127.0.0.1:{a_free_port()}"
    anew(AWS_ENDPOINT_URL=at)
    began = time.monotonic()

    with pytest.raises(MachineError, match=f"{at} does not answer.*AWS_ENDPOINT_URL") as told:
        lake_at("s3://bucket/lake")

    assert told.value.exit_code == 4
    assert time.monotonic() - began < 10


def test_missing_credentials_are_named(anew: Callable[..., None]) -> None:
    anew(
        AWS_ACCESS_KEY_ID=None,
        AWS_SECRET_ACCESS_KEY=None,
        AWS_SHARED_CREDENTIALS_FILE="/dev/null",
        AWS_CONFIG_FILE="/dev/null",
    )

    with pytest.raises(MachineError, match=r"no credentials.*AWS_ACCESS_KEY_ID"):
        refuse_unreachable_bucket("s3://bucket/lake", what="the root")
    with pytest.raises(MachineError, match="no credentials"):
        duckdb_secret()


@pytest.mark.parametrize(
    ("code", "kind", "told"),
    [
        ("InvalidAccessKeyId", MachineError, "denied access .InvalidAccessKeyId."),
        ("AccessDenied", MachineError, "let it list, read and write"),
        ("NoSuchBucket", UsageError, "no such bucket"),
        ("PermanentRedirect", MachineError, "another region. Set AWS_REGION"),
        ("SlowDown", MachineError, "answered SlowDown"),
    ],
)
def test_each_answer_of_a_store_has_its_remedy(
    code: str, kind: type[TidelakeError], told: str
) -> None:
    from botocore.exceptions import ClientError  # noqa: PLC0415

    with pytest.raises(kind, match=told), translating_errors("the root"):
        raise ClientError({"Error": {"Code": code}}, "ListObjectsV2")


def test_of_a_source_a_denied_access_asks_for_no_right_to_write() -> None:
    from botocore.exceptions import ClientError  # noqa: PLC0415

    with (
        pytest.raises(MachineError, match="and let it list and read there"),
        translating_errors("the source s3://bucket/orders"),
    ):
        raise ClientError({"Error": {"Code": "AccessDenied"}}, "ListObjectsV2")


def test_an_endpoint_with_a_password_in_it_is_refused_without_repeating_it(
    anew: Callable[..., None],
) -> None:
    anew(AWS_ENDPOINT_URL="http://me:hunter2@store:9000")

    with pytest.raises(UsageError, match="without a user name or a password") as told:
        lake_at("s3://bucket/lake")

    assert "hunter2" not in str(told.value)


def test_spark_is_told_where_the_store_is_and_never_who_asks() -> None:
    settings = spark_settings()

    assert settings["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert "of the store" not in str(settings)
    assert not any("key" in name for name in settings)
    # With it S3A passes over a file that is there, also where it was asked not to.
    assert "spark.hadoop.fs.s3a.performance.flags" not in settings


def test_amazons_own_store_gets_no_endpoint(anew: Callable[..., None]) -> None:
    anew(AWS_ENDPOINT_URL=None, AWS_REGION="eu-central-1")
    settings = spark_settings()

    assert "spark.hadoop.fs.s3a.endpoint" not in settings
    assert settings["spark.hadoop.fs.s3a.endpoint.region"] == "eu-central-1"
    statement, given = duckdb_secret()
    assert "ENDPOINT" not in statement
    assert given == ["tests", "of the store", "eu-central-1"]


@pytest.mark.parametrize(
    ("url", "lines"),
    [
        ("http://of-the-profile:9000", "endpoint_url = http://of-the-profile:9000\n"),
        (
            "https://of-the-service",
            "endpoint_url = http://of-the-profile:9000\nservices = mine\n"
            "[services mine]\ns3 =\n  endpoint_url = https://of-the-service/\n",
        ),
    ],
)
def test_the_endpoint_of_a_profile_is_that_of_all_three_clients(
    anew: Callable[..., None], tmp_path: Path, url: str, lines: str
) -> None:
    config = tmp_path / "config"
    config.write_text(f"[profile minio]\n{lines}", encoding="utf-8")
    anew(AWS_CONFIG_FILE=str(config), AWS_PROFILE="minio")
    assert endpoint() == os.environ["AWS_ENDPOINT_URL"]
    anew(AWS_ENDPOINT_URL=None)

    assert filesystem_options()["endpoint_url"] == url
    assert filesystem_options()["config_kwargs"] == {"s3": {"addressing_style": "path"}}
    assert spark_settings()["spark.hadoop.fs.s3a.endpoint"] == url
    # The keys are those of the variables, which precede a profile without any.
    assert url.partition("://")[2] in duckdb_secret()[1]


def test_an_error_of_duckdb_has_the_stores_answer_in_its_body() -> None:
    error = duckdb.IOException("HTTP Error: HTTP GET error reading 's3://a/b' (HTTP 400)")
    error.status_code, error.body = 400, "<Code>ExpiredToken</Code>"  # type: ignore[attr-defined]
    assert "denied access (ExpiredToken)" in str(duckdb_error(error, "the statement stopped"))


def test_a_profiles_endpoint_that_is_to_be_ignored_is_ignored(
    anew: Callable[..., None], tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text("[profile minio]\nendpoint_url = http://a:9000\n", encoding="utf-8")
    anew(AWS_CONFIG_FILE=str(config), AWS_PROFILE="minio", AWS_ENDPOINT_URL=None)
    assert endpoint() == "http://a:9000"
    anew(AWS_IGNORE_CONFIGURED_ENDPOINT_URLS="true")
    assert endpoint() is None


def test_a_broken_file_of_profiles_is_named(anew: Callable[..., None], tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("[profile", encoding="utf-8")
    anew(AWS_CONFIG_FILE=str(config), AWS_ENDPOINT_URL=None)
    with pytest.raises(MachineError, match=r"config.*Correct that file"), translating_errors("x"):
        filesystem_options()


@pytest.mark.parametrize("at", ["http://127.0.0.1:9000", None])
def test_duckdb_never_makes_a_bucket_a_part_of_the_host(
    anew: Callable[..., None], at: str | None
) -> None:
    anew(AWS_ENDPOINT_URL=at)

    assert "URL_STYLE 'path'" in duckdb_secret()[0]


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [
        ("HTTP Error: HTTP GET error reading 's3://a/b' (HTTP 301)", 301, "AWS_REGION"),
        (
            "IO Error: DeltaKernel ObjectStoreError (8): Received redirect without LOCATION, this "
            "normally indicates an incorrectly configured region",
            None,
            "AWS_REGION",
        ),
        (
            "IO Error: DeltaKernel ObjectStoreError (8): … status code: 400 Bad Request: "
            "<Error><Code>ExpiredToken</Code></Error>",
            None,
            r"denied access \(ExpiredToken\)",
        ),
        ("HTTP Error: HTTP GET error reading 'http://a/b.parquet'", 403, r"denied access \(403\)"),
        ("HTTP Error: Request returned HTTP 503 for HTTP HEAD to 'x'", 503, "answered 503"),
        (
            "IO Error: Could not resolve hostname error for HTTP HEAD to 'x'",
            None,
            "does not answer",
        ),
        (
            "IO Error: DeltaKernel ObjectStoreError (8): Error interacting with object store: … "
            "GET http://a/0 in 1ms - Server returned non-2xx status code: 403 Forbidden: <?xml",
            None,
            r"denied access \(403\)",
        ),
        ("IO Error: DeltaKernel ObjectStoreError (8): … error sending", None, "does not answer"),
        ("HTTP Error: HTTP GET error reading 's3://a/b.parquet' (HTTP 404)", 404, None),
        ("IO Error: DeltaKernel FileNotFoundError (11): File not found: a/0.json", None, None),
        ("Conversion Error: Could not convert string 'status code: 403'", None, None),
    ],
)
def test_what_a_store_answers_duckdb_is_told_as_elsewhere(
    text: str, status: int | None, told: str | None
) -> None:
    error = duckdb.IOException(text)
    if status:
        error.status_code = status  # type: ignore[attr-defined]
    found = duckdb_error(error, "the statement stopped")

    assert (found is None) == (told is None)
    if told:
        assert isinstance(found, MachineError)
        assert re.match(f"the statement stopped: the (object store|bucket) .*{told}", str(found))


def test_what_is_made_for_disks_is_not_used_on_a_store() -> None:
    stored = load_environment("local", root="s3://bucket/lake")
    local = load_environment("local", root="/tmp/lake")
    name = "spark.sql.streaming.checkpointFileManagerClass"

    assert "FileSystemBased" in _settings(stored, [])[name]
    assert "AbortableStream" in _store_settings(stored)[name]
    assert name not in _store_settings(local)
