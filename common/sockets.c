#include "common/sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ADDRESS_BYTES_MAX = 128 };

/* Splits "HOST:PORT", "[HOST]:PORT"; host and port point into text. 0: it is neither. */
static int split(char *text, const char **host, const char **port)
{
    char *colon = strrchr(text, ':'), rest;
    int number;
    if (!colon || colon == text || sscanf(colon + 1, "%d%c", &number, &rest) != 1 || number < 0 || number > UINT16_MAX)
        return 0;
    *colon = 0;
    *port = colon + 1;
    *host = text;
    if (*text == '[' && colon[-1] == ']') {
        colon[-1] = 0;
        *host = text + 1;
    }
    return **host && !strpbrk(*host, "[]") && (*host != text || !strchr(*host, ':'));
}

enum status socket_listen(int *fd, const char *address, int backlog, struct error *err)
{
    char text[ADDRESS_BYTES_MAX];
    const char *host, *port;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE}, *found;
    int one = 1;
    *fd = -1;
    if ((size_t)snprintf(text, sizeof text, "%s", address) >= sizeof text || !split(text, &host, &port))
        return error_set(err, STATUS_INVALID, "'%.100s' is not ADDRESS:PORT (an IPv6 address in brackets)", address);
    int failure = getaddrinfo(strcmp(host, "localhost") ? host : "127.0.0.1", port, &hints, &found);
    if (failure)
        return error_set(err, STATUS_INVALID, "'%s' is not an address to listen on (%s)", host, gai_strerror(failure));
    *fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    enum status status = STATUS_OK;
    if (*fd < 0 || setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) || bind(*fd, found->ai_addr, found->ai_addrlen) ||
        listen(*fd, backlog)) {
        status = error_errno(err, STATUS_IO, "cannot listen on %s", address);
        if (*fd >= 0)
            close(*fd);
        *fd = -1;
    }
    freeaddrinfo(found);
    return status;
}

union any_address {
    struct sockaddr_storage storage;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static union any_address own_address(int fd)
{
    union any_address address = {0};
    socklen_t length = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address.storage, &length))
        memset(&address, 0, sizeof address);
    return address;
}

int socket_port(int fd)
{
    union any_address address = own_address(fd);
    int is_v4 = address.storage.ss_family == AF_INET, is_v6 = address.storage.ss_family == AF_INET6;
    return is_v4 ? ntohs(address.v4.sin_port) : is_v6 ? ntohs(address.v6.sin6_port) : 0;
}

int socket_is_loopback(int fd)
{
    union any_address address = own_address(fd);
    int is_v4 = address.storage.ss_family == AF_INET, is_v6 = address.storage.ss_family == AF_INET6;
    return is_v4 ? ntohl(address.v4.sin_addr.s_addr) >> 24 == 127 : is_v6 && IN6_IS_ADDR_LOOPBACK(&address.v6.sin6_addr);
}
