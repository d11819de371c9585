"""model_zoo.resnet: torchvision's ResNet50 in names, order, sizes and initialisation."""

import hashlib

import pytest
import torch
from torch import nn

from model_zoo import get_model
from model_zoo.resnet import Bottleneck, ResNet, resnet50


@pytest.fixture(scope="module")
def untrained() -> ResNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return resnet50()


def test_resnet50_has_the_parameters_of_torchvisions(untrained):
    assert sum(parameter.numel() for parameter in untrained.parameters()) == 25_557_032
    assert len(list(untrained.parameters())) == 161
    assert len(untrained.state_dict()) == 320


def test_names_shapes_and_order_of_the_state_are_those_of_torchvisions(untrained):
    listing = repr([(name, tuple(tensor.shape)) for name, tensor in untrained.state_dict().items()])
    digest = hashlib.sha256(listing.encode()).hexdigest()
    assert digest == "f398fe5f16a958c815e2e2a8a6359aa7364268391e2d346b12b97b523d9b02f0"


def test_convolutions_are_initialised_for_relu_and_batch_norms_as_the_identity(untrained):
    weight = untrained.layer3[2].conv2.weight
    assert float(weight.detach().std()) == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.01)
    for module in untrained.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert torch.equal(module.weight, torch.ones_like(module.weight))
            assert torch.equal(module.bias, torch.zeros_like(module.bias))


def test_a_shortcut_is_drawn_before_the_block_that_owns_it():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        built = ResNet([1, 1, 1, 1], num_classes=2, stem_width=1)
        # The classifier is drawn last but one (the sweep over the convolutions follows) and keeps its values.
        torch.manual_seed(3)
        nn.Conv2d(3, 1, 7, bias=False)
        channels = 1
        for planes in (1, 2, 4, 8):
            nn.Conv2d(channels, planes * 4, 1, bias=False)
            nn.Conv2d(channels, planes, 1, bias=False)
            nn.Conv2d(planes, planes, 3, bias=False)
            nn.Conv2d(planes, planes * 4, 1, bias=False)
            channels = planes * 4
        classifier = nn.Linear(32, 2)
    assert torch.equal(built.fc.weight, classifier.weight)


def test_a_residual_can_start_as_zero():
    model = ResNet([1, 1, 1, 1], num_classes=2, zero_init_residual=True, stem_width=2)
    blocks = [module for module in model.modules() if isinstance(module, Bottleneck)]
    assert all(not block.bn3.weight.any() for block in blocks)


def test_the_stride_is_in_the_three_by_three_convolution(untrained):
    block = untrained.layer2[0]
    assert (block.conv1.stride, block.conv2.stride, block.downsample[0].stride) == ((1, 1), (2, 2), (2, 2))
    assert untrained.layer1[0].downsample[0].stride == (1, 1)


def test_an_image_becomes_a_thousand_scores(untrained):
    with torch.no_grad():
        assert untrained.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)


def test_the_zoos_resnet50_has_settled_batch_norms_and_full_size_images():
    model = get_model("resnet50")
    module = model.build()
    assert float((module.layer4[2].bn3.running_var - 1).abs().max()) > 0.05
    (images,) = model.example_inputs(batch=2)
    assert images.shape == (2, 3, 224, 224)
    with torch.no_grad():
        scores = module(model.example_inputs()[0])
    assert 0.1 < float(scores.std()) < 10
