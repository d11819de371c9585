"""How far a right program may be off: every number that decides a verdict, with the measurement behind it.

A contract's own, ``rtol``, ``atol`` and ``error_factor``, stand in :class:`fx.passes.contract.Close`. The others are
here, and are the same whatever is promised. 54 layers and 74 gradients, where a figure names them, are those of four
networks: linear layers with GELU; convolutions with batch norms; an encoder layer; twelve linear layers with layer
norms and tanh. ``make looseness`` measures what the numbers come to on whole models.
"""

from __future__ import annotations

import torch

# What a program returns.

ERROR_FLOOR_ULPS = 4
"""Ulp of an output's largest element that are allowed even where eager, by luck, has no error at all.

The sums of 4,000 random linear layers, with 2 to 64 inputs and 1 to 10 outputs, were taken in another order. In float32
the errors of 30 were more than 8 times eager's, since eager's were small: 1.1 ulp in the median, and below 4 in all but
one, whose output cancels. In bfloat16 they were 48, all but two of them below 4.
"""
FAR_OUTSIDE = 64.0
"""How many times the upper quartile of eager's errors one has to be, not to count as a rounding error of the output.

An index that falls on the other side of a tie, and all that is computed from it, says nothing about other elements.
In the outputs of 54 layers, with ten inputs each, the largest error was 3.9 times the quartile in the median, 9.4 times
in one of a hundred, and 21 times at most (17 in bfloat16).
"""
COARSE = 1e-3
"""The detection limit from which on a verdict is worth a warning, where the contract itself asks for more."""

# What a gradient may be off.

GRADIENTS = {torch.float64: (1e-5, 1e-10), torch.float32: (1e-3, 1e-5)}
"""How far an element of a gradient may be off, for its own size and for that of the largest element.

Elements are sums, whose errors are in proportion to the largest. In float32 eager itself was off by 9e-7 of that in the
median of 74 gradients, with four inputs each, and by 4.5e-6 at most, or 38 ulp. As many ulp of float64 are 8e-15; the
rest of the way to 1e-10 is for longer sums and for what is less well-conditioned.
"""
GRADIENTS_OF_HALVES = (0.1, 1e-2)
"""The same where an ulp is a hundredth or a thousandth.

In bfloat16 the same gradients were off by 0.026 of the largest element in the median, and by 0.11 in one of a hundred.
So right passes exceed this, too; what does is wrong only if eager's own gradients move less when they are perturbed.
"""
BESIDE_ZEROS = 1e-3
"""The part of the relative tolerance that is the absolute one where all of eager's elements are 0, and have no size."""
ROUNDING_OF_LARGEST = 64
"""Ulp of the largest gradient of a program below which another gradient is the rest of a sum that cancels."""
NUDGES = 4
"""How many times the change of eager's own gradients, for inputs that are nudged by 2 ulp, a rough look allows.

What it lets pass is not looked at in float64. What it does not is judged there, so a small number costs time alone.
"""

# How far eager moves when it is perturbed (:mod:`pytest_fx.laws.conditioning`).

PERTURBATIONS = 8
"""How often eager is run with other rounding errors before a difference is held against the pass."""
MOST_PERTURBATIONS = 32
"""The same where few elements differ: each run moves an element that lies at a step with a probability of a half."""
FEW = 0.25
"""The share of elements that is few."""
SMALL = 1.0
"""The largest perturbation, in ulp of the element, in every other run: what one operation may do."""
LARGE = 16.0
"""The same in the others, which look for steps: another order of arithmetic may be several ulp away from eager's."""
LARGE_OF_HALVES = 2.0
"""The same where an ulp is a hundredth or thousandth of the element: 16 would forgive what is plainly wrong."""
APPROXIMATION = 4.0
"""How many times as far the values of functions such as ``erf`` are moved, which kernels approximate to a few ulp."""
ALLOWED = 2.0
"""How many times its movement under small perturbations an element may differ."""
STEP = 8.0
"""How many times more than in proportion an element moves under large perturbations where it lies at a step."""

# Outputs that noise moves by more than the noise there is (:mod:`pytest_fx.laws.noise`).

NOISY_VALUES = 32
"""Runs of eager with noise in one value each, before an output with too few decibels is held against the pass."""
NOISY_VALUES_OF_LARGE = 2
"""The same on a model of full size."""
LOST = 3.0
"""Decibels that one value's noise may lose on its way to an output, and by which two draws of noise may differ.

An output that has no more than these under the noise that a contract allows is held to no ratio.
In four networks (linear layers with GELU, convolutions with a softmax, a transformer layer, a variational autoencoder)
noise of 10 to 40 dB in any value lost 0.9 dB at most.
"""
RARE = 1e-3
"""The probability with which noise as large as is promised may be taken for more than that.

It is 7 dB above its mean in 4 elements then, 1.7 in 100, and 0.4 in 2,000.
"""

# What a pass computes of parameters.

SAME_PARAMETERS = (1e-3, 1e-6)
"""``rtol`` and ``atol`` within which a pass made the same parameters of the program in float64 and in its own dtype.

They decide whether it has to be applied once more to see that it does the same again. When 200 random batch norms with
variances from 1e-4 to 100 were folded into convolutions in float32 and in float64, elements were up to 5.2e-5 apart,
where a bias cancels, and in the median of the largest 1.3e-7, an ulp.
"""
