"""The network is the one of segmentation_models_pytorch: same names, same shapes, same numbers."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from backend.unet.network import UNet, fold_batch_norm
from estimator.unet import UnetShape, weights_bytes

STATE = Path(__file__).parent / "data" / "smp_unet_resnet50_state.txt"
"""Names and shapes of ``segmentation_models_pytorch.Unet("resnet50", classes=1).state_dict()``, version 0.6.0."""


def test_state_dict_has_the_names_and_shapes_of_the_published_network() -> None:
    network = UNet(64)
    ours = [f"{name} {'x'.join(map(str, value.shape)) or 'scalar'}" for name, value in network.state_dict().items()]
    assert ours == STATE.read_text(encoding="ascii").splitlines()


def test_outputs_are_those_of_the_published_network() -> None:
    """Expected values: the published network 0.6.0 with the same weights, torch 2.13 on a CPU, at every 23rd row and
    29th column.
    """
    expected = torch.tensor([
        [0.071398, 0.083985, 0.086736, 0.087771, 0.080047, 0.121225, 0.119009, 0.116126,
         0.078001, 0.119641, 0.119136, 0.122864, 0.097720, 0.127135, 0.126328, 0.126226],
        [0.042591, 0.055789, 0.057137, 0.059433, 0.069879, 0.078662, 0.075079, 0.066578,
         0.073445, 0.077597, 0.075197, 0.077981, 0.085924, 0.082272, 0.084371, 0.087522],
    ])  # fmt: skip
    network = UNet(64, classes=2).eval()
    _fill(network)
    with torch.inference_mode():
        logits = network(_picture(70, 90))
    torch.testing.assert_close(logits[0, :, ::23, ::29].flatten(1), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("size", [(1, 1), (31, 33), (64, 96), (50, 130)])
def test_any_size_comes_out_as_it_went_in(size: tuple[int, int]) -> None:
    with torch.inference_mode():
        assert UNet(8, classes=3).eval()(torch.zeros(2, 3, *size)).shape == (2, 3, *size)


def test_folding_leaves_the_function_as_it_was_and_no_normalisation() -> None:
    network = UNet(16, classes=2).eval()
    _fill(network)
    picture = _picture(64, 96)
    with torch.inference_mode():
        before = network(picture)
        after = fold_batch_norm(network)(picture)
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-4)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in network.modules())


@pytest.mark.parametrize(("width", "classes"), [(4, 1), (16, 1), (64, 5)])
def test_priced_weights_are_the_folded_parameters_to_the_byte(width: int, classes: int) -> None:
    network = fold_batch_norm(UNet(width, classes))
    actual_bytes = sum(parameter.numel() * parameter.element_size() for parameter in network.parameters())
    assert weights_bytes(UnetShape(width, classes), "float32") == actual_bytes


@pytest.mark.parametrize("arguments", [{"width": 0}, {"width": 10}, {"classes": 0}, {"in_channels": 0}])
def test_impossible_shapes_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="UNet needs"):
        UNet(**arguments)


def _fill(network: UNet) -> None:
    """Weights by integer arithmetic, the same on every machine."""
    for number, (name, value) in enumerate(network.state_dict().items()):
        if not value.is_floating_point():
            continue
        index = torch.arange(value.numel())
        hashed = (index + number) * (index + 7) * 2654435761 & 0xFFFFFFFF
        hashed = hashed * (index + 13) * 40503 & 0xFFFFFFFF
        wave = hashed.double() / 2**31 - 1
        if name.endswith("running_var"):
            values = 1 + 0.5 * wave
        elif value.dim() == 1:
            values = 0.5 + 0.5 * wave if name.endswith("weight") else 0.1 * wave
        else:
            values = wave * (3 / value[0].numel()) ** 0.5
        value.copy_(values.view_as(value))


def _picture(height: int, width: int) -> Tensor:
    y = torch.linspace(-1, 1, height).view(1, 1, height, 1)
    x = torch.linspace(-1, 1, width).view(1, 1, 1, width)
    return torch.cat([torch.sin(9 * x) * torch.cos(7 * y), x * y, torch.cos(11 * x * y)], dim=1)
