"""A quantised network in the manner of MobileNet, integer for integer.

Every layer is RESCALEd to INT8 by channel; activations are CLAMP and TABLE; blocks have
squeezing AVG_POOL2Ds, gates and residual sums. The weights are random, and the scales
such that every layer's results use the range of INT8.
"""

import functools
import math
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from harness.running import Array, Devices
from tosavk.backends.reference import Note, evaluate
from tosavk.core.dtypes import DType
from tosavk.lowering.graph import Graph, Op, RoundingMode, Tensor
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.builder import Builder
from tosavk.lowering.tosa.writer import write_graph

IMAGE = (1, 48, 48, 3)
CLASSES = 101
# Channels inside and after a block, its kernel, its stride, and whether it has a gate.
BLOCKS = (
    (16, 8, 3, 1, False),
    (40, 12, 3, 2, False),
    (56, 12, 3, 1, False),
    (60, 20, 5, 2, True),
    (76, 20, 5, 1, True),
    (76, 20, 5, 1, True),
    (92, 28, 3, 2, False),
    (92, 28, 3, 1, False),
    (92, 28, 3, 1, False),
    (124, 36, 3, 1, True),
    (140, 36, 3, 1, True),
    (140, 52, 5, 2, True),
    (156, 52, 5, 1, True),
    (156, 52, 5, 1, True),
)
# Typical size of a weight.
WEIGHT = 40.0
LAYERS = {Op.CONV2D, Op.DEPTHWISE_CONV2D, Op.AVG_POOL2D, Op.TABLE, Op.MATMUL}


def scaled(scale: Array) -> tuple[Array, Array]:
    """Multipliers of 31 bits and shifts that stand for factors."""
    fraction, exponent = np.frexp(scale)
    multiplier = np.minimum(np.rint(fraction * 2.0**31), 2.0**31 - 1)
    return multiplier.astype(np.int32), (31 - exponent).astype(np.int8)


def same(size: int, kernel: int, stride: int) -> tuple[int, int, int, int]:
    """Padding of a square image such that strides alone shrink it."""
    room = (-(-size // stride) - 1) * stride + kernel - size
    before = room // 2
    return before, room - before, before, room - before


class Network:
    """A network that is being made."""

    def __init__(self) -> None:
        """Starts with the input."""
        self.build = Builder()
        self._random = np.random.default_rng(20261)
        self._curves = {
            "sigmoid": self._table(lambda v: 255.0 / (1.0 + math.exp(-v)) - 128.0),
            "hard_swish": self._table(
                lambda v: 42.0 * v * min(max(v + 3.0, 0.0), 6.0) / 6.0 - 25.0
            ),
        }

    def _table(self, curve: Callable[[float], float]) -> Tensor:
        values = [round(curve(v / 42.0)) for v in range(-128, 128)]
        return self.build.const(np.clip(values, -128, 127).astype(np.int8))

    def zero_point(self, value: int) -> Tensor:
        return self.build.const(np.array([value], np.int8))

    def rescale(
        self,
        x: Tensor,
        scale: Array | float,
        dtype: DType = DType.INT8,
        *,
        input_zp: int = 0,
        output_zp: int = 0,
    ) -> Tensor:
        """RESCALE by one factor, or by one for each channel."""
        factors = np.atleast_1d(np.asarray(scale, np.float64))
        multiplier, shift = scaled(factors)
        per_channel = factors.size > 1
        rounding = RoundingMode.DOUBLE_ROUND if per_channel else None
        return self.build.rescale(
            x,
            dtype,
            self.build.const(multiplier),
            self.build.const(shift),
            input_zp=self.zero_point(input_zp) if x.dtype is DType.INT8 else None,
            output_zp=self.zero_point(output_zp) if dtype is DType.INT8 else None,
            rounding_mode=rounding or RoundingMode.SINGLE_ROUND,
            per_channel=per_channel,
        )

    def weights(self, *shape: int) -> Tensor:
        values = np.rint(self._random.normal(0.0, WEIGHT, shape))
        return self.build.const(np.clip(values, -127, 127).astype(np.int8))

    def _after(self, sums: Tensor, terms: int, output_zp: int) -> Tensor:
        """What a convolution is followed by: RESCALE by channel."""
        assert sums.shape is not None
        spread = self._random.uniform(0.5, 1.0, sums.shape[-1])
        scale = spread / (WEIGHT * math.sqrt(terms))
        return self.rescale(sums, scale, output_zp=output_zp)

    def _bias(self, channels: int) -> Tensor:
        return self.build.const(
            self._random.integers(-20000, 20000, channels, dtype=np.int32)
        )

    def conv(
        self, x: Tensor, channels: int, kernel: int = 1, stride: int = 1, zp: int = 0
    ) -> Tensor:
        """CONV2D to INT8; `zp` is the zero point of what comes in and goes out."""
        assert x.shape is not None
        ic = x.shape[3]
        sums = self.build.conv2d(
            x,
            self.weights(channels, kernel, kernel, ic),
            self._bias(channels),
            pad=same(x.shape[1], kernel, stride),
            stride=(stride, stride),
            input_zp=self.zero_point(zp),
        )
        return self._after(sums, kernel * kernel * ic, zp)

    def depthwise(self, x: Tensor, kernel: int, stride: int, zp: int) -> Tensor:
        """DEPTHWISE_CONV2D to INT8."""
        assert x.shape is not None
        channels = x.shape[3]
        sums = self.build.depthwise_conv2d(
            x,
            self.weights(kernel, kernel, channels, 1),
            self._bias(channels),
            pad=same(x.shape[1], kernel, stride),
            stride=(stride, stride),
            input_zp=self.zero_point(zp),
        )
        return self._after(sums, kernel * kernel, zp)

    def pool(self, x: Tensor, zp: int) -> Tensor:
        """The mean of each channel."""
        assert x.shape is not None
        zero_point = self.zero_point(zp)
        return self.build.avg_pool2d(
            x, x.shape[1:3], input_zp=zero_point, output_zp=zero_point
        )

    def curve(self, x: Tensor, name: str) -> Tensor:
        return self.build.table(x, self._curves[name])

    def gate(self, x: Tensor, zp: int) -> Tensor:
        """Squeeze and excite: every channel times a number of 0 to 1."""
        assert x.shape is not None
        channels = x.shape[3]
        few = self.build.clamp(
            self.conv(self.pool(x, zp), channels // 4, zp=zp), zp, 127
        )
        gate = self.curve(self.conv(few, channels, zp=zp), "sigmoid")
        product = self.build.mul(
            self.rescale(x, 1.0, DType.INT32, input_zp=zp),
            self.rescale(gate, 1.0, DType.INT32, input_zp=-128),
        )
        return self.rescale(product, 1.6 / 255.0, output_zp=zp)

    def add(self, a: Tensor, b: Tensor, zp: int) -> Tensor:
        """A residual sum, in INT32 with 16 bits to spare."""
        wide = [self.rescale(x, 2.0**15, DType.INT32, input_zp=zp) for x in (a, b)]
        return self.rescale(self.build.add(*wide), 0.7 / 2.0**15, output_zp=zp)

    def block(self, x: Tensor, number: int) -> Tensor:
        """Expand, filter, gate, project; added to what came in where it fits."""
        inside, channels, kernel, stride, gated = BLOCKS[number]
        zp = (-11, 5, 0)[number % 3]
        start = self.rescale(x, 1.0, input_zp=0, output_zp=zp)
        y = self.conv(start, inside, zp=zp)
        y = self.build.clamp(y, zp, 127) if number % 2 else self.curve(y, "hard_swish")
        y = self.depthwise(y, kernel, stride, zp)
        y = self.gate(y, zp) if gated else self.build.clamp(y, -100, 127)
        y = self.conv(y, channels, zp=zp)
        if y.shape == start.shape:
            y = self.add(start, y, zp)
        return self.rescale(y, 1.0, input_zp=zp)


@functools.cache
def network() -> tuple[Graph, dict[str, Array]]:
    """The network and an image."""
    made = Network()
    x = made.build.input("image", DType.INT8, IMAGE)
    y = made.conv(x, 8, kernel=3, stride=2, zp=-3)
    y = made.rescale(y, 1.0, input_zp=-3)
    for number in range(len(BLOCKS)):
        y = made.block(y, number)
    y = made.curve(made.conv(y, 160), "hard_swish")
    y = made.conv(made.pool(y, -25), CLASSES, zp=-25)
    scores = made.build.reshape(y, (1, CLASSES))
    made.build.output(scores)
    made.build.output(made.build.argmax(scores, 1))
    image = np.random.default_rng(1).integers(-128, 127, IMAGE, np.int8, endpoint=True)
    return load_graph(made.build.build()), {"image": image}


@functools.cache
def expected() -> dict[str, Array]:
    """Every tensor of the network by the reference."""
    graph, inputs = network()
    notes: list[Note] = []
    values = evaluate(graph, inputs, precise=False, notes=notes)
    assert not notes
    return values


def outputs() -> dict[str, Array]:
    return {name: expected()[name] for name in network()[0].main.outputs}


def test_the_network_is_one() -> None:
    """It is deep, and no layer is saturated or all the same."""
    graph, _ = network()
    block = graph.main
    assert sum(op.op in LAYERS for op in block.operators) >= 50
    for op in block.operators:
        name = op.outputs[0]
        if op.op is Op.RESCALE and block.tensors[name].dtype is DType.INT8:
            values = expected()[name]
            assert np.unique(values).size > min(20, values.size // 2), str(op)
            assert np.mean(np.abs(values.astype(int) + 0.5) > 127) < 0.3, str(op)


def test_the_same_integers(opened: Devices, device: str) -> None:
    graph, inputs = network()
    results = opened.run(device, graph, inputs)
    assert results.keys() == outputs().keys()
    for name, want in outputs().items():
        assert np.array_equal(results[name], want), name


OFFICIAL = """
import sys
import numpy as np
import tosa_reference_model
program = open(sys.argv[1], "rb").read()
results, status = tosa_reference_model.run(
    program, [np.load(sys.argv[2])], tosa_level="EIGHTK"
)
print(status)
for number, result in enumerate(results):
    np.save(f"{sys.argv[3]}/{number}.npy", result)
"""


def test_the_reference_models_integers(tmp_path: Path) -> None:
    tools = os.environ.get("TOSAVK_TOSA_TOOLS")
    if not tools:
        pytest.skip("no tosa-tools (set TOSAVK_TOSA_TOOLS)")
    graph, inputs = network()
    (tmp_path / "network.tosa").write_bytes(write_graph(graph))
    np.save(tmp_path / "image.npy", inputs["image"])
    python = Path(tools) / "bin" / "python"
    arguments = [str(tmp_path / name) for name in ("network.tosa", "image.npy", "")]
    answer = subprocess.run(
        [str(python), "-c", OFFICIAL, *arguments],
        check=False,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "TOSA_VALID" in answer.stdout
    for number, want in enumerate(outputs().values()):
        found = np.load(tmp_path / f"{number}.npy")
        assert np.array_equal(found.reshape(want.shape), want), number
