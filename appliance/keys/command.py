"""`breadbox key`: makes entries for the key file."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import errno
import fcntl
import getpass
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from appliance.errors import ApplianceError, SettingsError
from appliance.keys.api_key import DEFAULT_SCOPES, MIN_CHARS, SCOPES, digest, make_secret
from appliance.keys.key_file import KeyFileError, check_name, parse_keys, print_entry, read_bytes, read_keys

_SUMMARY = "Make API keys for --api-key-file. A key is shown once, when it is made; the file has only its hash."
_LOCK_PATIENCE_S = 30.0
_LOCK_RETRY_S = 0.005
_NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_UNITS_S = {"h": 3600, "d": 86400, "w": 7 * 86400}
_EXAMPLES = """examples:
  breadbox key new --name alice --requests-per-minute 60 --file keys.toml      adds the entry, prints the key
  breadbox key new --name monitor --scope models --scope metrics >> keys.toml  the key goes to stderr
  printf %s "$KEY" | breadbox key hash --name bob --file keys.toml              an entry for a key that there is
  breadbox key list --file keys.toml

To change a key without a failed request: write the new hash beside the old one (hash = ["sha256:new", "sha256:old"]),
hand the new key out, take the old hash away. A running box reads the file again within two seconds."""


def run_key(words: Sequence[str]) -> int:
    """Raises ApplianceError."""
    args = _make_parser().parse_args(words)
    try:
        status: int = args.run(args)
    except KeyFileError as error:
        raise ApplianceError(str(error)) from None
    except ValueError as error:
        raise SettingsError([str(error)]) from None
    return status


def _make_parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="breadbox key", description=_SUMMARY, epilog=_EXAMPLES, formatter_class=formatter
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    new = commands.add_parser("new", help="make a key", description="Make a key, show it once, and write its entry.")
    new.set_defaults(run=_new)
    old = commands.add_parser("hash", help="make an entry for a key that is read from stdin", description=_hash.__doc__)
    old.set_defaults(run=_hash)
    for command in (new, old):
        _add_entry_arguments(command)
    listing = commands.add_parser("list", help="show the keys of a file", description="Show names, scopes and limits.")
    listing.add_argument("--file", type=Path, required=True, metavar="FILE", help="the key file")
    listing.set_defaults(run=_list)
    return parser


def _add_entry_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", required=True, help="what the key is called in logs")
    parser.add_argument("--file", type=Path, metavar="FILE", help="add the entry to this file instead of printing it")
    scopes = "; ".join(f"{name}: {meaning}" for name, meaning in SCOPES.items())
    shown = " and ".join(sorted(DEFAULT_SCOPES))
    parser.add_argument("--scope", action="append", choices=SCOPES, help=f"{scopes} (repeatable) [{shown}]")
    parser.add_argument("--requests-per-minute", type=int, metavar="N", help="most requests to the model [no limit]")
    parser.add_argument("--tokens-per-minute", type=int, metavar="N", help="most tokens, prompt and output [no limit]")
    parser.add_argument("--max-concurrent", type=int, metavar="N", help="most requests at once [no limit]")
    parser.add_argument("--expires", metavar="WHEN", help="a date (2027-01-31), or from now on: 12h, 90d, 4w [never]")


def _new(args: argparse.Namespace) -> int:
    secret = make_secret()
    entry = _make_entry(args, secret)
    if args.file:
        _add_to_file(args.file, entry)
        print(secret)
        print(f"added {args.name} to {args.file}; the key above is not shown again", file=sys.stderr)
    else:
        sys.stdout.write("\n" + entry)
        print(f"the key of {args.name}, not shown again:\n{secret}", file=sys.stderr)
    return 0


def _hash(args: argparse.Namespace) -> int:
    """Read a key from stdin and write its entry; the key itself is not written anywhere."""
    secret = getpass.getpass("key: ") if sys.stdin.isatty() else sys.stdin.readline().strip()
    if len(secret) < MIN_CHARS:
        raise ValueError(
            f"the key must have at least {MIN_CHARS} characters: a shorter one could be found by trying its hash"
        )
    entry = _make_entry(args, secret)
    if args.file:
        _add_to_file(args.file, entry)
        print(f"added {args.name} to {args.file}", file=sys.stderr)
    else:
        sys.stdout.write("\n" + entry)
    return 0


def _list(args: argparse.Namespace) -> int:
    for key in read_keys(args.file):
        limits = key.limits
        facts = {
            "requests/min": limits.requests_per_minute,
            "tokens/min": limits.tokens_per_minute,
            "concurrent": limits.max_concurrent,
            "expires": _print_end(key.expires_s),
        }
        shown = "  ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
        ended = "  EXPIRED" if key.is_expired else ""
        print(f"{key.name:<24} {', '.join(sorted(key.scopes))}  {shown}{ended}".rstrip())
    return 0


def _make_entry(args: argparse.Namespace, secret: str) -> str:
    fields: dict[str, Any] = {
        "expires": _read_end(args.expires),
        "scopes": sorted(set(args.scope)) if args.scope else None,
        "requests_per_minute": args.requests_per_minute,
        "tokens_per_minute": args.tokens_per_minute,
        "max_concurrent": args.max_concurrent,
    }
    entry = print_entry(check_name(args.name), [digest(secret.encode())], fields)
    parse_keys(entry.encode(), Path("entry"))  # limits that cannot be
    return entry


def _read_end(text: str | None) -> datetime.datetime | None:
    if text is None:
        return None
    if match := re.fullmatch(r"(\d{1,5})([hdw])", text):
        span = datetime.timedelta(seconds=int(match[1]) * _UNITS_S[match[2]])
        return datetime.datetime.now(datetime.UTC).replace(microsecond=0) + span
    try:
        end = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"--expires: {text!r} is not a date such as 2027-01-31, nor 12h, 90d or 4w") from None
    return end if end.tzinfo else end.replace(tzinfo=datetime.UTC)


def _print_end(expires_s: float | None) -> str | None:
    return None if expires_s is None else datetime.datetime.fromtimestamp(expires_s, datetime.UTC).isoformat()


def _add_to_file(path: Path, entry: str) -> None:
    """Raises KeyFileError where the whole is not valid, or cannot be written."""
    try:
        with _locked(path.resolve().parent):
            old = read_bytes(path) if path.exists() else b""
            data = old + (b"\n" if old and not old.endswith(b"\n\n") else b"") + entry.encode()
            parse_keys(data, path)
            _replace(path.resolve(), data)
    except BlockingIOError:
        raise KeyFileError(f"{path}: is being changed by another process") from None
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder, as a file that is replaced cannot be locked itself. Raises OSError, BlockingIOError after a while.

    Where the file system locks no folders (NFS), who writes at the same time may lose an entry, as with any editor.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        give_up_s = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up_s:
                    raise
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                break
            time.sleep(_LOCK_RETRY_S)
        yield
    finally:
        os.close(descriptor)


def _replace(target: Path, data: bytes) -> None:
    """In one move, so that a box never reads half a file, and as readable for the box as before. Raises OSError."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as new:
            if target.exists():
                status = target.stat()
                os.fchmod(new.fileno(), status.st_mode & 0o777)
                os.fchown(new.fileno(), status.st_uid, status.st_gid)
            new.write(data)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
