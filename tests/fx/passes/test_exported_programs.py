"""Passes edit programs that came through ``torch.export`` as they edit captured ones."""

# No postponed annotations: exporting reads them.

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

import fx
from fx.interop import to_aten
from fx.passes import get_pass, list_passes


class Convolutions(nn.Module):
    """Branches on a size, which symbolic tracing refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.act, self.drop = nn.ReLU(inplace=True), nn.Dropout()
        self.fc = nn.Linear(8, 4)
        self.register_buffer("shift", torch.ones(1))
        for norm in (self.bn1, self.bn2):
            nn.init.uniform_(norm.weight, 0.5, 2.0)
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.bn1(self.conv1(x)))
        if int(x.shape[2]) % 2 == 0:
            x = x + self.shift * 2
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.fc(self.drop(x.mean((2, 3))))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(16), nn.Linear(16, 16)
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], 4, 4).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        q, k, v = self.heads(self.q(h)), self.heads(self.k(h)), self.heads(self.v(h))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=int(x.shape[1]) > 1)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return self.down(F.gelu(self.up(x))) + torch.sigmoid(x) * torch.sigmoid(x)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(8, 256), nn.Linear(256, 256), nn.Linear(256, 256)
        self.silu, self.hardswish = nn.SiLU(inplace=True), nn.Hardswish(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.silu(self.first(x))
        for _ in range(int(x.shape[1]) // 256):
            x = self.hardswish(self.inner(x))
        return self.last(x).add_(1)


SHAPES: dict[type[nn.Module], tuple[int, ...]] = {Convolutions: (4, 3, 8, 8), Attention: (3, 5, 16), Stack: (4, 8)}
EDITS = {
    "canonicalize": (Convolutions, Attention, Stack),
    "eliminate-common-subexpressions": (Attention,),
    "fold-constants": (Convolutions,),
    "fold-into-modules": (Convolutions, Attention, Stack),
    "fuse-conv-bn": (Convolutions,),
    "lower": (Convolutions, Stack),
    "merge-parallel-layers": (Attention,),
    "overlap": (),
    "quantize": (Convolutions, Attention, Stack),
    "remove-checks": (Convolutions, Attention, Stack),
    "remove-dead-code": (),
    "remove-identities": (Convolutions,),
    "split": (Convolutions, Attention, Stack),
}
"""Every pass, and the nodes it edits."""
KEEPS_STATE = {
    "canonicalize", "eliminate-common-subexpressions", "fold-constants", "fold-into-modules", "overlap",
    "remove-checks", "remove-dead-code", "remove-identities",
}  # fmt: skip
"""Those that leave parameters and buffers alone."""


@pytest.fixture(scope="module")
def exports() -> Callable[..., tuple[fx.GraphModule, nn.Module, torch.Tensor]]:
    """Gives a copy of an exported program, its model, and an input, in float64 or float32."""
    cache: dict[Any, Any] = {}

    def export(kind: type[nn.Module], dtype: torch.dtype = torch.float64) -> Any:
        if (kind, dtype) not in cache:
            torch.manual_seed(0)
            model, x = kind().eval().to(dtype), torch.randn(SHAPES[kind], dtype=dtype)
            cache[kind, dtype] = fx.from_export(
                torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},), strict=False)
            ), model, x  # fmt: skip
        program, model, x = cache[kind, dtype]
        return copy.deepcopy(program), model, x

    return export


def passed(name: str, program: fx.GraphModule, x: torch.Tensor) -> fx.GraphModule:
    options = "{at=linear}" if name == "split" else ""
    pass_: Any = get_pass(f"{name}{options}")
    if name == "quantize":
        pass_ = pass_.with_data([((x,), {})])
    return pass_(program) or program


class Recorded(fx.Interpreter):
    """Compares the record of each value with the value."""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        for recorded in (n.meta.get("val"), n.meta.get("tensor_meta")):
            if recorded is not None:
                actual = pytree.tree_leaves(value)
                for first, other in zip(pytree.tree_leaves(recorded, is_leaf=is_described), actual, strict=True):
                    assert not is_described(first) or (first.dtype == other.dtype and fits(first.shape, other.shape)), n
        return value


def is_described(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def fits(recorded: Any, actual: Any) -> bool:
    """Return whether a shape is the recorded one, but for sizes that are symbols there."""
    pairs = zip(recorded, actual, strict=True)
    return len(recorded) == len(actual) and all(type(first) is not int or first == other for first, other in pairs)


def test_every_registered_pass_is_tried():
    assert set(EDITS) == {name for name in list_passes() if type(get_pass(name)).__module__.startswith("fx.")}


CASES = [(name, kind) for name in EDITS for kind in SHAPES]


@pytest.mark.parametrize("name, kind", CASES, ids=[f"{name}-{kind.__name__}" for name, kind in CASES])
def test_a_pass_edits_an_exported_program_and_keeps_its_outputs(exports, name, kind):
    dtype = torch.float32 if name in ("lower", "quantize") else torch.float64
    program, model, x = exports(kind, dtype)
    code, before = program.code, {node.name: node.source for node in program.graph.nodes}
    result = passed(name, program, x)
    assert (result.code != code) == (kind in EDITS[name])
    tolerance = {"quantize": 0.1, "lower": 1e-5}.get(name, 1e-10)
    with torch.no_grad():
        assert torch.allclose(result(x), model(x), rtol=tolerance, atol=tolerance)
    Recorded(result).run(x)
    for node in result.graph.nodes:
        assert before.get(node.name) is None or node.source == before[node.name]
    if name in KEEPS_STATE:
        assert list(result.state_dict()) == list(model.state_dict())
        result.load_state_dict(model.state_dict(), strict=True)


def functions(program: fx.GraphModule) -> list[str]:
    return [getattr(node.target, "__name__", str(node.target)) for node in program.graph.nodes]


def test_batch_norms_are_folded_and_their_lines_stay(exports):
    program, _, x = exports(Convolutions)
    reports = fx.passes.FuseConvBN().explain(program)
    assert [(report.is_edited, report.node) for report in reports] == [(True, "batch_norm"), (True, "batch_norm_1")]
    fused = passed("fuse-conv-bn", program, x)
    assert "batch_norm" not in functions(fused) and functions(fused).count("conv2d") == 2
    assert not any("bn" in path and "num_batches" not in path for path in fused.state_dict())
    (first, second) = fused.graph.find_nodes(op="call_function", target=F.conv2d)
    assert "self.bn1(self.conv1(x))" in first.source.text and "self.conv2(x)" in second.source.text


def test_batch_norms_in_training_mode_stay():
    model = Convolutions().train()
    program = fx.capture(model, (torch.randn(4, 3, 8, 8),), how="export")
    fx.passes.FuseConvBN()(program)
    assert functions(program).count("batch_norm.default") == 2


def test_projections_are_merged(exports):
    program, _, x = exports(Attention)
    merged = passed("merge-parallel-layers", program, x)
    assert functions(merged).count("linear") == 4 and tuple(merged.q.merged_weight.shape) == (48, 16)


def test_repeated_computations_are_merged(exports):
    program, _, x = exports(Attention)
    assert functions(passed("eliminate-common-subexpressions", program, x)).count("sigmoid") == 1


def test_layers_are_quantized(exports):
    program, _, x = exports(Convolutions, torch.float32)
    quantized = passed("quantize", program, x)
    called = [str(node.target) for node in quantized.graph.find_nodes(op="call_module")]
    assert called == ["conv1", "conv2", "fc"] and "batch_norm" not in functions(quantized)


def test_layers_are_lowered(exports):
    program, _, x = exports(Stack, torch.float32)
    lowered = passed("lower", program, x)
    assert [part.nodes for part in lowered.meta["lowering"].parts] == [5]
    assert functions(lowered).count("linear") == 1  # of few inputs: too small to gain from it


class Residual(nn.Module):
    """Adds the output of each of two layers to its input, in place."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        x = F.relu(x)
        for layer in (self.first, self.second):
            x = F.relu_(layer(x).add_(x))
        return x


def test_sums_whose_shapes_only_export_knows_are_lowered_too():
    x = torch.randn(2, 8, 6, 6)
    program = fx.passes.RemoveChecks()(fx.capture(Residual().eval(), (x,), how="export"))
    lowered = get_pass("lower")(program)
    assert [node.op for node in lowered.graph.nodes] == ["placeholder", "call_module", "output"]
    torch.testing.assert_close(lowered(x), program(x))


def test_layers_become_modules_again(exports):
    program, model, x = exports(Convolutions)
    folded = passed("fold-into-modules", program, x)
    kinds = {
        path: type(module) for path, module in folded.named_modules() if type(module).__module__.startswith("torch.nn")
    }
    assert kinds.items() <= {path: type(module) for path, module in model.named_modules()}.items()
    assert {nn.Conv2d, nn.BatchNorm2d, nn.Linear} <= set(kinds.values())


def test_patterns_of_functions_are_found(exports):
    program, _, x = exports(Attention)
    expected = program(x)
    matches = fx.replace_pattern(
        program,
        lambda x, w, b, v, c: F.linear(F.gelu(F.linear(x, w, b)), v, c),
        lambda x, w, b, v, c: F.linear(torch.tanh(F.linear(x, w, b)), v, c),
    )
    assert len(matches) == 1 and "gelu" not in functions(program) and not torch.equal(program(x), expected)


@pytest.mark.parametrize("kind", SHAPES, ids=lambda kind: kind.__name__)
def test_the_canonical_form_goes_back_to_the_overloads_that_were_exported(exports, kind):
    program, model, x = exports(kind)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},), strict=False)
    expected = {node.name: node.target for node in exported.graph.nodes if str(node.target).startswith("aten.")}
    assert not any(str(node.target).startswith("aten.") for node in program.graph.nodes)
    for form in (program, passed("canonicalize", copy.deepcopy(program), x)):
        to_aten(form)
        targets = {node.name: node.target for node in form.graph.nodes}
        assert {name: targets[name] for name in expected} == expected
        assert torch.equal(form(x), model(x))
