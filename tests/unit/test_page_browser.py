"""The page as people meet it: on a phone, by keyboard, in the dark, while tables change."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from importlib import resources
from itertools import pairwise
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.browsers import a_browser, look_like
from tests.pages import served, wait_until_read
from tests.shops import Shop
from tidelake.instants import now
from tidelake.ops import page as ops_page
from tidelake.ops.page.facts import Bar, Facts, Plot
from tidelake.ops.page.server import PageServer, Renderer
from tidelake.typed import Typed

pytestmark = pytest.mark.browser

# Gives each text that has less contrast than WCAG's AA asks for, with its ratio.
CONTRAST = """
const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
  .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
const ground = (one) => {
  for (; one; one = one.parentElement) {
    const colour = parse(getComputedStyle(one).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const found = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let text = texts.nextNode(); text; text = texts.nextNode()) {
  const one = text.parentElement;
  if (!text.data.trim() || !one.checkVisibility()) continue;
  const style = getComputedStyle(one);
  const [upper, lower] = [light(parse(style.color)), light(ground(one))].sort((a, b) => b - a);
  const ratio = (upper + 0.05) / (lower + 0.05);
  if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${one.tagName} ${text.data.trim()}`);
}
return found;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """Give one browser for all."""
    with a_browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Give a lake whose second hop is refused, and whose payloads are hostile."""
    hostile = "<script>document.title = 'owned'</script>" + "x" * 400
    shop = Shop(tmp_path_factory.mktemp("lake"), reason=hostile, payload=hostile).run(14)
    shutil.rmtree(shop.lake.checkpoints("shop", "silver"))
    return shop


@pytest.fixture(scope="module")
def server(shop: Shop) -> Iterator[PageServer]:
    """Serve it."""
    with served(shop, "clickstream") as found:
        wait_until_read(found)
        yield found


def wait_for(what: Callable[[], object]) -> None:
    """Wait until something is so."""
    until = time.monotonic() + 20
    while not what():
        assert time.monotonic() < until, "it did not come to be"
        time.sleep(0.05)


def focused(browser: webdriver.Chrome) -> str:
    return str(browser.execute_script("return document.activeElement.id"))


def press(browser: webdriver.Chrome, key: str) -> None:
    browser.switch_to.active_element.send_keys(key)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_scrolls_sideways_and_all_text_has_contrast(
    browser: webdriver.Chrome, server: PageServer, width: int, dark: bool
) -> None:
    look_like(browser, width, dark=dark)
    for path in ("", "p/shop"):
        browser.get(server.url + path)
        browser.execute_script(
            "for (const one of document.querySelectorAll('details')) one.open = 1"
        )

        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.execute_script(CONTRAST) == []


def test_long_totals_stay_inside_their_card(
    browser: webdriver.Chrome, shop: Shop, tmp_path: Path
) -> None:
    bars = tuple(Bar(key, 4.2e12 + at) for at, key in enumerate(("k3", "z" * 130, "a key " * 9)))
    plots = (Plot("gold.totals", "totals", 3, "total, all", (*bars, Bar("least", -1.5e36))),)
    facts = Facts("shop", shop.pipeline, looked_at=now(), has_run=True, plots=plots)
    page = Renderer(("shop",), tmp_path, Typed()).pipeline(facts).body.decode()
    # A file's page may load no script.
    bare = re.sub(r'<script.*?</script>|<link rel="icon"[^>]*>', "", page)
    styles = str(resources.files(ops_page) / "static/page.css")
    file = tmp_path / "page.html"
    file.write_text(bare.replace("/static/page.css", styles), encoding="utf-8")
    for width in (360, 1280):
        look_like(browser, width)
        browser.get(file.as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        cut = (
            "const card = document.querySelector('.plot').getBoundingClientRect();"
            "return [...document.querySelectorAll('.bars td, .bars th')].map((one) => one"
            ".getBoundingClientRect()).filter((one) => one.width && one.right > card.right).length"
        )
        assert browser.execute_script(cut) == 0
        widths = "return [...document.querySelectorAll('.bars rect')].map((one) => one"
        widths += ".parentElement.getBoundingClientRect().width)"
        assert min(browser.execute_script(widths)) >= 40


def test_the_dark_is_dark(browser: webdriver.Chrome, server: PageServer) -> None:
    grounds = []
    for dark in (False, True):
        look_like(browser, 1280, dark=dark)
        browser.get(server.url)
        grounds.append(
            browser.find_element(By.TAG_NAME, "body").value_of_css_property("background-color")
        )

    assert grounds == ["rgba(244, 246, 246, 1)", "rgba(14, 20, 23, 1)"]


def test_the_first_line_says_what_is_wrong_and_what_to_type(
    browser: webdriver.Chrome, server: PageServer, shop: Shop
) -> None:
    look_like(browser, 1280)
    browser.get(f"{server.url}p/shop")

    assert browser.find_element(By.TAG_NAME, "h1").text.startswith("shop: ")
    first = browser.find_element(By.CSS_SELECTOR, ".alert")
    assert "its checkpoint is gone" in first.text
    assert first.find_element(By.TAG_NAME, "code").text == "hop_refused"
    typed = first.find_element(By.CSS_SELECTOR, ".command code").text
    assert f"tidelake repair {shop.file} --hop silver" in typed
    assert browser.title.endswith("· Tidelake")


def test_hostile_rows_run_nothing_and_the_policy_is_never_broken(
    browser: webdriver.Chrome, server: PageServer
) -> None:
    browser.get(f"{server.url}p/shop")
    time.sleep(0.5)

    assert "owned" not in browser.title
    assert browser.get_log("browser") == []


def test_a_keyboard_reaches_everything_in_the_order_of_the_page_and_shows_where_it_is(
    browser: webdriver.Chrome, server: PageServer
) -> None:
    look_like(browser, 1280)
    browser.get(f"{server.url}p/shop")
    reached = []
    for _ in range(200):
        press(browser, Keys.TAB)
        told = browser.execute_script(
            "const one = document.activeElement, style = getComputedStyle(one);"
            "return [one.id || one.className, style.outlineStyle, parseFloat(style.outlineWidth)]"
        )
        if told[0] in ("", reached[0] if reached else None):
            break
        reached.append(told[0])
        assert told[1] == "solid" and told[2] >= 2, told

    assert reached[:2] == ["skip", "brand"]
    wanted = browser.execute_script(
        "return [...document.querySelectorAll('a, button, summary, [tabindex]')]"
        ".filter((one) => one.checkVisibility() && one.tabIndex === 0)"
        ".map((one) => one.id || one.className)"
    )
    assert reached == wanted


def test_the_skip_link_leads_to_what_is_wrong(
    browser: webdriver.Chrome, server: PageServer
) -> None:
    browser.get(f"{server.url}p/shop")
    press(browser, Keys.TAB)
    press(browser, Keys.ENTER)

    assert focused(browser) == "main"
    press(browser, Keys.TAB)
    assert focused(browser) == "do-1-copy"


def test_landmarks_and_headings_lead_through_the_page(
    browser: webdriver.Chrome, server: PageServer
) -> None:
    browser.get(f"{server.url}p/shop")

    for landmark in ("header", "nav", "main", "footer"):
        assert len(browser.find_elements(By.TAG_NAME, landmark)) == 1
    levels = browser.execute_script(
        "return [...document.querySelectorAll('h1, h2, h3, h4')].map((one) => +one.tagName[1])"
    )
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_a_new_batch_comes_in_by_itself_and_nothing_that_was_opened_closes(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    look_like(browser, 360)
    shop = Shop(tmp_path).run(12)
    with served(shop) as server:
        wait_until_read(server)
        browser.get(server.url)
        browser.find_element(By.ID, "books-by-batch-open").send_keys(Keys.ENTER)
        scrolled = browser.execute_script(
            "const one = document.getElementById('books-by-batch-scroll');"
            "one.scrollLeft = 70; return one.scrollLeft"
        )
        assert focused(browser) == "books-by-batch-open"
        before = browser.execute_script("return scrollY")

        shop.run(1)
        wait_for(lambda: "130 records arrived" in browser.page_source)

        assert browser.find_element(By.ID, "books-by-batch").get_attribute("open")
        assert focused(browser) == "books-by-batch-open"
        assert browser.execute_script("return scrollY") == pytest.approx(before, abs=60)
        assert scrolled > 0
        assert (
            browser.execute_script(
                "return document.getElementById('books-by-batch-scroll').scrollLeft"
            )
            == scrolled
        )
        assert "batch 12" in browser.page_source


@pytest.mark.parametrize("width", [360, 1280])
def test_many_pipelines_take_one_row_that_shows_the_current_one(
    browser: webdriver.Chrome, shop: Shop, width: int
) -> None:
    names = [f"orders_of_region_{number}" for number in range(60)]

    def edge(of: str, side: str) -> float:
        place = f"document.getElementById('{of}').getBoundingClientRect().{side}"
        return float(browser.execute_script(f"return {place}"))

    with served(shop, *names) as server:
        look_like(browser, width)
        browser.get(f"{server.url}p/{names[50]}")
        assert edge("verdict", "top") < 160
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        wait_for(lambda: edge(f"nav-{names[50]}", "right") <= width)
        assert edge(f"nav-{names[50]}", "left") >= 0


def test_a_hidden_page_asks_for_nothing_and_a_lost_server_is_told(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    shop = Shop(tmp_path).run(2)
    with served(shop) as server:
        wait_until_read(server)
        asked: list[float] = []
        get = server.cache.get

        def counting(*names: object, patience: float) -> object:
            asked.append(time.monotonic())
            return get(*names, patience=patience)  # type: ignore[arg-type]

        server.cache.get = counting  # type: ignore[method-assign,assignment]
        browser.get(server.url)
        wait_for(lambda: len(asked) >= 2)
        hide = (
            "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        browser.execute_script(hide % "true")
        time.sleep(0.3)
        count = len(asked)
        time.sleep(2.5)
        assert len(asked) == count

        browser.execute_script(hide % "false")
        wait_for(lambda: len(asked) > count)
    wait_for(lambda: browser.find_element(By.ID, "lost").is_displayed())
    assert "Restart it with: tidelake ui" in browser.find_element(By.ID, "lost").text


def test_a_command_is_copied_or_selected(browser: webdriver.Chrome, server: PageServer) -> None:
    browser.get(f"{server.url}p/shop")
    origin = server.url.rstrip("/")
    granted = {"origin": origin, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    browser.execute_cdp_cmd("Browser.grantPermissions", granted)

    browser.find_element(By.ID, "do-1-copy").send_keys(Keys.ENTER)

    wait_for(lambda: browser.find_element(By.ID, "said").get_attribute("textContent") == "Copied")
    copied = browser.execute_async_script(
        "navigator.clipboard.readText().then(arguments[0], (error) => arguments[0](String(error)))"
    )
    assert copied == browser.find_element(By.ID, "do-1").text
