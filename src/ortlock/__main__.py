"""``python -m ortlock``: the same as the command ``ortlock``."""

from ortlock.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
