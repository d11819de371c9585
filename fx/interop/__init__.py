"""Exchange of programs and passes with ``torch.fx`` and ``torch.export`` (paper, section 4: one small IR).

``from_torch`` and ``to_torch`` convert programs node by node, and ``from_export`` converts exported programs.
``to_functional`` and ``to_aten`` write a program in functions of torch, or in operators of ATen. ``adapt`` runs passes
written for ``torch.fx``, and ``compile_backend`` runs ours inside ``torch.compile``. ``split_into_stages`` divides a
program for ``torch.distributed.pipelining``.
"""

from fx.canonical.forms import to_aten, to_functional
from fx.interop.adapt import AdaptedPass, adapt
from fx.interop.compile_backend import compile_backend
from fx.interop.pass_library import is_for_torch
from fx.interop.pipeline_stages import Stage, split_into_stages
from fx.interop.torch_export import from_export
from fx.interop.torch_fx import from_torch, to_torch

__all__ = [
    "AdaptedPass",
    "Stage",
    "adapt",
    "compile_backend",
    "from_export",
    "from_torch",
    "is_for_torch",
    "split_into_stages",
    "to_aten",
    "to_functional",
    "to_torch",
]
