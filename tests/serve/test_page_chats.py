"""Chats on the page: failed requests, what the browser keeps, search, import and export, files, copying, the theme.
Answers: test_page_answers.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browsing import (
    ENDED,
    KEPT,
    answered,
    becomes,
    configure,
    exported,
    messages,
    new_chat,
    open_last,
    opened,
    opened_chat,
    refused,
    reloaded,
    rows,
    send,
    show,
    shows_rows,
    turns,
    until,
)
from running import WHOLE_CONTEXT, Running, started

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TOO_LONG = "word " * 4000


@pytest.fixture(scope="module")
def hasty() -> Iterator[Running]:
    """A server that breaks answers off."""
    with started(
        "--request-timeout", "1", "--draft", "none", "--allowed-host", "lan.test", context=WHOLE_CONTEXT
    ) as running:
        yield running


@pytest.mark.slow  # 4 s
def test_a_failed_request_changes_nothing(page: Page, server: Running) -> None:
    opened(page, server.url, max_tokens=3)
    send(page, TOO_LONG)
    refused(page, "context")
    assert page.input_value("#prompt") == TOO_LONG
    assert turns(page) == []
    shows_rows(page)
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


@pytest.mark.slow  # 4 s
def test_an_answer_that_breaks_off_is_kept_with_its_error(page: Page, hasty: Running) -> None:
    opened(page, hasty.url, temperature=2, max_tokens=8000, seed=1)
    send(page, "Tell me everything.")
    page.wait_for_selector(".assistant .problem")
    page.wait_for_selector("#send:visible")
    text, problem = turns(page)[1], page.inner_text(".assistant .problem")
    assert len(text) > 20
    assert problem
    reloaded(page, 2)
    assert turns(page)[1] == text
    assert page.inner_text(".assistant .problem") == problem
    assert page.inner_text(".assistant .note").startswith("failed")


def test_chats_survive_a_reload(page: Page, server: Running) -> None:
    opened(page, server.url, temperature=0, max_tokens=12, system="Be brief.")
    answered(page, "Once upon a time")
    answered(page, "and then")
    first, kept = turns(page), messages(page)
    reloaded(page, 4)
    assert turns(page) == first
    assert messages(page) == kept
    assert page.input_value("[name=max_tokens]") == "12"
    assert page.input_value("#system") == "Be brief."
    answered(page, "the end")
    assert messages(page)[:4] == kept

    new_chat(page)
    assert turns(page) == []
    answered(page, "<b>second</b>")
    shows_rows(page, "<b>second</b>", "Once upon a time")  # the last used first, as text
    open_last(page, 6)

    page.on("dialog", lambda dialog: dialog.accept())
    page.click("#list li:has([aria-current]) [aria-label^=Delete]")
    until(page, "document.querySelectorAll('#list li').length === 1")
    assert turns(page) == []
    page.reload()
    until(page, "document.querySelectorAll('#list li').length === 1")


@pytest.mark.slow  # 3 s
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


@pytest.mark.slow  # 3 s
def test_export(page: Page, server: Running) -> None:
    opened(page, server.url, temperature=0, max_tokens=12)
    answered(page, "Once upon a time")
    question, answer = messages(page)
    assert (
        exported(page, "markdown")
        == f"## User\n\n{question['content']}\n\n## Assistant\n\n{answer['content'].strip()}\n"
    )


@pytest.mark.slow  # 3 s each
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
    page.evaluate(
        """() => {  // the button says it for a moment only
            const button = document.querySelector(".code button");
            new MutationObserver(() => (window.said ??= button.textContent)).observe(button, { childList: true });
        }"""
    )
    page.click(".code button")
    until(page, "window.said === 'Copied'")
    page.click("#prompt")
    page.keyboard.press("Control+V")
    becomes(lambda: page.input_value("#prompt"), "if a:\n\tb <i>", page)


@pytest.mark.slow  # 3 s
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


@pytest.mark.slow  # 3 s each
def test_a_chat_has_settings_of_its_own(tab_of_any_width: Page, server: Running) -> None:
    page = tab_of_any_width
    sent: list[Any] = []
    page.on("request", lambda one: sent.append(json.loads(one.post_data)) if one.post_data else None)
    opened(page, server.url, temperature=0, max_tokens=3, system="Be brief.")
    answered(page, "one")
    configure(page, max_tokens=5, system="Rhyme.")
    answered(page, "two")
    assert (sent[-1]["max_tokens"], sent[-1]["messages"][0]["content"]) == (5, "Rhyme.")
    assert page.text_content("#whose") == "of this chat"
    new_chat(page)
    assert page.text_content("#whose") == "of new chats"
    assert page.input_value("#system") == "Be brief."
    configure(page, tools='[{"type": "function", "function": {"name": "f"}}]')
    answered(page, "three")
    assert (sent[-1]["max_tokens"], sent[-1]["messages"][0]["content"]) == (3, "Be brief.")
    assert sent[-1]["tools"][0]["function"]["name"] == "f"
    show(page, "chats")
    open_last(page, 4)
    assert page.input_value("#system") == "Rhyme."
    assert page.input_value("#tools") == ""


@pytest.mark.slow  # 3 s each
def test_search_and_rename(tab_of_any_width: Page, server: Running) -> None:
    page = tab_of_any_width
    for chat in ("apples", "pears"):
        page.goto("about:blank")
        opened(page, server.url, temperature=0, max_tokens=3)
        answered(page, f"I like {chat}")
        if chat == "pears":
            answered(page, f"{'far ' * 40}and plums")
    show(page, "chats")
    shows_rows(page, "I like pears", "I like apples")
    page.keyboard.press("Control+k")
    page.keyboard.type("PLUMS")
    shows_rows(page, "I like pears")
    assert "and plums" in page.inner_text("#list small")
    page.fill("#search", "nothing of this")
    shows_rows(page)
    page.fill("#search", "apples")
    shows_rows(page, "I like apples")
    page.once("dialog", lambda dialog: dialog.accept("Fruit"))
    page.click("#list [aria-label^=Rename]")
    shows_rows(page, "Fruit")
    page.reload()
    show(page, "chats")
    until(page, "document.querySelectorAll('#list li').length === 2")
    assert sorted(rows(page)) == ["Fruit", "I like pears"]


@pytest.mark.slow  # 3 s each
def test_export_and_import_of_all_chats(browser: Browser, tab_of_width: Page, server: Running, tmp_path: Path) -> None:
    page = tab_of_width
    opened(page, server.url, temperature=0, max_tokens=3, system="Be brief.")
    answered(page, "one")
    page.click("text=Regenerate")
    page.wait_for_selector("#send:visible")
    new_chat(page)
    answered(page, "two")
    until(page, KEPT)
    backup = tmp_path / "chats.json"
    backup.write_text(exported(page, "all"))
    with browser.new_context() as context:
        other = context.new_page()
        other.goto(server.url)
        other.set_input_files("#import-file", backup)
        shows_rows(other, "two", "one")
        open_last(other, 2)
        assert other.inner_text(".assistant .branches span") == "2/2"
        assert other.input_value("#system") == "Be brief."
        answered(other, "more")
        other.evaluate("document.getElementById('kept').textContent = ''")
        other.set_input_files("#import-file", backup)  # again: nothing is lost, nothing is there twice
        until(other, "document.getElementById('kept').textContent === 'Imported.'")
        until(other, "document.querySelectorAll('.message').length === 4")
        assert len(rows(other)) == 2

        talk = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
        (tmp_path / "saved.json").write_text(json.dumps({"model": "m", "messages": talk}))
        other.set_input_files("#import-file", tmp_path / "saved.json")
        until(other, "document.querySelectorAll('#list li').length === 3")
        for content in ("[", "{}", '{"messages": [1]}', '{"format": "lucebox-chats", "chats": [{}], "turns": []}'):
            (tmp_path / "bad.json").write_text(content)
            other.set_input_files("#import-file", tmp_path / "bad.json")
            until(other, "document.getElementById('kept').textContent.startsWith('bad.json')")
            other.evaluate("document.getElementById('kept').textContent = ''")
        assert len(rows(other)) == 3


@pytest.mark.slow  # 3 s
def test_text_files_are_attached(tab_of_width: Page, server: Running, tmp_path: Path) -> None:
    page = tab_of_width
    opened(page, server.url, temperature=0, max_tokens=3)
    (tmp_path / "a.py").write_text("x = '```'\n")
    (tmp_path / "b.md").write_text("é")
    (tmp_path / "c.bin").write_bytes(b"\xff\x00")
    (tmp_path / "d.txt").write_text("d" * (1 << 20 | 1))
    page.set_input_files("#picker", [tmp_path / name for name in ("a.py", "b.md", "c.bin", "d.txt")])
    until(page, "document.querySelectorAll('.chip').length === 2")
    assert page.inner_text("#problem").count(":") == 2
    page.click("[aria-label='Remove b.md']")
    page.reload()  # a draft has its files
    until(page, "document.querySelectorAll('.chip').length === 1")
    answered(page, "Explain")
    assert messages(page)[0]["content"] == "Explain\n\na.py\n````\nx = '```'\n````"
    assert page.text_content(".user .file summary") == "a.py"
    assert page.inner_text(".user > .text") == "Explain"
    page.click(".user >> text=Edit")
    assert page.input_value("#prompt") == "Explain"
    assert page.locator(".chip").count() == 1


@pytest.mark.slow  # 3 s
def test_drafts_survive_a_reload(tab_of_width: Page, server: Running) -> None:
    page = tab_of_width
    opened(page, server.url, temperature=0, max_tokens=3)
    answered(page, "one")
    page.fill("#prompt", "typed here")
    new_chat(page)
    page.fill("#prompt", "typed in another")
    page.reload()
    until(page, "document.getElementById('prompt').value === 'typed in another'")
    show(page, "chats")
    page.click("#list li button:first-child")
    until(page, "document.getElementById('prompt').value === 'typed here'")
    answered(page, "two")
    reloaded(page, 4)
    assert page.input_value("#prompt") == ""


@pytest.mark.slow  # 5 s: two tabs
def test_tabs_do_not_overwrite_each_other(tab_of_width: Page, server: Running) -> None:
    page = tab_of_width
    opened(page, server.url, temperature=0, max_tokens=3)
    answered(page, "one")
    until(page, "document.querySelector('.assistant .note').textContent !== ''")
    other = page.context.new_page()
    other.goto(page.url)
    until(other, "document.querySelectorAll('.message').length === 2")
    other.fill("#prompt", "being typed")
    answered(page, "two")
    until(other, "document.querySelectorAll('.message').length === 4")  # the same branch: it follows
    assert other.input_value("#prompt") == "being typed"
    until(other, ENDED)  # it reads the answer too
    other.locator(".user").first.locator("text=Edit").click()
    answered(other, "three")
    until(page, "document.querySelector('.user .branches span').textContent.endsWith('/2')")
    until(page, ENDED)
    page.locator(".user").first.locator("text=Edit").click()
    answered(page, "four")
    until(page, KEPT)
    for tab in (page, other):
        tab.reload()
        until(tab, "document.querySelector('.user .branches span')?.textContent.endsWith('/3')")
    assert len(rows(page)) == 1


@pytest.mark.slow  # 3 s
def test_chats_of_an_earlier_page_are_taken_over(page: Page, server: Running) -> None:
    page.route("**/static/main.js", lambda route: route.fulfill(body="", content_type="text/javascript"))
    page.goto(server.url)
    page.evaluate(
        """() => new Promise((done) => {
            const request = indexedDB.open("lucebox", 1);
            request.onupgradeneeded = () => request.result.createObjectStore("chats", { keyPath: "id" });
            request.onsuccess = () => {
                const turns = [["user", "hello"], ["assistant", "world"]].map(([role, content]) => ({
                    message: { role, content }, reason: "stop", note: "stop · 1 tokens", failure: "",
                }));
                const store = request.result.transaction("chats", "readwrite").objectStore("chats");
                store.put({ id: 1700000000000, updated: 1700000000001, turns }).onsuccess = () => {
                    request.result.close();
                    done();
                };
            };
        })"""
    )
    page.unroute("**/static/main.js")
    page.goto(f"{server.url}/#1700000000000")
    page.reload()
    until(page, "document.querySelectorAll('.message').length === 2")
    assert turns(page) == ["hello", "world"]
    assert page.inner_text(".assistant .note") == "stop · 1 tokens"
    shows_rows(page, "hello")


@pytest.mark.slow  # 3 s each
def test_shortcuts(tab_of_any_width: Page, server: Running) -> None:
    page = tab_of_any_width
    opened(page, server.url, temperature=0, max_tokens=3)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    assert "search the chats" in page.inner_text("#shortcuts")
    page.keyboard.press("Escape")
    page.wait_for_selector("#shortcuts", state="hidden")
    answered(page, "one")
    page.focus("#prompt")
    page.keyboard.type("?")
    assert page.input_value("#prompt") == "?"
    page.fill("#prompt", "")
    page.keyboard.press("ArrowUp")
    assert page.input_value("#prompt") == "one"
    page.keyboard.press("Escape")
    assert page.input_value("#prompt") == ""
    page.keyboard.press("Control+k")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("Control+Shift+O")
    until(page, "document.querySelectorAll('.message').length === 0")
    until(page, "document.activeElement.id === 'prompt'")
