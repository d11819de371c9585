"""A program that runs one node at a time, and records the writes to its memory."""

from __future__ import annotations

import copy
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from fx import GraphModule, Interpreter, Node
from fx.interpreter import positional
from fx.operators.effects import effect_of
from pytest_fx.failures.pairing import Fingerprint
from pytest_fx.harness.evaluation import Arguments, converted, default_dtype
from pytest_fx.harness.shared_draws import SharedDraws
from pytest_fx.harness.shared_weights import in_dtype
from pytest_fx.harness.structure import leaves, map_tensors


class StepwiseProgram(Interpreter):
    """One program that runs one node at a time."""

    def __init__(
        self,
        program: GraphModule,
        arguments: Arguments,
        dtype: torch.dtype = torch.float64,
        *,
        to_float64: bool = False,
        draws_in: torch.dtype = torch.float64,
    ) -> None:
        """Prepare to run ``program`` on copies of ``arguments``, with its values in float64 if ``to_float64``.

        A program without floating-point tensors runs in ``dtype`` otherwise. Random numbers are drawn in ``draws_in``.
        """
        super().__init__(program)
        self.program = program
        self._to_float64 = to_float64
        self._draws_in = draws_in
        own = (tensor.dtype for tensor in (*program.parameters(), *program.buffers()) if tensor.is_floating_point())
        dtype = torch.float64 if to_float64 else next(own, dtype)
        copies = arguments.copies(dtype)
        self.args_iter = iter(self.graph.process_inputs(*positional(program, copies.args, copies.kwargs)))
        self.dtype = dtype
        self.writes = any(writes_input(node) for node in self.graph.nodes)
        self.devices = sorted({tensor.device.index for tensor in arguments.tensors if tensor.device.type == "cuda"})
        self.random_states = self._random_states()
        self._writers: dict[int, tuple[Node, ...]] = {}
        """For memory that holds values: the nodes that have written to it since it was allocated, in order."""

    def fetch_attr(self, target: str) -> Any:
        """Return the attribute at ``target``; a tensor or a module is converted if the program runs in float64."""
        value = super().fetch_attr(target)
        if self._to_float64 and isinstance(value, torch.nn.Module):
            return in_dtype(copy.deepcopy(value), torch.float64)
        return converted(value, torch.float64) if self._to_float64 and isinstance(value, torch.Tensor) else value

    def step(self, node: Node) -> Any:
        """Run ``node`` and return its value. Random numbers are the same as when the program runs alone."""
        draws = effect_of(node) is not None and node.op not in ("placeholder", "get_attr")
        if draws:
            torch.set_rng_state(self.random_states[0])
            for device, state in zip(self.devices, self.random_states[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
        shares_draws = draws and self.dtype == torch.float64 != self._draws_in
        with default_dtype(self.dtype), SharedDraws(self._draws_in) if shares_draws else nullcontext():
            value = self.env[node] = self.run_node(node)
        if draws:
            self.random_states = self._random_states()
        if self.writes:
            self._note_memory(node, value)
        return value

    def fingerprints(self) -> dict[Node, Fingerprint]:
        """Run the program as far as it does not raise, and return the fingerprint of each value."""
        fingerprints: dict[Node, Fingerprint] = {}
        for node in self.graph.nodes:
            if node.op == "output":
                break
            try:
                fingerprint = Fingerprint.of(self.step(node))
            except Exception:  # the comparison with the other program reports it
                break
            if fingerprint is not None:
                fingerprints[node] = fingerprint
            self.forget(node)
        return fingerprints

    def writers_of(self, node: Node) -> tuple[Node, ...]:
        """Return the nodes that have written to the value of ``node`` since it was computed."""
        memory = _memory(self.env[node]) if self.writes and node in self.env else ()
        return tuple(dict.fromkeys(writer for each in memory for writer in self._writers.get(each, ())))

    def _note_memory(self, node: Node, value: Any) -> None:
        read = {each for used in node.all_input_nodes for each in _memory(self.env[used])}
        for each in set(_memory(value)) - read:
            self._writers.pop(each, None)  # new memory at an old address
        written = written_input(node)
        for each in () if written is None else _memory(self.env[written]):
            self._writers[each] = (*self._writers.get(each, ()), node)

    def _random_states(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self.devices)]

    def forget(self, node: Node) -> None:
        """Free the values that no node after ``node`` needs."""
        for dead in self.user_to_last_uses.get(node, ()):
            del self.env[dead]

    def run_on(self, node: Node, inputs: dict[Node, Any]) -> Any:
        """Return the value of ``node`` on other inputs than the program's own, and leave these unchanged."""
        if writes_input(node):
            inputs = {used: map_tensors(torch.clone, value) for used, value in inputs.items()}
        narrowed = {used: map_tensors(self.narrowed, value) for used, value in inputs.items()}
        own, self.env = self.env, narrowed
        try:
            with default_dtype(self.dtype):
                return self.run_node(node)
        finally:
            self.env = own

    def narrowed(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor in the dtype of the program, if its own is wider."""
        return converted(tensor, self.dtype) if tensor.dtype in (torch.float64, torch.complex128) else tensor


@contextmanager
def buffers_kept(programs: Sequence[GraphModule]) -> Generator[None]:
    """Restore, after the block, the buffers in which programs count or collect."""
    buffers = {id(buffer): buffer for program in programs for buffer in program.buffers()}
    before = [(buffer, buffer._version, buffer.clone()) for buffer in buffers.values()]
    try:
        yield
    finally:
        for buffer, version, values in before:
            if buffer._version != version:
                buffer.copy_(values)


def repeats(node: Node) -> bool:
    """Return whether running ``node`` a second time, on copies, changes nothing."""
    effect = effect_of(node)
    return effect is None or effect.kind == "check" or writes_input(node)


def writes_input(node: Node) -> bool:
    """Return whether ``node`` writes to one of its inputs that is not an attribute."""
    written = written_input(node)
    return written is not None and written.op != "get_attr"


def written_input(node: Node) -> Node | None:
    """Return the node whose value ``node`` writes to, if it is one of its arguments."""
    effect = effect_of(node)
    if effect is None or effect.kind != "write" or effect.written is None:
        return None
    arguments: Any = node.args if isinstance(effect.written, int) else node.kwargs
    has_argument = (
        effect.written in range(len(node.args)) if isinstance(effect.written, int) else effect.written in arguments
    )
    written = arguments[effect.written] if has_argument else None
    return written if isinstance(written, Node) else None


def _memory(value: Any) -> list[int]:
    """Return the addresses of the tensors in a value."""
    tensors = [leaf for _, leaf in leaves(value) if isinstance(leaf, torch.Tensor)]
    dense = (each for each in tensors if each.layout == torch.strided and not each.is_nested and not each.is_meta)
    return [memory for each in dense if (memory := each.untyped_storage().data_ptr())]
