"""The dry run of a release sees what must stop it. The run itself is the stage `release-dry-run`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import release_dry_run as dry_run
import wheel_data
from make_index import make_pages
from release_plan import ReleaseError
from release_user import Log, StepError, User
from wheels import Wheel

LOG = "log.txt"


def test_a_step_that_fails_is_the_last() -> None:
    def fails() -> None:
        raise StepError("the reason")

    shown: list[dry_run.Row] = []
    rows = dry_run.run([("one", lambda: None), ("two", fails), ("three", lambda: None)], shown.append)
    assert [(row.step, row.result) for row in rows] == [("one", "ok"), ("two", "FAILED, the reason")] and rows == shown


@pytest.mark.parametrize(("version", "following"), [("0.1.0", "0.2.0"), ("1.9.3rc1", "1.10.0")])
def test_the_next_version(version: str, following: str) -> None:
    assert dry_run.next_version(version) == following


def test_the_tag(tmp_path: Path) -> None:
    version, following = (dry_run.Version(name, (), Log(tmp_path / LOG)) for name in ("0.1.0", "0.2.0"))
    dry_run.compare_tag("v0.1.0", version, following)
    with pytest.raises(ReleaseError, match=r"tag v0\.2\.0 does not fit version 0\.1\.0"):
        dry_run.compare_tag("v0.2.0", version, following)


def test_a_command_that_fails_is_named_and_logged(tmp_path: Path) -> None:
    log = Log(tmp_path / LOG)
    assert log.run(sys.executable, "-c", "print('said')") == "said\n"
    with pytest.raises(StepError, match=r"exit code 3: .*: the last line"):
        log.run(sys.executable, "-c", "import sys; sys.stderr.write('first\\nthe last line\\n'); sys.exit(3)")
    assert "said\n" in log.file.read_text() and "first\nthe last line\n" in log.file.read_text()


@pytest.fixture(params=[pytest.param("pip", marks=pytest.mark.slow), "uv"])  # 9 s
def user(request: pytest.FixtureRequest, tmp_path: Path) -> User:
    made = User(request.param, tmp_path / "user", Path(sys.executable), Log(tmp_path / LOG))
    made.make()
    return made


def test_a_user_installs_from_one_index_and_removes_all(
    user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings of pip and uv that name another index are not obeyed; a file that stays behind is seen."""
    members = {"lucebox/__init__.py": b"", "lucebox-0.1.0.dist-info/METADATA": wheel_data.metadata("lucebox")}
    wheels = [wheel_data.write(tmp_path, one) for one in (members, wheel_data.pack_members("gfx1151"))]
    make_pages(tmp_path / "index", [*map(Wheel, wheels)])
    make_pages(tmp_path / "other", [Wheel(wheels[0])])
    for name in ("PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, (tmp_path / "index").as_uri())
    with pytest.raises(StepError):
        user.install((tmp_path / "other").as_uri(), "lucebox-gfx1151")
    user.install((tmp_path / "index").as_uri(), "lucebox-gfx1151")
    assert not user.has_conflicts()
    monkeypatch.setattr(wheel_data, "VERSION", "0.2.0")
    newer = {"lucebox/__init__.py": b"", "lucebox-0.2.0.dist-info/METADATA": wheel_data.metadata("lucebox")}
    make_pages(tmp_path / "next", [Wheel(wheel_data.write(tmp_path, newer))])
    user.install((tmp_path / "next").as_uri(), "--upgrade", "lucebox")
    assert user.has_conflicts()
    (package,) = user.folder.glob("lib/python*/site-packages/lucebox_gfx1151")
    (package / "stray").touch()
    with pytest.raises(StepError, match=f"{user.installer} uninstall leaves lib/.*/lucebox_gfx1151"):
        user.remove(["lucebox", "lucebox-gfx1151"])
