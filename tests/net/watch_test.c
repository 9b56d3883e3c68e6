/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What net/watch.h promises, stamped on pidfds and on the simulated machine.
 */
#include "pump.h"

#include <signal.h>
#include <sys/wait.h>

#include "base/size.h"
#include "net/pidfd/pidfd.h"
#include "net/sim/sim.h"
#include "sys/machine.h"

typedef struct world world_t;

typedef struct driver {
    const char *name;
    unsigned seeds;
    void (*open)(world_t *w);
    void (*close)(world_t *w);
    /* Another process, that waits to be killed. */
    unsigned (*child)(world_t *w);
    void (*kill)(world_t *w, unsigned child);
    tqi_process_t (*process_of)(world_t *w, unsigned child);
    void (*quiet)(world_t *w);
} driver_t;

#define CHILDREN_MAX 8

struct world {
    const driver_t *driver;
    uint64_t seed;
    tqi_watch_t *port;
    uint64_t ids[CHILDREN_MAX * 2];
    unsigned deaths;
    unsigned calls; /* into the port, under way */
    void (*on_death)(world_t *w, uint64_t id);
    pump_t pump;
    tqi_pidfd_watch_t *watch;
    pid_t pids[CHILDREN_MAX];
    unsigned children_cnt;
    tqi_sim_t *sim;
    tqi_sim_host_t *self;
    tqi_sim_host_t *hosts[CHILDREN_MAX];
};

static void on_death(void *ctx, uint64_t id)
{
    world_t *w = ctx;
    assert_int_equal(w->calls, 0);
    assert_true(w->deaths < tqi_array_len(w->ids));
    w->ids[w->deaths++] = id;
    if (w->on_death)
        w->on_death(w, id);
}

/* ---- pidfds ------------------------------------------------------------------------------------ */

static void real_open(world_t *w)
{
    assert_int_equal(tqi_pidfd_watch_new(tqi_env_malloc(), on_death, w, &w->watch, NULL), TQ_OK);
    w->port = tqi_pidfd_watch_port(w->watch);
    pump_add(&w->pump, tqi_pidfd_watch_source(w->watch));
}

static void real_kill(world_t *w, unsigned child)
{
    if (w->pids[child] == 0)
        return;
    assert_int_equal(kill(w->pids[child], SIGKILL), 0);
    assert_int_equal(waitpid(w->pids[child], NULL, 0), w->pids[child]);
    w->pids[child] = 0;
}

static void real_close(world_t *w)
{
    for (unsigned i = 0; i < w->children_cnt; i++)
        real_kill(w, i);
    tqi_pidfd_watch_free(w->watch);
}

static unsigned real_child(world_t *w)
{
    pid_t pid = fork();
    assert_true(pid >= 0 && w->children_cnt < CHILDREN_MAX);
    if (pid == 0)
        for (;;)
            pause();
    w->pids[w->children_cnt] = pid;
    return w->children_cnt++;
}

static tqi_process_t real_process_of(world_t *w, unsigned child)
{
    pid_t pid = w->pids[child];
    return (tqi_process_t){.boot_id = tqi_machine_boot_id(),
                           .boot_id_len = strlen(tqi_machine_boot_id()),
                           .pid_ns = tqi_process_pid_ns(),
                           .pid = (uint64_t)pid,
                           .start_time = tqi_process_start_time(pid)};
}

static void real_quiet(world_t *w)
{
    pump_quiet(&w->pump, 20);
}

/* ---- the simulated machine --------------------------------------------------------------------- */

static void sim_open(world_t *w)
{
    static const tqi_sink_t sink;
    tqi_sim_conf_t conf = {.seed = w->seed, .faults = {.latency_max_ns = TQI_SIM_MS}};
    w->sim = tqi_sim_new(&conf);
    w->self = tqi_sim_host_new(w->sim, "self");
    tqi_sim_host_boot(w->self, &sink, true, 0);
    w->port = tqi_sim_host_watch(w->self, on_death, w);
}

static void sim_kill(world_t *w, unsigned child)
{
    if (tqi_sim_host_is_up(w->hosts[child]))
        tqi_sim_host_kill(w->hosts[child], false);
}

static void sim_close(world_t *w)
{
    for (unsigned i = 0; i < w->children_cnt; i++)
        sim_kill(w, i);
    tqi_sim_host_kill(w->self, false);
    tqi_sim_free(w->sim);
}

static unsigned sim_child(world_t *w)
{
    static const tqi_sink_t sink;
    char name[16];
    assert_true(w->children_cnt < CHILDREN_MAX);
    snprintf(name, sizeof name, "child%u", w->children_cnt);
    w->hosts[w->children_cnt] = tqi_sim_host_new(w->sim, name);
    tqi_sim_host_boot(w->hosts[w->children_cnt], &sink, false, 0);
    return w->children_cnt++;
}

static tqi_process_t sim_process_of(world_t *w, unsigned child)
{
    return tqi_sim_host_process(w->hosts[child]);
}

static void sim_quiet(world_t *w)
{
    uint64_t until = tqi_sim_now(w->sim) + TQI_SIM_S;
    while (tqi_sim_step(w->sim, until))
        continue;
}

static const driver_t by_pidfd = {"by pidfd", 1,         real_open,       real_close,
                                  real_child, real_kill, real_process_of, real_quiet};
static const driver_t simulated = {"as simulated", 20,       sim_open,       sim_close,
                                   sim_child,      sim_kill, sim_process_of, sim_quiet};

/* ---- the cases --------------------------------------------------------------------------------- */

static bool add(world_t *w, uint64_t id, tqi_process_t process)
{
    w->calls++;
    bool is_watched = w->port->add(w->port, id, &process);
    w->calls--;
    return is_watched;
}

static void let_go(world_t *w, uint64_t id)
{
    w->calls++;
    w->port->remove(w->port, id);
    w->calls--;
}

static void a_death_is_reported_once_and_only_for_who_is_watched(world_t *w)
{
    unsigned a = w->driver->child(w), b = w->driver->child(w);
    tqi_process_t pa = w->driver->process_of(w, a), pb = w->driver->process_of(w, b);
    assert_true(add(w, 1, pa));
    assert_true(add(w, 2, pb));
    assert_false(add(w, 2, pb));
    w->driver->quiet(w);
    assert_int_equal(w->deaths, 0);
    let_go(w, 2);
    w->driver->kill(w, a);
    w->driver->kill(w, b);
    w->driver->quiet(w);
    assert_int_equal(w->deaths, 1);
    assert_int_equal(w->ids[0], 1);
    let_go(w, 1); /* reported: no effect */
    let_go(w, 9);
    /* Dead for long: not watched, or told like one that dies now. */
    if (add(w, 3, pa)) {
        w->driver->quiet(w);
        assert_int_equal(w->deaths, 2);
        assert_int_equal(w->ids[1], 3);
    }
    w->driver->quiet(w);
    assert_true(w->deaths <= 2);
}

static void one_process_may_be_watched_under_several_ids(world_t *w)
{
    unsigned a = w->driver->child(w);
    tqi_process_t pa = w->driver->process_of(w, a);
    for (uint64_t id = 1; id <= 3; id++)
        assert_true(add(w, id, pa));
    let_go(w, 2);
    w->driver->kill(w, a);
    w->driver->quiet(w);
    assert_int_equal(w->deaths, 2);
    assert_int_equal(w->ids[0] + w->ids[1], 1 + 3);
}

static void remove_the_other(world_t *w, uint64_t id)
{
    let_go(w, 3 - id);
}

static void who_is_removed_by_anothers_death_is_not_reported(world_t *w)
{
    unsigned a = w->driver->child(w), b = w->driver->child(w);
    assert_true(add(w, 1, w->driver->process_of(w, a)));
    assert_true(add(w, 2, w->driver->process_of(w, b)));
    w->on_death = remove_the_other;
    w->driver->kill(w, a);
    w->driver->kill(w, b);
    w->driver->quiet(w);
    assert_int_equal(w->deaths, 1);
}

static void who_does_not_match_in_everything_is_not_watched(world_t *w)
{
    tqi_process_t self = w->driver->process_of(w, w->driver->child(w)), p = self;
    p.start_time++; /* the pid was taken by another process since */
    assert_false(add(w, 1, p));
    p = self;
    p.pid_ns++;
    assert_false(add(w, 1, p));
    p = self;
    p.boot_id = "elsewhere";
    p.boot_id_len = 9;
    assert_false(add(w, 1, p));
    p = self;
    p.boot_id_len--;
    assert_false(add(w, 1, p));
    p = self;
    p.pid = 0;
    assert_false(add(w, 1, p));
    p.pid = UINT64_MAX;
    assert_false(add(w, 1, p));
    assert_true(add(w, 1, self));
    w->driver->quiet(w);
    assert_int_equal(w->deaths, 0);
}

typedef struct stamp {
    void (*run)(world_t *w);
    const driver_t *driver;
} stamp_t;

static void run_stamp(void **state)
{
    const stamp_t *stamp = *state;
    for (uint64_t seed = 1; seed <= stamp->driver->seeds; seed++) {
        world_t w = {.driver = stamp->driver, .seed = seed};
        w.driver->open(&w);
        stamp->run(&w);
        w.driver->close(&w);
    }
}

int main(void)
{
#define ON_EACH(test)                                                                              \
    {#test " by pidfd", run_stamp, NULL, NULL, &(stamp_t){test, &by_pidfd}},                       \
    {                                                                                              \
#test " as simulated", run_stamp, NULL, NULL, &(stamp_t)                                   \
        {                                                                                          \
            test, &simulated                                                                       \
        }                                                                                          \
    }
    const struct CMUnitTest tests[] = {
        ON_EACH(a_death_is_reported_once_and_only_for_who_is_watched),
        ON_EACH(one_process_may_be_watched_under_several_ids),
        ON_EACH(who_is_removed_by_anothers_death_is_not_reported),
        ON_EACH(who_does_not_match_in_everything_is_not_watched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
