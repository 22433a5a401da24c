"""A schema registry for tests: it speaks the calls that clients make, over HTTP on the loopback."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Standin:
    """A registry.

    Attributes:
        url: Where it answers.
        subjects: The ids of each subject's versions, oldest first.
        schemas: What is registered, by id.
        users: Who may ask, ``user:password``; empty for everybody.
        asked: Paths, in the order in which they were asked for.
    """

    url: str = ""
    subjects: dict[str, list[int]] = field(default_factory=dict)
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    users: str = ""
    asked: list[str] = field(default_factory=list)

    def register(self, subject: str, number: int, schema: Any, **more: Any) -> int:
        """Make a schema the newest version of a subject, under this id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.schemas[number] = {"schema": text, **more}
        self.subjects.setdefault(subject, []).append(number)
        return number

    def answer(self, path: str, authorization: str) -> tuple[int, Any]:
        """Answer a GET."""
        self.asked.append(path)
        wanted = "Basic " + base64.b64encode(self.users.encode()).decode()
        if self.users and authorization != wanted:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        match path.partition("?")[0].strip("/").split("/"):
            case ["subjects", subject, "versions"] if subject in self.subjects:
                return 200, list(range(1, len(self.subjects[subject]) + 1))
            case ["subjects", subject, "versions", version] if subject in self.subjects:
                number = self.subjects[subject][int(version) - 1]
                told = {"subject": subject, "version": int(version), "id": number}
                return 200, told | self.schemas[number]
            case ["subjects", *_]:
                return 404, {"error_code": 40401, "message": "Subject not found."}
            case _:
                return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


@contextmanager
def registry() -> Iterator[Standin]:
    """Run a registry on a free port until the test ends."""
    standin = Standin()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = standin.answer(self.path, self.headers.get("Authorization", ""))
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    standin.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield standin
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
