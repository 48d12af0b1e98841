"""The judge: one pass over a history, and what in it no correct client does.

It holds the invariants S1 to S14 and L1 to L6 of every run, simulated or real, from events alone:
it asks nobody, changes nothing, and is linear in the events. What a history does not tell it does
not judge: without the wire there is no S2, S3, S10, S11; without the broker, no S14.

- `ownership`: S1, S2, S9
- `offsets`: S3 to S8, S12, S13
- `membership`: S10, S11, S14, and what a fenced member does (S1)
- `epochs`: S2, S10 and S11 of members that the coordinator assigns to (KIP-848)
- `gaps`: L1; `liveness`: L2 to L5; `pace`: L6
"""

from .book import Violation
from .examine import Verdict, examine, judge
from .figures import Figures

__all__ = ["Figures", "Verdict", "Violation", "examine", "judge"]
