"""The fixtures of a network in memory, of threads that the loop runs, and of rebalances."""

from loop_threads import threads
from memory_network import leader_of, network, peer_of
from rebalance_kinds import kind

__all__ = ["kind", "leader_of", "network", "peer_of", "threads"]
