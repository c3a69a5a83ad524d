"""NVFP4 products on a device: weights stay there, activations come and go."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tosavk.backends.loaded import Closing, LoadedPlan
from tosavk.backends.nvfp4_check import lower_checked
from tosavk.core.accelerator import Accelerator
from tosavk.core.dtypes import DType, coerce
from tosavk.core.errors import InvalidArgument, Released
from tosavk.core.nvfp4 import Weights
from tosavk.core.plan import Numerics, Slot, SlotRole
from tosavk.lowering.nvfp4.artifact import (
    Activation,
    Extra,
    Program,
    Projection,
)
from tosavk.lowering.nvfp4.kernels import Choice, kernel_named

Array = NDArray[Any]


class Nvfp4Session(Closing):
    """An NVFP4 program loaded on a device, with a buffer for each slot.

    A context manager; it belongs to the thread that made it. What was written to an
    input slot stays there until it is written again.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        program: Program,
        *,
        numerics: Numerics = Numerics.STRICT,
        kernel: str = "",
        owns_accelerator: bool = False,
    ) -> None:
        """Loads `program` in a context of its own.

        Args:
            accelerator: where to.
            program: what an artifact holds.
            numerics: FAST also allows kernels that are not strict.
            kernel: the one kernel to take, such as "khr" or "nv" (docs/nvfp4.md); "" for
                the best that the device has.
            owns_accelerator: the accelerator is closed with the session, also when
                loading fails.

        Raises:
            ModelError: the device refuses the program.
        """
        self._accelerator = accelerator
        self._closed = False
        self._closing = ExitStack()
        if owns_accelerator:
            self._closing.enter_context(accelerator)
        try:
            lowered = lower_checked(
                accelerator.device,
                program,
                numerics=numerics,
                asked=kernel_named(kernel),
            )
            self.program = program
            self.plan = lowered.plan
            self.choice: Choice = lowered.choice
            context = self._closing.enter_context(accelerator.create_context())
            self._loaded = LoadedPlan(accelerator, context, lowered)
        except BaseException:
            self._closing.close()
            raise
        self._slots = {slot.name: slot for slot in self.plan.slots}

    @property
    def device_name(self) -> str:
        """The device and driver that runs the program."""
        return self._accelerator.name

    def write(self, name: str, value: object) -> None:
        """Fills an input slot: FP32 values, or the bytes of codes, scales and spans.

        Raises:
            InvalidArgument: no such input, or another type or size.
            Released: the session is closed.
        """
        if self._closed:
            raise Released("the NVFP4 program is closed; load it again")
        slot = self._slots.get(name)
        if slot is None or slot.role is not SlotRole.INPUT:
            inputs = ", ".join(s.name for s in self.plan.inputs)
            raise InvalidArgument(f"{name!r} is no input; the inputs are {inputs}")
        self._loaded.write(slot, _bytes(slot, value).data)

    def run(self, inputs: Mapping[str, object] | None = None) -> NDArray[np.float32]:
        """Writes some inputs and runs the program once.

        Args:
            inputs: values by slot name; other slots keep what they have.

        Returns:
            The result, float32.

        Raises:
            InvalidArgument: see `write`.
            Released: the session is closed.
            DeviceLost: the device was lost while it ran.
        """
        for name, value in (inputs or {}).items():
            self.write(name, value)
        if self._closed:
            raise Released("the NVFP4 program is closed; load it again")
        self._loaded.run()
        (slot,) = self.plan.outputs
        raw = self._loaded.read(slot)
        return raw.view(np.float32).reshape(slot.shape)

    def close(self) -> None:
        """Gives everything back; may be called twice."""
        self._closed = True
        self._closing.close()

    def __repr__(self) -> str:
        """What is loaded where, and which kernel runs."""
        state = ", closed" if self._closed else ""
        return f"<{self.program} on {self.device_name}, kernel {self.choice.kernel}{state}>"


def _bytes(slot: Slot, value: object) -> NDArray[np.uint8]:
    if slot.dtype is DType.FP32:
        array: Array = coerce(slot.name, DType.FP32, value)
    else:
        array = np.asarray(value)
        if array.dtype.itemsize != 1:
            raise InvalidArgument(
                f"input {slot.name!r} is bytes (uint8), got {array.dtype}"
            )
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if raw.size != slot.nbytes:
        raise InvalidArgument(
            f"input {slot.name!r} is {slot.dtype.name} of shape {slot.shape}, "
            f"{slot.nbytes} bytes; got {raw.size} bytes of shape {array.shape}"
        )
    return raw


class Projected(Closing):
    """Weights on a device: `y = act(x w^T + bias) + residual` for a fixed token count.

    A context manager; it belongs to the thread that made it.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        weights: Weights,
        *,
        tokens: int,
        activation: Activation = Activation.NONE,
        bias: Array | None = None,
        residual: bool = False,
        numerics: Numerics = Numerics.STRICT,
        kernel: str = "",
        owns_accelerator: bool = False,
    ) -> None:
        """Loads the weights.

        Args:
            accelerator: where to.
            weights: the matrix [n, k].
            tokens: rows of every x.
            activation: what is done to the sums.
            bias: [n], added before the activation.
            residual: every run takes an array [tokens, n] that is added at the end.
            numerics: FAST also allows kernels that are not strict.
            kernel: see `Nvfp4Session`.
            owns_accelerator: see `Nvfp4Session`.

        Raises:
            InvalidArgument: `tokens` is no whole number from 1 on.
            ModelError: the device refuses it, or the bias has another shape.
        """
        extras = Extra.NONE
        if bias is not None:
            extras |= Extra.BIAS
        if residual:
            extras |= Extra.RESIDUAL
        if weights.tensor_scale.size > 1:
            extras |= Extra.ROW_SCALES
        with ExitStack() as undo:
            if owns_accelerator:
                undo.enter_context(accelerator)
            try:
                count = operator.index(tokens)
            except TypeError:
                count = 0
            if count < 1:
                raise InvalidArgument(
                    f"tokens is {tokens!r}; give a whole number from 1 on"
                )
            program = Projection(
                m=count, n=weights.n, k=weights.k, activation=activation, extras=extras
            )
            self._session = undo.enter_context(
                Nvfp4Session(accelerator, program, numerics=numerics, kernel=kernel)
            )
            self._session.write("packed", weights.packed)
            self._session.write("scales", weights.block_scales)
            self._session.write("tensor_scale", weights.tensor_scale)
            if bias is not None:
                self._session.write("bias", bias)
            self._undo = undo.pop_all()
        self._shape = (count, weights.k)
        self._result = (count, weights.n)

    @property
    def kernel(self) -> str:
        """The kernel that runs."""
        return self._session.choice.kernel

    @property
    def choice(self) -> Choice:
        """The kernel that runs, and why no better one does."""
        return self._session.choice

    @property
    def device_name(self) -> str:
        """The device and driver that runs it."""
        return self._session.device_name

    def run(self, x: Array, *, residual: Array | None = None) -> NDArray[np.float32]:
        """Multiplies.

        Args:
            x: [tokens, k].
            residual: [tokens, n], if it was loaded with one.

        Returns:
            float32 [tokens, n].

        Raises:
            InvalidArgument: another shape or type, or a residual that is missing or
                was not announced.
            Released: it is closed.
        """
        array = np.asarray(x)
        if array.shape != self._shape:
            raise InvalidArgument(f"x is {self._shape}, got {array.shape}")
        inputs: dict[str, object] = {"x": array}
        announced = "residual" in {slot.name for slot in self._session.plan.slots}
        if announced != (residual is not None):
            raise InvalidArgument(
                "a residual is missing" if announced else "no residual was announced"
            )
        if residual is not None:
            shape = np.shape(residual)
            if shape != self._result:
                raise InvalidArgument(f"the residual is {self._result}, got {shape}")
            inputs["residual"] = residual
        return self._session.run(inputs)

    def close(self) -> None:
        """Gives everything back; may be called twice."""
        self._undo.close()

    def __repr__(self) -> str:
        """What is loaded where."""
        return repr(self._session)
