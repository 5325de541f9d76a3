"""Bytes of a ResNet50-UNet that works in tiles: weights, a batch of tiles, a canvas, and the inverse.

Any image is cut into square tiles of one size that overlap by a quarter or more. An image that fits into one tile needs
no canvas at all. For others the logits of neighbouring tiles are blended in a canvas that is as high as one tile, for
rows above it are finished, and as wide as the image. A canvas is made of equal *strips*::

    strip bytes = classes x tile x overlap x bytes of one element        (all rows of the canvas, `overlap` columns)
    canvas bytes = strips x strip bytes,   strips = width / overlap, rounded up, and as many as a tile has at least

so prices are exact, and what is free in the pool of strips can be used by any request. Worked example: one class, tiles
of 512 with 128 overlap, 2-byte elements: a strip is 131,072 B, a 12,000 pixel wide image has 94 strips, 11.8 MiB,
whatever its height.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from common.wire import HOST, UNET_CANVAS, UnetLimits
from estimator.price import Line, Price

GRANT = "unet.grant"
ITEMSIZE: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of one element by dtype name."""
CANVAS_ITEMSIZE = 2
"""A canvas holds float16, since its blend weights add up to 1."""
STAGED_STRIPS = 32
"""Strips that are reduced to mask rows at once."""

_ACTIVATIONS_AT_64 = 150
"""Elements per tile pixel at width 64 that live at the peak of a forward pass, measured on an H200; linear in width."""
_BLOCKS = (3, 4, 6, 3)
_RGB_BYTES = 3
_DECODER_BYTES = 4
"""Bytes per pixel of the decoder's own copy in the widest mode (RGBA, CMYK)."""


@dataclass(frozen=True)
class UnetShape:
    """Everything the network's memory depends on."""

    width: int
    """Channels of the stem; 64 is the true ResNet50."""
    classes: int
    in_channels: int = 3


@dataclass(frozen=True)
class TileGrid:
    """Where the tiles of an image lie; all lengths in pixels, tiles numbered row by row from the top left.

    There are as few tiles as an overlap of `overlap_pixels` allows, spread evenly: every origin is a multiple of the
    overlap, which keeps tiles in step with the network's strides, and neighbours overlap by one to three times as much.
    Tiles reach less than one overlap beyond the right and lower edge of an image that is larger than a tile; there it
    is continued by reflection.
    """

    height: int
    width: int
    tile_pixels: int
    overlap_pixels: int

    def __post_init__(self) -> None:
        if min(self.height, self.width, self.overlap_pixels) < 1 or self.tile_pixels % self.overlap_pixels:
            raise ValueError(f"no tiling for {self}")

    @property
    def rows(self) -> int:
        """Rows of tiles."""
        return self._along(self.height)

    @property
    def columns(self) -> int:
        """Columns of tiles."""
        return self._along(self.width)

    @property
    def tiles(self) -> int:
        """All tiles."""
        return self.rows * self.columns

    @property
    def is_single(self) -> bool:
        """One tile holds the whole image: no blending, no canvas."""
        return self.tiles == 1

    @property
    def strips(self) -> int:
        """Canvas strips, each `overlap_pixels` wide; a tile covers those from its origin on."""
        if self.is_single:
            return 0
        return (self._origin(self.columns - 1, self.width) + self.tile_pixels) // self.overlap_pixels

    def position(self, tile: int) -> tuple[int, int]:
        """Row and column of a tile in the grid."""
        return divmod(tile, self.columns)

    def origin(self, tile: int) -> tuple[int, int]:
        """Image row and column of a tile's upper left pixel."""
        row, column = self.position(tile)
        return self._origin(row, self.height), self._origin(column, self.width)

    def shared(self, tile: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """How far a tile overlaps the ones above and below it, and those to its left and right.

        In units of `overlap_pixels`; 0 where there is no neighbour.
        """
        row, column = self.position(tile)
        return self._shared(row, self.rows, self.height), self._shared(column, self.columns, self.width)

    def finished_rows(self, row: int) -> range:
        """Image rows that no later tile touches once this row of tiles is done and the ones above were before."""
        start = self._origin(row, self.height)
        return range(start, self.height if row == self.rows - 1 else self._origin(row + 1, self.height))

    def _along(self, length: int) -> int:
        return max(1, -(-(length - self.overlap_pixels) // (self.tile_pixels - self.overlap_pixels)))

    def _origin(self, index: int, length: int) -> int:
        """Where tile `index` along an axis begins."""
        last = -(-(length - self.tile_pixels) // self.overlap_pixels)
        return index * last // max(1, self._along(length) - 1) * self.overlap_pixels

    def _shared(self, index: int, count: int, length: int) -> tuple[int, int]:
        origins = [self._origin(near, length) for near in (index - 1, index, index + 1)]
        before, after = (self.tile_pixels - step for step in (origins[1] - origins[0], origins[2] - origins[1]))
        return (
            before // self.overlap_pixels if index > 0 else 0,
            after // self.overlap_pixels if index < count - 1 else 0,
        )


def overlap_pixels(tile_pixels: int) -> int:
    """A quarter of the tile."""
    return tile_pixels // 4


def grid(limits: UnetLimits, height: int, width: int) -> TileGrid:
    """The tiles that the engine with these limits cuts an image into."""
    return TileGrid(height, width, limits.tile_pixels, limits.overlap_pixels)


def weights_bytes(shape: UnetShape, dtype: str) -> int:
    """Weights and biases in use, batch normalisation folded into the convolutions."""
    elements = sum(out * (inputs * kernel * kernel + 1) for inputs, out, kernel in _convolutions(shape))
    return elements * ITEMSIZE[dtype]


def tile_batch_bytes(shape: UnetShape, tile_pixels: int, tile_batch: int, dtype: str) -> int:
    """Peak of one forward pass over a full batch: uint8 tiles, the network's input and activations, logits."""
    pixels = tile_batch * tile_pixels * tile_pixels
    elements = shape.in_channels + -(-_ACTIVATIONS_AT_64 * shape.width // 64) + shape.classes
    return pixels * (shape.in_channels + elements * ITEMSIZE[dtype])


def rounding_bytes(shape: UnetShape, tile_pixels: int, tile_batch: int, dtype: str) -> int:
    """What an allocator holds beyond the tensors of a pass: 0.5 to 0.96 times as much again, measured on an H200."""
    return tile_batch_bytes(shape, tile_pixels, tile_batch, dtype)


def staging_bytes(shape: UnetShape, tile_pixels: int) -> int:
    """Kept for blending and reducing: blend weights of 16 kinds of neighbourhoods, and staged strips.

    A staged pixel has its logits and a byte of the mask; with several classes the 8-byte index of the highest, too.
    """
    strip_area = tile_pixels * overlap_pixels(tile_pixels)
    reduced = 1 if shape.classes == 1 else 9
    staged = STAGED_STRIPS * strip_area * (shape.classes * CANVAS_ITEMSIZE + reduced)
    return 16 * tile_pixels * CANVAS_ITEMSIZE + staged


def strip_bytes(classes: int, tile_pixels: int, overlap_pixels: int, itemsize: int = CANVAS_ITEMSIZE) -> int:
    """One strip of a canvas."""
    return classes * tile_pixels * overlap_pixels * itemsize


def strips_in(canvas_bytes: int, classes: int, tile_pixels: int, overlap_pixels: int) -> int:
    """Whole strips that a pool of `canvas_bytes` holds: the inverse of the price."""
    return canvas_bytes // strip_bytes(classes, tile_pixels, overlap_pixels)


def canvas_bytes(height: int, width: int, limits: UnetLimits) -> int:
    """Exact bytes of the canvas of an image; 0 where one tile holds it."""
    one = strip_bytes(limits.classes, limits.tile_pixels, limits.overlap_pixels, limits.canvas_itemsize)
    return grid(limits, height, width).strips * one


def price_request(limits: UnetLimits, height: int, width: int, encoded_bytes: int, probabilities: bool) -> Price:
    """Price of one image of `height` x `width` pixels that arrives in `encoded_bytes` (0 for a raw tensor).

    ``unet.canvas`` is exact. ``host`` is what one request holds at most: the upload, the decoder's copy, the RGB image,
    the mask, the canvas where it has to move to the host, and the probabilities where they are asked for.
    """
    tiles = grid(limits, height, width)
    pixels = height * width
    lines = [
        Line(
            UNET_CANVAS,
            canvas_bytes(height, width, limits),
            f"{tiles.strips} strips of {limits.classes} x {limits.tile_pixels} x {limits.overlap_pixels}"
            f" x {limits.canvas_itemsize} B under {tiles.rows} x {tiles.columns} tiles",
        ),
        Line(HOST, encoded_bytes, f"upload of {encoded_bytes} B"),
        Line(HOST, _DECODER_BYTES * pixels if encoded_bytes else 0, f"decoder's copy, {pixels} pixels x 4 B"),
        Line(HOST, _RGB_BYTES * pixels, f"RGB image, {pixels} pixels x 3 B"),
        Line(HOST, pixels, f"mask, {pixels} pixels x 1 B"),
        Line(HOST, canvas_bytes(height, width, limits), "the canvas, should it move to the host"),
    ]
    if probabilities:
        size = limits.classes * pixels * 4
        lines.append(Line(HOST, size, f"probabilities, {limits.classes} classes x {pixels} pixels x 4 B"))
    return Price.of(lines)


def standing(shape: UnetShape, dtype: str, tile_pixels: int, tile_batch: int, canvas_bytes: int) -> Price:
    """Held whether or not anyone calls, on the account ``unet.grant``; the CUDA context is not in it."""
    size = f"{tile_batch} tiles of {tile_pixels} x {tile_pixels}"
    return Price.of(
        [
            Line(GRANT, weights_bytes(shape, dtype), f"weights, width {shape.width}, {dtype}"),
            Line(GRANT, tile_batch_bytes(shape, tile_pixels, tile_batch, dtype), f"forward pass over {size}"),
            Line(GRANT, rounding_bytes(shape, tile_pixels, tile_batch, dtype), "the allocator's rounding of that pass"),
            Line(GRANT, staging_bytes(shape, tile_pixels), f"blend weights and {STAGED_STRIPS} staged strips"),
            Line(GRANT, canvas_bytes, "pool of canvas strips"),
        ]
    )


def _convolutions(shape: UnetShape) -> Iterator[tuple[int, int, int]]:
    """(input channels, output channels, kernel edge) of every convolution of ``backend.unet.network.UNet``."""
    width = shape.width
    yield shape.in_channels, width, 7
    below = width
    for stage, blocks in enumerate(_BLOCKS):
        inner = width << stage
        for block in range(blocks):
            yield below, inner, 1
            yield inner, inner, 3
            yield inner, 4 * inner, 1
            if block == 0:
                yield below, 4 * inner, 1
            below = 4 * inner
    skips = (16 * width, 8 * width, 4 * width, width, 0)
    for skip, out in zip(skips, (4 * width, 2 * width, width, width // 2, width // 4), strict=True):
        yield below + skip, out, 3
        yield out, out, 3
        below = out
    yield below, shape.classes, 3
