"""Programs like those of ``torch.export``, recorded while the model runs once: milliseconds instead of a second.

In inference mode a dispatch mode sees the operators that ``torch.export`` keeps. With functionalization, and with the
decompositions of torch, it sees those of ``run_decompositions()``. Sizes are those of the example. A search applies
passes to recorded programs. Where a law looks broken, the program is exported and judged again.
"""

from __future__ import annotations

import copy
import functools
import inspect
import linecache
import operator
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.fx
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._export.verifier import TrainingIRVerifier, Verifier
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram, ExportGraphSignature, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.fx.passes.shape_prop import _extract_tensor_metadata
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fx.interop.exporting import Call

Table = Mapping[Any, Callable[..., Any]]
"""Decompositions of operators."""
_aten = torch.ops.aten
_torch: Any = torch
_CASTS = {_aten.to.device, _aten.to.dtype, _aten.to.dtype_layout}
"""The casts before which ``torch.export`` asserts the dtype, the device and the layout."""
_COPIES = {_aten.detach.default, _aten.alias.default}
_MASKS = {torch.bool, torch.uint8}
_PREFIXES = {InputKind.PARAMETER: "p", InputKind.BUFFER: "b", InputKind.CONSTANT_TENSOR: "c"}
_WRITES = {
    InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION,
    InputKind.BUFFER: OutputKind.BUFFER_MUTATION,
    InputKind.USER_INPUT: OutputKind.USER_INPUT_MUTATION,
}
_LIBRARY = str(Path(torch.__file__).parent)
_LAYERS = str(Path(nn.__file__).parent / "modules")
_CALL = f"{_LAYERS}/module.py"
_CONSTANTS = (int, float, bool, complex, str, type(None))


class NotRecordedError(Exception):
    """A model cannot be recorded: an operator depends on data, say. Maybe ``torch.export`` exports it."""


@dataclass(slots=True, eq=False)
class _Input:
    """An input of a recorded graph."""

    kind: InputKind
    """Parameter, buffer, constant, or input of the model."""
    node: torch.fx.Node
    """The placeholder."""
    value: Any
    """The value before the recorded call, which writes to copies."""
    target: str | None = None
    """The name of a tensor of the model; None for an input of the model."""
    persistent: bool | None = None
    """Whether a buffer is in the state dict; None for anything else."""

    @property
    def is_saved(self) -> bool:
        """True if it is in the state dict."""
        return self.kind is InputKind.PARAMETER or self.persistent is True


@dataclass(frozen=True, slots=True)
class RecordedProgram:
    """A recorded call of a model. The tensors of the model are inputs of the graph."""

    graph: torch.fx.Graph
    """The graph."""
    inputs: list[_Input]
    """The inputs of the graph, in order."""
    call: Call
    """The arguments of the call."""
    names: list[str]
    """The names of the arguments."""
    in_spec: pytree.TreeSpec
    """The structure of the arguments."""
    out_spec: pytree.TreeSpec
    """The structure of the result."""
    paths: list[str]
    """The paths of the modules."""
    written: tuple[_Input, ...] = ()
    """The inputs whose new values are the first outputs. Decomposed graphs write nothing in place."""
    verifier: type[Verifier] = TrainingIRVerifier
    """Torch's check of such programs."""

    def exported(self) -> ExportedProgram:
        """Return an exported program with a copy of the graph."""
        graph, nodes = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
        for node in self.graph.nodes:
            nodes[node] = graph.node_copy(node, nodes.__getitem__)
        tensors = [each for each in self.inputs if each.target is not None]
        calls = [ModuleCallEntry("", ModuleCallSignature([], [], self.in_spec, self.out_spec, self.names))]
        return ExportedProgram(
            {},
            graph,
            self._signature(),
            {str(each.target): each.value for each in tensors if each.is_saved},
            {},
            [*calls, *map(ModuleCallEntry, self.paths)],
            self.call,
            {str(each.target): each.value for each in tensors if not each.is_saved},
            verifiers=[self.verifier],
        )

    def _signature(self) -> ExportGraphSignature:
        inputs = [
            InputSpec(each.kind, _argument(each.node, each.value), each.target, each.persistent) for each in self.inputs
        ]
        results: Any = self.graph.output_node().args[0]
        writes = [
            OutputSpec(_WRITES[into.kind], _argument(result), into.target or into.node.name)
            for into, result in zip(self.written, results, strict=False)
        ]
        outputs = [OutputSpec(OutputKind.USER_OUTPUT, _argument(each), None) for each in results[len(writes) :]]
        return ExportGraphSignature(inputs, [*writes, *outputs])

    def graph_module(self) -> torch.fx.GraphModule:
        """Return a graph module with the call signature of the model, like that of ``ExportedProgram.module()``."""
        graph, nodes = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
        attributes: dict[str, Any] = {}
        for each in self.inputs:
            if each.target is not None:
                attributes[each.target] = each.value
                nodes[each.node] = graph.get_attr(each.target)
                nodes[each.node].meta = copy.copy(each.node.meta)
        arguments = [each.node for each in self.inputs if each.target is None]
        nodes |= {node: graph.node_copy(node) for node in arguments}
        if arguments:
            attributes["_guards_fn"] = _Guards()
            graph.call_module("_guards_fn", tuple(nodes[node] for node in arguments))
        for node in self.graph.nodes:
            if node.op == "call_function":
                nodes[node] = graph.node_copy(node, nodes.__getitem__)
        results: Any = torch.fx.map_arg(self.graph.output_node().args[0], nodes.__getitem__)
        for into, result in zip(self.written, results, strict=False):
            graph.call_function(_aten.copy_.default, (nodes[into.node], result))
        graph.output(tuple(results[len(self.written) :]))
        graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(self.names, self.in_spec, self.out_spec)))
        return torch.fx.GraphModule(attributes, graph)

    def decomposed(self, table: Table) -> RecordedProgram:
        """Return the program in the operators of a table of decompositions, without writes in place.

        Raises:
            NotRecordedError: an operator of a decomposition depends on data, or a decomposition fails.
        """
        recorder, values = _OperatorRecorder(table), dict[torch.fx.Node, Any]()
        with _errors_told(), torch.no_grad(), enable_python_dispatcher(), _functionalized():
            before = [recorder.add_again(each) for each in self.inputs]
            for each, value in zip(self.inputs, before, strict=True):
                values[each.node] = _torch._to_functional_tensor(value) if isinstance(value, torch.Tensor) else value
            with recorder:
                for node in self.graph.nodes:
                    if node.op == "call_function":
                        recorder.meta = node.meta
                        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
                        values[node] = node.target(*args, **kwargs)
                after = [_plain(values[each.node]) for each in self.inputs]
                results: Any = torch.fx.map_arg(self.graph.output_node().args[0], values.__getitem__)
                results = [*map(_plain, results)]
        pairs = zip(recorder.inputs, before, after, strict=False)
        written = [(each, now) for each, earlier, now in pairs if now is not earlier]
        recorder.finish([*(now for _, now in written), *results])
        _drop_copies(recorder.graph, [each.kind for each, _ in written])
        _erase_unused(recorder.graph)
        return replace(
            self,
            graph=recorder.graph,
            inputs=recorder.inputs,
            written=tuple(each for each, _ in written),
            verifier=Verifier,
        )


def record(module: nn.Module, call: Call) -> RecordedProgram:
    """Call a copy of a module, and record the operators that ``torch.export`` would keep.

    Raises:
        NotRecordedError: the module raises, an operator depends on data, or a tensor is of a special kind.
    """
    recorder = _OperatorRecorder()
    with _errors_told():
        copied, (args, kwargs) = copy.deepcopy(module), call
        names = _names(module, args, kwargs)
        parts = list(zip(module.named_modules(), copied.modules(), strict=True))
        with torch.inference_mode(), torch.enable_grad(), _slow_paths():
            for kind, named in (
                (InputKind.PARAMETER, nn.Module.named_parameters),
                (InputKind.BUFFER, nn.Module.named_buffers),
            ):
                tensors = dict[str, torch.Tensor](named(copied, remove_duplicate=False))
                for name, tensor in named(module, remove_duplicate=False):
                    recorder.add_tensor(kind, name, tensor, tensors[name], _is_persistent(module, name, kind))
            for (path, part), other in parts:
                recorder.add_constants(path, part, other)
            leaves, in_spec = pytree.tree_flatten_with_path(call)
            copies = [recorder.add_argument(_name_of(path, names), leaf) for path, leaf in leaves]
            args, kwargs = pytree.tree_unflatten(copies, in_spec)
            with recorder, recorder.noting_modules({id(other): path for (path, _), other in parts}):
                result = copied(*args, **kwargs)
        results, out_spec = pytree.tree_flatten(result)
        recorder.finish(results)
    return RecordedProgram(
        recorder.graph, recorder.inputs, call, names, in_spec, out_spec, [path for (path, _), _ in parts if path]
    )


class _OperatorRecorder(TorchDispatchMode):
    """Records each operator that is called in a ``with`` block as a node."""

    def __init__(self, table: Table = MappingProxyType({})) -> None:
        super().__init__()
        self.graph = torch.fx.Graph()
        self.inputs: list[_Input] = []
        self.meta: dict[str, Any] = {}
        """The entries of ``meta`` for the next nodes, if they are decompositions of a node."""
        self._table = table
        self._nodes: dict[int, torch.fx.Node] = {}
        self._alive: list[torch.Tensor] = []  # an id may be reused after its tensor is freed
        self._constants: dict[int, tuple[str, torch.Tensor]] = {}
        self._stack: list[tuple[str, tuple[str, str]]] = []
        self._fake_mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        self._memory: dict[int, torch.UntypedStorage] = {}

    def add_tensor(
        self, kind: InputKind, name: str, original: torch.Tensor, working: torch.Tensor, persistent: bool | None
    ) -> None:
        """Add a parameter, buffer or constant of a model; the recorded call uses ``working``, a copy."""
        label = f"{_PREFIXES[kind]}_{name.replace('.', '_')}"
        self._know_copy(original, working, self.add_input(kind, label, original, name, persistent))

    def add_argument(self, label: str, leaf: Any) -> Any:
        """Add an input of the model, and return the copy for the recorded call."""
        copied = leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf
        node = self.add_input(InputKind.USER_INPUT, label, leaf)
        if isinstance(copied, torch.Tensor):
            self._know_copy(leaf, copied, node)
        return copied

    def add_again(self, other: _Input) -> Any:
        """Add an input of another recording, and return its value, whose version counter stays if it is written to."""
        node = self.add_input(other.kind, other.node.name, other.value, other.target, other.persistent)
        if not isinstance(other.value, torch.Tensor):
            return other.value
        self._know(value := other.value.data, node)
        return value

    def add_constants(self, path: str, part: nn.Module, working: nn.Module) -> None:
        """Name the tensors that are plain attributes of a module."""
        for name, value in vars(working).items():
            if isinstance(value, torch.Tensor):
                self._constants[id(value)] = f"{path}.{name}" if path else name, vars(part)[name]

    def add_input(
        self, kind: InputKind, label: str, value: Any, target: str | None = None, persistent: bool | None = None
    ) -> torch.fx.Node:
        """Add a placeholder, and return it. Constants come before the inputs of the model."""
        is_later = kind is InputKind.CONSTANT_TENSOR
        place = sum(each.kind is not InputKind.USER_INPUT for each in self.inputs) if is_later else len(self.inputs)
        before = self.inputs[place - 1].node if place else self.graph._root
        with self.graph.inserting_after(before):
            node = self.graph.placeholder(label)
        node.meta["val"] = value
        if isinstance(value, torch.Tensor):
            self._know(value, node)
            self._note_value(node, value)
        elif not isinstance(value, _CONSTANTS):
            raise NotRecordedError(f"an input is an object of class {type(value).__name__}")
        self.inputs.insert(place, _Input(kind, node, value, target, persistent))
        return node

    def finish(self, results: Sequence[Any]) -> None:
        """Add the output."""
        self.graph.output(tuple(map(self._node_of, results)))

    @contextmanager
    def noting_modules(self, paths: Mapping[int, str]) -> Generator[None]:
        """Note for each node in the block which modules are being called."""

        def enter(module: nn.Module, args: Any) -> None:
            path, kind = paths.get(id(module), ""), type(module)
            key = f"L__self__{path.replace('.', '_')}"
            self._stack.append((key, (path, f"{kind.__module__}.{kind.__qualname__}")))

        def leave(module: nn.Module, args: Any, result: Any) -> None:
            self._stack.pop()

        handles = register_module_forward_pre_hook(enter), register_module_forward_hook(leave)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_kept = not self._table and not _returns_numbers(func)
        decomposed = NotImplemented if is_kept else self._decomposed(func, args, kwargs)
        if decomposed is not NotImplemented:
            return decomposed
        if depends_on_data(func, args):
            raise NotRecordedError(f"{func} depends on data")
        source = self._nodes.get(id(args[0])) if func in _COPIES else None
        if source is not None and _is_new(source):
            self._know(result := func(*args, **kwargs), source)
            return result
        recorded_args, recorded_kwargs = self._node_of(tuple(args)), self._node_of(kwargs)
        meta = self._meta()
        if func in _CASTS and not self._table:
            self._note_assertion(args[0], meta)
        result = func(*args, **kwargs)
        results: Any = result if isinstance(result, (list, tuple)) else (result,)
        if _returns_numbers(func):
            return result
        recorded = _aten.lift_fresh_copy.default if func is _aten.lift_fresh.default else func
        node = self._create(recorded, recorded_args, recorded_kwargs, meta)
        if results is not result:
            self._note_result(node, result)
            return result
        for number, each in enumerate(results):
            if isinstance(each, torch.Tensor):
                item = self._create(operator.getitem, (node, number), {}, meta)
                self._note_result(item, each)
                node.meta["val"] = (*node.meta.get("val", ()), item.meta["val"])
        return result

    def _decomposed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call the decomposition of an operator under this mode; ``NotImplemented`` if it has none."""
        decomposition = func.decompose if _is_composite(func) else self._table.get(func)
        if decomposition is None:
            return NotImplemented
        with self:
            return decomposition(*args, **kwargs)

    def _create(self, target: Any, args: Any, kwargs: Any, meta: Mapping[str, Any]) -> torch.fx.Node:
        packet = getattr(target, "overloadpacket", target)
        node = self.graph.create_node("call_function", target, args, kwargs, packet.__name__)
        node.meta |= meta
        return node

    def _note_assertion(self, tensor: torch.Tensor, meta: Mapping[str, Any]) -> None:
        expected = {"dtype": tensor.dtype, "device": tensor.device, "layout": tensor.layout}
        node = self._create(_aten._assert_tensor_metadata.default, (self._node_of(tensor),), expected, meta)
        node.meta["val"] = None

    def _note_result(self, node: torch.fx.Node, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            self._know(result, node)
            self._note_value(node, result)

    def _know(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)

    def _know_copy(self, original: torch.Tensor, copied: torch.Tensor, node: torch.fx.Node) -> None:
        """Let a copy, and views of it, count as those of the original."""
        self._know(copied, node)
        self._memory[copied.untyped_storage()._cdata] = self._memory[original.untyped_storage()._cdata]

    def _node_of(self, value: Any) -> Any:
        """Return the node of a tensor, that of each in a container, or any other value itself."""
        if isinstance(value, torch.Tensor):
            if id(value) not in self._nodes:
                self._add_constant(value)
            return self._nodes[id(value)]
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._node_of, value))
        if isinstance(value, dict):
            return {key: self._node_of(each) for key, each in value.items()}
        return value

    def _add_constant(self, tensor: torch.Tensor) -> None:
        """Add a tensor that no recorded operator made, such as one that ``forward`` makes of numbers."""
        if tensor.untyped_storage()._cdata in self._memory:
            raise NotRecordedError("a tensor shares the memory of another one without an operator")
        number = sum(each.kind is InputKind.CONSTANT_TENSOR for each in self.inputs)
        with torch.inference_mode(False):
            name, original = self._constants.get(id(tensor)) or (f"lifted_tensor_{number}", tensor.detach().clone())
        self.add_tensor(InputKind.CONSTANT_TENSOR, name, original, tensor, None)

    def _meta(self) -> dict[str, Any]:
        if self.meta:
            return {key: value for key, value in self.meta.items() if key in ("nn_module_stack", "stack_trace")}
        return {"nn_module_stack": dict(self._stack), "stack_trace": _users_frames()}

    def _note_value(self, node: torch.fx.Node, tensor: torch.Tensor) -> None:
        """Write a fake tensor into ``meta``, which shares its memory as the tensor does."""
        if (
            type(tensor) not in (torch.Tensor, nn.Parameter)
            or tensor.layout is not torch.strided
            or tensor.is_quantized
        ):
            raise NotRecordedError("a tensor is of a special kind")
        storage = tensor.untyped_storage()
        with torch.inference_mode(False), torch.no_grad():
            memory = self._memory.get(storage._cdata)
            if memory is None:
                memory = self._memory[storage._cdata] = torch.UntypedStorage(storage.nbytes(), device="meta")
            value = torch.empty(0, dtype=tensor.dtype, device="meta")
            value.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
            fake = FakeTensor(self._fake_mode, value, tensor.device)
            node.meta["val"] = (
                fake.requires_grad_() if isinstance(tensor, nn.Parameter) and tensor.requires_grad else fake
            )
            node.meta["tensor_meta"] = _extract_tensor_metadata(tensor)


class _Guards(nn.Module):
    """Takes the place of the module that checks the inputs of an exported program."""

    def forward(self, *inputs: Any) -> None:
        """Check nothing: all calls are those of the example."""


def depends_on_data(operator: Any, args: Sequence[Any]) -> bool:
    """Return whether an operator returns a number, or a size, that depends on the data of tensors."""
    if torch.Tag.data_dependent_output in operator.tags:
        return True
    if torch.Tag.dynamic_output_shape not in operator.tags:
        return False
    indices = args[1] if operator.overloadpacket is _aten.index else None  # it depends on data only if it is a mask
    return indices is None or any(index is not None and index.dtype in _MASKS for index in indices)


@functools.cache
def _is_composite(operator: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")


@functools.cache
def _returns_numbers(operator: Any) -> bool:
    """Return whether an operator returns something, but no tensor."""
    types = [str(each.type) for each in operator._schema.returns]
    return bool(types) and not any("Tensor" in each for each in types)


def _is_new(node: torch.fx.Node) -> bool:
    """Return whether an operator makes a tensor anew.

    Python's functions for these call ``detach`` on the result, which ``torch.export`` does not see.
    """
    name = node.name
    return node.op == "call_function" and (not node.all_input_nodes or "_like" in name or name.startswith("new_"))


def _drop_copies(graph: torch.fx.Graph, written: Sequence[InputKind]) -> None:
    """Drop a ``copy`` that is the new value of a buffer or parameter, as torch does: the write copies anyway."""
    results: Any = graph.output_node().args[0]
    for kind, result in zip(written, results, strict=False):
        if kind is not InputKind.USER_INPUT and getattr(result, "target", None) is _aten.copy.default:
            result.replace_all_uses_with(result.args[1])


def _erase_unused(graph: torch.fx.Graph) -> None:
    """Erase what nobody uses; in a graph without writes, only assertions have another purpose than their results."""
    for node in reversed([node for node in graph.nodes if node.op == "call_function"]):
        is_assertion = isinstance(node.target, OpOverload) and not node.target._schema.returns
        if not node.users and not is_assertion:
            graph.erase_node(node)


def _plain(value: Any) -> Any:
    """Return the current tensor inside of a wrapper for functionalization."""
    if not isinstance(value, torch.Tensor) or not _torch._is_functional_tensor(value):
        return value
    _torch._sync(value)
    return _torch._from_functional_tensor(value)


@contextmanager
def _functionalized() -> Generator[None]:
    _torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        _torch._disable_functionalization()


@contextmanager
def _slow_paths() -> Generator[None]:
    """Switch off kernels for inference that ``torch.export`` does not use."""
    is_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(is_enabled)


@contextmanager
def _errors_told() -> Generator[None]:
    """Turn any exception into a :class:`NotRecordedError`."""
    try:
        yield
    except NotRecordedError:
        raise
    except Exception as error:
        raise NotRecordedError(f"{type(error).__name__}: {error}") from error


def _argument(node: Any, value: Any = None) -> Any:
    if not isinstance(node, torch.fx.Node):
        return ConstantArgument("", node)
    is_constant = node.op == "placeholder" and not isinstance(node.meta["val"], torch.Tensor)
    return ConstantArgument(node.name, value) if is_constant else TensorArgument(node.name)


def _is_persistent(module: nn.Module, name: str, kind: InputKind) -> bool | None:
    if kind is not InputKind.BUFFER:
        return None
    path, _, last = name.rpartition(".")
    return last not in module.get_submodule(path)._non_persistent_buffers_set


def _names(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Return the names of the arguments of a call."""
    parameters = inspect.signature(module.forward).parameters.values()
    positional = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return [
        *(positional[number] if number < len(positional) else f"args_{number}" for number in range(len(args))),
        *kwargs,
    ]


def _name_of(path: Sequence[Any], names: Sequence[str]) -> str:
    """Return the name of a leaf of ``(args, kwargs)``."""
    keys: list[Any] = [getattr(key, "idx", getattr(key, "key", getattr(key, "name", ""))) for key in path]
    first = names[keys[1]] if keys[0] == 0 else keys[1]
    return "_".join(map(str, (first, *keys[2:])))


def _users_frames() -> str:
    """Return the lines of the model, and of layers of torch, that are being executed, as tracebacks show them."""
    lines: list[str] = []
    frame = sys._getframe(3)
    while frame is not None and frame.f_code is not record.__code__:
        code = frame.f_code
        if _is_shown(code.co_filename):
            line = linecache.getline(code.co_filename, frame.f_lineno).strip()
            lines.append(f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}\n    {line}')
        frame = frame.f_back
    return "\n".join(reversed(lines)).strip()


@functools.cache
def _is_shown(file: str) -> bool:
    return file != _CALL and (file.startswith(_LAYERS) or not file.startswith(_LIBRARY))
