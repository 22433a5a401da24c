"""A page server of a shop's lake, in a thread of the test's own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import NamedTuple

from tests.shops import Shop
from tidelake.config import load_environment, load_pipeline
from tidelake.ops.page.facts_cache import FactsCache
from tidelake.ops.page.server import PageServer, Renderer
from tidelake.typed import Typed


class Answer(NamedTuple):
    """What the server said."""

    status: int
    headers: Mapping[str, str]
    text: str


@contextmanager
def served(shop: Shop, *names: str, host: str = "127.0.0.1") -> Iterator[PageServer]:
    """Serve the shop's page, and those of other names beside it, on a free port."""
    called = {"shop": str(shop.file)} | {name: name for name in names}
    environment = load_environment("local", root=str(shop.root))
    cache = FactsCache(shop.lake, called, lambda name: load_pipeline(name, environment))
    renderer = Renderer(tuple(called), shop.root, Typed(root=str(shop.root)))
    with PageServer(host, 0, cache, renderer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        cache.start()
        try:
            yield server
        finally:
            server.shutdown()
            cache.stop()
            thread.join()


def ask(server: PageServer, path: str, *, method: str = "GET", **headers: str) -> Answer:
    """Ask the server; underscores in a header's name stand for dashes."""
    connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    try:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=sent)
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read().decode())
    finally:
        connection.close()


def ask_raw(server: PageServer, *lines: str) -> tuple[int, str]:
    """Send a request as it stands; give status and body."""
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=10) as sending:
        sending.sendall("\r\n".join((*lines, "", "")).encode())
        head, _, body = sending.makefile("rb").read().decode().partition("\r\n\r\n")
    return int(head.split()[1]), body


def wait_until_read(server: PageServer, name: str = "shop") -> None:
    """Wait until all parts of a pipeline were read."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        (facts,) = server.cache.get([name], patience=0.1)
        if facts.looked_at and (facts.broken or not facts.has_run or facts.books):
            return
        time.sleep(0.02)
    raise AssertionError("the page was not read in time")
