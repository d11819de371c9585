"""Refusals of pass managers, pass classes and partitioners for client code of torch.fx, and their words."""

from typing import Any

import pytest
import torch

import fx
from fx.errors import GraphError, PassError
from fx.passes import PassPipeline, pass_manager, tools_common
from fx.passes.infra.partitioner import CapabilityBasedPartitioner
from fx.passes.infra.pass_base import PassBase, PassResult
from fx.passes.infra.pass_manager import PassManager, pass_result_wrapper, this_before_that_pass_constraint
from fx.passes.operator_support import OperatorSupport, OpSupports, create_op_support


def program() -> fx.GraphModule:
    return fx.symbolic_trace(lambda x: torch.relu(x).neg())


def first(graph_module: Any) -> PassResult:
    return PassResult(graph_module, False)


def second(graph_module: Any) -> PassResult:
    return PassResult(graph_module, False)


def test_an_order_that_no_constraint_allows_names_the_passes() -> None:
    there_and_back = [this_before_that_pass_constraint(first, second), this_before_that_pass_constraint(second, first)]
    with pytest.raises(PassError, match=r"Circular dependency detected within the following passes: .*first.*second"):
        PassManager([first, second], there_and_back)(program())


def test_an_order_that_a_constraint_forbids_names_both_passes() -> None:
    managed = PassManager([second, first], [this_before_that_pass_constraint(first, second)])
    with pytest.raises(PassError) as caught:
        managed.validate_constraints()
    assert "first has to run before second" in str(caught.value)
    managed.solve_constraints()
    assert managed.passes == [first, second]


def test_the_error_for_a_pass_without_a_result_explains_how_to_give_one() -> None:
    with pytest.raises(PassError, match=r"the pass _nothing returns no PassResult[\s\S]*pass_result_wrapper") as caught:
        PassManager([first, _nothing])(program())
    assert caught.value.__notes__ == ["while the pass _nothing ran"]


def _nothing(graph_module: Any) -> None:
    pass


def test_an_error_of_a_pass_keeps_its_type() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        PassManager([lambda graph_module: PassResult(graph_module, bool(1 / 0))])(program())
    assert caught.value.__notes__ == ["while the pass <lambda> ran"]


def test_passes_run_again_while_they_change_something() -> None:
    remaining = [True, True, False, True]
    ran = PassManager([lambda graph_module: PassResult(graph_module, remaining.pop(0))], steps=9)(program())
    assert ran.modified and remaining == [True]


def test_a_pass_is_checked_before_and_after() -> None:
    class Checked(PassBase):
        def requires(self, graph_module: Any) -> None:
            order.append("requires")

        def call(self, graph_module: Any) -> PassResult:
            order.append("call")
            return PassResult(graph_module, True)

        def ensures(self, graph_module: Any) -> None:
            order.append("ensures")

    order: list[str] = []
    assert Checked()(program()) is not None
    assert order == ["requires", "call", "ensures"]


def test_checks_run_before_the_passes_and_after_each_where_that_is_requested() -> None:
    for after_each, count in ((False, 1), (True, 3)):
        checked: list[Any] = []
        managed = PassManager([first, second], run_checks_after_each_pass=after_each)
        managed.add_checks(checked.append)
        managed(program())
        assert len(checked) == count


def test_a_check_that_fails_is_an_error() -> None:
    def fails(module: Any) -> None:
        raise ValueError("two outputs")

    managed = PassManager()
    managed.add_checks(fails)
    with pytest.raises(ValueError, match="two outputs"):
        managed(program())


def test_an_invalid_graph_is_found_behind_the_pass_that_left_it() -> None:
    def breaks(graph_module: Any) -> PassResult:
        output = graph_module.graph.output_node()
        output.prepend(next(iter(graph_module.graph.nodes)))
        return PassResult(graph_module, True)

    with pytest.raises(fx.FxError) as caught:
        PassManager([breaks], run_checks_after_each_pass=True)(program())
    assert caught.value.__notes__[-1].startswith("while the pass breaks ran")


def test_a_wrapped_pass_is_named_for_its_class() -> None:
    class Doubles:
        def __call__(self, graph_module: Any) -> None:
            pass

    assert pass_result_wrapper(Doubles()).__name__ == "Doubles"


def test_loop_pass_needs_exactly_one_of_a_count_and_a_predicate() -> None:
    for options in ({}, {"n_iter": 0}, {"n_iter": 1, "predicate": bool}):
        with pytest.raises(PassError, match=r"Exactly one of `n_iter` or `predicate`[\s\S]*loop_pass"):
            pass_manager.loop_pass(abs, **options)
    assert pass_manager.loop_pass(lambda number: number + 1, predicate=lambda number: number < 5)(0) == 5


def test_a_list_of_passes_is_edited_by_their_names() -> None:
    passes = [first, second]
    managed = pass_manager.PassManager.build_from_passlist(passes)
    managed.add_pass(first)
    assert passes == [first, second]  # which is the caller's
    managed.replace_pass(first, program)
    managed.remove_pass(["second"])
    assert managed.passes == [program, program]
    managed.add_pass(first)
    managed.add_constraint(pass_manager.these_before_those_pass_constraint(first, program))
    with pytest.raises(PassError, match="first has to run before program"):
        managed.validate()


def test_nodes_that_use_each_other_have_no_order() -> None:
    graph_module = program()
    _, relu, neg, _ = graph_module.graph.nodes
    relu.args = (neg,)
    order = list(graph_module.graph.nodes)
    with pytest.raises(GraphError, match=r"they use each other's values[\s\S]*%relu, %neg"):
        tools_common.stable_topological_sort(graph_module)
    assert list(graph_module.graph.nodes) == order


def test_a_node_that_calls_nothing_has_no_target() -> None:
    x, *_ = program().graph.nodes
    with pytest.raises(PassError, match=r"`%x` calls nothing[\s\S]*pass a node whose op is call_function"):
        tools_common.get_node_target({}, x)


def test_a_partitioner_needs_an_operator_support_object() -> None:
    with pytest.raises(PassError, match=r"has a method is_node_supported[\s\S]*create_op_support"):
        CapabilityBasedPartitioner(program(), lambda modules, node: True)


def test_a_partition_that_cannot_run_as_a_whole_is_refused() -> None:
    graph_module = fx.symbolic_trace(lambda x: torch.relu(x).neg().exp())
    partitioner = CapabilityBasedPartitioner(graph_module, create_op_support(lambda modules, node: True))
    (whole,) = partitioner.propose_partitions()
    whole.remove_node(next(node for node in whole.nodes if node.name == "neg"))
    assert whole.size() == 2
    with pytest.raises(PassError, match="neg"):
        partitioner.fuse_partitions([whole])


def test_dtypes_that_a_backend_depends_on_have_to_be_recorded() -> None:
    graph_module = program()
    _, relu, *_ = graph_module.graph.nodes
    for support in (
        OpSupports.decline_if_input_dtype(torch.int64),
        OperatorSupport({"torch.relu": (([torch.float32],), {})}),
    ):
        with pytest.raises(PassError, match=r"the dtype of `%x`, which is not recorded[\s\S]*ShapeProp"):
            support.is_node_supported({}, relu)
    fx.passes.ShapeProp(graph_module).propagate(torch.ones(2))
    assert OpSupports.decline_if_input_dtype(torch.int64).is_node_supported({}, relu)


def test_partitions_of_a_second_backend_need_another_prefix() -> None:
    graph_module = fx.symbolic_trace(lambda x: torch.relu(x).neg().exp().sin())
    x = torch.linspace(-1, 1, 3)
    for names, prefix in ((("relu", "neg"), "fused_"), (("exp", "sin"), "other_")):
        support = create_op_support(lambda modules, node, names=names: node.name in names)
        partitioner = CapabilityBasedPartitioner(graph_module, support)
        if prefix != "fused_":
            with pytest.raises(PassError, match=r"cannot be called 'fused_0'[\s\S]*prefix of fuse_partitions"):
                partitioner.partition_and_fuse()
        partitioner.partition_and_fuse(prefix)
    assert torch.equal(graph_module(x), torch.relu(x).neg().exp().sin())


def test_pipelines_take_passes_that_return_a_result() -> None:
    class Relu6(PassBase):
        def call(self, graph_module: Any) -> PassResult:
            for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
                node.target = torch.nn.functional.relu6
            graph_module.recompile()
            return PassResult(graph_module, False)

    ran = PassPipeline([Relu6()]).run(program())
    assert "relu6" in ran.graph_module.code
    assert ran.reports[0].changed  # despite its own report


def test_a_module_that_holds_a_program_is_not_a_result() -> None:
    class Doubled(torch.nn.Module):
        def __init__(self, graph_module: Any) -> None:
            super().__init__()
            self.graph_module = graph_module

        def forward(self, x: Any) -> Any:
            return 2 * self.graph_module(x)

    with pytest.raises(PassError, match="returned a Doubled, which is not a program"):
        PassPipeline([lambda graph_module: Doubled(graph_module)]).run(program())
