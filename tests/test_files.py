"""Files written whole: what may be replaced, and what is written to as it is."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from tiergnn.cli.predictions import check_target
from tiergnn.errors import StoreError
from tiergnn.files import write_whole


def test_a_pipe_is_written_to_and_stays(tmp_path):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_whole(pipe, b"plan")
    reader.join(10)
    assert got == [b"plan"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [*tmp_path.iterdir()] == [pipe]


def test_a_device_is_written_to_and_stays(tmp_path):
    link = tmp_path / "full"
    link.symlink_to("/dev/full")  # should it be replaced, it is not the system's
    with pytest.raises(StoreError, match="No space left"):
        write_whole(link, b"plan")
    assert link.is_symlink()
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_a_link_stays_one_to_the_new_file(tmp_path):
    (tmp_path / "there").mkdir()
    file, link = tmp_path / "there" / "plan.json", tmp_path / "plan.json"
    link.symlink_to(file)
    for text in (b"new", b"newer"):  # to nothing at first
        write_whole(link, text)
        assert link.is_symlink()
        assert file.read_bytes() == text


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(StoreError, match="the name of a file; a folder is there"):
        write_whole(tmp_path, b"plan")
    assert not [*tmp_path.iterdir()]


def test_predictions_take_the_place_of_files_alone(tmp_path):
    pipe = tmp_path / "rows.npy"
    os.mkfifo(pipe)
    with pytest.raises(StoreError, match="what is there is no file"):
        check_target(pipe, overwrite=True)
