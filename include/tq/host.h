/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hosting: running a store's roles inside this process. tqd, the Python package and the tests are
 * thin callers of this; each role runs in a thread of its own.
 */
#ifndef TQ_HOST_H
#define TQ_HOST_H

#include <stdbool.h>

#include <tq/status.h>
#include <tq/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tq_controller tq_controller_t;
typedef struct tq_unit tq_unit_t;
typedef struct tq_store tq_store_t;

/* Times in ms, 0 for the default beside it; docs/operations.md has the table. */
typedef struct tq_controller_conf {
    const char *listen;     /* comma-separated: "ipc://PATH", "tcp://ADDR:PORT" (PORT * picks one);
                                NULL: in-process clients only */
    const char *advertise;  /* HOST or HOST:PORT by which others reach the first of listen, a tcp
                                address; NULL: itself. Of a wildcard ("tcp://0.0.0.0:7300"): the
                                address of this machine, where it is the only one or its name's */
    const char *name;       /* in-process name ("inproc://NAME"); NULL: made up */
    const char *sampler;    /* "SequentialSampler" (default), "GRPOGroupNSampler" */
    uint32_t sampler_group; /* rows of one group for GRPO; 0: 1 */
    const char *sampler_group_by; /* a tag whose equal values make a group; NULL: by position */
    uint32_t prealloc_rows;       /* rows reserved when a partition is made (default 0) */
    uint32_t silence_ms;          /* 5,000: a session that says nothing for so long is ended */
    uint32_t unit_lost_ms;        /* 10,000: then a silent unit's rows leave the ready sets */
    const char *user_conf; /* text handed to every client (tq_client_store_conf); may be NULL */
    const char *curve_secret_key; /* 40 characters Z85 with the public one, or NULL */
    const char *curve_public_key;
} tq_controller_conf_t;

/* Starts a controller with a new incarnation. E_ADDRESS (in use, no permission: the text names the
 * address and the option), E_NO_SAMPLER, E_CONFIG, E_NO_MEMORY, E_SYSTEM. */
TQ_API tq_status_t tq_controller_open(const tq_controller_conf_t *conf, tq_controller_t **ctl,
                                      tq_error_t *err);
/* What clients and units connect to: "tcp://10.0.0.1:40123" (as advertised, with the real port;
 * "inproc://NAME" where it listens nowhere). Valid until closed. */
TQ_API const char *tq_controller_address(const tq_controller_t *ctl);
TQ_API uint64_t tq_controller_incarnation(const tq_controller_t *ctl);
/* Refuses new work, answers what is in flight within 10 s, and stops. NULL is fine. */
TQ_API void tq_controller_close(tq_controller_t *ctl);

typedef struct tq_unit_conf {
    const char *controller;     /* address of the controller */
    const char *listen;         /* as above, one address; its payload port is made beside it */
    const char *advertise;      /* HOST or HOST:PORT that clients are told to dial (payload: the
                                        same HOST); NULL: listen. Of a wildcard: the address of the
                                        route to the controller, else of this machine */
    const char *listen_payload; /* NULL: derived from listen ("PATH.data", another tcp port) */
    const char *name;           /* in-process name; NULL: made up */
    uint64_t capacity_bytes;    /* 0: a quarter of the machine's memory */
    uint32_t column_reserve_percent; /* 10: kept for rows that already have a produced field */
    uint32_t lease_ms; /* 30,000: a transfer that nobody names for so long is dropped */
    const char *curve_secret_key;
    const char *curve_public_key;
    const char *curve_server_key; /* of the controller */
} tq_unit_conf_t;

/* Starts a storage unit and registers it. Blocks up to 5 s for the controller's answer.
 * E_UNREACHABLE, E_ADDRESS, E_CONFIG (also: listens on a wildcard, and what to advertise can't be
 * guessed), E_NO_MEMORY, E_SYSTEM. */
TQ_API tq_status_t tq_unit_open(const tq_unit_conf_t *conf, tq_unit_t **unit, tq_error_t *err);
TQ_API const char *tq_unit_address(const tq_unit_t *unit);
TQ_API void tq_unit_close(tq_unit_t *unit);

/* A controller and its units in this process: what the Python package embeds. Where the controller
 * listens on tcp, the units listen and are advertised by the same hosts. */
typedef struct tq_store_conf {
    tq_controller_conf_t
        controller;          /* listen NULL: "ipc://RUNTIME_DIR/tq-PID-N" (folder mode 0700) */
    uint32_t units_cnt;      /* 0: 2 */
    uint64_t capacity_bytes; /* of all units together; 0: a quarter of memory */
    bool is_private;         /* no listening at all: threads of this process only */
} tq_store_conf_t;

TQ_API tq_status_t tq_store_open(const tq_store_conf_t *conf, tq_store_t **store, tq_error_t *err);
/* For this process: in-process address. */
TQ_API const char *tq_store_address(const tq_store_t *store);
/* For children (TQ_ADDRESS): "ipc://...#incarnation"; "" when private. */
TQ_API const char *tq_store_public_address(const tq_store_t *store);
TQ_API void tq_store_close(tq_store_t *store);

/* A new CURVE key pair: 40 characters of Z85 and a terminator each. E_UNSUPPORTED where libzmq was
 * built without it. Any thread. */
TQ_API tq_status_t tq_keypair(char public_key[41], char secret_key[41], tq_error_t *err);

#ifdef __cplusplus
}
#endif
#endif
