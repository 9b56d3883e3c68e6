/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What net/ctrl.h promises, stamped on each adapter: the same tests run over inproc, ipc and tcp.
 */
#include "pump.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <tq/types.h>
#include <zmq.h>

#include "base/size.h"
#include "net/inproc/inproc.h"
#include "net/zmq/zmq_ctrl.h"

typedef enum medium { MEDIUM_INPROC, MEDIUM_IPC, MEDIUM_TCP } medium_t;

#define SEEN_MAX 4096

typedef struct end {
    tqi_ctrl_adapter_t *adapter;
    tqi_mailbox_t *mailbox;
    tqi_sink_t sink;
    tqi_peer_t last_peer; /* of the newest message */
    uint32_t messages;
    uint64_t bytes;
    uint64_t next_value; /* frames of a stream carry 0, 1, 2, ... */
    bool is_in_order;
    bool is_echo;
    bool takes_garbage; /* frames that are none of ours are left to the role, as in life */
    uint32_t garbage;
    uint32_t downs;
    tqi_peer_t last_down;
    char why[256];
} end_t;

typedef struct world {
    pump_t pump;
    medium_t medium;
    char folder[64];
    char address[TQI_ADDRESS_MAX]; /* of the server */
    end_t server;
    end_t client;
} world_t;

static void frame_of(tqi_buf_t *frame, uint64_t value, size_t len)
{
    tqi_buf_init(frame, tqi_env_malloc());
    assert_int_equal(tqi_buf_append(frame, &value, sizeof value), TQ_OK);
    if (len > sizeof value)
        memset(tqi_buf_extend(frame, len - sizeof value), (int)(value & 0xff), len - sizeof value);
}

static tq_status_t send_value(end_t *end, tqi_peer_t peer, uint64_t value, size_t len)
{
    tqi_buf_t frame;
    frame_of(&frame, value, len);
    tq_status_t rc = end->adapter->ctrl.send(&end->adapter->ctrl, peer, &frame);
    if (rc == TQ_OK)
        assert_null(frame.data);
    else
        assert_int_equal(frame.len, len < 8 ? 8 : len);
    tqi_buf_fini(&frame);
    return rc;
}

static void on_message(void *ctx, tqi_peer_t peer, const void *data, size_t len)
{
    end_t *end = ctx;
    const uint8_t *bytes = data;
    uint64_t value = 0;
    bool is_ours = len >= 8;
    if (is_ours)
        memcpy(&value, data, 8);
    for (size_t i = 8; i < len; i += 997)
        is_ours = is_ours && bytes[i] == (value & 0xff);
    if (!is_ours) {
        assert_true(end->takes_garbage);
        end->garbage++;
        return;
    }
    end->is_in_order = end->is_in_order && value == end->next_value;
    end->next_value = value + 1;
    end->last_peer = peer;
    end->messages++;
    end->bytes += len;
    if (end->is_echo)
        assert_int_equal(send_value(end, peer, value, len), TQ_OK);
}

static void on_peer_down(void *ctx, tqi_peer_t peer)
{
    end_t *end = ctx;
    end->downs++;
    end->last_down = peer;
    snprintf(end->why, sizeof end->why, "%s",
             end->adapter->ctrl.why_down ? end->adapter->ctrl.why_down(&end->adapter->ctrl) : "");
}

static void end_open(world_t *w, end_t *end, const tqi_zmq_conf_t *conf)
{
    memset(end, 0, sizeof *end);
    end->is_in_order = true;
    end->sink = (tqi_sink_t){end, on_message, on_peer_down, NULL};
    if (w->medium == MEDIUM_INPROC) {
        end->mailbox = pump_mailbox(&w->pump);
        assert_int_equal(
            tqi_inproc_ctrl_new(tqi_env_malloc(), end->mailbox, &end->sink, &end->adapter, NULL),
            TQ_OK);
    } else {
        assert_int_equal(tqi_zmq_ctrl_new(tqi_env_malloc(), conf, &end->sink, &end->adapter, NULL),
                         TQ_OK);
    }
    pump_add(&w->pump, &end->adapter->source);
}

static void end_close(world_t *w, end_t *end)
{
    if (!end->adapter)
        return;
    for (unsigned i = 0; i < w->pump.sources_cnt; i++)
        if (w->pump.sources[i] == &end->adapter->source)
            w->pump.sources[i] = w->pump.sources[--w->pump.sources_cnt];
    if (end->mailbox)
        tqi_mailbox_close(end->mailbox);
    end->adapter->close(end->adapter);
    end->adapter = NULL;
}

static void place(world_t *w, const char *name, char out[TQI_ADDRESS_MAX])
{
    switch (w->medium) {
    case MEDIUM_INPROC:
        snprintf(out, TQI_ADDRESS_MAX, "inproc://ctrl-test-%s", name);
        break;
    case MEDIUM_IPC:
        snprintf(out, TQI_ADDRESS_MAX, "ipc://%s/%s", w->folder, name);
        break;
    case MEDIUM_TCP:
        snprintf(out, TQI_ADDRESS_MAX, "tcp://127.0.0.1:*");
        break;
    }
}

static world_t *world_open(medium_t medium)
{
    world_t *w = calloc(1, sizeof *w);
    char address[TQI_ADDRESS_MAX];
    tqi_err_t err = {0};
    w->medium = medium;
    strcpy(w->folder, "/tmp/tq-test-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    end_open(w, &w->server, NULL);
    end_open(w, &w->client, NULL);
    place(w, "server", address);
    tq_status_t rc = w->server.adapter->listen(w->server.adapter, address, w->address, &err);
    if (rc != TQ_OK)
        fail_msg("%s", err.text);
    return w;
}

static void world_close(world_t *w)
{
    char path[128];
    end_close(w, &w->client);
    end_close(w, &w->server);
    for (unsigned i = 0; i < w->pump.mailboxes_cnt; i++)
        tqi_mailbox_unref(w->pump.mailboxes[i]);
    snprintf(path, sizeof path, "%s/server", w->folder);
    (void)unlink(path);
    assert_int_equal(rmdir(w->folder), 0);
    free(w);
}

static tqi_peer_t dial(end_t *end, const char *address)
{
    tqi_peer_t peer = 0;
    tqi_err_t err = {0};
    if (end->adapter->ctrl.connect(&end->adapter->ctrl, address, &peer, &err) != TQ_OK)
        fail_msg("%s", err.text);
    assert_int_not_equal(peer, 0);
    return peer;
}

/* ---- the tests ------------------------------------------------------------------------------- */

static void frames_arrive_whole_and_in_order_both_ways(void **state)
{
    world_t *w = world_open(*(medium_t *)*state);
    tqi_peer_t peer = dial(&w->client, w->address);
    uint64_t bytes = 0;
    w->server.is_echo = true;
    for (uint64_t i = 0; i < 1000; i++) {
        size_t len = i % 100 == 99 ? (2u << 20) + i : 8 + (i * 37) % 5000;
        bytes += len;
        while (send_value(&w->client, peer, i, len) == TQ_E_BUSY)
            pump_turn(&w->pump);
    }
    pump_until(&w->pump, w->client.messages == 1000);
    assert_true(w->server.is_in_order && w->client.is_in_order);
    assert_int_equal(w->server.bytes, bytes);
    assert_int_equal(w->client.bytes, bytes);
    assert_int_equal(w->client.last_peer, peer);
    world_close(w);
}

static void who_connects_again_is_somebody_else(void **state)
{
    world_t *w = world_open(*(medium_t *)*state);
    tqi_ctrl_t *ctrl = &w->client.adapter->ctrl;
    tqi_peer_t first = dial(&w->client, w->address);
    assert_int_equal(send_value(&w->client, first, 0, 8), TQ_OK);
    pump_until(&w->pump, w->server.messages == 1);
    tqi_peer_t seen = w->server.last_peer;
    ctrl->disconnect(ctrl, first);
    assert_int_equal(send_value(&w->client, first, 1, 8), TQ_E_UNREACHABLE);
    ctrl->disconnect(ctrl, first);
    tqi_peer_t second = dial(&w->client, w->address);
    assert_int_not_equal(second, first);
    assert_int_equal(send_value(&w->client, second, 1, 8), TQ_OK);
    pump_until(&w->pump, w->server.messages == 2);
    assert_int_not_equal(w->server.last_peer, seen);
    assert_int_equal(w->client.downs, 0); /* who hangs up is not told */
    world_close(w);
}

static void a_peer_that_is_not_there_goes_down_with_a_reason(void **state)
{
    world_t *w = world_open(*(medium_t *)*state);
    char address[TQI_ADDRESS_MAX];
    place(w, "nobody", address);
    if (w->medium == MEDIUM_TCP) {
        /* A port that was just free. */
        end_t other;
        char real[TQI_ADDRESS_MAX];
        end_open(w, &other, NULL);
        assert_int_equal(other.adapter->listen(other.adapter, address, real, NULL), TQ_OK);
        end_close(w, &other);
        strcpy(address, real);
    }
    tqi_peer_t peer = dial(&w->client, address);
    (void)send_value(&w->client, peer, 0, 8);
    pump_until(&w->pump, w->client.downs == 1);
    assert_int_equal(w->client.last_down, peer);
    assert_true(strlen(w->client.why) > 0);
    assert_int_equal(send_value(&w->client, peer, 0, 8), TQ_E_UNREACHABLE);
    pump_quiet(&w->pump, 20);
    assert_int_equal(w->client.downs, 1);
    world_close(w);
}

static void a_server_that_goes_takes_its_peers_down(void **state)
{
    world_t *w = world_open(*(medium_t *)*state);
    tqi_peer_t peer = dial(&w->client, w->address);
    assert_int_equal(send_value(&w->client, peer, 0, 8), TQ_OK);
    pump_until(&w->pump, w->server.messages == 1);
    end_close(w, &w->server);
    pump_until(&w->pump, w->client.downs == 1);
    assert_int_equal(w->client.last_down, peer);
    world_close(w);
}

static void an_address_that_is_in_use_is_refused_by_name(void **state)
{
    world_t *w = world_open(*(medium_t *)*state);
    char real[TQI_ADDRESS_MAX];
    tqi_err_t err = {0};
    end_t other;
    end_open(w, &other, NULL);
    assert_int_equal(other.adapter->listen(other.adapter, w->address, real, &err), TQ_E_ADDRESS);
    assert_non_null(strstr(err.text, w->address + strlen("tcp://")));
    end_close(w, &other);
    /* The first one still works. */
    tqi_peer_t peer = dial(&w->client, w->address);
    assert_int_equal(send_value(&w->client, peer, 0, 8), TQ_OK);
    pump_until(&w->pump, w->server.messages == 1);
    world_close(w);
}

static void a_peer_that_does_not_read_costs_a_bounded_queue(void **state)
{
    world_t *w = world_open(*(medium_t *)*state);
    tqi_peer_t peer = dial(&w->client, w->address);
    uint64_t sent = 0;
    tq_status_t rc = TQ_OK;
    /* Only the client runs: nobody takes what arrives. */
    pump_t alone = {.sources = {&w->client.adapter->source}, .sources_cnt = 1};
    for (uint64_t end_ns = tqi_now_ns() + UINT64_C(10000000000); tqi_now_ns() < end_ns;) {
        rc = send_value(&w->client, peer, sent, 1u << 20);
        if (rc == TQ_E_BUSY && sent >= 15)
            break;
        sent += rc == TQ_OK;
        pump_turn(&alone);
    }
    assert_int_equal(rc, TQ_E_BUSY);
    /* 16 MiB of ours; over libzmq besides 4 that it was lent, what the kernel holds, and the 64
     * messages that the other end's libzmq takes before it stops reading. */
    assert_true(sent <= (w->medium == MEDIUM_INPROC ? 16 : 16 + 4 + 16 + 64 + 1));
    pump_until(&w->pump, w->server.messages == sent);
    assert_true(w->server.is_in_order);
    assert_int_equal(send_value(&w->client, peer, sent, 8), TQ_OK);
    pump_until(&w->pump, w->server.messages == sent + 1);
    world_close(w);
}

static void two_hundred_peers_are_told_apart(void **state)
{
    world_t *w = world_open(*(medium_t *)*state);
    tqi_peer_t peers[200];
    w->server.is_echo = true;
    for (unsigned i = 0; i < 200; i++) {
        peers[i] = dial(&w->client, w->address);
        assert_int_equal(send_value(&w->client, peers[i], i, 8), TQ_OK);
    }
    pump_until(&w->pump, w->client.messages == 200);
    for (unsigned i = 0; i < 200; i++) {
        w->client.messages = 0;
        assert_int_equal(send_value(&w->client, peers[i], 1000 + i, 8), TQ_OK);
        pump_until(&w->pump, w->client.messages == 1);
        assert_int_equal(w->client.last_peer, peers[i]);
        assert_int_equal(w->client.next_value, 1001 + i);
    }
    world_close(w);
}

/* ---- libzmq only ----------------------------------------------------------------------------- */

static void garbage_on_the_socket_disturbs_nobody(void **state)
{
    (void)state;
    world_t *w = world_open(MEDIUM_TCP);
    tqi_peer_t peer = dial(&w->client, w->address);
    w->server.takes_garbage = true; /* ZMTP 1.0 begins with no magic: some junk passes for it */
    assert_int_equal(send_value(&w->client, peer, 0, 8), TQ_OK);
    pump_until(&w->pump, w->server.messages == 1);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atoi(strrchr(w->address, ':') + 1)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < 8; i++) {
        uint8_t junk[4096];
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        for (size_t k = 0; k < sizeof junk; k++)
            junk[k] = (uint8_t)((size_t)i * 31 + k * 7);
        assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
        (void)!write(fd, junk, sizeof junk);
        pump_quiet(&w->pump, 3);
        close(fd);
    }
    /* A libzmq peer that sends three parts is no peer of ours either. */
    void *context = zmq_ctx_new(), *dealer = zmq_socket(context, ZMQ_DEALER);
    int linger = 0;
    zmq_setsockopt(dealer, ZMQ_LINGER, &linger, sizeof linger);
    assert_int_equal(zmq_connect(dealer, w->address), 0);
    zmq_send(dealer, "a", 1, ZMQ_SNDMORE);
    zmq_send(dealer, "b", 1, ZMQ_SNDMORE);
    zmq_send(dealer, "c", 1, 0);
    assert_int_equal(send_value(&w->client, peer, 1, 8), TQ_OK);
    pump_until(&w->pump, w->server.messages == 2);
    pump_quiet(&w->pump, 30);
    assert_int_equal(w->server.messages, 2);
    zmq_close(dealer);
    zmq_ctx_term(context);
    world_close(w);
}

static void keys_decide_who_is_served_over_tcp(void **state)
{
    (void)state;
    char public[41], secret[41], other[41], other_secret[41], real[TQI_ADDRESS_MAX];
    assert_int_equal(zmq_curve_keypair(public, secret), 0);
    assert_int_equal(zmq_curve_keypair(other, other_secret), 0);
    world_t *w = world_open(MEDIUM_TCP);
    end_t server, good, wrong, none;
    end_open(w, &server, &(tqi_zmq_conf_t){.curve_secret_key = secret, .curve_public_key = public});
    end_open(w, &good, &(tqi_zmq_conf_t){.curve_server_key = public});
    end_open(w, &wrong, &(tqi_zmq_conf_t){.curve_server_key = other});
    end_open(w, &none, NULL);
    assert_int_equal(server.adapter->listen(server.adapter, "tcp://127.0.0.1:*", real, NULL),
                     TQ_OK);
    (void)send_value(&wrong, dial(&wrong, real), 0, 8);
    (void)send_value(&none, dial(&none, real), 0, 8);
    (void)send_value(&good, dial(&good, real), 0, 8);
    pump_until(&w->pump, server.messages == 1 && none.downs == 1);
    pump_quiet(&w->pump, 50);
    assert_int_equal(server.messages, 1);
    assert_int_equal(good.downs, 0);
    end_close(w, &none);
    end_close(w, &wrong);
    end_close(w, &good);
    end_close(w, &server);
    world_close(w);
}

static void bad_keys_and_addresses_are_refused_with_what_is_expected(void **state)
{
    (void)state;
    tqi_err_t err = {0};
    tqi_sink_t sink = {0};
    tqi_ctrl_adapter_t *adapter;
    tqi_peer_t peer;
    char real[TQI_ADDRESS_MAX];
    assert_int_equal(tqi_zmq_ctrl_new(tqi_env_malloc(),
                                      &(tqi_zmq_conf_t){.curve_server_key = "short"}, &sink,
                                      &adapter, &err),
                     TQ_E_CONFIG);
    assert_non_null(strstr(err.text, "curve_server_key"));
    world_t *w = world_open(MEDIUM_TCP);
    adapter = w->client.adapter;
    assert_int_equal(adapter->ctrl.connect(&adapter->ctrl, "tcp://nowhere", &peer, &err),
                     TQ_E_CONFIG);
    assert_int_equal(adapter->listen(adapter, "tcp://999.1.1.1:x", real, &err), TQ_E_CONFIG);
    assert_int_equal(adapter->listen(adapter, "tcp://203.0.113.7:1234", real, &err), TQ_E_ADDRESS);
    assert_true(adapter->serves(adapter, "ipc://x"));
    assert_false(adapter->serves(adapter, "udp://x"));
    char deep[200] = "ipc:///tmp/";
    memset(deep + strlen(deep), 'x', 120);
    assert_int_equal(adapter->listen(adapter, deep, real, &err), TQ_E_ADDRESS);
    assert_non_null(strstr(err.text, "shorter"));
    world_close(w);
}

int main(void)
{
    static medium_t inproc = MEDIUM_INPROC, ipc = MEDIUM_IPC, tcp = MEDIUM_TCP;
#define ON_EACH(test)                                                                              \
    {#test " over inproc", test, NULL, NULL, &inproc},                                             \
        {#test " over ipc", test, NULL, NULL, &ipc},                                               \
    {                                                                                              \
#test " over tcp", test, NULL, NULL, &tcp                                                  \
    }
    const struct CMUnitTest tests[] = {
        ON_EACH(frames_arrive_whole_and_in_order_both_ways),
        ON_EACH(who_connects_again_is_somebody_else),
        ON_EACH(a_peer_that_is_not_there_goes_down_with_a_reason),
        ON_EACH(a_server_that_goes_takes_its_peers_down),
        ON_EACH(an_address_that_is_in_use_is_refused_by_name),
        ON_EACH(a_peer_that_does_not_read_costs_a_bounded_queue),
        ON_EACH(two_hundred_peers_are_told_apart),
        cmocka_unit_test(garbage_on_the_socket_disturbs_nobody),
        cmocka_unit_test(keys_decide_who_is_served_over_tcp),
        cmocka_unit_test(bad_keys_and_addresses_are_refused_with_what_is_expected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
