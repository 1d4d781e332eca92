"""Reading and writing lockfiles: checked, atomic, under a lock, and never at the expense of what is there."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import filelock
import msgspec

from ortlock.errors import LockfileError
from ortlock.lockfile.atomic import replacing
from ortlock.lockfile.identity import fingerprint
from ortlock.lockfile.places import Place, first_duplicate, line_of
from ortlock.lockfile.schema import FORMAT, VERSION, Golden, LockedChoice, Lockfile, ModelRecord, Section

if TYPE_CHECKING:
    from collections.abc import Iterator

_T = TypeVar("_T")

_WAIT_SECONDS = 60.0

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_RESTORE = "Restore it from version control, or record to another path. It was left as it is."

_ANOTHER = "Give another path. It was left as it is."


def read(path: Path) -> Lockfile | None:
    """Return what a lockfile holds; None where there is no such file.

    Raises:
        LockfileError: it cannot be read, is no lockfile, or is damaged; with the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise LockfileError(path, "it is no lockfile: it is no text.", _ANOTHER) from error
    except OSError as error:
        raise LockfileError(path, f"it cannot be read: {error.strerror}.", "Check its path and permissions.") from error
    except ValueError as error:  # a path that cannot be one
        raise LockfileError(path, f"it cannot be read: {error}.", "Check its path.") from error
    try:
        raw = json.loads(text, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        raise LockfileError(path, f"line {error.lineno}: no valid JSON: {error.msg}.", _RESTORE) from error
    except _DuplicateKeyError as error:
        key, line = first_duplicate(text)
        raise LockfileError(path, f"line {line}: {key!r} comes twice in one object.", _RESTORE) from error
    except ValueError as error:  # a number of thousands of digits
        raise LockfileError(path, f"it is no lockfile: {error}.", _RESTORE) from error
    except RecursionError as error:
        raise LockfileError(path, "it is nested too deeply to be a lockfile.", _RESTORE) from error
    _check_characters(path, text, raw)
    return _checked(path, text, raw)


def merge(path: Path, model: ModelRecord, name: str, section: Section, *, replace: bool) -> int:
    """Add a section's choices to a lockfile, made if it is not there; return how many changed or came new.

    Its golden digests take the place of those that the file holds for the same inputs.

    Whatever other processes have written meanwhile stays.

    Args:
        path: the lockfile.
        model: the model that the choices are for.
        name: the fingerprint of the section's identity.
        section: what to add.
        replace: a choice that is there already is replaced, not kept.

    Raises:
        LockfileError: the file is damaged or for another model (it is then left as it is), or cannot be written.
    """
    with locked(path):
        known = read(path)
        if known is None:
            known = Lockfile(format=FORMAT, version=VERSION, model=model, environments={})
        check_model(path, known, model)
        before = known.environments.get(name)
        choices: dict[str, LockedChoice] = dict(before.choices) if before is not None else {}
        changed = 0
        for key, choice in section.choices.items():
            if key not in choices or (replace and choices[key] != choice):
                choices[key] = choice
                changed += 1
        held = dict(before.golden) if before is not None else {}
        golden = {**held, **section.golden}
        if changed or before is None or golden != held:
            environments = {**known.environments, name: Section(section.identity, choices, golden)}
            _write(path, Lockfile(FORMAT, VERSION, known.model, environments))
        return changed


def check_model(path: Path, lockfile: Lockfile, model: ModelRecord) -> None:
    """Check that a lockfile is for a model.

    Raises:
        LockfileError: it is for another one.
    """
    if lockfile.model.sha256 != model.sha256:
        raise LockfileError(
            path,
            f"it is for another model: {lockfile.model.name} with sha256 {lockfile.model.sha256[:16]}..., "
            f"not {model.name} with {model.sha256[:16]}...",
            "Give the lockfile of this model, or record one: ortlock lock MODEL -o FILE.",
        )


class _DuplicateKeyError(ValueError):
    """A key comes twice in one object."""


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # A merge of two branches can leave both sides' lines, and JSON readers would silently take the last.
    values = dict(pairs)
    if len(values) != len(pairs):
        raise _DuplicateKeyError
    return values


def _check_characters(path: Path, text: str, raw: Any) -> None:
    """Refuse halves of characters: they are valid JSON and can be neither hashed nor handed on.

    Raises:
        LockfileError: a text holds one.
    """
    if _SURROGATE.search(text) is None:
        return  # UTF-8 itself cannot hold any
    try:
        json.dumps(raw, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        escape = json.dumps(error.object[error.start])[1:-1]
        line = text.count("\n", 0, max(text.lower().find(escape), 0)) + 1
        raise LockfileError(path, f"line {line}: {escape} is half a character.", _RESTORE) from error


def _checked(path: Path, text: str, raw: Any) -> Lockfile:
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise LockfileError(path, f'it is no lockfile: it does not say "format": "{FORMAT}".', "Give another path.")
    if raw.get("version") != VERSION:
        raise LockfileError(
            path,
            f"line {line_of(text, ('version',))}: version {raw.get('version')!r}; this ortlock reads {VERSION}.",
            "Use the ortlock that wrote it, or record again.",
        )
    # From the inside out, so that an error can be told with its place.
    environments = raw.get("environments")
    for name, section in environments.items() if isinstance(environments, dict) else ():
        choices = section.get("choices") if isinstance(section, dict) else None
        for key, choice in choices.items() if isinstance(choices, dict) else ():
            _convert(path, text, ("environments", name, "choices", key), choice, LockedChoice)
        golden = section.get("golden") if isinstance(section, dict) else None
        for key, entry in golden.items() if isinstance(golden, dict) else ():
            _convert(path, text, ("environments", name, "golden", key), entry, Golden)
        checked = _convert(path, text, ("environments", name), section, Section)
        if fingerprint(checked.identity) != name:
            reason = f"line {line_of(text, ('environments', name))}: the environment under {name} is another one."
            raise LockfileError(path, reason, _RESTORE)
    return _convert(path, text, (), raw, Lockfile)


def _convert(path: Path, text: str, place: Place, raw: Any, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        line = line_of(text, (*place, *_place_in(raw, kind, str(error))))
        raise LockfileError(path, f"line {line}: {error}.", _RESTORE) from error


_PATH = re.compile(r"at (`key` in )?`\$(.*)`$")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_UNKNOWN_FIELD = re.compile(r"unknown field `(.*?)`")


def _place_in(raw: Any, kind: type[_T], text: str) -> Place:
    """Return the place in ``raw`` that msgspec's error text names, where it names one."""
    path = _PATH.search(text)
    steps = _STEP.findall(path[2]) if path else []
    place: Place = tuple(name or int(index) for name, index in steps)
    if unknown := _UNKNOWN_FIELD.search(text):
        return (*place, unknown[1])
    # Keys that are no fields are left out of the text: `[...]`.
    if path and place and (path[1] or path[2].endswith("[...]")):
        field = str(place[0])
        for key, value in raw[field].items():
            try:
                msgspec.convert({**raw, field: {key: value}}, kind)
            except msgspec.ValidationError:
                return (field, key)
    return place


def check_place(path: Path) -> None:
    """Check that a file can be made at a path, without making one.

    Raises:
        LockfileError: its folder is not there or cannot be written to.
    """
    # A new file takes its place where a link leads to; the lock stands beside the link.
    for folder in dict.fromkeys((path.parent, path.resolve().parent)):
        try:
            if not os.access(folder, os.W_OK | os.X_OK):
                folder.stat()
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> LockfileError:
    remedy = "Check that its folder is there and can be written to."
    return LockfileError(path, f"it cannot be written: {error.strerror}.", remedy)


def lock_of(path: Path) -> Path:
    """Return the file beside ``path`` that keeps other processes out while it is written."""
    return Path(f"{path}.lock")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from writing a file inside the block.

    Raises:
        LockfileError: its folder cannot be written to, or another process does not let go of it.
    """
    lock = filelock.FileLock(lock_of(path), timeout=_WAIT_SECONDS)
    try:
        # FileLock would make a missing folder, and wait for a file that cannot be made.
        Path(lock.lock_file).open("ab").close()
        lock.acquire()
    except filelock.Timeout as error:
        reason = f"another process has held {path}.lock for {_WAIT_SECONDS:.0f} s."
        raise LockfileError(path, reason, "See what that process does, or remove the .lock file.") from error
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        yield
    finally:
        lock.release()


def to_json(lockfile: Lockfile) -> str:
    """Return a lockfile as text: sorted, so that two versions compare line by line."""
    return json.dumps(msgspec.to_builtins(lockfile), indent=1, sort_keys=True) + "\n"


def _write(path: Path, lockfile: Lockfile) -> None:
    text = to_json(lockfile)
    try:
        with replacing(path) as file:
            file.write(text.encode())
    except OSError as error:
        remedy = "Check that its folder is there, can be written to and has room. The previous file is as it was."
        raise LockfileError(path, f"it cannot be written: {error.strerror}.", remedy) from error


def digest_of(choices: Mapping[str, LockedChoice]) -> str:
    """Return a text that stands for choices: the same choices have the same one, whatever their order."""
    text = json.dumps({key: msgspec.to_builtins(choice) for key, choice in choices.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
