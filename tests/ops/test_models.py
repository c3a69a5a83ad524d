"""Published models: near the binary64 answers, and the same bits on every device.

The models are optional (harness/shared.py).
"""

from pathlib import Path

import numpy as np
import pytest

from harness.judging import complaints
from harness.running import Array, Devices
from tosavk.backends.reference import evaluate
from tosavk.cli import main
from tosavk.differential.compare import compare_bits
from tosavk.lowering.program import expose, intermediates, load_graph

MODELS = ("face_detection_front", "face_landmark", "iris_landmark")
# Largest error by the largest magnitude of the output.
PEAK = 5e-6
SPEECH = {"TosaInput_0": (1, 76, 32, 1)}


def given(folder: Path, model: str) -> tuple[bytes, dict[str, Array]]:
    """A model and its input."""
    program = (folder / f"{model}.tosa").read_bytes()
    (name,) = load_graph(program).main.inputs
    return program, {name: np.load(folder / f"{model}.in0.npy")}


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_a_model_on_every_device(
    opened: Devices,
    available_devices: tuple[str, ...],
    shared_models: Path,
    model: str,
) -> None:
    program, inputs = given(shared_models, model)
    specs = [spec for spec in available_devices if not spec.startswith("reference")]
    assert specs
    results = {spec: opened.run(spec, program, inputs) for spec in specs}
    for spec, outputs in results.items():
        for index, array in enumerate(outputs.values()):
            answer = np.load(shared_models / f"{model}.out{index}.npy")
            assert array.shape == answer.shape
            error = np.abs(array - answer).max() / np.abs(answer).max()
            assert error <= PEAK, (spec, index, error)
    first = results[specs[0]]
    for spec in specs[1:]:
        for name, array in results[spec].items():
            bits = compare_bits(first[name], array)
            assert bits.equal, (specs[0], spec, name, str(bits))


@pytest.mark.parametrize("model", MODELS)
def test_a_model_runs_again(
    opened: Devices, gpu_device: str, shared_models: Path, model: str
) -> None:
    """Nothing is left over from run to run: not the input, not the arena."""
    program, inputs = given(shared_models, model)
    (name,) = inputs
    other = {name: np.flip(inputs[name], 1).copy()}
    with opened.session(gpu_device, program) as session:
        first, _, again = (session.run(x) for x in (inputs, other, inputs))
    assert all(compare_bits(first[key], again[key]).equal for key in first)


@pytest.mark.slow
def test_every_operator_of_a_model_obeys_its_rule(
    opened: Devices, available_devices: tuple[str, ...], shared_models: Path
) -> None:
    """Each operator is judged on the very operands that the device gave it."""
    program, inputs = given(shared_models, "face_detection_front")
    graph = load_graph(program)
    exposed = expose(graph, intermediates(graph))
    # All devices have the same bits, by the test above.
    tensors = {**inputs, **opened.run(available_devices[0], exposed, inputs)}
    found = complaints(exposed, tensors)
    assert not found, found[:5]


def test_a_model_with_an_open_dimension(
    gpu_device: str,
    shared_models: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    model = str(shared_models / "speech_embedding.tosa")
    clip = tmp_path / "clip.npy"
    values = np.random.default_rng(7).uniform(-1, 1, SPEECH["TosaInput_0"])
    np.save(clip, values.astype(np.float32))
    arguments = ["run", model, "--backend", gpu_device]
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert "TosaInput_0" in message
    assert "?x76x32x1" in message
    assert "--shape TosaInput_0=1x76x32x1" in message
    arguments += ["--shape", "TosaInput_0=1x76x32x1", "--input", f"TosaInput_0={clip}"]
    arguments += ["--output-dir", str(tmp_path)]
    assert main(arguments) == 0, capsys.readouterr().err
    result = np.load(tmp_path / "TosaOutput_0.npy")
    graph = load_graph(
        (shared_models / "speech_embedding.tosa").read_bytes(), shapes=SPEECH
    )
    answer = evaluate(graph, {"TosaInput_0": np.load(clip)})["TosaOutput_0"]
    assert result.shape == (1, 1, 1, 96)
    assert np.abs(result - answer).max() <= PEAK * np.abs(answer).max()
