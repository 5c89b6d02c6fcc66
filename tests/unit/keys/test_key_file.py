"""The key file: what it may hold, what is said about what it may not, and how it is followed while it changes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from appliance.cli import main
from appliance.keys import command, key_store
from appliance.keys.api_key import DEFAULT_SCOPES, KeyLimits, KeyRing, digest, make_secret
from appliance.keys.key_file import KeyFileError, parse_keys, print_entry, read_keys
from appliance.keys.key_store import KeyStore
from appliance.preflight import find_problems
from appliance.settings import Settings

PATIENCE_S = 30.0
ENTRY = '[[key]]\nname = "a"\nhash = "sha256:' + "0" * 64 + '"\n'
FULL = """
[[key]]
name = "alice@example.org"
hash = ["sha256:{}", "sha256:{}"]
expires = 2037-01-31
scopes = ["metrics"]
requests_per_minute = 60
tokens_per_minute = 1000
max_concurrent = 8
""".format("1" * 64, "2" * 64)


def test_every_field_is_read(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(ENTRY + FULL)
    plain, full = read_keys(file)
    assert (plain.name, plain.digests, plain.scopes) == ("a", (bytes(32),), DEFAULT_SCOPES)
    assert not plain.limits
    assert full.digests == (b"\x11" * 32, b"\x22" * 32)
    assert full.scopes == {"metrics"}
    assert full.limits == KeyLimits(60, 1000, 8)
    assert full.expires_s == 2116972800
    assert not full.is_expired


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[key]", "not valid TOML"),
        ("\udcff", "not valid TOML"),
        ("[key]\nname = 1", "with two brackets"),
        ("port = 1", "'port' is not known"),
        ('[[key]]\nname = ""', "key number 1: name must be"),
        ('[[key]]\nname = "api-key-1"', "are those of --api-key"),
        ('[[key]]\nname = "a"', "key 'a': hash must be"),
        ('[[key]]\nname = "a"\nhash = "plain secret"', "key 'a': hash must be"),
        ('[[key]]\nname = "a"\nhash = []', "key 'a': hash must be"),
        (ENTRY + "limit = 3", "there is no field 'limit'"),
        (ENTRY + "requests_per_minute = 0", "requests_per_minute must be a whole number"),
        (ENTRY + "max_concurrent = true", "max_concurrent must be a whole number"),
        (ENTRY + 'scopes = ["root"]', "scopes must be a list of inference, models, metrics"),
        (ENTRY + "scopes = []", "scopes must be"),
        (ENTRY + 'expires = "soon"', "expires must be a date"),
        (ENTRY + ENTRY, "key 'a' is there twice"),
        (ENTRY + ENTRY.replace('"a"', '"b"'), "keys 'a' and 'b' have the same hash"),
    ],
)
def test_what_is_wrong_is_named(content: str, message: str) -> None:
    with pytest.raises(KeyFileError, match=r"^keys: ") as caught:
        parse_keys(content.encode(errors="surrogateescape"), Path("keys"))
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_key_is_found_by_any_of_its_secrets_and_by_no_other() -> None:
    old, new, other = make_secret(), make_secret(), make_secret()
    entries = print_entry("a", [digest(old.encode())], {}) + print_entry("b", [digest(other.encode())], {})
    text = entries.replace('hash = "', f'hash = ["sha256:{digest(new.encode()).hex()}", "', 1).replace('"\n', '"]\n', 2)
    ring = KeyRing(parse_keys(text.replace('name = "a"]', 'name = "a"').encode(), Path("keys")))
    found = [ring.find(secret) for secret in (old, new, other, "", old[:-1], make_secret())]
    assert [key and key.name for key in found] == ["a", "a", "b", None, None, None]


@contextlib.asynccontextmanager
async def following(store: KeyStore) -> AsyncIterator[KeyStore]:
    task = asyncio.create_task(store.run())
    yield store
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "the file was not read again"
        await asyncio.sleep(0.05)


async def wait_for_names(store: KeyStore, *names: str) -> None:
    await wait_until(lambda: [key.name for key in store.ring.keys] == list(names))


async def test_a_changed_file_is_read_and_a_broken_one_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, folder = tmp_path / "keys.toml", tmp_path / "run"
    file.write_text(ENTRY)
    async with following(KeyStore(["plain"], file, folder)) as store:
        await wait_for_names(store, "api-key-1", "a")
        file.write_text("[[key")
        await wait_until(lambda: "is broken" in caplog.text)
        await wait_for_names(store, "api-key-1", "a")
        # A worker that begins now knows what was last in force.
        assert [key.name for key in KeyStore([], file, folder).ring.keys] == ["a"]
        # Another file takes its place, as a rotated secret's does.
        other = tmp_path / "other"
        other.write_text(ENTRY.replace('"a"', '"b"'))
        other.replace(file)
        await wait_for_names(store, "api-key-1", "b")
        file.unlink()
        await asyncio.sleep(0.1)
        await wait_for_names(store, "api-key-1", "b")


async def test_whatever_happens_the_file_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(ENTRY)

    def find_nothing(path: Path) -> None:
        raise FileNotFoundError(path)

    def refuse(path: Path) -> bytes:
        raise KeyFileError(f"{path}: cannot be read: Permission denied")

    async with following(KeyStore([], file)) as store:
        file.write_text("x = " + "[" * 100_000)
        await wait_until(lambda: "is broken" in caplog.text)
        with monkeypatch.context() as patch:
            patch.setattr(key_store, "find_writers", find_nothing)  # just taken away
            file.write_text(ENTRY.replace('"a"', '"b"'))
            await wait_for_names(store, "b")
        with monkeypatch.context() as patch:
            patch.setattr(key_store, "read_bytes", lambda path: 1 / 0)
            file.write_text(ENTRY)
            await wait_until(lambda: "could not be followed" in caplog.text)
        await wait_for_names(store, "a")
        with monkeypatch.context() as patch:
            patch.setattr(key_store, "read_bytes", refuse)  # of another owner, for now
            file.write_text(ENTRY.replace('"a"', '"c"'))
            await wait_until(lambda: caplog.text.count("Permission denied") == 1)
        await wait_for_names(store, "c")


def test_without_a_file_to_begin_with_there_is_no_start(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="there is no such file"):
        KeyStore([], tmp_path / "none", tmp_path)


def test_the_check_before_a_start_names_the_problem(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    assert any("--api-key-file" in problem for problem in find_problems(Settings(api_key_file=file)))
    file.write_text(ENTRY)
    file.chmod(0o640)
    assert not any("--api-key-file" in problem for problem in find_problems(Settings(api_key_file=file)))
    file.chmod(0o666)
    assert any("every user can write it" in problem for problem in find_problems(Settings(api_key_file=file)))


def test_a_file_that_all_can_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(ENTRY)
    file.chmod(0o644)
    KeyStore([], file)
    assert "every user can read it" in caplog.text


def test_the_command_leaves_the_file_to_its_owner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.toml"
    words = ["key", "new", "--name", "alice", "--file"]
    assert main([*words, str(tmp_path / "none" / "keys.toml")]) == 1
    assert "cannot be written: No such file or directory" in capsys.readouterr().err
    file.touch()
    file.chmod(0o640)
    owner = 1234 if os.geteuid() == 0 else os.geteuid()
    os.chown(file, owner, -1)
    assert main([*words, str(file)]) == 0
    assert (file.stat().st_uid, file.stat().st_mode & 0o777) == (owner, 0o640)
    assert list(tmp_path.iterdir()) == [file]


def test_the_command_makes_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.toml"
    words = ["key", "new", "--name", "alice", "--max-concurrent", "2", "--expires", "90d", "--file", str(file)]
    assert main(words) == 0
    secret = capsys.readouterr().out.strip()
    assert file.stat().st_mode & 0o777 == 0o600
    assert secret not in file.read_text()
    (key,) = read_keys(file)
    assert KeyRing([key]).find(secret) is key
    assert key.limits.max_concurrent == 2
    assert key.expires_s is not None
    assert 0 < key.expires_s - time.time() - 89 * 86400 < 2 * 86400
    assert main(["key", "new", "--name", "bob", "--scope", "metrics"]) == 0
    printed = capsys.readouterr()
    assert printed.out.encode() not in printed.err.encode()
    file.write_text(file.read_text() + printed.out)
    assert [key.name for key in read_keys(file)] == ["alice", "bob"]
    assert main(["key", "list", "--file", str(file)]) == 0
    assert "concurrent 2" in capsys.readouterr().out


def test_the_command_takes_a_key_that_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, secret = tmp_path / "keys.toml", "a secret of our own"
    for given, status in ((secret, 0), ("short", 2)):
        read, write = os.pipe()
        os.write(write, given.encode())
        os.close(write)
        with os.fdopen(read) as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            assert main(["key", "hash", "--name", f"n{status}", "--file", str(file)]) == status
    assert "at least 16 characters" in capsys.readouterr().err
    assert KeyRing(read_keys(file)).find(secret) is not None


def test_the_command_leaves_a_file_that_it_would_break_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(ENTRY)
    assert main(["key", "new", "--name", "a", "--file", str(file)]) == 1
    assert "is there twice" in capsys.readouterr().err
    assert file.read_text() == ENTRY
    assert list(tmp_path.iterdir()) == [file]


def test_commands_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """Through a link, too; the file does not exist at first."""
    file, link = tmp_path / "keys.toml", tmp_path / "link"
    link.symlink_to(file)
    num_processes, num_keys = 8, 5
    script = "\n".join(
        [
            "import sys",
            "from appliance.cli import main",
            "print('started', flush=True)",
            "sys.stdin.readline()",
            f"for number in range({num_keys}):",
            "    words = ['key', 'new', '--name', f'{sys.argv[2]}-{number}', '--file', sys.argv[1]]",
            "    assert main(words) == 0",
        ]
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(link if number % 2 else file), f"p{number}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(num_processes)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
    secrets: list[str] = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        output, errors = process.communicate(timeout=4 * PATIENCE_S)
        assert process.returncode == 0, errors
        secrets += output.split()
    ring = KeyRing(read_keys(file))
    found = [key.name for secret in secrets if (key := ring.find(secret))]
    assert sorted(found) == sorted(f"p{number}-{i}" for number in range(num_processes) for i in range(num_keys))
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [file, link]


def test_a_lock_that_is_kept_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_LOCK_PATIENCE_S", 0.05)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert main(["key", "new", "--name", "a", "--file", str(tmp_path / "keys.toml")]) == 1
    finally:
        os.close(descriptor)
    printed = capsys.readouterr()
    assert "is being changed by another process" in printed.err
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_on_folders_will_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS takes an exclusive lock only of what is open for writing, which no folder can be."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", refuse)
    file = tmp_path / "keys.toml"
    for name in ("a", "b"):
        assert main(["key", "new", "--name", name, "--file", str(file)]) == 0
    ring = KeyRing(read_keys(file))
    found = [key.name for secret in capsys.readouterr().out.split() if (key := ring.find(secret))]
    assert found == ["a", "b"]
