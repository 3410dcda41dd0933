"""The Jinja sandbox of chat templates: the features of Hugging Face's environment, with metered time and memory.

A template comes from an untrusted file. Jinja's sandbox denies access to Python objects; the meter bounds time and
memory. Loops, macro bodies, calls, filters, tests, operators, comparisons, slices and output spend from one budget, by
the size of their operands and results. The budget therefore also bounds the memory of all values together. Operations
that multiply sizes are checked before they run. Filters and methods that templates do not use are left out.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from lucebox.chat.messages import NoText
from lucebox.text.spellings import MARK

__all__ = ["MeteredEnvironment", "RaisedByTemplate", "RunawayError", "metered", "weigh"]

# Units of work: a loop iteration or call costs _STEP, a list item _ITEM, a character 1. Measured: 20 million units are
# 0.2 s of empty loops. Qwen3.5's template spends 11 million on 1,000 messages of 1,000 characters; their budget is
# 73 million.
_STEP = 32
_ITEM = 8
_WORK = 20_000_000
_WORK_PER_INPUT = 50
_MAX_WORK = 400_000_000
_VALUE = 4_000_000
_VALUE_PER_INPUT = 8
_SECONDS = 10.0
_CLOCK_WORK = 20_000  # units between two looks at the clock, about a millisecond
_MAX_RANGE = 100_000
_MAX_INT_BITS = 4096
_PPRINT_COST = 4  # it measures each value on every level

_FILTERS = [
    "abs", "attr", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e", "escape",
    "filesizeformat", "first", "float", "forceescape", "format", "groupby", "indent", "int", "items", "join", "last",
    "length", "list", "lower", "map", "max", "min", "pprint", "random", "reject", "rejectattr", "replace", "reverse",
    "round", "safe", "select", "selectattr", "slice", "sort", "string", "striptags", "sum", "title", "trim", "truncate",
    "unique", "upper", "urlencode", "wordcount", "wordwrap", "xmlattr",
]  # fmt: skip
# These filters turn arguments into text, so the printed size of a nested list is checked before they run.
_TEXT_FILTERS = frozenset({
    "capitalize", "center", "e", "escape", "forceescape", "format", "indent", "join", "lower", "pprint", "replace",
    "safe", "string", "striptags", "title", "tojson", "trim", "truncate", "upper", "urlencode", "wordcount", "wordwrap",
    "xmlattr",
})  # fmt: skip
# These filters read few items; lazy filters are charged per item, by its test or attribute.
_CONSTANT_FILTERS = frozenset({
    "attr", "count", "d", "default", "filesizeformat", "first", "items", "last", "length", "map", "random", "reject",
    "rejectattr", "reverse", "round", "select", "selectattr",
})  # fmt: skip
_STR_METHODS = frozenset({
    "capitalize", "casefold", "center", "count", "endswith", "find", "format", "format_map", "index", "isalnum",
    "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace",
    "istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace",
    "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip",
    "swapcase", "title", "upper", "zfill",
})  # fmt: skip
_NUMBER_METHODS = frozenset({"bit_length", "is_integer"})
_DICT_ATTRIBUTES = frozenset(dir(dict))
_LOOP_VALUES = frozenset({
    "depth", "depth0", "first", "index", "index0", "last", "length", "nextitem", "previtem", "revindex", "revindex0",
})  # fmt: skip
_WIDENING = frozenset({"center", "ljust", "rjust", "zfill"})
# A format width of four digits or more, or one computed from an argument or a nested field.
_WIDE_FORMAT = re.compile(r"\d{4}|%[^A-Za-z%]*\*|\{[^{}]*\{")
_NUMBER = re.compile(r"\d+")
# Python searches these from the end, or the argument per character: their time is the product of both lengths.
_QUADRATIC = frozenset({"rfind", "rindex", "rsplit", "rpartition", "strip", "lstrip", "rstrip", "trim"})
_COMPARED = 64  # characters that Python compares in the time of a unit
# These filters may make a large value even without arguments.
_GROWING_ALONE = frozenset({"format", "pprint", "striptags", "wordwrap"})
_JINJA_ARGUMENTS = ("_loop_vars", "_block_vars")  # which Jinja's code adds to each call
_ESCAPED_MARK = re.compile(r"(?<!\\)((?:\\\\)*)" + re.escape(json.dumps(MARK)[1:-1]))


class RunawayError(SecurityError):
    """The template exceeded its budget or a size limit."""


class RaisedByTemplate(jinja2.TemplateError):
    """The template called raise_exception to refuse the messages."""


class _Meter:
    """The budget and size limits of one rendering."""

    def __init__(self, input_weight: int, share: float) -> None:
        self.work = int(share * min(_WORK + _WORK_PER_INPUT * input_weight, _MAX_WORK))
        self.value_limit = _VALUE + _VALUE_PER_INPUT * input_weight
        self.deadline = time.monotonic() + _SECONDS
        self._next_look = self.work

    def charge(self, amount: int) -> None:
        self.work -= amount
        if self.work < self._next_look:
            self._look()

    def _look(self) -> None:
        if self.work < 0:
            raise RunawayError("it takes more steps than a chat template may")
        if time.monotonic() > self.deadline:
            raise RunawayError(f"it runs for more than {_SECONDS:.0f} s")
        self._next_look = max(self.work - _CLOCK_WORK, 0)

    def check(self, size: int) -> None:
        if size > self.value_limit:
            raise RunawayError(f"it builds a value of more than {self.value_limit} characters or items")

    def spend(self, *values: object) -> None:
        """Charges the sizes of operands that exist already."""
        for value in values:
            if isinstance(value, str):
                self.charge(len(value))
            elif isinstance(value, list | tuple | dict | Namespace):
                self.charge(weigh(value, max(self.work, 0)))

    def admit(self, value: object) -> None:
        """Checks and charges a value that was just made, or is about to be printed."""
        if type(value) is str:  # nearly always
            size = len(value) + _ITEM
        elif isinstance(value, str | list | tuple | dict | Namespace):
            size = weigh(value, self.value_limit)
        else:
            return
        self.check(size)
        self.charge(size)


_METER: ContextVar[_Meter] = ContextVar("meter")


@contextmanager
def metered(input_weight: int, share: float = 1.0) -> Iterator[None]:
    """Gives the rendering inside the block a fresh budget, which grows with the input, or a share of one."""
    token = _METER.set(_Meter(input_weight, share))
    try:
        yield
    finally:
        _METER.reset(token)


def weigh(value: object, limit: int = 1 << 62) -> int:
    """The weight of a value: characters plus _ITEM per value, as printing visits them. Counts little beyond `limit`."""
    total, queue = 0, [value]
    while queue and total <= limit:
        item = queue.pop()
        total += _ITEM
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, Mapping):
            queue.extend(item.keys())
            queue.extend(item.values())
        elif isinstance(item, list | tuple):
            queue.extend(item)
        elif isinstance(item, Namespace):
            queue.append(object.__getattribute__(item, "_Namespace__attrs"))
    return total


def _indented_weight(value: object, indent: int, limit: int) -> int:
    """The characters of indented JSON, at most; Python's encoder also takes a step per value and level above it."""
    total, queue = 0, [(value, 1)]
    while queue and total <= limit:
        item, depth = queue.pop()
        total += depth * (indent + _ITEM)
        if isinstance(item, Mapping):
            queue.extend((inner, depth + 1) for inner in item.values())
        elif isinstance(item, list | tuple):
            queue.extend((inner, depth + 1) for inner in item)
    return total


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with the meter; the head of this file describes both."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _GenerationTag],
            # Constant folding would run at compile time, outside any budget.
            optimized=False,
            finalize=_print,
            cache_size=0,
        )
        self.code_generator_class = _MeteredCode
        self.globals = {
            "range": _bounded_range,
            "cycler": Cycler,
            "dict": dict,
            "joiner": Joiner,
            "namespace": Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        self.filters = {name: _metered_filter(name, FILTERS[name]) for name in _FILTERS}
        self.filters["tojson"] = _metered_filter("tojson", _tojson)
        tests = TESTS | {"none": lambda value: value is None or isinstance(value, NoText)}
        self.tests = {name: _metered_test(test) for name, test in tests.items()}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and callable(value) and attr not in _STR_METHODS:
            return False
        if isinstance(obj, int | float | bytes):
            return isinstance(obj, int | float) and attr in _NUMBER_METHODS
        return super().is_safe_attribute(obj, attr, value)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the sandbox's own, with short ways to a message's fields and a loop's values."""
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        if type(obj) is LoopContext and attribute in _LOOP_VALUES:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        meter = _METER.get()
        meter.charge(_STEP)
        method = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            for name in _JINJA_ARGUMENTS:
                kwargs.pop(name, None)
            args = tuple(list(a) if isinstance(a, Iterator) else a for a in args)
            _check_growth(meter, method.__name__, owner, *args, **kwargs)
            meter.spend(owner, *args, *kwargs.values())
        elif isinstance(owner, list | tuple):
            meter.spend(owner)
        result = super().call(__context, __obj, *args, **kwargs)
        meter.admit(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = _METER.get()
        meter.charge(_STEP)
        if operator == "+" and type(left) is str and type(right) is str:
            size = len(left) + len(right) + _ITEM
            meter.check(size)
            meter.charge(2 * size)  # it reads the texts, and makes one
            return left + right
        if isinstance(left, str) and operator == "%":
            _check_growth(meter, "format", left, *(right if isinstance(right, tuple) else (right,)))
        elif operator == "*":
            for item, count in ((left, right), (right, left)):
                if isinstance(item, str | list | tuple) and isinstance(count, int):
                    meter.check(weigh(item, meter.value_limit) * max(count, 1))
        if isinstance(left, int) and isinstance(right, int) and operator in ("*", "**"):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_INT_BITS:
                raise RunawayError(f"it computes a number of more than {_MAX_INT_BITS} bits")
        meter.spend(left, right)
        result = super().call_binop(context, operator, left, right)
        meter.admit(result)
        return result

    def tick(self, text_size: int) -> str:
        """Charges one iteration; called at the head of every loop and macro body with its literal text's size."""
        _METER.get().charge(_STEP + text_size)
        return ""

    def concat_text(self, *parts: object) -> str:
        """The `~` operator."""
        meter = _METER.get()
        meter.charge(_STEP)
        for part in parts:
            meter.admit(part)
        text = "".join(map(str, parts))
        meter.admit(text)
        return text

    def compared(self, value: object) -> object:
        """An operand of a comparison, whose length bounds the time of comparing."""
        meter = _METER.get()
        if type(value) is str:
            meter.charge(_STEP + len(value))
        else:
            meter.charge(_STEP)
            meter.spend(value)
        return value

    def searched(self, value: object) -> object:
        """The right operand of `in`. A mapping finds a key without a search."""
        meter = _METER.get()
        meter.charge(_STEP)
        if not isinstance(value, Mapping):
            meter.spend(value)
        return value

    def sliced(self, value: object) -> object:
        """A slice: a copy of the text, or of the list's references."""
        if isinstance(value, str | list | tuple):
            _METER.get().charge(_STEP + len(value) * (1 if isinstance(value, str) else _ITEM))
        return value

    def admitted(self, value: object) -> object:
        """The value of a list, tuple or dict display, checked and charged."""
        _METER.get().admit(value)
        return value


class _Instrument(NodeTransformer):
    """Inserts meter calls into the syntax tree where Jinja has no hook."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._tick(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._tick(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._tick(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        return _environment_call("concat_text", self.generic_visit(node).nodes, node.lineno)  # type: ignore[attr-defined]

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _environment_call("compared", [node.expr], node.lineno)
        for operand in node.ops:
            name = "searched" if operand.op in ("in", "notin") else "compared"
            operand.expr = _environment_call(name, [operand.expr], node.lineno)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        inner = self.generic_visit(node)
        is_slice = isinstance(node.arg, nodes.Slice)
        return _environment_call("sliced", [inner], node.lineno) if is_slice else inner

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return _environment_call("admitted", [self.generic_visit(node)], node.lineno)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return _environment_call("admitted", [self.generic_visit(node)], node.lineno)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        inner = self.generic_visit(node)
        # A tuple in store context (`for a, b in c`) lists assignment targets and has no value.
        return _environment_call("admitted", [inner], node.lineno) if node.ctx == "load" else inner

    def _tick(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        size = sum(len(text.data) for part in node.body for text in part.find_all(nodes.TemplateData))
        size += sum(len(part.data) for part in node.body if isinstance(part, nodes.TemplateData))
        self.generic_visit(node)
        tick = _environment_call("tick", [nodes.Const(size)], node.lineno)
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        return node


class _MeteredCode(CodeGenerator):
    def visit_Template(self, node: nodes.Template, frame: Any = None) -> None:
        instrumented = _Instrument().visit(node)
        instrumented.set_environment(self.environment)
        super().visit_Template(instrumented, frame)

    def visit_Call(self, node: nodes.Call, frame: Any, forward_caller: bool = False) -> None:
        """Calls of the meter need no check by the sandbox."""
        if not isinstance(node.node, nodes.EnvironmentAttribute):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.write(f"environment.{node.node.name}(")
        for argument in node.args:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")")


class _GenerationTag(Extension):
    """`{% generation %}` marks assistant text for training; here only the body is rendered."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it on the instance)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment_call(name: str, args: list[Any], lineno: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), args, [], None, None, lineno=lineno)


@pass_context
def _print(_: Context, value: Any) -> Any:
    _METER.get().admit(value)
    return value


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    # Jinja passes some filters a context or the environment before the value.
    first = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0
    spends, makes_text, grows_alone = name not in _CONSTANT_FILTERS, name in _TEXT_FILTERS, name in _GROWING_ALONE

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        meter = _METER.get()
        meter.charge(_STEP)
        values = args[first:]
        if spends:
            meter.spend(*values, *kwargs.values())
        if makes_text:
            values = tuple([list(a) if isinstance(a, Iterator) else a for a in values])
            for value in (*values, *kwargs.values()):
                meter.admit(value)
        if grows_alone or len(values) > 1 or kwargs:
            _check_growth(meter, name, *values, **kwargs)
        result = function(*args[:first], *values, **kwargs)
        meter.admit(result)
        return result

    return wrapper


def _metered_test(function: Any) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        meter = _METER.get()
        meter.charge(_STEP)
        if len(args) > 1:  # others look only at the type or the existence of the value
            meter.spend(*args, *kwargs.values())
        return function(*args, **kwargs)

    return wrapper


def _check_growth(meter: _Meter, name: str, value: Any = "", *args: Any, **kwargs: Any) -> None:
    """Refuses an operation before it runs if the result would be far larger than the arguments."""
    options = [*args, *kwargs.values()]
    if name in ("indent", "round", "tojson", "batch", "slice", "truncate"):
        numbers = [n for n in options if isinstance(n, int)]
        bound = 64 if name in ("indent", "round", "tojson") else _MAX_RANGE
        if any(abs(n) > bound for n in numbers):
            raise RunawayError(f"it asks the {name} filter for {max(numbers, key=abs)}, more than {bound}")
    if name == "tojson" and any(isinstance(option, int | str) and not isinstance(option, bool) for option in options):
        widths = [len(n) if isinstance(n, str) else n for n in options if isinstance(n, int | str)]
        meter.charge(_indented_weight(value, max(widths), meter.work))
    if name in _WIDENING:
        meter.check(max((n for n in options if isinstance(n, int)), default=0))
    elif name == "wordwrap":
        meter.check((len(str(value)) + 1) * max(_longest_text(options), 1))
    elif name == "striptags":
        meter.charge(len(str(value)) * (1 + str(value).count("<")))  # it copies the text for each tag
    elif name == "pprint":
        meter.charge(_PPRINT_COST * _indented_weight(value, 1, meter.work))
    if name == "sum" and any(isinstance(option, list | tuple) for option in options):
        raise RunawayError("it sums lists")
    longest = max((weigh(option, meter.value_limit) for option in options), default=0)
    if name in _QUADRATIC:
        # Each step compares with the argument, or searches it.
        meter.charge(weigh(value, meter.work) * longest // _COMPARED)
    if name == "replace" and options:
        meter.check(str(value).count(str(options[0])) * longest)
    elif name == "indent":
        meter.check((str(value).count("\n") + 1) * longest)
    elif name == "join":
        # The filter joins its value with its argument; the str method joins its argument with the string.
        items = value if isinstance(value, list | tuple | dict) else next(iter(options), ())
        glue = longest if items is value else len(value)
        meter.check(len(items) * glue if isinstance(items, list | tuple | dict | str) else glue)
    elif name in ("format", "format_map"):
        if _WIDE_FORMAT.search(str(value)):
            raise RunawayError("it formats with a computed width, or with one of four digits")
        width = max(map(int, _NUMBER.findall(str(value))), default=0)
        meter.check(len(str(value)) + (str(value).count("{") + str(value).count("%")) * (longest + width))


def _longest_text(values: Iterable[object]) -> int:
    return max((len(value) for value in values if isinstance(value, str)), default=0)


def _bounded_range(*args: int) -> range:
    numbers = range(*args)
    if numbers[_MAX_RANGE : _MAX_RANGE + 1]:
        raise RunawayError(f"it asks for a range of more than {_MAX_RANGE} numbers")
    return numbers


def _raise_exception(message: str) -> None:
    raise RaisedByTemplate(str(message))


def _strftime_now(form: str) -> str:
    if len(form) > 100 or _WIDE_FORMAT.search(form):
        raise RunawayError("it formats the date with a long pattern")
    return datetime.now().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    # Marks (text/spellings.py) must survive escaping.
    return _ESCAPED_MARK.sub(lambda found: found[1] + MARK, text) if ensure_ascii else text
