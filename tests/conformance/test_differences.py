"""The statements of ``docs/differences.md``: for each topic, the behaviour of torch.fx and that of fx."""

from __future__ import annotations

import enum
import pickle
import re
import threading
from pathlib import Path
from types import ModuleType

import pytest
import torch
from building import Calling
from torch import nn

import fx

from .corpus import PROGRAMS
from .differences import DIFFERENCES
from .libraries import OURS, THEIRS
from .programs import REGISTRY, vector

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"


class Mode(enum.Enum):
    """An enumeration as an argument."""

    FAST = 1


def target_names(graph) -> list[str]:
    return [node.target if isinstance(node.target, str) else node.target.__name__ for node in graph.nodes]


def code_of(library: ModuleType, target, *args, **kwargs) -> str:
    """The generated function of a single call."""
    graph = library.Graph()
    graph.placeholder("x")
    graph.output(graph.call_function(target, args, kwargs))
    return graph.python_code("self").src


def test_page_explains_every_topic_of_the_table() -> None:
    headings = set(re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {row.topic for row in DIFFERENCES} <= headings


def test_table_names_programs_of_the_corpus() -> None:
    assert {row.program for row in DIFFERENCES} <= {program.name for program in PROGRAMS}


def guarded(x):
    if x.dim() != 1:
        raise ValueError("expected a vector")
    assert x.sum() > 0, "expected a positive sum"
    return x + 1


def test_checks_are_captured_not_fatal() -> None:
    with pytest.raises(torch.fx.proxy.TraceError):
        THEIRS.symbolic_trace(guarded)
    captured = OURS.symbolic_trace(guarded)
    messages = [node.args[1] for node in captured.graph.find_nodes(op="call_function", target=torch._assert)]
    assert messages == ["expected a vector", "expected a positive sum"]
    assert torch.equal(captured(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(AssertionError, match="expected a vector"):
        captured(torch.ones(2, 2))


def assigns(x):
    y = x.clone()
    y[0] = 5.0
    return y


def test_item_assignment_is_recorded() -> None:
    with pytest.raises(TypeError):
        THEIRS.symbolic_trace(assigns)
    captured = OURS.symbolic_trace(assigns)
    assert target_names(captured.graph) == ["x", "clone", "setitem", "output"]
    assert torch.equal(captured(vector()), assigns(vector()))


def rows_scaled(x):
    total = x.sum(0)
    return torch.vmap(lambda row: row * total)(x)


def test_functions_of_functions_are_one_operation_with_a_body() -> None:
    with pytest.raises(ValueError, match="We cannot vmap over non-Tensor arguments"):
        THEIRS.symbolic_trace(rows_scaled)
    captured = OURS.symbolic_trace(rows_scaled)
    assert target_names(captured.graph) == ["x", "sum", "vmap_body_0", "vmap", "output"]
    assert target_names(captured.vmap_body_0.graph) == ["row", "sum_1", "mul", "output"]
    x = torch.rand(3, 4)
    assert torch.equal(captured(x), rows_scaled(x))


class Stateful(nn.Module):
    """Counts its calls, uses an unnamed constant and a buffer that is not persistent."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("scratch", torch.ones(6), persistent=False)

    def forward(self, x):
        self.calls += 1
        return x + torch.arange(6) + self.scratch


def test_root_is_left_as_it_was() -> None:
    roots = {}
    for library in (THEIRS, OURS):
        roots[library] = Stateful()
        captured = library.symbolic_trace(roots[library])
        assert torch.equal(captured._tensor_constant0, torch.arange(6))
    assert (roots[THEIRS].calls, roots[OURS].calls) == (1, 0)
    assert hasattr(roots[THEIRS], "_tensor_constant0")
    assert not hasattr(roots[OURS], "_tensor_constant0")


def test_buffers_stay_out_of_the_state_dict_if_they_were() -> None:
    assert "scratch" in THEIRS.symbolic_trace(Stateful()).state_dict()
    assert "scratch" not in OURS.symbolic_trace(Stateful()).state_dict()
    assert "scratch" in dict(OURS.symbolic_trace(Stateful()).named_buffers())


def test_annotations_written_as_strings_are_evaluated() -> None:
    program = REGISTRY["annotated_with_strings"]
    types = {library: [node.type for node in program.capture(library).graph.nodes] for library in (THEIRS, OURS)}
    assert types[THEIRS] == ["torch.Tensor", "int", None, None]
    assert types[OURS] == [torch.Tensor, int, None, None]


def test_transformer_keeps_types_and_wrapped_functions() -> None:
    for name, line in (("annotated", "-> torch.Tensor:"), ("wrapped_builtin", 'wrap("len")')):
        code = {
            library: library.Transformer(REGISTRY[name].capture(library)).transform().code for library in (THEIRS, OURS)
        }
        assert line not in code[THEIRS]
        assert line in code[OURS]


def test_sizes_stay_sizes() -> None:
    def root(x):
        return x.view(torch.Size([2, 3]))

    kinds = {library: type(list(library.symbolic_trace(root).graph.nodes)[1].args[1]) for library in (THEIRS, OURS)}
    assert kinds == {THEIRS: tuple, OURS: torch.Size}


def test_nodes_inside_slices_are_marked_in_prints() -> None:
    def root(x):
        return x[: x.size(0)]

    assert "slice(None, size, None)" in str(THEIRS.symbolic_trace(root).graph)
    assert "slice(None, %size, None)" in str(OURS.symbolic_trace(root).graph)


def test_known_shapes_print_in_torch_style() -> None:
    printed = {}
    for library in (THEIRS, OURS):
        node = library.Graph().call_function(torch.ones, (2, 3))
        node.meta["val"] = torch.ones(2, 3)
        printed[library] = node.format_node(include_tensor_metadata=True)
    assert 'Tensor "f32[2, 3][3, 1]cpu"' in printed[THEIRS]
    assert "torch.float32[2, 3]" in printed[OURS]


def test_globals_are_named_by_their_module() -> None:
    assert "(Mode.FAST)" in code_of(THEIRS, torch.sum, Mode.FAST)
    assert "_Mode.FAST)" in code_of(OURS, torch.sum, Mode.FAST)
    assert "torch_Tensor_add(1)" in code_of(THEIRS, torch.Tensor.add, 1)
    assert "torch.Tensor.add(1)" in code_of(OURS, torch.Tensor.add, 1)


def test_functions_of_torch_are_spelled_by_their_public_name() -> None:
    for function, theirs, ours in (
        (torch.nn.functional.gelu, "torch._C._nn.gelu", "torch.nn.functional.gelu"),
        (torch.split, "torch.functional.split", "torch.split"),
    ):
        assert f"{theirs}(1)" in code_of(THEIRS, function, 1)
        assert f"{ours}(1)" in code_of(OURS, function, 1)


def test_torch_compile_follows_an_edit_of_a_program_that_is_called() -> None:
    def compiled_answer_after_an_edit(library: ModuleType) -> torch.Tensor:
        torch._dynamo.reset()
        program = library.symbolic_trace(lambda x: torch.relu(x) + 1)
        compiled = torch.compile(lambda x: program(x) * 2, backend="eager", fullgraph=True)
        compiled(torch.ones(1))
        for node in program.graph.find_nodes(op="call_function", target=torch.relu):
            node.target = torch.neg
        program.recompile()
        return compiled(torch.ones(1))

    assert compiled_answer_after_an_edit(OURS).item() == 0
    assert compiled_answer_after_an_edit(THEIRS).item() == 4


def test_attributes_may_be_named_like_keywords() -> None:
    model = Calling(lambda self, x: getattr(self, "class")(x), **{"class": nn.ReLU()})
    with pytest.raises(SyntaxError):
        THEIRS.symbolic_trace(model)
    assert torch.equal(OURS.symbolic_trace(model)(vector()), vector().relu())


class Hostile:
    """An object whose representation is a program."""

    def __repr__(self) -> str:
        return "__import__('os').getcwd()"


def test_names_and_representations_cannot_become_code() -> None:
    assert "f(os=1; import os" in code_of(THEIRS, torch.sum, **{"f(os=1; import os": 1})
    assert '**{"f(os=1; import os": 1}' in code_of(OURS, torch.sum, **{"f(os=1; import os": 1})
    assert "__import__" in code_of(THEIRS, torch.sum, Hostile())
    assert "__import__" not in code_of(OURS, torch.sum, Hostile())
    graphs = {}
    for library in (THEIRS, OURS):
        graphs[library] = library.Graph()
        graphs[library].output(graphs[library].placeholder("x; import os"))
    assert "import os" in graphs[THEIRS].python_code("self").src
    with pytest.raises(fx.CodegenError):
        graphs[OURS].python_code("self")


def declared_nowhere(x):
    """A function that neither library knows."""
    return x


@pytest.mark.parametrize(
    "create",
    [
        lambda graph, x: graph.call_method("add_", (x, 1)),
        lambda graph, x: graph.call_function(torch.relu_, (x,)),
        lambda graph, x: graph.call_function(torch.relu, (x,), {"out": x}),
        lambda graph, x: graph.call_function(declared_nowhere, (x,)),
    ],
    ids=["in-place method", "in-place function", "out argument", "unknown function"],
)
def test_dead_code_elimination_keeps_nodes_with_a_possible_effect(create) -> None:
    removed = {}
    for library in (THEIRS, OURS):
        graph = library.Graph()
        x = graph.placeholder("x")
        create(graph, x)
        graph.output(x)
        removed[library] = graph.eliminate_dead_code()
    assert removed == {THEIRS: True, OURS: False}


def test_specialization_to_none_is_checked_still_after_dead_code_elimination() -> None:
    program = REGISTRY["specialized_none"]
    for library, is_kept in ((THEIRS, False), (OURS, True)):
        captured = program.capture(library)
        captured.graph.eliminate_dead_code()
        assert any("assert_is_none" in node.name for node in captured.graph.nodes) is is_kept


def test_programs_specialized_to_none_are_traced_again() -> None:
    captured = REGISTRY["specialized_none"].capture(OURS)
    retraced = OURS.symbolic_trace(captured)
    assert torch.equal(retraced(vector(), None), vector())
    with pytest.raises(Exception, match="specialized"):
        retraced(vector(), 3)


def test_pickles_carry_graph_and_class_name() -> None:
    restored = {
        library: pickle.loads(pickle.dumps(REGISTRY["defaults"].capture(library))) for library in (THEIRS, OURS)
    }
    assert type(restored[THEIRS]).__name__ == "GraphModule"
    assert type(restored[OURS]).__name__ == "defaults"
    captured = OURS.symbolic_trace(Stateful())
    captured.graph.output_node().meta["note"] = 7
    assert pickle.loads(pickle.dumps(captured)).graph.output_node().meta["note"] == 7


def test_all_calls_are_found_without_a_target() -> None:
    graph = OURS.Graph()
    x = graph.placeholder("x")
    calls = [graph.call_function(torch.relu, (x,)), graph.call_function(torch.neg, (x,))]
    assert graph.find_nodes(op="call_function") == calls
    with pytest.raises(AssertionError):
        THEIRS.Graph().find_nodes(op="call_function")


def test_calls_of_modules_that_are_missing_are_refused_wherever_they_are() -> None:
    for library in (THEIRS, OURS):
        module = library.symbolic_trace(nn.Sequential(nn.ReLU()))
        with pytest.raises(AttributeError, match="nowhere"):
            module.graph.call_module("nowhere")


def test_functions_are_arguments_where_they_can_be_imported() -> None:
    def root(x):
        return x.apply_(torch.relu)

    with pytest.raises(NotImplementedError, match="argument of type"):
        THEIRS.symbolic_trace(root)
    (call,) = OURS.symbolic_trace(root).graph.find_nodes(op="call_method", target="apply_")
    assert call.args[1] is torch.relu


def test_attributes_of_a_mark_go_into_meta() -> None:
    def root(x, y):
        return x + y[0]

    theirs = THEIRS.symbolic_trace(root, concrete_args={"y": [THEIRS._symbolic_trace.PHWithMeta("second")]})
    ours = OURS.symbolic_trace(root, concrete_args={"y": [OURS.PHWithMeta("second")]})
    assert list(theirs.graph.nodes)[1].ph_key == "second"
    assert list(ours.graph.nodes)[1].meta["ph_key"] == "second"


def test_errors_share_a_base_and_point_at_the_users_line() -> None:
    def branches(x):
        return x.neg() if x.sum() > 0 else x

    with pytest.raises(fx.FxError) as caught:
        OURS.symbolic_trace(branches)
    message = str(caught.value)
    assert "test_differences.py" in message
    assert "x.neg() if x.sum() > 0 else x" in message
    assert isinstance(caught.value, ValueError)


def test_other_threads_run_models_undisturbed_while_one_traces() -> None:
    model, started, finished, results = nn.Sequential(nn.ReLU()), threading.Event(), threading.Event(), []

    def other_thread() -> None:
        started.wait()
        try:
            results.append(model(vector()))
        except Exception as error:
            results.append(error)
        finished.set()

    def root(x):
        started.set()
        finished.wait(5)
        return x + 1

    thread = threading.Thread(target=other_thread)
    thread.start()
    OURS.symbolic_trace(root)
    thread.join()
    assert torch.equal(results[0], vector().relu())


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="no oneDNN")
def test_a_nan_becomes_a_number_where_a_kernel_does_the_work_of_relu() -> None:
    module = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU()).eval()
    image = torch.full((1, 3, 64, 64), torch.nan)
    program = OURS.symbolic_trace(module)
    with torch.no_grad():
        assert OURS.lower(program, "onednn", (image,))(image).isfinite().all()
        assert OURS.lower(program, "onednn", (image,), veto=("1",))(image).isnan().all()


def test_operations_that_are_given_the_training_flag_follow_it() -> None:
    model = Calling(lambda self, x: nn.functional.dropout(x, 0.5, self.training)).eval()
    ours, theirs = (library.symbolic_trace(model).train() for library in (OURS, THEIRS))
    x = torch.ones(100)
    assert not torch.equal(ours(x), x)
    assert torch.equal(theirs(x), x)


def test_an_exception_that_a_traced_value_causes_decides_nothing() -> None:
    def root(x):
        try:
            return x * len(range(x.shape[0]))
        except TypeError:
            return x * 7

    with pytest.raises(fx.TraceError, match="as an integer"):
        OURS.symbolic_trace(root)
    assert THEIRS.symbolic_trace(root)(torch.ones(2)).tolist() == [7, 7]


def test_layers_without_state_need_not_be_below_the_root() -> None:
    def root(x):
        return nn.Softmax(dim=0)(x)

    assert torch.equal(OURS.symbolic_trace(root)(vector()), vector().softmax(0))
    with pytest.raises(NameError):
        THEIRS.symbolic_trace(root)
