"""Loads client code of torch.fx with ``torch.fx`` replaced by ``fx`` in its text, as its users would by hand.

``replaced("torch.fx.experimental.optimization").fuse`` is torch's own function, as it would be if it were written for
``fx``. Nothing of it is stored: the source is read from where it is installed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import fx

ROOT = "with_fx"
"""The package under which replaced modules are found: ``with_fx.torch.fx.passes.reinplace``."""

CLIENTS = """
torch.ao.pruning._experimental.pruner
torch.ao.ns.fx torch.ao.ns._numeric_suite_fx torch.ao.quantization.fx torch.ao.quantization.quantize_fx
torch.fx.annotate torch.fx.tensor_type
torch.fx.experimental.accelerator_partitioner torch.fx.experimental.const_fold torch.fx.experimental.debug
torch.fx.experimental.graph_gradual_typechecker torch.fx.experimental.merge_matmul
torch.fx.experimental.meta_tracer torch.fx.experimental.normalize torch.fx.experimental.optimization
torch.fx.experimental.partitioner_utils torch.fx.experimental.refinement_types torch.fx.experimental.rewriter
torch.fx.experimental.schema_type_annotation torch.fx.experimental.unification
torch.fx.experimental.unify_refinements
torch.fx.passes.annotate_getitem_nodes torch.fx.passes.backends torch.fx.passes.dialect
torch.fx.passes.fake_tensor_prop torch.fx.passes.graph_manipulation torch.fx.passes.infra
torch.fx.passes.net_min_base torch.fx.passes.operator_support torch.fx.passes.param_fetch
torch.fx.passes.pass_manager torch.fx.passes.reinplace torch.fx.passes.split_utils torch.fx.passes.splitter_base
torch.fx.passes.tests torch.fx.passes.tools_common torch.fx.passes.utils
torchvision.models.feature_extraction
""".split()
"""Modules and packages that are loaded again. Their other imports from torch.fx are replaced by ours."""

AS_THEY_ARE = """
torch.ao.quantization.fx._decomposed torch.fx._utils torch.fx.experimental.proxy_tensor
torch.fx.experimental.symbolic_shapes
""".split()
"""Modules that are not replaced: they register operators (once in a process), or use tensors only."""


def replaced(name: str) -> ModuleType:
    """Import a module of one of ``CLIENTS`` with its text replaced."""
    return importlib.import_module(f"{ROOT}.{name}")


def replaced_text(text: str, package: str) -> str:
    """Return the source of a module of ``package`` as it would be written for ``fx``.

    >>> replaced_text("import torch.fx as fx; from torch import fx, nn", "")
    'import fx as fx; import fx; from torch import nn'
    """
    text = re.sub(r"(?m)^(\s*from )(\.+)([\w.]*)(?= import\b)", lambda match: _absolute(match, package), text)
    text = re.sub(r"\bfrom torch import fx, ", "import fx; from torch import ", text)
    text = re.sub(r"\bfrom torch import fx\b", "import fx", text)
    text = re.sub(r"\bimport torch\.fx((?:\.\w+)*)(?! as\b)(?![.\w])", r"import torch, torch.fx\1", text)
    return _CLIENT_OR_FX.sub(_in_terms_of_fx, text)


def _pattern(names: list[str]) -> str:
    return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))


_CLIENT_OR_FX = re.compile(rf"(?<![\w.])(?:({_pattern(AS_THEY_ARE)})|({_pattern(CLIENTS)})|torch\.fx)(?!\w)")


def _in_terms_of_fx(match: re.Match[str]) -> str:
    as_it_is, client = match.groups()
    return as_it_is or (f"{ROOT}.{client}" if client else "fx")


def _absolute(match: re.Match[str], package: str) -> str:
    parts = package.split(".")
    owner = parts[: len(parts) - len(match[2]) + 1]
    return match[1] + ".".join([*owner, *([match[3]] if match[3] else [])])


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``with_fx.NAME`` where NAME is a client, or a package that holds one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == ROOT:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        original = fullname.removeprefix(f"{ROOT}.")
        if original == fullname:
            return None
        if original in AS_THEY_ARE:
            return None
        if any(original == client or original.startswith(f"{client}.") for client in CLIENTS):
            spec = importlib.util.find_spec(original)
            if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
                return None
            is_package = spec.submodule_search_locations is not None
            return importlib.machinery.ModuleSpec(fullname, self, origin=spec.origin, is_package=is_package)
        if any(client.startswith(f"{original}.") for client in CLIENTS):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        if spec.origin is None:
            return
        module.__file__ = spec.origin
        original = spec.name.removeprefix(f"{ROOT}.")
        package = original if spec.submodule_search_locations is not None else original.rpartition(".")[0]
        text = replaced_text(Path(spec.origin).read_text(encoding="utf-8"), package)
        module.__dict__["fx"] = fx  # some write `torch.fx` after `import torch` alone
        module.__dict__[ROOT] = sys.modules[ROOT]
        exec(compile(text, spec.origin, "exec", dont_inherit=True), module.__dict__)


sys.meta_path.insert(0, _Finder())
