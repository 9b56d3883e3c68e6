/* SPDX-License-Identifier: Apache-2.0 */
#include "core/outcome.h"

#include "base/size.h"
#include "unit.h"
#include "wire/envelope.h"

#include <string.h>
#include <tq/types.h>

static void reply_for(tqi_buf_t *buf, const unit_env_t *e, uint64_t seq)
{
    tqi_buf_init(buf, &e->env);
    assert_int_equal(tqi_buf_printf(buf, "reply to %llu", (unsigned long long)seq), TQ_OK);
}

static void request_for(tqi_buf_t *buf, const unit_env_t *e, uint64_t seq)
{
    tqi_buf_init(buf, &e->env);
    assert_int_equal(tqi_buf_append(buf, &seq, sizeof seq), TQ_OK);
}

static void a_request_sent_again_gets_the_kept_reply(void **state)
{
    unit_env_t e;
    tqi_buf_t reply;
    const tqi_buf_t *kept;
    uint64_t missing[4], open[2] = {1, 2};

    (void)state;
    unit_env_init(&e);
    tqi_inbox_t *in = tqi_inbox_new(&e.env);
    assert_int_equal(tqi_inbox_admit(in, 1, &kept), TQI_ADMIT_NEW);
    assert_int_equal(tqi_inbox_admit(in, 1, &kept), TQI_ADMIT_PENDING);
    assert_int_equal(tqi_inbox_missing(in, (uint8_t *)open, 2, missing, 4), 1);
    assert_int_equal(missing[0], 2);
    reply_for(&reply, &e, 1);
    assert_int_equal(tqi_inbox_done(in, 1, &reply), TQ_OK);
    assert_int_equal(tqi_inbox_admit(in, 1, &kept), TQI_ADMIT_DONE);
    assert_memory_equal(kept->data, reply.data, reply.len);
    /* Its reply may be lost: the sender is told to ask again. */
    assert_int_equal(tqi_inbox_missing(in, (uint8_t *)open, 2, missing, 4), 2);
    tqi_inbox_ack(in, 1, NULL, 0, NULL, NULL);
    assert_int_equal(tqi_inbox_admit(in, 1, &kept), TQI_ADMIT_OLD);
    assert_int_equal(tqi_inbox_kept_bytes(in), 0);
    tqi_buf_fini(&reply);
    tqi_inbox_free(in);
    assert_int_equal(e.bytes, 0);
}

static void beyond_the_window_nothing_is_executed_or_remembered(void **state)
{
    unit_env_t e;
    const tqi_buf_t *kept;

    (void)state;
    unit_env_init(&e);
    tqi_inbox_t *in = tqi_inbox_new(&e.env);
    for (uint64_t seq = 1; seq <= TQ_OUTSTANDING_MAX; seq++)
        assert_int_equal(tqi_inbox_admit(in, seq, &kept), TQI_ADMIT_NEW);
    assert_int_equal(tqi_inbox_admit(in, 2000, &kept), TQI_ADMIT_BUSY);
    assert_int_equal(tqi_inbox_pending_cnt(in), TQ_OUTSTANDING_MAX);
    tqi_inbox_free(in);
    assert_int_equal(e.bytes, 0);
}

static void an_outcome_that_nobody_waits_for_any_more_is_dropped(void **state)
{
    unit_env_t e;
    tqi_buf_t reply;
    const tqi_buf_t *kept;

    (void)state;
    unit_env_init(&e);
    tqi_inbox_t *in = tqi_inbox_new(&e.env);
    assert_int_equal(tqi_inbox_admit(in, 5, &kept), TQI_ADMIT_NEW);
    tqi_inbox_ack(in, 9, NULL, 0, NULL, NULL);
    assert_true(tqi_inbox_is_acked(in, 5));
    assert_int_equal(tqi_inbox_admit(in, 5, &kept), TQI_ADMIT_PENDING);
    reply_for(&reply, &e, 5);
    assert_int_equal(tqi_inbox_done(in, 5, &reply), TQ_OK);
    assert_int_equal(tqi_inbox_admit(in, 5, &kept), TQI_ADMIT_OLD);
    tqi_buf_fini(&reply);
    tqi_inbox_free(in);
    assert_int_equal(e.bytes, 0);
}

static void an_outcome_that_finds_no_memory_is_asked_for_again(void **state)
{
    unit_env_t e;
    const tqi_buf_t *kept;
    tqi_buf_t reply;
    uint8_t open[8];
    uint64_t missing[1];

    (void)state;
    unit_env_init(&e);
    tqi_inbox_t *in = tqi_inbox_new(&e.env);
    reply_for(&reply, &e, 1);
    for (int is_acked = 0; is_acked < 2; is_acked++) {
        uint64_t seq = 1 + (uint64_t)is_acked;
        tqi_store_le64(open, seq);
        assert_int_equal(tqi_inbox_admit(in, seq, &kept), TQI_ADMIT_NEW);
        e.fail_after = 0;
        assert_int_equal(tqi_inbox_done(in, seq, &reply), TQ_E_NO_MEMORY);
        assert_int_equal(tqi_inbox_missing(in, open, 1, missing, 1), 0);
        tqi_inbox_late(in, seq, 7);
        assert_int_equal(tqi_inbox_pending_cnt(in), 0);
        assert_int_equal(tqi_inbox_missing(in, open, 1, missing, 1), 1);
        assert_int_equal(tqi_inbox_admit(in, seq, &kept), TQI_ADMIT_LATE);
        assert_int_equal(tqi_inbox_outcome(in, seq), 7);
        e.fail_after = UINT64_MAX;
        if (is_acked) { /* nobody waits for it any more */
            tqi_inbox_ack(in, seq, NULL, 0, NULL, NULL);
            assert_int_equal(tqi_inbox_admit(in, seq, &kept), TQI_ADMIT_OLD);
        } else {
            assert_int_equal(tqi_inbox_done(in, seq, &reply), TQ_OK);
            assert_int_equal(tqi_inbox_admit(in, seq, &kept), TQI_ADMIT_DONE);
        }
    }
    tqi_buf_fini(&reply);
    tqi_inbox_free(in);
    assert_int_equal(e.bytes, 0);
}

static void a_ping_names_all_that_is_open_other_frames_what_is_older_than_taken(void **state)
{
    unit_env_t e;
    uint64_t ack, open[TQ_OUTSTANDING_MAX];
    uint32_t cnt;
    int user;

    (void)state;
    unit_env_init(&e);
    tqi_outbox_t *out = tqi_outbox_new(&e.env);
    for (uint64_t seq = 1; seq <= 4; seq++)
        assert_int_equal(tqi_outbox_open(out, &user), seq);
    assert_ptr_equal(tqi_outbox_replied(out, 3), &user);
    assert_null(tqi_outbox_replied(out, 3));
    tqi_outbox_acks(out, false, &ack, open, &cnt);
    assert_int_equal(ack, 0);
    assert_int_equal(cnt, 0);
    tqi_outbox_take(out, 3);
    tqi_outbox_acks(out, false, &ack, open, &cnt);
    assert_int_equal(ack, 3);
    assert_int_equal(cnt, 2);
    assert_int_equal(open[1], 2);
    tqi_outbox_acks(out, true, &ack, open, &cnt);
    assert_int_equal(ack, 4);
    assert_int_equal(cnt, 3);
    tqi_outbox_free(out);
    assert_int_equal(e.bytes, 0);
}

static void a_request_that_is_withdrawn_can_be_asked_again_without_memory_for_it(void **state)
{
    unit_env_t e;
    tqi_buf_t frame, again;
    uint64_t ack, open[TQ_OUTSTANDING_MAX];
    uint32_t open_cnt;
    int user;

    (void)state;
    unit_env_init(&e);
    tqi_outbox_t *out = tqi_outbox_new(&e.env);
    assert_int_equal(tqi_outbox_open(out, &user), 1);
    request_for(&frame, &e, 1);
    tqi_outbox_keep(out, 1, &frame);
    tqi_buf_init(&again, &e.env);
    e.fail_after = 0;
    tqi_outbox_withdraw(out, 1, &again);
    assert_int_equal(again.len, sizeof(uint64_t));
    assert_null(tqi_outbox_user(out, 1));
    assert_int_equal(tqi_outbox_cnt(out), 0);
    tqi_outbox_acks(out, false, &ack, open, &open_cnt);
    assert_int_equal(ack, 1); /* nobody will ask about it again */
    e.fail_after = UINT64_MAX;
    assert_int_equal(tqi_outbox_open(out, &user), 2);
    tqi_outbox_keep(out, 2, &again);
    assert_non_null(tqi_outbox_frame(out, 2));
    tqi_outbox_free(out);
    assert_int_equal(e.bytes, 0);
}

static void a_cleared_outbox_is_as_new_and_needs_no_memory_for_it(void **state)
{
    unit_env_t e;
    tqi_buf_t frame;
    uint64_t ack, open[TQ_OUTSTANDING_MAX];
    uint32_t cnt;
    int user;

    (void)state;
    unit_env_init(&e);
    tqi_outbox_t *out = tqi_outbox_new(&e.env);
    for (uint64_t seq = 1; seq <= 3; seq++) {
        assert_int_equal(tqi_outbox_open(out, &user), seq);
        request_for(&frame, &e, seq);
        assert_int_equal(tqi_outbox_keep(out, seq, &frame), TQ_OK);
    }
    assert_ptr_equal(tqi_outbox_replied(out, 2), &user);
    e.fail_after = 0;
    tqi_outbox_clear(out);
    e.fail_after = UINT64_MAX;
    assert_int_equal(tqi_outbox_cnt(out), 0);
    tqi_outbox_acks(out, true, &ack, open, &cnt);
    assert_int_equal(ack + cnt, 0);
    assert_null(tqi_outbox_replied(out, 3));
    assert_int_equal(tqi_outbox_open(out, &user), 1);
    tqi_outbox_free(out);
    assert_int_equal(e.bytes, 0);
}

/* ---- both ends over a channel that loses, repeats and reorders -------------------------------- */

#define REQUESTS 300
#define CHANNEL 4096

typedef struct packet {
    uint64_t seq; /* 0: a ping */
    uint64_t ack;
    uint64_t open[TQ_OUTSTANDING_MAX];
    uint32_t open_cnt;
    bool is_reply;
    uint64_t resend[TQ_OUTSTANDING_MAX]; /* of a reply to a ping */
    uint32_t resend_cnt;
} packet_t;

typedef struct world {
    packet_t *packets[CHANNEL];
    size_t cnt;
    tqi_rng_t *rng;
    unsigned executed[REQUESTS + 1];
    unsigned acked[REQUESTS + 1];
    unsigned replied[REQUESTS + 1];
} world_t;

static void channel_put(world_t *w, const packet_t *packet)
{
    int copies = tqi_rng_chance(w->rng, 0.2) ? 0 : 1 + (int)tqi_rng_chance(w->rng, 0.2);

    for (; copies > 0 && w->cnt < CHANNEL; copies--) {
        w->packets[w->cnt] = malloc(sizeof *packet);
        *w->packets[w->cnt++] = *packet;
    }
}

static void send_request(world_t *w, tqi_outbox_t *out, uint64_t seq)
{
    packet_t p = {.seq = seq};

    tqi_outbox_acks(out, seq == 0, &p.ack, p.open, &p.open_cnt);
    channel_put(w, &p);
}

static void on_acked(void *ctx, uint64_t seq)
{
    ((world_t *)ctx)->acked[seq]++;
}

static void receive_request(world_t *w, const unit_env_t *e, tqi_inbox_t *in, const packet_t *p)
{
    packet_t answer = {.seq = p->seq, .is_reply = true};
    const tqi_buf_t *kept;
    tqi_buf_t reply;

    tqi_inbox_ack(in, p->ack, (const uint8_t *)p->open, p->open_cnt, on_acked, w);
    if (p->seq == 0) {
        answer.resend_cnt = tqi_inbox_missing(in, (const uint8_t *)p->open, p->open_cnt,
                                              answer.resend, TQ_OUTSTANDING_MAX);
        channel_put(w, &answer);
        return;
    }
    switch (tqi_inbox_admit(in, p->seq, &kept)) {
    case TQI_ADMIT_NEW:
        w->executed[p->seq]++;
        reply_for(&reply, e, p->seq);
        unit_check(tqi_inbox_done(in, p->seq, &reply) == TQ_OK);
        tqi_buf_fini(&reply);
        channel_put(w, &answer);
        break;
    case TQI_ADMIT_DONE:
        channel_put(w, &answer);
        break;
    default:
        break;
    }
}

static void every_request_is_executed_once_and_answered_once_over_a_bad_channel(void **state)
{
    (void)state;
    for_each_seed(seed, 30)
    {
        unit_env_t e;
        tqi_rng_t rng;
        world_t *w = calloc(1, sizeof *w);
        uint64_t opened = 0, untaken[REQUESTS + 1];
        size_t untaken_cnt = 0;

        unit_env_init(&e);
        tqi_rng_init(&rng, seed);
        w->rng = &rng;
        tqi_inbox_t *in = tqi_inbox_new(&e.env);
        tqi_outbox_t *out = tqi_outbox_new(&e.env);
        for (unsigned step = 0; step < 200000; step++) {
            if (opened == REQUESTS && tqi_outbox_cnt(out) == 0)
                break;
            if (opened < REQUESTS && tqi_rng_chance(&rng, 0.2)) {
                tqi_buf_t frame;
                opened = tqi_outbox_open(out, w);
                request_for(&frame, &e, opened);
                unit_check(tqi_outbox_keep(out, opened, &frame) == TQ_OK);
                send_request(w, out, opened);
            }
            if (tqi_rng_chance(&rng, 0.02))
                send_request(w, out, 0);
            if (untaken_cnt > 0 && tqi_rng_chance(&rng, 0.3)) {
                size_t i = tqi_rng_below(&rng, untaken_cnt);
                tqi_outbox_take(out, untaken[i]);
                untaken[i] = untaken[--untaken_cnt];
            }
            if (w->cnt == 0)
                continue;
            size_t i = tqi_rng_below(&rng, w->cnt);
            packet_t *p = w->packets[i];
            w->packets[i] = w->packets[--w->cnt];
            if (!p->is_reply) {
                receive_request(w, &e, in, p);
            } else if (p->seq == 0) {
                for (uint32_t k = 0; k < p->resend_cnt; k++)
                    if (tqi_outbox_frame(out, p->resend[k]))
                        send_request(w, out, p->resend[k]);
            } else if (tqi_outbox_replied(out, p->seq)) {
                w->replied[p->seq]++;
                untaken[untaken_cnt++] = p->seq;
            }
            free(p);
        }
        unit_check(opened == REQUESTS && tqi_outbox_cnt(out) == 0);
        send_request(w, out, 0);
        while (w->cnt > 0) {
            packet_t *p = w->packets[--w->cnt];
            if (!p->is_reply)
                receive_request(w, &e, in, p);
            free(p);
        }
        for (uint64_t seq = 1; seq <= REQUESTS; seq++) {
            unit_check(w->executed[seq] == 1);
            unit_check(w->replied[seq] == 1);
            unit_check(w->acked[seq] <= 1);
        }
        tqi_inbox_ack(in, tqi_outbox_last(out), NULL, 0, on_acked, w);
        for (uint64_t seq = 1; seq <= REQUESTS; seq++)
            unit_check(w->acked[seq] == 1);
        unit_check(tqi_inbox_kept_bytes(in) == 0 && tqi_inbox_pending_cnt(in) == 0);
        tqi_inbox_free(in);
        tqi_outbox_free(out);
        unit_check(e.bytes == 0);
        free(w);
    }
}

/* Every other seq, again and again further up: no sender has so many open. */
static void acknowledgements_that_nobody_can_mean_cost_nothing(void **state)
{
    unit_env_t e;
    uint8_t open[TQI_OPEN_MAX * 8];
    const tqi_buf_t *kept;
    size_t had = 0;

    (void)state;
    unit_env_init(&e);
    tqi_inbox_t *in = tqi_inbox_new(&e.env);
    for (uint64_t round = 1; round <= 200; round++) {
        for (uint64_t i = 0; i < TQI_OPEN_MAX; i++)
            tqi_store_le64(open + i * 8, (round * TQI_OPEN_MAX + i) * 2);
        tqi_inbox_ack(in, (round + 1) * TQI_OPEN_MAX * 2, open, TQI_OPEN_MAX, NULL, NULL);
        if (round == 10)
            had = e.bytes;
    }
    assert_true(e.bytes <= had);
    assert_true(e.bytes < 100000);
    /* It is still served. */
    assert_int_equal(tqi_inbox_admit(in, UINT64_C(1) << 40, &kept), TQI_ADMIT_NEW);
    tqi_inbox_free(in);
    assert_int_equal(e.bytes, 0);
}

static void what_was_never_opened_has_no_frame_and_no_end(void **state)
{
    uint8_t open[16] = {5, [8] = 6};
    uint64_t missing[2];
    int user = 0;
    unit_env_t e;
    tqi_buf_t frame;

    (void)state;
    unit_env_init(&e);
    e.fail_after = 0;
    assert_null(tqi_inbox_new(&e.env));
    assert_null(tqi_outbox_new(&e.env));
    tqi_inbox_free(NULL);
    tqi_outbox_free(NULL);
    unit_env_init(&e);
    tqi_outbox_t *out = tqi_outbox_new(&e.env);
    assert_non_null(out);
    assert_null(tqi_outbox_frame(out, 1));
    tqi_outbox_take(out, 1);
    assert_null(tqi_outbox_replied(out, 1));
    assert_int_equal(tqi_outbox_open(out, &user), 1);
    assert_null(tqi_outbox_frame(out, 1)); /* none was kept yet */
    request_for(&frame, &e, 1);
    assert_int_equal(tqi_outbox_keep(out, 1, &frame), TQ_OK);
    assert_non_null(tqi_outbox_frame(out, 1));
    assert_ptr_equal(tqi_outbox_replied(out, 1), &user);
    assert_null(tqi_outbox_frame(out, 1));
    tqi_outbox_take(out, 1);
    assert_int_equal(tqi_outbox_cnt(out), 0);
    tqi_outbox_free(out);

    tqi_inbox_t *in = tqi_inbox_new(&e.env);
    assert_non_null(in);
    assert_int_equal(tqi_inbox_missing(in, open, 2, missing, 1), 1);
    assert_int_equal(missing[0], 5);
    /* What is open above the seq that is acknowledged says nothing of those below. */
    tqi_inbox_ack(in, 4, open, 2, NULL, NULL);
    assert_true(tqi_inbox_is_acked(in, 4));
    assert_false(tqi_inbox_is_acked(in, 5));
    tqi_inbox_free(in);
    assert_int_equal(e.bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_sent_again_gets_the_kept_reply),
        cmocka_unit_test(beyond_the_window_nothing_is_executed_or_remembered),
        cmocka_unit_test(an_outcome_that_nobody_waits_for_any_more_is_dropped),
        cmocka_unit_test(an_outcome_that_finds_no_memory_is_asked_for_again),
        cmocka_unit_test(a_ping_names_all_that_is_open_other_frames_what_is_older_than_taken),
        cmocka_unit_test(a_request_that_is_withdrawn_can_be_asked_again_without_memory_for_it),
        cmocka_unit_test(a_cleared_outbox_is_as_new_and_needs_no_memory_for_it),
        cmocka_unit_test(acknowledgements_that_nobody_can_mean_cost_nothing),
        cmocka_unit_test(every_request_is_executed_once_and_answered_once_over_a_bad_channel),
        cmocka_unit_test(what_was_never_opened_has_no_frame_and_no_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
