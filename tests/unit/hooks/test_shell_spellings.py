"""Whatever a real bash runs as ``terraform apply``, the pattern for it finds."""

import shlex
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.hooks.tool_patterns import matches

APPLY = "Bash(terraform apply*)"


class Shell:
    """A bash with a ``terraform`` on its path that only writes down how it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        program = folder / "bin" / "terraform"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$1\" >> {shlex.quote(str(self.log))}\n")
        program.chmod(0o755)

    def applies(self, command: str) -> bool:
        self.log.unlink(missing_ok=True)
        subprocess.run(
            ["bash", "--norc", "-c", command], cwd=self.folder, capture_output=True, check=False, timeout=20,
            stdin=subprocess.DEVNULL, env={"PATH": f"{self.folder}/bin:/usr/bin:/bin", "HOME": str(self.folder)},
        )  # fmt: skip
        return self.log.exists() and any(
            line.startswith("apply") for line in self.log.read_text().splitlines()
        )


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("shell"))


def found(command: str) -> bool:
    return matches(APPLY, "Bash", {"command": command})


HOSTILE = [
    "terraform 2>/dev/null apply",
    "terraform <<<yes apply",
    "terraform 2>&1 apply",
    "terraform >&2 apply",
    "terraform &>/dev/null apply",
    "terraform {fd}>/dev/null apply",
    "terraform < /dev/null > /dev/null apply",
    "terraform >/dev/null 2>\\\n/dev/null apply",
    "2>/dev/null terraform apply",
    "terraform <<EOF apply\nyes\nEOF\n",
    "terraform <<'it s' apply\nit's\nit s\n",
    "terraform < <(echo yes) apply",
    "cat <<EOF\n$(terraform 2>&1 apply)\nEOF\n",
    "echo \"$(terraform 2>&1 apply)\"",
    "echo `terraform 2>&1 apply`",
    "echo \"${X:-$(terraform 2>&1 apply)}\"",
    "cat <(terraform 2>&1 apply)",
    "X=terraform; $X apply",
    "X=terraform; \"$X\" apply",
    "X=apply; terraform $X",
    "X=apply; terraform \"$X\"",
    "X=terraform; ${X} 2>&1 apply",
    "X='terraform apply'; $X",
    "X=apply; ls; env terraform $X",
    "set -- terraform apply; \"$@\"",
    "A=(terraform apply); \"${A[@]}\"",
    "terr$'a'form apply",
    "$'terraform' apply",
    "terraform $'\\x61pply'",
    "\\terraform 2>&1 \\apply",
    "terra\\\nform 2>&1 ap\\\n\\\nply",
    "terraform &\\\n>/dev/null apply",
    "{terraform,apply}",
    "terraform {apply,}",
    "bin/terrafor? apply",
    "bin/t* apply",
    "bin/[t]erraform apply",
    "./bin/terraform 2>&1 apply",
    "$(printf terra)form apply",
    "$(printf 'terraform apply')",
    "terraform $(printf 'ap%s' ply)",
    "`printf terraform` apply",
    "terraform$IFS''apply",
    "eval terraform '2>/dev/null' apply",
    "eval 'terraform 2>/dev/null apply'",
    "eval \"$(printf 'terra%s apply' form)\"",
    "bash -c 'terraform 2>/dev/null apply'",
    "bash -c 'terraform $0' apply",
    "bash -c \"bash -c 'terraform 2>&1 apply'\"",
    "printf 'terra%s apply' form | bash",
    "printf 'terra%s apply' form | sh -s",
    "printf 'terra%s apply' form | env bash",
    "printf 'terra%s apply' form | bash /dev/stdin",
    "printf 'terra%s apply' form | bash -o posix",
    "printf 'terra%s apply' form > x; . ./x; bash < x",
    "source <(printf 'terra%s apply' form)",
    "bash <<< \"$(printf 'terra%s apply' form)\"",
    "f() { terraform \"$@\"; }; f apply",
    "function f { terraform \"$1\"; }; f apply",
    "shopt -s expand_aliases\nalias t=terraform\nt apply",
    "hash -p bin/terraform t; t apply",
    "coproc terraform apply; wait",
    "echo apply | xargs terraform",
    "echo apply | xargs -n 1 terraform",
    "echo terraform apply | xargs env",
    "echo apply | xargs -I % terraform %",
    "find bin -name 'terra*' -exec {} apply \\;",
    "find bin -maxdepth 0 -exec terraform 2>&1 apply \\;",
    "nohup terraform 2>&1 apply",
    "timeout 9 terraform 2>&1 apply",
    "nice -n 3 terraform 2>&1 apply",
    "time terraform 2>&1 apply",
    "! terraform 2>&1 apply",
    "command terraform 2>&1 apply",
    "exec terraform 2>&1 apply",
    "if terraform 2>&1 apply; then :; fi",
    "for x in apply; do terraform $x; done",
    "case a in a) terraform 2>&1 apply;; esac",
    "case a in (a) terraform 2>&1 apply;; esac",
    "while terraform 2>&1 apply; do break; done",
    "(terraform 2>&1 apply)",
    "{ terraform 2>&1 apply; }",
    "[[ a ]] && terraform 2>&1 apply",
    "[[ a && ( b || c ) ]] && terraform 2>&1 apply",
    "true || false & terraform 2>&1 apply",
    "echo hi # it's a comment\nterraform 2>&1 apply",
    "echo a#'b' ; terraform 2>&1 apply",
    "trap 'terraform 2>&1 apply' EXIT",
    "A=1 B=2 terraform 2>&1 apply",
    "echo $((1 + 2)); terraform 2>&1 apply",
    "read X <<< terraform; $X apply",
    "printf -v X terra%s form; $X apply",
    "cd . && X=(a b); terraform 2>&1 apply",
    "true x\u00a0# ; terraform 2>&1 apply",
    "true x\f# ; terraform 2>&1 apply",
    "true x\r# ; terraform 2>&1 apply",
    "true x\u2003# ; terraform 2>&1 apply",
    "true <<<\r terraform; terraform 2>&1 apply",
    "x=1 [[ a; terraform 2>&1 apply",
    ">o [[ a; terraform 2>&1 apply",
    "'[[' a; terraform 2>&1 apply",
    "'if' [[ a; terraform 2>&1 apply",
    "[[ a && $(terraform 2>&1 apply) ]]",
    "awk 'BEGIN { system(\"terraform 2>&1 apply\") }'",
    "python3 -c \"import os; os.system('terraform 2>&1 apply')\"",
    "sed -n '1e terraform 2>&1 apply' <<< x",
    "tar cf x.tar bin --checkpoint=1 --checkpoint-action='exec=terraform 2>&1 apply'",
    "git -c alias.x='!terraform 2>&1 apply' x",
]  # fmt: skip


@pytest.mark.parametrize("command", HOSTILE)
def test_bash_applies_and_the_pattern_finds_it(shell: Shell, command: str) -> None:
    assert shell.applies(command)
    assert found(command)


@pytest.mark.parametrize(
    "command",
    [
        "ls -la $HOME *.py 2>/dev/null",
        'cd "$DIR" && git status --short | head -20',
        "git commit -m \"$(cat <<'EOF'\nIt's done: don't apply\nEOF\n)\"",
        "git log --format='%h %s' ${BASE}..HEAD",
        "grep -rn 'apply' src/*.py | wc -l",
        "find . -name '*.tf' | xargs grep -l resource",
        "find . -name '*.py' -exec grep -n foo {} \\;",
        'for f in src/*.py; do python "$f"; done',
        'if [ -f "$X" ]; then cat "$X"; fi',
        '[[ $A == b* && $C ]] && echo "$A"',
        "case $1 in a*) echo a;; *) echo b;; esac",
        "pytest tests/unit/*.py -k 'not apply' 2>&1 | tail -5",
        "python - <<'EOF'\nprint('it')\nEOF\n",
        "terraform plan -out=plan.tfplan 2>&1",
        'terraform -chdir="$DIR" plan',
        "X=$((Y * 2)); echo $X",
        'docker build -t "image:$TAG" .',
        'sudo ls "$DIR"',
        'timeout 60 pytest "$X"',
        "npm test -- src/*.ts",
        "# terraform\nls",
        "rg 'foo(bar|baz)' \"$DIR\"",
        'git add terraform/main.tf && git commit -m "$MESSAGE (again)"',
        "python3 -c 'print(1 + 2)'",
        'sed -i "s/(a)/$X/" file',
    ],
)
def test_what_is_plainly_something_else_does_not_wait(command: str) -> None:
    assert not found(command)


@pytest.mark.parametrize(
    "command",
    [
        "echo 'unfinished",
        'echo "unfinished',
        "echo $(unfinished",
        "echo ${unfinished",
        "cat <<EOF\nunfinished",
        "echo `unfinished",
        "ls )",
        "ls >",
        "ls \\",
        "ls >! file",
        "ls \x00",
        "ls $[1]",
        "$(" * 50_000,
        "${" * 50_000,
        "`" * 50_001,
        'bash -c "' * 1001,
        "echo *(.)",
        "\\'\"`" * 25_000,
        "env " * 10_000 + "ls",
        "xargs " * 10_000 + "ls",
        "git bisect run $X",
        'python3 -c "$X"',
        "fd . -x terraform $X",
        "ls\u00a0-l",
    ],
    ids=lambda command: ascii(command[:20]),
)
def test_what_is_not_understood_waits(command: str) -> None:
    assert found(command)


@pytest.mark.parametrize(
    ("words", "command", "waits"),
    [
        ("git push*--force*", "git push $OPTIONS", True),
        ("git push*--force*", "git push --for$REST", True),
        ("git push*--force*", 'git push "$REMOTE" main', True),
        ("git push*--force*", 'git commit -m "$MESSAGE"', False),
        ("git push*--force*", "git commit -m $MESSAGE", False),
        ("git push*--force*", "git $WHAT", True),
        ("git push*--force*", "$WHAT", True),
        ("rm -rf*", "rm $X", True),
        ("rm -rf*", "ls $X", False),
        ("*prod*", "ls $X", True),
        ("*prod*", "ls x", False),
        ("curl * | sh", "curl -L x 2>/dev/null |& sh", True),
        ("kubectl delete*", "kubectl 2>&1 -n prod >x delete pod", True),
        ("kubectl delete*", 'kubectl -n "my space" 2>&1 delete pod', True),
    ],
)
def test_marks_stand_for_words_of_the_pattern(words: str, command: str, waits: bool) -> None:
    assert matches(f"Bash({words})", "Bash", {"command": command}) is waits


def test_the_command_of_any_other_tool_is_read_in_the_same_way() -> None:
    assert matches("shell(terraform apply*)", "shell", {"command": "terraform 2>&1 apply"})
    assert not matches("shell(terraform apply*)", "shell", {"note": "terraform 2>&1 apply"})


@pytest.mark.parametrize(
    "command",
    [
        "echo '" + "a " * 500_000 + "'",
        "x " + "'a;b' " * 50_000,
        "x " + "*a " * 50_000,
        "\\a" * 500_000,
        "a;" * 200_000,
        "cat <<'EOF'\n" + "line\n" * 200_000 + "EOF\n",
        "[ " * 100_000,
        "x " + "{" * 100_000,
    ],
    ids=lambda command: ascii(command[:20]),
)
def test_a_huge_command_is_read_in_one_pass(command: str) -> None:
    began = time.process_time()
    found(command)
    assert time.process_time() - began < 20  # a second or so; squares would be hours


def spelled(word: str) -> st.SearchStrategy[str]:
    """Ways in which a shell may be told a word."""

    def somewhere(draw_at: int, join: str) -> str:
        return word[:draw_at] + join + word[draw_at:]

    place = st.integers(1, len(word) - 1)
    return st.one_of(
        st.just(word),
        st.builds(
            somewhere,
            place,
            st.sampled_from(["''", '""', "\\\n", "\\", "$NOTHING", "${NOTHING}", "$()", "``"]),
        ),
        place.map(lambda at: f"'{word[:at]}'\"{word[at:]}\""),
        place.map(lambda at: f"$'{word[:at]}'{word[at:]}"),
        place.map(lambda at: f"$(printf {word[:at]}){word[at:]}"),
        place.map(lambda at: f"{word[:at]}`echo {word[at:]}`"),
        st.just(f"${{NOTHING:-{word}}}"),
        st.just("$" + word.upper()),
        st.just(f'"${word.upper()}"'),
    )


REDIRECTION = st.sampled_from(
    ["2>/dev/null", "2>&1", ">/dev/null", "<<<yes", "<<< \"a b\"", "< /dev/null", "&>/dev/null", "2>>x", "3<>x",
     "< <(echo yes)", ">|x", "2>&-", "{fd}</dev/null", "\\\n", "$NOTHING", "-no-color"]
)  # fmt: skip
AROUND = st.sampled_from(
    ["{}", "true && {}", "{} | cat", "({})", "{{ {}; }}", "echo \"$({})\"", "echo $({})", "if {}; then :; fi",
     "env A=b {}", "nohup {}", "timeout 9 {}", "! {}", "A=b {}", "ls >/dev/null; {}", "cat <<E\n$({})\nE\n",
     "for x in 1; do {}; done", "case 1 in 1) {};; esac", "time {}", "echo it\\'s; {}", "# it's\n{}", "command {}",
     "f() {{ {}; }}; f", "cat <({})", "eval {}", "[[ a < b ]] && {}"]
)  # fmt: skip


@given(
    spelled("terraform"), st.lists(REDIRECTION, max_size=3), spelled("apply"), st.lists(REDIRECTION, max_size=1),
    AROUND, AROUND,
)  # fmt: skip
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_spelling_that_bash_applies_is_missed(
    shell: Shell, program: str, between: list[str], verb: str, behind: list[str], around: str, outer: str
) -> None:
    command = " ".join([program, *between, verb, *behind])
    command = "TERRAFORM=terraform APPLY=apply;" + outer.format(around.format(command))
    if shell.applies(command):
        assert found(command)
