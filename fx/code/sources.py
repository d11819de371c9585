"""Execution of generated source: compiled on first use, and visible to tracebacks, pdb, inspect and TorchScript."""

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
"""The number of characters of source from which on its compilation takes memory worth returning."""


def load_forward(code: PythonCode) -> tuple[FunctionType, list[str]]:
    """Compile ``code`` and return its ``forward``, and the names of globals to wrap while tracing.

    The source is in ``linecache`` under ``<eval_with_key>.<N>`` as long as the function lives.

    Raises:
        CodegenError: the source is not Python, which a code transformer or a custom ``CodeGen`` can cause.
    """
    file = f"<eval_with_key>.<{next(_numbers)}>"  # debuggers look for a file unless the name is in angle brackets
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

    ``co_fields`` is ignored; client code of torch.fx may pass it.
    """
    return load_forward(PythonCode(src, globals))[0]


def _forget(file: str) -> None:
    linecache.cache.pop(file, None)
    GENERATED_FILES.pop(file, None)


def _return_memory() -> None:
    """Return the memory of the compilation to the system: for 100,000 operations some 270 MiB, which malloc keeps."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
        if trim is not None:
            trim(0)


def not_traced(function: _Function) -> _Function:
    """Let Dynamo, in ``torch.compile`` and ``torch.export``, call ``function`` while it traces, without tracing it."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # the decorator for it imports all of Dynamo
    return function


def not_compiled(function: _Function) -> _Function:
    """Exclude ``function``, and all that it calls, from ``torch.compile``."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    frames = _torch._C._dynamo.eval_frame  # the decorator for it imports all of Dynamo
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))  # type: ignore[attr-defined]
    return function


class LazyForward:
    """The placeholder in a class for a ``forward`` that is compiled on first access, and then replaces it."""

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
        """Compile the function if needed, replace the placeholder by it, and return it."""
        with _compiling:  # concurrent threads get the same function
            function = self._function
            if function is None:
                function, wrapped = load_forward(self._code())
                self._compiled(function, wrapped)
                self._function = function  # last, so that all is done again after an interrupt by a signal
        return function


# Functions and modules of fx itself, which TorchScript cannot compile: they are refused before it tries (5.4).

_FX = __name__.partition(".")[0]


def check_scriptable(program: torch.nn.Module, graph: Any) -> None:
    """Refuse a program whose graph calls parts of fx that TorchScript cannot compile.

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
    """Return the function or module class that ``node`` calls, if it may be one of fx."""
    if node.op == "call_function":
        return node.target
    if node.op != "call_module":
        return None
    kind = type(program.get_submodule(str(node.target)))
    # a program in a program is checked itself
    return None if issubclass(kind, Container) or hasattr(kind, "__prepare_scriptable__") else kind
