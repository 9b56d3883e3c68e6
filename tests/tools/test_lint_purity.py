# SPDX-License-Identifier: Apache-2.0
import subprocess

import pytest


def compile_archive(root, folder, text, options=()):
    """An archive of one object in build layout, as Meson would leave it."""
    place = root / "src" / folder
    place.mkdir(parents=True)
    (place / "a.c").write_text(text)
    subprocess.run(
        ["gcc", "-O1", "-fPIC", *options, "-c", "a.c", "-o", "a.o"], cwd=place, check=True
    )
    subprocess.run(["ar", "rcs", f"lib{folder}.a", "a.o"], cwd=place, check=True)


@pytest.fixture
def judge(tool, tmp_path, capsys):
    """(exit status, output) of the check over folders with the given C text, allowing memcpy."""

    def check(**folders):
        for folder, text in folders.items():
            compile_archive(tmp_path, folder, text)
        allow = tmp_path / "allow"
        allow.write_text("# the list\nmemcpy  in place\n")
        status = tool("lint_purity").main(["lint_purity", str(tmp_path), str(allow)])
        return status, capsys.readouterr().out

    return check


def test_allowed_symbols_and_each_others_pass(judge):
    status, output = judge(
        base="void *memcpy(void *, const void *, unsigned long);"
        "void tqi_b(char *d, const char *s, long n) { memcpy(d, s, n); }",
        core="void tqi_b(char *, const char *, long); static const int t[] = {1, 2};"
        "int tqi_c(char *d, int i) { tqi_b(d, d + 1, 9); return t[i]; }",
    )
    assert status == 0, output


def test_a_constant_table_of_pointers_is_not_state(judge):
    status, output = judge(
        wire='static const char *const names[] = {"a", "b"};'
        "const char *tqi_name(int i) { return names[i]; }"
    )
    assert status == 0, output


def test_a_common_symbol_is_state(tool, tmp_path):
    compile_archive(tmp_path, "base", "int tqi_n;", ["-fcommon"])
    assert tool("lint_purity").main(["lint_purity", str(tmp_path)]) == 1


def test_a_system_call_is_named(judge):
    status, output = judge(base="int getpid(void); int tqi_b(void) { return getpid(); }")
    assert status == 1
    assert "asks for getpid" in output


@pytest.mark.parametrize(
    "state", ["int tqi_n;", "static int n = 4;", "static _Thread_local int n;"]
)
def test_writable_data_is_named(judge, state):
    name = "tqi_n" if "tqi_n" in state else "n"
    status, output = judge(core=f"{state} int *tqi_c(void) {{ return &{name}; }}")
    assert status == 1
    assert "writable data" in output


def test_a_build_without_archives_fails(judge):
    assert judge()[0] == 1


def test_an_allowed_symbol_needs_a_reason(tool, tmp_path):
    (tmp_path / "allow").write_text("memcpy\n")
    with pytest.raises(ValueError, match="reason"):
        tool("lint_purity").read_allow(tmp_path / "allow")


def test_the_list_in_the_tree_has_reasons(tool):
    check = tool("lint_purity")
    assert "memcpy" in check.read_allow(check.Path(check.__file__).parent / "purity.allow")
