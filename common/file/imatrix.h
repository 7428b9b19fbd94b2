/* imatrix.h - importance matrices: what the inputs of a model's products looked like, for quantising it.
 *
 * An *entry* belongs to a weight tensor and holds, for each matrix in it (experts have one each), the sum
 * over rows of the square of every input column, and the number of rows. Their quotient, the mean square of a
 * column, says how much an error in that column of the weights costs. A file is a GGUF as the ecosystem's
 * tools write it (docs/imatrix.md), so that files go both ways; files are merged by adding. Their older
 * binary form is read too (imatrix_dat.c). A *watch* (imatrix_watch.c) stands between a model and its backend
 * and fills entries while rows run. The caller owns an imatrix; entries live as long. */
#ifndef DFLASH_IMATRIX_H
#define DFLASH_IMATRIX_H

#include <stdbool.h>
#include <stdint.h>
#include "../base/err.h"
#include "../base/io.h"

struct gguf;  /* gguf.h */
struct model; /* model.h */

struct imatrix_entry {
    char *name;    /* of the weight tensor */
    int64_t n_in;  /* columns */
    int64_t n_mat; /* 1, or the experts */
    double *sum2;  /* [n_mat, n_in] */
    double *count; /* [n_mat] rows */
};

struct imatrix {
    struct imatrix_entry *entry; /* [n] */
    int64_t n, cap;
    bool sorted;    /* by name; else in any order */
    char **dataset; /* [n_dataset] what was run, in order */
    int64_t n_dataset;
    uint32_t chunk_size; /* rows a pass; 0: unknown */
    bool by_chunks;    /* of the binary form: counts are of chunks, sums those times the mean; nothing can be
                          added */
    uint32_t n_chunks; /* by_chunks: how many were run; 0: unknown */
};

int imatrix_new(struct imatrix **m, struct err *e);
void imatrix_free(struct imatrix *m);

bool imatrix_is(const struct gguf *g); /* by its general.type */
/* Read a file, a GGUF or the binary form. ERR_FORMAT: no importance matrix (general.type), sums without
 * counts or counts without sums, another tensor NAME.* that belongs to no entry (NAME.in_sum, NAME.stats and
 * the like of an entry are not used), shapes that do not fit, sums or counts that are negative or not finite.
 */
int imatrix_read(struct imatrix **m, const char *path, struct err *e);
int imatrix_read_memory(struct imatrix **m, const uint8_t *data, uint64_t n, const char *name, struct err *e);
/* Entries by name, those without a row left out. The bytes depend on the contents alone. */
int imatrix_write(const struct imatrix *m, struct io_out *out, struct err *e);

struct imatrix_entry *imatrix_find(const struct imatrix *m, const char *name); /* NULL if absent */
/* The entry takes the shape of its tensor: as it is, or, where it is one row of all matrices' columns with
 * one count (as files that come from the binary form have experts), cut into them. ERR_FORMAT where neither
 * is so. */
int imatrix_fit(struct imatrix_entry *t, int64_t n_in, int64_t n_mat, struct err *e);
/* The entry of that name, fitted, or made with zeros where it is new. ERR_FORMAT where it has another shape.
 */
int imatrix_entry(struct imatrix *m, const char *name, int64_t n_in, int64_t n_mat, struct imatrix_entry **at,
                  struct err *e);
int imatrix_add_dataset(struct imatrix *m, const char *name, struct err *e);
/* The most rows of any matrix in chunks, rounded up, or what the binary form says; 0 where that is unknown.
 */
uint32_t imatrix_chunks(const struct imatrix *m);

/* For readers: a new entry, without looking for its name; and the end of reading, ERR_FORMAT where a name
 * stands twice. */
int imatrix_append(struct imatrix *m, const char *name, int64_t n_in, int64_t n_mat,
                   struct imatrix_entry **at, struct err *e);
int imatrix_sort(struct imatrix *m, struct err *e);
/* The binary form at data [n] (imatrix_dat.c), into an empty m. */
int imatrix_read_dat(struct imatrix *m, const uint8_t *data, uint64_t n, struct err *e);

/* w[n_in]: mean squares of matrix i of an entry, divided by their mean and at least IMATRIX_LEAST, as
 * kn_encode_row wants them. A matrix without rows or with nothing but zeros gets ones; returns whether it was
 * so. */
#define IMATRIX_LEAST 1e-8f
bool imatrix_weights(const struct imatrix_entry *t, int64_t i, float *w);

/* ---- watching a model ---- */
struct imatrix_watch;
/* From now on the operations of model's backend add the inputs of its products to m, which gets an entry for
 * every matrix of the model. To be called before anything takes the backend's table (session_new); until
 * imatrix_watch_free the backend records nothing. Where a matrix is stored in halves (a gate beside it), the
 * inputs count once. ERR_FORMAT: an entry of m that the model has not, or of another shape. */
int imatrix_watch_new(struct imatrix_watch **w, const struct model *model, struct imatrix *m, struct err *e);
void imatrix_watch_stop(struct imatrix_watch *w); /* nothing is added any more */
void imatrix_watch_free(struct imatrix_watch *w); /* the backend has its own table again */

#endif
