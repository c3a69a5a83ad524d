"""NVFP4 weights out of files, and out of arrays in other layouts."""

import json
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tosavk.core import nvfp4
from tosavk.core.errors import InvalidArgument
from tosavk.core.nvfp4 import Nvfp4Warning, Weights
from tosavk.lowering.nvfp4.files import (
    FORMATS,
    from_arrays,
    from_gguf,
    load_safetensors,
    save_safetensors,
)

pytestmark = pytest.mark.nvfp4


def some_weights(n: int = 130, k: int = 128) -> Weights:
    rng = np.random.default_rng(n)
    return nvfp4.quantize(rng.standard_normal((n, k)).astype(np.float32))


def same(one: Weights, two: Weights) -> bool:
    return bool(
        (one.packed == two.packed).all()
        and (one.block_scales == two.block_scales).all()
        and np.allclose(one.tensor_scale, two.tensor_scale, rtol=2e-7, atol=0)
    )


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_says_its_format(name: str, tmp_path: Path) -> None:
    weights, other = some_weights(), some_weights(3, 16)
    file = tmp_path / "model.safetensors"
    save_safetensors(file, {"a.up": weights, "a.down": other}, format=name)
    assert same(load_safetensors(file, "a.up"), weights)
    assert same(load_safetensors(file, "a.down"), other)


def plain_file(folder: Path, name: str, weights: Weights) -> Path:
    """A file without metadata of ours, as the tools themselves write it."""
    from safetensors.numpy import save

    chosen = FORMATS[name]
    scale = weights.tensor_scale
    if chosen.convention == "divide":
        scale = (1 / scale.astype(np.float64)).astype(np.float32)
    tensors: dict[str, NDArray[np.generic]] = {
        "l" + chosen.packed: np.array(weights.packed),
        "l" + chosen.scales: np.array(weights.block_scales).view(
            ml_dtypes.float8_e4m3fn
        ),
        "l" + chosen.tensor: scale,
    }
    file = folder / "model.safetensors"
    file.write_bytes(save(tensors, metadata={"format": "pt"}))
    return file


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_never_guessed(name: str, tmp_path: Path) -> None:
    weights = some_weights()
    file = plain_file(tmp_path, name, weights)
    with pytest.raises(InvalidArgument, match=f"pass format='{name}'"):
        load_safetensors(file, "l")
    assert same(load_safetensors(file, "l", format=name), weights)


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        (
            "modelopt",
            "hf_quant_config.json",
            {"quantization": {"quant_algo": "NVFP4", "group_size": 16}},
        ),
        (
            "modelopt",
            "config.json",
            {
                "quantization_config": {
                    "quant_method": "modelopt",
                    "quant_algo": "NVFP4",
                }
            },
        ),
        (
            "compressed-tensors",
            "config.json",
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "format": "nvfp4-pack-quantized",
                }
            },
        ),
        (
            "compressed-tensors",
            "config.json",
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"group_0": {"format": "nvfp4-pack-quantized"}},
                }
            },
        ),
    ],
)
def test_the_configuration_beside_says_the_format(
    name: str, file: str, content: object, tmp_path: Path
) -> None:
    weights = some_weights()
    model = plain_file(tmp_path, name, weights)
    (tmp_path / file).write_text(json.dumps(content))
    assert same(load_safetensors(model, "l"), weights)


@pytest.mark.parametrize("content", ["{", "[]", '{"quantization_config": 3}', "{}"])
def test_other_configurations_say_nothing(content: str, tmp_path: Path) -> None:
    model = plain_file(tmp_path, "modelopt", some_weights())
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InvalidArgument, match="says which NVFP4 format"):
        load_safetensors(model, "l")


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    from safetensors.numpy import save

    with pytest.raises(InvalidArgument, match="cannot read"):
        load_safetensors(tmp_path / "none.safetensors", "l")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\xff" * 40)
    with pytest.raises(InvalidArgument, match="cannot read"):
        load_safetensors(broken, "l")
    file = plain_file(tmp_path, "modelopt", some_weights())
    with pytest.raises(InvalidArgument, match=r"no tensor q\.weight, "):
        load_safetensors(file, "q", format="modelopt")
    with pytest.raises(InvalidArgument, match="weight_packed"):
        load_safetensors(file, "l", format="compressed-tensors")
    with pytest.raises(InvalidArgument, match="'awq' is unknown"):
        load_safetensors(file, "l", format="awq")
    wide: dict[str, NDArray[Any]] = {
        "l.weight": np.zeros((1, 8), np.float32),
        "l.weight_scale": np.zeros((1, 1), np.uint8),
        "l.weight_scale_2": np.ones(1, np.float32),
    }
    file.write_bytes(save(wide))
    with pytest.raises(InvalidArgument, match=r"l\.weight of .* is F32"):
        load_safetensors(file, "l", format="modelopt")


def test_the_convention_can_be_overridden(tmp_path: Path) -> None:
    weights = some_weights()
    file = plain_file(tmp_path, "modelopt", weights)
    with pytest.warns(Nvfp4Warning, match="looks inverted"):
        wrong = load_safetensors(file, "l", format="modelopt", convention="divide")
    assert not same(wrong, weights)


def test_rows_with_scales_of_their_own_are_no_layer(tmp_path: Path) -> None:
    joined = Weights.concatenate([some_weights(2, 16), some_weights(3, 16)])
    with pytest.raises(InvalidArgument, match="one tensor scale"):
        save_safetensors(tmp_path / "x.safetensors", {"l": joined})
    with pytest.raises(InvalidArgument, match="unknown"):
        save_safetensors(tmp_path / "x.safetensors", {}, format="awq")


def test_swizzled_scales() -> None:
    weights = some_weights()
    mixed = nvfp4.swizzle(weights.block_scales)
    for scales in (mixed, mixed.reshape(256, 8), mixed.view(ml_dtypes.float8_e4m3fn)):
        for layout in (None, "swizzled"):
            taken = from_arrays(
                weights.packed,
                scales,
                weights.tensor_scale,
                convention="multiply",
                scale_layout=layout,
            )
            assert same(taken, weights)
    with pytest.raises(InvalidArgument, match="may be swizzled"):
        from_arrays(
            weights.packed,
            mixed,
            weights.tensor_scale,
            convention="multiply",
            scale_layout="linear",
        )


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"convention": "times"}, "convention 'times' is unknown; choose multiply or"),
        ({"scale_layout": "rows"}, "scale_layout 'rows'"),
        ({"nibbles": "odd"}, "nibbles 'odd'"),
    ],
)
def test_unknown_words(given: dict[str, str], match: str) -> None:
    weights = some_weights()
    words: dict[str, Any] = {"convention": "multiply", **given}
    with pytest.raises(InvalidArgument, match=match):
        from_arrays(
            weights.packed,
            weights.block_scales,
            1.0,
            **words,
        )


def gguf_bytes(weights: Weights) -> bytes:
    codes = nvfp4.split_halves(weights.packed).reshape(weights.n, -1, 32)
    scales = weights.block_scales.reshape(weights.n, -1, 4)
    return np.concatenate([scales, codes], axis=2).tobytes()


def test_gguf_blocks() -> None:
    weights = some_weights(5, 192)
    taken = from_gguf(
        gguf_bytes(weights), (5, 192), tensor_scale=float(weights.tensor_scale[0])
    )
    assert same(taken, weights)
    for shape in [(5, 160), (5, 128), (0, 64), (5, 0)]:
        with pytest.raises(InvalidArgument):
            from_gguf(gguf_bytes(weights), shape)


def test_a_divisor_of_zero() -> None:
    weights = some_weights(1, 16)
    with pytest.raises(InvalidArgument, match="cannot divide"):
        from_arrays(weights.packed, weights.block_scales, 0.0, convention="divide")


def test_a_plausible_file_gives_no_warning(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    for name in FORMATS:
        save_safetensors(file, {"l": some_weights()}, format=name)
        with warnings.catch_warnings():
            warnings.simplefilter("error", Nvfp4Warning)
            load_safetensors(file, "l")
