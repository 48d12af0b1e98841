"""The fixtures of a network in memory, and of threads that the loop runs."""

from loop_threads import threads
from memory_network import leader_of, network, peer_of

__all__ = ["leader_of", "network", "peer_of", "threads"]
