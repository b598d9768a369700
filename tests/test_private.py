"""The user's secret, and what only this user or root could have put somewhere."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from cpudist import private
from cpudist.errors import UserError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_all_that_make_the_secret_at_once_have_the_same(home: Path) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(private.secret())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(found)) == 1
    assert len(found[0]) == 64
    (file,) = (home / ".config/cpudist").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_secret_that_others_can_read_is_none(home: Path) -> None:
    private.secret()
    (home / ".config/cpudist/secret").chmod(0o644)
    with pytest.raises(UserError, match=r"others may read it; .*CPUDIST_TOKEN"):
        private.secret()


def test_a_link_in_its_place_is_not_followed(home: Path) -> None:
    (home / ".config/cpudist").mkdir(parents=True)
    (home / "other").write_text("known to others")
    (home / "other").chmod(0o600)
    (home / ".config/cpudist/secret").symlink_to(home / "other")
    with pytest.raises(UserError, match="CPUDIST_TOKEN"):
        private.secret()


def test_a_user_without_a_name_and_without_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 987654321)
    assert private.home() is None
    with pytest.raises(UserError, match="no home folder"):
        private.secret()


def test_who_could_change_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    assert private.why_not_trusted(tmp_path) is None
    tmp_path.chmod(0o775)
    assert private.why_not_trusted(tmp_path) == f"{tmp_path} can be written by other users (chmod go-w {tmp_path})"
    tmp_path.chmod(0o755)
    if os.getuid() == 0:
        os.chown(tmp_path, 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert private.why_not_trusted(tmp_path) == f"{tmp_path} belongs to another user, not to you or root"
