"""Graphs as readable Python (paper, section 4.3, figures 1 to 3).

Only identifiers, literals that this module writes itself, and names of collected globals reach the source as text. Any
other part of a graph is bound as a global object, or refused with a ``CodegenError``.
"""

from __future__ import annotations

import inspect
import operator
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

from fx.code.spelling import Speller, VariableName
from fx.code.wrapping import is_marked
from fx.errors import CodegenError
from fx.naming.names import GENERATED_GLOBALS, Namespace, is_identifier
from fx.naming.printing import Comments, describe
from fx.node import KEYWORD_ONLY, Node
from fx.operators.python import BY_FUNCTION, PythonOperator
from fx.provenance import SourceLocation

if TYPE_CHECKING:
    from fx.graph import Graph
    from fx.node import Argument

TransformCodeFunc: TypeAlias = Callable[[list[str]], list[str]]
"""A function from the lines of a generated body to their replacements; each line ends in a newline."""
_Line: TypeAlias = tuple[str, int | None]
"""A statement or comment, and the number of its node."""


@dataclass(slots=True)
class PythonCode:
    """The source of a graph, with the globals that it needs to run."""

    src: str
    """The text of a module that defines ``forward``."""
    globals: dict[str, Any]
    """The global names that ``src`` uses, with their values."""
    _lineno_map: dict[int, int | None] = field(default_factory=dict[int, int | None])
    """The lines of the body, counted from 1 after ``_prologue_start``, mapped to the numbers of their nodes."""
    _prologue_start: int = 0
    """The number of the line with ``def``, from 1."""
    _origins: list[SourceLocation | None] = field(default_factory=list["SourceLocation | None"])
    """The user's line for each node."""

    def __deepcopy__(self, memo: dict[int, Any]) -> PythonCode:
        """Return the same text with the same globals: modules and functions are not copied."""
        return replace(self, globals=dict(self.globals))

    def origin(self, line: int) -> SourceLocation | None:
        """Return the user's line for the node that line ``line`` of ``src`` computes."""
        number = self.node_number(line)
        return None if number is None else self._origins[number]

    def node_number(self, line: int) -> int | None:
        """Return the number, from 0, of the node that line ``line`` of ``src`` computes."""
        return self._lineno_map.get(line - self._prologue_start)


class CodeGen:
    """The writer of a graph's inputs, outputs and signature; to change them, ``graph.set_codegen`` takes a subclass."""

    def __init__(self) -> None:
        self.body_transformer: TransformCodeFunc | None = None

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, *, expanded_def: bool = False) -> str:
        """Return the ``def`` line (and any lines that unpack the inputs).

        Args:
            free_vars: the parameters as source, with annotations and defaults.
            maybe_return_annotation: ``" -> type"`` or an empty string.
            expanded_def: one parameter in each line.
        """
        parameters = _ordered(free_vars if free_vars and free_vars[0] == "self" else ["self", *free_vars])
        if expanded_def:
            lines = "".join(f"    {parameter},\n" for parameter in parameters)
            return f"def forward(\n{lines}){maybe_return_annotation}:"
        return f"def forward({', '.join(parameters)}){maybe_return_annotation}:"

    def generate_output(
        self, output_args: Argument, *, descs: Any | None = None, repr_fn: Callable[[Any], str] | None = None
    ) -> str:
        """Return the return statement. ``repr_fn`` spells an argument as source."""
        return f"return {(repr_fn or repr)(output_args)}"

    def process_inputs(self, *args: Any) -> Any:
        """Return the values of the placeholders for the caller's arguments; an ``Interpreter`` calls this first."""
        return args

    def process_outputs(self, outputs: Any) -> Any:
        """Return the caller's result for the output node's value; an ``Interpreter`` calls this last."""
        return outputs

    def additional_globals(self) -> list[tuple[str, Any]]:
        """Return names that the overridden methods use in their source, with their values."""
        return []


class FunctionWriter:
    """The writer of one graph as one function."""

    def __init__(self, graph: Graph, root_module: str, comments: Comments | None = None) -> None:
        self.graph = graph
        self.root_module = root_module
        self.comments = comments
        self.codegen = graph._codegen
        self.namespace = Namespace()
        self.globals: dict[str, Any] = dict(GENERATED_GLOBALS)
        self.speller = Speller(self.namespace, self.globals)
        for name, value in self.codegen.additional_globals():
            self.globals[self.namespace.create_name(name, value)] = value
        self.free_vars: list[str] = []
        self.wrapped: dict[str, None] = {}
        self.return_annotation = ""

    def write(self, expanded_def: bool, record_func: bool) -> PythonCode:
        """Return the whole function."""
        lines = self._body()
        if record_func:
            lines = self._recorded(lines)
        lines = lines or [("pass\n", None)]
        if self.codegen.body_transformer is not None:
            before = {id(line): number for line, number in lines}
            transformed = self.codegen.body_transformer([line for line, _ in lines])
            lines = [(line, before.get(id(line))) for line in transformed]
        wraps = "\n".join(f'wrap("{name}")' for name in self.wrapped)
        if wraps:
            self.globals["wrap"] = (
                None  # the loader supplies it, so that an import of the source registers the same names
            )
        definition = _call_with_supported(
            self.codegen.gen_fn_def, self._parameters(), self.return_annotation, expanded_def=expanded_def
        )
        parts: list[str] = []
        numbers: list[int | None] = []
        for line, number in lines:
            split = line.rstrip("\n").split("\n")
            parts += split
            numbers += [number] * len(split)
        body = "".join([f"    {part}\n" for part in parts]) + "    "
        prologue = f"\n{wraps}\n\n{_header(self.graph.history)}"
        source = f"{prologue}{definition}\n{body}"
        start = prologue.count("\n") + 1 + definition.count("\n")
        origins = [node.source for node in self.graph.nodes]
        return PythonCode(source, self.globals, dict(enumerate(numbers, 1)), start, origins)

    def _parameters(self) -> list[str]:
        """Return the inputs as parameters in the order of a signature."""
        keyword_only = [
            KEYWORD_ONLY in (node._meta or ()) and not node.target.startswith("*")
            for node in self.graph.find_nodes(op="placeholder")
        ]
        if not any(keyword_only):
            return self.free_vars
        marked = list(zip(self.free_vars, keyword_only, strict=True))
        return _ordered(
            [*(text for text, keyword in marked if not keyword), "*", *(text for text, keyword in marked if keyword)]
        )

    def _body(self) -> list[_Line]:
        nodes = list(self.graph.nodes)
        self._reserve_parameters(nodes)
        met = self.speller.met
        statements: list[str] = []
        inputs: list[list[Node]] = []
        last_use: dict[Node, int] = {}
        write_op = _WRITERS
        for number, node in enumerate(nodes):
            met.clear()
            try:
                statements.append(write_op[node._op](self, node))
            except CodegenError:
                raise
            except RecursionError as error:
                raise CodegenError("an argument is nested too deeply to write", value=describe(node)) from error
            inputs.append(met.copy())
            for used in met:
                last_use[used] = number
        return self._with_frees(nodes, statements, inputs, last_use)

    def _with_frees(
        self, nodes: list[Node], statements: list[str], inputs: list[list[Node]], last_use: dict[Node, int]
    ) -> list[_Line]:
        """After each statement, set variables to None that are no longer needed."""
        names = self.speller.names
        lines: list[_Line] = []
        for number, (node, statement, used) in enumerate(zip(nodes, statements, inputs, strict=True)):
            op = node._op
            if self.comments is not None and (comment := self.comments.above(node)):
                lines.append((comment, number))
            if op == "placeholder":
                if statement:
                    lines.append((f"{statement}\n", number))
                continue
            dead = "" if op == "output" else self._dead_names(node, number, used, last_use, names)
            trail = self.comments.behind(node) if self.comments is not None else ""
            lines.append((f"{statement};  {dead}None{trail}\n" if dead else f"{statement}{trail}\n", number))
        return lines

    @staticmethod
    def _dead_names(
        node: Node, number: int, used: list[Node], last_use: dict[Node, int], names: dict[Node, str]
    ) -> str:
        dead = ""
        for value in dict.fromkeys(used) if len(used) > 1 else used:
            if last_use[value] == number:
                dead += f"{names[value]} = "
        return dead if node.users else f"{dead}{names[node]} = "

    def _reserve_parameters(self, nodes: list[Node]) -> None:
        """Reserve the names of parameters and of the root."""
        reserved = {self.root_module}
        self.namespace.create_name(self.root_module)
        for node in nodes:
            if node.op != "placeholder":
                continue
            parameter = node.target.lstrip("*")
            if not is_identifier(parameter) or len(node.target) - len(parameter) > 2:
                raise CodegenError(
                    f"{node.target!r} cannot be the name of a parameter",
                    where=node.source,
                    value=describe(node),
                    why="it is not a Python identifier",
                    remedy='rename the input: node.target = "x"',
                )
            if parameter in reserved and (parameter != "self" or node.prev.op != "root"):
                raise CodegenError(
                    f"two inputs are called {parameter!r}",
                    where=node.source,
                    value=describe(node),
                    why="the function's first input is 'self'" if parameter == "self" else None,
                    remedy='rename the input: node.target = "x"',
                )
            reserved.add(parameter)
            if node.name == parameter:
                self.speller.names[node] = self.namespace.create_name(parameter)
            else:
                self.speller.shadow(parameter)

    def _recorded(self, lines: list[_Line]) -> list[_Line]:
        """Put each statement inside a profiler range with the name of its node."""
        nodes = list(self.graph.nodes)
        recorded: list[_Line] = []
        enter, leave = "torch.ops.profiler._record_function_enter_new", "torch.ops.profiler._record_function_exit"
        for line, number in lines:
            node = nodes[number] if number is not None else None
            if node is None or node.op in ("placeholder", "output"):
                recorded.append((line, number))
                continue
            handle = f"_rf_{self.speller.names[node]}"
            first, last = f"{handle} = {enter}({node.name!r})\n", f"{leave}({handle})\n"
            recorded += [(first, number), (line, number), (last, number)]
        return recorded

    # One method for each opcode: it returns the statement, without the freeing after it. Names are assigned in the
    # order of spelling.

    def _placeholder(self, node: Node) -> str:
        speller = self.speller
        annotation = f" : {speller.annotation(node.type)}" if node.type is not None else ""
        default = f" = {speller.argument(node.args[0])}" if node.args else ""
        if speller.met:
            raise CodegenError(
                f"the default of {node.target!r} depends on a traced value",
                where=node.source,
                value=describe(node),
                why="defaults are computed before the program runs",
            )
        self.free_vars.append(f"{node.target}{annotation}{default}")
        parameter = node.target.lstrip("*")
        name = speller.name(node)
        return "" if name == parameter else f"{name} = {parameter}"

    def _get_attr(self, node: Node) -> str:
        return f"{self._assigned(node)} = {self.speller.path(self.root_module, node.target)}"

    def _call_module(self, node: Node) -> str:
        module = self.speller.path(self.root_module, node.target)
        return f"{self._assigned(node)} = {module}({self.speller.call(node.args, node.kwargs)})"

    def _call_method(self, node: Node) -> str:
        if not node.args:
            raise CodegenError(
                f"the method {node.target!r} is called on nothing",
                where=node.source,
                value=describe(node),
                why="args[0] is the object whose method a call_method node calls",
            )
        method = self.speller.attribute(self.speller.receiver(node.args[0]), node.target)
        return f"{self._assigned(node)} = {method}({self.speller.call(node.args[1:], node.kwargs)})"

    def _call_function(self, node: Node) -> str:
        target: Any = node._target
        args = node._args
        if not node._kwargs:
            row = BY_FUNCTION.get(target) if getattr(target, "__module__", None) == "_operator" else None
            if row is not None and len(args) == row.arity:
                return self._infix(node, row)
            if target is getattr and len(args) == 2 and isinstance(args[1], str) and is_identifier(args[1]):
                return f"{self._assigned(node)} = {self.speller.receiver(args[0])}.{args[1]}"
        function = self.speller.callable(target)
        is_wrapped = node._meta is not None and node._meta.get("is_wrapped")
        if is_wrapped or (type(target) is FunctionType and is_marked(target)):
            self.wrapped[function] = None
        return f"{self._assigned(node)} = {function}({self.speller.call(args, node._kwargs)})"

    def _infix(self, node: Node, row: PythonOperator) -> str:
        speller = self.speller
        operands = [speller.argument(operand) for operand in node.args]
        if row.in_place:
            written = node.args[0]
            # the statement rebinds the name to the result, which is another object than the operand for numbers
            rebinds = row.function is not operator.setitem and isinstance(written, Node)
            if not isinstance(written, Node) or (rebinds and any(user > node for user in written.users)):
                function = speller.callable(row.function)
                return f"{self._assigned(node)} = {function}({speller.call(node.args, {})})"
            return f"{row.template.format(*operands)};  {self._assigned(node)} = {operands[0]}"
        if row.name in ("pow", "getitem", "neg", "pos", "invert") and operands[0].startswith("-"):
            operands[0] = f"({operands[0]})"
        return f"{self._assigned(node)} = {row.template.format(*operands)}"

    def _output(self, node: Node) -> str:
        if node.type is not None:
            self.return_annotation = f" -> {self.speller.annotation(node.type)}"
        value = node.args[0]
        if type(self.codegen).generate_output is CodeGen.generate_output:
            return f"return {self.speller.argument(value)}"
        self.speller.argument(value)
        named = self.speller.named(value, VariableName)
        return _call_with_supported(
            self.codegen.generate_output, named, descs=node.meta.get("desc"), repr_fn=self.speller.argument
        )

    def _assigned(self, node: Node) -> str:
        name = self.speller.name(node)
        if node._type is None:
            return name
        return f"{name} : {self.speller.annotation(node.type)}"


_WRITERS: dict[str, Callable[[FunctionWriter, Node], str]] = {
    "placeholder": FunctionWriter._placeholder,
    "get_attr": FunctionWriter._get_attr,
    "call_function": FunctionWriter._call_function,
    "call_method": FunctionWriter._call_method,
    "call_module": FunctionWriter._call_module,
    "output": FunctionWriter._output,
}


def _header(history: tuple[str, ...]) -> str:
    """Return a comment with the passes that the program went through."""
    if not history:
        return ""
    names = ", ".join(history)
    # a pass may have any name, which must not end the comment
    plain = "".join(character if character.isprintable() else "?" for character in names)
    return "".join(f"# {line}\n" for line in textwrap.wrap(f"after the passes {plain}", 110))


def _ordered(parameters: list[str]) -> list[str]:
    """Return ``parameters`` in the order of a signature: keyword-only after ``*args`` or ``*``, ``**kwargs`` last.

    Parameters after ``*``, or without a default after one with a default, become keyword-only.
    """
    plain: list[str] = []
    keyword_only: list[str] = []
    options: list[str] = []
    star, is_behind = "*", False
    for parameter in parameters:
        if parameter.startswith("**"):
            options.append(parameter)
        elif parameter.startswith("*"):
            star, is_behind = parameter if star == "*" else star, True
        elif is_behind or (" = " not in parameter and any(" = " in earlier for earlier in plain)):
            keyword_only.append(parameter)
            is_behind = True
        else:
            plain.append(parameter)
    return [*plain, *([star] if keyword_only or star != "*" else []), *keyword_only, *options]


def _call_with_supported(method: Callable[..., str], *args: Any, **extras: Any) -> str:
    """Call ``method`` with the ``extras`` that it accepts: code generators for earlier versions accept none."""
    parameters = inspect.signature(method).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        extras = {key: value for key, value in extras.items() if key in parameters}
    return method(*args, **extras)
