"""Metrics on labelled data: the drop from a reference to a candidate, with a paired interval over samples."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch

from fx.argument_types import checked
from fx.arguments import refusal, shown
from fx.container_kinds import container_kind
from fx.passes import Contract
from pytest_fx.errors import InputError, MetricError, in_a_line
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.input_sets import as_arguments
from pytest_fx.harness.output_contracts import is_loose
from pytest_fx.tracebacks import users_line

CONFIDENCE = 0.95
"""The share of intervals that contain the drop on all data of which the samples are a part."""
MOST_GROUPS = 50
"""The most groups of samples that are left out one at a time, for a metric of a whole data set."""
MOST_LISTED = 1000
"""The most changed samples whose numbers are kept."""

Program = Callable[[Arguments], Any]
"""A function that returns the output of a program for the arguments of one batch."""


@dataclass(frozen=True, slots=True)
class MetricDrop:
    """The values of a metric of two programs on the same labelled samples."""

    metric: str
    """The name of the metric."""
    reference: float
    """Its value for the reference."""
    candidate: float
    """Its value for the candidate."""
    drop: float
    """The loss of quality, in units of the metric; negative if the candidate is better."""
    interval: tuple[float, float] | None
    """The paired 95 % interval of the drop over samples; None for a single sample."""
    samples: int
    """Number of samples."""
    max_drop: float
    """The largest allowed drop."""
    unit: str = "samples"
    """The plural noun for samples in sentences."""
    changed: int | None = None
    """Number of samples whose prediction changed; None if the metric has no predictions."""
    changed_samples: tuple[int, ...] = ()
    """The numbers of the first of these samples, in the order of the data."""
    predicted: str = "prediction"
    """The noun for a prediction in sentences."""

    @property
    def right(self) -> bool:
        """True if the drop is at most the allowed one."""
        return self.drop <= self.max_drop

    @property
    def open_end(self) -> float | None:
        """The end of the interval beyond the allowed drop, if the drop itself is allowed: more samples would decide."""
        return (
            self.interval[1] if self.right and self.interval is not None and self.interval[1] > self.max_drop else None
        )

    def __str__(self) -> str:
        interval = "" if self.interval is None else f" ({self.interval[0]:+.4g} to {self.interval[1]:+.4g})"
        text = (
            f"{self.metric} {self.reference:.4g} -> {self.candidate:.4g}, drop {self.drop:.4g}{interval}, "
            f"{self.max_drop:g} allowed"
        )
        return f"{text}; {self.changes}" if self.changes else text

    @property
    def changes(self) -> str:
        """The number of changed predictions, and the first of these samples, in words; empty if it is unknown."""
        if self.changed is None:
            return ""
        first = ", ".join(map(str, self.changed_samples[:10]))
        more = ", …" if self.changed > 10 else ""
        which = f": {first}{more}" if first else ""
        return f"{self.changed:,} of {self.samples:,} {self.unit} changed {self.predicted}{which}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields, and whether the drop is allowed, as JSON values."""
        return {**asdict(self), "right": self.right}


@dataclass(frozen=True, slots=True)
class Measured(Contract):
    """The promise that a metric on labelled data drops by at most ``max_drop``."""

    metric: Any
    """A function of outputs and labels, or an object of ``torchmetrics``."""
    data: Any
    """Batches ``(inputs, labels)``, or a function that returns batches."""
    max_drop: float
    """The largest allowed drop, in units of the metric."""
    higher_is_better: bool = True
    """False for a metric such as a word error rate."""
    prediction: Callable[[Any], Any] | None = None
    """A function of outputs that returns one prediction for each sample, to count those that change."""
    name: str = "metric"
    """The name of the metric in messages."""
    unit: str = "samples"
    """The plural noun for samples in messages."""
    predicted: str = "prediction"
    """The noun for a prediction in messages."""
    values: Contract | None = None
    """A contract on the values of outputs that must hold, too; None if the metric alone decides."""

    def __str__(self) -> str:
        beside = "" if self.values is None else f", values={self.values}"
        return f"measured({self.name}, max_drop={self.max_drop:g}{beside})"

    def loss(self, reference: float, candidate: float) -> float:
        """Return the loss of quality from one value of the metric to another."""
        return reference - candidate if self.higher_is_better else candidate - reference


@checked(MetricError)
def measured(
    metric: Any,
    data: Iterable[Any] | Callable[[], Any],
    *,
    max_drop: float,
    higher_is_better: bool | None = None,
    prediction: Callable[[Any], Any] | None = None,
    name: str | None = None,
    unit: str = "samples",
    values: Contract | None = None,
) -> Measured:
    """Return the promise that a metric on labelled data drops by at most ``max_drop``.

    Args:
        metric: a function of outputs and labels. It returns a tensor with a value for each sample, or a number for all.
            Or an object with ``update``, ``compute`` and ``reset``, as those of ``torchmetrics``.
        data: batches ``(inputs, labels)``: a list, a data loader, or a function that returns batches. Inputs are a
            tuple (positional), a dict (keywords) or the only argument.
        max_drop: the largest allowed drop, in units of the metric.
        higher_is_better: whether larger values are better; None for the metric's own attribute of this name, or True.
        prediction: a function of outputs that returns one prediction for each sample; None for the metric's own
            attribute of this name.
        name: the name in messages; None for the metric's own.
        unit: the plural noun for samples in messages, such as ``"images"``.
        values: a contract on the values of outputs that must hold, too.

    Raises:
        MetricError: an argument is of another kind.
    """
    if not callable(metric) and not _is_stateful(metric):
        raise refusal("measured takes a metric, a function of outputs and labels", metric, error=MetricError)
    if math.isnan(max_drop):
        raise refusal("max_drop= is a number", max_drop, error=MetricError)
    if isinstance(values, Measured):
        raise refusal("values= takes a contract on the values of outputs", values, error=MetricError)
    own = getattr(metric, "higher_is_better", None)
    better = higher_is_better if higher_is_better is not None else own if isinstance(own, bool) else True
    return Measured(
        metric,
        data,
        float(max_drop),
        better,
        prediction or getattr(metric, "prediction", None),
        name or getattr(metric, "__name__", type(metric).__name__),
        unit,
        getattr(metric, "predicted", "prediction"),
        values,
    )


def is_approximate(contract: Contract) -> bool:
    """Return whether a contract allows errors beyond rounding, so that gradients and extreme values are not judged."""
    if isinstance(contract, Measured):
        return contract.values is None or is_loose(contract.values)
    return is_loose(contract)


def top_1(output: Any, labels: Any) -> torch.Tensor:
    """Return 1 for each sample whose largest score is that of its label, else 0; the output is scores ``[N, C]``.

    >>> top_1(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor([1., 0.])
    """
    return (_classes(output) == _beside(output, labels)).float()


def _classes(output: Any) -> torch.Tensor:
    return output.argmax(1)


def _beside(output: torch.Tensor, labels: Any) -> torch.Tensor:
    """Return labels, a tensor, an array or a list, on the device of the output."""
    return torch.as_tensor(labels, device=output.device)


top_1.prediction, top_1.predicted = _classes, "class"  # type: ignore[attr-defined]


def perplexity(output: torch.Tensor, labels: Any) -> float:
    """Return the exponential of the mean negative log-likelihood; output ``[N, T, V]``, labels ``[N, T]``.

    Labels below 0 are not counted.
    """
    rows, wanted = output.reshape(-1, output.shape[-1]).double(), _beside(output, labels).reshape(-1)
    return math.exp(float(torch.nn.functional.cross_entropy(rows[wanted >= 0], wanted[wanted >= 0])))


perplexity.higher_is_better = False  # type: ignore[attr-defined]


def mean_iou(output: torch.Tensor, labels: Any) -> float:
    """Return the intersection over union of classes, averaged; output ``[N, C, …]``, labels ``[N, …]``.

    Pixels with labels below 0, and classes without pixels, are not counted.
    """
    chosen, wanted = output.argmax(1).flatten(), _beside(output, labels).flatten()
    chosen, wanted = chosen[wanted >= 0], wanted[wanted >= 0]
    count = output.shape[1]
    counts = torch.bincount(wanted * count + chosen, minlength=count * count).reshape(count, count).double()
    union = counts.sum(0) + counts.sum(1) - counts.diagonal()
    return float((counts.diagonal() / union)[union > 0].mean())


def measure(contract: Measured, reference: Program, candidate: Program) -> MetricDrop:
    """Run both programs on all data, and return the drop of the metric.

    The metric is tried on the first batch before the others are run.

    Raises:
        MetricError: the metric raises, or returns neither a number nor one for each sample. The message has the values
            on the batches before.
        InputError: there are no batches, or they are not pairs.
    """
    pieces: list[_Piece] = []
    by_sample = _BySample([], [])
    per_sample: bool | None = None
    first = 0
    for number, (arguments, labels) in enumerate(_batches(contract.data)):
        outputs = reference(arguments), candidate(arguments)
        piece = _Piece(outputs[0], outputs[1], labels, first, _count(labels, arguments))
        first += piece.count
        if per_sample is not False:
            values = [_value(contract, [(output, labels)], piece, by_sample, per_sample) for output in outputs]
            is_list = [isinstance(value, torch.Tensor) for value in values]
            if number == 0:
                per_sample = all(is_list)
            if per_sample:
                by_sample.reference.append(cast("torch.Tensor", values[0]))
                by_sample.candidate.append(cast("torch.Tensor", values[1]))
                piece = piece.without_outputs(contract)
        pieces.append(piece)
    if not pieces:
        raise InputError(
            "there is no labelled data",
            value=shown(contract.data),
            why="an iterator that was read before is empty",
            remedy="give a list, a data loader, or a function that returns batches",
        )
    changed, listed = _changed(contract, pieces, by_sample if per_sample else None)
    values, interval = _of_samples(contract, by_sample) if per_sample else _of_all(contract, pieces)
    drop = contract.loss(*values)
    return MetricDrop(
        contract.name,
        values[0],
        values[1],
        drop if math.isfinite(drop) else math.inf,
        interval,
        sum(piece.count for piece in pieces),
        contract.max_drop,
        contract.unit,
        changed,
        listed,
        contract.predicted,
    )


def measure_drop(reference: Callable[..., Any], candidate: Callable[..., Any], contract: Measured) -> MetricDrop:
    """Return the drop of a metric from one function to another, such as from a module to an ONNX session.

    Both are called with the inputs of each batch, without gradients. Raises what :func:`measure` raises.

    >>> scores = torch.eye(4)
    >>> data = [(scores, torch.arange(4))]
    >>> print(measure_drop(lambda x: x, lambda x: x[[0, 1, 3, 2]], measured(top_1, data, max_drop=0.1)))
    top_1 1 -> 0.5, drop 0.5 (-0.1656 to +0.8323), 0.1 allowed; 2 of 4 samples changed class: 2, 3
    """
    with torch.no_grad():
        return measure(
            contract, lambda arguments: arguments.call(reference), lambda arguments: arguments.call(candidate)
        )


@dataclass(frozen=True, slots=True)
class _Piece:
    """The outputs of both programs for some samples in a row."""

    reference: Any
    candidate: Any
    labels: Any
    first: int
    count: int

    def without_outputs(self, contract: Measured) -> _Piece:
        """Return the piece with predictions in the place of outputs, which take memory."""
        predict = contract.prediction
        values = [None if predict is None else _predicted(contract, predict, each, self) for each in self.outputs]
        return _Piece(values[0], values[1], None, self.first, self.count)

    @property
    def outputs(self) -> tuple[Any, Any]:
        return self.reference, self.candidate

    def divided(self, parts: int) -> list[_Piece]:
        """Return the samples in at most ``parts`` pieces."""
        size = -(-self.count // max(1, parts))
        return [
            _Piece(
                _rows(self.reference, start, start + size),
                _rows(self.candidate, start, start + size),
                _rows(self.labels, start, start + size),
                self.first + start,
                min(size, self.count - start),
            )
            for start in range(0, self.count, size)
        ]


@dataclass(frozen=True, slots=True)
class _BySample:
    """The values of a metric for each sample, in batches."""

    reference: list[torch.Tensor]
    candidate: list[torch.Tensor]

    def together(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cat(self.reference), torch.cat(self.candidate)


def _batches(data: Any) -> Iterator[tuple[Arguments, Any]]:
    batches: Iterable[Any] = data if isinstance(data, Iterable) else data()
    for number, batch in enumerate(batches):
        if not isinstance(batch, (tuple, list)) or len(cast("Sequence[Any]", batch)) != 2:
            raise InputError(
                f"batch {number} of the labelled data is no pair of inputs and labels",
                value=shown(batch),
                remedy="let the data give (inputs, labels)",
            )
        inputs, labels = cast("Sequence[Any]", batch)
        yield as_arguments(inputs), labels


def _count(labels: Any, arguments: Arguments) -> int:
    """Return the number of samples of a batch: of its labels, or else of its inputs."""
    if isinstance(labels, torch.Tensor) and labels.dim():
        return len(labels)
    if isinstance(labels, (list, tuple)):
        return len(cast("Sequence[Any]", labels))
    return arguments.samples or 1


def _is_stateful(metric: Any) -> bool:
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset"))


def _value(
    contract: Measured,
    batches: Sequence[tuple[Any, Any]],
    piece: _Piece,
    so_far: _BySample | None = None,
    per_sample: bool | None = False,
) -> torch.Tensor | float:
    """Return the value of the metric on batches of outputs and labels: for each sample, or one for all."""
    metric = contract.metric
    try:
        if _is_stateful(metric):
            own = copy.deepcopy(metric)
            own.reset()
            for output, labels in batches:
                own.update(output, labels)
            value = own.compute()
        else:
            value = metric(_joined([output for output, _ in batches]), _joined([labels for _, labels in batches]))
    except MetricError:
        raise
    except Exception as error:
        raise _raised(contract, error, piece, so_far) from error
    if isinstance(value, torch.Tensor) and value.dim() == 1 and len(value) == piece.count and per_sample is not False:
        return value.detach().double().cpu()
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise MetricError(
            f"the metric {contract.name} returns neither a number nor one for each of {piece.count} samples",
            value=f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else shown(value),
            remedy="return a tensor with one dimension, or its mean",
        ) from None
    if per_sample:
        raise MetricError(
            f"the metric {contract.name} returns one number for the batch from sample {piece.first:,} on, and one for "
            "each sample of the first batch",
            remedy="return a tensor with one value for each sample in all batches",
        )
    return number


def _raised(contract: Measured, error: Exception, piece: _Piece, so_far: _BySample | None) -> MetricError:
    """Return the error for a metric that raises, with the user's line and the values on earlier batches."""
    before = None
    if so_far is not None and so_far.candidate:
        values = [float(torch.cat(side).mean()) for side in (so_far.reference, so_far.candidate)]
        before = f"on the {piece.first:,} {contract.unit} before: {values[0]:.4g} -> {values[1]:.4g}"
    samples = f"{contract.unit} {piece.first} to {piece.first + piece.count - 1}"
    return MetricError(
        f"the metric {contract.name} raises {in_a_line(error)}",
        where=", ".join(filter(None, (samples, users_line(error)))),
        value=before,
        remedy="call it on model(inputs) and labels of one batch",
    )


def _predicted(contract: Measured, predict: Callable[[Any], Any], output: Any, piece: _Piece) -> Any:
    try:
        return predict(output)
    except Exception as error:
        raise _raised(contract, error, piece, None) from error


def _changed(
    contract: Measured, pieces: Sequence[_Piece], by_sample: _BySample | None
) -> tuple[int | None, tuple[int, ...]]:
    """Return the number of samples whose prediction changed, and the first of them; None without predictions."""
    masks: list[torch.Tensor] = []
    if contract.prediction is not None:
        for piece in pieces:
            is_predicted = by_sample is not None
            sides = [
                each if is_predicted else _predicted(contract, contract.prediction, each, piece)
                for each in piece.outputs
            ]
            masks.append(_differ(sides[0], sides[1], piece.count))
    elif by_sample is not None and _is_binary(sides := by_sample.together()):
        masks.append(sides[0] != sides[1])
    else:
        return None, ()
    samples = torch.cat(masks).nonzero().flatten()
    return len(samples), tuple(samples[:MOST_LISTED].tolist())


def _differ(first: Any, second: Any, count: int) -> torch.Tensor:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return (first != second.to(first.device)).reshape(count, -1).any(1).cpu()
    return torch.tensor([before != after for before, after in zip(first, second, strict=True)])


def _is_binary(sides: tuple[torch.Tensor, torch.Tensor]) -> bool:
    return all(bool(((side == 0) | (side == 1)).all()) for side in sides)


def _of_samples(contract: Measured, by_sample: _BySample) -> tuple[list[float], tuple[float, float] | None]:
    """Return the means of a metric with a value for each sample, and the interval of the drop.

    If samples are right or wrong, two are added as Agresti and Min (2005) do: half of one became right, and half of one
    became wrong. The interval of samples without a change is then not empty.
    """
    sides = by_sample.together()
    drops = [contract.loss(*pair) for pair in zip(*(side.tolist() for side in sides), strict=True)]
    count, is_binary, values = len(drops), _is_binary(sides), [float(side.mean()) for side in sides]
    if count < 2:
        return values, None
    total, squares = math.fsum(drops), math.fsum(drop * drop for drop in drops)
    if is_binary:
        count, squares = count + 2, squares + 1.0
    mean = total / count
    variance = max(0.0, squares / count - mean * mean)
    half = (_normal() if is_binary else _student(count - 1)) * math.sqrt(variance / (count if is_binary else count - 1))
    return values, (mean - half, mean + half)


def _of_all(contract: Measured, pieces: Sequence[_Piece]) -> tuple[list[float], tuple[float, float] | None]:
    """Return the values of a metric of the whole data set, and the interval of the drop.

    The interval is that of the jackknife: groups of samples are left out one at a time, the same for both programs.
    """

    def both(chosen: Sequence[_Piece]) -> list[float]:
        whole = _Piece(None, None, None, chosen[0].first, sum(piece.count for piece in chosen))
        return [
            cast("float", _value(contract, [(each.outputs[side], each.labels) for each in chosen], whole))
            for side in (0, 1)
        ]

    values = both(pieces)
    parts = -(-MOST_GROUPS // len(pieces))
    divided = [part for piece in pieces for part in piece.divided(parts)]
    groups = [divided[start::MOST_GROUPS] for start in range(min(MOST_GROUPS, len(divided)))]
    if len(groups) < 2:
        return values, None
    drops: list[float] = []
    for group in groups:
        left_out = set(map(id, group))
        drops.append(contract.loss(*both([piece for piece in divided if id(piece) not in left_out])))
    middle = statistics.fmean(drops)
    spread = math.sqrt((len(groups) - 1) / len(groups) * math.fsum((drop - middle) ** 2 for drop in drops))
    half, drop = _student(len(groups) - 1) * spread, contract.loss(*values)
    return values, (drop - half, drop + half)


def _normal() -> float:
    return statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def _student(freedom: int) -> float:
    """Return the quantile of Student's distribution (Abramowitz and Stegun 26.7.5)."""
    z = _normal()
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _joined(values: Sequence[Any]) -> Any:
    """Return outputs or labels of several batches as those of one: tensors and lists joined along samples."""
    first = values[0]
    if len(values) == 1:
        return first
    if isinstance(first, torch.Tensor):
        return torch.cat(list(values))
    kind = container_kind(first)
    if isinstance(first, list) or kind is None:
        return [entry for value in values for entry in value]
    parts = zip(*(kind.parts(value) for value in values), strict=True)
    return kind.rebuild(first, [_joined(part) for part in parts])


def _rows(value: Any, start: int, stop: int) -> Any:
    """Return some samples of outputs or labels."""
    if isinstance(value, (torch.Tensor, list)):
        return value[start:stop]
    kind = container_kind(value)
    return value if kind is None else kind.rebuild(value, [_rows(part, start, stop) for part in kind.parts(value)])
