"""Blocks of networks on images and sound: convolutions, pooling, resizing, and rearranged channels."""

# No postponed annotations here: a program that is captured from a model carries the types of its forward.

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model_zoo.blocks.block import Block, block
from model_zoo.blocks.makers import batch_norm, conv, conv_bn, linear, normal, parameter, uniform


@block(normal(2, 3, 7, 6), conv=conv(3, 8, 3, padding=1, bias=False), bn=batch_norm(8))
def conv_bn_relu(self: Block, x: Tensor) -> Tensor:
    """Convolution, batch norm, ReLU in place and pooling (ResNet's stem)."""
    x = F.relu(self.bn(self.conv(x)), inplace=True)
    return F.max_pool2d(x, kernel_size=3, stride=2, padding=1)


@block(normal(2, 6, 5, 4), pw=conv_bn(6, 12, 1), dw=conv_bn(12, 12, 3, padding=1, groups=12), out=conv_bn(12, 6, 1))
def inverted_residual(self: Block, x: Tensor) -> Tensor:
    """Expansion, depthwise convolution and projection, with a shortcut (MobileNetV2)."""
    out = F.relu6(self.pw(x))
    out = F.relu6(self.dw(out))
    return x + self.out(out)


@block(normal(2, 4, 7, 5), depthwise=conv(4, 8, 5, stride=2, padding=2, groups=4), pointwise=conv(8, 6, 1))
def depthwise_separable(self: Block, x: Tensor) -> Tensor:
    """Depthwise and pointwise convolution (Xception, MobileNet)."""
    x = F.leaky_relu(self.depthwise(x), 0.1)
    return F.leaky_relu(self.pointwise(x), 0.1)


@block(normal(2, 8, 5, 4), fc1=linear(8, 4, False), fc2=linear(4, 8, False), pool=lambda: nn.AdaptiveAvgPool2d(1))
def squeeze_excite_linear(self: Block, x: Tensor) -> Tensor:
    """Scaling of channels by a small network on their means (SENet)."""
    b, c, _, _ = x.size()
    y = self.pool(x).view(b, c)
    y = torch.sigmoid(self.fc2(F.relu(self.fc1(y)))).view(b, c, 1, 1)
    return x * y.expand_as(x)


@block(normal(2, 8, 5, 4), conv_reduce=conv(8, 3, 1), conv_expand=conv(3, 8, 1))
def squeeze_excite_conv(self: Block, x: Tensor) -> Tensor:
    """Squeeze and excite by 1×1 convolutions (EfficientNet)."""
    x_se = x.mean((2, 3), keepdim=True)
    x_se = self.conv_expand(F.silu(self.conv_reduce(x_se), inplace=True))
    return x * x_se.sigmoid()


@block(normal(2, 8, 4, 5), branch=conv_bn(4, 4, 1))
def channel_shuffle(self: Block, x: Tensor) -> Tensor:
    """Half of the channels through a branch, then all interleaved (ShuffleNet V2)."""
    x1, x2 = x.chunk(2, dim=1)
    out = torch.cat((x1, F.relu(self.branch(x2))), dim=1)
    batchsize, num_channels, height, width = out.size()
    out = out.view(batchsize, 2, num_channels // 2, height, width)
    out = torch.transpose(out, 1, 2).contiguous()
    return out.view(batchsize, num_channels, height, width)


@block(normal(2, 3, 4, 5), conv=conv(3, 12, 3, padding=1))
def pixel_shuffle_by_hand(self: Block, x: Tensor) -> Tensor:
    """Rearrangement of channels into a larger image (ESPCN)."""
    x = self.conv(x)
    b, c, h, w = x.shape
    x = x.view(b, c // 4, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3).contiguous()
    return x.view(b, c // 4, h * 2, w * 2)


@block(normal(2, 3, 4, 6), conv=conv(12, 8, 3, padding=1))
def focus_slices(self: Block, x: Tensor) -> Tensor:
    """Rearrangement of every second pixel into channels (YOLOv5's Focus)."""
    patches = [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]]
    return self.conv(torch.cat(patches, 1))


@block(normal(2, 3, 8, 12), proj=conv(3, 8, 4, stride=4), cls_token=parameter(1, 1, 8), pos_embed=parameter(1, 7, 8))
def patch_embedding(self: Block, x: Tensor) -> Tensor:
    """Patches of an image as tokens after a class token (ViT)."""
    x = self.proj(x).flatten(2).transpose(1, 2)
    cls_tokens = self.cls_token.expand(x.shape[0], -1, -1)
    x = torch.cat((cls_tokens, x), dim=1)
    return F.dropout(x + self.pos_embed, 0.1, self.training)


@block(normal(2, 6, 5, 4), dw=conv(6, 6, 3, padding=1, groups=6), pw1=linear(6, 12), pw2=linear(12, 6), g=parameter(6))
def convnext_layer_scale(self: Block, x: Tensor) -> Tensor:
    """Depthwise convolution and a feed-forward network scaled by channel (ConvNeXt)."""
    shortcut = x
    x = self.dw(x).permute(0, 2, 3, 1)
    x = self.pw2(F.gelu(self.pw1(F.layer_norm(x, (6,)))))
    x = (self.g * x).permute(0, 3, 1, 2)
    return shortcut + x


@block(
    normal(2, 4, 5, 6), c1=conv(4, 3, 1), c2=conv(4, 3, 3, padding=2, dilation=2), c3=conv(4, 3, 1), out=conv(9, 5, 1)
)
def atrous_pyramid(self: Block, x: Tensor) -> Tensor:
    """Convolutions of several dilations and a pooled branch, resized (DeepLab's ASPP)."""
    pooled = self.c3(F.adaptive_avg_pool2d(x, 1))
    pooled = F.interpolate(pooled, size=x.shape[-2:], mode="bilinear", align_corners=False)
    return self.out(torch.cat([F.relu(self.c1(x)), F.relu(self.c2(x)), pooled], dim=1))


@block(normal(2, 4, 3, 4), normal(2, 3, 8, 11), up=lambda: nn.Upsample(scale_factor=2, mode="bilinear"))
def unet_crop_and_concat(self: Block, x: Tensor, bridge: Tensor) -> Tensor:
    """Upsample and join with the middle of a shortcut (U-Net as first published)."""
    up = self.up(x)
    diff_y = (bridge.size(2) - up.size(2)) // 2
    diff_x = (bridge.size(3) - up.size(3)) // 2
    crop = bridge[:, :, diff_y : (diff_y + up.size(2)), diff_x : (diff_x + up.size(3))]
    return torch.cat([up, crop], 1)


@block(normal(2, 4, 7, 5), normal(2, 6, 4, 3), inner1=conv(4, 5, 1), inner2=conv(6, 5, 1), out=conv(5, 5, 3))
def feature_pyramid(self: Block, c3: Tensor, c4: Tensor) -> list[Tensor]:
    """Add coarse features to fine ones from the top down (FPN)."""
    p4 = self.inner2(c4)
    inner_lateral = self.inner1(c3)
    inner_top_down = F.interpolate(p4, size=inner_lateral.shape[-2:], mode="nearest")
    p3 = self.out(inner_lateral + inner_top_down)
    return [p3, p4, F.max_pool2d(p4, 1, 2, 0)]


@block(normal(2, 5, 4, 6), cv1=conv(5, 8, 1), m=conv(4, 4, 3, padding=1), cv2=conv(16, 6, 1))
def cross_stage_partial(self: Block, x: Tensor) -> Tensor:
    """Half of the channels through convolutions, each result joined (YOLOv8's C2f)."""
    y = list(self.cv1(x).chunk(2, 1))
    y.extend(F.silu(self.m(y[-1])) for _ in range(2))
    return self.cv2(torch.cat(y, 1))


@block(normal(2, 6, 3, 4), deconv=lambda: nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1))
def transposed_decoder(self: Block, z: Tensor) -> Tensor:
    """Transposed convolution to an image between -1 and 1 (DCGAN, CycleGAN)."""
    return torch.tanh(F.leaky_relu(self.deconv(z), 0.2, inplace=True))


@block(normal(2, 4, 9), dilated=lambda: nn.Conv1d(4, 8, 2, dilation=2), out=lambda: nn.Conv1d(4, 9, 1))
def wavenet_gate(self: Block, x: Tensor) -> tuple[Tensor, Tensor]:
    """Causal dilated convolution, gated, with residual and skip outputs (WaveNet)."""
    out = self.dilated(F.pad(x, (2, 0)))
    a, b = out.split(4, dim=1)
    out = torch.tanh(a) * torch.sigmoid(b)
    residual, skip = torch.split(self.out(out), [4, 5], dim=1)
    return (x + residual) * math.sqrt(0.5), skip


@block(normal(2, 20), window=lambda: torch.hann_window(8), basis=normal(8, 5), mel=uniform(5, 4))
def log_spectrum_of_frames(self: Block, waveform: Tensor) -> Tensor:
    """Log-mel energies of frames of sound (speech front ends)."""
    frames = waveform.unfold(-1, 8, 3) * self.window
    power = torch.matmul(frames, self.basis).pow(2)
    mel = torch.log(torch.clamp(power @ self.mel, min=1e-5)).transpose(1, 2)
    return (mel - mel.mean(dim=-1, keepdim=True)) / (mel.std(dim=-1, keepdim=True) + 1e-5)


@block(normal(2, 3, 6, 4), weight=parameter(5, 12))
def unfold_and_fold(self: Block, x: Tensor) -> Tensor:
    """Convolution as a product with patches, then a sum of patches (im2col)."""
    columns = F.unfold(x, kernel_size=2, stride=2)
    out = self.weight.matmul(columns)
    return F.fold(torch.einsum("oc,bol->bcl", self.weight, out), output_size=(6, 4), kernel_size=2, stride=2)


@block(normal(2, 4, 3, 5), normal(2, 6, 3, 5))
def bilinear_pooling(self: Block, x: Tensor, y: Tensor) -> Tensor:
    """Products of all channels with all, their roots as a unit vector (Lin et al. 2015)."""
    x, y = x.view(2, 4, 3 * 5), y.view(2, 6, 3 * 5)
    z = torch.bmm(x, torch.transpose(y, 1, 2)) / (3 * 5)
    z = z.view(z.size(0), -1)
    return F.normalize(torch.sign(z) * torch.sqrt(torch.abs(z) + 1e-10))


@block(normal(2, 14, 3, 4), anchors=uniform(2, 2), grid=uniform(3, 4, 2))
def yolo_decode(self: Block, x: Tensor) -> Tensor:
    """Boxes, objectness and classes of all places and anchors (YOLOv5)."""
    bs, _, ny, nx = x.shape
    x = x.view(bs, 2, 7, ny, nx).permute(0, 1, 3, 4, 2).contiguous()
    y = x.sigmoid()
    xy = (y[..., 0:2] * 2.0 - 0.5 + self.grid) * 8
    wh = (y[..., 2:4] * 2) ** 2 * self.anchors.view(1, 2, 1, 1, 2)
    return torch.cat((xy, wh, y[..., 4:]), -1).view(bs, -1, 7)
