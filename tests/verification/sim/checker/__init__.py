"""Check the events of a run: find what no correct client does, in one pass.

For every run, simulated or real, it asserts the invariants that `invariants` lists, from events
alone. It changes nothing, is linear in the events, and does not check what the events do not show.

- `ownership`: S1, S2, S9
- `offsets`: S3 to S8, S12, S13, S19, S23, S25, S26, L10
- `membership`: S10, S11, S14, and what a fenced member does (S1)
- `epochs`: S2, S10, S11, L2 and L4 of members that the coordinator assigns to (KIP-848)
- `pauses`: S15, S16; `revocations`: S17, S18, S21; `leading`: S20, L7
- `second_opinions`: S22, S23; `identity`: S24; `leases`: S27; `refusals`: L11
- `leaving`: L12, L13; `silence`: L14; `logins`: L15; `threads`: L16, L17
- `gaps`: L1; `liveness`: L2 to L5; `pace`, `logins`: L6; `polls`: L9
"""

from .examine import CheckResult, examine, find_violations
from .figures import Figures
from .invariants import INVARIANTS
from .recorder import Violation

__all__ = ["INVARIANTS", "CheckResult", "Figures", "Violation", "examine", "find_violations"]
