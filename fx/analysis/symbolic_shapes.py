"""Symbolic sizes of every value, and the constraints on them that the program needs to run (section 6.3)."""

from __future__ import annotations

import ast
import inspect
import operator
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import sympy  # pyright: ignore[reportMissingTypeStubs]
import torch
import torch._meta_registrations
from sympy.printing.precedence import PRECEDENCE  # pyright: ignore[reportMissingTypeStubs]
from sympy.printing.str import StrPrinter  # pyright: ignore[reportMissingTypeStubs]
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils import _pytree as pytree

from fx.analysis.symbolic_kernels import SymbolicKernels
from fx.argument_types import checked
from fx.arguments import shown
from fx.container_kinds import map_parts
from fx.errors import PassError, add_note
from fx.graph_module import GraphModule
from fx.interpreter import positional
from fx.naming.tables import table_lines
from fx.node import Node
from fx.passes.shape_prop import ShapeProp
from fx.provenance import SourceLocation

Size: TypeAlias = "int | str"
"""A number, or a Python expression in names."""

_CHOOSES_KERNELS = frozenset({"_prims_common", "fake_impls", "tensor_metadata"})
"""PyTorch's files that query sizes to choose a layout or a kernel, not because the program needs them."""
_patching = threading.RLock()
_ALLOWED = (ast.Expression, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Name, ast.Load, ast.Constant)


@dataclass(frozen=True, slots=True)
class TensorSizes:
    """The metadata of one tensor. Sizes are numbers, or expressions in the names of the inputs' sizes."""

    shape: tuple[Size, ...]
    """Size of each dimension."""
    dtype: torch.dtype
    """Type of the elements."""
    stride: tuple[Size, ...]
    """Elements to skip in memory for one step in each dimension; empty for sparse and other layouts without strides."""
    layout: torch.layout
    """The layout, strided or sparse."""
    device: torch.device
    """The device."""
    requires_grad: bool
    """Whether autograd records operations on it."""

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.shape))}{',' if len(self.shape) == 1 else ''})"


@dataclass(frozen=True, slots=True, eq=False)
class Constraint:
    """A condition on the sizes of the inputs, which the program needs to run as described."""

    text: str
    """An expression in the names of sizes, such as ``h == w``."""
    node: Node | None
    """The node that needs it; None if the inputs themselves do."""
    where: SourceLocation | None
    """The user's line."""
    is_needed: bool
    """True if the program needs it. False if it only decides a layout or excludes a size of 1, which broadcasts."""

    def __str__(self) -> str:
        place = "" if self.where is None else f"  ({Path(self.where.file).name}:{self.where.line})"
        return f"{self.text}, for {self.node}{place}" if self.node is not None else self.text


@dataclass(frozen=True, slots=True, eq=False)
class ShapeReport:
    """The sizes of all values of a program."""

    tensors: dict[Node, tuple[TensorSizes, ...]]
    """The tensors in the value of each node, in order; nodes without tensors are left out."""
    constraints: tuple[Constraint, ...]
    """The constraints, in the order in which the program needs them. In addition, all named sizes are 2 or more."""
    names: dict[str, int]
    """The names of sizes, each with its hint: the number used where the course of the program depends on the size."""

    @property
    def needed(self) -> tuple[Constraint, ...]:
        """The constraints that the program needs, without those that only choose layouts."""
        return tuple(constraint for constraint in self.constraints if constraint.is_needed)

    def shape_of(self, name: str) -> tuple[Size, ...]:
        """Return the shape of the first tensor in the value of the node called ``name``.

        Raises:
            KeyError: there is no such node, or it holds no tensor.
        """
        return next(tensors[0].shape for node, tensors in self.tensors.items() if node.name == name)

    def __str__(self) -> str:
        rows = [
            [
                node.name + (f"[{place}]" if len(tensors) > 1 else ""),
                str(sizes),
                str(sizes.dtype).removeprefix("torch."),
            ]
            for node, tensors in self.tensors.items()
            for place, sizes in enumerate(tensors)
        ]
        lines = table_lines(["node", "shape", "dtype"], rows)
        if self.names:
            lines += ["", f"holds for {', '.join(self.names)} of 2 or more" + (", where" if self.needed else "")]
        lines += [f"  {constraint}" for constraint in self.needed]
        return "\n".join(lines)


@checked(PassError)
def symbolic_shapes(
    gm: GraphModule, /, *args: Any, hints: Mapping[str, int] | None = None, **inputs: Any
) -> ShapeReport:
    """Compute the sizes of every value as expressions in names that you choose, without running it (section 6.3).

    The algebra is PyTorch's: the program runs on fake tensors with symbolic sizes, and each condition that it checks on
    them is recorded. ``meta["tensor_meta"]`` of each node holds the same sizes as ``torch.SymInt``.

    Args:
        gm: the program.
        args: its inputs, by position. A tensor is described by a tuple of its sizes, ``("batch", 3, "2*h")``: numbers,
            names or expressions in names. A last element gives the dtype; without it, the dtype is torch's default.
            Containers may hold such tuples. Any other value is passed on unchanged.
        hints: numbers for names, used where the course of the program depends on a size. The defaults are 64, 96, 128,
            and so on.
        inputs: further inputs, by name.

    Raises:
        PassError: a size cannot be read, or inputs are missing or too many.
        Exception: whatever an operation raises, with a note that names the node and the user's line.

    >>> import fx
    >>> program = fx.symbolic_trace(lambda x: torch.nn.functional.max_pool2d(x, 2).flatten(1))
    >>> symbolic_shapes(program, ("batch", 3, "h", "w")).shape_of("flatten")
    ('batch', '3*(h//2)*(w//2)')
    """
    try:
        values = positional(gm, args, inputs)
    except TypeError as error:
        raise PassError(
            f"the inputs do not fit the program: {error}", value=f"forward{inspect.signature(gm.forward)}"
        ) from error
    names = _Names(hints or {})
    run = _SymbolicRun(gm, names)
    fakes = [names.tensor(value) for value in values]
    try:
        with torch.no_grad(), _divisions_without_guards():
            run.propagate(*fakes)
    except Exception as error:
        add_note(error, names.legend())
        raise
    tensors = {node: tuple(map(names.describe, found_tensors)) for node, found_tensors in run.found.items()}
    return ShapeReport(tensors, tuple(run.constraints()), names.hints)


class _Names:
    """Symbols for the user's names of sizes."""

    def __init__(self, hints: Mapping[str, int]) -> None:
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        self.mode.cache_enabled = False  # SymbolicKernels caches with fewer comparisons of expressions, which are slow
        self.hints: dict[str, int] = {}
        self._given = dict(hints)
        self._sizes: dict[str, Any] = {}
        self._shown: dict[sympy.Symbol, sympy.Symbol] = {}
        self._spelled: dict[Any, str] = {}

    def tensor(self, value: Any) -> Any:
        """Replace each description of a tensor in ``value`` by a fake tensor, and return the result."""
        if _is_description(value):
            sizes, dtype = list(value), torch.get_default_dtype()
            if sizes and isinstance(sizes[-1], torch.dtype):
                dtype = sizes.pop()
            with self.mode:
                return torch.empty([self._size(size) for size in sizes], dtype=dtype)
        return map_parts(self.tensor, value)

    def _size(self, size: Size) -> Any:
        if isinstance(size, int):
            return size
        try:
            tree = ast.parse(size, mode="eval")
        except SyntaxError:
            raise _unreadable(size) from None
        if not all(isinstance(part, _ALLOWED) for part in ast.walk(tree)):
            raise _unreadable(size)
        names = [part.id for part in ast.walk(tree) if isinstance(part, ast.Name)]
        return eval(compile(tree, "<size>", "eval"), {"__builtins__": {}}, {name: self._named(name) for name in names})

    def _named(self, name: str) -> Any:
        if name not in self._sizes:
            hint = self.hints[name] = self._given.get(name, 64 + 32 * len(self.hints))
            source = ConstantSource(name)
            symbol: Any = self.env.create_symbol(hint, source, DimDynamic.DYNAMIC)
            self._shown[symbol] = sympy.Symbol(name, integer=True, positive=True)
            self._sizes[name] = self.env.create_symintnode(symbol, hint=hint, source=source)
        return self._sizes[name]

    def legend(self) -> str:
        """Return the meanings of PyTorch's symbols, to explain its error messages."""
        meanings = [f"{symbol} is {name}, here {self.hints[str(name)]}" for symbol, name in self._shown.items()]
        return f"Sizes: {'; '.join(meanings) or 'numbers only'}"

    def spell(self, expression: Any) -> str:
        """Return a PyTorch expression in the user's names.

        To be called after the run, which may add facts that simplify the expression.
        """
        if expression not in self._spelled:
            simplified = self.env.simplify(expression) if not isinstance(expression, sympy.Rel) else expression
            self._spelled[expression] = _Spelling().doprint(simplified.xreplace(self._shown))
        return self._spelled[expression]

    def size(self, size: Any) -> Size:
        """Return a size as a number or an expression."""
        if not isinstance(size, torch.SymInt):
            return int(size)
        text = self.spell(size.node.expr)
        return int(text) if text.isdigit() else text

    def describe(self, tensor: torch.Tensor) -> TensorSizes:
        """Return the metadata of a fake tensor, in the user's names."""
        stride = tensor.stride() if tensor.layout is torch.strided else ()
        shape, strides = (tuple(map(self.size, sizes)) for sizes in (tensor.shape, stride))
        return TensorSizes(shape, tensor.dtype, strides, tensor.layout, tensor.device, tensor.requires_grad)


@contextmanager
def _divisions_without_guards() -> Generator[None]:
    """Divide sizes in pooling without a guard on the remainder, as torch 2.13 does; the results are the same."""
    meta: Any = torch._meta_registrations
    with _patching:
        divide = vars(meta).get("div_rtn")
        try:
            if divide is not None:
                meta.div_rtn = operator.floordiv
            yield
        finally:
            if divide is not None:
                meta.div_rtn = divide


class _SymbolicRun(ShapeProp):
    """Shape propagation that records the guards on sizes of each node."""

    def __init__(self, gm: GraphModule, names: _Names) -> None:
        super().__init__(gm, names.mode)
        self.found: dict[Node, list[torch.Tensor]] = {}
        self._names = names
        self._guards: list[tuple[Any, Node]] = []

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program on tensors with symbolic sizes."""
        with SymbolicKernels(self._names.mode):
            return super().run(*args, **kwargs)

    def run_node(self, n: Node) -> Any:
        """Run one node, and record its tensors and its guards."""
        guards = self._names.env.guards
        before = len(guards)
        result = super().run_node(n)
        self._guards += [(guard, n) for guard in guards[before:]]
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if tensors:
            self.found[n] = tensors
        return result

    def constraints(self) -> list[Constraint]:
        """Return the recorded guards without duplicates, in the user's names."""
        constraints: dict[str, Constraint] = {}
        for guard, node in self._guards:
            file = Path(str(getattr(guard.sloc.framework_loc, "filename", "")))
            steers = not _CHOOSES_KERNELS.isdisjoint((file.stem, file.parent.name))
            is_needed = isinstance(guard.expr, sympy.Eq) or not (steers or isinstance(guard.expr, sympy.Ne))
            text = self._names.spell(guard.expr)
            if text != "True" and not (text in constraints and constraints[text].is_needed >= is_needed):
                constraints[text] = Constraint(text, node, node.source, is_needed)
        return list(constraints.values())


class _Spelling(StrPrinter):
    """A printer of expressions in Python's syntax."""

    printmethod = "_as_python"  # PyTorch's own functions would print themselves otherwise

    def _print_FloorDiv(self, expr: Any) -> str:
        base, divisor = (self.parenthesize(part, PRECEDENCE["Mul"], strict=True) for part in expr.args)
        return f"{base}//{divisor}"

    _print_CleanDiv = _print_FloorDiv  # a division known to have no remainder

    def _print_Add(self, expr: Any, order: Any = None) -> str:
        terms = [str(self._print(term)) for term in self._as_ordered_terms(expr, order=order)]
        return " + ".join(terms).replace("+ -", "- ")

    def _print_Mod(self, expr: Any) -> str:
        first, second = (self.parenthesize(part, PRECEDENCE["Atom"], strict=True) for part in expr.args)
        return f"{first} % {second}"

    _print_PythonMod = _print_Mod

    def _print_Relational(self, expr: Any) -> str:
        return f"{self._print(expr.lhs)} {expr.rel_op} {self._print(expr.rhs)}"


def _is_description(value: Any) -> bool:
    """Return whether a value is a tuple of sizes, optionally followed by a dtype."""
    if not isinstance(value, tuple) or not value:
        return False
    parts = cast("tuple[Any, ...]", value)
    sizes: Sequence[Any] = parts[:-1] if isinstance(parts[-1], torch.dtype) else parts
    return all(isinstance(size, (int, str)) and not isinstance(size, bool) for size in sizes)


def _unreadable(size: str) -> PassError:
    return PassError(
        f"cannot read the size {shown(size)}",
        remedy="write a number, a name, or an expression of both with + - * //, such as 2*h",
    )
