"""Owns the command token: who may use a server on this store."""

from __future__ import annotations

import os

import click

from holdfast.cli import output
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.cli.output import Cell, Column, Table, Tone, cell
from holdfast.clock import Instant, after, to_iso
from holdfast.domain.inputs import check_name
from holdfast.domain.tokens import ENTROPY, Role, Token, make_token

_COLUMNS = (
    Column("ID", whole=True),
    Column("ROLE", whole=True),
    Column("NAME"),
    Column("LAST USED", whole=True),
    Column("EXPIRES", whole=True),
    Column("STATE", whole=True),
)
_LONGEST = 100 * 365 * 86400.0


@command(
    "token",
    "holdfast token create --role worker --name build-machines",
    "holdfast token list",
)
@click.argument("action", type=click.Choice(["create", "list", "revoke"]))
@click.argument("token_id", metavar="[ID]", required=False)
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role if role is not Role.AGENT]),
    help="What the new token may do.",
)
@click.option("--name", metavar="NAME", help="A name for people, such as the owner; by default the role.")
@click.option(
    "--expires",
    type=click.FloatRange(0, _LONGEST, min_open=True),
    metavar="SECONDS",
    help="How long the token is valid; by default until it is revoked.",
)
@pass_invocation
def token(
    run: Invocation,
    action: str,
    token_id: str | None,
    role: str | None,
    name: str | None,
    expires: float | None,
) -> None:
    """Create, list or revoke tokens for a server.

    A token is valid in its workspace only, and is printed once. A viewer sees figures and states, and no contents;
    every other role may read all. An operator also starts, changes and cancels, a worker runs turns, an admin does
    everything. Once a token exists, the server requires one. The time of last use is exact to the hour.
    """
    given = {"ID": token_id, "--role": role, "--name": name, "--expires": expires}
    wanted = {"create": ("--role", "--name", "--expires"), "list": (), "revoke": ("ID",)}[action]
    for option, value in given.items():
        if value is not None and option not in wanted:
            if option == "ID":
                instead = f"; name the token with --name {value}" if action == "create" else ""
                raise click.UsageError(f"{action} takes no ID{instead}")
            raise click.UsageError(f"{option} is not an option of {action}")
    if action == "list":
        _list(run)
    elif action == "revoke":
        if token_id is None:
            raise click.UsageError("give the ID of a token; see: holdfast token list")
        _show(run, run.holdfast.store.revoke_token(token_id))
    else:
        if role is None:
            raise click.UsageError("give --role: reader, operator, worker or admin")
        _create(run, Role(role), name or role, expires)


def _create(run: Invocation, role: Role, name: str, expires: float | None) -> None:
    store = run.holdfast.store
    expires_at = None if expires is None else after(store.now(), expires)
    new, text = make_token(role, check_name("name", name), expires_at, os.urandom(ENTROPY))
    made = store.create_token(new)
    if run.json:
        output.document({"token": text, **_document(made)})
    else:
        output.say(text)


def _list(run: Invocation) -> None:
    found = run.holdfast.store.tokens()
    if run.json:
        output.document({"tokens": [_document(one) for one in found]})
    else:
        now = run.holdfast.store.now()
        output.blocks([Table(_COLUMNS, tuple(_row(one, now) for one in found))])


def _show(run: Invocation, token: Token) -> None:
    if run.json:
        output.document(_document(token))
    else:
        output.line(token.id, token.role.value, token.name, "revoked")


def _row(token: Token, now: Instant) -> tuple[Cell, ...]:
    state = "good" if token.is_good(now) else "revoked" if token.revoked_at is not None else "expired"
    return (
        cell(token.id, Tone.STRONG),
        cell(token.role.value),
        cell(token.name),
        cell(_moment(token.last_used_at) or "-"),
        cell(_moment(token.expires_at) or "-"),
        cell(state, Tone.PLAIN if state == "good" else Tone.DIM),
    )


def _document(token: Token) -> dict[str, object]:
    return {
        "token_id": token.id,
        "workspace": token.workspace,
        "role": token.role.value,
        "name": token.name,
        "created_at": to_iso(token.created_at),
        "expires_at": _moment(token.expires_at),
        "last_used_at": _moment(token.last_used_at),
        "revoked_at": _moment(token.revoked_at),
    }


def _moment(instant: Instant | None) -> str | None:
    return None if instant is None else to_iso(instant)
