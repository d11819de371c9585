"""Sizes as expressions in the user's names, and the constraints on them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.analysis.symbolic_shapes import symbolic_shapes
from fx.errors import PassError
from fx.interop import from_export
from model_zoo import get_model


def test_sizes_are_expressions_in_the_names_of_the_inputs() -> None:
    program = fx.symbolic_trace(lambda x: F.max_pool2d(torch.cat([x, x[..., :2]], 3), 2).flatten(1))
    report = symbolic_shapes(program, ("batch", 3, "h", "w"))
    assert report.shape_of("cat") == ("batch", 3, "h", "w + 2")
    assert report.shape_of("max_pool2d") == ("batch", 3, "h//2", "w//2 + 1")
    assert report.shape_of("output") == ("batch", "3*(h//2)*(w//2) + 3*(h//2)")


@pytest.mark.parametrize("sizes", [(2, 64, 96), (3, 33, 40)])
def test_the_expressions_give_the_sizes_of_a_run(sizes: tuple[int, int, int]) -> None:
    program = fx.symbolic_trace(get_model("resnet_tiny").build())
    report = symbolic_shapes(program, x=("batch", 3, "h", "w"))
    names = dict(zip(("batch", "h", "w"), sizes, strict=True))
    fx.passes.shape_prop.ShapeProp(program, fake=True).propagate(torch.ones(sizes[0], 3, *sizes[1:]))
    for node, tensors in report.tensors.items():
        computed = tuple(eval(str(size), names) for size in tensors[0].shape)
        assert computed == node.meta["tensor_meta"].shape, node


def test_constraints_on_sizes_are_reported_with_the_users_line() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    report = symbolic_shapes(fx.symbolic_trace(function), ("n", 4), ("m", 4), hints={"n": 8, "m": 8})
    (constraint,) = report.needed
    assert constraint.text in ("n == m", "m == n")
    assert str(constraint.node) == "add"
    assert "return x + y" in str(constraint.where)
    assert "test_symbolic_shapes.py:" in str(report)


@pytest.mark.parametrize("rows, size, hint, text", [(8, "n", 16, "n == 16"), (-1, "n + 1", 17, "(n + 1) % 2 == 0")])
def test_a_size_that_is_baked_in_is_a_constraint_as_python_writes_it(
    rows: int, size: str, hint: int, text: str
) -> None:
    report = symbolic_shapes(fx.symbolic_trace(lambda x: x.view(rows, 2)), (size,), hints={"n": hint})
    assert [condition.text for condition in report.needed] == [text]


def test_torch_is_afterwards_as_it_was() -> None:
    before = dict(vars(torch._meta_registrations))
    program = fx.symbolic_trace(lambda x: F.max_pool2d(x, 2))
    symbolic_shapes(program, ("n", 3, "h", "w"))
    with pytest.raises(RuntimeError, match="should be at most half of"):
        symbolic_shapes(fx.symbolic_trace(lambda x: F.max_pool2d(x, 2, padding=4)), ("n", 3, "h", "w"))
    assert vars(torch._meta_registrations) == before


def test_sizes_may_be_expressions_and_names_may_be_shared() -> None:
    program = fx.symbolic_trace(lambda x, y: torch.cat([x, y.t()]))
    report = symbolic_shapes(program, ("2*n", "m"), ("m", "n + 1"))
    assert report.shape_of("cat") == ("3*n + 1", "m")
    assert not report.needed


def test_dtype_stride_layout_and_device_are_known() -> None:
    program = fx.symbolic_trace(nn.Embedding(10, 4))
    report = symbolic_shapes(program, ("batch", "length", torch.int64))
    ((tensor,),) = [tensor for node, tensor in report.tensors.items() if node.op == "output"]
    assert (tensor.shape, tensor.stride) == (("batch", "length", 4), ("4*length", 4, 1))
    assert (tensor.dtype, tensor.layout, tensor.device) == (torch.float32, torch.strided, torch.device("cpu"))


def test_a_size_that_depends_on_elements_has_a_name_of_its_own() -> None:
    report = symbolic_shapes(fx.symbolic_trace(lambda x: x.nonzero()), ("n", "m"))
    assert report.shape_of("nonzero") == ("u0", 2)


def test_exported_programs_are_followed_too() -> None:
    batch = torch.export.Dim("batch")
    exported = torch.export.export(nn.Linear(4, 2), (torch.ones(3, 4),), dynamic_shapes=({0: batch},))
    report = symbolic_shapes(from_export(exported), ("rows", 4))
    assert report.shape_of("linear") == ("rows", 2)


def test_an_operator_without_a_fake_implementation_is_named_with_a_remedy() -> None:
    library = torch.library.Library("without_fake", "FRAGMENT")
    library.define("keep(Tensor x) -> Tensor")
    library.impl("keep", torch.clone, "CPU")
    with pytest.raises(RuntimeError) as failure:
        symbolic_shapes(fx.symbolic_trace(lambda x: torch.ops.without_fake.keep(x)), ("n",))
    assert "without_fake.keep" in "\n".join(failure.value.__notes__)
    assert "torch.library.register_fake" in "\n".join(failure.value.__notes__)


@pytest.mark.parametrize("size", ["h w", "__import__('os')", "h[0]", "h / 2"])
def test_a_size_that_is_no_expression_is_refused(size: str) -> None:
    with pytest.raises(PassError, match="cannot read the size"):
        symbolic_shapes(fx.symbolic_trace(lambda x: x + 1), (size,))


def test_inputs_that_do_not_fit_are_refused_with_the_signature() -> None:
    with pytest.raises(PassError, match=r"forward\(x\)"):
        symbolic_shapes(fx.symbolic_trace(lambda x: x + 1))


def test_sizes_that_do_not_fit_are_reported_in_the_users_names() -> None:
    with pytest.raises(RuntimeError, match="must match") as failure:
        symbolic_shapes(fx.symbolic_trace(lambda x, y: x + y), ("n",), ("m",))
    assert "is n, here 64; " in "\n".join(failure.value.__notes__)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_padding_keeps_sizes_symbolic(mode: str) -> None:
    program = fx.symbolic_trace(lambda x: torch.nn.functional.pad(x, (1, 2, 0, 1), mode=mode) * 2)
    report = symbolic_shapes(program, ("batch", 3, "h", "w"))
    assert report.shape_of("mul") == ("batch", 3, "h + 1", "w + 3")
    assert not [condition for condition in report.needed if "==" in condition.text]


@pytest.mark.parametrize("trains", [False, True])
def test_batch_norm_has_the_sizes_and_strides_of_its_operand(trains: bool) -> None:
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).train(trains)
    report = symbolic_shapes(fx.symbolic_trace(layers), ("batch", 3, "h", "w"))
    convolution, norm = (tensors[0] for node, tensors in report.tensors.items() if node.op == "call_module")
    assert norm == convolution
    assert norm.shape == ("batch", 8, "h - 2", "w - 2")


def test_batch_norm_of_other_channels_is_refused() -> None:
    with pytest.raises(RuntimeError, match="running_mean should contain 3 elements not 8"):
        symbolic_shapes(fx.symbolic_trace(nn.Sequential(nn.BatchNorm2d(8))), ("batch", 3, "h", "w"))
