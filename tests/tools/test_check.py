# SPDX-License-Identifier: Apache-2.0
import json

import pytest


@pytest.fixture
def check(tool):
    return tool("check")


@pytest.mark.parametrize(
    "output, counts",
    [
        ("[==========] Running 3 test(s).\n[  PASSED  ] 3 test(s).\n", [("tests", 3)]),
        ("[  PASSED  ] 3 test(s).\n[  PASSED  ] 4 test(s).\n", [("tests", 3), ("tests", 4)]),
        ("12 passed, 1 skipped in 0.1s\n", [("tests", 12)]),
        ("seeds 200\n", [("seeds", 200)]),
        ("corpus 31 inputs\n", [("inputs", 31)]),
        ("refusals 12\n", [("refusals", 12)]),
        ("whatever a plain program says\n", [("tests", 1)]),
    ],
)
def test_cases_are_counted_from_what_programs_print(check, output, counts):
    assert check.count_output(output) == counts


def test_a_test_log_yields_counts_failures_and_skips(check, tmp_path, capsys):
    log = tmp_path / "testlog.json"
    tests = [
        {"name": "map", "result": "OK", "stdout": "[  PASSED  ] 5 test(s).\n"},
        {"name": "env", "result": "OK", "stdout": "", "stderr": "[  PASSED  ] 2 test(s).\n"},
        {"name": "bad", "result": "FAIL", "stdout": "what went wrong\n"},
        {"name": "hung", "result": "TIMEOUT"},
        {"name": "absent", "result": "SKIP"},
    ]
    log.write_text("".join(json.dumps(test) + "\n" for test in tests))
    result = check.Result()
    check.read_testlog(log, result)
    assert result.cases == {"tests": 7}
    assert result.failures == ["bad: fail", "hung: timeout"]
    assert result.skipped == 1
    assert "what went wrong" in capsys.readouterr().out


def test_a_tier_that_ran_nothing_has_failed(check):
    result = check.run_tier("unit", lambda _: check.Result(), check.Options())
    assert result.failures == ["ran nothing"]


def test_a_tier_without_its_folder_is_skipped_and_says_so(check):
    result = check.run_tier("x", lambda _: check.need("src/no_such_folder"), check.Options())
    assert check.verdict(result) == "skipped: there is no src/no_such_folder yet"


def test_totals_name_every_tier_and_time_is_a_warning_only(check, capsys):
    good, bad = check.Result({"tests": 7}), check.Result({"seeds": 3}, ["seed 2: broke"])
    absent = check.Result(absent="there is no tests/fuzz yet")
    rows = [("unit", 1, 75.0, good), ("sim", 3, 6.0, bad), ("fuzz", 2, 0.0, absent)]
    assert check.print_table(rows) == 1
    output = capsys.readouterr().out
    assert "over its budget" in output
    assert "seed 2: broke" in output
    assert "total: 10 cases (3 seeds, 7 tests) in 2 tiers, 1 failed, 1 absent" in output
    assert check.print_table(rows[:1]) == 0
