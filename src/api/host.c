/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hosting: each role gets a loop, its adapters and a thread. Closing is the same for all: drain,
 * wait until idle, stop the thread, stop what libzmq and copy threads still touch, free the role,
 * then the rest.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tq/host.h>
#include <unistd.h>

#include "api/advertise.h"
#include "api/folder.h"
#include "base/size.h"
#include "loop/loop.h"
#include "net/inproc/inproc.h"
#include "net/pidfd/pidfd.h"
#include "net/zmq/zmq_ctrl.h"
#include "net/zmq/zmq_payload.h"
#include "role/controller/controller.h"
#include "role/storage/unit.h"
#include "sys/clock.h"
#include "sys/entropy.h"
#include "sys/env_malloc.h"
#include "sys/limit.h"
#include "sys/log.h"
#include "sys/machine.h"

#define INPROC "inproc://"
#define CLOSE_NS UINT64_C(10000000000)
/* For the last words to be heard: libzmq drops what has arrived and was not read yet when a connection
 * ends (RECONNECT_IVL -1: the socket's end of the pipe goes with it). */
#define HEARD_NS UINT64_C(500000000)
#define REGISTER_NS UINT64_C(5000000000)
#define POLL_NS 500000L /* between looks at a role that closes or registers */
#define LISTEN_MAX 8
#define UNITS_MAX 64
#define FILES_A_ROLE 16u          /* that a role without clients has open, at most */
#define SEGMENT_BYTES (64u << 20) /* of a unit: each is a file */

static uint64_t random_id(void)
{
    uint64_t id = 0;
    while (id == 0)
        tqi_entropy(&id, sizeof id);
    return id;
}

static void nap(void)
{
    struct timespec ts = {0, POLL_NS};
    nanosleep(&ts, NULL);
}

/* ---- a loop with its ctrl adapters ----------------------------------------------------------- */

/* Where a role listens; the in-process name is always there, and unguessable unless given. */
typedef struct places {
    char inproc[TQI_ADDRESS_MAX];
    char real[LISTEN_MAX][TQI_ADDRESS_MAX];
    unsigned real_cnt;
    char advertised
        [TQI_ADDRESS_MAX]; /* how others reach the first of them; "" where there is none */
} places_t;

/* Makes the loop and its two ctrl adapters, and listens on the name and on each address of the
 * comma-separated list. */
static tq_status_t loop_open(const char *thread, const char *name, const char *listen,
                             const tqi_zmq_conf_t *conf, tqi_loop_t **out, places_t *places,
                             tqi_err_t *err)
{
    const tqi_env_t *env = tqi_env_malloc();
    tqi_loop_t *loop = NULL;
    tqi_ctrl_adapter_t *adapter;
    char address[TQI_ADDRESS_MAX];
    memset(places, 0, sizeof *places);
    tq_status_t rc = tqi_loop_new(thread, &loop, err);
    if (rc != TQ_OK)
        return rc;
    rc = tqi_inproc_ctrl_new(env, tqi_loop_mailbox(loop), tqi_loop_ctrl_sink(loop, 0), &adapter,
                             err);
    if (rc == TQ_OK)
        rc = tqi_loop_add_ctrl(loop, 0, adapter, err);
    if (rc != TQ_OK)
        goto fail;
    rc = tqi_zmq_ctrl_new(env, conf, tqi_loop_ctrl_sink(loop, 1), &adapter, err);
    if (rc == TQ_OK)
        rc = tqi_loop_add_ctrl(loop, 1, adapter, err);
    if (rc != TQ_OK)
        goto fail;

    if (name)
        snprintf(address, sizeof address, INPROC "%s", name);
    else
        snprintf(address, sizeof address, INPROC "%s-%016" PRIx64, thread, random_id());
    rc = tqi_loop_listen(loop, address, places->inproc, err);
    for (const char *at = listen; rc == TQ_OK && at && *at;) {
        size_t len = strcspn(at, ",");
        if (len >= sizeof address || places->real_cnt == LISTEN_MAX) {
            rc = tqi_fail(err, TQ_E_CONFIG,
                          "listen: more than %d addresses, or one that is too long", LISTEN_MAX);
            break;
        }
        memcpy(address, at, len);
        address[len] = 0;
        rc = tqi_loop_listen(loop, address, places->real[places->real_cnt], err);
        if (rc == TQ_OK)
            places->real_cnt++;
        at += len + (at[len] == ',');
    }
    if (rc != TQ_OK)
        goto fail;
    *out = loop;
    return TQ_OK;
fail:
    tqi_loop_free(loop);
    return rc;
}

/* How to reach a role: from anywhere, if it listens at all. */
static const char *first_place(const places_t *places)
{
    return places->real_cnt > 0 ? places->advertised : places->inproc;
}

tq_status_t tq_keypair(char public_key[41], char secret_key[41], tq_error_t *err)
{
    return tqi_zmq_keypair(public_key, secret_key, err);
}

/* ---- controller ------------------------------------------------------------------------------ */

struct tq_controller {
    tqi_loop_t *loop;
    tqi_pidfd_watch_t *watch;
    tqi_controller_t *role;
    uint64_t incarnation;
    places_t places;
    unsigned units_cnt; /* of this process */
    uint64_t files_own; /* what the process has open without clients */
    bool is_started;
    bool is_idle;  /* the drain's answer */
    bool is_heard; /* the last words' */
};

static void controller_pause(void *ctx, uint64_t pause_ns)
{
    tq_controller_t *ctl = ctx;
    tqi_log_warn("controller", "was held up for %" PRIu64 " ms; sessions get as much more time",
                 pause_ns / 1000000);
    tqi_controller_forgive(ctl->role, pause_ns);
}

/* A client has its process and a connection here, and two connections with each unit of this
 * process. Those that are there must not lose to those that would come. */
static size_t controller_sessions_max(void *ctx, char *why, size_t why_size)
{
    tq_controller_t *ctl = ctx;
    uint64_t files = tqi_limit_descriptors_max();
    uint64_t each = 2 + 2 * (uint64_t)ctl->units_cnt;
    snprintf(why, why_size,
             "its process may have %" PRIu64 " files open, and each takes %" PRIu64
             "; raise that limit (ulimit -n)",
             files, each);
    if (files <= ctl->files_own + each)
        return 1;
    return (files - ctl->files_own) / each;
}

static void controller_process_died(void *ctx, uint64_t session)
{
    tq_controller_t *ctl = ctx;
    tqi_log_info("controller", "the process of session %" PRIu64 " has died", session);
    tqi_controller_session_died(ctl->role, session, tqi_now_ns());
}

/* A controller itself tells nobody where it is: what can't be guessed need not be known. */
static tq_status_t controller_advertise(places_t *places, const char *given, tqi_err_t *err)
{
    const char *listens = places->real[0];
    bool is_given = given && *given;
    tq_status_t rc;

    if (places->real_cnt == 0)
        return is_given ? tqi_fail(err, TQ_E_CONFIG, "controller.advertise: it listens nowhere")
                        : TQ_OK;
    rc = tqi_advertise(listens, given, NULL, "controller.advertise", places->advertised, err);
    if (rc == TQ_OK || is_given)
        return rc;
    snprintf(places->advertised, sizeof places->advertised, "%s", listens);
    return TQ_OK;
}

/* units_cnt, units_bytes: of the units that this process will have. */
static tq_status_t controller_open(const tq_controller_conf_t *conf, unsigned units_cnt,
                                   uint64_t units_bytes, tq_controller_t **out, tq_error_t *err)
{
    tq_controller_t *ctl = calloc(1, sizeof *ctl);
    if (!ctl)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a controller");
    ctl->units_cnt = units_cnt;
    ctl->files_own = tqi_limit_descriptors_used() + FILES_A_ROLE * (1 + (uint64_t)units_cnt) +
                     units_bytes / SEGMENT_BYTES;
    ctl->incarnation = random_id();
    tqi_zmq_conf_t zmq = {.curve_secret_key = conf->curve_secret_key,
                          .curve_public_key = conf->curve_public_key};
    tqi_controller_conf_t role = {
        .incarnation = ctl->incarnation,
        .seed = random_id(),
        .sampler = conf->sampler,
        .sampler_group = conf->sampler_group,
        .sampler_group_by = conf->sampler_group_by,
        .prealloc_rows = conf->prealloc_rows,
        .silence_ms = conf->silence_ms,
        .unit_lost_ms = conf->unit_lost_ms,
        .sessions_max = controller_sessions_max,
        .sessions_max_ctx = ctl,
        .user_conf = conf->user_conf,
        .user_conf_len = conf->user_conf ? strlen(conf->user_conf) : 0,
    };
    tq_status_t rc =
        loop_open("tq-controller", conf->name, conf->listen, &zmq, &ctl->loop, &ctl->places, err);
    if (rc == TQ_OK)
        rc = controller_advertise(&ctl->places, conf->advertise, err);
    if (rc == TQ_OK)
        rc = tqi_pidfd_watch_new(tqi_env_malloc(), controller_process_died, ctl, &ctl->watch, err);
    if (rc == TQ_OK)
        rc = tqi_loop_add_source(ctl->loop, tqi_pidfd_watch_source(ctl->watch), err);
    if (rc == TQ_OK) {
        role.watch = tqi_pidfd_watch_port(ctl->watch);
        rc = tqi_controller_new(tqi_env_malloc(), &role, tqi_loop_ctrl(ctl->loop), tqi_now_ns(),
                                &ctl->role, err);
    }
    if (rc == TQ_OK) {
        tqi_loop_on_pause(ctl->loop, controller_pause, ctl);
        rc = tqi_loop_start(ctl->loop, tqi_controller_role(ctl->role), err);
        ctl->is_started = rc == TQ_OK;
    }
    if (rc != TQ_OK) {
        tq_controller_close(ctl);
        return rc;
    }
    for (unsigned i = 0; i < ctl->places.real_cnt; i++)
        tqi_log_info("controller", "store %016" PRIx64 " listens on %s%s%s", ctl->incarnation,
                     ctl->places.real[i], i ? "" : ", reached at ",
                     i ? "" : ctl->places.advertised);
    *out = ctl;
    return TQ_OK;
}

tq_status_t tq_controller_open(const tq_controller_conf_t *conf, tq_controller_t **out,
                               tq_error_t *err)
{
    static const tq_controller_conf_t defaults;
    return controller_open(conf ? conf : &defaults, 0, 0, out, err);
}

const char *tq_controller_address(const tq_controller_t *ctl)
{
    return first_place(&ctl->places);
}

uint64_t tq_controller_incarnation(const tq_controller_t *ctl)
{
    return ctl->incarnation;
}

static void controller_drain(void *ctx, uint64_t now_ns)
{
    tq_controller_t *ctl = ctx;
    tqi_controller_drain(ctl->role, now_ns);
}

static void controller_ask_idle(void *ctx, uint64_t now_ns)
{
    tq_controller_t *ctl = ctx;
    (void)now_ns;
    ctl->is_idle = tqi_controller_is_idle(ctl->role);
}

static void controller_say_closing(void *ctx, uint64_t now_ns)
{
    tq_controller_t *ctl = ctx;
    (void)now_ns;
    tqi_controller_say_closing(ctl->role);
}

static void controller_ask_heard(void *ctx, uint64_t now_ns)
{
    tq_controller_t *ctl = ctx;
    (void)now_ns;
    ctl->is_heard = tqi_controller_is_heard(ctl->role);
}

void tq_controller_close(tq_controller_t *ctl)
{
    if (!ctl)
        return;
    if (ctl->is_started) {
        uint64_t until_ns = tqi_now_ns() + CLOSE_NS;
        tqi_loop_call(ctl->loop, controller_drain, ctl);
        tqi_loop_call(ctl->loop, controller_ask_idle, ctl);
        while (!ctl->is_idle && tqi_now_ns() < until_ns) {
            nap();
            tqi_loop_call(ctl->loop, controller_ask_idle, ctl);
        }
        tqi_loop_call(ctl->loop, controller_say_closing, ctl);
        tqi_loop_call(ctl->loop, controller_ask_heard, ctl);
        for (until_ns = tqi_now_ns() + HEARD_NS; !ctl->is_heard && tqi_now_ns() < until_ns;) {
            nap();
            tqi_loop_call(ctl->loop, controller_ask_heard, ctl);
        }
    }
    if (ctl->loop)
        tqi_loop_stop(ctl->loop);
    if (ctl->role)
        tqi_controller_free(ctl->role);
    tqi_loop_free(ctl->loop);
    tqi_pidfd_watch_free(ctl->watch);
    free(ctl);
}

/* ---- unit ------------------------------------------------------------------------------------ */

struct tq_unit {
    tqi_loop_t *loop;
    tqi_inproc_arena_t *arena;
    tqi_zmq_payload_unit_t *payload;
    tqi_unit_t *role;
    places_t places;
    bool is_started;
    bool is_idle;       /* the drain's answer */
    bool is_registered; /* the look's answer */
    bool is_heard;      /* the last words' */
    char refusal[TQ_ERROR_TEXT_MAX];
};

/* The payload address beside a ctrl address: "ipc://PATH.data", "tcp://HOST:*". NULL listens
 * nowhere: a unit that only its own process uses. */
static tq_status_t payload_address(const char *listen, const char *given, char out[TQI_ADDRESS_MAX],
                                   const char **address, tqi_err_t *err)
{
    int len;
    *address = NULL;
    if (given) {
        len = snprintf(out, TQI_ADDRESS_MAX, "%s", given);
    } else if (!listen) {
        return TQ_OK;
    } else if (strncmp(listen, "tcp://", 6) == 0 && strrchr(listen, ':') > listen + 4) {
        len =
            snprintf(out, TQI_ADDRESS_MAX, "%.*s:*", (int)(strrchr(listen, ':') - listen), listen);
    } else {
        len = snprintf(out, TQI_ADDRESS_MAX, "%s.data", listen);
    }
    if (len < 0 || len >= TQI_ADDRESS_MAX)
        return tqi_fail(err, TQ_E_CONFIG, "the payload address of '%s' is too long", listen);
    *address = out;
    return TQ_OK;
}

static void unit_drain(void *ctx, uint64_t now_ns)
{
    tq_unit_t *unit = ctx;
    tqi_unit_drain(unit->role, now_ns);
}

static void unit_look(void *ctx, uint64_t now_ns)
{
    tq_unit_t *unit = ctx;
    (void)now_ns;
    unit->is_idle = tqi_unit_is_idle(unit->role);
    unit->is_registered = tqi_unit_is_registered(unit->role);
    snprintf(unit->refusal, sizeof unit->refusal, "%s", tqi_unit_error(unit->role));
}

static tq_status_t wait_registered(tq_unit_t *unit, const char *controller, tqi_err_t *err)
{
    uint64_t until_ns = tqi_now_ns() + REGISTER_NS;
    for (;;) {
        tqi_loop_call(unit->loop, unit_look, unit);
        if (unit->is_registered)
            return TQ_OK;
        if (unit->refusal[0])
            return tqi_fail(err, TQ_E_UNREACHABLE, "the controller at %s: %s", controller,
                            unit->refusal);
        if (tqi_now_ns() > until_ns)
            return tqi_fail(err, TQ_E_UNREACHABLE,
                            "no controller answered at %s within 5 s; is it running, and is the "
                            "address right?",
                            controller);
        nap();
    }
}

/* What clients are told of where the unit listens. Payload has another port of the same host, unless
 * it was told to listen elsewhere. */
static tq_status_t unit_advertise(tq_unit_t *unit, const tq_unit_conf_t *conf, tqi_err_t *err)
{
    const char *payload = tqi_zmq_payload_unit_address(unit->payload);
    char host[TQI_ADDRESS_MAX], payload_host[TQI_ADDRESS_MAX], address[TQI_ADDRESS_MAX];
    tq_status_t rc;

    if (unit->places.real_cnt == 0)
        return conf->advertise && *conf->advertise
                   ? tqi_fail(err, TQ_E_CONFIG, "unit.advertise: the unit listens nowhere")
                   : TQ_OK;
    rc = tqi_advertise(unit->places.real[0], conf->advertise, conf->controller, "unit.advertise",
                       unit->places.advertised, err);
    if (rc != TQ_OK || !tqi_address_host(payload, payload_host))
        return rc;
    if (tqi_is_wildcard(payload) ||
        (tqi_address_host(unit->places.real[0], host) && strcmp(host, payload_host) == 0)) {
        bool is_tcp = tqi_address_host(unit->places.advertised, host);

        rc = tqi_advertise(payload, is_tcp ? host : NULL, conf->controller, "unit.advertise",
                           address, err);
        if (rc == TQ_OK)
            tqi_zmq_payload_unit_advertise(unit->payload, address);
    }
    return rc;
}

tq_status_t tq_unit_open(const tq_unit_conf_t *conf, tq_unit_t **out, tq_error_t *err)
{
    const tqi_env_t *env = tqi_env_malloc();
    char payload_buf[TQI_ADDRESS_MAX], name[64];
    const char *payload_at = NULL;
    if (!conf || !conf->controller)
        return tqi_fail(err, TQ_E_CONFIG, "a unit needs the address of its controller");
    if (conf->listen && strchr(conf->listen, ','))
        return tqi_fail(err, TQ_E_CONFIG, "listen '%s': a unit has one address", conf->listen);
    tq_unit_t *unit = calloc(1, sizeof *unit);
    if (!unit)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a unit");
    tqi_zmq_conf_t zmq = {.curve_secret_key = conf->curve_secret_key,
                          .curve_public_key = conf->curve_public_key,
                          .curve_server_key = conf->curve_server_key};
    tq_status_t rc =
        loop_open("tq-unit", conf->name, conf->listen, &zmq, &unit->loop, &unit->places, err);
    if (rc == TQ_OK)
        rc = tqi_inproc_arena_new(&unit->arena, err);
    if (rc == TQ_OK)
        rc = payload_address(unit->places.real_cnt ? unit->places.real[0] : NULL,
                             conf->listen_payload, payload_buf, &payload_at, err);
    if (rc == TQ_OK)
        rc = tqi_zmq_payload_unit_new(env, payload_at, tqi_inproc_arena_handle(unit->arena),
                                      tqi_loop_mailbox(unit->loop), tqi_loop_sink(unit->loop),
                                      &unit->payload, err);
    if (rc == TQ_OK)
        rc = tqi_loop_add_source(unit->loop, tqi_zmq_payload_unit_source(unit->payload), err);
    if (rc == TQ_OK)
        rc = unit_advertise(unit, conf, err);
    if (rc == TQ_OK) {
        const char *addresses[2] = {unit->places.inproc, unit->places.advertised};
        snprintf(name, sizeof name, "%d@%s", (int)getpid(), tqi_machine_host());
        tqi_unit_conf_t role = {
            .unit_incarnation = random_id(),
            .controller = conf->controller,
            .addresses = addresses,
            .addresses_cnt = 1 + (unit->places.real_cnt > 0),
            .host = tqi_machine_boot_id(),
            .name = conf->name ? conf->name : name,
            .capacity_bytes =
                conf->capacity_bytes ? conf->capacity_bytes : tqi_machine_memory() / 4,
            .column_reserve_percent = conf->column_reserve_percent,
            .lease_ms = conf->lease_ms,
        };
        rc = tqi_unit_new(env, &role, tqi_loop_ctrl(unit->loop),
                          tqi_zmq_payload_unit_port(unit->payload),
                          tqi_inproc_arena_port(unit->arena), tqi_now_ns(), &unit->role, err);
    }
    if (rc == TQ_OK) {
        rc = tqi_loop_start(unit->loop, tqi_unit_role(unit->role), err);
        unit->is_started = rc == TQ_OK;
    }
    if (rc == TQ_OK)
        rc = wait_registered(unit, conf->controller, err);
    if (rc != TQ_OK) {
        tq_unit_close(unit);
        return rc;
    }
    *out = unit;
    return TQ_OK;
}

const char *tq_unit_address(const tq_unit_t *unit)
{
    return first_place(&unit->places);
}

static void unit_say_closing(void *ctx, uint64_t now_ns)
{
    tq_unit_t *unit = ctx;
    (void)now_ns;
    tqi_unit_say_closing(unit->role);
}

static void unit_ask_heard(void *ctx, uint64_t now_ns)
{
    tq_unit_t *unit = ctx;
    (void)now_ns;
    unit->is_heard = tqi_unit_is_heard(unit->role);
}

void tq_unit_close(tq_unit_t *unit)
{
    if (!unit)
        return;
    if (unit->is_started) {
        uint64_t until_ns = tqi_now_ns() + CLOSE_NS;
        tqi_loop_call(unit->loop, unit_drain, unit);
        tqi_loop_call(unit->loop, unit_look, unit);
        while (!unit->is_idle && tqi_now_ns() < until_ns) {
            nap();
            tqi_loop_call(unit->loop, unit_look, unit);
        }
        tqi_loop_call(unit->loop, unit_say_closing, unit);
        tqi_loop_call(unit->loop, unit_ask_heard, unit);
        for (until_ns = tqi_now_ns() + HEARD_NS; !unit->is_heard && tqi_now_ns() < until_ns;) {
            nap();
            tqi_loop_call(unit->loop, unit_ask_heard, unit);
        }
    }
    if (unit->loop)
        tqi_loop_stop(unit->loop);
    if (unit->payload)
        tqi_zmq_payload_unit_stop(unit->payload);
    if (unit->role)
        tqi_unit_free(unit->role);
    tqi_zmq_payload_unit_free(unit->payload);
    tqi_inproc_arena_free(unit->arena);
    tqi_loop_free(unit->loop);
    free(unit);
}

/* ---- store ----------------------------------------------------------------------------------- */

struct tq_store {
    tq_controller_t *controller;
    tq_unit_t *units[UNITS_MAX];
    unsigned units_cnt;
    char public_address[TQI_ADDRESS_MAX + 32];
    tqi_folder_t folder;
};

tq_status_t tq_store_open(const tq_store_conf_t *conf, tq_store_t **out, tq_error_t *err)
{
    static const tq_store_conf_t defaults;
    char listen[TQI_ADDRESS_MAX + 32];
    if (!conf)
        conf = &defaults;
    unsigned units_cnt = conf->units_cnt ? conf->units_cnt : 2;
    if (units_cnt > UNITS_MAX)
        return tqi_fail(err, TQ_E_CONFIG, "%u units in one process, over the limit of %d",
                        units_cnt, UNITS_MAX);
    tq_store_t *store = calloc(1, sizeof *store);
    if (!store)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a store");
    tq_controller_conf_t controller = conf->controller;
    tq_status_t rc = TQ_OK;
    if (conf->is_private) {
        controller.listen = NULL;
    } else if (!controller.listen) {
        const char *base = tqi_folder_base();
        unsigned swept_cnt = tqi_folder_sweep(base);

        if (swept_cnt > 0)
            tqi_log_info("store", "removed %u folders of dead stores from %s", swept_cnt, base);
        rc = tqi_folder_make(base, &store->folder, err);
        snprintf(listen, sizeof listen, "ipc://%s/controller", store->folder.path);
        controller.listen = listen;
    }
    uint64_t capacity = conf->capacity_bytes ? conf->capacity_bytes : tqi_machine_memory() / 4;
    if (rc == TQ_OK)
        rc = controller_open(&controller, units_cnt, capacity, &store->controller, err);
    if (rc == TQ_OK && tqi_is_wildcard(store->controller->places.advertised)) {
        char address[TQI_ADDRESS_MAX];

        /* Units have to be told to clients: why it could not be guessed. */
        rc = tqi_advertise(store->controller->places.advertised, NULL, NULL, "controller.advertise",
                           address, err);
    }
    for (unsigned i = 0; rc == TQ_OK && i < units_cnt; i++) {
        char unit_listen[TQI_ADDRESS_MAX + 32], host[TQI_ADDRESS_MAX];
        tq_unit_conf_t unit = {.controller = store->controller->places.inproc,
                               .capacity_bytes = capacity / units_cnt,
                               .curve_secret_key = controller.curve_secret_key,
                               .curve_public_key = controller.curve_public_key};
        const char *beside =
            store->controller->places.real_cnt > 0 ? store->controller->places.real[0] : NULL;
        if (store->folder.path[0]) {
            snprintf(unit_listen, sizeof unit_listen, "ipc://%s/unit-%u", store->folder.path, i);
            unit.listen = unit_listen;
        } else if (beside && tqi_address_host(beside, host)) {
            snprintf(unit_listen, sizeof unit_listen, "tcp://%s:*", host);
            unit.listen = unit_listen;
            /* Whoever reaches the controller reaches them by the same host. */
            if (tqi_address_host(store->controller->places.advertised, host))
                unit.advertise = host;
        } else if (beside) {
            snprintf(unit_listen, sizeof unit_listen, "%s.unit-%u", beside, i);
            unit.listen = unit_listen;
        }
        rc = tq_unit_open(&unit, &store->units[i], err);
        if (rc == TQ_OK)
            store->units_cnt++;
    }
    if (rc != TQ_OK) {
        tq_store_close(store);
        return rc;
    }
    if (store->controller->places.real_cnt > 0)
        snprintf(store->public_address, sizeof store->public_address, "%s#%016" PRIx64,
                 store->controller->places.advertised, store->controller->incarnation);
    *out = store;
    return TQ_OK;
}

const char *tq_store_address(const tq_store_t *store)
{
    return store->controller->places.inproc;
}

const char *tq_store_public_address(const tq_store_t *store)
{
    return store->public_address;
}

void tq_store_close(tq_store_t *store)
{
    if (!store)
        return;
    /* Units first: the controller then answers their clients until the end. */
    for (unsigned i = 0; i < store->units_cnt; i++)
        tq_unit_close(store->units[i]);
    tq_controller_close(store->controller);
    tqi_folder_remove(&store->folder);
    free(store);
}
