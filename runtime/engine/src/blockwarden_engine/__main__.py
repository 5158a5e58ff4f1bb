"""`python -m blockwarden_engine --model=<path> ...` starts an engine; `python -m blockwarden_engine check -- ...` only checks.

One sentence on standard error and exit status 78 (a configuration error) say why an engine does not start.
"""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from blockwarden_core.errors import BlockwardenError

from .compat import check_engine
from .launch import Launch, check_external_cache, plan_launch, run_eagerly
from .policy import PolicyFile
from .settings import observe_identity

REFUSED_STATUS: Final = 78


def check(args: Sequence[str]) -> Launch:
    """Checks everything that can be checked before vLLM runs, and sets the environment that it will run in.

    Raises:
        BlockwardenError: the engine must not start.
    """
    launch = plan_launch(args, os.environ, boot_nonce=secrets.token_hex(16))
    check_external_cache(launch)
    if shutil.which(os.environ.get("CXX", "g++")) is None:  # what PyTorch's inductor looks for
        launch = run_eagerly(launch)
    os.environ.update(launch.environment)
    check_engine()
    identity = observe_identity()
    PolicyFile(identity.root, identity.policy_uid).load()
    return launch


def main(argv: Sequence[str]) -> None:
    only_check = argv[:1] == ["check"]
    args = [arg for arg in argv[1:] if arg != "--"] if only_check else list(argv)
    try:
        launch = check(args)
        if only_check:
            return
        _leave_no_core_dump()
        from .plugin import register
        from .server import run

        register()
        run(launch)
    except BlockwardenError as error:
        _refuse(error)


def _leave_no_core_dump() -> None:
    """No process of this engine, when it crashes, has its memory written anywhere: every tenant's prompts and keys are in it.

    A limit of one byte, and not of none: the kernel ignores the limit where dumps are piped to a program, but for that value. A
    container whose own limit is 0 cannot have it; there a node that pipes dumps still gets one.
    """
    limit = 1 if resource.getrlimit(resource.RLIMIT_CORE)[1] else 0
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))


def _refuse(error: BlockwardenError) -> NoReturn:
    sys.stderr.write(f"blockwarden-engine: {error}\n")
    sys.exit(REFUSED_STATUS)


if __name__ == "__main__":
    main(sys.argv[1:])
