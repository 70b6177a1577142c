#include "proto/endpoint.h"

#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "proto/wire_rules.h"

static int is_every_address(const char *endpoint)
{
    static const char *const every[] = {"tcp://0.0.0.0:", "tcp://[::]:"};
    for (size_t i = 0; i < sizeof every / sizeof *every; i++)
        if (!strncmp(endpoint, every[i], strlen(every[i])))
            return 1;
    return 0;
}

enum status endpoint_advertised(char **out, const char *bound, const char *host, struct error *err)
{
    *out = NULL;
    int is_bare_v6 = host && *host != '[' && strchr(host, ':');
    char *endpoint = host ? xasprintf(is_bare_v6 ? "tcp://[%s]%s" : "tcp://%s%s", host, strrchr(bound, ':')) : xstrdup(bound);
    enum status status = STATUS_OK;
    if (is_every_address(endpoint))
        status = error_set(err, STATUS_INVALID,
                           "%s is every address of this machine: say with --advertise HOST under which one the others reach it", endpoint);
    else if (!wire_is_endpoint(endpoint))
        status = error_set(err, STATUS_INVALID, "--advertise: '%s' is no host name or address", host ? host : bound);
    if (status)
        free(endpoint);
    else
        *out = endpoint;
    return status;
}
