"""The tasks of clients: they run the pure steps of `member`, `consume` and `produce` over
`transport`.

Tasks, timers, callbacks and events live here. Nothing here opens a socket, encodes bytes or decides
what an assignment is. This package is private: its names may change in any release.
"""
