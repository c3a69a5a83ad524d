"""One method for each operator, with TOSA's names and the usual defaults."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from tosavk.core.dtypes import DType
from tosavk.core.errors import InvalidArgument
from tosavk.lowering.graph import NanMode, Op, ResizeMode, RoundingMode, Tensor
from tosavk.lowering.tosa.elementwise_methods import ElementwiseMethods, Output

_ACCUMULATORS = {
    DType.INT8: DType.INT32,
    DType.INT16: DType.INT48,
    DType.FP32: DType.FP32,
    DType.FP16: DType.FP32,
    DType.BF16: DType.FP32,
    DType.FP8E4M3: DType.FP16,
    DType.FP8E5M2: DType.FP16,
}
_OUTPUTS = {
    DType.INT8: DType.INT32,
    DType.INT16: DType.INT48,
    DType.BF16: DType.FP32,
    DType.FP8E4M3: DType.FP16,
    DType.FP8E5M2: DType.FP16,
}
_BILINEAR = {DType.INT8: DType.INT32, DType.INT16: DType.INT48}


class OperatorMethods(ElementwiseMethods):
    """The operators of TOSA 1.0 as methods.

    Operands are values of the builder; zero points that are left out are zero. Lists of numbers (a new shape, padding, ...) become CONST_SHAPE operators.
    Every method takes `name`, the name of its output.
    """

    @abstractmethod
    def const_shape(self, numbers: Sequence[int], *, name: str | None = None) -> Tensor:
        """A constant list of numbers."""

    def _list(self, value: Tensor | Sequence[int]) -> Tensor:
        return value if isinstance(value, Tensor) else self.const_shape(value)

    # Tensor operators.

    def argmax(
        self,
        x: Tensor,
        axis: int,
        *,
        nan_mode: NanMode = NanMode.PROPAGATE,
        name: str | None = None,
    ) -> Tensor:
        """ARGMAX."""
        return self.op(Op.ARGMAX, [x], name=name, axis=axis, nan_mode=nan_mode)

    def avg_pool2d(
        self,
        x: Tensor,
        kernel: Sequence[int],
        *,
        stride: Sequence[int] = (1, 1),
        pad: Sequence[int] = (0, 0, 0, 0),
        acc_type: DType | None = None,
        input_zp: Tensor | None = None,
        output_zp: Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """AVG_POOL2D."""
        accumulator = acc_type or _ACCUMULATORS[x.dtype]
        if x.dtype is DType.INT16 and acc_type is None:
            accumulator = DType.INT32
        return self.op(
            Op.AVG_POOL2D,
            [x, self.zero_or(input_zp, x.dtype), self.zero_or(output_zp, x.dtype)],
            name=name,
            kernel=kernel,
            stride=stride,
            pad=pad,
            acc_type=accumulator,
        )

    def conv2d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        *,
        pad: Sequence[int] = (0, 0, 0, 0),
        stride: Sequence[int] = (1, 1),
        dilation: Sequence[int] = (1, 1),
        local_bound: bool = False,
        acc_type: DType | None = None,
        input_zp: Tensor | None = None,
        weight_zp: Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """CONV2D: weight [OC, KH, KW, IC], pad top, bottom, left, right."""
        return self.op(
            Op.CONV2D,
            self._convolution(x, weight, bias, input_zp, weight_zp),
            name=name,
            pad=pad,
            stride=stride,
            dilation=dilation,
            local_bound=local_bound,
            acc_type=acc_type or _ACCUMULATORS[x.dtype],
        )

    def conv3d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        *,
        pad: Sequence[int] = (0, 0, 0, 0, 0, 0),
        stride: Sequence[int] = (1, 1, 1),
        dilation: Sequence[int] = (1, 1, 1),
        local_bound: bool = False,
        acc_type: DType | None = None,
        input_zp: Tensor | None = None,
        weight_zp: Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """CONV3D: weight [OC, KD, KH, KW, IC]."""
        return self.op(
            Op.CONV3D,
            self._convolution(x, weight, bias, input_zp, weight_zp),
            name=name,
            pad=pad,
            stride=stride,
            dilation=dilation,
            local_bound=local_bound,
            acc_type=acc_type or _ACCUMULATORS[x.dtype],
        )

    def depthwise_conv2d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        *,
        pad: Sequence[int] = (0, 0, 0, 0),
        stride: Sequence[int] = (1, 1),
        dilation: Sequence[int] = (1, 1),
        local_bound: bool = False,
        acc_type: DType | None = None,
        input_zp: Tensor | None = None,
        weight_zp: Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """DEPTHWISE_CONV2D: weight [KH, KW, C, M]."""
        return self.op(
            Op.DEPTHWISE_CONV2D,
            self._convolution(x, weight, bias, input_zp, weight_zp),
            name=name,
            pad=pad,
            stride=stride,
            dilation=dilation,
            local_bound=local_bound,
            acc_type=acc_type or _ACCUMULATORS[x.dtype],
        )

    def transpose_conv2d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        *,
        out_pad: Sequence[int] = (0, 0, 0, 0),
        stride: Sequence[int] = (1, 1),
        local_bound: bool = False,
        acc_type: DType | None = None,
        input_zp: Tensor | None = None,
        weight_zp: Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """TRANSPOSE_CONV2D: weight [OC, KH, KW, IC]."""
        return self.op(
            Op.TRANSPOSE_CONV2D,
            self._convolution(x, weight, bias, input_zp, weight_zp),
            name=name,
            out_pad=out_pad,
            stride=stride,
            local_bound=local_bound,
            acc_type=acc_type or _ACCUMULATORS[x.dtype],
        )

    def _convolution(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        input_zp: Tensor | None,
        weight_zp: Tensor | None,
    ) -> list[Tensor]:
        return [
            x,
            weight,
            bias,
            self.zero_or(input_zp, x.dtype),
            self.zero_or(weight_zp, weight.dtype),
        ]

    def fft2d(
        self,
        real: Tensor,
        imaginary: Tensor,
        *,
        inverse: bool = False,
        local_bound: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """FFT2D: real and imaginary part."""
        first, second = self.op_list(
            Op.FFT2D, [real, imaginary], inverse=inverse, local_bound=local_bound
        )
        return first, second

    def rfft2d(
        self, real: Tensor, *, local_bound: bool = False
    ) -> tuple[Tensor, Tensor]:
        """RFFT2D: real and imaginary part."""
        first, second = self.op_list(Op.RFFT2D, [real], local_bound=local_bound)
        return first, second

    def matmul(
        self,
        a: Tensor,
        b: Tensor,
        *,
        dtype: DType | None = None,
        a_zp: Tensor | None = None,
        b_zp: Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """MATMUL; FP16 gives FP16, or FP32 with `dtype`."""
        return self.op(
            Op.MATMUL,
            [a, b, self.zero_or(a_zp, a.dtype), self.zero_or(b_zp, b.dtype)],
            name=name,
            dtype=dtype or _OUTPUTS.get(a.dtype, a.dtype),
        )

    def max_pool2d(
        self,
        x: Tensor,
        kernel: Sequence[int],
        *,
        stride: Sequence[int] = (1, 1),
        pad: Sequence[int] = (0, 0, 0, 0),
        nan_mode: NanMode = NanMode.PROPAGATE,
        name: str | None = None,
    ) -> Tensor:
        """MAX_POOL2D."""
        return self.op(
            Op.MAX_POOL2D,
            [x],
            name=name,
            kernel=kernel,
            stride=stride,
            pad=pad,
            nan_mode=nan_mode,
        )

    # Data layout.

    def concat(
        self, tensors: Sequence[Tensor], axis: int, *, name: str | None = None
    ) -> Tensor:
        """CONCAT."""
        return self.op(Op.CONCAT, tensors, name=name, axis=axis)

    def pad(
        self,
        x: Tensor,
        padding: Tensor | Sequence[int],
        *,
        pad_const: Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """PAD: two numbers for each dimension, before and after."""
        fill = self.zero_or(pad_const, x.dtype)
        return self.op(Op.PAD, [x, self._list(padding), fill], name=name)

    def reshape(
        self, x: Tensor, shape: Tensor | Sequence[int], *, name: str | None = None
    ) -> Tensor:
        """RESHAPE."""
        return self.op(Op.RESHAPE, [x, self._list(shape)], name=name)

    def reverse(self, x: Tensor, axis: int, *, name: str | None = None) -> Tensor:
        """REVERSE."""
        return self.op(Op.REVERSE, [x], name=name, axis=axis)

    def slice(
        self,
        x: Tensor,
        start: Tensor | Sequence[int],
        size: Tensor | Sequence[int],
        *,
        name: str | None = None,
    ) -> Tensor:
        """SLICE."""
        return self.op(Op.SLICE, [x, self._list(start), self._list(size)], name=name)

    def tile(
        self, x: Tensor, multiples: Tensor | Sequence[int], *, name: str | None = None
    ) -> Tensor:
        """TILE."""
        return self.op(Op.TILE, [x, self._list(multiples)], name=name)

    def transpose(
        self, x: Tensor, perms: Sequence[int], *, name: str | None = None
    ) -> Tensor:
        """TRANSPOSE."""
        return self.op(Op.TRANSPOSE, [x], name=name, perms=perms)

    def gather(
        self, values: Tensor, indices: Tensor, *, name: str | None = None
    ) -> Tensor:
        """GATHER: values [N, K, C], indices [N, W]."""
        return self.op(Op.GATHER, [values, indices], name=name)

    def scatter(
        self, values: Tensor, indices: Tensor, x: Tensor, *, name: str | None = None
    ) -> Tensor:
        """SCATTER: values [N, K, C], indices [N, W], input [N, W, C]."""
        return self.op(Op.SCATTER, [values, indices, x], name=name)

    # Images and conversions.

    def resize(
        self,
        x: Tensor,
        scale: Tensor | Sequence[int],
        *,
        offset: Tensor | Sequence[int] = (0, 0),
        border: Tensor | Sequence[int] = (0, 0),
        mode: ResizeMode = ResizeMode.NEAREST,
        name: str | None = None,
    ) -> Tensor:
        """RESIZE: scale y_n, y_d, x_n, x_d; offset and border y, x."""
        operands = [self._list(scale), self._list(offset), self._list(border)]
        dtype = x.dtype
        if mode is ResizeMode.BILINEAR:
            dtype = _BILINEAR.get(dtype, dtype)
        return self.op(Op.RESIZE, [x, *operands], name=name, dtype=dtype, mode=mode)

    def cast(self, x: Tensor, dtype: DType, *, name: str | None = None) -> Tensor:
        """CAST."""
        return self.op(Op.CAST, [x], name=name, dtype=dtype)

    def rescale(
        self,
        x: Tensor,
        dtype: DType,
        multiplier: Tensor,
        shift: Tensor,
        *,
        input_zp: Tensor | None = None,
        output_zp: Tensor | None = None,
        rounding_mode: RoundingMode = RoundingMode.SINGLE_ROUND,
        per_channel: bool = False,
        input_unsigned: bool = False,
        output_unsigned: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """RESCALE; an INT32 multiplier means scale32."""
        if multiplier.dtype not in (DType.INT32, DType.INT16):
            raise InvalidArgument(
                f"multiplier {multiplier.name!r} is {multiplier.dtype.name}; "
                "it must be INT32 or INT16"
            )
        zero_points = [
            self.zero_or(input_zp, x.dtype),
            self.zero_or(output_zp, dtype),
        ]
        return self.op(
            Op.RESCALE,
            [x, multiplier, shift, *zero_points],
            name=name,
            dtype=dtype,
            scale32=multiplier.dtype is DType.INT32,
            rounding_mode=rounding_mode,
            per_channel=per_channel,
            input_unsigned=input_unsigned,
            output_unsigned=output_unsigned,
        )

    # Data, variables, control flow and custom operators.

    def identity(self, x: Tensor, *, name: str | None = None) -> Tensor:
        """IDENTITY."""
        return self.op(Op.IDENTITY, [x], name=name)

    def custom(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Output],
        *,
        operator_name: str,
        domain_name: str = "",
        implementation_attrs: bytes = b"",
    ) -> tuple[Tensor, ...]:
        """CUSTOM, with the types and shapes of its outputs."""
        return self.op_list(
            Op.CUSTOM,
            inputs,
            outputs=outputs,
            operator_name=operator_name,
            domain_name=domain_name,
            implementation_attrs=implementation_attrs,
        )

    def cond_if(
        self,
        condition: Tensor,
        inputs: Sequence[Tensor],
        *,
        then_graph: str,
        else_graph: str,
    ) -> tuple[Tensor, ...]:
        """COND_IF between two regions, which are finished already."""
        return self.op_list(
            Op.COND_IF,
            [condition, *inputs],
            then_graph=then_graph,
            else_graph=else_graph,
        )

    def while_loop(
        self, inputs: Sequence[Tensor], *, cond_graph: str, body_graph: str
    ) -> tuple[Tensor, ...]:
        """WHILE_LOOP over two regions, which are finished already."""
        return self.op_list(
            Op.WHILE_LOOP, inputs, cond_graph=cond_graph, body_graph=body_graph
        )

    def variable_write(self, variable: Tensor, value: Tensor) -> None:
        """VARIABLE_WRITE."""
        self.op_list(Op.VARIABLE_WRITE, [variable, value], outputs=())

    def variable_read(self, variable: Tensor, *, name: str | None = None) -> Tensor:
        """VARIABLE_READ."""
        return self.op(
            Op.VARIABLE_READ,
            [variable],
            name=name,
            dtype=variable.dtype,
            shape=variable.shape,
        )
