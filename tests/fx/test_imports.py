"""``import fx``: modules that are loaded with it, and those loaded on first use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fx

LOADED = "loaded = lambda: {name for name in sys.modules if name.partition('.')[0] == 'fx'}"
MOST = 120
"""Modules of the library that ``import fx`` may load."""
ROOMS = {"canonical", "drawing", "interop", "lowering", "matcher", "passes", "quantize", "serialization"}
"""Those that capturing and running a program needs nothing of."""


def run(*lines: str) -> list[str]:
    """Run a program in a new process, and return the printed lines."""
    program = "\n".join(["import sys", "import fx", LOADED, *lines])
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert not ended.returncode, ended.stderr
    return ended.stdout.splitlines()


def test_the_library_loads_a_part_of_its_modules_and_each_room_when_it_is_used() -> None:
    count, rooms, has_sympy = run(
        "print(len(loaded()))",
        "fx.symbolic_trace(lambda x: x.relu() + 1).code",
        "print(*{name.split('.')[1] for name in loaded() if '.' in name})",
        "print('sympy' in sys.modules)",
        "before = loaded()",
        "assert set(fx.__all__) <= set(dir(fx)) and loaded() == before",
        "from fx.passes import get_pass, list_passes",
        "assert {'lower', 'quantize'} <= set(list_passes()) and 'fx.lowering' not in loaded()",
        "from fx import lower",
        "assert lower is fx.lower is fx.lowering.lower",
        "assert type(get_pass('quantize')) is fx.quantize.Quantize",
        "import fx.passes.shape_prop, fx.capture.tracer",
        "assert callable(fx.capture) and fx.passes.shape_prop.ShapeProp is fx.passes.ShapeProp",
        "assert all(getattr(fx, name) is not None for name in fx.__all__)",
    )
    assert int(count) <= MOST
    assert not ROOMS & set(rooms.split())
    assert has_sympy == "False", "it takes as long to import as all of the library"


def test_a_package_is_loaded_when_another_needs_its_registered_names(tmp_path: Path) -> None:
    path = tmp_path / "program.safetensors"
    fx.save(fx.symbolic_trace(lambda x: fx.quantize.dequantize(fx.quantize.quantize(x, 0.5, 0), 0.5, 0)), path)
    html, error = run(
        "import torch",
        f"assert fx.load({str(path)!r})(torch.ones(2)).tolist() == [1.0, 1.0]",
        "print(fx.symbolic_trace(lambda x: x + 1)._repr_html_()[:7])",
        "def lower(program): ...",
        "try:",
        "    fx.passes.register_pass(lower)",
        "except fx.PassError as error:",
        "    print(str(error).splitlines()[0])",
    )
    assert html == "<iframe"
    assert error == "two passes are named 'lower'"


def test_rooms_and_modules_are_attributes() -> None:
    assert fx.interop.to_torch is sys.modules["fx.interop"].to_torch  # type: ignore[attr-defined]
    assert fx.subgraph_rewriter.replace_pattern is fx.replace_pattern  # type: ignore[attr-defined]


def test_an_unknown_name_raises_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'fx' has no attribute 'symbolic_trase'"):
        fx.symbolic_trase  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'symbolic_trase' from 'fx'"):
        from fx import symbolic_trase  # type: ignore[attr-defined]  # noqa: F401
    assert not hasattr(fx, "__wrapped__")
