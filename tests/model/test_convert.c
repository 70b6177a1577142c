/* Goal: a conversion gives the same bytes whatever interrupts it and however many threads run, and never touches what is not its own.
 * Method: small checkpoints are converted, stopped at every possible point through the stop flag, damaged in between, and compared with an
 * undisturbed run. kill -9: tests/cli/test_convert.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <fcntl.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/log.h"
#include "common/memory.h"
#include "kernels/parallel.h"
#include "model/convert.h"
#include "model/pack.h"
#include "tests/lib/golden.h"
#include "tests/lib/packs.h"
#include "tests/lib/raw_checkpoint.h"

static void any_number_of_threads_gives_the_same_bytes(void **state)
{
    (void)state;
    char path[512];
    static const char *const names[] = {"tiny-fp8", "tiny-pattern", "kindling"};
    for (int i = 0; i < 3; i++)
        for (int precision = 0; precision < N_PRECISIONS; precision++) {
            checkpoint_path(path, names[i]);
            parallel_set_threads(1);
            char *one = make_pack(path, (enum precision)precision, NULL);
            for (int threads = 2; threads <= 5; threads += 3) {
                parallel_set_threads(threads);
                char *more = make_pack(path, (enum precision)precision, NULL);
                assert_same_folders(one, more);
                temporary_remove(&more);
            }
            parallel_set_threads(1);
            temporary_remove(&one);
        }
}

static void large_matrices_are_shared_by_threads_and_give_the_same_bytes(void **state)
{
    (void)state;
    static const struct raw_size sizes[] = {{"hidden_size", 640},
                                            {"intermediate_size", 1100},
                                            {"moe_intermediate_size", 1100},
                                            {"num_hidden_layers", 2},
                                            {"n_routed_experts", 2},
                                            {"num_experts_per_tok", 1},
                                            {"n_group", 1},
                                            {"topk_group", 1},
                                            {"vocab_size", 1500},
                                            {"num_attention_heads", 16},
                                            {"kv_lora_rank", 300},
                                            {"qk_nope_head_dim", 100},
                                            {NULL, 0}};
    char *source = temporary_folder();
    struct raw_checkpoint raw = raw_synthetic(source, sizes, 0);
    raw_write(&raw, 0, raw.n, source, "model.safetensors");
    raw_release(&raw);
    for (int precision = 0; precision < N_PRECISIONS; precision++) {
        parallel_set_threads(1);
        char *one = make_pack(source, (enum precision)precision, NULL);
        for (int threads = 2; threads <= 4; threads++) {
            parallel_set_threads(threads);
            char *more = make_pack(source, (enum precision)precision, NULL);
            assert_same_folders(one, more);
            temporary_remove(&more);
        }
        parallel_set_threads(1);
        temporary_remove(&one);
    }
    temporary_remove(&source);
}

static void the_identity_tells_precisions_and_sources_apart(void **state)
{
    (void)state;
    char path[512], ids[6][33];
    int n = 0;
    for (int i = 0; i < 2; i++)
        for (int precision = 0; precision < N_PRECISIONS; precision++) {
            char *pack = make_pack(checkpoint_path(path, i ? "tiny-share" : "tiny-groups"), (enum precision)precision, ids[n++]);
            struct pack *opened;
            struct error err = {0};
            assert_int_equal(pack_open(&opened, pack, &err), STATUS_OK);
            assert_string_equal(opened->identity, ids[n - 1]);
            pack_close(&opened);
            temporary_remove(&pack);
        }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            assert_string_not_equal(ids[i], ids[j]);
}

/* Sets the stop flag at the report number `stop_at`, counts reports and kept parts. */
struct interruption {
    volatile sig_atomic_t stop;
    int n_reports, stop_at, n_kept;
};

static void interrupt(void *ctx, const struct convert_progress *progress)
{
    struct interruption *i = ctx;
    i->n_kept += progress->is_part_done && progress->is_kept;
    assert_true(progress->done_bytes <= progress->total_bytes);
    if (++i->n_reports == i->stop_at)
        i->stop = 1;
}

static enum status convert_until(const char *source, const char *target, int stop_at, struct interruption *i, struct error *err)
{
    *i = (struct interruption){.stop_at = stop_at};
    struct convert_options options = {.precision = PRECISION_INT4, .report = interrupt, .ctx = i, .stop = &i->stop};
    struct convert_result result;
    return convert_model(source, target, &options, &result, err);
}

static int has_partial(const char *folder)
{
    DIR *d = opendir(folder);
    int found = 0;
    for (struct dirent *entry; (entry = readdir(d));)
        found |= strstr(entry->d_name, ".partial") != NULL;
    closedir(d);
    return found;
}

static void a_stopped_conversion_is_no_pack_and_goes_on_to_the_same_bytes(void **state)
{
    (void)state;
    char path[512];
    golden_path(path, "tiny-fp8", "checkpoint");
    char *whole = make_pack(path, PRECISION_INT4, NULL);
    struct interruption i;
    struct error err = {0};
    char *probe = temporary_folder();
    assert_int_equal(convert_until(path, probe, 0, &i, &err), STATUS_OK);
    temporary_remove(&probe);
    int n_reports = i.n_reports, kept_most = 0;
    assert_true(n_reports > 100);
    for (int stop_at = 1; stop_at < n_reports - 3; stop_at += 7) {
        char *target = temporary_folder();
        assert_int_equal(convert_until(path, target, stop_at, &i, &err), STATUS_CANCELLED);
        assert_false(has_partial(target));
        struct weights_source *source;
        assert_int_equal(weights_source_open(&source, target, &err), STATUS_INVALID);
        assert_non_null(strstr(err.text, "unfinished pack"));
        assert_int_equal(convert_until(path, target, 0, &i, &err), STATUS_OK);
        kept_most = i.n_kept > kept_most ? i.n_kept : kept_most;
        assert_same_folders(whole, target);
        temporary_remove(&target);
    }
    assert_true(kept_most >= 10);
    temporary_remove(&whole);
}

/* A stopped conversion of tiny-fp8 with several finished parts. */
static char *half_a_pack(char path[512])
{
    struct interruption i;
    struct error err = {0};
    char *target = temporary_folder();
    assert_int_equal(convert_until(golden_path(path, "tiny-fp8", "checkpoint"), target, 90, &i, &err), STATUS_CANCELLED);
    return target;
}

static void a_finished_file_that_was_damaged_is_made_again(void **state)
{
    (void)state;
    char path[512], *target = half_a_pack(path), *whole = make_pack(path, PRECISION_INT4, NULL);
    uint64_t n;
    uint8_t *bytes = read_file(target, "dense-01", &n);
    bytes[5000] ^= 4;
    write_file(target, "dense-01", bytes, n);
    struct interruption i;
    struct error err = {0};
    assert_int_equal(convert_until(path, target, 0, &i, &err), STATUS_OK);
    assert_true(i.n_kept >= 2);
    assert_same_folders(whole, target);
    free(bytes);
    temporary_remove(&target);
    temporary_remove(&whole);
}

/* A good file of the right name and size that this conversion did not make (it was copied from another): its own checksums do not count,
 * the journal's do. */
static void a_file_of_another_conversion_is_not_kept(void **state)
{
    (void)state;
    char path[512], *target = half_a_pack(path), *whole = make_pack(path, PRECISION_INT4, NULL);
    uint64_t n;
    uint8_t *bytes = read_file(target, "dense-00", &n);
    bytes[4096]++;
    write_file(target, "dense-06", bytes, n); /* not in the journal */
    struct interruption i;
    struct error err = {0};
    assert_int_equal(convert_until(path, target, 0, &i, &err), STATUS_OK);
    assert_same_folders(whole, target);
    free(bytes);
    temporary_remove(&target);
    temporary_remove(&whole);
}

static void a_torn_journal_line_counts_for_nothing(void **state)
{
    (void)state;
    char path[512], *whole = NULL;
    for (int cut = 1; cut < 200; cut += 40) {
        char *target = half_a_pack(path);
        whole = whole ? whole : make_pack(path, PRECISION_INT4, NULL);
        uint64_t n;
        uint8_t *journal = read_file(target, PACK_JOURNAL, &n);
        write_file(target, PACK_JOURNAL, journal, n - (uint64_t)cut);
        struct interruption i;
        struct error err = {0};
        if (convert_until(path, target, 0, &i, &err))
            fail_msg("%s", err.text);
        assert_true(i.n_kept > 0);
        assert_same_folders(whole, target);
        free(journal);
        temporary_remove(&target);
    }
    temporary_remove(&whole);
}

static void a_damaged_journal_is_refused(void **state)
{
    (void)state;
    static const char *const journals[] = {"", "\n", "{}\n", "nonsense\n",
                                           "{\"hearth-convert\":1,\"precision\":\"int4\",\"source\":\"00\"}\n"};
    char path[512], *target = half_a_pack(path);
    for (size_t k = 0; k < sizeof journals / sizeof *journals; k++) {
        struct error err = {0};
        write_file(target, PACK_JOURNAL, journals[k], strlen(journals[k]));
        assert_int_not_equal(try_convert(path, target, PRECISION_INT4, &err), STATUS_OK);
        assert_true(strstr(err.text, PACK_JOURNAL) || strstr(err.text, "another source"));
    }
    temporary_remove(&target);
}

static void another_source_or_precision_does_not_go_on(void **state)
{
    (void)state;
    char path[512], *target = half_a_pack(path), *other = temporary_copy(path);
    struct error err = {0};
    assert_int_equal(try_convert(path, target, PRECISION_INT8, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "another precision"));
    assert_int_equal(try_convert(other, target, PRECISION_INT4, &err),
                     STATUS_INVALID); /* a copy has other times of change: it could be another model */
    assert_non_null(strstr(err.text, "another source"));
    temporary_remove(&target);
    temporary_remove(&other);
}

static void a_finished_pack_is_compared_and_never_overwritten(void **state)
{
    (void)state;
    char path[512];
    golden_path(path, "tiny-fp8", "checkpoint");
    char *pack = make_pack(path, PRECISION_INT4, NULL), *copy = make_pack(path, PRECISION_INT4, NULL), *other = folder_with_config_of(path);
    struct convert_options options = {.precision = PRECISION_INT4};
    struct convert_result result;
    struct error err = {0};
    assert_int_equal(convert_model(path, pack, &options, &result, &err), STATUS_OK);
    assert_true(result.was_complete);
    assert_int_equal(try_convert(path, pack, PRECISION_INT8, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "another finished pack (precision differs)"));
    /* the same model with one weight changed */
    struct raw_checkpoint raw = raw_read(path);
    raw_find(&raw, "model.layers.5.mlp.experts.4.down_proj.weight")->bytes[100] ^= 0x20;
    raw_write(&raw, 0, raw.n, other, "model.safetensors");
    assert_int_equal(try_convert(other, pack, PRECISION_INT4, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "experts-05 differs"));
    assert_same_folders(copy, pack);
    raw_release(&raw);
    temporary_remove(&pack);
    temporary_remove(&copy);
    temporary_remove(&other);
}

static void a_folder_with_other_things_is_left_alone(void **state)
{
    (void)state;
    char path[512], *target = temporary_folder();
    struct error err = {0};
    golden_path(path, "tiny-groups", "checkpoint");
    write_file(target, "thesis.txt", "precious", 8);
    assert_int_equal(try_convert(path, target, PRECISION_INT4, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "not empty"));
    uint64_t n;
    uint8_t *bytes = read_file(target, "thesis.txt", &n);
    assert_string_equal((char *)bytes, "precious");
    free(bytes);
    char *copy = temporary_copy(path);
    assert_int_equal(try_convert(copy, copy, PRECISION_INT4, &err), STATUS_INVALID); /* onto itself */
    assert_int_equal(try_convert(path, "/nonexistent/deep/target", PRECISION_INT4, &err), STATUS_IO);
    assert_non_null(strstr(err.text, "/nonexistent/deep/target"));
    temporary_remove(&copy);
    temporary_remove(&target);
}

static void two_conversions_into_one_folder_are_refused(void **state)
{
    (void)state;
    char path[512], *target = half_a_pack(path), *journal = xasprintf("%s/%s", target, PACK_JOURNAL);
    int fd = open(journal, O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    struct error err = {0};
    assert_int_equal(try_convert(path, target, PRECISION_INT4, &err), STATUS_BUSY);
    assert_non_null(strstr(err.text, "another hearth convert"));
    close(fd);
    assert_int_equal(try_convert(path, target, PRECISION_INT4, &err), STATUS_OK);
    free(journal);
    temporary_remove(&target);
}

static void a_full_disk_is_an_error_that_names_the_file(void **state)
{
    (void)state;
    char path[512], *target = temporary_folder();
    golden_path(path, "tiny-fp8", "checkpoint");
    fflush(NULL);
    pid_t child = fork();
    if (!child) { /* the limit on file sizes stands for a full disk */
        struct rlimit limit = {100000, 100000};
        struct error err = {0};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        enum status status = try_convert(path, target, PRECISION_INT4, &err);
        _exit(status == STATUS_IO && strstr(err.text, target) && strstr(err.text, "File too large") && !has_partial(target) ? 0 : 1);
    }
    int wait_status;
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    assert_int_equal(wait_status, 0);
    struct error err = {0};
    assert_int_equal(try_convert(path, target, PRECISION_INT4, &err), STATUS_OK); /* goes on once there is room */
    temporary_remove(&target);
}

static void a_bad_weight_stops_the_conversion_with_its_name(void **state)
{
    (void)state;
    char path[512], *target = temporary_folder();
    golden_path(path, "tiny-fp8", "checkpoint");
    char *source = folder_with_config_of(path);
    struct raw_checkpoint raw = raw_read(path);
    raw_find(&raw, "model.layers.5.mlp.experts.4.down_proj.weight")->bytes[100] = 0x7f;
    raw_write(&raw, 0, raw.n, source, "model.safetensors");
    struct error err = {0};
    assert_int_equal(try_convert(source, target, PRECISION_INT4, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.text, "model.layers.5.mlp.experts.4.down_proj.weight"));
    assert_false(has_partial(target));
    struct weights_source *opened;
    assert_int_not_equal(weights_source_open(&opened, target, &err), STATUS_OK);
    raw_release(&raw);
    temporary_remove(&source);
    temporary_remove(&target);
}

/* What was trusted at first use is verified by the converter too. */
static void a_source_that_fails_its_checksums_is_not_converted(void **state)
{
    (void)state;
    char path[512], *target = temporary_folder(), *source = temporary_copy(golden_path(path, "tiny-groups", "checkpoint"));
    struct weights_source *opened;
    struct error err = {0};
    assert_int_equal(weights_source_open(&opened, source, &err), STATUS_OK); /* writes the side file */
    weights_source_close(&opened);
    uint64_t n;
    uint8_t *bytes = read_file(source, "model.safetensors", &n);
    bytes[n - 40] ^= 1;
    write_file(source, "model.safetensors", bytes, n);
    assert_int_equal(try_convert(source, target, PRECISION_INT4, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.text, "checksum"));
    free(bytes);
    temporary_remove(&source);
    temporary_remove(&target);
}

int main(void)
{
    log_set_level(LOG_ERROR); /* not the warnings about what the tests damage */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_threads_gives_the_same_bytes),
        cmocka_unit_test(large_matrices_are_shared_by_threads_and_give_the_same_bytes),
        cmocka_unit_test(the_identity_tells_precisions_and_sources_apart),
        cmocka_unit_test(a_stopped_conversion_is_no_pack_and_goes_on_to_the_same_bytes),
        cmocka_unit_test(a_finished_file_that_was_damaged_is_made_again),
        cmocka_unit_test(a_file_of_another_conversion_is_not_kept),
        cmocka_unit_test(a_torn_journal_line_counts_for_nothing),
        cmocka_unit_test(a_damaged_journal_is_refused),
        cmocka_unit_test(another_source_or_precision_does_not_go_on),
        cmocka_unit_test(a_finished_pack_is_compared_and_never_overwritten),
        cmocka_unit_test(a_folder_with_other_things_is_left_alone),
        cmocka_unit_test(two_conversions_into_one_folder_are_refused),
        cmocka_unit_test(a_full_disk_is_an_error_that_names_the_file),
        cmocka_unit_test(a_bad_weight_stops_the_conversion_with_its_name),
        cmocka_unit_test(a_source_that_fails_its_checksums_is_not_converted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
