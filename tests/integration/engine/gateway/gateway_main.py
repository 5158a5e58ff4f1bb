"""The gateway as the tests start it: `python -m blockwarden_gateway`, on loopback and on ports that are free.

Not collected by pytest: it is the main module of the gateway's process, run by the workspace's Python. In a pod the ports are
fixed; here something else may have them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping

from blockwarden_gateway import __main__ as entry
from blockwarden_gateway.settings import Settings, read_settings


def read_test_settings(environment: Mapping[str, str]) -> Settings:
    """The pod's settings, with the ports and the waiting of a test."""
    return dataclasses.replace(
        read_settings(environment),
        host="127.0.0.1",
        public_port=int(environment["HARNESS_PUBLIC_PORT"]),
        internal_port=int(environment["HARNESS_INTERNAL_PORT"]),
        linger_seconds=0.0,
        drain_seconds=2.0,
    )


if __name__ == "__main__":
    vars(entry)["read_settings"] = read_test_settings
    sys.exit(entry.main())
