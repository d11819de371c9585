"""The effects of operations, besides computing values: passes ask here before they drop, move or merge an operation.

>>> import torch, fx
>>> graph = fx.Graph()
>>> x = graph.placeholder("x")
>>> is_impure(graph.call_function(torch.relu, (x,)))
False
>>> why_impure(graph.call_function(torch.relu_, (x,)))
'`%relu_` writes to `%x`'
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils.parametrizations import _SpectralNorm

from fx.arguments import refusal
from fx.higher_order import BODIES
from fx.naming.targets import qualified_name
from fx.operators.effect_rules import (
    COMMUNICATES,
    DRAWS,
    DRAWS_INTO_FIRST,
    RENORMALIZES,
    UNKNOWN,
    UPDATES_STATISTICS,
    WRITES_FIRST,
    Effect,
    find_rule,
    rules,
)

if TYPE_CHECKING:
    from fx.node import Node

Declared = TypeVar("Declared", bound=Callable[..., Any] | str)

_INPUT = Effect("interface", "is an input of the program")
_OUTPUT = Effect("interface", "is what the program returns")
_DECLARED = Effect("state", "is declared to have a side effect")
_MARKED = Effect("state", "calls a module that is marked as impure")
_SEVERITY = ("unknown", "state", "write", "check", "random")
_HOOKS = Effect("unknown", "calls a module with hooks or a forward of its own")


def has_side_effect(fn: Declared) -> Declared:
    """Declare that calls of ``fn``, a function or a class of modules, have an effect, and return ``fn``.

    Dead-code elimination keeps them. The last declaration counts.
    """
    _check(fn, "has_side_effect")
    rules[fn] = _DECLARED
    return fn


def declare_pure(target: Declared) -> Declared:
    """Declare that calls of ``target`` only compute a value, and return ``target``; usable as a decorator.

    Without a declaration, a function without an operator schema counts as an effect, and so do modules of other
    libraries than torch.

    Args:
        target: a function, a class of modules, or the name of a method. The last declaration counts.

    >>> @declare_pure
    ... def double(x):
    ...     return x + x
    """
    _check(target, "declare_pure")
    rules[target] = None
    return target


def _check(target: object, who: str) -> None:
    if not (callable(target) or isinstance(target, str)) or type(target).__hash__ is None:
        raise refusal(f"{who} takes a function, a class of modules or the name of a method", target)


def effect_of(node: Node) -> Effect | None:
    """Return the effect of one operation, or ``None`` if it only computes its value."""
    if not hasattr(type(node), "format_node"):
        raise refusal("the effect of a node is asked for", node)
    op = node.op
    if op == "call_function" or op == "call_method":
        target = node.target
        try:
            rule = rules[target]  # dead-code elimination reads it for every node: this path has no call
        except (KeyError, TypeError):
            rule = find_rule(target)
        if rule is None or isinstance(rule, Effect):
            return rule
        return rule(node.args, node.kwargs)
    if op == "call_module":
        return _effect_of_call(node)
    return _INPUT if op == "placeholder" else _OUTPUT if op == "output" else None


def is_impure(node: Node, impure_random: bool = True) -> bool:
    """Return whether dropping ``node`` could change the program's behaviour, apart from its value.

    Drawing random numbers counts, as it moves the generator's state, unless ``impure_random`` is False.
    """
    effect = effect_of(node)
    return effect is not None and (impure_random or effect.kind != "random")


def why_impure(node: Node) -> str | None:
    """Return why :func:`is_impure` holds for ``node``, as a sentence, or ``None`` if it does not hold."""
    effect = effect_of(node)
    if effect is None:
        return None
    does = effect.does
    if effect.written is not None:
        does = f"{does} {_describe_argument(node, effect.written)}"
    elif effect.does == UNKNOWN.does:
        called = f"the method `{node.target}`" if isinstance(node.target, str) else f"`{qualified_name(node.target)}`"
        does = f"calls {called}, which {does}"
    return f"`%{node.name}` {does}"


def _describe_argument(node: Node, place: int | str) -> str:
    """Return the words for an argument in this sentence: its name, if it is a node."""
    arguments: Any = node.args if isinstance(place, int) else node.kwargs
    try:
        value = arguments[place]
    except (IndexError, KeyError):
        return f"its argument `{place}`" if isinstance(place, str) else "its first argument"
    name = getattr(value, "name", None) if hasattr(value, "users") else None
    return f"`%{name}`" if name is not None else f"its argument {value!r}"


def _effect_of_call(node: Node) -> Effect | None:
    """Return the effect of a ``call_module`` node."""
    owner = node.graph.owning_module
    if owner is None:
        return Effect("unknown", "calls a module, but its graph has no owning module to find it in")
    try:
        module = owner.get_submodule(str(node.target))
    except AttributeError:
        return Effect("unknown", f"calls the module `{node.target}`, which does not exist")
    return _effect_of_module(module)


def _effect_of_module(module: torch.nn.Module) -> Effect | None:
    """Return the effect of calling a module: its own or its children's, in their present mode."""
    kind = type(module)
    marked = vars(module).get("_is_impure", getattr(kind, "_is_impure", None))
    if marked is not None:
        return _MARKED if marked else None
    state = vars(module)
    if state["_forward_hooks"] or state["_forward_pre_hooks"] or "forward" in state:
        return _HOOKS
    if kind in rules:
        declared = rules[kind]
        return declared if isinstance(declared, Effect) else None
    nodes: Any = getattr(getattr(module, "graph", None), "nodes", None)
    if isinstance(nodes, Iterable):  # a program; in TorchScript it is a method
        return _strongest(_inner_effect(node) for node in nodes if node.op not in ("placeholder", "output"))
    if not f"{kind.__module__}.".startswith(("torch.nn.", "torch.ao.nn.")):
        # Its forward is a Python function without a schema, and the same rule holds.
        does = f"calls a module of class `{kind.__qualname__}`, which is not one of torch's and not declared pure"
        return Effect("unknown", does)
    return _strongest((_own_effect(module), *(_effect_of_module(child) for child in module.children())))


def _effect_of_bodies(places: tuple[int, ...]) -> Callable[[Sequence[Any], Mapping[str, Any]], Effect | None]:
    """Return the rule of a function with programs as arguments at these places: it has their effects."""

    def rule(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Effect | None:
        return _strongest(_effect_of_body(args[place] if place < len(args) else None) for place in places)

    return rule


def _effect_of_body(read: Any) -> Effect | None:
    """Return the effect of a program that is an argument."""
    if getattr(read, "op", None) != "get_attr":
        return UNKNOWN
    owner, path = read.graph.owning_module, str(read.target)
    program = read.graph.constants.get(path) if owner is None else getattr(owner, path, None)
    return _effect_of_module(program) if isinstance(program, torch.nn.Module) else UNKNOWN


rules.update((function, _effect_of_bodies(places)) for function, places in BODIES.items())


def _inner_effect(node: Node) -> Effect | None:
    """Return the effect of a node of a called program, in words for the caller."""
    effect = effect_of(node)
    does = f"calls a program in which {why_impure(node)}"
    return effect and dataclasses.replace(effect, does=does, written=None)


def _strongest(effects: Iterable[Effect | None]) -> Effect | None:
    """Return the first effect of the gravest kind; random draws, which callers may ignore, come last."""
    present = [effect for effect in effects if effect is not None]
    if not present:
        return None
    first = min(present, key=lambda effect: _SEVERITY.index(effect.kind))
    return dataclasses.replace(
        first,
        draws=first.draws or any(effect.draws or effect.kind == "random" for effect in present),
        sets_modes=any(effect.sets_modes for effect in present),
    )


def _own_effect(module: torch.nn.Module) -> Effect | None:
    """Return the effect of one of torch's modules, without its children."""
    training = module.training
    if type(module).__module__.startswith("torch.nn.parallel"):
        return COMMUNICATES
    if isinstance(module, torch.nn.SyncBatchNorm) and training:
        return COMMUNICATES
    if isinstance(module, _NormBase):
        updates = training and module.track_running_stats and module._buffers.get("running_mean") is not None
        return UPDATES_STATISTICS if updates else None
    if isinstance(module, _SpectralNorm):
        return UPDATES_STATISTICS if training else None
    if getattr(module, "max_norm", None) is not None:
        return RENORMALIZES
    is_dropout = isinstance(module, _DropoutNd)
    draws = training and (
        (is_dropout and module.p > 0)
        or isinstance(module, torch.nn.RReLU)
        or (isinstance(module, (torch.nn.RNNBase, torch.nn.MultiheadAttention)) and module.dropout > 0)
    )
    # A dropout that drops nothing returns its input as it is, also with `inplace`.
    if getattr(module, "inplace", False) and (draws or not is_dropout):
        return DRAWS_INTO_FIRST if draws else WRITES_FIRST
    is_fractional = isinstance(module, (torch.nn.FractionalMaxPool2d, torch.nn.FractionalMaxPool3d))
    return DRAWS if draws or (is_fractional and getattr(module, "_random_samples", None) is None) else None
