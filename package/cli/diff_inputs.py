"""Inputs that `tosavk diff` reads from files: for one run or for many."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tosavk.cli import options as shared
from tosavk.core.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tosavk.differential.request import Given


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--input, --inputs, --samples, --generator and --seed."""
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=F.npy",
        help="array for an input (repeatable; several for one input are several runs)",
    )
    parser.add_argument(
        "--inputs",
        metavar="DIR",
        help="folder of runs: each F.npz in it, by name, has the arrays of one run",
    )
    add_generated(parser)
    shared.add_seed(parser, "the first run's inputs; the next run has the next")


def add_generated(parser: argparse.ArgumentParser) -> None:
    """--samples and --generator."""
    parser.add_argument(
        "--samples",
        type=_positive,
        default=1,
        metavar="N",
        help="runs of a model with different inputs (default: 1, or as many as there "
        "are files)",
    )
    parser.add_argument(
        "--generator",
        choices=("auto", "uniform", "ranges", "cancellation", "specials"),
        default="auto",
        help="how inputs without a file are chosen; auto: by the operators that read "
        "them, uniform values for the first run, then wide ranges, sums that cancel "
        "and special values (default)",
    )


def words(options: argparse.Namespace) -> list[str]:
    """The options, for the command line that repeats a diff."""
    found: list[str] = []
    for item in options.input:
        found += ["--input", item]
    if options.inputs:
        found += ["--inputs", options.inputs]
    if options.samples != 1:
        found += ["--samples", str(options.samples)]
    if options.generator != "auto":
        found += ["--generator", options.generator]
    return [*found, "--seed", str(options.seed)]


def given_runs(
    options: argparse.Namespace, names: Iterable[str]
) -> tuple[Given, tuple[Given, ...]]:
    """Arrays from files: those of every run, and those of single runs.

    Raises:
        InvalidArgument: a file cannot be read, or the numbers of files do not fit.
    """
    from tosavk.differential.request import Given

    paths = _paths(options.input, list(names))
    counts = {name: len(found) for name, found in paths.items() if len(found) > 1}
    if len(set(counts.values())) > 1:
        raise InvalidArgument(
            "--input gives different numbers of files: "
            + ", ".join(f"{count} for {name!r}" for name, count in counts.items())
            + "; give one, or one for each run"
        )
    always = {name: found[0] for name, found in paths.items() if len(found) == 1}
    runs: list[Given] = []
    for number in range(max(counts.values(), default=0)):
        own = {name: paths[name][number] for name in counts}
        runs.append(Given(shared.read_arrays(own), own))
    if options.inputs:
        if runs:
            raise InvalidArgument(
                "--inputs already gives the runs; give no --input several times"
            )
        runs = _folder(Path(options.inputs))
    return Given(shared.read_arrays(always), always), tuple(runs)


def _paths(items: Sequence[str], names: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in items:
        # One at a time, so that a name may come again.
        for name, path in shared.parse_inputs([item], names).items():
            found.setdefault(name, []).append(path)
    return found


def _folder(folder: Path) -> list[Given]:
    """The runs in a folder."""
    from tosavk.differential.request import Given

    if not folder.is_dir():
        raise InvalidArgument(f"--inputs {str(folder)!r}: there is no such folder")
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise InvalidArgument(f"--inputs {str(folder)!r}: there is no .npz file in it")
    runs: list[Given] = []
    for file in files:
        arrays = _read(file)
        runs.append(Given(arrays, dict.fromkeys(arrays, str(file))))
    return runs


def _read(file: Path) -> dict[str, NDArray[np.generic]]:
    import zipfile

    import numpy as np

    try:
        with np.load(file, allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, AttributeError) as error:
        raise InvalidArgument(
            f"cannot read arrays from {str(file)!r}: {shared.unread_reason(error)}"
        ) from error


def _positive(text: str) -> int:
    number = shared.whole_number(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return number
