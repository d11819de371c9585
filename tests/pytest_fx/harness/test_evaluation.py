"""pytest_fx.harness.evaluation: what a program is called with, and what holds still meanwhile."""

import torch

from pytest_fx.harness.evaluation import Arguments, default_dtype


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


def test_precisions_that_were_set_one_by_one_are_put_back():
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
