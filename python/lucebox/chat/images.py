"""Images of messages. A message holds its images under the key "images", and its text has a marker where each one is.
The marker goes through quoting and template like other text; then the vision tokens of the model take its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from lucebox import _engine
from lucebox.chat.presence import check_present
from lucebox.chat.rendering import Message
from lucebox.errors import InvalidRequestError, UnsupportedError
from lucebox.generation.loaded_model import LoadedModel
from lucebox.generation.request import SENDER
from lucebox.images import ImageSource, image_of, image_of_url
from lucebox.images.source import MARKER, MAX_IMAGES
from lucebox.text import Ids

__all__ = ["ImagePlaces", "take_images", "with_markers"]

# An image's text in a prompt, by the family of the vision tower: before its rows, for each row, and after them.
_TEXTS = {
    "qwen3_5": ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    "gemma4": ("\n\n<|image>", "<|image|>", "<image|>\n\n"),
}
_KEY = "images"
_ROLES = ("user", "tool")


def with_markers(messages: Any) -> Any:
    """Messages in OpenAI's form whose image parts have become markers. Malformed messages stay as they are.

    An image part is {"type": "image_url", "image_url": {"url": "data:..."}} or {"type": "image", "image": a path, bytes
    or a Pillow image}.

    Raises:
        InvalidRequestError: an image is malformed, or in a message of another role than user and tool.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        return messages
    return [_with_markers(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _with_markers(message: Any, where: str) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, Sequence) or isinstance(content, str | bytes):
        return message
    parts, images = [], []
    for i, part in enumerate(content):
        source = _source(part, f"{where}.content[{i}]")
        parts.append(part if source is None else {"type": "text", "text": source.marker})
        images += [] if source is None else [source]
    if images and message.get("role") not in _ROLES:
        raise InvalidRequestError(
            f"{where}: images are in messages of the roles user and tool, not {message.get('role')!r}"
        )
    return {**message, "content": parts, _KEY: images} if images else message


def _source(part: Any, where: str) -> ImageSource | None:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "image" and "image" in part:
        return image_of(part["image"], f"{where}.image")
    if kind != "image_url":
        return None
    url = part.get("image_url")
    url = url.get("url") if isinstance(url, Mapping) else url
    if not isinstance(url, str):
        raise InvalidRequestError(f'{where}.image_url must have the form {{"url": "data:image/png;base64,..."}}')
    return image_of_url(url, f"{where}.image_url")


def take_images(messages: Any, *, reads_images: bool) -> tuple[Any, dict[str, ImageSource]]:
    """The messages without their images, and the images by marker. reads_images: whether the model has a vision tower;
    without one, images with a placeholder become that text.

    Raises:
        InvalidRequestError: there are too many images.
    """
    if not any(_KEY in message for message in messages if isinstance(message, Mapping)):
        return messages, {}
    found: list[ImageSource] = []
    rest: list[Message] = []
    for message in messages:
        bare = {key: value for key, value in message.items() if key != _KEY}
        for source in message.get(_KEY, ()):
            if source.placeholder and not reads_images:
                bare["content"] = bare["content"].replace(source.marker, source.placeholder)
            else:
                found.append(source)
        rest.append(bare)
    if len(found) > MAX_IMAGES:
        raise InvalidRequestError(f"the conversation has {len(found)} images; at most {MAX_IMAGES} are read")
    return rest, {source.marker: source for source in found}


def _encoded(model: LoadedModel, source: ImageSource) -> _engine.EncodedImage:
    check_present()
    return model.encode_image(source, SENDER.get())


class ImagePlaces:
    """The images of a rendered prompt, in order."""

    def __init__(self, text: str, sources: Mapping[str, ImageSource], model: LoadedModel) -> None:
        self._texts = _TEXTS[model.processor.kind if model.processor is not None else "qwen3_5"]
        self._sources = sources
        self._order = [sources[marker] for marker in MARKER.findall(text) if marker in sources] if sources else []

    def shown(self, text: str) -> str:
        """The text with vision tokens in place of markers."""
        if not self._sources:
            return text
        return MARKER.sub(lambda found: "".join(self._texts) if found[0] in self._sources else found[0], text)

    def expand(self, ids: Ids, model: LoadedModel) -> tuple[Ids, tuple[_engine.EncodedImage, ...]]:
        """The ids with the ids of each image in place of its pad token, and the images.

        Raises:
            UnsupportedError: the vocabulary has no vision tokens, or the model no tower.
            InvalidRequestError: an image cannot be read.
        """
        if not self._order:
            return ids, ()
        images = tuple(map(partial(_encoded, model), self._order))
        name = self._texts[1]
        pad = model.tokenizer.encode(name, add_bos=False)
        at = np.flatnonzero(ids == pad[0]) if len(pad) == 1 else np.empty(0, np.int64)
        if len(at) != len(self._order):
            raise UnsupportedError(f"{model.info.name} has no token {name}, so its prompts cannot contain images")
        parts, start = [], 0
        for place, image in zip(at, images, strict=True):
            parts += [ids[start:place], image.ids]
            start = place + 1
        return np.concatenate([*parts, ids[start:]]), images
