"""Export of a model with ``torch.export``, with a free batch dimension if possible."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.export import export as torch_export
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext

from fx.canonical.forms import Form, to_functional
from fx.capture.quiet_export import quiet_export
from fx.capture.restore.record import undone
from fx.errors import InteropError
from fx.graph_module import GraphModule
from fx.interop.torch_export import from_export
from fx.modules.attributes import find_attribute

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

_FIXED = "fixed: so it was requested"
_NO_BATCH = "none: no argument is a tensor with dimensions"
_FEWEST_SAMPLES = 2
"""Minimum number of samples to export a model with: export takes a size of 1 for a constant."""
_TOLERANCE = 1e-2
"""Tolerated difference of outputs for another batch, relative to the largest; a built-in size exceeds it."""


class ExportedModel:
    """A model exported by ``torch.export``, without tensors: a program for a copy of the model shares the copy's.

    >>> exported = ExportedModel(nn.Linear(2, 3), (torch.ones(4, 2),), {})
    >>> copied = nn.Linear(2, 3)
    >>> exported.program_for(copied).weight is copied.weight, exported.batch
    (True, 'free')
    """

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Export ``module`` for calls with these arguments; errors of ``torch.export`` are not caught."""
        with without_cache(module):
            imported, self.batch = _exported(module, (args, kwargs))
        program = imported.program
        program.train(module.training)
        shared = {
            name: tensor for name, tensor in _tensors(program) if isinstance(find_attribute(module, name), torch.Tensor)
        }
        self._stand_ins = {id(tensor): _without_memory(tensor) for tensor in shared.values()}
        self._names = {id(self._stand_ins[id(tensor)]): name for name, tensor in shared.items()}
        self._programs: dict[Form, GraphModule] = {"aten": copy.deepcopy(program, dict(self._stand_ins))}

    def program_for(self, module: nn.Module, form: Form = "functional") -> GraphModule:
        """Return a new program for ``module``, a copy of the exported model; it shares the tensors of ``module``."""
        if form not in self._programs:
            stand_ins = {id(tensor): tensor for tensor in self._stand_ins.values()}
            self._programs[form] = to_functional(copy.deepcopy(self._programs["aten"], stand_ins))
        memo = {stand_in: find_attribute(module, name) for stand_in, name in self._names.items()}
        return copy.deepcopy(self._programs[form], memo)


def export_program(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, fixed: bool = False, strict: bool = False
) -> tuple[ExportedProgram, str]:
    """Return the ``ExportedProgram`` of ``module``, and ``"free"`` or the reason why its batch is fixed.

    With ``fixed`` all its sizes are fixed, as by ``torch.export.export(module, args)``. With ``strict`` Dynamo traces
    the module, and each node has the function or module that the model called in ``meta["source_fn_stack"]``.

    >>> exported, batch = export_program(nn.Linear(2, 3), (torch.ones(4, 2),), {})
    >>> [str(node.target) for node in exported.graph.nodes if node.op == "call_function"], batch
    (['aten.linear.default'], 'free')
    """
    with without_cache(module):
        imported, batch = _exported(module, (args, kwargs), fixed=fixed, strict=strict)
    return imported.exported, batch


def settings_with_cache(module: nn.Module) -> list[Any]:
    """Return the configurations of transformers models in ``module`` that have ``use_cache`` on.

    The returned cache changes from call to call, and ``torch.export`` does not know its class.
    """
    configs = {id(config): config for part in module.modules() if (config := getattr(part, "config", None)) is not None}
    return [config for config in configs.values() if getattr(config, "use_cache", None) is True]


def returns_cache(module: nn.Module, call: Call) -> bool:
    """Return whether the output of ``module`` contains a cache: an object whose class name ends in ``Cache``."""
    leaves = _outputs(module, call) if batch_size(call) is not None else []
    return not isinstance(leaves, Exception) and any(type(leaf).__name__.endswith("Cache") for leaf in leaves)


@contextmanager
def without_cache(module: nn.Module) -> Generator[None]:
    """Switch off the caches of ``module`` inside the block."""
    settings = settings_with_cache(module)
    try:
        for config in settings:
            config.use_cache = False
        yield
    finally:
        for config in settings:
            config.use_cache = True


def _tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the named parameters and buffers, shared ones under each of their names."""
    return [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    if type(tensor) in (torch.Tensor, nn.Parameter):
        empty = torch.empty_like(tensor, device="meta", requires_grad=False)
    else:  # a subclass may not support functions of torch
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


# The batch.


class _Imported(NamedTuple):
    """A program of ``torch.export``, and its conversion to one of ours."""

    exported: ExportedProgram
    program: GraphModule


def _exported(module: nn.Module, call: Call, *, fixed: bool = False, strict: bool = False) -> tuple[_Imported, str]:
    """Return the program of ``module``, and ``"free"`` or the reason why its batch is fixed.

    Raises:
        InteropError: for these inputs, the program with a fixed batch computes other outputs than the module.
    """
    call = _without_shared_tensors(call, module)
    size = None if fixed else batch_size(call)
    without_batch = None, _FIXED if fixed else _NO_BATCH
    imported, batch = _with_free_batch(module, call, size, strict) if size else without_batch
    if imported is not None and batch == "free":
        return imported, batch
    imported = imported or _imported(module, call, None, strict)
    if _are_functions_replaced():
        return imported, batch
    expected = _outputs(module, call)
    other = None if isinstance(expected, Exception) else _difference(expected, imported.program, call)
    if other is not None:
        raise InteropError(
            f"torch.export captures another program from {type(module).__name__} than eager runs",
            value=f"the example inputs {other}",
            why="its code behaves differently during export, for example where it asks torch.compiler.is_compiling(), "
            "or depends on what an earlier call left in an attribute",
            remedy="make both cases compute the same, keep such values in buffers, or move the difference into a "
            "function under fx.wrap",
        )
    return imported, batch


def _are_functions_replaced() -> bool:
    """Return whether a torch function mode is active that may replace functions; it would not see operators of ATen."""
    return any(not isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())


def _with_free_batch(module: nn.Module, call: Call, size: int, strict: bool) -> tuple[_Imported | None, str]:
    """Return the program for any batch size and ``"free"``; else the one for ``size``, if any, and the reason."""
    samples = max(size, _FEWEST_SAMPLES)
    try:
        imported = _imported(module, with_batch(call, size, samples), samples, strict)
    except Exception as error:
        return None, f"fixed at {size}: with it free, torch.export raises {_first_line(error)}"
    if not _is_free(imported.program):
        return imported if samples == size else None, f"fixed at {size}: the model's code, or torch's, depends on it"
    larger = with_batch(call, size, samples + 1)
    expected = _outputs(module, larger)
    if isinstance(expected, Exception):
        why = f"for {samples + 1} samples the model itself raises {_first_line(expected)}"
    elif (other := _difference(expected, imported.program, larger)) is not None:
        why = f"exported with it free, {samples + 1} samples {other}"
    else:
        return imported, "free"
    return None, f"fixed at {size}: {why}"


def _without_shared_tensors(call: Call, module: nn.Module) -> Call:
    """Return the call with tensors copied that occur earlier in it or in the model: export would merge the two."""
    earlier = {id(tensor) for _, tensor in _tensors(module)}

    def copied_if_shared(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) in earlier:
            return leaf.detach().clone().requires_grad_(leaf.requires_grad)
        earlier.add(id(leaf))
        return leaf

    return pytree.tree_map(copied_if_shared, call)


def batch_size(call: Call) -> int | None:
    """Return the first size of the first tensor of two or more dimensions, else of the first with one dimension.

    None if there is no such tensor, or the size is 0.
    """
    shapes = [leaf.shape for leaf in pytree.tree_leaves(call) if isinstance(leaf, torch.Tensor)]
    sizes = [shape[0] for least in (2, 1) for shape in shapes if len(shape) >= least]
    return sizes[0] if sizes and sizes[0] else None


def with_batch(call: Call, old: int, new: int) -> Call:
    """Return the call with ``new`` samples, repeated cyclically, in each tensor whose first size is ``old``."""

    def resized(leaf: Any) -> Any:
        if old == new or not _has_samples(leaf, old):
            return leaf
        return leaf.index_select(0, torch.arange(new, device=leaf.device) % old)

    return pytree.tree_map(resized, call)


def _has_samples(leaf: Any, samples: int | None) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == samples


def _imported(module: nn.Module, call: Call, samples: int | None, strict: bool) -> _Imported:
    """Export ``module``; with a free batch if ``samples``, the batch size of the call, is given.

    A module that ``torch.export`` cannot trace may return another one to export, by a method ``module_to_export``. That
    has the same parameters and buffers.
    """
    shapes: Any = ShapesCollection()
    for leaf in pytree.tree_leaves(call):
        if samples is not None and _has_samples(leaf, samples):
            shapes[leaf] = {0: Dim.AUTO}
    with quiet_export():
        to_export = getattr(module, "module_to_export", None)
        exported_module = module if to_export is None else to_export(*call)
        exported = undone(
            lambda: torch_export(exported_module, *call, dynamic_shapes=shapes if samples else None, strict=strict),
            module.modules(),
            error=InteropError,
        )
    return _Imported(exported, from_export(exported, "aten"))


def _is_free(program: GraphModule) -> bool:
    values = [node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")]
    sizes = [value.shape[0] for value in values if isinstance(value, torch.Tensor) and value.dim()]
    return any(isinstance(size, torch.SymInt) for size in sizes)


def _difference(expected: list[list[Any]], program: GraphModule, call: Call) -> str | None:
    """Describe how two calls of ``program`` differ from these expected leaves; None if they return them."""
    actual = _outputs(program, call)
    if isinstance(actual, Exception):
        return f"raise {_first_line(actual)}"
    agree = [
        len(leaves) == len(others) and all(map(_same, leaves, others))
        for leaves, others in zip(expected, actual, strict=True)
    ]
    return None if all(agree) else f"get other outputs{' when they are given again' * agree[0]}"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _outputs(module: nn.Module, call: Call) -> Any:
    """Return the leaves of the outputs of ``module`` in two equal calls, or its exception; it is not changed."""
    parameters: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
    copied: Any = copy.deepcopy(module, parameters)
    args, kwargs = pytree.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, call)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.no_grad(), _same_random_numbers([*pytree.tree_leaves(call), *parameters.values()]):
                return undone(lambda: [pytree.tree_leaves(copied(*args, **kwargs)) for _ in "12"], copied.modules())
    except Exception as error:
        return error


@contextmanager
def _same_random_numbers(values: list[Any]) -> Generator[None]:
    """Fix the random numbers in the block on the CPU and the devices of ``values``, without starting other devices."""
    devices = sorted({value.device.index for value in values if isinstance(value, torch.Tensor) and value.is_cuda})
    generators = [torch.default_generator, *(torch.cuda.default_generators[index] for index in devices)]
    with torch.random.fork_rng(devices):
        for generator in generators:
            generator.manual_seed(0)
        yield


def _same(expected: Any, actual: Any) -> bool:
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        return type(expected) is type(actual) and (not isinstance(expected, (bool, int, str)) or expected == actual)
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return False
    if not expected.is_floating_point():
        return torch.equal(expected, actual)
    wanted, obtained = expected.double(), actual.double()
    scale = float(wanted.abs().nan_to_num(posinf=0.0).max()) if wanted.numel() else 0.0
    return torch.allclose(obtained, wanted, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True)
