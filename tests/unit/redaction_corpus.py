"""Samples of what is a secret and of what only looks like one.

No secret stands here: every token is put together when the tests run, from a prefix and a made-up filling.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

ALNUM = "a1B2c3D4e5F6g7H8"
LOWER = "a1b2c3d4e5f6g7h8"
UPPER = "A2B3C4D5E6F7G2H3"
HEX = "0a1b2c3d4e5f6789"
WEB = "a1B2-c3D4_e5F6-g7"
BASE64 = "a1B2+c3D4/e5F6"


def fill(alphabet: str, length: int) -> str:
    return (alphabet * (length // len(alphabet) + 1))[:length]


@dataclass(frozen=True)
class Sample:
    """``secret`` is the part of ``text`` that must become ``[redacted:<kind>]``; nothing else may change."""

    kind: str
    text: str
    secret: str

    @property
    def redacted(self) -> str:
        return self.text.replace(self.secret, f"[redacted:{self.kind}]")


def _segment(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _pem(label: str, *, newline: str = "\n", end: bool = True, headers: str = "") -> str:
    lines = [f"-----BEGIN {label}-----", *headers.splitlines()]
    lines += [fill(BASE64, 64)] * 4 + [fill(BASE64, 22) + "=="]
    return newline.join([*lines, f"-----END {label}-----"] if end else lines)


HEADER, CLAIMS = _segment({"alg": "HS256", "typ": "JWT"}), _segment({"sub": "1234567890", "admin": True})
JWT = f"{HEADER}.{CLAIMS}.{fill(WEB, 43)}"
DISCORD = f"MT{fill(ALNUM, 22)}.Gh1jKl.{fill(WEB, 38)}"
PUTTY = (
    "PuTTY-User-Key-File-2: ssh-rsa\nEncryption: none\nComment: laptop\nPublic-Lines: 1\n"
    f"{fill(BASE64, 64)}\nPrivate-Lines: 1\n{fill(BASE64, 64)}\nPrivate-MAC: {fill(HEX, 40)}"
)

#: tokens that are known by their shape, wherever they stand
TOKENS: list[tuple[str, str]] = [
    ("anthropic_key", "sk-ant-" + "api03-" + fill(WEB, 93) + "AA"),
    ("anthropic_key", "sk-ant-" + "oat01-" + fill(WEB, 93) + "AA"),
    ("anthropic_key", "sk-ant-" + "admin01-" + fill(WEB, 93) + "AA"),
    ("openai_key", "sk-" + fill(ALNUM, 48)),
    ("openai_key", "sk-" + fill(ALNUM, 20) + "T3Blb" + "kFJ" + fill(ALNUM, 20)),
    ("openai_key", "sk-proj-" + fill(WEB, 74) + "T3Blb" + "kFJ" + fill(WEB, 74)),
    ("openai_key", "sk-svcacct-" + fill(WEB, 58)),
    ("openai_key", "sk-or-v1-" + fill(HEX, 64)),
    ("groq_key", "gsk_" + fill(ALNUM, 52)),
    ("xai_key", "xai-" + fill(ALNUM, 80)),
    ("perplexity_key", "pplx-" + fill(ALNUM, 48)),
    ("nvidia_key", "nvapi-" + fill(WEB, 64)),
    ("replicate_token", "r8_" + fill(ALNUM, 37)),
    ("huggingface_token", "hf_" + fill(ALNUM, 34)),
    ("huggingface_token", "api_org_" + fill(ALNUM, 34)),
    ("langsmith_key", "lsv2_pt_" + fill(HEX, 32) + "_" + fill(HEX, 10)),
    ("tavily_key", "tvly-" + fill(ALNUM, 32)),
    *[("github_token", f"gh{letter}_" + fill(ALNUM, 36)) for letter in "pousr"],
    ("github_token", "github_pat_" + fill(ALNUM, 22) + "_" + fill(ALNUM, 59)),
    *[
        ("gitlab_token", f"gl{infix}-" + fill(ALNUM, 20))
        for infix in ["pat", "dt", "rt", "ft", "soat", "ptt", "cbt"]
    ],
    ("gitlab_token", "glpat-" + fill(WEB, 30) + ".01." + fill(LOWER, 9)),
    ("gitlab_token", "glimt-" + fill(ALNUM, 25)),
    ("gitlab_token", "glptt-" + fill(HEX, 40)),
    ("gitlab_token", "glagent-" + fill(WEB, 52)),
    ("gitlab_token", "gloas-" + fill(HEX, 64)),
    ("gitlab_token", "GR1348" + "941" + fill(ALNUM, 20)),
    *[("aws_access_key", prefix + fill(UPPER, 16)) for prefix in ["AKIA", "ASIA", "ABIA", "ACCA", "A3TX"]],
    ("aws_bedrock_key", "ABSK" + fill(ALNUM, 128)),
    ("aws_bedrock_key", "bedrock-api-key-" + fill(ALNUM, 64)),
    ("google_api_key", "AIza" + fill(WEB, 35)),
    ("google_oauth", "ya29." + fill(WEB, 68)),
    ("google_oauth", "GOCSPX-" + fill(WEB, 28)),
    ("google_oauth", "1//0" + fill(WEB, 64)),
    ("azure_client_secret", "a1b8Q~" + fill(ALNUM, 34)),
    ("slack_token", "xoxb-" + fill("123456789", 12) + "-" + fill("987654321", 12) + "-" + fill(ALNUM, 24)),
    ("slack_token", "xoxp-" + fill("123456789", 12) + "-" + fill("987654321", 12) + "-" + fill(HEX, 32)),
    ("slack_token", "xapp-1-" + fill(UPPER, 11) + "-" + fill("123456789", 13) + "-" + fill(HEX, 64)),
    ("stripe_key", "sk_live_" + fill(ALNUM, 24)),
    ("stripe_key", "rk_live_" + fill(ALNUM, 24)),
    ("stripe_key", "sk_test_" + fill(ALNUM, 24)),
    ("stripe_key", "whsec_" + fill(ALNUM, 32)),
    ("twilio_key", "SK" + fill(HEX, 32)),
    ("twilio_key", "AC" + fill(HEX, 32)),
    ("sendgrid_key", "SG." + fill(WEB, 22) + "." + fill(WEB, 43)),
    ("mailchimp_key", fill(HEX, 32) + "-us12"),
    ("npm_token", "npm_" + fill(ALNUM, 36)),
    ("pypi_token", "pypi-AgEI" + "cHlwaS5vcmc" + fill(WEB, 150)),
    ("pypi_token", "pypi-AgEN" + "dGVzdC5weXBpLm9yZw" + fill(WEB, 150)),
    ("docker_token", "dckr_pat_" + fill(WEB, 27)),
    ("digitalocean_token", "dop_v1_" + fill(HEX, 64)),
    ("digitalocean_token", "doo_v1_" + fill(HEX, 64)),
    ("heroku_key", "HRKU-" + "AA" + fill(WEB, 58)),
    ("databricks_token", "dapi" + fill(HEX, 32)),
    ("databricks_token", "dapi" + fill(HEX, 32) + "-2"),
    ("telegram_token", "123456789" + ":AA" + fill(WEB, 33)),
    ("discord_token", DISCORD),
    *[("shopify_token", f"shp{infix}_" + fill(HEX, 32)) for infix in ["at", "ca", "pa", "ss"]],
    ("linear_key", "lin_api_" + fill(ALNUM, 40)),
    ("notion_token", "ntn_" + fill("123456789", 11) + fill(ALNUM, 35)),
    ("vercel_token", "vcp_" + fill(ALNUM, 56)),
    ("supabase_key", "sbp_" + fill(HEX, 40)),
    ("supabase_key", "sb_secret_" + fill(WEB, 31)),
    ("holdfast_token", "hft_" + fill(HEX, 12) + "_" + fill(HEX, 64)),
    ("planetscale_token", "pscale_tkn_" + fill(WEB, 43)),
    ("vault_token", "hvs." + fill(WEB, 95)),
    ("vault_token", "hvb." + fill(WEB, 140)),
    ("terraform_token", fill(ALNUM, 14) + ".atlasv1." + fill(WEB, 67)),
    ("grafana_token", "glsa_" + fill(ALNUM, 32) + "_" + fill(HEX, 8)),
    ("grafana_token", "glc_" + fill(ALNUM, 80)),
    ("newrelic_key", "NRAK-" + fill(UPPER, 27)),
    ("newrelic_key", "NRII-" + fill(WEB, 32)),
    ("newrelic_key", "NRJS-" + fill(HEX, 19)),
    ("sentry_token", "sntryu_" + fill(HEX, 64)),
    ("figma_token", "figd_" + fill(WEB, 40)),
    ("doppler_token", "dp.pt." + fill(ALNUM, 43)),
    ("postman_key", "PMAK-" + fill(HEX, 24) + "-" + fill(HEX, 34)),
    ("rubygems_key", "rubygems_" + fill(HEX, 48)),
    ("pulumi_token", "pul-" + fill(HEX, 40)),
    ("fly_token", "fo1_" + fill(WEB, 43)),
    ("cloudflare_key", "v1.0-" + fill(HEX, 24) + "-" + fill(HEX, 146)),
    ("atlassian_token", "ATATT3" + fill(WEB, 186)),
    ("onepassword_token", "ops_eyJ" + fill(ALNUM, 260)),
    ("age_key", "AGE-SECRET-KEY-1" + fill("QPZRY9X8GF2TVDW0", 58)),
    ("square_token", "sq0csp-" + fill(WEB, 43)),
    ("square_token", "sq0atp-" + fill(WEB, 22)),
    ("square_token", "EAAA" + fill(WEB, 60)),
    ("artifactory_key", "AKC" + "p8" + fill(ALNUM, 68)),
    ("artifactory_key", "AP6" + fill(ALNUM, 34)),
    ("jwt", JWT),
    ("jwt", f"{HEADER}.{CLAIMS}."),
    ("jwt", ".".join([_segment({"alg": "RSA-OAEP", "enc": "A256GCM"}), *[fill(WEB, 40)] * 4])),
    ("private_key", _pem("PRIVATE KEY")),
    ("private_key", _pem("RSA PRIVATE KEY", headers="Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B")),
    ("private_key", _pem("EC PRIVATE KEY", newline="\\n")),
    ("private_key", _pem("OPENSSH PRIVATE KEY", newline="\r\n")),
    ("private_key", _pem("PGP PRIVATE KEY BLOCK")),
    ("private_key", _pem("DSA PRIVATE KEY", newline="")),
    ("private_key", _pem("ENCRYPTED PRIVATE KEY", newline="\n    ")),
    ("private_key", PUTTY),
]

#: where a token may stand; nothing around it may change
PLACES = [
    "{}",
    "{}\n",
    "it failed with {} twice",
    "it failed with {}.",
    "key {}, then more",
    '"{}"',
    "('{}')",
    "`{}`",
    "<{}>",
    "https://api.example.com/{}?x=1",
    "https://api.example.com/path?arg={}&x=1",
    "TOKEN={} ./run.sh",
    '{{"note": "{}", "n": 1}}',
    "first line\\n{}\\nlast line",
    "\x1b[31m{}\x1b[0m",
    "auth%3D{} end",
    "größe → {} ← ende",
]


def _words(text: str) -> list[str]:
    return text.split()


def _named(kind: str, pattern: str, secret: str) -> Sample:
    return Sample(kind, pattern.replace("@@", secret), secret)


#: secrets that are known by what stands before them
NAMED: list[Sample] = [
    _named("private_key", "reading\n@@\nthe rest of the log", _pem("RSA PRIVATE KEY", end=False)),
    _named("private_key", 'key: "@@…', _pem("PRIVATE KEY", end=False, newline="\\n")),
    _named(
        "private_key",
        '{"type": "service_account", "private_key_id": "0a1b2c", "private_key": "@@\\n", "client_id": "1"}',
        _pem("PRIVATE KEY", newline="\\n"),
    ),
    # URLs: only the password
    _named("url_password", "postgres://app:@@@db.internal:5432/app?sslmode=require", "s3cr3t"),
    _named("url_password", "redis://:@@@cache:6379/0", "hunter2"),
    _named("url_password", "https://bob:@@@example.com/repo.git", "p@ss:w0rd"),
    _named("url_password", "amqp://guest:@@@mq//vhost and more", "correcthorse"),
    _named("url_password", "https://user:@@@acme.cloudant.com/db", fill(HEX, 64)),
    _named("github_token", "https://x-access-token:@@@github.com/a/b.git", "ghs_" + fill(ALNUM, 36)),
    # addresses that are secrets
    _named("slack_webhook", "https://hooks.slack.com/services/@@", f"T{fill(UPPER, 8)}/B{fill(UPPER, 8)}/" + fill(ALNUM, 24)),
    _named("discord_webhook", "https://discord.com/api/webhooks/123456789012345678/@@", fill(WEB, 68)),
    _named("softlayer_key", "https://api.softlayer.com/soap/v3.1/@@", fill(LOWER, 64)),
    _named("azure_storage_key", "AccountName=acme;AccountKey=@@;EndpointSuffix=core.windows.net", fill(BASE64, 86) + "=="),
    _named("azure_storage_key", "Endpoint=sb://x/;SharedAccessKey=@@", fill(BASE64, 43) + "="),
    _named("azure_sas", "https://acme.blob.core.windows.net/c/b?sv=2024-11-04&sig=@@&se=2026", "a1B2%2Bc3D4%2F" + fill(ALNUM, 32) + "%3D"),
    # headers
    _named("bearer_token", "Authorization: Bearer @@", fill(ALNUM, 40)),
    _named("authorization", "-H 'authorization: bearer @@'", fill(HEX, 32)),
    _named("authorization", "Authorization: Basic @@", base64.b64encode(b"user:password").decode()),
    _named("authorization", '{"Authorization": "Basic @@"}', base64.b64encode(b"aladdin:opensesame").decode()),
    _named("authorization", "Proxy-Authorization: @@\r\nHost: x", fill(ALNUM, 24)),
    _named("authorization", "Authorization: Token @@", fill(HEX, 40)),
    _named("api_key", "X-Api-Key: @@", fill(ALNUM, 32)),
    _named("token", "x-amz-security-token: @@", fill(ALNUM, 80)),
    # environment files and shells
    _named("password", "DB_PASSWORD=@@\nDB_HOST=db", "postgres"),
    _named("password", "export PGPASSWORD='@@'", "hunter2"),
    _named("password", "MYSQL_ROOT_PASSWORD=@@\n", "a&b;c,d)e"),
    _named("password", "DB_PASS=@@\n", "hunter2"),
    _named("secret_key", "SECRET_KEY=@@\n", "django-insecure-a1b2"),
    _named("secret_key", "aws_secret_access_key = @@", fill(BASE64, 40)),
    _named("secret_key", "AWS_SECRET_ACCESS_KEY=@@ aws s3 ls", "/" + fill(BASE64, 39)),
    _named("secret_key", 'aws_key = "@@"', fill(BASE64, 40)),
    _named("token", "AWS_SESSION_TOKEN=@@", fill(BASE64, 400)),
    _named("api_key", "HEROKU_API_KEY=@@", "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"),
    _named("token", "VERCEL_TOKEN=@@ vercel deploy", fill(ALNUM, 24)),
    _named("api_key", "export COHERE_API_KEY=@@", fill(ALNUM, 40)),
    _named("secret_key", "ibm_cloud_iam_key = @@", fill(WEB, 44)),
    _named("secret_key", "cos_secret_access_key=@@", fill(HEX, 48)),
    _named("api_key", "softlayer_api_key: @@", fill(LOWER, 64)),
    _named("password", "cloudant_password = @@", fill(HEX, 64)),
    _named("token", "//registry.npmjs.org/:_authToken=@@", "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"),
    _named("npm_token", "//registry.npmjs.org/:_authToken=@@", "npm_" + fill(ALNUM, 36)),
    # JSON, YAML, code
    _named("password", '{"user": "bob", "password": "@@"}', 'hunter2 \\" x'),
    _named("password", '{\\"user\\": \\"bob\\", \\"password\\": \\"@@\\"}', "hunter2"),
    _named("password", '{"password": @@, "n": 1}', "12345678"),
    _named("password", "user: bob\npassword: @@\nport: 5432", "hunter2"),
    _named("password", "POSTGRES_PASSWORD: @@\n", "postgres"),
    _named("password", 'passphrase: "@@"', "correct horse battery staple"),
    _named("password", 'password: str = "@@"', "hunter2"),
    _named("password", "const dbPassword = '@@';", "hunter2"),
    _named("password", "connect(user, password='@@')", "letmein"),
    _named("password", "$config['password'] = '@@';", "hunter2"),
    _named("password", "'password' => '@@',", "hunter2"),
    _named("password", 'password := "@@"', "hunter2"),
    _named("password", "if password == '@@':", "open-sesame-1"),
    _named("password", "<password>@@</password>", "hunter2"),
    _named("password", "Server=db;Uid=sa;Pwd=@@;", "letmein"),
    _named("password", "host=db user=app password=@@ dbname=app", "letmein"),
    _named("password", "ALTER USER app WITH PASSWORD '@@';", "letmein"),
    _named("password", "machine api.example.com login bob password @@", "hunter2"),
    _named("password", 'password="@@', "cut-off-here"),
    _named("password", "password=@@ rest", fill(ALNUM, 2000)),
    _named("api_key", 'api_key: "@@"', fill(ALNUM, 32)),
    _named("api_key", "apiKey=@@", fill(HEX, 32)),
    _named("api_key", "your API key: @@.", fill(HEX, 32)),
    _named("secret", "client_secret=@@&grant_type=client_credentials", fill(ALNUM, 32)),
    _named("token", "https://example.com/cb?access_token=@@&state=1", fill(ALNUM, 40)),
    _named("token", '"refreshToken":"@@"', fill(ALNUM, 40)),
    # command lines
    _named("password", "mysql --user root --password @@ --host db", "letmein"),
    _named("password", "tool --db-password=@@", "letmein"),
    _named("token", "deploy --token @@ --dry-run", fill(ALNUM, 24)),
    _named("token", "deploy --token=@@", fill(ALNUM, 24)),
    _named("api_key", "run --api-key '@@'", fill(ALNUM, 24)),
    _named("password", "curl -s -u bob:@@ https://example.com", "hunter2"),
    _named("password", "curl --user 'bob:@@' https://example.com", "hunter2"),
    _named("password", "sshpass -p @@ ssh bob@example.com", "hunter2"),
]  # fmt: skip

POSITIVES = [Sample(kind, token, token) for kind, token in TOKENS] + NAMED

NEAR_MISSES = [
    # hashes, ids, blobs
    "commit " + fill(HEX, 40),
    "sha256:" + fill(HEX, 64),
    "integrity sha512-" + fill(BASE64, 86) + "==",
    "session 8c4e3f8e-2b62-4c7b-9c1e-1f2a3b4c5d6e of claude",
    '{"session_id": "0199a213-81c0-7800-8aa1-bbab2a035a53", "uuid": "8c4e3f8e-2b62-4c7b-9c1e-1f2a3b4c5d6e"}',
    "agent-20260108-180530-abc12345 resumed agent-20260107-090000-0a1b2c3d",
    "data:image/png;base64,iVBORw0KGgo"
    + fill(BASE64, 400)
    + "AAAA/EAAAAAAAAAAAAAAAAAAAAAAAAAA"
    + fill(BASE64, 90)
    + "==",
    "toolu_" + fill(ALNUM, 24) + " msg_" + fill(ALNUM, 24) + " req_" + fill(ALNUM, 24),
    "chatcmpl-" + fill(ALNUM, 29) + " call_" + fill(ALNUM, 24),
    "claude-sonnet-4-5-20250929, gpt-5.1-codex-max, us.anthropic.claude-opus-4-1-20250805-v1:0",
    _segment({"alg": "HS256", "not": "a token, only JSON in base64"}),
    "arn:aws:iam::123456789012:role/Admin and vpc-0a1b2c3d4e5f",
    "2026-01-08T18:05:30.123456Z 12345678:90",
    # sk- and other prefixes in words
    "task-list, risk-averse-long-term-investors, disk-usage-by-directory-0123456789abcdef",
    "sk-learn, sk-toggleable__content and sk-container-id-1 div.sk-estimator-doc-link-hover-state",
    "hf_transfer, hf_hub_download_with_progress_bar, npm_config_registry, npm_lifecycle_event_name_of_the_script",
    "the shf_ prefix; shpat_ alone; ghp_ is the prefix of a GitHub token; AKIA begins a key id",
    "ghp_short and xoxb-short and glpat-short and AIzaShort and ya29.short and SG.a.b",
    "ACKNOWLEDGEMENTS SKELETON_IMPLEMENTATION APPLICATION_DEFAULT APACHE2LICENSE",
    "dapirates_of_the_caribbean AKIAnotupperenough eyJust.eyJest.ing",
    "pip install pypi-simple; import module.submod.with_a_really_long_function_name_here",
    "if '-----BEGIN PRIVATE KEY-----' in text: raise ValueError",
    "-----BEGIN CERTIFICATE-----\n" + fill(BASE64, 64) + "\n-----END CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----\n" + fill(BASE64, 64) + "\n-----END PUBLIC KEY-----",
    # addresses
    "https://example.com:8443/a/b?c=d#e and http://localhost:4873/@scope/pkg and git@github.com:a/b.git",
    "ssh://git@host:22/repo.git https://bob@example.com/ mailto:bob@example.com http://[::1]:8080/x@y",
    "postgres://app:${DB_PASSWORD}@db/app redis://:****@cache https://user:<password>@host",
    "docker run -u 1000:1000 image; git push -u origin main:main; curl https://example.com --user-agent a:b",
    "/home/user/.config/secret/token/key.pem and C:\\Users\\bob\\password.txt",
    # prose
    "the password is required",
    "Password: required. Token: expired; secret: optional",
    "enter your password: then press return",
    "a token is not a secret: it is a key to the API, and the author knows the authorization rules",
    "error: password: must be at least 8 characters",
    '{"password": "must be at least 8 characters", "token": "Invalid token"}',
    "Bearer authentication and Basic auth; the bearer of this letter",
    "Authorization: Bearer <token>",
    "Authorization: Bearer token required",
    "use --password to be asked, or --token option, or --api-key VALUE",
    "the login page password field; the login form's password input",
    "PWD=/home/user/project OLDPWD=/tmp pwd: /srv/app",
    # code and templates
    "password: str",
    "token: int = 0",
    "def login(user: str, password: str | None = None, token: Optional[str] = None) -> Token:",
    'password=os.environ["DB_PASSWORD"]',
    "password = os.getenv('DB_PASSWORD')",
    "api_key=${API_KEY}",
    "api_key: ${{ secrets.API_KEY }}",
    "token: {{ vault_token }}",
    "PASSWORD=$DB_PASSWORD ./run",
    "password=<your-password>",
    "password=YOUR_PASSWORD_HERE api_key='your-api-key'",
    "password=**** token: ******** secret=xxxxxxxx api_key=...",
    "password = getpass.getpass()",
    "const token = await getToken(user);",
    "const { password, token } = req.body;",
    "login(username=user, password=password, token=access_token)",
    "password: z.string().min(8), token: process.env.TOKEN, secret: settings.SECRET_KEY",
    "user.password = hash_password(password)",
    "tokens.filter(token => token.kind !== 'comma')",
    "while token != EOF: token = next(tokens)",
    "let token: Vec<u8> = Vec::new(); Token::Identifier; auth::token::Kind",
    "SELECT password FROM users WHERE token = ?",
    "type Token = { kind: TokenKind; value: string }",
    "password: bcrypt, token: sha256, secret: null, api_key: undefined, password=None, password=true",
    "password_policy: strict-12\nsecret_name: prod/db1\ntoken_count: 12345678\nmax_tokens: 200000\ntokenizer: gpt2-bpe1",
    '{"input_tokens": 12345678, "output_tokens": 456, "cache_key": "abc123def456", "primary_key": "id1234567"}',
    "next_page_token=abc123def456 pad_token: <pad> eos_token='</s1234567>' fencing token: 1234567890",
    "key=value1234 sort_key: name12345 public_key: abc123def456 idempotency_key=turn-7-attempt-2",
    "secretary: bob12345, keyboard: us-intl1, passenger: p1234567, passive=true1234, monkey: abc12345",
    "secret=/run/secrets/db token=file:///etc/token1 password: op://vault/item1/password",
    "signature: " + fill(BASE64, 200),
    '"AWS::IAM::AccessKey": "72c2d9dd90025459", "arn:aws:secretsmanager:us-west-2:123456789012:secret:name-a1b2c3"',
    "CURLOPT_PASSWORD: Final = 10026\n:type passphrase: :py:data:`bytes`\nprivate_key: ed25519.Ed25519PrivateKey,",
    "headers = {'Authorization': v4auth_header}; api_key = r'([a-z]{24})'; {\"output_token\": \"NextMarker\"}",
    "given by the --username and --password options\nawait read.password('Again: '), field = apikey('ExpiresOn')",
    "[redacted:password] password=[redacted:password] Authorization: Bearer [redacted:bearer_token]",
]

#: keys whose text is a secret, whatever it is
SECRET_KEYS = _words("""
    password passwd passphrase pwd db_password DB_PASSWORD userPassword password2 PGPASSWORD
    secret client_secret clientSecret SECRET webhook-secret
    token access_token accessToken refresh_token id_token authToken x-auth-token AWS_SESSION_TOKEN csrf_token
    api_key apikey apiKey X-Api-Key OPENAI_API_KEY private_key privateKey secret_key aws_secret_access_key
    AccountKey accessKey encryption_key authorization Authorization Proxy-Authorization cookie Set-Cookie DB_PASS
""")

#: keys that only sound like it
HARMLESS_KEYS = _words("""
    token_count max_tokens input_tokens tokens secret_name password_policy tokenizer author session_token_limit
    key keys public_key cache_key primary_key sort_key idempotency_key private_key_id access_key_id secrets
    next_page_token nextPageToken pad_token fencing_token token_type token_url password_changed_at pass passed
    authorized authorization_url keyboard monkey passenger secretary signature cookies has_tokens
""")
