"""Tests of the package itself: its build, its installation without a network, and its metadata."""

import ast
import csv
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest
import venv
import zipfile
from base64 import urlsafe_b64encode
from typing import List

import build_backend
import yardmaster

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OLDEST = (3, 9)  # of requires-python


class Build(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def test_wheel(self) -> None:
        name = build_backend.build_wheel(self.directory)
        self.assertEqual(name, f"yardmaster-{yardmaster.__version__}-py3-none-any.whl")
        with zipfile.ZipFile(self.path(name)) as wheel:
            names = wheel.namelist()
            record = list(csv.reader(wheel.read(names[-1]).decode().splitlines()))
            metadata = wheel.read(next(n for n in names if n.endswith("/METADATA"))).decode()
            for path, digest, size in record[:-1]:
                content = wheel.read(path)
                self.assertEqual((digest, int(size)), ("sha256=" + urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode(), len(content)))
        self.assertEqual([row[0] for row in record], names)
        self.assertEqual(names[:-3], sorted(names[:-3]))
        self.assertIn("yardmaster/py.typed", names)
        self.assertFalse([n for n in names if "test_" in n or "build_backend" in n])
        for line in ("Name: yardmaster", "Requires-Python: >=3.9", "# Python client"):
            self.assertIn(f"\n{line}\n", metadata)

    def test_same_files_give_the_same_bytes(self) -> None:
        def build() -> List[bytes]:
            return [self.read(self.path(name)) for name in (build_backend.build_wheel(self.directory), build_backend.build_sdist(self.directory))]
        first = build()
        os.utime(os.path.join(ROOT, "yardmaster", "codec.py"))
        self.assertEqual(build(), first)

    def test_wheel_of_the_sdist(self) -> None:
        wheel = self.read(self.path(build_backend.build_wheel(self.directory)))
        name = build_backend.build_sdist(self.directory)
        with tarfile.open(self.path(name)) as tar:
            for member in tar.getmembers():
                self.assertTrue(member.isreg() and member.name.startswith(name[:-len(".tar.gz")] + "/"), member.name)
            tar.extractall(self.directory)
        unpacked = self.path(name[:-len(".tar.gz")])
        subprocess.run([sys.executable, "-c", "import build_backend; build_backend.build_wheel('.')"], cwd=unpacked, check=True, timeout=60)
        self.assertEqual(self.read(os.path.join(unpacked, f"yardmaster-{yardmaster.__version__}-py3-none-any.whl")), wheel)

    def test_install(self) -> None:
        """Install with pip, from the directory and from the wheel, without a network."""
        pip = [sys.executable, "-m", "pip", "--python", "python"]
        if subprocess.run([*pip[:3], "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60).returncode != 0:
            self.skipTest("this Python has no pip (Debian: apt-get install python3-pip)")
        offline = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_CONFIG_FILE": os.devnull}
        for source in (ROOT, self.path(build_backend.build_wheel(self.directory))):
            with self.subTest(source):
                environment = tempfile.mkdtemp(dir=self.directory)
                venv.create(environment, symlinks=os.name != "nt")
                pip[4] = python = os.path.join(environment, "Scripts" if os.name == "nt" else "bin", "python")
                installed = subprocess.run([*pip, "install", "-q", source], env=offline, stderr=subprocess.PIPE, timeout=60)
                if b"no such option: --python" in installed.stderr:
                    self.skipTest("the pip of this Python is older than 22.3")
                self.assertEqual(installed.returncode, 0, installed.stderr.decode())
                code = "import yardmaster, yardmaster.testing; print(yardmaster.__version__, yardmaster.__file__)"
                output = subprocess.run([python, "-I", "-c", code], check=True, stdout=subprocess.PIPE, timeout=60).stdout.decode()
                version, file = output.split(" ", 1)
                self.assertEqual((version, file.startswith(environment)), (yardmaster.__version__, True))

    def test_editable(self) -> None:
        with zipfile.ZipFile(self.path(build_backend.build_editable(self.directory))) as wheel:
            self.assertEqual(wheel.read("yardmaster.pth").decode(), ROOT + "\n")

    def test_import_of_the_wheel_as_it_is(self) -> None:
        wheel = self.path(build_backend.build_wheel(self.directory))
        code = "import yardmaster; print(yardmaster.__file__); yardmaster.Client; yardmaster.Worker"
        output = subprocess.run([sys.executable, "-S", "-c", code], env={**os.environ, "PYTHONPATH": wheel}, cwd=self.directory, check=True,
                                stdout=subprocess.PIPE, timeout=60)
        self.assertIn(wheel, output.stdout.decode())


class Sources(unittest.TestCase):
    def test_syntax_of_the_oldest_version(self) -> None:
        for name in sorted(os.listdir(os.path.join(ROOT, "yardmaster"))):
            if name.endswith(".py"):
                with open(os.path.join(ROOT, "yardmaster", name), encoding="utf-8") as file:
                    text = file.read()
                ast.parse(text, name, feature_version=OLDEST)
                self.assertLess(text.count("\n"), 500, f"{name} is long: split it")

    def test_exports(self) -> None:
        self.assertEqual(sorted(yardmaster.__all__), yardmaster.__all__)
        for name in yardmaster.__all__:
            self.assertTrue(hasattr(yardmaster, name), name)
        self.assertEqual(build_backend.project()["version"], yardmaster.__version__)
        self.assertTrue(re.fullmatch(r"\d+\.\d+\.\d+", yardmaster.__version__))

    def test_client_has_the_calls_of_asyncclient(self) -> None:
        def calls(cls: type) -> "set[str]":
            return {name for name in dir(cls) if not name.startswith("_")} - {"after_fork"}
        self.assertEqual(calls(yardmaster.Client), calls(yardmaster.AsyncClient))
        for name in calls(yardmaster.Client):
            self.assertTrue(getattr(yardmaster.Client, name).__doc__, name)


if __name__ == "__main__":
    unittest.main()
