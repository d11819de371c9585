"""Byte code: checks recognized under each installed interpreter, and the error under an unknown one."""

from __future__ import annotations

import dis
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import recognized
import torch

import fx
from fx.bytecode.dialects import DIALECTS, Step, without_padding
from fx.bytecode.flow import Flow


@pytest.mark.parametrize(
    "program, expected", recognized.CASES, ids=[program.__name__ for program, _ in recognized.CASES]
)
def test_a_program_is_checked_as_eager_checks_it_or_refused(
    program: Callable[[Any], Any], expected: list[str] | None
) -> None:
    assert recognized.outcome(program) == expected


def interpreters() -> list[Path]:
    """Return the interpreter that runs, and the newest of each other version that is on the path or in pyenv."""
    of_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = {sys.version_info[:2]: Path(sys.executable)}
    for minor in range(10, 30):
        name = f"python3.{minor}"
        installed = sorted(of_pyenv.glob(f"3.{minor}.*/bin/{name}"), key=lambda place: len(str(place)))
        on_path = shutil.which(name)
        for place in [*installed[-1:], *([Path(on_path)] if on_path else [])]:
            starts = subprocess.run([place, "-c", ""], check=False, capture_output=True).returncode == 0
            if starts:  # shims of pyenv may not
                places.setdefault((3, minor), place)
    return list(places.values())


def test_every_interpreter_that_is_found_recognizes_the_same() -> None:
    answers: dict[str, str] = {}
    for python in interpreters():
        answer = subprocess.run([python, recognized.__file__], check=False, capture_output=True, text=True, timeout=300)
        answers[str(python)] = answer.stdout + answer.stderr
    assert answers == dict.fromkeys(answers, f"{len(recognized.CASES)} cases, {len(DIALECTS)} versions known\n")
    assert sys.executable in answers


def test_the_same_is_recognized_without_columns_in_byte_code() -> None:
    command = [sys.executable, "-X", "no_debug_ranges", recognized.__file__]
    answer = subprocess.run(command, check=False, capture_output=True, text=True)
    assert answer.stdout == f"{len(recognized.CASES)} cases, {len(DIALECTS)} versions known\n"


def test_recognition_needs_the_standard_library_only() -> None:
    program = f"import runpy, sys; runpy.run_path({recognized.__file__!r}); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True)


def checked(x: torch.Tensor) -> torch.Tensor:
    if x.dim() != 2:
        raise ValueError("two dimensions")
    return x


def unpacked(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    return x + rows + columns


def test_an_unknown_version_of_python_is_named_where_a_check_is_not_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(DIALECTS, sys.version_info[:2])
    with pytest.raises(fx.TraceError) as caught:
        fx.symbolic_trace(checked)
    version = "{}.{}".format(*sys.version_info)
    why = f"; the byte code of Python {version} is not known, so checks are not recognized\n"
    assert str(caught.value).count(why) == str(caught.value).count("byte code") == 1
    with pytest.raises(fx.TraceError) as caught:
        fx.symbolic_trace(unpacked)
    assert f"the byte code of Python {version} is not known, so `a, b = value` is not recognized" in str(caught.value)
    assert fx.symbolic_trace(lambda x: torch.relu(x) + 1)(torch.ones(1)).item() == 2


def test_a_known_version_of_python_is_not_spoken_of() -> None:
    with pytest.raises(fx.TraceError) as caught:
        fx.symbolic_trace(lambda x: x if x.sum() > 0 else -x)
    assert "byte code" not in str(caught.value)


LISTING_OF_3_14 = [
    (0, "RESUME", 0, 0),
    (2, "LOAD_FAST_BORROW", 0, "x"),
    (4, "LOAD_SMALL_INT", 4, 4),
    (6, "COMPARE_OP", 119, "!="),
    (10, "POP_JUMP_IF_FALSE", 12, 40),
    (14, "NOT_TAKEN", None, None),
    (16, "LOAD_GLOBAL", 1, "ValueError"),
    (26, "LOAD_CONST", 1, "four"),
    (28, "CALL", 1, 1),
    (36, "RAISE_VARARGS", 1, 1),
    (40, "LOAD_FAST_BORROW", 0, "x"),
    (42, "TO_BOOL", None, None),
    (50, "POP_JUMP_IF_TRUE", 5, 64),
    (54, "NOT_TAKEN", None, None),
    (56, "LOAD_COMMON_CONSTANT", 0, AssertionError),
    (58, "RAISE_VARARGS", 1, 1),
    (64, "LOAD_CONST", 0, None),
    (66, "RETURN_VALUE", None, None),
]
"""``if x != 4: raise ValueError("four")`` and ``assert x``, by the page on ``dis`` of Python 3.14."""


def test_the_row_of_python_3_14_follows_its_documentation_of_dis() -> None:
    flow = Flow(without_padding(Step(*row) for row in LISTING_OF_3_14), [], DIALECTS[3, 14])
    for offset, raises_if, raised_at in ((6, True, 36), (42, False, 58)):
        sides = flow.branch(offset)
        assert sides is not None
        assert [flow.raises(side, lambda _: True) for side in sides] == [raises_if, not raises_if]
        assert flow.raise_offset(sides[not raises_if]) == raised_at
    assert flow.branch(28) is None


def test_no_instruction_is_named_outside_of_the_room_of_byte_code() -> None:
    room = Path(fx.__file__).parent
    own = "".join(file.read_text() for file in (room / "bytecode").glob("*.py"))
    opcodes = {*dis.opmap, *re.findall(r'"([A-Z]+(?:_[A-Z0-9]+)+)"', own)}
    opcodes = {name for name in opcodes if "_" in name}
    files = [file for file in room.rglob("*.py") if file.parent != room / "bytecode"]
    named = {file.name: opcodes & set(re.findall(r"\b[A-Z]+(?:_[A-Z0-9]+)+\b", file.read_text())) for file in files}
    assert {name: sorted(words) for name, words in named.items() if words} == {}
    assert "LOAD_FAST" in opcodes and len(files) > 200
