"""Scales and zero points, found by calibration, in the ``state_dict`` of a program (paper, section 6.2.1).

In the code they are constants, as kernels and engines need. The state lists them in the order of the program, beside a
fingerprint of the rest of the program, since a number has a meaning only at its place.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch

from fx.container_kinds import held_kind
from fx.errors import QuantizationError
from fx.modules.attributes import find_attribute
from fx.naming.targets import qualified_name

Target = TypeVar("Target", bound=Callable[..., Any])

CALIBRATED = "calibrated"
"""The entry of a program's ``meta`` for scales and zero points from calibration: True if they are its own.

For a program captured from a module around calibrated ones, it maps their paths to their :class:`FixedNumbers`.
"""
_SCALES, _ZERO_POINTS, _FINGERPRINT = (f"calibration.{name}" for name in ("scales", "zero_points", "program"))
_KEYS = (_SCALES, _ZERO_POINTS, _FINGERPRINT)
_OTHER_PROGRAM = "make the program by the same steps, with the same scheme; or save it whole: fx.save(program, path)"

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

_places: dict[Any, dict[str, int]] = {}
"""The calibrated arguments of each function or module class, with their positions."""


def calibrated(*names: str) -> Callable[[Target], Target]:
    """Declare that calibration finds these arguments of a function or a module class."""

    def declare(target: Target) -> Target:
        is_class = isinstance(target, type)
        parameters = list(inspect.signature(target.forward if is_class else target).parameters)[is_class:]
        _places[target] = {name: parameters.index(name) for name in names}
        return target

    return declare


class _Number(NamedTuple):
    """A constant that calibration found."""

    node: Any
    key: str | int
    value: float


def is_calibrated(program: Any) -> bool:
    """Return whether ``program`` has its own scales and zero points."""
    mark, nodes = program.meta.get(CALIBRATED), program.graph.nodes
    if mark is None:  # a file or a pickle of an earlier version, or no such program
        mark = _calls_functions(nodes) and any(_calls_layer(program, node) for node in nodes)
    return mark is True and next(_numbers(program), None) is not None


def mark_inlined(program: Any, root: torch.nn.Module, nodes: Iterable[Any]) -> None:
    """Record in ``program``, with these ``nodes``, the calibrated modules of ``root`` whose code it has now."""
    if CALIBRATED in program.meta or not _calls_functions(nodes):
        return
    inlined: dict[str, Any] = {}
    for path, module in root.named_modules(remove_duplicate=False):
        numbers = _numbers_of(module)
        if numbers is not None and find_attribute(program, path) is not module:
            inlined[path] = (numbers.scales, numbers.zero_points, numbers.program)
    if inlined:
        program.meta[CALIBRATED] = True if "" in inlined else inlined


def save_numbers(program: Any, state: MutableMapping[str, Any], prefix: str) -> None:
    """Add the scales and zero points of ``program`` to its state."""
    for path, numbers in _held_numbers(program).items():
        numbers.save(program, state, prefix + path, None)


def load_numbers(program: Any, state: MutableMapping[str, Any], prefix: str, missing: list[str]) -> None:
    """Load the scales and zero points of ``program`` from a state, and remove them from it; skip an incomplete state.

    Raises:
        QuantizationError: the state belongs to another program.
    """
    inlined = _held_numbers(program)
    own = inlined.pop("", None)
    for path, numbers in inlined.items():
        numbers.check(state, prefix + path, None, True, missing)
    loaded = None if own is None else _removed_numbers(state, prefix, missing)
    if own is None or loaded is None:
        return
    if loaded.program != own.program:
        raise QuantizationError(
            "the state is that of another quantized program",
            value=prefix + _FINGERPRINT,
            why="its scales and zero points belong to other operations than those of this program",
            remedy=_OTHER_PROGRAM,
        )
    same_places = (len(loaded.scales), len(loaded.zero_points)) == (len(own.scales), len(own.zero_points))
    in_range = [0 < scale < math.inf for scale in loaded.scales] + [0 <= zero <= 255 for zero in loaded.zero_points]
    if not (same_places and all(in_range)):
        raise QuantizationError(
            "scales are positive, and zero points are integers of 0 to 255, one for each place in the program",
            value=" and ".join(prefix + key for key in _KEYS[:2]),
            remedy=_OTHER_PROGRAM,
        )
    rest: dict[Any, Iterator[float]] = {float: iter(loaded.scales), int: iter(loaded.zero_points)}
    for node, key, value in list(_numbers(program)):
        number = next(rest[type(value)])
        if number != value and isinstance(key, str):
            node.kwargs = {**node.kwargs, key: number}
        elif number != value:
            node.update_arg(key, number)


@dataclass(frozen=True, slots=True)
class FixedNumbers:
    """The scales and zero points of a module with fixed code: its state must have the same numbers."""

    scales: tuple[float, ...]
    """The scales, in the order of the program."""
    zero_points: tuple[int, ...]
    """The zero points, in the same order."""
    program: str
    """The fingerprint of the program, in hexadecimal digits."""

    @classmethod
    def of_program(cls, program: Any) -> FixedNumbers | None:
        """Return the numbers of ``program``; None if it is not calibrated."""
        if not is_calibrated(program):
            return None
        values = [number.value for number in _numbers(program)]
        scales = tuple(value for value in values if type(value) is float)
        zero_points = tuple(value for value in values if type(value) is int)
        return cls(scales, zero_points, _fingerprint(program).hex())

    def hold(self, module: torch.nn.Module) -> None:
        """Add the numbers to the state of ``module``, and refuse states with other numbers."""
        module._register_state_dict_hook(self.save)
        module._register_load_state_dict_pre_hook(self.check)

    def save(self, module: torch.nn.Module, state: MutableMapping[str, Any], prefix: str, metadata: Any) -> None:
        """Add the numbers to a state, as a hook."""
        state[prefix + _SCALES] = torch.tensor(self.scales, dtype=torch.float64, device="cpu")
        state[prefix + _ZERO_POINTS] = torch.tensor(self.zero_points, dtype=torch.int64, device="cpu")
        digest = list(bytes.fromhex(self.program))
        state[prefix + _FINGERPRINT] = torch.tensor(digest, dtype=torch.uint8, device="cpu")

    def check(
        self, state: MutableMapping[str, Any], prefix: str, metadata: Any, strict: bool, missing: list[str], *args: Any
    ) -> None:
        """Check the numbers in a loaded state and remove them, as a hook.

        Raises:
            QuantizationError: the state has other numbers.
        """
        loaded = _removed_numbers(state, prefix, missing)
        if loaded is not None and loaded != self:
            raise QuantizationError(
                "the state has other scales and zero points than the code of this module",
                value=" and ".join(prefix + key for key in _KEYS[:2]),
                why="loading does not change code of to_torch and to_folder, or that of a capture around a program",
                remedy="load the state into the program that fx.quantize.convert returned, and make this of it again",
            )


def _numbers_of(module: Any) -> FixedNumbers | None:
    """Return the scales and zero points in the state of a program, or of a module that holds them."""
    if hasattr(module, "graph") and isinstance(getattr(module, "meta", None), dict):
        return FixedNumbers.of_program(module)
    hooks = [getattr(hook, "__self__", None) for hook in module._state_dict_hooks.values()]
    return next((numbers for numbers in hooks if isinstance(numbers, FixedNumbers)), None)


def _held_numbers(program: Any) -> dict[str, FixedNumbers]:
    """Return the scales and zero points in the state of ``program``, by prefixes of their keys."""
    mark = program.meta.get(CALIBRATED)
    if isinstance(mark, Mapping):
        return {f"{path}.": FixedNumbers(*map(_as_tuple, parts)) for path, parts in mark.items()}
    numbers = FixedNumbers.of_program(program)
    return {} if numbers is None else {"": numbers}


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value  # files have lists


def release_numbers(module: torch.nn.Module) -> None:
    """Remove the hooks of :meth:`FixedNumbers.hold`."""
    hooks: Any = module
    for registered in (hooks._state_dict_hooks, hooks._load_state_dict_pre_hooks):
        for key in [key for key, hook in registered.items() if _is_own(hook)]:
            del registered[key]


def _is_own(hook: Any) -> bool:
    """Return whether :meth:`FixedNumbers.hold` registered ``hook``."""
    hook = getattr(hook, "hook", hook)  # torch wraps hooks that run before loading
    return isinstance(getattr(hook, "__self__", None), FixedNumbers)


def _removed_numbers(state: MutableMapping[str, Any], prefix: str, missing: list[str]) -> FixedNumbers | None:
    """Remove the scales and zero points from a state and return them; None if some are missing."""
    paths = [prefix + key for key in _KEYS]
    entries: list[Any] = [state.pop(path).tolist() if path in state else None for path in paths]
    missing.extend(path for path, entry in zip(paths, entries, strict=True) if entry is None)
    if None in entries:
        return None
    scales, zero_points, digest = entries
    return FixedNumbers(tuple(scales), tuple(zero_points), bytes(digest).hex())


def _called(program: Any, node: Any) -> Any:
    """Return the function or module that ``node`` calls; None for a module that is gone."""
    return find_attribute(program, str(node.target)) if node.op == "call_module" else node.target


def _declared(program: Any, node: Any) -> Mapping[str, int]:
    """Return the calibrated arguments of the target of ``node``, with their positions."""
    if node.op == "call_module":
        return next((_places[kind] for kind in type(_called(program, node)).__mro__ if kind in _places), {})
    return _places[node.target] if _calls_functions([node]) else {}


def _calls_functions(nodes: Iterable[Any]) -> bool:
    """Return whether ``nodes`` call calibrated functions; this check is fast."""
    targets = (node.target for node in nodes if node.op == "call_function")
    return bool(_places) and any(type(target).__hash__ is not None and target in _places for target in targets)


def _calls_layer(program: Any, node: Any) -> bool:
    return node.op == "call_module" and bool(_declared(program, node))


def _numbers(program: Any) -> Iterator[_Number]:
    """Yield the calibrated constants of ``program``, in order."""
    for node in program.graph.nodes:
        for name, position in _declared(program, node).items():
            key: Any = name if name in node.kwargs else position
            value: Any = node.kwargs.get(name) if key is name else (*node.args, *[None] * position, None)[position]
            if type(value) in (int, float):
                yield _Number(node, key, value)


def _fingerprint(program: Any) -> bytes:
    """Return a digest of the program without its state, its scales and its zero points."""
    nodes = list(program.graph.nodes)
    indices = {node: index for index, node in enumerate(nodes)}
    numbers = {(number.node, number.key) for number in _numbers(program)}
    digest = hashlib.sha256()
    for node in nodes:
        # The names of inputs may differ; the names of the state may not.
        name = "" if node.op in ("placeholder", "output") else _text(_called(program, node), {})
        arguments = (*enumerate(node.args), *sorted(node.kwargs.items()))
        texts = ["#" if (node, key) in numbers else f"{key}={_text(value, indices)}" for key, value in arguments]
        digest.update(f"{node.op} {name}({', '.join(texts)})\n".encode())
        if node.op == "get_attr" and (constant := _constant(program, node.target)) is not None:
            digest.update(constant)
    return digest.digest()


def _constant(program: Any, path: str) -> Any:
    """Return the bytes of the tensor at ``path`` if the state lacks it, as for folded weights; None otherwise."""
    prefix, _, name = path.rpartition(".")
    owner = find_attribute(program, prefix) if prefix else program
    value = getattr(owner, name, None)
    if type(value) is not torch.Tensor or not isinstance(owner, torch.nn.Module):
        return None
    is_saved = name in owner._buffers and name not in owner._non_persistent_buffers_set
    if is_saved or value.layout is not torch.strided or value.is_meta:
        return None
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.flatten().view(torch.uint8).numpy()


def _text(value: Any, indices: Mapping[Any, int]) -> str:
    """Describe ``value`` in text that is the same in each process."""
    if indices and isinstance(value, type(next(iter(indices)))):
        return f"%{indices[value]}"
    if isinstance(value, torch.nn.Module):
        return f"{_name(type(value))}({value.extra_repr()})"
    if callable(value):
        return _name(value)
    kind = held_kind(value)
    if kind is None:
        return _ADDRESS.sub("", repr(value))
    parts = zip(kind.labels(value), kind.parts(value), strict=True)
    return f"({', '.join(f'{label}={_text(part, indices)}' for label, part in parts)})"


def _name(target: Any) -> str:
    """Return the name of a function or class without its module, as functions may move."""
    return qualified_name(target).rpartition(".")[2]
