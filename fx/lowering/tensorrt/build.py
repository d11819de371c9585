"""From a network to an engine: the configuration of TensorRT's builder, and its errors."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import torch

from fx.errors import LoweringError
from fx.lowering.tensorrt.cache import EngineCache
from fx.lowering.tensorrt.engine import TensorRTEngine
from fx.lowering.tensorrt.library import capability_of, library, library_name
from fx.lowering.tensorrt.network import TensorRTNetwork
from fx.naming.printing import describe


def build_engine(
    network: TensorRTNetwork, targets: tuple[str, ...], workspace: int | None, tf32: bool, cache: EngineCache | None
) -> TensorRTEngine:
    """Build a finished network, or find the engine in the cache.

    Args:
        network: the network.
        targets: compute capabilities to build for; empty for the GPU in this machine.
        workspace: the most bytes that a layer may use for itself; ``None`` for no limit.
        tf32: whether float32 products may be computed with 10 bits of the mantissa.
        cache: the cache to search first, in which a new engine is stored.

    Raises:
        LoweringError: TensorRT cannot build it; the message quotes TensorRT, with the operation that it names.
    """
    key = None if cache is None else _key(network, targets, workspace, tf32)
    if cache is not None and key is not None and (cached := cache.find(key)) is not None:
        return cached
    started = time.perf_counter()
    plan = _build(network, _configuration(network, targets, workspace, tf32))
    seconds = time.perf_counter() - started
    bindings = (tuple(network.inputs), tuple(network.outputs))
    engine = TensorRTEngine(plan, *bindings, network.is_single, library_name(), targets, seconds)
    if cache is not None and key is not None:
        cache.keep(key, engine)
    return engine


def _key(network: TensorRTNetwork, targets: tuple[str, ...], workspace: int | None, tf32: bool) -> str | None:
    """Return a hash of all that determines an engine: the network with its weights, options, versions, the GPU.

    It is ``None`` if the network has no digest.
    """
    if network.digest is None:
        return None
    device = None if targets else torch.cuda.get_device_name()
    facts = (network.digest, targets, workspace, tf32, library_name(), device)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _configuration(network: TensorRTNetwork, targets: tuple[str, ...], workspace: int | None, tf32: bool) -> Any:
    trt, builder = library(), network.builder
    configuration = builder.create_builder_config()
    if not tf32:
        configuration.clear_flag(trt.BuilderFlag.TF32)
    if workspace is not None:
        configuration.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace)
    if targets:
        configuration.num_compute_capabilities = len(targets)
        for number, target in enumerate(targets):
            configuration.set_compute_capability(capability_of(target), number)
    if any(binding.varies for binding in network.inputs):
        profile = builder.create_optimization_profile()
        for binding in network.inputs:
            profile.set_shape(binding.name, binding.least, binding.typical, binding.most)
        configuration.add_optimization_profile(profile)
    return configuration


def _build(network: TensorRTNetwork, configuration: Any) -> bytes:
    try:
        memory = network.builder.build_serialized_network(network.definition, configuration)
    except MemoryError as error:
        raise _failure(network, f"MemoryError: {error}") from error
    if memory is None:
        raise _failure(network, network.log.words())
    return bytes(memory)


def _failure(network: TensorRTNetwork, words: str) -> LoweringError:
    node = network.node_of(words)
    return LoweringError(
        "TensorRT cannot build the engine",
        where=None if node is None else node.source,
        value=None if node is None else describe(node),
        why=words,
        remedy='exclude operations with veto=…, or keep failing regions in eager Python with on_failure="eager"',
    )
