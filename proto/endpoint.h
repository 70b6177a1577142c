/* Under which address others reach a socket that this process has bound. */
#ifndef HEARTH_PROTO_ENDPOINT_H
#define HEARTH_PROTO_ENDPOINT_H

#include "common/error.h"

/* *out: the caller's to free; "tcp://HOST:PORT" with the port of `bound` ("tcp://ADDRESS:PORT", as zmq_transport gives it). host: what
 * --advertise says, a name or an address, IPv6 with or without brackets; NULL: the address that is bound, which must be one address and not
 * all of them. On error *out is NULL. */
enum status endpoint_advertised(char **out, const char *bound, const char *host, struct error *err);

#endif
