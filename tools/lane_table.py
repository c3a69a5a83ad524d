"""The lanes: every driver that runs without a GPU, and how it is tried.

A lane has one name, one command (`make lane LANE=name`) and one result, kept in
docs/portability/NAME.json. What cannot run here (a real GPU) is a lane by hand: its
result is written by the person who ran it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """What a lane does."""

    TESTS = "tests"
    COMPILE = "compile"
    LIFECYCLE = "lifecycle"
    HAND = "by hand"


class Home(enum.Enum):
    """Where a lane's driver comes from; the value is the bundle it is unpacked from."""

    SYSTEM = ""
    SWIFTSHADER = "swiftshader"
    DEBIAN_13 = "lavapipe-13"
    UNSTABLE = "lavapipe"
    MOCK = "mock"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane.

    Attributes:
        name: what `make lane LANE=` takes.
        title: the driver, for the table.
        kind: what is done.
        home: where the driver comes from.
        spec: the device for tests.
        family: the GPU that RADV compiles for.
        issues: what is known of this driver, for the table.
    """

    name: str
    title: str
    kind: Kind
    home: Home
    spec: str = ""
    family: str = ""
    issues: str = ""


_LOOPS = "invocations end after 65535 loop iterations: sums are dealt out"
_FLUSH = "flushes subnormal FP32 numbers, as TOSA allows: one expected failure"
_FORK = "a forked child hangs in the exit handlers: it must leave by os._exit"
_UNSTABLE = (
    "flushes subnormal FP32 numbers, as TOSA allows: one expected failure; the data of "
    "its pipeline cache is cut off: not kept; " + _FORK
)


def _pair(name: str, title: str, home: Home, device: str, issues: str) -> list[Lane]:
    """The Vulkan lane and the wgpu lane of one driver."""
    return [
        Lane(name, title, Kind.TESTS, home, f"vulkan:{device}", issues=issues),
        Lane(
            f"wgpu-{name}",
            f"wgpu on {title}",
            Kind.TESTS,
            home,
            f"wgpu:{device}",
            issues=issues,
        ),
    ]


FAMILIES = ("polaris10", "vega10", "navi10", "navi21", "navi31")

LANES: tuple[Lane, ...] = (
    *_pair(
        "lavapipe-12", "lavapipe of Debian 12", Home.SYSTEM, "llvmpipe", issues=_LOOPS
    ),
    *_pair(
        "lavapipe-13",
        "lavapipe of Debian 13",
        Home.DEBIAN_13,
        "llvmpipe",
        issues=_FORK,
    ),
    *_pair(
        "lavapipe-unstable",
        "lavapipe of Debian unstable",
        Home.UNSTABLE,
        "llvmpipe",
        issues=_UNSTABLE,
    ),
    *_pair(
        "swiftshader",
        "SwiftShader of Debian's chromium",
        Home.SWIFTSHADER,
        "SwiftShader",
        issues=_FLUSH,
    ),
    *(
        Lane(
            f"radv-{family}",
            f"RADV, {family}",
            Kind.COMPILE,
            Home.DEBIAN_13,
            family=family,
            issues="no memory: pipelines are compiled, nothing is run",
        )
        for family in FAMILIES
    ),
    Lane(
        "mock",
        "mock ICD of Debian's chromium",
        Kind.LIFECYCLE,
        Home.MOCK,
        issues="computes nothing: only lives of objects are tried",
    ),
    Lane(
        "h200",
        "NVIDIA H200, Vulkan and wgpu",
        Kind.HAND,
        Home.ELSEWHERE,
        "vulkan:NVIDIA",
        issues="flushes subnormal FP32 numbers, as TOSA allows: two expected failures; "
        "its cache of shaders does not look at flags; can be loaded some thirty times; "
        "forks; SHARED memory is slow to read",
    ),
)


def lane(name: str) -> Lane:
    """The lane of a name.

    Raises:
        KeyError: there is none; the message lists the names.
    """
    for each in LANES:
        if each.name == name:
            return each
    names = ", ".join(each.name for each in LANES)
    raise KeyError(f"no lane {name!r}: there are {names}")
