"""The Python API: `import tosavk`, load, run, open."""

import json
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tosavk
from tosavk import Builder, DType
from tosavk.backends.session import Source
from tosavk.core.descriptors import (
    FORMAT_TOSA,
    AccessMode,
    Artifact,
    Binding,
    BufferDesc,
    BufferRange,
    BufferUsage,
    MemoryDomain,
)
from tosavk.core.errors import Released
from tosavk.lowering.graph import Op
from tosavk.lowering.program import load_graph
from tosavk.lowering.target import EVERYTHING


def square() -> bytes:
    b = Builder()
    x = b.input("x", DType.FP32, (2, 3))
    b.output(b.mul(x, x, name="y"))
    return b.build()


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def source_of(form: str, data: bytes, path: Path) -> Source:
    """The same program in one of the forms that it may be given in."""
    match form:
        case "path":
            return path
        case "text":
            return str(path)
        case "bytes":
            return data
        case "bytearray":
            return bytearray(data)
        case "memoryview":
            return memoryview(data)
        case _:
            return load_graph(data)


@pytest.mark.parametrize(
    "form", ["path", "text", "bytes", "bytearray", "memoryview", "graph"]
)
def test_load_takes(form: str, tmp_path: Path) -> None:
    path = tmp_path / "m.tosa"
    path.write_bytes(square())
    with tosavk.load(source_of(form, square(), path), backend="reference") as program:
        assert np.array_equal(program.run({"x": X})["y"], X * X)


def test_on_every_device(device: str) -> None:
    with tosavk.load(square(), backend=device) as program:
        (x,), (y,) = program.inputs, program.outputs
        assert (x.name, x.dtype, x.shape) == ("x", DType.FP32, (2, 3))
        assert str(y) == "y: FP32 2x3"
        first = program.run({"x": X})
        second = program.run({"x": X + 1})
        assert np.array_equal(first["y"], X * X)
        assert np.array_equal(second["y"], (X + 1) ** 2)
        first["y"][:] = 0  # the caller's own array
        assert np.array_equal(program.run({"x": X[::-1][::-1]})["y"], X * X)
        assert np.array_equal(program.run({"x": np.asfortranarray(X)})["y"], X * X)


@pytest.mark.parametrize(
    ("inputs", "part"),
    [
        ({}, "'x' is missing"),
        ({"x": X, "z": X}, "'z': no such input"),
        ({"x": X[:1]}, r"\(1, 3\)"),
        ({"x": X.astype(np.float64)}, "float64"),
        ({"x": X.astype(np.int32)}, "int32"),
        ({"x": "text"}, "<U4"),
        ({"x": None}, "object"),
        ({"x": 1.0}, "float64"),
    ],
)
def test_run_refuses(inputs: dict[str, object], part: str) -> None:
    with tosavk.load(square(), backend="reference") as program:
        with pytest.raises(tosavk.InvalidArgument, match=part):
            program.run(inputs)
        assert np.array_equal(program.run({"x": X})["y"], X * X)


@pytest.mark.parametrize("source", [7, None, "a\0b", b"", "nowhere.tosa"])
def test_load_refuses(source: object) -> None:
    with pytest.raises(tosavk.InvalidArgument):
        tosavk.load(source, backend="reference")  # type: ignore[arg-type]


def test_load_refuses_modes_and_backends() -> None:
    with pytest.raises(tosavk.InvalidArgument, match="strict or fast"):
        tosavk.load(square(), backend="reference", numerics="quick")
    with pytest.raises(tosavk.InvalidArgument, match="vulkan, wgpu, reference"):
        tosavk.load(square(), backend="cuda")
    with pytest.raises(tosavk.InitError):
        tosavk.load(square(), backend="reference:none")


def test_close_twice_and_run_after() -> None:
    program = tosavk.load(square(), backend="reference")
    program.close()
    program.close()
    with pytest.raises(Released, match="load it again"):
        program.run({"x": X})
    assert "closed" in repr(program)
    assert program.accelerator.is_closed


def test_a_program_that_is_refused_closes_its_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tosavk.backends import session

    opened: list[tosavk.Accelerator] = []

    def opening(spec: str, *, disable: Collection[str]) -> tosavk.Accelerator:
        opened.append(tosavk.open(spec, disable=disable))
        return opened[-1]

    monkeypatch.setattr(session, "open_accelerator", opening)
    b = Builder()
    x = b.input("x", DType.FP32, (1, 4))
    for part in b.custom([x], [(DType.FP32, (1, 4))], operator_name="mine"):
        b.output(part)
    with pytest.raises(tosavk.Unsupported, match="CUSTOM"):
        tosavk.load(b.build(), backend="reference")
    assert opened[0].is_closed


def test_shapes_given_at_load() -> None:
    b = Builder()
    x = b.input("x", DType.FP32, (-1, 3))
    b.output(b.op(Op.ADD, [x, x], name="y", dtype=DType.FP32, shape=(-1, 3)))
    data = b.build()
    with pytest.raises(tosavk.InvalidArgument, match="dimension 0"):
        tosavk.load(data, backend="reference")
    with tosavk.load(data, backend="reference", shapes={"x": (2, 3)}) as program:
        assert np.array_equal(program.run({"x": X})["y"], X + X)


@pytest.mark.parametrize(
    ("dtype", "array", "bits"),
    [
        (DType.BF16, np.array([1.5, -2.0], ml_dtypes.bfloat16), np.uint16),
        (DType.FP8E4M3, np.array([1.5, -2.0], ml_dtypes.float8_e4m3fn), np.uint8),
        (DType.FP8E5M2, np.array([1.5, -2.0], ml_dtypes.float8_e5m2), np.uint8),
    ],
)
def test_small_floats_are_ml_dtypes_or_bits(
    dtype: DType, array: np.ndarray, bits: type[np.generic]
) -> None:
    b = Builder()
    b.output(b.reverse(b.input("x", dtype, (2,)), 0, name="y"))
    with tosavk.load(b.build(), backend="reference") as program:
        for given in (array, array.view(bits)):
            result = program.run({"x": given})["y"]
            assert result.dtype == array.dtype
            assert np.array_equal(result, array[::-1])


def test_wide_and_narrow_integers() -> None:
    b = Builder()
    b.output(b.identity(b.input("small", DType.INT4, (3,)), name="s"))
    b.output(b.identity(b.input("wide", DType.INT48, (3,)), name="w"))
    small = np.array([-7, 0, 7], np.int8)
    wide = np.array([-(2**47), 5, 2**47 - 1], np.int64)
    with tosavk.load(b.build(), backend="reference") as program:
        result = program.run({"small": small, "wide": wide})
        assert result["s"].dtype == np.int8
        assert result["w"].dtype == np.int64
        assert np.array_equal(result["s"], small)
        assert np.array_equal(result["w"], wide)
        again = program.run({"small": small.astype(ml_dtypes.int4), "wide": wide})
        assert np.array_equal(again["s"], small)
        with pytest.raises(tosavk.InvalidArgument, match=r"-8\.\.7"):
            program.run({"small": small + 1, "wide": wide})


def test_no_inputs_and_an_output_listed_twice(device: str) -> None:
    b = Builder()
    y = b.exp(b.const(np.zeros((2, 2), np.float32)), name="y")
    b.output(y)
    b.output(y)
    with tosavk.load(b.build(), backend=device) as program:
        result = program.run()
        assert list(result) == ["y"]
        assert np.array_equal(result["y"], np.ones((2, 2), np.float32))


def test_the_accelerator_underneath(gpu_device: str) -> None:
    # The example of the README, step by step and checked.
    with tosavk.open(gpu_device) as accelerator:
        domain = next(
            d
            for d in (MemoryDomain.SHARED, MemoryDomain.DEVICE)
            if d in accelerator.info.domains
        )
        artifact = Artifact(FORMAT_TOSA, EVERYTHING.words(), square())
        with (
            accelerator.create_context() as context,
            context.load_program(accelerator.device.lower(artifact)) as program,
            context.allocate_buffer(
                BufferDesc(nbytes=24, domain=domain, usage=BufferUsage(31))
            ) as source,
            context.allocate_buffer(
                BufferDesc(nbytes=24, domain=domain, usage=BufferUsage(31))
            ) as target,
        ):
            source.write(0, X.tobytes())
            bindings = [
                Binding(0, source, BufferRange(0, 24), AccessMode.READ),
                Binding(1, target, BufferRange(0, 24), AccessMode.WRITE),
            ]
            with context.prepare(program, bindings) as prepared:
                for _ in range(3):
                    with prepared.submit() as event:
                        event.wait()
                        assert event.error is None
            out = bytearray(24)
            target.read_into(0, out)
            assert np.array_equal(np.frombuffer(out, np.float32).reshape(2, 3), X * X)


def test_public_names() -> None:
    assert set(tosavk.__all__) <= set(dir(tosavk))
    for name in tosavk.__all__:
        assert getattr(tosavk, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        tosavk.no_such_name  # type: ignore[attr-defined]  # noqa: B018


def test_import_loads_nothing_else() -> None:
    code = (
        "import json, sys, tosavk; print(json.dumps(sorted(sys.modules)));"
        "import tosavk.cli; tosavk.cli.parser(); print(json.dumps(sorted(sys.modules)))"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    for line, forbidden in zip(
        out.splitlines(),
        (
            {"numpy", "ml_dtypes", "vulkan", "wgpu", "jinja2", "rich", "flatbuffers"},
            {"vulkan", "wgpu", "jinja2", "rich", "numpy"},
        ),
        strict=True,
    ):
        assert not forbidden & set(json.loads(line))
