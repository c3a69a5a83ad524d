"""The examples of docs/control-flow.md are run as they stand."""

import re
from pathlib import Path
from typing import Any

import numpy as np

import tosavk
from tosavk.core.dtypes import DType
from tosavk.lowering.program import load_graph

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "control-flow.md"
F32, I32 = DType.FP32, DType.INT32


def test_the_examples_of_the_guide() -> None:
    loop, variables, custom = re.findall(
        r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL
    )
    names: dict[str, Any] = {"tosavk": tosavk, "np": np, "F32": F32, "I32": I32}
    exec(loop, names)
    with tosavk.load(names["b"].build(), backend="reference") as program:
        x = np.array([1, 2, 3, 4], np.float32)
        (found,) = program.run({"n": np.array(3, np.int32), "x": x}).values()
        np.testing.assert_array_equal(found, 8 * x)

    b = tosavk.Builder()
    state = b.variable("state", F32, (2,), 1.0)
    before = b.variable_read(state)
    b.variable_write(state, b.add(before, before))
    b.output(before)
    names |= {"model": b.build(), "inputs": {}}
    exec(variables.replace("load(model", "load(model, backend='reference'"), names)
    np.testing.assert_array_equal(names["state"], [2.0, 2.0])

    exec(custom, names)
    try:
        b = tosavk.Builder()
        (y,) = b.custom(
            [b.input("x", F32, (4,))],
            [(F32, (4,))],
            operator_name="square",
            domain_name="example.org",
        )
        b.output(y)
        assert len(load_graph(b.build()).main.operators) > 1
        with tosavk.load(b.build(), backend="reference") as program:
            (found,) = program.run({"x": x}).values()
    finally:
        tosavk.custom.unregister("example.org", "square")
    np.testing.assert_array_equal(found, x * x)
