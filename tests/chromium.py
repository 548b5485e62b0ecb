"""Chromium without a window, driven by its driver (Debian: chromium, chromium-driver)."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any


def program(*names: str) -> str:
    """The first of several programs that is installed."""
    found = next(filter(None, map(shutil.which, names)), None)
    assert found, f"none of {', '.join(names)} is installed: on Debian, apt-get install chromium chromium-driver"
    return found


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser, as Selenium drives it."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program("chromium", "chromium-browser", "google-chrome")
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(program("chromedriver"))
    with webdriver.Chrome(options=options, service=service) as driver:
        driver.set_script_timeout(60)
        yield driver


def set_size(driver: Any, width: int, height: int, *, scheme: str = "light") -> None:
    """The size of the page, and whether the user prefers light or dark."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def texts(driver: Any, selector: str) -> list[str]:
    """What elements say, read at one moment: a page that draws itself again takes elements away meanwhile."""
    return driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])]"
        ".map((e) => (e.checkVisibility() ? e.innerText.trim() : ''))",
        selector,
    )
