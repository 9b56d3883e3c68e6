/* SPDX-License-Identifier: Apache-2.0 */
#include "api/advertise.h"

#include "unit.h"

#include <string.h>

static tqi_err_t err;
static char out[TQI_ADDRESS_MAX];

static tq_status_t advertise(const char *listens, const char *given, const char *towards)
{
    err = (tqi_err_t){0};
    out[0] = 0;
    return tqi_advertise(listens, given, towards, "unit.advertise", out, &err);
}

static void an_address_that_can_be_dialled_is_its_own(void **state)
{
    static const char *const same[] = {"tcp://10.1.2.3:7300", "tcp://[fe80::1%eth0]:1",
                                       "ipc:///run/x", "tcp://node-7:65535"};

    (void)state;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        assert_int_equal(advertise(same[i], NULL, NULL), TQ_OK);
        assert_string_equal(out, same[i]);
        assert_int_equal(advertise(same[i], "", "tcp://10.0.0.1:1"), TQ_OK);
        assert_string_equal(out, same[i]);
    }
}

static void what_is_given_keeps_the_real_port_unless_it_names_one(void **state)
{
    static const char *const cases[][3] = {
        {"tcp://0.0.0.0:41234", "10.0.0.7", "tcp://10.0.0.7:41234"},
        {"tcp://0.0.0.0:41234", "tcp://10.0.0.7", "tcp://10.0.0.7:41234"},
        {"tcp://0.0.0.0:41234", "node-7:*", "tcp://node-7:41234"},
        {"tcp://0.0.0.0:41234", "node-7:17300", "tcp://node-7:17300"},
        {"tcp://127.0.0.1:9", "gate:65535", "tcp://gate:65535"},
        {"tcp://[::]:41234", "[2001:db8::7]", "tcp://[2001:db8::7]:41234"},
        {"tcp://[::]:41234", "tcp://[2001:db8::7]:1", "tcp://[2001:db8::7]:1"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(advertise(cases[i][0], cases[i][1], NULL), TQ_OK);
        assert_string_equal(out, cases[i][2]);
    }
}

static void what_nobody_can_dial_is_refused_with_the_option(void **state)
{
    static const char *const bad[] = {"0.0.0.0", "*:7300",    "tcp://[::]:1", ":7300",   "a:0",
                                      "a:65536", "a:-1",      "a:7300x",      "ipc://x", "a b",
                                      "a,b",     "a:7300#12", "fe80::1",      "a:",      "a:+1"};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (advertise("tcp://0.0.0.0:41234", bad[i], NULL) != TQ_E_CONFIG)
            fail_msg("'%s' was taken as %s", bad[i], out);
        assert_non_null(strstr(err.text, "unit.advertise"));
    }
    assert_int_equal(advertise("ipc:///run/x", "10.0.0.7", NULL), TQ_E_CONFIG);
    assert_non_null(strstr(err.text, "ipc:///run/x"));
}

/* Which it is depends on the machine; that it can be dialled does not. */
static void a_wildcard_becomes_an_address_or_an_error_that_names_the_option(void **state)
{
    static const char *const wild[] = {"tcp://0.0.0.0:41234", "tcp://*:41234", "tcp://[::]:41234"};

    (void)state;
    for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
        assert_true(tqi_is_wildcard(wild[i]));
        tq_status_t rc = advertise(wild[i], NULL, "tcp://127.0.0.1:7300");
        if (rc == TQ_OK) {
            assert_false(tqi_is_wildcard(out));
            assert_string_equal(strrchr(out, ':'), ":41234");
        } else {
            assert_int_equal(rc, TQ_E_CONFIG);
            assert_non_null(strstr(err.text, "unit.advertise"));
        }
    }
    assert_false(tqi_is_wildcard("tcp://10.0.0.0:1"));
    assert_false(tqi_is_wildcard("ipc://*"));
    assert_false(tqi_is_wildcard(""));
}

static void the_host_of_an_address_is_what_stands_before_its_port(void **state)
{
    char host[TQI_ADDRESS_MAX];

    (void)state;
    assert_true(tqi_address_host("tcp://[::1]:80", host));
    assert_string_equal(host, "[::1]");
    assert_true(tqi_address_host("tcp://node-7:80", host));
    assert_string_equal(host, "node-7");
    assert_false(tqi_address_host("ipc:///tmp/x", host));
    assert_false(tqi_address_host("tcp://:80", host));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_that_can_be_dialled_is_its_own),
        cmocka_unit_test(what_is_given_keeps_the_real_port_unless_it_names_one),
        cmocka_unit_test(what_nobody_can_dial_is_refused_with_the_option),
        cmocka_unit_test(a_wildcard_becomes_an_address_or_an_error_that_names_the_option),
        cmocka_unit_test(the_host_of_an_address_is_what_stands_before_its_port),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
