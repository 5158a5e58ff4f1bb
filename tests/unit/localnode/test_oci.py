"""Images put together from buildah's storage: byte for byte what the digests say, and only what is missing."""

import base64
import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from localnode import layers, oci
from localnode.errors import CommandFailed
from localnode.layers import Storage

LAYER = "a" * 64
IDENTITY = "b" * 64


def layer_tar() -> bytes:
    """A layer with a directory, an empty file and files of several lengths, one beyond a tar block."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        folder = tarfile.TarInfo("etc/")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in {"etc/empty": b"", "etc/short": b"x", "big": bytes(range(256)) * 40}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def tar_split(tar: bytes) -> bytes:
    """The record containers/storage keeps: everything but the files' contents, in order."""
    lines, position = [], 0
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for entry in archive:
            lines.append({"type": 2, "payload": base64.b64encode(tar[position : entry.offset_data]).decode()})
            name = base64.b64encode(entry.name.encode()).decode()
            lines.append({"type": 1, "name_raw" if entry.name == "big" else "name": name if entry.name == "big" else entry.name})
            if entry.size:
                lines[-1]["size"] = entry.size
            position = entry.offset_data + entry.size
    lines.append({"type": 2, "payload": base64.b64encode(tar[position:]).decode()})
    return gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode())


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A storage with one image of one layer, as buildah writes it."""
    tar = layer_tar()
    files = tmp_path / "overlay" / LAYER / "diff"
    files.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        archive.extractall(files, filter="data")
    (tmp_path / "overlay-layers").mkdir()
    (tmp_path / "overlay-layers" / f"{LAYER}.tar-split.gz").write_bytes(tar_split(tar))
    digest = "sha256:" + hashlib.sha256(tar).hexdigest()
    record = [{"id": LAYER, "diff-digest": digest, "diff-size": len(tar)}]
    (tmp_path / "overlay-layers" / "layers.json").write_text(json.dumps(record))
    image = tmp_path / "overlay-images" / IDENTITY
    image.mkdir(parents=True)
    (image / ("=" + base64.b64encode(f"sha256:{IDENTITY}".encode()).decode())).write_bytes(b"{}")
    images = [{"id": IDENTITY, "names": ["localhost/one:x"], "layer": LAYER}, {"id": "c" * 64}]
    (tmp_path / "overlay-images" / "images.json").write_text(json.dumps(images))
    return Storage(tmp_path)


def test_a_layer_is_restored_byte_for_byte(storage: Storage) -> None:
    image = storage.image(storage.image_id("localhost/one:x"))
    body = b"".join(image.layers[0].chunks())
    assert body == layer_tar()
    assert image.layers[0].digest == "sha256:" + hashlib.sha256(body).hexdigest()
    assert image.layers[0].size == len(body)


def test_an_unknown_tag_says_how_to_build_it(storage: Storage) -> None:
    with pytest.raises(CommandFailed, match="image build --tag localhost/two:x"):
        storage.image_id("localhost/two:x")
    with pytest.raises(CommandFailed, match="image build"):
        Storage(storage.root / "nowhere").image_id("localhost/one:x")


def test_an_unfinished_layer_is_refused(storage: Storage) -> None:
    path = storage.root / "overlay-layers" / "layers.json"
    path.write_text(json.dumps([{"id": LAYER}]))
    with pytest.raises(CommandFailed, match="not complete"):
        storage.image(IDENTITY)


def test_the_archive_holds_the_index_and_just_the_blobs_given(storage: Storage) -> None:
    image = storage.image(IDENTITY)
    stream = io.BytesIO()
    carried = oci.write_archive(stream, "localhost/one:x", image.manifest, [image.manifest, image.config])
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        names = archive.getnames()
        file = archive.extractfile("index.json")
        assert file is not None
        index = json.load(file)
    assert len(names) == 4
    assert carried == image.manifest.size + image.config.size
    assert index["manifests"][0]["digest"] == image.manifest.digest
    assert index["manifests"][0]["annotations"]["io.containerd.image.name"] == "localhost/one:x"


def test_the_manifest_depends_on_the_parts_only(storage: Storage) -> None:
    assert storage.image(IDENTITY).manifest.digest == storage.image(IDENTITY).manifest.digest


def test_a_source_survives_any_cut_of_its_pieces() -> None:
    pieces = [b"", b"a" * 10, b"", b"b" * 70000, b"c"]
    assert io.BufferedReader(oci.Source(pieces), 16).read() == b"".join(pieces)


def test_a_program_becomes_an_image_that_starts_it(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF")
    image = oci.program_image(program)
    config = json.loads(b"".join(image.config.chunks()))
    assert config["config"]["Entrypoint"] == ["/pause"]
    assert config["rootfs"]["diff_ids"] == [image.layers[0].digest]
    assert len(image.blobs) == 3


def test_names_that_are_not_utf8_keep_their_bytes() -> None:
    raw = base64.b64encode(b"/odd\xff").decode()
    assert layers.name_of({"name_raw": raw}).encode(errors="surrogateescape") == b"odd\xff"
    assert layers.name_of({"name": "/usr/bin"}) == "usr/bin"
