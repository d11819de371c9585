"""Programs that ask what a value is: its class, its attributes, its dtype and device."""

from __future__ import annotations

import builtins
import builtins as python
import functools
from builtins import isinstance as is_one_of

import torch
from torch import nn

from .programs import Layered, given, one_liners, other_rows, program, rows, tokens


@program(rows)
def isinstance_tensor(x):
    if isinstance(x, torch.Tensor):
        return x * 2
    return x


@program(rows)
def isinstance_list(x):
    if isinstance(x, (list, tuple)):
        x = torch.stack(x)
    return x * 2


@program(rows)
def isinstance_computed(x):
    y = x.relu()
    return y + 1 if isinstance(y, torch.Tensor) else y


@program(rows)
def isinstance_not(x):
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"expected a tensor, got {type(x)}")
    return x + 1


@program(rows)
def isinstance_size(x):
    n = x.shape[0]
    return x * (n if isinstance(n, int) else 7)


@program(rows)
def isinstance_shape(x):
    shape = x.shape
    return x.sum() if isinstance(shape, torch.Size) else x


@program(rows)
def isinstance_shape_tuple(x):
    shape = x.shape[1:]
    return x.reshape(-1, *([6] if isinstance(shape, tuple) else [3]))


@program(rows)
def isinstance_chunks(x):
    parts = x.chunk(2, -1)
    return parts[0] + parts[1] if isinstance(parts, (list, tuple)) else parts


@program(rows)
def type_is(x):
    if type(x) is torch.Tensor:
        return x * 2
    return x


@program(rows)
def type_equal(x):
    if type(x) == list:  # noqa: E721
        return x[0]
    return x + 3


one_liners(
    rows,
    type_in=lambda x: x - 1 if type(x) in (list, tuple) else x + 1,
    getattr_default=lambda x: x * getattr(x, "my_scale", 3.0),
    getattr_known=lambda x: getattr(x, "T"),
    dtype_in=lambda x: x * 2 if x.dtype in (torch.float32, torch.float64) else x,
    dtype_repr=lambda x: x * 2 if repr(x.dtype).endswith("32") else x,
    float_limit=lambda x: x.masked_fill(x > 0, torch.finfo(x.dtype).min),
    zeros_of_dtype=lambda x: x + torch.zeros(6, dtype=x.dtype),
    arange_on_device=lambda x: x + torch.arange(6, device=x.device),
    tensor_of_dtype=lambda x: x * torch.tensor([1, 2, 3, 4, 5, 6], dtype=x.dtype, device=x.device),
    promoted=lambda x: x.to(torch.promote_types(x.dtype, torch.float64)),
    device_text=lambda x: x.half() if "cuda" in str(x.device) else x * 2,
    device_equal=lambda x: x + 1 if x.device == torch.device("cpu") else x,
    torch_floating=lambda x: x * 2 if torch.is_floating_point(x) else x.float(),
    dtype_attribute=lambda x: x * 2 if x.dtype.is_floating_point else x,
    default_dtype=lambda x: x.to(torch.get_default_dtype()) * 2,
    callable_asked=lambda x: x * 2 if callable(x) else x * 3,
    isinstance_of_builtins=lambda x: x * 2 if builtins.isinstance(x, torch.Tensor) else x * 3,
    isinstance_of_renamed_builtins=lambda x: x * 2 if python.isinstance(x, torch.Tensor) else x * 3,
    isinstance_renamed=lambda x: x * 2 if is_one_of(x, torch.Tensor) else x * 3,
    type_of_builtins=lambda x: x * 2 if builtins.type(x) is torch.Tensor else x * 3,
    hasattr_of_builtins=lambda x: x * 2 if builtins.hasattr(x, "tensors") else x * 3,
    types_mapped=lambda x: x * 2 if torch.Tensor in map(type, [x]) else x * 3,
    isinstance_in_partial=lambda x: x * 2 if next(_of_tensors([x], [torch.Tensor])) else x * 3,
    isinstance_in_variable=lambda x: x * 2 if _is_instance(x, torch.Tensor) else x * 3,
    isinstance_as_default=lambda x, check=isinstance: x * 2 if check(x, torch.Tensor) else x * 3,
    isinstance_as_default_of_function=lambda x: _picked(x),
    isinstance_in_dict=lambda x: x * 2 if _ASKS["isinstance"](x, torch.Tensor) else x * 3,
)


@program(rows)
def is_tensor(x):
    if torch.is_tensor(x):
        return x * 2
    return x


@program(rows)
def not_is_tensor(x):
    if not torch.is_tensor(x):
        x = torch.tensor(x)
    return x * 4


@program(rows)
def hasattr_of_tensor(x):
    if hasattr(x, "shape"):
        return x * 2
    return x


@program(rows)
def hasattr_foreign(x):
    if hasattr(x, "tensors"):
        x = x.tensors
    return x * 2


@program(rows)
def class_asked(x):
    if x.__class__.__name__ == "Tensor":
        return x * 2
    return x


@program(rows)
def is_none(x):
    if x is None:
        return torch.zeros(1)
    return x * 2


@program(rows)
def gradient_is_none(x):
    if x.grad is None:
        return x * 2
    return x * 3


@program(rows)
def function_is_none(x):
    if x.grad_fn is not None:
        return x * 2
    return x * 3


@program(rows)
def requires_grad_branch(x):
    if x.requires_grad:
        return x * 2
    return x * 3


@program(rows)
def dtype_is(x):
    if x.dtype is torch.float32:
        return x * 2
    return x * 3


@program(rows)
def dtype_is_stored(x):
    kind = x.dtype
    scale = 2 if kind is torch.float32 else 3
    return x * scale


@program(rows)
def dtype_is_not(x):
    if x.dtype is not torch.float32:
        x = x.float()
    return x.exp()


@program(rows)
def dtype_equal(x):
    if x.dtype == torch.float32:
        return x * 2
    return x


@program(rows)
def dtype_text(x):
    if str(x.dtype) == "torch.float32":
        return x * 2
    return x


@program(rows)
def dtype_text_contains(x):
    if "float" in str(x.dtype):
        return x * 2
    return x


@program(rows)
def dtype_formatted(x):
    if f"{x.dtype}" == "torch.float32":
        return x * 2
    return x


@program(rows)
def dtype_as_key(x):
    scales = {torch.float32: 2.0, torch.float64: 3.0}
    return x * scales[x.dtype]


@program(rows)
def dtype_lookup_default(x):
    scales = {torch.float32: 2.0}
    return x * scales.get(x.dtype, 1.0)


@program(tokens)
def integer_limit(x):
    return x.clamp(max=torch.iinfo(x.dtype).max - 1) + torch.iinfo(x.dtype).bits


@program(rows)
def float_limit_stored(x):
    info = torch.finfo(x.dtype)
    return x.clamp(info.eps, info.max)


@program(rows)
def frombuffer(x):
    data = bytearray(b"\0\0\x80?" * 6)
    return x + torch.frombuffer(data, dtype=x.dtype)


@program(rows)
def result_type(x):
    return x.to(torch.result_type(x, 1.0)) + 1


@program(rows)
def can_cast(x):
    return x * 2 if torch.can_cast(x.dtype, torch.float64) else x


@program(rows)
def device_type(x):
    if x.device.type == "cpu":
        return x * 2
    return x


@program(rows)
def device_is_cuda(x):
    if x.is_cuda:
        return x * 2
    return x + 1


@program(rows)
def floating(x):
    if x.is_floating_point():
        return x * 2
    return x.float()


@program(rows)
def contiguous(x):
    if not x.is_contiguous():
        x = x.contiguous()
    return x * 2


@program(rows, other_rows)
def same_object(x, y):
    if x is y:
        return x * 2
    return x + y


@program(rows)
def self_attention_shortcut(query):
    key = query
    return query * 2 if key is query else query @ key.t()


@program(rows)
def id_as_key(x):
    seen = {id(x): x * 2}
    return seen[id(x)]


@program(rows)
def ndim_branch(x):
    if x.dim() == 2:
        x = x.unsqueeze(1)
    return x


@program(rows)
def ndim_assert(x):
    assert x.dim() == 2, "two dimensions"
    return x * 2


@program(rows)
def ndim_assert_in(x):
    assert x.dim() in (2, 3)
    return x * 2


@program(rows, given([1.0, 2.0]))
def list_input(x, scales):
    if isinstance(scales, list):
        return x * scales[0]
    return x


@program(rows, given(2))
def number_input(x, factor):
    if isinstance(factor, int):
        return x * factor
    return x


@program(rows)
class ModuleQuestions(Layered):
    def __init__(self):
        super().__init__()
        self.norm = None

    def forward(self, x):
        x = self.layer(x)
        if hasattr(self, "missing"):
            x = x * 2
        if self.norm is not None:
            x = self.norm(x)
        if isinstance(self.layer, nn.Linear):
            x = x + 1
        return x


@program(rows)
class ParameterQuestions(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.bias = None

    def forward(self, x):
        if self.bias is None and isinstance(self.weight, torch.Tensor):
            return x * self.weight
        return x


@program(rows)
class BufferQuestions(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(6))

    def forward(self, x):
        if isinstance(self.mask, torch.Tensor) and self.mask.dim() == 1:
            return x * self.mask
        return x


@program(rows)
class MovedToDtype(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return x.to(self.weight.dtype) * self.weight


@program(rows)
def builtins_imported_inside(x):
    import builtins as b

    return x * 2 if b.isinstance(x, torch.Tensor) else x * 3


@program(rows, other_rows)
def isinstance_mapped(x, y):
    found = list(map(isinstance, (x, 2.0, y), (torch.Tensor,) * 3))
    return x * sum(found) + y


one_liners(
    rows,
    other_rows,
    isinstance_of_all=lambda x, y: x + y if all(isinstance(one, torch.Tensor) for one in (x, y)) else x * 3,
    callables_filtered=lambda x, y: x * (1 + len(list(filter(callable, [x, y])))),
)


_of_tensors = functools.partial(map, isinstance)
_is_instance = isinstance


@program(rows)
def isinstance_in_partial_made_inside(x):
    check = functools.partial(isinstance, x)
    return x * 2 if check(torch.Tensor) else x * 3


def _picked(x, *, asks=isinstance):
    return x * 2 if asks(x, torch.Tensor) else x * 3


_ASKS = {"isinstance": isinstance}


@program(rows)
class IsinstanceAsAttribute(nn.Module):
    asks = isinstance

    def forward(self, x):
        return x * 2 if self.asks(x, torch.Tensor) else x * 3


@program(rows)
class IsinstanceKept(nn.Module):
    def __init__(self):
        super().__init__()
        self.asks = isinstance

    def forward(self, x):
        return x * 2 if self.asks(x, torch.Tensor) else x * 3
