"""The judge: one pass over a history, and what in it no correct client does.

It asserts the invariants that `invariants` lists of every run, simulated or real, from events
alone: it asks nobody, changes nothing, and is linear in the events. What a history does not tell it
does not judge.

- `ownership`: S1, S2, S9
- `offsets`: S3 to S8, S12, S13
- `membership`: S10, S11, S14, and what a fenced member does (S1)
- `epochs`: S2, S10 and S11 of members that the coordinator assigns to (KIP-848)
- `pauses`: S15, S16; `revocations`: S17, S18, S21; `topics`: S19; `leading`: S20, L7
- `gaps`: L1; `liveness`: L2 to L5; `pace`: L6; `polls`: L9
"""

from .book import Violation
from .examine import Verdict, examine, judge
from .figures import Figures
from .invariants import INVARIANTS

__all__ = ["INVARIANTS", "Figures", "Verdict", "Violation", "examine", "judge"]
