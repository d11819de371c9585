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
