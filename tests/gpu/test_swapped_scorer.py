"""`LLM` with a scorer that is swapped with it, since a memory limit has no room for both: answers, cuts and reused
prefixes are those of both loaded."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from lucebox import LLM
from lucebox.models.planning import plan_memory
from pack_data import install, on_path
from reference.gguf_files import Shape, metadata, tensors, write
from text_data import small_vocabulary

SMALL = {"hidden": 64, "ffn": 64, "n_heads": 2, "n_kv_heads": 1, "head_dim": 64}
TEMPLATE = "{% for m in messages %}<tool>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}<tool>assistant:"
RESERVE = 256 << 20  # the driver's share of a plan


def write_text_model(path: Path, vocab: int, **shape: Any) -> Path:
    """A model that reads bytes. Tokens without a text fill its vocabulary."""
    made = Shape(vocab=vocab, max_context=1024, **SMALL | shape)
    words = small_vocabulary()
    tokens, types = list(words["tokenizer.ggml.tokens"]), list(words["tokenizer.ggml.token_type"])  # type: ignore[call-overload]
    unused = vocab - len(tokens)
    words |= {
        "tokenizer.ggml.tokens": tokens + [f"<unused{i}>" for i in range(unused)],
        "tokenizer.ggml.token_type": types + [5] * unused,
        "tokenizer.chat_template": TEMPLATE,
    }
    return write(path, metadata(made) | words, tensors(made))


def conversation(question: str) -> list[dict[str, Any]]:
    lines = "\n".join(f"{i}: the value of item {i * 7919 % 101}." for i in range(22))
    return [{"role": "user", "content": lines}, {"role": "user", "content": question}]


def answers(llm: LLM) -> list[Any]:
    """Answers around a compressed one, the same once more, and the next turn."""
    first = llm.generate("hello hello", max_tokens=3)
    asked = conversation("hello 7?")
    chats = []
    for messages in (asked, asked, [*asked, {"role": "assistant", "content": "x"}, {"role": "user", "content": "8?"}]):
        chats.append(llm.chat(messages, max_tokens=3, temperature=0))
        assert chats[-1].usage.compression is not None
    again = llm.generate("hello hello", max_tokens=3)
    assert again.ids == first.ids
    return [first.ids, *((one.ids, one.usage.prompt_tokens, one.usage.cached_tokens) for one in chats)]


@pytest.mark.slow  # 30 s: a scorer that reads 540 tokens on the simulator
def test_answers_are_those_of_both_loaded(pack_folder: Path, tmp_path: Path) -> None:
    if pack_folder.name != "lucebox_sim":
        pytest.skip("the limit counts on the simulator's free memory")
    install(tmp_path, "sim", package=False)
    (tmp_path / "lucebox_sim").symlink_to(pack_folder)
    model = write_text_model(tmp_path / "model.gguf", 6001, n_layers=2, recurrent=(True, False), d_state=64)
    scorer = write_text_model(tmp_path / "scorer.gguf", 270, architecture="qwen3", n_layers=1)
    options: dict[str, Any] = {
        "device": "sim", "draft": "none", "context": 768, "prefill_chunk": 64, "sessions": 2,
        "prefill_drafter": str(scorer), "prefill_compression": "always", "prefill_keep_ratio": 0.2,
    }  # fmt: skip
    with on_path(tmp_path):
        with LLM(str(model), **options) as both:
            assert both.compressor is not None and not both.compressor.scorer.is_swapped
            wanted = answers(both)
        alone = plan_memory(model, **options | {"prefill_drafter": None, "prefill_compression": "off"})
        options["memory_limit"] = alone.memory.bytes_with(2) + RESERVE
        with LLM(str(model), **options) as llm:
            assert llm.compressor is not None and llm.compressor.scorer.is_swapped
            plan = plan_memory(model, **options)
            assert plan.scorer is not None and plan.scorer.memory.entries == llm.compressor.scorer.memory_plan.entries
            assert plan.memory.entries == llm.memory_plan.entries
            assert answers(llm) == wanted
            stream = llm.generate("hello hello", max_tokens=6, stream=True)
            next(stream)  # an answer that a score interrupts
            failures: list[BaseException] = []

            def chat() -> None:
                try:
                    assert llm.chat(conversation("hello 7?"), max_tokens=3, temperature=0).ids == wanted[1][0]
                except BaseException as error:
                    failures.append(error)

            thread = threading.Thread(target=chat)
            thread.start()
            *_, last = stream
            thread.join()
            assert not failures, failures
            assert last.result is not None and last.result.ids == llm.generate("hello hello", max_tokens=6).ids
