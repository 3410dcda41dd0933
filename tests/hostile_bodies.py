"""Bodies of requests that try to hold a server: deep, long or wrong values, and grammars that take long to compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Once upon a time there was a small dog."}],
    "max_tokens": 2,
}


def schema(value: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


def grammar(text: str) -> dict[str, Any]:
    return {"response_format": {"type": "grammar", "grammar": text}}


def links(make: Any) -> dict[str, Any]:
    """A thousand definitions, each a link to the next."""
    chain = {f"d{i}": make({"$ref": f"#/$defs/d{i + 1}"}) for i in range(999)}
    return {"$ref": "#/$defs/d0", "$defs": {**chain, "d999": {"type": "integer"}}}


CHAINS = {
    "ref": schema(links(lambda next_: next_)),
    "allOf": schema(links(lambda next_: {"allOf": [next_]})),
    "anyOf": schema(links(lambda next_: {"anyOf": [next_, {"type": "null"}]})),
    "items": schema(links(lambda next_: {"type": "array", "items": next_})),
    "properties": schema(links(lambda next_: {"type": "object", "properties": {"a": next_}, "required": ["a"]})),
    "rules": grammar("start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(4000)) + '\nr4000: "a"'),
    "terminals": grammar("start: R0\n" + "\n".join(f"R{i}: R{i + 1}" for i in range(4000)) + "\nR4000: /a/"),
    "groups": grammar("start: A\nA: /" + "(" * 20_000 + "a" + ")" * 20_000 + "/"),
}


SLOW = {
    "multipleOf": schema({"type": "integer", "multipleOf": 9999999}),
    "patterns": schema({"allOf": [{"type": "string", "pattern": f"a{{{i}}}b*c{{{i}}}.*x{i}"} for i in range(50)]}),
    "enum": schema({"enum": list(range(1_000_000))}),
    "repeats": grammar("start: A\nA: /" + "(" * 7 + "a{10}" + "){10}" * 7 + "/"),
}


NESTED = "(((((a{10}){10}){10}){10}){10})"
HOLDS = {
    "grammar": grammar(f'start: "x" A\nA: /{NESTED}{{19}}/'),
    "regex": {"response_format": {"type": "regex", "regex": f"x{NESTED}{{19}}"}},
    "pattern": schema({"type": "string", "pattern": f"^x{NESTED}{{19}}$"}),
    "long prefix": grammar('start: "' + "x" * 40 + f'" A\nA: /{NESTED}{{19}}/'),
}


def biases(n: int) -> bytes:
    return b",".join(b'"%d":[]' % i for i in range(n))


def messages(parts: bytes) -> bytes:
    return b'{"max_tokens":1,"messages":[{"role":"user","content":[' + parts + b"]}]}"


def arguments(text: bytes) -> bytes:
    quoted = text.replace(b'"', b'\\"')
    call = b'{"id":"c","type":"function","function":{"name":"f","arguments":"' + quoted + b'"}}'
    turn = b'{"role":"assistant","content":"","tool_calls":[' + call + b"]}"
    return (
        b'{"messages":[{"role":"user","content":"a"},' + turn + b',{"role":"tool","tool_call_id":"c","content":"r"}]}'
    )


def guided(kind: str, text: bytes) -> bytes:
    return b'{"prompt":"a","max_tokens":1,"guided_' + kind.encode() + b'":"' + text + b'"}'


N = 2_000_000


def ids() -> bytes:
    return b",".join([b"5"] * N)


# name: path, and what makes the body: one takes up to a second, so only the test that sends it does.
BODIES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "nested": ("/v1/chat/completions", lambda: b'{"messages":[' + b"[[[[[[1]]]]]]," * (N // 8) + b"1]}"),
    "deep": ("/v1/chat/completions", lambda: b'{"messages":' + b"[" * N + b"]" * N + b"}"),
    "deep and short": ("/v1/messages", lambda: b'{"messages":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}"),
    "wrong roles": ("/v1/chat/completions", lambda: b'{"messages":[' + b'{"role":"x"},' * N + b'{"role":"x"}]}'),
    "fewer wrong roles": ("/v1/responses", lambda: b'{"input":[' + b'{"role":"x"},' * 40_000 + b'{"role":"x"}]}'),
    "unknown keys": ("/v1/messages", lambda: b"{" + b",".join(b'"k%d":1' % i for i in range(N // 2)) + b"}"),
    "fewer unknown keys": ("/v1/messages", lambda: b"{" + b",".join(b'"k%d":1' % i for i in range(90_000)) + b"}"),
    "strings": ("/v1/completions", lambda: b'{"prompt":[' + b'"",' * N + b'""]}'),
    "ids": ("/v1/completions", lambda: b'{"prompt":[' + ids() + b"]}"),
    "fewer ids": ("/v1/completions", lambda: b'{"prompt":[' + ids()[:2_000_000] + b"5]}"),
    "ids to text": ("/v1/detokenize", lambda: b'{"tokens":[' + ids() + b"]}"),
    "fewer ids to text": ("/v1/detokenize", lambda: b'{"tokens":[' + ids()[:2_000_000] + b"5]}"),
    "prompts": ("/v1/completions", lambda: b'{"n":16,"prompt":[' + b'"a",' * 1_000_000 + b'"a"]}'),
    "stops": ("/v1/completions", lambda: b'{"prompt":"a","stop":[' + b'"a",' * 1_000_000 + b'"a"]}'),
    "UTF-16": ("/v1/completions", lambda: ('{"prompt":[' + "5," * N + "5]}").encode("utf-16")),
    "booleans to embed": ("/v1/embeddings", lambda: b'{"input":[' + b"true," * 1_000_000 + b"true]}"),
    "lists of booleans to embed": ("/v1/embeddings", lambda: b'{"input":[[' + b"true," * 1_000_000 + b"true]]}"),
    "numbers to embed": ("/api/embed", lambda: b'{"input":[' + b"1," * 1_000_000 + b"1]}"),
    "floats": ("/v1/completions", lambda: b'{"prompt":[' + b"1.2345678901234567e300," * 1_000_000 + b"1]}"),
    "long numbers": ("/v1/completions", lambda: b'{"prompt":[' + (b"1" * 4000 + b",") * 7500 + b"1]}"),
    "biases": ("/v1/completions", lambda: b'{"prompt":"a","logit_bias":{' + biases(90_000) + b"}}"),
    "metadata": ("/v1/responses", lambda: b'{"input":"a","metadata":{' + biases(90_000) + b"}}"),
    "parts of another type": ("/v1/messages", lambda: messages(b'{"type":"x"},' * 40_000 + b'{"type":"x"}')),
    "arguments": ("/v1/chat/completions", lambda: arguments(b'{"a":[' + b"1," * 10_000_000 + b"1]}")),
    "a schema as text": ("/v1/completions", lambda: guided("json", b"{" + b"\\n" * 10_000_000 + b"}")),
    "lines of GBNF": ("/v1/completions", lambda: guided("grammar", b"root ::= " + b"\\n" * 16_000 + b"(")),
    "text to tokenize": (
        "/v1/tokenize",
        lambda: b'{"with_pieces":true,"content":"' + b"<|im_end|>" * 2_000_000 + b'"}',
    ),
    "control tokens": ("/v1/completions", lambda: b'{"prompt":"' + b"<|im_end|>" * 1_200_000 + b'"}'),
    "control tokens in a chat": (
        "/v1/messages",
        lambda: messages(b'{"type":"text","text":"' + b"<|im_end|>" * 1_200_000 + b'"}'),
    ),
    "an open string": ("/v1/completions", lambda: b'{"prompt":"' + b'\\"' * N),
}
