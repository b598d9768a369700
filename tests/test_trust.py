"""What other processes and users write is checked: JSON, files and folders; the user's secrets stay private."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cpudist import trust, typed_json
from cpudist.errors import UserError


@dataclass(frozen=True)
class Answer:
    seconds: float
    counts: dict[int, int]
    kind: Literal["a", "b"]
    pickled: bytes | None = None


ANSWER = Answer(1.5, {1: 2}, "b")


def test_what_was_written_is_read_after_a_greeting() -> None:
    output = f"Welcome!\n\n{json.dumps({**asdict(ANSWER), 'of another version': 1})}\n"
    assert typed_json.read(Answer, typed_json.last_line(output)) == ANSWER


@pytest.mark.parametrize("output", ["", "{", "[" * 100_000])
def test_what_is_no_json_is_refused(output: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of any text
        typed_json.last_line(output)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("kind", "c"), ("seconds", True), ("seconds", 10**400), ("counts", {"x": 1})),
        ("pickled", "gASVAQ=="),  # a text is no bytes, also where it is base64
    ],
)
def test_other_values_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of any text
        typed_json.read(Answer, {**asdict(ANSWER), name: value})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_all_that_make_the_secret_at_once_have_the_same(home: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        (found,) = {future.result() for future in [pool.submit(trust.secret) for _ in range(16)]}
    assert len(found) == 64
    (file,) = (home / ".config/cpudist").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "mode", "part"),
    [
        ("known to others", 0o644, r"others may read it; .*CPUDIST_TOKEN"),
        ("a link is not followed", None, "CPUDIST_TOKEN"),
        *((text, 0o600, "/.config/cpudist/secret") for text in ("", "\n", "\udcff")),
    ],
)
def test_a_file_without_a_secret_names_the_remedy(home: Path, text: str, mode: int | None, part: str) -> None:
    file, other = home / ".config/cpudist/secret", home / "other"
    file.parent.mkdir(parents=True)
    other.write_text(text, errors="surrogateescape")
    other.chmod(mode or 0o600)
    other.rename(file) if mode else file.symlink_to(other)
    with pytest.raises(UserError, match=part):
        trust.secret()


def test_a_user_without_a_name_and_without_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 987654321)
    assert trust.home() is None
    with pytest.raises(UserError, match="no home folder"):
        trust.secret()


def test_who_could_change_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    assert trust.why_not_trusted(tmp_path) is None
    tmp_path.chmod(0o775)
    assert trust.why_not_trusted(tmp_path) == f"{tmp_path} can be written by other users (chmod go-w {tmp_path})"
    tmp_path.chmod(0o755)
    if os.getuid() == 0:
        os.chown(tmp_path, 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert trust.why_not_trusted(tmp_path) == f"{tmp_path} belongs to another user, not to you or root"


NAMES = ["HF_TOKEN", "hub.token", "apikey", "api-key", "passwd", "WANDB_API_KEY", "db.password", "accessKey", "auth"]
FORMS = {
    "option": ("--{name}", "{value}"),
    "one word": ("--{name}={value}",),
    "one dash": ("-{name}", "{value}"),
    "assignment": ("{name}={value}", "python"),
    "override": ("+{name}={value}",),
    "within a command": ("sh", "-c", "{name}={value} python run.py --{name} {value}"),
    "JSON": ("--config", '{{"lr": 1, "{name}": "{value}"}}'),
    "header": ("--header", "X-{name}: {value}"),
    "query": ("https://host/path?a=1&{name}={value}",),
    "after a flag of that name": ("--use_auth_token", "--{name}", "{value}"),
    "password in an address": ("--store=redis://user:{value}@host/0",),
    "token in an address": ("https://{value}@host/repository",),
}


@given(st.sampled_from(NAMES), st.sampled_from(list(FORMS)), st.text("sS3kr37/+=_-.:?&,; @", min_size=3), st.booleans())
@example("HF_TOKEN", "option", "--secret", True)
def test_no_secret_survives(name: str, form: str, value: str, small: bool) -> None:
    value = f"<{value}>"
    words = [word.format(name=name.lower() if small else name, value=value) for word in FORMS[form]]
    shown = trust.without_secrets(["run.py", *words, "--lr", "3"])
    assert not any(value in word for word in shown)
    assert (shown[0], shown[-2:], len(shown)) == ("run.py", ["--lr", "3"], len(words) + 3)


def test_other_words_stay() -> None:
    words = ["--tokenizer_name", "x", "--max_new_tokens", "5", "--pad_token_id=0", "--config", "a:b", "me@host", ""]
    assert trust.without_secrets(words) == words
    assert trust.without_secrets(["login", "hf_" + "aB3" * 12]) == ["login", "***"]
