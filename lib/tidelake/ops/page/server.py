"""Render the page as HTML, and serve it over HTTP.

Every value is escaped. Only GET and HEAD are answered, only for the host that it is bound to.
Drawings are SVG, 1000 wide and 100 high, scaled by the page. Times are in UTC.
"""

from __future__ import annotations

import functools
import hashlib
import io
import ipaddress
import itertools
import re
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined

from tidelake.config.model import written
from tidelake.errors import UsageError
from tidelake.folders import Folder
from tidelake.instants import lasting
from tidelake.ledger.terms import ledger_by
from tidelake.ops.alerts import Alert
from tidelake.ops.page.facts import Facts
from tidelake.ops.page.facts_cache import FactsCache
from tidelake.typed import Typed, first_command
from tidelake.visible import shortened, some, visible

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_STATIC = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
# Maximum characters of a payload or an error, and of an excerpt.
_LONGEST, _EXCERPT = 4000, 160
_SMALL, _LARGE = 0.01, 1e15
_BIG = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))
WIDTH, HEIGHT = 1000.0, 100.0
# Minimum size of a value that is not zero, so that it is visible.
_LEAST = 2.0
# The gap between two columns, relative to a column's width.
_GAP = 0.2
# Fewer values are drawn at the right edge: two full-width columns would look like a lot.
_SLOTS = 12
State = Literal["well", "warning", "critical", "unknown", "new"]


@dataclass(frozen=True)
class PageDocument:
    """A response body, its media type, and its entity tag, a hash of the body."""

    body: bytes
    kind: str
    tag: str

    @staticmethod
    def of(text: str, kind: str = "text/html; charset=utf-8") -> PageDocument:
        """Create a document from a text, encoded as UTF-8."""
        body = text.encode("utf-8", errors="replace")
        return PageDocument(body, kind, f'"{hashlib.sha256(body).hexdigest()[:24]}"')


class Verdict(NamedTuple):
    """The headline of the page: its state, a sentence, and the alerts, critical ones first."""

    state: State
    text: str
    alerts: tuple[Alert, ...]


class Box(NamedTuple):
    """A rectangle; ``y`` grows downwards."""

    x: float
    y: float
    width: float
    height: float


class Line(NamedTuple):
    """The paths of a line and of the area under it, and the values at the bottom and the top."""

    stroke: str
    area: str
    bottom: float
    top: float


@functools.cache
def static() -> Mapping[str, PageDocument]:
    """Return the static files of the page, by name."""
    folder = files("tidelake.ops.page") / "static"
    return {
        name: PageDocument.of((folder / name).read_text(encoding="utf-8"), kind)
        for name, kind in _STATIC.items()
    }


class Renderer:
    """Renders pages from templates."""

    def __init__(self, names: Sequence[str], root: Folder, typed: Typed) -> None:
        """Load the templates; ``names`` is for the navigation, ``typed`` completes commands."""
        self._environment = Environment(
            loader=PackageLoader("tidelake.ops.page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            # The page's own markup has another type.
            finalize=lambda value: visible(value, lines=True) if type(value) is str else value,
        )
        texts = (number, brief, lasting, shown_instant, per, plain, excerpt, some)
        drawings = (columns, shares, lengths, line)
        self._environment.filters |= {one.__name__: one for one in (*texts, *drawings)}
        functions = {one.__name__: one for one in (verdict_of, ledger_by, first_command)}
        self._environment.globals |= {"typed": typed, "names": names, "root": str(root)} | functions
        # Compile now, so that the first request is not delayed.
        for template in self._environment.list_templates():
            self._environment.get_template(template)

    def pipeline(self, facts: Facts) -> PageDocument:
        """Render the page of a pipeline."""
        return self._render("pipeline.html", facts=facts, verdict=verdict_of([facts]))

    def overview(self, all_facts: Sequence[Facts]) -> PageDocument:
        """Render the page of all pipelines."""
        return self._render("overview.html", all_facts=all_facts, verdict=verdict_of(all_facts))

    def unknown(self) -> PageDocument:
        """Render the page for an unknown address."""
        return self._render("unknown.html")

    def _render(self, template: str, **values: Any) -> PageDocument:
        return PageDocument.of(self._environment.get_template(template).render(**values))


def verdict_of(all_facts: Sequence[Facts]) -> Verdict:
    """Return the combined verdict on some pipelines."""
    found = [alert for facts in all_facts for alert in facts.open]
    alerts = tuple(sorted(found, key=lambda alert: alert.severity != "critical"))
    # A damaged table opens all rules that read it, with one message: of those the first counts.
    told = {(one.pipeline, one.hop, one.message): one.severity for one in reversed(alerts)}
    critical = sum(severity == "critical" for severity in told.values())
    warnings = len(told) - critical
    if critical:
        more = f", and {warnings} to look at today" if warnings else ""
        return Verdict("critical", f"{some(critical, 'things', 'wrong')}{more}", alerts)
    if warnings:
        return Verdict("warning", f"{some(warnings, 'things')} to look at today", alerts)
    if any(facts.looked_at is None for facts in all_facts):
        return Verdict("unknown", "The tables are being read", alerts)
    if not any(facts.has_run for facts in all_facts):
        return Verdict("new", "Nothing has run here yet", alerts)
    if not all(facts.whole for facts in all_facts):
        return Verdict("unknown", "No problem found so far; some tables are not read yet", alerts)
    return Verdict("well", "All is well", alerts)


def number(value: float | None) -> str:
    """Format a number with thousands separators and at most two decimals.

    Of one that would be ``0.00``, or too long for a phone, three significant digits are shown.
    """
    if value is None:
        return "-"
    if value and not _SMALL <= abs(value) < _LARGE:
        return f"{value:.3g}"
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def brief(value: float | None) -> str:
    """Format a number in about five characters."""
    for size, unit in _BIG:
        if value is not None and abs(value) >= size:
            return f"{value / (size if size != 1e4 else 1e3):.3g}{unit}"
    return number(value if value is None or abs(value) < 100 else round(value))


def per(step: timedelta) -> str:
    """Format the step of a plot: ``minute``, ``15 minutes``."""
    if step % timedelta(seconds=1):
        return f"{step.total_seconds():g} seconds"
    return written(step).removeprefix("1 ")


def shown_instant(value: datetime | date) -> str:
    """Format an instant to the second."""
    return f"{value:%Y-%m-%d %H:%M:%S}Z" if isinstance(value, datetime) else f"{value:%Y-%m-%d}"


def plain(payload: bytes | str) -> str:
    """Decode a payload, escaping invalid bytes; truncate a long one and append its length."""
    text = payload if isinstance(payload, str) else payload.decode(errors="backslashreplace")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"


def excerpt(payload: bytes | str) -> str:
    """Return the beginning of a payload, about two lines."""
    return shortened(" ".join(plain(payload).split()), _EXCERPT)


def columns(values: Sequence[float], *, top: float | None = None) -> tuple[Box, ...]:
    """Draw a column per value, the last at the right edge; negative values have none.

    The largest value, or ``top``, has the height of the drawing; nothing has one if that is 0.
    """
    slots = max(len(values), _SLOTS)
    room, top = WIDTH / slots, max([*values, 0.0]) if top is None else top
    boxes = []
    for number, value in enumerate(values, start=slots - len(values)):
        height = max(HEIGHT * value / top, _LEAST) if value > 0 and top > 0 else 0.0
        x, y = room * (number + _GAP / 2), HEIGHT - height
        boxes.append(Box(*(round(one, 1) for one in (x, y, room * (1 - _GAP), height))))
    return tuple(boxes)


def shares(values: Sequence[float]) -> tuple[Box, ...]:
    """Draw a stacked bar of the values; every value above zero is visible."""
    total = sum(values)
    widths = [max(WIDTH * value / total, 2 * _LEAST) if value > 0 else 0.0 for value in values]
    scale = WIDTH / sum(widths) if any(widths) else 0.0
    ends = list(itertools.accumulate((width * scale for width in widths), initial=0.0))
    return tuple(
        Box(round(x, 1), 0.0, round(end - x, 1), HEIGHT) for x, end in itertools.pairwise(ends)
    )


def lengths(values: Sequence[float | None]) -> tuple[float, ...]:
    """Return the length of a bar for each value, the longest as wide as the drawing."""
    top = max((abs(value) for value in values if value is not None), default=0.0)
    return tuple(
        round(max(WIDTH * abs(value) / top, 2 * _LEAST), 1) if value and top else 0.0
        for value in values
    )


def line(values: Sequence[float | None]) -> Line:
    """Draw a line through equidistant values; None interrupts it, and zero is always in range."""
    known = [0.0, *(value for value in values if value is not None)]
    top, bottom = max(known), min(known)
    scale = (HEIGHT - _LEAST) / (top - bottom) if top > bottom else 0.0
    step = WIDTH / max(len(values) - 1, 1)
    zero = round(HEIGHT + bottom * scale, 1)
    runs: list[list[tuple[float, float]]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            y = HEIGHT - (value - bottom) * scale
            runs[-1].append((round(number * step, 1), round(y, 1)))
    strokes, areas = [], []
    for run in filter(None, runs):
        if len(run) == 1:
            # A line of a single point would be invisible.
            run.append((run[0][0] + 4, run[0][1]))
        strokes.append("M" + " L".join(f"{x:g} {y:g}" for x, y in run))
        areas.append(f"{strokes[-1]} L{run[-1][0]:g} {zero:g} L{run[0][0]:g} {zero:g} Z")
    return Line(" ".join(strokes), " ".join(areas), bottom, top)


# A name or an IPv4 address, or an IPv6 address in brackets, with an optional port.
_HOST = re.compile(
    r"(?:(?P<name>[\w.-]+)|\[(?P<v6>[\da-f:.]+)\])(?::(?P<port>\d{0,5}))?", re.A | re.I
)
_MAX_PORT = 65535
# Seconds that a response waits for facts not read yet; then it is sent without them.
_PATIENCE = 0.7
# Each connection has a thread; a browser opens six.
_MAX_CONNECTIONS = 64
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
    """Serves the cached facts of a :class:`FactsCache` as pages."""

    daemon_threads = True

    def __init__(self, host: str, port: int, cache: FactsCache, renderer: Renderer) -> None:
        """Bind to an address, port 0 for any free one; a UsageError if that fails."""
        self.host, self.cache, self.renderer = host, cache, renderer
        self._rendered_pages: dict[tuple[str, ...], tuple[tuple[int, ...], PageDocument]] = {}
        self._free = threading.Semaphore(_MAX_CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
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

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or close the connection at once if there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            # There is no thread that would.
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and let the next client connect."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

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
        names, name = self.cache.names, unquote(path.removeprefix("/p/"))
        if path.startswith("/p/") and name in names:
            names = (name,)
        elif path != "/":
            return None
        facts = self.cache.get(names, patience=_PATIENCE)
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


class _Incoming(io.RawIOBase):
    """The bytes of a request; reading fails once the time for the whole request is over."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._ends = connection, time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        # The socket's own timeout starts anew with each byte.
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request per connection, so that no idle connection occupies a thread."""

    server: PageServer
    server_version = "tidelake"
    sys_version = ""
    # Disconnects clients that take longer to send the request, or to receive the response.
    timeout: ClassVar[float] = 10.0

    def setup(self) -> None:
        """Open the connection, with a time for the whole request."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Incoming(self.connection, self.timeout))

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
        self.connection.settimeout(self.timeout)
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
