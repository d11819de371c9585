"""Modules as the name of a class and the arguments of its constructor, derived and checked by a reconstruction.

The reconstruction is on the meta device, which has no memory. The description is valid only if the new module has the
same attributes, and tensors of the same names and shapes. The tensors are filled in afterwards.
"""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode

from fx.container_kinds import held_kind
from fx.errors import with_article
from fx.modules.attributes import LEFT_BY_SCRIPTING
from fx.serialization.allow_list import Refused
from fx.serialization.values import is_name, printable

_nn: Any = torch.nn

PROGRAM_STATE = frozenset(
    {"_graph", "_written", "_code_revision", "_tracer_cls", "_tracer_extras", "meta", "_in_spec", "_out_spec"}
)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, tuple, list, dict, slice, range, torch.Tensor, torch.dtype)
FRESH = torch.nn.Module()
"""A plain module, with the attributes of every module."""

_STATE = ("training", "_parameters", "_buffers", "_modules")
"""Entries of a module's ``__dict__`` that are described one by one."""
_DERIVED: dict[type, frozenset[str]] = {_nn.RNNBase: frozenset({"_flat_weights", "_flat_weight_refs"})}
"""Entries that follow from the tensors."""

_OPTIONAL = object()
"""The description of a buffer that is None, and may be filled in later, such as the weights of a loss."""
_UNNAMED = frozenset({"device", "dtype", "process_group"})
"""Arguments of constructors that follow from the tensors, or that a file cannot express."""

Arguments = dict[str, Any]


def _attention_arguments(module: Any) -> Arguments:
    return {"bias": module.in_proj_bias is not None, "add_bias_kv": module.bias_k is not None}


def _transformer_layer_arguments(module: Any) -> Arguments:
    return {
        "d_model": module.linear1.in_features,
        "nhead": module.self_attn.num_heads,
        "dim_feedforward": module.linear1.out_features,
        "dropout": module.dropout.p,
        "activation": module.activation,
        "layer_norm_eps": module.norm1.eps,
        "batch_first": module.self_attn.batch_first,
        "bias": module.linear1.bias is not None,
    }


_SPECIAL: dict[type, Callable[[Any], Arguments]] = {
    torch.nn.MultiheadAttention: _attention_arguments,
    torch.nn.TransformerEncoderLayer: _transformer_layer_arguments,
    torch.nn.TransformerDecoderLayer: _transformer_layer_arguments,
    torch.nn.AdaptiveLogSoftmaxWithLoss: lambda module: {
        "cutoffs": list(module.cutoffs[:-1]),
        "head_bias": module.head.bias is not None,
    },
}
"""Special functions for classes with arguments that are not attributes of the same names."""

_LAYERS = ("num_layers", "num_encoder_layers", "num_decoder_layers")
"""Arguments by which a constructor makes many parameters; they never exceed the number of tensors in the file."""
_MOST_ITEMS = 10_000
"""The largest length of a range among a constructor's arguments: in a file, two numbers can describe any length."""
_MOST_COUNT = 1_000_000
"""The largest integer for a constructor of a user's class, as it may be a number of objects to make."""


# Attributes: the names that they may have in a file, and those that a program in a file may read.


def check_path(root: torch.nn.Module, op: str, path: str) -> None:
    """Refuse a path of a ``get_attr`` or ``call_module`` node that does not lead through submodules to data.

    Other attributes of modules, such as methods, lead to the rest of the process.
    """
    *parents, name = path.split(".")
    owner: Any = root
    for parent in parents:
        owner = owner._modules.get(parent)
        if owner is None:
            raise Refused(f"the path {path!r} leads through {parent!r}, where there is no submodule")
    if owner._modules.get(name) is not None:
        return
    if op == "get_attr":
        if owner._parameters.get(name) is not None or owner._buffers.get(name) is not None:
            return
        is_state = name in FRESH.__dict__ or name in PROGRAM_STATE
        if name == "training" and type(owner.training) is bool:  # programs that depend on it check it
            return
        if not is_state and isinstance(owner.__dict__.get(name, owner), _PLAIN):
            return
    kind = "submodule" if op == "call_module" else "parameter, buffer, submodule or attribute of its own"
    raise Refused(f"the path {path!r} leads to nothing", why=f"its owner has no {kind} called {name!r}")


def check_attribute(module: torch.nn.Module, name: Any) -> None:
    """Refuse a name of a parameter, buffer, submodule or attribute that hides another attribute or breaks paths."""
    if not is_name(name) or "." in name:
        raise Refused(f"{ascii(name)[:80]} is not a name of an attribute")
    if hasattr(type(module), name) or name in FRESH.__dict__ or name in PROGRAM_STATE:
        raise Refused(f"the attribute {name!r} would hide one that every such module has")


# Constructors.


class Budget:
    """The number of torch functions that the constructors of one program may call, in proportion to its tensors."""

    _BASE: ClassVar[int] = 2_000
    _EACH_TENSOR: ClassVar[int] = 100

    def __init__(self) -> None:
        self._left = self._BASE

    def add(self, tensors: int) -> None:
        """Add the allowance for the tensors of one more module."""
        self._left += self._EACH_TENSOR * tensors

    def spend(self) -> None:
        """Count one call."""
        self._left -= 1
        if self._left < 0:
            raise Refused(
                "its constructor calls more functions of torch than making its tensors takes",
                why=f"constructors in a program make {self._BASE:,} calls, and {self._EACH_TENSOR} for each tensor",
                remedy="make fewer or larger tensors, or compute them outside of the constructor",
            )


def constructor_arguments(module: torch.nn.Module, budget: Budget) -> Arguments:
    """Return the constructor arguments of a module like ``module``, without those that equal their defaults.

    The check spends some of ``budget``. It refuses if the reconstruction is not the same, except for values.
    """
    kind = type(module)
    special = _SPECIAL[kind](module) if kind in _SPECIAL else {}
    arguments: Arguments = {}
    for name, parameter in _parameters(kind).items():
        value = special[name] if name in special else _own_value(module, name, parameter.default)
        if value is inspect.Parameter.empty:
            continue
        # For Python `True == 1 == 1.0`, but modules may distinguish these.
        if type(value) is not type(parameter.default) or value != parameter.default:
            arguments[name] = value
    tensors = [value for _, _, _, value in tensor_slots(module) if value is not None]
    remedy = "keep each argument of its constructor as an attribute of that name"
    rebuilt = make_module(kind, arguments, tensors, budget, remedy)
    if (difference := _difference(rebuilt, module)) is not None:
        raise Refused(
            f"{with_article(kind.__qualname__)} made from its constructor's arguments is not the same", why=difference
        )
    return arguments


def _parameters(kind: type) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a constructor that can be passed by name."""
    initializer: Any = kind.__init__
    signature = inspect.signature(initializer)
    parameters = dict(itertools.islice(signature.parameters.items(), 1, None))
    if issubclass(kind, _nn.RNNBase):  # their constructors take *args and pass them on
        parameters = dict(itertools.islice(inspect.signature(_nn.RNNBase.__init__).parameters.items(), 2, None))
        if kind is torch.nn.RNN:
            parameters["nonlinearity"] = inspect.Parameter(
                "nonlinearity", inspect.Parameter.KEYWORD_ONLY, default="tanh"
            )
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p for name, p in parameters.items() if p.kind not in variable and name not in _UNNAMED}


def _own_value(module: torch.nn.Module, name: str, default: Any) -> Any:
    """Return the attribute ``name``; for a parameter, whether it exists; ``empty`` if there is neither."""
    if name in module.__dict__:
        return module.__dict__[name]
    if name in module._parameters and isinstance(default, bool):
        return module._parameters[name] is not None
    return inspect.Parameter.empty


class _WithoutValues(TorchFunctionMode):
    """A mode that skips the filling of new tensors, for which the meta device would load most of torch's compiler."""

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self._budget = budget

    _FILLING: ClassVar[frozenset[Any]] = frozenset(
        {torch.Tensor.fill_, torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.zero_}
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._budget.spend()
        kwargs = kwargs or {}
        fills = func in self._FILLING or getattr(func, "__module__", None) == "torch.nn.init"
        filled = args[0] if args else kwargs.get("tensor")
        return filled if fills and isinstance(filled, torch.Tensor) else func(*args, **kwargs)


def make_module(
    kind: type, arguments: Arguments, tensors: Sequence[torch.Tensor], budget: Budget, remedy: str | None = None
) -> torch.nn.Module:
    """Return a new module of ``kind`` on the meta device; ``tensors`` are those that will fill it."""
    _check_arguments(kind, arguments, tensors)
    budget.add(len(tensors))
    try:
        with torch.device("meta"), _WithoutValues(budget), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its author saw the warnings when the module was first created
            return kind(**arguments)
    except Refused:
        raise
    except Exception as error:
        message = str(error).partition("Exception raised from")[0].rstrip()  # without the stack of C++
        raise Refused(
            f"{with_article(kind.__qualname__)} cannot be made with these arguments",
            why=printable(f"{type(error).__name__}: {message}"),
            remedy=remedy,
        ) from error


def _check_arguments(kind: type, arguments: Arguments, tensors: Sequence[torch.Tensor]) -> None:
    """Refuse arguments with which a constructor would take more time or memory than its tensors justify."""
    for name in _UNNAMED & arguments.keys():
        raise Refused(f"{name} is given to a constructor", why="modules are made without memory, and tensors put in")
    for name in _LAYERS:
        if type(count := arguments.get(name, 0)) is not int or count > len(tensors):
            raise Refused(f"{name} is {str(count)[:40]}, but there are tensors for fewer layers")
    most = None
    if kind.__module__.partition(".")[0] != "torch":
        most = max(_MOST_COUNT, *(tensor.numel() for tensor in tensors), 0)
    for name, value in arguments.items():
        _check_argument(name, value, most)


def _check_argument(name: str, value: Any, most: int | None) -> None:
    """Refuse values, ``value`` or inside it, that describe more data than a file holds."""
    if type(value) is range:
        _check_argument(name, [value.start, value.stop, value.step], most)
        if (value.stop - value.start) // value.step > _MOST_ITEMS:
            raise Refused(f"{name} is a range of more than {_MOST_ITEMS:,} numbers")
    elif isinstance(value, torch.Tensor) and value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise Refused(f"{name} is a tensor that is expanded", remedy="register it as a buffer")
    elif type(value) is int and most is not None and value > most:
        raise Refused(
            f"{name} is {str(value)[:40]}, and no tensor of the module is as large",
            why=f"constructors of your classes get integers of at most {_MOST_COUNT:,}, or the elements of a tensor",
            remedy="pass the number as a float or a string",
        )
    elif (kind := held_kind(value)) is not None:
        for item in (*(kind.labels(value) if kind.is_keyed else ()), *kind.parts(value)):
            _check_argument(name, item, most)
    elif isinstance(value, (set, frozenset)):
        for item in value:
            _check_argument(name, item, most)


def _difference(rebuilt: torch.nn.Module, module: torch.nn.Module) -> str | None:
    """Return the first difference between two modules, except for values of tensors; None if there is none."""
    new, old = _described(rebuilt), _described(module)
    for place in {**old, **new}:
        is_same = place in new and place in old and _equal(new[place], old[place])
        if not is_same and new.get(place) is not _OPTIONAL:
            return f"{place} would be {_shown(new, place)}, not {_shown(old, place)}"
    return None


def _described(module: torch.nn.Module) -> dict[str, Any]:
    """Return the class, attributes, shapes of tensors, and names of parts of a module and its submodules, by place."""
    described: dict[str, Any] = {}
    orders: dict[str, Any] = {}
    for path, owner in module.named_modules(remove_duplicate=False):
        derived = next((names for kind, names in _DERIVED.items() if isinstance(owner, kind)), frozenset[str]())
        parts = {name: None if value is None else value.shape for name, value in owner._parameters.items()}
        parts |= {name: _OPTIONAL if value is None else value.shape for name, value in owner._buffers.items()}
        for name, value in {**owner.__dict__, **parts}.items():
            if name not in {*_STATE, *LEFT_BY_SCRIPTING, *derived}:
                described[f"{path}.{name}" if path else name] = value
        described[f"the class of {path or 'it'}"] = type(owner)
        orders[f"the order in {path or 'it'}"] = [*map(list, (owner._parameters, owner._buffers, owner._modules))]
    return described | orders


def _equal(left: Any, right: Any) -> bool:
    if left is right or type(left) is not type(right):
        return left is right
    try:
        return bool(left == right)
    except (RuntimeError, TypeError, ValueError):  # a tensor, for one
        return False


def _shown(state: Mapping[str, Any], place: str) -> str:
    text = repr(state[place]) if place in state else "absent"
    return text if len(text) <= 80 else f"{text[:80]}…"


def tensor_slots(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str, Any]]:
    """Yield all parameters and buffers of a module and its submodules: path, owner, name, and value or None."""
    for path, owner in module.named_modules(remove_duplicate=False):
        for name, value in itertools.chain(owner._parameters.items(), owner._buffers.items()):
            yield f"{path}.{name}" if path else name, owner, name, value


def fill_module(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Fill ``tensors`` into a module without memory, at places of the same kinds and shapes."""
    rest = dict(tensors)
    for path, owner, name, place in list(tensor_slots(module)):
        is_buffer = name in owner._buffers
        value = rest.pop(path, None)
        if value is None:
            if place is not None:
                raise Refused(f"there is no tensor for {path}")
            continue
        # A buffer may be None until it is filled in later. A parameter that is None stays None, as with `bias=False`.
        if place is None and not is_buffer:
            raise Refused(f"there is a tensor for {path}, which is None in such a module")
        if isinstance(value, torch.nn.Parameter) is is_buffer:
            raise Refused(f"{path} is a {'buffer' if is_buffer else 'parameter'}, and its tensor is not")
        if place is not None and place.shape != value.shape:
            raise Refused(f"the tensor for {path} has shape {list(value.shape)}, not {list(place.shape)}")
        if place is not None and _is_integral(place) is not _is_integral(value):
            raise Refused(f"the tensor for {path} has {value.dtype}, not {place.dtype}")
        setattr(owner, name, value)
    if rest:
        raise Refused(f"there is a tensor for {next(iter(rest))!r}, which such a module does not have")


def _is_integral(tensor: torch.Tensor) -> bool:
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
