/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole store in one thread, from one seed: a controller, storage units and clients on a simulated
 * network (net/sim), the faults that befall them, and the work that the clients do.
 *
 *   world.c     processes: born, stepped, stopped, killed, born again
 *   faults.c    what goes wrong, drawn from the seed
 *   traps.c     and what is tied to a state that some machine enters
 *   work.c      what the clients do, and how each result is judged
 *   model.c     what may be read: puts and clears as the callers saw them
 *   grants.c    who has which row: read off the frames at the controller
 *   audit.c     the end: everything healed, finished, read, cleared, and back to zero
 *   history.c   the run as the clients saw it, for the checker of tests/oracle
 *   pairs.c     (state, event) pairs that the roles went through
 *   main.c      seeds
 *
 * The invariants that are checked are those of docs/architecture.md, by number.
 */
#ifndef TQ_TESTS_SIM_WORLD_H
#define TQ_TESTS_SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/map.h"
#include "base/rng.h"
#include "net/sim/sim.h"
#include "role/client/client.h"
#include "role/controller/controller.h"
#include "role/storage/unit.h"
#include "wire/msg.h"

#define UNITS_MAX 3
#define CLIENTS_MAX 4
#define PROCS_MAX (1 + UNITS_MAX + CLIENTS_MAX)
#define ACTORS_MAX 3 /* of one client */
#define PARTITIONS 3
#define FIELDS 5
#define CELLS (FIELDS + 2) /* the fields, and two tags: CELL_N, CELL_T */
#define CELL_N FIELDS      /* what puts write */
#define CELL_T (FIELDS + 1)
#define TASKS 2
#define KEYS 12
#define ROWS_MAX 8 /* of one put */

typedef struct world world_t;
typedef struct proc proc_t;
typedef struct work work_t;
typedef struct model model_t;
typedef struct grants grants_t;

/* What a strike does. */
typedef enum strike {
    STRIKE_NONE,
    STRIKE_CONTROLLER, /* dies */
    STRIKE_UNIT,
    STRIKE_CLIENT,
    STRIKE_STOP,      /* a process is stopped, and goes on later */
    STRIKE_SLUGGISH,  /* one runs only now and then for a while */
    STRIKE_PARTITION, /* frames are held back, one way or both */
    STRIKE_BREAK,     /* a connection breaks */
    STRIKE_MEMORY,    /* an allocation fails */
    STRIKE_SESSION,   /* the controller ends a session whose client lives */
    STRIKE_DRAIN,     /* a process is told to end (SIGTERM), and does */
    STRIKE_LEAVE,     /* a client says BYE, and comes back as another */
    STRIKES_CNT
} strike_t;

typedef struct sim_options {
    const char *program; /* how it was called */
    bool is_verbose;
    /* One fault and nothing else: at the frame with this number (of all ctrl frames that clients
     * send or are sent), and what. 0: faults as the seed has them. */
    uint64_t strike_at;
    strike_t strike;
    bool is_outside_only; /* the roles don't check themselves */
    uint32_t check_every; /* events between the expensive checks */
    uint64_t steps_max;   /* events after which the run stops, judged as it is; 0: none */
} sim_options_t;

/* What one seed did. */
typedef struct sim_totals {
    uint64_t events;
    uint64_t ops;
    uint64_t ops_ok;
    uint64_t puts_ok;
    uint64_t gets_ok;
    uint64_t cells_read;
    uint64_t grants;
    uint64_t faults;
    uint64_t strikes[STRIKES_CNT];
    uint64_t frames; /* ctrl, that clients sent or were sent, until all was healed */
    uint64_t digest;
} sim_totals_t;

/* ---- processes --------------------------------------------------------------------------------- */

typedef enum proc_kind { PROC_CONTROLLER, PROC_UNIT, PROC_CLIENT } proc_kind_t;

typedef struct actor {
    proc_t *proc;
    uint32_t id;
    tqi_sim_event_t think;
    work_t *work;          /* what it waits for */
    uint32_t fetched_part; /* rows that it got last, to be read */
    uint32_t fetched_mask;
    uint32_t fetched_cnt;
    tq_row_t fetched[ROWS_MAX];
} actor_t;

struct proc {
    world_t *world;
    proc_kind_t kind;
    uint32_t id; /* among its kind */
    char name[16];
    tqi_sim_host_t *host;
    tqi_sink_t sink;
    tqi_sim_memory_t memory;
    tqi_sim_event_t wake;
    tqi_sim_event_t fate; /* the next thing that befalls it */
    uint32_t process;     /* those with the same number, not 0, live and die together */
    uint32_t lives;
    uint64_t paused_ns; /* when it was stopped */
    uint64_t sluggish_until_ns;
    uint64_t drain_until_ns; /* it was told to end, and is killed then; 0: it was not */
    tqi_role_t *role;        /* NULL: dead */
    union {
        tqi_controller_t *controller;
        tqi_unit_t *unit;
        tqi_client_t *client;
    };
    uint64_t life;     /* incarnation of what runs */
    uint64_t capacity; /* of a unit */
    bool is_dying;     /* inside kill */
    bool is_leaving;   /* a client that was closed, until it is born again */
    actor_t actors[ACTORS_MAX];
    uint32_t actors_cnt;
    tqi_list_t works; /* work_t, not freed yet */
    uint32_t buffers_cnt;
};

struct world {
    uint64_t seed;
    const sim_options_t *options;
    tqi_rng_t rng;
    tqi_sim_t *sim;
    proc_t procs[PROCS_MAX];
    uint32_t procs_cnt;
    proc_t *controller;
    proc_t *units[UNITS_MAX];
    uint32_t units_cnt;
    proc_t *clients[CLIENTS_MAX];
    uint32_t clients_cnt;
    char sampler[32];
    uint32_t sampler_group;
    uint32_t prealloc_rows;
    uint32_t slice_rows, page_rows; /* of the controller; 0: its defaults */
    uint32_t lease_ms;
    uint32_t slack_us; /* an awake process runs again within that */
    bool may_spoil, is_tight, is_slow, is_embedded;
    const struct trap *trap;
    uint32_t traps_left;
    uint32_t held_unit; /* of a trap: whose answers are held back */
    uint32_t large_inserts;
    tqi_sim_event_t trapped;

    /* The plan. */
    uint64_t faults_end_ns;
    tqi_sim_faults_t faults;
    uint32_t ops_left;
    bool is_healing; /* no new faults, no new work */
    tqi_sim_event_t gremlin;
    tqi_sim_event_t unblock;
    tqi_sim_event_t one; /* options->strike */
    double weights[STRIKES_CNT];
    int32_t ppm_max; /* how fast or slow clocks may run */
    uint32_t ambushes_left;
    uint16_t ambush_kind; /* 0: none is laid */
    uint32_t ambush_in;   /* frames of that kind */
    tqi_sim_event_t ambush;
    proc_t *ambush_victim;
    proc_t *ambush_other;

    model_t *model;
    grants_t *grants;
    uint64_t memory_losses; /* units whose memory died, controllers too */
    uint64_t event_idx;
    uint64_t life_last;
    sim_totals_t totals;
};

/* Makes a world from its seed, runs it to the end and takes it apart. A broken invariant is told,
 * with the command that repeats it, and ends the program with 1. */
void world_run(uint64_t seed, const sim_options_t *options, sim_totals_t *totals);

/* An invariant does not hold. */
_Noreturn void world_fail(world_t *w, const char *invariant, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Of the failing seed; also for a crash. */
void world_print_replay(uint64_t seed, const sim_options_t *options);
void world_say(world_t *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

uint64_t world_between(world_t *w, uint64_t lo, uint64_t hi);
bool world_chance(world_t *w, double probability);

/* By the controller that runs now. */
uint64_t world_sessions_ended(const world_t *w);

void proc_boot(proc_t *proc);
void proc_kill(proc_t *proc, bool is_silent);
void proc_pause(proc_t *proc);
void proc_resume(proc_t *proc);
/* It was given something outside of its events: run it soon. */
void proc_poke(proc_t *proc);
uint64_t proc_now(const proc_t *proc);
/* It is told to end; whoever did looks whether it has, and kills it. */
void proc_drain(proc_t *proc);
bool proc_is_drained(const proc_t *proc);
/* Runs the world until `is_done` holds (checked after each event) or the time comes. False: it
 * came. */
bool world_until(world_t *w, uint64_t until_ns, bool (*is_done)(world_t *w));

/* ---- faults ------------------------------------------------------------------------------------ */

void faults_plan(world_t *w);
void faults_start(world_t *w);
/* A frame is sent; to is NULL while nobody is known to be there. */
void faults_on_frame(world_t *w, const tqi_sim_host_t *from, const tqi_sim_host_t *to,
                     const tqi_envelope_t *env);
/* Heals all links, resumes and restarts everybody. */
void faults_heal(world_t *w);
const char *strike_name(strike_t strike);

/* Strikes tied to what the roles go through. */
void traps_plan(world_t *w);
void traps_clear(world_t *w);

/* ---- work -------------------------------------------------------------------------------------- */

typedef enum work_kind {
    WORK_PUT,
    WORK_GET,
    WORK_FETCH,
    WORK_CLEAR,
    WORK_RESET,
    WORK_TAGS,
    WORK_INSERT,
    WORK_RESOLVE,
    WORK_STATUS,
    WORK_LIST,
    WORK_FETCH_ALL,
    WORK_STAT,
} work_kind_t;

/* One op, from submit until freed. */
struct work {
    tqi_node_t node; /* in its process */
    proc_t *proc;
    actor_t *actor; /* NULL: nobody waits (the audit, or the actor was let go) */
    work_kind_t kind;
    uint64_t number; /* of the run */
    tqi_op_t *op;
    bool is_done;
    bool is_cancelled;
    bool is_abandoned; /* nobody looks at what it gets */
    uint64_t submit_ns;
    uint64_t done_ns;
    uint32_t losses;         /* world's memory losses at submit */
    uint64_t sessions_ended; /* as the controller counts, at submit */
    uint32_t part;
    uint32_t task;
    uint32_t fields_mask;
    uint32_t rows_cnt;
    tq_row_t rows[ROWS_MAX];
    uint32_t keys[ROWS_MAX];
    bool is_by_key;
    bool is_all;
    bool is_part; /* a list of some of the rows */
    bool has_wait;
    bool is_polling;  /* a fetch */
    bool is_skipping; /* a get, of keys */
    uint32_t timeout_ms;
    uint64_t session; /* in which it was granted what it got, or else ended */
    struct put_record *put;
    struct clear_record *clear;
    void *memory[FIELDS]; /* a put's columns */
    size_t memory_bytes[FIELDS];
    tqi_sim_event_t cancel;
    tqi_sim_event_t harvest;
    tq_status_t status;
    /* The audit's: what came out, copied. */
    void (*on_result)(work_t *work, const tq_result_t *result);
    void *ctx;
};

extern const char *const partition_names[PARTITIONS];
extern const char *const field_names[CELLS];
extern const char *const task_names[TASKS];

/* Draws what the workload needs of the world. */
void work_plan(world_t *w);
void work_start(proc_t *proc);
/* A frame is about to be handled by the client; or has been. */
void work_before_frame(proc_t *proc, const void *data, size_t len);
void work_after_frame(proc_t *proc);
/* All callers give up. */
void work_cancel_all(proc_t *proc);
/* The store that the client is opened for alone; 0: any. */
uint64_t work_store_wanted(proc_t *proc);
void work_stop(proc_t *proc);
/* The client's life ends: what it had under way is over, unseen. Before and after the role went. */
void work_killed(proc_t *proc);
tqi_client_host_t work_host(proc_t *proc);
/* For the audit. The op is made, given to the client, and judged like any other. */
work_t *work_list(proc_t *proc, uint32_t part);
work_t *work_get_rows(proc_t *proc, uint32_t part, const tq_row_t *rows, uint32_t rows_cnt,
                      uint32_t fields_mask);
work_t *work_poll(proc_t *proc, uint32_t part, uint32_t task, uint32_t fields_mask, uint32_t n);
work_t *work_wait(proc_t *proc, uint32_t part, uint32_t task, uint32_t fields_mask, uint32_t n);
work_t *work_reset(proc_t *proc, uint32_t part); /* all tasks */
work_t *work_clear_all(proc_t *proc, uint32_t part);
work_t *work_forget(proc_t *proc, uint32_t unit_id);
/* Of all fields, in whole groups of rows. */
work_t *work_put_new(proc_t *proc, uint32_t part);
bool work_is_idle(const world_t *w);

/* ---- what may be read -------------------------------------------------------------------------- */

typedef enum put_outcome { PUT_PENDING, PUT_OK, PUT_FAILED, PUT_UNKNOWN } put_outcome_t;
typedef enum put_ident { IDENT_NEW, IDENT_KEY, IDENT_ROW } put_ident_t;

typedef struct put_record {
    uint64_t serial; /* place in the model, from 1 */
    uint32_t part;
    put_ident_t ident;
    uint32_t rows_cnt;
    uint32_t keys[ROWS_MAX];
    tq_row_t rows[ROWS_MAX]; /* TQ_ROW_NONE while unknown */
    uint32_t fields_mask;
    uint32_t size_class;
    bool is_uniform;
    bool is_replace; /* other tags of its rows go */
    uint64_t submit_ns;
    uint64_t done_ns;
    put_outcome_t outcome;
    uint64_t incarnation;
    uint64_t losses;
} put_record_t;

typedef struct clear_record {
    uint32_t part;
    bool is_all;
    bool is_by_key;
    uint32_t cnt;
    tq_row_t rows[ROWS_MAX];
    uint32_t keys[ROWS_MAX];
    uint64_t submit_ns;
    uint64_t done_ns; /* UINT64_MAX: it may still be at work */
    bool is_ok;
    uint64_t incarnation;
    uint64_t asked_of; /* the store that the caller's rows are of */
} clear_record_t;

model_t *model_new(world_t *w);
void model_free(model_t *m);
put_record_t *model_put(model_t *m);
clear_record_t *model_clear(model_t *m);
/* The put succeeded, with these rows. */
void model_put_ok(model_t *m, put_record_t *put, const tq_row_t *rows, uint64_t incarnation);
/* Bytes of the cell of the put's row `ord` in a field, and the bytes themselves. */
size_t model_cell_len(const put_record_t *put, uint32_t ord, uint32_t field);
void model_cell_fill(const put_record_t *put, uint32_t ord, uint32_t field, uint8_t *out);
/* A get, from rs to re, found these bytes. Fails the world where it can't have (INV-21 to INV-24). */
void model_check_cell(model_t *m, uint32_t part, tq_row_t row, uint32_t field, const uint8_t *data,
                      size_t len, uint64_t rs, uint64_t re, uint64_t incarnation);
/* Whether the cell must be there for a reader from rs to re. key KEYS: by row. */
bool model_must_exist(model_t *m, uint32_t part, tq_row_t row, uint32_t key, uint32_t field,
                      uint64_t rs, uint64_t re);
/* What a list from rs to re says of a row: its key (KEYS: none), and its tags. Fails the world where
 * that can't be (INV-32). */
void model_check_key(model_t *m, uint32_t part, tq_row_t row, uint32_t key, uint64_t incarnation);
void model_check_tags(model_t *m, uint32_t part, tq_row_t row, const uint8_t *map, size_t len,
                      uint64_t rs, uint64_t re, uint64_t incarnation);
/* A put's or TAGS' map for one row, and its size. */
#define MODEL_TAGS_BYTES 37
void model_fill_tags(const put_record_t *put, uint32_t ord, uint8_t out[MODEL_TAGS_BYTES]);
/* Whether a clear that was over before rs had this row. */
bool model_is_cleared(model_t *m, uint32_t part, tq_row_t row, uint64_t rs, uint64_t incarnation);
/* Whether any clear in the partition was at work between rs and re. */
bool model_has_clear(model_t *m, uint32_t part, uint64_t rs, uint64_t re);
/* Some row of the partition that a put made, or TQ_ROW_NONE. */
tq_row_t model_some_row(model_t *m, uint32_t part);
/* The controller was born again: rows are numbered anew. */
void model_new_store(model_t *m);

/* ---- grants ------------------------------------------------------------------------------------ */

grants_t *grants_new(world_t *w);
void grants_free(grants_t *g);
void grants_new_store(grants_t *g);
/* A frame is about to be handled by the controller; or leaves it. */
void grants_on_request(grants_t *g, const tqi_envelope_t *env);
void grants_on_reply(grants_t *g, const tqi_envelope_t *env);
/* The task has the row: acknowledged, or provisionally by a live session. */
bool grants_has(grants_t *g, uint32_t task, tq_row_t row);

/* ---- the end ----------------------------------------------------------------------------------- */

void audit(world_t *w);
/* After each event, cheap; and everything. */
void check_cheap(world_t *w);
void check_all(world_t *w);

#endif
