"""The build backend of this package (PEP 517): writes its wheel and its sdist with the standard library only.

The same files give the same bytes: names are sorted, and times and modes fixed.
"""

from __future__ import annotations

import ast
import base64
import gzip
import hashlib
import io
import os
import re
import tarfile
import zipfile
from typing import Any, Dict, List, Mapping, Optional, Tuple

ROOT = os.path.dirname(os.path.abspath(__file__))
SDIST_FILES = ("README.md", "build_backend.py", "pyproject.toml")  # beside the package
_EPOCH = 315532800  # 1980-01-01, the first time that a zip file can have

Settings = Optional[Mapping[str, Any]]


def project() -> Dict[str, Any]:
    """Return the keys of [project] in pyproject.toml, which are strings and lists of strings.

    Python has no parser of TOML before 3.11; such values are written alike in Python.
    """
    with open(os.path.join(ROOT, "pyproject.toml"), encoding="utf-8") as file:
        table = file.read().split("\n[project]\n")[1].split("\n[")[0]
    return {key: ast.literal_eval(value) for key, value in re.findall(r'^([a-z-]+) = (".*?"$|\[.*?\]$)', table, re.M | re.S)}


def _metadata(p: Dict[str, Any]) -> str:
    """Return the core metadata (PEP 566), with the README as description."""
    lines = [("Metadata-Version", "2.1"), ("Name", p["name"]), ("Version", p["version"]), ("Summary", p["description"]),
             ("License", "Apache-2.0"), ("Requires-Python", p["requires-python"])]
    lines += [("Classifier", c) for c in p.get("classifiers", ())] + [("Description-Content-Type", "text/markdown")]
    with open(os.path.join(ROOT, p["readme"]), encoding="utf-8") as file:
        return "".join(f"{key}: {value}\n" for key, value in lines) + "\n" + file.read()


def _package_files(name: str) -> List[Tuple[str, bytes]]:
    """Return the package's files by path, sorted."""
    files = []
    for directory, _, names in os.walk(os.path.join(ROOT, name)):
        for file_name in names:
            if file_name.endswith(".py") or file_name == "py.typed":
                path = os.path.join(directory, file_name)
                with open(path, "rb") as file:
                    files.append((os.path.relpath(path, ROOT).replace(os.sep, "/"), file.read()))
    return sorted(files)


def _with_metadata(p: Dict[str, Any], files: List[Tuple[str, bytes]]) -> List[Tuple[str, bytes]]:
    """Return the files of a wheel with its metadata, RECORD at the end."""
    info = f"{p['name']}-{p['version']}.dist-info"
    tags = "Wheel-Version: 1.0\nGenerator: yardmaster\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = files + [(f"{info}/METADATA", _metadata(p).encode()), (f"{info}/WHEEL", tags.encode())]
    record = ""
    for path, content in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    return files + [(f"{info}/RECORD", (record + f"{info}/RECORD,,\n").encode())]


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None) -> str:
    """Write the wheel into a directory and return its name."""
    p = project()
    return _write_wheel(wheel_directory, p, _package_files(p["name"]))


def build_editable(wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None) -> str:
    """Write a wheel that refers to this directory (PEP 660), and return its name."""
    p = project()
    return _write_wheel(wheel_directory, p, [(f"{p['name']}.pth", ROOT.encode() + b"\n")])


def _write_wheel(directory: str, p: Dict[str, Any], files: List[Tuple[str, bytes]]) -> str:
    name = f"{p['name']}-{p['version']}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, content in _with_metadata(p, files):
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.compress_type, entry.external_attr, entry.create_system = zipfile.ZIP_DEFLATED, 0o100644 << 16, 3
            wheel.writestr(entry, content)
    return name


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Write the source distribution into a directory and return its name."""
    p = project()
    base = f"{p['name']}-{p['version']}"
    files = _package_files(p["name"]) + [("PKG-INFO", _metadata(p).encode())]
    for path in SDIST_FILES:
        with open(os.path.join(ROOT, path), "rb") as file:
            files.append((path, file.read()))
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, content in sorted(files):
            entry = tarfile.TarInfo(f"{base}/{path}")
            entry.size, entry.mode, entry.mtime = len(content), 0o644, _EPOCH
            tar.addfile(entry, io.BytesIO(content))
    with open(os.path.join(sdist_directory, base + ".tar.gz"), "wb") as target, \
            gzip.GzipFile(filename="", mode="wb", fileobj=target, mtime=_EPOCH) as packed:
        packed.write(archive.getvalue())
    return base + ".tar.gz"
