# SPDX-License-Identifier: Apache-2.0
"""Makes the scripts of tools/ importable, whatever their suffix, and trees to try them on."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def tool():
    """tool("lint_text") is the module of tools/lint_text.py; tool("check"), of tools/check."""

    def load(name):
        path = TOOLS / name if (TOOLS / name).exists() else TOOLS / f"{name}.py"
        loader = importlib.machinery.SourceFileLoader(f"tq_tools_{name}", str(path))
        module = importlib.util.module_from_spec(
            importlib.util.spec_from_loader(loader.name, loader)
        )
        sys.modules[module.__name__] = module  # dataclasses look their module up
        loader.exec_module(module)
        return module

    return load


@pytest.fixture
def tree(tmp_path):
    """tree({"src/a.c": "text"}) writes the files below a fresh root, and returns it."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write
