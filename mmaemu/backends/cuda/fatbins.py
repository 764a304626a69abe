"""The first rung: the prebuilt fatbin of a module, or the one reason why it cannot be used."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from mmaemu import _settings
from mmaemu.backends import sources
from mmaemu.backends.cuda import images
from mmaemu.backends.cuda.faults import fail_if_forced, forced
from mmaemu.backends.cuda.specs import SOURCES, ModuleSpec

ROOT: Final = Path(__file__).parents[3]
"""The folder that holds the package, where the paths of sources start."""
BIN: Final = Path(__file__).with_name("bin")
MANIFEST: Final = "manifest.json"
SCHEMA: Final = "mmaemu.fatbin-manifest/1"


class RungError(Exception):
    """A rung of the ladder cannot be used; the message is the reason."""


class Image(NamedTuple):
    """Something to load.

    Attributes:
        data: a fatbin, a cubin, or PTX with its final zero byte.
        source: where it comes from, for messages.
        holds: the architectures in it, for messages.
        frozen: whether it is a fatbin, which evidence may be about.
    """

    data: bytes
    source: str
    holds: str
    frozen: bool = False

    @property
    def sha256(self) -> str:
        """Hash of the bytes."""
        return hashlib.sha256(self.data).hexdigest()


def fatbin(module: ModuleSpec, capability: tuple[int, int]) -> Image:
    """Read the fatbin of a module from MMAEMU_FATBIN_DIR or the package, and check it.

    Args:
        module: the module.
        capability: the device's compute capability.

    Raises:
        RungError: there is no manifest, it does not list the file, bytes or sources are others than
            it says, or no image in it runs on the device.
    """
    folder = _settings.path("FATBIN_DIR") or BIN
    entry = _listed(folder, module)
    file = folder / module.fatbin
    try:
        data = file.read_bytes()
    except OSError as error:
        raise RungError(f"{file} cannot be read: {error.strerror or error}") from error
    _check_hash(file, data, str(entry.get("sha256")))
    _check_sources(module, entry)
    return Image(data, str(file), _check_images(file, data, capability), frozen=True)


def validated_on(module: ModuleSpec) -> tuple[str, ...]:
    """The devices that there is evidence for with this very fatbin, as its manifest says."""
    try:
        entry = _listed(_settings.path("FATBIN_DIR") or BIN, module)
    except RungError:
        return ()
    found = entry.get("validated_on")
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _listed(folder: Path, module: ModuleSpec) -> dict[str, Any]:
    manifest = folder / MANIFEST
    try:
        fail_if_forced("cuda-fatbin-manifest", FileNotFoundError(2, "forced by a test"))
        document = json.loads(manifest.read_bytes())
    except OSError as error:
        raise RungError(f"no manifest: {manifest}: {error.strerror or error}") from error
    except ValueError as error:
        raise RungError(f"no manifest: {manifest} is no JSON: {error}") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise RungError(f"no manifest: {manifest} has schema {schema!r}, expected {SCHEMA!r}")
    modules = document.get("modules")
    entry = modules.get(module.fatbin) if isinstance(modules, dict) else None
    if not isinstance(entry, dict) or forced("cuda-fatbin-unlisted"):
        raise RungError(f"{module.fatbin} is not listed in {manifest}")
    return entry


def _check_hash(file: Path, data: bytes, wanted: str) -> None:
    found = hashlib.sha256(data + b"damage" * forced("cuda-fatbin-hash")).hexdigest()
    if found != wanted:
        raise RungError(f"{file} has sha256 {found[:12]}, its manifest says {wanted[:12]}")


def _check_sources(module: ModuleSpec, entry: dict[str, Any]) -> None:
    """Compare what the fatbin was built from with what is here."""
    try:
        here = sources.hashes(sources.closure(ROOT, f"{SOURCES}/{module.source}"))
    except OSError as error:
        raise RungError(f"stale: a source of {module.fatbin} is missing: {error}") from error
    built = entry.get("sources")
    built = built if isinstance(built, dict) else {}
    changed = sorted(path for path in {*here, *built} if here.get(path) != built.get(path))
    changed += [module.source] if forced("cuda-fatbin-stale") else []
    if changed:
        raise RungError(f"stale: {module.fatbin} was built from another {', '.join(changed)}")
    if list(entry.get("defines", ())) != list(module.defines):
        raise RungError(
            f"stale: {module.fatbin} was built with {entry.get('defines')}, "
            f"expected {list(module.defines)}"
        )


def _check_images(file: Path, data: bytes, capability: tuple[int, int]) -> str:
    try:
        found = images.entries(data)
    except ValueError as error:
        raise RungError(f"{file}: {error}") from error
    holds = images.listed(found)
    if forced("cuda-fatbin-image") or not any(entry.runs_on(capability) for entry in found):
        raise RungError(
            f"no usable image: {file.name} holds {holds}, the device has compute capability "
            f"{capability[0]}.{capability[1]}"
        )
    return holds
