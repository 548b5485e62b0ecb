"""Files and folders that are replaced as a whole, killed and interrupted at every step."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sonde import _atomic_files as _replacing
from sonde._atomic_files import replaced_file

# Runs a replacement and ends the process, as a kill does, at the n-th thing that it asks of the file system.
KILLED = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("replacing", {file!r})
replacing = importlib.util.module_from_spec(spec)
spec.loader.exec_module(replacing)
if not {exchanges}:
    replacing._exchange = lambda a, b: False
steps = 0
def step(event, args):
    global steps
    if event.startswith(("os.", "shutil.", "open", "ctypes.")):
        steps += 1
        if steps > {n}:
            os._exit(9)
sys.addaudithook(step)
replacing.replace_folder({path!r})
"""


def fill(folder: Path, text: str) -> None:
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / name).write_text(text)


def whole(folder: Path) -> str | None:
    """What all files of a folder say; None if there is none."""
    if not folder.exists():
        return None
    (text,) = {(folder / name).read_text() for name in ("a", "b", "c")}
    return text


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_folder_that_is_replaced_is_always_whole(tmp_path: Path, exchanges: bool) -> None:
    seen = []
    for n in range(200):
        path = tmp_path / str(n) / "run"
        path.parent.mkdir()
        fill(path, "old")
        fill(Path(_replacing.beside(str(path))), "new")
        program = KILLED.format(file=_replacing.__file__, exchanges=exchanges, n=n, path=str(path))
        code = subprocess.run([sys.executable, "-S", "-c", program], check=False, timeout=60).returncode
        assert code in (0, 9)
        now = whole(path)
        seen.append(now)
        if now is None:
            assert not exchanges and whole(Path(_replacing.set_aside(str(path)))) == "old"
        if code == 0:
            assert now == "new" and os.listdir(path.parent) == ["run"]
            break
    assert seen[0] == "old" and seen[-1] == "new"
    assert seen == sorted(seen, key=["old", None, "new"].index)
    # A later replacement cleans up what the killed ones have left.
    for n in range(len(seen)):
        path = tmp_path / str(n) / "run"
        new = Path(_replacing.beside(str(path)))
        shutil.rmtree(new, ignore_errors=True)
        fill(new, "newer")
        _replacing.replace_folder(str(path))
        assert whole(path) == "newer" and os.listdir(path.parent) == ["run"]


def test_a_folder_takes_a_name_that_is_free(tmp_path: Path) -> None:
    fill(Path(_replacing.beside(str(tmp_path / "run"))), "new")
    _replacing.replace_folder(str(tmp_path / "run"))
    assert whole(tmp_path / "run") == "new" and os.listdir(tmp_path) == ["run"]


def test_a_file_stays_if_the_new_one_fails(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("old")
    with pytest.raises(RuntimeError), replaced_file(file) as new:
        new.write_text("half")
        raise RuntimeError
    assert file.read_text() == "old" and os.listdir(tmp_path) == ["page.html"]


def test_a_file_stays_if_the_disk_is_full(tmp_path: Path) -> None:
    """The system refuses to let a file grow: for the program the same as a disk that is full."""
    file = tmp_path / "page.html"
    file.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError), replaced_file(file) as new:
            new.write_text("x" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.read_text() == "old" and os.listdir(tmp_path) == ["page.html"]


def test_links_and_permissions_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "page.html", tmp_path / "latest.html"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    with replaced_file(link) as new:
        new.write_text("new")
    assert link.is_symlink() and file.read_text() == "new" and file.stat().st_mode & 0o777 == 0o640


def test_what_is_no_ordinary_file_is_written_to() -> None:
    with replaced_file("/dev/null") as file:
        file.write_text("gone")
    assert not Path("/dev/null").is_file()


def test_partial_files_of_killed_processes_are_removed_and_others_stay(tmp_path: Path) -> None:
    target = tmp_path / "a[1].bin"
    killed = f"""
import os
from sonde._atomic_files import replaced_file
with replaced_file({str(target)!r}) as partial:
    partial.write_bytes(bytes(1000))
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", killed], check=False, timeout=120).returncode == 9
    assert len(os.listdir(tmp_path)) == 1
    (tmp_path / ".other.12345678.partial").write_text("of another file")
    with replaced_file(target) as first:
        first.write_text("first")
        with replaced_file(target) as second:  # the first is still being written
            second.write_text("second")
        assert first.read_text() == "first" and target.read_text() == "second"
    assert target.read_text() == "first"
    assert sorted(os.listdir(tmp_path)) == [".other.12345678.partial", "a[1].bin"]
