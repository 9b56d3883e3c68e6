/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/failpoint.h"

#include "unit.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void one_that_is_not_armed_does_nothing(void **state)
{
    (void)state;
    assert_int_equal(tqi_failpoint("unit.a"), TQ_OK);
    assert_int_equal(tqi_failpoint_hits("unit.a"), 0);
    assert_int_equal(tqi_failpoint_arm("unit.b", "return(E_FULL)", NULL), TQ_OK);
    assert_int_equal(tqi_failpoint("unit.a"), TQ_OK);
    tqi_failpoint_disarm_all();
}

static void it_skips_then_acts_then_rests(void **state)
{
    (void)state;
    assert_int_equal(tqi_failpoint_arm("unit.a", "2+3*return(E_UNREACHABLE)", NULL), TQ_OK);
    for (int i = 0; i < 8; i++)
        assert_int_equal(tqi_failpoint("unit.a"), i >= 2 && i < 5 ? TQ_E_UNREACHABLE : TQ_OK);
    assert_int_equal(tqi_failpoint_hits("unit.a"), 8);
    assert_int_equal(tqi_failpoint_arm("unit.a", "return(E_FULL)", NULL), TQ_OK);
    assert_int_equal(tqi_failpoint_hits("unit.a"), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(tqi_failpoint("unit.a"), TQ_E_FULL);
    tqi_failpoint_disarm("unit.a");
    tqi_failpoint_disarm("unit.a");
    assert_int_equal(tqi_failpoint("unit.a"), TQ_OK);
    assert_int_equal(atomic_load(&tqi_failpoints_armed), 0);
}

static void count_and_a_sleep_of_nothing_let_the_caller_go_on(void **state)
{
    (void)state;
    assert_int_equal(tqi_failpoint_arm("unit.a", "count", NULL), TQ_OK);
    assert_int_equal(tqi_failpoint_arm("unit.b", "1*sleep(0)", NULL), TQ_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tqi_failpoint("unit.a"), TQ_OK);
        assert_int_equal(tqi_failpoint("unit.b"), TQ_OK);
    }
    assert_int_equal(tqi_failpoint_hits("unit.a"), 3);
    assert_int_equal(tqi_failpoint_hits("unit.b"), 3);
    tqi_failpoint_disarm_all();
}

static void abort_ends_the_process(void **state)
{
    int status;

    (void)state;
    assert_int_equal(tqi_failpoint_arm("unit.a", "abort", NULL), TQ_OK);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        close(STDERR_FILENO);
        (void)tqi_failpoint("unit.a");
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    tqi_failpoint_disarm_all();
}

static void what_cannot_be_parsed_is_refused_by_name(void **state)
{
    static const char *const actions[] = {
        "",
        "return",
        "return()",
        "return(E_NONE)",
        "return(E_FULL)x",
        "sleep(x)",
        "3+",
        "2*3+count",
        "sleep(5",
        "return(E_FULL",
        "-1+count",
        "sleep()",
        "abo",
        "99999999999999999999*count",
    };
    tqi_err_t err;

    (void)state;
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) {
        assert_int_equal(tqi_failpoint_arm("unit.a", actions[i], &err), TQ_E_CONFIG);
        assert_non_null(strstr(err.text, "unit.a"));
    }
    assert_int_equal(tqi_failpoint_arm("", "count", &err), TQ_E_CONFIG);
    assert_int_equal(atomic_load(&tqi_failpoints_armed), 0);
}

static void the_environment_arms_several(void **state)
{
    tqi_err_t err;

    (void)state;
    setenv("TQ_FAILPOINTS", "unit.a=return(E_BUSY);unit.b=1+count;", 1);
    assert_int_equal(tqi_failpoint_arm_from_environment(&err), TQ_OK);
    assert_int_equal(tqi_failpoint("unit.a"), TQ_E_BUSY);
    assert_int_equal(tqi_failpoint("unit.b"), TQ_OK);
    assert_int_equal(tqi_failpoint_hits("unit.b"), 1);
    setenv("TQ_FAILPOINTS", "unit.a", 1);
    assert_int_equal(tqi_failpoint_arm_from_environment(&err), TQ_E_CONFIG);
    unsetenv("TQ_FAILPOINTS");
    assert_int_equal(tqi_failpoint_arm_from_environment(&err), TQ_OK);
    tqi_failpoint_disarm_all();
}

static void more_than_the_table_holds_are_refused(void **state)
{
    tqi_err_t err;
    char name[16];

    (void)state;
    for (int i = 0; i < TQI_FAILPOINTS_MAX; i++) {
        snprintf(name, sizeof name, "unit.%d", i);
        assert_int_equal(tqi_failpoint_arm(name, "count", &err), TQ_OK);
    }
    assert_int_equal(tqi_failpoint_arm("unit.more", "count", &err), TQ_E_BUSY);
    assert_int_equal(tqi_failpoint_arm("unit.0", "count", &err), TQ_OK);
    tqi_failpoint_disarm_all();
    assert_int_equal(atomic_load(&tqi_failpoints_armed), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_that_is_not_armed_does_nothing),
        cmocka_unit_test(it_skips_then_acts_then_rests),
        cmocka_unit_test(count_and_a_sleep_of_nothing_let_the_caller_go_on),
        cmocka_unit_test(abort_ends_the_process),
        cmocka_unit_test(what_cannot_be_parsed_is_refused_by_name),
        cmocka_unit_test(the_environment_arms_several),
        cmocka_unit_test(more_than_the_table_holds_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
