"""What can be chosen when a Vulkan device is opened."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from tosavk.backends.vulkan.portions import submission_work
from tosavk.core.plan import Numerics
from tosavk.core.switches import environment_switches


def validation_wanted() -> bool:
    """Whether TOSAVK_VALIDATION asks for the validation layer."""
    return os.environ.get("TOSAVK_VALIDATION", "") not in ("", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class VulkanOptions:
    """Options of `open_device`.

    Attributes:
        map_unified_device_memory: map DEVICE memory and copy directly where host and
            device share one memory heap; False stages all copies to DEVICE memory, as
            on a discrete card.
        validation: load the Khronos validation layer with synchronization validation;
            by default what TOSAVK_VALIDATION says.
        numerics: promise about float results that artifacts are lowered for.
        pipeline_cache: keep compiled pipelines on disk (folder: `cachefile`).
        switches: what is left alone (`tosavk.core.switches`); by default what
            TOSAVK_DISABLE says.
        submission_work: most turns of loops of one submission to the driver
            (`portions`); by default what TOSAVK_SUBMISSION_WORK says.
    """

    map_unified_device_memory: bool = True
    validation: bool = field(default_factory=validation_wanted)
    numerics: Numerics = Numerics.STRICT
    pipeline_cache: bool = True
    switches: frozenset[str] = field(default_factory=environment_switches)
    submission_work: int = field(default_factory=submission_work)
