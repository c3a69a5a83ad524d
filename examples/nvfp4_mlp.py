#!/usr/bin/env python3
"""A gated MLP block with NVFP4 weights, on two backends, compared.

    nvfp4_mlp.py                                  makes a small file and uses that
    nvfp4_mlp.py model.safetensors --layer model.layers.0.mlp --format modelopt
    nvfp4_mlp.py --backend vulkan --backend wgpu --tokens 8

The block is `down(silu(gate(x)) * up(x))`. The file holds LAYER.gate_proj, LAYER.up_proj
and LAYER.down_proj in ModelOpt's or compressed-tensors' layout; its format is read from
its metadata, or said with --format.

Exit codes: 0 the backends agree, 1 they do not, 2 something is missing or wrong.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import tosavk
from tosavk import nvfp4

Floats = NDArray[np.float32]
PARTS = ("gate_proj", "up_proj", "down_proj")
SECONDS = 1.0


def make_file(path: Path, layer: str, *, width: int, inner: int) -> None:
    """Writes a block with random weights of a usual size."""
    rng = np.random.default_rng(0)

    def weights(rows: int, columns: int) -> nvfp4.Weights:
        values = rng.standard_normal((rows, columns)) / np.sqrt(columns)
        return nvfp4.quantize(values.astype(np.float32))

    layers = {
        f"{layer}.gate_proj": weights(inner, width),
        f"{layer}.up_proj": weights(inner, width),
        f"{layer}.down_proj": weights(width, inner),
    }
    nvfp4.save_safetensors(path, layers, format="modelopt")


class Block:
    """The block on one backend; its weights stay there."""

    def __init__(
        self, parts: list[nvfp4.Weights], backend: str, tokens: int, numerics: str
    ) -> None:
        """Loads the three matrices, with SiLU behind the first."""
        self._closing = ExitStack()
        accelerator = self._closing.enter_context(tosavk.open(backend))
        self.device = accelerator.name
        self.layers = [
            self._closing.enter_context(
                nvfp4.load(
                    weights,
                    tokens=tokens,
                    backend=accelerator,
                    activation=activation,
                    numerics=numerics,
                )
            )
            for weights, activation in zip(parts, ("silu", "none", "none"), strict=True)
        ]

    def run(self, x: Floats) -> Floats:
        """The block's result for x [tokens, width]."""
        gate, up, down = self.layers
        return down.run(gate.run(x) * up.run(x))

    def close(self) -> None:
        """Gives everything back."""
        self._closing.close()


def tokens_per_second(run: Callable[[], object], tokens: int) -> float:
    """How many tokens go through in a second, after a first run."""
    run()
    start = time.perf_counter()
    count = 0
    while time.perf_counter() - start < SECONDS:
        run()
        count += 1
    return tokens * count / (time.perf_counter() - start)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, help="a safetensors file")
    parser.add_argument("--layer", default="mlp", help="name in front of .gate_proj")
    parser.add_argument("--format", help="modelopt or compressed-tensors")
    parser.add_argument("--tokens", type=int, default=4, help="default 4")
    parser.add_argument("--numerics", default="strict", choices=("strict", "fast"))
    parser.add_argument(
        "--backend", action="append", help="default vulkan and reference"
    )
    parser.add_argument("--width", type=int, default=256, help="of its own file")
    parser.add_argument("--inner", type=int, default=512, help="of its own file")
    options = parser.parse_args()
    if options.tokens < 1:
        parser.error(f"--tokens {options.tokens}: give 1 or more")
    for name in ("width", "inner"):
        if getattr(options, name) < 1 or getattr(options, name) % 16:
            parser.error(f"--{name} {getattr(options, name)}: give a multiple of 16")
    return options


def main() -> int:
    """Runs the block on each backend and compares."""
    options = parse()
    backends = options.backend or ["vulkan", "reference"]
    with tempfile.TemporaryDirectory() as folder:
        file = options.file
        if file is None:
            file = Path(folder) / "mlp.safetensors"
            make_file(file, options.layer, width=options.width, inner=options.inner)
        try:
            parts = [
                nvfp4.load_safetensors(
                    file, f"{options.layer}.{part}", format=options.format
                )
                for part in PARTS
            ]
        except tosavk.Error as error:
            print(error, file=sys.stderr)
            return 2
    for part, weights in zip(PARTS, parts, strict=True):
        print(f"{part}: {weights}, {weights.nbytes / 2**20:.2f} MiB")
    rng = np.random.default_rng(1)
    x = rng.standard_normal((options.tokens, parts[0].k)).astype(np.float32)
    results: dict[str, Floats] = {}
    for backend in backends:
        try:
            block = Block(parts, backend, options.tokens, options.numerics)
        except tosavk.Error as error:
            print(f"{backend}: {error}", file=sys.stderr)
            return 2
        results[backend] = block.run(x)
        speed = tokens_per_second(partial(block.run, x), options.tokens)
        print(f"{backend}: {block.device}, {block.layers[0].kernel}")
        print(f"  {speed:.1f} tokens a second")
        block.close()
    return judge(results, strict=options.numerics == "strict")


def judge(results: dict[str, Floats], *, strict: bool) -> int:
    """Compares every result with the first and prints the verdict."""
    (first, expected), *others = results.items()
    if not others:
        print("verdict: none, there is one backend only")
        return 0
    agreed = True
    for backend, result in others:
        error = float(np.linalg.norm(result - expected) / np.linalg.norm(expected))
        same = bool((result == expected).all())
        agreed &= error <= (1e-5 if strict else 1e-2)
        print(
            f"{backend} and {first}: "
            + ("the same bits" if same else f"relative error {error:.2e}")
        )
    print("verdict: agreed" if agreed else "verdict: different")
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
