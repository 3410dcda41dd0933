"""The program `lucebox`, also as `python -m lucebox`. From its first import on, Ctrl-C ends it with one line."""

import signal

from lucebox.interrupted import leave


def main() -> int:
    """Runs one command; its exit code."""
    handles = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where a shell ignores Ctrl-C
    if handles:
        signal.signal(signal.SIGINT, leave)
    from lucebox.cli import main as run

    if handles:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


if __name__ == "__main__":
    raise SystemExit(main())
