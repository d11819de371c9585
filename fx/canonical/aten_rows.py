"""Rows of the table of equal spellings for operators of ATen, as exported programs call them.

An operator ``aten.name`` means what the function of ``torch`` by that name does, or the method of tensors, and those
have their rows in :mod:`fx.canonical.equal_spellings`. Here are the operators for which there is neither, or for which
that is a function written in Python with other parameters. Rows are read as those are; ``aten.name`` speaks of all
overloads, ``aten.name.overload`` of one.
"""

from __future__ import annotations

from fx.canonical.equal_spellings import activation


def _resampling(dims: int, kind: str, mode: str, corners: bool, antialias: bool = False) -> str:
    """A row for one way to resample over so many dimensions."""
    name = f"aten._upsample_{kind}{dims}d_aa" if antialias else f"aten.upsample_{kind}{dims}d"
    taken, passed = ("align_corners, ", "align_corners") if corners else ("", "None")
    return (
        f"{name}.vec(input, output_size: sizes{dims}, {taken}scale_factors: sizes{dims})"
        f" -> F.interpolate(input, size=output_size, scale_factor=scale_factors, mode='{mode}',"
        f" align_corners={passed}, recompute_scale_factor=None, antialias={antialias})"
    )


ATEN_ROWS: tuple[str, ...] = (
    # Activations that are functions of Python.
    *activation("silu", "aten"),
    *activation("mish", "aten"),
    *activation("hardswish", "aten"),
    *activation("hardsigmoid", "aten"),
    *activation("leaky_relu", "aten", ", negative_slope=0.01", ", negative_slope"),
    *activation("elu", "aten", ", alpha=1.0, scale: 1 = 1, input_scale: 1 = 1", ", alpha"),
    *activation("hardtanh", "aten", ", min_val=-1.0, max_val=1.0", ", min_val, max_val"),
    "aten.relu6(input) -> F.hardtanh(input, min_val=0.0, max_val=6.0, inplace=False)",
    "aten.relu6_(input) -> F.hardtanh(input, min_val=0.0, max_val=6.0, inplace=True)",
    "aten.glu(input, dim=-1) -> F.glu(input, dim)",
    "aten.log_sigmoid(input) -> F.logsigmoid(input)",
    # Logic: what `&` of Python calls.
    *(
        f"aten.__{name.strip('_')}__(self, other) -> operator.{name}(self, other)"
        for name in ("and_", "or_", "xor", "lshift", "rshift")
    ),
    # Normalization. Whether cuDNN may be used is asked for when the function runs, as in the model that was exported.
    "aten.batch_norm(input, weight, bias, running_mean, running_var, training: False, momentum, eps,"
    " cudnn_enabled=True) -> F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)",
    "aten.layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-05, cudnn_enable=True)"
    " -> F.layer_norm(input, sequence(normalized_shape), weight, bias, eps)",
    "aten.group_norm(input, num_groups, weight=None, bias=None, eps=1e-05, cudnn_enabled=True)"
    " -> F.group_norm(input, num_groups, weight, bias, eps)",
    "aten.instance_norm(input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps,"
    " cudnn_enabled=True)"
    " -> F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)",
    # Convolution of any kind; the rows for one dimension, two and three fit by the length of the stride.
    *(
        row
        for dims in (1, 2, 3)
        for zeros in [(0,) * dims]
        for row in (
            f"aten.convolution(input, weight, bias, stride: size{dims}, padding, dilation, transposed: False = False,"
            f" output_padding={zeros}, groups=1) -> F.conv{dims}d(input, weight, bias, sequence(stride),"
            " sequence(padding), sequence(dilation), groups)",
            f"aten.convolution(input, weight, bias, stride: size{dims}, padding, dilation, transposed: True,"
            f" output_padding, groups) -> F.conv_transpose{dims}d(input, weight, bias, sequence(stride),"
            " sequence(padding), sequence(output_padding), groups, sequence(dilation))",
        )
    ),
    # Pooling and sizes.
    *(
        row
        for dims, tuple_of in ((1, "single"), (2, "pair"), (3, "triple"))
        for row in (
            f"aten.max_pool{dims}d_with_indices(input, kernel_size, stride=None, padding=0, dilation=1,"
            f" ceil_mode=False) -> F.max_pool{dims}d(input, {tuple_of}(kernel_size), {tuple_of}(stride or kernel_size),"
            f" {tuple_of}(padding), {tuple_of}(dilation), ceil_mode, return_indices=True)",
            f"aten.adaptive_avg_pool{dims}d(input, output_size)"
            f" -> F.adaptive_avg_pool{dims}d(input, {tuple_of}(output_size))",
            f"aten.adaptive_max_pool{dims}d(input, output_size)"
            f" -> F.adaptive_max_pool{dims}d(input, {tuple_of}(output_size), return_indices=True)",
            _resampling(dims, "nearest", "nearest", corners=False),
            _resampling(dims, "nearest_exact", "nearest-exact", corners=False).replace("aten.u", "aten._u"),
        )
    ),
    _resampling(1, "linear", "linear", corners=True),
    _resampling(2, "bilinear", "bilinear", corners=True),
    _resampling(2, "bicubic", "bicubic", corners=True),
    _resampling(3, "trilinear", "trilinear", corners=True),
    _resampling(2, "bilinear", "bilinear", corners=True, antialias=True),
    _resampling(2, "bicubic", "bicubic", corners=True, antialias=True),
    "aten.pad(input, pad, mode='constant', value=None) -> F.pad(input, sequence(pad), mode, value)",
    # Parts, sizes, conversions.
    "aten.split.Tensor(input, split_size, dim=0)"
    " -> torch.split(tensor=input, split_size_or_sections=split_size, dim=dim)",
    "aten.split.sizes(input, split_size, dim=0)"
    " -> torch.split(tensor=input, split_size_or_sections=sequence(split_size), dim=dim)",
    "aten.split_with_sizes(input, split_sizes, dim=0)"
    " -> torch.split(tensor=input, split_size_or_sections=sequence(split_sizes), dim=dim)",
    "aten.sym_size.int(self, dim) -> Tensor.size(self, dim=dim)",
    "aten.sym_stride.int(self, dim) -> Tensor.stride(self, dim=dim)",
    "aten._to_copy(self, *, dtype=None, layout: None = None, device=None, pin_memory: None = None, non_blocking=False,"
    " memory_format=None) -> Tensor.to(self, device=device, dtype=dtype, non_blocking=non_blocking, copy=True,"
    " memory_format=memory_format)",
)
"""The rows, as text."""
