"""Programs served by many devices: batches, replicas and pipeline stages, described as data (paper, section 6.3)."""

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
    """A program to serve, with inputs for any batch size."""

    name: str
    """The name in reports."""
    program: GraphModule
    """The program."""
    inputs: Callable[[int], Sequence[Any]]
    """A function from a batch size to the inputs of such a batch, real or fake."""
    share: float = 1.0
    """The number of its samples for each sample of a program with a share of 1."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Devices, and the distribution of programs over them."""

    device: Device | str
    """The device, or the name of a registered device."""
    replicas: int = 1
    """Copies of the program that run in parallel, each on its own batches."""
    stages: int = 1
    """Pipeline stages of each replica, one device per stage."""
    batch: int = 1
    """Samples per batch."""


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One part of a program that is split over several devices."""

    nodes: tuple[Node, ...]
    """The nodes that it runs, in order."""
    seconds: float
    """Seconds to run them."""
    transfer: float
    """Seconds to send the values that later stages need."""
    sent: int
    """Bytes of those values."""
    memory: int
    """Bytes for its parameters, the peak of its values, and the values to send."""


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """The estimate for one program in one deployment."""

    served: Served
    """The program."""
    deployment: Deployment
    """The devices."""
    stages: tuple[Stage, ...]
    """The parts of one replica."""
    simulation: Simulation
    """The estimate of one run on one device."""
    fits: bool
    """Whether the memory of the device is enough for each stage."""

    @property
    def latency(self) -> float:
        """Seconds from the start of a batch to its end."""
        return sum(stage.seconds + stage.transfer for stage in self.stages)

    @property
    def interval(self) -> tuple[float, float]:
        """The bounds, in seconds, within which the latency lies with a probability of 90 %."""
        low, high = self.simulation.interval
        ratio = self.latency / self.simulation.seconds if self.simulation.seconds else 1.0
        return low * ratio, high * ratio

    @property
    def throughput(self) -> float:
        """Samples per second of all replicas; the slowest stage sets the pace."""
        pace = max(stage.seconds + stage.transfer for stage in self.stages)
        return self.deployment.replicas * self.deployment.batch / pace

    @property
    def devices(self) -> int:
        """The number of devices."""
        return self.deployment.replicas * self.deployment.stages


@dataclass(frozen=True, slots=True, eq=False)
class DeploymentReport:
    """The estimates for several programs and deployments."""

    services: tuple[Service, ...]
    """One estimate for each program and deployment, in order."""

    def mixed_throughput(self, deployment: Deployment) -> float:
        """Return the samples per second of all programs if each device serves them in turn, by their shares."""
        services = [service for service in self.services if service.deployment == deployment]
        samples = sum(service.served.share for service in services)
        return samples / sum(service.served.share / service.throughput for service in services) if services else 0.0

    def __str__(self) -> str:
        header = ["program, device", "over", "batch", "latency", "samples a second", "memory"]
        lines = table_lines(header, map(_row, self.services))
        if any(not service.fits for service in self.services):
            lines.append("!: more memory than the device has")
        return "\n".join(lines)


def simulate_deployments(
    programs: Iterable[Served], deployments: Iterable[Deployment], *, times: KernelTimes | None = None
) -> DeploymentReport:
    """Estimate the latency, throughput and memory of each program in each deployment (paper, section 6.3).

    Programs are cut into stages so that the slowest stage is as fast as possible. Batches follow one another, so that
    all stages work at the same time.

    Args:
        programs: the programs to serve.
        deployments: the deployments; vary ``batch`` to compare batch sizes.
        times: the source of the times of kernels; by default a roofline of each device.

    Raises:
        AnalysisError: a deployment has a count below 1, or more stages than a program has nodes that take time.
        Exception: as for :func:`~fx.simulation.run_times.simulate`.

    >>> import fx, torch
    >>> served = Served("linear", fx.symbolic_trace(torch.nn.Linear(64, 64)), lambda batch: [torch.empty(batch, 64)])
    >>> report = simulate_deployments([served], [Deployment("A100", batch=batch) for batch in (1, 1024)])
    >>> first, second = report.services
    >>> second.throughput > 100 * first.throughput
    True
    """
    recorded: dict[tuple[int, int], tuple[ProgramCalls, MemoryReport]] = {}
    services: list[Service] = []
    valid_deployments = [_checked(deployment) for deployment in deployments]
    for served in programs:
        expect_program(served.program, "a Served has a GraphModule")
        for deployment in valid_deployments:
            key = id(served), deployment.batch
            if key not in recorded:
                inputs = served.inputs(deployment.batch)
                calls, memory = record_calls(served.program, *inputs), activation_memory(served.program, *inputs)
                recorded[key] = calls, memory
            services.append(_service(served, deployment, *recorded[key], times))
    return DeploymentReport(tuple(services))


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
    nodes = [timing for timing in simulation.nodes if timing.node is not None]
    if count == 1:
        whole = tuple(timing.node for timing in nodes if timing.node)
        return (Stage(whole, simulation.seconds, 0.0, 0, simulation.memory),)
    if len(nodes) < count:
        raise AnalysisError(
            f"{served.name} cannot be cut into {count} stages",
            why=f"only {len(nodes)} of its nodes take any time",
            remedy="ask for fewer stages, or capture it with smaller modules",
        )
    total = sum(timing.seconds for timing in nodes) or 1.0
    scale = simulation.seconds / total  # accounts for the overlap of an accelerator and its host
    order = {node: place for place, node in enumerate(served.program.graph.nodes)}
    parameter_bytes = _parameters(served.program)
    stages: list[Stage] = []
    for part in _parts(nodes, count):
        own = [timing.node for timing in part if timing.node is not None]
        first, last = order[own[0]], order[own[-1]]
        sent = 0 if len(stages) == count - 1 else _bytes_across(memory.storages, order, last)
        values = _most_inside(memory, order, first, last)
        parameters = sum(size for node, size in parameter_bytes.items() if first <= order[node] <= last)
        seconds = scale * sum(timing.seconds for timing in part)
        stages.append(Stage(tuple(own), seconds, sent / device.link.value, sent, parameters + values + sent))
    return tuple(stages)


def _parts(nodes: Sequence[NodeTime], count: int) -> list[list[NodeTime]]:
    """Cut a sequence into ``count`` parts that minimize the time of the slowest, by bisecting the bound on it."""
    low, high = max(timing.seconds for timing in nodes), sum(timing.seconds for timing in nodes)
    for _ in range(60):
        bound = (low + high) / 2
        low, high = (low, bound) if len(_packed(nodes, bound, 1)) <= count else (bound, high)
    return _packed(nodes, high * (1 + 1e-9), count)


def _packed(nodes: Sequence[NodeTime], bound: float, least: int) -> list[list[NodeTime]]:
    """Fill parts greedily up to a bound in seconds each; return at least ``least`` parts."""
    parts, inside = [[nodes[0]]], nodes[0].seconds
    for remaining, timing in zip(range(len(nodes) - 1, 0, -1), nodes[1:], strict=True):
        inside += timing.seconds
        if inside > bound or remaining == least - len(parts):
            parts.append([])
            inside = timing.seconds
        parts[-1].append(timing)
    return parts


def _bytes_across(storages: Iterable[Storage], order: Mapping[Node, int], last: int) -> int:
    """Return the bytes of the values that are computed up to a node and used after it; each counts once."""
    return sum(
        storage.size
        for storage in storages
        if storage.nodes
        and order[storage.nodes[0]] <= last
        and any(order[user] > last for node in storage.nodes for user in node.users)
    )


def _most_inside(memory: MemoryReport, order: Mapping[Node, int], first: int, last: int) -> int:
    """Return the peak memory of values while the nodes from ``first`` to ``last`` run."""
    moments = [
        storage.made for storage in memory.storages if storage.node is not None and first <= order[storage.node] <= last
    ]
    return max((memory.live[moment] for moment in moments), default=0)


def _parameters(program: GraphModule) -> dict[Node, int]:
    """Return for each node the bytes of the parameters and buffers that it is the first to use."""
    sizes: dict[Node, int] = {}
    seen_ids: set[int] = set()
    for node in program.graph.nodes:
        own = [tensor for tensor in tensors_held(program, node) if id(tensor) not in seen_ids]
        seen_ids.update(map(id, own))
        if own:
            sizes[node] = sum(tensor.numel() * tensor.element_size() for tensor in own)
    return sizes


def _row(service: Service) -> list[str]:
    deployment = service.deployment
    over = str(deployment.replicas) + (f" x {deployment.stages}" if deployment.stages > 1 else "")
    memory = in_bytes(max(stage.memory for stage in service.stages)) + ("" if service.fits else " !")
    name = f"{service.served.name}, {service.simulation.device.name}"
    return [name, over, str(deployment.batch), in_seconds(service.latency), f"{service.throughput:.4g}", memory]
