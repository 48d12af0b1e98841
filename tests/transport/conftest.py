"""The fixtures of a network in memory."""

from memory_network import leader_of, network, peer_of

__all__ = ["leader_of", "network", "peer_of"]
