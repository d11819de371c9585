"""Programs on disk as a readable Python package (paper, section 5.4: ``GraphModule.to_folder``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fx.graph_module import GraphModule


def write_folder(module: GraphModule, folder: Any, module_name: str) -> None:
    """Write ``module`` as the package ``folder``, whose class ``module_name`` rebuilds it."""
    raise NotImplementedError
