"""The canonical form of a program: functions only, state in ``get_attr``, arguments by keyword (paper, section 5.1).

What follows capture is written once against it, instead of three times for module, function and method spellings:
analyses, quantization, lowering and the pattern matcher. These are its rules.

Modules
    A call of a module becomes what the module's ``forward`` does, captured without leaf modules in the mode that the
    module is in: ``get_attr`` nodes for its tensors, under their own names, and calls of functions. The node with the
    result keeps the name of the call. Called programs (``GraphModule``) are inlined too, to any depth. Still calls of
    modules are recurrent modules and attention; modules of TorchScript, ``torch.ao.nn`` and ``torch.nn.parallel``;
    modules with hooks, parametrizations, or a ``forward`` or ``__call__`` of their own; and whatever cannot be captured
    or would not be the same program: a forward that assigns attributes, makes tensors of its own, or may get ``None``.
    ``CanonicalForm.leaf_reasons`` has the reasons. Checks that a module makes become nodes; ``RemoveChecks`` drops
    them.

Functions
    Each operation has one spelling. :data:`fx.canonical.equal_spellings.ROWS` lists where functions and methods of
    different names are one operation, by these principles:

    * arithmetic, comparisons and logic are functions of ``operator``, as long as options such as ``alpha`` have their
      defaults, and otherwise stay functions of ``torch``;
    * activations, normalization, pooling and dropout are functions of ``torch.nn.functional``, with ``inplace`` as an
      argument; ``sigmoid`` and ``tanh``, which have no options, are those of ``torch``;
    * any other method is the function of ``torch`` by that name, or else the unbound method (``torch.Tensor.view``);
    * writing in place stays so: ``x.exp_()`` and ``torch.exp_`` are ``torch.Tensor.exp_``; ``operator.iadd`` stays.

    Operators of ATen, as exported programs call them, are the functions and methods that call them; where there is
    none of that name, :data:`fx.canonical.aten_rows.ATEN_ROWS` has what they are. :mod:`fx.canonical.forms` has the
    way back.

    A call is only ever brought into a form that gives the same bits for all inputs that were valid before. Other calls
    of ``torch.ops``, classes, builtins and calls with ``out=`` stay as they are.

Methods
    A receiver is taken for a tensor if only tensors have a method of that name. Where numbers, strings or containers
    have one too (``split``, ``numel``, ``sort``), it must be known for one: by an annotation or ``meta["val"]``, as a
    tensor of the program, or as the result of a function that always returns one. Other calls of methods stay.

Arguments
    All arguments have names, those of the signature or operator schema, in its order, defaults filled in (Python's own
    only where they are plain values). Functions of ``operator`` and builtins take theirs by position, unbound methods
    their tensor. Sizes that may be spread are one tuple (``x.view(2, 3)``), lists of numbers or tensors are tuples, one
    number that stands for as many as an operator has dimensions is that tuple (``stride=2`` of ``conv2d`` is
    ``(2, 2)``), and a stride of pooling that is left out is the size of the window. Negative dimensions stay negative.
    A call stays positional where the schemas do not decide what its arguments are: ``torch.max(x, y)`` with an unknown
    ``y``, functions with ``*args``, and functions whose signature is not known.

Subclasses of tensors
    A call stays as it is if it gets a tensor of the program whose class has a ``__torch_function__``. Such a class
    need not know other spellings: quantized weights of torchao take no keywords.

Bringing a canonical program into canonical form changes nothing.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from fx.arguments import expect, expect_all
from fx.assertions import check_value
from fx.canonical.calls import CallSpeller
from fx.canonical.inlining import Inliner, Inlining, copy_graph
from fx.container_kinds import held_kind
from fx.graph import Graph
from fx.graph_module import GraphModule, expect_program
from fx.modules.attributes import find_attribute, training_flag
from fx.node import Argument, Node, map_arg

__all__ = ["CanonicalForm", "Canonicalizer", "canonical_form"]


@dataclass(frozen=True, slots=True, eq=False)
class CanonicalForm:
    """A program in canonical form, and how it relates to the program that it was made from."""

    graph_module: GraphModule
    """The program in canonical form; its tensors and the modules it still calls are those of the given program."""
    stands_for: Mapping[Node, Node]
    """For each of its nodes the one of the given program that it came from."""
    leaf_reasons: Mapping[Node, str]
    """Its calls of modules, and why each of them is not a function."""
    numbers: frozenset[Node]
    """Those of its nodes that are known to be numbers, sizes and the like."""


def canonical_form(graph_module: GraphModule, leaves: tuple[str, ...] = ()) -> CanonicalForm:
    """A copy of a program in canonical form; the program itself stays as it was.

    Args:
        graph_module: any program.
        leaves: paths and class names of modules whose calls stay calls of modules.

    >>> import torch, fx
    >>> program = fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))
    >>> print(canonical_form(program).graph_module.code.strip())
    def forward(self, input):
        input_1 = input
        _0 = torch.nn.functional.relu(input = input_1, inplace = False);  input_1 = None
        return _0
    """
    expect_program(graph_module, "canonical_form takes a GraphModule")
    given = graph_module.graph
    graph = copy_graph(given)
    graph._codegen = copy.deepcopy(given._codegen)
    stands_for = dict(zip(graph.nodes, given.nodes, strict=True))
    canonicalizer = Canonicalizer(graph_module, leaves=leaves)
    for _ in canonicalizer.rewrites(graph):
        pass
    for node in graph.nodes:
        stands_for[node] = stands_for[canonicalizer.made_for.get(node, node)]
    stands_for = {node: stands_for[node] for node in graph.nodes}
    module = GraphModule.of_capture(graph_module, graph, type(graph_module).__name__)
    return CanonicalForm(module, stands_for, canonicalizer.leaf_reasons, canonicalizer.numbers)


class Canonicalizer:
    """Brings a graph into canonical form, one node at a time."""

    def __init__(self, root: nn.Module, *, spell: bool = True, leaves: tuple[str, ...] = (), prefix: str = "") -> None:
        """A canonicalizer for graphs that refer to attributes of ``root``.

        Without ``spell`` modules become functions, and that is all. Calls of ``leaves``, paths and class names of
        modules, stay; ``prefix`` is the path of ``root`` in the program that they speak of.
        """
        expect(root, nn.Module, "a Canonicalizer takes the module that a graph refers to")
        what = "leaves are paths and names of classes of modules"
        leaves = expect_all(leaves, lambda one: isinstance(one, str), what)
        self._root = root
        self._spell = spell
        self._leaves = leaves
        self._prefix = prefix
        self._speller = CallSpeller(root)
        self._inliner = Inliner(self._normalize, leaves, self._speller.is_tensor)
        self.made_for: dict[Node, Node] = {}
        """For each node that was added, the one in whose place it stands."""
        self.leaf_reasons: dict[Node, str] = {}
        """The calls of modules that stayed, and why."""

    @property
    def numbers(self) -> frozenset[Node]:
        """The nodes so far that are known to be numbers, sizes and the like."""
        return frozenset(self._speller.numbers)

    def rewrites(self, graph: Graph) -> Iterator[tuple[Node, str]]:
        """Rewrite ``graph`` in place, and before each edit yield the node that it is about and what it will be."""
        for node in graph.nodes:
            if node._op == "call_module":
                path = str(node._target)
                inlining = self._inlining(node, path)
                if isinstance(inlining, str):
                    self.leaf_reasons[node] = inlining
                else:
                    yield node, f"{path} becomes functions"
                    self._insert(node, path, inlining)
            elif self._spell and (node._op == "call_function" or node._op == "call_method"):
                call = self._speller.spell(node)
                if call is not None:
                    yield node, f"{node} gets its canonical spelling"
                    if call.target is not node._target or node._op != "call_function":
                        node.op = "call_function"
                        node.target = call.target
                    node._update(call.args, call.kwargs)
            elif node._op == "get_attr" and (flag := training_flag(self._root, node)) is not None:
                # Checks still read the flag: they say when it is not what was fixed.
                users = [user for user in node.users if user.target is not check_value]
                if users:
                    yield node, f"{node.target} is fixed to {flag}"
                    self._fix(node, flag, users)
            self._speller.note(node)

    def _fix(self, flag: Node, value: bool, users: list[Node]) -> None:
        """Give ``users`` the value that a training flag has, which the program checks from now on."""
        if len(users) == len(flag.users):
            mode = "training" if value else "evaluation"
            message = f"the program was fixed to {mode} mode, and depends on it: {flag.source}"
            with flag.graph.inserting_after(flag):
                check = flag.graph.call_function(check_value, (flag, value, message))
            check.source, check.origins = flag.source, flag.origins
            self.made_for[check] = flag
        for user in users:
            user.replace_input_with(flag, value)

    def _inlining(self, node: Node, path: str) -> Inlining | str:
        module = find_attribute(self._root, path)
        if not isinstance(module, nn.Module):
            return "there is no such module"
        inlining = self._inliner.inline(node, module, f"{self._prefix}{path}")
        if not isinstance(inlining, str) and not _can_stand_for(node, inlining.template.output):
            return "what it returns is used in ways that only a value of its own allows"
        return inlining

    def _normalize(self, graph: Graph, module: nn.Module, path: str) -> Mapping[Node, str]:
        """Bring the inside of a module into canonical form."""
        inner = Canonicalizer(module, spell=self._spell, leaves=self._leaves, prefix=f"{path}.")
        for _ in inner.rewrites(graph):
            pass
        return inner.leaf_reasons

    def _insert(self, call: Node, path: str, inlining: Inlining) -> None:
        """Put the nodes of a template in the place of ``call``; the one with its result is ``call`` itself."""
        template, graph, following = inlining.template, call.graph, call._next
        values: dict[Node, Argument] = dict(zip(template.inputs, inlining.values, strict=True))
        place = call
        for node in template.graph.nodes:
            if node._op in ("placeholder", "output"):
                continue
            args = tuple([_filled(value, values) for value in node._args])
            kwargs = {name: _filled(value, values) for name, value in node._kwargs.items()}
            target = f"{path}.{node._target}" if node._op in ("get_attr", "call_module") else node._target
            if node is template.output:
                # What the template does after its result stands behind the call.
                made, place = call, following
                made.op, made.target = node._op, target
                made._update(args, kwargs)
            else:
                with graph.inserting_before(place):
                    wish = None if node._op == "get_attr" else node._name
                    made = graph.create_node(node._op, target, args, kwargs, wish, node._type)
                made.source, made.origins = call.source, call.origins
                self.made_for[made] = call
            _add_notes(made, call, node, path, template.is_users)
            values[node] = made
            if node in template.leaf_reasons:
                self.leaf_reasons[made] = template.leaf_reasons[node]
        if not (isinstance(template.output, Node) and values[template.output] is call):
            _replace(call, map_arg(template.output, values.__getitem__))


def _filled(value: Argument, values: dict[Node, Argument]) -> Argument:
    """An argument of a template, in terms of the program that it is copied to."""
    if isinstance(value, Node):
        return values[value]
    return value if held_kind(value) is None else map_arg(value, values.__getitem__)


def _add_notes(made: Node, call: Node, node: Node, path: str, is_users: bool) -> None:
    """Let ``made``, a copy of ``node``, know where in the user's program it comes from."""
    if is_users and node.source is not None:
        made.source = node.source
    stack = call._meta.get("nn_module_stack", {}) if call._meta else {}
    notes = node._meta or {}
    inner = {f"{path}.{key}": (f"{path}.{at}", kind) for key, (at, kind) in notes.get("nn_module_stack", {}).items()}
    if made is not call:
        made.meta.update(notes)
    if stack or inner:
        made.meta["nn_module_stack"] = {**stack, **inner}


def _can_stand_for(call: Node, value: Argument) -> bool:
    """Return whether ``value`` may be written wherever the result of ``call`` is used."""
    if isinstance(value, Node):
        return True
    for user in call.users:
        if user.op == "call_method" and user.args[0] is call:
            return False
        if isinstance(value, (list, dict)) and user.op != "output" and not _is_element(user, call):
            return False
    return True


def _is_element(user: Node, of: Node) -> bool:
    is_getitem = user.op == "call_function" and user.target is operator.getitem and user.args[0] is of
    return is_getitem and isinstance(user.args[1], (int, str))


def _replace(node: Node, value: Argument) -> None:
    """Use ``value`` wherever ``node`` is used, and erase it; an element of a known structure is that element."""
    if isinstance(value, Node):
        node.replace_all_uses_with(value)
    else:
        for user in list(node.users):
            element = _element(value, user.args[1]) if _is_element(user, node) else NotImplemented
            if element is not NotImplemented:
                _replace(user, element)
            else:
                user.replace_input_with(node, value)
    node.graph.erase_node(node)


def _element(value: Argument, index: Any) -> Argument:
    try:
        return value[index]
    except (IndexError, KeyError, TypeError):
        return NotImplemented
