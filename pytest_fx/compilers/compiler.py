"""The base class of compilers: a pass in the form ``compiler``, with its text for programs of plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils import _pytree

from fx.passes import Contract, close

_tree: Any = _pytree
COMPUTES_ALONE = ("gradients", "sizes", "signature", "checks", "writes")
"""The properties that an engine for inference may lose: it gets values for fixed sizes, and returns new tensors."""
_PLAIN = (torch.Tensor, tuple, list, dict)


@dataclass(frozen=True)
class Compiler:
    """A compiler of modules. Its fields are its options, and its docstring is its help."""

    name: ClassVar[str]
    """The name for ``--fx-pass``, ``--fx-check`` and ``--fx-hunt``."""
    contract: ClassVar[Contract] = close
    """The promise about the numbers."""
    may_change: ClassVar[tuple[str, ...]] = ()
    """The properties that a compiled program may lose by the compiler's own documentation."""
    not_promised: ClassVar[tuple[str, ...]] = ()
    """Further laws that campaigns leave out, since the compiler does not promise them."""
    keeps_state: ClassVar[bool] = False
    """True if compiled programs run the Python code around the operations: state in attributes, and hooks."""
    keeps_blocks: ClassVar[bool] = True
    """False if blocks such as ``torch.no_grad()`` are lost by design: torch.fx records operations alone."""
    modes: ClassVar[tuple[str, ...]] = ("eval", "train")
    """The modes of the modules that it compiles."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """Return the compiled program. Any exception is a refusal.

        Args:
            module: the module, which keeps its parameters and buffers.
            args: positional arguments of an example call.
            kwargs: keyword arguments of that call.
        """
        raise NotImplementedError

    @property
    def recipe(self) -> str:
        """Lines of Python that assign to ``compiled`` the compiled form of ``model``, for a call ``model(*args)``."""
        raise NotImplementedError

    def why_unavailable(self) -> str | None:
        """Return why the compiler cannot run on this machine; None if it can."""
        return None


def example_result(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the module's result for the example, for compilers of tensors.

    Raises:
        ValueError: a compiler of tensors has no such arguments or results.
    """
    if kwargs or not all(isinstance(leaf, torch.Tensor) for leaf in _tree.tree_leaves(args)):
        raise ValueError("the compiler takes tensors as positional arguments")
    result = _result(module, args, 0)
    leaves = _tree.tree_leaves(result)
    if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise ValueError("the compiler returns tensors")
    if not _are_equal(leaves, _tree.tree_leaves(_result(module, args, 1))):
        raise ValueError("the program draws random numbers, and the compiler has a generator of its own")
    return result


def require_plain(result: Any) -> None:
    """Refuse containers of special classes.

    Raises:
        ValueError: the result is not made of tensors in tuples, lists and dictionaries.
    """
    if type(result) not in _PLAIN:
        raise ValueError(f"the compiler returns tensors in plain containers, and no {type(result).__name__}")
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, (tuple, list)) else ()
    for part in parts:
        require_plain(part)


def _result(module: nn.Module, args: tuple[Any, ...], seed: int) -> Any:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return module(*_tree.tree_map(torch.clone, args))


def _are_equal(results: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(results) == len(others) and all(
        result.shape == other.shape and torch.equal(torch.nan_to_num(result), torch.nan_to_num(other))
        for result, other in zip(results, others, strict=True)
    )
