"""Sizes of every value as expressions in names, and what must hold of those for the program to run (section 6.3)."""

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
from fx.arguments import shown
from fx.container_kinds import map_parts
from fx.errors import PassError, add_note
from fx.graph_module import GraphModule, expect_program
from fx.interpreter import positional
from fx.naming.tables import table_lines
from fx.node import Node
from fx.passes.shape_prop import ShapeProp
from fx.provenance import SourceLocation

Size: TypeAlias = "int | str"
"""A number, or an expression in names as Python writes it."""

_CHOOSES_KERNELS = frozenset({"_prims_common", "fake_impls", "tensor_metadata"})
"""Files that ask for sizes in order to choose a layout or a kernel, not since a program needs them."""
_patching = threading.RLock()
_ALLOWED = (ast.Expression, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Name, ast.Load, ast.Constant)


@dataclass(frozen=True, slots=True)
class TensorSizes:
    """What is known of one tensor. Sizes are numbers, or expressions in the names of the inputs' sizes."""

    shape: tuple[Size, ...]
    """Size of each dimension."""
    dtype: torch.dtype
    """Type of the elements."""
    stride: tuple[Size, ...]
    """Elements to skip in memory for one step in each dimension; empty where a tensor has none, as sparse ones."""
    layout: torch.layout
    """Strided or sparse."""
    device: torch.device
    """Where it is."""
    requires_grad: bool
    """Whether autograd records operations on it."""

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.shape))}{',' if len(self.shape) == 1 else ''})"


@dataclass(frozen=True, slots=True, eq=False)
class Constraint:
    """What must hold of the sizes of the inputs for the program to run as described."""

    text: str
    """An expression in their names, as ``h == w``."""
    node: Node | None
    """The node that needs it; None: the inputs themselves."""
    where: SourceLocation | None
    """The user's line."""
    is_needed: bool
    """Whether the program needs it. Else it decides about a layout, or about a size of 1, which would broadcast."""

    def __str__(self) -> str:
        place = "" if self.where is None else f"  ({Path(self.where.file).name}:{self.where.line})"
        return f"{self.text}, for {self.node}{place}" if self.node is not None else self.text


@dataclass(frozen=True, slots=True, eq=False)
class ShapeReport:
    """Sizes of all values of a program."""

    tensors: dict[Node, tuple[TensorSizes, ...]]
    """The tensors in the value of each node, in order; nodes whose values hold none are left out."""
    constraints: tuple[Constraint, ...]
    """What must hold, in the order in which the program needs it. All sizes with a name are 2 or more besides."""
    names: dict[str, int]
    """The names of sizes, each with the number that stood for it where the course of the program depends on it."""

    @property
    def needed(self) -> tuple[Constraint, ...]:
        """The constraints without those that choose layouts."""
        return tuple(one for one in self.constraints if one.is_needed)

    def shape_of(self, name: str) -> tuple[Size, ...]:
        """The shape of the value of the node called ``name``, of the first tensor in it.

        Raises:
            KeyError: there is no such node, or it holds no tensor.
        """
        return next(tensors[0].shape for node, tensors in self.tensors.items() if node.name == name)

    def __str__(self) -> str:
        rows = [
            [node.name + (f"[{place}]" if len(tensors) > 1 else ""), str(one), str(one.dtype).removeprefix("torch.")]
            for node, tensors in self.tensors.items()
            for place, one in enumerate(tensors)
        ]
        lines = table_lines(["node", "shape", "dtype"], rows)
        if self.names:
            lines += ["", f"holds for {', '.join(self.names)} of 2 or more" + (", where" if self.needed else "")]
        lines += [f"  {one}" for one in self.needed]
        return "\n".join(lines)


def symbolic_shapes(
    gm: GraphModule, /, *args: Any, hints: Mapping[str, int] | None = None, **inputs: Any
) -> ShapeReport:
    """Work out the sizes of every value as expressions in names of yours, without running anything (section 6.3).

    The algebra is PyTorch's: the program runs on fake tensors with symbolic sizes, and what it asks of them is noted.
    ``meta["tensor_meta"]`` of each node holds the same sizes as ``torch.SymInt``.

    Args:
        gm: the program.
        args: its inputs, by position. A tensor is given as a tuple of its sizes, each a number, a name or an expression
            in names (``("batch", 3, "2*h")``), with its dtype behind them if it is not torch's default one. Containers
            hold such tuples; anything else is an input as it is.
        hints: numbers for names, where the course of the program depends on a size. By default 64, 96, 128, and so on.
        inputs: the others, by name.

    Raises:
        PassError: a size cannot be read, or inputs are missing or too many.
        Exception: whatever an operation raises, with a note that names the node and the user's line.

    >>> import fx
    >>> program = fx.symbolic_trace(lambda x: torch.nn.functional.max_pool2d(x, 2).flatten(1))
    >>> symbolic_shapes(program, ("batch", 3, "h", "w")).shape_of("flatten")
    ('batch', '3*(h//2)*(w//2)')
    """
    expect_program(gm, "symbolic_shapes looks at a GraphModule")
    try:
        given = positional(gm, args, inputs)
    except TypeError as error:
        raise PassError(
            f"the inputs do not fit the program: {error}", value=f"forward{inspect.signature(gm.forward)}"
        ) from error
    names = _Names(hints or {})
    run = _SymbolicRun(gm, names)
    fakes = [names.tensor(value) for value in given]
    try:
        with torch.no_grad(), _divisions_asking_nothing():
            run.propagate(*fakes)
    except Exception as error:
        add_note(error, names.legend())
        raise
    tensors = {node: tuple(map(names.describe, found)) for node, found in run.found.items()}
    return ShapeReport(tensors, tuple(run.constraints()), names.hints)


class _Names:
    """Symbols for the names that the user gives sizes."""

    def __init__(self, hints: Mapping[str, int]) -> None:
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        self.mode.cache_enabled = False  # SymbolicKernels keeps results: it asks less of expressions, which are slow
        self.hints: dict[str, int] = {}
        self._given = dict(hints)
        self._sizes: dict[str, Any] = {}
        self._shown: dict[sympy.Symbol, sympy.Symbol] = {}
        self._spelled: dict[Any, str] = {}

    def tensor(self, value: Any) -> Any:
        """The fake tensors that descriptions of tensors in ``value`` stand for; what is none stays."""
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
        """Return what PyTorch's symbols stand for, for its messages."""
        known = [f"{symbol} is {name}, here {self.hints[str(name)]}" for symbol, name in self._shown.items()]
        return f"Sizes: {'; '.join(known) or 'numbers only'}"

    def spell(self, expression: Any) -> str:
        """An expression of PyTorch's in the user's names; once the run is over, as it may simplify what is known."""
        if expression not in self._spelled:
            known = self.env.simplify(expression) if not isinstance(expression, sympy.Rel) else expression
            self._spelled[expression] = _Spelling().doprint(known.xreplace(self._shown))
        return self._spelled[expression]

    def size(self, size: Any) -> Size:
        """A size as a number or an expression."""
        if not isinstance(size, torch.SymInt):
            return int(size)
        text = self.spell(size.node.expr)
        return int(text) if text.isdigit() else text

    def describe(self, tensor: torch.Tensor) -> TensorSizes:
        """Return what is known of a fake tensor."""
        stride = tensor.stride() if tensor.layout is torch.strided else ()
        shape, strides = (tuple(map(self.size, sizes)) for sizes in (tensor.shape, stride))
        return TensorSizes(shape, tensor.dtype, strides, tensor.layout, tensor.device, tensor.requires_grad)


@contextmanager
def _divisions_asking_nothing() -> Generator[None]:
    """Let the sizes of pooling be divided without asking for a rest, as torch does from 2.13 on: it changes nothing."""
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
    """Shape propagation that notes which node asks what of the sizes."""

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
        """Run one node, and keep its tensors and what it asked."""
        guards = self._names.env.guards
        before = len(guards)
        result = super().run_node(n)
        self._guards += [(guard, n) for guard in guards[before:]]
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if tensors:
            self.found[n] = tensors
        return result

    def constraints(self) -> list[Constraint]:
        """Return what was asked, each once, in the user's names."""
        found: dict[str, Constraint] = {}
        for guard, node in self._guards:
            file = Path(str(getattr(guard.sloc.framework_loc, "filename", "")))
            steers = not _CHOOSES_KERNELS.isdisjoint((file.stem, file.parent.name))
            is_needed = isinstance(guard.expr, sympy.Eq) or not (steers or isinstance(guard.expr, sympy.Ne))
            text = self._names.spell(guard.expr)
            if text != "True" and not (text in found and found[text].is_needed >= is_needed):
                found[text] = Constraint(text, node, node.source, is_needed)
        return list(found.values())


class _Spelling(StrPrinter):
    """Expressions as Python writes them."""

    printmethod = "_as_python"  # PyTorch's own functions would print themselves otherwise

    def _print_FloorDiv(self, expr: Any) -> str:
        base, divisor = (self.parenthesize(part, PRECEDENCE["Mul"], strict=True) for part in expr.args)
        return f"{base}//{divisor}"

    _print_CleanDiv = _print_FloorDiv  # known to leave no rest

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
    """Return whether a value is a tuple of sizes, with a dtype behind them or without."""
    if not isinstance(value, tuple) or not value:
        return False
    parts = cast("tuple[Any, ...]", value)
    sizes: Sequence[Any] = parts[:-1] if isinstance(parts[-1], torch.dtype) else parts
    return all(isinstance(size, (int, str)) and not isinstance(size, bool) for size in sizes)


def _unreadable(size: str) -> PassError:
    return PassError(
        f"cannot read the size {shown(size)}",
        remedy="write a number, a name, or an expression of both with + - * //, as 2*h",
    )
