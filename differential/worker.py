"""The process that a diff starts for each backend: `python -m tosavk.differential.worker`.

It opens the device, maps the model from its file, and answers what `ChildSide` asks.
Tensors go through files in the folder of the diff.
"""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.registry import open_accelerator, parse_spec
from tosavk.core.accelerator import Accelerator
from tosavk.core.errors import InvalidArgument
from tosavk.core.plan import Numerics
from tosavk.differential.arrays import map_file, read_arrays, write_arrays
from tosavk.differential.exceptions import traits
from tosavk.differential.process import Message, Progress, answering
from tosavk.differential.station import Station
from tosavk.lowering.folding import fold
from tosavk.lowering.graph import Graph
from tosavk.lowering.lower import live_operators
from tosavk.lowering.program import load_graph

Array = NDArray[np.generic]

_BEAT_S = 0.5


class Worker:
    """One backend, and what it answers.

    Args:
        closing: gives the device back in the end.
    """

    def __init__(self, closing: ExitStack) -> None:
        """Nothing is open yet."""
        self._closing = closing
        self._constants: dict[str, Array] | None = None
        self._patient = False

    def answer(self, question: Message, progress: Progress) -> Message:
        """Answers a question.

        Raises:
            Error: it cannot be done.
        """
        with _heartbeat(progress) if self._patient else nullcontext():
            return self._answer(question, progress)

    def _answer(self, question: Message, progress: Progress) -> Message:
        match question["do"]:
            case "open":
                return self._open(question, progress)
            case "run":
                return self._run(question, progress)
            case "expose":
                progress("loading with intermediates as outputs")
                self._station.expose(_texts(question["names"]))
                return {}
            case "probe":
                progress("reading intermediates")
                arrays = self._station.probe(self._arrays(question, "inputs"))
                return self._written(question, arrays)
            case "release":
                self._station.close()
                return {}
            case "rerun":
                return self._rerun(question, progress)
            case "traits":
                progress("running the known-answer test")
                return {"traits": sorted(traits(self._accelerator))}
            case other:
                raise InvalidArgument(f"{other!r} is no question")

    def _open(self, question: Message, progress: Progress) -> Message:
        progress("opening the device")
        self._accelerator: Accelerator = self._closing.enter_context(
            open_accelerator(str(question["spec"]))
        )
        progress("reading the model")
        shapes = cast("dict[str, list[int]]", question["shapes"])
        self._graph: Graph = load_graph(
            map_file(Path(str(question["model"]))),
            shapes={name: tuple(shape) for name, shape in shapes.items()},
        )
        # NumPy takes its time with a large model, and is no driver that may hang.
        self._patient = parse_spec(str(question["spec"]))[0] == "reference"
        self._station = Station(
            self._accelerator,
            self._graph,
            numerics=Numerics(str(question["numerics"])),
        )
        self._closing.callback(self._station.close)
        return {"device": self._accelerator.name, "room": self._station.room}

    def _run(self, question: Message, progress: Progress) -> Message:
        ran = self._station.run(
            self._arrays(question, "inputs"),
            repeats=int(str(question["repeats"])),
            progress=progress,
        )
        return {
            **self._written(question, ran.outputs),
            "load_s": ran.load_s,
            "first_s": ran.first_s,
            "steady_s": ran.steady_s,
            "repeatable": ran.repeatable,
        }

    def _rerun(self, question: Message, progress: Progress) -> Message:
        block = self._graph.main
        index = int(str(question["operator"]))
        op = next(op for op in block.operators if op.index == index)
        progress(f"running {op} alone")
        if self._constants is None:
            self._constants = fold(block, live_operators(block))
        operands = self._arrays(question, "operands")
        results = self._station.rerun(op, operands, self._constants)
        return self._written(question, results)

    def _arrays(self, question: Message, what: str) -> dict[str, Array]:
        """Arrays that the one who asks has put into files."""
        folder = Path(str(question[what]))
        names = _texts(question["names"])
        return read_arrays(folder, names, self._graph.main)

    def _written(self, question: Message, arrays: dict[str, Array]) -> Message:
        return {"names": write_arrays(Path(str(question["folder"])), arrays)}


@contextmanager
def _heartbeat(progress: Progress) -> Generator[None]:
    """Says every few seconds that all is well."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(_BEAT_S):
            progress("computing")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def main() -> None:
    """Answers until nobody asks any more."""
    faulthandler.enable()
    with ExitStack() as closing:
        answering(Worker(closing).answer)


def _texts(value: object) -> list[str]:
    return [str(item) for item in cast("list[object]", value)]


if __name__ == "__main__":
    main()
