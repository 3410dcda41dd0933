"""`LLM` as its callers use it: keywords, several prompts and answers, sessions of concurrent generations,
repeatability, chats with tools and reasoning, structured output, asyncio, `Sampling` as a value."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import two_threads
from lucebox import LLM, EngineOptions, InvalidRequestError, Sampling, UnsupportedError, _engine
from lucebox.chat.conversation import Conversation
from lucebox.chat.conversation_to_request import ChatModel, Limits
from lucebox.chat.template import ChatTemplate
from lucebox.chat.thinking import ThinkingRequest
from lucebox.generation.scheduler import Scheduler
from lucebox.serve import ServeSettings
from lucebox.serve.model import ServedModel
from tolerances import tolerance

PROMPT = "def fibonacci(n):\n"
LONG = "import os\nimport sys\n\n\ndef walk(folder):\n" * 12  # more than a page of tokens
ASK: list[dict[str, Any]] = [{"role": "user", "content": "write function add: adds two numbers"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny-hybrid", context=1024, prefill_chunk=64, sessions=2, threads=1) as loaded:
        yield loaded


# arguments


def test_keywords_stand_over_the_sampling(llm: LLM) -> None:
    want = llm.generate(PROMPT, Sampling(max_tokens=6, temperature=1.0, seed=3))
    assert llm.generate(PROMPT, Sampling(max_tokens=9, temperature=1.0), max_tokens=6, seed=3).ids == want.ids
    with pytest.raises(TypeError, match="colour"):
        llm.generate(PROMPT, colour=1)  # type: ignore[call-overload]


def test_several_prompts_and_answers(llm: LLM) -> None:
    one, two = (llm.generate(prompt, max_tokens=4) for prompt in (PROMPT, "import "))
    both = llm.generate([PROMPT, "import "], max_tokens=4)
    assert [result.ids for result in both] == [one.ids, two.ids]
    assert [r.ids for r in llm.generate([llm.tokenize(PROMPT)], max_tokens=4)] == [one.ids]
    sampled = llm.generate(PROMPT, n=3, max_tokens=8, temperature=1.5, seed=5)
    alone = [llm.generate(PROMPT, max_tokens=8, temperature=1.5, seed=seed).ids for seed in (5, 6, 7)]
    assert [result.ids for result in sampled] == alone and len({*alone}) > 1
    assert len(llm.chat(ASK, n=2, max_tokens=2)) == 2
    assert llm.chat(ASK, max_tokens=0).ids == llm.generate(PROMPT, max_tokens=0).ids == ()
    for wrong in ({"n": 0}, {"n": 2, "stream": True}):
        with pytest.raises(InvalidRequestError):
            llm.generate(PROMPT, max_tokens=2, **wrong)  # type: ignore[call-overload]


def test_a_continuation_has_a_modest_limit(llm: LLM) -> None:
    result = llm.generate(PROMPT, ignore_eos=True)
    assert (result.finish_reason, result.usage.completion_tokens) == ("length", 256)


def test_the_stop_string_is_named(llm: LLM) -> None:
    free = llm.generate(PROMPT, max_tokens=30)
    stop = free.text[8:12]
    assert llm.generate(PROMPT, max_tokens=30, stop=["never written", stop]).stop_string == stop
    assert free.stop_string is None


def test_speed_counts_the_tokens_that_were_timed(llm: LLM) -> None:
    timings = llm.generate(PROMPT, max_tokens=1).timings
    assert (timings.decode_tokens, timings.decode_s, timings.decode_tok_s) == (0, 0, 0)
    assert llm.generate(PROMPT, max_tokens=5).timings.decode_tokens == 4


def test_repr_names_model_device_and_context(llm: LLM) -> None:
    assert repr(llm).startswith("<lucebox.LLM tiny-hybrid: qwen35, context 1024, cpu, ")


def test_options_check_their_words() -> None:
    with pytest.raises(InvalidRequestError, match=r"must be int8, f32, fp4, got 'int4'; did you mean int8\?"):
        EngineOptions(activations="int4")  # type: ignore[arg-type]
    for kv in ("fp16", "q8_0/fp16"):
        with pytest.raises(InvalidRequestError, match=r"kv must be one of f32, .* wht3, or two .* did you mean f16\?"):
            EngineOptions(kv=kv)
    with pytest.raises(InvalidRequestError, match="got 'f16/f16/f16'"):
        EngineOptions(kv="f16/f16/f16")
    assert EngineOptions(kv="Q8_0/WHT4").kv == "Q8_0/WHT4"


def test_sizes_may_have_units() -> None:
    with LLM("tiny-hybrid", context=64, prefix_cache="3 MB", memory_limit="1GiB") as llm:
        assert llm.prefix_cache.stats().memory_budget_bytes == 3_000_000
        assert llm.options.memory_limit == 2**30


# sessions


def recorded(compute: Callable[..., int], rows: list[int]) -> Callable[..., int]:
    """Wraps the function to append its results to `rows`."""

    def call(*args: Any) -> int:
        rows.append(compute(*args))
        return rows[-1]

    return call


def test_threads_share_passes(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [f"def f{i}(x):\n    return" for i in range(3)]
    alone = [llm.generate(prompt, max_tokens=40, ignore_eos=True).ids for prompt in prompts]
    rows: list[int] = []
    compute, submit, submitted = recorded(_engine.sync_together, rows), Scheduler.submit, threading.Barrier(4)

    def submit_then_wait(*args: Any) -> Any:
        sequences = submit(*args)
        submitted.wait(60)  # no thread computes before the others have submitted
        return sequences

    monkeypatch.setattr(_engine, "sync_together", compute)
    monkeypatch.setattr(Scheduler, "submit", submit_then_wait)
    got: dict[int, tuple[int, ...]] = {}

    def write(i: int) -> None:
        got[i] = llm.generate(prompts[i], max_tokens=40, ignore_eos=True).ids

    threads = [threading.Thread(target=write, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    submitted.wait(60)
    monkeypatch.setattr(Scheduler, "submit", submit)
    for thread in threads:
        thread.join()
    assert [got[i] for i in range(3)] == alone
    assert max(rows) >= 2
    stream = llm.generate(prompts[0], max_tokens=40, ignore_eos=True, stream=True)
    next(stream)  # its reader pauses: nobody waits for it
    assert llm.generate(prompts[1], max_tokens=40, ignore_eos=True).ids == alone[1]
    stream.close()


def test_the_same_request_gives_the_same_ids_whatever_came_before(llm: LLM) -> None:
    """Other appends round differently, so only a prefix computed in the same appends as this prompt's may be reused."""
    conversation: list[dict[str, Any]] = [{"role": "user", "content": LONG}]
    first = [llm.generate(LONG, max_tokens=12).ids, llm.chat(conversation, Sampling(max_tokens=12)).ids]
    reused = []
    for prompt in ("x = 1", LONG[:400], LONG + "    return"):
        llm.generate(prompt, max_tokens=7)
        again = llm.generate(LONG, max_tokens=12)
        reused.append(again.usage.cached_tokens)
        assert [again.ids, llm.chat(conversation, Sampling(max_tokens=12)).ids] == first
    with LLM("tiny-hybrid", context=1024, prefill_chunk=64, threads=1) as fresh:
        assert fresh.generate(LONG, max_tokens=12).ids == first[0]


def test_a_prompt_reuses_what_it_shares_with_the_last_one(llm: LLM) -> None:
    llm.reset()
    llm.generate(LONG, max_tokens=1)
    assert llm.generate(LONG, max_tokens=1).usage.cached_tokens >= 64


def test_streams_and_threads_have_sessions_of_their_own(llm: LLM) -> None:
    prompts = (LONG, "import re\n" + LONG)
    alone = [llm.generate(prompt, max_tokens=8).ids for prompt in prompts]
    streams = [llm.generate(prompt, max_tokens=8, stream=True) for prompt in prompts]
    results = [chunk.result for chunk in list(zip(*streams, strict=True))[-1]]
    assert [result and result.ids for result in results] == alone
    assert all(len(session.tokens) > 64 for session in llm.pool.free)  # neither computed the other's prompt
    got: dict[int, tuple[int, ...]] = {}
    threads = [
        threading.Thread(target=lambda i=i: got.update({i: llm.generate(prompts[i % 2], max_tokens=8).ids}))
        for i in range(4)  # two of them wait for a session
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[i] for i in range(4)] == alone * 2


@pytest.mark.slow  # 3 s alone, more beside other work: eight rounds, of which the fastest count
def test_two_threads_take_no_longer_than_the_same_work_in_turn() -> None:
    """Their rows are computed together."""
    with LLM("tiny-hybrid", context=1024, threads=1, sessions=2, draft="none") as llm:
        in_turn, in_threads = two_threads.times(llm, max_tokens=64, clock=time.process_time)
    print(f"in turn {in_turn:.3f} s, in two threads {in_threads:.3f} s, ratio {in_threads / in_turn:.3f}")
    assert in_threads < tolerance("speed", "two_threads") * in_turn


def test_answers_of_a_call_are_those_of_one_prompt_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven prompts on three sessions, whose rows are computed together. Some answers end early."""
    prompts = [PROMPT[: 9 + 5 * i] for i in range(7)]
    options: Any = {"max_tokens": 20, "stop": ["\n\n"], "temperature": 0.9, "seed": 5}
    with LLM("tiny-hybrid", context=256, threads=1, sessions=3) as llm:
        alone = [llm.generate(prompt, **options) for prompt in prompts]
        llm.reset()
        rows: list[int] = []
        monkeypatch.setattr(_engine, "sync_together", recorded(_engine.sync_together, rows))
        together = llm.generate(prompts, **options)
        assert max(rows) >= 3
        assert [one.ids for one in together] == [one.ids for one in alone]
        assert [one.text for one in together] == [one.text for one in alone]
        several = llm.generate(prompts[0], n=4, **options)
        assert several[0].ids == alone[0].ids and len({one.ids for one in several}) > 1


def test_a_stream_too_many_is_refused_and_a_closed_one_makes_room(llm: LLM) -> None:
    streams = [llm.generate(PROMPT, max_tokens=4, stream=True) for _ in range(3)]
    for stream in streams[:2]:
        next(stream)
    with pytest.raises(InvalidRequestError, match=r"2 sessions, .*sessions=3"):
        next(streams[2])
    streams[0].close()  # type: ignore[attr-defined]
    assert llm.generate(PROMPT, max_tokens=4).finish_reason == "length"
    list(streams[1])


def test_sessions_are_limited_by_memory(llm: LLM) -> None:
    plan = llm.memory_plan
    first = plan.mapped_bytes + plan.total_bytes
    assert dataclasses.replace(plan, available_bytes=first).max_sessions == 1
    assert dataclasses.replace(plan, available_bytes=first + 2 * plan.session_bytes).max_sessions == 3


# chats


def test_a_chat_samples_as_the_makers_recommend(llm: LLM) -> None:
    sampling, source = llm.recommended_sampling()
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.7, 20, 0.8) and "cards of Qwen3.5" in source
    (served,) = ServedModel(llm.model, ServeSettings()).chat(Conversation([*ASK]), {}, Limits(), "")
    assert dataclasses.replace(served.sampling, seed=None, max_tokens=None) == sampling
    want = llm.chat(ASK, dataclasses.replace(sampling, max_tokens=12, seed=4)).ids
    assert llm.chat(ASK, max_tokens=12, seed=4).ids == want
    assert llm.chat(ASK, max_tokens=12).ids == llm.chat(ASK, max_tokens=12, seed=0).ids  # the LLM's own seed


def test_tools_reach_a_template_without_tools_and_calls_come_back(llm: LLM) -> None:
    """tiny-hybrid's template writes no tools: they stand in the system message, as the server does it."""
    assert "get_weather" in llm.render(ASK, tools=[TOOL])
    result = llm.chat(ASK, tools=[TOOL], tool_choice="required", max_tokens=80, temperature=0)
    call = result.tool_calls[0]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Oslo"})
    assert result.text == ""
    answered = [*ASK, result.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    assert "rain" in llm.render(answered, tools=[TOOL])
    for wrong in ({"tools": [{"name": "x"}]}, {"tools": [TOOL], "tool_choice": "sometimes"}):
        with pytest.raises(InvalidRequestError):
            llm.chat(ASK, **wrong)  # type: ignore[call-overload]


def test_reasoning_is_apart_from_the_text(llm: LLM) -> None:
    thinks = ChatTemplate(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n"
        "{% if enable_thinking %}<think>\n{% else %}<think></think>{% endif %}",
        where="test",
    )
    chunks = list(llm.chat(ASK, template=thinks, enable_thinking=True, max_tokens=40, temperature=0, stream=True))
    result = chunks[-1].result
    assert result is not None and result.reasoning == "".join(chunk.reasoning for chunk in chunks) != ""
    assert result.message["reasoning_content"] == result.reasoning
    assert "<think>" not in result.text + result.reasoning
    assert llm.chat(ASK, template=thinks, enable_thinking=False, max_tokens=4).reasoning == ""
    with pytest.raises(UnsupportedError, match="cannot switch thinking on"):
        llm.chat(ASK, enable_thinking=True)


LEVELS = (
    "{% set e = reasoning_effort|default('xhigh') %}{% if e not in ('xhigh', 'medium', 'low') %}"
    "{{ raise_exception('unexpected effort') }}{% endif %}effort {{ e }}|{{ messages[0].content }}|"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>{% endif %}"
)
PRINTED = (
    "{% if reasoning_effort == 'high' %}effort {{ reasoning_effort }}{% endif %}|{{ messages[0].content }}|</think>"
)


@pytest.mark.parametrize(
    ("source", "effort", "start"),
    [
        (LEVELS, None, "effort xhigh|"),
        (LEVELS, "minimal", "effort low|"),
        (LEVELS, "low", "effort low|"),
        (LEVELS, "medium", "effort medium|"),
        (LEVELS, "high", "effort xhigh|"),
        (LEVELS, "max", "effort xhigh|"),
        (LEVELS, "none", "effort xhigh|"),
        (PRINTED, "high", "effort high|"),
        (PRINTED, "low", "|"),
        (PRINTED, "max", "effort high|"),
    ],
)
def test_the_effort_reaches_a_template_with_levels(llm: LLM, source: str, effort: str | None, start: str) -> None:
    template = ChatTemplate(source, where="test")
    rendered = llm.render(ASK, reasoning_effort=effort, template=template)
    assert rendered.startswith(start) and ("<think></think>" in rendered) == (effort == "none")
    thinking = ThinkingRequest("on", effort) if effort not in (None, "none") else ThinkingRequest()
    served = llm.chat_model(template).prompt(Conversation([*ASK], thinking=thinking)).text
    assert served.startswith(start)


PRESERVES = (
    "{% if preserve_thinking %}{{ messages[0].reasoning_content }}{% endif %}"
    "{{ a | default('-') }}{{ enable_thinking }}"
)


def test_variables_of_the_template(llm: LLM) -> None:
    template = ChatTemplate(PRESERVES, where="test")
    said = [{"role": "assistant", "content": "a", "reasoning_content": "because"}, *ASK]
    assert llm.render(said, template=template) == "-"
    kwargs = {"preserve_thinking": True, "a": "<|im_end|>", "enable_thinking": True}
    assert llm.render(said, template=template, chat_template_kwargs=kwargs) == "because<|im_end|>True"
    control = llm.tokenizer.id_of("<|im_end|>")
    conversation = Conversation([*said], template_vars={"a": "<|im_end|>"})
    assert control not in llm.chat_model(template).prompt(conversation).ids
    # A server's own variables give way to a request's, and to its effort.
    own = {"reasoning_effort": "low", "content": "y"}
    served = ChatModel(llm.model, llm._grammars, template=ChatTemplate(LEVELS, where="test"), template_vars=own)
    assert served.prompt(Conversation([*ASK])).text.startswith("effort low|")
    assert served.prompt(Conversation([*ASK], thinking=ThinkingRequest("on", "medium"))).text.startswith(
        "effort medium|"
    )
    assert served.prompt(Conversation([*ASK], template_vars={"reasoning_effort": "xhigh"})).text.startswith(
        "effort xhigh"
    )
    with pytest.raises(InvalidRequestError, match="'messages' is set by lucebox itself"):
        ServedModel(llm.model, ServeSettings(chat_template_kwargs='{"messages": []}'))
    for wrong in (
        {"chat_template_kwargs": {"messages": []}},
        {"chat_template_kwargs": ["x"]},
        {"chat_template_kwargs": {"enable_thinking": 1}},
        {"chat_template_kwargs": {"enable_thinking": True}, "enable_thinking": False},
        {"reasoning_effort": "none", "enable_thinking": True},
        {"reasoning_effort": "much"},
    ):
        with pytest.raises(InvalidRequestError):
            llm.render(said, template=template, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="takes no reasoning_effort"):
        llm.render(ASK, template=template, reasoning_effort="low")


def test_structured_output(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema}}
    assert json.loads(llm.chat(ASK, response_format=form, max_tokens=40).text)["n"] in (1, 2)
    digits = llm.generate("x = ", response_format={"type": "regex", "regex": "[0-9]{3}"}, max_tokens=20)
    assert digits.text.isdecimal() and len(digits.text) == 3 and digits.finish_reason == "stop"
    with pytest.raises(InvalidRequestError, match="response_format"):
        llm.generate("x = ", response_format={"type": "yaml"})


# asyncio


def test_async_generations_run_side_by_side(llm: LLM) -> None:
    want = [llm.generate(prompt, max_tokens=6).ids for prompt in (PROMPT, "import ")]

    async def both() -> list[Any]:
        results = await asyncio.gather(*(llm.agenerate(prompt, max_tokens=6) for prompt in (PROMPT, "import ")))
        chat = await llm.achat(ASK, max_tokens=3)
        pieces = [chunk.ids async for chunk in llm.astream(PROMPT, max_tokens=6)]
        return [*(result.ids for result in results), chat.usage.completion_tokens, sum(pieces, ())]

    assert asyncio.run(both()) == [*want, 3, want[0]]


def test_cancelling_a_task_stops_its_generation(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    turn, running, cancelled = Scheduler._turn, threading.Event(), threading.Event()

    def held(*args: Any, **named: Any) -> None:
        turn(*args, **named)
        running.set()
        assert cancelled.wait(60)

    async def cancel() -> float:
        task = asyncio.create_task(llm.agenerate(PROMPT, max_tokens=900, ignore_eos=True))
        assert await asyncio.to_thread(running.wait, 60)
        task.cancel()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(llm.pool.free)

    llm.generate(PROMPT, max_tokens=1)
    n_free = len(llm.pool.free)
    with monkeypatch.context() as patched:
        patched.setattr(Scheduler, "_turn", held)
        assert asyncio.run(cancel()) == n_free  # the session is free again when the task has ended

    async def leave() -> None:
        stream = llm.astream(PROMPT, max_tokens=900, ignore_eos=True)
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(leave())
    assert len(llm.pool.free) == n_free
    with pytest.raises(InvalidRequestError, match="top_p"):
        asyncio.run(llm.agenerate(PROMPT, top_p=2))


# Sampling as a value


def test_sampling_is_a_value() -> None:
    stops = ["a"]
    one = Sampling(stop=stops, logit_bias={3: -1.0}, temperature=0.5)  # type: ignore[arg-type]
    stops.append("b")
    assert one.stop == ("a",)
    for other in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one), copy.copy(one), dataclasses.replace(one)):
        assert other == one and hash(other) == hash(one)
    assert Sampling(**dataclasses.asdict(one)) == one
    assert len({one, Sampling(), Sampling(temperature=0.0)}) == 2
    assert json.loads(json.dumps(dataclasses.asdict(one)))["temperature"] == 0.5
