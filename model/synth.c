#include "model/synth.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/check.h"
#include "common/memory.h"
#include "model/checksums.h"
#include "model/convert_journal.h"
#include "model/files.h"
#include "model/pack.h"
#include "model/synth_part.h"

enum { SPACE_MARGIN_BYTES = 1 << 20, /* directory entries, journal, manifest */ N_COPIES = 3 };

static const char *const copy_names[N_COPIES] = {"config.json", "tokenizer.json", "generation_config.json"};

struct synth {
    struct synth_run run;
    int is_dir_ours; /* made here */
    struct pack *pack;
    char *copies[N_COPIES];
    struct journal journal;
};

/* --- the plan: everything that is known before a byte is written --- */

/* docs/FORMATS.md, "Precisions". */
static enum weight_format stored_format(enum precision precision, enum tensor_class class)
{
    if (class == TENSOR_FLOAT)
        return FORMAT_F32;
    return precision == PRECISION_INT4 && class == TENSOR_EXPERT ? FORMAT_INT4 : FORMAT_INT8;
}

static enum status plan_part(struct synth *s, struct pack_part *part, struct error *err)
{
    struct tensor_spec specs[PART_TENSORS_MAX];
    enum weight_format formats[PART_TENSORS_MAX];
    struct part_layout layout;
    int n = part_tensor_specs(&s->run.config, part->layout.kind, part->layout.layer, 0, specs);
    for (int i = 0; i < n; i++)
        formats[i] = stored_format(s->run.options->precision, specs[i].class);
    enum status status = part_layout_init(&layout, &s->run.config, part->layout.kind, part->layout.layer, formats, err);
    if (status)
        return status;
    pack_set_layout(part, &layout);
    s->run.total_bytes += part->file_bytes;
    return STATUS_OK;
}

static enum status plan(struct synth *s, struct error *err)
{
    const struct synth_shape *shape = &s->run.options->shape;
    if (shape->n_dense_layers > shape->n_layers)
        return error_set(err, STATUS_INVALID, "%d dense layers are asked for, but only %d layers in all", shape->n_dense_layers,
                         shape->n_layers);
    if (shape->vocab_size < synth_shape_vocab_min(shape))
        return error_set(err, STATUS_INVALID, "a vocabulary of %d is too small: bytes and special tokens need %d", shape->vocab_size,
                         synth_shape_vocab_min(shape));
    s->copies[0] = synth_config_text(shape);
    enum status status = model_config_parse(&s->run.config, s->copies[0], strlen(s->copies[0]), "what is asked for", err);
    if (status)
        return status;
    s->copies[1] = synth_tokenizer_text(shape);
    s->copies[2] = synth_generation_text(shape);
    s->pack = pack_new(s->run.dir, &s->run.config, s->run.options->precision);
    for (int i = 0; i < N_COPIES; i++)
        s->pack->copies[s->pack->n_copies++] =
            (struct pack_copy){copy_names[i], strlen(s->copies[i]), XXH3_64bits(s->copies[i], strlen(s->copies[i]))};
    for (int i = 0; i < s->pack->n_parts && !status; i++)
        status = plan_part(s, &s->pack->parts[i], err);
    return status;
}

/* --- the target --- */

static int is_there(const char *dir, const char *name)
{
    char *path = xasprintf("%s/%s", dir, name);
    int found = !access(path, F_OK);
    free(path);
    return found;
}

static int is_empty(const char *dir)
{
    DIR *d = opendir(dir);
    int found = !d;
    for (struct dirent *entry; d && (entry = readdir(d));)
        found |= strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && strcmp(entry->d_name, "lost+found") &&
                 strcmp(entry->d_name, PACK_JOURNAL ".partial");
    if (d)
        closedir(d);
    return !found;
}

static void remove_file(const struct synth *s, const char *name)
{
    char *partial = xasprintf("%s/%s.partial", s->run.dir, name);
    unlink(partial);
    partial[strlen(partial) - strlen(".partial")] = 0;
    unlink(partial);
    free(partial);
}

/* The manifest first, so that at no moment half a pack looks whole. */
static void remove_files(const struct synth *s)
{
    remove_file(s, PACK_MANIFEST);
    for (int i = 0; i < N_COPIES; i++)
        remove_file(s, copy_names[i]);
    for (int i = 0; i < s->pack->n_parts; i++)
        remove_file(s, s->pack->parts[i].file);
}

/* A journal marks the folder as unfinished, names what it will be, and its lock keeps others out. Nothing is entered in it: writing a part
 * again is as fast as verifying it. */
static enum status open_target(struct synth *s, struct error *err)
{
    char source[33], *text = xasprintf("hearth synth %llu %.17g\n%s", (unsigned long long)s->run.options->seed, s->run.options->shape.skew,
                                       s->copies[0]);
    identity_text(source, text, strlen(text));
    free(text);
    s->is_dir_ours = !mkdir(s->run.dir, 0755);
    if (!s->is_dir_ours && errno != EEXIST)
        return error_errno(err, STATUS_IO, "%s: cannot create the folder", s->run.dir);
    if (!is_there(s->run.dir, PACK_JOURNAL)) {
        if (!is_empty(s->run.dir))
            return error_set(err, STATUS_INVALID, "%s: is not an empty folder; give a new one", s->run.dir);
        enum status status = journal_create(s->run.dir, source, s->run.options->precision, err);
        if (status)
            return status;
    }
    return journal_open(&s->journal, s->run.dir, source, s->run.options->precision, err);
}

static enum status check_space(const struct synth *s, struct error *err)
{
    struct statvfs fs;
    if (statvfs(s->run.dir, &fs))
        return error_errno(err, STATUS_IO, "%s: cannot ask for its free space", s->run.dir);
    uint64_t needed = SPACE_MARGIN_BYTES + s->run.total_bytes, n_free = (uint64_t)fs.f_bavail * fs.f_frsize;
    for (int i = 0; i < N_COPIES; i++)
        needed += s->pack->copies[i].bytes;
    for (int i = 0; i < s->pack->n_parts; i++)
        needed += 24 * (uint64_t)pack_part_n_checksums(&s->pack->parts[i]); /* its lines in the manifest */
    if (needed <= n_free)
        return STATUS_OK;
    return error_set(err, STATUS_IO, "%s: the pack needs %.2f GB (%llu bytes), %.2f GB (%llu bytes) are free; ask for fewer --layers",
                     s->run.dir, (double)needed / 1e9, (unsigned long long)needed, (double)n_free / 1e9, (unsigned long long)n_free);
}

static enum status write_pack(struct synth *s, struct error *err)
{
    remove_files(s);
    enum status status = check_space(s, err);
    if (status)
        return status;
    s->run.buffer = synth_buffer();
    for (int i = 0; i < s->pack->n_parts && !status; i++)
        status = synth_part(&s->run, &s->pack->parts[i]);
    for (int i = 0; i < N_COPIES && !status; i++)
        status = file_write_atomic(s->run.dir, copy_names[i], s->copies[i], strlen(s->copies[i]), err);
    if (status)
        return status;
    char *manifest = pack_manifest_text(s->pack);
    status = file_write_atomic(s->run.dir, PACK_MANIFEST, manifest, strlen(manifest), err);
    free(manifest);
    return status ? status : journal_finish(&s->journal, err);
}

static void tell_result(const struct synth *s, struct synth_result *result)
{
    *result = (struct synth_result){.pack_bytes = s->run.total_bytes};
    memcpy(result->identity, s->pack->identity, sizeof result->identity);
    for (int i = 0; i < s->pack->n_parts; i++)
        if (s->pack->parts[i].layout.kind == PART_EXPERTS)
            result->expert_bytes += s->pack->parts[i].layout.bytes;
}

static void release(struct synth *s)
{
    for (int i = 0; i < N_COPIES; i++)
        free(s->copies[i]);
    free(s->run.buffer);
    journal_close(&s->journal);
    pack_close(&s->pack);
    pthread_mutex_destroy(&s->run.lock);
}

enum status synth_pack(const char *dir, const struct synth_options *options, struct synth_result *result, struct error *err)
{
    CHECK(options->precision == PRECISION_INT4 || options->precision == PRECISION_INT8);
    struct synth s = {.run = {.options = options, .dir = dir, .lock = PTHREAD_MUTEX_INITIALIZER, .err = err}, .journal = {.fd = -1}};
    enum status status = plan(&s, err);
    if (!status)
        status = open_target(&s, err);
    if (!status && (status = write_pack(&s, err))) {
        remove_files(&s);
        remove_file(&s, PACK_JOURNAL);
    }
    if (status && s.is_dir_ours)
        rmdir(dir);
    if (!status) {
        tell_result(&s, result);
        synth_advance(&s.run, "", 0, 0);
    }
    release(&s);
    return status;
}
