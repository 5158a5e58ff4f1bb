"""Everything the local node can refuse, one sentence each with its mend.

LocalNodeError
├── HostUnfit         the machine lacks something: root, cgroups, disk, packages, a Go toolchain
├── CommandFailed     a tool the node drives ended with an error; carries the end of what it said
├── NotReady          something was started and did not become ready in time; names its log
└── TargetUnclear     which cluster or registry is meant cannot be told from the environment
"""


class LocalNodeError(Exception):
    """Base of the tree: the command line prints it without a traceback."""


class HostUnfit(LocalNodeError):
    """The machine cannot run the node; the message says what to change."""


class CommandFailed(LocalNodeError):
    """A driven tool failed."""


class NotReady(LocalNodeError):
    """A started part did not become ready in time."""


class TargetUnclear(LocalNodeError):
    """The environment does not say which cluster is meant, or how images get there."""
