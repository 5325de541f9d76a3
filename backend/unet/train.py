"""Trains the demo network: ``python -m backend.unet.train --data dsb2018_nuclei_256.npz --out <folder>``.

The data is an ``.npz`` with X, uint8 [N, 256, 256, 3], and Y, bool [N, 256, 256]. Written are
``nuclei_rn50_w<width>.safetensors`` (fp16) and ``metrics.json`` beside it; the figures are those of the file as
written, run in float32.
"""

import argparse
import hashlib
import json
import platform
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from backend.unet.augment import augment
from backend.unet.network import UNet
from backend.unet.split import KINDS, kinds_of, near_duplicate_groups, split_by_group

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
THRESHOLDS = tuple(round(0.20 + 0.02 * i, 2) for i in range(31))


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result, beside the data and the versions."""

    seed: int = 2018
    width: int = 16
    steps: int = 3000
    batch_pixels: int = 16 * 128 * 128
    crops: tuple[int, ...] = (128, 192, 256)
    """Edges of the crops, one at random for each step: the network must not rely on how far away its input ends."""
    max_lr: float = 4e-3
    weight_decay: float = 0.02
    ema_decay: float = 0.995


def main(arguments: list[str] | None = None) -> None:
    """Splits, trains, chooses the threshold on the validation part, writes the weights and their figures."""
    options = _parse(arguments)
    recipe = Recipe(seed=options.seed, width=options.width, steps=options.steps)
    options.out.mkdir(parents=True, exist_ok=True)
    with np.load(options.data) as data:
        images, masks = data["X"], data["Y"]
    parts = split_by_group(images, recipe.seed)
    started = time.monotonic()
    network = train(images[parts["train"]], masks[parts["train"]], recipe)
    train_s = time.monotonic() - started

    threshold = choose_threshold(network, images[parts["validation"]], masks[parts["validation"]])
    centre_threshold(network, threshold)
    weights = options.out / f"nuclei_rn50_w{recipe.width}.safetensors"
    save_file({key: _to_half(value) for key, value in network.state_dict().items()}, weights)

    network.load_state_dict({key: value.float() for key, value in load_file(weights).items()})
    report = {
        "command": _command(options),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"processor": platform.machine(), "threads": torch.get_num_threads()},
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "data": {"sha256": _sha256(options.data), "images": len(images), "groups": len(near_duplicate_groups(images))},
        "recipe": asdict(recipe),
        "train_s": round(train_s),
        "weights": {"file": weights.name, "sha256": _sha256(weights), "bytes": weights.stat().st_size},
        "threshold": {"chosen_on_validation": threshold, "after_centring": 0.5},
        "iou": iou_table(network, images, masks, parts),
    }
    (options.out / "metrics.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report["iou"], indent=2))


def train(images: npt.NDArray[np.uint8], masks: npt.NDArray[np.bool_], recipe: Recipe) -> UNet:
    """A network trained on uint8 images [N, H, W, 3] and their masks [N, H, W]; CPU, bfloat16 where it is safe."""
    torch.manual_seed(recipe.seed)
    random = torch.Generator().manual_seed(recipe.seed)
    shares = sampling_shares(images)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    labels = torch.from_numpy(masks)[:, None].float()
    network = UNet(recipe.width).train()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    moving_average = get_ema_multi_avg_fn(recipe.ema_decay)  # type: ignore[no-untyped-call]
    averaged = AveragedModel(network, multi_avg_fn=moving_average, use_buffers=True)
    optimizer = torch.optim.AdamW(network.parameters(), lr=recipe.max_lr, weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.max_lr, total_steps=recipe.steps, pct_start=0.2)
    started = time.monotonic()
    for step in range(recipe.steps):
        crop = recipe.crops[int(torch.randint(len(recipe.crops), (), generator=random))]
        chosen = torch.multinomial(shares, recipe.batch_pixels // crop**2, replacement=True, generator=random)
        crops, targets = augment(pixels[chosen], labels[chosen], crop, random)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = network(normalise(crops))
        loss = overlap_loss(logits.float(), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        averaged.update_parameters(network)
        if step % 50 == 49:
            elapsed_s = time.monotonic() - started
            print(f"step {step + 1}/{recipe.steps}  loss {loss.item():.3f}  {elapsed_s:.0f} s", flush=True)
    network.load_state_dict(averaged.module.state_dict())
    return network.eval()


def sampling_shares(images: npt.NDArray[np.uint8]) -> Tensor:
    """How often each image is drawn, [N]: a kind n times as frequent is drawn only sqrt(n) times as often."""
    kinds = kinds_of(images)
    counts = np.bincount(kinds, minlength=len(KINDS))
    return torch.from_numpy(1 / np.sqrt(counts[kinds]))


def overlap_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross entropy plus one minus the soft Dice coefficient of each image; both [N, 1, H, W]."""
    probabilities = torch.sigmoid(logits)
    common = (probabilities * targets).sum(dim=(1, 2, 3))
    total = probabilities.sum(dim=(1, 2, 3)) + targets.sum(dim=(1, 2, 3))
    dice = (2 * common + 1) / (total + 1)
    return F.binary_cross_entropy_with_logits(logits, targets) + (1 - dice).mean()


def normalise(pixels: Tensor) -> Tensor:
    """Channels-last input of the network from float images in [0, 1], [N, 3, H, W]."""
    shifted = (pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    return shifted.contiguous(memory_format=torch.channels_last)


@torch.inference_mode()
def predict(network: UNet, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Probabilities [N, H, W] of whole images, in float32."""
    batches = [torch.from_numpy(images[i : i + 8]).permute(0, 3, 1, 2) for i in range(0, len(images), 8)]
    result: npt.NDArray[np.float32] = torch.cat(
        [torch.sigmoid(network(normalise(b / 255)))[:, 0] for b in batches]
    ).numpy()
    return result


def choose_threshold(network: UNet, images: npt.NDArray[np.uint8], masks: npt.NDArray[np.bool_]) -> float:
    """The threshold with the highest mean IoU."""
    probabilities = predict(network, images)
    return max(THRESHOLDS, key=lambda threshold: float(overlap(probabilities > threshold, masks)[0].mean()))


def centre_threshold(network: UNet, threshold: float) -> None:
    """Shifts the last bias so that 0.5 decides exactly as `threshold` did: users need no number beside the file."""
    bias = network.segmentation_head[0].bias
    assert isinstance(bias, Tensor)
    with torch.no_grad():
        bias -= torch.logit(torch.tensor(threshold))


def overlap(
    predicted: npt.NDArray[np.bool_], truth: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """IoU and Dice of each pair of masks [N, H, W]; two empty masks agree fully."""
    common = (predicted & truth).sum(axis=(1, 2))
    either = (predicted | truth).sum(axis=(1, 2))
    iou = np.where(either == 0, 1.0, common / np.maximum(either, 1))
    return iou, 2 * iou / (1 + iou)


def iou_table(
    network: UNet,
    images: npt.NDArray[np.uint8],
    masks: npt.NDArray[np.bool_],
    parts: dict[str, npt.NDArray[np.int64]],
) -> dict[str, dict[str, float]]:
    """Figures of each part at threshold 0.5, and of each kind of microscopy in the test part."""
    kinds = kinds_of(images[parts["test"]])
    rows = parts | {f"test, {kind}": parts["test"][kinds == index] for index, kind in enumerate(KINDS)}
    table = {}
    for name, indices in rows.items():
        if not len(indices):
            continue
        iou, dice = overlap(predict(network, images[indices]) > 0.5, masks[indices])
        figures = {"iou_mean": iou.mean(), "iou_median": np.median(iou), "dice_mean": dice.mean()}
        table[name] = {"images": len(indices)} | {key: round(float(value), 4) for key, value in figures.items()}
    return table


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m backend.unet.train", description="Trains the demo UNet.")
    parser.add_argument("--data", type=Path, required=True, help="npz with X (images) and Y (masks)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights and metrics.json")
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--width", type=int, default=Recipe.width)
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    return parser.parse_args(arguments)


def _command(options: argparse.Namespace) -> str:
    """What does the same again, with the names of files and folders but not where they lie."""
    paths = f"--data {options.data.name} --out {options.out.name}"
    return f"python -m backend.unet.train {paths} --seed {options.seed} --width {options.width} --steps {options.steps}"


def _to_half(value: Tensor) -> Tensor:
    return value.half().contiguous() if value.is_floating_point() else value


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
