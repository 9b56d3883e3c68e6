/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/reach.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sys/machine.h"

#define ADDRESSES_MAX 32

/* Loopback and link-local addresses mean something else, or nothing, on other machines. */
static bool is_usable(const struct sockaddr *at)
{
    if (at->sa_family == AF_INET) {
        uint32_t ip = ntohl(((const struct sockaddr_in *)(const void *)at)->sin_addr.s_addr);

        return ip != INADDR_ANY && ip >> 24 != 127 && ip >> 16 != 0xA9FE;
    }
    if (at->sa_family == AF_INET6) {
        const struct in6_addr *ip = &((const struct sockaddr_in6 *)(const void *)at)->sin6_addr;

        return !IN6_IS_ADDR_UNSPECIFIED(ip) && !IN6_IS_ADDR_LOOPBACK(ip) &&
               !IN6_IS_ADDR_LINKLOCAL(ip) && !IN6_IS_ADDR_V4MAPPED(ip);
    }
    return false;
}

/* The text of a usable address. */
static bool print(const struct sockaddr *at, char out[TQI_HOST_TEXT_MAX])
{
    char text[INET6_ADDRSTRLEN];
    const void *ip = at->sa_family == AF_INET6
                         ? (const void *)&((const struct sockaddr_in6 *)(const void *)at)->sin6_addr
                         : (const void *)&((const struct sockaddr_in *)(const void *)at)->sin_addr;

    if (!is_usable(at) || !inet_ntop(at->sa_family, ip, text, sizeof text))
        return false;
    snprintf(out, TQI_HOST_TEXT_MAX, at->sa_family == AF_INET6 ? "[%s]" : "%s", text);
    return true;
}

static bool route_to(const struct addrinfo *peer, char out[TQI_HOST_TEXT_MAX])
{
    struct sockaddr_storage own;
    socklen_t len = sizeof own;
    int fd = socket(peer->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    /* Connecting a datagram socket sends nothing: it chooses the route, and so the address. */
    bool is_found = fd >= 0 && connect(fd, peer->ai_addr, peer->ai_addrlen) == 0 &&
                    getsockname(fd, (struct sockaddr *)&own, &len) == 0 &&
                    print((struct sockaddr *)&own, out);

    if (fd >= 0)
        close(fd);
    return is_found;
}

bool tqi_reach_route(const char *host, bool may_be_ipv6, char out[TQI_HOST_TEXT_MAX])
{
    struct addrinfo hints = {.ai_family = may_be_ipv6 ? AF_UNSPEC : AF_INET,
                             .ai_socktype = SOCK_DGRAM};
    struct addrinfo *list;
    bool is_found = false;

    if (getaddrinfo(host, "9", &hints, &list) != 0)
        return false;
    for (const struct addrinfo *at = list; at && !is_found; at = at->ai_next)
        is_found = route_to(at, out);
    freeaddrinfo(list);
    return is_found;
}

typedef struct addresses {
    char text[ADDRESSES_MAX][TQI_HOST_TEXT_MAX];
    unsigned cnt;
} addresses_t;

static bool has(const addresses_t *all, const char *text)
{
    for (unsigned i = 0; i < all->cnt; i++)
        if (strcmp(all->text[i], text) == 0)
            return true;
    return false;
}

static void own_addresses(int family, addresses_t *all)
{
    struct ifaddrs *list;

    if (getifaddrs(&list) != 0)
        return;
    for (const struct ifaddrs *at = list; at && all->cnt < ADDRESSES_MAX; at = at->ifa_next) {
        char text[TQI_HOST_TEXT_MAX];

        if (at->ifa_addr && at->ifa_addr->sa_family == family && (at->ifa_flags & IFF_UP) &&
            print(at->ifa_addr, text) && !has(all, text))
            memcpy(all->text[all->cnt++], text, sizeof text);
    }
    freeifaddrs(list);
}

/* The one of them that the machine's name stands for. */
static bool named_address(int family, const addresses_t *all, char out[TQI_HOST_TEXT_MAX])
{
    struct addrinfo hints = {.ai_family = family, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    bool is_found = false;

    if (getaddrinfo(tqi_machine_host(), NULL, &hints, &list) != 0)
        return false;
    for (const struct addrinfo *at = list; at && !is_found; at = at->ai_next)
        is_found = print(at->ai_addr, out) && has(all, out);
    freeaddrinfo(list);
    return is_found;
}

tq_status_t tqi_reach_machine(bool may_be_ipv6, char out[TQI_HOST_TEXT_MAX], tqi_err_t *err)
{
    addresses_t all = {.cnt = 0};
    int family = AF_INET;
    char text[256];
    size_t len = 0;

    own_addresses(family, &all);
    if (all.cnt == 0 && may_be_ipv6)
        own_addresses(family = AF_INET6, &all);
    if (all.cnt == 0) {
        strcpy(out, "127.0.0.1");
        return TQ_OK;
    }
    if (all.cnt == 1) {
        memcpy(out, all.text[0], TQI_HOST_TEXT_MAX);
        return TQ_OK;
    }
    if (named_address(family, &all, out))
        return TQ_OK;
    for (unsigned i = 0; i < all.cnt && len < sizeof text; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, i ? ", %s" : "%s", all.text[i]);
    return tqi_fail(err, TQ_E_CONFIG,
                    "this machine has several addresses (%s), and its name %s "
                    "stands for none of them",
                    text, tqi_machine_host());
}
