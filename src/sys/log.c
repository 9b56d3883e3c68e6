/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/log.h"

#include "base/size.h"
#include "sys/clock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LEVEL_UNSET (-1)

static const char *const level_names[] = {"off", "error", "warn", "info", "debug"};

/* Process-wide, as stderr is. Atomics rather than a lock, so that a forked child can log. */
static atomic_int log_level = LEVEL_UNSET;
static _Atomic(const tqi_log_sink_t *) log_sink;

static int level_by_name(const char *name)
{
    for (size_t i = 0; i < tqi_array_len(level_names); i++)
        if (strcmp(name, level_names[i]) == 0)
            return (int)i;
    return LEVEL_UNSET;
}

/* The level of TQ_LOG, at the first use of the log; what set_level has put there meanwhile stays. */
static int level_from_environment(void)
{
    const char *name = getenv("TQ_LOG");
    int level = name != NULL ? level_by_name(name) : LEVEL_UNSET;
    int unset = LEVEL_UNSET;

    if (level == LEVEL_UNSET)
        level = TQI_LOG_WARN;
    return atomic_compare_exchange_strong(&log_level, &unset, level) ? level : unset;
}

void tqi_log_set_level(tqi_log_level_t level)
{
    atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

bool tqi_log_set_level_name(const char *name)
{
    int level = level_by_name(name);

    if (level == LEVEL_UNSET)
        return false;
    tqi_log_set_level((tqi_log_level_t)level);
    return true;
}

void tqi_log_set_sink(const tqi_log_sink_t *sink)
{
    atomic_store(&log_sink, sink);
}

bool tqi_log_is_on(tqi_log_level_t level)
{
    int now = atomic_load_explicit(&log_level, memory_order_relaxed);

    if (now == LEVEL_UNSET)
        now = level_from_environment();
    return (int)level <= now;
}

static void line_write(tqi_log_level_t level, const char *component, const char *text)
{
    char line[TQI_LOG_LINE_MAX + 128];
    uint64_t now_ns = tqi_realtime_ns();
    time_t seconds = (time_t)(now_ns / 1000000000u);
    struct tm tm;

    gmtime_r(&seconds, &tm);
    int len =
        snprintf(line, sizeof line, "%04d-%02d-%02dT%02d:%02d:%02d.%06uZ %-5s  %s  %s\n",
                 tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
                 (unsigned)(now_ns % 1000000000u / 1000u), level_names[level], component, text);
    if (len < 0)
        return;
    size_t left = (size_t)len;
    if (left >= sizeof line) {
        left = sizeof line - 1;
        line[left - 1] = '\n';
    }
    /* One write, so that lines of several processes don't mix; a full or closed stderr loses it. */
    for (const char *at = line; left > 0;) {
        ssize_t done = write(STDERR_FILENO, at, left);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return;
        at += done;
        left -= (size_t)done;
    }
}

void tqi_log_write(tqi_log_level_t level, const char *component, const char *fmt, ...)
{
    char text[TQI_LOG_LINE_MAX];
    int saved_errno = errno;
    va_list args;

    if (level == TQI_LOG_OFF || !tqi_log_is_on(level))
        return;
    va_start(args, fmt);
    int len = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (len < 0)
        return;
    for (char *at = text; *at != '\0'; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            *at = ' ';
    const tqi_log_sink_t *sink = atomic_load(&log_sink);
    if (sink != NULL)
        sink->record(sink->ctx, level, component, text);
    else
        line_write(level, component, text);
    errno = saved_errno;
}

bool tqi_log_limit_allow(tqi_log_limit_t *limit, uint64_t now_ns, uint64_t interval_ns,
                         uint64_t *suppressed)
{
    uint64_t next_ns = atomic_load_explicit(&limit->next_ns, memory_order_relaxed);

    if (now_ns < next_ns ||
        !atomic_compare_exchange_strong(&limit->next_ns, &next_ns, now_ns + interval_ns)) {
        atomic_fetch_add_explicit(&limit->suppressed, 1, memory_order_relaxed);
        return false;
    }
    *suppressed = atomic_exchange(&limit->suppressed, 0);
    return true;
}
