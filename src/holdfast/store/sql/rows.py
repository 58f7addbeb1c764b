"""Owns how a row becomes a record and a record becomes a row, by the columns of its table and the fields of the record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cached_property

from holdfast.domain.records import fields, record, replace
from holdfast.errors import StoreCorrupt
from holdfast.store.sql.tables import MISREAD, Columns, Kind, Table, unreadable

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, Generic, TypeVar

    from holdfast.store.driver import Row

    T = TypeVar("T")

    class _Of(Generic[T]):
        """The record that rows become."""
else:
    _Of, T = {"T": object}, "T"  # typing takes as long as all the rest that a light command imports


@record
class Field:
    """How one field of a record is kept, where that is not simply the column of the same name."""

    columns: tuple[str, ...]  #: of the table; none: ``sql`` says what is selected
    decode: Callable[..., Any] | Mapping[Any, Any] | None
    encode: Callable[[Any], Any] | str | None = (
        None  #: or an attribute's name; of several columns it gives a tuple
    )
    sql: str = ""
    kind: Kind | None = None  #: of ``sql``


def coded(encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> Field:
    """A value that is written in another form, as JSON for example."""
    return Field((), decode, encode)


def part(
    decode: Callable[..., Any] | None, *columns: str, encode: Callable[[Any], Any] | None = None
) -> Field:
    """A field that has other columns than the one of its name; without ``encode``, a new row leaves these columns out."""
    return Field(columns, decode, encode)


def computed(sql: str, kind: Kind, decode: Callable[[Any], Any] | None = None) -> Field:
    """A field that is selected by an expression and never written."""
    return Field((), decode, None, sql, kind)


class Rows(Columns, _Of[T]):
    """A table's rows as records: the columns are selected in the order of the record's fields."""

    def __init__(
        self, table: Table, record: type[T], key: str, alias: str = "", **special: Field | type[Enum]
    ) -> None:
        """``key`` names a row in errors, by its columns: ``turn {seq} of {session_id}``."""
        self._key = key
        self._record = record
        prefix = f"{alias}." if alias else ""
        picked: list[tuple[str, str, Kind]] = []
        self._fields: dict[str, tuple[int, Field]] = {}  #: and the place of its first column
        for name in fields(record):
            field = _field(name, table, special.pop(name, None))
            self._fields[name] = len(picked), field
            if field.kind is not None:
                picked.append((field.sql, name, field.kind))
            else:
                picked += [(prefix + column, column, table.columns[column]) for column in field.columns]
        assert not special, f"{record.__name__} has no field {', '.join(special)}"
        super().__init__(table.name, picked)
        self._later = {column for column, kind in table.columns.items() if kind.is_later}

    @cached_property
    def _make(self) -> Callable[[Row], T]:
        """Put together once, like a dataclass's own ``__init__``: a loop over the columns would take half as long again."""
        known: dict[str, Any] = {"record": self._record}
        arguments = []
        for name, (at, field) in self._fields.items():
            taken = ", ".join(f"row[{place}]" for place in range(at, at + max(1, len(field.columns))))
            known[f"decode_{name}"] = field.decode
            if field.decode is not None:
                form = "decode_{}[{}]" if isinstance(field.decode, Mapping) else "decode_{}({})"
                taken = form.format(name, taken)
            arguments.append(taken)
        made: Callable[[Row], T] = eval(f"lambda row: record({', '.join(arguments)})", known)  # noqa: S307 - our own names
        return made

    @cached_property
    def values(self) -> Callable[[T], dict[str, Any]]:
        """Gives the parameters of the table's INSERT, as far as a record knows them."""
        known: dict[str, Any] = {}
        items = []
        for name, (_, field) in self._fields.items():
            if not field.columns or not self._later.isdisjoint(field.columns):
                continue
            value = f"record.{name}"
            if isinstance(field.encode, str):
                value += f".{field.encode}"
            elif field.encode is not None:
                known[f"encode_{name}"] = field.encode
                value = f"encode_{name}({value})"
            if len(field.columns) == 1:
                items.append(f"{field.columns[0]!r}: {value}")
            else:
                items.append(f"**dict(zip({field.columns!r}, {value}))")
        made: Callable[[T], dict[str, Any]] = eval(f"lambda record: {{{', '.join(items)}}}", known)  # noqa: S307 - our own names
        return made

    def build(self, row: Row) -> T:
        """Raises one of ``MISREAD`` for a row that no Holdfast wrote."""
        self.check(row)
        return self._make(row)

    def read(self, where: str, row: Row) -> T:
        """Raises StoreCorrupt for a row that no Holdfast wrote."""
        try:
            return self.build(row)
        except MISREAD as exc:
            raise unreadable(where, self.table, self._key.format(**self.named(row)), exc) from exc

    def misread(self, row: Row) -> set[str]:
        """The columns that cannot be understood by themselves."""
        bad = {
            name
            for name, kind, value in zip(self.names, self.kinds, row, strict=True)
            if type(value) not in kind.types
        }
        for at, field in self._fields.values():
            if callable(field.decode) and len(field.columns) == 1 and self.names[at] not in bad:
                try:
                    field.decode(row[at])
                except MISREAD:
                    bad.add(self.names[at])
        return bad


def _field(name: str, table: Table, given: Field | type[Enum] | None) -> Field:
    if given is None:
        return Field((name,), table.columns[name].decode)
    if isinstance(given, type):
        return Field((name,), {member.value: member for member in given}, "value")
    return given if given.columns or given.sql else replace(given, columns=(name,))


def cut(row: Row, *selected: Columns) -> Iterator[Row]:
    """One row for each of the ``selected``, in their order, and then what is left."""
    begin = 0
    for columns in selected:
        yield row[begin : begin + columns.width]
        begin += columns.width
    yield row[begin:]


def readable(read: Callable[[Row], T], rows: Iterable[Row]) -> Iterator[T]:
    """Continues a list behind a row that cannot be read."""
    for row in rows:
        try:
            yield read(row)
        except StoreCorrupt as exc:
            import logging  # a row that cannot be read is rare

            logging.getLogger("holdfast").warning("skipped: %s", exc)
