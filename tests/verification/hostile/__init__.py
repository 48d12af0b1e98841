"""Hostile brokers over real sockets: each attack, the client's error, its memory and time."""
