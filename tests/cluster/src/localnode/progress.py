"""One line per step on standard error, each with the seconds since the start: nobody should wonder whether it hangs."""

import sys
import time

START = time.monotonic()


def say(text: str) -> None:
    """Print a progress line."""
    sys.stderr.write(f"[{time.monotonic() - START:7.1f}s] {text}\n")
    sys.stderr.flush()
