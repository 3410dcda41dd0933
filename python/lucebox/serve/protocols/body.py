"""Base classes of all request bodies: types are strict, unknown options are refused, and harmless fields are accepted
and reported as ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from lucebox.chat.presence import check_present
from lucebox.errors import InvalidRequestError
from lucebox.images import ImageSource, image_of_url
from lucebox.images.fetch import FETCHER
from lucebox.images.source import image_of_base64
from lucebox.serve.errors import ApiError

__all__ = [
    "MAX_NAMED",
    "Bias",
    "Biases",
    "Body",
    "CacheHint",
    "Carried",
    "Ignored",
    "ImagePart",
    "Many",
    "Name",
    "ResultPart",
    "Sampled",
    "Stop",
    "Stops",
    "Texts",
    "image_at",
    "image_from_base64",
    "sampling_of",
    "shown_name",
    "stops_of",
    "token_biases",
    "with_images",
]

Ignored = Annotated[Any, Field(description="Accepted and ignored.", json_schema_extra={"x-ignored": True})]
"""A field without effect; the response header `lucebox-ignored` names it."""

CacheHint = Annotated[Any, Field(description="Accepted: the prefix of every prompt is cached without it.")]

MAX_NAMED = 32
"""Ignored fields that the response header names. Clients choose the names inside messages."""

MAX_FIELDS = 1000
"""Members of an object with fields. A schema, or the arguments of a call, may have more."""

T = TypeVar("T")
Many = Annotated[list[T], Field(fail_fast=True)]
"""A list that may be long: its validation ends at the first error, because each error costs more than an item."""

Name = Annotated[str, Field(max_length=512)]
Stop = Annotated[str, Field(min_length=1, max_length=4096)]
Stops = Annotated[list[Stop], Field(max_length=64, fail_fast=True)]


class Body(BaseModel):
    """Base of requests and their parts. A field that is null is absent, because SDKs send all their optional ones."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > MAX_FIELDS:  # each unknown one costs more than its bytes
            raise ValueError(f"it has {len(data)} members, more than {MAX_FIELDS}")
        if isinstance(data, dict) and None in data.values():
            required = _required(cls)
            return {name: value for name, value in data.items() if value is not None or name in required}
        return data

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        reference = handler(core_schema)
        schema = handler.resolve_ref_schema(reference)
        if schema.get("additionalProperties") is False:
            schema["additionalProperties"] = {"type": "null"}
        for name, field in schema.get("properties", {}).items():
            if name not in _required(cls) and {"type": "null"} not in field.get("anyOf", ()):
                schema["properties"][name] = {"anyOf": [field, {"type": "null"}]}
        return reference

    def ignored(self) -> list[str]:
        """The ignored fields that were sent: paths without indices."""
        found: set[str] = set()
        _collect_ignored(self, "", found)
        return sorted(found)[:MAX_NAMED]


class Carried(Body):
    """A message or a part of one. Clients send back what they were sent, with fields of their own, which are ignored:
    parsed forms, ids, times, what other servers' answers had."""

    model_config = Body.model_config | {"extra": "allow"}


@cache
def _required(body: type[Body]) -> frozenset[str]:
    return frozenset(info.alias or name for name, info in body.model_fields.items() if info.is_required())


@cache
def _ignored_fields(body: type[Body]) -> frozenset[str]:
    extras = {name: info.json_schema_extra for name, info in body.model_fields.items()}
    return frozenset(name for name, extra in extras.items() if isinstance(extra, dict) and extra.get("x-ignored"))


def shown_name(name: str) -> str:
    """A client-chosen name, sanitised for a header."""
    return quote(name, safe="")[:64]


def _collect_ignored(body: Body, prefix: str, found: set[str]) -> None:
    """Adds the paths of the ignored fields of a body and of the messages in it."""
    ignored = _ignored_fields(type(body))
    found.update(prefix + shown_name(name) for name in body.model_extra or ())
    for name in body.model_fields_set:
        value = getattr(body, name)
        if name in ignored:
            found.add(prefix + name)
        elif isinstance(value, Carried):
            _collect_ignored(value, f"{prefix}{name}.", found)
        elif isinstance(value, list):
            for one in value:
                if isinstance(one, Carried):
                    _collect_ignored(one, f"{prefix}{name}.", found)


class ResultPart(Body):
    """A part of a tool's result that is not text. The model sees a placeholder, so that the conversation goes on."""

    model_config = Body.model_config | {"extra": "allow"}
    type: Literal[
        "image",
        "image_url",
        "input_image",
        "file",
        "input_file",
        "document",
        "input_audio",
        "audio",
        "search_result",
        "tool_reference",
    ]

    @property
    def text(self) -> str:
        return f"[{self.type}: not shown, the model reads only text]"

    def image(self, where: str) -> ImageSource | None:
        """The image, if the part has it as base64; None: a part of another kind, or a URL, which stays a placeholder.

        Raises:
            ApiError: the base64 is damaged or too long.
        """
        given: Any = self.model_extra or {}
        source, url = given.get("source"), given.get("image_url")
        if self.type == "image" and isinstance(source, dict) and source.get("type") == "base64":
            return image_from_base64(str(source.get("data")), where, self.text)
        url = url.get("url") if isinstance(url, dict) else url
        if self.type in ("image_url", "input_image") and isinstance(url, str) and url.startswith("data:"):
            return _image_from_url(url, where, self.text)
        return None


class ImageUrl(Carried):
    url: str
    detail: Ignored = None


class ImagePart(Carried):
    """An image of a user's message, in OpenAI's chat completions or responses."""

    type: Literal["image_url", "input_image"]
    image_url: str | ImageUrl | None = Field(
        None, description="A data URL with base64, or with --allow-fetch an https URL."
    )
    detail: Ignored = None

    @model_validator(mode="after")
    def _has_url(self) -> ImagePart:
        if self.image_url is None:
            raise ValueError("image_url is missing: send the image as data:image/png;base64,...")
        return self

    def image(self, where: str) -> ImageSource:
        """The image, fetched if the server allows it.

        Raises:
            ApiError: not a data URL, or its base64 is damaged or too long; or it cannot be fetched.
        """
        assert self.image_url is not None
        return image_at(self.image_url if isinstance(self.image_url, str) else self.image_url.url, where)


def image_at(url: str, where: str) -> ImageSource:
    """The image of a data URL, or of an https URL if the server fetches those.

    Raises:
        ApiError: not a data URL, or its base64 is damaged or too long; or it cannot be fetched.
    """
    if (fetcher := FETCHER.get()) is None or not url.startswith(("https://", "http://")):
        return _image_from_url(url, where)
    check_present()
    try:
        return ImageSource(fetcher.fetch(url, where), where)
    except InvalidRequestError as error:
        raise ApiError("invalid", str(error), where) from None


def image_from_base64(data: str, where: str, placeholder: str = "") -> ImageSource:
    """`image_of_base64`.

    Raises:
        ApiError: the base64 is damaged or too long.
    """
    try:
        return image_of_base64(data, where, placeholder)
    except InvalidRequestError as error:
        raise ApiError("invalid", str(error), where) from None


def _image_from_url(url: str, where: str, placeholder: str = "") -> ImageSource:
    try:
        return image_of_url(url, where, placeholder)
    except InvalidRequestError as error:
        raise ApiError("invalid", str(error), where) from None


def with_images(message: dict[str, Any], parts: str | Sequence[Any] | None, where: str) -> dict[str, Any]:
    """The message with the texts of its parts as content, a marker in place of each image, and the images.

    Raises:
        ApiError: an image is malformed.
    """
    if parts is None or isinstance(parts, str):
        return {**message, "content": parts or ""}
    texts, images = [], []
    for i, part in enumerate(parts):
        source = part.image(f"{where}.content.{i}") if isinstance(part, ImagePart | ResultPart) else None
        texts.append(part.text if source is None else source.marker)
        images += [] if source is None else [source]
    return {**message, "content": "".join(texts), **({"images": images} if images else {})}


class Sampled(Body):
    """Sampling parameters. Absent ones take the model's recommended values."""

    temperature: float | None = Field(None, ge=0, le=100, description="0 is greedy.")
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=2**31 - 1, description="0 keeps all tokens.")


def _bounded(data: Any) -> Any:
    if isinstance(data, dict) and len(data) > MAX_FIELDS:
        raise ValueError(f"it has {len(data)} members, more than {MAX_FIELDS}")
    return data


Bias = Annotated[float, Field(ge=-100, le=100)]
Biases = Annotated[dict[str, Bias], BeforeValidator(_bounded)]
Texts = Annotated[dict[str, str], BeforeValidator(_bounded)]


class OpenAISampled(Sampled):
    """The sampling parameters of OpenAI's chat and text completions, and lucebox's own."""

    min_p: float | None = Field(None, ge=0, le=1)
    typical_p: float | None = Field(None, gt=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    penalty_window: int | None = Field(None, ge=-1, le=2**31 - 1, description="Tokens that repetition_penalty covers.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: Biases | None = Field(None, description="Added to the logits of these token ids.")
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    ignore_eos: bool | None = Field(None, description="Continue after the model's end-of-sequence tokens.")


def sampling_of(body: Sampled) -> dict[str, Any]:
    """The fields of `Sampling` that were sent."""
    names = [*OpenAISampled.model_fields] if isinstance(body, OpenAISampled) else [*Sampled.model_fields]
    given = {name: value for name in names if (value := getattr(body, name)) is not None}
    if "logit_bias" in given:
        given["logit_bias"] = token_biases(given["logit_bias"])
    return given


def token_biases(biases: Mapping[str, float]) -> dict[int, float]:
    """Biases by token id.

    Raises:
        ApiError: a key is no token id.
    """
    try:
        found = {int(token): bias for token, bias in biases.items()}
    except ValueError:
        raise ApiError("invalid", "the keys of logit_bias must be token ids", "logit_bias") from None
    if any(not 0 <= token < 2**31 for token in found):
        raise ApiError("invalid", "a key of logit_bias is not a token id", "logit_bias")
    return found


def stops_of(stop: str | list[str] | None) -> tuple[str, ...]:
    return () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
