"""Switches: names, warnings, and what each leaves out (field case E12)."""

import dataclasses
import itertools
import warnings

import pytest

import tosavk
from tosavk.backends.vulkan.device import plan_limits
from tosavk.backends.vulkan.records import (
    COOPERATIVE_MATRIX,
    DeviceRecord,
    Features,
    Limits,
)
from tosavk.backends.wgpu import probe as wgpu_probe
from tosavk.core.plan import MatrixShape
from tosavk.core.switches import (
    SWITCHES,
    SwitchWarning,
    environment_switches,
    known_switches,
    labelled,
)

ABLE = DeviceRecord(
    index=0,
    name="Example 9000",
    driver="exadrv",
    features=Features(
        cooperative_matrix=True,
        vulkan_memory_model=True,
        memory_model_device_scope=True,
        shader_float16=True,
        storage_16bit=True,
        shader_int16=True,
        integer_dot_product=True,
    ),
    limits=Limits(subgroup_size=32, subgroup_stages=0x20, subgroup_operations=0b10001),
    extensions=frozenset({COOPERATIVE_MATRIX}),
    matrix_shapes=(MatrixShape(16, 16, 16),),
)
LEAVES_OUT = {
    "no-coopmat": {"matrices"},
    "no-fp16": {"matrices"},
    "no-int8-dot": {"int8_dot"},
    "no-subgroup": {"matrices", "subgroup"},
    "no-push-descriptor": set[str](),
}


def lacks(*switches: str) -> dict[str, str]:
    record = dataclasses.replace(ABLE, switches=frozenset(switches))
    found = dict(plan_limits(record).lacks)
    del found["matrices2"]
    return found


def test_the_device_has_it_all() -> None:
    assert lacks() == {}
    assert plan_limits(ABLE).subgroup_size == 32


def test_every_switch_is_tried() -> None:
    assert LEAVES_OUT.keys() == SWITCHES.keys()


@pytest.mark.parametrize("switch", SWITCHES)
def test_one_switch_leaves_out_its_part(switch: str) -> None:
    found = lacks(switch)
    assert found.keys() == LEAVES_OUT[switch]
    assert set(found.values()) <= {f"switched off ({switch})"}


def test_switches_add_up() -> None:
    for pair in itertools.combinations(SWITCHES, 2):
        assert lacks(*pair).keys() == LEAVES_OUT[pair[0]] | LEAVES_OUT[pair[1]]
    assert lacks(*SWITCHES).keys() == {"matrices", "subgroup", "int8_dot"}


def test_wgpu_has_one_part_to_leave_out() -> None:
    limits = wgpu_probe.Limits()
    assert not wgpu_probe.plan_limits(limits).lack("int8_dot")
    left = wgpu_probe.plan_limits(limits, {"no-int8-dot"}).lack("int8_dot")
    assert left == "switched off (no-int8-dot)"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", set[str]()),
        ("no-fp16", {"no-fp16"}),
        ("fp16", {"no-fp16"}),
        (" No-Fp16 , int8-dot,", {"no-fp16", "no-int8-dot"}),
        (",".join(SWITCHES), set(SWITCHES)),
    ],
)
def test_the_variable_names_switches(text: str, names: set[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert environment_switches({"TOSAVK_DISABLE": text}) == names


def test_an_unknown_name_is_a_warning_and_changes_nothing() -> None:
    with pytest.warns(SwitchWarning, match=r"TOSAVK_DISABLE: .*'no-fp15'.*no-coopmat"):
        found = environment_switches({"TOSAVK_DISABLE": "no-fp15,no-fp16"})
    assert found == {"no-fp16"}
    with pytest.warns(SwitchWarning, match="disable: .*'gpu'"):
        assert known_switches(["gpu"], source="disable") == set()


def test_one_text_may_hold_several() -> None:
    found = known_switches("no-int8-dot, fp16", source="disable")
    assert found == {"no-int8-dot", "no-fp16"}
    with tosavk.open("reference", disable="no-int8-dot"):
        pass  # and no warning


def test_a_name_tells_the_switches() -> None:
    assert labelled("card", frozenset()) == "card"
    assert labelled("card", {"no-fp16", "no-coopmat"}) == "card, no-coopmat, no-fp16"
