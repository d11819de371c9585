"""The options of a pass: the fields of its dataclass with types, defaults and docs, and their parsing from text."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import sys
import textwrap
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from fx.capture.parameters import annotations_of
from fx.errors import PassError, with_article
from fx.naming.printing import type_name
from fx.pipelines.option_text import OptionText, PassText, quote, refuse

_REQUIRED = dataclasses.MISSING
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a pass."""

    name: str
    """Name of the field; text may write dashes for its underscores."""
    annotation: Any
    """Its type."""
    default: Any
    """Its default; ``dataclasses.MISSING`` for a required option."""
    doc: str
    """The string under the field, or an empty one if the source is not available."""

    def __str__(self) -> str:
        default = "" if self.default is _REQUIRED else f" = {write_value(self.default)}"
        return f"{self.name}: {type_name(self.annotation)}{default}" + (f"  ({self.doc})" if self.doc else "")


def options_of(definition: object) -> list[Option]:
    """Return the options of a pass or a pass class; a plain function, or a class that is not a dataclass, has none."""
    if not dataclasses.is_dataclass(definition):
        return []
    pass_class = definition if isinstance(definition, type) else type(definition)
    docs = _field_docs(pass_class)
    return [
        Option(
            field.name,
            _annotation(pass_class, field),
            field.default if field.default_factory is dataclasses.MISSING else field.default_factory(),
            docs.get(field.name, ""),
        )
        for field in dataclasses.fields(pass_class)
        if field.init
    ]


def make_pass(definition: type, written: PassText) -> Any:
    """Make the pass of class ``definition`` with the options of ``written``.

    Raises:
        PassError: an option is unknown, given twice, missing, or has a value of the wrong type; the message points at
            it and lists the options. Or the class refuses the combination of values.
    """
    options = {option.name: option for option in options_of(definition)}
    values: dict[str, Any] = {}
    for option_text in written.options:
        name = option_text.name.replace("-", "_")
        if name not in options:
            _refuse_unknown(written, option_text, options)
        if name in values:
            refuse(
                written.text, option_text.start, f"option {option_text.name!r} of pass {written.name!r} is given twice"
            )
        values[name] = _read(options[name], option_text, written)
    missing = [option for option in options.values() if option.default is _REQUIRED and option.name not in values]
    if missing:
        refuse(
            written.text,
            written.start,
            f"pass {written.name!r} needs option {missing[0].name!r}",
            why=str(missing[0]),
            remedy=f"write {written.name}{{{missing[0].name}=…}}",
        )
    try:
        return definition(**values)
    except PassError:
        raise
    except Exception as error:
        what = f"pass {written.name!r} cannot be made with these options"
        refuse(written.text, written.start, what, why=f"{type(error).__name__}: {error}")


def write_options(pass_: object) -> str:
    """Return the options of ``pass_`` that differ from their defaults as text in braces, or an empty string."""
    settings: list[str] = []
    for option in options_of(pass_):
        value = getattr(pass_, option.name)
        if type(value) is not type(option.default) or value != option.default:
            settings.append(f"{option.name}={write_value(value)}")
    return f"{{{','.join(settings)}}}" if settings else ""


def write_value(value: Any) -> str:
    """Return ``value`` as it is written in text: ``true``, ``none``, ``layer2+layer3``."""
    if isinstance(value, tuple):
        return quote("+".join(map(str, typing.cast("tuple[Any, ...]", value))))
    return quote(str(value).lower() if value is None or isinstance(value, bool) else str(value))


def _refuse_unknown(written: PassText, option_text: OptionText, options: dict[str, Option]) -> None:
    nearest = difflib.get_close_matches(option_text.name.replace("-", "_"), options, n=1, cutoff=0.5)
    remedy = f"did you mean {nearest[0]!r}? " if nearest else ""
    refuse(
        written.text,
        option_text.start,
        f"pass {written.name!r} has no option {option_text.name!r}",
        why=None if options else "it has no options",
        remedy=f"{remedy}its options are " + "; ".join(map(str, options.values())) if options else None,
    )


def _read(option: Option, option_text: OptionText, written: PassText) -> Any:
    """Return the value of ``option`` in the text."""
    text = option_text.value
    if text is None:
        if bool not in (option.annotation, *get_args(option.annotation)):
            refuse(written.text, option_text.start, f"option {option_text.name!r} needs a value", why=str(option))
        return True
    try:
        return _convert(option.annotation, text)
    except ValueError:
        refuse(
            written.text,
            option_text.value_start,
            f"option {option_text.name!r} of pass {written.name!r} takes {_expected(option.annotation)}, not {text!r}",
            why=str(option),
        )
    except NotImplementedError:
        refuse(
            written.text,
            option_text.start,
            f"option {option_text.name!r} of pass {written.name!r} cannot be written as text",
            why=f"it is {with_article(type_name(option.annotation))}",
            remedy="make the pass in Python",
        )


def _convert(annotation: Any, text: str) -> Any:
    """Return ``text`` as a value of type ``annotation``.

    Raises ``ValueError`` if it is not one, and ``NotImplementedError`` for a type that cannot be written as text.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is str or annotation is Any:
        return text
    if annotation in (int, float):
        return annotation(text)
    if annotation is bool:
        return _one_of(_BOOLEANS, text)
    if annotation is types.NoneType:
        return _one_of({"none": None}, text)
    if origin is Literal:
        return _one_of({write_value(choice): choice for choice in arguments}, text)
    if origin in (typing.Union, types.UnionType):
        return _first_that_fits(arguments, text)
    if origin is tuple:
        parts = text.split("+") if text else []
        kinds = arguments[:1] * len(parts) if arguments[1:] == (...,) else arguments
        if len(kinds) != len(parts):
            raise ValueError(text)
        return tuple(_convert(kind, part) for kind, part in zip(kinds, parts, strict=True))
    raise NotImplementedError(annotation)


def _one_of(choices: dict[str, Any], text: str) -> Any:
    if text.lower() in choices:
        text = text.lower()
    if text not in choices:
        raise ValueError(text)
    return choices[text]


def _first_that_fits(kinds: tuple[Any, ...], text: str) -> Any:
    """Return ``text`` as a value of the narrowest of several types that fits; a tuple if there is a plus sign."""

    def width(kind: Any) -> int:
        if kind is str:
            return 2
        if get_origin(kind) is tuple:
            return 1 if "+" in text else 3
        return 0

    for kind in sorted(kinds, key=width):
        try:
            return _convert(kind, text)
        except ValueError:
            continue
    raise ValueError(text)


def _expected(annotation: Any) -> str:
    """Describe a type in words."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return " or ".join(repr(write_value(choice)) for choice in arguments)
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return " or ".join(map(_expected, arguments))
    if get_origin(annotation) is tuple:
        count = "" if arguments[1:] == (...,) else f"{len(arguments)} "
        return f"{count}values of type {type_name(arguments[0])} joined by '+'"
    words = {int: "an integer", float: "a number", bool: "'true' or 'false'", types.NoneType: "'none'"}
    return words.get(annotation, type_name(annotation))


def _annotation(pass_class: type, field: dataclasses.Field[Any]) -> Any:
    """Return the type of a field; one written as text is resolved in the module that defines the field's class."""
    if not isinstance(field.type, str):
        return field.type
    owner = next(base for base in pass_class.__mro__ if field.name in annotations_of(base))
    holder = types.SimpleNamespace(__annotations__={field.name: field.type})
    try:
        return typing.get_type_hints(holder, vars(sys.modules[owner.__module__]))[field.name]
    except NameError as error:
        raise PassError(
            f"the type of option {field.name!r} of {owner.__qualname__} cannot be resolved",
            value=field.type,
            why=str(error),
            remedy="import the name in the pass's module at run time, not for type checking only",
        ) from error


@functools.lru_cache  # called for every pass on a command line, and reading source takes milliseconds
def _field_docs(pass_class: type) -> dict[str, str]:
    """Return the strings under the fields of a class and of its bases, as far as their source can be read."""
    docs: dict[str, str] = {}
    for base in reversed(pass_class.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            continue
        definition = tree.body[0]
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for field, below in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
                text = below.value.value if isinstance(below.value, ast.Constant) else None
                if isinstance(text, str):
                    docs[field.target.id] = " ".join(text.split())
    return docs
