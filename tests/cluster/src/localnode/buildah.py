"""Images from Dockerfiles without a Docker engine: buildah, with its storage in our cache.

Storage of its own leaves a user's images alone; a private mount namespace keeps the mounts buildah leaves behind off
the host. The machine's package indexes, proxies and certificates reach the build as read-only mounts
(buildconfig.py), never as layers.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from localnode import buildconfig, packages, paths
from localnode.commands import stream
from localnode.errors import CommandFailed, HostUnfit
from localnode.layers import Storage

ANY_IMAGE = {"default": [{"type": "insecureAcceptAnything"}]}


class Buildah:
    """buildah, on our storage."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise HostUnfit("images are built in mounts and other users' names: run as root")
        packages.ensure(packages.IMAGES)
        self.home = paths.made(paths.cache() / "buildah")
        self.policy = self.home / "policy.json"
        self.policy.write_text(json.dumps(ANY_IMAGE))

    def command(self, *argv: str) -> list[str]:
        """The full command line of a buildah call."""
        storage = ["--root", str(self.home / "storage"), "--runroot", str(self.home / "run"), "--storage-driver", "overlay"]
        return ["unshare", "--mount", "buildah", *storage, *argv]

    @property
    def storage(self) -> Storage:
        """The images, readable without buildah."""
        return Storage(self.home / "storage")

    def exists(self, tag: str) -> bool:
        """Whether the storage has the tag."""
        try:
            self.storage.image_id(tag)
        except CommandFailed:
            return False
        return True

    def build(self, tags: Sequence[str], context: Path, file: Path | None = None, arguments: Sequence[str] = ()) -> None:
        """Build a Dockerfile. Unchanged steps come from the layer cache; the build uses the host's network as it is."""
        argv = [
            "bud",
            "--isolation",
            "chroot",
            "--network",
            "host",
            "--layers",
            "--pull-never",
            "--signature-policy",
            str(self.policy),
        ]
        argv += [part for tag in tags for part in ("--tag", tag)]
        argv += [part for argument in arguments for part in ("--build-arg", argument)]
        argv += ["--file", str(file or context / "Dockerfile")]
        with tempfile.TemporaryDirectory() as scratch:
            mounts = buildconfig.mounts(Path(scratch))
            argv += [part for mount in mounts for part in ("--volume", f"{mount.source}:{mount.target}:ro")]
            stream(self.command(*argv, str(context)))

    def push(self, tag: str, destination: str) -> None:
        """Push to a registry, for a cluster that is not ours."""
        stream(self.command("push", "--signature-policy", str(self.policy), tag, f"docker://{destination}"))

    def archive(self, tag: str, target: Path) -> None:
        """Write a Docker archive, for kind."""
        stream(self.command("push", "--signature-policy", str(self.policy), tag, f"docker-archive:{target}:{tag}"))
