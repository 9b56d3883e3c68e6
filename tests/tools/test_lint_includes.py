# SPDX-License-Identifier: Apache-2.0
import pytest

DEPS = """
[edges]
base =
core = base
net =
net/zmq = base net
role = base net/ctrl.h
role/storage = role
role/client = role
[system]
pure_folders = base core
pure = stddef.h string.h
other = unistd.h sys/*.h
[third-party]
zmq.h = net/zmq
uthash.h = base/map.h
"""
HEADERS = {
    "src/DEPS": DEPS,
    "include/tq/status.h": "#include <stddef.h>\n",
    "src/base/env.h": "",
    "src/base/map.h": "#include <uthash.h>\n",
    "src/core/table.h": "",
    "src/net/ctrl.h": "",
    "src/net/other.h": "",
    "src/role/storage/unit.h": "",
}


@pytest.fixture
def findings(tool, tree):
    """The findings over the tree above and one more file."""

    def check(name, *includes):
        text = "".join(f"#include {include}\n" for include in includes)
        root = tree({**HEADERS, name: text})
        return [(str(path), reason) for path, _, reason in tool("lint_includes").check(root)]

    return check


def test_declared_edges_are_accepted(findings):
    assert findings("src/core/a.c", '"base/env.h"', '"core/table.h"', "<tq/status.h>") == []
    assert findings("src/net/zmq/a.c", '"net/ctrl.h"', "<zmq.h>", "<sys/socket.h>") == []
    assert findings("src/role/client/a.c", '"role/storage/../x.h"') != []


@pytest.mark.parametrize(
    "name, include, reason",
    [
        ("src/base/a.c", '"core/table.h"', "no edge base -> core"),
        ("src/net/a.c", '"base/env.h"', "no edge net -> base"),
        ("src/role/a.c", '"net/other.h"', "no edge role -> net"),
        ("src/role/client/a.c", '"role/storage/unit.h"', "no edge role/client -> role/storage"),
        ("src/new/a.c", '"base/env.h"', "no line for new"),
        ("src/core/a.c", '"env.h"', "paths start there"),
        ("src/core/a.c", "<unistd.h>", "not for a pure folder"),
        ("src/core/a.c", "<zmq.h>", "is for net/zmq alone"),
        ("src/base/a.c", "<uthash.h>", "is for base/map.h alone"),
        ("src/net/zmq/a.c", "<czmq.h>", "neither"),
        ("src/core/a.c", "<tq/absent.h>", "is not there"),
        ("include/tq/tq.h", "<unistd.h>", "a public header"),
        ("include/tq/tq.h", '"base/env.h"', "a public header"),
        ("examples/a.c", '"../src/base/env.h"', "only <tq/...>"),
        ("python/a.c", "<zmq.h>", "alone"),
        ("examples/a.c", "<Python.h>", "neither"),
    ],
)
def test_an_undeclared_include_is_named(findings, name, include, reason):
    ((where, why),) = findings(name, include)
    assert where == name
    assert reason in why


def test_one_header_of_a_folder_can_be_opened(findings):
    assert findings("src/role/a.c", '"net/ctrl.h"') == []


def test_python_may_include_its_own_header_and_the_public_ones(findings, tree):
    tree({"python/own.h": ""})
    assert findings("python/_core.c", "<Python.h>", "<tq/status.h>", '"own.h"') == []


def test_includes_inside_conditionals_count(tool, tree):
    root = tree({**HEADERS, "src/base/a.c": '#if 0\n  #  include "core/table.h"\n#endif\n'})
    assert len(list(tool("lint_includes").check(root))) == 1
