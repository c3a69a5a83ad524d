"""`tosavk run`: run a model once and save or show its outputs."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tosavk.cli import options as shared
from tosavk.core.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

    from tosavk.backends.session import TensorSpec
    from tosavk.cli.types import Subparsers

_LONGEST_NAME = 100


def add_parser(commands: Subparsers) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "run",
        help="run a model on one device",
        description="Run a model once on one device, and show or save its outputs.",
        allow_abbrev=False,
    )
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
    parser.add_argument(
        "--op-by-op",
        action="store_true",
        help="submit every operator on its own: slow; names the operator at which a "
        "device is lost",
    )
    parser.add_argument(
        "--timeout",
        type=shared.whole_number,
        default=0,
        metavar="S",
        help="seconds that a run (with --op-by-op: an operator) may take; 0: any time "
        "(default)",
    )
    parser.set_defaults(function=main)


def main(options: argparse.Namespace) -> int:
    """Runs the model."""
    from tosavk.backends.registry import open_accelerator, parse_spec
    from tosavk.backends.session import load_on, parse_numerics, read_model, tensor_spec
    from tosavk.cli.progress import steps
    from tosavk.differential.generators import Style, generate
    from tosavk.differential.inputs import fill_inputs
    from tosavk.lowering.program import load_graph

    parse_spec(options.backend)
    shapes = shared.parse_shapes(options.shape)
    folder = Path(options.output_dir) if options.output_dir else None
    with steps("reading the model") as step:
        begin = time.perf_counter()
        shared.load_custom(options.custom)
        graph = load_graph(read_model(options.model), shapes=shapes)
        block = graph.main
        specs = [tensor_spec(block.tensors[name]) for name in block.inputs]
        paths = shared.parse_inputs(options.input, block.inputs)
        arrays = shared.read_arrays(paths)
        for name in block.inputs:
            if name not in arrays:
                # As the first run of `diff`: nothing that an operator must not be given.
                arrays[name] = generate(
                    block, name, style=Style.UNIFORM, seed=options.seed, restrict=True
                )
        inputs = fill_inputs(specs, arrays, seed=options.seed)
        if folder is not None:
            shared.make_folder(folder)
        step(f"opening {options.backend}")
        accelerator = open_accelerator(options.backend)
        step(f"loading on {accelerator.name}")
        numerics = parse_numerics(options.numerics)

        def compiling(done: int, of: int) -> None:
            step(f"compiling pipeline {min(done + 1, of)} of {of}")

        device = accelerator.name
        limit = float(options.timeout) or None
        outputs = [tensor_spec(block.tensors[name]) for name in block.outputs]
        if options.op_by_op:
            from tosavk.backends.steps import run_by_operators

            loaded = time.perf_counter()
            with accelerator:
                result = run_by_operators(
                    accelerator,
                    graph,
                    inputs,
                    numerics=numerics,
                    timeout_s=limit,
                    progress=step,
                )
            done = time.perf_counter()
        else:
            with load_on(
                accelerator, graph, numerics=numerics, progress=compiling
            ) as program:
                loaded = time.perf_counter()
                step(f"running on {device}")
                result = program.run(inputs, timeout_s=limit)
                done = time.perf_counter()
    files = {} if folder is None else save(folder, result)
    _show(options, device, (loaded - begin, done - loaded), outputs, result, files)
    return 0


def _show(
    options: argparse.Namespace,
    device: str,
    times: tuple[float, float],
    outputs: Iterable[TensorSpec],
    result: Mapping[str, NDArray[np.generic]],
    files: Mapping[str, Path],
) -> None:
    from tosavk.cli.console import (
        TITLE,
        Column,
        dims,
        out,
        say,
        seconds,
        show_table,
    )

    console: Console = out()
    say(console, f"{Path(options.model).name} on {options.backend}", TITLE)
    say(console, f"  {device}")
    say(console, f"  loaded in {seconds(times[0])}, first run {seconds(times[1])}")
    console.print()
    specs = {spec.name: spec for spec in outputs}
    show_table(
        console,
        (
            Column("output", least=12),
            Column("type"),
            Column("shape"),
            Column("min", right=True),
            Column("max", right=True),
            Column("mean", right=True),
            Column(""),
        ),
        [
            (name, spec.dtype.name, dims(spec.shape), *_statistics(result[name]))
            for name, spec in specs.items()
        ],
    )
    for path in files.values():
        say(console, f"saved {path}")


def _statistics(array: NDArray[np.generic]) -> tuple[str, str, str, str]:
    """Smallest, largest and mean finite value, and what is not finite."""
    import numpy as np

    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    odd = [
        f"{count} {name}"
        for name, count in (
            ("NaN", np.count_nonzero(np.isnan(wide))),
            ("infinite", np.count_nonzero(np.isinf(wide))),
        )
        if count
    ]
    if not finite.size:
        return "-", "-", "-", ", ".join(odd)
    numbers = (finite.min(), finite.max(), finite.mean())
    low, high, mean = (f"{number:.6g}" for number in numbers)
    return low, high, mean, ", ".join(odd)


def save(folder: Path, result: Mapping[str, NDArray[np.generic]]) -> dict[str, Path]:
    """Saves outputs as NumPy files.

    Args:
        folder: exists.
        result: arrays by output name.

    Returns:
        Where each output went.

    Raises:
        InvalidArgument: a file cannot be written.
    """
    import numpy as np

    paths = {name: folder / file for name, file in file_names(result).items()}
    for name, path in paths.items():
        try:
            np.save(path, result[name])
        except OSError as error:
            raise InvalidArgument(
                f"cannot write {str(path)!r}: {error.strerror or error}"
            ) from error
    return paths


def file_names(names: Iterable[str]) -> dict[str, str]:
    """File names for tensors: inside the folder, and each another.

    Names come from an untrusted file, so only letters, digits and `._-` are kept; and
    where that makes two the same (also in a file system that ignores case), a number
    is added.
    """
    taken: set[str] = set()
    found: dict[str, str] = {}
    for name in names:
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:_LONGEST_NAME]
        safe = candidate = safe or "output"
        number = 1
        while candidate.casefold() in taken:
            number += 1
            candidate = f"{safe}-{number}"
        taken.add(candidate.casefold())
        found[name] = f"{candidate}.npy"
    return found
