"""What drivers that stand on another interface are asked for when an instance is made.

MoltenVK stands on Metal. Its devices are listed on request only, and it compiles every
shader with Metal's fast math unless it is told to heed what a shader says (docs/moltenvk.md,
"Fast math"): then infinities, NaN and the order of sums would be Metal's choice.
"""

from __future__ import annotations

from collections.abc import Mapping

from tosavk.backends.vulkan._ffi import Cdata, Scratch, const

PORTABILITY = "VK_KHR_portability_enumeration"
LAYER_SETTINGS = "VK_EXT_layer_settings"
DRIVER = "MoltenVK"
FAST_MATH = "MVK_CONFIG_FAST_MATH_ENABLED"
ON_DEMAND = 2
"""Fast math only for shaders that do not ask for SignedZeroInfNanPreserve."""


def optional_extensions(offered: frozenset[str]) -> tuple[tuple[str, ...], int]:
    """Instance extensions to enable, and the creation flags that go with them.

    Devices that are not quite conformant (MoltenVK) are listed only on request, and
    the request is only allowed where the loader knows the extension.
    """
    if PORTABILITY in offered:
        return (PORTABILITY,), const.INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR
    return (), 0


def tells_fast_math(
    offered: frozenset[str], environment: Mapping[str, str], platform: str
) -> bool:
    """Whether MoltenVK has to be told when fast math is allowed.

    Args:
        offered: instance extensions.
        environment: a setting there is somebody's own choice, and stays.
        platform: `sys.platform`; the driver is there on Apple's systems only.
    """
    return (
        platform in ("darwin", "ios")
        and LAYER_SETTINGS in offered
        and FAST_MATH not in environment
    )


def fast_math_on_demand(scratch: Scratch, following: Cdata) -> Cdata:
    """The struct that tells it; drivers and layers that it does not name ignore it.

    Args:
        scratch: its owner.
        following: the next struct of the chain, or None.
    """
    setting = {
        "pLayerName": scratch.text(DRIVER),
        "pSettingName": scratch.text(FAST_MATH),
        "type": const.LAYER_SETTING_TYPE_INT32_EXT,
        "valueCount": 1,
        "pValues": scratch.new("int32_t[1]", [ON_DEMAND]),
    }
    return scratch.struct(
        "VkLayerSettingsCreateInfoEXT",
        pNext=following,
        settingCount=1,
        pSettings=scratch.array("VkLayerSettingEXT", [setting]),
    )
