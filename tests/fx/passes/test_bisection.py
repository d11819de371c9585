"""The edit that breaks a program is found by running with less fuel."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from small_passes import NegateEachRelu, captured, change_nothing, double_the_result
from torch import nn

import fx
import model_zoo
from fx.errors import PassError
from fx.passes import FuseConvBN
from fx.pipelines.pipeline import PassPipeline


def negations(program: fx.GraphModule) -> int:
    return len(program.graph.find_nodes(op="call_function", target=operator.neg))


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_the_first_edit_that_fails_is_found(allowed: int) -> None:
    program = captured()
    code = program.code
    culprit = PassPipeline([change_nothing, double_the_result, NegateEachRelu()]).bisect(
        program, lambda probe: negations(probe) <= allowed
    )
    assert culprit is not None
    name = "relu" if allowed == 0 else f"relu_{allowed}"
    assert (culprit.pass_name, culprit.number, culprit.overall) == ("negate-each-relu", allowed + 1, allowed + 2)
    assert culprit.edit.description == f"{name} becomes a negation"
    assert str(culprit).startswith(f"edit {allowed + 1} of negate-each-relu: {name} becomes a negation (")
    assert "small_passes.py:" in str(culprit)
    assert culprit.error is None
    assert program.code == code


def test_a_program_that_stays_good_has_no_culprit() -> None:
    assert PassPipeline([NegateEachRelu()]).bisect(captured(), lambda probe: True) is None


def test_a_pass_that_names_no_edits_is_found_as_a_whole() -> None:
    pipeline = PassPipeline([NegateEachRelu(), double_the_result])
    culprit = pipeline.bisect(captured(), lambda probe: abs(probe(torch.ones(1)).item()) < 2)
    assert str(culprit) == "edit 1 of double-the-result: the pass as a whole"
    assert culprit is not None and culprit.overall == 4


def test_few_probes_are_made() -> None:
    probes: list[int] = []

    def deep(x: torch.Tensor) -> torch.Tensor:
        for _ in range(200):
            x = torch.relu(x)
        return x

    def predicate(probe: fx.GraphModule) -> bool:
        probes.append(negations(probe))
        return probes[-1] < 137

    culprit = PassPipeline([NegateEachRelu()]).bisect(fx.symbolic_trace(deep), predicate)
    assert culprit is not None and culprit.overall == 137
    assert len(probes) <= 11


def test_a_predicate_that_raises_means_no() -> None:
    def predicate(probe: fx.GraphModule) -> bool:
        if negations(probe) == 3:
            raise ZeroDivisionError("no")
        return True

    culprit = PassPipeline([NegateEachRelu()]).bisect(captured(), predicate)
    assert culprit is not None and culprit.number == 3
    assert isinstance(culprit.error, ZeroDivisionError)


@pytest.mark.parametrize("stumble", [1, 2, 3])
def test_an_edit_that_raises_is_the_culprit(stumble: int) -> None:
    culprit = PassPipeline([NegateEachRelu(stumble)]).bisect(captured(), lambda probe: True)
    assert culprit is not None and culprit.number == stumble
    assert isinstance(culprit.error, PassError) and "IndexError" in str(culprit.error)


def test_a_pass_that_raises_before_its_first_edit_is_the_culprit() -> None:
    pipeline = PassPipeline([double_the_result, NegateEachRelu(stumble=0)])
    culprit = pipeline.bisect(captured(), lambda probe: True)
    assert str(culprit) == "edit 1 of negate-each-relu: before it announced an edit"
    assert culprit is not None and culprit.overall == 2


def test_an_edit_that_breaks_a_rule_is_the_culprit() -> None:
    class BreaksTheSecond(NegateEachRelu):
        name = "breaks-the-second"

        def rewrites(self, graph_module: fx.GraphModule) -> Any:
            for number, edit in enumerate(super().rewrites(graph_module), 1):
                if number == 3:  # while it continues with the second
                    graph_module.graph.find_nodes(op="call_function", target=operator.neg)[1].name = "neg"
                yield edit

    culprit = PassPipeline([BreaksTheSecond()]).bisect(captured(), lambda probe: True)
    assert culprit is not None and culprit.number == 2
    assert "Node redefined name neg" in str(culprit.error)


def test_a_program_that_fails_before_any_edit_is_refused() -> None:
    def is_positive(probe: fx.GraphModule) -> bool:
        return bool(probe(torch.ones(2)) > 0)

    with pytest.raises(PassError) as caught:
        PassPipeline([NegateEachRelu()]).bisect(captured(), is_positive)
    message = str(caught.value)
    assert message.startswith("the program fails before any edit\n  value  the predicate test_a_program_that_fails")
    assert "  why    it raised RuntimeError: Boolean value of Tensor" in message
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(PassError, match="it returned a false value"):
        PassPipeline([NegateEachRelu()]).bisect(captured(), lambda probe: False)


def test_a_broken_program_is_refused_and_not_bisected() -> None:
    program = captured()
    program.graph.output(None)
    with pytest.raises(PassError, match="the program given to the pipeline is broken"):
        PassPipeline([NegateEachRelu()]).bisect(program, lambda probe: True)


def test_a_bad_fold_is_named_with_its_layer_and_line() -> None:
    model = model_zoo.get_model("resnet_tiny")
    program = fx.symbolic_trace(model.build())
    folds = [str(edit) for report in PassPipeline([FuseConvBN()]).run(fx.symbolic_trace(model.build())).reports
             for edit in report.edits]  # fmt: skip

    def predicate(probe: fx.GraphModule) -> bool:
        return sum(isinstance(module, nn.BatchNorm2d) for module in probe.modules()) > len(folds) - 5

    culprit = PassPipeline([FuseConvBN()]).bisect(program, predicate)
    assert str(culprit) == f"edit 5 of fuse-conv-bn: {folds[4]}"
    assert "into layer" in str(culprit) and "resnet.py:" in str(culprit)
