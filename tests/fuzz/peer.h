/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile peers: a role between ports that remember what it says, fed with a story (grammar.h).
 *
 * choice   bits 0-1: which of four peers. Bits 2-4: FUZZ_SAY.. below. Bits 5-7: the time before it.
 * flags    FUZZ_F_*: what the envelope gets wrong. Without any it is what a real peer would send, so
 *          that stories get past the door.
 * seq      of a request. A reply takes the seq of the newest request of its kind that the role has
 *          sent to that peer.
 * ack      bits 0-5: the ack; bit 6: with an open list of every other seq before it; bit 7: far up
 *
 * Memory is counted. Each message may cost so much and no more (fuzz_t.allowed), so a count that
 * lies is found at once; and a role that has seen its hostile peers go is back where it was, which
 * the targets check.
 */
#ifndef TQI_TESTS_FUZZ_PEER_H
#define TQI_TESTS_FUZZ_PEER_H

#include "fuzz.h"
#include "grammar.h"

#include "role/role.h"

#define FUZZ_STORE UINT64_C(0x1122334455667788)
#define FUZZ_MS UINT64_C(1000000)
#define FUZZ_PEERS 4
#define FUZZ_REQUESTS 64 /* of the role, remembered */

/* What a record is, by bits 2-4 of choice; the rest say a message, too. */
enum { FUZZ_SAY, FUZZ_SAY_AGAIN, FUZZ_RAW, FUZZ_DOWN, FUZZ_HOST, FUZZ_HOST_TOO };

#define FUZZ_F_NO_STORE 1u
#define FUZZ_F_NO_SESSION 2u
#define FUZZ_F_OTHERS_SESSION 4u /* the next peer's */
#define FUZZ_F_GUESSED_SESSION 8u
#define FUZZ_F_NO_TIME 16u
#define FUZZ_F_FOR_EVER 32u
#define FUZZ_F_EPOCH 64u
#define FUZZ_F_ERROR 128u

typedef struct fuzz_request {
    tqi_peer_t peer;
    uint16_t kind;
    uint64_t seq;
    uint64_t session;
    uint32_t epoch;
} fuzz_request_t;

typedef struct fuzz fuzz_t;
struct fuzz {
    tqi_env_t env;
    tqi_ctrl_t ctrl;
    tqi_role_t *role;
    uint64_t now_ns;
    size_t bytes;
    size_t allowed;
    const char *where; /* for messages: what is going on */

    tqi_peer_t peer_last;
    tqi_peer_t peers[FUZZ_PEERS];  /* handle of each hostile peer now */
    uint64_t sessions[FUZZ_PEERS]; /* that it was given, or made up */
    uint32_t epochs[FUZZ_PEERS];
    fuzz_request_t requests[FUZZ_REQUESTS]; /* the role's newest, a ring */
    unsigned requests_cnt;
    uint64_t store; /* in envelopes */
    uint32_t sender;

    /* Somebody honest: what the role sends to `friend` is kept, one frame. */
    tqi_peer_t friend;
    uint32_t friend_epoch;
    tqi_buf_t answer;
    tqi_envelope_t answer_env;

    /* Optional, the target's. */
    void (*on_connect)(fuzz_t *f, tqi_peer_t peer, const char *address);
    void (*on_sent)(fuzz_t *f, tqi_peer_t peer, const tqi_envelope_t *env);
    void (*after_step)(fuzz_t *f);                        /* honest peers answer, ports report */
    void (*host)(fuzz_t *f, const fuzz_record_t *record); /* FUZZ_HOST */
    void (*check)(fuzz_t *f);                             /* after each record */
    size_t (*cost)(const tqi_envelope_t *env);            /* beyond what every message may cost */
};

void fuzz_init(fuzz_t *f);
/* Nothing may be left. */
void fuzz_over(fuzz_t *f);
/* A handle that was never used. */
tqi_peer_t fuzz_connect_peer(fuzz_t *f);
/* Runs the role until it rests, and the target's own after it. */
void fuzz_step(fuzz_t *f);
/* Lets time pass in steps of at most 500 ms. */
void fuzz_pass(fuzz_t *f, uint64_t ms);
/* Tells the whole story. */
void fuzz_feed(fuzz_t *f, const uint8_t *data, size_t len);
/* The frame of a message comes to the role. body NULL: none. */
void fuzz_deliver(fuzz_t *f, tqi_peer_t peer, const tqi_envelope_t *env, const uint64_t *open,
                  const void *body, size_t body_len);
/* The same of a message of the catalogue. */
void fuzz_say(fuzz_t *f, tqi_peer_t peer, const tqi_envelope_t *env, const void *msg);

/* The friend asks, and waits for the answer to that seq for up to a minute, while the target's
 * after_step keeps the rest alive. Returns its status; its body is in f->answer_env until the next. */
tq_status_t fuzz_ask(fuzz_t *f, uint16_t kind, uint64_t session, uint64_t seq, const void *msg);
/* The text of an error that fuzz_ask returned. */
const char *fuzz_answer_text(fuzz_t *f);

#endif
