"""Saved programs as their parts, so that a test can change one of them and put the file together again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fx
from fx import serialization


def reload(program: fx.GraphModule, path: Path) -> fx.GraphModule:
    """Save ``program``, load it, and return the result."""
    serialization.save(program, path)
    return serialization.load(path)


def take_apart(path: Path) -> tuple[dict[str, Any], Any, bytes]:
    """The header without its text, the text as JSON, and the bytes of the tensors."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return header, json.loads(header.pop("__metadata__")["fx"]), data[8 + length :]


def put_together(path: Path, header: dict[str, Any], text: str, rest: bytes) -> None:
    """Write the file anew, its lengths in order."""
    encoded = json.dumps({"__metadata__": {"fx": text}, **header}).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + rest)


def edited(program: fx.GraphModule, path: Path, edit: Callable[[Any], Any]) -> Path:
    """Write ``program`` with its JSON changed by ``edit``, in place or to its return value."""
    serialization.save(program, path)
    header, stored, rest = take_apart(path)
    changed = edit(stored)
    put_together(path, header, json.dumps(stored if changed is None else changed), rest)
    return path


def edited_header(program: fx.GraphModule, path: Path, edit: Callable[[Any], Any]) -> Path:
    """The file of ``program`` with its safetensors header changed by ``edit``."""
    serialization.save(program, path)
    header, stored, rest = take_apart(path)
    edit(header)
    put_together(path, header, json.dumps(stored), rest)
    return path
