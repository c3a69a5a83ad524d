#!/usr/bin/env python3
"""Makes the official TOSA tools available to the tests, where there is use for them.

The tests judge results by the official verifier, a library in the package tosa-tools,
when the official tests are beside the repository (in ../shared, or TOSAVK_SHARED). The
package goes into an environment of its own, since it pins an old NumPy.
"""

import os
import sys
from pathlib import Path

import bootstrap
import make_model

# What the reference model's Python binding is built against.
NUMPY = "numpy==2.1.3"


def main() -> int:
    """Prepares the environment; 0 also when it cannot be had, which is said."""
    beside = os.environ.get("TOSAVK_SHARED") or bootstrap.ROOT.parent / "shared"
    if os.environ.get("TOSAVK_TOSA_TOOLS") or not Path(beside, "tosa").is_dir():
        return 0
    try:
        make_model.prepare(NUMPY)
    except bootstrap.SetupError as error:
        print(f"[setup] without the official verifier: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
