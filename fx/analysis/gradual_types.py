"""Gradual types: shapes inferred from annotations in which sizes may be unknown, and checked at run time (section 6.3).

The types are annotations, ``node.type``, with numbers, names or ``Dyn`` as sizes (:mod:`fx.tensor_type`). Unlike
:func:`fx.analysis.symbolic_shapes.symbolic_shapes`, which needs the number of dimensions of each input and computes
expressions, the checker needs no annotation at all. What it cannot infer is ``Dyn``, and what an operator needs of an
input of type ``Dyn`` refines that input. :class:`TypeCheckingInterpreter` checks it when the program runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Mapping
from types import GenericAlias
from typing import Any, TypeVar, cast, get_args, get_origin

import torch

from fx.analysis.known_types import Types
from fx.analysis.shape_rules import infer_call
from fx.analysis.size_equations import Misfit, SizeEquations
from fx.argument_types import checked
from fx.arguments import expect_callable
from fx.canonical import CanonicalForm, canonical_form
from fx.errors import AnalysisError, PassError, TensorTypeError
from fx.graph_module import GraphModule
from fx.interpreter import Interpreter
from fx.modules.attributes import find_attribute
from fx.naming.printing import target_name
from fx.node import Node
from fx.operators.effect_rules import changes_layout
from fx.tensor_type import Dyn, TensorType, is_consistent, is_more_precise

__all__ = [
    "GraphTypeChecker", "Refine", "TensorTypeError", "TypeCheckingInterpreter", "broadcast_types",
    "get_greatest_upper_bound", "register_inference_rule",
]  # fmt: skip

_RuleOfUser = TypeVar("_RuleOfUser", bound=Callable[..., Any])
_registered: dict[Any, Callable[..., Any]] = {}
_MOST_ROUNDS = 8
"""Rounds over a program; each makes types more precise, and all are right. Contradictory sizes may need more."""


def get_greatest_upper_bound(type1: Any, type2: Any) -> Any:
    """Return the least precise type that is as precise as both: each size from the type that knows it.

    Raises:
        TensorTypeError: the types are not consistent.

    >>> get_greatest_upper_bound(TensorType((Dyn, 3)), TensorType((2, Dyn)))
    TensorType[(2, 3)]
    """
    if not is_consistent(type1, type2):
        raise TensorTypeError(f"no tensor has both types, {type1} and {type2}")
    if not isinstance(type1, TensorType) or not isinstance(type2, TensorType):
        return type2 if type1 is Dyn else type1
    return TensorType([_more_precise(*sizes) for sizes in zip(type1.dims, type2.dims, strict=True)])


def _more_precise(first: Any, second: Any) -> Any:
    return second if is_more_precise(second, first) or isinstance(second, int) else first


def broadcast_types(t1: Any, t2: Any) -> tuple[Any, Any]:
    """Return the types that two tensors have after they are broadcast, as far as these are known.

    Missing sizes and sizes of 1 become those of the other type. ``Dyn`` changes nothing.

    >>> broadcast_types(TensorType((2, 1, Dyn)), TensorType((3, 4)))
    (TensorType[(2, 3, Dyn)], TensorType[(2, 3, 4)])
    """
    if t1 is Dyn or t2 is Dyn:
        return t1, t2
    if not isinstance(t1, TensorType) or not isinstance(t2, TensorType):
        raise TensorTypeError(f"only types of tensors can be broadcast, not {t1} and {t2}")
    rank = max(len(t1.dims), len(t2.dims))
    pairs = list(zip(*((1,) * (rank - len(kind.dims)) + kind.dims for kind in (t1, t2)), strict=True))
    return tuple(
        TensorType([other if size == 1 else size for size, other in both])
        for both in (pairs, [(second, first) for first, second in pairs])
    )  # type: ignore[return-value]


def register_inference_rule(call_target: Any) -> Callable[[_RuleOfUser], _RuleOfUser]:
    """Register a function as the rule for the calls of a function, of a module class, or of a method by its name.

    The rule gets the node, and for a module class also the module. It reads the types of the node's arguments from
    their ``type``, and returns the type of the result.

    Raises:
        AnalysisError: there is a rule for ``call_target``, or it cannot be called.

    >>> @register_inference_rule(torch.special.zeta)
    ... def of_the_first(node): return node.args[0].type
    """

    def register(rule: _RuleOfUser) -> _RuleOfUser:
        expect_callable(rule, "an inference rule is a function of a node", error=AnalysisError)
        if _registered.setdefault(call_target, rule) is not rule:
            raise AnalysisError(
                f"two inference rules are registered for {target_name(call_target)}",
                value=f"{_registered[call_target]} and {rule}",
                remedy="extend the first one",
            )
        return rule

    return register


class GraphTypeChecker:
    """A checker of a program's types, which it writes to ``node.type``. Unknown sizes are ``Dyn``.

    >>> import fx
    >>> program = fx.symbolic_trace(torch.nn.Conv2d(3, 8, 1))
    >>> checker = GraphTypeChecker({}, program)
    >>> checker.type_check(), program.graph.output_node().type
    (True, TensorType[(Dyn, 8, Dyn, Dyn)])
    >>> checker.assumed  # a convolution also takes a tensor without a batch
    (input_1,)
    """

    @checked(PassError)
    def __init__(self, env: Mapping[str, Any], traced: GraphModule) -> None:
        """Prepare the check of one program; ``env`` is there for code written for torch.fx, and unused."""
        self.env = env
        self.traced = traced
        self.assumed: tuple[Node, ...] = ()
        """The nodes whose number of dimensions was assumed, as their users also take another one."""

    def type_check(self) -> bool:
        """Infer and write the types of all nodes; True if they fit.

        Raises:
            TensorTypeError: they contradict each other. The types of nodes then stay as they were.
        """
        inference = _Inference(self.traced)
        inference.write(lambda name: name if name in inference.annotated else Dyn)
        self.assumed = inference.assumed
        return True


class Refine:
    """A checker like :class:`GraphTypeChecker` that gives unknown sizes names: sizes of the same name are equal.

    >>> import fx
    >>> program = fx.symbolic_trace(lambda x, y: torch.bmm(x, y))
    >>> Refine(program).refine(), [node.type for node in program.graph.nodes][:2]
    (True, [TensorType[('d0', 'd1', 'd2')], TensorType[('d0', 'd2', 'd3')]])
    """

    @checked(PassError)
    def __init__(self, traced: GraphModule) -> None:
        """Prepare the analysis of one program."""
        self.traced = traced
        self.assumed: tuple[Node, ...] = ()
        """The nodes whose number of dimensions was assumed, as their users also take another one."""

    def refine(self) -> bool:
        """Infer and write the types of all nodes; True if they fit.

        Raises:
            TensorTypeError: they contradict each other. The types of nodes then stay as they were.
        """
        inference = _Inference(self.traced)
        self.assumed = inference.assumed
        numbers = itertools.count()
        free = (name for number in numbers if (name := f"d{number}") not in inference.annotated)
        names = {name: name for name in inference.annotated}
        inference.write(lambda name: names[name] if name in names else names.setdefault(name, next(free)))
        return True


class _Inference:
    """The types of all values of one program."""

    def __init__(self, program: GraphModule) -> None:
        nodes = program.graph.nodes
        self._program = program
        self._before = {node: node.type for node in nodes}
        self.annotated = frozenset(
            size
            for kind in self._before.values()
            if isinstance(kind, TensorType)
            for size in kind.dims
            if isinstance(size, str)
        )
        """The names of sizes in annotations."""
        leaves = tuple(target.__name__ for target in _registered if isinstance(target, type))
        self._form: CanonicalForm = canonical_form(program, leaves)
        originals = self._form.stands_for.items()
        self._original = {node: original for node, original in originals if node.name == original.name}
        self._types = Types(SizeEquations(self.annotated))
        try:
            self._infer()
        except BaseException:
            for node, kind in self._before.items():
                node.type = kind
            raise

    @property
    def assumed(self) -> tuple[Node, ...]:
        """The nodes whose number of dimensions was assumed."""
        return tuple(self._original[node] for node in self._types.assumed if node in self._original)

    def _infer(self) -> None:
        equations = self._types.equations
        for node, original in self._original.items():
            kind = self._before[original]
            if isinstance(kind, TensorType):
                sizes = [
                    equations.name("annotation", node, place) if size is Dyn else size
                    for place, size in enumerate(kind.dims)
                ]
                self._types.values[node] = TensorType(sizes)
        for _ in range(_MOST_ROUNDS):
            before = equations.count
            for node in self._form.graph_module.graph.nodes:
                self._infer_node(node)
            if equations.count == before:
                break

    def _infer_node(self, node: Node) -> None:
        try:
            self._types.refine(node, self._result(node))
        except Misfit as misfit:
            raise self._error(node, misfit) from None

    def _result(self, node: Node) -> Any:
        if node.op == "get_attr":
            value = find_attribute(self._program, str(node.target))
            return TensorType(tuple(value.shape)) if isinstance(value, torch.Tensor) else Dyn
        if node.op == "output":
            return self._types.of(node.args[0])
        original = self._original.get(node)
        if original is not None and (rule := self._rule(original)) is not None:
            return self._by_rule(rule, original)
        name = getattr(node.target, "__name__", str(node.target))
        if node.op.startswith("call_") and changes_layout(name):
            raise Misfit("it changes the sizes of a tensor in place, and a node has one type")
        return infer_call(node, self._types) if node.op == "call_function" else Dyn

    def _rule(self, original: Node) -> Callable[..., Any] | None:
        """Return the user's rule for a call."""
        if original.op == "call_module":
            return _registered.get(type(self._program.get_submodule(str(original.target))))
        is_call = original.op in ("call_function", "call_method") and isinstance(original.target, Hashable)
        return _registered.get(original.target) if is_call else None

    def _by_rule(self, rule: Callable[..., Any], original: Node) -> Any:
        for node, typed_node in self._original.items():
            typed_node.type = _erased(self._types.of(node), lambda name: Dyn)
        is_module = original.op == "call_module"
        result = rule(original, *([self._program.get_submodule(str(original.target))] if is_module else []))
        if not isinstance(result, TensorType):
            return Dyn
        name = self._types.equations.name
        return TensorType(
            [name("rule", original, place) if size is Dyn else size for place, size in enumerate(result.dims)]
        )

    def _error(self, node: Node, misfit: Misfit) -> TensorTypeError:
        original = self._form.stands_for[node]
        operands = [f"{operand} {_erased(self._types.of(operand), str)}" for operand in node.all_input_nodes]
        texts = " and ".join(operand for operand in operands) or "no tensor"
        return TensorTypeError(
            f"the types of {original.name} do not fit: {target_name(node.target)} of {texts}",
            where=node.source or original.source,
            value=original.format_node(),
            why=f"{misfit}{self._assumptions()}",
            remedy="correct the annotations or the operation; ShapeProp shows the sizes of a run on example inputs",
        )

    def _assumptions(self) -> str:
        return f"; the number of dimensions of {', '.join(map(str, self.assumed))} was assumed" if self.assumed else ""

    def write(self, size: Callable[[str], Any]) -> None:
        """Write the types to the nodes of the program, with ``size(name)`` for each unknown size."""
        types = {original: _erased(self._types.of(node), size) for node, original in self._original.items()}
        for node, before in self._before.items():
            kind = types.get(node, Dyn)
            node.type = before if kind is Dyn and before is not None else kind


def _erased(value: Any, size: Callable[[str], Any]) -> Any:
    """Return a type for ``node.type``: tensors in tuples too, ``int`` for a size, ``Dyn`` for other values."""
    if isinstance(value, TensorType):
        return TensorType([size(dim) if isinstance(dim, str) else dim for dim in value.dims])
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return int
    if isinstance(value, tuple) and any(isinstance(part, TensorType) for part in cast("Collection[Any]", value)):
        return GenericAlias(tuple, tuple(_erased(part, size) for part in cast("Collection[Any]", value)))
    return Dyn


class TypeCheckingInterpreter(Interpreter):
    """An interpreter that checks each tensor against the type of its node. Sizes of one name must be equal in a run.

    >>> import fx
    >>> program = fx.symbolic_trace(torch.nn.Conv2d(3, 8, 1))
    >>> _ = GraphTypeChecker({}, program).type_check()
    >>> TypeCheckingInterpreter(program).run(torch.ones(2, 3, 5, 5)).shape
    torch.Size([2, 8, 5, 5])
    """

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program as :meth:`Interpreter.run` does.

        Raises:
            TensorTypeError: a value is not of its type.
        """
        self._sizes: dict[str, tuple[int, Node]] = {}
        return super().run(*args, **kwargs)

    def run_node(self, n: Node) -> Any:
        """Run one node and check its value."""
        value = super().run_node(n)
        self._check(n, n.type, value)
        return value

    def _check(self, node: Node, kind: Any, value: Any) -> None:
        if get_origin(kind) is tuple and isinstance(value, (tuple, list)):
            for part_kind, part in zip(get_args(kind), cast("Collection[Any]", value), strict=False):
                self._check(node, part_kind, part)
        if not isinstance(kind, TensorType):
            return
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else None
        if shape is None or not is_consistent(TensorType(shape), kind):
            got = f"a tensor of shape {shape}" if shape is not None else f"{type(value).__name__}"
            raise self._error(node, f"{node.name} has type {kind}, but its value is {got}")
        for name, size in zip(kind.dims, shape, strict=True):
            first, place = self._sizes.setdefault(name, (size, node)) if isinstance(name, str) else (size, node)
            if first != size:
                raise self._error(
                    node, f"size {name} is {first} in {place.name}, and {size} in {node.name} of type {kind}"
                )

    def _error(self, node: Node, what: str) -> TensorTypeError:
        user = next(iter(node.users), node)
        return TensorTypeError(
            what,
            where=node.source or user.source,
            value=node.format_node(),
            why="the type was annotated, or inferred from the operations that use the value",
            remedy="pass a tensor of that type, or annotate the input with its type and check the types again",
        )
