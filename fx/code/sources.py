"""Generated source made runnable: compiled on first use, and visible to tracebacks, pdb, inspect and TorchScript."""

from __future__ import annotations

import ctypes
import itertools
import linecache
import sys
import threading
import weakref
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, TypeVar

import torch

from fx.code.codegen import PythonCode
from fx.errors import CodegenError
from fx.modules.containers import Container
from fx.naming.printing import describe
from fx.node import Node
from fx.provenance import GENERATED_FILES

_torch: Any = torch
_numbers = itertools.count()
_compiling = threading.RLock()
_Function = TypeVar("_Function", bound=Callable[..., Any])
_LARGE = 1 << 20
"""Characters of source from which on compiling it takes memory worth returning."""


def load_forward(code: PythonCode) -> tuple[FunctionType, list[str]]:
    """Compile ``code`` and return its ``forward``, and the globals that it asks to be wrapped while tracing.

    The source lies in ``linecache`` under ``<eval_with_key>.<N>`` for as long as the function lives.

    Raises:
        CodegenError: the source is not Python, which a code transformer or a custom ``CodeGen`` can cause.
    """
    file = f"<eval_with_key>.<{next(_numbers)}>"  # debuggers look for a file unless the name stands in angle brackets
    lines = code.src.splitlines(keepends=True)
    linecache.cache[file] = (len(code.src), None, lines, file)
    wrapped: list[str] = []
    namespace: dict[str, Any] = {**code.globals}  # no __name__: torch.compile would import it
    if "wrap" in namespace:
        namespace["wrap"] = wrapped.append
    try:
        exec(compile(code.src, file, "exec", dont_inherit=True), namespace)
    except SyntaxError as error:
        linecache.cache.pop(file, None)
        raise CodegenError(
            "the generated source is not Python",
            where=f"line {error.lineno}:  {(error.text or '').strip()}",
            why=error.msg,
            remedy="look at what Graph.on_generate_code or the custom CodeGen puts in",
        ) from error
    if len(code.src) > _LARGE:
        _return_memory()
    function = namespace["forward"]
    GENERATED_FILES[file] = code.origin
    weakref.finalize(function, _forget, file)
    return function, wrapped


def forward_of_source(src: str, globals: dict[str, Any], co_fields: dict[str, Any] | None = None) -> Callable[..., Any]:
    """Return the function ``forward`` that source defines, compiled so that tracebacks and TorchScript see the source.

    Args:
        src: the source.
        globals: what it refers to.
        co_fields: nothing here asks for it; client code of torch.fx may give it.
    """
    return load_forward(PythonCode(src, globals))[0]


def _forget(file: str) -> None:
    linecache.cache.pop(file, None)
    GENERATED_FILES.pop(file, None)


def _return_memory() -> None:
    """Give back what compiling took: for 100,000 operations, some 270 MiB that the C library would keep."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
        if trim is not None:
            trim(0)


def not_traced(function: _Function) -> _Function:
    """Let Dynamo, in ``torch.compile`` and ``torch.export``, call ``function`` while it traces, not look into it."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # the decorator for it imports all of Dynamo
    return function


def not_compiled(function: _Function) -> _Function:
    """Let ``torch.compile`` leave calls of ``function``, and all that it calls, as they are."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    frames = _torch._C._dynamo.eval_frame  # the decorator for it imports all of Dynamo
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))  # type: ignore[attr-defined]
    return function


class LazyForward:
    """Stands in a class for a ``forward`` that is compiled when it is first asked for, and then put in its place."""

    __slots__ = ("_code", "_compiled", "_function")

    def __init__(self, code: Callable[[], PythonCode], compiled: Callable[[FunctionType, list[str]], None]) -> None:
        self._code = code
        self._compiled = compiled
        self._function: FunctionType | None = None

    def __get__(self, instance: Any, owner: type) -> Any:
        function = self.load()
        return function if instance is None else MethodType(function, instance)

    @not_traced
    def load(self) -> FunctionType:
        """Compile the function if that was not done yet, put it in its place, and return it."""
        with _compiling:  # threads that come at the same time get the same function
            function = self._function
            if function is None:
                function, wrapped = load_forward(self._code())
                self._compiled(function, wrapped)
                self._function = function  # last: what a signal interrupts is done anew
        return function


# What TorchScript cannot compile of a program: functions and modules of fx itself, refused before it tries (5.4).

_FX = __name__.partition(".")[0]


def check_scriptable(program: torch.nn.Module, graph: Any) -> None:
    """Refuse a program whose graph calls what TorchScript cannot compile.

    Calls of other functions and modules are left to TorchScript, whose messages are about the user's code.

    Raises:
        CodegenError: a node calls a check with a formatted message, an observer, or a quantized operation or layer.
    """
    for node in graph.nodes:
        called = _called(program, node)
        home = str(getattr(called, "__module__", "")).split(".")
        if home[0] != _FX or len(home) < 2:
            continue
        if home[1] == "assertions":
            remedy = "the pass remove-checks takes the checks out; torch.export and torch.compile take them"
            what = "a check whose message is written when it fails"
        else:
            observes = called.__name__.endswith(("Observer", "FakeQuantize"))
            exported = "convert it and use torch.export" if observes else "use torch.export"
            remedy = f"script the program before it is quantized, or {exported}"
            what = "part of a quantized program" if home[1] == "quantize" else "part of fx"
        raise CodegenError(
            f"TorchScript cannot compile this program: `{node}` calls {'.'.join((*home, called.__name__))}",
            where=node.source,
            value=describe(node),
            why=f"it is {what}, and TorchScript compiles only a part of Python",
            remedy=remedy,
        )


def _called(program: torch.nn.Module, node: Node) -> Any:
    """The function or the class of the module that ``node`` calls, where it may be one of fx."""
    if node.op == "call_function":
        return node.target
    if node.op != "call_module":
        return None
    kind = type(program.get_submodule(str(node.target)))
    # a program in a program is checked itself
    return None if issubclass(kind, Container) or hasattr(kind, "__prepare_scriptable__") else kind
