"""Importing what needs torch when it is needed, and from where this package lies.

``python -m pytest`` puts the current folder first on the import path, so that a folder ``fx`` or ``model_zoo`` of the
user's stands before ours.
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
"""Packages that were looked at already: where they lie is asked of the file system."""


class ShadowedPackageWarning(pytest.PytestWarning):
    """Something of the user's has the name of a package that the plugin needs, and is not found in this run."""


def load(name: str) -> Any:
    """Import a module of the plugin, ``fx`` or ``model_zoo``.

    Where one of the user's would be found in the place of ours, ours is imported, and a warning says so. Raises
    :class:`pytest.UsageError` if the user's is there already.
    """
    for package in _OWN:
        found = sys.modules.get(package)
        if found is None:
            _import_ours(package)
        elif _ours.get(package) is not found:
            if (place := _elsewhere(found)) is not None:
                raise pytest.UsageError(
                    f"pytest-fx needs its package {package!r}, and another of that name is imported: {place}\n"
                    f"  try    {_REMEDY}"
                )
            _ours[package] = found
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


def _elsewhere(found: Any) -> str | None:
    """Return where a package lies, by its module or its spec; None if it is ours."""
    folders = getattr(found, "__path__", None) or getattr(found, "submodule_search_locations", None)
    place = Path(next(iter(folders or [getattr(found, "__file__", "") or getattr(found, "origin", "")])))
    return None if place.resolve() in (_ROOT / name for name in _OWN) else str(place)
