"""NVFP4 artifacts byte for byte, and what is refused."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tosavk.core.descriptors import FORMAT_NVFP4, Artifact
from tosavk.core.errors import Incompatible, ModelError, ResourceLimit, Unsupported
from tosavk.core.plan import Operand, PlanLimits
from tosavk.lowering.errors import AdmissionError, Kind
from tosavk.lowering.nvfp4.artifact import (
    TARGET,
    Activation,
    ExpertOffsets,
    Experts,
    Extra,
    Mode,
    Program,
    Projection,
    check_target,
    is_program,
    read_program,
)
from tosavk.lowering.nvfp4.lower import lower_nvfp4, slots_of
from tosavk.lowering.program import lower_artifact

pytestmark = pytest.mark.nvfp4

HEADER = struct.pack("<8s6I", b"VKNVFP4\0", 1, 3, 17, 2688, 1, 0)
MOE = struct.pack(
    "<8s5I24I36x",
    b"VKNVMOE\0",
    *(1, 2, 32, 48, 2000),
    *(0, 768, 864, 1632),
    *(4, 772, 868, 1636),
    *(0,) * 16,
)


def projection(*words: int, magic: bytes = b"VKNVFP4\0") -> bytes:
    return struct.pack(f"<8s{len(words)}I", magic, *words)


def sizes(program: Program) -> list[tuple[str, int]]:
    return [(slot.name, slot.nbytes) for slot in slots_of(program)]


def test_the_header_of_a_projection() -> None:
    program = Projection(m=3, n=17, k=2688, activation=Activation.SILU)
    assert program.payload() == HEADER
    assert len(HEADER) == 32
    assert read_program(HEADER) == program
    artifact = program.artifact()
    assert artifact.format == FORMAT_NVFP4 == 0x564E4634
    assert artifact.target == TARGET == (0x564B4E46, 0x50340001, *(0,) * 10)


def test_the_header_with_extras() -> None:
    program = Projection(m=1, n=2, k=16, extras=Extra.BIAS | Extra.RESIDUAL)
    assert program.payload() == projection(2, 1, 2, 16, 0, 0, 3, 0)
    assert read_program(program.payload()) == program


def test_the_header_of_experts() -> None:
    assert len(MOE) == 160
    program = read_program(MOE)
    offsets = (
        ExpertOffsets(up_packed=0, up_scales=768, down_packed=864, down_scales=1632),
        ExpertOffsets(up_packed=4, up_scales=772, down_packed=868, down_scales=1636),
    )
    expected = Experts(batch=2, width=32, inner=48, expert_bytes=2000, offsets=offsets)
    assert program == expected
    assert expected.payload() == MOE


def test_the_slots_of_each_mode() -> None:
    shared = Projection(m=3, n=17, k=2688)
    assert sizes(shared) == [
        ("x", 3 * 2688 * 4),
        ("packed", 17 * 1344),
        ("scales", 17 * 168),
        ("tensor_scale", 4),
        ("y", 3 * 17 * 4),
    ]
    batched = Projection(m=6, n=1856, k=2688, mode=Mode.BATCHED)
    assert sizes(batched) == [
        ("x", 6 * 2688 * 4),
        ("packed", 6 * 1856 * 1344),
        ("scales", 6 * 1856 * 168),
        ("tensor_scale", 24),
        ("y", 6 * 1856 * 4),
    ]
    experts = sizes(Projection(m=6, n=1856, k=2688, mode=Mode.EXPERTS))
    assert len(experts) == 15
    assert experts[1] == ("packed0", 1856 * 1344)
    assert experts[12] == ("scales5", 1856 * 168)
    assert experts[13:] == [("tensor_scale", 24), ("y", 6 * 1856 * 4)]
    everything = Projection(m=2, n=3, k=16, extras=Extra(7))
    assert [name for name, _ in sizes(everything)][3:] == [
        *("tensor_scale", "bias", "residual", "y")
    ]
    assert dict(sizes(everything))["tensor_scale"] == 12


def test_the_plan_of_six_experts() -> None:
    program = Experts.packed(batch=6, width=2688, inner=1856)
    plan = lower_nvfp4(program).plan
    assert len(plan.slots) == 10
    assert plan.arena_bytes == 6 * 1856 * 4
    assert [d.barrier for d in plan.dispatches] == [*[False] * 6, True, *[False] * 5]
    names = ("teams", "columns", "m", "n", "k", "x_at", "w_at", "s_at", "t_at")
    for e, dispatch in enumerate(plan.dispatches[:6]):
        words = dict(zip(names, dispatch.params, strict=False))
        assert (words["n"], words["k"], words["x_at"]) == (1856, 2688, e * 2688)
        assert (words["w_at"], words["s_at"]) == (0, 1856 * 2688 // 2 // 4)
        assert dispatch.operands[1].buffer == 1 + e
        # The arena: 1856 words are 29 alignments, so each token binds its own row.
        assert dispatch.operands[-1] == Operand(10, e * 1856, 1856)
    down = dict(zip(names, plan.dispatches[6].params, strict=False))
    assert (down["n"], down["k"]) == (2688, 1856)
    assert 4 * down["w_at"] == program.offsets[0].down_packed


def test_short_rows_share_a_binding_and_wait() -> None:
    plan = lower_nvfp4(Experts.packed(batch=3, width=16, inner=64)).plan
    assert [d.barrier for d in plan.dispatches] == [False, False, False, *[True] * 3]
    assert [d.operands[-1].word for d in plan.dispatches] == [0, 64, 128, 0, 0, 0]
    for n, waits in ((64, False), (65, True)):
        program = Projection(m=2, n=n, k=16, mode=Mode.EXPERTS)
        plan = lower_nvfp4(program).plan
        assert [d.barrier for d in plan.dispatches] == [False, waits]


def test_each_expert_has_offsets_of_its_own() -> None:
    plan = lower_nvfp4(read_program(MOE)).plan
    w_at, s_at = 6, 7
    assert [d.params[w_at] for d in plan.dispatches] == [0, 1, 216, 217]
    assert [d.params[s_at] for d in plan.dispatches] == [192, 193, 408, 409]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"VKNVFP4",
        HEADER[:31],
        HEADER + b"\0",
        HEADER[:8],
        MOE[:159],
        MOE + b"\0",
        projection(1, 1, 1, 16, 0, 0, magic=b"VKNVFP5\0"),
        projection(0, 1, 1, 16, 0, 0),
        projection(3, 1, 1, 16, 0, 0),
        projection(1, 0, 1, 16, 0, 0),
        projection(1, 1, 0, 16, 0, 0),
        projection(1, 1, 1, 0, 0, 0),
        projection(1, 1, 1, 15, 0, 0),
        projection(1, 1, 1, 24, 0, 0),
        projection(1, 1, 1, 16, 4, 0),
        projection(1, 1, 1, 16, 0, 3),
        projection(1, 7, 1, 16, 0, 2),
        projection(1, 1, 1, 16, 0, 0, 1, 0),
        projection(2, 1, 1, 16, 0, 0),
        projection(2, 1, 1, 16, 0, 0, 8, 0),
        projection(2, 1, 1, 16, 0, 0, 1, 1),
        MOE[:8] + b"\2" + MOE[9:],
        MOE[:12] + b"\0" + MOE[13:],
        MOE[:12] + b"\7" + MOE[13:],
        MOE[:16] + b"\0" + MOE[17:],
        MOE[:16] + b"\x18" + MOE[17:],
        MOE[:20] + b"\0" + MOE[21:],
        MOE[:24] + bytes(4) + MOE[28:],
        MOE[:124] + b"\1" + MOE[125:],
        MOE[:159] + b"\1",
    ],
)
def test_what_is_not_sound_is_refused(payload: bytes) -> None:
    with pytest.raises(AdmissionError) as caught:
        read_program(payload)
    assert caught.value.kind == Kind.UNSUPPORTED_GRAPH
    assert isinstance(caught.value, Unsupported)


@pytest.mark.parametrize(
    "payload",
    [
        projection(1, 1 << 20, 1 << 20, 16, 0, 0),
        projection(1, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFF0, 0, 0),
        projection(1, 1, 1 << 20, 1 << 16, 0, 0),
        projection(1, 6, 1 << 20, 1 << 15, 0, 1),
        MOE[:28] + struct.pack("<I", 2) + MOE[32:],
        MOE[:28] + struct.pack("<I", 1236) + MOE[32:],
        MOE[:56] + struct.pack("<I", 0xFFFFFFFC) + MOE[60:],
    ],
)
def test_sizes_and_spans_beyond_the_limits(payload: bytes) -> None:
    with pytest.raises(ResourceLimit):
        read_program(payload)


@pytest.mark.parametrize("word", range(12))
def test_every_target_word_is_checked(word: int) -> None:
    check_target(TARGET)
    words = list(TARGET)
    words[word] ^= 1
    with pytest.raises(Incompatible, match=f"target word {word} "):
        lower_artifact(Artifact(FORMAT_NVFP4, tuple(words), HEADER))
    with pytest.raises(Incompatible):
        check_target(TARGET[:11])


def test_a_tensor_larger_than_a_storage_buffer() -> None:
    limits = PlanLimits(max_storage_buffer_range=4096, max_storage_buffers=8)
    with pytest.raises(ResourceLimit, match="packed"):
        lower_nvfp4(Projection(m=1, n=1024, k=16), limits=limits)
    experts = Experts.packed(batch=6, width=16, inner=256)
    narrow = PlanLimits(max_storage_buffer_range=5000, max_storage_buffers=8)
    with pytest.raises(ResourceLimit, match="between"):
        lower_nvfp4(experts, limits=narrow)


def test_a_device_with_too_few_storage_buffers() -> None:
    with pytest.raises(ResourceLimit, match="binds 7 storage buffers"):
        lower_nvfp4(
            Projection(m=1, n=1, k=16), limits=PlanLimits(max_storage_buffers=4)
        )


@given(st.binary(max_size=200))
@example(HEADER)
@example(MOE)
def test_any_bytes_give_a_program_or_a_typed_error(data: bytes) -> None:
    try:
        program = read_program(data)
    except ModelError:
        return
    assert read_program(program.payload()) == program
    assert is_program(data)


@given(st.data(), st.sampled_from([HEADER, MOE]))
def test_changed_headers_give_a_program_or_a_typed_error(
    data: st.DataObject, header: bytes
) -> None:
    changed = bytearray(header)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(8, len(header) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    try:
        program = read_program(bytes(changed))
        plan = lower_nvfp4(program).plan
    except ModelError:
        return
    limit = PlanLimits().max_storage_buffer_range
    for dispatch in plan.dispatches:
        assert all(0 <= word < 1 << 32 for word in dispatch.params)
        assert all(4 * operand.words <= limit for operand in dispatch.operands)
