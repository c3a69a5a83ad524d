"""Options and values that several commands share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tosavk.core.errors import InvalidArgument
from tosavk.core.switches import SWITCHES, VARIABLE, environment_switches

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console


def add_model(parser: argparse.ArgumentParser) -> None:
    """MODEL, --shape and --custom."""
    parser.add_argument("model", metavar="MODEL", help="a TOSA flatbuffer (.tosa)")
    add_shapes(parser)
    parser.add_argument(
        "--custom",
        action="append",
        default=[],
        metavar="M",
        help="import this module or file (ops, ops.py, ops:registry), which gives "
        "CUSTOM operators their meaning; its code runs (repeatable)",
    )


def add_shapes(parser: argparse.ArgumentParser) -> None:
    """--shape."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1x2x3",
        help="shape of an input whose dimensions the file leaves open (repeatable)",
    )


def load_custom(names: Sequence[str]) -> None:
    """Imports what --custom names.

    Raises:
        InvalidArgument: it cannot be imported, or registers nothing.
    """
    if names:
        from tosavk.lowering.custom import custom

        for name in names:
            custom.load(name)


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """--input and --seed."""
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=F.npy",
        help="array for an input (repeatable); the others are random",
    )
    add_seed(parser, "the random inputs")


def add_seed(parser: argparse.ArgumentParser, what: str) -> None:
    """--seed, of what is random."""
    parser.add_argument(
        "--seed",
        type=whole_number,
        default=0,
        metavar="N",
        help=f"seed of {what} (default 0)",
    )


def add_programs(
    parser: argparse.ArgumentParser, name: str, *, where: str = "", count: int
) -> None:
    """How many random programs there are, and --start.

    Args:
        parser: gets the options.
        name: of the option that says how many.
        where: they run, for the help.
        count: how many without it.
    """
    parser.add_argument(
        name,
        type=whole_number,
        default=count,
        metavar="N",
        help=f"how many random programs{where} (default {count})",
    )
    parser.add_argument(
        "--start",
        type=whole_number,
        default=0,
        metavar="I",
        help="number of the first one (default 0)",
    )


def add_numerics(parser: argparse.ArgumentParser) -> None:
    """--numerics."""
    parser.add_argument(
        "--numerics",
        choices=("strict", "fast"),
        default="strict",
        help="strict: the same bits on every IEEE device (default); fast: within "
        "TOSA's error bounds",
    )


def add_process(parser: argparse.ArgumentParser, *, limit_s: int = 60) -> None:
    """--timeout and --in-process, of what runs drivers in processes of their own."""
    add_timeout(parser, limit_s=limit_s)
    parser.add_argument(
        "--in-process",
        action="store_true",
        help="run all in this process: a driver that crashes or hangs takes it along",
    )


def add_timeout(parser: argparse.ArgumentParser, *, limit_s: int) -> None:
    """--timeout."""
    parser.add_argument(
        "--timeout",
        type=whole_number,
        default=limit_s,
        metavar="S",
        help="seconds without a sign of life after which a backend counts as hanging "
        f"and is ended; 0: never (default {limit_s})",
    )


def parse_shapes(items: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shapes given as NAME=1x2x3.

    Raises:
        InvalidArgument: an item is not of that form, or a name comes twice.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for item in items:
        name, equals, text = item.rpartition("=")
        numbers = text.split("x") if text else []
        sound = all(n.isascii() and n.isdecimal() and len(n) < 20 for n in numbers)
        shape = tuple(map(int, numbers)) if sound else (0,)
        if not equals or not name or 0 in shape:
            raise InvalidArgument(
                f"--shape {item!r} is not of the form NAME=1x2x3 with positive numbers"
            )
        if name in shapes:
            raise InvalidArgument(f"--shape gives {name!r} twice")
        shapes[name] = shape
    return shapes


def parse_inputs(items: Sequence[str], names: Iterable[str]) -> dict[str, str]:
    """The files given as NAME=F.npy, by input name.

    Args:
        items: as given.
        names: the model's inputs; a name may itself contain an equals sign.

    Raises:
        InvalidArgument: an item is not of that form, or a name comes twice.
    """
    known = sorted(names, key=len, reverse=True)
    paths: dict[str, str] = {}
    for item in items:
        name = next((n for n in known if item.startswith(f"{n}=")), None)
        if name is None:
            name = item.partition("=")[0]
        path = item[len(name) + 1 :]
        if not name or not path:
            raise InvalidArgument(f"--input {item!r} is not of the form NAME=F.npy")
        if name in paths:
            raise InvalidArgument(f"--input gives {name!r} twice")
        paths[name] = path
    return paths


def read_arrays(paths: Mapping[str, str]) -> dict[str, NDArray[np.generic]]:
    """Reads NumPy files.

    Raises:
        InvalidArgument: a file cannot be read, or holds no single plain array.
    """
    import numpy as np

    arrays: dict[str, NDArray[np.generic]] = {}
    for name, path in paths.items():
        try:
            loaded = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError, MemoryError, OverflowError) as error:
            raise InvalidArgument(
                f"input {name!r}: cannot read an array from {path!r}: "
                f"{unread_reason(error)}"
            ) from error
        if not isinstance(loaded, np.ndarray):
            raise InvalidArgument(
                f"input {name!r}: {path!r} is an archive; give a .npy file of one array"
            )
        array = cast("NDArray[np.generic]", loaded)
        arrays[name] = array.astype(array.dtype.newbyteorder("="), copy=False)
    return arrays


def unread_reason(error: BaseException) -> str:
    """Why NumPy could not read a file; its advice to unpickle is left out."""
    text = getattr(error, "strerror", None) or " ".join(str(error).split())
    if "pickle" in text:
        return "it holds no plain numbers as numpy.save writes them"
    return text


def check_writable(target: str | None) -> None:
    """Checks before long work that a file can be written after it.

    Raises:
        InvalidArgument: it is a folder, or its folder cannot be made.
    """
    if not target or target == "-":
        return
    path = Path(target)
    if path.is_dir():
        raise InvalidArgument(f"cannot write {target!r}: it is a folder")
    make_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Makes a folder with its parents.

    Raises:
        InvalidArgument: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(
            f"cannot make the folder {str(folder)!r}: {error.strerror or error}"
        ) from error


def write_json(target: str, document: Mapping[str, object]) -> None:
    """Writes a JSON document to a file, or to standard output for "-".

    Raises:
        InvalidArgument: the file cannot be written.
    """
    import json

    text = json.dumps(plain(document), indent=2, allow_nan=False)
    if target == "-":
        print(text, flush=True)  # noqa: T201
        return
    write_text(target, text + "\n")


def plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """The value with what JSON has no number for as text: NaN, Infinity, -Infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return {key: plain(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("Sequence[object]", value)]
    return value


def write_text(target: str, text: str) -> None:
    """Writes a text file, making its folder.

    Raises:
        InvalidArgument: the file cannot be written.
    """
    path = Path(target)
    make_folder(path.parent)
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise InvalidArgument(
            f"cannot write {target!r}: {error.strerror or error}"
        ) from error


def show_switches(console: Console) -> None:
    """Says what TOSAVK_DISABLE leaves alone, if anything."""
    from tosavk.cli.console import say

    for name in sorted(environment_switches()):
        say(console, f"switched off by {VARIABLE}: {name}, {SWITCHES[name]}")


def whole_number(text: str) -> int:
    """A number from 0 on, for argparse."""
    if not (text.isascii() and text.isdecimal() and len(text) < 40):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)
