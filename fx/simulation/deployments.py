"""Programs served by many devices: batches, replicas and pipeline stages, given as data (paper, section 6.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fx.analysis.kernel_calls import ProgramCalls, record_calls, tensors_held
from fx.analysis.memory import MemoryReport, Storage, activation_memory
from fx.errors import AnalysisError
from fx.graph_module import GraphModule, expect_program
from fx.naming.tables import in_bytes, in_seconds, table_lines
from fx.node import Node
from fx.simulation.devices import Device
from fx.simulation.kernel_times import KernelTimes
from fx.simulation.known_devices import get_device
from fx.simulation.run_times import NodeTime, Simulation, estimate_run


@dataclass(frozen=True, slots=True)
class Served:
    """A program to serve, with inputs for any batch."""

    name: str
    """What reports call it."""
    program: GraphModule
    """The program."""
    inputs: Callable[[int], Sequence[Any]]
    """Makes the inputs of a batch of so many samples, real or fake."""
    share: float = 1.0
    """How many of its samples there are for each sample of a program with a share of 1."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Devices and how programs are spread over them."""

    device: Device | str
    """The device, or the name of one that is known."""
    replicas: int = 1
    """Copies of the program that work side by side, each with batches of its own."""
    stages: int = 1
    """Devices that each replica is cut over, each with a part of the program that passes its values on."""
    batch: int = 1
    """Samples in a batch."""


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One part of a program that is cut over several devices."""

    nodes: tuple[Node, ...]
    """The nodes that it runs, in order."""
    seconds: float
    """Seconds of them."""
    transfer: float
    """Seconds to pass on what later stages need."""
    sent: int
    """Bytes of that."""
    memory: int
    """Bytes that it needs: its parameters and the greatest that its values take at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """What one program takes in one deployment."""

    served: Served
    """The program."""
    deployment: Deployment
    """The devices."""
    stages: tuple[Stage, ...]
    """The parts of one replica."""
    simulation: Simulation
    """One run on one device."""
    fits: bool
    """Whether the memory of the device is enough for each stage."""

    @property
    def latency(self) -> float:
        """Seconds from the start of a batch to its end."""
        return sum(stage.seconds + stage.transfer for stage in self.stages)

    @property
    def interval(self) -> tuple[float, float]:
        """The seconds between which the latency is expected with a probability of 90 %."""
        low, high = self.simulation.interval
        ratio = self.latency / self.simulation.seconds if self.simulation.seconds else 1.0
        return low * ratio, high * ratio

    @property
    def throughput(self) -> float:
        """Samples a second of all replicas; the slowest stage sets the pace."""
        pace = max(stage.seconds + stage.transfer for stage in self.stages)
        return self.deployment.replicas * self.deployment.batch / pace

    @property
    def devices(self) -> int:
        """Devices that it takes."""
        return self.deployment.replicas * self.deployment.stages


@dataclass(frozen=True, slots=True, eq=False)
class DeploymentReport:
    """What programs take in deployments."""

    services: tuple[Service, ...]
    """One for each program and deployment, in order."""

    def mixed_throughput(self, deployment: Deployment) -> float:
        """Samples a second of all programs together where each device serves all of them in turn, by their shares."""
        found = [one for one in self.services if one.deployment == deployment]
        samples = sum(one.served.share for one in found)
        return samples / sum(one.served.share / one.throughput for one in found) if found else 0.0

    def __str__(self) -> str:
        header = ["program, device", "over", "batch", "latency", "samples a second", "memory"]
        lines = table_lines(header, map(_row, self.services))
        if any(not one.fits for one in self.services):
            lines.append("!: more memory than the device has")
        return "\n".join(lines)


def simulate_deployments(
    programs: Iterable[Served], deployments: Iterable[Deployment], *, times: KernelTimes | None = None
) -> DeploymentReport:
    """Estimate what programs take on many devices: each program in each deployment (paper, section 6.3).

    Stages are cut so that the slowest takes as little as it can. Batches follow one another, so that every stage works.

    Args:
        programs: the programs to serve.
        deployments: the devices; several with other batches are a range of batches.
        times: the source of the times of kernels, by default a roofline of each device.

    Raises:
        AnalysisError: a deployment makes no sense, or has more stages than a program has nodes that take time.
        Exception: as of :func:`~fx.simulation.run_times.simulate`.

    >>> import fx, torch
    >>> served = Served("linear", fx.symbolic_trace(torch.nn.Linear(64, 64)), lambda batch: [torch.empty(batch, 64)])
    >>> report = simulate_deployments([served], [Deployment("A100", batch=batch) for batch in (1, 1024)])
    >>> first, second = report.services
    >>> second.throughput > 100 * first.throughput
    True
    """
    recorded: dict[tuple[int, int], tuple[ProgramCalls, MemoryReport]] = {}
    found: list[Service] = []
    wanted = [_checked(one) for one in deployments]
    for served in programs:
        expect_program(served.program, "a Served has a GraphModule")
        for deployment in wanted:
            key = id(served), deployment.batch
            if key not in recorded:
                inputs = served.inputs(deployment.batch)
                calls, memory = record_calls(served.program, *inputs), activation_memory(served.program, *inputs)
                recorded[key] = calls, memory
            found.append(_service(served, deployment, *recorded[key], times))
    return DeploymentReport(tuple(found))


def _checked(deployment: Deployment) -> Deployment:
    for name in ("replicas", "stages", "batch"):
        if getattr(deployment, name) < 1:
            raise AnalysisError(
                f"a deployment has {getattr(deployment, name)} {name}", remedy="give 1 or more", value=str(deployment)
            )
    return deployment


def _service(
    served: Served, deployment: Deployment, calls: ProgramCalls, memory: MemoryReport, times: KernelTimes | None
) -> Service:
    device = get_device(deployment.device) if isinstance(deployment.device, str) else deployment.device
    simulation = estimate_run(calls, memory, device, times=times)
    stages = _stages(simulation, memory, deployment.stages, device, served)
    fits = all(stage.memory <= device.capacity.value for stage in stages)
    return Service(served, deployment, stages, simulation, fits)


def _stages(
    simulation: Simulation, memory: MemoryReport, count: int, device: Device, served: Served
) -> tuple[Stage, ...]:
    nodes = [one for one in simulation.nodes if one.node is not None]
    if count == 1:
        whole = tuple(one.node for one in nodes if one.node)
        return (Stage(whole, simulation.seconds, 0.0, 0, simulation.memory),)
    if len(nodes) < count:
        raise AnalysisError(
            f"{served.name} cannot be cut into {count} stages",
            why=f"only {len(nodes)} of its nodes take any time",
            remedy="ask for less, or capture it with smaller modules",
        )
    total = sum(one.seconds for one in nodes) or 1.0
    scale = simulation.seconds / total  # of an accelerator, the time that its host and itself work side by side
    order = {node: place for place, node in enumerate(served.program.graph.nodes)}
    held = _parameters(served.program)
    found: list[Stage] = []
    for part in _parts(nodes, count):
        own = [one.node for one in part if one.node is not None]
        first, last = order[own[0]], order[own[-1]]
        sent = 0 if len(found) == count - 1 else _bytes_across(memory.storages, order, last)
        values = _most_inside(memory, order, first, last)
        parameters = sum(size for node, size in held.items() if first <= order[node] <= last)
        seconds = scale * sum(one.seconds for one in part)
        found.append(Stage(tuple(own), seconds, sent / device.link.value, sent, parameters + values + sent))
    return tuple(found)


def _parts(nodes: Sequence[NodeTime], count: int) -> list[list[NodeTime]]:
    """Cut a sequence into parts of which the slowest takes as little as it can: by halving the bound on it."""
    low, high = max(one.seconds for one in nodes), sum(one.seconds for one in nodes)
    for _ in range(60):
        bound = (low + high) / 2
        low, high = (low, bound) if len(_packed(nodes, bound, 1)) <= count else (bound, high)
    return _packed(nodes, high * (1 + 1e-9), count)


def _packed(nodes: Sequence[NodeTime], bound: float, least: int) -> list[list[NodeTime]]:
    """Parts that take no longer than a bound, each as many nodes as it can; at least so many parts."""
    parts, inside = [[nodes[0]]], nodes[0].seconds
    for left, one in zip(range(len(nodes) - 1, 0, -1), nodes[1:], strict=True):
        inside += one.seconds
        if inside > bound or left == least - len(parts):
            parts.append([])
            inside = one.seconds
        parts[-1].append(one)
    return parts


def _bytes_across(storages: Iterable[Storage], order: Mapping[Node, int], last: int) -> int:
    """Bytes of values that are made up to a node and used after it, each once."""
    return sum(
        storage.size
        for storage in storages
        if storage.nodes
        and order[storage.nodes[0]] <= last
        and any(order[user] > last for node in storage.nodes for user in node.users)
    )


def _most_inside(memory: MemoryReport, order: Mapping[Node, int], first: int, last: int) -> int:
    """The most that values take at a time while the nodes from ``first`` to ``last`` run."""
    moments = [one.made for one in memory.storages if one.node is not None and first <= order[one.node] <= last]
    return max((memory.live[moment] for moment in moments), default=0)


def _parameters(program: GraphModule) -> dict[Node, int]:
    """Bytes of parameters and buffers that each node uses first."""
    found: dict[Node, int] = {}
    seen: set[int] = set()
    for node in program.graph.nodes:
        own = [tensor for tensor in tensors_held(program, node) if id(tensor) not in seen]
        seen.update(map(id, own))
        if own:
            found[node] = sum(tensor.numel() * tensor.element_size() for tensor in own)
    return found


def _row(one: Service) -> list[str]:
    deployment = one.deployment
    over = str(deployment.replicas) + (f" x {deployment.stages}" if deployment.stages > 1 else "")
    memory = in_bytes(max(stage.memory for stage in one.stages)) + ("" if one.fits else " !")
    name = f"{one.served.name}, {one.simulation.device.name}"
    return [name, over, str(deployment.batch), in_seconds(one.latency), f"{one.throughput:.4g}", memory]
