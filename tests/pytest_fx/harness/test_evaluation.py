"""pytest_fx.harness.evaluation: the arguments of a call, and the process state during it."""

import pytest
import torch

from pytest_fx.harness.evaluation import Arguments, default_dtype, float32_matmul_precision


def test_the_default_dtype_stays_where_pytorch_has_no_such_default():
    with default_dtype(torch.bfloat16):
        assert torch.get_default_dtype() == torch.float32


def test_float32_on_a_gpu_is_no_tf32_while_programs_are_judged():
    cudnn = torch.backends.cudnn
    assert cudnn.conv.fp32_precision == cudnn.rnn.fp32_precision == "tf32"
    with default_dtype(torch.float32):
        assert cudnn.conv.fp32_precision != "tf32" != cudnn.rnn.fp32_precision
        assert not cudnn.allow_tf32  # which torch.export reads
    assert cudnn.conv.fp32_precision == cudnn.rnn.fp32_precision == "tf32"
    assert cudnn.allow_tf32


def test_reduced_precision_products_are_disabled_while_programs_are_judged():
    kinds = [(backend, kind) for backend in ("cuda", "mkldnn") for kind in ("matmul", "conv", "rnn")]

    def precisions():
        return [torch._C._get_fp32_precision_getter(*kind) for kind in kinds], float32_matmul_precision()

    original = precisions()
    try:
        for allowed in ("high", "medium", None):
            if allowed is None:
                torch.set_float32_matmul_precision("highest")
                torch._C._set_fp32_precision_setter("generic", "all", "tf32")
            else:
                torch.set_float32_matmul_precision(allowed)
            before = precisions()
            assert {"tf32", "bf16"} & {*before[0]}
            with default_dtype(torch.float32):
                inside = dict(zip(kinds, precisions()[0], strict=True))
                of_cuda = {inside["cuda", kind] for kind in ("matmul", "conv", "rnn")}
                assert not {"tf32", "bf16"} & {*of_cuda, inside["mkldnn", "matmul"]}
            assert precisions() == before
    finally:
        torch._C._set_fp32_precision_setter("generic", "all", "none")
        torch.set_float32_matmul_precision("highest")
        for backend in ("cuda", "mkldnn"):
            torch._C._set_fp32_precision_setter(backend, "matmul", "none")
    assert precisions() == original


def test_precisions_that_were_set_one_by_one_are_restored():
    cudnn = torch.backends.cudnn
    with cudnn.flags(fp32_precision="ieee"):
        cudnn.rnn.fp32_precision = "tf32"
        before = cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision
        with default_dtype(torch.float32):
            assert cudnn.rnn.fp32_precision != "tf32"
        assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == before


def test_shrunk_inputs_are_others_of_the_same_signs_and_ranges():
    x = torch.tensor([-1.0, 0.0, 0.5, 1.0])
    labels = torch.tensor([1, 2])
    shrunk = Arguments((x, labels)).shrunk(seed=1)
    again = Arguments((x, labels)).shrunk(seed=1)
    other = Arguments((x, labels)).shrunk(seed=2)
    assert torch.equal(shrunk.args[0], again.args[0])
    assert not torch.equal(shrunk.args[0], other.args[0])
    assert not torch.equal(shrunk.args[0], x)
    assert torch.equal(shrunk.args[0].sign(), x.sign())
    assert bool((shrunk.args[0].abs() <= x.abs()).all())
    assert bool((shrunk.args[0].abs() >= 0.97 * x.abs()).all())
    assert torch.equal(shrunk.args[1], labels)


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_copies_share_memory_as_the_originals_do(dtype):
    memory = torch.arange(6.0)
    head, tail, expanded, alone = memory[:3], memory[2:], torch.ones(1).expand(3), torch.ones(2)
    copies = Arguments((head, [tail], alone), {"expanded": expanded}).copies(dtype)
    first, (second,), third = copies.args
    first[2] = 9
    assert (float(second[0]), float(memory[2]), float(alone[0])) == (9, 2, 1)
    assert copies["expanded"].stride() == (0,)
    assert {tensor.dtype for tensor in (first, second, third, copies["expanded"])} == {dtype or torch.float32}
