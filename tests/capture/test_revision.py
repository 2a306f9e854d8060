"""The git commit of a program's folder, as git itself tells it."""

import subprocess
from pathlib import Path

import pytest

from profkit.capture.process import environment
from profkit.capture.process.environment import find_half_types, processor, revision


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with one commit."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "one")
    return folder


def test_a_branch_packed_detached_and_in_a_worktree(repository: Path) -> None:
    inner = repository / "src" / "deep"
    inner.mkdir(parents=True)
    head = git(repository, "rev-parse", "HEAD")
    assert revision(repository) == revision(inner) == head
    git(repository, "worktree", "add", "-q", "-b", "other", str(repository.parent / "tree"))
    git(repository.parent / "tree", "commit", "-q", "--allow-empty", "-m", "two")
    other_revision = git(repository.parent / "tree", "rev-parse", "HEAD")
    assert revision(repository.parent / "tree") == other_revision != head
    git(repository, "pack-refs", "--all")
    assert revision(repository) == head
    assert revision(repository.parent / "tree") == other_revision
    git(repository, "checkout", "-q", "--detach", other_revision)
    assert revision(repository) == other_revision


def test_no_repository_no_commit_and_a_damaged_one(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    assert revision(empty) is None  # nothing is committed yet
    (empty / ".git" / "HEAD").write_bytes(b"\xff\xfe")
    assert revision(empty) is None
    (empty / ".git" / "HEAD").unlink()
    assert revision(empty) is None


def test_this_machine_has_a_processor() -> None:
    assert processor()


@pytest.mark.parametrize(
    ("line", "types"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 amx_bf16", ["bfloat16"]),
        ("flags\t\t: fpu avx512_bf16 avx512_fp16", ["bfloat16", "float16"]),
        ("flags\t\t: fpu avx512f avx512_vnni", []),
        ("Features\t: fp asimd asimdhp bf16", ["bfloat16", "float16"]),
        ("processor\t: 0", None),
    ],
)
def test_the_flags_of_a_processor_tell_its_types(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, types: list[str] | None
) -> None:
    cpus = tmp_path / "cpuinfo"
    cpus.write_text(f"model name\t: Any\n{line}\n")
    monkeypatch.setattr(environment, "_CPUS", cpus)
    assert find_half_types() == types
    assert processor() == "Any"
