"""Modules under the names that they had before they stood in rooms: pickles hold these, and users import some."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

MOVED = {
    "accesses": "analysis.accesses",
    "alias_rules": "operators.sharing",
    "aliases": "analysis.aliases",
    "codegen": "code.codegen",
    "comments": "code.comments",
    "containers": "modules.containers",
    "dependence": "analysis.dependence",
    "effect_rules": "operators.effect_rules",
    "effects": "operators.effects",
    "folder": "code.folder",
    "folder_state": "code.folder_state",
    "inputs": "capture.signature",
    "kept_tensors": "modules.kept_tensors",
    "messages": "checks.messages",
    "misuse": "capture.misuse",
    "names": "naming.names",
    "overloads": "operators.overloads",
    "passes.layers": "passes.weighted_layers",
    "passes.options": "passes.pass_options",
    "passes.registry": "passes.registered_passes",
    "passes.report": "passes.pass_report",
    "patching": "capture.patching",
    "pickling": "modules.pickling",
    "printing": "naming.printing",
    "pytree_codegen": "code.pytree_codegen",
    "schema_types": "operators.schemas",
    "sources": "code.sources",
    "spelling": "code.spelling",
    "storages": "modules.storages",
    "targets": "naming.targets",
    "tracer": "capture.tracer",
    "verify": "analysis.verify",
    "written_tensors": "capture.real_tensors",
}
"""Where each module is now, below the package."""


def keep_earlier_names(package: ModuleType) -> None:
    """Let every module that has moved be found under its earlier name, too: it is the same one."""
    for earlier, now in MOVED.items():
        module = importlib.import_module(f"{package.__name__}.{now}")
        sys.modules[f"{package.__name__}.{earlier}"] = module
        room, _, name = earlier.rpartition(".")
        setattr(getattr(package, room) if room else package, name, module)
