"""The processes of trials: a trial with a long planned duration does not count as hanging."""

import subprocess
from contextlib import nullcontext

import attrs

from . import latency, trial
from .command import SMALL


def test_the_timeout_of_a_trial_depends_on_its_planned_duration(monkeypatch):
    """A long run at 10 records a second was killed after 300 s."""
    timeouts = []
    turns = b'{"%s": []}' % b'": [], "'.join(b"%d" % n for n in range(24))

    def run(command, *, timeout, **options):
        timeouts.append(timeout)
        return subprocess.CompletedProcess(command, 0, stdout=turns)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(latency.broker, "topic", lambda *arguments: nullcontext("t"))
    latency._run("nowhere:9092", 10, attrs.evolve(SMALL, rounds=6))
    assert len(timeouts) == len(latency.CLIENTS) + 1
    assert all(timeout > 24 * len(latency.CLIENTS) * 5 + 60 for timeout in timeouts)
    trial.run("startup")
    assert timeouts[-1] == 300
