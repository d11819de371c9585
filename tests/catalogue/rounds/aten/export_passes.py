"""Subclasses of ``ExportPass``, which call each operator of a program anew."""

from torch._export.pass_base import _ExportPassBaseDeprecatedDoNotUse as ExportPass

from ...rows import fault, sound
from . import ROUND, aten


@fault(
    ROUND,
    "bounds",
    wrong="The lower bound is the upper one with the other sign only by default; relu6 is a hardtanh, too.",
)
class HardtanhAsClamp(ExportPass):
    """A hardtanh is a clamp."""

    def call_operator(self, op, args, kwargs, meta):
        """Call a clamp instead."""
        if op is aten.hardtanh.default:
            high = args[2] if len(args) > 2 else 1
            return super().call_operator(aten.clamp.default, (args[0], -high, high), kwargs, meta)
        return super().call_operator(op, args, kwargs, meta)


@sound(ROUND)
class HardtanhAsClampWithBounds(ExportPass):
    """A hardtanh is a clamp, by default between -1 and 1."""

    def call_operator(self, op, args, kwargs, meta):
        """Call a clamp instead."""
        if op is aten.hardtanh.default:
            low = args[1] if len(args) > 1 else -1
            high = args[2] if len(args) > 2 else 1
            return super().call_operator(aten.clamp.default, (args[0], low, high), kwargs, meta)
        return super().call_operator(op, args, kwargs, meta)


@fault(ROUND, "dropped argument", wrong="An elu has a scale, which a selu sets.")
class EluByParts(ExportPass):
    """An elu in elementwise operators: x where it is positive, and alpha (exp(x) - 1) else."""

    def call_operator(self, op, args, kwargs, meta):
        """Call the parts instead."""
        if op is not aten.elu.default:
            return super().call_operator(op, args, kwargs, meta)
        x, alpha = args[0], args[1] if len(args) > 1 else 1
        if len(args) > 3 and args[3] != 1:
            return super().call_operator(op, args, kwargs, meta)
        low = super().call_operator(aten.clamp_max.default, (x, 0), {}, meta)
        grown = super().call_operator(aten.expm1.default, (low,), {}, meta)
        scaled = super().call_operator(aten.mul.Tensor, (grown, alpha), {}, meta)
        is_positive = super().call_operator(aten.gt.Scalar, (x, 0), {}, meta)
        return super().call_operator(aten.where.self, (is_positive, x, scaled), {}, meta)
