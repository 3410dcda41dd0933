"""Images of Gemma 4 through the engine: the tower, rows that see their whole image, and everything that continues after
them. Random weights in BF16; features, logits and layers of transformers 5.24 with the same values, computed in fp64.
gemma4_vl_a: images are whole, standardised features. gemma4_vl_b: causal images, token inputs, bounded products."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import largest_difference
from gemma_images import Golden, golden_of, open_gemma
from lucebox import LLM, _engine
from lucebox.errors import FormatError, InvalidRequestError, UnsupportedError
from lucebox.generation.prefix_cache import PrefixCache
from lucebox.generation.prefix_cache.plan import append_ends, around_images
from lucebox.images.processor import Processor, gemma_resize
from lucebox.models.vision import find_tower, tower_info
from PIL import Image
from reference import checkpoints, convert
from tolerances import tolerance

EXACT = 3 * tolerance("logits", "f32")  # logits have a standard deviation of 1.3


@pytest.fixture(scope="module", params=["gemma4_vl_a", "gemma4_vl_b"])
def golden(request: pytest.FixtureRequest, data: Path) -> Golden:
    return golden_of(data, request.param)


@pytest.fixture(scope="module")
def whole(data: Path) -> Golden:
    return golden_of(data, "gemma4_vl_a")


@pytest.fixture(scope="module", params=["safetensors", "gguf"])
def files(request: pytest.FixtureRequest, golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A model and its tower."""
    if request.param == "safetensors":
        return golden.folder, str(golden.folder)
    made = tmp_path_factory.mktemp(golden.folder.name)
    convert.to_projector(golden.folder, made / "mmproj-F32.gguf")
    model = convert.to_gguf(golden.folder, made / "model.gguf")
    found = find_tower(None, model)
    assert found == str(made / "mmproj-F32.gguf")
    return model, found


def test_features_are_those_of_transformers(golden: Golden, files: tuple[Path, str], isa: str) -> None:
    images = golden.encoded(open_gemma(*files, isa=isa))
    for image, expected in zip(images, golden.features, strict=True):
        assert largest_difference(image.rows, expected) < tolerance("vision", "f32")


@pytest.mark.parametrize("chunk", [90, 100, 256])
def test_logits_are_those_of_transformers(golden: Golden, files: tuple[Path, str], chunk: int) -> None:
    """Chunks of 90 and 100 rows would end within an image."""
    engine = open_gemma(*files, prefill_chunk=chunk)
    ids, session = golden.ids_with(golden.encoded(engine)), _engine.Session(engine)
    for end in golden.text_ends():
        session.sync(ids[:end])
        assert largest_difference(session.logits(), golden.logits[end - 1]) < EXACT, end
        session.reset()
    # Token by token after the last image.
    start = int(np.flatnonzero(ids >= _engine.FIRST_IMAGE_ID)[-1]) + 2
    for end in range(start, len(ids) + 1):
        session.sync(ids[:end])
        assert largest_difference(session.logits(), golden.logits[end - 1]) < EXACT, end


def test_threads_and_instruction_sets_agree(whole: Golden, isa: str) -> None:
    one, other = open_gemma(whole.folder, isa=isa), open_gemma(whole.folder, threads=2)
    results = []
    for engine in (one, other):
        session = _engine.Session(engine)
        session.sync(whole.ids_with(whole.encoded(engine)))
        results.append(session.logits())
    assert largest_difference(*results) < EXACT


def test_trees_forks_and_pieces_after_images(golden: Golden) -> None:
    engine = open_gemma(golden.folder)
    ids = golden.ids_with(golden.encoded(engine))
    n = len(ids) - 4
    session = _engine.Session(engine)
    session.sync(ids[:n])
    logits, _ = session.append(np.array([ids[n], 5, ids[n + 1]], np.int32), parents=[-1, 0, 0])
    assert largest_difference(logits[[0, 2]], golden.logits[n : n + 2]) < EXACT
    session.sync(ids[:n])
    fork, restored = _engine.Session(engine), _engine.Session(engine)
    fork.fork(session)
    pages = session.share_pages(0, session.n_pages)
    restored.assemble(ids[:n], [n], 0, [pages], session.read_recurrent(), session.share_windows())
    for other in (fork, restored):
        other.sync(ids)
        assert largest_difference(other.logits(), golden.logits[-1]) < EXACT


def test_the_prefix_cache_keeps_images_whole(whole: Golden) -> None:
    """The bits of a fresh session, whatever is reused; a chunk of 100 would end within the second image."""
    engine = open_gemma(whole.folder, prefill_chunk=100, sessions=3)
    ids = whole.ids_with(whole.encoded(engine))
    longer = np.append(ids, np.arange(3, 90, dtype=np.int32))
    cache, session, fresh = PrefixCache(1 << 30), _engine.Session(engine), _engine.Session(engine)
    assert session.images_are_whole
    *_, n = cache.prefill(session, ids)
    assert n == len(ids) and largest_difference(session.logits(), whole.logits[-1]) < EXACT
    reused, *_ = cache.prefill(session, longer)
    assert reused > 0
    other = _engine.Session(engine)
    assert list(cache.prefill(other, longer))[-1] == list(PrefixCache(0).prefill(fresh, longer))[-1]
    for one in (session, other):
        assert np.array_equal(one.logits().view(np.uint32), fresh.logits().view(np.uint32))


def test_append_ends_avoid_images() -> None:
    ids = np.ones(600, np.int32)
    ids[100:230], ids[500:520] = (_engine.FIRST_IMAGE_ID + np.arange(n, dtype=np.int32) for n in (130, 20))
    ends = append_ends(600, [128, 510], 256)
    assert ends == (128, 256, 448, 512, 600)
    assert around_images(ends, ids) == (100, 230, 256, 448, 500, 520, 600)
    assert around_images(ends[1:], ids, 128) == (256, 448, 500, 520, 600)
    assert around_images((), ids) == ()


def test_prompts_that_are_refused(whole: Golden) -> None:
    engine = open_gemma(whole.folder, prefill_chunk=64)
    ids, session = whole.ids_with(whole.encoded(engine)), _engine.Session(engine)
    session.sync(ids[:20])
    with pytest.raises(InvalidRequestError, match="the prompt ends within an image, whose rows see each other"):
        session.sync(ids[:8])
    with pytest.raises(InvalidRequestError, match=r"an image has 90 rows, .* a prefill_chunk of at least 90, it is 64"):
        session.sync(ids)
    with pytest.raises(InvalidRequestError, match="a side of an image has at most 40 patches, got 42"):
        engine.encode_image("long", np.zeros((12, 168, 3), np.uint8))
    with pytest.raises(InvalidRequestError, match=r"sides that are multiples of 12, got 16 x 24"):
        engine.encode_image("odd", np.zeros((16, 24, 3), np.uint8))


def changed(folder: Path, to: Path, **fields: Any) -> Path:
    """A copy of a checkpoint with another vision_config."""
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"] |= fields
    made = checkpoints.write(to, config, {"x": np.zeros(1, np.float32)})
    shutil.copy(folder / "model.safetensors", made / "model.safetensors")
    return made


def test_towers_that_are_refused(whole: Golden, data: Path, tmp_path: Path) -> None:
    unified = convert.to_projector(whole.folder, tmp_path / "unified.gguf", **{"vision.projector_type": "gemma4uv"})
    with pytest.raises(UnsupportedError, match=r"projector qwen3vl_merger or gemma4v\), not clip, gemma4uv"):
        open_gemma(whole.folder, str(unified))
    projector = str(convert.to_projector(whole.folder, tmp_path / "mmproj.gguf"))
    with pytest.raises(UnsupportedError, match="the vision tower is of another family than the model, qwen35"):
        open_gemma(data / "tiny" / "qwen35_a.gguf", projector)
    for fields, error, message in (
        ({"model_type": "gemma4_unified_vision"}, UnsupportedError, "a vision embedder without layers"),
        ({"head_dim": 12}, UnsupportedError, r"vision_config\.head_dim is 12; supported: 24"),
        ({"pooling_kernel_size": 0}, FormatError, "pooling_kernel_size must be between 1 and 65536, found 0"),
        ({"num_hidden_layers": 2}, FormatError, r"encoder\.layers\.2\..* is not part of this architecture"),
        ({"patch_size": 5}, FormatError, r"input_proj.weight.* has shape \[48, 48\]; expected \[48, 75\]"),
    ):
        folder = changed(whole.folder, tmp_path / str(len(message)), **fields)
        with pytest.raises(error, match=message):
            open_gemma(folder)


def test_what_is_found_and_shown(whole: Golden, data: Path, tmp_path: Path) -> None:
    assert find_tower(None, whole.folder) == str(whole.folder)
    assert find_tower(None, data / "tiny" / "gemma4_a") is None
    info = tower_info(str(whole.folder))
    assert (info.n_layers, info.width) == (3, 48) and info.bytes > 50_000
    projector = tower_info(str(convert.to_projector(whole.folder, tmp_path / "mmproj.gguf")))
    assert (projector.n_layers, projector.width) == (3, 48)


@pytest.mark.parametrize(
    ("size", "rows", "expected"),
    [
        ((1, 1), 280, (768, 768)),
        ((4000, 20), 280, (11328, 48)),
        ((20, 4000), 280, (48, 11328)),
        ((1080, 1920), 280, (576, 1056)),
        ((3024, 4032), 280, (672, 912)),
        ((672, 960), 280, (672, 960)),
        ((100, 37), 280, (1296, 480)),
        ((13000, 10), 280, (13440, 48)),
        ((767, 769), 280, (768, 768)),
        ((2000, 5), 280, (13440, 48)),
        ((100, 37), 70, (624, 240)),
        ((600, 800), 70, (336, 432)),
    ],
)
def test_sizes_are_those_of_transformers(size: tuple[int, int], rows: int, expected: tuple[int, int]) -> None:
    assert gemma_resize(*size, 48, rows) == expected


def test_the_processor_of_a_folder(tmp_path: Path) -> None:
    def read() -> int:
        return Processor.read(tmp_path, "gemma4", 48, 1120).max_pixels // 48**2

    assert read() == 280
    (tmp_path / "processor_config.json").write_text('{"image_processor": {"max_soft_tokens": 560}}')
    assert read() == 560
    (tmp_path / "preprocessor_config.json").write_text('{"max_soft_tokens": 70}')
    assert read() == 70
    for value in ("0", "1121", '"many"'):
        (tmp_path / "preprocessor_config.json").write_text(f'{{"max_soft_tokens": {value}}}')
        with pytest.raises(FormatError, match=r"max_soft_tokens is .*, expected a number from 1 to 1120"):
            read()


# --- LLM.chat

SPECIAL = ["<bos>", "<turn|>", "<|turn>", "<|image>", "<image|>", "<|image|>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] | trim }}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)


@pytest.fixture(scope="module")
def with_text(whole: Golden, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint with a tokenizer of bytes, a chat template and images of at most 70 rows."""
    tokens = [*SPECIAL, *(f"<0x{i:02X}>" for i in range(256)), "\u2581"]
    config = json.loads((whole.folder / "config.json").read_text())
    config["text_config"]["vocab_size"] = len(tokens)
    tensors = convert.values_of(whole.folder / "model.safetensors")
    embedding = "model.language_model.embed_tokens.weight"
    tensors[embedding] = np.resize(tensors[embedding], (len(tokens), 64))
    folder = checkpoints.write(tmp_path_factory.mktemp("chat"), config, tensors)
    added = [{"id": i, "content": token, "special": True, "normalized": False, "single_word": False,
              "lstrip": False, "rstrip": False} for i, token in enumerate(SPECIAL)]  # fmt: skip
    tokenizer = {
        "version": "1.0", "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "byte_fallback": True, "fuse_unk": True, "unk_token": None,
                  "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    text = {"bos_token": "<bos>", "eos_token": "<turn|>", "add_bos_token": True, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(text))
    (folder / "processor_config.json").write_text('{"image_processor": {"max_soft_tokens": 70}}')
    return folder


def test_chat_with_images(with_text: Path) -> None:
    def user(seed: int, text: str) -> dict[str, Any]:
        image = Image.fromarray(np.random.default_rng(seed).integers(0, 256, (100, 100, 3), np.uint8))
        return {"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": text}]}

    with LLM(with_text, context=512, threads=2, draft="none") as llm:
        messages = [user(1, "A number?")]
        shown = "<bos><|turn>user\n\n\n<|image><|image|><image|>\n\nA number?<turn|>\n<|turn>model\n"
        assert llm.render(messages) == shown
        first = llm.chat(messages, temperature=0, max_tokens=4)
        n_text = len(llm.tokenize(shown.removeprefix("<bos>")))
        assert first.usage.prompt_tokens == n_text - 1 + 64  # 8 x 8 rows in place of the pad
        messages += [first.message, user(2, "And here?")]
        second = llm.chat(messages, temperature=0, max_tokens=4)
        assert second.usage.cached_tokens >= first.usage.prompt_tokens
    with LLM(with_text, context=512, threads=2, draft="none", prefix_cache=0) as fresh:
        again = fresh.chat(messages, temperature=0, max_tokens=4)
    assert again.ids == second.ids and again.usage.cached_tokens == 0
