/* What both of our servers need of sockets. */
#ifndef HEARTH_COMMON_SOCKETS_H
#define HEARTH_COMMON_SOCKETS_H

#include "common/error.h"

/* A non-blocking TCP socket that listens at "ADDRESS:PORT": a numeric address, IPv6 in brackets ("[::1]:8080"), or localhost, which is
 * 127.0.0.1; port 0: any that is free. backlog: connections that may wait. */
enum status socket_listen(int *fd, const char *address, int backlog, struct error *err);

/* The port that an IPv4 or IPv6 socket is bound to; 0: none. */
int socket_port(int fd);

/* Whether only this machine reaches it. */
int socket_is_loopback(int fd);

#endif
