"""Which NVFP4 kernel each device runs, and why no better one, for people and reports."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from tosavk.backends.nvfp4_check import lower_checked
from tosavk.backends.registry import open_accelerator
from tosavk.core.nvfp4 import Nvfp4Warning
from tosavk.core.plan import Numerics
from tosavk.lowering.nvfp4.artifact import Program, Projection
from tosavk.lowering.nvfp4.kernels import Rejected

TYPICAL = (Projection(m=1, n=64, k=64), Projection(m=128, n=64, k=64))
"""One token, and many."""


@dataclass(frozen=True, slots=True)
class KernelReport:
    """The kernel of one program on one device.

    Attributes:
        spec: the device's specification.
        program: the program, for people.
        numerics: what was promised.
        kernel: the kernel, "" if there is none.
        rejected: better kernels, with the reason why they were not taken.
        failure: why there is no kernel, or "".
    """

    spec: str
    program: str
    numerics: Numerics
    kernel: str
    rejected: tuple[Rejected, ...] = ()
    failure: str = ""


def kernel_reports(
    specs: Sequence[str], programs: Sequence[Program] = TYPICAL
) -> tuple[KernelReport, ...]:
    """Opens each device and tells its kernels; known-answer tests are run.

    A device that cannot be opened, or whose driver fails, is told as such.
    """
    found: list[KernelReport] = []
    for spec in specs:
        try:
            with open_accelerator(spec) as accelerator, warnings.catch_warnings():
                # A kernel that fails is told with its reason.
                warnings.simplefilter("ignore", Nvfp4Warning)
                for program in programs:
                    for numerics in Numerics:
                        lowered = lower_checked(
                            accelerator.device, program, numerics=numerics
                        )
                        choice = lowered.choice
                        found.append(
                            KernelReport(
                                spec,
                                str(program),
                                numerics,
                                choice.kernel,
                                choice.rejected,
                            )
                        )
        except Exception as error:  # noqa: BLE001 - a broken driver is what this is for
            reason = f"{type(error).__name__}: {error}"
            found.append(KernelReport(spec, "", Numerics.STRICT, "", failure=reason))
    return tuple(found)
