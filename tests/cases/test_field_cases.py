"""Faults that users of such systems reported, as TOSA programs with right answers.

Each case is a folder with a program, inputs, and either results or the demand that the
program is refused. The folder is optional (harness/shared.py).
"""

import contextlib
import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import devices, shared
from harness.running import Array, Devices, same_values
from tosavk.core.dtypes import DType, coerce
from tosavk.core.errors import InvalidArgument, ModelError
from tosavk.lowering.lower import lower_graph
from tosavk.lowering.program import load_graph

# Valid programs that are not admitted, with what is lacking. The tests compare exactly:
# an entry that is no longer needed fails.
NOT_ADMITTED = {
    "operators of TOSA 1.1": ("D1", "D19_1", "D19_2"),
}
# Tensors beyond a storage buffer of some devices: a typed error is right too.
MAY_EXCEED = {"B1"}


@dataclass(frozen=True, slots=True)
class Case:
    """One case."""

    folder: Path
    description: dict[str, Any]

    @property
    def program(self) -> bytes:
        return (self.folder / "test.tosa").read_bytes()

    @property
    def is_refused(self) -> bool:
        """Whether the only right answer is an error."""
        return bool(self.description["compare"] == "reject")

    def inputs(self) -> dict[str, Array]:
        return {
            entry["name"]: np.load(self.folder / entry["file"])
            for entry in self.description["inputs"]
        }

    def check(self, outputs: dict[str, Array]) -> None:
        """Compares the results as the case asks."""
        how = self.description["compare"]
        for entry in self.description["outputs"]:
            name, dtype = entry["name"], DType[entry["dtype"]]
            actual = outputs[name]
            expected = np.load(self.folder / entry["file"])
            if how == "exact" or not dtype.is_float:
                expected = coerce(name, dtype, expected)
                assert same_values(expected, actual), (name, expected, actual)
                continue
            exact = expected.astype(np.float64)
            unit = np.spacing(np.abs(expected).astype(dtype.numpy)).astype(np.float64)
            allowed = how.get("abs", 0.0) + how.get("ulp", 0.0) * unit
            distance = np.abs(actual.astype(np.float64) - exact)
            assert np.all(distance <= allowed), (name, expected, actual)


@functools.cache
def case(identity: str) -> Case:
    folder = shared.shared_root() / "cases" / "tosa" / identity
    return Case(folder, json.loads((folder / "case.json").read_text()))


def identities() -> list[str]:
    root = shared.shared_root() / "cases" / "tosa"
    return sorted(path.parent.name for path in root.glob("[!_]*/case.json"))


def split() -> tuple[list[str], list[str]]:
    """The cases that must run, and those that must be refused."""
    absent = {name for names in NOT_ADMITTED.values() for name in names}
    runs: list[str] = []
    refused: list[str] = []
    for name in identities():
        if case(name).is_refused:
            refused.append(name)
        elif name not in absent:
            runs.append(name)
    return runs, refused


RUNS, REFUSED = split()


@pytest.mark.parametrize(
    "identity",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in MAY_EXCEED else name
        for name in RUNS
    ],
)
def test_case(opened: Devices, gpu_device: str, identity: str) -> None:
    one = case(identity)
    program, inputs = one.program, one.inputs()
    try:
        outputs = opened.run(gpu_device, program, inputs)
    except ModelError as error:
        if identity in MAY_EXCEED and "maxStorageBufferRange" in str(error):
            return
        if one.description.get("policy") == "reject also allowed":
            return
        raise
    one.check(outputs)


@pytest.mark.parametrize("identity", REFUSED)
def test_refused(opened: Devices, identity: str) -> None:
    """An operator that is not offered would hide that the program is broken."""
    spec = devices.available()[0]
    with pytest.raises(InvalidArgument):
        opened.run(spec, case(identity).program, case(identity).inputs())


def is_admitted(identity: str) -> bool:
    """Whether a case is read and lowered."""
    try:
        lower_graph(load_graph(case(identity).program))
    except ModelError:
        return False
    return True


@pytest.mark.skipif(not RUNS, reason=shared.missing("cases", "tosa"))
def test_what_is_not_admitted() -> None:
    listed = {name for names in NOT_ADMITTED.values() for name in names}
    refused = {name for name in (*RUNS, *listed) if not is_admitted(name)}
    assert refused - MAY_EXCEED == listed


def open_ended() -> list[str]:
    """The cases that TOSA leaves open."""
    root = shared.shared_root() / "cases" / "tosa"
    return sorted(
        f"_unpredictable/{path.parent.name}"
        for path in root.glob("_unpredictable/*/case.json")
    )


@pytest.mark.parametrize("identity", open_ended())
def test_an_open_case_does_no_harm(
    opened: Devices, gpu_device: str, identity: str
) -> None:
    """Any result or an error is right, but the device must live on."""
    one = case(identity)
    with contextlib.suppress(ModelError):
        opened.run(gpu_device, one.program, one.inputs())
    other = case("A13_1")
    other.check(opened.run(gpu_device, other.program, other.inputs()))
