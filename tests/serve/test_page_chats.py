"""Chats on the page: failed requests, edits, regeneration, what the browser keeps, export, copying, the theme."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from browsing import answered, configure, exported, messages, opened, opened_chat, refused, send, turns, until
from running import WHOLE_CONTEXT, Running, started

if TYPE_CHECKING:
    from playwright.sync_api import Page

TOO_LONG = "word " * 4000


@pytest.fixture(scope="module")
def hasty() -> Iterator[Running]:
    """A server that breaks answers off."""
    with started("--request-timeout", "1", "--allowed-host", "lan.test", context=WHOLE_CONTEXT) as running:
        yield running


def test_a_failed_request_changes_nothing(page: Page, server: Running) -> None:
    opened(page, server.url, max_tokens=3)
    send(page, TOO_LONG)
    refused(page, "context")
    assert page.input_value("#prompt") == TOO_LONG
    assert turns(page) == []
    assert page.locator("#list li").count() == 0
    answered(page, "Hello")
    before = turns(page)
    assert len(before) == 2

    configure(page, temperature=-1)
    page.click("text=Regenerate")
    refused(page, "temperature")
    assert turns(page) == before

    configure(page, temperature="", tools="[")
    page.click("text=Edit")
    send(page, "Goodbye")
    refused(page, "not JSON")
    assert turns(page) == before
    assert page.input_value("#prompt") == "Goodbye"
    assert page.is_visible("#editing")

    configure(page, tools="")
    page.press("#prompt", "Enter")
    page.wait_for_selector("#send:visible")
    assert [turn["content"] for turn in messages(page)][::2] == ["Goodbye"]


def test_a_request_stopped_before_its_answer_changes_nothing(page: Page, patient: Running) -> None:
    opened(page, patient.url)
    patient.process.send_signal(signal.SIGSTOP)
    try:
        send(page, "Hello")
        page.wait_for_selector("#stop:visible")
        page.fill("#prompt", "typed meanwhile")
        page.click("#stop")
        page.wait_for_selector("#send:visible")
    finally:
        patient.process.send_signal(signal.SIGCONT)
    assert turns(page) == []
    assert page.input_value("#prompt") == "Hello\n\ntyped meanwhile"
    assert page.inner_text("#problem") == ""


def test_an_answer_that_breaks_off_is_kept_with_its_error(page: Page, hasty: Running) -> None:
    opened(page, hasty.url, temperature=2, max_tokens=8000, seed=1)
    send(page, "Tell me everything.")
    page.wait_for_selector(".assistant .problem")
    page.wait_for_selector("#send:visible")
    text, problem = turns(page)[1], page.inner_text(".assistant .problem")
    assert len(text) > 20
    assert problem
    page.reload()
    page.wait_for_selector(".assistant .problem")
    assert turns(page)[1] == text
    assert page.inner_text(".assistant .problem") == problem
    assert page.inner_text(".assistant .note").startswith("failed")


def test_edited_and_regenerated_turns_replace_what_follows(page: Page, server: Running) -> None:
    sent: list[Any] = []
    page.on("request", lambda one: sent.append(json.loads(one.post_data)["messages"]) if one.post_data else None)
    opened(page, server.url, temperature=0, max_tokens=3)
    answered(page, "one")
    answered(page, "two")
    kept = messages(page)
    page.locator(".user").last.locator("text=Edit").click()
    assert page.input_value("#prompt") == "two"
    assert page.locator(".replaced").count() == 2
    page.press("#prompt", "Escape")
    assert page.locator(".replaced").count() == 0
    assert page.input_value("#prompt") == ""

    page.locator(".user").last.locator("text=Edit").click()
    answered(page, "three")
    assert sent[-1] == [*kept[:2], {"role": "user", "content": "three"}]
    assert len(turns(page)) == 4

    page.locator(".assistant").first.locator("text=Regenerate").click()
    page.wait_for_selector("#send:visible")
    assert sent[-1] == kept[:1]
    assert messages(page) == kept[:2]


def test_chats_survive_a_reload(page: Page, server: Running) -> None:
    opened(page, server.url, temperature=0, max_tokens=12, system="Be brief.")
    answered(page, "Once upon a time")
    answered(page, "and then")
    first, kept = turns(page), messages(page)
    page.reload()
    until(page, "document.querySelectorAll('.message').length === 4")
    assert turns(page) == first
    assert messages(page) == kept
    assert page.input_value("[name=max_tokens]") == "12"
    assert page.input_value("#system") == "Be brief."
    answered(page, "the end")
    assert messages(page)[:4] == kept

    page.click("#new")
    assert turns(page) == []
    answered(page, "<b>second</b>")
    titles = page.locator("#list button:first-child")
    until(page, "document.querySelectorAll('#list li').length === 2")
    assert titles.first.inner_text().startswith("<b>second</b>")  # the last used first, as text
    titles.last.click()
    until(page, "document.querySelectorAll('.message').length === 6")

    page.on("dialog", lambda dialog: dialog.accept())
    page.click("#list li:has([aria-current]) [aria-label^=Delete]")
    until(page, "document.querySelectorAll('#list li').length === 1")
    assert turns(page) == []
    page.reload()
    until(page, "document.querySelectorAll('#list li').length === 1")


def test_a_prompt_without_an_answer_survives_a_reload(page: Page, patient: Running) -> None:
    opened(page, patient.url)
    patient.process.send_signal(signal.SIGSTOP)
    try:
        send(page, "Hello")
        page.wait_for_selector("#stop:visible")
        until(page, "document.querySelectorAll('#list li').length === 1")
    finally:
        patient.process.send_signal(signal.SIGCONT)
    page.reload()
    until(page, "document.getElementById('prompt').value === 'Hello'")
    assert turns(page) == []


def test_calls_ask_for_their_results_until_there_is_an_answer(page: Page, server: Running) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    chat = [{"role": "user", "content": "sun?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "a", "content": "rain"}
    opened_chat(page, server.url, *chat, result)
    configure(page, temperature=-1, max_tokens=3)
    page.fill(".message textarea", "rain")
    page.click("text=Send results")
    refused(page, "temperature")
    assert messages(page) == chat
    configure(page, temperature=0)
    assert page.input_value(".message textarea") == "rain"
    page.click("text=Send results")
    page.wait_for_selector("#send:visible")
    until(page, "document.querySelectorAll('.assistant').length === 2")
    assert messages(page)[:3] == [*chat, result]
    assert page.locator(".message form").is_hidden()


def test_export(page: Page, server: Running) -> None:
    opened(page, server.url, temperature=0, max_tokens=12)
    answered(page, "Once upon a time")
    question, answer = messages(page)
    assert (
        exported(page, "markdown")
        == f"## User\n\n{question['content']}\n\n## Assistant\n\n{answer['content'].strip()}\n"
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "lan.test"])
def test_code_is_copied(page: Page, hasty: Running, host: str) -> None:
    """Also where the browser offers no clipboard: pages without TLS that are not loopback."""
    opened(page, hasty.url.replace("127.0.0.1", host))
    assert page.evaluate("isSecureContext") == (host == "127.0.0.1")
    page.evaluate(
        """async () => {
            const { MarkdownView } = await import("/static/markdown.js");
            new MarkdownView(document.getElementById("messages")).show("```py\\nif a:\\n\\tb <i>\\n```");
        }"""
    )
    page.click(".code button")
    until(page, "document.querySelector('.code button').textContent === 'Copied'")
    page.click("#prompt")
    page.keyboard.press("Control+V")
    assert page.input_value("#prompt") == "if a:\n\tb <i>"


def test_the_theme_is_chosen_and_kept(page: Page, server: Running) -> None:
    page.emulate_media(color_scheme="light")
    opened(page, server.url)
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.click("#theme")  # light
    assert page.evaluate(colour) == light
    page.click("#theme")
    dark = page.evaluate(colour)
    assert dark != light
    page.reload()
    assert page.evaluate(colour) == dark
    assert page.inner_text("#theme") == "dark"
    page.click("#theme")  # the system's again
    assert page.evaluate(colour) == light
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(colour) == dark
