"""No near-duplicate straddles the split, and training is what the script says it is."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from backend.unet.augment import augment
from backend.unet.network import UNet
from backend.unet.split import KINDS, borders_continue, kinds_of, near_duplicate_groups, split_by_group
from backend.unet.train import centre_threshold, main, overlap, predict

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "dsb2018_nuclei_256.npz"
WEIGHTS = ROOT / "model_repository" / "unet" / "weights"
EDGE = 128


def field(seed: int, height: int = EDGE, width: int = EDGE) -> NDArray[np.uint8]:
    """Soft spots on black, another picture for every seed."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    picture = np.zeros((height, width))
    for _ in range(height * width // 120):
        cy, cx, r = random.uniform(0, height), random.uniform(0, width), random.uniform(3, 6)
        picture += random.uniform(40, 120) * np.exp(-((y - cy) ** 2 + (x - cx) ** 2) / (2 * r * r))
    noisy = picture + random.normal(0, 0.5, picture.shape)
    return np.repeat(noisy.clip(0, 255).astype(np.uint8)[:, :, None], 3, axis=2)


def dataset() -> NDArray[np.uint8]:
    """0-3: quarters of one larger field; 4: a brighter, shifted copy of 5; 6-29: strangers."""
    large = field(100, 2 * EDGE, 2 * EDGE)
    quarters = [large[y : y + EDGE, x : x + EDGE] for y in (0, EDGE) for x in (0, EDGE)]
    original = field(5)
    copy = (np.roll(original, (4, 6), axis=(0, 1)).astype(np.float32) * 1.3 + 5).clip(0, 255).astype(np.uint8)
    return np.stack([*quarters, copy, original, *(field(seed) for seed in range(6, 30))])


def test_tiles_of_one_field_and_shifted_copies_are_grouped_and_strangers_are_not() -> None:
    groups = [group.tolist() for group in near_duplicate_groups(dataset())]
    assert groups == [[0, 1, 2, 3], [4, 5], *([n] for n in range(6, 30))]


def test_neighbours_are_found_by_their_borders() -> None:
    continues = borders_continue(dataset()[:4])
    assert continues.tolist() == [
        [False, True, True, False],
        [True, False, False, True],
        [True, False, False, True],
        [False, True, True, False],
    ]


@pytest.mark.parametrize("seed", range(8))
def test_no_group_straddles_the_split_and_no_image_is_lost(seed: int) -> None:
    images = dataset()
    parts = split_by_group(images, seed)
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(len(images)))
    for group in near_duplicate_groups(images):
        assert sum(bool(np.isin(group, indices).any()) for indices in parts.values()) == 1
    assert len(parts["train"]) > len(parts["test"]) > 0


def test_the_split_depends_on_the_seed_alone() -> None:
    images = dataset()
    once, again, other = split_by_group(images, 1), split_by_group(images, 1), split_by_group(images, 2)
    assert all(np.array_equal(once[name], again[name]) for name in once)
    assert any(not np.array_equal(once[name], other[name]) for name in once)


def test_kinds_of_microscopy_are_told_by_colour_and_ground() -> None:
    dark, bright = np.full((EDGE, EDGE, 3), 10, np.uint8), np.full((EDGE, EDGE, 3), 220, np.uint8)
    stained = np.full((EDGE, EDGE, 3), (180, 120, 200), np.uint8)
    kinds = [KINDS[kind] for kind in kinds_of(np.stack([dark, stained, bright]))]
    assert kinds == ["fluorescence", "stained", "bright-field"]


def test_augmentation_moves_image_and_mask_together() -> None:
    random = torch.Generator().manual_seed(0)
    masks = torch.zeros(32, 1, 64, 64)
    masks[:, :, 20:45, 10:40] = 1
    images = (masks * 200).to(torch.uint8).expand(-1, 3, -1, -1)
    crops, targets = augment(images, masks, 48, random)
    assert crops.shape == (32, 3, 48, 48)
    assert 0 <= crops.min() <= crops.max() <= 1
    assert set(targets.flatten().tolist()) == {0.0, 1.0}
    inside = (crops.mean(dim=1, keepdim=True) * targets).sum(dim=(1, 2, 3)) / targets.sum(dim=(1, 2, 3))
    outside = (crops.mean(dim=1, keepdim=True) * (1 - targets)).sum(dim=(1, 2, 3)) / (1 - targets).sum(dim=(1, 2, 3))
    assert ((inside - outside).abs() > 0.2).all()


def test_iou_and_dice_of_known_masks() -> None:
    truth = np.zeros((3, 4, 4), bool)
    truth[:2, :2] = True
    predicted = np.zeros((3, 4, 4), bool)
    predicted[0, :2] = True
    predicted[1, :1] = True
    iou, dice = overlap(predicted, truth)
    np.testing.assert_allclose(iou, [1, 0.5, 1])
    np.testing.assert_allclose(dice, [1, 2 / 3, 1])


def test_centring_makes_half_decide_as_the_chosen_threshold_did() -> None:
    network = UNet(4).eval()
    images = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        before = torch.sigmoid(network(images)) > 0.3
    centre_threshold(network, 0.3)
    with torch.inference_mode():
        after = torch.sigmoid(network(images)) > 0.5
    assert torch.equal(before, after)


def test_the_training_script_writes_weights_that_load_and_figures_by_split(tmp_path: Path) -> None:
    images = np.stack([field(seed, 256, 256) for seed in range(16)])
    np.savez(tmp_path / "data.npz", X=images, Y=images[:, :, :, 0] > 60)
    main(["--data", str(tmp_path / "data.npz"), "--out", str(tmp_path / "out"), "--width", "4", "--steps", "3"])
    report = json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))
    assert {"train", "validation", "test"} <= set(report["iou"])
    assert all(0 <= row["iou_mean"] <= 1 for row in report["iou"].values())
    state = load_file(tmp_path / "out" / report["weights"]["file"])
    UNet(4).load_state_dict({name: value.float() for name, value in state.items()})


@pytest.mark.skipif(not DATA.is_file(), reason=f"the data set is not there: {DATA}")
def test_the_shipped_weights_are_as_good_as_their_card_says_on_images_they_never_saw() -> None:
    report = json.loads((WEIGHTS / "metrics.json").read_text(encoding="utf-8"))
    with np.load(DATA) as data:
        images, masks = data["X"], data["Y"]
    test = split_by_group(images, report["recipe"]["seed"])["test"]
    network = UNet(report["recipe"]["width"]).eval()
    state = load_file(WEIGHTS / report["weights"]["file"])
    network.load_state_dict({name: value.float() for name, value in state.items()})
    iou, _ = overlap(predict(network, images[test]) > 0.5, masks[test])
    assert iou.mean() == pytest.approx(report["iou"]["test"]["iou_mean"], abs=1e-3)
    assert iou.mean() >= 0.76
