/* CURVE keys: a pair in a file of its own, and lists of the public keys that are trusted. */
#ifndef HEARTH_PROTO_CURVE_KEYS_H
#define HEARTH_PROTO_CURVE_KEYS_H

#include "common/error.h"
#include "proto/transport.h"

struct key_pair {
    char public_key[PEER_KEY_BYTES], secret_key[PEER_KEY_BYTES]; /* Z85, 40 characters */
};

/* Draws a pair and writes it to path (mode 0600, atomically); refuses to overwrite. */
enum status key_pair_create(const char *path, struct key_pair *pair, struct error *err);

/* Reads a pair; refuses a file that others may read, and keys that are not a pair. */
enum status key_pair_read(const char *path, struct key_pair *pair, struct error *err);

/* Public keys, one a line: "KEY NAME", '#' comments. Zero-initialise. */
struct trusted_keys {
    struct trusted_key {
        char key[PEER_KEY_BYTES];
        char name[65];
    } *keys;
    int n;
};

/* A missing file is an empty list. Names file and line of what is wrong. */
enum status trusted_keys_read(struct trusted_keys *list, const char *path, struct error *err);
void trusted_keys_release(struct trusted_keys *list);

/* Appends (atomically); a key that is there already is no error, a name with another key is. */
enum status trusted_keys_add(const char *path, const char *key, const char *name, struct error *err);

/* NULL: not trusted. */
const struct trusted_key *trusted_keys_find(const struct trusted_keys *list, const char *key);

#endif
