"""Servers for the tests: `lucebox serve` in a process of its own, on a free loopback port. A browser for their page,
which needs Chromium on PATH and the package playwright."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import tiny_vl
from browsing import CHROMIUM, FLAGS
from running import SLOW, WHOLE_CONTEXT, Running, started

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """A server with the tiny model."""
    with started("--slots", "2", "--alias", "claude-*") as running:
        yield running


@pytest.fixture(scope="session")
def seeing() -> Iterator[Running]:
    """A server with a model that reads images."""
    with started("--slots", "2", "--alias", "*", model=str(tiny_vl.MODEL), context=1024) as running:
        yield running


@pytest.fixture(scope="session")
def patient() -> Iterator[Running]:
    """A server with a long context and few tokens per second, for answers that must still run when the test looks: 8000
    tokens are a minute of work."""
    with started("--slots", "2", *SLOW, context=WHOLE_CONTEXT) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on PATH")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab of a fresh profile, wide enough for all views. Any script error fails the test."""
    yield from tab(browser, 1500)


@pytest.fixture(params=[1400, pytest.param(390, marks=pytest.mark.slow)])  # 3 s a test
def tab_of_width(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A tab like `page`, of the width of a laptop's window or of a phone."""
    yield from tab(browser, request.param)


@pytest.fixture(params=[1400, 390])
def tab_of_any_width(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """For the tests of which a phone shows a view after the other, every day."""
    yield from tab(browser, request.param)


def tab(browser: Browser, width: int) -> Iterator[Page]:
    errors: list[str] = []
    with browser.new_context(viewport={"width": width, "height": 800}) as context:
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.set_default_timeout(60_000)

        def watch(page: Page) -> None:
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda said: errors.append(said.text) if "Content Security" in said.text else None)

        context.on("page", watch)
        yield context.new_page()
        assert not errors
