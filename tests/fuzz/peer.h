/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile peer: a role between ports that swallow what it says, fed by the fuzzer's bytes.
 *
 * An input is records: [choice u8][len u16][len bytes]. The choice picks a peer (its low bits) and
 * whether the bytes are a frame as it is, or the body of a message of the kind that its first two
 * bytes name, in an envelope that a real peer could send, so that the fuzzer gets past the door.
 */
#ifndef TQI_TESTS_FUZZ_PEER_H
#define TQI_TESTS_FUZZ_PEER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "role/role.h"
#include "wire/msg.h"

#define FUZZ_STORE UINT64_C(0x1122334455667788)
#define FUZZ_NS_PER_RECORD UINT64_C(30000000)
/* What a role may hold after a few kilobytes of input: far above what it needs, far below what a
 * lying count would ask for. */
#define FUZZ_BYTES_MAX (size_t)(64u << 20)

typedef struct fuzz {
    tqi_env_t env;
    tqi_ctrl_t ctrl;
    size_t bytes;
    tqi_peer_t peer_last;
    uint64_t session;       /* the last one that was given */
    uint64_t request_of[4]; /* seq of the newest request that the role sent to a peer */
    uint64_t now_ns;
} fuzz_t;

static void *fuzz_mem(void *ctx, void *ptr, size_t old_size, size_t new_size)
{
    fuzz_t *f = ctx;
    f->bytes += new_size - old_size;
    if (f->bytes > FUZZ_BYTES_MAX) {
        fprintf(stderr, "a role holds %zu bytes for a small input\n", f->bytes);
        abort();
    }
    if (new_size == 0) {
        free(ptr);
        return NULL;
    }
    return realloc(ptr, new_size);
}

static tq_status_t fuzz_connect(tqi_ctrl_t *ctrl, const char *address, tqi_peer_t *peer,
                                tqi_err_t *err)
{
    fuzz_t *f = tqi_container_of(ctrl, fuzz_t, ctrl);
    (void)address, (void)err;
    *peer = ++f->peer_last;
    return TQ_OK;
}

static void fuzz_disconnect(tqi_ctrl_t *ctrl, tqi_peer_t peer)
{
    (void)ctrl, (void)peer;
}

/* Whatever a role says is well-formed; what the fuzzer needs of it is remembered. */
static tq_status_t fuzz_send(tqi_ctrl_t *ctrl, tqi_peer_t peer, tqi_buf_t *frame)
{
    fuzz_t *f = tqi_container_of(ctrl, fuzz_t, ctrl);
    tqi_envelope_t env;
    if (tqi_envelope_decode(frame->data, frame->len, &env, NULL) != TQ_OK)
        abort();
    if (env.kind == TQI_KIND_Hello_R && env.session)
        f->session = env.session;
    if (!(env.kind & TQI_KIND_REPLY))
        f->request_of[peer & 3] = env.seq;
    tqi_buf_fini(frame);
    return TQ_OK;
}

static void fuzz_init(fuzz_t *f)
{
    memset(f, 0, sizeof *f);
    f->env = (tqi_env_t){f, fuzz_mem};
    f->ctrl = (tqi_ctrl_t){fuzz_connect, fuzz_disconnect, fuzz_send, NULL};
    f->now_ns = UINT64_C(1000000000000);
}

static void fuzz_step(fuzz_t *f, tqi_role_t *role)
{
    for (int turns = 0; turns < 1000 && role->step(role, f->now_ns) <= f->now_ns; turns++)
        continue;
}

/* A message of the kind in the first two bytes, with the rest as its body. */
static void fuzz_message(fuzz_t *f, tqi_role_t *role, tqi_peer_t peer, const uint8_t *data,
                         size_t len)
{
    uint32_t infos_cnt;
    const tqi_msg_info_t *infos = tqi_msg_infos(&infos_cnt);
    tqi_buf_t frame;
    if (len < 4)
        return;
    const tqi_msg_info_t *info = &infos[data[0] % infos_cnt];
    bool is_reply = (uint32_t)info->kind & TQI_KIND_REPLY;
    tqi_envelope_t env = {.kind = (uint16_t)info->kind,
                          .incarnation = data[1] & 1 ? 0 : FUZZ_STORE,
                          .session = data[1] & 2 ? 0 : f->session,
                          .seq = is_reply ? f->request_of[peer & 3] : data[2],
                          .ack = data[3] & 15,
                          .budget_ms = data[3] & 16 ? 0 : 1000,
                          .epoch = 1};
    tqi_buf_init(&frame, &f->env);
    if (tqi_envelope_begin(&frame, &env, NULL) == TQ_OK &&
        tqi_buf_append(&frame, data + 4, len - 4) == TQ_OK) {
        tqi_envelope_seal(&frame);
        role->on_message(role, peer, frame.data, frame.len, f->now_ns);
    }
    tqi_buf_fini(&frame);
}

static void fuzz_feed(fuzz_t *f, tqi_role_t *role, const uint8_t *data, size_t len)
{
    fuzz_step(f, role);
    while (len >= 3) {
        uint8_t choice = data[0];
        size_t n = tqi_size_min(tqi_load_le16(data + 1), len - 3);
        tqi_peer_t peer = 1 + (choice & 3);
        if (choice & 4)
            role->on_peer_down(role, peer, f->now_ns);
        else if (choice & 8)
            role->on_message(role, peer, data + 3, n, f->now_ns);
        else
            fuzz_message(f, role, peer, data + 3, n);
        f->now_ns += choice & 16 ? 100 * FUZZ_NS_PER_RECORD : FUZZ_NS_PER_RECORD;
        fuzz_step(f, role);
        data += 3 + n;
        len -= 3 + n;
    }
}

static void fuzz_over(fuzz_t *f)
{
    if (f->bytes != 0) {
        fprintf(stderr, "%zu bytes were not given back\n", f->bytes);
        abort();
    }
}

#endif
