"""The tasks of members and consumers: they run the pure steps of `member` and `consume` over
`transport`.

Tasks, timers, callbacks and events live here. Nothing here opens a socket, encodes bytes or decides
what an assignment is. This package is private: its names may change in any release.
"""
