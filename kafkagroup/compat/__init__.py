"""The names of pykafka, kafka-python and kiel, on asyncio and trio: each a way to the main API.

Names, arguments and defaults are the originals'; what had to block is a coroutine. Where an
original is wrong this does right, and docs/parity.md says what differs.
"""
