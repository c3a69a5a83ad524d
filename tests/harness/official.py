"""The official TOSA verifier and reference results, where they are there.

Environment:
    TOSAVK_TOSA_TOOLS: a virtual environment with the package tosa-tools (it pins its
        own NumPy, so it cannot share ours). Its verifier is a plain C library and is
        loaded from here with ctypes.
"""

import ctypes
import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import shared

Array = NDArray[Any]

# tosa_datatype_t of the verifier; float64 stands for a precise reference.
_TYPES = {
    "BF16": 0,
    "BOOL": 1,
    "FP16": 2,
    "FP32": 3,
    "INT16": 4,
    "INT32": 5,
    "INT48": 6,
    "INT4": 7,
    "INT8": 8,
    "SHAPE": 11,
    "FP8E4M3": 12,
    "FP8E5M2": 13,
}
_FLOAT64 = 99


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int32)),
        ("num_dims", ctypes.c_int32),
        ("data_type", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
    )


def _library_path() -> Path | None:
    root = os.environ.get("TOSAVK_TOSA_TOOLS")
    if not root:
        return None
    name = "libtosa_reference_verify_lib.so"
    return next(
        Path(root).glob(f"lib/*/site-packages/tosa_reference_model/{name}"), None
    )


def missing() -> str:
    """Says why the official verifier cannot be used, or returns an empty text."""
    if _library_path() is None:
        return "no tosa-tools (set TOSAVK_TOSA_TOOLS to a virtual environment with it)"
    return shared.missing("tosa", "corpus")


@functools.cache
def _verify_function() -> Any:  # noqa: ANN401 - a foreign function
    path = _library_path()
    assert path is not None, missing()
    function = ctypes.CDLL(str(path)).tvf_verify_data
    function.restype = ctypes.c_bool
    function.argtypes = [ctypes.POINTER(_Tensor)] * 3 + [ctypes.c_char_p]
    return function


@dataclass(frozen=True, slots=True)
class Result:
    """One expected result of an official test.

    Attributes:
        name: name of the output tensor.
        reference: float64 for floats, else as the official tools write it.
        bound: what the rule needs besides, or None.
        compliance: the test's compliance section: what the verifier reads.
    """

    name: str
    reference: Array
    bound: Array | None
    compliance: dict[str, Any]

    @property
    def rule(self) -> dict[str, Any]:
        """The rule of this output: mode, type and numbers."""
        rule: dict[str, Any] = self.compliance["tensors"][self.name]
        return rule

    def accepts(self, actual: Array) -> bool:
        """What the official verifier says of `actual`."""
        kind = str(self.rule["data_type"])
        keep: list[object] = []
        tensors = [
            None if array is None else _tensor(self.name, array, kind, keep)
            for array in (self.reference, self.bound, actual)
        ]
        pointers = [None if t is None else ctypes.byref(t) for t in tensors]
        config = json.dumps(self.compliance).encode()
        return bool(_verify_function()(*pointers, config))


def _tensor(name: str, array: Array, kind: str, keep: list[object]) -> _Tensor:
    data = np.asarray(array, order="C")  # ascontiguousarray makes rank 1 of rank 0
    shape = (ctypes.c_int32 * max(data.ndim, 1))(*data.shape)
    keep += [data, shape]
    return _Tensor(
        name.encode(),
        ctypes.cast(shape, ctypes.POINTER(ctypes.c_int32)),
        data.ndim,
        _FLOAT64 if data.dtype == np.float64 else _TYPES[kind],
        data.ctypes.data,
        data.nbytes,
    )


@dataclass(frozen=True, slots=True)
class OfficialTest:
    """An official test that a result is expected of.

    Attributes:
        folder: where it is.
        description: its desc.json.
    """

    folder: Path
    description: dict[str, Any]

    @property
    def program(self) -> bytes:
        """The TOSA file."""
        return (self.folder / "test.tosa").read_bytes()

    def inputs(self) -> dict[str, Array]:
        """The graph inputs by name, in the official NumPy types."""
        names, files = self.description["ifm_name"], self.description["ifm_file"]
        return {
            name: np.load(self.folder / file)
            for name, file in zip(names, files, strict=True)
        }

    def results(self) -> list[Result]:
        """The expected results."""
        found: list[Result] = []
        expect = self.folder / "expect"
        names, files = self.description["ofm_name"], self.description["ofm_file"]
        for name, file in zip(names, files, strict=True):
            bound = expect / f"bounds_{file}"
            found.append(
                Result(
                    name,
                    np.load(expect / file),
                    np.load(bound) if bound.exists() else None,
                    self.description["meta"]["compliance"],
                )
            )
        return found


@functools.cache
def positive_tests(*operators: str) -> tuple[OfficialTest, ...]:
    """The official tests that must succeed, of all operators or of those named."""
    tests: list[OfficialTest] = []
    for folder in shared.conformance_tests(*operators):
        description = json.loads((folder / "desc.json").read_text())
        if not description["expected_failure"]:
            tests.append(OfficialTest(folder, description))
    return tuple(tests)
