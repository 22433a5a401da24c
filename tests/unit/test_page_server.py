"""What is handed out, to whom, and that nothing from a table becomes markup."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from tests.attacks import JDBC, SQL, Scene
from tests.pages import ask, ask_raw, served, wait_until_read
from tests.shops import DEFINITION, Shop
from tidelake.errors import UsageError
from tidelake.ops.page import server as server_module
from tidelake.ops.page.facts_cache import FactsCache
from tidelake.ops.page.server import PageServer, Renderer
from tidelake.typed import Typed

HOSTILE = "<script>alert('reason')</script>\"'><img src=x onerror=alert(1)>"


class Markup(HTMLParser):
    """Collects the elements of a page, with their attributes."""

    def __init__(self, text: str) -> None:
        """Parse a page."""
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element."""
        self.tags.append((tag, dict(attrs)))

    def ids(self) -> list[str]:
        """List the ids."""
        return [str(found["id"]) for _, found in self.tags if "id" in found]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Give a lake whose payloads and reasons want to be markup."""
    payload = '{"a": "</code></pre><script>alert(2)</script>"}' + "x" * 300
    root = tmp_path_factory.mktemp("lake") / "<b>lake & more"
    return Shop(root, reason=f"payload: {HOSTILE}", payload=payload).run(6)


@pytest.fixture(scope="module")
def server(shop: Shop) -> Iterator[PageServer]:
    """Serve it."""
    with served(shop, "nobody") as found:
        wait_until_read(found)
        yield found


@pytest.fixture(scope="module")
def page(server: PageServer) -> str:
    """Give the page of the pipeline."""
    return ask(server, "/p/shop").text


def test_the_page_has_every_part(page: str) -> None:
    ids = Markup(page).ids()

    for part in ("verdict", "flow", "books", "sides", "gold"):
        assert part in ids
    assert "Balanced: 60 records arrived" in page
    assert "gold.takings_1m" in ids
    assert "silver.shop" not in page.split("<main", maxsplit=1)[0]


def test_nothing_from_a_table_becomes_an_element(page: str) -> None:
    tags = Markup(page).tags

    scripts = [attributes for tag, attributes in tags if tag == "script"]
    assert [one.get("src") for one in scripts] == ["/static/page.js"]
    assert not [tag for tag, _ in tags if tag in ("img", "b", "iframe", "object")]
    assert not [name for _, found in tags for name in found if name.startswith("on")]
    # What was hostile is still there to be read.
    assert "&lt;script&gt;alert(&#39;reason&#39;)&lt;/script&gt;" in page
    assert "&lt;/code&gt;&lt;/pre&gt;&lt;script&gt;alert(2)" in page


def test_every_command_carries_the_root_quoted_for_a_shell(page: str, shop: Shop) -> None:
    assert f"--root &#39;{shop.root.parent}/&lt;b&gt;lake &amp; more&#39;" in page


def test_no_element_shares_its_id_and_nothing_is_styled_in_place(page: str) -> None:
    markup = Markup(page)

    assert len(markup.ids()) == len(set(markup.ids()))
    assert not [found for _, found in markup.tags if "style" in found]


def test_all_that_a_person_can_reach_by_keyboard_has_an_id_that_stays(page: str) -> None:
    for tag, found in Markup(page).tags:
        if tag in ("a", "button", "summary") or found.get("tabindex") == "0":
            assert "id" in found or found.get("class") == "skip", (tag, found)


def test_the_page_reaches_for_nothing_outside(server: PageServer, page: str) -> None:
    answer = ask(server, "/p/shop")
    policy = answer.headers["Content-Security-Policy"]

    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for file in ("page.css", "page.js", "icon.svg"):
        text = ask(server, f"/static/{file}").text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text
        assert "https://" not in text
        assert "url(" not in text
    for _, found in Markup(page).tags:
        for name in ("src", "href"):
            assert (found.get(name) or "/").startswith(("/", "#"))


def test_a_page_that_did_not_change_is_not_sent_again(server: PageServer) -> None:
    first = ask(server, "/p/shop")

    again = ask(server, "/p/shop", If_None_Match=first.headers["ETag"])

    assert (first.status, again.status) == (200, 304)
    assert again.text == ""
    assert again.headers["ETag"] == first.headers["ETag"]


def test_the_overview_names_all_pipelines_and_breaks_for_none(server: PageServer) -> None:
    page = ask(server, "/").text

    assert 'href="/p/shop"' in page
    assert "there is no pipeline &#39;nobody&#39;" in page
    assert 'data-state="critical"' in page


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8050", "localhost.evil.example"])
def test_a_name_that_was_pointed_here_is_turned_away(server: PageServer, host: str) -> None:
    answer = ask(server, "/p/shop", Host=host)

    assert answer.status == 421
    assert "records" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["Host:"],
        ["Host: [::1"],
        ["Host: [::1]x"],
        ["Host: [localhost]"],
        ["Host: [::g]:80"],
        ["Host: ::1"],
        ["Host: a:b:c"],
        ["Host: localhost:x"],
        ["Host: localhost:-1"],
        ["Host: localhost:65536"],
        ["Host: localhost:8050\u00b2"],
        ["Host: caf\u00e9"],
        ["Host: \u0661"],
        ["Host: user@localhost"],
        ["Host: localhost/x"],
        ["Host: localhost evil.example"],
        ["Host: localhost,evil.example"],
        ["Host: localhost\0"],
        ["Host: localhost", "Host: localhost"],
    ],
)
def test_a_malformed_host_header_is_a_bad_request(server: PageServer, headers: list[str]) -> None:
    status, body = ask_raw(server, "GET /p/shop HTTP/1.1", *headers)

    assert status == 400
    assert "The Host header is malformed." in body
    assert "records" not in body


def test_a_malformed_address_is_a_bad_request(server: PageServer) -> None:
    status, body = ask_raw(server, "GET http://[::1/p/shop HTTP/1.1", "Host: localhost")

    assert (status, body) == (400, "The address is malformed.")


@pytest.mark.parametrize(
    "host",
    ["localhost:8050", "LOCALHOST", "127.0.0.1", "[::1]:8050", "[0:0:0:0:0:0:0:1]", "127.8.8.8:1"],
)
def test_this_machines_own_names_are_answered(server: PageServer, host: str) -> None:
    assert ask(server, "/p/shop", Host=host).status == 200


def test_an_address_of_a_network_is_turned_away_by_a_server_of_this_machine(
    server: PageServer,
) -> None:
    assert ask(server, "/p/shop", Host="192.168.7.7:8050").status == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_asked_for_but_pages(server: PageServer, method: str) -> None:
    assert ask(server, "/p/shop", method=method).status == 501


def test_a_head_has_no_body(server: PageServer) -> None:
    answer = ask(server, "/p/shop", method="HEAD")

    assert (answer.status, answer.text) == (200, "")


def test_no_statement_reaches_a_database_through_the_page(server: PageServer, shop: Shop) -> None:
    scene = Scene(shop.root, shop.lake)
    before = scene.files()

    for text in (scene.fill(one) for steps in (*SQL, *JDBC) for one in steps):
        assert ask(server, f"/p/{quote(text, safe='')}").status == 404
        assert ask(server, f"/p/shop?{urlencode({'sql': text})}", method="HEAD").status == 200
    assert scene.files() == before


@pytest.mark.parametrize(
    "path", ["/p/other", "/p/../shop.yml", "/static/../server.py", "/static/", "/x", "/p/%2e%2e"]
)
def test_there_is_nothing_beside_the_pages(server: PageServer, path: str) -> None:
    assert ask(server, path).status == 404


def test_a_pipeline_that_never_ran_says_how_to_begin(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with served(shop) as server:
        page = ask(server, "/").text

    assert "shop: nothing has run here yet" in page
    assert f"tidelake run {shop.file} --root {tmp_path}" in page


def test_a_definition_without_a_telling_measure_and_a_dimension_are_drawn(tmp_path: Path) -> None:
    largest = {"largest": {"max": "value"}}
    gold = {**DEFINITION["gold"][0], "measures": largest}
    shop = Shop(tmp_path, definition={**DEFINITION, "gold": [gold]})
    dimension = {
        "name": "shop",
        "kind": "dimension",
        "source": DEFINITION["source"],
        "event": {**DEFINITION["event"], "sequence": "event_time"},
        "dimension": {"key": ["user_id"]},
    }
    shop.run(2)
    shop.definition = dimension
    shop.write_definition()

    with served(shop) as server:
        wait_until_read(server)
        page = ask(server, "/").text

    assert ">Dimension</h2>" in page
    assert "dim.shop" in Markup(page).ids()
    assert "does not exist yet" in page


def test_a_port_that_is_taken_is_named(server: PageServer, shop: Shop) -> None:
    port = server.server_address[1]
    cache, renderer = (
        FactsCache(shop.lake, {}, lambda _: shop.pipeline),
        Renderer((), shop.root, Typed()),
    )

    with pytest.raises(UsageError, match=f"127.0.0.1:{port}: .*--port"):
        PageServer("127.0.0.1", port, cache, renderer)


def test_a_reader_who_goes_away_is_passed_over_and_a_fault_is_not(
    server: PageServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for error in (BrokenPipeError("gone"), RuntimeError("a bug")):
        try:
            raise error
        except (OSError, RuntimeError):
            server.handle_error(None, ("127.0.0.1", 1))

    told = capsys.readouterr().err
    assert "a bug" in told
    assert "gone" not in told


def test_an_address_of_ipv6_is_listened_to(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    # An address that no machine has, since not every machine has ::1.
    refusing = pytest.raises(UsageError, match="cannot be served at 100::1:0")
    with refusing as refused, served(shop, host="100::1"):
        pass
    assert "Address family for hostname" not in str(refused.value)


def _opened(server: PageServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=10)


def test_a_request_that_comes_too_slowly_is_given_up(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module._Handler, "timeout", 0.5)
    began = time.monotonic()
    with _opened(server) as slow:
        with suppress(ConnectionError):
            # Each byte comes in time.
            while time.monotonic() < began + 5:
                slow.sendall(b"G")
                time.sleep(0.1)
                if select.select([slow], [], [], 0)[0]:
                    break
        assert time.monotonic() - began < 4
    assert ask(server, "/p/shop").status == 200


def test_of_too_many_connections_the_last_is_closed_at_once_and_others_are_answered(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_MAX_CONNECTIONS", 2)
    with served(shop) as server:
        with _opened(server) as first, _opened(server), _opened(server) as third:
            with suppress(ConnectionError):
                assert third.recv(1) == b""
            first.sendall(b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert first.recv(12) == b"HTTP/1.0 404"
        for _ in range(3):
            ends = time.monotonic() + 10
            while server._free._value < 2 and time.monotonic() < ends:
                time.sleep(0.01)
            # Both are free again.
            assert ask(server, "/x").status == 404
