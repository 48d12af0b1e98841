"""The command line of the benchmarks: a run that is interrupted keeps what it has measured."""

import json
from contextlib import nullcontext

import pytest

from . import command
from .figures import Figure


def test_each_table_is_printed_and_kept_when_its_benchmark_has_ended(tmp_path, monkeypatch, capsys):
    def fast(bootstrap, settings):
        return [Figure(what="seconds to start", client="kafkagroup", values=(0.25,))]

    def interrupted(bootstrap, settings):
        assert "seconds to start" in capsys.readouterr().out
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "TABLE", tmp_path / "table.txt")
    monkeypatch.setattr(command, "kafka", lambda bootstrap: nullcontext("nowhere:9092"))
    monkeypatch.setattr("sys.argv", ["bench", "--json", str(tmp_path / "figures.json")])
    with pytest.raises(KeyboardInterrupt):
        command.main(None, {"startup": fast, "latency": interrupted})
    assert "0.25" in (tmp_path / "table.txt").read_text()
    (figure,) = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert figure["values"] == [0.25]
