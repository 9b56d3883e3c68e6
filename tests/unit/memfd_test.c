/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/memfd.h"

#include "unit.h"

#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1 << 20 };

static size_t bytes_in_use(const tqi_memfd_t *memfd)
{
    struct stat st;

    assert_int_equal(fstat(memfd->fd, &st), 0);
    return (size_t)st.st_blocks * 512;
}

static void memory_is_taken_when_touched_and_given_back_when_punched(void **state)
{
    tqi_memfd_t memfd;
    tqi_err_t err;

    (void)state;
    assert_int_equal(tqi_memfd_open(&memfd, "tq-test", BYTES, &err), TQ_OK);
    assert_int_equal(bytes_in_use(&memfd), 0);
    memset(memfd.base, 0xab, BYTES / 2);
    assert_int_equal(bytes_in_use(&memfd), BYTES / 2);
    assert_int_equal(tqi_memfd_punch(&memfd, 4096, 8192, &err), TQ_OK);
    assert_int_equal(bytes_in_use(&memfd), BYTES / 2 - 8192);
    assert_int_equal(memfd.base[4095], 0xab);
    assert_int_equal(memfd.base[4096], 0);
    assert_int_equal(memfd.base[4096 + 8191], 0);
    assert_int_equal(memfd.base[4096 + 8192], 0xab);
    assert_int_equal(tqi_memfd_punch(&memfd, 0, 0, &err), TQ_OK);
    tqi_memfd_close(&memfd);
    tqi_memfd_close(&memfd);
}

static void pretouched_memory_is_there_and_keeps_its_contents(void **state)
{
    tqi_memfd_t memfd;
    tqi_err_t err;

    (void)state;
    assert_int_equal(tqi_memfd_open(&memfd, "tq-test", BYTES, &err), TQ_OK);
    memfd.base[5] = 7;
    assert_int_equal(tqi_memfd_pretouch(&memfd, 0, BYTES, &err), TQ_OK);
    assert_int_equal(bytes_in_use(&memfd), BYTES);
    assert_int_equal(memfd.base[5], 7);
    assert_int_equal(memfd.base[BYTES - 1], 0);
    tqi_memfd_close(&memfd);
}

static void nobody_can_shrink_it_under_a_mapping(void **state)
{
    tqi_memfd_t memfd;
    tqi_err_t err;

    (void)state;
    assert_int_equal(tqi_memfd_open(&memfd, "tq-test", BYTES, &err), TQ_OK);
    assert_int_equal(ftruncate(memfd.fd, 4096), -1);
    assert_int_equal(ftruncate(memfd.fd, 2 * BYTES), -1);
    tqi_memfd_close(&memfd);
}

static void a_size_that_no_machine_has_is_an_error_with_the_figure(void **state)
{
    tqi_memfd_t memfd;
    tqi_err_t err;

    (void)state;
    assert_true(tqi_memfd_open(&memfd, "tq-test", (size_t)1 << 62, &err) != TQ_OK);
    assert_non_null(strstr(err.text, "4611686018427387904 bytes"));
    assert_int_equal(memfd.fd, -1);
}

static void a_forked_child_does_not_have_the_mapping(void **state)
{
    tqi_memfd_t memfd;
    tqi_err_t err;
    int status;

    (void)state;
    assert_int_equal(tqi_memfd_open(&memfd, "tq-test", BYTES, &err), TQ_OK);
    memfd.base[0] = 1;
    pid_t pid = fork();
    if (pid == 0) {
        /* The kernel answers for us: reading from an address that isn't mapped is EFAULT. */
        int ends[2];
        _exit(pipe(ends) == 0 && write(ends[1], memfd.base, 1) == -1 ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    tqi_memfd_close(&memfd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_taken_when_touched_and_given_back_when_punched),
        cmocka_unit_test(pretouched_memory_is_there_and_keeps_its_contents),
        cmocka_unit_test(nobody_can_shrink_it_under_a_mapping),
        cmocka_unit_test(a_size_that_no_machine_has_is_an_error_with_the_figure),
        cmocka_unit_test(a_forked_child_does_not_have_the_mapping),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
