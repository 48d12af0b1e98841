"""Run all benchmarks against aiokafka, librdkafka and Java, on one broker, in one table.

python -m tests.bench [--preset small|large] [--only NAME ...] [--bootstrap HOST:PORT] [--json FILE]

Small takes about an hour, large some hours; both need an otherwise idle machine. `--only` measures
a part. The table of each part is printed when it has ended.
"""

from . import (
    assigning,
    beside,
    consuming,
    deploying,
    gap,
    idle,
    latency,
    producing,
    punctual,
    rebalancing,
    resting,
    startup,
)
from .command import main

main(
    __doc__,
    {
        "assigning": assigning.measure,
        "consuming": consuming.measure,
        "producing": producing.measure,
        "rebalancing": rebalancing.measure,
        "deploying": deploying.measure,
        "gap": gap.measure,
        "latency": latency.measure,
        "beside": beside.measure,
        "idle": idle.measure,
        "startup": startup.measure,
        "resting": resting.measure,
        "punctual": punctual.measure,
    },
)
