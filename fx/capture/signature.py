"""From a function's signature to placeholders, plain or specialized to concrete values."""

from __future__ import annotations

import enum
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, CodeType, EllipsisType, FunctionType, MethodType, NoneType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fx.arguments import expect, shown
from fx.assertions import assert_is_none, check_distinct, check_given, check_kind, check_not_given, check_value
from fx.capture.guided import is_replaced
from fx.capture.parameters import (
    KINDS_ASKED,
    InputQuestion,
    annotations_of,
    around,
    asked_for,
    asked_keywords,
    asking_decorator,
    compared_with_each_other,
    decorated_again,
    evaluated_annotations,
    expect_keywords_taken,
)
from fx.checks.traced_values import kind_of
from fx.code.pytree_codegen import PyTreeCodeGen, PyTreeInfo
from fx.errors import TraceError
from fx.node import KEYWORD_ONLY, base_types
from fx.provenance import defined_at
from fx.proxy import Proxy, TracerBase

ConcreteArgs = dict[str, Any] | tuple[Any, ...] | None
"""Values for parameters that a program is specialized to, by name or as a tuple for all."""


class PHBase:
    """Marker for a place in ``concrete_args`` that stays an input."""

    def __repr__(self) -> str:
        return "PH"


PH = PHBase()
"""The plain marker."""


class PHWithMeta(PHBase):
    """Marker whose attributes go into the ``meta`` of the placeholder."""

    def __init__(self, ph_key: str | None = None) -> None:
        super().__init__()
        self.ph_key = ph_key


_LEFT_OUT: Any = object()
"""Placeholder for an argument that is not passed to the decorators of a function."""


class _NoKeywords(dict[str, Any]):
    """The value of ``**kwargs`` if there are none. The subclass keeps it from being a structure of inputs."""


class Signature:
    """The parameters of the function that is traced."""

    def __init__(self, function: Callable[..., Any], is_module: bool) -> None:
        """Read the signature of ``function``, ignoring its decorators."""
        behind: Any = inspect.unwrap(function)
        self.called = function_called(behind)
        code: CodeType = self.called.__code__
        self.function = function
        self.code = code
        self.is_module = is_module
        parameters = inspect.signature(behind, follow_wrapped=False).parameters
        self.defaults = {name: each.default for name, each in parameters.items() if each.default is not each.empty}
        self.annotations = evaluated_annotations(behind)
        self.starred: list[str] = []
        if self.called is behind:
            named = code.co_argcount + code.co_kwonlyargcount
            names = list(code.co_varnames[:named])
            self.keyword_only = names[code.co_argcount :]
            rest = iter(code.co_varnames[named:])
            if code.co_flags & inspect.CO_VARARGS:
                self.starred.append(f"*{next(rest)}")
            if code.co_flags & inspect.CO_VARKEYWORDS:
                self.starred.append(f"**{next(rest)}")
        else:
            names = list(parameters)
            self.keyword_only = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY]
        if is_module:
            if len(names) == len(self.keyword_only):
                raise TraceError(
                    "``self`` argument cannot be part of *args expansion!",
                    where=defined_at(code),
                    remedy="write the method as def forward(self, *args)",
                )
            names = names[1:]
        self.names = names
        self.optional = [name for name in names if self.defaults.get(name, code) is None]
        self._flags = [name for name in names if type(self.defaults.get(name)) is bool]
        self._asked_for: dict[str, InputQuestion] = {}
        """The inputs whose identity or truth the function may ask for, each with the line."""
        self._checks: list[tuple[Any, ...]] = []
        """The input checks of the program: for each, the checking function, the inputs and the message."""
        self._whole: set[str] = set()
        """The inputs that are not taken apart."""
        self._asking = asking_decorator(function) if self.starred or self.keyword_only else None
        """The line of a decorator that inspects its keyword arguments: it gets only those of the example inputs."""

    def make_placeholders(
        self, tracer: TracerBase, concrete_args: ConcreteArgs
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Make the placeholders; see ``Tracer.create_args_for_root``."""
        concrete = self._by_name(concrete_args)
        state: Any = tracer._state
        guide = state.guide
        root: list[Any] = [tracer.root] if self.is_module else []  # type: ignore[attr-defined]
        self._asked_for = self._questions(tracer, root[0] if root else None)
        inputs = {name: self._placeholder(tracer, name, concrete) for name in (*self.names, *self.starred)}
        self._compare_inputs(inputs, guide)
        # Checks follow all inputs, which come first in a graph.
        for check, input_, *values in self._checks:
            node = tracer.create_proxy("call_function", check, (input_, *values), {}).node
            if check is check_given and input_.node.target not in self.defaults:
                state.checks_of_inputs.append(node)
        for name, proxy in inputs.items():
            if guide is not None and name in self._whole:
                inputs[name] = guide.placed(name, proxy, defined_at(self.code))
        args = [*root, *inputs.values()]
        function = self._all_positional(guide is not None)
        is_leaf = None if guide is None else guide.is_container
        if all(issubclass(type(value), Proxy) for value in inputs.values()):  # as nearly always
            return function, self._marked(tracer, args)
        flat, spec = pytree.tree_flatten(tuple(args), is_leaf=is_leaf)
        if all(child.is_leaf() for child in spec.children()):
            return function, self._marked(tracer, args)
        prefix = ["self"] if self.is_module else []
        count = len(self.names) - len(self.keyword_only)
        written = [*self.names[:count], *(["*"] if self.keyword_only else []), *self.keyword_only, *self.starred]
        info = PyTreeInfo([*prefix, *written], spec, None)
        # generated code flattens the arguments of the caller, which are all but self
        passed = pytree.tree_structure(list(args[len(root) :]), is_leaf=is_leaf)
        codegen = PyTreeCodeGen(info._replace(in_spec=passed))
        tracer.graph.set_codegen(codegen)

        def flattened(*leaves: Any) -> Any:
            out_leaves, out_spec = pytree.tree_flatten(function(*pytree.tree_unflatten(list(leaves), spec)))
            codegen.pytree_info = codegen.pytree_info._replace(out_spec=out_spec)
            return out_leaves

        flattened.__annotations__ = {}  # this function does not return the result of the program
        return flattened, flat

    def _compare_inputs(self, inputs: Mapping[str, Any], guide: Any) -> None:
        """Check that inputs are different objects which the function compares with ``is``."""
        for name, other, where in compared_with_each_other(self.called, self.names):
            if not all(isinstance(inputs[each], Proxy) for each in (name, other)):
                continue
            examples = [None if guide is None else guide.examples.get(each) for each in (name, other)]
            if examples[0] is not None and examples[0] is examples[1]:
                raise TraceError(
                    "cannot capture a program for two inputs that are the same object",
                    where=where,
                    value=f"{name} is {other}",
                    why="a graph has a value for each input, and the program compares them with `is`",
                    remedy="give examples that are different objects, or put the line in a function marked fx.wrap",
                )
            message = f"the program was captured where {name} and {other} are different objects: {where}"
            self._checks.append((check_distinct, inputs[name], inputs[other], message))

    def _questions(self, tracer: Any, root: Any) -> dict[str, InputQuestion]:
        """Return the questions about the inputs that no traced value can answer while the code runs.

        A hook or decorator may ask for anything. An input without a default is taken to be given, and to be a tensor
        where it is compared with other objects.
        """
        modules, paths = tracer._state.modules, tracer.submodule_paths or {}
        compares_with_truth = modules is not None and modules.facts.compares_with_truth
        kinds: dict[str, set[str]] = {}
        for name in self.names:
            if name not in self.defaults:
                kinds[name] = {*_IDENTITY, "unknown"}
            elif name in self.optional:
                kinds[name] = {*_IDENTITY, "truth", "unknown"}
            elif name not in self._flags and isinstance(self.defaults[name], _SINGLE):
                kinds[name] = {*KINDS_ASKED}
            elif name in self._flags and compares_with_truth:
                kinds[name] = {"identity", "unknown"}

        def is_leaf(module: torch.nn.Module) -> bool:
            return module in paths and tracer.is_leaf_module(module, paths[module])

        questions = asked_for(self.called, kinds, root, is_leaf)
        if (place := around(self.function, root)) is not None:
            # of a decorator, an input without a default is rather an argument than a question
            around_all = {name: InputQuestion("unknown", place) for name in kinds if name in self.defaults}
            questions = {**around_all, **questions}
        return questions

    def _marked(self, tracer: TracerBase, args: list[Any]) -> list[Any]:
        """Mark the nodes of keyword-only inputs, and return ``args``."""
        inputs = tracer.graph.find_nodes(op="placeholder") if self.keyword_only else ()
        for name, node in zip(self.names, inputs, strict=False):
            if name in self.keyword_only:
                node.meta[KEYWORD_ONLY] = True
        return args

    def _by_name(self, concrete_args: ConcreteArgs) -> dict[str, Any]:
        if not isinstance(concrete_args, tuple):
            what = "concrete_args are values by name, in a dict, or a tuple of all"
            expect(concrete_args, (Mapping, NoneType), what, error=TraceError)
            unknown = [name for name in concrete_args or () if name not in self.names]
            if unknown:
                raise TraceError(
                    f"concrete_args names no parameter {', '.join(map(repr, unknown))}",
                    why=f"the parameters are {', '.join(self.names)}",
                )
            return concrete_args or {}
        if len(concrete_args) != len(self.names):
            raise TraceError(
                f"Tracing expected {len(self.names)} arguments but got {len(concrete_args)} concrete arguments",
                why=f"a tuple of concrete_args has one entry for each of {', '.join(self.names)}",
                remedy="mark what stays an input with fx.PH, or pass a dict",
            )
        return dict(zip(self.names, concrete_args, strict=True))

    def _input(self, tracer: TracerBase, name: str, *default: Any) -> Proxy:
        annotation = self.annotations.get(name.lstrip("*"))
        return tracer.create_proxy("placeholder", name, default, {}, type_expr=annotation)

    def _placeholder(self, tracer: TracerBase, name: str, concrete: dict[str, Any]) -> Any:
        """Return the placeholder of a parameter, those of its parts if it is specialized, or its fixed value."""
        default = (self.defaults[name],) if name in self.defaults else ()
        state: Any = tracer._state
        guide = state.guide
        if (
            self._asking is not None
            and guide is not None
            and default
            and guide.examples.get(name, *default) is default[0]
        ):
            return self._left_as_default(tracer, name)
        if name.startswith("**") and (where := self._asking or asked_keywords(self.function, name[2:])) is not None:
            proxy = self._input(tracer, name, *default)
            message = f"the program was captured without {name} (name them as parameters to capture it with): {where}"
            self._checks.append((check_not_given, proxy, message))
            return _NoKeywords()
        # Without example inputs the program has one answer to `if mask is None:`, and checks it when it runs.
        question = self._asked_for.get(name)
        is_marked = type(concrete.get(name)) is PHBase
        if question is not None and default and name not in concrete and guide is None:
            if name in state.needs.unchecked:
                return self._input(tracer, name, *default)
            if default == (None,):  # others are members of an enum and the like, which no traced value replaces
                if state.needs.optional_inputs:
                    return self._given(tracer, name)
                state.left_out[name] = question.kind
            return self._fixed(tracer, name, *default)
        if question is not None and (is_marked or name not in concrete):
            example = None if guide is None else guide.examples.get(name, *default)
            if isinstance(example, _SINGLE):
                return self._fixed(tracer, name, example)
            if question.kind in _OF_CLASS and (guide is None or not is_replaced(example)):
                return self._tensor(tracer, name, question, example)
        is_given = guide is not None and name not in concrete and guide.examples.get(name, name) is not None
        if name in self._flags and is_marked:  # to stay free, and not be fixed at its default
            return self._input(tracer, name, *default)
        if name in self.optional and (is_given or is_marked):
            self._whole.add(name)
            return self._given(tracer, name)
        if name not in concrete:
            self._whole.add(name)
            is_left_out = guide is not None and guide.examples.get(name, name) is None
            is_compared = question is not None and not default and not is_left_out
            proxy = self._given(tracer, name) if is_compared else self._input(tracer, name, *default)
            if name in self._flags and guide is None:
                tracer._state.flag_defaults.add(proxy.node)
            return proxy
        count = 0
        examples = None if guide is None else guide.parts_of(name, concrete[name])

        def specialize(value: Any) -> Any:
            nonlocal count
            count += 1
            # torch.fx gives these names to parts: `x_1`, `x_2`.
            proxy = tracer.create_proxy("placeholder", f"{name}_{count}", default, {})
            if isinstance(value, PHBase):
                proxy.node.meta.update(value.__dict__)
                if guide is not None and examples is not None:
                    guide.know_part(proxy.node, examples[count - 1])
                return proxy
            _record_specialization(tracer, proxy, name, value)
            return value

        return pytree.tree_map(specialize, concrete[name])

    def _given(self, tracer: TracerBase, name: str) -> Proxy:
        """Return the placeholder of an input, and check that it is given if the program asks for its identity."""
        default = (self.defaults[name],) if name in self.defaults else ()
        proxy = self._input(tracer, name, *default)
        if name in self._asked_for:
            self._checks.append((check_given, proxy, self._message(name, "given", None, "without")))
        return proxy

    def _tensor(self, tracer: TracerBase, name: str, question: InputQuestion, example: Any) -> Proxy:
        """Return the placeholder of an input, and check that it is a tensor, as its comparison by identity assumes.

        Raises:
            TraceError: it is not, or the program most likely expects another value.
        """
        default = (self.defaults[name],) if name in self.defaults else ()
        self._whole.add(name)
        proxy = self._input(tracer, name, *default)
        is_likely = isinstance(example, torch.Tensor) or (example is None and question.kind == "object")
        if question.kind == "sequence" or not is_likely or kind_of(proxy.node)[0] is not torch.Tensor:
            raise TraceError(
                f"cannot {'match' if question.kind == 'sequence' else 'compare'} the input {name!r} by identity",
                where=question.where,
                why="a traced value stands for it, which is never the same object",
                remedy=f"compare with ==, or fix the argument with concrete_args={{{name!r}: …}}",
            )
        message = f"the program was captured where {name} is a tensor: {question.where}"
        self._checks.append((check_kind, proxy, torch.Tensor.__name__, message))
        return proxy

    def _fixed(self, tracer: TracerBase, name: str, value: Any) -> Any:
        """Return the value that an input has during the capture, and check that it has it in each call."""
        proxy = self._input(tracer, name, *((self.defaults[name],) if name in self.defaults else ()))
        if value is None:
            self._checks.append((check_not_given, proxy, self._message(name, "not given", "fx.PH", "with")))
        else:
            self._checks.append((check_value, proxy, value, self._message(name, repr(value), "…", "with another")))
        return value

    def _message(self, name: str, state: str, mark: object, other: str) -> str:
        return (
            f"the program was captured where {name} is {state} "
            f"(concrete_args={{{name!r}: {mark}}} captures it {other}): {self._asked_for[name].where}"
        )

    def _left_as_default(self, tracer: TracerBase, name: str) -> Any:
        """Record an input that a decorator has to see left out, and return the marker for it."""
        default = self.defaults[name]
        proxy = self._input(tracer, name, default)
        message = f"the program was captured with {name}={default!r}, which a decorator queries: {self._asking}"
        if default is None:
            self._checks.append((check_not_given, proxy, message))
        else:
            self._checks.append((check_value, proxy, default, message))
        return _LEFT_OUT

    def _all_positional(self, is_guided: bool) -> Callable[..., Any]:
        """Return the function with keyword-only and starred parameters made ordinary, so that each can be one proxy."""
        code, behind = self.code, inspect.unwrap(self.function)
        if behind is not self.called or not (self.starred or self.keyword_only):
            return self.function
        if self._asking is not None and not is_guided:
            raise TraceError(
                f"a decorator of {behind.__qualname__} queries its keyword arguments",
                where=self._asking,
                why="that is known only when the program is called",
                remedy="give symbolic_trace example_inputs, which determine it, or make the module a leaf",
            )
        keywords = code.co_kwonlyargcount + len(self.starred)
        flags = code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
        counts: dict[str, Any] = {"co_argcount": code.co_argcount + keywords, "co_posonlyargcount": 0}
        counts |= {"co_kwonlyargcount": 0, "co_flags": flags}
        if self.function is not behind:  # decorators pass on keywords, and no more positional arguments
            counts |= {"co_argcount": code.co_argcount, "co_posonlyargcount": code.co_posonlyargcount}
            counts |= {"co_kwonlyargcount": keywords}
        plain: Any = FunctionType(code.replace(**counts), behind.__globals__, behind.__name__, None, behind.__closure__)
        plain.__annotations__ = annotations_of(behind)
        if self.function is not behind:
            plain.__defaults__, plain.__kwdefaults__ = behind.__defaults__, behind.__kwdefaults__
        return plain if self.function is behind else self._decorated(behind, plain)

    def _decorated(self, behind: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``plain``, which replaces the function ``behind`` the decorators, in new copies of these decorators."""
        code, defaults = self.code, len(behind.__defaults__ or ())
        by_place = max(code.co_posonlyargcount, code.co_argcount - defaults)
        names = [*code.co_varnames[: code.co_argcount][by_place:], *self.keyword_only]
        names += [name.lstrip("*") for name in self.starred]
        rest = next((name[2:] for name in self.starred if name.startswith("**")), None)

        @functools.wraps(behind)
        def innermost(*args: Any, **kwargs: Any) -> Any:
            more = {name: kwargs.pop(name) for name in set(kwargs) - set(code.co_varnames[: len(names) + by_place])}
            if more:
                if rest is None or not isinstance(kwargs[rest], _NoKeywords):
                    raise TypeError(f"{behind.__name__} is handed {', '.join(sorted(more))} by a decorator")
                kwargs[rest] = more
            return plain(*args, **kwargs)

        function = decorated_again(self.function, innermost)

        def program(*args: Any) -> Any:
            named = zip(names, args[by_place:], strict=True)
            keywords = {name: value for name, value in named if value is not _LEFT_OUT}
            expect_keywords_taken(function, args[:by_place], keywords)
            return function(*args[:by_place], **keywords)

        program.__annotations__ = annotations_of(behind)
        return program


_SINGLE = (
    bool,
    enum.Enum,
    type,
    FunctionType,
    BuiltinFunctionType,
    EllipsisType,
    torch.dtype,
    torch.layout,
    torch.memory_format,
)
"""Classes of values that programs compare by identity, besides ``None``."""
_OF_CLASS = frozenset({"identity", "sequence", "object"})
"""Kinds of questions that a proxy answers wrongly, unless it represents a tensor, or, of a sequence, a sequence."""
_IDENTITY = _OF_CLASS | {"none"}
_CALLS = "_fx_calls"
"""The attribute under which a function made by :func:`function_calling` holds the Python function that it calls."""


def function_called(function: Any) -> Any:
    """Return the function that a result of :func:`function_calling` calls; return other functions unchanged."""
    return vars(function).get(_CALLS, function)


def function_calling(root: Any, owner: str = "") -> FunctionType | None:
    """Return a function that calls ``root`` and has the same parameters.

    ``root`` is a function, bound method, ``functools.partial`` or callable object. Return None if it calls no function
    that is defined in Python code, or takes any number of arguments. A parameter with the name ``owner`` is put in
    front of the others and not passed on.
    """
    behind: Any = root
    while isinstance(behind, functools.partial):
        behind = behind.func
    if isinstance(behind, Proxy):  # a proxy has every attribute that is read, a signature too
        return None
    if not isinstance(behind, (FunctionType, MethodType)):
        behind = vars(type(behind)).get("__call__")
    behind = getattr(behind, "__func__", behind)
    if not isinstance(behind, FunctionType):
        return None
    parameters = list(inspect.signature(root).parameters.values())
    if any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in parameters):
        return None
    keywords = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    first = 1 if owner else 0
    count = first + len(parameters) - len(keywords)

    def program(*args: Any) -> Any:
        return root(*args[first:count], **dict(zip(keywords, args[count:], strict=True)))

    if owner:
        parameters.insert(0, inspect.Parameter(owner, inspect.Parameter.POSITIONAL_ONLY))
    vars(program).update({_CALLS: behind, "__signature__": inspect.Signature(parameters)})
    return program


def not_traceable(root: Any) -> TraceError:
    """Return the error for a root that is neither a module nor a function with known parameters."""
    behind = root if isinstance(root, Proxy) else inspect.unwrap(root)
    behind = behind.func if isinstance(behind, functools.partial) else behind
    code = getattr(behind, "__code__", None)
    why, remedy = "built-in functions have no code that can run on traced values", "callable_object(x)"
    if isinstance(code, CodeType):
        why = "it takes any number of arguments, and each input of a program is a parameter"
        if hasattr(root, "cache_info"):
            why = "it caches results by their arguments, and a captured program has no such cache"
            remedy = "callable_object.__wrapped__(x)"
    return TraceError(
        f"Expected FunctionType, got {shown(root)}: only modules and Python functions can be traced",
        where=f"{code.co_filename}:{code.co_firstlineno}, in {code.co_name}" if isinstance(code, CodeType) else None,
        why=why,
        remedy=f"wrap the call in a function: def program(x): return {remedy}",
    )


def _record_specialization(tracer: TracerBase, proxy: Proxy, name: str, value: Any) -> None:
    """Check at run time that an input has the value that the program was specialized to."""
    message = f"{name} has been specialized to have value {value} but got another value"
    if value is None:
        assert_is_none(proxy, message)
    elif isinstance(value, bool) or (type(value) in base_types and not isinstance(value, torch.Tensor)):
        tracer.create_proxy("call_function", torch._assert, (proxy == value, message), {})
    else:
        warnings.warn(
            f"Was not able to add assertion to guarantee correct input {name} to specialized function. It is up to you "
            f"to pass what it was captured with: {value!r:.80}",
            stacklevel=7,
        )
