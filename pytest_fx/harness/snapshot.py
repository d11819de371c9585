"""What a module holds and is at one time: its tensors, and the settings of the modules in it."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pytest_fx.harness.structure import leaves

_equal = torch.equal  # a program may put another function in its place
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_HOLDERS = frozenset({OrderedDict, dict, list, tuple, set})
"""What most settings of a module are, without anything in them: there are no hooks of some kind."""
_HELD_APART = {"_parameters", "_buffers", "_modules", "_is_torch_compile"}  # the last is a mark of the compiler
_CLOSED = {"torch", "fx", "numpy"}
"""Packages whose objects are told apart by their classes alone."""
FEW_ELEMENTS = 1024
"""Elements of a tensor that is neither a parameter nor a buffer up to which its values are looked at."""
DEPTH = 4
"""How deep settings are looked into."""
PIECE = 2**20
"""Elements of a large tensor that are looked at together."""
MOST_NAMED = 3
"""Tensors of a kind that are named in a sentence."""


@dataclass(frozen=True, slots=True)
class ModuleSnapshot:
    """A module as it was."""

    tensors: Mapping[str, tuple[torch.Tensor, bool]]
    """Each parameter and buffer by name, and whether it required a gradient."""
    values: Mapping[str, torch.Tensor]
    """For each of them one that holds the same, and that nobody writes to."""
    settings: Mapping[str, tuple[Any, ...]]
    """What each module in it was, by name."""

    @classmethod
    def of(cls, module: nn.Module, equal: Mapping[str, torch.Tensor] | None = None) -> ModuleSnapshot:
        """Return ``module`` as it is now; ``equal`` has tensors that hold the same, where there are such already."""
        held = tensors_of(module)
        values = {name: tensor.detach().clone() for name, tensor in held.items()} if equal is None else equal
        return cls({name: (tensor, tensor.requires_grad) for name, tensor in held.items()}, values, settings_of(module))

    def damage(self, module: nn.Module, *, of_tensors: bool = True) -> str | None:
        """Return what happened to ``module`` since, in words, or None if it is as it was.

        If not ``of_tensors``, that is what happened beside its parameters and buffers.
        """
        now = tensors_of(module) if of_tensors else {name: tensor for name, (tensor, _) in self.tensors.items()}
        found: dict[str, list[str]] = {}
        for name, (tensor, requires_grad) in self.tensors.items():
            if now.get(name) is not tensor:
                found.setdefault("put another tensor in the place of" if name in now else "removed", []).append(name)
            elif of_tensors and tensor.dtype != self.values[name].dtype:
                found.setdefault(f"made {str(tensor.dtype).removeprefix('torch.')} of", []).append(name)
            elif of_tensors and not same_tensor(tensor, self.values[name]):
                found.setdefault("wrote to", []).append(name)
            elif of_tensors and tensor.requires_grad != requires_grad:
                verb = "made a parameter of" if tensor.requires_grad else "froze"
                found.setdefault(verb, []).append(name)
        if added := [name for name in now if name not in self.tensors]:
            found["added"] = added
        parts = [f"it {verb} {listed(names)}" for verb, names in found.items()]
        modules = settings_of(module)
        changed = [name for name in {**self.settings, **modules} if modules.get(name) != self.settings.get(name)]
        # A buffer added to the module itself may be in its `_non_persistent_buffers_set`, too: that is said already.
        parts += [self._what_changed(name, modules) for name in changed[:MOST_NAMED] if not (name == "" and added)]
        return "; ".join(parts) or None

    def _what_changed(self, name: str, modules: Mapping[str, tuple[Any, ...]]) -> str:
        """Return what is another setting of one module, in words."""
        where = name or "the module itself"
        if name not in modules or name not in self.settings:
            return f"{where} is {'new' if name in modules else 'gone'}"
        (kind, before), (other, now) = self.settings[name], modules[name]
        if kind is not other:
            return f"{where} is another module, of class {getattr(other, '__name__', other)}"
        held, found = dict(before), dict(now)
        names = [key for key in {**held, **found} if held.get(key, _ABSENT) != found.get(key, _ABSENT)]
        if names == ["training"]:
            return f"{where} is in {'training' if found['training'] == 'True' else 'evaluation'} mode"
        return f"{where} has another {listed(names)}"


_ABSENT = object()


def listed(names: list[str]) -> str:
    """Return names in a line, the first few of many."""
    rest = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of ``module`` by name, tied ones once, also what is not saved with them."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def settings_of(module: nn.Module) -> dict[str, tuple[Any, ...]]:
    """Return what each module in ``module`` is, by its name: to be compared with what it is later.

    What ``repr`` does not show counts as well: the heads of an attention, the reduction of a loss, hooks, what lists,
    dicts and objects hold. Functions are told apart by their names.

    >>> before = settings_of(nn.MSELoss())
    >>> before == settings_of(nn.MSELoss()), before == settings_of(nn.MSELoss(reduction="sum"))
    (True, False)
    """
    return {
        name: (
            type(part),
            tuple((key, _value(value)) for key, value in vars(part).items() if key not in _HELD_APART),
        )
        for name, part in module.named_modules(remove_duplicate=False)
    }


def _value(found: Any, depth: int = 0) -> Any:
    """Something that is equal for equal settings, also of a copy of the module."""
    kind = type(found)
    if kind in _HOLDERS and not found:
        return kind
    if isinstance(found, _PLAIN):
        return repr(found)  # in which NaN is equal to itself, and 1 is not True
    if isinstance(found, torch.Tensor):
        few = is_strided(found) and found.numel() <= FEW_ELEMENTS
        return found.dtype, found.shape, repr(found.tolist()) if few else None
    if depth < DEPTH:
        if isinstance(found, list | tuple):
            return type(found), tuple(_value(value, depth + 1) for value in cast("tuple[Any, ...]", found))
        if isinstance(found, set | frozenset):
            return type(found), frozenset(map(repr, cast("set[Any]", found)))
        if isinstance(found, Mapping):
            values = cast("Mapping[Any, Any]", found)
            # Hooks are kept by numbers that count up, and are others in each copy.
            numbered = isinstance(found, OrderedDict)
            return type(found), tuple(
                ("" if numbered and isinstance(key, int) else repr(key), _value(value, depth + 1))
                for key, value in values.items()
            )
        if _is_record(found):
            return type(found), _value(vars(found), depth + 1)
    return getattr(found, "__qualname__", None) or type(found)


def _is_record(found: Any) -> bool:
    """Return whether an object of a user's is there for what it holds, a configuration say."""
    package = type(found).__module__.partition(".")[0]
    is_open = hasattr(found, "__dict__") and not isinstance(found, nn.Module | type) and not callable(found)
    return is_open and (package == "types" or package not in sys.stdlib_module_names) and package not in _CLOSED


_dispatch = cast("Any", torch.Tensor).__torch_dispatch__


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether operators find the values of a tensor themselves, with no class of somebody's in their place."""
    kind: Any = type(tensor)
    return kind.__torch_dispatch__ == _dispatch


def is_strided(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has values in memory by strides: it is plain, not sparse, of MKL-DNN, nested or meta."""
    return tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_meta) and is_plain(tensor)


def memory_of(tensor: torch.Tensor) -> int:
    """Something that tensors have in common that share their memory."""
    return tensor.untyped_storage().data_ptr() if is_strided(tensor) else id(tensor)


def place_of(tensor: torch.Tensor) -> int:
    """Something that tensors have in common whose elements begin at the same place in memory."""
    return tensor.data_ptr() if is_strided(tensor) and tensor.numel() else id(tensor)


def held_by(module: nn.Module) -> Iterator[torch.Tensor]:
    """The tensors of a module, also what modules in it keep beside their parameters and buffers."""
    for part in module.modules():
        for value in vars(part).values():
            yield from (leaf for _, leaf in leaves(value) if isinstance(leaf, torch.Tensor))


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The values that a tensor stands for, by strides and in a dtype that can be compared."""
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
    one, other = dense(one), dense(other)
    if _equal(one, other):
        return True
    return (one.is_floating_point() or one.is_complex()) and all(
        bool(((left == right) | (left.isnan() & right.isnan())).all()) for left, right in in_pieces(one, other)
    )


def _same_parts(one: Any, other: Any) -> bool:
    """Return whether tensors whose class computes their values are made of equal ones; False if it hides these."""
    if not is_traceable_wrapper_subclass(one):
        return False
    (names, settings), (others, other_settings) = one.__tensor_flatten__(), other.__tensor_flatten__()
    if names != others or _value(settings) != _value(other_settings):
        return False
    return all(same_tensor(getattr(one, name), getattr(other, name)) for name in names)


def in_pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield tensors of one shape in pieces, which share their memory: what is computed of one takes little.

    A piece is made of whole rows, of one at least, and has :data:`PIECE` elements at most if a row has no more.

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
    """Return whether elements have memory in common, so that what writes to them leave depends on their order.

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
