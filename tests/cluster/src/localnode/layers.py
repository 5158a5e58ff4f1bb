"""Images read straight out of buildah's storage, layer by layer, byte for byte as their digests say.

`buildah push` compresses a layer to an OCI layout whatever it is asked, which takes minutes for gigabytes, and writes
the whole image when it is asked for plain layers (`dir:`). The storage holds all it takes to do better: a layer's files
in overlay/<id>/diff, and beside them the tar-split record, a list of the raw tar headers in order with the places
where files' contents go. Putting them together gives the original layer as a stream, at the disk's speed, for just the
layers that are wanted. containerd checks every blob against its digest, so a misreading cannot go unnoticed.
"""

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localnode.errors import CommandFailed
from localnode.oci import CHUNK, Blob, Image, blob_of

SEGMENT, FILE = 2, 1


@dataclass(frozen=True)
class Storage:
    """A containers/storage directory with the overlay driver."""

    root: Path

    def _records(self, kind: str) -> list[dict[str, Any]]:
        """The entries of overlay-images/images.json or overlay-layers/layers.json; buildah replaces these files whole."""
        found: list[dict[str, Any]] = json.loads((self.root / f"overlay-{kind}" / f"{kind}.json").read_text())
        return found

    def image_id(self, tag: str) -> str:
        """The id of the image that has this name."""
        for image in self._records("images") if (self.root / "overlay-images/images.json").exists() else []:
            if tag in image.get("names", ()):
                return str(image["id"])
        raise CommandFailed(f"no image is called {tag}: build it with `python -m localnode image build --tag {tag} ...`")

    def image(self, identity: str) -> Image:
        """The image's parts. Layers know their parent, so the chain is walked from the top."""
        record = next(image for image in self._records("images") if image["id"] == identity)
        known = {layer["id"]: layer for layer in self._records("layers")}
        chain = []
        layer = known.get(record.get("layer", ""))
        while layer is not None:
            chain.append(self._blob(layer))
            layer = known.get(layer.get("parent", ""))
        return Image(self._config(identity), tuple(reversed(chain)))

    def _config(self, identity: str) -> Blob:
        """The config, which is kept under the base64 of its digest."""
        name = base64.b64encode(f"sha256:{identity}".encode()).decode()
        return blob_of((self.root / "overlay-images" / identity / f"={name}").read_bytes())

    def _blob(self, layer: dict[str, Any]) -> Blob:
        """One layer, read when asked for."""
        if "diff-digest" not in layer:
            raise CommandFailed(f"layer {layer['id'][:12]} is not complete: build the image again")
        return Blob(layer["diff-digest"], int(layer["diff-size"]), lambda: self.tar(layer["id"]))

    def tar(self, layer: str) -> Iterator[bytes]:
        """The layer's tar stream."""
        files = self.root / "overlay" / layer / "diff"
        with gzip.open(self.root / "overlay-layers" / f"{layer}.tar-split.gz") as record:
            for line in record:
                entry = json.loads(line)
                if entry["type"] == SEGMENT:
                    yield base64.b64decode(entry["payload"])
                elif entry.get("size"):
                    yield from pieces(files / name_of(entry))


def name_of(entry: dict[str, Any]) -> str:
    """A file's path in the layer; names that are not UTF-8 come as base64 under another key."""
    if "name_raw" in entry:
        return base64.b64decode(entry["name_raw"]).decode(errors="surrogateescape").lstrip("/")
    return str(entry["name"]).lstrip("/")


def pieces(path: Path) -> Iterator[bytes]:
    """A file's content."""
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            yield chunk
