"""Keys and values of the records in `__consumer_offsets`: one module for each group type, and one
for the offsets of all types.

The "api key" of these messages is the number of the record's type, with which its key begins.
"""
