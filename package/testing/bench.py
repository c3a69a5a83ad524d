"""One case's accelerator, and everything that the case makes on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from tosavk.core.descriptors import (
    USAGE_ALL,
    AccessMode,
    Binding,
    BufferDesc,
    BufferRange,
    BufferUsage,
    EventState,
    MemoryDomain,
)
from tosavk.core.errors import Busy, Indeterminate, ModelError
from tosavk.core.shared import LiveResources
from tosavk.testing.fixture import BindingFixture, Fixture, ProgramFixture
from tosavk.testing.hooks import Diagnostics, Hooks
from tosavk.testing.protocols import (
    AcceleratorHandle,
    BufferHandle,
    ContextHandle,
    EventHandle,
    Factory,
    Gate,
    Handle,
    ProgramHandle,
    QueueHandle,
)
from tosavk.testing.report import ContractFailure, Skip

NOTHING = LiveResources()
H = TypeVar("H", bound=Handle)


def require(promise: bool, broken: str) -> None:  # noqa: FBT001 - an assertion
    """Raises unless a promise is kept.

    Raises:
        ContractFailure: with the text `broken`.
    """
    if not promise:
        raise ContractFailure(broken)


def same(got: object, wanted: object, what: str) -> None:
    """Raises unless two values are equal.

    Raises:
        ContractFailure: naming `what` and both values.
    """
    if got != wanted:
        raise ContractFailure(f"{what}: expected {_short(wanted)}, got {_short(got)}")


def refuses(what: str, call: Callable[[], object], *errors: type[ModelError]) -> None:
    """Raises unless a call raises one of the errors.

    Raises:
        ContractFailure: it raises another one, or none.
    """
    names = " or ".join(error.__name__ for error in errors)
    try:
        result = call()
    except errors:
        return
    except Exception as error:
        raise ContractFailure(
            f"{what}: expected {names}, got {type(error).__name__}: {error}"
        ) from error
    raise ContractFailure(f"{what}: expected {names}, but it was accepted ({result!r})")


TRANSFERS = BufferUsage.TRANSFER_SOURCE | BufferUsage.TRANSFER_DESTINATION


class Work:
    """A program with its own buffers, filled with the initial bytes of a fixture.

    Attributes:
        fixture: the data.
        program: the loaded program.
        buffers: one for each binding of the fixture.
        bindings: whole buffers, in the fixture's order.
    """

    def __init__(
        self,
        bench: Bench,
        context: ContextHandle,
        fixture: ProgramFixture,
        program: ProgramHandle,
    ) -> None:
        """Allocates and fills the buffers."""
        self.fixture = fixture
        self.program = program
        self.buffers = [bench.buffer_of(context, part) for part in fixture.bindings]
        self.bindings = [
            binding(part, buffer)
            for part, buffer in zip(fixture.bindings, self.buffers, strict=True)
        ]

    @property
    def input(self) -> int:
        """Position of the first input."""
        return self.fixture.bindings.index(self.fixture.inputs[0])

    @property
    def output(self) -> int:
        """Position of the primary output."""
        return self.fixture.bindings.index(self.fixture.primary)

    def but(self, position: int, changed: Binding) -> list[Binding]:
        """The bindings with one of them changed."""
        listed = list(self.bindings)
        listed[position] = changed
        return listed

    def check(self) -> None:
        """Compares all buffers with what the fixture expects after a run."""
        for part, buffer in zip(self.fixture.bindings, self.buffers, strict=True):
            same(
                buffer.read(0, part.nbytes),
                part.result,
                f"slot {part.slot} after the run",
            )

    def reset(self) -> None:
        """Writes the initial bytes of the outputs again."""
        for part, buffer in zip(self.fixture.bindings, self.buffers, strict=True):
            if part.expected is not None:
                buffer.write(0, part.initial)


class Bench:
    """See the module.

    Attributes:
        accelerator: a fresh one.
        fixture: programs and data.
        hooks: ways to look and act from outside.
        notes: what the case could not decide.
    """

    def __init__(self, factory: Factory, fixture: Fixture, hooks: Hooks) -> None:
        """Makes the accelerator.

        Raises:
            ContractFailure: something is live on a fresh accelerator.
        """
        self.fixture = fixture
        self.hooks = hooks
        self.notes: list[str] = []
        self._factory = factory
        self._live: list[Handle] = []
        self._others: list[AcceleratorHandle] = []
        self._gates: list[Gate] = []
        self.accelerator = factory()
        try:
            self.counted(NOTHING, "on a fresh accelerator")
        except BaseException:
            self.accelerator.close()
            raise

    # Making things ------------------------------------------------------------------

    def another(self) -> AcceleratorHandle:
        """A second accelerator, closed with this bench."""
        other = self._factory()
        self._others.append(other)
        return other

    def keep(self, handle: H) -> H:
        """Notes a handle, to be released when the case is over."""
        self._live.append(handle)
        return handle

    def context(self) -> ContextHandle:
        """A new context."""
        return self.keep(self.accelerator.create_context())

    def queue(self, context: ContextHandle) -> QueueHandle:
        """A new queue."""
        return self.keep(context.create_queue())

    def gate(self) -> Gate | None:
        """A closed gate, which is opened and given back with this bench, or None."""
        hook = self.hooks.gate
        made = None if hook is None else hook(self.accelerator)
        if made is not None:
            self._gates.append(made)
        return made

    def buffer(
        self,
        context: ContextHandle,
        nbytes: int,
        usage: BufferUsage = USAGE_ALL,
        domain: MemoryDomain | None = None,
        alignment: int = 4,
    ) -> BufferHandle:
        """A new buffer; of the device's first domain unless one is named."""
        where = self.accelerator.info.domains[0] if domain is None else domain
        desc = BufferDesc(nbytes, usage, where, alignment)
        return self.keep(context.allocate_buffer(desc))

    def buffer_of(self, context: ContextHandle, part: BindingFixture) -> BufferHandle:
        """A buffer with the initial bytes of a slot."""
        domain = part.domain
        if domain not in self.accelerator.info.domains:
            domain = None
        made = self.buffer(
            context, part.nbytes, domain=domain, alignment=part.alignment
        )
        made.write(0, part.initial)
        return made

    def program(
        self, context: ContextHandle, fixture: ProgramFixture | None = None
    ) -> ProgramHandle:
        """A loaded program; the fixture's main one unless another is given."""
        chosen = fixture or self.fixture.program
        return self.keep(context.load_program(chosen.artifact))

    def work(
        self,
        context: ContextHandle,
        fixture: ProgramFixture | None = None,
        program: ProgramHandle | None = None,
    ) -> Work:
        """Buffers for a program, which is loaded unless it is given."""
        chosen = fixture or self.fixture.program
        loaded = program or self.program(context, chosen)
        return Work(self, context, chosen, loaded)

    def submit(
        self,
        queue: QueueHandle,
        work: Work,
        bindings: Sequence[Binding] | None = None,
    ) -> EventHandle:
        """Submits; the event is released when the case is over."""
        listed = work.bindings if bindings is None else bindings
        return self.keep(queue.submit(work.program, listed))

    # Ending things ------------------------------------------------------------------

    def complete(self, event: EventHandle) -> None:
        """Brings an event to its end.

        Raises:
            ContractFailure: it does not become COMPLETE.
        """
        self.hooks.complete(event)
        state = event.poll()
        if state is not EventState.COMPLETE:
            raise ContractFailure(f"work ended as {state.value} ({event.error!r})")

    def run(self, queue: QueueHandle, work: Work) -> None:
        """Submits, waits, compares and releases."""
        event = self.submit(queue, work)
        self.complete(event)
        work.check()
        self.release(event)

    def release(self, *handles: Handle) -> None:
        """Releases handles; each is retried at most once, after its work has ended.

        Raises:
            ContractFailure: it is still refused.
        """
        for handle in handles:
            self.forget(handle)
            try:
                handle.release()
            except Busy:
                self._finish_events()
                refused = handle
            else:
                continue
            try:
                refused.release()
            except ModelError as error:
                raise ContractFailure(
                    f"{handle!r} cannot be released: {type(error).__name__}: {error}"
                ) from error

    def forget(self, handle: object) -> None:
        """No longer releases a handle at the end."""
        self._live = [kept for kept in self._live if kept is not handle]

    def clean(self) -> None:
        """Releases everything, last made first, and closes.

        Raises:
            ContractFailure: something cannot be released, or is still counted.
        """
        for gate in self._gates:
            gate.open()
        self._finish_events()
        while self._live:
            self.release(self._live[-1])
        while self._gates:
            self._gates.pop().close()
        self.counted(NOTHING, "after everything was released")
        self.accelerator.close()

    def abandon(self) -> None:
        """Closes after a failure, whatever state things are in."""
        self._live.clear()
        for gate in self._gates:
            with suppress(Exception):
                gate.open()
        # First what this one should never have waited for.
        self.close_others()
        with suppress(Exception):
            self.accelerator.close()

    def close_others(self) -> None:
        """Closes the further accelerators."""
        while self._others:
            with suppress(Exception):
                self._others.pop().close()

    def _finish_events(self) -> None:
        for handle in self._live:
            if hasattr(handle, "poll"):
                with suppress(ModelError):
                    self.hooks.complete(cast(EventHandle, handle))

    # Looking ------------------------------------------------------------------------

    def counts(self) -> LiveResources | None:
        """What is live, or None without that hook."""
        hook = self.hooks.counts
        return None if hook is None else hook(self.accelerator)

    def counted(self, wanted: LiveResources | None, when: str) -> None:
        """Compares what is live.

        Raises:
            ContractFailure: it is something else.
        """
        if wanted is not None and self.hooks.counts is not None:
            same(self.counts(), wanted, f"live resources {when}")

    def diagnostics(self) -> Diagnostics | None:
        """The totals, or None without that hook."""
        hook = self.hooks.diagnostics
        return None if hook is None else hook(self.accelerator)

    def refused(
        self, what: str, call: Callable[[], object], *errors: type[ModelError]
    ) -> None:
        """Like `refuses`; and nothing may be live afterwards that was not before.

        Raises:
            ContractFailure: another error, none, or something is left.
        """
        before, totals = self.counts(), self.diagnostics()
        refuses(what, call, *errors)
        self.counted(before, f"after the refusal of {what}")
        same(self.diagnostics(), totals, f"totals after the refusal of {what}")


def binding(
    part: BindingFixture,
    buffer: BufferHandle,
    offset: int = 0,
    *,
    slot: int | None = None,
    access: AccessMode | None = None,
    nbytes: int | None = None,
) -> Binding:
    """A binding of a slot to a buffer; what is given differs from the fixture.

    Args:
        part: the slot.
        buffer: an implementation's own buffer.
        offset: first byte of the tensor in it.
        slot: another slot number.
        access: another access.
        nbytes: another length of the range.
    """
    return Binding(
        part.slot if slot is None else slot,
        cast(Any, buffer),
        BufferRange(offset, part.nbytes if nbytes is None else nbytes),
        part.access if access is None else access,
    )


def settle_indeterminate(error: Indeterminate) -> None:
    """Releases the event that an Indeterminate error carries."""
    cast(Handle, error.event).release()


def needs(present: object, reason: str) -> None:
    """Skips the case unless something is there.

    Raises:
        Skip: with `reason`.
    """
    if not present:
        raise Skip(reason)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:150]}... ({len(text)} characters)"
