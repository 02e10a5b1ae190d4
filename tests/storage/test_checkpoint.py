"""What a checkpoint promises: whole or not there, bit for bit, and an error that names the file."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from neutronstream.storage import has_checkpoint, read_checkpoint, write_checkpoint, write_whole
from neutronstream.stream.errors import CheckpointError


def test_tensors_and_meta_come_back_bit_for_bit(tmp_path: Path) -> None:
    tensors = {
        "weights": torch.tensor([[1.0, -0.0], [float("nan"), float("inf")]]),
        "transposed": torch.arange(6.0, dtype=torch.float64).reshape(2, 3).T,
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
        "steps": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "generator": torch.get_rng_state(),
        "flags": torch.tensor([True, False]),
    }
    meta = {"position": 2**63 - 1, "loss": 0.1, "none": None, "names": ["ü", "b"], "large": 1e300}
    write_checkpoint(tmp_path / "run" / "checkpoints", tensors, meta)
    got, got_meta = read_checkpoint(tmp_path / "run" / "checkpoints")
    assert got_meta == meta
    assert set(got) == set(tensors)
    for name, tensor in tensors.items():
        assert got[name].dtype == tensor.dtype
        assert got[name].shape == tensor.shape
        same = got[name].reshape(-1).view(torch.uint8), tensor.contiguous().reshape(-1)
        assert torch.equal(same[0], same[1].view(torch.uint8))


def test_parts_of_one_tensor_may_be_saved_under_two_names(tmp_path: Path) -> None:
    base = torch.arange(4.0, requires_grad=True)
    write_checkpoint(tmp_path, {"a": base, "b": base[1:3]}, {})
    got, _ = read_checkpoint(tmp_path)
    assert got["b"].tolist() == [1.0, 2.0]
    assert not got["a"].requires_grad


def test_meta_comes_back_as_json_has_it(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {}, {"counts": {2: (1, 2), 10: ()}})
    assert read_checkpoint(tmp_path)[1] == {"counts": {"2": [1, 2], "10": []}}


def test_the_newest_is_read_and_the_last_ones_are_kept(tmp_path: Path) -> None:
    for step in range(5):
        place = write_checkpoint(tmp_path, {"x": torch.tensor([step])}, {"step": step}, keep=3)
        assert read_checkpoint(tmp_path)[1] == {"step": step}
    assert place.name == "00000005"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000003", "00000004", "00000005"]
    write_checkpoint(tmp_path, {}, {"step": 5}, keep=1)
    assert [p.name for p in tmp_path.iterdir()] == ["00000006"]


def test_a_folder_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CheckpointError, match=f"no checkpoint in {folder}"):
            read_checkpoint(folder)


def test_a_half_written_one_is_ignored_and_swept_away_by_the_next(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"x": torch.tensor([1])}, {"step": 1})
    (tmp_path / ".hidden").write_text("not ours")
    draft = tmp_path / ".00000002"
    draft.mkdir()
    (draft / "tensors.safetensors").write_bytes(b"half")
    assert read_checkpoint(tmp_path)[1] == {"step": 1}
    write_checkpoint(tmp_path, {"x": torch.tensor([2])}, {"step": 2})
    assert read_checkpoint(tmp_path)[1] == {"step": 2}
    assert not draft.exists()
    assert (tmp_path / ".hidden").exists()


@pytest.mark.parametrize("file", ["tensors.safetensors", "meta.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "remove"])
def test_a_damaged_one_is_an_error_that_names_the_file(
    tmp_path: Path, file: str, damage: str
) -> None:
    place = write_checkpoint(tmp_path, {"x": torch.arange(100)}, {"step": 123})
    path = place / file
    content = path.read_bytes()
    if damage == "flip" and file == "meta.json":
        path.write_bytes(content.replace(b"123", b"124"))
    elif damage == "flip":
        path.write_bytes(content[:-9] + b"\x01" + content[-8:])
    elif damage == "remove":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2 if damage == "cut" else 0])
    with pytest.raises(CheckpointError, match=rf"{file} is damaged \(.*; remove .*00000001 to go"):
        read_checkpoint(tmp_path)


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    place = write_checkpoint(tmp_path, {}, {})
    document = json.loads((place / "meta.json").read_text())
    (place / "meta.json").write_text(json.dumps(document | {"format": 99}))
    with pytest.raises(CheckpointError, match="has format 99, this version reads 1"):
        read_checkpoint(tmp_path)


def test_what_cannot_be_written_leaves_the_last_checkpoint_alone(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {}, {"step": 1})
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_checkpoint(tmp_path, {}, {"step": object()})
    with pytest.raises(ValueError, match="`keep` must be at least 1: got 0"):
        write_checkpoint(tmp_path, {}, {}, keep=0)
    assert read_checkpoint(tmp_path)[1] == {"step": 1}


def test_a_folder_has_a_checkpoint_once_one_is_finished(tmp_path: Path) -> None:
    assert not has_checkpoint(tmp_path / "missing")
    (tmp_path / ".00000001").mkdir()  # only begun
    (tmp_path / "1st.txt").write_text("not ours")
    assert not has_checkpoint(tmp_path)
    write_checkpoint(tmp_path, {}, {})
    assert has_checkpoint(tmp_path)


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """A disk that takes only so many bytes of a file."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"x": torch.zeros(4)}, {"step": 1})
    tensors = r"00000002/tensors\.safetensors could not be written: "
    with pytest.raises(CheckpointError, match=tensors), no_file_above(2000):
        write_checkpoint(tmp_path, {"x": torch.zeros(4000)}, {"step": 2})
    with pytest.raises(OSError) as error, no_file_above(2000):
        write_checkpoint(tmp_path, {"x": torch.zeros(4)}, {"step": "2" * 4000})
    assert error.value.errno == errno.EFBIG
    assert error.value.filename == str(tmp_path / ".00000002" / "meta.json")
    assert read_checkpoint(tmp_path)[1] == {"step": 1}


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_whole(path, b"first")
    with pytest.raises(OSError) as error, no_file_above(2000):
        write_whole(path, b"x" * 4000)
    assert error.value.filename == str(path)
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]  # nothing is left beside it
    with pytest.raises(FileNotFoundError, match="missing"):
        write_whole(tmp_path / "missing" / "a", b"")


KILLER = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from neutronstream.storage import read_checkpoint, write_checkpoint

folder = Path(sys.argv[1])
torch.set_num_threads(1)
last = 0
write_checkpoint(folder, {"x": torch.full((20_000,), 0)}, {"step": 0})
for trial in range(25):
    child = os.fork()
    if child == 0:
        step = read_checkpoint(folder)[1]["step"]
        while True:
            step += 1
            write_checkpoint(folder, {"x": torch.full((20_000,), step)}, {"step": step})
    time.sleep(random.Random(trial).random() * 0.12)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    tensors, meta = read_checkpoint(folder)
    assert (tensors["x"] == meta["step"]).all(), meta
    assert meta["step"] >= last, (meta, last)
    last = meta["step"]
print(last)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_moment_a_whole_checkpoint_is_there(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3  # some were written between the kills
