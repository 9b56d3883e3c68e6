# SPDX-License-Identifier: Apache-2.0
import pytest

LICENCE = "/* SPDX-License-Identifier: Apache-2.0 */\n"


@pytest.fixture
def reasons(tool, tree):
    def check(files):
        return [reason for _, _, reason in tool("lint_text").check(tree(files))]

    return check


def test_a_plain_file_passes(reasons):
    assert reasons({"a.c": LICENCE + "int a;\n", "a.md": "See /usr/include and $HOME/x.\n"}) == []


@pytest.mark.parametrize(
    "text, reason",
    [
        ("int a;\n", "no `SPDX"),
        (LICENCE + "int a;", "no newline"),
        (LICENCE + "int a; \n", "trailing"),
        (LICENCE + "// /ho" + "me/someone/x\n", "one machine"),
        (LICENCE + 'char *p = "/wo' + 'rk/x";\n', "one machine"),
        (LICENCE + "// see https:" + "//packages.invalid/simple\n", "URL of packages.invalid"),
        (LICENCE + "// TO" + "DO: later\n", "note to self"),
    ],
)
def test_what_must_not_be_there_is_named(reasons, text, reason):
    (found,) = reasons({"a.c": text})
    assert reason in found


def test_scripts_without_a_suffix_are_source(reasons):
    assert len(reasons({"run": "#!/bin/sh\ntrue\n"})) == 1


def test_binary_files_are_left_alone(tool, tree):
    root = tree({})
    (root / "a.c").write_bytes(b"\0\1 ")
    assert list(tool("lint_text").check(root)) == []


def test_top_folders_and_layers_need_a_readme(reasons):
    found = reasons({"docs/a.md": "a\n", "src/base/a.c": LICENCE, "src/README.md": "a\n"})
    assert found == ["no README.md", "no README.md"]
