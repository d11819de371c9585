"""Programs as real repositories have them: parts of training loops, losses, layers and wrappers, of all themes."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
import torch.nn.functional as F
from torch import finfo, is_grad_enabled, nn

from .programs import Layered, flags, images, one_liners, other_rows, program, rows, sequences, tokens

# Gradients and their modes.


@program(rows, other_rows)
class MeanTeacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Linear(6, 4)
        self.teacher = copy.deepcopy(self.student)
        for parameter in self.teacher.parameters():
            parameter.requires_grad = False

    @torch.no_grad()
    def targets(self, x):
        return self.teacher(x).softmax(-1)

    def forward(self, x, y):
        return F.kl_div(self.student(x).log_softmax(-1), self.targets(y), reduction="batchmean")


@program(rows)
def no_grad_over_mutation(x):
    scale = torch.ones(6, requires_grad=True)
    with torch.no_grad():
        scale.mul_(2)
    return (x * scale).sum()


@program(rows)
def requires_grad_inside(x):
    y = x.detach().requires_grad_()
    z = (y * y).sum()
    return z, y


@program(rows)
def penalty(x):
    y = x.detach().requires_grad_(True)
    z = (y**3).sum()
    (slope,) = torch.autograd.grad(z, y, create_graph=True)
    return ((slope.norm(2, dim=1) - 1) ** 2).mean() * x.mean()


@program(rows)
def straight_through_argmax(x):
    soft = x.softmax(-1)
    index = soft.max(-1, keepdim=True)[1]
    hard = torch.zeros_like(x).scatter_(-1, index, 1.0)
    return hard - soft.detach() + soft


@program(rows)
def maybe_no_grad(x, freeze=True):
    with torch.no_grad() if freeze else contextlib.nullcontext():
        y = x.exp()
    return y * x


@program(rows)
def exit_stack(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        y = x.exp()
    return y * x


@contextlib.contextmanager
def _evaluating(model):
    was = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield model
    finally:
        model.train(was)


@program(rows)
class EvaluatedTeacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
        self.student = nn.Linear(6, 6)

    def forward(self, x):
        with _evaluating(self.teacher) as teacher:
            target = teacher(x)
        return (self.student(x) - target).square().mean()


@program(rows)
class AlwaysEvaluated(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        return self.backbone(x)


@program(images)
class EfficientBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6, momentum=0.01)
        self.reduce = nn.Conv2d(6, 2, 1)
        self.expand = nn.Conv2d(2, 6, 1)
        self.act = nn.SiLU()

    def forward(self, inputs, drop_connect_rate=None):
        x = self.act(self.norm(self.conv(inputs)))
        squeezed = F.adaptive_avg_pool2d(x, 1)
        squeezed = self.expand(self.act(self.reduce(squeezed)))
        x = torch.sigmoid(squeezed) * x
        if drop_connect_rate:
            x = x / (1 - drop_connect_rate)
        return x


# Random numbers.


@program(rows)
class NoisyGate(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 24).reshape(6, 4))
        self.noise = nn.Parameter(torch.zeros(6, 4))

    def forward(self, x):
        clean = x @ self.w
        raw = x @ self.noise
        noisy = clean + torch.randn_like(clean) * (F.softplus(raw) + 1e-2)
        top, index = noisy.topk(2, dim=1)
        return torch.zeros_like(noisy).scatter(1, index, top.softmax(1))


@program(sequences)
class TokenDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask_token = nn.Parameter(torch.linspace(0, 1, 6))

    def forward(self, x):
        b, n, d = x.shape
        noise = torch.rand(b, n, device=x.device)
        shuffled = torch.argsort(noise, dim=1)
        restore = torch.argsort(shuffled, dim=1)
        kept = shuffled[:, : int(4 * 0.5)]
        x = torch.gather(x, 1, kept.unsqueeze(-1).repeat(1, 1, d))
        mask_tokens = self.mask_token.repeat(b, n - kept.shape[1], 1)
        full = torch.cat([x, mask_tokens], 1)
        return torch.gather(full, 1, restore.unsqueeze(-1).repeat(1, 1, d))


@program(rows)
class FixedFourier(nn.Module):
    def __init__(self):
        super().__init__()
        self.B = torch.randn(6, 3)

    def forward(self, x):
        p = 2 * math.pi * x @ self.B
        return torch.cat([p.sin(), p.cos()], -1)


@program(rows)
def noise_by_size(x):
    noise = torch.empty(x.shape).uniform_(0, 1)
    return x + noise.mul_(0.1)


@program(rows)
def distribution_sample(x):
    normal = torch.distributions.Normal(x, 1.0, validate_args=False)
    z = normal.rsample()
    return normal.log_prob(z)


# Counters, caches and state.


@program(rows)
class WeightAverage(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.tensor(0, dtype=torch.long))
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x):
        if self.training:
            self.steps += 1
            with torch.no_grad():
                self.average = self.average * 0.9 + x.mean(0) * 0.1
        return x - self.average


@program(rows)
class UpdatedInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(6))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        with torch.no_grad():
            self.average.lerp_(x.mean(0), 0.1)
            self.steps += 1
        return x - self.average / (1 - 0.9**self.steps)


@program(rows)
class QueueOfKeys(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("queue", torch.linspace(-1, 1, 60).reshape(10, 6))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        similarity = x @ self.queue.clone().detach().t()
        with torch.no_grad():
            rows_ = (self.pointer + torch.arange(2)) % 10
            self.queue[rows_] = x[:2]
            self.pointer[0] = (self.pointer[0] + 2) % 10
        return similarity


class _Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 2)
        self.loss = 0.0

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        self.loss = p.mean(0).square().sum()
        return x * p[:, :1]


@program(rows)
class LossCollected(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([_Routed(), _Routed()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x, sum(layer.loss for layer in self.layers)


@program(rows)
class AttentionMapsKept(Layered):
    def __init__(self):
        super().__init__()
        self.maps = []

    def forward(self, x):
        self.maps.clear()
        for _ in range(2):
            x = self.layer(x).softmax(-1)
            self.maps.append(x)
        return torch.stack(self.maps).mean(0)


@program(rows)
class Memoized(Layered):
    @functools.cached_property
    def scale(self):
        return self.layer.weight.norm()

    def forward(self, x):
        return self.layer(x) / self.scale


_CALLS = {"count": 0}


@program(rows)
def global_counter_used(x):
    _CALLS["count"] += 1
    return x * (_CALLS["count"] - _CALLS["count"] + 2)


@program(rows)
def attribute_of_function(x):
    attribute_of_function.seen = x.shape
    return x + 1


# In place, where it shows.


@program(rows)
def residual_in_list(x):
    outs = []
    h = x * 1
    for i in range(3):
        h += i
        outs.append(h)
    return torch.cat(outs, 1)


@program(rows)
def list_augmented(x):
    outs = [x]
    alias = outs
    outs += [x * 2, x * 3]
    return torch.cat(alias, 1)


@program(rows)
def tuple_augmented(x):
    outs = (x,)
    kept = outs
    outs += (x + 1,)
    return outs, kept


@program(rows)
def boxes_scaled_in_place(x):
    boxes = x.clone()
    boxes[..., [0, 2]] *= 10
    boxes[..., 1].sub_(boxes[..., 3] / 2)
    return boxes


@program(rows)
def transposed_add(x):
    y = x.clone()
    t = y.t()
    t += 1
    return y


@program(rows)
def accumulates_into_dict(x):
    d = {"loss": x.sum()}
    first = d["loss"]
    d["loss"] += x.mean()
    return d, first


@program(rows)
def swapped_in_place(x):
    y = x.clone()
    y[0], y[1] = y[1].clone(), y[0].clone()
    return y


@program(rows)
def running_maximum(x):
    m = x[:, 0]
    for i in range(1, 6):
        m = torch.maximum(m, x[:, i])
        m *= 1.5
    return m, x


# Questions and types.


one_liners(
    rows,
    fill_lowest=lambda x: x.masked_fill(x > 0, torch.finfo(x.dtype).min),
    class_name=lambda x: x * 2 if type(x).__name__ == "Tensor" else x * 3,
    class_attribute=lambda x: x * 2 if x.__class__ is torch.Tensor else x * 3,
    parameter_or_not=lambda x: x * 2 if isinstance(x, nn.Parameter) else x * 3,
    float_tensor_kind=lambda x: x * 2 if isinstance(x, torch.FloatTensor) else x * 3,
    dtype_chosen=lambda x: x.to(torch.float64 if x.dtype == torch.float32 else torch.float32),
    in_container=lambda x: x * 2 if any(one is x for one in [x, None]) else x,
    zipped_result=lambda x: list(zip(x.unbind(1), x.split(1, dim=1))),
    keyed_by_number=lambda x: {i: part for i, part in enumerate(x.chunk(2, dim=1))},
    torch_size_result=lambda x: (x.shape, x.size(0), x.numel()),
    imported_question=lambda x: x * 2 if is_grad_enabled() else x * 3,
    imported_limits=lambda x: x.clamp(max=finfo(x.dtype).max),
)


@program(rows)
def mapping_or_tensor(x):
    if hasattr(x, "keys"):
        return x["x"]
    if hasattr(x, "shape") and not np.isscalar(x):
        return x * 3
    return x


@program(rows)
def matched(x):
    match x:
        case torch.Tensor():
            return x * 2
        case _:
            return x


@program(rows)
def truth_by_bool_of_none(x, mask=None):
    if mask is not None and mask.any():
        x = x * mask
    return x


@program(rows)
def default_by_or(x, scale=None):
    scale = scale or 6**-0.5
    return x * scale


@program(rows)
def asserted_finite(x):
    assert not torch.isnan(x).any(), "nan"
    return x * 2


@program(rows)
def identity_of_result(x):
    y = x.contiguous()
    return y * 2 if y is x else y * 3


@program(rows)
def id_as_key(x):
    seen = {id(x): x}
    y = x.view(-1, 6)
    return seen.get(id(y), y * 2)


@program(rows)
def data_pointer(x):
    y = x.reshape(-1, 6)
    return y * 2 if y.data_ptr() == x.data_ptr() else y * 3


@program(rows)
def device_context(x):
    with torch.device("cpu"):
        y = torch.ones(6)
    return x + y


@program(rows)
def default_device_type(x):
    with torch.autocast(device_type=x.device.type, dtype=torch.bfloat16):
        y = x @ x.t()
    return y


@program(rows)
class CustomForward(nn.Module):
    @torch.amp.custom_fwd(device_type="cpu")
    def _inner(self, x):
        return x @ x.t()

    def forward(self, x):
        return self._inner(x)


# Results.


class Outputs(NamedTuple):
    logits: torch.Tensor
    loss: Optional[torch.Tensor] = None


@dataclass
class Latent:
    mean: torch.Tensor
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def double(self):
        return self.mean * 2


@program(rows)
def latent_result(x):
    latent = Latent(x * 2)
    latent.extra["norm"] = latent.mean.norm()
    return latent


@program(rows)
def ordered_result(x):
    out = OrderedDict()
    out["z"] = x
    out["a"] = x + 1
    out.move_to_end("z")
    return out


# Weights.


@program(tokens)
class TiedByFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 6, padding_idx=0)

    def forward(self, x):
        return F.linear(self.embed(x), self.embed.weight) * self.embed.weight.shape[1] ** -0.5


@program(rows)
class ParametersInList(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.full((6,), float(i))) for i in range(3)])
        self.named = nn.ParameterDict({"a": nn.Parameter(torch.ones(6))})

    def forward(self, x):
        for w in self.weights:
            x = x * w + self.named["a"]
        return x


@program(rows)
class StackedBuffers(nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(3):
            self.register_buffer(f"mean_{i}", torch.full((6,), float(i)))

    def forward(self, x):
        means = torch.stack([getattr(self, f"mean_{i}") for i in range(3)])
        return torch.cdist(x, means)


@program(rows)
class RegularizedLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 4)
        self.register_buffer("prior", torch.ones(4))

    def forward(self, x):
        penalty_ = sum(p.pow(2.0).sum() for p in self.parameters())
        return self.lin(x).sum() + 0.1 * penalty_ + sum(b.sum() for b in self.buffers())


@program(sequences, flags)
def masked_pool(x, mask):
    mask = mask.unsqueeze(-1).type_as(x)
    return (x * mask).sum(1) / mask.sum(1).clamp(min=1e-9)


@program(rows)
class FunctionAsAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = functools.partial(F.leaky_relu, negative_slope=0.3)
        self.drop = F.dropout

    def forward(self, x):
        return self.drop(self.act(x), 0.5, self.training)


@program(rows)
class DropoutAlways(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.3)


@program(rows)
class FlagInF(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = 0.4

    def forward(self, x):
        return F.dropout(x, p=self.p if self.training else 0.0, training=True)


class _Schedule:
    def __init__(self):
        self.steps = 0

    def step(self):
        self.steps += 1
        return self.steps


@program(rows)
class ScheduleHeld(nn.Module):
    def __init__(self):
        super().__init__()
        self.schedule = _Schedule()

    def forward(self, x):
        return x * self.schedule.step()


@program(rows)
class CallsCounted(nn.Module):
    def __init__(self):
        super().__init__()
        self.statistics = SimpleNamespace(calls=0, nested=_Schedule())

    def forward(self, x):
        self.statistics.calls += 1
        self.statistics.nested.step()
        return x * 2


class _Features(Layered):
    def forward_features(self, x):
        return F.dropout(self.layer(x), 0.5, self.training)

    def forward(self, x):
        return self.forward_features(x).relu()


@program(rows)
class MethodOfChildInList(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([_Features(), _Features()])

    def forward(self, x):
        for stage in self.stages:
            x = stage.forward(x)
        return x
