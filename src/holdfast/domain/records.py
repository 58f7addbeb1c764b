"""Owns the ways to declare a record: ``PlainRecord`` for what hook processes read, ``record`` for everything else.

A hook process reads this module and does without ``dataclasses`` and ``typing``: importing those would take half of
its time. So ``dataclasses`` is imported when the first ``record`` is declared.

Settings and policies are ``frozen_record``: they check themselves when they are made, and must stay valid afterwards.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from dataclasses import field
    from typing import Any, TypeVar, dataclass_transform

    T = TypeVar("T")
else:
    field = None

    def dataclass_transform(**_: object) -> object:
        return lambda decorated: decorated


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A slotted dataclass. To mypy a record is frozen: assigning to a field is an error.

    At run time a record is not frozen: making a frozen instance takes five times as long, and a page of sessions or
    a decision with its verdicts is hardly anything else.
    """
    from dataclasses import dataclass

    # dataclass compiles the source of each method, and asks ``inspect`` for a docstring. A process that opens a store
    # declares a hundred records and makes few of them: declaring them was half of its time
    cls.__doc__ = cls.__doc__ or cls.__name__
    made = dataclass(slots=True, init=False, eq=False, repr=False)(cls)
    for method in _methods(made):
        if method.__name__ not in vars(cls):
            setattr(made, method.__name__, method)
    return made


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen_record(cls: type[T]) -> type[T]:
    """A record that is frozen at run time, too: one that checks itself when it is made, and must stay valid."""
    from dataclasses import dataclass

    made = dataclass(slots=True, frozen=True, eq=False, repr=False)(cls)
    for method in _methods(made)[1:]:  # its own ``__init__`` gets past the lock
        setattr(made, method.__name__, method)
    return made


def _methods(cls: type) -> tuple[Callable[..., object], ...]:
    """The methods of a dataclass that is equal and hashable by its fields: ``__init__`` first."""
    from dataclasses import fields
    from operator import attrgetter

    declared = fields(cls)
    compared = attrgetter(*(one.name for one in declared if one.compare))
    hashed = attrgetter(*(one.name for one in declared if (one.compare if one.hash is None else one.hash)))

    def __init__(self: object, *args: object, **kwargs: object) -> None:  # noqa: N807 - they become methods
        # the first record of its kind: from now on the class has the ``__init__`` that dataclass compiles
        compiled = _compile_init(cls)
        cls.__init__ = compiled  # type: ignore[misc]
        compiled(self, *args, **kwargs)

    def __eq__(self: object, other: object) -> object:  # noqa: N807
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: object) -> int:  # noqa: N807
        return hash(hashed(self))

    def __repr__(self: object) -> str:  # noqa: N807
        shown = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in declared if one.repr)
        return f"{type(self).__qualname__}({shown})"

    return __init__, __eq__, __hash__, __repr__


def _compile_init(cls: type) -> Callable[..., None]:
    from dataclasses import field, fields, make_dataclass

    same = [
        (one.name, object, field(default=one.default, default_factory=one.default_factory))
        for one in fields(cls)
    ]
    own = {name: getattr(cls, name) for name in ("__doc__", "__post_init__") if hasattr(cls, name)}
    made = make_dataclass(cls.__name__, same, namespace=own, eq=False, repr=False)
    compiled: Callable[..., None] = vars(made)["__init__"]
    return compiled


#: of each record that was copied: what reads all its fields, and the place of each
_copied: dict[type, tuple[Callable[[Any], Iterable[object]], dict[str, int]]] = {}


def replace(record: T, /, **changes: object) -> T:
    """Does what ``dataclasses.replace`` does, for a ``record``, in a third of the time: a turn is copied ten times."""
    kind = type(record)
    values_of, places = _copied.get(kind) or _how_to_copy(kind)
    values = list(values_of(record))
    for name, value in changes.items():
        values[places[name]] = value
    return kind(*values)


def _how_to_copy(kind: type) -> tuple[Callable[[Any], Iterable[object]], dict[str, int]]:
    from operator import attrgetter

    names: tuple[str, ...] = getattr(kind, "__match_args__")  # noqa: B009 - mypy does not know it
    # with one name, attrgetter gives a value, and not a tuple
    values_of = attrgetter(*names) if len(names) > 1 else lambda record: (getattr(record, names[0]),)
    _copied[kind] = values_of, {name: place for place, name in enumerate(names)}
    return _copied[kind]


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
