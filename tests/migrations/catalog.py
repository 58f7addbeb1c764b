"""Owns reading a schema out of a live database, in words that are the same for both engines."""

import re
import sqlite3
from dataclasses import dataclass
from typing import Any

KINDS = {
    "INTEGER": "whole number",
    "BIGINT": "whole number",
    "bigint": "whole number",
    "integer": "whole number",
    "boolean": "whole number",  # SQLite has no booleans, only 0 and 1
    "TEXT": "text",
    "text": "text",
    "REAL": "real number",
    "double precision": "real number",
    "BLOB": "bytes",
    "bytea": "bytes",
}


@dataclass(frozen=True)
class ForeignKey:
    columns: tuple[str, ...]
    table: str
    references: tuple[str, ...]
    on_delete: str


@dataclass(frozen=True)
class Index:
    unique: bool
    columns: tuple[str, ...]
    condition: str


@dataclass(frozen=True)
class Table:
    columns: dict[str, str]  #: in order: kind, whether it may be missing, default
    key: tuple[str, ...]
    indexes: dict[str, Index]
    foreign_keys: frozenset[ForeignKey]


Schema = dict[str, Table]

#: full-text indexes, which each engine has in its own way
OF_THE_ENGINE = {"search_words"}


def describe(schema: Schema) -> str:
    """One line for each thing, for people who compare."""
    lines: list[str] = []
    for name, table in sorted(schema.items()):
        lines += ["", f"table {name} ({', '.join(table.key)})"]
        lines += [f"    {column}: {what}" for column, what in table.columns.items()]
        for key in sorted(table.foreign_keys, key=lambda key: key.columns):
            lines.append(
                f"    ({', '.join(key.columns)}) refers to {key.table} ({', '.join(key.references)}), "
                f"on delete {key.on_delete}"
            )
        for index_name, index in sorted(table.indexes.items()):
            condition = f" where {index.condition}" if index.condition else ""
            unique = "unique " if index.unique else ""
            lines.append(f"    {unique}index {index_name} ({', '.join(index.columns)}){condition}")
    return "\n".join(lines[1:]) + "\n"


def _column(kind: str, *, optional: bool, default: object) -> str:
    words = [
        KINDS[kind],
        "or missing" if optional else "",
        f"default {default}" if default is not None else "",
    ]
    return ", ".join(filter(None, words))


def _condition(text: str | None) -> str:
    """Without what each engine writes differently: casts, parentheses, and lists."""
    plain = re.sub(r"= ANY \(ARRAY\[(.*?)\]\)", r"IN (\1)", (text or "").replace("::text", ""))
    plain = re.sub(r"\((\w+ IS (?:NOT )?NULL)\)", r"\1", " ".join(plain.split()))
    while plain.startswith("(") and plain.endswith(")"):
        plain = plain[1:-1]
    return plain


# --- SQLite -------------------------------------------------------------------------------------------------


def sqlite_schema(connection: sqlite3.Connection) -> Schema:
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    ours = [name for (name,) in names if not name.startswith(tuple(OF_THE_ENGINE))]
    return {name: _sqlite_table(connection, name) for name in ours}


def _sqlite_table(connection: sqlite3.Connection, name: str) -> Table:
    rows = connection.execute("SELECT * FROM pragma_table_info(?)", (name,)).fetchall()
    columns = {row[1]: _column(row[2], optional=not row[3] and not row[5], default=row[4]) for row in rows}
    key = tuple(row[1] for row in sorted(rows, key=lambda row: row[5]) if row[5])
    indexes = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ?", (name,)
    )
    return Table(
        columns,
        key,
        {index: _sqlite_index(connection, index, sql) for index, sql in indexes if sql is not None},
        _sqlite_foreign_keys(connection, name),
    )


def _sqlite_index(connection: sqlite3.Connection, name: str, sql: str) -> Index:
    rows = connection.execute(
        "SELECT name, desc FROM pragma_index_xinfo(?) WHERE key ORDER BY seqno", (name,)
    )
    said = _split(sql.partition(" (")[2])  # SQLite names no expression: the statement has it
    columns = tuple(
        f"{column or said[place].lower()}{' DESC' if desc else ''}"
        for place, (column, desc) in enumerate(rows)
    )
    _, _, condition = sql.partition(" WHERE ") if " WHERE " in sql else sql.partition("\n    WHERE ")
    return Index(sql.startswith("CREATE UNIQUE"), columns, _condition(condition))


def _split(columns: str) -> list[str]:
    """The columns up to the parenthesis that ends them."""
    found, depth = [""], 0
    for character in columns:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            break
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [column.strip() for column in found]


def _sqlite_foreign_keys(connection: sqlite3.Connection, name: str) -> frozenset[ForeignKey]:
    found: dict[int, list[Any]] = {}
    for row in connection.execute("SELECT * FROM pragma_foreign_key_list(?) ORDER BY id, seq", (name,)):
        found.setdefault(row[0], []).append(row)
    return frozenset(
        ForeignKey(
            tuple(row[3] for row in rows), rows[0][2], tuple(row[4] for row in rows), rows[0][6].lower()
        )
        for rows in found.values()
    )


# --- PostgreSQL ---------------------------------------------------------------------------------------------

PG_TABLES = (
    "SELECT oid, relname FROM pg_class WHERE relkind = 'r' AND pg_table_is_visible(oid) AND oid >= 16384"
)
PG_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
PG_INDEXES = """
SELECT c.relname, i.indisunique, i.indisprimary, pg_get_expr(i.indpred, i.indrelid),
    array(SELECT pg_get_indexdef(i.indexrelid, k + 1, true) || CASE WHEN i.indoption[k] & 1 = 1 THEN ' DESC' ELSE '' END
          FROM generate_subscripts(i.indkey, 1) k ORDER BY k)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = %s"""
PG_FOREIGN_KEYS = """
SELECT array(SELECT attname FROM unnest(conkey) WITH ORDINALITY k(n, i)
             JOIN pg_attribute ON attrelid = conrelid AND attnum = n ORDER BY i),
    confrelid::regclass::text,
    array(SELECT attname FROM unnest(confkey) WITH ORDINALITY k(n, i)
          JOIN pg_attribute ON attrelid = confrelid AND attnum = n ORDER BY i),
    confdeltype::text
FROM pg_constraint WHERE contype = 'f' AND conrelid = %s"""
PG_ON_DELETE = {"a": "no action", "c": "cascade"}


def postgres_schema(url: str) -> Schema:
    import psycopg

    with psycopg.connect(url, options="-c search_path=holdfast") as connection:
        tables = connection.execute(PG_TABLES).fetchall()
        return {name: _postgres_table(connection, oid) for oid, name in tables if name not in OF_THE_ENGINE}


def _postgres_table(connection: Any, oid: int) -> Table:
    columns = {
        name: _column(kind, optional=not required, default=default)
        for name, kind, required, default in connection.execute(PG_COLUMNS, (oid,))
    }
    indexes: dict[str, Index] = {}
    key: tuple[str, ...] = ()
    for name, unique, primary, condition, indexed in connection.execute(PG_INDEXES, (oid,)):
        if primary:
            key = tuple(indexed)
        else:
            # as it was written: PostgreSQL says some functions in capitals
            said = tuple(column.replace("COALESCE", "coalesce") for column in indexed)
            indexes[name] = Index(unique, said, _condition(condition))
    foreign_keys = frozenset(
        ForeignKey(tuple(own), table, tuple(theirs), PG_ON_DELETE[action])
        for own, table, theirs, action in connection.execute(PG_FOREIGN_KEYS, (oid,))
    )
    return Table(columns, key, indexes, foreign_keys)
