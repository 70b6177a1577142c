/* Programmer errors stop the process, in release builds too. Nothing that a file, a person or a peer sends may reach a CHECK. */
#ifndef HEARTH_COMMON_CHECK_H
#define HEARTH_COMMON_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                                                                   \
    do {                                                                                                                                   \
        if (__builtin_expect(!(condition), 0)) {                                                                                           \
            fprintf(stderr, "%s:%d: %s: broken invariant: %s\n", __FILE__, __LINE__, __func__, #condition);                                \
            abort();                                                                                                                       \
        }                                                                                                                                  \
    } while (0)

#endif
