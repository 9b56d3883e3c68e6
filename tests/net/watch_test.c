/* SPDX-License-Identifier: Apache-2.0 */
#include "pump.h"

#include <signal.h>
#include <sys/wait.h>

#include "net/pidfd/pidfd.h"
#include "sys/machine.h"

typedef struct deaths {
    uint64_t ids[8];
    unsigned cnt;
} deaths_t;

static void on_death(void *ctx, uint64_t id)
{
    deaths_t *deaths = ctx;
    deaths->ids[deaths->cnt++] = id;
}

/* A child that waits to be killed. */
static pid_t child(void)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        for (;;)
            pause();
    }
    return pid;
}

static tqi_process_t process_of(pid_t pid)
{
    return (tqi_process_t){.boot_id = tqi_machine_boot_id(),
                           .boot_id_len = strlen(tqi_machine_boot_id()),
                           .pid_ns = tqi_process_pid_ns(),
                           .pid = (uint64_t)pid,
                           .start_time = tqi_process_start_time(pid)};
}

static void a_death_is_reported_once_and_only_for_who_is_watched(void **state)
{
    (void)state;
    deaths_t deaths = {0};
    tqi_pidfd_watch_t *watch;
    pump_t pump = {0};
    assert_int_equal(tqi_pidfd_watch_new(tqi_env_malloc(), on_death, &deaths, &watch, NULL), TQ_OK);
    tqi_watch_t *port = tqi_pidfd_watch_port(watch);
    pump_add(&pump, tqi_pidfd_watch_source(watch));
    pid_t a = child(), b = child();
    tqi_process_t pa = process_of(a), pb = process_of(b);
    assert_true(port->add(port, 1, &pa));
    assert_true(port->add(port, 2, &pb));
    assert_false(port->add(port, 2, &pb));
    pump_quiet(&pump, 5);
    assert_int_equal(deaths.cnt, 0);
    port->remove(port, 2);
    kill(a, SIGKILL);
    kill(b, SIGKILL);
    pump_until(&pump, deaths.cnt == 1);
    assert_int_equal(deaths.ids[0], 1);
    waitpid(a, NULL, 0);
    waitpid(b, NULL, 0);
    pump_quiet(&pump, 10);
    assert_int_equal(deaths.cnt, 1);
    assert_false(port->add(port, 3, &pa)); /* gone */
    port->remove(port, 9);
    tqi_pidfd_watch_free(watch);
}

static void who_does_not_match_in_everything_is_not_watched(void **state)
{
    (void)state;
    deaths_t deaths = {0};
    tqi_pidfd_watch_t *watch;
    assert_int_equal(tqi_pidfd_watch_new(tqi_env_malloc(), on_death, &deaths, &watch, NULL), TQ_OK);
    tqi_watch_t *port = tqi_pidfd_watch_port(watch);
    tqi_process_t self = process_of(getpid()), p = self;
    p.start_time++; /* the pid was taken by another process since */
    assert_false(port->add(port, 1, &p));
    p = self;
    p.pid_ns++;
    assert_false(port->add(port, 1, &p));
    p = self;
    p.boot_id = "elsewhere";
    p.boot_id_len = 9;
    assert_false(port->add(port, 1, &p));
    p = self;
    p.pid = 0;
    assert_false(port->add(port, 1, &p));
    p.pid = UINT64_MAX;
    assert_false(port->add(port, 1, &p));
    assert_true(port->add(port, 1, &self));
    tqi_pidfd_watch_free(watch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_is_reported_once_and_only_for_who_is_watched),
        cmocka_unit_test(who_does_not_match_in_everything_is_not_watched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
