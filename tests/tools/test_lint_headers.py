# SPDX-License-Identifier: Apache-2.0
import pytest


@pytest.fixture
def complaints(tool, tree):
    """What each compilation of the files' headers says; empty strings for those that pass."""

    def check(files):
        lint, root = tool("lint_headers"), tree(files)
        return [lint.compile_alone(root, job) for job in lint.jobs(root)]

    return check


GUARDED = "#ifndef A_H\n#define A_H\n{}\n#endif\n"


def test_a_header_that_brings_what_it_needs_passes(complaints):
    text = GUARDED.format("#include <stddef.h>\nextern size_t tq_a;")
    assert set(complaints({"include/tq/a.h": text, "src/base/a.h": text})) == {""}


def test_a_header_that_needs_another_is_named(complaints):
    assert all(complaints({"src/base/a.h": GUARDED.format("extern size_t tq_a;")}))


def test_a_header_without_a_guard_is_named(complaints):
    assert all(complaints({"include/tq/a.h": "typedef struct tq_a { int b; } tq_a_t;\n"}))


def test_a_public_header_that_cxx_refuses_is_named(complaints):
    text = GUARDED.format("static inline int *tq_a(void *p) { return p; }")
    results = complaints({"include/tq/a.h": text})
    assert any(results) and not all(results)
