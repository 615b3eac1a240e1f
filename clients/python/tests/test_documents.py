"""Tests of the examples in the README; test/drill runs the first two with nodes."""

import asyncio
import contextlib
import os
import re
import sys
import types
import unittest
import unittest.mock
from typing import Any, ContextManager, List

from .test_package import ROOT


class Readme(unittest.TestCase):
    def test_examples(self) -> None:
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
            blocks: List[str] = re.findall("```python\n(.*?)```", file.read(), re.S)
        self.assertGreater(len(blocks), 4)
        for block in blocks:
            module = types.ModuleType("example")
            with self.subTest(block), contextlib.ExitStack() as patches:
                managers: List[ContextManager[Any]] = [
                    unittest.mock.patch.dict(sys.modules, {"example": module}), unittest.mock.patch("yardmaster.Worker.run"),
                    unittest.mock.patch("yardmaster.Client", unittest.mock.MagicMock()), unittest.mock.patch("builtins.print"),
                    unittest.mock.patch.object(asyncio, "run", lambda coroutine: coroutine.close())]
                for patch in managers:
                    patches.enter_context(patch)
                exec(compile(block, "README.md", "exec"), module.__dict__)


if __name__ == "__main__":
    unittest.main()
