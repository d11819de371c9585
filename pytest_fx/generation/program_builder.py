"""``ProgramBuilder``: a program that is being generated: its values, its lines, and the lines of its ``__init__``."""

from __future__ import annotations

import contextlib
import itertools
import keyword
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from fx import Graph, GraphModule
from fx.node import OPCODES
from pytest_fx.generation import productions
from pytest_fx.generation.productions import (
    MODULE,
    OMITTED,
    Argument,
    Choices,
    NewTensor,
    Operand,
    Production,
    Verbatim,
    compiled,
    fill,
    is_statement,
    written,
)
from pytest_fx.generation.record import Input
from pytest_fx.generation.tensor_expressions import TensorRecipe, draw_tensor
from pytest_fx.generation.unnamed_arguments import further_arguments
from pytest_fx.harness.snapshot import overlaps

MOST_ELEMENTS = 1500
MOST_INPUTS = 4
LARGEST = 1e4
FURTHER = 6
"""In one of so many lines an operation gets arguments beyond those of its row."""
UNCAPTURED = {"in-place", "random", "dropout", "nested-module"}
"""Tags of operations that must not run while a program is captured."""
TREATED = 20
"""One of so many modules gets a treatment that its class does not show."""
_TREATMENTS = (
    ("frozen", "{}.requires_grad_(False)"),
    ("zeros", "{}.weight.data[0] = 0"),
    ("zeros", "{}.weight.data[-1:] = 0"),
    ("hook", "{}.register_forward_hook(lambda module, inputs, result: result * 2)"),
    ("hook", "{}.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2, *inputs[1:]))"),
)
"""The feature of a treatment, and its line in ``__init__``."""
MAY_SHARE = {"view", "cast", "copy", "nested-module"}
"""Tags of operations that may return the memory of an operand, depending on its layout."""
_EMPTY = GraphModule({}, Graph())
"""A module with the attributes that no other module may be named after."""
CONSTANTS = (torch.Tensor, nn.Parameter, int, bool, float, tuple, list, torch.Size)
"""Types of values computed while a program is captured; its result keeps no others."""


def _names() -> Iterator[str]:
    letters = "abcdefghijklmnopqrst"
    yield from letters
    for number in itertools.count(1):
        for letter in letters:
            yield f"{letter}{number}"


@dataclass(slots=True, eq=False)
class Value:
    """A value of the program that is drawn."""

    name: str
    """The name or expression in the source."""
    object: Any
    """The object, for the drawn inputs."""
    traced: bool = True
    """True if it is known only when the program runs; buffers, and values computed from them alone, are constants."""
    uses: int = 0
    """The number of operations that read it."""


@dataclass(frozen=True, slots=True)
class WrittenForm:
    """The written form of an operation: its spelling, and its constants."""

    operation: Production
    """The row."""
    template: str
    """The spelling with its holes."""
    arguments: tuple[Argument, ...]
    """The constants that it accepts."""
    options: dict[str, Any]
    """The constants that are present, by name."""


@dataclass(slots=True)
class Line:
    """A line of ``forward``."""

    text: str
    """The expression, or the statement if there are no targets."""
    operands: list[Value]
    """The values that it reads."""
    run: Callable[[list[Any]], Any]
    """Computes the line from the objects of its operands."""
    tags: frozenset[str]
    """The tags of its row."""
    targets: Any
    """The values that it makes, nested like its result; None for a statement."""
    form: WrittenForm | None = None
    """The written form, unless it is a call of a module."""
    block: str = ""
    """The context managers around it, if there are some."""

    def computed(self, objects: list[Any]) -> Any:
        """Compute the line in its block."""
        with contextlib.ExitStack() as stack:
            for manager in evaluated(f"[{self.block}]") if self.block else ():
                stack.enter_context(manager)
            return self.run(objects)

    def __str__(self) -> str:
        return self.text if self.targets is None else f"{_pattern(self.targets)} = {self.text}"


@dataclass(slots=True)
class Submodule:
    """A module of the program, and its calls."""

    name: str
    """The name of its attribute."""
    module: Callable[..., Any]
    """The callable that computes it."""
    operation: Production
    """The row that made it."""
    text: str = ""
    """The expression that made it; empty for a module of the program's own."""
    form: WrittenForm | None = None
    """The written form with separate constants, if there are some."""
    calls: list[tuple[Value, Value]] = field(default_factory=list[tuple["Value", "Value"]])
    """The operand and the result of each call."""


@dataclass(slots=True)
class ProgramBuilder:
    """One class of the program: the pool of values, and the lines so far."""

    choices: Choices
    """The source of decisions."""
    name: str
    """The class's name."""
    extreme_values: bool = False
    """True if values may be huge or not finite."""
    keeps_state: bool = False
    """True if it may keep state in Python, and give values and modules hooks."""
    block: str = ""
    """The context managers around the next lines; empty outside of blocks."""
    no_side_effects: bool = False
    """True if nothing writes in place and nothing is checked: many passes leave programs with side effects alone."""
    inputs: list[Input] = field(default_factory=list[Input])
    """The parameters of ``forward``."""
    state: list[str] = field(default_factory=list[str])
    """The lines of ``__init__``."""
    lines: list[Line] = field(default_factory=list[Line])
    """The lines of ``forward``."""
    values: list[Value] = field(default_factory=list[Value])
    """Values that later lines can use."""
    modules: list[Submodule] = field(default_factory=list[Submodule])
    """Modules that can be called again."""
    nested: list[ProgramBuilder] = field(default_factory=list["ProgramBuilder"])
    """The classes of nested modules."""
    functions: list[str] = field(default_factory=list[str])
    """The texts of the classes of its own functions."""
    features: set[str] = field(default_factory=set[str])
    """The features of the program."""
    result: Any = None
    """The result of the class of a nested module."""
    inner: bool = False
    """True for the class of a nested module, which takes one input."""
    constants: tuple[float | str, ...] = ()
    """Arguments that should be frequent."""
    imports: set[str] = field(default_factory=set[str])
    """Modules that the source imports, beside torch and math."""
    buffers: set[int] = field(default_factory=set[int])
    """The memory of buffers."""
    read: set[int] = field(default_factory=set[int])
    """The memory that is read while the program is captured."""
    written: set[int] = field(default_factory=set[int])
    """The memory that is written to."""
    names: Iterator[str] = field(default_factory=_names)
    """Names for further values."""
    recipes: list[TensorRecipe] = field(default_factory=list[TensorRecipe])
    """The initial contents of its parameters and buffers."""
    noted: list[Any] = field(default_factory=list[Any])
    """Warnings of torch while the program is drawn; a line that causes one is not written."""
    numbers: Iterator[int] = field(default_factory=itertools.count)
    """Numbers for attributes."""

    @property
    def sizes(self) -> Sequence[int]:
        """Return the sizes of the dimensions of the latest value that is a tensor."""
        tensors = (value.object for value in reversed(self.values) if isinstance(value.object, torch.Tensor))
        return next((tensor.shape for tensor in tensors), ())

    def attempt(self, action: Callable[[], bool]) -> bool:
        """Do ``action``, which appends lines; undo its changes if it returns False, raises, or causes a warning.

        So programs do not depend on earlier attempts, and run where warnings are errors.
        """
        growing = (self.inputs, self.state, self.values, self.modules, self.nested, self.functions, self.lines)
        lengths = [len(part) for part in growing]
        objects = [value.object for value in self.values]
        layouts = [_layout(value) for value in objects]
        storages = [value.untyped_storage() if isinstance(value, torch.Tensor) else None for value in objects]
        memory = [(addresses, set(addresses)) for addresses in (self.buffers, self.read, self.written)]
        noted = len(self.noted)
        try:
            done = action() and len(self.noted) == noted and not self._reshapes_state(layouts)
        except Exception:  # eager raises anything for values that the operation does not accept
            done = False
        del self.noted[noted:]
        if not done:
            for part, length in zip(growing, lengths, strict=True):
                del part[length:]
            for addresses, before in memory:  # freed memory may soon be another value's
                addresses.intersection_update(before)
            for value, layout, storage in zip(objects, layouts, storages, strict=True):
                if layout is not None and _layout(value) != layout:  # no written line has changed its shape
                    with torch.no_grad():
                        value.set_(storage, *layout)
        return done

    def _reshapes_state(self, layouts: Sequence[Any]) -> bool:
        """Return whether a parameter or a buffer has another layout than before: a second call would find it so."""
        state = ((value, layout) for value, layout in zip(self.values, layouts, strict=False) if "self." in value.name)
        return any(_layout(value.object) != layout for value, layout in state)

    def perform(
        self,
        operation: Production,
        spelling: str | None = None,
        first: Sequence[Value] = (),
        others: Sequence[Value] = (),
    ) -> bool:
        """Append a line with ``operation`` if eager accepts it; True if it does.

        Args:
            operation: the row.
            spelling: one of its spellings; drawn if None.
            first: the first operands, if they fit; otherwise they are drawn.
            others: values that the further operands often are, if they fit.
        """
        spelling = self.choices.pick(operation.spellings) if spelling is None else spelling
        operands: list[Value] = []
        for place, operand in enumerate(operation.operands):
            objects = [value.object for value in operands]
            near = [value for value in others if operand.fits(value.object, objects)] if place else []
            if place < len(first) and operand.fits(first[place].object, objects):
                value = first[place]
            elif near and self.choices.sometimes(3):
                value = near[0] if self.choices.mostly(2) else self.choices.pick(near)
            else:
                value = self.operand(operand, objects)
            if value is None:
                return False
            operands.append(value)
        done = self._write(operation, spelling, operands)
        if done:
            self.features |= operation.tags
            self.imports |= {operation.imports} - {""}
        return done

    def operand(self, operand: Operand, earlier: list[Any]) -> Value | None:
        """Return a value that fits, or make one."""
        suitable = [value for value in self.values if operand.fits(value.object, earlier)]
        if not suitable or (earlier and self.choices.sometimes(5)):
            new_tensor = operand.new_tensor(self, earlier)
            if new_tensor is not None:
                return self.new_tensor(new_tensor)
        return self.choices.recent(suitable) if suitable else None

    def new_tensor(self, wanted: NewTensor) -> Value:
        """Make a tensor: an input, a parameter or a buffer."""
        recipe = draw_tensor(
            self.choices, wanted.shape, wanted.dtype, extreme_values=self.extreme_values, limit=wanted.limit
        )
        if wanted.kind == "buffer" and self.choices.mostly(4):
            recipe = TensorRecipe(wanted.shape, wanted.dtype)  # so that some buffers begin equal
        kinds = ("parameter", "buffer")
        if not self.inner and len(self.inputs) < MOST_INPUTS:
            kinds = ("input", "input", *kinds)
        kind = wanted.kind or self.choices.pick(kinds)
        if kind == "input":
            return self.input(recipe)
        alike = [each for each in self.recipes if (each.shape, each.dtype) == (recipe.shape, recipe.dtype)]
        if alike and self.choices.sometimes(2):  # two equal constants are not the same object
            recipe = alike[-1]
        self.recipes.append(recipe)
        return self.attribute(recipe, buffer=kind == "buffer" or not wanted.dtype.is_floating_point)

    def input(self, recipe: TensorRecipe, default: str | None = None, passed: bool = True) -> Value:
        """Add a tensor to the parameters of ``forward``; from the first default on they are passed by keyword."""
        name = "xyzwvu"[len(self.inputs)]
        keyword = default is not None or (len(self.inputs) > 0 and self.inputs[-1].keyword)
        keyword = keyword or (len(self.inputs) > 0 and self.choices.sometimes(12))
        if keyword and default is None and self.choices.sometimes(2):
            default = "None"
        self.inputs.append(Input(name, recipe, default, keyword, passed))
        value = Value(name, evaluated(recipe.text))
        if passed:
            self.values.append(value)
        return value

    def attribute(self, recipe: TensorRecipe, *, buffer: bool) -> Value:
        """Add a parameter or a buffer."""
        tensor = evaluated(recipe.text)
        if buffer:
            name = f"buffer{next(self.numbers)}"
            self.buffers.add(_storage(tensor))
            persistent = ", persistent=False" if self.choices.sometimes(6) else ""
            self.state.append(f'self.register_buffer("{name}", {recipe.text}{persistent})')
        else:
            name = f"weight{next(self.numbers)}"
            tied = [each for each in self.values if _is_parameter_like(each, tensor)]
            if tied and self.choices.sometimes(3):
                name, tensor = tied[-1].name.removeprefix("self."), tied[-1].object
                self.state.append(f"self.{(name := f'tied{next(self.numbers)}')} = {tied[-1].name}")
                self.features.add("tied-weights")
            else:
                is_frozen = self.choices.sometimes(8)
                tensor = nn.Parameter(tensor, requires_grad=not is_frozen)
                frozen = ", requires_grad=False" if is_frozen else ""
                self.state.append(f"self.{name} = nn.Parameter({recipe.text}{frozen})")
                self.features |= {"frozen"} if is_frozen else set()
        self.features.add("buffer" if buffer else "parameter")
        value = Value(f"self.{name}", tensor, traced=not buffer)
        self.values.append(value)
        return value

    def _write(self, operation: Production, spelling: str, operands: list[Value]) -> bool:
        objects = [value.object for value in operands]
        options: dict[str, Any] = {}
        template = spelling
        if not _is_module(spelling):
            template = written(spelling, len(operands))
        elif "(" not in spelling:
            template = f"{spelling}({{*}})"
        arguments = (*operation.arguments, *self._further(template, operation))
        for argument in arguments:
            # an argument that is asked for by name is present in every second line
            one_in = min(2, argument.one_in) if argument.name in self.constants else argument.one_in
            if one_in == 1 or self.choices.sometimes(one_in):
                drawn = argument.draw(self, objects)
                if drawn is not OMITTED:
                    options[argument.name] = drawn
        return self.write(WrittenForm(operation, template, arguments, options), operands)

    def vary(self, form: WrittenForm, operands: list[Value]) -> WrittenForm:
        """Return the same operation with one of its constants drawn again, or left out."""
        template, usual = form.template, form.operation.arguments
        arguments = (*usual, *further_arguments(template, frozenset(part.name for part in usual)))
        if not arguments:
            return form
        argument = self.choices.pick(arguments)
        drawn = argument.draw(self, [value.object for value in operands])
        options = {name: value for name, value in form.options.items() if name != argument.name}
        if drawn is not OMITTED and (argument.one_in == 1 or drawn != form.options.get(argument.name)):
            options[argument.name] = drawn
        return WrittenForm(form.operation, template, arguments, options)

    def write(self, form: WrittenForm, operands: list[Value]) -> bool:
        """Append a line with these operands and constants if eager accepts it; True if it does."""
        operation, template, options = form.operation, form.template, form.options
        # most code writes the first arguments by position
        names = productions.leading(template, options, operation.arguments)
        unnamed = frozenset(names[: self.choices.below(len(names) + 1)])
        plain = {name: value.value if isinstance(value, Verbatim) else value for name, value in options.items()}
        if _is_module(template):
            template = template.removeprefix(MODULE)
            module = compiled(template, operation.imports)([], plain).eval()
            name = self._attribute_name(template.partition("(")[0].rpartition(".")[2].lower())
            text = fill(template, [], options, form.arguments, unnamed)
            return self.hold(Submodule(name, module, operation, text, form), operands)
        text = fill(template, [value.name for value in operands], options, form.arguments, unnamed)
        function = compiled(template, operation.imports)

        def run(objects: list[Any]) -> Any:
            return function(objects, plain)

        infinite = any(isinstance(value, float) and math.isinf(value) for value in plain.values())
        is_unused = "in-place" in operation.tags and self.choices.sometimes(2)  # `x.add_(1)` alone on its line
        done = self.append(text, operands, run, operation.tags, is_unused or is_statement(template), infinite)
        if done:
            self.lines[-1].form = form
        return done

    def _further(self, template: str, operation: Production) -> tuple[Argument, ...]:
        """Return, in some lines, one or two arguments that the row leaves at their defaults."""
        others = further_arguments(template, frozenset(part.name for part in operation.arguments))
        if not others or not self.choices.sometimes(FURTHER):
            return ()
        count = 1 + self.choices.sometimes(2)
        return tuple(dict.fromkeys(self.choices.pick(others) for _ in range(count)))

    def _attribute_name(self, kind: str) -> str:
        """Return a name for a module: mostly its kind with a number, sometimes one that is asked for."""
        assigned = {line.partition(" = ")[0] for line in self.state}
        suggested = [
            text
            for text in self.constants
            if isinstance(text, str)
            and text.isidentifier()
            and not (keyword.iskeyword(text) or hasattr(_EMPTY, text) or f"self.{text}" in assigned or text in OPCODES)
        ]
        if suggested and self.choices.sometimes(4):
            return self.choices.pick(suggested)
        return f"{kind}{next(self.numbers)}"

    def hold(self, submodule: Submodule, operands: list[Value]) -> bool:
        """Make a module an attribute, and append a call of it."""
        self.state.append(f"self.{submodule.name} = {submodule.text}")
        if isinstance(submodule.module, nn.Module) and self.choices.sometimes(TREATED):
            self._treat(submodule)
        self.modules.append(submodule)
        return self.call(submodule, operands)

    def _treat(self, submodule: Submodule) -> None:
        """Freeze a module, give it a hook, or set a row of its weight to zero."""
        kind, form = self.choices.pick(_TREATMENTS)
        line = form.format(f"self.{submodule.name}")
        exec(line, {"self": SimpleNamespace(**{submodule.name: submodule.module})})
        self.state.append(line)
        self.features.add(kind)

    def call(self, submodule: Submodule, operands: list[Value]) -> bool:
        """Append a call of a module."""
        template = submodule.operation.call
        if "{module}." in template and not any(value.traced for value in operands):
            return False  # without a traced operand a function runs at once, where a module would be a leaf
        text = fill(template.replace("{module}", f"self.{submodule.name}"), [value.name for value in operands], {}, ())
        function = compiled(template)

        def run(objects: list[Any]) -> Any:
            return function(objects, {"module": submodule.module})

        kind = frozenset() if "nested-module" in submodule.operation.tags else frozenset({"leaf"})
        done = self.append(text, operands, run, submodule.operation.tags | kind)
        if done:
            submodule.calls.append((operands[0], self.values[-1]))
        return done

    def append(
        self,
        text: str,
        operands: list[Value],
        run: Callable[[list[Any]], Any],
        tags: frozenset[str] = frozenset(),
        statement: bool = False,
        infinite: bool = False,
    ) -> bool:
        """Append a line if it can be captured, and its result is reasonable, or ``infinite``; True if so.

        A line that reads no traced value runs once, while the program is captured. It must not write or draw random
        numbers then, and the values that it read must not be written to later.
        """
        traced = "leaf" in tags or any(value.traced for value in operands)
        objects = [value.object for value in operands]
        memory = _storages(objects)
        if not traced and (memory & self.written or tags & UNCAPTURED):
            return False
        if self.no_side_effects and tags & {"in-place", "check"}:
            return False
        if "random" in tags and not all(value.traced for value in operands):
            return False  # the random numbers may depend on a constant
        changed = (objects[1:] if "state" in tags else objects[:1]) if "in-place" in tags else []
        written = _storages(changed)
        if written & self.read or any(isinstance(each, torch.Tensor) and overlaps(each) for each in changed):
            return False
        if "augmented" in tags and not self._can_augment(operands):
            return False
        line = Line(text, operands, run, tags, None, block=self.block)
        result = line.computed(objects)
        if not (statement or self._is_reasonable(result, infinite)) or not (traced or type(result) in CONSTANTS):
            return False
        self.read |= set[int]() if traced else memory
        self.written |= written
        line.targets = None if statement else self._targets(result, traced)
        for value in operands:
            value.uses += 1
        self.lines.append(line)
        return True

    def _can_augment(self, operands: list[Value]) -> bool:
        """Return whether ``a += b`` has the same effect if captured as ``a = a + b``, which does not change aliases."""
        first = operands[0]
        maker = next((line for line in self.lines if first in made(line.targets)), None)
        if maker is None or maker.tags & MAY_SHARE:
            return False
        memory = _storage(first.object)
        others = (value.object for value in self.values if value is not first)
        if memory in self._memory_of_buffers() or any(memory in _storages(other) for other in others):
            return False
        return all(torch.result_type(first.object, value.object) is first.object.dtype for value in operands[1:])

    def _memory_of_buffers(self) -> set[int]:
        return self.buffers.union(*(inner._memory_of_buffers() for inner in self.nested))

    def _targets(self, result: Any, traced: bool) -> Any:
        is_short = type(result) in (tuple, list) and 1 < len(result) < 4
        if is_short and self.choices.mostly(2):
            return [self._targets(part, traced) for part in result]
        value = Value(next(self.names), result, traced)
        self.values.append(value)
        return value

    def _is_reasonable(self, result: Any, infinite: bool = False) -> bool:
        if isinstance(result, torch.Tensor):
            if result.numel() > MOST_ELEMENTS or result.is_complex() or result.layout != torch.strided:
                return False
            if self.extreme_values or not result.is_floating_point() or result.numel() == 0:
                return True
            sizes = result.detach().abs()
            return float((sizes.where(~sizes.isinf(), 0) if infinite else sizes).amax()) < LARGEST
        if isinstance(result, tuple | list):
            return all(map(self._is_reasonable, result))
        return result is None or isinstance(result, int | float | str | torch.dtype | torch.device | dict)

    def replay(self, argument: Any, result: Value) -> Any:
        """Compute the lines again, with another value for the only input."""
        objects: dict[Value, Any] = {value: value.object for value in self.values if value.name.startswith("self.")}
        objects[self.values[0]] = argument
        for line in self.lines:
            _bind(line.targets, line.computed([objects[value] for value in line.operands]), objects)
        return objects[result]


def _is_parameter_like(value: Value, tensor: torch.Tensor) -> bool:
    """Return whether a value is a parameter of the program with the size and dtype of a tensor."""
    parameter = value.object
    is_parameter = isinstance(parameter, nn.Parameter) and value.name.startswith("self.")
    return is_parameter and (parameter.shape, parameter.dtype) == (tensor.shape, tensor.dtype)


def _is_module(spelling: str) -> bool:
    return spelling.startswith(("nn.", MODULE))


def evaluated(text: str) -> Any:
    """Return the value of an expression of a source."""
    return eval(text, {"torch": torch})


def _storage(value: Any) -> int:
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0


def _storages(value: Any) -> set[int]:
    if isinstance(value, tuple | list):
        return {memory for part in value for memory in _storages(part)}
    return {_storage(value)}


def _layout(value: Any) -> tuple[Any, ...] | None:
    return (value.storage_offset(), value.shape, value.stride()) if isinstance(value, torch.Tensor) else None


def _bind(targets: Any, result: Any, objects: dict[Value, Any]) -> None:
    if isinstance(targets, Value):
        objects[targets] = result
    elif targets is not None:
        for target, part in zip(targets, result, strict=True):
            _bind(target, part, objects)


def made(targets: Any) -> list[Value]:
    """Return the values among the targets of a line."""
    if isinstance(targets, Value):
        return [targets]
    return [value for part in targets or () for value in made(part)]


def _pattern(targets: Any) -> str:
    if isinstance(targets, Value):
        return targets.name
    return ", ".join(f"({_pattern(part)})" if isinstance(part, list) else _pattern(part) for part in targets)
