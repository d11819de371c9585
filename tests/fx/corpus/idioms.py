"""What Python offers and models use: caches, registries, generators, context managers, matches, texts, warnings."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import itertools
import logging
import operator
import re
import warnings
from collections import ChainMap, defaultdict, deque, namedtuple
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from .programs import Layered, given, images, one_liners, other_rows, program, rows

_logger = logging.getLogger(__name__)
_REGISTRY: dict[str, Any] = {}
_CONFIG = SimpleNamespace(scale=2.0, activation="relu", options={"bias": True})
_WARNED: set[str] = set()


def _registered(name):
    def register(function):
        _REGISTRY[name] = function
        return function

    return register


@_registered("swish")
def _swish(x):
    return x * x.sigmoid()


@_registered("square")
def _square(x):
    return F.relu(x) ** 2


class Activation(enum.Enum):
    RELU = "relu"
    SWISH = "swish"

    def __call__(self, x):
        return F.relu(x) if self is Activation.RELU else _swish(x)


class Point(NamedTuple):
    x: Any
    y: Any


Pair = namedtuple("Pair", ["first", "second"])


@dataclasses.dataclass
class Output:
    hidden: Any
    loss: Any = None
    extras: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Settings:
    width: int = 6
    scale: float = 0.5

    @functools.cached_property
    def factor(self):
        return self.width * self.scale


@functools.lru_cache
def _mask(size):
    return torch.tril(torch.ones(size, size))


@contextlib.contextmanager
def _scaled(scale):
    before = _CONFIG.scale
    _CONFIG.scale = scale
    try:
        yield scale
    finally:
        _CONFIG.scale = before


class _Timer:
    def __enter__(self):
        self.seen = []
        return self

    def __exit__(self, *exception):
        return False


def _steps(x):
    for factor in (1, 2, 3):
        yield x * factor


@program(rows)
class FromRegistry(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = _REGISTRY["swish"]
        self.layers = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Linear(6, 6)})

    def forward(self, x):
        for name, layer in self.layers.items():
            x = _REGISTRY["square" if name == "b" else "swish"](layer(x))
        return self.act(x)


@program(rows)
class CachedProperty(nn.Module):
    def __init__(self):
        super().__init__()
        self.width = 6

    @functools.cached_property
    def scale(self):
        return self.width**-0.5

    def forward(self, x):
        return x * self.scale + self.scale


@program(rows)
class CachedTensor(nn.Module):
    @functools.cached_property
    def positions(self):
        return torch.arange(6.0)

    def forward(self, x):
        return x + self.positions


@program(rows)
def of_dataclass(x):
    settings = Settings()
    return x * settings.factor + dataclasses.replace(settings, scale=2.0).scale


@program(rows)
def within_own_context(x):
    with _scaled(3.0) as scale:
        y = x * _CONFIG.scale + scale
    return y * _CONFIG.scale


@program(rows)
def within_class_context(x):
    with _Timer() as timer, contextlib.ExitStack() as stack:
        stack.callback(timer.seen.append, 1)
        y = x * 2
        timer.seen.append(y.shape)
    return y * len(timer.seen)


one_liners(
    rows,
    generated=lambda x: sum(_steps(x)),
    branch_on_export=lambda x: x if torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export() else x * 2,
    dataclass_returned=lambda x: Output(hidden=x * 2, extras=(x, 1)),
    accumulated=lambda x: list(itertools.accumulate([x, x * 2, x * 3], operator.add))[-1],
    chained=lambda x: torch.cat(list(itertools.chain([x], (x * n for n in range(2)))), dim=1),
    lambda_in_default=lambda x, scale=lambda t: t * 3: scale(x),
    converted_to_python_class=lambda x: x.to(float) + x.sum(dtype=float),
)


@program(rows)
def generated_in_parts(x):
    steps = _steps(x)
    first = next(steps)
    return first + next(steps) * 2


@program(rows)
def walrus(x):
    if (width := 6) > 3:
        x = x * width
    return [y := x + 1, y * 2]


@program(rows, given("mean"))
def matched_text(x, kind):
    match _CONFIG.activation:
        case "relu" | "gelu":
            x = F.relu(x)
        case str():
            x = x.tanh()
    return x


@program(rows)
def matched_structure(x):
    match {"kind": "linear", "sizes": [6, 3]}:
        case {"kind": "linear", "sizes": [width, *_]}:
            return x * width
        case _:
            return x


@program(rows)
def matched_point(x):
    match Point(x, 2):
        case Point(x=left, y=int(right)):
            return left * right
    return x


@program(rows)
def text_of_shape(x):
    message = f"{tuple(x.shape)} of {x.dtype}"
    return {"x": x * 2, "n": len(message) > 0}


@program(rows)
def logged(x):
    _logger.debug("shape %s", x.shape)
    _logger.info(f"input {x.shape[0]}")
    return x + 1


@program(rows)
def warned(x):
    warnings.warn("deprecated", DeprecationWarning, stacklevel=2)
    return x * 2


@program(rows)
def warned_once(x):
    if "x" not in _WARNED:
        _WARNED.add("x")
        return x * 3
    return x * 2


@program(rows)
def configured(x):
    y = getattr(F, _CONFIG.activation)(x) * _CONFIG.scale
    return y + 1 if _CONFIG.options.get("bias", False) else y


@program(rows)
class ByEnum(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = Activation("swish")

    def forward(self, x):
        return self.act(x) if self.act in (Activation.SWISH, Activation.RELU) else x


@program(images)
def rearranged(x):
    pattern = "b c h w -> b (h w) c"
    left, right = (side.split() for side in re.sub(r"[()]", "", pattern).split("->"))
    return x.permute([left.index(name) for name in right]).flatten(1, 2)


@program(rows)
def branch_on_tracing(x):
    if torch.jit.is_tracing() or torch.jit.is_scripting():
        return x
    if torch.compiler.is_compiling() or torch.compiler.is_dynamo_compiling():
        return x * 3
    return x * 2


@program(rows)
def named_results(x):
    values, indices = x.max(dim=1)
    top = x.topk(2, dim=1)
    return Pair(values + top.values[:, 0], indices), torch.sort(x).indices


@program(rows)
def dataclass_updated(x):
    output = Output(x)
    output.hidden = output.hidden * 2
    output.loss = output.hidden.sum()
    return dataclasses.asdict(output)["loss"] if dataclasses.is_dataclass(x) else output.loss


@program(rows)
def composed(x):
    steps = [torch.relu, functools.partial(torch.clamp, max=1.0), lambda t: t * 2]
    for step in steps:
        x = step(x)
    return x


@program(rows)
def containers(x):
    held = defaultdict(list)
    held["a"].append(x)
    held["a"] += [x * 2]
    queue = deque(held["a"], maxlen=2)
    queue.appendleft(x * 3)
    return ChainMap({}, {"x": queue.pop() + queue[0]})["x"]


@program(rows)
def tried(x):
    try:
        import no_such_module_at_all as missing
    except ImportError:
        missing = None
    return x * 2 if missing is None else missing.run(x)


@program(rows)
def retried(x):
    for scale in ("a", 2.0):
        try:
            y = x * (scale + 1)
        except TypeError:
            continue
        break
    return y


@program(rows)
def recursive(x, depth=3):
    return x if depth == 0 else recursive(x * 2, depth - 1)


@program(rows)
def slices(x):
    head, window = slice(None, 2), slice(1, None, 2)
    return x[:, head].sum(1, keepdim=True) + x[:, window] + x[..., None].squeeze(-1)[:, [0, 2, 4]]


@program(rows)
def global_declared(x):
    global _LAST
    _LAST = x
    return _LAST * 2


@program(rows)
class Slots(Layered):
    class Step:
        __slots__ = ("layer", "scale")

        def __init__(self, layer, scale):
            self.layer, self.scale = layer, scale

        def __call__(self, x):
            return self.layer(x) * self.scale

    def __init__(self):
        super().__init__()
        self.step = self.Step(self.layer, 2.0)

    def forward(self, x):
        return self.step(x)


@program(rows)
class ByClassName(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))

    def forward(self, x):
        for layer in self.layers:
            if type(layer).__name__ == "Linear" or isinstance(layer, nn.ReLU):
                x = layer(x)
        return x


@program(rows)
class AsIterator(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        layers = iter(self.layers)
        x = next(layers)(x)
        for number, layer in enumerate(layers, start=1):
            x = layer(x) * number
        return x


@program(rows)
class Walked(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        for name, child in self.named_children():
            x = child(x) * (2 if name == "a" else 3)
        return x + sum(p.sum() for p in self.parameters())


@program(rows, other_rows)
def ternaries(x, y):
    z = x if y is None else y if x is y else x + y
    return z and z if isinstance(z, bool) else z
