"""Image archives for `ctr images import`, written as a stream from blobs, leaving out the blobs containerd has already.

Leaving out is what makes a changed top layer of a 6 GB image cheap to bring over; streaming is what spares the first
import a second copy of the image on disk.
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
CHUNK = 1 << 20


@dataclass(frozen=True)
class Blob:
    """A blob: its digest, its length, and how to get its bytes piece by piece."""

    digest: str
    size: int
    chunks: Callable[[], Iterable[bytes]]

    def described(self, media: str) -> dict[str, Any]:
        """Its OCI descriptor."""
        return {"mediaType": media, "digest": self.digest, "size": self.size}


@dataclass(frozen=True)
class Image:
    """An image: config and layers, bottom first, all uncompressed."""

    config: Blob
    layers: tuple[Blob, ...]

    @property
    def manifest(self) -> Blob:
        """The manifest that follows from the parts; equal parts make an equal digest."""
        layers = [layer.described(LAYER) for layer in self.layers]
        return blob_of(
            encoded({"schemaVersion": 2, "mediaType": MANIFEST, "config": self.config.described(CONFIG), "layers": layers})
        )

    @property
    def blobs(self) -> list[Blob]:
        """Everything it consists of, each digest once."""
        return list({blob.digest: blob for blob in (self.manifest, self.config, *self.layers)}.values())


class Source(io.RawIOBase):
    """Pieces of bytes as a file, which is what tarfile reads from."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        super().__init__()
        self.chunks: Iterator[bytes] = iter(chunks)
        self.rest = memoryview(b"")

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Hand out what is left of a piece, or of the next one that is not empty."""
        while not self.rest:
            piece = next(self.chunks, None)
            if piece is None:
                return 0
            self.rest = memoryview(piece)
        count = min(len(buffer), len(self.rest))
        buffer[:count] = self.rest[:count]
        self.rest = self.rest[count:]
        return count


def blob_of(content: bytes) -> Blob:
    """A blob from bytes."""
    return Blob("sha256:" + hashlib.sha256(content).hexdigest(), len(content), lambda: [content])


def encoded(document: Any) -> bytes:
    """JSON in one stable form."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def architecture() -> str:
    """Go's name of this machine's architecture."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def program_image(program: Path) -> Image:
    """An image of one static program as its entry point."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        entry = tarfile.TarInfo(program.name)
        entry.size, entry.mode = program.stat().st_size, 0o755
        with program.open("rb") as file:
            archive.addfile(entry, file)
    body = blob_of(layer.getvalue())
    root = {"type": "layers", "diff_ids": [body.digest]}
    config = {"architecture": architecture(), "os": "linux", "config": {"Entrypoint": [f"/{program.name}"]}, "rootfs": root}
    return Image(blob_of(encoded(config)), (body,))


def write_archive(stream: IO[bytes], name: str, manifest: Blob, blobs: Iterable[Blob]) -> int:
    """Write the archive with the given blobs only; return how many bytes of blobs it carries."""
    annotations = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    descriptor = {**manifest.described(MANIFEST), "annotations": annotations}
    files = {
        "oci-layout": blob_of(encoded({"imageLayoutVersion": "1.0.0"})),
        "index.json": blob_of(encoded({"schemaVersion": 2, "manifests": [descriptor]})),
    }
    carried = {f"blobs/{blob.digest.replace(':', '/')}": blob for blob in blobs}
    with tarfile.open(fileobj=stream, mode="w|", bufsize=CHUNK) as archive:
        for path, blob in {**files, **carried}.items():
            entry = tarfile.TarInfo(path)
            entry.size = blob.size
            archive.addfile(entry, io.BufferedReader(Source(blob.chunks()), CHUNK))
    return sum(blob.size for blob in carried.values())
