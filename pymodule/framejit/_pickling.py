"""How compiled functions are pickled: as functions are. By name where the name leads to the compiled function; else the plain
function and the settings, where the pickler decides about the function (pickle wants a name for it, cloudpickle and dill
take functions of `__main__`, closures and lambdas by value)."""

import pickle
import sys
import types

from ._compile import _compile_any


def reduce(compiled):
    if _named(compiled) is compiled and not _by_value(compiled.__module__, sys._getframe(1)):
        return compiled.__qualname__
    return _compile_any, (compiled.__wrapped__, compiled.options), compiled.__dict__ or None


def _named(compiled):
    found = sys.modules.get(compiled.__module__)
    for part in compiled.__qualname__.split("."):
        found = getattr(found, part, None)
    return found


def _by_value(module, caller):
    """Does the pickler that `caller` runs take functions of this module by value?"""
    pickler = caller.f_locals.get("self")
    if not isinstance(pickler, (pickle.Pickler, pickle._Pickler)):
        return False
    own = getattr(pickler, "dispatch", {}).get(types.FunctionType)
    if not hasattr(pickler, "reducer_override") and own in (None, pickle._Pickler.dispatch[types.FunctionType]):
        return False
    if module == "__main__":
        return True
    for cls in type(pickler).__mro__:
        registered = getattr(sys.modules.get(cls.__module__), "list_registry_pickle_by_value", None)
        if registered and any(module == name or module.startswith(name + ".") for name in registered()):
            return True
    return False
