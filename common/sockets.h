/* What both of our servers need to know of a socket. */
#ifndef HEARTH_COMMON_SOCKETS_H
#define HEARTH_COMMON_SOCKETS_H

/* The port that an IPv4 or IPv6 socket is bound to; 0: none. */
int socket_port(int fd);

#endif
