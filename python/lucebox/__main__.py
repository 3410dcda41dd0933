"""`python -m lucebox` is the `lucebox` command."""

from lucebox.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
