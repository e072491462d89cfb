"""`dcem reproduce`: every training is done, exported and drawn; a stop is passed on."""

import pytest

from dcem import cli
from dcem.commands import exits, play, reproduce
from dcem.commands.reproduce import Training

TINY = (
    Training("regression", "regression/dcem", ("preset=tiny",)),
    Training("regression", "regression/gd", ("preset=tiny", "method=gd")),
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(reproduce, "QUICK", TINY)
    monkeypatch.setattr(play, "main", lambda words: exits.DONE)


def test_trains_exports_and_draws(tmp_path, capsys):
    assert cli.main(["reproduce", "--quick", "--out", str(tmp_path)]) == exits.DONE
    assert sorted(path.name for path in (tmp_path / "results" / "regression").iterdir()) == [
        "tiny",
        "tiny,method=gd",
    ]
    shown = capsys.readouterr().out.splitlines()
    pictures = [line.strip() for line in shown if line.endswith(".png")]
    assert len(pictures) >= 4
    assert all(
        (tmp_path / "figures" / picture.rsplit("/", 1)[1]).stat().st_size > 1000 for picture in pictures
    )
    # Again: nothing is trained twice.
    before = (tmp_path / "runs/regression/dcem/log.jsonl").stat().st_mtime_ns
    assert cli.main(["reproduce", "--quick", "--out", str(tmp_path)]) == exits.DONE
    assert (tmp_path / "runs/regression/dcem/log.jsonl").stat().st_mtime_ns == before


def test_a_stop_is_passed_on(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce.train, "main", lambda words: exits.INTERRUPTED)
    assert cli.main(["reproduce", "--quick", "--out", str(tmp_path)]) == exits.INTERRUPTED
