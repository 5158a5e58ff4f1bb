"""`python -m blockwarden_gateway`: settings from the environment, then serve."""

from __future__ import annotations

import logging
import os
import sys

import uvloop

from .errors import StartError
from .logs import Log, LogHandler
from .serve import serve
from .settings import read_settings


def main() -> int:
    """The exit status: 0 after a drained end, 1 where the gateway cannot start."""
    log = Log()
    logging.basicConfig(level=logging.WARNING, handlers=[LogHandler(log)])
    try:
        uvloop.run(serve(read_settings(os.environ), log))
    except StartError as error:
        log.write("cannot_start", problem=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
