"""The cases of the contract, by what they are about."""

from tosavk.testing.cases import (
    buffers,
    events,
    gates,
    guards,
    imports,
    lifecycle,
    limits,
    loss,
    metadata,
    order,
    prepared,
    programs,
    submissions,
)

ALL_CASES = (
    *metadata.CASES,
    *buffers.CASES,
    *programs.CASES,
    *submissions.CASES,
    *guards.CASES,
    *events.CASES,
    *gates.CASES,
    *imports.CASES,
    *prepared.CASES,
    *order.CASES,
    *limits.CASES,
    *lifecycle.CASES,
    *loss.CASES,
)
