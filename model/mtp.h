/* The MTP (multi-token prediction) layer: row p, made of h_p and the token at p + 1, predicts the token at p + 2 (docs/MODEL.md, "MTP";
 * spec section 5). */
#ifndef HEARTH_MODEL_MTP_H
#define HEARTH_MODEL_MTP_H

#include "model/layer.h"

/* Fills the residual of rows at their positions: eh_proj [rms(E[token]; enorm) | rms(h; hnorm)], embedding half first, and sets next_layer.
 * tokens [n_rows]: the token after each row's position. hidden [n_rows][H]: h_p, after the final norm; for a chained row g of the row
 * before (mtp_norm). */
enum status mtp_enter(const struct layer_context *ctx, struct row **rows, int n_rows, const int *tokens, const float *hidden,
                      struct error *err);

/* g [n_rows][H] = rms(residual; shared_head.norm) of rows that passed the MTP layer: feeds lm_head, and the next row of a chain in place of
 * h. */
void mtp_norm(const struct layer_context *ctx, struct row **rows, int n_rows, float *g);

/* The selection of a chained row: that of the round's first row plus the chain's own rows up to `position` (index_share_for_mtp_iteration).
 */
void mtp_reuse_selection(struct row *row, const struct selection *first, int first_position, int position);

#endif
