"""What a diff is asked to compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.registry import parse_spec
from tosavk.backends.session import tensor_spec
from tosavk.core.errors import InvalidArgument
from tosavk.core.plan import Numerics
from tosavk.differential.childside import Children
from tosavk.differential.generators import Generator, Style, generate, style_of
from tosavk.differential.inputs import fill_inputs
from tosavk.differential.sides import REFERENCE
from tosavk.differential.windows import BUDGET_BYTES
from tosavk.lowering.errors import VerifyError
from tosavk.lowering.graph import Graph
from tosavk.lowering.late import LateChecks
from tosavk.lowering.lower import live_operators

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Given:
    """Inputs of one run that are not random.

    Attributes:
        arrays: by input name.
        paths: files that they were read from, by input name.
    """

    arrays: Mapping[str, Array] = field(default_factory=dict[str, Array])
    paths: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRequest:
    """What to compare.

    Attributes:
        graph: a verified graph.
        model: its path or name for the report.
        source: the file that it was read from, for other processes; "": they get a
            copy of the graph.
        shapes: of inputs whose dimensions the file leaves open.
        model_sha256: of its file, or "".
        backends: at least two specifications; one may come several times.
        optional: whether a backend that is not there is left out; otherwise one that
            names no device is an error, and one that cannot be opened a finding.
        given: arrays for some inputs of every run.
        paths: files that they were read from, by input name.
        runs: further arrays for the first runs, one entry a run.
        samples: how many runs with different inputs; at least as many as in `runs`.
        seed: seed for the other inputs of the first run; the next has the next.
        generator: how they are chosen.
        numerics: mode.
        node_by_node: compare every operator.
        repeats: further runs for latency and repeatability.
        children: how the process of each backend is started; None: all run in this
            process, which a driver may end.
        window_bytes: intermediates that each side keeps at a time.
        command: the words of the command line that repeats this, or empty.
        environment: variables that choose drivers.
    """

    graph: Graph
    model: str
    backends: tuple[str, ...]
    given: Mapping[str, Array] = field(default_factory=dict[str, Array])
    seed: int = 0
    numerics: Numerics = Numerics.STRICT
    node_by_node: bool = False
    model_sha256: str = ""
    optional: bool = False
    paths: Mapping[str, str] = field(default_factory=dict[str, str])
    repeats: int = 3
    command: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    source: str = ""
    shapes: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict[str, tuple[int, ...]]
    )
    runs: tuple[Given, ...] = ()
    samples: int = 1
    generator: Generator = Generator.AUTO
    children: Children | None = Children()  # noqa: RUF009 - frozen
    window_bytes: int = BUDGET_BYTES

    @property
    def probing(self) -> bool:
        """Whether operators are compared too."""
        return self.node_by_node or self.with_reference

    @property
    def with_reference(self) -> bool:
        """Whether the reference takes part."""
        return any(parse_spec(spec)[0] == REFERENCE for spec in self.backends)

    @property
    def count(self) -> int:
        """How many runs with different inputs there are."""
        return max(1, self.samples, len(self.runs))

    def check(self) -> None:
        """Looks at what does not need a device.

        Raises:
            InvalidArgument: fewer than two backends, or one that is unknown.
        """
        if len(self.backends) < 2:
            raise InvalidArgument(
                "a comparison needs at least two backends; give --backend twice or more"
            )
        for spec in self.backends:
            parse_spec(spec)

    def given_in(self, sample: int) -> Given:
        """What is given for one run."""
        own = self.runs[sample] if sample < len(self.runs) else Given()
        return Given({**self.given, **own.arrays}, {**self.paths, **own.paths})

    def styles(self, sample: int) -> dict[str, Style]:
        """How the values of the inputs that are not given are chosen, by name."""
        given = self.given_in(sample).arrays
        block = self.graph.main
        return {
            name: style_of(self.generator, sample, block, name)
            for name in block.inputs
            if name not in given
        }

    def inputs(self, sample: int) -> dict[str, Array]:
        """An array for every input of one run.

        Raises:
            InvalidArgument: what is given does not fit, or an operator must not be given
            such a value.
        """
        block = self.graph.main
        restrict = self.generator is not Generator.UNIFORM
        made = {
            name: generate(
                block, name, style=style, seed=self.seed + sample, restrict=restrict
            )
            for name, style in self.styles(sample).items()
        }
        specs = [tensor_spec(block.tensors[name]) for name in block.inputs]
        given = {**self.given_in(sample).arrays, **made}
        arrays = fill_inputs(specs, given, seed=self.seed + sample)
        try:
            LateChecks.of(block, live_operators(block)).check(arrays)
        except VerifyError as error:
            raise InvalidArgument(f"{self.of_run(sample)}{error}") from error
        return arrays

    def of_run(self, sample: int) -> str:
        """Says which run something is about, where there are several; else ""."""
        return f"input {sample + 1} of {self.count}: " if self.count > 1 else ""
