"""The page at "/": its files, an answer, and the live view. Chats: test_page_chats.py."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from browsing import answered, becomes, messages, opened, opened_chat, send, show, until, written
from lucebox import LLM
from lucebox.serve import web_ui
from oracle import plain_text, with_oracle
from running import Running, in_process, started

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

STATIC = Path(web_ui.__file__).parent / "static"
WIDTHS = {390: {"chats", "chat", "live"}, 1024: {"chats", "live"}, 1400: {"live"}, 1920: {"live"}}  # buttons of views


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


def test_nothing_is_loaded_from_elsewhere_nor_made_from_html(server: Running) -> None:
    with server.client() as client:
        files = [file for file in STATIC.iterdir() if file.suffix in (".css", ".js")]
        texts = [client.get(path).text for path in ("/", *(f"/static/{file.name}" for file in files))]
    forbidden = r"https?://\w|//cdn|innerHTML|outerHTML|insertAdjacentHTML|document\.write|parseFromString|srcdoc"
    assert [found for text in texts for found in re.findall(forbidden, text)] == []


def card(page: Page, name: str) -> str:
    return page.inner_text(f'.card[data-name="{name}"] b')


def test_an_answer_streams_and_the_counters_move(page: Page, server: Running) -> None:
    opened(page, server.url, temperature=0, max_tokens=24)
    answered(page, "Once upon a time")
    assert "24 tokens" in page.inner_text(".assistant .note")
    whole = server.openai().chat.completions.create(
        model="tiny-hybrid", messages=[{"role": "user", "content": "Once upon a time"}], temperature=0, max_tokens=24
    )
    assert messages(page)[-1] == {"role": "assistant", "content": whole.choices[0].message.content}
    generated = server.status()["totals"]["generated_tokens"]
    until(page, f"Number(document.querySelector('.card[data-name=\"generated tokens\"] b').textContent) >= {generated}")
    until(page, "document.querySelectorAll('#requests tbody tr').length > 0")
    assert page.inner_text("#model") == "tiny-hybrid"
    becomes(lambda: card(page, "running / slots"), "0 / 2", page)


def test_stop_cancels_on_the_page_and_the_server(page: Page, patient: Running) -> None:
    opened(page, patient.url, temperature=2, max_tokens=8000, seed=1)
    send(page, "Tell me everything.")
    written(page)
    page.click("#stop")
    until(page, "document.querySelector('.assistant .note').textContent.startsWith('stopped')")
    assert patient.wait_until(running=0)["requests"][-1]["outcome"] == "cancelled"
    page.click("text=Regenerate")
    written(page)
    assert page.locator(".assistant").count() == 1
    page.keyboard.press("Escape")
    assert patient.wait_until(running=0)["requests"][-1]["outcome"] == "cancelled"


def test_tool_calls_are_shown_and_answered(page: Page, server: Running) -> None:
    opened(page, server.url)
    page.evaluate(
        """async () => {
            const { AnswerView } = await import("/static/message.js");
            const view = new AnswerView({ sendResults: (results) => (window.given = results) });
            document.getElementById("messages").append(view.element);
            const take = (delta, reason = null) => view.take({ choices: [{ delta, finish_reason: reason }] });
            take({ reasoning_content: "let *me* see" });
            take({ content: "I look." });
            take({ tool_calls: [{ index: 0, id: "a", function: { name: "weather", arguments: "" } }] });
            take({ tool_calls: [{ index: 0, function: { arguments: '{"city":' } }] });
            take({ tool_calls: [{ index: 0, function: { arguments: '"Bonn"}' } }] }, "tool_calls");
            view.end();
            window.message = view.kept().message;
        }"""
    )
    last = page.locator(".assistant").last
    assert last.locator("details").get_attribute("open") is None
    assert last.locator("details em").text_content() == "me"
    assert last.locator(".call b").inner_text() == "weather"
    assert last.locator(".call pre").inner_text() == '{"city":"Bonn"}'
    last.locator("form textarea").fill("rain")
    last.locator("form button").click()
    assert page.evaluate("window.given") == [{"id": "a", "content": "rain"}]
    assert page.evaluate("window.message") == {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "let *me* see",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Bonn"}'}}
        ],
    }


@pytest.mark.slow  # 3 s
def test_the_acceptance_of_drafts_is_live(page: Page) -> None:
    exact: dict[str, Any] = {"context": 512, "threads": 1, "activations": "f32", "kv": "f32"}
    with LLM("tiny-hybrid", draft="none", **exact) as plain:
        prompt = plain.tokenize(plain.render([{"role": "user", "content": "add"}]))
    known = plain_text("tiny-hybrid", prompt, 60, **exact)
    with LLM("tiny-hybrid", draft="suffix", **exact) as llm, in_process(with_oracle(llm, [known], 3)) as url:
        opened(page, url, temperature=0, max_tokens=9)
        until(page, "document.querySelector('.card[data-name=\"tokens per verify\"] b')?.textContent === '\\u2013'")
        answered(page, "add")
        # two verifies at tokens 0 and 4, of three accepted tokens each: eight tokens are computed
        assert "3.00 tokens per step" in page.inner_text(".assistant .note")
        until(page, "document.querySelector('.card[data-name=\"tokens per verify\"] b').textContent === '4.00'")
        until(page, "document.querySelector('#requests tbody tr td:last-child')?.textContent === '4.00'")


@pytest.mark.slow  # 3 s: a server
def test_a_key_unlocks_the_page(page: Page) -> None:
    with started("--api-key", "secret") as guarded:
        page.goto(guarded.url)
        until(page, "document.getElementById('connection').textContent.includes('API key')")
        page.fill("#key", "secret")
        page.press("#key", "Tab")
        until(page, "document.getElementById('model').textContent === 'tiny-hybrid'")
        assert httpx.get(f"{guarded.url}/status").status_code == 401
        page.reload()
        assert page.input_value("#key") == ""  # the browser keeps no key


@pytest.mark.parametrize(
    "width", [pytest.param(width, marks=[pytest.mark.slow] if width > 390 else []) for width in WIDTHS]
)
def test_the_layout_fits(browser: Browser, server: Running, width: int) -> None:
    """Every view is reachable, long code, tables and words stay inside it, and the curve keeps its height."""
    while len(server.status()["requests"]) < 30:  # rows that would press on the curve
        with server.client() as client:
            client.post("/v1/completions", json={"prompt": ["a"] * 16, "max_tokens": 1})
    with browser.new_context(viewport={"width": width, "height": 700}) as context:
        page = context.new_page()
        content = f"```\n{'code ' * 99}\n```\n\n|{'cell|' * 40}\n{'|-' * 40}|\n\n{'word' * 200}\n\n" * 4
        chat = [{"role": role, "content": content} for role in ("user", "assistant")]
        opened_chat(page, server.url, *chat)
        buttons = {view for view in ("chats", "chat", "live") if page.is_visible(f"nav [data-pane={view}]")}
        assert buttons == WIDTHS[width]
        for view in ("chats", "live", "chat"):
            show(page, view)
            assert page.is_visible(f"section#{view}")
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert page.evaluate("document.documentElement.scrollHeight") == 700
            if view == "live":
                until(page, "document.querySelectorAll('#requests tbody tr').length >= 30")
            for pane in ("messages", "live", "list"):
                assert page.evaluate(f"{pane}.scrollWidth <= {pane}.clientWidth"), pane
            if view == "live":
                assert page.evaluate("document.getElementById('curve').getBoundingClientRect().height") > 50
        composer = page.locator("#ask").bounding_box()
        assert composer is not None
        assert composer["y"] + composer["height"] <= 700
        assert page.evaluate("document.getElementById('messages').clientHeight") > 300


@pytest.mark.slow  # 3 s
def test_a_gpu_that_is_not_used_is_on_the_page(page: Page, server: Running) -> None:
    page.goto(server.url)
    until(page, "document.getElementById('model').textContent !== ''")
    assert page.is_hidden("#unused-gpus")
    with LLM("tiny-hybrid", context=256, sessions=1) as llm:
        llm.model.device = replace(llm.model.device, unused_gpus=("cuda:0 is not used: <no pack>",))
        with in_process(llm) as url:
            page.goto(url)
            until(page, "document.getElementById('unused-gpus').textContent !== ''")
            assert page.inner_text("#unused-gpus") == "cuda:0 is not used: <no pack>"


@pytest.mark.slow  # 3 s each
@pytest.mark.parametrize("width", [1400, 1024, 390])
def test_the_servers_panel_is_closed_and_opened(browser: Browser, server: Running, width: int) -> None:
    """Wide windows always have the list, and the panel unless it was closed; a reload keeps that."""
    with browser.new_context(viewport={"width": width, "height": 700}) as context:
        page = context.new_page()
        page.goto(server.url)
        is_wide = width == 1400
        assert page.is_visible("section#live") == (width > 390)
        assert page.is_visible("section#chats") == is_wide
        show(page, "live")
        page.click("#close-panel")
        assert page.is_hidden("section#live")
        assert page.is_visible("section#chat")
        page.reload()
        assert page.is_hidden("section#live")
        assert page.is_visible("section#chats") == is_wide
        page.click("nav [data-pane=live]")
        assert page.is_visible("section#live")


@pytest.mark.slow  # 20 s
def test_the_page_switches_models(page: Page) -> None:
    """The browser keeps the choice; a model that is not in memory is loaded by its first request."""
    flags = ("--slots", "1", "--load", "use")
    with started(*flags, model=["first=tiny-hybrid", "second=tiny-hybrid"]) as several:
        page.goto(several.url)
        until(page, "document.getElementById('models').selectedOptions[0]?.textContent === 'first (unloaded)'")
        page.select_option("#models", "second")
        page.reload()
        until(page, "document.getElementById('models').selectedOptions[0]?.textContent === 'second (unloaded)'")
        assert page.inner_text("#model") == ""
        answered(page, "Once upon a time")
        until(page, "document.getElementById('models').selectedOptions[0].textContent === 'second'")
        until(page, "document.querySelector('[name=temperature]').placeholder !== ''")
        assert several.status()["requests"][-1]["model"] == "second"
        assert {name: one["value"] for name, one in several.status()["models"].items()} == {
            "first": "unloaded",
            "second": "loaded",
        }
