"""A failure in a file of its own: the part of a model that a pass gets wrong, cut out, made small, written as a test.

The part starts as the operations behind the node that goes wrong first, grows until the pass goes wrong on it alone,
and is then called with as few samples as still show it. "Goes wrong" always means: in the same way as on the model.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from fx import Graph, Interpreter, Node
from fx.errors import FxError
from fx.passes import Contract, Pass

from .capture import GraphModule
from .errors import ContractViolation
from .evaluation import Arguments, default_dtype, positional
from .structure import map_tensors
from .subject import Subject
from .verification import require, verify

MOST_ATTEMPTS = 60
"""How often a smaller part is tried."""
_LITERALS = (bool, int, float, str, type(None))

_TEMPLATE = '''\
"""{what}, cut out of {model}{where}.

Run it with pytest; it passes once the pass is right.
"""

import pathlib

import pytest
from safetensors.torch import load_file

{source}

def part_of_model():
    """The program and the inputs on which the pass goes wrong."""
    tensors = load_file(pathlib.Path(__file__).parent / "inputs.safetensors")
    return Program(), ({inputs})


@pytest.mark.fx(models=part_of_model, passes={pass_name!r}, contract={contract!r})
def test_{slug}(fx_pass, fx_equal):
    fx_equal(fx_pass)
'''


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a program, as a program."""

    program: GraphModule
    """The part; what it reads from the rest of the program are its inputs."""
    inputs: tuple[Any, ...]
    """Values of those, as the whole program computes them."""


def find_part(
    subject: Subject,
    pass_: Pass,
    contract: Contract,
    names: frozenset[str],
    violation: ContractViolation,
    label: str,
    draw: int = 0,
) -> Part | None:
    """Return a small part of ``subject`` on which ``pass_`` fails as it does on the whole, or None if there is none.

    Args:
        subject: the model.
        pass_: the pass that broke ``contract``.
        contract: what it was held to.
        names: nodes of the captured model that every part holds, the last of which it computes.
        violation: how the contract was broken.
        label: what messages call the pass.
        draw: which inputs of the model show it.
    """
    original, arguments = subject.capture(), subject.arguments(draw)

    def fails(part: Part) -> bool:
        return _fails(subject, part, pass_, contract, violation, label)

    for nodes in _growing(original, names):
        if fails(_part(original, nodes, _values(original, arguments, _boundary(nodes)))):
            values = _values(original, arguments, [*nodes, *_boundary(nodes)])
            part = _part(original, _shrunk(original, nodes, values, fails), values)
            single = Part(part.program, _single_sample(part.inputs))
            return single if fails(single) else part
    return None


def _growing(original: GraphModule, names: frozenset[str]) -> Iterator[list[Node]]:
    """Ever longer stretches of ``original`` that end with the last of the nodes called ``names``, in order."""
    nodes = [node for node in original.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    held = [position for position, node in enumerate(nodes) if node.name in names]
    if not held:
        return
    reach = 0
    while True:
        first = max(0, min(held) - reach)
        yield _needed(nodes[first : max(held) + 1])
        if first == 0:
            return
        reach = 2 * reach + 1


def _shrunk(
    original: GraphModule, nodes: list[Node], values: dict[Node, Any], fails: Callable[[Part], bool]
) -> list[Node]:
    """As few of ``nodes`` as still fail, the value of each left out being an input (Zeller's delta debugging)."""
    attempts, size = 0, len(nodes) // 2
    while size >= 1:
        start = 0
        while start < len(nodes) - 1 and attempts < MOST_ATTEMPTS:
            attempts += 1
            fewer = _needed([*nodes[:start], *nodes[min(start + size, len(nodes) - 1) :]])
            if fails(_part(original, fewer, values)):
                nodes = fewer
            else:
                start += size
        size //= 2
    return nodes


def _needed(nodes: list[Node]) -> list[Node]:
    """Those of ``nodes`` that the last of them depends on."""
    needed = {nodes[-1]}
    for node in reversed(nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return [node for node in nodes if node in needed]


def _boundary(nodes: list[Node]) -> list[Node]:
    """What ``nodes`` read that none of them computes, attributes aside."""
    inside = set(nodes)
    read = (used for node in nodes for used in node.all_input_nodes)
    return list(dict.fromkeys(used for used in read if used not in inside and used.op != "get_attr"))


def _part(original: GraphModule, nodes: list[Node], values: dict[Node, Any]) -> Part:
    """The program of ``nodes``, which returns the value of the last."""
    boundary = _boundary(nodes)
    graph = Graph()
    graph.constants = dict(original.graph.constants)
    copies = {used: graph.placeholder(used.name) for used in boundary}
    for node in nodes:
        for used in node.all_input_nodes:
            if used not in copies:  # an attribute
                copies[used] = graph.node_copy(used)
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[nodes[-1]])
    return Part(GraphModule(original, graph), tuple(values[used] for used in boundary))


def _values(original: GraphModule, arguments: Arguments, wanted: Iterable[Node]) -> dict[Node, Any]:
    """What ``original`` computes at some nodes."""
    asked, kept = set(wanted), dict[Node, Any]()

    def keep(node: Node, value: Any) -> None:
        if node in asked:
            kept[node] = map_tensors(lambda tensor: tensor.detach().clone(), value)

    with torch.no_grad():
        Interpreter(original, listeners=[keep]).run(*positional(original, arguments.copies()))
    return kept


def _fails(
    subject: Subject, part: Part, pass_: Pass, contract: Contract, violation: ContractViolation, label: str
) -> bool:
    """Whether ``pass_`` violates ``contract`` on ``part`` as on the whole model."""
    own = Subject(subject.name, part.program, lambda draw: Arguments(part.inputs), threads=subject.threads)
    try:
        with default_dtype(subject.dtype):
            require(verify(own, pass_, contract, label).comparison, contract)
    except ContractViolation as found:
        return str(found).partition("\n")[0] == str(violation).partition("\n")[0]
    except Exception:
        return False  # another failure is another matter
    return False


def _single_sample(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Inputs with one sample, where all tensors among them have the same number along their first dimension."""
    sizes = {value.shape[0] for value in inputs if isinstance(value, torch.Tensor) and value.dim()}
    if len(sizes) != 1 or sizes == {1}:
        return inputs
    return tuple(value[:1].clone() if isinstance(value, torch.Tensor) and value.dim() else value for value in inputs)


def write_test(
    folder: Path, part: Part, pass_name: str, contract: Contract, what: str, model: str, where: object | None
) -> Path:
    """Write ``part`` as a test file with its weights and inputs beside it, and return the path of the test.

    Args:
        folder: where to write; what an earlier run left there is replaced.
        part: the program and its inputs.
        pass_name: the pass, as ``--fx-pass`` takes it.
        contract: what it is held to.
        what: the failure in a sentence.
        model: where the part was cut out.
        where: the user's line.

    Raises:
        FxError: the program or an input cannot be written as source and tensors.
    """
    slug = re.sub(r"\W+", "_", f"{pass_name}_{model}").strip("_").lower()
    inputs = [_spell(index, value) for index, value in enumerate(part.inputs)]
    with tempfile.TemporaryDirectory() as made:
        package = Path(made) / "package"
        part.program.to_folder(package, "Program")
        source = (package / "module.py").read_text(encoding="utf-8")
        source = source.partition('"""\n')[2] if source.startswith('"""') else source
        text = _TEMPLATE.format(
            what=what, model=model, where="" if where is None else f" at {where}", source=source.strip() + "\n",
            inputs="".join(f"{value}, " for value in inputs).rstrip(" "), pass_name=pass_name, contract=str(contract),
            slug=slug,
        )  # fmt: skip
        target = folder / slug
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for file in package.iterdir():
            if file.suffix in (".safetensors", ".pt"):
                shutil.copy(file, target / file.name)
    tensors = {str(index): value.contiguous() for index, value in enumerate(part.inputs) if _is_tensor(value)}
    save_file(tensors, target / "inputs.safetensors")
    path = target / f"test_{slug}.py"
    path.write_text(text, encoding="utf-8")
    return path


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _spell(index: int, value: Any) -> str:
    if _is_tensor(value):
        return f'tensors["{index}"]'
    if isinstance(value, _LITERALS) or (isinstance(value, tuple) and all(isinstance(v, _LITERALS) for v in value)):
        return repr(tuple(value) if isinstance(value, tuple) else value)
    raise FxError("an input of the failing part cannot be written to a file", value=repr(type(value)))
