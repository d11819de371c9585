"""``ProgramBuilder``: a program while it is generated: its values, its lines, and what ``__init__`` has to set."""

from __future__ import annotations

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
"""In one of so many lines an operation gets arguments that its row leaves at their defaults."""
UNCAPTURED = {"in-place", "random", "dropout", "nested-module"}
"""What must not happen while a program is captured."""
TREATED = 20
"""One of so many modules is treated in some way that its class does not show."""
_TREATMENTS = (
    ("frozen", "{}.requires_grad_(False)"),
    ("zeros", "{}.weight.data[0] = 0"),
    ("zeros", "{}.weight.data[-1:] = 0"),
    ("hook", "{}.register_forward_hook(lambda module, inputs, result: result * 2)"),
    ("hook", "{}.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2, *inputs[1:]))"),
)
"""What a line of ``__init__`` does to a module, and the feature that programs have by it."""
MAY_SHARE = {"view", "cast", "copy", "nested-module"}
"""What may return the memory that it was given, if that lies otherwise than what was drawn."""
_EMPTY = GraphModule({}, Graph())
"""Has the attributes that no module may be called by."""
CONSTANTS = (torch.Tensor, nn.Parameter, int, bool, float, tuple, list, torch.Size)
"""Types of what is computed while a program is captured; its result keeps no others."""


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
    """How it is written."""
    object: Any
    """What it is, with the inputs that were drawn."""
    traced: bool = True
    """Whether it is known only when the program runs; buffers, and what is computed of them alone, are constants."""
    uses: int = 0
    """How many operations read it."""


@dataclass(frozen=True, slots=True)
class WrittenForm:
    """An operation as it is written: its spelling, and its constants."""

    operation: Production
    """The row."""
    template: str
    """The spelling with its holes."""
    arguments: tuple[Argument, ...]
    """The constants that it can take."""
    options: dict[str, Any]
    """Those that it takes, by name."""


@dataclass(slots=True)
class Line:
    """A line of ``forward``."""

    text: str
    """The expression, or the statement if there are no targets."""
    operands: list[Value]
    """The values that it reads."""
    run: Callable[[list[Any]], Any]
    """Computes it, given what the operands are."""
    tags: frozenset[str]
    """Those of its row."""
    targets: Any
    """The values that it makes, nested as its result is; None for a statement."""
    form: WrittenForm | None = None
    """How it is written, where that is not a call of a module."""

    def __str__(self) -> str:
        return self.text if self.targets is None else f"{_pattern(self.targets)} = {self.text}"


@dataclass(slots=True)
class Held:
    """A module of the program, and how it is called."""

    name: str
    """Its attribute."""
    module: Callable[..., Any]
    """What computes it."""
    operation: Production
    """The row that it was made by."""
    text: str = ""
    """How it was made; empty for a module of the program's own."""
    form: WrittenForm | None = None
    """The same with its constants apart, where there are some."""
    calls: list[tuple[Value, Value]] = field(default_factory=list[tuple["Value", "Value"]])
    """What it was called on, and the result."""


@dataclass(slots=True)
class ProgramBuilder:
    """One class of the program: the pool of values, and what has been written so far."""

    choices: Choices
    """Decides."""
    name: str
    """The class's name."""
    extreme_values: bool = False
    """Whether values may be huge or not finite."""
    no_side_effects: bool = False
    """Whether nothing writes in place and nothing is checked: many passes leave programs alone where something does."""
    inputs: list[Input] = field(default_factory=list[Input])
    """The parameters of ``forward``."""
    state: list[str] = field(default_factory=list[str])
    """The lines of ``__init__``."""
    lines: list[Line] = field(default_factory=list[Line])
    """The lines of ``forward``."""
    values: list[Value] = field(default_factory=list[Value])
    """What later lines can use."""
    modules: list[Held] = field(default_factory=list[Held])
    """Modules that can be called again."""
    nested: list[ProgramBuilder] = field(default_factory=list["ProgramBuilder"])
    """The classes of nested modules."""
    features: set[str] = field(default_factory=set[str])
    """What the program contains."""
    result: Any = None
    """What the class of a nested module returns."""
    inner: bool = False
    """Whether it is the class of a nested module, which takes one input."""
    constants: tuple[float | str, ...] = ()
    """Arguments that are to be frequent."""
    imports: set[str] = field(default_factory=set[str])
    """Modules that the source imports, beside torch and math."""
    kept: set[int] = field(default_factory=set[int])
    """The memory of buffers."""
    read: set[int] = field(default_factory=set[int])
    """The memory that is read while the program is captured."""
    written: set[int] = field(default_factory=set[int])
    """The memory that is written to."""
    names: Iterator[str] = field(default_factory=_names)
    """Names for further values."""
    recipes: list[TensorRecipe] = field(default_factory=list[TensorRecipe])
    """What its parameters and buffers hold at first."""
    noted: list[Any] = field(default_factory=list[Any])
    """What torch warns of while the program is drawn; no such line is written."""
    numbers: Iterator[int] = field(default_factory=itertools.count)
    """Numbers for attributes."""

    @property
    def sizes(self) -> Sequence[int]:
        """Return the sizes of the dimensions of the latest value that is a tensor."""
        tensors = (value.object for value in reversed(self.values) if isinstance(value.object, torch.Tensor))
        return next((tensor.shape for tensor in tensors), ())

    def attempt(self, action: Callable[[], bool]) -> bool:
        """Do ``action``, which appends lines; if it says that it did not, raises, or warns, undo what it prepared.

        So programs do not depend on what ran before them, and can be run where warnings are errors.
        """
        growing = (self.inputs, self.state, self.values, self.modules, self.nested, self.lines)
        lengths = [len(part) for part in growing]
        objects = [value.object for value in self.values]
        layouts = [_layout(value) for value in objects]
        storages = [value.untyped_storage() if isinstance(value, torch.Tensor) else None for value in objects]
        memory = [(known, set(known)) for known in (self.kept, self.read, self.written)]
        noted = len(self.noted)
        try:
            done = action() and len(self.noted) == noted and not self._reshapes_state(layouts)
        except Exception:  # whatever eager raises: the operation does not take these values
            done = False
        del self.noted[noted:]
        if not done:
            for part, length in zip(growing, lengths, strict=True):
                del part[length:]
            for known, before in memory:  # what is freed now may be another value's soon
                known.intersection_update(before)
            for value, layout, storage in zip(objects, layouts, storages, strict=True):
                if layout is not None and _layout(value) != layout:  # as no line is written that gave it another shape
                    with torch.no_grad():
                        value.set_(storage, *layout)
        return done

    def _reshapes_state(self, layouts: Sequence[Any]) -> bool:
        """Return whether a parameter or a buffer lies otherwise than it did: a second call would find it so."""
        state = ((value, layout) for value, layout in zip(self.values, layouts, strict=False) if "self." in value.name)
        return any(_layout(value.object) != layout for value, layout in state)

    def perform(
        self,
        operation: Production,
        spelling: str | None = None,
        first: Sequence[Value] = (),
        others: Sequence[Value] = (),
    ) -> bool:
        """Append a line that does ``operation``, if eager can; True if it did.

        Args:
            operation: the row.
            spelling: one of its spellings; drawn if None.
            first: the first operands, where they fit; drawn otherwise.
            others: what the further operands often are, of those that fit.
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
        """Choose a value that fits, or make one."""
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
            recipe = TensorRecipe(wanted.shape, wanted.dtype)  # as several that a program begins with
        kinds = ("parameter", "buffer")
        if not self.inner and len(self.inputs) < MOST_INPUTS:
            kinds = ("input", "input", *kinds)
        kind = wanted.kind or self.choices.pick(kinds)
        if kind == "input":
            return self.input(recipe)
        alike = [each for each in self.recipes if (each.shape, each.dtype) == (recipe.shape, recipe.dtype)]
        if alike and self.choices.sometimes(2):  # two constants that are equal are not the same
            recipe = alike[-1]
        self.recipes.append(recipe)
        return self.attribute(recipe, buffer=kind == "buffer" or not wanted.dtype.is_floating_point)

    def input(self, recipe: TensorRecipe, default: str | None = None, passed: bool = True) -> Value:
        """Add a tensor to the parameters of ``forward``; with a default, of those that are passed by keyword."""
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
            self.kept.add(_storage(tensor))
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
            # one that is asked for by its name is given in every second line
            one_in = min(2, argument.one_in) if argument.name in self.constants else argument.one_in
            if one_in == 1 or self.choices.sometimes(one_in):
                drawn = argument.draw(self, objects)
                if drawn is not OMITTED:
                    options[argument.name] = drawn
        return self.write(WrittenForm(operation, template, arguments, options), operands)

    def vary(self, form: WrittenForm, operands: list[Value]) -> WrittenForm:
        """Return the same operation with one of its constants drawn anew, or left out."""
        template, known = form.template, form.operation.arguments
        arguments = (*known, *further_arguments(template, frozenset(part.name for part in known)))
        if not arguments:
            return form
        argument = self.choices.pick(arguments)
        drawn = argument.draw(self, [value.object for value in operands])
        options = {name: value for name, value in form.options.items() if name != argument.name}
        if drawn is not OMITTED and (argument.one_in == 1 or drawn != form.options.get(argument.name)):
            options[argument.name] = drawn
        return WrittenForm(form.operation, template, arguments, options)

    def write(self, form: WrittenForm, operands: list[Value]) -> bool:
        """Append a line with given operands and constants, if eager can; True if it did."""
        operation, template, options = form.operation, form.template, form.options
        # as most code writes the first ones
        names = productions.leading(template, options, operation.arguments)
        unnamed = frozenset(names[: self.choices.below(len(names) + 1)])
        plain = {name: value.value if isinstance(value, Verbatim) else value for name, value in options.items()}
        if _is_module(template):
            template = template.removeprefix(MODULE)
            module = compiled(template, operation.imports)([], plain).eval()
            name = self._attribute_name(template.partition("(")[0].rpartition(".")[2].lower())
            text = fill(template, [], options, form.arguments, unnamed)
            return self.hold(Held(name, module, operation, text, form), operands)
        text = fill(template, [value.name for value in operands], options, form.arguments, unnamed)
        function = compiled(template, operation.imports)

        def run(objects: list[Any]) -> Any:
            return function(objects, plain)

        infinite = any(isinstance(value, float) and math.isinf(value) for value in plain.values())
        is_unused = "in-place" in operation.tags and self.choices.sometimes(2)  # `x.add_(1)` on a line of its own
        done = self.append(text, operands, run, operation.tags, is_unused or is_statement(template), infinite)
        if done:
            self.lines[-1].form = form
        return done

    def _further(self, template: str, operation: Production) -> tuple[Argument, ...]:
        """In some lines, one or two arguments that the row leaves at their defaults."""
        others = further_arguments(template, frozenset(part.name for part in operation.arguments))
        if not others or not self.choices.sometimes(FURTHER):
            return ()
        count = 1 + self.choices.sometimes(2)
        return tuple(dict.fromkeys(self.choices.pick(others) for _ in range(count)))

    def _attribute_name(self, kind: str) -> str:
        """A name for a module: as a rule its kind with a number, now and then one that is asked for."""
        taken = {line.partition(" = ")[0] for line in self.state}
        asked = [
            text
            for text in self.constants
            if isinstance(text, str)
            and text.isidentifier()
            and not (keyword.iskeyword(text) or hasattr(_EMPTY, text) or f"self.{text}" in taken or text in OPCODES)
        ]
        if asked and self.choices.sometimes(4):
            return self.choices.pick(asked)
        return f"{kind}{next(self.numbers)}"

    def hold(self, held: Held, operands: list[Value]) -> bool:
        """Make a module an attribute, and append a call of it."""
        self.state.append(f"self.{held.name} = {held.text}")
        if isinstance(held.module, nn.Module) and self.choices.sometimes(TREATED):
            self._treat(held)
        self.modules.append(held)
        return self.call(held, operands)

    def _treat(self, held: Held) -> None:
        """Freeze a module, give it a hook, or set a row of its weight to zero."""
        kind, form = self.choices.pick(_TREATMENTS)
        line = form.format(f"self.{held.name}")
        exec(line, {"self": SimpleNamespace(**{held.name: held.module})})
        self.state.append(line)
        self.features.add(kind)

    def call(self, held: Held, operands: list[Value]) -> bool:
        """Append a call of a module."""
        template = held.operation.call
        if "{module}." in template and not any(value.traced for value in operands):
            return False  # a function is called at once where a module would be a leaf
        text = fill(template.replace("{module}", f"self.{held.name}"), [value.name for value in operands], {}, ())
        function = compiled(template)

        def run(objects: list[Any]) -> Any:
            return function(objects, {"module": held.module})

        kind = frozenset() if "nested-module" in held.operation.tags else frozenset({"leaf"})
        done = self.append(text, operands, run, held.operation.tags | kind)
        if done:
            held.calls.append((operands[0], self.values[-1]))
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
        """Append a line if it can be captured, and computes something reasonable, or ``infinite``; True if so.

        What reads no traced value runs once, while the program is captured. It must not write or draw random numbers
        then, and what it read must not be written to later.
        """
        traced = "leaf" in tags or any(value.traced for value in operands)
        objects = [value.object for value in operands]
        memory = _storages(objects)
        if not traced and (memory & self.written or tags & UNCAPTURED):
            return False
        if self.no_side_effects and tags & {"in-place", "check"}:
            return False
        if "random" in tags and not all(value.traced for value in operands):
            return False  # they may be drawn of one that is not
        changed = (objects[1:] if "state" in tags else objects[:1]) if "in-place" in tags else []
        written = _storages(changed)
        if written & self.read or any(isinstance(each, torch.Tensor) and overlaps(each) for each in changed):
            return False
        if "augmented" in tags and not self._can_augment(operands):
            return False
        result = run(objects)
        if not (statement or self._is_reasonable(result, infinite)) or not (traced or type(result) in CONSTANTS):
            return False
        self.read |= set[int]() if traced else memory
        self.written |= written
        targets = None if statement else self._targets(result, traced)
        for value in operands:
            value.uses += 1
        self.lines.append(Line(text, operands, run, tags, targets))
        return True

    def _can_augment(self, operands: list[Value]) -> bool:
        """Return whether ``a += b`` does the same captured, as ``a = a + b``, which leaves other names alone."""
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
        return self.kept.union(*(inner._memory_of_buffers() for inner in self.nested))

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

    def replay(self, given: Any, result: Value) -> Any:
        """Compute the lines anew, with something else for the only input."""
        objects: dict[Value, Any] = {value: value.object for value in self.values if value.name.startswith("self.")}
        objects[self.values[0]] = given
        for line in self.lines:
            _bind(line.targets, line.run([objects[value] for value in line.operands]), objects)
        return objects[result]


def _is_parameter_like(value: Value, tensor: torch.Tensor) -> bool:
    """Return whether a value is a parameter of the program, of the size and dtype of a tensor."""
    parameter = value.object
    is_parameter = isinstance(parameter, nn.Parameter) and value.name.startswith("self.")
    return is_parameter and (parameter.shape, parameter.dtype) == (tensor.shape, tensor.dtype)


def _is_module(spelling: str) -> bool:
    return spelling.startswith(("nn.", MODULE))


def evaluated(text: str) -> Any:
    """Return what an expression of a source is."""
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
    """The values among the targets of a line."""
    if isinstance(targets, Value):
        return [targets]
    return [value for part in targets or () for value in made(part)]


def _pattern(targets: Any) -> str:
    if isinstance(targets, Value):
        return targets.name
    return ", ".join(f"({_pattern(part)})" if isinstance(part, list) else _pattern(part) for part in targets)
