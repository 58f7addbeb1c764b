"""Owns the generated parts of the documentation: the table of modules on the architecture page."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src"
ARCHITECTURE = DOCS / "explanation" / "architecture.md"
_BLOCK = re.compile(r"(<!-- modules: [^>]*-->\n).*?(<!-- /modules -->)", re.DOTALL)


def modules() -> list[tuple[str, str]]:
    """Every module's name and the first sentence of its docstring."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        doc = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        found.append((name, " ".join(doc.split("\n\n")[0].split())))
    return found


def architecture() -> str:
    rows = [f"| `{name}` | {line} |" for name, line in modules()]
    table = "\n".join(["| module | |", "|---|---|", *rows])
    return _BLOCK.sub(lambda found: f"{found[1]}{table}\n{found[2]}", ARCHITECTURE.read_text("utf-8"))


def main() -> int:
    ARCHITECTURE.write_text(architecture(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
