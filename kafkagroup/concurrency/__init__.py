"""What tasks wait with, on asyncio and trio: mailbox, signals, events, clocks, work in slices.

Nothing here knows Kafka, opens a connection, or starts a thread.
"""
