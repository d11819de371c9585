"""Templates: graphs of functions that replace calls of leaf modules (paper, section 5.1).

A module is captured without leaf modules once for each class, mode, settings and kind of call. The result is copied to
each call of such a module. Modules for which this would change the program stay leaves.
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
from fx.node import Argument, Node, map_arg

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
    """The operations of a module, as a graph of functions."""

    graph: Graph
    """The program, which refers to the module's own attributes."""
    inputs: tuple[Node, ...]
    """Its placeholders."""
    output: Argument
    """Its result."""
    leaf_reasons: Mapping[Node, str]
    """The calls of modules in it, with reasons."""
    is_users: bool
    """True if the source lines of its nodes are the user's, not those of torch's modules."""


@dataclass(frozen=True, slots=True, eq=False)
class Inlining:
    """The replacement of one call by functions."""

    template: Template
    """The graph that replaces the call."""
    values: tuple[Argument, ...]
    """A value for each input of the template."""


Normalize = Callable[[Graph, nn.Module, str], Mapping[Node, str]]
"""A function that brings the graph of a module at a path into canonical form, and returns the reasons of leaf calls."""


def why_leaf(module: nn.Module) -> str | None:
    """Return why a call of ``module`` is not replaced by functions, as far as the module itself decides."""
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
    """The source of templates for calls of modules, with a cache for equal modules."""

    def __init__(self, normalize: Normalize, leaves: tuple[str, ...], is_tensor: Callable[[Node], bool]) -> None:
        """Create an inliner for one program; ``is_tensor`` returns whether a value of it is known to be a tensor."""
        self._normalize = normalize
        self._leaves = frozenset(leaves)
        self._is_tensor = is_tensor
        self._by_kind: dict[Hashable, Template | str] = {}
        self._by_module: dict[Hashable, Template | str] = {}

    def inline(self, call: Node, module: nn.Module, path: str) -> Inlining | str:
        """Return the replacement of ``call``, of ``module`` at ``path``, or the reason why there is none."""
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
                template = self._by_module[id(module), path, kind] = self._capture_once(call, module, path, kind)
        return template if isinstance(template, str) else Inlining(template, tuple(call.all_input_nodes))

    def _optional_input(self, call: Node, module: nn.Module) -> str | None:
        """Return the name of a parameter that may be None and gets a value that may be None."""
        names, optional = _parameters_of(type(module))
        for name, value in (*zip(names, call.args, strict=False), *call.kwargs.items()):
            if name in optional and isinstance(value, Node) and not self._is_tensor(value):
                return name
        return None

    def _capture_once(self, call: Node, module: nn.Module, path: str, kind: Hashable) -> Template | str:
        """Return the template of a module, or of an equal one captured before."""
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
        reasons = self._normalize(graph, module, path)
        inputs = tuple(graph.find_nodes(op="placeholder"))
        return Template(graph, inputs, graph.output_node().args[0], reasons, not _is_torch(module))

    def _inline_program(self, call: Node, module: GraphModule, path: str) -> Inlining | str:
        """Return a copy of a called program, with its ``meta``, instead of another capture."""
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
    """Return a copy of ``graph`` that shares its constants."""
    copied = Graph(tracer_cls=graph._tracer_cls, tracer_extras=graph._tracer_extras)
    copied.constants = dict(graph.constants)
    copies: dict[Node, Node] = {}
    for node in graph.nodes:
        copies[node] = copied.node_copy(node, copies.__getitem__)
    return copied


def _bind(inputs: tuple[Node, ...], call: Node) -> tuple[Argument, ...] | str:
    """Return the value that ``call`` passes for each input of a called program."""
    names = [str(node.target) for node in inputs]
    if any(name.startswith("*") for name in names):
        return "its program takes any number of inputs"
    values = dict(zip(names, call.args, strict=False))
    if len(call.args) > len(names) or not values.keys().isdisjoint(call.kwargs) or not set(names) >= set(call.kwargs):
        return "it is called with other inputs than its program has"
    values.update(call.kwargs)
    values = {**{str(node.target): node.args[0] for node in inputs if node.args}, **values}
    if len(values) != len(names):
        return "it is called without some of the inputs of its program"
    return tuple(values[name] for name in names)


class _TemplateTracer(Tracer):
    """A tracer that captures a module for one call: values of the program in the call's arguments are inputs."""

    follows_training = False

    def __init__(self, call: Node, path: str, leaves: frozenset[str]) -> None:
        super().__init__()
        self._call = call
        self._path = path
        self._leaves_of_user = leaves
        self.assigned: str | None = None
        """A module attribute to which the forward assigned."""
        self._attributes_before: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        leaf = f"{self._path}.{module_qualified_name}" in self._leaves_of_user
        return leaf or type(m).__name__ in self._leaves_of_user or why_leaf(m) is not None

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        # buffers without writes are read where they are used, as in any capture
        self.proxy_buffer_attributes = self.root.training or not _is_torch(self.root)
        self._attributes_before = [(vars(module), dict(vars(module))) for module in self.root.modules()]
        inputs = {node: self.create_proxy("placeholder", node.name, (), {}) for node in self._call.all_input_nodes}
        kwargs: Any = map_arg(self._call.kwargs, inputs.__getitem__)

        def forward(*args: Any) -> Any:
            return root_fn(*args, **kwargs)

        return forward, [self.root, *map_arg(self._call.args, inputs.__getitem__)]

    def create_node(self, kind: str, *args: Any, **kwargs: Any) -> Node:
        if kind == "output":
            self.assigned = next(filter(None, map(_assigned, self._attributes_before)), None)
        return super().create_node(kind, *args, **kwargs)


def _assigned(attributes: tuple[dict[str, Any], dict[str, Any]]) -> str | None:
    now, before = attributes
    absent = object()
    return next((name for name in {**before, **now} if now.get(name, absent) is not before.get(name, absent)), None)


def _is_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


@lru_cache(maxsize=1024)
def _parameters_of(kind: type[nn.Module]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the parameters of a module's forward, and those whose default is None."""
    parameters = list(inspect.signature(kind.forward).parameters.values())[1:]
    return tuple(p.name for p in parameters), frozenset(p.name for p in parameters if p.default is None)


# Keys of calls and of modules, for the cache of templates.


def _call_key(call: Node) -> Hashable:
    """Return a key, equal for calls with values of the program at the same places and the same other arguments."""
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
    """Return a key, equal for modules of torch with the same computation, except for the values of tensors."""
    state = vars(module)
    if not _is_torch(module) or module._modules:
        raise TypeError("what it does may depend on more than its attributes")
    settings = tuple((name, _value_key(value, {})) for name, value in state.items() if name not in _OF_EVERY_MODULE)
    tensors = tuple(
        (name, None if tensor is None else (type(tensor), tensor.dtype, tensor.shape))
        for table in (module._parameters, module._buffers)
        for name, tensor in table.items()
    )
    return type(module), module.training, settings, tensors
