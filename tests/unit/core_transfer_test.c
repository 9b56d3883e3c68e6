/* SPDX-License-Identifier: Apache-2.0 */
#include "core/transfer.h"

#include "unit.h"

#include <string.h>

/* Every state that can be reached from PARKED, by any events. */
static uint32_t reachable(tqi_transfer_kind_t kind)
{
    uint32_t seen = 1u << TQI_TRANSFER_PARKED;

    for (int round = 0; round < TQI_TRANSFER_STATE_CNT; round++)
        for (int s = 0; s < TQI_TRANSFER_STATE_CNT; s++)
            for (int e = 0; e < TQI_TRANSFER_EVENT_CNT; e++) {
                tqi_transfer_counts_t counts = {0};
                tqi_transfer_t t = {.kind = kind, .counts = &counts};

                t.state = (tqi_transfer_state_t)s;
                counts.now[s] = 1;
                if ((seen >> s & 1) && tqi_transfer_apply(&t, (tqi_transfer_event_t)e))
                    seen |= 1u << t.state;
            }
    return seen;
}

static bool can(tqi_transfer_kind_t kind, int state, tqi_transfer_event_t event)
{
    tqi_transfer_t t = {.kind = kind, .state = (tqi_transfer_state_t)state};

    return tqi_transfer_can(&t, event);
}

static void every_transfer_can_end(void **state)
{
    (void)state;
    for (int k = 0; k < TQI_TRANSFER_KINDS; k++) {
        tqi_transfer_kind_t kind = (tqi_transfer_kind_t)k;
        uint32_t seen = reachable(kind);

        assert_true(seen >> TQI_TRANSFER_DONE & 1);
        for (int s = 0; s < TQI_TRANSFER_DONE; s++) {
            if (!(seen >> s & 1))
                continue;
            bool is_get = kind == TQI_GET_STREAM || kind == TQI_GET_DIRECT;

            /* The end of its session ends it, unless the port must speak first. A GET is never
             * parked. */
            if (s == TQI_TRANSFER_DROPPING) {
                assert_true(can(kind, s, TQI_TRANSFER_EV_LANDED));
                assert_true(can(kind, s, TQI_TRANSFER_EV_FAILED));
            } else if (!(is_get && s == TQI_TRANSFER_PARKED)) {
                assert_true(can(kind, s, TQI_TRANSFER_EV_END));
            }
        }
        for (int e = 0; e < TQI_TRANSFER_EVENT_CNT; e++)
            assert_false(can(kind, TQI_TRANSFER_DONE, (tqi_transfer_event_t)e));
    }
}

static void what_a_writer_may_touch_is_not_given_up_in_one_step(void **state)
{
    (void)state;
    /* A streamed PUT's memory is the port's from READY to its word; a direct one's the client's
     * until it says so, or its session ends. */
    for (int e = 0; e < TQI_TRANSFER_EVENT_CNT; e++) {
        tqi_transfer_counts_t counts = {0};
        tqi_transfer_t t = {.kind = TQI_PUT_STREAM, .state = TQI_TRANSFER_OPEN, .counts = &counts};

        counts.now[TQI_TRANSFER_OPEN] = 1;
        if (tqi_transfer_apply(&t, (tqi_transfer_event_t)e) && e != TQI_TRANSFER_EV_LANDED &&
            e != TQI_TRANSFER_EV_FAILED)
            assert_int_equal(tqi_transfer_phase(&t), TQI_PHASE_POSTED);
    }
    tqi_transfer_counts_t counts = {0};
    tqi_transfer_t t = {.kind = TQI_PUT_DIRECT, .state = TQI_TRANSFER_OPEN, .counts = &counts};
    counts.now[TQI_TRANSFER_OPEN] = 1;
    assert_true(tqi_transfer_apply(&t, TQI_TRANSFER_EV_EXPIRE));
    assert_int_equal(t.state, TQI_TRANSFER_HELD);
    assert_int_equal(tqi_transfer_phase(&t), TQI_PHASE_POSTED);
    assert_false(tqi_transfer_can(&t, TQI_TRANSFER_EV_COMMIT));
}

static void a_commit_is_not_cancelled(void **state)
{
    (void)state;
    assert_false(can(TQI_PUT_STREAM, TQI_TRANSFER_COMMITTED, TQI_TRANSFER_EV_CANCEL));
    assert_true(can(TQI_PUT_STREAM, TQI_TRANSFER_COMMITTED, TQI_TRANSFER_EV_ABORT));
}

static void an_illegal_event_changes_nothing(void **state)
{
    tqi_transfer_counts_t counts = {0};
    tqi_transfer_t t;
    (void)state;
    tqi_transfer_init(&t, 9, TQI_PUT_STREAM, &counts);
    assert_int_equal(counts.now[TQI_TRANSFER_PARKED], 1);
    assert_false(tqi_transfer_apply(&t, TQI_TRANSFER_EV_COMMIT));
    assert_int_equal(t.state, TQI_TRANSFER_PARKED);
    assert_true(tqi_transfer_apply(&t, TQI_TRANSFER_EV_GRANT));
    assert_true(tqi_transfer_apply(&t, TQI_TRANSFER_EV_LANDED));
    assert_int_equal(t.state, TQI_TRANSFER_ARRIVED);
    assert_true(tqi_transfer_apply(&t, TQI_TRANSFER_EV_COMMIT));
    assert_int_equal(t.state, TQI_TRANSFER_DONE);
    assert_int_equal(counts.now[TQI_TRANSFER_ARRIVED], 0);
    assert_int_equal(counts.entered[TQI_TRANSFER_ARRIVED], 1);
    tqi_transfer_fini(&t);
    assert_int_equal(counts.now[TQI_TRANSFER_DONE], 0);
    assert_string_equal(tqi_transfer_state_name(TQI_TRANSFER_HELD), "HELD");
    assert_string_equal(tqi_transfer_kind_name(TQI_GET_DIRECT), "GET_DIRECT");
}

static void a_phase_says_who_may_still_touch_the_memory(void **state)
{
    static const struct {
        tqi_transfer_kind_t kind;
        tqi_transfer_state_t state;
        tqi_transfer_phase_t phase;
    } cases[] = {
        {TQI_PUT_STREAM, TQI_TRANSFER_PARKED, TQI_PHASE_BEFORE},
        {TQI_PUT_STREAM, TQI_TRANSFER_OPEN, TQI_PHASE_POSTED},
        {TQI_PUT_DIRECT, TQI_TRANSFER_OPEN, TQI_PHASE_POSTED},
        {TQI_GET_STREAM, TQI_TRANSFER_OPEN, TQI_PHASE_BEFORE},
        {TQI_GET_DIRECT, TQI_TRANSFER_OPEN, TQI_PHASE_BEFORE},
        {TQI_PUT_STREAM, TQI_TRANSFER_COMMITTED, TQI_PHASE_POSTED},
        {TQI_PUT_STREAM, TQI_TRANSFER_DROPPING, TQI_PHASE_POSTED},
        {TQI_GET_DIRECT, TQI_TRANSFER_HELD, TQI_PHASE_POSTED},
        {TQI_PUT_STREAM, TQI_TRANSFER_ARRIVED, TQI_PHASE_CONFIRMED},
        {TQI_PUT_STREAM, TQI_TRANSFER_DONE, TQI_PHASE_CONFIRMED},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tqi_transfer_t t = {.kind = cases[i].kind, .state = cases[i].state};

        assert_int_equal(tqi_transfer_phase(&t), cases[i].phase);
    }
}

static void what_is_no_kind_and_no_state_has_no_name(void **state)
{
    (void)state;
    assert_string_equal(tqi_transfer_kind_name((tqi_transfer_kind_t)TQI_TRANSFER_KINDS), "?");
    assert_string_equal(tqi_transfer_state_name((tqi_transfer_state_t)1000), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_transfer_can_end),
        cmocka_unit_test(what_a_writer_may_touch_is_not_given_up_in_one_step),
        cmocka_unit_test(a_commit_is_not_cancelled),
        cmocka_unit_test(an_illegal_event_changes_nothing),
        cmocka_unit_test(a_phase_says_who_may_still_touch_the_memory),
        cmocka_unit_test(what_is_no_kind_and_no_state_has_no_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
