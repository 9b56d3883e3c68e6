/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics: the table metrics.def, and registries that hold the values of a process or a role. A
 * series is one metric with one set of label values; whoever counts looks its series up once, keeps
 * the pointer and updates it with atomics. Any thread, everything here.
 */
#ifndef TQI_SYS_METRICS_H
#define TQI_SYS_METRICS_H

#include "base/buf.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef enum tqi_metric_kind {
    TQI_METRIC_COUNTER,   /* a 64-bit number that only grows */
    TQI_METRIC_GAUGE,     /* a double */
    TQI_METRIC_HISTOGRAM, /* of durations, in ns here and in seconds outside */
} tqi_metric_kind_t;

typedef enum tqi_metric {
#define METRIC(symbol, kind, name, labels, help) TQI_M_##symbol,
#include "sys/metrics.def"
#undef METRIC
    TQI_METRIC_CNT
} tqi_metric_t;

/* Series of one metric; more get one that is not shown, and are counted. */
#define TQI_METRIC_SERIES_MAX 4096u
#define TQI_METRIC_BUCKETS 18u

typedef struct tqi_metric_desc {
    const char *name;
    tqi_metric_kind_t kind;
    const char *labels; /* "a,b"; "" for none */
    const char *help;
} tqi_metric_desc_t;

/* By tqi_metric_t. */
extern const tqi_metric_desc_t tqi_metric_table[TQI_METRIC_CNT];
/* Upper ends of a histogram's buckets, 10 us to 5 s; the one of all above has none. */
extern const uint64_t tqi_metric_bucket_ns[TQI_METRIC_BUCKETS];

typedef struct tqi_histogram {
    atomic_uint_least64_t cnt[TQI_METRIC_BUCKETS + 1]; /* each bucket's own, not cumulative */
    atomic_uint_least64_t sum_ns;
} tqi_histogram_t;

typedef struct tqi_series {
    atomic_uint_least64_t value; /* a counter's number, the bits of a gauge's double */
    tqi_histogram_t *histogram;  /* of a histogram */
} tqi_series_t;

typedef struct tqi_metrics tqi_metrics_t;

/* NULL when out of memory. */
tqi_metrics_t *tqi_metrics_new(void);
/* The series go with it. NULL is fine. */
void tqi_metrics_free(tqi_metrics_t *metrics);

/* The series of these label values, one per label of the metric, in the table's order; made (zero)
 * at first use. Valid until it is removed or the registry freed. Never NULL: beyond the bound, or
 * without memory, one that is shared and not shown.
 *     tqi_metrics_series(m, TQI_M_CONTROLLER_REQUEST, (const char *[]){"FETCH"}) */
tqi_series_t *tqi_metrics_series(tqi_metrics_t *metrics, tqi_metric_t metric,
                                 const char *const *values);
/* Forgets a series whose partition or unit is gone; nobody may use its pointer any more. */
void tqi_metrics_remove(tqi_metrics_t *metrics, tqi_metric_t metric, const char *const *values);

/* For counters, gauges and histograms respectively. */
static inline void tqi_series_add(tqi_series_t *series, uint64_t n)
{
    atomic_fetch_add_explicit(&series->value, n, memory_order_relaxed);
}
void tqi_series_set(tqi_series_t *series, double value);
void tqi_series_observe_ns(tqi_series_t *series, uint64_t duration_ns);

/* Appends all of it as Prometheus text (version 0.0.4), in the table's order. E_NO_MEMORY. */
tq_status_t tqi_metrics_render(tqi_metrics_t *metrics, tqi_buf_t *out);

#endif
