#!/usr/bin/env python3
"""Makes docs/images/diff.png: the output of a real `tosavk diff`.

    make_image.py [MODEL]      default: build/models/face_detection_front.tosa

It runs the command on four backends, draws what it prints as rich does, and has a
headless browser make a picture of that. Run it in the environment of `make demo`
(tools/driver_env.py), so that the drivers are seen; Chromium must be installed.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "build" / "models" / "face_detection_front.tosa"
TARGET = ROOT / "docs" / "images" / "diff.png"
BACKENDS = ("vulkan:llvmpipe", "vulkan:SwiftShader", "wgpu:llvmpipe", "reference")
COLUMNS = 92
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def output_of(model: Path) -> str:
    """What the command prints, with its colours."""
    words = [sys.executable, "-m", "tosavk", "diff", str(model)]
    for spec in BACKENDS:
        words += ["--backend", spec]
    env = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm"}
    env.pop("NO_COLOR", None)
    done = subprocess.run(
        words, stdout=subprocess.PIPE, text=True, check=False, env=env
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"tosavk diff failed with {done.returncode}")
    backends = " ".join(f"--backend {spec}" for spec in BACKENDS)
    return f"$ tosavk diff {model.name} {backends}\n\n{done.stdout}"


def drawing(text: str) -> str:
    """The text as an SVG without fonts from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(text))
    svg = console.export_svg(title="tosavk diff", theme=MONOKAI)
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)


def photograph(svg: str, target: Path) -> None:
    """Writes the drawing as PNG, in twice its size."""
    browser = next((p for name in BROWSERS if (p := shutil.which(name))), None)
    if browser is None:
        raise SystemExit(f"no browser is there (tried {', '.join(BROWSERS)})")
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    if box is None:
        raise SystemExit("the drawing has no size")
    width, height = (round(float(number)) for number in box.groups())
    with tempfile.TemporaryDirectory() as name:
        page = Path(name, "page.html")
        page.write_text(
            f"<!doctype html><style>*{{margin:0}}svg{{width:{width}px;display:block}}"
            f"</style>{svg}",
            encoding="utf-8",
        )
        picture = Path(name, "picture.png")
        subprocess.run(
            [
                browser,
                "--headless=new",
                "--no-sandbox",  # root has no other way, and the page is our own
                "--disable-gpu",
                "--hide-scrollbars",
                "--default-background-color=00000000",
                f"--user-data-dir={name}/profile",
                f"--window-size={width},{height}",
                f"--screenshot={picture}",
                page.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, target)


def main() -> None:
    """Makes the picture."""
    model = Path(sys.argv[1]) if len(sys.argv) > 1 else MODEL
    photograph(drawing(output_of(model)), TARGET)
    print(f"wrote {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
