"""Runtimes of converted models: how each recognizes what it runs, loads it, and calls it with tensors of torch.

A transform may return its result in the form that ships: a file of ONNX, a model of OpenVINO, an exported program.
:func:`loaded` makes a module of it. The module is judged like any program that was made elsewhere.
"""

from pytest_fx.runtimes.converted_program import ConvertedProgram
from pytest_fx.runtimes.runtime import Runtime
from pytest_fx.runtimes.session import InnerValue, Port, Session
from pytest_fx.runtimes.shipped_model import ShippedModel
from pytest_fx.runtimes.table import TABLE, loaded, runtime_of

__all__ = [
    "TABLE",
    "ConvertedProgram",
    "InnerValue",
    "Port",
    "Runtime",
    "Session",
    "ShippedModel",
    "loaded",
    "runtime_of",
]
