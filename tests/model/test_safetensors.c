/* Goal: no header, however hostile, is believed. Method: files made of a header text and a number of data bytes, one fault in each, and the
 * words that the error must have; then seeded random damage to a good file, which must be refused or read as it says, never crash
 * (sanitizers). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/memory.h"
#include "model/safetensors.h"
#include "tests/lib/golden.h"
#include "tests/lib/raw_checkpoint.h"

#define T(name, dtype, shape, begin, end)                                                                                                  \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static enum status open_text(const char *folder, const char *header, uint64_t header_bytes, uint64_t data_bytes, struct safetensors **file,
                             struct error *err)
{
    size_t length = strlen(header);
    uint8_t *bytes = xcalloc(8 + length + data_bytes, 1);
    memcpy(bytes, &header_bytes, 8);
    memcpy(bytes + 8, header, length);
    write_file(folder, "x.safetensors", bytes, 8 + length + data_bytes);
    free(bytes);
    char *path = xasprintf("%s/x.safetensors", folder);
    enum status status = safetensors_open(file, path, err);
    free(path);
    return status;
}

static const struct {
    const char *fault, *header;
    uint64_t data_bytes;
    const char *words; /* in the error */
} hostile[] = {
    {"not json", "hello", 0, "not a JSON object"},
    {"list", "[]", 0, "not a JSON object"},
    {"space before the object", " {}", 0, "not a JSON object"},
    {"cut json", "{\"a\":", 0, "not a JSON object"},
    {"text after the object", "{}x", 0, "not a JSON object"},
    {"name twice", "{" T("a", "F32", "[1]", 0, 4) "," T("a", "F32", "[1]", 4, 8) "}", 8, "duplicate"},
    {"entry is a number", "{\"a\":1}", 0, "tensor a: expected exactly dtype"},
    {"no shape", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "tensor a: expected exactly dtype"},
    {"a key more", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, "tensor a: expected exactly dtype"},
    {"unknown dtype", "{" T("a", "Q4_K", "[1]", 0, 4) "}", 4, "tensor a: unknown dtype 'Q4_K'"},
    {"dtype is a number", "{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor a: expected exactly dtype"},
    {"shape is no list", "{" T("a", "F32", "4", 0, 4) "}", 4, "tensor a: shape must be a list"},
    {"nine dimensions", "{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "tensor a: shape must be a list"},
    {"negative size", "{" T("a", "F32", "[-1]", 0, 4) "}", 4, "none negative"},
    {"fraction", "{" T("a", "F32", "[1.0]", 0, 4) "}", 4, "shape must be whole numbers"},
    {"size above 64 bit", "{" T("a", "F32", "[99999999999999999999]", 0, 4) "}", 4, "not a JSON object"},
    {"product overflows to 4", "{" T("a", "F32", "[4194305,4194305,211106198978564]", 0, 4) "}", 4,
     "tensor a: the size of its shape overflows"},
    {"product times element size overflows", "{" T("a", "F32", "[4611686018427387905]", 0, 4) "}", 4,
     "tensor a: the size of its shape overflows"},
    {"range too short", "{" T("a", "F32", "[2]", 0, 4) "}", 4, "tensor a: shape [2] takes 8 bytes, its range has 4"},
    {"range too long", "{" T("a", "F32", "[1]", 0, 8) "}", 8, "tensor a: shape [1] takes 4 bytes, its range has 8"},
    {"range behind the file", "{" T("a", "F32", "[4]", 0, 16) "}", 8, "tensor a: range 0 to 16 is outside the 8 data bytes"},
    {"range backwards", "{" T("a", "F32", "[1]", 4, 0) "}", 4, "tensor a: range 4 to 0"},
    {"negative range", "{" T("a", "F32", "[1]", -4, 0) "}", 4, "data_offsets must be two whole numbers"},
    {"three offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "data_offsets must be two whole numbers"},
    {"hole at the begin", "{" T("a", "F32", "[1]", 4, 8) "}", 8, "tensor a begins at data byte 4, leaving a hole from 0"},
    {"hole between", "{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 8, 12) "}", 12,
     "tensor b begins at data byte 8, leaving a hole from 4"},
    {"overlap", "{" T("a", "F32", "[2]", 0, 8) "," T("b", "F32", "[2]", 4, 12) "}", 12,
     "tensor b begins at data byte 4, overlapping what ends at 8"},
    {"two on the same bytes", "{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 0, 4) "}", 4, "overlapping"},
    {"empty tensor inside another", "{" T("a", "F32", "[2]", 0, 8) "," T("b", "F32", "[0]", 4, 4) "}", 8,
     "tensor b begins at data byte 4, overlapping"},
    {"bytes after the last", "{" T("a", "F32", "[1]", 0, 4) "}", 5, "the last tensor ends at byte"},
    {"a byte missing", "{" T("a", "F32", "[2]", 0, 8) "}", 7, "outside the 7 data bytes"},
    {"empty name", "{" T("", "F32", "[1]", 0, 4) "}", 4, "tensor name"},
    {"metadata is a list", "{\"__metadata__\":[]}", 0, "__metadata__ must be an object"},
    {"metadata with a number", "{\"__metadata__\":{\"a\":1}}", 0, "__metadata__: every value must be a string"},
    {"zero in a name", "{\"a\\u0000b\":{}}", 0, "not a JSON object"},
    {"deep nesting in metadata", "{\"__metadata__\":{\"a\":[[[[[[[[]]]]]]]]}}", 0, "every value must be a string"},
};

static void a_hostile_header_is_refused_and_named(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        struct safetensors *file;
        struct error err = {0};
        enum status status = open_text(folder, hostile[i].header, strlen(hostile[i].header), hostile[i].data_bytes, &file, &err);
        if (!status || !strstr(err.text, hostile[i].words) || !strstr(err.text, "x.safetensors"))
            fail_msg("%s: expected '%s', got %d '%s'", hostile[i].fault, hostile[i].words, status, err.text);
        assert_null(file);
    }
    temporary_remove(&folder);
}

static void a_long_name_is_refused(void **state)
{
    (void)state;
    char *folder = temporary_folder(), name[300], header[600];
    for (int length = 256; length <= 257; length++) {
        struct safetensors *file;
        struct error err = {0};
        memset(name, 'n', sizeof name);
        name[length] = 0;
        snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", name);
        enum status status = open_text(folder, header, strlen(header), 4, &file, &err);
        assert_int_equal(status, length == 256 ? STATUS_OK : STATUS_CORRUPT);
        safetensors_close(&file);
    }
    temporary_remove(&folder);
}

static void a_header_length_beyond_file_or_limit_is_refused(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    static const struct {
        uint64_t header_bytes;
        const char *words;
    } lengths[] = {{0, "header of 0 bytes"},
                   {3, "cut short"},
                   {UINT64_C(1) << 63, "allowed are"},
                   {UINT64_MAX, "allowed are"},
                   {SAFETENSORS_HEADER_MAX_BYTES + 1, "allowed are"},
                   {SAFETENSORS_HEADER_MAX_BYTES, "cut short"}};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct safetensors *file;
        struct error err = {0};
        assert_int_equal(open_text(folder, "{}", lengths[i].header_bytes, 0, &file, &err), STATUS_CORRUPT);
        if (!strstr(err.text, lengths[i].words))
            fail_msg("length %llu: %s", (unsigned long long)lengths[i].header_bytes, err.text);
    }
    temporary_remove(&folder);
}

static void what_is_no_file_is_refused_without_waiting(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *fifo = xasprintf("%s/fifo", folder), *link = xasprintf("%s/link", folder),
         *none = xasprintf("%s/none", folder);
    struct safetensors *file;
    struct error err = {0};
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(symlink("/dev/zero", link), 0);
    assert_int_equal(safetensors_open(&file, fifo, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "not a regular file"));
    assert_int_equal(safetensors_open(&file, link, &err), STATUS_INVALID);
    assert_int_equal(safetensors_open(&file, folder, &err), STATUS_INVALID);
    assert_int_equal(safetensors_open(&file, none, &err), STATUS_NOT_FOUND);
    write_file(folder, "none", "abc", 3);
    assert_int_equal(safetensors_open(&file, none, &err), STATUS_CORRUPT);
    free(fifo);
    free(link);
    free(none);
    temporary_remove(&folder);
}

static void good_files_are_read_as_they_say(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    struct safetensors *file;
    struct error err = {0};
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"}," T("b", "F32", "[2,1]", 2, 10) "," T(
        "a", "BF16", "[]", 0, 2) "," T("c", "I64", "[3,0]", 10, 10) "," T("d", "F8_E4M3", "[1]", 10, 11) "}  ";
    assert_int_equal(open_text(folder, header, strlen(header), 11, &file, &err), STATUS_OK);
    assert_int_equal(file->n_tensors, 4);
    const struct safetensors_tensor *b = safetensors_find(file, "b");
    assert_int_equal(b->offset, 8 + strlen(header) + 2);
    assert_int_equal(b->bytes, 8);
    assert_int_equal(b->dtype, DTYPE_F32);
    assert_int_equal(b->shape[0], 2);
    assert_int_equal(safetensors_find(file, "a")->n_dims, 0);
    assert_int_equal(safetensors_find(file, "c")->dtype, DTYPE_OTHER);
    assert_null(safetensors_find(file, "e"));
    safetensors_close(&file);
    temporary_remove(&folder);
}

/* Replay: the seed is printed. A few bytes of length field and header change; whatever is accepted must lie inside the file. */
static void random_damage_never_leads_outside_the_file(void **state)
{
    (void)state;
    uint64_t seed = 20240611, n;
    char *folder = temporary_folder(), *path = xasprintf("%s/x.safetensors", folder);
    char golden[512];
    golden_path(golden, "tiny-groups", "checkpoint");
    uint8_t *good = read_file(golden, "model.safetensors", &n), *bad = xcalloc(n, 1);
    uint64_t header_bytes;
    memcpy(&header_bytes, good, 8);
    int n_accepted = 0, rounds = 400;
    for (int round = 0; round < rounds; round++) {
        memcpy(bad, good, n);
        for (uint64_t k = noise(&seed) % 4; k < 4; k++) {
            uint64_t at = noise(&seed) % 8 ? 8 + noise(&seed) % header_bytes : noise(&seed) % 8;
            static const uint8_t likely[] = "0123456789-[]{}\",:.e \\\0\xff";
            bad[at] = noise(&seed) % 3 ? likely[noise(&seed) % (sizeof likely - 1)] : (uint8_t)noise(&seed);
        }
        uint64_t keep = noise(&seed) % 16 ? n : noise(&seed) % n;
        write_file(folder, "x.safetensors", bad, keep);
        struct safetensors *file;
        struct error err = {0};
        if (safetensors_open(&file, path, &err)) {
            assert_null(file);
            assert_non_null(strstr(err.text, "x.safetensors"));
            continue;
        }
        n_accepted++;
        for (int i = 0; i < file->n_tensors; i++)
            assert_true(file->tensors[i].offset <= keep && file->tensors[i].bytes <= keep - file->tensors[i].offset);
        safetensors_close(&file);
    }
    print_message("seed 20240611: %d of %d damaged files still were valid\n", n_accepted, rounds);
    assert_true(n_accepted < rounds / 2);
    free(good);
    free(bad);
    free(path);
    temporary_remove(&folder);
}

static void a_file_that_changes_after_opening_is_not_read(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    struct safetensors *file;
    struct error err = {0};
    static const char header[] = "{" T("a", "F32", "[1]", 0, 4) "}";
    assert_int_equal(open_text(folder, header, strlen(header), 4, &file, &err), STATUS_OK);
    int fd;
    assert_int_equal(safetensors_open_data(file, &fd, &err), STATUS_OK);
    close(fd);
    write_file(folder, "x.safetensors", "0123456789", 10);
    assert_int_equal(safetensors_open_data(file, &fd, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.text, "changed"));
    safetensors_close(&file);
    temporary_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hostile_header_is_refused_and_named),
        cmocka_unit_test(a_long_name_is_refused),
        cmocka_unit_test(a_header_length_beyond_file_or_limit_is_refused),
        cmocka_unit_test(what_is_no_file_is_refused_without_waiting),
        cmocka_unit_test(good_files_are_read_as_they_say),
        cmocka_unit_test(random_damage_never_leads_outside_the_file),
        cmocka_unit_test(a_file_that_changes_after_opening_is_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
