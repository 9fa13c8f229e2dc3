"""Opens pages in a headless browser. A test fails if its page raises an error or requests anything from
another server."""

import pathlib
import shutil
import time
import urllib.parse

import pytest

BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")


@pytest.fixture(scope="module")
def browser():
    if BROWSER is None:
        pytest.skip("chromium-headless-shell is not installed: scripts/setup.sh test")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as session:
        yield session.chromium.launch(executable_path=BROWSER)


@pytest.fixture
def open_page(browser):
    """open_page(file or address, **options of the page) returns the rendered page."""
    troubles, contexts = [], []

    def open_one(place, **options):
        url = place.as_uri() if isinstance(place, pathlib.Path) else place
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: troubles.append(f"page error: {error}"))
        page.on("console", lambda message: troubles.append(f"console: {message.text}") if message.type == "error" else None)
        page.on("request", lambda request: troubles.append(f"request: {request.url}") if not allowed(request.url, url) else None)
        page.goto(url)
        wait_until(page, "window.dtoppReport !== undefined && view.plots.every(plot => !plot.isVisible || !plot.isDirty)")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert not troubles, troubles


def wait_until(page, condition, seconds=30):
    """Waits until the expression is true. Playwright's wait_for_function would evaluate text within the page, which the
    page's policy forbids."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(20)


def allowed(asked, page):
    asked, page = urllib.parse.urlsplit(asked), urllib.parse.urlsplit(page)
    if asked.scheme == "data":
        return True
    paths = (page.path,) if page.scheme == "file" else (page.path, page.path + "update")
    return asked[:2] == page[:2] and asked.path in paths
