"""Whatever torch.fx keeps in dead-code elimination is kept here too, over all operators of torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.fx.node import Node as TheirNode
from torch.fx.node import _side_effectful_functions

import fx


def operators() -> Iterator[Any]:
    for qualified in torch._C._dispatch_get_all_op_names():
        namespace, _, name = qualified.partition("::")
        packet, _, overload = name.partition(".")
        if namespace in ("aten", "prims", "profiler", "_c10d_functional"):
            found = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload or "default", None)
            if found is not None:
                yield found


def their_verdict(target: Any, impure_random: bool) -> bool:
    graph = torch.fx.Graph()
    return TheirNode(graph, "node", "call_function", target, (), {}).is_impure(impure_random)


def our_verdict(target: Any, impure_random: bool) -> bool:
    return fx.Graph().create_node("call_function", target, (), {}, "node").is_impure(impure_random)


@pytest.mark.parametrize("impure_random", [True, False])
def test_operators_that_are_kept_there_are_kept_here(impure_random: bool) -> None:
    kept = 0
    for operator in operators():
        if their_verdict(operator, impure_random):
            kept += 1
            assert our_verdict(operator, impure_random), operator
    assert kept > 1000


def test_functions_that_are_kept_there_are_kept_here() -> None:
    for function in _side_effectful_functions:
        assert our_verdict(function, True), function


def test_what_is_kept_here_alone_has_a_reason() -> None:
    only_here = {str(one) for one in operators() if our_verdict(one, False) and not their_verdict(one, False)}
    explained = "batch_norm instance_norm _assert sym_constrain_range c10d profiler rrelu_with_noise".split()
    unexplained = {name for name in only_here if not any(word in name for word in explained)}
    returns_nothing = {str(one) for one in operators() if not one._schema.returns}
    assert unexplained <= returns_nothing
