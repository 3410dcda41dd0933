"""The served model: its names and limits, and the preparation of requests for the scheduler.

Preparation (template, tokenization, grammar) can take seconds, so the routes run it in worker threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from lucebox.chat.conversation import AnswerFormat, Conversation
from lucebox.chat.conversation_to_request import ChatModel, Grammars, Limits
from lucebox.chat.profiles import Profile
from lucebox.errors import LuceboxError
from lucebox.generation.embedding import Pooling
from lucebox.generation.errors import BusyError
from lucebox.generation.events import PlainText
from lucebox.generation.loaded_model import LoadedModel
from lucebox.generation.request import (
    GenerationRequest,
    PromptTooLongError,
    embedding_request,
    label_request,
    prompt_requests,
)
from lucebox.options import Sampling
from lucebox.serve.engine_errors import RETRY_BUSY_S
from lucebox.serve.errors import ApiError, from_lucebox, overloaded, too_long
from lucebox.serve.settings import ServeSettings

__all__ = ["Limits", "ServedModel", "with_api_errors"]

T = TypeVar("T")


class ServedModel:
    """Turns conversations and raw prompts into GenerationRequests. Safe to share between threads."""

    def __init__(self, loaded: LoadedModel, settings: ServeSettings) -> None:
        self.loaded = loaded
        self.name = settings.model_name or loaded.info.name
        self.context = loaded.memory_plan.context
        self._grammars = Grammars(loaded)
        self._chat = ChatModel(
            loaded,
            self._grammars,
            profile=settings.profile,
            max_tokens=settings.max_tokens,
            template_vars=settings.template_vars(),
        )
        self.profile: Profile = self._chat.profile

    def close(self) -> None:
        """Stops the process that checks grammars."""
        self._grammars.close()

    def count(self, conversation: Conversation) -> int:
        """The number of prompt tokens of a conversation; of one far beyond the context, a lower bound.

        Raises:
            ApiError: the template refuses the conversation.
        """
        try:
            return len(with_api_errors(lambda: self._chat.prompt(conversation)).ids)
        except ApiError as error:
            if error.counts is None:
                raise
            return error.counts[0]

    def chat(
        self,
        conversation: Conversation,
        sampling: Mapping[str, Any],
        limits: Limits,
        endpoint: str,
        n: int = 1,
        *,
        prediction: str = "",
    ) -> list[GenerationRequest]:
        """Requests for n answers to a conversation. prediction: text that the answers are likely to repeat.

        Raises:
            ApiError: the prompt does not fit, or the conversation is invalid.
        """

        def make() -> list[GenerationRequest]:
            expected = self.loaded.expected_ids(prediction)
            requests = self._chat.requests(conversation, sampling, limits, endpoint, n)
            return [replace(request, prediction=expected) for request in requests] if prediction else requests

        return with_api_errors(make)

    def complete(
        self,
        prompt: str | Sequence[int],
        sampling: Mapping[str, Any],
        limits: Limits,
        endpoint: str,
        n: int = 1,
        *,
        answer_format: AnswerFormat | None = None,
        scores_prompt: bool = False,
    ) -> list[GenerationRequest]:
        """Requests for n continuations of a raw prompt.

        Raises:
            ApiError: the prompt does not fit, or a parameter is invalid.
        """
        ids = with_api_errors(lambda: self.loaded.prompt_ids(prompt))
        if not len(ids):
            raise ApiError("invalid", "the prompt has no tokens", "prompt")

        def parts() -> dict[str, Any]:
            constraint, warnings = self._chat.constraint(answer_format) if answer_format else (None, [])
            parser = PlainText(warnings)
            return {"parser": parser, "constraint": constraint, "endpoint": endpoint, "scores_prompt": scores_prompt}

        def make() -> list[GenerationRequest]:
            max_tokens = self._chat.max_answer_tokens(len(ids), limits.max_tokens)
            base = Sampling(**{"temperature": 1.0, **sampling}, max_tokens=max_tokens, stop=limits.stop)
            return prompt_requests(self.loaded, ids, base, n, parts)

        return with_api_errors(make)

    def embed(
        self,
        texts: Sequence[str | Sequence[int]],
        pooling: Pooling | None,
        endpoint: str,
        prompt_name: str | None = None,
    ) -> GenerationRequest:
        """The request for the embeddings of texts.

        Raises:
            ApiError: the model is not made for embeddings, or a text does not fit.
        """

        return with_api_errors(lambda: embedding_request(self.loaded, texts, pooling, prompt_name, endpoint))

    def score(
        self, prompt: Conversation | str | Sequence[int], labels: Sequence[str | Sequence[int]], endpoint: str
    ) -> GenerationRequest:
        """The request for the log probabilities of labels after a prompt.

        Raises:
            ApiError: the prompt does not fit, the conversation is invalid, or a label is empty or too long.
        """

        def make() -> GenerationRequest:
            if isinstance(prompt, Conversation):
                found = self._chat.prompt_of_text(prompt)
                return label_request(self.loaded, found.ids, labels, endpoint, found.images)
            return label_request(self.loaded, self.loaded.prompt_ids(prompt), labels, endpoint)

        return with_api_errors(make)


def with_api_errors(make: Callable[[], T]) -> T:
    """The result of `make`; the library's exceptions become ApiErrors."""
    try:
        return make()
    except BusyError as error:
        raise overloaded(str(error), RETRY_BUSY_S) from error
    except PromptTooLongError as error:
        raise too_long(error.n_tokens, error.context) from error
    except LuceboxError as error:
        raise from_lucebox(error) from error
