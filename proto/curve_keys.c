#include "proto/curve_keys.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "common/check.h"
#include "common/memory.h"
#include "proto/limits.h"
#include "proto/wire_rules.h"
#include "proto/zap.h"

enum { FILE_BYTES_MAX = 64 << 10, LINE_WORDS_MAX = 2 };

/* ---- files ---- */

/* *text is malloc'ed and ends with a zero. STATUS_NOT_FOUND when there is no such file. */
static enum status read_file(const char *path, int must_be_private, struct text *text, struct error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return error_errno(err, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "%s: cannot open", path);
    struct stat st;
    enum status status = STATUS_OK;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        status = error_set(err, STATUS_INVALID, "%s: not a regular file", path);
    else if (must_be_private && (st.st_mode & 077))
        status = error_set(err, STATUS_INVALID, "%s: holds a secret key and others may read it (mode %03o): chmod 600 it, or make new keys",
                           path, (unsigned)(st.st_mode & 0777));
    else if (st.st_size > FILE_BYTES_MAX)
        status = error_set(err, STATUS_INVALID, "%s: %lld bytes, at most %d are allowed", path, (long long)st.st_size, FILE_BYTES_MAX);
    char buffer[4096];
    for (ssize_t got = 1; !status && got > 0;) {
        got = read(fd, buffer, sizeof buffer);
        if (got < 0 || text->length + (size_t)got > FILE_BYTES_MAX)
            status = error_errno(err, STATUS_IO, "%s: cannot read", path);
        else
            text_append(text, buffer, (size_t)got);
    }
    explicit_bzero(buffer, sizeof buffer);
    close(fd);
    if (!status && memchr(text->bytes, 0, text->length))
        status = error_set(err, STATUS_INVALID, "%s: not a text file", path);
    return status;
}

static enum status write_whole(int fd, const char *bytes, size_t n, const char *path, struct error *err)
{
    for (size_t done = 0; done < n;) {
        ssize_t wrote = write(fd, bytes + done, n - done);
        if (wrote <= 0)
            return error_errno(err, STATUS_IO, "%s: cannot write", path);
        done += (size_t)wrote;
    }
    return fsync(fd) ? error_errno(err, STATUS_IO, "%s: cannot write", path) : STATUS_OK;
}

/* The whole file or none of it: beside the place, then into it. */
static enum status write_file(const char *path, const char *bytes, size_t n, mode_t mode, int may_replace, struct error *err)
{
    char *beside = xasprintf("%s.XXXXXX", path);
    int fd = mkostemp(beside, O_CLOEXEC); /* 0600 from the first moment */
    if (fd < 0) {
        enum status failed = error_errno(err, STATUS_IO, "%s: cannot create", path);
        free(beside);
        return failed;
    }
    enum status status = write_whole(fd, bytes, n, path, err);
    if (!status && fchmod(fd, mode))
        status = error_errno(err, STATUS_IO, "%s: cannot set its mode", path);
    if (close(fd) && !status)
        status = error_errno(err, STATUS_IO, "%s: cannot write", path);
    /* link, unlike rename, fails when something is there */
    if (!status && (may_replace ? rename(beside, path) : link(beside, path)))
        status = errno == EEXIST ? error_set(err, STATUS_INVALID,
                                             "%s: is there already, and keys are never overwritten: choose another name or delete it", path)
                                 : error_errno(err, STATUS_IO, "%s: cannot create", path);
    if (status || !may_replace)
        unlink(beside);
    free(beside);
    return status;
}

/* Splits the next line into at most two words; 0: no line is left. The text is changed. */
static int next_line(char **at, char *words[LINE_WORDS_MAX], int *n_words)
{
    if (!**at)
        return 0;
    char *line = *at, *end = line + strcspn(line, "\n");
    *at = *end ? end + 1 : end;
    *end = 0;
    *n_words = 0;
    for (char *save, *word = strtok_r(line, " \t\r", &save); word; word = strtok_r(NULL, " \t\r", &save)) {
        if (*n_words < LINE_WORDS_MAX)
            words[*n_words] = word;
        ++*n_words;
    }
    /* '#' is a letter of Z85 too: a key that begins with it is no comment */
    if (*n_words && words[0][0] == '#' && !wire_is_key(words[0]))
        *n_words = 0;
    return 1;
}

/* ---- pairs ---- */

static int is_pair(const struct key_pair *pair)
{
    char expected[PEER_KEY_BYTES];
    return wire_is_key(pair->secret_key) && !zmq_curve_public(expected, pair->secret_key) && !strcmp(expected, pair->public_key);
}

enum status key_pair_create(const char *path, struct key_pair *pair, struct error *err)
{
    /* people type public keys: one that begins with a sign would be taken for an option or a comment */
    do
        if (zmq_curve_keypair(pair->public_key, pair->secret_key))
            return error_set(err, STATUS_UNSUPPORTED, "this ZeroMQ library was built without CURVE: install one with libsodium");
    while (!isalnum((unsigned char)*pair->public_key));
    CHECK(is_pair(pair));
    char *text = xasprintf("# A CURVE key pair of Hearth. The secret key must stay on this machine.\npublic %s\nsecret %s\n",
                           pair->public_key, pair->secret_key);
    enum status status = write_file(path, text, strlen(text), 0600, 0, err);
    explicit_bzero(text, strlen(text));
    free(text);
    return status;
}

static enum status parse_pair(const char *path, char *text, struct key_pair *pair, struct error *err)
{
    char *words[LINE_WORDS_MAX];
    int n_words;
    for (int line = 1; next_line(&text, words, &n_words); line++) {
        if (!n_words)
            continue;
        char *key = n_words != 2                  ? NULL
                    : !strcmp(words[0], "public") ? pair->public_key
                    : !strcmp(words[0], "secret") ? pair->secret_key
                                                  : NULL;
        if (!key || *key || !wire_is_key(words[1]))
            return error_set(err, STATUS_INVALID, "%s:%d: expected 'public KEY' and 'secret KEY', once each, of 40 characters", path, line);
        memcpy(key, words[1], PEER_KEY_BYTES);
    }
    if (!*pair->public_key || !*pair->secret_key)
        return error_set(err, STATUS_INVALID, "%s: the %s key is missing", path, *pair->public_key ? "secret" : "public");
    return is_pair(pair) ? STATUS_OK : error_set(err, STATUS_INVALID, "%s: the two keys are not a pair", path);
}

enum status key_pair_read(const char *path, struct key_pair *pair, struct error *err)
{
    *pair = (struct key_pair){0};
    struct text text = {0};
    enum status status = read_file(path, 1, &text, err);
    if (!status)
        status = parse_pair(path, text.bytes, pair, err);
    if (text.bytes)
        explicit_bzero(text.bytes, text.capacity);
    text_free(&text);
    if (status)
        explicit_bzero(pair, sizeof *pair);
    return status;
}

/* ---- lists ---- */

static const struct trusted_key *find_name(const struct trusted_keys *list, const char *name)
{
    for (int i = 0; i < list->n; i++)
        if (!strcmp(list->keys[i].name, name))
            return &list->keys[i];
    return NULL;
}

const struct trusted_key *trusted_keys_find(const struct trusted_keys *list, const char *key)
{
    for (int i = 0; i < list->n; i++)
        if (!strcmp(list->keys[i].key, key))
            return &list->keys[i];
    return NULL;
}

static enum status parse_list(struct trusted_keys *list, const char *path, char *text, struct error *err)
{
    char *words[LINE_WORDS_MAX];
    int n_words;
    for (int line = 1; next_line(&text, words, &n_words); line++) {
        if (!n_words)
            continue;
        if (n_words != 2 || !wire_is_key(words[0]) || !wire_is_name(words[1]))
            return error_set(err, STATUS_INVALID,
                             "%s:%d: expected KEY NAME: 40 characters of Z85, and a name of letters, digits, '-', '_' and '.'", path, line);
        if (trusted_keys_find(list, words[0]) || find_name(list, words[1]))
            return error_set(err, STATUS_INVALID, "%s:%d: the %s is in the list already", path, line,
                             find_name(list, words[1]) ? "name" : "key");
        if (list->n == ZAP_KEYS_MAX)
            return error_set(err, STATUS_INVALID, "%s:%d: more than %d keys", path, line, ZAP_KEYS_MAX);
        list->keys = xrealloc(list->keys, (size_t)(list->n + 1) * sizeof *list->keys);
        struct trusted_key *key = &list->keys[list->n++];
        memset(key, 0, sizeof *key);
        memcpy(key->key, words[0], PEER_KEY_BYTES);
        memcpy(key->name, words[1], strlen(words[1]));
    }
    return STATUS_OK;
}

enum status trusted_keys_read(struct trusted_keys *list, const char *path, struct error *err)
{
    trusted_keys_release(list);
    struct text text = {0};
    enum status status = read_file(path, 0, &text, err);
    if (status == STATUS_NOT_FOUND)
        status = STATUS_OK;
    else if (!status && text.length)
        status = parse_list(list, path, text.bytes, err);
    text_free(&text);
    if (status)
        trusted_keys_release(list);
    return status;
}

void trusted_keys_release(struct trusted_keys *list)
{
    free(list->keys);
    *list = (struct trusted_keys){0};
}

static enum status append(const char *path, const char *key, const char *name, struct error *err)
{
    struct text text = {0};
    struct stat st;
    mode_t mode = stat(path, &st) ? 0644 : st.st_mode & 0777;
    enum status status = read_file(path, 0, &text, err);
    if (status == STATUS_NOT_FOUND)
        status = STATUS_OK;
    if (!status) {
        if (text.length && text.bytes[text.length - 1] != '\n')
            text_append_string(&text, "\n");
        char *line = xasprintf("%s %s\n", key, name);
        text_append_string(&text, line);
        free(line);
        status = write_file(path, text.bytes, text.length, mode, 1, err);
    }
    text_free(&text);
    return status;
}

enum status trusted_keys_add(const char *path, const char *key, const char *name, struct error *err)
{
    if (!wire_is_key(key))
        return error_set(err, STATUS_INVALID, "'%.60s' is not a public key: 40 characters of Z85 (hearth keys show FILE prints it)", key);
    if (!wire_is_name(name))
        return error_set(err, STATUS_INVALID, "'%.80s' is not a name: 1 to %d letters, digits, '-', '_' and '.'", name, NAME_BYTES_MAX);
    struct trusted_keys list = {0};
    enum status status = trusted_keys_read(&list, path, err);
    const struct trusted_key *same_key = trusted_keys_find(&list, key), *same_name = find_name(&list, name);
    if (!status && same_name && same_name != same_key)
        status = error_set(err, STATUS_INVALID, "%s: '%s' has another key, %s: remove that line first if the machine has new keys", path,
                           name, same_name->key);
    else if (!status && !same_key)
        status = list.n == ZAP_KEYS_MAX ? error_set(err, STATUS_INVALID, "%s: holds %d keys, no more are allowed", path, list.n)
                                        : append(path, key, name, err);
    trusted_keys_release(&list);
    return status;
}
