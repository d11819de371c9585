"""Every program of the corpus, and torch's own samples of its operators, in canonical form: the same bits."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import fx
from fx.canonical import canonical_form
from fx.passes import Canonicalize

from .corpus import PROGRAMS, Program
from .libraries import assert_identical


def run(program: Program, module: Any) -> Any:
    torch.manual_seed(0)
    return module(*program.inputs(), **program.keywords)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_in_canonical_form_computes_the_same(program: Program) -> None:
    captured = program.capture(fx)
    text = str(captured.graph)
    form = canonical_form(captured)
    assert str(captured.graph) == text
    form.graph_module.graph.lint()
    expected = run(program, captured)
    assert_identical(run(program, form.graph_module), expected)
    assert set(form.stands_for) == set(form.graph_module.graph.nodes)
    assert set(form.stands_for.values()) <= set(captured.graph.nodes)
    assert str(canonical_form(form.graph_module).graph_module.graph) == str(form.graph_module.graph)
    canonical = Canonicalize()(captured)
    assert str(canonical.graph) == str(form.graph_module.graph)
    assert_identical(run(program, canonical), expected)


def test_the_corpus_needs_few_methods_and_modules() -> None:
    unchanged = {
        str(node.target)
        for program in PROGRAMS
        for node in canonical_form(program.captured(fx)).graph_module.graph.nodes
        if node.op in ("call_method", "call_module")
    }
    assert unchanged == {"lstm", "attention", "numel"}


UNINITIALIZED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")


def sample_calls() -> list[tuple[str, str, Any, tuple[Any, ...], dict[str, Any]]]:
    """For each operator of torch's own tests, its first sample as functions, methods and aliases."""
    definitions = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    calls: list[tuple[str, str, Any, tuple[Any, ...], dict[str, Any]]] = []
    for operation in definitions.op_db:
        if operation.name in UNINITIALIZED or torch.float32 not in operation.dtypes:
            continue
        # Not by operation.sample_inputs, which looks through the call stack, eight times slower than all else here.
        samples = operation.sample_inputs_func(operation, "cpu", torch.float32, requires_grad=False)
        for sample in itertools.islice(samples, 1):
            arguments = (sample.input, *sample.args)
            functions = [operation.op, operation.operator_variant, *(alias.op for alias in operation.aliases)]
            calls += [
                (operation.name, "call_function", f, arguments, sample.kwargs) for f in functions if f is not None
            ]
            methods = [operation.method_variant, operation.inplace_variant]
            names = [getattr(method, "__name__", "") for method in methods if isinstance(sample.input, torch.Tensor)]
            calls += [(operation.name, "call_method", n, arguments, sample.kwargs) for n in names if n.isidentifier()]
    return calls


def call_program(kind: str, target: Any, args: Any, kwargs: Any) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    graph, inputs = fx.Graph(), []

    def placed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        inputs.append(value)
        return graph.placeholder(f"input_{len(inputs)}", torch.Tensor)

    call = graph.create_node(kind, target, tuple(pytree.tree_map(placed, args)), pytree.tree_map(placed, kwargs))
    graph.output(call)
    return fx.GraphModule(torch.nn.Module(), graph), inputs


def run_call(program: fx.GraphModule, inputs: list[torch.Tensor], random_state: torch.Tensor) -> Any:
    torch.set_rng_state(random_state)  # much faster than a seed, which is set on all devices
    copies = [value.detach().clone() for value in inputs]
    return program(*copies), copies


def agree(left: Any, right: Any) -> bool:
    try:
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
    except TypeError:  # values that are neither tensors nor numbers
        return repr(left) == repr(right)
    except AssertionError:
        return False
    return True


@pytest.mark.thorough
def test_operators_of_torch_compute_the_same_in_canonical_form() -> None:
    failures: list[str] = []
    compared = 0
    torch.manual_seed(0)
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, kind, target, args, kwargs in sample_calls():
            try:
                program, inputs = call_program(kind, target, args, kwargs)
                expected = run_call(program, inputs, state)
            except Exception:  # a sample that is not a call, as an in-place operator of an integer
                continue
            canonical = canonical_form(program).graph_module
            compared += 1
            if not agree(run_call(canonical, inputs, state), expected) and agree(
                run_call(program, inputs, state), expected
            ):
                failures.append(f"{name} as {kind}: {canonical.code}")
            if canonical_form(canonical).graph_module.code != canonical.code:
                failures.append(f"{name} as {kind} is not final: {canonical.code}")
    assert failures == []
    assert compared > 1000
