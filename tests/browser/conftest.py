"""One browser for all pages."""

import pytest

from browser_helpers import CHROMIUM


@pytest.fixture(scope="module")  # while it is open its event loop is under way, and other files run loops of their own
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        made = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()
