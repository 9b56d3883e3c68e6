/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the controller share.
 *
 * Work on a partition is an op: an object with a step function, queued at its partition, of which
 * one at a time runs (INV-10). A step gets a budget of rows and says whether the op is over; if not
 * it is called again after the loop has looked elsewhere. Requests are ops; so are the ends of puts,
 * the return of grants, the burial of cleared rows, and the wake-up of waiters, whose ops are
 * embedded in their records so that queueing them can't fail.
 *
 *   controller.c  the role: messages in, timers, the runner of ops
 *   request.c     a request from admission to reply
 *   session.c     HELLO, PING, BYE, silence, the end of a session
 *   put.c         pending puts: INSERT, RESOLVE
 *   publish.c     PUBLISH, TAGS
 *   fetch.c       FETCH, RETURN, RESET, CANCEL_OP, waiters, grants
 *   clear.c       CLEAR, and the burial of rows
 *   read.c        STATUS, LIST, FETCH of all
 *   units.c       REGISTER, PONG, LOST; UNLINK, CONFIRM, END_SESSION
 *   reply.c       columns of replies
 *   stat.c        figures and checks
 */
#ifndef TQI_ROLE_CONTROLLER_INTERNAL_H
#define TQI_ROLE_CONTROLLER_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include <tq/tq.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/interval.h"
#include "base/list.h"
#include "base/map.h"
#include "base/size.h"
#include "base/vec.h"
#include "core/clear.h"
#include "core/grant.h"
#include "core/outcome.h"
#include "core/partition.h"
#include "core/placement.h"
#include "core/sampler.h"
#include "core/waiter.h"
#include "role/controller/controller.h"
#include "role/controller/machines.h"
#include "wire/coldesc.h"
#include "wire/msg.h"

/* Requests that queue behind a partition's running op, and the bytes of their frames. Beyond either,
 * E_BUSY. */
#define QUEUE_REQUESTS_MAX 1024u
#define QUEUE_BYTES_MAX (64u << 20)
/* Puts of one session that were begun and not ended. */
#define SESSION_PUTS_MAX 8192u
/* Parts of a session's PUBLISHes that wait for their last, in bytes. */
#define SESSION_PARTS_BYTES_MAX (256u << 20)
/* Frames of a session's requests that queue or wait. Beyond it, E_BUSY. */
#define SESSION_FRAMES_BYTES_MAX (64u << 20)
/* Units of a store, and bytes of the addresses of one: their table must fit into one message. */
#define STORE_UNITS_MAX 8192u
#define UNIT_ADDRESSES_MAX 1024u
/* Lives of a unit that are known to be over, before the oldest are forgotten. */
#define UNIT_FORMER_MAX 1024u
/* Orders under way to one unit; the rest of the outbox is for what must not wait. */
#define UNIT_ORDERS_MAX 512u
#define CONFIRM_BATCH_MAX 4096u
/* Reply pages: rows, and bytes of names, keys and tags. */
#define PAGE_BYTES_MAX (4u << 20)

typedef struct op op_t;
typedef struct part part_t;
typedef struct request request_t;
typedef struct session session_t;
typedef struct put put_t;
typedef struct grant grant_t;
typedef struct clearing clearing_t;
typedef struct unit unit_t;

/* ---- states ----------------------------------------------------------------------------------- */

typedef enum session_state { TQI_MACHINE_STATES(CTL_SESSION) } session_state_t;
typedef enum session_event { TQI_MACHINE_EVENTS(CTL_SESSION) } session_event_t;
typedef enum put_state { TQI_MACHINE_STATES(CTL_PUT) } put_state_t;
typedef enum put_event { TQI_MACHINE_EVENTS(CTL_PUT) } put_event_t;
typedef enum unit_state { TQI_MACHINE_STATES(UNIT) } unit_state_t;
typedef enum unit_event { TQI_MACHINE_EVENTS(UNIT) } unit_event_t;

/* ---- timers ---------------------------------------------------------------------------------- */

typedef struct ctl_timer ctl_timer_t;
struct ctl_timer {
    tqi_heap_node_t node;
    void (*fire)(tqi_controller_t *ctl, ctl_timer_t *timer);
};

/* ---- ops ------------------------------------------------------------------------------------- */

struct op {
    tqi_node_t node; /* in its partition's queue */
    part_t *part;
    /* True: it is over. It may not free itself; finish (may be NULL) is called after it has left the
     * queue. Reduces *budget by the rows that it handled. */
    bool (*step)(tqi_controller_t *ctl, op_t *op, uint32_t *budget);
    void (*finish)(tqi_controller_t *ctl, op_t *op);
    bool is_started;
    bool is_request;
};

/* Queues at the end, or next after what runs now. In a queue already: no effect. */
void tqi_ctl_op_queue(tqi_controller_t *ctl, part_t *part, op_t *op);
void tqi_ctl_op_queue_next(tqi_controller_t *ctl, part_t *part, op_t *op);
/* Takes out an op that has not started. */
void tqi_ctl_op_unqueue(op_t *op);
/* Runs the partition's queue within a slice. The partition may be gone afterwards. */
void tqi_ctl_part_run(tqi_controller_t *ctl, part_t *part);

/* ---- partitions ------------------------------------------------------------------------------ */

/* A partition as the store knows it: a table and the queue in front of it. Until something is
 * inserted it only has waiters and is not known to anybody else. Cleared as a whole it leaves the
 * map of names at once, and is freed when its rows are dead. */
struct part {
    tqi_node_t node; /* in parts, or in dying */
    tqi_node_t run_node;
    char *name;
    uint32_t name_len;
    uint64_t ordinal; /* of creation */
    bool is_known;
    bool is_dying;
    bool is_running; /* inside part_run */
    tqi_partition_t table;
    tqi_list_t queue;
    uint32_t queued_requests;
    uint64_t queued_bytes;
    tqi_list_t clears;     /* tqi_clear_t */
    tqi_list_t puts;       /* put_t.in_part */
    tqi_map_str_t leaving; /* keys of CLEARING rows, to the clearing_t that has them */
    op_t wake;
    op_t sync;
    request_t *waking;      /* the waiter whose sampler run is under way */
    uint64_t changes_woken; /* table changes when waiters were looked at last */
};

part_t *tqi_ctl_part_find(tqi_controller_t *ctl, const void *name, size_t len);
/* Finds or makes one that is not known yet. E_NO_MEMORY; E_TOO_LARGE over TQ_PARTITIONS_MAX. */
tq_status_t tqi_ctl_part_make(tqi_controller_t *ctl, const void *name, size_t len, part_t **out,
                              tqi_err_t *err);
/* Rows come into it: from now on it is listed. Makes the rows ahead. */
tq_status_t tqi_ctl_part_known(tqi_controller_t *ctl, part_t *part, tqi_err_t *err);
/* Frees it if nothing holds it: no queue, waiters, rows or clears, and not known (or dying). */
void tqi_ctl_part_maybe_free(tqi_controller_t *ctl, part_t *part);
/* It is cleared as a whole: takes it out of the map of names; requests that queue behind `running`
 * and who waits go to a fresh one. E_NO_MEMORY, with nothing done. */
tq_status_t tqi_ctl_part_detach(tqi_controller_t *ctl, part_t *part, op_t *running);
/* A request joined (1) or left (-1) its queue. */
void tqi_ctl_part_count_queued(part_t *part, const op_t *op, int sign);
/* For printf's %.*s: what of a name goes into a sentence. */
static inline int part_show(const part_t *part)
{
    return (int)(part->name_len < 128 ? part->name_len : 128);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* A request waits for a clear that it did not begin. */
typedef struct join {
    tqi_node_t in_clear;
    tqi_node_t in_request;
    request_t *request;
    clearing_t *clearing;
} join_t;

/* One part of a publish, at work. */
typedef struct publish_part {
    tqi_msg_Publish_t msg;
    tqi_bits_t rows;
    tqi_field_t **fields;
    uint32_t fields_cap;
} publish_part_t;

typedef struct staged_tags {
    uint64_t pos;
    tqi_tags_t *tags;
} staged_tags_t;

typedef union request_msg {
    tqi_msg_Insert_t insert;
    tqi_msg_Resolve_t resolve;
    tqi_msg_Fetch_t fetch;
    tqi_msg_Return_t ret;
    tqi_msg_Publish_t publish;
    tqi_msg_Tags_t tags;
    tqi_msg_Clear_t clear;
    tqi_msg_Reset_t reset;
    tqi_msg_Status_t status;
    tqi_msg_List_t list;
    tqi_msg_CancelOp_t cancel;
    tqi_msg_Forget_t forget;
} request_msg_t;

/* Columns of a reply that has rows. */
typedef struct reply_rows {
    TQI_VEC(uint64_t) rows;
    TQI_VEC(uint32_t) units;
    TQI_VEC(uint8_t) has_key;
    TQI_VEC(uint8_t) has_data;
    TQI_VEC(uint32_t) life_units;
    TQI_VEC(uint64_t) lives;
    tqi_buf_t produced;
    tqi_strs_builder_t keys;
    tqi_strs_builder_t tags;
    tqi_strs_builder_t fields;
    tqi_strs_builder_t schemas;
} reply_rows_t;

struct request {
    op_t op; /* first */
    tqi_node_t in_session;
    session_t *session; /* NULL: it ended, nobody wants the reply */
    uint64_t seq;
    uint64_t request_id;
    uint16_t kind;
    bool is_parked; /* out of the queue, not replied: a waiter, or waiting for clears */
    bool is_replied;
    bool is_cancelled; /* CANCEL_OP came while it ran */
    bool is_committed; /* it was done: no lack of memory may make an error of that */
    bool is_late;      /* replied, but the outcome could not be kept yet */
    uint64_t deadline_ns;
    ctl_timer_t timer;    /* ends it at its deadline while it is parked */
    tqi_bytes_t borrowed; /* the frame, in the call that brought it */
    tqi_buf_t frame;      /* its own copy, from the moment that it queues or parks */
    request_msg_t msg;    /* views into the frame */
    tqi_buf_t late;       /* the reply, while there is no memory to keep it */

    unsigned phase;        /* of the step function of its kind */
    uint32_t at;           /* rows of the message handled */
    uint32_t part_at;      /* PUBLISH: part at work */
    uint64_t at_block;     /* ordinal, for walks over blocks */
    TQI_VEC(uint64_t) pos; /* positions of the message's rows, in its order */
    TQI_VEC(tqi_field_t *) fields;
    tqi_bits_t rows;
    reply_rows_t out;

    tqi_node_t homeless_node; /* in ctl->homeless, while it waits for a unit */
    uint64_t homeless_ns;     /* since when; 0: it has not had to */

    put_t *put;    /* INSERT, RESOLVE, PUBLISH */
    uint32_t unit; /* where new rows go, for the next part_left of them */
    uint32_t part_left;
    uint32_t placed_cnt;
    TQI_VEC(publish_part_t) parts;
    TQI_VEC(staged_tags_t) staged;
    tqi_map_u64_t staged_map;

    tqi_waiter_t waiter; /* FETCH */
    tqi_ready_t *set;    /* what its last try looked at */
    tqi_sample_t sample;

    clearing_t *clearing; /* CLEAR: its own */
    tqi_list_t joins;
    uint64_t rows_cnt;
};

/* Steps of the partition kinds: `bool xxx_step(ctl, op, budget)`. */
/* Puts that wait for a unit: there may be one now; one no longer waits; its time is up. */
void tqi_ctl_put_wake(tqi_controller_t *ctl);
void tqi_ctl_put_homed(tqi_controller_t *ctl, request_t *req);
void tqi_ctl_put_due(tqi_controller_t *ctl, request_t *req);

bool tqi_ctl_insert_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget);
bool tqi_ctl_resolve_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget);
bool tqi_ctl_publish_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget);
bool tqi_ctl_tags_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget);
bool tqi_ctl_fetch_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget);
bool tqi_ctl_return_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget);
bool tqi_ctl_reset_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget);
bool tqi_ctl_clear_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget);
bool tqi_ctl_status_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget);
bool tqi_ctl_list_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget);
bool tqi_ctl_fetch_all_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget);

/* Copies the frame, so that the request can outlive the call. E_NO_MEMORY; E_BUSY when its session has
 * too many such. */
tq_status_t tqi_ctl_request_own(tqi_controller_t *ctl, request_t *req);
/* Runs a request that is in no queue and belongs to no partition, from its beginning. */
void tqi_ctl_request_start(tqi_controller_t *ctl, request_t *req);
/* A request of a known session whose seq is not 0, checked against the session's window. */
void tqi_ctl_request_admit(tqi_controller_t *ctl, session_t *session, const tqi_envelope_t *env);
/* Answers a request that has not come yet, so that it is not executed when it does. False: it has
 * come, or there is no room to remember it. */
bool tqi_ctl_request_forestall(tqi_controller_t *ctl, session_t *session, uint16_t kind,
                               uint64_t seq, const tqi_err_t *err);
/* Answers once; msg is the struct of the reply's kind. Not OK: it was answered with that error. */
tq_status_t tqi_ctl_request_reply(tqi_controller_t *ctl, request_t *req, const void *msg);
/* The same for what has been done and can't be taken back: never an error. Where the answer does not
 * fit, or there is no memory for it, it goes without its columns. */
void tqi_ctl_request_reply_done(tqi_controller_t *ctl, request_t *req, const void *msg);
void tqi_ctl_request_fail(tqi_controller_t *ctl, request_t *req, const tqi_err_t *err);
/* The same with the rows and fields that it is about. */
void tqi_ctl_request_fail_about(tqi_controller_t *ctl, request_t *req, const tqi_err_t *err,
                                const uint64_t *rows, uint32_t rows_cnt, const tqi_strs_t *fields);
/* It stays without a place in the queue, with its own copy of the frame and its deadline armed.
 * E_NO_MEMORY, E_BUSY. */
tq_status_t tqi_ctl_request_park(tqi_controller_t *ctl, request_t *req);
/* Frees a request that is in no queue. */
void tqi_ctl_request_free(tqi_controller_t *ctl, request_t *req);
/* Frees what a publish had staged. */
void tqi_ctl_publish_forget(tqi_controller_t *ctl, request_t *req);
void tqi_ctl_stat_handle(tqi_controller_t *ctl, request_t *req);
void tqi_ctl_list_partitions(tqi_controller_t *ctl, request_t *req);
/* Ends a request that is parked or waits in a queue, unstarted, with the error; any other goes on. */
void tqi_ctl_request_leave(tqi_controller_t *ctl, request_t *req, const tqi_err_t *err);
void tqi_ctl_request_leave_about(tqi_controller_t *ctl, request_t *req, const tqi_err_t *err,
                                 const uint64_t *rows, uint32_t rows_cnt, const tqi_strs_t *fields);
/* Frees a request that has been answered and is in no queue, now or once its outcome is kept. */
void tqi_ctl_request_close(tqi_controller_t *ctl, request_t *req);
/* Tries again to keep the outcomes that no memory was found for. */
void tqi_ctl_request_late(tqi_controller_t *ctl);
/* A reply without a request (no seq, or refused before admission). */
void tqi_ctl_reply_direct(tqi_controller_t *ctl, tqi_peer_t peer, const tqi_envelope_t *env,
                          uint16_t kind, const void *msg);
void tqi_ctl_reply_error(tqi_controller_t *ctl, tqi_peer_t peer, const tqi_envelope_t *env,
                         const tqi_err_t *err);

static inline request_t *request_of(op_t *op)
{
    return tqi_container_of(op, request_t, op);
}

/* ---- reply columns --------------------------------------------------------------------------- */

void tqi_ctl_out_init(reply_rows_t *out, const tqi_env_t *env);
void tqi_ctl_out_fini(reply_rows_t *out);
/* Appends rows and units for positions (TQI_POS_NONE: TQ_ROW_NONE, 0). E_NO_MEMORY. */
tq_status_t tqi_ctl_out_rows(reply_rows_t *out, const tqi_partition_t *p, const uint64_t *pos,
                             uint32_t cnt);
/* The units of the table and the life of each that production speaks of. */
tq_status_t tqi_ctl_out_lives(reply_rows_t *out, const tqi_partition_t *p);
tq_status_t tqi_ctl_out_keys(reply_rows_t *out, const tqi_partition_t *p, const uint64_t *pos,
                             uint32_t cnt);
tq_status_t tqi_ctl_out_tags(reply_rows_t *out, const tqi_partition_t *p, const uint64_t *pos,
                             uint32_t cnt);
/* Sets the produced bits of rows [first, first + cnt) of the reply. Grows the bitset to them. */
tq_status_t tqi_ctl_out_produced(reply_rows_t *out, const tqi_partition_t *p, const uint64_t *pos,
                                 uint32_t cnt, uint32_t first, tqi_field_t *const *fields,
                                 uint32_t fields_cnt);
tq_status_t tqi_ctl_out_field(reply_rows_t *out, const tqi_field_t *field);
/* A schema, or an empty blob for a field that is not there (NULL) or has no values. */
tq_status_t tqi_ctl_out_schema(reply_rows_t *out, const tqi_field_t *field);

/* ---- sessions -------------------------------------------------------------------------------- */

struct session {
    tqi_controller_t *ctl;
    uint64_t id;
    tqi_peer_t peer; /* 0: no connection now */
    uint32_t epoch;
    uint64_t heard_ns;
    ctl_timer_t silence;
    session_state_t state;
    bool has_heard_closing;
    tqi_inbox_t *inbox;
    char name[257];
    char boot_id[65];
    uint64_t pid;
    uint64_t frames_bytes; /* of requests that have a copy of theirs */
    uint64_t parts_bytes;  /* of puts */
    tqi_list_t requests;   /* request_t.in_session */
    tqi_list_t puts;       /* put_t.in_session */
    tqi_map_u64_t grants;  /* seq to grant_t, provisional ones */
};

void tqi_ctl_hello_handle(tqi_controller_t *ctl, tqi_peer_t peer, const tqi_envelope_t *env);
void tqi_ctl_ping_handle(tqi_controller_t *ctl, tqi_peer_t peer, session_t *session,
                         const tqi_envelope_t *env);
void tqi_ctl_bye_handle(tqi_controller_t *ctl, tqi_peer_t peer, session_t *session,
                        const tqi_envelope_t *env);
session_t *tqi_ctl_session_find(tqi_controller_t *ctl, uint64_t id);
/* A frame of the session came from peer: alive, and its acknowledgements are taken. False: it is of
 * an older connection, drop it. */
bool tqi_ctl_session_heard(tqi_controller_t *ctl, session_t *session, tqi_peer_t peer,
                           const tqi_envelope_t *env);
/* BYE, SILENT or DIED. */
void tqi_ctl_session_end(tqi_controller_t *ctl, session_t *session, session_event_t event);
void tqi_ctl_session_step(session_t *session, session_event_t event);
void tqi_ctl_session_free(tqi_controller_t *ctl, session_t *session);

/* ---- puts ------------------------------------------------------------------------------------ */

/* A put from INSERT or RESOLVE to PUBLISH. INV-7: it counts once at each of its rows. */
struct put {
    op_t op; /* its end */
    tqi_node_t in_session;
    tqi_node_t in_part;
    uint64_t id;
    session_t *session; /* NULL: it ended */
    part_t *part;       /* NULL: it is gone */
    tqi_bits_t rows;
    uint64_t wipes; /* ctl->wipes when it began */
    uint64_t payload_bytes;
    TQI_VEC(tqi_buf_t) parts; /* bodies of parts that came before the last; empty where missing */
    uint64_t parts_bytes;
    put_state_t state;
    uint64_t at_block;   /* of its end */
    clearing_t *orphans; /* rows that only it had made */
};

/* PUBLISHED to SESSION_OVER of its events end it, unless it has ended: what only it had made is
 * cleared, the record goes. */
void tqi_ctl_put_end(tqi_controller_t *ctl, put_t *put, put_event_t event);
void tqi_ctl_put_step(put_t *put, put_event_t event);
/* So many bytes more of parts that wait; given back when it ends. */
void tqi_ctl_put_charge(put_t *put, uint64_t bytes);
/* Frees the record alone. */
void tqi_ctl_put_free(tqi_controller_t *ctl, put_t *put);

/* ---- grants ---------------------------------------------------------------------------------- */

struct grant {
    op_t op; /* its return */
    tqi_grant_t core;
    part_t *part;
    session_t *session; /* NULL: it ended */
    uint64_t seq;
    uint64_t at_block;
};

/* The session has taken the reply of seq. */
void tqi_ctl_grant_acked(tqi_controller_t *ctl, session_t *session, uint64_t seq);
/* Gives all of it back, by an op. */
void tqi_ctl_grant_give_back(tqi_controller_t *ctl, grant_t *grant);
/* The partition goes: there is nothing left to give back. */
void tqi_ctl_grants_drop(tqi_controller_t *ctl, part_t *part);
/* Queues all waiters of a partition anew at another, in order. */
void tqi_ctl_fetch_rehome(tqi_controller_t *ctl, part_t *from, part_t *to);
/* Frees waiters and grants, without a word. */
void tqi_ctl_fetch_free_all(tqi_controller_t *ctl, part_t *part);
void tqi_ctl_cancel_handle(tqi_controller_t *ctl, request_t *req);
bool tqi_ctl_wake_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget);
void tqi_ctl_fetch_due(tqi_controller_t *ctl, request_t *req);

/* ---- clears ---------------------------------------------------------------------------------- */

/* Rows of a clear that one unit has still to unlink. */
typedef struct unlinking {
    tqi_node_t node; /* in the unit's queue of those to send; unlinked while one is under way */
    clearing_t *clearing; /* NULL: slot not in use */
    unit_t *unit;
    uint64_t ordinal; /* block to go on with */
    bool is_sent_all;
    uint32_t under_way; /* messages sent and not answered */
} unlinking_t;

struct clearing {
    tqi_controller_t *ctl;
    tqi_clear_t core;
    op_t op; /* burial */
    part_t *part;
    tqi_list_t joins;   /* join_t.in_clear */
    request_t *request; /* whose it is; NULL: nobody's, or it left */
    unlinking_t *units; /* one for each unit that the partition had rows on */
    uint32_t units_cap;
    tqi_strs_builder_t keys; /* in the partition's leaving map */
};

void tqi_ctl_clearing_free(tqi_controller_t *ctl, clearing_t *clearing);
/* NULL: out of memory. */
clearing_t *tqi_ctl_clearing_new(tqi_controller_t *ctl, part_t *part);
/* Takes live rows in; how many. tqi_clear_reserve comes before. */
uint32_t tqi_ctl_clearing_add(tqi_controller_t *ctl, clearing_t *clearing, const tqi_mask_t *mask);
/* All rows are in: tells the units. It may be over, and freed, when this returns. */
void tqi_ctl_clearing_start(tqi_controller_t *ctl, clearing_t *clearing);
/* A unit has answered all, or is lost. */
void tqi_ctl_clearing_unit_done(tqi_controller_t *ctl, unlinking_t *unlinking);
void tqi_ctl_clear_due(tqi_controller_t *ctl, request_t *req);
void tqi_ctl_clear_leave(tqi_controller_t *ctl, request_t *req);

/* ---- units ----------------------------------------------------------------------------------- */

/* A put that was published and that the unit has not confirmed yet. */
typedef struct confirm {
    uint64_t put_id;
    uint64_t session;
    uint64_t seq; /* of the CONFIRM under way; 0: not sent */
} confirm_t;

struct unit {
    uint32_t id;
    uint64_t incarnation;
    unit_state_t state;
    tqi_peer_t peer;          /* 0: no connection now */
    uint32_t epoch;           /* of that connection, within its life */
    TQI_VEC(uint64_t) former; /* incarnations of the lives before this one */
    /* Who says last that it is the next life, and whether it has been heard to live. */
    tqi_peer_t claim_peer;
    uint64_t claim_incarnation;
    bool is_claim_proven;
    char *addresses; /* comma-separated */
    uint32_t addresses_len;
    char name[257];
    char host[65];
    uint64_t capacity_bytes;
    uint64_t free_bytes;
    uint64_t zombie_bytes;
    uint64_t placed_bytes; /* since the last PONG */
    uint64_t heard_ns;
    ctl_timer_t ping;
    ctl_timer_t confirm;
    tqi_outbox_t *outbox;
    tqi_list_t unlinks;     /* unlinking_t to send */
    tqi_intervals_t missed; /* rows to unlink that no clear waits for */
    tqi_intervals_t dead;   /* blocks to declare dead */
    TQI_VEC(confirm_t) confirms;
    uint32_t unsent_cnt;    /* of those, with no CONFIRM under way */
    TQI_VEC(uint64_t) ends; /* sessions whose end it has not been told */
    uint64_t wipes;         /* lives lost so far */
    uint64_t wiped_at;      /* ctl->wipes at the last */
    uint64_t put_last;      /* ctl->put_last when this life began */
};

void tqi_ctl_register_handle(tqi_controller_t *ctl, tqi_peer_t peer, const tqi_envelope_t *env);
void tqi_ctl_forget_handle(tqi_controller_t *ctl, request_t *req);
/* A unit goes: it is lost at once. */
void tqi_ctl_unit_closing_handle(tqi_controller_t *ctl, tqi_peer_t peer, const tqi_envelope_t *env);
/* A reply from somebody who is no unit (yet). */
void tqi_ctl_stranger_reply_handle(tqi_controller_t *ctl, tqi_peer_t peer,
                                   const tqi_envelope_t *env);
/* A reply from a unit. */
void tqi_ctl_unit_reply_handle(tqi_controller_t *ctl, unit_t *unit, const tqi_envelope_t *env);
unit_t *tqi_ctl_unit_find(tqi_controller_t *ctl, uint32_t id);
unit_t *tqi_ctl_unit_by_peer(tqi_controller_t *ctl, tqi_peer_t peer);
/* Sends what may be sent now. */
void tqi_ctl_unit_push(tqi_controller_t *ctl, unit_t *unit);
/* The unit of a published put's rows is to be told. Reserved by confirm_reserve. */
tq_status_t tqi_ctl_unit_confirm_reserve(unit_t *unit, uint32_t cnt);
void tqi_ctl_unit_confirm(tqi_controller_t *ctl, unit_t *unit, put_t *put);
void tqi_ctl_unit_session_ended(tqi_controller_t *ctl, unit_t *unit, uint64_t session);
void tqi_ctl_unit_block_dead(tqi_controller_t *ctl, part_t *part, uint64_t block);
/* tqi_partition_place, for rows that go to a unit of ours. */
tq_status_t tqi_ctl_unit_place(tqi_controller_t *ctl, part_t *part, uint64_t lo, uint64_t hi,
                               uint32_t id);
/* Brings a partition up to date with the fate of its units. */
bool tqi_ctl_sync_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget);
/* There is one that new rows could go to. */
bool tqi_ctl_unit_is_there(const tqi_controller_t *ctl);
/* The unit for `rows` new rows of the session, about `bytes`; 0 when none is there. */
uint32_t tqi_ctl_unit_choose(tqi_controller_t *ctl, const session_t *session, uint64_t bytes);
void tqi_ctl_unit_free(tqi_controller_t *ctl, unit_t *unit);

/* ---- the controller -------------------------------------------------------------------------- */

#define COUNTER_TABLE(X)                                                                           \
    X(messages, "control messages that came in")                                                   \
    X(malformed, "dropped or refused: not a message")                                              \
    X(stray, "dropped: of no session, unit or request that is known")                              \
    X(late, "dropped: of an older connection")                                                     \
    X(replayed, "answered again from a kept outcome")                                              \
    X(busy, "refused: too much outstanding")                                                       \
    X(failed, "answered with an error")                                                            \
    X(unsent, "replies that the port would not take")                                              \
    X(sessions_begun, "sessions begun")                                                            \
    X(sessions_lost, "sessions that ended without BYE")                                            \
    X(rows_granted, "rows given to fetches")                                                       \
    X(rows_returned, "rows given back")                                                            \
    X(rows_published, "rows that a publish named")                                                 \
    X(rows_cleared, "rows cleared")                                                                \
    X(puts_failed, "puts that ended unpublished")                                                  \
    X(waits, "fetches that were parked")                                                           \
    X(wait_timeouts, "parked fetches that met their deadline")                                     \
    X(units_lost, "times that a unit was lost")                                                    \
    X(cells_lost, "cells un-produced because their unit lost them")                                \
    X(yields, "slices after which an op went on later")

struct tqi_controller {
    tqi_role_t role; /* first */
    const tqi_env_t *env;
    tqi_ctrl_t *ctrl;
    uint64_t incarnation;
    uint64_t now_ns;   /* of the call that runs */
    const void *frame; /* the one that is handled, and its length */
    size_t frame_len;
    uint64_t started_ns;
    uint32_t ping_ms, silence_ms, unit_lost_ms, confirm_ms, prealloc_rows, slice_rows, page_rows;
    tqi_sampler_t sampler;
    char *sampler_group_by;
    tqi_buf_t user_conf;
    tqi_watch_t *watch;                                            /* or NULL */
    size_t (*sessions_max)(void *ctx, char *why, size_t why_size); /* or NULL */
    void *sessions_max_ctx;

    tqi_heap_t timers;
    tqi_map_u64_t sessions; /* id to session_t */
    tqi_map_u64_t peers;    /* client peer to session_t */
    uint64_t session_last;
    TQI_VEC(unit_t *) units; /* by id - 1 */
    uint64_t table_version;
    uint64_t placement_turn;
    TQI_VEC(tqi_candidate_t) candidates; /* scratch, one a unit */
    uint64_t wipes;

    tqi_index_source_t source;
    tqi_map_str_t part_map;
    tqi_list_t parts; /* by creation */
    tqi_list_t dying;
    uint64_t part_ordinal;
    tqi_list_t runnable; /* part_t.run_node */
    tqi_map_u64_t puts;  /* id to put_t */
    uint64_t put_last;
    uint64_t clear_last;
    uint64_t requests_cnt; /* admitted and not replied */
    tqi_list_t homeless;   /* request_t.homeless_node: puts that wait for a unit */
    uint64_t homeless_bytes;
    tqi_list_t late; /* request_t.op.node: replies that no memory was found to keep */
    bool is_starved; /* something waits for memory: look again soon */
    bool is_draining;

#define COUNTER_MEMBER(name, doc) uint64_t cnt_##name;
    COUNTER_TABLE(COUNTER_MEMBER)
#undef COUNTER_MEMBER
};

/* Arms (or moves) a timer. E_NO_MEMORY only for one that is not armed. */
tq_status_t tqi_ctl_timer_arm(tqi_controller_t *ctl, ctl_timer_t *timer, uint64_t deadline_ns);
void tqi_ctl_timer_disarm(tqi_controller_t *ctl, ctl_timer_t *timer);

static inline uint64_t ms_to_ns(uint64_t ms)
{
    return ms * 1000000u;
}

#endif
