/* SPDX-License-Identifier: Apache-2.0 */
#include "net/zmq/context.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "base/assert.h"
#include "sys/fork.h"
#include "sys/limit.h"

/* Defaults of libzmq are 1,023 sockets and a backlog of 100: a thousand peers are past both. */
#define SOCKETS_MAX 65535
#define BACKLOG 4096
#define THREADS 2u            /* of libzmq: one for I/O, one that reaps sockets */
#define DESCRIPTORS_FIRST 12u /* theirs, and of the first sockets */
/* A connection has its socket, its mailbox and a monitor of two more. Where one of them is missing
 * libzmq says nothing, and nothing ever answers. */
#define DESCRIPTORS_MORE 6u

static pthread_mutex_t context_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
    void *context;
    unsigned refs;
    pid_t pid;
} process;

static void guard(void)
{
    tqi_fork_guard(&context_mutex);
}

/* libzmq starts its threads with the first socket, and aborts where it gets no thread or no
 * descriptor for one; so both are asked for before, and the socket is made here. */
static tq_status_t context_start(tqi_err_t *err)
{
    void *socket = NULL;
    tq_status_t rc = tqi_limit_descriptors(DESCRIPTORS_FIRST, err);
    if (rc == TQ_OK)
        rc = tqi_limit_threads(THREADS, err);
    if (rc != TQ_OK)
        return rc;
    process.context = zmq_ctx_new();
    if (process.context) {
        zmq_ctx_set(process.context, ZMQ_MAX_SOCKETS, SOCKETS_MAX);
        zmq_ctx_set(process.context, ZMQ_BLOCKY, 0);
        socket = zmq_socket(process.context, ZMQ_PAIR);
    }
    if (socket) {
        zmq_close(socket);
        return TQ_OK;
    }
    rc = tqi_fail_errno(err, errno, "libzmq: no context");
    if (process.context)
        zmq_ctx_term(process.context);
    process.context = NULL;
    return rc;
}

tq_status_t tqi_zmq_context_acquire(void **context, tqi_err_t *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    tq_status_t rc = TQ_OK;
    pthread_once(&once, guard);
    pthread_mutex_lock(&context_mutex);
    if (process.pid != getpid()) {
        /* First use, or a forked child: the parent's context is left alone for ever. */
        process.context = NULL;
        process.refs = 0;
        process.pid = getpid();
    }
    if (!process.context)
        rc = context_start(err);
    if (rc == TQ_OK)
        process.refs++;
    *context = process.context;
    pthread_mutex_unlock(&context_mutex);
    return rc;
}

void tqi_zmq_context_release(void *context)
{
    void *ended = NULL;
    pthread_mutex_lock(&context_mutex);
    if (context && context == process.context && process.pid == getpid() && --process.refs == 0) {
        ended = process.context;
        process.context = NULL;
    }
    pthread_mutex_unlock(&context_mutex);
    if (ended)
        zmq_ctx_term(ended);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static tq_status_t key_copy(char out[41], const char *key, const char *name, tqi_err_t *err)
{
    uint8_t raw[32];
    out[0] = 0;
    if (!key || !*key)
        return TQ_OK;
    if (strlen(key) != 40 || !zmq_z85_decode(raw, key))
        return tqi_fail(err, TQ_E_CONFIG, "%s is no CURVE key: expected 40 characters of Z85",
                        name);
    memcpy(out, key, 41);
    return TQ_OK;
}

tq_status_t tqi_zmq_keys_init(tqi_zmq_keys_t *keys, const tqi_zmq_conf_t *conf, tqi_err_t *err)
{
    memset(keys, 0, sizeof *keys);
    if (!conf)
        return TQ_OK;
    tq_status_t rc = key_copy(keys->secret, conf->curve_secret_key, "curve_secret_key", err);
    if (rc == TQ_OK)
        rc = key_copy(keys->public, conf->curve_public_key, "curve_public_key", err);
    if (rc == TQ_OK)
        rc = key_copy(keys->server, conf->curve_server_key, "curve_server_key", err);
    if (rc == TQ_OK && (keys->secret[0] == 0) != (keys->public[0] == 0))
        rc = tqi_fail(err, TQ_E_CONFIG,
                      "curve_secret_key and curve_public_key belong together: give both or none");
    return rc;
}

/* ---- sockets --------------------------------------------------------------------------------- */

static void set_int(void *socket, int option, int value)
{
    int rc = zmq_setsockopt(socket, option, &value, sizeof value);
    tqi_assert(rc == 0);
}

void tqi_zmq_heartbeat(void *socket, int every_ms, int timeout_ms)
{
    set_int(socket, ZMQ_HEARTBEAT_IVL, every_ms);
    set_int(socket, ZMQ_HEARTBEAT_TIMEOUT, timeout_ms);
}

void tqi_zmq_linger(void *socket, int ms)
{
    set_int(socket, ZMQ_LINGER, ms);
}

tq_status_t tqi_zmq_socket(void *context, int type, int send_hwm, int receive_hwm,
                           int64_t bytes_max, void **out, tqi_err_t *err)
{
    tq_status_t rc = tqi_limit_descriptors(DESCRIPTORS_MORE, err);
    if (rc != TQ_OK)
        return rc;
    void *socket = zmq_socket(context, type);
    if (!socket)
        return tqi_fail_errno(err, errno, "libzmq: no socket");
    set_int(socket, ZMQ_LINGER, 0);
    set_int(socket, ZMQ_SNDHWM, send_hwm);
    set_int(socket, ZMQ_RCVHWM, receive_hwm);
    set_int(socket, ZMQ_BACKLOG, BACKLOG);
    /* A connection that breaks stays broken: libzmq would otherwise deliver what was queued to
     * whoever listens there next. */
    set_int(socket, ZMQ_RECONNECT_IVL, -1);
    set_int(socket, ZMQ_IMMEDIATE, 1);
    if (type == ZMQ_ROUTER)
        set_int(socket, ZMQ_ROUTER_MANDATORY, 1);
    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &bytes_max, sizeof bytes_max);
    *out = socket;
    return TQ_OK;
}

static bool is_tcp(const char *address)
{
    return strncmp(address, "tcp://", 6) == 0;
}

static bool is_ipc(const char *address)
{
    return strncmp(address, "ipc://", 6) == 0;
}

bool tqi_zmq_serves(const char *address)
{
    return is_tcp(address) || is_ipc(address);
}

/* libzmq takes 65537 for port 1. `*` is for listening; it refuses that itself where it dials. */
static bool has_port(const char *address)
{
    const char *colon = strrchr(address + 6, ':');
    size_t len = colon ? strspn(colon + 1, "0123456789") : 0;
    if (!colon || len > 5 || (len == 0 ? strcmp(colon + 1, "*") != 0 : colon[1 + len] != 0))
        return false;
    return len == 0 || atoi(colon + 1) <= UINT16_MAX;
}

static tq_status_t check_address(const char *address, tqi_err_t *err)
{
    if (is_tcp(address) ? has_port(address) : is_ipc(address) && address[6] != 0)
        return TQ_OK;
    return tqi_fail(err, TQ_E_CONFIG,
                    "'%.300s' is no address: expected ipc://PATH, or tcp://HOST:PORT with a port "
                    "of at most 65535",
                    address);
}

/* libzmq unlinks whatever lies at the path before it binds: somebody alive there would be cut off
 * without a word. */
static tq_status_t check_ipc(const char *path, tqi_err_t *err)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof at.sun_path)
        return tqi_fail(
            err, TQ_E_ADDRESS,
            "ipc://%s: the path has %zu bytes, over the %zu that a unix socket can have; "
            "choose a shorter one",
            path, strlen(path), sizeof at.sun_path - 1);
    memcpy(at.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return tqi_fail_errno(err, errno, "socket");
    bool is_used = connect(fd, (struct sockaddr *)&at, sizeof at) == 0;
    close(fd);
    if (is_used)
        return tqi_fail(err, TQ_E_ADDRESS,
                        "ipc://%s is in use by a running process; stop it or listen elsewhere",
                        path);
    return TQ_OK;
}

tq_status_t tqi_zmq_bind(void *socket, const char *address, const tqi_zmq_keys_t *keys,
                         char real[TQI_ADDRESS_MAX], tqi_err_t *err)
{
    tq_status_t rc = check_address(address, err);
    if (rc == TQ_OK && is_ipc(address))
        rc = check_ipc(address + 6, err);
    if (rc != TQ_OK)
        return rc;
    set_int(socket, ZMQ_IPV6, strchr(address, '[') != NULL);
    if (keys && is_tcp(address) && keys->secret[0]) {
        set_int(socket, ZMQ_CURVE_SERVER, 1);
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, keys->secret, 41);
        zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, keys->public, 41);
    }
    if (zmq_bind(socket, address) != 0) {
        int why = errno;
        if (why == EINVAL || why == EPROTONOSUPPORT)
            return tqi_fail(
                err, TQ_E_CONFIG,
                "cannot listen on '%s': expected ipc://PATH or tcp://ADDRESS:PORT (* for "
                "any)",
                address);
        return tqi_fail(err, TQ_E_ADDRESS, "cannot listen on %s: %s%s", address, zmq_strerror(why),
                        why == EADDRINUSE ? "; stop who has it, or listen on another port (tcp://"
                                            "ADDRESS:* takes a free one)"
                        : why == ENODEV   ? "; the machine has no such address"
                                          : "");
    }
    size_t len = TQI_ADDRESS_MAX;
    if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, real, &len) != 0)
        return tqi_fail(err, TQ_E_ADDRESS, "%s: %s", address, zmq_strerror(errno));
    return TQ_OK;
}

void tqi_zmq_unlink(void *socket)
{
    char real[TQI_ADDRESS_MAX];
    size_t real_len = sizeof real, type_len = sizeof(int);
    int type;
    if (zmq_getsockopt(socket, ZMQ_TYPE, &type, &type_len) == 0 && type == ZMQ_ROUTER &&
        zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, real, &real_len) == 0 && is_ipc(real))
        (void)unlink(real + 6);
}

tq_status_t tqi_zmq_connect(void *socket, const char *address, const tqi_zmq_keys_t *keys,
                            tqi_err_t *err)
{
    tq_status_t rc = check_address(address, err);
    if (rc != TQ_OK)
        return rc;
    set_int(socket, ZMQ_IPV6, strchr(address, '[') != NULL);
    if (keys && is_tcp(address) && keys->server[0]) {
        char public[41], secret[41];
        if (zmq_curve_keypair(public, secret) != 0)
            return tqi_fail(err, TQ_E_SYSTEM, "libzmq has no CURVE: %s", zmq_strerror(errno));
        zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, keys->server, 41);
        zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, public, 41);
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, secret, 41);
    }
    if (zmq_connect(socket, address) != 0)
        return tqi_fail(err, errno == EINVAL ? TQ_E_CONFIG : TQ_E_SYSTEM,
                        "cannot connect to %s: %s", address,
                        errno == EINVAL ? "it is no address" : zmq_strerror(errno));
    return TQ_OK;
}

tq_status_t tqi_zmq_keypair(char public_key[41], char secret_key[41], tqi_err_t *err)
{
    if (zmq_curve_keypair(public_key, secret_key) != 0)
        return tqi_fail(err, TQ_E_UNSUPPORTED, "this libzmq has no CURVE: %s", zmq_strerror(errno));
    return TQ_OK;
}

int tqi_zmq_fd(void *socket)
{
    int fd = -1;
    size_t len = sizeof fd;
    zmq_getsockopt(socket, ZMQ_FD, &fd, &len);
    return fd;
}

int tqi_zmq_events(void *socket)
{
    int events = 0;
    size_t len = sizeof events;
    return zmq_getsockopt(socket, ZMQ_EVENTS, &events, &len) == 0 ? events : 0;
}
