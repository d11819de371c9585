"""Rows: functions of each element, of two tensors element by element, and of numbers; losses, and dtypes."""

from __future__ import annotations

import torch

from pytest_fx.generation.operands import (
    ANY,
    BOOLEAN,
    CLASSES,
    DTYPE,
    FLOAT,
    MASK,
    MATRICES,
    NUMBER,
    OTHER,
    OTHER_FLOAT,
    PER_COLUMN,
    ROWS,
    SAME,
    SAME_FLOAT,
    SEQUENCES,
    VECTORS,
    WHOLE,
    argument,
    leading,
    number,
    number_of,
    one_of,
    place,
    size,
)
from pytest_fx.generation.productions import Production, Verbatim, row

NUMBERS = argument("number", number)
SCALE = argument("scale", one_of(0.1, 0.02))
ZERO_POINT = argument("zero_point", one_of(128, 0, 3))


def _functions(names: str, *forms: str, tags: frozenset[str] = frozenset(), weight: int = 1) -> list[Production]:
    return [
        Production(tuple(form.format(name) for form in forms), (FLOAT,), (), tags, weight) for name in names.split()
    ]


# A row reads better in two lines than in eight.
# fmt: off
ELEMENTS = [
    row("F.relu; torch.relu; .relu; nn.ReLU", FLOAT, weight=5),
    row("torch.neg; -{0}; .neg", FLOAT, weight=2),
    row("torch.abs; .abs; abs({0})", FLOAT),
    row("torch.sigmoid; .sigmoid; F.sigmoid; nn.Sigmoid", FLOAT, weight=2),
    row("torch.tanh; .tanh; F.tanh; nn.Tanh", FLOAT, weight=2),
    row("torch.neg; torch.abs; torch.square; torch.relu; .sign", WHOLE),
    *_functions("exp sin cos erf square floor round sign log sqrt rsqrt reciprocal", "torch.{0}", ".{0}"),
    row("torch.sqrt({0}.abs()); {0}.abs().sqrt(); torch.rsqrt({0}.abs() + 0.1)", FLOAT),
    row("torch.log1p({0}.abs()); {0}.square().add(1).log(); torch.reciprocal({0}.abs() + 1)", FLOAT),
    row("F.relu", FLOAT, argument("inplace", one_of(True)), frozenset({"in-place"})),
    row("nn.ReLU", FLOAT, argument("inplace", one_of(True)), frozenset({"in-place"})),
    row("F.gelu; nn.GELU", FLOAT, argument("approximate", one_of("tanh", "none"), 2), weight=4),
    row("F.silu; nn.SiLU", FLOAT, weight=2),
    row("F.leaky_relu; nn.LeakyReLU", FLOAT, leading("negative_slope", one_of(0.2, 0.0, 1.5), 2)),
    row("F.elu; nn.ELU; F.celu; nn.CELU", FLOAT, leading("alpha", one_of(0.5, 2.0), 2)),
    row("F.hardtanh; nn.Hardtanh", FLOAT, leading("min_val", one_of(-0.5, 0.0), 2)),
    row("F.softplus; nn.Softplus", FLOAT, leading("beta", one_of(2, 0.5), 2)),
    row("F.threshold; nn.Threshold", FLOAT, place("threshold", number), place("value", number)),
    row("nn.Identity", FLOAT),
    row("nn.Hardshrink; nn.Softshrink", FLOAT, leading("lambd", one_of(0.1, 1.0), 2)),
    row("nn.PReLU", FLOAT, argument("init", one_of(0.5, -0.1), 2), DTYPE),
    row("nn.PReLU", MATRICES, place("num_parameters", size(1)), DTYPE),
    row("torch.clamp; .clamp", FLOAT, leading("min", one_of(0, -0.5, 0.0, 1.5)),
        leading("max", one_of(1, 6.0, -0.25), 2), weight=2),
    row("{0}.clamp(max={number}); torch.clamp({0}, max={number}); {0}.clamp(min={number}); {0}.clamp_min({number})",
        FLOAT, NUMBERS),
    row("torch.fake_quantize_per_tensor_affine({0}, {scale}, {zero_point}, 0, 255)", FLOAT, SCALE, ZERO_POINT),
    # deprecated: for passes that look for it
    row("torch.quantize_per_tensor({0}, {scale}, {zero_point}, torch.quint8).dequantize()", FLOAT, SCALE, ZERO_POINT,
        weight=0),
    row("torch.nan_to_num", FLOAT, argument("nan", one_of(1.0, 0.5), 2)),
    row("torch.pow({0}, {power}); {0} ** {power}; {0}.pow({power})", FLOAT,
        argument("power", number_of(2, 3, 1, 2.0, 0)), weight=2),
    row("F.dropout", FLOAT, leading("p", one_of(0.3, 0.0), 2),
        leading("training", one_of(Verbatim("self.training", False))), frozenset({"dropout"}), weight=2),
]

PAIRS = [
    row("{0} + {1}; {1} + {0}; torch.add; .add", ANY, OTHER, weight=6),
    row("{0} * {1}; {1} * {0}; torch.mul; .mul", ANY, OTHER, weight=5),
    row("{0} - {1}; torch.sub; .sub; {1} - {0}", FLOAT, OTHER, weight=4),
    row("{0} / ({1}.abs() + 1); torch.div({0}, {1}.abs() + 0.5)", FLOAT, OTHER, weight=2),
    row("{0} / {1}; torch.div; .div", FLOAT, OTHER, weight=2),
    row("torch.add; .add; torch.sub; .sub", FLOAT, OTHER, argument("alpha", one_of(2, 0.5, -1)), weight=2),
    row("torch.maximum; torch.minimum; .maximum; torch.fmax", FLOAT, OTHER_FLOAT, weight=2),
    row("torch.where({1} > 0, {0}, {1}); torch.where({0} < {1}, {1}, {0})", FLOAT, OTHER, weight=2),
    row("torch.where({0} > 0, {0}, {number}); {0} * ({0} > {number})", FLOAT, NUMBERS),
    row("torch.where({1}, {0}, {number}); torch.where({1}, {0} + 1, {number})", WHOLE, MASK, NUMBERS),
    row("torch.where({1}, {0}, {number}); {0}.masked_fill({1}, {number}); torch.where({1}, {number}, {0})", FLOAT,
        MASK, NUMBERS, weight=2),
    row("torch.div", FLOAT, OTHER, argument("rounding_mode", one_of("floor", "trunc"))),
    row("torch.atan2; torch.hypot", FLOAT, OTHER_FLOAT),
    row("torch.lerp({0}, {1}, {number}); torch.addcmul({0}, {0}, {1}, value={number})", FLOAT, OTHER_FLOAT, NUMBERS),
    row("{0} > {1}; {0} <= {1}; torch.eq; {0} != {1}; torch.isclose", FLOAT, OTHER_FLOAT, weight=2),
    row("{0} & {1}; {0} | {1}; torch.logical_xor", BOOLEAN, MASK),
    row("~{0}; torch.logical_not; {0}.float(); {0}.long()", BOOLEAN),
    row("torch.logical_not; .logical_not", ANY),
    row("{0} >= {number}; {0} < {number}; {0} == {number}; {number} <= {0}", ANY, NUMBERS),
    row("torch.isnan; torch.isfinite; {0} > 0; {0} != 0", FLOAT),
    row("{0} // {number}; {0} % {number}; {0} * {number}; {0} + {number}; {0} / {number}", WHOLE,
        argument("number", one_of(2, 3)), weight=2),
    row("torch.div({0}, {number}{*}); {0}.div({number}{*})", WHOLE, argument("number", one_of(2, 3)),
        argument("rounding_mode", one_of("floor", "trunc"))),
]

SCALARS = [
    row("{0} * {number}; {number} * {0}; torch.mul({0}, {number}); {0}.mul({number})", ANY, NUMBERS, weight=4),
    row("{0} + {number}; {number} + {0}; torch.add({0}, {number}); {0}.add({number})", ANY, NUMBERS, weight=4),
    row("{0} - {number}; {number} - {0}; torch.sub({0}, {number}); torch.rsub({0}, {number})", FLOAT, NUMBERS,
        weight=3),
    row("{0} / {number}; torch.div({0}, {number}); {0}.div({number})", FLOAT,
        argument("number", number_of(2, 0.5, 3, 1, -1, 1.0, 7.0)), weight=3),
    row("{number} / ({0}.abs() + 1); {number} ** {0}.clamp(-2, 2)", FLOAT, argument("number", number_of(2, 0.5, 3, 1))),
    row("torch.add({0}, {number}, alpha={alpha})", FLOAT, NUMBERS, argument("alpha", one_of(2, -1, 3))),
    row("{0} // {number}; {0} % {number}", FLOAT, argument("number", number_of(2, 0.5, 3))),
    row("{0} * {1}; {0} / {1}; {0} + {1}", FLOAT, NUMBER, frozenset({"size"})),
]

_REDUCTION = argument("reduction", one_of("sum", "none"), 2)
_CTC = (
    argument("batch", size(1)),
    argument("lengths", lambda builder, objects: (objects[0].shape[0],) * objects[0].shape[1]),
    argument("ones", lambda builder, objects: (1,) * objects[0].shape[1]),
)
LOSSES = [
    row("F.mse_loss; F.l1_loss; F.smooth_l1_loss; F.huber_loss", FLOAT, SAME, _REDUCTION, weight=2),
    row("nn.MSELoss; nn.L1Loss", FLOAT, SAME_FLOAT, _REDUCTION, call="{module}({0}, {1})"),
    row("F.cross_entropy", ROWS, CLASSES, _REDUCTION),
    row("nn.CrossEntropyLoss", ROWS, CLASSES, _REDUCTION, call="{module}({0}, {1})"),
    row("F.cross_entropy({0}, {1}, weight={2}.abs(){*}); F.nll_loss({0}, {1}, weight={2}.abs(){*})", ROWS, CLASSES,
        PER_COLUMN, _REDUCTION),
    row("F.cross_entropy({0}, {1}.softmax(1){*})", MATRICES, SAME_FLOAT, _REDUCTION),
    row("F.nll_loss({0}.log_softmax(-1), {1}{*})", ROWS, CLASSES, _REDUCTION),
    row("nn.KLDivLoss(reduction='batchmean'); nn.KLDivLoss(reduction='sum', log_target=True)", VECTORS, SAME_FLOAT,
        call="{module}({0}.log_softmax(-1), {1}.log_softmax(-1))"),
    # with fewer than two classes the kernel reads out of bounds
    row("F.ctc_loss(F.pad({0}, (0, 1)).log_softmax(-1), torch.ones({batch}, 1, dtype=torch.int64), {lengths}, {ones}"
        "{*})", SEQUENCES, *_CTC, _REDUCTION),
    row("nn.CTCLoss({*})", SEQUENCES, _REDUCTION, weight=1, call="{module}(F.pad({0}, (0, 1)).log_softmax(-1), "
        "torch.ones({0}.size(1), 1, dtype=torch.int64), ({0}.size(0),) * {0}.size(1), (1,) * {0}.size(1))"),
    row("nn.AdaptiveLogSoftmaxWithLoss({width}, 6, [2, 4])", ROWS, CLASSES, argument("width", size(-1)),
        call="{module}({0}, {1})"),
    row("F.binary_cross_entropy({0}.sigmoid(), {1}.sigmoid(){*}); "
        "F.binary_cross_entropy_with_logits({0}, {1}.sigmoid(){*}); "
        "F.kl_div({0}.log_softmax(-1), {1}.softmax(-1){*})", VECTORS, SAME_FLOAT, _REDUCTION),
    row("F.binary_cross_entropy({0}.sigmoid(), {1}.sigmoid(), weight={2}.abs(){*}); "
        "F.binary_cross_entropy_with_logits({0}, {1}.sigmoid(), weight={2}.abs(){*}); "
        "F.binary_cross_entropy_with_logits({0}, {1}.sigmoid(), pos_weight={2}.abs(){*})", VECTORS, SAME_FLOAT,
        PER_COLUMN, _REDUCTION),
]

DTYPES = [
    row("{0}.to({dtype})", ANY,
        argument("dtype", one_of(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)),
        frozenset({"cast"}), weight=2),
    row(".double; .float; .half; .bfloat16", FLOAT, frozenset({"cast"}), weight=2),
    row(".long; .int; .bool", FLOAT, frozenset({"cast"})),
    row(".type_as; {0}.to({1}); {0}.to({1}.dtype); {0}.to(dtype={1}.dtype)", ANY, ANY, frozenset({"cast"})),
    row(".detach; .clone; .contiguous", ANY, frozenset({"copy"}), weight=2),
]
