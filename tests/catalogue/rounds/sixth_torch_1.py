"""Wrong passes of the sixth round for torch.fx, part 1."""

import operator

import torch
import torch.fx
import torch.nn.functional as F

from ..rows import fault


def factor_w04(node, modules):
    """The whole factor of a nearest upsampling, or None."""
    if node.op == "call_module":
        module = modules[node.target]
        if type(module) is not torch.nn.Upsample or module._forward_hooks or module._forward_pre_hooks:
            return None
        size, factor, mode = module.size, module.scale_factor, module.mode
    elif node.op == "call_function" and node.target is F.interpolate:
        names = ("input", "size", "scale_factor", "mode")
        arguments = dict(zip(names, node.args), **node.kwargs)
        if len(node.args) > 4 or arguments.get("antialias") or arguments.get("recompute_scale_factor"):
            return None
        size, factor, mode = arguments.get("size"), arguments.get("scale_factor"), arguments.get("mode", "nearest")
    else:
        return None
    if size is not None or mode != "nearest" or not isinstance(factor, (int, float)):
        return None
    return int(factor) if factor == int(factor) and factor >= 1 else None


def repeat_w04(graph, node, factor):
    x = node.args[0] if node.args else node.kwargs["input"]
    with graph.inserting_before(node):
        wide = graph.call_function(torch.repeat_interleave, (x, factor), {"dim": -1})
        tall = graph.call_function(torch.repeat_interleave, (wide, factor), {"dim": -2})
    node.replace_all_uses_with(tall)
    graph.erase_node(node)


@fault(6, wrong="It forgot that interpolate also takes sequences (N, C, L) and volumes, not only images.")
def nearest_as_repeat(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The runtime's Resize is slow: repeat rows and columns where an upsampling is nearest and by a whole factor."""
    modules = dict(graph_module.named_modules())
    for node in list(graph_module.graph.nodes):
        factor = factor_w04(node, modules)
        if factor is not None:
            repeat_w04(graph_module.graph, node, factor)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


SHAPERS_W07 = {"reshape", "permute", "transpose"}


def literal_w07(value):
    if isinstance(value, (tuple, list)):
        return all(literal_w07(item) for item in value)
    return isinstance(value, int)


def candidates_w07(graph):
    """Pairs of a product with a constant on its right and the only user of it, which only moves elements."""
    for node in list(graph.nodes):
        if node.op != "call_method" or node.target not in SHAPERS_W07 or node.kwargs:
            continue
        product = node.args[0]
        if product.op != "call_function" or product.target not in (operator.mul, torch.mul):
            continue
        if len(product.users) != 1 or len(product.args) != 2 or product.kwargs or not literal_w07(node.args[1:]):
            continue
        if isinstance(product.args[0], torch.fx.Node):
            yield product, node


def sink_w07(graph, product, node):
    x, scale = product.args
    with graph.inserting_before(product):
        moved = graph.call_method(node.target, (x,) + tuple(node.args[1:]))
        if isinstance(scale, torch.fx.Node):
            scale = graph.node_copy(scale)
        scaled = graph.call_function(torch.mul, (moved, scale))
    node.replace_all_uses_with(scaled)
    graph.erase_node(node)
    graph.erase_node(product)


@fault(6, wrong="It forgot scales per channel, which broadcast along other axes once the elements have moved.")
def sink_scale(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Moves (de)quantization scales down past reshapes and transposes, so that they meet and can be merged."""
    graph = graph_module.graph
    for product, node in candidates_w07(graph):
        scale = product.args[1]
        constant = isinstance(scale, (int, float)) or (isinstance(scale, torch.fx.Node) and scale.op == "get_attr")
        if constant:
            sink_w07(graph, product, node)
    graph.lint()
    graph_module.recompile()
    return graph_module


def views_w11(graph):
    for node in list(graph.nodes):
        if node.op != "call_method" or node.target != "view" or node.kwargs:
            continue
        before = node.args[0]
        if before.op == "call_method" and before.target == "view" and not before.kwargs:
            yield before, node


@fault(6, wrong="It forgot that view also takes a dtype, which reinterprets the bits and keeps the shape.")
def last_view_wins(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Shape clean-up before export: of several views on end only the last one matters."""
    graph = graph_module.graph
    for before, node in views_w11(graph):
        node.args = (before.args[0],) + tuple(node.args[1:])
        if not before.users:
            graph.erase_node(before)
    graph.lint()
    graph_module.recompile()
    return graph_module


@fault(6, wrong="It forgot ties: max gives the gradient to one of the largest elements, amax spreads it over all.")
def max_values_as_amax(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """ONNX: torch.max with a dim exports as TopK or two reductions; where the indices are not read, ReduceMax is enough."""
    for dim in range(-4, 5):
        torch.fx.replace_pattern(graph_module, bind_w14(dim), bind_amax_w14(dim))
    graph_module.recompile()
    return graph_module


def bind_w14(dim):
    def pattern(x):
        return torch.max(x, dim)[0]

    return pattern


def bind_amax_w14(dim):
    def replacement(x):
        return torch.amax(x, dim)

    return replacement


class Opener_w15(torch.fx.Transformer):
    def shuffle(self, x, r):
        n, c, h, w = x.size(0), x.size(1), x.size(2), x.size(3)
        blocks = x.reshape(n, c // (r * r), r, r, h, w)
        return (
            blocks.permute(0, 1, 4, 2, 5, 3)
            .clone(memory_format=torch.contiguous_format)
            .reshape(n, c // (r * r), h * r, w * r)
        )

    def call_function(self, target, args, kwargs):
        if target in (F.pixel_shuffle, torch.pixel_shuffle):
            arguments = dict(zip(("input", "upscale_factor"), args), **kwargs)
            r = arguments.get("upscale_factor")
            if isinstance(r, int) and r > 1:
                return self.shuffle(arguments["input"], r)
        return super().call_function(target, args, kwargs)

    def call_module(self, target, args, kwargs):
        module = self.submodules[target] if hasattr(self, "submodules") else self.module.get_submodule(target)
        if type(module) is torch.nn.PixelShuffle and module.upscale_factor > 1:
            if not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks):
                return self.shuffle(args[0] if args else kwargs["input"], module.upscale_factor)
        return super().call_module(target, args, kwargs)


@fault(6, wrong="It forgot images without a batch dimension (C, H, W), and more than one leading dimension.")
def open_pixel_shuffle(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """For backends without DepthToSpace: pixel_shuffle as reshape, permute, reshape."""
    return Opener_w15(graph_module).transform()
