"""A real server that speaks S3, in this process, on the loopback alone."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

_BUCKET = "tidelake"
_LINE = re.compile(r'"(?:\x1b\[[0-9;]*m)*([A-Z]+) (\S+) HTTP')


def a_free_port() -> int:
    """Find a port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def variables(port: int) -> dict[str, str]:
    """Say where a store is, and who asks, as Amazon's own tools want to be told."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "of the store",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@dataclass
class Store:
    """A store with one bucket.

    Attributes:
        client: Speaks to it as any tool would.
        requests: How many it answered, by method.
        asked: Each of them, method and path.
    """

    client: Any
    requests: Counter[str] = field(default_factory=Counter)
    asked: list[tuple[str, str]] = field(default_factory=list)

    def prefix(self) -> str:
        """Give a place that nobody else has."""
        return f"s3://{_BUCKET}/{uuid.uuid4().hex[:12]}"

    def put(self, place: str, data: bytes) -> str:
        """Put an object, and give its place."""
        bucket, _, key = place.removeprefix("s3://").partition("/")
        self.client.put_object(Bucket=bucket, Key=key, Body=data)
        return place

    def get(self, place: str) -> bytes:
        """Read an object in one request, also one that is written meanwhile."""
        bucket, _, key = place.removeprefix("s3://").partition("/")
        return bytes(self.client.get_object(Bucket=bucket, Key=key)["Body"].read())

    def keys(self, place: str) -> list[str]:
        """List what lies below a place."""
        bucket, _, prefix = place.removeprefix("s3://").partition("/")
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


class _Hears(logging.Handler):
    """Counts requests; the server would write each to the terminal."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def emit(self, record: logging.LogRecord) -> None:
        found = _LINE.search(record.getMessage())
        if found:
            self._store.requests[found[1]] += 1
            self._store.asked.append((found[1], found[2]))


@contextmanager
def a_store() -> Iterator[Store]:
    """Run a store where the variables of AWS say that it is."""
    from botocore.session import get_session  # noqa: PLC0415  takes a second to load
    from moto.moto_server.werkzeug_app import create_backend_app  # noqa: PLC0415
    from werkzeug.serving import make_server  # noqa: PLC0415

    at = os.environ["AWS_ENDPOINT_URL"]
    log = logging.getLogger("werkzeug")
    store = Store(get_session().create_client("s3", endpoint_url=at))
    heard = _Hears(store)
    log.addHandler(heard)
    log.setLevel(logging.INFO)
    log.propagate = False
    port = urlsplit(at).port
    assert port is not None
    # Of all services S3 alone: to find out which one a request means takes as long as the answer.
    server = make_server("127.0.0.1", port, create_backend_app("s3"), threaded=True)
    threading.Thread(target=server.serve_forever, name="store", daemon=True).start()
    try:
        store.client.create_bucket(Bucket=_BUCKET)
        yield store
    finally:
        server.shutdown()
        server.server_close()
        log.removeHandler(heard)
