/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/metrics.h"

#include "sys/env_malloc.h"
#include "sys/thread.h"
#include "unit.h"

#include <math.h>
#include <string.h>

static char *rendered(tqi_metrics_t *metrics, tqi_buf_t *buf)
{
    tqi_buf_init(buf, tqi_env_malloc());
    assert_int_equal(tqi_metrics_render(metrics, buf), TQ_OK);
    assert_int_equal(tqi_buf_append(buf, "", 1), TQ_OK);
    return (char *)buf->data;
}

/* The whole line must be there. */
static void assert_line(const char *text, const char *line)
{
    const char *at = text;
    size_t len = strlen(line);

    while ((at = strstr(at, line)) != NULL) {
        if ((at == text || at[-1] == '\n') && at[len] == '\n')
            return;
        at++;
    }
    fail_msg("no line '%s' in:\n%s", line, text);
}

static void names_are_given_once_and_are_names(void **state)
{
    (void)state;
    for (size_t i = 0; i < TQI_METRIC_CNT; i++) {
        const tqi_metric_desc_t *desc = &tqi_metric_table[i];

        assert_int_equal(strncmp(desc->name, "tq_", 3), 0);
        assert_int_equal(strspn(desc->name, "abcdefghijklmnopqrstuvwxyz_0123456789"),
                         strlen(desc->name));
        assert_true(strlen(desc->help) > 0 && strpbrk(desc->help, "\\\n") == NULL);
        if (desc->kind == TQI_METRIC_COUNTER)
            assert_string_equal(desc->name + strlen(desc->name) - 6, "_total");
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(desc->name, tqi_metric_table[k].name);
    }
    for (size_t i = 1; i < TQI_METRIC_BUCKETS; i++)
        assert_true(tqi_metric_bucket_ns[i - 1] < tqi_metric_bucket_ns[i]);
}

static void counters_and_gauges_are_shown_with_their_labels(void **state)
{
    tqi_metrics_t *metrics = tqi_metrics_new();
    tqi_buf_t buf;

    (void)state;
    tqi_series_t *fetches =
        tqi_metrics_series(metrics, TQI_M_CONTROLLER_REQUEST, (const char *[]){"FETCH"});
    tqi_series_add(fetches, 3);
    tqi_series_add(fetches, UINT64_C(1) << 60);
    assert_ptr_equal(
        tqi_metrics_series(metrics, TQI_M_CONTROLLER_REQUEST, (const char *[]){"FETCH"}), fetches);
    tqi_series_set(tqi_metrics_series(metrics, TQI_M_PARTITIONS, NULL), 0.1);
    tqi_series_set(tqi_metrics_series(metrics, TQI_M_PARTITION_CONSUMPTION,
                                      (const char *[]){"train \"a\\b\"\n", "task"}),
                   1.0 / 3);
    tqi_series_set(tqi_metrics_series(metrics, TQI_M_CONTROLLER_UPTIME, NULL), NAN);
    char *text = rendered(metrics, &buf);
    assert_line(text, "# TYPE tq_controller_request_total counter");
    assert_line(text, "# HELP tq_controller_request_total Requests executed.");
    assert_line(text, "tq_controller_request_total{op_type=\"FETCH\"} 1152921504606846979");
    assert_line(text, "tq_partitions_total 0.1");
    assert_line(text, "tq_partition_consumption_progress{partition_id=\"train \\\"a\\\\b\\\"\\n\","
                      "task_name=\"task\"} 0.33333333333333331");
    assert_line(text, "tq_controller_uptime_seconds NaN");
    assert_line(text, "tq_metrics_series_refused_total 0");
    assert_null(strstr(text, "tq_storage_capacity_total")); /* nobody counted it */
    tqi_buf_fini(&buf);
    tqi_metrics_free(metrics);
}

static void label_values_do_not_run_together(void **state)
{
    tqi_metrics_t *metrics = tqi_metrics_new();

    (void)state;
    assert_ptr_not_equal(
        tqi_metrics_series(metrics, TQI_M_PARTITION_CONSUMPTION, (const char *[]){"ab", "c"}),
        tqi_metrics_series(metrics, TQI_M_PARTITION_CONSUMPTION, (const char *[]){"a", "bc"}));
    tqi_metrics_free(metrics);
}

static void a_histogram_is_cumulative_and_in_seconds(void **state)
{
    tqi_metrics_t *metrics = tqi_metrics_new();
    tqi_buf_t buf;

    (void)state;
    tqi_series_t *series =
        tqi_metrics_series(metrics, TQI_M_LOOP_LAG, (const char *[]){"controller"});
    tqi_series_observe_ns(series, 0);
    tqi_series_observe_ns(series, 10000);
    tqi_series_observe_ns(series, 10001);
    tqi_series_observe_ns(series, 2500000);
    tqi_series_observe_ns(series, 60000000000);
    char *text = rendered(metrics, &buf);
    assert_line(text, "# TYPE tq_loop_lag_seconds histogram");
    assert_line(text, "tq_loop_lag_seconds_bucket{role=\"controller\",le=\"1e-05\"} 2");
    assert_line(text, "tq_loop_lag_seconds_bucket{role=\"controller\",le=\"2.5e-05\"} 3");
    assert_line(text, "tq_loop_lag_seconds_bucket{role=\"controller\",le=\"0.001\"} 3");
    assert_line(text, "tq_loop_lag_seconds_bucket{role=\"controller\",le=\"0.0025\"} 4");
    assert_line(text, "tq_loop_lag_seconds_bucket{role=\"controller\",le=\"5\"} 4");
    assert_line(text, "tq_loop_lag_seconds_bucket{role=\"controller\",le=\"+Inf\"} 5");
    assert_line(text, "tq_loop_lag_seconds_sum{role=\"controller\"} 60.002520001");
    assert_line(text, "tq_loop_lag_seconds_count{role=\"controller\"} 5");
    tqi_buf_fini(&buf);
    tqi_metrics_free(metrics);
}

static void a_series_that_was_removed_is_not_shown_and_begins_again(void **state)
{
    tqi_metrics_t *metrics = tqi_metrics_new();
    const char *const gone[] = {"gone"};
    tqi_buf_t buf;

    (void)state;
    tqi_series_set(tqi_metrics_series(metrics, TQI_M_PARTITION_SAMPLES, gone), 5);
    tqi_metrics_remove(metrics, TQI_M_PARTITION_SAMPLES, gone);
    tqi_metrics_remove(metrics, TQI_M_PARTITION_SAMPLES, gone);
    assert_null(strstr(rendered(metrics, &buf), "gone"));
    tqi_buf_fini(&buf);
    tqi_metrics_series(metrics, TQI_M_PARTITION_SAMPLES, gone);
    assert_line(rendered(metrics, &buf), "tq_partition_samples_total{partition_id=\"gone\"} 0");
    tqi_buf_fini(&buf);
    tqi_metrics_free(metrics);
}

static void labels_without_end_meet_a_bound_and_are_counted(void **state)
{
    tqi_metrics_t *metrics = tqi_metrics_new();
    char name[32];
    tqi_buf_t buf;

    (void)state;
    for (unsigned i = 0; i < TQI_METRIC_SERIES_MAX + 5; i++) {
        snprintf(name, sizeof name, "p%u", i);
        tqi_series_set(tqi_metrics_series(metrics, TQI_M_PARTITION_SAMPLES, (const char *[]){name}),
                       i);
    }
    char *text = rendered(metrics, &buf);
    assert_line(text, "tq_partition_samples_total{partition_id=\"p4095\"} 4095");
    assert_null(strstr(text, "p4096"));
    assert_line(text, "tq_metrics_series_refused_total 5");
    tqi_buf_fini(&buf);
    tqi_metrics_free(metrics);
}

enum { COUNTS = 20000, COUNTERS = 3 };

static void count_up(tqi_thread_t *thread, void *arg)
{
    (void)thread;
    for (int i = 0; i < COUNTS; i++)
        tqi_series_add(
            tqi_metrics_series(arg, TQI_M_CONTROLLER_REQUEST, (const char *[]){"PUBLISH"}), 1);
}

static void counts_of_several_threads_add_up(void **state)
{
    tqi_metrics_t *metrics = tqi_metrics_new();
    tqi_thread_t threads[COUNTERS];
    tqi_buf_t buf;

    (void)state;
    for (int i = 0; i < COUNTERS; i++)
        assert_int_equal(tqi_thread_start(&threads[i], "counter", count_up, metrics, NULL), TQ_OK);
    for (int i = 0; i < 20; i++) {
        rendered(metrics, &buf);
        tqi_buf_fini(&buf);
    }
    for (int i = 0; i < COUNTERS; i++)
        tqi_thread_join(&threads[i]);
    assert_line(rendered(metrics, &buf), "tq_controller_request_total{op_type=\"PUBLISH\"} 60000");
    tqi_buf_fini(&buf);
    tqi_metrics_free(metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_given_once_and_are_names),
        cmocka_unit_test(counters_and_gauges_are_shown_with_their_labels),
        cmocka_unit_test(label_values_do_not_run_together),
        cmocka_unit_test(a_histogram_is_cumulative_and_in_seconds),
        cmocka_unit_test(a_series_that_was_removed_is_not_shown_and_begins_again),
        cmocka_unit_test(labels_without_end_meet_a_bound_and_are_counted),
        cmocka_unit_test(counts_of_several_threads_add_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
