"""What is said when a store cannot be used, and that no secret is."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.stores import Store, a_free_port
from tidelake import object_store
from tidelake.cli.options import Place
from tidelake.config import load_environment
from tidelake.delta.tables import Lake
from tidelake.errors import MachineError, TidelakeError, UsageError
from tidelake.object_store import (
    duckdb_secret,
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
                monkeypatch.delenv(name)
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
        refuse_unreachable_bucket("bucket", "lake/", what="the root")
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


def test_what_is_made_for_disks_is_not_used_on_a_store() -> None:
    stored = load_environment("local", root="s3://bucket/lake")
    local = load_environment("local", root="/tmp/lake")
    name = "spark.sql.streaming.checkpointFileManagerClass"

    assert "FileSystemBased" in _settings(stored, [])[name]
    assert "AbortableStream" in _store_settings(stored)[name]
    assert name not in _store_settings(local)
