/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"

#include "sys/entropy.h"
#include "unit.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void break_plain(void)
{
    tqi_assert(1 + 1 == 3);
}

static void break_invariant(void)
{
    tqi_invariant(1 + 1 == 3, "INV-7");
}

/* What a child that runs `broken` says on stderr; it must have aborted. */
static void output_of(void (*broken)(void), char *out, size_t out_max)
{
    int ends[2], status;

    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        broken();
        _exit(0);
    }
    close(ends[1]);
    ssize_t len = read(ends[0], out, out_max - 1);
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_true(len > 0);
    out[len] = '\0';
}

static void a_broken_assertion_says_what_and_where_and_aborts(void **state)
{
    char out[1024];

    (void)state;
    output_of(break_plain, out, sizeof out);
    assert_non_null(strstr(out, "assert_test.c:"));
    assert_non_null(strstr(out, "assertion failed: 1 + 1 == 3\n"));
    output_of(break_invariant, out, sizeof out);
    assert_non_null(strstr(out, "assertion failed: 1 + 1 == 3 (INV-7)\n"));
    tqi_assert(1);
    tqi_invariant(1, "INV-1");
}

static void two_draws_of_entropy_differ(void **state)
{
    unsigned char a[32] = {0}, b[32] = {0};

    (void)state;
    tqi_entropy(a, sizeof a);
    tqi_entropy(b, sizeof b);
    assert_memory_not_equal(a, b, sizeof a);
    tqi_entropy(a, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broken_assertion_says_what_and_where_and_aborts),
        cmocka_unit_test(two_draws_of_entropy_differ),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
