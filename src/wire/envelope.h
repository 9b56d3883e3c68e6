/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The envelope: the fixed header in front of every control message, little-endian, 80 bytes, then
 * open_cnt seqs, then the body. A frame is one control message, whole.
 *
 *   0 magic u32 | 4 version u16 | 6 kind u16 | 8 status u16 | 10 flags u16 | 12 attempt u16 |
 *   14 open_cnt u16 | 16 incarnation u64 | 24 session u64 | 32 epoch u32 | 36 budget_ms u32 |
 *   40 seq u64 | 48 ack u64 | 56 request_id u64 | 64 body_len u32 | 68 sender u32 | 72 reserved u64
 */
#ifndef TQI_WIRE_ENVELOPE_H
#define TQI_WIRE_ENVELOPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define TQI_MAGIC 0x31515454u /* "TTQ1" */
#define TQI_VERSION_MIN 1
#define TQI_VERSION_MAX 1
#define TQI_ENVELOPE_BYTES 80
#define TQI_KIND_REPLY 0x8000u
#define TQI_OPEN_MAX 1024

typedef struct tqi_envelope {
    uint16_t version;
    uint16_t kind;        /* enum tqi_kind; replies have TQI_KIND_REPLY set */
    uint16_t status;      /* tq_status_t; requests 0. Not OK: the body is an Error */
    uint16_t flags;       /* 0 so far */
    uint16_t attempt;     /* 0 for the first time that this seq is sent */
    uint64_t incarnation; /* of the store; 0 in a HELLO or REGISTER that knows none yet */
    uint64_t session;     /* of the client; 0 between controller and units */
    uint32_t epoch;       /* of the connection, from its HELLO */
    uint32_t budget_ms;   /* what is left for the request, UINT32_MAX: unlimited */
    uint64_t seq;         /* per (session, peer), from 1; 0: a message that wants no outcome kept
                             (HELLO, PING, REGISTER, a lone ack) */
    uint64_t ack; /* newest seq whose reply was taken; older ones that are still open follow */
    uint64_t request_id; /* for logs: the same at every hop of one operation */
    uint32_t sender;     /* unit id; 0 for controller and clients */
    uint16_t open_cnt;   /* <= TQI_OPEN_MAX */
    const uint8_t *open; /* open_cnt little-endian u64, ascending; read with tqi_load_le64 */
    const uint8_t *body;
    uint32_t body_len;
} tqi_envelope_t;

/* Appends header and open list to buf and reserves nothing for the body: append the body, then
 * call tqi_envelope_seal, which writes body_len. `open` points to open_cnt uint64_t in host order.
 * E_NO_MEMORY. */
tq_status_t tqi_envelope_begin(tqi_buf_t *buf, const tqi_envelope_t *env, const uint64_t *open);
void tqi_envelope_seal(tqi_buf_t *buf);

/* Total: any bytes give either OK, with pointers into data, or E_MALFORMED / E_VERSION (magic is
 * right, version unknown) and the reason. Checks body_len against len exactly. */
tq_status_t tqi_envelope_decode(const void *data, size_t len, tqi_envelope_t *env, tqi_err_t *err);

#endif
