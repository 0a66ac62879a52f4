"""A dictionary keyed by objects themselves: by identity (tensors compare element-wise) and without keeping them alive."""

from _weakref import ref


class WeakIdMap:
    def __init__(self):
        self._entries = {}  # id -> (weak reference, value)

    def get(self, key, default=None):
        entry = self._entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else default

    def setdefault(self, key, default):
        identity, entries = id(key), self._entries
        entry = entries.get(identity)
        if entry is None or entry[0]() is not key:

            def gone(reference):
                if entries.get(identity, (None,))[0] is reference:
                    del entries[identity]

            entry = entries[identity] = (ref(key, gone), default)
        return entry[1]
