"""The page at "/" in a headless browser. Needs Chromium on PATH and the package playwright; the tests of the files need
neither."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from lucebox import LLM
from oracle import plain_text, with_oracle
from running import Running, in_process, started

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def test_files_come_with_their_types_and_policy(server: Running) -> None:
    with server.client() as client:
        index = client.get("/")
        assert index.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in index.headers["content-security-policy"]
        for path in re.findall(r'(?:href|src)="(/[^"]+)"', index.text):
            assert client.get(path).status_code == 200
        assert client.get("/static/main.js").headers["content-type"] == "text/javascript; charset=utf-8"
        assert client.get("/static/../app.py").status_code == 404
        assert client.get("/static/%2e%2e%2fapp.py").status_code == 404


def test_nothing_is_loaded_from_elsewhere(server: Running) -> None:
    with server.client() as client:
        texts = [client.get(path).text for path in ("/", "/static/main.js", "/static/page.css", "/static/live.js")]
    assert not [text for text in texts if re.search(r"https?://|//cdn", text)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on PATH")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh tab in which any script error fails the test."""
    with browser.new_context(viewport={"width": 1200, "height": 800}) as context:
        page = context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if "Content Security" in message.text else None)
        yield page
        assert not errors


def until(page: Page, condition: str) -> None:
    """Waits for a JavaScript expression. The page's policy forbids eval(), so the browser cannot wait by itself."""
    for _ in range(600):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never came true: {condition}; the page says {page.inner_text('body')!r}")


def ask(page: Page, server: Running, text: str, **fields: int) -> None:
    page.goto(server.url)
    until(page, "document.querySelector('[name=temperature]').placeholder !== ''")
    page.click("#controls summary")
    for name, value in fields.items():
        page.fill(f"[name={name}]", str(value))
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def card(page: Page, name: str) -> str:
    return page.inner_text(f'.card[data-name="{name}"] b')


def test_an_answer_streams_and_the_counters_move(page: Page, server: Running) -> None:
    ask(page, server, "Once upon a time", temperature=0, max_tokens=24)
    until(page, "document.querySelector('.assistant .note').textContent.includes('24 tokens')")
    whole = server.openai().chat.completions.create(
        model="tiny-hybrid", messages=[{"role": "user", "content": "Once upon a time"}], temperature=0, max_tokens=24
    )
    assert page.locator(".assistant .text").last.text_content() == whole.choices[0].message.content
    generated = server.status()["totals"]["generated_tokens"]
    until(page, f"Number(document.querySelector('.card[data-name=\"generated tokens\"] b').textContent) >= {generated}")
    until(page, "document.querySelectorAll('#requests tbody tr').length > 0")
    assert page.inner_text("#model") == "tiny-hybrid"
    assert card(page, "running / slots") == "0 / 2"


def test_stop_cancels_on_the_page_and_the_server(page: Page, patient: Running) -> None:
    ask(page, patient, "Tell me everything.", temperature=2, max_tokens=8000, seed=1)
    until(page, "document.querySelector('.assistant .text')?.textContent.length > 20")
    page.click("#stop")
    until(page, "document.querySelector('.assistant .note').textContent.startsWith('stopped')")
    assert patient.wait_until(running=0)["requests"][-1]["outcome"] == "cancelled"
    page.click("#again")
    until(page, "document.querySelector('.assistant .text')?.textContent.length > 20")
    assert page.locator(".assistant").count() == 1
    page.click("#stop")
    page.wait_for_selector("#send:visible")
    page.click("#clear")
    assert page.locator(".message").count() == 0


def test_an_error_is_shown_and_the_chat_continues(page: Page, server: Running) -> None:
    ask(page, server, "word " * 4000)
    page.wait_for_selector(".failure")
    assert "context" in page.inner_text(".failure")
    page.click("#clear")
    page.fill("[name=max_tokens]", "3")
    page.fill("#prompt", "Hello")
    page.press("#prompt", "Enter")
    until(page, "document.querySelector('.assistant .note').textContent.includes('3 tokens')")


def test_text_of_the_model_is_never_markup(page: Page, server: Running) -> None:
    """User text takes the same path."""
    ask(page, server, "<img src=x onerror=alert(1)><b>bold</b>", max_tokens=2)
    page.wait_for_selector(".assistant")
    assert page.locator(".message img, .message b").count() == 0
    assert "<b>bold</b>" in page.inner_text(".user .text")


def test_tool_calls_are_shown_and_answered(page: Page, server: Running) -> None:
    ask(page, server, "unused", max_tokens=1)
    page.wait_for_selector(".assistant .note")
    page.evaluate(
        """async () => {
            const { AnswerView } = await import("/static/message.js");
            const view = new AnswerView(document.getElementById("messages"), (results) => { window.given = results; });
            const take = (delta, reason = null) => view.take({ choices: [{ delta, finish_reason: reason }] });
            take({ reasoning_content: "let me see" });
            take({ content: "I look." });
            take({ tool_calls: [{ index: 0, id: "a", function: { name: "weather", arguments: "" } }] });
            take({ tool_calls: [{ index: 0, function: { arguments: '{"city":' } }] });
            take({ tool_calls: [{ index: 0, function: { arguments: '"Bonn"}' } }] }, "tool_calls");
            view.end();
            window.message = view.message();
        }"""
    )
    last = page.locator(".assistant").last
    assert last.locator("details").get_attribute("open") is None
    assert last.locator(".call b").inner_text() == "weather"
    assert last.locator(".call pre").inner_text() == '{"city":"Bonn"}'
    last.locator("form textarea").fill("rain")
    last.locator("form button").click()
    assert page.evaluate("window.given") == [{"id": "a", "content": "rain"}]
    assert page.evaluate("window.message") == {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "let me see",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Bonn"}'}}
        ],
    }


def test_the_acceptance_of_drafts_is_live(page: Page) -> None:
    exact: dict[str, Any] = {"context": 512, "threads": 1, "activations": "f32", "kv": "f32"}
    with LLM("tiny-hybrid", draft="none", **exact) as plain:
        prompt = plain.tokenize(plain.render([{"role": "user", "content": "add"}]))
    known = plain_text("tiny-hybrid", prompt, 60, **exact)
    with LLM("tiny-hybrid", draft="suffix", **exact) as llm, in_process(with_oracle(llm, [known], 3)) as url:
        page.goto(url)
        until(page, "document.querySelector('.card[data-name=\"tokens per verify\"] b')?.textContent === '\\u2013'")
        page.click("#controls summary")
        page.fill("[name=temperature]", "0")
        page.fill("[name=max_tokens]", "9")
        page.fill("#prompt", "add")
        page.press("#prompt", "Enter")
        # two verifies at tokens 0 and 4, of three accepted tokens each: eight tokens are computed
        until(page, "document.querySelector('.assistant .note').textContent.includes('3.00 tokens per step')")
        until(page, "document.querySelector('.card[data-name=\"tokens per verify\"] b').textContent === '4.00'")
        until(page, "document.querySelector('#requests tbody tr td:last-child')?.textContent === '4.00'")


def test_a_key_unlocks_the_page(page: Page) -> None:
    with started("--api-key", "secret") as guarded:
        page.goto(guarded.url)
        until(page, "document.getElementById('connection').textContent.includes('API key')")
        page.fill("#key", "secret")
        page.press("#key", "Tab")
        until(page, "document.getElementById('model').textContent === 'tiny-hybrid'")
        assert httpx.get(f"{guarded.url}/status").status_code == 401
