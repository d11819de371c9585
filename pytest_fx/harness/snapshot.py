"""Snapshots of a module: its tensors, and the settings of the modules in it."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from fx.modules.attributes import LEFT_BY_SCRIPTING
from pytest_fx.harness.structure import dtype_name, leaves

_equal = torch.equal  # a program may put another function in its place
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_CONTAINERS = frozenset({OrderedDict, dict, list, tuple, set})
"""Types of containers: most settings are empty containers, such as the hooks of one kind."""
_NOT_SETTINGS = {"_parameters", "_buffers", "_modules", "_is_torch_compile", *LEFT_BY_SCRIPTING}
"""Attributes that hold no settings: tensors, modules, and marks of torch.compile and torch.jit."""
_CLOSED = {"torch", "fx", "numpy"}
"""Packages whose objects are compared by their classes alone."""
FEW_ELEMENTS = 1024
"""Number of elements up to which tensors other than parameters and buffers are compared by value."""
DEPTH = 4
"""Depth to which nested settings are compared."""
PIECE = 2**20
"""Number of elements of a large tensor that are processed at a time."""
MOST_NAMED = 3
"""Number of tensors of a kind that a sentence names."""


@dataclass(frozen=True, slots=True)
class ModuleSnapshot:
    """The state of a module at one time."""

    tensors: Mapping[str, tuple[torch.Tensor, bool]]
    """Each parameter and buffer by name, and whether it required a gradient."""
    values: Mapping[str, torch.Tensor]
    """For each of them, a tensor with the same values that nobody writes to."""
    settings: Mapping[str, tuple[Any, ...]]
    """The class and the settings of each module in it, by name."""

    @classmethod
    def of(cls, module: nn.Module, equal: Mapping[str, torch.Tensor] | None = None) -> ModuleSnapshot:
        """Return the present state of ``module``; ``equal`` has tensors with the same values, if they exist already."""
        own = tensors_of(module)
        values = {name: tensor.detach().clone() for name, tensor in own.items()} if equal is None else equal
        return cls({name: (tensor, tensor.requires_grad) for name, tensor in own.items()}, values, settings_of(module))

    def damage(self, module: nn.Module, *, of_tensors: bool = True) -> str | None:
        """Return the changes of ``module`` since, in words, or None if there are none.

        Without ``of_tensors``, changes of parameters and buffers are left out.
        """
        now = tensors_of(module) if of_tensors else {name: tensor for name, (tensor, _) in self.tensors.items()}
        names_by_verb: dict[str, list[str]] = {}
        for name, (tensor, requires_grad) in self.tensors.items():
            if now.get(name) is not tensor:
                names_by_verb.setdefault("replaced" if name in now else "removed", []).append(name)
            elif of_tensors and tensor.dtype != self.values[name].dtype:
                names_by_verb.setdefault(f"made {dtype_name(tensor.dtype)} of", []).append(name)
            elif of_tensors and not same_tensor(tensor, self.values[name]):
                names_by_verb.setdefault("wrote to", []).append(name)
            elif of_tensors and tensor.requires_grad != requires_grad:
                names_by_verb.setdefault("unfroze" if tensor.requires_grad else "froze", []).append(name)
        if added := [name for name in now if name not in self.tensors]:
            names_by_verb["added"] = added
        parts = [f"it {verb} {listed(names)}" for verb, names in names_by_verb.items()]
        modules = settings_of(module)
        changed = [name for name in {**self.settings, **modules} if modules.get(name) != self.settings.get(name)]
        # A buffer added to the module itself may also be in `_non_persistent_buffers_set`: it is named already.
        parts += [self._changed_settings(name, modules) for name in changed[:MOST_NAMED] if not (name == "" and added)]
        return "; ".join(parts) or None

    def _changed_settings(self, name: str, modules: Mapping[str, tuple[Any, ...]]) -> str:
        """Return the changes of one module's settings, in words."""
        where = name or "the module itself"
        if name not in modules or name not in self.settings:
            return f"{where} is {'new' if name in modules else 'gone'}"
        (kind, before), (other, now) = self.settings[name], modules[name]
        if kind is not other:
            return f"{where} is another module, of class {getattr(other, '__name__', other)}"
        old, new = dict(before), dict(now)
        names = [key for key in {**old, **new} if old.get(key, _ABSENT) != new.get(key, _ABSENT)]
        if names == ["training"]:
            return f"{where} is in {'training' if new['training'] == 'True' else 'evaluation'} mode"
        return f"{where} has another {listed(names)}"


_ABSENT = object()


def listed(names: list[str]) -> str:
    """Return names in a line: the first few, and the number of the others."""
    rest = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of ``module`` by name: tied ones once, and also those that are not saved."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def settings_of(module: nn.Module) -> dict[str, tuple[Any, ...]]:
    """Return the class and the settings of each module in ``module`` by name, to be compared with later ones.

    They include settings that ``repr`` does not show: the heads of an attention, the reduction of a loss, hooks, and
    the contents of lists, dicts and objects. Functions are compared by their names.

    >>> before = settings_of(nn.MSELoss())
    >>> before == settings_of(nn.MSELoss()), before == settings_of(nn.MSELoss(reduction="sum"))
    (True, False)
    """
    return {
        name: (
            type(part),
            tuple((key, _value(value)) for key, value in vars(part).items() if key not in _NOT_SETTINGS),
        )
        for name, part in module.named_modules(remove_duplicate=False)
    }


def _value(setting: Any, depth: int = 0) -> Any:
    """Return a value that is equal for equal settings, even between a module and its copy."""
    kind = type(setting)
    if kind in _CONTAINERS and not setting:
        return kind
    if isinstance(setting, _PLAIN):
        return repr(setting)  # as text NaN is equal to itself, and 1 is not True
    if isinstance(setting, torch.Tensor):
        few = is_strided(setting) and setting.numel() <= FEW_ELEMENTS
        return setting.dtype, setting.shape, repr(setting.tolist()) if few else None
    if depth < DEPTH:
        if isinstance(setting, list | tuple):
            return type(setting), tuple(_value(value, depth + 1) for value in cast("tuple[Any, ...]", setting))
        if isinstance(setting, set | frozenset):
            return type(setting), frozenset(map(repr, cast("set[Any]", setting)))
        if isinstance(setting, Mapping):
            values = cast("Mapping[Any, Any]", setting)
            # Hooks are numbered, with other numbers in each copy.
            numbered = isinstance(setting, OrderedDict)
            return type(setting), tuple(
                ("" if numbered and isinstance(key, int) else repr(key), _value(value, depth + 1))
                for key, value in values.items()
            )
        if _is_record(setting):
            return type(setting), _value(vars(setting), depth + 1)
    return getattr(setting, "__qualname__", None) or type(setting)


def _is_record(setting: Any) -> bool:
    """Return whether a user's object is a record of values, such as a configuration."""
    package = type(setting).__module__.partition(".")[0]
    is_open = hasattr(setting, "__dict__") and not isinstance(setting, nn.Module | type) and not callable(setting)
    return is_open and (package == "types" or package not in sys.stdlib_module_names) and package not in _CLOSED


_dispatch = cast("Any", torch.Tensor).__torch_dispatch__


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether operators read the tensor's values themselves, without ``__torch_dispatch__`` of a subclass."""
    kind: Any = type(tensor)
    return kind.__torch_dispatch__ == _dispatch


def is_strided(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has strided memory: it is plain, and not sparse, MKL-DNN, nested or meta."""
    return tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_meta) and is_plain(tensor)


def memory_of(tensor: torch.Tensor) -> int:
    """Return a number that is the same for tensors that share memory."""
    return tensor.untyped_storage().data_ptr() if is_strided(tensor) else id(tensor)


def place_of(tensor: torch.Tensor) -> int:
    """Return a number that is the same for tensors whose elements begin at the same address."""
    return tensor.data_ptr() if is_strided(tensor) and tensor.numel() else id(tensor)


def held_by(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yield the tensors of a module, including those that modules in it have as other attributes."""
    for part in module.modules():
        for value in vars(part).values():
            yield from (leaf for _, leaf in leaves(value) if isinstance(leaf, torch.Tensor))


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor as a strided tensor, in a dtype that can be compared."""
    tensor = tensor.detach()
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    if tensor.dtype == torch.complex32:
        return tensor.to(torch.complex64)
    return tensor.to(torch.float32) if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether no element is infinite or NaN, in whatever dtype.

    >>> is_finite(torch.ones(2).to(torch.float8_e5m2)), is_finite(torch.tensor([torch.inf]).to(torch.float8_e5m2))
    (True, False)
    """
    return all(bool(piece.isfinite().all()) for (piece,) in in_pieces(dense(tensor)))


def same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same dtype, device, layout and elements; NaN equals NaN."""
    if not (is_plain(one) and is_plain(other)):
        return one is other or (type(one) is type(other) and _same_parts(one, other))
    if (one.dtype, one.device, one.layout, one.is_nested) != (other.dtype, other.device, other.layout, other.is_nested):
        return False
    if one.is_nested:
        parts = list(one.unbind()), list(other.unbind())
        return len(parts[0]) == len(parts[1]) and all(map(same_tensor, *parts))
    if one.shape != other.shape or one.is_meta:
        return one.shape == other.shape
    if one.is_quantized and other.qscheme() != one.qscheme():
        return False
    values, others = dense(one), dense(other)
    if _equal(values, others):
        return True
    return (values.is_floating_point() or values.is_complex()) and all(
        bool(((first == second) | (first.isnan() & second.isnan())).all())
        for first, second in in_pieces(values, others)
    )


def _same_parts(one: Any, other: Any) -> bool:
    """Return whether two wrapper tensors consist of equal tensors; False if their class does not expose these."""
    if not is_traceable_wrapper_subclass(one):
        return False
    (names, settings), (others, other_settings) = one.__tensor_flatten__(), other.__tensor_flatten__()
    if names != others or _value(settings) != _value(other_settings):
        return False
    return all(same_tensor(getattr(one, name), getattr(other, name)) for name in names)


def in_pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield tensors of one shape in pieces, as views: a computation on a piece takes little memory.

    A piece has at least one row, only whole rows, and at most :data:`PIECE` elements unless a single row has more.

    >>> [piece.tolist() for piece, in in_pieces(torch.arange(3))]
    [[0, 1, 2]]
    """
    first = tensors[0]
    if first.numel() <= PIECE or first.shape[0] == 1:
        yield tensors
        return
    rows = max(1, PIECE * first.shape[0] // first.numel())
    yield from zip(*(tensor.split(rows) for tensor in tensors), strict=True)


def overlaps(tensor: torch.Tensor) -> bool:
    """Return whether elements share memory, so that the result of writes depends on their order.

    >>> overlaps(torch.ones(3).expand(2, 3)), overlaps(torch.ones(3).unfold(0, 2, 1)), overlaps(torch.ones(2, 3).t())
    (True, True, False)
    """
    if not is_strided(tensor):
        return False
    end = 0
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= end:
            return True
        end += stride * (size - 1)
    return False
