"""model_zoo.unet: a mask at each scale."""

from model_zoo import get_model


def test_masks_come_at_every_scale_the_largest_by_name():
    model = get_model("unet_small")
    output = model.build()(*model.example_inputs(batch=2))
    assert output["mask"].shape == (2, 4, 16, 16)
    assert [tuple(mask.shape) for mask in output["coarse"]] == [(2, 4, 8, 8)]
