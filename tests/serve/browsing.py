"""The server's page in a headless Chromium. The page's policy forbids eval(), so tests wait with `until`.

The page changes its messages and the prompt in the task of the event. All else comes later, and tests wait for it: the
list of chats (`shows_rows`), the focus after a chat is opened (`new_chat`, `open_last`), what the browser keeps
(`reloaded`), and the server's counters."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ENDED = "document.getElementById('stop').hidden && !document.getElementById('send').hidden"
# Whether the browser keeps no turn whose answer is being written.
KEPT = """import("/static/store.js").then((store) => store.unfinishedTurns()).then((turns) => turns.length === 0)"""
FLAGS = ["--no-sandbox", "--host-resolver-rules=MAP lan.test 127.0.0.1"]  # lan.test: not loopback to the browser


def until(page: Page, condition: str) -> None:
    """Waits for a JavaScript expression."""
    for _ in range(1200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never came true: {condition}; the page says {page.inner_text('body')!r}")


def becomes(read: Callable[[], object], expected: object, page: Page) -> None:
    """Waits until a reading of the page is this."""
    for _ in range(1200):
        if (found := read()) == expected:
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"expected {expected!r}, the page has {found!r}")


def opened(page: Page, url: str, **settings: object) -> None:
    """Opens the page with these settings."""
    page.goto(url)
    until(page, "document.querySelector('[name=temperature]').placeholder !== ''")
    configure(page, **settings)


def configure(page: Page, **settings: object) -> None:
    page.evaluate("document.getElementById('controls').open = true")
    for name, value in settings.items():
        page.fill(f"#controls [name={name}], #controls #{name}", str(value))
    page.evaluate("document.getElementById('controls').open = false")


def opened_chat(page: Page, url: str, *messages: dict[str, Any]) -> None:
    """Opens a chat of these messages, as the browser keeps it."""
    page.goto(url)
    page.evaluate(
        """async (messages) => {
            const { addChat, chatOf } = await import("/static/store.js");
            const turn = (message) => ({ message, reason: message.tool_calls ? "tool_calls" : "stop" });
            const { chat, turns } = chatOf(messages.map(turn), { id: "1", created: 1 });
            await addChat(chat, turns);
            location.hash = "#1";
        }""",
        messages,
    )
    page.reload()
    page.wait_for_selector(".message")


def new_chat(page: Page) -> None:
    page.click("#new")
    until(page, "document.activeElement.id === 'prompt'")


def open_last(page: Page, n_messages: int) -> None:
    """Opens the last chat of the list."""
    page.locator("#list li button:first-child").last.click()
    until(page, f"document.querySelectorAll('.message').length === {n_messages}")
    until(page, "document.activeElement.id === 'prompt'")


def reloaded(page: Page, n_messages: int) -> None:
    """Reloads the page with a chat whose answers are complete."""
    until(page, KEPT)
    page.reload()
    until(page, f"document.querySelectorAll('.message').length === {n_messages}")


def send(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def answered(page: Page, text: str) -> None:
    """Sends a prompt and waits for the end of its answer."""
    send(page, text)
    page.wait_for_selector("#send:visible")
    assert page.inner_text("#problem") == ""


def refused(page: Page, word: str) -> None:
    """Waits for the end of a request that fails with a message."""
    until(page, f"document.getElementById('problem').textContent.includes('{word}')")
    page.wait_for_selector("#send:visible")


def turns(page: Page) -> list[str]:
    """Texts of the turns, as shown."""
    return page.locator(".message > :is(.text, .markdown)").all_inner_texts()


def show(page: Page, pane: str) -> None:
    """Shows a view, which a narrow window may hide."""
    if not page.is_visible(f"section#{pane}"):
        page.click(f"nav [data-pane={pane}]")


def exported(page: Page, name: str) -> str:
    show(page, "chats")
    with page.expect_download() as download:
        page.click(f"#export-{name}")
    show(page, "chat")
    return Path(download.value.path()).read_text()


def shows_rows(page: Page, *titles: str) -> None:
    """Waits until the list of chats has these titles."""
    becomes(lambda: rows(page), list(titles), page)


def rows(page: Page) -> list[str]:
    """Titles in the list of chats."""
    texts = page.locator("#list li button:first-child").evaluate_all("all => all.map((one) => one.firstChild.data)")
    return [str(text) for text in texts]


def written(page: Page, n_chars: int = 20) -> None:
    """Waits for a part of the last answer."""
    until(page, f"[...document.querySelectorAll('.assistant > .markdown')].at(-1)?.textContent.length > {n_chars}")


def messages(page: Page) -> list[dict[str, Any]]:
    return list(json.loads(exported(page, "json"))["messages"])
