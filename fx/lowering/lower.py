"""``lower``: replace the parts of a program that a backend supports by modules that it builds (paper, section 6.4)."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, overload

from torch import nn

from fx.argument_types import Bounds, Calls, Inputs, checked
from fx.arguments import shown
from fx.errors import LoweringError, LoweringWarning, type_in_words
from fx.graph_module import GraphModule
from fx.interpreter import positional
from fx.lowering.backend import Backend, get_backend, list_backends
from fx.lowering.choice import AUTO, Auto
from fx.lowering.coverage import Coverage
from fx.lowering.plan import Plan, make_plan
from fx.lowering.support import Veto
from fx.passes.machinery.regions import Region, Spelling
from fx.pipelines.contract import Contract, close
from fx.pipelines.registered_passes import register_pass

_MOST_REASONS = 4
"""The most lines of reasons in a warning."""


@overload
def lower(
    gm: GraphModule,
    backend: str | Backend | Auto = ...,
    example_inputs: Sequence[Any] | None = ...,
    *,
    on_failure: Literal["raise", "eager"] = ...,
    min_size: int | None = ...,
    veto: Veto = ...,
    dry_run: Literal[False] = ...,
) -> GraphModule: ...
@overload
def lower(
    gm: GraphModule,
    backend: str | Backend | Auto = ...,
    example_inputs: Sequence[Any] | None = ...,
    *,
    on_failure: Literal["raise", "eager"] = ...,
    min_size: int | None = ...,
    veto: Veto = ...,
    dry_run: Literal[True],
) -> Coverage: ...
@checked(LoweringError)
def lower(
    gm: GraphModule,
    backend: str | Backend | Auto = "onednn",
    example_inputs: Inputs | None = None,
    *,
    on_failure: Literal["raise", "eager"] = "raise",
    min_size: Annotated[int, Bounds(1)] | None = None,
    veto: Veto = (),
    dry_run: bool = False,
) -> GraphModule | Coverage:
    """Hand the parts of a program that a backend supports to that backend, and leave the rest in eager Python.

    The result is a new program in which each part is a submodule, ``onednn_0`` and so on, and the rest is unchanged.
    Its ``meta["lowering"]`` holds the :class:`Coverage`. ``gm`` is not changed. Its tensors are shared, not copied, as
    far as the backend allows. If there is nothing to lower, a :class:`~fx.errors.LoweringWarning` is issued and ``gm``
    itself is returned. The coverage is then in its ``meta``, unless that of an earlier lowering is there.

    Args:
        gm: the program.
        backend: a backend, or the name of one. ``"auto"`` measures all backends that are available, and takes the
            fastest that keeps the contract ``close``, or returns ``gm`` if none is faster (:class:`Auto` has options).
            The :class:`BackendChoice` is in ``meta["backend_choice"]`` of the result.
        example_inputs: a value for each input, as in a typical run. Shapes are propagated without computing values. If
            that fails, a copy of the program is run on the values to check that they fit. Without example inputs a
            backend takes only operations that it supports without knowing shapes.
        on_failure: for a part that cannot be built, ``"raise"`` an error, or leave it in ``"eager"`` Python and report
            that in the coverage.
        min_size: the least number of operations in a part, not counting those that only keep others together; the
            backend has a default.
        veto: operations to leave in eager Python: names of nodes and paths of modules around them. A function is called
            with each node of the canonical program instead, and returns true, or the reason, to leave it out.
        dry_run: return the coverage and build nothing; the backend need not be available.

    Raises:
        LoweringError: there is no such backend, or it is not available on this machine. The program cannot be run on
            ``example_inputs``; the message has the input that does not fit. A part cannot be built; the message has the
            operation, the user's line and the backend's reason.

    >>> import torch, fx
    >>> program = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval())
    >>> print(lower(program, dry_run=True))
    onednn takes 2 of 2 operations (100%)
      onednn_0 2 operations
    >>> print(lower(program).onednn_0.code.strip())
    def forward(self, input_1):
        _0 = getattr(self, "0")(input_1);  input_1 = None
        contiguous = _0.contiguous();  _0 = None
        return contiguous
    """
    options: dict[str, Any] = {"on_failure": on_failure, "min_size": min_size, "veto": veto}
    auto = Auto() if isinstance(backend, str) and backend == AUTO else backend
    if isinstance(auto, Auto):
        if dry_run:
            raise LoweringError("a dry run measures nothing, as backend='auto' has to", remedy="name a backend")
        return _lowered_to_fastest(gm, auto, example_inputs, **options)
    backend = auto
    if dry_run:
        return _planned(gm, backend, example_inputs, **options)[0].coverage
    lowered, coverage = _lowered(gm, backend, example_inputs, **options)
    if all(part.failure is not None for part in coverage.parts):
        warnings.warn(LoweringWarning(_nothing_lowered(coverage)), stacklevel=3)
    return lowered


def _nothing_lowered(coverage: Coverage) -> str:
    first, *reasons = str(coverage).splitlines()
    more = [] if len(reasons) <= _MOST_REASONS else [f"  and {len(reasons) - _MOST_REASONS} more"]
    return "\n".join([f"nothing was lowered: {first}", *reasons[:_MOST_REASONS], *more])


def _lowered(
    gm: GraphModule, backend: str | Backend, example_inputs: Sequence[Any] | None, **options: Any
) -> tuple[GraphModule, Coverage]:
    """Return the lowered program, or ``gm`` where there is nothing to lower, and the coverage."""
    plan, chosen = _planned(gm, backend, example_inputs, builds=True, **options)
    if plan.coverage.parts:
        program = _build(plan, chosen, options["on_failure"])
        return program, program.meta["lowering"]
    if not getattr(gm.meta.get("lowering"), "parts", ()):  # keep the coverage of an earlier lowering
        gm.meta["lowering"] = plan.coverage
    return gm, plan.coverage


def _lowered_to_fastest(
    gm: GraphModule, auto: Auto, example_inputs: Sequence[Any] | None, **options: Any
) -> GraphModule:
    """Return the program lowered to the backend that is the fastest here, or ``gm`` if none is faster."""
    if example_inputs is None:
        raise LoweringError(
            "backend='auto' measures the program, for which it needs inputs",
            remedy="pass example_inputs=, the arguments of a typical call",
        )
    lowered, choice = auto.choose(
        gm, example_inputs, lambda name: _lowered(gm, name, example_inputs, **options)[0], options
    )
    lowered.meta["backend_choice"] = choice
    if lowered is not gm:
        coverage: Coverage = lowered.meta["lowering"]
        lowered.meta["lowering"] = dataclasses.replace(coverage, notes=(*coverage.notes, str(choice)))
    elif not getattr(gm.meta.get("lowering"), "parts", ()):  # keep the coverage of an earlier lowering
        lowered.meta["lowering"] = Coverage(AUTO, (), (), (str(choice),))
    return lowered


def _planned(
    gm: GraphModule,
    backend: str | Backend,
    example_inputs: Sequence[Any] | None,
    *,
    on_failure: str,
    min_size: int | None,
    veto: Veto,
    builds: bool = False,
) -> tuple[Plan, Backend]:
    """Return the plan and the backend; a backend that ``builds`` must be available on this machine."""
    chosen = get_backend(backend) if isinstance(backend, str) else backend
    if builds and (why := chosen.why_unavailable()) is not None:
        raise LoweringError(
            f"the backend {chosen.name!r} is not available here",
            why=why,
            remedy="dry_run=True shows what it would take, without the backend",
        )
    return make_plan(gm, chosen, example_inputs, min_size, veto), chosen


def _build(plan: Plan, backend: Backend, on_failure: str) -> GraphModule:
    """Build each region and put it in its place."""
    regions = plan.regions
    program = regions.build(regions.in_program_order(-1), Spelling())
    failures: dict[str, str] = {}
    notes: dict[str, str | None] = {}
    for region in regions.regions:
        submodule = program.get_submodule(region.name)
        assert isinstance(submodule, GraphModule)
        try:
            built: Any = backend.build(submodule)
            if not isinstance(built, nn.Module):
                kind = type_in_words(built)
                what = f"the backend {backend.name!r} returned {kind} in the place of a region, not a module"
                raise LoweringError(what, value=shown(built))
            program.add_submodule(region.name, built)
            notes[region.name] = backend.describe(built)
        except Exception as error:
            if on_failure == "eager":
                failures[region.name] = str(error) or type(error).__name__
            elif isinstance(error, LoweringError):
                raise
            else:
                raise _failure(error, region, backend) from error
    parts = [
        dataclasses.replace(part, failure=failures.get(part.name), note=notes.get(part.name))
        for part in plan.coverage.parts
    ]
    program.meta["lowering"] = dataclasses.replace(plan.coverage, parts=tuple(parts))
    program.recompile()
    return program


def _failure(error: Exception, region: Region, backend: Backend) -> LoweringError:
    first = next(node for node in region.nodes if node.op != "get_attr")
    operations = sum(node.op != "get_attr" for node in region.nodes)
    return LoweringError(
        f"the backend {backend.name!r} cannot build {region.name}, {operations} operations from `%{first}` on",
        where=first.source,
        why=f"{type(error).__name__}: {error}",
        remedy='exclude operations with veto=…, or keep failing regions in eager Python with on_failure="eager"',
    )


@register_pass
@dataclass(frozen=True, slots=True)
class Lower:
    """Hand the operations that a backend supports to that backend: ``lower{backend=onednn}``.

    Shapes come from the pass's data, such as the plugin provides, or from an earlier ``ShapeProp``. Everything else is
    as in ``fx.lower``.
    """

    backend: str = "onednn"
    """The name of the backend, or ``auto`` for the fastest one here."""
    on_failure: Literal["raise", "eager"] = "raise"
    """The fate of a part that cannot be built: an error, or eager Python."""
    min_size: int | None = None
    """The least number of operations that count in a part; the backend has a default."""
    veto: tuple[str, ...] = ()
    """Names of nodes and paths of modules that stay in eager Python."""
    emulate: bool = False
    """Whether PyTorch computes the regions as the device would, which the backend ``tensorrt`` offers."""
    choices: str | None = None
    """A file that keeps the choices of ``backend=auto`` for later processes."""
    data: tuple[tuple[tuple[Any, ...], Mapping[str, Any]], ...] = dataclasses.field(default=(), init=False, repr=False)
    """Positional and keyword arguments of a typical call, at most one."""

    name: ClassVar[str] = "lower"
    contract: ClassVar[Contract] = close

    @checked(LoweringError)
    def with_data(self, data: Calls) -> Lower:
        """Return this pass with the first of ``data``, the arguments of a call, as example inputs."""
        copied = dataclasses.replace(self)
        object.__setattr__(copied, "data", tuple(data[:1]))
        return copied

    @property
    def label(self) -> str:
        """Its name in tables, which says when no device ran."""
        return f"{self.name}, emulated" if self.emulate else self.name

    @property
    def may_change(self) -> tuple[str, ...]:
        """The properties that may change: gradients, since weights become constants, and what the backend says."""
        backends = self._chosen()
        holds = {
            "non-finite": all(backend.keeps_non_finite for backend in backends),
            "sizes": all(backend.takes_other_sizes for backend in backends),
        }
        return ("gradients", *(name for name in holds if not holds[name]))

    def why_unavailable(self) -> str | None:
        """Return why the backend cannot build on this machine, such as a missing package; ``None`` if it can.

        Raises:
            LoweringError: there is no such backend.
        """
        reasons = [backend.why_unavailable() for backend in self._chosen()]
        return None if None in reasons else "; ".join(reason for reason in reasons if reason is not None)

    def _chosen(self) -> list[Backend]:
        """Return the backend, or all that may become it."""
        if self.backend == AUTO and not self.emulate:
            return [get_backend(name) for name in list_backends()]
        backend = get_backend(self.backend)
        if not self.emulate:
            return [backend]
        emulated = backend.emulated()
        if emulated is None:
            raise LoweringError(
                f"the backend {self.backend!r} has no emulation", remedy="leave out emulate, or set backend=tensorrt"
            )
        return [emulated]

    def __call__(self, graph_module: GraphModule) -> GraphModule:
        """Return the lowered program, or, without a warning, ``graph_module`` itself if there is nothing to lower.

        Raises:
            LoweringError: as ``fx.lower``.
        """
        inputs = positional(graph_module, *self.data[0]) if self.data else None
        options: dict[str, Any] = {"on_failure": self.on_failure, "min_size": self.min_size, "veto": self.veto}
        if self.backend == AUTO and not self.emulate:
            return _lowered_to_fastest(graph_module, Auto(file=self.choices), inputs, **options)
        return _lowered(graph_module, self._chosen()[0], inputs, **options)[0]
