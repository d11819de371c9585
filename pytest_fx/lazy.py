"""Late imports of modules that need torch, from the folder of this package.

``python -m pytest`` puts the current folder first on the import path, so that a user's folder ``fx`` or ``model_zoo``
shadows ours.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_OWN = ("fx", "model_zoo")
_REMEDY = "rename it: one run cannot import both"

_ours: dict[str, ModuleType] = {}
"""Packages that were already checked, since the check reads the file system."""


class ShadowedPackageWarning(pytest.PytestWarning):
    """Issued when a user's package with the name of one of ours is hidden in this run."""


def load(name: str) -> Any:
    """Import a module of the plugin, ``fx`` or ``model_zoo``.

    If a user's package would shadow ours, ours is imported, with a warning. Raises :class:`pytest.UsageError` if the
    user's package is already imported.
    """
    for package in _OWN:
        imported = sys.modules.get(package)
        if imported is None:
            _import_ours(package)
        elif _ours.get(package) is not imported:
            if (place := _elsewhere(imported)) is not None:
                raise pytest.UsageError(
                    f"pytest-fx needs its package {package!r}, and another of that name is imported: {place}\n"
                    f"  try    {_REMEDY}"
                )
            _ours[package] = imported
    return importlib.import_module(name)


def _import_ours(package: str) -> None:
    spec = importlib.util.find_spec(package)
    place = None if spec is None else _elsewhere(spec)
    if place is None:
        return
    sys.path.insert(0, str(_ROOT))
    try:
        importlib.import_module(package)
    finally:
        sys.path.remove(str(_ROOT))
    warnings.warn(
        ShadowedPackageWarning(
            f"{place} is not found in this run, as pytest-fx has a package {package!r}, too; {_REMEDY}"
        ),
        stacklevel=3,
    )


def _elsewhere(module: Any) -> str | None:
    """Return the folder of a package, given as module or spec; None if it is ours."""
    folders = getattr(module, "__path__", None) or getattr(module, "submodule_search_locations", None)
    place = Path(next(iter(folders or [getattr(module, "__file__", "") or getattr(module, "origin", "")])))
    return None if place.resolve() in (_ROOT / name for name in _OWN) else str(place)
