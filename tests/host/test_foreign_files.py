"""Model files as other tools write them: wrappers, tied heads, Ollama's layout, other names, keys that are left out,
parts that are broken and that nothing needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import largest_difference, logits_of, open_engine, random_ids
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from lucebox import LLM, Sampling, _engine
from lucebox.chat import ChatTemplate
from lucebox.errors import FormatError, InvalidRequestError, LuceboxError, UnsupportedError
from lucebox.models.resolve import resolve
from numpy.typing import NDArray
from reference import checkpoints
from safetensors.numpy import load_file

IDS = random_ids(20, 500)
Config = dict[str, Any]
Tensors = dict[str, NDArray[Any]]
Write = Callable[..., Path]


def unchanged(value: Any) -> Any:
    return value


@pytest.fixture
def folder(data: Path, tmp_path: Path) -> Write:
    """Writes the tiny Qwen3.5 checkpoint with a changed configuration, other tensors and more files."""
    source = data / "tiny" / "qwen35_a"

    def write(
        change: Callable[[Config], Config | None] = unchanged,
        tensors: Callable[[Tensors], Tensors] = unchanged,
        files: Mapping[str, str] = {},
    ) -> Path:
        config = json.loads((source / "config.json").read_text())
        path = tmp_path / "model"
        for other in source.glob("token*"):
            path.mkdir(exist_ok=True)
            (path / other.name).write_bytes(other.read_bytes())
        checkpoints.write(path, change(config) or config, tensors(load_file(source / "model.safetensors")))
        for name, text in files.items():
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_text(text)
        return path

    return write


@pytest.fixture
def gguf(data: Path, tmp_path: Path) -> Write:
    """Writes a tiny GGUF model with changed metadata and tensors."""

    def write(
        name: str,
        fields: Mapping[str, Any] = {},
        rename: Callable[[str], str] = unchanged,
        extra: Mapping[str, NDArray[Any]] = {},
    ) -> Path:
        reader = GGUFReader(data / "tiny" / name)
        path = tmp_path / name
        writer = GGUFWriter(path, reader.fields["general.architecture"].contents())
        for field in reader.fields.values():
            if not field.name.startswith("GGUF.") and field.name not in {"general.architecture", *fields}:
                is_array = field.types[0] == GGUFValueType.ARRAY
                inner = field.types[-1] if is_array else None
                writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
        for key, value in fields.items():
            add = {bool: writer.add_bool, str: writer.add_string, int: writer.add_int32, list: writer.add_array}
            add |= {float: writer.add_float32}
            add[type(value)](key, value)
        for tensor in reader.tensors:
            writer.add_tensor(rename(tensor.name), tensor.data, raw_dtype=tensor.tensor_type)
        for tensor_name, array in extra.items():
            writer.add_tensor(tensor_name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def same_logits(path: Path, other: Path) -> None:
    assert np.array_equal(logits_of(open_engine(path), IDS), logits_of(open_engine(other), IDS))


def wrapped(config: Config, **outer: Any) -> Config:
    """The configuration of a multimodal model around a text model's."""
    inner = dict(config, model_type="qwen3_5_text")
    return {"model_type": "qwen3_5", **outer, "text_config": inner}


def renamed(prefix: str, head: str = "") -> Callable[[Tensors], Tensors]:
    def rename(tensors: Tensors) -> Tensors:
        return {
            prefix + name.removeprefix("model.") if name.startswith("model.") else head + name: tensor
            for name, tensor in tensors.items()
        }

    return rename


def without_head(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}


# --- tied heads


def test_a_wrapper_ties(folder: Write) -> None:
    tied = logits_of(open_engine(folder(lambda c: c | {"tie_word_embeddings": True}, without_head)), IDS)

    def change(config: Config) -> Config:
        del config["tie_word_embeddings"]
        return wrapped(config, tie_word_embeddings=True)

    engine = open_engine(folder(change, lambda t: renamed("model.language_model.")(without_head(t))))
    assert engine.info["tied"] and np.array_equal(logits_of(engine, IDS), tied)


@pytest.mark.parametrize(("outer", "inner"), [(False, True), (True, False), (True, True), (False, False)])
def test_a_head_that_differs_is_used(data: Path, folder: Write, outer: bool, inner: bool) -> None:
    def change(config: Config) -> Config:
        return wrapped(config | {"tie_word_embeddings": inner}, tie_word_embeddings=outer)

    path = folder(change, renamed("model.language_model."))
    same_logits(path, data / "tiny" / "qwen35_a")
    assert not open_engine(path).info["tied"]


def test_a_merged_head_is_used(data: Path, folder: Write) -> None:
    same_logits(folder(lambda c: c | {"tie_word_embeddings": True}), data / "tiny" / "qwen35_a")


def test_a_copy_of_the_embedding_is_tied(folder: Write) -> None:
    def copied(tensors: Tensors) -> Tensors:
        return tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].copy()}

    assert open_engine(folder(lambda c: c | {"tie_word_embeddings": True}, copied)).info["tied"]
    assert not open_engine(folder(lambda c: c | {"tie_word_embeddings": False}, copied)).info["tied"]


# --- names and types of tensors


@pytest.mark.parametrize(
    ("prefix", "head"), [("model.language_model.", ""), ("language_model.model.", "language_model."), ("", "")]
)
def test_where_the_text_model_lies(data: Path, folder: Write, prefix: str, head: str) -> None:
    """Wrappers of newer and older transformers; alone, as embedding models of sentence-transformers."""
    same_logits(folder(tensors=renamed(prefix, head)), data / "tiny" / "qwen35_a")


def test_an_embedding_model(folder: Write, tmp_path: Path, data: Path) -> None:
    config, tensors = checkpoints.from_gguf(data / "tiny" / "qwen3_a.gguf")
    tensors = {name.removeprefix("model."): tensor for name, tensor in without_head(tensors).items()}
    engine = open_engine(checkpoints.write(tmp_path / "e", config | {"tie_word_embeddings": True}, tensors))
    assert engine.info["tied"] and engine.info["architecture"] == "qwen3"


def test_types_matter_where_they_are_used(data: Path, folder: Write) -> None:
    parts = {
        "model.visual.pos_ids": np.arange(4),
        "model.visual.mask": np.ones((2, 3), np.bool_),
        "mtp.steps": np.zeros(3, np.uint8),
        "model.visual.scale": np.ones(2, np.float64),
    }
    same_logits(folder(tensors=lambda t: t | parts), data / "tiny" / "qwen35_a")
    used = folder(tensors=lambda t: t | {"model.norm.weight": t["model.norm.weight"].astype(np.float64)})
    with pytest.raises(UnsupportedError, match=r"model\.norm\.weight.* has type F64, which is not supported"):
        open_engine(used)
    with pytest.raises(FormatError, match=r"model\.ids.* is not part of this architecture"):
        open_engine(folder(tensors=lambda t: t | {"model.ids": np.arange(4)}))


def test_ollamas_layout(data: Path, gguf: Write) -> None:
    parts = {
        "v.blk.0.attn_qkv.weight": np.zeros((96, 32), np.float32),
        "v.position_ids": np.arange(4, dtype=np.int32),
        "mm.0.weight": np.zeros((8, 8), np.float16),
        "mtp.fc.weight": np.zeros((8, 8), np.float32),
    }
    fields = {"qwen35.ssm.v_head_reordered": True, "qwen35.rope.mrope_interleaved": True,
              "qwen35.rope.dimension_sections": [2, 1, 1]}  # fmt: skip
    path = gguf("qwen35_a.gguf", fields, lambda name: name.replace("ssm_dt.bias", "ssm_dt"), parts)
    same_logits(path, data / "tiny" / "qwen35_a.gguf")
    with LLM(path, device="cpu", draft="auto") as llm:
        assert llm.draft_label == "suffix"  # mtp.* in GGUF is a layout of Ollama's own
    for key in ("ssm.v_head_reordered", "rope.mrope_interleaved"):
        with pytest.raises(FormatError, match=f"qwen35.{key} is false; convert the model again"):
            open_engine(gguf("qwen35_a.gguf", {f"qwen35.{key}": False}))


def test_keys_that_are_left_out(data: Path, folder: Write) -> None:
    """A wrapper omits the keys of its text model that have the defaults of their class."""

    def change(config: Config) -> Config:
        assert (config["rms_norm_eps"], config["linear_conv_kernel_dim"]) == (1e-6, 4)
        left_out = ["rms_norm_eps", "linear_conv_kernel_dim", "hidden_act", "attention_bias", "max_position_embeddings"]
        for key in left_out:
            del config[key]
        return wrapped(config, tie_word_embeddings=False)

    path = folder(change, renamed("model.language_model."))
    same_logits(path, data / "tiny" / "qwen35_a")
    assert open_engine(path).info["max_context"] == 32768
    with pytest.raises(LuceboxError, match=r"expected \[|is missing"):  # another default than these weights have
        open_engine(folder(lambda c: {key: value for key, value in c.items() if key != "head_dim"}))


# --- parts that nothing needs


@pytest.mark.parametrize("id_beyond", [500, 511])
def test_ids_without_tokens_have_no_text(data: Path, id_beyond: int) -> None:
    with LLM(data / "tiny" / "qwen35_a", device="cpu") as llm:
        wanted = Sampling(max_tokens=3, logit_bias={id_beyond: 100}, ignore_eos=True, logprobs=1)
        result = llm.generate("hello", wanted)
        assert result.ids == (id_beyond,) * 3 and result.text == ""
        assert "".join(chunk.text for chunk in llm.generate("hello", wanted, stream=True)) == ""
        assert llm.detokenize([id_beyond]) == ""


GO = "{{ .System }}{{ if .Prompt }}x{{ end }}"
HI = [{"role": "user", "content": "hi"}]


def test_a_template_that_is_not_jinja(gguf: Write, tmp_path: Path) -> None:
    path = gguf("llama_a.gguf", {"tokenizer.chat_template": GO, "tokenizer.ggml.padding_token_id": -1})
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages[0].content }}!")
    with LLM(path, device="cpu") as llm:
        assert len(llm.generate("a", Sampling(max_tokens=2, ignore_eos=True)).ids) == 2
        assert llm.chat_template is None and "the chat template cannot be used" in llm.notes[0]
        with pytest.raises(UnsupportedError, match=r"has no chat template \(the chat template cannot be .*line 1"):
            llm.chat(HI)
        assert llm.render(HI, template=llm.read_template(own)) == "hi!"


@pytest.mark.parametrize(
    "name", ["generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.json"]
)
@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1, "a": 2}'])
def test_damaged_files_that_nothing_needs(folder: Write, name: str, text: str) -> None:
    with LLM(folder(files={name: text}), device="cpu") as llm:
        assert len(llm.generate("a", Sampling(max_tokens=1, ignore_eos=True)).ids) == 1
        (note,) = llm.notes
        assert name in note and note.endswith("the file is not used")


def test_damaged_templates_in_a_folder(folder: Write) -> None:
    with LLM(folder(files={"chat_template.jinja": GO}), device="cpu") as llm:
        assert llm.chat_template is None and "chat_template.jinja, line 1" in llm.notes[0]


PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
CALLS = (
    "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}"
    "CALL {{ m.tool_calls[0].function.name }}{% elif m.role == 'assistant' %}SAID {{ m.content }}"
    "{% else %}{{ m.content }}{% endif %}|{% endfor %}"
)


def test_tools_and_calls_in_the_templates_own_form(folder: Write) -> None:
    """A template may show the one and not the other."""
    tool = {"type": "function", "function": {"name": "f"}}
    named = {"additional_chat_templates/tool_use.jinja": "TOOLS {{ tools[0].function.name }}\n" + PLAIN}
    with LLM(folder(files={"chat_template.jinja": PLAIN, **named}), device="cpu") as llm:
        assert llm.render(HI, tools=[tool]).startswith("TOOLS f\nuser: hi\n")
        assert llm.render(HI) == "user: hi\n"
    (folder() / "additional_chat_templates" / "tool_use.jinja").unlink()
    call = {"id": "a", "type": "function", "function": {"name": "get", "arguments": "{}"}}
    with LLM(folder(files={"chat_template.jinja": CALLS}), device="cpu") as llm:
        messages = [
            *HI,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "20"},
        ]
        assert llm.render(messages) == "hi|CALL get|20|"
    only_with_tools = "{% if tools %}TOOLS {{ tools[0].function.name }} " + CALLS + "{% else %}" + PLAIN + "{% endif %}"
    with LLM(folder(files={"chat_template.jinja": only_with_tools}), device="cpu") as llm:
        assert llm.render(messages, tools=[tool]).startswith("TOOLS f hi|CALL get|20|")
        # Without tools the template writes no calls, so they are text in the model's dialect.
        assert "user: <tool_response>\n20\n</tool_response>" in llm.render(messages)
        assert '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>' in llm.render(messages)


def test_tools_reach_the_template_as_given(folder: Write) -> None:
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": {"description": "Größe, 大きさ <b>", "name": "f"}},
        {"function": {"name": "g", "strict": True, "parameters": {"required": [], "type": "object"}, "return": {}}},
    ]
    source = "{% for x in tools %}{{ x | tojson }}|{% endfor %}{{ messages[0].content }}"
    with LLM(folder(files={"chat_template.jinja": source}), device="cpu") as llm:
        shown = llm.render(HI, tools=tools).split("|")
    assert [json.loads(one) for one in shown[:2]] == [tools[0], {"type": "function", **tools[1]}]
    assert shown[0] == json.dumps(tools[0], ensure_ascii=False) and shown[2] == "hi"


# --- recommended sampling

RECOMMENDED = {
    '{"top_k": -1, "top_p": 0, "temperature": 0.6}': {"top_k": 0, "temperature": 0.6},
    '{"top_k": 20.0, "top_p": 1.0}': {"top_k": 20, "top_p": 1.0},
    '{"top_k": 0, "repetition_penalty": 0}': {"top_k": 0},
    '{"temperature": -1, "min_p": 2, "typical_p": null}': {"typical_p": None},
    '{"top_k": "20", "top_p": true, "temperature": NaN}': {},
    '{"top_k": 1e12, "temperature": 1e12, "eos_token_id": 2}': {"eos_token_id": 2},
}


@pytest.mark.parametrize("text", RECOMMENDED)
def test_recommended_sampling_out_of_range(folder: Write, text: str) -> None:
    with LLM(folder(files={"generation_config.json": text}), device="cpu") as llm:
        assert dict(llm.generation_defaults) == RECOMMENDED[text]
        dropped = json.loads(text).keys() - RECOMMENDED[text].keys()
        assert {key for key in dropped if any(f": {key} is " in note for note in llm.notes)} == dropped
        assert len(llm.notes) == len(dropped)
        llm.sampler(
            llm.recommended_sampling(template=ChatTemplate("{{ messages[0].content }}", where="here"))[0]
        )  # raises where an option is out of range


def test_the_models_own_sampling_reaches_an_answer(data: Path, folder: Write) -> None:
    """The file's stop string, suppressed tokens and length hold in a request that sets nothing."""
    with LLM(folder(files={"chat_template.jinja": PLAIN}), device="cpu") as llm:
        plain = llm.chat(HI, temperature=0, max_tokens=12, ignore_eos=True)
    first, stop = plain.ids[0], plain.text[4:6]
    own = {"do_sample": False, "suppress_tokens": [first, 1 << 20], "max_new_tokens": 7, "no_repeat_ngram_size": 3}
    path = folder(files={"chat_template.jinja": PLAIN, "generation_config.json": json.dumps(own)})
    with LLM(path, device="cpu") as llm:
        assert any("no_repeat_ngram_size 3" in note for note in llm.notes)
        answer = llm.chat(HI, ignore_eos=True)
        assert len(answer.ids) == 7 and first not in answer.ids
        assert llm.chat(HI, logit_bias={first: 0.0}, ignore_eos=True).ids[0] == first
        sampling, source = llm.recommended_sampling()
        assert sampling == Sampling(logit_bias={first: -100.0}) and source == "the model's own files"
    text = json.dumps({"do_sample": False, "stop_strings": [stop]})
    with LLM(folder(files={"chat_template.jinja": PLAIN, "generation_config.json": text}), device="cpu") as llm:
        answer = llm.chat(HI, max_tokens=12, ignore_eos=True)
        assert (answer.text, answer.stop_string) == (plain.text[: plain.text.index(stop)], stop)


def test_sampling_of_a_gguf_file(gguf: Write) -> None:
    keys = {"temp": 0.25, "penalty_repeat": 1.5, "mirostat": 2}
    path = gguf("llama_a.gguf", {f"general.sampling.{name}": value for name, value in keys.items()})
    with LLM(path, device="cpu") as llm:
        template = ChatTemplate("{{ messages[0].content }}", where="here")
        assert llm.recommended_sampling(template=template)[0] == Sampling(temperature=0.25, repetition_penalty=1.5)
        assert any("mirostat 2" in note for note in llm.notes)


# --- end tokens


def vocabulary(data: Path, texts: Mapping[int, tuple[str, int]]) -> dict[str, Any]:
    """The vocabulary of a tiny model with other tokens (text, type) at some ids."""
    fields = GGUFReader(data / "tiny" / "llama_a.gguf").fields
    tokens = list(fields["tokenizer.ggml.tokens"].contents())
    types = [int(kind) for kind in fields["tokenizer.ggml.token_type"].contents()]
    for i, (text, kind) in texts.items():
        tokens[i], types[i] = text, kind
    return {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}


NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("token", "kind", "ends"),
    [
        ("<|eom_id|>", CONTROL, True),
        ("<|eot_id|>", USER_DEFINED, True),
        ("<|end_of_text|>", NORMAL, True),
        ("<end_of_turn>", USER_DEFINED, True),
        ("<|end|>", CONTROL, True),
        ("<\uff5cend\u2581of\u2581sentence\uff5c>", CONTROL, True),
        ("</s>", CONTROL, True),
        ("</s>", NORMAL, False),  # HTML
        ("<|fim_pad|>", CONTROL, True),
        ("<|repo_name|>", USER_DEFINED, True),
        ("<|file_sep|>", NORMAL, True),
        ("<reponame>", CONTROL, True),
        ("<reponame>", NORMAL, False),  # a word in angle brackets
        ("<|fim_middle|>", CONTROL, False),
    ],
)
def test_tokens_that_end_an_answer_by_text(data: Path, gguf: Write, token: str, kind: int, ends: bool) -> None:
    with LLM(gguf("llama_a.gguf", vocabulary(data, {505: (token, kind)})), device="cpu") as llm:
        result = llm.generate("a", Sampling(max_tokens=2, logit_bias={505: 100}))
        assert result.finish_reason == ("stop" if ends else "length")


def test_tokens_that_end_an_answer_by_id(data: Path, gguf: Write, folder: Write) -> None:
    with LLM(gguf("llama_a.gguf", {"tokenizer.ggml.eos_token_ids": [400, 401]}), device="cpu") as llm:
        assert {400, 401} <= set(llm.end_ids)
    with LLM(gguf("llama_a.gguf", {"tokenizer.ggml.fim_sep_token_id": 402}), device="cpu") as llm:
        assert 402 in llm.end_ids
    with pytest.raises(FormatError, match="eos_token_ids is 99999"):
        LLM(gguf("llama_a.gguf", {"tokenizer.ggml.eos_token_ids": [400, 99999]}), device="cpu")
    path = folder(lambda c: wrapped(c | {"eos_token_id": [7, 9]}, eos_token_id=11), renamed("model.language_model."))
    with LLM(path, device="cpu") as llm:
        assert {7, 9, 11} <= set(llm.end_ids)


# --- folders


def test_split_models_that_lack_a_part(tmp_path: Path) -> None:
    for number in (1, 3, 4):
        (tmp_path / f"m-Q8_0-{number:05}-of-00005.gguf").touch()
    with pytest.raises(LuceboxError, match=r"without a complete GGUF model.*of m-Q8_0 part 2, 5 of 5 is missing"):
        resolve(str(tmp_path))


# --- numbers beyond 32 bits


@pytest.mark.parametrize("number", [1 << 32, 1 << 63, 1 << 70, -(1 << 70)])
def test_numbers_that_are_too_large(data: Path, number: int) -> None:
    path = data / "tiny" / "llama_a.gguf"
    with LLM(path, device="cpu") as llm:
        for sampling in (Sampling(top_k=number), Sampling(penalty_window=number), Sampling(logit_bias={number: 1})):
            with pytest.raises(InvalidRequestError, match=str(number)):
                llm.generate("a", sampling)
        with pytest.raises(InvalidRequestError, match="token ids must be between 0 and 511"):
            llm.generate([number])
        with pytest.raises(InvalidRequestError, match=f"n must be a whole number from 1 to 1024, got {number};"):
            llm.generate("a", n=number)
        assert llm.generate("a", Sampling(seed=number, max_tokens=1, temperature=1)).ids
    for option in ("context", "threads", "prefill_chunk", "draft_budget"):
        with pytest.raises(InvalidRequestError, match=option):
            LLM(path, device="cpu", **{option: number})


# --- temperature towards 0


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-40])
def test_temperatures_towards_0_are_greedy(temperature: float) -> None:
    logits = np.array([1, 30, 29.999, -3e38, 30.5, 30.4999, 12], np.float32)
    for options in ({}, {"top_k": 3}, {"top_p": 0.9, "min_p": 0.1}):
        sampler = _engine.Sampler(len(logits), temperature=temperature, seed=1, **options)
        assert [sampler.sample(logits) for _ in range(20)] == [4] * 20


def test_largest_difference_sees_another_rope(data: Path, folder: Write) -> None:
    """The comparisons above could fail: another configuration has other logits."""
    other = folder(lambda c: c | {"rms_norm_eps": 1e-2})
    a, b = (logits_of(open_engine(path), IDS) for path in (other, data / "tiny" / "qwen35_a"))
    assert largest_difference(a, b) > 0
