/* SPDX-License-Identifier: Apache-2.0 */
#include "api/advertise.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "sys/reach.h"

#define TCP "tcp://"

static bool is_tcp(const char *address)
{
    return strncmp(address, TCP, strlen(TCP)) == 0;
}

/* Where the host ends in "HOST", "HOST:PORT" or "[HOST]:PORT". */
static size_t host_len(const char *text)
{
    const char *end = text[0] == '[' ? strchr(text, ']') : NULL;

    return end ? (size_t)(end + 1 - text) : strcspn(text, ":");
}

bool tqi_address_host(const char *address, char host[TQI_ADDRESS_MAX])
{
    size_t len;

    if (!is_tcp(address))
        return false;
    len = host_len(address + strlen(TCP));
    if (len == 0 || len >= TQI_ADDRESS_MAX)
        return false;
    memcpy(host, address + strlen(TCP), len);
    host[len] = 0;
    return true;
}

static bool is_any_host(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "*") == 0 || strcmp(host, "[::]") == 0;
}

bool tqi_is_wildcard(const char *address)
{
    char host[TQI_ADDRESS_MAX];

    return tqi_address_host(address, host) && is_any_host(host);
}

/* The port of a listening address is what is behind its host. */
static const char *port_of(const char *listens)
{
    const char *text = listens + strlen(TCP);

    return text + host_len(text);
}

static tq_status_t take_given(const char *listens, const char *given, const char *option,
                              char out[TQI_ADDRESS_MAX], tqi_err_t *err)
{
    const char *text = is_tcp(given) ? given + strlen(TCP) : given;
    size_t len = host_len(text);
    const char *port = text + len;
    char host[256];
    char *end = NULL;

    if (!is_tcp(listens))
        return tqi_fail(err, TQ_E_CONFIG, "%s: only a tcp address can have another one, not %s",
                        option, listens);
    if (len == 0 || len >= sizeof host || strpbrk(text, "/#, "))
        return tqi_fail(err, TQ_E_CONFIG, "%s: '%.200s' is no HOST, or HOST:PORT", option, given);
    memcpy(host, text, len);
    host[len] = 0;
    if (is_any_host(host))
        return tqi_fail(err, TQ_E_CONFIG, "%s: nobody can dial '%.200s'", option, given);
    if (*port && strcmp(port, ":*") != 0 &&
        (port[1] < '0' || port[1] > '9' || strtoul(port + 1, &end, 10) - 1 >= UINT16_MAX || *end))
        return tqi_fail(err, TQ_E_CONFIG, "%s: '%.200s' has no port from 1 to 65535", option,
                        given);
    snprintf(out, TQI_ADDRESS_MAX, TCP "%s%.8s", host, end ? port : port_of(listens));
    return TQ_OK;
}

tq_status_t tqi_advertise(const char *listens, const char *given, const char *towards,
                          const char *option, char out[TQI_ADDRESS_MAX], tqi_err_t *err)
{
    bool may_be_ipv6 = strchr(listens, '[') != NULL;
    char peer[TQI_ADDRESS_MAX], own[TQI_HOST_TEXT_MAX];
    tqi_err_t why;
    size_t len;

    if (given && *given)
        return take_given(listens, given, option, out, err);
    if (!tqi_is_wildcard(listens)) {
        snprintf(out, TQI_ADDRESS_MAX, "%s", listens);
        return TQ_OK;
    }
    if (towards && tqi_address_host(towards, peer)) {
        /* Look-ups want an IPv6 address without its brackets. */
        len = strlen(peer);
        if (peer[0] == '[') {
            memmove(peer, peer + 1, len);
            peer[len - 2] = 0;
        }
        if (tqi_reach_route(peer, may_be_ipv6, own)) {
            snprintf(out, TQI_ADDRESS_MAX, TCP "%s%.8s", own, port_of(listens));
            return TQ_OK;
        }
    }
    if (tqi_reach_machine(may_be_ipv6, own, &why) != TQ_OK)
        return tqi_fail(
            err, TQ_E_CONFIG,
            "listens on %s, and which address others dial can't be guessed: %.300s; say "
            "it with %s",
            listens, why.text, option);
    snprintf(out, TQI_ADDRESS_MAX, TCP "%s%.8s", own, port_of(listens));
    return TQ_OK;
}
