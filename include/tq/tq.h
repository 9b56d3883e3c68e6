/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tq: the data store between the stages of reinforcement-learning post-training.
 *
 * A store is partitions of rows x fields. Producers put cells; each task fetches rows whose fields
 * are all produced and that it has not consumed yet; readers get bytes; owners clear rows. See
 * docs/semantics.md.
 *
 * A client is one process's connection to a store. Every operation has a submit form, which never
 * blocks and never completes inline, and a blocking form, which is submit + wait. An op completes
 * exactly once. Arguments are copied by submit, but for column data, which must stay unchanged
 * until the op has completed. Results belong to the op and live until tq_op_free.
 *
 * Threads: any thread may call anything on a client; one op or completion queue is used by one
 * thread at a time. After fork() a child's use of a parent's handle answers E_FORKED.
 */
#ifndef TQ_TQ_H
#define TQ_TQ_H

#include <stdbool.h>

#include <tq/status.h>
#include <tq/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tq_client tq_client_t;
typedef struct tq_cq tq_cq_t;
typedef struct tq_op tq_op_t;

/* ---- client ---------------------------------------------------------------------------------- */

typedef struct tq_client_conf {
    /* "ipc://...", "tcp://host:port" or "inproc://name", optionally "#incarnation" (16 hex digits):
     * then the client refuses any other store at that address for ever (E_STORE_GONE). NULL: the
     * environment variable TQ_ADDRESS. */
    const char *address;
    const char *name;             /* for logs and listings; NULL: "pid@host" */
    uint32_t connect_timeout_ms;  /* 0: 5,000 */
    uint32_t call_timeout_ms;     /* any call but fetch; 0: 200,000 */
    uint32_t fetch_timeout_ms;    /* a waiting fetch; 0: 5,000 */
    uint32_t space_timeout_ms;    /* waiting for space in a full store; 0: 30,000 */
    uint32_t copy_threads;        /* 1 to 4; 0: 1. For ops that no thread waits for */
    uint64_t receive_cache_bytes; /* warm buffers kept for gets; UINT64_MAX: none; 0: 256 MiB */
    const char *curve_server_key; /* 40 characters Z85, or NULL: no CURVE */
} tq_client_conf_t;

/* Connects and begins a session. Blocks up to connect_timeout_ms.
 * E_UNREACHABLE, E_CONFIG, E_VERSION, E_STORE_GONE, E_DENIED, E_NO_MEMORY; err (may be NULL) has
 * the sentence. */
TQ_API tq_status_t tq_client_open(const tq_client_conf_t *conf, tq_client_t **client,
                                  tq_error_t *err);
/* Ends the session: outstanding ops complete with E_CLOSED (writes past PUBLISH with
 * E_OUTCOME_UNKNOWN). Bounded by 10 s. Buffers stay valid. NULL is fine. */
TQ_API void tq_client_close(tq_client_t *client);

/* Identity of the store that the client is in now. */
TQ_API uint64_t tq_client_incarnation(const tq_client_t *client);
/* The configuration text that the store's creator gave to its controller (tq_store_conf.user_conf),
 * "" if none. Valid until the client is closed. */
TQ_API const char *tq_client_store_conf(const tq_client_t *client, size_t *len);

/* ---- completion ------------------------------------------------------------------------------ */

TQ_API tq_status_t tq_cq_open(tq_client_t *client, tq_cq_t **cq, tq_error_t *err);
/* Ops that are outstanding on it go on, and are freed when they complete. */
TQ_API void tq_cq_close(tq_cq_t *cq);
/* Readable while completed ops wait in the queue. Owned by the queue: never close or read it. */
TQ_API int tq_cq_fd(const tq_cq_t *cq);
/* Takes up to max completed ops; returns how many. Never blocks. */
TQ_API uint32_t tq_cq_poll(tq_cq_t *cq, tq_op_t **ops, uint32_t max);
/* The same, waiting up to timeout_ms (-1: for ever) for the first. */
TQ_API uint32_t tq_cq_wait(tq_cq_t *cq, tq_op_t **ops, uint32_t max, int64_t timeout_ms);

/* For ops submitted without a queue. Waits up to timeout_ms (-1: for ever; the op's own deadline
 * ends it anyway); the thread that waits also does the op's copying. True when completed. */
TQ_API bool tq_op_wait(tq_op_t *op, int64_t timeout_ms);
/* Asks for cancellation. The op still completes, once: with E_CANCELLED, or with its real outcome
 * when that was already decided. */
TQ_API void tq_op_cancel(tq_op_t *op);
/* Frees a completed op and its results; an op that is still outstanding is cancelled and freed
 * when it completes. Column memory of a put must then stay valid until the client is closed. */
TQ_API void tq_op_free(tq_op_t *op);
TQ_API void *tq_op_user(const tq_op_t *op);

/* Of a completed op. */
TQ_API tq_status_t tq_op_status(const tq_op_t *op);
TQ_API const char *tq_op_error(const tq_op_t *op); /* "" on success */

/* What an op answers. Which members are set is said at each op; the others are zero. */
typedef struct tq_result {
    uint32_t rows_cnt;
    const tq_row_t *rows;       /* rows_cnt */
    tq_strs_t keys;             /* one a row, "" where a row has none (has_key tells) */
    const uint8_t *has_key;     /* one a row */
    tq_strs_t tags;             /* one msgpack map a row, an empty one where it has none */
    tq_strs_t fields;           /* names */
    const tq_schema_t *schemas; /* one a field */
    const uint8_t *status; /* rows_cnt x fields.cnt, row-major: 1 produced; or rows_cnt: consumed */
    tq_strs_t names;       /* partitions or tasks */
    const uint32_t *units; /* one a row: the storage unit that holds it */
    uint32_t columns_cnt;
    const tq_column_out_t *columns;
    uint64_t count;       /* e.g. rows cleared */
    bool is_known;        /* the partition (and field, task) asked for exists */
    const char *json;     /* stat */
    uint64_t incarnation; /* of the store that answered */
} tq_result_t;

TQ_API const tq_result_t *tq_op_result(const tq_op_t *op);

/* ---- writing --------------------------------------------------------------------------------- */

typedef enum tq_put_flags {
    TQ_PUT_NONE = 0,
    TQ_PUT_REPLACE_TAGS = 1 << 0, /* tags replace the rows' maps instead of being merged */
    TQ_PUT_WANT_META = 1 << 1,    /* result: merged tags, and the fields common to all the rows */
} tq_put_flags_t;

/* Which rows: keys (made where they are new), or rows that exist, or neither: n new rows. */
typedef struct tq_put_args {
    const char *partition;
    uint32_t rows_cnt;     /* n, 1 to TQ_REQUEST_ROWS_MAX */
    const tq_strs_t *keys; /* n, or NULL */
    const tq_row_t *rows;  /* n, or NULL */
    uint32_t columns_cnt;  /* 0 with tags only */
    const tq_column_t *columns;
    const tq_strs_t *tags; /* n msgpack maps, or NULL */
    uint32_t flags;        /* tq_put_flags_t */
    uint32_t timeout_ms;   /* 0: call_timeout_ms of the client */
} tq_put_args_t;

/* Puts cells and tags. All is visible at once per row, or, on error, nothing that this put made
 * stays: rows and keys that it created are gone. Where it was replacing produced cells, each holds
 * its old or its new value, and the text names those that changed.
 * Result: rows; with WANT_META tags, fields and schemas.
 * E_INVALID, E_DUPLICATE (a key or row given twice), E_NO_PARTITION (rows given), E_ROW_GONE,
 * E_TOO_LARGE, E_FULL, E_TIMEOUT, E_UNIT_LOST, E_SESSION_EXPIRED, E_STALE_STORE,
 * E_OUTCOME_UNKNOWN, E_CANCELLED, E_CLOSED. */
TQ_API tq_status_t tq_put_submit(tq_client_t *client, tq_cq_t *cq, const tq_put_args_t *args,
                                 void *user, tq_op_t **op, tq_error_t *err);
TQ_API tq_status_t tq_put(tq_client_t *client, const tq_put_args_t *args, tq_op_t **op,
                          tq_error_t *err);

typedef struct tq_insert_args {
    const char *partition;
    uint32_t rows_cnt;       /* 0: the partition is created and nothing else */
    const tq_strs_t *fields; /* their schemas are wanted; may be NULL */
    uint32_t timeout_ms;
} tq_insert_args_t;

/* Reserves rows that stay until cleared. Result: rows, units, fields, schemas. */
TQ_API tq_status_t tq_insert_submit(tq_client_t *client, tq_cq_t *cq, const tq_insert_args_t *args,
                                    void *user, tq_op_t **op, tq_error_t *err);

typedef struct tq_tags_args {
    const char *partition;
    uint32_t rows_cnt;
    const tq_row_t *rows;
    const tq_strs_t *tags; /* one msgpack map a row */
    bool is_replace;       /* else merged at the top level */
    uint32_t timeout_ms;
} tq_tags_args_t;

/* Sets tags of rows. E_NO_PARTITION, E_ROW_GONE, E_INVALID, E_TOO_LARGE. */
TQ_API tq_status_t tq_tags_submit(tq_client_t *client, tq_cq_t *cq, const tq_tags_args_t *args,
                                  void *user, tq_op_t **op, tq_error_t *err);

typedef struct tq_clear_args {
    const char *partition;
    uint32_t rows_cnt;
    const tq_row_t *rows;  /* these rows, or */
    const tq_strs_t *keys; /* the rows of these keys, or */
    bool is_all;           /* every row, and the partition itself with its fields, keys and tasks */
    uint32_t timeout_ms;
} tq_clear_args_t;

/* Clears rows: when it completes no request can reach them any more. Unknown rows, keys and
 * partitions are no error. Result: count. A unit that does not answer keeps its rows "clearing";
 * the op then ends with E_TIMEOUT, the clear goes on, and the same call joins it. */
TQ_API tq_status_t tq_clear_submit(tq_client_t *client, tq_cq_t *cq, const tq_clear_args_t *args,
                                   void *user, tq_op_t **op, tq_error_t *err);

typedef struct tq_reset_args {
    const char *partition;
    const char *task; /* NULL: every task */
    uint32_t timeout_ms;
} tq_reset_args_t;

/* Makes rows unconsumed again for a task. Unknown names are no error. */
TQ_API tq_status_t tq_reset_submit(tq_client_t *client, tq_cq_t *cq, const tq_reset_args_t *args,
                                   void *user, tq_op_t **op, tq_error_t *err);

/* ---- reading --------------------------------------------------------------------------------- */

typedef enum tq_fetch_mode {
    TQ_FETCH = 1,     /* n ready rows that the task has not consumed; marks them consumed */
    TQ_FETCH_ALL = 2, /* every row; marks nothing; n is ignored; never waits */
} tq_fetch_mode_t;

typedef struct tq_fetch_args {
    const char *partition;
    const tq_strs_t *fields; /* all must be produced for a row to be ready */
    uint32_t rows_cnt;
    const char *task;
    tq_fetch_mode_t mode;
    bool is_polling;      /* not enough: an empty result at once */
    const void *sampling; /* msgpack map of the sampler's arguments, or NULL */
    size_t sampling_len;
    uint32_t timeout_ms; /* 0: fetch_timeout_ms of the client */
} tq_fetch_args_t;

/* Fetches rows by the store's sampler. Waits in the store until there are enough, and is woken the
 * moment that there are. Rows are the task's once this op's completion was taken: if the process
 * dies, or the op is cancelled, before that, they go to another.
 * Result: rows, units, fields, schemas, status (all 1 for FETCH), tags.
 * E_NOT_READY (the text has wanted, available and what is missing), E_INVALID, E_NO_PARTITION
 * (FETCH_ALL), E_SAMPLER, E_CANCELLED. */
TQ_API tq_status_t tq_fetch_submit(tq_client_t *client, tq_cq_t *cq, const tq_fetch_args_t *args,
                                   void *user, tq_op_t **op, tq_error_t *err);

typedef struct tq_resolve_args {
    const char *partition;
    const tq_strs_t *keys; /* these keys, or */
    uint32_t rows_cnt;
    const tq_row_t *rows; /* these rows */
    bool is_create;       /* new keys get reserved rows, which stay until cleared */
    uint32_t timeout_ms;
} tq_resolve_args_t;

/* Looks up rows by key, or keys by row. Result: rows (TQ_ROW_NONE where unknown), keys, has_key,
 * tags, units, fields (those produced for every row found), schemas, is_known. */
TQ_API tq_status_t tq_resolve_submit(tq_client_t *client, tq_cq_t *cq,
                                     const tq_resolve_args_t *args, void *user, tq_op_t **op,
                                     tq_error_t *err);

typedef enum tq_get_flags {
    TQ_GET_NONE = 0,
    TQ_GET_SKIP_KEYS = 1 << 0,   /* leave out unknown keys (result.rows has those found) */
    TQ_GET_SKIP_FIELDS = 1 << 1, /* leave out fields that some row lacks */
} tq_get_flags_t;

typedef struct tq_get_args {
    const char *partition;
    const tq_strs_t *keys; /* rows by key, or */
    uint32_t rows_cnt;
    const tq_row_t *rows;    /* by index; repeats and any order are fine */
    const tq_strs_t *fields; /* NULL: all that are produced for every row */
    uint32_t flags;          /* tq_get_flags_t */
    uint32_t timeout_ms;
} tq_get_args_t;

/* Reads cells into memory that the op allocates: one buffer a column, rows in the order asked for,
 * columns in the order of the fields (NULL: by name). Overwrites and clears that happen meanwhile
 * change nothing that it returns: each cell is one writer's value, whole.
 * Result: rows, keys, fields, columns. E_NO_PARTITION, E_NO_KEY, E_NO_FIELD, E_NOT_PRODUCED,
 * E_NOT_FOUND (cleared), E_UNIT_LOST, E_TIMEOUT, E_TOO_LARGE, E_NO_MEMORY. */
TQ_API tq_status_t tq_get_submit(tq_client_t *client, tq_cq_t *cq, const tq_get_args_t *args,
                                 void *user, tq_op_t **op, tq_error_t *err);
TQ_API tq_status_t tq_get(tq_client_t *client, const tq_get_args_t *args, tq_op_t **op,
                          tq_error_t *err);

typedef enum tq_status_kind {
    TQ_STATUS_CONSUMPTION = 1, /* of one task: result.rows, status (rows_cnt) */
    TQ_STATUS_PRODUCTION = 2,  /* of fields: result.rows, status (rows_cnt x fields) */
} tq_status_kind_t;

typedef struct tq_status_args {
    const char *partition;
    tq_status_kind_t kind;
    const char *task;
    const tq_strs_t *fields;
    uint32_t timeout_ms;
} tq_status_args_t;

/* Result: is_known (the partition, and for PRODUCTION every field, exists), rows ascending, status. */
TQ_API tq_status_t tq_status_submit(tq_client_t *client, tq_cq_t *cq, const tq_status_args_t *args,
                                    void *user, tq_op_t **op, tq_error_t *err);

typedef struct tq_list_args {
    const char *partition; /* NULL: the names of all partitions, in result.names */
    bool is_keys_only;     /* leave out rows that have no key */
    bool is_stuck_only;    /* rows that a waiting fetch could use but for missing fields */
    bool want_fields;      /* fields and status as well */
    uint64_t rows_max;     /* 0: all */
    uint32_t timeout_ms;
} tq_list_args_t;

/* Lists a partition in insertion order. Result: is_known, rows, keys, has_key, tags, units; with
 * want_fields also fields, schemas and status. */
TQ_API tq_status_t tq_list_submit(tq_client_t *client, tq_cq_t *cq, const tq_list_args_t *args,
                                  void *user, tq_op_t **op, tq_error_t *err);

/* Figures of the store, its partitions, units and sessions, as JSON (docs/operations.md names the
 * members). Result: json. */
TQ_API tq_status_t tq_stat_submit(tq_client_t *client, tq_cq_t *cq, uint32_t timeout_ms, void *user,
                                  tq_op_t **op, tq_error_t *err);

/* Gives up a storage unit that is lost (stat names it) and will not come back: its cells are
 * un-produced at once, so that they can be put again or cleared, and should its process still live, it
 * is refused and has to be started again. Result: nothing.
 * E_NOT_FOUND (no such unit), E_INVALID (it is not lost), and what every call may end with. */
TQ_API tq_status_t tq_unit_forget_submit(tq_client_t *client, tq_cq_t *cq, uint32_t unit_id,
                                         uint32_t timeout_ms, void *user, tq_op_t **op,
                                         tq_error_t *err);

/* ---- version --------------------------------------------------------------------------------- */

TQ_API const char *tq_version(void); /* "0.1.0" */

#ifdef __cplusplus
}
#endif
#endif
