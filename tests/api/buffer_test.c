/* SPDX-License-Identifier: Apache-2.0 */
/* The cache of receive buffers. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/buffer.h"

static tq_buffer_t *take(tqi_buffers_t *buffers, size_t bytes)
{
    void *data;
    tq_buffer_t *buffer = tqi_buffers_take(buffers, bytes, &data);

    assert_non_null(buffer);
    assert_ptr_equal(data, tq_buffer_data(buffer));
    assert_int_equal((uintptr_t)data % 64, 0);
    assert_int_equal(tq_buffer_size(buffer), bytes);
    memset(data, 7, bytes);
    return buffer;
}

static void every_size_is_aligned_and_writable(void **state)
{
    tqi_buffers_t *buffers;
    size_t sizes[] = {1, 63, 64, 65, 4096, 65535, 65536, 65537, 1 << 20, (4 << 20) + 1, 9 << 20};

    (void)state;
    assert_int_equal(tqi_buffers_new(64 << 20, &buffers, NULL), TQ_OK);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            tq_buffer_unref(take(buffers, sizes[i]));
    tqi_buffers_close(buffers);
}

static void a_buffer_of_about_the_size_is_used_again(void **state)
{
    tqi_buffers_t *buffers;
    tqi_buffers_stat_t stat;
    tq_buffer_t *buffer;
    void *data;

    (void)state;
    assert_int_equal(tqi_buffers_new(64 << 20, &buffers, NULL), TQ_OK);
    buffer = take(buffers, 10000000);
    data = tq_buffer_data(buffer);
    tq_buffer_ref(buffer);
    tq_buffer_unref(buffer);
    tqi_buffers_stat(buffers, &stat);
    assert_int_equal(stat.idle_bytes, 0);
    assert_true(stat.used_bytes >= 10000000 && stat.used_bytes <= 10000000 / 8 * 9 + 1);
    tq_buffer_unref(buffer);
    tqi_buffers_stat(buffers, &stat);
    assert_int_equal(stat.used_bytes, 0);
    assert_true(stat.idle_bytes >= 10000000);
    buffer = take(buffers, 9900000);
    assert_ptr_equal(tq_buffer_data(buffer), data);
    tqi_buffers_stat(buffers, &stat);
    assert_int_equal(stat.hits, 1);
    tq_buffer_unref(buffer);
    tqi_buffers_close(buffers);
}

static void what_is_idle_stays_within_the_bound(void **state)
{
    tqi_buffers_t *buffers;
    tqi_buffers_stat_t stat;
    tq_buffer_t *held[20];

    (void)state;
    assert_int_equal(tqi_buffers_new(4 << 20, &buffers, NULL), TQ_OK);
    for (int i = 0; i < 20; i++)
        held[i] = take(buffers, 1 << 20);
    for (int i = 0; i < 20; i++)
        tq_buffer_unref(held[i]);
    tq_buffer_unref(take(buffers, 5 << 20)); /* larger than the cache: not kept */
    tqi_buffers_stat(buffers, &stat);
    assert_int_equal(stat.idle_bytes, 4 << 20);
    tqi_buffers_close(buffers);
    assert_int_equal(tqi_buffers_new(0, &buffers, NULL), TQ_OK);
    tq_buffer_unref(take(buffers, 1 << 20));
    tqi_buffers_stat(buffers, &stat);
    assert_int_equal(stat.idle_bytes, 0);
    tqi_buffers_close(buffers);
}

static void *take_and_give(void *arg)
{
    for (int i = 0; i < 500; i++)
        tq_buffer_unref(take(arg, (size_t)(i % 5 + 1) << 16));
    return NULL;
}

static void threads_share_it_and_buffers_outlive_it(void **state)
{
    tqi_buffers_t *buffers;
    pthread_t threads[4];
    tq_buffer_t *last;

    (void)state;
    assert_int_equal(tqi_buffers_new(1 << 20, &buffers, NULL), TQ_OK);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, take_and_give, buffers);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    last = take(buffers, 1 << 20);
    tqi_buffers_close(buffers);
    assert_int_equal(((char *)tq_buffer_data(last))[100], 7);
    tq_buffer_unref(last);
    tq_buffer_unref(NULL);
}

static void a_forked_child_reads_and_gives_up_its_copy(void **state)
{
    tqi_buffers_t *buffers;
    tq_buffer_t *buffer;
    int status;

    (void)state;
    assert_int_equal(tqi_buffers_new(16 << 20, &buffers, NULL), TQ_OK);
    buffer = take(buffers, 1 << 20);
    pid_t pid = fork();
    if (pid == 0) {
        bool is_right = ((char *)tq_buffer_data(buffer))[1000] == 7;
        tq_buffer_unref(buffer);
        _exit(is_right ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    tq_buffer_unref(buffer);
    tqi_buffers_close(buffers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_is_aligned_and_writable),
        cmocka_unit_test(a_buffer_of_about_the_size_is_used_again),
        cmocka_unit_test(what_is_idle_stays_within_the_bound),
        cmocka_unit_test(threads_share_it_and_buffers_outlive_it),
        cmocka_unit_test(a_forked_child_reads_and_gives_up_its_copy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
