/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pidfd is opened for the pid and only then is the process's start time compared: the descriptor
 * holds on to one process, so if the time is right, it is the one that said hello.
 */
#include "net/pidfd/pidfd.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/list.h"
#include "base/map.h"
#include "base/size.h"
#include "sys/limit.h"
#include "sys/machine.h"

#define EVENTS_MAX 32

typedef struct watched {
    uint64_t id;
    int fd;
} watched_t;

struct tqi_pidfd_watch {
    tqi_watch_t port;
    tqi_source_t source;
    const tqi_env_t *env;
    void (*on_death)(void *ctx, uint64_t id);
    void *ctx;
    int epoll_fd;
    tqi_map_u64_t watched; /* id -> watched_t */
};

static void forget(tqi_pidfd_watch_t *self, watched_t *w)
{
    tqi_map_u64_take(&self->watched, w->id);
    (void)epoll_ctl(self->epoll_fd, EPOLL_CTL_DEL, w->fd, NULL);
    (void)close(w->fd);
    tqi_env_free(self->env, w, sizeof *w);
}

static bool is_of_this_machine(const tqi_process_t *process)
{
    const char *boot_id = tqi_machine_boot_id();
    return process->pid > 0 && process->pid <= INT32_MAX && boot_id[0] != 0 &&
           strlen(boot_id) == process->boot_id_len &&
           memcmp(boot_id, process->boot_id, process->boot_id_len) == 0 && process->pid_ns != 0 &&
           process->pid_ns == tqi_process_pid_ns();
}

static bool watch_add(tqi_watch_t *port, uint64_t id, const tqi_process_t *process)
{
    tqi_pidfd_watch_t *self = tqi_container_of(port, tqi_pidfd_watch_t, port);
    if (!is_of_this_machine(process) || tqi_map_u64_get(&self->watched, id))
        return false;
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)process->pid, 0); /* close-on-exec by itself */
    if (fd < 0)
        return false; /* gone already, or a kernel without: silence will tell */
    watched_t *w = NULL;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = id};
    if (tqi_process_start_time((int)process->pid) != process->start_time ||
        !(w = tqi_env_zalloc(self->env, sizeof *w)) ||
        tqi_map_u64_put(&self->watched, id, w, NULL) != TQ_OK) {
        tqi_env_free(self->env, w, sizeof *w);
        (void)close(fd);
        return false;
    }
    *w = (watched_t){id, fd};
    if (epoll_ctl(self->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        forget(self, w);
        return false;
    }
    return true;
}

static void watch_remove(tqi_watch_t *port, uint64_t id)
{
    tqi_pidfd_watch_t *self = tqi_container_of(port, tqi_pidfd_watch_t, port);
    watched_t *w = tqi_map_u64_get(&self->watched, id);
    if (w)
        forget(self, w);
}

static uint64_t watch_run(tqi_source_t *source, uint64_t now_ns)
{
    tqi_pidfd_watch_t *self = tqi_container_of(source, tqi_pidfd_watch_t, source);
    struct epoll_event events[EVENTS_MAX];
    int cnt = epoll_wait(self->epoll_fd, events, EVENTS_MAX, 0);
    for (int i = 0; i < cnt; i++) {
        uint64_t id = events[i].data.u64;
        watched_t *w = tqi_map_u64_get(&self->watched, id);
        if (!w) /* removed by an earlier one's on_death */
            continue;
        forget(self, w);
        self->on_death(self->ctx, id);
    }
    return cnt == EVENTS_MAX ? now_ns : UINT64_MAX;
}

static bool watch_is_busy(tqi_source_t *source)
{
    (void)source; /* its descriptor tells */
    return false;
}

tq_status_t tqi_pidfd_watch_new(const tqi_env_t *env, void (*on_death)(void *ctx, uint64_t id),
                                void *ctx, tqi_pidfd_watch_t **out, tqi_err_t *err)
{
    tqi_pidfd_watch_t *self = tqi_env_zalloc(env, sizeof *self);
    if (!self)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory to watch processes");
    self->port = (tqi_watch_t){watch_add, watch_remove};
    self->env = env;
    self->on_death = on_death;
    self->ctx = ctx;
    tqi_map_u64_init(&self->watched, env);
    self->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    self->source = (tqi_source_t){self->epoll_fd, watch_run, watch_is_busy};
    if (self->epoll_fd < 0) {
        tq_status_t rc = tqi_fail_errno(err, errno, "epoll");
        tqi_pidfd_watch_free(self);
        return rc;
    }
    *out = self;
    return TQ_OK;
}

tqi_watch_t *tqi_pidfd_watch_port(tqi_pidfd_watch_t *watch)
{
    return &watch->port;
}

tqi_source_t *tqi_pidfd_watch_source(tqi_pidfd_watch_t *watch)
{
    return &watch->source;
}

void tqi_pidfd_watch_free(tqi_pidfd_watch_t *self)
{
    tqi_map_u64_item_t *item;
    if (!self)
        return;
    while ((item = tqi_map_u64_first(&self->watched)))
        forget(self, item->value);
    tqi_map_u64_fini(&self->watched, NULL, NULL);
    if (self->epoll_fd >= 0)
        close(self->epoll_fd);
    tqi_env_free(self->env, self, sizeof *self);
}
