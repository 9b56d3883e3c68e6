/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the client's files share: the client, its links (one a peer), the requests on them, and the
 * ops that they serve.
 *
 *   client.c  session, unit table, timers: who is told what
 *   link.c    one peer: connection, HELLO, PING, requests and their resending
 *   orphan.c  requests whose op has ended before they were answered
 *   op.c      what all ops have in common: memory, deadline, the way to the end
 *   slot.c    the part of a put or a get that concerns one unit
 *   put.c, get.c, fetch.c, simple.c, paged.c, stat.c: one idea of an op each
 */
#ifndef TQI_ROLE_CLIENT_INTERNAL_H
#define TQI_ROLE_CLIENT_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"
#include "base/size.h"
#include "core/outcome.h"
#include "role/client/client.h"
#include "role/client/machines.h"
#include "wire/coldesc.h"
#include "wire/envelope.h"
#include "wire/msg.h"

#define TQI_MS UINT64_C(1000000)

/* A server answers at a request's deadline by itself, with a better sentence than we could write;
 * so long we wait for that sentence before we write ours. */
#define TQI_GRACE_NS (250 * TQI_MS)
#define TQI_ACK_NS (10 * TQI_MS)     /* a lone ack follows a taken grant within this */
#define TQI_HELLO_NS (1000 * TQI_MS) /* an unanswered HELLO is sent again */
#define TQI_PING_NS (1000 * TQI_MS)
#define TQI_SILENCE_NS (3000 * TQI_MS) /* a connection that answers nothing so long is made anew */
/* Where a thousand processes dial at once, greeting them all takes longer than that, and whoever dials
 * again makes it longer still: each unanswered HELLO is waited for twice as long as the one before. */
#define TQI_PATIENCE_MAX_NS (4 * TQI_SILENCE_NS)
#define TQI_BACKOFF_MIN_NS (10 * TQI_MS)
#define TQI_BACKOFF_MAX_NS (500 * TQI_MS)
#define TQI_RENEW_NS (5000 * TQI_MS) /* leases are renewed at least so often while bytes move */
#define TQI_RESTARTS_MAX 16

typedef struct tqi_link tqi_link_t;
typedef struct tqi_req tqi_req_t;
typedef struct tqi_slot tqi_slot_t;
typedef struct tqi_op_class tqi_op_class_t;

/* ---- links ------------------------------------------------------------------------------------- */

/* One peer, in one session. Made when the unit table names it; connects at first use. */
struct tqi_link {
    tqi_client_t *client;
    tqi_node_t node;  /* in the client's links */
    uint32_t unit_id; /* 0: the controller */
    tqi_link_state_t state;
    char *addresses; /* comma-separated alternatives, terminated; NULL: not known yet */
    size_t addresses_size;
    uint32_t address_idx; /* of the alternative that is tried now */
    bool is_near;         /* on this machine */
    bool is_lost;         /* the controller says so, or the unit itself */
    bool is_in_table;

    tqi_peer_t peer; /* 0: no connection */
    uint32_t epoch;  /* of the connection */
    tqi_outbox_t *outbox;
    tqi_list_t backlog; /* requests that have no seq yet: too many are open */
    tqi_list_t delayed; /* requests to be sent (again) at their send_at_ns */
    tqi_list_t waiters; /* slots in LINKING */

    uint64_t heard_ns; /* the last message from it */
    uint64_t hello_ns; /* HELLO was sent last */
    uint64_t dial_ns;  /* the connection was made */
    uint64_t ping_ns;  /* the next PING is due */
    uint64_t asked_ns; /* the first PING that nothing has answered yet; 0: none */
    uint64_t retry_ns; /* WAITING: until */
    uint64_t backoff_ns;
    uint64_t patience_ns;    /* GREETING: a HELLO is waited for so long */
    uint64_t ack_due_ns;     /* a lone ack is due; 0: none */
    uint64_t overdue_ns;     /* no op has waited too long before this */
    uint64_t renew_ns;       /* leases are to be renewed */
    uint32_t lease_ms;       /* the unit's, as it said last; 0: not yet */
    uint64_t renew_asked_ns; /* the first RENEW that nothing has answered yet; 0: none */
    uint64_t leased_ns;      /* when the newest RENEW that was answered had been sent */
    tq_status_t trouble;     /* why the last attempt failed, or OK */
    char trouble_text[256];

    /* The way for payload, opened from Hello_R and kept over reconnections. */
    tqi_payload_mode_t mode;
    uint64_t way_arena; /* what it was opened with */
    uint8_t way_token[16];
    bool is_payload_open;
    bool must_reopen;    /* it broke, or belongs to a session that is over: close it when idle */
    char mode_text[256]; /* why there is none */
    tqi_list_t moving;   /* slots whose bytes the payload port has */
};

/* One request, from its making until its reply. Owned by its link. */
struct tqi_req {
    tqi_node_t node;      /* in the op's reqs, while it listens */
    tqi_node_t link_node; /* in the link's backlog or delayed */
    tqi_link_t *link;
    tqi_op_t *op; /* NULL: nobody listens any more */
    tqi_slot_t *slot;
    tqi_buf_t body; /* while in the backlog; then the outbox keeps it */
    uint16_t kind;
    uint16_t attempt;
    bool is_in_backlog;
    bool is_delayed;
    bool is_detached; /* it never had an op: something is undone */
    bool is_point;    /* once it was sent, the outcome of its op is the peer's to say */
    uint64_t seq;     /* 0 in the backlog */
    uint64_t since_ns;
    uint64_t deadline_ns; /* of its budget */
    uint64_t send_at_ns;
    uint64_t request_id;
    uint64_t
        releases_seq; /* a seq of the same link to acknowledge when this is answered; 0: none */
};

/* A reply as an op sees it. */
typedef struct tqi_reply {
    const tqi_envelope_t *env;
    tqi_link_t *link;
    uint16_t kind; /* of the request */
    uint64_t seq;
    tq_status_t status; /* OK, or what the peer said (or we made of it) */
    tqi_err_t err;
} tqi_reply_t;

tq_status_t tqi_link_new(tqi_client_t *client, uint32_t unit_id, tqi_link_t **out);
void tqi_link_free(tqi_link_t *link);
/* New alternatives; a connection to an address that is not among them any more is dropped. */
tq_status_t tqi_link_set_addresses(tqi_link_t *link, const char *addresses, size_t len,
                                   uint64_t now_ns);
/* After a reset of a unit's link: where it is has to be told anew. */
void tqi_link_forget_addresses(tqi_link_t *link);
/* Starts to connect if it does not already. */
void tqi_link_want(tqi_link_t *link, uint64_t now_ns);
/* The connection is of no use any more: a new one after the backoff. */
void tqi_link_down(tqi_link_t *link, tq_status_t why, const char *text, uint64_t now_ns);
/* The session is over: drops the connection (a unit's), all requests and the way for payload. */
void tqi_link_reset(tqi_link_t *link);
/* Makes a request of `kind` with the struct of it, and sends it as soon as it can be. E_TOO_LARGE,
 * E_NO_MEMORY. op and slot may be NULL; the reply comes to the op's class. */
tq_status_t tqi_link_request(tqi_link_t *link, tqi_op_t *op, tqi_slot_t *slot, uint16_t kind,
                             const void *msg, uint64_t deadline_ns, uint64_t now_ns,
                             tqi_req_t **req, tqi_err_t *err);
/* Nobody wants it any more. One that was never sent is taken back, as its op is judged by that; what
 * the late answer to any other grants is given back (orphan.c). */
void tqi_req_orphan(tqi_req_t *req);
/* Nobody listens to it any more, and it has to be done all the same: it undoes something. */
void tqi_req_detach(tqi_req_t *req);
/* A request that undoes something, made before it is needed, so that submitting it takes no memory.
 * It is the caller's until then. NULL and the error: E_TOO_LARGE, E_NO_MEMORY. */
tqi_req_t *tqi_req_new(tqi_link_t *link, uint16_t kind, const void *msg, tqi_err_t *err);
void tqi_req_submit(tqi_req_t *req, uint64_t now_ns);
/* It is not needed. NULL: no effect. Looks at nothing but the request. */
void tqi_req_drop(tqi_req_t *req, const tqi_env_t *env);
/* An orphan of this kind and body was answered; must_stay_open: its seq is acknowledged by
 * somebody else later. False when there is no memory to do what that takes. */
bool tqi_orphan_answered(tqi_link_t *link, uint16_t kind, const tqi_buf_t *body,
                         const tqi_envelope_t *reply, uint64_t now_ns, bool *must_stay_open);
/* A caller has taken the reply of a seq that was left open. */
void tqi_link_take(tqi_link_t *link, uint64_t seq, uint64_t now_ns);
/* The unit goes: what waits for it ends at the next step. */
void tqi_link_on_closing(tqi_link_t *link, uint64_t now_ns);
void tqi_link_on_message(tqi_link_t *link, const tqi_envelope_t *env, uint64_t now_ns);
void tqi_link_ping(tqi_link_t *link, uint64_t now_ns);
/* A message outside the seqs; the link is up. */
void tqi_link_say(tqi_link_t *link, uint16_t kind, const void *msg);
/* What a unit has granted lasts so long unless it is renewed. */
void tqi_link_lease(tqi_link_t *link, uint32_t lease_ms, uint64_t now_ns);
/* An op begins to wait for it now. */
void tqi_link_watch(tqi_link_t *link, uint64_t now_ns);
/* Timers; returns when to be called next. */
uint64_t tqi_link_step(tqi_link_t *link, uint64_t now_ns);
/* Requests that wait for an answer. */
uint32_t tqi_link_open_cnt(const tqi_link_t *link);
/* Why the peer can't be reached, as a sentence with the remedy. */
tq_status_t tqi_link_trouble(const tqi_link_t *link, uint64_t waited_ms, tqi_err_t *err);

/* ---- ops --------------------------------------------------------------------------------------- */

struct tqi_op_class {
    const char *name;
    size_t size;        /* of the op's own struct, which begins with tqi_op_t */
    bool is_fetch;      /* its default timeout is the fetch timeout */
    bool is_repeatable; /* doing it twice is doing it once: sent again in a new session */
    /* There is a session: begin (again). */
    void (*start)(tqi_op_t *op, uint64_t now_ns);
    /* A reply to one of its requests, good or bad. */
    void (*on_reply)(tqi_op_t *op, tqi_slot_t *slot, const tqi_reply_t *reply, uint64_t now_ns);
    /* Optional. A slot's link is up; a slot's bytes moved, or did not. */
    void (*on_link)(tqi_op_t *op, tqi_slot_t *slot, uint64_t now_ns);
    void (*on_payload)(tqi_op_t *op, tqi_slot_t *slot, tq_status_t status, const char *text,
                       uint64_t now_ns);
    /* Optional: RUNNING and asked to stop, by CANCEL to CLOSE of its events, with this error. Without it, or where it returns false,
     * the op ends with it. */
    bool (*stop)(tqi_op_t *op, tqi_op_event_t why, tqi_err_t *err, uint64_t now_ns);
    /* Optional: ENDING, and no transfer runs any more: sends what must be undone. Requests that
     * listen (op given) are waited for, for a while. Also before a restart. False: something could
     * not be sent for want of memory; it is called again. */
    bool (*clean)(tqi_op_t *op, uint64_t now_ns);
    /* Optional: frees what is not in the op's own memory. May be called more than once. */
    void (*fini)(tqi_op_t *op);
};

typedef struct tqi_chunk {
    struct tqi_chunk *next;
    size_t size; /* with this head */
    size_t used;
} tqi_chunk_t;

struct tqi_op {
    const tqi_env_t *env;
    const tqi_op_class_t *cls;
    tqi_client_t *client; /* from submit on */
    void *user;
    void (*buffer_give)(tq_buffer_t *buffer);
    tqi_chunk_t *chunks;

    tqi_op_state_t state;
    tqi_node_t node; /* in the client's list of its state */
    tqi_heap_node_t timer;
    uint64_t id;
    uint32_t timeout_ms; /* 0: the client's default for its class */
    uint64_t since_ns;
    uint64_t deadline_ns; /* of the caller; the timer is later by the grace */
    uint64_t clean_deadline_ns;
    tqi_list_t reqs;
    tqi_list_t moving; /* slots whose bytes the payload port has */
    tqi_slot_t *slots; /* of a put or a get */
    uint32_t slots_cnt;
    uint32_t restarts;
    bool is_restarting; /* ENDING leads back to QUEUED */
    bool is_cleaned;
    bool is_abandoned;
    bool is_cancelling; /* a FETCH: CANCEL_OP was sent, and the answers decide */

    uint64_t grant_session; /* of grant_seq; 0: nothing is granted provisionally */
    uint64_t grant_seq;
    tqi_req_t *give_back; /* the RETURN of what is granted */

    tqi_err_t err;
    tq_result_t result;
    /* What grows while pages come in; result points into them. */
    tqi_buf_t rows, units, has_key, status, schemas, json;
    tqi_strs_builder_t keys, tags, fields, names;
};

tq_status_t tqi_op_new(const tqi_env_t *env, const tqi_op_class_t *cls, uint32_t timeout_ms,
                       tqi_op_t **op, tqi_err_t *err);
/* Memory that lives as long as the op; NULL when there is none. Not cleared; aligned to 16. */
void *tqi_op_mem(tqi_op_t *op, size_t size);
void *tqi_op_dup(tqi_op_t *op, const void *data, size_t size);
/* A terminated copy. */
char *tqi_op_dup_str(tqi_op_t *op, const char *data, size_t len);
tq_status_t tqi_op_dup_strs(tqi_op_t *op, const tq_strs_t *from, tq_strs_t *to);

/* QUEUED -> RUNNING; there is a session. */
void tqi_op_start(tqi_op_t *op, uint64_t now_ns);
/* RUNNING -> ENDING with the outcome; the op's outputs were set before. */
void tqi_op_finish(tqi_op_t *op, uint64_t now_ns);
/* The same with an error, which is copied. */
void tqi_op_fail(tqi_op_t *op, const tqi_err_t *err, uint64_t now_ns);
/* Ends what is under way and begins again, a bounded number of times; then it fails with err. */
void tqi_op_restart(tqi_op_t *op, const tqi_err_t *err, uint64_t now_ns);
/* ENDING: goes on as far as it can. Called whenever a request or a transfer of it has ended. */
void tqi_op_settle(tqi_op_t *op, uint64_t now_ns);
/* Somebody or something wants it to end: CANCEL to CLOSE of the events. */
void tqi_op_stop(tqi_op_t *op, tqi_op_event_t why, tqi_err_t *err, uint64_t now_ns);
/* A request of it was sent from which on its outcome is the peer's to say. */
bool tqi_op_is_past_point(const tqi_op_t *op);
/* Of a request: the link's, with the op's deadline; fails the op when it can't be made. */
bool tqi_op_request(tqi_op_t *op, tqi_link_t *link, tqi_slot_t *slot, uint16_t kind,
                    const void *msg, uint64_t now_ns);
/* Decodes a reply; a malformed one fails the op. */
bool tqi_op_decode(tqi_op_t *op, const tqi_reply_t *reply, void *msg, uint64_t now_ns);
/* Fails the op with E_NO_MEMORY. */
void tqi_op_no_memory(tqi_op_t *op, uint64_t now_ns);
uint32_t tqi_op_budget_ms(const tqi_op_t *op, uint64_t now_ns);

/* Appending to the outputs: E_NO_MEMORY. */
tq_status_t tqi_strs_append(tqi_strs_builder_t *to, tqi_strs_t from);
/* Tags as they come: a row without any has an empty string there, and an empty map in a result. */
tq_status_t tqi_op_add_tags(tqi_op_t *op, tqi_strs_t tags);
tq_status_t tqi_op_add_schemas(tqi_op_t *op, tqi_strs_t schemas);
/* Unpacks a bitset of rows x fields into the status bytes. */
tq_status_t tqi_op_add_produced(tqi_op_t *op, tqi_bytes_t produced, uint32_t rows_cnt,
                                uint32_t fields_cnt);
/* Makes the result of what was appended. */
void tqi_op_seal(tqi_op_t *op);
/* The same of what a controller answered: E_MALFORMED, and the op has failed with it, where that does
 * not have one of each for each row and each field. */
tq_status_t tqi_op_answer(tqi_op_t *op, uint64_t now_ns);

/* ---- checks of arguments (args.c) -------------------------------------------------------------- */

tq_status_t tqi_check_name(const char *what, const char *name, tqi_err_t *err);
/* Keys: any bytes, none included, up to TQ_NAME_MAX each. No keys are fine if may_be_empty. */
tq_status_t tqi_check_keys(const tq_strs_t *keys, bool may_be_empty, tqi_err_t *err);
/* A list of names of 1 to item_max bytes without NUL. No names are fine if may_be_empty. */
tq_status_t tqi_check_strs(const char *what, const tq_strs_t *strs, uint32_t cnt_max,
                           size_t item_max, bool may_be_empty, tqi_err_t *err);
tq_status_t tqi_check_rows(const char *what, const tq_row_t *rows, uint32_t cnt, tqi_err_t *err);
tq_status_t tqi_check_distinct_strs(const tqi_env_t *env, const char *what, const tq_strs_t *strs,
                                    tqi_err_t *err);
tq_status_t tqi_check_distinct_rows(const tqi_env_t *env, const tq_row_t *rows, uint32_t cnt,
                                    tqi_err_t *err);
tq_status_t tqi_check_tags(const tq_strs_t *tags, uint32_t cnt, tqi_err_t *err);

/* ---- slots ------------------------------------------------------------------------------------- */

/* The rows of one op that lie in one unit (or a part of them, where they are too many for one
 * message). In the op's memory. */
struct tqi_slot {
    tqi_op_t *op;
    tqi_link_t *link;
    tqi_slot_state_t state;
    tqi_node_t wait_node; /* LINKING: in the link's waiters */
    tqi_node_t link_node; /* the payload port has it: in the link's moving */
    tqi_node_t op_node;   /* and in the op's */
    uint32_t idx;
    uint32_t rows_cnt;
    uint32_t *at; /* positions in the op's rows, ascending */
    uint64_t transfer;
    uint64_t bytes;
    uint64_t since_ns;          /* LINKING, MOVING: since */
    bool is_write;              /* MOVING: to the unit */
    bool is_touched;            /* the unit may hold something of it */
    bool has_moved, was_closed; /* get by STREAM: which of its two ends have come */
    tqi_buf_t reply;            /* get: READY, whose views are needed until the end */
    tqi_msg_PrepareGet_R_t ready;
};

void tqi_slot_step(tqi_slot_t *slot, tqi_slot_event_t event);
/* Groups the n rows by unit, ascending, at most rows_max a slot. E_NO_MEMORY, E_UNIT_LOST (a row
 * in no unit). Links of units that are not known yet are made. */
tq_status_t tqi_slots_make(tqi_op_t *op, tqi_u32s_t units, uint32_t rows_max, tqi_err_t *err);
/* Nothing moves any more: leaves the links and frees what is not in the op's memory. */
void tqi_slots_fini(tqi_op_t *op);
/* Ends what waits or moves: links are not waited for, the payload port is asked to stop. */
void tqi_slots_stop(tqi_op_t *op);
/* True if its link is up; else it is LINKING and on_link follows. */
bool tqi_slot_link(tqi_slot_t *slot, uint64_t now_ns);
/* The bits of the slot's rows, of a bitset over the op's rows x fields; appended to out. */
tq_status_t tqi_slot_produced(const tqi_slot_t *slot, const uint8_t *bits, uint32_t fields_cnt,
                              tqi_buf_t *out);
/* The payload port takes it; the names are as in payload.h. On success on_payload follows. */
tq_status_t tqi_slot_move(tqi_slot_t *slot, bool is_write, const tqi_frame_t *frames,
                          const tqi_remote_frame_t *remote, uint32_t cnt, uint64_t now_ns,
                          tqi_err_t *err);
/* Asks the payload port to stop. */
void tqi_slot_drop(tqi_slot_t *slot);
/* The payload port is done with it. NULL: it was nobody's. */
tqi_slot_t *tqi_slot_moved(tqi_client_t *client, tqi_transfer_key_t key);

/* Frames under construction: pieces are put together where they touch. */
typedef struct tqi_frames {
    const tqi_env_t *env;
    tqi_frame_t *frames;
    uint32_t cnt;
    tqi_buf_t pieces; /* tqi_piece_t, of all frames one after another */
    uint32_t open_from;
} tqi_frames_t;
tq_status_t tqi_frames_init(tqi_frames_t *frames, const tqi_env_t *env, uint32_t cnt);
void tqi_frames_fini(tqi_frames_t *frames);
tq_status_t tqi_frames_add(tqi_frames_t *frames, uint32_t frame, void *data, uint64_t len);
/* Points the frames at their pieces, once all were added in order of the frames. */
void tqi_frames_seal(tqi_frames_t *frames);

/* ---- client ------------------------------------------------------------------------------------ */

struct tqi_client {
    tqi_role_t role;
    const tqi_env_t *env;
    tqi_ctrl_t *ctrl;
    tqi_payload_client_t *payload; /* may be NULL */
    tqi_client_conf_t conf;
    char *strings; /* of conf */
    size_t strings_size;

    tqi_join_state_t state;
    uint64_t session; /* 0: not INSIDE */
    uint64_t incarnation;
    uint32_t ping_ms;
    uint64_t table_version;
    tqi_buf_t user_conf;
    tqi_err_t refusal;     /* status not OK: for ever */
    bool is_stale_pending; /* the next op fails with E_STALE_STORE */
    tqi_err_t stale;

    tqi_list_t links; /* the controller's first */
    tqi_link_t *controller;
    tqi_map_u64_t units;     /* id -> link */
    tqi_map_u64_t peers;     /* peer -> link */
    tqi_map_u64_t transfers; /* transfer -> slot that the payload port has */
    uint32_t epoch_last;
    uint64_t transfer_last;
    uint64_t op_last;

    tqi_list_t queued;
    tqi_list_t running;
    tqi_list_t ending;
    tqi_list_t done; /* told to the host at the end of the step */
    tqi_heap_t timers;

    uint64_t stepped_ns; /* last */
    uint64_t due_ns;     /* what the last step returned */
    tqi_close_state_t closing;
    uint64_t bye_ns; /* BYE was sent last; 0: not yet */
    uint64_t close_deadline_ns;
    uint64_t dropped_cnt; /* frames that were malformed, late or nobody's */
};

/* The unit's link, made if it is new; NULL when out of memory. */
tqi_link_t *tqi_client_unit(tqi_client_t *client, uint32_t unit_id);
/* HELLO was answered by the controller. */
void tqi_client_on_hello(tqi_client_t *client, const tqi_envelope_t *env,
                         const tqi_msg_Hello_R_t *msg, uint64_t now_ns);
/* A unit table came with Hello_R or Ping_R. */
void tqi_client_on_table(tqi_client_t *client, uint64_t version, tqi_u32s_t ids,
                         tqi_strs_t addresses, tqi_strs_t hosts, tqi_u8s_t lost, uint64_t now_ns);
/* A refusal that concerns the session or the store, not one request. True if it was one. */
bool tqi_client_on_refusal(tqi_client_t *client, tqi_link_t *link, tq_status_t status,
                           const char *text, uint64_t now_ns);
void tqi_client_on_bye(tqi_client_t *client);

/* fetch.c: whether an answer to the FETCH can be taken: only if giving its rows back is sure to be
 * possible. Without memory for that it counts as lost, and is asked for again. */
bool tqi_fetch_can_take(tqi_op_t *op, const tqi_envelope_t *env);
/* Gives the rows of a fetch back. */
void tqi_fetch_return(tqi_op_t *op, uint64_t now_ns);

#endif
