"""Tolerances for correct programs: every number that decides a verdict, with the measurement behind it.

The contract's own, ``rtol``, ``atol`` and ``error_factor``, are in :class:`fx.pipelines.contract.Close`. The others are
here, and are the same for all contracts. Measurements on 54 layers and 74 gradients used four networks. They are linear
layers with GELU; convolutions with batch norms; an encoder layer; twelve linear layers with layer norms and tanh.
``make looseness`` measures the effect of the numbers on whole models.
"""

from __future__ import annotations

import torch

# Outputs of a program.

ERROR_FLOOR_ULPS = 4
"""Error that is allowed even if eager, by luck, has none, in ulp of the output's largest element.

The sums of 4,000 random linear layers, with 2 to 64 inputs and 1 to 10 outputs, were taken in another order. In float32
the errors of 30 were more than 8 times eager's, since eager's were small: 1.1 ulp in the median, and below 4 in all but
one, whose output cancels. In bfloat16 they were 48, all but two of them below 4.
"""
FAR_OUTSIDE = 64.0
"""Errors beyond this multiple of the upper quartile of eager's errors are not rounding errors of the output.

An index that falls on the other side of a tie, and all that is computed from it, says nothing about other elements.
The outputs of 54 layers were measured with ten inputs each. The largest error was 3.9 times the quartile in the median,
9.4 times in one of a hundred, and 21 times at most (17 in bfloat16).
"""
COARSE = 1e-3
"""The detection limit from which on a verdict gets a warning, if the contract itself asks for more."""

# Errors of gradients.

GRADIENTS = {torch.float64: (1e-5, 1e-10), torch.float32: (1e-3, 1e-5)}
"""Tolerances of an element of a gradient, relative to the element and to the largest element.

Elements are sums, whose errors are in proportion to the largest. In float32, eager's own error was 9e-7 of the largest
element in the median of 74 gradients, with four inputs each, and 4.5e-6, or 38 ulp, at most. In float64, 38 ulp are
8e-15; the margin up to 1e-10 is for longer sums and worse conditioning.
"""
GRADIENTS_OF_HALVES = (0.1, 1e-2)
"""The same for dtypes whose ulp is a hundredth or a thousandth.

In bfloat16 the errors of the same gradients were 0.026 of the largest element in the median, and 0.11 in one of a
hundred. Correct passes exceed this, too; a gradient that does is wrong only if eager's own gradients move less when
they are perturbed.
"""
BESIDE_ZEROS = 1e-3
"""Absolute tolerance, as a part of the relative one, if all of eager's elements are 0 and have no size."""
ROUNDING_OF_LARGEST = 64
"""Ulp of the largest gradient of a program below which another gradient is the rest of a sum that cancels."""
NUDGES = 4
"""Limit of a first, rough check, as a multiple of the change of eager's gradients for inputs that are moved by 2 ulp.

Gradients within it are not compared in float64. The others are judged there, so a small number costs only time.
"""

# Changes of eager's outputs under perturbation (:mod:`pytest_fx.laws.conditioning`).

PERTURBATIONS = 8
"""Number of runs of eager with other rounding errors before a difference counts as a fault of the pass."""
MOST_PERTURBATIONS = 32
"""The same if few elements differ: each run moves an element that lies at a step with a probability of a half."""
FEW = 0.25
"""The share of elements up to which they are few."""
SMALL = 1.0
"""The largest perturbation, in ulp of the element, in every other run: the error of one operation."""
LARGE = 16.0
"""The same in the other runs, which look for steps: another order of arithmetic may be several ulp from eager's."""
LARGE_OF_HALVES = 2.0
"""The same for dtypes whose ulp is a hundredth or thousandth of the element: 16 would accept plain faults."""
APPROXIMATION = 4.0
"""Factor of the perturbation of functions such as ``erf``, which kernels approximate to a few ulp."""
ALLOWED = 2.0
"""Limit of the error of an element, as a multiple of its movement under small perturbations."""
STEP = 8.0
"""Factor by which a movement under large perturbations exceeds the proportional one if an element lies at a step."""

# Outputs that amplify noise (:mod:`pytest_fx.laws.noise`).

NOISY_VALUES = 32
"""Runs of eager with noise in one value each, before an output with too few decibels counts as a fault of the pass."""
NOISY_VALUES_OF_LARGE = 2
"""The same on a model of full size."""
LOST = 3.0
"""Decibels that noise of one value may lose on its way to an output, and by which two draws of noise may differ.

An output with no more decibels than these under the noise that a contract allows has to keep no ratio.
In four networks (linear layers with GELU, convolutions with a softmax, a transformer layer, a variational autoencoder)
noise of 10 to 40 dB in any value lost 0.9 dB at most.
"""
RARE = 1e-3
"""The probability that noise of the promised power is judged to be larger.

The limit is then 7 dB above the mean for 4 elements, 1.7 dB for 100, and 0.4 dB for 2,000.
"""

# Parameters that a pass computes.

SAME_PARAMETERS = (1e-3, 1e-6)
"""``rtol`` and ``atol`` within which the parameters that a pass computes in float64 and in its own dtype are the same.

They decide whether the pass is applied once more, to see that it is deterministic. In the measurement, 200 random batch
norms with variances from 1e-4 to 100 were folded into convolutions in float32 and in float64. Elements were up to
5.2e-5 apart, where a bias cancels, and in the median of the largest 1.3e-7, an ulp.
"""
