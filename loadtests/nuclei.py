"""How well the demo UNet finds cell nuclei in images that it was not trained on."""

import hashlib
import json
from pathlib import Path

import numpy as np

from backend.unet import load
from backend.unet.engine import UnetEngine
from backend.unet.split import KINDS, kinds_of, split_by_group
from backend.unet.train import overlap
from common.errors import SettingsError
from common.settings import Settings
from loadtests import unet_driver

DATA = Path(__file__).resolve().parents[2] / "shared/data/dsb2018_nuclei_256.npz"
"""Where the images are looked for: X, uint8 [N, 256, 256, 3], and Y, bool [N, 256, 256]."""


def test_iou(engine: UnetEngine, data: Path) -> dict[str, float]:
    """IoU of the engine's masks over the test part, at the threshold that is built into the demo weights.

    The split and the data are those that the weights were trained with; raises SettingsError for other data, some of
    whose images the network may have seen. Mean, median, mean of each kind of microscopy, mean Dice, count of images.
    """
    trained = json.loads((load.weights_file(Settings()).parent / "metrics.json").read_text(encoding="utf-8"))
    if hashlib.sha256(data.read_bytes()).hexdigest() != trained["data"]["sha256"]:
        raise SettingsError(f"--data: {data.name} is not the data that the demo weights were trained on a part of")
    with np.load(data) as arrays:
        images, truth = arrays["X"], arrays["Y"]
    part = split_by_group(images, trained["recipe"]["seed"])["test"]
    masks = np.stack([mask for mask, _ in unet_driver.together(engine, list(images[part]))])
    iou, dice = overlap(masks.astype(bool), truth[part])
    figures = {"images": len(part), "mean": iou.mean(), "median": np.median(iou), "dice": dice.mean()}
    kinds = kinds_of(images[part])
    figures |= {kind: iou[kinds == index].mean() for index, kind in enumerate(KINDS) if (kinds == index).any()}
    return {name: float(value) for name, value in figures.items()}
