"""Fetch the jars of Kafka and ZooKeeper that the tests run, before several processes ask for them.

Processes that fetch at once would write Maven's own cache at once. A test that only compares with a
jar is skipped where the jar is not there yet.
"""

from __future__ import annotations

import sys

from kafkagroup.testing._jars import LocalKafkaUnavailable, find_java, resolve
from kafkagroup.testing._releases import NETTY, ZOOKEEPER, find_release


def main() -> None:
    try:
        java = find_java()
        for jars in (find_release("4.3.1").jars, ZOOKEEPER, NETTY):
            resolve(jars, java)
    except LocalKafkaUnavailable as error:
        # The tests that need them are skipped, each with this reason.
        print(f"NO REAL KAFKA: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
