"""Folders that jobs leave: handed over and removed, whatever is in them (K33)."""

import os
from pathlib import Path

import pytest

from bursar.agent.local.trees import DEPTH_MAX, hand_over, measure_tree, remove_tree
from tests.support.embedded_guests import only_root

FORMER, LATER = 1_900_000_001, 1_900_000_002


def nest(folder: Path, levels: int) -> None:
    """Make folders in folders, with a file in the last."""
    home = os.getcwd()
    try:
        os.chdir(folder)
        for _ in range(levels):
            os.mkdir("a-folder-with-a-long-name")
            os.chdir("a-folder-with-a-long-name")
        Path("file").write_bytes(bytes(10_000))
    finally:
        os.chdir(home)


def test_folders_of_any_depth_are_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    """Deeper than a path can be long, and than Python recurses."""
    folder, outside = tmp_path / "left", tmp_path / "outside"
    for path in (folder, folder / "closed", outside):
        path.mkdir()
    (outside / "file").touch()
    (folder / "link").symlink_to(outside)
    (folder / "closed" / "link").symlink_to(outside / "file")
    (folder / "closed" / "inner").mkdir()
    (folder / "closed" / "inner").chmod(0)
    (folder / "closed").chmod(0)
    nest(folder, 3_000)

    assert remove_tree(str(folder))
    assert [outside] == list(tmp_path.iterdir())
    assert (outside / "file").exists()


def test_link_or_file_in_place_of_a_folder_is_removed(tmp_path: Path) -> None:
    outside, link, file = tmp_path / "outside", tmp_path / "link", tmp_path / "file"
    outside.mkdir(mode=0o755)
    link.symlink_to(outside)
    file.touch()

    assert remove_tree(str(link))
    assert remove_tree(str(file))
    assert remove_tree(str(tmp_path / "missing"))
    assert [outside] == list(tmp_path.iterdir())
    assert 0o755 == outside.stat().st_mode & 0o777


def test_folders_are_measured_as_far_as_paths_reach(tmp_path: Path) -> None:
    nest(tmp_path, 3)
    (tmp_path / "link").symlink_to("/usr")
    shallow = measure_tree(str(tmp_path))
    nest(tmp_path / "a-folder-with-a-long-name" / "a-folder-with-a-long-name", 0)
    (tmp_path / "deep").mkdir()
    nest(tmp_path / "deep", 3_000)

    assert 10_000 <= shallow < measure_tree(str(tmp_path)) < 100_000
    assert remove_tree(str(tmp_path / "deep"))


@only_root
def test_files_of_former_users_of_jobs_are_handed_over(tmp_path: Path) -> None:
    """And no others: a job could have given them a second name there."""
    folder = tmp_path / "checkpoint"
    (folder / "inner").mkdir(parents=True)
    for name, uid in (("inner", FORMER), ("inner/job's", FORMER), ("inner/root's", 0)):
        (folder / name).touch()
        os.chown(folder / name, uid, uid)
    target = tmp_path / "target"
    target.touch()
    (folder / "link").symlink_to(target)
    os.chown(folder / "link", FORMER, FORMER, follow_symlinks=False)

    hand_over(str(folder), LATER, LATER, range(FORMER, LATER + 1))

    owners = {path.name: path.lstat().st_uid for path in (target, folder, *folder.rglob("*"))}
    expected = dict.fromkeys(("checkpoint", "inner", "job's", "link"), LATER)
    assert {**expected, "target": 0, "root's": 0} == owners


@only_root
def test_handing_over_ends_at_a_depth(tmp_path: Path) -> None:
    nest(tmp_path, DEPTH_MAX + 50)
    hand_over(str(tmp_path), LATER, LATER, range(0, 1))

    assert LATER == tmp_path.stat().st_uid
    assert remove_tree(str(tmp_path / "a-folder-with-a-long-name"))


@pytest.mark.parametrize("folder", ["missing", "link"])
def test_only_a_folder_is_handed_over(tmp_path: Path, folder: str) -> None:
    (tmp_path / "link").symlink_to("/")

    with pytest.raises(OSError, match=folder):
        hand_over(str(tmp_path / folder), LATER, LATER, range(0, 1))
