"""The standard fixture: small TOSA programs for any implementation that takes TOSA."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tosavk.core.descriptors import FORMAT_TOSA, AccessMode, Artifact
from tosavk.core.dtypes import DType
from tosavk.lowering.target import Extension, Level, Profile, Target
from tosavk.lowering.tosa.builder import Builder
from tosavk.testing.fixture import BindingFixture, Fixture, ProgramFixture

Floats = NDArray[np.float32]

ELEMENTS = 65
VARIANTS = 6


def artifact(builder: Builder) -> Artifact:
    """An artifact of what a builder holds, for TOSA 1.0, FP32."""
    target = Target((1, 0, 0), Profile.FLOATING_POINT, Level.EIGHT_K, Extension(0))
    return Artifact(FORMAT_TOSA, target.words(), builder.build())


def standard_fixture() -> Fixture:
    """FP32 IDENTITY, a BOOL output of five bytes, and a chain over an arena.

    The programs move data, compare, add and negate small whole numbers, so the expected
    bytes are exact on every device.
    """
    return Fixture(
        program=_identity(),
        packed=_packed(),
        overlapping=_chains(),
        sharing=_chain(_chain_artifact(), _ramp(3), _ramp(3)),
    )


def _identity() -> ProgramFixture:
    builder = Builder()
    builder.output(builder.identity(builder.input("x", DType.FP32, (1,))))
    value = np.array([13.5], np.float32).tobytes()
    return ProgramFixture(
        artifact(builder),
        (
            BindingFixture(slot=0, access=AccessMode.READ, initial=value),
            BindingFixture(
                slot=1, access=AccessMode.WRITE, initial=b"\xa5" * 4, expected=value
            ),
        ),
    )


def _packed() -> ProgramFixture:
    builder = Builder()
    a = builder.input("a", DType.FP32, (5,))
    b = builder.input("b", DType.FP32, (5,))
    builder.output(builder.greater(a, b))
    left = np.array([0, 1, 2, 3, 4], np.float32)
    right = np.array([1, 1, 1, 1, 1], np.float32)
    return ProgramFixture(
        artifact(builder),
        (
            BindingFixture(slot=0, access=AccessMode.READ, initial=left.tobytes()),
            BindingFixture(slot=1, access=AccessMode.READ, initial=right.tobytes()),
            BindingFixture(
                slot=2,
                access=AccessMode.WRITE,
                initial=b"\xa5" * 5,
                expected=(left > right).tobytes(),
            ),
        ),
    )


def _chain_artifact() -> Artifact:
    """y = -((a + b) + a) - (a + b): the sums are intermediates in an arena."""
    builder = Builder()
    a = builder.input("a", DType.FP32, (ELEMENTS,))
    b = builder.input("b", DType.FP32, (ELEMENTS,))
    first = builder.add(a, b)
    second = builder.add(first, a)
    third = builder.negate(second)
    builder.output(builder.sub(third, first))
    return artifact(builder)


def _ramp(start: int) -> Floats:
    return np.arange(start, start + ELEMENTS, dtype=np.float32)


def _chains() -> tuple[ProgramFixture, ...]:
    made = _chain_artifact()
    return tuple(
        _chain(made, _ramp(100 * number), _ramp(-7 * number))
        for number in range(VARIANTS)
    )


def _chain(
    made: Artifact,
    a: Floats,
    b: Floats,
) -> ProgramFixture:
    result = -((a + b) + a) - (a + b)
    return ProgramFixture(
        made,
        (
            BindingFixture(slot=0, access=AccessMode.READ, initial=a.tobytes()),
            BindingFixture(slot=1, access=AccessMode.READ, initial=b.tobytes()),
            BindingFixture(
                slot=2,
                access=AccessMode.WRITE,
                initial=b"\xa5" * a.nbytes,
                expected=result.astype(np.float32).tobytes(),
            ),
        ),
    )
