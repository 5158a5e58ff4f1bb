"""State files never confuse one process with another."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from localnode import imagestore, paths, processes
from localnode.errors import LocalNodeError
from localnode.processes import Process

STAT = "4711 (odd ) name) S 1 4711 4711 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 1 1"


def test_start_time_is_read_behind_a_name_with_brackets() -> None:
    assert processes.parse_stat(STAT) == Process(4711, 98765)


def test_a_corpse_is_no_process() -> None:
    assert processes.parse_stat(STAT.replace(" S ", " Z ")) is None


def test_a_living_process_is_remembered(tmp_path: Path) -> None:
    me = Process.of(os.getpid())
    assert me is not None
    me.save(tmp_path / "me.json")
    assert Process.load(tmp_path / "me.json") == me


def test_a_reused_pid_is_not_taken_for_the_old_process(tmp_path: Path) -> None:
    me = Process.of(os.getpid())
    assert me is not None
    Process(me.pid, me.started - 1).save(tmp_path / "me.json")
    assert Process.load(tmp_path / "me.json") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", json.dumps({"pid": 1}), json.dumps({"pid": "x", "started": 1})])
def test_a_broken_state_file_means_no_process(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    assert Process.load(tmp_path / "state.json") is None


def test_kill_waits_for_the_end_and_buries_a_child() -> None:
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"], os.environ)
    process = Process.of(child)
    assert process is not None
    process.kill()
    assert not Path(f"/proc/{child}").exists()


def test_kill_leaves_a_successor_of_the_pid_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        now = Process.of(other.pid)
        assert now is not None
        Process(now.pid, now.started - 1).kill(timeout=0.2)
        assert other.poll() is None
        other.communicate(b"\n")
    assert other.returncode == 0


@pytest.mark.parametrize("name", ["", "Bw", "a/b", "..", "-a", "a-", "a" * 33, "a b", "a\n"])
def test_names_that_are_no_labels_are_refused(name: str) -> None:
    with pytest.raises(LocalNodeError, match="DNS label"):
        paths.node_state(name)


def test_the_cache_moves_with_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert paths.node_state("bw-demo") == tmp_path / "blockwarden" / "nodes" / "bw-demo"
    assert paths.node_names() == []


def test_pruning_spares_the_store_of_a_living_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    me = Process.of(os.getpid())
    assert me is not None
    first = imagestore.claim(lambda _: me)
    second = imagestore.claim(lambda _: Process(me.pid, me.started - 1))
    assert first != second
    assert imagestore.prune() == [second]
    assert first.is_dir()
    assert not second.exists()
    assert imagestore.claim(lambda _: me) == second
