"""Ways to damage a saved program, as Hypothesis strategies: its bytes, or the JSON in a file otherwise in order."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st
from saved_programs import put_together, saved_programs, take_apart, with_text

NAMES = [
    "builtins.eval", "builtins.getattr", "builtins.type", "torch.load", "torch.save", "torch.hub.load", "os.system",
    "torch.relu", "torch.from_file", "torch.ops.load_library", "torch.ops.aten.add.Tensor", "operator.methodcaller",
    "torch.nn.Linear", "torch.nn.LSTM", "torch.nn.Embedding", "fx.GraphModule", "fx.Container", "torch.nn.Sequential",
    "torch.nn.ModuleList", "builtins.list", "math.factorial", "torch.Tensor.add", "__class__", "forward.__globals__",
    "forward", "", ".", "0", "body.0", "shape", "grad_fn", "__globals__", "add", "format", "apply_", "self", "*x",
    "**k", "x: __import__('os')", "call_function", "call_method", "call_module", "get_attr", "placeholder", "output",
    "Any", "|", "Union", "class builtins.list", "cuda:7", "float32", "nan", "0x" + "f" * 40, "\ud800", "a\nb", "\0",
]  # fmt: skip
TAGS = [
    "node", "tensor", "int", "float", "complex", "tuple", "dict", "ordered_dict", "set", "frozenset", "size", "slice",
    "range", "bytes", "ellipsis", "device", "name", "enum", "namedtuple", "dtype", "layout", "memory_format", "generic",
    "note", "class", "args", "kwargs", "op", "target", "type", "meta",
]  # fmt: skip

scalars = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, 2, 3, -1, 7, 2**31, 2**62, 2**63 - 1, -(2**63), 10**30, 0.5, -0.0, 1e308])
    | st.integers(-5, 40)
    | st.sampled_from(NAMES)
    | st.text(max_size=5)
    | st.floats()
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*TAGS, *NAMES]), inner, max_size=3)
        | st.builds(lambda tag, value: {tag: value}, st.sampled_from(TAGS), inner)
    ),
    max_leaves=8,
)


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every container and key (or index) in ``tree``."""
    results: list[tuple[Any, Any]] = []
    pending = [tree]
    while pending:
        container = pending.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            results.append((container, key))
            if isinstance(container[key], (dict, list)):
                pending.append(container[key])
    return results[::-1]  # deep values first, where Hypothesis looks most


def damaged_tree(draw: st.DrawFn, tree: Any) -> Any:
    """``tree``, with one value replaced, removed, copied from elsewhere, swapped, repeated or renamed."""
    root = [tree]
    places = _places(root)
    container, key = places[draw(st.integers(0, len(places) - 1))]
    action = draw(st.sampled_from(["replace", "replace", "remove", "copy", "swap", "repeat", "rename", "number"]))
    if action == "remove" and container is not root:
        del container[key]
    elif action in ("copy", "swap"):
        other, other_key = places[draw(st.integers(0, len(places) - 1))]
        copied = copy.deepcopy(other[other_key])
        if action == "swap":
            other[other_key] = copy.deepcopy(container[key])
        container[key] = copied
    elif action == "repeat" and isinstance(container, list) and container is not root:
        container.insert(key, copy.deepcopy(container[key]))
    elif action == "rename" and isinstance(container, dict):
        container[draw(st.sampled_from([*TAGS, *NAMES]))] = container.pop(key)
    elif action == "number" and type(container[key]) is int:
        container[key] += draw(st.sampled_from([-1, 1, 2**40, -(2**70)]))
    else:
        container[key] = draw(values)
    return root[0]


@st.composite
def damaged_json(draw: st.DrawFn) -> bytes:
    """A file whose program was edited."""
    header, program, rest = take_apart(draw(st.sampled_from(saved_programs())))
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.integers(0, 9)):
            program = damaged_tree(draw, program)
        elif isinstance(changed := damaged_tree(draw, header), dict):
            header = changed
        if not isinstance(program, (dict, list)):
            break
    return put_together(header, program, rest)


def text_damaged(draw: st.DrawFn, text: str) -> str:
    """``text`` with something else in the place of some of it."""
    start = draw(st.integers(0, len(text)))
    stop = draw(st.integers(start, min(len(text), start + 20)))
    piece = draw(st.sampled_from(['"', "[", "{", "]" * 5, "[" * 5000, "1" * 5000, "NaN", "1e999", "\\ud800", "", "\0"]))
    return text[:start] + piece + text[stop:]


@st.composite
def damaged_text(draw: st.DrawFn) -> bytes:
    """A file whose JSON text was edited as text."""
    data = draw(st.sampled_from(saved_programs()))
    return with_text(data, text_damaged(draw, json.dumps(take_apart(data)[1])))


def bytes_damaged(draw: st.DrawFn, content: bytes, others: list[bytes]) -> bytes:
    """``content`` with bytes flipped, cut off, cut out, put in, or taken from one of ``others``."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.integers(0, 64)))
        action = draw(st.sampled_from(["flip", "flip", "cut off", "cut out", "put in", "splice"]))
        if action == "flip" and start < len(data):
            data[start] ^= 1 << draw(st.integers(0, 7))
        elif action == "cut off":
            del data[start:]
        elif action == "cut out":
            del data[start:stop]
        elif action == "put in":
            data[start:start] = draw(st.binary(max_size=16))
        else:
            other = draw(st.sampled_from(others))
            data[start:stop] = other[start : start + draw(st.integers(0, 200))]
    return bytes(data)


@st.composite
def damaged_bytes(draw: st.DrawFn) -> bytes:
    """A file whose bytes were edited."""
    programs = saved_programs()
    return bytes_damaged(draw, draw(st.sampled_from(programs)), programs)


damaged_files = st.one_of(damaged_json(), damaged_json(), damaged_json(), damaged_bytes(), damaged_text())
