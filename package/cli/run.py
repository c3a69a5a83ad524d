"""`tosavk run`: run a model once and save or show its outputs."""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from tosavk.backends.session import load
from tosavk.cli import options as shared
from tosavk.cli.console import out, steps
from tosavk.core.errors import InvalidArgument
from tosavk.differential.inputs import fill_inputs

if TYPE_CHECKING:
    from tosavk.cli.types import Subparsers


def add_parser(commands: Subparsers) -> None:
    """Adds the command."""
    parser = commands.add_parser("run", help="run a model on one device")
    shared.add_model(parser)
    parser.add_argument(
        "--backend",
        default="vulkan",
        metavar="S",
        help="backend specification, such as vulkan:llvmpipe (default vulkan)",
    )
    shared.add_inputs(parser)
    shared.add_numerics(parser)
    parser.add_argument(
        "--output-dir", metavar="D", help="save every output as D/NAME.npy"
    )
    parser.set_defaults(function=main)


def main(options: argparse.Namespace) -> int:
    """Runs the model."""
    given = shared.read_inputs(options.input)
    shapes = shared.parse_shapes(options.shape)
    with steps("loading") as step:
        start = time.perf_counter()
        session = load(
            options.model,
            backend=options.backend,
            shapes=shapes,
            numerics=options.numerics,
        )
        with session:
            loaded = time.perf_counter()
            inputs = fill_inputs(session.inputs, given, seed=options.seed)
            step("running")
            result = session.run(inputs)
            done = time.perf_counter()
            name = session.device_name
    console = out()
    console.print(
        f"{name}: loaded in {loaded - start:.3f} s, first run {done - loaded:.3f} s"
    )
    console.print(_table(result))
    if options.output_dir:
        _save(Path(options.output_dir), result)
        console.print(f"outputs saved in {options.output_dir}")
    return 0


def _table(result: dict[str, NDArray[np.generic]]) -> Table:
    table = Table()
    for column in ("output", "type", "shape", "min", "max", "mean"):
        table.add_column(column, overflow="fold")
    for name, array in result.items():
        wide = array.astype(np.float64)
        table.add_row(
            name,
            str(array.dtype),
            "x".join(map(str, array.shape)) or "scalar",
            f"{wide.min():.6g}",
            f"{wide.max():.6g}",
            f"{wide.mean():.6g}",
        )
    return table


def _save(folder: Path, result: dict[str, NDArray[np.generic]]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in result.items():
            # Names come from an untrusted file: they must not leave the folder.
            safe = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "output"
            np.save(folder / f"{safe}.npy", array)
    except OSError as error:
        raise InvalidArgument(
            f"cannot write outputs to {str(folder)!r}: {error.strerror or error}"
        ) from error
