"""What a called module does, as functions: templates that take the place of calls of leaf modules (paper, section 5.1).

A module is captured without leaf modules once for each class, mode, settings and kind of call, and the result is copied
to wherever such a module is called. Modules for which that would not be the same program stay leaves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from fx.capture.tracer import Tracer
from fx.container_kinds import key_of
from fx.graph import CodeGen, Graph
from fx.graph_module import GraphModule
from fx.modules.attributes import has_hooks
from fx.node import Argument, Node, Target, map_arg

_ATOMS = (str, int, bool, complex, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_LEAVES: tuple[tuple[tuple[type[nn.Module], ...], str], ...] = (
    ((nn.RNNBase, nn.RNNCellBase), "a recurrent module is one operation"),
    (
        (nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder,
         nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
        "attention is one operation",
    ),
    ((torch.jit.ScriptModule,), "it is a TorchScript module"),
)  # fmt: skip
_LEAF_PACKAGES = (("torch.ao.nn.", "it holds packed state"), ("torch.nn.parallel.", "it runs on several devices"))


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """What a module does, as a graph of functions."""

    graph: Graph
    """The program, in terms of the module's own attributes."""
    inputs: tuple[Node, ...]
    """Its placeholders."""
    output: Argument
    """What it returns."""
    leaf_reasons: Mapping[Node, str]
    """Modules that it still calls, and why."""
    is_users: bool
    """Whether the lines that its nodes know are the user's, not those of torch's modules."""


@dataclass(frozen=True, slots=True, eq=False)
class Inlining:
    """How one call becomes functions."""

    template: Template
    """What takes the place of the call."""
    values: tuple[Argument, ...]
    """A value for each input of the template."""


Normalize = Callable[[Graph, nn.Module, str], Mapping[Node, str]]
"""Brings the graph of a module at a path into canonical form; returns why each call of a module was kept."""


def why_leaf(module: nn.Module) -> str | None:
    """Return why a call of ``module`` is not replaced by functions, as far as the module itself shows it."""
    for classes, reason in _LEAVES:
        if isinstance(module, classes):
            return reason
    kind, state = type(module), vars(module)
    if isinstance(own := getattr(kind, "_leaf_reason", None), str):
        return own
    for package, reason in _LEAF_PACKAGES:
        if f"{kind.__module__}.".startswith(package):
            return reason
    if has_hooks(module):
        return "it has hooks"
    if "forward" in state:
        return "it has a forward of its own"
    if not isinstance(module, GraphModule):
        if any("__call__" in vars(base) for base in kind.__mro__[: kind.__mro__.index(nn.Module)]):
            return "its class defines __call__"
        if not _is_torch(module) and any(isinstance(value, torch.Tensor) for value in state.values()):
            return "it holds tensors that are neither parameters nor buffers"
    return None


class Inliner:
    """Finds out what calls of modules do, and remembers it for modules that are alike."""

    def __init__(self, normalize: Normalize, leaves: tuple[str, ...], is_tensor: Callable[[Node], bool]) -> None:
        """An inliner for one program; ``is_tensor`` says whether a value of it is known to be a tensor."""
        self._normalize = normalize
        self._leaves = frozenset(leaves)
        self._is_tensor = is_tensor
        self._by_kind: dict[Hashable, Template | str] = {}
        self._by_module: dict[Hashable, Template | str] = {}

    def inline(self, call: Node, module: nn.Module, path: str) -> Inlining | str:
        """Return how ``call``, of ``module`` at ``path``, becomes functions, or why it does not."""
        if path in self._leaves or type(module).__name__ in self._leaves:
            return "it was asked to stay a leaf"
        if (reason := why_leaf(module)) is not None:
            return reason
        if isinstance(module, GraphModule):
            return self._inline_program(call, module, path)
        if (name := self._optional_input(call, module)) is not None:
            return f"whether its input `{name}` is None is known only when the program runs"
        try:
            kind = _call_key(call)
        except TypeError:
            template = self._capture(call, module, path)
        else:
            template = self._by_module.get((id(module), path, kind))
            if template is None:
                template = self._by_module[id(module), path, kind] = self._capture_alike(call, module, path, kind)
        return template if isinstance(template, str) else Inlining(template, tuple(call.all_input_nodes))

    def _optional_input(self, call: Node, module: nn.Module) -> str | None:
        """The name of a parameter that may be None and gets a value that may be."""
        names, optional = _parameters_of(type(module))
        for name, value in (*zip(names, call.args, strict=False), *call.kwargs.items()):
            if name in optional and isinstance(value, Node) and not self._is_tensor(value):
                return name
        return None

    def _capture_alike(self, call: Node, module: nn.Module, path: str, kind: Hashable) -> Template | str:
        """The template of a module, or of one like it that was captured before."""
        try:
            key = (kind, _module_key(module))
        except TypeError:
            return self._capture(call, module, path)
        if key not in self._by_kind:
            self._by_kind[key] = self._capture(call, module, path)
        return self._by_kind[key]

    def _capture(self, call: Node, module: nn.Module, path: str) -> Template | str:
        tracer = _TemplateTracer(call, path, self._leaves)
        try:
            if _is_torch(module):
                graph = tracer.trace(module)
            else:
                with torch.random.fork_rng(devices=()):  # a forward that draws numbers is refused, yet may have drawn
                    graph = tracer.trace(module)
        except Exception as error:
            return f"it cannot be captured: {str(error).partition(chr(10))[0]}"
        if graph.constants:
            return "it makes tensors of its own while it is captured"
        if tracer.assigned is not None:
            return f"its forward assigns to the attribute `{tracer.assigned}`"
        return self._template(graph, module, path)

    def _template(self, graph: Graph, module: nn.Module, path: str) -> Template:
        kept = self._normalize(graph, module, path)
        inputs = tuple(graph.find_nodes(op="placeholder"))
        return Template(graph, inputs, graph.output_node().args[0], kept, not _is_torch(module))

    def _inline_program(self, call: Node, module: GraphModule, path: str) -> Inlining | str:
        """A called program is copied as it is, notes included, instead of captured again."""
        graph = module.graph
        if type(graph._codegen) is not CodeGen or graph._codegen.body_transformer is not None:
            return "its graph generates code in a way of its own"
        key = (id(module), path)
        template = self._by_module.get(key)
        if not isinstance(template, Template):
            template = self._by_module[key] = self._template(copy_graph(graph), module, path)
        values = _bind(template.inputs, call)
        return values if isinstance(values, str) else Inlining(template, values)


def copy_graph(graph: Graph) -> Graph:
    """A copy of ``graph`` that shares its constants."""
    copied = Graph(tracer_cls=graph._tracer_cls, tracer_extras=graph._tracer_extras)
    copied.constants = dict(graph.constants)
    copies: dict[Node, Node] = {}
    for node in graph.nodes:
        copies[node] = copied.node_copy(node, copies.__getitem__)
    return copied


def _bind(inputs: tuple[Node, ...], call: Node) -> tuple[Argument, ...] | str:
    """The value that ``call`` gives each input of a called program."""
    names = [str(node.target) for node in inputs]
    if any(name.startswith("*") for name in names):
        return "its program takes any number of inputs"
    given = dict(zip(names, call.args, strict=False))
    if len(call.args) > len(names) or not given.keys().isdisjoint(call.kwargs) or not set(names) >= set(call.kwargs):
        return "it is called with other inputs than its program has"
    given.update(call.kwargs)
    given = {**{str(node.target): node.args[0] for node in inputs if node.args}, **given}
    if len(given) != len(names):
        return "it is called without some of the inputs of its program"
    return tuple(given[name] for name in names)


class _TemplateTracer(Tracer):
    """Captures a module as one call uses it: what the call passes as a value of the program is an input."""

    follows_training = False

    def __init__(self, call: Node, path: str, leaves: frozenset[str]) -> None:
        super().__init__()
        self._call = call
        self._path = path
        self._leaves_of_user = leaves
        self.assigned: str | None = None
        """An attribute of a module that the forward assigned to."""
        self._attributes_before: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        leaf = f"{self._path}.{module_qualified_name}" in self._leaves_of_user
        return leaf or type(m).__name__ in self._leaves_of_user or why_leaf(m) is not None

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        # buffers that nothing writes to are read where they are used, as in any capture
        self.proxy_buffer_attributes = self.root.training or not _is_torch(self.root)
        self._attributes_before = [(vars(module), dict(vars(module))) for module in self.root.modules()]
        inputs = {node: self.create_proxy("placeholder", node.name, (), {}) for node in self._call.all_input_nodes}
        kwargs: Any = map_arg(self._call.kwargs, inputs.__getitem__)

        def forward(*args: Any) -> Any:
            return root_fn(*args, **kwargs)

        return forward, [self.root, *map_arg(self._call.args, inputs.__getitem__)]

    def create_node(
        self,
        kind: str,
        target: Target,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        name: str | None = None,
        type_expr: Any | None = None,
    ) -> Node:
        if kind == "output":
            self.assigned = next(filter(None, map(_assigned, self._attributes_before)), None)
        return super().create_node(kind, target, args, kwargs, name, type_expr)


def _assigned(attributes: tuple[dict[str, Any], dict[str, Any]]) -> str | None:
    now, before = attributes
    absent = object()
    return next((name for name in {**before, **now} if now.get(name, absent) is not before.get(name, absent)), None)


def _is_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


@lru_cache(maxsize=1024)
def _parameters_of(kind: type[nn.Module]) -> tuple[tuple[str, ...], frozenset[str]]:
    """The parameters of a module's forward, and those whose default is None."""
    parameters = list(inspect.signature(kind.forward).parameters.values())[1:]
    return tuple(p.name for p in parameters), frozenset(p.name for p in parameters if p.default is None)


# What makes two calls, and two modules, alike.


def _call_key(call: Node) -> Hashable:
    """Equal for calls that pass values of the program in the same places, and the same other arguments."""
    args, numbers = call.args, {}
    if not call.kwargs and len(args) == 1 and isinstance(args[0], Node):
        return 1
    return _value_key(args, numbers), _value_key(dict(call.kwargs), numbers)


def _value_key(value: Any, numbers: dict[Node, int]) -> Hashable:

    def leaf(part: Any) -> Hashable:
        kind = type(part)
        if isinstance(part, Node):
            return Node, numbers.setdefault(part, len(numbers))
        if kind in _ATOMS:
            return kind, part
        if kind is float:
            return kind, repr(part)
        raise TypeError(f"values of {kind} are not compared")

    return key_of(value, leaf)


def _module_key(module: nn.Module) -> Hashable:
    """Equal for modules of torch that compute alike, their tensors aside."""
    state = vars(module)
    if not _is_torch(module) or module._modules:
        raise TypeError("what it does may depend on more than its attributes")
    settings = tuple((name, _value_key(value, {})) for name, value in state.items() if name not in _OF_EVERY_MODULE)
    tensors = tuple(
        (name, None if tensor is None else (type(tensor), tensor.dtype, tensor.shape))
        for held in (module._parameters, module._buffers)
        for name, tensor in held.items()
    )
    return type(module), module.training, settings, tensors
