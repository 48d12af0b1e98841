"""Connections to brokers: sockets, TLS, SASL, requests with deadlines, metadata, throttling.

Everything here knows requests and brokers. Nothing here knows a group's state, an assignment or a
position: that is `runtime`. This package is private: its names may change in any release.
"""
