"""What the README and the documents show is what happens."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from tosavk import cli
from tosavk.core.dtypes import DType
from tosavk.lowering.tosa.builder import Builder

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
README = PAGES[0].read_text(encoding="utf-8")


def marked(text: str, mark: str) -> list[str]:
    """The code blocks between `<!-- mark -->` and `<!-- /mark -->`."""
    pattern = rf"<!-- {mark} -->\s*```\w*\n(.*?)```\s*<!-- /{mark} -->"
    return re.findall(pattern, text, re.DOTALL)


EXAMPLES = [
    (f"{page.name}:{number}", code, page)
    for page in PAGES
    for number, code in enumerate(marked(page.read_text(encoding="utf-8"), "example"))
]
COMMANDS = [
    line.partition("#")[0].strip()
    for line in "\n".join(marked(README, "commands")).splitlines()
    if line.startswith("tosavk ")
]


def printed(code: str, device: str) -> str:
    """What an example prints on a device."""
    chosen = code.replace('"vulkan"', repr(device))
    assert repr(device) in chosen
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(chosen, "example", "exec"), {"__name__": "example"})
    return out.getvalue()


@pytest.mark.parametrize(
    ("code", "page"),
    [example[1:] for example in EXAMPLES],
    ids=[example[0] for example in EXAMPLES],
)
def test_examples_run(code: str, page: Path, vulkan_device: str) -> None:
    text = printed(code, vulkan_device)
    assert text.strip()
    shown = marked(page.read_text(encoding="utf-8"), "output")
    if shown:
        assert text in shown


def test_there_are_examples() -> None:
    assert sum(page == PAGES[0] for *_, page in EXAMPLES) >= 2
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_run(
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    available_devices: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    b = Builder()
    b.output(b.exp(b.input("x", DType.FP32, (1, 4)), name="y"))
    (tmp_path / "model.tosa").write_bytes(b.build())
    np.save(tmp_path / "x.npy", np.ones((1, 4), np.float32))
    monkeypatch.chdir(tmp_path)
    if not any(spec.startswith("vulkan") for spec in available_devices):
        pytest.skip("no Vulkan device")
    assert cli.main(shlex.split(line)[1:]) == 0
    assert capsys.readouterr().out
    if "--output-dir" in line:
        assert np.allclose(np.load(tmp_path / "out" / "y.npy"), np.e)
    if "--report" in line:
        assert (tmp_path / "r.html").stat().st_size > 1000
        assert (tmp_path / "r.json").stat().st_size > 1000


def test_every_option_is_in_the_help() -> None:
    for line in COMMANDS:
        words = shlex.split(line)
        options = {word for word in words if word.startswith("--")}
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert cli.main([words[1], "--help"]) == 0
        assert options <= set(re.findall(r"--[a-z-]+", out.getvalue()))


def test_pictures_are_there() -> None:
    for target in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README):
        assert (ROOT / target).stat().st_size > 1000


def test_the_first_screen_says_what_it_is_and_shows_it() -> None:
    lines = README.splitlines()[:15]
    assert any("make demo" in line for line in lines)
    assert any("make test" in line for line in lines)
    assert any(line.startswith("![") for line in lines)
