/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the storage unit share.
 *
 *   unit.c      the role: messages in, timers, stat, checks
 *   link.c      the controller's side: REGISTER, PING, and its orders, done in slices
 *   session.c   the clients' side: HELLO, PING, admission of requests, replies
 *   put.c       PREPARE_PUT, COMMIT, ABORT, and who waits for space
 *   get.c       PREPARE_GET, RELEASE
 *   transfer.c  transfers: leases, the payload port, and the exits that all of them take
 */
#ifndef TQI_ROLE_STORAGE_INTERNAL_H
#define TQI_ROLE_STORAGE_INTERNAL_H

#include "base/heap.h"
#include "base/interval.h"
#include "base/list.h"
#include "base/map.h"
#include "base/vec.h"
#include "core/object.h"
#include "core/outcome.h"
#include "core/transfer.h"
#include "role/storage/machines.h"
#include "role/storage/unit.h"
#include "wire/msg.h"

/* How often REGISTER is sent until it is answered, and how long a lost or refused connection to the
 * controller rests before the next one. */
#define REGISTER_EVERY_NS (500u * UINT64_C(1000000))
/* Cells that an order of the controller may touch before others get their turn: 1 to 3 ms. */
#define ORDER_CELLS_MAX 65536u
/* Parked PREPAREs: how many, and bytes of their messages. Beyond either they are refused. */
#define WAITERS_MAX 4096u
#define WAITERS_BYTES_MAX (64u << 20)
/* Intervals of what a session gave up, before those that are history are forgotten. */
#define SESSION_GIVEN_UP_MAX 1024u
/* And before CANCEL and ABORT are refused: all of them may be news to somebody. */
#define SESSION_GIVEN_UP_LIMIT 16384u
/* Transfers of one session; its outstanding requests are no more. */
#define SESSION_TRANSFERS_MAX 4096u
/* What its open reads remember of where their values are, in bytes: a range is 16. */
#define SESSION_VIEWS_BYTES_MAX (64u << 20)
/* Sessions that are newer than any that the controller has told of, by PING. They may be real: a
 * client is often faster than that. Whoever makes sessions up gets so many and no more. */
#define SESSIONS_AHEAD_MAX 1024u
/* Orders of the controller that wait: it has at most so many open. */
#define ORDERS_MAX TQ_OUTSTANDING_MAX

#define NS_PER_MS UINT64_C(1000000)

typedef enum member_state { TQI_MACHINE_STATES(MEMBER) } member_state_t;
typedef enum member_event { TQI_MACHINE_EVENTS(MEMBER) } member_event_t;
typedef enum wire_state { TQI_MACHINE_STATES(WIRE) } wire_state_t;
typedef enum wire_event { TQI_MACHINE_EVENTS(WIRE) } wire_event_t;
typedef enum session_state { TQI_MACHINE_STATES(SESSION) } session_state_t;
typedef enum session_event { TQI_MACHINE_EVENTS(SESSION) } session_event_t;

typedef struct session session_t;
typedef struct transfer transfer_t;

/* A request, for as long as its reply is owed. seq 0 of session 0: from the controller. */
typedef struct request {
    tqi_peer_t peer;
    uint64_t session;
    uint64_t seq;
    uint64_t request_id;
    uint32_t epoch;
    uint16_t kind; /* 0: none is owed */
    bool is_fused; /* PREPARE and COMMIT in one: its OK needs no body */
} request_t;

/* One client process. */
struct session {
    uint64_t id;
    tqi_peer_t peer; /* its newest connection */
    uint32_t epoch;  /* of that */
    bool is_direct;  /* it was offered the arena itself */
    session_state_t state;
    bool has_heard_closing;
    tqi_inbox_t *inbox;
    tqi_map_u64_t transfers;
    /* What was given up may overtake its own PREPARE, which is then refused. */
    tqi_intervals_t gone;    /* transfers that were cancelled or expired */
    tqi_intervals_t aborted; /* put_ids */
    uint64_t given_up_seq;   /* of the newest CANCEL or ABORT */
    uint64_t views_bytes;    /* of its transfers */
};

struct transfer {
    tqi_transfer_t core;
    session_t *session;
    uint64_t put_id;    /* PUT */
    tqi_batch_t *batch; /* PUT: open, NULL while parked and when over */
    tqi_view_t view;    /* GET: pinned from OPEN on */
    request_t owed;     /* the PREPARE of a parked one, or the COMMIT of a committed one */
    /* Parked: */
    tqi_node_t node; /* in its class of waiters */
    bool is_column;
    bool waits_for_space; /* else for cells that another put holds */
    tqi_buf_t frame;      /* the PREPARE, to be read again */
    /* Why it waits, or broke: */
    tqi_err_t why;
};

/* An order of the controller, waiting for its turn or half done. */
typedef struct order {
    tqi_node_t node;
    request_t request;
    tqi_buf_t frame;
    uint32_t at;  /* item of its list being worked on */
    uint64_t row; /* of an UNLINK's range: where to go on; 0 with is_begun false: its start */
    bool is_begun;
} order_t;

typedef struct unit_counters {
    uint64_t messages;
    uint64_t malformed;
    uint64_t dropped;      /* from nobody we know, or long acknowledged */
    uint64_t refused;      /* while the controller was silent */
    uint64_t replies_lost; /* out of memory, or the peer's queue was full */
    uint64_t puts;         /* PREPAREs granted */
    uint64_t gets;
    uint64_t put_bytes; /* committed */
    uint64_t get_bytes;
    uint64_t waited;  /* PREPAREs that were parked */
    uint64_t expired; /* transfers whose lease ran out */
} unit_counters_t;

struct tqi_unit {
    tqi_role_t role; /* first */
    const tqi_env_t *env;
    tqi_unit_conf_t conf; /* strings: views into `texts` */
    tqi_buf_t texts;
    tqi_ctrl_t *ctrl;
    tqi_payload_unit_t *payload; /* NULL: inline only */
    tqi_arena_t *arena;
    tqi_objects_t *objs;

    /* link.c */
    member_state_t member;
    wire_state_t wire;
    tqi_peer_t controller;      /* 0: AWAY */
    uint32_t epoch;             /* of the connections so far, the newest's */
    uint64_t store_incarnation; /* whose rows are here; 0: none were ever */
    uint32_t unit_id;
    uint64_t put_last;     /* puts up to this one began before this life, and fail */
    uint64_t heard_ns;     /* the controller's last message */
    uint64_t connected_ns; /* when the connection was begun */
    uint64_t silence_ns;
    uint64_t register_ns; /* when to REGISTER, or to connect; TQI_NEVER */
    tqi_err_t refusal;    /* of the last REGISTER; text "" when there was none */
    tqi_list_t orders;

    /* session.c */
    tqi_map_u64_t sessions;
    tqi_map_u64_t peers; /* peer -> binding_t */
    tqi_intervals_t ended;
    uint64_t session_last; /* the newest that the controller has told of */
    bool is_draining;
    bool has_controller_heard; /* CLOSING, or it need not */

    /* transfer.c, put.c */
    tqi_heap_t timers; /* of transfers */
    uint64_t transfers_cnt;
    tqi_transfer_counts_t counts;
    tqi_list_t waiters[2]; /* columns first */
    uint64_t waiters_bytes;
    bool is_dirty; /* something that a waiter waits for may have come */

    /* Reused by one message after another. */
    tqi_view_t view;
    tqi_buf_t bytes;
    tqi_strs_builder_t strs;
    TQI_VEC(tqi_frame_t) frames;
    TQI_VEC(tqi_piece_t) pieces;
    TQI_VEC(uint32_t) u32s[2];
    TQI_VEC(uint64_t) u64s[2];

    unit_counters_t counters;
};

/* ---- unit.c ----------------------------------------------------------------------------------- */

/* Everything goes: objects, and which rows are dead. No transfer is left. E_NO_MEMORY. */
tq_status_t unit_reset_objects(tqi_unit_t *unit);

/* ---- link.c ----------------------------------------------------------------------------------- */

/* Connects, if need be, and REGISTERs. */
tq_status_t link_open(tqi_unit_t *unit, uint64_t now_ns, tqi_err_t *err);
void link_on_message(tqi_unit_t *unit, const tqi_envelope_t *env, const void *data, size_t len,
                     uint64_t now_ns);
void link_on_peer_down(tqi_unit_t *unit, uint64_t now_ns);
/* OK, or why the unit serves nobody now. */
tq_status_t link_check(const tqi_unit_t *unit, uint64_t now_ns, tqi_err_t *err);
/* Timers, and a slice of the orders. Returns when to come again. */
uint64_t link_step(tqi_unit_t *unit, uint64_t now_ns);
void link_fini(tqi_unit_t *unit);

/* ---- session.c -------------------------------------------------------------------------------- */

void session_on_message(tqi_unit_t *unit, tqi_peer_t peer, const tqi_envelope_t *env,
                        const void *data, size_t len, uint64_t now_ns);
void session_on_peer_down(tqi_unit_t *unit, tqi_peer_t peer);
/* Ends a session: its transfers, its connection, its requests. Staged objects stay. E_NO_MEMORY:
 * call again. */
tq_status_t session_end(tqi_unit_t *unit, uint64_t id, uint64_t now_ns);
/* Frees one that has ended, when its last transfer is gone. */
void session_free_if_done(tqi_unit_t *unit, session_t *session);
void session_free(tqi_unit_t *unit, session_t *session);
void session_fini(tqi_unit_t *unit);

/* Answers a request, once, and keeps the answer as its outcome. request->kind is 0 after that; a
 * request of kind 0 is owed nothing. False: there is no memory for the answer, and the client will
 * hear E_NO_MEMORY instead. */
bool reply(tqi_unit_t *unit, request_t *request, const void *msg);
void reply_error(tqi_unit_t *unit, request_t *request, tq_status_t status, const char *text,
                 const tqi_blame_t *blame);
/* A message that nobody asked for: to->kind is its own. */
void say(tqi_unit_t *unit, const request_t *to, const void *msg);
/* The same for what was not executed and may be sent again: nothing is kept. */
void reply_refused(tqi_unit_t *unit, const request_t *request, tq_status_t status,
                   const char *text);

/* ---- put.c ------------------------------------------------------------------------------------ */

void put_on_prepare(tqi_unit_t *unit, session_t *session, request_t *request,
                    const tqi_msg_PreparePut_t *msg, const void *data, size_t len,
                    uint32_t budget_ms, uint64_t now_ns);
void put_on_commit(tqi_unit_t *unit, transfer_t *t, request_t *request, uint64_t now_ns);
void put_on_abort(tqi_unit_t *unit, session_t *session, request_t *request,
                  const tqi_msg_Abort_t *msg, uint64_t now_ns);
/* All bytes of a PUT are there: commits, and answers the request. When that fails the transfer still
 * has its batch. */
void put_finish(tqi_unit_t *unit, transfer_t *t, request_t *request);
/* Grants what can be granted, columns first, each class in order. */
void put_serve_waiters(tqi_unit_t *unit, uint64_t now_ns);

/* ---- get.c ------------------------------------------------------------------------------------ */

void get_on_prepare(tqi_unit_t *unit, session_t *session, request_t *request,
                    const tqi_msg_PrepareGet_t *msg, uint64_t now_ns);
void get_on_commit(tqi_unit_t *unit, transfer_t *t, request_t *request, uint64_t now_ns);
void get_on_release(tqi_unit_t *unit, session_t *session, request_t *request,
                    const tqi_msg_Release_t *msg, uint64_t now_ns);

/* ---- transfer.c ------------------------------------------------------------------------------- */

transfer_t *transfer_new(tqi_unit_t *unit, session_t *session, uint64_t id,
                         tqi_transfer_kind_t kind);
transfer_t *transfer_find(const session_t *session, uint64_t id);
/* Frees one that holds nothing yet, or nothing any more. */
void transfer_free(tqi_unit_t *unit, transfer_t *t);
/* A message named it: its lease begins again. */
void transfer_renew(tqi_unit_t *unit, transfer_t *t, uint64_t now_ns);
/* Puts it, PARKED and with its message in `frame`, behind the waiters of its class. */
void transfer_park(tqi_unit_t *unit, transfer_t *t, uint64_t deadline_ns);
/* Applies the event and does what the state that it leads to asks for; DONE frees the transfer. An
 * answer that is owed is given: why's, or E_CANCELLED. The event is legal. */
void transfer_event(tqi_unit_t *unit, transfer_t *t, tqi_transfer_event_t event, uint64_t now_ns);
void transfer_on_payload(tqi_unit_t *unit, tqi_transfer_key_t key, tq_status_t status,
                         const char *text, uint64_t now_ns);
void transfer_on_cancel(tqi_unit_t *unit, session_t *session, request_t *request,
                        const tqi_msg_Cancel_t *msg, uint64_t now_ns);
void transfer_on_renew(tqi_unit_t *unit, session_t *session, request_t *request,
                       const tqi_msg_Renew_t *msg, uint64_t now_ns);
/* Those whose time is up. Returns the next one's. */
uint64_t transfer_step(tqi_unit_t *unit, uint64_t now_ns);
/* Frees them all, whatever state they are in. */
void transfer_fini(tqi_unit_t *unit);
/* It ended unasked, or before its PREPARE came: late messages about it are refused. */
void transfer_remember(session_t *session, uint64_t id);
/* Whether the session may give up one more thing. */
bool session_may_give_up(const session_t *session);
/* E_TIMEOUT for one that is gone, E_NOT_FOUND for one that never was. */
tq_status_t transfer_missing(const tqi_unit_t *unit, const session_t *session, uint64_t id,
                             tqi_err_t *err);

#endif
