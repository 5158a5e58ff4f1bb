"""The command line: python -m localnode <verb>."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from localnode import baseimage, binaries, imagestore, packages
from localnode.buildah import Buildah
from localnode.controlplane import ControlPlane
from localnode.errors import LocalNodeError
from localnode.node import Node


def build(_: argparse.Namespace) -> None:
    """Install packages and build every program."""
    packages.ensure({**packages.NODE, **packages.IMAGES})
    binaries.ensure()
    for group in binaries.ALL:
        sys.stdout.write("".join(f"{binaries.directory(group)}/{name}\n" for name in group.programs))


def up(options: argparse.Namespace) -> None:
    """Start, and print the kubeconfig's path."""
    started = ControlPlane(options.name) if options.control_plane_only else Node(options.name)
    sys.stdout.write(f"{started.up()}\n")


def down(options: argparse.Namespace) -> None:
    """Stop and remove everything of that name."""
    Node(options.name).down()


def status(options: argparse.Namespace) -> None:
    """Print what runs as JSON; exit 1 when nothing does."""
    found = Node(options.name).status()
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    if not found["running"]:
        raise SystemExit(1)


def kubeconfig(options: argparse.Namespace) -> None:
    """Print the kubeconfig's path."""
    path = Node(options.name).kubeconfig
    if not path.exists():
        raise LocalNodeError(f"node {options.name} does not run: start it with `python -m localnode up --name {options.name}`")
    sys.stdout.write(f"{path}\n")


def enter(options: argparse.Namespace) -> None:
    """Run a command inside the node's namespaces."""
    node = Node(options.name)
    with node.supervisor.popen(*(options.command or ["bash"])) as process:
        process.wait()
    raise SystemExit(process.returncode)


def image_base(_: argparse.Namespace) -> None:
    """Bootstrap the base image."""
    sys.stdout.write(f"{baseimage.ensure(Buildah())}\n")


def image_build(options: argparse.Namespace) -> None:
    """Build a Dockerfile."""
    Buildah().build(options.tag, options.context, options.file, options.build_arg)


def image_load(options: argparse.Namespace) -> None:
    """Bring images into the node."""
    Node(options.name).load(*options.tags)


def image_prune(_: argparse.Namespace) -> None:
    """Remove the image stores that no running node holds."""
    for store in imagestore.prune():
        sys.stdout.write(f"{store}\n")


def parser() -> argparse.ArgumentParser:
    """All verbs."""
    top = argparse.ArgumentParser(prog="python -m localnode", description=__doc__)
    verbs = top.add_subparsers(required=True, metavar="verb")

    def verb(
        parent: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, run: Callable[[argparse.Namespace], None]
    ) -> argparse.ArgumentParser:
        added = parent.add_parser(name, help=run.__doc__)
        added.set_defaults(run=run)
        added.add_argument("--name", default="bw", help="which node; several may run side by side")
        return added

    verb(verbs, "build", build)
    verb(verbs, "up", up).add_argument("--control-plane-only", action="store_true")
    for name, run in (("down", down), ("status", status), ("kubeconfig", kubeconfig)):
        verb(verbs, name, run)
    verb(verbs, "exec", enter).add_argument("command", nargs=argparse.REMAINDER)
    images = verbs.add_parser("image", help="Base image, builds, loading.").add_subparsers(required=True, metavar="verb")
    verb(images, "base", image_base)
    making = verb(images, "build", image_build)
    making.add_argument("--file", type=Path)
    making.add_argument("--tag", action="append", required=True)
    making.add_argument("--build-arg", action="append", default=[])
    making.add_argument("context", type=Path)
    verb(images, "load", image_load).add_argument("tags", nargs="+")
    verb(images, "prune", image_prune)
    return top


def main() -> None:
    """Run one verb; our own errors are one line without a traceback."""
    options = parser().parse_args()
    try:
        options.run(options)
    except LocalNodeError as error:
        sys.stderr.write(f"localnode: {error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
