/* SPDX-License-Identifier: Apache-2.0 */
/* Every message of the catalogue, by its table: nothing here knows one by name. */
#include "wire/msg.h"

#include "base/size.h"
#include "unit.h"
#include "wire/value.h"

#include <string.h>

#define ITEMS 5

/* Host memory that the views of a random message point into. */
typedef struct material {
    uint64_t u64s[ITEMS];
    uint32_t u32s[ITEMS];
    uint8_t bytes[ITEMS * 8];
    uint32_t offsets[ITEMS + 1];
    char text[ITEMS * 8];
} material_t;

static void material_init(material_t *m, tqi_rng_t *rng)
{
    for (int i = 0; i < ITEMS; i++) {
        m->u64s[i] = tqi_rng_u64(rng);
        m->u32s[i] = (uint32_t)tqi_rng_u64(rng);
        m->offsets[i + 1] = (i ? m->offsets[i] : 0) + (uint32_t)tqi_rng_below(rng, 8);
    }
    m->offsets[0] = 0;
    for (size_t i = 0; i < sizeof m->bytes; i++) {
        m->bytes[i] = (uint8_t)tqi_rng_u64(rng);
        m->text[i] = (char)('a' + tqi_rng_below(rng, 26));
    }
}

static void fill_field(const tqi_field_info_t *f, void *at, const material_t *m, tqi_rng_t *rng)
{
    uint64_t max = f->max ? f->max : UINT64_MAX;
    uint32_t cnt = (uint32_t)tqi_u64_min(1 + tqi_rng_below(rng, ITEMS), max);

    switch (f->type) {
    case TQI_TYPE_u64:
        *(uint64_t *)at = m->u64s[0] >> tqi_rng_below(rng, 64);
        break;
    case TQI_TYPE_u32:
        *(uint32_t *)at = (uint32_t)tqi_u64_min(m->u32s[0], max);
        break;
    case TQI_TYPE_bool:
        *(bool *)at = true;
        break;
    case TQI_TYPE_bytes:
        *(tqi_bytes_t *)at = (tqi_bytes_t){m->bytes, cnt};
        break;
    case TQI_TYPE_str:
        *(tqi_str_t *)at = (tqi_str_t){m->text, cnt};
        break;
    case TQI_TYPE_u64s:
        *(tqi_u64s_t *)at = (tqi_u64s_t){m->u64s, cnt};
        break;
    case TQI_TYPE_u32s:
        *(tqi_u32s_t *)at = (tqi_u32s_t){m->u32s, cnt};
        break;
    case TQI_TYPE_u8s:
        *(tqi_u8s_t *)at = (tqi_u8s_t){m->bytes, cnt};
        break;
    case TQI_TYPE_strs:
        *(tqi_strs_t *)at = (tqi_strs_t){m->offsets, m->text, cnt, m->offsets[cnt]};
        break;
    }
}

static bool views_equal(const void *a, uint32_t a_len, const void *b, uint32_t b_len)
{
    return a_len == b_len && (a_len == 0 || memcmp(a, b, a_len) == 0);
}

static bool field_equal(const tqi_field_info_t *f, const void *a, const void *b)
{
    switch (f->type) {
    case TQI_TYPE_u64:
        return *(const uint64_t *)a == *(const uint64_t *)b;
    case TQI_TYPE_u32:
        return *(const uint32_t *)a == *(const uint32_t *)b;
    case TQI_TYPE_bool:
        return *(const bool *)a == *(const bool *)b;
    case TQI_TYPE_bytes:
    case TQI_TYPE_str: {
        const tqi_bytes_t *x = a, *y = b;
        return views_equal(x->data, x->len, y->data, y->len);
    }
    case TQI_TYPE_u64s: {
        const tqi_u64s_t *x = a, *y = b;
        return views_equal(x->data, x->cnt * 8, y->data, y->cnt * 8);
    }
    case TQI_TYPE_u32s: {
        const tqi_u32s_t *x = a, *y = b;
        return views_equal(x->data, x->cnt * 4, y->data, y->cnt * 4);
    }
    case TQI_TYPE_u8s: {
        const tqi_u8s_t *x = a, *y = b;
        return views_equal(x->data, x->cnt, y->data, y->cnt);
    }
    case TQI_TYPE_strs: {
        const tqi_strs_t *x = a, *y = b;
        if (x->cnt == 0 && y->cnt == 0)
            return true;
        return x->cnt == y->cnt && memcmp(x->offsets, y->offsets, (x->cnt + 1) * 4) == 0 &&
               views_equal(x->bytes, x->bytes_len, y->bytes, y->bytes_len);
    }
    }
    return false;
}

/* A random message of the kind, with each field there or not; sent and received. */
static void round_trip(const tqi_msg_info_t *info, tqi_rng_t *rng, tqi_buf_t *frame)
{
    _Alignas(16) uint8_t sent[1024] = {0}, got[1024];
    material_t m;
    tqi_err_t err;
    uint64_t open[3] = {3, 9, 12};
    char line[512];
    tqi_envelope_t in, out = {.kind = (uint16_t)info->kind,
                              .incarnation = tqi_rng_u64(rng),
                              .session = tqi_rng_u64(rng),
                              .epoch = (uint32_t)tqi_rng_u64(rng),
                              .budget_ms = 17,
                              .seq = tqi_rng_u64(rng),
                              .ack = 11,
                              .request_id = tqi_rng_u64(rng),
                              .sender = 4,
                              .attempt = 2,
                              .open_cnt = (uint16_t)tqi_rng_below(rng, 4)};

    assert_true(info->size <= sizeof sent);
    material_init(&m, rng);
    for (uint32_t i = 0; i < info->fields_cnt; i++)
        if (tqi_rng_chance(rng, 0.6))
            fill_field(&info->fields[i], sent + info->fields[i].offset, &m, rng);
    if (info->kind == TQI_KIND_Error) { /* rides in a reply that failed */
        out.kind = TQI_KIND_Publish_R;
        out.status = TQ_E_FULL;
    }
    tqi_buf_clear(frame);
    unit_check(tqi_msg_encode(frame, &out, open, sent, &err) == TQ_OK);
    unit_check(tqi_envelope_decode(frame->data, frame->len, &in, &err) == TQ_OK);
    unit_check(in.kind == out.kind && in.status == out.status && in.session == out.session &&
               in.seq == out.seq && in.ack == out.ack && in.open_cnt == out.open_cnt &&
               in.incarnation == out.incarnation && in.epoch == out.epoch && in.budget_ms == 17 &&
               in.request_id == out.request_id && in.sender == 4 && in.attempt == 2);
    for (unsigned i = 0; i < in.open_cnt; i++)
        unit_check(tqi_load_le64(in.open + 8 * i) == open[i]);
    unit_check(tqi_msg_decode(&in, (uint32_t)info->kind, got, &err) == TQ_OK);
    for (uint32_t i = 0; i < info->fields_cnt; i++) {
        const tqi_field_info_t *f = &info->fields[i];
        if (!field_equal(f, sent + f->offset, got + f->offset))
            fail_msg("%s.%s changed on its way (seed %llu)", info->name, f->name,
                     (unsigned long long)unit_seed);
    }
    unit_check(tqi_msg_print(&in, line, sizeof line) > 0);
}

static void every_message_comes_back_as_it_was_sent(void **state)
{
    uint32_t cnt;
    const tqi_msg_info_t *infos = tqi_msg_infos(&cnt);

    (void)state;
    assert_true(cnt > 40);
    for_each_seed(seed, 40)
    {
        unit_env_t e;
        tqi_rng_t rng;
        tqi_buf_t frame;

        unit_env_init(&e);
        tqi_buf_init(&frame, &e.env);
        tqi_rng_init(&rng, seed);
        for (uint32_t i = 0; i < cnt; i++)
            round_trip(&infos[i], &rng, &frame);
        tqi_buf_fini(&frame);
        unit_check(e.bytes == 0);
    }
}

static void numbers_and_keys_are_used_once(void **state)
{
    uint32_t cnt;
    const tqi_msg_info_t *infos = tqi_msg_infos(&cnt);

    (void)state;
    for (uint32_t i = 0; i < cnt; i++) {
        for (uint32_t j = 0; j < i; j++)
            assert_int_not_equal(infos[i].kind, infos[j].kind);
        for (uint32_t f = 0; f < infos[i].fields_cnt; f++)
            for (uint32_t g = 0; g < f; g++)
                assert_int_not_equal(infos[i].fields[f].key, infos[i].fields[g].key);
        assert_ptr_equal(tqi_msg_info((uint32_t)infos[i].kind), &infos[i]);
        bool is_reply = (uint32_t)infos[i].kind & TQI_KIND_REPLY;
        if (is_reply)
            assert_non_null(tqi_msg_info((uint32_t)infos[i].kind & ~TQI_KIND_REPLY));
        else if (infos[i].kind != TQI_KIND_Error)
            assert_non_null(tqi_msg_info((uint32_t)infos[i].kind | TQI_KIND_REPLY));
    }
}

/* Damaged frames are decoded to something within them, or refused; ASan sees the rest. */
static void damaged_frames_are_refused_or_read_within_their_bytes(void **state)
{
    uint32_t cnt;
    const tqi_msg_info_t *infos = tqi_msg_infos(&cnt);

    (void)state;
    for_each_seed(seed, 60)
    {
        unit_env_t e;
        tqi_rng_t rng;
        tqi_buf_t frame;

        unit_env_init(&e);
        tqi_buf_init(&frame, &e.env);
        tqi_rng_init(&rng, seed);
        for (uint32_t i = 0; i < cnt; i++) {
            _Alignas(16) uint8_t got[1024];
            tqi_envelope_t in;
            tqi_err_t err;
            char line[200];

            round_trip(&infos[i], &rng, &frame);
            size_t len = tqi_rng_chance(&rng, 0.3) ? tqi_rng_below(&rng, frame.len) : frame.len;
            uint8_t *copy = malloc(len + 1);
            memcpy(copy, frame.data, len);
            for (int flips = 0; flips < 3 && len > 0; flips++)
                copy[tqi_rng_below(&rng, len)] = (uint8_t)tqi_rng_u64(&rng);
            if (tqi_envelope_decode(copy, len, &in, &err) == TQ_OK) {
                tqi_msg_print(&in, line, sizeof line);
                if (tqi_msg_decode(&in, (uint32_t)infos[i].kind, got, &err) == TQ_OK)
                    for (uint32_t f = 0; f < infos[i].fields_cnt; f++)
                        if (infos[i].fields[f].type == TQI_TYPE_strs) {
                            const tqi_strs_t *s = (void *)(got + infos[i].fields[f].offset);
                            for (uint32_t k = 0; k < s->cnt; k++) {
                                tqi_str_t item = tqi_strs_at(*s, k);
                                unit_check(item.len <= s->bytes_len);
                            }
                        }
            } else {
                unit_check(err.text[0] != 0);
            }
            free(copy);
        }
        tqi_buf_fini(&frame);
    }
}

static void a_newer_peers_fields_are_skipped(void **state)
{
    /* A Bye body with fields that no catalogue of ours has. */
    static const uint8_t body[] = {0x82, 0x63, 0x92, 0x01, 0xa1, 'x', 0x64, 0xc3};
    tqi_envelope_t env = {.body = body, .body_len = sizeof body};
    tqi_msg_Bye_t bye;

    (void)state;
    assert_int_equal(tqi_msg_decode(&env, TQI_KIND_Bye, &bye, NULL), TQ_OK);
    env.body_len--;
    assert_int_equal(tqi_msg_decode(&env, TQI_KIND_Bye, &bye, NULL), TQ_E_MALFORMED);
    assert_int_equal(tqi_msg_decode(&env, 0x7fff, &bye, NULL), TQ_E_UNSUPPORTED);
}

static void a_message_over_a_limit_is_refused_with_the_figures(void **state)
{
    unit_env_t e;
    tqi_buf_t frame;
    tqi_err_t err;
    char name[TQ_NAME_MAX + 2];
    tqi_envelope_t env = {.kind = TQI_KIND_Insert};
    tqi_msg_Insert_t insert = {.rows_cnt = 1};

    (void)state;
    unit_env_init(&e);
    tqi_buf_init(&frame, &e.env);
    memset(name, 'p', sizeof name - 1);
    name[sizeof name - 1] = 0;
    insert.partition = tqi_str(name);
    assert_int_equal(tqi_msg_encode(&frame, &env, NULL, &insert, &err), TQ_E_TOO_LARGE);
    assert_string_equal(err.text, "Insert.partition has 1025, over the limit of 1024");
    assert_int_equal(frame.len, 0);
    tqi_buf_fini(&frame);
}

static void without_memory_nothing_is_encoded_and_nothing_leaks(void **state)
{
    tqi_msg_Hello_t hello = {.name = tqi_str("worker"), .boot_id = tqi_str("b"), .pid = 1};
    tqi_envelope_t env = {.kind = TQI_KIND_Hello};

    (void)state;
    for (uint64_t n = 0;; n++) {
        unit_env_t e;
        tqi_buf_t frame;
        tqi_err_t err;

        unit_env_init(&e);
        e.fail_after = n;
        tqi_buf_init(&frame, &e.env);
        tq_status_t rc = tqi_msg_encode(&frame, &env, NULL, &hello, &err);
        assert_true(rc == TQ_OK || (rc == TQ_E_NO_MEMORY && frame.len == 0));
        tqi_buf_fini(&frame);
        assert_int_equal(e.bytes, 0);
        if (rc == TQ_OK)
            break;
    }
}

static void strings_are_built_one_by_one(void **state)
{
    unit_env_t e;
    tqi_strs_builder_t b;

    (void)state;
    unit_env_init(&e);
    tqi_strs_builder_init(&b, &e.env);
    assert_int_equal(tqi_strs_builder_view(&b).cnt, 0);
    assert_int_equal(tqi_strs_builder_add(&b, "one", 3), TQ_OK);
    assert_int_equal(tqi_strs_builder_add(&b, "", 0), TQ_OK);
    assert_int_equal(tqi_strs_builder_add(&b, "three", 5), TQ_OK);
    tqi_strs_t view = tqi_strs_builder_view(&b);
    assert_int_equal(view.cnt, 3);
    assert_memory_equal(tqi_strs_at(view, 2).data, "three", 5);
    assert_int_equal(tqi_strs_at(view, 1).len, 0);
    tqi_strs_builder_clear(&b);
    assert_int_equal(tqi_strs_builder_view(&b).cnt, 0);
    tqi_strs_builder_fini(&b);
    assert_int_equal(e.bytes, 0);
}

/* Decodes a body of one field whose value is `value`. */
static tq_status_t decode_one(const tqi_msg_info_t *info, const tqi_field_info_t *f,
                              const void *value, size_t len)
{
    tqi_envelope_t env = {.kind = (uint32_t)info->kind};
    unit_env_t e;
    tqi_buf_t body;
    void *msg = malloc(info->size);

    assert_non_null(msg);
    unit_env_init(&e);
    tqi_buf_init(&body, &e.env);
    assert_int_equal(tqi_put_map(&body, 1), TQ_OK);
    assert_int_equal(tqi_put_uint(&body, f->key), TQ_OK);
    assert_int_equal(tqi_buf_append(&body, value, len), TQ_OK);
    env.body = body.data;
    env.body_len = body.len;
    tq_status_t rc = tqi_msg_decode(&env, (uint32_t)info->kind, msg, NULL);
    tqi_buf_fini(&body);
    free(msg);
    return rc;
}

static void a_field_of_another_form_is_refused(void **state)
{
    static const struct {
        uint32_t types; /* that take it */
        uint8_t len;
        char value[20];
    } cases[] = {
#define TYPE(t) (1u << TQI_TYPE_##t)
        {0, 1, "\xc0"},
        {TYPE(u64) | TYPE(u32), 1, "\x00"},
        {TYPE(u64), 9, "\xcf\x00\x00\x00\x01\x00\x00\x00\x00"},
        {TYPE(bool), 1, "\xc2"},
        {TYPE(str), 2, "\xa1z"},
        {0, 3, "\xa2z\x00"}, /* with a NUL */
        {TYPE(bytes) | TYPE(u64s) | TYPE(u32s) | TYPE(u8s), 2, "\xc4\x00"},
        {TYPE(bytes) | TYPE(u8s), 3, "\xc4\x01z"},
        {TYPE(bytes) | TYPE(u32s) | TYPE(u8s), 6, "\xc4\x04zzzz"},
        {TYPE(strs), 15, "\x92\xc4\x08\x00\x00\x00\x00\x02\x00\x00\x00\xc4\x02zz"},
        {0, 16, "\x93\xc4\x08\x00\x00\x00\x00\x02\x00\x00\x00\xc4\x02zz\xc0"}, /* three */
        {0, 14, "\x92\xc4\x07\x00\x00\x00\x00\x02\x00\x00\xc4\x02zz"},         /* 7 bytes */
        {0, 11, "\x92\xc4\x04\x00\x00\x00\x00\xc4\x02zz"},                     /* 4 bytes */
        {0, 16, "\x92\xc4\x09\x00\x00\x00\x00\x02\x00\x00\x00\x00\xc4\x02zz"}, /* 9 bytes */
        {0, 15, "\x92\xc4\x08\x01\x00\x00\x00\x02\x00\x00\x00\xc4\x02zz"},     /* not from 0 */
        {0, 15, "\x92\xc4\x08\x00\x00\x00\x00\x03\x00\x00\x00\xc4\x02zz"},     /* beyond */
        {0, 3, "\x92\x01\x02"},
        {0, 12, "\x92\xc4\x08\x00\x00\x00\x00\x02\x00\x00\x00\x01"},
        {0, 11, "\x92\xc4\x08\x00\x00\x00\x00\x02\x00\x00\x00"}, /* cut off */
#undef TYPE
    };
    uint32_t seen = 0;

    (void)state;
    for (uint32_t kind = 0; kind <= UINT16_MAX; kind++) {
        const tqi_msg_info_t *info = tqi_msg_info(kind);

        for (uint32_t i = 0; info && i < info->fields_cnt; i++) {
            const tqi_field_info_t *f = &info->fields[i];

            seen |= 1u << f->type;
            for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
                tq_status_t rc = decode_one(info, f, cases[c].value, cases[c].len);

                if (rc != (cases[c].types >> f->type & 1 ? TQ_OK : TQ_E_MALFORMED))
                    fail_msg("%s.%s: case %zu is %s", info->name, f->name, c, tq_status_name(rc));
            }
        }
    }
    assert_true(seen >> TQI_TYPE_strs & seen >> TQI_TYPE_u64s & seen >> TQI_TYPE_bool & 1);
}

static void a_line_fits_whatever_room_it_is_given(void **state)
{
    static const char want[] = "? seq=7 session=9 attempt=2 ack=3-0 (malformed)";
    tqi_envelope_t env = {.kind = 0xffff, .seq = 7, .session = 9, .attempt = 2, .ack = 3};
    char line[sizeof want + 10];

    (void)state;
    assert_int_equal(tqi_msg_print(&env, line, 0), 0);
    for (size_t len = 1; len <= sizeof line; len++) {
        size_t most = len - 1 < sizeof want - 1 ? len - 1 : sizeof want - 1;

        memset(line, '#', sizeof line);
        assert_int_equal(tqi_msg_print(&env, line, len), most);
        assert_memory_equal(line, want, most);
        assert_int_equal(line[most], 0);
    }
}

static void a_list_of_strings_is_below_2_to_the_32_bytes(void **state)
{
    unit_env_t e;
    tqi_strs_builder_t b;

    (void)state;
    unit_env_init(&e);
    tqi_strs_builder_init(&b, &e.env);
    assert_int_equal(tqi_strs_builder_add(&b, "z", 1), TQ_OK);
    assert_int_equal(tqi_strs_builder_add(&b, "z", UINT32_MAX), TQ_E_TOO_LARGE);
    assert_int_equal(tqi_strs_builder_view(&b).cnt, 1);
    tqi_strs_builder_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_comes_back_as_it_was_sent),
        cmocka_unit_test(numbers_and_keys_are_used_once),
        cmocka_unit_test(damaged_frames_are_refused_or_read_within_their_bytes),
        cmocka_unit_test(a_newer_peers_fields_are_skipped),
        cmocka_unit_test(a_message_over_a_limit_is_refused_with_the_figures),
        cmocka_unit_test(without_memory_nothing_is_encoded_and_nothing_leaks),
        cmocka_unit_test(strings_are_built_one_by_one),
        cmocka_unit_test(a_field_of_another_form_is_refused),
        cmocka_unit_test(a_line_fits_whatever_room_it_is_given),
        cmocka_unit_test(a_list_of_strings_is_below_2_to_the_32_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
