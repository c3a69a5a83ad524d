"""Judging and choosing adapters: plain data, no driver."""

from dataclasses import replace

import pytest

from tosavk.backends.wgpu.probe import (
    AdapterFacts,
    DeviceListing,
    Kind,
    Limits,
    choose,
    device_info,
    max_buffer_bytes,
    plan_limits,
    unsuitable,
)
from tosavk.core.checks import validate_device_info
from tosavk.core.descriptors import Capabilities, DeviceClass
from tosavk.core.errors import DeviceUnavailable

CARD = AdapterFacts(name="Card 7", driver="radv 25", kind=Kind.DISCRETE, vendor_id=2)
CHIP = AdapterFacts(name="Chip 3", driver="anv 25", kind=Kind.INTEGRATED)
SOFT = AdapterFacts(name="llvmpipe", driver="Mesa 25", kind=Kind.CPU)
TINY = AdapterFacts(name="Tiny", limits=Limits(storage_buffers=3))


def listings(*facts: AdapterFacts) -> list[DeviceListing]:
    return [DeviceListing.of(i, each) for i, each in enumerate(facts)]


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        (Limits(storage_buffers=3), "storage buffers"),
        (Limits(workgroup_invocations=32), "invocations"),
        (Limits(workgroup_width=32), "width"),
        (Limits(workgroups=1000), "work groups"),
        (Limits(storage_alignment=512), "storage bindings"),
        (Limits(uniform_alignment=1024), "uniform bindings"),
    ],
)
def test_unsuitable_says_what_is_missing(limits: Limits, word: str) -> None:
    assert unsuitable(replace(CARD, limits=limits)) is not None
    assert word in str(unsuitable(replace(CARD, limits=limits)))
    assert unsuitable(CARD) is None


def test_the_best_usable_device_is_the_default() -> None:
    assert choose(listings(SOFT, CHIP, CARD), None).name == "Card 7"
    assert choose(listings(SOFT, CHIP), None).name == "Chip 3"
    assert choose(listings(TINY, SOFT), None).name == "llvmpipe"
    assert choose(listings(CARD, replace(CARD, name="second")), None).index == 0


@pytest.mark.parametrize("selector", ["1", "chip", "CHIP 3", "anv"])
def test_choosing_by_index_and_name(selector: str) -> None:
    assert choose(listings(CARD, CHIP, SOFT), selector).name == "Chip 3"


def test_a_driver_is_found_by_its_api() -> None:
    assert choose(listings(replace(CARD, api="Metal"), SOFT), "metal").index == 0


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        ("nothing", ("'nothing'", "Card 7", "llvmpipe")),
        ("25", ("no wgpu device",)),
        ("Mesa", ("fits 2", "0: llvmpipe", "4: other", "by index")),
        ("tiny", ("unusable", "storage buffers")),
        ("3", ("unusable",)),
    ],
)
def test_a_bad_choice_is_explained(selector: str, words: tuple[str, ...]) -> None:
    all_five = listings(SOFT, CARD, CHIP, TINY, replace(SOFT, name="other"))
    with pytest.raises(DeviceUnavailable) as caught:
        choose(all_five, selector)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("found", [listings(), listings(TINY)])
def test_no_usable_device(found: list[DeviceListing]) -> None:
    with pytest.raises(DeviceUnavailable, match="no usable wgpu device"):
        choose(found, None)


def test_limits_are_those_of_one_binding() -> None:
    limits = Limits(buffer_bytes=1002, storage_binding_bytes=2000, storage_buffers=10)
    assert max_buffer_bytes(limits) == 1000
    plan = plan_limits(limits)
    assert plan.max_storage_buffer_range == 1000
    assert plan.segment_bytes == 1000
    assert plan.max_storage_buffers == 10
    assert plan_limits(Limits()).segment_bytes == 1 << 27


@pytest.mark.parametrize("facts", [CARD, CHIP, SOFT])
def test_domains_follow_the_mappable_feature(facts: AdapterFacts) -> None:
    plain = device_info(facts)
    validate_device_info(plain)
    assert plain.capabilities == Capabilities.DEVICE_LOCAL_MEMORY
    mappable = device_info(replace(facts, mappable_primary=True)).capabilities
    assert mappable & Capabilities.HOST_VISIBLE_MEMORY
    shared = bool(mappable & Capabilities.SHARED_MEMORY)
    assert shared is (facts.kind is not Kind.DISCRETE)


def test_identity() -> None:
    identity = device_info(CARD).identity
    assert identity.device_class is DeviceClass.GPU
    assert identity.vendor_id == 2
    assert device_info(SOFT).identity.device_class is DeviceClass.OTHER
    assert device_info(replace(CARD)).identity == identity
    others = [replace(CARD, name="x"), replace(CARD, driver="x"), SOFT]
    uuids = {device_info(facts).identity.uuid for facts in (CARD, *others)}
    assert len(uuids) == 4
