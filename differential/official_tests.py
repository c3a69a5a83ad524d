"""The official TOSA tests: folders with a `desc.json`, a program and its inputs.

Only descriptions in the form that TOSA's own test generator writes are read, and only
files inside the test's folder.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.reference import Expected
from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument
from tosavk.differential import rules
from tosavk.differential.compliance import Absolute
from tosavk.differential.rules import Kind, Rule

Array = NDArray[Any]

DESCRIPTION = "desc.json"


@dataclass(frozen=True, slots=True)
class OfficialTest:
    """One official test.

    Attributes:
        folder: where it is.
        name: its name.
        operator: the operator that it is about, in TOSA's lower-case spelling.
        program: name of the program file.
        inputs: file of each graph input, by name.
        outputs: names of the graph outputs that are judged.
        must_fail: whether the program must be refused.
        compliance: rule of each output by name, as the description states it.
    """

    folder: Path
    name: str
    operator: str
    program: str
    inputs: dict[str, str]
    outputs: tuple[str, ...]
    must_fail: bool
    compliance: dict[str, dict[str, Any]]

    def program_bytes(self) -> bytes:
        """The TOSA program.

        Raises:
            InvalidArgument: it cannot be read.
        """
        path = self._file(self.program)
        try:
            return path.read_bytes()
        except OSError as error:
            raise InvalidArgument(
                f"{path} cannot be read: {error.strerror or error}"
            ) from error

    def arrays(self) -> dict[str, Array]:
        """The inputs by name, as the official tools store them.

        Raises:
            InvalidArgument: one cannot be read.
        """
        found: dict[str, Array] = {}
        for name, file in self.inputs.items():
            try:
                found[name] = np.load(self._file(file), allow_pickle=False)
            except (ValueError, EOFError, OSError) as error:
                raise InvalidArgument(
                    f"{self.folder / file} is no array: {error}"
                ) from error
        return found

    def rule(self, output: str, expected: Expected) -> tuple[Rule, Array | None]:
        """The rule that the description states for an output, and its bound.

        Raises:
            InvalidArgument: it states none, or one of an unknown form.
        """
        try:
            return stated_rule(self.compliance[output], expected)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidArgument(
                f"{self.folder / DESCRIPTION} states no known rule for the output "
                f"{output!r}: {type(error).__name__}: {error}"
            ) from error

    def _file(self, name: str) -> Path:
        path = self.folder / name
        if Path(name).name != name or not path.is_file():
            raise InvalidArgument(f"{self.folder}: there is no file {name!r}")
        return path


def find_tests(roots: list[Path]) -> Iterator[Path]:
    """Every folder below `roots` that has a description, sorted.

    Raises:
        InvalidArgument: a root is no folder.
    """
    for root in roots:
        if not root.is_dir():
            raise InvalidArgument(f"{str(root)!r} is no folder")
        yield from sorted(path.parent for path in root.rglob(DESCRIPTION))


def read_test(folder: Path) -> OfficialTest:
    """Reads a test's description.

    Raises:
        InvalidArgument: it is not of the known form.
    """
    path = folder / DESCRIPTION
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        meta = data.get("meta", {})
        return OfficialTest(
            folder=folder,
            name=folder.name,
            operator=_operator(data, folder),
            program=str(data["tosa_file"]),
            inputs=dict(zip(data["ifm_name"], data["ifm_file"], strict=True)),
            outputs=tuple(map(str, data["ofm_name"])),
            must_fail=bool(data["expected_failure"]),
            compliance=dict(meta.get("compliance", {}).get("tensors", {})),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(
            f"{path} is no description of an official test: "
            f"{type(error).__name__}: {error}"
        ) from error


def _operator(data: dict[str, Any], folder: Path) -> str:
    details: dict[str, Any] = data.get("test_details") or {}
    return str(details.get("operator") or folder.parent.name).lower()


def stated_rule(
    stated: dict[str, Any], expected: Expected
) -> tuple[Rule, Array | None]:
    """The rule of a description in our terms, with the bound that it takes.

    Raises:
        InvalidArgument: the rule is unknown.
    """
    dtype = DType[stated["data_type"]]
    bound = expected.bound
    make = functools.partial(Rule, dtype=dtype)
    match stated["mode"]:
        case "EXACT":
            return rules.exact(dtype), None
        case "ULP":
            info = stated["ulp_info"]
            return rules.ulp(dtype, info["ulp"], lower=info.get("ulp_lower")), None
        case "DOT_PRODUCT":
            info = stated["dot_product_info"]
            return (
                make(
                    Kind.DOT_PRODUCT,
                    terms=info["ksb"],
                    limit=info["abs_bound"],
                    variance=info["variance_error_bound"],
                    unbiased=3 <= info["s"] <= 5,
                ),
                bound,
            )
        case "FP_SPECIAL":
            return rules.special(dtype), bound
        case "REDUCE_PRODUCT":
            return make(Kind.PRODUCT, terms=stated["reduce_product_info"]["n"]), None
        case "ABS_ERROR":
            info = stated.get("abs_error_info", {})
            absolute = Absolute(
                base=info.get("base_bound", 0.0),
                least=info.get("lower_bound", 0.0),
                bound_is_magnitude=info.get("bound_as_magnitude", False),
                divisor=info.get("normal_divisor", 1.0),
                least_error=info.get("max_compare", 0.0),
            )
            return make(Kind.ABSOLUTE, absolute=absolute), bound
        case "MAX_RELATIVE":
            info = stated["max_relative_info"]
            most = np.full(expected.reference.shape, float(info["max"]))
            rule = make(Kind.RELATIVE, ulp=info["ulp_bound"], scale=info["scale"])
            return rule, most
        case "PRECOMPUTED":
            return make(Kind.STATED), bound
        case "RESCALE_INEXACT":
            unsigned = stated["rescale_inexact_info"]["unsigned_data"]
            return make(Kind.RANGE, unsigned=unsigned), bound
        case mode:
            raise InvalidArgument(f"the compliance mode {mode!r} is unknown")
