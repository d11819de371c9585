"""Rows of Python around operations: functions of functions, numbers of tensors, and what a program may do in Python."""

from __future__ import annotations

import itertools

from pytest_fx.generation.operands import FLOAT, MATRICES
from pytest_fx.generation.productions import row
from pytest_fx.generation.state_rows import IN_PLACE

BODIES = (
    "t.sin() * t",
    "t.clone().cumsum(0)",
    "(u := t.clone(), u[..., :1].add_(t[..., -1:].abs()), u)[-1]",
    "(u := torch.zeros_like(t), u[:1].copy_(t[-1:] * t[:1]), u)[-1]",
    "t.relu().detach() * t",
)
"""Functions of a tensor ``t``. Some write to a tensor of their own."""
CALLERS = (
    "torch.func.grad(lambda t: ({body}).sum())({{0}})",
    "torch.vmap(lambda t: {body})({{0}})",
    "torch.func.vjp(lambda t: {body}, {{0}})[1]({{0}})[0]",
    "torch.func.jvp(lambda t: {body}, ({{0}},), ({{0}},))[1]",
    "torch.utils.checkpoint.checkpoint(lambda t: {body}, {{0}}, use_reentrant=False)",
    "torch.enable_grad()(lambda t: torch.autograd.grad(({body}).sum(), t, create_graph=True)[0])"
    "({{0}}.detach().requires_grad_())",
)
"""Functions that call or differentiate another one."""
NUMBERS = ("round({n}, -1)", "round({n} * 7, -1)", "-{n} // 2", "-{n} % 3", "divmod({n}, 2)[1]", "abs(1 - {n})",
           "{n} ** -1", "(-2) ** {n}", "max({n}, 3)", "{n} << 1", "math.ceil({n} / 2)", "math.sqrt({n})",
           "int({n} * 0.7)", "{n} > 2", "{n} // -2", "min({n}, 3) & 2", "float({n}) / 3", "bool({n} - 1)")  # fmt: skip
"""Numbers computed in Python of a size ``n``."""
CONSTRUCTS = (
    "(lambda y: (y.extend(y[-1] + 2 for _ in range(2)), torch.stack(y))[-1])([{0}])",
    "sum(t * 2 for t in ({0}, {0}))",
    "[*map(lambda t, k=2: t * k, [{0}, {0}.sin()])][-1]",
    "(lambda log: (type('Helper', (), {{'touch': lambda helper: log.append(1)}})().touch(), {0} * len(log))[-1])([])",
    "(lambda log: ([log.update({{k: log.get(k, 0) + 1}}) for k in 'aab'], {0} * log['a'])[-1])({{}})",
    "(lambda *parts, scale=3: torch.cat(parts) * scale)(*{0}.flatten().split(2))",
    "{{'b': {0} * 2, 'a': {0} + 1}}[min('ba')]",
    "next(t for t in ({0}, {0} + 1) if t.dim() > 0)",
    "(lambda f: f(f, {0}, 3))(lambda f, t, n: t if n == 0 else f(f, t * 0.5, n - 1))",
    "[t * k for k, t in enumerate(sorted([{0}, {0}[:1]], key=len), 1)][0]",
    "setattr(calls := type('Calls', (), {{}})(), 'last', {0} * 2) or calls.last",
)
"""Constructs of Python."""
_OF_VALUES = "{0} * {0}.detach().argmax().item(); {0}[: 1 + int({0}.sum() > 0)]; {0} + float({0}.detach().mean())"

PYTHON = (
    *(row("; ".join(caller.format(body=body) for caller in CALLERS), MATRICES) for body in BODIES),
    *(row(f"{{0}} * {text.format(n='{0}.shape[0]')}; {{0}} + {text.format(n='{0}.numel()')}", MATRICES)
      for text in NUMBERS[::2]),
    *(row(f"{{0}} * {text.format(n='{0}.shape[-1]')}; {{0}}.new_full((2,), {text.format(n='{0}.size(0)')})", MATRICES)
      for text in NUMBERS[1::2]),
    *itertools.repeat(row("; ".join(CONSTRUCTS).replace("{{", "{").replace("}}", "}"), MATRICES), len(CONSTRUCTS)),
    row(_OF_VALUES, MATRICES),
    row("{0}.detach_()", FLOAT, IN_PLACE),
)  # fmt: skip
"""Rows for compilers that read Python."""
