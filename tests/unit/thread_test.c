/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/thread.h"

#include "sys/ring.h"
#include "unit.h"

#include <signal.h>
#include <string.h>

typedef struct seen {
    tqi_wake_t wake;
    char name[16];
    bool blocks_signals;
} seen_t;

static void wait_for_the_stop(tqi_thread_t *thread, void *arg)
{
    seen_t *seen = arg;
    sigset_t mask;

    pthread_getname_np(pthread_self(), seen->name, sizeof seen->name);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    seen->blocks_signals = sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGINT) == 1;
    for (;;) {
        tqi_wake_prepare(&seen->wake);
        if (tqi_thread_should_stop(thread))
            break;
        tqi_wake_wait(&seen->wake, UINT64_MAX);
        tqi_wake_done(&seen->wake);
    }
}

static void a_thread_has_its_name_takes_no_signals_and_stops_when_asked(void **state)
{
    tqi_thread_t thread;
    sigset_t before, after;
    seen_t seen;

    (void)state;
    memset(&seen, 0, sizeof seen);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_int_equal(tqi_wake_init(&seen.wake, NULL), TQ_OK);
    assert_int_equal(
        tqi_thread_start(&thread, "tq-a-name-too-long", wait_for_the_stop, &seen, NULL), TQ_OK);
    tqi_thread_stop(&thread);
    tqi_wake_signal(&seen.wake);
    tqi_thread_join(&thread);
    tqi_thread_join(&thread); /* a second time: nothing */
    assert_string_equal(seen.name, "tq-a-name-too-l");
    assert_true(seen.blocks_signals);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    assert_int_equal(sigismember(&after, SIGTERM), sigismember(&before, SIGTERM));
    tqi_wake_fini(&seen.wake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_has_its_name_takes_no_signals_and_stops_when_asked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
