"""Cases and findings as files.

A case is a folder: `model.tosa`, one `.npy` for each input and sample, `build.py` that
makes the program again, and `finding.json`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tosavk.core.dtypes import coerce
from tosavk.core.errors import InvalidArgument, Unsupported
from tosavk.differential.fuzz.case import Case
from tosavk.differential.fuzz.script import canonical, script
from tosavk.lowering.program import load_graph
from tosavk.lowering.tosa.reader import read_graph
from tosavk.lowering.tosa.writer import write_graph

Array = NDArray[np.generic]

MODEL = "model.tosa"
SCRIPT = "build.py"
FINDING = "finding.json"
ORIGINAL = "original.tosa"


def input_file(position: int, sample: int) -> str:
    """The file of an input; names of inputs may be no names of files."""
    return f"input{position}-{sample}.npy"


def original_input_file(position: int, sample: int) -> str:
    """The file of an input of the program as it was made."""
    return f"original-{input_file(position, sample)}"


def write_original(folder: Path, data: bytes, case: Case) -> None:
    """Writes a program as it was made, with its inputs."""
    (folder / ORIGINAL).write_bytes(data)
    for number, sample in enumerate(case.samples):
        for position, name in enumerate(case.graph.main.inputs):
            _save(folder / original_input_file(position, number), sample[name])


def write_case(
    folder: Path,
    case: Case,
    *,
    title: str,
    about: Mapping[str, object],
    scripted: bool = True,
) -> None:
    """Writes a case.

    Args:
        folder: made if it is not there; files of an earlier case in it are replaced.
        case: the case.
        title: what it is, in one line.
        about: what goes into `finding.json` besides.
        scripted: write the script too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("input*-*.npy"):
        old.unlink()
    graph = canonical(case.graph)
    block = graph.main
    (folder / MODEL).write_bytes(write_graph(graph))
    for number, sample in enumerate(case.samples):
        for position, name in enumerate(block.inputs):
            _save(folder / input_file(position, number), sample[name])
    (folder / SCRIPT).unlink(missing_ok=True)
    if scripted:
        with contextlib.suppress(Unsupported):
            text = script(graph, title=title)
            (folder / SCRIPT).write_text(text, encoding="utf-8")
    document = {
        "format": "tosavk.case",
        "version": 1,
        "title": title,
        "inputs": list(block.inputs),
        "samples": len(case.samples),
        "segment_bytes": case.segment_bytes,
        **about,
    }
    text = json.dumps(document, indent=2, allow_nan=False)
    (folder / FINDING).write_text(text + "\n", encoding="utf-8")


def read_case(folder: Path) -> Case:
    """Reads a case that `write_case` wrote.

    Raises:
        InvalidArgument: a file is missing or broken.
    """
    try:
        document = json.loads((folder / FINDING).read_text("utf-8"))
        graph = load_graph(read_graph((folder / MODEL).read_bytes()))
        tensors = graph.main.tensors
        samples = tuple(
            {
                name: coerce(
                    name,
                    tensors[name].dtype,
                    np.load(folder / input_file(position, number), allow_pickle=False),
                    canonical_bool=False,
                )
                for position, name in enumerate(graph.main.inputs)
            }
            for number in range(int(document["samples"]))
        )
        segment = document["segment_bytes"]
        return Case(graph, samples, None if segment is None else int(segment))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"{folder} holds no case: {error}") from error


def write_outputs(
    folder: Path, outputs: Mapping[str, Sequence[Mapping[str, Array]]]
) -> list[str]:
    """Writes what a program gave, as `outputP-S.npy`: position and sample.

    Args:
        folder: made if it is not there.
        outputs: by label and sample; of one backend.

    Returns:
        The names of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    for samples in outputs.values():
        for number, sample in enumerate(samples):
            for position, array in enumerate(sample.values()):
                names.append(f"output{position}-{number}.npy")
                _save(folder / names[-1], array)
    return names


def _save(path: Path, array: Array) -> None:
    """Writes an array; types that NumPy does not have, as their bits."""
    if array.dtype.kind == "V" or array.dtype.isbuiltin != 1:
        array = array.view(f"u{array.dtype.itemsize}")
    np.save(path, array, allow_pickle=False)


class FolderStore:
    """What a reduction knows, in a folder: it goes on after an interruption.

    Args:
        folder: for the smallest case and the list of what was tried.
        title: of the case.
    """

    def __init__(self, folder: Path, *, title: str) -> None:
        """Reads what an earlier reduction left."""
        self._folder = folder
        self._title = title
        self._log = folder / "tried.txt"
        self._known: dict[str, bool] = {}
        if self._log.exists():
            for line in self._log.read_text("utf-8").splitlines():
                digest, _, shows = line.partition(" ")
                if shows in ("yes", "no"):
                    self._known[digest] = shows == "yes"

    def known(self, digest: str) -> bool | None:
        """What trying a case gave, if it was tried."""
        return self._known.get(digest)

    def note(self, digest: str, *, shows: bool) -> None:
        """Remembers what trying a case gave."""
        self._known[digest] = shows
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{digest} {'yes' if shows else 'no'}\n")

    def best(self, case: Case) -> None:
        """Keeps the smallest case so far."""
        write_case(self._folder, case, title=self._title, about={})

    def resumed(self) -> Case | None:
        """The smallest case of an earlier reduction, if there was one."""
        if not (self._folder / FINDING).exists():
            return None
        return read_case(self._folder)
