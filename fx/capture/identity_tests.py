"""Traced values that the traced code compares by identity: Python compares what stands for them, and asks nobody."""

from __future__ import annotations

import operator
import sys
from typing import Any

import torch

from fx.assertions import ASSERTIONS, check_given
from fx.bytecode.mentions import Identity, compared_with, identities, unpacks
from fx.capture.augmented import sources
from fx.frames import is_pythons_file, users_frame
from fx.modules.attributes import find_attribute
from fx.naming.printing import describe
from fx.node import Node
from fx.operators.families import find_operator
from fx.operators.overloads import builtin_name
from fx.operators.sharing import TENSOR_METHODS
from fx.provenance import GENERATED_FILES, SourceLocation
from fx.proxy import TracerBase

_OF_PYTHON = frozenset({"_operator", "builtins", "math"})


def expect_known(tracer: TracerBase, node: Node, location: SourceLocation) -> bool:
    """Let the program check that a value which is compared with ``None`` is given, and refuse other comparisons.

    Returns:
        Whether what is computed at the location may be compared.

    Raises:
        TraceError: it is compared with another value, and may be the same one.
    """
    code = location._code
    if code is None or not identities(code):
        return False
    tests = tests_of(node, location)
    is_generated = users_frame(sys._getframe(1)).f_code.co_filename in GENERATED_FILES
    if not tests or node.target in ASSERTIONS or is_generated:
        return bool(tests) or unpacks(code, location._offset)
    for test in tests:
        where = SourceLocation(code, test.offset)
        if test.with_none and _may_be_none(node, tracer.root):
            message = f"the program was captured where this is given, and not None: {where}"
            tracer.create_proxy("call_function", check_given, (tracer.proxy(node), message), {})
        elif test.one and test.other and may_be_argument(node, tracer.root) and not is_pythons_file(code.co_filename):
            raise tracer._refusal(
                "cannot compare traced values by identity",
                where=where,
                value=describe(node),
                why="the operation may give the very tensor that it was given, as is known only when the module runs",
                remedy="compare what decides it (shape, dtype, device), or put the line in a function marked fx.wrap",
            )
    return True


def tests_of(node: Node, location: SourceLocation) -> tuple[Identity, ...]:
    """Return the comparisons by identity of what a node computes at a location, as the code there shows them."""
    code = location._code
    if code is None or not identities(code):
        return ()
    element = node.args[1] if node.target is operator.getitem and type(node.args[1]) is int else 0
    return compared_with(code, location._offset, element)


def may_be_argument(node: Node, root: torch.nn.Module) -> bool:
    """Return whether the value of a node may be the very object that the operation was given, and not a view of it."""
    row = find_operator(node.target) if node.op in ("call_function", "call_method") else None
    return not (row is not None and row.is_view) and any(sources(node, root))


def _may_be_none(node: Node, root: torch.nn.Module) -> bool:
    """Return whether the value of a node is not known to be a tensor, a number or a container of these."""
    target: Any = node.target
    if node.op == "call_method":
        return target not in TENSOR_METHODS
    if node.op == "call_module":
        return not type(find_attribute(root, str(target))).__module__.startswith("torch.nn")
    if target is operator.getitem:
        whole = node.args[0]
        return not isinstance(whole, Node) or whole.op in ("placeholder", "call_module") or _may_be_none(whole, root)
    if target is getattr:
        return True
    return node.op == "call_function" and not _is_of_torch(target) and target.__module__ not in _OF_PYTHON


def _is_of_torch(function: Any) -> bool:
    """Return whether a function says itself that it is of torch, which has others in its place while a trace runs."""
    module = function.__module__
    return builtin_name(function) is not None if module is None else module.partition(".")[0] == "torch"
