"""Serve the page over HTTP: only GET and HEAD, only for the host that it is bound to."""

from __future__ import annotations

import ipaddress
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from tidelake.errors import UsageError
from tidelake.ops.page.desk import Desk
from tidelake.ops.page.rendering import PageDocument, Renderer, static

# A name or an IPv4 address, or an IPv6 address in brackets, with an optional port.
_HOST = re.compile(
    r"(?:(?P<name>[\w.-]+)|\[(?P<v6>[\da-f:.]+)\])(?::(?P<port>\d{0,5}))?", re.A | re.I
)
_MAX_PORT = 65535
# Seconds that a response waits for facts not read yet; then it is sent without them.
_PATIENCE = 0.7
_HEADERS = {
    # Only resources of this server, no inline script or style, no framing by other pages.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


class PageServer(ThreadingHTTPServer):
    """Serves the cached facts of a :class:`Desk` as pages."""

    daemon_threads = True

    def __init__(self, host: str, port: int, desk: Desk, renderer: Renderer) -> None:
        """Bind to an address, port 0 for any free one; a UsageError if that fails."""
        self.host, self.desk, self.renderer = host, desk, renderer
        self._rendered_pages: dict[tuple[str, ...], tuple[tuple[int, ...], PageDocument]] = {}
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(
                f"the page cannot be served at {host}:{port}: {reason}. "
                "Choose another address with --host and --port."
            ) from error

    @property
    def url(self) -> str:
        """The address of the page."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_address[1]}/"

    def server_bind(self) -> None:
        """Bind without a DNS lookup of the host's name."""
        super(ThreadingHTTPServer, self).server_bind()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect during a response."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def knows(self, host: str) -> bool:
        """Return whether a request's host, from :func:`host_in`, is this server.

        Protects against DNS rebinding: another site could resolve its own name to this address and
        read the page. So a host name must be the bound one; an IP address cannot be forged.
        """
        if host in ("localhost", self.host.lower()):
            return True
        with suppress(ValueError):
            return ipaddress.ip_address(host).is_loopback or not is_loopback(self.host)
        return False

    def document(self, path: str) -> PageDocument | None:
        """Return the document at a path; None if there is none."""
        if path.startswith("/static/"):
            return static().get(path.removeprefix("/static/"))
        names, name = self.desk.names, unquote(path.removeprefix("/p/"))
        if path.startswith("/p/") and name in names:
            names = (name,)
        elif path != "/":
            return None
        facts = self.desk.look(names, patience=_PATIENCE)
        state = tuple(one.serial for one in facts)
        # Each state of the facts is rendered once.
        known = self._rendered_pages.get(names)
        if known is None or known[0] != state:
            renderer = self.renderer
            page = renderer.pipeline(facts[0]) if len(facts) == 1 else renderer.overview(facts)
            known = self._rendered_pages[names] = state, page
        return known[1]


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_in(headers: Sequence[str]) -> str | None:
    """Parse the ``Host`` header of a request; None if it is malformed, missing or repeated."""
    found = _HOST.fullmatch(headers[0].strip()) if len(headers) == 1 else None
    if found is None or int(found["port"] or 0) > _MAX_PORT:
        return None
    if found["v6"] is None:
        return found["name"].lower()
    try:
        return str(ipaddress.IPv6Address(found["v6"]))
    except ValueError:
        return None


class _Handler(BaseHTTPRequestHandler):
    """Answers one request per connection, so that no idle connection occupies a thread."""

    server: PageServer
    server_version = "tidelake"
    sys_version = ""
    # Disconnects clients that send nothing.
    timeout: ClassVar[float] = 10.0

    def do_GET(self) -> None:
        """Send a document, or 304 if the client's copy is current."""
        self._send(*self._answer())

    do_HEAD = do_GET

    def _answer(self) -> tuple[HTTPStatus, PageDocument]:
        host = host_in(self.headers.get_all("Host", []))
        if host is None:
            return HTTPStatus.BAD_REQUEST, _text("The Host header is malformed.")
        try:
            path = urlsplit(self.path).path
        except ValueError:
            return HTTPStatus.BAD_REQUEST, _text("The address is malformed.")
        if not self.server.knows(host):
            return HTTPStatus.MISDIRECTED_REQUEST, _text("This server does not serve that host.")
        found = self.server.document(path)
        if found is None:
            return HTTPStatus.NOT_FOUND, self.server.renderer.unknown()
        is_current = self.headers.get("If-None-Match") == found.tag
        return HTTPStatus.NOT_MODIFIED if is_current else HTTPStatus.OK, found

    def _send(self, status: HTTPStatus, document: PageDocument) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("ETag", document.tag)
        if status is not HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", document.kind)
            self.send_header("Content-Length", str(len(document.body)))
        self.end_headers()
        if self.command != "HEAD" and status is not HTTPStatus.NOT_MODIFIED:
            self.wfile.write(document.body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the page sends a request every two seconds."""


def _text(text: str) -> PageDocument:
    return PageDocument.of(text, "text/plain; charset=utf-8")
