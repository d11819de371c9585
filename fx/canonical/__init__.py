"""The canonical form of a program: functions only, state in ``get_attr``, arguments by keyword (paper, section 5.1).

Analyses, quantization, lowering and the pattern matcher are written once against it, instead of three times for module,
function and method spellings. These are its rules.

Modules
    A call of a module becomes the operations of the module's ``forward``, captured without leaf modules in the mode of
    the module: ``get_attr`` nodes for its tensors, under their own names, and calls of functions. The node with the
    result keeps the name of the call. Called programs (``GraphModule``) are inlined too, to any depth. Checks inside a
    module become nodes; ``RemoveChecks`` drops them. Calls of these modules stay, with the reason in
    ``CanonicalForm.leaf_reasons``:

    * recurrent modules and attention;
    * modules of TorchScript, ``torch.ao.nn`` and ``torch.nn.parallel``;
    * modules with hooks or parametrizations, or with their own ``forward`` or ``__call__``;
    * modules that cannot be captured, or would become another program: their forward assigns attributes, creates
      tensors, or may get ``None``.

Functions
    Each operation has one spelling. :data:`fx.canonical.equal_spellings.ROWS` lists the functions and methods of
    different names that are one operation, by these principles:

    * arithmetic, comparisons and logic are functions of ``operator``, as long as options such as ``alpha`` have their
      defaults, and otherwise stay functions of ``torch``;
    * activations, normalization, pooling and dropout are functions of ``torch.nn.functional``, with ``inplace`` as an
      argument; ``sigmoid`` and ``tanh``, which have no options, are those of ``torch``;
    * any other method is the function of ``torch`` by that name, or else the unbound method (``torch.Tensor.view``);
    * writes in place stay: ``x.exp_()`` and ``torch.exp_`` are ``torch.Tensor.exp_``; ``operator.iadd`` stays.

    Operators of ATen, as exported programs call them, become the functions and methods that call them. If there is none
    of that name, :data:`fx.canonical.aten_rows.ATEN_ROWS` has a row. :mod:`fx.canonical.forms` has the way back.

    A call changes its form only if the new form gives the same bits for all inputs that were valid before. Other calls
    of ``torch.ops``, classes, builtins and calls with ``out=`` stay as they are.

Methods
    A receiver counts as a tensor if only tensors have a method of that name. If numbers, strings or containers have one
    too (``split``, ``numel``, ``sort``), the receiver must be known to be a tensor. Evidence is an annotation or
    ``meta["val"]``, a place among the program's tensors, or a function that always returns a tensor. Other calls of
    methods stay.

Arguments
    * All arguments have the names of the signature or operator schema, in its order. Defaults are filled in (Python's
      own only if they are plain values).
    * Functions of ``operator`` and builtins take their arguments by position, unbound methods their tensor.
    * Sizes that may be spread are one tuple (``x.view(2, 3)``), and lists of numbers or tensors are tuples.
    * One number for all dimensions of an operator becomes a tuple (``stride=2`` of ``conv2d`` is ``(2, 2)``).
    * A missing stride of pooling is the size of the window. Negative dimensions stay negative.
    * A call stays positional if the schemas do not decide its arguments: ``torch.max(x, y)`` with an unknown ``y``,
      functions with ``*args``, and functions of unknown signature.

Subclasses of tensors
    A call stays as it is if it reads a tensor of the program whose class has a ``__torch_function__``. Such a class
    need not know other spellings: quantized weights of torchao take no keywords.

The canonical form of a canonical program is the program itself.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from fx.argument_types import checked
from fx.assertions import check_value
from fx.canonical.calls import CallSpeller
from fx.canonical.inlining import Inliner, Inlining, copy_graph
from fx.container_kinds import held_kind
from fx.errors import PassError
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.modules.attributes import find_attribute, training_flag
from fx.node import Argument, Node, map_arg

__all__ = ["CanonicalForm", "Canonicalizer", "canonical_form"]


@dataclass(frozen=True, slots=True, eq=False)
class CanonicalForm:
    """A program in canonical form, with its relation to the original program."""

    graph_module: GraphModule
    """The program in canonical form; it shares the tensors and the remaining modules of the original."""
    stands_for: Mapping[Node, Node]
    """Its nodes mapped to the nodes of the original from which they come."""
    leaf_reasons: Mapping[Node, str]
    """Its calls of modules, with the reason why each is not a function."""
    numbers: frozenset[Node]
    """Its nodes that are known to be numbers, sizes and the like."""


@checked(PassError)
def canonical_form(graph_module: GraphModule, leaves: tuple[str, ...] = ()) -> CanonicalForm:
    """Return a copy of a program in canonical form; the program itself stays as it is.

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
    original = graph_module.graph
    graph = copy_graph(original)
    graph._codegen = copy.deepcopy(original._codegen)
    stands_for = dict(zip(graph.nodes, original.nodes, strict=True))
    canonicalizer = Canonicalizer(graph_module, leaves=leaves)
    for _ in canonicalizer.rewrites(graph):
        pass
    for node in graph.nodes:
        stands_for[node] = stands_for[canonicalizer.original_of.get(node, node)]
    stands_for = {node: stands_for[node] for node in graph.nodes}
    module = GraphModule.of_capture(graph_module, graph, type(graph_module).__name__)
    return CanonicalForm(module, stands_for, canonicalizer.leaf_reasons, canonicalizer.numbers)


class Canonicalizer:
    """The conversion of a graph into canonical form, one node at a time."""

    @checked()
    def __init__(self, root: nn.Module, *, spell: bool = True, leaves: tuple[str, ...] = (), prefix: str = "") -> None:
        """Create a canonicalizer for graphs that refer to attributes of ``root``.

        Without ``spell``, modules become functions, and calls keep their spelling. ``leaves`` are paths and class names
        of modules whose calls stay; ``prefix`` is the path of ``root`` in the program to which these paths refer.
        """
        self._root = root
        self._spell = spell
        self._leaves = leaves
        self._prefix = prefix
        self._speller = CallSpeller(root)
        self._inliner = Inliner(self._normalize, leaves, self._speller.is_tensor)
        self.original_of: dict[Node, Node] = {}
        """The added nodes mapped to the nodes that they replace."""
        self.leaf_reasons: dict[Node, str] = {}
        """The calls of modules that stayed, with reasons."""

    @property
    def numbers(self) -> frozenset[Node]:
        """The nodes so far that are known to be numbers, sizes and the like."""
        return frozenset(self._speller.numbers)

    def rewrites(self, graph: Graph) -> Iterator[tuple[Node, str]]:
        """Rewrite ``graph`` in place, and before each edit yield the node and a description of the edit."""
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
                # Checks still read the flag: they report if it differs from the fixed value.
                users = [user for user in node.users if user.target is not check_value]
                if users:
                    yield node, f"{node.target} is fixed to {flag}"
                    self._fix(node, flag, users)
            self._speller.note(node)

    def _fix(self, flag: Node, value: bool, users: list[Node]) -> None:
        """Replace a training flag by its value in ``users``; the program checks the flag from now on."""
        if len(users) == len(flag.users):
            mode = "training" if value else "evaluation"
            message = f"the program was fixed to {mode} mode, and depends on it: {flag.source}"
            with flag.graph.inserting_after(flag):
                check = flag.graph.call_function(check_value, (flag, value, message))
            check.source, check.origins = flag.source, flag.origins
            self.original_of[check] = flag
        for user in users:
            user.replace_input_with(flag, value)

    def _inlining(self, node: Node, path: str) -> Inlining | str:
        module = find_attribute(self._root, path)
        if not isinstance(module, nn.Module):
            return "there is no such module"
        inlining = self._inliner.inline(node, module, f"{self._prefix}{path}")
        if not isinstance(inlining, str) and not _can_replace(node, inlining.template.output):
            return "what it returns is used in ways that only a value of its own allows"
        return inlining

    def _normalize(self, graph: Graph, module: nn.Module, path: str) -> Mapping[Node, str]:
        """Bring the inside of a module into canonical form."""
        inner = Canonicalizer(module, spell=self._spell, leaves=self._leaves, prefix=f"{path}.")
        for _ in inner.rewrites(graph):
            pass
        return inner.leaf_reasons

    def _insert(self, call: Node, path: str, inlining: Inlining) -> None:
        """Replace ``call`` by the nodes of a template; ``call`` itself becomes the node with the result."""
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
                # Operations of the template after its result come after the call.
                copied, place = call, following
                copied.op, copied.target = node._op, target
                copied._update(args, kwargs)
            else:
                with graph.inserting_before(place):
                    wish = None if node._op == "get_attr" else node._name
                    copied = graph.create_node(node._op, target, args, kwargs, wish, node._type)
                copied.source, copied.origins = call.source, call.origins
                self.original_of[copied] = call
            _add_notes(copied, call, node, path, template.is_users)
            values[node] = copied
            if node in template.leaf_reasons:
                self.leaf_reasons[copied] = template.leaf_reasons[node]
        if not (isinstance(template.output, Node) and values[template.output] is call):
            _replace(call, map_arg(template.output, values.__getitem__))


def _filled(value: Argument, values: dict[Node, Argument]) -> Argument:
    """Return an argument of a template with the nodes of the program to which it is copied."""
    if isinstance(value, Node):
        return values[value]
    return value if held_kind(value) is None else map_arg(value, values.__getitem__)


def _add_notes(copied: Node, call: Node, node: Node, path: str, is_users: bool) -> None:
    """Record the place in the user's program from which ``copied``, a copy of ``node``, comes."""
    if is_users and node.source is not None:
        copied.source = node.source
    stack = call._meta.get("nn_module_stack", {}) if call._meta else {}
    notes = node._meta or {}
    inner = {f"{path}.{key}": (f"{path}.{at}", kind) for key, (at, kind) in notes.get("nn_module_stack", {}).items()}
    if copied is not call:
        copied.meta.update(notes)
    if stack or inner:
        copied.meta["nn_module_stack"] = {**stack, **inner}


def _can_replace(call: Node, value: Argument) -> bool:
    """Return whether ``value`` may replace the result of ``call`` at all its uses."""
    if isinstance(value, Node):
        return True
    for user in call.users:
        if user.op == "call_method" and user.args[0] is call:
            return False
        if isinstance(value, (list, dict)) and user.op != "output" and not _is_element(user, call):
            return False
    return True


def _is_element(user: Node, structure: Node) -> bool:
    is_getitem = user.op == "call_function" and user.target is operator.getitem and user.args[0] is structure
    return is_getitem and isinstance(user.args[1], (int, str))


def _replace(node: Node, value: Argument) -> None:
    """Replace all uses of ``node`` by ``value``, and erase it; ``getitem`` of a known structure becomes the element."""
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
