"""The cases of the contract, by what they are about."""

from tosavk.testing.cases import (
    buffers,
    events,
    guards,
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
    *prepared.CASES,
    *order.CASES,
    *limits.CASES,
    *lifecycle.CASES,
    *loss.CASES,
)
