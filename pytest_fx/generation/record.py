"""A drawn program: its source, and the module and the inputs that the source builds."""

from __future__ import annotations

import ast
import itertools
import linecache
import traceback
import warnings
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import fx
from pytest_fx.generation.tensor_expressions import TensorRecipe
from pytest_fx.harness.domains import InputDomain
from pytest_fx.harness.evaluation import Arguments

_FILE = "<program"
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Input:
    """A parameter of a program's ``forward``, and its value in a call."""

    name: str
    """The name of the parameter."""
    value: TensorRecipe | str
    """The tensor, or the expression of another value."""
    default: str | None = None
    """The expression of its default value, if it has one."""
    keyword: bool = False
    """True if it is passed by keyword; then it may come after a star."""
    passed: bool = True
    """False if the default is used."""

    def text(self, batch: tuple[int, int] | None = None) -> str:
        """Return the value's expression; with ``batch = (old, new)``, a first dimension of ``old`` becomes ``new``."""
        if isinstance(self.value, str):
            return self.value
        value = self.value
        if batch is not None and len(value.shape) > 1 and value.shape[0] == batch[0]:
            value = value.with_batch(batch[1])
        return value.text


@dataclass(frozen=True, slots=True, repr=False)
class Program:
    """A random program: a module, its inputs, and the text that defines both.

    Made by :func:`pytest_fx.generation.programs`.
    """

    source: str
    """Self-contained Python text that defines the class ``Program``, ``build()`` and ``inputs()``."""
    module: nn.Module = field(compare=False)
    """The module that ``build()`` made, in evaluation mode."""
    inputs: Arguments = field(compare=False)
    """The arguments of a call; treat the tensors as constants, and pass ``inputs.copies()``."""
    features: frozenset[str]
    """Its features, such as ``"shared-module"``, ``"in-place"``, ``"view"``, ``"random"``, ``"non-finite"``."""
    parameters: tuple[Input, ...]
    """The parameters of ``forward`` with their values."""
    batch: int
    """The size of the first dimension of inputs, which is usually free."""
    namespace: dict[str, Any] = field(compare=False)
    """The names that the source defines."""
    domain: InputDomain | None = field(default=None, compare=False)
    """The domain of the inputs, as far as the source declares it; None for all values."""

    @property
    def uses_random(self) -> bool:
        """Return whether it draws random numbers in evaluation mode: compare runs of it from the same seed."""
        return "random" in self.features

    @property
    def concrete_args(self) -> dict[str, Any]:
        """The arguments for ``symbolic_trace``: which of the optional inputs are None, and which are present."""
        optional = [part for part in self.parameters if part.default == "None"]
        return {part.name: fx.PH if part.passed else None for part in optional}

    def build(self) -> nn.Module:
        """Return a new module, equal to ``module``. The global random state is left alone."""
        return _built(self.namespace["build"])

    def inputs_at(self, batch: int) -> Arguments | None:
        """Return inputs with another batch size, or None if the program does not accept them."""
        passed = [parameter for parameter in self.parameters if parameter.passed]
        sizes = (self.batch, batch)
        args = tuple(eval(part.text(sizes), self.namespace) for part in passed if not part.keyword)
        kwargs = {part.name: eval(part.text(sizes), self.namespace) for part in passed if part.keyword}
        arguments = Arguments(args, kwargs)
        if not any(
            now.shape != before.shape for now, before in zip(arguments.tensors, self.inputs.tensors, strict=True)
        ):
            return None
        return arguments if self.takes(arguments) else None

    def takes(self, arguments: Arguments) -> bool:
        """Return whether a new module accepts copies of ``arguments``; eager may raise anything otherwise."""
        copies = arguments.copies()
        try:
            self.build()(*copies.args, **copies.kwargs)
        except Exception:
            return False
        return True

    def __repr__(self) -> str:
        return f"Program:\n{self.source}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the source: Hypothesis asks for this when it shows an example."""
        printer.text(repr(self))


def load(source: str, features: frozenset[str], parameters: tuple[Input, ...], batch: int) -> Program:
    """Run the text of a program, and return the program that it defines. Tracebacks show its lines."""
    file = f"{_FILE} {next(_numbers)}>"
    namespace: dict[str, Any] = {"__name__": "random_program"}
    exec(compile(source, file, "exec"), namespace)
    del namespace["__name__"]  # of no module that Dynamo could import where it inlines a method
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    weakref.finalize(namespace["Program"], linecache.cache.pop, file, None)
    args, kwargs = namespace["inputs"]()
    module, domain = _built(namespace["build"]), _declared_domain(source, namespace)
    return Program(source, module, Arguments(args, kwargs), features, parameters, batch, namespace, domain)


def _declared_domain(source: str, namespace: dict[str, Any]) -> InputDomain | None:
    """Return the domain that ``inputs()`` declares by calls of ``in_domain`` for its positional arguments."""
    if "in_domain(" not in source:
        return None
    domains: dict[int, Any] = {}
    for function in ast.walk(ast.parse(source)):
        match function:
            case ast.FunctionDef(
                name="inputs", body=[*_, ast.Return(value=ast.Tuple(elts=[ast.Tuple(elts=arguments), _]))]
            ):
                for position, argument in enumerate(arguments):
                    match argument:
                        case ast.Call(func=ast.Name(id="in_domain"), args=[domain, _]):
                            domains[position] = eval(ast.unparse(domain), namespace)
                        case _:
                            pass
            case _:
                pass
    return InputDomain.of(domains) if domains else None


def is_raised_by_program(error: BaseException) -> bool:
    """Return whether an error was raised by a line of a loaded program, or in a call from one."""
    return any(frame.f_code.co_filename.startswith(_FILE) for frame, _ in traceback.walk_tb(error.__traceback__))


@contextmanager
def seeded() -> Generator[None]:
    """Draw the same random numbers inside the block each time, and leave the global random state alone.

    Programs run on the CPU, so one generator is enough; ``torch.manual_seed`` seeds those of all devices, which takes
    longer than to build a program.
    """
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(0)
    try:
        yield
    finally:
        generator.set_state(state)


@contextmanager
def noted_warnings() -> Generator[list[Any]]:
    """Record all warnings of torch inside the block, including those given only once, and print none of them.

    If warnings were errors, those that come with another error would be printed.
    """
    before = torch.is_warn_always_enabled()
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor, ")  # deprecated, but old passes look for it
        torch.set_warn_always(True)
        try:
            yield noted
        finally:
            torch.set_warn_always(before)


def _built(build: Callable[[], nn.Module]) -> nn.Module:
    with seeded():
        return build()
