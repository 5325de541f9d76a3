"""Random crops and colours for training the demo network on few microscopy images."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def augment(images: Tensor, masks: Tensor, crop: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """One random crop of every image, geometry and colour changed, and of its mask.

    Args:
        images: uint8 [N, 3, H, W].
        masks: float [N, 1, H, W] of 0 and 1.
        crop: edge of the crop in pixels.
        random: source of all randomness.

    Returns:
        float images in [0, 1], [N, 3, crop, crop], and float masks of 0 and 1, [N, 1, crop, crop].
    """
    grid = _crops(len(images), images.shape[2:], crop, random)
    pixels = F.grid_sample(images.float() / 255, grid, padding_mode="reflection", align_corners=False)
    labels = F.grid_sample(masks, grid, padding_mode="reflection", align_corners=False)
    return _recolour(pixels, random), (labels > 0.5).float()


def _crops(count: int, size: torch.Size, crop: int, random: torch.Generator) -> Tensor:
    """Sampling grids [N, crop, crop, 2].

    Half of the images get quarter turns, mirrors and whole-pixel shifts, which leave every pixel as it is; the others
    any angle and a scale of 0.65 to 1.5.
    """
    height, width = size
    free = torch.rand(count, generator=random) < 0.5
    quarter_turns = torch.randint(4, (count,), generator=random) * (math.pi / 2)
    angle = torch.where(free, torch.rand(count, generator=random) * 2 * math.pi, quarter_turns)
    scale = torch.where(free, torch.exp(_uniform(count, math.log(0.65), math.log(1.5), random)), torch.ones(count))
    mirror = torch.randint(2, (count,), generator=random) * 2.0 - 1
    slack = torch.tensor([width - crop, height - crop])
    shift = torch.round(torch.rand(count, 2, generator=random) * slack) - slack / 2
    matrix = torch.stack(
        [mirror * torch.cos(angle), -torch.sin(angle), mirror * torch.sin(angle), torch.cos(angle)], dim=1
    ).view(count, 2, 2)
    steps = torch.arange(crop) - (crop - 1) / 2
    offsets = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=-1).view(1, -1, 2)
    pixels = offsets @ matrix.transpose(1, 2) * scale.view(-1, 1, 1) + shift.view(-1, 1, 2)
    return (pixels * 2 / torch.tensor([width, height])).view(count, crop, crop, 2)


def _recolour(pixels: Tensor, random: torch.Generator) -> Tensor:
    """Changes gamma, gain, offset and tint; turns some images grey, negative or noisy, or swaps their channels."""
    count = len(pixels)
    gamma = torch.exp(0.2 * torch.randn(count, 1, 1, 1, generator=random))
    gain = torch.exp(0.3 * torch.randn(count, 1, 1, 1, generator=random))
    tint = torch.exp(0.12 * torch.randn(count, 3, 1, 1, generator=random))
    offset = 0.03 * torch.randn(count, 1, 1, 1, generator=random).abs()
    pixels = pixels.clamp(0, 1).pow(gamma) * gain * tint + offset
    pixels = torch.where(_some(count, 0.1, random), pixels.mean(dim=1, keepdim=True).expand_as(pixels), pixels)
    pixels = torch.where(_some(count, 0.1, random), pixels[:, torch.randperm(3, generator=random)], pixels)
    pixels = torch.where(_some(count, 0.1, random), 1 - pixels, pixels)
    noise = 0.02 * torch.randn(pixels.shape, generator=random)
    return torch.where(_some(count, 0.2, random), pixels + noise, pixels).clamp(0, 1)


def _some(count: int, share: float, random: torch.Generator) -> Tensor:
    return torch.rand(count, 1, 1, 1, generator=random) < share


def _uniform(count: int, low: float, high: float, random: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(count, generator=random)
