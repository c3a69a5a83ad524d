"""The optional corpus of models and official tests beside the repository.

It is looked for in TOSAVK_SHARED, else in `../shared`. Tests that need it are skipped
where it is absent; this is the only thing whose absence may skip a test.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def shared_root() -> Path:
    """Returns where the corpus is, or would be."""
    return Path(os.environ.get("TOSAVK_SHARED") or ROOT.parent / "shared").resolve()


def missing(*parts: str) -> str:
    """Says why a part of the corpus cannot be used, or returns an empty text."""
    path = shared_root().joinpath(*parts)
    if path.exists():
        return ""
    return f"{path} is not there (set TOSAVK_SHARED to the corpus)"


def conformance_tests(*operators: str) -> list[Path]:
    """Returns the folders of official tests, of all operators or of those named.

    The list is empty where the corpus is absent, so it can be used to parametrize:
    pytest then skips the test.
    """
    corpus = shared_root() / "tosa" / "corpus"
    folders = (path.parent for path in corpus.rglob("desc.json"))
    return sorted(
        folder
        for folder in folders
        if not operators or folder.relative_to(corpus).parts[0] in operators
    )
