"""Owns the secrets that are known by their own shape, and how to find them fast.

Every text is searched and almost none holds a token, so a filter of literal searches decides first; a pattern
is compiled when it is needed. No pattern can run away: what repeats is bounded, cannot match in two ways, or
stops at a character that a later start cannot step over. None is possessive (`*+`) or atomic (`(?>`), here and
in the modules beside: before Python 3.11.5 `re` gets those wrong, and would leave half a private key.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Iterator
from functools import cache

# A token known by its shape: its kind, its markers, its pattern. Markers are literals, separated by ``|``, of
# which the text must hold one: ``[ab]`` is either character, a final ``…`` is ten more characters of a token.
# What group 1 of the pattern matched stays. A new kind of token is a line here and a sample in the test corpus.
Token = namedtuple("Token", "kind markers pattern")  # noqa: PYI024 - typing would cost a hook too much


# A start that follows no letter or digit, unless those are an escape: \n, %3D, the end of a terminal colour.
_START = r"(?:(?<![0-9A-Za-z])|(?<=\\[nrt])|(?<=%[0-9A-F][0-9A-F])|(?<=\dm))"
_END = r"(?![0-9A-Za-z])"
# Between the lines of a key, also when they are escaped; all that repeats has a limit, for re keeps each turn.
_BREAK = r"\s*(?:\\{1,4}[nr]\s*){0,16}"
_FOLLOWED = r"(?=[\w%+/=.~-]{10})"
# A token of a Holdfast server: nothing else looks like it, so it is found anywhere in a text.
_OWN = r"hft_[0-9a-f]{12}_[0-9a-f]{64}"

# In this order: patterns that look at what follows the token come last, when that is already redacted.
# fmt: off
TOKENS = (
    Token("private_key", "PRIVATE KEY",
          r"-{4,5} ?BEGIN [0-9A-Z ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}"
          r"(?:[^-]*(?:-{1,3}(?!-)[^-]*){0,20000}-{4,5} ?END [0-9A-Z ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}"
          # cut off: header lines, lines of base64, and the line at which it was cut
          rf"|(?:{_BREAK}(?:[\w-]{{1,40}}: [^\r\n\\]{{1,200}}|[\w+/=]{{16,}})){{1,20000}}"
          rf"(?:(?=[\s\\]){_BREAK}[\w+/=]+(?=[\r\n\"'\\…]|\.\.\.|\Z))?)"),
    Token("private_key", "PuTTY-User-Key-File-",
          r"PuTTY-User-Key-File-\d: [\s\S]*?(?=PuTTY-User|Private-MAC|\Z)(?:Private-MAC: [0-9a-f]*)?"),
    Token("age_key", "AGE-SECRET-KEY-1…", r"AGE-SECRET-KEY-1[0-9A-Z]{40,}"),
    Token("anthropic_key", "sk-ant-…", r"sk-ant-[0-9a-z]{2,16}-[\w-]{20,}"),
    Token("openai_key", "sk-…",
          _START + r"sk-(?:(?:proj|svcacct|service|admin|None)-[\w-]{20,}"
          r"|(?:[0-9A-Za-z]{1,12}-){0,3}(?=[A-Za-z]*\d)[0-9A-Za-z]{20,}[\w-]*|[\w-]{20,200}?T3BlbkFJ[\w-]{16,})"),
    Token("groq_key", "gsk_…", _START + r"gsk_[0-9A-Za-z]{40,}"),
    Token("xai_key", "xai-…", _START + r"xai-[0-9A-Za-z]{40,}"),
    Token("perplexity_key", "pplx-…", r"pplx-[0-9A-Za-z]{40,}"),
    Token("nvidia_key", "nvapi-…", r"nvapi-[\w-]{40,}"),
    Token("replicate_token", "r8_…", _START + r"r8_[0-9A-Za-z]{30,}"),
    Token("huggingface_token", "hf_…|api_org_…", _START + r"(?:hf|api_org)_[0-9A-Za-z]{30,}"),
    Token("langsmith_key", "lsv2_…", r"lsv2_(?:pt|sk)_[0-9a-f]{32}_[\w-]{8,}"),
    Token("tavily_key", "tvly-…", r"tvly-[\w-]{20,}"),
    Token("github_token", "gh[pousr]_…", r"gh[pousr]_\w{30,}[\w-]*(?:\.[\w-]{16,}){0,2}"),
    Token("github_token", "github_pat_…", r"github_pat_\w{22,}"),
    Token("gitlab_token", "glpat-…|gldt-…|glrt-…|glft-…|glsoat-…|glcbt-…|glimt-…|glptt-…|glagent-…|gloas-…",
          r"gl(?:pat|dt|rt|ft|soat|cbt|imt|ptt|agent|oas)-[\w-]{20,}(?:\.[0-9A-Za-z]{2,12}){0,2}"),
    Token("gitlab_token", "GR1348941…", r"GR1348941[\w-]{20,}"),
    Token("aws_bedrock_key", "ABSK…|bedrock-api-key-…",
          _START + r"ABSK[0-9A-Za-z+/]{100,}={0,2}|bedrock-api-key-[\w+/=-]{20,}"),
    Token("google_api_key", "AIza…", r"AIza[\w-]{35,}"),
    Token("google_oauth", "ya29.…|GOCSPX-…|1//0…", r"(?:ya29\.(?:c\.)?|GOCSPX-)[\w-]{20,}|(?<!\d)1//0[\w-]{40,}"),
    Token("azure_storage_key", "AccountKey=…|SharedAccessKey=…",
          r"((?:Account|SharedAccess)Key=)[0-9A-Za-z+/]{40,}={0,2}"),
    Token("azure_sas", "?sig=…|&sig=…", r"([?&]sig=)[0-9A-Za-z%+/=_-]{32,}"),
    Token("azure_client_secret", "Q~…", _START + r"[\w~.]{3}\dQ~[\w~.-]{30,}[\w~-]"),
    Token("slack_token", "xox[abceoprs]-…|xapp-…", r"(?:xox[abceoprs]|xapp)-[0-9A-Za-z-]{10,}[\w-]*"),
    Token("slack_webhook", "hooks.slack.com", r"(hooks\.slack\.com/[a-z]{1,20}/)[\w+/-]{20,}"),
    Token("discord_webhook", "discord.com/api|discordapp.com/api", r"(/api/webhooks/\d{10,24}/)[\w-]{20,}"),
    Token("stripe_key", "[sr]k_live_…|[sr]k_test_…|whsec_…",
          _START + r"(?:[sr]k_(?:live|test)_[0-9A-Za-z]{16,}|whsec_[0-9A-Za-z+/=]{20,})[\w-]*"),
    Token("sendgrid_key", "SG.…", _START + r"SG\.[\w-]{16,}\.[\w-]{16,}"),
    Token("npm_token", "npm_…", r"npm_[0-9A-Za-z]{36,}"),
    Token("pypi_token", "pypi-AgE…", r"pypi-AgE[\w-]{50,}"),
    Token("docker_token", "dckr_[po]at_…", r"dckr_[po]at_[\w-]{20,}"),
    Token("digitalocean_token", "do[opr]_v1_…", r"do[opr]_v1_[0-9a-f]{40,}[\w-]*"),
    Token("heroku_key", "HRKU-…", r"HRKU-[\w-]{30,}"),
    Token("shopify_token", "shpat_…|shpca_…|shppa_…|shpss_…", r"shp(?:at|ca|pa|ss)_[0-9A-Fa-f]{32,}[\w-]*"),
    Token("linear_key", "lin_api_…|lin_oauth_…", r"lin_(?:api|oauth)_[0-9A-Za-z]{32,}"),
    Token("notion_token", "ntn_…", _START + r"ntn_[0-9A-Za-z]{40,}"),
    Token("vercel_token", "vc[aciprk]_…", _START + r"vc[aciprk]_[0-9A-Za-z]{24,}"),
    Token("supabase_key", "sbp_…|sb_secret_…", _START + r"(?:sbp_[0-9a-f]{40,}|sb_secret_[\w-]{20,})[\w-]*"),
    Token("holdfast_token", "hft_…", _OWN),
    Token("planetscale_token", "pscale_…", r"pscale_(?:tkn|oauth|pw)_[\w=.-]{31,}[\w=-]"),
    Token("vault_token", "hv[sbr].…", _START + r"hv[sbr]\.[\w-]{20,}"),
    Token("terraform_token", ".atlasv1.…", r"[0-9A-Za-z]{14}\.atlasv1\.[\w-]{40,}"),
    Token("grafana_token", "glsa_…|glc_…", _START + r"(?:glsa_[0-9A-Za-z]{32}_|glc_)[0-9A-Za-z+/=]{8,}[\w-]*"),
    Token("newrelic_key", "NRAK-…|NRII-…|NRJS-…", r"NR(?:AK|II|JS)-[\w-]{19,}"),
    Token("sentry_token", "sntrys_…|sntryu_…", r"sntry[su]_[\w+/=-]{32,}"),
    Token("figma_token", "figd_…", r"figd_[\w-]{30,}"),
    Token("doppler_token", "dp.pt.…|dp.st.…|dp.ct.…", r"dp\.(?:pt|ct|st\.[\w-]{1,40})\.[0-9A-Za-z]{40,}"),
    Token("postman_key", "PMAK-…", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}[\w-]*"),
    Token("rubygems_key", "rubygems_…", r"rubygems_[0-9a-f]{48}[\w-]*"),
    Token("pulumi_token", "pul-…", _START + r"pul-[0-9a-f]{40}[\w-]*"),
    Token("fly_token", "fo1_…|fm[12]_…|fm1[ar]_…", _START + r"(?:fo1_[\w-]{40,}|fm[12][ar]?_[\w+/=-]{100,})"),
    Token("cloudflare_key", "v1.0-…", _START + r"v1\.0-[0-9a-f]{24}-[0-9a-f]{100,}[\w-]*"),
    Token("atlassian_token", "ATATT3…", r"ATATT3[\w=-]{60,}"),
    Token("onepassword_token", "ops_eyJ…", r"ops_eyJ[\w+/=-]{100,}"),
    Token("softlayer_key", "api.softlayer.com", r"(api\.softlayer\.com/soap/v3(?:\.1)?/)[0-9a-z]{64}\w*"),
    Token("square_token", "sq0atp-…|sq0csp-…", r"sq0(?:atp|csp)-[\w-]{22,}"),
    Token("jwt", "eyJ…",
          # the header ends at the next start, so that no two starts look at the same text
          _START + r"eyJ(?=[\w-]{8})[0-9A-Za-ln-z]*(?:[m_-](?!" + _START + r"eyJ)[0-9A-Za-ln-z]*){0,4000}={0,2}\."
          r"(?:eyJ[\w-]{4,}={0,2}(?:\.[\w+/=-]*)?|[\w-]*\.[\w-]+\.[\w-]+\.[\w-]+)[\w-]*"),
    Token("bearer_token", "Bearer …", r"(Bearer )(?=[A-Za-z_.~+/=-]*\d)[\w.~+/=-]{15,}[\w~+/=-]"),
    Token("mailchimp_key", "-us[123456789]", _START + r"[0-9a-z]{32}-us\d{1,2}" + _END),
    Token("password", " -u | --user",
          r"(\bcurl\b(?:(?!\s--?u)[^\r\n]){0,256}?\s(?:-u|--user)[ =][\"']?[^\s:\"'$]{1,64}:)[^\s\"'$\[<*][^\s\"']*"),
    Token("password", "sshpass -p", r"(\bsshpass[ \t]{1,4}-p[ \t]{0,4}[\"']?)[^\s\"'$\[<*][^\s\"']*"),
    Token("artifactory_key", "AKC…|AP[0123456789ABCDEF]…",
          _START + r"(?=[A-Za-z]*\d)(?:AKC[0-9A-Za-z]{10,}|AP[0-9A-F](?=[0-9A-Z]*[a-z])[0-9A-Za-z]{20,})" + _END),
    Token("twilio_key", "SK…|AC…", _START + r"(?:AC|SK)[0-9a-z]{32}" + _END),
    Token("databricks_token", "dapi…", _START + r"dapi[0-9a-f]{32}(?:-\d)?" + _END),
    Token("aws_access_key", "AKIA…|ASIA…|ABIA…|ACCA…|A3T…",
          _START + r"(?:A3T[0-9A-Z]|A[KS]IA|ABIA|ACCA)[0-9A-Z]{16}" + _END),
    Token("telegram_token", ":A…", _START + r"(?<![_-])\d{8,10}:A[\w-]{34}(?![\w-])"),
    Token("square_token", "EAAA…", _START + r"(?<![_-])EAAA(?=[A-Za-z_-]*\d)[\w-]{56,64}(?![\w+/=-])"),
)
# fmt: on

# Two without a literal of their own.
_DISCORD_FILTER = r"[\w-]{6}\.[\w-]{27}"  #: after a first dot
_DISCORD = _START + r"[MNO](?=[A-Za-z_.-]{0,62}\d)[\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}"
_SHORTEST_DISCORD = 50
_URL_LOGIN = r"(://[^\s/?#@:\"'<>]*:)(?!\[redacted:)([^\s/?#\"'<>]+)(?=@)"

# Characters of markers, those that are rare in ordinary text first.
_RARE_FIRST = "~?&JQXZKVYGUWqzxjMHBNAFDLORICSETP_=/-.:kvbwygpfmucdlhrsnioate 0123456789"


def mark(kind: str) -> str:
    return f"[redacted:{kind}]"


def redact_tokens(text: str, *, filtered: bool = True) -> str:
    """Replaces every token by its mark. Not ``filtered``, every pattern runs: the same result, only slower."""
    if filtered and not may_hold_token(text):
        return text
    text = ascii_re(_DISCORD).sub(mark("discord_token"), text)
    for kind, literals, pattern in _tokens():
        if not filtered or any(literal in text for literal in literals):
            token = ascii_re(pattern)
            text = token.sub((r"\g<1>" if token.groups else "") + mark(kind), text)
    return text


def redact_own_tokens(text: str) -> str:
    """Replaces only tokens of Holdfast: for texts that are stored unchanged, and read by people who have another token."""
    return ascii_re(_OWN).sub(mark("holdfast_token"), text) if "hft_" in text else text


def redact_urls(text: str) -> str:
    """Only the password of ``scheme://user:password@host``."""
    if "@" not in text or "://" not in text:
        return text
    return ascii_re(_URL_LOGIN).sub(_redact_password, text)


@cache
def ascii_re(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def _redact_password(found: re.Match[str]) -> str:
    stands_for_it = re.fullmatch(r"\*+|\$\{.*|\$\w+|\{.*|%s|x+", found[2])
    return found[0] if stands_for_it else found[1] + mark("url_password")


def has_marker(text: str) -> bool:
    """Less exact than ``may_hold_token``, but needs no compiled pattern."""
    if any(literal in text for _, literals, _ in _tokens() for literal in literals):
        return True
    return "." in text and max(map(len, text.split())) > _SHORTEST_DISCORD


def may_hold_token(text: str) -> bool:
    for character, pattern in _filters():  # noqa: SIM110  a generator would take half as long again
        if character in text and ascii_re(pattern).search(text):
            return True
    return False


@cache
def _tokens() -> tuple[tuple[str, tuple[str, ...], str], ...]:
    return tuple((kind, tuple(_literals(markers)), pattern) for kind, markers, pattern in TOKENS)


def _literals(markers: str) -> Iterator[str]:
    for marker in markers.replace("…", "").split("|"):
        head, bracket, tail = marker.partition("[")
        choices, _, end = tail.partition("]")
        yield from (head + choice + end for choice in choices) if bracket else (marker,)


@cache
def _filters() -> tuple[tuple[str, str], ...]:
    """For each character that is some marker's rarest, the search for all of those markers from there.

    A scan for one character is the fastest there is, and it rarely has to stop.
    """
    ways: dict[str, list[tuple[list[str], list[str], bool]]] = {}
    for marker in "|".join(token.markers for token in TOKENS).split("|"):
        characters = re.findall(r"\[.+?\]|[^…]", marker)
        rarest = min(characters, key=lambda c: _RARE_FIRST.find(c) if c in _RARE_FIRST else len(_RARE_FIRST))
        at = len(characters) - characters[::-1].index(rarest)
        ways.setdefault(rarest, []).append((characters[:at], characters[at:], marker.endswith("…")))
    return tuple((rarest, _filter(rarest, ways[rarest])) for rarest in ways)


def _filter(rarest: str, ways: list[tuple[list[str], list[str], bool]]) -> str:
    prefixes, others = [], [_DISCORD_FILTER] if rarest == "." else []
    for before, after, more in ways:
        if more and not after and len(before) > 2:
            prefixes.append(before)
        else:
            literal = f"{_join(after)}(?<={_join(before + after)})"
            others.append(literal + _FOLLOWED if more else literal)
    if prefixes:  # nearly every stop is over after a look at the two characters before
        two = "".join(f"[{''.join({b[at].strip('[]'): 0 for b in prefixes})}]" for at in (-3, -2))
        known = "|".join(f"(?<={_join(before)})" for before in prefixes)
        others.append(f"(?<={two}{re.escape(rarest)}){_FOLLOWED}(?:{known})")
    return f"{re.escape(rarest)}(?:{'|'.join(others)})"


def _join(characters: list[str]) -> str:
    return "".join(c if len(c) > 1 else re.escape(c) for c in characters)
