"""A Chromium without a window, for tests that look at a page as people do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_REMEDY = "install it with: apt-get install chromium chromium-driver"


@contextmanager
def a_browser(profile: Path) -> Iterator[webdriver.Chrome]:
    """Start a browser with a profile of its own.

    Where there is none the tests are left out, and the run says so at its end; with
    TIDELAKE_BROWSER=required that is a failure.
    """
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        if os.environ.get("TIDELAKE_BROWSER") == "required":
            pytest.fail(f"there is no Chromium; {_REMEDY}")
        pytest.skip(f"NOT TESTED in a browser: there is no Chromium; {_REMEDY}")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield browser
    finally:
        browser.quit()


def look_like(browser: webdriver.Chrome, width: int, *, dark: bool = False) -> None:
    """Give the browser the width of a device, in CSS pixels, and its owner's preference."""
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
