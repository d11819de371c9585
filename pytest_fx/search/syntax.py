"""The text of a program as a tree: its methods and names, its call, and the replacement of parts."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Collection, Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

Tree = TypeVar("Tree", bound=ast.AST)
Edits = Mapping[Any, Sequence[ast.AST]]
"""Parts of a tree, with the replacement of each."""
NAMESPACES = frozenset("torch F nn math operator self".split())
"""The first names of dotted names that are not values."""


def edited(tree: Tree, edits: Edits) -> Tree:
    """Return the tree with some parts replaced, possibly itself; subtrees without replacements are shared.

    The declared domain of an input stays: what it holds can be replaced, but not the declaration.
    """
    edits = {part: others for part, others in edits.items() if not _declares_domain(part)}
    holders, above = _holders(tree), list[Any](edits)
    around = set[ast.AST]()
    while above:
        new = {holder for part in above for holder in holders.get(part, ())} - around
        around |= new
        above = list(new)
    return cast("Tree", edits[tree][0]) if tree in edits else _edited(tree, edits, around)


def _declares_domain(part: Any) -> bool:
    """Return whether a part is a call of :func:`pytest_fx.harness.domains.in_domain`."""
    return isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "in_domain"


def _edited(part: Tree, edits: Edits, around: Collection[ast.AST]) -> Tree:
    """Return a part of a tree with replaced parts; ``around`` has all nodes that contain such parts."""
    if part not in around:
        return part
    fields: dict[str, Any] = dict(ast.iter_fields(part))
    for name, value in fields.items():
        if isinstance(value, list):
            parts = cast("list[Any]", value)
            fields[name] = [other for each in parts for other in edits.get(each, (_edited(each, edits, around),))]
        elif isinstance(value, ast.AST):
            others = edits.get(value, (_edited(value, edits, around),))
            fields[name] = others[0] if others else None  # an optional part may be left out
    return ast.copy_location(type(part)(**fields), part)


@functools.lru_cache(maxsize=64)  # a tree is edited many times
def _holders(tree: ast.AST) -> Mapping[ast.AST, Sequence[ast.AST]]:
    """Map each part of a tree to the nodes that hold it: a part may occur in several places."""
    holders: dict[ast.AST, list[ast.AST]] = {}
    for holder in ast.walk(tree):
        for part in ast.iter_child_nodes(holder):
            holders.setdefault(part, []).append(holder)
    return holders


def applies(edits: Edits, tree: ast.AST) -> bool:
    """Return whether edits apply to a tree: it has their parts, and those without replacement are optional."""
    holders = _holders(tree)
    return all(
        part is tree or (part in holders and (bool(others) or all(_can_lose(each, part) for each in holders[part])))
        for part, others in edits.items()
    )


def _can_lose(holder: ast.AST, part: ast.AST) -> bool:
    """Return whether a part is optional at its place: in a list, as a bound of a slice, or as a returned value."""
    lists = (value for _, value in ast.iter_fields(holder) if isinstance(value, list))
    return isinstance(holder, ast.Slice | ast.Return) or any(part in value for value in lists)


def methods(tree: ast.AST, name: str) -> list[ast.FunctionDef]:
    """Return the functions of a name that are defined outside of functions, also in inner classes."""
    named: list[ast.FunctionDef] = []
    for part in getattr(tree, "body", ()):
        if isinstance(part, ast.FunctionDef) and part.name == name:
            named.append(part)
        elif isinstance(part, ast.ClassDef):
            named.extend(methods(part, name))
    return named


def attribute_of(line: ast.stmt) -> str:
    """Return the attribute that a line of ``__init__`` makes; empty for another line."""
    match line:
        case ast.Assign(targets=[ast.Attribute(attr=name)]):
            return name
        case ast.Expr(value=ast.Call(args=[ast.Constant(value=str(name)), *_])):
            return name
        case _:
            return ""


def stored(statement: ast.AST) -> KeysView[str]:
    """Return the names that a statement assigns, in order: that of a set differs between processes."""
    return _names_in(statement, ast.Store)


def loaded(statement: ast.AST) -> KeysView[str]:
    """Return the names that a statement reads, in order."""
    return _names_in(statement, ast.Load)


def _names_in(statement: ast.AST, context: type[ast.expr_context]) -> KeysView[str]:
    names = [part for part in ast.walk(statement) if isinstance(part, ast.Name)]
    return dict.fromkeys(part.id for part in names if isinstance(part.ctx, context)).keys()


def uses_of(tree: ast.AST, names: Collection[str]) -> list[ast.Name]:
    """Return the places where a part of a program reads the values of these names."""
    loads = [part for part in ast.walk(tree) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)]
    return [part for part in loads if part.id in names]


def operands_of(tree: ast.AST, names: set[str]) -> list[str]:
    """Return the values that an expression is computed from, as text, attributes of the module last."""
    called = {part.func for part in ast.walk(tree) if isinstance(part, ast.Call)}
    values = [part.id for part in ast.walk(tree) if isinstance(part, ast.Name) and part.id in names & loaded(tree)]
    attributes = [part for part in ast.walk(tree) if isinstance(part, ast.Attribute) and part not in called]
    own = [ast.unparse(part) for part in attributes if isinstance(part.value, ast.Name) and part.value.id == "self"]
    return list(dict.fromkeys([*values, *own]))


def name_of(name: str) -> ast.Name:
    """Return an expression that reads a name."""
    return ast.Name(name, ast.Load())


def expression(text: str) -> ast.expr:
    """Return the expression of a text."""
    return ast.parse(text or "None", mode="eval").body


def index_of(text: str) -> ast.expr:
    """Return the index of a text between brackets."""
    subscript = expression(f"x[{text}]")
    assert isinstance(subscript, ast.Subscript), "brackets enclose an index"
    return subscript.slice


def children_of(part: ast.AST) -> list[ast.expr]:
    """Return the parts of an expression that may replace it."""
    match part:
        case ast.Call(func=ast.Attribute(attr="Parameter" | "register_buffer")):
            return []
        case ast.Call(func=function, args=args, keywords=keywords):
            arguments = [part.value if isinstance(part, ast.Starred) else part for part in args]
            receiver = [function.value] if isinstance(function, ast.Attribute) and not _is_fixed(function) else []
            children = [*receiver, *arguments, *(keyword.value for keyword in keywords)]
            return [child for child in children if not isinstance(child, ast.Constant)]
        case ast.BinOp(left=left, right=right):
            children = [left, right]
        case ast.Compare(left=left, comparators=others):
            children = [left, *others]
        case ast.UnaryOp(operand=operand):
            return [operand]
        case ast.IfExp(body=body, orelse=other):
            children = [body, other]
        case ast.Subscript(value=value) | ast.NamedExpr(value=value):
            return [value]
        case ast.Attribute(value=value) if not _is_fixed(part):
            return [value]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return elements
        case ast.Dict(values=values):
            return values
        case _:
            return []
    return [child for child in children if not isinstance(child, ast.Constant)]


def _is_fixed(attribute: ast.Attribute) -> bool:
    """Return whether it is a dotted name, such as ``torch.float32`` or ``self.norm.weight``, not part of a value."""
    part: ast.expr = attribute
    while isinstance(part, ast.Attribute):
        part = part.value
    return isinstance(part, ast.Name) and part.id in NAMESPACES and ast.unparse(attribute.value) != "self.training"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of ``forward`` and its argument."""

    name: str
    """Its name."""
    value: ast.expr | None
    """The argument, if there is one."""
    default: ast.expr | None = None
    """Its default value, if it has one."""
    keyword: bool = False
    """True if it is passed by keyword."""


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """The call of a program."""

    forward: ast.FunctionDef
    """The ``forward`` method."""
    inputs: ast.Return
    """The line that makes the arguments."""
    parameters: tuple[Parameter, ...]
    """The parameters with their arguments."""

    @classmethod
    def of(cls, tree: ast.Module) -> WrittenCall | None:
        """Return the call of a program; None if :mod:`pytest_fx.generation` does not write programs like it."""
        forwards, inputs = methods(tree, "forward"), methods(tree, "inputs")
        if not forwards or not inputs:
            return None
        signature, last = forwards[-1].args, inputs[-1].body[-1]
        match last:
            case ast.Return(value=ast.Tuple(elts=[ast.Tuple(elts=args), ast.Dict(keys=keys, values=values)])):
                pass
            case _:
                return None
        passed = {key.value: value for key, value in zip(keys, values, strict=True) if isinstance(key, ast.Constant)}
        parts: list[Parameter] = []
        names = [part.arg for part in signature.args[1:]]
        defaults = [None] * (len(names) - len(signature.defaults)) + signature.defaults
        for name, default, value in itertools.zip_longest(names, defaults, args[: len(names)]):
            parts.append(Parameter(name, value or passed.get(name), default, value is None))
        for part, default in zip(signature.kwonlyargs, signature.kw_defaults, strict=True):
            parts.append(Parameter(part.arg, passed.get(part.arg), default, True))
        return cls(forwards[-1], last, tuple(parts))

    def edits(self, parameters: Iterable[Parameter]) -> dict[Any, list[ast.AST]]:
        """Return edits that give the program these parameters."""
        parts = sorted(parameters, key=lambda part: (part.keyword, part.default is not None))
        texts = ["self"]
        for part in parts:
            if part.keyword and "*" not in texts:
                texts.append("*")
            texts.append(part.name if part.default is None else f"{part.name}={ast.unparse(part.default)}")
        (signature,) = ast.parse(f"def forward({', '.join(texts)}): ...").body
        assert isinstance(signature, ast.FunctionDef)
        assert self.inputs.value is not None
        args = [part.value for part in parts if part.value and not part.keyword]
        named = {part.name: part.value for part in parts if part.value and part.keyword}
        passed = ast.Dict([ast.Constant(name) for name in named], list(named.values()))
        return {
            self.forward.args: [signature.args],
            self.inputs.value: [ast.Tuple([ast.Tuple([*args], ast.Load()), passed], ast.Load())],
        }
