"""Owns the command export: a session as one file, written whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import click

from holdfast.cli import output
from holdfast.cli.arguments import session_argument
from holdfast.cli.command import Invocation, command, pass_invocation
from holdfast.errors import InvalidInput, Refused

#: of file systems that have no hard links
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@command(
    "export",
    "holdfast export deploy",
    "holdfast export deploy --html -o deploy.html",
    "holdfast export deploy --json -o deploy.json",
)
@session_argument
@click.option("--markdown", is_flag=True, help="As Markdown, which is the default.")
@click.option("--html", is_flag=True, help="As one HTML page that needs nothing else.")
@click.option("-o", "--output", "file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
              help="Write into this file, which only you may read; a dash is standard output.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@pass_invocation
def export(run: Invocation, session: str, markdown: bool, html: bool, file: Path | None, force: bool) -> None:
    """Write a session as one file: to read, to share, to keep.

    Markdown and HTML have the conversation as `holdfast log` shows it. In Markdown, texts with HTML or pictures are
    shown as code. The HTML page has no scripts, loads nothing, and shows what agents wrote as text; it needs an extra: pip install 'holdfast-sessions[export]'.

    With --json, writes everything on record as one JSON object: the session, its turns with their texts,
    attempts, usage and events (texts, tool calls, results, notices), and its approvals.
    """
    chosen = {"json": run.json, "html": html, "markdown": markdown}
    forms = [form for form, is_chosen in chosen.items() if is_chosen] or ["markdown"]
    if len(forms) > 1:
        raise click.UsageError(f"{' and '.join(f'--{form}' for form in forms)} exclude each other")
    session_id = run.find(session)
    target = None if file is None or str(file) == "-" else file
    if target is not None:
        _check(target, force=force)
    pieces = run.holdfast.export(session_id, forms[0])
    if target is None:
        for piece in pieces:
            output.write(piece)
        return
    size = _write_whole(target, pieces, force=force)
    if run.json:
        output.document({"session_id": session_id, "file": str(target), "bytes": size})
    else:
        output.say(f"wrote {target} ({size:,} bytes)")


def _check(path: Path, *, force: bool) -> None:
    """Before anything is read."""
    if not path.parent.is_dir():
        raise InvalidInput("output", f"{path.parent} is not a directory")
    if path.exists() and not path.is_file():
        # a device or a pipe would become a file
        raise InvalidInput("output", f"{path} is not a file; without -o the export goes to standard output")
    if not force:
        _refuse_to_replace(path)


def _refuse_to_replace(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise Refused("file_exists", f"{path} exists; --force replaces it", file=str(path))


def _write_whole(path: Path, pieces: Iterable[str], *, force: bool) -> int:
    """Returns the size in bytes. Somebody who looks sees no file, or the file that was there, or the whole new one."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)  # 0600
    written = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in pieces:
                file.write(piece.encode())
            file.flush()
            os.fsync(descriptor)
            size = file.tell()
        if force:
            written.replace(path)
        else:
            _rename_to_new(written, path)
    finally:
        with suppress(FileNotFoundError):
            written.unlink()
    return size


def _rename_to_new(written: Path, path: Path) -> None:
    """Raises Refused if the file exists by now."""
    try:
        path.hardlink_to(written)
    except FileExistsError:
        _refuse_to_replace(path)
    except OSError as exc:
        if exc.errno not in _NO_LINKS:
            raise
        _refuse_to_replace(path)
        written.replace(path)
