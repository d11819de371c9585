"""Passes that torch ships for exported programs, unchanged, each in its own form."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from typing import Any

import pytest
import torch
from selection import one_in, thorough_except
from torch import nn
from torch.export import ExportedProgram

from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun, may_change
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import affordable, broken_laws, choose_laws
from pytest_fx.loading import load_pass

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # they use deprecated parts of torch
    from torch._inductor import config as inductor_config
    from torch._inductor import pattern_matcher
    from torch._inductor.fx_passes import joint_graph, split_cat

aten = torch.ops.aten


class Net(nn.Module):
    """Layers, views that cancel, a product with 1, a sum with 0, a constant, the same value twice, and a dead one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a matrix."""
        y = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        y = y.permute(1, 0).permute(1, 0).to(torch.float32) * torch.ones(4)
        z = y.unsqueeze(0).squeeze(0) + torch.zeros(4)
        z.sum()
        both = torch.cat([torch.sigmoid(z), torch.sigmoid(z)], 1)
        attention = torch.softmax(self.linear(z) * 0.5, -1)
        return torch.nn.functional.dropout(both[:, :4], 0.5, self.training) + attention + (self.table + 1) * 2


def _broken_by(pass_: Any, form: str = "auto", training: bool = False) -> tuple[PassRun, list[str]]:
    torch.manual_seed(0)
    module = Net().train(training)
    inputs = Arguments((torch.randn(3, 2, 6, 6),))
    subject = Subject("net", module, lambda number: inputs, input_set_count=1, mode="train" if training else "eval")
    run = PassRun(subject, load_pass(pass_, form))
    assert run.not_judged is None
    violations = broken_laws(affordable(choose_laws((), (), may_change(run.pass_)), run), run)
    return run, [violation.law for violation in violations]


def _module_of(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def fold_uniform_values(graph_module: torch.fx.GraphModule) -> None:
    """Inductor's folding of constants with one value."""
    aten.mul
    joint_graph.constant_fold_uniform_value(graph_module)


fold_uniform_values.may_change = ("gradients",)  # the operators of prims that it puts in have none


def eliminate_dead_code(graph: torch.fx.Graph) -> None:
    """torch.fx's own."""
    graph.eliminate_dead_code()


def reinplace(graph: torch.fx.Graph) -> None:
    """Inductor's writes in place."""
    _module_of("torch._inductor.fx_passes.reinplace").reinplace_inplaceable_ops_core(graph)


def decompose(exported: ExportedProgram) -> ExportedProgram:
    """torch.export's decompositions."""
    return exported.run_decompositions()


def move_to_cpu(exported: ExportedProgram) -> ExportedProgram:
    """torch.export's move to a device, here to where the program is."""
    return _module_of("torch.export.passes").move_to_device_pass(exported, "cpu")


def fuse_partitions(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """torch.fx's partitioner, on elementwise operations."""
    partitioner = _module_of("torch.fx.passes.infra.partitioner")
    support = _module_of("torch.fx.passes.operator_support")
    kinds = (aten.relu.default, aten.sigmoid.default, aten.add.Tensor, aten.mul.Tensor)
    is_supported = support.create_op_support(lambda modules, node: node.target in kinds)
    return partitioner.CapabilityBasedPartitioner(graph_module, is_supported, True).partition_and_fuse()


def split_by_tags(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """torch.fx's splitting into two modules."""
    aten.relu
    split = _module_of("torch.fx.passes.split_module").split_module
    nodes = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    first = set(nodes[: len(nodes) // 2])
    return split(graph_module, graph_module, lambda node: 0 if node in first else 1)


elementwise = _module_of("torch.fx.passes.operator_support").create_op_support(
    lambda modules, node: node.target in (aten.relu.default, aten.sigmoid.default)
)
CHANGING = (eliminate_dead_code, decompose, fuse_partitions)
KEEPING = (fold_uniform_values, reinplace, move_to_cpu)
"""Passes that may find nothing in this model."""
UNCHANGED = {
    "graph": {
        "torch._functorch.compile_utils": ("fx_graph_cse",),
        "torch._inductor.fx_passes.post_grad": ("remove_noop_ops", "reorder_for_locality", "remove_assert_ops"),
    },
    "aten": {
        "torch._functorch.compile_utils": ("strip_overloads",),
        "torch._inductor.constant_folding": ("constant_fold",),
    },
    "export-pass": {
        "torch._export.passes.remove_runtime_assertions": ("_RemoveRuntimeAssertionsPass",),
        "torch._export.passes.replace_view_ops_with_view_copy_ops_pass": ("ReplaceViewOpsWithViewCopyOpsPass",),
        "torch.fx.passes.dialect.common.cse_pass": ("CSEPass",),
    },
}
"""Passes that are loaded by name, by form and module."""
UNCHANGED_KEEPING = {
    "graph": {
        "torch._inductor.fx_passes.dedupe_symint_uses": ("dedupe_symints",),
        "torch._inductor.fx_passes.post_grad": ("decompose_auto_functionalized",),
        "torch.fx.passes.annotate_getitem_nodes": ("annotate_getitem_nodes",),
    },
    "aten": {
        "torch._functorch.compile_utils": ("raise_getitems",),
        "torch._inductor.fx_passes.joint_graph": ("canonicalize_aten_ir_passes", "remove_redundant_views"),
        "torch._inductor.fx_passes.post_grad": ("view_to_reshape",),
    },
    "export-pass": {
        "torch._export.passes.functionalize_side_effectful_ops_pass": ("_FunctionalizeSideEffectfulOpsPass",),
    },
}
"""The same, which find nothing in this model."""


def _rows(table: dict[str, dict[str, tuple[str, ...]]]) -> list[tuple[str, str]]:
    return [(f"{module}:{n}", form) for form, named in table.items() for module, names in named.items() for n in names]


IN_TRAINING = {fold_uniform_values: "state", decompose: "gradients"}
"""Passes that are wrong in training mode, each with a broken law.

Inductor's constants include buffers that the program writes to: the writes happen once, while they are folded. The
decomposed batch norm of ``run_decompositions`` writes to a buffer that its gradient needs.
"""


@pytest.mark.parametrize("pass_", [*CHANGING, *KEEPING], ids=lambda pass_: pass_.__name__)
def test_a_pass_of_torch_is_right(pass_):
    run, broken = _broken_by(pass_)
    assert broken == []
    assert run.changed or pass_ in KEEPING


@pytest.mark.thorough
@pytest.mark.parametrize("pass_", [*CHANGING, *KEEPING], ids=lambda pass_: pass_.__name__)
def test_a_pass_of_torch_in_training_mode(pass_):
    _, broken = _broken_by(pass_, training=True)
    assert IN_TRAINING[pass_] in broken if pass_ in IN_TRAINING else broken == []


def test_splitting_loses_the_structure_of_the_result():
    assert "structure" in _broken_by(split_by_tags)[1]


ROWS = [*_rows(UNCHANGED), *_rows(UNCHANGED_KEEPING)]
QUICK = (
    *(":fx_graph_cse", ":strip_overloads", ":constant_fold", ":CSEPass", ":raise_getitems"),
    ":_FunctionalizeSideEffectfulOpsPass",
)
"""Passes of each form, some of which change the model."""


@pytest.mark.parametrize("path, form", thorough_except([path for path, _ in ROWS if path.endswith(QUICK)], ROWS))
def test_a_pass_of_torch_is_right_as_it_is(path, form):
    module, _, name = path.partition(":")
    run, broken = _broken_by(getattr(_module_of(module), name), form)
    assert broken == []
    assert run.changed or (path, form) in _rows(UNCHANGED_KEEPING)


def test_constants_are_folded_before_buffers_are_written():
    """In training mode, Inductor's constants include a buffer that the program writes to."""
    fold_constants = _module_of("torch._inductor.constant_folding").constant_fold
    assert "state" in _broken_by(fold_constants, "aten", training=True)[1]


@pytest.mark.parametrize(
    "patterns",
    thorough_except(["patterns"], ["patterns", "early_patterns", "pass_patterns"]),
    ids=lambda name: f"joint_graph.{name}",
)
def test_patterns_of_inductor_are_right(patterns):
    one_or_several = getattr(joint_graph, patterns)
    for each in one_or_several if isinstance(one_or_several, list) else [one_or_several]:
        assert isinstance(each, pattern_matcher.PatternMatcherPass)
        assert _broken_by(each)[1] == []


@pytest.mark.parametrize("patterns", one_in(3, split_cat.POST_GRAD_PATTERNS))
def test_patterns_of_inductor_for_splits_and_products_are_right(patterns):
    with inductor_config.patch(post_grad_fusion_options={patterns: {}}):  # as a user enables them
        assert _broken_by(split_cat.POST_GRAD_PATTERNS[patterns])[1] == []


def test_a_partitioner_is_given_its_support():
    run, broken = _broken_by(elementwise)
    assert broken == []
    assert run.changed


@pytest.mark.parametrize("backend", thorough_except(["eager"], ["eager", "aot_eager"]))
def test_a_backend_of_torch_is_right(backend):
    of_torch = _module_of("torch._dynamo").lookup_backend(backend)
    assert _broken_by(of_torch, "backend")[1] == []


needs_torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")
X86 = "torchao.quantization.pt2e.quantizer.x86_inductor_quantizer"
XNNPACK = "torchao.testing.pt2e._xnnpack_quantizer"


@needs_torchao
@pytest.mark.filterwarnings("ignore:XNNPACKQuantizer is deprecated")
@pytest.mark.parametrize(
    "module, kind, configuration",
    [
        (X86, "X86InductorQuantizer", "get_default_x86_inductor_quantization_config"),
        (XNNPACK, "XNNPACKQuantizer", "get_symmetric_quantization_config"),
    ],
)
def test_a_quantizer_of_torchao_is_right(module, kind, configuration):
    quantizers = _module_of(module)
    quantizer = getattr(quantizers, kind)()
    quantizer.set_global(getattr(quantizers, configuration)())
    run, broken = _broken_by(quantizer)
    assert broken == []
    assert run.changed
    assert run.not_asked["form round trips"] == "what torch makes without the pass cannot be pickled either"


@needs_torchao
def test_torchao_folds_batch_norms_right():
    run, broken = _broken_by(_module_of("torchao.quantization.pt2e.utils")._fuse_conv_bn_, "aten")
    assert broken == []
    assert run.changed
