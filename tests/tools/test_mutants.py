# SPDX-License-Identifier: Apache-2.0
import pytest

SOURCE = """\
static int other(int x)
{
    return x + 1;
}

/* A call of tally(x); is not its definition. */
int tally(const int *at, int cnt,
          int limit)
{
    int sum = 0;

    for (int i = 0; i < cnt && sum <
                    limit; i++)
        sum += at[i];
    other(sum);
    return sum;
}
"""


@pytest.fixture
def mutants(tool):
    return tool("mutants")


@pytest.fixture
def mutant(mutants):
    def make(number, was, becomes, function="tally"):
        return mutants.Mutant(number, "src/a.c", function, was, becomes, "a fault", "INV-1")

    return make


def test_an_expression_becomes_a_choice_and_a_statement_a_branch(mutants, mutant):
    one, two = mutant(1, "sum < limit", "true"), mutant(2, "other(sum);", "")
    text = mutants.plant(SOURCE, [one, two])
    assert "i < cnt && ((sim_mutant == 1u) ? (true) : (sum < limit))" in text
    assert "{ if (sim_mutant == 2u) { ; } else { other(sum); } }" in text


def test_a_fault_may_say_itself_where_the_choice_stands(mutants, mutant):
    text = mutants.plant(SOURCE, [mutant(3, "int sum = 0;", "int sum = MUTANT;")])
    assert "int sum = (sim_mutant == 3u);" in text


def test_lines_stay_where_they_were(mutants, mutant):
    text = mutants.plant(SOURCE, [mutant(1, "sum < limit", "true")])
    assert text.count("\n") == SOURCE.count("\n")
    assert text.splitlines()[-2] == SOURCE.splitlines()[-2]


def test_text_is_looked_for_in_its_function_alone(mutants, mutant):
    text = mutants.plant(SOURCE, [mutant(1, "return sum;", "return 0;")])
    assert "return x + 1;" in text
    with pytest.raises(mutants.TableError, match="is there 0 times"):
        mutants.plant(SOURCE, [mutant(1, "x + 1", "x")])


@pytest.mark.parametrize(
    "was, function, reason",
    [
        ("sum", "tally", "`sum` is there 5 times"),
        ("sum", "absent", "function absent is defined 0 times"),
    ],
)
def test_a_mutant_that_is_not_where_the_table_says_is_named(mutants, mutant, was, function, reason):
    with pytest.raises(mutants.TableError, match=f"mutant 7 .*a.c: {function}: {reason}"):
        mutants.plant(SOURCE, [mutant(7, was, "0", function)])


def test_two_mutants_do_not_share_text(mutants, mutant):
    with pytest.raises(mutants.TableError, match="mutants 1 and 2 are about the same text"):
        mutants.plant(SOURCE, [mutant(1, "cnt && sum < limit", "cnt"), mutant(2, "sum <", "sum >")])


def test_a_table_with_a_key_too_few_is_refused(mutants, tmp_path):
    table = tmp_path / "mutants.toml"
    table.write_text('[[mutant]]\nfile = "src/a.c"\n')
    with pytest.raises(mutants.TableError, match="mutant 1: has"):
        mutants.read_table(table)


def test_the_table_of_the_tree_agrees_with_the_source(mutants):
    assert mutants.main(["mutants", "--check"]) == 0
    assert len(mutants.read_table(mutants.TABLE)) >= 30


@pytest.mark.parametrize(
    "returncode, said, killer, is_inner",
    [
        (1, "INV-20 does not hold at 3.1 s, event 9: twice\nseed 4 failed; ...\n", "INV-20", False),
        (
            1,
            "INV-1 to INV-10 does not hold at 3.1 s, event 9: controller: INV-3: wrong\n",
            "check INV-3",
            True,
        ),
        (
            1,
            "INV-11 to INV-15 does not hold at 0.1 s, event 9: u: lost\n",
            "check INV-11 to INV-15",
            True,
        ),
        (
            -6,
            "tq: src/core/run.c:9: assertion failed: a == b\nseed 2 failed\n",
            "assertion run.c",
            True,
        ),
        (-6, "tq: src/core/run.c:9: assertion failed: x (INV-9)\n", "assertion INV-9", True),
        (-11, "seed 3 failed; ...\n", "signal 11", True),
    ],
)
def test_the_killer_is_read_from_what_the_simulator_says(
    mutants, returncode, said, killer, is_inner
):
    verdict = mutants.judge(returncode, said)
    assert (verdict.killer, verdict.is_inner) == (killer, is_inner)


def test_a_survivor_fails_the_run_and_the_table_says_so(mutants, mutant, monkeypatch, capsys):
    verdicts = {1: mutants.Verdict("INV-20", seeds=3), 2: mutants.Verdict(seeds=9)}
    monkeypatch.setattr(mutants, "build_sim", lambda build: build)
    monkeypatch.setattr(mutants, "run_mutant", lambda sim, number, *_: verdicts[number])
    args = mutants.arguments(["--seeds", "9", "--jobs", "1"])
    assert mutants.run_all([mutant(1, "a", "b"), mutant(2, "a", "b")], args) == 1
    output = capsys.readouterr().out
    assert "SURVIVED" in output
    assert "mutants 2, killed 1, at most 3 seeds of 9 needed" in output
    assert mutants.run_all([mutant(1, "a", "b")], args) == 0
