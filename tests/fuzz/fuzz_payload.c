/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both ends of the payload connections of src/net/zmq, with hostile peers behind a libzmq that is
 * none (fake_zmq.h). Every frame has memory of its own, which goes the moment that its transfer is
 * reported: whoever touches it later, or beyond, is found by a sanitizer. Each transfer is reported
 * once.
 *
 * An input is records of 4 bytes, [what u8][who u8][len u16], and len bytes.
 */
#include "fuzz.h"

#include <errno.h>
#include <string.h>
#include <zmq.h>

#include "base/size.h"
#include "fake_zmq.h"
#include "net/zmq/stream.h"
#include "net/zmq/zmq_payload.h"
#include "sys/env_malloc.h"

#define SLOTS 8
#define FRAMES_MAX 4
#define JOBS_MAX 64

/* A transfer at a port. */
typedef struct slot {
    bool is_open;
    tqi_transfer_key_t key;
    tqi_frame_t frames[FRAMES_MAX];
    tqi_piece_t pieces[FRAMES_MAX][2];
    uint32_t cnt;
} slot_t;

static tqi_mailbox_t *mailbox;
static tqi_zmq_payload_unit_t *unit;
static tqi_zmq_payload_client_t *client;
static slot_t unit_slots[SLOTS], client_slots[SLOTS];
static uint8_t tokens[4][16];
static tqi_copy_job_t *jobs[JOBS_MAX];
static unsigned jobs_cnt;

/* ---- the copy pool --------------------------------------------------------------------------- */

static void job_end(unsigned i, bool was_cancelled)
{
    tqi_copy_job_t *job = jobs[i];
    jobs[i] = jobs[--jobs_cnt];
    for (uint32_t p = 0; p < job->pieces_cnt && !was_cancelled; p++)
        memcpy(job->pieces[p].dst, job->pieces[p].src, job->pieces[p].len);
    job->on_done(job, was_cancelled);
}

void tqi_exec_submit(tqi_exec_t *exec, tqi_copy_job_t *job)
{
    (void)exec;
    if (jobs_cnt == JOBS_MAX)
        job_end(0, false);
    jobs[jobs_cnt++] = job;
}

void tqi_exec_cancel(tqi_exec_t *exec, tqi_copy_job_t *job)
{
    (void)exec;
    for (unsigned i = 0; i < jobs_cnt; i++)
        if (jobs[i] == job) {
            job_end(i, true);
            return;
        }
}

/* ---- transfers ------------------------------------------------------------------------------- */

static void slot_free(slot_t *slot)
{
    for (uint32_t i = 0; i < slot->cnt; i++)
        for (uint32_t p = 0; p < slot->frames[i].pieces_cnt; p++)
            free(slot->pieces[i][p].data);
    memset(slot, 0, sizeof *slot);
}

/* Frames of sizes that the two bytes name: none, a few bytes, more than is gathered or inlined. */
static void slot_make(slot_t *slot, tqi_transfer_key_t key, uint8_t a, uint8_t b)
{
    static const size_t sizes[] = {0, 1, 40, 1000, 65536, 65537, 200000, 8};
    slot->is_open = true;
    slot->key = key;
    slot->cnt = a % (FRAMES_MAX + 1);
    for (uint32_t i = 0; i < slot->cnt; i++) {
        tqi_frame_t *frame = &slot->frames[i];
        frame->pieces = slot->pieces[i];
        frame->pieces_cnt = 1 + (b >> i & 1);
        for (uint32_t p = 0; p < frame->pieces_cnt; p++) {
            size_t len = sizes[(a + b * (i + 1) + p) % tqi_array_len(sizes)];
            slot->pieces[i][p] = (tqi_piece_t){calloc(len ? len : 1, 1), len};
            frame->bytes += len;
        }
    }
}

static void report(slot_t *slots, tqi_transfer_key_t key, tq_status_t status, const char *text)
{
    slot_t *slot = &slots[key.transfer % SLOTS];
    fuzz_require(slot->is_open && slot->key.owner == key.owner &&
                     slot->key.transfer == key.transfer,
                 "a transfer was reported that is over, or never was");
    fuzz_require(status == TQ_OK || (text && text[0]), "a failure without a sentence");
    slot_free(slot);
}

static void on_unit_payload(void *ctx, tqi_transfer_key_t key, tq_status_t status, const char *text)
{
    (void)ctx;
    report(unit_slots, key, status, text);
}

static void on_client_payload(void *ctx, tqi_transfer_key_t key, tq_status_t status,
                              const char *text)
{
    (void)ctx;
    report(client_slots, key, status, text);
}

/* ---- the story ------------------------------------------------------------------------------- */

/* A head that could be right, from a few bytes. */
static size_t good_head(uint8_t out[TQI_STREAM_HEAD], const uint8_t *data, size_t len)
{
    if (len < 6)
        return 0;
    tqi_stream_head_t head = {.kind = data[0] % 7,
                              .id = data[1] % SLOTS,
                              .frame = data[2] % FRAMES_MAX,
                              .len = (uint32_t)len - 6,
                              .offset = tqi_load_le16(data + 3),
                              .credit = data[5] % 2 ? UINT64_MAX : data[5]};
    if (data[5] & 128)
        head.len += 1;
    tqi_stream_head_write(out, &head);
    return 6;
}

/* Bits of who: 0-1 route or connection, 2 a head that could be right, 3 no data, 4-5 more parts. */
static void message(void *socket, bool is_router, uint8_t who, const uint8_t *data, size_t len)
{
    uint8_t head[TQI_STREAM_HEAD], route[2] = {'r', (uint8_t)(who & 3)};
    size_t used = who & 4 ? good_head(head, data, len) : 0;
    const uint8_t *rest = data + used;
    size_t rest_len = len - used;
    if (is_router)
        fake_arrive(socket, route, sizeof route, true);
    if (used > 0) {
        fake_arrive(socket, head, sizeof head, !(who & 8));
    } else {
        size_t cut = tqi_size_min(len, TQI_STREAM_HEAD);
        fake_arrive(socket, data, cut, !(who & 8));
        rest = data + cut;
        rest_len = len - cut;
    }
    if (who & 8)
        return;
    unsigned more = who >> 4 & 3;
    /* A chunk as large as the copy pool's, for a few bytes. */
    static uint8_t large[70000];
    if (who & 64 && rest_len > 0 && used > 0)
        fake_arrive(socket, large, sizeof large, more > 0);
    else
        fake_arrive(socket, rest, rest_len, more > 0);
    for (; more > 0; more--)
        fake_arrive(socket, rest, rest_len, more > 1);
}

/* A connection says HELLO with the token that its session was given, or with another. */
static void hello(uint8_t who, uint8_t flaw)
{
    uint8_t head[TQI_STREAM_HEAD], route[2] = {'r', (uint8_t)(who & 3)};
    tqi_stream_head_t hello = {.kind = TQI_STREAM_HELLO, .id = who & 3};
    tqi_stream_head_write(head, &hello);
    void *socket = fake_socket(ZMQ_ROUTER, 0);
    fake_arrive(socket, route, sizeof route, true);
    fake_arrive(socket, head, sizeof head, true);
    fake_arrive(socket, tokens[(who + (flaw == 1)) & 3], flaw == 2 ? 3 : 16, false);
}

static void unit_call(uint8_t who, const uint8_t *data, size_t len)
{
    tqi_payload_unit_t *port = tqi_zmq_payload_unit_port(unit);
    uint8_t a = len > 0 ? data[0] : 0, b = len > 1 ? data[1] : 0, c = len > 2 ? data[2] : 0;
    tqi_transfer_key_t key = {who & 3, a % SLOTS};
    slot_t *slot = &unit_slots[key.transfer];
    const char *address;
    uint64_t arena;
    tq_status_t rc = TQ_OK;
    switch (who >> 2 & 7) {
    case 0:
        (void)port->offer(port, who & 3, &address, tokens[who & 3], &arena);
        break;
    case 1:
        port->forget(port, who & 3);
        break;
    case 2:
    case 3:
    case 4:
        if (slot->is_open)
            break;
        slot_make(slot, key, b, c);
        rc = (who >> 2 & 7) == 4 ? port->send(port, key, slot->frames, slot->cnt, NULL)
                                 : port->expect(port, key, slot->frames, slot->cnt, NULL);
        if (rc != TQ_OK)
            slot_free(slot);
        break;
    default:
        if (slot->is_open)
            port->drop(port, slot->key);
        else
            port->drop(port, key);
    }
}

static void client_call(uint8_t who, const uint8_t *data, size_t len)
{
    tqi_payload_client_t *port = tqi_zmq_payload_client_port(client);
    uint8_t a = len > 0 ? data[0] : 0, b = len > 1 ? data[1] : 0, c = len > 2 ? data[2] : 0;
    tqi_transfer_key_t key = {who & 3, a % SLOTS};
    slot_t *slot = &client_slots[key.transfer];
    tqi_remote_frame_t remote[FRAMES_MAX] = {0};
    tq_status_t rc = TQ_OK;
    switch (who >> 2 & 7) {
    case 0:
    case 1:
        (void)port->open(port, who & 3, a == 255 ? "bad" : "tcp://unit:1", tokens[0], 16, 7, 0,
                         NULL);
        break;
    case 2:
        port->close(port, who & 3);
        break;
    case 3:
    case 4:
    case 5:
        if (slot->is_open)
            break;
        slot_make(slot, key, b, c);
        rc = (who >> 2 & 7) == 5
                 ? port->write(port, key, slot->frames, remote, slot->cnt, NULL, NULL)
                 : port->read(port, key, slot->frames, remote, slot->cnt, NULL, NULL);
        if (rc != TQ_OK)
            slot_free(slot);
        break;
    default:
        if (slot->is_open)
            port->drop(port, slot->key);
        else
            port->drop(port, key);
    }
}

static void run(void)
{
    tqi_source_t *sources[] = {tqi_zmq_payload_unit_source(unit),
                               tqi_zmq_payload_client_source(client)};
    for (int i = 0; i < 2; i++) {
        unsigned turns = 0;
        while (turns < 10000 && sources[i]->run(sources[i], 1) <= 1)
            turns++;
        fuzz_require(turns < 10000, "a port does not come to rest");
    }
    (void)tqi_mailbox_open(mailbox);
}

static void tell(uint8_t what, uint8_t who, const uint8_t *data, size_t len)
{
    void *dealer = fake_socket(ZMQ_DEALER, who & 3);
    switch (what % 10) {
    case 0:
    case 1:
        message(fake_socket(ZMQ_ROUTER, 0), true, who, data, len);
        break;
    case 2:
    case 3:
        if (dealer)
            message(dealer, false, who, data, len);
        break;
    case 4:
        hello(who, who >> 2 & 3);
        break;
    case 5:
        unit_call(who, data, len);
        break;
    case 6:
        client_call(who, data, len);
        break;
    case 7:
        if (dealer)
            fake_event(dealer, who & 4 ? TQI_LINK_DOWN : TQI_LINK_UP);
        break;
    case 8:
        fake_refuse(who % 3 == 0 ? 0 : who % 3 == 1 ? EAGAIN : EHOSTUNREACH);
        break;
    default:
        fake_release(who & 1);
        while (who & 2 && jobs_cnt > 0)
            job_end(0, false);
    }
}

void tqi_fuzz_one(const uint8_t *data, size_t len)
{
    const tqi_env_t *env = tqi_env_malloc();
    tqi_sink_t unit_sink = {.on_payload = on_unit_payload};
    tqi_sink_t client_sink = {.on_payload = on_client_payload};
    tqi_err_t err;
    jobs_cnt = 0;
    memset(tokens, 0, sizeof tokens);
    if (tqi_mailbox_new(&mailbox, &err) != TQ_OK ||
        tqi_zmq_payload_unit_new(env, "tcp://*:1", 0, mailbox, &unit_sink, &unit, &err) != TQ_OK ||
        tqi_zmq_payload_client_new(env, mailbox, NULL, &client_sink, &client, &err) != TQ_OK)
        abort();
    while (len >= 4) {
        size_t n = tqi_size_min(tqi_load_le16(data + 2), len - 4);
        tell(data[0], data[1], data + 4, n);
        run();
        data += 4 + n;
        len -= 4 + n;
    }
    /* The loop ends: what is under way is not reported any more. */
    fake_refuse(0);
    tqi_mailbox_close(mailbox);
    fake_release(true);
    while (jobs_cnt > 0)
        job_end(0, false);
    tqi_zmq_payload_unit_stop(unit);
    tqi_zmq_payload_client_stop(client);
    tqi_zmq_payload_unit_free(unit);
    tqi_zmq_payload_client_free(client);
    fake_over();
    for (int i = 0; i < SLOTS; i++) {
        slot_free(&unit_slots[i]);
        slot_free(&client_slots[i]);
    }
    tqi_mailbox_unref(mailbox);
}
