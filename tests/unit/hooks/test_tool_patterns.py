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
    ("words", "command"),
    [
        ("terraform apply*", "terraform -chdir=infra apply -auto-approve"),
        ("terraform apply*", "cd x && sudo terraform -no-color -chdir=infra apply"),
        ("terraform apply*", "sh -c 'terraform -chdir=infra apply'"),
        ("git push*", "git -C /repo push"),
        ("git push*", "git -C /repo --no-pager -c a=b push origin"),
        ("git push*", "git -C '/my repo' push"),
        ("git push*", 'git -c user.name="A B C" push'),
        ("git push*", "git -C /my\\ repo push"),
        ("git push*", "git -C $(git rev-parse --show-toplevel) push"),
        ("git push*", "git -C git push"),
        ("git push --force*", "git push -u --force"),
        ("kubectl delete*", "kubectl -n prod delete pod x"),
        ("kubectl delete*", "kubectl --namespace=prod delete pod x"),
        ("kubectl delete*", "kubectl --namespace delete delete"),
        ("aws s3 rm*", "aws --profile p s3 rm s3://x"),
        ("aws s3 rm*", "aws --profile p s3 --region r rm s3://x"),
        ("docker compose down", "docker compose -f a.yml down"),
        ("docker*compose down", "docker -H x compose -f a.yml down"),
    ],
)
def test_options_may_stand_between_the_words(words: str, command: str) -> None:
    assert matches(f"Bash({words})", "Bash", {"command": command})


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("git push*", "git log push"),
        ("git push*", "git -C /repo log push"),
        ("git push*", "git stash -m x push"),
        ("git push", "git -C /repo pushed"),
        ("git push*", "legit -C /repo push"),
        ("rm -rf*", "rm -fr x"),
    ],
)
def test_nothing_but_options_may(words: str, command: str) -> None:
    assert not matches(f"Bash({words})", "Bash", {"command": command})


@pytest.mark.parametrize("command", ["curl x|sh", "curl x | sh", "curl x |sh -s", "curl -L x| sh"])
@pytest.mark.parametrize("words", ["curl * | sh", "curl *|sh", "curl *| sh*", "*| sh", "curl * |*sh"])
def test_spaces_around_operators_do_not_matter(words: str, command: str) -> None:
    assert matches(f"Bash({words})", "Bash", {"command": command})


@pytest.mark.parametrize(
    ("words", "command"),
    [("a &*& b", "a && b"), ("2>*1", "x 2>&1"), ("*> x", "> x"), ("x &*", "x &"), ("a *", "a ; b")],
)
def test_stars_stand_for_what_is_beside_an_operator(words: str, command: str) -> None:
    assert matches(f"Bash({words})", "Bash", {"command": command})


@pytest.mark.parametrize(
    ("words", "path", "found"),
    [
        ("~/.ssh/*", "/home/me/.ssh/config", True),
        ("~/.ssh/*", "~/.ssh/config", True),
        ("~/.ssh/*", "/home/you/.ssh/config", False),
        ("/home/me/*", "~/x", True),
        ("//etc/*", "/etc/passwd", True),
        ("/src/*", "/project/src/a", True),
        ("./infra/*", "/project/infra/main.tf", True),
        ("./main.tf", "/project/main.tf", True),
        ("./main.tf", "/project/domain.tf", False),
        ("src/**/*.ts", "/project/src/a.ts", True),
        ("src/**/*.ts", "/project/src/x/y/a.ts", True),
        ("src/**/*.ts", "/project/lib/a.ts", False),
        ("**/main.tf", "main.tf", True),
        ("**/main.tf", "/project/x/main.tf", True),
        ("**/main.tf", "/project/x/domain.tf", False),
        ("./**/**/main.tf", "/project/main.tf", True),
        ("infra/**", "/project/infra/x/main.tf", True),
    ],
)
@pytest.mark.parametrize("tool", ["Edit", "NotebookEdit", "Read", "Write"])
def test_paths_are_written_as_claude_code_writes_them(
    monkeypatch: pytest.MonkeyPatch, tool: str, words: str, path: str, found: bool
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    key = "notebook_path" if tool == "NotebookEdit" else "file_path"
    assert matches(f"{tool}({words})", tool, {key: path}) is found


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


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("git push*", "git " + "-c a " * 25_000),
        ("git push*", "git -c " * 15_000),
        ("git push*", "git " + "-" * 100_000),
        (" ".join("a" * 100) + " b", "a -a " * 20_000),
        ("a a*" * 100 + "b", "a -a " * 20_000),
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_repeated_options_are_read_in_one_pass(words: str, command: str) -> None:
    assert not matches(f"Bash({words})", "Bash", {"command": command})
