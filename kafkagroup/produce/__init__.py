"""Producing, as values and rules: records to batches, the sequence numbers of each partition, what
was written and what may have been. Nothing here sends, waits or has a clock of its own."""
