"""The UNet: a ResNet50 encoder (He et al. 2016) and a decoder with skip connections (Ronneberger et al. 2015).

Module names are those of `segmentation_models_pytorch` 0.6.0, so that a checkpoint of its `Unet("resnet50")` loads as
it is at width 64. Smaller widths scale every layer alike.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

BLOCKS_PER_STAGE = (3, 4, 6, 3)
EXPANSION = 4


class UNet(nn.Module):
    """Segmentation network.

    Float [N, in_channels, H, W] of any H and W >= 1 -> logits [N, classes, H, W] of the same dtype and device. At
    `width` w the encoder has (w, 4w, 8w, 16w, 32w) channels at strides 2 to 32, the decoder (4w, 2w, w, w/2, w/4).

    Raises:
        ValueError: `width` is not a positive multiple of 4, or a channel count is below 1.
    """

    def __init__(self, width: int = 64, classes: int = 1, in_channels: int = 3) -> None:
        super().__init__()
        if width < 4 or width % 4 or classes < 1 or in_channels < 1:
            raise ValueError(f"UNet needs width % 4 == 0 and channels >= 1, not {width=}, {classes=}, {in_channels=}")
        self.width, self.classes, self.in_channels = width, classes, in_channels
        encoder_channels = (width, 4 * width, 8 * width, 16 * width, 32 * width)
        decoder_channels = (4 * width, 2 * width, width, width // 2, width // 4)
        self.encoder = Encoder(in_channels, width)
        self.decoder = Decoder(encoder_channels, decoder_channels)
        self.segmentation_head = nn.Sequential(nn.Conv2d(decoder_channels[-1], classes, 3, padding=1))
        self._initialise()

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        features = self.encoder(images)
        return self.segmentation_head(self.decoder(features, images.shape[2:]))  # type: ignore[no-any-return]

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def fold_batch_norm(network: UNet) -> UNet:
    """Merges every batch normalisation into the convolution before it, in place.

    Same function, fewer passes over memory; for inference only, and the state dict is another one afterwards.
    """
    network.eval()
    for module in list(network.modules()):
        for (name, child), (following_name, following) in pairwise(list(module.named_children())):
            if isinstance(child, nn.Conv2d) and isinstance(following, nn.BatchNorm2d):
                setattr(module, name, fuse_conv_bn_eval(child, following))
                setattr(module, following_name, nn.Identity())
    return network


class Encoder(nn.Module):
    """ResNet50 without its classifier: image -> features at strides 2, 4, 8, 16 and 32."""

    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(width, width, BLOCKS_PER_STAGE[0], stride=1)
        self.layer2 = _stage(4 * width, 2 * width, BLOCKS_PER_STAGE[1], stride=2)
        self.layer3 = _stage(8 * width, 4 * width, BLOCKS_PER_STAGE[2], stride=2)
        self.layer4 = _stage(16 * width, 8 * width, BLOCKS_PER_STAGE[3], stride=2)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Features at strides 2, 4, 8, 16 and 32."""
        features = [self.relu(self.bn1(self.conv1(images)))]
        features.append(self.layer1(self.maxpool(features[-1])))
        for layer in (self.layer2, self.layer3, self.layer4):
            features.append(layer(features[-1]))
        return features


class Bottleneck(nn.Module):
    """Residual block 1x1, 3x3, 1x1 with a fourfold wider output; a stride sits on the 3x3."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = EXPANSION * width
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """[N, in_channels, H, W] -> [N, 4 width, H / stride, W / stride]."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(y.add_(shortcut))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Five blocks that double the resolution, each but the last joined by the encoder's features of that resolution."""

    def __init__(self, encoder_channels: Sequence[int], decoder_channels: Sequence[int]) -> None:
        super().__init__()
        skips = [*reversed(encoder_channels[:-1]), 0]
        below = [encoder_channels[-1], *decoder_channels[:-1]]
        self.blocks = nn.ModuleList(
            DecoderBlock(channels + skip, out)
            for channels, skip, out in zip(below, skips, decoder_channels, strict=True)
        )

    def forward(self, features: list[Tensor], image_size: torch.Size) -> Tensor:
        """Joins the features, coarsest first, up to the resolution of the image."""
        x = features.pop()
        for block in self.blocks:
            skip = features.pop() if features else None
            x = block(x, skip, image_size if skip is None else skip.shape[2:])
        return x


class DecoderBlock(nn.Module):
    """Upsample to `size`, join the skip connection, two 3x3 convolutions."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = _conv_bn_relu(in_channels, out_channels)
        self.conv2 = _conv_bn_relu(out_channels, out_channels)

    def forward(self, x: Tensor, skip: Tensor | None, size: torch.Size) -> Tensor:
        """[N, C, h, w] and its skip connection -> [N, out_channels, *size]."""
        x = F.interpolate(x, size=size, mode="nearest")
        if skip is not None:
            x = torch.cat([x, skip], dim=1)
        return self.conv2(self.conv1(x))  # type: ignore[no-any-return]


def _stage(in_channels: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    rest = (Bottleneck(EXPANSION * width, width, stride=1) for _ in range(blocks - 1))
    return nn.Sequential(Bottleneck(in_channels, width, stride), *rest)


def _conv_bn_relu(in_channels: int, out_channels: int) -> nn.Sequential:
    convolution = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))
