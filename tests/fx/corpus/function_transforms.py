"""Functions of functions, as people use them: gradients of samples, ensembles, jacobians, control flow."""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)

from .programs import Layered, flags, given, images, labels, one_liners, other_rows, program, rows, sequences


class _MLP(nn.Module):
    def __init__(self, inputs=6, outputs=3):
        super().__init__()
        self.hidden = nn.Linear(inputs, 8)
        self.out = nn.Linear(8, outputs)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))


@program(rows, labels)
class PerSampleGradients(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = _MLP(outputs=6)

    def compute_loss(self, params, sample, target):
        batch = sample.unsqueeze(0)
        targets = target.unsqueeze(0)
        predictions = functional_call(self.model, params, (batch,))
        return F.cross_entropy(predictions, targets)

    def forward(self, data, targets):
        params = {k: v.detach() for k, v in self.model.named_parameters()}
        ft_compute_grad = grad(self.compute_loss)
        ft_compute_sample_grad = vmap(ft_compute_grad, in_dims=(None, 0, 0))
        return ft_compute_sample_grad(params, data, targets)


@program(rows, labels)
class ClippedGradientNorms(Layered):
    def forward(self, x, y):
        def loss(weight, bias, sample, target):
            return F.cross_entropy(F.linear(sample, weight, bias), target)

        grads = vmap(grad(loss, argnums=(0, 1)), in_dims=(None, None, 0, 0))(self.layer.weight, self.layer.bias, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)
        factor = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        return [torch.einsum("b,b...->...", factor, g) for g in grads]


@program(rows)
class Ensemble(nn.Module):
    def __init__(self):
        super().__init__()
        self.models = nn.ModuleList(_MLP() for _ in range(3))

    def forward(self, x):
        params, buffers = stack_module_state(list(self.models))

        def call(p, b, data):
            return functional_call(self.models[0], (p, b), (data,))

        return vmap(call, in_dims=(0, 0, None))(params, buffers, x).mean(0)


@program(rows)
class EnsembleOfStacks(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6, 6) * 0.1)
        self.bias = nn.Parameter(torch.randn(4, 6))

    def forward(self, x):
        heads = vmap(lambda w, b: F.relu(F.linear(x, w, b)))(self.weight, self.bias)
        return heads.std(0), heads.mean(0)


@program(rows)
class PhysicsInformed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = _MLP(outputs=1)

    def forward(self, x):
        def u(point):
            return self.net(point).squeeze(-1)

        du = vmap(grad(u))(x)
        laplacian = vmap(lambda p: torch.diagonal(hessian(u)(p)).sum())(x)
        return ((laplacian - du.sum(-1)) ** 2).mean()


@program(rows)
class JacobianPenalty(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = _MLP()

    def forward(self, x):
        code = self.encoder(x)
        jacobian = vmap(jacrev(self.encoder))(x)
        return code, jacobian.pow(2).sum((1, 2)).mean()


@program(rows)
class ForwardJacobian(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(6, 4), nn.Softplus(), nn.Linear(4, 2))

    def forward(self, x):
        return vmap(jacfwd(self.f))(x).logdet() if False else torch.linalg.matrix_norm(vmap(jacfwd(self.f))(x))


@program(rows)
class HessianDiagonal(nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = _MLP(outputs=1)

    def forward(self, x):
        def energy(row):
            return self.energy(row)[0]

        hess = vmap(jacfwd(jacrev(energy)))(x)
        return torch.diagonal(hess, dim1=-2, dim2=-1)


@program(rows)
class HutchinsonTrace(nn.Module):
    def __init__(self):
        super().__init__()
        self.drift = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        self.register_buffer("probe", torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, -1.0]))

    def forward(self, x):
        probe = self.probe.expand_as(x)
        out, vjp_fn = vjp(self.drift, x)
        (product,) = vjp_fn(probe)
        return out, (product * probe).sum(-1)


@program(rows, other_rows)
class DirectionalDerivative(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = _MLP()

    def forward(self, x, v):
        value, tangent = jvp(self.net, (x,), (v,))
        return value + tangent


@program(rows)
class Forces(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.readout = nn.Linear(8, 1)

    def energy(self, positions, scale=1.0):
        return scale * self.readout(F.silu(self.embed(positions))).sum()

    def forward(self, positions):
        gradient, energy = grad_and_value(self.energy)(positions, scale=2.0)
        return {"energy": energy, "forces": -gradient}


@program(rows, labels)
class InnerLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Linear(6, 6)
        self.rate = nn.Parameter(torch.tensor(0.1))

    def forward(self, x, y):
        params = dict(self.model.named_parameters())

        def loss_fn(params):
            return F.cross_entropy(functional_call(self.model, params, (x,)), y)

        for _ in range(2):
            grads = grad(loss_fn)(params)
            params = {name: p - self.rate * grads[name] for name, p in params.items()}
        return functional_call(self.model, params, (x,))


@program(rows)
def gradient_with_aux(x):
    def loss(y, factor):
        out = (y * factor).tanh()
        return out.sum(), {"out": out, "norm": out.norm()}

    grads, aux = grad(loss, argnums=(0, 1), has_aux=True)(x, torch.tensor(2.0))
    return grads[0] * aux["norm"], grads[1], aux


@program(rows)
def gradient_and_value_with_aux(x):
    grads, (value, aux) = grad_and_value(lambda y: ((y**3).sum(), y.mean(0)), has_aux=True)(x)
    return grads, value, aux


@program(rows, other_rows)
def mapped_structures(x, y):
    def f(batch, other):
        return {"sum": batch["x"] + batch["y"][0], "pair": (batch["x"] * other, batch["y"][1])}

    out = vmap(f, in_dims=({"x": 0, "y": (0, None)}, 0), out_dims=1)({"x": x, "y": (y, y[0])}, y)
    return out["sum"], out["pair"][0] + out["pair"][1].t().t()


class _Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@program(rows)
def mapped_named_tuples(x):
    def f(pair):
        return _Pair(pair.first * 2, pair.second.sum())

    out = vmap(f)(_Pair(x, x + 1))
    return out.first, out.second


@program(rows)
def mapped_with_keywords(x):
    def f(row, scale=1.0, *, shift):
        return row * scale + shift

    return vmap(f)(x, scale=3.0, shift=x[0])


one_liners(
    rows,
    mapped_over_columns=lambda x: vmap(lambda column, m: column @ m, in_dims=(1, None), out_dims=1)(x, x),
    mapped_in_chunks=lambda x: vmap(torch.sin, chunk_size=2)(x),
    decorated_with_vmap=lambda x: _decorated(x, x[0]),
    noise_for_each=lambda x: vmap(lambda row: row + torch.randn(6), randomness="different")(x),
    noise_of_constants=lambda x: x + vmap(lambda n: n * torch.rand(6), randomness="different")(torch.ones(2))[0],
    noise_that_is_the_same=lambda x: vmap(lambda row: row + torch.rand_like(row), randomness="same")(x),
    jacobian_in_chunks=lambda x: jacrev(lambda row: row.exp(), chunk_size=2)(x[0]),
    jacobian_made_before=lambda x: _jacobian(x[0]),
    branch_inside=lambda x: vmap(lambda row: row if row.sum() > 0 else -row)(x),
    chosen_by_size=lambda x: torch.cond(x.shape[0] > 3, lambda t: t * 2, lambda t: t - 1, (x,)),
)


@program(sequences)
class MappedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(6, 6)
        self.key = nn.Linear(6, 6)

    def forward(self, x):
        q, k = self.query(x), self.key(x)
        scores = vmap(torch.mm)(q, k.transpose(1, 2)) / 6**0.5
        return vmap(vmap(lambda weights, value: weights @ value, in_dims=(0, None)))(scores.softmax(-1), x)


@program(sequences, flags)
def mapped_masks(x, mask):
    def score(b, q, k):
        return torch.where(mask[b, k], x[b, q] @ x[b, k], float("-inf"))

    b, n = torch.arange(2), torch.arange(4)
    scores = vmap(vmap(vmap(score, (None, None, 0)), (None, 0, None)), (0, None, None))(b, n, n)
    return scores.masked_fill(scores.isinf(), 0.0)


@program(rows)
def mask_of_constants(x):
    rows = torch.arange(6)
    causal = vmap(vmap(lambda i, j: i >= j, (None, 0)), (0, None))(rows, rows)
    return x @ causal.to(x.dtype) if causal.shape == (6, 6) else x


@program(rows)
def pairwise_distances(x):
    def distance(a, b):
        return ((a - b) ** 2).sum()

    return vmap(vmap(distance, in_dims=(None, 0)), in_dims=(0, None))(x, x)


@program(rows)
def mapped_partial(x):
    def f(scale, row):
        return row * scale

    return vmap(functools.partial(f, x.mean()))(x)


@program(rows)
class MappedSubmodule(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU())

    def forward(self, x):
        return vmap(self.block)(x) + x


class _Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6) * 0.5)
        self.register_buffer("shift", torch.arange(6.0))

    def forward(self, x):
        return vmap(lambda row: row * self.scale + self.shift)(x)


@program(rows)
class MappedInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = _Inner()
        self.second = _Inner()

    def forward(self, x):
        return self.second(self.first(x).relu())


@program(rows)
class MadeInConstructor(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 6))
        self.mapped = torch.vmap(self.single)

    def single(self, row):
        return row @ self.weight

    def forward(self, x):
        return self.mapped(x)


@functools.partial(torch.vmap, in_dims=(0, None))
def _decorated(row, weight):
    return row * weight.sum()


@program(rows)
class DropoutInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return vmap(self.drop, randomness="different")(x)


@program(rows)
def noise_twice(x):
    f = vmap(lambda row: row + torch.rand_like(row), randomness="different")
    return f(x) - f(x)


@program(rows)
def without_gradients_inside(x):
    def loss(y):
        with torch.no_grad():
            scale = y.abs().max()
        return (y / scale).pow(2).sum()

    return grad(loss)(x)


@program(rows)
def under_no_grad(x):
    with torch.no_grad():
        g = grad(lambda y: (y**2).sum())(x)
    return x - 0.1 * g


@program(rows)
def written_inside(x):
    def f(row):
        out = torch.zeros_like(row)
        out[0] = row.sum()
        out += row
        return out

    return vmap(f)(x)


@program(rows)
def written_around(x):
    total = torch.zeros(6)

    def f(y):
        total.add_(y.detach().sum(0))
        return (y**2).sum()

    g = grad(f)(x)
    return g, total


@program(rows)
def jacobian_of_several(x):
    def f(a, b):
        return a * b.sum(), {"outer": torch.outer(a, b)}

    (first, rest) = jacrev(f, argnums=(0, 1))(x[0], x[1])
    return first[0] + first[1], rest["outer"][1]


@program(rows)
def jacobian_with_aux(x):
    jacobian, aux = jacrev(lambda row: (row.sin(), row.sum()), has_aux=True)(x[0])
    return jacobian, aux


@program(rows)
def third_derivative(x):
    f = torch.sin
    for _ in range(3):
        f = grad(f)
    return vmap(f)(x[:, 0])


@program(rows)
def pulled_back_twice(x):
    out, pull = vjp(lambda y: (y.sin(), y.sum(0)), x)
    (first,) = pull((torch.ones_like(x), torch.zeros(6)))
    second = pull((torch.zeros_like(x), torch.ones(6)))[0]
    return out, first, second


@program(rows)
def linear_part(x):
    out, push = torch.func.linearize(torch.tanh, x)
    return out, push(torch.ones_like(x))


@program(rows)
def functionalized(x):
    def f(y):
        z = y.clone()
        z.mul_(2)
        return z + 1

    return torch.func.functionalize(f)(x)


@program(rows)
def ordered_arguments(x):
    batch = OrderedDict(b=x, a=x * 2)
    return vmap(lambda d: d["a"] - d["b"])(batch)


@program(images)
class NormalizedPerSample(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4, track_running_stats=False)

    def forward(self, x):
        def features(image, scale):
            return self.norm(self.conv(image.unsqueeze(0) * scale)).mean((0, 2, 3)).sum()

        return vmap(grad(features, argnums=1), in_dims=(0, None))(x, torch.tensor(2.0))


@program(rows)
class GradientOfFrozenNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        return grad(lambda y: self.norm(y).pow(2).sum())(x)


@program(rows)
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(6, 6)

    def forward(self, x):
        return grad(lambda h: self.cell(x, h).sum())(torch.zeros_like(x))


@program(rows)
def value_kept_outside(x):
    seen = []

    def f(y):
        seen.append(y * 2)
        return (y**2).sum()

    return grad(f)(x) + seen[0]


_jacobian = jacrev(torch.sin)


@program(rows)
class Chosen(nn.Module):
    def __init__(self):
        super().__init__()
        self.small = nn.Linear(6, 6)
        self.large = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))

    def forward(self, x):
        return torch.cond(x.sum() > 0, self.small, self.large, (x,))


@program(rows)
class ChosenByBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("limit", torch.tensor(0.75))
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        y = x * 2
        return torch.cond(x.mean() > self.limit, lambda: y * self.scale, lambda: y - self.limit, ())


@program(rows)
class ChosenByMode(nn.Module):
    def forward(self, x):
        return torch.cond(self.training, lambda t: t * 2, lambda t: t - 1, (x,))


@program(rows)
def chosen_twice(x):
    def inner(t):
        return torch.cond(t.max() > 1, lambda u: u + x, lambda u: u - x, (t,))

    return torch.cond(x.sum() > 0, inner, lambda t: t * 3, (x.sin(),))


@program(rows)
def chosen_structures(x):
    def yes(t, k):
        return {"a": t * 2, "b": k.sin()}

    def no(t, k):
        return {"a": -t, "b": k + 1}

    out = torch.cond(x.sum() > 0, yes, no, (x, x.mean(0)))
    return out["a"] + out["b"]


@program(rows)
def looped(x):
    from torch._higher_order_ops.while_loop import while_loop

    step, y = while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t * 0.5 + i), (torch.tensor(0), x))
    return step, y


@program(rows, given(3))
def repeated(x, times):
    return vmap(lambda row: row.repeat(2))(x) * times


@program(rows, labels)
class ModelAgnostic(nn.Module):
    """Adapts to each task by one step, as in meta-learning, for all tasks at once."""

    def __init__(self):
        super().__init__()
        self.net = _MLP(outputs=6)

    def forward(self, x, y):
        params = dict(self.net.named_parameters())
        buffers = dict(self.net.named_buffers())

        def inner(params, sample, target):
            logits = functional_call(self.net, (params, buffers), (sample,))
            return F.cross_entropy(logits, target), logits

        def adapted(sample, target):
            grads, logits = grad(inner, has_aux=True)(params, sample, target)
            new = {k: params[k] - 0.1 * grads[k] for k in params}
            return inner(new, sample, target)[0], logits

        losses, logits = vmap(adapted)(x, y)
        return losses.mean(), logits


@program(rows)
class NeuralTangentKernel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = _MLP(outputs=1)

    def forward(self, x):
        params = {k: v.detach() for k, v in self.net.named_parameters()}

        def f(params, row):
            return functional_call(self.net, params, (row.unsqueeze(0),)).squeeze(0)

        jac = vmap(jacrev(f), (None, 0))(params, x)
        flat = [j.flatten(2) for j in jac.values()]
        return sum(torch.einsum("naf,mbf->nmab", j, j) for j in flat)


@program(rows)
class Score(nn.Module):
    """The score of a density, and its divergence, as in score matching."""

    def __init__(self):
        super().__init__()
        self.log_density = _MLP(outputs=1)

    def forward(self, x):
        def score(row):
            return grad(lambda r: self.log_density(r).sum())(row)

        def divergence(row):
            return torch.trace(jacfwd(score)(row))

        s = vmap(score)(x)
        return 0.5 * s.pow(2).sum(1) + vmap(divergence)(x)


@program(rows)
class GaussNewton(nn.Module):
    def __init__(self):
        super().__init__()
        self.residual = nn.Linear(6, 4)

    def forward(self, x):
        theta = x.mean(0)
        r, push = torch.func.linearize(self.residual, theta)
        _, pull = vjp(self.residual, theta)
        (gradient,) = pull(r)
        return gradient + pull(push(gradient))[0]


@program(rows)
class HamiltonianNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, state):
        dh = vmap(grad(lambda s: self.h(s).squeeze()))(state)
        dq, dp = dh.chunk(2, dim=-1)
        return torch.cat([dp, -dq], dim=-1)


@program(rows)
class ContrastiveJacobian(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 3)
        self.temperature = 0.5

    def similarity(self, a, b):
        return (a @ b) / self.temperature

    def forward(self, x):
        z = F.normalize(self.encoder(x), dim=-1)
        logits = vmap(vmap(self.similarity, in_dims=(None, 0)), in_dims=(0, None))(z, z)
        return F.cross_entropy(logits, torch.arange(x.shape[0]))


@program(rows)
class ExpertsMapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(3, 8, 6) * 0.3)
        self.down = nn.Parameter(torch.randn(3, 6, 8) * 0.3)
        self.router = nn.Linear(6, 3)

    def forward(self, x):
        def expert(up, down, inputs):
            return F.gelu(inputs @ up.t()) @ down.t()

        outputs = vmap(expert, in_dims=(0, 0, None), out_dims=1)(self.up, self.down, x)
        return (outputs * self.router(x).softmax(-1).unsqueeze(-1)).sum(1)


@program(rows)
class MixedModes(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(6, 6)
        self.student = nn.Linear(6, 6)

    def forward(self, x):
        with torch.no_grad():
            target = vmap(self.teacher)(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            prediction = vmap(self.student)(x)
        return (prediction.float() - target).pow(2)


@program(rows)
class FrozenInsideGrad(Layered):
    def forward(self, x):
        def loss(y):
            with torch.no_grad():
                target = self.layer(y)
            return (self.layer(y) * target).sum()

        return grad(loss)(x.detach())


@program(rows, given(True))
def chosen_by_flag(x, flag):
    return torch.cond(flag, lambda t: t + 1, lambda t: t - 1, (x,)) if flag is None else vmap(torch.cos)(x)


@program(sequences)
class RelativeBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.linspace(-1, 1, 7))

    def forward(self, x):
        def bias(q, k):
            return self.table[q - k + 3]

        n = torch.arange(4)
        scores = x @ x.transpose(1, 2) + vmap(vmap(bias, (None, 0)), (0, None))(n, n)
        return scores.softmax(-1) @ x


@program(rows)
class KeptOnModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(6, 6)
        self.last = None

    def inner(self, row):
        self.last = row
        return self.f(row)

    def forward(self, x):
        return vmap(self.inner)(x)


@program(rows)
def counted_inside(x):
    calls = []

    def f(row):
        calls.append(1)
        return row * len(calls)

    return vmap(f)(x) + len(calls)


@program(rows)
def caught_inside(x):
    def f(row):
        try:
            return row * int(row.sum())
        except TypeError:
            return row

    return vmap(f)(x)


@program(rows)
def grad_of_marked_views(x):
    y = x[1:]
    g = grad(lambda z: (z[1:] * 2).sum())(x)
    y = y * 1
    y += 1
    return g, y


@program(rows)
def augmented_inside(x):
    def f(row):
        h = row * 2
        before = h
        h += 1
        return before + h

    return vmap(f)(x)


@program(rows)
def augmented_around(x):
    y = x * 2
    g = vmap(lambda row: row + y.sum())(x)
    z = y
    y += 1
    return g, z


@program(rows)
def stacked_by_loop(x):
    outs = []
    for power in range(1, 4):
        outs.append(vmap(lambda row, p=power: row**p)(x))
    return torch.stack(outs)


@program(rows)
def one_function_twice(x):
    def f(row):
        return row.cumsum(0)

    g = vmap(f)
    return g(x) + g(x * 2)
