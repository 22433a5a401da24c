"""Hand out the page: GET alone, to this machine alone, nothing that was not escaped."""

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

# A name or an IPv4 address, or an IPv6 address in brackets, and perhaps a port.
_HOST = re.compile(
    r"(?:(?P<name>[\w.-]+)|\[(?P<v6>[\da-f:.]+)\])(?::(?P<port>\d{0,5}))?", re.A | re.I
)
_MAX_PORT = 65535
# For how long the first answer may wait for the first facts; the page comes without them then.
_PATIENCE = 0.7
_HEADERS = {
    # Everything comes from here, nothing is written into the page itself, nobody frames it.
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
    """Serves what a desk knows."""

    daemon_threads = True

    def __init__(self, host: str, port: int, desk: Desk, renderer: Renderer) -> None:
        """Bind, 0 being any port that is free; nothing is answered before ``serve_forever``.

        Raises:
            UsageError: The address is none of this machine's, or the port is taken.
        """
        self.host, self.desk, self.renderer = host, desk, renderer
        self._kept: dict[tuple[str, ...], tuple[tuple[int, ...], PageDocument]] = {}
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            told = getattr(error, "strerror", None) or str(error)
            raise UsageError(
                f"the page cannot be served at {host}:{port}: {told}. "
                "Choose another place with --host and --port."
            ) from error

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_address[1]}/"

    def server_bind(self) -> None:
        """Bind without asking a name server what this machine is called."""
        super(ThreadingHTTPServer, self).server_bind()

    def handle_error(self, request: object, client_address: object) -> None:
        """Pass over a reader who went away in the middle of an answer; that is nobody's fault."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def knows(self, host: str) -> bool:
        """Tell whether a request's host, as :func:`host_in` found it, means this server.

        A page elsewhere may let its own name point here, and would then read what is shown
        (DNS rebinding). So a name must be the one that was bound to; an address cannot be forged.
        """
        if host in ("localhost", self.host.lower()):
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return address.is_loopback or not is_loopback(self.host)

    def document(self, path: str) -> PageDocument | None:
        """Give what lies at a path; None for nothing."""
        names = self.desk.names
        if path.startswith("/static/"):
            return static().get(path.removeprefix("/static/"))
        if path == "/":
            return self._rendered(names, is_overview=len(names) > 1)
        name = unquote(path.removeprefix("/p/"))
        if path.startswith("/p/") and name in names:
            return self._rendered((name,), is_overview=False)
        return None

    def _rendered(self, names: tuple[str, ...], *, is_overview: bool) -> PageDocument:
        facts = self.desk.look(names, patience=_PATIENCE)
        state = tuple(one.serial for one in facts)
        # A state is written once, however often it is asked for.
        known = self._kept.get(names)
        if known is None or known[0] != state:
            renderer = self.renderer
            page = renderer.overview(facts) if is_overview else renderer.pipeline(facts[0])
            known = self._kept[names] = state, page
        return known[1]


def is_loopback(host: str) -> bool:
    """Tell whether an address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_in(headers: Sequence[str]) -> str | None:
    """Find the host that a request is for; None if its ``Host`` headers name none or several."""
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
    """Answers one request a connection: none is left open, so none keeps a thread."""

    server: PageServer
    server_version = "tidelake"
    sys_version = ""
    # For whoever connects and says nothing.
    timeout: ClassVar[float] = 10.0

    def do_GET(self) -> None:
        """Give a page, or say that it is the one that is known."""
        self._answer(sends=True)

    def do_HEAD(self) -> None:
        """Give its headers."""
        self._answer(sends=False)

    def _answer(self, *, sends: bool) -> None:
        host, path = host_in(self.headers.get_all("Host", [])), None
        with suppress(ValueError):
            path = urlsplit(self.path).path
        if host is None or path is None:
            malformed = "The Host header" if host is None else "The address"
            self._send(HTTPStatus.BAD_REQUEST, _told(f"{malformed} is malformed."), sends=sends)
            return
        if not self.server.knows(host):
            self._send(HTTPStatus.MISDIRECTED_REQUEST, _told("This page is at another address."))
            return
        found = self.server.document(path)
        if found is None:
            self._send(HTTPStatus.NOT_FOUND, self.server.renderer.unknown(), sends=sends)
        elif self.headers.get("If-None-Match") == found.tag:
            self._send(HTTPStatus.NOT_MODIFIED, found, sends=False)
        else:
            self._send(HTTPStatus.OK, found, sends=sends)

    def _send(self, status: HTTPStatus, document: PageDocument, *, sends: bool = True) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("ETag", document.tag)
        if status is not HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", document.kind)
            self.send_header("Content-Length", str(len(document.body)))
        self.end_headers()
        if sends:
            self.wfile.write(document.body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a page that asks every two seconds would fill the terminal."""


def _told(text: str) -> PageDocument:
    return PageDocument.of(text, "text/plain; charset=utf-8")
