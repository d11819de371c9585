"""The law of gradual types: inferred shapes hold at every size, and a rejected program fails at every size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import fx
from fx.analysis.gradual_types import GraphTypeChecker, Refine, TypeCheckingInterpreter
from fx.errors import TensorTypeError
from fx.tensor_type import Dyn, TensorType
from model_zoo import get_model

Step = Callable[[torch.Tensor], torch.Tensor]


def check_types(program: fx.GraphModule, named: bool = False) -> tuple[fx.Node, ...]:
    """Check the types of a program, and return the nodes whose number of dimensions was assumed."""
    checker = Refine(program) if named else GraphTypeChecker({}, program)
    assert checker.refine() if isinstance(checker, Refine) else checker.type_check()
    return checker.assumed


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
small = st.integers(1, 3)
axes = st.integers(-2, 3)


class Steps(nn.Module):
    """A program of several steps, functions and modules."""

    def __init__(self, steps: list[Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(step for step in steps if isinstance(step, nn.Module))
        self.steps = steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = step(x)
        return x


@st.composite
def layers(draw: st.DrawFn, shape: torch.Size) -> Any:
    """Draw a layer that may take a tensor of ``shape``."""
    channels, last = shape[1] if len(shape) > 1 else 1, shape[-1] if shape else 1
    kernel, stride, padding, out = draw(st.tuples(small, small, st.integers(0, 1), st.sampled_from([2, 4, 6])))
    kinds: list[Any] = [
        lambda: nn.Conv2d(channels, out, kernel, stride, padding, dilation=draw(small)),
        lambda: nn.Conv2d(channels, out * channels, kernel, padding="same", groups=channels),
        lambda: nn.ConvTranspose2d(channels, out, kernel, stride, output_padding=stride - 1),
        lambda: nn.Conv1d(channels, out, kernel, stride, padding),
        lambda: nn.MaxPool2d(kernel, stride, padding if kernel > 1 else 0, ceil_mode=draw(st.booleans())),
        lambda: nn.AvgPool2d(kernel, stride, ceil_mode=draw(st.booleans())),
        lambda: nn.AdaptiveAvgPool2d(draw(st.sampled_from([1, (2, None), (None, 3)]))),
        lambda: nn.BatchNorm2d(channels).eval(),
        lambda: nn.BatchNorm1d(channels).eval(),
        lambda: nn.GroupNorm(1, channels),
        lambda: nn.LayerNorm(last),
        lambda: nn.Linear(last, out),
        lambda: nn.Upsample(scale_factor=stride),
        lambda: nn.Flatten(draw(axes), draw(axes)),
        lambda: nn.PixelShuffle(2),
    ]
    if len(shape) < 3:  # some pooling on a CPU takes fewer dimensions than documented
        kinds = [kind for kind in kinds if "Pool" not in str(kind.__code__.co_names)]
    return draw(st.sampled_from(kinds))()


@st.composite
def functions(draw: st.DrawFn, shape: torch.Size) -> Step:
    """Draw a function of a tensor of ``shape``."""
    i, j, k = draw(st.tuples(axes, axes, small))
    keeps = draw(st.booleans())
    last = shape[-1] if shape else 1
    split = next((size for size in (2, 3) if last % size == 0), 1)
    return draw(
        st.sampled_from(
            [
                torch.relu,
                lambda x: x * 2 + x,
                lambda x: x + x[..., :1],
                lambda x: x - x.mean(i, keepdim=True),
                lambda x: x.mean(i, keepdim=keeps),
                lambda x: x.sum(),
                lambda x: x.flatten(i, j),
                lambda x: x.reshape(x.size(0), -1),
                lambda x: x.reshape(-1, last),
                lambda x: x.reshape(-1, k),
                lambda x: x.reshape(*x.shape[:-1], split, x.shape[-1] // split),
                lambda x: x.reshape(shape),
                lambda x: x.reshape(x.size(0) * x.size(-1), -1),
                lambda x: x.reshape(2, -1, last),
                lambda x: x.transpose(i, j),
                lambda x: x.permute(tuple(reversed(range(len(shape))))),
                lambda x: x.unsqueeze(i),
                lambda x: x.squeeze(i),
                lambda x: x.squeeze(),
                lambda x: x[:, :k],
                lambda x: x[k:],
                lambda x: x[..., ::k],
                lambda x: x[0],
                lambda x: x[None, ..., k - 1],
                lambda x: torch.cat([x, x], i),
                lambda x: torch.cat([x, x[:, :1]], i),
                lambda x: torch.stack([x, x.exp()], i),
                lambda x: x @ x.transpose(-1, -2),
                lambda x: x @ torch.ones(last, k),
                lambda x: x.chunk(k, i)[0],
                lambda x: torch.split(x, k, i)[0],
                lambda x: x.unbind(i)[-1],
                lambda x: x.expand(k, *[-1] * len(shape)),
                lambda x: x.repeat_interleave(k, i),
                lambda x: F.pad(x, (k, 1)),
                lambda x: F.softmax(x, i).masked_fill(x > 0, 0.0),
                lambda x: x.amax(i).add_(1),
                lambda x: x.narrow(i, 0, k),
                lambda x: x.select(i, k - 1),
                lambda x: F.scaled_dot_product_attention(x, x, x),
            ]
        )
    )


@st.composite
def programs(draw: st.DrawFn) -> tuple[Steps, torch.Size]:
    """Draw a program, and a shape that it takes."""
    start = torch.Size(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=2, max_size=4)))
    value, steps = torch.ones(start), list[Any]()
    for _ in range(draw(st.integers(1, 6))):
        step = draw(st.one_of(layers(value.shape), functions(value.shape)))
        try:
            with torch.no_grad():
                value = step(value)
        except (RuntimeError, ValueError, IndexError):
            continue
        steps.append(step)
    return Steps(steps), start


def runs(program: Callable[..., Any], inputs: torch.Tensor) -> bool:
    """Return whether the program takes these inputs; a type that they do not have is an error of the test."""
    try:
        with torch.no_grad():
            program(inputs)
    except TensorTypeError:
        raise
    except (RuntimeError, ValueError, IndexError, AssertionError):
        return False
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [50, pytest.param(1500, marks=pytest.mark.thorough)])
def test_inferred_shapes_hold_at_every_size_that_is_tried(count: int) -> None:
    @settings(
        max_examples=count, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None
    )
    @given(st.data())
    def law(data: st.DataObject) -> None:
        module, start = data.draw(programs())
        keeps = data.draw(st.lists(st.booleans(), min_size=len(start), max_size=len(start)))
        sizes = list(zip(start, keeps, strict=True))
        others = st.tuples(*(st.just(size) if keep else st.integers(1, 9) for size, keep in sizes))
        shapes = [start, *data.draw(st.lists(others, min_size=4, max_size=4))]
        program = fx.symbolic_trace(module)
        (x,) = program.graph.find_nodes(op="placeholder")
        x.type = TensorType([size if keep else Dyn for size, keep in sizes])
        assumed: tuple[fx.Node, ...] = ()
        try:
            assumed = check_types(program, named=data.draw(st.booleans()))
            for shape in shapes:
                if runs(module, torch.ones(shape)):
                    assert runs(TypeCheckingInterpreter(program).run, torch.ones(shape))
        except TensorTypeError as error:  # the program runs at its first shape
            if not assumed and "was assumed" not in str(error):
                raise

    law()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [25, pytest.param(500, marks=pytest.mark.thorough)])
def test_refined_types_of_unknown_inputs_hold_or_were_assumed(count: int) -> None:
    @settings(max_examples=count, suppress_health_check=SLOW, deadline=None)
    @given(programs())
    def law(drawn: tuple[Steps, torch.Size]) -> None:
        module, start = drawn
        program = fx.symbolic_trace(module)
        assumed: tuple[fx.Node, ...] = ()
        try:
            assumed = check_types(program)
            assert runs(TypeCheckingInterpreter(program).run, torch.ones(start))
        except TensorTypeError as error:
            if not assumed and "was assumed" not in str(error):
                raise

    law()


@pytest.mark.parametrize(
    "name",
    [
        "resnet_tiny", "unet_small", "learning_to_paint_actor_small", "learning_to_paint_critic_small", "gpt2_small",
        "learning_to_paint_renderer_small", "vit_small", "bert_small", "deep_recommender_small", "dlrm_small",
        "functional_convnet", "shared_convnet", "transformer_encoder_small", "lstm_classifier_small", "two_heads",
    ],
)  # fmt: skip
def test_types_of_models_hold_at_every_batch_size(name: str) -> None:
    model = get_model(name)
    program = fx.symbolic_trace(model.build())
    for node, value in zip(program.graph.find_nodes(op="placeholder"), model.example_inputs(batch=2), strict=False):
        node.type = TensorType((Dyn, *value.shape[1:])) if isinstance(value, torch.Tensor) else None
    for named in (False, True):
        check_types(program, named)
        for batch in (1, 3):
            with torch.no_grad():
                TypeCheckingInterpreter(program).run(*model.example_inputs(batch=batch))
