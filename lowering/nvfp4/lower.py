"""NVFP4 artifacts to plans.

Every product of one matrix is one dispatch. Tokens with matrices in slots of their own
(mode EXPERTS, fused experts) get a dispatch each, so that no kernel binds more buffers
than small devices allow. They write disjoint rows: where a row is a whole number of
descriptor alignments, each binds its own and none waits; shorter rows share a binding,
and one waits for the other, since a bound result counts as written.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from tosavk.core.dtypes import DType, storage_bytes
from tosavk.core.errors import ResourceLimit
from tosavk.core.nvfp4 import BLOCK
from tosavk.core.plan import (
    OPERAND_WORDS,
    Constant,
    Dispatch,
    Numerics,
    Operand,
    OperatorName,
    Plan,
    PlanLimits,
    Slot,
    SlotRole,
)
from tosavk.lowering.nvfp4.artifact import (
    Activation,
    Experts,
    Extra,
    Mode,
    Program,
    Projection,
)
from tosavk.lowering.nvfp4.kernels import (
    LANES,
    SUBGROUP,
    Choice,
    choose,
    tile_for,
)
from tosavk.lowering.nvfp4.launches import Launch, finish_launch
from tosavk.lowering.nvfp4.tiles import FastTile
from tosavk.shaders.catalogue import kernels

_WIDE_GROUP = 128


@dataclass(frozen=True, slots=True)
class LoweredNvfp4:
    """An NVFP4 program with its plan and the kernel that was chosen."""

    program: Program
    plan: Plan
    choice: Choice


def slots_of(program: Program) -> tuple[Slot, ...]:
    """The slots of a program: inputs, then the output (docs/nvfp4.md, "Artifacts")."""
    table = _Slots()
    if isinstance(program, Projection):
        _projection_slots(program, table)
    else:
        table.add("x", DType.FP32, (program.batch, program.width))
        for e in range(program.batch):
            table.add(f"expert{e}", DType.INT8, (program.expert_bytes,))
        table.add("up_tensor_scales", DType.FP32, (program.batch,))
        table.add("down_tensor_scales", DType.FP32, (program.batch,))
        table.output("y", (program.batch, program.width))
    return tuple(table.slots)


def lower_nvfp4(
    program: Program,
    *,
    limits: PlanLimits | None = None,
    numerics: Numerics = Numerics.STRICT,
    broken: Mapping[str, str] | None = None,
    asked: str = "",
) -> LoweredNvfp4:
    """Lowers an NVFP4 program.

    Args:
        program: what the artifact holds.
        limits: what the device offers.
        numerics: FAST also allows kernels that are not strict.
        broken: kernels that must not be used, with the reason.
        asked: the one kernel to take, by its name in the catalogue; "" for the best.

    Raises:
        ResourceLimit: a tensor is larger than the device's storage buffers, or no
            kernel fits.
    """
    limits = limits or PlanLimits(max_storage_buffers=8)
    instead = limits.lack("kernels")
    if not instead:
        choice = choose(
            limits, program=program, numerics=numerics, broken=broken, asked=asked
        )
    elif asked:
        raise ResourceLimit(f"no kernel {asked}: the device has {instead}")
    else:
        choice = Choice(instead)
    return lower_with(choice, program, limits=limits, numerics=numerics)


def lower_with(
    choice: Choice, program: Program, *, limits: PlanLimits, numerics: Numerics
) -> LoweredNvfp4:
    """Lowers a program with a kernel, and a tile, that was chosen for it or its like.

    Raises:
        ResourceLimit: a tensor is larger than the device's storage buffers.
    """
    slots = slots_of(program)
    for slot in slots:
        if slot.nbytes > limits.max_storage_buffer_range:
            raise ResourceLimit(
                f"{slot.role.value} {slot.name!r} needs {slot.nbytes} bytes in one "
                f"storage buffer; the device allows {limits.max_storage_buffer_range} "
                "(maxStorageBufferRange)"
            )
    if limits.lack("kernels"):
        plan = Plan(slots, (), (), (), (), (), numerics)
        return LoweredNvfp4(program, plan, choice)
    build = _Build(slots, choice.kernel, limits)
    if isinstance(program, Experts):
        _lower_experts(program, build)
    elif choice.tile is not None:
        _lower_fast(program, build, choice.tile)
    else:
        _lower_projection(program, build)
    plan = Plan(
        slots=slots,
        segments=tuple(build.segments),
        constants=tuple(build.constants),
        prologue=(),
        dispatches=tuple(build.dispatches),
        operators=tuple(
            OperatorName(i, name, "y") for i, name in enumerate(build.operators)
        ),
        numerics=numerics,
    )
    return LoweredNvfp4(program, plan, choice)


class _Slots:
    """Slots in order."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []

    def add(
        self,
        name: str,
        dtype: DType,
        shape: tuple[int, ...],
        role: SlotRole = SlotRole.INPUT,
    ) -> None:
        nbytes = storage_bytes(dtype, shape)
        self.slots.append(Slot(len(self.slots), name, role, dtype, shape, nbytes))

    def output(self, name: str, shape: tuple[int, ...]) -> None:
        self.add(name, DType.FP32, shape, SlotRole.OUTPUT)


def _projection_slots(program: Projection, table: _Slots) -> None:
    m, n, k = program.m, program.n, program.k
    table.add("x", DType.FP32, (m, k))
    if program.mode is Mode.EXPERTS:
        for e in range(m):
            table.add(f"packed{e}", DType.INT8, (n, k // 2))
            table.add(f"scales{e}", DType.FP8E4M3, (n, k // BLOCK))
    else:
        stack = (m,) if program.mode is Mode.BATCHED else ()
        table.add("packed", DType.INT8, (*stack, n, k // 2))
        table.add("scales", DType.FP8E4M3, (*stack, n, k // BLOCK))
    many = 1 if program.mode is Mode.SHARED else m
    each = (n,) if program.extras & Extra.ROW_SCALES else ()
    table.add("tensor_scale", DType.FP32, (many, *each))
    if program.extras & Extra.BIAS:
        table.add("bias", DType.FP32, (many, n))
    if program.extras & Extra.RESIDUAL:
        table.add("residual", DType.FP32, (m, n))
    table.output("y", (m, n))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """One dispatch: `m` tokens with one matrix, or with a stack of them.

    Attributes:
        x, packed, scales, tensor_scale, bias, residual, y: operands.
        x_at ... y_at: where the first token's data begin in them, in words.
        stacked: token t uses matrix t of a stack.
    """

    m: int
    n: int
    k: int
    activation: Activation
    x: Operand
    packed: Operand
    scales: Operand
    tensor_scale: Operand
    y: Operand
    bias: Operand | None = None
    residual: Operand | None = None
    x_at: int = 0
    w_at: int = 0
    s_at: int = 0
    t_at: int = 0
    b_at: int = 0
    r_at: int = 0
    y_at: int = 0
    stacked: bool = False
    row_scales: bool = False


@dataclass(slots=True)
class _Build:
    """Collects dispatches."""

    slots: tuple[Slot, ...]
    kernel: str
    limits: PlanLimits
    segments: list[int] = field(default_factory=list[int])
    constants: list[Constant] = field(default_factory=list[Constant])
    dispatches: list[Dispatch] = field(default_factory=list[Dispatch])
    operators: list[str] = field(default_factory=list[str])

    def slot(self, name: str) -> Operand:
        """A whole slot."""
        slot = next(s for s in self.slots if s.name == name)
        return Operand(slot.index, 0, -(-slot.nbytes // 4))

    def scratch(self, nbytes: int) -> Operand:
        """An arena segment of its own.

        Raises:
            ResourceLimit: it is larger than the device's storage buffers.
        """
        if nbytes > self.limits.max_storage_buffer_range:
            raise ResourceLimit(
                f"what lies between the kernels needs {nbytes} bytes in one storage "
                f"buffer; the device allows {self.limits.max_storage_buffer_range}"
            )
        self.segments.append(nbytes)
        return Operand(len(self.slots) + len(self.segments) - 1, 0, nbytes // 4)

    def one(self) -> Operand:
        """A constant 1.0."""
        place = self.scratch(4)
        data = memoryview(struct.pack("<f", 1.0))
        self.constants.append(Constant(len(self.segments) - 1, 0, data))
        return place

    def launch(
        self,
        launch: Launch,
        operands: tuple[Operand, ...],
        name: str,
        *,
        barrier: bool,
    ) -> None:
        """Adds a dispatch of a kernel that is not a strict product."""
        entry = kernels()[launch.kernel]
        self.dispatches.append(
            Dispatch(
                kernel=launch.kernel,
                spec=tuple(launch.spec[word] for word in entry.spec),
                params=tuple(launch.params[word] for word in entry.params),
                operands=operands,
                columns=launch.columns,
                tiles=launch.tiles,
                barrier=barrier,
                operator=len(self.operators),
                layers=launch.layers,
                width=launch.width,
            )
        )
        self.operators.append(name)

    def add(self, product: _Product, name: str, *, barrier: bool = False) -> None:
        """Adds the dispatch of a product."""
        sharing = 1 if product.stacked else product.m
        tile = tile_for(self.kernel, m=sharing, n=product.n)
        columns = -(-product.n // tile.rows)
        teams = columns * -(-product.m // tile.tokens)
        has_bias = product.bias is not None
        has_residual = product.residual is not None
        words = {
            "teams": teams,
            "columns": columns,
            "m": product.m,
            "n": product.n,
            "k": product.k,
            "x_at": product.x_at,
            "w_at": product.w_at,
            "s_at": product.s_at,
            "t_at": product.t_at,
            "b_at": product.b_at,
            "r_at": product.r_at,
            "y_at": product.y_at,
            "w_step": product.n if product.stacked else 0,
            "t_step": (product.n if product.row_scales else 1) * product.stacked,
            "t_row": int(product.row_scales),
            "b_step": product.n if product.stacked else 0,
            "extras": has_bias | has_residual << 1,
        }
        spec = {
            "ROWS": tile.rows,
            "TOKENS": tile.tokens,
            "PAIRS": int(product.w_at % 2 == 0),
            "ACTIVATION": int(product.activation),
        }
        entry = kernels()[self.kernel]
        self.dispatches.append(
            Dispatch(
                kernel=self.kernel,
                spec=tuple(spec[name] for name in entry.spec),
                params=tuple(words[name] for name in entry.params),
                operands=(
                    product.x,
                    product.packed,
                    product.scales,
                    product.tensor_scale,
                    product.bias or product.x,
                    product.residual or product.x,
                    product.y,
                ),
                columns=teams * LANES,
                tiles=1,
                barrier=barrier,
                operator=len(self.operators),
                width=self._strict_width(tile.tokens),
            )
        )
        self.operators.append(name)

    def _strict_width(self, tokens: int) -> int:
        """Two tokens are faster in wide groups; 0 is the kernel's own width."""
        wide = self.kernel == SUBGROUP and tokens == 2
        fits = self.limits.max_workgroup_invocations >= _WIDE_GROUP
        return _WIDE_GROUP if wide and fits else 0


@dataclass(frozen=True, slots=True)
class _Row:
    """Where a token's results go.

    Attributes:
        operand: what is bound.
        first: first word of the row in it.
        shared: whether other tokens' rows are bound with it.
    """

    operand: Operand
    first: int
    shared: bool = False


def _row(whole: Operand, token: int, words: int) -> _Row:
    """The row of a token, alone if descriptors may begin there."""
    if words % OPERAND_WORDS:
        return _Row(whole, token * words, shared=True)
    return _Row(Operand(whole.buffer, token * words, words), 0)


def _lower_projection(program: Projection, build: _Build) -> None:
    n, k = program.n, program.k
    bias = build.slot("bias") if program.extras & Extra.BIAS else None
    residual = build.slot("residual") if program.extras & Extra.RESIDUAL else None
    row_scales = bool(program.extras & Extra.ROW_SCALES)
    experts = program.mode is Mode.EXPERTS
    for e in range(program.m if experts else 1):
        suffix = str(e) if experts else ""
        row = _row(build.slot("y"), e, n) if experts else _Row(build.slot("y"), 0)
        product = _Product(
            m=1 if experts else program.m,
            n=n,
            k=k,
            activation=program.activation,
            x=build.slot("x"),
            packed=build.slot(f"packed{suffix}"),
            scales=build.slot(f"scales{suffix}"),
            tensor_scale=build.slot("tensor_scale"),
            bias=bias,
            residual=residual,
            y=row.operand,
            x_at=e * k,
            t_at=e * n if row_scales else e,
            b_at=e * n,
            r_at=e * n,
            y_at=row.first,
            stacked=program.mode is Mode.BATCHED,
            row_scales=row_scales,
        )
        build.add(product, "NVFP4_PROJECTION", barrier=row.shared and e > 0)


def _lower_fast(program: Projection, build: _Build, tile: FastTile) -> None:
    """A fast kernel, which knows one matrix and one tensor scale; the rest behind it."""
    activation = Activation.NONE if program.extras else program.activation
    steps = tile.steps(program, activation)
    x, y = build.slot("x"), build.slot("y")
    scale, bias, residual = build.slot("tensor_scale"), x, x
    factor, target = scale, y
    if program.extras:
        factor = build.one()
        target = build.scratch(4 * program.m * program.n)
        if program.extras & Extra.BIAS:
            bias = build.slot("bias")
        if program.extras & Extra.RESIDUAL:
            residual = build.slot("residual")
    if steps.halves is not None:
        halves = build.scratch(steps.halves_bytes)
        build.launch(steps.halves, (x, halves), "NVFP4_HALVES", barrier=False)
        x = halves
    operands = (x, build.slot("packed"), build.slot("scales"), factor, target)
    build.launch(
        steps.product,
        operands,
        "NVFP4_PROJECTION",
        barrier=steps.halves is not None,
    )
    if program.extras:
        operands = (target, scale, bias, residual, y)
        build.launch(finish_launch(program), operands, "NVFP4_FINISH", barrier=True)


def _lower_experts(program: Experts, build: _Build) -> None:
    width, inner = program.width, program.inner
    between = build.scratch(4 * program.batch * inner)
    for e, offsets in enumerate(program.offsets):
        span = build.slot(f"expert{e}")
        row = _row(between, e, inner)
        up = _Product(
            m=1,
            n=inner,
            k=width,
            activation=Activation.SQUARED_RELU,
            x=build.slot("x"),
            packed=span,
            scales=span,
            tensor_scale=build.slot("up_tensor_scales"),
            y=row.operand,
            x_at=e * width,
            w_at=offsets.up_packed // 4,
            s_at=offsets.up_scales // 4,
            t_at=e,
            y_at=row.first,
        )
        build.add(up, "NVFP4_UP", barrier=row.shared and e > 0)
    for e, offsets in enumerate(program.offsets):
        span = build.slot(f"expert{e}")
        row = _row(build.slot("y"), e, width)
        down = _Product(
            m=1,
            n=width,
            k=inner,
            activation=Activation.NONE,
            x=between,
            packed=span,
            scales=span,
            tensor_scale=build.slot("down_tensor_scales"),
            y=row.operand,
            x_at=e * inner,
            w_at=offsets.down_packed // 4,
            s_at=offsets.down_scales // 4,
            t_at=e,
            y_at=row.first,
        )
        build.add(down, "NVFP4_DOWN", barrier=row.shared or e == 0)
