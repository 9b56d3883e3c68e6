/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/limit.h"

#include "unit.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void a_limit_is_named_with_its_remedy(void **state)
{
    tqi_err_t err;

    (void)state;
    assert_int_equal(tqi_fail_errno(&err, EMFILE, "%s %d", "no file", 7), TQ_E_SYSTEM);
    assert_non_null(strstr(err.text, "no file 7: Too many open files; this process may have "));
    assert_non_null(strstr(err.text, "ulimit -n"));
    assert_int_equal(tqi_fail_errno(&err, EAGAIN, "no thread"), TQ_E_SYSTEM);
    assert_non_null(strstr(err.text, "ulimit -u"));
    assert_int_equal(tqi_fail_errno(&err, ENOMEM, "no memory"), TQ_E_NO_MEMORY);
    assert_int_equal(tqi_fail_errno(&err, ENOENT, "no such thing"), TQ_E_SYSTEM);
    assert_string_equal(err.text, "no such thing: No such file or directory");
}

static void descriptors_that_are_not_there_are_known_before(void **state)
{
    struct rlimit old, few;
    tqi_err_t err;

    (void)state;
    for (int fd = 3; fd < 1024; fd++) /* what was inherited, in places of its own */
        close(fd);
    assert_int_equal(tqi_limit_descriptors(32, &err), TQ_OK);
    uint64_t used = tqi_limit_descriptors_used();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = (struct rlimit){used + 10, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(tqi_limit_descriptors_max(), used + 10);
    assert_int_equal(tqi_limit_descriptors(10, &err), TQ_OK);
    assert_int_equal(tqi_limit_descriptors(11, &err), TQ_E_SYSTEM);
    few.rlim_cur = used;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(tqi_limit_descriptors(1, &err), TQ_E_SYSTEM);
    assert_int_equal(tqi_limit_descriptors_used(), used);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_non_null(strstr(err.text, "ulimit -n"));
    assert_int_equal(tqi_limit_descriptors_used(), used);
}

static void threads_that_are_there_are_left_there(void **state)
{
    tqi_err_t err;

    (void)state;
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(tqi_limit_threads(4, &err), TQ_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_limit_is_named_with_its_remedy),
        cmocka_unit_test(descriptors_that_are_not_there_are_known_before),
        cmocka_unit_test(threads_that_are_there_are_left_there),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
