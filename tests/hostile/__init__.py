"""Brokers that mean harm, over real sockets: each attack, its error, its memory, its time."""
