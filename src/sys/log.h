/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: one line per record, `2026-01-31T12:00:00.123456Z warn  storage  message`, written whole
 * to stderr or handed to a sink. The library logs what nobody can be told otherwise; it never logs
 * an error that it returns. Any thread.
 *
 * The level is warn, or what TQ_LOG says (off, error, warn, info, debug), or what was set.
 */
#ifndef TQI_SYS_LOG_H
#define TQI_SYS_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum tqi_log_level {
    TQI_LOG_OFF = 0,
    TQI_LOG_ERROR = 1, /* something was lost or is broken */
    TQI_LOG_WARN = 2,  /* somebody should look; goes on */
    TQI_LOG_INFO = 3,  /* a decision or a change of state, rare */
    TQI_LOG_DEBUG = 4, /* per request */
} tqi_log_level_t;

/* Longer records are cut. */
#define TQI_LOG_LINE_MAX 1024

typedef struct tqi_log_sink {
    /* component and text are valid during the call; text has no line break. May be called by
     * several threads at once. */
    void (*record)(void *ctx, tqi_log_level_t level, const char *component, const char *text);
    void *ctx;
} tqi_log_sink_t;

void tqi_log_set_level(tqi_log_level_t level);
/* False, and nothing set, when the name is none of the above. */
bool tqi_log_set_level_name(const char *name);
/* Records go to *sink, which must live as long as any thread may log; NULL: to stderr. */
void tqi_log_set_sink(const tqi_log_sink_t *sink);
bool tqi_log_is_on(tqi_log_level_t level);

/* Control characters in what comes out are made spaces: a key can't forge a line. */
void tqi_log_write(tqi_log_level_t level, const char *component, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Arguments are evaluated only when the level is on. */
#define tqi_log(level, component, ...)                                                             \
    do {                                                                                           \
        if (tqi_log_is_on(level))                                                                  \
            tqi_log_write((level), (component), __VA_ARGS__);                                      \
    } while (0)
#define tqi_log_error(component, ...) tqi_log(TQI_LOG_ERROR, component, __VA_ARGS__)
#define tqi_log_warn(component, ...) tqi_log(TQI_LOG_WARN, component, __VA_ARGS__)
#define tqi_log_info(component, ...) tqi_log(TQI_LOG_INFO, component, __VA_ARGS__)
#define tqi_log_debug(component, ...) tqi_log(TQI_LOG_DEBUG, component, __VA_ARGS__)

/* One record per interval for what a peer can make happen at will. All zero to begin with. */
typedef struct tqi_log_limit {
    atomic_uint_least64_t next_ns;
    atomic_uint_least64_t suppressed;
} tqi_log_limit_t;

/* Whether to log now; *suppressed is then how many were not since the last that was. */
bool tqi_log_limit_allow(tqi_log_limit_t *limit, uint64_t now_ns, uint64_t interval_ns,
                         uint64_t *suppressed);

#endif
