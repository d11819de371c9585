import builtins
import gc
import math
import operator
import os
import random
import signal
import sys
import warnings

import numpy
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fx
import model_zoo
from fx.errors import FxError
from fx.lowering import Lower
from fx.passes import get_pass, list_passes
from fx.quantize import Quantize
from pytest_fx import check_pass
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.process import ProcessState, process_kept
from pytest_fx.harness.run import Runner
from pytest_fx.isolation.kept_process import interrupted_finished
from pytest_fx.timing.paired import steady_conditions


def other(*args, **kwargs):
    return args[0]


ENTERED = []


def left_on(mode):
    ENTERED.append(mode)  # some are left when they are forgotten
    mode.__enter__()


class Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def hook(*args):
    return None


def set_environment():
    os.environ["FX_TEST_SET"] = "1"


def mute_warnings():
    warnings.simplefilter("ignore")


def leave_catch_warnings():
    left_on(warnings.catch_warnings())
    mute_warnings()


def leave_autocast():
    left_on(torch.autocast("cpu", torch.bfloat16))


SMALL = ("resnet_tiny", "two_heads", "lstm_classifier_small", "transformer_encoder_small")


def raise_in_handler(number, frame):
    raise KeyboardInterrupt


CHANGES = {
    "torch.relu is another function": lambda: setattr(torch, "relu", other),
    "torch.nn.functional.gelu is another function": lambda: setattr(nn.functional, "gelu", other),
    "torch.nn.functional.selu is gone": lambda: delattr(nn.functional, "selu"),
    "torch.Tensor.add is another function": lambda: setattr(torch.Tensor, "add", other),
    "torch.nn.modules.module.Module.__call__ is another function": lambda: setattr(nn.Module, "__call__", other),
    "torch.nn.modules.module.Module.__getattr__ is another function": lambda: setattr(nn.Module, "__getattr__", other),
    "torch.nn.modules.linear.Linear.forward is another function": lambda: setattr(nn.Linear, "forward", other),
    "torch.nn.modules.linear.Linear.__call__ is another function": lambda: setattr(nn.Linear, "__call__", other),
    "torch.nn.Linear is another class": lambda: setattr(nn, "Linear", nn.Bilinear),
    "operator.add is another function": lambda: setattr(operator, "add", other),
    "math.sqrt is another function": lambda: setattr(math, "sqrt", other),
    "builtins.len is another function": lambda: setattr(builtins, "len", lambda it: 3),
    "fx.graph.Graph.lint is another function": lambda: setattr(fx.Graph, "lint", other),
    "fx.capture.tracer.Tracer.is_leaf_module is another function": lambda: setattr(fx.Tracer, "is_leaf_module", other),
    "fx.symbolic_trace is another function": lambda: setattr(fx, "symbolic_trace", other),
    "torch.fx.graph.Graph.lint is another function": lambda: setattr(torch.fx.Graph, "lint", other),
    "gradients are off, were on": lambda: torch.set_grad_enabled(False),
    "inference mode is on, was off": lambda: left_on(torch.inference_mode()),
    "autocast on the CPU on, with bfloat16": leave_autocast,
    "the detection of anomalies is on, was off": lambda: torch.autograd.set_detect_anomaly(True),
    "deterministic algorithms are on, were off": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "the filling of uninitialized memory is off, was on": lambda: setattr(
        torch.utils.deterministic, "fill_uninitialized_memory", False
    ),
    "the default dtype is float64, was float32": lambda: torch.set_default_dtype(torch.float64),
    "the default device is meta, was cpu": lambda: torch.set_default_device("meta"),
    "the default device is meta, was cpu ": lambda: left_on(torch.device("meta")),
    "the function mode Mode was left on": lambda: left_on(Mode()),
    "the dispatch mode DispatchMode was left on": lambda: left_on(DispatchMode()),
    "a global forward pre-hook was added": lambda: nn.modules.module.register_module_forward_pre_hook(hook),
    "a global forward hook was added": lambda: nn.modules.module.register_module_forward_hook(hook, always_call=True),
    "a global backward hook was added": lambda: nn.modules.module.register_module_full_backward_hook(hook),
    "a global parameter registration hook was added": (
        lambda: nn.modules.module.register_module_parameter_registration_hook(hook)
    ),
    "the float32 precision of products is high, was highest": lambda: torch.set_float32_matmul_precision("high"),
    "the float32 precision of conv (mkldnn) is bf16, was none": lambda: setattr(
        torch.backends.mkldnn.conv, "fp32_precision", "bf16"
    ),
    "oneDNN is off, was on": lambda: torch.backends.mkldnn.set_flags(_enabled=False),
    "cuDNN's search for algorithms is on, was off": lambda: torch._C._set_cudnn_benchmark(True),  # others freeze flags
    "plain attention is off, was on": lambda: torch.backends.cuda.enable_math_sdp(False),
    "the fast path of attention is off, was on": lambda: torch.backends.mha.set_fastpath_enabled(False),
    "the number of threads is 3, was 1": lambda: torch.set_num_threads(3),
    "denormal numbers are off, were on": lambda: torch.set_flush_denormal(True),
    "the print options of tensors have changed": lambda: torch.set_printoptions(precision=2),
    f"the working directory is {os.path.dirname(os.getcwd())}, was {os.getcwd()}": lambda: os.chdir(".."),
    "the environment variable FX_TEST_SET was set": set_environment,
    "the environment variable PATH was removed": lambda: os.environ.pop("PATH"),
    "the environment variable PATH was changed": lambda: os.environ.update(PATH=""),
    "sys.path gained /nowhere": lambda: sys.path.insert(0, "/nowhere"),
    "sys.path gained /elsewhere": lambda: setattr(sys, "path", [*sys.path, "/elsewhere"]),
    "the handling of warnings has changed": mute_warnings,
    "the handling of warnings has changed ": leave_catch_warnings,
    "the handler of SIGINT was changed": lambda: signal.signal(signal.SIGINT, raise_in_handler),
    "sys: stdout was changed": lambda: setattr(sys, "stdout", sys.__stderr__),
    "the recursion limit is 5000, was 1000": lambda: sys.setrecursionlimit(5000),
    "garbage collection is off, was on": gc.disable,
}
"""Changes that a pass may make, by the words of the message; a space at the end separates two with the same words."""


@pytest.fixture
def usual_process():
    """The process as the sentences above say that it was, whatever else runs in it."""
    with process_kept():
        torch.set_num_threads(1)
        sys.setrecursionlimit(1000)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield


@pytest.mark.parametrize("sentence", CHANGES)
def test_a_change_of_the_process_is_named_and_restored(usual_process, sentence):
    before = ProcessState.now()
    CHANGES[sentence]()
    changes = before.changes()
    before.put_back()
    assert sentence.strip() in changes
    assert before.changes() == []


def test_the_restored_state_works_as_before(usual_process):
    before = ProcessState.now()
    for change in CHANGES.values():
        if change is not CHANGES["builtins.len is another function"]:
            change()
    before.put_back()
    assert before.changes() == []
    result = nn.Linear(2, 2)(torch.ones(2, 2)).relu().sum()
    assert (result.dtype, result.device.type, result.requires_grad) == (torch.float32, "cpu", True)
    assert not result.is_inference()
    result.backward()
    torch.set_default_device("cpu")
    torch.set_default_device(None)
    assert before.changes() == []


def test_a_change_that_only_names_it_once_is_reported_once():
    before = ProcessState.now()
    nn.Module.__call__ = other
    changes = before.changes()
    before.put_back()
    assert changes == ["torch.nn.modules.module.Module.__call__ is another function"]


def test_new_attributes_registered_passes_and_drawn_numbers_are_no_changes():
    before = ProcessState.now()
    torch.a_new_attribute = nn.Linear.a_new_attribute = 1
    torch.rand(1), random.random(), numpy.random.rand()
    torch.manual_seed(3)
    fx.passes.register_pass(type("Passing", (), {"name": "passing-by", "__call__": lambda self, program: None}))
    assert before.changes() == []
    del torch.a_new_attribute, nn.Linear.a_new_attribute


def test_side_effects_of_an_import_are_no_change(tmp_path, monkeypatch):
    (tmp_path / "sets_a_variable.py").write_text("import os\nos.environ['FX_TEST_SET'] = '1'\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = ProcessState.now()
    import sets_a_variable  # noqa: F401

    assert before.changes() == []
    assert "FX_TEST_SET" in os.environ
    before.put_back(imports_stay=True)
    assert "FX_TEST_SET" in os.environ
    before.put_back()
    assert "FX_TEST_SET" not in os.environ


@pytest.mark.parametrize("name", list_passes())
def test_no_registered_pass_changes_the_process(name):
    before = ProcessState.now()
    for model_name in SMALL:
        model = model_zoo.get_model(model_name)
        program = fx.symbolic_trace(model.build())
        try:
            transformed = get_pass(name)(program)
        except FxError:  # a package or an engine that it needs is missing
            continue
        with torch.no_grad():
            (transformed or program)(*model.example_inputs())
    assert before.changes() == []


def test_compilation_export_and_quantization_are_no_changes():
    before = ProcessState.now()
    module, inputs = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.ones(2, 4),)
    program = fx.symbolic_trace(module)
    torch.compile(program, backend="aot_eager")(*inputs)
    torch.export.export(module, inputs)
    torch.fx.symbolic_trace(module)
    Quantize().with_data([(inputs, {})])(program)(*inputs)
    Lower()(program)(*inputs)
    assert before.changes() == []


def test_a_block_that_keeps_the_process_keeps_random_numbers():
    def drawn():
        return torch.rand(1).item(), random.random(), numpy.random.rand()

    with process_kept():
        first = drawn()
    assert drawn() == first


class Interrupted(BaseException):
    """The exception that a handler of signals raises."""


class Network(nn.Module):
    def forward(self, x):
        return torch.relu(x).sin()


FILES = tuple(
    sys.modules[name].__file__
    for name in (
        *("contextlib", "fx.capture.patching", "fx.capture.tracer", "torch.autograd.grad_mode", "torch.random"),
        *(f"pytest_fx.harness.{name}" for name in ("evaluation", "run", "process", "switches")),
        *("torch.fx._symbolic_trace", "torch.utils._device", "pytest_fx.timing.paired"),
    )
)


def raising_at(step):
    """A trace function that raises at a step of the code that changes the process, as a handler of signals may."""
    remaining = step

    def in_file(frame, event, arg):
        nonlocal remaining
        if event == "line":
            remaining -= 1
            if remaining == 0:
                sys.settrace(None)
                raise Interrupted
        return in_file

    return lambda frame, event, arg: in_file if frame.f_code.co_filename in FILES else None


def work():
    arguments = Arguments((torch.ones(2),))
    program = fx.symbolic_trace(Network())
    torch.fx.symbolic_trace(Network())
    with steady_conditions(1), torch.device("cpu"), torch.inference_mode():
        Runner(program, thread_count=1)(arguments.copies(torch.float64), torch.float64)


MANY = "FX_EVERY_STEP" in os.environ
"""Whether ``make interrupts`` asks for more interrupts than a run of all tests has time for."""


@pytest.fixture
def quick_collection():
    """Lets the collection of garbage look at nothing that is there already, as these tests ask for it often."""
    gc.freeze()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it may be raised without a handler
def test_an_exception_at_any_step_leaves_the_process_as_it_was(quick_collection):
    work()
    code = fx.symbolic_trace(Network()).code
    step, before, tracing = 0, ProcessState.now(), sys.gettrace()
    while True:
        step += 31 if MANY else 101  # all of them take minutes, and did once
        interrupted = None
        try:
            with interrupted_finished(), process_kept():
                sys.settrace(raising_at(step))
                work()
        except BaseException as error:  # another exception, if a block cannot end any more
            interrupted = error
        finally:
            sys.settrace(tracing)
        assert before.changes() == [], step
        if interrupted is None:
            break
        del interrupted  # and with it its objects, whose finalizers may restore something else
        gc.collect()
        assert before.changes() == [], step
        assert fx.symbolic_trace(Network()).code == code
    assert step > 1000


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it may be raised without a handler
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that send signals here")
def test_a_signal_at_any_moment_of_a_search_leaves_the_process_as_it_was(quick_collection):
    interruptions = []

    def interrupt(number, frame):
        interruptions.append(frame.f_code.co_name)
        raise Interrupted

    moments, wanted = random.Random(0), 20 if MANY else 8
    with process_kept():
        signal.signal(signal.SIGALRM, interrupt)
        check_pass("remove-dead-code", max_examples=2, min_changed=0)
        before = ProcessState.now()
        for interruption_number in range(wanted):
            try:
                with interrupted_finished():
                    signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.001, 0.3))
                    check_pass("remove-dead-code", max_examples=60, min_changed=0)  # one may go unheard
            except BaseException:  # another exception, if Hypothesis cannot end the interrupted work
                assert len(interruptions) == interruption_number + 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert before.changes() == []
            gc.collect()
            assert before.changes() == []
        assert len(interruptions) == wanted


GUILTY = """
import os
from contextlib import suppress

import pytest
import torch
from torch import nn

from pytest_fx import LawViolation, check_pass
from pytest_fx.harness.process import ProcessState


def guilty(program):
    torch.relu = torch.neg
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    nn.modules.module.register_module_forward_hook(lambda *args: None)
    os.environ["FX_TEST_SET"] = "1"
    os.chdir("..")
    return program


@pytest.fixture(scope="session", autouse=True)
def before():
    torch.set_printoptions(precision=3)  # on purpose, for all tests
    return ProcessState.now()


@pytest.fixture
def in_double():
    torch.set_default_dtype(torch.float64)
    yield
    assert torch.get_default_dtype() == torch.float64
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def clean(before):
    changes = before.changes()
    assert [change for change in changes if "PYTEST" not in change and "sys:" not in change] == []


def test_search_by_fixture(fx_check_pass):
    with suppress(LawViolation):
        fx_check_pass(guilty, max_examples=2)


def test_search():
    with suppress(LawViolation):
        check_pass(guilty, max_examples=2)
    assert "FX_TEST_SET" not in os.environ


@pytest.mark.fx(model=["mlp"], pass_=["test_guilty:guilty"])
def test_transformed(fx_transformed):
    assert "FX_TEST_SET" not in os.environ


@pytest.mark.fx(model=["mlp"])
def test_body(fx_traced, in_double):
    guilty(None)


@pytest.mark.fx(model=["mlp"])
def test_failure(fx_traced):
    guilty(None)
    raise AssertionError


@pytest.mark.fx(model=["mlp"])
@pytest.mark.timeout(1, method="signal")
def test_endless(fx_traced):
    guilty(None)
    while True:
        pass


def test_innocent():
    pass
"""


@pytest.mark.thorough
def test_a_test_after_one_that_changes_the_process_finds_it_as_it_was_in_workers_too(pytester):
    pytester.makepyfile(test_guilty=GUILTY)
    result = pytester.runpytest_subprocess("-n1", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=5, failed=2)  # and no errors in the fixture that looks
    result.stdout.fnmatch_lines(["FAILED*test_failure*", "FAILED*test_endless*Timeout*"])
