"""Programs that catch what capture says, and go another way."""

from __future__ import annotations

import contextlib

import torch

from .programs import program, rows


@program(rows)
def caught_int(x):
    n = x.shape[0]
    try:
        n = int(n)
    except TypeError:
        n = 7
    return x * n


@program(rows)
def caught_float(x):
    try:
        scale = float(x.sum())
    except Exception:
        scale = 7.0
    return x * scale


@program(rows)
def caught_branch(x):
    try:
        if x.sum() > 0:
            return x * 2
        return x * 3
    except Exception:
        return x * 7


@program(rows)
def caught_len(x):
    try:
        n = len(x)
    except Exception:
        n = 7
    return x * n


@program(rows)
def caught_iteration(x):
    try:
        parts = [row * 2 for row in x]
    except Exception:
        parts = [x]
    return parts[0]


@program(rows)
def caught_range(x):
    total = x.sum()
    try:
        for _ in range(x.shape[0]):
            total = total + 1
    except TypeError:
        total = total * 7
    return total


@program(rows)
def caught_hash(x):
    try:
        cached = {x.shape[0]: 1}
        n = len(cached)
    except Exception:
        n = 7
    return x * n


@program(rows)
def caught_unpacking(x):
    try:
        n, *rest = x.shape
    except Exception:
        n = 7
    return x * n


@program(rows)
def caught_attribute(x):
    try:
        y = x.no_such_method()
    except AttributeError:
        y = x * 7
    return y


@program(rows)
def caught_complex(x):
    try:
        z = complex(x.sum())
    except Exception:
        z = 7j
    return x * z.real


@program(rows)
def caught_round(x):
    try:
        n = round(x.shape[1] / 2)
    except TypeError:
        n = 7
    return x * n


@program(rows)
def caught_index(x):
    names = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    try:
        scale = names[x.shape[0]]
    except TypeError:
        scale = 70.0
    return x * scale


@program(rows)
def suppressed(x):
    y = x
    with contextlib.suppress(Exception):
        y = x * int(x.sum().item())
    return y


@program(rows)
def caught_numpy(x):
    try:
        y = torch.as_tensor(x.detach().numpy()) * 2
    except Exception:
        y = x * 7
    return y


@program(rows)
def caught_wrong_shape(x):
    try:
        return x.view(3, 5)
    except RuntimeError:
        return x * 7


@program(rows)
def caught_contains(x):
    try:
        found = 1.0 in x
    except Exception:
        found = False
    return x * 2 if found else x


@program(rows)
def finally_done(x):
    done = []
    try:
        y = x * 2
    finally:
        done.append(1)
    return y * len(done)


@program(rows)
def caught_setattr(x):
    try:
        x.note = 5
        y = x * 2
    except Exception:
        y = x * 7
    return y


@program(rows)
def caught_tolist(x):
    try:
        values = x.tolist()
        y = x * len(values)
    except Exception:
        y = x * 7
    return y


@program(rows)
def sorted_values(x):
    try:
        ordered = sorted([x.sum(), x.mean()])
    except Exception:
        ordered = [x, x]
    return ordered[0]
