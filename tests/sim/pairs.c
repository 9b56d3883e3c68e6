/* SPDX-License-Identifier: Apache-2.0 */
#include "pairs.h"

#include <inttypes.h>

#include "base/assert.h"
#include "base/size.h"
#include "core/clear.h"
#include "core/grant.h"
#include "core/rowstate.h"
#include "core/transfer.h"
#include "role/client/machines.h"
#include "role/controller/machines.h"
#include "role/storage/machines.h"

#define PAIRS_MAX 128 /* of one machine */

static const tqi_machine_t *const machines[] = {
    /* the table */
    &tqi_row_machine,
    &tqi_grant_machine,
    &tqi_clear_machine,
    /* the controller */
    &tqi_ctl_session_machine,
    &tqi_ctl_put_machine,
    &tqi_ctl_unit_machine,
    /* the storage unit */
    &tqi_unit_member_machine,
    &tqi_unit_wire_machine,
    &tqi_unit_session_machine,
    &tqi_put_inline_machine,
    &tqi_put_stream_machine,
    &tqi_put_direct_machine,
    &tqi_get_stream_machine,
    &tqi_get_direct_machine,
    /* the client */
    &tqi_client_machine,
    &tqi_close_machine,
    &tqi_controller_link_machine,
    &tqi_unit_link_machine,
    &tqi_op_machine,
    &tqi_put_machine,
    &tqi_get_machine,
    &tqi_slot_machine,
};

#define MACHINES tqi_array_len(machines)

static uint64_t seen[MACHINES][PAIRS_MAX]; /* of `taken`, in the seeds before */
static unsigned met[MACHINES][PAIRS_MAX];  /* by seeds that pairs_adds said true of */

static struct {
    const tqi_machine_t *machine;
    unsigned state;
    void (*fn)(void *ctx);
    void *ctx;
} watched;

static uint64_t taken[MACHINES][PAIRS_MAX];

/* What TQI_MACHINE_WATCH makes the roles call; seen as unused where they don't. */
void tqi_machine_on_step(const tqi_machine_t *machine, unsigned state, unsigned event);

void tqi_machine_on_step(const tqi_machine_t *machine, unsigned state, unsigned event)
{
    size_t i = 0;

    while (i < MACHINES && machines[i] != machine)
        i++;
    if (i == MACHINES) {
        fprintf(stderr, "%s: a machine that pairs.c does not know\n", machine->name);
        tqi_assert(false);
    }
    if (!tqi_machine_can(machine, state, event))
        fprintf(stderr, "%s: %s meets %s, which is not legal\n", machine->name,
                machine->states[state], machine->events[event]);
    taken[i][state * machine->events_cnt + event]++;
    if (watched.machine == machine &&
        machine->next[state * machine->events_cnt + event] == watched.state + 1)
        watched.fn(watched.ctx);
}

void pairs_watch(const tqi_machine_t *machine, unsigned state, void (*fn)(void *ctx), void *ctx)
{
    watched.machine = machine;
    watched.state = state;
    watched.fn = fn;
    watched.ctx = ctx;
}

bool pairs_adds(unsigned times)
{
    bool adds = false;

    for (size_t i = 0; i < MACHINES; i++)
        for (unsigned pair = 0; pair < PAIRS_MAX; pair++)
            adds |= taken[i][pair] != seen[i][pair] && met[i][pair] < times;
    for (size_t i = 0; i < MACHINES; i++)
        for (unsigned pair = 0; pair < PAIRS_MAX; pair++) {
            met[i][pair] += adds && taken[i][pair] != seen[i][pair];
            seen[i][pair] = taken[i][pair];
        }
    return adds;
}

bool pairs_report(FILE *out)
{
    unsigned legal_sum = 0, reached_sum = 0;

    fprintf(out, "%-28s %6s %8s\n", "machine", "legal", "reached");
    for (size_t i = 0; i < MACHINES; i++) {
        const tqi_machine_t *machine = machines[i];
        unsigned pairs_cnt = (unsigned)machine->states_cnt * machine->events_cnt;
        unsigned legal = 0, reached = 0;

        tqi_assert(pairs_cnt <= PAIRS_MAX);
        for (unsigned pair = 0; pair < pairs_cnt; pair++) {
            legal += machine->next[pair] != 0;
            reached += machine->next[pair] != 0 && taken[i][pair] > 0;
        }
        fprintf(out, "%-28s %6u %8u\n", machine->name, legal, reached);
        for (unsigned pair = 0; pair < pairs_cnt; pair++)
            if (machine->next[pair] != 0 && taken[i][pair] == 0)
                fprintf(out, "    never: %s meets %s\n",
                        machine->states[pair / machine->events_cnt],
                        machine->events[pair % machine->events_cnt]);
        legal_sum += legal;
        reached_sum += reached;
    }
    fprintf(out, "pairs %u, reached %u\n", legal_sum, reached_sum);
    return reached_sum == legal_sum;
}
