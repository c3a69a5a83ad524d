"""The vocabulary of the Accelerator model: values that describe devices and requests.

Everything here is frozen data. Constructors refuse what can never be right; whether a
request fits a device is checked by `core.checks.validate_buffer_desc` and by the model itself.
Source: the Accelerator model (docs/accelerator.md, "Vocabulary").
"""

from __future__ import annotations

import enum
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tosavk.core.errors import (
    InvalidArgument,
    OutOfBounds,
)
from tosavk.core.ports import ByteSource, byte_view

if TYPE_CHECKING:
    from tosavk.core.buffers import Buffer

U16_MAX = 2**16 - 1
U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1

FORMAT_TOSA = 0x544F5341
"""Artifact format "TOSA": a TOSA flatbuffer."""

FORMAT_NVFP4 = 0x564E4634
"""Artifact format "VNF4": an NVFP4 matrix product."""

RESIDENT_UNBOUNDED = U64_MAX
"""The only accepted `Artifact.resident_bytes`: no driver publishes a bound."""

TARGET_WORDS = 12
"""Words of an artifact's target identity."""

MAX_ARTIFACT_BYTES = 256 << 20
"""Largest artifact payload in bytes."""


class DeviceClass(enum.IntEnum):
    """What kind of device it is, a u16; numbers without a name stay representable."""

    OTHER = 0
    NPU = 1
    GPU = 2
    DSP = 3

    @classmethod
    def _missing_(cls, value: object) -> DeviceClass | None:
        if not isinstance(value, int) or not 0 <= value <= U16_MAX:
            return None
        member = int.__new__(cls, value)
        member._name_ = f"UNKNOWN_{value}"
        member._value_ = value
        return member


class Capabilities(enum.IntFlag):
    """What a device offers, a u64 bit set; unknown bits are tolerated."""

    HOST_VISIBLE_MEMORY = 1 << 0
    DEVICE_LOCAL_MEMORY = 1 << 1
    EVENT_CANCELLATION = 1 << 2
    EXTERNAL_MEMORY = 1 << 3
    SECURE_CONTEXTS = 1 << 4
    SHARED_MEMORY = 1 << 5


class MemoryDomain(enum.IntEnum):
    """Where a buffer's memory lies."""

    HOST = 1
    DEVICE = 2
    SHARED = 3

    @property
    def capability(self) -> Capabilities:
        """The capability with which a device advertises this domain."""
        return _DOMAIN_CAPABILITY[self]


_DOMAIN_CAPABILITY = {
    MemoryDomain.HOST: Capabilities.HOST_VISIBLE_MEMORY,
    MemoryDomain.DEVICE: Capabilities.DEVICE_LOCAL_MEMORY,
    MemoryDomain.SHARED: Capabilities.SHARED_MEMORY,
}


class BufferUsage(enum.IntFlag):
    """What a buffer may be used for.

    `TRANSFER_SOURCE` is needed by `Buffer.read`, `TRANSFER_DESTINATION` by
    `Buffer.write`; the others by bindings (`allows`).
    """

    TRANSFER_SOURCE = 1
    TRANSFER_DESTINATION = 2
    PROGRAM_INPUT = 4
    PROGRAM_OUTPUT = 8
    MUTABLE_STATE = 16

    def allows(self, access: AccessMode) -> bool:
        """Whether a buffer of this usage may be bound with `access`."""
        # On plain integers: the operators of IntFlag take a microsecond each.
        return int.__and__(self, _ACCESS_USAGE[access]) != 0


USAGE_ALL = BufferUsage(31)
# Masks are plain integers: the complement of an IntFlag keeps to its known bits.
_USAGE_MASK = 31
USAGE_PROGRAM = (
    BufferUsage.PROGRAM_INPUT | BufferUsage.PROGRAM_OUTPUT | BufferUsage.MUTABLE_STATE
)


class AccessMode(enum.IntEnum):
    """What a program does with a binding."""

    READ = 1
    WRITE = 2
    READ_WRITE = 3


_ACCESS_USAGE = {
    AccessMode.READ: int(BufferUsage.PROGRAM_INPUT | BufferUsage.MUTABLE_STATE),
    AccessMode.WRITE: int(BufferUsage.PROGRAM_OUTPUT | BufferUsage.MUTABLE_STATE),
    AccessMode.READ_WRITE: int(BufferUsage.MUTABLE_STATE),
}


class BufferProperties(enum.IntFlag):
    """What an allocation turned out to be."""

    HOST_VISIBLE = 1
    DEVICE_LOCAL = 2
    DIRECT_BINDING = 4


class ContextFlags(enum.IntFlag):
    """Creation intents of a context; none is supported yet."""

    NONE = 0
    SECURE = 1


class QueueFlags(enum.IntFlag):
    """Creation intents of a queue; none is supported yet."""

    NONE = 0
    IN_ORDER = 1


class EventState(enum.Enum):
    """What is known of a submission; all but PENDING are final."""

    PENDING = "pending"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """Which device it is.

    Attributes:
        uuid: 16 bytes.
        device_class: kind of device.
        vendor_id: PCI or Khronos vendor number, a u32.
        device_id: the vendor's device number, a u32.

    Raises:
        InvalidArgument: `uuid` is not 16 bytes long.
    """

    uuid: bytes
    device_class: DeviceClass = DeviceClass.OTHER
    vendor_id: int = 0
    device_id: int = 0

    def __post_init__(self) -> None:
        """Checks the length of the UUID."""
        if len(self.uuid) != 16:
            raise InvalidArgument(
                f"a device UUID has 16 bytes, got {len(self.uuid)}: {self.uuid!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """How much of everything there may be.

    The limits on buffers, programs, queues and events hold for each context.

    Attributes:
        max_buffer_bytes: largest buffer in bytes.
        max_contexts: live contexts of an accelerator.
        max_buffers_per_context: live buffers.
        max_programs_per_context: live programs.
        max_queues_per_context: live queues.
        max_events_per_context: live events and prepared submissions (the ring depth).
        max_bindings_per_submission: bindings of one submission.
        max_artifact_bytes: largest artifact payload in bytes.
    """

    max_buffer_bytes: int
    max_contexts: int = 16
    max_buffers_per_context: int = 190
    max_programs_per_context: int = 64
    max_queues_per_context: int = 16
    max_events_per_context: int = 64
    max_bindings_per_submission: int = 256
    max_artifact_bytes: int = MAX_ARTIFACT_BYTES


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a device tells of itself; equal for the life of the accelerator.

    Attributes:
        identity: which device.
        limits: how much of everything.
        capabilities: what it offers, among it the memory domains.
    """

    identity: DeviceIdentity
    limits: DeviceLimits
    capabilities: Capabilities

    @property
    def domains(self) -> tuple[MemoryDomain, ...]:
        """The memory domains that the device advertises."""
        return tuple(d for d in MemoryDomain if self.capabilities & d.capability)


@dataclass(frozen=True, slots=True)
class ContextDesc:
    """A request for a context.

    Attributes:
        flags: intents; any flag is refused with `Unsupported` at creation.
    """

    flags: ContextFlags = ContextFlags.NONE


@dataclass(frozen=True, slots=True)
class QueueDesc:
    """A request for a queue.

    Attributes:
        flags: intents; any flag is refused with `Unsupported` at creation.
    """

    flags: QueueFlags = QueueFlags.NONE


@dataclass(frozen=True, slots=True)
class BufferDesc:
    """A request for a buffer.

    Attributes:
        nbytes: size in bytes.
        usage: at least one usage.
        domain: where the memory shall lie.
        alignment: least alignment in bytes, a power of two.

    Raises:
        InvalidArgument: zero bytes; alignment zero or no power of two; no usage, or an
            unknown one; a number that is no unsigned 64-bit integer.
    """

    nbytes: int
    usage: BufferUsage
    domain: MemoryDomain = MemoryDomain.HOST
    alignment: int = 4

    def __post_init__(self) -> None:
        """Checks the fields and makes plain Python values of them."""
        nbytes = unsigned("buffer bytes", self.nbytes)
        if nbytes == 0:
            raise InvalidArgument("a buffer has at least one byte, got 0")
        alignment = unsigned("buffer alignment", self.alignment)
        if not is_power_of_two(alignment):
            raise InvalidArgument(
                f"buffer alignment must be a power of two, got {alignment}"
            )
        usage = unsigned("buffer usage", self.usage, U32_MAX)
        if usage == 0:
            raise InvalidArgument("a buffer needs at least one usage")
        unknown = usage & ~_USAGE_MASK
        if unknown:
            raise InvalidArgument(
                f"buffer usage {usage:#x} has unknown bits {unknown:#x}"
            )
        try:
            domain = MemoryDomain(self.domain)
        except ValueError:
            raise InvalidArgument(
                f"unknown memory domain {self.domain!r}; there are "
                f"{', '.join(d.name for d in MemoryDomain)}"
            ) from None
        # Numbers may come as NumPy scalars or plain ints; keep exact Python values.
        object.__setattr__(self, "nbytes", nbytes)
        object.__setattr__(self, "alignment", alignment)
        object.__setattr__(self, "usage", BufferUsage(usage))
        object.__setattr__(self, "domain", domain)


@dataclass(frozen=True, slots=True)
class BufferInfo:
    """What was really allocated; `core.checks.check_buffer_info` compares it with the request.

    Attributes:
        allocation_bytes: bytes taken from the device, at least those requested.
        alignment: alignment of the first byte as far as it can be observed.
        properties: what the memory turned out to be.
    """

    allocation_bytes: int
    alignment: int
    properties: BufferProperties


@dataclass(frozen=True, slots=True)
class BufferRange:
    """Bytes of a buffer.

    Attributes:
        offset: first byte.
        nbytes: how many, at least one.

    Raises:
        InvalidArgument: no bytes, or a number that is no unsigned 64-bit integer.
        OutOfBounds: the end does not fit 64 bits.
    """

    offset: int
    nbytes: int

    def __post_init__(self) -> None:
        """Checks the range and makes plain integers of it."""
        nbytes = unsigned("range bytes", self.nbytes)
        if nbytes == 0:
            raise InvalidArgument("a buffer range has at least one byte, got 0")
        offset = unsigned("range offset", self.offset)
        if offset + nbytes > U64_MAX:
            raise OutOfBounds(
                f"buffer range {offset} + {nbytes} bytes does not fit 64 bits"
            )
        object.__setattr__(self, "offset", offset)
        object.__setattr__(self, "nbytes", nbytes)

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class Binding:
    """A buffer range for one slot of a program; the order of bindings has no meaning.

    Attributes:
        slot: slot number, a u32.
        buffer: the buffer.
        range: the tensor's bytes in it.
        access: READ for an input slot, WRITE for an output slot.

    Raises:
        InvalidArgument: slot or access is no such number.
    """

    slot: int
    buffer: Buffer
    range: BufferRange
    access: AccessMode

    def __post_init__(self) -> None:
        """Checks slot number and access."""
        object.__setattr__(self, "slot", unsigned("slot", self.slot, U32_MAX))
        object.__setattr__(self, "access", _access_mode(self.access))


@dataclass(frozen=True, slots=True)
class Timeout:
    """How long a submission may take, from its admission.

    Attributes:
        nanoseconds: nonzero, or None for no limit.

    Raises:
        InvalidArgument: zero, or no unsigned 64-bit integer.
    """

    nanoseconds: int | None = None

    def __post_init__(self) -> None:
        """Checks the number."""
        if self.nanoseconds is None:
            return
        nanoseconds = unsigned("timeout", self.nanoseconds)
        if nanoseconds == 0:
            raise InvalidArgument(
                "a timeout of 0 ns cannot be kept; use Timeout() for no limit"
            )
        object.__setattr__(self, "nanoseconds", nanoseconds)

    @classmethod
    def from_wire(cls, value: int) -> Timeout:
        """The timeout of a wire value, where 0 stands for no limit."""
        return cls(value or None)

    @property
    def is_finite(self) -> bool:
        """Whether there is a limit."""
        return self.nanoseconds is not None


@dataclass(frozen=True, slots=True)
class Artifact:
    """A program as somebody hands it over; nothing in it is trusted.

    Attributes:
        format: FORMAT_TOSA, FORMAT_NVFP4, or another nonzero u32 (refused at load).
        target: twelve u32 words that say what it was compiled for.
        payload: the bytes, in one piece or through a port. The model hands a device
            only payloads in one piece.
        resident_bytes: the bound that the caller authorises for everything the loaded
            program retains; only RESIDENT_UNBOUNDED is accepted at load.

    Raises:
        InvalidArgument: format or target out of range.
    """

    format: int
    target: tuple[int, ...]
    payload: bytes | bytearray | memoryview | ByteSource = field(repr=False)
    resident_bytes: int = RESIDENT_UNBOUNDED

    def __post_init__(self) -> None:
        """Checks format, target and bound."""
        kind = unsigned("artifact format", self.format, U32_MAX)
        if kind == 0:
            raise InvalidArgument("artifact format must not be 0")
        target = tuple(unsigned("target word", word, U32_MAX) for word in self.target)
        if len(target) != TARGET_WORDS:
            raise InvalidArgument(
                f"an artifact target has {TARGET_WORDS} words, got {len(target)}"
            )
        resident = unsigned("artifact resident_bytes", self.resident_bytes)
        object.__setattr__(self, "format", kind)
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "resident_bytes", resident)

    @property
    def payload_bytes(self) -> int:
        """Length of the payload; nothing is read."""
        if isinstance(self.payload, (bytes, bytearray)):
            return len(self.payload)
        return self.payload.nbytes

    def view(self) -> memoryview:
        """The payload in one piece: a view of it, or of a gathered copy.

        Raises:
            Error: whatever the payload's port raises.
            MemoryError: there is no room for the copy.
        """
        if isinstance(self.payload, (bytes, bytearray, memoryview)):
            return byte_view(self.payload).toreadonly()
        gathered = bytearray(self.payload.nbytes)
        self.payload.read_at(0, memoryview(gathered))
        return memoryview(gathered).toreadonly()


def unsigned(what: str, value: int, maximum: int = U64_MAX) -> int:
    """`value` as a Python int in 0..maximum.

    Raises:
        InvalidArgument: it is something else; the message names `what`.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(
            f"{what} must be an integer, got {type(value).__name__} {value!r}"
        ) from None
    if not 0 <= number <= maximum:
        raise InvalidArgument(f"{what} must be in 0..{maximum}, got {number}")
    return number


def _access_mode(value: int) -> AccessMode:
    try:
        return AccessMode(value)
    except ValueError:
        raise InvalidArgument(
            f"unknown access {value!r}; there are READ 1, WRITE 2, READ_WRITE 3"
        ) from None


def is_power_of_two(value: int) -> bool:
    """Whether it is 1, 2, 4 and so on."""
    return value > 0 and value & (value - 1) == 0
