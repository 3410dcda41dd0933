"""Images through the engine: the vision tower, the positions of image rows, and everything that continues after them.
tiny-vl reads numbers and words, counts squares and names shapes. Its projector is stored as Q8_0 here."""

from __future__ import annotations

import functools
import json
import lzma
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_vl
from engines import STEP_COSTS, largest_difference
from lucebox import LLM, _engine
from lucebox.errors import FormatError, InvalidRequestError, ModelNotFoundError, UnsupportedError
from lucebox.models.vision import find_tower
from numpy.typing import NDArray
from PIL import Image
from reference.decoder import Decoder
from reference.vision_tower import VisionTower
from safetensors import safe_open
from safetensors.numpy import save_file
from tolerances import tolerance

EXACT = tolerance("logits", "f32")
PAD = 8194

Ids = NDArray[np.int32]
Golden = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def folder(data: Path) -> Path:
    return data / "tiny-vl"


@pytest.fixture(scope="module")
def golden(folder: Path) -> Golden:
    return dict(np.load(folder / "golden.npz"))


def open_vision(model: Path, mmproj: Path, **options: Any) -> _engine.Engine:
    defaults = {"context": 512, "threads": 1, "activations": "f32", "kv": "f32", "prefill_chunk": 64, "sessions": 8}
    engine = _engine.Engine.open(str(model), mmproj=str(mmproj), **(defaults | options))
    engine.step_costs = STEP_COSTS
    return engine


@pytest.fixture(scope="module")
def engine(folder: Path) -> _engine.Engine:
    return open_vision(tiny_vl.MODEL, tiny_vl.MMPROJ, suffix=True)


def pixels(folder: Path, name: str) -> NDArray[np.uint8]:
    return np.asarray(Image.open(next((folder / "images").glob(f"{name}-*"))).convert("RGB"))


IMAGES = {"p0": ("01",), "p1": ("02", "05"), "p2": ("04",)}


def encoded(engine: _engine.Engine, folder: Path, names: tuple[str, ...]) -> list[_engine.EncodedImage]:
    return [engine.encode_image(name, pixels(folder, name)) for name in names]


def with_images(ids: Ids, images: list[_engine.EncodedImage]) -> Ids:
    """The ids of a golden prompt, whose pads stand for image rows."""
    result = ids.astype(np.int32)
    result[ids == PAD] = np.concatenate([image.ids for image in images])
    return result


@pytest.mark.parametrize("name", ["01", "04", "06", "10"])
def test_the_tower_computes_the_reference(engine: _engine.Engine, folder: Path, name: str) -> None:
    rows = engine.encode_image(name, pixels(folder, name)).rows
    expected = VisionTower(tiny_vl.MMPROJ).rows(pixels(folder, name))
    assert rows.shape == expected.shape
    assert largest_difference(rows, expected) < tolerance("vision", "f32")


@pytest.mark.parametrize("shape", [(32, 32), (32, 416), (352, 64)])
def test_odd_sizes(engine: _engine.Engine, folder: Path, shape: tuple[int, int]) -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    rows = engine.encode_image(f"random {shape}", rgb).rows
    expected = VisionTower(tiny_vl.MMPROJ).rows(rgb)
    assert largest_difference(rows, expected) < tolerance("vision", "f32")


@pytest.mark.parametrize("prompt", IMAGES)
def test_features_are_those_of_transformers(engine: _engine.Engine, folder: Path, golden: Golden, prompt: str) -> None:
    """Of the checkpoint in BF16; the projector here is Q8_0."""
    for k, image in enumerate(encoded(engine, folder, IMAGES[prompt])):
        difference = np.sqrt(np.mean((image.rows - golden[f"{prompt}_features{k}"]) ** 2))
        assert difference < tolerance("vision", "q8_0")


def test_threads_and_instruction_sets_agree(engine: _engine.Engine, folder: Path, isa: str) -> None:
    rows = encoded(engine, folder, ("05",))[0].rows
    other = open_vision(tiny_vl.MODEL, tiny_vl.MMPROJ, isa=isa, threads=2)
    assert largest_difference(encoded(other, folder, ("05",))[0].rows, rows) < tolerance("vision", "f32")


@pytest.fixture(scope="module")
def checkpoint(folder: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of safetensors, one file of which has the same tower as the projector."""
    made, text = tmp_path_factory.mktemp("vision"), data / "tiny-hybrid-hf"
    names = {"v.post_ln": "merger.norm", "mm.0": "merger.linear_fc1", "mm.2": "merger.linear_fc2", "ln1": "norm1"}
    names |= {"v.blk.": "blocks.", "attn_qkv": "attn.qkv", "attn_out": "attn.proj", "ffn_up": "mlp.linear_fc1"}
    names |= {"ffn_down": "mlp.linear_fc2", "ln2": "norm2", "v.patch_embd.bias": "patch_embed.proj.bias"}
    names |= {"v.position_embd": "pos_embed"}
    weights = {key: value.astype(np.float32) for key, value in VisionTower(tiny_vl.MMPROJ).w.items()}
    frames = [weights.pop("v.patch_embd.weight"), weights.pop("v.patch_embd.weight.1")]
    visual = {"patch_embed.proj.weight": np.stack(frames, 2)}
    for key, value in weights.items():
        visual[functools.reduce(lambda name, pair: name.replace(*pair), names.items(), key)] = value
    visual = {f"model.visual.{key}": np.ascontiguousarray(value) for key, value in visual.items()}
    save_file(visual, made / "tower.safetensors")
    with lzma.open(text / "model.safetensors.xz") as packed:
        (made / "text.safetensors").write_bytes(packed.read())
    with safe_open(made / "text.safetensors", "np") as opened:
        in_text = dict.fromkeys(opened.keys(), "text.safetensors")
    index = {"weight_map": in_text | dict.fromkeys(visual, "tower.safetensors")}
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    vision = {"depth": 6, "hidden_size": 192, "num_heads": 3, "intermediate_size": 768, "patch_size": 16}
    vision |= {"spatial_merge_size": 2, "deepstack_visual_indexes": []}
    config = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "vision_config": vision}
    config["text_config"] = json.loads((text / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config))
    return made


def test_a_checkpoint_has_its_tower(engine: _engine.Engine, folder: Path, checkpoint: Path) -> None:
    assert find_tower(None, checkpoint) == str(checkpoint)
    other = open_vision(checkpoint, checkpoint)
    for name in ("01", "05"):
        rows, expected = (encoded(one, folder, (name,))[0].rows for one in (other, engine))
        assert largest_difference(rows, expected) < tolerance("vision", "f32")


@pytest.mark.first_case
@pytest.mark.parametrize("prompt", IMAGES)
@pytest.mark.parametrize("chunk", [7, pytest.param(64, marks=pytest.mark.slow)])  # 1 s
def test_positions_are_those_of_transformers(folder: Path, golden: Golden, prompt: str, chunk: int) -> None:
    """Logits of the fp64 reference at the positions that transformers gave."""
    engine = open_vision(tiny_vl.MODEL, tiny_vl.MMPROJ, prefill_chunk=chunk)
    images = encoded(engine, folder, IMAGES[prompt])
    ids = golden[f"{prompt}_ids"]
    reference = Decoder(tiny_vl.MODEL)
    rows = np.concatenate([image.rows for image in images]).astype(np.float64)
    state = reference.new_state()
    given = (np.flatnonzero(ids == PAD), rows)
    expected = reference.step(ids, state, positions=golden[f"{prompt}_position_ids"], given=given)
    session = _engine.Session(engine)
    session.sync(with_images(ids, images))
    assert largest_difference(session.logits(), expected[-1]) < 10 * EXACT  # logits have a standard deviation of 3
    # The answer goes on at the next position, token by token.
    answer = golden[f"{prompt}_output_ids"]
    at = golden[f"{prompt}_position_ids"][:, -1:] + 1 + np.arange(len(answer))
    expected = reference.step(answer, state, positions=at)
    for n, token_logits in enumerate(expected):
        session.sync(with_images(np.append(ids, answer[: n + 1]), images))
        assert largest_difference(session.logits(), token_logits) < 10 * EXACT
    # So does an append by hand.
    session.sync(with_images(ids, images))
    assert largest_difference(session.append(answer.astype(np.int32))[0], expected) < 10 * EXACT


def decoded(session: _engine.Session, prompt: Ids, n: int = 6) -> list[int]:
    sampler, ids = _engine.Sampler(8448), list(prompt)
    for _ in range(n):
        session.sync(np.asarray(ids, np.int32))
        ids.append(session.sample(sampler))
    return ids[len(prompt) :]


@pytest.mark.parametrize("prompt", IMAGES)
def test_trees_and_batches_give_the_same_answer(
    engine: _engine.Engine, folder: Path, golden: Golden, prompt: str
) -> None:
    ids = with_images(golden[f"{prompt}_ids"], encoded(engine, folder, IMAGES[prompt]))
    session = _engine.Session(engine)
    session.set_drafting(False)
    answer = decoded(session, ids)
    assert answer == [int(i) for i in golden[f"{prompt}_output_ids"]] + answer[len(golden[f"{prompt}_output_ids"]) :]

    session.reset()
    session.set_drafting(True)
    before = session.draft_counts["accepted"]
    sampler, tokens = _engine.Sampler(8448), list(ids)
    for n in range(6):
        if n == 1:  # a tree with the answer in one of two branches
            chain = answer[1:4]
            session.suggest(np.array([chain[0], 9, *chain[1:]], np.int32), [-1, -1, 0, 2])
        session.sync(np.asarray(tokens, np.int32))
        tokens.append(session.sample(sampler))
    assert tokens[len(ids) :] == answer and session.draft_counts["accepted"] - before >= 3

    sessions = [_engine.Session(engine) for _ in range(3)]
    prompts = [ids, np.arange(5, 40, dtype=np.int32), ids[:-3]]
    alone = [decoded(_engine.Session(engine), one) for one in prompts]
    samplers = [_engine.Sampler(8448) for _ in prompts]
    together = [list(one) for one in prompts]
    for _ in range(6):
        _engine.sync_together(sessions, [np.asarray(one, np.int32) for one in together])
        for one, session, its in zip(together, sessions, samplers, strict=True):
            one.append(session.sample(its))
    assert [one[len(p) :] for one, p in zip(together, prompts, strict=True)] == alone


def test_forks_and_pieces_keep_positions(engine: _engine.Engine, folder: Path, golden: Golden) -> None:
    ids = with_images(golden["p1_ids"], encoded(engine, folder, IMAGES["p1"]))
    session, fork, restored = (_engine.Session(engine) for _ in range(3))
    session.sync(ids)
    fork.fork(session)
    n = len(ids)
    ends = [n]
    restored.assemble(ids, ends, 0, [session.share_pages(0, session.n_pages)], session.read_recurrent())
    answer = decoded(session, ids)
    assert decoded(fork, ids) == answer and decoded(restored, np.append(ids, answer[:1]), 5) == answer[1:]
    with pytest.raises(UnsupportedError, match="a session whose prompt has images cannot be saved"):
        session.save()


def test_prefixes_end_where_images_differ(engine: _engine.Engine, folder: Path, golden: Golden) -> None:
    one, other = encoded(engine, folder, ("02",))[0], engine.encode_image("noise", np.full((64, 96, 3), 9, np.uint8))
    second = encoded(engine, folder, ("05",))[0]
    ids = golden["p1_ids"]
    session = _engine.Session(engine)
    session.sync(with_images(ids, [one, second]))
    start = int(np.flatnonzero(ids == PAD)[0])
    assert session.matched_prefix(with_images(ids, [other, second]), [len(ids)]) == start
    assert session.matched_prefix(with_images(ids, [one, second]), [len(ids)]) == len(ids)
    again = engine.encode_image("02", pixels(folder, "02"))
    assert np.array_equal(again.ids, one.ids) and engine.find_image("02") is not None
    assert not set(one.ids) & set(other.ids)


def test_ids_that_are_refused(engine: _engine.Engine, folder: Path) -> None:
    image = encoded(engine, folder, ("05",))[0]
    session = _engine.Session(engine)
    for ids, message in [
        (image.ids[1:], "an image's ids must be complete and in order"),
        (np.append(image.ids[:4], 5), "an image's ids must be complete and in order"),
        (np.array([2**31 - 1], np.int32), "neither in the vocabulary nor of an image"),
        (np.array([9000], np.int32), "token 0 is 9000; the vocabulary has 8448 tokens"),
    ]:
        with pytest.raises(InvalidRequestError, match=message):
            session.sync(ids.astype(np.int32))
    with pytest.raises(InvalidRequestError, match="the vocabulary has 8448 tokens"):
        session.append(image.ids)
    with pytest.raises(InvalidRequestError, match="the vocabulary has 8448 tokens"):
        session.score(np.append(np.int32(1), image.ids))
    session.sync(image.ids[:7])  # a part of a prompt may end within an image
    with pytest.raises(InvalidRequestError, match=r"sides that are multiples of 32, got 33 x 64"):
        engine.encode_image("odd", np.zeros((33, 64, 3), np.uint8))
    with pytest.raises(InvalidRequestError, match="an image has at most 16384 patches, got 16640"):
        engine.encode_image("large", np.zeros((2080, 2048, 3), np.uint8))


def test_the_plan_has_the_tower(folder: Path) -> None:
    model = tiny_vl.MODEL
    with_tower = open_vision(model, tiny_vl.MMPROJ).plan
    names = [name for name, *_ in with_tower["entries"]]
    assert "vision tower" in names and "image buffers" in names
    without = _engine.Engine.open(str(model), context=512).plan
    assert with_tower["mapped_bytes"] - without["mapped_bytes"] > 4_000_000
    assert not {"vision tower", "image buffers"} & {name for name, *_ in without["entries"]}


def test_towers_that_are_refused(folder: Path, data: Path, tmp_path: Path) -> None:
    model, mmproj = tiny_vl.MODEL, tiny_vl.MMPROJ
    with pytest.raises(UnsupportedError, match=r"images are not supported with llama yet; supported: Qwen3\.5"):
        open_vision(data / "tiny" / "llama_a.gguf", mmproj, context=64)
    with pytest.raises(UnsupportedError, match="projector qwen3vl_merger"):
        open_vision(model, model)
    with pytest.raises(FormatError, match=r"mm\.2\.weight\".* has shape \[256, 768\]; expected \[64, 768\]"):
        open_vision(data / "tiny" / "qwen35_a.gguf", mmproj, context=64)
    with pytest.raises(ModelNotFoundError, match=r"mmproj: 'missing\.gguf' is not a file here"):
        find_tower("missing.gguf", model)
    assert find_tower(None, model) == str(mmproj) and find_tower("none", model) is None
    alone = tmp_path / "model.gguf"
    shutil.copy(model, alone)
    assert find_tower(None, alone) is None
    shutil.copy(mmproj, tmp_path / "other-mmproj-F16.gguf")  # of another model
    assert find_tower(None, alone) is None
    for name in ("mmproj-F16.gguf", "Model_mmproj.gguf", "model-Q8_0-mmproj.gguf"):
        shutil.copy(mmproj, tmp_path / name)
        assert find_tower(None, alone) == str(tmp_path / name)
        (tmp_path / name).unlink()


# --- LLM.chat


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(tiny_vl.MODEL, context=512, threads=2, draft="none") as llm:
        yield llm


def ask(llm: LLM, folder: Path, question: dict[str, Any]) -> Any:
    images = [{"type": "image", "image": folder / "images" / name} for name in question["images"]]
    text = [{"type": "text", "text": question["question"]}]
    content = text + images if question["text_first"] else images + text
    return llm.chat([{"role": "user", "content": content}], temperature=0, max_tokens=12)


def test_all_answers_are_right(llm: LLM, folder: Path) -> None:
    questions = json.loads((folder / "questions.json").read_text())
    answers = [ask(llm, folder, question) for question in questions]
    assert [a.text for a in answers] == [q["answer"] for q in questions]
    assert [a.usage.prompt_tokens for a in answers] == [q["prompt_tokens"] for q in questions]


def picture(folder: Path, name: str) -> dict[str, Any]:
    return {"type": "image", "image": next((folder / "images").glob(f"{name}-*"))}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]}


def test_a_conversation_reuses_its_images(llm: LLM, folder: Path) -> None:
    messages = [user(picture(folder, "01"), "What number is in the image?")]
    first = llm.chat(messages, temperature=0)
    messages += [first.message, user(picture(folder, "05"), "What word is in the second image?")]
    second = llm.chat(messages, temperature=0)
    assert (first.text, second.text) == ("70067", "APPLE")
    assert second.usage.cached_tokens >= first.usage.prompt_tokens
    # Another image of the same size shares nothing from the image on.
    other = Image.fromarray(255 - pixels(folder, "01"))
    changed = llm.chat([user({"type": "image", "image": other}, "What number is in the image?")], temperature=0)
    assert changed.usage.cached_tokens < 8


def test_penalties_and_markers(llm: LLM, folder: Path) -> None:
    question = [user(picture(folder, "02"), "What number is in the image?")]
    assert llm.chat(question, temperature=0, repetition_penalty=1.0001, penalty_window=-1).text == "941"
    assert "<|vision_start|><|image_pad|><|vision_end|>What" in llm.render(question)
    spelled = [user("What number is in <|image_pad|>? [image:0123456789abcdef0123456789abcdef]")]
    assert "[image:0123456789abcdef0123456789abcdef]" in llm.render(spelled)
    assert llm.chat(spelled, temperature=0, max_tokens=1).usage.prompt_tokens > 20


def test_requests_that_are_refused(llm: LLM, folder: Path, data: Path) -> None:
    image = picture(folder, "02")
    for messages, message in [
        (
            [{"role": "system", "content": [image]}, user("a")],
            r"messages\[0\]: images are in messages of the",
        ),
        ([user({"type": "image_url", "image_url": 5})], r"messages\[0\]\.content\[0\]\.image_url must have the form"),
        ([user({"type": "image_url", "image_url": {"url": "https://x/y.png"}})], "images are not fetched from URLs"),
        ([user({"type": "image", "image": b"GIF89a"})], r"messages\[0\]\.content\[0\]\.image: not an image"),
        ([user(*[image] * 65)], "the conversation has 65 images; at most 64 are read"),
    ]:
        with pytest.raises(InvalidRequestError, match=message):
            llm.chat(messages)
    with (
        LLM(tiny_vl.MODEL, context=128, mmproj="none", draft="none") as blind,
        pytest.raises(UnsupportedError, match=r"loaded without a vision tower, so it reads only text; .*--mmproj"),
    ):
        blind.chat([user(image, "What number is in the image?")])


def test_drafts_after_an_image(llm: LLM, folder: Path) -> None:
    """Repeated answers are drafted from earlier ones, and stay the same."""
    questions = [user(picture(folder, "01"), "What number is in the image?")] * 3
    with LLM(tiny_vl.MODEL, context=512, threads=2, draft="suffix", draft_budget=4) as drafting:
        drafting_answers, answers = (
            [one.chat([question], temperature=0, max_tokens=12) for question in questions] for one in (drafting, llm)
        )
    assert [a.ids for a in drafting_answers] == [a.ids for a in answers]
    assert sum(a.usage.drafts.accepted_tokens for a in drafting_answers) >= 2


def test_labels_after_an_image(llm: LLM, folder: Path) -> None:
    choice = llm.choose([user(picture(folder, "10"), "What shape is on the left?")], ["circle", "square", "941"])
    answer = llm.chat([user(picture(folder, "02"), "What number is in the image?")], temperature=0)
    numbers = llm.choose([user(picture(folder, "02"), "What number is in the image?")], ["942", "941", "149"])
    assert choice.labels[2].probability < 0.01 and answer.text == "941"
    assert [label.probability > 0.9 for label in numbers.labels] == [False, True, False]


def drawn(number: int) -> Image.Image:
    """A small picture that no other number has."""
    image = Image.new("RGB", (96, 64), (255, 255, 255))
    image.paste((200, 0, 0), (8 + number, 8, 28 + number, 28))
    image.paste((0, 0, 200), (60 - number, 36, 80 - number, 56))
    return image


@pytest.mark.slow  # 2 s: 30 turns
def test_a_long_conversation_computes_only_what_is_new(folder: Path) -> None:
    model = tiny_vl.MODEL
    messages: list[dict[str, Any]] = []
    with LLM(model, context=4096, threads=2, draft="none") as llm:
        previous = 0
        for number in range(30):
            messages.append(user({"type": "image", "image": drawn(number)}, "How many squares are in the image?"))
            answer = llm.chat(messages, temperature=0, max_tokens=4)
            messages.append(answer.message)
            assert answer.usage.cached_tokens >= previous
            previous = answer.usage.prompt_tokens
    with LLM(model, context=4096, threads=2, draft="none", prefix_cache=0) as fresh:
        again = fresh.chat(messages[:-1], temperature=0, max_tokens=4)
    assert again.text == answer.text and again.usage.prompt_tokens == previous and again.usage.cached_tokens == 0
