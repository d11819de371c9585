"""Laws that every pass must keep on every program, each one a function that can be switched off or demanded by name.

A law takes an :class:`Example`, a pass applied to one program, and raises :class:`LawViolation` if the pass breaks it
there. :func:`pytest_fx.check_pass` looks for programs on which one does.

>>> for law in TABLE[:3]:
...     print(f"{law.name}: {law.summary}")
terminates: The pass comes to an end, on each program within ten seconds or what ``seconds`` says.
refusal: A program that the pass cannot take is refused by a ``PassError``, never by another exception.
returns a program: The pass returns a ``GraphModule``, or nothing where it edited the one that it was given.
"""

from __future__ import annotations

from collections.abc import Iterable

from fx.registry import Registry
from pytest_fx.errors import LoadError

from .answers import (
    aliasing,
    batch_sizes,
    contract,
    dtype,
    inputs_untouched,
    non_contiguous_inputs,
    non_finite_inputs,
    state,
    structure,
)
from .example import Checked, Example
from .form import (
    code_and_graph_agree,
    metadata_kept,
    mode,
    original_untouched,
    refusal,
    returns_a_program,
    signature,
    terminates,
    well_formed,
)
from .gradients import gradients
from .law import Check, Law, LawViolation
from .repetition import deterministic, idempotent, retraceable, round_trips, shrinks_the_graph

__all__ = [
    "TABLE",
    "Check",
    "Checked",
    "Example",
    "Law",
    "LawViolation",
    "aliasing",
    "batch_sizes",
    "choose_laws",
    "code_and_graph_agree",
    "contract",
    "deterministic",
    "dtype",
    "gradients",
    "idempotent",
    "inputs_untouched",
    "metadata_kept",
    "mode",
    "non_contiguous_inputs",
    "non_finite_inputs",
    "original_untouched",
    "refusal",
    "retraceable",
    "returns_a_program",
    "round_trips",
    "shrinks_the_graph",
    "signature",
    "state",
    "structure",
    "terminates",
    "well_formed",
]

TABLE: tuple[Law, ...] = (
    Law("terminates", terminates, when_unchanged=True),
    Law("refusal", refusal, when_unchanged=True),
    Law("returns a program", returns_a_program, when_unchanged=True),
    Law("original untouched", original_untouched, when_unchanged=True),
    Law("well formed", well_formed, when_unchanged=True),
    Law("code and graph agree", code_and_graph_agree, when_unchanged=True),
    Law("signature", signature, when_unchanged=True, may_change="signature"),
    Law("mode", mode, when_unchanged=True),
    Law("structure", structure, may_change="result"),
    Law("dtype", dtype, may_change="result"),
    Law("contract", contract),
    Law("inputs untouched", inputs_untouched, may_change="writes"),
    Law("state", state, may_change="writes"),
    Law("aliasing", aliasing),
    Law("gradients", gradients, may_change="gradients"),
    Law("batch sizes", batch_sizes),
    Law("non-contiguous inputs", non_contiguous_inputs),
    Law("non-finite inputs", non_finite_inputs),
    Law("deterministic", deterministic),
    Law("metadata kept", metadata_kept, when_unchanged=True, may_change="metadata"),
    Law("retraceable", retraceable, "sampled"),
    Law("round trips", round_trips, "sampled"),
    Law("idempotent", idempotent, "demanded"),
    Law("shrinks the graph", shrinks_the_graph, "demanded"),
)
"""All laws, in the order in which they are checked: what is cheap and what explains most comes first."""


def choose_laws(
    without: Iterable[str] = (), demand: Iterable[str | Law] = (), may_change: Iterable[str] = ()
) -> list[Law]:
    """Return the laws to check, in order.

    Args:
        without: names of laws to leave out.
        demand: names of laws to check on every program, and laws that are not of the table.
        may_change: what the pass says that it changes on purpose.

    Raises:
        LoadError: no law has such a name; the message has the nearest ones.
    """
    known: Registry[Law] = Registry("law", "laws", LoadError)
    for law in TABLE:
        known.register(law.name, law)
    demand, excused = list(demand), {*may_change}
    own = [each for each in demand if isinstance(each, Law)]
    wanted = {known.get(name).name for name in demand if isinstance(name, str)}
    off = {known.get(name).name for name in without}
    chosen = [
        law
        for law in TABLE
        if law.name in wanted or (law.kind != "demanded" and law.name not in off and law.may_change not in excused)
    ]
    return [*chosen, *own]
