"""The table of compilers."""

from __future__ import annotations

from pytest_fx.compilers.compile import (
    Compile,
    CompileByInductor,
    CompileDecomposed,
    CompileFrozen,
    CompileToEager,
)
from pytest_fx.compilers.compiler import Compiler
from pytest_fx.compilers.engines import OnnxRuntime, OpenVinoFrontEnd
from pytest_fx.compilers.export import Export, ExportDecomposed
from pytest_fx.compilers.jit import JitFreeze, JitOptimize, JitTrace
from pytest_fx.compilers.own_lowering import OwnLowering
from pytest_fx.compilers.torch_fx_passes import AoFuse, AoQuantize, TorchFxFuse, TorchFxPass

TABLE: tuple[type[Compiler], ...] = (
    Compile,
    CompileByInductor,
    CompileFrozen,
    CompileToEager,
    CompileDecomposed,
    Export,
    ExportDecomposed,
    JitTrace,
    JitFreeze,
    JitOptimize,
    OnnxRuntime,
    OpenVinoFrontEnd,
    TorchFxPass,
    TorchFxFuse,
    AoFuse,
    AoQuantize,
    OwnLowering,
)
"""All compilers."""
COMPILERS = {compiler.name: compiler for compiler in TABLE}
"""The compilers by their names."""


def compiler_called(name: str) -> type[Compiler] | None:
    """Return the compiler with this name; None if there is none."""
    return COMPILERS.get(name)
