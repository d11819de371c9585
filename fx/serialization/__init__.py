"""Programs in one data-only file: loading it runs no code from it and unpickles nothing.

The file is a safetensors file. Its tensors are the weights; its metadata entry ``fx`` is the program as JSON::

    {"format": "fx", "version": 1,
     "modules": [...],   # each once, after the modules that it holds; the last is the program
     "tensors": [...],   # each tensor object once: memory, whether a parameter, whether it has gradients
     "memory": [...]}    # each tensor of the file, with unusual strides

A module of ``torch.nn`` is stored as the name of its class and the arguments of its constructor, a program (also inside
another) as its graph. Functions, methods, attributes and classes are stored as names. Loading looks names up in a fixed
list (:mod:`fx.serialization.allow_list`), which users extend with :func:`allow`; any other name is a ``LoadError``. So
a loaded program calls only listed functions, with arguments from the file. The listed operators are known to check
their arguments (:mod:`fx.serialization.safe_operators`). The cost of *running* a program is not bounded.
``docs/security.md`` describes what a file can and cannot do.

>>> import os, tempfile, torch, fx
>>> from fx import serialization
>>> traced = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()))
>>> with tempfile.TemporaryDirectory() as folder:
...     path = os.path.join(folder, "program.safetensors")
...     serialization.save(traced, path)
...     loaded = serialization.load(path)
>>> loaded.code == traced.code
True
"""

from __future__ import annotations

import json
import os
from types import NoneType
from typing import Any

import torch

from fx.arguments import expect, refusal
from fx.errors import LoadError, SaveError
from fx.graph_module import GraphModule, expect_program
from fx.serialization.allow_list import Refused, allow
from fx.serialization.saved_modules import ModuleReader, ModuleWriter
from fx.serialization.saved_tensors import TensorWriter, restore_tensors
from fx.serialization.tensor_file import parse_json, read_tensor_file, write_tensor_file
from fx.serialization.values import printable, stored_object

_FORMAT = "fx"
_VERSION = 1


def save(graph_module: GraphModule, path: Any) -> None:
    """Write a program, with its present graph, to a data-only file, or write nothing.

    The file keeps

    - the graph with names, types, sources and those notes (``meta``) that are data;
    - the module hierarchy with training flags;
    - all tensors with their ties. Different views of one storage become separate tensors.

    It does not keep gradients, attributes set on tensors, and the tracer of the graph. The same program gives the same
    bytes. An existing file is replaced at once, or stays.

    Args:
        graph_module: the program.
        path: the file.

    Raises:
        SaveError: a part of the program is not data, or may not be named in a file; the message names the node or
            module, and a remedy.
        GraphError: the graph is not well formed.
        OSError: the file cannot be written.
    """
    expect_program(graph_module, "a GraphModule is saved", error=SaveError)
    expect(path, (str, bytes, os.PathLike), "save takes the path of a file", error=SaveError)
    tensors = TensorWriter()
    modules = ModuleWriter(tensors).write(graph_module)
    stored = {"format": _FORMAT, "version": _VERSION, "modules": modules, **tensors.tables()}
    try:
        write_tensor_file(path, json.dumps(stored, separators=(",", ":")), tensors.stored)
    except Refused as refused:
        raise refused.as_error(SaveError, "cannot save the program") from refused


def load(path: Any, *, device: torch.device | str | int | None = None) -> GraphModule:
    """Read a program that ``save`` wrote. It is safe to try files from anyone.

    Args:
        path: the file.
        device: the device of its tensors; by default the CPU, wherever they were. Devices named in the program's own
            arguments stay.

    Returns:
        The program; it shares nothing with other loads.

    Raises:
        LoadError: the file is not a saved program, is damaged, or names a function or class that is not allowed.
        FileNotFoundError: there is no file; another ``OSError`` if it cannot be read.
    """
    expect(path, (str, bytes, os.PathLike), "load takes the path of a file", error=LoadError)
    expect(device, (torch.device, str, int, NoneType), "load takes a device", error=LoadError)
    if isinstance(device, int) and abs(device) >= 2**31:
        raise refusal("load takes a device, or the number of one", device, error=LoadError)
    target = None if device is None else torch.device(device)
    torch.empty(0, device=target)  # a missing device is no fault of the file
    try:
        return _load(path, target)
    except Refused as refused:
        raise refused.as_error(LoadError, f"cannot load {path}") from refused
    except (LoadError, OSError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # for any bytes, callers handle a single error
        raise LoadError(
            f"cannot load {path}: it is damaged", why=printable(f"{type(error).__name__}: {error}")
        ) from error


def _load(path: Any, device: torch.device | None) -> GraphModule:
    text, tensors = read_tensor_file(path)
    stored = parse_json(text)
    if type(stored) is not dict or stored.get("format") != _FORMAT:
        raise Refused("it holds no program")
    if stored.get("version") != _VERSION:
        version = ascii(stored.get("version"))[:40]
        raise Refused(f"it has version {version} of the format; this is version {_VERSION}")
    required = {"format": str, "version": int, "modules": list, "tensors": list, "memory": list}
    parts = stored_object(stored, "the program", required)
    return ModuleReader(restore_tensors(parts, tensors, device)).read(parts["modules"])


__all__ = ["LoadError", "SaveError", "allow", "load", "save"]
