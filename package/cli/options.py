"""Options and values that several commands share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tosavk.core.errors import InvalidArgument


def add_model(parser: argparse.ArgumentParser) -> None:
    """MODEL and --shape."""
    parser.add_argument("model", metavar="MODEL", help="a TOSA flatbuffer (.tosa)")
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1x2x3",
        help="shape of an input whose dimensions the file leaves open (repeatable)",
    )


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """--input and --seed."""
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=F.npy",
        help="array for an input (repeatable); the others are random",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the random inputs (default 0)",
    )


def add_numerics(parser: argparse.ArgumentParser) -> None:
    """--numerics."""
    parser.add_argument(
        "--numerics",
        choices=("strict", "fast"),
        default="strict",
        help="strict: the same bits on every IEEE device (default)",
    )


def parse_shapes(items: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shapes given as NAME=1x2x3.

    Raises:
        InvalidArgument: an item is not of that form.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for item in items:
        name, equals, dims = item.rpartition("=")
        try:
            shape = tuple(int(d) for d in dims.split("x")) if dims else ()
        except ValueError:
            shape = (0,)
        if not equals or not name or any(d < 1 for d in shape):
            raise InvalidArgument(
                f"--shape {item!r} is not of the form NAME=1x2x3 with positive numbers"
            )
        shapes[name] = shape
    return shapes


def read_inputs(items: Sequence[str]) -> dict[str, NDArray[np.generic]]:
    """The arrays given as NAME=F.npy.

    Raises:
        InvalidArgument: an item is not of that form, or the file is no plain array.
    """
    arrays: dict[str, NDArray[np.generic]] = {}
    for item in items:
        name, equals, path = item.partition("=")
        if not equals or not name or not path:
            raise InvalidArgument(f"--input {item!r} is not of the form NAME=F.npy")
        try:
            arrays[name] = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InvalidArgument(
                f"--input {item!r}: cannot read an array from {path!r}: {error}"
            ) from error
    return arrays


def write_json(target: str, document: Mapping[str, object]) -> None:
    """Writes a JSON document to a file, or to standard output for "-".

    Raises:
        InvalidArgument: the file cannot be written.
    """
    text = json.dumps(document, indent=2)
    if target == "-":
        print(text)  # noqa: T201
        return
    write_text(target, text + "\n")


def write_text(target: str, text: str) -> None:
    """Writes a text file, making its folder.

    Raises:
        InvalidArgument: the file cannot be written.
    """
    path = Path(target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(
            f"cannot write {target!r}: {error.strerror or error}"
        ) from error
