"""Runs that the paper timed on devices that ``simulate`` knows: its times, and their estimates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fx.passes import get_pass
from fx.simulation.known_devices import get_device
from fx.simulation.run_times import simulate
from model_zoo import get_model
from pytest_fx.harness.capture import capture
from pytest_fx.tables.estimates import numbers_of

XEON, V100 = "Xeon Gold 6138", "V100"


@dataclass(frozen=True, slots=True)
class PaperRun:
    """A run that the paper timed, on a device that ``simulate`` knows."""

    model: str
    """The model of the zoo."""
    device: str
    """The device."""
    threads: int
    """Threads of a processor, one for each core."""
    batch: int
    """The batch size; that of ResNet50 and of LearningToPaint is a guess, since the paper gives none."""
    seconds: float
    """The mean run time in the paper."""
    fused: bool = False
    """Whether batch norms are folded into convolutions."""
    appendix: str = ""
    """The appendix, where two of them have a time of the same run."""

    @property
    def name(self) -> str:
        """The name of the row."""
        parts = [f"{self.model} on {self.device}"]
        parts += [f"{self.threads} thread{'s' * (self.threads > 1)}"] * (self.device == XEON)
        parts += [f"batch {self.batch}", *["fused"] * self.fused, *[self.appendix] * bool(self.appendix)]
        return ", ".join(parts)

    def estimate(self) -> Mapping[str, Any]:
        """Estimate it by the roofline of the device's public figures."""
        zoo_model, device = get_model(self.model), get_device(self.device)
        program = capture(zoo_model.build())
        if self.fused:
            program = get_pass("fuse-conv-bn")(program) or program
        samples = zoo_model.example_inputs(1)
        inputs = [torch.empty((self.batch, *tensor.shape[1:]), dtype=tensor.dtype) for tensor in samples]
        estimate = simulate(program, device.limited_to(min(self.threads, device.cores)), *inputs)
        return {**numbers_of(estimate, "roofline"), "paper": self.seconds}


_RESNET = (
    *((1, fused, seconds) for fused, seconds in ((False, 2.0231), (True, 1.7166))),
    *((20, fused, seconds) for fused, seconds in ((False, 0.2996), (True, 0.2129))),
)
"""Threads, whether fused, and seconds of ResNet50 on the Xeon (appendix C)."""
_DEEP_RECOMMENDER = {1: 0.0777, 16: 0.198, 64: 0.3995, 128: 0.6717, 256: 1.2307}
"""Seconds of DeepRecommender in float32 by batch size (appendix B)."""
PAPER_RUNS = (
    *(PaperRun("deep_recommender", XEON, 1, batch, seconds) for batch, seconds in _DEEP_RECOMMENDER.items()),
    *(
        PaperRun("resnet50", XEON, threads, batch, seconds, fused)
        for batch in (10, 16, 32)
        for threads, fused, seconds in _RESNET
    ),
    PaperRun("resnet50", V100, 1, 256, 0.2443),
    PaperRun("resnet50", V100, 1, 256, 0.1887, appendix="appendix C"),
    PaperRun("resnet50", V100, 1, 256, 0.1777, fused=True, appendix="appendix C"),
    PaperRun("learning_to_paint_actor", V100, 1, 96, 0.0068),
)
