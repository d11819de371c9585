"""A wrong pass of the seventh round."""

import fx

from ...rows import fault


def any_pattern(x, mask, like, value):
    return x.masked_fill(mask.expand_as(like), value)


def any_replacement(x, mask, like, value):
    return x.masked_fill(mask, value)


@fault(
    7,
    wrong="The mask may be expanded to the shape of another value than the filled one; the result then no longer has that larger shape.",
)
def drop_mask_expansion(module: fx.GraphModule) -> fx.GraphModule:
    """Drop the `expand_as` of a mask in front of `masked_fill`, which broadcasts."""
    fx.replace_pattern(module, any_pattern, any_replacement)
    return module
