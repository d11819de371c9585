"""Settings of PyTorch and Python for the whole process or thread: for each, how to read, restore and describe it."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import _tensor_str
from torch.nn.modules import module as torch_module
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _device, _python_dispatch

from fx.capture.patching import are_patches_restored, restore_patches
from pytest_fx.harness.evaluation import float32_matmul_precision

_C: Any = torch._C
_backends: Any = torch.backends

Describe = Callable[[str, Any, Any], Iterator[str]]


def _described_as_value(what: str, before: Any, after: Any) -> Iterator[str]:
    """Yield a sentence such as ``"the default dtype is float64, was float32"``."""
    yield f"{what} {_shown(after)}, {'were' if what.endswith(' are') else 'was'} {_shown(before)}"


@dataclass(frozen=True, slots=True)
class Switch:
    """One setting that a program can change for all code that runs after it."""

    what: str
    """The beginning of a sentence on it: ``"the default dtype is"``."""
    read: Callable[[], Any]
    """A function that returns the value, or a copy of it, to be compared with ``==``."""
    write: Callable[[Any], object]
    """A function that restores a value that ``read`` returned."""
    describe: Describe = _described_as_value
    """A function that makes sentences of ``what``, the value before, and the value after."""
    by_imports: bool = False
    """True if imports of modules change it, which is no fault of theirs."""


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value).removeprefix("torch.")


def _not_reported(what: str, before: Any, after: Any) -> Iterator[str]:
    """Yield nothing: another row reports it."""
    yield from ()


def _described_by_name(what: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences such as ``"the environment variable X was set"``, for each key whose value changed."""
    for name in {**before, **after}:
        if name not in after:
            yield f"{what} {name} was removed"
        elif name not in before:
            yield f"{what} {name} was set"
        elif before[name] != after[name]:
            yield f"{what} {name} was changed"


def _described_as_changed(what: str, before: Any, after: Any) -> Iterator[str]:
    yield f"{what} changed"


# Deterministic algorithms, autocast, inference mode


def _write_inference_mode(enabled: bool) -> None:
    # This guard is never exited: its exit would restore the mode that was wrongly left on.
    _never_exited.append(torch.inference_mode(enabled))
    _never_exited[-1].__enter__()


_never_exited: list[Any] = []


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _read_autocast() -> tuple[Any, ...]:
    # The nesting decides when autocast drops its cached copies of weights. PyTorch has no function to read it.
    nesting = _C.autocast_increment_nesting() - 1
    _C.autocast_decrement_nesting()
    devices = [(torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in ("cpu", "cuda")]
    return (*devices, torch.is_autocast_cache_enabled(), nesting)


def _write_autocast(before: tuple[Any, ...]) -> None:
    *devices, cache, nesting = before
    for name, (enabled, dtype) in zip(("cpu", "cuda"), devices, strict=True):
        torch.set_autocast_enabled(name, enabled)
        torch.set_autocast_dtype(name, dtype)
    torch.set_autocast_cache_enabled(cache)
    while _C.autocast_increment_nesting() - 1 > nesting:
        _C.autocast_decrement_nesting()
        _C.autocast_decrement_nesting()
    _C.autocast_decrement_nesting()
    torch.clear_autocast_cache()


def _describe_autocast(what: str, before: tuple[Any, ...], after: tuple[Any, ...]) -> Iterator[str]:
    for name, old, new in zip(("on the CPU", "on GPUs", "caches"), before, after, strict=False):
        if old != new:
            enabled, dtype = new if isinstance(new, tuple) else (new, None)
            yield f"{what} {name} {'on' if enabled else 'off'}" + (f", with {_shown(dtype)}" if dtype else "")
    if before[:-1] == after[:-1]:
        yield f"{what} was entered and not left"


# Modes on the stacks of torch, including the default device


def _read_function_modes() -> tuple[list[Any], Any, torch.device | None]:
    device_context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return _get_current_function_mode_stack(), device_context, _device.CURRENT_DEVICE


def _write_function_modes(before: tuple[list[Any], Any, torch.device | None]) -> None:
    while _C._len_torch_function_stack():
        _C._pop_torch_function_stack()
    modes, torch._GLOBAL_DEVICE_CONTEXT.device_context, _device.CURRENT_DEVICE = before
    for mode in modes:
        _C._push_on_torch_function_stack(mode)


def _describe_function_modes(
    what: str, before: tuple[list[Any], Any, Any], after: tuple[list[Any], Any, Any]
) -> Iterator[str]:
    yield from _describe_modes(what, before, after)
    devices = [
        next((mode.device for mode in reversed(modes) if isinstance(mode, _device.DeviceContext)), "cpu")
        for modes in (before[0], after[0])
    ]
    if devices[0] != devices[1]:
        yield from _described_as_value("the default device is", *devices)


_DISPATCH_FLAGS = [name for name in vars(_python_dispatch) if name.startswith("_is_in_")]


def _read_dispatch_modes() -> tuple[list[Any], dict[str, Any]]:
    flags = {name: getattr(_python_dispatch, name) for name in _DISPATCH_FLAGS}
    return _python_dispatch._get_current_dispatch_mode_stack(), flags


def _write_dispatch_modes(before: tuple[list[Any], dict[str, Any]]) -> None:
    while _C._len_torch_dispatch_stack():
        _C._pop_torch_dispatch_stack(None)
    modes, flags = before
    for mode in modes:
        _C._push_on_torch_dispatch_stack(mode)
    for name, flag in flags.items():
        setattr(_python_dispatch, name, flag)
    if (
        set_compiler_flag := getattr(_python_dispatch, "set_is_in_mode_without_ignore_compile_internals", None)
    ) is not None:
        set_compiler_flag(flags["_is_in_any_mode_without_ignore_compile_internals"])


def _describe_modes(what: str, before: tuple[list[Any], ...], after: tuple[list[Any], ...]) -> Iterator[str]:
    for modes, others, how in ((after[0], before[0], "was left on"), (before[0], after[0], "was removed")):
        for mode in modes:
            if not any(mode is other for other in others) and not isinstance(mode, _device.DeviceContext):
                yield f"the {what} {type(mode).__name__} {how}"


# Hooks of all modules


_HOOKS = {
    f"_global_{kind}": kind.replace("_pre_", " pre-").removesuffix("s").replace("_", " ")
    for kind in (
        "forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks",
        "buffer_registration_hooks", "module_registration_hooks", "parameter_registration_hooks",
    )
}  # fmt: skip
_HOOKS_OF = vars(torch_module)
_HOOK_TABLES = [name for name, table in _HOOKS_OF.items() if name.startswith("_global_") and isinstance(table, dict)]


def _read_hooks() -> dict[str, dict[int, Any]]:
    return {name: _HOOKS_OF[name].copy() for name in _HOOK_TABLES if _HOOKS_OF[name]}


def _write_hooks(before: dict[str, dict[int, Any]]) -> None:
    for name in _HOOK_TABLES:
        _HOOKS_OF[name].clear()
        _HOOKS_OF[name].update(before.get(name, {}))


def _describe_hooks(what: str, before: dict[str, dict[int, Any]], after: dict[str, dict[int, Any]]) -> Iterator[str]:
    for name, noun in _HOOKS.items():
        old, new = before.get(name, {}), after.get(name, {})
        for key in old.keys() ^ new.keys():
            yield f"{what} {noun} was {'added' if key in new else 'removed'}"


# Python's own


def _read_folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _write_folder(before: str | None) -> None:
    if before is not None:
        os.chdir(before)


def _read_environment() -> dict[Any, Any]:
    return vars(os.environ)["_data"].copy()  # not decoded: that would take as long as everything else


def _write_environment(before: dict[Any, Any]) -> None:
    names = {os.environ.decodekey(name): os.environ.decodevalue(value) for name, value in before.items()}
    for name in [name for name in os.environ if name not in names]:
        del os.environ[name]
    for name, value in names.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _describe_environment(what: str, before: dict[Any, Any], after: dict[Any, Any]) -> Iterator[str]:
    old, new = ({os.environ.decodekey(name): value for name, value in each.items()} for each in (before, after))
    yield from _described_by_name(what, old, {name: value for name, value in new.items() if not _is_torchs(name, old)})


def _is_torchs(name: str, before: Mapping[str, Any]) -> bool:
    """Return whether torch itself has set a variable that was unset: Inductor does so with its cache directory."""
    folder = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    return name not in before and folder is not None and os.environ.get(name) == folder.default_cache_dir()


def _write_path(before: tuple[list[str], list[str]]) -> None:
    sys.path, sys.path[:] = before


def _describe_path(what: str, before: tuple[Any, list[str]], after: tuple[Any, list[str]]) -> Iterator[str]:
    added = [entry for entry in after[1] if entry not in before[1]]
    removed = [entry for entry in before[1] if entry not in after[1]]
    yield from (f"{what} gained {entry}" for entry in added)
    yield from (f"{what} lost {entry}" for entry in removed)
    if not added and not removed:
        yield f"{what} has another order"


def _read_warnings() -> tuple[Any, ...]:
    return warnings.filters, list(warnings.filters), warnings.showwarning


def _write_warnings(before: tuple[Any, ...]) -> None:
    warnings.filters, filters, warnings.showwarning = before
    warnings.resetwarnings()  # forgets which warnings were shown
    warnings.filters[:] = filters  # pyright: ignore[reportIndexIssue]


_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signal, name)]


def _read_signals() -> dict[str, Any]:
    return {number.name: signal.getsignal(number) for number in _SIGNALS}


def _write_signals(before: dict[str, Any]) -> None:
    if threading.current_thread() is threading.main_thread():
        for name, handler in before.items():
            if handler is not None:  # installed by something that is not Python
                signal.signal(getattr(signal, name), handler)


_STREAMS = ("stdin", "stdout", "stderr", "displayhook", "excepthook", "unraisablehook")


def _write_streams(before: dict[str, Any]) -> None:
    for name, value in before.items():
        setattr(sys, name, value)


_SMALLEST = 5e-324


def _denormals_kept() -> bool:
    return _SMALLEST * float(1) > 0  # PyTorch has no function to read the setting


def _write_float32_precision(before: str | None) -> None:
    if before is not None:
        torch.set_float32_matmul_precision(before)


def _float32_precision_of(backend: str, operation: str) -> Switch:
    return Switch(
        f"the float32 precision of {operation} ({backend}) is",
        lambda: _C._get_fp32_precision_getter(backend, operation),
        lambda before: _C._set_fp32_precision_setter(backend, operation, before),
    )


def _flag(what: str, name: str) -> Switch:
    """Return the switch of a flag for which ``torch._C`` has a getter and a setter."""
    # torch.backends would refuse to set its flags while torch's test utilities are in use.
    return Switch(what, getattr(_C, f"_get_{name}"), getattr(_C, f"_set_{name}"))


SWITCHES: tuple[Switch, ...] = (
    Switch(
        "", are_patches_restored, lambda _: restore_patches(), _not_reported
    ),  # otherwise nn.Module.__call__ may be another function
    Switch("inference mode is", torch.is_inference_mode_enabled, _write_inference_mode),
    Switch("gradients are", torch.is_grad_enabled, _C._set_grad_enabled),
    Switch("forward-mode gradients are", _C._is_fwd_grad_enabled, _C._set_fwd_grad_enabled),
    Switch("autocast", _read_autocast, _write_autocast, _describe_autocast),
    Switch(
        "the detection of anomalies",
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda before: torch.set_anomaly_enabled(*before),
        lambda what, before, after: _described_as_value(f"{what} is", before[0], after[0]),
    ),
    Switch(
        "deterministic algorithms are",
        _deterministic,
        lambda before: torch.use_deterministic_algorithms(before[0], warn_only=before[1]),
        lambda what, before, after: _described_as_value(what, before[0], after[0]),
    ),
    _flag("the filling of uninitialized memory is", "deterministic_fill_uninitialized_memory"),
    Switch("the default dtype is", torch.get_default_dtype, torch.set_default_dtype),
    Switch("torch functions are", _C._get_torch_function_state, _C._set_torch_function_state),
    Switch("function mode", _read_function_modes, _write_function_modes, _describe_function_modes),
    Switch("dispatch mode", _read_dispatch_modes, _write_dispatch_modes, _describe_modes),
    Switch("a global", _read_hooks, _write_hooks, _describe_hooks),
    Switch("the float32 precision of products is", float32_matmul_precision, _write_float32_precision),
    _float32_precision_of("generic", "all"),
    *(
        _float32_precision_of(backend, operation)
        for backend in ("cuda", "mkldnn")
        for operation in ("all", "matmul", "conv", "rnn")
    ),
    _flag("cuDNN is", "cudnn_enabled"),
    _flag("cuDNN's search for algorithms is", "cudnn_benchmark"),
    _flag("cuDNN's determinism is", "cudnn_deterministic"),
    _flag("oneDNN is", "mkldnn_enabled"),
    _flag("NNPACK is", "nnpack_enabled"),
    *(
        Switch(f"{name} attention is", getattr(_C, f"_get_{short}_sdp_enabled"), getattr(_C, f"_set_sdp_use_{short}"))
        for name, short in (("flash", "flash"), ("memory-efficient", "mem_efficient"), ("plain", "math"))
    ),
    Switch("the fast path of attention is", _backends.mha.get_fastpath_enabled, _backends.mha.set_fastpath_enabled),
    Switch("opt_einsum is", _backends.opt_einsum._get_enabled, _backends.opt_einsum._set_enabled),
    Switch("the strategy of opt_einsum is", _backends.opt_einsum._get_strategy, _backends.opt_einsum._set_strategy),
    Switch("the engine of quantized operations is", _C._get_qengine, _C._set_qengine),
    Switch("the number of threads is", torch.get_num_threads, torch.set_num_threads),
    Switch("denormal numbers are", _denormals_kept, lambda before: torch.set_flush_denormal(not before)),
    Switch(
        "the print options of tensors have",
        vars(_tensor_str.PRINT_OPTS).copy,
        vars(_tensor_str.PRINT_OPTS).update,
        _described_as_changed,
    ),
    Switch("the working directory is", _read_folder, _write_folder),
    Switch("the environment variable", _read_environment, _write_environment, _describe_environment, by_imports=True),
    Switch("sys.path", lambda: (sys.path, sys.path.copy()), _write_path, _describe_path, by_imports=True),
    Switch("the handling of warnings has", _read_warnings, _write_warnings, _described_as_changed, by_imports=True),
    Switch("the handler of", _read_signals, _write_signals, _described_by_name, by_imports=True),
    Switch("sys:", lambda: {name: getattr(sys, name) for name in _STREAMS}, _write_streams, _described_by_name),
    Switch("the recursion limit is", sys.getrecursionlimit, sys.setrecursionlimit, by_imports=True),
    Switch("garbage collection is", gc.isenabled, lambda before: (gc.enable if before else gc.disable)()),
    Switch("the thresholds of garbage collection are", gc.get_threshold, lambda before: gc.set_threshold(*before)),
)
"""All settings, in the order in which they are restored: writing one may change those below it."""
