"""check_pass(orders=True): some passes of a pipeline, in any order."""

import hypothesis
import pytest
import torch

import fx
from fx.errors import FxError
from fx.passes import PassPipeline
from pytest_fx import LawViolation, check_pass

pytestmark = pytest.mark.usefixtures("little_explored")

QUICK = hypothesis.settings(database=None, max_examples=12, phases=[hypothesis.Phase.generate])


def relu_as_clamp(graph_module: fx.GraphModule) -> None:
    """Replace each ReLU by a clamp, with a note for a later pass."""
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
        node.target, node.meta["was"] = torch.clamp_min, "relu"
        node.args, node.kwargs = (*(node.args or node.kwargs.values()), 0), {}
    graph_module.recompile()


def noted_as_abs(graph_module: fx.GraphModule) -> None:
    """Misread that note: right where no other pass leaves one."""
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.clamp_min):
        if node.meta.get("was") == "relu":
            node.target, node.args = torch.abs, node.args[:1]
    graph_module.recompile()


def relu_as_abs(graph_module: fx.GraphModule) -> None:
    """A pass that is wrong alone."""
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
        node.target = torch.abs
    graph_module.recompile()


def test_the_pair_that_breaks_a_law_is_named_although_each_keeps_it_alone(tmp_path):
    passes = ["remove-dead-code", noted_as_abs, relu_as_clamp]
    with pytest.raises(LawViolation) as caught:
        check_pass(PassPipeline(passes), seed=0, settings=QUICK, folder=tmp_path, orders=True)
    message = str(caught.value)
    assert caught.value.law == "contract"
    assert "in this order: relu-as-clamp,noted-as-abs; each keeps it alone" in message
    assert "torch.relu" in message


def test_a_pass_that_is_wrong_alone_is_named_alone(tmp_path):
    pipeline = PassPipeline(["remove-dead-code", relu_as_abs])
    with pytest.raises(LawViolation) as caught:
        check_pass(pipeline, seed=0, settings=QUICK, folder=tmp_path, orders=True)
    assert "the fault is in one pass: " in str(caught.value)


def test_passes_that_fit_together_are_reported_with_the_number_of_orders(tmp_path):
    report = check_pass("remove-dead-code,remove-identities", seed=0, settings=QUICK, folder=tmp_path, orders=True)
    assert report.orders == 2
    assert "its passes ran in 2 orders" in str(report)


def test_a_single_pass_has_no_orders():
    with pytest.raises(FxError, match="remove-dead-code has no orders: it is a single pass"):
        check_pass("remove-dead-code", orders=True)
