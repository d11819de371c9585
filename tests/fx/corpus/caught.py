"""Programs that catch what capture says, and go another way."""

from __future__ import annotations

import contextlib
from contextlib import suppress as ignoring

import torch
from torch import nn

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


class _Quiet:
    """Swallows whatever is raised in its block."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        return True


class _QuietAbout(_Quiet):
    def __init__(self, *kinds):
        self.kinds = kinds

    def __exit__(self, kind, error, traceback):
        return kind is not None and issubclass(kind, self.kinds)


class _Noted(_Quiet):
    """Swallows nothing."""

    def __exit__(self, kind, error, traceback):
        self.done = kind is None


@contextlib.contextmanager
def _quietly(kind=Exception):
    try:
        yield
    except kind:
        pass


QUIET = _Quiet()


@program(rows)
def suppressed_range(x):
    n = 7
    with contextlib.suppress(TypeError):
        n = len(range(x.shape[0]))
    return x * n


@program(rows)
def suppressed_by_another_name(x):
    n = 7
    with ignoring(TypeError):
        n = len(range(x.shape[0]))
    return x * n


@program(rows)
def swallowed_by_class(x):
    n = 7
    with _Quiet():
        n = len(range(x.shape[0]))
    return x * n


@program(rows)
def swallowed_by_class_with_kinds(x):
    n = 7
    with _QuietAbout(TypeError):
        n = len(range(x.shape[0]))
    return x * n


@program(rows)
def swallowed_by_object(x):
    n = 7
    with QUIET:
        n = len(range(x.shape[0]))
    return x * n


@program(rows)
def swallowed_by_generator(x):
    n = 7
    with _quietly():
        n = len(range(x.shape[0]))
    return x * n


@program(rows)
def swallowed_in_stack(x):
    n = 7
    with contextlib.ExitStack() as stack:
        stack.enter_context(ignoring(TypeError))
        n = len(range(x.shape[0]))
    return x * n


@program(rows)
def swallowed_branch(x):
    with _Quiet():
        if x.sum() > 0:
            return x * 2
        return x * 3
    return x * 7


@program(rows)
def swallowed_wrong_shape(x):
    with _Quiet():
        return x.view(3, 5)
    return x * 7


@program(rows)
def generator_swallows_wrong_shape(x):
    with _quietly(RuntimeError):
        return x.view(3, 5)
    return x * 7


@program(rows)
def renamed_suppress_of_wrong_shape(x):
    with ignoring(RuntimeError):
        return x.view(3, 5)
    return x * 7


@program(rows)
def nothing_swallowed(x):
    with _Noted() as noted:
        y = x * 2
    return y * (2 if noted.done else 3)


@program(rows)
class SwallowedByAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.quiet = _Quiet()

    def forward(self, x):
        n = 7
        with self.quiet:
            n = len(range(x.shape[0]))
        return x * n


@program(rows)
class SwallowedByMethod(nn.Module):
    @contextlib.contextmanager
    def quietly(self):
        try:
            yield
        except TypeError:
            pass

    def forward(self, x):
        n = 7
        with self.quietly():
            n = len(range(x.shape[0]))
        return x * n
