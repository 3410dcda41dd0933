"""Profiles of the families, capabilities read from templates, and users' files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lucebox.chat import ChatTemplate
from lucebox.chat.profiles import Profile, profile_for, with_fields
from lucebox.chat.rendering import for_template
from lucebox.errors import FormatError
from lucebox.models.generation_defaults import checked_defaults
from lucebox.options import Sampling
from lucebox.text import Tokenizer
from test_chat_template import CHATML
from test_rendering import LLAMA
from text_data import DATA, small_vocabulary, tiny_tokenizer


def shipped(name: str) -> ChatTemplate:
    return ChatTemplate.from_file(DATA / "templates" / f"{name}.jinja")


def profile(architecture: str, template: ChatTemplate | None, **more: Any) -> Profile:
    return profile_for(architecture, template, tiny_tokenizer(), **more)


def test_qwen35() -> None:
    card = profile("qwen35", shipped("Qwen3.5-4B"))
    assert (card.name, card.dialect, card.takes_tools, card.takes_late_system) == ("qwen3.5", "qwen_xml", True, False)
    assert card.thinking is not None and card.thinking.variable == "enable_thinking"
    assert card.defaults(thinking=True, tools=False) == Sampling(
        temperature=1.0, top_p=0.95, top_k=20, presence_penalty=1.5
    )
    assert card.defaults(thinking=False, tools=False).temperature == 0.7
    for thinking in (False, True):
        assert card.defaults(thinking=thinking, tools=True) == Sampling(temperature=0.6, top_p=0.95, top_k=20)


def test_qwen3() -> None:
    card = profile("qwen3", shipped("Qwen-Qwen3-0.6B"))
    assert (card.name, card.dialect, card.takes_tools, card.takes_late_system) == ("qwen3", "hermes_json", True, True)
    assert card.defaults(thinking=True, tools=True) == Sampling(temperature=0.6, top_p=0.95, top_k=20)


# The efforts, tools, reasoning and calls of gpt-oss's template, shortened.
HARMONY = """<|start|>system<|message|>Reasoning: {{ reasoning_effort or "medium" }}<|end|>
{%- if tools %}<|start|>developer<|message|>{% for tool in tools %}{{ tool.function.name }}{% endfor %}<|end|>
{%- endif %}
{%- set last = namespace(name=none) %}
{%- for message in messages %}
{%- if message.role == "assistant" %}
{%- if message.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>{% endif %}
{%- if message.tool_calls %}
{%- if message.content %}{{ raise_exception("content and a call in one message") }}{% endif %}
{%- set last.name = message.tool_calls[0].function.name %}<|start|>assistant<|channel|>commentary to=functions.
{{- last.name }} <|constrain|>json<|message|>{{ message.tool_calls[0].function.arguments | tojson }}<|call|>
{%- else %}<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>{% endif %}
{%- elif message.role == "tool" %}
{%- if not last.name %}{{ raise_exception("a result without its call") }}{% endif %}<|start|>functions.
{{- last.name }} to={{- "assistant<|channel|>commentary<|message|>" }}{{ message.content | tojson }}<|end|>
{%- else %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""


def test_gpt_oss() -> None:
    template = ChatTemplate(HARMONY, where="x")
    card = profile("gpt-oss", template)
    assert (card.name, card.dialect, card.takes_tools, card.takes_calls) == ("gpt-oss", "harmony", True, True)
    assert card.takes_calls_with_tools and card.takes_late_system and card.effort_levels == ("low", "medium", "high")
    assert card.thinking is not None and card.thinking.variable is None
    assert card.thinking.stop == "<|end|><|start|>assistant<|channel|>final<|message|>"
    assert card.defaults(thinking=True, tools=True) == Sampling(temperature=1.0)
    calls = [{"id": i, "type": "function", "function": {"name": i, "arguments": {}}} for i in "ab"]
    messages = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "look", "reasoning_content": "r", "tool_calls": calls},
        *({"role": "tool", "content": f"result of {i}", "tool_call_id": i} for i in "ab"),
    ]
    shown, _ = for_template(card, messages, [])
    text = template.render(shown, reasoning_effort="high")
    assert "Reasoning: high" in text and text.endswith("<|start|>assistant")
    assert (
        text.index("r\n\nlook") < text.index("to=functions.a") < text.index("result of a") < text.index("functions.b")
    )


# The form of Mistral's template of models that reason.
MISTRAL = """<s>{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for message in messages %}
{%- if message.role == "user" %}[INST]{{ message.content }}[/INST]
{%- elif message.role == "tool" %}[TOOL_RESULTS]{{ message.content }}[/TOOL_RESULTS]
{%- elif message.role == "system" %}[SYSTEM_PROMPT]{{ message.content }}[/SYSTEM_PROMPT]
{%- else %}{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}[TOOL_CALLS]{{ call.function.name }}[ARGS]
{{- call.function.arguments | tojson }}
{%- endfor %}</s>{% endif %}
{%- endfor %}{# [THINK]...[/THINK] #}"""


def test_mistral() -> None:
    card = profile("mistral3", ChatTemplate(MISTRAL, where="x"))
    assert (card.dialect, card.takes_tools, card.takes_calls, card.takes_late_system) == ("mistral", True, True, True)
    assert card.thinking is not None and (card.thinking.open, card.thinking.close) == ("[THINK]", "[/THINK]")
    plain = profile("mistral3", ChatTemplate(MISTRAL.replace("{# [THINK]...[/THINK] #}", ""), where="x"))
    assert plain.thinking is None and plain.dialect == "mistral"


# The form of Gemma 4's template.
GEMMA4 = """<bos>{%- if enable_thinking or tools %}<|turn>system
{%- if enable_thinking %}<|think|>{% endif %}
{%- for tool in tools or [] %}<|tool>declaration:{{ tool.function.name }}{}<tool|>{% endfor %}<turn|>
{% endif %}
{%- for message in messages %}<|turn>{{ "model" if message.role == "assistant" else message.role }}
{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}<|tool_call>call:{{ call.function.name }}{}<tool_call|>{% endfor %}<turn|>
{% endfor %}
{%- if add_generation_prompt %}<|turn>model
{% if not enable_thinking %}<|channel>thought
<channel|>{% endif %}{% endif %}"""


def test_gemma4() -> None:
    card = profile("gemma4", ChatTemplate(GEMMA4, where="x"))
    assert (card.name, card.dialect, card.takes_tools, card.takes_calls) == ("gemma4", "gemma4", True, True)
    assert card.defaults(thinking=True, tools=True) == Sampling(temperature=1.0, top_p=0.95, top_k=64)
    assert card.thinking is not None and card.thinking.variable == "enable_thinking"
    assert (card.thinking.open, card.thinking.close) == ("<|channel>thought\n", "<channel|>")


def test_families_of_one_architecture_by_their_template() -> None:
    smollm2, llama3 = (
        profile("llama", ChatTemplate(CHATML, where="x")),
        profile("llama", ChatTemplate(LLAMA, where="x")),
    )
    assert (smollm2.name, smollm2.takes_tools, smollm2.thinking) == ("smollm2", False, None)
    assert (llama3.name, llama3.takes_tools, llama3.dialect) == ("llama3", True, "llama_json")
    assert smollm2.defaults(thinking=False, tools=True) == Sampling(temperature=0.2, top_p=0.9)


def test_a_model_without_a_known_card() -> None:
    recommended = {"temperature": 0.3, "top_k": 5, "eos_token_id": 7, "do_sample": True, "max_new_tokens": 9}
    card = profile("other", None, generation_defaults=recommended)
    assert card.name == "any" and card.defaults(thinking=True, tools=True) == Sampling(temperature=0.3, top_k=5)
    assert card.max_tokens == 9
    assert profile("other", None).defaults(thinking=False, tools=False) == Sampling(temperature=0.7, top_p=0.9)


OWN = {
    '{"do_sample": false}': Sampling(),
    '{"do_sample": false, "temperature": 0.9, "top_p": 0.5, "repetition_penalty": 1.3}': Sampling(
        repetition_penalty=1.3, penalty_window=-1
    ),
    '{"do_sample": true, "temperature": 0.1, "top_p": 0.5, "repetition_penalty": 1.05}': Sampling(
        temperature=0.1, top_p=0.5, repetition_penalty=1.05, penalty_window=-1
    ),
    '{"do_sample": true, "top_k": 3}': Sampling(temperature=1.0, top_k=3),
    '{"temperature": 0.4}': Sampling(temperature=0.4),
    '{"top_k": 7}': Sampling(temperature=0.7, top_p=0.8, top_k=7, presence_penalty=1.5),
    '{"eos_token_id": 3}': Sampling(temperature=0.7, top_p=0.8, top_k=20, presence_penalty=1.5),
    '{"do_sample": false, "stop_strings": "END", "suppress_tokens": [3], "bad_words_ids": [[4], [5, 6]]}': Sampling(
        stop=("END",), logit_bias={3: -100.0, 4: -100.0}
    ),
}


@pytest.mark.parametrize("config", OWN)
def test_the_models_own_files_come_before_the_card_of_its_family(config: str) -> None:
    notes: list[str] = []
    given = checked_defaults(json.loads(config), "generation_config.json", notes)
    card = profile("qwen35", shipped("Qwen3.5-4B"), generation_defaults=given)
    assert card.defaults(thinking=False, tools=False) == OWN[config]
    is_whole = "do_sample" in given or "temperature" in given
    assert card.source.startswith("the model's own files") == (is_whole or "top_k" in given)
    assert ("Best Practices" in card.source) != is_whole
    if is_whole:
        assert card.defaults(thinking=True, tools=True) == OWN[config]


def test_a_request_adds_to_the_models_stop_strings_and_biases() -> None:
    own = Sampling(temperature=0.5, stop=("END",), logit_bias={3: -100.0, 4: -100.0})
    changed = with_fields(own, {"stop": ["x", "END"], "logit_bias": {4: 1.0, 5: 2.0}, "top_k": 3})
    assert (
        changed == Sampling(temperature=0.5, top_k=3, stop=("END", "x"), logit_bias={3: -100.0, 4: 1.0, 5: 2.0})
        and with_fields(own, {}) == own
    )


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"no_repeat_ngram_size": 3, "num_beams": 4}, ["no_repeat_ngram_size 3", "num_beams 4"]),
        ({"no_repeat_ngram_size": 0, "num_beams": 1, "max_length": 20, "forced_bos_token_id": None}, []),
        ({"forced_eos_token_id": 2, "max_length": 4096, "chat_format": "chatml"}, ["forced_eos_token_id 2", "chatml"]),
        ({"bad_words_ids": [[1, 2]]}, ["words of several tokens"]),
        ({"stop_strings": [""], "suppress_tokens": ["a"]}, ["stop_strings is [''", "suppress_tokens is ['a']"]),
        ({"max_new_tokens": 0, "bad_words_ids": [[]], "do_sample": "no"}, ["max_new_tokens", "bad_words", "do_sample"]),
        ({"suppress_tokens": [-1], "bad_words_ids": [7], "transformers_version": "5", "_from_model_config": True},
         ["suppress_tokens is [-1]", "bad_words_ids is [7]"]),
        ({"sequence_bias": json.loads("[" * 900 + "]" * 900)}, ["sequence_bias"]),
        ({"bad_words_ids": [[1, 2]] * 100, "suppress_tokens": ["x"] * 99}, ["suppress_tokens is list of 99 items"]),
        ({"mirostat": 2, "xtc_probability": 0.5, "mirostat_tau": 5.0}, ["mirostat 2", "xtc_probability 0.5"]),
    ],
)  # fmt: skip
def test_keys_that_are_not_used_are_named(config: dict[str, Any], named: list[str]) -> None:
    notes: list[str] = []
    checked_defaults(config, "generation_config.json", notes)
    assert all(any(word in note for note in notes) for word in named) and bool(notes) == bool(named)


def test_a_fine_tune_is_served_as_its_template_wants() -> None:
    assert profile("qwen3", ChatTemplate(CHATML, where="x")).thinking is None
    assert profile("qwen3", shipped("Qwen3.5-4B")).dialect == "qwen_xml"


def test_tags_that_are_control_tokens_are_kept() -> None:
    assert not profile("qwen35", shipped("Qwen3.5-4B")).keeps_special
    vocabulary = small_vocabulary()
    tokens, types = list(vocabulary["tokenizer.ggml.tokens"]), list(vocabulary["tokenizer.ggml.token_type"])  # type: ignore[call-overload]
    tokens[tokens.index("<|end|>")], vocabulary["tokenizer.ggml.tokens"] = "<think>", tokens
    vocabulary["tokenizer.ggml.token_type"] = types
    tokenizer = Tokenizer.from_gguf(vocabulary, "x")
    assert profile_for("qwen35", shipped("Qwen3.5-4B"), tokenizer).keeps_special


def test_a_users_file_takes_precedence(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(
        json.dumps(
            {"name": "mine", "dialect": "hermes_json", "sampling": {"plain": {"top_k": 3}}, "effort": {"low": 9}}
        )
    )
    card = profile("qwen35", shipped("Qwen3.5-4B"), override=file)
    assert (card.name, card.dialect, card.effort, card.most_tokens) == ("mine", "hermes_json", {"low": 9}, 81920)
    assert card.defaults(thinking=False, tools=False).top_k == 3
    assert card.defaults(thinking=False, tools=False).temperature == 0.7
    file.write_text(json.dumps({"thinking": None}))
    assert profile("qwen35", shipped("Qwen3.5-4B"), override=file).thinking is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"temperature": 1}, "unknown field 'temperature'; known fields are name, source"),
        ({"max_tokens": "many"}, "max_tokens is 'many', expected int"),
        ({"takes_tools": 1}, "takes_tools is 1, expected bool"),
        ({"dialect": "xml"}, "dialect is 'xml', expected one of qwen_xml"),
        ({"sampling": {"plain": {"temprature": 1}}}, "sampling.plain has fields that Sampling does not have"),
        ({"sampling": {"plain": {"top_k": "1"}}}, "sampling.plain has values that are not numbers"),
        ({"sampling": 1}, "sampling is 1, expected an object"),
        ({"effort": {"low": 0}}, "effort.low is 0, expected a number of tokens"),
        ({"thinking": {"close": "</done>"}}, "thinking.stop does not contain the closing tag"),
        ({"thinking": {"tags": 1}}, "thinking: unknown field 'tags'"),
    ],
)
def test_invalid_profile_files(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(content))
    with pytest.raises(FormatError, match=message) as error:
        profile("qwen35", shipped("Qwen3.5-4B"), override=file)
    assert str(file) in str(error.value)
