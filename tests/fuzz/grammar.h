/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The language that hostile peers speak, made from the catalogue: bodies of messages whose fields
 * fit each other often enough to get past the first check, and stories of many such messages.
 *
 * A story is records. A record is a head of FUZZ_HEAD bytes and `len` bytes of body:
 *
 *   0 choice u8 | 1 len u16 | 3 kind u16 | 5 flags u8 | 6 seq u8 | 7 ack u8      little-endian
 *
 * What choice, flags, seq and ack mean is peer.h's business.
 */
#ifndef TQI_TESTS_FUZZ_GRAMMAR_H
#define TQI_TESTS_FUZZ_GRAMMAR_H

#include "base/rng.h"
#include "wire/msg.h"

#define FUZZ_HEAD 8

typedef struct fuzz_record {
    uint8_t choice, flags, seq, ack;
    uint16_t kind;
    const uint8_t *body;
    size_t len;
} fuzz_record_t;

/* Reads the record at *at and moves *at behind it; a body that is cut is what is there. False at the
 * end. */
bool fuzz_record_read(const uint8_t *data, size_t len, size_t *at, fuzz_record_t *record);
/* Writes one; returns its length, 0 where it does not fit into cap. */
size_t fuzz_record_write(uint8_t *out, size_t cap, const fuzz_record_t *record);

/* The row of the catalogue for a kind; any number names some row. */
const tqi_msg_info_t *fuzz_kind(uint16_t kind);
/* A body for the message; returns its length, 0 where it does not fit into cap. */
size_t fuzz_body_make(const tqi_msg_info_t *info, tqi_rng_t *rng, uint8_t *out, size_t cap);
/* Changes a field or two of a body in place; one that is none is made anew. Returns its length. */
size_t fuzz_body_change(const tqi_msg_info_t *info, tqi_rng_t *rng, uint8_t *body, size_t len,
                        size_t cap);

/* Changes a story in place: a record more, less, twice, elsewhere, with another head or body. New
 * ones are of kinds that `is_wanted` takes. */
size_t fuzz_story_change(uint8_t *data, size_t len, size_t cap, tqi_rng_t *rng,
                         bool (*is_wanted)(const tqi_msg_info_t *info));

#endif
