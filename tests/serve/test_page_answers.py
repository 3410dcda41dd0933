"""Answers on the page: they go on without it, say that they were cut, are continued, and have branches beside them."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from browsing import (
    ENDED,
    answered,
    becomes,
    configure,
    messages,
    new_chat,
    open_last,
    opened,
    reloaded,
    send,
    show,
    shows_rows,
    turns,
    until,
    written,
)
from running import Running

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

# Whether the browser keeps a part of an answer.
PART_KEPT = """import("/static/store.js").then((store) => store.unfinishedTurns())
    .then((turns) => turns.some(({ message }) => message.content.length > 100))"""


@pytest.fixture
def sent(tab_of_width: Page) -> list[Any]:
    """Bodies of the page's requests."""
    bodies: list[Any] = []
    tab_of_width.on("request", lambda one: bodies.append(json.loads(one.post_data)) if one.post_data else None)
    return bodies


@pytest.mark.slow  # 3 s each
def test_an_answer_goes_on_when_its_chat_is_left(tab_of_any_width: Page, patient: Running) -> None:
    page = tab_of_any_width
    opened(page, patient.url, temperature=2, max_tokens=8000, seed=1)
    send(page, "Tell me everything.")
    written(page)
    seen = len(turns(page)[1])
    new_chat(page)
    assert turns(page) == []
    assert page.is_visible("#send")
    configure(page, max_tokens=3)
    answered(page, "another")  # on the other slot
    patient.wait_until(running=1)
    show(page, "chats")
    open_last(page, 2)
    written(page, seen + 200)
    assert page.is_visible("#stop")
    page.keyboard.press("Escape")
    until(page, ENDED)
    assert patient.wait_until(running=0)["requests"][-1]["outcome"] == "cancelled"


# A transaction that delays all later ones.
BUSY = """async (ms) => {
    const opening = indexedDB.open("lucebox");
    await new Promise((resolve) => (opening.onsuccess = resolve));
    const store = opening.result.transaction(["chats", "turns"], "readwrite").objectStore("chats");
    const end = Date.now() + ms;
    const wait = () => Date.now() < end && (store.count().onsuccess = wait);
    wait();
}"""


def test_an_answer_goes_on_after_a_reload(tab_of_width: Page, server: Running) -> None:
    """Also where the browser takes long to store: it has the turn before the server is asked."""
    page = tab_of_width
    opened(page, server.url, temperature=2, max_tokens=900, seed=1)
    page.evaluate(BUSY, 1500)
    send(page, "Tell me everything.")
    written(page)
    page.reload()
    until(page, "document.querySelector('.assistant .note')?.textContent.includes('900 tokens')")
    whole = server.openai().chat.completions.create(
        model="tiny-hybrid",
        messages=[{"role": "user", "content": "Tell me everything."}],
        temperature=2,
        max_tokens=900,
        seed=1,
    )
    assert messages(page)[-1]["content"] == whole.choices[0].message.content
    n_requests = len(server.wait_until(running=0)["requests"])
    reloaded(page, 2)
    assert "900 tokens" in page.inner_text(".assistant .note")
    assert len(server.status()["requests"]) == n_requests


@pytest.mark.slow  # 3 s
def test_an_answer_goes_on_in_a_closed_tab_and_another_shows_it(tab_of_width: Page, server: Running) -> None:
    page = tab_of_width
    opened(page, server.url, temperature=2, max_tokens=600, seed=1)
    send(page, "Tell me everything.")
    written(page)
    url, context = page.url, page.context
    other = context.new_page()
    other.goto(url)
    written(other)
    page.close()
    until(other, "document.querySelector('.assistant .note').textContent.includes('600 tokens')")


@pytest.mark.slow  # 3 s
def test_a_cut_answer_says_so(tab_of_width: Page, patient: Running) -> None:
    page = tab_of_width
    opened(page, patient.url, temperature=2, max_tokens=8000, seed=1)
    send(page, "Tell me everything.")
    until(page, PART_KEPT)
    streams: list[str] = []

    def gone(route: Route) -> None:
        streams.append(route.request.url)
        route.fulfill(status=404, json={"error": {"message": "gone"}})

    page.route("**/v1/streams/*", gone)
    page.reload()
    until(page, "document.querySelector('.assistant .problem')?.textContent.includes('cut off')")
    assert len(turns(page)[1]) > 100
    assert page.inner_text(".assistant .note").startswith("failed")
    assert page.is_visible("text=Continue")
    with patient.client() as client:
        client.delete(streams[-1])
    patient.wait_until(running=0)


@pytest.mark.slow  # 3 s
def test_a_broken_connection_is_taken_up_again(tab_of_width: Page, server: Running) -> None:
    page = tab_of_width
    page.add_init_script(
        """
        const fetchAll = window.fetch;
        window.fetch = async (path, options) => {  // the connection of a request breaks after a while
            const response = await fetchAll(path, options);
            if (options?.method !== "POST") return response;
            let n = 0;
            const cut = new TransformStream({ transform(chunk, out) {
                n += chunk.length;
                if (n > 9000) out.error(new TypeError("network error"));
                else out.enqueue(chunk);
            } });
            return new Response(response.body.pipeThrough(cut), response);
        };"""
    )
    opened(page, server.url, temperature=2, max_tokens=300, seed=1)
    answered(page, "Tell me everything.")
    assert "300 tokens" in page.inner_text(".assistant .note")


@pytest.mark.slow  # 3 s
def test_a_request_that_the_server_never_had_returns_its_prompt(tab_of_width: Page, server: Running) -> None:
    page = tab_of_width
    opened(page, server.url)
    page.route("**/v1/streams/*", lambda route: route.fulfill(status=404, json={"error": {"message": "none"}}))
    page.route("**/v1/chat/completions", lambda route: None)  # never answered
    send(page, "Hello")
    page.wait_for_selector("#stop:visible")
    until(page, "document.querySelectorAll('#list li').length === 1")
    page.reload()
    until(page, "document.getElementById('prompt').value === 'Hello'")
    assert turns(page) == []
    show(page, "chats")
    shows_rows(page)


def test_edits_and_regenerated_answers_are_branches(tab_of_width: Page, server: Running, sent: list[Any]) -> None:
    page = tab_of_width
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
    assert sent[-1]["messages"] == [*kept[:2], {"role": "user", "content": "three"}]
    assert len(turns(page)) == 4
    branches = page.locator(".user .branches:visible")
    assert branches.locator("span").inner_text() == "2/2"
    branches.locator("[aria-label^=Previous]").click()
    assert messages(page) == kept
    assert branches.locator("span").inner_text() == "1/2"

    configure(page, temperature=2, seed=5)
    page.locator(".assistant").first.locator("text=Regenerate").click()
    page.wait_for_selector("#send:visible")
    assert sent[-1]["messages"] == kept[:1]
    assert len(messages(page)) == 2
    reloaded(page, 2)
    page.click(".assistant .branches [aria-label^=Previous]")
    until(page, "document.querySelectorAll('.message').length === 4")
    assert [one["content"] for one in messages(page)][2] in ("two", "three")


@pytest.mark.slow  # 3 s
def test_a_cut_answer_is_continued(tab_of_width: Page, server: Running, sent: list[Any]) -> None:
    page = tab_of_width
    opened(page, server.url, temperature=0, max_tokens=8)
    answered(page, "Once upon a time")
    assert page.inner_text(".assistant .note").startswith("length")
    part = messages(page)
    page.click("text=Continue")
    page.wait_for_selector("#send:visible")
    until(page, ENDED)
    assert sent[-1]["messages"] == [part[0], {**part[1], "content": part[1]["content"].rstrip()}]
    whole = messages(page)[1]["content"]
    assert whole.startswith(part[1]["content"].rstrip())
    assert len(whole) > len(part[1]["content"])
    assert page.locator(".message").count() == 2

    configure(page, temperature=-1)
    page.click("text=Continue")
    until(page, "document.getElementById('problem').textContent.includes('temperature')")
    assert messages(page)[1]["content"] == whole.rstrip() or messages(page)[1]["content"] == whole


@pytest.mark.slow  # 3 s
def test_speed_and_context_are_live(tab_of_width: Page, patient: Running) -> None:
    page = tab_of_width
    opened(page, patient.url, temperature=2, max_tokens=8000, seed=1)
    send(page, "Tell me everything.")
    until(page, "/^[0-9.]+ tok\\/s, [0-9]+ tokens$/.test(document.getElementById('speed').textContent)")
    until(page, "/^context [0-9,]+ \\/ 8,192 \\([0-9]+%\\)$/.test(document.querySelector('#fill span').textContent)")
    page.keyboard.press("Escape")
    until(page, ENDED)
    assert page.inner_text(".assistant .note").startswith("stopped")
    used = page.inner_text("#fill span")
    assert page.inner_text("#speed") == ""
    reloaded(page, 2)
    becomes(lambda: page.inner_text("#fill span"), used, page)


def test_a_request_stopped_before_its_answer_changes_nothing(tab_of_width: Page, patient: Running) -> None:
    page = tab_of_width
    opened(page, patient.url)
    patient.process.send_signal(signal.SIGSTOP)
    try:
        send(page, "Hello")
        page.wait_for_selector("#stop:visible")
        page.fill("#prompt", "typed meanwhile")
        page.keyboard.press("Escape")
        page.wait_for_selector("#send:visible")
    finally:
        patient.process.send_signal(signal.SIGCONT)
    assert turns(page) == []
    assert page.input_value("#prompt") == "Hello\n\ntyped meanwhile"
    assert page.inner_text("#problem") == ""
    patient.wait_until(running=0)
