/* SPDX-License-Identifier: Apache-2.0 */
/* Clears and the units that they wait for; units that are lost, return, or are born again. */
#include "role_controller.h"

static void setup(world_t *w, caller_t *c, store_unit_t *u)
{
    world_init(w, NULL);
    unit_register(u, w, 100, 7, "inproc://u1");
    caller_hello(c, w, 1);
}

/* Time passes while the client and some units are heard. */
static void pass_alive(world_t *w, caller_t *c, store_unit_t *u, uint64_t ms)
{
    for (uint64_t at = 0; at < ms; at += 1000) {
        world_pass(w, ms - at < 1000 ? ms - at : 1000);
        caller_ack(c, c->ack);
        if (u)
            unit_obey_all(u);
        for (size_t i = w->frames_cnt; i > 0; i--)
            if (w->frames[i - 1].env.kind == (TQI_KIND_Ping | TQI_KIND_REPLY))
                world_drop(w, i - 1);
    }
}

static uint64_t clear_took(caller_t *c, uint64_t seq)
{
    tqi_msg_Clear_R_t reply = {0};
    tqi_buf_t frame;

    assert_int_equal(caller_take(c, seq, TQI_KIND_Clear, &reply, &frame), TQ_OK);
    tqi_buf_fini(&frame);
    return reply.rows_cnt;
}

static void clear_of_a_silent_unit_keeps_the_rows_clearing_and_the_same_call_joins(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[3], fresh[3];

    (void)state;
    setup(&w, &c, &u);
    put_rows(&c, "p", 3, strs("a"), rows);
    c.budget_ms = 2000;
    uint64_t seq = clear_send(&c, "p", rows, 3);
    pass_alive(&w, &c, NULL, 2000);
    tqi_msg_Clear_R_t reply;
    tqi_buf_t frame;
    assert_int_equal(caller_take(&c, seq, TQI_KIND_Clear, &reply, &frame), TQ_E_TIMEOUT);
    assert_non_null(strstr(c.err.text, "inproc://u1"));
    tqi_buf_fini(&frame);
    uint64_t again = clear_send(&c, "p", rows, 3);
    assert_false(caller_has(&c, again, TQI_KIND_Clear));
    /* Indexes are never used twice: new rows are others. */
    put_begin_rows(&c, "p", 3, fresh);
    assert_true(fresh[0] > rows[2]);
    unit_obey_all(&u);
    assert_int_equal(clear_took(&c, again), 3);
    assert_int_equal(clear_took(&c, clear_send(&c, "p", rows, 3)), 0);
    world_fini(&w);
}

static void a_lost_unit_lets_clears_finish_and_learns_of_them_before_its_rows_return(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[4], got[4];
    tqi_msg_Unlink_t unlink;

    (void)state;
    setup(&w, &c, &u);
    put_rows(&c, "p", 4, strs("a"), rows);
    unit_obey_all(&u);
    uint64_t seq = clear_send(&c, "p", rows, 1); /* sent, never answered */
    pass_alive(&w, &c, NULL, 9000);
    assert_false(caller_has(&c, seq, TQI_KIND_Clear));
    pass_alive(&w, &c, NULL, 2000);
    assert_int_equal(clear_took(&c, seq), 1);
    /* Its rows are out of the ready sets. */
    c.budget_ms = 100;
    uint64_t waiting = fetch_send(&c, "p", "t", 1, strs("a"));
    pass_alive(&w, &c, NULL, 100);
    assert_int_equal(fetch_take(&c, waiting, got, 4), UINT32_MAX);
    assert_non_null(strstr(c.err.text, "3 are on lost storage units"));
    assert_int_equal(clear_took(&c, clear_send(&c, "p", rows + 1, 1)), 1);

    c.budget_ms = 200000;
    waiting = fetch_send(&c, "p", "t", 2, strs("a"));
    world_drop_all(&w);
    unit_register(&u, &w, 101, 7, "inproc://u1");
    assert_false(caller_has(&c, waiting, TQI_KIND_Fetch));
    world_frame_t *f = world_find(&w, u.peer, TQI_KIND_Unlink, 0);
    assert_non_null(f);
    assert_int_equal(tqi_msg_decode(&f->env, TQI_KIND_Unlink, &unlink, NULL), TQ_OK);
    assert_int_equal(tqi_u64s_at(unlink.lo, 0), rows[1]);
    unit_obey(&u, TQI_KIND_Unlink);
    assert_false(caller_has(&c, waiting, TQI_KIND_Fetch));
    /* The UNLINK and the CONFIRM that were under way are open still: PING says so, and they are
     * asked for again. */
    f = world_find(&w, u.peer, TQI_KIND_Ping, 0);
    assert_non_null(f);
    assert_int_equal(f->env.open_cnt, 2);
    uint64_t open[2] = {tqi_load_le64(f->env.open), tqi_load_le64(f->env.open + 8)};
    unit_answer(&u, TQI_KIND_Ping, 0, &(tqi_msg_Ping_R_t){.resend = tqi_u64s(open, 2)});
    assert_false(caller_has(&c, waiting, TQI_KIND_Fetch));
    unit_obey_all(&u);
    assert_int_equal(fetch_take(&c, waiting, got, 4), 2);
    assert_int_equal(got[0], rows[2]);
    world_fini(&w);
}

static void a_lost_unit_that_is_heard_again_returns_without_registering(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[2], got[2];

    (void)state;
    setup(&w, &c, &u);
    put_rows(&c, "p", 2, strs("a"), rows);
    unit_obey_all(&u);
    pass_alive(&w, &c, NULL, 11000); /* it hears PING, and its answers are held back */
    uint64_t waiting = fetch_send(&c, "p", "t", 2, strs("a"));
    assert_false(caller_has(&c, waiting, TQI_KIND_Fetch));
    unit_answer(&u, TQI_KIND_Ping, 0, &(tqi_msg_Ping_R_t){.free_bytes = 1});
    unit_obey_all(&u);
    assert_int_equal(fetch_take(&c, waiting, got, 2), 2);
    world_fini(&w);
}

static void a_unit_that_says_its_last_word_is_lost_at_once(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[2];
    tqi_envelope_t env = {.version = 1, .kind = TQI_KIND_Closing, .incarnation = 99};

    (void)state;
    setup(&w, &c, &u);
    put_rows(&c, "p", 2, strs("a"), rows);
    unit_obey_all(&u);
    env.sender = u.id;
    world_feed(&w, u.peer, &env, &(tqi_msg_Closing_t){0}); /* of another store: nothing */
    env.incarnation = WORLD_INCARNATION;
    world_feed(&w, 1, &env, &(tqi_msg_Closing_t){0}); /* not of the unit */
    world_settle(&w);
    uint64_t clearing = clear_send(&c, "p", rows, 1);
    assert_false(caller_has(&c, clearing, TQI_KIND_Clear));

    world_feed(&w, u.peer, &env, &(tqi_msg_Closing_t){0});
    world_settle(&w);
    /* Nobody waits for it, and its rows are not handed out. */
    assert_int_equal(clear_took(&c, clearing), 1);
    uint64_t waiting = fetch_send(&c, "p", "t", 1, strs("a"));
    assert_false(caller_has(&c, waiting, TQI_KIND_Fetch));
    /* What was under way before the word does not bring it back; another life does. */
    unit_answer(&u, TQI_KIND_Ping, 0, &(tqi_msg_Ping_R_t){.free_bytes = 1});
    world_settle(&w);
    assert_false(caller_has(&c, waiting, TQI_KIND_Fetch));
    unit_register(&u, &w, 101, 8, "inproc://u1");
    assert_int_equal(u.id, 1);
    put_rows(&c, "q", 2, strs("a"), rows);
    world_fini(&w);
}

static void the_last_word_of_a_controller_goes_to_every_client(void **state)
{
    world_t w;
    caller_t first = {0}, second = {0}, gone = {0};
    store_unit_t u = {0};

    (void)state;
    setup(&w, &first, &u);
    caller_hello(&second, &w, 2);
    caller_hello(&gone, &w, 3);
    w.role->on_peer_down(w.role, 3, w.now_ns);
    tqi_controller_drain(w.ctl, w.now_ns);
    assert_null(world_find(&w, 1, TQI_KIND_Closing, 0));
    tqi_controller_say_closing(w.ctl);
    for (tqi_peer_t peer = 1; peer <= 2; peer++) {
        world_frame_t *f = world_find(&w, peer, TQI_KIND_Closing, 0);

        assert_non_null(f);
        assert_int_equal(f->env.session, peer == 1 ? first.session : second.session);
        assert_int_equal(f->env.incarnation, WORLD_INCARNATION);
    }
    assert_null(world_find(&w, 3, TQI_KIND_Closing, 0));
    /* It is heard once all that are there have said so. */
    for (tqi_peer_t peer = 1; peer <= 2; peer++) {
        tqi_envelope_t env = {.version = 1,
                              .kind = TQI_KIND_Closing_R,
                              .incarnation = WORLD_INCARNATION,
                              .session = peer == 1 ? first.session : second.session};

        assert_false(tqi_controller_is_heard(w.ctl));
        world_feed(&w, peer, &env, &(tqi_msg_Closing_R_t){0});
    }
    assert_true(tqi_controller_is_heard(w.ctl));
    world_fini(&w);
}

static void a_unit_that_registers_is_told_which_sessions_have_ended(void **state)
{
    world_t w;
    caller_t first = {0}, second = {0}, third = {0};
    store_unit_t u = {0};
    tqi_envelope_t env = {.version = 1, .kind = TQI_KIND_Register};
    tqi_msg_Register_t msg = {.version_min = 1, .version_max = 1, .unit_incarnation = 8};
    tqi_msg_Register_R_t reply;

    (void)state;
    setup(&w, &first, &u);
    caller_hello(&second, &w, 2);
    caller_hello(&third, &w, 3);
    caller_repeat(&first, TQI_KIND_Bye, 0, &(tqi_msg_Bye_t){0});
    caller_repeat(&third, TQI_KIND_Bye, 0, &(tqi_msg_Bye_t){0});
    world_drop_all(&w);
    msg.addresses = strs("inproc://u1"); /* born again: it knows of no end */
    world_feed(&w, 102, &env, &msg);
    world_frame_t *f = world_find(&w, 102, TQI_KIND_Register_R, 0);
    assert_non_null(f);
    assert_int_equal(tqi_msg_decode(&f->env, TQI_KIND_Register_R, &reply, NULL), TQ_OK);
    assert_int_equal(reply.ended_lo.cnt, 2);
    assert_int_equal(reply.ended_hi.cnt, 2);
    assert_int_equal(tqi_u64s_at(reply.ended_lo, 0), first.session);
    assert_int_equal(tqi_u64s_at(reply.ended_hi, 0), second.session);
    assert_int_equal(tqi_u64s_at(reply.ended_lo, 1), third.session);
    assert_int_equal(tqi_u64s_at(reply.ended_hi, 1), third.session + 1);
    world_fini(&w);
}

static void a_unit_in_a_new_life_has_lost_its_cells(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[4], got[4];
    tqi_msg_Stat_R_t stat;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    put_rows(&c, "p", 4, strs("a", "b"), rows);
    uint64_t begun = put_begin_rows(&c, "p", 1, got);
    uint64_t clearing = clear_send(&c, "p", rows, 1);
    world_drop_all(&w);
    unit_register(&u, &w, 102, 8, "inproc://u1");
    assert_int_equal(u.id, 1);
    assert_int_equal(clear_took(&c, clearing), 1);
    /* A put whose bytes went with the old life is refused whole. */
    assert_int_equal(put_publish(&c, "p", begun, got, 1, strs("a")), TQ_E_UNIT_LOST);
    assert_int_equal(call(&c, Stat, &stat, &frame, .unused_ = 0), TQ_OK);
    char json[16384];
    snprintf(json, sizeof json, "%.*s", (int)stat.json.len, (const char *)stat.json.data);
    assert_non_null(strstr(json, "\"cells_lost\":6"));
    tqi_buf_fini(&frame);
    /* The rows are there and can be written again. */
    tqi_msg_Resolve_R_t resolved;
    assert_int_equal(call(&c, Resolve, &resolved, &frame, .partition = tqi_str("p"),
                          .rows = tqi_u64s(rows + 1, 3), .fields = strs("a"), .is_put = true),
                     TQ_OK);
    uint64_t put_id = resolved.put_id;
    tqi_buf_fini(&frame);
    assert_int_equal(put_publish(&c, "p", put_id, rows + 1, 3, strs("a")), TQ_OK);
    uint64_t seq = fetch_send(&c, "p", "t", 3, strs("a"));
    assert_int_equal(fetch_take(&c, seq, got, 4), 3);
    world_fini(&w);
}

/* What is produced is said of one life of the unit, and that life is named. */
static void what_is_produced_is_said_of_a_life_of_the_unit(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[1];
    tqi_msg_Resolve_R_t resolved;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    put_rows(&c, "p", 1, strs("a"), rows);
    for (uint64_t life = 7; life < 9; life++) {
        if (life == 8)
            unit_register(&u, &w, 102, life, "inproc://u1");
        assert_int_equal(call(&c, Resolve, &resolved, &frame, .partition = tqi_str("p"),
                              .rows = tqi_u64s(rows, 1), .fields = strs("a")),
                         TQ_OK);
        assert_int_equal(*(const uint8_t *)resolved.produced.data, life == 7);
        assert_int_equal(resolved.life_units.cnt, 1);
        assert_int_equal(tqi_u32s_at(resolved.life_units, 0), u.id);
        assert_int_equal(resolved.lives.cnt, 1);
        assert_int_equal(tqi_u64s_at(resolved.lives, 0), life);
        tqi_buf_fini(&frame);
    }
    world_fini(&w);
}

/* So that it refuses what they still send it; however often it asks. */
static void a_unit_in_a_new_life_is_told_which_puts_are_older(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[1];
    tqi_msg_Register_t msg = {.version_min = 1,
                              .version_max = 1,
                              .unit_incarnation = 8,
                              .addresses = strs("inproc://u1"),
                              .host = tqi_str("host"),
                              .capacity_bytes = 1 << 30,
                              .name = tqi_str("inproc://u1")};
    tqi_envelope_t env = {.kind = TQI_KIND_Register, .version = 1};
    tqi_msg_Register_R_t reply;

    (void)state;
    setup(&w, &c, &u);
    uint64_t older = put_begin_rows(&c, "p", 1, rows);
    for (int i = 0; i < 2; i++) {
        world_drop_all(&w);
        world_frame_t *f = world_register(&w, 102, &env, &msg);
        assert_non_null(f);
        assert_int_equal(tqi_msg_decode(&f->env, TQI_KIND_Register_R, &reply, NULL), TQ_OK);
        assert_int_equal(reply.put_last, older);
        assert_true(put_begin_rows(&c, "p", 1, rows) > older);
    }
    world_fini(&w);
}

static void a_unit_that_starts_again_at_an_address_of_before_takes_its_place(void **state)
{
    world_t w;
    store_unit_t first = {0}, again = {0}, other = {0};

    (void)state;
    world_init(&w, NULL);
    unit_register_at(&first, &w, 101, 7, "host", strs("inproc://u-7", "tcp://10.0.0.1:5"));
    unit_register_at(&again, &w, 102, 8, "host", strs("inproc://u-8", "tcp://10.0.0.1:5"));
    assert_int_equal(again.id, first.id);
    unit_register_at(&other, &w, 103, 9, "host", strs("inproc://u-9", "tcp://10.0.0.1:50"));
    assert_int_not_equal(other.id, first.id);
    world_fini(&w);
}

static uint64_t stat_figure(caller_t *c, const char *member)
{
    tqi_msg_Stat_R_t stat;
    tqi_buf_t frame;
    char json[16384], name[64];

    assert_int_equal(call(c, Stat, &stat, &frame, .unused_ = 0), TQ_OK);
    snprintf(json, sizeof json, "%.*s", (int)stat.json.len, (const char *)stat.json.data);
    tqi_buf_fini(&frame);
    snprintf(name, sizeof name, "\"%s\":", member);
    const char *at = strstr(json, name);
    assert_non_null(at);
    return strtoull(at + strlen(name), NULL, 10);
}

/* A REGISTER, of the given life and connection, that was under way for long. NULL: no answer. */
static const tqi_envelope_t *late_register(world_t *w, tqi_peer_t peer, uint64_t incarnation,
                                           uint32_t epoch)
{
    tqi_envelope_t env = {.kind = TQI_KIND_Register, .version = 1, .epoch = epoch};
    tqi_msg_Register_t msg = {.version_min = 1,
                              .version_max = 1,
                              .unit_incarnation = incarnation,
                              .addresses = strs("inproc://u1"),
                              .host = tqi_str("host"),
                              .capacity_bytes = 1 << 30,
                              .name = tqi_str("inproc://u1")};

    world_drop_all(w);
    world_feed(w, peer, &env, &msg);
    world_settle(w);
    world_frame_t *f = world_find(w, peer, TQI_KIND_Register_R, 0);
    return f ? &f->env : NULL;
}

/* Sent before the unit had rows of this store, it says that it is empty. */
static void a_register_of_an_older_connection_changes_nothing(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[2], got[2];

    (void)state;
    world_init(&w, NULL);
    assert_non_null(late_register(&w, 101, 7, 2));
    u = (store_unit_t){&w, 101, 1, 7};
    caller_hello(&c, &w, 1);
    put_rows(&c, "p", 2, strs("a"), rows);
    assert_null(late_register(&w, 100, 7, 1));
    assert_int_equal(stat_figure(&c, "cells_lost"), 0);
    uint64_t seq = fetch_send(&c, "p", "t", 2, strs("a"));
    assert_int_equal(fetch_take(&c, seq, got, 2), 2);
    pass_alive(&w, &c, &u, 200); /* its orders still go to where it is */
    assert_int_equal(stat_figure(&c, "confirms_open"), 0);
    /* On the connection that counts it merely asks again; on a newer one it has begun anew. */
    assert_non_null(late_register(&w, 101, 7, 2));
    assert_int_equal(stat_figure(&c, "cells_lost"), 0);
    assert_non_null(late_register(&w, 102, 7, 3));
    assert_int_equal(stat_figure(&c, "cells_lost"), 2);
    world_fini(&w);
}

static tq_status_t forget(caller_t *c, uint32_t unit_id)
{
    tqi_msg_Forget_R_t reply;
    tqi_buf_t frame = {0};
    tq_status_t rc = call(c, Forget, &reply, &frame, .unit_id = unit_id);

    tqi_buf_fini(&frame);
    return rc;
}

static void a_unit_that_is_forgotten_is_settled_and_its_life_never_comes_back(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[3];

    (void)state;
    setup(&w, &c, &u);
    put_rows(&c, "p", 3, strs("a"), rows);
    assert_int_equal(forget(&c, 2), TQ_E_NOT_FOUND);
    assert_int_equal(forget(&c, u.id), TQ_E_INVALID); /* it lives */
    uint64_t clearing = clear_send(&c, "p", rows, 1);
    pass_alive(&w, &c, NULL, 11000);
    assert_int_equal(clear_took(&c, clearing), 1);
    assert_int_equal(stat_figure(&c, "cells_lost"), 0); /* it may come back yet */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(forget(&c, u.id), TQ_OK);
        assert_int_equal(stat_figure(&c, "cells_lost"), 2);
        assert_int_equal(stat_figure(&c, "orders_open"), 0);
        assert_int_equal(stat_figure(&c, "confirms_open"), 0);
    }
    /* It was only stopped, and goes on. */
    const tqi_envelope_t *answer = late_register(&w, 100, 7, 2);
    assert_non_null(answer);
    assert_int_equal(answer->status, TQ_E_DENIED);
    /* Started again it is itself, and empty. */
    unit_register(&u, &w, 103, 9, "inproc://u1");
    assert_int_equal(u.id, 1);
    tqi_msg_Resolve_R_t resolved;
    tqi_buf_t frame;
    assert_int_equal(call(&c, Resolve, &resolved, &frame, .partition = tqi_str("p"),
                          .rows = tqi_u64s(rows + 1, 2), .fields = strs("a"), .is_put = true),
                     TQ_OK);
    uint64_t put_id = resolved.put_id;
    assert_int_equal(*(const uint8_t *)resolved.produced.data, 0);
    tqi_buf_fini(&frame);
    assert_int_equal(put_publish(&c, "p", put_id, rows + 1, 2, strs("a")), TQ_OK);
    world_fini(&w);
}

/* Its successor may even have been the first to be heard. */
static void a_register_of_a_dead_process_that_comes_late_takes_nothing_over(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[2], got[2];
    tqi_envelope_t pong = {.version = 1, .kind = TQI_KIND_Ping_R};

    (void)state;
    setup(&w, &c, &u); /* life 7; then, of one before it: */
    put_rows(&c, "p", 2, strs("a"), rows);
    for (int i = 0; i < 3; i++) {
        assert_null(late_register(&w, 99, 6, 1));
        assert_non_null(world_find(&w, 99, TQI_KIND_Ping, 0));
    }
    /* The answer of somebody else proves nothing, nor does one to an older claim. */
    world_feed(&w, 98, &pong, &(tqi_msg_Ping_R_t){0});
    assert_null(late_register(&w, 99, 6, 1));
    assert_null(late_register(&w, 97, 5, 1));
    world_feed(&w, 99, &pong, &(tqi_msg_Ping_R_t){0});
    assert_null(late_register(&w, 99, 6, 1));
    assert_int_equal(stat_figure(&c, "cells_lost"), 0);
    uint64_t seq = fetch_send(&c, "p", "t", 2, strs("a"));
    assert_int_equal(fetch_take(&c, seq, got, 2), 2);
    pass_alive(&w, &c, &u, 200);
    assert_int_equal(stat_figure(&c, "confirms_open"), 0);
    world_fini(&w);
}

/* What a process said before it died arrives when its successor has long been at work. */
static void a_register_of_a_former_life_is_refused(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[2], got[2];

    (void)state;
    setup(&w, &c, &u);
    unit_register(&u, &w, 102, 8, "inproc://u1");
    put_rows(&c, "p", 2, strs("a"), rows);
    const tqi_envelope_t *answer = late_register(&w, 101, 7, 9);
    assert_non_null(answer);
    assert_int_equal(answer->status, TQ_E_DENIED);
    assert_int_equal(stat_figure(&c, "cells_lost"), 0);
    uint64_t seq = fetch_send(&c, "p", "t", 2, strs("a"));
    assert_int_equal(fetch_take(&c, seq, got, 2), 2);
    pass_alive(&w, &c, &u, 200);
    assert_int_equal(stat_figure(&c, "confirms_open"), 0);
    world_fini(&w);
}

static void a_loopback_address_of_another_host_is_another_unit(void **state)
{
    world_t w;
    store_unit_t here = {0}, there = {0};

    (void)state;
    world_init(&w, NULL);
    unit_register_at(&here, &w, 101, 7, "here", strs("tcp://127.0.0.1:5"));
    unit_register_at(&there, &w, 102, 8, "there", strs("tcp://127.0.0.1:5"));
    assert_int_not_equal(here.id, there.id);
    world_fini(&w);
}

static void orders_are_kept_until_they_are_answered(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[1];

    (void)state;
    setup(&w, &c, &u);
    put_rows(&c, "p", 1, strs("a"), rows);
    unit_obey_all(&u);
    w.deaf = u.peer;
    world_pass(&w, 100); /* CONFIRM is lost */
    w.deaf = 0;
    world_pass(&w, 900);
    world_frame_t *f = world_find(&w, u.peer, TQI_KIND_Ping, 0);
    assert_non_null(f);
    assert_int_equal(f->env.open_cnt, 1);
    uint64_t open = tqi_load_le64(f->env.open);
    unit_answer(&u, TQI_KIND_Ping, 0, &(tqi_msg_Ping_R_t){.resend = tqi_u64s(&open, 1)});
    assert_non_null(world_find(&w, u.peer, TQI_KIND_Confirm, open));
    unit_obey_all(&u);
    world_fini(&w);
}

static void a_cleared_partition_is_gone_at_once_and_its_name_is_free(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[3], fresh[2], got[4];
    tqi_msg_List_R_t list;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    put_rows(&c, "p", 3, strs("a"), rows);
    uint64_t waiting = fetch_send(&c, "p", "t", 4, strs("a"));
    uint64_t seq = caller_send(&c, TQI_KIND_Clear,
                               &(tqi_msg_Clear_t){.partition = tqi_str("p"), .is_all = true});
    world_settle(&w);
    assert_false(caller_has(&c, seq, TQI_KIND_Clear));
    assert_int_equal(call(&c, List, &list, &frame, .partition = tqi_str("p")), TQ_OK);
    assert_false(list.is_known);
    tqi_buf_fini(&frame);
    /* The same call joins, by name. */
    uint64_t again = caller_send(&c, TQI_KIND_Clear,
                                 &(tqi_msg_Clear_t){.partition = tqi_str("p"), .is_all = true});
    world_settle(&w);
    assert_false(caller_has(&c, again, TQI_KIND_Clear));
    /* Who waited waits on, for the partition that comes. */
    put_rows(&c, "p", 2, strs("a"), fresh);
    assert_true(fresh[0] > rows[2]);
    assert_false(caller_has(&c, waiting, TQI_KIND_Fetch));
    unit_obey_all(&u);
    assert_int_equal(clear_took(&c, seq), 3);
    assert_int_equal(clear_took(&c, again), 3);
    put_rows(&c, "p", 2, strs("a"), rows);
    assert_int_equal(fetch_take(&c, waiting, got, 4), 4);
    world_fini(&w);
}

static void a_key_is_free_at_once_and_clearing_it_again_joins(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    tqi_msg_Resolve_R_t resolved;
    tqi_buf_t frame;
    uint64_t row, other;

    (void)state;
    setup(&w, &c, &u);
    assert_int_equal(call(&c, Resolve, &resolved, &frame, .partition = tqi_str("p"),
                          .keys = strs("k"), .fields = strs("a"), .is_create = true,
                          .is_put = true),
                     TQ_OK);
    row = tqi_u64s_at(resolved.rows, 0);
    uint64_t put_id = resolved.put_id;
    tqi_buf_fini(&frame);
    assert_int_equal(put_publish(&c, "p", put_id, &row, 1, strs("a")), TQ_OK);
    uint64_t first = caller_send(&c, TQI_KIND_Clear,
                                 &(tqi_msg_Clear_t){.partition = tqi_str("p"), .keys = strs("k")});
    uint64_t second = caller_send(&c, TQI_KIND_Clear,
                                  &(tqi_msg_Clear_t){.partition = tqi_str("p"), .keys = strs("k")});
    world_settle(&w);
    assert_false(caller_has(&c, second, TQI_KIND_Clear));
    assert_int_equal(call(&c, Resolve, &resolved, &frame, .partition = tqi_str("p"),
                          .keys = strs("k"), .is_create = true),
                     TQ_OK);
    other = tqi_u64s_at(resolved.rows, 0);
    tqi_buf_fini(&frame);
    assert_true(other != row);
    unit_obey_all(&u);
    assert_int_equal(clear_took(&c, first), 1);
    assert_int_equal(clear_took(&c, second), 1);
    assert_int_equal(
        call(&c, Resolve, &resolved, &frame, .partition = tqi_str("p"), .keys = strs("k", "x")),
        TQ_OK);
    assert_int_equal(tqi_u64s_at(resolved.rows, 0), other);
    assert_true(tqi_u64s_at(resolved.rows, 1) == TQ_ROW_NONE);
    tqi_buf_fini(&frame);
    world_fini(&w);
}

static void a_publish_into_cleared_rows_applies_nothing(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[4];
    tqi_msg_Status_R_t status;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    uint64_t put_id = put_begin_rows(&c, "p", 4, rows);
    clear_send(&c, "p", rows + 2, 1);
    assert_int_equal(put_publish(&c, "p", put_id, rows, 4, strs("a")), TQ_E_ROW_GONE);
    assert_int_equal(call(&c, Status, &status, &frame, .partition = tqi_str("p"),
                          .what = TQ_STATUS_PRODUCTION, .fields = strs("a")),
                     TQ_OK);
    assert_false(status.is_known); /* the field was never written */
    tqi_buf_fini(&frame);
    unit_obey_all(&u);
    /* What only that put had made is gone. */
    assert_int_equal(clear_took(&c, clear_send(&c, "p", rows, 4)), 0);
    assert_int_equal(put_publish(&c, "p", put_id, rows, 1, strs("a")), TQ_E_INVALID);
    world_fini(&w);
}

static void rows_of_several_units_are_unlinked_at_each(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0}, v = {0};
    uint64_t rows[4];

    (void)state;
    setup(&w, &c, &u);
    unit_register(&v, &w, 200, 9, "inproc://u2");
    assert_int_equal(v.id, 2);
    put_rows(&c, "p", 1, strs("a"), rows);
    put_rows(&c, "p", 1, strs("a"), rows + 1);
    uint64_t seq = clear_send(&c, "p", rows, 2);
    assert_int_equal(unit_obey(&u, TQI_KIND_Unlink), 1);
    assert_false(caller_has(&c, seq, TQI_KIND_Clear));
    assert_int_equal(unit_obey(&v, TQI_KIND_Unlink), 1);
    assert_int_equal(clear_took(&c, seq), 2);
    world_fini(&w);
}

static void a_put_without_any_unit_says_so(void **state)
{
    world_t w;
    caller_t c = {0};
    tqi_msg_Insert_R_t reply;
    tqi_buf_t frame;

    (void)state;
    world_init(&w, NULL);
    caller_hello(&c, &w, 1);
    assert_int_equal(call(&c, Insert, &reply, &frame, .partition = tqi_str("p"), .rows_cnt = 2,
                          .fields = strs("a"), .is_put = true),
                     TQ_E_FULL);
    assert_non_null(strstr(c.err.text, "no storage unit is there"));
    assert_non_null(strstr(c.err.text, "none has joined"));
    tqi_buf_fini(&frame);
    /* Reserving rows needs none. */
    assert_int_equal(call(&c, Insert, &reply, &frame, .partition = tqi_str("p"), .rows_cnt = 2),
                     TQ_OK);
    assert_int_equal(tqi_u32s_at(reply.units, 0), 0);
    tqi_buf_fini(&frame);
    world_fini(&w);
}

static void a_put_waits_for_a_unit_as_for_space(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    tqi_msg_Insert_R_t insert;
    tqi_msg_Resolve_R_t resolve;
    tqi_buf_t frame;

    (void)state;
    world_init(&w, NULL);
    caller_hello(&c, &w, 1);
    uint64_t first = caller_send(&c, TQI_KIND_Insert,
                                 &(tqi_msg_Insert_t){.partition = tqi_str("p"),
                                                     .rows_cnt = 2,
                                                     .fields = strs("a"),
                                                     .is_put = true,
                                                     .wait_ms = 30000});
    uint64_t second = caller_send(&c, TQI_KIND_Resolve,
                                  &(tqi_msg_Resolve_t){.partition = tqi_str("q"),
                                                       .keys = strs("k", "l", "m"),
                                                       .fields = strs("a"),
                                                       .is_create = true,
                                                       .is_put = true,
                                                       .wait_ms = 30000});
    world_settle(&w);
    pass_alive(&w, &c, NULL, 20000);
    assert_false(caller_has(&c, first, TQI_KIND_Insert));
    assert_false(caller_has(&c, second, TQI_KIND_Resolve));
    assert_int_equal(stat_figure(&c, "puts_homeless"), 2);
    assert_int_equal(stat_figure(&c, "puts_pending"), 0);
    unit_register(&u, &w, 100, 7, "inproc://u1");
    assert_int_equal(caller_take(&c, first, TQI_KIND_Insert, &insert, &frame), TQ_OK);
    assert_int_equal(tqi_u32s_at(insert.units, 1), 1);
    assert_int_not_equal(insert.put_id, 0);
    tqi_buf_fini(&frame);
    assert_int_equal(caller_take(&c, second, TQI_KIND_Resolve, &resolve, &frame), TQ_OK);
    assert_int_equal(resolve.rows.cnt, 3);
    assert_int_equal(tqi_u32s_at(resolve.units, 2), 1);
    tqi_buf_fini(&frame);
    assert_int_equal(stat_figure(&c, "puts_homeless"), 0);
    world_fini(&w);
}

static void a_put_that_waited_in_vain_says_that_no_unit_is_there(void **state)
{
    world_t w;
    caller_t c = {0}, other = {0};
    store_unit_t u = {0};
    tqi_msg_Insert_R_t reply;
    tqi_buf_t frame;
    tqi_msg_Insert_t msg = {.partition = tqi_str("p"),
                            .rows_cnt = 2,
                            .fields = strs("a"),
                            .is_put = true,
                            .wait_ms = 3000};

    (void)state;
    setup(&w, &c, &u);
    pass_alive(&w, &c, NULL, 11000); /* the unit is lost */
    uint64_t seq = caller_send(&c, TQI_KIND_Insert, &msg);
    world_settle(&w);
    pass_alive(&w, &c, NULL, 2900);
    assert_false(caller_has(&c, seq, TQI_KIND_Insert));
    pass_alive(&w, &c, NULL, 100);
    assert_int_equal(caller_take(&c, seq, TQI_KIND_Insert, &reply, &frame), TQ_E_FULL);
    assert_non_null(strstr(c.err.text, "all 1 that have joined are lost (waited for 3000 ms)"));
    tqi_buf_fini(&frame);

    /* Its own budget is the limit too; a session that ends, and a store that closes, end the wait. */
    c.budget_ms = 1000;
    seq = caller_send(&c, TQI_KIND_Insert, &msg);
    world_settle(&w);
    pass_alive(&w, &c, NULL, 1000);
    assert_int_equal(caller_take(&c, seq, TQI_KIND_Insert, &reply, &frame), TQ_E_FULL);
    tqi_buf_fini(&frame);
    c.budget_ms = 200000;
    caller_hello(&other, &w, 2);
    caller_send(&other, TQI_KIND_Insert, &msg);
    seq = caller_send(&c, TQI_KIND_Insert, &msg);
    world_settle(&w);
    assert_int_equal(stat_figure(&c, "puts_homeless"), 2);
    tqi_controller_session_died(w.ctl, other.session, w.now_ns);
    world_settle(&w);
    assert_int_equal(stat_figure(&c, "puts_homeless"), 1);
    tqi_controller_drain(w.ctl, w.now_ns);
    assert_int_equal(caller_take(&c, seq, TQI_KIND_Insert, &reply, &frame), TQ_E_CLOSING);
    tqi_buf_fini(&frame);
    assert_true(tqi_controller_is_idle(w.ctl));
    world_fini(&w);
}

/* Rows and keys that a put had made before it found no unit for the rest are made again. */
static void a_put_that_waits_has_taken_nothing(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    tqi_msg_Resolve_R_t reply;
    tqi_buf_t frame;

    (void)state;
    world_init(&w, NULL);
    caller_hello(&c, &w, 1);
    /* A key whose row needs no unit yet, then one that the put has to make. */
    assert_int_equal(call(&c, Resolve, &reply, &frame, .partition = tqi_str("p"), .keys = strs("k"),
                          .is_create = true),
                     TQ_OK);
    uint64_t row = tqi_u64s_at(reply.rows, 0);
    tqi_buf_fini(&frame);
    uint64_t seq = caller_send(&c, TQI_KIND_Resolve,
                               &(tqi_msg_Resolve_t){.partition = tqi_str("p"),
                                                    .keys = strs("k", "l"),
                                                    .fields = strs("a"),
                                                    .is_create = true,
                                                    .is_put = true,
                                                    .wait_ms = 30000});
    world_settle(&w);
    assert_int_equal(stat_figure(&c, "puts_homeless"), 1);
    /* The partition may be cleared under it: it then begins in the next one of that name. */
    clear_send(&c, "p", &row, 1);
    unit_register(&u, &w, 100, 7, "inproc://u1");
    unit_obey_all(&u);
    world_settle(&w);
    assert_int_equal(caller_take(&c, seq, TQI_KIND_Resolve, &reply, &frame), TQ_OK);
    assert_int_equal(reply.rows.cnt, 2);
    assert_int_not_equal(tqi_u64s_at(reply.rows, 0), row);
    tqi_buf_fini(&frame);
    world_fini(&w);
}

/* Larger than a slice: other partitions go on in between, and order is kept. */
static void a_clear_of_a_large_partition_yields(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    tqi_msg_Insert_R_t reply;
    tqi_msg_List_R_t list;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(
            call(&c, Insert, &reply, &frame, .partition = tqi_str("big"), .rows_cnt = 65536),
            TQ_OK);
        tqi_buf_fini(&frame);
    }
    uint64_t seq = caller_send(&c, TQI_KIND_Clear,
                               &(tqi_msg_Clear_t){.partition = tqi_str("big"), .is_all = true});
    uint64_t behind = caller_send(&c, TQI_KIND_Insert,
                                  &(tqi_msg_Insert_t){.partition = tqi_str("big"), .rows_cnt = 1});
    caller_send(&c, TQI_KIND_Insert,
                &(tqi_msg_Insert_t){.partition = tqi_str("small"), .rows_cnt = 1});
    assert_true(caller_has(&c, c.seq, TQI_KIND_Insert));
    world_settle(&w);
    assert_true(caller_has(&c, behind, TQI_KIND_Insert));
    unit_obey_all(&u);
    assert_int_equal(clear_took(&c, seq), 3 * 65536);
    assert_int_equal(call(&c, List, &list, &frame, .partition = tqi_str("big")), TQ_OK);
    assert_int_equal(list.rows.cnt, 1);
    tqi_buf_fini(&frame);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clear_of_a_silent_unit_keeps_the_rows_clearing_and_the_same_call_joins),
        cmocka_unit_test(a_lost_unit_lets_clears_finish_and_learns_of_them_before_its_rows_return),
        cmocka_unit_test(a_lost_unit_that_is_heard_again_returns_without_registering),
        cmocka_unit_test(a_unit_that_says_its_last_word_is_lost_at_once),
        cmocka_unit_test(the_last_word_of_a_controller_goes_to_every_client),
        cmocka_unit_test(a_unit_that_registers_is_told_which_sessions_have_ended),
        cmocka_unit_test(a_unit_in_a_new_life_has_lost_its_cells),
        cmocka_unit_test(what_is_produced_is_said_of_a_life_of_the_unit),
        cmocka_unit_test(a_unit_in_a_new_life_is_told_which_puts_are_older),
        cmocka_unit_test(a_unit_that_starts_again_at_an_address_of_before_takes_its_place),
        cmocka_unit_test(a_register_of_an_older_connection_changes_nothing),
        cmocka_unit_test(a_register_of_a_dead_process_that_comes_late_takes_nothing_over),
        cmocka_unit_test(a_register_of_a_former_life_is_refused),
        cmocka_unit_test(a_unit_that_is_forgotten_is_settled_and_its_life_never_comes_back),
        cmocka_unit_test(a_loopback_address_of_another_host_is_another_unit),
        cmocka_unit_test(orders_are_kept_until_they_are_answered),
        cmocka_unit_test(a_cleared_partition_is_gone_at_once_and_its_name_is_free),
        cmocka_unit_test(a_key_is_free_at_once_and_clearing_it_again_joins),
        cmocka_unit_test(a_publish_into_cleared_rows_applies_nothing),
        cmocka_unit_test(rows_of_several_units_are_unlinked_at_each),
        cmocka_unit_test(a_put_without_any_unit_says_so),
        cmocka_unit_test(a_put_waits_for_a_unit_as_for_space),
        cmocka_unit_test(a_put_that_waited_in_vain_says_that_no_unit_is_there),
        cmocka_unit_test(a_put_that_waits_has_taken_nothing),
        cmocka_unit_test(a_clear_of_a_large_partition_yields),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
