"""Switches: what a device offers and is left alone, since a driver does it wrong.

Set `TOSAVK_DISABLE=no-int8-dot,no-coopmat`, or give names to `tosavk.open` and
`tosavk.load`. Results stay the same within their bounds: other kernels run instead.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterable, Mapping

VARIABLE = "TOSAVK_DISABLE"
"""Environment variable: names of switches, separated by commas."""

COOPMAT = "no-coopmat"
FP16 = "no-fp16"
INT8_DOT = "no-int8-dot"
SUBGROUP = "no-subgroup"
PUSH_DESCRIPTOR = "no-push-descriptor"

SWITCHES: Mapping[str, str] = {
    COOPMAT: "cooperative matrices",
    FP16: "FP16 arithmetic, and with it cooperative matrices of FP16",
    INT8_DOT: "integer dot products",
    SUBGROUP: "subgroup operations, and with them cooperative matrices",
    PUSH_DESCRIPTOR: "push descriptors; this version uses none",
}
"""What each switch leaves out."""


class SwitchWarning(UserWarning):
    """A switch has a name that does not exist."""


class KernelWarning(UserWarning):
    """A kernel gave a wrong answer on a device and is not used there."""


def known_switches(names: str | Iterable[str], *, source: str) -> frozenset[str]:
    """The switches of these names; "int8-dot" is "no-int8-dot" too.

    Args:
        names: as given, in any case of letters; one text may hold several, with commas.
        source: where they come from, for the warning.

    Warns:
        SwitchWarning: there is no such switch; it is ignored.
    """
    found: set[str] = set()
    for name in names.split(",") if isinstance(names, str) else names:
        bare = name.strip().casefold().removeprefix("no-")
        if f"no-{bare}" in SWITCHES:
            found.add(f"no-{bare}")
        elif bare:
            warnings.warn(
                f"{source}: there is no switch {name.strip()!r}, it is ignored; "
                f"there are {', '.join(SWITCHES)}",
                SwitchWarning,
                stacklevel=2,
            )
    return frozenset(found)


def environment_switches(
    environment: Mapping[str, str] | None = None,
) -> frozenset[str]:
    """The switches that `TOSAVK_DISABLE` sets.

    Warns:
        SwitchWarning: it names one that does not exist.
    """
    text = (os.environ if environment is None else environment).get(VARIABLE, "")
    return known_switches(text, source=VARIABLE) if text else frozenset()


def switched_off(switches: Collection[str], *names: str) -> str:
    """Why something is left alone: the first of `names` that is set; "" if none is."""
    for name in names:
        if name in switches:
            return f"switched off ({name})"
    return ""


def labelled(name: str, switches: Collection[str]) -> str:
    """A device's name with the switches that it was opened with, if any."""
    return f"{name}, {', '.join(sorted(switches))}" if switches else name
