"""`python -m tosavk` is the command `tosavk`."""

from tosavk.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
