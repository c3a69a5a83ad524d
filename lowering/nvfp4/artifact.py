"""NVFP4 artifacts: the header bytes of a projection and of a fused mixture of experts.

An artifact holds shapes only; the weights come through slots. Source: docs/nvfp4.md,
"Artifacts".
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from tosavk.core.descriptors import FORMAT_NVFP4, Artifact
from tosavk.core.errors import Incompatible, ResourceLimit
from tosavk.core.nvfp4 import BLOCK
from tosavk.lowering.errors import AdmissionError, Kind

TARGET = (0x564B4E46, 0x50340001, *(0,) * 10)
"""The target words of an NVFP4 artifact: "VKNF", "P4", ABI 1."""

PROJECTION_MAGIC = b"VKNVFP4\0"
EXPERTS_MAGIC = b"VKNVMOE\0"
MAX_EXPERTS = 6
_PROJECTION = struct.Struct("<8s6I")
_PROJECTION_2 = struct.Struct("<8s8I")
_EXPERTS = struct.Struct("<8s5I24I36x")
_U32 = 0xFFFF_FFFF


class Activation(enum.IntEnum):
    """What is done to a sum, after the tensor scale and the bias."""

    NONE = 0
    SILU = 1
    SIGMOID = 2
    SQUARED_RELU = 3


class Mode(enum.IntEnum):
    """Which weights a token uses."""

    SHARED = 0
    """All tokens share one matrix."""

    BATCHED = 1
    """Token t uses matrix t of a stack."""

    EXPERTS = 2
    """Token t uses matrix t, each in slots of its own."""


class Extra(enum.IntFlag):
    """What version 2 of the projection header adds."""

    NONE = 0
    BIAS = 1
    """A bias is added before the activation."""

    RESIDUAL = 2
    """A residual is added after the activation."""

    ROW_SCALES = 4
    """The tensor scale has one number for each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One product `y[t, r] = act(scale * sum x[t, c] * w[r, c] + bias) + residual`.

    Attributes:
        m: tokens.
        n: rows of the weights.
        k: columns of the weights, a multiple of 16.
        activation: see there.
        mode: which weights a token uses.
        extras: what version 2 adds; none is written as version 1.
    """

    m: int
    n: int
    k: int
    activation: Activation = Activation.NONE
    mode: Mode = Mode.SHARED
    extras: Extra = Extra.NONE

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            AdmissionError: a zero size, k, activation, mode or extras.
            ResourceLimit: a tensor has more bytes than 32 bits count.
        """
        if min(self.m, self.n, self.k) < 1:
            _refuse(f"NVFP4 sizes m, n, k = {self.m}, {self.n}, {self.k} must not be 0")
        if self.k % BLOCK:
            _refuse(f"NVFP4 k = {self.k} is no multiple of {BLOCK}")
        if self.mode is Mode.EXPERTS and self.m > MAX_EXPERTS:
            _refuse(
                f"NVFP4 mode EXPERTS takes at most {MAX_EXPERTS} tokens, got {self.m}"
            )
        stack = self.m if self.mode is Mode.BATCHED else 1
        for what, nbytes in (
            ("activations", 4 * self.m * self.k),
            ("packed weights", stack * self.n * self.k // 2),
            ("block scales", stack * self.n * self.k // BLOCK),
            ("results", 4 * self.m * self.n),
        ):
            if nbytes > _U32:
                raise ResourceLimit(
                    f"NVFP4 {what} have {nbytes} bytes, beyond 2^32 - 1"
                )

    def payload(self) -> bytes:
        """The header: version 1 (32 bytes) without extras, else version 2 (40 bytes)."""
        sizes = (self.m, self.n, self.k, int(self.activation), int(self.mode))
        if not self.extras:
            return _PROJECTION.pack(PROJECTION_MAGIC, 1, *sizes)
        return _PROJECTION_2.pack(PROJECTION_MAGIC, 2, *sizes, int(self.extras), 0)

    def artifact(self) -> Artifact:
        """The artifact to load."""
        return Artifact(FORMAT_NVFP4, TARGET, self.payload())

    def __str__(self) -> str:
        """The shape for people."""
        return f"NVFP4 projection m={self.m} n={self.n} k={self.k} {self.mode.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertOffsets:
    """Where the four tensors of an expert begin in its span, in bytes.

    Attributes:
        up_packed: codes of the up projection [inner, width].
        up_scales: its block scales.
        down_packed: codes of the down projection [width, inner].
        down_scales: its block scales.
    """

    up_packed: int
    up_scales: int
    down_packed: int
    down_scales: int

    def words(self) -> tuple[int, int, int, int]:
        """The offsets in header order."""
        return self.up_packed, self.up_scales, self.down_packed, self.down_scales


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Fused up projection, squared ReLU and down projection of routed experts.

    Attributes:
        batch: experts, 1 to 6; token t goes through expert t.
        width: length of inputs and outputs, a multiple of 16.
        inner: length between, a multiple of 16.
        expert_bytes: bytes of one expert's span.
        offsets: one for each expert.
    """

    batch: int
    width: int
    inner: int
    expert_bytes: int
    offsets: tuple[ExpertOffsets, ...]

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            AdmissionError: a zero size, the batch, or no multiple of 16.
            ResourceLimit: an offset is no multiple of 4, or a span ends outside.
        """
        if not 1 <= self.batch <= MAX_EXPERTS:
            _refuse(
                f"NVFP4 batch of {self.batch} experts; 1 to {MAX_EXPERTS} are served"
            )
        if min(self.width, self.inner, self.expert_bytes) < 1:
            _refuse(
                f"NVFP4 width, inner, expert_bytes = {self.width}, {self.inner}, "
                f"{self.expert_bytes} must not be 0"
            )
        if self.width % BLOCK or self.inner % BLOCK:
            _refuse(
                f"NVFP4 width {self.width} and inner {self.inner} must be multiples of "
                f"{BLOCK}"
            )
        if len(self.offsets) != self.batch:
            _refuse(f"NVFP4 has {len(self.offsets)} offsets for {self.batch} experts")
        packed = self.width * self.inner // 2
        scales = self.width * self.inner // BLOCK
        names = ("up packed", "up scales", "down packed", "down scales")
        for expert, offsets in enumerate(self.offsets):
            for name, offset, nbytes in zip(
                names, offsets.words(), (packed, scales, packed, scales), strict=True
            ):
                if offset % 4:
                    raise ResourceLimit(
                        f"NVFP4 expert {expert}: {name} offset {offset} is no multiple "
                        "of 4"
                    )
                if offset + nbytes > self.expert_bytes:
                    raise ResourceLimit(
                        f"NVFP4 expert {expert}: {name} is {offset} + {nbytes} bytes, "
                        f"beyond expert_bytes = {self.expert_bytes}"
                    )
        if 4 * self.batch * max(self.width, self.inner) > _U32:
            raise ResourceLimit(
                f"NVFP4 {self.batch} tokens of {max(self.width, self.inner)} are beyond "
                "2^32 - 1 bytes"
            )

    @classmethod
    def packed(cls, *, batch: int, width: int, inner: int) -> Experts:
        """The densest layout: up codes, up scales, down codes, down scales."""
        codes = width * inner // 2
        scales = -(-(width * inner // BLOCK) // 4) * 4
        offsets = ExpertOffsets(
            up_packed=0,
            up_scales=codes,
            down_packed=codes + scales,
            down_scales=2 * codes + scales,
        )
        return cls(
            batch=batch,
            width=width,
            inner=inner,
            expert_bytes=2 * (codes + scales),
            offsets=(offsets,) * batch,
        )

    def payload(self) -> bytes:
        """The header, 160 bytes; room for experts that are not there is zero."""
        words = [word for offsets in self.offsets for word in offsets.words()]
        words += [0] * (4 * MAX_EXPERTS - len(words))
        sizes = (self.batch, self.width, self.inner, self.expert_bytes)
        return _EXPERTS.pack(EXPERTS_MAGIC, 1, *sizes, *words)

    def artifact(self) -> Artifact:
        """The artifact to load."""
        return Artifact(FORMAT_NVFP4, TARGET, self.payload())

    def __str__(self) -> str:
        """The shape for people."""
        return f"NVFP4 experts batch={self.batch} width={self.width} inner={self.inner}"


Program = Projection | Experts
"""What an NVFP4 artifact holds."""


def check_target(words: Sequence[int]) -> None:
    """Checks the target words of an NVFP4 artifact.

    Raises:
        Incompatible: they are not `TARGET`.
    """
    if tuple(words) != TARGET:
        first = next(
            (i for i, (a, b) in enumerate(zip(words, TARGET, strict=False)) if a != b),
            len(TARGET),
        )
        given = f"{words[first]:#x}" if first < len(words) else "missing"
        raise Incompatible(
            f"NVFP4 target word {first} is {given}, expected "
            f"{TARGET[first] if first < len(TARGET) else 0:#x}; a target has 12 words"
        )


def is_program(payload: bytes | memoryview) -> bool:
    """Whether bytes begin like an NVFP4 artifact."""
    return bytes(payload[:8]) in (PROJECTION_MAGIC, EXPERTS_MAGIC)


def read_program(payload: bytes | memoryview) -> Program:
    """Reads the header bytes of an artifact.

    Raises:
        AdmissionError: magic, version, length or a number in it.
        ResourceLimit: sizes beyond 32 bits, or offsets outside an expert's span.
    """
    data = bytes(payload[: _EXPERTS.size + 1])
    magic = data[:8]
    if magic not in (PROJECTION_MAGIC, EXPERTS_MAGIC):
        _refuse(
            f"NVFP4 magic is {magic!r}, not {PROJECTION_MAGIC!r} or {EXPERTS_MAGIC!r}"
        )
    if len(data) < 12:
        _refuse(f"NVFP4 header is cut off after {len(data)} bytes")
    (version,) = struct.unpack_from("<I", data, 8)
    layouts = (
        {1: _PROJECTION, 2: _PROJECTION_2}
        if magic == PROJECTION_MAGIC
        else {1: _EXPERTS}
    )
    layout = layouts.get(version)
    if layout is None:
        _refuse(
            f"NVFP4 header version is {version}; this build knows "
            + ", ".join(map(str, layouts))
        )
    if len(payload) != layout.size:
        _refuse(
            f"NVFP4 header of version {version} has {layout.size} bytes, got "
            f"{len(payload)}"
        )
    fields = layout.unpack(data[: layout.size])[2:]
    return _projection(fields) if magic == PROJECTION_MAGIC else _experts(fields, data)


def _projection(fields: Sequence[int]) -> Projection:
    m, n, k, activation, mode, *rest = fields
    extras, reserved = rest or (0, 0)
    if activation not in Activation.__members__.values():
        _refuse(f"NVFP4 activation {activation} is unknown; there are 0 to 3")
    if mode not in Mode.__members__.values():
        _refuse(f"NVFP4 mode {mode} is unknown; there are 0 to 2")
    if extras & ~0b111 or reserved:
        _refuse(f"NVFP4 extras {extras:#x}, {reserved:#x} have unknown bits")
    return Projection(
        m=m,
        n=n,
        k=k,
        activation=Activation(activation),
        mode=Mode(mode),
        extras=Extra(extras),
    )


def _experts(fields: Sequence[int], data: bytes) -> Experts:
    batch, width, inner, expert_bytes, *words = fields
    if any(data[_EXPERTS.size - 36 :]):
        _refuse("NVFP4 header bytes 124 to 159 must be zero")
    return Experts(
        batch=batch,
        width=width,
        inner=inner,
        expert_bytes=expert_bytes,
        offsets=tuple(
            ExpertOffsets(
                up_packed=words[4 * e],
                up_scales=words[4 * e + 1],
                down_packed=words[4 * e + 2],
                down_scales=words[4 * e + 3],
            )
            for e in range(min(batch, MAX_EXPERTS))
        ),
    )


def _refuse(reason: str) -> NoReturn:
    raise AdmissionError(reason, kind=Kind.UNSUPPORTED_GRAPH)
