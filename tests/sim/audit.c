/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a run. Everything is healed and everybody is alive; then
 *
 *   INV-28  within 60 s all that was begun is finished, and new work succeeds
 *   INV-31  fetches that wait are served by what they wait for; what a lost unit has is not granted
 *   INV-23  what was put and not cleared is there, byte for byte
 *   INV-20  each task is given each ready row that it had not, and then no more
 *   INV-29  once all is cleared, every gauge is at zero, and no memory is left
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "history.h"
#include "role/controller/internal.h"
#include "world.h"

#define SETTLE_NS (60 * TQI_SIM_S)
#define ROWS_LISTED_MAX 4096

/* What a list said. */
typedef struct listing {
    uint32_t rows_cnt;
    tq_row_t rows[ROWS_LISTED_MAX];
    uint32_t masks[ROWS_LISTED_MAX]; /* produced fields */
} listing_t;

static bool is_idle(world_t *w)
{
    return work_is_idle(w);
}

static void finish(world_t *w, const char *what)
{
    if (!world_until(w, tqi_sim_now(w->sim) + SETTLE_NS, is_idle))
        world_fail(w, "INV-28", "%s is not over 60 s after everything has healed", what);
}

typedef struct outcome {
    bool is_over;
    tq_status_t status;
    uint32_t rows_cnt;
    uint64_t took_ns;
    uint32_t unit; /* whose rows are counted */
    uint32_t rows_of_unit;
    listing_t *listing;
    char text[TQ_ERROR_TEXT_MAX];
} outcome_t;

static void on_result(work_t *work, const tq_result_t *result)
{
    outcome_t *outcome = work->ctx;
    listing_t *listing = outcome->listing;

    outcome->is_over = true;
    outcome->status = work->status;
    outcome->took_ns = work->done_ns - work->submit_ns;
    outcome->rows_cnt = result->rows_cnt;
    for (uint32_t r = 0; outcome->unit && work->status == TQ_OK && r < result->rows_cnt; r++)
        outcome->rows_of_unit += result->units[r] == outcome->unit;
    snprintf(outcome->text, sizeof outcome->text, "%s", tqi_op_error(work->op));
    if (!listing || work->status != TQ_OK)
        return;
    tqi_assert(result->rows_cnt <= ROWS_LISTED_MAX);
    listing->rows_cnt = result->rows_cnt;
    for (uint32_t r = 0; r < result->rows_cnt; r++) {
        listing->rows[r] = result->rows[r];
        listing->masks[r] = 0;
        for (uint32_t f = 0; f < result->fields.cnt; f++)
            for (uint32_t known = 0; known < FIELDS; known++) {
                uint32_t at = result->fields.offsets[f];
                uint32_t len = result->fields.offsets[f + 1] - at;
                if (result->status[r * result->fields.cnt + f] &&
                    strlen(field_names[known]) == len &&
                    memcmp(field_names[known], result->fields.bytes + at, len) == 0)
                    listing->masks[r] |= 1u << known;
            }
    }
}

static void watch(work_t *work, outcome_t *outcome)
{
    tqi_assert(work);
    work->on_result = on_result;
    work->ctx = outcome;
}

static outcome_t do_one(world_t *w, work_t *work, const char *what, listing_t *listing)
{
    outcome_t outcome = {.listing = listing};

    watch(work, &outcome);
    finish(w, what);
    tqi_assert(outcome.is_over);
    return outcome;
}

/* Runs an op of the audit to its end; it has to succeed. */
static uint32_t must(world_t *w, work_t *work, const char *what, listing_t *listing)
{
    outcome_t outcome = do_one(w, work, what, listing);

    if (outcome.status != TQ_OK)
        world_fail(w, "INV-28", "%s fails after everything has healed: %s: %s", what,
                   tq_status_name(outcome.status), outcome.text);
    return outcome.rows_cnt;
}

/* The first call after a loss says so (PROTOCOL.md, "After a loss"); the next one succeeds. */
static void greet(world_t *w, proc_t *auditor)
{
    outcome_t outcome = {0};

    for (int i = 0; i < 3 && (i == 0 || outcome.status != TQ_OK); i++)
        outcome = do_one(w, work_list(auditor, 0), "a list", NULL);
    if (outcome.status != TQ_OK)
        world_fail(w, "INV-28", "a list fails three times: %s", outcome.text);
}

/* A connection of before may turn out to be broken, once. */
static void read_row(world_t *w, proc_t *auditor, uint32_t part, tq_row_t row, uint32_t fields_mask)
{
    outcome_t outcome =
        do_one(w, work_get_rows(auditor, part, &row, 1, fields_mask), "a get", NULL);

    if (outcome.status == TQ_OK)
        return;
    if (tq_status_class(outcome.status) != TQ_CLASS_PEER)
        world_fail(w, "INV-28",
                   "a get of row %" PRIu64 ", which is listed as produced, fails: %s: %s", row,
                   tq_status_name(outcome.status), outcome.text);
    must(w, work_get_rows(auditor, part, &row, 1, fields_mask),
         "a second get of what is listed as produced", NULL);
}

static void audit_rows(world_t *w, proc_t *auditor, uint32_t part, listing_t *listing)
{
    must(w, work_list(auditor, part), "a list", listing);
    for (uint32_t r = 0; r < listing->rows_cnt; r++)
        if (listing->masks[r])
            read_row(w, auditor, part, listing->rows[r], listing->masks[r]);
    /* Nothing that must be there is missing from the list. */
    for (uint32_t key = 0; key < KEYS; key++)
        for (uint32_t f = 0; f < FIELDS; f++) {
            uint64_t now_ns = tqi_sim_now(w->sim);
            if (!model_must_exist(w->model, part, TQ_ROW_NONE, key, f, now_ns, now_ns))
                continue;
            bool is_there = false;
            for (uint32_t r = 0; r < listing->rows_cnt; r++)
                is_there |= listing->masks[r] >> f & 1;
            if (!is_there)
                world_fail(w, "INV-23", "key k%u of %s has no field %s any more", key,
                           partition_names[part], field_names[f]);
        }
}

/* Of rows that are ready and were not granted, no group is whole: rows next to each other, as far as
 * their indexes tell. */
static void check_granted(world_t *w, uint32_t part, uint32_t task, uint32_t f,
                          const listing_t *listing)
{
    uint32_t len = 0;

    for (uint32_t r = 0; r < listing->rows_cnt; r++) {
        tq_row_t row = listing->rows[r];
        bool is_next = r > 0 && row == listing->rows[r - 1] + 1 && row % TQI_BLOCK_ROWS != 0;
        bool is_left = (listing->masks[r] >> f & 1) && !grants_has(w->grants, task, row);

        len = is_left ? (is_next ? len : 0) + 1 : 0;
        if (len == w->sampler_group)
            world_fail(w, "INV-20",
                       "row %" PRIu64 " of %s has field %s, as have those that make a group of %u "
                       "with it, and task %s never gets it",
                       row, partition_names[part], field_names[f], w->sampler_group,
                       task_names[task]);
    }
}

static void audit_tasks(world_t *w, proc_t *auditor, uint32_t part, const listing_t *listing)
{
    for (uint32_t task = 0; task < TASKS; task++)
        for (uint32_t f = 0; f < FIELDS; f++) {
            uint32_t rounds = 0;
            while (must(w, work_poll(auditor, part, task, 1u << f, w->sampler_group),
                        "a polling fetch", NULL) > 0)
                if (++rounds > ROWS_LISTED_MAX)
                    world_fail(w, "INV-20", "task %s is given rows for ever", task_names[task]);
            check_granted(w, part, task, f, listing);
        }
}

/* ---- gauges ------------------------------------------------------------------------------------ */

static char *figures(proc_t *proc)
{
    tqi_sim_memory_t scratch;
    tqi_buf_t json;
    char *text;
    tq_status_t rc;

    tqi_sim_memory_init(&scratch, "figures", 0);
    tqi_buf_init(&json, &scratch.env);
    rc = proc->kind == PROC_CONTROLLER ? tqi_controller_stat(proc->controller, &json)
                                       : tqi_unit_stat(proc->unit, &json);
    tqi_assert(rc == TQ_OK && tqi_buf_append(&json, "", 1) == TQ_OK);
    text = strdup((char *)json.data);
    tqi_assert(text);
    tqi_buf_fini(&json);
    return text;
}

/* The sum of all members of this name. */
static uint64_t sum_of(const char *json, const char *member)
{
    char name[64];
    uint64_t sum = 0;

    snprintf(name, sizeof name, "\"%s\":", member);
    for (const char *at = json; (at = strstr(at, name));) {
        at += strlen(name);
        sum += strtoull(at, NULL, 10);
    }
    return sum;
}

/* What is under way somewhere. */
static const char *const unit_pending[] = {"zombie_bytes", "cells_staged",     "cells_claimed",
                                           "rows_pinned",  "puts_unconfirmed", NULL};
static const char *const controller_pending[] = {
    "partitions_dying", "rows_clearing", "rows_unlisted",
    "puts_pending",     "waiters",       "queued",
    "orders_open",      "confirms_open", "grants_provisional",
    "requests",         "outcome_bytes", NULL};
/* And what is stored. */
static const char *const unit_gauges[] = {"used_bytes",   "zombie_bytes",     "cells_published",
                                          "cells_staged", "cells_claimed",    "rows_pinned",
                                          "runs",         "puts_unconfirmed", NULL};
static const char *const controller_gauges[] = {"partitions_cnt", "partitions_dying",
                                                "rows",           "rows_clearing",
                                                "puts_pending",   "waiters",
                                                "queued",         "orders_open",
                                                "confirms_open",  "grants_provisional",
                                                "requests",       NULL};

/* The first gauge that is not at zero, or NULL. */
static const char *gauge_left(proc_t *proc, bool is_pending, uint64_t *value)
{
    const char *const *names = proc->kind == PROC_CONTROLLER
                                   ? (is_pending ? controller_pending : controller_gauges)
                                   : (is_pending ? unit_pending : unit_gauges);
    const char *left = NULL;
    char *json = figures(proc);

    for (; *names && !left; names++)
        if ((*value = sum_of(json, *names)) > 0)
            left = *names;
    free(json);
    return left;
}

static bool are_zero(world_t *w, bool is_pending)
{
    uint64_t value;

    for (uint32_t i = 0; i < w->procs_cnt; i++)
        if (w->procs[i].kind != PROC_CLIENT && gauge_left(&w->procs[i], is_pending, &value))
            return false;
    return true;
}

static bool nothing_is_pending(world_t *w)
{
    return are_zero(w, true);
}

static bool gauges_are_zero(world_t *w)
{
    return are_zero(w, false);
}

/* Nobody waits for anything: then nothing is pending, and once all is cleared nothing is there. */
static void audit_gauges(world_t *w, bool is_pending)
{
    uint64_t value = 0;

    if (world_until(w, tqi_sim_now(w->sim) + SETTLE_NS,
                    is_pending ? nothing_is_pending : gauges_are_zero))
        return;
    for (uint32_t i = 0; i < w->procs_cnt; i++) {
        const char *left =
            w->procs[i].kind == PROC_CLIENT ? NULL : gauge_left(&w->procs[i], is_pending, &value);
        if (left) {
            char *json = figures(&w->procs[i]);
            fprintf(stderr, "%s\n", json);
            free(json);
            world_fail(w, is_pending ? "INV-28" : "INV-29", "%s of %s is %" PRIu64 " after all %s",
                       left, w->procs[i].name, value, is_pending ? "was over" : "was cleared");
        }
    }
}

/* ---- waiting ----------------------------------------------------------------------------------- */

/* What the task is granted of the partition; of a unit's rows none, while it is lost. */
static void drain(world_t *w, proc_t *auditor, uint32_t part, uint32_t task, uint32_t lost)
{
    for (uint32_t f = 0; f < FIELDS; f++)
        for (;;) {
            work_t *work = work_poll(auditor, part, task, 1u << f, w->sampler_group);
            outcome_t outcome = {.unit = lost};
            watch(work, &outcome);
            finish(w, "a polling fetch");
            if (outcome.status != TQ_OK)
                world_fail(w, "INV-28", "a polling fetch fails: %s", outcome.text);
            if (outcome.rows_of_unit > 0)
                world_fail(w, "INV-31", "task %s is granted rows of unit %u, which is lost",
                           task_names[task], lost);
            if (outcome.rows_cnt == 0)
                break;
        }
}

/* Fetches wait, a put comes, and those that its rows suffice for are served. False: the put took so
 * long that they may have given up before it. */
static bool try_wake(world_t *w, proc_t *auditor)
{
    outcome_t outcomes[FIELDS] = {{0}}, stored = {0};
    uint32_t served = 0, due;
    work_t *put;

    drain(w, auditor, 0, 0, 0);
    for (uint32_t f = 0; f < FIELDS; f++)
        watch(work_wait(auditor, 0, 0, 1u << f, w->sampler_group), &outcomes[f]);
    world_until(w, tqi_sim_now(w->sim) + 200 * TQI_SIM_MS, NULL);
    put = work_put_new(auditor, 0);
    watch(put, &stored);
    /* A row goes to a task once, whatever the field that it was fetched by. */
    due = (uint32_t)tqi_u64_min(FIELDS, put->put->rows_cnt / w->sampler_group);
    finish(w, "a fetch that waits");
    if (stored.status != TQ_OK || stored.took_ns > TQI_SIM_S)
        return false;
    for (uint32_t f = 0; f < FIELDS; f++) {
        served += outcomes[f].status == TQ_OK;
        if (outcomes[f].status != TQ_OK && outcomes[f].status != TQ_E_NOT_READY)
            world_fail(w, "INV-31", "a fetch that waits ends with %s: %s",
                       tq_status_name(outcomes[f].status), outcomes[f].text);
    }
    if (served != due)
        world_fail(w, "INV-31", "%u fetches that wait are served by a put of rows for %u", served,
                   due);
    return true;
}

/* Twice: the first put makes the fields, which is a reason to look at those who wait by itself. */
static void audit_wake(world_t *w, proc_t *auditor)
{
    uint32_t done = 0;

    /* A connection to each unit may turn out to be broken, once. */
    for (uint32_t tries = 0; done < 2; tries++) {
        if (tries == 2 + w->units_cnt)
            world_fail(w, "INV-28", "puts are slow or fail after everything has healed");
        done += try_wake(w, auditor);
    }
    must(w, work_clear_all(auditor, 0), "a clear of everything", NULL);
}

static uint32_t unit_id_of(world_t *w, const proc_t *proc)
{
    const tqi_controller_t *ctl = w->controller->controller;

    for (size_t i = 0; i < ctl->units.len; i++)
        if (strcmp(ctl->units.at[i]->name, proc->name) == 0)
            return ctl->units.at[i]->id;
    world_fail(w, "INV-28", "the controller does not know %s", proc->name);
}

/* Units that are dead still will not come back: they are forgotten, and others start in their place.
 * What was under way at them does not wait for that. */
static void audit_forget(world_t *w, proc_t *auditor)
{
    outcome_t outcome;
    bool is_any = false;

    for (uint32_t i = 0; i < w->units_cnt; i++)
        is_any |= !w->units[i]->role;
    if (!is_any)
        return;
    world_until(w, tqi_sim_now(w->sim) + 12 * TQI_SIM_S, NULL); /* they are lost */
    greet(w, auditor);
    for (uint32_t i = 0; i < w->units_cnt; i++) {
        const tqi_controller_t *ctl = w->controller->controller;
        const unit_t *unit = NULL;
        if (w->units[i]->role)
            continue;
        for (size_t k = 0; k < ctl->units.len; k++)
            if (strcmp(ctl->units.at[k]->name, w->units[i]->name) == 0)
                unit = ctl->units.at[k];
        /* Else the store was born after it had died. */
        if (unit) {
            outcome = do_one(w, work_forget(auditor, unit->id), "a forgotten unit", NULL);
            if (outcome.status != TQ_OK)
                world_fail(w, "INV-28", "%s can't be forgotten: %s", w->units[i]->name,
                           outcome.text);
            if (unit->confirms.len > 0 || unit->unlinks.cnt > 0)
                world_fail(w, "INV-29", "%s is forgotten, and still waited for", unit->name);
        }
        proc_boot(w->units[i]);
    }
}

/* A unit is silent until it counts as lost, and comes back with all that it had. */
static void audit_loss(world_t *w, proc_t *auditor, uint32_t part, const listing_t *listing)
{
    proc_t *unit = w->units[w->seed % w->units_cnt];
    uint32_t task = 0;

    must(w, work_reset(auditor, part), "a reset", NULL);
    history_quiet(w, false);
    proc_pause(unit);
    world_until(w, tqi_sim_now(w->sim) + 12 * TQI_SIM_S, NULL);
    drain(w, auditor, part, task, unit_id_of(w, unit));
    proc_resume(unit);
    world_until(w, tqi_sim_now(w->sim) + 5 * TQI_SIM_S, NULL);
    history_quiet(w, true);
    drain(w, auditor, part, task, 0);
    for (uint32_t r = 0; w->sampler_group == 1 && r < listing->rows_cnt; r++)
        if (listing->masks[r] && !grants_has(w->grants, task, listing->rows[r]))
            world_fail(w, "INV-20", "row %" PRIu64 " of %s is not granted after its unit was lost",
                       listing->rows[r], partition_names[part]);
}

/* ---- sessions ---------------------------------------------------------------------------------- */

static bool are_closed(world_t *w)
{
    for (uint32_t i = 0; i < w->clients_cnt; i++)
        if (!tqi_client_is_closed(w->clients[i]->client))
            return false;
    return true;
}

static bool sessions_are_over(world_t *w)
{
    char *json = figures(w->controller);
    uint64_t sessions = sum_of(json, "sessions_cnt"), at_units = 0;

    free(json);
    for (uint32_t i = 0; i < w->units_cnt; i++) {
        json = figures(w->units[i]);
        at_units += sum_of(json, "sessions");
        free(json);
    }
    return sessions == 0 && at_units == 0;
}

static void audit_sessions(world_t *w)
{
    for (uint32_t i = 0; i < w->clients_cnt; i++) {
        tqi_client_close(w->clients[i]->client, proc_now(w->clients[i]));
        proc_poke(w->clients[i]);
    }
    if (!world_until(w, tqi_sim_now(w->sim) + 10 * TQI_SIM_S, are_closed))
        world_fail(w, "INV-28", "a client is not closed within 10 s");
    if (!world_until(w, tqi_sim_now(w->sim) + SETTLE_NS, sessions_are_over))
        world_fail(w, "INV-29", "sessions are left after every client has said good-bye");
    for (uint32_t i = 0; i < w->units_cnt; i++)
        if (tqi_sim_host_transfers_cnt(w->units[i]->host) > 0)
            world_fail(w, "INV-29", "%s still has transfers", w->units[i]->name);
}

void audit(world_t *w)
{
    static listing_t listing;
    proc_t *auditor = w->clients[0];

    faults_heal(w);
    audit_forget(w, auditor);
    finish(w, "what was under way");
    /* Units that came back are known again, and lost ones found. */
    world_until(w, tqi_sim_now(w->sim) + 15 * TQI_SIM_S, NULL);
    greet(w, auditor);
    audit_gauges(w, true);
    history_quiet(w, true);
    for (uint32_t part = 0; part < PARTITIONS; part++) {
        audit_rows(w, auditor, part, &listing);
        audit_tasks(w, auditor, part, &listing);
        if (part == 0 && w->seed % 3 == 0)
            audit_loss(w, auditor, part, &listing);
        must(w, work_clear_all(auditor, part), "a clear of everything", NULL);
    }
    audit_gauges(w, false);
    check_all(w);
    for (uint32_t part = 0; part < PARTITIONS; part++) {
        must(w, work_list(auditor, part), "a list", &listing);
        if (listing.rows_cnt > 0)
            world_fail(w, "INV-24", "%u rows are left in %s after it was cleared", listing.rows_cnt,
                       partition_names[part]);
    }
    audit_wake(w, auditor);
    audit_sessions(w);
    check_all(w);
}
