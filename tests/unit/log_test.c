/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/log.h"

#include "unit.h"

#include <string.h>
#include <unistd.h>

typedef struct record {
    int cnt;
    tqi_log_level_t level;
    char component[32];
    char text[TQI_LOG_LINE_MAX];
} record_t;

static void keep_record(void *ctx, tqi_log_level_t level, const char *component, const char *text)
{
    record_t *record = ctx;

    record->cnt++;
    record->level = level;
    snprintf(record->component, sizeof record->component, "%s", component);
    snprintf(record->text, sizeof record->text, "%s", text);
}

static int evaluate(int *cnt)
{
    return ++*cnt;
}

static void only_the_levels_that_are_on_reach_the_sink(void **state)
{
    record_t record = {.cnt = 0};
    const tqi_log_sink_t sink = {keep_record, &record};
    int evaluated = 0;

    (void)state;
    tqi_log_set_sink(&sink);
    assert_true(tqi_log_set_level_name("info"));
    assert_false(tqi_log_set_level_name("loud"));
    tqi_log_info("unit", "row %d", 7);
    assert_int_equal(record.cnt, 1);
    assert_int_equal(record.level, TQI_LOG_INFO);
    assert_string_equal(record.component, "unit");
    assert_string_equal(record.text, "row 7");
    tqi_log_debug("unit", "%d", evaluate(&evaluated));
    assert_int_equal(record.cnt, 1);
    assert_int_equal(evaluated, 0);
    tqi_log_set_level(TQI_LOG_OFF);
    tqi_log_error("unit", "nobody hears");
    assert_int_equal(record.cnt, 1);
    tqi_log_set_sink(NULL);
}

static void a_key_with_a_line_break_forges_no_line(void **state)
{
    record_t record = {.cnt = 0};
    const tqi_log_sink_t sink = {keep_record, &record};

    (void)state;
    tqi_log_set_sink(&sink);
    tqi_log_set_level(TQI_LOG_WARN);
    tqi_log_warn("unit", "key '%s'", "a\n2026 error\x1b[31m");
    assert_string_equal(record.text, "key 'a 2026 error [31m'");
    tqi_log_set_sink(NULL);
}

/* What stderr gets while `long_text` is logged, through a pipe in its place. */
static size_t logged_to_stderr(const char *text, char *out, size_t out_max)
{
    int ends[2];
    int kept = dup(STDERR_FILENO);

    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    tqi_log_set_level(TQI_LOG_WARN);
    tqi_log_warn("storage", "%s", text);
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(ends[1]);
    ssize_t len = read(ends[0], out, out_max - 1);
    close(ends[0]);
    assert_true(len > 0);
    out[len] = '\0';
    return (size_t)len;
}

static void a_record_is_one_line_with_time_level_and_component(void **state)
{
    char line[4096];
    int year, month, day, hour, minute, second, micros, end = 0;

    (void)state;
    logged_to_stderr("unit 3 is full", line, sizeof line);
    int fields = sscanf(line, "%4d-%2d-%2dT%2d:%2d:%2d.%6dZ%n", &year, &month, &day, &hour, &minute,
                        &second, &micros, &end);
    assert_int_equal(fields, 7);
    assert_string_equal(line + end, " warn   storage  unit 3 is full\n");
}

static void a_long_record_is_cut_and_still_ends_its_line(void **state)
{
    char text[3 * TQI_LOG_LINE_MAX], line[8192];

    (void)state;
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    size_t len = logged_to_stderr(text, line, sizeof line);
    assert_in_range(len, TQI_LOG_LINE_MAX, TQI_LOG_LINE_MAX + 128);
    assert_int_equal(line[len - 1], '\n');
    assert_ptr_equal(strchr(line, '\n'), line + len - 1);
}

static void a_limit_lets_one_in_an_interval_through_and_counts_the_rest(void **state)
{
    static tqi_log_limit_t limit;
    uint64_t suppressed = 99;

    (void)state;
    assert_true(tqi_log_limit_allow(&limit, 1000, 100, &suppressed));
    assert_int_equal(suppressed, 0);
    for (uint64_t now = 1000; now < 1100; now += 10)
        assert_false(tqi_log_limit_allow(&limit, now, 100, &suppressed));
    assert_true(tqi_log_limit_allow(&limit, 1100, 100, &suppressed));
    assert_int_equal(suppressed, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_levels_that_are_on_reach_the_sink),
        cmocka_unit_test(a_key_with_a_line_break_forges_no_line),
        cmocka_unit_test(a_record_is_one_line_with_time_level_and_component),
        cmocka_unit_test(a_long_record_is_cut_and_still_ends_its_line),
        cmocka_unit_test(a_limit_lets_one_in_an_interval_through_and_counts_the_rest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
