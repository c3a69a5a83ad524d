"""Programs with data whose results are known: what the contract suite runs."""

from __future__ import annotations

from dataclasses import dataclass

from tosavk.core.descriptors import AccessMode, Artifact, MemoryDomain
from tosavk.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingFixture:
    """One slot of a program, with the bytes before and after it has run.

    Attributes:
        slot: slot number.
        access: READ for an input, WRITE for an output.
        initial: the tensor's bytes before.
        expected: the bytes after; None where they must be the initial ones.
        domain: where its buffer lies; None for the first domain of the device.
        alignment: of its buffer, in bytes.

    Raises:
        InvalidArgument: lengths differ, an input is expected to change, or an output
            to stay as it is, which would prove nothing.
    """

    slot: int
    access: AccessMode
    initial: bytes
    expected: bytes | None = None
    domain: MemoryDomain | None = None
    alignment: int = 4

    def __post_init__(self) -> None:
        """Checks that the data can tell a working program from an idle one."""
        written = self.access is not AccessMode.READ
        if written != (self.expected is not None):
            raise InvalidArgument(
                f"slot {self.slot}: outputs, and only those, have expected bytes"
            )
        if self.expected is not None:
            if len(self.expected) != len(self.initial):
                raise InvalidArgument(
                    f"slot {self.slot}: {len(self.initial)} initial bytes, "
                    f"{len(self.expected)} expected ones"
                )
            if self.expected == self.initial:
                raise InvalidArgument(
                    f"slot {self.slot}: an output must not be expected to stay as it is"
                )

    @property
    def nbytes(self) -> int:
        """Length of the tensor in bytes."""
        return len(self.initial)

    @property
    def result(self) -> bytes:
        """What is there afterwards."""
        return self.initial if self.expected is None else self.expected


@dataclass(frozen=True, slots=True)
class ProgramFixture:
    """A program with data for every slot.

    Attributes:
        artifact: what `load_program` is given.
        bindings: one for each slot, with at least one output.

    Raises:
        InvalidArgument: there is no output.
    """

    artifact: Artifact
    bindings: tuple[BindingFixture, ...]

    def __post_init__(self) -> None:
        """Checks that there is something to compare."""
        if not any(b.access is AccessMode.WRITE for b in self.bindings):
            raise InvalidArgument("a program fixture needs an output")

    @property
    def inputs(self) -> tuple[BindingFixture, ...]:
        """The bindings that are read."""
        return tuple(b for b in self.bindings if b.access is AccessMode.READ)

    @property
    def primary(self) -> BindingFixture:
        """The first binding that is written."""
        return next(b for b in self.bindings if b.access is AccessMode.WRITE)


@dataclass(frozen=True, slots=True)
class Fixture:
    """What an implementation is tested with.

    Attributes:
        program: the program of most cases: at least one input and one output.
        packed: a program with an output whose bytes are no multiple of four; None
            skips the case that needs it.
        overlapping: the same program several times with different data. It should
            keep intermediates, and have two inputs that `sharing` may give one
            buffer. Empty skips the case.
        sharing: a program fixture in which two inputs have the same bytes, or None.

    Raises:
        InvalidArgument: `program` has no input.
    """

    program: ProgramFixture
    packed: ProgramFixture | None = None
    overlapping: tuple[ProgramFixture, ...] = ()
    sharing: ProgramFixture | None = None

    def __post_init__(self) -> None:
        """Checks what most cases rely on."""
        if not self.program.inputs:
            raise InvalidArgument("the program of a fixture needs an input")
