"""One program, what a pass makes of it, and what both compute: all that laws are about, each worked out when asked."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from fx import Node
from fx.errors import FxError, PassError
from fx.passes import Contract, Pass, contract_of, pass_name
from fx.passes.pipeline import PassPipeline
from fx.printing import describe
from fx.provenance import SourceLocation, record_origins
from pytest_fx.comparison.capture import GraphModule, capture
from pytest_fx.comparison.evaluation import Arguments, default_dtype
from pytest_fx.comparison.rewriting import with_data
from pytest_fx.comparison.state import same_tensor, tensors_of

from .deadline import TookTooLong, Watchdog
from .layouts import LayoutIndependent
from .runs import SEED, Run, Runner
from .settings import settings_of
from .variants import VARIANTS

MARK = "kept by passes"
"""A key of ``node.meta`` that every node has before the pass, as if an analysis had written it."""
LARGEST_TIME = 10.0
"""Seconds that a pass may take on one program."""


class Checked(Protocol):
    """A program to try a pass on; :class:`pytest_fx.generation.Program` is one."""

    @property
    def source(self) -> str:
        """Text that defines ``build()`` and ``inputs()``."""
        ...

    @property
    def inputs(self) -> Arguments:
        """What it is called with."""
        ...

    def build(self) -> nn.Module:
        """Return a new module."""
        ...


@dataclass(frozen=True, slots=True)
class GivenProgram:
    """A program that somebody wrote."""

    build: Callable[[], nn.Module]
    """Makes the module."""
    inputs: Arguments
    """What it is called with."""
    source: str = ""
    """Its text, where that is known."""


@dataclass(frozen=True, slots=True)
class Before:
    """The captured program as it was before the pass, which may have edited it since."""

    code: str
    """Its generated code."""
    layers: dict[str, tuple[Any, ...]]
    """The settings of the modules that it calls."""
    nodes: dict[str, tuple[str, SourceLocation | None]]
    """Each node printed, and the user's line of it, by name."""
    inputs: tuple[tuple[str, str], ...]
    """The placeholders' targets with their defaults, written as Python."""
    modules: dict[str, tuple[Any, ...]]
    """The settings of the modules of the one that was captured."""
    tensors: dict[str, tuple[torch.Tensor, torch.Tensor, bool]]
    """Each of its parameters and buffers, with a copy, and whether it requires a gradient."""
    constants: frozenset[str]
    """Tensors that the captured program holds beside them, such as those that ``forward`` makes."""


class Example:
    """A pass applied to one program.

    Laws read it; :func:`pytest_fx.check_program` makes it.
    """

    def __init__(
        self,
        pass_: Pass,
        program: Checked,
        *,
        mode: str = "eval",
        contract: Contract | None = None,
        watchdog: Watchdog | None = None,
        seconds: float = LARGEST_TIME,
    ) -> None:
        """Apply ``pass_`` to a capture of ``program``.

        Args:
            pass_: the pass.
            program: the program.
            mode: ``"eval"`` or ``"train"``.
            contract: what the pass is held to; None for its own.
            watchdog: ends it when its time is over; None for no limit.
            seconds: how long it may take.

        Raises:
            TraceError: the program cannot be captured.
        """
        self.pass_ = pass_
        self.name = pass_name(pass_)
        self.program = program
        self.mode = mode
        self.contract = contract_of(pass_) if contract is None else contract
        self.seconds = seconds
        self._watchdog = watchdog
        self.module = self._built()
        self.reference = copy.deepcopy(self.module)
        self.dtype = torch.get_default_dtype()
        """The default dtype under which the program runs."""
        self.captured = self._capture(self.module)
        self.before = _before(self.captured, self.module)
        self.result: Any = None
        """Whatever the pass returned; the captured program if that was None."""
        self.error: Exception | None = None
        """What the pass raised, a refusal aside."""
        self.refusal: PassError | None = None
        """The :class:`~fx.errors.PassError` with which it refused the program."""
        self.too_long: TookTooLong | None = None
        """Where it was when its time was over."""
        self.seconds_taken = 0.0
        self._apply()
        self.damage = _damage(self.before, self.module)
        """What it did to the module that was captured, in words."""
        self._cache: dict[Any, Any] = {}
        self._layout_independent = False

    @property
    def after(self) -> GraphModule | None:
        """What the pass made, or None if it made no program."""
        return self.result if isinstance(self.result, GraphModule) else None

    @property
    def changed(self) -> bool:
        """Whether what the pass made is written otherwise, or holds other modules or values, than before."""
        return self._once("changed", self._is_changed)

    @property
    def written(self) -> str:
        """The code of the graph that the pass left, whether or not that is what the program runs."""
        after = self.after
        assert after is not None, "the pass made no program"
        return self._once("written", lambda: after.graph.python_code("self").src)

    def _is_changed(self) -> bool:
        after = self.after
        if after is None:
            return False
        if self.written != self.before.code or _layers(after) != self.before.layers:
            return True
        return any(
            name not in self.before.tensors
            or not same_tensor(tensor, self.before.tensors[name][1])
            or tensor.requires_grad != self.before.tensors[name][2]
            for name, tensor in tensors_of(after).items()
            if name not in self.before.constants
        )

    def eager(self, variant: str = "inputs", wide: bool = False) -> Run:
        """Return what the module itself does with its inputs, or a variant of them; in float64 if ``wide``."""
        return self._run("eager", variant, wide)

    def actual(self, variant: str = "inputs", wide: bool = False) -> Run:
        """Return what the transformed program does with them."""
        return self._run("actual", variant, wide)

    def arguments(self, variant: str = "inputs", wide: bool = False) -> Arguments | None:
        """Return the inputs, or a variant of them; None if these inputs have no such variant."""
        return self._once(("arguments", variant, wide), lambda: self._arguments(variant, wide))

    def _arguments(self, variant: str, wide: bool) -> Arguments | None:
        if wide:
            narrow = self.arguments(variant)
            return None if narrow is None else narrow.copies(torch.float64)
        return VARIANTS[variant](self.program.inputs)

    @property
    def has_float64(self) -> bool:
        """Whether there is a float64 version of the program that is another one, and of what the pass makes of it."""
        return self.wide_reference is not None and self.wide_after is not None and self.eager(wide=True).error is None

    @property
    def wide_reference(self) -> nn.Module | None:
        """The module in float64, or None if it is in float64 already."""
        return self._once("wide reference", self._wide_reference)

    def _wide_reference(self) -> nn.Module | None:
        tensors = (*tensors_of(self.reference).values(), *self.program.inputs.tensors)
        if any(tensor.is_floating_point() and tensor.dtype != torch.float64 for tensor in tensors):
            with default_dtype(torch.float64):
                return copy.deepcopy(self.reference).double()
        return None

    @property
    def wide_after(self) -> GraphModule | None:
        """What the pass makes of the program in float64, or None if it makes nothing of it."""
        reference = self.wide_reference
        return None if reference is None else self._once("wide after", lambda: self._transformed_wide(reference))

    def _transformed_wide(self, reference: nn.Module) -> GraphModule | None:
        try:
            return self.transform(copy.deepcopy(reference), torch.float64)
        except (Exception, TookTooLong):
            return None

    def transform(self, module: nn.Module, dtype: torch.dtype | None = None) -> GraphModule | None:
        """Return what the pass makes of ``module``, None if that is no program, or raise what the pass raises."""
        with default_dtype(dtype or self.dtype), self._limit():
            captured = self._capture(module)
            record_origins(captured.graph)
            result: Any = self._pass_for(dtype)(captured)
        result = captured if result is None else result
        return result if isinstance(result, GraphModule) else None

    def equal_module(self) -> nn.Module | None:
        """A module that is equal to the one that was captured, in how its tensors lie in memory, too.

        None where there is none: copies of tensors with gaps in memory have none, and not everybody's ``build()``
        makes the same module again. What is computed of tensors that lie otherwise can have other last bits.
        """
        for make in (self._built, lambda: copy.deepcopy(self.reference)):
            module = make()
            held = tensors_of(module)
            if held.keys() == self.before.tensors.keys() and all(
                same_tensor(held[name], copied) and held[name].stride() == tensor.stride()
                for name, (tensor, copied, _) in self.before.tensors.items()
            ):
                return module
        return None

    def _built(self) -> nn.Module:
        return self.program.build().train(self.mode == "train")

    def runner(self, which: str, wide: bool = False) -> Runner:
        """Return what calls the module (``"eager"``) or the transformed program (``"actual"``)."""
        reference, after = (self.wide_reference, self.wide_after) if wide else (self.reference, self.after)
        program = reference if which == "eager" else after
        assert program is not None, "asked for a program that there is not"
        return self._once((which, wide), lambda: Runner(program))

    def capture(self, wide: bool = False) -> GraphModule:
        """Return a new capture of the module that no pass has seen."""
        with default_dtype(torch.float64 if wide else self.dtype):
            return self._capture(copy.deepcopy(self.wide_reference if wide else self.reference))

    def _run(self, which: str, variant: str, wide: bool) -> Run:
        arguments = self.arguments(variant, wide)
        assert arguments is not None, "asked for a variant that there is not"
        dtype = torch.float64 if wide else self.dtype
        key = (which, variant, wide, self._layout_independent)
        return self._once(key, lambda: self.runner(which, wide)(arguments, dtype))

    @contextmanager
    def layout_independent(self) -> Generator[None]:
        """Inside the block, let runs and gradients depend less on how values lie in memory than they do otherwise."""
        self._layout_independent = True
        try:
            with LayoutIndependent():
                yield
        finally:
            self._layout_independent = False

    def _once(self, key: Any, compute: Callable[[], Any]) -> Any:
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]

    @property
    def names(self) -> dict[str, str]:
        """The name in the captured module of each parameter and buffer of the program, wherever the pass put it."""
        return self._once("names", self._names)

    def _names(self) -> dict[str, str]:
        assert self.after is not None, "the pass made no program"
        known = {id(tensor): name for name, (tensor, _, _) in self.before.tensors.items()}
        return {name: known.get(id(tensor), name) for name, tensor in tensors_of(self.after).items()}

    def _capture(self, module: Any) -> GraphModule:
        torch.default_generator.manual_seed(SEED)  # as for calls: what is computed while capturing becomes a constant
        return capture(module, self.program.inputs)

    def _limit(self) -> AbstractContextManager[None]:
        return nullcontext() if self._watchdog is None else self._watchdog.limit(self.seconds)

    def _pass_for(self, dtype: torch.dtype | None = None) -> Any:
        """The pass, with inputs of the program, in ``dtype`` if given, where it asks for data."""
        return with_data(self.pass_, lambda: [self.program.inputs.copies(dtype)])

    def _apply(self) -> None:
        started = time.perf_counter()
        try:
            with self._limit(), warnings.catch_warnings():
                result: Any = self._pass_for()(self.captured)
            self.result = self.captured if result is None else result
        except TookTooLong as error:
            self.too_long = error
        except PassError as error:
            if _is_refusal(self.pass_, error):
                self.refusal = error
            else:
                self.error = error
        except Exception as error:
            self.error = error
        self.seconds_taken = time.perf_counter() - started


def _is_refusal(pass_: Pass, error: PassError) -> bool:
    """Whether a pass refuses with ``error``. A pipeline also raises where a pass of its broke a rule or raised."""
    if isinstance(pass_, PassPipeline):
        return isinstance(error.__cause__, PassError)
    return error.__cause__ is None or isinstance(error.__cause__, FxError)


def _before(captured: GraphModule, module: nn.Module) -> Before:
    record_origins(captured.graph)
    for node in captured.graph.nodes:
        node.meta[MARK] = node.name
    return Before(
        captured.code,
        _layers(captured),
        {node.name: (describe(node), node.source) for node in captured.graph.nodes},
        inputs_of(captured),
        settings_of(module),
        {name: (held, held.detach().clone(), held.requires_grad) for name, held in tensors_of(module).items()},
        frozenset(tensors_of(captured).keys() - tensors_of(module).keys()),
    )


def _layers(program: GraphModule) -> dict[str, tuple[Any, ...]]:
    """The settings of the modules of a program, but its own: of these there is only the mode."""
    return {**settings_of(program), "": (program.training,)}


def inputs_of(program: GraphModule) -> tuple[tuple[str, str], ...]:
    """Return the targets of the placeholders with their defaults, written as Python."""
    placeholders: list[Node] = program.graph.find_nodes(op="placeholder")
    return tuple((str(node.target), ", ".join(map(repr, node.args))) for node in placeholders)


def _damage(before: Before, module: nn.Module) -> str | None:
    """What happened to the module since ``before``, in words."""
    now = tensors_of(module)
    for name, (tensor, copied, requires_grad) in before.tensors.items():
        if now.get(name) is not tensor:
            return f"{name} is {'another tensor' if name in now else 'gone'}"
        if not same_tensor(tensor, copied):
            return f"the tensor {name} was written to"
        if tensor.requires_grad != requires_grad:
            return f"{name} {'requires' if tensor.requires_grad else 'no longer requires'} a gradient"
    if len(now) > len(before.tensors):
        return f"it has a new tensor {next(name for name in now if name not in before.tensors)}"
    modules = settings_of(module)
    for name in {**before.modules, **modules}:
        if modules.get(name) != before.modules.get(name):
            return f"{name or 'the module itself'} has other settings, hooks or another mode, or is another module"
    return None
