"""Owns where an agent lives while it is tested: an empty home, its settings, and an environment that ends here.

Each function writes an agent's settings and answers with its whole environment; calling it again changes them.
"""

import json
import shutil
from pathlib import Path
from typing import Any

KEY = "sk-lab"
MODEL = "lab-model"


def environment(home: Path, url: str) -> dict[str, str]:
    """What every agent gets, and nothing of the person who runs the tests.

    The proxy is the model server, which refuses: no agent reaches anything beyond this machine.
    """
    node = shutil.which("node")
    folders = [str(Path(node).parent)] if node else []
    temporary = home / "tmp"
    temporary.mkdir(exist_ok=True)
    return {
        "PATH": ":".join([*folders, "/usr/local/bin", "/usr/bin", "/bin"]),
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "HTTP_PROXY": url,
        "HTTPS_PROXY": url,
        "NO_PROXY": "127.0.0.1,localhost",
    }


def claude(home: Path, url: str) -> dict[str, str]:
    return environment(home, url) | {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_TELEMETRY": "1",
    }


def codex(home: Path, url: str) -> dict[str, str]:
    _write(
        home / ".codex" / "config.toml",
        f"""\
model = "{MODEL}"
model_provider = "lab"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.lab]
name = "lab"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "LAB_KEY"
request_max_retries = 1
stream_max_retries = 1
""",
    )
    return environment(home, url) | {"LAB_KEY": KEY}


def opencode(home: Path, url: str) -> dict[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": KEY},
        "models": {MODEL: {"name": MODEL}},
    }
    settings = {"model": f"lab/{MODEL}", "provider": {"lab": provider}, "share": "disabled"}
    _write_json(home / ".config" / "opencode" / "opencode.json", settings | {"autoupdate": False})
    # the catalogue of public models, none of which is used here, costs a second and a half of CPU at each start
    catalogue = home / ".config" / "opencode" / "models.json"
    _write_json(catalogue, {})
    # a person's opencode has installed this from the registry once; here it would fail at each start
    needed = {"@opencode-ai/plugin": "*"}
    (catalogue.parent / "node_modules").mkdir(exist_ok=True)
    _write_json(catalogue.with_name("package-lock.json"), {"packages": {"": {"dependencies": needed}}})
    return environment(home, url) | {
        "BUN_JSC_useDFGJIT": "0",  # a compiler whose work pays off after minutes; a turn here takes seconds
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_MODELS_PATH": str(catalogue),
    }


def gemini(home: Path, url: str, *, retention: bool = False) -> dict[str, str]:
    """With ``retention`` the CLI deletes old sessions as it does by default."""
    settings = {
        "general": {
            "disableAutoUpdate": True,
            "disableUpdateNag": True,
            "sessionRetention": {"enabled": retention},
        },
        "privacy": {"usageStatisticsEnabled": False},
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "telemetry": {"enabled": False},
    }
    _write_json(home / ".gemini" / "settings.json", settings)
    return environment(home, url) | {
        "GEMINI_API_KEY": KEY,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "GOOGLE_GEMINI_BASE_URL": url,
    }


def _write_json(path: Path, settings: dict[str, Any]) -> None:
    _write(path, json.dumps(settings, indent=2))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
