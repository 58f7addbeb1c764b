import pytest

from holdfast.hooks.tool_patterns import LONGEST, matches, read_pattern

APPLY = "Bash(terraform apply*)"


@pytest.mark.parametrize(
    "command",
    [
        "terraform apply",
        "terraform   apply\t-auto-approve",
        "cd infra && terraform apply",
        "cd infra;terraform apply",
        "true|terraform apply",
        "echo one\nterraform apply",
        "(terraform apply)",
        "$(terraform apply)",
        "`terraform apply`",
        "if true; then terraform apply; fi",
        "TF_LOG=debug terraform apply",
        "env -i A=b terraform apply",
        "sudo -E terraform apply",
        "timeout 5 nohup terraform apply &",
        "/usr/local/bin/terraform apply",
        "../bin/terraform apply",
        "xargs -n1 terraform apply < list",
        "sh -c 'terraform apply'",
        'bash -lc "cd infra; terraform apply"',
        "'terraform' \"apply\"",
        "terra''form ap\"\"ply",
        "\\terraform ap\\ply",
        "terraform \\\n  apply",
        "terraform\napply",
        "{terraform,apply,-auto-approve}",
        "terraform${IFS}apply",
        "terraform$IFS'apply'",
        "terraform apply-everything",
        "echo ☃ && terraform apply",
        "terraform\u00a0apply",
    ],
)
def test_a_command_is_found_wherever_it_stands(command: str) -> None:
    assert matches(APPLY, "Bash", {"command": command})


@pytest.mark.parametrize(
    "command",
    [
        "",
        "terraform",
        "terraform plan",
        "apply terraform",
        "myterraform apply",
        "my-terraform apply",
        "terraform_apply",
        "terraförm apply",
        "étérraform apply",
    ],
)
def test_other_words_do_not_count(command: str) -> None:
    assert not matches(APPLY, "Bash", {"command": command})


@pytest.mark.parametrize(
    ("pattern", "tool", "arguments", "found"),
    [
        ("Bash", "Bash", {"command": "ls"}, True),
        ("Bash", "BashOutput", {}, False),
        ("bash", "Bash", {"command": "ls"}, False),
        ("*", "anything", {}, True),
        ("mcp__github__*", "mcp__github__merge", {}, True),
        ("mcp__github__*", "mcp__gitlab__merge", {}, False),
        ("mcp__db__query(*DROP TABLE*)", "mcp__db__query", {"q": [{"sql": "x; DROP  TABLE y"}]}, True),
        ("mcp__db__query(*DROP TABLE*)", "mcp__db__query", {"DROP TABLE": 1}, True),
        ("mcp__db__query(7)", "mcp__db__query", {"id": 7}, True),
        ("Bash(git push:*)", "Bash", {"command": "git push --force"}, True),
        ("Bash(rm -rf /)", "Bash", {"command": "rm -rf /home"}, True),
        ("Bash(make deploy)", "Bash", {"command": "make deploy ENV=prod"}, True),
        ("Bash(make deploy)", "Bash", {"command": "make deployment"}, False),
        ("Bash(kubectl*delete*prod)", "Bash", {"command": "kubectl -n x delete pod y --context prod"}, True),
        ("Bash(kubectl*delete*prod)", "Bash", {"command": "kubectl get pod prod; delete"}, False),
        ("Bash(a[b]?c*)", "Bash", {"command": "a[b]?c"}, True),
        ("Bash(a[b]?c*)", "Bash", {"command": "ab1c"}, False),
        ("Bash(git commit -m \"x*)", "Bash", {"command": "git commit -m 'x y'"}, True),
        ("Write(*.tf)", "Write", {"file_path": "/infra/main.tf", "content": ""}, True),
        ("Write(*.tf)", "Write", {"file_path": "/infra/notes.md", "content": "see main.tf"}, False),
        ("Write(infra/*)", "Write", {"file_path": "/x/docs/../infra/a", "content": ""}, True),
        ("Write(infra/*)", "Write", {"content": "no path at all"}, True),
        ("Bash(ls)", "Bash", {"command": ["ls"]}, True),
        ("WebFetch(https://example.com/*)", "WebFetch", {"url": "https://example.com/x", "prompt": ""}, True),
    ],
)  # fmt: skip
def test_what_a_pattern_means(pattern: str, tool: str, arguments: dict[str, object], found: bool) -> None:
    assert matches(pattern, tool, arguments) is found


@pytest.mark.parametrize(
    "wrong",
    ["", " ", "Bash(", "Bash()", "Bash(  )", "(x)", "Bash(x) y", "two words", "x" * (LONGEST + 1), "WebFetch(domain:example.com)"],
    ids=lambda text: ascii(text[:20]),
)  # fmt: skip
def test_what_is_no_pattern_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_pattern(wrong)
    with pytest.raises(ValueError, match=r"."):
        matches(wrong, "Bash", {"command": "x"})


def test_a_long_command_is_judged_in_no_time() -> None:
    assert not matches("Bash(a*b*c*d*e*f*g)", "Bash", {"command": "a b c d e f " * 50_000})
