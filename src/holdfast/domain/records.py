"""Owns the ways to declare a record: ``PlainRecord`` for what hook processes read, ``record`` for everything else.

Importing ``dataclasses`` takes half of the time of a hook process, and declaring a hundred dataclasses a fifth of the
time of a process that opens a store. So a record is a class of our own; ``dataclasses.fields``, ``asdict`` and
``replace`` take it all the same.

Settings and policies are ``frozen_record``: they check themselves when they are made, and must stay valid afterwards.
"""

from __future__ import annotations

from operator import attrgetter

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar, dataclass_transform

    T = TypeVar("T")
else:

    def dataclass_transform(**_: object) -> object:
        return lambda decorated: decorated


#: in the place of a default: there is none
NO_DEFAULT: Any = object()


class Field:
    """What a record declares about one of its fields."""

    __slots__ = ("default", "default_factory", "is_compared", "is_hashed", "is_shown")

    def __init__(
        self,
        default: object,
        default_factory: Callable[[], object] | None = None,
        *,
        is_shown: bool = True,
        is_compared: bool = True,
        is_hashed: bool = True,
    ) -> None:
        self.default = default
        self.default_factory = default_factory
        self.is_shown = is_shown
        self.is_compared = is_compared
        self.is_hashed = is_hashed

    def make_default(self) -> object:
        return self.default if self.default_factory is None else self.default_factory()


def field(
    *,
    default: Any = NO_DEFAULT,
    default_factory: Callable[[], Any] | None = None,
    repr: bool = True,
    compare: bool = True,
    hash: bool = True,
) -> Any:
    """Means what ``dataclasses.field`` means."""
    return Field(default, default_factory, is_shown=repr, is_compared=compare, is_hashed=compare and hash)


def fields(kind: type) -> dict[str, Field]:
    """The fields of a record, by name, those of its bases first."""
    return getattr(kind, "__record_fields__", {})


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A class with slots for its annotated fields. To mypy a record is frozen: assigning to a field is an error.

    At run time a record is not frozen: making a frozen instance takes five times as long, and a page of sessions or
    a decision with its verdicts is hardly anything else.
    """
    made: type[T] = _declare(cls, _METHODS)
    return made


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen_record(cls: type[T]) -> type[T]:
    """A record that is frozen at run time, too: one that checks itself when it is made, and must stay valid."""
    made: type[T] = _declare(cls, _METHODS | _FROZEN_METHODS)
    return made


def _declare(cls: Any, methods: dict[str, Callable[..., object]]) -> Any:
    """The class again, with slots: they cannot be added to a class that exists."""
    inherited = fields(cls)
    body = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    own = {}
    for name, annotation in body.get("__annotations__", {}).items():
        if "ClassVar" not in str(annotation):
            given = body.pop(name, NO_DEFAULT)
            assert type(given).__module__ != "dataclasses", f"{cls.__name__}.{name}: use the field of records"
            own[name] = given if isinstance(given, Field) else Field(given)
    declared = inherited | own
    made = {
        "__qualname__": cls.__qualname__,
        "__slots__": tuple(name for name in own if name not in inherited),
        "__match_args__": tuple(declared),
        "__record_fields__": declared,
        "__dataclass_fields__": _AsDataclass(),
    }
    return type(cls)(cls.__name__, cls.__bases__, methods | body | made)


def _first_init(self: object, *args: object, **kwargs: object) -> None:
    """Makes the first record of its kind. From now on the class has an ``__init__`` that names its fields.

    A process declares a hundred kinds of records and makes few of them, and compiling takes longer than declaring.
    """
    kind: Any = type(self)
    compiled = _compile_init(kind)
    kind.__init__ = compiled
    compiled(self, *args, **kwargs)


def _compile_init(kind: Any) -> Callable[..., None]:
    known: dict[str, Any] = {"_NO_DEFAULT": NO_DEFAULT, "_put": object.__setattr__}
    assign = "self.{0} = {1}" if kind.__setattr__ is object.__setattr__ else "_put(self, {0!r}, {1})"
    arguments, lines = ["self"], []
    for name, declared in fields(kind).items():
        argument = value = name
        if declared.default_factory is not None:
            known[f"_make_{name}"] = declared.default_factory
            argument, value = f"{name}=_NO_DEFAULT", f"_make_{name}() if {name} is _NO_DEFAULT else {name}"
        elif declared.default is not NO_DEFAULT:
            known[f"_default_{name}"] = declared.default
            argument = f"{name}=_default_{name}"
        arguments.append(argument)
        lines.append(assign.format(name, value))
    if hasattr(kind, "__post_init__"):
        lines.append("self.__post_init__()")
    exec(f"def __init__({', '.join(arguments)}):\n " + "\n ".join(lines), known)  # noqa: S102 - our own names
    compiled: Callable[..., None] = known["__init__"]
    compiled.__qualname__ = f"{kind.__qualname__}.__init__"
    return compiled


def _is_equal(self: object, other: object) -> object:
    if other.__class__ is not self.__class__:
        return NotImplemented
    values_of = _shapes[type(self)].compared
    return values_of(self) == values_of(other)


def _hash(self: object) -> int:
    return hash(_shapes[type(self)].hashed(self))


def _show(self: object) -> str:
    kind = type(self)
    shown = (f"{name}={getattr(self, name)!r}" for name, one in fields(kind).items() if one.is_shown)
    return f"{kind.__qualname__}({', '.join(shown)})"


def _refuse_change(self: object, name: str, *_: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"{name} of {type(self).__name__} cannot be changed")


def _make_again(self: object) -> tuple[type, tuple[object, ...]]:
    """How ``copy`` and ``pickle`` make a frozen record: not by assigning to its fields."""
    return type(self), _shapes[type(self)].values(self)


_METHODS: dict[str, Callable[..., object]] = {
    "__init__": _first_init,
    "__eq__": _is_equal,
    "__hash__": _hash,
    "__repr__": _show,
}
_FROZEN_METHODS: dict[str, Callable[..., object]] = {
    "__setattr__": _refuse_change,
    "__delattr__": _refuse_change,
    "__reduce__": _make_again,
}


class _AsDataclass:
    """Makes a record a dataclass for ``dataclasses``, as soon as that looks for its fields."""

    def __get__(self, _: object, kind: Any) -> object:
        import dataclasses

        described = []
        for name, one in fields(kind).items():
            same: dict[str, Any] = {"repr": one.is_shown, "compare": one.is_compared, "hash": one.is_hashed}
            if one.default_factory is not None:
                same["default_factory"] = one.default_factory
            elif one.default is not NO_DEFAULT:
                same["default"] = one.default
            described.append((name, object, dataclasses.field(**same)))
        made: Any = dataclasses.make_dataclass(kind.__name__, described, init=False, repr=False, eq=False)
        kind.__dataclass_params__ = made.__dataclass_params__  # pprint asks a dataclass for these
        kind.__dataclass_fields__ = made.__dataclass_fields__
        return made.__dataclass_fields__


class _Shape:
    """What reads the fields of a kind of record: all of them, those that are compared, and those that are hashed."""

    __slots__ = ("compared", "hashed", "places", "values")

    def __init__(self, kind: type) -> None:
        declared = fields(kind)
        self.values = _reader(declared)
        self.compared = _reader(name for name, one in declared.items() if one.is_compared)
        self.hashed = _reader(name for name, one in declared.items() if one.is_hashed)
        self.places = {name: place for place, name in enumerate(declared)}


def _reader(names: Iterable[str]) -> Callable[[object], tuple[object, ...]]:
    names = tuple(names)
    if len(names) > 1:
        return attrgetter(*names)
    # with one name, attrgetter gives a value, and not a tuple
    return lambda record: tuple(getattr(record, name) for name in names)


class _Shapes(dict[type, _Shape]):
    """One for each kind of record, made when the first of its kind is compared, hashed or copied."""

    def __missing__(self, kind: type) -> _Shape:
        self[kind] = shape = _Shape(kind)
        return shape


_shapes = _Shapes()


def replace(record: T, /, **changes: object) -> T:
    """A copy with other values in some fields."""
    kind = type(record)
    shape = _shapes[kind]
    values = list(shape.values(record))
    for name, value in changes.items():
        values[shape.places[name]] = value
    return kind(*values)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class PlainRecord:
    """Annotations are the fields, class attributes their defaults. Made by keyword; equal when all fields are."""

    def __init__(self, **fields: object) -> None:
        known = type(self).__annotations__
        strange = fields.keys() - known.keys()
        missing = [name for name in known if name not in fields and not hasattr(type(self), name)]
        if strange or missing:
            raise TypeError(f"{type(self).__name__}: {sorted(strange) or missing}")
        self.__dict__.update(fields)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _fields(self) == _fields(other)

    __hash__ = None  # type: ignore[assignment] # some hold dictionaries

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in _fields(self).items())
        return f"{type(self).__name__}({shown})"


def _fields(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in type(record).__annotations__}
