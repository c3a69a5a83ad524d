"""Loading: segmented artifacts, limits, and what is refused."""

from __future__ import annotations

from dataclasses import replace

from tosavk.core.descriptors import Artifact
from tosavk.core.errors import (
    Incompatible,
    InvalidArgument,
    ModelError,
    ResourceLimit,
    Unsupported,
)
from tosavk.core.ports import Segments
from tosavk.testing.bench import Bench, Work
from tosavk.testing.cases.buffers import FaultyPort, PortFault
from tosavk.testing.report import Case, ContractFailure, Requirement

UNKNOWN_FORMAT = 0x3F3F3F3F
GARBAGE = b"this is no program at all; it is longer than any header might be"
RELOADS = 16


def segmented_artifact_bounds(bench: Bench) -> None:
    """A payload in two segments loads and runs; one too long is not even read."""
    context = bench.context()
    fixture = bench.fixture.program
    payload = bytes(fixture.artifact.view())
    cut = len(payload) // 3
    pieces = Segments([payload[:cut], payload[cut:]])
    program = bench.keep(
        context.load_program(replace(fixture.artifact, payload=pieces))
    )
    bench.run(bench.queue(context), Work(bench, context, fixture, program))
    limit = bench.accelerator.info.limits.max_artifact_bytes
    _refused(
        bench,
        f"a payload of {limit + 1} bytes",
        replace(fixture.artifact, payload=FaultyPort(limit + 1)),
        ResourceLimit,
    )


def rejected_artifacts(bench: Bench) -> None:
    """Each kind of bad artifact has its error, and leaves nothing."""
    good = bench.fixture.program.artifact
    for what, artifact, error in (
        ("a bounded resident_bytes", replace(good, resident_bytes=1), ResourceLimit),
        ("an unknown format", replace(good, format=UNKNOWN_FORMAT), Unsupported),
        ("foreign target words", replace(good, target=(2**32 - 1,) * 12), Incompatible),
        ("a garbage payload", replace(good, payload=GARBAGE), InvalidArgument),
        ("an empty payload", replace(good, payload=b""), InvalidArgument),
    ):
        _refused(bench, what, artifact, error)
    context = bench.context()
    bench.run(bench.queue(context), bench.work(context))


def failing_source(bench: Bench) -> None:
    """The error of a payload's port comes through."""
    context = bench.context()
    artifact = replace(bench.fixture.program.artifact, payload=FaultyPort(64))
    before = bench.counts()
    try:
        context.load_program(artifact)
    except PortFault:
        bench.counted(before, "after a payload that cannot be read")
    else:
        raise ContractFailure("an artifact whose payload cannot be read was loaded")


def repeated_loads(bench: Bench) -> None:
    """Loading and unloading leaves no trace; programs do not share their state."""
    context = bench.context()
    queue = bench.queue(context)
    before = bench.counts()
    for _ in range(RELOADS):
        bench.release(bench.program(context))
    bench.counted(before, f"after {RELOADS} loads and unloads")
    first, second = bench.program(context), bench.program(context)
    work = bench.work(context, program=first)
    again = bench.work(context, program=second)
    bench.run(queue, again)
    bench.release(second)
    bench.run(queue, work)


def _refused(
    bench: Bench, what: str, artifact: Artifact, error: type[ModelError]
) -> None:
    context = bench.context()
    bench.refused(what, lambda: context.load_program(artifact), error)
    bench.release(context)


CASES = (
    Case(
        "program.segmented-artifact-bounds",
        Requirement.MANDATORY,
        "artifacts load from segments; too long ones are refused unread",
        segmented_artifact_bounds,
    ),
    Case(
        "program.rejected-artifacts",
        Requirement.MANDATORY,
        "bad artifacts are refused with the right error and retain nothing",
        rejected_artifacts,
    ),
    Case(
        "program.failing-source",
        Requirement.MANDATORY,
        "the error of a payload's port comes through and nothing is retained",
        failing_source,
    ),
    Case(
        "program.repeated-loads",
        Requirement.MANDATORY,
        "loads and unloads leave no trace",
        repeated_loads,
    ),
)
