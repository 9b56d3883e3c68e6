/* SPDX-License-Identifier: Apache-2.0 */
#include "api/way.h"

#include <inttypes.h>

#include "base/assert.h"
#include "base/map.h"
#include "base/size.h"

struct tqi_ways {
    tqi_payload_client_t port;
    const tqi_env_t *env;
    tqi_payload_client_t *direct;
    tqi_payload_client_t *stream;
    tqi_map_u64_t units; /* unit id -> the port that serves it */
};

static tqi_ways_t *ways_of(tqi_payload_client_t *port)
{
    return tqi_container_of(port, tqi_ways_t, port);
}

static tqi_payload_mode_t ways_open(tqi_payload_client_t *port, uint64_t unit_id,
                                    const char *address, const void *token, size_t token_len,
                                    uint64_t session, uint64_t direct_arena, tqi_err_t *err)
{
    tqi_ways_t *ways = ways_of(port);
    tqi_payload_client_t *chosen = ways->direct;
    tqi_payload_mode_t mode = TQI_PAYLOAD_NONE;
    void *old = NULL;
    tqi_err_t why = {0};

    if (chosen && direct_arena != 0)
        mode =
            chosen->open(chosen, unit_id, address, token, token_len, session, direct_arena, &why);
    if (tq_status_class(why.status) == TQ_CLASS_LOCAL) {
        tqi_fail(err, why.status, "%s", why.text); /* it is there: to be tried again */
        return TQI_PAYLOAD_NONE;
    }
    if (mode == TQI_PAYLOAD_NONE) {
        chosen = ways->stream;
        if (!chosen || address[0] == '\0') {
            tqi_fail(err, TQ_E_UNSUPPORTED,
                     "it listens for payload nowhere, and is not in this process");
            return TQI_PAYLOAD_NONE;
        }
        mode = chosen->open(chosen, unit_id, address, token, token_len, session, direct_arena, err);
    }
    if (mode == TQI_PAYLOAD_NONE)
        return mode;
    if (tqi_map_u64_put(&ways->units, unit_id, chosen, &old) != TQ_OK) {
        chosen->close(chosen, unit_id);
        tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a way to unit %" PRIu64, unit_id);
        return TQI_PAYLOAD_NONE;
    }
    return mode;
}

static void ways_close(tqi_payload_client_t *port, uint64_t unit_id)
{
    tqi_payload_client_t *chosen = tqi_map_u64_take(&ways_of(port)->units, unit_id);

    if (chosen)
        chosen->close(chosen, unit_id);
}

static tqi_payload_client_t *way_to(tqi_payload_client_t *port, uint64_t unit_id, tqi_err_t *err)
{
    tqi_payload_client_t *chosen = tqi_map_u64_get(&ways_of(port)->units, unit_id);

    if (!chosen)
        tqi_fail(err, TQ_E_PEER_LOST, "the way to storage unit %" PRIu64 " is closed", unit_id);
    return chosen;
}

static tq_status_t ways_write(tqi_payload_client_t *port, tqi_transfer_key_t key,
                              const tqi_frame_t *frames, const tqi_remote_frame_t *remote,
                              uint32_t cnt, void *copier, tqi_err_t *err)
{
    tqi_payload_client_t *chosen = way_to(port, key.owner, err);

    return chosen ? chosen->write(chosen, key, frames, remote, cnt, copier, err) : TQ_E_PEER_LOST;
}

static tq_status_t ways_read(tqi_payload_client_t *port, tqi_transfer_key_t key,
                             const tqi_frame_t *frames, const tqi_remote_frame_t *remote,
                             uint32_t cnt, void *copier, tqi_err_t *err)
{
    tqi_payload_client_t *chosen = way_to(port, key.owner, err);

    return chosen ? chosen->read(chosen, key, frames, remote, cnt, copier, err) : TQ_E_PEER_LOST;
}

static void ways_drop(tqi_payload_client_t *port, tqi_transfer_key_t key)
{
    tqi_payload_client_t *chosen = way_to(port, key.owner, NULL);

    if (chosen)
        chosen->drop(chosen, key);
}

tq_status_t tqi_ways_new(const tqi_env_t *env, tqi_payload_client_t *direct,
                         tqi_payload_client_t *stream, tqi_ways_t **out, tqi_err_t *err)
{
    tqi_ways_t *ways = tqi_env_zalloc(env, sizeof *ways);

    if (!ways)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for the ways to units");
    ways->port = (tqi_payload_client_t){ways_open, ways_close, ways_write, ways_read, ways_drop};
    ways->env = env;
    ways->direct = direct;
    ways->stream = stream;
    tqi_map_u64_init(&ways->units, env);
    *out = ways;
    return TQ_OK;
}

tqi_payload_client_t *tqi_ways_port(tqi_ways_t *ways)
{
    return &ways->port;
}

void tqi_ways_free(tqi_ways_t *ways)
{
    if (!ways)
        return;
    tqi_map_u64_fini(&ways->units, NULL, NULL);
    tqi_env_free(ways->env, ways, sizeof *ways);
}
