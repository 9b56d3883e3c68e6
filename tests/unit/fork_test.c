/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/fork.h"

#include "sys/thread.h"
#include "unit.h"

#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void hold_it_nearly_always(tqi_thread_t *thread, void *arg)
{
    (void)arg;
    while (!tqi_thread_should_stop(thread)) {
        pthread_mutex_lock(&mutex);
        for (volatile unsigned i = 0; i < 1000; i++)
            continue;
        pthread_mutex_unlock(&mutex);
    }
}

static void a_lock_that_others_hold_is_free_in_a_child(void **state)
{
    tqi_thread_t thread;

    (void)state;
    tqi_fork_guard(&mutex);
    assert_int_equal(tqi_thread_start(&thread, "holder", hold_it_nearly_always, NULL, NULL), TQ_OK);
    for (unsigned i = 0; i < 200; i++) {
        int status;
        pid_t child = fork();

        assert_true(child >= 0);
        if (child == 0)
            _exit(pthread_mutex_trylock(&mutex));
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    tqi_thread_stop(&thread);
    tqi_thread_join(&thread);
    assert_int_equal(pthread_mutex_trylock(&mutex), 0);
    pthread_mutex_unlock(&mutex);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lock_that_others_hold_is_free_in_a_child),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
