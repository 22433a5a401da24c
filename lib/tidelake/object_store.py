"""Access to an object store, by AWS's standard variables and profiles.

Python (through fsspec), Spark and DuckDB use the same settings. No secret is written anywhere:
Python and Spark look up the credentials, DuckDB receives them in memory.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tidelake.errors import MachineError, TidelakeError, UsageError, imported

_REGION = "us-east-1"
# Timeouts of the first request: short, so that a mistyped address is reported at once.
_CONNECT_SECONDS, _READ_SECONDS = 3, 10
# Of a small object.
_SHORT_SECONDS = 5
# Of a request of :func:`client`: two attempts, and a pause of at most a second.
LONGEST_SECONDS = 2 * (_CONNECT_SECONDS + _SHORT_SECONDS) + 1
# Error codes of stores.
_DENIED = {
    *("401", "403", "AccessDenied", "AccountProblem", "AllAccessDisabled", "ExpiredToken"),
    *("Forbidden", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"),
}
# That of a bucket in another region.
_MOVED = "PermanentRedirect"


def endpoint() -> str | None:
    """Return the address of the store; None for Amazon's own.

    Raises:
        UsageError: It is not a plain address.
    """
    url = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not url and not _session().get_config_variable("ignore_configured_endpoint_urls"):
        profile = _session().get_scoped_config()
        services = _session().full_config.get("services", {}).get(profile.get("services"), {})
        url = services.get("s3", {}).get("endpoint_url") or profile.get("endpoint_url")
    if not url:
        return None
    if not url.startswith(("http://", "https://")) or "@" in url or "?" in url:
        raise UsageError(
            "AWS_ENDPOINT_URL, or endpoint_url of the profile, is not a store's address: write "
            "http://HOST:PORT or https://HOST, without a user name or a password in it"
        )
    return url.rstrip("/")


def region() -> str:
    """Return the region of the store."""
    named_here = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return named_here or _session().get_config_variable("region") or _REGION


def filesystem_options() -> dict[str, Any]:
    """Return fsspec's options; listings are not cached, to see other processes' commits."""
    return {
        "use_listings_cache": False,
        "endpoint_url": endpoint(),
        "client_kwargs": {"region_name": region()},
        "config_kwargs": _style(),
    }


def spark_settings() -> dict[str, str]:
    """Return the settings that let Spark read and write ``s3://``."""
    at = endpoint()
    settings = {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
        "fs.s3a.endpoint.region": region(),
        # The order in which Amazon's own tools look: variables, profile, role of the machine.
        "fs.s3a.aws.credentials.provider": (
            "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
        ),
        # A store that cannot be reached is reported after seconds, not minutes.
        "fs.s3a.attempts.maximum": "3",
        "fs.s3a.retry.limit": "4",
        "fs.s3a.connection.establish.timeout": "5s",
        # The default one needs Amazon's native client, which does not speed up these reads.
        "fs.s3a.input.stream.type": "classic",
    }
    if at:
        settings |= {"fs.s3a.endpoint": at, "fs.s3a.path.style.access": "true"}
        settings["fs.s3a.connection.ssl.enabled"] = str(at.startswith("https://")).lower()
    return {f"spark.hadoop.{key}": value for key, value in settings.items()}


def duckdb_secret() -> tuple[str, list[str]]:
    """Return the statement that lets DuckDB read a store, and its parameters.

    Raises:
        MachineError: There are no credentials.
    """
    found = _session().get_credentials()
    if found is None:
        raise MachineError(f"no credentials for the object store. {_remedy()}.")
    found, at = found.get_frozen_credentials(), endpoint()
    options = {
        "KEY_ID": found.access_key,
        "SECRET": found.secret_key,
        "SESSION_TOKEN": found.token,
        "REGION": region(),
    }
    if at:
        scheme, _, host = at.partition("://")
        options |= {"ENDPOINT": host, "USE_SSL": str(scheme == "https").lower()}
    given = {key: value for key, value in options.items() if value}
    names = ", ".join(f"{key} ${number}" for number, key in enumerate(given, start=1))
    # As a part of the host name, a bucket with dots does not match Amazon's certificate.
    create = f"CREATE OR REPLACE SECRET store (TYPE s3, URL_STYLE 'path', {names})"
    return create, list(given.values())


@functools.cache
def client() -> Any:
    """Return a client for requests that fsspec lacks; threads may share it.

    A request to a store that hangs ends within :data:`LONGEST_SECONDS`, so that whoever renews a
    lease knows of it before the lease is over.
    """
    twice = {"total_max_attempts": 2, "mode": "standard"}
    return _client(connect_timeout=_CONNECT_SECONDS, read_timeout=_SHORT_SECONDS, retries=twice)


def refuse_unreachable_bucket(folder: str, *, what: str) -> None:
    """Check in one request, without a retry, that a folder can be listed; errors name ``what``.

    Raises:
        UsageError: There is no such bucket.
        MachineError: The store does not answer, or refuses access.
    """
    with translating_errors(what):
        once = {"total_max_attempts": 1, "mode": "standard"}
        found = _client(connect_timeout=_CONNECT_SECONDS, read_timeout=_READ_SECONDS, retries=once)
        bucket, _, prefix = folder.removeprefix("s3://").partition("/")
        found.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/", MaxKeys=1)


def store_error(error: BaseException, what: str) -> TidelakeError | None:
    """Translate an error of a store or of the connection to it; None for other errors."""
    if "botocore" not in sys.modules:
        return None
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    found: BaseException | None = error
    while found is not None:
        if isinstance(found, ClientError):
            return _answer(str(found.response.get("Error", {}).get("Code", "")), what)
        if isinstance(found, BotoCoreError):
            return _no_answer(found, what)
        found = found.__cause__
    return None


def duckdb_error(error: Exception, what: str) -> TidelakeError | None:
    """Translate DuckDB's error of a request to a store; None for a missing file and for others."""
    # The reader of Delta's log writes the status and the store's answer into its text.
    text = f"{error}\n{getattr(error, 'body', '')}"
    found = re.search(r"ObjectStoreError .* status code: (\d+)", text)
    status = str(getattr(error, "status_code", found[1] if found else ""))
    if status == "404" or not (status or re.search("ObjectStoreError| error for HTTP ", text)):
        return None
    # It follows no redirect to another region.
    if status == "301" or "incorrectly configured region" in text:
        return _answer(_MOVED, what)
    code = re.search(r"<Code>(\w+)</Code>", text)
    return _answer(code[1] if code else status, what) if status else _no_answer(error, what)


@contextmanager
def translating_errors(what: str) -> Iterator[None]:
    """Translate a store's errors raised in the block; ``what`` names the operation."""
    try:
        yield
    except Exception as error:
        translated = store_error(error, what)
        if translated is None:
            raise
        raise translated from error


def _remedy(what: str = "") -> str:
    rights = "list and read" if what.startswith("the source ") else "list, read and write"
    return (
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or a role of this machine, "
        f"and let it {rights} there"
    )


def _answer(code: str, what: str) -> TidelakeError:
    if code == "NoSuchBucket":
        return UsageError(f"{what}: there is no such bucket. Create it, or name another.")
    if code in _DENIED:
        return MachineError(f"{what}: the object store denied access ({code}). {_remedy(what)}.")
    if code in (_MOVED, "AuthorizationHeaderMalformed", "IllegalLocationConstraint"):
        return MachineError(f"{what}: the bucket is in another region. Set AWS_REGION to it.")
    return MachineError(f"{what}: the object store answered {code or 'with an error'}.")


def _no_answer(error: Exception, what: str) -> TidelakeError:
    from botocore import exceptions as of  # noqa: PLC0415

    if isinstance(error, of.NoCredentialsError | of.PartialCredentialsError | of.ProfileNotFound):
        return MachineError(f"{what}: no credentials for the object store. {_remedy(what)}.")
    if isinstance(error, of.TokenRetrievalError):
        return MachineError(f"{what}: the login to the object store has expired. Log in again.")
    if isinstance(error, of.ConfigParseError | of.ConfigNotFound):
        return MachineError(f"{what}: {error}. Correct that file.")
    where = endpoint() or f"Amazon S3 in {region()}"
    return MachineError(
        f"{what}: the object store at {where} does not answer. Check the store and the network; "
        "AWS_ENDPOINT_URL sets its address."
    )


def _style() -> dict[str, Any]:
    return {"s3": {"addressing_style": "path"}} if endpoint() else {}


def _client(**options: Any) -> Any:
    from botocore.config import Config  # noqa: PLC0415

    config = Config(**options, **_style())
    return _session().create_client(
        "s3", region_name=region(), endpoint_url=endpoint(), config=config
    )


@functools.cache
def _session() -> Any:
    (session,) = imported("botocore, which object stores need,", "botocore.session", extra="s3")
    return session.get_session()
