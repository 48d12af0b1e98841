"""Keys and values of `__consumer_offsets`, one file a kind of group.

An "api key" is here the number of the record's type, with which its key begins.
"""
