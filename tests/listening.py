"""A small HTTP server that keeps what it is sent, and can be slow or refuse."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Listening:
    """What a server heard, and how it answers.

    Attributes:
        address: Its address, with a path.
        answers: Codes of the next answers; the last one stays. A redirect leads to a page, whose
            answer is 200.
        seconds: How long each answer takes.
        heard: The bodies, read as JSON.
        headers: Those of each request.
        tries: How many requests came.
    """

    address: str = ""
    answers: list[int] = field(default_factory=lambda: [200])
    seconds: float = 0.0
    heard: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    tries: int = 0


@contextmanager
def listening() -> Iterator[Listening]:
    """Listen on a free port of this machine."""
    found = Listening()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.tries += 1
            code = found.answers.pop(0) if len(found.answers) > 1 else found.answers[0]
            time.sleep(found.seconds)
            if code < 300:
                found.heard.append(json.loads(body))
                found.headers.append({name.lower(): told for name, told in self.headers.items()})
            # The client may have gone away meanwhile.
            try:
                self.send_response(code)
                if 300 <= code < 400:
                    self.send_header("Location", "/login")
                self.send_header("Content-Length", "0")
                self.end_headers()
            except OSError:
                return

        def do_GET(self) -> None:
            found.tries += 1
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.address = f"http://127.0.0.1:{server.server_port}/hook/s3cret"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
