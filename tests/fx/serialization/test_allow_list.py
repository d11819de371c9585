"""Names that files may contain: single functions and classes, none of which opens files, runs code or changes the
process.
"""

from __future__ import annotations

import builtins
import inspect
from typing import Any, NamedTuple

import pytest
import torch

import fx
from fx import serialization
from fx.errors import FxError
from fx.operators.effect_rules import SETS_STATE, UNKNOWN, find_rule
from fx.serialization import allow_list, safe_operators
from fx.serialization.allow_list import Refused, classes, find, functions, is_attribute, methods, name_of
from fx.serialization.safe_operators import operators

DANGEROUS = """
builtins.__import__ builtins.breakpoint builtins.compile builtins.delattr builtins.dir builtins.eval builtins.exec
builtins.format builtins.globals builtins.hasattr builtins.help builtins.id builtins.input builtins.iter
builtins.locals builtins.map builtins.filter builtins.memoryview builtins.next builtins.open builtins.print
builtins.property builtins.setattr builtins.super builtins.type builtins.vars builtins.classmethod
builtins.staticmethod math.__loader__ operator.attrgetter operator.call operator.itemgetter operator.methodcaller
operator.setattr os.system torch.asarray torch.compile torch.cond torch.from_dlpack torch.from_file torch.from_numpy
torch.frombuffer torch.import_ir_module torch.import_ir_module_from_buffer torch.load torch.manual_seed torch.save
torch.seed torch.set_default_device torch.set_default_dtype torch.set_default_tensor_type
torch.set_deterministic_debug_mode torch.set_flush_denormal torch.set_grad_enabled torch.set_num_threads
torch.set_printoptions torch.set_rng_state torch.set_warn_always torch.sparse_coo_tensor
torch.sparse_compressed_tensor torch.sparse_csr_tensor torch.to_dlpack torch.use_deterministic_algorithms torch.vmap
torch.while_loop torch.hub.load torch.jit.load torch.classes.load_library torch.ops.load_library
torch.utils.cpp_extension.load torch.package.PackageImporter torch._C._jit_set_profiling_mode
torch.multiprocessing.spawn torch.serialization.load torch.library.define torch.overrides.handle_torch_function
torch._dynamo.config torch.backends.cudnn.flags torch.quantized_lstm torch.cudnn_convolution torch.fork
torch.UntypedStorage torch.nn.functional.handle_torch_function torch.nn.functional.boolean_dispatch
torch.nn.functional.importlib.import_module torch.nn.functional.warnings.warn torch.nn.functional.torch.load
torch.nn.Module.apply torch.nn.utils.clip_grad_norm_ torch.Tensor.apply_ torch.Tensor.map_ torch.Tensor.map2_
torch.Tensor.numpy torch.Tensor.register_hook torch.Tensor.data_ptr torch.Tensor.set_ torch.Tensor.backward
torch.Tensor.__reduce_ex__ torch.Tensor.__setstate__ torch.Tensor.__class__ torch.Tensor.share_memory_
torch.Tensor.storage torch.Tensor.untyped_storage torch.Tensor.new torch.Tensor.module_load torch.Tensor.as_subclass
torch.Tensor.requires_grad_ torch.ops.aten.from_file torch.ops.aten.from_file.default torch.ops.aten.save
torch.ops.aten._print torch.ops.aten.warn torch.ops.aten.set_.source_Tensor torch.ops.aten._sparse_coo_tensor_unsafe
torch.ops.aten.manual_seed torch.ops.aten.format torch.ops.aten.__class__ torch.ops.aten.add.__class__
torch.ops.aten.add.Tensor.op torch.ops.aten._test_string_default torch.ops.profiler._record_function_enter
torch.ops.c10d.barrier torch.ops.quantized.linear torch.ops.aten torch.ops torch.nn.DataParallel torch.nn.LazyLinear
torch.nn.TripletMarginWithDistanceLoss torch.nn.parallel.DistributedDataParallel torch torch. .torch torch.nn
torch..relu torch.relu.
""".split()


def test_nothing_dangerous_is_listed() -> None:
    for name in (*DANGEROUS, "torch.relu\n", " torch.relu", "", "\ud800"):
        with pytest.raises(Refused, match="is nothing that a saved program may use"):
            find(name)


def test_the_dangerous_names_are_of_things_that_exist() -> None:
    for name in ("torch.load", "torch.save", "torch.from_file", "torch.ops.load_library", "torch.hub.load"):
        value: Any = torch
        for part in name.split(".")[1:]:
            value = getattr(value, part)
        with pytest.raises(Refused, match="is nothing that a saved program may use"):
            name_of(value)


@pytest.mark.parametrize(
    "name",
    "apply_ map_ map2_ numpy register_hook backward data_ptr set_ storage untyped_storage format format_map new "
    "as_subclass module_load share_memory_ requires_grad_ retain_grad __class__ __reduce__ __reduce_ex__ "
    "__getattribute__ __setattr__ __delattr__ __init__ __new__ __subclasses__ __globals__ __call__ __dict__ "
    "__setstate__ __format__ mro forward register_forward_hook load_state_dict apply add_module to_folder "
    "recompile".split(),
)
def test_a_dangerous_method_is_not_listed(name: str) -> None:
    assert name not in methods()


@pytest.mark.parametrize(
    "name",
    "__class__ __dict__ __globals__ __code__ grad_fn f_globals gi_frame tb_frame func modules _modules ctypes".split(),
)
def test_a_dangerous_attribute_is_not_listed(name: str) -> None:
    assert not is_attribute(name)


def test_every_function_of_torch_in_the_list_calls_a_listed_operator_or_is_listed_by_name() -> None:
    for name, function in functions().items():
        home, _, short = name.rpartition(".")
        by_name = function in allow_list.MODES or (home == "torch" and short in allow_list._PYTHON_FUNCTIONS)
        if home in ("torch", "torch.fft", "torch.linalg", "torch.special") and not by_name:
            if not inspect.isbuiltin(function):
                continue
            operator = torch.jit._builtins._find_builtin(function)  # type: ignore[attr-defined]
            assert operator is not None, name
            assert operator.partition("::")[2] in operators(), name
            assert find_rule(function) not in (SETS_STATE, UNKNOWN), name


def test_no_listed_operator_takes_names_of_files_or_objects_of_python() -> None:
    for name in operators():
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            for argument in getattr(packet, overload)._schema.arguments:
                assert argument.name not in ("filename", "file"), name
                assert str(argument.type) not in ("PyObject", "Storage"), (name, overload, argument)


def test_queries_of_a_tensors_shape_and_layout_are_listed_in_every_version_of_torch() -> None:
    asking = set("dim get_device is_contiguous ndimension nelement numel size storage_offset stride".split())
    assert asking <= methods()
    assert {"torch.get_device", "torch.numel", *(f"torch.Tensor.{name}" for name in asking)} <= functions().keys()


def test_operators_are_public_or_listed_one_by_one() -> None:
    for name in operators():
        assert "_backward" not in name
        assert not name.startswith("_") or name in safe_operators.OF_CAPTURES
        assert not name.startswith("unsafe_")
    for names in safe_operators.REFUSED.values():
        assert operators().isdisjoint(names)


def test_every_refused_operator_would_be_listed_by_default_or_is_of_the_dispatcher() -> None:
    namespaces = {name.partition(".")[0] for name in safe_operators._overloads()}
    names = [name for names in safe_operators.REFUSED.values() for name in names]
    assert len(names) == len(set(names))
    assert {name for name in names if name not in namespaces} <= {"backward", "data", "requires_grad_", "save", "set"}


@pytest.mark.parametrize(
    "name",
    "torch.ctc_loss torch.nn.functional.ctc_loss torch.nn.CTCLoss torch.segment_reduce torch.embedding_bag torch.lstm "
    "torch.gru torch.native_batch_norm torch.batch_norm_stats torch.grid_sampler_2d torch.linalg.eigvals "
    "torch.linalg.ldl_solve torch.lu_unpack torch.nn.functional.grouped_mm "
    "torch.ops.aten._weight_norm_interface torch.ops.aten.max_pool2d_with_indices_backward torch.ops.aten.lstm.input "
    "torch.ops.aten._native_batch_norm_legit_no_training torch.ops.aten._fft_c2r torch.ops.aten.remainder.int "
    "torch.ops.aten.fractional_max_pool2d_backward torch.ops.aten.reflection_pad2d_backward torch.Tensor.indices "
    "torch.Tensor.crow_indices torch.ops.aten.indices torch.ops.aten.embedding_bag.padding_idx".split(),
)
def test_functions_that_trust_their_arguments_with_memory_are_not_listed(name: str) -> None:
    with pytest.raises(Refused):
        find(name)


def test_indices_of_sparse_tensors_cannot_be_had_to_write_them() -> None:
    names = ("indices", "crow_indices", "col_indices", "ccol_indices", "row_indices", "_indices")
    assert methods().isdisjoint(names)
    assert all(hasattr(torch.Tensor, name) for name in names)


def test_every_class_of_torch_nn_is_listed_or_known_not_to_be() -> None:
    allowed = set(
        "CTCLoss Container LinearCrossEntropyLoss LinearCrossEntropyOptions NLLLoss2d ParameterDict ParameterList "
        "RNNBase RNNCellBase Transformer TransformerDecoder TransformerEncoder TripletMarginWithDistanceLoss".split()
    )
    public = [name for name in torch.nn.modules.__all__ if not name.startswith("Lazy")]
    assert {name for name in public if f"torch.nn.{name}" not in classes()} <= allowed


def test_names_resolve_to_their_objects() -> None:
    for name, value in {**functions(), **classes()}.items():
        assert find(name) is value
        assert find(name_of(value)) is value
    for value in (torch.ops.aten.add, torch.ops.aten.add.Tensor, torch.ops.aten.sym_size.int, torch.ops.aten._softmax):
        assert find(name_of(value)) is value


def test_tables_hold_functions_of_python_by_their_plain_names() -> None:
    assert functions()["builtins.len"] is builtins.len
    assert "operator.matmul" in functions()
    assert all(not name.rpartition(".")[2].startswith("__") for name in functions())


# What users add.


def test_allowed_functions_are_found_under_their_names() -> None:
    def local(x: Any) -> Any:
        return x

    assert serialization.allow(local) is local
    assert serialization.allow(local) is local
    name = name_of(local)
    assert name.endswith("test_allowed_functions_are_found_under_their_names.local")
    assert find(name) is local
    named = serialization.allow(lambda x: x, "my.function")
    assert find("my.function") is named
    assert allow_list.is_callable_target(named)


def test_allowing_a_function_of_torch_lists_it_by_its_public_name() -> None:
    assert serialization.allow(torch.relu) is torch.relu
    assert name_of(torch.relu) == "torch.relu"
    serialization.allow(torch.ops.quantized.relu6)
    assert find("torch.ops.quantized.relu6") is torch.ops.quantized.relu6


def test_fields_of_allowed_named_tuples_may_be_read() -> None:
    assert not is_attribute("quite_unusual")

    @serialization.allow
    class Result(NamedTuple):
        quite_unusual: int

    assert is_attribute("quite_unusual")
    assert find(name_of(Result)) is Result


def test_a_definition_that_ran_again_takes_the_place_of_the_first() -> None:
    results = []
    for _ in range(2):

        @serialization.allow
        def again() -> None: ...

        results.append(again)
    assert find(name_of(results[1])) is results[1]


def test_objects_without_a_name_need_one() -> None:
    with pytest.raises(FxError, match="has no name that a file could use") as caught:
        serialization.allow(lambda x: x)
    assert 'try    give one: allow(target, "my.name")' in str(caught.value)
    with pytest.raises(FxError, match="a file may name functions and classes, not an int"):
        serialization.allow(3)


def test_a_name_represents_one_thing() -> None:
    def first() -> None: ...

    def second() -> None: ...

    serialization.allow(first, "one.thing")
    with pytest.raises(FxError, match=r"two allowed functions or classes are named 'one\.thing'"):
        serialization.allow(second, "one.thing")
    with pytest.raises(FxError, match=r"'torch\.relu' means .* in saved programs"):
        serialization.allow(second, "torch.relu")


def test_the_check_of_an_input_specialized_to_none_is_allowed() -> None:
    program = fx.symbolic_trace(lambda x, y=None: x if y is None else y, concrete_args={"y": None})
    (check,) = program.graph.find_nodes(op="call_function")
    assert find(name_of(check.target)) is check.target
