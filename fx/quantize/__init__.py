"""Programs on 8-bit integers: observe, calibrate, convert (paper, section 6.2.1).

::

    prepared = prepare(program, scheme)      # 1. observers where values will be stored in 8 bits
    for batch in data: prepared(batch)       # 2. calibration
    quantized = convert(prepared)            # 3. kernels on integers, with scales and zero points in the program

``prepare_qat(program, scheme)`` is ``prepare`` for quantization-aware training: the program rounds values in training.
``reference(prepared)`` is the same program in float arithmetic between explicit conversions: it defines the meaning of
the quantized one.
"""

from fx.quantize.affine import Affine, quantize_channels
from fx.quantize.arithmetic import (
    add,
    dequantize,
    dequantize_channels,
    lookup,
    max_pool,
    mul,
    quantize,
    rescale,
)
from fx.quantize.attention import add_attention_mask, attention_mask
from fx.quantize.conversion import convert, reference
from fx.quantize.convolution import QuantizedConv
from fx.quantize.fake_quantization import (
    FakeQuantize,
    FrozenBatchNorm,
    batch_norm_gain,
    fake_quantize,
    fake_quantize_channels,
    fake_quantize_dynamic,
    undo_gain,
)
from fx.quantize.layers import QuantizedLayer, kernels_used
from fx.quantize.linear import QuantizedLinear
from fx.quantize.numerics import Advice, Noise, advise, noise, sensitivity
from fx.quantize.observers import (
    HistogramObserver,
    MinMaxObserver,
    MovingAverageObserver,
    Observer,
    PercentileObserver,
    merge_observers,
)
from fx.quantize.preparation import prepare
from fx.quantize.products import matmul
from fx.quantize.pt2e import pt2e
from fx.quantize.quantization_report import QuantizationReport, Remainder, report
from fx.quantize.quantize_pass import Quantize
from fx.quantize.recurrence import recurrent
from fx.quantize.recurrent_layer import QuantizedRecurrent
from fx.quantize.scheme import Choice, Override, QuantizationScheme
from fx.quantize.training import freeze_batch_norm, freeze_observers, prepare_qat
from fx.quantize.transformer import zero_padding
from fx.quantize.transposed_convolution import QuantizedConvTranspose, swap_channels
from fx.quantize.weight_only import embedding, embedding_bag

__all__ = [
    "Advice",
    "Affine",
    "Choice",
    "FakeQuantize",
    "FrozenBatchNorm",
    "HistogramObserver",
    "MinMaxObserver",
    "MovingAverageObserver",
    "Noise",
    "Observer",
    "Override",
    "PercentileObserver",
    "QuantizationReport",
    "QuantizationScheme",
    "Quantize",
    "QuantizedConv",
    "QuantizedConvTranspose",
    "QuantizedLayer",
    "QuantizedLinear",
    "QuantizedRecurrent",
    "Remainder",
    "add",
    "add_attention_mask",
    "advise",
    "attention_mask",
    "batch_norm_gain",
    "convert",
    "dequantize",
    "dequantize_channels",
    "embedding",
    "embedding_bag",
    "fake_quantize",
    "fake_quantize_channels",
    "fake_quantize_dynamic",
    "freeze_batch_norm",
    "freeze_observers",
    "kernels_used",
    "lookup",
    "matmul",
    "max_pool",
    "merge_observers",
    "mul",
    "noise",
    "prepare",
    "prepare_qat",
    "pt2e",
    "quantize",
    "quantize_channels",
    "recurrent",
    "reference",
    "report",
    "rescale",
    "sensitivity",
    "swap_channels",
    "undo_gain",
    "zero_padding",
]
