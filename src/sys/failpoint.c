/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/failpoint.h"

#include "base/size.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef enum action_kind {
    ACTION_COUNT,
    ACTION_RETURN,
    ACTION_SLEEP,
    ACTION_ABORT,
} action_kind_t;

typedef struct failpoint {
    char name[TQI_FAILPOINT_NAME_MAX + 1]; /* "" where free */
    action_kind_t kind;
    uint64_t skip;
    uint64_t times; /* UINT64_MAX: always */
    uint64_t sleep_ms;
    tq_status_t status;
    uint64_t hits;
} failpoint_t;

/* Process-wide, as the environment is; the lock is taken only while something is armed. */
atomic_uint tqi_failpoints_armed;
static pthread_mutex_t failpoints_lock = PTHREAD_MUTEX_INITIALIZER;
static failpoint_t failpoints[TQI_FAILPOINTS_MAX];

static failpoint_t *failpoint_find(const char *name)
{
    for (size_t i = 0; i < TQI_FAILPOINTS_MAX; i++)
        if (strcmp(failpoints[i].name, name) == 0)
            return &failpoints[i];
    return NULL;
}

/* ---- parsing ---- */

static bool status_by_name(const char *name, size_t len, tq_status_t *out)
{
#define STATUS_MATCH_(code, number, cls, text)                                                     \
    if (strlen(#code) == len && memcmp(#code, name, len) == 0) {                                   \
        *out = TQ_##code;                                                                          \
        return true;                                                                               \
    }
    TQ_STATUS_TABLE(STATUS_MATCH_)
#undef STATUS_MATCH_
    return false;
}

/* A decimal number in front of `mark`: takes both off *text. False, and nothing taken, when they
 * aren't there. */
static bool number_before(const char **text, char mark, uint64_t *out)
{
    char *end;

    if (**text < '0' || **text > '9')
        return false;
    errno = 0;
    unsigned long long number = strtoull(*text, &end, 10);
    if (*end != mark || errno != 0)
        return false;
    *out = number;
    *text = end + 1;
    return true;
}

static bool action_parse(const char *text, failpoint_t *out)
{
    static const char return_open[] = "return(", sleep_open[] = "sleep(";

    out->times = UINT64_MAX;
    number_before(&text, '+', &out->skip);
    number_before(&text, '*', &out->times);
    if (strcmp(text, "count") == 0) {
        out->kind = ACTION_COUNT;
        return true;
    }
    if (strcmp(text, "abort") == 0) {
        out->kind = ACTION_ABORT;
        return true;
    }
    if (strncmp(text, sleep_open, strlen(sleep_open)) == 0) {
        text += strlen(sleep_open);
        out->kind = ACTION_SLEEP;
        return number_before(&text, ')', &out->sleep_ms) && *text == '\0';
    }
    if (strncmp(text, return_open, strlen(return_open)) == 0) {
        const char *close = strchr(text, ')');

        text += strlen(return_open);
        out->kind = ACTION_RETURN;
        return close != NULL && close[1] == '\0' &&
               status_by_name(text, (size_t)(close - text), &out->status);
    }
    return false;
}

tq_status_t tqi_failpoint_arm(const char *name, const char *action, tqi_err_t *err)
{
    failpoint_t parsed = {.name = ""};
    tq_status_t status = TQ_OK;

    if (name[0] == '\0' || strlen(name) > TQI_FAILPOINT_NAME_MAX)
        return tqi_fail(err, TQ_E_CONFIG, "failpoint name '%s' is not of 1 to %d characters", name,
                        TQI_FAILPOINT_NAME_MAX);
    if (!action_parse(action, &parsed))
        return tqi_fail(err, TQ_E_CONFIG,
                        "failpoint '%s': '%s' is not [SKIP+][TIMES*] and one of return(CODE), "
                        "sleep(MILLISECONDS), abort, count",
                        name, action);
    snprintf(parsed.name, sizeof parsed.name, "%s", name);

    pthread_mutex_lock(&failpoints_lock);
    failpoint_t *slot = failpoint_find(name);
    if (slot != NULL) {
        *slot = parsed;
    } else if ((slot = failpoint_find("")) != NULL) {
        *slot = parsed;
        atomic_fetch_add_explicit(&tqi_failpoints_armed, 1, memory_order_relaxed);
    } else {
        status = tqi_fail(err, TQ_E_BUSY, "failpoint '%s': %d are armed already", name,
                          TQI_FAILPOINTS_MAX);
    }
    pthread_mutex_unlock(&failpoints_lock);
    return status;
}

tq_status_t tqi_failpoint_arm_from_environment(tqi_err_t *err)
{
    const char *text = getenv("TQ_FAILPOINTS");

    while (text != NULL && *text != '\0') {
        char entry[256];
        size_t len = strcspn(text, ";");

        if (len >= sizeof entry)
            return tqi_fail(err, TQ_E_CONFIG, "TQ_FAILPOINTS: an entry of %zu characters", len);
        memcpy(entry, text, len);
        entry[len] = '\0';
        text += len + (text[len] == ';');
        char *equals = strchr(entry, '=');
        if (equals == NULL)
            return tqi_fail(err, TQ_E_CONFIG, "TQ_FAILPOINTS: '%s' is not NAME=ACTION", entry);
        *equals = '\0';
        tq_status_t status = tqi_failpoint_arm(entry, equals + 1, err);
        if (status != TQ_OK)
            return status;
    }
    return TQ_OK;
}

static void failpoint_free(failpoint_t *failpoint)
{
    failpoint->name[0] = '\0';
    atomic_fetch_sub_explicit(&tqi_failpoints_armed, 1, memory_order_relaxed);
}

void tqi_failpoint_disarm(const char *name)
{
    pthread_mutex_lock(&failpoints_lock);
    failpoint_t *failpoint = name[0] == '\0' ? NULL : failpoint_find(name);
    if (failpoint != NULL)
        failpoint_free(failpoint);
    pthread_mutex_unlock(&failpoints_lock);
}

void tqi_failpoint_disarm_all(void)
{
    pthread_mutex_lock(&failpoints_lock);
    for (size_t i = 0; i < TQI_FAILPOINTS_MAX; i++)
        if (failpoints[i].name[0] != '\0')
            failpoint_free(&failpoints[i]);
    pthread_mutex_unlock(&failpoints_lock);
}

uint64_t tqi_failpoint_hits(const char *name)
{
    pthread_mutex_lock(&failpoints_lock);
    const failpoint_t *failpoint = name[0] == '\0' ? NULL : failpoint_find(name);
    uint64_t hits = failpoint != NULL ? failpoint->hits : 0;
    pthread_mutex_unlock(&failpoints_lock);
    return hits;
}

tq_status_t tqi_failpoint_hit(const char *name)
{
    failpoint_t found = {.kind = ACTION_COUNT};

    pthread_mutex_lock(&failpoints_lock);
    failpoint_t *failpoint = failpoint_find(name);
    if (failpoint != NULL) {
        uint64_t hit = failpoint->hits++;

        if (hit >= failpoint->skip && hit - failpoint->skip < failpoint->times)
            found = *failpoint;
    }
    pthread_mutex_unlock(&failpoints_lock);

    switch (found.kind) {
    case ACTION_COUNT:
        return TQ_OK;
    case ACTION_RETURN:
        return found.status;
    case ACTION_SLEEP: {
        struct timespec left = {
            .tv_sec = (time_t)(found.sleep_ms / 1000),
            .tv_nsec = (long)(found.sleep_ms % 1000 * 1000000),
        };
        while (nanosleep(&left, &left) != 0 && errno == EINTR)
            ;
        return TQ_OK;
    }
    case ACTION_ABORT:
        fprintf(stderr, "tq: failpoint %s aborts\n", name);
        abort();
    }
    return TQ_OK;
}
