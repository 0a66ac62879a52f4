"""`framejit.config`: the option table of the C side as attributes. Each field can also be set by its environment
variable and, per function, by `framejit.compile(options={...})`."""

from . import _framejit
from .errors import OptionError, UnknownConfig, unknown

_TABLE = {field: (env, kind, default, text) for field, env, kind, default, text in _framejit.options()}


def encode(field, value):
    """The text form of a value, after checking that it suits the field. Raises OptionError or UnknownConfig."""
    if field not in _TABLE:
        raise UnknownConfig(unknown("option", field, list(_TABLE)))
    try:
        return _framejit.normal_option(field, _text(field, value))
    except ValueError as error:  # the C side knows which values are valid
        raise error if isinstance(error, OptionError) else OptionError(str(error)) from None


def _text(field, value):
    kind = _TABLE[field][1]
    if kind == "b" and (isinstance(value, bool) or value in (0, 1, "0", "1")):
        return str(int(value))
    if kind == "i" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if kind in "sl":  # l: names separated by commas
        if value is None or isinstance(value, bool):
            return {None: "", True: "true", False: "false"}[value]
        if isinstance(value, (list, tuple)):
            return ",".join(map(str, value))
        if isinstance(value, str) or hasattr(value, "__fspath__"):
            return str(value)
    wants = {"b": "True or False", "i": "an integer", "s": "a string", "l": "names"}[kind]
    raise OptionError(f"option {field!r} takes {wants}, not {value!r}")


def _decode(field, text):
    kind = _TABLE[field][1]
    return text == "1" if kind == "b" else int(text) if kind == "i" else text


class Config:
    """One attribute an option. Unknown names raise, with the nearest valid one.

    `config.patch(fuse=False)` is a context manager and a decorator; `print(config.describe())` lists everything.
    """

    __slots__ = ()

    def __getattr__(self, field):
        if field not in _TABLE:
            if field.startswith("__"):
                raise AttributeError(field)
            raise UnknownConfig(unknown("option", field, list(_TABLE)))
        return _decode(field, _framejit.get_option(field))

    def __setattr__(self, field, value):
        _framejit.set_option(field, encode(field, value))

    def __dir__(self):
        return [*_TABLE, "patch", "describe"]

    def __repr__(self):
        return "framejit.config(" + ", ".join(f"{f}={getattr(self, f)!r}" for f in _TABLE) + ")"

    def patch(self, **changes):
        """Set fields for a `with` block or for the calls of the decorated function."""
        return _Patch({field: encode(field, value) for field, value in changes.items()})

    def describe(self):
        """A table: field, value, environment variable, help."""
        import os

        lines, widest = [], max(map(len, _TABLE))
        for field, (env, _, default, text) in _TABLE.items():
            value = _framejit.get_option(field)
            origin = "default" if value == default else f"from {env}" if env and env in os.environ else "set"
            lines.append(f"{field:{widest}} {value or '(empty)':12} {origin:24} {env:24} {text}")
        return "\n".join(lines)


class _Patch:
    def __init__(self, changes):
        self._changes = changes
        self._saved = []

    def __enter__(self):
        saved = {field: _framejit.get_option(field) for field in self._changes}
        self._saved.append(saved)
        try:
            for field, text in self._changes.items():
                setattr(config, field, _decode(field, text))
        except BaseException:
            self.__exit__()
            raise
        return config

    def __exit__(self, *exc_info):
        for field, text in self._saved.pop().items():
            _framejit.set_option(field, text)

    def __call__(self, fn):
        import functools

        @functools.wraps(fn)
        def patched(*args, **kwargs):
            with self:
                return fn(*args, **kwargs)

        return patched


config = Config()
