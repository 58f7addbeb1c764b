"""Owns the overview of the commands as text, for calls that load no command; docs/generate_cli.py writes it."""

# fmt: off
#: by the columns of the terminal; wider terminals get the widest one
HELP = {
    80: """\
Usage: holdfast [OPTIONS] [COMMAND] [ARGS]...

  Durable sessions for coding agents: continue work where it stopped, and know
  why.

  Without a command, a terminal shows the sessions of this directory to choose
  from; -c in place of a command continues the one that was active last.
  holdfast COMMAND --help explains a command.

  ID is a session's id, the beginning or the end of it, its name, its title,
  or the id that the agent itself gave it. If TEXT is a dash, it is read from
  standard input. The options may come before or after the command.

Everyday:
  run     Start a session: give an agent its first prompt.
  resume  Continue a session where it stopped.
  fork    Start a new session with the history of another.
  chat    Talk to an agent: each line is a turn.
  claude  Begin a session in Claude Code's own program.
  list    List sessions, on a terminal the last active first.
  search  Find sessions by what was said and done in them.
  log     Read a session as a conversation, oldest turn first.
  show    Show everything about a session.
  why     Explain how the next turn of a session would start.
  ps      Show what runs now: how long, the last tool, the tokens.
  ui      Show your sessions in a browser, and answer your agents.
  import  Take over the sessions that the agents' own programs keep.
  doctor  Say what is wrong here, and which command mends it.

All others:
  Work with agents    open, codex, opencode, gemini
  Lifecycle           create, update, should-resume, get, finalize, cleanup
  Understand          tree, export, usage, stats, observed, runtimes, packet
  Ask people          approvals, approve, deny, request-approval, wait
  Change the history  edit, truncate, retry, new
  Fleet               enqueue, worker, serve, token
  Manage              cancel, rename, relocate, restore, recover, rm, config,
                      trust, hooks, hook, completion

Options:
  --url URL         The store: sqlite:///PATH, postgresql://… or a server,
                    https://….
  --workspace NAME  The workspace to work in.
  --json            Print one JSON object; for an error, too.
  --version         Show the version and exit.
  -h, --help        Show this message and exit.""",
    100: """\
Usage: holdfast [OPTIONS] [COMMAND] [ARGS]...

  Durable sessions for coding agents: continue work where it stopped, and know why.

  Without a command, a terminal shows the sessions of this directory to choose from; -c in place
  of a command continues the one that was active last. holdfast COMMAND --help explains a command.

  ID is a session's id, the beginning or the end of it, its name, its title, or the id that the
  agent itself gave it. If TEXT is a dash, it is read from standard input. The options may come
  before or after the command.

Everyday:
  run     Start a session: give an agent its first prompt.
  resume  Continue a session where it stopped.
  fork    Start a new session with the history of another.
  chat    Talk to an agent: each line is a turn.
  claude  Begin a session in Claude Code's own program.
  list    List sessions, on a terminal the last active first.
  search  Find sessions by what was said and done in them.
  log     Read a session as a conversation, oldest turn first.
  show    Show everything about a session.
  why     Explain how the next turn of a session would start.
  ps      Show what runs now: how long, the last tool, the tokens.
  ui      Show your sessions in a browser, and answer your agents.
  import  Take over the sessions that the agents' own programs keep.
  doctor  Say what is wrong here, and which command mends it.

All others:
  Work with agents    open, codex, opencode, gemini
  Lifecycle           create, update, should-resume, get, finalize, cleanup
  Understand          tree, export, usage, stats, observed, runtimes, packet
  Ask people          approvals, approve, deny, request-approval, wait
  Change the history  edit, truncate, retry, new
  Fleet               enqueue, worker, serve, token
  Manage              cancel, rename, relocate, restore, recover, rm, config, trust, hooks, hook,
                      completion

Options:
  --url URL         The store: sqlite:///PATH, postgresql://… or a server, https://….
  --workspace NAME  The workspace to work in.
  --json            Print one JSON object; for an error, too.
  --version         Show the version and exit.
  -h, --help        Show this message and exit.""",
}
#: by the name of the command
SHORT = {
    "run": "Start a session: give an agent its first...",
    "resume": "Continue a session where it stopped.",
    "fork": "Start a new session with the history of...",
    "chat": "Talk to an agent: each line is a turn.",
    "open": "Open the agent's own program on a session,...",
    "claude": "Begin a session in Claude Code's own program.",
    "codex": "Begin a session in Codex's own program.",
    "opencode": "Begin a session in opencode's own program.",
    "gemini": "Begin a session in Gemini CLI's own program.",
    "import": "Take over the sessions that the agents'...",
    "create": "Create a session and print its id.",
    "update": "Change a session: its phase, metadata,...",
    "should-resume": "Tell whether a session may continue, and...",
    "get": "Print a session's state as JSON.",
    "list": "List sessions, on a terminal the last...",
    "finalize": "Close a session as completed, failed or...",
    "cleanup": "Abandon idle delegated sessions and delete...",
    "ui": "Show your sessions in a browser, and...",
    "ps": "Show what runs now: how long, the last...",
    "search": "Find sessions by what was said and done in...",
    "show": "Show everything about a session.",
    "why": "Explain how the next turn of a session...",
    "tree": "Show the family of forks and subagents a...",
    "log": "Read a session as a conversation, oldest...",
    "export": "Write a session as one file: to read, to...",
    "usage": "Show what sessions have used: tokens and...",
    "stats": "Show measures of the work, and whether...",
    "observed": "List the sessions that hooks have seen,...",
    "runtimes": "Show which agents this machine has, and...",
    "packet": "Print the state of a session's work, to...",
    "doctor": "Say what is wrong here, and which command...",
    "approvals": "List the open approvals, the oldest first.",
    "approve": "Approve a request, so that the work can...",
    "deny": "Deny a request, and tell the agent why.",
    "request-approval": "Ask for approval, set phase approval,...",
    "wait": "Wait until a session is done or needs a...",
    "edit": "Change the text of a turn; later turns stay.",
    "truncate": "Remove every turn after TURN from the...",
    "retry": "Put a turn into the queue again.",
    "new": "Start again with an empty history in the...",
    "enqueue": "Put a turn into the queue, for a worker to...",
    "worker": "Run queued turns until stopped.",
    "serve": "Answer over HTTP until stopped.",
    "token": "Create, list or revoke tokens for a server.",
    "cancel": "Stop a turn that is queued or running.",
    "rename": "Give a session a name that can be used...",
    "relocate": "Continue a session in DIR, where its...",
    "restore": "Put an agent's own session files back from...",
    "recover": "Take over the turns of workers that died.",
    "rm": "Delete a session and its conversation...",
    "config": "Show every setting and its source, or edit...",
    "trust": "Apply all settings of a project's file.",
    "hooks": "Make Claude Code call Holdfast: install,...",
    "hook": "Answer an event of an agent's program.",
    "completion": "Print the script for completion in a shell.",
}
#: the commands whose first argument is a session
TAKES_SESSION = {
    "resume",
    "fork",
    "chat",
    "open",
    "update",
    "should-resume",
    "get",
    "finalize",
    "show",
    "why",
    "tree",
    "log",
    "export",
    "packet",
    "request-approval",
    "wait",
    "edit",
    "truncate",
    "retry",
    "new",
    "enqueue",
    "cancel",
    "rename",
    "relocate",
    "restore",
    "rm",
}
