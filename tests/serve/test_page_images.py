"""Images on the page: attached, shown, sent, kept, exported."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from browsing import answered, becomes, exported, messages, opened, refused, reloaded, send, show, turns, until
from PIL import Image
from running import Running

if TYPE_CHECKING:
    from playwright.sync_api import Page

QUESTION = "What number is in the image?"


@pytest.fixture(scope="module")
def image(data: Path) -> Path:
    """An image of the number 941."""
    return data / "tiny-vl" / "images" / "02-number-96x64.png"


def chips(page: Page) -> list[str]:
    return [text.removesuffix("\N{MULTIPLICATION SIGN}") for text in page.locator(".chip").all_inner_texts()]


def thumbnails(page: Page) -> list[tuple[str, int]]:
    """Source and natural width of each image of the transcript, once all are loaded."""
    until(page, "[...document.querySelectorAll('.message img')].every((one) => one.naturalWidth > 0)")
    found = page.locator(".message img").evaluate_all("all => all.map((one) => [one.src, one.naturalWidth])")
    return [(str(source), int(width)) for source, width in found]


def hand_over(page: Page, target: str, event: str, file: Path, kind: str = "image/png") -> None:
    """Pastes or drops a file."""
    page.evaluate(
        """([target, event, name, kind, data]) => {
            const bytes = Uint8Array.from(atob(data), (char) => char.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], name, { type: kind }));
            const made = event === "paste"
                ? new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true })
                : new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true });
            document.querySelector(target).dispatchEvent(made);
        }""",
        [target, event, file.name, kind, base64.b64encode(file.read_bytes()).decode()],
    )


@pytest.mark.slow  # 3 s each
def test_an_image_is_chosen_sent_kept_and_exported(
    tab_of_any_width: Page, seeing: Running, image: Path, tmp_path: Path
) -> None:
    page = tab_of_any_width
    url = f"data:image/png;base64,{base64.b64encode(image.read_bytes()).decode()}"
    opened(page, seeing.url, temperature=0, max_tokens=12)
    page.set_input_files("#picker", image)
    becomes(lambda: chips(page), [image.name], page)
    page.reload()  # a draft has its images
    becomes(lambda: chips(page), [image.name], page)
    answered(page, QUESTION)
    assert turns(page) == [QUESTION, "941"] and chips(page) == []
    assert thumbnails(page) == [(url, 96)]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.click(".images button")
    assert page.get_attribute(".images button", "aria-pressed") == "true"

    reloaded(page, 2)
    assert thumbnails(page) == [(url, 96)]
    kept = messages(page)
    assert kept[0]["content"] == [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": QUESTION},
    ]
    assert f"![Image 1]({url})\n\n{QUESTION}" in exported(page, "markdown")

    page.click(".user >> text=Edit")
    assert chips(page) == ["image 1"] and page.input_value("#prompt") == QUESTION
    answered(page, "Read the number.")  # a branch with the same image
    assert turns(page)[1] == "941" and thumbnails(page) == [(url, 96)]
    page.click(".user [title='Previous branch']")
    assert turns(page)[0] == QUESTION and thumbnails(page) == [(url, 96)]

    backup = tmp_path / "backup.json"
    backup.write_text(exported(page, "all"))
    show(page, "chats")
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("#list [aria-label^=Delete]")
    until(page, "document.querySelectorAll('#list li').length === 0")
    page.set_input_files("#import-file", backup)
    until(page, "document.querySelectorAll('#list li').length === 1")
    page.click("#list li button:first-child")
    until(page, "document.querySelectorAll('.message img').length === 1")
    assert thumbnails(page) == [(url, 96)]


def test_images_are_pasted_dropped_and_removed(
    tab_of_width: Page, seeing: Running, image: Path, tmp_path: Path
) -> None:
    page = tab_of_width
    opened(page, seeing.url, temperature=0, max_tokens=12)
    hand_over(page, "#prompt", "paste", image)
    becomes(lambda: chips(page), [image.name], page)
    hand_over(page, "#messages", "drop", image.with_name("05-word-160x160.png"))
    becomes(lambda: len(chips(page)), 2, page)
    (tmp_path / "damaged.png").write_bytes(image.read_bytes()[:60])
    hand_over(page, "#messages", "drop", tmp_path / "damaged.png")
    until(page, "document.getElementById('problem').textContent.startsWith('damaged.png is damaged')")
    (tmp_path / "a.svg").write_text("<svg/>")
    hand_over(page, "#messages", "drop", tmp_path / "a.svg", "image/svg+xml")
    until(page, "document.getElementById('problem').textContent.includes('is no PNG, JPEG or WebP')")
    page.click(f"[aria-label='Remove {image.name}']")
    assert chips(page) == ["05-word-160x160.png"]
    answered(page, "What word is in the image?")
    assert turns(page)[1] == "APPLE"


@pytest.mark.slow  # 4 s
def test_a_large_image_is_drawn_smaller(page: Page, seeing: Running, tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (1500, 3200, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "large.png")
    opened(page, seeing.url)
    page.set_input_files("#picker", tmp_path / "large.png")
    until(page, "document.querySelectorAll('.chip img').length === 1")
    until(page, "document.querySelector('.chip img').naturalWidth > 0")
    head, _, data = str(page.get_attribute(".chip img", "src")).partition(",")
    with Image.open(io.BytesIO(base64.b64decode(data))) as drawn:
        assert head == "data:image/jpeg;base64" and (1 << 22) * 0.99 < drawn.width * drawn.height <= 1 << 22


@pytest.mark.slow  # 3 s
def test_a_model_without_a_tower(page: Page, server: Running, image: Path) -> None:
    """The prompt returns with its image."""
    opened(page, server.url, max_tokens=3)
    page.set_input_files("#picker", image)
    becomes(lambda: chips(page), [image.name], page)
    send(page, QUESTION)
    refused(page, "vision tower")
    assert chips(page) == ["image 1"] and page.input_value("#prompt") == QUESTION and turns(page) == []


@pytest.mark.slow  # 3 s
def test_an_import_takes_no_images_of_other_sites(page: Page, server: Running, tmp_path: Path) -> None:
    opened(page, server.url)
    file = tmp_path / "chat.json"
    file.write_text(
        '{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "//a/b"}}]}]}'
    )
    page.set_input_files("#import-file", file)
    until(page, "document.getElementById('kept').textContent.includes('has no chats')")
