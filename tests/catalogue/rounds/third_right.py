"""Right passes of the third round."""

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ..rows import sound

POINTWISE = {
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    torch.exp,
    torch.sqrt,
    torch.neg,
    torch.abs,
    torch.pow,
    torch.maximum,
    torch.minimum,
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.neg,
    operator.pow,
}


LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.LayerNorm, nn.Sigmoid, nn.Tanh, nn.GELU)


SCALARS = (bool, int, float, complex, str, type(None))


def harmless(graph_module, node):
    """Return whether the node surely writes nothing and returns a new tensor."""
    if node.op in ("placeholder", "get_attr", "output"):
        return True
    if node.op == "call_function":
        return node.target in POINTWISE and "out" not in node.kwargs
    if node.op != "call_module":
        return False
    module = graph_module.get_submodule(node.target)
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return type(module) in LAYERS and not hooks and "forward" not in vars(module)


def exactly(value):
    """A key that tells 1 from 1.0 and True, and 0.0 from -0.0; None where there is none."""
    if isinstance(value, fx.Node):
        return value
    return (type(value), repr(value)) if type(value) in SCALARS else None


@sound(3)
def share_pure_calls(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Compute each pointwise expression once, in programs of pointwise calls and plain layers."""
    graph = graph_module.graph
    if not all(harmless(graph_module, node) for node in graph.nodes):
        return graph_module
    first_of_key = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        # a shared value that is returned, twice or through a view, would make outputs aliases of each other
        if not all(user.op == "call_function" for user in node.users):
            continue
        args = tuple(exactly(arg) for arg in node.args)
        kwargs = tuple((name, exactly(arg)) for name, arg in sorted(node.kwargs.items()))
        if None in args or any(value is None for _, value in kwargs):
            continue
        first = first_of_key.setdefault((node.target, args, kwargs), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


TENSOR_FUNCTIONS = {
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    torch.exp,
    torch.sqrt,
    torch.abs,
    torch.matmul,
    torch.mean,
    torch.sum,
    torch.neg,
    torch.eq,
    torch.gt,
    torch.lt,
    F.relu,
    F.gelu,
    F.silu,
    F.linear,
    torch.cat,
    torch.stack,
}


TENSOR_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.LayerNorm, nn.ReLU, nn.GELU, nn.Sigmoid, nn.Tanh)


def is_tensor(graph_module, node):
    """Return whether the node surely gives one tensor, and not a size."""
    if not isinstance(node, fx.Node):
        return False
    if node.op == "call_function":
        return node.target in TENSOR_FUNCTIONS
    if node.op != "call_module":
        return False
    module = graph_module.get_submodule(node.target)
    return type(module) in TENSOR_LAYERS and not module._forward_hooks and "forward" not in vars(module)


def power(node):
    """(base, exponent) of a power, else None."""
    function = node.op == "call_function" and node.target in (operator.pow, torch.pow)
    if not function and not (node.op == "call_method" and node.target in ("pow", "__pow__")):
        return None
    arguments = dict(zip(("input", "exponent"), node.args))
    arguments.update({"input" if name == "self" else name: value for name, value in node.kwargs.items()})
    if set(arguments) != {"input", "exponent"}:
        return None
    return arguments["input"], arguments["exponent"]


@sound(3)
def square_powers(graph_module: fx.GraphModule) -> fx.GraphModule:
    """x ** 2 becomes torch.square(x). Not x * x, which stays bool for a bool x; and not for 2.0, which makes an integer
    tensor float."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        operands = power(node)
        if operands is None:
            continue
        base, exponent = operands
        if type(exponent) is not int or exponent != 2 or not is_tensor(graph_module, base):
            continue
        with graph.inserting_before(node):
            square = graph.call_function(torch.square, (base,))
        node.replace_all_uses_with(square)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


READS = {"size", "dim", "numel", "ndimension"}


# calls that leave the shape and dtype of every tensor that exists as they are; writing data does
FUNCTIONS = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.neg,
    operator.pow,
    operator.getitem,
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    torch.exp,
    torch.add,
    torch.sub,
    torch.mul,
    torch.matmul,
    torch.cat,
    torch.softmax,
    torch.flatten,
    torch.transpose,
    torch.relu_,
    F.relu,
    F.gelu,
    F.linear,
    F.softmax,
    getattr,
}


METHODS = READS | {
    "view",
    "reshape",
    "permute",
    "transpose",
    "flatten",
    "contiguous",
    "unsqueeze",
    "squeeze",
    "relu",
    "exp",
    "mean",
    "sum",
    "add_",
    "mul_",
    "sub_",
    "relu_",
    "zero_",
    "fill_",
    "exp_",
    "expand",
    "float",
    "double",
}


LAYERS_EARLY = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.LayerNorm,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.ReLU,
    nn.GELU,
    nn.MaxPool2d,
    nn.Dropout,
)


def keeps_shapes(graph_module, node):
    if node.op in ("placeholder", "get_attr"):
        return True
    if node.op == "call_function":
        return node.target in FUNCTIONS and "out" not in node.kwargs
    if node.op == "call_method":
        return node.target in METHODS and "out" not in node.kwargs
    if node.op != "call_module":
        return False
    module = graph_module.get_submodule(node.target)
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return type(module) in LAYERS_EARLY and not hooks and "forward" not in vars(module)


def reads_shape(node):
    if len(node.all_input_nodes) != 1 or node.kwargs or not node.args or not isinstance(node.args[0], fx.Node):
        return False
    if node.op == "call_method":
        return node.target in READS
    return node.op == "call_function" and node.target is getattr and node.args[1:] in (("shape",), ("ndim",))


@sound(3)
def read_shapes_early(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Move size(), dim(), .shape and the like up towards what made the tensor, past calls that change no shape. t_(),
    unsqueeze_(), resize_(), a hook or anything unknown stops them."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if not reads_shape(node):
            continue
        place = node
        while (
            place.prev is not node.args[0] and place.prev.op != "placeholder" and keeps_shapes(graph_module, place.prev)
        ):
            if reads_shape(place.prev):
                break
            place = place.prev
        if place is not node:
            place.prepend(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


def as_made(module):
    """Return whether calling the module only runs the forward of its class."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return not hooks and "forward" not in vars(module)


@sound(3)
def open_layers(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Linear, Conv2d, LayerNorm, GELU and Softmax become functions. Parameters are read where they were, so state and
    training stay as they are. Layers with hooks, of a subclass (parametrizations make one), or with other padding than
    zeros stay closed."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_module":
            continue
        if len(node.args) == 1 and not node.kwargs:
            value = node.args[0]
        elif not node.args and set(node.kwargs) == {"input"}:
            value = node.kwargs["input"]
        else:
            continue
        module = graph_module.get_submodule(node.target)
        if not as_made(module):
            continue

        def parameter(name, node=node, module=module):
            return None if getattr(module, name) is None else graph.get_attr(f"{node.target}.{name}")

        with graph.inserting_before(node):
            if type(module) is nn.Linear:
                opened = graph.call_function(F.linear, (value, parameter("weight"), parameter("bias")))
            elif type(module) is nn.Conv2d and module.padding_mode == "zeros":
                weights = (parameter("weight"), parameter("bias"))
                shape = (module.stride, module.padding, module.dilation, module.groups)
                opened = graph.call_function(F.conv2d, (value, *weights, *shape))
            elif type(module) is nn.LayerNorm:
                weights = (parameter("weight"), parameter("bias"))
                opened = graph.call_function(F.layer_norm, (value, module.normalized_shape, *weights, module.eps))
            elif type(module) is nn.GELU:
                opened = graph.call_function(F.gelu, (value,), {"approximate": module.approximate})
            elif type(module) is nn.Softmax and module.dim is not None:
                opened = graph.call_function(F.softmax, (value, module.dim))
            else:
                continue
        node.replace_all_uses_with(opened)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


METHODS_CONVERSIONS = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "int": torch.int32,
    "long": torch.int64,
    "bool": torch.bool,
}


PURE = {operator.add, operator.sub, operator.mul, torch.relu, torch.sigmoid, torch.tanh, torch.add, torch.mul}


def conversion(node):
    """Return the dtype of a conversion, or "contiguous", else None. Copy, device and memory format are ignored."""
    if (
        not isinstance(node, fx.Node)
        or node.op != "call_method"
        or node.kwargs
        or not isinstance(node.args[0], fx.Node)
    ):
        return None
    if len(node.args) == 1:
        return "contiguous" if node.target == "contiguous" else METHODS_CONVERSIONS.get(node.target)
    if node.target == "to" and len(node.args) == 2 and isinstance(node.args[1], torch.dtype):
        return node.args[1]
    return None


def undisturbed(first, last):
    """Return whether nothing between the two might change the layout of the first one's result."""
    node = first.next
    while node is not last:
        pure = node.op == "call_function" and node.target in PURE and not node.kwargs
        if not pure and node.op != "get_attr" and conversion(node) is None:
            return False
        node = node.next
    return True


@sound(3)
def drop_repeated_conversions(graph_module: fx.GraphModule) -> fx.GraphModule:
    """x.float().to(torch.float32) is x.float(), and so on: the second returns the very tensor it was given.

    The first one stays: it may be a copy that is written later, or x itself."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        kind = conversion(node)
        if kind is None or conversion(node.args[0]) != kind or not undisturbed(node.args[0], node):
            continue
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module
