/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A registry is one map per metric, from the label values (each with its NUL) to the series. The
 * lock guards the maps; the values are read and written without it, so a scrape may see a
 * histogram's sum and counts a moment apart.
 */
#include "sys/metrics.h"

#include "base/assert.h"
#include "base/map.h"
#include "sys/env_malloc.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const tqi_metric_desc_t tqi_metric_table[TQI_METRIC_CNT] = {
#define METRIC(symbol, kind_, name_, labels_, help_)                                               \
    [TQI_M_##symbol] = {                                                                           \
        .name = (name_), .kind = TQI_METRIC_##kind_, .labels = (labels_), .help = (help_)},
#include "sys/metrics.def"
#undef METRIC
};

#define US(n) (UINT64_C(n) * 1000u)
#define MS(n) (UINT64_C(n) * 1000000u)
const uint64_t tqi_metric_bucket_ns[TQI_METRIC_BUCKETS] = {
    US(10), US(25), US(50), US(100), US(250), US(500), MS(1),    MS(2) + US(500), MS(5),
    MS(10), MS(25), MS(50), MS(100), MS(250), MS(500), MS(1000), MS(2500),        MS(5000),
};

struct tqi_metrics {
    pthread_mutex_t lock;
    tqi_map_str_t series[TQI_METRIC_CNT];
    tqi_series_t hidden; /* what those over the bound get */
    tqi_histogram_t hidden_histogram;
    atomic_uint_least64_t refused;
};

/* ---- series ---- */

tqi_metrics_t *tqi_metrics_new(void)
{
    tqi_metrics_t *metrics = calloc(1, sizeof *metrics);

    if (metrics == NULL)
        return NULL;
    pthread_mutex_init(&metrics->lock, NULL);
    for (size_t i = 0; i < TQI_METRIC_CNT; i++)
        tqi_map_str_init(&metrics->series[i], tqi_env_malloc());
    metrics->hidden.histogram = &metrics->hidden_histogram;
    return metrics;
}

static void series_free(void *ctx, void *value)
{
    tqi_series_t *series = value;

    (void)ctx;
    free(series->histogram);
    free(series);
}

void tqi_metrics_free(tqi_metrics_t *metrics)
{
    if (metrics == NULL)
        return;
    for (size_t i = 0; i < TQI_METRIC_CNT; i++)
        tqi_map_str_fini(&metrics->series[i], series_free, NULL);
    pthread_mutex_destroy(&metrics->lock);
    free(metrics);
}

static size_t label_cnt(const char *labels)
{
    size_t cnt = labels[0] != '\0';

    for (; *labels != '\0'; labels++)
        cnt += *labels == ',';
    return cnt;
}

/* The map's key. */
static tq_status_t key_make(tqi_buf_t *key, tqi_metric_t metric, const char *const *values)
{
    size_t cnt = label_cnt(tqi_metric_table[metric].labels);

    for (size_t i = 0; i < cnt; i++)
        if (tqi_buf_append(key, values[i], strlen(values[i]) + 1) != TQ_OK)
            return TQ_E_NO_MEMORY;
    return TQ_OK;
}

static tqi_series_t *series_new(tqi_metric_kind_t kind)
{
    tqi_series_t *series = calloc(1, sizeof *series);

    if (series == NULL || kind != TQI_METRIC_HISTOGRAM)
        return series;
    series->histogram = calloc(1, sizeof *series->histogram);
    if (series->histogram == NULL) {
        free(series);
        return NULL;
    }
    return series;
}

/* With the lock held; NULL when there is no room. */
static tqi_series_t *series_find_or_make(tqi_metrics_t *metrics, tqi_metric_t metric,
                                         const tqi_buf_t *key)
{
    tqi_map_str_t *map = &metrics->series[metric];
    tqi_series_t *series = tqi_map_str_get(map, key->data, key->len);

    if (series != NULL || tqi_map_str_count(map) >= TQI_METRIC_SERIES_MAX)
        return series;
    series = series_new(tqi_metric_table[metric].kind);
    if (series != NULL && tqi_map_str_put(map, key->data, key->len, series, NULL) != TQ_OK) {
        series_free(NULL, series);
        return NULL;
    }
    return series;
}

tqi_series_t *tqi_metrics_series(tqi_metrics_t *metrics, tqi_metric_t metric,
                                 const char *const *values)
{
    tqi_series_t *series = NULL;
    tqi_buf_t key;

    tqi_buf_init(&key, tqi_env_malloc());
    if (key_make(&key, metric, values) == TQ_OK) {
        pthread_mutex_lock(&metrics->lock);
        series = series_find_or_make(metrics, metric, &key);
        pthread_mutex_unlock(&metrics->lock);
    }
    tqi_buf_fini(&key);
    if (series == NULL) {
        atomic_fetch_add_explicit(&metrics->refused, 1, memory_order_relaxed);
        return &metrics->hidden;
    }
    return series;
}

void tqi_metrics_remove(tqi_metrics_t *metrics, tqi_metric_t metric, const char *const *values)
{
    tqi_series_t *series = NULL;
    tqi_buf_t key;

    tqi_buf_init(&key, tqi_env_malloc());
    if (key_make(&key, metric, values) == TQ_OK) {
        pthread_mutex_lock(&metrics->lock);
        series = tqi_map_str_take(&metrics->series[metric], key.data, key.len);
        pthread_mutex_unlock(&metrics->lock);
    }
    tqi_buf_fini(&key);
    if (series != NULL)
        series_free(NULL, series);
}

void tqi_series_set(tqi_series_t *series, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    atomic_store_explicit(&series->value, bits, memory_order_relaxed);
}

void tqi_series_observe_ns(tqi_series_t *series, uint64_t duration_ns)
{
    tqi_histogram_t *histogram = series->histogram;
    size_t bucket = 0;

    tqi_assert(histogram != NULL);
    while (bucket < TQI_METRIC_BUCKETS && duration_ns > tqi_metric_bucket_ns[bucket])
        bucket++;
    atomic_fetch_add_explicit(&histogram->cnt[bucket], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->sum_ns, duration_ns, memory_order_relaxed);
}

/* ---- text ---- */

/* name="value",... without braces; values lie one after the other in the series' key. */
static tq_status_t labels_render(tqi_buf_t *out, const char *labels, const char *value)
{
    while (*labels != '\0') {
        size_t name_len = strcspn(labels, ",");

        if (tqi_buf_printf(out, "%.*s=\"", (int)name_len, labels) != TQ_OK)
            return TQ_E_NO_MEMORY;
        for (; *value != '\0'; value++) {
            const char *escape = *value == '\\'   ? "\\\\"
                                 : *value == '"'  ? "\\\""
                                 : *value == '\n' ? "\\n"
                                                  : NULL;
            if (tqi_buf_append(out, escape != NULL ? escape : value, escape != NULL ? 2 : 1) !=
                TQ_OK)
                return TQ_E_NO_MEMORY;
        }
        value++;
        labels += name_len;
        if (*labels == ',')
            labels++;
        if (tqi_buf_printf(out, *labels != '\0' ? "\"," : "\"") != TQ_OK)
            return TQ_E_NO_MEMORY;
    }
    return TQ_OK;
}

/* The shortest text that reads back as the same double, with a point whatever the locale of the
 * program that we are in. */
static void double_format(char text[32], double value)
{
    snprintf(text, 32, "%.15g", value);
    if (strtod(text, NULL) != value)
        snprintf(text, 32, "%.17g", value);
    for (char *at = text; *at != '\0'; at++)
        if (strchr("0123456789+-e", *at) == NULL)
            *at = '.';
}

static tq_status_t double_render(tqi_buf_t *out, double value)
{
    char text[32];

    if (isnan(value))
        return tqi_buf_printf(out, "NaN");
    if (isinf(value))
        return tqi_buf_printf(out, value > 0 ? "+Inf" : "-Inf");
    double_format(text, value);
    return tqi_buf_printf(out, "%s", text);
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != TQ_OK)                                                                       \
            return TQ_E_NO_MEMORY;                                                                 \
    } while (0)

/* NAME{LABELS and more} followed by a space. */
static tq_status_t head_render(tqi_buf_t *out, const tqi_metric_desc_t *desc, const char *suffix,
                               const char *values, const char *more)
{
    bool has_labels = desc->labels[0] != '\0';

    TRY(tqi_buf_printf(out, "%s%s", desc->name, suffix));
    if (has_labels || more[0] != '\0') {
        TRY(tqi_buf_printf(out, "{"));
        TRY(labels_render(out, desc->labels, values));
        TRY(tqi_buf_printf(out, "%s%s}", has_labels && more[0] != '\0' ? "," : "", more));
    }
    return tqi_buf_printf(out, " ");
}

static tq_status_t histogram_render(tqi_buf_t *out, const tqi_metric_desc_t *desc,
                                    const char *values, tqi_histogram_t *histogram)
{
    uint64_t sum_ns = atomic_load_explicit(&histogram->sum_ns, memory_order_relaxed);
    uint64_t cumulative = 0;

    for (size_t i = 0; i <= TQI_METRIC_BUCKETS; i++) {
        char number[32] = "+Inf", end[48];

        if (i < TQI_METRIC_BUCKETS)
            double_format(number, (double)tqi_metric_bucket_ns[i] / 1e9);
        snprintf(end, sizeof end, "le=\"%s\"", number);
        cumulative += atomic_load_explicit(&histogram->cnt[i], memory_order_relaxed);
        TRY(head_render(out, desc, "_bucket", values, end));
        TRY(tqi_buf_printf(out, "%" PRIu64 "\n", cumulative));
    }
    TRY(head_render(out, desc, "_sum", values, ""));
    TRY(tqi_buf_printf(out, "%" PRIu64 ".%09" PRIu64 "\n", sum_ns / 1000000000u,
                       sum_ns % 1000000000u));
    TRY(head_render(out, desc, "_count", values, ""));
    return tqi_buf_printf(out, "%" PRIu64 "\n", cumulative);
}

static tq_status_t series_render(tqi_buf_t *out, const tqi_metric_desc_t *desc, const char *values,
                                 tqi_series_t *series)
{
    uint64_t bits = atomic_load_explicit(&series->value, memory_order_relaxed);
    double value;

    if (desc->kind == TQI_METRIC_HISTOGRAM)
        return histogram_render(out, desc, values, series->histogram);
    TRY(head_render(out, desc, "", values, ""));
    if (desc->kind == TQI_METRIC_COUNTER)
        return tqi_buf_printf(out, "%" PRIu64 "\n", bits);
    memcpy(&value, &bits, sizeof value);
    TRY(double_render(out, value));
    return tqi_buf_printf(out, "\n");
}

static tq_status_t metric_render(tqi_buf_t *out, const tqi_metric_desc_t *desc,
                                 const tqi_map_str_t *map)
{
    static const char *const kind_names[] = {"counter", "gauge", "histogram"};

    if (tqi_map_str_count(map) == 0)
        return TQ_OK;
    TRY(tqi_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", desc->name, desc->help, desc->name,
                       kind_names[desc->kind]));
    for (const tqi_map_str_item_t *item = tqi_map_str_first(map); item != NULL;
         item = tqi_map_str_next(item))
        TRY(series_render(out, desc, item->key, item->value));
    return TQ_OK;
}

tq_status_t tqi_metrics_render(tqi_metrics_t *metrics, tqi_buf_t *out)
{
    tqi_series_t *refused = tqi_metrics_series(metrics, TQI_M_SERIES_REFUSED, NULL);
    tq_status_t status = TQ_OK;

    atomic_store_explicit(&refused->value,
                          atomic_load_explicit(&metrics->refused, memory_order_relaxed),
                          memory_order_relaxed);
    pthread_mutex_lock(&metrics->lock);
    for (size_t i = 0; i < TQI_METRIC_CNT && status == TQ_OK; i++)
        status = metric_render(out, &tqi_metric_table[i], &metrics->series[i]);
    pthread_mutex_unlock(&metrics->lock);
    return status;
}
