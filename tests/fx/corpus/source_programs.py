"""Random Python programs, as text: statements with branches, loops, writes in place, containers and state."""

from __future__ import annotations

import builtins
import contextlib
import functools
import linecache
from typing import Any

import torch
from hypothesis import strategies as st

from .programs import Program, other_rows, rows

THEME = "drawn"
"""The name of the file that the text is said to stand in, by which a refusal is known to name its line."""
_START = """
class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x, scale=None):
        if self.training:
            x = x + 1
        return self.layer(x) if scale is None else self.layer(x) * scale

    def halves(self, x):
        return [self.layer(x) * 0.5, x[:, :]]


def swapped(x, y):
    return y, x


def doubled(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return inner


@doubled
def scaled(x, *others, scale=0.5):
    return x * scale + len(others)


class Quiet:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        return kind is TypeError


class Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Tanh(), nn.BatchNorm1d(6)])
        self.inner = Inner()
        self.drop = nn.Dropout(0.5)
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 6))
        self.register_buffer("mean", torch.full((6,), 0.5))
        self.flag, self.steps, self.cache, self.seen = True, 0, {}, []
"""
_EXPRESSIONS = (
    "{a} * {b}", "{a} + {b}", "{a} - 1", "2 * {a}", "torch.relu({a})", "{a}.sin()", "{a} * self.weight",
    "{a} + self.mean", "{a}", "{a}[:, :]", "{a}.view(-1, 6)", "{a}.t().t()", "{a}.contiguous()", "{a}.clone()",
    "{a}.detach()", "self.inner({a})", "self.inner({a}, 2.0)", "self.inner.halves({a})[0]", "self.inner.halves({a})[1]",
    "self.layers[0]({a})", "self.layers[1]({a})", "self.layers[2]({a})", "self.drop({a})",
    "F.dropout({a}, 0.5, self.training)", "F.dropout({a}, 0.5, training=self.training)",
    "torch.cat([part * 2 for part in {a}.chunk(3, dim=1)], dim=1)", "torch.where({a} > 0, {a}, {b})",
    "{a} * {a}.shape[0]", "{a}.reshape({a}.size(0), 2, 3).flatten(1)", "{a} + torch.rand_like({b})",
    "{a} + torch.ones({a}.shape)", "{a} + torch.zeros(6)", "swapped({a}, {b})[0]", "(lambda t: t * 3)({a})",
    "sum([{a}, {b}])", "[{a}, {b}][-1]", '{{"k": {a}}}["k"]', "{a} if self.flag else {b}",
    "{a} if self.training else {b}", "{a} if extra is None else {b}", "{a} * (extra or 2)", "{a} * (self.steps + 1)",
    "{a} * len(self.seen)", "{a} * int(self.training)", "{a}.to(torch.float32)", "{a} * max(len({a}.shape), 1)",
    "{a} if isinstance({b}, torch.Tensor) else {b}", '{a} * getattr(self, "missing", 2)', "{a} * ({b} is {a})",
    "{a} / (1 + {b}.abs().max())", "{a} - self.cache.get('k', 1)", "{a} * KNOWN.get(f'n{{{b}.shape[0]}}', 3.0)",
    "{a} * KNOWN.get('n' + str({b}.size(0)), 3.0)", "{a} * KNOWN.get(f'n{{len(self.seen)}}', 3.0)",
    "{a} * len(f'{{{a}.dim()}}')", "{a} * (2 if builtins.isinstance({b}, torch.Tensor) else 3)", "scaled({a})",
    "scaled({a}, {b}, scale=2.0)", "{a} * len(range({b}.dim()))", "{a} * len(range(6))", "{a}.view(*{b}.shape)",
    "{a} * getattr(self, f'steps{{{a}.dim()}}', 2)", "{a} + sum(map(float, (1, 2)))", "{a}.view(3, -1).view(-1, 6)",
)  # fmt: skip
_STATEMENTS = (
    "{v} += {b}", "{v} *= 2", "{v}.mul_(0.5)", "{v}[0] = 1.0", "{v}[:, 1] = {b}[:, 0]", "{v}.add_({b})", "{v}[1:] += 1",
    "self.mean.mul_(0.9)", "self.mean += 0.1", "self.steps += 1", "self.seen.append({v})", "self.seen.append(1)",
    'self.cache["k"] = 2', 'self.cache["k"] = {v}', "self.last = {v}", "assert {v}.dim() == 2",
    "assert {v}.dim() in (2, 3)", "assert ({v}.size(1), 6) == (6, 6)", "{v}, {b} = {b}, {v}",
    "{v}, {b} = swapped({v}, {b})", "n = {v}.shape[0]", "items = [{v}, {b}]; items[0] += 1; {v} = items[1]",
    'held = {{"a": {v}}}; held["a"] = held["a"] * 2; {v} = held["a"]', "self.flag = not self.flag", "self.drop.p = 0.1",
    "first, *others = {v}.chunk(2, dim=1); {v} = torch.cat([first, *others], dim=1)",
    "if {v}.dim() not in (2, 3): raise ValueError('rank')", "self.eval()", "self.mean = self.mean * 0.5",
    "torch.manual_seed(3)", "{v} = {v}.requires_grad_()", "self.inner.scale = {v}",
    "rows, *_ = {v}.shape; {v} = {v}.reshape(rows, 6)", "*_, last = {v}.unbind(1); {v} = {v} + last.unsqueeze(1)",
    "rows, *rest = {v}.shape; {v} = {v}.reshape(rows, *rest)", "n, m = {v}.shape; {v} = {v}.reshape(n, m)",
    "message = f'shape {{{v}.shape}}'", "assert {v}.size(1) == 6, f'{{{v}.size(1)}} columns'",
    "n = len(range({v}.shape[0])); {v} = {v} * n",
)  # fmt: skip
_BLOCKS = (
    "if self.training:", "if not self.training:", "if extra is None:", "if extra is not None:", "if self.flag:",
    "for step in range(2):", "for layer in self.layers:", "with torch.no_grad():", "with torch.enable_grad():",
    "if torch.is_grad_enabled():", "for part in {a}.chunk(2):", "if {a} is {b}:", "while self.steps < 1:", "try:",
    "if self.seen:", "for key in self.cache:", "with torch.autocast('cpu', dtype=torch.bfloat16):",
    "with Quiet():", "with contextlib.suppress(TypeError, RuntimeError):", "if isinstance({a}, (list, tuple)):",
    "for size in {a}.shape[:2]:", "for index, part in enumerate({a}.split([2, 4], dim=1)):",
)  # fmt: skip
_NAMES = st.sampled_from(("x", "y", "z"))
_RETURNS = ("x", "x, y", "[x, z]", '{{"x": x, "z": (z, 1)}}', "x if extra is None else (x, z)", "x + y + z", "y, y")


@st.composite
def source_programs(draw: st.DrawFn) -> str:
    """Draw the text of a class of modules, ``Drawn``, whose forward takes two matrices and may take a third."""
    lines = ["    def forward(self, x, y, extra=None):", "        z = x + y", "        n = 1"]
    _block(draw, lines, 2, draw(st.integers(1, 6)))
    lines.append(f"        return {draw(st.sampled_from(_RETURNS)).format()}")
    return _START + "\n" + "\n".join(lines) + "\n"


def _block(draw: st.DrawFn, lines: list[str], depth: int, count: int) -> None:
    margin = "    " * depth
    for _ in range(count):
        kind = draw(st.integers(0, 9))
        names = {"v": draw(_NAMES), "a": draw(_NAMES), "b": draw(_NAMES)}
        if kind < 5:
            lines.append(f"{margin}{names['v']} = {draw(st.sampled_from(_EXPRESSIONS)).format(**names)}")
        elif kind < 8 or depth > 3:
            lines.append(margin + draw(st.sampled_from(_STATEMENTS)).format(**names))
        else:
            opening = draw(st.sampled_from(_BLOCKS)).format(**names)
            lines.append(margin + opening)
            if opening.startswith("for layer"):
                lines.append(f"{margin}    {names['v']} = layer({names['v']})")
            elif opening.startswith("for part"):
                lines.append(f"{margin}    {names['v']} = {names['v']} + part.sum()")
            elif opening.startswith("while"):
                lines.append(f"{margin}    self.steps += 1")
            _block(draw, lines, depth + 1, draw(st.integers(1, 2)))
            if opening == "try:":
                lines += [f"{margin}except TypeError:", f"{margin}    {names['v']} = {names['a']} * 7"]
            elif opening.startswith("if") and draw(st.booleans()):
                lines.append(f"{margin}else:")
                _block(draw, lines, depth + 1, 1)


def program_of(text: str) -> Program:
    """The program that a text defines, in a file of its own as far as messages go."""
    file = f"{THEME}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "__name__": THEME}
    namespace |= {
        "builtins": builtins,
        "contextlib": contextlib,
        "functools": functools,
        "KNOWN": {"n2": 2.0, "n0": 4.0},
    }
    exec(compile(text, file, "exec"), namespace)
    return Program(THEME, namespace["Drawn"], lambda size: (rows(size), other_rows(size)), {}, False, False)
