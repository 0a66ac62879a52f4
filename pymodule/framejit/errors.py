"""Errors that framejit itself raises. Errors of the user's program are raised as the program would raise them."""


class FramejitError(Exception):
    """Base class."""


class BreakError(FramejitError, RuntimeError):
    """`fullgraph=True` and the function does not fit into one graph. The text is the break report."""


class RecompileError(FramejitError, RuntimeError):
    """A new version would have to be compiled under `stance("fail_on_recompile")`. The text says which guard failed."""


class InternalError(FramejitError, RuntimeError):
    """FRAMEJIT_STRICT: framejit did not do what it should have done. Without strict this is a warning, and eager goes on."""


class OptionError(FramejitError, ValueError):
    """An unknown name or value of an option, a backend or a mode. The text names the valid ones."""


class UnknownConfig(OptionError, AttributeError):
    """An unknown field of `framejit.config`."""


_instead: "dict[str, type]" = {}  # what `framejit.install()` raises in place of a class here: a subclass of it


def raised(name: str) -> type:
    """The class of which framejit raises instances where it says `name`."""
    return _instead.get(name) or globals()[name]


def unknown(kind: str, name: object, valid: "list[str]", instead: str = "") -> str:
    """The one wording for a name that does not exist, with the nearest valid name if there is one."""
    import difflib

    near = difflib.get_close_matches(str(name), valid, n=1)
    hint = instead or (f"did you mean {near[0]!r}?" if near else "")
    return f"unknown {kind} {name!r}{'; ' + hint if hint else ''} (valid: {', '.join(map(repr, valid))})"
