"""Download the jars of Kafka and ZooKeeper for the tests, before several processes need them.

Concurrent downloads would write Maven's cache at the same time. A test that only compares with a
jar is skipped while the jar is missing.
"""

from __future__ import annotations

import sys

from kafkagroup.testing._jars import LocalKafkaUnavailable, find_java, resolve
from kafkagroup.testing._releases import NETTY, TOOLS, ZOOKEEPER, find_release


def main() -> None:
    try:
        java = find_java()
        for jars in (find_release("4.3.1").jars, TOOLS, ZOOKEEPER, NETTY):
            resolve(jars, java)
    except LocalKafkaUnavailable as error:
        # The tests that need them are skipped, each with this reason.
        print(f"NO REAL KAFKA: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
