"""Code generators of programs with structured inputs as JSON: names of parameters, structures of plain containers."""

from __future__ import annotations

from torch.utils import _pytree as pytree

from fx.code.codegen import CodeGen
from fx.code.pytree_codegen import PyTreeCodeGen, PyTreeInfo
from fx.errors import with_article
from fx.naming.names import is_identifier
from fx.serialization.allow_list import Refused
from fx.serialization.values import Json, ValueReader, ValueWriter, is_name, stored_object, stored_strings


def encode_codegen(codegen: CodeGen) -> Json:
    """Return ``codegen`` as JSON; None for the usual code generator."""
    if type(codegen) not in (CodeGen, PyTreeCodeGen):
        raise Refused(
            f"its code is written by {with_article(type(codegen).__qualname__)}",
            why="a file holds no code, so it can name only fx's own code generators",
            remedy="graph.set_codegen(fx.CodeGen()), if its inputs and outputs need no other form",
        )
    if codegen.body_transformer is not None:
        raise Refused(
            "a function rewrites its code", why="it was registered with on_generate_code, and a file holds no code"
        )
    if not isinstance(codegen, PyTreeCodeGen):
        return None
    info = codegen.pytree_info
    return {
        "parameters": list(info.orig_args),
        "inputs": _encode_structure(info.in_spec),
        "outputs": None if info.out_spec is None else {"structure": _encode_structure(info.out_spec)},
    }


def _encode_structure(spec: pytree.TreeSpec) -> Json:
    """Return the structure as a value of this structure whose leaves are all 0."""
    stored = ValueWriter(None).value(pytree.tree_unflatten([0] * spec.num_leaves, spec))
    if pytree.tree_structure(ValueReader([]).value(stored)) != spec:
        raise Refused(f"an input or the output has the structure {spec}", why="a file names plain containers only")
    return stored


def decode_codegen(stored: Json) -> PyTreeCodeGen:
    """Return the code generator that ``stored`` describes."""
    required = {"parameters": list, "inputs": object, "outputs": object}
    fields = stored_object(stored, "a code generator", required)
    parameters = list(stored_strings(fields["parameters"]))
    named = [parameter for parameter in parameters if parameter != "*"]
    plain = [parameter.lstrip("*") for parameter in named]
    # the parameters become source
    if not all(map(is_name, plain)) or not all(map(is_identifier, plain)) or len(set(plain)) != len(plain):
        raise Refused("the parameters of the program are no different identifiers")
    if any(len(parameter) - len(name) > 2 for parameter, name in zip(named, plain, strict=True)):
        raise Refused("a parameter has too many stars")
    if len(parameters) - len(named) > 1 or parameters[-1:] == ["*"]:
        raise Refused("the bare star of keyword-only parameters is not in front of one")
    outputs = fields["outputs"]
    if outputs is not None:
        outputs = _structure(stored_object(outputs, "the output", {"structure": object})["structure"])
    return PyTreeCodeGen(PyTreeInfo(parameters, _structure(fields["inputs"]), outputs))


def _structure(stored: Json) -> pytree.TreeSpec:
    return pytree.tree_structure(ValueReader([]).value(stored))
