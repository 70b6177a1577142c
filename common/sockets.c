#include "common/sockets.h"

#include <netinet/in.h>
#include <sys/socket.h>

int socket_port(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &length))
        return 0;
    return ntohs(address.ss_family == AF_INET ? ((struct sockaddr_in *)(void *)&address)->sin_port
                                              : ((struct sockaddr_in6 *)(void *)&address)->sin6_port);
}
