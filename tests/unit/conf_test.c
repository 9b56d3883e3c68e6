/* SPDX-License-Identifier: Apache-2.0 */
#include "conf/conf.h"

#include "unit.h"

#include <string.h>
#include <unistd.h>

typedef struct conf_test {
    tqi_conf_t *conf;
    tqi_err_t err;
    char path[64]; /* of the last file written */
} conf_test_t;

static int setup(void **state)
{
    static conf_test_t t;

    t = (conf_test_t){0};
    assert_int_equal(tqi_conf_new(&t.conf, &t.err), TQ_OK);
    *state = &t;
    return 0;
}

static int teardown(void **state)
{
    conf_test_t *t = *state;

    tqi_conf_free(t->conf);
    if (t->path[0])
        unlink(t->path);
    return 0;
}

static tq_status_t set(conf_test_t *t, const char *name, const char *text)
{
    return tqi_conf_set(t->conf, name, text, TQI_CONF_FLAG, "here", &t->err);
}

static tq_status_t load(conf_test_t *t, const char *yaml)
{
    if (!t->path[0])
        snprintf(t->path, sizeof t->path, "/tmp/tq-conf-%ld.yaml", (long)getpid());
    FILE *file = fopen(t->path, "we");
    assert_non_null(file);
    fputs(yaml, file);
    assert_int_equal(fclose(file), 0);
    return tqi_conf_load_file(t->conf, t->path, &t->err);
}

static tq_status_t flag(conf_test_t *t, const char *arg, const char *next, int *used)
{
    return tqi_conf_load_flag(t->conf, arg, next, used, &t->err);
}

/* The sentence says all of it, in this order. */
static void assert_says(const conf_test_t *t, const char *text)
{
    if (!strstr(t->err.text, text))
        fail_msg("\"%s\" is not in \"%s\"", text, t->err.text);
}

/* The file and the line are in front of the sentence. */
static void assert_at_line(const conf_test_t *t, unsigned line)
{
    char place[96];

    snprintf(place, sizeof place, "%s:%u: ", t->path, line);
    assert_int_equal(strncmp(t->err.text, place, strlen(place)), 0);
}

/* ---- the table ------------------------------------------------------------------------------- */

static const char *const names[TQI_OPTIONS_CNT] = {
#define X(id, name, type, default_text, roles, doc) name,
#include "conf/options.def"
#undef X
};

static void
every_option_has_a_default_of_its_type_a_name_of_its_own_and_a_line_of_help(void **state)
{
    static const char *const docs[] = {
#define X(id, name, type, default_text, roles, doc) doc,
#include "conf/options.def"
#undef X
    };
    static const char *const roles[] = {
#define X(id, name, type, default_text, roles, doc) roles,
#include "conf/options.def"
#undef X
    };
    (void)state; /* setup has parsed every default */
    for (int i = 0; i < TQI_OPTIONS_CNT; i++) {
        assert_true(strlen(docs[i]) > 5 && strlen(docs[i]) < 160);
        assert_null(strpbrk(docs[i], "\n|"));
        assert_true(roles[i][0] != 0 && strspn(roles[i], "CUS") == strlen(roles[i]));
        assert_int_equal(strspn(names[i], "abcdefghijklmnopqrstuvwxyz_."), strlen(names[i]));
        /* "a.b_c" and "a_b.c" would be one environment variable. */
        for (int j = 0; j < i; j++) {
            char a[80], b[80];
            snprintf(a, sizeof a, "%s", names[i]);
            snprintf(b, sizeof b, "%s", names[j]);
            for (char *at = a; *at; at++)
                *at = *at == '.' ? '_' : *at;
            for (char *at = b; *at; at++)
                *at = *at == '.' ? '_' : *at;
            assert_string_not_equal(a, b);
        }
    }
}

static void options_of_one_section_stand_together(void **state)
{
    (void)state; /* or tqi_conf_print would open a mapping twice */
    for (int i = 1; i < TQI_OPTIONS_CNT; i++) {
        size_t len = strcspn(names[i], ".");
        if (names[i][len] == 0 || strncmp(names[i], names[i - 1], len + 1) == 0)
            continue;
        for (int j = 0; j < i; j++)
            assert_int_not_equal(strncmp(names[i], names[j], len + 1), 0);
    }
}

static void help_and_the_documentation_have_every_option(void **state)
{
    char *help = NULL, *table = NULL;
    size_t help_len = 0, table_len = 0;
    FILE *out = open_memstream(&help, &help_len);

    (void)state;
    tqi_conf_help(out);
    fclose(out);
    out = open_memstream(&table, &table_len);
    tqi_conf_markdown(out);
    fclose(out);
    for (int i = 0; i < TQI_OPTIONS_CNT; i++) {
        char flag_text[80] = "  --";
        char *at = flag_text + 4;
        for (const char *name = names[i]; *name; name++)
            *at++ = *name == '.' || *name == '_' ? '-' : *name;
        *at = ' ';
        assert_non_null(strstr(help, flag_text));
        snprintf(flag_text, sizeof flag_text, "| `%s` | `TQ_", names[i]);
        assert_non_null(strstr(table, flag_text));
    }
    free(help);
    free(table);
}

/* ---- values ---------------------------------------------------------------------------------- */

static void bytes_and_times_take_suffixes(void **state)
{
    static const struct {
        const char *name, *text;
        tqi_option_t option;
        uint64_t number;
    } cases[] = {
        {"unit.capacity", "0", TQI_OPTION_UNIT_CAPACITY, 0},
        {"unit.capacity", "17", TQI_OPTION_UNIT_CAPACITY, 17},
        {"unit.capacity", "17 B", TQI_OPTION_UNIT_CAPACITY, 17},
        {"unit.capacity", "4K", TQI_OPTION_UNIT_CAPACITY, 4096},
        {"unit.capacity", "4 KiB", TQI_OPTION_UNIT_CAPACITY, 4096},
        {"unit.capacity", "4kB", TQI_OPTION_UNIT_CAPACITY, 4000},
        {"unit.capacity", "3MiB", TQI_OPTION_UNIT_CAPACITY, 3u << 20},
        {"unit.capacity", "3MB", TQI_OPTION_UNIT_CAPACITY, 3000000},
        {"unit.capacity", "2GiB", TQI_OPTION_UNIT_CAPACITY, UINT64_C(2) << 30},
        {"unit.capacity", "2GB", TQI_OPTION_UNIT_CAPACITY, 2000000000},
        {"unit.capacity", "1T", TQI_OPTION_UNIT_CAPACITY, UINT64_C(1) << 40},
        {"unit.lease", "250", TQI_OPTION_UNIT_LEASE, 250},
        {"unit.lease", "250ms", TQI_OPTION_UNIT_LEASE, 250},
        {"unit.lease", "5s", TQI_OPTION_UNIT_LEASE, 5000},
        {"unit.lease", "2m", TQI_OPTION_UNIT_LEASE, 120000},
        {"unit.lease", "1h", TQI_OPTION_UNIT_LEASE, 3600000},
        {"store.units", "4294967295", TQI_OPTION_STORE_UNITS, UINT32_MAX},
        {"unit.column_reserve", "50", TQI_OPTION_UNIT_COLUMN_RESERVE, 50},
    };
    conf_test_t *t = *state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(set(t, cases[i].name, cases[i].text), TQ_OK);
        assert_int_equal(tqi_conf_number(t->conf, cases[i].option), cases[i].number);
        assert_string_equal(tqi_conf_text(t->conf, cases[i].option), cases[i].text);
    }
}

static void what_is_no_value_of_the_type_is_refused_and_changes_nothing(void **state)
{
    static const struct {
        const char *name, *text, *says;
    } cases[] = {
        {"unit.capacity", "", "bytes"},
        {"unit.capacity", "-1", "bytes"},
        {"unit.capacity", "1.5G", "bytes"},
        {"unit.capacity", "four", "bytes"},
        {"unit.capacity", "4 kib", "bytes"},
        {"unit.capacity", "0x10", "bytes"},
        {"unit.capacity", "9223372036854775808", "bytes"},
        {"unit.capacity", "99999999999999999999999", "bytes"},
        {"unit.capacity", "9999999TiB", "bytes"},
        {"unit.lease", "5 days", "a time"},
        {"unit.lease", "4294967296", "a time"},
        {"unit.lease", "9999999h", "a time"},
        {"store.units", "2K", "a number"},
        {"store.units", "4294967296", "a number"},
        {"unit.column_reserve", "51", "a percentage"},
        {"unit.column_reserve", "10%", "a percentage"},
    };
    conf_test_t *t = *state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(set(t, cases[i].name, cases[i].text), TQ_E_CONFIG);
        assert_says(t, "here: ");
        assert_says(t, cases[i].name);
        assert_says(t, cases[i].says);
    }
    assert_int_equal(tqi_conf_number(t->conf, TQI_OPTION_UNIT_CAPACITY), 0);
    assert_int_equal(tqi_conf_number(t->conf, TQI_OPTION_UNIT_LEASE), 30000);
    assert_int_equal(tqi_conf_source(t->conf, TQI_OPTION_UNIT_LEASE), TQI_CONF_DEFAULT);
}

static void an_unknown_name_is_told_with_the_nearest_one(void **state)
{
    static const struct {
        const char *name, *nearest;
    } cases[] = {
        {"unit.capasity", "'unit.capacity'"},
        {"capacity", "'unit.capacity'"},
        {"roles", "'role'"},
        {"units", "'store.units'"},
        {"security.secret_key", "'security.secret_key_file'"},
        {"controller.sampler_groupby", "'controller.sampler_group_by'"},
    };
    conf_test_t *t = *state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(set(t, cases[i].name, "1"), TQ_E_CONFIG);
        assert_says(t, cases[i].name);
        assert_says(t, cases[i].nearest);
    }
    char longest[300];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(set(t, longest, "1"), TQ_E_CONFIG);
    assert_int_equal(set(t, "", "1"), TQ_E_CONFIG);
}

static void a_name_of_a_choice_is_checked_where_it_is_written(void **state)
{
    conf_test_t *t = *state;

    assert_int_equal(set(t, "role", "unit"), TQ_OK);
    assert_int_equal(set(t, "role", "master"), TQ_E_CONFIG);
    assert_says(t, "here: role: 'master' is not store, controller or unit");
    assert_int_equal(set(t, "log.level", "debug"), TQ_OK);
    assert_int_equal(set(t, "log.level", "loud"), TQ_E_CONFIG);
    assert_says(t, "off, error, warn, info or debug");
}

/* ---- precedence ------------------------------------------------------------------------------ */

static void the_command_line_beats_the_environment_beats_the_file(void **state)
{
    conf_test_t *t = *state;
    int used;

    assert_int_equal(setenv("TQ_UNIT_LEASE", "2s", 1), 0);
    assert_int_equal(setenv("TQ_STORE_UNITS", "5", 1), 0);
    assert_int_equal(setenv("TQ_SOMETHING_ELSE", "x", 1), 0);
    assert_int_equal(flag(t, "--unit-lease", "3s", &used), TQ_OK);
    assert_int_equal(load(t, "unit:\n  lease: 1s\nstore:\n  units: 4\nlog:\n  level: warn\n"),
                     TQ_OK);
    assert_int_equal(tqi_conf_load_environment(t->conf, &t->err), TQ_OK);
    unsetenv("TQ_UNIT_LEASE");
    unsetenv("TQ_STORE_UNITS");
    unsetenv("TQ_SOMETHING_ELSE");
    assert_int_equal(tqi_conf_number(t->conf, TQI_OPTION_UNIT_LEASE), 3000);
    assert_int_equal(tqi_conf_source(t->conf, TQI_OPTION_UNIT_LEASE), TQI_CONF_FLAG);
    assert_int_equal(tqi_conf_number(t->conf, TQI_OPTION_STORE_UNITS), 5);
    assert_int_equal(tqi_conf_source(t->conf, TQI_OPTION_STORE_UNITS), TQI_CONF_ENVIRONMENT);
    assert_string_equal(tqi_conf_text(t->conf, TQI_OPTION_LOG_LEVEL), "warn");
    assert_int_equal(tqi_conf_source(t->conf, TQI_OPTION_LOG_LEVEL), TQI_CONF_FILE);
    assert_int_equal(tqi_conf_source(t->conf, TQI_OPTION_ROLE), TQI_CONF_DEFAULT);
}

static void a_bad_value_of_the_environment_names_its_variable(void **state)
{
    conf_test_t *t = *state;

    assert_int_equal(setenv("TQ_UNIT_CAPACITY", "lots", 1), 0);
    assert_int_equal(tqi_conf_load_environment(t->conf, &t->err), TQ_E_CONFIG);
    unsetenv("TQ_UNIT_CAPACITY");
    assert_says(t, "TQ_UNIT_CAPACITY: unit.capacity: 'lots' is not bytes");
}

static void flags_take_their_value_after_an_equals_sign_or_as_the_next_argument(void **state)
{
    conf_test_t *t = *state;
    int used;

    assert_int_equal(flag(t, "--controller-sampler-group=8", NULL, &used), TQ_OK);
    assert_int_equal(used, 1);
    assert_int_equal(tqi_conf_number(t->conf, TQI_OPTION_CONTROLLER_SAMPLER_GROUP), 8);
    assert_int_equal(flag(t, "--role", "unit", &used), TQ_OK);
    assert_int_equal(used, 2);
    assert_int_equal(flag(t, "--controller-sampler-group-by=", NULL, &used), TQ_OK);
    assert_string_equal(tqi_conf_text(t->conf, TQI_OPTION_CONTROLLER_SAMPLER_GROUP_BY), "");
    assert_int_equal(flag(t, "--role", NULL, &used), TQ_E_CONFIG);
    assert_says(t, "--role needs a value");
    assert_int_equal(flag(t, "--rol=unit", NULL, &used), TQ_OK); /* a prefix is not the option */
    assert_int_equal(used, 0);
    assert_int_equal(flag(t, "--unit.capacity", "1", &used), TQ_OK);
    assert_int_equal(used, 0);
}

/* ---- YAML ------------------------------------------------------------------------------------ */

static void lists_are_sequences_or_texts_with_commas(void **state)
{
    conf_test_t *t = *state;

    assert_int_equal(load(t, "controller:\n  listen:\n    - ipc:///tmp/a\n"
                             "    - \"tcp://[::1]:7300\"\nrole: controller\n"),
                     TQ_OK);
    assert_string_equal(tqi_conf_text(t->conf, TQI_OPTION_CONTROLLER_LISTEN),
                        "ipc:///tmp/a,tcp://[::1]:7300");
    assert_string_equal(tqi_conf_text(t->conf, TQI_OPTION_ROLE), "controller");
    assert_int_equal(load(t, "controller: {listen: 'ipc:///tmp/a,ipc:///tmp/b'}\n"), TQ_OK);
    assert_string_equal(tqi_conf_text(t->conf, TQI_OPTION_CONTROLLER_LISTEN),
                        "ipc:///tmp/a,ipc:///tmp/b");
    assert_int_equal(load(t, ""), TQ_OK);
    assert_int_equal(load(t, "# nothing but a comment\n"), TQ_OK);
    assert_int_equal(load(t, "unit.lease: 1s\n"), TQ_OK); /* a dotted name is a name */
    assert_int_equal(tqi_conf_number(t->conf, TQI_OPTION_UNIT_LEASE), 1000);
}

static void what_is_wrong_in_a_file_is_told_with_its_line(void **state)
{
    static const struct {
        const char *yaml;
        unsigned line;
        const char *says;
    } cases[] = {
        {"role: store\nunit:\n  capasity: 1G\n", 3, "'unit.capacity'"},
        {"role: store\n\nunit:\n  capacity: [1G, 2G]\n", 4, "unit.capacity: '1G,2G' is not bytes"},
        {"role: store\nlease: {unit: 1s}\n", 2, "no option 'lease.unit'"},
        {"store:\n  units: many\n", 2, "'many' is not a number"},
        {"- role\n- store\n", 1, "a list is not expected here"},
        {"role\n", 1, "expected a mapping of options"},
        {"role: [store, [unit]]\n", 1, "role: a list is not expected here"},
        {"controller:\n  listen:\n    - a: b\n", 3, "a mapping is not expected here"},
        {"controller:\n  listen: ['a,b']\n", 2, "an item of a list has a comma"},
        {"a: &x 1\nrole: *x\n", 1, "no option 'a'"},
        {"role: &x store\nlog:\n  level: *x\n", 3, "aliases are not supported"},
        {"role: 'store\n", 2, "not YAML"},
        {"role: store\n\tlog: 1\n", 2, "not YAML"},
        {"role: \"st\\0re\"\n", 1, "a value has a zero byte"},
        {"role: \"\\xff\n", 2, "not YAML"},
        {"a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}\n", 1, "a mapping is not expected here"},
        {"? [role]\n: store\n", 1, "a list is not expected here"},
        {"role: store\n---\nrole: unit\n", 2, "one document"},
    };
    conf_test_t *t = *state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(load(t, cases[i].yaml), TQ_E_CONFIG);
        assert_at_line(t, cases[i].line);
        assert_says(t, cases[i].says);
    }
}

static void names_and_lists_of_any_length_are_refused_or_fit(void **state)
{
    conf_test_t *t = *state;
    char yaml[8192];

    int len = snprintf(yaml, sizeof yaml, "%0400d: 1\n", 0);
    assert_in_range(len, 400, 500);
    assert_int_equal(load(t, yaml), TQ_E_CONFIG);
    assert_says(t, "a name is too long");
    len = snprintf(yaml, sizeof yaml, "controller:\n  listen:\n");
    for (int i = 0; i < 60; i++)
        len += snprintf(yaml + len, sizeof yaml - (size_t)len, "    - %0100d\n", i);
    assert_int_equal(load(t, yaml), TQ_E_CONFIG);
    assert_says(t, "the list is too long");
}

static void a_file_that_is_not_there_is_named(void **state)
{
    conf_test_t *t = *state;

    assert_int_equal(tqi_conf_load_file(t->conf, "/nonexistent/tq.yaml", &t->err), TQ_E_CONFIG);
    assert_says(t, "cannot read /nonexistent/tq.yaml: No such file");
    assert_int_equal(tqi_conf_load_file(t->conf, "/", &t->err), TQ_E_CONFIG);
    assert_says(t, "/");
}

static void what_is_printed_is_read_back_as_it_was(void **state)
{
    conf_test_t *t = *state;
    tqi_conf_t *again;
    char *text = NULL;
    size_t len = 0;

    assert_int_equal(set(t, "role", "unit"), TQ_OK);
    assert_int_equal(set(t, "unit.capacity", "4 GiB"), TQ_OK);
    assert_int_equal(set(t, "controller.listen", "ipc:///tmp/it's: a #1,tcp://*:1"), TQ_OK);
    assert_int_equal(set(t, "controller.sampler_group_by", " \"prompt\" "), TQ_OK);
    FILE *out = open_memstream(&text, &len);
    tqi_conf_print(t->conf, out);
    fclose(out);
    conf_test_t other = *t;
    assert_int_equal(tqi_conf_new(&again, &other.err), TQ_OK);
    other.conf = again;
    assert_int_equal(load(&other, text), TQ_OK);
    for (int i = 0; i < TQI_OPTIONS_CNT; i++) {
        assert_string_equal(tqi_conf_text(again, (tqi_option_t)i),
                            tqi_conf_text(t->conf, (tqi_option_t)i));
        assert_int_equal(tqi_conf_number(again, (tqi_option_t)i),
                         tqi_conf_number(t->conf, (tqi_option_t)i));
    }
    snprintf(t->path, sizeof t->path, "%s", other.path);
    tqi_conf_free(again);
    free(text);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(every_option_has_a_default_of_its_type_a_name_of_its_own_and_a_line_of_help),
        T(options_of_one_section_stand_together),
        T(help_and_the_documentation_have_every_option),
        T(bytes_and_times_take_suffixes),
        T(what_is_no_value_of_the_type_is_refused_and_changes_nothing),
        T(an_unknown_name_is_told_with_the_nearest_one),
        T(a_name_of_a_choice_is_checked_where_it_is_written),
        T(the_command_line_beats_the_environment_beats_the_file),
        T(a_bad_value_of_the_environment_names_its_variable),
        T(flags_take_their_value_after_an_equals_sign_or_as_the_next_argument),
        T(lists_are_sequences_or_texts_with_commas),
        T(what_is_wrong_in_a_file_is_told_with_its_line),
        T(names_and_lists_of_any_length_are_refused_or_fit),
        T(a_file_that_is_not_there_is_named),
        T(what_is_printed_is_read_back_as_it_was),
    };
#undef T
    return cmocka_run_group_tests(tests, NULL, NULL);
}
