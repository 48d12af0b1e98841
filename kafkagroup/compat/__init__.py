"""The APIs of pykafka, kafka-python and kiel on asyncio and trio, as thin layers over the main API.

Names, arguments and defaults are the originals'; calls that block there are coroutines here. Faults
of the originals are not copied: docs/parity.md lists the differences.
"""
